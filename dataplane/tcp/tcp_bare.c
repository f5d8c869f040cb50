/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bare payload: a receiver whose payload lands where its CPU does not read, as in memory of a GPU,
 * has the headers kept out of it. Then socket 0 carries all frames. A DATA frame with BARE names the
 * socket of its payload, and END stands for its trailer. The other sockets carry payload alone, in
 * the order of the headers. Header, payload and END come in any order; a frame is whole when it has
 * all three:
 *
 *     pend_tail ------------- pend_paid, pend_ended ---------- pend_head
 *      | one of the two is here: | payload or END came up to here | next header
 *
 * The sender has at most TCP_OUTS frames of a socket without END on their way. So of TCP_PENDS
 * frames the oldest one lacks payload alone, which does not wait for socket 0: a receiver that reads
 * no more headers meanwhile cannot lock. Runs on the polling core.
 */
#include "tcp/tcp_feed.h"
#include "tcp/tcp_in.h"
#include "tcp/tcp_op.h"
#include "tcp/tcp_sock.h"

#include <errno.h>

/* Peer time-outs for which a socket may bring nothing: the sender's kernel resends as long
 * (tcp_sys_tune()). */
#define LATE_TIMEOUTS 3

_Static_assert(TCP_SOCK_TOP == TCP_SOCKS_MAX - 1, "a frame can name each socket");
_Static_assert(TCP_PENDS > TCP_OUTS && !(TCP_PENDS & (TCP_PENDS - 1)), "see above");

bool tcp_bare_takes(const struct tcp_ep *e, const struct gx_mem *mem)
{
	return e->bare.rx && mem && mem->kind != GX_MEM_HOST &&
	       mem->gpu->device == (int)e->bare.rx_device;
}

/* The peer's HELLO names its regions. Others are unknown, and their payload has headers. */
bool tcp_bare_region(const struct tcp_ep *e, uint64_t token)
{
	const struct gx_hello *h = &e->ep.conn->peer;

	for (uint32_t i = 0; e->bare.tx && i < h->nr_regions; i++)
		if (h->regions[i].token == token)
			return h->regions[i].kind != GX_MEM_HOST &&
			       h->regions[i].device == e->bare.tx_device;
	return false;
}

/* The frames that have all of theirs. */
static void bare_settle(struct tcp_ep *e, struct tcp_sock *s)
{
	while (s->pend_tail != s->pend_paid && s->pend_tail != s->pend_ended) {
		const struct tcp_sink *k = &s->pend[s->pend_tail++ % TCP_PENDS];

		tcp_in_chunk(e, k, k->is_void ? TCP_TAIL_VOID : TCP_TAIL_GOOD);
	}
}

int tcp_bare_data(struct tcp_ep *e, const struct tcp_frame *f)
{
	struct tcp_sock *s = &e->sock[f->sock % TCP_SOCKS_MAX];
	struct tcp_sink *k = &s->pend[s->pend_head % TCP_PENDS];

	if (f->sock >= e->nr_socks || !s->bare || s->pend_head - s->pend_ended >= TCP_OUTS)
		return -EPROTO;
	tcp_in_data(e, &e->sock[0], k, f);
	if (e->sock[0].rx_ended)
		return 0;
	s->pend_head++;
	s->nr_lost_ticks = 0;
	/* The sender was told which memory takes bare payload. */
	if (k->dst && (!k->gpu || k->gpu != e->link->gpu[e->bare.rx_device]))
		tcp_in_refuse(e, &e->in[k->place], -EOPNOTSUPP);
	return 0;
}

int tcp_bare_end(struct tcp_ep *e, const struct tcp_frame *f)
{
	struct tcp_sock *s = &e->sock[f->sock % TCP_SOCKS_MAX];

	if (f->sock >= e->nr_socks || s->pend_ended == s->pend_head)
		return -EPROTO;
	s->pend[s->pend_ended++ % TCP_PENDS].is_void = f->flags & TCP_F_VOID;
	bare_settle(e, s);
	return 0;
}

struct tcp_sink *tcp_bare_sink(struct tcp_sock *s)
{
	return s->pend_paid != s->pend_head ? &s->pend[s->pend_paid % TCP_PENDS] : NULL;
}

void tcp_bare_paid(struct tcp_ep *e, struct tcp_sock *s)
{
	s->pend_paid++;
	bare_settle(e, s);
}

/* Headers are here, and their payload does not come: the peer lives, so its core sends PONG, and its
 * kernel has a dead socket. A wait for a GPU of ours is none. */
static void tick_payload(struct tcp_ep *e, struct tcp_sock *s)
{
	const struct tcp_sink *k = tcp_bare_sink(s);
	bool gpu = s->feed && (tcp_feed_frag(s->feed) || s->feed->is_short);

	if (!k || gpu || s->late_paid != s->pend_paid || s->late_left != k->left) {
		s->nr_late_ticks = 0;
		s->late_paid = s->pend_paid;
		s->late_left = k ? k->left : 0;
		return;
	}
	if ((uint64_t)++s->nr_late_ticks * TCP_TICK_NS >=
	    e->ep.conn->agreed.peer_timeout_ns * LATE_TIMEOUTS)
		tcp_sock_fail(e, s, -ETIMEDOUT,
			      "a socket that carries payload alone has brought nothing for too "
			      "long, while the peer answers by another one. Did a firewall or a "
			      "proxy cut it?");
}

/* A header may be late, as its socket may be. A peer that never sends it keeps memory of the pool.
 * Ticks are counted, not time: a core that was stopped has not read socket 0 either. Nor does a
 * core that waits for a GPU. */
void tcp_bare_tick(struct tcp_ep *e, bool waits)
{
	for (unsigned i = 1; i < e->nr_socks; i++) {
		struct tcp_sock *s = &e->sock[i];

		if (s->bare && !s->rx_ended)
			tick_payload(e, s);
		if (!s->bare || s->rx_ended || !s->feed || !tcp_feed_frag(s->feed) ||
		    tcp_bare_sink(s)) {
			s->nr_lost_ticks = 0;
			continue;
		}
		s->nr_lost_ticks += !waits;
		if ((uint64_t)s->nr_lost_ticks * TCP_TICK_NS >= e->ep.conn->agreed.peer_timeout_ns)
			tcp_sock_end(e, s, -EPROTO);
	}
}
