/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sub-commands that move data between GPUs of one process: p2p, compare, overlap. And ipc, which
 * exports GPU memory to another process.
 */
#ifndef LAB_H
#define LAB_H

#include "gxperf/lab/mover.h"

extern const struct argp perf_p2p_argp, perf_compare_argp, perf_overlap_argp, perf_ipc_argp;
int perf_p2p(const struct perf_opts *opts, struct report *report);
int perf_compare(const struct perf_opts *opts, struct report *report);
int perf_overlap(const struct perf_opts *opts, struct report *report);
int perf_ipc(const struct perf_opts *opts, struct report *report);

#endif
