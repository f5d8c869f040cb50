/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of a context by subject, as gx.h groups them. gx_open() takes them; frozen afterwards.
 */
#ifndef GX_CORE_OPTS_H
#define GX_CORE_OPTS_H

#include "gx/auth.h"
#include "gx/gx.h"

struct core_groups {
	struct gx_core_opts cores;
	struct gx_host_opts host;
	struct gx_packet_opts packet;
	struct gx_gpu_opts gpu;
	struct gx_nic_opts nic;
	struct gx_verbs_opts verbs;
	struct gx_auth_opts auth;
};

/** core_groups_take() - Copy the groups of @o to @g, with the defaults, and have @o point there.
 * Return: 0, -EINVAL or -E2BIG with gx_error(). */
int core_groups_take(struct gx_opts *o, struct core_groups *g);

/* The links' groups of a gx_connect_opts. */
struct core_connect {
	struct gx_connect_tcp_opts tcp;
	struct gx_connect_verbs_opts verbs;
};

/** core_connect_take() - Copy the groups of @o; NULL: the defaults. Return: as core_groups_take(). */
int core_connect_take(const struct gx_connect_opts *o, struct core_connect *out);

/** core_groups_point() - Have @o's groups be those of @g. */
void core_groups_point(struct gx_opts *o, struct core_groups *g);

/** core_port_text() - "shm", "udp:port=7601", "dpdk:net_memif,id=0". Return: its length, which may
 * exceed @room. */
size_t core_port_text(const struct gx_port_name *p, char *buf, size_t room);

#endif
