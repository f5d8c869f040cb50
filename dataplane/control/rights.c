/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rights of a client that has shown a key. A server checks each operation: its access, and the name of
 * the region that it is in. Names are compared here, and cores look at a bit for each named region. A part
 * of memory that a key of memory names has the name of its whole. On the control thread.
 */
#include "control/rights.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Is @name in the list "kv,log*"? */
static bool list_has(const char *list, const char *name)
{
	while (*list) {
		size_t len = strcspn(list, ",");
		bool rest = len && list[len - 1] == '*';

		if (!strncmp(list, name, len - rest) && (rest || !name[len]))
			return true;
		list += len + (list[len] == ',');
	}
	return false;
}

void rights_region(struct gx *gx, unsigned at, const char *name)
{
	for (struct gx_conn *c = gx->conns; c; c = c->next) {
		if (!c->rights.some)
			continue;
		if (list_has(c->key->k.regions, name))
			atomic_fetch_or_explicit(&c->rights.regions, 1ull << at,
						 memory_order_relaxed);
		else
			atomic_fetch_and_explicit(&c->rights.regions, ~(1ull << at),
						  memory_order_relaxed);
	}
}

static void rights_fill(struct gx_conn *c)
{
	const struct gx_auth_key *k = &c->key->k;

	c->rights.access = k->access;
	c->rights.some = k->regions[0];
	c->rights.limited = c->rights.some || k->access != CORE_ACCESS;
	for (unsigned i = 0; c->rights.some && i < GX_REGIONS_MAX; i++) {
		const struct gx_mem *m =
			atomic_load_explicit(&c->gx->region[i], memory_order_relaxed);

		if (m && list_has(k->regions, m->name))
			c->rights.regions |= 1ull << i;
	}
}

/* Connections by @key that are up or in set-up. Counted anew, so none is ever counted too long. */
static uint32_t key_conns(const struct gx *gx, const struct auth_key *key)
{
	uint32_t n = 0;

	for (const struct gx_conn *c = gx->conns; c; c = c->next)
		n += c->key == key && conn_state(c) != GX_CONN_STATE_DOWN;
	return n;
}

/* ---- Payload under way ---- */

static void lane_limit(struct gx_ep *ep)
{
	const struct gx_conn *c = ep->conn;
	uint64_t pkts = c->rights.lane_b / GX_MAX(c->agreed.quantum, 1u);

	/* One packet at least, or nothing would ever come. */
	if (c->rights.lane_b)
		atomic_store_explicit(&ep->credit_max,
				      (uint32_t)GX_MIN(GX_MAX(pkts, 1u), UINT32_MAX - 1u) + 1,
				      memory_order_relaxed);
}

/* In equal parts to all lanes. A peer that holds more credit than its part by then uses that up. */
void rights_share(struct gx_conn *c)
{
	const struct auth_key *key = c->key;
	uint64_t lanes = 0;

	if (!c->server || !key || !key->k.under_way_max_b)
		return;
	for (const struct gx_conn *o = c->gx->conns; o; o = o->next)
		if (o->key == key && conn_state(o) != GX_CONN_STATE_DOWN)
			lanes += o->agreed.nr_lanes;
	for (struct gx_conn *o = c->gx->conns; lanes && o; o = o->next) {
		if (o->key != key)
			continue;
		o->rights.lane_b = GX_MAX(key->k.under_way_max_b / lanes, 1u);
		for (unsigned i = 0; i < o->nr_lanes; i++)
			lane_limit(o->ep[i]);
	}
}

void rights_lane(struct gx_ep *ep)
{
	rights_share(ep->conn);
	lane_limit(ep);
}

/* ---- The peer's key ---- */

int rights_take(struct gx_conn *c, struct auth_key *key)
{
	if (!key)
		return 0;
	if (c->server && !key->listed)
		return gx_refuse(GX_REASON_AUTH, -EKEYREVOKED, "key %s was revoked", key->k.name);
	if (c->server && key->k.conns_max && key_conns(c->gx, key) >= key->k.conns_max)
		return gx_refuse(
			GX_REASON_FULL, -ENOSPC,
			"key %s has %u connections, all that it may have: close one, or raise "
			"its limit",
			key->k.name, key->k.conns_max);
	key->holds++;
	c->key = key;
	memcpy(c->auth, key->k.name, sizeof(c->auth));
	if (c->server)
		rights_fill(c);
	return 0;
}

void rights_tell(const struct gx_conn *c)
{
	if (c->rights.limited)
		gx_info("peer %s: key %s lets it %s, in %s%s", c->peer_name, c->auth,
			c->rights.access == CORE_ACCESS	    ? "put and get"
			: c->rights.access == GX_ACCESS_PUT ? "put alone"
							    : "get alone",
			c->rights.some ? "regions " : "all regions", c->key->k.regions);
}

void rights_drop(struct gx_conn *c)
{
	auth_key_put(c->key);
	c->key = NULL;
}

bool rights_are_gone(const struct gx_conn *c)
{
	return c->server && c->key && !c->key->listed;
}
