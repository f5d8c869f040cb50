/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The link seam: a way to move messages between two endpoints. The packet link
 * (dataplane/packet/link_pkt.c) runs over any port; the local link (dataplane/local/link_local.c) copies into
 * mapped memory of a peer on this host and holds a packet link for the rest. An endpoint belongs to
 * one core. Slots marked [core] are called by that core's thread only, never block and never
 * allocate; the others are control path.
 */
#ifndef GX_INTERNAL_LINK_H
#define GX_INTERNAL_LINK_H

#include "gx_internal/base.h"
#include "gx_internal/wire.h"

struct gx_ep;
struct gx_op;
struct gx_route;

struct gx_link_ops {
	const char *name;

	/* A zeroed endpoint of this link; ep_free() gives it back. NULL: out of memory. */
	struct gx_ep *(*ep_new)(void);
	/* Make our end of a lane; @local is what the peer must know. -errno. */
	int (*ep_open)(struct gx_ep *ep, struct gx_hello_lane *local);
	/* What the peer said; the agreed parameters are in the connection. -errno. */
	int (*ep_connect)(struct gx_ep *ep, const struct gx_hello_lane *remote);
	/* After detach (or when it was never attached). */
	void (*ep_free)(struct gx_ep *ep);

	/* [core] From now on the ep is turned. */
	void (*ep_attach)(struct gx_ep *ep);
	/* [core] Fail every operation with @err, stop; ep->detached is set once no buffer is out.
	 */
	void (*ep_fail)(struct gx_ep *ep, int err);

	/* [core] Take one operation (checked by the caller). @route is kept with it and given to
	 * core_comp() with each of its completions; op->stream is none of the link's business. 0,
	 * -EAGAIN when full, -errno. */
	int (*post)(struct gx_ep *ep, const struct gx_op *op, struct gx_route *route);
	/* [core] Operations were posted: send now what needs no more than a control packet. */
	void (*kick)(struct gx_ep *ep);
	/* [core] Mark operations with this user value and this route for cancellation. How many. */
	int (*cancel)(struct gx_ep *ep, uint64_t user, const struct gx_route *route);
};

extern const struct gx_link_ops gx_link_pkt_ops, gx_link_local_ops;

#endif
