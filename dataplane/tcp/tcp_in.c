/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that come in over the tcp link: from the first DATA frame, which finds the destination,
 * to the completion. Each DATA frame names all that opens its message, so frames of a message may
 * come over any socket, in any order. Runs on the polling core.
 */
#include "tcp/tcp_in.h"
#include "tcp/tcp_op.h"
#include "tcp/tcp_view.h"

#include <errno.h>
#include <string.h>

static uint32_t in_place(const struct tcp_ep *e, const struct tcp_in *m)
{
	return (uint32_t)(m - e->in);
}

static uint32_t in_mid(const struct tcp_ep *e, const struct tcp_in *m)
{
	return m->round + in_place(e, m);
}

/* The next bytes of @m's frames go nowhere. */
static void in_unsink(struct tcp_ep *e, const struct tcp_in *m)
{
	for (unsigned k = 0; m->readers && k < e->nr_socks; k++) {
		struct tcp_sock *s = &e->sock[k];

		if (s->sink.open && &e->in[s->sink.place] == m)
			s->sink.dst = NULL;
		for (uint32_t i = s->pend_tail; i != s->pend_head; i++)
			if (&e->in[s->pend[i % TCP_PENDS].place] == m)
				s->pend[i % TCP_PENDS].dst = NULL;
	}
}

static void in_op_end(struct tcp_ep *e, struct tcp_in *m, int status)
{
	uint32_t i = m->op;

	if (i == TCP_NONE)
		return;
	m->op = TCP_NONE;
	e->ops[i].tag = m->imm;
	tcp_slot_free(e, e->ops[i].slot);
	tcp_op_finish(e, i, status, status ? 0 : m->len);
}

/* The bytes of a get are here, and its lease may not have held: the operation waits for the owner's
 * word, as it waited for the message. */
static void in_op_wait(struct tcp_ep *e, struct tcp_in *m)
{
	struct tcp_op *op = &e->ops[m->op];

	op->leased = true;
	e->match.slots[op->slot].bound = false;
	m->op = TCP_NONE;
}

/* The message is over: its place is free for the next one, and the sender learns so. */
static void in_settle(struct tcp_ep *e, struct tcp_in *m, int err)
{
	struct tcp_frame done = {.type = TCP_DONE, .mid = in_mid(e, m), .err = err};

	if (gx_unlikely(pieces_is(m->view, PIECES_MAP)))
		tcp_view_put(e, m->view);
	m->view = 0;
	tcp_in_goto(m, TCP_IN_FREE);
	core_unuse(e->ep.core, m->use);
	m->round += TCP_MIDS;
	e->rx.nr_in--;
	tcp_ctl_put(e, &done);
}

static void in_begin(struct tcp_ep *e, struct tcp_in *m, enum tcp_in_state state)
{
	uint32_t round = m->round;
	bool ack_due = m->ack_due; /* the place is still in e->rx.acks */

	tcp_in_goto(m, state);
	memset(m, 0, offsetof(struct tcp_in, came)); /* no bit of a free place is set */
	m->state = state;
	m->round = round;
	m->op = m->next = TCP_NONE;
	m->ack_due = ack_due;
	e->rx.nr_in++;
}

/* Every frame has come, none is being read, and no copy is under way. */
static void in_drain_check(struct tcp_ep *e, struct tcp_in *m)
{
	if (m->state != TCP_IN_DRAIN || m->frames != m->sent || m->readers || m->pending)
		return;
	memset(m->came, 0, sizeof(m->came));
	memset(m->landed, 0, sizeof(m->landed));
	in_settle(e, m, m->err);
}

/* The message was given up. The operation ends when nothing writes to its memory any more. */
static void in_op_release(struct tcp_ep *e, struct tcp_in *m)
{
	if (!m->pending)
		in_op_end(e, m, m->err);
}

void tcp_in_refuse(struct tcp_ep *e, struct tcp_in *m, int err)
{
	struct tcp_frame fail = {.type = TCP_FAIL, .mid = in_mid(e, m), .err = err};

	if (m->state != TCP_IN_ACTIVE)
		return;
	tcp_in_goto(m, TCP_IN_REFUSED);
	m->err = err;
	in_unsink(e, m);
	in_op_release(e, m);
	tcp_ctl_put(e, &fail);
}

/* ---- landing ---- */

/* False: there is no room for the completion. */
static bool in_deliver(struct tcp_ep *e, struct tcp_in *m)
{
	const struct core_imm imm = {m->token, m->off, m->len, m->imm, m->hidden};

	if (m->imm_set && m->op == TCP_NONE && !core_imm(&e->ep, &imm))
		return false;
	if (m->leased && m->op != TCP_NONE)
		in_op_wait(e, m);
	in_op_end(e, m, 0);
	gx_stat_add(tcp_stats(e), GX_STAT_MSGS_RX, 1);
	in_settle(e, m, 0);
	return true;
}

static void in_landed(struct tcp_ep *e, struct tcp_in *m)
{
	uint32_t place = in_place(e, m);

	tcp_in_goto(m, TCP_IN_LANDED);
	if (in_deliver(e, m))
		return;
	m->next = TCP_NONE;
	if (e->rx.landed_head == TCP_NONE)
		e->rx.landed_head = place;
	else
		e->in[e->rx.landed_tail].next = place;
	e->rx.landed_tail = place;
}

/* Every byte has come, and the GPU has copied all that went by its ring. */
static void in_check_landed(struct tcp_ep *e, struct tcp_in *m)
{
	if (m->state == TCP_IN_ACTIVE && m->base == m->nr_chunks && !m->pending)
		in_landed(e, m);
}

void tcp_in_copied(struct tcp_ep *e, struct tcp_in *m, int err)
{
	m->pending--;
	if (e->err)
		return; /* all ends in tcp_ep_leave() */
	if (err)
		tcp_in_refuse(e, m, -EIO);
	in_check_landed(e, m);
	if (m->state == TCP_IN_REFUSED || m->state == TCP_IN_DRAIN)
		in_op_release(e, m);
	in_drain_check(e, m);
}

bool tcp_in_deliver(struct tcp_ep *e)
{
	bool worked = false;

	while (e->rx.landed_head != TCP_NONE) {
		struct tcp_in *m = &e->in[e->rx.landed_head];
		uint32_t next = m->next;

		if (!in_deliver(e, m))
			break;
		e->rx.landed_head = next;
		worked = true;
	}
	return worked;
}

static bool bit_test(const uint64_t *words, uint64_t chunk)
{
	return words[chunk / 64 % TCP_WORDS] >> (chunk & 63) & 1;
}

static void bit_flip(uint64_t *words, uint64_t chunk)
{
	words[chunk / 64 % TCP_WORDS] ^= 1ull << (chunk & 63);
}

static void in_ack_want(struct tcp_ep *e, struct tcp_in *m)
{
	if (m->ack_due)
		return;
	m->ack_due = true;
	e->rx.acks[e->rx.nr_acks++] = (uint16_t)in_place(e, m);
}

void tcp_in_chunk(struct tcp_ep *e, const struct tcp_sink *k, enum tcp_tail tail)
{
	struct tcp_in *m = &e->in[k->place];
	uint64_t before = m->base;

	m->readers--;
	if (m->state != TCP_IN_ACTIVE) {
		in_drain_check(e, m);
		return;
	}
	if (tail == TCP_TAIL_VOID)
		return; /* it counts as a frame and never lands: CANCEL ends the message */
	bit_flip(m->landed, k->chunk);
	while (m->base < m->nr_chunks && bit_test(m->landed, m->base)) {
		bit_flip(m->landed, m->base);
		bit_flip(m->came, m->base);
		m->base++;
	}
	if (m->base == m->nr_chunks)
		in_check_landed(e, m);
	else if (m->base != before)
		in_ack_want(e, m);
}

/* An answer that socket 0 does not take yet is brought up to date until it does. */
void tcp_in_acks(struct tcp_ep *e)
{
	while (e->rx.nr_acks && tcp_ctl_room(e) > TCP_CTLS_KEPT) {
		struct tcp_in *m = &e->in[e->rx.acks[--e->rx.nr_acks]];
		struct tcp_frame ack = {.type = TCP_ACK, .mid = in_mid(e, m), .moff = m->base};

		m->ack_due = false;
		if (m->state == TCP_IN_ACTIVE && m->base)
			tcp_ctl_put(e, &ack);
	}
}

/* ---- DATA ---- */

static int open_region(struct tcp_ep *e, const struct tcp_frame *f, struct tcp_in *m)
{
	struct gx_mem *mem;
	int ret = core_region(&e->ep, f->token, GX_ACCESS_PUT, f->off, f->len, &mem);

	if (ret)
		return ret;
	if (tcp_gpu_lacks(e->link, mem, f->len))
		return -EIO;
	m->dst = mem->addr + f->off;
	m->mem = mem;
	m->gpu = tcp_gpu_of(e->link, mem);
	return 0;
}

static int open_slot(struct tcp_ep *e, const struct tcp_frame *f, struct tcp_in *m)
{
	struct tcp_slot *s = tcp_slot_find(e, f->token);
	struct tcp_op *op;

	if (!s || s->bound)
		return -ECANCELED; /* we took it back, or the peer named it twice */
	op = &e->ops[s->op];
	if (op->leased || (f->flags & TCP_F_LEASE && op->kind != GX_OP_GET))
		return -EPROTO;
	if (op->state == TCP_OP_DOOMED) { /* a get that we gave up */
		tcp_slot_free(e, op->slot);
		tcp_op_finish(e, s->op, op->status, 0);
		return -ECANCELED;
	}
	if (f->len > op->len || (op->kind == GX_OP_GET && f->len != op->len))
		return -EMSGSIZE;
	s->bound = true;
	m->op = s->op;
	m->view = op->view;
	m->dst = op->view && op->mem ? op->mem->addr : op->at;
	m->mem = op->mem;
	m->gpu = op->gpu;
	m->words = op->flags & GX_OP_WORDS && !op->gpu && !((uintptr_t)op->at % 8);
	return 0;
}

/* The first DATA frame of a message. Return: 0, or why it is refused. */
static int in_open(struct tcp_ep *e, struct tcp_in *restrict m, const struct tcp_frame *restrict f)
{
	int ret;

	m->opened = true;
	m->len = f->len;
	m->token = f->token;
	m->off = f->off;
	m->imm = f->imm;
	m->imm_set = f->flags & TCP_F_IMM;
	m->hidden = f->flags & TCP_F_HIDDEN;
	m->leased = f->flags & TCP_F_LEASE;
	m->nr_chunks = tcp_nr_chunks(e, f->len);
	ret = f->flags & TCP_F_SLOT ? open_slot(e, f, m) : open_region(e, f, m);
	if (gx_unlikely(ret == -EXDEV))
		ret = tcp_view_open(e, f, m);
	core_use(e->ep.core, m->mem, &m->use);
	return ret;
}

/* CANCEL came by socket 0 before the first DATA frame by another. An operation of ours may wait for
 * the message. */
static void in_open_late(struct tcp_ep *e, struct tcp_in *m, const struct tcp_frame *f)
{
	if (!in_open(e, m, f))
		in_op_end(e, m, m->err);
}

/* Does the frame say the same as the first one of its message? */
static bool in_is_same(const struct tcp_in *m, const struct tcp_frame *f)
{
	return m->len == f->len && m->token == f->token && m->off == f->off && m->imm == f->imm &&
	       m->imm_set == (f->flags & TCP_F_IMM) && m->hidden == !!(f->flags & TCP_F_HIDDEN) &&
	       m->leased == !!(f->flags & TCP_F_LEASE);
}

/* One whole chunk, within the window, for the first time. */
static bool in_chunk_is_valid(const struct tcp_ep *e, const struct tcp_in *m,
			      const struct tcp_frame *f)
{
	uint64_t chunk_b = 1ull << e->chunk_shift, chunk = f->moff >> e->chunk_shift;

	if (f->moff & (chunk_b - 1) || f->plen != GX_MIN(chunk_b, f->len - f->moff))
		return false;
	if (chunk < m->base || chunk - m->base >= e->window)
		return false;
	return !bit_test(m->came, chunk) && (m->state != TCP_IN_DRAIN || m->frames < m->sent);
}

void tcp_in_data(struct tcp_ep *e, struct tcp_sock *s, struct tcp_sink *k,
		 const struct tcp_frame *f)
{
	struct tcp_in *m = &e->in[f->mid % TCP_MIDS];
	int err;

	/* Else a message could take a slot without using it up. */
	if (!(f->flags & TCP_F_SLOT) != !(f->token & TCP_SLOT_BIT) || in_mid(e, m) != f->mid ||
	    m->state == TCP_IN_LANDED || (m->opened && m->state && !in_is_same(m, f))) {
		tcp_sock_end(e, s, -EPROTO);
		return;
	}
	if (m->state == TCP_IN_FREE) {
		in_begin(e, m, TCP_IN_ACTIVE);
		err = in_open(e, m, f);
		if (err) /* first of all: it has no destination */
			tcp_in_refuse(e, m, err);
	} else if (!m->opened) {
		in_open_late(e, m, f);
	}
	if (!in_chunk_is_valid(e, m, f)) {
		tcp_sock_end(e, s, -EPROTO);
		return;
	}
	m->frames++;
	m->readers++;
	*k = (struct tcp_sink){.open = f->plen > 0,
			       .left = f->plen,
			       .place = f->mid % TCP_MIDS,
			       .chunk = f->moff >> e->chunk_shift,
			       .words = m->words,
			       .view = m->view,
			       .gpu = m->gpu};
	if (m->state == TCP_IN_ACTIVE && f->plen)
		k->dst = m->dst + f->moff;
	bit_flip(m->came, k->chunk);
	if (!f->plen)
		tcp_in_chunk(e, k, TCP_TAIL_GOOD);
}

/* ---- early ends ---- */

void tcp_in_cancel(struct tcp_ep *e, const struct tcp_frame *f)
{
	struct tcp_in *m = &e->in[f->mid % TCP_MIDS];
	uint32_t mid = in_mid(e, m);
	bool begun = m->state != TCP_IN_FREE;

	/* It is done; the sender learns so. Later messages at its place may have come before this
	 * frame, by other sockets. */
	if ((int32_t)(f->mid - mid) < 0 || (mid == f->mid && m->state == TCP_IN_LANDED))
		return;
	if (mid != f->mid || m->state == TCP_IN_DRAIN || !f->moff ||
	    (begun && (f->moff < m->frames || f->moff > m->nr_chunks))) {
		tcp_sock_end(e, &e->sock[0], -EPROTO);
		return;
	}
	if (!begun) {
		in_begin(e, m, TCP_IN_DRAIN);
	} else {
		in_unsink(e, m);
		tcp_in_goto(m, TCP_IN_DRAIN);
	}
	if (!m->err)
		m->err = f->err ? f->err : -ECANCELED;
	m->sent = f->moff;
	in_op_release(e, m);
	in_drain_check(e, m);
}

void tcp_in_give_up(struct tcp_ep *e, uint32_t i)
{
	struct tcp_frame revoke = {.type = TCP_REVOKE};
	struct tcp_op *op = &e->ops[i];

	for (uint32_t k = 0; e->match.slots[op->slot].bound && k < TCP_MIDS; k++)
		if (e->in[k].state != TCP_IN_FREE && e->in[k].op == i) {
			tcp_in_refuse(e, &e->in[k], op->status); /* else it ends by itself */
			return;
		}
	if (op->kind == GX_OP_GET) {
		/* The peer still answers; until then this counts as one of our requests. */
		tcp_op_complete(e, i, op->status, 0);
		return;
	}
	revoke.token = tcp_slot_token(e, op->slot);
	tcp_ctl_put(e, &revoke);
	tcp_slot_free(e, op->slot);
	tcp_op_finish(e, i, op->status, 0);
}
