/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs link's endpoints on their core, and a connection's half, for link_verbs.c and
 * verbs_conn.c alone.
 */
#ifndef GX_LINK_VERBS_H
#define GX_LINK_VERBS_H

#include "packet/pkt.h"
#include "verbs/verbs_lane.h"
#include "verbs/verbs_mend.h"

/* owner: core */
struct verbs_ep {
	struct pkt_ep pkt; /* first: the packet link frees the whole struct by it */
	struct link_verbs *link;
	struct verbs_lane lane;
	bool used;	  /* the user has posted since the last turn */
	uint64_t used_ns; /* time of the turn that last saw used */
};

/* owner: ctl; lanes' queue pairs as verbs_lane.h says */
struct verbs_conn {
	unsigned nr_qps, nr_lanes;
	struct verbs_lane *lane[GX_HELLO_LANES]; /* NULL: its endpoint is not open */
	struct verbs_side side[VERBS_QPS_MAX];	 /* queue pair k is the k / nr_lanes-th of lane
						    k % nr_lanes */
	struct verbs_hello peer;
	struct verbs_region region[GX_REGIONS_MAX]; /* frozen before the lanes are attached */
	struct verbs_budget budget;
	bool proving;			 /* client: verbs_conn_prove() has begun */
	unsigned nr_proven;		 /* queue pairs whose peer has answered it */
	enum ibv_wc_status prove_status; /* why one has not */
	uint64_t stopped_ns;		 /* not 0: the connection ends since then */
	bool stop_again;		 /* the device has refused to flush all */
};

/* -- verbs_pull.c -- */

void verbs_pull_ep(struct verbs_ep *e); /* ctl, before it is attached: may it pull? */
/* Core: is it a long send or receive that packets carry, as the device does not know the memory? */
bool verbs_pull_misses(const struct verbs_ep *e, const struct gx_op *op);

static inline unsigned conn_qps(const struct verbs_conn *v, unsigned lane)
{
	return (v->nr_qps - lane + v->nr_lanes - 1) / v->nr_lanes;
}

#endif
