/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of libgxlab on the GPU of an engine: loaded when a program first asks for them, unloaded
 * when the engine closes. For load.c and gather.c; any thread.
 */
#ifndef GX_GPU_LAB_CODE_H
#define GX_GPU_LAB_CODE_H

#include "cuda_priv.h"

#define LAB_FNS_MAX 8

/* A fat binary of ours, and the kernels that are wanted of it. */
struct lab_image {
	const unsigned char *fatbin;
	unsigned nr_fns;
	const char *fn[LAB_FNS_MAX];
	size_t pinned_b; /* of lab_code.pinned; 0: none */
};

/* An image on one engine's GPU. Frozen once it is loaded, but for the lists that it is in. */
struct lab_code {
	struct gx_engine_part part;
	const struct lab_image *image;
	struct cuda_gpu *g;
	struct CUmod_st *module;
	struct CUfunc_st *fn[LAB_FNS_MAX]; /* in the order of image->fn */
	void *pinned;			   /* zeroed at first; its users lock */
	struct lab_code *kept;		   /* in the list of images that a GPU may still run */
};

/** lab_code_get() - @image on the GPU of @e, an engine of the CUDA backend. Return: 0, -ENOMEM,
 * -ENODEV with the reason. */
int lab_code_get(struct gx_engine *e, const struct lab_image *image, struct lab_code **out);

#endif
