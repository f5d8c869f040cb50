/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the sub-commands that measure GPUs without a server share: an engine with its memory, one
 * result. Main thread only.
 */
#ifndef GXPERF_GPU_H
#define GXPERF_GPU_H

#include "common/opt_argp.h"
#include "gxperf/gxperf.h"

#include <gx/engine.h>

#include <argp.h>

#define BENCH_WAIT_NS 20000000000ull

/** struct bench - One engine on one GPU, one queue, and memory: released together. */
struct bench {
	struct report *report;
	struct gx_engine *engine;
	struct gx_engine_queue *q;
	struct gx_engine_info info;
	uint8_t *host, *back; /* mapped host memory: what is sent, what came back */
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

/** bench_open() - Return: an enum perf_status, having said why when it is not PERF_OK. */
int bench_open(const struct bench_want *want, struct report *report, struct bench *b);
void bench_close(struct bench *b); /* of a half-open one too */
int bench_failed(struct bench *b, const char *what, int err);

/** bench_fill() - Bytes of a fast generator: no two fragments or rows are alike. */
void bench_fill(uint8_t *mem, size_t len, uint64_t seed);
uint32_t bench_random(uint64_t *state);
/** bench_shuffle() - 0 to @n - 1 in another order, each among the @among that it stands in. */
void bench_shuffle(uint32_t *v, uint32_t n, uint32_t among, uint64_t seed);

/** bench_copy() - Waits. Return: an enum perf_status. */
int bench_copy(struct bench *b, void *dst, const void *src, size_t len);
/** bench_copy_rate() - @n copies queued back to back. Return: GB/s, 0 when it failed. */
double bench_copy_rate(struct bench *b, void *dst, const void *src, size_t len, unsigned n);

/** bench_row() - A row with nothing known but @op, size and count. */
struct report_row bench_row(const char *op, uint64_t size_b, uint64_t count);

/**
 * perf_handover() - One job at a time, on 1, 2 and 4 threads; @how: device, mode and SMs.
 * @sizes: of the fragments. Return: an enum perf_status.
 */
int perf_handover(const struct bench_want *how, bool pool_host, const struct opt_list *sizes,
		  struct report *report);

extern const struct argp perf_unpack_argp, perf_h2d_argp;
int perf_unpack(const struct perf_opts *opts, struct report *report);
int perf_h2d(const struct perf_opts *opts, struct report *report);

#endif
