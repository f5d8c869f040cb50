/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of copies, and calls of the program's functions, on a core's stream. Runs on the thread
 * that owns the stream.
 */
#include "cuda_stream.h"

#include <errno.h>

/* Bytes from @at on, @len at most, that the driver has as one range. */
static size_t copy_one(const void *at, size_t len)
{
	unsigned long long base = 0;
	size_t all = 0;

	if (cu.cuMemGetAddressRange_v2(&base, &all, cuda_ptr(at)))
		return len;
	return GX_MIN(len, base + all - cuda_ptr(at));
}

/* The driver copies from one registration of host memory to the next in two calls alone. An argument
 * that it refuses beyond that is the caller's fault, and not the stream's. */
static int copy_queue(struct cuda_stream *s, const struct gx_gpu_copy *c)
{
	const char *src = c->src;
	char *dst = c->dst;
	size_t left = c->len;

	while (left) {
		size_t n = left;
		unsigned res = cu.cuMemcpyAsync(cuda_ptr(dst), cuda_ptr(src), n, s->stm);

		if (gx_unlikely(res == GX_CU_ERROR_INVALID_VALUE)) {
			n = copy_one(dst, copy_one(src, n));
			if (n < left)
				res = cu.cuMemcpyAsync(cuda_ptr(dst), cuda_ptr(src), n, s->stm);
		}
		if (res == GX_CU_ERROR_INVALID_VALUE) {
			gx_gpu_why_set(
				"copy of %zu bytes from %p to %p: the driver refuses an address",
				c->len, c->src, c->dst);
			return -EINVAL;
		}
		if (!cuda_core_try(s, res, "cuMemcpyAsync"))
			return -EAGAIN;
		src += n;
		dst += n;
		left -= n;
	}
	return 0;
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
