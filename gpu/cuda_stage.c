/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpack mode host: the CPU gathers short fragments in a ring of pinned memory, and the GPU copies
 * each contiguous run at once. Runs on the thread that owns the stream.
 */
#include "cuda_stream.h"

#include <assert.h>
#include <errno.h>

#define CUDA_STAGE_B	(32u << 20) /* pinned bytes of a stream; power of two */
/* The GPU copies longer fragments from their place. */
#define CUDA_GATHER_MAX ((16u << 10) - GX_CACHE_LINE)

_Static_assert((uint64_t)(CUDA_GATHER_MAX + GX_CACHE_LINE) * GX_BLOCK_DESCS_MAX <= CUDA_STAGE_B,
	       "the largest block fits in an empty stage");

void cuda_stage_close(struct cuda_gpu *g, struct cuda_stage *st)
{
	cuda_pinned_free(&g->gpu, st->seq_done);
	cuda_pinned_free(&g->gpu, st->mem);
}

int cuda_stage_open(struct cuda_gpu *g, struct cuda_stage *st)
{
	st->mem = cuda_pinned_alloc(&g->gpu, CUDA_STAGE_B);
	st->seq_done = cuda_pinned_alloc(&g->gpu, sizeof(*st->seq_done));
	if (!st->mem || !st->seq_done)
		return -ENOMEM;
	st->out_head = st->out_tail = *st->seq_done = gx_gpu_count_from();
	return 0;
}

/* Bytes that the CPU has gathered and not yet sent, contiguous on both sides. */
struct cuda_run {
	uint64_t dst;
	uint64_t at; /* in the stage, free running */
	uint32_t len;
};

static bool run_send(struct cuda_stream *s, struct cuda_run *run)
{
	const uint8_t *src = s->stage.mem + (run->at & (CUDA_STAGE_B - 1));
	uint32_t len = run->len;

	run->len = 0;
	return !len || CUDA_CORE_TRY(s, cuMemcpyHtoDAsync_v2, run->dst, src, len, s->stm);
}

/* Gather @len bytes to the head of the stage, in two parts where the ring ends. A run begins where
 * it lies in its cache line as its destination does: a copy engine moves whole lines then. */
static bool run_gather(struct cuda_stream *s, struct cuda_run *run, uint64_t dst,
		       const uint8_t *src, uint32_t len)
{
	while (len) {
		uint32_t at = s->stage.head & (CUDA_STAGE_B - 1);
		uint32_t part;

		if ((run->dst + run->len != dst || at == 0) && !run_send(s, run))
			return false;
		if (!run->len) {
			s->stage.head += (dst - s->stage.head) % GX_CACHE_LINE;
			at = s->stage.head & (CUDA_STAGE_B - 1);
			*run = (struct cuda_run){dst, s->stage.head, 0};
		}
		part = GX_MIN(len, CUDA_STAGE_B - at);
		gx_copy(s->stage.mem + at, src, part);
		run->len += part;
		s->stage.head += part;
		dst += part;
		src += part;
		len -= part;
	}
	return true;
}

static bool block_gather(struct cuda_stream *s, struct gx_block *b)
{
	uint32_t status = GX_BLOCK_OK;
	struct cuda_run run = {0, 0, 0};

	for (uint32_t i = 0; i < b->nr; i++) {
		const void *src = gx_block_src(b, i);
		void *dst = gx_block_dst(b, i);
		uint32_t len = b->desc[i].len;

		if (!dst) {
			status = GX_MAX(status, GX_BLOCK_BOUNDS);
		} else if (!gx_block_crc_ok(b, i)) {
			status = GX_MAX(status, GX_BLOCK_CRC);
		} else if (len <= CUDA_GATHER_MAX) {
			if (!run_gather(s, &run, cuda_ptr(dst), src, len))
				return false;
		} else if (!run_send(s, &run) || !CUDA_CORE_TRY(s, cuMemcpyAsync, cuda_ptr(dst),
								cuda_ptr(src), len, s->stm)) {
			return false;
		}
	}
	return run_send(s, &run) && cuda_core_flag(s, b->status, status);
}

bool cuda_stage_reap(struct cuda_stage *st)
{
	uint32_t done = st->mem ? __atomic_load_n(st->seq_done, __ATOMIC_ACQUIRE) : 0;
	bool worked = st->mem && st->out_tail != done;

	for (; st->mem && st->out_tail != done; st->out_tail++)
		st->tail = st->out_end[st->out_tail & (CUDA_STAGE_OUT - 1)];
	return worked;
}

static bool stage_fits(struct cuda_stage *st, const struct gx_block *b)
{
	uint64_t need = 0;

	for (uint32_t i = 0; i < b->nr; i++)
		need += b->desc[i].len <= CUDA_GATHER_MAX ? b->desc[i].len + GX_CACHE_LINE : 0;
	cuda_stage_reap(st);
	return st->out_head - st->out_tail < CUDA_STAGE_OUT &&
	       need <= CUDA_STAGE_B - (st->head - st->tail);
}

/* Mode host reads the fragments with the CPU, which cannot read the memory of a GPU. */
static bool src_readable(struct cuda_stream *s, const struct gx_block *b)
{
	return cuda_src_type(b) != GX_CU_MEMORYTYPE_DEVICE ||
	       cuda_core_try(s, GX_CU_ERROR_INVALID_VALUE,
			     "unpack mode host needs bounce buffers in host memory");
}

bool cuda_stage_block(struct cuda_stream *s, struct gx_block *b)
{
	struct cuda_stage *st = &s->stage;

	assert(st->mem); /* not a stream for copies alone */
	if ((b->nr && !src_readable(s, b)) || !stage_fits(st, b) || !block_gather(s, b))
		return false;
	st->out_end[st->out_head++ & (CUDA_STAGE_OUT - 1)] = st->head;
	return cuda_core_flag(s, st->seq_done, st->out_head);
}
