/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that come in: from the OPEN, which finds the destination, to the completion, which says
 * that all bytes are visible. Runs on the polling core.
 */
#include "packet/pkt.h"
#include "packet/bad.h"
#include "packet/in.h"
#include "packet/op.h"
#include "packet/rec.h"
#include "packet/share.h"
#include "gx_internal/probe.h"

#include <errno.h>

struct in_msg *in_at(struct pkt_ep *e, uint32_t mid)
{
	struct in_msg *m = &e->in[mid % GX_WIRE_MIDS];

	/* A place has no memory before its first use, so it lacks even the number of the message
	 * before the first. */
	if (gx_unlikely((m->mid ^ mid) % GX_WIRE_MIDS))
		m->mid = mid % GX_WIRE_MIDS - GX_WIRE_MIDS;
	return m;
}

/* May the message @mid come to this place? */
static bool in_is_next(const struct in_msg *m, uint32_t mid)
{
	return m->state == IN_FREE && mid - m->mid == GX_WIRE_MIDS;
}

/* A message comes to its place: ACTIVE, or EARLY when its CANCEL came first. */
static void in_begin(struct pkt_ep *e, struct in_msg *m, uint32_t mid, enum in_state state)
{
	in_goto(m, state);
	*m = (struct in_msg){.state = state,
			     .mid = mid,
			     .op = PKT_NONE,
			     .words = PKT_NONE,
			     .next_here = PKT_NONE};
	e->rx.nr_in++;
}

static void in_words_put(struct pkt_ep *e, struct in_msg *m)
{
	if (m->words == PKT_NONE)
		return;
	if (!msg_win_full(&m->win))
		msg_win_clear_rest(&m->win);
	e->rx.words_free |= 1ull << m->words;
	m->words = PKT_NONE;
}

/* None of its bytes shall be placed any more. */
static void in_cut_put(struct pkt_ep *e, struct in_msg *m)
{
	if (gx_likely(!m->pieces))
		return;
	if (pieces_is(m->pieces, PIECES_TAKE) || pieces_is(m->pieces, PIECES_MAP))
		pieces_put(&e->ep, &e->pieces, pieces_of(&e->pieces, m->pieces));
	m->pieces = 0;
	e->link->nr_scattered -= in_scatters(e, m);
}

void in_close(struct pkt_ep *e)
{
	for (uint32_t k = 0; k < GX_WIRE_MIDS && e->rx.nr_in; k++) {
		if (e->in[k].state == IN_FREE)
			continue;
		in_cut_put(e, &e->in[k]);
		core_unuse(e->ep.core, e->in[k].use);
		e->rx.nr_in--;
	}
}

/* Nothing of @m is under way any more. The next ACK may tell the peer that its mid is done. */
static void in_settle(struct pkt_ep *e, struct in_msg *m)
{
	uint32_t i = m->mid % GX_WIRE_MIDS;

	in_goto(m, IN_FREE);
	core_unuse(e->ep.core, m->use);
	e->rx.done[i / 64] ^= 1ull << (i & 63);
	e->rx.done_used |= 1u << i / 64;
	e->rx.done_due |= 1u << i / 64;
	e->rx.nr_in--;
	flow_ack_want(e->flow);
}

/* The bytes of a get are here, and its lease may not have held: the operation waits for the owner's
 * word, as it waited for the message. */
static void in_op_wait(struct pkt_ep *e, struct in_msg *m)
{
	struct pkt_op *op = &e->ops[m->op];

	op->leased = true;
	e->slots[op->slot].bound = false;
	m->op = PKT_NONE;
}

/* End the operation that the message was for, and give back its slot. */
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
		const struct core_imm imm = {m->token, m->off, m->len, m->imm, m->hidden};

		if (!core_imm(&e->ep, &imm))
			return false;
		if (!m->hidden && e->ack.hold == ACK_HOLD_NO)
			e->ack.hold = ACK_HOLD_ASKED;
	}
	if (m->leased && m->op != PKT_NONE)
		in_op_wait(e, m);
	in_op_end(e, m, 0);
	gx_stat_add(pkt_stats(e->link), GX_STAT_MSGS_RX, 1);
	in_settle(e, m);
	return true;
}

void in_fence(struct link_pkt *l)
{
	gx_store_fence();
	l->unfenced = false;
}

/* Every byte is visible: complete the message here, and tell the sender. */
static void in_landed(struct pkt_ep *e, struct in_msg *m)
{
	if (gx_unlikely(e->link->unfenced))
		in_fence(e->link);
	in_words_put(e, m);
	in_cut_put(e, m);
	bad_forget(e, m);
	in_goto(m, IN_LANDED);
	GX_PROBE(msg_landed, e, m->mid, m->len);
	if (e->rx.landed_head == PKT_NONE && in_deliver(e, m))
		return;
	m->next = PKT_NONE;
	if (e->rx.landed_head == PKT_NONE)
		e->rx.landed_head = m->mid % GX_WIRE_MIDS;
	else
		in_at(e, e->rx.landed_tail)->next = m->mid % GX_WIRE_MIDS;
	e->rx.landed_tail = m->mid % GX_WIRE_MIDS;
}

bool in_deliver_due(struct pkt_ep *e)
{
	bool worked = false;

	while (e->rx.landed_head != PKT_NONE) {
		struct in_msg *m = in_at(e, e->rx.landed_head);
		uint32_t next = m->next;

		if (!in_deliver(e, m))
			break;
		e->rx.landed_head = next;
		worked = true;
	}
	return worked;
}

void in_check_landed(struct pkt_ep *e, struct in_msg *m)
{
	if (m->state == IN_ACTIVE && m->visible_b == m->len && !m->pending && msg_win_full(&m->win))
		in_landed(e, m);
}

/* The rest of its packets was declared, and does not come as expected any more. */
static void in_forget_need(struct pkt_ep *e, struct in_msg *m)
{
	e->rx.need_pkts -= m->win.nr_pkts - m->seen_pkts;
}

static void in_fail_rec(struct pkt_ep *e, struct in_msg *m)
{
	struct gx_wire_rec rec = {.type = GX_REC_FAIL,
				  .fail = {.id = m->mid, .err = m->err, .seg = m->bad_seg}};

	m->fail_due = !rec_add(e, &rec, PKT_NONE);
	e->rx.fails_due |= m->fail_due;
}

/* Our side cannot take the rest of @m: tell the sender, drop packets that still come, and keep the
 * mid until the sender's CANCEL. */
void in_refuse(struct pkt_ep *e, struct in_msg *m, int err)
{
	if (m->state != IN_ACTIVE)
		return;
	in_forget_need(e, m);
	in_cut_put(e, m);
	bad_forget(e, m);
	pull_forget(e, m);
	in_goto(m, IN_REFUSED);
	m->err = err;
	in_fail_rec(e, m);
	if (!m->pending)
		in_op_end(e, m, err);
}

void in_cancel(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	struct in_msg *m = in_at(e, rec->cancel.mid);
	uint64_t seen;

	if (in_is_next(m, rec->cancel.mid)) {
		/* CANCEL overtook the OPEN, which may name one of our operations. */
		in_begin(e, m, rec->cancel.mid, IN_EARLY);
		share_used(e, rec->cancel.sent);
		return;
	}
	if (m->mid != rec->cancel.mid || (m->state != IN_ACTIVE && m->state != IN_REFUSED))
		return; /* it is done */
	seen = m->seen_pkts;
	if (m->state == IN_ACTIVE) {
		in_forget_need(e, m);
		in_cut_put(e, m);
		bad_forget(e, m);
		pull_forget(e, m);
		m->err = -ECANCELED;
	}
	in_words_put(e, m);
	if (rec->cancel.sent > seen && rec->cancel.sent <= m->win.nr_pkts)
		share_used(e, rec->cancel.sent - seen);
	in_goto(m, IN_DRAIN);
	if (!m->pending) {
		in_op_end(e, m, m->err);
		in_settle(e, m);
	}
}

void in_tick(struct pkt_ep *e)
{
	e->rx.fails_due = false;
	for (uint32_t k = 0; k < GX_WIRE_MIDS; k++)
		if (e->in[k].state == IN_REFUSED && e->in[k].fail_due)
			in_fail_rec(e, &e->in[k]);
}

void in_give_up(struct pkt_ep *e, uint32_t i)
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
			return; /* it ends by itself */
	}
	if (op->kind == GX_OP_GET) {
		/* The peer still answers; until then this counts as one of our requests. */
		op_neutralise(e, op);
		op_complete(e, i, op->status, 0);
		return;
	}
	/* If there is no room for the record, the peer's send finds the slot gone, and fails. */
	rec.revoke.slot = slot_token(e, op->slot);
	rec_add(e, &rec, PKT_NONE);
	slot_free(e, op->slot);
	op_finish(e, i, op->status, 0);
}

static inline __attribute__((always_inline)) int open_region(struct pkt_ep *e,
							     const struct gx_wire_rec *rec,
							     struct in_msg *m, struct gx_gpu **gpu)
{
	struct gx_mem *mem;
	int ret = core_region(&e->ep, rec->open.token, GX_ACCESS_PUT, rec->open.off, rec->open.len,
			      &mem);

	if (ret)
		return ret;
	if (mem->kind == GX_MEM_HOST && e->link->q->rx_gpu && rec->open.len && !mem_is_mapped(mem))
		return -EIO; /* the GPU could not register it after gx_mem_share() */
	m->dst = mem->addr + rec->open.off;
	m->mem = mem;
	*gpu = mem->gpu;
	return 0;
}

/* A put of many segments: check all of them before a byte moves. */
static __attribute__((noinline)) int open_list(struct pkt_ep *e, const struct gx_wire_rec *rec,
					       struct in_msg *m)
{
	struct pieces *pieces = pieces_get(&e->pieces, PIECES_TAKE);
	struct gx_wire_rec one = *rec;
	struct gx_gpu *gpu;

	if (!pieces) {
		rx_fault(e, -EPROTO); /* the peer has more under way than it may have */
		return -EPROTO;
	}
	m->pieces = pieces_number(&e->pieces, pieces);
	for (uint32_t i = 0; i < rec->open.nr; i++) {
		struct gx_wire_seg s = gx_wire_seg_get(rec->open.data, i);
		int ret;

		one.open.off = s.off;
		one.open.len = s.len;
		ret = open_region(e, &one, m, &gpu);
		if (ret) {
			m->bad_seg = i;
			return ret;
		}
		pieces_add(pieces, m->dst, s.len);
	}
	return 0;
}

/* Blocks copy the view's bytes: a packet has a descriptor for each run of it. */
static int view_blocks_check(const struct pkt_ep *e, const struct gx_wire_rec *rec,
			     const struct view *v, const struct gx_mem *mem)
{
	if (!mem || (mem->gpu->device < 0 && !e->link->q->rx_gpu))
		return 0;
	if (v->run_b * (GX_WIRE_SEGS - 2) < rec->open.quantum && v->run_b != v->len)
		return -EOPNOTSUPP;
	if (e->integrity == GX_INTEGRITY_CRC && e->link->q->rx_gpu)
		return -EOPNOTSUPP; /* nobody checks the payload */
	return mem->kind == GX_MEM_HOST && !mem_is_mapped(mem) ? -EIO : 0;
}

/* A put into a view, which the peer has sent before. */
static __attribute__((noinline)) int open_view(struct pkt_ep *e, const struct gx_wire_rec *rec,
					       struct in_msg *m, struct gx_gpu **gpu)
{
	struct gx_mem *mem;
	int ret = pieces_map(&e->ep, &e->pieces, GX_ACCESS_PUT, rec->open.token, rec->open.off,
			     rec->open.len, &mem);

	if (ret < 0)
		return ret;
	m->pieces = (uint16_t)ret;
	m->mem = mem;
	*gpu = mem->gpu;
	return view_blocks_check(e, rec, &pieces_of(&e->pieces, m->pieces)->view.v, mem);
}

static int open_slot(struct pkt_ep *e, const struct gx_wire_rec *rec, struct in_msg *m,
		     struct gx_gpu **gpu)
{
	struct pkt_slot *s = slot_find(e, rec->open.token);
	struct pkt_op *op;

	if (!s || s->bound)
		return -ECANCELED; /* we took it back, or the peer named it twice */
	op = &e->ops[s->op];
	if (op->leased || (rec->flags & GX_REC_LEASE && op->kind != GX_OP_GET))
		return -EPROTO;
	if (op->state == OP_DOOMED) { /* a get that we gave up */
		slot_free(e, op->slot);
		op_finish(e, s->op, op->status, 0);
		return -ECANCELED;
	}
	if (rec->open.len > op->len || (op->kind == GX_OP_GET && rec->open.len != op->len))
		return -EMSGSIZE;
	s->bound = true;
	m->op = s->op;
	m->dst = (char *)op->src;
	m->pieces = pieces_number(&e->pieces, op->pieces);
	m->mem = op->mem;
	m->tag = rec->open.imm;
	*gpu = op->gpu;
	if (gx_unlikely(op->pieces) && !op->pieces->nr)
		return view_blocks_check(e, rec, &op->pieces->view.v, op->mem);
	return 0;
}

static int open_target(struct pkt_ep *e, const struct gx_wire_rec *rec, struct in_msg *m,
		       struct gx_gpu **gpu)
{
	int ret;

	if (gx_unlikely(rec->type == GX_REC_LIST)) {
		ret = open_list(e, rec, m);
		*gpu = ret ? *gpu : m->mem->gpu;
		return ret;
	}
	if (rec->flags & GX_REC_SLOT)
		return open_slot(e, rec, m, gpu);
	ret = open_region(e, rec, m, gpu);
	return gx_unlikely(ret == -EXDEV) ? open_view(e, rec, m, gpu) : ret;
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

/* The data came with the record: this core copies it, and it is visible. */
static void open_inline(struct pkt_ep *e, const struct gx_wire_rec *rec, struct in_msg *m,
			const struct gx_gpu *gpu)
{
	m->win.base = m->win.nr_pkts;
	m->seen_pkts = m->win.nr_pkts;
	if (rec->open.len && gpu->device >= 0) {
		m->win.base = 0;
		e->rx.need_pkts += m->win.nr_pkts - m->seen_pkts;
		in_refuse(e, m, -EPROTO);
		return;
	}
	if (rec->open.len)
		gx_copy(m->dst, rec->open.data, rec->open.len);
	m->visible_b = m->len;
	in_check_landed(e, m);
}

/* No packets follow: pull_in.c reads the bytes. */
static void open_pull(struct pkt_ep *e, const struct gx_wire_rec *rec, struct in_msg *m,
		      const struct gx_gpu *gpu)
{
	m->win.base = m->win.nr_pkts;
	m->seen_pkts = m->win.nr_pkts;
	/* Without .pid this end never said that it reads messages. */
	if (!m->len || !e->pull.who.pid || gpu->device >= 0) {
		in_refuse(e, m, -EPROTO);
		return;
	}
	m->from = rec->open.from;
	pull_begin(e, m);
}

/* Find the message that an OPEN with AGAIN replaces. Return: 0; 1: that message has landed as a
 * whole; -EPROTO: there is no such message, and the connection ends. */
static int again_find(struct pkt_ep *e, const struct gx_wire_rec *rec, const struct in_msg *m,
		      struct in_msg **out)
{
	struct in_msg *old = in_at(e, rec->open.old_mid);
	int32_t ahead = (int32_t)(rec->open.old_mid - old->mid);

	*out = old;
	if (ahead < 0 || (!ahead && (old->state == IN_LANDED || old->state == IN_FREE)))
		return 1;
	if (!ahead && (old->state == IN_ACTIVE || old->state == IN_REFUSED) && old != m &&
	    old->token == rec->open.token && old->off == rec->open.off && old->len == rec->open.len)
		return 0;
	rx_fault(e, -EPROTO);
	return -EPROTO;
}

/* The CANCEL of this message came before its OPEN. End the operation that waits for it, or the
 * message that it was to replace: no other record names that one. */
static void open_early(struct pkt_ep *e, const struct gx_wire_rec *rec, struct in_msg *m)
{
	struct pkt_slot *s = rec->flags & GX_REC_SLOT ? slot_find(e, rec->open.token) : NULL;
	struct in_msg *old;

	if (rec->flags & GX_REC_AGAIN) {
		if (!again_find(e, rec, m, &old))
			in_cancel(e, &(struct gx_wire_rec){.cancel = {.mid = old->mid,
								      .sent = rec->open.old_sent}});
	} else if (s && !s->bound) {
		m->op = s->op;
		in_op_end(e, m, -ECANCELED);
	}
	in_settle(e, m);
}

/* This message replaces one whose packets are too large for the path. It brings all bytes again,
 * those too that have landed. Copies of the old message that are under way must end first, or they
 * might write over newer bytes. Return: 0: go on; 1: the old message has landed as a whole; -errno:
 * refuse this one. */
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
	in_cancel(e,
		  &(struct gx_wire_rec){.cancel = {.mid = old->mid, .sent = rec->open.old_sent}});
	if (old->state == IN_DRAIN) {
		old->next_here = m->mid % GX_WIRE_MIDS;
		m->pending++;
	}
	return err;
}

/* Find bits for its packets. They stay until the message is settled; a refused message needs them
 * to know duplicates. */
static int open_words(struct pkt_ep *e, struct in_msg *m)
{
	if (!pkt_needs_window(m->len)) {
		m->win.words = &m->word;
		return 0;
	}
	if (!e->rx.words_free)
		return -ENOBUFS;
	m->words = __builtin_ctzll(e->rx.words_free);
	e->rx.words_free &= e->rx.words_free - 1;
	m->win.words = e->rx.words + (size_t)m->words * e->words_max;
	return 0;
}

/* Does the copy into @gpu's memory also check the payload? The answer must be the one that the peer
 * was told. */
static bool ep_checks(const struct pkt_ep *e, const struct gx_gpu *gpu, const struct block_q *bq)
{
	enum gx_mem_kind kind = gpu->device < 0 ? GX_MEM_HOST : GX_MEM_CUDA;

	return e->crc_by_copy >> kind & 1 && block_checks(bq);
}

/* It is in pieces. The CPU checks its packets. */
static __attribute__((noinline)) int open_pieces(struct pkt_ep *e, const struct gx_wire_rec *rec,
						 struct in_msg *m, int err)
{
	m->checks = false;
	e->link->nr_scattered += in_scatters(e, m);
	return rec->flags & (GX_REC_INLINE | GX_REC_PULL) ? -EPROTO : err;
}

void in_open(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	struct in_msg *m = in_at(e, rec->open.mid);
	struct gx_gpu *gpu = e->ep.core->gx->host;
	const struct msg_shape *shape;
	int err = 0, full = 0;

	/* Otherwise an OPEN with AGAIN could take a slot from its message without taking it over. */
	if (!(rec->flags & GX_REC_SLOT) != !(rec->open.token & PKT_SLOT_BIT)) {
		rx_fault(e, -EPROTO);
		return;
	}
	if (m->state == IN_EARLY && m->mid == rec->open.mid) {
		open_early(e, rec, m);
		return;
	}
	if (!in_is_next(m, rec->open.mid)) {
		/* The message before it at this place is not done, or one was left out. */
		rx_fault(e, -EPROTO);
		return;
	}
	shape = open_shape(e, rec->open.quantum);
	if (!shape) {
		rx_fault(e, -EPROTO);
		return;
	}
	in_begin(e, m, rec->open.mid, IN_ACTIVE);
	m->shape = shape;
	m->len = rec->open.len;
	GX_PROBE(msg_open, e, m->mid, m->len);
	m->token = rec->open.token;
	m->off = rec->open.off;
	m->imm = rec->open.imm;
	m->imm_set = rec->flags & GX_REC_IMM;
	m->hidden = rec->flags & GX_REC_HIDDEN;
	m->leased = rec->flags & GX_REC_LEASE;
	msg_win_init(&m->win, m->shape, m->len, NULL);
	if (rec->flags & GX_REC_AGAIN)
		err = open_again(e, rec, m);
	if (err > 0) {
		in_settle(e, m);
		return;
	}
	if (!err)
		err = open_target(e, rec, m, &gpu);
	core_use(e->ep.core, m->mem, &m->use);
	if (!(rec->flags & (GX_REC_INLINE | GX_REC_PULL)))
		full = open_words(e, m);
	m->bq = link_bq(e->link, gpu);
	m->checks = m->bq && ep_checks(e, gpu, m->bq);
	if (gx_unlikely(m->pieces))
		err = open_pieces(e, rec, m, err);
	if (!err)
		err = m->bq ? full : -EIO;
	if (!err && (rec->flags & GX_REC_INLINE)) {
		open_inline(e, rec, m, gpu);
		return;
	}
	if (!err && (rec->flags & GX_REC_PULL)) {
		open_pull(e, rec, m, gpu);
		return;
	}
	e->rx.need_pkts += m->win.nr_pkts;
	if (err)
		in_refuse(e, m, err);
}

bool in_is_drained(const struct in_msg *m)
{
	return !m->pending && (m->state == IN_REFUSED || m->state == IN_DRAIN);
}

/* The last copy of a message that was given up has ended. The message that replaces it waited for
 * that. */
void in_drained(struct pkt_ep *e, struct in_msg *m)
{
	uint32_t next_here;

	do {
		next_here = m->next_here;
		in_op_end(e, m, m->err);
		if (m->state == IN_DRAIN)
			in_settle(e, m);
		if (next_here != PKT_NONE) {
			m = in_at(e, next_here);
			m->pending--;
			in_check_landed(e, m);
		}
	} while (next_here != PKT_NONE && in_is_drained(m));
}
