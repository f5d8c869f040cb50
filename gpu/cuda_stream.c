/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of the cores: opened, reaped, and closed in bounded time; and marks after the work of a
 * stream of the program's. Opening and closing are control path; a mark is for any thread.
 */
#include "cuda_stream.h"

#include <errno.h>
#include <stdlib.h>

#define CUDA_QUERY_NS 1000000 /* how often reap asks a busy stream for errors */

int cuda_stm_new(struct CUstream_st **out)
{
	int least = 0, greatest = 0;

	/* The highest priority: thread blocks of an unpack are placed before waiting ones of a
	 * GEMM. */
	cu.cuCtxGetStreamPriorityRange(&least, &greatest);
	return CUDA_TRY(cuStreamCreateWithPriority, out, GX_CU_STREAM_NON_BLOCKING, greatest);
}

static void stream_free(struct cuda_gpu *g, struct cuda_stream *s)
{
	cuda_stage_close(g, &s->stage);
	cuda_resident_close(g, s->res);
	cuda_device_free(g, s->counters);
	if (s->stm)
		cu.cuStreamDestroy_v2(s->stm);
	free(s);
}

static int stream_fill(struct cuda_gpu *g, struct cuda_stream *s, enum gx_stream_kind kind)
{
	size_t words = CUDA_LAUNCHES * 2 * GX_UNPACK_BLOCKS_MAX,
	       len = (words + 2) * sizeof(uint32_t);
	unsigned long long counter = 0;
	int ret;

	ret = cuda_stm_new(&s->stm);
	if (!ret)
		ret = CUDA_TRY(cuMemAlloc_v2, &counter, len);
	if (ret)
		return ret;
	s->counters = (uint32_t *)(uintptr_t)counter;
	s->gather_counter = s->counters + words;
	s->launch_nr = gx_gpu_count_from();
	ret = cuda_mem_clear(g, counter, len);
	if (!ret && g->gpu.unpack == GX_UNPACK_HOST && kind != GX_STREAM_COPY)
		ret = cuda_stage_open(g, &s->stage);
	if (!ret && (kind == GX_STREAM_RESIDENT ||
		     (kind == GX_STREAM_UNPACK &&
		      (g->gpu.unpack == GX_UNPACK_RESIDENT || g->gpu.unpack == GX_UNPACK_AUTO))))
		ret = cuda_resident_open(g, kind == GX_STREAM_RESIDENT, &s->res);
	if (!ret && s->res)
		s->res->automatic = kind == GX_STREAM_UNPACK && g->gpu.unpack == GX_UNPACK_AUTO;
	return ret;
}

static int cuda_stream_open(struct gx_gpu *gpu, enum gx_stream_kind kind,
			    struct gx_gpu_stream **out)
{
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_stream *s = calloc(1, sizeof(*s));
	struct cuda_prev prev;
	int ret;

	if (!s)
		return -ENOMEM;
	s->stream.ops = gpu->stream;
	s->stream.gpu = gpu;
	prev = cuda_enter(g);
	ret = stream_fill(g, s, kind);
	if (ret)
		stream_free(g, s);
	else
		*out = &s->stream;
	cuda_leave(g, prev);
	return ret;
}

static bool cuda_reap(struct gx_gpu_stream *stream, uint64_t now_ns)
{
	struct cuda_stream *s = cuda_stream_of(stream);

	if (s->busy && now_ns - s->query_ns >= CUDA_QUERY_NS)
		cuda_core_query(s, now_ns);
	return s->res ? cuda_resident_reap(s, now_ns) : cuda_stage_reap(&s->stage);
}

/* Until no job is out, and no launch takes another. A GPU that stops ends this too. */
static bool resident_drain(struct cuda_stream *s, uint64_t end_ns)
{
	const struct gx_res_ring *ring = &s->res->ring;
	uint64_t now_ns = gx_now_ns();

	while (ring->head != ring->tail && !s->faulted && now_ns < end_ns) {
		cuda_reap(&s->stream, now_ns);
		now_ns = gx_now_ns();
	}
	return s->faulted || (ring->head == ring->tail && cuda_resident_stop(s, now_ns));
}

static void stream_ended(struct cuda_lost *l)
{
	stream_free(l->g, GX_CONTAINER_OF(l, struct cuda_stream, lost));
}

static bool cuda_stream_close(struct gx_gpu_stream *stream)
{
	struct cuda_stream *s = cuda_stream_of(stream);
	struct cuda_gpu *g = cuda_of(stream->gpu);
	uint64_t end_ns = gx_now_ns() + g->drain_ns;
	struct cuda_prev prev = cuda_enter(g);
	bool ended;

	ended = (!s->res || resident_drain(s, end_ns)) && !cuda_is_busy(cuda_drain(s->stm, end_ns));
	if (ended) {
		stream_free(g, s);
	} else {
		s->lost = (struct cuda_lost){.g = g, .stm = s->stm, .end = stream_ended};
		cuda_lose(&s->lost, "a stream");
	}
	cuda_leave(g, prev);
	return ended;
}

const struct gx_gpu_stream_ops cuda_stream_ops = {
	.open = cuda_stream_open,
	.close = cuda_stream_close,
	.unpack = cuda_unpack,
	.copy = cuda_copy,
	.gather = cuda_gather,
	.call = cuda_call,
	.reap = cuda_reap,
	.fault = cuda_fault,
};

/* ---- streams of the user's ---- */

/* Can gx wait for the work on @stm? */
static int mark_check(struct CUstream_st *stm)
{
	unsigned capturing = GX_CU_CAPTURE_NONE;
	unsigned res;

	if ((uintptr_t)stm == GX_CU_STREAM_PER_THREAD) {
		gx_gpu_why_set("CU_STREAM_PER_THREAD is another stream on each thread: name one");
		return -EINVAL;
	}
	res = cu.cuStreamIsCapturing(stm, &capturing);
	if (!res && capturing == GX_CU_CAPTURE_NONE)
		return 0;
	if (res == GX_CU_ERROR_CAPTURE_IMPLICIT)
		gx_gpu_why_set("another stream is being captured, which the default stream would "
			       "join: name a stream");
	else if (res)
		gx_gpu_why_set("cuStreamIsCapturing: %s (%u)", cuda_error_name(res), res);
	else
		gx_gpu_why_set("the stream is being captured into a graph");
	return -EINVAL;
}

/* Errors here are the caller's: no stream of ours is at fault. */
int cuda_stream_mark(struct gx_gpu *gpu, void *stream, uint32_t *flag, uint32_t value)
{
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_prev prev = cuda_enter(g);
	unsigned long long ptr = cuda_ptr(flag);
	void *params[] = {&ptr, &value};
	unsigned res = 0;
	int ret = mark_check(stream);

	if (!ret && g->write_value)
		res = cu.cuStreamWriteValue32_v2(stream, ptr, value, GX_CU_WRITE_VALUE_DEFAULT);
	else if (!ret)
		res = cu.cuLaunchKernel(g->fn_flag, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
	cuda_leave(g, prev);
	if (res)
		gx_gpu_why_set("a flag after the stream's work: %s (%u)", cuda_error_name(res),
			       res);
	return res ? -EINVAL : ret;
}
