/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs link: puts and gets by an RDMA device, over the queue pairs of a lane. The packet link
 * inside the endpoint does the rest: sends, memory that the device does not know, liveness. At the
 * end the link as an object: its part of a context (the devices), of a core, of memory
 * (registrations) and of a connection. Turns and posts run on the polling core, everything
 * else on the control path.
 */
#include "verbs/link_verbs.h"
#include "verbs/verbs.h"
#include "auth/auth.h"

#include "gx_internal/link.h"
#include "packet/link_pkt.h"
#include "packet/timer.h"
#include "packet/wake.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static bool link_verbs_poll(void *link, uint64_t now_ns)
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

static bool link_verbs_asleep(const void *link)
{
	return !((const struct link_verbs *)link)->nr_live;
}

static void link_verbs_drop(void *link, struct drop *d)
{
	struct link_verbs *l = link;

	for (unsigned i = 0; i < l->nr_live && !(d->parts && d->unused); i++)
		verbs_drop(&l->live[i]->lane, d);
}

/* ---- Slots ---- */

static void verbs_ep_attach(struct gx_ep *ep)
{
	struct verbs_ep *e = verbs_of(ep);

	e->link->live[e->link->nr_live++] = e;
	ops_paths(&e->lane); /* a path may have failed while it was proven */
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

	if (op->kind > GX_OP_GET)
		return gx_link_pkt_ops.post(ep, op, route);
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
	e->is_fallback = true;
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
	verbs_paths_lane(ep->conn, ep->lane, l);
	ret = verbs_qps_open(l, conn_qps(v, ep->lane));
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

/* The fastest path has the window that was agreed. Another one has less: as many bytes as pass in
 * the same time, so the last chunks of an operation do not wait there. */
static void lane_sizes(struct verbs_lane *l, const struct verbs_conn *v,
		       const struct gx_hello_lanes *agreed)
{
	uint64_t window_b = (uint64_t)agreed->chunk_b * agreed->window;
	uint32_t best_mbps = 1;

	for (unsigned i = 0; i < l->nr_paths; i++)
		best_mbps = GX_MAX(best_mbps, v->plan.path[i].mbps);
	l->chunk_b = agreed->chunk_b;
	for (unsigned i = 0; i < l->nr_paths; i++) {
		struct verbs_path *w = &l->path[i];

		l->chunk_b = verbs_chunk_b(w->dev, &v->peer.port[w->peer], l->chunk_b);
		w->window_b = window_b * v->plan.path[i].mbps / best_mbps;
	}
}

/* verbs_conn_prove() sees the end of it. */
static int verbs_ep_connect(struct gx_ep *ep, const struct gx_hello_lane *remote)
{
	const struct gx_hello_lanes *agreed = &ep->conn->agreed;
	struct verbs_conn *v = verbs_conn_of(ep->conn);
	struct verbs_lane *l = &verbs_of(ep)->lane;

	lane_sizes(l, v, agreed);
	for (unsigned i = 0; i < l->nr_qps; i++) {
		unsigned k = i * v->nr_lanes + ep->lane;
		struct verbs_qp *q = &l->qp[i];

		verbs_qp_connect(l, q, &v->peer.port[l->path[q->path].peer], &v->side[k].own,
				 &v->peer.qp[k], false);
	}
	return gx_link_pkt_ops.ep_connect(ep, remote);
}

static void verbs_ep_free(struct gx_ep *ep)
{
	struct verbs_conn *v = verbs_conn_of(ep->conn);

	v->lane[ep->lane] = NULL;
	verbs_qps_close(&verbs_of(ep)->lane);
	gx_link_pkt_ops.ep_free(ep);
}

static const struct gx_ep_ops verbs_ep_ops = {
	.room = {.ops = VERBS_OPS, .recvs = VERBS_OPS, .gets = PKT_GETS_MAX},
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

static int link_verbs_open(struct gx_core *core, struct link_verbs **out)
{
	struct link_verbs *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->core = core;
	*out = l;
	return 0;
}

static void link_verbs_close(struct link_verbs *l)
{
	free(l);
}

/* ---- a context ---- */

/* Open the RDMA devices that the user names. Without a name there is no verbs link. */
static int verbs_ctx_open(struct gx *gx)
{
	struct verbs_rails *rails = NULL;
	int ret = 0;

	if (gx->opts.verbs->all || gx->opts.verbs->nr_rails)
		ret = verbs_rails_open(gx->opts.verbs, &rails);
	gx->link[GX_LINK_VERBS] = rails;
	gx->groups.verbs.rails = NULL; /* these belong to the caller */
	return ret;
}

static void verbs_ctx_close(struct gx *gx)
{
	verbs_rails_close(verbs_rails_of(gx));
	gx->link[GX_LINK_VERBS] = NULL;
}

static void verbs_ctx_tick(struct gx *gx)
{
	if (verbs_rails_of(gx))
		verbs_rails_events(verbs_rails_of(gx));
}

static void verbs_describe(struct gx *gx, struct gx_text *text)
{
	const struct verbs_rails *rails = verbs_rails_of(gx);
	char line[4096];

	if (rails && verbs_rails_text(rails, line, sizeof(line)) > 0)
		core_say(text, "%s\n", line);
	for (unsigned i = 0; rails && i < GX_GPUS_MAX; i++)
		if (gx->gpu[i] && verbs_rails_near_text(rails, gx->gpu[i], line, sizeof(line)))
			core_say(text, "%s\n", line);
	if (rails && (auth_serves(gx) || auth_shows(gx)))
		core_say(text, "verbs    for peers of this host alone, as there is a key: what an "
			       "RDMA device moves cannot be encrypted\n");
}

/* ---- a core ---- */

static int verbs_core_open(struct gx_core *core)
{
	struct link_verbs *l = NULL;
	int ret = verbs_rails_of(core->gx) ? link_verbs_open(core, &l) : 0;

	core->link[GX_LINK_VERBS] = l;
	return ret ? gx_fail(ret, "core %u: %s", core->index, strerror(-ret)) : 0;
}

static int verbs_core_start(struct gx_core *core)
{
	struct link_verbs *l = verbs_core(core);
	int ret;

	if (!l)
		return 0;
	ret = gx_loop_add(&core->loop, &(struct gx_poller){gx_link_verbs.name, link_verbs_poll, l,
							   link_verbs_asleep});
	if (!ret)
		ret = core_dropper_add(core, link_verbs_drop, l);
	return ret ? gx_fail(ret, "core %u: %s", core->index, strerror(-ret)) : 0;
}

static void verbs_core_close(struct gx_core *core)
{
	link_verbs_close(verbs_core(core));
}

/* ---- memory ---- */

struct reg_call {
	struct gx_mem *mem;
	struct verbs_reg *reg;
};

static int reg_run(void *arg)
{
	struct reg_call *call = arg;

	verbs_mem_keep(verbs_rails_of(call->mem->gx), call->reg);
	/* Pairs with the acquire in verbs_reg_of(): the registration is complete. */
	atomic_store_explicit(&call->mem->link[GX_LINK_VERBS], call->reg, memory_order_release);
	return 0;
}

/* Register it for our own requests. Without that, packets carry it. */
static int verbs_add(struct gx_mem *mem)
{
	struct verbs_rails *rails = verbs_rails_of(mem->gx);
	struct reg_call call = {mem, rails && mem->len ? verbs_mem_new(rails, mem) : NULL};

	if (call.reg)
		gx_uring_run_wait(mem->gx->uring, reg_run, &call);
	return 0;
}

static void *verbs_share(const struct gx_mem *mem, const char *name, unsigned access)
{
	void *shared;

	if (!verbs_reg_of(mem))
		return NULL;
	shared = verbs_mem_share(verbs_rails_of(mem->gx), mem, access);
	if (!shared)
		gx_warn("region '%s': %s", name, gx_error());
	return shared;
}

static void verbs_share_take(struct gx_mem *mem, void *ticket)
{
	verbs_mem_share_keep(verbs_reg_of(mem), ticket);
}

static void verbs_share_drop(struct gx *gx, void *ticket)
{
	verbs_mem_share_put(verbs_rails_of(gx), ticket);
}

/* A device has not ended what peers can reach of freed memory. */
static void conns_stop(struct gx *gx)
{
	for (struct gx_conn *c = gx->conns; c; c = c->next)
		if (c->link->id == GX_LINK_VERBS)
			verbs_conn_stop(c);
}

static void verbs_revoke(struct gx_mem *mem)
{
	struct verbs_rails *rails = verbs_rails_of(mem->gx);

	if (rails && verbs_mem_revoke(rails, mem))
		conns_stop(mem->gx);
}

static void verbs_gone(struct gx_mem *mem)
{
	struct verbs_rails *rails = verbs_rails_of(mem->gx);

	if (rails)
		verbs_mem_put(rails, mem);
	atomic_store_explicit(&mem->link[GX_LINK_VERBS], NULL, memory_order_relaxed);
}

static const char *verbs_holder(const struct gx *gx)
{
	return verbs_rails_of(gx) ? "the RDMA device" : NULL;
}

/* ---- a connection ---- */

_Static_assert(1 + VERBS_RAILS_B <= GX_HELLO_OFFER_MAX, "it fits into HELLO");
_Static_assert(VERBS_HELLO_MAX <= GX_HELLO_BLOB_MAX, "it fits into CONNECT and ACCEPT");

static uint32_t verbs_offer(const struct gx *gx, bool server, uint8_t *b)
{
	b[0] = 0;
	return 1 + (server ? verbs_rails_say(verbs_rails_of(gx), b + 1) : 0);
}

static int verbs_open(struct gx_conn *c, const struct gx_link_want *want)
{
	unsigned nr_qps = want->asked ? want->asked->verbs.queue_pairs : 0;

	return verbs_conn_open(c, want->nr_lanes, nr_qps, want->blob, want->blob_b);
}

static int verbs_hear(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	char text[sizeof(c->why)];
	int ret = verbs_conn_hear(c, b, len);
	unsigned left;

	if (ret)
		return ret;
	verbs_conn_text(c, text, sizeof(text));
	core_why(c->why, "%s", text);
	left = c->peer.nr_regions - verbs_nr_regions(c);
	if (left)
		core_why(c->why, "%u of the peer's %u regions by packets: not registered", left,
			 c->peer.nr_regions);
	return 0;
}

static int verbs_tick(struct gx_conn *c, uint64_t now_ns,
		      void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len))
{
	if (say && verbs_conn_lost(c))
		return -ENODEV;
	verbs_conn_tick(c, now_ns, say);
	return 0;
}

static bool verbs_fault(const struct gx_conn *c, int err, char *buf, size_t room)
{
	if (err == -ENODEV)
		verbs_conn_devices(c, buf, room);
	else if (err == -ENETUNREACH)
		verbs_conn_path(c, buf, room);
	else
		return false;
	return true;
}

/* ---- the object ---- */

static const struct gx_link_ctx_ops ctx_ops = {
	.open = verbs_ctx_open,
	.close = verbs_ctx_close,
	.tick = verbs_ctx_tick,
	.describe = verbs_describe,
};

static const struct gx_link_core_ops core_ops = {
	.open = verbs_core_open,
	.start = verbs_core_start,
	.close = verbs_core_close,
};

static const struct gx_link_mem_ops mem_ops = {
	.add = verbs_add,
	.share = verbs_share,
	.share_keep = verbs_share_take,
	.share_put = verbs_share_drop,
	.revoke = verbs_revoke,
	.gone = verbs_gone,
	.holder = verbs_holder,
};

static const struct gx_link_conn_ops conn_ops = {
	.may = verbs_offered,
	.offer = verbs_offer,
	.open = verbs_open,
	.say = verbs_conn_say,
	.hear = verbs_hear,
	.prove = verbs_conn_prove,
	.tick = verbs_tick,
	.take = verbs_conn_mend,
	.fault = verbs_fault,
	.stop = verbs_conn_stop,
	.is_over = verbs_conn_is_over,
	.close = verbs_conn_close,
	.look = pkt_conn_look,
	.path = pkt_conn_path,
};

const struct gx_link gx_link_verbs = {
	.name = "verbs",
	.id = GX_LINK_VERBS,
	.port = GX_LINK_PORT_ANY,
	.proves = true,
	.cure = "set gx_opts.verbs there",
	.ctx = &ctx_ops,
	.core = &core_ops,
	.mem = &mem_ops,
	.conn = &conn_ops,
	.ep = &verbs_ep_ops,
};
