/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathers by the kernels that the library's own are compared with (include/gxlab/gather.h). The
 * thread that owns the queue.
 */
#include "gpu_priv.h"

#include <gxlab/gather.h>
#include <gxlab/modes.h>

#include <errno.h>

_Static_assert((int)GX_UNPACK_MODE_NONE == (int)GX_UNPACK_NONE, "the value that the library knows");

int gx_gather_step(struct gx_engine_queue *q, const struct gx_gather *g, enum gx_gather_step step,
		   uint32_t *ticket)
{
	static const enum gx_gather_how how[] = {
		[GX_GATHER_STEP_BYTE] = GX_GATHER_BYTE, [GX_GATHER_STEP_THREAD] = GX_GATHER_THREAD,
		[GX_GATHER_STEP_WARP] = GX_GATHER_WARP, [GX_GATHER_STEP_WARP2] = GX_GATHER_WARP2,
		[GX_GATHER_STEP_SEQ] = GX_GATHER_SEQ,
	};

	if (step == GX_GATHER_STEP_NONE)
		return gx_engine_gather(q, g, ticket);
	if (step > GX_GATHER_STEP_SEQ || g->engine > GX_ENGINE_KERNEL) {
		gx_gpu_why_set("gather: step %u is not known, or no kernel gathers", step);
		return -EINVAL;
	}
	return gx_engine_gather_how(q, g, &how[step], ticket);
}
