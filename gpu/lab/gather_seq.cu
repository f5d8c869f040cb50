/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel that gathers are compared with (include/gxlab/gather.h): no rows, as many contiguous
 * bytes. Needs words of 16 bytes. lab/gather.c launches it.
 */
#include "gather_dev.cuh"

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
