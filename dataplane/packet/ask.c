/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets that the peer asks for once more (RESEND), because its copy found their bytes wrong; see
 * bad.c. The sender keeps the source until done, and sends those bytes in new packets. Runs on the
 * polling core.
 */
#include "packet/pkt.h"
#include "packet/abort.h"
#include "packet/ask.h"
#include "packet/fetch.h"
#include "packet/make.h"
#include "packet/op.h"

#include <errno.h>

/* The operation whose message has @mid; PKT_NONE: it has ended, or is about to end. */
static uint32_t ask_op(const struct pkt_ep *e, uint32_t mid)
{
	uint32_t i = e->out[mid % GX_WIRE_MIDS].op;
	const struct pkt_op *op = i == PKT_NONE ? NULL : &e->ops[i];

	if (!op || op->mid != mid || op->by == BY_OPEN || !op_may_send(op))
		return PKT_NONE;
	return i;
}

static void ask_push(struct pkt_ep *e, uint32_t mid, uint32_t pkt, uint32_t end)
{
	e->ask[e->asks.head++ % PKT_ASK_MAX] = (struct pkt_ask){mid, pkt, end};
	e->asks.pkts += end - pkt;
}

static void ask_pop(struct pkt_ep *e)
{
	struct pkt_ask *a = &e->ask[e->asks.tail++ % PKT_ASK_MAX];

	e->asks.pkts -= a->end - a->pkt;
}

/* Drop the ranges of messages that have ended, to make room. */
static void ask_compact(struct pkt_ep *e)
{
	for (uint32_t n = e->asks.head - e->asks.tail; n > 0; n--) {
		struct pkt_ask a = e->ask[e->asks.tail % PKT_ASK_MAX];

		ask_pop(e);
		if (ask_op(e, a.mid) != PKT_NONE)
			ask_push(e, a.mid, a.pkt, a.end);
	}
	fetch_sent(e);
}

static bool ask_valid(struct pkt_ep *e, const struct gx_wire_rec *rec, uint32_t *op, uint64_t *pkt,
		      uint64_t *end)
{
	uint32_t i;

	*op = i = ask_op(e, rec->resend.mid);
	if (i == PKT_NONE)
		return false;
	*pkt = *end = 0;
	if (op_outsized(e, &e->ops[i])) /* it counts packets of another quantum */
		return true;
	return !msg_range(&e->shape, e->ops[i].len, rec->resend.off, rec->resend.len, pkt, end) &&
	       *end <= e->ops[i].sent_pkts;
}

void ask_take(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	uint64_t pkt, end, most;
	struct pkt_op *op;
	uint32_t i;

	if (!ask_valid(e, rec, &i, &pkt, &end)) {
		gx_stat_add(pkt_stats(e->link), GX_STAT_RESEND_STRAY, 1);
		return;
	}
	op = &e->ops[i];
	if (op_outsized(e, op)) {
		op_again(e, i);
		return;
	}
	most = 2 * PKT_BAD_TRIES * op->acked.nr_pkts;
	op->asked_pkts += end - pkt;
	if (op->asked_pkts > most) {
		abort_op(e, i, -EBADMSG);
		return;
	}
	if (e->asks.pkts + (end - pkt) > PKT_ASK_MAX)
		ask_compact(e);
	if (e->asks.pkts + (end - pkt) > PKT_ASK_MAX) /* a peer cannot miss so many at once */
		rx_fault(e, -EPROTO);
	else
		ask_push(e, rec->resend.mid, pkt, end);
}

/* Bytes of the next packet of @a for the port. An acknowledgement gave back the staged bytes of a
 * GPU, so they are staged anew. NULL: they are not there yet. */
static const char *ask_payload(struct pkt_ep *e, struct pkt_op *op, const struct pkt_ask *a,
			       struct gx_tx *tx, bool *staged)
{
	*staged = !pkt_in_place(e, op);
	if (!*staged && op->pieces)
		return fetch_gather(e, op, a->pkt, tx);
	if (!*staged)
		return op->src + (uint64_t)a->pkt * e->shape.quantum;
	return fetch_again(e, &e->fetch.asked, op, a->pkt, a->end);
}

static bool ask_send_one(struct pkt_ep *e, struct pkt_ask *a, uint32_t i, struct gx_tx *tx)
{
	bool staged;

	tx->data = ask_payload(e, &e->ops[i], a, tx, &staged);
	if (!tx->data)
		return false;
	make_data(e, tx, i, a->pkt,
		  &(struct tx_how){.kind = PKT_K_ASKED, .resend = true, .copy = staged});
	a->pkt++;
	gx_stat_add(pkt_stats(e->link), GX_STAT_RESEND_SERVED, 1);
	gx_stat_add(pkt_stats(e->link), GX_STAT_TX_RESENT, 1);
	return true;
}

/* The operation of @a, if its packets may go out now. Otherwise give it up, or begin its message
 * again
 * with the quantum that the path carries now. */
static uint32_t ask_op_ready(struct pkt_ep *e, const struct pkt_ask *a)
{
	uint32_t i = ask_op(e, a->mid);

	if (i == PKT_NONE)
		return i;
	if (op_outsized(e, &e->ops[i]))
		op_again(e, i);
	else if (fetch_is_broken(e, &e->ops[i]))
		abort_op(e, i, -EIO);
	else
		return i;
	return PKT_NONE;
}

unsigned ask_send(struct pkt_ep *e, unsigned n, unsigned max)
{
	while (n < max && e->asks.tail != e->asks.head && flow_room(e->flow)) {
		struct pkt_ask *a = &e->ask[e->asks.tail % PKT_ASK_MAX];
		uint32_t i;

		i = ask_op_ready(e, a);
		if (i == PKT_NONE || a->pkt == a->end) {
			ask_pop(e);
			continue;
		}
		if (!ask_send_one(e, a, i, &e->link->tx[n]))
			break;
		n++;
	}
	return n;
}

void ask_acked(struct pkt_ep *e)
{
	e->asks.pkts--;
}

void ask_lost(struct pkt_ep *e, const struct flow_pkt *p)
{
	e->asks.pkts--;
	if (ask_op(e, p->ref) != PKT_NONE)
		ask_push(e, p->ref, p->pkt, p->pkt + 1);
}

void ask_close(struct pkt_ep *e)
{
	while (e->asks.tail != e->asks.head)
		ask_pop(e);
}
