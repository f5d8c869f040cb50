/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gxd nic: the set-up of a network interface for TCP payload straight into memory of a device.
 */
#ifndef GXD_NIC_H
#define GXD_NIC_H

#include <argp.h>

extern const struct argp gxd_nic_argp;

/**
 * gxd_nic() - Run the command line after "gxd". Main thread, before anything is open.
 * @argv: argv[0] is "nic"
 * Return: the exit status: 0: each step is done or could be; 1: one is refused; 2: usage.
 */
int gxd_nic(int argc, char **argv);

#endif
