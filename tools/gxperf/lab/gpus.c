// SPDX-License-Identifier: Apache-2.0
/*
 * GPUs of one process, their memory, and the copies of each pattern (see gpus.h).
 */
#include "gxperf/lab/gpus.h"

#include <gxlab/load.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define GPUS_GRANULE ((size_t)2 << 20)
#define GPUS_POISON  0xdead

static const char *const pattern_names[GPUS_PATTERNS] = {"write", "read", "both", "allgather",
							 "alltoall"};

int gpus_pattern_parse(const char *text, enum gpus_pattern *out)
{
	return opt_name(text, pattern_names, GPUS_PATTERNS, out);
}

const char *gpus_pattern_text(enum gpus_pattern pattern)
{
	return pattern_names[pattern];
}

int gpus_failed(struct gpus *gpus, const char *what, int err)
{
	report_error(gpus->report, "%s: %s (%s)", what, gx_engine_why(), strerror(-err));
	return PERF_FAILED;
}

/* ---- open and close ---- */

unsigned gpus_count(void)
{
	unsigned n = 0;

	while (n < GPUS_MAX) {
		struct gx_engine_opts opts = GX_INIT(opts);
		struct gx_engine *e;

		opts.device = (int)n;
		if (gx_engine_open(&opts, &e))
			break;
		gx_engine_close(e);
		n++;
	}
	return n;
}

static int gpu_open(struct gpus *gpus, unsigned i)
{
	struct gpus_one *g = &gpus->gpu[i];
	struct gx_engine_info info = GX_INIT(info);
	struct gx_engine_opts opts = GX_INIT(opts);
	void *mem = NULL;
	int ret;

	opts.device = (int)i;
	ret = gx_engine_open(&opts, &g->engine);
	if (ret)
		return ret;
	gx_engine_info(g->engine, &info);
	if (!i)
		memcpy(gpus->name, info.name, sizeof(gpus->name));
	for (unsigned k = 0; k < GPUS_LANES && !ret; k++)
		ret = gx_engine_queue_open(g->engine, NULL, &g->q[k]);
	if (!ret && gpus->send_b)
		ret = gx_engine_alloc(g->engine, gpus->send_b, &mem);
	g->send = mem;
	mem = NULL;
	if (!ret && gpus->recv_b)
		ret = gx_engine_alloc(g->engine, gpus->recv_b, &mem);
	g->recv = mem;
	return ret;
}

static size_t granules(uint64_t len)
{
	return (len + GPUS_GRANULE - 1) / GPUS_GRANULE * GPUS_GRANULE;
}

int gpus_open(struct report *report, unsigned n, enum gpus_pattern pattern, uint64_t size,
	      struct gpus *gpus)
{
	char what[64];
	int ret;

	*gpus = (struct gpus){.report = report};
	gpus->recv_b = granules(pattern == GPUS_ALLGATHER ? size * n : size);
	gpus->send_b = pattern == GPUS_ALLGATHER ? 0 : granules(size);
	for (unsigned i = 0; i < n; i++) {
		gpus->n = i + 1;
		ret = gpu_open(gpus, i);
		if (!ret)
			continue;
		snprintf(what, sizeof(what), "GPU %u of %u", i, n);
		return gpus_failed(gpus, what, ret);
	}
	return PERF_OK;
}

void gpus_close(struct gpus *gpus)
{
	for (unsigned i = 0; i < gpus->n; i++) {
		struct gpus_one *g = &gpus->gpu[i];

		for (unsigned k = 0; k < GPUS_LANES; k++)
			gx_engine_queue_close(g->q[k]);
	}
	for (unsigned i = 0; i < gpus->n; i++) {
		struct gpus_one *g = &gpus->gpu[i];

		if (g->send)
			gx_engine_free(g->engine, g->send, gpus->send_b);
		if (g->recv)
			gx_engine_free(g->engine, g->recv, gpus->recv_b);
	}
	for (unsigned i = 0; i < gpus->n; i++)
		gx_engine_close(gpus->gpu[i].engine);
	gpus->n = 0;
}

/* ---- the copies of a pattern ---- */

static struct gpus_copy copy_whole(unsigned from, unsigned to, unsigned by, uint64_t size)
{
	return (struct gpus_copy){.from = from, .to = to, .by = by, .len = size};
}

/* Each GPU i sends its shard i to all others, the next GPU first. */
static unsigned copies_allgather(const struct gpus *gpus, uint64_t size, struct gpus_copy *c)
{
	unsigned nr = 0;

	for (unsigned step = 1; step < gpus->n; step++)
		for (unsigned i = 0; i < gpus->n; i++)
			c[nr++] = (struct gpus_copy){
				i, (i + step) % gpus->n, i, i * size, i * size, size, true};
	return nr;
}

/* Each GPU sends its parts to all others, the next GPU first, the own part last. */
static unsigned copies_alltoall(const struct gpus *gpus, uint64_t size, struct gpus_copy *c)
{
	uint64_t part = size / gpus->n;
	unsigned nr = 0;

	for (unsigned step = 1; step <= gpus->n; step++)
		for (unsigned i = 0; i < gpus->n; i++) {
			unsigned to = (i + step) % gpus->n;

			c[nr++] = (struct gpus_copy){i, to, i, to * part, i * part, part, false};
		}
	return nr;
}

unsigned gpus_copies(const struct gpus *gpus, enum gpus_pattern pattern, uint64_t size,
		     struct gpus_copy *copies)
{
	switch (pattern) {
	case GPUS_WRITE:
		copies[0] = copy_whole(0, 1, 0, size);
		return 1;
	case GPUS_READ:
		copies[0] = copy_whole(0, 1, 1, size);
		return 1;
	case GPUS_BOTH:
		copies[0] = copy_whole(0, 1, 0, size);
		copies[1] = copy_whole(1, 0, 1, size);
		return 2;
	case GPUS_ALLGATHER:
		return copies_allgather(gpus, size, copies);
	default:
		return copies_alltoall(gpus, size, copies);
	}
}

uint8_t *gpus_src(const struct gpus *gpus, const struct gpus_copy *c)
{
	const struct gpus_one *g = &gpus->gpu[c->from];

	return (c->in_place ? g->recv : g->send) + c->src_off;
}

uint8_t *gpus_dst(const struct gpus *gpus, const struct gpus_copy *c)
{
	return gpus->gpu[c->to].recv + c->dst_off;
}

uint64_t gpus_moved(const struct gpus *gpus, enum gpus_pattern pattern, uint64_t size)
{
	if (pattern == GPUS_ALLGATHER)
		return size * (gpus->n - 1);
	if (pattern == GPUS_ALLTOALL)
		return size / gpus->n * (gpus->n - 1);
	return size;
}

/* ---- payload ---- */

/* Seed for the bytes of @c: no two copies of a unit carry the same bytes. */
static uint64_t copy_seed(const struct gpus_copy *c)
{
	return 1 + c->from * GPUS_MAX + (c->in_place ? c->from : c->to);
}

int gpus_fill(struct gpus *gpus, enum gpus_pattern pattern, uint64_t size)
{
	struct gpus_copy copy[GPUS_COPIES_MAX];
	unsigned n = gpus_copies(gpus, pattern, size, copy);
	int ret = 0;

	for (unsigned i = 0; i < gpus->n && !ret; i++)
		if (gpus->recv_b)
			ret = gx_pattern_fill(gpus->gpu[i].engine, gpus->gpu[i].recv, gpus->recv_b,
					      GPUS_POISON);
	for (unsigned i = 0; i < n && !ret; i++)
		ret = gx_pattern_fill(gpus->gpu[copy[i].from].engine, gpus_src(gpus, &copy[i]),
				      copy[i].len, copy_seed(&copy[i]));
	return ret ? gpus_failed(gpus, "pattern", ret) : PERF_OK;
}

int gpus_check(struct gpus *gpus, enum gpus_pattern pattern, uint64_t size, uint64_t *checked_b,
	       uint64_t *wrong)
{
	struct gpus_copy copy[GPUS_COPIES_MAX];
	unsigned n = gpus_copies(gpus, pattern, size, copy);
	uint64_t bad = 0;

	for (unsigned i = 0; i < n; i++) {
		int ret = gx_pattern_diff(gpus->gpu[copy[i].to].engine, gpus_dst(gpus, &copy[i]),
					  copy[i].len, copy_seed(&copy[i]), &bad);

		if (ret)
			return gpus_failed(gpus, "compare", ret);
		*checked_b += copy[i].len;
		*wrong += bad;
	}
	return PERF_OK;
}
