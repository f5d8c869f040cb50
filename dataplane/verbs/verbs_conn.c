/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection's half of the verbs link: its description and the peer's, the peer's regions, and queue
 * pairs that are made anew while it is up. verbs_paths.c chooses and watches its paths. Control thread.
 */
#include "verbs/link_verbs.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROVE_SPIN_NS 500000	    /* a device answers sooner; else the next tick looks again */
#define CONN_STOP_NS  1000000000ull /* after which queue pairs that do not end are destroyed */

const char *verbs_offered(const struct gx *gx)
{
	if (!verbs_rails_of(gx))
		return "gx_opts.verbs names no device";
	for (unsigned i = 0; i < verbs_rails_of(gx)->nr; i++)
		if (!verbs_rails_of(gx)->dev[i]->failed && !verbs_rails_of(gx)->dev[i]->no_gid)
			return NULL;
	for (unsigned i = 0; i < verbs_rails_of(gx)->nr; i++)
		if (!verbs_rails_of(gx)->dev[i]->failed)
			return "its RDMA device has lost its GID: give its interface an address";
	return verbs_rails_of(gx)->nr == 1 ? "its RDMA device has failed, or is gone"
					   : "its RDMA devices have failed, or are gone";
}

/*
 * ---- Proofs ----
 *
 * Memory of a connection that the peer's devices write and read to prove its paths. A request of the
 * path's MTU shows paths that carry small packets alone: a write those towards the peer, a read those
 * back. Nobody looks at the bytes.
 */

/* The devices of the plan register it. */
static int conn_probe_open(struct gx_conn *c)
{
	struct verbs_conn *v = verbs_conn_of(c);

	v->probe = aligned_alloc(VERBS_PROBE_B, VERBS_PROBE_B);
	if (!v->probe)
		return gx_fail(-ENOMEM, "no memory for a connection");
	memset(v->probe, 0, VERBS_PROBE_B);
	for (unsigned w = 0; w < v->plan.nr_paths; w++) {
		struct verbs_dev *dev = verbs_rails_of(c->gx)->dev[v->plan.path[w].own];
		struct ibv_mr **mr = &v->probe_mr[dev->rail];

		if (!*mr)
			*mr = dev->api->reg_mr(dev->pd, v->probe, VERBS_PROBE_B,
					       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
						       IBV_ACCESS_REMOTE_READ);
		if (!*mr)
			return gx_fail(-ENOMEM,
				       "%s does not register %u bytes: %s (raise ulimit -l)",
				       dev->name, VERBS_PROBE_B, strerror(errno));
	}
	return 0;
}

static void conn_probe_close(struct gx_conn *c)
{
	struct verbs_conn *v = verbs_conn_of(c);
	struct verbs_dev *by = NULL; /* it has kept the memory */

	for (unsigned i = 0; i < VERBS_RAILS_MAX; i++) {
		struct verbs_dev *dev = v->probe_mr[i] ? verbs_rails_of(c->gx)->dev[i] : NULL;

		if (dev && verbs_end_err(dev, dev->api->dereg_mr(v->probe_mr[i])))
			by = dev;
	}
	if (by)
		verbs_dev_keep(by, v->probe);
	else
		free(v->probe);
	v->probe = NULL;
}

static void conn_probe_say(const struct gx_conn *c, struct verbs_hello *h)
{
	const struct verbs_conn *v = verbs_conn_of(c);

	h->probe_addr = (uintptr_t)v->probe;
	for (unsigned i = 0; i < h->nr_ports; i++)
		h->probe_key[i] = v->probe_mr[i] ? v->probe_mr[i]->rkey : 0;
}

/* The peer has described itself, and the lanes are open. */
static void conn_probe_hear(struct gx_conn *c)
{
	struct verbs_conn *v = verbs_conn_of(c);
	const struct verbs_hello *h = &v->peer;

	for (unsigned i = 0; i < v->nr_lanes * v->plan.nr_paths; i++) {
		unsigned lane = i / v->plan.nr_paths;
		struct verbs_path *w =
			v->lane[lane] ? &v->lane[lane]->path[i % v->plan.nr_paths] : NULL;

		if (w)
			w->probe = (struct verbs_probe){
				.mine = (uintptr_t)v->probe,
				.theirs = h->probe_addr,
				.lkey = v->probe_mr[w->dev->rail]->lkey,
				.rkey = h->probe_key[w->peer],
				.len = h->probe_key[w->peer]
					       ? 128u << verbs_path_mtu(w->dev, &h->port[w->peer])
					       : 0};
	}
}

uint32_t conn_hole_b(const struct gx_conn *c, unsigned path)
{
	const struct verbs_conn *v = verbs_conn_of(c);

	for (unsigned k = 0; k < v->nr_qps; k++) {
		const struct verbs_lane *l = v->lane[k % v->nr_lanes];
		const struct verbs_qp *q = l ? &l->qp[k / v->nr_lanes] : NULL;

		if (q && q->path == path && atomic_load_explicit(&q->holed, memory_order_relaxed))
			return l->path[path].probe.len;
	}
	return 0;
}

/* ---- Opening, and what CONNECT and ACCEPT say ---- */

int verbs_conn_open(struct gx_conn *c, unsigned nr_lanes, unsigned nr_qps, const uint8_t *b,
		    uint32_t len)
{
	struct verbs_conn *v = calloc(1, sizeof(*v));
	int ret;

	if (c->rights.limited) { /* a peer may also guess numbers of other registrations */
		free(v);
		return gx_fail(-EACCES,
			       "its key limits the client, and devices do not know rights: take "
			       "link packet");
	}
	if (!v)
		return gx_fail(-ENOMEM, "no memory for a connection");
	c->link_state = v;
	v->nr_lanes = nr_lanes;
	ret = verbs_paths_plan(c, nr_lanes, nr_qps, b, len);
	if (!ret)
		ret = conn_probe_open(c);
	if (ret)
		return ret;
	v->nr_qps = v->plan.nr_qps;
	if (v->nr_qps >= nr_lanes && v->nr_qps <= VERBS_QPS_MAX)
		return 0;
	return gx_fail(-EINVAL, "%u queue pairs: at least %u, at most %d", v->nr_qps, nr_lanes,
		       VERBS_QPS_MAX);
}

void verbs_conn_close(struct gx_conn *c)
{
	if (verbs_conn_of(c))
		conn_probe_close(c);
	free(verbs_conn_of(c));
	c->link_state = NULL;
}

/* The numbers by which the peer reaches a region. None: it goes by packets. */
static bool key_fill(const struct gx_mem *mem, struct verbs_key *key)
{
	const struct verbs_reg *first = mem ? mem->link[GX_LINK_VERBS] : NULL;

	if (!first || mem_is_dead(mem))
		return false;
	*key = (struct verbs_key){.token = mem->token, .addr = first->addr};
	for (const struct verbs_reg *r = first; r; r = r->more) {
		if (!r->shared)
			continue;
		key->rails |= 1u << r->rail;
		key->rkey[r->rail] = r->rkey;
	}
	return key->rails;
}

uint32_t verbs_conn_say(const struct gx_conn *c, uint8_t *b)
{
	const struct verbs_conn *v = verbs_conn_of(c);
	const struct verbs_rails *rails = verbs_rails_of(c->gx);
	struct verbs_hello h = {.nr_qps = v->nr_qps, .nr_ports = rails->nr};

	for (unsigned i = 0; i < h.nr_ports; i++)
		verbs_port_fill(rails->dev[i], &h.port[i]);
	for (unsigned k = 0; k < v->nr_qps; k++) {
		const struct verbs_plan_path *w = &v->plan.path[v->plan.qp_path[k]];

		h.qp[k] = v->side[k].own;
		h.own[k] = w->own;
		h.peer[k] = w->peer;
	}
	for (unsigned i = 0; i < c->nr_named; i++)
		h.nr_keys += key_fill(c->named[i], &h.key[h.nr_keys]);
	conn_probe_say(c, &h);
	verbs_paths_said(c);
	verbs_rails_unfork(rails); /* queue pairs have some */
	return verbs_hello_put(b, &h);
}

/* Which region of its HELLO is it? */
static int key_take(struct gx_conn *c, const struct verbs_key *key)
{
	struct verbs_region *at = &verbs_conn_of(c)->region[key->token % GX_REGIONS_MAX];

	for (unsigned i = 0; i < c->peer.nr_regions; i++) {
		const struct gx_hello_region *r = &c->peer.regions[i];

		if (r->token != key->token || at->access || key->addr > UINT64_MAX - r->len)
			continue;
		*at = (struct verbs_region){.token = r->token,
					    .len = r->len,
					    .addr = key->addr,
					    .rails = key->rails,
					    .access = r->access};
		memcpy(at->rkey, key->rkey, sizeof(at->rkey));
		return 0;
	}
	return -EPROTO;
}

int verbs_conn_hear(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	struct verbs_conn *v = verbs_conn_of(c);
	int ret = verbs_hello_get(b, len, &v->peer);

	if (ret)
		return gx_fail(-EPROTO, "malformed numbers of queue pairs");
	ret = verbs_paths_check(c);
	if (ret)
		return ret;
	conn_probe_hear(c);
	for (uint32_t i = 0; !ret && i < v->peer.nr_keys; i++)
		ret = key_take(c, &v->peer.key[i]);
	return ret ? gx_fail(ret, "a key for a region that the peer has not named") : 0;
}

unsigned verbs_nr_regions(const struct gx_conn *c)
{
	return verbs_conn_of(c)->peer.nr_keys;
}

/* From device to device, by the kind of address that the packets carry. */
static int path_text(const struct gx_conn *c, unsigned path, char *buf, size_t room)
{
	const struct verbs_conn *v = verbs_conn_of(c);
	const struct verbs_plan_path *w = &v->plan.path[path];
	const struct verbs_dev *dev = verbs_rails_of(c->gx)->dev[w->own];
	const struct verbs_port *port = &v->peer.port[w->peer], *said = &v->said[path];
	const char *lost = v->addr_lost >> path & 1 ? ", which its port has lost" : "";
	char own[VERBS_GID_TEXT_MAX], other[VERBS_GID_TEXT_MAX];

	if (!port->is_ethernet)
		return snprintf(buf, room, "%s (LID %u%s) to the peer's device (LID %u)", dev->name,
				said->lid, lost, port->lid);
	return snprintf(buf, room, "%s (GID %s%s) to the peer's device (GID %s)", dev->name,
			verbs_gid_text(said->gid, own), lost, verbs_gid_text(port->gid, other));
}

void verbs_conn_path(const struct gx_conn *c, char *buf, size_t room)
{
	const struct verbs_conn *v = verbs_conn_of(c);
	uint32_t hole_b = 0;
	size_t at;

	for (unsigned w = 0; w < v->plan.nr_paths && !hole_b; w++)
		hole_b = conn_hole_b(c, w);
	at = hole_b ? (size_t)snprintf(buf, room, "no packet of %u bytes gets from ", hole_b)
		    : (size_t)snprintf(buf, room, "no packet gets from ");
	for (unsigned w = 0; w < v->plan.nr_paths && at < room; w++) {
		at += (size_t)snprintf(buf + at, room - at, "%s", w ? ", nor from " : "");
		if (at < room)
			at += (size_t)path_text(c, w, buf + at, room - at);
	}
	if (at < room)
		snprintf(
			buf + at, room - at, " and back: %s",
			v->addr_lost ? "give its interface that address back, or connect anew"
			: hole_b
				? "small ones do, so the MTU of the path is below that of the ports"
			: v->peer.port[0].is_ethernet
				? "is UDP port 4791 open, and the MTU of the path that of the "
				  "ports? Or name other GIDs"
				: "are both of one subnet? Or name other devices");
}

/* Which rails carry memory of the GPUs that are open? */
static void gpus_text(const struct gx_conn *c, char *buf, size_t room)
{
	const struct verbs_rails *rails = verbs_rails_of(c->gx);
	const struct verbs_plan *p = &verbs_conn_of(c)->plan;
	uint32_t own = 0, near;
	size_t at = 0;

	for (unsigned w = 0; w < p->nr_paths; w++)
		own |= 1u << p->path[w].own;
	for (unsigned i = 0; i < GX_GPUS_MAX && at < room; i++) {
		const struct gx_gpu *gpu = c->gx->gpu[i];

		if (!gpu)
			continue;
		near = verbs_rails_near(rails, gpu, (1u << rails->nr) - 1) & own;
		at += (size_t)snprintf(buf + at, room - at, ", memory of cuda:%u by ", i);
		if (at < room)
			at += (size_t)verbs_rails_list(rails, gpu, near ? near : own, buf + at,
						       room - at);
	}
}

void verbs_conn_text(const struct gx_conn *c, char *buf, size_t room)
{
	const struct verbs_conn *v = verbs_conn_of(c);
	size_t at = 0;

	buf[0] = 0;
	for (unsigned w = 0; w < v->plan.nr_paths && at < room; w++) {
		const struct verbs_plan_path *path = &v->plan.path[w];
		unsigned n = 0;

		for (unsigned k = 0; k < v->nr_qps; k++)
			n += v->plan.qp_path[k] == w;
		at += (size_t)snprintf(buf + at, room - at, "%s%s to its rail %u: %u queue pairs",
				       w ? ", " : "", verbs_rails_of(c->gx)->dev[path->own]->name,
				       path->peer, n);
	}
	if (v->plan.nr_paths > 1 && at < room)
		gpus_text(c, buf + at, room - at);
}

void verbs_conn_devices(const struct gx_conn *c, char *buf, size_t room)
{
	const struct verbs_conn *v = verbs_conn_of(c);
	size_t at = (size_t)snprintf(
		buf, room, "%s of this end failed, or does not connect a queue pair again: ",
		v->plan.nr_paths == 1 ? "the RDMA device" : "RDMA devices");

	for (unsigned w = 0; w < v->plan.nr_paths && at < room; w++) {
		const struct verbs_dev *dev = verbs_rails_of(c->gx)->dev[v->plan.path[w].own];

		at += (size_t)snprintf(buf + at, room - at, "%s%s (%s)", w ? ", " : "", dev->name,
				       dev->removed	? "removed"
				       : dev->failed	? "failed"
				       : dev->port_down ? "its port is down"
							: "opened");
	}
}

bool verbs_conn_lost(const struct gx_conn *c)
{
	const struct verbs_conn *v = verbs_conn_of(c);

	for (unsigned w = 0; w < v->plan.nr_paths && !v->stopped_ns; w++)
		if (!verbs_rails_of(c->gx)->dev[v->plan.path[w].own]->failed)
			return false;
	return true;
}

/* ---- Connected and proved ---- */

static int conn_not_reached(const struct verbs_dev *dev, int err)
{
	return gx_fail(err,
		       "%s does not reach the peer's device: error %d: do their GIDs belong to one "
		       "network?",
		       dev->name, -err);
}

/* Have all queue pairs been connected? One whose address is not found is tried again later, if its lane
 * has another that is. Return: 1; 0: not yet; -errno with gx_error(). */
static int conn_connected(struct gx_conn *c)
{
	struct verbs_conn *v = verbs_conn_of(c);
	int err[GX_HELLO_LANES]; /* of each lane: 0: it has one */

	for (unsigned i = 0; i < v->nr_lanes; i++)
		if (verbs_qps_connect_due(v->lane[i]))
			return 0;
	for (unsigned k = 0; k < v->nr_qps; k++) {
		struct verbs_lane *l = v->lane[k % v->nr_lanes];
		struct verbs_qp *q = &l->qp[k / v->nr_lanes];
		int ret = verbs_dial_take(&q->dial), *of = &err[k % v->nr_lanes];

		*of = k < v->nr_lanes || !ret ? ret : *of;
		if (ret && l->nr_paths > 1)
			ret = verbs_mend_later(l, q, &v->side[k], ret);
		if (ret)
			return conn_not_reached(qp_dev(l, q), ret);
	}
	for (unsigned i = 0; i < v->nr_lanes; i++)
		if (err[i])
			return conn_not_reached(qp_dev(v->lane[i], v->lane[i]->qp), err[i]);
	v->connected = true;
	return 1;
}

/* Nobody answered. Any other error is one of the devices, or of the requests. */
static bool is_of_the_path(enum ibv_wc_status status)
{
	return status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_RNR_RETRY_EXC_ERR ||
	       status == IBV_WC_RESP_TIMEOUT_ERR;
}

/* The lane has no core yet: what one would do. */
static int prove_one(struct verbs_conn *v, struct verbs_lane *l, unsigned lane,
		     const struct ibv_wc *wc)
{
	unsigned i = wc->wr_id >> 56;
	struct verbs_qp *q = i < l->nr_qps ? &l->qp[i] : NULL;

	if (!q || (wc->status == IBV_WC_SUCCESS && !(wc->wr_id & VERBS_ID_MARK)))
		return -EPROTO; /* our end is not UP yet, as it knows */
	if (wc->wr_id & VERBS_ID_RECV)
		q->nr_recvs -= q->nr_recvs != 0;
	else
		q->proving -= q->proving != 0;
	if (wc->status == IBV_WC_SUCCESS) {
		q->reached = true;
		v->side[i * v->nr_lanes + lane].proven = !q->proving;
		return 0;
	}
	if (wc->wr_id & VERBS_ID_MARK)
		verbs_probe_failed(q, wc->status);
	if (wc->status != IBV_WC_WR_FLUSH_ERR) {
		v->prove_status = wc->status;
		v->prove_dev = qp_dev(l, q);
	}
	if (qp_lives(qp_state(q))) {
		atomic_store_explicit(&q->status, wc->status, memory_order_relaxed);
		qp_goto(q, qp_state(q), VERBS_QP_FAILED);
	}
	qp_try_drained(q);
	return 0;
}

/* Which answers have come? */
static int prove_poll(struct verbs_conn *v, unsigned lane)
{
	struct verbs_lane *l = v->lane[lane];
	struct ibv_wc wc[16];
	int ret = 0;

	for (unsigned w = 0; w < l->nr_paths && !ret; w++) {
		int n = l->path[w].cq ? ibv_poll_cq(l->path[w].cq, GX_ARRAY_SIZE(wc), wc) : 0;

		if (n < 0 && l->nr_paths == 1)
			return -ENODEV;
		if (n < 0)
			verbs_path_broken(l, &l->path[w]);
		for (int i = 0; i < n && !ret; i++)
			ret = prove_one(v, l, lane, &wc[i]);
	}
	return ret;
}

static int prove_begin(struct verbs_conn *v)
{
	int ret = 0;

	v->proving = true;
	for (unsigned k = 0; k < v->nr_qps && !ret; k++) {
		struct verbs_lane *l = v->lane[k % v->nr_lanes];
		struct verbs_qp *q = &l->qp[k / v->nr_lanes];

		if (qp_state(q) != VERBS_QP_UP) /* its peer's address was not found */
			continue;
		q->proving = verbs_probes(l, q);
		ret = verbs_qp_probe(l, q);
	}
	return ret;
}

/* Is nothing to be waited for? Each lane needs a path that works; one that has a single path, all
 * of its queue pairs. Return: 1: it is proven; 0: not yet; -1: it is not, and will not be. */
static int prove_state(const struct verbs_conn *v)
{
	bool works[GX_HELLO_LANES] = {false};
	unsigned nr_works = 0;

	for (unsigned k = 0; k < v->nr_qps; k++) {
		unsigned lane = k % v->nr_lanes;
		const struct verbs_lane *l = v->lane[lane];
		const struct verbs_qp *q = &l->qp[k / v->nr_lanes];
		bool failed = qp_state(q) != VERBS_QP_UP ||
			      atomic_load_explicit(&l->path[q->path].broken, memory_order_relaxed);

		if (failed && v->plan.nr_paths == 1)
			return -1;
		if (!failed && !v->side[k].proven)
			return 0;
		nr_works += !failed && !works[lane];
		works[lane] |= !failed;
	}
	return nr_works < v->nr_lanes ? -1 : 1;
}

/* Paths that did not answer are tried again in the background. */
static void prove_say(const struct gx_conn *c)
{
	const struct verbs_conn *v = verbs_conn_of(c);
	uint32_t bad = 0;
	char text[256];

	for (unsigned k = 0; k < v->nr_qps; k++)
		if (!v->side[k].proven)
			bad |= 1u << v->plan.qp_path[k];
	for (unsigned w = 0; w < v->plan.nr_paths; w++) {
		if (!(bad >> w & 1))
			continue;
		path_text(c, w, text, sizeof(text));
		gx_warn("peer %s: no packet gets from %s and back%s: others carry the connection",
			c->peer_name, text,
			conn_hole_b(c, w) ? ", but small ones: is the MTU of the path that of the "
					    "ports?"
					  : "");
	}
}

static int prove_failed(const struct gx_conn *c)
{
	const struct verbs_conn *v = verbs_conn_of(c);
	char text[256];

	if (v->prove_status && !is_of_the_path(v->prove_status))
		return gx_fail(
			-EIO, "%s: a request that proves the path to the peer's device failed: %s",
			v->prove_dev->name, v->prove_dev->api->wc_status_str(v->prove_status));
	verbs_conn_path(c, text, sizeof(text));
	return gx_fail(-ENETUNREACH, "%s", text);
}

/* Return: as verbs_conn_prove(). */
static int conn_proven(struct gx_conn *c)
{
	struct verbs_conn *v = verbs_conn_of(c);
	int ret = v->proving ? 0 : prove_begin(v), state;

	for (unsigned i = 0; i < v->nr_lanes && !ret; i++)
		ret = prove_poll(v, i);
	if (ret)
		return gx_fail(ret, "%s does not send: error %d",
			       verbs_rails_of(c->gx)->dev[v->plan.path[0].own]->name, -ret);
	state = prove_state(v);
	if (state < 0)
		return prove_failed(c);
	if (state > 0)
		prove_say(c);
	return state;
}

int verbs_conn_prove(struct gx_conn *c)
{
	struct verbs_conn *v = verbs_conn_of(c);
	/* At the first tick alone: the other connections wait meanwhile. */
	uint64_t until_ns = v->asked ? 0 : gx_now_ns() + PROVE_SPIN_NS;
	int ret;

	v->asked = true;
	for (;;) {
		ret = v->connected ? 1 : conn_connected(c);
		if (ret > 0 && !c->server)
			ret = conn_proven(c);
		if (ret || gx_now_ns() >= until_ns)
			return ret;
		sched_yield();
	}
}

/* ---- While it is up ---- */

/* verbs_mend_step(), with its cost. */
static bool side_step(struct verbs_conn *v, unsigned k, struct verbs_lane *l, struct verbs_qp *q,
		      struct verbs_mend *m)
{
	uint64_t start_ns = gx_now_ns();
	struct verbs_side *s = &v->side[k];
	bool held = s->held, may = verbs_budget_has(&v->budget, start_ns);
	bool worked = verbs_mend_step(l, q, s, &v->peer.port[l->path[q->path].peer], may, m);

	if (worked || (held && !s->held))
		verbs_budget_spend(&v->budget, start_ns, gx_now_ns());
	return worked;
}

/* Nothing of its devices will come back: they need not be waited for. */
static bool lane_is_removed(const struct verbs_lane *l)
{
	for (unsigned w = 0; w < l->nr_paths; w++)
		if (!l->path[w].dev->removed)
			return false;
	return true;
}

/* Until the device has taken it, peers could still write to our memory. */
static void conn_flush(struct gx_conn *c)
{
	struct verbs_conn *v = verbs_conn_of(c);
	bool said = v->stop_again;

	v->stop_again = false;
	for (unsigned i = 0; i < v->nr_lanes; i++) {
		int ret = v->lane[i] ? verbs_mend_stop(v->lane[i]) : 0;

		if (ret && !said)
			gx_warn("an RDMA device does not flush a queue pair: %s: gx tries again, "
				"and destroys it after a while",
				strerror(-ret));
		said |= ret != 0;
		v->stop_again |= ret != 0;
	}
}

static void side_say(const struct gx_conn *c, unsigned k, const struct verbs_lane *l,
		     const struct verbs_qp *q)
{
	if (verbs_conn_of(c)->side[k].vain &&
	    l->nr_paths > 1) /* tried again and again, while others work */
		return;
	gx_info("peer %s: queue pair %u failed (%s), and is made anew", c->peer_name, k,
		qp_dev(l, q)->api->wc_status_str((enum ibv_wc_status)atomic_load_explicit(
			&q->status, memory_order_relaxed)));
}

static void conn_mend(struct gx_conn *c,
		      void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len))
{
	struct verbs_conn *v = verbs_conn_of(c);
	uint8_t b[VERBS_MEND_B];
	struct verbs_mend m;

	for (unsigned k = 0; k < v->nr_qps; k++) {
		struct verbs_lane *l = v->lane[k % v->nr_lanes];
		struct verbs_qp *q = l ? &l->qp[k / v->nr_lanes] : NULL;
		bool gone = q && verbs_gone_step(l, q, &v->side[k], &m);

		if (!q || (!gone && !side_step(v, k, l, q, &m)))
			continue;
		if (gone)
			gx_info("peer %s: queue pair %u of %s does not come back", c->peer_name, k,
				qp_dev(l, q)->name);
		else
			side_say(c, k, l, q);
		m.qp = k;
		verbs_hello_mend_put(b, &m);
		say(c, b, sizeof(b));
	}
}

void verbs_conn_tick(struct gx_conn *c, uint64_t now_ns,
		     void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len))
{
	struct verbs_conn *v = verbs_conn_of(c);

	if (!v)
		return;
	if (!v->stopped_ns) {
		verbs_paths_watch(c, now_ns);
		conn_mend(c, say);
	}
	if (v->stop_again)
		conn_flush(c);
	for (unsigned i = 0; v->stopped_ns && i < v->nr_lanes; i++) {
		if (!v->lane[i])
			continue;
		verbs_mend_stopped(v->lane[i]);
		if (now_ns - v->stopped_ns > CONN_STOP_NS || lane_is_removed(v->lane[i]))
			verbs_mend_give_up(v->lane[i]);
	}
}

int verbs_conn_mend(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	uint64_t start_ns = gx_now_ns();
	struct verbs_conn *v = verbs_conn_of(c);
	struct verbs_lane *l;
	struct verbs_mend m;
	struct verbs_qp *q;
	int ret = 0;

	if (!v || verbs_hello_mend_get(b, len, &m) || m.qp >= v->nr_qps)
		return -EPROTO;
	l = v->lane[m.qp % v->nr_lanes];
	if (!l || v->stopped_ns)
		return 0;
	q = &l->qp[m.qp / v->nr_lanes];
	if (m.say.qpn)
		ret = verbs_mend_take(l, q, &v->side[m.qp], &v->peer.port[l->path[q->path].peer],
				      &m);
	else
		verbs_gone_take(q, &v->side[m.qp], &m);
	verbs_budget_spend(&v->budget, start_ns, gx_now_ns());
	return ret;
}

void verbs_conn_stop(struct gx_conn *c)
{
	struct verbs_conn *v = verbs_conn_of(c);

	if (!v || v->stopped_ns)
		return;
	v->stopped_ns = gx_now_ns();
	conn_flush(c);
}

bool verbs_conn_is_over(const struct gx_conn *c)
{
	const struct verbs_conn *v = verbs_conn_of(c);

	for (unsigned i = 0; v && i < v->nr_lanes; i++)
		if (v->lane[i] && verbs_qps_connect_due(v->lane[i]))
			return false;
	return true;
}
