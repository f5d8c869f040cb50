/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU that copies nothing: each block that it is given is done at once. For what a core alone pays
 * for a fragment.
 */
#ifndef BENCH_NONE_GPU_H
#define BENCH_NONE_GPU_H

#include "copy/block.h"

#include <stdlib.h>

static unsigned none_unpack(struct gx_gpu_stream *s, struct gx_block *const blocks[], unsigned n,
			    uint64_t now_ns)
{
	for (unsigned i = 0; i < n; i++)
		__atomic_store_n(blocks[i]->status, GX_BLOCK_OK, __ATOMIC_RELEASE);
	return n;
}

static const struct gx_gpu_stream_ops *host_stream;
static struct gx_gpu_stream_ops none_stream;

static int none_open(struct gx_gpu *gpu, enum gx_stream_kind kind, struct gx_gpu_stream **out)
{
	int ret = host_stream->open(gpu, kind, out);

	if (!ret)
		(*out)->ops = &none_stream;
	return ret;
}

static struct gx_gpu *none_gpu(void)
{
	struct gx_gpu_cfg cfg = {0};
	struct gx_gpu *gpu;

	if (gx_gpu_host_ops.open(&cfg, &gpu))
		abort();
	host_stream = gpu->stream;
	none_stream = *host_stream;
	none_stream.open = none_open;
	none_stream.unpack = none_unpack;
	gpu->stream = &none_stream;
	return gpu;
}

#endif
