/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work for CPUs beside gx's, to see what communication costs it: threads, each pinned to a CPU,
 * that do the same run again and again, each on memory of its own. Interface as gxlab/load.h's; main
 * thread only.
 */
#ifndef CPU_LOAD_H
#define CPU_LOAD_H

#include "common/opt.h"

#include <gxlab/load.h>

enum cpu_load_kind {
	CPU_LOAD_TRIAD, /* a = b + 3 c over three arrays of doubles: bound by memory */
	CPU_LOAD_GEMM,	/* fp32 product, tile by tile: bound by arithmetic */
};

struct cpu_load_opts {
	enum cpu_load_kind kind;
	uint32_t n; /* of each CPU: TRIAD: elements of an array; GEMM: rows and columns, a multiple
		       of 64 */
	struct opt_cpus cpus;
};

struct cpu_load;

/** cpu_load_open() - Take memory, fill it, start the threads, and run once. Return: 0, -EINVAL,
 * -ENOMEM, -errno of a thread that cannot be pinned. */
int cpu_load_open(const struct cpu_load_opts *opts, struct cpu_load **out);
void cpu_load_close(struct cpu_load *l); /* waits for what is posted; NULL is fine */
void cpu_load_info(const struct cpu_load *l, struct gx_load_info *info);
/** cpu_load_post() - One more run on every CPU. cpu_load_done() - Runs that have ended on all. */
int cpu_load_post(struct cpu_load *l);
int cpu_load_done(struct cpu_load *l, uint64_t *nr);
/** cpu_load_check() - Every result of the triad, 64 elements a CPU of the product. Nothing may be
 * posted. Return: 0 (see wrong), -EBUSY. */
int cpu_load_check(struct cpu_load *l, struct gx_load_check *check);

#endif
