/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows by index, and views, by the kernels of gather.cu. Runs on the thread that owns the stream.
 */
#include "cuda_stream.h"
#include "gather_core.h"
#include "view_core.h"

#include <assert.h>
#include <errno.h>

static void gather_args(struct cuda_stream *s, const struct gx_gpu_gather *g,
			struct gx_gather_args *a)
{
	uint32_t word = gx_gather_word(cuda_ptr(g->src), cuda_ptr(g->dst), g->row_b);

	*a = (struct gx_gather_args){
		.src = g->src,
		.dst = g->dst,
		.pairs = g->pairs,
		.counter = s->gather_counter,
		.bad = g->bad,
		.nr = g->nr,
		.nr_src = g->nr_src,
		.nr_dst = g->nr_dst,
		.row_b = g->row_b,
		.segs = gx_gather_segs(cuda_ptr(g->src), g->row_b, word),
		.window = gx_gather_window(g->row_b),
		.magic = gx_gather_magic(g->row_b),
	};
	if (g->ordered) {
		a->head = g->link;
		a->next = g->link + g->nr_src;
	}
}

/* The kernel that ends the gather, and how many warps it can feed. */
static unsigned gather_kernel(const struct gx_gpu_gather *g, const struct gx_gather_args *a,
			      uint64_t *work)
{
	bool wide = gx_gather_word(cuda_ptr(g->src), cuda_ptr(g->dst), g->row_b) == 16;

	if (g->ordered) {
		*work = (g->nr_src + a->window - 1) / a->window;
		return wide ? GATHER_ORDERED16 : GATHER_ORDERED4;
	}
	*work = ((uint64_t)g->nr * a->segs + 31) / 32;
	return wide ? GATHER_ROWS16 : GATHER_ROWS4;
}

static bool gather_queue(struct cuda_stream *s, const struct gx_gpu_gather *g, uint32_t *done,
			 uint32_t value)
{
	struct cuda_gpu *gpu = cuda_of(s->stream.gpu);
	unsigned sms = GX_MIN(g->sms ? g->sms : gpu->gather_sms, gpu->all_sms);
	struct gx_gather_args a;
	void *params[] = {&a};
	struct CUfunc_st *fn;
	uint64_t work;

	gather_args(s, g, &a);
	a.flag = done;
	a.value = value;
	fn = gpu->fn_gather[gather_kernel(g, &a, &work)];
	work = GX_MAX((work + GX_GATHER_WARPS - 1) / GX_GATHER_WARPS, 1);
	if (g->ordered &&
	    !cuda_core_launch(s, gpu->fn_gather[GATHER_LINK], sms, GX_GATHER_THREADS, params))
		return false;
	return cuda_core_launch(s, fn, GX_MIN(sms, work), GX_GATHER_THREADS, params);
}

static bool move_queue(struct cuda_stream *s, const struct gx_gpu_gather *g, uint32_t *done,
		       uint32_t value)
{
	struct cuda_gpu *gpu = cuda_of(s->stream.gpu);
	unsigned sms = GX_MIN(g->sms ? g->sms : gpu->gather_sms, gpu->all_sms);
	struct gx_view_args a = {.counter = s->gather_counter, .flag = done, .value = value};
	void *params[] = {&a};
	unsigned fn;

	gx_view_plan(&a, g->move);
	fn = a.word_b == 16 ? GATHER_VIEW16 : a.word_b == 4 ? GATHER_VIEW4 : GATHER_VIEW1;
	return cuda_core_launch(s, gpu->fn_gather[fn], GX_MIN(sms, (a.words + a.tile - 1) / a.tile),
				GX_VIEW_THREADS, params);
}

int cuda_gather(struct gx_gpu_stream *stream, const struct gx_gpu_gather *g, uint32_t *done,
		uint32_t value, uint64_t now_ns)
{
	struct cuda_stream *s = cuda_stream_of(stream);
	struct cuda_gpu *gpu = cuda_of(stream->gpu);
	struct cuda_prev prev;
	bool ok;

	assert(g->move || (g->row_b && g->row_b % 4 == 0 && g->row_b <= GX_ROW_MAX));
	if (s->faulted || (s->res && !cuda_resident_stop(s, now_ns)))
		return -EAGAIN;
	prev = cuda_enter(gpu);
	ok = g->move ? move_queue(s, g, done, value) : gather_queue(s, g, done, value);
	cuda_leave_core(gpu, prev);
	cuda_core_queued(s, ok, now_ns);
	return ok ? 0 : -EAGAIN;
}
