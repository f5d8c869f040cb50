/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common to loads and patterns on GPU and CPU: the pattern, the values of matrices, and the
 * arguments of every kernel of load.cu. Compiled for the GPU by load.cu and for the CPU by load.c
 * and the tests.
 */
#ifndef GX_GPU_LOAD_CORE_H
#define GX_GPU_LOAD_CORE_H

#include "gpu_hd.h"
#include "gx_internal/desc.h"

#define GX_LOAD_THREADS	  256
#define GX_LOAD_TILE	  64   /* rows and columns of the product that one thread block makes */
#define GX_LOAD_COLS_MAX  8192 /* of a softmax; a multiple of GX_LOAD_COLS_STEP */
#define GX_LOAD_COLS_STEP 512

/* One launch, by value. Each kernel uses the fields that it needs. */
struct gx_load_args {
	void *mem; /* fill, diff: words; softmax: rows of bf16, in place; value kernels: values */
	const void *a, *b; /* gemm: fp32, row-major, n x n */
	void *c;
	uint64_t *wrong; /* diff: wrong bytes are added */
	uint64_t n;	 /* words, values; gemm: rows; softmax: columns of a row */
	uint64_t seed;
	uint32_t grid_x, grid_y;
};

/* Word @i of the pattern @seed: splitmix64. */
GX_HD uint64_t gx_load_word(uint64_t seed, uint64_t i)
{
	uint64_t z = (seed << 40) + (i + 1) * 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

/* Element @i of the matrix @seed: a multiple of 1/8 from -1 to 1, so exact as bf16, and sums of
 * products are exact in fp32. */
GX_HD float gx_load_value(uint64_t seed, uint64_t i)
{
	return (float)(int)(gx_load_word(seed, i) % 17) / 8.0f - 1.0f;
}

/* Bytes of @a that differ from those of @b. */
GX_HD uint32_t gx_load_bytes_wrong(uint64_t a, uint64_t b)
{
	uint64_t x = a ^ b;
	uint32_t n = 0;

	for (; x; x >>= 8)
		n += (x & 255) != 0;
	return n;
}

#endif
