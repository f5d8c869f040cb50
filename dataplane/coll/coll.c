// SPDX-License-Identifier: Apache-2.0
/*
 * Posts and tests collectives (include/gx/coll.h), on the thread of core 0. The workers of
 * coll_worker.c carry them out. ->posted and ->done connect the two.
 */
#include "coll/coll.h"

#include <errno.h>

#define COLL_LEN_MAX (1ull << 40) /* bytes of one rank */
#define COLL_LANE_B  4096	  /* alignment of a lane's part of a shard */

/* Return: this rank has done all collectives before this number. */
static uint64_t coll_done(const struct gx_group *g)
{
	uint64_t done = UINT64_MAX;

	for (unsigned i = 0; i < g->nr_workers; i++) {
		uint64_t one = atomic_load_explicit(&g->worker[i]->done, memory_order_acquire);

		done = GX_MIN(done, one);
	}
	return done;
}

static int coll_failed(const struct gx_group *g)
{
	/* Pairs with the release in coll_fail(). */
	int err = atomic_load_explicit(&g->err, memory_order_acquire);

	return err ? gx_fail(err, "%s", g->text) : 0;
}

/* FNV-1a. The sum of gx_leave() is its kind; no other collective has that sum. */
static uint32_t coll_sum(const struct coll_post *p)
{
	const uint64_t words[] = {p->kind, p->dst, p->dst_off, p->len};
	uint32_t sum = 2166136261u;

	if (p->kind == COLL_LEAVE)
		return COLL_LEAVE;
	for (unsigned i = 0; i < GX_ARRAY_SIZE(words); i++)
		for (unsigned k = 0; k < 64; k += 8)
			sum = (sum ^ (words[i] >> k & 0xff)) * 16777619u;
	return sum == COLL_LEAVE ? ~sum : sum;
}

static bool inside(uint64_t off, uint64_t len, uint64_t room)
{
	return off <= room && len <= room - off;
}

static int coll_ranges_check(const struct gx_group *g, const struct coll_post *p)
{
	uint64_t all = p->len * g->nr_ranks, src_b = p->kind == COLL_ALLTOALL ? all : p->len;

	if (!inside(p->src_off, src_b, p->src->len))
		return gx_fail(-EINVAL, "source: bytes %llu to %llu are outside of %llu",
			       (unsigned long long)p->src_off,
			       (unsigned long long)(p->src_off + src_b),
			       (unsigned long long)p->src->len);
	if (!inside(p->dst_off, all, g->room[p->dst]))
		return gx_fail(
			-EINVAL,
			"destination: bytes %llu to %llu are outside of buffer %u, which has "
			"%llu at rank %u",
			(unsigned long long)p->dst_off, (unsigned long long)(p->dst_off + all),
			p->dst, (unsigned long long)g->room[p->dst], g->room_rank[p->dst]);
	return 0;
}

/* Must the own shard be copied, and may it be? */
static int coll_copy_check(const struct gx_group *g, struct coll_post *p)
{
	const struct gx_mem *dst = g->mem[p->dst];
	const char *to = dst->addr + p->dst_off, *from = p->src->addr + p->src_off;
	uint64_t all = p->len * g->nr_ranks, src_b = p->kind == COLL_ALLTOALL ? all : p->len;

	if (p->src->gpu != dst->gpu)
		return gx_fail(-EINVAL, "source and destination are not of one kind and device");
	p->copy = p->len > 0;
	if (p->kind == COLL_ALLGATHER && from == to + g->rank * p->len)
		p->copy = false;
	else if (from < to + all && to < from + src_b)
		return gx_fail(-EINVAL, "source and destination overlap");
	return 0;
}

static int coll_fill(const struct gx_group *g, const struct gx_coll *c, struct coll_post *p)
{
	int ret;

	if (c->dst >= g->nr_bufs)
		return gx_fail(-EINVAL, "there is no buffer %u: the group has %u", c->dst,
			       g->nr_bufs);
	if (!c->src || c->src->gx != g->gx)
		return gx_fail(-EINVAL, "the source is not memory of the group's context");
	if (c->len > COLL_LEN_MAX)
		return gx_fail(-EINVAL, "%llu bytes a rank: at most 1 TiB",
			       (unsigned long long)c->len);
	p->src = c->src;
	p->src_off = c->src_off;
	p->dst = c->dst;
	p->dst_off = c->dst_off;
	p->len = c->len;
	/* One division for each collective. */
	p->lane_b = g->nr_workers == 1 ? p->len
				       : GX_ALIGN_UP((p->len + g->nr_workers - 1) / g->nr_workers,
						     COLL_LANE_B);
	ret = coll_ranges_check(g, p);
	return ret ? ret : coll_copy_check(g, p);
}

static int coll_may(const struct gx_group *g)
{
	uint64_t posted = atomic_load_explicit(&g->posted, memory_order_relaxed);
	int ret = coll_failed(g);

	if (ret)
		return ret;
	if (!atomic_load_explicit(&g->connected, memory_order_relaxed))
		return gx_fail(-ENOTCONN, "the group is not connected: gx_group_connect()");
	if (g->left)
		return gx_fail(-ENOTCONN, "this rank has left the group");
	if (posted - coll_done(g) == GX_COLL_DEPTH)
		return gx_fail(-EAGAIN, "%u collectives are under way", GX_COLL_DEPTH);
	return 0;
}

static void coll_publish(struct gx_group *g, struct coll_post *p, uint64_t *ticket)
{
	uint64_t seq = atomic_load_explicit(&g->posted, memory_order_relaxed);

	p->sum = coll_sum(p);
	*coll_post_of(g, seq) = *p;
	*ticket = seq;
	/* Pairs with the acquire in worker_progress(). */
	atomic_store_explicit(&g->posted, seq + 1, memory_order_release);
}

static int coll_post(struct gx_group *g, enum coll_kind kind, const struct gx_coll *c,
		     uint64_t *ticket)
{
	const bool moves = kind == COLL_ALLGATHER || kind == COLL_ALLTOALL;
	struct coll_post p = {.kind = kind};
	struct gx_coll own;
	int ret = coll_may(g);

	if (!ret && moves)
		ret = core_struct_take("gx_coll", &own, sizeof(own), c);
	if (!ret && moves)
		ret = coll_fill(g, &own, &p);
	if (!ret)
		coll_publish(g, &p, ticket);
	return ret;
}

GX_EXPORT int gx_allgather(struct gx_group *g, const struct gx_coll *coll, uint64_t *ticket)
{
	return coll_post(g, COLL_ALLGATHER, coll, ticket);
}

GX_EXPORT int gx_alltoall(struct gx_group *g, const struct gx_coll *coll, uint64_t *ticket)
{
	return coll_post(g, COLL_ALLTOALL, coll, ticket);
}

GX_EXPORT int gx_barrier(struct gx_group *g, uint64_t *ticket)
{
	return coll_post(g, COLL_BARRIER, NULL, ticket);
}

GX_EXPORT int gx_leave(struct gx_group *g, uint64_t *ticket)
{
	int ret = coll_post(g, COLL_LEAVE, NULL, ticket);

	g->left |= !ret;
	return ret;
}

GX_EXPORT int gx_coll_test(struct gx_group *g, uint64_t ticket)
{
	if (ticket < coll_done(g))
		return 0;
	if (ticket >= atomic_load_explicit(&g->posted, memory_order_relaxed))
		return gx_fail(-EINVAL, "collective %llu was not posted",
			       (unsigned long long)ticket);
	return coll_has_failed(g) ? coll_failed(g) : -EINPROGRESS;
}

GX_EXPORT int gx_coll_wait(struct gx_group *g, uint64_t ticket)
{
	struct gx_core *core = g->gx->core[0];
	int ret;

	while ((ret = gx_coll_test(g, ticket)) == -EINPROGRESS) {
		uint64_t now_ns = gx_now_ns();

		if (!gx_loop_turn(&core->loop, now_ns))
			gx_loop_idle(&core->loop, now_ns);
	}
	return ret;
}
