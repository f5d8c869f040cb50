/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One turn of the tcp link: read this first. The polling loop calls link_tcp_poll(), which hands on
 * the copies that GPUs have ended since the last turn (tcp_gpu.c). Then it does for endpoints that
 * are not cold (tcp_live.c), in this order:
 *
 *   tcp_rx()          reads sockets: payload into its place, frames to in, match and op (tcp_rx.c)
 *   tcp_gpus_settle() has GPUs copy payload that came for their memory (tcp_gpu.c)
 *   tcp_in_deliver()  completions that waited for room (tcp_in.c)
 *   tcp_in_acks()     reports how far messages of several chunks have come (tcp_in.c)
 *   tcp_match_serve() turns gets of the peer into puts (tcp_match.c)
 *   tcp_tx()          frames to sockets (tcp_tx.c; tcp_fetch.c for memory of GPUs)
 *   ep_tick()         each millisecond: deadlines, whether the peer lives, sockets that ended
 *
 * No side ever waits with reading for its own writing, and each answer has room (tcp_ctl_put()). So
 * two ends that both send cannot block one another. A turn moves TCP_LINK_B bytes each way, about;
 * endpoints and sockets take turns at being first. Runs on the polling core.
 */
#include "tcp/tcp_turn.h"
#include "tcp/tcp_gpu.h"
#include "tcp/tcp_in.h"
#include "tcp/tcp_live.h"
#include "tcp/tcp_match.h"
#include "tcp/tcp_op.h"
#include "tcp/tcp_sock.h"

#include <errno.h>
#include <sys/epoll.h>

/* ---- timers ---- */

static void tick_deadlines(struct tcp_ep *e)
{
	e->timer.deadline_ns = UINT64_MAX;
	for (uint32_t i = 0; i < e->ops_top; i++) {
		struct tcp_op *op = &e->ops[i];

		if (!tcp_op_is_live(op) || !op->deadline_ns)
			continue;
		if (op->deadline_ns <= e->now_ns)
			tcp_abort_op(e, i, -ETIMEDOUT);
		else
			e->timer.deadline_ns = GX_MIN(e->timer.deadline_ns, op->deadline_ns);
	}
}

/* As on the packet link: only time in which this core was turned counts, a pause of our own as an
 * eighth of the time-out, and a silent peer is asked before it is given up. */
static void tick_alive(struct tcp_ep *e)
{
	uint64_t timeout_ns = e->ep.conn->agreed.peer_timeout_ns, eighth = timeout_ns / 8;
	uint64_t before = e->timer.alive_ns;
	bool waiting = e->nr_ops || e->rx.nr_in;

	e->timer.alive_ns = e->now_ns;
	if (!waiting || !e->timer.waiting) {
		e->timer.waiting = waiting;
		e->timer.silence_ns = 0;
		return;
	}
	if (e->timer.heard_ns > before)
		e->timer.silence_ns = 0;
	before = GX_MAX(before, e->timer.heard_ns);
	e->timer.silence_ns += GX_MIN(e->now_ns - GX_MIN(e->now_ns, before), eighth);
	if (e->timer.silence_ns >= timeout_ns) {
		tcp_fault(e, -ETIMEDOUT);
		return;
	}
	if (e->timer.silence_ns >= eighth && e->now_ns - e->timer.ping_ns >= eighth &&
	    tcp_ctl_room(e) > TCP_CTLS_KEPT) {
		e->timer.ping_ns = e->now_ns;
		tcp_ctl_put(e, &(struct tcp_frame){.type = TCP_PING});
	}
}

/* On a slow path a chunk may take longer than the time-out, and the peer's PING waits behind it, or for
 * memory that a GPU reads. So we report to the sender unasked that its bytes come. A queue that stands
 * needs no more of it. */
static void tick_speak(struct tcp_ep *e)
{
	if ((e->rx.nr_in || e->rx.short_ns == e->now_ns) && e->ctls.head == e->ctls.tail &&
	    e->now_ns - e->ctls.spoke_ns >= e->ep.conn->agreed.peer_timeout_ns / 8)
		tcp_ctl_put(e, &(struct tcp_frame){.type = TCP_PONG});
}

static void ep_tick(struct tcp_ep *e)
{
	e->timer.tick_ns = e->now_ns + TCP_TICK_NS;
	tick_alive(e);
	tick_speak(e);
	tcp_tx_tick(e);
	if (e->bare.rx)
		tcp_bare_tick(e, tcp_rx_waits(e));
	if (e->end.err && e->now_ns - e->end.ns >= TCP_GRACE_NS)
		tcp_fault(e, e->end.err);
	if (e->now_ns >= e->timer.deadline_ns)
		tick_deadlines(e);
	tcp_tell_gauge(e);
}

/* ---- a turn ---- */

/* A short message came, and there is nothing to send but what it asks of the link (DONE). The
 * program may answer it before the next turn, and then one packet carries both. What was queued
 * before this turn (@ctl on) does not wait again. */
static bool may_answer(const struct tcp_ep *e, uint32_t ctl, uint64_t got_b)
{
	if (e->ctls.tail != ctl || e->ctls.head == ctl || !got_b || got_b >= TCP_SHORT_B)
		return false;
	if (e->tx.nr_act || e->tx.nr_fetch)
		return false;
	for (unsigned k = 0; k < e->nr_socks; k++)
		if (e->sock[k].tail != e->sock[k].head)
			return false;
	return true;
}

/* Send, but see may_answer(). A core that its program turns may have no next turn for long. There the
 * kernel takes DONE, and lets it go by itself if nothing follows; and only if the program answered
 * the last message, because a push is one more call. */
static bool ep_tx(struct tcp_ep *e, uint32_t ctl, uint64_t got_b)
{
	struct tcp_sock *s = &e->sock[0];
	bool led = s->leads, waits = may_answer(e, ctl, got_b), worked;

	e->ctls.answered &= !e->ctls.asked;
	e->ctls.asked = waits;
	e->ctls.holds =
		waits && atomic_load_explicit(&e->ep.core->loop.started, memory_order_relaxed);
	if (e->ctls.holds)
		return false;
	e->ctls.leading = waits && e->ctls.answered;
	worked = tcp_tx(e);
	e->ctls.leading = false;
	if (gx_likely(!led || !s->leads))
		return worked;
	e->sys->push(s->fd);
	s->leads = false;
	return true;
}

static bool ep_turn(struct tcp_ep *e, uint64_t now_ns)
{
	uint64_t rx_b = e->link->rx_b;
	uint32_t ctl = e->ctls.head;
	bool worked;

	e->now_ns = now_ns;
	worked = tcp_rx(e);
	if (gx_unlikely(e->link->nr_held))
		tcp_gpus_settle(e->link, now_ns);
	if (gx_unlikely(e->rx.landed_head != TCP_NONE))
		worked |= tcp_in_deliver(e);
	if (e->rx.nr_acks)
		tcp_in_acks(e);
	if (e->match.gets_tail != e->match.gets_head)
		worked |= tcp_match_serve(e);
	/* Not when something is posted: the time of the last turn may be long ago. */
	if (gx_unlikely(e->tx.nr_fetch))
		tcp_tx_fetch(e);
	worked |= ep_tx(e, ctl, e->link->rx_b - rx_b);
	if (e->now_ns >= e->timer.tick_ns)
		ep_tick(e);
	if (gx_unlikely(e->link->nr_live > TCP_COLD_FEW))
		tcp_live_see(e, worked);
	return worked;
}

/* Cold endpoints wake whose sockets the kernel reports, and those tick whose time has come. */
static void cold_turn(struct link_tcp *l, uint64_t now_ns)
{
	struct epoll_event ev[TCP_LIVE_TURN];
	int n = epoll_wait(l->fd, ev, TCP_LIVE_TURN, 0);

	for (int i = 0; i < n; i++)
		if (l->eps[ev[i].data.u32])
			tcp_live_heat(l->eps[ev[i].data.u32]);
	for (unsigned k = 0; k < TCP_LIVE_TURN; k++) {
		uint32_t at = l->look++ % GX_PEERS_MAX;

		if (gx_likely(l->due_ns[at] > now_ns))
			continue;
		l->eps[at]->now_ns = now_ns;
		ep_tick(l->eps[at]);
		tcp_live_see(l->eps[at], false);
	}
}

bool link_tcp_asleep(const void *link)
{
	const struct link_tcp *l = link;

	return !l->nr_live && !l->nr_held;
}

/* Does something move but for what the peer's next byte brings? */
static bool ep_moves(const struct tcp_ep *e)
{
	return e->rx.nr_in || e->tx.nr_act || e->end.err || e->bare.rx || e->match.gets_out ||
	       e->ctls.head != e->ctls.tail;
}

static int ep_look(struct tcp_ep *e, struct gx_look *look)
{
	uint64_t due_ns = tcp_live_look_ns(e, look->now_ns);

	if (e->ctls.holds || e->nic.nr_out || e->tx.nr_fetch || e->rx.landed_head != TCP_NONE)
		return 1;
	look->until_ns = GX_MIN(look->until_ns, GX_MIN(due_ns, e->timer.deadline_ns));
	if (ep_moves(e))
		look->until_ns = GX_MIN(look->until_ns, e->timer.tick_ns);
	return tcp_live_watch(e);
}

int link_tcp_look(void *link, struct gx_look *look)
{
	struct link_tcp *l = link;
	struct epoll_event ev = {.events = EPOLLIN, .data.fd = -1};
	int ret = l->nr_held ? 1 : 0;

	for (unsigned i = 0; i < l->nr_hot && !ret; i++)
		ret = ep_look(l->live[i], look);
	for (unsigned i = 0; i < GX_PEERS_MAX && l->nr_hot < l->nr_live; i++)
		look->until_ns = GX_MIN(look->until_ns, l->due_ns[i]);
	if (ret || !l->nr_live || l->looks)
		return ret;
	l->looks = !epoll_ctl(look->fd, EPOLL_CTL_ADD, l->fd, &ev);
	return l->looks ? 0 : -errno;
}

bool link_tcp_poll(void *link, uint64_t now_ns)
{
	struct link_tcp *l = link;
	bool worked = false;
	struct tcp_ep *e;
	unsigned n;

	l->core->now_ns = now_ns;
	if (!(l->nr_live | l->nr_gpus))
		return false;
	l->rx_b = l->tx_b = 0;
	if (l->nr_gpus)
		worked |= tcp_gpus_reap(l, now_ns);
	if (gx_unlikely(l->nr_hot < l->nr_live))
		cold_turn(l, now_ns);
	n = GX_MIN(l->nr_hot, TCP_LIVE_TURN);
	l->rover += n < l->nr_hot ? n : 1;
	if (l->rover >= l->nr_hot)
		l->rover = 0;
	for (unsigned i = l->rover; n && l->nr_hot; n--) {
		if (i >= l->nr_hot)
			i = 0;
		e = l->live[i];
		worked |= ep_turn(e, now_ns);
		i += l->live[i] == e; /* else it is cold, and another has its place */
	}
	return worked;
}

/* ---- memory that the program frees ---- */

static void ops_drop(struct tcp_ep *e)
{
	for (uint32_t i = 0, left = e->nr_ops; i < e->ops_top && left; i++) {
		struct tcp_op *op = &e->ops[i];

		left -= op->state != TCP_OP_FREE;
		if (tcp_op_is_live(op) && mem_is_dead(op->mem))
			tcp_abort_let_go(e, i, -ECANCELED, -ESTALE);
	}
}

/* Refuse messages that come in to dead memory, and hold it while a GPU still copies there. */
static void ins_drop(struct tcp_ep *e, struct drop *d)
{
	for (uint32_t i = 0, left = e->rx.nr_in; i < TCP_MIDS && left; i++) {
		struct tcp_in *m = &e->in[i];

		left -= m->state != TCP_IN_FREE;
		if (m->state == TCP_IN_FREE || !mem_is_dead(m->mem))
			continue;
		if (!e->err)
			tcp_in_refuse(e, m, -ESTALE);
		if (m->pending)
			drop_hold(d, m->mem);
		else
			m->mem = NULL; /* it is freed after this pass, and the message may stay */
	}
}

/* No call into the kernel is under way, so only copies by GPUs hold memory. */
void link_tcp_drop(void *link, struct drop *d)
{
	struct link_tcp *l = link;
	unsigned room = DROP_EPS;

	tcp_gpus_reap(l, l->core->now_ns);
	tcp_gpus_settle(l, l->core->now_ns);
	l->drop_at = d->unused ? GX_PEERS_MAX : d->again ? l->drop_at : 0;
	for (; l->drop_at < GX_PEERS_MAX && room; l->drop_at++) {
		struct tcp_ep *e = l->eps[l->drop_at];

		if (!e || !(e->nr_ops | e->rx.nr_in))
			continue;
		if (!e->err)
			ops_drop(e);
		ins_drop(e, d);
		room--;
	}
	d->more |= l->drop_at < GX_PEERS_MAX;
	tcp_gpus_drop(l, d);
}

/* ---- attach ---- */

/* A core has no more endpoints than places for them. */
static void index_take(struct tcp_ep *e)
{
	struct link_tcp *l = e->link;

	if (e->index != TCP_NONE)
		return;
	for (uint32_t i = 0; i < GX_PEERS_MAX && e->index == TCP_NONE; i++)
		if (!l->eps[i])
			e->index = i;
	assert(e->index != TCP_NONE);
	l->eps[e->index] = e;
}

void tcp_attach(struct gx_ep *ep)
{
	struct tcp_ep *e = tcp_of(ep);

	e->now_ns = e->timer.heard_ns = e->ctls.spoke_ns = ep->core->now_ns;
	index_take(e);
	tcp_live_add(e);
	ops_drop(e); /* link_tcp_drop() did not see what was posted before */
	atomic_store_explicit(&ep->attached, true, memory_order_release);
}
