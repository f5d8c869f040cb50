/* SPDX-License-Identifier: Apache-2.0 */
/* A function that nvcc compiles for the GPU, and the C compiler for the CPU and the tests. */
#ifndef GX_GPU_HD_H
#define GX_GPU_HD_H

#ifdef __CUDACC__
#define GX_HD __host__ __device__ static inline
#else
#define GX_HD static inline
#endif

#endif
