/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gxd metrics: the counters of all gx processes of this host for Prometheus, over HTTP.
 */
#ifndef GXD_METRICS_H
#define GXD_METRICS_H

#include <argp.h>

extern const struct argp gxd_metrics_argp;

/**
 * gxd_metrics() - Run the command line after "gxd", until a signal. Main thread, before anything is
 * open.
 * @argv: argv[0] is "metrics"
 * Return: the exit status: 0 ok, 1 failed, 2 usage.
 */
int gxd_metrics(int argc, char **argv);

#endif
