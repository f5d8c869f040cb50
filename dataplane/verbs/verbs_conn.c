/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection's half of the verbs link: what the ends tell each other, the peer's regions, and
 * queue pairs that are made anew while it is up. Control thread.
 */
#include "verbs/link_verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROVE_SPIN_NS 500000	    /* a device answers sooner; else the next tick looks again */
#define CONN_STOP_NS  1000000000ull /* after which queue pairs that do not end are destroyed */
#define CONN_PATIENCE 4 /* peer time-outs until one that is not made anew ends the connection */

const char *verbs_offered(const struct gx *gx)
{
	if (!gx->verbs)
		return "gx_opts.verbs names no device";
	return atomic_load_explicit(&gx->verbs->failed, memory_order_relaxed)
		       ? "its RDMA device has failed, or is gone"
		       : NULL;
}

int verbs_conn_open(struct gx_conn *c, unsigned nr_lanes, unsigned nr_qps)
{
	struct verbs_conn *v = calloc(1, sizeof(*v));

	if (!v)
		return gx_fail(-ENOMEM, "no memory for a connection");
	v->nr_lanes = nr_lanes;
	v->nr_qps = GX_MAX(nr_qps ? nr_qps : VERBS_QPS, nr_lanes); /* one a lane at least */
	c->verbs = v;
	if (v->nr_qps <= VERBS_QPS_MAX)
		return 0;
	return gx_fail(-EINVAL, "%u queue pairs: at most %d", v->nr_qps, VERBS_QPS_MAX);
}

void verbs_conn_close(struct gx_conn *c)
{
	free(c->verbs);
	c->verbs = NULL;
}

uint32_t verbs_conn_say(const struct gx_conn *c, uint8_t *b)
{
	const struct verbs_conn *v = c->verbs;
	struct verbs_hello h = {.nr_qps = v->nr_qps};

	verbs_hello_fill(c->gx->verbs, &h);
	for (unsigned k = 0; k < v->nr_qps; k++)
		h.qp[k] = v->side[k].own;
	for (unsigned i = 0; i < c->nr_told; i++) {
		const struct gx_mem *mem = c->told[i];
		const struct verbs_reg *r = mem ? mem->verbs : NULL;

		if (!r || !r->shared || mem_is_dead(mem))
			continue;
		h.key[h.nr_keys++] =
			(struct verbs_key){.token = mem->token, .addr = r->addr, .rkey = r->rkey};
	}
	return verbs_hello_put(b, &h);
}

/* Which region of its HELLO is it? */
static int key_take(struct gx_conn *c, const struct verbs_key *key)
{
	struct verbs_region *at = &c->verbs->region[key->token % GX_REGIONS_MAX];

	for (unsigned i = 0; i < c->peer.nr_regions; i++) {
		const struct gx_hello_region *r = &c->peer.regions[i];

		if (r->token != key->token || at->access || key->addr > UINT64_MAX - r->len)
			continue;
		*at = (struct verbs_region){.token = r->token,
					    .len = r->len,
					    .addr = key->addr,
					    .rkey = key->rkey,
					    .access = r->access};
		return 0;
	}
	return -EPROTO;
}

unsigned verbs_hello_qps(const uint8_t *b, uint32_t len)
{
	struct verbs_hello h;

	return verbs_hello_get(b, len, &h) ? 0 : h.nr_qps;
}

int verbs_conn_hear(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	struct verbs_conn *v = c->verbs;
	int ret = verbs_hello_get(b, len, &v->peer);

	if (ret || v->peer.nr_qps != v->nr_qps)
		return gx_fail(-EPROTO, "malformed numbers of queue pairs");
	ret = verbs_way_check(c->gx->verbs, &v->peer);
	if (ret)
		return ret;
	for (uint32_t i = 0; !ret && i < v->peer.nr_keys; i++)
		ret = key_take(c, &v->peer.key[i]);
	return ret ? gx_fail(ret, "a key for a region that the peer has not named") : 0;
}

unsigned verbs_nr_regions(const struct gx_conn *c)
{
	return c->verbs->peer.nr_keys;
}

void verbs_conn_way(const struct gx_conn *c, char *buf, size_t room)
{
	const struct verbs_dev *dev = c->gx->verbs;
	const struct verbs_hello *h = &c->verbs->peer;
	char own[VERBS_GID_TEXT_MAX], other[VERBS_GID_TEXT_MAX];

	if (h->is_ethernet)
		snprintf(
			buf, room,
			"no packet gets from %s (GID %s) to the peer's device (GID %s) and back: "
			"is UDP port 4791 open, and the MTU of the path that of the ports? Or name "
			"other GIDs",
			dev->name, verbs_gid_text(dev->gid.raw, own),
			verbs_gid_text(h->gid, other));
	else
		snprintf(buf, room,
			 "no packet gets from %s (LID %u) to the peer's device (LID %u) and back: "
			 "are both of one subnet? Or name other devices",
			 dev->name, dev->port_attr.lid, h->lid);
}

/* Nobody answered. Any other error is one of the devices, or of the requests. */
static bool is_of_the_way(enum ibv_wc_status status)
{
	return status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_RNR_RETRY_EXC_ERR ||
	       status == IBV_WC_RESP_TIMEOUT_ERR;
}

/* Which answers have come? */
static int prove_poll(struct verbs_conn *v, struct verbs_lane *l)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(l->cq, GX_ARRAY_SIZE(wc), wc);

	if (n < 0)
		return -ENODEV;
	for (int i = 0; i < n; i++) {
		v->prove_status = wc[i].status;
		if (wc[i].status != IBV_WC_SUCCESS)
			return is_of_the_way(wc[i].status) ? -ENETUNREACH : -EIO;
		if (!(wc[i].wr_id & VERBS_ID_MARK)) /* our end is not UP yet, as it knows */
			return -EPROTO;
		v->nr_proven++;
	}
	return 0;
}

static int prove_begin(struct verbs_conn *v)
{
	int ret = 0;

	v->proving = true;
	for (unsigned k = 0; k < v->nr_qps && !ret; k++)
		ret = verbs_qp_mark(&v->lane[k % v->nr_lanes]->qp[k / v->nr_lanes]);
	return ret;
}

int verbs_conn_prove(struct gx_conn *c)
{
	struct verbs_conn *v = c->verbs;
	/* At the first tick alone: the other connections wait meanwhile. */
	uint64_t until_ns = v->proving ? 0 : gx_now_ns() + PROVE_SPIN_NS;
	int ret = v->proving ? 0 : prove_begin(v);
	char text[256];

	do
		for (unsigned i = 0; i < v->nr_lanes && !ret; i++)
			ret = prove_poll(v, v->lane[i]);
	while (!ret && v->nr_proven < v->nr_qps && gx_now_ns() < until_ns);
	if (!ret)
		return v->nr_proven == v->nr_qps;
	if (v->prove_status && ret == -EIO)
		return gx_fail(ret, "%s: a write of no bytes to the peer's device failed: %s",
			       c->gx->verbs->name,
			       c->gx->verbs->api->wc_status_str(v->prove_status));
	if (ret != -ENETUNREACH)
		return gx_fail(ret, "%s does not send: error %d", c->gx->verbs->name, -ret);
	verbs_conn_way(c, text, sizeof(text));
	return gx_fail(ret, "%s", text);
}

/* ---- While it is up ---- */

/* A device that does not flush it, a peer that does not reset its end, or a way that is cut would
 * hold operations for ever, and their memory. A core that its program pauses is no reason. */
static void side_watch(const struct gx_conn *c, struct verbs_lane *l, const struct verbs_qp *q,
		       struct verbs_side *s, uint64_t now_ns)
{
	if (qp_state(q) == VERBS_QP_UP && !q->sick)
		s->down_ns = s->vain = 0;
	else if (!s->down_ns)
		s->down_ns = now_ns;
	else if (now_ns - s->down_ns > CONN_PATIENCE * c->agreed.peer_timeout_ns)
		atomic_store_explicit(&l->ep->fault, s->vain ? -ENETUNREACH : -ENODEV,
				      memory_order_release);
}

/* verbs_mend_step(), with its cost. */
static bool side_step(struct verbs_conn *v, unsigned k, struct verbs_lane *l, struct verbs_qp *q,
		      struct verbs_mend *m)
{
	uint64_t start_ns = gx_now_ns();
	struct verbs_side *s = &v->side[k];
	bool may = verbs_mend_may(&v->budget, v->side, v->nr_qps, s, start_ns);
	bool worked = verbs_mend_step(l, q, s, &v->peer, may, m);

	if (worked)
		verbs_budget_spend(&v->budget, start_ns, gx_now_ns());
	return worked;
}

/* Until the device has taken it, peers could still write to our memory. */
static void conn_flush(struct gx_conn *c)
{
	struct verbs_conn *v = c->verbs;
	bool said = v->stop_again;

	v->stop_again = false;
	for (unsigned i = 0; i < v->nr_lanes; i++) {
		int ret = v->lane[i] ? verbs_mend_stop(v->lane[i]) : 0;

		if (ret && !said)
			gx_warn("%s does not flush a queue pair: %s: gx tries again, and destroys "
				"it after a while",
				c->gx->verbs->name, strerror(-ret));
		said |= ret != 0;
		v->stop_again |= ret != 0;
	}
}

void verbs_conn_tick(struct gx_conn *c, uint64_t now_ns,
		     void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len))
{
	struct verbs_conn *v = c->verbs;
	uint8_t b[VERBS_MEND_B];
	struct verbs_mend m;

	if (!v)
		return;
	for (unsigned k = 0; k < v->nr_qps && !v->stopped_ns; k++) {
		struct verbs_lane *l = v->lane[k % v->nr_lanes];
		struct verbs_qp *q = l ? &l->qp[k / v->nr_lanes] : NULL;

		if (q)
			side_watch(c, l, q, &v->side[k], now_ns);
		if (!q || !side_step(v, k, l, q, &m))
			continue;
		gx_info("peer %s: queue pair %u failed (%s), and is made anew", c->peer_name, k,
			l->dev->api->wc_status_str((enum ibv_wc_status)atomic_load_explicit(
				&q->status, memory_order_relaxed)));
		m.qp = k;
		verbs_mend_put(b, &m);
		say(c, b, sizeof(b));
	}
	if (v->stop_again)
		conn_flush(c);
	for (unsigned i = 0; v->stopped_ns && i < v->nr_lanes; i++)
		if (v->lane[i] && (now_ns - v->stopped_ns > CONN_STOP_NS || c->gx->verbs->removed))
			verbs_mend_give_up(v->lane[i]);
}

int verbs_conn_mend(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	uint64_t start_ns = gx_now_ns();
	struct verbs_conn *v = c->verbs;
	struct verbs_lane *l;
	struct verbs_mend m;
	int ret;

	if (!v || verbs_mend_get(b, len, &m) || m.qp >= v->nr_qps)
		return -EPROTO;
	l = v->lane[m.qp % v->nr_lanes];
	if (!l || v->stopped_ns)
		return 0;
	ret = verbs_mend_take(l, &l->qp[m.qp / v->nr_lanes], &v->side[m.qp], &v->peer, &m);
	verbs_budget_spend(&v->budget, start_ns, gx_now_ns());
	return ret;
}

void verbs_conn_stop(struct gx_conn *c)
{
	struct verbs_conn *v = c->verbs;

	if (!v || v->stopped_ns)
		return;
	v->stopped_ns = gx_now_ns();
	conn_flush(c);
}
