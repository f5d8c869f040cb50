// SPDX-License-Identifier: Apache-2.0
/*
 * GPUs of one process, their memory, and who moves what to whom (see gang.h).
 */
#include "gxperf/beside/gpus.h"

#include <gx/load.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define GANG_GRANULE ((size_t)2 << 20)
#define GANG_POISON  0xdead

static const char *const pattern_names[GANG_PATTERNS] = {"write", "read", "both", "allgather",
							 "alltoall"};

int gang_pattern_parse(const char *text, enum gang_pattern *out)
{
	for (unsigned i = 0; i < GANG_PATTERNS; i++)
		if (!strcmp(text, pattern_names[i])) {
			*out = (enum gang_pattern)i;
			return 0;
		}
	return -EINVAL;
}

const char *gang_pattern_text(enum gang_pattern pattern)
{
	return pattern_names[pattern];
}

int gang_failed(struct gang *gang, const char *what, int err)
{
	report_error(gang->report, "%s: %s (%s)", what, gx_engine_why(), strerror(-err));
	return PERF_FAILED;
}

/* ---- open and close ---- */

unsigned gang_count(void)
{
	unsigned n = 0;

	while (n < GANG_MAX) {
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

static int gpu_open(struct gang *gang, unsigned i)
{
	struct gang_gpu *g = &gang->gpu[i];
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
		memcpy(gang->name, info.name, sizeof(gang->name));
	for (unsigned k = 0; k < GANG_LANES && !ret; k++)
		ret = gx_engine_queue_open(g->engine, NULL, &g->q[k]);
	if (!ret && gang->send_b)
		ret = gx_engine_alloc(g->engine, gang->send_b, &mem);
	g->send = mem;
	mem = NULL;
	if (!ret && gang->recv_b)
		ret = gx_engine_alloc(g->engine, gang->recv_b, &mem);
	g->recv = mem;
	return ret;
}

static size_t granules(uint64_t len)
{
	return (len + GANG_GRANULE - 1) / GANG_GRANULE * GANG_GRANULE;
}

int gang_open(struct report *report, unsigned n, enum gang_pattern pattern, uint64_t size,
	      struct gang *gang)
{
	char what[64];
	int ret;

	*gang = (struct gang){.report = report};
	gang->recv_b = granules(pattern == GANG_ALLGATHER ? size * n : size);
	gang->send_b = pattern == GANG_ALLGATHER ? 0 : granules(size);
	for (unsigned i = 0; i < n; i++) {
		gang->n = i + 1;
		ret = gpu_open(gang, i);
		if (!ret)
			continue;
		snprintf(what, sizeof(what), "GPU %u of %u", i, n);
		return gang_failed(gang, what, ret);
	}
	return PERF_OK;
}

void gang_close(struct gang *gang)
{
	for (unsigned i = 0; i < gang->n; i++) {
		struct gang_gpu *g = &gang->gpu[i];

		for (unsigned k = 0; k < GANG_LANES; k++)
			gx_engine_queue_close(g->q[k]);
	}
	for (unsigned i = 0; i < gang->n; i++) {
		struct gang_gpu *g = &gang->gpu[i];

		if (g->send)
			gx_engine_free(g->engine, g->send, gang->send_b);
		if (g->recv)
			gx_engine_free(g->engine, g->recv, gang->recv_b);
	}
	for (unsigned i = 0; i < gang->n; i++)
		gx_engine_close(gang->gpu[i].engine);
	gang->n = 0;
}

/* ---- who moves what ---- */

static struct gang_copy copy_whole(unsigned from, unsigned to, unsigned by, uint64_t size)
{
	return (struct gang_copy){.from = from, .to = to, .by = by, .len = size};
}

/* Shard i of GPU i to all others, the next one first. */
static unsigned copies_allgather(const struct gang *gang, uint64_t size, struct gang_copy *c)
{
	unsigned nr = 0;

	for (unsigned step = 1; step < gang->n; step++)
		for (unsigned i = 0; i < gang->n; i++)
			c[nr++] = (struct gang_copy){
				i, (i + step) % gang->n, i, i * size, i * size, size, true};
	return nr;
}

/* Parts to all others, the next one first, the own one last. */
static unsigned copies_alltoall(const struct gang *gang, uint64_t size, struct gang_copy *c)
{
	uint64_t part = size / gang->n;
	unsigned nr = 0;

	for (unsigned step = 1; step <= gang->n; step++)
		for (unsigned i = 0; i < gang->n; i++) {
			unsigned to = (i + step) % gang->n;

			c[nr++] = (struct gang_copy){i, to, i, to * part, i * part, part, false};
		}
	return nr;
}

unsigned gang_copies(const struct gang *gang, enum gang_pattern pattern, uint64_t size,
		     struct gang_copy *copies)
{
	switch (pattern) {
	case GANG_WRITE:
		copies[0] = copy_whole(0, 1, 0, size);
		return 1;
	case GANG_READ:
		copies[0] = copy_whole(0, 1, 1, size);
		return 1;
	case GANG_BOTH:
		copies[0] = copy_whole(0, 1, 0, size);
		copies[1] = copy_whole(1, 0, 1, size);
		return 2;
	case GANG_ALLGATHER:
		return copies_allgather(gang, size, copies);
	default:
		return copies_alltoall(gang, size, copies);
	}
}

uint8_t *gang_src(const struct gang *gang, const struct gang_copy *c)
{
	const struct gang_gpu *g = &gang->gpu[c->from];

	return (c->in_place ? g->recv : g->send) + c->src_off;
}

uint8_t *gang_dst(const struct gang *gang, const struct gang_copy *c)
{
	return gang->gpu[c->to].recv + c->dst_off;
}

uint64_t gang_moved(const struct gang *gang, enum gang_pattern pattern, uint64_t size)
{
	if (pattern == GANG_ALLGATHER)
		return size * (gang->n - 1);
	if (pattern == GANG_ALLTOALL)
		return size / gang->n * (gang->n - 1);
	return size;
}

/* ---- payload ---- */

/* Of the bytes of @c: no two copies of a unit carry the same. */
static uint64_t copy_seed(const struct gang_copy *c)
{
	return 1 + c->from * GANG_MAX + (c->in_place ? c->from : c->to);
}

int gang_fill(struct gang *gang, enum gang_pattern pattern, uint64_t size)
{
	struct gang_copy copy[GANG_COPIES_MAX];
	unsigned n = gang_copies(gang, pattern, size, copy);
	int ret = 0;

	for (unsigned i = 0; i < gang->n && !ret; i++)
		if (gang->recv_b)
			ret = gx_pattern_fill(gang->gpu[i].engine, gang->gpu[i].recv, gang->recv_b,
					      GANG_POISON);
	for (unsigned i = 0; i < n && !ret; i++)
		ret = gx_pattern_fill(gang->gpu[copy[i].from].engine, gang_src(gang, &copy[i]),
				      copy[i].len, copy_seed(&copy[i]));
	return ret ? gang_failed(gang, "pattern", ret) : PERF_OK;
}

int gang_check(struct gang *gang, enum gang_pattern pattern, uint64_t size, uint64_t *checked_b,
	       uint64_t *wrong)
{
	struct gang_copy copy[GANG_COPIES_MAX];
	unsigned n = gang_copies(gang, pattern, size, copy);
	uint64_t bad = 0;

	for (unsigned i = 0; i < n; i++) {
		int ret = gx_pattern_diff(gang->gpu[copy[i].to].engine, gang_dst(gang, &copy[i]),
					  copy[i].len, copy_seed(&copy[i]), &bad);

		if (ret)
			return gang_failed(gang, "compare", ret);
		*checked_b += copy[i].len;
		*wrong += bad;
	}
	return PERF_OK;
}
