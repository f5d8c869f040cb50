/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bounce buffers that all peers of a queue share, and the credit of each peer. Runs on the
 * polling core. Where each peer has buffers of its own, this counts the used ones, and nothing
 * else.
 *
 * An endpoint whose peer has declared packets wants buffers, and has a share: three quarters of the
 * pool, divided by the number of endpoints that want some. The last quarter is for the first credit
 * of idle peers, and for peers that come later. Nobody can take credit back from a peer, which may
 * be stopped, slow or hostile. So credit lapses here instead: its buffers go to others. A packet
 * that comes on lapsed credit is taken if there is a buffer. Otherwise it is dropped, as a network
 * would, and sent again. Credit lapses only while some endpoint wants more than there is for it.
 * Credit above a share lapses after a few looks. All credit of a peer lapses that uses nothing for
 * longer; such a peer has no share until it uses something. So nobody waits for such a peer,
 * however long its time-out is.
 *
 * An endpoint that wants buffers must be granted some in each turn until it has them, whatever else
 * it does. share_grant() counts it.
 */
#include "packet/pkt.h"
#include "packet/share.h"

#define SHARE_LOOK_NS 1000000 /* between looks at the holders of a pool that is short */
#define SHARE_LOOKS   2	      /* endpoints that a turn looks at */
#define SHARE_OVER    4	      /* looks at a peer that may hold more than its share */
#define SHARE_QUIET   20      /* looks at a peer that may use nothing of its credit */

/* Divide once, for all turns of the core. */
void share_open(struct link_pkt *l)
{
	const struct gx_port_caps *caps = &l->port->caps;
	uint32_t all = caps->rx_slots - GX_MAX(caps->rx_slots / 4, pkt_margin(caps));

	l->share.of[0] = caps->rx_slots;
	for (uint32_t n = 1; n <= GX_PEERS_MAX; n++)
		l->share.of[n] = GX_MAX(all / n, 1u);
}

/* Credit of @e for which buffers are kept. */
static uint32_t share_kept(const struct pkt_ep *e)
{
	return flow_granted(e->flow) - e->share.lapsed;
}

/* Buffers that an ep may hold. A lone endpoint leaves none to others. */
static uint32_t share_of(const struct link_pkt *l)
{
	return l->nr_live > 1 ? l->share.of[l->share.nr_want] : l->port->caps.rx_slots;
}

/* Buffers that no peer holds or was granted. */
static uint32_t share_free(const struct link_pkt *l)
{
	const struct gx_port_caps *caps = &l->port->caps;

	return caps->rx_slots -
	       GX_MIN(caps->rx_slots, l->pool_out + l->held_bufs + pkt_margin(caps));
}

/* Out of line, so that endpoints with buffers of their own pay nothing for it. */
static __attribute__((noinline)) bool share_take_shared(struct pkt_ep *e)
{
	struct link_pkt *l = e->link;
	uint32_t kept = share_kept(e);

	e->share.silent = false;
	if (gx_likely(kept)) {
		l->pool_out--;
	} else {
		/* A limited peer needs credit, be it lapsed. */
		if (gx_unlikely(core_credit_max(&e->ep) != UINT32_MAX) && !e->lossless &&
		    !flow_granted(e->flow))
			return false;
		/* No buffer is kept for this packet. */
		if (!e->lossless && l->held_bufs >= l->port->caps.rx_slots / 2 && !share_free(l))
			return false;
		e->share.lapsed -= e->share.lapsed > 0;
	}
	flow_grant_used(e->flow, 1);
	return true;
}

bool share_take(struct pkt_ep *e)
{
	if (e->share.on)
		return share_take_shared(e);
	flow_grant_used(e->flow, 1);
	return true;
}

void share_used(struct pkt_ep *e, uint64_t n)
{
	uint32_t had = flow_granted(e->flow);
	uint32_t used = GX_MIN(n, had);
	uint32_t kept = GX_MIN(used, had - e->share.lapsed);

	flow_grant_used(e->flow, used);
	if (!e->share.on)
		return;
	e->link->pool_out -= kept;
	e->share.lapsed -= used - kept;
	e->share.silent = false;
}

void share_refunded(struct pkt_ep *e, uint64_t n)
{
	uint32_t used = GX_MIN(n, flow_granted(e->flow));
	uint32_t lapsed = GX_MIN(used, e->share.lapsed);

	flow_grant_used(e->flow, used);
	if (!e->share.on)
		return;
	e->share.lapsed -= lapsed;
	e->link->pool_out -= used - lapsed;
	e->share.silent = false;
	e->share.most = 0;
}

static void share_want(struct pkt_ep *e)
{
	struct link_pkt *l = e->link;
	bool wants = e->rx.need_pkts && !e->share.silent;

	if (wants != e->share.wants) {
		e->share.wants = wants;
		l->share.nr_want += wants ? 1 : -1;
	}
	if (!wants && l->share.first == e)
		l->share.first = NULL;
}

/* Packets for which an ep wants buffers: those that its peer has declared; and as many as it has
 * declared before, up to an equal part of the pool, until it gives credit back. Then the next
 * messages need not wait for credit, which takes a round trip. */
static uint32_t share_need(struct pkt_ep *e)
{
	const struct link_pkt *l = e->link;
	uint32_t need = (uint32_t)GX_MIN(e->rx.need_pkts, 1ull << 30);

	if (!e->share.wants)
		return 0;
	e->share.most = GX_MAX(e->share.most, need);
	return GX_MAX(need, GX_MIN(e->share.most, l->share.of[l->nr_live]));
}

void share_grant(struct pkt_ep *e)
{
	struct link_pkt *l = e->link;
	uint32_t kept = share_kept(e), before = flow_granted(e->flow);
	uint32_t aim, least, free, grew, again, share;

	share_want(e);
	/* Besides it has its first credit, which is all that a silent peer keeps. */
	aim = share_need(e) + e->credit0;
	if (aim <= kept)
		return;
	aim = GX_MIN(aim, core_credit_max(&e->ep));
	share = share_of(l);
	share -= GX_MIN(share, e->rx.held_bufs);
	free = share_free(l);
	if (gx_unlikely(l->share.first &&
			l->share.first != e)) /* the next free buffers are for that one */
		free -= GX_MIN(free, (uint32_t)PKT_CREDIT0);
	least = GX_MIN(share, kept + free);
	if (aim > least && e->share.wants) {
		l->share.is_short = l->nr_live > 1;
		if (!kept && !free && !l->share.first)
			l->share.first = e;
	}
	aim = GX_MIN(aim, least);
	if (aim <= kept)
		return;
	if (l->share.first == e)
		l->share.first = NULL;
	again = GX_MIN(aim - kept, e->share.lapsed);
	e->share.lapsed -= again;
	grew = e->share.lapsed ? 0 : flow_grant(e->flow, aim, aim);
	l->pool_out += again + grew;
	if (grew && (before < 64 || grew >= l->port->caps.rx_slots / 8))
		flow_ack_want(e->flow);
}

static void share_lapse(struct pkt_ep *e, uint32_t keep)
{
	uint32_t kept = share_kept(e);

	keep = GX_MAX(keep, e->credit0);
	if (kept <= keep)
		return;
	e->share.lapsed += kept - keep;
	e->link->pool_out -= kept - keep;
	gx_stat_add(&e->link->core->loop.stats, GX_STAT_CREDIT_LAPSED, kept - keep);
}

static void share_look_at(struct pkt_ep *e, uint32_t share)
{
	uint32_t kept = share_kept(e), used = flow_used(e->flow);

	if (used != e->share.used_seen || kept <= e->credit0)
		e->share.quiet = 0;
	else if (e->share.quiet < SHARE_QUIET)
		e->share.quiet++;
	e->share.used_seen = used;
	e->share.over = kept > share ? e->share.over + 1 : 0;
	if (e->share.quiet == SHARE_QUIET) {
		e->share.quiet = 0;
		e->share.silent = true;
		e->share.most = 0;
		share_want(e);
		share_lapse(e, 0);
	} else if (e->share.over == SHARE_OVER) {
		e->share.over = 0;
		share_lapse(e, share);
	}
}

/* Look at a few in each turn, and at each of them once in a while. */
void share_look(struct link_pkt *l, uint64_t now_ns)
{
	struct share *s = &l->share;

	s->is_short = false;
	if (s->look_at >= l->nr_live) {
		if (now_ns < s->look_ns)
			return;
		s->look_ns = now_ns + SHARE_LOOK_NS;
		s->look_at = 0;
	}
	for (unsigned i = 0; i < SHARE_LOOKS && s->look_at < l->nr_live; i++) {
		struct pkt_ep *e = l->live[s->look_at++];

		if (!e->err)
			share_look_at(e, share_of(l));
	}
}

void share_leave(struct pkt_ep *e)
{
	struct link_pkt *l = e->link;

	if (!e->share.on)
		return;
	l->pool_out -= share_kept(e);
	e->share.lapsed = flow_granted(e->flow);
	l->share.nr_want -= e->share.wants;
	e->share.wants = false;
	if (l->share.first == e)
		l->share.first = NULL;
}
