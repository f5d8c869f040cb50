/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs link: puts and gets by an RDMA device, over the queue pairs of a lane. The packet link
 * inside the endpoint does the rest: sends, memory that the device does not know, liveness. The
 * bytes of long sends go over the queue pairs, too (verbs_pull.c).
 * ep_open, connect and free run on the control path, everything else on the polling core.
 */
#include "verbs/link_verbs.h"

#include "gx_internal/link.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

/* owner: core */
struct link_verbs {
	struct gx_core *core;
	struct verbs_ep *live[GX_PEERS_MAX];
	unsigned nr_live;
};

static struct verbs_ep *verbs_of(struct gx_ep *ep)
{
	return GX_CONTAINER_OF(ep, struct verbs_ep, pkt.ep);
}

/* ---- A turn ---- */

/* The device answers for the peer's memory, so a put does not need the peer's core. While the ep is
 * used, the packet link asks whether that core lives: by its timers, for which it has to be awake
 * when that begins, and no longer. */
static void ep_ask(struct verbs_ep *e, uint64_t now_ns)
{
	bool asked = e->pkt.want_peer;

	if (e->used)
		e->used_ns = now_ns;
	e->pkt.want_peer = e->used || e->lane.nr_ops ||
			   (e->pkt.want_peer && e->pkt.timer.heard_ns < e->used_ns);
	if (e->pkt.want_peer && !asked)
		ep_touch(&e->pkt);
	e->used = false;
}

/* Nothing of the lane is out any more; the packet link ends the ep. */
static void ep_leave(struct link_verbs *l, unsigned i)
{
	struct verbs_ep *e = l->live[i];

	l->live[i] = l->live[--l->nr_live];
	gx_link_pkt_ops.ep_fail(&e->pkt.ep, e->lane.fail_err); /* then ctl may free the ep */
}

bool link_verbs_poll(void *link, uint64_t now_ns)
{
	struct link_verbs *l = link;
	bool worked = false;

	l->core->now_ns = now_ns;
	core_mine(l->core);
	if (gx_unlikely(core_drop_due(l->core)))
		core_drop(l->core);
	for (unsigned i = l->nr_live; i-- > 0;) {
		struct verbs_ep *e = l->live[i];

		worked |= verbs_lane_turn(&e->lane, now_ns);
		if (e->used || e->pkt.want_peer)
			ep_ask(e, now_ns);
		if (e->lane.fail_err && verbs_lane_is_quiet(&e->lane))
			ep_leave(l, i);
	}
	return worked;
}

bool link_verbs_asleep(const void *link)
{
	return !((const struct link_verbs *)link)->nr_live;
}

void link_verbs_drop(void *link, struct drop *d)
{
	struct link_verbs *l = link;

	for (unsigned i = 0; i < l->nr_live; i++)
		verbs_drop(&l->live[i]->lane, d);
}

/* ---- Slots ---- */

static void verbs_ep_attach(struct gx_ep *ep)
{
	struct verbs_ep *e = verbs_of(ep);

	e->link->live[e->link->nr_live++] = e;
	ops_ways(&e->lane); /* a way may have failed while it was proven */
	gx_link_pkt_ops.ep_attach(ep);
}

static void verbs_ep_fail(struct gx_ep *ep, int err)
{
	verbs_lane_fail(&verbs_of(ep)->lane, err); /* the next turns let it go */
}

static int verbs_ep_post(struct gx_ep *ep, const struct gx_op *op, struct gx_route *route)
{
	struct verbs_ep *e = verbs_of(ep);
	int ret;

	if (op->kind > GX_OP_GET) {
		ret = gx_link_pkt_ops.post(ep, op, route);
		if (!ret && verbs_pull_misses(e, op))
			gx_stat_add(&ep->core->loop.stats, GX_STAT_VERBS_MISSES, 1);
		return ret;
	}
	ret = verbs_post(&e->lane, op, route);
	if (ret == -EOPNOTSUPP) {
		gx_stat_add(&ep->core->loop.stats, GX_STAT_VERBS_MISSES, 1);
		return gx_link_pkt_ops.post(ep, op, route);
	}
	e->used |= !ret;
	return ret;
}

static void verbs_ep_kick(struct gx_ep *ep)
{
	struct verbs_ep *e = verbs_of(ep);

	verbs_lane_kick(&e->lane);
	if (e->pkt.tx.wait_head != PKT_NONE || e->pkt.rec.queued)
		gx_link_pkt_ops.kick(ep);
}

static int verbs_ep_cancel(struct gx_ep *ep, uint64_t user, const struct gx_route *route)
{
	return verbs_cancel(&verbs_of(ep)->lane, user, route) +
	       gx_link_pkt_ops.cancel(ep, user, route);
}

/* ---- Control path ---- */

static struct gx_ep *verbs_ep_new(void)
{
	struct pkt_ep *e = pkt_ep_alloc(sizeof(struct verbs_ep));

	_Static_assert(offsetof(struct verbs_ep, pkt) == 0, "the packet link frees it");
	if (!e)
		return NULL;
	e->beside = true;
	return &e->ep;
}

static int verbs_ep_open(struct gx_ep *ep, struct gx_hello_lane *local)
{
	struct verbs_conn *v = verbs_conn_of(ep->conn);
	struct verbs_ep *e = verbs_of(ep);
	struct verbs_lane *l = &e->lane;
	int ret;

	e->link = verbs_core(ep->core);
	l->core = ep->core;
	l->ep = ep;
	l->region = v->region;
	conn_lane_ways(ep->conn, ep->lane, l);
	ret = verbs_lane_open(l, conn_qps(v, ep->lane));
	if (ret)
		return ret;
	v->lane[ep->lane] = l;
	for (unsigned i = 0; i < l->nr_qps; i++) {
		struct verbs_side *s = &v->side[i * v->nr_lanes + ep->lane];

		ret = verbs_qp_reset(l, &l->qp[i], &s->own);
		if (ret)
			return gx_fail(ret, "%s does not set a queue pair up: error %d",
				       qp_dev(l, &l->qp[i])->name, -ret);
	}
	return gx_link_pkt_ops.ep_open(ep, local);
}

/* The fastest way has the window that was agreed. Another one has less: as many bytes as pass in the
 * same time, so the last chunks of an operation do not wait there. */
static void lane_sizes(struct verbs_lane *l, const struct verbs_conn *v,
		       const struct gx_hello_lanes *agreed)
{
	uint64_t window_b = (uint64_t)agreed->chunk_b * agreed->window;
	uint32_t best_mbps = 1;

	for (unsigned i = 0; i < l->nr_ways; i++)
		best_mbps = GX_MAX(best_mbps, v->plan.way[i].mbps);
	l->chunk_b = agreed->chunk_b;
	for (unsigned i = 0; i < l->nr_ways; i++) {
		struct verbs_way *w = &l->way[i];

		l->chunk_b = verbs_chunk_b(w->dev, &v->peer.port[w->peer], l->chunk_b);
		w->window_b = window_b * v->plan.way[i].mbps / best_mbps;
	}
}

/* verbs_conn_prove() sees the end of it. */
static int verbs_ep_connect(struct gx_ep *ep, const struct gx_hello_lane *remote)
{
	const struct gx_hello_lanes *agreed = &ep->conn->agreed;
	struct verbs_conn *v = verbs_conn_of(ep->conn);
	struct verbs_lane *l = &verbs_of(ep)->lane;

	verbs_pull_ep(verbs_of(ep));
	lane_sizes(l, v, agreed);
	for (unsigned i = 0; i < l->nr_qps; i++) {
		unsigned k = i * v->nr_lanes + ep->lane;
		struct verbs_qp *q = &l->qp[i];

		verbs_qp_connect(l, q, &v->peer.port[l->way[q->way].peer], &v->side[k].own,
				 &v->peer.qp[k], false);
	}
	return gx_link_pkt_ops.ep_connect(ep, remote);
}

static void verbs_ep_free(struct gx_ep *ep)
{
	struct verbs_conn *v = verbs_conn_of(ep->conn);

	v->lane[ep->lane] = NULL;
	verbs_lane_close(&verbs_of(ep)->lane);
	gx_link_pkt_ops.ep_free(ep);
}

const struct gx_ep_ops gx_link_verbs_ops = {
	.room = {.ops = VERBS_OPS - VERBS_PULLS,
		 .recvs = VERBS_OPS - VERBS_PULLS,
		 .gets = PKT_GETS_MAX},
	.ep_new = verbs_ep_new,
	.ep_open = verbs_ep_open,
	.ep_connect = verbs_ep_connect,
	.ep_free = verbs_ep_free,
	.ep_attach = verbs_ep_attach,
	.ep_fail = verbs_ep_fail,
	.post = verbs_ep_post,
	.kick = verbs_ep_kick,
	.cancel = verbs_ep_cancel,
};

int link_verbs_open(struct gx_core *core, struct link_verbs **out)
{
	struct link_verbs *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->core = core;
	*out = l;
	return 0;
}

void link_verbs_close(struct link_verbs *l)
{
	free(l);
}
