/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which endpoints of a packet link a turn looks at. An endpoint is hot while something of it is
 * under way. Then each turn sends for it and runs its timers. Otherwise it is cold: it lies in a
 * heap by the time of its next timer, and costs a turn nothing. Events from outside (a packet, an
 * operation, a fault) wake it by ep_touch(). Runs on the polling core.
 *
 * Once a millisecond, when the slow timers of an endpoint have run, link_rest() asks whether the
 * endpoint may sleep. So each new kind of work that a turn does for an endpoint needs a line in
 * ep_quiet(), and each new timer a line in ep_due_ns().
 */
#include "packet/pkt.h"
#include "packet/op.h"
#include "packet/timer.h"
#include "packet/wake.h"

#define WAKE_TURN_MAX 16 /* cold ones that one turn wakes; the others wait for the next turn */

/* A turn looks at a cold one this often all the same: a change for all endpoints together (the room
 * of a shared pool, a fault of the port) tells none of them. */
#define WAKE_LOOK_NS 100000000

/* When each turn looks at the port: while packets come at least so often, and with more endpoints
 * than so many to ask. Otherwise the port has a look after a part of the quiet time so far, so the
 * first packet waits for that part of its distance from the one before. */
#define WAKE_HEARD_NS	 1000000
#define WAKE_FEW	 16
#define WAKE_QUIET_SHIFT 6 /* a 64th */

/* ---- the heap: the parent of i is (i - 1) / 2 ---- */

static void cold_set(struct link_pkt *l, uint32_t i, struct pkt_cold c)
{
	l->cold[i] = c;
	c.ep->wake.cold_at = i;
}

static void cold_up(struct link_pkt *l, uint32_t i, struct pkt_cold c)
{
	while (i && l->cold[(i - 1) / 2].due_ns > c.due_ns) {
		cold_set(l, i, l->cold[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	cold_set(l, i, c);
}

static void cold_down(struct link_pkt *l, uint32_t i, struct pkt_cold c)
{
	for (uint32_t k; (k = 2 * i + 1) < l->nr_cold; i = k) {
		if (k + 1 < l->nr_cold && l->cold[k + 1].due_ns < l->cold[k].due_ns)
			k++;
		if (l->cold[k].due_ns >= c.due_ns)
			break;
		cold_set(l, i, l->cold[k]);
	}
	cold_set(l, i, c);
}

static void cold_add(struct pkt_ep *e)
{
	struct link_pkt *l = e->link;

	cold_up(l, l->nr_cold++, (struct pkt_cold){e->timer.tick_ns, e});
}

static void cold_del(struct pkt_ep *e)
{
	struct link_pkt *l = e->link;
	uint32_t at = e->wake.cold_at;
	struct pkt_cold last = l->cold[--l->nr_cold];

	e->wake.cold_at = PKT_NONE;
	if (last.ep == e)
		return;
	/* The last one may belong above the hole as well as below. */
	if (at && l->cold[(at - 1) / 2].due_ns > last.due_ns)
		cold_up(l, at, last);
	else
		cold_down(l, at, last);
}

/* ---- hot ---- */

static void hot_add(struct pkt_ep *e)
{
	struct link_pkt *l = e->link;

	e->wake.hot_at = l->nr_hot;
	l->hot[l->nr_hot++] = e;
	e->now_ns = l->core->now_ns;
}

static void hot_del(struct pkt_ep *e)
{
	struct link_pkt *l = e->link;
	struct pkt_ep *last = l->hot[--l->nr_hot];

	l->hot[e->wake.hot_at] = last;
	last->wake.hot_at = e->wake.hot_at;
	e->wake.hot_at = PKT_NONE;
}

void ep_live(struct pkt_ep *e)
{
	struct link_pkt *l = e->link;

	e->wake.live_at = l->nr_live;
	l->live[l->nr_live++] = e;
	l->nr_fallback += e->is_fallback;
	l->heard_ns = l->core->now_ns; /* the first packets of a connection are on their way */
	l->look_ns = 0;
	hot_add(e);
}

void ep_gone(struct pkt_ep *e)
{
	struct link_pkt *l = e->link;
	struct pkt_ep *last = l->live[--l->nr_live];

	l->nr_fallback -= e->is_fallback;
	l->live[e->wake.live_at] = last;
	last->wake.live_at = e->wake.live_at;
	if (e->wake.hot_at != PKT_NONE)
		hot_del(e);
	else
		cold_del(e);
}

/* Its slow timers begin anew, because the event that woke it is not older. */
void ep_wake(struct pkt_ep *e)
{
	cold_del(e);
	hot_add(e);
	e->timer.tick_ns = e->now_ns + PKT_TICK_NS;
}

void link_wake(struct link_pkt *l, uint64_t now_ns)
{
	for (unsigned n = WAKE_TURN_MAX; n && l->nr_cold && l->cold[0].due_ns <= now_ns; n--) {
		struct pkt_ep *e = l->cold[0].ep;

		cold_del(e);
		hot_add(e);
	}
}

/* ---- may it sleep? ---- */

static bool ep_sends(const struct pkt_ep *e)
{
	return e->tx.nr_mids || flow_outstanding(e->flow) || e->rec.floor != e->rec.next ||
	       e->tx.wait_head != PKT_NONE || tx_has_first(e) ||
	       e->tx.resend_head != e->tx.resend_tail || e->asks.head != e->asks.tail ||
	       e->tx.refs || e->path.proving || e->path.prove_due || e->trial.on ||
	       e->tx.cancels_due || flow_credit(e->flow) > e->credit0_peer;
}

static bool ep_receives(const struct pkt_ep *e)
{
	return e->rx.nr_in || e->share.wants || e->rx.held_bufs || e->rx.landed_head != PKT_NONE ||
	       e->match.gets_head != e->match.gets_tail || e->rx.fails_due || e->rx.bads_due ||
	       flow_ack_due_ns(e->flow) != UINT64_MAX || flow_ack_due(e->flow, e->now_ns);
}

/* Has a turn nothing to do for it until something comes from outside, or until ep_due_ns()? */
static bool ep_quiet(const struct pkt_ep *e)
{
	return !e->err && !ep_sends(e) && !ep_receives(e);
}

/* Some things wait with nothing under way: a receive, a send without its receive, a get that the
 * peer has begun to serve, or the holder of the endpoint. For them the deadlines count, and whether
 * the peer lives. */
static uint64_t ep_due_ns(const struct pkt_ep *e)
{
	uint64_t due_ns = GX_MIN(e->timer.deadline_ns, e->now_ns + WAKE_LOOK_NS);

	if (e->tx.nr_ops || e->want_peer)
		due_ns = GX_MIN(due_ns, timer_alive_ns(e));
	return due_ns;
}

static void ep_rest(struct pkt_ep *e)
{
	e->timer.tick_ns = ep_due_ns(e);
	hot_del(e);
	cold_add(e);
}

void link_rest(struct link_pkt *l)
{
	l->ticked = false;
	for (unsigned i = l->nr_hot; i-- > 0;) {
		struct pkt_ep *e = l->hot[i];

		if (!e->wake.ticked)
			continue;
		e->wake.ticked = false;
		if (ep_quiet(e))
			ep_rest(e);
	}
}

/* Does something go on that only a turn sees, such as copies by a GPU or another thread? */
static bool ep_polls(const struct pkt_ep *e)
{
	return e->err || e->rx.held_bufs || e->tx.refs || e->rx.landed_head != PKT_NONE ||
	       e->pull.nr_due | e->pull.lent || (e->link->nr_gpus && tx_has_first(e));
}

/* The turn before this did nothing. So what is under way waits for packets, which wake, or for a
 * timer. Room in the port may come without a packet: the tick sees it. */
int link_pkt_look(void *link, struct gx_look *look)
{
	struct link_pkt *l = link;

	for (unsigned i = l->nr_hot; i-- > 0;) {
		struct pkt_ep *e = l->hot[i];

		if (ep_polls(e))
			return 1;
		if (ep_quiet(e))
			ep_rest(e);
		else
			look->until_ns =
				GX_MIN(look->until_ns, GX_MIN(e->timer.tick_ns, flow_due(e->flow)));
		if (e->paths && (flow_outstanding(e->flow) || path_in_doubt(e)))
			look->until_ns = GX_MIN(look->until_ns, paths_due(e->paths));
		/* Paced data waits: the time of the next packet. */
		if (e->pace.cc && tx_has_first(e))
			look->until_ns = GX_MIN(look->until_ns, cc_due(e->pace.cc));
	}
	if (l->nr_cold)
		look->until_ns = GX_MIN(look->until_ns, l->cold[0].due_ns);
	if (l->share.is_short)
		look->until_ns = GX_MIN(look->until_ns, look->now_ns + PKT_TICK_NS);
	l->look_ns = 0; /* the first turn after the sleep looks at the port */
	return l->q->ops->sleep_look(l->q);
}

/* A look at a port may be two system calls, which is more than the rest of a turn. Of endpoints
 * whose puts and gets go another way, packets are few: liveness, and now and then a message. */
void link_look_later(struct link_pkt *l, uint64_t now_ns)
{
	uint64_t quiet_ns = now_ns - l->heard_ns, wait_ns;

	l->look_ns = 0;
	if (l->nr_fallback < l->nr_live || l->nr_live > WAKE_FEW || quiet_ns < WAKE_HEARD_NS)
		return;
	for (unsigned i = 0; i < l->nr_live; i++)
		if (!ep_quiet(l->live[i]) || l->live[i]->tx.nr_ops)
			return;
	wait_ns = GX_MAX(quiet_ns >> WAKE_QUIET_SHIFT, (uint64_t)PKT_LOOK_NS);
	l->look_ns = now_ns + GX_MIN(wait_ns, (uint64_t)PKT_RARE_NS);
}
