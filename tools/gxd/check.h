/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gxd check: what gxd would serve with these options, or why it would not. Nothing is opened.
 */
#ifndef GXD_CHECK_H
#define GXD_CHECK_H

/**
 * gxd_check() - Run the command line after "gxd". Main thread, before anything is open. Its options,
 * gxd_check_argp, are in opts.h.
 * @argv: argv[0] is "check"
 * Return: the exit status: 0: it would start, as far as can be seen; 1: it would not; 2: usage.
 */
int gxd_check(int argc, char **argv);

#endif
