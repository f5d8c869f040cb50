/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of gxd, from the command line and from a file of lines. Main thread only.
 */
#ifndef GXD_OPTS_H
#define GXD_OPTS_H

#include "gxd/serve/service.h"

#include "common/opt_argp.h"

#include <argp.h>

#define GXD_PORTS_MAX 8
#define GXD_UIDS_MAX  16

enum { GXD_OK = 0, GXD_FAILED = 1, GXD_USAGE = 2 };

/** struct gxd_opts - Frozen after gxd_opts_take(). */
struct gxd_opts {
	const char *listen, *stats, *bind, *link, *user;
	struct opt_ports ports;
	struct opt_cpus cpus, allowed;
	struct service_region regions[SERVICE_REGIONS_MAX];
	unsigned nr_regions;
	unsigned uids[GXD_UIDS_MAX];
	unsigned nr_uids;
	struct opt_ctx gx;    /* opt_gx_argp fills it; gxd_open() adds the rest */
	struct opt_gx gx_to;  /* points at gx */
	const char *commands; /* "keygen, nic, ...", for a message */
};

extern const struct argp gxd_argp, gxd_check_argp;

/**
 * gxd_opts_take() - Parse @argv into @o, which is all zero and lives as long as the process. Each
 * --config FILE stands for the options of that file. Ends the program upon --help and wrong usage.
 * @argp: one of these
 * Return: 0; else the exit status, and stderr has the reason.
 */
int gxd_opts_take(const struct argp *argp, int argc, char **argv, struct gxd_opts *o);

/** gxd_opts_nobody() - NULL; or why a gxd with these options would serve nobody, until the next call. */
const char *gxd_opts_nobody(const struct gxd_opts *o);

#endif
