// SPDX-License-Identifier: Apache-2.0
/*
 * Common parts of the sub-commands without a server (see bench.h). Main thread only.
 */
#include "gxperf/lab/bench.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- an engine ---- */

int bench_failed(struct bench *b, const char *what, int err)
{
	report_error(b->report, "%s: %s (%s)", what, gx_engine_why(), strerror(-err));
	return PERF_FAILED;
}

/* Mapped host memory, on huge pages if the kernel gives some. */
static int bench_host(struct bench *b, uint8_t **mem, size_t *got, size_t len)
{
	uint8_t *p;
	int ret;

	if (!len)
		return 0;
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return -ENOMEM;
	madvise(p, len, MADV_HUGEPAGE);
	ret = gx_engine_map(b->engine, p, len);
	if (ret) {
		munmap(p, len);
		return ret;
	}
	*mem = p;
	*got = len;
	return 0;
}

static int bench_memory(const struct bench_want *want, struct bench *b)
{
	int ret = bench_host(b, &b->host, &b->host_b, want->host_b);

	if (!ret)
		ret = bench_host(b, &b->back, &b->back_b, want->back_b);
	for (unsigned i = 0; i < 2 && !ret; i++) {
		void *mem = NULL;

		if (!want->dev_b[i])
			continue;
		ret = gx_engine_alloc(b->engine, want->dev_b[i], &mem);
		b->dev[i] = mem;
		b->dev_b[i] = want->dev_b[i];
	}
	return ret;
}

int bench_open(const struct bench_want *want, struct report *report, struct bench *b)
{
	struct gx_engine_opts opts = GX_INIT(opts);
	int ret;

	*b = (struct bench){.report = report, .info = GX_INIT(b->info)};
	opts.device = want->device;
	opts.unpack = want->unpack;
	opts.sms = want->sms;
	ret = gx_engine_open(&opts, &b->engine);
	if (ret)
		return bench_failed(b, "engine", ret);
	ret = gx_engine_info(b->engine, &b->info);
	if (!ret)
		ret = gx_engine_queue_open(b->engine, want->queue.size ? &want->queue : NULL,
					   &b->q);
	if (!ret)
		ret = bench_memory(want, b);
	return ret ? bench_failed(b, "memory", ret) : PERF_OK;
}

void bench_close(struct bench *b)
{
	gx_engine_queue_close(b->q);
	for (unsigned i = 0; i < 2; i++)
		if (b->dev[i])
			gx_engine_free(b->engine, b->dev[i], b->dev_b[i]);
	if (b->host) {
		gx_engine_unmap(b->engine, b->host, b->host_b);
		munmap(b->host, b->host_b);
	}
	if (b->back) {
		gx_engine_unmap(b->engine, b->back, b->back_b);
		munmap(b->back, b->back_b);
	}
	gx_engine_close(b->engine);
}

void bench_fill(uint8_t *mem, size_t len, uint64_t seed)
{
	uint64_t x = seed * 2 + 1, word;

	for (size_t at = 0; at < len; at += 8) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		word = x ^ x >> 29;
		memcpy(mem + at, &word, len - at < 8 ? len - at : 8);
	}
}

uint32_t bench_random(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*state >> 33);
}

void bench_shuffle(uint32_t *v, uint32_t n, uint32_t among, uint64_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		v[i] = i;
	for (uint32_t base = 0; base < n; base += among)
		for (uint32_t i = n - base < among ? n - base : among; i > 1; i--) {
			uint32_t *a = v + base + i - 1, *b = v + base + bench_random(&seed) % i,
				 was = *a;

			*a = *b;
			*b = was;
		}
}

int bench_copy(struct bench *b, void *dst, const void *src, size_t len)
{
	uint32_t t;
	int ret = gx_engine_copy(b->q, dst, src, len, &t);

	if (!ret)
		ret = gx_engine_wait(b->q, t, BENCH_WAIT_NS);
	return ret ? bench_failed(b, "copy", ret) : PERF_OK;
}

double bench_copy_rate(struct bench *b, void *dst, const void *src, size_t len, unsigned n)
{
	uint64_t start;
	uint32_t t = 0;

	if (bench_copy(b, dst, src, len))
		return 0;
	start = gx_now();
	for (unsigned i = 0; i < n; i++)
		if (gx_engine_copy(b->q, dst, src, len, &t))
			return 0;
	if (gx_engine_wait(b->q, t, BENCH_WAIT_NS))
		return 0;
	return (double)len * n / (double)(gx_now() - start);
}

struct report_row bench_row(const char *op, uint64_t size_b, uint64_t count)
{
	return (struct report_row){.op = op,
				   .size_b = size_b,
				   .count = count,
				   .p50_us = NAN,
				   .avg_us = NAN,
				   .p99_us = NAN,
				   .p999_us = NAN,
				   .gb_s = NAN,
				   .cpu_pct = NAN,
				   .sms = -1};
}
