/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that the library's gather is compared with (include/gxlab/gather.h): each is one step of
 * optimisation. All but gx_gather_byte() need words of 16 bytes. lab/gather.c launches them.
 */
#include "gather_dev.cuh"

/* A thread a row, a byte at a time. */
extern "C" __global__ void __launch_bounds__(GX_GATHER_THREADS, 1)
	gx_gather_byte(const __grid_constant__ struct gx_gather_args a)
{
	uint32_t step = gridDim.x * GX_GATHER_THREADS, bad = 0;

	for (uint32_t i = blockIdx.x * GX_GATHER_THREADS + threadIdx.x; i < a.nr; i += step) {
		struct gx_pair p = pair_load(a, i);
		const volatile char *src = a.src + (uint64_t)p.src * a.row_b;
		volatile char *dst = a.dst + (uint64_t)p.dst * a.row_b;

		bad += !gx_gather_fits(&a, p);
		for (uint32_t k = 0; gx_gather_fits(&a, p) && k < a.row_b; k++)
			dst[k] = src[k];
	}
	grid_end(a, bad);
}

/* A thread a row, 16 bytes at a time. Needs 16-byte words. */
extern "C" __global__ void __launch_bounds__(GX_GATHER_THREADS, 1)
	gx_gather_thread(const __grid_constant__ struct gx_gather_args a)
{
	uint32_t step = gridDim.x * GX_GATHER_THREADS, bad = 0;

	for (uint32_t i = blockIdx.x * GX_GATHER_THREADS + threadIdx.x; i < a.nr; i += step) {
		struct gx_pair p = pair_load(a, i);
		const uint4 *src = (const uint4 *)(a.src + (uint64_t)p.src * a.row_b);
		uint4 *dst = (uint4 *)(a.dst + (uint64_t)p.dst * a.row_b);

		bad += !gx_gather_fits(&a, p);
		for (uint32_t k = 0; gx_gather_fits(&a, p) && k < a.row_b / 16; k++)
			dst[k] = src[k];
	}
	grid_end(a, bad);
}

/* A warp a row; LOADS words of a lane are loaded before they are stored. */
template <int LOADS> __device__ static void warp_run(const struct gx_gather_args &a)
{
	uint32_t lane = threadIdx.x % 32, step = gridDim.x * GX_GATHER_WARPS, bad = 0;

	for (uint32_t i = threadIdx.x / 32 * gridDim.x + blockIdx.x; i < a.nr; i += step) {
		struct gx_pair p = pair_load(a, i);
		const uint4 *src = (const uint4 *)(a.src + (uint64_t)p.src * a.row_b);
		uint4 *dst = (uint4 *)(a.dst + (uint64_t)p.dst * a.row_b);
		uint32_t words = gx_gather_fits(&a, p) ? a.row_b / 16 : 0;

		bad += !words && lane == 0;
		for (uint32_t at = lane; at < words; at += 32 * LOADS) {
			uint4 v[LOADS];

#pragma unroll
			for (int k = 0; k < LOADS; k++)
				if (at + 32 * k < words)
					v[k] = __ldcs(src + at + 32 * k);
#pragma unroll
			for (int k = 0; k < LOADS; k++)
				if (at + 32 * k < words)
					dst[at + 32 * k] = v[k];
		}
	}
	grid_end(a, bad);
}

extern "C" __global__ void __launch_bounds__(GX_GATHER_THREADS, 1)
	gx_gather_warp1(const __grid_constant__ struct gx_gather_args a)
{
	warp_run<1>(a);
}

extern "C" __global__ void __launch_bounds__(GX_GATHER_THREADS, 1)
	gx_gather_warp2(const __grid_constant__ struct gx_gather_args a)
{
	warp_run<2>(a);
}

/* No rows: the same number of bytes, contiguous. The limit of the SMs. */
extern "C" __global__ void __launch_bounds__(GX_GATHER_THREADS, 1)
	gx_gather_seq(const __grid_constant__ struct gx_gather_args a)
{
	constexpr int RUN = 4;
	uint64_t words = (uint64_t)a.nr * a.row_b / 16;
	uint64_t step = (uint64_t)gridDim.x * GX_GATHER_THREADS;
	uint64_t at = blockIdx.x * (uint64_t)GX_GATHER_THREADS + threadIdx.x;

	for (; at < words; at += RUN * step) {
		uint4 v[RUN];

#pragma unroll
		for (int k = 0; k < RUN; k++)
			if (at + k * step < words)
				v[k] = word_load((const uint4 *)a.src + at + k * step);
#pragma unroll
		for (int k = 0; k < RUN; k++)
			if (at + k * step < words)
				__stcs((uint4 *)a.dst + at + k * step, v[k]);
	}
	grid_end(a, 0);
}
