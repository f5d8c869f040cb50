/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context on one port with few bounce buffers, as tests with two ends in one process open it.
 */
#ifndef COMMON_GX_H
#define COMMON_GX_H

#include <stdbool.h>
#include <stdio.h>

#include <gx/gx.h>

static inline int common_gx_open(struct gx_opts o, const char *port, struct gx **gx)
{
	o.size = sizeof(o);
	o.ports = &port;
	o.nr_ports = 1;
	o.slots = 128;
	return gx_open(&o, gx);
}

/* Is GPU 0 there? Else the reason is printed. */
static inline bool common_gpu_there(void)
{
	struct gx_opts o = GX_INIT(o);
	struct gx *gx;
	bool there;

	if (gx_open(&o, &gx))
		return false;
	there = !gx_gpu_open(gx, 0);
	if (!there)
		printf("no GPU: %s\n", gx_error());
	gx_close(gx);
	return there;
}

#endif
