/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of copies, and calls of the program's functions, on a core's stream. Runs on the thread
 * that owns the stream.
 */
#include "cuda_stream.h"

#include <errno.h>

/* An argument that the driver refuses is the caller's fault, and not the stream's. */
static int copy_queue(struct cuda_stream *s, const struct gx_gpu_copy *c)
{
	unsigned res;

	if (!c->len)
		return 0;
	res = cu.cuMemcpyAsync(cuda_ptr(c->dst), cuda_ptr(c->src), c->len, s->stm);
	if (res != GX_CU_ERROR_INVALID_VALUE)
		return cuda_core_try(s, res, "cuMemcpyAsync") ? 0 : -EAGAIN;
	gx_gpu_why_set("copy of %zu bytes from %p to %p: the driver refuses an address", c->len,
		       c->src, c->dst);
	return -EINVAL;
}

int cuda_copy(struct gx_gpu_stream *stream, const struct gx_gpu_copy list[], unsigned n,
	      uint32_t *done, uint32_t value, uint64_t now_ns)
{
	struct cuda_stream *s = cuda_stream_of(stream);
	struct cuda_gpu *g = cuda_of(stream->gpu);
	struct cuda_prev prev;
	int ret = 0;
	bool ok;

	if (s->faulted)
		return -EAGAIN;
	if (cuda_resident_takes(s, list, n)) {
		ok = cuda_resident_copy(s, list, n, done, value, now_ns);
		cuda_core_queued(s, ok, now_ns);
		return ok ? 0 : -EAGAIN;
	}
	if (s->res && !cuda_resident_stop(s, now_ns))
		return -EAGAIN;
	s->chained = false;
	prev = cuda_enter(g);
	for (unsigned i = 0; i < n && !ret; i++)
		ret = copy_queue(s, &list[i]);
	if (!ret && done)
		ret = cuda_core_flag(s, done, value) ? 0 : -EAGAIN;
	cuda_leave_core(g, prev);
	cuda_core_queued(s, 1, now_ns); /* copies before a refused one are queued, too */
	return ret;
}

int cuda_call(struct gx_gpu_stream *stream, int (*fn)(void *arg, void *stream), void *arg,
	      uint32_t *done, uint32_t value, uint64_t now_ns)
{
	struct cuda_stream *s = cuda_stream_of(stream);
	struct cuda_gpu *g = cuda_of(stream->gpu);
	struct cuda_prev prev;
	int ret = 0;

	if (s->faulted || (s->res && !cuda_resident_stop(s, now_ns)))
		return -EAGAIN;
	s->chained = false;
	prev = cuda_enter(g);
	cuda_unrelax(prev.capture); /* @fn is the program's */
	if (fn)
		ret = fn(arg, s->stm);
	cuda_relax();
	/* @fn may have made another context current. */
	cu.cuCtxSetCurrent(g->ctx);
	if (!ret && done && !cuda_core_flag(s, done, value))
		ret = -EAGAIN;
	cuda_leave_core(g, prev);
	cuda_core_queued(s, 1, now_ns);
	return ret;
}
