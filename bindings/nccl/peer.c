/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections to other processes. A process connects to each process that it sends to, once; so
 * the connecting process alone decides when a connection is no longer needed, and two processes
 * that send to one another at the same time do not have to agree on one of two connections.
 *
 * A connection of ours has its peer as the user pointer from the start. So one without is an
 * accepted one. It is a stray until it has named a listener and its token. Strays have some
 * seconds. When there are too many, the oldest one goes: a rank of ours needs no time to show its
 * token.
 */
#include "plug.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SWEEP_MAX 64 /* connections that are closed at once */

static struct peer closing_peer; /* the user pointer of a connection that is about to be closed */

/* ---- Strays ---- */

static struct stray *stray_find(const struct gx_conn *conn)
{
	for (unsigned i = 0; i < plug.nr_strays; i++)
		if (plug.stray[i].conn == conn)
			return &plug.stray[i];
	return NULL;
}

static void stray_forget(const struct gx_conn *conn)
{
	struct stray *s = stray_find(conn);

	if (s)
		*s = plug.stray[--plug.nr_strays];
}

static struct gx_conn *stray_take(unsigned i)
{
	struct gx_conn *conn = plug.stray[i].conn;

	plug.stray[i] = plug.stray[--plug.nr_strays];
	gx_conn_user_set(conn, &closing_peer);
	return conn;
}

/* Return: another connection, which must be closed; NULL: none. */
static struct gx_conn *stray_add(struct gx_conn *conn)
{
	struct gx_conn *out = NULL;
	unsigned oldest = 0;

	for (unsigned i = 1; i < plug.nr_strays; i++)
		if (plug.stray[i].since_ns < plug.stray[oldest].since_ns)
			oldest = i;
	if (plug.nr_strays == STRAYS_MAX)
		out = stray_take(oldest);
	plug.stray[plug.nr_strays++] = (struct stray){conn, gx_now()};
	return out;
}

/* It has ended without a token. */
static void stray_end(const struct gx_conn *conn)
{
	struct stray *s = stray_find(conn);

	if (s)
		s->since_ns = 0;
}

/* ---- Events ---- */

static void peer_mark_down(struct peer *p, const char *why)
{
	if (p->down)
		return;
	p->down = true;
	snprintf(p->why, sizeof(p->why), "%s", why);
}

/* The control thread. */
void peer_on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		  const char *why)
{
	struct gx_conn *other = NULL;
	struct peer *p;

	(void)arg;
	(void)err;
	pthread_mutex_lock(&plug.lock);
	p = gx_conn_user(conn);
	if (event == GX_CONN_EVENT_DOWN && p) {
		peer_mark_down(p, why); /* nobody reads that of &closing_peer */
	} else if (event == GX_CONN_EVENT_DOWN) {
		stray_end(conn);
	} else if (p && p != &closing_peer) {
		p->conn = conn;
		if (peer_up(p))
			meet_up(p);
	} else if (!p && !plug.closing) { /* else gx_close() ends it */
		other = stray_add(conn);
	}
	pthread_mutex_unlock(&plug.lock);
	if (other)
		gx_conn_close(other);
}

/* ---- Making ---- */

/* Another process may have the same name after a restart of a virtual machine, or claim it. */
static bool peer_is(const struct peer *p, const struct handle *h)
{
	return !memcmp(p->process, h->process, sizeof(p->process)) && !strcmp(p->addr, h->addr);
}

static struct peer *peer_find(const struct handle *h)
{
	for (struct peer *p = plug.peers; p; p = p->next) {
		unsigned max = PATH_COMMS * (p->nr_paths ? p->nr_paths : 1);

		if (!p->accepted && !p->down && !p->retired && p->nr_users < max && peer_is(p, h))
			return p;
	}
	return NULL;
}

static struct peer *peer_new(void)
{
	struct peer *p = aligned_alloc(alignof(struct peer), sizeof(*p));

	if (!p)
		return NULL;
	memset(p, 0, sizeof(*p));
	p->next = plug.peers;
	plug.peers = p;
	return p;
}

struct peer *peer_get(const struct handle *h)
{
	struct peer *p = peer_find(h);
	bool found = p;

	if (!p)
		p = peer_new();
	if (!p)
		return NULL;
	p->nr_users++;
	if (found)
		return p;
	memcpy(p->process, h->process, sizeof(p->process));
	memcpy(p->addr, h->addr, sizeof(p->addr));
	p->far = h->host != plug.host || h->netns != plug.netns;
	p->first_core = plug.first_core++ % plug.nr_lanes;
	p->to_dial = true;
	keep_wake();
	return p;
}

/* gx_connect() waits for the control thread, which may wait for the lock. */
static void peer_connect(struct peer *p)
{
	struct gx_connect_opts o = GX_INIT(o);
	struct gx_conn *conn = NULL;
	char why[WHY_B];
	int ret;

	o.link = plug.conf.link;
	/* Between hosts the kernel's TCP moves more for a core than port udp: "Between hosts" of
	 * docs/measured/nccl.md. */
	if (!o.link && p->far && !plug.conf.nr_ports && !plug.conf.offload)
		o.link = "tcp";
	o.timeout_ns = plug.conf.step_ns;
	o.first_core = p->first_core;
	o.user = p;
	ret = gx_connect(plug.gx, p->addr, &o, &conn);
	pthread_mutex_lock(&plug.lock);
	if (ret == -ENOSPC) {
		snprintf(why, sizeof(why), "%s: a process talks with half as many others at most",
			 gx_error());
		peer_mark_down(p, why);
	} else if (ret)
		peer_mark_down(p, gx_error());
	else if (!p->conn)	/* else it is up already, and cores may read the pointer */
		p->conn = conn; /* also when it has ended by now */
	pthread_mutex_unlock(&plug.lock);
}

static struct peer *peer_to_dial(void)
{
	struct peer *p;

	pthread_mutex_lock(&plug.lock);
	for (p = plug.peers; p && !p->to_dial; p = p->next)
		;
	if (p)
		p->to_dial = false;
	pthread_mutex_unlock(&plug.lock);
	return p;
}

/* The keeper alone frees peers. */
void peer_dial(void)
{
	struct peer *p;

	while ((p = peer_to_dial()))
		peer_connect(p);
}

static struct lane *lane_of(const struct gx_core *core)
{
	for (unsigned i = 0; i < plug.nr_lanes; i++)
		if (plug.lane[i].core == core)
			return &plug.lane[i];
	return NULL;
}

bool peer_up(struct peer *p)
{
	struct gx_ep *ep;

	if (p->nr_paths || !p->conn || p->down)
		return p->nr_paths && !p->down;
	while (p->nr_paths < LANES_MAX && (ep = gx_conn_ep(p->conn, p->nr_paths))) {
		p->path[p->nr_paths].ep = ep;
		p->path[p->nr_paths++].lane = lane_of(gx_ep_core(ep));
	}
	return p->nr_paths > 0;
}

struct peer *peer_accept(struct gx_conn *conn)
{
	struct peer *p = peer_new();

	if (!p)
		return NULL;
	p->conn = conn;
	p->accepted = true;
	gx_conn_user_set(conn, p);
	stray_forget(conn);
	peer_up(p);
	return p;
}

/* ---- Ending ---- */

/* Comms that their cores have let go of. */
static void sweep_graves(void)
{
	/* Pairs with the release in lane_bury(). */
	struct comm *c = atomic_exchange_explicit(&plug.graves, NULL, memory_order_acquire);

	while (c) {
		struct comm *next = c->grave_next;

		comm_free(c);
		c = next;
	}
}

static unsigned sweep_strays(struct gx_conn *conns[], unsigned max, uint64_t now_ns)
{
	unsigned n = 0;

	for (unsigned i = plug.nr_strays; i-- > 0 && n < max;) {
		uint64_t since_ns = plug.stray[i].since_ns;

		if (!since_ns || now_ns - since_ns >= STRAY_NS)
			conns[n++] = stray_take(i);
	}
	return n;
}

static unsigned sweep_peers(struct gx_conn *conns[], unsigned max)
{
	struct peer **at = &plug.peers;
	unsigned n = 0;

	while (*at && n < max) {
		struct peer *p = *at;

		if (!(p->down || p->retired) || p->nr_users || p->to_dial) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		if (p->conn) {
			gx_conn_user_set(p->conn, &closing_peer);
			conns[n++] = p->conn;
		}
		free(p);
	}
	return n;
}

void peer_sweep(void)
{
	struct gx_conn *conns[SWEEP_MAX];
	unsigned n;

	do {
		pthread_mutex_lock(&plug.lock);
		sweep_graves();
		n = sweep_strays(conns, SWEEP_MAX, gx_now());
		n += sweep_peers(conns + n, SWEEP_MAX - n);
		pthread_mutex_unlock(&plug.lock);
		for (unsigned i = 0; i < n; i++)
			gx_conn_close(conns[i]);
	} while (n == SWEEP_MAX);
}

/* ---- Telling ---- */

void peer_say(struct peer *p, const char *what, int err)
{
	char why[WHY_B];
	bool first;

	pthread_mutex_lock(&plug.lock);
	first = !p->is_logged;
	p->is_logged = true;
	snprintf(why, sizeof(why), "%s",
		 p->down	 ? p->why
		 : err == -EPIPE ? "the peer has closed its end"
				 : gx_strerror(err));
	pthread_mutex_unlock(&plug.lock);
	if (first)
		say_warn("%s: %s", what, why);
	else
		say_info("%s: %s", what, why);
}

static struct gx_conn *peer_to_show(void)
{
	struct gx_conn *conn = NULL;

	pthread_mutex_lock(&plug.lock);
	for (struct peer *p = plug.peers; p && !conn; p = p->next)
		if (p->to_show) {
			conn = p->conn;
			p->to_show = false;
		}
	pthread_mutex_unlock(&plug.lock);
	return conn;
}

/* A connection lives until the keeper closes it. */
void peer_show(void)
{
	struct gx_conn *conn;

	while ((conn = peer_to_show())) {
		struct gx_conn_info info = GX_INIT(info);

		if (gx_conn_info(conn, &info))
			continue;
		say_info("connected to %s: link %s, port %s, %u lanes (%s)", info.peer, info.link,
			 info.port, info.lanes, info.why);
	}
}
