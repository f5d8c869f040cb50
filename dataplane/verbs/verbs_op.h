/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which paths may carry the bytes of an operation, by the keys of both ends and by what works. On the
 * polling core.
 */
#ifndef GX_VERBS_OP_H
#define GX_VERBS_OP_H

#include "verbs/verbs_lane.h"

/* ---- Paths ---- */

/* The paths between rails that have keys. @own, @theirs: rails of both ends, as bits. */
static inline uint32_t paths_of(const struct verbs_lane *l, uint32_t own, uint32_t theirs)
{
	uint32_t paths = 0;

	for (unsigned i = 0; i < l->nr_paths; i++)
		paths |= (own >> l->path[i].dev->rail & theirs >> l->path[i].peer & 1) << i;
	return paths;
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

/* Near paths that work. @theirs: the peer's rails that have keys. */
static inline uint32_t paths_first(const struct verbs_lane *l, const struct verbs_reg *reg,
				   bool is_inline, uint32_t theirs)
{
	return paths_of(l, own_rails(reg, is_inline, true), theirs) & ~l->away;
}

/* No near path works: others that do, or those that may work again soon. */
uint32_t paths_rest(const struct verbs_lane *l, const struct verbs_reg *reg, bool is_inline,
		    uint32_t theirs);
/* Near paths, else others. 0: no path may have the bytes. */
uint32_t paths_take(const struct verbs_lane *l, const struct verbs_reg *reg, bool is_inline,
		    uint32_t theirs);

#endif
