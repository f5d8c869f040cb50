/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes in and out of registered memory, on the caller's thread: gx_mem_copy_in(), gx_mem_copy_out().
 */
#include "control/control.h"

#include <errno.h>
#include <string.h>

/* Copy by the GPU's copy engine, and wait. For checks, not for speed. */
static int gpu_copy(const struct gx_mem *mem, void *dst, const void *src, uint64_t len)
{
	struct gx_gpu_copy copy = {dst, src, len};
	uint64_t until = gx_now_ns() + 10000000000ull;
	struct gx_gpu_stream *s;
	uint32_t *flag = gx_gpu_flag_alloc(mem->gpu, 1);
	int ret = flag ? mem->gpu->stream->open(mem->gpu, GX_STREAM_COPY, &s) : -ENOMEM;

	if (ret)
		goto out;
	do
		ret = s->ops->copy(s, &copy, 1, flag, 1, gx_now_ns());
	while (ret == -EAGAIN && !s->ops->fault(s) && gx_now_ns() < until);
	while (!ret && __atomic_load_n(flag, __ATOMIC_ACQUIRE) != 1) {
		s->ops->reap(s, gx_now_ns());
		if (s->ops->fault(s))
			ret = gx_fail(-EIO, "%s", gx_gpu_why());
		else if (gx_now_ns() > until)
			ret = gx_fail(-ETIMEDOUT, "a copy of %llu bytes on cuda:%d does not end",
				      (unsigned long long)len, mem->device);
	}
	gx_gpu_stream_close(s);
out:
	if (flag)
		gx_gpu_flag_free(mem->gpu, flag);
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
