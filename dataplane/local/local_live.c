// SPDX-License-Identifier: Apache-2.0
/*
 * Which endpoints does a turn of the local link look at? The hot ones each turn, the cold ones now
 * and then (struct link_local). Runs on the polling core.
 */
#include "local/link_local.h"

#define LOCAL_COLD_NS 4000000 /* an ep is cold so long after its last put, get or notification */
#define LOCAL_PACE    10      /* 2^10 ns between two looks at cold eps */

static void live_swap(struct link_local *l, uint32_t a, uint32_t b)
{
	struct local_ep *ep = l->live[a];
	struct local_look look = l->look[a];

	l->live[a] = l->live[b];
	l->look[a] = l->look[b];
	l->live[b] = ep;
	l->look[b] = look;
	l->live[a]->at = a;
	ep->at = b;
}

void local_heat(struct local_ep *e)
{
	struct link_local *l = e->link;

	e->busy_ns = l->core->now_ns;
	if (e->at >= l->nr_hot && e->at != EP_NOT_LIVE)
		live_swap(l, e->at, l->nr_hot++);
}

void local_unlist(struct local_ep *e)
{
	struct link_local *l = e->link;

	if (e->at < l->nr_hot)
		live_swap(l, e->at, --l->nr_hot);
	live_swap(l, e->at, --l->nr_live);
	if (l->nr_live <= LOCAL_FEW)
		l->nr_hot = l->nr_live;
	e->at = EP_NOT_LIVE;
}

static bool ep_is_cold(const struct local_ep *e, uint64_t now_ns)
{
	return e->head == e->tail && !e->nr_dma && !e->used && !e->pkt.want_peer && !e->fail_err &&
	       now_ns - e->busy_ns > LOCAL_COLD_NS;
}

static void ep_cool(struct local_ep *e)
{
	static const _Atomic uint32_t never;
	struct link_local *l = e->link;

	live_swap(l, e->at, --l->nr_hot);
	l->look[e->at] = (struct local_look){&never, 1};
	if (e->rx)
		l->look[e->at] = (struct local_look){&e->rx->imm[e->rx_next % LOCAL_IMMS].seq,
						     e->rx_next + 1};
}

/* Does one hot ep cool? A cold ep with a notification becomes hot. */
__attribute__((noinline)) void local_cold(struct link_local *l, uint64_t now_ns)
{
	uint64_t n = (now_ns - l->cold_ns) >> LOCAL_PACE;
	const struct local_look *look;

	if (++l->cool >= l->nr_hot)
		l->cool = 0;
	if (l->nr_hot && ep_is_cold(l->live[l->cool], now_ns))
		ep_cool(l->live[l->cool]);
	l->cold_ns += n << LOCAL_PACE;
	for (n = GX_MIN(n, (uint64_t)l->nr_live - l->nr_hot); n && l->nr_hot < l->nr_live; n--) {
		if (l->cold < l->nr_hot || l->cold >= l->nr_live)
			l->cold = l->nr_hot;
		look = &l->look[l->cold];
		/* Pairs with the release in local_imm_put(). local_imms_take() looks again. */
		if (atomic_load_explicit(look->seq, memory_order_acquire) == look->want)
			local_heat(l->live[l->cold]);
		l->cold++;
	}
	if (l->cold >= l->nr_hot && l->cold < l->nr_live) /* slow: fetch it for the next turn */
		__builtin_prefetch((const void *)l->look[l->cold].seq);
}
