/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ways may carry the bytes of an operation, by the keys of both ends and by what works. On the
 * polling core.
 */
#ifndef GX_VERBS_OP_H
#define GX_VERBS_OP_H

#include "verbs/verbs_lane.h"

/* ---- Ways ---- */

/* The ways between rails that have keys. @own, @theirs: rails of both ends, as bits. */
static inline uint32_t ways_of(const struct verbs_lane *l, uint32_t own, uint32_t theirs)
{
	uint32_t ways = 0;

	for (unsigned i = 0; i < l->nr_ways; i++)
		ways |= (own >> l->way[i].dev->rail & theirs >> l->way[i].peer & 1) << i;
	return ways;
}

/* Our rails that have keys for bytes: all, or those to take first. @reg: of the memory; not needed if
 * the bytes travel in the request. */
static inline uint32_t own_rails(const struct verbs_reg *reg, bool is_inline, bool near)
{
	return is_inline ? UINT32_MAX : !reg ? 0 : near ? reg->near : reg->rails;
}

static inline const struct verbs_reg *reg_of(const struct gx_mem *mem)
{
	/* Pairs with the release in control/region.c: the registration is complete. */
	return mem ? atomic_load_explicit(&mem->link[GX_LINK_VERBS], memory_order_acquire) : NULL;
}

/* Near ways that work. @theirs: the peer's rails that have keys. */
static inline uint32_t ways_first(const struct verbs_lane *l, const struct verbs_reg *reg,
				  bool is_inline, uint32_t theirs)
{
	return ways_of(l, own_rails(reg, is_inline, true), theirs) & ~l->away;
}

/* No near way works: others that do, or those that may work again soon. */
uint32_t ways_rest(const struct verbs_lane *l, const struct verbs_reg *reg, bool is_inline,
		   uint32_t theirs);
/* Near ways, else others. 0: no way may have the bytes. */
uint32_t ways_take(const struct verbs_lane *l, const struct verbs_reg *reg, bool is_inline,
		   uint32_t theirs);

#endif
