/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gxperf allgather and gxperf alltoall. Ranks are threads of this process (-g), or the process is
 * one rank. coll.c has the options and a rank's life, coll_run.c its work at each
 * size. A rank's thread turns its core, posts and checks. Rank 0's thread is the main thread, and
 * it alone prints results.
 */
#ifndef GXPERF_COLL_H
#define GXPERF_COLL_H

#include "gxperf/base/perf.h"

#include <gx/coll.h>

#include <argp.h>

#define COLL_BUF_SRC 0 /* the group's buffers */
#define COLL_BUF_DST 1
#define COLL_BUF_CTL 2 /* ranks exchange their figures through it */

/** struct coll_opts - Options of these two commands alone. Frozen after parsing. */
struct coll_opts {
	uint32_t threads; /* -g: ranks of this process; 0: one, by a launcher or --rank */
	uint32_t rank, ranks, local_rank;
	bool rank_given, ranks_given;
	const char *master;
	char env_master[128], job[64];
	const char *launcher; /* NULL: -g or --rank */
	enum gx_mem_kind kind;
	int device; /* -1: rank i takes GPU i */
	uint64_t piece;
	uint32_t puts, fan, lanes;
	uint64_t connect_ns;
};

/** struct coll_run - State that the ranks of this process share. Frozen while they run, except
 * where a comment says otherwise. */
struct coll_run {
	const struct perf_opts *o;
	const struct coll_opts *c;
	struct report *report; /* for rank 0's thread */
	bool all_to_all;
	unsigned nr_ranks, nr_here, first;
	char master[128];
	pthread_barrier_t opened;   /* all ranks here are open */
	_Atomic unsigned nr_failed; /* ranks that failed to open */
	/* During a load: rank 0 takes messages from the throttle; all ranks do as many. */
	_Atomic uint64_t throttle_limit;
	_Atomic bool throttle_end;
};

/** struct coll_rank - One rank of this process. owner: its thread */
struct coll_rank {
	struct coll_run *run;
	unsigned rank, local;
	pthread_t thread;
	struct gx_group *group;
	unsigned char *piece; /* COLL_PIECE_B, to make and check payload */
	struct hist *hist;
	uint64_t idle_since_ns;
	uint64_t nr_before; /* collectives of the parts before this one; for progress */
	int status;	    /* enum perf_status */
	char why[PERF_WHY_MAX];
};

#define COLL_PIECE_B (4u << 20)

/** coll_say() - Keep the reason why a rank failed; the first reason stays. Return: @status. */
int coll_say(struct coll_rank *r, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/** coll_sizes() - Do all sizes of the sweep, on the rank's thread. Return: an enum perf_status. */
int coll_sizes(struct coll_rank *r);
/** coll_room() - Bytes of source and destination that the sweep needs. Return: 0, -EINVAL (too deep
 * or too large). */
int coll_room(const struct coll_run *run, uint64_t *src_b, uint64_t *dst_b);
uint64_t coll_ctl_room(const struct coll_run *run);

extern const struct argp perf_coll_argp;
/** perf_coll_prepare() - Find the rank of this process, after parsing. Return: NULL, or the fault
 * of the command line or the environment. */
const char *perf_coll_prepare(const struct perf_opts *o);
/** perf_coll_prints() - Does this process have rank 0? After perf_coll_prepare(). */
bool perf_coll_prints(void);
int perf_coll(const struct perf_opts *opts, struct report *report);

#endif
