/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The set-up of a bootstrap connection: HELLO both ways, then the client proposes (CONNECT), the
 * server checks and grants (ACCEPT), then UP both ways. The file has both ends. ctl_frame.c calls
 * it for each frame, on the control thread. Each step returns its verdict, 0 or the result of
 * gx_refuse(); only ctl_conn_judge() ends the connection.
 */
#include "control/ctl.h"
#include "control/rights.h"

#include "gx_internal/gcm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_FAR_NS 60000000000ull /* most for an unproven client, if ours is not longer */

/* ---- Lanes, both ends ---- */

static struct gx_port *lanes_port(const struct ctl_conn *cc)
{
	return cc->ctl->gx->port[cc->conn->port].port;
}

static int lanes_setup_new(struct ctl_conn *cc)
{
	cc->setup = calloc(1, sizeof(*cc->setup));
	return cc->setup ? 0 : gx_refuse(GX_REASON_NO_MEMORY, -ENOMEM, "out of memory");
}

static const char *end_name(const struct ctl_conn *cc)
{
	return cc->server ? "server" : "client";
}

static int link_refuse(const struct ctl_conn *cc, int err)
{
	return gx_refuse(err == -EPROTO ? GX_REASON_PROTOCOL : GX_REASON_LINK, err,
			 "the %s cannot take link %s: %.150s", end_name(cc), cc->conn->link->name,
			 gx_error());
}

/* @cc takes the path that its client chose. */
static void path_take(struct gx_conn *c, const struct ctl_path *p)
{
	c->link = p->link;
	c->port = p->port;
	c->nr_ports = p->nr_ports;
	for (unsigned k = 0; k < p->nr_ports; k++)
		c->ports[k] = c->server ? p->ports[k].server : p->ports[k].client;
	c->path_reason = p->reason;
	memcpy(c->why, p->why, sizeof(c->why));
}

/* Our half of the link, before its lanes. */
static int link_open(struct ctl_conn *cc)
{
	const struct gx_hello_lanes *r = &cc->setup->remote;
	struct gx_link_want want = {.nr_lanes = cc->setup->local.nr_lanes,
				    .asked = cc->server ? NULL : &cc->dial.asked,
				    .blob = cc->server ? r->blob : NULL,
				    .blob_b = r->blob_b};

	cc->conn->link_open = true;
	return cc->conn->link->conn->open(cc->conn, &want);
}

static int lanes_open(struct ctl_conn *cc)
{
	struct gx_hello_lanes *l = &cc->setup->local;
	int ret = link_open(cc);

	if (ret)
		return link_refuse(cc, ret);
	for (unsigned i = 0; i < l->nr_lanes; i++) {
		l->lanes[i].port.fd = -1;
		l->lanes[i].port.dials = !cc->server;
		ret = conn_lane_open(cc->conn, i, &l->lanes[i]);
		if (ret)
			return gx_refuse(GX_REASON_LINK, ret,
					 "the %s cannot open lane %u over %s: %.150s", end_name(cc),
					 i, l->port, gx_error());
	}
	l->blob_b = (uint16_t)cc->conn->link->conn->say(cc->conn, l->blob);
	return 0;
}

/* What the peer says of its half. Our lanes are open. */
static int link_hear(struct ctl_conn *cc)
{
	const struct gx_hello_lanes *r = &cc->setup->remote;
	int ret = cc->conn->link->conn->hear(cc->conn, r->blob, r->blob_b);

	return ret ? link_refuse(cc, ret) : 0;
}

static int lanes_send(struct ctl_conn *cc, enum gx_hello_type type)
{
	return ctl_conn_frame_send(cc, gx_hello_lanes_put(cc->ctl->frame, type, &cc->setup->local));
}

/* Keep the agreed values, without the lanes' addresses. */
static void lanes_agree(struct gx_conn *c, const struct gx_hello_lanes *l)
{
	c->agreed = (struct gx_hello_lanes){.link = l->link,
					    .quantum = l->quantum,
					    .chunk_b = l->chunk_b,
					    .window = l->window,
					    .integrity = l->integrity,
					    .peer_timeout_ns = l->peer_timeout_ns,
					    .nr_lanes = l->nr_lanes};
	memcpy(c->agreed.port, l->port, sizeof(l->port));
}

/* Warn of integrity none over a network. */
static void up_say_integrity(const struct ctl_conn *cc)
{
	if (cc->conn->agreed.integrity == GX_INTEGRITY_NONE && !cc->proven &&
	    cc->conn->link->port != GX_LINK_PORT_NONE &&
	    !(lanes_port(cc)->caps.flags & GX_PORT_LOSSLESS))
		gx_warn("peer %s: integrity none over a network: damage on the way is not seen, "
			"and who sends from its address can stall or end the connection: take "
			"crc32c, the default",
			cc->conn->peer_name);
}

/* The connection's way says who encrypts. */
static void up_say_sealed(struct gx_conn *c)
{
	bool records = c->secret && c->link->port == GX_LINK_PORT_NONE && c->link->seals;

	if (records || c->agreed.integrity == GX_INTEGRITY_GCM)
		core_why(c->why, "the CPU encrypts (%s), memory of GPUs by way of the host's",
			 gx_gcm_name());
}

void ctl_hello_up(struct ctl_conn *cc)
{
	ctl_conn_setup_free(cc);
	up_say_integrity(cc);
	up_say_sealed(cc->conn);
	cc->conn->link->conn->up(cc->conn);
	if (cc->conn->state == GX_CONN_STATE_DOWN) { /* this end closed meanwhile */
		ctl_conn_end(cc, CTL_LINGER_NS);
		return;
	}
	ctl_conn_goto(cc, CTL_UP);
	cc->was_up = true;
	cc->due_ns = 0;
	cc->conn->link_say = ctl_link_say;
	conn_up(cc->conn);
}

/* The descriptors of the peer's link follow the @k of the lanes. */
static int link_connect(struct ctl_conn *cc, unsigned k)
{
	struct ctl_setup *s = cc->setup;
	unsigned n = s->nr_fds - k;
	int ret;

	s->nr_fds = k;
	ret = cc->conn->link->conn->connect(cc->conn, s->fds + k, n);
	return ret ? link_refuse(cc, ret) : 0;
}

/* May this end say UP? A link with a way to prove does that first; at the client when the server's UP has
 * come, for its end can answer then. Return: 1, 0: not yet, -errno with gx_error(). */
static int lanes_prove(struct ctl_conn *cc)
{
	const struct gx_link *link = cc->conn->link;

	if (!link->proves)
		return 1;
	return cc->server || cc->peer_up ? link->conn->prove(cc->conn) : 0;
}

int ctl_hello_dead(struct ctl_conn *cc, const char *why)
{
	char text[CTL_TEXT_MAX];

	snprintf(text, sizeof(text), "%s", why);
	if (ctl_again(cc, text))
		return 0;
	return gx_refuse(GX_REASON_UNREACHABLE, -EHOSTUNREACH, "%s%s", text,
			 cc->server ? "" : ", or take gx_connect_opts.link tcp");
}

/* The lanes are tried until it is up, also when this end hears the peer: the peer waits for packets, and for
 * the word that they were sent. Return: as lanes_prove(). */
static int lanes_trial(struct ctl_conn *cc)
{
	struct gx_uring *uring = cc->ctl->gx->uring;
	struct gx_conn *c = cc->conn;
	int ret;

	if (!cc->linked_ns)
		cc->linked_ns = gx_now_ns();
	c->trying = true;
	conn_attach(c);
	ret = c->link->conn->trial(c, cc->peer_up, ctl_link_say);
	if (ret >= 0 && !cc->ctl->soon.held && gx_now_ns() - cc->linked_ns < CTL_SOON_END_NS)
		gx_uring_submit(uring, &cc->ctl->soon);
	return ret;
}

int ctl_hello_linked(struct ctl_conn *cc)
{
	bool tries = cc->state == CTL_LINKED && cc->conn->link->conn->tries(cc->conn);
	int ret = tries ? lanes_trial(cc) : 1;

	if (cc->state != CTL_LINKED)
		return 0;
	if (ret == -EHOSTUNREACH)
		return ctl_hello_dead(cc, gx_error());
	if (!cc->own_up) {
		if (!tries)
			ret = lanes_prove(cc);
		if (ret <= 0)
			return ret ? gx_refuse(GX_REASON_LINK, ret, "%s", gx_error()) : 0;
		ret = ctl_conn_plain_send(cc, GX_HELLO_UP);
		if (ret)
			return ret;
		cc->own_up = true;
	}
	if (cc->peer_up)
		ctl_hello_up(cc);
	return 0;
}

static unsigned lanes_fds_due(const struct gx_hello_lanes *l)
{
	unsigned n = 0;

	for (unsigned i = 0; i < l->nr_lanes; i++)
		n += l->lanes[i].port.fd < 0 ? 0 : 1 + l->lanes[i].port.has_pool;
	return n;
}

/* Addresses and descriptors of both ends are here. */
static int lanes_connect(struct ctl_conn *cc)
{
	struct ctl_setup *s = cc->setup;
	unsigned k = 0;
	int ret = link_connect(cc, lanes_fds_due(&s->remote));

	if (ret)
		return ret;
	if (!ctl_fd_needed(cc))
		ctl_fd_forget(cc); /* the client is proven, and no descriptors will follow */
	cc->conn->peer_crc_by_copy = s->remote.crc_by_copy;
	for (unsigned i = 0; i < s->remote.nr_lanes; i++) {
		struct gx_hello_lane *r = &s->remote.lanes[i];

		if (r->port.fd >= 0) {
			r->port.fd = s->fds[k];
			s->fds[k++] = -1;
			if (r->port.has_pool) {
				r->port.pool_fd = s->fds[k];
				s->fds[k++] = -1;
			}
		}
		if (cc->server && !cc->proven) {
			r->port.from_len = cc->came.from_len;
			memcpy(r->port.from, cc->came.from, sizeof(cc->came.from));
		}
		ret = conn_lane_connect(cc->conn, i, r);
		if (ret)
			return gx_refuse(GX_REASON_LINK, ret,
					 "the %s cannot connect lane %u over %s: %.150s",
					 end_name(cc), i, s->local.port, gx_error());
	}
	ctl_conn_goto(cc, CTL_LINKED);
	return ctl_hello_linked(cc);
}

void ctl_hello_passed(struct ctl_conn *cc, int fds[], unsigned n)
{
	struct ctl_setup *s = cc->setup;
	unsigned want = lanes_fds_due(&s->remote);

	want += cc->conn->link->conn->fds_due(cc->conn);
	memcpy(s->fds, fds, n * sizeof(fds[0]));
	s->nr_fds = n;
	ctl_conn_judge(cc, n == want ? lanes_connect(cc)
				     : gx_refuse(GX_REASON_PROTOCOL, -EPROTO,
						 "wrong number of descriptors"));
}

void ctl_hello_joined(struct ctl_conn *cc)
{
	ctl_conn_judge(cc, lanes_connect(cc));
}

/* ---- Client: CONNECT ---- */

/* Does an end put payload into GPU memory, with no wire whose MTU bounds packets? Then each end
 * sends packets for the other's slots, and the ends agree on the larger size. */
static bool lanes_pool(const struct ctl_conn *cc, int peer_i)
{
	uint32_t flags = lanes_port(cc)->caps.flags;

	return (flags & GX_PORT_LOCAL) &&
	       ((flags | cc->conn->peer.ports[peer_i].flags) & GX_PORT_RX_GPU);
}

static uint32_t connect_quantum(const struct ctl_conn *cc, int peer_i)
{
	const struct gx_port_caps *caps = &lanes_port(cc)->caps;
	uint32_t own = cc->ctl->gx->opts.packet->quantum_b, best, max;

	best = cc->conn->peer.ports[peer_i].payload_best;
	if (lanes_pool(cc, peer_i) && !own)
		return GX_MIN(GX_MAX(caps->payload_best, best), (uint32_t)GX_WIRE_QUANTUM_MAX) &
		       ~15u;
	best = GX_MIN(caps->payload_best, best);
	max = GX_MIN(caps->payload_max, cc->conn->peer.ports[peer_i].payload_max);
	if (own > max)
		gx_warn("peer %s: quantum %u lowered to %u, the most that port %s carries there",
			cc->conn->peer_name, own, max & ~15u,
			cc->ctl->gx->port[cc->conn->port].match);
	return GX_MIN(own ? own : best, max) & ~15u;
}

_Static_assert(GX_INTEGRITY_MODE_CRC32C - GX_INTEGRITY_MODE_NONE == (int)GX_INTEGRITY_CRC &&
		       GX_INTEGRITY_MODE_GCM - GX_INTEGRITY_MODE_NONE == (int)GX_INTEGRITY_GCM,
	       "same order");

static uint32_t connect_integrity(const struct ctl_conn *cc)
{
	const struct gx_opts *opts = &cc->ctl->gx->opts;

	if (opts->packet->integrity != GX_INTEGRITY_MODE_AUTO)
		return opts->packet->integrity - GX_INTEGRITY_MODE_NONE;
	if (cc->conn->secret && !(cc->proven && lanes_port(cc)->caps.flags & GX_PORT_LOCAL))
		return GX_INTEGRITY_GCM;
	return lanes_port(cc)->caps.flags & GX_PORT_LOSSLESS ? GX_INTEGRITY_NONE : GX_INTEGRITY_CRC;
}

/* The kinds of memory for which this end checks incoming payload while it copies. By default a GPU
 * checks payload that its kernels copy. If the CPU copies, checking then gains nothing. */
static uint8_t opts_crc_by_copy(const struct gx_opts *o, uint32_t integrity)
{
	bool kernels =
		o->gpu->unpack == GX_UNPACK_MODE_AUTO || o->gpu->unpack == GX_UNPACK_MODE_KERNEL;

	if (integrity != GX_INTEGRITY_CRC || o->packet->crc_by == GX_CRC_BY_CPU ||
	    !unpack_checks(o->gpu->unpack))
		return 0;
	/* The CPU cannot check payload in the memory of a GPU. */
	if (o->packet->crc_by == GX_CRC_BY_COPY || o->gpu->bounce == GX_BOUNCE_CUDA)
		return 1 << GX_MEM_HOST | 1 << GX_MEM_CUDA;
	return kernels ? 1 << GX_MEM_CUDA : 0;
}

static void lanes_crc_by_copy(struct gx_conn *c, struct gx_hello_lanes *l)
{
	c->crc_by_copy = l->crc_by_copy = opts_crc_by_copy(&c->gx->opts, l->integrity);
}

/* By a link without a port, which guards its bytes itself. */
static int connect_fill_portless(const struct ctl_conn *cc, struct gx_hello_lanes *l)
{
	l->quantum = cc->conn->link->quantum_b;
	l->integrity = GX_INTEGRITY_NONE;
	if (cc->ctl->gx->opts.packet->integrity > GX_INTEGRITY_MODE_NONE)
		return gx_refuse(GX_REASON_OPTIONS, -EOPNOTSUPP,
				 "link %s has no integrity crc32c, mac or gcm: leave "
				 "gx_packet_opts.integrity to gx, or take link packet",
				 cc->conn->link->name);
	return 0;
}

static int connect_fill_port(const struct ctl_conn *cc, struct gx_hello_lanes *l)
{
	const struct gx_hello *peer = &cc->conn->peer;
	int peer_i = l->nr_ports ? l->ports[0].server : ctl_path_port_find(peer, l->port);

	l->quantum = connect_quantum(cc, peer_i);
	l->integrity = connect_integrity(cc);
	lanes_crc_by_copy(cc->conn, l);
	if (l->quantum < GX_WIRE_QUANTUM_MIN)
		return gx_refuse(
			GX_REASON_MTU, -EMSGSIZE,
			"port %s carries %u bytes a packet between these ends, and %u are needed: "
			"raise the MTU, or take another port",
			l->port, l->quantum, GX_WIRE_QUANTUM_MIN);
	if (l->integrity > GX_INTEGRITY_CRC && !cc->conn->secret)
		return gx_refuse(
			GX_REASON_OPTIONS, -EOPNOTSUPP,
			"gx_packet_opts.integrity mac and gcm need a key of the connection, "
			"and it has none");
	if (l->integrity > GX_INTEGRITY_GCM || !(peer->integrity & 1u << l->integrity))
		return gx_refuse(GX_REASON_OPTIONS, -EOPNOTSUPP,
				 "integrity mode %u is not offered by the server", l->integrity);
	return 0;
}

/* Our proposal. The connection has its path. */
static int connect_fill(struct ctl_conn *cc, const struct ctl_path *p)
{
	const struct gx_opts *opts = &cc->ctl->gx->opts;
	struct gx_hello_lanes *l = &cc->setup->local;
	bool portless = p->link->port == GX_LINK_PORT_NONE;
	int ret;

	snprintf(l->port, sizeof(l->port), "%s",
		 portless ? p->link->name : cc->ctl->gx->port[p->port].match);
	l->link = (uint8_t)p->link->id;
	l->nr_lanes = p->nr_lanes;
	l->nr_ports = p->nr_ports;
	memcpy(l->ports, p->ports, sizeof(l->ports));
	l->chunk_b = opts->packet->chunk_b;
	l->window = opts->packet->window;
	l->peer_timeout_ns = opts->peer_timeout_ns;
	ret = portless ? connect_fill_portless(cc, l) : connect_fill_port(cc, l);
	if (!ret && ctl_path_is_bare(cc, p->link, l->integrity))
		ret = gx_refuse(GX_REASON_AUTH, -EOPNOTSUPP,
				"integrity mode %u of link %s sends in clear, which a key forbids: "
				"leave gx_packet_opts.integrity to gx",
				l->integrity, p->link->name);
	return ret;
}

static int connect_send(struct ctl_conn *cc)
{
	struct ctl_path path = {0};
	int ret = ctl_path_choose(cc, &path);

	if (!ret)
		ret = lanes_setup_new(cc);
	if (!ret)
		ret = ctl_tell_again(cc);
	if (ret)
		return ret;
	path_take(cc->conn, &path);
	if (path.reason == GX_REASON_LAST_RESORT && !cc->dial.dead)
		gx_warn("peer %s: no port that both ends can use (%s): give both ends the same "
			"gx_opts.ports, or ask for gx_connect_opts.link %s",
			cc->conn->peer_name, path.why, path.link->name);
	ret = connect_fill(cc, &path);
	if (!ret)
		ret = ctl_tls_half(cc, cc->setup->local.half);
	if (!ret)
		ret = lanes_open(cc);
	if (ret)
		return ret;
	ctl_conn_goto(cc, CTL_LANES);
	return lanes_send(cc, GX_HELLO_CONNECT);
}

/* If the server may be on this host, show it our user, whatever port we take. */
static int client_hello_take(struct ctl_conn *cc)
{
	if (cc->conn->peer.unix_name[0] && (cc->loopback || cc->conn->same_host)) {
		ctl_conn_goto(cc, CTL_PROVE);
		return ctl_fd_prove(cc);
	}
	snprintf(cc->dial.no_share, sizeof(cc->dial.no_share), "the server has no Unix socket");
	return connect_send(cc);
}

void ctl_hello_shown(struct ctl_conn *cc)
{
	ctl_conn_judge(cc, connect_send(cc));
}

/* May a server answer our proposal @w by @a? */
static bool accept_is_valid(const struct gx_hello_lanes *w, const struct gx_hello_lanes *a)
{
	if (a->link != w->link || strcmp(a->port, w->port) || a->nr_lanes != w->nr_lanes ||
	    a->integrity != w->integrity || a->nr_ports != w->nr_ports ||
	    memcmp(a->ports, w->ports, sizeof(a->ports)))
		return false;
	if (a->quantum < GX_WIRE_QUANTUM_MIN || a->quantum > w->quantum || a->quantum % 16)
		return false;
	if (!a->chunk_b || a->chunk_b % a->quantum || a->chunk_b > GX_MAX(w->chunk_b, a->quantum))
		return false;
	return a->window && a->window <= w->window && a->peer_timeout_ns >= CORE_SILENCE_MIN_NS &&
	       a->peer_timeout_ns <= w->peer_timeout_ns;
}

int ctl_hello_accept_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len)
{
	struct ctl_setup *s = cc->setup;
	int ret;

	if (gx_hello_lanes_get(body, len, &s->remote) || !accept_is_valid(&s->local, &s->remote))
		return gx_refuse(GX_REASON_PROTOCOL, -EPROTO, "malformed ACCEPT");
	if (!cc->proven && !cc->tls && !cc->ctl->gx->opts.insecure)
		return gx_refuse(
			GX_REASON_INSECURE, -EPERM,
			"the server serves in clear whoever comes, and did not show that it "
			"is on this host: set gx_opts.insecure here, too, or show a key");
	lanes_agree(cc->conn, &s->remote);
	ret = ctl_tls_meet(cc, s->remote.half);
	if (!ret)
		ret = link_hear(cc);
	if (ret || (!cc->conn->socks && !ctl_fd_needed(cc)))
		return ret ? ret : lanes_connect(cc);
	ctl_conn_goto(cc, CTL_FDS);
	return cc->conn->socks ? ctl_data_start(cc) : ctl_fd_start(cc);
}

/* ---- Server: HELLO, CONNECT ---- */

static unsigned conns_up(const struct ctl *ctl)
{
	unsigned n = 0;

	for (const struct ctl_conn *cc = ctl->conns; cc; cc = cc->next)
		n += cc->was_up && cc->state <= CTL_UP;
	return n;
}

static int server_conn_new(struct ctl_conn *cc)
{
	int ret;

	if (conns_up(cc->ctl) >= CTL_CONNS_MAX)
		return gx_refuse(
			GX_REASON_FULL, -ENOSPC,
			"the server has %u connections, the most that a context has: a second "
			"server takes more",
			CTL_CONNS_MAX);
	cc->conn = conn_new(cc->ctl->gx, true);
	if (!cc->conn)
		return gx_refuse(GX_REASON_NO_MEMORY, -ENOMEM, "the server is out of memory");
	cc->conn->ctl = cc;
	ret = rights_take(cc->conn, cc->key);
	if (ret)
		return ret;
	if (cc->tls)
		cc->conn->secret = ctl_tls_secret;
	if (cc->came.listener && cc->came.listener->held) {
		atomic_store_explicit(&cc->conn->listener, cc->came.listener, memory_order_relaxed);
		atomic_store(&cc->conn->user, cc->came.listener->user);
	}
	return 0;
}

static int server_hello_take(struct ctl_conn *cc)
{
	ctl_conn_goto(cc, CTL_LANES);
	return ctl_tell(cc);
}

static int hello_refuse(const struct ctl_conn *cc, int err, uint32_t version)
{
	uint32_t own = GX_HELLO_VERSION;

	if (err != -EPROTONOSUPPORT)
		return gx_refuse(GX_REASON_PROTOCOL, -EPROTO, "malformed HELLO");
	return gx_refuse(GX_REASON_VERSION, err,
			 "the client speaks version %u of gx's protocol, the server version %u; "
			 "the %s is gx " GX_VERSION ": install the same gx at both ends",
			 cc->server ? version : own, cc->server ? own : version,
			 cc->server ? "server" : "client");
}

/* Who answers is this process, and it was not meant: of a peer's addresses some are those of any host, as a bridge's. */
static bool hello_is_astray(const struct ctl_conn *cc)
{
	for (unsigned i = 0; i < cc->dial.nr_addrs; i++)
		if (!ctl_addr_is_own(&cc->dial.addrs[i]))
			return cc->tls || cc->dial.nr_addrs > 1;
	return false;
}

int ctl_hello_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len)
{
	struct gx_hello h;
	int ret;

	if (cc->state != CTL_HELLO && cc->conn->peer.pid)
		return gx_refuse(GX_REASON_PROTOCOL, -EPROTO, OUT_OF_TURN);
	ret = gx_hello_get(body, len, &h);

	if (ret || !h.nr_lanes || !h.chunk_b || !h.window)
		return hello_refuse(cc, ret, h.version);
	if (cc->state != CTL_HELLO)
		return ctl_tell_take(cc, &h);
	ret = cc->server ? server_conn_new(cc) : 0;
	if (ret)
		return ret;
	cc->conn->peer = h;
	if (!cc->server && h.id == cc->ctl->gx->id && hello_is_astray(cc))
		return cc->dial.nr_addrs > 1
			       ? gx_refuse(
					 GX_REASON_OTHER_HOST, -ELOOP,
					 "this process listens there itself, and not all addresses "
					 "that were given are of this host")
			       : gx_refuse(
					 GX_REASON_AUTH, -ELOOP,
					 "the connection came back to this process, whose address "
					 "that is not: somebody on the way has turned it round");
	cc->conn->same_host = !memcmp(h.host_id, cc->ctl->host_id, sizeof(h.host_id));
	ctl_tell_name(cc);
	return cc->server ? server_hello_take(cc) : client_hello_take(cc);
}

/* Return: NULL, or the fault of a client's proposal. */
static const char *connect_check(const struct ctl_conn *cc, const struct gx_hello_lanes *l)
{
	if (!l->nr_lanes || l->nr_lanes > cc->ctl->gx->nr_cores)
		return "CONNECT with more lanes than cores, or none";
	if (l->quantum < GX_WIRE_QUANTUM_MIN || l->quantum % 16)
		return "CONNECT with a bad quantum";
	if (!l->chunk_b || !l->window ||
	    l->integrity > (cc->conn->secret ? GX_INTEGRITY_GCM : GX_INTEGRITY_CRC))
		return "CONNECT with a bad chunk, window or integrity mode";
	if (l->peer_timeout_ns < CORE_SILENCE_MIN_NS || l->peer_timeout_ns > CORE_SILENCE_MAX_NS)
		return "CONNECT with a peer time-out outside 1 ms to 1 h";
	for (unsigned i = 0; i < l->nr_lanes; i++)
		if (l->lanes[i].credit > CTL_CREDIT_MAX)
			return "CONNECT with more credit than there are buffers";
	return NULL;
}

/* May this client connect? One rule for all ports: a key, or gx_opts.insecure, lets it in from anywhere.
 * Without, it must have shown that it is of a user of this host whom we serve. */
static int connect_is_allowed(const struct ctl_conn *cc)
{
	if (cc->proven || cc->tls || cc->ctl->gx->opts.insecure)
		return 0;
	return gx_refuse(GX_REASON_USER, -EPERM,
			 "the client came from an address of the server's host and did not show on "
			 "the Unix socket @%.64s that it is of a user who is served: is a proxy or "
			 "a tunnel between them, or has a sandbox hidden the socket? A key "
			 "(gx_auth_opts.key_file) does without",
			 cc->ctl->unix_name);
}

/* The largest payload of a packet at this end; with a pool in GPU memory, at either end. */
static uint32_t accept_quantum_max(const struct ctl_conn *cc, const struct gx_hello_lanes *want)
{
	int peer_i = want->nr_ports ? want->ports[0].client
				    : ctl_path_port_find(&cc->conn->peer, want->port);
	uint32_t max = lanes_port(cc)->caps.payload_max;

	if (cc->conn->link->port == GX_LINK_PORT_NONE)
		return cc->conn->link->quantum_b;
	if (peer_i >= 0 && !cc->ctl->gx->opts.packet->quantum_b && lanes_pool(cc, peer_i))
		max = GX_MAX(max, cc->conn->peer.ports[peer_i].payload_max);
	return GX_MIN(max, (uint32_t)GX_WIRE_QUANTUM_MAX);
}

/* The client's options hold, up to ours. */
static int accept_fill(const struct ctl_conn *cc, const struct gx_hello_lanes *want,
		       struct gx_hello_lanes *l)
{
	const struct gx_opts *opts = &cc->ctl->gx->opts;

	memcpy(l->port, want->port, sizeof(l->port));
	l->link = want->link;
	l->quantum = GX_MIN(want->quantum, accept_quantum_max(cc, want)) & ~15u;
	if (l->quantum < GX_WIRE_QUANTUM_MIN)
		return gx_refuse(GX_REASON_MTU, -EMSGSIZE,
				 "the server's port %s carries less than %u bytes a packet",
				 want->port, GX_WIRE_QUANTUM_MIN);
	l->chunk_b = GX_MIN(want->chunk_b, opts->packet->chunk_b);
	l->chunk_b = GX_MAX(l->chunk_b - l->chunk_b % l->quantum, l->quantum);
	l->window = GX_MIN(want->window, opts->packet->window);
	l->integrity = want->integrity;
	l->peer_timeout_ns = want->peer_timeout_ns;
	if (!cc->proven) /* a stranger that has gone holds our resources so long */
		l->peer_timeout_ns =
			GX_MIN(l->peer_timeout_ns, GX_MAX(opts->peer_timeout_ns, TIMEOUT_FAR_NS));
	l->nr_lanes = want->nr_lanes;
	l->nr_ports = want->nr_ports;
	memcpy(l->ports, want->ports, sizeof(l->ports));
	return 0;
}

/* Each client's lanes begin at the core after the last client's lanes. */
static void connect_cores_take(struct ctl_conn *cc, unsigned nr_lanes)
{
	cc->conn->first_core = cc->ctl->next_core;
	cc->ctl->next_core = (cc->ctl->next_core + nr_lanes) % cc->ctl->gx->nr_cores;
}

/* The proposal is agreed: open the lanes and send ACCEPT. */
static int accept_send(struct ctl_conn *cc)
{
	int ret = ctl_tell_again(cc);

	if (!ret)
		ret = ctl_tls_half(cc, cc->setup->local.half);
	if (!ret)
		ret = ctl_tls_meet(cc, cc->setup->remote.half);
	if (!ret)
		ret = lanes_open(cc);
	if (!ret)
		ret = link_hear(cc);
	if (ret)
		return ret;
	ctl_conn_goto(cc, CTL_FDS); /* before the client can answer */
	ret = lanes_send(cc, GX_HELLO_ACCEPT);
	if (ret || cc->conn->socks) /* the data sockets come */
		return ret;
	return ctl_fd_needed(cc) ? ctl_fd_wait(cc) : lanes_connect(cc);
}

/* The server's program may refuse the client, or close the connection. Return: a verdict. */
static int connect_ask(struct ctl_conn *cc)
{
	const struct gx_opts *opts = &cc->ctl->gx->opts;
	struct gx_conn *c = cc->conn;

	if (!cc->came.listener || !cc->came.listener->ask)
		return 0;
	c->asked = c->asking = true;
	opts->on_conn(opts->arg, c, GX_CONN_EVENT_ASKED, 0, "");
	c->asking = false;
	if (!c->refused || cc->state != CTL_LANES)
		return 0;
	c->asked = false;
	c->user_closed = true;
	return gx_refuse(GX_REASON_REFUSED, -ECONNREFUSED, "%s", c->text);
}

static int connect_take(struct ctl_conn *cc, const struct gx_hello_lanes *want)
{
	struct gx_hello_lanes *l = &cc->setup->local;
	struct ctl_path path = {0};
	int ret = ctl_path_check(cc, want, &path);

	if (ret)
		return ret;
	path_take(cc->conn, &path);
	ret = accept_fill(cc, want, l);
	if (ret)
		return ret;
	lanes_crc_by_copy(cc->conn, l);
	lanes_agree(cc->conn, l);
	ret = connect_ask(cc);
	if (ret || cc->state != CTL_LANES)
		return ret;
	connect_cores_take(cc, l->nr_lanes);
	return accept_send(cc);
}

int ctl_hello_connect_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len)
{
	int ret = connect_is_allowed(cc);
	const char *bad;

	if (!ret)
		ret = lanes_setup_new(cc);
	if (ret)
		return ret;
	bad = gx_hello_lanes_get(body, len, &cc->setup->remote)
		      ? "malformed CONNECT"
		      : connect_check(cc, &cc->setup->remote);
	if (bad)
		return gx_refuse(GX_REASON_PROTOCOL, -EPROTO, "%s", bad);
	return connect_take(cc, &cc->setup->remote);
}
