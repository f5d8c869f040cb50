/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first launch of each kernel, which loads its code: when a GPU is opened, and not in a turn.
 * It also finds out how flags are written, and that the results of kernels arrive. Control path.
 */
#include "crc_core.h"
#include "cuda_stream.h"
#include "gather_core.h"
#include "view_core.h"

#include <errno.h>

/*
 * The unpack kernel, with one empty block, and both ways to write a flag.
 */
static int probe_stream(struct cuda_gpu *g, struct cuda_stream *s, struct gx_block *b)
{
	struct gx_block *blocks[] = {b};
	uint32_t *word = (uint32_t *)b->cnt;
	int ret;

	g->write_value =
		!cu.cuStreamWriteValue32_v2(s->stm, cuda_ptr(b->status), GX_BLOCK_CRC, 0) &&
		!cuda_wait(g, s->stm) && *(volatile uint32_t *)b->status == GX_BLOCK_CRC;
	*b->status = GX_BLOCK_PENDING;
	if (cuda_unpack_kernel(s, blocks, 1) != 1 || !cuda_core_flag(s, word, 7)) {
		cuda_fault(&s->stream);
		return -ENODEV;
	}
	ret = cuda_wait(g, s->stm);
	if (ret)
		return ret;
	if (*(volatile uint32_t *)b->status == GX_BLOCK_OK && *(volatile uint32_t *)word == 7)
		return 0;
	gx_gpu_why_set("the unpack kernel ran and its result did not arrive");
	return -ENODEV;
}

/* The kernel that checks, with one empty block. */
static int probe_crc(struct cuda_gpu *g, struct cuda_stream *s, struct gx_block *b)
{
	struct gx_cut *cuts[] = {cuda_block_mem(b)->cut};
	struct gx_block *blocks[] = {b};
	void *params[] = {&s->args};
	int ret;

	*b->status = GX_BLOCK_PENDING;
	gx_unpack_plan(&s->args, blocks, cuts, 1, 1);
	s->args.crc = g->crc_tables;
	if (!cuda_core_launch_shared(s, g->fn_crc, 1, GX_UNPACK_THREADS, GX_CRC_SHARED_B, params)) {
		cuda_fault(&s->stream);
		return -ENODEV;
	}
	ret = cuda_wait(g, s->stm);
	if (ret || *(volatile uint32_t *)b->status == GX_BLOCK_OK)
		return ret;
	gx_gpu_why_set("gx_unpack_crc ran and its result did not arrive");
	return -ENODEV;
}

/* The ring's kernels. They are found here and not before, so that probe_stream() has tried the
 * other kernel. */
static int probe_ring(struct cuda_gpu *g, struct cuda_stream *s, struct gx_block *b)
{
	struct gx_cut *cuts[] = {cuda_block_mem(b)->cut};
	struct gx_block *blocks[] = {b};
	int ret = cuda_ring_load(g);

	for (unsigned i = 0; i < CUDA_RING_SHAPES && g->fn_ring[0] && !ret; i++) {
		*b->status = GX_BLOCK_PENDING;
		if (!cuda_ring_launch(s, i, gx_unpack_plan(&s->args, blocks, cuts, 1, 1))) {
			cuda_fault(&s->stream);
			return -ENODEV;
		}
		ret = cuda_wait(g, s->stm);
		if (!ret && *(volatile uint32_t *)b->status != GX_BLOCK_OK) {
			gx_gpu_why_set("%s ran and its result did not arrive",
				       cuda_ring_shape[i].fn);
			ret = -ENODEV;
		}
	}
	return ret;
}

/* Every kernel of gather.cu once, with no pairs. */
static int probe_gather(struct cuda_gpu *g, struct cuda_stream *s, struct gx_block *b)
{
	uint32_t *word = (uint32_t *)b->cnt;
	struct gx_gather_args a = {.counter = s->gather_counter,
				   .flag = word,
				   .bad = word + 1,
				   .value = 9,
				   .segs = 1,
				   .window = 1,
				   .row_b = 16};
	struct gx_view_args none = {
		.counter = s->gather_counter, .flag = word + 1, .value = 9, .tile = 1};
	int ret;

	for (unsigned i = 0; i < GATHER_FNS; i++) {
		void *params[] = {i < GATHER_VIEW16 ? (void *)&a : &none};

		if (!cuda_core_launch(s, g->fn_gather[i], 1,
				      i < GATHER_VIEW16 ? GX_GATHER_THREADS : GX_VIEW_THREADS,
				      params)) {
			cuda_fault(&s->stream);
			return -ENODEV;
		}
	}
	ret = cuda_wait(g, s->stm);
	if (ret || (((volatile uint32_t *)word)[0] == 9 && ((volatile uint32_t *)word)[1] == 9))
		return ret;
	gx_gpu_why_set("the gather kernels ran and their result did not arrive");
	return -ENODEV;
}

/* The resident kernel with one job, on a stream of its own. */
static int probe_resident(struct cuda_gpu *g, struct gx_block *b)
{
	struct gx_gpu_stream *stream = NULL;
	struct gx_block *blocks[] = {b};
	int ret = cuda_stream_ops.open(&g->gpu, GX_STREAM_RESIDENT, &stream);

	if (ret)
		return ret;
	*b->status = GX_BLOCK_PENDING;
	/* A launch that found nothing to do may have ended before the CPU posted the job; the STOP
	 * brings a launch that takes it. */
	if (cuda_resident_unpack(cuda_stream_of(stream), blocks, 1, gx_now_ns()) != 1 ||
	    !cuda_resident_stop(cuda_stream_of(stream), gx_now_ns())) {
		cuda_fault(stream);
		ret = -ENODEV;
	}
	if (!ret)
		ret = cuda_wait(g, cuda_stream_of(stream)->stm);
	if (!ret && *(volatile uint32_t *)b->status != GX_BLOCK_OK) {
		gx_gpu_why_set("the resident kernel ran and its result did not arrive");
		ret = -ENODEV;
	}
	gx_gpu_stream_close(stream);
	return ret;
}

int cuda_probe(struct cuda_gpu *g)
{
	struct gx_gpu_stream *stream = NULL;
	struct gx_block b = {0};
	int ret;

	ret = cuda_stream_ops.open(&g->gpu, GX_STREAM_LAUNCH, &stream);
	if (!ret)
		ret = gx_gpu_block_alloc(&g->gpu, &b);
	if (!ret)
		ret = probe_stream(g, cuda_stream_of(stream), &b);
	if (!ret)
		ret = probe_crc(g, cuda_stream_of(stream), &b);
	if (!ret)
		ret = probe_ring(g, cuda_stream_of(stream), &b);
	if (!ret)
		ret = probe_gather(g, cuda_stream_of(stream), &b);
	if (!ret)
		ret = probe_resident(g, &b);
	gx_gpu_stream_close(stream);
	gx_gpu_block_free(&g->gpu, &b);
	return ret;
}
