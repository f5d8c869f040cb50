/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU's side of every gather kernel: how it loads a word of a row, reads a pair, and ends a
 * launch. For gather.cu.
 */
#ifndef GX_GPU_GATHER_DEV_CUH
#define GX_GPU_GATHER_DEV_CUH

#include "gather_core.h"

#define ALL 0xffffffffu

static_assert(sizeof(struct gx_gather_args) == 96, "same in C and in CUDA");

/* Rows that are read once: no place in L1, first out of L2. */
__device__ static inline uint4 word_load(const uint4 *p)
{
	uint4 v;

	asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "l"(p));
	return v;
}

__device__ static inline uint32_t word_load(const uint32_t *p)
{
	uint32_t v;

	asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
	return v;
}

/*
 * Account for a thread block: its stores come before the fence, the fence before the count. Is this the
 * thread that completes the count? It has reset it, and signals the CPU. All threads call.
 */
__device__ static inline bool grid_is_last(uint32_t *counter)
{
	__threadfence();
	__syncthreads();
	if (threadIdx.x || atomicAdd(counter, 1u) + 1 != gridDim.x)
		return false;
	__threadfence();
	atomicExch(counter, 0u);
	return true;
}

__device__ static inline void grid_end(const struct gx_gather_args &a, uint32_t bad)
{
	uint32_t sum;

	bad = __reduce_add_sync(ALL, bad);
	if (bad && threadIdx.x % 32 == 0)
		atomicAdd(&a.counter[1], bad);
	if (!grid_is_last(&a.counter[0]))
		return;
	sum = atomicExch(&a.counter[1], 0u);
	*(volatile uint32_t *)a.bad = sum;
	__threadfence_system();
	*(volatile uint32_t *)a.flag = a.value;
}

/* Pairs may lie in host memory: a copy in L1 of an earlier launch is never taken. */
__device__ static inline struct gx_pair pair_load(const struct gx_gather_args &a, uint32_t i)
{
	uint2 raw = __ldcv((const uint2 *)a.pairs + i);

	return {raw.x, raw.y};
}

#endif
