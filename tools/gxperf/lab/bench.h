/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common parts of the sub-commands that measure GPUs without a server: an engine with its memory,
 * one result. Main thread only.
 */
#ifndef BENCH_H
#define BENCH_H

#include "common/opt_argp.h"
#include "gxperf/base/perf.h"

#include <gx/engine.h>

#define BENCH_WAIT_NS 20000000000ull

/** struct bench - One engine on one GPU, one queue, and memory; bench_close() frees all. */
struct bench {
	struct report *report;
	struct gx_engine *engine;
	struct gx_engine_queue *q;
	struct gx_engine_info info;
	uint8_t *host, *back; /* mapped host memory: the source, the result */
	uint8_t *dev[2];      /* memory of the GPU */
	size_t host_b, back_b, dev_b[2];
};

struct bench_want {
	int device;
	enum gx_unpack_mode unpack;
	unsigned sms;
	size_t host_b, back_b, dev_b[2]; /* 0: none */
	struct gx_engine_queue_opts queue;
};

/** bench_open() - Return: an enum perf_status; it has reported the reason if that is not
 * PERF_OK. */
int bench_open(const struct bench_want *want, struct report *report, struct bench *b);
void bench_close(struct bench *b); /* also a half-open one */
int bench_failed(struct bench *b, const char *what, int err);

/** bench_fill() - Fill by a fast generator: no two fragments or rows are alike. */
void bench_fill(uint8_t *mem, size_t len, uint64_t seed);
uint32_t bench_random(uint64_t *state);
/** bench_shuffle() - 0 to @n - 1, shuffled within groups of @among. */
void bench_shuffle(uint32_t *v, uint32_t n, uint32_t among, uint64_t seed);

/** bench_copy() - Copy, and wait. Return: an enum perf_status. */
int bench_copy(struct bench *b, void *dst, const void *src, size_t len);
/** bench_copy_rate() - Time @n copies, queued back to back. Return: GB/s; 0: it failed. */
double bench_copy_rate(struct bench *b, void *dst, const void *src, size_t len, unsigned n);

/** bench_row() - A row with @op, size and count; the rest is empty. */
struct report_row bench_row(const char *op, uint64_t size_b, uint64_t count);

#endif
