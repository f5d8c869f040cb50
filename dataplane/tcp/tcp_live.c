/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which endpoints does a turn of the tcp link look at? A look is a call into the kernel for each
 * socket. So among more than a few, one that has nothing to do is cold: one call names the sockets
 * of all of them (epoll), and a table has the next of its times. No turn costs more because there
 * are more cold ones. Runs on the polling core.
 */
#include "tcp/tcp_live.h"
#include "tcp/tcp_op.h"

#include "gx_internal/fork.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

int tcp_live_open(struct link_tcp *l)
{
	if (l->fd >= 0)
		return 0;
	memset(l->due_ns, 0xff, sizeof(l->due_ns));
	l->fd = gx_fd_own(epoll_create1(EPOLL_CLOEXEC));
	return l->fd >= 0 ? 0
			  : gx_fail(-errno, "no descriptor for data sockets: %s", strerror(errno));
}

void tcp_live_close(struct link_tcp *l)
{
	if (l->fd >= 0)
		gx_fd_close(l->fd); /* the core's epoll forgets it */
	l->fd = -1;
	l->looks = false;
}

static void live_swap(struct link_tcp *l, uint32_t a, uint32_t b)
{
	struct tcp_ep *e = l->live[a];

	l->live[a] = l->live[b];
	l->live[b] = e;
	l->live[a]->live_at = a;
	e->live_at = b;
}

void tcp_live_heat(struct tcp_ep *e)
{
	struct link_tcp *l = e->link;

	if (!tcp_live_is_cold(e))
		return;
	l->due_ns[e->index] = UINT64_MAX;
	live_swap(l, e->live_at, l->nr_hot++);
}

void tcp_live_add(struct tcp_ep *e)
{
	struct link_tcp *l = e->link;

	e->live_at = l->nr_live;
	l->live[l->nr_live++] = e;
	tcp_live_heat(e);
}

void tcp_live_remove(struct tcp_ep *e)
{
	struct link_tcp *l = e->link;

	tcp_live_heat(e);
	live_swap(l, e->live_at, --l->nr_hot);
	live_swap(l, e->live_at, --l->nr_live);
	e->live_at = TCP_NONE;
	while (l->nr_live <= TCP_COLD_FEW && l->nr_hot < l->nr_live)
		tcp_live_heat(l->live[l->nr_hot]);
}

/* Posted receives and gets, and puts that wait for DONE, need only the peer's next byte. */
static bool ep_is_idle(const struct tcp_ep *e)
{
	if (e->rx.nr_in || e->tx.nr_act || e->tx.nr_fetch || e->nic.nr_out || e->end.err ||
	    e->ctls.head != e->ctls.tail || e->match.gets_head != e->match.gets_tail)
		return false;
	for (unsigned i = 0; i < e->nr_socks; i++)
		if (e->sock[i].head != e->sock[i].tail || e->sock[i].feed)
			return false;
	return true;
}

void tcp_live_see(struct tcp_ep *e, bool worked)
{
	struct link_tcp *l = e->link;

	if (worked || !ep_is_idle(e) || tcp_live_watch(e)) {
		tcp_live_heat(e);
		return;
	}
	if (e->live_at < l->nr_hot)
		live_swap(l, e->live_at, --l->nr_hot);
	tcp_tell_gauge(e);
	e->timer.waiting &= e->nr_ops > 0;
	l->due_ns[e->index] = GX_MIN(e->timer.deadline_ns,
				     e->nr_ops ? tcp_live_look_ns(e, l->core->now_ns) : UINT64_MAX);
}

/* 0 events: the kernel reports none. */
static int sock_watch(const struct tcp_ep *e, struct tcp_sock *s, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.u32 = e->index};
	int op = !s->watched ? EPOLL_CTL_ADD : events ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;

	if (events == s->watched)
		return 0;
	if (epoll_ctl(e->link->fd, op, s->fd, &ev))
		return -errno;
	s->watched = events;
	return 0;
}

int tcp_live_watch(struct tcp_ep *e)
{
	int ret = 0;

	for (unsigned i = 0; i < e->nr_socks && !ret; i++) {
		struct tcp_sock *s = &e->sock[i];

		if (s->feed)
			return -EOPNOTSUPP;
		ret = sock_watch(e, s,
				 (s->rx_ended ? 0 : EPOLLIN) |
					 (s->head != s->tail && !s->tx_ended ? EPOLLOUT : 0));
	}
	return ret;
}
