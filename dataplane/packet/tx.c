/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending half of a turn of a packet link: control records, resends, first transmissions within
 * window and credit, acknowledgements, and what the peer's acknowledgements mean for our
 * operations. Runs on the polling core.
 */
#include "packet/pkt.h"

#include <errno.h>
#include <string.h>

#define TX_TURN_PKTS 32 /* of one message before the next one has its turn */

static struct gx_stats *stats(const struct link_pkt *l)
{
	return &l->core->loop.stats;
}

static void tx_hdr(struct pkt_ep *e, struct gx_tx *tx, struct gx_wire_hdr *h)
{
	h->cid = e->cid_peer;
	h->plen = tx->len;
	if (e->integrity == GX_INTEGRITY_CRC)
		h->crc_payload = tx->len ? gx_crc32c(0, tx->data, tx->len) : 0;
	gx_wire_hdr_put(tx->hdr, h, e->integrity, e->salt_peer);
	tx->hlen = GX_WIRE_HDR_B;
	tx->peer = e->port_peer;
}

/* One packet of the control half; the caller has seen room for it. @mid: CTL: bytes of an ACK at
 * the end of @data. */
static void tx_ctl_packet(struct pkt_ep *e, uint8_t type, uint8_t flags, uint32_t psn, uint32_t mid,
			  const void *data, uint32_t len)
{
	struct link_pkt *l = e->link;
	struct gx_tx tx = {.data = data, .len = len, .cookie = UINT32_MAX};
	struct gx_wire_hdr h = {.type = type, .flags = flags, .psn = psn, .mid = mid};

	tx_hdr(e, &tx, &h);
	l->q->ops->tx_burst(l->q, GX_HALF_CTL, &tx, 1);
	gx_stat_add(stats(l), GX_STAT_TX_PKTS, 1);
	gx_stat_add(stats(l), GX_STAT_TX_BYTES, len);
}

static unsigned ctl_room(struct pkt_ep *e)
{
	return e->link->q->ops->tx_room(e->link->q, GX_HALF_CTL, e->port_peer);
}

/* ---- acknowledgements, outgoing ---- */

/* Bytes of the next ACK, at most. */
static uint32_t ack_bound(const struct pkt_ep *e)
{
	return GX_WIRE_ACK_MAX -
	       8 * (GX_WIRE_DONE_WORDS - (uint32_t)__builtin_popcount(e->done_used));
}

/* Where ACKs are lost each tells all, so that the next one makes up for it; else what is new. */
static void ack_done(struct pkt_ep *e, struct gx_wire_ack *ack)
{
	uint32_t which = e->lossless ? e->done_due : e->done_used;

	ack->number = ++e->ack_number;
	ack->done_words = (uint16_t)which;
	for (uint32_t rest = which; rest; rest &= rest - 1)
		ack->done[__builtin_ctz(rest)] = e->in_done[__builtin_ctz(rest)];
	e->done_due = 0;
}

/* Write an ACK to @b if one is due. Return: its bytes, 0: none is. */
static uint32_t ack_fill(struct pkt_ep *e, uint8_t *b)
{
	struct gx_wire_ack ack;

	if (!flow_ack_due(e->flow, e->now_ns) || !flow_ack_build(e->flow, e->now_ns, &ack))
		return 0;
	ack_done(e, &ack);
	ack.pool =
		e->link->port->caps.rx_slots - GX_MIN(e->link->port->caps.rx_slots, e->held_bufs);
	e->ack_hold = ACK_HOLD_NO;
	gx_stat_add(stats(e->link), GX_STAT_ACK_TX, 1);
	return gx_wire_ack_put(b, &ack);
}

/* ---- records ---- */

bool tx_rec(struct pkt_ep *e, const struct gx_wire_rec *rec, uint32_t op)
{
	struct rec_slot *s = &e->recs[e->rec_next % PKT_RECS];

	ep_touch(e); /* a turn sends it */
	if (!tx_rec_room(e))
		return false;
	s->rec = *rec;
	s->rec.rsn = e->rec_next++;
	s->op = op;
	s->sent = false;
	s->state = REC_QUEUED;
	e->rec_queued++;
	return true;
}

static void recs_requeue(struct pkt_ep *e, uint32_t first, uint32_t n)
{
	for (uint32_t i = first; i != first + n; i++) {
		struct rec_slot *s = &e->recs[i % PKT_RECS];

		if (s->state != REC_SENT || s->rec.rsn != i)
			continue;
		s->state = REC_QUEUED;
		e->rec_queued++;
		if (i - e->rec_floor < e->rec_scan - e->rec_floor)
			e->rec_scan = i;
	}
}

static void recs_acked(struct pkt_ep *e, uint32_t first, uint32_t n)
{
	for (uint32_t i = first; i != first + n; i++) {
		struct rec_slot *s = &e->recs[i % PKT_RECS];

		if (s->state == REC_FREE || s->rec.rsn != i)
			continue;
		e->rec_queued -= s->state == REC_QUEUED;
		s->state = REC_FREE;
	}
	while (e->rec_floor != e->rec_next && e->recs[e->rec_floor % PKT_RECS].state == REC_FREE)
		e->rec_floor++;
	if (e->rec_floor - e->rec_scan < 1u << 31)
		e->rec_scan = e->rec_floor;
}

/* DATA of @i may follow: it takes another way, on which it would come before an OPEN that waits for
 * room. */
static void op_opened(struct pkt_ep *e, uint32_t i, uint32_t rsn)
{
	if (i != PKT_NONE && e->ops[i].open_rsn == rsn)
		e->ops[i].opened = true;
}

/* Fill @b with a run of queued records that begins at rec_scan. Return bytes; *n: records. */
static uint32_t recs_pack(struct pkt_ep *e, uint8_t *b, uint32_t *n)
{
	uint32_t room = GX_MIN((uint32_t)GX_CTL_PAYLOAD_MAX, e->shape.quantum);
	uint32_t at = 0;

	while (e->rec_scan != e->rec_next && e->recs[e->rec_scan % PKT_RECS].state != REC_QUEUED)
		e->rec_scan++;
	for (*n = 0; e->rec_scan != e->rec_next; (*n)++, e->rec_scan++) {
		struct rec_slot *s = &e->recs[e->rec_scan % PKT_RECS];
		uint32_t put;

		if (s->state != REC_QUEUED)
			break;
		put = gx_wire_rec_put(b + at, room - at, &s->rec);
		if (!put)
			break;
		at += put;
		if (!s->sent)
			op_opened(e, s->op, s->rec.rsn);
		s->sent = true;
		s->state = REC_SENT;
		e->rec_queued--;
	}
	return at;
}

bool tx_recs(struct pkt_ep *e)
{
	bool worked = false;

	/* One place of the control half stays for an ACK. */
	while (e->rec_queued && flow_room(e->flow) && ctl_room(e) > 1) {
		uint32_t n;
		uint32_t len = recs_pack(e, e->link->ctl_buf, &n);
		uint32_t first = e->rec_scan - n;
		uint32_t ack = 0;
		uint64_t psn;

		if (!n)
			break;
		/* An ACK that is due rides behind the records: one packet less for both ends. */
		if (len + ack_bound(e) <= GX_MIN((uint32_t)GX_CTL_PAYLOAD_MAX, e->shape.quantum))
			ack = ack_fill(e, e->link->ctl_buf + len);
		psn = flow_sent(
			e->flow, e->now_ns,
			&(struct flow_rec){.ref = first, .pkt = n, .len = len, .kind = PKT_K_CTL});
		tx_ctl_packet(e, GX_PKT_CTL, 0, psn, ack, e->link->ctl_buf, len + ack);
		worked = true;
	}
	return worked;
}

/* ---- starting operations ---- */

static bool peer_region_is_gpu(const struct pkt_ep *e, uint64_t token)
{
	const struct gx_hello *p = &e->ep.conn->peer;

	for (uint32_t i = 0; i < p->nr_regions; i++)
		if (p->regions[i].token == token)
			return p->regions[i].kind != GX_MEM_HOST;
	return true;
}

/* @old: what of its message before this one the peer must know, when @op begins again. */
static void op_open_rec(struct pkt_ep *e, struct pkt_op *op, uint32_t i,
			const struct gx_wire_rec *old)
{
	struct gx_wire_rec rec = {.type = GX_REC_OPEN,
				  .flags = old->flags,
				  .old_mid = old->old_mid,
				  .slot = old->slot,
				  .mid = op->mid,
				  .quantum = e->shape.quantum,
				  .token = op->token,
				  .off = op->remote_off,
				  .len = op->len,
				  .imm = op->kind == GX_OP_SEND ? op->tag : op->imm};

	if (op->token & PKT_SLOT_BIT)
		rec.flags |= GX_REC_SLOT;
	if (op->flags & GX_OP_IMM && op->kind == GX_OP_PUT && !op->internal)
		rec.flags |= GX_REC_IMM;
	if (op->inlined) {
		rec.flags |= GX_REC_INLINE;
		rec.data = (const uint8_t *)op->src;
	}
	op->open_rsn = e->rec_next;
	op->opened = false;
	tx_rec(e, &rec, i);
}

/* Can the bytes go with the OPEN? Only from host memory into host memory. */
static bool op_inlines(const struct pkt_ep *e, const struct pkt_op *op)
{
	if (!op->len)
		return true;
	if (op->len > GX_WIRE_INLINE_MAX || op->len > e->shape.quantum / 2 || op->gpu->device >= 0)
		return false;
	if (op->token & PKT_SLOT_BIT)
		return !(op->flags & PKT_F_SLOT_GPU);
	return !peer_region_is_gpu(e, op->token);
}

/* A window of bits for its packets, when it needs one. False: none is free. */
static bool op_window(struct pkt_ep *e, struct pkt_op *op)
{
	if (op->inlined || op->words != PKT_NONE || !pkt_needs_window(op->len))
		return true;
	if (!e->tx_words_free)
		return false;
	op->words = __builtin_ctzll(e->tx_words_free);
	e->tx_words_free &= e->tx_words_free - 1;
	return true;
}

/* Leave the message under way, for one with smaller packets. @old: what the peer must know of it.
 */
static void op_part(struct pkt_ep *e, struct pkt_op *op, struct gx_wire_rec *old)
{
	*old = (struct gx_wire_rec){
		.flags = GX_REC_AGAIN, .old_mid = op->mid, .slot = op->sent_pkts};
	e->out[op->mid % GX_WIRE_MIDS].op = PKT_NONE;
	msg_win_clear_rest(&op->acked);
	fetch_end(e, op);
	op->again = false;
	gx_stat_add(stats(e->link), GX_STAT_MSGS_AGAIN, 1);
}

/* Has the peer the OPEN of its message, and does the port reference no packet of it? Then another
 * may take its place, whatever is lost. */
static bool op_may_part(const struct pkt_ep *e, const struct pkt_op *op)
{
	const struct rec_slot *s = &e->recs[op->open_rsn % PKT_RECS];

	return !op->refs && (s->state == REC_FREE || s->rec.rsn != op->open_rsn);
}

/* Does the peer check what @op puts while it copies, when all of it may be acknowledged? */
static bool op_is_late(const struct pkt_ep *e, const struct pkt_op *op)
{
	bool gpu;

	if (!e->peer_late || op->inlined || !(op->flags & GX_OP_LOCAL))
		return false;
	gpu = op->token & PKT_SLOT_BIT ? op->flags & PKT_F_SLOT_GPU
				       : peer_region_is_gpu(e, op->token);
	return e->peer_late >> (gpu ? GX_MEM_CUDA : GX_MEM_HOST) & 1;
}

/* The first free place: few open messages share few words of done bits. */
uint32_t tx_mid(struct pkt_ep *e, uint32_t op)
{
	uint32_t w = (uint32_t)__builtin_ctz(e->mids_words);
	uint32_t at = 64 * w + (uint32_t)__builtin_ctzll(e->mids_free[w]);

	e->mids_free[w] &= e->mids_free[w] - 1;
	if (!e->mids_free[w])
		e->mids_words &= ~(1u << w);
	e->nr_mids++;
	e->begun = true;
	e->out[at].op = op;
	return e->out[at].mid += GX_WIRE_MIDS;
}

/* Give the first waiting operation a mid and queue its OPEN. False: it must wait. */
static bool op_start(struct pkt_ep *e, uint32_t i)
{
	struct pkt_op *op = &e->ops[i];
	struct gx_wire_rec old = {0};
	uint32_t mids_max = op->again ? GX_WIRE_MIDS : e->mids_max;

	if (e->nr_mids >= mids_max || tx_rec_room(e) <= PKT_RECS_KEPT)
		return false;
	op->inlined = !op->again && op_inlines(e, op);
	if ((op->again && !op_may_part(e, op)) || !op_window(e, op))
		return false;
	if (op->again)
		op_part(e, op, &old);
	else
		gx_stat_add(stats(e->link), GX_STAT_MSGS_TX, 1);
	list_remove(e, &e->wait_head, &e->wait_tail, i);
	op->mid = tx_mid(e, i);
	msg_win_init(&op->acked, &e->shape, op->len,
		     op->words == PKT_NONE ? &op->word
					   : e->tx_words + (size_t)op->words * e->words_max);
	stage_msg_init(&op->stage);
	op->sent_pkts = op->asked_pkts = 0;
	op->quantum = e->shape.quantum;
	op->late = op_is_late(e, op);
	op_open_rec(e, op, i, &old);
	if (op->inlined) {
		op->state = OP_SENT;
	} else {
		op->state = OP_SENDING;
		list_push(e, &e->act_head, &e->act_tail, i);
	}
	return true;
}

bool tx_start(struct pkt_ep *e)
{
	bool worked = false;

	while (e->wait_head != PKT_NONE && op_start(e, e->wait_head))
		worked = true;
	return worked;
}

/* ---- data ---- */

void tx_data_make(struct pkt_ep *e, struct gx_tx *tx, uint32_t i, uint64_t pkt,
		  const struct tx_how *how)
{
	struct pkt_op *op = &e->ops[i];
	uint64_t off = pkt * e->shape.quantum;
	bool last = pkt + 1 == op->acked.nr_pkts;
	struct gx_wire_hdr h = {
		.type = GX_PKT_DATA, .flags = last ? GX_PKT_EOM : 0, .mid = op->mid, .moff = off};

	tx->len = last ? op->len - off : e->shape.quantum;
	tx->cookie = UINT32_MAX;
	tx->gpu = op->gpu->device >= 0 && pkt_in_place(e, op) ? 1 + op->gpu->device : 0;
	tx->mapped = op->mapped || op->gpu->device >= 0; /* staged: in the arena */
	if (e->path.flags & GX_PORT_TX_ATTACH && !how->copy) {
		tx->cookie = e->index << 10 | i;
		op->refs++;
		e->refs++;
		e->link->refs++;
	}
	h.psn = flow_sent(e->flow, e->now_ns,
			  &(struct flow_rec){.ref = op->mid,
					     .pkt = pkt,
					     .len = tx->len,
					     .kind = how->kind,
					     .resend = how->resend});
	tx_hdr(e, tx, &h);
}

/* The packet goes out once more; false: its bytes are not there yet. */
static bool tx_resend(struct pkt_ep *e, struct gx_tx *tx, uint32_t i, uint64_t pkt)
{
	struct tx_how how = {.kind = PKT_K_DATA, .resend = true};

	tx->data = fetch_lost(e, &e->ops[i], pkt, &how.copy);
	if (!tx->data)
		return false;
	tx_data_make(e, tx, i, pkt, &how);
	return true;
}

static unsigned tx_resends(struct pkt_ep *e, unsigned n, unsigned max)
{
	while (n < max && e->resend_tail != e->resend_head && flow_room(e->flow)) {
		uint32_t at = e->resend_tail & e->resend_mask;
		uint32_t mid = e->resend[at].mid;
		uint32_t i = e->out[mid % GX_WIRE_MIDS].op;

		if (i != PKT_NONE && e->ops[i].mid == mid && !e->ops[i].doomed &&
		    !e->ops[i].again && msg_win_test(&e->ops[i].acked, e->resend[at].pkt) == 0) {
			if (!tx_resend(e, &e->link->tx[n], i, e->resend[at].pkt))
				break;
			n++;
			gx_stat_add(stats(e->link), GX_STAT_TX_RESENT, 1);
		}
		e->resend_tail++;
	}
	return n;
}

/* First transmissions of one message, from index @n of link->tx: none before its OPEN. */
static unsigned tx_first(struct pkt_ep *e, uint32_t i, unsigned n, unsigned max)
{
	struct pkt_op *op = &e->ops[i];
	uint64_t limit = msg_limit(&op->acked, &e->shape);
	unsigned from = n;

	if (max - n > TX_TURN_PKTS)
		max = n + TX_TURN_PKTS;
	while (n < max && op->sent_pkts < limit && op->opened) {
		e->link->tx[n].data = fetch_payload(e, op, op->sent_pkts);
		if (!e->link->tx[n].data)
			break;
		tx_data_make(e, &e->link->tx[n], i, op->sent_pkts++,
			     &(struct tx_how){.kind = PKT_K_DATA});
		n++;
	}
	flow_credit_use(e->flow, n - from);
	return n;
}

/* How many data packets this ep may send now, first transmissions apart from resends. */
static unsigned tx_data_room(struct pkt_ep *e)
{
	unsigned room = GX_MIN((uint32_t)GX_BURST_MAX, flow_room(e->flow));
	unsigned out = flow_outstanding(e->flow);

	/* While it is in doubt that they arrive: a few, so that they do not keep all else waiting.
	 */
	if (gx_unlikely(e->proving))
		room = GX_MIN(room, out < PKT_DOUBT ? PKT_DOUBT - out : 0);

	if (room)
		room = GX_MIN(room,
			      e->link->q->ops->tx_room(e->link->q, GX_HALF_DATA, e->port_peer));
	return room;
}

static void tx_send(struct link_pkt *l, unsigned n)
{
	uint64_t bytes = 0;
	unsigned sent = l->q->ops->tx_burst(l->q, GX_HALF_DATA, l->tx, n);

	/* What a lossy port did not take is lost like any other packet: the flow sends it again. */
	if (sent < n)
		gx_stat_add(stats(l), GX_STAT_TX_FULL, 1);
	for (unsigned i = 0; i < n; i++)
		bytes += l->tx[i].len;
	for (unsigned i = sent; i < n; i++)
		if (l->tx[i].cookie != UINT32_MAX)
			tx_unref(l, l->tx[i].cookie);
	gx_stat_add(stats(l), GX_STAT_TX_PKTS, n);
	gx_stat_add(stats(l), GX_STAT_TX_BYTES, bytes);
}

static bool tx_data(struct pkt_ep *e)
{
	unsigned max = tx_data_room(e);
	unsigned n = 0;
	uint32_t first = PKT_NONE;
	unsigned credit;

	if (!max)
		return false;
	n = tx_resends(e, 0, max);
	if (gx_unlikely(e->ask_head != e->ask_tail))
		n = ask_send(e, n, max);
	credit = flow_credit(e->flow);
	/* Lost ones wait for their bytes: what is out may be lost as well, and the ring has room
	 * for as much again. */
	if (gx_unlikely(e->resend_head - e->resend_tail > e->resend_mask / 2))
		credit = 0;
	if (!credit && e->act_head != PKT_NONE)
		gx_stat_add(stats(e->link), GX_STAT_CREDIT_STALL, 1);
	/* Round robin over the messages, each once a turn. */
	while (n < max && credit && e->act_head != PKT_NONE && e->act_head != first) {
		uint32_t i = e->act_head;
		unsigned got;

		fetch_ahead(e, &e->ops[i]);
		got = tx_first(e, i, n, GX_MIN(max, n + credit)) - n;
		n += got;
		credit -= got;
		list_remove(e, &e->act_head, &e->act_tail, i);
		if (e->ops[i].sent_pkts == e->ops[i].acked.nr_pkts) {
			e->ops[i].state = OP_SENT;
			continue;
		}
		list_push(e, &e->act_head, &e->act_tail, i);
		if (first == PKT_NONE)
			first = i;
	}
	if (n)
		tx_send(e->link, n);
	fetch_sent(e);
	return n > 0;
}

/* ---- credit, and ACKs of their own ---- */

/* Credit where each peer has its own buffers: all of them. */
static void tx_grant(struct pkt_ep *e)
{
	const struct gx_port_caps *caps = &e->link->port->caps;
	uint32_t before = flow_granted(e->flow);
	uint32_t room = caps->rx_slots - GX_MIN(caps->rx_slots, e->held_bufs + pkt_margin(caps));
	uint32_t grew = room > before ? flow_grant(e->flow, 1u << 30, room) : 0;

	if (grew && (before < 64 || grew >= caps->rx_slots / 8))
		flow_ack_want(e->flow);
}

static bool tx_ack(struct pkt_ep *e)
{
	uint8_t b[GX_WIRE_ACK_MAX];
	uint32_t len;

	if (!flow_ack_due(e->flow, e->now_ns) || !ctl_room(e))
		return false;
	if (e->ack_hold == ACK_HOLD_ASKED) { /* once: it may leave with the user's answer */
		e->ack_hold = ACK_HOLD_DONE;
		return false;
	}
	len = ack_fill(e, b);
	if (len)
		tx_ctl_packet(e, GX_PKT_ACK, 0, e->apsn++, 0, b, len);
	return len > 0;
}

/* ---- acknowledgements, incoming ---- */

static void acked_data(struct pkt_ep *e, const struct flow_rec *rec)
{
	uint32_t i = e->out[rec->ref % GX_WIRE_MIDS].op;
	struct pkt_op *op;

	if (i == PKT_NONE || e->ops[i].mid != rec->ref)
		return;
	op = &e->ops[i];
	if (op->inlined || op->again || msg_win_test(&op->acked, rec->pkt) != 0)
		return;
	msg_win_set(&op->acked, rec->pkt);
	if (op->gpu->device >= 0)
		fetch_acked(e, op);
	if (msg_win_full(&op->acked))
		op_local(e, i);
}

static void lost_data(struct pkt_ep *e, const struct flow_rec *rec)
{
	uint32_t at = e->resend_head & e->resend_mask;

	e->resend[at].mid = rec->ref;
	e->resend[at].pkt = rec->pkt;
	e->resend_head++;
}

void tx_acked(struct pkt_ep *e)
{
	struct flow_rec rec;

	while (flow_next_acked(e->flow, &rec)) {
		e->acked_ns = e->now_ns;
		if (link_watches(e, &rec))
			link_acked(e, &rec);
		if (rec.kind == PKT_K_DATA)
			acked_data(e, &rec);
		else if (rec.kind == PKT_K_CTL)
			recs_acked(e, rec.ref, rec.pkt);
		else if (rec.kind == PKT_K_ASKED)
			ask_acked(e);
		else if (rec.kind == PKT_K_PROBE && rec.ref)
			link_proven(e, rec.ref);
	}
	while (flow_next_lost(e->flow, &rec)) {
		link_lost(e, &rec);
		if (rec.kind == PKT_K_DATA)
			lost_data(e, &rec);
		else if (rec.kind == PKT_K_CTL)
			recs_requeue(e, rec.ref, rec.pkt);
		else if (rec.kind == PKT_K_ASKED)
			ask_lost(e, &rec);
	}
}

/* The message at a place is done: the place is free, and its operation, if it waits, ends. */
static void mid_done(struct pkt_ep *e, uint32_t place)
{
	uint32_t i = e->out[place].op;

	e->told[place / 64] ^= 1ull << (place & 63);
	e->mids_free[place / 64] |= 1ull << (place & 63);
	e->mids_words |= 1u << place / 64;
	e->nr_mids--;
	if (i != PKT_NONE)
		op_done(e, i);
}

/* What an ACK says of a word counts unless a later one has said more of it. Then a bit that differs
 * from what was told is one message, the one at that place: it began when the one before it was
 * told. */
void tx_done(struct pkt_ep *e, const struct gx_wire_ack *ack)
{
	for (uint32_t rest = ack->done_words; rest; rest &= rest - 1) {
		uint32_t w = (uint32_t)__builtin_ctz(rest);
		uint64_t bits;

		if ((int32_t)(ack->number - e->told_by[w]) <= 0)
			continue;
		e->told_by[w] = ack->number;
		bits = (ack->done[w] ^ e->told[w]) & ~e->mids_free[w];
		for (; bits; bits &= bits - 1)
			mid_done(e, 64 * w + (uint32_t)__builtin_ctzll(bits));
	}
}

/* ---- the turn ---- */

void tx_probe(struct pkt_ep *e, uint32_t padded_b)
{
	uint64_t psn;

	/* Any probe may go out above the window: it may be full of lost packets. */
	if (!padded_b && !ctl_room(e))
		return;
	psn = flow_sent(e->flow, e->now_ns,
			&(struct flow_rec){.ref = padded_b, .len = padded_b, .kind = PKT_K_PROBE});
	gx_stat_add(stats(e->link), GX_STAT_PROBE_TX, 1);
	if (!padded_b) {
		tx_ctl_packet(e, GX_PKT_PROBE, GX_PKT_ACK_NOW, psn, 0, e->link->ctl_buf, 0);
		return;
	}
	e->link->tx[0] =
		(struct gx_tx){.data = e->link->pad, .len = padded_b, .cookie = UINT32_MAX};
	tx_hdr(e, &e->link->tx[0],
	       &(struct gx_wire_hdr){.type = GX_PKT_PROBE, .flags = GX_PKT_ACK_NOW, .psn = psn});
	tx_send(e->link, 1);
}

/* Before the data, which may fill the port for good while none of it arrives. */
static void tx_prove(struct pkt_ep *e)
{
	if (e->link->q->ops->tx_room(e->link->q, GX_HALF_DATA, e->port_peer) < 2)
		return;
	e->prove_due = false;
	tx_probe(e, e->shape.quantum);
	tx_probe(e, PKT_SMALL_B);
}

static bool tx_ep(struct pkt_ep *e)
{
	bool worked = false;

	if (e->err)
		return link_fail_progress(e);
	if (e->now_ns >= e->tick_ns || e->now_ns >= flow_due(e->flow))
		link_tick(e);
	if (e->landed_head != PKT_NONE)
		worked |= rx_landed(e);
	if (e->gets_head != e->gets_tail)
		match_serve_gets(e);
	if (e->wait_head != PKT_NONE && e->proven)
		worked |= tx_start(e);
	if (e->rec_queued)
		worked |= tx_recs(e);
	if (gx_unlikely(e->prove_due))
		tx_prove(e);
	if (e->act_head != PKT_NONE || e->resend_head != e->resend_tail ||
	    e->ask_head != e->ask_tail)
		worked |= tx_data(e);
	if (e->share.on)
		share_grant(e);
	else
		tx_grant(e);
	worked |= tx_ack(e);
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
		tx_unref(l, cookies[i]);
	return n > 0;
}

bool tx_settle(struct link_pkt *l, uint64_t now_ns)
{
	bool worked = tx_reap(l);

	for (unsigned i = 0; i < l->nr_gpus; i++)
		if (l->stage[i])
			worked |= stage_reap(l->stage[i], now_ns);
	return worked;
}

bool tx_poll(struct link_pkt *l, uint64_t now_ns)
{
	bool worked = tx_settle(l, now_ns);
	unsigned nr;

	link_wake(l, now_ns);
	nr = l->nr_hot;
	if (++l->rover >= nr)
		l->rover = 0;
	/* An ep that finishes failing leaves the array: from the back, so that none is skipped. */
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
