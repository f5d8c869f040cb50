/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hot endpoints of the tcp link, which turns serve, and cold ones, which the kernel or a time
 * wakes.
 */
#ifndef GX_TCP_LIVE_H
#define GX_TCP_LIVE_H

#include "tcp/tcp.h"

#define TCP_COLD_FEW  4	 /* among so few endpoints none is cold */
#define TCP_LIVE_TURN 32 /* hot endpoints, cold ones that wake, and times that a turn looks at */

int tcp_live_open(struct link_tcp *l);	 /* ctl, before each endpoint. Return: 0, -errno */
void tcp_live_close(struct link_tcp *l); /* ctl, after the last one */
void tcp_live_add(struct tcp_ep *e);	 /* it is hot */
void tcp_live_remove(struct tcp_ep *e);
void tcp_live_heat(struct tcp_ep *e); /* it has work, or may have */
/** tcp_live_see() - Among more than a few, after a turn of @e, which @worked, or a post on a cold one:
 * is it hot or cold? */
void tcp_live_see(struct tcp_ep *e, bool worked);
/** tcp_live_watch() - Have the kernel report what @e's sockets wait for. Return: 0, -errno. */
int tcp_live_watch(struct tcp_ep *e);

static inline bool tcp_live_is_cold(const struct tcp_ep *e)
{
	return e->live_at != TCP_NONE && e->live_at >= e->link->nr_hot;
}

/* When to look whether the peer of an endpoint that waits for it is there. */
static inline uint64_t tcp_live_look_ns(const struct tcp_ep *e, uint64_t now_ns)
{
	return now_ns + GX_MIN(100000000u, e->ep.conn->agreed.peer_timeout_ns / 16);
}

#endif
