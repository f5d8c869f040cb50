/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ways whose port has lost the address that the peer knows: its GID, or its LID on InfiniBand. Their
 * queue pairs end at once, and are held until it is back, maybe at another place of the table. So
 * other ways carry the connection, or it ends with the patience of any way that is cut. New
 * connections take the address that there is (verbs_dev.c). Control thread.
 */
#include "verbs/link_verbs.h"

#include <stdio.h>

static struct verbs_dev *way_dev(const struct gx_conn *c, unsigned w)
{
	return verbs_rails_of(c->gx)->dev[verbs_conn_of(c)->plan.way[w].own];
}

static void lanes_set(struct verbs_conn *v, unsigned w, bool astray, int gid_index)
{
	for (unsigned i = 0; i < v->nr_lanes; i++) {
		if (!v->lane[i])
			continue;
		v->lane[i]->way[w].astray = astray;
		v->lane[i]->way[w].gid_index = gid_index;
	}
	v->astray = astray ? v->astray | 1u << w : v->astray & ~(1u << w);
}

void conn_said(const struct gx_conn *c)
{
	struct verbs_conn *v = verbs_conn_of(c);

	for (unsigned w = 0; w < v->plan.nr_ways; w++) {
		const struct verbs_dev *dev = way_dev(c, w);

		verbs_port_fill(dev, &v->said[w]);
		v->said_gen[w] = dev->address_gen;
		lanes_set(v, w, false, dev->gid_index);
	}
}

static void way_say(const struct gx_conn *c, unsigned w, bool astray)
{
	const struct verbs_port *said = &verbs_conn_of(c)->said[w];
	char gid[VERBS_GID_TEXT_MAX], lid[48] = "";

	if (!said->is_ethernet)
		snprintf(lid, sizeof(lid), "LID %u, or ", said->lid);
	gx_warn("peer %s: %s port %u has %s %sGID %s%s", c->peer_name, way_dev(c, w)->name,
		way_dev(c, w)->port, astray ? "no longer" : "again", lid,
		verbs_gid_text(said->gid, gid),
		!astray ? ""
		: verbs_conn_of(c)->plan.nr_ways == 1
			? ": the connection ends unless it comes back soon"
			: ": other ways go on");
}

void conn_addresses_watch(struct gx_conn *c)
{
	struct verbs_conn *v = verbs_conn_of(c);

	for (unsigned w = 0; w < v->plan.nr_ways; w++) {
		const struct verbs_dev *dev = way_dev(c, w);
		const struct verbs_port *said = &v->said[w];
		bool by_gid = said->is_ethernet || said->wants_grh ||
			      v->peer.port[v->plan.way[w].peer].wants_grh;
		bool astray, was = v->astray >> w & 1;
		int index = dev->gid_index;

		if (v->said_gen[w] == dev->address_gen)
			continue;
		v->said_gen[w] = dev->address_gen;
		astray = !verbs_dev_has(dev, said, by_gid, &index);
		lanes_set(v, w, astray, index);
		if (astray != was)
			way_say(c, w, astray);
	}
}
