/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dma.c over the CPU backend, whose copies finish late: two ranges of memory, and the table of its
 * streams, which a test may change.
 */
#ifndef DMA_RIG_H
#define DMA_RIG_H

#include "copy/dma.h"
#include "gpu/late_gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define DELAY	1000u
#define TIMEOUT 1000000u

struct rig {
	struct gx_gpu *gpu;
	struct gx_gpu_stream_ops stream;
	struct dma *d;
	uint8_t *src, *dst;
	uint32_t *rows; /* the test's; of malloc() */
};

static inline struct rig *rig_open(size_t len, enum dma_by by)
{
	struct rig *r = calloc(1, sizeof(*r));

	r->src = malloc(len);
	r->dst = calloc(1, len);
	for (size_t i = 0; i < len; i++)
		r->src[i] = (uint8_t)(i * 7 + i / 256 + 1);
	assert_int_equal(late_gpu_open(DELAY, &r->gpu), 0);
	r->stream = *r->gpu->stream;
	r->gpu->stream = &r->stream;
	assert_int_equal(dma_open(r->gpu, by, TIMEOUT, &r->d), 0);
	return r;
}

static inline int teardown(void **state)
{
	struct rig *r = *state;

	dma_close(r->d);
	gx_gpu_host_ops.close(r->gpu);
	free(r->src);
	free(r->dst);
	free(r->rows);
	free(r);
	return 0;
}

#endif
