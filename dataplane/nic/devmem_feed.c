/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory as a feed; see devmem_feed.h. open and close are control path, the rest runs on the
 * polling core.
 */
#include "nic/devmem_feed.h"
#include "tcp/tcp_feed.h"

#include <errno.h>
#include <stdlib.h>

struct devmem_feed {
	struct tcp_feed feed;
	struct devmem_rx *rx;
};

struct devmem_rx *devmem_feed_rx(struct tcp_feed *f)
{
	return GX_CONTAINER_OF(f, struct devmem_feed, feed)->rx;
}

static int feed_pull(struct tcp_feed *f, uint64_t want_b, struct tcp_frag frags[], unsigned n)
{
	struct devmem_rx *rx = devmem_feed_rx(f);
	struct devmem_frag got[TCP_FEED_FRAGS];
	uint64_t full = rx->stat.full;
	int ret = devmem_rx_pull(rx, want_b, got, GX_MIN(n, (unsigned)TCP_FEED_FRAGS));

	f->why = rx->why;
	f->is_short = rx->stat.full != full;
	for (int i = 0; i < ret; i++)
		frags[i] = (struct tcp_frag){
			.src = got[i].src,
			.len = got[i].len,
			.ref = got[i].ref,
			.readable = f->readable ||
				    (uintptr_t)got[i].src - (uintptr_t)rx->lin < rx->lin_b};
	return ret;
}

static void feed_hold(struct tcp_feed *f, uint32_t ref)
{
	devmem_hold(devmem_feed_rx(f), ref);
}

static void feed_done(struct tcp_feed *f, uint32_t ref)
{
	devmem_done(devmem_feed_rx(f), ref);
}

static int feed_release(struct tcp_feed *f, bool idle)
{
	return devmem_release(devmem_feed_rx(f), idle);
}

static uint32_t feed_held(const struct tcp_feed *f)
{
	return devmem_rx_held(devmem_feed_rx((struct tcp_feed *)f));
}

static void feed_leave(struct tcp_feed *f)
{
	devmem_rx_leave(devmem_feed_rx(f));
}

/* Fragments that a lost GPU has not given back are forgotten with the GPU. */
static void feed_close(struct tcp_feed *f)
{
	struct devmem_rx *rx = devmem_feed_rx(f);

	devmem_rx_forget(rx);
	devmem_rx_close(rx);
	free(GX_CONTAINER_OF(f, struct devmem_feed, feed));
}

static const struct tcp_feed_ops feed_ops = {
	.name = "devmem",
	.pull = feed_pull,
	.hold = feed_hold,
	.done = feed_done,
	.release = feed_release,
	.held = feed_held,
	.leave = feed_leave,
	.close = feed_close,
};

int devmem_feed_open(const struct devmem_cfg *cfg, struct devmem_pool *p, struct tcp_feed **out)
{
	struct devmem_feed *d = calloc(1, sizeof(*d));
	int ret;

	if (!d)
		return -ENOMEM;
	ret = devmem_rx_open(cfg, &d->rx);
	if (!ret)
		ret = devmem_rx_pool(d->rx, p);
	if (ret) {
		devmem_rx_close(d->rx);
		free(d);
		return ret;
	}
	d->feed.ops = &feed_ops;
	*out = &d->feed;
	return 0;
}
