/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The link seam: a way to move messages between two endpoints. The packet link
 * (dataplane/packet/link_pkt.c) runs over any port. The local link (dataplane/local/link_local.c)
 * copies into mapped memory of a peer on this host, and holds a packet link for the rest. So does
 * the verbs link (dataplane/verbs/link_verbs.c), for which an RDMA device copies. The tcp link
 * (dataplane/tcp/link_tcp.c) uses TCP sockets of the kernel. An endpoint belongs to one core. Only
 * that core's thread calls slots marked [core]; they never block and never allocate. The others are
 * control path.
 */
#ifndef GX_INTERNAL_LINK_H
#define GX_INTERNAL_LINK_H

#include "gx_internal/base.h"
#include "gx_internal/wire.h"

struct gx_ep;
struct gx_op;
struct gx_route;

/* Operations of an endpoint that post() takes at least while none of them ends, whatever their
 * sizes: of any kind; receives and gets; gets. What the packet link under a link holds counts. */
struct gx_link_room {
	uint16_t ops, recvs, gets;
};

struct gx_link_ops {
	const char *name;
	struct gx_link_room room;

	/* A zeroed endpoint of this link, for ep_free(). NULL: out of memory. */
	struct gx_ep *(*ep_new)(void);
	/* Make our end of a lane; @local: data for the peer. 0, -errno. */
	int (*ep_open)(struct gx_ep *ep, struct gx_hello_lane *local);
	/* @remote: the peer's data; the agreed parameters are in the connection. 0, -errno. */
	int (*ep_connect)(struct gx_ep *ep, const struct gx_hello_lane *remote);
	/* After detach (or if it was never attached). */
	void (*ep_free)(struct gx_ep *ep);

	/* [core] The core turns the ep from now on. */
	void (*ep_attach)(struct gx_ep *ep);
	/* [core] Fail every operation with @err, and stop. The link sets ep->detached once no
	 * buffer is out. */
	void (*ep_fail)(struct gx_ep *ep, int err);

	/* [core] Take one operation (checked by the caller). The link keeps @route with it, and
	 * gives it to core_comp() with each of its completions. It ignores op->stream. 0, -EAGAIN
	 * when full, -errno. */
	int (*post)(struct gx_ep *ep, const struct gx_op *op, struct gx_route *route);
	/* [core] After posts: send now operations that need no more than a control packet. */
	void (*kick)(struct gx_ep *ep);
	/* [core] Ask for the cancellation of operations with this @user and @route. Return: how
	 * many. */
	int (*cancel)(struct gx_ep *ep, uint64_t user, const struct gx_route *route);
};

extern const struct gx_link_ops gx_link_pkt_ops, gx_link_local_ops, gx_link_tcp_ops,
	gx_link_verbs_ops;

#endif
