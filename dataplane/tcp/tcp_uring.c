/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_uring (uring_rx.h) as a source for data sockets of the tcp link: a core has one ring, and one
 * pool that its GPUs read. A core with silent sockets makes no system call. A program asks for it by
 * gx_opts.tcp_rx. open, give and close are control path; everything else runs on the
 * polling core, from a socket's first turn on.
 */
#include "tcp/tcp.h"
#include "tcp/uring_rx.h"

#include <errno.h>
#include <stdlib.h>

_Static_assert(TCP_WHY_B == IO_RING_WHY_B, "the ring writes it");
_Static_assert(TCP_POOL_B % GX_HUGE_PAGE == 0, "whole pages");

struct uring_feed {
	struct tcp_feed feed;
	struct uring_rx *rx;
	uint32_t sock; /* URING_NONE: not yet */
	uint32_t held; /* references to fragments */
	bool is_over;  /* nothing more is pulled */
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
		frags[i] = (struct tcp_frag){
			.src = got[i].src, .len = got[i].len, .ref = got[i].ref, .readable = true};
	u->held += (uint32_t)ret;
	f->is_short = !ret && uring_rx_is_short(u->rx, u->sock);
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

bool tcp_uring_turn(struct link_tcp *l)
{
	return uring_rx_turn(l->uring);
}

bool tcp_uring_is_busy(const struct link_tcp *l)
{
	return l->uring && uring_rx_is_busy(l->uring);
}

/* ---- control path ---- */

/* The ring outlives it, with the buffers that a lost GPU may still read. It keeps the socket open until
 * the core's next turn, which may be late; the peer hears of the end now. */
static void feed_close(struct tcp_feed *f)
{
	shutdown(f->fd, SHUT_RDWR);
	free(feed_of(f));
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

int tcp_uring_give(struct tcp_ep *e)
{
	for (unsigned i = 0; e->link->uring && i < e->nr_socks; i++) {
		struct uring_feed *u;

		if (e->sock[i].feed || e->sock[i].bare)
			continue;
		u = calloc(1, sizeof(*u));
		if (!u)
			return gx_fail(-ENOMEM, "out of memory");
		u->feed.ops = &feed_ops;
		u->feed.readable = true;
		u->rx = e->link->uring;
		u->sock = URING_NONE;
		tcp_feed_give(e, i, &u->feed);
	}
	return 0;
}

int tcp_uring_open(struct link_tcp *l, void *pool, char why[IO_RING_WHY_B])
{
	struct uring_cfg cfg = {.sys = &io_ring_sys_kernel,
				.pool = pool,
				.buf_b = TCP_BUF_B,
				.nr_bufs = TCP_POOL_B / TCP_BUF_B,
				.nr_socks = URING_SOCKS,
				.depth = TCP_FRAGS,
				.is_packed = true,
				.is_fair = true};
	int ret = uring_rx_open(&cfg, &l->uring, why);

	if (!ret)
		l->has_feeds = true;
	return ret;
}

int tcp_uring_want(struct link_tcp *l)
{
	char why[IO_RING_WHY_B] = "no memory for its buffers";
	int ret;

	if (l->core->gx->opts.tcp_rx != GX_TCP_RX_URING)
		return 0;
	ret = gx_arena_map(l->core->gx->arena, -1, TCP_POOL_B, &l->uring_pool);
	if (!ret)
		ret = tcp_uring_open(l, l->uring_pool, why);
	return ret ? gx_fail(ret, "gx_opts.tcp_rx uring: %s", why) : 0;
}

void tcp_uring_close(struct link_tcp *l)
{
	uring_rx_close(l->uring);
	if (l->uring_pool)
		gx_arena_unmap(l->core->gx->arena, l->uring_pool, TCP_POOL_B);
}
