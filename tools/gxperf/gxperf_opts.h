/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of gxperf: groups of options that sub-commands share. Each is a child of argp
 * whose input is a struct cmdline.
 */
#ifndef GXPERF_OPTS_H
#define GXPERF_OPTS_H

#include "common/opt_argp.h"
#include "gxperf/gxperf.h"

/* All that is parsed: the options proper, and where results go. */
struct cmdline {
	struct perf_opts perf;
	struct report_opts report;
	struct opt_gx gx; /* into perf.gx */
	struct opt_cpus allowed;
	bool begin_given, end_given, conns_given, cpus_given, time_given, gated;
};

extern const struct argp perf_server_argp;  /* whose memory, how often connected */
extern const struct argp perf_conn_argp;    /* which way to the server, or to other ranks */
extern const struct argp perf_traffic_argp; /* what is moved: sizes, how many, how long */
extern const struct argp perf_place_argp;   /* where it lies, at either end */
extern const struct argp perf_file_argp;    /* a file instead; stripes */
extern const struct argp perf_tune_argp;    /* how */
extern const struct argp perf_report_argp;  /* where results go */
extern const struct argp perf_demo_argp;

#endif
