/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gxd stats: the counters of a running gxd.
 */
#ifndef GXD_STATS_H
#define GXD_STATS_H

#include <argp.h>

extern const struct argp gxd_stats_argp;

/**
 * gxd_stats() - Run the command line after "gxd". Main thread, before anything is open.
 * @argv: argv[0] is "stats"
 * Return: the exit status: 0: the counters are printed; 1: there are none; 2: usage.
 */
int gxd_stats(int argc, char **argv);

#endif
