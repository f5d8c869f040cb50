/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes in and out of registered memory, on the caller's thread: gx_mem_copy_in(), gx_mem_copy_out().
 * Each GPU keeps a stream for them: the driver waits for all work of a GPU when it ends one, and cores
 * wait for the driver.
 */
#include "control/control.h"

#include <errno.h>
#include <string.h>

void copier_close(struct core_copier *k, struct gx_gpu *gpu)
{
	gx_gpu_stream_close(k->stream);
	gx_gpu_flag_free(gpu, k->flag);
	k->stream = NULL;
	k->flag = NULL;
}

static int copier_open(struct core_copier *k, struct gx_gpu *gpu)
{
	if (k->stream)
		return 0;
	k->flag = gx_gpu_flag_alloc(gpu, 1);
	return k->flag ? gpu->stream->open(gpu, GX_STREAM_COPY, &k->stream) : -ENOMEM;
}

static int copier_run(struct core_copier *k, const struct gx_gpu_copy *copy)
{
	uint64_t until = gx_now_ns() + 10000000000ull;
	struct gx_gpu_stream *s = k->stream;
	int ret;

	k->seq++;
	do
		ret = s->ops->copy(s, copy, 1, k->flag, k->seq, gx_now_ns());
	while (ret == -EAGAIN && !s->ops->fault(s) && gx_now_ns() < until);
	while (!ret && __atomic_load_n(k->flag, __ATOMIC_ACQUIRE) != k->seq) {
		s->ops->reap(s, gx_now_ns());
		if (s->ops->fault(s))
			ret = gx_fail(-EIO, "%s", gx_gpu_why());
		else if (gx_now_ns() > until)
			ret = gx_fail(-ETIMEDOUT, "a copy of %zu bytes on cuda:%d does not end",
				      copy->len, s->gpu->device);
	}
	return ret;
}

/* Copy by the GPU's copy engine, and wait. For checks, not for speed. */
static int gpu_copy(const struct gx_mem *mem, void *dst, const void *src, uint64_t len)
{
	struct core_copier *k = &mem->gx->copier[mem->device];
	int ret;

	pthread_mutex_lock(&k->lock);
	ret = copier_open(k, mem->gpu);
	if (!ret)
		ret = copier_run(k, &(struct gx_gpu_copy){dst, src, len});
	if (ret) /* a stream that failed does not work again */
		copier_close(k, mem->gpu);
	pthread_mutex_unlock(&k->lock);
	return ret;
}

static int copy_check(const struct gx_mem *mem, uint64_t off, uint64_t len)
{
	if (mem_is_dead(mem))
		return gx_fail(-EINVAL, "this memory was freed");
	if (off > mem->len || len > mem->len - off)
		return gx_fail(-ERANGE, "bytes %llu to %llu are outside of %llu",
			       (unsigned long long)off, (unsigned long long)(off + len),
			       (unsigned long long)mem->len);
	return 0;
}

GX_EXPORT int gx_mem_copy_out(const struct gx_mem *mem, uint64_t off, void *to, uint64_t len)
{
	int ret = copy_check(mem, off, len);

	if (ret || !len)
		return ret;
	if (mem->kind == GX_MEM_HOST) {
		memcpy(to, mem->addr + off, len);
		return 0;
	}
	return gpu_copy(mem, to, mem->addr + off, len);
}

GX_EXPORT int gx_mem_copy_in(struct gx_mem *mem, uint64_t off, const void *from, uint64_t len)
{
	int ret = copy_check(mem, off, len);

	if (ret || !len)
		return ret;
	if (mem->kind == GX_MEM_HOST) {
		memcpy(mem->addr + off, from, len);
		return 0;
	}
	return gpu_copy(mem, mem->addr + off, from, len);
}
