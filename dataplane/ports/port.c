/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of packet devices, and the reason why one of them failed. Control path, any thread: each
 * thread has its own reason.
 */
#include "gx_internal/port.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct gx_port_ops *const port_table[] = {
	&gx_port_shm_ops,
#ifdef GX_HAVE_DPDK
	&gx_port_dpdk_ops,
#endif
	&gx_port_udp_ops,
};
static const struct gx_port_ops *port_added; /* a test's; NULL: none */

static _Thread_local char port_why[512];

void gx_port_peer_plain(struct gx_port_queue *q, uint32_t peer, struct gx_port_peer *out)
{
	*out = (struct gx_port_peer){
		.flags = q->port->caps.flags & GX_PORT_TX_ATTACH, .pool = -1, .pool_here = -1};
}

int gx_port_sleep_none(struct gx_port_queue *q, int fd)
{
	return 0;
}

int gx_port_look_none(struct gx_port_queue *q)
{
	return -EOPNOTSUPP;
}

void gx_port_wake_none(struct gx_port_queue *q, uint32_t peer)
{
}

void gx_port_add(const struct gx_port_ops *ops)
{
	port_added = ops;
}

const struct gx_port_ops *gx_port_find(const char *name)
{
	if (port_added && !strcmp(port_added->name, name))
		return port_added;
	for (unsigned i = 0; i < GX_ARRAY_SIZE(port_table); i++)
		if (!strcmp(port_table[i]->name, name))
			return port_table[i];
	if (!strcmp(name, "dpdk"))
		gx_port_why_set(
			"port dpdk: not built in; build gx where DPDK (libdpdk) is installed");
	else
		gx_port_why_set("port %.64s: no such port; there are shm, dpdk and udp", name);
	return NULL;
}

const char *gx_port_why(void)
{
	return port_why;
}

void gx_port_why_set(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(port_why, sizeof(port_why), fmt, ap);
	va_end(ap);
}
