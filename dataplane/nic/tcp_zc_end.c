/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends of link tcp by a NIC that reads memory of a GPU: their ends, and those of operations and
 * endpoints that wait for them; see tcp_zc.h. Runs on the polling core.
 */
#include "nic/tcp_zc.h"
#include "tcp/tcp_life.h"
#include "tcp/tcp_op.h"
#include "tcp/tcp_turn.h"

#include <errno.h>

#define ZC_LOOK_NS	 20000	    /* from one read of an error queue to the next */
#define ZC_LATE_TIMEOUTS 3	    /* as UNSENT_TIMEOUTS of tcp_sys.c */
#define ZC_LOST_NS	 1000000000 /* after the reset: a NIC that still reads is broken */
#define ZC_REAPS	 64	    /* sends of one call */

/* ---- ends of sends ---- */

/* The kernel reads no memory of the operation any more. */
static void op_released(struct tcp_ep *e, uint32_t i, uint64_t now_ns)
{
	struct tcp_op *op = &e->ops[i];
	bool early = op->state == TCP_OP_DOOMED;

	if (op->late) {
		op->late = false;
		e->nic.zc->nr_late--;
		e->nic.zc->late_ns = now_ns;
	} else if (op->state == TCP_OP_HELD) {
		e->nic.zc->nr_done--;
		e->nic.zc->done_ns = now_ns;
	}
	if (op->state == TCP_OP_HELD) {
		tcp_op_finish(e, i, op->status, op->status ? 0 : op->len);
	} else if (e->err) {
		tcp_op_finish(e, i, early ? op->status : e->err, 0);
	} else if (early) {
		tcp_op_complete(e, i, op->status, 0);
	}
}

static void post_ended(struct tcp_ep *e, uint64_t user, uint64_t now_ns)
{
	uint32_t i = (uint32_t)user;

	e->nic.nr_out--;
	if (!--e->ops[i].held)
		op_released(e, i, now_ns);
}

static bool sock_reap(struct tcp_ep *e, struct tcp_sock *s, uint64_t now_ns)
{
	struct tcp_zc_sock *z = tcp_zc_of(e, s);
	uint64_t users[ZC_REAPS];
	unsigned n = zc_tx_reap(z->tx, users, ZC_REAPS);

	z->look_ns = now_ns;
	for (unsigned i = 0; i < n; i++)
		post_ended(e, users[i], now_ns);
	tcp_zc_stats(e, z);
	if (gx_unlikely(z->tx->is_deaf && !s->rx_ended))
		tcp_sock_tx_fail(e, s, z->tx->err, z->tx->why);
	return n > 0;
}

/* @soon: also queues that were just read. */
static bool ep_reap(struct tcp_ep *e, uint64_t now_ns, bool soon)
{
	bool worked = false;

	for (unsigned i = 0; i < e->nr_socks; i++) {
		struct tcp_zc_sock *z = &e->nic.zc->sock[i];

		if (z->tx && zc_tx_held(z->tx) && (soon || now_ns - z->look_ns >= ZC_LOOK_NS))
			worked |= sock_reap(e, &e->sock[i], now_ns);
	}
	return worked;
}

/* ---- operations ---- */

void tcp_zc_done(struct tcp_ep *e, uint32_t i, int err)
{
	struct tcp_op *op = &e->ops[i];

	if (op->state != TCP_OP_DOOMED)
		op->status = err;
	tcp_op_goto(op, TCP_OP_HELD);
	if (!op->late && !e->nic.zc->nr_done++)
		e->nic.zc->done_ns = e->now_ns;
	ep_reap(e, e->now_ns, true); /* the peer has its bytes: most of the time the kernel knows */
}

/* ---- ends of endpoints ---- */

static void socks_reset(struct tcp_ep *e, uint64_t now_ns)
{
	e->nic.zc->drop_ns = now_ns;
	for (unsigned i = 0; i < e->nr_socks; i++)
		if (e->nic.zc->sock[i].tx && zc_tx_held(e->nic.zc->sock[i].tx))
			nic_core_of(e->link)->zc_sys->drop(e->sock[i].fd);
}

/* The connection is reset, and still something reads, or nobody reports. The kernel holds the pages
 * until it is done, and no byte of them reaches a program. */
static void socks_lose(struct tcp_ep *e, uint64_t now_ns)
{
	gx_stat_add(tcp_stats(e), GX_STAT_TCP_ZC_LOST, e->nic.nr_out);
	for (unsigned i = 0; i < e->nr_socks; i++) {
		struct zc_tx *tx = e->nic.zc->sock[i].tx;

		if (!tx)
			continue;
		zc_tx_lose(tx);
		while (zc_tx_held(tx))
			sock_reap(e, &e->sock[i], now_ns);
	}
}

static void failed_watch(struct tcp_ep *e, uint64_t now_ns)
{
	if (!e->nic.zc->drop_ns) {
		if (now_ns - e->nic.zc->end_ns >= TCP_GRACE_NS)
			socks_reset(e, now_ns);
	} else if (now_ns - e->nic.zc->drop_ns >= ZC_LOST_NS) {
		socks_lose(e, now_ns);
	}
}

/* A peer that takes bytes now and then could hold memory for ever, also of operations that it calls
 * done: no cancel and no deadline ends those any more. */
static void late_watch(struct tcp_ep *e, uint64_t now_ns)
{
	uint64_t most_ns = e->ep.conn->agreed.peer_timeout_ns * ZC_LATE_TIMEOUTS;
	bool done = e->nic.zc->nr_done && now_ns - e->nic.zc->done_ns >= most_ns;
	bool late = e->nic.zc->nr_late && now_ns - e->nic.zc->late_ns >= most_ns;

	if ((!done && !late) || e->end.err)
		return;
	tcp_sock_tx_fail(
		e, &e->sock[0], -ETIMEDOUT,
		done ? "the peer has said that it has all bytes of operations, and for "
		       "three peer time-outs the kernel has not let go of them: the peer "
		       "lies, or the NIC keeps them (gx_nic_opts.tx)"
		     : "operations have ended early, and for three peer time-outs the peer took "
		       "none of their bytes that the kernel has (gx_nic_opts.tx)");
}

bool link_tcp_zc_poll(void *link, uint64_t now_ns)
{
	struct link_tcp *l = link;
	bool worked = false;
	struct tcp_ep *next;

	for (struct tcp_ep *e = nic_core_of(l)->zc_eps; e; e = next) {
		next = e->nic.zc->next;
		worked |= ep_reap(e, now_ns, false);
		if (e->nic.nr_out && e->err)
			failed_watch(e, now_ns);
		else if (e->nic.nr_out)
			late_watch(e, now_ns);
		if (e->nic.nr_out)
			continue;
		tcp_zc_unlist(e);
		if (e->err)
			tcp_ep_leave(e);
	}
	return worked;
}

bool link_tcp_zc_asleep(const void *link)
{
	const struct link_tcp *l = link;

	return !nic_core_of(l)->zc_eps;
}

/* ---- memory that the program frees ---- */

static void ep_hold(const struct tcp_ep *e, struct drop *d)
{
	for (uint32_t i = 0; i < e->ops_top && e->nic.nr_out; i++) {
		const struct tcp_op *op = &e->ops[i];

		if (op->held && mem_is_dead(op->mem))
			drop_hold(d, op->mem);
	}
}

void tcp_zc_drop(void *link, struct drop *d)
{
	struct link_tcp *l = link;

	link_tcp_drop(l, d);
	for (struct tcp_ep *e = nic_core_of(l)->zc_eps; e; e = e->nic.zc->next) {
		ep_reap(e, l->core->now_ns, true);
		ep_hold(e, d);
	}
}
