/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts of CUDA that GPUs of gx are opened in: a device's primary one, or one of gx's own
 * (gx_gpu_opts.own_context). Each is held by its GPU and by registrations of host memory, which end
 * with the context that they were made in. Any thread of the control path.
 */
#include "cuda_priv.h"

#include <stdlib.h>

/* The driver makes a new context current, above the one that was; so it is taken down again. */
static int ctx_own(struct cuda_ctx *c)
{
	struct CUctx_st *was;
	int ret = CUDA_TRY(cuCtxCreate_v2, &c->ctx, GX_CU_CTX_SCHED_AUTO, c->device);

	if (!ret)
		cu.cuCtxPopCurrent_v2(&was);
	return ret;
}

int cuda_ctx_open(int device, bool own, struct cuda_ctx **out)
{
	struct cuda_ctx *c = calloc(1, sizeof(*c));
	int ret;

	if (!c)
		return -ENOMEM;
	c->device = device;
	c->own = own;
	c->refs = 1;
	ret = own ? ctx_own(c) : CUDA_TRY(cuDevicePrimaryCtxRetain, &c->ctx, device);
	if (ret)
		free(c);
	else
		*out = c;
	return ret;
}

struct cuda_ctx *cuda_ctx_hold(struct cuda_ctx *c)
{
	__atomic_fetch_add(&c->refs, 1, __ATOMIC_RELAXED);
	return c;
}

void cuda_ctx_put(struct cuda_ctx *c)
{
	if (__atomic_sub_fetch(&c->refs, 1, __ATOMIC_ACQ_REL))
		return;
	if (c->own)
		cu.cuCtxDestroy_v2(c->ctx);
	else
		cu.cuDevicePrimaryCtxRelease_v2(c->device);
	free(c);
}
