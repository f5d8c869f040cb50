/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails are paired, nearest first: each with another one, as long as there are such. The rest share.
 * Queue pairs follow the speeds; each path has one in each lane, if there are enough, so no lane
 * depends on one device.
 */
#include "verbs/verbs_plan.h"

#include <string.h>

struct pairing {
	const struct verbs_plan_in *in;
	unsigned own_uses[VERBS_RAILS_MAX], peer_uses[VERBS_RAILS_MAX];
};

static uint32_t pair_mbps(const struct verbs_plan_in *in, unsigned own, unsigned peer)
{
	return GX_MIN(in->own_mbps[own], in->peer_mbps[peer]);
}

/* Is it a better pair than the best so far? Nearest, then fastest, then the lowest numbers. */
static bool pair_beats(const struct verbs_plan_in *in, unsigned own, unsigned peer,
		       const struct verbs_plan_path *best)
{
	unsigned near = in->near[own][peer], best_near = in->near[best->own][best->peer];

	if (near != best_near)
		return near > best_near;
	return pair_mbps(in, own, peer) > best->mbps;
}

/* Neither rail, or (@shared) one of them, may have a path already. */
static bool pair_is_open(const struct pairing *g, unsigned own, unsigned peer, bool shared)
{
	if (!g->in->near[own][peer] || !pair_mbps(g->in, own, peer))
		return false;
	return shared ? !g->own_uses[own] || !g->peer_uses[peer]
		      : !g->own_uses[own] && !g->peer_uses[peer];
}

static bool pair_next(struct pairing *g, bool shared, struct verbs_plan_path *out)
{
	bool any = false;

	for (unsigned own = 0; own < g->in->nr_own; own++)
		for (unsigned peer = 0; peer < g->in->nr_peer; peer++) {
			if (!pair_is_open(g, own, peer, shared) ||
			    (any && !pair_beats(g->in, own, peer, out)))
				continue;
			any = true;
			*out = (struct verbs_plan_path){(uint8_t)own, (uint8_t)peer,
							pair_mbps(g->in, own, peer)};
		}
	if (any) {
		g->own_uses[out->own]++;
		g->peer_uses[out->peer]++;
	}
	return any;
}

/* A rail of several paths gives each a part. */
static void paths_share(const struct pairing *g, struct verbs_plan *p)
{
	for (unsigned i = 0; i < p->nr_paths; i++) {
		struct verbs_plan_path *w = &p->path[i];

		w->mbps = GX_MIN(g->in->own_mbps[w->own] / g->own_uses[w->own],
				 g->in->peer_mbps[w->peer] / g->peer_uses[w->peer]);
		w->mbps = GX_MAX(w->mbps, 1u);
	}
}

/* Few, and equal ones keep their order. */
static void paths_sort(struct verbs_plan *p)
{
	for (unsigned i = 1; i < p->nr_paths; i++)
		for (unsigned k = i; k && p->path[k].mbps > p->path[k - 1].mbps; k--) {
			struct verbs_plan_path w = p->path[k];

			p->path[k] = p->path[k - 1];
			p->path[k - 1] = w;
		}
}

void verbs_plan_paths(const struct verbs_plan_in *in, struct verbs_plan *p)
{
	struct pairing g = {.in = in};

	memset(p, 0, sizeof(*p));
	while (p->nr_paths < VERBS_PATHS_MAX && pair_next(&g, false, &p->path[p->nr_paths]))
		p->nr_paths++;
	while (p->nr_paths < VERBS_PATHS_MAX && pair_next(&g, true, &p->path[p->nr_paths]))
		p->nr_paths++;
	paths_share(&g, p);
	paths_sort(p);
}

/* ---- Queue pairs ---- */

static unsigned qps_number(const struct verbs_plan *p, unsigned nr_lanes, unsigned asked)
{
	unsigned each = p->nr_paths * nr_lanes;

	if (asked)
		return GX_MAX(asked, nr_lanes); /* one a lane at least */
	if (each > VERBS_QPS_MAX)
		return GX_MAX(nr_lanes, (unsigned)VERBS_QPS);
	return GX_MAX(each, (unsigned)VERBS_QPS);
}

/* The path for one more queue pair. @mine: of this lane; @all: of all lanes. */
static unsigned qp_next(const struct verbs_plan *p, uint32_t far, const unsigned mine[],
			const unsigned all[])
{
	unsigned best = 0;

	for (unsigned w = 1; w < p->nr_paths; w++) {
		uint64_t mbps = 2ull * p->path[w].mbps >> (far >> w & 1);
		uint64_t best_mbps = 2ull * p->path[best].mbps >> (far >> best & 1);
		bool is_new = !mine[w], best_is_new = !mine[best];
		const unsigned *of = is_new ? all : mine;

		if (is_new != best_is_new) {
			if (is_new)
				best = w;
			continue;
		}
		if ((of[w] + 1) * best_mbps < (of[best] + 1) * mbps)
			best = w;
	}
	return best;
}

/* Leave out paths without a queue pair: of few, a fast but far one may have none. */
static void paths_pack(struct verbs_plan *p, const unsigned all[])
{
	uint8_t to[VERBS_PATHS_MAX] = {0};
	unsigned n = 0;

	for (unsigned w = 0; w < p->nr_paths; w++) {
		to[w] = (uint8_t)n;
		p->path[n] = p->path[w];
		n += all[w] != 0;
	}
	for (unsigned k = 0; k < p->nr_qps && k < VERBS_QPS_MAX; k++)
		p->qp_path[k] = to[p->qp_path[k]];
	p->nr_paths = n;
}

void verbs_plan_qps(struct verbs_plan *p, unsigned nr_lanes, unsigned asked, const uint32_t far[])
{
	unsigned mine[GX_HELLO_LANES][VERBS_PATHS_MAX] = {0}, all[VERBS_PATHS_MAX] = {0};

	p->nr_qps = qps_number(p, nr_lanes, asked);
	for (unsigned k = 0; k < p->nr_qps && k < VERBS_QPS_MAX; k++) {
		unsigned lane = k % nr_lanes, w = qp_next(p, far[lane], mine[lane], all);

		p->qp_path[k] = (uint8_t)w;
		mine[lane][w]++;
		all[w]++;
	}
	paths_pack(p, all);
}
