/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of libgxlab on the GPU of an engine: loaded when a program first asks for them, unloaded
 * when the engine closes. For load.c; any thread.
 */
#ifndef GX_GPU_LAB_CODE_H
#define GX_GPU_LAB_CODE_H

#include "cuda_priv.h"

enum { LOAD_FILL, LOAD_DIFF, LOAD_VALUES16, LOAD_VALUES32, LOAD_GEMM, LOAD_SOFTMAX, LOAD_FNS };

/* Frozen once it is loaded. */
struct lab_code {
	struct gx_engine_part part;
	struct cuda_gpu *g;
	struct CUmod_st *module;
	struct CUfunc_st *fn[LOAD_FNS];
	uint64_t *
		word; /* pinned: the bytes that a comparison counts; an element of a result. Its users lock */
	struct lab_code *kept; /* in the list of those that a GPU may still run */
};

/** lab_code_get() - Those on the GPU of @e, an engine of the CUDA backend. Return: 0, -ENOMEM,
 * -ENODEV with the reason. */
int lab_code_get(struct gx_engine *e, struct lab_code **out);

#endif
