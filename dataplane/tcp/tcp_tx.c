/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames to sockets. Each socket has a short queue of frames; one sendmsg() takes as much of it as
 * the kernel has room for. A socket whose queue has room pulls the next chunk of an operation, so
 * the chunks of a message spread over the sockets by their speed. A chunk in memory of a GPU is
 * first brought to host memory (tcp_fetch.c). Frames without payload go by socket 0, before chunks.
 * Payload that a NIC
 * reads leaves alone, after its header (tcp_offload.h). Runs on the polling core.
 */
#include "tcp/tcp_fetch.h"
#include "tcp/tcp_match.h"
#include "tcp/tcp_offload.h"
#include "tcp/tcp_op.h"
#include "tcp/tcp_seal.h"
#include "tcp/tcp_sock.h"
#include "tcp/tcp_view.h"

#include <errno.h>

#define TX_INLINE static inline __attribute__((always_inline))

#define TX_TRIES 8  /* operations that a socket looks at for a chunk */
#define TX_LOOKS 32 /* operations that a call looks at whose chunks are being staged */

/* Bytes of the whole frame, as far as this socket carries it. */
static uint64_t out_b(const struct tcp_out *o)
{
	if (o->bare)
		return o->len;
	return TCP_HDR_B + (uint64_t)o->len + (o->len ? TCP_TAIL_B : 0);
}

/* @len: payload after it, or alone (@bare). */
TX_INLINE struct tcp_out *out_new(struct tcp_sock *s, const struct tcp_frame *f, uint32_t len,
				  bool bare)
{
	struct tcp_out *o = &s->out[s->head++ % TCP_OUTS];

	tcp_frame_put(o->hdr, f);
	tcp_tail_put(o->tail, TCP_TAIL_GOOD);
	o->data = NULL;
	o->len = len;
	o->op = TCP_NONE;
	o->gone = false;
	o->bare = bare;
	s->out_b += out_b(o);
	return o;
}

TX_INLINE bool out_room(const struct tcp_sock *s)
{
	return s->head - s->tail < TCP_OUTS && s->out_b < (uint64_t)TCP_OUT_B << s->out_shift;
}

TX_INLINE void ctl_fill(struct tcp_ep *e)
{
	struct tcp_sock *s = &e->sock[0];

	while (e->ctls.tail != e->ctls.head && s->head - s->tail < TCP_OUTS)
		out_new(s, &e->ctls.frame[e->ctls.tail++ % TCP_CTLS], 0, false);
	if (e->ctls.tail == e->ctls.head)
		e->ctls.tail = e->ctls.head = 0; /* the lines that are in the cache */
}

/* ---- chunks ---- */

TX_INLINE bool op_begin(struct tcp_ep *e, uint32_t i)
{
	struct tcp_op *op = &e->ops[i];

	if (e->tx.mid_head == e->tx.mid_tail)
		return false;
	op->mid = e->tx.mids[e->tx.mid_tail++ % TCP_MIDS];
	e->tx.mid_op[op->mid % TCP_MIDS] = i;
	tcp_op_goto(op, TCP_OP_SENDING);
	gx_stat_add(tcp_stats(e), GX_STAT_MSGS_TX, 1);
	return true;
}

TX_INLINE void op_chunk(struct tcp_ep *e, struct tcp_sock *s, uint32_t i)
{
	struct tcp_op *op = &e->ops[i];
	uint64_t moff = op->next_chunk++ << e->chunk_shift;
	struct tcp_frame f = {
		.type = TCP_DATA,
		.flags = (op->flags & GX_OP_IMM && op->kind == GX_OP_PUT ? TCP_F_IMM : 0) |
			 (op->flags & OP_HIDDEN ? TCP_F_HIDDEN : 0) |
			 (op->token & TCP_SLOT_BIT ? TCP_F_SLOT : 0) | (op->bare ? TCP_F_BARE : 0) |
			 (op->leased ? TCP_F_LEASE : 0),
		.sock = op->bare ? (uint16_t)(s - e->sock) : 0,
		.mid = op->mid,
		.token = op->token,
		.off = op->remote_off,
		.len = op->len,
		.imm = op->kind == GX_OP_SEND ? op->tag : op->imm,
		.moff = moff,
		.plen = (uint32_t)GX_MIN(op->len - moff, 1ull << e->chunk_shift)};
	struct tcp_out *o = out_new(s, &f, f.plen, op->bare);

	if (op->bare)
		tcp_ctl_put(e, &f);
	if (f.plen && gx_unlikely(op->gpu))
		o->data = tcp_fetch_at(op, op->next_chunk - 1);
	else if (f.plen && gx_likely(!op->view))
		o->data = op->at + moff;
	o->op = i;
	o->chunk = op->next_chunk - 1;
	op->queued++;
	gx_stat_add(tcp_stats(e), GX_STAT_TX_PKTS, 1);
	gx_stat_add(tcp_stats(e), GX_STAT_TX_BYTES, f.plen);
}

/* Does @s carry chunks of the operation? A bare one needs room for its header now, and for its END
 * later. */
TX_INLINE bool op_suits(const struct tcp_ep *e, const struct tcp_op *op, const struct tcp_sock *s)
{
	if (!e->bare.tx)
		return true;
	if (op->bare != (s != &e->sock[0]))
		return false;
	return !op->bare || tcp_ctl_room(e) > TCP_CTLS_KEPT + TCP_SOCKS_MAX * TCP_OUTS;
}

/* The next operation in turn that may send gives @s a chunk. False: none may. */
TX_INLINE bool chunk_pull(struct tcp_ep *e, struct tcp_sock *s)
{
	for (unsigned n = GX_MIN(e->tx.nr_act, (uint32_t)TX_TRIES); n; n--) {
		uint32_t i = e->tx.act_head;
		struct tcp_op *op = &e->ops[i];
		bool may = op->next_chunk < op->acked + e->window && op_suits(e, op, s);

		tcp_list_remove(e, &e->tx.act_head, &e->tx.act_tail, i);
		if (may && op->state == TCP_OP_QUEUED)
			may = op_begin(e, i);
		if (may)
			op_chunk(e, s, i);
		if (may && op->gpu)
			tcp_fetch_ahead(e, op);
		e->tx.nr_act--;
		if (op->next_chunk == op->nr_chunks)
			tcp_op_goto(op, TCP_OP_SENT);
		else
			tcp_act_push(e, i);
		if (may)
			return true;
	}
	return false;
}

/* ---- sendmsg ---- */

TX_INLINE unsigned iov_add(struct iovec *iov, unsigned n, const char *at, uint64_t len,
			   uint64_t *skip)
{
	uint64_t cut = GX_MIN(*skip, len);

	*skip -= cut;
	if (len == cut)
		return n;
	iov[n] = (struct iovec){(char *)at + cut, len - cut};
	return n + 1;
}

/* Payload that has no address, of which @skip bytes have left. What is gone is filled with zeros, and
 * ends the list as long as there are more of them than the pad has. What a NIC reads ends it as well:
 * *leads: it follows at once. Return: true: the list ends. */
static bool iov_none(struct tcp_ep *e, const struct tcp_out *o, uint64_t skip, struct iovec *iov,
		     unsigned *n, bool *leads)
{
	uint64_t left = o->len - GX_MIN(skip, (uint64_t)o->len);

	if (!left)
		return false;
	if (!o->gone && o->op != TCP_NONE && e->ops[o->op].view)
		return tcp_view_fetch(e, o, o->len - left, iov, n) < left;
	if (!o->gone) {
		*leads = true;
		return true;
	}
	iov[(*n)++] = (struct iovec){e->link->pad, GX_MIN(left, (uint64_t)TCP_PAD_B)};
	return left > TCP_PAD_B;
}

/* What the kernel should take next. */
TX_INLINE unsigned sock_iov(struct tcp_ep *e, const struct tcp_sock *s, struct iovec *iov,
			    bool *leads)
{
	uint64_t skip = s->pos;
	unsigned n = 0;

	for (uint32_t i = s->tail; i != s->head; i++) {
		const struct tcp_out *o = &s->out[i % TCP_OUTS];

		if (!o->bare)
			n = iov_add(iov, n, (const char *)o->hdr, TCP_HDR_B, &skip);
		if (!o->len)
			continue;
		if (gx_likely(o->data)) {
			n = iov_add(iov, n, o->data, o->len, &skip);
		} else {
			if (iov_none(e, o, skip, iov, &n, leads))
				break;
			skip -= GX_MIN(skip, (uint64_t)o->len);
		}
		if (!o->bare)
			n = iov_add(iov, n, (const char *)o->tail, TCP_TAIL_B, &skip);
	}
	return n;
}

/* The kernel has all of a bare frame. */
static void out_end(struct tcp_ep *e, const struct tcp_sock *s, const struct tcp_out *o)
{
	struct tcp_frame end = {.type = TCP_END,
				.flags = o->gone ? TCP_F_VOID : 0,
				.sock = (uint16_t)(s - e->sock)};

	tcp_ctl_put(e, &end);
}

TX_INLINE void sock_sent(struct tcp_ep *e, struct tcp_sock *s, uint64_t n)
{
	n += s->pos;
	while (s->tail != s->head) {
		const struct tcp_out *o = &s->out[s->tail % TCP_OUTS];
		uint64_t len = out_b(o);

		if (n < len)
			break;
		n -= len;
		s->out_b -= len;
		if (o->bare)
			out_end(e, s, o);
		if (o->op != TCP_NONE) {
			e->ops[o->op].queued--;
			if (e->ops[o->op].gpu)
				tcp_fetch_sent(e, &e->ops[o->op], o->chunk);
		}
		s->tail++;
	}
	s->pos = (uint32_t)n;
}

/* Return: did the kernel take all that it was offered? */
TX_INLINE bool sock_send(struct tcp_ep *e, struct tcp_sock *s, uint64_t *sent)
{
	struct iovec iov[TCP_OUT_IOVS * TCP_OUTS];
	bool leads = e->ctls.leading;
	unsigned n = sock_iov(e, s, iov, &leads);
	uint64_t want = 0;
	ssize_t ret;

	for (unsigned i = 0; i < n; i++)
		want += iov[i].iov_len;
	if (gx_unlikely(s->seal))
		ret = tcp_seal_send(s->seal, s->fd, leads ? e->sys->lead : e->sys->send, iov, n,
				    e->now_ns);
	else if (gx_unlikely(!n))
		ret = e->link->offload->send(e, s, &want);
	else if (gx_unlikely(leads))
		ret = e->sys->lead(s->fd, iov, n);
	else
		ret = e->sys->send(s->fd, iov, n);
	if (ret < 0) {
		if (!tcp_sock_later(ret))
			tcp_sock_tx_end(e, s, (int)ret);
		else
			gx_stat_add(tcp_stats(e), GX_STAT_TX_FULL, 1);
		return false;
	}
	s->leads = leads;
	e->tx.sent_ns = e->now_ns;
	sock_sent(e, s, (uint64_t)ret);
	*sent += (uint64_t)ret;
	/* The kernel is quicker with much at once: over loopback 7.4 GB/s in calls of 256 KiB, 8.6 in
	 * those of 1 MiB. Where it has no room for as much, a queue would only be late. */
	s->out_shift = (uint64_t)ret < want ? 0 : GX_MIN(s->out_shift + 1, TCP_OUT_SHIFT);
	return (uint64_t)ret == want;
}

static __attribute__((noinline)) bool sock_tx(struct tcp_ep *e, struct tcp_sock *s)
{
	uint64_t sent = 0;
	bool more = true;

	while (more && !s->tx_ended && sent < TCP_TURN_B) {
		if (s == &e->sock[0])
			ctl_fill(e);
		while (out_room(s) && chunk_pull(e, s))
			;
		more = s->tail != s->head && sock_send(e, s, &sent);
	}
	e->link->tx_b += sent;
	return sent > 0;
}

/* ---- memory of GPUs ---- */

/* An operation whose next chunk is being staged, or waits for a buffer. */
static void fetch_one(struct tcp_ep *e, uint32_t i)
{
	struct tcp_op *op = &e->ops[i];
	bool may = op->next_chunk < op->acked + e->window;

	if (gx_unlikely(stage_err(op->gpu->stage))) {
		tcp_abort_let_go(e, i, -EIO, -EIO);
		return;
	}
	tcp_fetch_ahead(e, op);
	/* Others do not wait behind one whose window is full. */
	if (!may || !tcp_fetch_waits(e, op)) {
		tcp_op_fetch_unlist(e, i);
		tcp_act_push(e, i);
	}
}

/* The sockets take nothing, and others want buffers: chunks that lie in no queue are staged again
 * later. Not those that the GPU has not brought: there the peer is not the cause. */
void tcp_tx_tick(struct tcp_ep *e)
{
	if (!e->tx.nr_staged || !tcp_fetch_is_stuck(e))
		return;
	for (uint32_t i = 0; i < e->ops_top; i++) {
		struct tcp_op *op = &e->ops[i];
		uint32_t n;

		if ((op->state != TCP_OP_QUEUED && op->state != TCP_OP_SENDING) || op->fetching ||
		    !op->gpu || op->dev || !tcp_fetch_is_short(e, op->gpu))
			continue;
		n = tcp_fetch_cut(e, op);
		gx_stat_add(tcp_stats(e), GX_STAT_STAGE_TAKEN, n);
		if (n)
			tcp_act_again(e, i);
	}
}

void tcp_tx_fetch(struct tcp_ep *e)
{
	uint32_t i = e->tx.fetch_head, next;

	for (unsigned n = GX_MIN(e->tx.nr_fetch, (uint32_t)TX_LOOKS); n && i != TCP_NONE; n--) {
		next = e->ops[i].next;
		fetch_one(e, i);
		i = next;
	}
}

bool tcp_tx(struct tcp_ep *e)
{
	bool worked = false;

	if (++e->tx.rover >= e->nr_socks)
		e->tx.rover = 0;
	for (unsigned k = 0, i = e->tx.rover; k < e->nr_socks && e->link->tx_b < TCP_LINK_B; k++) {
		struct tcp_sock *s = &e->sock[i];

		if (s->tail != s->head || e->tx.nr_act || (!i && e->ctls.tail != e->ctls.head))
			worked |= sock_tx(e, s);
		if (++i == e->nr_socks)
			i = 0;
	}
	/* Headers and ENDs of what has just left do not wait a turn. */
	if (gx_unlikely(e->bare.tx) && e->ctls.tail != e->ctls.head)
		worked |= sock_tx(e, &e->sock[0]);
	return worked;
}
