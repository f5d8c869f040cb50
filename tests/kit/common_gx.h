/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ends in one process: contexts on one port with few bounce buffers, the server's memory, its
 * address, a connection.
 */
#ifndef COMMON_GX_H
#define COMMON_GX_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <gx/gx.h>

#define COMMON_WAIT_NS 60000000000ull /* for a connection */

static inline int common_gx_open(struct gx_opts o, const char *port, struct gx **gx)
{
	size_t len = strcspn(port, ":"); /* "dpdk:net_memif,id=0" */
	char text[64];
	const struct gx_port_name name = {.name = text,
					  .device = port[len] ? port + len + 1 : NULL};
	struct gx_packet_opts packet = GX_INIT(packet);

	if (o.packet)
		packet = *o.packet;
	snprintf(text, sizeof(text), "%.*s", (int)len, port);
	packet.slots = 128;
	o.size = sizeof(o);
	o.ports = &name;
	o.nr_ports = 1;
	o.packet = &packet;
	return gx_open(&o, gx);
}

/* gx_opts.verbs with an RDMA device; without a name: none. */
static inline const struct gx_verbs_opts *common_gx_verbs(const char *device)
{
	static struct gx_verbs_opts o;
	static struct gx_rail rail;

	rail.device = device;
	o = (struct gx_verbs_opts){.size = sizeof(o), .rails = &rail, .nr_rails = 1};
	return device ? &o : NULL;
}

/* gx_opts.on_conn of an end that connects nothing itself. */
static inline void common_gx_on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event,
				     int err, const char *why)
{
	if (event == GX_CONN_EVENT_DOWN)
		gx_conn_close(conn);
}

/* Memory that peers may put to and get from, under the name "kv". */
static inline struct gx_mem *common_gx_kv(struct gx *gx, enum gx_mem_kind kind, uint64_t len)
{
	struct gx_mem *mem;

	assert_int_equal(gx_mem_alloc(gx, kind, 0, len, &mem), 0);
	assert_int_equal(gx_mem_share(mem, "kv", GX_ACCESS_PUT | GX_ACCESS_GET), 0);
	return mem;
}

/* On loopback. @addr: where that is */
static inline void common_gx_listen(struct gx *gx, char addr[32])
{
	int port = gx_listen(gx, "127.0.0.1:0");

	assert_true(port > 0);
	snprintf(addr, 32, "127.0.0.1:%d", port);
}

/* Return: a connection whose end here is up. */
static inline struct gx_conn *common_gx_connect(struct gx *gx, const char *addr, const char *link)
{
	struct gx_connect_opts o = GX_INIT(o);
	struct gx_conn *conn;

	o.link = link;
	o.timeout_ns = COMMON_WAIT_NS;
	assert_int_equal(gx_connect(gx, addr, &o, &conn), 0);
	if (gx_conn_wait(conn, COMMON_WAIT_NS))
		fail_msg("not up: %s", gx_error());
	return conn;
}

/* A server whose cores run on threads of gx's, and a client, over shm. */
struct common_rig {
	struct gx *server, *client;
	struct gx_mem *kv; /* of the server */
	char addr[32];	   /* of the server */
};

/* @o: of both ends */
static inline void common_rig_open(struct common_rig *r, struct gx_opts o, uint64_t kv_b)
{
	assert_int_equal(common_gx_open(o, "shm", &r->client), 0);
	o.server = true;
	o.on_conn = common_gx_on_conn;
	assert_int_equal(common_gx_open(o, "shm", &r->server), 0);
	r->kv = common_gx_kv(r->server, GX_MEM_HOST, kv_b);
	common_gx_listen(r->server, r->addr);
	for (unsigned i = 0; i < gx_nr_cores(r->server); i++)
		assert_int_equal(gx_core_start(gx_core(r->server, i)), 0);
}

static inline void common_rig_close(struct common_rig *r)
{
	gx_close(r->client);
	gx_close(r->server);
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
