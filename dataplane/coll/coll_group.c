/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group of ranks (include/gx/coll.h): opens it with its context and memory, and closes it.
 * coll_meet.c lets the ranks meet in between. Runs on the caller's thread.
 */
#include "coll/coll_meet.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define GROUP_CONNECT_NS   60000000000ull
#define GROUP_STAY_NS	   3000000000ull /* for ranks that connect after the group has failed */
#define GROUP_PIECE_CPU_B  (1u << 20)
#define GROUP_PIECE_GPU_B  (1u << 30)
#define GROUP_DEPTH	   16
#define GROUP_DEPTH_MAX	   256
#define GROUP_CTL_B	   4096
#define GROUP_CLOSE_NAP_NS 20000

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
	snprintf(g->port, sizeof(g->port), "%s", o->port ? o->port->name : "");
	snprintf(g->port_device, sizeof(g->port_device), "%s",
		 o->port && o->port->device ? o->port->device : "");
	snprintf(g->link, sizeof(g->link), "%s", o->link ? o->link : "");
	snprintf(g->job, sizeof(g->job), "%s", o->job ? o->job : "");
}

static int group_gx_open(struct gx_group *g)
{
	struct gx_opts o;
	int ret = core_struct_take("gx_opts", &o, sizeof(o), g->opts.gx);

	if (ret)
		return ret;
	o.on_conn = coll_on_conn;
	o.on_msg = coll_on_msg;
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

/* The address of this host on the way to rank 0. No packet is sent to find it. */
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

/* Listen: rank 0 at its master address, another rank at "HOST:0", where rank 0 can reach it. */
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
	struct gx_group_opts opts;
	char why[COLL_TEXT_MAX];
	struct gx_group *g;
	int ret = core_struct_take("gx_group_opts", &opts, sizeof(opts), user);

	if (!ret)
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
	g->opts.bufs = NULL; /* belongs to the caller */
	g->opts.gx = NULL;
	g->opts.master = g->opts.host = g->opts.link = g->opts.job = NULL;
	g->opts.port = NULL;
	*out = g;
	return 0;
}

/* ---- Close ---- */

static void group_leave(struct gx_group *g)
{
	uint64_t until_ns = gx_now_ns() + g->gx->opts.peer_timeout_ns, ticket;

	if (g->gx->core[0]->loop.running)
		return; /* only that thread may post collectives */
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

/* Rank 0 of a group that failed early stays for a while. A late rank that finds nobody here cannot
 * know whether rank 0 is still to start, and would wait for its whole time-out. After a time-out
 * rank 0 does not wait again for the missing ranks. */
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

/* ---- Getters ---- */

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
