/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA GPUs by the driver API: a GPU is opened and asked for its properties, and our code is
 * loaded; and the table of the backend, whose slots are in the files cuda_*.c. Control slots are
 * for any thread, [core] slots for the thread that owns the stream. Both make the device's primary
 * context current and restore the context before it; on gx's own cores the primary context stays.
 */
#include "crc_core.h"
#include "cuda_stream.h"
#include "fatbin.h"
#include "gather_core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CUDA_SMS_DEFAULT  16 /* 2 to 16 SMs read host memory as fast as PCIe gives it */
/* A kernel that stays takes its SMs from all other work: while a bf16 GEMM runs on 132 SMs 4 bring 44.6
 * of 50 GB/s asked for and cost it 0.6 %, 8 bring 44.5 and cost it 4.2 % (docs/overlap.md). Each
 * core has a kernel of its own. */
#define CUDA_RESIDENT_SMS 4
#define CUDA_GATHER_SMS	  4		/* enough to saturate PCIe with rows of any size */
#define CUDA_DRAIN_NS	  5000000000ull /* a close waits so long for a GPU, unless cfg says */

/* The answer is no if the driver does not know the attribute. */
static bool gpu_has(int dev, unsigned attribute)
{
	int has = 0;

	return !cu.cuDeviceGetAttribute(&has, attribute, dev) && has;
}

static void gpu_identify_vmm(struct cuda_gpu *g, int dev)
{
	g->vmm = !g->ipc_memory && gpu_has(dev, GX_CU_ATTR_VMM) &&
		 gpu_has(dev, GX_CU_ATTR_VMM_POSIX_FD);
	g->vmm_rdma = gpu_has(dev, GX_CU_ATTR_VMM_RDMA);
	g->dmabuf = gpu_has(dev, GX_CU_ATTR_DMABUF);
}

static enum gx_gpu_dma gpu_dma(int dev)
{
	int order = 0;

	if (cu.cuDeviceGetAttribute(&order, GX_CU_ATTR_RDMA_ORDER, dev))
		return GX_GPU_DMA_NONE;
	return order >= GX_CU_RDMA_ORDER_ALL	 ? GX_GPU_DMA_ALL
	       : order >= GX_CU_RDMA_ORDER_OWNER ? GX_GPU_DMA_OWN
						 : GX_GPU_DMA_NONE;
}

static int gpu_name(struct gx_gpu *gpu, int dev)
{
	int domain = 0, bus = 0, device = 0, ret;

	ret = CUDA_TRY(cuDeviceGetName, gpu->name, sizeof(gpu->name), dev);
	if (ret || cu.cuDeviceGetAttribute(&domain, GX_CU_ATTR_PCI_DOMAIN, dev) ||
	    cu.cuDeviceGetAttribute(&bus, GX_CU_ATTR_PCI_BUS, dev) ||
	    cu.cuDeviceGetAttribute(&device, GX_CU_ATTR_PCI_DEVICE, dev))
		return ret;
	snprintf(gpu->pci, sizeof(gpu->pci), "%04x:%02x:%02x.0", domain & 0xffff, bus & 0xff,
		 device & 0xff);
	return ret;
}

int gx_gpu_cuda_look(int ordinal, struct gx_gpu *gpu)
{
	int dev, ret = cuda_lib_get();

	if (!ret)
		ret = CUDA_TRY(cuDeviceGet, &dev, ordinal);
	return ret ? ret : gpu_name(gpu, dev);
}

static int gpu_identify(struct cuda_gpu *g, int dev)
{
	int sms = 0, major = 0, minor = 0, uva = 0;
	int ret;

	ret = gpu_name(&g->gpu, dev);
	if (!ret)
		ret = CUDA_TRY(cuDeviceGetAttribute, &sms, GX_CU_ATTR_MULTIPROCESSOR_COUNT, dev);
	if (!ret)
		ret = CUDA_TRY(cuDeviceGetAttribute, &uva, GX_CU_ATTR_UNIFIED_ADDRESSING, dev);
	if (!ret)
		ret = CUDA_TRY(cuDeviceGetAttribute, &major, GX_CU_ATTR_COMPUTE_CAPABILITY_MAJOR,
			       dev);
	if (!ret)
		ret = CUDA_TRY(cuDeviceGetAttribute, &minor, GX_CU_ATTR_COMPUTE_CAPABILITY_MINOR,
			       dev);
	if (ret)
		return ret;
	if (major < 8 || !uva) {
		gx_gpu_why_set(
			"%s has compute capability %d.%d, gx needs 8.0 and unified addresses",
			g->gpu.name, major, minor);
		return -ENODEV;
	}
	gpu_identify_vmm(g, dev);
	g->all_sms = (unsigned)sms;
	g->major = major;
	g->sms = GX_MIN(g->sms, g->all_sms);
	g->gpu.resident_sms = GX_MIN(g->gpu.resident_sms, GX_MIN(g->all_sms, GX_RES_BLOCKS_MAX));
	if (cuda_has_kernel(g))
		g->gpu.unpack_sms =
			g->gpu.unpack == GX_UNPACK_RESIDENT ? g->gpu.resident_sms : g->sms;
	g->gpu.turns = !gpu_has(dev, GX_CU_ATTR_MPS);
	g->gpu.dma = gpu_dma(dev);
	return 0;
}

static int gpu_load_gather(struct cuda_gpu *g)
{
	static const char *const name[GATHER_FNS] = {
		"gx_gather_rows16",   "gx_gather_rows4",  "gx_gather_link",  "gx_gather_ordered16",
		"gx_gather_ordered4", "gx_gather_view16", "gx_gather_view4", "gx_gather_view1",
	};
	int ret = cuda_load(&g->gather_module, gx_gather_fatbin);

	for (unsigned i = 0; i < GATHER_FNS && !ret; i++)
		ret = CUDA_TRY(cuModuleGetFunction, &g->fn_gather[i], g->gather_module, name[i]);
	return ret;
}

static int gpu_load_resident(struct cuda_gpu *g)
{
	int ret = cuda_load(&g->resident_module, gx_resident_fatbin);

	return ret ? ret
		   : CUDA_TRY(cuModuleGetFunction, &g->fn_resident, g->resident_module,
			      "gx_resident");
}

static int gpu_load_crc(struct cuda_gpu *g)
{
	uint32_t tables[GX_CRC_WORDS];
	unsigned long long mem = 0;
	int ret = CUDA_TRY(cuModuleGetFunction, &g->fn_crc, g->module, "gx_unpack_crc");

	if (!ret)
		ret = CUDA_TRY(cuFuncSetAttribute, g->fn_crc, GX_CU_FUNC_MAX_DYNAMIC_SHARED_B,
			       GX_CRC_SHARED_B);
	if (!ret)
		ret = CUDA_TRY(cuMemAlloc_v2, &mem, sizeof(tables));
	if (ret)
		return ret;
	g->crc_tables = (uint32_t *)(uintptr_t)mem;
	gx_crc_tables(tables);
	ret = CUDA_TRY(cuMemcpyHtoDAsync_v2, mem, tables, sizeof(tables), g->ctl);
	return ret ? ret : cuda_wait(g, g->ctl);
}

static int gpu_load(struct cuda_gpu *g)
{
	int ret = cuda_load(&g->module, gx_unpack_fatbin);

	if (!ret)
		ret = CUDA_TRY(cuModuleGetFunction, &g->fn_unpack, g->module, "gx_unpack");
	if (!ret)
		ret = CUDA_TRY(cuModuleGetFunction, &g->fn_flag, g->module, "gx_flag");
	if (!ret)
		ret = gpu_load_gather(g);
	if (!ret)
		ret = gpu_load_resident(g);
	if (!ret)
		ret = cuda_stm_new(&g->ctl);
	if (!ret)
		ret = gpu_load_crc(g);
	return ret;
}

/* Frees @g too. While the GPU may still use something of it, all of it stays, with the context. */
static void gpu_free(struct cuda_gpu *g)
{
	unsigned mode = cuda_relax();
	struct cuda_prev prev;

	if (!g->ctx)
		goto out;
	if (cuda_is_lost(g)) {
		cuda_keep(g);
		cuda_unrelax(mode);
		return;
	}
	prev = cuda_enter(g);
	cuda_device_free(g, g->crc_tables);
	if (g->ctl)
		cu.cuStreamDestroy_v2(g->ctl);
	if (g->resident_module)
		cu.cuModuleUnload(g->resident_module);
	if (g->gather_module)
		cu.cuModuleUnload(g->gather_module);
	if (g->module)
		cu.cuModuleUnload(g->module);
	cuda_leave(g, prev);
	cu.cuDevicePrimaryCtxRelease_v2(g->gpu.device);
out:
	cuda_unrelax(mode);
	free(g);
}

static int gpu_start(struct cuda_gpu *g, int dev)
{
	struct cuda_prev prev;
	int ret;

	ret = CUDA_TRY(cuDevicePrimaryCtxRetain, &g->ctx, dev);
	if (ret)
		return ret;
	prev = cuda_enter(g);
	ret = gpu_load(g);
	if (!ret)
		ret = cuda_probe(g);
	cuda_leave(g, prev);
	return ret;
}

/* A context, and all parts that are made in it. */
static int gpu_up(struct cuda_gpu *g, const struct gx_gpu_cfg *cfg)
{
	unsigned mode = cuda_relax();
	int dev = 0, ret = CUDA_TRY(cuDeviceGet, &dev, cfg->device);

	g->gpu.device = dev;
	if (!ret)
		ret = gpu_identify(g, dev);
	if (!ret)
		ret = gpu_start(g, dev);
	cuda_unrelax(mode);
	return ret;
}

static int cuda_open(const struct gx_gpu_cfg *cfg, struct gx_gpu **out)
{
	struct cuda_gpu *g;
	int ret;

	if (!gx_unpack_fatbin_len) {
		gx_gpu_why_set("built without nvcc");
		return -ENODEV;
	}
	ret = cuda_lib_get();
	if (ret)
		return ret;
	g = calloc(1, sizeof(*g));
	if (!g)
		return -ENOMEM;
	g->gpu.unpack = cfg->unpack;
	g->sms = cfg->sms ? cfg->sms : CUDA_SMS_DEFAULT;
	g->gather_sms = cfg->sms ? cfg->sms : CUDA_GATHER_SMS;
	g->gpu.resident_sms = cfg->sms ? cfg->sms : CUDA_RESIDENT_SMS;
	g->gpu.ops = &gx_gpu_cuda_ops;
	g->gpu.mem = &cuda_mem_ops;
	g->gpu.share = &cuda_share_ops;
	g->gpu.stream = &cuda_stream_ops;
	g->ipc_memory = cfg->ipc_memory;
	g->gpu.reads_host = g->gpu.unpack == GX_UNPACK_HOST;
	g->gpu.checks_crc = g->gpu.unpack == GX_UNPACK_HOST || g->gpu.unpack == GX_UNPACK_KERNEL ||
			    g->gpu.unpack == GX_UNPACK_AUTO;
	g->drain_ns = cfg->drain_ns ? cfg->drain_ns : CUDA_DRAIN_NS;
	ret = gpu_up(g, cfg);
	if (ret)
		gpu_free(g);
	else
		*out = &g->gpu;
	return ret;
}

static void cuda_close(struct gx_gpu *gpu)
{
	if (gpu)
		gpu_free(cuda_of(gpu));
}

const struct gx_gpu_ops gx_gpu_cuda_ops = {
	.name = "cuda",
	.open = cuda_open,
	.close = cuda_close,
	.host_map = cuda_host_map,
	.host_unmap = cuda_host_unmap,
	.pinned_alloc = cuda_pinned_alloc,
	.pinned_free = cuda_pinned_free,
	.stream_mark = cuda_stream_mark,
};
