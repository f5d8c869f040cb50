/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcublas.so.13 for tests on machines without a GPU: the one product that loads use, in plain
 * C, in the order of the stream of fake_cuda.c. GX_FAKE_CUBLAS_LAZY: products are not made, which a
 * check must see.
 */
#include "lab/cublas_abi.h"
#include "gx_internal/base.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FAKE __attribute__((visibility("default")))

struct cublasContext {
	struct CUstream_st *stream;
};

/* fake_cuda.c's. */
unsigned cuLaunchHostFunc(struct CUstream_st *stream, void (*fn)(void *arg), void *arg);

#define FAKE_PROTOTYPE(name, args) int name args;
GX_CUBLAS_API(FAKE_PROTOTYPE)

struct product {
	int turned_a, turned_b, m, n, k, lda, ldb, ldc, count;
	long long stride_a, stride_b, stride_c;
	const uint16_t *a, *b;
	uint16_t *c;
	float alpha;
};

static float bf16_get(uint16_t b)
{
	uint32_t u = (uint32_t)b << 16;
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

static uint16_t bf16_of(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float element(const uint16_t *mat, int turned, int ld, int row, int col)
{
	return bf16_get(turned ? mat[(long long)row * ld + col] : mat[(long long)col * ld + row]);
}

static void product_run(void *arg)
{
	struct product *p = arg;

	for (int i = 0; i < p->count && !getenv("GX_FAKE_CUBLAS_LAZY"); i++)
		for (int col = 0; col < p->n; col++)
			for (int row = 0; row < p->m; row++) {
				const uint16_t *a = p->a + i * p->stride_a;
				const uint16_t *b = p->b + i * p->stride_b;
				float sum = 0;

				for (int k = 0; k < p->k; k++)
					sum += element(a, p->turned_a, p->lda, row, k) *
					       element(b, p->turned_b, p->ldb, k, col);
				p->c[i * p->stride_c + (long long)col * p->ldc + row] =
					bf16_of(p->alpha * sum);
			}
	free(p);
}

FAKE int cublasCreate_v2(struct cublasContext **handle)
{
	*handle = calloc(1, sizeof(**handle));
	return *handle ? 0 : 3;
}

FAKE int cublasDestroy_v2(struct cublasContext *handle)
{
	free(handle);
	return 0;
}

FAKE int cublasGetVersion_v2(struct cublasContext *handle, int *version)
{
	*version = 130000;
	return 0;
}

FAKE int cublasSetStream_v2(struct cublasContext *handle, struct CUstream_st *stream)
{
	handle->stream = stream;
	return 0;
}

FAKE int cublasGemmStridedBatchedEx(struct cublasContext *handle, int trans_a, int trans_b, int m,
				    int n, int k, const void *alpha, const void *a, int type_a,
				    int lda, long long stride_a, const void *b, int type_b, int ldb,
				    long long stride_b, const void *beta, void *c, int type_c,
				    int ldc, long long stride_c, int count, int compute, int algo)
{
	struct product p = {trans_a, trans_b,  m,	 n,	   k, lda, ldb, ldc,
			    count,   stride_a, stride_b, stride_c, a, b,   c,	0};
	struct product *job = malloc(sizeof(*job));

	memcpy(&p.alpha, alpha, sizeof(p.alpha));
	if (!job || type_a != GX_CUBLAS_R_16BF || type_b != GX_CUBLAS_R_16BF ||
	    type_c != GX_CUBLAS_R_16BF || compute != GX_CUBLAS_COMPUTE_32F) {
		free(job);
		return 7;
	}
	*job = p;
	return cuLaunchHostFunc(handle->stream, product_run, job) ? 13 : 0;
}
