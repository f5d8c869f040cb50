/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets to frames. Payload goes straight to its place, or for memory of a GPU into the GPU's ring
 * (tcp_gpu.c): a read has the rest of the frame under way as its first buffer, and after it room
 * for its trailer and the next header, or for many small frames. The kernel's stores may be of any
 * size, so what a program reads while it comes (GX_OP_WORDS) goes by the socket's buf. A socket
 * whose payload has no room in the ring is not read. A socket with a feed has its bytes from there
 * (tcp_frag.c). Runs on the polling core.
 */
#include "tcp/tcp_gpu.h"
#include "tcp/tcp_in.h"
#include "tcp/tcp_op.h"
#include "tcp/tcp_seal.h"
#include "tcp/tcp_sock.h"
#include "tcp/tcp_view.h"

#include <errno.h>
#include <string.h>

/* ---- bytes ---- */

static __attribute__((noinline)) uint32_t sink_room_slow(struct tcp_ep *e, struct tcp_sock *s,
							 char **at)
{
	struct tcp_sink *k = &s->sink;

	if (gx_unlikely(k->dst && k->gpu && k->gpu->err))
		tcp_in_refuse(e, &e->in[k->place], -EIO);
	*at = k->dst ? k->dst : e->link->trash;
	if (!k->dst)
		return GX_MIN(k->left, TCP_PAD_B);
	if (k->view && !k->gpu) {
		*at = e->link->view;
		return GX_MIN(k->left, TCP_VIEW_B);
	}
	return k->gpu ? tcp_ring_room(e, k, at) : k->left;
}

/* Where the next bytes of the payload under way go. Return: how many may; 0: none yet. */
static inline __attribute__((always_inline)) uint32_t sink_room(struct tcp_ep *e,
								struct tcp_sock *s, char **at)
{
	const struct tcp_sink *k = &s->sink;

	*at = k->dst;
	return gx_likely(k->dst && !((uintptr_t)k->gpu | k->view)) ? k->left
								   : sink_room_slow(e, s, at);
}

/* @n bytes of the payload under way are at @at, from sink_room(). */
static inline void sink_took(struct tcp_ep *e, struct tcp_sock *s, const char *at, uint32_t n)
{
	struct tcp_sink *k = &s->sink;

	if (n && k->dst && k->gpu)
		tcp_ring_add(e, k, at, n);
	else if (gx_unlikely(k->view) && n && k->dst)
		tcp_view_took(e, k, at, n);
	k->left -= n;
	if (k->dst)
		k->dst += n;
}

/* Take the payload that buf has. By words: a part of one stays, as the kernel may have any number of
 * bytes. */
static void buf_sink(struct tcp_ep *e, struct tcp_sock *s)
{
	while (s->sink.left && s->from != s->to) {
		char *at;
		uint32_t n = GX_MIN(sink_room(e, s, &at), s->to - s->from);

		if (gx_unlikely(s->sink.words) && n < s->sink.left)
			n -= n % 8;
		if (!n)
			return;
		if (s->sink.dst)
			gx_copy(at, s->buf + s->from, n);
		s->from += n;
		sink_took(e, s, at, n);
	}
}

/* Take all that buf has: payload, then whole trailers and headers. */
static void buf_take(struct tcp_ep *e, struct tcp_sock *s)
{
	s->full = false;
	while (!s->rx_ended) {
		uint32_t need = s->sink.open ? TCP_TAIL_B : TCP_HDR_B;

		buf_sink(e, s);
		if (s->sink.left || s->to - s->from < need)
			break;
		s->full = !s->sink.open && tcp_take_waits(e, s, s->buf + s->from);
		if (gx_unlikely(s->full))
			break;
		s->from += need;
		if (s->sink.open)
			tcp_take_tail(e, s, s->buf + s->from - need);
		else
			tcp_take_frame(e, s, s->buf + s->from - need);
	}
	/* A part of a header or of a trailer is left, or what has no room yet. */
	if (s->from)
		memmove(s->buf, s->buf + s->from, s->to - s->from);
	s->to -= s->from;
	s->from = 0;
}

/* The payload has no room in a GPU's ring, or the next frame none. That is not the peer's silence. */
static bool sock_waits(struct tcp_ep *e)
{
	e->timer.heard_ns = e->now_ns;
	return false;
}

/* Return: the kernel may have more. */
static bool sock_recv(struct tcp_ep *e, struct tcp_sock *s, uint64_t *got)
{
	bool words = s->sink.left && s->sink.words;
	uint32_t ahead = s->large && !words ? TCP_TAIL_B + TCP_HDR_B : TCP_AHEAD_B;
	uint32_t left = 0, n = 0;
	uint64_t want = 0;
	struct iovec iov[2];
	char *at = NULL;
	ssize_t ret;

	if (gx_unlikely(s->full))
		return sock_waits(e);
	if (s->sink.left && !words) {
		left = s->to ? 0 : sink_room(e, s, &at);
		if (!left)
			return sock_waits(e);
		iov[n++] = (struct iovec){at, left};
	}
	if (left == s->sink.left || words)
		iov[n++] = (struct iovec){s->buf + s->to, ahead - s->to};
	for (uint32_t i = 0; i < n; i++)
		want += iov[i].iov_len;
	ret = gx_unlikely(s->seal) ? tcp_seal_recv(s->seal, s->fd, e->sys->recv, iov, n)
				   : e->sys->recv(s->fd, iov, n);
	if (tcp_sock_later(ret)) {
		gx_stat_add(tcp_stats(e), GX_STAT_RX_NOBUF, ret == -ENOMEM || ret == -ENOBUFS);
		return false;
	}
	if (ret <= 0) {
		tcp_sock_end(e, s, ret ? (int)ret : -ECONNRESET);
		return false;
	}
	e->timer.heard_ns = e->now_ns;
	*got += (uint64_t)ret;
	left = GX_MIN(left, (uint32_t)ret);
	s->to += (uint32_t)ret - left;
	sink_took(e, s, at, left);
	buf_take(e, s);
	return (uint64_t)ret == want;
}

static bool sock_rx(struct tcp_ep *e, struct tcp_sock *s)
{
	uint64_t got = 0;

	if (gx_unlikely((s->sink.left && s->to) || s->full)) /* it had no room */
		buf_take(e, s);
	while (!s->rx_ended && got < TCP_TURN_B && sock_recv(e, s, &got))
		;
	e->link->rx_b += got;
	return got > 0;
}

bool tcp_rx_waits(struct tcp_ep *e)
{
	struct tcp_sock *s = &e->sock[0];
	char *at;

	if (s->full)
		return e->link->nr_held; /* else the payload of those frames is late */
	return s->sink.left && !sink_room(e, s, &at);
}

bool tcp_rx(struct tcp_ep *e)
{
	bool worked = false;

	if (++e->rx.rover >= e->nr_socks)
		e->rx.rover = 0;
	for (unsigned k = 0, i = e->rx.rover; k < e->nr_socks && e->link->rx_b < TCP_LINK_B; k++) {
		if (e->sock[i].feed)
			worked |= tcp_frag_rx(e, &e->sock[i]);
		else if (!e->sock[i].rx_ended)
			worked |= sock_rx(e, &e->sock[i]);
		if (++i == e->nr_socks)
			i = 0;
	}
	return worked;
}
