/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's choice of link and port, of those that both ends have. The reason is in
 * gx_conn_info.why. ctl_hello.c calls it on the control thread.
 */
#include "control/ctl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void ctl_path_ports(const struct ctl *ctl, struct gx_hello *h)
{
	struct gx *gx = ctl->gx;

	for (unsigned i = 0; i < gx->nr_ports && i < GX_HELLO_PORTS; i++) {
		const struct gx_port_caps *caps = &gx->port[i].port->caps;

		snprintf(h->ports[i].name, sizeof(h->ports[i].name), "%s", gx->port[i].match);
		h->ports[i].flags = caps->flags;
		h->ports[i].payload_max = caps->payload_max;
		h->ports[i].payload_best =
			gx->opts.packet->quantum_b
				? GX_MIN(gx->opts.packet->quantum_b, caps->payload_max)
				: caps->payload_best;
		for (unsigned j = 0; (caps->flags & GX_PORT_LOCAL) && j < sizeof(ctl->host_id); j++)
			snprintf(h->ports[i].host + 2 * j, 3, "%02x", ctl->host_id[j]);
		h->nr_ports = i + 1;
	}
}

bool ctl_path_same_host(const struct ctl_conn *cc)
{
	return !memcmp(cc->conn->peer.host_id, cc->ctl->host_id, sizeof(cc->ctl->host_id));
}

/* Names of ports, for people: "shm, udp". */
static void ports_text(const struct gx_hello *h, char *buf, size_t room)
{
	size_t len = 0;

	snprintf(buf, room, "none");
	for (unsigned i = 0; i < h->nr_ports && len < room; i++)
		len += (size_t)snprintf(buf + len, room - len, "%s%s", i ? ", " : "",
					h->ports[i].name);
}

/* Return: index in @h->ports; -1. */
int ctl_path_port_find(const struct gx_hello *h, const char *name)
{
	for (unsigned i = 0; i < h->nr_ports; i++)
		if (!strcmp(h->ports[i].name, name))
			return (int)i;
	return -1;
}

/* ---- Several ports ---- */

/* Is port @i, which the peer's @peer_i goes with, like the first pair? The lanes share one quantum, and
 * the guarantees of one port. */
static bool way_is_alike(const struct ctl_conn *cc, const struct gx_hello_way *a,
			 const struct gx_hello_way *b)
{
	const struct gx *gx = cc->ctl->gx;
	const struct gx_hello *peer = &cc->conn->peer;
	uint8_t own_a = cc->server ? a->server : a->client,
		own_b = cc->server ? b->server : b->client;
	uint8_t peer_a = cc->server ? a->client : a->server;
	uint8_t peer_b = cc->server ? b->client : b->server;
	const struct gx_port_caps *x = &gx->port[own_a].port->caps,
				  *y = &gx->port[own_b].port->caps;

	return !((x->flags ^ y->flags) & ~GX_PORT_NORMAL_PAGES) &&
	       x->payload_max == y->payload_max && x->payload_best == y->payload_best &&
	       !((peer->ports[peer_a].flags ^ peer->ports[peer_b].flags) & ~GX_PORT_NORMAL_PAGES) &&
	       peer->ports[peer_a].payload_max == peer->ports[peer_b].payload_max &&
	       peer->ports[peer_a].payload_best == peer->ports[peer_b].payload_best;
}

/* A port that reaches one host only is for ends on one host; at the server, for one that has shown
 * its user. */
static bool way_reaches(const struct ctl_conn *cc, const struct gx_hello_way *w)
{
	uint8_t own = cc->server ? w->server : w->client, peer = cc->server ? w->client : w->server;
	uint32_t flags = cc->ctl->gx->port[own].port->caps.flags | cc->conn->peer.ports[peer].flags;

	return !(flags & GX_PORT_LOCAL) || (cc->server ? cc->proven : ctl_path_same_host(cc));
}

/* The ways exist. */
static int ways_settle(struct ctl_conn *cc, const struct gx_hello_lanes *l)
{
	struct gx_conn *c = cc->conn;

	if (!way_reaches(cc, &l->ways[0])) /* the others have the same flags */
		return ctl_conn_refuse(cc, -ENODEV, "port %s reaches one host only", l->port);
	for (uint32_t k = 1; k < l->nr_ways; k++)
		if (!way_is_alike(cc, &l->ways[0], &l->ways[k]))
			return ctl_conn_refuse(
				cc, -EINVAL,
				"ports %s differ in their MTU, or in what they promise, and the "
				"lanes of a connection share both: give them one MTU, or name one "
				"of them",
				l->port);
	for (uint32_t k = 0; k < l->nr_ways; k++)
		c->way[k] = cc->server ? l->ways[k].server : l->ways[k].client;
	c->nr_ways = l->nr_ways;
	c->port = c->way[0];
	core_why(c, "lanes take %u ports in turn", c->nr_ways);
	return 0;
}

/* Return: index in @h->ports of the @k-th port of that name, from 0; -1. */
static int ways_peer_find(const struct gx_hello *h, const char *name, unsigned k)
{
	for (unsigned i = 0; i < h->nr_ports; i++)
		if (!strcmp(h->ports[i].name, name) && !k--)
			return (int)i;
	return -1;
}

/* Our k-th port of a name goes with the k-th one of the server. */
int ctl_path_ways(struct ctl_conn *cc, struct gx_hello_lanes *l)
{
	const struct gx *gx = cc->ctl->gx;
	unsigned n = GX_MIN(cc->nr_wanted, l->nr_lanes);

	if (cc->nr_wanted > n)
		core_why(cc->conn, "%u of %u ports, because there are no more lanes", n,
			 cc->nr_wanted);
	if (n < 2 || !cc->conn->link->ways)
		return 0;
	for (unsigned k = 0; k < n; k++) {
		unsigned before = 0;
		int i;

		for (unsigned j = 0; j < cc->wanted[k]; j++)
			before += !strcmp(gx->port[j].match, cc->forced);
		i = ways_peer_find(&cc->conn->peer, cc->forced, before);
		if (i < 0)
			return ctl_conn_refuse(cc, -ENODEV,
					       "the client wants port %s number %u, and the server "
					       "has not so many: open as many at both ends, in the "
					       "same order",
					       cc->forced, before + 1);
		l->ways[k] = (struct gx_hello_way){cc->wanted[k], (uint8_t)i};
	}
	l->nr_ways = n;
	return ways_settle(cc, l);
}

int ctl_path_ways_take(struct ctl_conn *cc, const struct gx_hello_lanes *l)
{
	const struct gx *gx = cc->ctl->gx;
	const struct gx_hello *peer = &cc->conn->peer;

	for (uint32_t k = 0; k < l->nr_ways; k++) {
		const struct gx_hello_way *w = &l->ways[k];

		if (w->server >= gx->nr_ports || w->client >= peer->nr_ports ||
		    strcmp(gx->port[w->server].match, l->port) ||
		    strcmp(peer->ports[w->client].name, l->port))
			return ctl_conn_refuse_bad(cc, "CONNECT with ports that are not there");
	}
	return l->nr_ways ? ways_settle(cc, l) : 0;
}

/* ---- The choice ---- */

/* Both ends map the memory of port shm. */
static bool choose_shares(const char *name)
{
	return !strcmp(name, "shm");
}

/* Can the ends reach each other by our port @i, the peer's @peer_i? */
static bool choose_host_ok(const struct ctl_conn *cc, unsigned i, int peer_i)
{
	uint32_t flags = cc->ctl->gx->port[i].port->caps.flags | cc->conn->peer.ports[peer_i].flags;

	return !(flags & GX_PORT_LOCAL) || ctl_path_same_host(cc);
}

static void choose_say(struct ctl_conn *cc, unsigned i)
{
	struct gx *gx = cc->ctl->gx;
	const char *name = gx->port[i].device;

	if (cc->forced[0])
		core_why(cc->conn, "%s: asked for", name);
	else if (!strcmp(name, "shm"))
		core_why(cc->conn, "both on one host: shared memory");
	else if (gx->port[i].port->caps.flags & GX_PORT_LOCAL)
		core_why(cc->conn, "both on one host: %s", name);
	else
		core_why(cc->conn, "%s", name);
}

static int choose_refuse(struct ctl_conn *cc, bool other_host)
{
	bool speaks = cc->forced[0] && cc->ctl->gx->port[cc->forced_port].port->speaks;
	char theirs[160], ours[160] = "";
	struct gx_hello h = {0};

	ctl_path_ports(cc->ctl, &h);
	ports_text(&h, ours, sizeof(ours));
	ports_text(&cc->conn->peer, theirs, sizeof(theirs));
	if (cc->forced[0] && choose_shares(cc->forced) && cc->no_share[0])
		return ctl_conn_refuse(
			cc, -EPERM,
			"port %s cannot be had: %s: take gx_connect_opts.ports udp, which shares none",
			cc->forced, cc->no_share);
	if (cc->forced[0] && other_host)
		return ctl_conn_refuse(
			cc, -ENODEV,
			"port %s reaches one host only, and the ends are on two hosts or in two "
			"network namespaces: take another port",
			cc->forced);
	if (cc->forced[0])
		return ctl_conn_refuse(
			cc, -ENODEV,
			"the client wants port %s, the server offers %.100s: start it with "
			"gx_opts.ports %.*s%s, or take one of those",
			cc->forced, theirs, (int)strcspn(cc->forced, speaks ? ":" : ""), cc->forced,
			speaks ? ":DEVICE" : "");
	return ctl_conn_refuse(cc, -ENODEV,
			       "no port that both ends can use: the client has %.70s, the server "
			       "%.70s%s: give both the same gx_opts.ports",
			       ours, theirs, other_host ? ", on another host" : "");
}

/* The first of our ports, in the user's order, that the peer has and that reaches the peer. Return:
 * there is one. @other_host: one reaches this host alone. */
static bool choose_port(struct ctl_conn *cc, bool *other_host)
{
	struct gx *gx = cc->ctl->gx;
	struct gx_conn *c = cc->conn;

	c->why[0] = 0;
	for (unsigned i = 0; i < gx->nr_ports; i++) {
		const char *name = gx->port[i].match;
		int peer_i = ctl_path_port_find(&c->peer, name);

		if (cc->forced[0] && i != cc->forced_port)
			continue;
		if (peer_i < 0) {
			core_why(c, "%s not offered by the peer", name);
		} else if (!choose_host_ok(cc, i, peer_i)) {
			core_why(c, "%s not usable: different host", name);
			*other_host = true;
		} else if (choose_shares(name) && cc->no_share[0]) {
			core_why(c, "no %s: %s", name, cc->no_share);
		} else {
			choose_say(cc, i);
			c->port = i;
			return true;
		}
	}
	return false;
}

/* NULL, or why the ends cannot take @link. */
static const char *choose_not(struct ctl_conn *cc, const struct gx_link *link,
			      struct gx_link_path *path)
{
	static _Thread_local char text[128];
	const struct gx_hello *peer = &cc->conn->peer;
	const char *why_path = link->conn->fits(path), *why = link->conn->may(cc->ctl->gx);

	if (why || why_path)
		return why ? why : why_path;
	if (peer->links >> link->id & 1 &&
	    (link->port != GX_LINK_PORT_SHM || ctl_path_port_find(peer, "shm") >= 0))
		return NULL;
	snprintf(text, sizeof(text), "the server does not offer it%s%s", link->cure[0] ? "; " : "",
		 link->cure);
	return text;
}

static void choose_take(struct ctl_conn *cc, const struct gx_link *link)
{
	const struct gx *gx = cc->ctl->gx;
	struct gx_conn *c = cc->conn;
	unsigned shm = 0;

	c->link = link;
	if (link->port == GX_LINK_PORT_ANY) /* choose_port() has said why */
		return;
	while (link->port == GX_LINK_PORT_SHM && strcmp(gx->port[shm].match, "shm"))
		shm++;
	c->port = link->port == GX_LINK_PORT_SHM ? shm : 0;
}

/* The user wants this one, or an error. */
static int choose_asked(struct ctl_conn *cc, const struct gx_link *link, struct gx_link_path *path)
{
	const char *why = choose_not(cc, link, path);
	bool other_host = false;

	if (why)
		return ctl_conn_refuse(cc, -ENODEV, "link %s cannot be had: %s", link->name, why);
	if (link->port == GX_LINK_PORT_ANY && !choose_port(cc, &other_host))
		return choose_refuse(cc, other_host);
	if (link->port != GX_LINK_PORT_ANY)
		cc->conn->why[0] = 0;
	choose_take(cc, link);
	if (link->port != GX_LINK_PORT_ANY || !link->score)
		core_why(cc->conn, "link %s: asked for", link->name);
	if (link->port == GX_LINK_PORT_NONE)
		core_why(cc->conn, "%s", link->how);
	return 0;
}

/* May @link be taken without a word of the user? Who names a port, or a check of payload that the link
 * does not have, wants that, or an error. */
static bool choose_may(const struct ctl_conn *cc, const struct gx_link *link)
{
	if (!link->score)
		return false;
	if (link->port == GX_LINK_PORT_ANY)
		return true;
	return !cc->forced[0] && (link->port == GX_LINK_PORT_SHM ||
				  cc->ctl->gx->opts.packet->integrity != GX_INTEGRITY_MODE_CRC32C);
}

/* The link with the highest score of those in @left, as bits. NULL: there is none. */
static const struct gx_link *choose_best(uint32_t left)
{
	const struct gx_link *best = NULL;

	for (unsigned l = 0; l < GX_LINKS; l++)
		if (left >> l & 1 && (!best || gx_links[l]->score > best->score))
			best = gx_links[l];
	return best;
}

/* A link without a port is slower than any port, and carries less: say so aloud. */
static void choose_last(struct ctl_conn *cc, const struct gx_link *link)
{
	gx_warn("peer %s: no port that both ends can use (%s): going on by link %s, the last "
		"resort: %s; give both ends the same gx_opts.ports, or ask for "
		"gx_connect_opts.link %s",
		ctl_conn_peer(cc), cc->conn->why, link->name, link->how, link->name);
	core_why(cc->conn, "link %s: the last resort; %s", link->name, link->how);
}

/* Choose the link, then its port: the best one that fits. */
int ctl_path_choose(struct ctl_conn *cc)
{
	struct gx_link_path path = {.gx = cc->ctl->gx,
				    .same_host = ctl_path_same_host(cc),
				    .no_share = cc->no_share[0] ? cc->no_share : NULL};
	char not [256] = ""; /* better ones that do not fit */
	struct gx_text text = {not, sizeof(not ), 0};
	const struct gx_link *link;
	bool other_host = false;

	cc->conn->why[0] = 0;
	if (cc->link)
		return choose_asked(cc, cc->link, &path);
	for (uint32_t left = GX_LINKS_ALL; (link = choose_best(left)); left &= ~(1u << link->id)) {
		const char *why;

		if (!choose_may(cc, link))
			continue;
		path.quiet = false;
		why = choose_not(cc, link, &path);
		if (why && !path.quiet && path.same_host && !cc->forced[0])
			core_say(&text, "%sno link %s: %s", text.at ? "; " : "", link->name, why);
		if (why || (link->port == GX_LINK_PORT_ANY && !choose_port(cc, &other_host)))
			continue;
		if (link->port == GX_LINK_PORT_NONE)
			choose_last(cc, link);
		choose_take(cc, link);
		if (link->port == GX_LINK_PORT_SHM)
			core_why(cc->conn, "%s", link->how);
		else if (not [0] && link->port == GX_LINK_PORT_ANY)
			core_why(cc->conn, "%s", not );
		return 0;
	}
	return choose_refuse(cc, other_host);
}
