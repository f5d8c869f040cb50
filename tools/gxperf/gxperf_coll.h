/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gxperf allgather and gxperf alltoall: ranks as threads of this process (-g) or one rank in a
 * process that a launcher started. gxperf_coll.c has the options and the ranks' lives,
 * gxperf_coll_run.c what a rank does at each size. A rank's thread turns its core, posts, checks;
 * rank 0's is the main thread, and the only one that prints results.
 */
#ifndef GXPERF_COLL_H
#define GXPERF_COLL_H

#include "gxperf/gxperf.h"

#include <gx/coll.h>

#include <argp.h>

#define COLL_BUF_SRC 0 /* the group's buffers */
#define COLL_BUF_DST 1
#define COLL_BUF_CTL 2 /* ranks tell one another their figures through it */

/** struct coll_opts - Options of these two commands alone. Frozen after parsing. */
struct coll_opts {
	uint32_t threads; /* -g: ranks of this process, 0: one, of a launcher's or --ranks */
	uint32_t rank, ranks, local_rank;
	bool rank_given, ranks_given;
	const char *master;
	char env_master[128], job[64];
	const char *launcher; /* NULL: by -g or --ranks */
	enum gx_mem_kind kind;
	int device; /* -1: rank i takes GPU i */
	uint64_t piece;
	uint32_t puts, fan, lanes;
	uint64_t connect_ns;
};

/** struct coll_run - What the ranks of this process share. Frozen while they run, but for what says
 * so. */
struct coll_run {
	const struct perf_opts *o;
	const struct coll_opts *c;
	struct report *report; /* rank 0's thread */
	bool all_to_all;
	unsigned nr_ranks, nr_here, first;
	char master[128];
	pthread_barrier_t opened;   /* of the ranks here */
	_Atomic unsigned nr_failed; /* could not be opened */
	/* Beside a load: rank 0 takes from the gate, all do as many. */
	_Atomic uint64_t gate_limit;
	_Atomic bool gate_end;
};

/** struct coll_rank - One rank of this process. owner: its thread */
struct coll_rank {
	struct coll_run *run;
	unsigned rank, local;
	pthread_t thread;
	struct gx_group *group;
	unsigned char *piece; /* COLL_PIECE_B, to make and look at payload */
	struct hist *hist;
	uint64_t idle_since_ns;
	int status; /* enum perf_status */
	char why[PERF_WHY_MAX];
};

#define COLL_PIECE_B (4u << 20)

/** coll_say() - Remember why a rank has failed; the first reason stays. Return: @status. */
int coll_say(struct coll_rank *r, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/** coll_sizes() - All sizes of the sweep, on the rank's thread. Return: an enum perf_status. */
int coll_sizes(struct coll_rank *r);
/** coll_room() - Bytes of source and destination that the sweep needs. Return: 0, -EINVAL (too deep
 * or too large). */
int coll_room(const struct coll_run *run, uint64_t *src_b, uint64_t *dst_b);
uint64_t coll_ctl_room(const struct coll_run *run);

extern const struct argp perf_coll_argp;
/** perf_coll_prepare() - Which rank is this process? After parsing. Return: NULL, or what is wrong
 * with the command line or the environment. */
const char *perf_coll_prepare(const struct perf_opts *o);
/** perf_coll_prints() - Does this process have rank 0? After perf_coll_prepare(). */
bool perf_coll_prints(void);
int perf_coll(const struct perf_opts *opts, struct report *report);

#endif
