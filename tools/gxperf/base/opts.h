/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of gxperf: groups of options that sub-commands share. Each group is a child of
 * argp; its input is the group's struct, which a comment names.
 */
#ifndef GXPERF_OPTS_H
#define GXPERF_OPTS_H

#include "gxperf/base/perf.h"

#include <argp.h>

extern const struct argp perf_server_argp;  /* struct perf_server_opts */
extern const struct argp perf_conn_argp;    /* struct perf_conn_opts */
extern const struct argp perf_traffic_argp; /* struct perf_traffic_opts */
extern const struct argp perf_place_argp;   /* struct perf_place_opts */
extern const struct argp perf_file_argp;    /* struct perf_file_opts */
extern const struct argp perf_blocks_argp;  /* struct perf_blocks_opts */
extern const struct argp perf_tune_argp;    /* struct perf_tune_opts */
extern const struct argp perf_report_argp;  /* struct report_opts */
extern const struct argp perf_demo_argp;    /* struct perf_demo_opts */
extern const struct argp perf_info_argp;    /* struct perf_info_opts */

#endif
