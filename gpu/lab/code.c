// SPDX-License-Identifier: Apache-2.0
/*
 * Kernels of libgxlab on the GPU of an engine. load.c calls this from any thread, and
 * gx_engine_close().
 */
#include "lab/code.h"

#include <gxlab/modes.h>

#include <pthread.h>
#include <stdlib.h>

_Static_assert((int)GX_UNPACK_MODE_NONE == (int)GX_UNPACK_NONE, "the value that the library knows");

static pthread_mutex_t code_lock = PTHREAD_MUTEX_INITIALIZER;

static struct lab_code *code_of(struct gx_engine_part *part)
{
	return GX_CONTAINER_OF(part, struct lab_code, part);
}

static void code_close(struct gx_engine_part *part)
{
	struct lab_code *c = code_of(part);
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
	cuda_pinned_free(&c->g->gpu, c->pinned);
	free(c);
}

static int code_load(struct lab_code *c)
{
	int ret = cuda_load(&c->module, c->image->fatbin);

	for (unsigned i = 0; i < c->image->nr_fns && !ret; i++)
		ret = CUDA_TRY(cuModuleGetFunction, &c->fn[i], c->module, c->image->fn[i]);
	if (ret || !c->image->pinned_b)
		return ret;
	c->pinned = cuda_pinned_alloc(&c->g->gpu, c->image->pinned_b);
	return c->pinned ? 0 : -ENOMEM;
}

static int code_open(struct gx_engine *e, const struct lab_image *image, struct lab_code **out)
{
	struct lab_code *c = calloc(1, sizeof(*c));
	struct cuda_prev prev;
	int ret;

	if (!c)
		return -ENOMEM;
	c->part.close = code_close;
	c->image = image;
	c->g = cuda_of(gx_engine_gpu(e));
	prev = cuda_enter(c->g);
	ret = code_load(c);
	cuda_leave(c->g, prev);
	if (ret)
		code_close(&c->part);
	else
		*out = c;
	return ret;
}

/* All parts of an engine are ours. */
static struct lab_code *code_find(struct gx_engine *e, const struct lab_image *image)
{
	struct gx_engine_part *part = *gx_engine_parts(e);

	while (part && code_of(part)->image != image)
		part = part->next;
	return part ? code_of(part) : NULL;
}

int lab_code_get(struct gx_engine *e, const struct lab_image *image, struct lab_code **out)
{
	struct lab_code *c;
	int ret = 0;

	pthread_mutex_lock(&code_lock);
	c = code_find(e, image);
	if (!c) {
		ret = code_open(e, image, &c);
		if (!ret) {
			c->part.next = *gx_engine_parts(e);
			*gx_engine_parts(e) = &c->part;
		}
	}
	pthread_mutex_unlock(&code_lock);
	if (!ret)
		*out = c;
	return ret;
}
