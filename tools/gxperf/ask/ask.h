/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sub-commands that ask this host, and a server, what they have. Each returns an enum perf_status.
 * Main thread.
 */
#ifndef ASK_H
#define ASK_H

#include "gxperf/base/perf.h"

int perf_info(const struct perf_opts *opts, struct report *report);
int perf_doctor(const struct perf_opts *opts, struct report *report);

#endif
