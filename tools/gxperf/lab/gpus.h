/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of one process that move data among themselves: an engine for each, memory to send from
 * and to receive into, and the copies of each pattern. Main thread only.
 */
#ifndef GPUS_H
#define GPUS_H

#include "gxperf/lab/bench.h"

#define GPUS_MAX   8 /* most GPUs */
#define GPUS_LANES 2 /* queues of each GPU */

/** enum gpus_pattern - The copies to make. The size is that of a message; of a shard (ALLGATHER);
 * of all bytes that a GPU sends (ALLTOALL). */
enum gpus_pattern {
	GPUS_WRITE,	/* GPU 0's queue writes to GPU 1 */
	GPUS_READ,	/* GPU 1's queue reads from GPU 0 */
	GPUS_BOTH,	/* 0 to 1 and 1 to 0 at once */
	GPUS_ALLGATHER, /* in place: every GPU gets every shard */
	GPUS_ALLTOALL,	/* part j that GPU i sends becomes part i that GPU j receives */
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

/** gpus_open() - Open GPUs 0 to @n - 1, with memory for @pattern up to @size. Return: an enum
 * perf_status; it has reported the reason if that is not PERF_OK: too few GPUs, or no memory. */
int gpus_open(struct report *report, unsigned n, enum gpus_pattern pattern, uint64_t size,
	      struct gpus *gpus);
void gpus_close(struct gpus *gpus); /* also a half-open one */
/** gpus_count() - Number of GPUs, at most GPUS_MAX; 0: gx_engine_why() has the reason. */
unsigned gpus_count(void);
/** gpus_failed() - Report the failure of @what. Return: PERF_FAILED. */
int gpus_failed(struct gpus *gpus, const char *what, int err);

/** gpus_fill() - Write patterns to the sources, poison to the destinations. gpus_check() - Compare
 * all bytes of the destinations; adds to checked_b and wrong of the row. Both return an enum
 * perf_status. */
int gpus_fill(struct gpus *gpus, enum gpus_pattern pattern, uint64_t size);
int gpus_check(struct gpus *gpus, enum gpus_pattern pattern, uint64_t size, uint64_t *checked_b,
	       uint64_t *wrong);
/** gpus_moved() - Bytes that the busiest GPU sends (or receives) in one unit. */
uint64_t gpus_moved(const struct gpus *gpus, enum gpus_pattern pattern, uint64_t size);

/* One copy of a pattern. */
struct gpus_copy {
	unsigned from, to; /* GPUs; equal: within one GPU */
	unsigned by;	   /* GPU whose queue copies */
	size_t src_off, dst_off, len;
	bool in_place; /* the source is in the receive memory */
};

/** gpus_copies() - The copies of one unit, in the order for each queue. Return: their number. */
#define GPUS_COPIES_MAX (GPUS_MAX * GPUS_MAX)
unsigned gpus_copies(const struct gpus *gpus, enum gpus_pattern pattern, uint64_t size,
		     struct gpus_copy *copies);
uint8_t *gpus_src(const struct gpus *gpus, const struct gpus_copy *c);
uint8_t *gpus_dst(const struct gpus *gpus, const struct gpus_copy *c);

#endif
