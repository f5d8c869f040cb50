/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Acknowledgements: the ACKs that we send, and the meaning of the peer's ACKs for our packets,
 * records and messages. Runs on the polling core.
 */
#include "packet/pkt.h"
#include "packet/ack.h"
#include "packet/ask.h"
#include "packet/fetch.h"
#include "packet/make.h"
#include "packet/match.h"
#include "packet/op.h"
#include "packet/rec.h"

bool ack_send(struct pkt_ep *e)
{
	uint8_t b[GX_WIRE_ACK_MAX];
	uint32_t len;

	if (!flow_ack_due(e->flow, e->now_ns) || !make_ctl_room(e))
		return false;
	if (e->ack.hold == ACK_HOLD_ASKED) { /* once: the ACK may leave with the user's answer */
		e->ack.hold = ACK_HOLD_DONE;
		return false;
	}
	len = make_ack(e, b);
	if (len && path_in_doubt(e))
		path_ack(e, b, len);
	else if (len)
		make_ctl(e, GX_PKT_ACK, 0, e->ack.apsn++, 0, b, len);
	return len > 0;
}

static void acked_data(struct pkt_ep *e, const struct flow_pkt *p)
{
	uint32_t i = e->out[p->ref % GX_WIRE_MIDS].op;
	struct pkt_op *op;

	if (i == PKT_NONE || e->ops[i].mid != p->ref)
		return;
	op = &e->ops[i];
	if (op->by == BY_OPEN || op->state == OP_AGAIN || msg_win_test(&op->acked, p->pkt) != 0)
		return;
	msg_win_set(&op->acked, p->pkt);
	if (op->gpu->device >= 0)
		fetch_acked(e, op);
	if (msg_win_full(&op->acked))
		op_local(e, i);
}

static void lost_data(struct pkt_ep *e, const struct flow_pkt *p)
{
	uint32_t at = e->tx.resend_head & e->tx.resend_mask;

	e->tx.resend[at].mid = p->ref;
	e->tx.resend[at].pkt = p->pkt;
	e->tx.resend_head++;
}

void ack_take_out(struct pkt_ep *e)
{
	struct flow_pkt p;

	if (gx_unlikely(e->paths))
		paths_ack_end(e->paths, e->flow, e->now_ns);
	if (gx_unlikely(e->pace.cc))
		pace_ack_end(&e->pace, e->flow, e->now_ns);
	while (flow_next_acked(e->flow, &p)) {
		e->timer.acked_ns = e->now_ns;
		if (link_watches(e, &p))
			link_acked(e, &p);
		if (p.kind == PKT_K_DATA)
			acked_data(e, &p);
		else if (p.kind == PKT_K_CTL)
			rec_acked(e, p.ref, p.pkt);
		else if (p.kind == PKT_K_ASKED && !p.late)
			ask_acked(e);
		else if (p.kind == PKT_K_PROBE && p.ref)
			link_proven(e, p.ref);
	}
	while (flow_next_lost(e->flow, &p)) {
		link_lost(e, &p);
		if (p.kind == PKT_K_DATA)
			lost_data(e, &p);
		else if (p.kind == PKT_K_CTL)
			rec_requeue(e, p.ref, p.pkt);
		else if (p.kind == PKT_K_ASKED)
			ask_lost(e, &p);
	}
}

/* The peer is done with the message at a place. The place is free, and the operation that waits for
 * this ends. */
static void mid_done(struct pkt_ep *e, uint32_t place)
{
	uint32_t i = e->out[place].op;

	e->tx.peer_done[place / 64] ^= 1ull << (place & 63);
	e->tx.mids_free[place / 64] |= 1ull << (place & 63);
	e->tx.mids_words |= 1u << place / 64;
	e->tx.nr_mids--;
	if (i == PKT_NONE)
		return;
	if (e->ops[i].leased) /* doomed, too: the peer may have had all bytes before the CANCEL */
		match_lease(e, &e->ops[i]);
	op_done(e, i);
}

/* Take the done bits of an ACK. A word of them counts unless a later ACK has reported more of it. A bit
 * that differs from the last word stands for one message at that place, because the next one begins
 * there only after the peer has reported the one before. */
void ack_done(struct pkt_ep *e, const struct gx_wire_ack *ack)
{
	for (uint32_t rest = ack->done_words; rest; rest &= rest - 1) {
		uint32_t w = (uint32_t)__builtin_ctz(rest);
		uint64_t bits;

		if ((int32_t)(ack->number - e->tx.peer_done_by[w]) <= 0)
			continue;
		e->tx.peer_done_by[w] = ack->number;
		bits = (ack->done[w] ^ e->tx.peer_done[w]) & ~e->tx.mids_free[w];
		for (; bits; bits &= bits - 1)
			mid_done(e, 64 * w + (uint32_t)__builtin_ctzll(bits));
	}
}
