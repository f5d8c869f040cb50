/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of a context. The first memory on a GPU, or gx_gpu_open(), opens it, whether cores run or
 * not: the control thread makes each core's part, and a call to its inbox has the core take that.
 * Copy engines may then use registered host memory, too. Control path.
 */
#include "control/control.h"
#include "submit/submit.h"

#include "gx_internal/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GPU_HAND_NS 1000000000ull /* for the next turn of each core */
#define GPU_NAP_NS  20000

_Static_assert(GX_GPUS_MAX <= 32, "bits of gx->gpus");

/* Links that map memory of peers, and a bounce pool on a GPU, have copy engines use host memory in place. Where
 * neither is, the driver is spared: it may wait for a GPU that is busy. */
void gpu_host_register(struct gx_mem *mem, struct gx_gpu *gpu)
{
	struct gx_gpu *none = NULL;

	if (!mem->gx->maps && !mem->gx->pool_gpu)
		return;
	if (mem->kind != GX_MEM_HOST || !mem->addr || !mem->len || mem->dma)
		return;
	if (gpu->ops->host_map(gpu, mem->addr, mem->len)) {
		gx_info("%llu bytes of host memory at %p go to and from GPUs by packets: %s",
			(unsigned long long)mem->len, (void *)mem->addr, gx_gpu_why());
		return;
	}
	/* The thread that registered it and one that opens a GPU may both come here. */
	if (!atomic_compare_exchange_strong(&mem->dma, &none, gpu))
		gpu->ops->host_unmap(gpu, mem->addr, mem->len);
}

struct old_call {
	struct gx *gx;
	struct gx_mem *mem; /* held, as by a part; NULL: none */
};

/* Control thread: let go of the memory, tell its parts, and hold the next one that is older. */
static int old_run(void *arg)
{
	struct old_call *call = arg;
	struct gx_mem *mem = call->mem;
	uint64_t below = mem ? mem->id : UINT64_MAX;

	for (struct gx_mem *part = mem ? mem->parts : NULL; part; part = part->next)
		atomic_store_explicit(&part->dma, mem->dma, memory_order_release);
	if (mem)
		mem->nr_parts--;
	mem = call->gx->mems; /* the youngest first */
	while (mem && (mem->id >= below || mem->kind != GX_MEM_HOST || mem->dma))
		mem = mem->next;
	if (mem)
		mem->nr_parts++;
	call->mem = mem;
	return mem != NULL;
}

/* Register the memory that is older than the open GPU, on the caller's thread: the driver takes
 * milliseconds for each 64 MiB, and connections wait for the control thread. */
static void gpu_register(struct gx *gx, struct gx_gpu *gpu)
{
	struct old_call call = {.gx = gx};

	while (gx_uring_run_wait(gx->uring, old_run, &call))
		gpu_host_register(call.mem, gpu);
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
	return ret;
}

/* ---- handing over to the cores ---- */

/* On the core, or on a thread that has entered it. */
static void gpus_take(struct gx_core *core)
{
	struct gx *gx = core->gx;
	/* Pairs with the release in get_run(): the parts are made. */
	uint32_t open = atomic_load_explicit(&gx->gpus, memory_order_acquire);
	uint32_t had = atomic_load_explicit(&core->gpus, memory_order_relaxed);

	for (uint32_t left = open & ~had; left; left &= left - 1) {
		unsigned device = (unsigned)__builtin_ctz(left);

		submit_take(core, gx->gpu[device]);
		for (unsigned l = 0; l < GX_LINKS; l++)
			gx_links[l]->core->gpu(core, device);
	}
	/* Pairs with the acquire in gpu_is_taken(). */
	atomic_store_explicit(&core->gpus, open, memory_order_release);
}

static void call_take(struct gx_call *call)
{
	struct gx_core *core = GX_CONTAINER_OF(call, struct gx_core, gpu_call);

	/* Pairs with the exchange in ask_run(). */
	atomic_store_explicit(&core->gpu_asked, false, memory_order_release);
	gpus_take(core);
}

static bool core_has(const struct gx_core *core, int device)
{
	return atomic_load_explicit(&core->gpus, memory_order_acquire) >> device & 1;
}

static bool gpu_is_taken(const struct gx *gx, int device)
{
	for (unsigned i = 0; i < gx->nr_cores; i++)
		if (!core_has(gx->core[i], device))
			return false;
	return true;
}

/* Control thread: a call to each core that lacks a GPU, and has none on its way. */
static int ask_run(void *arg)
{
	struct gx *gx = arg;

	for (unsigned i = 0; i < gx->nr_cores; i++) {
		struct gx_core *core = gx->core[i];

		if (atomic_load_explicit(&core->gpus, memory_order_relaxed) ==
			    atomic_load_explicit(&gx->gpus, memory_order_relaxed) ||
		    atomic_exchange_explicit(&core->gpu_asked, true, memory_order_acq_rel))
			continue;
		core->gpu_call.fn = call_take;
		if (gx_loop_call(&core->loop, &core->gpu_call))
			atomic_store_explicit(&core->gpu_asked, false, memory_order_relaxed);
	}
	return 0;
}

/* Wait until all cores have it. A core that nobody turns, or this thread, needs no turn. */
static int gpu_hand(struct gx *gx, int device)
{
	uint64_t until_ns = gx_now_ns() + GPU_HAND_NS;

	for (;;) {
		for (unsigned i = 0; i < gx->nr_cores; i++) {
			struct gx_core *core = gx->core[i];
			uintptr_t was;

			if (core_has(core, device) || !core_enter(core, &was))
				continue;
			gpus_take(core);
			core_leave(core, was);
		}
		if (gpu_is_taken(gx, device))
			return 0;
		if (gx_now_ns() >= until_ns)
			return gx_fail(-EAGAIN,
				       "cuda:%d is open, but a core that another thread turns has "
				       "not taken it: have the core turned, and call again",
				       device);
		gx_uring_run_wait(gx->uring, ask_run, gx);
		nanosleep(&(struct timespec){.tv_nsec = GPU_NAP_NS}, NULL);
	}
}

/* ---- opening ---- */

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
		if (!ret)
			/* Pairs with the acquire in gpus_take(). */
			atomic_fetch_or_explicit(&gx->gpus, 1u << device, memory_order_release);
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
		else if (!ret)
			gpu_register(gx, gx->gpu[device]);
	}
	if (ret)
		return gx_fail(ret, "%s", call.why);
	*out = gx->gpu[device];
	return gpu_is_taken(gx, device) ? 0 : gpu_hand(gx, device);
}

GX_EXPORT int gx_gpu_open(struct gx *gx, int device)
{
	struct gx_gpu *gpu;

	return gpu_get(gx, device, &gpu);
}
