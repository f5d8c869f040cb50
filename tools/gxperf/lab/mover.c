// SPDX-License-Identifier: Apache-2.0
/*
 * The common part of all movers, and two of them: gx's copy engine path, and its rival,
 * the driver's cuMemcpyPeerAsync (see mover.h). Main thread only.
 */
#include "gxperf/lab/mover.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static char why_text[256]; /* empty: gx_engine_why() has the reason */

const char *mover_why(void)
{
	return why_text[0] ? why_text : gx_engine_why();
}

void mover_why_set(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why_text, sizeof(why_text), fmt, ap);
	va_end(ap);
}

const char *mover_name(const struct mover *m)
{
	return m->ops->runs_command ? m->command[0] : m->ops->name;
}

int mover_failed(struct mover *m, const char *what, int err)
{
	report_error(m->gpus->report, "%s, %s: %s (%s)", mover_name(m), what, mover_why(),
		     strerror(-err));
	return PERF_FAILED;
}

/* ---- lanes ---- */

/* A kernel copies within a GPU: on a queue of its own, at the time of copies between GPUs. */
struct gx_engine_queue *mover_queue(const struct mover *m, const struct gpus_copy *c)
{
	return m->gpus->gpu[c->by].q[c->from == c->to];
}

void mover_lanes(struct mover *m)
{
	m->nr_lanes = 0;
	for (unsigned i = 0; i < m->nr_copies; i++) {
		struct gx_engine_queue *q = mover_queue(m, &m->copy[i]);
		unsigned k = 0;

		while (k < m->nr_lanes && m->lane[k].q != q)
			k++;
		if (k == m->nr_lanes)
			m->lane[m->nr_lanes++] = (struct mover_lane){.q = q};
	}
}

int mover_mark(struct mover *m)
{
	int ret = 0;

	for (unsigned i = 0; i < m->nr_lanes && !ret; i++)
		ret = gx_engine_call(m->lane[i].q, NULL, NULL,
				     &m->lane[i].ticket[m->posted % MOVER_UNITS]);
	return ret;
}

static int lane_look(const struct mover *m, struct mover_lane *lane)
{
	int ret = gx_engine_poll(lane->q);

	while (!ret && lane->done < m->posted) {
		ret = gx_engine_result(lane->q, lane->ticket[lane->done % MOVER_UNITS]);
		lane->done += !ret;
	}
	return ret == -EINPROGRESS ? 0 : ret;
}

int mover_lanes_ended(struct mover *m, uint64_t *nr)
{
	int ret = 0;

	*nr = m->posted;
	for (unsigned i = 0; i < m->nr_lanes && !ret; i++) {
		ret = lane_look(m, &m->lane[i]);
		*nr = m->lane[i].done < *nr ? m->lane[i].done : *nr;
	}
	return ret;
}

/* ---- the interface ---- */

int mover_open(struct mover *m)
{
	why_text[0] = '\0';
	m->posted = 0;
	m->nr_copies = 0;
	m->sms = m->ops->sms;
	if (m->ops->patterns) {
		if (!(m->ops->patterns & 1u << m->pattern)) {
			report_error(m->gpus->report, "%s does not do %s", m->ops->name,
				     gpus_pattern_text(m->pattern));
			return PERF_USAGE;
		}
		m->nr_copies = gpus_copies(m->gpus, m->pattern, m->size, m->copy);
		m->unit_b = gpus_moved(m->gpus, m->pattern, m->size) * m->batch;
		mover_lanes(m);
	}
	return m->ops->open(m);
}

void mover_close(struct mover *m)
{
	if (m->ops)
		m->ops->close(m);
	m->ops = NULL;
}

unsigned mover_depth(const struct mover *m)
{
	if (m->batch > 1)
		return 2;
	return m->pattern >= GPUS_ALLGATHER && m->ops->patterns && !m->ops->in_step ? 1 : 4;
}

int mover_post(struct mover *m)
{
	uint64_t nr;
	int ret = mover_ended(m, &nr);

	if (ret)
		return ret;
	if (m->posted - nr >= MOVER_UNITS)
		return -EAGAIN;
	ret = m->ops->post(m);
	m->posted += !ret;
	return ret;
}

int mover_ended(struct mover *m, uint64_t *nr)
{
	return m->ops->ended(m, nr);
}

int mover_wait(struct mover *m)
{
	uint64_t nr = 0, start = gx_now();
	int ret;

	while (!(ret = mover_ended(m, &nr)) && nr < m->posted)
		if (gx_now() - start > BENCH_WAIT_NS)
			return -ETIMEDOUT;
	return ret;
}

int mover_gpus_fill(struct mover *m)
{
	return gpus_fill(m->gpus, m->pattern, m->size);
}

int mover_gpus_check(struct mover *m, uint64_t *checked_b, uint64_t *wrong)
{
	return gpus_check(m->gpus, m->pattern, m->size, checked_b, wrong);
}

static int mover_post_arg(void *arg)
{
	return mover_post(arg);
}

static int mover_ended_arg(void *arg, uint64_t *nr)
{
	return mover_ended(arg, nr);
}

static uint64_t mover_mode_arg(void *arg, enum activity_mode mode)
{
	struct mover *m = arg;

	m->ops->run(m, mode);
	return m->posted;
}

struct activity mover_activity(struct mover *m, unsigned depth)
{
	return (struct activity){.arg = m,
				 .post = mover_post_arg,
				 .ended = mover_ended_arg,
				 .mode = m->ops->run ? mover_mode_arg : NULL,
				 .depth = depth};
}

static int plain_open(struct mover *m)
{
	return PERF_OK;
}

static void plain_close(struct mover *m)
{
}

/* ---- gx: copies queued on persistent streams, by the copy engines ---- */

static struct gx_engine_piece ce_piece(const struct mover *m, const struct gpus_copy *c)
{
	return (struct gx_engine_piece){gpus_dst(m->gpus, c), gpus_src(m->gpus, c), c->len};
}

/* Two GPUs: post all copies of a unit in one call. */
static int ce_post_lane(struct mover *m, struct mover_lane *lane)
{
	struct gx_engine_piece list[GX_ENGINE_PIECES_MAX];
	unsigned n = 0;

	for (unsigned b = 0; b < m->batch; b++)
		for (unsigned i = 0; i < m->nr_copies; i++)
			if (mover_queue(m, &m->copy[i]) == lane->q)
				list[n++] = ce_piece(m, &m->copy[i]);
	return gx_engine_copies(lane->q, list, n, &lane->ticket[m->posted % MOVER_UNITS]);
}

/* More GPUs: post step by step, so that no GPU begins late. */
static int ce_post_steps(struct mover *m)
{
	int ret = 0;

	for (unsigned i = 0; i < m->nr_copies && !ret; i++) {
		struct gx_engine_piece one = ce_piece(m, &m->copy[i]);

		ret = gx_engine_copies(mover_queue(m, &m->copy[i]), &one, 1, NULL);
	}
	return ret ? ret : mover_mark(m);
}

static int ce_post(struct mover *m)
{
	int ret = 0;

	if (m->batch == 1 && m->nr_lanes > 2)
		return ce_post_steps(m);
	for (unsigned k = 0; k < m->nr_lanes && !ret; k++)
		ret = ce_post_lane(m, &m->lane[k]);
	return ret;
}

#define ALL_PATTERNS ((1u << GPUS_PATTERNS) - 1)

const struct mover_ops mover_gx = {
	.name = "gx",
	.doc = "gx's engine: copies queued on persistent streams, by copy engines",
	.patterns = ALL_PATTERNS,
	.sms = 0,
	.open = plain_open,
	.close = plain_close,
	.post = ce_post,
	MOVER_GPUS,
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

static int peer_open(struct mover *m)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (lib) {
		*(void **)&driver.copy = dlsym(lib, "cuMemcpyPeerAsync");
		*(void **)&driver.current = dlsym(lib, "cuCtxGetCurrent");
	}
	if (!lib || !driver.copy || !driver.current) {
		mover_why_set("the driver has no cuMemcpyPeerAsync");
		return mover_failed(m, "open", -ENOENT);
	}
	for (unsigned i = 0; i < m->gpus->n; i++) {
		int ret = gx_engine_call(m->gpus->gpu[i].q[0], peer_context, &driver.ctx[i], NULL);

		if (ret)
			return mover_failed(m, "context", ret);
	}
	return PERF_OK;
}

struct peer_call {
	const struct mover *m;
	const struct gpus_copy *c;
};

static int peer_copy(void *arg, void *stream)
{
	const struct peer_call *call = arg;
	const struct gpus_copy *c = call->c;
	unsigned res = driver.copy((uintptr_t)gpus_dst(call->m->gpus, c), driver.ctx[c->to],
				   (uintptr_t)gpus_src(call->m->gpus, c), driver.ctx[c->from],
				   c->len, stream);

	if (res)
		mover_why_set("cuMemcpyPeerAsync: error %u", res);
	return res ? -EIO : 0;
}

static int peer_post(struct mover *m)
{
	int ret = 0;

	for (unsigned b = 0; b < m->batch && !ret; b++)
		for (unsigned i = 0; i < m->nr_copies && !ret; i++) {
			struct peer_call call = {m, &m->copy[i]};

			ret = gx_engine_call(mover_queue(m, &m->copy[i]), peer_copy, &call, NULL);
		}
	return ret ? ret : mover_mark(m);
}

const struct mover_ops mover_peer = {
	.name = "peer",
	.doc = "the driver's cuMemcpyPeerAsync (cudaMemcpyPeerAsync), one stream a GPU",
	.patterns = ALL_PATTERNS,
	.sms = 0,
	.open = peer_open,
	.close = plain_close,
	.post = peer_post,
	MOVER_GPUS,
};

/* ---- All movers by name; the sub-command has none ---- */

static const struct mover_ops *const movers[] = {&mover_gx,	&mover_peer,
						 &mover_nccl,	&mover_nccl_zero,
						 &mover_unpack, &mover_unpack_resident};

#define NR_MOVERS (sizeof(movers) / sizeof(movers[0]))

const struct mover_ops *mover_find(const char *name)
{
	for (unsigned i = 0; i < NR_MOVERS; i++)
		if (!strcmp(movers[i]->name, name))
			return movers[i];
	return NULL;
}

const char *mover_names(void)
{
	static char text[256];
	size_t at = 0;

	for (unsigned i = 0; i < NR_MOVERS && at < sizeof(text); i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", i ? ", " : "",
				       movers[i]->name);
	return text;
}
