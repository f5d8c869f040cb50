/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending half of a turn of a packet link: operations get a mid and begin, and data goes out
 * within window and credit, lost packets first. Runs on the polling core.
 */
#include "packet/pkt.h"
#include "packet/abort.h"
#include "packet/ask.h"
#include "packet/fetch.h"
#include "packet/make.h"
#include "packet/op.h"
#include "packet/rec.h"
#include "packet/rxtx.h"
#include "gx_internal/probe.h"

#include <errno.h>

#define TX_CALL_PKTS 32u /* of one message in a burst, and in its first turn */
#define TX_TURN_PKTS 256 /* of one message before the next message has its turn */

/* ---- starting operations ---- */

/* @old: facts about its message before, which the peer must know when @op begins again. */
static void op_open_rec(struct pkt_ep *e, struct pkt_op *op, uint32_t i,
			const struct gx_wire_rec *old)
{
	struct gx_wire_rec rec = {.type = GX_REC_OPEN,
				  .flags = old->flags,
				  .open = {.mid = op->mid,
					   .quantum = e->shape.quantum,
					   .token = op->token,
					   .off = op->remote_off,
					   .len = op->len,
					   .imm = op->kind == GX_OP_SEND ? op->tag : op->imm,
					   .old_mid = old->open.old_mid,
					   .old_sent = old->open.old_sent}};

	if (op->token & PKT_SLOT_BIT)
		rec.flags |= GX_REC_SLOT;
	if (op->leased)
		rec.flags |= GX_REC_LEASE;
	if (gx_unlikely(op->segs)) {
		rec.type = GX_REC_LIST;
		rec.open.nr = op->pieces->nr;
		rec.open.segs = op->segs;
	}
	if (op->flags & GX_OP_IMM && op->kind == GX_OP_PUT && !op->internal)
		rec.flags |= GX_REC_IMM | (op->flags & OP_HIDDEN ? GX_REC_HIDDEN : 0);
	if (op->by == BY_OPEN) {
		rec.flags |= GX_REC_INLINE;
		rec.open.data = (const uint8_t *)op->src;
	}
	if (op->by == BY_PULL) {
		rec.flags |= GX_REC_PULL;
		rec.open.from = (uintptr_t)op->src;
		pull_give(e, op);
	}
	op->open_rsn = e->rec.next;
	op->opened = false;
	rec_add(e, &rec, i);
}

/* Does it go into memory of a GPU of the peer? */
static bool op_goes_to_gpu(const struct pkt_ep *e, const struct pkt_op *op)
{
	return op->flags & PKT_F_SLOT_GPU ||
	       (!(op->token & PKT_SLOT_BIT) && op->token & CORE_TOKEN_GPU);
}

/* Can the bytes go in the OPEN? Only from host memory into host memory. */
static bool op_inlines(const struct pkt_ep *e, const struct pkt_op *op)
{
	if (!op->len)
		return true;
	if (op->len > GX_WIRE_INLINE_MAX || op->len > e->shape.quantum / 2 ||
	    op->gpu->device >= 0 || op->pieces)
		return false;
	return !op_goes_to_gpu(e, op);
}

/* May the peer read the bytes out of this process? Only from host memory into host memory. */
static bool op_pulls(const struct pkt_ep *e, struct pkt_op *op)
{
	return !op->pieces && e->pull.peer_reads && op->len > e->pull.over_b &&
	       op->gpu->device < 0 && !op_goes_to_gpu(e, op) && pull_sends(e, op);
}

static enum op_by op_by(const struct pkt_ep *e, struct pkt_op *op)
{
	if (op_inlines(e, op))
		return BY_OPEN;
	return op_pulls(e, op) ? BY_PULL : BY_PACKETS;
}

/* A window of bits for its packets, when it needs one. False: none is free. */
static bool op_window(struct pkt_ep *e, struct pkt_op *op)
{
	if (op->by != BY_PACKETS || op->words != PKT_NONE || !pkt_needs_window(op->len))
		return true;
	if (!e->tx.words_free)
		return false;
	op->words = __builtin_ctzll(e->tx.words_free);
	e->tx.words_free &= e->tx.words_free - 1;
	return true;
}

/* Leave the message under way, for one with smaller packets. @old: facts about it that the peer
 * must know. */
static void op_part(struct pkt_ep *e, struct pkt_op *op, struct gx_wire_rec *old)
{
	*old = (struct gx_wire_rec){.flags = GX_REC_AGAIN,
				    .open = {.old_mid = op->mid, .old_sent = op->sent_pkts}};
	e->out[op->mid % GX_WIRE_MIDS].op = PKT_NONE;
	msg_win_clear_rest(&op->acked);
	fetch_end(e, op);
	gx_stat_add(pkt_stats(e->link), GX_STAT_MSGS_AGAIN, 1);
}

/* Is the OPEN of its message still under way, as far as we know? */
static bool op_open_is_out(const struct pkt_ep *e, const struct pkt_op *op)
{
	const struct rec_slot *s = &e->recs[op->open_rsn % PKT_RECS];

	return s->state != REC_FREE && s->rec.rsn == op->open_rsn;
}

/* Has the peer the OPEN of its message, and does the port reference no packet of it? Then another
 * message may replace it, whatever is lost. */
static bool op_may_part(const struct pkt_ep *e, const struct pkt_op *op)
{
	return !op->refs && !op_open_is_out(e, op);
}

/* May the peer still check packets of @op after it has acknowledged all of them? */
static bool op_peer_crc_by_copy(const struct pkt_ep *e, const struct pkt_op *op)
{
	if (!e->peer_crc_by_copy || op->by == BY_OPEN || !(op->flags & GX_OP_LOCAL))
		return false;
	return e->peer_crc_by_copy >> (op_goes_to_gpu(e, op) ? GX_MEM_CUDA : GX_MEM_HOST) & 1;
}

/* Take the first free place, so that few open messages share few words of done bits. */
uint32_t tx_mid(struct pkt_ep *e, uint32_t op)
{
	uint32_t w = (uint32_t)__builtin_ctz(e->tx.mids_words);
	uint32_t at = 64 * w + (uint32_t)__builtin_ctzll(e->tx.mids_free[w]);

	e->tx.mids_free[w] &= e->tx.mids_free[w] - 1;
	if (!e->tx.mids_free[w])
		e->tx.mids_words &= ~(1u << w);
	e->tx.nr_mids++;
	e->tx.begun = true;
	e->out[at].op = op;
	return e->out[at].mid += GX_WIRE_MIDS;
}

/* Give a waiting operation a mid and queue its OPEN. False: it must wait. */
static bool op_start(struct pkt_ep *e, uint32_t i)
{
	struct pkt_op *op = &e->ops[i];
	struct gx_wire_rec old = {0};
	bool again = op->state == OP_AGAIN;
	uint32_t mids_max = again ? GX_WIRE_MIDS : e->tx.mids_max;

	if (e->tx.nr_mids >= mids_max || rec_room(e) <= PKT_RECS_KEPT)
		return false;
	op->by = again ? BY_PACKETS : op_by(e, op);
	if ((again && !op_may_part(e, op)) || !op_window(e, op))
		return false;
	if (again)
		op_part(e, op, &old);
	else
		gx_stat_add(pkt_stats(e->link), GX_STAT_MSGS_TX, 1);
	op_remove(e, &e->tx.wait_head, &e->tx.wait_tail, i);
	op->mid = tx_mid(e, i);
	msg_win_init(&op->acked, &e->shape, op->len,
		     op->words == PKT_NONE ? &op->word
					   : e->tx.words + (size_t)op->words * e->words_max);
	stage_msg_init(&op->stage);
	op->sent_pkts = op->asked_pkts = 0;
	op->quantum = e->shape.quantum;
	op->peer_crc_by_copy = op_peer_crc_by_copy(e, op);
	op_open_rec(e, op, i, &old);
	GX_PROBE(op_start, e, i, op->mid, op->len);
	if (op->by != BY_PACKETS) {
		op_goto(op, OP_SENT);
	} else {
		op_goto(op, OP_SENDING);
		op_push(e, &e->tx.new_head, &e->tx.new_tail, i);
	}
	return true;
}

bool tx_start(struct pkt_ep *e)
{
	bool worked = false;

	while (e->tx.wait_head != PKT_NONE && op_start(e, e->tx.wait_head))
		worked = true;
	return worked;
}

/* ---- data ---- */

/* Send the packet once more; false: its bytes are not there yet. */
static bool tx_resend(struct pkt_ep *e, struct gx_tx *tx, uint32_t i, uint64_t pkt)
{
	struct tx_how how = {.kind = PKT_K_DATA, .resend = true};

	tx->data = fetch_lost(e, &e->ops[i], pkt, tx, &how.copy);
	if (!tx->data) {
		if (how.copy && fetch_is_broken(e, &e->ops[i]))
			abort_op(e, i, -EIO);
		return false;
	}
	make_data(e, tx, i, pkt, &how);
	return true;
}

static unsigned tx_resends(struct pkt_ep *e, unsigned n, unsigned max)
{
	while (n < max && e->tx.resend_tail != e->tx.resend_head && flow_room(e->flow)) {
		uint32_t at = e->tx.resend_tail & e->tx.resend_mask;
		uint32_t mid = e->tx.resend[at].mid;
		uint32_t i = e->out[mid % GX_WIRE_MIDS].op;

		if (i != PKT_NONE && e->ops[i].mid == mid && op_may_send(&e->ops[i]) &&
		    msg_win_test(&e->ops[i].acked, e->tx.resend[at].pkt) == 0) {
			if (!tx_resend(e, &e->link->tx[n], i, e->tx.resend[at].pkt))
				break;
			n++;
			gx_stat_add(pkt_stats(e->link), GX_STAT_TX_RESENT, 1);
		}
		e->tx.resend_tail++;
	}
	return n;
}

bool tx_has_first(const struct pkt_ep *e)
{
	return e->tx.act_head != PKT_NONE || e->tx.new_head != PKT_NONE;
}

/* First transmissions of one message, from index @n of link->tx; none before its OPEN. */
static unsigned tx_first(struct pkt_ep *e, uint32_t i, unsigned n, unsigned max)
{
	struct pkt_op *op = &e->ops[i];
	uint64_t limit = msg_limit(&op->acked, &e->shape);
	unsigned from = n;

	while (n < max && op->sent_pkts < limit && op->opened) {
		struct gx_tx *tx = &e->link->tx[n];

		tx->data = fetch_payload(e, op, op->sent_pkts, tx);
		if (!tx->data)
			break;
		make_data(e, tx, i, op->sent_pkts++, &(struct tx_how){.kind = PKT_K_DATA});
		n++;
	}
	flow_credit_use(e->flow, n - from);
	return n;
}

/* Up to @may first packets of message @i. Return: how many; *@done: they were its last ones. */
static unsigned tx_visit(struct pkt_ep *e, uint32_t i, unsigned n, unsigned may, bool *done)
{
	struct pkt_op *op = &e->ops[i];
	unsigned got;

	fetch_ahead(e, op);
	if (gx_unlikely(e->tx.opens_first) && op_open_is_out(e, op))
		may = 0;
	got = tx_first(e, i, n, n + may) - n;
	*done = op->sent_pkts == op->acked.nr_pkts;
	return got;
}

/*
 * Whose turn is it? A message goes on for TX_TURN_PKTS before the next one does. Were turns short,
 * all messages under way would end at one time, and the path would be empty until the next ones have
 * been announced and granted credit. But a new message need not wait for all of those: it has a short
 * first turn (tx_new()). As many packets as old messages send (tx_old()), new ones may send before
 * them: tx.new_due. What the ones cannot use the others may. A burst has at most TX_CALL_PKTS of a
 * message, and each message that has nothing to send is passed over once.
 */
static unsigned tx_new(struct pkt_ep *e, unsigned n, unsigned max)
{
	uint32_t passed = PKT_NONE, i;

	while (n < max && (i = e->tx.new_head) != PKT_NONE && i != passed) {
		unsigned may = GX_MIN(max - n, TX_CALL_PKTS - (unsigned)e->ops[i].sent_pkts), got;
		bool done;

		got = tx_visit(e, i, n, may, &done);
		n += got;
		e->tx.new_due -= GX_MIN(e->tx.new_due, got);
		if (got && !done && e->ops[i].sent_pkts < TX_CALL_PKTS && n == max)
			break; /* it goes on in the next burst */
		op_remove(e, &e->tx.new_head, &e->tx.new_tail, i);
		if (done) {
			op_goto(&e->ops[i], OP_SENT);
		} else if (e->ops[i].sent_pkts) {
			op_push(e, &e->tx.act_head, &e->tx.act_tail, i);
		} else {
			op_push(e, &e->tx.new_head, &e->tx.new_tail, i);
			passed = passed == PKT_NONE ? i : passed;
		}
	}
	return n;
}

/* @last: the last one of the list when this burst began. */
static unsigned tx_old(struct pkt_ep *e, unsigned n, unsigned max, uint32_t last)
{
	bool end = last == PKT_NONE;

	for (uint32_t i = e->tx.act_head, next; n < max && !end; i = next) {
		struct pkt_op *op = &e->ops[i];
		uint64_t turn = op->sent_pkts / TX_TURN_PKTS;
		bool done;
		unsigned got = tx_visit(e, i, n, GX_MIN(max - n, TX_CALL_PKTS), &done);

		n += got;
		e->tx.new_due = GX_MIN(e->tx.new_due + got, TX_CALL_PKTS);
		next = op->next;
		end = i == last;
		if (got && !done && op->sent_pkts / TX_TURN_PKTS == turn)
			continue;
		op_remove(e, &e->tx.act_head, &e->tx.act_tail, i);
		if (done)
			op_goto(op, OP_SENT);
		else
			op_push(e, &e->tx.act_head, &e->tx.act_tail, i);
	}
	return n;
}

static unsigned tx_turns(struct pkt_ep *e, unsigned n, unsigned max)
{
	uint32_t old = e->tx.act_head == PKT_NONE ? PKT_NONE : e->tx.act_tail;
	unsigned first = old == PKT_NONE ? max : GX_MIN(max, n + e->tx.new_due);

	n = tx_new(e, n, first);
	n = tx_old(e, n, max, old);
	return n >= first && first < max ? tx_new(e, n, max) : n;
}

/* A receiver drops data that comes before its OPEN. So on a path that loses packets, or lets them
 * overtake others, the messages whose OPEN has arrived go first. Otherwise a lost OPEN would cost
 * all data that follows it for a round trip. A message whose OPEN has not arrived sends data while
 * no other message can. */
static unsigned tx_turns_opens_first(struct pkt_ep *e, unsigned n, unsigned max)
{
	unsigned got;

	e->tx.opens_first = true;
	got = tx_turns(e, n, max);
	e->tx.opens_first = false;
	return got > n ? got : tx_turns(e, n, max);
}

static bool tx_waits(const struct pkt_ep *e)
{
	return tx_has_first(e) || e->tx.resend_head != e->tx.resend_tail ||
	       e->asks.head != e->asks.tail;
}

/* Of @room packets, those that congestion control lets out now. */
static unsigned tx_paced(struct pkt_ep *e, unsigned room)
{
	cc_packet_set(e->pace.cc, e->shape.quantum + PKT_WIRE_B);
	return room ? cc_room(e->pace.cc, e->now_ns, room) : 0;
}

/* @n packets went out of @max that might have. */
static void tx_paced_sent(struct pkt_ep *e, unsigned n, unsigned max)
{
	pace_sent(&e->pace, e->flow);
	if (!tx_waits(e))
		cc_short(e->pace.cc, e->now_ns, CC_BY_APP);
	else if (n < max)
		cc_short(e->pace.cc, e->now_ns, flow_credit(e->flow) ? CC_BY_WINDOW : CC_BY_CREDIT);
}

/* Data packets that this ep may send now, first transmissions and resends. */
static unsigned tx_data_room(struct pkt_ep *e)
{
	unsigned room = GX_MIN((uint32_t)GX_BURST_MAX, flow_room(e->flow));
	unsigned out = flow_outstanding(e->flow);

	/* While nobody knows whether they arrive, send a few, so that they do not keep all else
	 * waiting. */
	if (gx_unlikely(e->path.proving))
		room = GX_MIN(room, out < PKT_DOUBT ? PKT_DOUBT - out : 0);
	if (gx_unlikely(e->pace.cc))
		room = tx_paced(e, room);

	if (room)
		room = GX_MIN(room,
			      e->link->q->ops->tx_room(e->link->q, GX_HALF_DATA, e->port_peer));
	return room;
}

bool tx_data(struct pkt_ep *e)
{
	unsigned max = tx_data_room(e);
	unsigned n = 0;
	unsigned credit;

	if (!max)
		return false;
	n = tx_resends(e, 0, max);
	if (gx_unlikely(e->asks.head != e->asks.tail))
		n = ask_send(e, n, max);
	credit = flow_credit(e->flow);
	/* Lost packets wait for their bytes. The packets under way may be lost as well, so the ring
	 * keeps room for as many again. */
	if (gx_unlikely(e->tx.resend_head - e->tx.resend_tail > e->tx.resend_mask / 2))
		credit = 0;
	if (!credit && tx_has_first(e))
		gx_stat_add(pkt_stats(e->link), GX_STAT_CREDIT_STALL, 1);
	if (gx_unlikely(!e->lossless) && flow_is_uneven(e->flow))
		n = tx_turns_opens_first(e, n, GX_MIN(max, n + credit));
	else
		n = tx_turns(e, n, GX_MIN(max, n + credit));
	if (gx_unlikely(e->paths)) {
		path_take(e, GX_HALF_DATA);
		path_sent(e, GX_HALF_DATA);
	}
	if (n)
		make_send(e->link, n);
	if (gx_unlikely(e->pace.cc))
		tx_paced_sent(e, n, max);
	fetch_sent(e);
	return n > 0;
}

/* ---- credit, and ACKs of their own ---- */

/* Where each peer has its own buffers, its credit is all of them. */
void tx_grant(struct pkt_ep *e)
{
	const struct gx_port_caps *caps = &e->link->port->caps;
	uint32_t before = flow_granted(e->flow);
	uint32_t room = caps->rx_slots - GX_MIN(caps->rx_slots, e->rx.held_bufs + pkt_margin(caps));
	uint32_t grew;

	room = GX_MIN(room, core_credit_max(&e->ep));
	grew = room > before ? flow_grant(e->flow, 1u << 30, room) : 0;

	if (grew && (before < 64 || grew >= caps->rx_slots / 8))
		flow_ack_want(e->flow);
}
