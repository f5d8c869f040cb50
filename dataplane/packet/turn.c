/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One turn of the packet link: read this first. The polling loop (poll/loop.c) calls
 * link_pkt_poll(), which does in this order:
 *
 *   rx_reap()    hands on the fragments that were copied since the last turn (rx.c)
 *   rx_poll()    takes packets from the port: control records and acknowledgements, then data, and
 *                writes descriptors for the data (rx.c; in.c, ack.c, match.c, ask.c). Not in each
 *                turn, if packets are few (wake.c), and then of the control half first
 *   rx_reap()    once more: a CPU that copies has done so by now
 *   turn_settle_tx()  takes back buffers that the port and the copy engines have finished with
 *   link_wake()  makes endpoints hot whose timers are due (wake.c)
 *   tx_ep()      for each hot endpoint: timers (timer.c), completions that waited for room (in.c),
 *                gets of the peer (match.c), operations to begin (tx.c), control records (rec.c),
 *                probes (path.c), data (tx.c), a slice of a message that this end reads out of
 *                the peer's process (pull_in.c), credit (share.c), an acknowledgement (ack.c)
 *   share_look() looks at the holders of a pool that is short (share.c)
 *   link_rest()  makes endpoints cold of which nothing is under way (wake.c)
 *
 * Runs on the polling core.
 */
#include "packet/pkt.h"
#include "packet/ack.h"
#include "packet/in.h"
#include "packet/life.h"
#include "packet/make.h"
#include "packet/match.h"
#include "packet/op.h"
#include "packet/rec.h"
#include "packet/rxtx.h"
#include "packet/share.h"
#include "packet/timer.h"
#include "packet/wake.h"
#include "gx_internal/probe.h"

#define LOOKS_WHOLE 8 /* every so many looks at a quiet port are at both halves */

bool link_pkt_asleep(const void *link)
{
	return !((const struct link_pkt *)link)->nr_live;
}

/* Before the data, which may fill the port for good while none of it arrives. */
static void tx_prove(struct pkt_ep *e)
{
	if (e->link->q->ops->tx_room(e->link->q, GX_HALF_DATA, e->port_peer) < 2)
		return;
	e->path.prove_due = false;
	make_probe(e, e->shape.quantum, 0);
	make_probe(e, PKT_SMALL_B, 0);
}

static bool tx_ep(struct pkt_ep *e)
{
	bool worked = false;

	if (e->err)
		return link_fail_progress(e);
	if (e->now_ns >= e->timer.tick_ns || e->now_ns >= flow_due(e->flow))
		timer_tick(e);
	if (gx_unlikely(e->paths))
		tick_paths(e);
	if (e->rx.landed_head != PKT_NONE)
		worked |= in_deliver_due(e);
	if (e->match.gets_head != e->match.gets_tail)
		match_serve_gets(e);
	if (e->tx.wait_head != PKT_NONE && e->path.proven)
		worked |= tx_start(e);
	if (e->rec.queued && (!e->pace.cc || cc_is_open(e->pace.cc)))
		worked |= rec_send(e);
	if (gx_unlikely(e->path.prove_due))
		tx_prove(e);
	if (tx_has_first(e) || e->tx.resend_head != e->tx.resend_tail ||
	    e->asks.head != e->asks.tail)
		worked |= tx_data(e);
	if (e->pull.nr_due | e->pull.lent)
		worked |= pull_turn(e);
	if (e->share.on)
		share_grant(e);
	else
		tx_grant(e);
	worked |= ack_send(e);
	return worked;
}

static bool tx_reap(struct link_pkt *l)
{
	uint32_t cookies[GX_BURST_MAX];
	unsigned n;

	if (!l->refs)
		return false;
	n = l->q->ops->tx_reap(l->q, cookies, GX_BURST_MAX);
	for (unsigned i = 0; i < n; i++)
		op_unref(l, cookies[i]);
	return n > 0;
}

bool turn_settle_tx(struct link_pkt *l, uint64_t now_ns)
{
	bool worked = tx_reap(l);

	for (unsigned i = 0; i < l->nr_gpus; i++)
		if (l->stage[i])
			worked |= stage_reap(l->stage[i], now_ns);
	return worked;
}

static bool tx_poll(struct link_pkt *l, uint64_t now_ns)
{
	bool worked = turn_settle_tx(l, now_ns);
	unsigned nr;

	link_wake(l, now_ns);
	l->pull_left_b = PULL_TURN_B;
	nr = l->nr_hot;
	if (++l->rover >= nr)
		l->rover = 0;
	/* An ep that finishes failing leaves the array. So go from the back, and skip none. */
	for (unsigned i = nr; i-- > 0;) {
		unsigned k = i + l->rover < nr ? i + l->rover : i + l->rover - nr;

		if (k < l->nr_hot) {
			l->hot[k]->now_ns = now_ns;
			worked |= tx_ep(l->hot[k]);
		}
	}
	if (gx_unlikely(l->share.is_short))
		share_look(l, now_ns);
	if (gx_unlikely(l->ticked))
		link_rest(l);
	return worked;
}

void turn_settle_rx(struct link_pkt *l, uint64_t now_ns)
{
	rx_reap(l, now_ns);
	rx_flush(l, true, now_ns);
	rx_reap(l, now_ns);
}

static bool link_look(struct link_pkt *l, uint64_t now_ns)
{
	/* Where nothing is lost, no probe follows data that nobody acknowledges. */
	bool few = l->look_ns && ++l->looks % LOOKS_WHOLE;

	if (!rx_poll(l, few, now_ns)) {
		link_look_later(l, now_ns);
		return false;
	}
	l->heard_ns = now_ns;
	l->look_ns = 0;
	return true;
}

/* One turn: reap, rx, reap once more (a CPU that copies has done so), tx and timers. */
bool link_pkt_poll(void *link, uint64_t now_ns)
{
	struct link_pkt *l = link;
	bool worked;

	l->core->now_ns = now_ns;
	if (!l->nr_live)
		return false;
	/* The turn before may have heard a packet later than the time of this one. */
	l->core->now_ns = l->q->now_ns = now_ns = GX_MAX(now_ns, l->q->heard_ns);
	worked = rx_reap(l, now_ns);
	GX_PROBE(pkt_reap, l, worked);
	if (!link_look_waits(l, now_ns) && link_look(l, now_ns)) {
		worked = true;
		rx_reap(l, now_ns);
	}
	GX_PROBE(pkt_rx, l, worked);
	worked |= tx_poll(l, l->core->now_ns);
	GX_PROBE(pkt_tx, l, worked);
	link_release_flush(l);
	if (worked && now_ns >= l->stats_ns) {
		l->stats_ns = now_ns + PKT_TICK_NS;
		timer_stats(l);
	}
	return worked;
}
