/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes on their way into memory of a GPU. A socket is read into a ring of pinned memory, one for
 * each GPU of a core. Each piece becomes a fragment of a block (copy/block.h), and the GPU brings it
 * to its place. Blocks come back in the order of the fragments, so the ring needs no list. A socket
 * whose next byte has no room in the ring is not read; the GPU alone makes room, so nobody waits
 * for a peer. link_tcp_gpu() and tcp_gpus_close() are control path, everything else runs on the
 * polling core.
 */
#include "tcp/tcp_gpu.h"
#include "tcp/tcp_feed.h"
#include "tcp/tcp_in.h"
#include "tcp/tcp_life.h"

#include <errno.h>
#include <stdlib.h>

_Static_assert((uint64_t)GX_PEERS_MAX *TCP_MIDS <= UINT32_MAX, "a ref names endpoint and place");
_Static_assert(!(TCP_RING_B & (TCP_RING_B - 1)) && TCP_RING_B % GX_HUGE_PAGE == 0, "whole pages");

/* ---- the ring ---- */

/* Bytes from @pos to the next address that lies in its cache line as @dst lies in its own. So the
 * GPU copies whole words, and reads no line that this core still writes. Behind the piece before of
 * the same payload this is 0, and the two become one descriptor. */
static uint64_t ring_pad(const struct tcp_gpu *t, uint64_t pos, const char *dst)
{
	uintptr_t at = (uintptr_t)t->ring + pos % TCP_RING_B;

	return ((uintptr_t)dst - at) % GX_CACHE_LINE;
}

/* Bytes for @k that have room in blocks: a view has a descriptor for each run. */
static uint32_t ring_want(struct tcp_ep *e, const struct tcp_sink *k)
{
	unsigned room = block_room(k->gpu->bq);

	if (gx_likely(!k->view) || !room)
		return room ? k->left : 0;
	return (uint32_t)GX_MIN((uint64_t)k->left, (room - 1) * tcp_view_at(e, k->view)->v.run_b);
}

uint32_t tcp_ring_room(struct tcp_ep *e, const struct tcp_sink *k, char **at)
{
	uint32_t want = ring_want(e, k), least = GX_MIN(want, TCP_LEAST_B);
	struct tcp_gpu *t = k->gpu;
	const char *dst = k->dst;
	uint64_t pos, edge;

	if (t->err || !want)
		return 0;
	if (t->head == t->tail)
		t->head = t->tail = 0; /* the lines that are in the cache */
	pos = t->head + ring_pad(t, t->head, dst);
	edge = GX_ALIGN_UP(pos + 1, TCP_RING_B);
	if (edge - pos < least) {
		pos = edge + ring_pad(t, edge, dst);
		edge += TCP_RING_B;
	}
	edge = GX_MIN(edge, t->tail + TCP_RING_B);
	if (edge < pos + least)
		return 0;
	*at = t->ring + pos % TCP_RING_B;
	return (uint32_t)GX_MIN((uint64_t)want, edge - pos);
}

/* ---- blocks ---- */

static void queue_stats(struct link_tcp *l, const struct block_q *q, struct block_stat *seen)
{
	const struct block_stat *now = block_stat(q);
	struct gx_stats *st = &l->core->loop.stats;

	gx_stat_add(st, GX_STAT_DESCS, now->descs - seen->descs);
	gx_stat_add(st, GX_STAT_MERGES, now->merges - seen->merges);
	gx_stat_add(st, GX_STAT_BLOCKS, now->blocks - seen->blocks);
	gx_stat_add(st, GX_STAT_LAUNCHES, now->launches - seen->launches);
	*seen = *now;
}

static void gpu_flush(struct link_tcp *l, struct tcp_gpu *t, bool last, uint64_t now_ns)
{
	if (block_flush(t->bq, last, now_ns))
		queue_stats(l, t->bq, &t->seen);
	if (t->far && block_flush(t->far, last, now_ns))
		queue_stats(l, t->far, &t->far_seen);
}

/* @n bytes at @src are on their way to @dst, in @k's place. @buf: for their return. */
static void copy_add(struct tcp_ep *e, struct block_q *q, const struct tcp_sink *k, const char *dst,
		     const char *src, uint32_t n, uint64_t buf)
{
	struct tcp_in *m = &e->in[k->place];

	block_add(q,
		  &(struct block_frag){.src = src,
				       .len = n,
				       .dst_base = (uintptr_t)m->dst,
				       .dst_len = k->view ? m->mem->len : m->len,
				       .dst_off = (uint64_t)(dst - m->dst),
				       .buf = buf,
				       .ref = e->index * TCP_MIDS + k->place},
		  e->now_ns);
	m->pending++;
	e->rx.nr_held++;
	e->link->nr_held++;
}

void tcp_ring_add(struct tcp_ep *e, const struct tcp_sink *k, const char *at, uint32_t n)
{
	struct tcp_gpu *t = k->gpu;
	const char *dst = k->dst;

	t->head += ((uint64_t)(at - t->ring) - t->head) % TCP_RING_B;
	for (uint32_t len; n; at += len, dst += len, n -= len) {
		const char *to = dst;

		len = n;
		if (gx_unlikely(k->view))
			to = view_find(tcp_view_at(e, k->view),
				       (uint64_t)(dst - e->in[k->place].dst), &len);
		t->head += len;
		copy_add(e, t->bq, k, to, at, len, t->head);
	}
	gpu_flush(e->link, t, false, e->now_ns);
}

bool tcp_far_room(const struct tcp_gpu *t)
{
	return block_room(t->far) > 0;
}

void tcp_far_add(struct tcp_ep *e, const struct tcp_sock *s, const struct tcp_sink *k,
		 const char *src, uint32_t n, uint32_t ref)
{
	s->feed->ops->hold(s->feed, ref);
	copy_add(e, k->gpu->far, k, k->dst, src, n, (uint64_t)(s - e->sock) << 32 | ref);
	gpu_flush(e->link, k->gpu, false, e->now_ns);
}

/* ---- copies that have ended ---- */

/* The memory that a copy has read may be filled again. */
static void reap_source(struct tcp_ep *e, struct tcp_gpu *t, const struct block_q *q, uint64_t buf)
{
	struct tcp_feed *f;

	if (q == t->bq) {
		t->tail = buf;
		return;
	}
	f = e->sock[buf >> 32].feed;
	f->ops->done(f, (uint32_t)buf);
}

static void reap_one(struct link_tcp *l, struct tcp_gpu *t, const struct block_q *q,
		     const struct block_done *d)
{
	struct tcp_ep *e = l->eps[d->ref / TCP_MIDS];

	if (d->buf != BLOCK_BUF_NONE)
		reap_source(e, t, q, d->buf);
	else
		gx_stat_add(&l->core->loop.stats, GX_STAT_QUARANTINED_B, d->len);
	if (gx_unlikely(d->status && d->status != -ERANGE))
		t->err = d->status;
	l->nr_held--;
	e->rx.nr_held--;
	tcp_in_copied(e, &e->in[d->ref % TCP_MIDS], d->status);
	if (gx_unlikely(e->err))
		tcp_ep_leave(e);
}

static bool queue_reap(struct link_tcp *l, struct tcp_gpu *t, struct block_q *q, uint64_t now_ns)
{
	struct block_done done[GX_BURST_MAX];
	unsigned total = 0;
	unsigned n;

	if (!q || !block_held(q))
		return false;
	do {
		n = block_reap(q, done, GX_BURST_MAX, now_ns);
		for (unsigned i = 0; i < n; i++)
			reap_one(l, t, q, &done[i]);
		total += n;
	} while (n == GX_BURST_MAX && total < GX_BLOCK_DESCS_MAX);
	return total > 0;
}

static bool gpu_reap(struct link_tcp *l, struct tcp_gpu *t, uint64_t now_ns)
{
	bool worked = queue_reap(l, t, t->bq, now_ns);

	return queue_reap(l, t, t->far, now_ns) || worked;
}

bool tcp_gpus_reap(struct link_tcp *l, uint64_t now_ns)
{
	bool worked = false;

	for (unsigned i = 0; i < l->nr_gpus; i++) {
		if (!l->gpu[i])
			continue;
		worked |= stage_reap(l->gpu[i]->stage, now_ns);
		if (!l->nr_held)
			continue;
		worked |= gpu_reap(l, l->gpu[i], now_ns);
		gpu_flush(l, l->gpu[i], true, now_ns); /* no endpoint may be left */
	}
	return worked;
}

void tcp_gpus_settle(struct link_tcp *l, uint64_t now_ns)
{
	if (!l->nr_held)
		return;
	for (unsigned i = 0; i < l->nr_gpus; i++)
		if (l->gpu[i]) {
			gpu_flush(l, l->gpu[i], true, now_ns);
			gpu_reap(l, l->gpu[i], now_ns); /* a CPU that copies has done so */
		}
}

/* ---- memory that the program frees ---- */

static bool stages_are_past(const struct link_tcp *l)
{
	for (unsigned i = 0; i < l->nr_gpus; i++)
		if (l->gpu[i] && !stage_is_past(l->gpu[i]->stage, l->gpu[i]->drop_ticket))
			return false;
	return true;
}

/* Copies into pinned memory may go on after their operations have ended. */
void tcp_gpus_drop(struct link_tcp *l, struct drop *d)
{
	if (d->first != d->want + 1) {
		if (stages_are_past(l))
			l->drop_seq = d->first;
		for (unsigned i = 0; i < l->nr_gpus; i++)
			if (l->gpu[i])
				l->gpu[i]->drop_ticket = stage_ticket(l->gpu[i]->stage);
	}
	if (!stages_are_past(l))
		drop_hold_seq(d, l->drop_seq);
}

/* ---- control path ---- */

static void gpu_free(struct link_tcp *l, struct tcp_gpu *t)
{
	block_close(t->bq);
	block_close(t->far);
	stage_close(t->stage);
	if (t->ring)
		gx_arena_unmap(l->core->gx->arena, t->ring, TCP_RING_B);
	free(t);
}

static int gpu_open(struct link_tcp *l, struct gx_gpu *gpu, struct tcp_gpu *t)
{
	const struct gx_opts *o = &l->core->gx->opts;
	struct gx_arena *arena = l->core->gx->arena;
	unsigned nr =
		GX_MIN(GX_MAX(TCP_STAGE_B / o->packet->chunk_b, TCP_STAGE_MIN), TCP_STAGE_MAX);
	int ret = gx_arena_map(arena, -1, TCP_RING_B, (void **)&t->ring);

	t->device = (unsigned)gpu->device;
	t->nr_stage = nr;
	t->stage_share = GX_MAX(nr * 3 / 8, 2u);
	if (!ret)
		ret = stage_open(gpu, arena, o->packet->chunk_b, nr, o->gpu->timeout_ns, &t->stage);
	if (!ret)
		ret = block_open(gpu, gx_arena_base(arena), o->gpu->timeout_ns, &t->bq);
	if (!ret && l->has_feeds)
		ret = block_open(gpu, NULL, o->gpu->timeout_ns, &t->far);
	return ret;
}

int link_tcp_gpu(struct link_tcp *l, struct gx_gpu *gpu)
{
	struct tcp_gpu *t;
	int ret;

	if (gpu->device < 0 || l->made[gpu->device])
		return 0;
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	ret = gpu_open(l, gpu, t);
	if (ret) {
		gpu_free(l, t);
		return ret;
	}
	l->made[gpu->device] = t;
	return 0;
}

void tcp_core_gpu(struct gx_core *core, unsigned device)
{
	struct link_tcp *l = tcp_core(core);

	l->gpu[device] = l->made[device];
	l->nr_gpus = GX_MAX(l->nr_gpus, device + 1);
}

void tcp_gpus_close(struct link_tcp *l)
{
	for (unsigned i = 0; i < GX_GPUS_MAX; i++)
		if (l->made[i])
			gpu_free(l, l->made[i]);
}
