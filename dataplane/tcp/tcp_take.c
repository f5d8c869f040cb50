/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Headers and trailers that came, from tcp_rx.c and tcp_frag.c: frames without payload to what they
 * are about, DATA to tcp_in.c. Runs on the polling core.
 */
#include "tcp/tcp_in.h"
#include "tcp/tcp_match.h"
#include "tcp/tcp_offload.h"
#include "tcp/tcp_op.h"
#include "tcp/tcp_sock.h"

#include <errno.h>

static void mid_free(struct tcp_ep *e, uint32_t mid)
{
	e->tx.mid_op[mid % TCP_MIDS] = TCP_NONE;
	e->tx.mids[e->tx.mid_head++ % TCP_MIDS] = mid + TCP_MIDS;
}

/* The operation with this mid; TCP_NONE: the peer makes it up. */
static uint32_t op_of(const struct tcp_ep *e, uint32_t mid)
{
	uint32_t i = e->tx.mid_op[mid % TCP_MIDS];

	return i != TCP_NONE && e->ops[i].mid == mid ? i : TCP_NONE;
}

/* Frames of it wait in queues, so the peer lies. Or a NIC has sends of it. */
static int held_done(struct tcp_ep *e, uint32_t i, const struct tcp_frame *f)
{
	if (e->ops[i].queued)
		return -EPROTO;
	mid_free(e, f->mid);
	e->link->offload->done(e, i, f->err);
	return 0;
}

static int done_take(struct tcp_ep *e, const struct tcp_frame *f)
{
	uint32_t i = op_of(e, f->mid);
	struct tcp_op *op = &e->ops[i % TCP_OPS];

	if (i == TCP_NONE || (op->state != TCP_OP_SENT && op->state != TCP_OP_DOOMED))
		return -EPROTO;
	if (f->err && op->state != TCP_OP_DOOMED)
		return -EPROTO;
	/* Doomed, too: the peer may have had all bytes before the CANCEL. */
	if (gx_unlikely(op->leased) && op->internal && !f->err)
		tcp_match_lease(e, op);
	if (gx_unlikely(op->refs))
		return held_done(e, i, f);
	mid_free(e, f->mid);
	tcp_op_finish(e, i, f->err, op->len);
	return 0;
}

static int ack_take(struct tcp_ep *e, const struct tcp_frame *f)
{
	uint32_t i = op_of(e, f->mid);
	struct tcp_op *op = &e->ops[i % TCP_OPS];

	if (i == TCP_NONE || f->moff < op->acked || f->moff > op->next_chunk)
		return -EPROTO;
	op->acked = f->moff;
	return 0;
}

static int fail_take(struct tcp_ep *e, const struct tcp_frame *f)
{
	struct tcp_slot *s;
	uint32_t i;

	if (!(f->flags & TCP_F_SLOT)) {
		i = op_of(e, f->mid);
		if (i == TCP_NONE)
			return -EPROTO;
		tcp_abort_op(e, i, f->err);
		return 0;
	}
	s = tcp_slot_find(e, f->token);
	if (!s || s->bound || e->ops[s->op].kind != GX_OP_GET)
		return -EPROTO;
	i = s->op;
	if (!f->err && !e->ops[i].leased)
		return -EPROTO; /* its bytes have not come */
	tcp_slot_free(e, e->ops[i].slot);
	tcp_op_finish(e, i, f->err, f->err ? 0 : e->ops[i].len);
	return 0;
}

static int ctl_take(struct tcp_ep *e, const struct tcp_frame *f)
{
	struct tcp_frame pong = {.type = TCP_PONG};

	switch (f->type) {
	case TCP_ACK:
		return ack_take(e, f);
	case TCP_DONE:
		return done_take(e, f);
	case TCP_FAIL:
		return fail_take(e, f);
	case TCP_CANCEL:
		tcp_in_cancel(e, f);
		return 0;
	case TCP_OFFER:
		tcp_match_offer(e, f);
		return 0;
	case TCP_REVOKE:
		tcp_match_revoke(e, f->token);
		return 0;
	case TCP_GET:
		tcp_match_get(e, f);
		return 0;
	case TCP_END:
		return tcp_bare_end(e, f);
	case TCP_PING:
		if (tcp_ctl_room(e) > TCP_CTLS_KEPT)
			tcp_ctl_put(e, &pong);
		return 0;
	}
	return 0; /* PONG: it was heard */
}

bool tcp_take_full(const struct tcp_ep *e, const uint8_t b[TCP_HDR_B])
{
	const struct tcp_sock *to;
	struct tcp_frame f;

	if (tcp_frame_get(b, &f) || !(f.flags & TCP_F_BARE) || f.type != TCP_DATA ||
	    f.sock >= e->nr_socks)
		return false;
	to = &e->sock[f.sock];
	return to->pend_head - to->pend_tail == TCP_PENDS;
}

void tcp_take_frame(struct tcp_ep *e, struct tcp_sock *s, const uint8_t b[TCP_HDR_B])
{
	struct tcp_frame f;
	int ret = tcp_frame_get(b, &f);

	if (!ret && f.type == TCP_DATA) {
		s->large = f.plen >= TCP_LARGE_B && !(f.flags & TCP_F_BARE);
		gx_stat_add(tcp_stats(e), GX_STAT_RX_PKTS, 1);
		gx_stat_add(tcp_stats(e), GX_STAT_RX_BYTES, f.plen);
		if (!(f.flags & TCP_F_BARE)) {
			tcp_in_data(e, s, &s->sink, &f);
			return;
		}
		ret = s == &e->sock[0] ? tcp_bare_data(e, &f) : -EPROTO;
	} else if (!ret) {
		ret = s == &e->sock[0] ? ctl_take(e, &f) : -EPROTO;
	}
	if (ret)
		tcp_sock_end(e, s, ret);
}

void tcp_take_tail(struct tcp_ep *e, struct tcp_sock *s, const uint8_t b[TCP_TAIL_B])
{
	enum tcp_tail tail;
	int ret = tcp_tail_get(b, &tail);

	if (ret) {
		tcp_sock_end(e, s, ret);
		return;
	}
	s->sink.open = false;
	tcp_in_chunk(e, &s->sink, tail);
}
