/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the program frees. Everything under way in it ends, and the memory is held until the
 * packet link cannot touch it any more (core/drop.c). Runs on the polling core.
 */
#include "packet/pkt.h"
#include "packet/abort.h"
#include "packet/freed.h"
#include "packet/in.h"
#include "packet/match.h"
#include "packet/wake.h"

#include <errno.h>

static void op_let_go(struct pkt_ep *e, uint32_t i)
{
	const struct pkt_op *op = &e->ops[i];

	if (op->internal && op->state == OP_QUEUED)
		match_unserve(e, i);
	else
		abort_op(e, i, -ECANCELED);
}

static void ops_drop(struct pkt_ep *e, struct drop *d)
{
	for (uint32_t i = 0, left = e->tx.nr_ops; i < e->tx.ops_top && left; i++) {
		struct pkt_op *op = &e->ops[i];

		left -= op->state != OP_FREE;
		if (op->state == OP_FREE || !mem_is_dead(op->mem))
			continue;
		ep_touch(e);
		if (!e->err)
			op_let_go(e, i);
		if (op->state != OP_FREE && op->refs)
			drop_hold(d, op->mem);
		else
			op->mem = NULL; /* the handle may go before the operation has ended */
	}
}

static bool stages_are_past(const struct link_pkt *l)
{
	for (unsigned i = 0; i < l->nr_gpus; i++)
		if (l->stage[i] && !stage_is_past(l->stage[i], l->drop_ticket[i]))
			return false;
	return true;
}

/* Copies into pinned memory may go on after their operations have ended. Hold the memory until they
 * are over. */
static void stages_drop(struct link_pkt *l, struct drop *d)
{
	if (d->first != d->want + 1) {
		if (stages_are_past(l))
			l->drop_seq = d->first;
		for (unsigned i = 0; i < l->nr_gpus; i++)
			if (l->stage[i])
				l->drop_ticket[i] = stage_ticket(l->stage[i]);
	}
	if (!stages_are_past(l))
		drop_hold_seq(d, l->drop_seq);
}

/* Refuse messages that come in to dead memory, and hold it for copies under way. */
static void rx_drop(struct pkt_ep *e, struct drop *d)
{
	for (uint32_t k = 0, left = e->rx.nr_in; k < GX_WIRE_MIDS && left; k++) {
		struct in_msg *m = &e->in[k];

		left -= m->state != IN_FREE;
		if (m->state == IN_FREE || !mem_is_dead(m->mem))
			continue;
		if (!e->err)
			in_refuse(e, m, -ESTALE);
		if (m->pending)
			drop_hold(d, m->mem);
		else
			m->mem = NULL;
	}
}

void link_pkt_drop(void *link, struct drop *d)
{
	struct link_pkt *l = link;
	unsigned room = DROP_EPS;

	turn_settle_rx(l, l->core->now_ns);
	turn_settle_tx(l, l->core->now_ns);
	l->drop_at = d->unused ? GX_PEERS_MAX : d->again ? l->drop_at : 0;
	for (; l->drop_at < GX_PEERS_MAX && room; l->drop_at++) {
		struct pkt_ep *e = l->eps[l->drop_at];

		if (!e || !(e->tx.nr_ops | e->rx.nr_in))
			continue;
		if (e->pull.lent)
			pull_reap(e);
		ops_drop(e, d);
		rx_drop(e, d);
		room--;
	}
	d->more |= l->drop_at < GX_PEERS_MAX;
	stages_drop(l, d);
}
