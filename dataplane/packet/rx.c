/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving half of a turn of a packet link: take packets from the port, decide what each is
 * (wire, flow), where its bytes go (msg), write a descriptor (block), and hand finished copies
 * back. Runs on the polling core.
 */
#include "packet/pkt.h"

#include <errno.h>
#include <string.h>

static struct gx_stats *stats(const struct link_pkt *l)
{
	return &l->core->loop.stats;
}

static struct in_msg *in_at(struct pkt_ep *e, uint32_t mid)
{
	struct in_msg *m = &e->in[mid % GX_WIRE_MIDS];

	/* A place has no memory before it is used: then even the number of the message before the
	 * first is missing. */
	if (gx_unlikely((m->mid ^ mid) % GX_WIRE_MIDS))
		m->mid = mid % GX_WIRE_MIDS - GX_WIRE_MIDS;
	return m;
}

/* May a message of this mid come to its place? */
static bool in_is_next(const struct in_msg *m, uint32_t mid)
{
	return m->state == IN_FREE && mid - m->mid == GX_WIRE_MIDS;
}

static void in_words_put(struct pkt_ep *e, struct in_msg *m)
{
	if (m->words == PKT_NONE)
		return;
	if (!msg_win_full(&m->win))
		msg_win_clear_rest(&m->win);
	e->rx_words_free |= 1ull << m->words;
	m->words = PKT_NONE;
}

/* Nothing of @m is under way any more; the peer may learn that its mid is settled. */
static void in_settle(struct pkt_ep *e, struct in_msg *m)
{
	uint32_t i = m->mid % GX_WIRE_MIDS;

	m->state = IN_FREE;
	e->in_done[i / 64] ^= 1ull << (i & 63);
	e->done_used |= 1u << i / 64;
	e->done_due |= 1u << i / 64;
	e->nr_in--;
	flow_ack_want(e->flow);
}

/* The operation that a message was for ends, and its slot with it. */
static void in_op_end(struct pkt_ep *e, struct in_msg *m, int status)
{
	uint32_t i = m->op;
	struct pkt_op *op;

	if (i == PKT_NONE)
		return;
	op = &e->ops[i];
	op->tag = m->tag;
	slot_free(e, op->slot);
	m->op = PKT_NONE;
	op_finish(e, i, status, status ? 0 : m->len);
}

static bool in_deliver(struct pkt_ep *e, struct in_msg *m)
{
	if (m->imm_set && m->op == PKT_NONE) {
		struct gx_comp comp = {.kind = GX_COMP_NOTIFY,
				       .op = GX_OP_PUT,
				       .ep = &e->ep,
				       .len = m->len,
				       .imm = m->imm,
				       .token = m->token,
				       .off = m->off};

		if (!core_comp_room(e->ep.core))
			return false;
		core_comp(e->ep.core, &comp, NULL);
		if (e->ack_hold == ACK_HOLD_NO)
			e->ack_hold = ACK_HOLD_ASKED;
	}
	in_op_end(e, m, 0);
	gx_stat_add(stats(e->link), GX_STAT_MSGS_RX, 1);
	in_settle(e, m);
	return true;
}

/* Every byte is visible: complete it here, tell the sender. */
static void in_landed(struct pkt_ep *e, struct in_msg *m)
{
	in_words_put(e, m);
	bad_forget(e, m);
	m->state = IN_LANDED;
	if (e->landed_head == PKT_NONE && in_deliver(e, m))
		return;
	m->next = PKT_NONE;
	if (e->landed_head == PKT_NONE)
		e->landed_head = m->mid % GX_WIRE_MIDS;
	else
		in_at(e, e->landed_tail)->next = m->mid % GX_WIRE_MIDS;
	e->landed_tail = m->mid % GX_WIRE_MIDS;
}

bool rx_landed(struct pkt_ep *e)
{
	bool worked = false;

	while (e->landed_head != PKT_NONE) {
		struct in_msg *m = in_at(e, e->landed_head);
		uint32_t next = m->next;

		if (!in_deliver(e, m))
			break;
		e->landed_head = next;
		worked = true;
	}
	return worked;
}

static void in_check_landed(struct pkt_ep *e, struct in_msg *m)
{
	if (m->state == IN_ACTIVE && m->visible_b == m->len && !m->pending && msg_win_full(&m->win))
		in_landed(e, m);
}

/* What was declared and will not come as expected any more. */
static void in_forget_need(struct pkt_ep *e, struct in_msg *m)
{
	e->need_pkts -= m->win.nr_pkts - m->seen_pkts;
}

static void in_fail_rec(struct pkt_ep *e, struct in_msg *m)
{
	struct gx_wire_rec rec = {.type = GX_REC_FAIL, .token = m->mid, .err = m->err};

	m->fail_due = !tx_rec(e, &rec, PKT_NONE);
	e->fails_due |= m->fail_due;
}

/* Our side cannot take the rest of @m: tell the sender, drop what still comes, keep the mid until
 * its CANCEL. */
static void in_refuse(struct pkt_ep *e, struct in_msg *m, int err)
{
	if (m->state != IN_ACTIVE)
		return;
	in_forget_need(e, m);
	bad_forget(e, m);
	m->state = IN_REFUSED;
	m->err = err;
	in_fail_rec(e, m);
	if (!m->pending)
		in_op_end(e, m, err);
}

static void in_cancel(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	struct in_msg *m = in_at(e, rec->mid);
	uint64_t seen;

	if (in_is_next(m, rec->mid)) { /* overtook its OPEN, which may name one of our operations */
		*m = (struct in_msg){
			.state = IN_EARLY, .mid = rec->mid, .op = PKT_NONE, .words = PKT_NONE};
		e->nr_in++;
		share_used(e, rec->slot);
		return;
	}
	if (m->mid != rec->mid || (m->state != IN_ACTIVE && m->state != IN_REFUSED))
		return; /* it is done */
	seen = m->seen_pkts;
	if (m->state == IN_ACTIVE) {
		in_forget_need(e, m);
		bad_forget(e, m);
		m->err = -ECANCELED;
	}
	in_words_put(e, m);
	if (rec->slot > seen && rec->slot <= m->win.nr_pkts)
		share_used(e, rec->slot - seen);
	m->state = IN_DRAIN;
	if (!m->pending) {
		in_op_end(e, m, m->err);
		in_settle(e, m);
	}
}

void rx_tick(struct pkt_ep *e)
{
	e->fails_due = false;
	for (uint32_t k = 0; k < GX_WIRE_MIDS; k++)
		if (e->in[k].state == IN_REFUSED && e->in[k].fail_due)
			in_fail_rec(e, &e->in[k]);
}

void rx_give_up(struct pkt_ep *e, uint32_t i)
{
	struct gx_wire_rec rec = {.type = GX_REC_REVOKE};
	struct pkt_op *op = &e->ops[i];

	for (uint32_t k = 0; k < GX_WIRE_MIDS; k++) {
		struct in_msg *m = &e->in[k];

		if (m->op == i && m->state == IN_ACTIVE) {
			in_refuse(e, m, op->status);
			return;
		}
		if (m->op == i && m->state != IN_FREE)
			return; /* ends by itself */
	}
	if (op->kind ==
	    GX_OP_GET) { /* the peer's answer is still to come, and counts as one of our requests */
		op_complete(e, i, op->status, 0);
		return;
	}
	/* Without room for the record the peer's send finds the slot gone, and fails. */
	rec.token = slot_token(e, op->slot);
	tx_rec(e, &rec, PKT_NONE);
	slot_free(e, op->slot);
	op_finish(e, i, op->status, 0);
}

/* ---- records ---- */

static int open_region(struct pkt_ep *e, const struct gx_wire_rec *rec, struct in_msg *m,
		       struct gx_gpu **gpu)
{
	struct gx *gx = e->ep.core->gx;
	uint32_t i = rec->token & 0xff;
	struct gx_mem *mem;

	if (i >= GX_REGIONS_MAX)
		return -ENOENT;
	/* Pairs with the release in gx_mem_share(). */
	mem = atomic_load_explicit(&gx->region[i], memory_order_acquire);
	if (!mem || mem->token != rec->token)
		return -ENOENT;
	if (!(mem->access & GX_ACCESS_PUT))
		return -EACCES;
	if (rec->off > mem->len || rec->len > mem->len - rec->off)
		return -ERANGE;
	if (mem->kind == GX_MEM_HOST && e->link->q->rx_gpu && rec->len && !mem_is_mapped(mem))
		return -EIO; /* gx_mem_share() refuses it: registered later, and in vain */
	m->dst = mem->addr + rec->off;
	m->mem = mem;
	*gpu = mem->gpu;
	return 0;
}

static int open_slot(struct pkt_ep *e, const struct gx_wire_rec *rec, struct in_msg *m,
		     struct gx_gpu **gpu)
{
	struct pkt_slot *s = slot_find(e, rec->token);
	struct pkt_op *op;

	if (!s || s->bound)
		return -ECANCELED; /* taken back, or named twice */
	op = &e->ops[s->op];
	if (op->doomed) { /* a get that was given up */
		slot_free(e, op->slot);
		op_finish(e, s->op, op->status, 0);
		return -ECANCELED;
	}
	if (rec->len > op->len || (op->kind == GX_OP_GET && rec->len != op->len))
		return -EMSGSIZE;
	s->bound = true;
	m->op = s->op;
	m->dst = (char *)op->src;
	m->mem = op->mem;
	m->tag = rec->imm;
	*gpu = op->gpu;
	return 0;
}

static int open_target(struct pkt_ep *e, const struct gx_wire_rec *rec, struct in_msg *m,
		       struct gx_gpu **gpu)
{
	return rec->flags & GX_REC_SLOT ? open_slot(e, rec, m, gpu) : open_region(e, rec, m, gpu);
}

static const struct msg_shape *open_shape(struct pkt_ep *e, uint32_t quantum)
{
	struct msg_shape *s;

	for (unsigned i = 0; i < e->nr_rx_shapes; i++)
		if (e->rx_shape[i].quantum == quantum)
			return &e->rx_shape[i];
	if (e->nr_rx_shapes == PKT_SHAPES || quantum > e->link->port->caps.payload_max)
		return NULL;
	s = &e->rx_shape[e->nr_rx_shapes];
	if (msg_shape_init(s, quantum, e->ep.conn->agreed.chunk_b, e->ep.conn->agreed.window) ||
	    msg_words(s) > e->words_max)
		return NULL;
	e->nr_rx_shapes++;
	return s;
}

/* The data came with the record: one copy by this core, and it is visible. */
static void open_inline(struct pkt_ep *e, const struct gx_wire_rec *rec, struct in_msg *m,
			const struct gx_gpu *gpu)
{
	m->win.base = m->win.nr_pkts;
	m->seen_pkts = m->win.nr_pkts;
	if (rec->len && gpu->device >= 0) {
		m->win.base = 0;
		e->need_pkts += m->win.nr_pkts - m->seen_pkts;
		in_refuse(e, m, -EPROTO);
		return;
	}
	if (rec->len)
		gx_copy(m->dst, rec->data, rec->len);
	m->visible_b = m->len;
	in_check_landed(e, m);
}

/* The message that an OPEN with AGAIN takes the place of. Return: 0; 1: that one has landed as a
 * whole; -EPROTO: there is none such, and the connection ends. */
static int again_find(struct pkt_ep *e, const struct gx_wire_rec *rec, const struct in_msg *m,
		      struct in_msg **out)
{
	struct in_msg *old = in_at(e, rec->old_mid);
	int32_t ahead = (int32_t)(rec->old_mid - old->mid);

	*out = old;
	if (ahead < 0 || (!ahead && (old->state == IN_LANDED || old->state == IN_FREE)))
		return 1;
	if (!ahead && (old->state == IN_ACTIVE || old->state == IN_REFUSED) && old != m &&
	    old->token == rec->token && old->off == rec->off && old->len == rec->len)
		return 0;
	rx_fault(e, -EPROTO);
	return -EPROTO;
}

/* Its CANCEL was here before it: whoever waits for it waits no more. That may be the message that
 * it was to take the place of, which no other record names. */
static void open_early(struct pkt_ep *e, const struct gx_wire_rec *rec, struct in_msg *m)
{
	struct pkt_slot *s = rec->flags & GX_REC_SLOT ? slot_find(e, rec->token) : NULL;
	struct in_msg *old;

	if (rec->flags & GX_REC_AGAIN) {
		if (!again_find(e, rec, m, &old))
			in_cancel(e, &(struct gx_wire_rec){.mid = old->mid, .slot = rec->slot});
	} else if (s && !s->bound) {
		m->op = s->op;
		in_op_end(e, m, -ECANCELED);
	}
	in_settle(e, m);
}

/* It takes the place of a message whose packets are too large for the path. What of that one has
 * landed in part is put there once more; copies of it that are still under way must end first, or
 * they might come after what is put there next. Return: 0: go on; 1: the other one has landed as a
 * whole; -errno: refuse it. */
static int open_again(struct pkt_ep *e, const struct gx_wire_rec *rec, struct in_msg *m)
{
	struct in_msg *old;
	int err = again_find(e, rec, m, &old);

	if (err)
		return err;
	if (old->state == IN_REFUSED) {
		err = old->err;
	} else if (old->op != PKT_NONE) {
		e->slots[e->ops[old->op].slot].bound = false;
		old->op = PKT_NONE;
	}
	if (old->pending) {
		old->heir = m->mid;
		old->has_heir = true;
		m->pending++;
	}
	in_cancel(e, &(struct gx_wire_rec){.mid = old->mid, .slot = rec->slot});
	return err;
}

/* Bits for its packets, as long as it is not settled: also when it is refused, to know what is a
 * duplicate. */
static int open_words(struct pkt_ep *e, struct in_msg *m)
{
	if (!pkt_needs_window(m->len)) {
		m->win.words = &m->word;
		return 0;
	}
	if (!e->rx_words_free)
		return -ENOBUFS;
	m->words = __builtin_ctzll(e->rx_words_free);
	e->rx_words_free &= e->rx_words_free - 1;
	m->win.words = e->rx_words + (size_t)m->words * e->words_max;
	return 0;
}

/* Does who copies to @gpu's memory check it too? What the peer was told holds. */
static bool ep_checks(const struct pkt_ep *e, const struct gx_gpu *gpu, const struct block_q *bq)
{
	enum gx_mem_kind kind = gpu->device < 0 ? GX_MEM_HOST : GX_MEM_CUDA;

	return e->late >> kind & 1 && block_checks(bq);
}

static void rx_open(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	struct in_msg *m = in_at(e, rec->mid);
	struct gx_gpu *gpu = e->ep.core->gx->host;
	int err = 0, full = 0;

	if (m->state == IN_EARLY && m->mid == rec->mid) {
		open_early(e, rec, m);
		return;
	}
	if (!in_is_next(m,
			rec->mid)) { /* the one before it at this place is not done, or was not */
		rx_fault(e, -EPROTO);
		return;
	}
	*m = (struct in_msg){.state = IN_ACTIVE,
			     .mid = rec->mid,
			     .op = PKT_NONE,
			     .words = PKT_NONE,
			     .len = rec->len,
			     .token = rec->token,
			     .off = rec->off,
			     .imm = rec->imm,
			     .imm_set = rec->flags & GX_REC_IMM};
	m->shape = open_shape(e, rec->quantum);
	if (!m->shape) {
		m->state = IN_FREE;
		rx_fault(e, -EPROTO);
		return;
	}
	e->nr_in++;
	msg_win_init(&m->win, m->shape, m->len, NULL);
	if (rec->flags & GX_REC_AGAIN)
		err = open_again(e, rec, m);
	if (err > 0) {
		in_settle(e, m);
		return;
	}
	if (!err)
		err = open_target(e, rec, m, &gpu);
	if (!(rec->flags & GX_REC_INLINE))
		full = open_words(e, m);
	m->bq = ep_bq(e, gpu);
	m->checks = m->bq && ep_checks(e, gpu, m->bq);
	if (!err)
		err = m->bq ? full : -EIO;
	if (!err && (rec->flags & GX_REC_INLINE)) {
		open_inline(e, rec, m, gpu);
		return;
	}
	e->need_pkts += m->win.nr_pkts;
	if (err)
		in_refuse(e, m, err);
}

static void rx_fail(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	uint32_t mid = rec->token;
	uint32_t i;

	if (rec->flags & GX_REC_SLOT) {
		struct pkt_slot *s = slot_find(e, rec->token);

		if (s && !s->bound && e->ops[s->op].kind == GX_OP_GET) {
			i = s->op;
			slot_free(e, e->ops[i].slot);
			op_finish(e, i, rec->err < 0 ? rec->err : -EIO, 0);
		}
		return;
	}
	i = e->out[mid % GX_WIRE_MIDS].op;
	if (i != PKT_NONE && e->ops[i].mid == mid)
		op_doom(e, i, rec->err < 0 ? rec->err : -EIO);
}

static void rx_get(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	if (e->gets_head - e->gets_tail == PKT_GETS_MAX) {
		rx_fault(e, -EPROTO);
		return;
	}
	e->gets[e->gets_head++ % PKT_GETS_MAX] = *rec;
}

/* Every record once: rsn below the floor or in the bitmap was seen. */
static bool rec_is_new(struct pkt_ep *e, uint32_t rsn)
{
	uint32_t i = rsn % PKT_RECS;

	if (rsn - e->rsn_floor >= PKT_RECS || e->rsn_seen[i / 64] >> (i & 63) & 1)
		return false;
	e->rsn_seen[i / 64] |= 1ull << (i & 63);
	for (i = e->rsn_floor % PKT_RECS; e->rsn_seen[i / 64] >> (i & 63) & 1;
	     i = e->rsn_floor % PKT_RECS) {
		e->rsn_seen[i / 64] &= ~(1ull << (i & 63));
		e->rsn_floor++;
	}
	return true;
}

static void rx_rec(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	switch (rec->type) {
	case GX_REC_OPEN:
		rx_open(e, rec);
		break;
	case GX_REC_GRANT:
		match_grant(e, rec);
		break;
	case GX_REC_GET:
		rx_get(e, rec);
		break;
	case GX_REC_RESEND:
		ask_take(e, rec);
		break;
	case GX_REC_FAIL:
		rx_fail(e, rec);
		break;
	case GX_REC_CANCEL:
		in_cancel(e, rec);
		break;
	case GX_REC_REVOKE:
		match_revoke(e, rec->token);
		break;
	case GX_REC_REFUND:
		share_refunded(e, rec->slot);
		break;
	}
}

static bool rx_recs(struct pkt_ep *e, const uint8_t *b, uint32_t len)
{
	struct gx_wire_rec rec;
	uint32_t at = 0;
	int n;

	/* All or nothing: a packet with a bad record is not acknowledged and none of it is done. */
	for (at = 0; at < len; at += n) {
		n = gx_wire_rec_get(b + at, len - at, &rec);
		if (n <= 0)
			return false;
	}
	for (at = 0; at < len; at += n) {
		n = gx_wire_rec_get(b + at, len - at, &rec);
		if (rec_is_new(e, rec.rsn))
			rx_rec(e, &rec);
	}
	if (e->nr_late)
		match_late(e);
	return true;
}

/* ---- packets ---- */

/* A packet that cannot be, from a peer that the port vouches for, on a port that changes nothing:
 * that peer is not sane, and its connection ends rather than wait for what will not come. */
static void rx_insane(struct link_pkt *l, const struct gx_rx *rx, enum gx_stat_id stat)
{
	gx_stat_add(stats(l), stat, 1);
	if (rx->peer == GX_PEER_ANY || !(l->port->caps.flags & GX_PORT_LOSSLESS))
		return;
	for (unsigned i = 0; i < l->nr_live; i++)
		if (l->live[i]->port_peer == rx->peer)
			rx_fault(l->live[i], -EPROTO);
}

/* Bytes that are not what was sent. Where nothing is lost, nothing is sent again: then a memory is
 * at fault, and the connection ends rather than wait for ever. */
static void rx_wrong(struct pkt_ep *e)
{
	gx_stat_add(stats(e->link), GX_STAT_RX_CRC, 1);
	if (e->lossless)
		rx_fault(e, -EBADMSG);
}

/* Header and connection of a packet; NULL: dropped and counted. */
static struct pkt_ep *rx_ep(struct link_pkt *l, const struct gx_rx *rx, struct gx_wire_hdr *h)
{
	struct pkt_ep *e;
	uint32_t i;

	if (gx_unlikely(gx_wire_hdr_get(rx->hdr, rx->hlen, rx->len, h))) {
		rx_insane(l, rx, GX_STAT_RX_BAD);
		return NULL;
	}
	i = h->cid & 0xfffff;
	e = i < GX_PEERS_MAX ? l->eps[i] : NULL;
	if (gx_unlikely(!e || e->gen != h->cid >> 20 || e->err ||
			(rx->peer != GX_PEER_ANY && rx->peer != e->port_peer))) {
		rx_insane(l, rx, GX_STAT_RX_STRAY);
		return NULL;
	}
	if (e->integrity == GX_INTEGRITY_CRC && gx_wire_hdr_check(rx->hdr, h, e->salt)) {
		rx_wrong(e);
		return NULL;
	}
	ep_touch(e);
	e->now_ns = l->core->now_ns;
	return e;
}

/* The payload of a packet that the CPU checks. False: dropped and counted. */
static bool rx_payload(struct pkt_ep *e, const struct gx_rx *rx, const struct gx_wire_hdr *h)
{
	if (e->integrity != GX_INTEGRITY_CRC || gx_crc32c(0, rx->data, rx->len) == h->crc_payload)
		return true;
	rx_wrong(e);
	return false;
}

static bool rx_ack(struct pkt_ep *e, const uint8_t *b, uint32_t len)
{
	uint64_t late = flow_spurious(e->flow);
	struct gx_wire_ack ack;

	if (gx_wire_ack_get(b, len, &ack) || flow_ack(e->flow, e->now_ns, &ack))
		return false;
	if (flow_spurious(e->flow) != late)
		e->acked_ns = e->now_ns;
	gx_stat_add(stats(e->link), GX_STAT_ACK_RX, 1);
	tx_acked(e);
	tx_done(e, &ack);
	return true;
}

/* Is this psn a new one? If not, the peer misses our ACK. */
static bool rx_new(struct pkt_ep *e, const struct gx_wire_hdr *h)
{
	if (gx_likely(flow_rx_look(e->flow, h->psn) == FLOW_RX_NEW))
		return true;
	gx_stat_add(stats(e->link), GX_STAT_RX_DUP, 1);
	flow_rx_again(e->flow, e->now_ns);
	return false;
}

/* Records, and behind them an ACK of h->mid bytes, if any: the records first, somebody may wait for
 * them. */
static bool rx_ctl_packet(struct pkt_ep *e, const struct gx_rx *rx, const struct gx_wire_hdr *h)
{
	uint32_t recs = rx->len - h->mid;

	if (h->mid > rx->len || !rx_recs(e, rx->data, recs))
		return false;
	flow_rx_take(e->flow, e->now_ns, h->psn, false, h->flags & GX_PKT_ACK_NOW);
	return !h->mid || rx_ack(e, (const uint8_t *)rx->data + recs, h->mid);
}

/* The peer may have missed something: the ACK tells all. */
static void rx_probe(struct pkt_ep *e, const struct gx_wire_hdr *h)
{
	e->done_due = e->done_used;
	flow_rx_take(e->flow, e->now_ns, h->psn, false, true);
}

static bool rx_ctl_any(struct pkt_ep *e, const struct gx_rx *rx, const struct gx_wire_hdr *h)
{
	if (h->type == GX_PKT_ACK)
		return rx_ack(e, rx->data, rx->len);
	if (!rx_new(e, h))
		return true;
	if (h->type == GX_PKT_CTL)
		return rx_ctl_packet(e, rx, h);
	if (h->type != GX_PKT_PROBE)
		return false;
	rx_probe(e, h);
	return true;
}

static void rx_ctl_one(struct link_pkt *l, const struct gx_rx *rx)
{
	struct gx_wire_hdr h;
	struct pkt_ep *e = rx_ep(l, rx, &h);

	if (!e || !rx_payload(e, rx, &h))
		return;
	if (rx_ctl_any(e, rx, &h)) {
		e->heard_ns = e->now_ns;
		return;
	}
	gx_stat_add(stats(l), GX_STAT_RX_BAD, 1);
	if (e->lossless)
		rx_fault(e, -EPROTO);
}

/* DATA of a message that was refused: each packet counts once. */
static void rx_refused(struct pkt_ep *e, const struct gx_wire_hdr *h, struct in_msg *m)
{
	uint64_t pkt;

	if (msg_pkt(m->shape, m->len, h->moff, h->plen, h->flags & GX_PKT_EOM, &pkt) ||
	    msg_win_test(&m->win, pkt) != 0)
		return;
	if (m->win.words || m->win.nr_pkts == 1)
		msg_win_set(&m->win, pkt);
	m->seen_pkts++;
	share_used(e, 1);
}

/* DATA of a mid that is not being placed. True: it may be acknowledged. Its place holds another
 * message by now (or that one is done): a late copy. */
static bool rx_unplaced(struct pkt_ep *e, const struct gx_wire_hdr *h, struct in_msg *m)
{
	if (gx_unlikely((int32_t)(h->mid - m->mid) > 0)) {
		gx_stat_add(stats(e->link), GX_STAT_RX_STRAY, 1);
		if (e->lossless)
			rx_fault(e, -EPROTO); /* its OPEN cannot be behind it */
		return false;
	}
	if (m->mid == h->mid &&
	    m->state == IN_REFUSED) /* in EARLY and DRAIN a CANCEL has told how many there are */
		rx_refused(e, h, m);
	return true;
}

/* A packet comes for the first time: its bit, and its credit. False: there is no buffer for it. */
static bool rx_first(struct pkt_ep *e, struct in_msg *m, uint64_t pkt)
{
	if (gx_unlikely(!share_take(e))) {
		gx_stat_add(stats(e->link), GX_STAT_RX_NOBUF, 1);
		return false;
	}
	msg_win_set(&m->win, pkt);
	m->seen_pkts++;
	e->need_pkts--;
	return true;
}

/* The packet's bytes get a descriptor; its buffer is held until they are copied. True: held. */
static bool rx_place(struct pkt_ep *e, const struct gx_rx *rx, const struct gx_wire_hdr *h,
		     struct in_msg *m)
{
	flow_rx_take(e->flow, e->now_ns, h->psn, true, h->flags & (GX_PKT_EOM | GX_PKT_ACK_NOW));
	if (!rx->len) {
		in_check_landed(e, m);
		return false;
	}
	block_add(m->bq,
		  &(struct block_frag){.src = rx->data,
				       .len = rx->len,
				       .crc = h->crc_payload,
				       .check = m->checks,
				       .dst_base = (uintptr_t)m->dst,
				       .dst_len = m->len,
				       .dst_off = h->moff,
				       .buf = rx->buf,
				       .ref = e->index << 10 | h->mid % GX_WIRE_MIDS},
		  e->now_ns);
	m->pending++;
	e->held_bufs++;
	e->link->held_bufs++;
	return true;
}

/* True: the buffer is held by a block; false: it goes back at once. */
static bool rx_data_one(struct link_pkt *l, const struct gx_rx *rx)
{
	struct gx_wire_hdr h;
	struct pkt_ep *e = rx_ep(l, rx, &h);
	struct in_msg *m;
	bool active;
	uint64_t pkt;
	int seen;

	if (!e)
		return false;
	m = in_at(e, h.mid);
	active = h.type == GX_PKT_DATA && m->mid == h.mid && m->state == IN_ACTIVE;
	if (!(active && m->checks) && !l->q->rx_gpu && !rx_payload(e, rx, &h))
		return false; /* what nobody copies from a GPU nobody reads */
	e->heard_ns = e->now_ns;
	if (!rx_new(e, &h))
		return false;
	if (h.type == GX_PKT_PROBE) {
		rx_probe(e, &h);
		return false;
	}
	if (gx_unlikely(h.type != GX_PKT_DATA)) {
		gx_stat_add(stats(l), GX_STAT_RX_BAD, 1);
		return false;
	}
	if (gx_unlikely(!active)) {
		if (rx_unplaced(e, &h, m))
			flow_rx_take(e->flow, e->now_ns, h.psn, true, true);
		return false;
	}
	if (msg_pkt(m->shape, m->len, h.moff, rx->len, h.flags & GX_PKT_EOM, &pkt) ||
	    (seen = msg_win_test(&m->win, pkt)) < 0) {
		gx_stat_add(stats(l), GX_STAT_RX_BAD, 1);
		rx_fault(e, -EPROTO);
		return false;
	}
	if (!seen) {
		if (!rx_first(e, m, pkt))
			return false; /* as lost: it comes again */
	} else if (!bad_again(e, m, pkt)) {
		gx_stat_add(stats(l), GX_STAT_RX_DUP, 1);
		flow_rx_take(e->flow, e->now_ns, h.psn, false, true);
		return false;
	}
	return rx_place(e, rx, &h, m);
}

static bool rx_room(const struct link_pkt *l)
{
	unsigned n = l->held_bufs ? link_nr_bqs(l) : 0;

	for (unsigned i = 0; i < n; i++)
		if (link_bq_at(l, i) && block_room(link_bq_at(l, i)) < GX_BURST_MAX)
			return false;
	return true;
}

/* Blocks are looked at while they hold something: most turns of a core find nothing, and what they
 * cost stands between a notification and its reader. */
static void rx_flush(struct link_pkt *l, bool burst_short, uint64_t now_ns)
{
	unsigned n = l->held_bufs ? link_nr_bqs(l) : 0;

	for (unsigned i = 0; i < n; i++)
		if (link_bq_at(l, i))
			block_flush(link_bq_at(l, i), burst_short, now_ns);
}

/* Control packets. Where nothing is lost all that wait, as an OPEN sent before a data packet in
 * hand must be known before it: several times what any port's control ring holds. On a network
 * anybody may send some, so there the data has its turn after a few bursts; what comes before its
 * OPEN comes again. */
static unsigned rx_ctl(struct link_pkt *l)
{
	unsigned max = l->port->caps.flags & GX_PORT_LOSSLESS ? 16384 : 4 * GX_BURST_MAX;
	unsigned total = 0;
	unsigned n;

	while ((n = l->q->ops->rx_burst(l->q, GX_HALF_CTL, l->rx_ctl, GX_BURST_MAX)) > 0) {
		for (unsigned i = 0; i < n; i++)
			rx_ctl_one(l, &l->rx_ctl[i]);
		total += n;
		if (total >= max)
			break;
	}
	return total;
}

bool rx_poll(struct link_pkt *l, uint64_t now_ns)
{
	uint64_t bytes = 0;
	unsigned n = 0;
	unsigned n_ctl;

	if (rx_room(l))
		n = l->q->ops->rx_burst(l->q, GX_HALF_DATA, l->rx_data, GX_BURST_MAX);
	n_ctl = rx_ctl(l);
	for (unsigned i = 0; i < n; i++) {
		bytes += l->rx_data[i].len;
		if (!rx_data_one(l, &l->rx_data[i]))
			link_release(l, l->rx_data[i].buf);
	}
	rx_flush(l, n < GX_BURST_MAX, now_ns);
	if (n + n_ctl) {
		gx_stat_add(stats(l), GX_STAT_RX_PKTS, n + n_ctl);
		gx_stat_add(stats(l), GX_STAT_RX_BYTES, bytes);
	}
	return n + n_ctl > 0;
}

/* ---- finished copies ---- */

static bool in_is_drained(const struct in_msg *m)
{
	return !m->pending && (m->state == IN_REFUSED || m->state == IN_DRAIN);
}

/* The last copy of a message that was given up has ended; the one in its place waited for that. */
static void in_drained(struct pkt_ep *e, struct in_msg *m)
{
	bool has_heir;

	do {
		uint32_t heir = m->heir;

		has_heir = m->state == IN_DRAIN && m->has_heir;
		in_op_end(e, m, m->err);
		if (m->state == IN_DRAIN)
			in_settle(e, m);
		if (has_heir) {
			m = in_at(e, heir);
			m->pending--;
			in_check_landed(e, m);
		}
	} while (has_heir && in_is_drained(m));
}

static void reap_one(struct link_pkt *l, const struct block_done *d)
{
	struct pkt_ep *e = l->eps[d->ref >> 10];
	struct in_msg *m = &e->in[d->ref & (GX_WIRE_MIDS - 1)];

	e->held_bufs--;
	l->held_bufs--;
	m->pending--;
	if (d->buf != BLOCK_BUF_NONE)
		link_release(l, d->buf);
	else
		gx_stat_add(stats(l), GX_STAT_QUARANTINED_B, d->len);
	if (gx_unlikely(d->status == -EBADMSG)) {
		if (!bad_found(e, m, d->off, d->len))
			in_refuse(e, m, -EBADMSG);
	} else if (gx_unlikely(d->status)) {
		in_refuse(e, m, -EIO);
	} else {
		m->visible_b += d->len;
		in_check_landed(e, m);
	}
	if (gx_unlikely(in_is_drained(m)))
		in_drained(e, m);
}

static bool reap_q(struct link_pkt *l, struct block_q *q, uint64_t now_ns)
{
	struct block_done done[GX_BURST_MAX];
	unsigned total = 0;
	unsigned n;

	do {
		n = block_reap(q, done, GX_BURST_MAX, now_ns);
		for (unsigned i = 0; i < n; i++)
			reap_one(l, &done[i]);
		total += n;
	} while (n == GX_BURST_MAX && total < GX_BLOCK_DESCS_MAX);
	return total > 0;
}

bool rx_reap(struct link_pkt *l, uint64_t now_ns)
{
	unsigned n = l->held_bufs ? link_nr_bqs(l) : 0;
	bool worked = false;

	for (unsigned i = 0; i < n; i++)
		if (link_bq_at(l, i))
			worked |= reap_q(l, link_bq_at(l, i), now_ns);
	link_release_flush(l);
	return worked;
}

/* ---- memory that was freed ---- */

void rx_drop(struct pkt_ep *e, struct drop *d)
{
	for (uint32_t k = 0; k < GX_WIRE_MIDS && e->nr_in; k++) {
		struct in_msg *m = &e->in[k];

		if (m->state == IN_FREE || !mem_is_dead(m->mem))
			continue;
		if (!e->err)
			in_refuse(e, m, -ENOENT);
		if (m->pending)
			drop_hold(d, m->mem);
	}
}

void rx_settle(struct link_pkt *l, uint64_t now_ns)
{
	rx_reap(l, now_ns);
	rx_flush(l, true, now_ns);
	rx_reap(l, now_ns);
}
