/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets whose bytes were found wrong while they were copied to their place. They have been
 * acknowledged, so no timer sends them again: the receiver asks (RESEND) and keeps in mind what it
 * has asked for; the sender, who has the source until done, sends those bytes as new packets.
 * Runs on the polling core.
 *
 * A packet that is in bad[] and has not come again counts as missing, whatever its bit says: the
 * bits of a window behind it may have moved on. Asked packets use no credit; on a pool that peers
 * share they count as granted until they come.
 */
#include "packet/pkt.h"

#include <errno.h>

static struct gx_stats *stats(const struct pkt_ep *e)
{
	return &e->ep.core->loop.stats;
}

/* ---- receiver ---- */

static struct pkt_bad *bad_find(struct pkt_ep *e, uint32_t mid, uint32_t pkt)
{
	for (uint32_t i = 0; i < e->nr_bad; i++)
		if (e->bad[i].pkt == pkt && e->bad[i].mid == mid)
			return &e->bad[i];
	return NULL;
}

static void bad_state(struct pkt_ep *e, struct pkt_bad *b, uint8_t state)
{
	if (e->link->port->caps.flags & GX_PORT_SHARED_POOL) {
		e->link->pool_out -= b->state == BAD_ASKED;
		e->link->pool_out += state == BAD_ASKED;
	}
	b->state = state;
}

static void bad_drop(struct pkt_ep *e, struct pkt_bad *b)
{
	bad_state(e, b, BAD_CAME);
	e->in[b->mid % GX_WIRE_MIDS].nr_bad--;
	*b = e->bad[--e->nr_bad];
}

/* A place for one more. Those that have come again are kept for the count of tries alone. NULL: as
 * many are missing. */
static struct pkt_bad *bad_new(struct pkt_ep *e)
{
	for (uint32_t i = 0; e->nr_bad == PKT_BAD_MAX && i < PKT_BAD_MAX; i++)
		if (e->bad[i].state == BAD_CAME)
			bad_drop(e, &e->bad[i]);
	return e->nr_bad < PKT_BAD_MAX ? &e->bad[e->nr_bad++] : NULL;
}

/* Does the last record ask for what is before, and has it never been sent? Then it says so. */
static bool bad_extend(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	struct rec_slot *last = &e->recs[(e->rec_next - 1) % PKT_RECS];

	if (last->state != REC_QUEUED || last->sent || last->rec.type != GX_REC_RESEND ||
	    last->rec.mid != rec->mid || last->rec.off + last->rec.len != rec->off)
		return false;
	last->rec.len += rec->len;
	return true;
}

static void bad_ask(struct pkt_ep *e, struct pkt_bad *b)
{
	const struct in_msg *m = &e->in[b->mid % GX_WIRE_MIDS];
	uint64_t off = (uint64_t)b->pkt * m->shape->quantum;
	struct gx_wire_rec rec = {.type = GX_REC_RESEND,
				  .mid = b->mid,
				  .off = off,
				  .len = GX_MIN(m->len - off, m->shape->quantum)};

	/* Without room the timer asks. */
	if (!bad_extend(e, &rec) &&
	    (tx_rec_room(e) <= PKT_RECS_KEPT || !tx_rec(e, &rec, PKT_NONE))) {
		e->bads_due = true;
		return;
	}
	bad_state(e, b, BAD_ASKED);
	gx_stat_add(stats(e), GX_STAT_RESEND_ASKED, 1);
}

bool bad_found(struct pkt_ep *e, struct in_msg *m, uint64_t off, uint32_t len)
{
	struct pkt_bad *b;
	uint64_t pkt;

	gx_stat_add(stats(e), GX_STAT_RX_CRC_UNPACK, 1);
	if (m->state != IN_ACTIVE)
		return true;
	if (msg_pkt(m->shape, m->len, off, len, off + len == m->len, &pkt))
		return false;
	b = bad_find(e, m->mid, pkt);
	if (!b) {
		b = bad_new(e);
		if (!b)
			return false;
		*b = (struct pkt_bad){.mid = m->mid, .pkt = pkt, .state = BAD_CAME};
		m->nr_bad++;
	}
	if (b->tries++ == PKT_BAD_TRIES)
		return false;
	bad_state(e, b, BAD_DUE);
	bad_ask(e, b);
	return true;
}

bool bad_again(struct pkt_ep *e, const struct in_msg *m, uint64_t pkt)
{
	struct pkt_bad *b = m->nr_bad ? bad_find(e, m->mid, pkt) : NULL;

	if (!b || b->state == BAD_CAME)
		return false;
	bad_state(e, b, BAD_CAME);
	return true;
}

void bad_forget(struct pkt_ep *e, struct in_msg *m)
{
	for (uint32_t i = e->nr_bad; m->nr_bad && i-- > 0;)
		if (e->bad[i].mid == m->mid)
			bad_drop(e, &e->bad[i]);
}

void bad_tick(struct pkt_ep *e)
{
	e->bads_due = false;
	for (uint32_t i = 0; i < e->nr_bad && !e->bads_due; i++)
		if (e->bad[i].state == BAD_DUE)
			bad_ask(e, &e->bad[i]);
}

/* ---- sender ---- */

/* The message that a range is of; PKT_NONE: it has ended, or is about to. */
static uint32_t ask_op(const struct pkt_ep *e, uint32_t mid)
{
	uint32_t i = e->out[mid % GX_WIRE_MIDS].op;
	const struct pkt_op *op = i == PKT_NONE ? NULL : &e->ops[i];

	if (!op || op->mid != mid || op->inlined || op->doomed || op->again ||
	    (op->state != OP_SENDING && op->state != OP_SENT))
		return PKT_NONE;
	return i;
}

static void ask_push(struct pkt_ep *e, uint32_t mid, uint32_t pkt, uint32_t end)
{
	e->ask[e->ask_head++ % PKT_ASK_MAX] = (struct pkt_ask){mid, pkt, end};
	e->asked_pkts += end - pkt;
}

static void ask_pop(struct pkt_ep *e)
{
	struct pkt_ask *a = &e->ask[e->ask_tail++ % PKT_ASK_MAX];

	e->asked_pkts -= a->end - a->pkt;
}

/* Ranges of messages that have ended make room. */
static void ask_compact(struct pkt_ep *e)
{
	for (uint32_t n = e->ask_head - e->ask_tail; n > 0; n--) {
		struct pkt_ask a = e->ask[e->ask_tail % PKT_ASK_MAX];

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

	*op = i = ask_op(e, rec->mid);
	if (i == PKT_NONE)
		return false;
	*pkt = *end = 0;
	if (op_outsized(e, &e->ops[i])) /* its packets are those of another quantum */
		return true;
	return !msg_range(&e->shape, e->ops[i].len, rec->off, rec->len, pkt, end) &&
	       *end <= e->ops[i].sent_pkts;
}

void ask_take(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	uint64_t pkt, end, most;
	struct pkt_op *op;
	uint32_t i;

	if (!ask_valid(e, rec, &i, &pkt, &end)) {
		gx_stat_add(stats(e), GX_STAT_RESEND_STRAY, 1);
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
		op_doom(e, i, -EBADMSG);
		return;
	}
	if (e->asked_pkts + (end - pkt) > PKT_ASK_MAX)
		ask_compact(e);
	if (e->asked_pkts + (end - pkt) > PKT_ASK_MAX) /* more than a peer can miss at once */
		rx_fault(e, -EPROTO);
	else
		ask_push(e, rec->mid, pkt, end);
}

/* Bytes of the next packet of @a for the port. What was staged of a GPU's memory went when it was
 * acknowledged: it is brought in anew. NULL: not there yet. */
static const char *ask_payload(struct pkt_ep *e, const struct pkt_op *op, const struct pkt_ask *a,
			       bool *staged)
{
	*staged = !pkt_in_place(e, op);
	if (!*staged)
		return op->src + (uint64_t)a->pkt * e->shape.quantum;
	return fetch_again(e, &e->asked, op, a->pkt, a->end);
}

static bool ask_stage_broken(const struct pkt_ep *e, const struct pkt_op *op)
{
	return !pkt_in_place(e, op) && stage_err(e->link->stage[op->gpu->device]);
}

static bool ask_send_one(struct pkt_ep *e, struct pkt_ask *a, uint32_t i, struct gx_tx *tx)
{
	bool staged;

	tx->data = ask_payload(e, &e->ops[i], a, &staged);
	if (!tx->data)
		return false;
	tx_data_make(e, tx, i, a->pkt,
		     &(struct tx_how){.kind = PKT_K_ASKED, .resend = true, .copy = staged});
	a->pkt++;
	gx_stat_add(stats(e), GX_STAT_RESEND_SERVED, 1);
	gx_stat_add(stats(e), GX_STAT_TX_RESENT, 1);
	return true;
}

/* Is the message of @a still one to send packets of? Else it is given up, or begins again with the
 * quantum that the path has come to carry. */
static uint32_t ask_op_ready(struct pkt_ep *e, const struct pkt_ask *a)
{
	uint32_t i = ask_op(e, a->mid);

	if (i == PKT_NONE)
		return i;
	if (op_outsized(e, &e->ops[i]))
		op_again(e, i);
	else if (ask_stage_broken(e, &e->ops[i]))
		op_doom(e, i, -EIO);
	else
		return i;
	return PKT_NONE;
}

unsigned ask_send(struct pkt_ep *e, unsigned n, unsigned max)
{
	while (n < max && e->ask_tail != e->ask_head && flow_room(e->flow)) {
		struct pkt_ask *a = &e->ask[e->ask_tail % PKT_ASK_MAX];
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
	e->asked_pkts--;
}

void ask_lost(struct pkt_ep *e, const struct flow_rec *rec)
{
	e->asked_pkts--;
	if (ask_op(e, rec->ref) != PKT_NONE)
		ask_push(e, rec->ref, rec->pkt, rec->pkt + 1);
}

void resend_close(struct pkt_ep *e)
{
	while (e->nr_bad)
		bad_drop(e, &e->bad[e->nr_bad - 1]);
	while (e->ask_tail != e->ask_head)
		ask_pop(e);
	fetch_close(e);
}
