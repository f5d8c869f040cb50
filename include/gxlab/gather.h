/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps on the way to the kernel that gathers rows, to measure what each brings. They are
 * libgxlab's, which the tools and tests link; it is not installed.
 */
#ifndef GXLAB_GATHER_H
#define GXLAB_GATHER_H

#include <gx/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gx_gather_step {
	GX_GATHER_STEP_NONE,   /* none: what gx_engine_gather() does */
	GX_GATHER_STEP_BYTE,   /* a thread a row, byte by byte */
	GX_GATHER_STEP_THREAD, /* a thread a row, 16 bytes at a time */
	GX_GATHER_STEP_WARP,   /* a warp a row */
	GX_GATHER_STEP_WARP2,  /* same, two loads before the first store */
	GX_GATHER_STEP_SEQ,    /* no rows: as many contiguous bytes. The limit of the SMs */
};

/** gx_gather_step() - gx_engine_gather() by a step's kernel; @g->order has no meaning then.
 * Addresses and rows must be multiples of 16. The first call on an engine loads the kernels.
 * Return: as gx_engine_gather(); -EINVAL: there is no such step, or @g->by has no kernel;
 * -ENOMEM, -ENODEV: the kernels do not load. */
int gx_gather_step(struct gx_engine_queue *q, const struct gx_gather *g, enum gx_gather_step step,
		   uint32_t *ticket);

#ifdef __cplusplus
}
#endif

#endif
