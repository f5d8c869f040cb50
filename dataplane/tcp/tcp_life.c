/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of an endpoint of the tcp link: it fails, and leaves its core when no GPU copies for it
 * any more, and the kernel sends none of its memory. tcp_attach() in tcp_turn.c is the beginning. Runs on the polling core.
 */
#include "tcp/tcp_life.h"
#include "tcp/tcp_feed.h"
#include "tcp/tcp_live.h"
#include "tcp/tcp_offload.h"
#include "tcp/tcp_op.h"
#include "tcp/tcp_sock.h"

#include <errno.h>
#include <sys/epoll.h>

/* End all operations, but those into whose memory a GPU still copies, or whose memory the kernel
 * sends. */
static void ops_fail(struct tcp_ep *e)
{
	uint64_t held[TCP_OPS / 64] = {0};

	for (uint32_t k = 0; k < TCP_MIDS && e->rx.nr_held; k++)
		if (e->in[k].pending && e->in[k].op != TCP_NONE)
			held[e->in[k].op / 64] |= 1ull << (e->in[k].op & 63);
	for (uint32_t i = 0; i < e->ops_top; i++)
		if (e->ops[i].state != TCP_OP_FREE && !e->ops[i].held &&
		    !(held[i / 64] >> (i & 63) & 1))
			tcp_op_finish(e, i, e->err, 0);
}

void tcp_ep_leave(struct tcp_ep *e)
{
	struct gx_ep *ep = &e->ep;

	if (e->rx.nr_held || e->nic.nr_out)
		return;
	e->link->offload->leave(e);
	ops_fail(e);
	for (unsigned i = 0; i < e->nr_socks; i++) {
		if (e->sock[i].feed)
			e->sock[i].feed->ops->leave(e->sock[i].feed);
		if (e->sock[i].watched) /* it stays open for a while, and readable */
			epoll_ctl(e->link->fd, EPOLL_CTL_DEL, e->sock[i].fd, NULL);
	}
	for (uint32_t k = 0; k < TCP_MIDS && e->rx.nr_in; k++) {
		if (e->in[k].state == TCP_IN_FREE)
			continue;
		core_unuse(ep->core, e->in[k].use);
		e->rx.nr_in--;
	}
	if (e->index != TCP_NONE)
		e->link->eps[e->index] = NULL;
	ep->comp_mark = ep->core->comp_head;
	/* The last touch: the control thread may free it from here on. */
	atomic_store_explicit(&ep->detached, true, memory_order_release);
}

/* Without sends from device memory the kernel references no memory between two calls. So everything
 * ends at once, unless a GPU copies; then the endpoint leaves when the last block with bytes of it
 * comes back. */
void tcp_fail(struct gx_ep *ep, int err)
{
	struct tcp_ep *e = tcp_of(ep);

	if (e->err)
		return;
	if (e->ctls.holds && e->live_at != TCP_NONE)
		tcp_tx(e); /* the program has seen the message, and closes: the peer hears that it came */
	e->err = err ? err : -ECONNRESET;
	if (e->live_at != TCP_NONE)
		tcp_live_remove(e);
	tcp_tell_gauge(e);
	for (unsigned i = 0; i < e->nr_socks; i++)
		if (e->sock[i].feed)
			tcp_feed_drop(e->sock[i].feed);
	e->link->offload->fail(e);
	ops_fail(e);
	tcp_ep_leave(e);
}
