/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contiguous read that gathers are compared with (include/gxlab/gather.h). All of it is for
 * the thread that owns the queue.
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

static const struct lab_image seq_image = {
	.fatbin = gx_gather_seq_fatbin,
	.nr_fns = 1,
	.fn = {"gx_gather_seq"},
};

struct seq {
	struct gx_gather_hook hook;
	struct CUfunc_st *fn; /* NULL: the CPU backend, which has no kernels */
};

static int seq_queue(const struct gx_gather_hook *hook, struct gx_gpu_stream *s,
		     const struct gx_gpu_gather *g, uint32_t *done, uint32_t value, uint64_t now_ns)
{
	const struct seq *seq = GX_CONTAINER_OF(hook, struct seq, hook);
	struct gx_gpu_copy all = {g->dst, g->src, (size_t)g->nr * g->row_b};

	if (seq->fn)
		return cuda_gather_by(s, g, seq->fn, done, value, now_ns);
	return s->ops->copy(s, &all, 1, done, value, now_ns);
}

static int seq_check(const struct gx_gather *g)
{
	if (g->by <= GX_GATHER_BY_KERNEL &&
	    gx_gather_word((uintptr_t)g->src, (uintptr_t)g->dst, g->row_b) == 16)
		return 0;
	gx_gpu_why_set(
		"gather: contiguous, by a kernel alone; addresses and rows are multiples of 16");
	return -EINVAL;
}

int gx_gather_seq(struct gx_engine_queue *q, const struct gx_gather *user, uint32_t *ticket)
{
	struct seq own = {.hook.queue = seq_queue};
	struct gx_engine *e = gx_engine_of(q);
	struct lab_code *code = NULL;
	struct gx_gather g;
	int ret = gx_gpu_take("gx_gather", &g, sizeof(g), user);

	if (!ret)
		ret = seq_check(&g);
	if (!ret && gx_engine_gpu(e)->device >= 0) {
		ret = lab_code_get(e, &seq_image, &code);
		own.fn = ret ? NULL : code->fn[0];
	}
	return ret ? ret : gx_engine_gather_hook(q, &g, &own.hook, ticket);
}
