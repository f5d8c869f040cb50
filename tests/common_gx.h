/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context on one port with few bounce buffers, as tests with two ends in one process open it.
 */
#ifndef COMMON_GX_H
#define COMMON_GX_H

#include <gx/gx.h>

static inline int common_gx_open(struct gx_opts o, const char *port, struct gx **gx)
{
	o.size = sizeof(o);
	o.ports = &port;
	o.nr_ports = 1;
	o.slots = 128;
	return gx_open(&o, gx);
}

#endif
