/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gxperf put, get and send, for put.c (sizes, phases, results), put_plan.c (slots)
 * and put_check.c (payload). Private to those. Main thread.
 */
#ifndef GXPERF_PUT_H
#define GXPERF_PUT_H

#include "gxperf/base/traffic.h"

struct put {
	struct perf perf;
	enum gx_op_kind op;
	struct gx_mem *local;
	uint64_t room; /* usable bytes of the region, and of local */
	struct traffic_core *cores;
	struct traffic_flow *flows; /* of --bidirectional, the second half goes back */
	unsigned nr_flows, nr_dirs;
	struct traffic_plan
		plan[2];      /* plans of the current size, by direction; they differ in op alone */
	uint64_t flow_span;   /* bytes of the region for each flow */
	unsigned char *piece; /* TRAFFIC_PIECE_B */
	bool timed;	      /* this phase is a row's, with lines of --interval */
};

static inline uint64_t u64_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t u64_max(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* All that return int: an enum perf_status; they have reported the reason if it is not PERF_OK. */

/* ---- put_plan.c ---- */

/** put_span() - Bytes from the first slot of the first flow to the end of the last slot of the last
 * flow. */
uint64_t put_span(const struct put *put, const struct traffic_plan *p);
/** put_plan() - Set put->plan for messages of @size bytes: number of slots, and their distance. */
int put_plan(struct put *put, uint64_t size);
int put_flows_reset(struct put *put); /* resets flows for a new plan */

/** put_flow() - Flow @i of direction @dir, and the number of flows that it has. */
static inline struct traffic_flow *put_flow(const struct put *put, unsigned dir, unsigned i)
{
	return &put->flows[dir * (put->nr_flows / put->nr_dirs) + i];
}

static inline unsigned put_flows(const struct put *put)
{
	return put->nr_flows / put->nr_dirs;
}

/* ---- put_check.c ---- */

int put_payload(struct put *put); /* poisons destinations, writes the pattern to sources */
/** put_poison_again() - If messages carry no number, bytes of the warm-up must not pass for the
 * run's. */
int put_poison_again(struct put *put);
/** put_recv_start() / put_recv_stop() - For sends: receives at the server. @wrong: adds messages of
 * a wrong length or tag, and missing ones. */
int put_recv_start(struct put *put);
int put_recv_stop(struct put *put, uint64_t *wrong);
/** put_verify() - Compare all slots of a direction, and add the results of checks during the phase. */
int put_verify(struct put *put, unsigned dir, struct check_result *res);

#endif
