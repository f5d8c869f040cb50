/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths of a connection: chosen when it is made, and watched while it is up. One that fails
 * leaves its work to the others, and is tried again in the background; the connection ends when a
 * lane has none left. Control thread.
 */
#include "verbs/link_verbs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NODES_MAX 64
#define CONN_PATIENCE                                                                              \
	4 /* peer time-outs until one that is not made anew ends its path, or the connection */

/* ---- The plan ---- */

static bool dev_serves(const struct verbs_dev *dev)
{
	return !dev->failed && !dev->no_gid && !(dev->has_others && dev->port_down);
}

/* The NUMA node of a lane's core. -1: not known, or the core is not pinned. */
static int core_node(const struct gx *gx, unsigned core)
{
	char name[96];

	for (int node = 0; gx->cpus[core] >= 0 && node < NODES_MAX; node++) {
		snprintf(name, sizeof(name), "/sys/devices/system/cpu/cpu%d/node%d", gx->cpus[core],
			 node);
		if (!access(name, F_OK))
			return node;
	}
	return -1;
}

/* The paths whose device is of another node than the core of lane @i, as bits. */
static uint32_t lane_far(const struct gx *gx, unsigned i, const struct verbs_plan *p)
{
	int node = core_node(gx, i);
	uint32_t far = 0;

	for (unsigned w = 0; w < p->nr_paths && node >= 0; w++) {
		int own = verbs_rails_of(gx)->dev[p->path[w].own]->place.numa;

		far |= (uint32_t)(own >= 0 && own != node) << w;
	}
	return far;
}

/* Return: 0; -errno with gx_error(), which says why the last pair that was looked at has no path. */
static int plan_paths(struct verbs_plan *p, const struct verbs_rails *rails,
		      const struct verbs_port port[], unsigned nr_ports)
{
	struct verbs_plan_in in = {.nr_own = rails->nr, .nr_peer = nr_ports};
	int ret =
		gx_fail(-ENODEV, "no port of the RDMA devices of this end, or of the peer, is up");

	for (unsigned k = 0; k < nr_ports; k++)
		in.peer_mbps[k] = port[k].speed_mbps;
	for (unsigned i = 0; i < rails->nr; i++) {
		const struct verbs_dev *dev = rails->dev[i];

		in.own_mbps[i] = dev_serves(dev) ? dev->speed_mbps : 0;
		for (unsigned k = 0; k < nr_ports; k++) {
			int err = in.own_mbps[i] && in.peer_mbps[k]
					  ? verbs_path_check(dev, &port[k])
					  : -ENODEV;

			if (!err)
				in.near[i][k] = 1 + verbs_path_near(dev, &port[k]);
			else if (in.own_mbps[i] && in.peer_mbps[k])
				ret = err;
		}
	}
	verbs_plan_paths(&in, p);
	return p->nr_paths ? 0 : ret;
}

/* The client decides, by what the server says in its HELLO. */
static int plan_make(struct gx_conn *c, unsigned nr_lanes, unsigned nr_qps)
{
	const struct verbs_rails *rails = verbs_rails_of(c->gx);
	struct verbs_port port[VERBS_RAILS_MAX];
	uint32_t far[GX_HELLO_LANES] = {0};
	struct verbs_conn *v = verbs_conn_of(c);
	int n = verbs_offer_ports(c, port), ret;

	if (n < 0)
		return gx_fail(n, "malformed description of the server's RDMA devices");
	ret = plan_paths(&v->plan, rails, port, (unsigned)n);
	if (ret)
		return ret;
	for (unsigned i = 0; i < nr_lanes; i++)
		far[i] = lane_far(c->gx, i, &v->plan);
	verbs_plan_qps(&v->plan, nr_lanes, nr_qps, far);
	return 0;
}

/* @own, @peer: of this end. Return: the path, -EPROTO: there are too many. */
static int plan_path(struct verbs_plan *p, uint8_t own, uint8_t peer)
{
	unsigned w = 0;

	while (w < p->nr_paths && (p->path[w].own != own || p->path[w].peer != peer))
		w++;
	if (w == VERBS_PATHS_MAX)
		return -EPROTO;
	if (w == p->nr_paths)
		p->path[p->nr_paths++] = (struct verbs_plan_path){own, peer, 1};
	return (int)w;
}

static void plan_speeds(struct gx_conn *c, const struct verbs_hello *h)
{
	struct verbs_plan *p = &verbs_conn_of(c)->plan;

	for (unsigned w = 0; w < p->nr_paths; w++)
		p->path[w].mbps =
			GX_MAX(GX_MIN(verbs_rails_of(c->gx)->dev[p->path[w].own]->speed_mbps,
				      h->port[p->path[w].peer].speed_mbps),
			       1u);
}

/* What the client has decided: at the server. */
static int plan_take(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	struct verbs_conn *v = verbs_conn_of(c);
	const struct verbs_rails *rails = verbs_rails_of(c->gx);
	struct verbs_hello *h = &v->peer;

	if (verbs_hello_get(b, len, h))
		return gx_fail(-EPROTO, "malformed description of the client's RDMA devices");
	v->plan.nr_qps = h->nr_qps;
	for (uint32_t k = 0; k < h->nr_qps; k++) {
		uint8_t own = h->peer[k];
		int path = own < rails->nr ? plan_path(&v->plan, own, h->own[k]) : -EPROTO;

		if (path < 0)
			return gx_fail(path, "the client names an RDMA device that is none");
		if (rails->dev[own]->failed)
			return gx_fail(-ENODEV, "%s has failed, or is gone", rails->dev[own]->name);
		if (rails->dev[own]->no_gid)
			return gx_fail(-ENODEV,
				       "%s has lost its GID: give its interface an address",
				       rails->dev[own]->name);
		v->plan.qp_path[k] = (uint8_t)path;
	}
	plan_speeds(c, h);
	return 0;
}

int verbs_paths_plan(struct gx_conn *c, unsigned nr_lanes, unsigned nr_qps, const uint8_t *b,
		     uint32_t len)
{
	int ret = b ? plan_take(c, b, len) : plan_make(c, nr_lanes, nr_qps);

	for (unsigned k = 0; !ret && k < VERBS_QPS_MAX; k++)
		verbs_conn_of(c)->side[k].path = verbs_conn_of(c)->plan.qp_path[k];
	return ret;
}

void verbs_paths_lane(const struct gx_conn *c, unsigned i, struct verbs_lane *l)
{
	const struct verbs_conn *v = verbs_conn_of(c);

	l->nr_paths = v->plan.nr_paths;
	for (unsigned w = 0; w < l->nr_paths; w++) {
		l->path[w].dev = verbs_rails_of(c->gx)->dev[v->plan.path[w].own];
		l->path[w].peer = v->plan.path[w].peer;
	}
	for (unsigned k = i; k < v->nr_qps; k += v->nr_lanes)
		l->qp_path[k / v->nr_lanes] = v->plan.qp_path[k];
}

int verbs_paths_check(const struct gx_conn *c)
{
	const struct verbs_conn *v = verbs_conn_of(c);
	const struct verbs_hello *h = &v->peer;
	int ret = 0;

	if (h->nr_qps != v->nr_qps)
		return gx_fail(-EPROTO, "malformed numbers of queue pairs");
	for (uint32_t k = 0; k < h->nr_qps; k++) {
		const struct verbs_plan_path *w = &v->plan.path[v->plan.qp_path[k]];

		if (h->own[k] != w->peer || h->peer[k] != w->own)
			return gx_fail(-EPROTO, "queue pair %u is between other RDMA devices", k);
	}
	for (unsigned w = 0; w < v->plan.nr_paths && !ret; w++)
		ret = v->plan.path[w].peer < h->nr_ports
			      ? verbs_path_check(verbs_rails_of(c->gx)->dev[v->plan.path[w].own],
						 &h->port[v->plan.path[w].peer])
			      : gx_fail(-EPROTO, "an RDMA device that the peer does not have");
	return ret;
}

/* ---- Addresses ---- */

/*
 * Paths whose port has lost the address that the peer knows: its GID, or its LID on InfiniBand. Their
 * queue pairs end at once, and are held until it is back, maybe at another place of the table. So
 * other paths carry the connection, or it ends with the patience of any path that is cut. New
 * connections take the address that there is (verbs_dev.c).
 */

static struct verbs_dev *path_dev(const struct gx_conn *c, unsigned w)
{
	return verbs_rails_of(c->gx)->dev[verbs_conn_of(c)->plan.path[w].own];
}

static void lanes_set(struct verbs_conn *v, unsigned w, bool addr_lost, int gid_index)
{
	for (unsigned i = 0; i < v->nr_lanes; i++) {
		if (!v->lane[i])
			continue;
		v->lane[i]->path[w].addr_lost = addr_lost;
		v->lane[i]->path[w].gid_index = gid_index;
	}
	v->addr_lost = addr_lost ? v->addr_lost | 1u << w : v->addr_lost & ~(1u << w);
}

void verbs_paths_said(const struct gx_conn *c)
{
	struct verbs_conn *v = verbs_conn_of(c);

	for (unsigned w = 0; w < v->plan.nr_paths; w++) {
		const struct verbs_dev *dev = path_dev(c, w);

		verbs_port_fill(dev, &v->said[w]);
		v->said_gen[w] = dev->address_gen;
		lanes_set(v, w, false, dev->gid_index);
	}
}

static void path_say(const struct gx_conn *c, unsigned w, bool addr_lost)
{
	const struct verbs_port *said = &verbs_conn_of(c)->said[w];
	char gid[VERBS_GID_TEXT_MAX], lid[48] = "";

	if (!said->is_ethernet)
		snprintf(lid, sizeof(lid), "LID %u, or ", said->lid);
	gx_warn("peer %s: %s port %u has %s %sGID %s%s", c->peer_name, path_dev(c, w)->name,
		path_dev(c, w)->port, addr_lost ? "no longer" : "again", lid,
		verbs_gid_text(said->gid, gid),
		!addr_lost ? ""
		: verbs_conn_of(c)->plan.nr_paths == 1
			? ": the connection ends unless it comes back soon"
			: ": other paths go on");
}

static void conn_addresses_watch(struct gx_conn *c)
{
	struct verbs_conn *v = verbs_conn_of(c);

	for (unsigned w = 0; w < v->plan.nr_paths; w++) {
		const struct verbs_dev *dev = path_dev(c, w);
		const struct verbs_port *said = &v->said[w];
		bool by_gid = said->is_ethernet || said->wants_grh ||
			      v->peer.port[v->plan.path[w].peer].wants_grh;
		bool addr_lost, was = v->addr_lost >> w & 1;
		int index = dev->gid_index;

		if (v->said_gen[w] == dev->address_gen)
			continue;
		v->said_gen[w] = dev->address_gen;
		addr_lost = !verbs_dev_has(dev, said, by_gid, &index);
		lanes_set(v, w, addr_lost, index);
		if (addr_lost != was)
			path_say(c, w, addr_lost);
	}
}

/* ---- While it is up ---- */

static void lane_fault(struct verbs_lane *l, int err)
{
	atomic_store_explicit(&l->ep->fault, err, memory_order_release);
}

/* Is there no use in waiting for its queue pairs? */
static bool path_is_gone(const struct verbs_path *w)
{
	return w->dev->removed || atomic_load_explicit(&w->broken, memory_order_relaxed);
}

static uint64_t patience_ns(const struct gx_conn *c)
{
	return CONN_PATIENCE * c->agreed.peer_timeout_ns;
}

/* Is this life in error for so long that the device will not flush it? */
static bool side_is_stuck(const struct gx_conn *c, const struct verbs_qp *q, struct verbs_side *s,
			  uint64_t now_ns)
{
	if (qp_state(q) != VERBS_QP_FAILED && !q->sick) {
		s->stuck_ns = 0;
		return false;
	}
	if (!s->stuck_ns || s->stuck_gen != q->gen)
		s->stuck_ns = now_ns;
	s->stuck_gen = q->gen;
	return now_ns - s->stuck_ns > patience_ns(c);
}

/* A device that does not flush it, a peer that does not reset its end, or a path that is cut would
 * hold operations for ever, and their memory. A core that its program pauses is no reason. */
static void side_watch(const struct gx_conn *c, struct verbs_lane *l, struct verbs_qp *q,
		       struct verbs_side *s, uint64_t now_ns)
{
	bool has_other = verbs_mend_has_other(l, q->path), addr_lost = l->path[q->path].addr_lost,
	     late;
	bool stuck = side_is_stuck(c, q, s, now_ns);
	int state = qp_state(q);

	if (state == VERBS_QP_UP && (addr_lost || (has_other && qp_dev(l, q)->port_down)))
		verbs_qp_error(l, q); /* at once: it would try in vain for a second */
	if (state == VERBS_QP_UP && !q->sick && !path_is_gone(&l->path[q->path])) {
		s->down_ns = s->vain = 0;
		return;
	}
	s->down_ns = s->down_ns ? s->down_ns : now_ns;
	/* The end whose port has lost its address knows why: it gives up one time-out before the
	 * peer. */
	late = now_ns - s->down_ns + (addr_lost ? c->agreed.peer_timeout_ns : 0) > patience_ns(c);
	if (late && (!has_other || state == VERBS_QP_DEAD)) /* dead: the peer does not answer */
		/* READY: connected, and its proof has no answer yet, not even that there is none. */
		lane_fault(l, s->vain || addr_lost || state == VERBS_QP_READY ? -ENETUNREACH
									      : -ENODEV);
	else if (has_other && (stuck || path_is_gone(&l->path[q->path])))
		atomic_store_explicit(&q->quit, true, memory_order_relaxed);
}

/* The paths that carry something, or may soon, as bits. */
static uint32_t lane_hopes(const struct gx_conn *c, struct verbs_lane *l, unsigned lane,
			   uint64_t now_ns)
{
	const struct verbs_conn *v = verbs_conn_of(c);
	uint32_t hopes = 0;

	for (unsigned i = 0; i < l->nr_qps; i++) {
		const struct verbs_side *s = &v->side[i * v->nr_lanes + lane];
		bool late = s->down_ns && now_ns - s->down_ns > patience_ns(c);

		if (qp_state(&l->qp[i]) != VERBS_QP_DEAD && !late &&
		    !path_is_gone(&l->path[l->qp[i].path]))
			hopes |= 1u << l->qp[i].path;
	}
	return hopes;
}

static void paths_say(struct gx_conn *c, uint32_t lost)
{
	struct verbs_conn *v = verbs_conn_of(c);

	for (unsigned w = 0; w < v->plan.nr_paths; w++) {
		if (!((lost ^ v->lost) >> w & 1))
			continue;
		gx_warn("peer %s: the path by %s %s", c->peer_name,
			verbs_rails_of(c->gx)->dev[v->plan.path[w].own]->name,
			!(lost >> w & 1) ? "works again"
			: conn_hole_b(c, w)
				? "carries small packets alone (is its MTU that of the ports?): "
				  "others go on"
				: "carries nothing any more: others go on");
	}
	v->lost = lost;
}

void verbs_paths_watch(struct gx_conn *c, uint64_t now_ns)
{
	struct verbs_conn *v = verbs_conn_of(c);
	uint32_t all = (1u << v->plan.nr_paths) - 1, hopes = 0;

	conn_addresses_watch(c);
	for (unsigned k = 0; k < v->nr_qps; k++) {
		struct verbs_lane *l = v->lane[k % v->nr_lanes];
		struct verbs_qp *q = l ? &l->qp[k / v->nr_lanes] : NULL;

		/* Of a dead one, the peer has to say that it ended its own. */
		if (q && (qp_state(q) != VERBS_QP_DEAD || !v->side[k].peer_gone))
			side_watch(c, l, q, &v->side[k], now_ns);
	}
	if (v->plan.nr_paths == 1)
		return;
	for (unsigned i = 0; i < v->nr_lanes; i++) {
		uint32_t own = v->lane[i] ? lane_hopes(c, v->lane[i], i, now_ns) : all;

		hopes |= own;
		if (v->lane[i])
			atomic_store_explicit(&v->lane[i]->lost, all & ~own, memory_order_relaxed);
		if (!own)
			lane_fault(v->lane[i], -ENETUNREACH);
	}
	paths_say(c, all & ~hopes);
}
