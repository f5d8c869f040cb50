/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload into a peer's pool in GPU memory; see push.h. Each GPU has a queue of blocks. A GPU
 * copies payload out of its own memory; the first GPU that reaches the pool copies payload out of
 * host memory. If no GPU reads that host memory in place, the core copies it into pinned pieces
 * first.
 */
#include "copy/push.h"

#include "copy/block.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define PUSH_PIECES	256	    /* pinned pieces at most */
#define PUSH_PIECES_B	(16u << 20) /* bytes of all pieces, but for PUSH_PIECES_MIN */
#define PUSH_PIECES_MIN 8

_Static_assert(GX_PUSH_GPUS <= 32, "bits of push_pool.gpus");

struct push {
	struct block_q *q[GX_PUSH_GPUS];  /* by device; frozen */
	struct block_q *qs[GX_PUSH_GPUS]; /* [nr_qs] those that are open; frozen */
	unsigned nr_qs;
	struct gx_gpu *gpu[GX_PUSH_GPUS]; /* frozen */
	struct gx_arena *arena;
	char *pieces; /* in the arena: pinned */
	size_t pieces_len;
	uint32_t piece_b;
	unsigned nr_free;
	uint32_t free[PUSH_PIECES];
};

static int pieces_open(struct push *p, uint32_t piece_b)
{
	unsigned nr = GX_MIN((unsigned)PUSH_PIECES, PUSH_PIECES_B / piece_b);

	nr = GX_MAX(nr, PUSH_PIECES_MIN);
	p->piece_b = piece_b;
	for (unsigned i = 0; i < nr; i++)
		p->free[p->nr_free++] = i;
	p->pieces_len = GX_ALIGN_UP((size_t)nr * piece_b, GX_HUGE_PAGE);
	return gx_arena_map(p->arena, -1, p->pieces_len, (void **)&p->pieces);
}

int push_open(struct gx_gpu *const gpus[], struct gx_arena *arena, uint32_t piece_b,
	      uint64_t timeout_ns, struct push **out)
{
	struct push *p = calloc(1, sizeof(*p));
	int ret = p ? -ENODEV : -ENOMEM;

	if (!p)
		return ret;
	p->arena = arena;
	for (unsigned i = 0; i < GX_PUSH_GPUS && (!ret || ret == -ENODEV); i++) {
		if (!gpus[i])
			continue;
		p->gpu[i] = gpus[i];
		ret = block_open(gpus[i], NULL, timeout_ns, &p->q[i]);
		if (!ret)
			p->qs[p->nr_qs++] = p->q[i];
	}
	if (!ret)
		ret = pieces_open(p, piece_b);
	if (ret) {
		push_close(p);
		return ret;
	}
	*out = p;
	return 0;
}

void push_close(struct push *p)
{
	if (!p)
		return;
	for (unsigned i = 0; i < p->nr_qs; i++)
		block_close(p->qs[i]);
	if (p->pieces)
		gx_arena_unmap(p->arena, p->pieces, p->pieces_len);
	free(p);
}

int push_map(struct push *p, const struct gx_gpu_handle *h, uint64_t len, struct push_pool *out)
{
	struct push_pool pool = {.len = len};
	int ret = -ENODEV;

	for (unsigned i = 0; i < GX_PUSH_GPUS && !pool.base; i++) {
		if (!p->gpu[i])
			continue;
		ret = p->gpu[i]->share->import(p->gpu[i], h, len, &pool.base);
		pool.mapper = p->gpu[i];
	}
	if (!pool.base)
		return ret;
	pool.device = pool.mapper->mem->device(pool.mapper, pool.base, 1);
	for (unsigned i = 0; i < GX_PUSH_GPUS; i++) {
		if (!p->gpu[i] || p->gpu[i]->mem->reach(p->gpu[i], pool.base))
			continue;
		pool.gpus |= 1u << i;
		pool.from |= p->gpu[i]->reads_host ? 0 : 1u << i;
	}
	if (!pool.gpus) {
		push_unmap(&pool);
		return -EXDEV;
	}
	*out = pool;
	return 0;
}

void push_unmap(struct push_pool *pool)
{
	if (pool->base)
		pool->mapper->share->unimport(pool->mapper, pool->base);
	pool->base = NULL;
}

unsigned push_room(const struct push *p)
{
	unsigned room = p->nr_free;

	for (unsigned i = 0; i < p->nr_qs; i++)
		room = GX_MIN(room, block_room(p->qs[i]));
	return room;
}

/* Copy the payload into a pinned piece. @buf: number of the piece, for block_frag.buf. */
static const char *piece_fill(struct push *p, const struct push_frag *f, uint64_t *buf)
{
	char *piece;

	assert(p->nr_free && f->len <= p->piece_b);
	*buf = p->free[--p->nr_free];
	piece = p->pieces + *buf * p->piece_b;
	gx_copy(piece, f->data, f->len);
	return piece;
}

void push_add(struct push *p, const struct push_frag *f, uint64_t now_ns)
{
	unsigned device = f->device ? f->device - 1u : (unsigned)__builtin_ctz(f->pool->gpus);
	struct block_frag frag = {.src = f->data,
				  .len = f->len,
				  .dst_base = (uintptr_t)f->pool->base,
				  .dst_len = f->pool->len,
				  .dst_off = f->off,
				  .buf = BLOCK_BUF_NONE,
				  .ref = f->ref};

	assert(!f->device || f->pool->from >> device & 1);
	if (!f->device && !f->mapped)
		frag.src = piece_fill(p, f, &frag.buf);
	block_add(p->q[device], &frag, now_ns);
}

void push_flush(struct push *p, bool last, uint64_t now_ns)
{
	for (unsigned i = 0; i < p->nr_qs; i++)
		block_flush(p->qs[i], last, now_ns);
}

unsigned push_reap(struct push *p, struct push_done done[], unsigned n, uint64_t now_ns)
{
	struct block_done b[GX_BURST_MAX];
	unsigned got = 0;

	for (unsigned i = 0; i < p->nr_qs; i++) {
		unsigned k =
			block_reap(p->qs[i], b, GX_MIN(n - got, (unsigned)GX_BURST_MAX), now_ns);

		for (unsigned j = 0; j < k; j++) {
			if (b[j].buf != BLOCK_BUF_NONE)
				p->free[p->nr_free++] = (uint32_t)b[j].buf;
			done[got++] = (struct push_done){b[j].ref, b[j].status};
		}
	}
	return got;
}
