/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gxperf plot, for the table of sub-commands.
 */
#ifndef GXPERF_PLOT_H
#define GXPERF_PLOT_H

#include "gxperf/gxperf.h"

#include <argp.h>

extern const struct argp perf_plot_argp;
int perf_plot(const struct perf_opts *opts, struct report *report);

#endif
