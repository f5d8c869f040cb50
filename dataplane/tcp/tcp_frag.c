/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets whose bytes come as fragments of a feed (tcp_feed.h): frames, as in the buffer of
 * tcp_rx.c, or payload alone (tcp_bare.c). The CPU takes headers, trailers and payload for host
 * memory. Payload for memory of a GPU gets a descriptor, which holds the fragment until the GPU has
 * copied. A fragment whose bytes have no room in a block waits, and its socket is not read
 * meanwhile. Runs on the polling core.
 */
#include "tcp/tcp_feed.h"
#include "tcp/tcp_gpu.h"
#include "tcp/tcp_in.h"
#include "tcp/tcp_op.h"
#include "tcp/tcp_sock.h"

#include <errno.h>
#include <string.h>

/* ---- fragments ---- */

/* The payload under way goes nowhere: its message is refused. */
static void sink_refuse(struct tcp_ep *e, struct tcp_sink *k, int err)
{
	tcp_in_refuse(e, &e->in[k->place], err);
	k->dst = NULL;
}

/* Take up to @n bytes at @at, of the next fragment of @s, as payload for @k. Return: how many; 0:
 * they have no room in a block. */
static uint32_t take_payload(struct tcp_ep *e, struct tcp_sock *s, struct tcp_sink *k,
			     const char *at, uint32_t n)
{
	const struct tcp_frag *g = tcp_feed_frag(s->feed);

	n = GX_MIN(n, k->left);
	if (gx_unlikely(k->dst && k->gpu && k->gpu->err))
		sink_refuse(e, k, -EIO);
	if (gx_unlikely(k->dst && !k->gpu && !g->readable))
		sink_refuse(e, k, -EOPNOTSUPP);
	if (k->dst && k->gpu) {
		if (!tcp_far_room(k->gpu))
			return 0;
		tcp_far_add(e, s, k, at, n, g->ref);
	} else if (k->dst) {
		gx_copy(k->dst, at, n);
	}
	k->left -= n;
	if (k->dst)
		k->dst += n;
	return n;
}

/* The buffer has a header or a trailer. False: the header has no room now. */
static bool take_gathered(struct tcp_ep *e, struct tcp_sock *s)
{
	s->full = !s->sink.open && tcp_take_waits(e, s, s->buf);
	if (gx_unlikely(s->full))
		return false;
	s->to = 0;
	if (s->sink.open)
		tcp_take_tail(e, s, s->buf);
	else
		tcp_take_frame(e, s, s->buf);
	return true;
}

/* Bytes of a stream with headers and trailers, which the socket's buffer gathers. */
static uint32_t take_frames(struct tcp_ep *e, struct tcp_sock *s, const char *at, uint32_t n)
{
	uint32_t need = s->sink.open ? TCP_TAIL_B : TCP_HDR_B;

	if (s->sink.left)
		return take_payload(e, s, &s->sink, at, n);
	n = GX_MIN(n, need - s->to);
	memcpy(s->buf + s->to, at, n);
	s->to += n;
	if (s->to == need)
		take_gathered(e, s);
	return n;
}

static uint32_t take_bare(struct tcp_ep *e, struct tcp_sock *s, const char *at, uint32_t n)
{
	struct tcp_sink *k = tcp_bare_sink(s);

	if (!k)
		return 0;
	n = take_payload(e, s, k, at, n);
	if (!k->left)
		tcp_bare_paid(e, s);
	return n;
}

/* Take the fragments that are there. False: some wait for a header or for room, or for ever. */
static bool feed_take(struct tcp_ep *e, struct tcp_sock *s)
{
	struct tcp_feed *f = s->feed;
	const struct tcp_frag *g;

	if (gx_unlikely(s->full && !s->rx_ended))
		take_gathered(e, s);
	while ((g = tcp_feed_frag(f))) {
		while (f->off < g->len && !s->rx_ended && !s->full) {
			const char *at = g->src + f->off;
			uint32_t n = g->len - f->off;

			n = s->bare ? take_bare(e, s, at, n) : take_frames(e, s, at, n);
			if (!n)
				break;
			f->off += n;
		}
		if (f->off < g->len || s->rx_ended)
			break;
		tcp_feed_next(f);
	}
	if (!g && !s->full)
		return true;
	if (!s->bare || tcp_bare_sink(s))
		e->timer.heard_ns = e->now_ns; /* it is not the peer's silence */
	return false;
}

/* ---- reading ---- */

/* Return: bytes; 0: none now, or the stream has ended. */
static uint64_t feed_pull(struct tcp_ep *e, struct tcp_sock *s, uint64_t want_b)
{
	struct tcp_feed *f = s->feed;
	int n = f->ops->pull(f, want_b, f->frag, TCP_FEED_FRAGS);
	uint64_t got = 0;

	if (gx_unlikely(n == -ESHUTDOWN))
		tcp_sock_end(e, s, -ECONNRESET);
	else if (gx_unlikely(n < 0))
		tcp_sock_fail(e, s, n, f->why);
	/* Memory that a GPU still reads: it is not the peer's silence. What a lost GPU keeps never
	 * comes back, and nobody waits for it. */
	if (gx_unlikely(!n && f->is_short && e->link->nr_held))
		e->timer.heard_ns = e->rx.short_ns = e->now_ns;
	if (n <= 0)
		return 0;
	f->at = f->off = 0;
	f->nr = (uint32_t)n;
	for (int i = 0; i < n; i++)
		got += f->frag[i].len;
	e->timer.heard_ns = e->now_ns;
	return got;
}

bool tcp_frag_rx(struct tcp_ep *e, struct tcp_sock *s)
{
	uint64_t got = 0, n = 1;

	while (feed_take(e, s) && n && !s->rx_ended && got < TCP_TURN_B) {
		n = feed_pull(e, s, TCP_TURN_B - got);
		got += n;
	}
	if (gx_unlikely(s->rx_ended))
		tcp_feed_drop(s->feed);
	s->feed->ops->release(s->feed, !got);
	e->link->rx_b += got;
	return got > 0;
}
