/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the random load leaves: nothing may be out of an endpoint, a core, a port.
 */
#include "sim/all.h"

#include "list/list.h"
#include "packet/link_pkt.h"
#include "packet/make.h"
#include "packet/op.h"
#include "packet/wake.h"

#include <string.h>

static struct pkt_ep *lane_of(const struct alink *l, int side, unsigned lane)
{
	return GX_CONTAINER_OF(link_ep(l, side, lane), struct pkt_ep, ep);
}

/* What is still out; NULL: nothing. */
static const char *ep_out(const struct pkt_ep *e)
{
	if (e->tx.nr_ops)
		return "operations";
	if (e->rec.floor != e->rec.next || e->rec.queued)
		return "records";
	if (e->tx.nr_mids)
		return "messages not done";
	if (e->rx.nr_in)
		return "messages coming in";
	if (flow_outstanding(e->flow))
		return "packets not acknowledged";
	if (e->rx.held_bufs)
		return "bounce buffers in blocks";
	if (e->tx.refs)
		return "packets in the port";
	if (e->tx.resend_head != e->tx.resend_tail)
		return "resends";
	if (e->asks.head != e->asks.tail || e->asks.pkts || e->rx.nr_bad)
		return "packets asked for again";
	if (e->fetch.nr_staged || e->fetch.asked.stage.first != e->fetch.asked.stage.next ||
	    e->fetch.lost.stage.first != e->fetch.lost.stage.next)
		return "pinned buffers of a GPU's payload";
	for (unsigned i = 0; i < PIECES_USES; i++)
		if (e->pieces.used[i])
			return "messages in pieces";
	return NULL;
}

static const char *world_out(void)
{
	const char *what = NULL;

	for (unsigned i = 0; i < ALL_LINKS && !what; i++)
		for (int s = 0; s < 2; s++)
			for (unsigned k = 0; k < world->link[i].nr_lanes && !what; k++)
				if (world->link[i].state == LINK_UP &&
				    world->link[i].kind == KIND_PACKET)
					what = ep_out(lane_of(&world->link[i], s, k));
	return what;
}

bool ports_hold(unsigned node)
{
	bool held = false;

	for (unsigned k = 0; k < world->node[node].nr_cores; k++)
		for (unsigned p = 0; p < world->nr_ports; p++) {
			const struct link_pkt *l = pkt_link(gx_core(world->node[node].gx, k), p);

			held |= l->refs || (l->bq_gpu[0] && block_held(l->bq_gpu[0]));
			for (unsigned i = 0; i < l->nr_live; i++)
				held |= l->live[i]->fetch.nr_staged > 0;
		}
	return held;
}

/* The last grant has an ACK of its own, which does not go again when it is lost: each later ACK says how
 * much was granted in all. Ask for one, as the next operation would. */
static void pair_ask(struct pkt_ep *tx, const struct pkt_ep *rx)
{
	if (flow_credit(tx->flow) == flow_granted(rx->flow))
		return;
	tx->now_ns = world->now_ns;
	ep_touch(tx);
	make_probe(tx, 0, 0);
}

void rest_ask(void)
{
	for (unsigned i = 0; i < ALL_LINKS; i++) {
		struct alink *l = &world->link[i];

		for (unsigned k = 0;
		     k < l->nr_lanes && l->state == LINK_UP && l->kind == KIND_PACKET; k++)
			for (int s = 0; s < 2; s++)
				pair_ask(lane_of(l, s, k), lane_of(l, !s, k));
	}
}

/* What sockets of a script have not carried, and connections whose end is not known yet. */
static bool socks_rest(void)
{
	for (unsigned i = 0; i < ALL_LINKS; i++)
		if (world->link[i].state == LINK_UP && world->life[world->link[i].life].cut)
			return false;
	for (unsigned i = 0; i < world->nr_nodes; i++)
		for (unsigned k = 0; k < world->node[i].nr_cores; k++) {
			const struct gx_core *core = gx_core(world->node[i].gx, k);

			if (core->comps_due)
				return false;
			for (unsigned u = 1; u <= CORE_USES; u++)
				if (core->uses[u])
					return false;
		}
	return true;
}

bool rest_is(void)
{
	return !world_out() && sim_net_next(world->net) == UINT64_MAX &&
	       (world->cfg.seed < ALL_SOCKS || world->other == KIND_PACKET || socks_rest());
}

static void same(const char *what, uint64_t is, uint64_t should)
{
	if (is != should)
		wrong("at rest: %s: %llu, not %llu", what, (unsigned long long)is,
		      (unsigned long long)should);
}

static unsigned nr_ops_free(const struct pkt_ep *e)
{
	unsigned n = PKT_OPS - e->tx.ops_top; /* never used */

	for (uint32_t i = e->tx.op_free; i != PKT_NONE; i = e->ops[i].next)
		n++;
	return n;
}

static void check_tables(const struct pkt_ep *e)
{
	same("free operations", nr_ops_free(e), PKT_OPS);
	for (unsigned i = 0; i < GX_WIRE_MIDS; i++) {
		same("operation of a message out", e->out[i].op, PKT_NONE);
		same("state of a message in", e->in[i].state, IN_FREE);
	}
	for (unsigned i = 0; i < PKT_SLOTS; i++) {
		same("slot used", e->slots[i].used, false);
		same("offer used", e->offers[i].used, false);
	}
	for (unsigned i = 0; i < PKT_RECS; i++)
		same("state of a record", e->recs[i].state, REC_FREE);
	for (unsigned i = 0; i < GX_WIRE_DONE_WORDS; i++)
		same("free messages", e->tx.mids_free[i], UINT64_MAX);
	for (size_t i = 0; i < (size_t)GX_WIRE_ACTIVE * e->words_max; i++)
		same("bits of packets", e->tx.words[i] | e->rx.words[i], 0);
	same("words out", e->tx.words_free, UINT64_MAX);
	same("words in", e->rx.words_free, UINT64_MAX);
	same("offers", e->match.nr_offers, 0);
	same("gets asked for", e->match.gets_out, 0);
	same("gets waiting", e->match.gets_head, e->match.gets_tail);
	same("packets needed", e->rx.need_pkts, 0);
	same("parts of lists, puts", e->ep.list_puts, 0);
	same("parts of lists, gets", e->ep.list_gets, 0);
	same("lists", atomic_load(&e->ep.list_runs), 0);
	same("fault", (uint64_t)atomic_load(&e->ep.fault), 0);
}

static void check_pair(const struct pkt_ep *tx, const struct pkt_ep *rx)
{
	same("messages done", memcmp(tx->tx.peer_done, rx->rx.done, sizeof(tx->tx.peer_done)), 0);
	same("records", tx->rec.next, rx->rx.rsn_floor);
	same("credit", flow_credit(tx->flow), flow_granted(rx->flow));
	if (flow_granted(rx->flow) > rx->credit0)
		wrong("at rest: %u credits are out", flow_granted(rx->flow));
}

static void check_port(const struct link_pkt *l)
{
	same("held buffers", l->held_bufs, 0);
	same("packets of ours in the port", l->refs, 0);
	same("buffers to release", l->nr_release, 0);
	same("scattered", l->nr_scattered, 0);
	same("blocks", block_held(l->bq_host), 0);
	same("blocks of a GPU", l->bq_gpu[0] ? block_held(l->bq_gpu[0]) : 0, 0);
	if (!l->nr_live) /* what came for peers that are gone may lie there */
		return;
	same("free bounce buffers", sim_queue_free_bufs(l->q), l->port->caps.rx_slots);
}

static void check_core(struct gx_core *core)
{
	same("completions due", core->comps_due, 0);
	for (unsigned i = 1; i <= CORE_USES; i++)
		if (core->uses[i])
			wrong("at rest: memory %u is in use %u times", i, core->uses[i]);
	for (unsigned p = 0; p < world->nr_ports; p++)
		check_port(pkt_link(core, p));
}

void rest_check(void)
{
	const char *what = world_out();

	if (what)
		wrong("not at rest: %s", what);
	for (unsigned i = 0; i < ALL_LINKS; i++) {
		struct alink *l = &world->link[i];

		for (unsigned k = 0;
		     k < l->nr_lanes && l->state == LINK_UP && l->kind == KIND_PACKET; k++)
			for (int s = 0; s < 2; s++) {
				check_tables(lane_of(l, s, k));
				check_pair(lane_of(l, s, k), lane_of(l, !s, k));
			}
	}
	for (unsigned i = 0; i < world->nr_nodes; i++)
		for (unsigned k = 0; k < world->node[i].nr_cores; k++)
			check_core(gx_core(world->node[i].gx, k));
}
