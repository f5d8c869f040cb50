/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of a context. The first memory on a GPU, or gx_gpu_open(), opens it. Then each core's
 * links know it, and its copy engines may use registered host memory. Control path.
 */
#include "control/control.h"
#include "submit/submit.h"

#include "gx_internal/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Links that map memory of peers, and a bounce pool on a GPU, have copy engines use host memory in place. Where
 * neither is, the driver is spared: it may wait for a GPU that is busy. */
void gpu_host_register(struct gx_mem *mem, struct gx_gpu *gpu)
{
	if (!mem->gx->maps && !mem->gx->pool_gpu)
		return;
	if (mem->kind != GX_MEM_HOST || !mem->addr || !mem->len || mem->dma)
		return;
	if (!gpu->ops->host_map(gpu, mem->addr, mem->len))
		atomic_store_explicit(&mem->dma, gpu, memory_order_release);
}

static int register_run(void *arg)
{
	struct {
		struct gx *gx;
		struct gx_gpu *gpu;
	} *call = arg;

	for (struct gx_mem *mem = call->gx->mems; mem; mem = mem->next) {
		gpu_host_register(mem, call->gpu);
		for (struct gx_mem *part = mem->parts; part; part = part->next)
			atomic_store_explicit(&part->dma, mem->dma, memory_order_release);
	}
	return 0;
}

/* Register the memory that is older than the open GPU. */
static void gpu_register(struct gx *gx, struct gx_gpu *gpu)
{
	struct {
		struct gx *gx;
		struct gx_gpu *gpu;
	} call = {gx, gpu};

	gx_uring_run_wait(gx->uring, register_run, &call);
}

/* Could GPU @device miss data that a network card has just written to the bounce pool of another
 * GPU? */
static bool pool_unseen(const struct gx *gx, int device)
{
	if (!gx->pool_gpu || gx->pool_gpu->device == device || gx->pool_gpu->dma == GX_GPU_DMA_ALL)
		return false;
	for (unsigned p = 0; p < gx->nr_ports; p++)
		if (gx->port[p].port->caps.flags & GX_PORT_RX_DMA)
			return true;
	return false;
}

/* Make all users of the GPU know it. None of it can be undone: after a failure the GPU stays
 * unusable. */
static int gpu_attach(struct gx *gx, int device)
{
	int ret = gx_arena_attach(gx->arena, gx->gpu[device]);

	if (!ret && gx->pool)
		ret = gx_arena_attach(gx->pool, gx->gpu[device]);
	if (ret)
		return gx_fail(ret, "cuda:%d cannot read the bounce buffers: %s", device,
			       gx_gpu_why());
	for (unsigned i = 0; !ret && i < gx->nr_cores; i++)
		ret = submit_gpu(gx->core[i], gx->gpu[device]);
	if (ret)
		return gx_fail(ret, "cuda:%d: cannot be set up for copies: %s", device,
			       gx_gpu_why());
	for (unsigned l = 0; !ret && l < GX_LINKS; l++)
		ret = gx_links[l]->ctx->gpu(gx, gx->gpu[device]);
	if (ret)
		return ret;
	gpu_register(gx, gx->gpu[device]);
	return 0;
}

struct get_call {
	struct gx *gx;
	int device;
	struct gx_gpu
		*gpu; /* in: opened by the caller, or NULL; out: NULL, or what the caller closes */
	char why[CORE_TEXT_MAX];
};

/* Return: 0: the GPU is there; -ENOENT: open it; -errno with gx_error(). */
static int gpu_look(struct gx *gx, int device)
{
	if (gx->gpu_ret[device])
		return gx_fail(gx->gpu_ret[device],
			       "cuda:%d could not be set up when it was first wanted, which does "
			       "not change: open a new context",
			       device);
	if (gx->gpu[device])
		return 0;
	for (unsigned i = 0; i < gx->nr_cores; i++)
		if (gx->core[i]->loop.running)
			return gx_fail(
				-EBUSY,
				"cuda:%d: allocate the first memory of a GPU before the cores run",
				device);
	if (pool_unseen(gx, device))
		return gx_fail(-EOPNOTSUPP,
			       "cuda:%d: what network cards write to the bounce pool on cuda:%d is "
			       "seen by that GPU alone without a flush: take its memory, or "
			       "gx_gpu_opts.bounce host",
			       device, gx->pool_gpu->device);
	return -ENOENT;
}

/* On the control thread, which maps the arena of the packets. */
static int get_run(void *arg)
{
	struct get_call *call = arg;
	struct gx *gx = call->gx;
	int device = call->device, ret = gpu_look(gx, device);

	if (ret == -ENOENT && call->gpu) {
		gx->gpu[device] = call->gpu;
		call->gpu = NULL;
		ret = gx->gpu_ret[device] = gpu_attach(gx, device);
	}
	snprintf(call->why, sizeof(call->why), "%s", gx_error());
	return ret;
}

/* The backend of CUDA device @device. Opens it on first use. */
int gpu_get(struct gx *gx, int device, struct gx_gpu **out)
{
	struct get_call call = {.gx = gx, .device = device};
	struct gx_gpu_cfg cfg = gx->gpu_cfg;
	int ret;

	if (device < 0 || device >= GX_GPUS_MAX)
		return gx_fail(-EINVAL, "cuda:%d: device numbers are 0 to %d", device,
			       GX_GPUS_MAX - 1);
	ret = gx_uring_run_wait(gx->uring, get_run, &call);
	if (ret == -ENOENT) { /* takes up to seconds: on this thread */
		cfg.device = device;
		ret = gx_gpu_cuda_ops.open(&cfg, &call.gpu);
		if (ret)
			return gx_fail(ret, "cuda:%d: %s", device, gx_gpu_why());
		ret = gx_uring_run_wait(gx->uring, get_run, &call);
		if (call.gpu) /* another thread was faster */
			call.gpu->ops->close(call.gpu);
	}
	if (ret)
		return gx_fail(ret, "%s", call.why);
	*out = gx->gpu[device];
	return 0;
}

GX_EXPORT int gx_gpu_open(struct gx *gx, int device)
{
	struct gx_gpu *gpu;

	return gpu_get(gx, device, &gpu);
}
