/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group of ranks (include/gx/coll.h) from open to close: its context and memory, and how ranks
 * meet. Ranks connect to rank 0 and say who they are and where they listen (NAME); rank 0 tells
 * everybody where everybody is (TABLE); each rank connects to those below it and reports (MESHED);
 * when all have, rank 0 lets them begin (GO). All of it goes over connections that stay, as
 * messages beside the data path. The caller's thread connects and waits; messages are taken on the
 * control thread.
 */
#include "coll/coll.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HELLO_MAGIC	   0x6c6f6378 /* "xcol" */
#define HELLO_VERSION	   2
#define HELLO_PREFIX_B	   8 /* magic and version: of all versions */
#define GROUP_CONNECT_NS   60000000000ull
#define GROUP_GRACE_NS	   1000000000ull /* rank 0 knows best who is missing: it speaks first */
#define GROUP_STAY_NS	   3000000000ull /* for those that come when the group has failed */
#define GROUP_AGAIN_NS	   50000000ull /* between two tries to reach a rank that is not there yet */
#define GROUP_PIECE_CPU_B  (1u << 20)
#define GROUP_PIECE_GPU_B  (1u << 30)
#define GROUP_DEPTH	   16
#define GROUP_DEPTH_MAX	   256
#define GROUP_CTL_REGION   "gx-coll-ctl"
#define GROUP_CTL_B	   4096
#define GROUP_CLOSE_NAP_NS 20000

enum hello_type { HELLO_NAME = 1, HELLO_TABLE, HELLO_MESHED, HELLO_GO, HELLO_ABORT };

/* What ranks say to one another while they meet, and when one fails. Both ends are little-endian,
 * as everything of gx. A TABLE has nr_ranks entries behind it.
 *
 * A NAME is believed only from who is of the same job, and shows ranks other than 0 the key that
 * they gave rank 0, which is random and made for this run: who found the port by chance, or is of
 * another run, does not know it. */
struct coll_hello {
	uint32_t magic, version, type;
	uint32_t rank, nr_ranks, nr_lanes, nr_bufs, piece_bits;
	int32_t err, lost;	  /* ABORT */
	char addr[COLL_ADDR_MAX]; /* NAME: where the rank listens */
	char text[COLL_TEXT_MAX]; /* ABORT */
	char job[COLL_JOB_MAX];	  /* NAME */
	uint64_t key;		  /* NAME to rank 0: the sender's; else that of who is told it */
};

struct coll_entry {
	char addr[COLL_ADDR_MAX];
	uint64_t key;
};

static void hello_init(const struct gx_group *g, enum hello_type type, struct coll_hello *h)
{
	*h = (struct coll_hello){.magic = HELLO_MAGIC,
				 .version = HELLO_VERSION,
				 .type = type,
				 .rank = g->rank,
				 .nr_ranks = g->nr_ranks,
				 .nr_lanes = gx_nr_cores(g->gx),
				 .nr_bufs = g->nr_bufs,
				 .piece_bits = g->piece_bits,
				 .lost = -1};
	memcpy(h->addr, g->addr, sizeof(h->addr));
	memcpy(h->job, g->job, sizeof(h->job));
}

/* ---- Failure ---- */

static void hello_abort(const struct gx_group *g, int err, int lost, const char *text,
			struct coll_hello *h)
{
	hello_init(g, HELLO_ABORT, h);
	h->err = err;
	h->lost = lost;
	snprintf(h->text, sizeof(h->text), "%s", text);
}

static void group_tell(struct gx_group *g, const struct coll_hello *h)
{
	for (unsigned q = 0; q < g->nr_ranks; q++) {
		struct gx_conn *conn;

		pthread_mutex_lock(&g->lock);
		conn = g->peer[q].conn;
		pthread_mutex_unlock(&g->lock);
		if (conn)
			gx_conn_msg(conn, h, sizeof(*h)); /* who is gone needs no word */
	}
}

int coll_fail(struct gx_group *g, int err, int lost, bool tell, const char *fmt, ...)
{
	char text[COLL_TEXT_MAX];
	struct coll_hello h;
	va_list ap;
	bool first;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	pthread_mutex_lock(&g->lock);
	first = !atomic_load_explicit(&g->err, memory_order_relaxed);
	if (first) {
		memcpy(g->text, text, sizeof(text));
		g->lost = lost;
		/* Pairs with the acquire of who reads text and lost. */
		atomic_store_explicit(&g->err, err, memory_order_release);
	}
	pthread_cond_broadcast(&g->cond);
	pthread_mutex_unlock(&g->lock);
	if (first && tell) {
		hello_abort(g, err, lost, text, &h);
		group_tell(g, &h);
	}
	return err;
}

/* ---- Messages, on the control thread ---- */

/* Why who says @h has no business here; NULL: it may have. */
static const char *name_stranger(const struct gx_group *g, const struct coll_hello *h)
{
	if (strcmp(h->job, g->job))
		return "it is of another job than the group at this address";
	if (g->rank && h->key != g->key)
		return "it is of another run than the group at this address";
	if (g->go)
		return "the group at this address has begun already: was the job started twice, or "
		       "has another one the same address?";
	return NULL;
}

/* Why a rank that says @h cannot be of this group; NULL: it can. */
static const char *name_check(const struct gx_group *g, const struct coll_hello *h, char *buf,
			      size_t room)
{
	if (h->nr_ranks != g->nr_ranks)
		snprintf(buf, room, "it was started as one of %u ranks, rank %u as one of %u",
			 h->nr_ranks, g->rank, g->nr_ranks);
	else if (h->nr_lanes != gx_nr_cores(g->gx))
		snprintf(buf, room, "it has %u cores, rank %u has %u: all need the same number",
			 h->nr_lanes, g->rank, gx_nr_cores(g->gx));
	else if (h->nr_bufs != g->nr_bufs)
		snprintf(buf, room, "it has %u buffers, rank %u has %u", h->nr_bufs, g->rank,
			 g->nr_bufs);
	else if (h->piece_bits != g->piece_bits)
		snprintf(buf, room, "its pieces have %llu bytes, those of rank %u %llu",
			 1ull << (h->piece_bits & 63), g->rank, 1ull << g->piece_bits);
	else if (h->rank <= g->rank || h->rank >= g->nr_ranks)
		snprintf(buf, room, "a rank from %u to %u was expected", g->rank + 1,
			 g->nr_ranks - 1);
	else if (g->peer[h->rank].conn)
		snprintf(buf, room, "two processes say that they are this rank");
	else
		return NULL;
	return buf;
}

/* Tell who says that it is rank @rank, on its connection alone. */
static void name_refuse(struct gx_group *g, struct gx_conn *conn, uint32_t rank, const char *text)
{
	struct coll_hello no;

	pthread_mutex_lock(&g->lock);
	snprintf(g->refused, sizeof(g->refused), "%.250s", text);
	if (rank < g->nr_ranks)
		g->peer[rank].refused = true;
	pthread_mutex_unlock(&g->lock);
	hello_abort(g, -EPROTO, -1, text, &no);
	gx_conn_msg(conn, &no, sizeof(no));
}

/* It is one of us. Under the lock. */
static void name_join(struct gx_group *g, struct gx_conn *conn, const struct coll_hello *h)
{
	struct coll_peer *peer = &g->peer[h->rank];

	memcpy(peer->addr, h->addr, sizeof(peer->addr));
	peer->key = h->key;
	peer->conn = conn;
	gx_conn_user_set(conn, peer);
	pthread_cond_broadcast(&g->cond);
}

/* Anybody may say a NAME. One that does not fit ends the group only if it is known to be of the
 * same job, which would wait for it in vain. */
static void name_take(struct gx_group *g, struct gx_conn *conn, const struct coll_hello *h)
{
	const char *stranger, *why = NULL;
	char buf[200], text[240];
	struct coll_hello no;
	int failed;

	pthread_mutex_lock(&g->lock);
	stranger = name_stranger(g, h);
	if (!stranger)
		why = name_check(g, h, buf, sizeof(buf));
	if (!stranger && !why)
		name_join(g, conn, h);
	failed = g->err; /* before this rank came, so that nobody has told it */
	if (failed)
		hello_abort(g, failed, g->lost, g->text, &no);
	pthread_mutex_unlock(&g->lock);
	if (stranger || why) {
		snprintf(text, sizeof(text), "rank %u does not fit: %s", h->rank,
			 stranger ? stranger : why);
		name_refuse(g, conn, h->rank, text);
		if (!stranger && g->job[0])
			coll_fail(g, -EPROTO, -1, true, "%s", text);
	} else if (failed) {
		gx_conn_msg(conn, &no, sizeof(no));
	}
}

/* Who we connected to does not understand us; of a stranger that came to us it is its business. */
static void hello_other(struct gx_group *g, struct gx_conn *conn, struct coll_peer *peer)
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

static void hello_take(struct gx_group *g, struct coll_peer *peer, const struct coll_hello *h,
		       const char *rest, uint32_t rest_len)
{
	pthread_mutex_lock(&g->lock);
	if (h->type == HELLO_TABLE && peer->rank == 0)
		table_take(g, rest, rest_len);
	else if (h->type == HELLO_GO && peer->rank == 0)
		g->go = true;
	else if (h->type == HELLO_MESHED && g->rank == 0)
		peer->meshed = true;
	pthread_cond_broadcast(&g->cond);
	pthread_mutex_unlock(&g->lock);
	if (h->type == HELLO_ABORT)
		coll_fail(g, h->err < 0 ? h->err : -EPROTO,
			  h->lost < (int)g->nr_ranks ? h->lost : -1, false, "%s", h->text);
}

static void group_on_msg(void *arg, struct gx_conn *conn, const void *data, uint32_t len)
{
	struct gx_group *g = arg;
	struct coll_peer *peer = gx_conn_user(conn);
	struct coll_hello h = {0};

	memcpy(&h, data, GX_MIN(len, (uint32_t)sizeof(h)));
	if (len < HELLO_PREFIX_B || h.magic != HELLO_MAGIC)
		return; /* a stranger that found the port */
	if (h.version != HELLO_VERSION) {
		hello_other(g, conn, peer);
		return;
	}
	if (len < sizeof(h))
		return;
	h.addr[sizeof(h.addr) - 1] = h.text[sizeof(h.text) - 1] = h.job[sizeof(h.job) - 1] = 0;
	if (peer)
		hello_take(g, peer, &h, (const char *)data + sizeof(h), len - sizeof(h));
	else if (h.type == HELLO_NAME)
		name_take(g, conn, &h);
}

static void group_on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
			  const char *why)
{
	struct gx_group *g = arg;
	struct coll_peer *peer = gx_conn_user(conn);
	bool ours;

	if (event != GX_CONN_DOWN || atomic_load(&g->closing))
		return;
	if (!peer && conn->server) /* a stranger's: nobody else closes it */
		gx_conn_close(conn);
	if (!peer)
		return;
	pthread_mutex_lock(&g->lock);
	ours = peer->conn == conn;
	pthread_mutex_unlock(&g->lock);
	if (!ours)
		return; /* one that did not come up */
	snprintf(peer->down_text, sizeof(peer->down_text), "%s", why);
	peer->down_err = err;
	/* Both pair with the acquires in coll_worker_turn() and worker_downs(). */
	atomic_store_explicit(&peer->down, true, memory_order_release);
	atomic_fetch_add_explicit(&g->nr_down, 1, memory_order_release);
	if (!atomic_load(&g->connected))
		coll_fail(g, -ECONNRESET, (int)peer->rank, true,
			  "rank %u was lost while the group formed: %s", peer->rank, why);
}

/* ---- Open ---- */

static int opts_check(const struct gx_group_opts *o)
{
	if (!o->nr_ranks || o->nr_ranks > GX_GROUP_RANKS_MAX)
		return gx_fail(-EINVAL, "%u ranks: 1 to %u", o->nr_ranks, GX_GROUP_RANKS_MAX);
	if (o->rank >= o->nr_ranks)
		return gx_fail(-EINVAL, "rank %u: ranks are 0 to %u", o->rank, o->nr_ranks - 1);
	if (!o->master || !strchr(o->master, ':'))
		return gx_fail(-EINVAL,
			       "master '%s': say where rank 0 listens, as in "
			       "127.0.0.1:29500",
			       o->master ? o->master : "");
	if (strlen(o->master) >= COLL_ADDR_MAX - 8 || (o->host && strlen(o->host) >= 48))
		return gx_fail(-EINVAL, "master '%s': too long", o->master);
	if (o->nr_bufs > GX_GROUP_BUFS_MAX || (o->nr_bufs && !o->bufs))
		return gx_fail(-EINVAL, "%u buffers: at most %u", o->nr_bufs, GX_GROUP_BUFS_MAX);
	if (o->piece_b &&
	    (o->piece_b & (o->piece_b - 1) || o->piece_b < 4096 || o->piece_b > 16ull << 30))
		return gx_fail(-EINVAL, "pieces of %llu bytes: a power of two, 4 KiB to 16 GiB",
			       (unsigned long long)o->piece_b);
	if (o->depth > GROUP_DEPTH_MAX)
		return gx_fail(-EINVAL, "depth %u: at most %u", o->depth, GROUP_DEPTH_MAX);
	if (o->job && strlen(o->job) >= COLL_JOB_MAX)
		return gx_fail(-EINVAL, "job '%s': at most %d bytes", o->job, COLL_JOB_MAX - 1);
	if (o->gx && (o->gx->on_conn || o->gx->on_msg || o->gx->arg))
		return gx_fail(-EINVAL, "callbacks of a group's context are the group's");
	return 0;
}

static void opts_take(struct gx_group *g)
{
	const struct gx_group_opts *o = &g->opts;
	bool gpu = false;
	uint64_t piece_b;

	for (unsigned i = 0; i < o->nr_bufs; i++)
		gpu |= o->bufs[i].kind == GX_MEM_CUDA;
	piece_b = o->piece_b ? o->piece_b : gpu ? GROUP_PIECE_GPU_B : GROUP_PIECE_CPU_B;
	g->piece_bits = 63 - __builtin_clzll(piece_b);
	g->depth = o->depth ? o->depth : GROUP_DEPTH;
	g->fan = o->fan ? o->fan : gpu ? 1 : o->nr_ranks;
	g->rank = o->rank;
	g->nr_ranks = o->nr_ranks;
	g->opts.connect_timeout_ns =
		o->connect_timeout_ns ? o->connect_timeout_ns : GROUP_CONNECT_NS;
	snprintf(g->master, sizeof(g->master), "%s", o->master);
	snprintf(g->port, sizeof(g->port), "%s", o->port ? o->port : "");
	snprintf(g->link, sizeof(g->link), "%s", o->link ? o->link : "");
	snprintf(g->job, sizeof(g->job), "%s", o->job ? o->job : "");
}

static int group_gx_open(struct gx_group *g)
{
	struct gx_opts o = GX_INIT(o);

	if (g->opts.gx)
		memcpy(&o, g->opts.gx, GX_MIN(g->opts.gx->size, sizeof(o)));
	o.size = sizeof(o);
	o.on_conn = group_on_conn;
	o.on_msg = group_on_msg;
	o.arg = g;
	return gx_open(&o, &g->gx);
}

static int group_buf_open(struct gx_group *g, unsigned i)
{
	const struct gx_group_buf *b = &g->opts.bufs[i];
	char name[GX_NAME_MAX];
	int ret;

	if (b->addr)
		ret = gx_mem_reg(g->gx, b->kind, b->device, b->addr, b->len, &g->mem[i]);
	else
		ret = gx_mem_alloc(g->gx, b->kind, b->device, b->len, &g->mem[i]);
	if (ret)
		return ret;
	g->nr_bufs = i + 1;
	snprintf(name, sizeof(name), "gx-coll-%u", i);
	return gx_mem_share(g->mem[i], name, GX_ACCESS_PUT);
}

static int group_mem_open(struct gx_group *g)
{
	int ret = gx_mem_alloc(g->gx, GX_MEM_HOST, 0, GROUP_CTL_B, &g->ctl_mem);

	if (!ret)
		ret = gx_mem_share(g->ctl_mem, GROUP_CTL_REGION, GX_ACCESS_PUT);
	for (unsigned i = 0; i < g->opts.nr_bufs && !ret; i++)
		ret = group_buf_open(g, i);
	return ret;
}

/* The address of this host on the way to rank 0, which no packet asks for. */
static int own_host(const struct gx_group *g, char *host, size_t room)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
	struct sockaddr_storage sa = {0};
	socklen_t len = sizeof(sa);
	char name[COLL_ADDR_MAX], *colon, *from = name;
	struct addrinfo *ai = NULL;
	int fd = -1, ret;

	snprintf(name, sizeof(name), "%s", g->master);
	colon = strrchr(name, ':');
	*colon = 0;
	if (*from == '[' && colon[-1] == ']') {
		colon[-1] = 0;
		from++;
	}
	ret = getaddrinfo(from, colon + 1, &hints, &ai);
	if (ret)
		return gx_fail(-EINVAL, "master %s: %s", g->master, gai_strerror(ret));
	fd = socket(ai->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, ai->ai_addr, ai->ai_addrlen) ||
	    getsockname(fd, (struct sockaddr *)&sa, &len) ||
	    getnameinfo((struct sockaddr *)&sa, len, host, room, NULL, 0, NI_NUMERICHOST))
		ret = gx_fail(-ENETUNREACH, "no way to rank 0 at %s: %s", g->master,
			      strerror(errno));
	if (fd >= 0)
		close(fd);
	freeaddrinfo(ai);
	return ret;
}

/* "HOST:0" to listen at: rank 0 at its master address, others where rank 0 reaches them. */
static int group_listen(struct gx_group *g)
{
	char host[COLL_ADDR_MAX - 12], at[COLL_ADDR_MAX];
	int ret = 0;

	if (g->rank == 0)
		snprintf(at, sizeof(at), "%s", g->master);
	else if (g->opts.host)
		snprintf(host, sizeof(host), "%s", g->opts.host);
	else
		ret = own_host(g, host, sizeof(host));
	if (ret)
		return ret;
	if (g->rank)
		snprintf(at, sizeof(at), strchr(host, ':') ? "[%s]:0" : "%s:0", host);
	ret = gx_listen(g->gx, at);
	if (ret < 0)
		return ret;
	*strrchr(at, ':') = 0;
	snprintf(g->addr, sizeof(g->addr), "%.56s:%u", at, ret & 0xffff);
	return 0;
}

static struct gx_group *group_new(const struct gx_group_opts *opts)
{
	size_t len = GX_ALIGN_UP(sizeof(struct gx_group), GX_CACHE_LINE);
	struct gx_group *g = aligned_alloc(GX_CACHE_LINE, len);
	pthread_condattr_t attr;

	if (!g)
		return NULL;
	memset(g, 0, len);
	g->opts = *opts;
	g->lost = -1;
	pthread_mutex_init(&g->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&g->cond, &attr);
	pthread_condattr_destroy(&attr);
	opts_take(g);
	g->peer = calloc(g->nr_ranks, sizeof(*g->peer));
	for (unsigned q = 0; g->peer && q < g->nr_ranks; q++) {
		g->peer[q].group = g;
		g->peer[q].rank = q;
	}
	return g;
}

GX_EXPORT int gx_group_open(const struct gx_group_opts *user, struct gx_group **out)
{
	struct gx_group_opts opts = GX_INIT(opts);
	char why[COLL_TEXT_MAX];
	struct gx_group *g;
	int ret = gx_size_check(user->size, "gx_group_opts");

	if (ret)
		return ret;
	memcpy(&opts, user, GX_MIN(user->size, sizeof(opts)));
	ret = opts_check(&opts);
	if (ret)
		return ret;
	g = group_new(&opts);
	if (!g)
		return gx_fail(-ENOMEM, "no memory");
	ret = g->peer ? gx_random(&g->key, sizeof(g->key)) : -ENOMEM;
	ret = ret ? gx_fail(ret, "no memory, or no random numbers") : group_gx_open(g);
	if (!ret)
		ret = group_mem_open(g);
	if (!ret)
		ret = coll_workers_open(g);
	if (!ret)
		ret = group_listen(g);
	if (ret) {
		snprintf(why, sizeof(why), "%s", gx_error());
		gx_group_close(g);
		return gx_fail(ret, "%s", why);
	}
	g->opts.bufs = NULL; /* the caller's */
	g->opts.gx = NULL;
	g->opts.master = g->opts.host = g->opts.port = g->opts.link = g->opts.job = NULL;
	*out = g;
	return 0;
}

/* ---- Meeting ---- */

/* Is @q still to do what is waited for? Under the lock. */
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

/* "ranks 1, 3" of those that are due. Under the lock. Return: how many. */
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

/* Wait until no rank is due, or the group has failed. */
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
	return err == -ECONNREFUSED || err == -ECONNRESET || err == -ETIMEDOUT;
}

/* One try. Return: 0 with @out, -errno with gx_error(). */
static int peer_try(struct gx_group *g, struct coll_peer *peer, uint64_t left_ns,
		    struct gx_conn **out)
{
	struct gx_connect_opts co = GX_INIT(co);
	struct gx_conn *conn;
	int ret;

	co.port = g->port[0] ? g->port : NULL;
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

/* From here on its end is a loss. */
static int peer_take(struct gx_group *g, struct coll_peer *peer, struct gx_conn *conn)
{
	struct gx_conn_info info = GX_INIT(info);
	struct coll_hello h;

	pthread_mutex_lock(&g->lock);
	peer->conn = conn;
	pthread_mutex_unlock(&g->lock);
	gx_conn_info(conn, &info);
	hello_init(g, HELLO_NAME, &h);
	h.key = peer->rank ? peer->key : g->key;
	if (info.state != GX_CONN_STATE_UP || gx_conn_msg(conn, &h, sizeof(h)))
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
	uint32_t len = sizeof(struct coll_hello) + g->nr_ranks * sizeof(struct coll_entry);
	char *msg = calloc(1, len), *entries = msg + sizeof(struct coll_hello);
	struct coll_entry e = {.key = 0};
	struct coll_hello h;

	if (!msg)
		return coll_fail(g, -ENOMEM, 0, true, "rank 0: no memory");
	hello_init(g, HELLO_TABLE, &h);
	memcpy(msg, &h, sizeof(h));
	for (unsigned q = 0; q < g->nr_ranks; q++) {
		memcpy(e.addr, g->peer[q].addr, COLL_ADDR_MAX);
		e.key = g->peer[q].key;
		memcpy(entries + q * sizeof(e), &e, sizeof(e));
	}
	for (unsigned q = 1; q < g->nr_ranks; q++)
		gx_conn_msg(g->peer[q].conn, msg, len); /* its end is seen as such */
	free(msg);
	return 0;
}

/* What a peer said of its regions in its hello. */
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

/* All connections of this rank. */
static int group_mesh(struct gx_group *g, uint64_t until_ns)
{
	int ret = 0;

	if (g->rank)
		ret = peer_connect(g, &g->peer[0], until_ns);
	if (!ret && g->rank)
		ret = group_wait(g, until_ns + GROUP_GRACE_NS, is_table_due,
				 "did not say where the others are");
	for (unsigned q = 1; q < g->rank && !ret; q++)
		ret = peer_connect(g, &g->peer[q], until_ns);
	if (!ret)
		ret = group_wait(g, until_ns, is_missing, "did not come");
	if (!ret && !g->rank)
		ret = table_send(g);
	return ret ? ret : group_regions(g);
}

/* Nobody begins before everybody is connected with everybody. */
static int group_begin(struct gx_group *g, uint64_t until_ns)
{
	struct coll_hello h;
	int ret;

	if (g->rank) {
		hello_init(g, HELLO_MESHED, &h);
		gx_conn_msg(g->peer[0].conn, &h, sizeof(h));
		return group_wait(g, until_ns + GROUP_GRACE_NS, is_go_due,
				  "did not let the group begin");
	}
	ret = group_wait(g, until_ns, is_unmeshed, "did not connect with all others");
	if (ret)
		return ret;
	pthread_mutex_lock(&g->lock);
	g->go = true;
	pthread_mutex_unlock(&g->lock);
	hello_init(g, HELLO_GO, &h);
	group_tell(g, &h);
	return 0;
}

GX_EXPORT int gx_group_connect(struct gx_group *g)
{
	uint64_t until_ns = gx_now_ns() + g->opts.connect_timeout_ns;
	int ret;

	if (atomic_load(&g->connected))
		return gx_fail(-EINVAL, "the group is connected already");
	ret = group_mesh(g, until_ns);
	if (!ret)
		ret = group_begin(g, until_ns);
	if (!ret)
		atomic_store(&g->connected, true);
	/* A rank that was lost just before is told of in the callback or here. */
	ret = atomic_load(&g->err);
	return ret ? gx_fail(ret, "%s", g->text) : 0;
}

/* ---- Close ---- */

static void group_leave(struct gx_group *g)
{
	uint64_t until_ns = gx_now_ns() + g->gx->opts.peer_timeout_ns, ticket;

	if (g->gx->core[0]->loop.running)
		return; /* collectives are that thread's to post */
	if (!g->left && gx_leave(g, &ticket))
		return;
	ticket = atomic_load(&g->posted) - 1;
	while (gx_coll_test(g, ticket) == -EINPROGRESS && gx_now_ns() < until_ns) {
		bool busy = false;

		for (unsigned i = 0; i < g->nr_workers; i++)
			if (!g->gx->core[i]->loop.running)
				busy |= gx_core_turn(g->gx->core[i], gx_now_ns());
		if (!busy)
			nanosleep(&(struct timespec){.tv_nsec = GROUP_CLOSE_NAP_NS}, NULL);
	}
}

static bool group_has_met(struct gx_group *g)
{
	bool met = true;

	pthread_mutex_lock(&g->lock);
	for (unsigned q = 1; q < g->nr_ranks; q++)
		met &= g->peer[q].conn || g->peer[q].refused;
	pthread_mutex_unlock(&g->lock);
	return met;
}

/* Rank 0 of a group that failed early: a rank that finds nobody there cannot tell it from one that
 * is to be started yet, and would wait for its whole time-out. Those that were waited for in vain
 * are not waited for again. */
static void group_stay(struct gx_group *g)
{
	uint64_t until_ns = gx_now_ns() + GROUP_STAY_NS;
	int err = atomic_load(&g->err);

	if (g->rank || !err || err == -ETIMEDOUT)
		return;
	while (!group_has_met(g) && gx_now_ns() < until_ns)
		nanosleep(&(struct timespec){.tv_nsec = GROUP_AGAIN_NS}, NULL);
}

GX_EXPORT void gx_group_close(struct gx_group *g)
{
	if (!g)
		return;
	if (!atomic_load(&g->connected))
		group_stay(g);
	else if (!atomic_load(&g->err))
		group_leave(g);
	atomic_store(&g->closing, true);
	for (unsigned i = 0; i < g->nr_workers; i++)
		gx_core_stop(g->gx->core[i]);
	if (g->worker)
		coll_workers_idle(g);
	gx_close(g->gx);
	if (g->worker)
		coll_workers_free(g);
	pthread_cond_destroy(&g->cond);
	pthread_mutex_destroy(&g->lock);
	free(g->peer);
	free(g);
}

/* ---- What only reads ---- */

GX_EXPORT const char *gx_group_addr(const struct gx_group *g)
{
	return g->addr;
}

GX_EXPORT unsigned gx_group_rank(const struct gx_group *g)
{
	return g->rank;
}

GX_EXPORT unsigned gx_group_ranks(const struct gx_group *g)
{
	return g->nr_ranks;
}

GX_EXPORT struct gx *gx_group_gx(struct gx_group *g)
{
	return g->gx;
}

GX_EXPORT struct gx_mem *gx_group_mem(struct gx_group *g, unsigned index)
{
	return index < g->nr_bufs ? g->mem[index] : NULL;
}

GX_EXPORT struct gx_conn *gx_group_conn(struct gx_group *g, unsigned rank)
{
	return rank < g->nr_ranks ? g->peer[rank].conn : NULL;
}

GX_EXPORT const char *gx_group_error(const struct gx_group *g)
{
	/* Pairs with the release in coll_fail(). */
	return atomic_load_explicit(&g->err, memory_order_acquire) ? g->text : "";
}

GX_EXPORT int gx_group_lost(const struct gx_group *g)
{
	return atomic_load_explicit(&g->err, memory_order_acquire) ? g->lost : -1;
}
