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
#include "verbs/verbs_plan.h"

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
	struct verbs_plan plan;			 /* its paths and queue pairs */
	uint32_t lost; /* bit i: the log says that path i carries nothing */
	/* Of each path: what the peer has heard of our port, and the device's address_gen when it
	 * was last looked at. Bit i of addr_lost: the port of path i has lost its address */
	struct verbs_port said[VERBS_PATHS_MAX];
	uint32_t said_gen[VERBS_PATHS_MAX];
	uint32_t addr_lost;
	struct verbs_hello peer;
	struct verbs_region region[GX_REGIONS_MAX]; /* frozen before the lanes are attached */
	struct verbs_budget budget;
	uint8_t *probe; /* VERBS_PROBE_B; NULL: the peer does not know of it */
	struct ibv_mr *probe_mr[VERBS_RAILS_MAX];
	bool asked, connected;		 /* verbs_conn_prove() was asked; and all queue pairs are */
	bool proving;			 /* client: and it has begun to prove */
	enum ibv_wc_status prove_status; /* why a queue pair was not answered; the last one */
	const struct verbs_dev *prove_dev;
	uint64_t stopped_ns; /* not 0: the connection ends since then */
	bool stop_again;     /* the device has refused to flush all */
};

/* -- verbs_paths.c; control thread -- */

/* Make or take the plan: see verbs_conn_open(). */
int verbs_paths_plan(struct gx_conn *c, unsigned nr_lanes, unsigned nr_qps, const uint8_t *b,
		     uint32_t len);
/* Before lane @i is opened. */
void verbs_paths_lane(const struct gx_conn *c, unsigned i, struct verbs_lane *l);
/* Does the peer's description fit the plan? Return: 0, -errno with gx_error(). */
int verbs_paths_check(const struct gx_conn *c);
/* At each tick: what queue pairs that are not up mean for their path, and that for the lane. */
void verbs_paths_watch(struct gx_conn *c, uint64_t now_ns);

void verbs_paths_said(const struct gx_conn *c); /* the peer hears of our ports */

/* -- verbs_conn.c; control thread -- */

/* Path @path carries small packets, and none of so many bytes. 0: or it carries all, or nothing. */
uint32_t conn_hole_b(const struct gx_conn *c, unsigned path);

static inline unsigned conn_qps(const struct verbs_conn *v, unsigned lane)
{
	return (v->nr_qps - lane + v->nr_lanes - 1) / v->nr_lanes;
}

#endif
