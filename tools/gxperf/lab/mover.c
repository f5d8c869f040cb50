// SPDX-License-Identifier: Apache-2.0
/*
 * The common part of all ways to move data, and two of them: gx's copy engine path, and its rival,
 * the driver's cuMemcpyPeerAsync (see mover.h). Main thread only.
 */
#include "gxperf/lab/mover.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static char why_text[256]; /* empty: gx_engine_why() has the reason */

const char *way_why(void)
{
	return why_text[0] ? why_text : gx_engine_why();
}

void way_why_set(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why_text, sizeof(why_text), fmt, ap);
	va_end(ap);
}

const char *way_name(const struct way *w)
{
	return w->ops->runs_command ? w->command[0] : w->ops->name;
}

int way_failed(struct way *w, const char *what, int err)
{
	report_error(w->gpus->report, "%s, %s: %s (%s)", way_name(w), what, way_why(),
		     strerror(-err));
	return PERF_FAILED;
}

/* ---- lanes ---- */

/* A kernel copies within a GPU: on a queue of its own, beside copies between GPUs. */
struct gx_engine_queue *way_queue(const struct way *w, const struct gpus_copy *c)
{
	return w->gpus->gpu[c->by].q[c->from == c->to];
}

void way_lanes(struct way *w)
{
	w->nr_lanes = 0;
	for (unsigned i = 0; i < w->nr_copies; i++) {
		struct gx_engine_queue *q = way_queue(w, &w->copy[i]);
		unsigned k = 0;

		while (k < w->nr_lanes && w->lane[k].q != q)
			k++;
		if (k == w->nr_lanes)
			w->lane[w->nr_lanes++] = (struct way_lane){.q = q};
	}
}

int way_mark(struct way *w)
{
	int ret = 0;

	for (unsigned i = 0; i < w->nr_lanes && !ret; i++)
		ret = gx_engine_call(w->lane[i].q, NULL, NULL,
				     &w->lane[i].ticket[w->posted % WAY_UNITS]);
	return ret;
}

static int lane_look(const struct way *w, struct way_lane *lane)
{
	int ret = gx_engine_poll(lane->q);

	while (!ret && lane->done < w->posted) {
		ret = gx_engine_result(lane->q, lane->ticket[lane->done % WAY_UNITS]);
		lane->done += !ret;
	}
	return ret == -EINPROGRESS ? 0 : ret;
}

int way_lanes_ended(struct way *w, uint64_t *nr)
{
	int ret = 0;

	*nr = w->posted;
	for (unsigned i = 0; i < w->nr_lanes && !ret; i++) {
		ret = lane_look(w, &w->lane[i]);
		*nr = w->lane[i].done < *nr ? w->lane[i].done : *nr;
	}
	return ret;
}

/* ---- the interface ---- */

int way_open(struct way *w)
{
	why_text[0] = '\0';
	w->posted = 0;
	w->nr_copies = 0;
	w->sms = w->ops->sms;
	if (w->ops->patterns) {
		if (!(w->ops->patterns & 1u << w->pattern)) {
			report_error(w->gpus->report, "%s does not do %s", w->ops->name,
				     gpus_pattern_text(w->pattern));
			return PERF_USAGE;
		}
		w->nr_copies = gpus_copies(w->gpus, w->pattern, w->size, w->copy);
		w->unit_b = gpus_moved(w->gpus, w->pattern, w->size) * w->batch;
		way_lanes(w);
	}
	return w->ops->open(w);
}

void way_close(struct way *w)
{
	if (w->ops)
		w->ops->close(w);
	w->ops = NULL;
}

unsigned way_depth(const struct way *w)
{
	if (w->batch > 1)
		return 2;
	return w->pattern >= GPUS_ALLGATHER && w->ops->patterns && !w->ops->in_step ? 1 : 4;
}

int way_post(struct way *w)
{
	uint64_t nr;
	int ret = way_ended(w, &nr);

	if (ret)
		return ret;
	if (w->posted - nr >= WAY_UNITS)
		return -EAGAIN;
	ret = w->ops->post(w);
	w->posted += !ret;
	return ret;
}

int way_ended(struct way *w, uint64_t *nr)
{
	return w->ops->ended(w, nr);
}

int way_wait(struct way *w)
{
	uint64_t nr = 0, start = gx_now();
	int ret;

	while (!(ret = way_ended(w, &nr)) && nr < w->posted)
		if (gx_now() - start > BENCH_WAIT_NS)
			return -ETIMEDOUT;
	return ret;
}

int way_gpus_fill(struct way *w)
{
	return gpus_fill(w->gpus, w->pattern, w->size);
}

int way_gpus_check(struct way *w, uint64_t *checked_b, uint64_t *wrong)
{
	return gpus_check(w->gpus, w->pattern, w->size, checked_b, wrong);
}

static int way_post_arg(void *arg)
{
	return way_post(arg);
}

static int way_ended_arg(void *arg, uint64_t *nr)
{
	return way_ended(arg, nr);
}

static uint64_t way_mode_arg(void *arg, enum activity_mode mode)
{
	struct way *w = arg;

	w->ops->run(w, mode);
	return w->posted;
}

struct activity way_activity(struct way *w, unsigned depth)
{
	return (struct activity){.arg = w,
				 .post = way_post_arg,
				 .ended = way_ended_arg,
				 .mode = w->ops->run ? way_mode_arg : NULL,
				 .depth = depth};
}

static int plain_open(struct way *w)
{
	return PERF_OK;
}

static void plain_close(struct way *w)
{
}

/* ---- gx: copies queued on persistent streams, by the copy engines ---- */

static struct gx_engine_piece ce_piece(const struct way *w, const struct gpus_copy *c)
{
	return (struct gx_engine_piece){gpus_dst(w->gpus, c), gpus_src(w->gpus, c), c->len};
}

/* Two GPUs: post all copies of a unit in one call. */
static int ce_post_lane(struct way *w, struct way_lane *lane)
{
	struct gx_engine_piece list[GX_ENGINE_PIECES_MAX];
	unsigned n = 0;

	for (unsigned b = 0; b < w->batch; b++)
		for (unsigned i = 0; i < w->nr_copies; i++)
			if (way_queue(w, &w->copy[i]) == lane->q)
				list[n++] = ce_piece(w, &w->copy[i]);
	return gx_engine_copies(lane->q, list, n, &lane->ticket[w->posted % WAY_UNITS]);
}

/* More GPUs: post step by step, so that no GPU begins late. */
static int ce_post_steps(struct way *w)
{
	int ret = 0;

	for (unsigned i = 0; i < w->nr_copies && !ret; i++) {
		struct gx_engine_piece one = ce_piece(w, &w->copy[i]);

		ret = gx_engine_copies(way_queue(w, &w->copy[i]), &one, 1, NULL);
	}
	return ret ? ret : way_mark(w);
}

static int ce_post(struct way *w)
{
	int ret = 0;

	if (w->batch == 1 && w->nr_lanes > 2)
		return ce_post_steps(w);
	for (unsigned k = 0; k < w->nr_lanes && !ret; k++)
		ret = ce_post_lane(w, &w->lane[k]);
	return ret;
}

#define ALL_PATTERNS ((1u << GPUS_PATTERNS) - 1)

const struct way_ops way_gx = {
	.name = "gx",
	.doc = "gx's engine: copies queued on persistent streams, by copy engines",
	.patterns = ALL_PATTERNS,
	.sms = 0,
	.open = plain_open,
	.close = plain_close,
	.post = ce_post,
	WAY_GPUS,
};

/* ---- peer: cuMemcpyPeerAsync, one call a copy on one stream a GPU ---- */

struct CUctx_st;
struct CUstream_st;

static struct {
	unsigned (*copy)(unsigned long long dst, struct CUctx_st *dst_ctx, unsigned long long src,
			 struct CUctx_st *src_ctx, size_t len, struct CUstream_st *stream);
	unsigned (*current)(struct CUctx_st **ctx);
	struct CUctx_st *ctx[GPUS_MAX];
} driver;

static int peer_context(void *arg, void *stream)
{
	return driver.current(arg) ? -EIO : 0;
}

static int peer_open(struct way *w)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (lib) {
		*(void **)&driver.copy = dlsym(lib, "cuMemcpyPeerAsync");
		*(void **)&driver.current = dlsym(lib, "cuCtxGetCurrent");
	}
	if (!lib || !driver.copy || !driver.current) {
		way_why_set("the driver has no cuMemcpyPeerAsync");
		return way_failed(w, "open", -ENOENT);
	}
	for (unsigned i = 0; i < w->gpus->n; i++) {
		int ret = gx_engine_call(w->gpus->gpu[i].q[0], peer_context, &driver.ctx[i], NULL);

		if (ret)
			return way_failed(w, "context", ret);
	}
	return PERF_OK;
}

struct peer_call {
	const struct way *w;
	const struct gpus_copy *c;
};

static int peer_copy(void *arg, void *stream)
{
	const struct peer_call *call = arg;
	const struct gpus_copy *c = call->c;
	unsigned res = driver.copy((uintptr_t)gpus_dst(call->w->gpus, c), driver.ctx[c->to],
				   (uintptr_t)gpus_src(call->w->gpus, c), driver.ctx[c->from],
				   c->len, stream);

	if (res)
		way_why_set("cuMemcpyPeerAsync: error %u", res);
	return res ? -EIO : 0;
}

static int peer_post(struct way *w)
{
	int ret = 0;

	for (unsigned b = 0; b < w->batch && !ret; b++)
		for (unsigned i = 0; i < w->nr_copies && !ret; i++) {
			struct peer_call call = {w, &w->copy[i]};

			ret = gx_engine_call(way_queue(w, &w->copy[i]), peer_copy, &call, NULL);
		}
	return ret ? ret : way_mark(w);
}

const struct way_ops way_peer = {
	.name = "peer",
	.doc = "the driver's cuMemcpyPeerAsync (cudaMemcpyPeerAsync), one stream a GPU",
	.patterns = ALL_PATTERNS,
	.sms = 0,
	.open = peer_open,
	.close = plain_close,
	.post = peer_post,
	WAY_GPUS,
};
