/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gxperf put, get and send, as gxperf_put.c (sizes, phases, results), gxperf_put_plan.c (slots) and
 * gxperf_put_check.c (payload) share it. Private to those. Main thread.
 */
#ifndef GXPERF_PUT_H
#define GXPERF_PUT_H

#include "gxperf/gxperf_traffic.h"

struct put {
	struct perf perf;
	enum gx_op_kind op;
	struct gx_mem *local;
	uint64_t room; /* bytes of the region, and of local, that may be used */
	struct traffic_core *cores;
	struct traffic_flow *flows;
	unsigned nr_flows;
	struct traffic_plan plan; /* of the size at hand */
	uint64_t flow_span;	  /* bytes of the region for each flow */
	unsigned char *piece;	  /* TRAFFIC_PIECE_B */
};

static inline uint64_t u64_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t u64_max(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* All that return int: an enum perf_status, having said why when it is not PERF_OK. */

/* ---- gxperf_put_plan.c ---- */

/** put_span() - Bytes from the first slot of the first flow to the end of the last one's last. */
uint64_t put_span(const struct put *put, const struct traffic_plan *p);
/** put_plan() - How many slots, how far apart, for messages of @size bytes: put->plan. */
int put_plan(struct put *put, uint64_t size);
int put_flows_reset(struct put *put); /* to a new plan */

/* ---- gxperf_put_check.c ---- */

int put_payload(struct put *put); /* destinations are poisoned, sources hold the pattern */
/** put_poison_again() - Where messages carry no number, what the warm-up left behind must not pass
 * for the run's. */
int put_poison_again(struct put *put);
/** put_recv_start() / put_recv_stop() - Of a send: receives at the server. @wrong: adds messages of
 * another length or tag than was sent, and those that are missing. */
int put_recv_start(struct put *put);
int put_recv_stop(struct put *put, uint64_t *wrong);
/** put_verify() - All that lies in the slots now, and what was looked at under way. */
int put_verify(struct put *put, struct check_result *res);

#endif
