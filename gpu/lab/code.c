// SPDX-License-Identifier: Apache-2.0
/*
 * The kernels of load.cu on the GPU of an engine. load.c calls this from any thread, and
 * gx_engine_close().
 */
#include "lab/code.h"
#include "lab/lab_fatbin.h"

#include <gxlab/modes.h>

#include <pthread.h>
#include <stdlib.h>

_Static_assert((int)GX_UNPACK_MODE_NONE == (int)GX_UNPACK_NONE, "the value that the library knows");

static pthread_mutex_t code_lock = PTHREAD_MUTEX_INITIALIZER;

static void code_close(struct gx_engine_part *part)
{
	struct lab_code *c = GX_CONTAINER_OF(part, struct lab_code, part);
	struct cuda_prev prev;

	if (cuda_is_lost(c->g)) { /* the GPU may still run these kernels */
		c->kept = c->g->kept_code;
		c->g->kept_code = c;
		return;
	}
	prev = cuda_enter(c->g);
	if (c->module)
		cu.cuModuleUnload(c->module);
	cuda_leave(c->g, prev);
	cuda_pinned_free(&c->g->gpu, c->word);
	free(c);
}

static int code_load(struct lab_code *c)
{
	static const char *const names[] = {
		[LOAD_FILL] = "gx_load_fill",	      [LOAD_DIFF] = "gx_load_diff",
		[LOAD_VALUES16] = "gx_load_values16", [LOAD_VALUES32] = "gx_load_values32",
		[LOAD_GEMM] = "gx_load_gemm",	      [LOAD_SOFTMAX] = "gx_load_softmax"};
	int ret = cuda_load(&c->module, gx_load_fatbin);

	for (unsigned i = 0; i < LOAD_FNS && !ret; i++)
		ret = CUDA_TRY(cuModuleGetFunction, &c->fn[i], c->module, names[i]);
	if (ret)
		return ret;
	c->word = cuda_pinned_alloc(&c->g->gpu, sizeof(*c->word));
	return c->word ? 0 : -ENOMEM;
}

static int code_open(struct gx_engine *e)
{
	struct lab_code *c = calloc(1, sizeof(*c));
	struct cuda_prev prev;
	int ret;

	if (!c)
		return -ENOMEM;
	c->part.close = code_close;
	c->g = cuda_of(gx_engine_gpu(e));
	prev = cuda_enter(c->g);
	ret = code_load(c);
	cuda_leave(c->g, prev);
	if (ret)
		code_close(&c->part);
	else
		*gx_engine_part(e) = &c->part;
	return ret;
}

int lab_code_get(struct gx_engine *e, struct lab_code **out)
{
	int ret;

	pthread_mutex_lock(&code_lock);
	ret = *gx_engine_part(e) ? 0 : code_open(e);
	if (!ret)
		*out = GX_CONTAINER_OF(*gx_engine_part(e), struct lab_code, part);
	pthread_mutex_unlock(&code_lock);
	return ret;
}
