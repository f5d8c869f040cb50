/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of gxperf: groups of options that sub-commands share. Each group is a child of
 * argp; its input is a struct cmdline.
 */
#ifndef GXPERF_OPTS_H
#define GXPERF_OPTS_H

#include "common/opt_argp.h"
#include "gxperf/base/perf.h"

/* The parsed command line: the options, and where results go. */
struct cmdline {
	struct perf_opts perf;
	struct report_opts report;
	struct opt_gx gx; /* points at perf.gx */
	struct opt_cpus allowed;
	bool begin_given, end_given, conns_given, cpus_given, time_given, throttled;
};

extern const struct argp perf_server_argp;  /* region, number of connections */
extern const struct argp perf_conn_argp;    /* path to the server, or to other ranks */
extern const struct argp perf_traffic_argp; /* messages: sizes, number, time */
extern const struct argp perf_place_argp;   /* place of payload, at both ends */
extern const struct argp perf_file_argp;    /* a file as payload; stripes */
extern const struct argp perf_blocks_argp;  /* lists of blocks */
extern const struct argp perf_tune_argp;    /* tuning */
extern const struct argp perf_report_argp;  /* where results go */
extern const struct argp perf_demo_argp;
extern const struct argp perf_info_argp;

#endif
