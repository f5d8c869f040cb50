/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel counts of a connection's sockets, for people who watch it. Control thread. The C
 * library's own struct tcp_info ends before these counts, and its header does not go with this one.
 */
#include "tcp/tcp.h"
#include "tcp/tcp_conn.h"

#include <linux/tcp.h>
#include <netinet/in.h>

#define US_NS 1000ull

/* The window is the limit of what time is left: the peer's and this end's buffers are not. */
static void sock_look(int fd, struct gx_link_look *out)
{
	struct tcp_info t = {0}; /* an older kernel fills less of it */
	socklen_t len = sizeof(t);
	uint64_t others_us;

	if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &t, &len))
		return;
	others_us = t.tcpi_rwnd_limited + t.tcpi_sndbuf_limited;
	out->tx_b += t.tcpi_bytes_sent;
	out->rx_b += t.tcpi_bytes_received;
	out->lost_b += t.tcpi_bytes_retrans;
	out->rtt_ns = GX_MAX(out->rtt_ns, t.tcpi_rtt * US_NS);
	out->rate_b_s += t.tcpi_delivery_rate;
	out->window_b += (uint64_t)t.tcpi_snd_cwnd * t.tcpi_snd_mss;
	out->limit_ns[GX_LOOK_BY_WINDOW] +=
		(t.tcpi_busy_time - GX_MIN(t.tcpi_busy_time, others_us)) * US_NS;
	out->limit_ns[GX_LOOK_BY_CREDIT] += t.tcpi_rwnd_limited * US_NS;
	out->limit_ns[GX_LOOK_BY_CORE] += t.tcpi_sndbuf_limited * US_NS;
}

void tcp_look(const struct gx_conn *c, struct gx_link_look *out)
{
	out->has = GX_LOOK_TX_B | GX_LOOK_RX_B | GX_LOOK_LOST | GX_LOOK_LIMIT | GX_LOOK_WINDOW |
		   GX_LOOK_RATE;
	for (unsigned lane = 0; lane < c->nr_lanes; lane++) {
		const struct tcp_ep *e = tcp_of(c->ep[lane]);

		out->msgs += atomic_load_explicit(&e->timer.gauge_msgs, memory_order_relaxed);
		for (unsigned i = 0; i < e->nr_socks; i++)
			sock_look(e->sock[i].fd, out);
	}
}
