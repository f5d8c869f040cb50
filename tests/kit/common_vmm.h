/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a GPU that a program allocates as PyTorch's expandable segments do: many allocations of
 * cuMemCreate(), mapped one behind the other.
 */
#ifndef COMMON_VMM_H
#define COMMON_VMM_H

#include "cuda_abi.h"
#include "kit/common_cuda.h"

#include <stdlib.h>

#define VMM_CHUNK_B ((size_t)2 << 20)

struct vmm {
	unsigned long long base;
	unsigned nr, nr_mapped; /* chunks; those that are mapped */
};

static struct {
	unsigned (*retain)(struct CUctx_st **ctx, int device);
	unsigned (*set_current)(struct CUctx_st *ctx);
	unsigned (*reserve)(unsigned long long *ptr, size_t len, size_t align,
			    unsigned long long at, unsigned long long flags);
	unsigned (*addr_free)(unsigned long long ptr, size_t len);
	unsigned (*create)(unsigned long long *handle, size_t len, const void *prop,
			   unsigned long long flags);
	unsigned (*release)(unsigned long long handle);
	unsigned (*map)(unsigned long long ptr, size_t len, size_t off, unsigned long long handle,
			unsigned long long flags);
	unsigned (*unmap)(unsigned long long ptr, size_t len);
	unsigned (*access)(unsigned long long ptr, size_t len, const void *who, size_t nr);
	struct CUctx_st *ctx;
} vmm_drv;

/* The program's context, which this thread has from now on. */
static inline void vmm_start(void)
{
	if (vmm_drv.ctx)
		return;
	vmm_drv.retain = common_cuda_symbol("cuDevicePrimaryCtxRetain");
	vmm_drv.set_current = common_cuda_symbol("cuCtxSetCurrent");
	vmm_drv.reserve = common_cuda_symbol("cuMemAddressReserve");
	vmm_drv.addr_free = common_cuda_symbol("cuMemAddressFree");
	vmm_drv.create = common_cuda_symbol("cuMemCreate");
	vmm_drv.release = common_cuda_symbol("cuMemRelease");
	vmm_drv.map = common_cuda_symbol("cuMemMap");
	vmm_drv.unmap = common_cuda_symbol("cuMemUnmap");
	vmm_drv.access = common_cuda_symbol("cuMemSetAccess");
	if (vmm_drv.retain(&vmm_drv.ctx, 0) || vmm_drv.set_current(vmm_drv.ctx))
		abort();
}

/* The next chunk of @v, which is mapped. @types: of its handle; 0: nobody can share it. */
static inline void vmm_map(struct vmm *v, unsigned types)
{
	const struct cuda_mem_prop prop = {.type = GX_CU_ALLOCATION_PINNED,
					   .handle_types = types,
					   .location = {GX_CU_LOCATION_DEVICE, 0}};
	const struct cuda_mem_access who = {.location = {GX_CU_LOCATION_DEVICE, 0},
					    .flags = GX_CU_ACCESS_READWRITE};
	unsigned long long at = v->base + v->nr_mapped * VMM_CHUNK_B, handle;

	if (vmm_drv.create(&handle, VMM_CHUNK_B, &prop, 0) ||
	    vmm_drv.map(at, VMM_CHUNK_B, 0, handle, 0) || vmm_drv.release(handle) ||
	    vmm_drv.access(at, VMM_CHUNK_B, &who, 1))
		abort();
	v->nr_mapped++;
}

/* Addresses for @nr chunks. */
static inline struct vmm vmm_reserve(unsigned nr)
{
	struct vmm v = {.nr = nr};

	vmm_start();
	if (vmm_drv.reserve(&v.base, nr * VMM_CHUNK_B, 0, 0, 0))
		abort();
	return v;
}

static inline struct vmm vmm_open(unsigned nr)
{
	struct vmm v = vmm_reserve(nr);

	while (v.nr_mapped < nr)
		vmm_map(&v, GX_CU_HANDLE_POSIX_FD);
	return v;
}

static inline void vmm_close(struct vmm *v)
{
	if (v->nr_mapped && vmm_drv.unmap(v->base, v->nr_mapped * VMM_CHUNK_B))
		abort();
	vmm_drv.addr_free(v->base, v->nr * VMM_CHUNK_B);
}

static inline char *vmm_at(const struct vmm *v, size_t off)
{
	return (char *)(uintptr_t)(v->base + off);
}

#endif
