/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of one process that move data among themselves: an engine each, with memory to send from
 * and to receive into, and who moves what to whom. Main thread only.
 */
#ifndef GPUS_H
#define GPUS_H

#include "gxperf/gpu/gxperf_gpu.h"

#define GPUS_MAX   8 /* GPUs */
#define GPUS_LANES 2 /* queues of a GPU */

/** enum gpus_pattern - Who moves what. The size is that of a message, of a shard (ALLGATHER), of
 * all that a GPU sends (ALLTOALL). */
enum gpus_pattern {
	GPUS_WRITE,	/* GPU 0's queue, into GPU 1 */
	GPUS_READ,	/* GPU 1's queue, from GPU 0 */
	GPUS_BOTH,	/* 0 into 1 and 1 into 0 at once */
	GPUS_ALLGATHER, /* in place: every GPU gets every shard */
	GPUS_ALLTOALL,	/* part j of what GPU i sends becomes part i of what GPU j receives */
	GPUS_PATTERNS,
};

int gpus_pattern_parse(const char *text, enum gpus_pattern *out); /* 0, -EINVAL */
const char *gpus_pattern_text(enum gpus_pattern pattern);

struct gpus_one {
	struct gx_engine *engine;
	struct gx_engine_queue *q[GPUS_LANES];
	uint8_t *send, *recv;
};

struct gpus {
	struct report *report;
	struct gpus_one gpu[GPUS_MAX];
	unsigned n;
	size_t send_b, recv_b; /* of each GPU; whole granules of 2 MiB */
	char name[96];	       /* of the first GPU */
};

/** gpus_open() - GPUs 0 to @n - 1, and memory for @pattern up to @size. Return: an enum
 * perf_status, having said why when it is not PERF_OK: fewer GPUs than that, or no memory. */
int gpus_open(struct report *report, unsigned n, enum gpus_pattern pattern, uint64_t size,
	      struct gpus *gpus);
void gpus_close(struct gpus *gpus); /* of a half-open one too */
/** gpus_count() - GPUs there are, at most GPUS_MAX; 0: gx_engine_why(). */
unsigned gpus_count(void);
/** gpus_failed() - Says what failed; returns PERF_FAILED. */
int gpus_failed(struct gpus *gpus, const char *what, int err);

/** gpus_fill() - Patterns to send, poison where they go. gpus_check() - All bytes that should have
 * come are there: adds to the row's checked_b and wrong. Both: an enum perf_status. */
int gpus_fill(struct gpus *gpus, enum gpus_pattern pattern, uint64_t size);
int gpus_check(struct gpus *gpus, enum gpus_pattern pattern, uint64_t size, uint64_t *checked_b,
	       uint64_t *wrong);
/** gpus_moved() - Bytes that one unit moves from the busiest GPU (or to it). */
uint64_t gpus_moved(const struct gpus *gpus, enum gpus_pattern pattern, uint64_t size);

/* One message of a pattern. */
struct gpus_copy {
	unsigned from, to; /* GPUs; the same: within one */
	unsigned by;	   /* whose queue */
	size_t src_off, dst_off, len;
	bool in_place; /* the source is in the receive memory */
};

/** gpus_copies() - The copies that make one unit, in the order in which each queue should do them.
 * Return: how many. */
#define GPUS_COPIES_MAX (GPUS_MAX * GPUS_MAX)
unsigned gpus_copies(const struct gpus *gpus, enum gpus_pattern pattern, uint64_t size,
		     struct gpus_copy *copies);
uint8_t *gpus_src(const struct gpus *gpus, const struct gpus_copy *c);
uint8_t *gpus_dst(const struct gpus *gpus, const struct gpus_copy *c);

#endif
