/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of cuBLAS that loads call, found by dlopen. Source: the cuBLAS API reference, cublas_v2
 * interface, versions 12 and 13; every function returns a cublasStatus_t, 0 is success.
 */
#ifndef GX_GPU_CUBLAS_ABI_H
#define GX_GPU_CUBLAS_ABI_H

struct CUstream_st;
struct cublasContext;

enum { GX_CUBLAS_OP_N = 0, GX_CUBLAS_OP_T = 1 };
enum { GX_CUBLAS_R_16BF = 14 };	     /* cudaDataType: CUDA_R_16BF */
enum { GX_CUBLAS_COMPUTE_32F = 68 }; /* cublasComputeType_t */
enum { GX_CUBLAS_GEMM_DEFAULT = -1 };

#define GX_CUBLAS_API(X)                                                                           \
	X(cublasCreate_v2, (struct cublasContext * *handle))                                       \
	X(cublasDestroy_v2, (struct cublasContext * handle))                                       \
	X(cublasGetVersion_v2, (struct cublasContext * handle, int *version))                      \
	X(cublasSetStream_v2, (struct cublasContext * handle, struct CUstream_st * stream))        \
	X(cublasGemmStridedBatchedEx,                                                              \
	  (struct cublasContext * handle, int trans_a, int trans_b, int m, int n, int k,           \
	   const void *alpha, const void *a, int type_a, int lda, long long stride_a,              \
	   const void *b, int type_b, int ldb, long long stride_b, const void *beta, void *c,      \
	   int type_c, int ldc, long long stride_c, int count, int compute, int algo))

struct cublas_api {
#define GX_CUBLAS_MEMBER(name, args) int(*name) args;
	GX_CUBLAS_API(GX_CUBLAS_MEMBER)
#undef GX_CUBLAS_MEMBER
};

#endif
