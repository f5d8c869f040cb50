// SPDX-License-Identifier: Apache-2.0
/*
 * Copies a rank's own shard from its source to its destination, by the memory's GPU or by the CPU,
 * in bounded pieces. Runs on the worker's core.
 */
#include "coll/coll.h"

#include <errno.h>

#define COLL_COPY_CPU_B (256u << 10) /* most that the CPU copies in one turn */
#define COLL_COPY_GPU_B (64u << 20)  /* most of one launch */

static void copy_fill(struct gx_block *b, const char *src, char *dst, uint32_t len)
{
	b->src_base = (uintptr_t)src;
	b->nr = b->nr_seg = 1;
	*b->cnt = 1;
	b->desc[0] = (struct gx_desc){0, len, 0};
	b->aux[0] = (struct gx_desc_aux){0};
	b->seg[0] = (struct gx_dest){(uintptr_t)dst, len};
	b->bytes = len;
	b->hints = GX_HINT_WEIGHT | GX_HINT_LEN | GX_HINT_SEG0;
	b->hint_len = len;
}

bool coll_copy_begin(struct coll_worker *w, uint64_t seq, uint64_t now_ns)
{
	struct gx_group *g = w->group;
	const struct coll_post *post = coll_post_of(g, seq);
	struct coll_part *part = coll_part_of(w, seq);
	const struct gx_mem *dst = g->mem[post->dst];
	struct coll_copier *c = &w->copier[g->copier_of[post->dst]];
	struct coll_copy *copy = &c->ring[c->head % COLL_COPIES];
	uint64_t most = c->gpu->device < 0 ? COLL_COPY_CPU_B : COLL_COPY_GPU_B;
	uint64_t at = part->off + part->copy_b, own = g->rank * post->len;
	struct gx_block *b = &copy->block;

	if (c->head - c->tail == COLL_COPIES)
		return false;
	copy->part = part;
	copy->since_ns = now_ns;
	copy_fill(b, post->src->addr + post->src_off + at + (post->kind == COLL_ALLTOALL ? own : 0),
		  dst->addr + post->dst_off + own + at, GX_MIN(part->len - part->copy_b, most));
	if (!c->stream->ops->unpack(c->stream, &b, 1, now_ns))
		return false;
	part->copy_b += b->bytes;
	c->head++;
	w->nr_copies++;
	return true;
}

static void copier_fault(struct coll_worker *w, const struct coll_copier *c, const char *what)
{
	coll_fail(w->group, -EIO, (int)w->group->rank, true,
		  "rank %u: its own shard could not be copied on cuda:%d: %s", w->group->rank,
		  c->gpu->device, what);
}

static bool copier_reap(struct coll_worker *w, struct coll_copier *c, uint64_t now_ns)
{
	bool busy = c->stream->ops->reap(c->stream, now_ns);

	while (c->tail != c->head) {
		struct coll_copy *copy = &c->ring[c->tail % COLL_COPIES];
		uint32_t status = __atomic_load_n(copy->block.status, __ATOMIC_ACQUIRE);

		if (status == GX_BLOCK_PENDING) {
			if (c->stream->ops->fault(c->stream))
				copier_fault(w, c, gx_gpu_why());
			else if (now_ns - copy->since_ns > w->group->gx->opts.gpu->timeout_ns)
				copier_fault(w, c, "it does not end");
			break;
		}
		if (status != GX_BLOCK_OK)
			copier_fault(w, c, "outside of the buffer");
		copy->part->copied_b += copy->block.bytes;
		c->tail++;
		w->nr_copies--;
		busy = true;
	}
	return busy;
}

bool coll_copies_reap(struct coll_worker *w, uint64_t now_ns)
{
	bool busy = false;

	for (unsigned i = 0; i < w->group->nr_bufs && w->nr_copies; i++)
		if (w->copier[i].head != w->copier[i].tail)
			busy |= copier_reap(w, &w->copier[i], now_ns);
	return busy;
}

int coll_copier_open(struct coll_copier *c, struct gx_gpu *gpu)
{
	int ret = gpu->stream->open(gpu, GX_STREAM_LAUNCH, &c->stream);

	c->gpu = gpu;
	for (unsigned i = 0; i < COLL_COPIES && !ret; i++)
		ret = gx_gpu_block_alloc(gpu, &c->ring[i].block);
	return ret ? gx_fail(ret, "collectives: %s", gx_gpu_why()) : 0;
}

void coll_copier_close(struct coll_copier *c)
{
	if (!c->gpu)
		return;
	gx_gpu_stream_close(c->stream); /* waits for copies under way */
	for (unsigned i = 0; i < COLL_COPIES; i++)
		if (c->ring[i].block.desc)
			gx_gpu_block_free(c->gpu, &c->ring[i].block);
	c->gpu = NULL;
}
