/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Zero-copy receive of io_uring (uring_rx.h) as a source for data sockets of the tcp link: a core has
 * one ring, and one pool that its GPUs read, the area of a NIC's queue (tcp_zcrx.h, tcp_dev.h). A core
 * with silent sockets makes no system call. want, give and close are control path; everything else
 * runs on the polling core, from a socket's first turn on.
 */
#include "nic/nic_link.h"
#include "nic/tcp_zcrx.h"
#include "nic/uring_rx.h"
#include "tcp/tcp_feed.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

struct uring_feed {
	struct tcp_feed feed;
	struct uring_rx *rx;
	const struct link_tcp *link;
	int rule;	      /* ctl: place of its flow rule; < 0: none */
	uint32_t sock;	      /* URING_NONE: not yet */
	uint32_t held;	      /* references to fragments */
	bool is_over;	      /* nothing more is pulled */
	uint64_t patience_ns; /* frozen: for memory of a pool that is whole; 0: no end of it */
	uint64_t dry_ns;      /* how long it has waited for that */
	uint64_t looked_ns;
	uint64_t frags; /* that the ring had brought then */
};

static struct uring_feed *feed_of(const struct tcp_feed *f)
{
	return GX_CONTAINER_OF(f, struct uring_feed, feed);
}

/* ---- polling core ---- */

/* The core that turns the socket hands it to the ring. */
static int feed_begin(struct uring_feed *u)
{
	int ret = uring_rx_add(u->rx, u->feed.fd);

	if (ret < 0) {
		u->feed.why = "the core's ring of io_uring has no place for another socket";
		return ret;
	}
	u->sock = (uint32_t)ret;
	return 0;
}

/* All memory has gone back, and the kernel has none for any socket all the same: pages of a NIC's
 * area are taken back when the NIC wants some, and these packets come another way. A pause of the
 * core is no wait. */
static bool feed_starves(struct uring_feed *u)
{
	uint64_t now_ns = u->link->core->now_ns, past_ns = now_ns - u->looked_ns;

	u->looked_ns = now_ns;
	if (gx_likely(!u->feed.is_short || !uring_rx_is_whole(u->rx) ||
		      u->frags != u->rx->stat.frags))
		u->dry_ns = 0;
	else
		u->dry_ns += GX_MIN(past_ns, u->patience_ns / 4);
	u->frags = u->rx->stat.frags;
	return u->patience_ns && u->dry_ns >= u->patience_ns;
}

static int feed_pull(struct tcp_feed *f, uint64_t want_b, struct tcp_frag frags[], unsigned n)
{
	struct uring_frag got[TCP_FEED_FRAGS];
	struct uring_feed *u = feed_of(f);
	int ret;

	if (gx_unlikely(u->sock == URING_NONE))
		return u->is_over ? 0 : feed_begin(u);
	ret = uring_rx_pull(u->rx, u->sock, want_b, got, GX_MIN(n, (unsigned)TCP_FEED_FRAGS));
	if (gx_unlikely(ret < 0)) {
		f->why = uring_why(u->rx, u->sock);
		return ret == -ECONNRESET ? -ESHUTDOWN : ret;
	}
	for (int i = 0; i < ret; i++)
		frags[i] = (struct tcp_frag){.src = got[i].src,
					     .len = got[i].len,
					     .ref = got[i].ref,
					     .readable = f->readable};
	u->held += (uint32_t)ret;
	f->is_short = !ret && uring_rx_is_short(u->rx, u->sock);
	if (gx_unlikely(feed_starves(u))) {
		f->why = "the kernel takes no page of its area back: the peer's packets do not "
			 "come by the NIC's queue (gx_nic_opts.rx_if), or the area is smaller "
			 "than the queue's ring (gx_nic_opts.rx_b)";
		return -ENOBUFS;
	}
	return ret;
}

static void feed_hold(struct tcp_feed *f, uint32_t ref)
{
	struct uring_feed *u = feed_of(f);

	u->held++;
	uring_hold(u->rx, ref);
}

static void feed_done(struct tcp_feed *f, uint32_t ref)
{
	struct uring_feed *u = feed_of(f);

	u->held--;
	uring_done(u->rx, ref);
}

/* The link's turn gives buffers of all sockets back. */
static int feed_release(struct tcp_feed *f, bool idle)
{
	return 0;
}

static void feed_end(struct tcp_feed *f)
{
	struct uring_feed *u = feed_of(f);

	if (u->sock != URING_NONE)
		uring_rx_forget(u->rx, u->sock);
	u->sock = URING_NONE;
	u->is_over = true;
}

/* The ring does the rest by itself. */
static void feed_leave(struct tcp_feed *f)
{
}

static uint32_t feed_held(const struct tcp_feed *f)
{
	return feed_of(f)->held;
}

bool nic_ring_poll(void *link, uint64_t now_ns)
{
	struct uring_rx *rx = nic_core_of(link)->uring;

	return rx && uring_rx_turn(rx);
}

bool nic_ring_asleep(const void *link)
{
	const struct uring_rx *rx = nic_core_of(link)->uring;

	return !rx || !uring_rx_is_busy(rx);
}

/* ---- control path ---- */

/* The ring outlives it, with the buffers that a lost GPU may still read. It keeps the socket open until
 * the core's next turn, which may be late; the peer hears of the end now. */
static void feed_close(struct tcp_feed *f)
{
	struct uring_feed *u = feed_of(f);

	if (u->rule >= 0)
		tcp_zcrx_unrule(nic_ctx_of(u->link->core->gx)->zcrx, u->rule);
	shutdown(f->fd, SHUT_RDWR);
	free(u);
}

static const struct tcp_feed_ops feed_ops = {
	.name = "uring",
	.pull = feed_pull,
	.hold = feed_hold,
	.done = feed_done,
	.release = feed_release,
	.end = feed_end,
	.held = feed_held,
	.leave = feed_leave,
	.close = feed_close,
};

static struct uring_feed *feed_new(const struct link_tcp *l, bool readable)
{
	struct uring_feed *u = calloc(1, sizeof(*u));

	if (!u)
		return NULL;
	u->feed.ops = &feed_ops;
	u->feed.readable = readable;
	u->rx = nic_core_of(l)->uring;
	u->link = l;
	u->rule = -1;
	u->sock = URING_NONE;
	return u;
}

struct tcp_feed *tcp_uring_bare(const struct link_tcp *l)
{
	struct uring_feed *u = feed_new(l, false);

	return u ? &u->feed : NULL;
}

static int sock_give(struct tcp_ep *e, unsigned i, int rule)
{
	struct uring_feed *u = feed_new(e->link, true);

	if (!u)
		return gx_fail(-ENOMEM, "out of memory");
	u->rule = rule;
	u->patience_ns = e->ep.conn->agreed.peer_timeout_ns / 2; /* so the cause is named */
	tcp_feed_give(e, i, &u->feed);
	return 0;
}

int tcp_uring_give(struct tcp_ep *e)
{
	struct nic_ctx *t = nic_ctx_of(e->link->core->gx);
	struct tcp_zcrx *z = t->zcrx;
	int ret = 0;

	if (t->dev) /* payload alone comes by the ring: tcp_dev.c */
		return 0;
	for (unsigned i = 0; !ret && nic_core_of(e->link)->uring && i < e->nr_socks; i++) {
		int rule = -1;

		if (e->sock[i].feed || e->sock[i].bare)
			continue;
		if (z)
			rule = tcp_zcrx_rule(z, e->link->core->index, e->sock[i].fd);
		if (z && rule < 0)
			continue; /* recv() reads it */
		ret = sock_give(e, i, rule);
		if (ret)
			tcp_zcrx_unrule(z, rule);
	}
	return ret;
}

int tcp_uring_want(struct nic_core *n)
{
	struct gx_core *core = n->tcp.core;
	struct tcp_zcrx *z = nic_ctx_of(core->gx)->zcrx;
	int ret;

	if (!z)
		return 0;
	n->uring_pool_b = tcp_zcrx_area_b(z);
	ret = gx_arena_map(core->gx->arena, -1, n->uring_pool_b, &n->uring_pool);
	if (ret)
		return gx_fail(ret, "gx_nic_opts.rx zcrx: no host memory for %" PRIu64 " MiB",
			       n->uring_pool_b >> 20);
	return tcp_zcrx_take(z, core->index, n->uring_pool, &n->uring);
}

void tcp_uring_close(struct nic_core *n)
{
	uring_rx_close(n->uring);
	if (n->uring_pool)
		gx_arena_unmap(n->tcp.core->gx->arena, n->uring_pool, n->uring_pool_b);
}
