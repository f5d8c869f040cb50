/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Long sends over queue pairs. The packet link announces the message (packet/pull.c): the sender's
 * OPEN has address and key of its registered memory. The receiver's lane reads it from there to its
 * place, as it reads a get. The packet link does all else: matching, order, deadlines, `done`. Runs
 * on the polling core, but for verbs_pull_over().
 */
#include "verbs/link_verbs.h"

#include <errno.h>

static struct verbs_ep *verbs_of(struct pkt_ep *e)
{
	return GX_CONTAINER_OF(e, struct verbs_ep, pkt);
}

static const struct verbs_reg *reg_of(const struct gx_mem *mem)
{
	/* Pairs with the release in control/region.c: the registration is complete. */
	return mem ? atomic_load_explicit(&mem->link[GX_LINK_VERBS], memory_order_acquire) : NULL;
}

/* All ways of the lane that have queue pairs must have it, since neither end knows which ones the
 * other would take. */
static const struct gx_wire_keys *mem_keys(const struct pkt_ep *e, const struct gx_mem *mem)
{
	const struct verbs_lane *l = &GX_CONTAINER_OF(e, const struct verbs_ep, pkt)->lane;
	const struct verbs_reg *reg = reg_of(mem);

	for (unsigned i = 0; reg && i < l->nr_ways; i++)
		if (l->way[i].cq && !(reg->lent.rails >> l->way[i].dev->rail & 1))
			return NULL;
	return reg ? &reg->lent : NULL;
}

static bool msg_begin(struct pkt_ep *e, const struct in_msg *m)
{
	const struct verbs_pull p = {.place = m->mid % GX_WIRE_MIDS,
				     .rkey = m->keys.key,
				     .theirs = m->from,
				     .len = m->len,
				     .mine = m->dst,
				     .mem = m->mem,
				     .lkey = reg_of(m->mem)->lkey};

	return verbs_pull(&verbs_of(e)->lane, &p);
}

static void msg_stop(struct pkt_ep *e, const struct in_msg *m)
{
	verbs_pull_stop(&verbs_of(e)->lane, m->mid % GX_WIRE_MIDS);
}

static void lane_pull_ended(struct gx_ep *ep, uint32_t place, int status)
{
	struct verbs_ep *e = verbs_of(GX_CONTAINER_OF(ep, struct pkt_ep, ep));

	pull_ended(&e->pkt, place, e->lane.fail_err ? -ENOTCONN : status);
}

static const struct pull_qps pull_qps = {
	.keys = mem_keys,
	.begin = msg_begin,
	.stop = msg_stop,
};

_Static_assert(GX_WIRE_RAILS_MAX == VERBS_RAILS_MAX, "a key for each rail");

uint64_t verbs_pull_over(const struct gx_conn *c)
{
	if (!verbs_conn_of(c) || !verbs_lends(&c->gx->opts) || !verbs_offer_lends(c))
		return 0;
	return c->gx->opts.host->pull_over_b;
}

void verbs_pull_ep(struct verbs_ep *e)
{
	struct pull *p = &e->pkt.pull;

	e->lane.pull_ended = lane_pull_ended;
	p->over_b = verbs_pull_over(e->pkt.ep.conn);
	p->qps = p->over_b ? &pull_qps : NULL;
}

bool verbs_pull_misses(const struct verbs_ep *e, const struct gx_op *op)
{
	return e->pkt.pull.qps && op->len > e->pkt.pull.over_b && !mem_keys(&e->pkt, op->mem);
}
