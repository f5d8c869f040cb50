/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tcp link does with its sockets: frames out, and bytes in.
 */
#ifndef GX_TCP_SOCK_H
#define GX_TCP_SOCK_H

#include "tcp/tcp.h"

/* -- tcp_tx.c: frames to sockets; tcp_rx.c: sockets to frames -- */

bool tcp_tx(struct tcp_ep *e);
void tcp_tx_fetch(
	struct tcp_ep *e); /* payload in memory of GPUs: begin copies, look at those begun */
void tcp_tx_tick(struct tcp_ep *e); /* each millisecond: others want buffers that it holds */
bool tcp_rx(struct tcp_ep *e);
/** tcp_rx_waits() - Socket 0 is not read, because a GPU has the room for what comes next. */
bool tcp_rx_waits(struct tcp_ep *e);

/* -- tcp_take.c: headers and trailers that came -- */

bool tcp_take_full(const struct tcp_ep *e, const uint8_t b[TCP_HDR_B]);
/** tcp_take_waits() - Has this header no room now? */
static inline bool tcp_take_waits(const struct tcp_ep *e, const struct tcp_sock *s,
				  const uint8_t b[TCP_HDR_B])
{
	return gx_unlikely(e->bare.rx) && s == &e->sock[0] && tcp_take_full(e, b);
}
void tcp_take_frame(struct tcp_ep *e, struct tcp_sock *s, const uint8_t b[TCP_HDR_B]);
void tcp_take_tail(struct tcp_ep *e, struct tcp_sock *s, const uint8_t b[TCP_TAIL_B]);

/** tcp_sock_later() - Is @ret, of send or recv, for now alone? So is a kernel without memory; if that does not
 * end, the peer time-out ends the connection. */
static inline bool tcp_sock_later(ssize_t ret)
{
	return ret == -EAGAIN || ret == -EINTR || ret == -ENOBUFS || ret == -ENOMEM;
}

/* -- tcp_bare.c: payload that has sockets of its own -- */

/** tcp_bare_takes() - May payload for @mem come bare? */
bool tcp_bare_takes(const struct tcp_ep *e, const struct gx_mem *mem);
/** tcp_bare_region() - May payload for this region of the peer go bare? */
bool tcp_bare_region(const struct tcp_ep *e, uint64_t token);
/** tcp_bare_data(), tcp_bare_end() - Such frames came. Return: 0, -EPROTO. */
int tcp_bare_data(struct tcp_ep *e, const struct tcp_frame *f);
int tcp_bare_end(struct tcp_ep *e, const struct tcp_frame *f);
/** tcp_bare_sink() - Of the payload that comes next by @s; NULL: its header has not come. */
struct tcp_sink *tcp_bare_sink(struct tcp_sock *s);
/** tcp_bare_paid() - All payload of that sink is here. */
void tcp_bare_paid(struct tcp_ep *e, struct tcp_sock *s);
/** tcp_bare_tick() - Each millisecond: payload that no header claims, and headers whose payload does
 * not come. @waits: tcp_rx_waits(). */
void tcp_bare_tick(struct tcp_ep *e, bool waits);

/* -- tcp_frag.c: sockets whose bytes come as fragments of a feed -- */

/** tcp_frag_rx() - A turn's bytes of @s. True: some came. */
bool tcp_frag_rx(struct tcp_ep *e, struct tcp_sock *s);

#endif
