// SPDX-License-Identifier: Apache-2.0
/*
 * The ranks of a group meet (coll_meet.h). The caller's thread connects and waits; the control
 * thread takes messages and ends of connections.
 */
#include "coll/coll_meet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GROUP_GRACE_NS 1000000000ull /* longer than rank 0 waits: it knows who is missing */

/* ---- Messages, on the control thread ---- */

/* Why the sender of @m is a stranger; NULL: it is of this job and run. */
static const char *name_stranger(const struct gx_group *g, const struct coll_meet *m)
{
	if (strcmp(m->job, g->job))
		return "it is of another job than the group at this address";
	if (g->rank && m->key != g->key)
		return "it is of another run than the group at this address";
	if (g->go)
		return "the group at this address has begun already: was the job started twice, or "
		       "has another one the same address?";
	return NULL;
}

/* Why the rank that sent @m does not fit this group; NULL: it fits. */
static const char *name_check(const struct gx_group *g, const struct coll_meet *m, char *buf,
			      size_t room)
{
	if (m->nr_ranks != g->nr_ranks)
		snprintf(buf, room, "it was started as one of %u ranks, rank %u as one of %u",
			 m->nr_ranks, g->rank, g->nr_ranks);
	else if (m->nr_lanes != gx_nr_cores(g->gx))
		snprintf(buf, room, "it has %u cores, rank %u has %u: all need the same number",
			 m->nr_lanes, g->rank, gx_nr_cores(g->gx));
	else if (m->nr_bufs != g->nr_bufs)
		snprintf(buf, room, "it has %u buffers, rank %u has %u", m->nr_bufs, g->rank,
			 g->nr_bufs);
	else if (m->piece_bits != g->piece_bits)
		snprintf(buf, room, "its pieces have %llu bytes, those of rank %u %llu",
			 1ull << (m->piece_bits & 63), g->rank, 1ull << g->piece_bits);
	else if (m->rank <= g->rank || m->rank >= g->nr_ranks)
		snprintf(buf, room, "a rank from %u to %u was expected", g->rank + 1,
			 g->nr_ranks - 1);
	else if (g->peer[m->rank].conn)
		snprintf(buf, room, "two processes say that they are this rank");
	else
		return NULL;
	return buf;
}

/* Tell the process that calls itself rank @rank, on its connection alone. */
static void name_refuse(struct gx_group *g, struct gx_conn *conn, uint32_t rank, const char *text)
{
	struct coll_meet no;

	pthread_mutex_lock(&g->lock);
	snprintf(g->refused, sizeof(g->refused), "%.250s", text);
	if (rank < g->nr_ranks)
		g->peer[rank].refused = true;
	pthread_mutex_unlock(&g->lock);
	coll_fail_abort(g, -EPROTO, -1, text, &no);
	gx_conn_msg(conn, &no, sizeof(no));
}

/* The rank fits: take its connection. Under the lock. */
static void name_join(struct gx_group *g, struct gx_conn *conn, const struct coll_meet *m)
{
	struct coll_peer *peer = &g->peer[m->rank];

	memcpy(peer->addr, m->addr, sizeof(peer->addr));
	peer->key = m->key;
	peer->conn = conn;
	gx_conn_user_set(conn, peer);
	pthread_cond_broadcast(&g->cond);
}

/* Any process may send a NAME. One that does not fit ends the group only if it is certainly of the
 * same job: that rank would be missing anyway. */
static void name_take(struct gx_group *g, struct gx_conn *conn, const struct coll_meet *m)
{
	const char *stranger, *why = NULL;
	char buf[200], text[240];
	struct coll_meet no;
	int failed;

	pthread_mutex_lock(&g->lock);
	stranger = name_stranger(g, m);
	if (!stranger)
		why = name_check(g, m, buf, sizeof(buf));
	if (!stranger && !why)
		name_join(g, conn, m);
	failed = g->err; /* failed before this rank came, so nobody has told it */
	if (failed)
		coll_fail_abort(g, failed, g->lost, g->text, &no);
	pthread_mutex_unlock(&g->lock);
	if (stranger || why) {
		snprintf(text, sizeof(text), "rank %u does not fit: %s", m->rank,
			 stranger ? stranger : why);
		name_refuse(g, conn, m->rank, text);
		if (!stranger && g->job[0])
			coll_fail(g, -EPROTO, -1, true, "%s", text);
	} else if (failed) {
		gx_conn_msg(conn, &no, sizeof(no));
	}
}

/* The peer speaks another version. If we connected to it, the group fails. A stranger that
 * connected to us is only refused. */
static void meet_other(struct gx_group *g, struct gx_conn *conn, struct coll_peer *peer)
{
	static const char text[] = "another version of gx: install the same everywhere";

	if (!peer)
		name_refuse(g, conn, g->nr_ranks, text);
	else if (!atomic_load(&g->connected))
		coll_fail(g, -EPROTO, (int)peer->rank, false, "rank %u is of %s", peer->rank, text);
}

static void table_take(struct gx_group *g, const char *entries, uint32_t len)
{
	struct coll_entry e;

	if (len != g->nr_ranks * sizeof(e) || g->have_table)
		return;
	for (unsigned q = 1; q < g->nr_ranks; q++) {
		memcpy(&e, entries + q * sizeof(e), sizeof(e));
		memcpy(g->peer[q].addr, e.addr, COLL_ADDR_MAX);
		g->peer[q].addr[COLL_ADDR_MAX - 1] = 0;
		g->peer[q].key = e.key;
	}
	g->have_table = true;
}

static void meet_take(struct gx_group *g, struct coll_peer *peer, const struct coll_meet *m,
		      const char *rest, uint32_t rest_len)
{
	pthread_mutex_lock(&g->lock);
	if (m->type == MEET_TABLE && peer->rank == 0)
		table_take(g, rest, rest_len);
	else if (m->type == MEET_GO && peer->rank == 0)
		g->go = true;
	else if (m->type == MEET_MESHED && g->rank == 0)
		peer->meshed = true;
	pthread_cond_broadcast(&g->cond);
	pthread_mutex_unlock(&g->lock);
	if (m->type == MEET_ABORT)
		coll_fail(g, m->err < 0 ? m->err : -EPROTO,
			  m->lost < (int)g->nr_ranks ? m->lost : -1, false, "%s", m->text);
}

void coll_on_msg(void *arg, struct gx_conn *conn, const void *data, uint32_t len)
{
	struct gx_group *g = arg;
	struct coll_peer *peer = gx_conn_user(conn);
	struct coll_meet m = {0};

	memcpy(&m, data, GX_MIN(len, (uint32_t)sizeof(m)));
	if (len < MEET_PREFIX_B || m.magic != MEET_MAGIC)
		return; /* a stranger that found the port */
	if (m.version != MEET_VERSION) {
		meet_other(g, conn, peer);
		return;
	}
	if (len < sizeof(m))
		return;
	m.addr[sizeof(m.addr) - 1] = m.text[sizeof(m.text) - 1] = m.job[sizeof(m.job) - 1] = 0;
	if (peer)
		meet_take(g, peer, &m, (const char *)data + sizeof(m), len - sizeof(m));
	else if (m.type == MEET_NAME)
		name_take(g, conn, &m);
}

void coll_on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		  const char *why)
{
	struct gx_group *g = arg;
	struct coll_peer *peer = gx_conn_user(conn);
	bool ours;

	if (event != GX_CONN_EVENT_DOWN || atomic_load(&g->closing))
		return;
	if (!peer && conn->server) /* a stranger's: nobody else closes it */
		gx_conn_close(conn);
	if (!peer)
		return;
	pthread_mutex_lock(&g->lock);
	ours = peer->conn == conn;
	pthread_mutex_unlock(&g->lock);
	if (!ours)
		return; /* a connection that did not come up */
	snprintf(peer->down_text, sizeof(peer->down_text), "%s", why);
	peer->down_err = err;
	/* Both pair with the acquires in worker_turn() and worker_downs(). */
	atomic_store_explicit(&peer->down, true, memory_order_release);
	atomic_fetch_add_explicit(&g->nr_down, 1, memory_order_release);
	if (!atomic_load(&g->connected))
		coll_fail(g, -ECONNRESET, (int)peer->rank, true,
			  "rank %u was lost while the group formed: %s", peer->rank, why);
}

/* ---- Meeting ---- */

/* Predicates for group_wait(): is rank @q still due? Under the lock. */
static bool is_missing(const struct gx_group *g, unsigned q)
{
	return q > g->rank && !g->peer[q].conn;
}

static bool is_unmeshed(const struct gx_group *g, unsigned q)
{
	return g->rank == 0 && q > 0 && !g->peer[q].meshed;
}

static bool is_table_due(const struct gx_group *g, unsigned q)
{
	return q == 0 && !g->have_table;
}

static bool is_go_due(const struct gx_group *g, unsigned q)
{
	return q == 0 && !g->go;
}

/* "1, 3": the ranks that are due. Under the lock. Return: their number. */
static unsigned due_text(const struct gx_group *g,
			 bool (*is_due)(const struct gx_group *g, unsigned q), char *buf,
			 size_t room, int *one)
{
	unsigned n = 0;
	size_t at = 0;

	buf[0] = 0;
	for (unsigned q = 0; q < g->nr_ranks; q++) {
		if (!is_due(g, q))
			continue;
		*one = n++ ? -1 : (int)q;
		if (at < room)
			at += (size_t)snprintf(buf + at, room - at, n > 1 ? ", %u" : "%u", q);
	}
	return n;
}

/* Wait until no rank is due, the time is over, or the group has failed. */
static int group_wait(struct gx_group *g, uint64_t until_ns,
		      bool (*is_due)(const struct gx_group *g, unsigned q), const char *what)
{
	const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
				       .tv_nsec = (long)(until_ns % 1000000000u)};
	char ranks[256], refused[sizeof(g->refused)];
	unsigned n;
	int ret = 0, one = -1;

	pthread_mutex_lock(&g->lock);
	while ((n = due_text(g, is_due, ranks, sizeof(ranks), &one)) && !ret && !g->err)
		ret = pthread_cond_timedwait(&g->cond, &g->lock, &until);
	memcpy(refused, g->refused, sizeof(refused));
	pthread_mutex_unlock(&g->lock);
	if (n && ret)
		coll_fail(g, -ETIMEDOUT, one, true, "rank%s %s of %u %s within %g s%s%s%s",
			  n > 1 ? "s" : "", ranks, g->nr_ranks, what,
			  g->opts.connect_timeout_ns / 1e9, refused[0] ? " (one was refused: " : "",
			  refused, refused[0] ? ")" : "");
	return g->err;
}

static bool is_worth_again(int err)
{
	return err == -ECONNREFUSED || err == -ECONNRESET || err == -ETIMEDOUT ||
	       err == -EINPROGRESS;
}

/* One try to connect. Return: 0 with @out, -errno with gx_error(). */
static int peer_try(struct gx_group *g, struct coll_peer *peer, uint64_t left_ns,
		    struct gx_conn **out)
{
	const struct gx_port_name port = {.name = g->port,
					  .device = g->port_device[0] ? g->port_device : NULL};
	struct gx_connect_opts co = GX_INIT(co);
	struct gx_conn *conn;
	int ret;

	co.ports = g->port[0] ? &port : NULL;
	co.nr_ports = g->port[0] ? 1 : 0;
	co.link = g->link[0] ? g->link : NULL;
	co.lanes = gx_nr_cores(g->gx);
	co.timeout_ns = GX_MIN(left_ns, 5000000000ull);
	ret = gx_connect(g->gx, peer->rank ? peer->addr : g->master, &co, &conn);
	if (ret)
		return ret;
	gx_conn_user_set(conn, peer);
	ret = gx_conn_wait(conn, co.timeout_ns + 1000000000ull);
	if (ret)
		gx_conn_close(conn);
	else
		*out = conn;
	return ret;
}

/* From now on the end of the connection is a loss. */
static int peer_take(struct gx_group *g, struct coll_peer *peer, struct gx_conn *conn)
{
	struct gx_conn_info info = GX_INIT(info);
	struct coll_meet m;

	pthread_mutex_lock(&g->lock);
	peer->conn = conn;
	pthread_mutex_unlock(&g->lock);
	gx_conn_info(conn, &info);
	coll_fail_init(g, MEET_NAME, &m);
	m.key = peer->rank ? peer->key : g->key;
	if (info.state != GX_CONN_STATE_UP || gx_conn_msg(conn, &m, sizeof(m)))
		return coll_fail(g, -ECONNRESET, (int)peer->rank, true,
				 "rank %u was lost while the group formed: %s", peer->rank,
				 info.text);
	return 0;
}

static int peer_connect(struct gx_group *g, struct coll_peer *peer, uint64_t until_ns)
{
	const char *addr = peer->rank ? peer->addr : g->master;
	uint64_t now_ns = gx_now_ns();
	struct gx_conn *conn;
	int ret;

	while ((ret = peer_try(g, peer, until_ns - now_ns, &conn)) && is_worth_again(ret) &&
	       !atomic_load(&g->err)) {
		nanosleep(&(struct timespec){.tv_nsec = GROUP_AGAIN_NS}, NULL);
		now_ns = gx_now_ns();
		if (now_ns >= until_ns)
			break;
	}
	if (!ret)
		return peer_take(g, peer, conn);
	if (is_worth_again(ret))
		return coll_fail(
			g, -ETIMEDOUT, (int)peer->rank, true,
			"rank %u was not reached at %s within %g s (%s): is it started, and "
			"is the address right?",
			peer->rank, addr, g->opts.connect_timeout_ns / 1e9, strerror(-ret));
	return coll_fail(g, ret, (int)peer->rank, true, "rank %u at %s: %s", peer->rank, addr,
			 gx_error());
}

static int table_send(struct gx_group *g)
{
	uint32_t len = sizeof(struct coll_meet) + g->nr_ranks * sizeof(struct coll_entry);
	char *msg = calloc(1, len), *entries = msg + sizeof(struct coll_meet);
	struct coll_entry e = {.key = 0};
	struct coll_meet m;

	if (!msg)
		return coll_fail(g, -ENOMEM, 0, true, "rank 0: no memory");
	coll_fail_init(g, MEET_TABLE, &m);
	memcpy(msg, &m, sizeof(m));
	for (unsigned q = 0; q < g->nr_ranks; q++) {
		memcpy(e.addr, g->peer[q].addr, COLL_ADDR_MAX);
		e.key = g->peer[q].key;
		memcpy(entries + q * sizeof(e), &e, sizeof(e));
	}
	for (unsigned q = 1; q < g->nr_ranks; q++)
		gx_conn_msg(g->peer[q].conn, msg, len); /* may fail: coll_on_conn() sees the end */
	free(msg);
	return 0;
}

/* Take the peer's regions from its hello. */
static int peer_regions(struct gx_group *g, struct coll_peer *peer)
{
	struct gx_region r = GX_INIT(r);
	char name[GX_NAME_MAX];
	int ret = gx_conn_region(peer->conn, GROUP_CTL_REGION, 0, &r);

	peer->ctl_token = r.token;
	for (unsigned i = 0; i < g->nr_bufs && !ret; i++) {
		snprintf(name, sizeof(name), "gx-coll-%u", i);
		ret = gx_conn_region(peer->conn, name, 0, &r);
		peer->token[i] = r.token;
		if (r.len < g->room[i]) {
			g->room[i] = r.len;
			g->room_rank[i] = peer->rank;
		}
	}
	return ret ? coll_fail(g, ret, (int)peer->rank, true, "rank %u: %s", peer->rank, gx_error())
		   : 0;
}

static int group_regions(struct gx_group *g)
{
	int ret = 0;

	for (unsigned i = 0; i < g->nr_bufs; i++) {
		g->room[i] = g->mem[i]->len;
		g->room_rank[i] = g->rank;
	}
	for (unsigned q = 0; q < g->nr_ranks && !ret; q++)
		if (q != g->rank)
			ret = peer_regions(g, &g->peer[q]);
	if (!ret && coll_workers_connect(g))
		ret = coll_fail(g, -EPROTO, -1, true, "%s", gx_error());
	return ret;
}

/* Make all connections of this rank. */
static int group_mesh(struct gx_group *g, uint64_t until_ns)
{
	int ret = 0;

	if (g->rank)
		ret = peer_connect(g, &g->peer[0], until_ns);
	if (!ret && g->rank)
		ret = group_wait(g, gx_later_ns(until_ns, GROUP_GRACE_NS), is_table_due,
				 "did not say where the others are");
	for (unsigned q = 1; q < g->rank && !ret; q++)
		ret = peer_connect(g, &g->peer[q], until_ns);
	if (!ret)
		ret = group_wait(g, until_ns, is_missing, "did not come");
	if (!ret && !g->rank)
		ret = table_send(g);
	return ret ? ret : group_regions(g);
}

/* No rank begins before all ranks are connected with one another. */
static int group_begin(struct gx_group *g, uint64_t until_ns)
{
	struct coll_meet m;
	int ret;

	if (g->rank) {
		coll_fail_init(g, MEET_MESHED, &m);
		gx_conn_msg(g->peer[0].conn, &m, sizeof(m));
		return group_wait(g, gx_later_ns(until_ns, GROUP_GRACE_NS), is_go_due,
				  "did not let the group begin");
	}
	ret = group_wait(g, until_ns, is_unmeshed, "did not connect with all others");
	if (ret)
		return ret;
	pthread_mutex_lock(&g->lock);
	g->go = true;
	pthread_mutex_unlock(&g->lock);
	coll_fail_init(g, MEET_GO, &m);
	coll_tell(g, &m);
	return 0;
}

GX_EXPORT int gx_group_connect(struct gx_group *g)
{
	uint64_t until_ns = gx_later_ns(gx_now_ns(), g->opts.connect_timeout_ns);
	int ret;

	if (atomic_load(&g->connected))
		return gx_fail(-EINVAL, "the group is connected already");
	ret = group_mesh(g, until_ns);
	if (!ret)
		ret = group_begin(g, until_ns);
	if (!ret)
		atomic_store(&g->connected, true);
	/* The callback or this call reports a rank that was lost just before. */
	ret = atomic_load(&g->err);
	return ret ? gx_fail(ret, "%s", g->text) : 0;
}
