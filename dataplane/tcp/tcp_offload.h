/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a NIC may do for endpoints of the tcp link in place of the kernel: bring payload to memory that
 * sockets read as a feed (tcp_feed.h), and take it from memory of GPUs. Whoever opens the link of a
 * core says who does it: an optional part of gx (dataplane/nic/), or tcp_offload_none, with
 * which the kernel copies everything. Every slot is set.
 *
 * A NIC reads memory that it sends later. So an operation counts in .held the sends of it that have
 * not ended, and an endpoint in .nr_out those of all. An operation completes when its count is 0.
 */
#ifndef GX_TCP_OFFLOAD_H
#define GX_TCP_OFFLOAD_H

#include "gx_internal/base.h"

#include <sys/types.h>

struct gx_ep;
struct tcp_ep;
struct tcp_op;
struct tcp_sock;

struct tcp_offload {
	/* -- control path -- */
	/* The lane is open, and the peer has not heard of it: may its payload come bare? */
	void (*open)(struct tcp_ep *e);
	/* Its sockets are there: which have a feed, which are bare? Return: 0; -errno with
	 * gx_error(). */
	int (*connect)(struct tcp_ep *e);
	void (*close)(struct tcp_ep *e); /* its sockets are closed; accepts a half-open one */
	void (*tick)(struct gx_ep *ep);	 /* every 20 ms: warn */

	/* -- polling core -- */
	/* Is a NIC to send @op from memory of a GPU? Then .dev is set. Asked again and again. */
	bool (*takes)(struct tcp_ep *e, struct tcp_op *op);
	/* Send the rest of the payload of @s's first frame, of an operation with .dev; *want: how
	 * much that is. Return: bytes; -EAGAIN: none now; -errno: the socket is lost. */
	ssize_t (*send)(struct tcp_ep *e, struct tcp_sock *s, uint64_t *want);
	/* Operation @i, which is held, ends early: its completion waits. */
	void (*early)(struct tcp_ep *e, uint32_t i);
	/* The peer is done with operation @i, which is held, and its mid is free. */
	void (*done)(struct tcp_ep *e, uint32_t i, int err);
	void (*fail)(struct tcp_ep *e);	 /* the endpoint has failed; .nr_out may not be 0 */
	void (*leave)(struct tcp_ep *e); /* nothing is out, and it leaves its core */
};

extern const struct tcp_offload tcp_offload_none;

#endif
