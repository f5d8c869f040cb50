/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work for CPUs next to gx's, to see how communication slows it: threads, each pinned to a CPU,
 * repeat the same run, each on memory of its own. The interface is like that of gxlab/load.h. Main
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
	/* For each CPU. TRIAD: elements of an array; GEMM: rows and columns, a multiple of 64. */
	uint32_t n;
	struct opt_cpus cpus;
};

struct cpu_load;

/** cpu_load_open() - Allocate and fill memory, start the threads, and run once. Return: 0, -EINVAL,
 * -ENOMEM, -errno of a thread that cannot be pinned. */
int cpu_load_open(const struct cpu_load_opts *opts, struct cpu_load **out);
void cpu_load_close(struct cpu_load *l); /* waits for posted runs; NULL is fine */
void cpu_load_info(const struct cpu_load *l, struct gx_load_info *info);
/** cpu_load_post() - Post one more run on every CPU. cpu_load_done() - Runs that have ended on all
 * CPUs. */
int cpu_load_post(struct cpu_load *l);
int cpu_load_done(struct cpu_load *l, uint64_t *nr);
/** cpu_load_check() - Compare every result of the triad, 64 elements of each CPU's product. No run
 * may be posted. Return: 0 (see wrong), -EBUSY. */
int cpu_load_check(struct cpu_load *l, struct gx_load_check *check);

#endif
