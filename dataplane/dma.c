/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See dma.h. A driver call costs some 2 us and telling the end of a copy another, so ends are told
 * in groups: at once when none is awaited on that stream, else when the one before has come, or
 * DMA_TELL copies have gathered. A lone copy is told at once, a queue of them once a round trip.
 */
#include "dma.h"

#include <errno.h>
#include <stdlib.h>

#define DMA_TELL 16 /* copies that one flag tells of, at most */
#define DMA_BULK_B                                                                                 \
	(8u << 20) /* longer copies keep to the first stream, out of the way of short ones */

/* Numbers of copies are free-running. */
struct dma_stream {
	struct gx_gpu_stream *stream;
	uint32_t queued;   /* the last that was begun */
	uint32_t flagged;  /* the last whose end will be told */
	uint32_t done;	   /* the last that is known to have ended */
	uint64_t since_ns; /* when done last moved, or the first began */
};

struct dma {
	struct gx_gpu *gpu;
	uint64_t timeout_ns;
	uint32_t *flags; /* [DMA_STREAMS * DMA_FLAG_STRIDE], written by the GPU: the last that ended
			  */
	unsigned rover;
	int err;
	struct dma_stream stream[DMA_STREAMS];
};

#define DMA_FLAG_STRIDE (GX_CACHE_LINE / sizeof(uint32_t)) /* each in its own line */

static const uint32_t *flag_of(const struct dma *d, uint32_t i)
{
	return &d->flags[i * DMA_FLAG_STRIDE];
}

int dma_open(struct gx_gpu *gpu, uint64_t timeout_ns, struct dma **out)
{
	struct dma *d = calloc(1, sizeof(*d));
	int ret = 0;

	if (!d)
		return -ENOMEM;
	d->gpu = gpu;
	d->timeout_ns = timeout_ns;
	d->flags = gpu->ops->flag_alloc(gpu, DMA_STREAMS * DMA_FLAG_STRIDE);
	if (!d->flags)
		ret = -ENOMEM;
	for (unsigned i = 0; i < DMA_STREAMS && !ret; i++)
		ret = gpu->ops->stream_open(gpu, GX_STREAM_LAUNCH, &d->stream[i].stream);
	if (ret) {
		dma_close(d);
		return ret;
	}
	*out = d;
	return 0;
}

void dma_close(struct dma *d)
{
	if (!d)
		return;
	for (unsigned i = 0; i < DMA_STREAMS; i++)
		if (d->stream[i].stream)
			d->gpu->ops->stream_close(d->stream[i].stream);
	if (d->flags)
		d->gpu->ops->flag_free(d->gpu, d->flags, DMA_STREAMS * DMA_FLAG_STRIDE);
	free(d);
}

static bool stream_has_room(const struct dma_stream *s)
{
	return s->queued - s->done < DMA_OUT_MAX;
}

/* Short copies go round the streams behind the first, so that several are under way at once. */
static struct dma_stream *stream_choose(struct dma *d, uint64_t len)
{
	if (len > DMA_BULK_B)
		return stream_has_room(&d->stream[0]) ? &d->stream[0] : NULL;
	for (unsigned k = 0; k < DMA_STREAMS - 1; k++) {
		struct dma_stream *s = &d->stream[1 + d->rover];

		if (++d->rover == DMA_STREAMS - 1)
			d->rover = 0;
		if (stream_has_room(s))
			return s;
	}
	return NULL;
}

bool dma_copy(struct dma *d, void *dst, const void *src, uint64_t len, uint64_t now_ns,
	      struct dma_ticket *out)
{
	struct gx_gpu_copy copy = {dst, src, len};
	struct dma_stream *s = d->err ? NULL : stream_choose(d, len);

	if (!s || d->gpu->ops->copy(s->stream, &copy, 1, NULL, 0, now_ns))
		return false;
	if (s->queued == s->done)
		s->since_ns = now_ns;
	s->queued++;
	*out = (struct dma_ticket){.seq = s->queued, .stream = (uint32_t)(s - d->stream)};
	return true;
}

bool dma_done(const struct dma *d, struct dma_ticket t)
{
	/* Pairs with the GPU: a copy's bytes are visible before the flag that tells of it. */
	uint32_t done = __atomic_load_n(flag_of(d, t.stream), __ATOMIC_ACQUIRE);

	return (int32_t)(done - t.seq) >= 0;
}

static void stream_tell(struct dma *d, unsigned i, uint64_t now_ns)
{
	struct dma_stream *s = &d->stream[i];

	if (s->queued == s->flagged || d->err)
		return;
	if (s->flagged != s->done && s->queued - s->flagged < DMA_TELL)
		return;
	if (!d->gpu->ops->copy(s->stream, NULL, 0, &d->flags[i * DMA_FLAG_STRIDE], s->queued,
			       now_ns))
		s->flagged = s->queued;
}

static void stream_look(struct dma *d, unsigned i, uint64_t now_ns)
{
	struct dma_stream *s = &d->stream[i];
	uint32_t done = __atomic_load_n(flag_of(d, i), __ATOMIC_ACQUIRE);

	if (done != s->done)
		s->since_ns = now_ns;
	s->done = done;
}

void dma_kick(struct dma *d, uint64_t now_ns)
{
	for (unsigned i = 0; i < DMA_STREAMS; i++) {
		if (d->stream[i].queued == d->stream[i].flagged)
			continue;
		stream_look(d, i, now_ns);
		stream_tell(d, i, now_ns);
	}
}

static void stream_watch(struct dma *d, struct dma_stream *s, uint64_t now_ns)
{
	if (s->done == s->queued || d->err)
		return;
	if (d->gpu->ops->fault(s->stream))
		d->err = -EIO;
	else if (now_ns - s->since_ns > d->timeout_ns)
		d->err = -ETIMEDOUT;
}

bool dma_reap(struct dma *d, uint64_t now_ns)
{
	bool ended = false;

	for (unsigned i = 0; i < DMA_STREAMS; i++) {
		struct dma_stream *s = &d->stream[i];
		uint32_t before = s->done;

		if (s->queued == before)
			continue;
		d->gpu->ops->reap(s->stream, now_ns);
		stream_look(d, i, now_ns);
		stream_tell(d, i, now_ns);
		stream_watch(d, s, now_ns);
		ended |= s->done != before;
	}
	return ended;
}

int dma_err(const struct dma *d)
{
	return d->err;
}
