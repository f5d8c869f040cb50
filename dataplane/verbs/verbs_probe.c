/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a connection that the peer's devices write and read to prove its ways. A request of the
 * path's MTU shows paths that carry small packets alone: a write those towards the peer, a read those
 * back. Nobody looks at the bytes. Control thread.
 */
#include "verbs/link_verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The devices of the plan register it. */
int conn_probe_open(struct gx_conn *c)
{
	struct verbs_conn *v = verbs_conn_of(c);

	v->probe = aligned_alloc(VERBS_PROBE_B, VERBS_PROBE_B);
	if (!v->probe)
		return gx_fail(-ENOMEM, "no memory for a connection");
	memset(v->probe, 0, VERBS_PROBE_B);
	for (unsigned w = 0; w < v->plan.nr_ways; w++) {
		struct verbs_dev *dev = verbs_rails_of(c->gx)->dev[v->plan.way[w].own];
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

void conn_probe_close(struct gx_conn *c)
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

void conn_probe_say(const struct gx_conn *c, struct verbs_hello *h)
{
	const struct verbs_conn *v = verbs_conn_of(c);

	h->probe_addr = (uintptr_t)v->probe;
	for (unsigned i = 0; i < h->nr_ports; i++)
		h->probe_key[i] = v->probe_mr[i] ? v->probe_mr[i]->rkey : 0;
}

/* The peer has described itself, and the lanes are open. */
void conn_probe_hear(struct gx_conn *c)
{
	struct verbs_conn *v = verbs_conn_of(c);
	const struct verbs_hello *h = &v->peer;

	for (unsigned i = 0; i < v->nr_lanes * v->plan.nr_ways; i++) {
		unsigned lane = i / v->plan.nr_ways;
		struct verbs_way *w =
			v->lane[lane] ? &v->lane[lane]->way[i % v->plan.nr_ways] : NULL;

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

uint32_t conn_hole_b(const struct gx_conn *c, unsigned way)
{
	const struct verbs_conn *v = verbs_conn_of(c);

	for (unsigned k = 0; k < v->nr_qps; k++) {
		const struct verbs_lane *l = v->lane[k % v->nr_lanes];
		const struct verbs_qp *q = l ? &l->qp[k / v->nr_lanes] : NULL;

		if (q && q->way == way && atomic_load_explicit(&q->holed, memory_order_relaxed))
			return l->way[way].probe.len;
	}
	return 0;
}
