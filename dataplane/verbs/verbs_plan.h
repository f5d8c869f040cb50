/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rails of two ends work together, and how many queue pairs each pair has. Pure: the same
 * input has the same plan. The client makes it, on its control thread.
 */
#ifndef GX_VERBS_PLAN_H
#define GX_VERBS_PLAN_H

#include "verbs/verbs.h"

#include <stdint.h>

struct verbs_plan_in {
	unsigned nr_own, nr_peer;
	uint32_t own_mbps[VERBS_RAILS_MAX], peer_mbps[VERBS_RAILS_MAX]; /* 0: not to be used */
	/* How near are they? 0: no packet gets from one to the other. */
	unsigned near[VERBS_RAILS_MAX][VERBS_RAILS_MAX];
};

struct verbs_plan_path {
	uint8_t own, peer;
	uint32_t mbps; /* its part of the slower port */
};

struct verbs_plan {
	unsigned nr_paths, nr_qps;
	struct verbs_plan_path path[VERBS_PATHS_MAX]; /* the fastest first */
	uint8_t qp_path[VERBS_QPS_MAX];
};

/** verbs_plan_paths() - Pair the rails. Each that reaches any has a path. 0 paths: none does. */
void verbs_plan_paths(const struct verbs_plan_in *in, struct verbs_plan *p);
/** verbs_plan_qps() - Give queue pairs to lanes and paths; queue pair k is of lane k mod @nr_lanes.
 * @asked: 0: as many as serve. @far: for each lane the paths, as bits, whose device is far from its
 * core: these count half. Paths that get no queue pair are dropped. */
void verbs_plan_qps(struct verbs_plan *p, unsigned nr_lanes, unsigned asked, const uint32_t far[]);

#endif
