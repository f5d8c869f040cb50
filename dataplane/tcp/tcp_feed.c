/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of feeds (tcp_feed.h) and of their sockets. A socket stays open while a copy may read
 * fragments of its feed: when it is closed, the kernel fills their memory with other bytes. So a
 * GPU that is lost keeps both until the link is closed. tcp_feed_drop() runs on the polling
 * core, everything else is control path.
 */
#include "tcp/tcp_feed.h"
#include "tcp/tcp.h"
#include "gx_internal/fork.h"

void tcp_feed_drop(struct tcp_feed *f)
{
	while (tcp_feed_frag(f))
		tcp_feed_next(f);
}

void tcp_feed_give(struct tcp_ep *e, unsigned i, struct tcp_feed *f)
{
	assert(e->link->has_feeds && i < e->nr_socks && !e->sock[i].feed);
	assert(f->readable || e->sock[i].bare);
	f->fd = e->sock[i].fd;
	e->sock[i].feed = f;
}

static void feed_end(struct tcp_feed *f)
{
	int fd = f->fd;

	if (f->gone)
		f->gone(f);
	f->ops->close(f);
	gx_fd_close(fd);
}

void tcp_feed_close(struct link_tcp *l, struct tcp_sock *s)
{
	struct tcp_feed *f = s->feed;

	s->feed = NULL;
	if (!f->ops->held(f)) {
		feed_end(f);
		return;
	}
	f->next = l->kept;
	l->kept = f;
}

void tcp_feeds_end(struct link_tcp *l)
{
	struct tcp_feed *next;

	for (struct tcp_feed *f = l->kept; f; f = next) {
		next = f->next;
		feed_end(f);
	}
	l->kept = NULL;
}
