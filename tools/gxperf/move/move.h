/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sub-commands that move data between this process and a server, or show it. Each returns an enum
 * perf_status. Main thread.
 */
#ifndef MOVE_H
#define MOVE_H

#include "gxperf/base/perf.h"

int perf_put(const struct perf_opts *opts, struct report *report);  /* put, get, send */
int perf_file(const struct perf_opts *opts, struct report *report); /* put, get with --file */
int perf_lat(const struct perf_opts *opts, struct report *report);
int perf_blocks(const struct perf_opts *opts, struct report *report);
int perf_demo(const struct perf_opts *opts, struct report *report);

#endif
