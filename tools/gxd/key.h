/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gxd keygen: makes a key file.
 */
#ifndef GXD_KEY_H
#define GXD_KEY_H

#include <argp.h>

extern const struct argp gxd_keygen_argp;

/**
 * gxd_keygen() - Run the command line after "gxd". Main thread, before anything is open. No secret is
 * printed.
 * @argv: argv[0] is "keygen"
 * Return: the exit status: 0: the file is there; 1: it could not be made; 2: usage.
 */
int gxd_keygen(int argc, char **argv);

#endif
