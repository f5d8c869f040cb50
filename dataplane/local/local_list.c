// SPDX-License-Identifier: Apache-2.0
/*
 * Segments of lists on the local link: this core copies short ones of host memory at once. What it
 * leaves takes the way of operations (local_post.c). Runs on the polling core.
 */
#include "local/link_local.h"

#define SEG_COST_B  256u /* bytes that a core copies while it looks at a segment */
#define SEG_AHEAD_B 256u /* of the next segment */

static char *seg_mine(const struct gx_link_seg *s)
{
	return s->mem ? s->mem->addr + s->off : (char *)(uintptr_t)s->off;
}

/* Ask for the first bytes of what is copied next: no line of it is near those of the segment before. */
static void seg_ahead(const struct local_map *m, const struct gx_link_seg *s, bool put)
{
	const char *mine = seg_mine(s), *theirs;

	if (s->remote_off >= m->len)
		return;
	theirs = m->addr + s->remote_off;
	for (unsigned at = 0; at < SEG_AHEAD_B; at += GX_CACHE_LINE) {
		__builtin_prefetch((put ? mine : theirs) + at);
		__builtin_prefetch((put ? theirs : mine) + at, 1);
	}
}

/* Copy segments of the region of the first one. A turn pays SEG_COST_B for each, besides its bytes. */
static unsigned segs_copy(struct local_ep *e, bool put, const struct local_map *m,
			  const struct gx_link_seg segs[], unsigned n, uint64_t *room_b,
			  uint64_t *bytes)
{
	uint64_t left = *room_b;
	unsigned i;

	for (i = 0; i < n && left && segs[i].token == m->token; i++) {
		const struct gx_link_seg *s = &segs[i];
		char *mine = seg_mine(s), *theirs;

		if (s->len > LOCAL_INLINE_B || (s->mem && s->mem->kind != GX_MEM_HOST) ||
		    !local_map_holds(e, m, s->remote_off, s->len))
			break;
		if (m->live && !local_key_holds(m)) /* it stood still, and was given up */
			break;
		if (i + 1 < n && segs[i + 1].token == m->token)
			seg_ahead(m, &segs[i + 1], put);
		theirs = m->addr + s->remote_off;
		gx_copy(put ? theirs : mine, put ? mine : theirs, s->len);
		*bytes += s->len;
		left -= GX_MIN(left, s->len + SEG_COST_B);
	}
	*room_b = left;
	return i;
}

/* With a key's memory the owner waits for all of them at once. Return: 0 too if a get met a key that
 * no longer holds: the owner says so when the first segment comes as an operation. */
static unsigned segs_copy_key(struct local_ep *e, bool put, const struct local_map *m,
			      const struct gx_link_seg segs[], unsigned n, uint64_t *room_b)
{
	unsigned kind = put ? GX_OP_PUT : GX_OP_GET, done;
	uint64_t bytes = 0;

	if (m->live && !local_key_enter(e, m))
		return 0;
	done = segs_copy(e, put, m, segs, n, room_b, &bytes);
	if (m->live)
		done = local_key_leave(e, m, kind) ? done : 0;
	if (done)
		local_ops_count(e, kind, done, bytes);
	return done;
}

/* Segments are no operations: there is a look at the region, and a copy. */
unsigned local_copy(struct gx_ep *ep, bool put, const struct gx_link_seg segs[], unsigned n,
		    uint64_t *room_b)
{
	struct local_ep *e = local_of(ep);
	struct link_local *l = e->link;
	const struct local_map *m = local_map_for(e, put ? GX_OP_PUT : GX_OP_GET, segs[0].token);
	uint64_t room = GX_MIN(*room_b, GX_MAX(l->budget_b, l->list_b)), left = room;
	unsigned done;

	if (!m || m->is_gpu || e->pkt.err || e->fail_err)
		return 0;
	if (gx_unlikely(e->at >= l->nr_hot))
		local_heat(e);
	e->used = true;
	done = segs_copy_key(e, put, m, segs, n, &left);
	l->budget_b -= (uint32_t)GX_MIN(l->budget_b, room - left);
	l->list_b -= (uint32_t)GX_MIN(l->list_b, room - left);
	*room_b = left ? *room_b - (room - left) : 0;
	return done;
}
