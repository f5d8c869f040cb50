/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sub-commands that measure GPUs, CPUs and other libraries, without a server. Each returns an enum
 * perf_status. Main thread.
 */
#ifndef LAB_H
#define LAB_H

#include "gxperf/base/perf.h"

#include <argp.h>

extern const struct argp perf_unpack_argp, perf_p2p_argp, perf_compare_argp, perf_overlap_argp;
int perf_unpack(const struct perf_opts *opts, struct report *report);
int perf_p2p(const struct perf_opts *opts, struct report *report);
int perf_compare(const struct perf_opts *opts, struct report *report);
int perf_overlap(const struct perf_opts *opts, struct report *report);

#endif
