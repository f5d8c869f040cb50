/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections to other processes. A process connects to each process that it sends to, once; so
 * the connecting process alone decides when a connection is no longer needed, and two processes
 * that send to one another at the same time do not have to agree on one of two connections.
 *
 * An accepted connection is a stray until it has named a listener and its token. Strays are few,
 * and have some seconds.
 */
#include "plug.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SWEEP_MAX 64 /* connections that one sweep closes */

static struct peer doomed; /* the user pointer of a connection that is about to be closed */

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

/* Return: false: there are too many. */
static bool stray_add(struct gx_conn *conn)
{
	if (plug.nr_strays == STRAYS_MAX)
		return false;
	plug.stray[plug.nr_strays++] = (struct stray){conn, gx_now()};
	return true;
}

/* It has ended without a token. */
static void stray_end(const struct gx_conn *conn)
{
	struct stray *s = stray_find(conn);

	if (s)
		s->since_ns = 0;
	atomic_store(&plug.sweep_due, true);
}

/* ---- Events ---- */

static void peer_mark_down(struct peer *p, const char *why)
{
	if (p->down)
		return;
	p->down = true;
	snprintf(p->why, sizeof(p->why), "%s", why);
	atomic_store(&plug.sweep_due, true);
}

/* The control thread. */
void peer_on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		  const char *why)
{
	bool refuse = false;
	struct peer *p;

	(void)arg;
	(void)err;
	pthread_mutex_lock(&plug.lock);
	p = gx_conn_user(conn);
	if (event == GX_CONN_EVENT_DOWN && p)
		peer_mark_down(p, why); /* nobody reads that of &doomed */
	else if (event == GX_CONN_EVENT_DOWN)
		stray_end(conn);
	else if (!plug.closing && !p && !stray_add(conn))
		refuse = !plug.nr_dialing; /* else it may be one of ours */
	if (refuse)
		gx_conn_user_set(conn, &doomed);
	pthread_mutex_unlock(&plug.lock);
	if (refuse)
		gx_conn_close(conn);
}

/* ---- Making ---- */

static struct peer *peer_find(const struct handle *h)
{
	for (struct peer *p = plug.peers; p; p = p->next) {
		unsigned max = PATH_COMMS * (p->nr_paths ? p->nr_paths : 1);

		if (!p->accepted && !p->down && !p->retired && p->nr_users < max &&
		    !memcmp(p->process, h->process, sizeof(p->process)))
			return p;
	}
	return NULL;
}

static struct peer *peer_new(void)
{
	struct peer *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->next = plug.peers;
	plug.peers = p;
	return p;
}

/* Without the lock: gx_connect() waits for the control thread, which may wait for the lock. Others
 * find @p meanwhile, and wait for it. */
static void peer_connect(struct peer *p, const char *addr, unsigned first_core)
{
	struct gx_connect_opts o = GX_INIT(o);
	struct gx_conn_info info = GX_INIT(info);
	struct gx_conn *conn = NULL;
	int ret;

	o.link = plug.conf.link;
	o.timeout_ns = plug.conf.timeout_ns;
	o.first_core = first_core;
	ret = gx_connect(plug.gx, addr, &o, &conn);
	pthread_mutex_lock(&plug.lock);
	plug.nr_dialing--;
	if (ret) {
		peer_mark_down(p, gx_error());
	} else {
		p->conn = conn;
		gx_conn_user_set(conn, p);
		stray_forget(conn);
	}
	pthread_mutex_unlock(&plug.lock);
	/* It may have ended before peer_on_conn() could know whose it is. */
	if (ret || gx_conn_info(conn, &info) || info.state != GX_CONN_STATE_DOWN)
		return;
	pthread_mutex_lock(&plug.lock);
	peer_mark_down(p, info.text);
	pthread_mutex_unlock(&plug.lock);
}

struct peer *peer_get(const struct handle *h)
{
	unsigned first_core = 0;
	struct peer *p;
	bool found;

	pthread_mutex_lock(&plug.lock);
	p = peer_find(h);
	found = p != NULL;
	if (!found)
		p = peer_new();
	if (p)
		p->nr_users++;
	if (p && !found) {
		memcpy(p->process, h->process, sizeof(p->process));
		plug.nr_dialing++;
		first_core = plug.first_core++ % plug.nr_lanes;
	}
	pthread_mutex_unlock(&plug.lock);
	if (p && !found)
		peer_connect(p, h->addr, first_core);
	return p;
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

	if (plug.nr_dialing) /* one of them may be ours, without its peer yet */
		return 0;
	for (unsigned i = plug.nr_strays; i-- > 0 && n < max;) {
		struct stray s = plug.stray[i];

		if (s.since_ns && now_ns - s.since_ns < STRAY_NS)
			continue;
		plug.stray[i] = plug.stray[--plug.nr_strays];
		gx_conn_user_set(s.conn, &doomed);
		conns[n++] = s.conn;
	}
	return n;
}

static unsigned sweep_peers(struct gx_conn *conns[], unsigned max)
{
	struct peer **at = &plug.peers;
	unsigned n = 0;

	while (*at && n < max) {
		struct peer *p = *at;

		if (!(p->down || p->retired) || p->nr_users) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		if (p->conn) {
			gx_conn_user_set(p->conn, &doomed);
			conns[n++] = p->conn;
		}
		free(p);
	}
	return n;
}

void peer_sweep(void)
{
	static _Atomic uint64_t next_ns;
	struct gx_conn *conns[SWEEP_MAX];
	uint64_t now_ns = gx_now();
	unsigned n;

	if (!atomic_exchange(&plug.sweep_due, false) && now_ns < atomic_load(&next_ns))
		return;
	atomic_store(&next_ns, now_ns + STRAY_NS / 10);
	pthread_mutex_lock(&plug.lock);
	sweep_graves();
	n = sweep_strays(conns, SWEEP_MAX, now_ns);
	n += sweep_peers(conns + n, SWEEP_MAX - n);
	pthread_mutex_unlock(&plug.lock);
	for (unsigned i = 0; i < n; i++)
		gx_conn_close(conns[i]);
}

void peer_say(struct peer *p, const char *what, int err)
{
	char why[WHY_B];
	bool first;

	pthread_mutex_lock(&plug.lock);
	first = !p->told;
	p->told = true;
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

void peer_show(struct peer *p)
{
	struct gx_conn_info info = GX_INIT(info);

	if (!gx_conn_info(p->conn, &info))
		say_info("connected to %s: link %s, port %s, %u lanes (%s)", info.peer, info.link,
			 info.port, info.lanes, info.why);
}
