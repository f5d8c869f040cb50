/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The path of a connection: its link and its ports, of those that both ends have. The client chooses,
 * the server checks the choice. Both only look at the ends and fill a struct ctl_path, or return a
 * verdict (gx_refuse()). ctl_hello.c calls them on the control thread.
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

/* Is pair of ports @b like @a, at both ends? The lanes share one quantum, and the guarantees of one
 * port. */
static bool pair_is_alike(const struct ctl_conn *cc, const struct gx_hello_pair *a,
			  const struct gx_hello_pair *b)
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
 * its user, or else for one that shares no memory: such a port loses packets. */
static bool flags_reach(const struct ctl_conn *cc, uint32_t flags)
{
	return !(flags & GX_PORT_LOCAL) || (cc->server && cc->proven) ||
	       (cc->conn->same_host && !(cc->server && flags & GX_PORT_LOSSLESS));
}

static bool port_reaches(const struct ctl_conn *cc, unsigned own, unsigned peer)
{
	return flags_reach(cc, cc->ctl->gx->port[own].port->caps.flags |
				       cc->conn->peer.ports[peer].flags);
}

/* Where is a peer that is not on this host? A host_id is of the boot, its first half of the network
 * namespace, too. */
static const char *peer_where(const struct ctl_conn *cc)
{
	return memcmp(cc->conn->peer.host_id + 8, cc->ctl->host_id + 8, 8)
		       ? "on another host"
		       : "in another network namespace of this host";
}

static int port_refuse_far(const struct ctl_conn *cc, const char *name)
{
	return gx_refuse(GX_REASON_OTHER_HOST, -ENODEV,
			 "port %s reaches one host only, and the peer is %s", name, peer_where(cc));
}

/* The ports of @p exist, all ports called @name. */
static int ports_settle(const struct ctl_conn *cc, const char *name, struct ctl_path *p)
{
	const struct gx_hello_pair *w = p->ports;

	if (!port_reaches(cc, cc->server ? w->server : w->client,
			  cc->server ? w->client : w->server))
		return port_refuse_far(cc, name); /* the others have the same flags */
	for (unsigned k = 1; k < p->nr_ports; k++)
		if (!pair_is_alike(cc, &w[0], &w[k]))
			return gx_refuse(
				GX_REASON_OPTIONS, -EINVAL,
				"ports %s differ in their MTU, or in what they promise, and the "
				"lanes of a connection share both: give them one MTU, or name one "
				"of them",
				name);
	p->port = cc->server ? w->server : w->client;
	core_why(p->why, "lanes take %u ports in turn", p->nr_ports);
	return 0;
}

/* Return: index in @h->ports of the @k-th port of that name, from 0; -1. */
static int ports_peer_find(const struct gx_hello *h, const char *name, unsigned k)
{
	for (unsigned i = 0; i < h->nr_ports; i++)
		if (!strcmp(h->ports[i].name, name) && !k--)
			return (int)i;
	return -1;
}

/* Client: our k-th port of a name goes with the k-th one of the server. */
static int ports_choose(const struct ctl_conn *cc, struct ctl_path *p)
{
	unsigned n = GX_MIN(cc->dial.nr_wanted, p->nr_lanes);

	if (cc->dial.nr_wanted > n)
		core_why(p->why, "%u of %u ports, because there are no more lanes", n,
			 cc->dial.nr_wanted);
	if (n < 2 || !p->link->many_ports)
		return 0;
	for (unsigned k = 0; k < n; k++) {
		unsigned before = 0;
		int i;

		for (unsigned j = 0; j < cc->dial.wanted[k]; j++)
			before += !strcmp(cc->ctl->gx->port[j].match, cc->dial.forced);
		i = ports_peer_find(&cc->conn->peer, cc->dial.forced, before);
		if (i < 0)
			return gx_refuse(
				GX_REASON_NO_PORT, -ENODEV,
				"the client wants port %s number %u, and the server has "
				"not so many: open as many at both ends, in the same order",
				cc->dial.forced, before + 1);
		p->ports[k] = (struct gx_hello_pair){cc->dial.wanted[k], (uint8_t)i};
	}
	p->nr_ports = n;
	return ports_settle(cc, cc->dial.forced, p);
}

/* ---- Keys ---- */

/* The ends know one another by a key alone: on two hosts, or of two users. */
static bool needs_seal(const struct ctl_conn *cc)
{
	return cc->tls && !cc->proven;
}

bool ctl_path_is_bare(const struct ctl_conn *cc, const struct gx_link *link, uint32_t integrity)
{
	return needs_seal(cc) &&
	       (!link->seals || (link->port != GX_LINK_PORT_NONE && integrity <= GX_INTEGRITY_CRC));
}

static const char bare[] =
	"it cannot encrypt yet what it sends to another host, and with a key nothing "
	"goes there in clear";

/* ---- The client's choice ---- */

/* Both ends map the memory of port shm. */
static bool choose_shares(const char *name)
{
	return !strcmp(name, "shm");
}

static void choose_say(const struct ctl_conn *cc, unsigned i, struct ctl_path *p)
{
	const char *name = cc->ctl->gx->port[i].device;
	bool is_local = cc->ctl->gx->port[i].port->caps.flags & GX_PORT_LOCAL;

	p->reason = cc->dial.forced[0] ? GX_REASON_ASKED
		    : is_local	       ? GX_REASON_SAME_HOST
				       : GX_REASON_BOTH_HAVE;
	if (cc->dial.forced[0])
		core_why(p->why, "%s: asked for", name);
	else if (is_local)
		core_why(p->why, "both on one host: %s",
			 choose_shares(name) ? "shared memory" : name);
	else
		core_why(p->why, "%s", name);
}

static int choose_refuse(const struct ctl_conn *cc, bool other_host)
{
	bool speaks = cc->dial.forced[0] && strchr(cc->dial.forced, ':') &&
		      cc->ctl->gx->port[cc->dial.forced_port].port->speaks;
	char theirs[160], ours[160] = "";
	struct gx_hello h = {0};

	ctl_path_ports(cc->ctl, &h);
	ports_text(&h, ours, sizeof(ours));
	ports_text(&cc->conn->peer, theirs, sizeof(theirs));
	if (cc->dial.forced[0] && choose_shares(cc->dial.forced) && cc->dial.no_share[0])
		return gx_refuse(
			GX_REASON_USER, -EPERM,
			"port %s cannot be had: %s: take gx_connect_opts.ports udp, which shares none",
			cc->dial.forced, cc->dial.no_share);
	if (cc->dial.forced[0] && other_host)
		return gx_refuse(GX_REASON_OTHER_HOST, -ENODEV,
				 "port %s reaches one host only, and the server is %s: %s",
				 cc->dial.forced, peer_where(cc),
				 choose_shares(cc->dial.forced)
					 ? "take another port"
					 : "give gx_opts.bind_host at both ends an address "
					   "that the other one reaches");
	if (cc->dial.forced[0])
		return gx_refuse(
			GX_REASON_NO_PORT, -ENODEV,
			"the client wants port %s, the server offers %.100s: start it with "
			"gx_opts.ports %.*s%s, or take one of those",
			cc->dial.forced, theirs, (int)strcspn(cc->dial.forced, speaks ? ":" : ""),
			cc->dial.forced, speaks ? ":DEVICE" : "");
	return gx_refuse(
		GX_REASON_NO_PORT, -ENODEV,
		"no port that both ends can use: the client has %.70s, the server %.70s%s%s: "
		"give both the same gx_opts.ports",
		ours, theirs, other_host ? ", " : "", other_host ? peer_where(cc) : "");
}

/* The first of our ports, in the user's order, that the peer has and that reaches the peer. Return:
 * there is one. @other_host: one reaches this host alone. */
static bool choose_port(const struct ctl_conn *cc, struct ctl_path *p, bool *other_host)
{
	const struct gx *gx = cc->ctl->gx;

	p->why[0] = 0;
	for (unsigned i = 0; i < gx->nr_ports; i++) {
		const char *name = gx->port[i].match;
		int peer_i = ctl_path_port_find(&cc->conn->peer, name);

		if (cc->dial.forced[0] && i != cc->dial.forced_port)
			continue;
		if (peer_i < 0) {
			core_why(p->why, "%s not offered by the peer", name);
		} else if (!port_reaches(cc, i, (unsigned)peer_i)) {
			core_why(p->why, "%s not usable: the server is %s", name, peer_where(cc));
			*other_host = true;
		} else if (choose_shares(name) && cc->dial.no_share[0]) {
			core_why(p->why, "no %s: %s", name, cc->dial.no_share);
		} else {
			choose_say(cc, i, p);
			p->port = i;
			return true;
		}
	}
	return false;
}

/* NULL, or why the ends cannot take @link. */
static const char *choose_not(const struct ctl_conn *cc, const struct gx_link *link,
			      struct gx_link_path *path)
{
	static _Thread_local char text[128];
	const struct gx_hello *peer = &cc->conn->peer;
	const char *why_path = link->conn->fits(path), *why = link->conn->may(cc->ctl->gx);

	if (why || why_path)
		return why ? why : why_path;
	if (cc->dial.dead >> link->id & 1)
		return cc->dial.dead_why;
	if (needs_seal(cc) && !link->seals)
		return bare;
	if (peer->links >> link->id & 1 &&
	    (link->port != GX_LINK_PORT_SHM || ctl_path_port_find(peer, "shm") >= 0))
		return NULL;
	snprintf(text, sizeof(text), "the server does not offer it%s%s", link->cure[0] ? "; " : "",
		 link->cure);
	return text;
}

/* choose_port() has been asked for a link that goes by any. */
static void choose_take(const struct gx *gx, const struct gx_link *link, struct ctl_path *p)
{
	p->link = link;
	if (link->port == GX_LINK_PORT_ANY)
		return;
	p->port = 0;
	while (link->port == GX_LINK_PORT_SHM && strcmp(gx->port[p->port].match, "shm"))
		p->port++;
}

static enum gx_reason choose_not_reason(const struct gx_link *link, const struct gx_link_path *path)
{
	if (link->port != GX_LINK_PORT_SHM || (path->same_host && !path->no_share))
		return GX_REASON_NO_LINK;
	return path->same_host ? GX_REASON_USER : GX_REASON_OTHER_HOST;
}

/* The user wants this one, or an error. */
static int choose_asked(const struct ctl_conn *cc, const struct gx_link *link,
			struct gx_link_path *path, struct ctl_path *p)
{
	const char *why = choose_not(cc, link, path);
	bool other_host = false;

	if (why)
		return gx_refuse(choose_not_reason(link, path), -ENODEV,
				 "link %s cannot be had: %s", link->name, why);
	if (link->port == GX_LINK_PORT_ANY && !choose_port(cc, p, &other_host))
		return choose_refuse(cc, other_host);
	choose_take(cc->ctl->gx, link, p);
	if (link->port != GX_LINK_PORT_ANY || !link->score)
		core_why(p->why, "link %s: asked for", link->name);
	if (link->port == GX_LINK_PORT_NONE)
		core_why(p->why, "%s", link->how);
	p->reason = GX_REASON_ASKED;
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
	return !cc->dial.forced[0] &&
	       (link->port == GX_LINK_PORT_SHM ||
		cc->ctl->gx->opts.packet->integrity <= GX_INTEGRITY_MODE_NONE);
}

/* Is another score of @link's taken, because the ends are on two hosts, and all ways are open? */
static bool choose_far(const struct ctl_conn *cc, const struct gx_link *link)
{
	const struct gx_opts *o = &cc->ctl->gx->opts;

	return link->score_far && !cc->conn->same_host && !cc->dial.forced[0] && !o->nr_ports &&
	       o->packet->integrity == GX_INTEGRITY_MODE_AUTO;
}

static unsigned choose_score(const struct ctl_conn *cc, const struct gx_link *link)
{
	return choose_far(cc, link) ? link->score_far : link->score;
}

/* The link with the highest score of those in @left, as bits. NULL: there is none. */
static const struct gx_link *choose_best(const struct ctl_conn *cc, uint32_t left)
{
	const struct gx_link *best = NULL;

	for (unsigned l = 0; l < GX_LINKS; l++)
		if (left >> l & 1 &&
		    (!best || choose_score(cc, gx_links[l]) > choose_score(cc, best)))
			best = gx_links[l];
	return best;
}

/* Say why it is @link, @not: why no better one. */
static void choose_why(const struct ctl_conn *cc, const struct gx_link *link, const char * not,
		       struct ctl_path *p)
{
	if (cc->dial.dead) {
		p->reason = GX_REASON_LAST_RESORT;
		core_why(p->why, "link %s in place of another: %s", link->name, cc->dial.dead_why);
	} else if (choose_far(cc, link)) {
		p->reason = GX_REASON_BOTH_HAVE;
		core_why(p->why, "link %s: the fastest to a server %s; %s", link->name,
			 peer_where(cc), link->how);
	} else if (link->port == GX_LINK_PORT_SHM) {
		p->reason = GX_REASON_SAME_HOST;
		core_why(p->why, "%s", link->how);
	} else if (link->port == GX_LINK_PORT_NONE) {
		p->reason = GX_REASON_LAST_RESORT;
		core_why(p->why, "link %s: the last resort; %s", link->name, link->how);
	} else if (not [0]) {
		core_why(p->why, "%s", not );
	}
}

static int choose_link(const struct ctl_conn *cc, struct gx_link_path *path, struct ctl_path *p)
{
	char not [256] = ""; /* better ones that do not fit */
	struct gx_text text = {not, sizeof(not ), 0};
	const struct gx_link *link, *is_bare = NULL;
	bool other_host = false;

	for (uint32_t left = GX_LINKS_ALL; (link = choose_best(cc, left));
	     left &= ~(1u << link->id)) {
		const char *why;

		if (!choose_may(cc, link))
			continue;
		path->quiet = false;
		why = choose_not(cc, link, path);
		if (why == bare && !is_bare)
			is_bare = link;
		if (why && !path->quiet && path->same_host && !cc->dial.forced[0])
			core_say(&text, "%sno link %s: %s", text.at ? "; " : "", link->name, why);
		if (why || (link->port == GX_LINK_PORT_ANY && !choose_port(cc, p, &other_host)))
			continue;
		choose_take(cc->ctl->gx, link, p);
		choose_why(cc, link, not, p);
		return 0;
	}
	if (is_bare)
		return gx_refuse(GX_REASON_AUTH, -EOPNOTSUPP, "no link %s: %s", is_bare->name,
				 bare);
	return choose_refuse(cc, other_host);
}

int ctl_path_choose(const struct ctl_conn *cc, struct ctl_path *p)
{
	struct gx_link_path path = {.gx = cc->ctl->gx,
				    .same_host = cc->conn->same_host,
				    .far = cc->conn->same_host ? NULL : peer_where(cc),
				    .no_share = cc->dial.no_share[0] ? cc->dial.no_share : NULL};
	unsigned n = GX_MIN(cc->ctl->gx->nr_cores, cc->conn->peer.nr_lanes);
	int ret = cc->dial.link ? choose_asked(cc, cc->dial.link, &path, p)
				: choose_link(cc, &path, p);

	p->nr_lanes = cc->dial.lanes_max ? GX_MIN(n, cc->dial.lanes_max) : n;
	return ret ? ret : ports_choose(cc, p);
}

/* ---- The server's check ---- */

static int check_port(const struct ctl_conn *cc, const char *name, struct ctl_path *p)
{
	const struct gx *gx = cc->ctl->gx;
	unsigned i;

	for (i = 0; i < gx->nr_ports && strcmp(gx->port[i].match, name); i++)
		;
	if (i == gx->nr_ports)
		return gx_refuse(GX_REASON_NO_PORT, -ENODEV, "the server has no port %s", name);
	if (!flags_reach(cc, gx->port[i].port->caps.flags))
		return port_refuse_far(cc, name);
	p->port = i;
	return 0;
}

static int check_ports(const struct ctl_conn *cc, const struct gx_hello_lanes *want,
		       struct ctl_path *p)
{
	const struct gx *gx = cc->ctl->gx;
	const struct gx_hello *peer = &cc->conn->peer;

	for (uint32_t k = 0; k < want->nr_ports; k++) {
		const struct gx_hello_pair *w = &want->ports[k];

		if (w->server >= gx->nr_ports || w->client >= peer->nr_ports ||
		    strcmp(gx->port[w->server].match, want->port) ||
		    strcmp(peer->ports[w->client].name, want->port))
			return gx_refuse(GX_REASON_PROTOCOL, -EPROTO,
					 "CONNECT with ports that are not there");
	}
	memcpy(p->ports, want->ports, sizeof(p->ports));
	p->nr_ports = want->nr_ports;
	return p->nr_ports ? ports_settle(cc, want->port, p) : 0;
}

int ctl_path_check(const struct ctl_conn *cc, const struct gx_hello_lanes *want, struct ctl_path *p)
{
	const struct gx_link *link = gx_links[want->link];
	const char *why = link->conn->may(cc->ctl->gx), *bad = NULL;
	uint32_t least = cc->ctl->gx->opts.packet->integrity;
	int ret;

	if (!why && link->port == GX_LINK_PORT_SHM && strcmp(want->port, "shm"))
		why = "it goes with port shm";
	if (why)
		return gx_refuse(GX_REASON_NO_LINK, -ENODEV,
				 "the server has no link %s over port %s: %s", link->name,
				 want->port, why);
	if (want->nr_ports && !link->many_ports)
		bad = "CONNECT with several ports for a link that takes one";
	else if (link->port == GX_LINK_PORT_NONE &&
		 (strcmp(want->port, link->name) || want->integrity != GX_INTEGRITY_NONE))
		bad = "CONNECT with a port for a link that has none";
	if (bad)
		return gx_refuse(GX_REASON_PROTOCOL, -EPROTO, "%s", bad);
	if (ctl_path_is_bare(cc, link, want->integrity))
		return gx_refuse(
			GX_REASON_AUTH, -EOPNOTSUPP,
			"the server takes no link %s in integrity mode %u from another host "
			"that shows a key: nothing goes there in clear",
			link->name, want->integrity);
	/* A link without ports has records of mode gcm. */
	if (needs_seal(cc) && link->port != GX_LINK_PORT_NONE &&
	    want->integrity + GX_INTEGRITY_MODE_NONE < least)
		return gx_refuse(
			GX_REASON_OPTIONS, -EOPNOTSUPP,
			"the client takes integrity %s, and the server no less than %s from other "
			"hosts: leave gx_packet_opts.integrity of the client to gx",
			ctl_integrity_text(want->integrity),
			ctl_integrity_text(least - GX_INTEGRITY_MODE_NONE));
	p->link = link;
	p->nr_lanes = want->nr_lanes;
	ret = link->port == GX_LINK_PORT_NONE ? 0 : check_port(cc, want->port, p);
	if (ret)
		return ret;
	p->reason = GX_REASON_PEER_ASKED;
	core_why(p->why, "%s: chosen by the client", link->many_ports ? want->port : link->name);
	return check_ports(cc, want, p);
}
