/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slow timers of an endpoint, which run once a millisecond while something of it is under way:
 * deadlines, whether the peer lives, faults of the port and of GPUs, a `done` that does not come.
 * Runs on the polling core.
 */
#include "packet/pkt.h"
#include "packet/seal.h"
#include "packet/abort.h"
#include "packet/ack.h"
#include "packet/bad.h"
#include "packet/fetch.h"
#include "packet/in.h"
#include "packet/make.h"
#include "packet/rec.h"
#include "packet/timer.h"
#include "packet/trial.h"

#include <errno.h>

#define PKT_ASK_MAX_NS 64000000 /* between probes of an endpoint that waits for done */

static void tick_deadlines(struct pkt_ep *e)
{
	e->timer.deadline_ns = UINT64_MAX;
	for (uint32_t i = 0; i < e->tx.ops_top; i++) {
		struct pkt_op *op = &e->ops[i];

		if (!op_is_live(op) || !op->deadline_ns)
			continue;
		if (op->deadline_ns <= e->now_ns)
			abort_op(e, i, -ETIMEDOUT);
		else
			e->timer.deadline_ns = GX_MIN(e->timer.deadline_ns, op->deadline_ns);
	}
}

static void tick_cancels(struct pkt_ep *e)
{
	e->tx.cancels_due = false;
	for (uint32_t i = 0; i < e->tx.ops_top; i++)
		if (e->ops[i].state != OP_FREE && e->ops[i].cancel_due)
			abort_rec(e, &e->ops[i]);
}

/* When the peer's core last showed that it lives. While our packets wait for it, only an
 * acknowledgement shows that. For without protection others may send packets as the peer. And a
 * packet that others send to the peer as ours can make it take all our later ones for old. The peer
 * acknowledges keepalives as well. */
static uint64_t alive_heard_ns(const struct pkt_ep *e)
{
	bool unacked = flow_outstanding(e->flow) || e->tx.resend_head != e->tx.resend_tail ||
		       e->rec.floor != e->rec.next || e->asks.head != e->asks.tail;

	return unacked && !e->lossless ? e->timer.acked_ns : e->timer.heard_ns;
}

/* This core must hear the peer's core while anything is outstanding with it, and asks a silent one.
 * Only time in which this core was turned counts: in a pause of our own (a debugger, SIGSTOP, a
 * busy program) nobody asked the peer. A pause counts as an eighth of the time-out, so a core that
 * is seldom turned gives up in the end. */
static void tick_alive(struct pkt_ep *e)
{
	bool waiting = e->tx.nr_ops || e->rx.nr_in || e->want_peer;
	uint64_t eighth = e->timer.peer_timeout_ns / 8, before = e->timer.alive_ns;
	uint64_t heard_ns = alive_heard_ns(e);

	e->timer.alive_ns = e->now_ns;
	if (!waiting || !e->timer.waiting) {
		e->timer.waiting = waiting;
		e->timer.silence_ns = 0;
		return;
	}
	if (heard_ns > before)
		e->timer.silence_ns = 0;
	before = GX_MAX(before, heard_ns);
	e->timer.silence_ns += GX_MIN(e->now_ns - GX_MIN(e->now_ns, before), eighth);
	if (e->timer.silence_ns >= e->timer.peer_timeout_ns) {
		rx_fault(e, -ETIMEDOUT);
		return;
	}
	if (e->timer.silence_ns >= eighth && e->now_ns - e->timer.probe_ns >= eighth) {
		e->timer.probe_ns = e->now_ns;
		make_probe(e, 0, 0);
	}
}

/* When tick_alive() has work for an ep that waits, if the peer says nothing until then. */
uint64_t timer_alive_ns(const struct pkt_ep *e)
{
	uint64_t eighth = e->timer.peer_timeout_ns / 8,
		 since = GX_MAX(e->timer.alive_ns, e->timer.heard_ns);
	uint64_t ask = since + eighth - GX_MIN(e->timer.silence_ns, eighth);
	uint64_t end = since + e->timer.peer_timeout_ns -
		       GX_MIN(e->timer.silence_ns, e->timer.peer_timeout_ns);

	/* A longer sleep than an eighth would count as a pause of our own. */
	return GX_MIN(GX_MIN(GX_MAX(ask, e->timer.probe_ns + eighth), end), since + eighth);
}

/* The port has lost packets that it had taken, or carries nothing any more. That ends its
 * connections, not the process. */
static void tick_fault(struct pkt_ep *e)
{
	if (e->link->q->ops->fault(e->link->q))
		rx_fault(e, -EIO);
}

/* Operations of a list whose payload does not come out of their GPU any more. */
static void tick_stages(struct pkt_ep *e, uint32_t head)
{
	for (uint32_t i = head, next; i != PKT_NONE; i = next) {
		const struct gx_gpu *gpu = e->ops[i].gpu;

		next = e->ops[i].next;
		if (gpu->device >= 0 && e->link->stage[gpu->device] &&
		    stage_err(e->link->stage[gpu->device]))
			abort_op(e, i, -EIO);
	}
}

/* The peer has acknowledged everything. But the ACK with `done`, or with credit, may have been
 * lost: ask for another. */
static void tick_ask(struct pkt_ep *e)
{
	if (e->lossless || !e->tx.nr_mids || flow_outstanding(e->flow)) {
		e->timer.ask_ns = 0;
		return;
	}
	if (!e->timer.ask_ns) {
		e->timer.ask_wait_ns = PKT_TICK_NS;
	} else if (e->now_ns >= e->timer.ask_ns) {
		make_probe(e, 0, 0);
		e->timer.ask_wait_ns = GX_MIN(2 * e->timer.ask_wait_ns, PKT_ASK_MAX_NS);
	} else {
		return;
	}
	e->timer.ask_ns = e->now_ns + e->timer.ask_wait_ns;
}

/* Credit above the first is for packets that we have declared, and for the next messages. A sender
 * with nothing under way gives the rest back, because others may need it. */
static void tick_refund(struct pkt_ep *e)
{
	struct gx_wire_rec rec = {.type = GX_REC_REFUND};
	uint32_t credit = flow_credit(e->flow);

	if (e->tx.nr_mids || e->tx.wait_head != PKT_NONE || credit <= e->credit0_peer)
		return;
	rec.refund.pkts = credit - e->credit0_peer;
	if (rec_add(e, &rec, PKT_NONE))
		flow_credit_use(e->flow, rec.refund.pkts);
}

/* One writer: no locked instruction. */
static inline void gauge_set(_Atomic uint64_t *to, uint64_t v)
{
	atomic_store_explicit(to, v, memory_order_relaxed);
}

static inline uint64_t gauge(const _Atomic uint64_t *of)
{
	return atomic_load_explicit(of, memory_order_relaxed);
}

/* A sum of 32 bits has grown by less than it can hold since the last tick. */
static inline void gauge_grow(_Atomic uint64_t *to, uint32_t sum)
{
	gauge_set(to, gauge(to) + (uint32_t)(sum - (uint32_t)gauge(to)));
}

static void tell_pace(struct pkt_ep *e, bool ends)
{
	struct cc_sums now;

	cc_sums(e->pace.cc, e->now_ns, &now);
	for (unsigned i = 0; i < CC_LIMITS; i++) {
		gx_stat_add(pkt_stats(e->link), GX_STAT_CC_APP_NS + i,
			    now.ns[i] - gauge(&e->gauges.limit_ns[i]));
		gauge_set(&e->gauges.limit_ns[i], now.ns[i]);
	}
	if (ends)
		now.rate_b_s = 0;
	gx_stat_add(pkt_stats(e->link), GX_STAT_CC_RATE, now.rate_b_s - gauge(&e->gauges.rate_b_s));
	gauge_set(&e->gauges.rate_b_s, now.rate_b_s);
	if (now.rtt_ns)
		gx_stat_set(pkt_stats(e->link), GX_STAT_CC_RTT, now.rtt_ns);
	gauge_set(&e->gauges.window_b, now.window_b);
	gauge_grow(&e->gauges.tx_b, now.sent_b);
	gauge_grow(&e->gauges.lost_b, now.lost_b);
}

/* The core's gauges are sums over its endpoints and links. Each adds the change of its own part. */
static void tell_sums(struct pkt_ep *e, uint32_t nr_msgs)
{
	uint32_t msgs = atomic_load_explicit(&e->gauges.msgs, memory_order_relaxed);

	if (nr_msgs != msgs) {
		gx_stat_add(pkt_stats(e->link), GX_STAT_MSGS_ACTIVE, (uint64_t)nr_msgs - msgs);
		atomic_store_explicit(&e->gauges.msgs, nr_msgs, memory_order_relaxed);
	}
	if (e->rx.held_bufs != e->gauges.bufs) {
		gx_stat_add(pkt_stats(e->link), GX_STAT_BUFS_HELD,
			    (uint64_t)e->rx.held_bufs - e->gauges.bufs);
		e->gauges.bufs = e->rx.held_bufs;
	}
}

void timer_gauges(struct pkt_ep *e, uint32_t nr_msgs)
{
	struct flow_sums now;

	tell_sums(e, nr_msgs);
	flow_sums(e->flow, &now);
	gauge_set(&e->gauges.tx_pkts, now.tx_pkts);
	gauge_set(&e->gauges.rx_pkts, now.rx_pkts);
	gauge_grow(&e->gauges.rx_data, now.rx_data);
	gauge_set(&e->gauges.rtt_ns, now.srtt_ns);
	if (e->paths)
		path_tell(e, e->err);
	if (e->pace.cc)
		tell_pace(e, e->err);
}

static void ep_look(const struct pkt_ep *e, struct gx_link_look *out)
{
	const struct pkt_gauges *t = &e->gauges;

	out->has |= GX_LOOK_PKTS | GX_LOOK_RX_B;
	out->tx_pkts += gauge(&t->tx_pkts);
	out->rx_pkts += gauge(&t->rx_pkts);
	out->rx_b += gauge(&t->rx_data) * e->ep.conn->agreed.quantum;
	out->msgs += atomic_load_explicit(&t->msgs, memory_order_relaxed);
	out->rtt_ns = GX_MAX(out->rtt_ns, gauge(&t->rtt_ns));
	if (!e->pace.cc)
		return;
	out->has |= GX_LOOK_TX_B | GX_LOOK_LOST | GX_LOOK_LIMIT | GX_LOOK_PACE | GX_LOOK_WINDOW |
		    GX_LOOK_RATE;
	out->tx_b += gauge(&t->tx_b);
	out->lost_b += gauge(&t->lost_b);
	out->rate_b_s += gauge(&t->rate_b_s);
	out->window_b += gauge(&t->window_b);
	for (unsigned i = 0; i < CC_LIMITS; i++)
		out->limit_ns[i] += gauge(&t->limit_ns[i]);
}

void pkt_conn_look(const struct gx_conn *c, struct gx_link_look *out)
{
	_Static_assert((int)CC_LIMITS == GX_LOOK_LIMITS && (int)CC_BY_CORE == GX_LOOK_BY_CORE &&
			       (int)CC_BY_APP == GX_LOOK_BY_APP &&
			       (int)CC_BY_CREDIT == GX_LOOK_BY_CREDIT,
		       "they are the same");

	for (unsigned i = 0; i < c->nr_lanes; i++)
		ep_look(pkt_of(c->ep[i]), out);
}

static struct block_stat link_block_sum(const struct link_pkt *l)
{
	struct block_stat sum = {0};

	for (unsigned i = 0; i < l->nr_bqs; i++) {
		const struct block_stat *s = block_stat(l->bqs[i]);

		sum.descs += s->descs;
		sum.merges += s->merges;
		sum.blocks += s->blocks;
		sum.launches += s->launches;
	}
	return sum;
}

/* Bring the blocks' counters into the core's. */
void timer_stats(struct link_pkt *l)
{
	struct gx_stats *st = &l->core->loop.stats;
	struct block_stat sum = link_block_sum(l);

	gx_stat_add(st, GX_STAT_DESCS, sum.descs - l->seen.descs);
	gx_stat_add(st, GX_STAT_MERGES, sum.merges - l->seen.merges);
	gx_stat_add(st, GX_STAT_BLOCKS, sum.blocks - l->seen.blocks);
	gx_stat_add(st, GX_STAT_LAUNCHES, sum.launches - l->seen.launches);
	l->seen = sum;
}

void timer_tick(struct pkt_ep *e)
{
	unsigned what = flow_tick(e->flow, e->now_ns);

	ack_take_out(e); /* the timers may have found losses */
	if (what & FLOW_RTO) {
		gx_stat_add(pkt_stats(e->link), GX_STAT_RTO, 1);
		if (e->pace.cc)
			cc_timeout(e->pace.cc, e->now_ns);
	}
	if (what & FLOW_PROBE << GX_HALF_DATA)
		make_probe(e, PKT_SMALL_B, 0);
	if (what & FLOW_PROBE << GX_HALF_CTL)
		make_probe(e, 0, 0);
	if (e->now_ns < e->timer.tick_ns)
		return;
	e->timer.tick_ns = e->now_ns + PKT_TICK_NS;
	e->wake.ticked = e->link->ticked = true;
	tick_prove(e);
	if (gx_unlikely(e->trial.on))
		trial_tick(e);
	if (gx_unlikely(e->shape.quantum < e->path.full_b))
		tick_raise(e);
	tick_fault(e);
	tick_alive(e);
	tick_stages(e, e->tx.new_head);
	tick_stages(e, e->tx.act_head);
	fetch_tick(e);
	tick_ask(e);
	tick_refund(e);
	if (e->seal)
		seal_tick(e);
	if (e->tx.cancels_due)
		tick_cancels(e);
	if (e->rx.fails_due)
		in_tick(e);
	if (e->rx.bads_due)
		bad_tick(e);
	if (e->now_ns >= e->timer.deadline_ns)
		tick_deadlines(e);
	timer_gauges(e, e->tx.nr_mids + e->rx.nr_in + e->match.gets_out);
}
