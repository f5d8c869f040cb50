/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathers by the kernels that the library's own are compared with (include/gxlab/gather.h). All of
 * it is for the thread that owns the queue.
 */
#include "cuda_stream.h"
#include "gather_core.h"
#include "lab/code.h"
#include "lab/lab_fatbin.h"

#include <gx/engine.h>
#include <gxlab/gather.h>
#include <gxlab/modes.h>

#include <errno.h>

_Static_assert((int)GX_UNPACK_MODE_NONE == (int)GX_UNPACK_NONE, "the value that the library knows");

/* The kernels of gather_steps.cu, in the order of enum gx_gather_step. */
static const struct lab_image steps_image = {
	.fatbin = gx_gather_steps_fatbin,
	.nr_fns = GX_GATHER_STEP_SEQ,
	.fn = {"gx_gather_byte", "gx_gather_thread", "gx_gather_warp1", "gx_gather_warp2",
	       "gx_gather_seq"},
};

struct step {
	struct gx_gather_hook hook;
	enum gx_gather_step step;
	struct CUfunc_st *fn; /* NULL: the CPU backend, which has no kernels */
};

static int step_queue(const struct gx_gather_hook *hook, struct gx_gpu_stream *s,
		      const struct gx_gpu_gather *g, uint32_t *done, uint32_t value,
		      uint64_t now_ns)
{
	const struct step *step = GX_CONTAINER_OF(hook, struct step, hook);
	struct gx_gpu_copy all = {g->dst, g->src, (size_t)g->nr * g->row_b};

	if (step->fn)
		return cuda_gather_by(s, g, step->fn, done, value, now_ns);
	if (step->step == GX_GATHER_STEP_SEQ)
		return s->ops->copy(s, &all, 1, done, value, now_ns);
	return s->ops->gather(s, g, done, value, now_ns);
}

static int step_check(const struct gx_gather *g, enum gx_gather_step step)
{
	if (step > GX_GATHER_STEP_SEQ || g->by > GX_GATHER_BY_KERNEL) {
		gx_gpu_why_set("gather: step %u is not known, or no kernel gathers", step);
		return -EINVAL;
	}
	if (gx_gather_word((uintptr_t)g->src, (uintptr_t)g->dst, g->row_b) != 16) {
		gx_gpu_why_set("gather: for a step, addresses and rows must be multiples of 16");
		return -EINVAL;
	}
	return 0;
}

static int step_fn(struct gx_engine *e, struct step *step)
{
	struct lab_code *code = NULL;
	int ret;

	if (gx_engine_gpu(e)->device < 0)
		return 0;
	ret = lab_code_get(e, &steps_image, &code);
	if (!ret)
		step->fn = code->fn[step->step - GX_GATHER_STEP_BYTE];
	return ret;
}

int gx_gather_step(struct gx_engine_queue *q, const struct gx_gather *user,
		   enum gx_gather_step step, uint32_t *ticket)
{
	struct step own = {.hook.queue = step_queue, .step = step};
	struct gx_gather g;
	int ret;

	if (step == GX_GATHER_STEP_NONE)
		return gx_engine_gather(q, user, ticket);
	ret = gx_gpu_take("gx_gather", &g, sizeof(g), user);
	if (!ret)
		ret = step_check(&g, step);
	if (!ret)
		ret = step_fn(gx_engine_of(q), &own);
	return ret ? ret : gx_engine_gather_hook(q, &g, &own.hook, ticket);
}
