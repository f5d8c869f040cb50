// SPDX-License-Identifier: Apache-2.0
#include "gpu/late_gpu.h"

#include "gpu_priv.h"
#include "gx_internal/base.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define LATE_MAX 1024 /* things that a stream holds; power of two */

/* The host's, which that backend frees by its first field. */
struct late_gpu {
	struct gx_gpu gpu;
	uint64_t delay_ns;
};

/* A block, a copy or a gather, and then a flag, each if it is there. */
struct late_work {
	uint64_t due_ns;
	bool is_block, is_gather;
	struct gx_block block;
	struct gx_gpu_copy copy;
	struct gx_gpu_gather gather;
	uint32_t *done, value;
};

struct late_stream {
	struct gx_gpu_stream stream;
	struct gx_gpu_stream *host;
	uint32_t head, tail; /* of work, free-running */
	struct late_work work[LATE_MAX];
};

uint64_t late_gpu_ns;
static const struct gx_gpu_stream_ops *host_ops;

static struct late_stream *late_of(struct gx_gpu_stream *s)
{
	return GX_CONTAINER_OF(s, struct late_stream, stream);
}

static struct late_work *work_add(struct late_stream *s, uint64_t now_ns)
{
	struct late_work *w = &s->work[s->head++ % LATE_MAX];
	uint64_t delay_ns = GX_CONTAINER_OF(s->stream.gpu, struct late_gpu, gpu)->delay_ns;

	*w = (struct late_work){.due_ns = now_ns + delay_ns};
	return w;
}

static bool work_fits(const struct late_stream *s, unsigned n)
{
	return n <= LATE_MAX - (s->head - s->tail);
}

static void work_run(struct late_stream *s, struct late_work *w)
{
	struct gx_block *block = &w->block;

	if (w->is_block)
		host_ops->unpack(s->host, &block, 1, w->due_ns);
	else if (w->is_gather)
		host_ops->gather(s->host, &w->gather, w->done, w->value, w->due_ns);
	else
		host_ops->copy(s->host, &w->copy, w->copy.len != 0, w->done, w->value, w->due_ns);
}

static bool late_reap(struct gx_gpu_stream *stream, uint64_t now_ns)
{
	struct late_stream *s = late_of(stream);
	bool worked = false;

	for (; s->tail != s->head && s->work[s->tail % LATE_MAX].due_ns <= now_ns; s->tail++) {
		work_run(s, &s->work[s->tail % LATE_MAX]);
		worked = true;
	}
	return worked;
}

static int late_open_stream(struct gx_gpu *gpu, enum gx_stream_kind kind,
			    struct gx_gpu_stream **out)
{
	struct late_stream *s = calloc(1, sizeof(*s));

	if (!s || host_ops->open(gpu, kind, &s->host)) {
		free(s);
		return -ENOMEM;
	}
	s->stream.ops = gpu->stream;
	s->stream.gpu = gpu;
	*out = &s->stream;
	return 0;
}

/* Work that is under way is finished first, as on a GPU: afterwards nothing touches the buffers. */
static bool late_close_stream(struct gx_gpu_stream *stream)
{
	late_reap(stream, UINT64_MAX);
	host_ops->close(late_of(stream)->host);
	free(late_of(stream));
	return true;
}

static unsigned late_unpack(struct gx_gpu_stream *stream, struct gx_block *const blocks[],
			    unsigned n, uint64_t now_ns)
{
	struct late_stream *s = late_of(stream);

	n = GX_MIN(n, GX_UNPACK_BLOCKS_MAX);
	for (unsigned i = 0; i < n; i++) {
		struct late_work *w;

		assert(blocks[i]->nr <= GX_BLOCK_DESCS_MAX);
		if (!work_fits(s, 1))
			return i;
		w = work_add(s, now_ns);
		w->is_block = true;
		w->block = *blocks[i];
		gx_block_status_set(blocks[i], GX_BLOCK_PENDING);
	}
	return n;
}

static int late_copy(struct gx_gpu_stream *stream, const struct gx_gpu_copy list[], unsigned n,
		     uint32_t *done, uint32_t value, uint64_t now_ns)
{
	struct late_stream *s = late_of(stream);
	struct late_work *w;

	assert(n < LATE_MAX);
	if (!work_fits(s, n + 1))
		return -EAGAIN;
	for (unsigned i = 0; i < n; i++)
		work_add(s, now_ns)->copy = list[i];
	if (!done)
		return 0;
	w = work_add(s, now_ns);
	w->done = done;
	w->value = value;
	return 0;
}

static int late_gather(struct gx_gpu_stream *stream, const struct gx_gpu_gather *g, uint32_t *done,
		       uint32_t value, uint64_t now_ns)
{
	struct late_stream *s = late_of(stream);
	struct late_work *w;

	if (!work_fits(s, 2))
		return -EAGAIN;
	w = work_add(s, now_ns);
	w->is_gather = true;
	w->gather = *g;
	w->done = done;
	w->value = value;
	return 0;
}

/* Queued work is finished first: @fn sees its results. */
static int late_call(struct gx_gpu_stream *stream, int (*fn)(void *arg, void *stream), void *arg,
		     uint32_t *done, uint32_t value, uint64_t now_ns)
{
	int ret;

	late_reap(stream, UINT64_MAX);
	ret = fn ? fn(arg, NULL) : 0;
	return ret || !done ? ret : late_copy(stream, NULL, 0, done, value, now_ns);
}

static int late_fault(struct gx_gpu_stream *s)
{
	return 0;
}

static const struct gx_gpu_stream_ops late_stream_ops = {
	.open = late_open_stream,
	.close = late_close_stream,
	.unpack = late_unpack,
	.copy = late_copy,
	.gather = late_gather,
	.call = late_call,
	.reap = late_reap,
	.fault = late_fault,
};

static int late_open(const struct gx_gpu_cfg *cfg, struct gx_gpu **out)
{
	struct late_gpu *l;
	struct gx_gpu *host;
	int ret = gx_gpu_host_ops.open(cfg, &host);

	if (ret || !late_gpu_ns) {
		*out = host;
		return ret;
	}
	l = malloc(sizeof(*l));
	*l = (struct late_gpu){*host, late_gpu_ns};
	host_ops = host->stream;
	gx_gpu_host_ops.close(host);
	l->gpu.stream = &late_stream_ops;
	*out = &l->gpu;
	return 0;
}

int late_gpu_open(uint64_t delay_ns, struct gx_gpu **out)
{
	uint64_t was = late_gpu_ns;
	int ret;

	late_gpu_ns = delay_ns;
	ret = late_open(&(struct gx_gpu_cfg){0}, out);
	late_gpu_ns = was;
	return ret;
}

const struct gx_gpu_ops late_gpu_ops = {.name = "late", .open = late_open};
