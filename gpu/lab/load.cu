/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of load.c: patterns that are written and compared in the memory where payload lies, and
 * computations that keep a GPU busy during communication.
 */
#include "load_core.h"

#include <cuda_bf16.h>

#define STRIDE_LOOP(i, n)                                                                          \
	for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < (n);                \
	     i += (uint64_t)gridDim.x * blockDim.x)

static_assert(sizeof(struct gx_load_args) == 64, "same in C and in CUDA");

extern "C" __global__ void __launch_bounds__(GX_LOAD_THREADS) gx_load_fill(struct gx_load_args a)
{
	STRIDE_LOOP(i, a.n)
	((uint64_t *)a.mem)[i] = gx_load_word(a.seed, i);
}

extern "C" __global__ void __launch_bounds__(GX_LOAD_THREADS) gx_load_diff(struct gx_load_args a)
{
	unsigned wrong = 0;

	STRIDE_LOOP(i, a.n)
	wrong += gx_load_bytes_wrong(((const uint64_t *)a.mem)[i], gx_load_word(a.seed, i));
	wrong = __reduce_add_sync(0xffffffffu, wrong);
	if (threadIdx.x % 32 == 0 && wrong)
		atomicAdd((unsigned long long *)a.wrong, (unsigned long long)wrong);
}

/*
 * For tests of other work when most SMs are taken. Each thread block says that it has begun, in
 * mem[], and holds its SM until *wrong is not 0, or n ns are over. An SM has one, if the launch
 * gives it all shared memory that a thread block can have.
 */
extern "C" __global__ void __launch_bounds__(GX_LOAD_THREADS) gx_load_hold(struct gx_load_args a)
{
	uint64_t begin, now;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
	if (threadIdx.x == 0) {
		((volatile uint32_t *)a.mem)[blockIdx.x] = 1;
		do
			asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
		while (*(volatile uint32_t *)a.wrong == 0 && now - begin < a.n);
	}
	__syncthreads();
}

extern "C" __global__ void __launch_bounds__(GX_LOAD_THREADS)
	gx_load_values16(struct gx_load_args a)
{
	STRIDE_LOOP(i, a.n)
	((__nv_bfloat16 *)a.mem)[i] = __float2bfloat16(gx_load_value(a.seed, i));
}

extern "C" __global__ void __launch_bounds__(GX_LOAD_THREADS)
	gx_load_values32(struct gx_load_args a)
{
	STRIDE_LOOP(i, a.n)
	((float *)a.mem)[i] = gx_load_value(a.seed, i);
}

/*
 * Block (x, y) makes tile (x, y) of C = A B. The grid decides how many tiles are made, so how much
 * of the GPU is taken. 16 x 16 threads with 4 x 4 elements each.
 */
#define STEP 16

extern "C" __global__ void __launch_bounds__(GX_LOAD_THREADS) gx_load_gemm(struct gx_load_args args)
{
	__shared__ float sa[STEP][GX_LOAD_TILE + 4], sb[STEP][GX_LOAD_TILE + 4];
	const uint64_t n = args.n, row0 = (uint64_t)blockIdx.y * GX_LOAD_TILE,
		       col0 = (uint64_t)blockIdx.x * GX_LOAD_TILE;
	const unsigned t = threadIdx.x, tx = t % 16, ty = t / 16;
	const float *a = (const float *)args.a + (row0 + t / 4) * n + t % 4 * 4;
	const float *b = (const float *)args.b + t / 16 * n + col0 + t % 16 * 4;
	float sum[4][4] = {};

	for (uint64_t k0 = 0; k0 < n; k0 += STEP) {
		float4 va = *(const float4 *)(a + k0), vb = *(const float4 *)(b + k0 * n);

		__syncthreads();
		sa[t % 4 * 4 + 0][t / 4] = va.x;
		sa[t % 4 * 4 + 1][t / 4] = va.y;
		sa[t % 4 * 4 + 2][t / 4] = va.z;
		sa[t % 4 * 4 + 3][t / 4] = va.w;
		*(float4 *)&sb[t / 16][t % 16 * 4] = vb;
		__syncthreads();
#pragma unroll
		for (unsigned k = 0; k < STEP; k++) {
			float4 x = *(float4 *)&sa[k][ty * 4], y = *(float4 *)&sb[k][tx * 4];
			float p[4] = {x.x, x.y, x.z, x.w}, q[4] = {y.x, y.y, y.z, y.w};

#pragma unroll
			for (unsigned i = 0; i < 4; i++)
#pragma unroll
				for (unsigned j = 0; j < 4; j++)
					sum[i][j] += p[i] * q[j];
		}
	}
	for (unsigned i = 0; i < 4; i++)
		*(float4 *)((float *)args.c + (row0 + ty * 4 + i) * n + col0 + tx * 4) =
			make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
}

/* The sum or the largest of @v over a thread block. Not static: nvcc would name it after its
 * folder. */
template <bool largest> __device__ float block_reduce(float v)
{
	__shared__ float part[GX_LOAD_THREADS / 32];
	float all;

	for (unsigned d = 16; d; d /= 2) {
		float other = __shfl_xor_sync(0xffffffffu, v, d);

		v = largest ? fmaxf(v, other) : v + other;
	}
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = v;
	__syncthreads();
	all = part[0];
	for (unsigned i = 1; i < GX_LOAD_THREADS / 32; i++)
		all = largest ? fmaxf(all, part[i]) : all + part[i];
	return all;
}

/* One row of bf16 a thread block, in place; a thread keeps its elements in registers. */
extern "C" __global__ void __launch_bounds__(GX_LOAD_THREADS)
	gx_load_softmax(struct gx_load_args args)
{
	constexpr unsigned pairs = GX_LOAD_COLS_MAX / GX_LOAD_THREADS / 2;
	__nv_bfloat162 *row = (__nv_bfloat162 *)args.mem + (uint64_t)blockIdx.x * (args.n / 2);
	float2 v[pairs];
	float top = -3.4e38f, sum = 0;

#pragma unroll
	for (unsigned i = 0; i < pairs; i++) {
		unsigned at = i * GX_LOAD_THREADS + threadIdx.x;

		v[i] = at < args.n / 2 ? __bfloat1622float2(row[at])
				       : make_float2(-3.4e38f, -3.4e38f);
		top = fmaxf(top, fmaxf(v[i].x, v[i].y));
	}
	top = block_reduce<true>(top);
#pragma unroll
	for (unsigned i = 0; i < pairs; i++) {
		v[i].x = __expf(v[i].x - top);
		v[i].y = __expf(v[i].y - top);
		sum += v[i].x + v[i].y;
	}
	sum = 1.0f / block_reduce<false>(sum);
#pragma unroll
	for (unsigned i = 0; i < pairs; i++) {
		unsigned at = i * GX_LOAD_THREADS + threadIdx.x;

		if (at < args.n / 2)
			row[at] = __floats2bfloat162_rn(v[i].x * sum, v[i].y * sum);
	}
}
