/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint of the packet link on its core: it is attached, it fails, and it leaves the core when
 * nothing of it is under way any more. Runs on the polling core.
 */
#include "packet/pkt.h"
#include "packet/ask.h"
#include "packet/bad.h"
#include "packet/fetch.h"
#include "packet/in.h"
#include "packet/life.h"
#include "packet/op.h"
#include "packet/share.h"
#include "packet/timer.h"
#include "packet/trial.h"
#include "packet/wake.h"

#include <errno.h>

void pkt_attach(struct gx_ep *ep)
{
	struct pkt_ep *e = pkt_of(ep);
	struct link_pkt *l = e->link;

	e->now_ns = e->timer.heard_ns = e->timer.acked_ns = ep->core->now_ns;
	e->timer.tick_ns = 0;
	trial_attach(e);
	l->eps[e->index] = e;
	ep_live(e);
	if (l->port->caps.flags & GX_PORT_SHARED_POOL)
		l->pool_out += e->credit0;
	l->q->ops->peer_attach(l->q, e->port_peer);
	atomic_store_explicit(&ep->attached, true, memory_order_release);
}

/* If a copy under way may still touch the memory of an operation, it ends later, in
 * link_fail_progress(). */
static void fail_ops(struct pkt_ep *e, bool all)
{
	uint64_t in_use[PKT_OPS / 64] = {0};

	for (uint32_t k = 0; k < GX_WIRE_MIDS && e->rx.nr_in && !all; k++)
		if (e->in[k].state != IN_FREE && e->in[k].pending && e->in[k].op != PKT_NONE)
			in_use[e->in[k].op / 64] |= 1ull << (e->in[k].op & 63);
	for (uint32_t i = 0; i < e->tx.ops_top; i++)
		if (e->ops[i].state != OP_FREE && !e->ops[i].reported &&
		    (all || !(e->ops[i].refs || in_use[i / 64] >> (i & 63) & 1)))
			op_complete(e, i, e->err, 0);
}

void pkt_fail(struct gx_ep *ep, int err)
{
	struct pkt_ep *e = pkt_of(ep);

	if (e->err)
		return;
	e->err = err ? err : -ECONNRESET;
	if (!atomic_load_explicit(&ep->attached, memory_order_relaxed)) {
		atomic_store_explicit(&ep->detached, true, memory_order_release);
		return;
	}
	share_leave(e);
	ep_touch(e);
	pull_fail_ep(e);
	fail_ops(e, false);
	link_fail_progress(e);
}

bool link_fail_progress(struct pkt_ep *e)
{
	struct link_pkt *l = e->link;

	if (e->pull.lent)
		pull_reap(e);
	if (e->rx.held_bufs || e->tx.refs || e->pull.lent)
		return false;
	fail_ops(e, true);
	in_close(e);
	bad_close(e);
	ask_close(e);
	fetch_close(e);
	for (uint32_t i = 0; i < e->tx.ops_top; i++)
		if (e->ops[i].state != OP_FREE) {
			op_drop(e, &e->ops[i]);
			op_free(e, i);
		}
	link_release_flush(l);
	l->q->ops->peer_detach(l->q, e->port_peer);
	ep_gone(e);
	l->eps[e->index] = NULL;
	timer_gauges(e, 0);
	e->ep.comp_mark = e->ep.core->comp_head;
	/* The last touch: the control thread may free it from here on. */
	atomic_store_explicit(&e->ep.detached, true, memory_order_release);
	return true;
}
