/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of the CUDA backend: a GPU, the driver (cuda_api.c), memory (cuda_mem.c: of
 * the GPU, pinned, registered; cuda_share.c: named to other processes) and streams that did not
 * finish (cuda_lost.c). cuda_stream.h has the work on streams; gpu_cuda.c is above all of these.
 */
#ifndef GX_CUDA_PRIV_H
#define GX_CUDA_PRIV_H

#include "cuda_abi.h"
#include "gpu_priv.h"

#include <errno.h>

/* The kernels of gather.cu. */
enum {
	GATHER_ROWS16,
	GATHER_ROWS4,
	GATHER_LINK,
	GATHER_ORDERED16,
	GATHER_ORDERED4,
	GATHER_VIEW16,
	GATHER_VIEW4,
	GATHER_VIEW1,
	GATHER_FNS,
};

/* A stream that was given up; a member of the struct that owns all memory that the stream may
 * use. */
struct cuda_lost {
	struct cuda_lost *next;
	struct cuda_gpu *g;
	struct CUstream_st *stm;
	void (*end)(struct cuda_lost *l); /* once it has finished after all; NULL: nothing */
	bool listed;
};

struct cuda_gpu {
	struct gx_gpu gpu;
	struct CUctx_st *ctx; /* primary context of the device, held; NULL: not open yet */
	struct CUmod_st *module;
	struct CUfunc_st *fn_unpack, *fn_crc, *fn_flag;
	uint32_t *crc_tables;	      /* device memory */
	struct CUfunc_st *fn_ring[2]; /* of cuda_ring_shape[]; NULL: this GPU has no bulk copies */
	struct CUmod_st *gather_module, *resident_module;
	struct CUfunc_st *fn_resident;
	struct CUfunc_st *fn_gather[GATHER_FNS];
	struct CUstream_st *ctl;  /* control path: clears memory, first launch */
	unsigned sms, gather_sms; /* bounds, for callers that name none */
	unsigned all_sms;
	int major;	   /* compute capability */
	bool ipc_memory;   /* asked for: memory comes from cuMemAlloc */
	bool vmm;	   /* memory comes from cuMemCreate and can be named by a descriptor */
	bool vmm_rdma;	   /* such memory may be made so that NICs reach it */
	bool dmabuf;	   /* and be named to them as a dma-buf */
	bool write_value;  /* stream memory operations write pinned words; else fn_flag does */
	uint64_t drain_ns; /* how long a close waits for the GPU before it gives a stream up */
	struct cuda_lost ctl_lost;
	struct cuda_gpu *kept; /* in the list of those that were closed and not released */
	void *kept_code;       /* kernels of lab/code.c that this GPU may still run */
};

/* -- cuda_api.c -- */

/* The driver's functions; valid once a GPU is open, frozen afterwards. The label keeps the short
 * name out of a program that links the static library. */
extern struct cuda_api cu __asm__("gx_cuda_api_table");

/* cuda_try() - 0, or -ENOMEM / -ENODEV with the reason set. */
int cuda_try(unsigned res, const char *what);
#define CUDA_TRY(fn, ...) cuda_try(cu.fn(__VA_ARGS__), #fn)

/* cuda_lib_get() - Find the driver, once in a process. Return: 0, -ENODEV with the reason. */
int cuda_lib_get(void);
const char *cuda_error_name(unsigned res);

/* cuda_load() - A fat binary of ours. Return: 0, -ENOMEM, -ENODEV with the reason and the cure. */
int cuda_load(struct CUmod_st **module, const void *image);

static inline unsigned long long cuda_ptr(const void *ptr)
{
	return (unsigned long long)(uintptr_t)ptr;
}

static inline struct cuda_gpu *cuda_of(struct gx_gpu *gpu)
{
	return GX_CONTAINER_OF(gpu, struct cuda_gpu, gpu);
}

/* A thread's state before gx changed it for its calls of the driver. */
struct cuda_prev {
	struct CUctx_st *ctx;
	unsigned capture; /* GX_CU_CAPTURE_*: how far captures of others bind this thread */
};

extern _Thread_local bool cuda_relaxed; /* this thread is gx's and has said RELAXED for good */

/*
 * A thread of the program may capture a graph in mode global, PyTorch's default. Then the driver
 * refuses to all other threads the calls that it deems unsafe, and spoils the capture on top,
 * unless the thread has said RELAXED. gx may say so: its work is on streams of its own and in
 * nobody's graph. Return: the mode of the thread before.
 */
static inline unsigned cuda_relax(void)
{
	unsigned mode = GX_CU_CAPTURE_RELAXED;

	if (cuda_relaxed)
		return mode;
	cu.cuThreadExchangeStreamCaptureMode(&mode);
	cuda_relaxed = gx_thread_own;
	return mode;
}

static inline void cuda_unrelax(unsigned mode)
{
	if (mode != GX_CU_CAPTURE_RELAXED && !gx_thread_own)
		cu.cuThreadExchangeStreamCaptureMode(&mode);
}

/*
 * The driver says which context is current, not a variable of ours: the program's own CUDA calls
 * may have changed it on this thread. Return: for cuda_leave().
 */
static inline struct cuda_prev cuda_enter(struct cuda_gpu *g)
{
	struct cuda_prev prev = {.capture = cuda_relax()};

	cu.cuCtxGetCurrent(&prev.ctx);
	if (prev.ctx != g->ctx)
		cu.cuCtxSetCurrent(g->ctx);
	return prev;
}

static inline void cuda_leave(struct cuda_gpu *g, struct cuda_prev prev)
{
	if (prev.ctx != g->ctx)
		cu.cuCtxSetCurrent(prev.ctx);
	cuda_unrelax(prev.capture);
}

/* Does @res, the answer to a query of a stream, say that work is under way, as far as the driver
 * knows? A refusal because of a capture says nothing of the stream: a later query will. */
static inline bool cuda_is_busy(unsigned res)
{
	return res == GX_CU_ERROR_NOT_READY || res == GX_CU_ERROR_CAPTURE_UNSUPPORTED ||
	       res == GX_CU_ERROR_CAPTURE_INVALIDATED || res == GX_CU_ERROR_CAPTURE_IMPLICIT;
}

static inline struct gx_block_mem *cuda_block_mem(const struct gx_block *b)
{
	return GX_CONTAINER_OF(b->status, struct gx_block_mem, status);
}

/* -- cuda_lost.c -- */

/* Wait for a stream until @end_ns. Return: 0, a code that cuda_is_busy() knows, or the stream's
 * error. The context is current. */
unsigned cuda_drain(struct CUstream_st *stm, uint64_t end_ns);
/* Log that @l, which is filled in, has not finished, and keep it in mind. @what: the subject of the
 * log's sentence. */
void cuda_lose(struct cuda_lost *l, const char *what);
/* May the GPU still use memory or code that it was given? Then the caller frees, unmaps,
 * unregisters and unloads nothing of it: the driver would wait, or take it from under the GPU. */
bool cuda_is_lost(struct cuda_gpu *g);
void cuda_keep(struct cuda_gpu *g); /* closed while it is lost: @g stays */

/* -- cuda_share.c -- */

extern const struct gx_gpu_share_ops cuda_share_ops;

/* -- cuda_mem.c: a table, slots of gx_gpu_ops, and parts of both -- */

/* Memory mapped by cuMemMap, made here or imported; or an imported cudaIpc handle. owner: control
 * threads */
struct cuda_range {
	struct cuda_range *next;
	unsigned long long base; /* 0: no addresses yet */
	size_t len;		 /* whole granules */
	size_t mapped;		 /* bytes from .base on that cuMemMap has mapped */
	unsigned long long user; /* the caller's address: in an import not always the base */
	bool placed;		 /* at addresses of ->addr_reserve, which outlive it */
	bool ipc;
};

/* Addresses for .len bytes. The context is current for this and the next four. */
int cuda_range_reserve(struct cuda_range *r);
/* Map an allocation of @len bytes after what is mapped; @handle stays the caller's. */
int cuda_range_map(struct cuda_range *r, unsigned long long handle, size_t len);
/* Let @g read and write what is mapped, and every GPU of the process that can. */
int cuda_range_allow(struct cuda_gpu *g, const struct cuda_range *r);
void cuda_range_close(struct cuda_range *r); /* accepts a half-open one; frees it */
void cuda_range_add(struct cuda_range *r);   /* to the list of all */
/* Take the range whose caller has the address @user out of the list. NULL: there is none. */
struct cuda_range *cuda_range_take(unsigned long long user);

extern const struct gx_gpu_mem_ops cuda_mem_ops;
bool cuda_is_mapped(unsigned long long at); /* by cuMemMap() */
/* As ->device. The context is current. */
int cuda_device_of(struct cuda_gpu *g, unsigned long long at, size_t len);
int cuda_host_map(struct gx_gpu *gpu, void *ptr, size_t len);
bool cuda_host_unmap(struct gx_gpu *gpu, void *ptr, size_t len);
/* Mapped at the same address for every GPU. */
void *cuda_pinned_alloc(struct gx_gpu *gpu, size_t len);
void cuda_pinned_free(struct gx_gpu *gpu, void *ptr);

void cuda_device_free(struct cuda_gpu *g, void *ptr); /* of cuMemAlloc; NULL is fine */
/* Zero memory of the GPU, waited for. The context is current. */
int cuda_mem_clear(struct cuda_gpu *g, unsigned long long ptr, size_t len);
/* Wait for the work of @stm, in bounded time. Return: 0, -ENODEV with the reason. */
int cuda_wait(struct cuda_gpu *g, struct CUstream_st *stm);

#endif
