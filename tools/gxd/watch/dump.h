/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gxd dump: all that the gx processes of this host publish, as JSON.
 */
#ifndef GXD_DUMP_H
#define GXD_DUMP_H

#include <argp.h>

extern const struct argp gxd_dump_argp;

/** gxd_dump() - Run the command line after "gxd". Main thread. Return: the exit status: 0 ok, 1
 * failed, 2 usage. */
int gxd_dump(int argc, char **argv);

struct gx;
/** gxd_dump_log() - What a context is made of, and its counters that are not 0, into the log. On the
 * control thread, too. */
void gxd_dump_log(struct gx *gx);

#endif
