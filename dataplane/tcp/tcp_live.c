/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which endpoints does a turn of the tcp link look at? The hot ones each turn, the cold ones now and
 * then, because a look is a call into the kernel for each socket. Runs on the polling core.
 */
#include "tcp/tcp_live.h"

#define COLD_NS	  4000000 /* an ep is cold so long after its last byte, */
#define COLD_FEW  4	  /* but among so few eps none is */
#define PACE	  12	  /* cold eps: 2^12 ns from one socket to the next */
#define BEHIND_NS 1000000 /* after a pause: looks of that time are made up for, others are not */

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

	e->timer.busy_ns = l->core->now_ns;
	if (e->live_at != TCP_NONE && e->live_at >= l->nr_hot)
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

	if (e->live_at < l->nr_hot)
		live_swap(l, e->live_at, --l->nr_hot);
	live_swap(l, e->live_at, --l->nr_live);
	if (l->nr_live <= COLD_FEW)
		l->nr_hot = l->nr_live;
	e->live_at = TCP_NONE;
}

/* Posted receives and gets, and puts that wait for DONE, need only the peer's next byte. */
static bool ep_is_idle(const struct tcp_ep *e, uint64_t now_ns)
{
	if (now_ns - e->timer.busy_ns <= COLD_NS || e->rx.nr_in || e->tx.nr_act || e->tx.nr_fetch ||
	    e->ctls.head != e->ctls.tail)
		return false;
	for (unsigned i = 0; i < e->nr_socks; i++)
		if (e->sock[i].head != e->sock[i].tail)
			return false;
	return true;
}

void tcp_live_cool(struct link_tcp *l, uint64_t now_ns)
{
	if (l->nr_live <= COLD_FEW || !l->nr_hot)
		return;
	if (++l->cool >= l->nr_hot)
		l->cool = 0;
	if (ep_is_idle(l->live[l->cool], now_ns))
		live_swap(l, l->cool, --l->nr_hot);
}

struct tcp_ep *tcp_live_cold(struct link_tcp *l, uint64_t now_ns)
{
	struct tcp_ep *e;

	if (l->nr_hot == l->nr_live)
		return NULL;
	l->cold_ns = GX_MAX(l->cold_ns + BEHIND_NS, now_ns) - BEHIND_NS;
	if (l->cold_ns >= now_ns)
		return NULL;
	if (l->cold < l->nr_hot || l->cold >= l->nr_live)
		l->cold = l->nr_hot;
	e = l->live[l->cold];
	if (e->now_ns == now_ns) { /* this turn has seen them all */
		l->cold_ns = now_ns;
		return NULL;
	}
	l->cold++;
	l->cold_ns += (uint64_t)e->nr_socks << PACE;
	return e;
}
