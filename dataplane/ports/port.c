/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of packet devices, and the reason why one of them failed. Control path, any thread: each
 * thread has its own reason.
 */
#include "gx_internal/port.h"
#include "gx_internal/slots.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct gx_port_ops *const port_table[] = {
	&gx_port_shm_ops,
#ifdef GX_HAVE_DPDK
	&gx_port_dpdk_ops,
#endif
	&gx_port_udp_ops,
};
static const struct gx_port_ops *port_added; /* a test's; NULL: none */

static _Thread_local char port_why[512], port_given[sizeof(port_why)];

/* ---- Defaults of the slots ---- */

static int none_mem_map(struct gx_port *p, void *ptr, size_t len)
{
	return 0;
}

static void none_mem_unmap(struct gx_port *p, void *ptr, size_t len)
{
}

void gx_port_peer_plain(struct gx_port_queue *q, uint32_t peer, struct gx_port_peer *out)
{
	*out = (struct gx_port_peer){
		.flags = q->port->caps.flags & GX_PORT_TX_ATTACH, .pool = -1, .pool_here = -1};
}

static void none_way(struct gx_port_queue *q, uint32_t peer, struct gx_port_way *out)
{
	*out = (struct gx_port_way){0};
}

static void none_path(struct gx_port_queue *q, enum gx_half half, uint32_t peer, unsigned path)
{
}

static unsigned none_reap(struct gx_port_queue *q, uint32_t cookies[], unsigned n)
{
	return 0;
}

static int none_fault(struct gx_port_queue *q)
{
	return 0;
}

static int none_sleep_open(struct gx_port_queue *q, int fd)
{
	return 0;
}

static int none_sleep_look(struct gx_port_queue *q)
{
	return -EOPNOTSUPP;
}

static void none_wake(struct gx_port_queue *q, uint32_t peer)
{
}

static const struct gx_port_ops none_ops = {
	.mem_map = none_mem_map,
	.mem_unmap = none_mem_unmap,
	.peer_info = gx_port_peer_plain,
	.peer_way = none_way,
	.path = none_path,
	.tx_reap = none_reap,
	.fault = none_fault,
	.sleep_open = none_sleep_open,
	.sleep_look = none_sleep_look,
	.wake = none_wake,
};

static void port_fill(struct gx_port_ops *ops)
{
	const size_t first = offsetof(struct gx_port_ops, open);

	gx_slots_fill(&ops->open, &ops->open, &none_ops.open, sizeof(*ops) - first);
}

static void __attribute__((constructor)) ports_fill(void)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(port_table); i++)
		port_fill(port_table[i]);
}

/* ---- The list ---- */

void gx_port_add(struct gx_port_ops *ops)
{
	port_fill(ops);
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

const char *gx_port_why_of(int ret)
{
	snprintf(port_given, sizeof(port_given), "%s", port_why[0] ? port_why : strerror(-ret));
	port_why[0] = 0;
	return port_given;
}

void gx_port_why_set(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(port_why, sizeof(port_why), fmt, ap);
	va_end(ap);
}
