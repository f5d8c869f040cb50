/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gxd top: the connections of all gx processes of this host, live, as top(1) shows processes.
 */
#ifndef GXD_TOP_H
#define GXD_TOP_H

#include <argp.h>

extern const struct argp gxd_top_argp;

/**
 * gxd_top() - Run the command line after "gxd", until q or a signal. Main thread. Where stdout is no
 * terminal: one table, over one interval.
 * Return: the exit status: 0 ok, 1 failed, 2 usage.
 */
int gxd_top(int argc, char **argv);

#endif
