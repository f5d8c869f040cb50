/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of the NCCL harness; see nccl_rank.h. */
#include "nccl_rank.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LL_STEP_B  (64u << 10) /* room of a receive of LL */
#define GUARD_B	   64
#define GUARD	   0xa5
#define NO_REQ	   ((void *)(uintptr_t)NCCL_NO_DONE_REQ)
#define LOG_LINE_B 1024

void check_fail(const char *file, int line, const char *cond, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fprintf(stderr, "%s:%d: pid %d: %s is false:%s\n", file, line, getpid(), cond, text);
	_exit(1);
}

uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

unsigned entries(const char *path)
{
	DIR *d = opendir(path);
	unsigned n = 0;

	CHECK(d, "%s", path);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

_Thread_local void (*nap_instead)(void);

void nap(void)
{
	static _Thread_local unsigned turns;

	if (nap_instead)
		nap_instead();
	else if (++turns % 8) /* ranks have more threads than CPUs */
		sched_yield();
	else
		nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* ---- Threads ---- */

static void *worker_main(void *arg)
{
	struct worker *w = arg;

	pthread_mutex_lock(&w->lock);
	while (!w->ends || w->fn) {
		if (!w->fn) {
			pthread_cond_wait(&w->cond, &w->lock);
			continue;
		}
		pthread_mutex_unlock(&w->lock);
		w->fn(w->arg);
		pthread_mutex_lock(&w->lock);
		w->fn = NULL;
		pthread_cond_broadcast(&w->cond);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

void worker_start(struct worker *w)
{
	memset(w, 0, sizeof(*w));
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->cond, NULL);
	CHECK(!pthread_create(&w->thread, NULL, worker_main, w));
}

void worker_run(struct worker *w, void (*fn)(void *arg), void *arg)
{
	pthread_mutex_lock(&w->lock);
	CHECK(!w->fn, "the thread is busy");
	w->fn = fn;
	w->arg = arg;
	pthread_cond_broadcast(&w->cond);
	pthread_mutex_unlock(&w->lock);
}

void worker_wait(struct worker *w)
{
	pthread_mutex_lock(&w->lock);
	while (w->fn) {
		if (!nap_instead) {
			pthread_cond_wait(&w->cond, &w->lock);
			continue;
		}
		pthread_mutex_unlock(&w->lock);
		nap();
		pthread_mutex_lock(&w->lock);
	}
	pthread_mutex_unlock(&w->lock);
}

void worker_do(struct worker *w, void (*fn)(void *arg), void *arg)
{
	worker_run(w, fn, arg);
	worker_wait(w);
}

void worker_end(struct worker *w)
{
	pthread_mutex_lock(&w->lock);
	w->ends = true;
	pthread_cond_broadcast(&w->cond);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->cond);
	pthread_mutex_destroy(&w->lock);
}

/* ---- The table ---- */

static char warned[LOG_LINE_B], reads[LOG_LINE_B], opened[LOG_LINE_B], connected[LOG_LINE_B];
static pthread_mutex_t warned_lock = PTHREAD_MUTEX_INITIALIZER;

const char *net_warned(void)
{
	return warned;
}

const char *net_connected(void)
{
	for (unsigned i = 0; i < 30000; i++) {
		bool said;

		pthread_mutex_lock(&warned_lock);
		said = connected[0];
		pthread_mutex_unlock(&warned_lock);
		if (said)
			break;
		usleep(1000);
	}
	return connected;
}

const char *net_opened(void)
{
	return opened;
}

bool net_reads(double *all_mb, double *helped_mb)
{
	bool said = sscanf(reads, "NET/gx : read %lf MiB out of other processes, of these %lf",
			   all_mb, helped_mb) == 2;

	reads[0] = 0;
	return said;
}

static void net_log(int level, unsigned long flags, const char *file, int line, const char *fmt,
		    ...)
{
	char text[LOG_LINE_B];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (level == NCCL_LOG_WARN) {
		pthread_mutex_lock(&warned_lock);
		memcpy(warned, text, sizeof(warned));
		pthread_mutex_unlock(&warned_lock);
	}
	if (!strncmp(text, "NET/gx : read ", 14)) /* by the thread that finalizes */
		memcpy(reads, text, sizeof(reads));
	if (!strncmp(text, "NET/gx : connected to ", 22)) {
		pthread_mutex_lock(&warned_lock);
		memcpy(connected, text, sizeof(connected));
		pthread_mutex_unlock(&warned_lock);
	}
	if (!strncmp(text, "NET/gx : gx ", 12)) /* by the thread that opens */
		memcpy(opened, text, sizeof(opened));
	if (level <= NCCL_LOG_WARN || getenv("GX_TEST_LOG"))
		fprintf(stderr, "[%d] %s:%d %lx %s\n", getpid(), file, line, flags, text);
}

void net_load(struct net *n, int version)
{
	const char *path = getenv("GX_TEST_NCCL_NET");
	char symbol[32];

	CHECK(path, "GX_TEST_NCCL_NET names the plugin");
	n->version = version;
	n->dl = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	CHECK(n->dl, "%s", dlerror());
	snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", version);
	n->table = dlsym(n->dl, symbol);
	CHECK(n->table, "%s", symbol);
	n->v12 = n->table;
	CHECK(!strcasecmp(n->v12->name, "GX"));
	CHECK(!dlsym(n->dl, "gx_open"), "names of gx show");
}

/* Versions 11 and 12 are the same but for properties. */
int net_init(const struct net *n, void **ctx)
{
	struct nccl_config config = {-1};

	*ctx = NULL;
	if (n->version >= 11)
		return n->v12->init(ctx, 4711, &config, net_log, NULL);
	return ((const struct nccl_net_v10 *)n->table)->init(net_log, NULL);
}

int net_finalize(const struct net *n, void *ctx)
{
	return n->version >= 11 ? n->v12->finalize(ctx) : 0;
}

/* One of the plugin's devices, by a number: NCCL spreads channels over all. */
static int net_dev(const struct net *n, unsigned which)
{
	int nr = 0;

	CHECK(!n->v12->devices(&nr) && nr > 0);
	return (int)(which % (unsigned)nr);
}

int net_listen(const struct net *n, void *ctx, void *handle, void **comm)
{
	static _Atomic unsigned at;
	int dev = net_dev(n, atomic_fetch_add(&at, 1));

	if (n->version >= 11)
		return n->v12->listen(ctx, dev, handle, comm);
	return ((const struct nccl_net_v10 *)n->table)->listen(dev, handle, comm);
}

int net_connect(const struct net *n, void *ctx, void *handle, void **comm)
{
	struct nccl_config config = {-1};
	struct nccl_dev_handle *dev = NULL;
	int at = net_dev(n, ((uint8_t *)handle)[HANDLE_TOKEN]); /* the same in each call */

	if (n->version >= 11)
		return n->v12->connect(ctx, at, handle, comm, &dev);
	return ((const struct nccl_net_v10 *)n->table)->connect(at, &config, handle, comm, &dev);
}

int net_isend(const struct net *n, void *comm, void *data, size_t size, void *mh, void **req)
{
	*req = NO_REQ;
	return n->v12->isend(comm, data, size, 7, mh, NULL, req);
}

/* *req says that NCCL needs no completion, as with LL: the plugin must write it all the same. NCCL
 * says that of no longer message, and not where it may take protocol Simple alone. */
int net_irecv(const struct net *n, void *comm, void *data, size_t size, void *mh, void **req)
{
	int tag = 7;

	*req = n->is_simple || size > LL_STEP_B ? NULL : NO_REQ;
	return n->v12->irecv(comm, 1, &data, &size, &tag, &mh, NULL, req);
}

/* ---- The bootstrap ---- */

void barrier(struct rank *r)
{
	uint32_t round = atomic_load(&r->w->round);

	if (atomic_fetch_add(&r->w->nr_arrived, 1) + 1 == r->w->nr_ranks) {
		atomic_store(&r->w->nr_arrived, 0);
		atomic_fetch_add(&r->w->round, 1);
	}
	UNTIL(atomic_load(&r->w->round) != round);
}

void mail_put(struct rank *r, unsigned to, unsigned slot, const void *handle)
{
	struct mail *m = &r->w->mail[r->me][to][slot];

	UNTIL(!atomic_load(&m->full));
	memcpy(m->handle, handle, NCCL_HANDLE_B);
	atomic_store(&m->full, 1);
}

void mail_get(struct rank *r, unsigned from, unsigned slot, void *handle)
{
	struct mail *m = &r->w->mail[from][r->me][slot];

	UNTIL(atomic_load(&m->full));
	memcpy(handle, m->handle, NCCL_HANDLE_B);
	atomic_store(&m->full, 0);
}

/* ---- Bytes ---- */

uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

void pattern_fill(void *buf, size_t len, uint64_t seed)
{
	char *p = buf;

	for (size_t i = 0; i < len; i += 8) {
		uint64_t w = mix(seed * 0x10001 + i);

		memcpy(p + i, &w, len - i < 8 ? len - i : 8);
	}
}

bool pattern_is(const void *buf, size_t len, uint64_t seed)
{
	const char *p = buf;

	for (size_t i = 0; i < len; i += 8) {
		uint64_t w = mix(seed * 0x10001 + i);

		if (memcmp(p + i, &w, len - i < 8 ? len - i : 8))
			return false;
	}
	return true;
}

static bool guard_is(const char *p)
{
	for (unsigned i = 0; i < GUARD_B; i++)
		if ((uint8_t)p[i] != GUARD)
			return false;
	return true;
}

/* ---- Links ---- */

void *connect_wait(struct rank *r, void *handle)
{
	void *comm = NULL;

	UNTIL(({
		CHECK(!net_connect(&r->net, r->ctx, handle, &comm));
		comm;
	}));
	return comm;
}

void *accept_wait(struct rank *r, void *listen)
{
	void *comm = NULL;

	UNTIL(({
		CHECK(!r->net.v12->accept(listen, &comm, NULL));
		comm;
	}));
	return comm;
}

int link_accept(struct link *l)
{
	struct nccl_dev_handle *dev = l->r->is_unpack ? &l->dev : NULL;

	l->dev = (struct nccl_dev_handle){NCCL_DEVICE_UNPACK, NCCL_UNPACK_VERSION};
	return l->r->net.v12->accept(l->listen, &l->recv, &dev);
}

void link_open(struct rank *r, struct link *l, unsigned peer, unsigned slot)
{
	char mine[NCCL_HANDLE_B], theirs[NCCL_HANDLE_B];

	*l = (struct link){.r = r, .peer = peer, .slot = slot};
	memset(mine, 0x5a, sizeof(mine));
	CHECK(!net_listen(&r->net, r->ctx, mine, &l->listen) && l->listen);
	mail_put(r, peer, slot, mine);
	mail_get(r, peer, slot, theirs);
	UNTIL(({
		if (!l->send)
			CHECK(!net_connect(&r->net, r->ctx, theirs, &l->send));
		if (!l->recv)
			CHECK(!link_accept(l));
		l->send && l->recv;
	}));
	CHECK(!r->net.v12->close_listen(l->listen));
	l->listen = NULL;
}

void link_close(struct link *l)
{
	if (l->send)
		CHECK(!l->r->net.v12->close_send(l->send));
	if (l->recv)
		CHECK(!l->r->net.v12->close_recv(l->recv));
	l->send = l->recv = NULL;
}

void buf_open(struct rank *r, void *comm, struct buf *b, size_t len)
{
	b->len = len;
	b->base = malloc(len ? len : 1);
	CHECK(b->base);
	CHECK(!r->net.v12->reg_mr(comm, b->base, b->len, NCCL_PTR_HOST, &b->mh) && b->mh);
}

void buf_close(struct rank *r, void *comm, struct buf *b)
{
	CHECK(!r->net.v12->dereg_mr(comm, b->mh));
	buf_free(b);
}

void buf_free(struct buf *b)
{
	free(b->base);
}

/* ---- Requests ---- */

void req_wait(struct rank *r, void *req, int *size)
{
	int done = 0;

	UNTIL(({
		CHECK(!r->net.v12->test(req, &done, size), "a request fails");
		done;
	}));
}

int req_error(struct rank *r, void *req, unsigned ms)
{
	uint64_t until = now_ns() + ms * 1000000ull;
	int done = 0, ret = 0;

	while (!ret && !done && now_ns() < until) {
		ret = r->net.v12->test(req, &done, NULL);
		nap();
	}
	CHECK(ret || done, "a request neither ends nor fails within %u ms", ms);
	return ret;
}

/* ---- Streams ---- */

/* The place of message @i, and its guard, in a buffer. */
static char *stream_at(const struct stream *s, const struct buf *b, unsigned i)
{
	return b->base + i % s->depth * (s->room + GUARD_B);
}

static size_t stream_size(const struct stream *s, unsigned i)
{
	return s->sizes[i % s->nr_sizes];
}

void stream_open(struct stream *s)
{
	struct link *l = s->link;

	s->room = 0;
	for (unsigned i = 0; i < s->nr_sizes; i++)
		s->room = s->sizes[i] > s->room ? s->sizes[i] : s->room;
	s->room += 40; /* a receive has room for more than is sent */
	buf_open(l->r, l->send, &s->out, s->depth * (s->room + GUARD_B));
	buf_open(l->r, l->recv, &s->in, s->depth * (s->room + GUARD_B));
}

void stream_close(struct stream *s)
{
	buf_close(s->link->r, s->link->send, &s->out);
	buf_close(s->link->r, s->link->recv, &s->in);
}

static void *stream_send(struct stream *s, unsigned i)
{
	struct rank *r = s->link->r;
	char *at = stream_at(s, &s->out, i);
	void *req;

	pattern_fill(at, stream_size(s, i), s->seed + i);
	CHECK(!net_isend(&r->net, s->link->send, at, stream_size(s, i), s->out.mh, &req));
	return req;
}

static void *stream_recv(struct stream *s, unsigned i)
{
	struct rank *r = s->link->r;
	char *at = stream_at(s, &s->in, i);
	void *req;

	memset(at, GUARD, s->room + GUARD_B);
	CHECK(!net_irecv(&r->net, s->link->recv, at, s->room, s->in.mh, &req));
	return req;
}

static bool stream_test(struct stream *s, void *req, unsigned i, bool is_recv)
{
	const char *at = stream_at(s, &s->in, i);
	int done, size = -1;

	CHECK(!s->link->r->net.v12->test(req, &done, &size), "message %u fails", i);
	if (!done)
		return false;
	CHECK(size == (int)stream_size(s, i), "message %u has %d bytes", i, size);
	if (!is_recv)
		return true;
	CHECK(pattern_is(at, (size_t)size, s->seed + i), "message %u has wrong bytes", i);
	CHECK(guard_is(at + size), "message %u wrote too much", i);
	return true;
}

static bool way_turn(struct stream *s, struct way *w, bool is_recv)
{
	bool busy = false;

	if (w->tested < w->posted &&
	    stream_test(s, w->req[w->tested % s->depth], w->tested, is_recv)) {
		w->tested++;
		busy = true;
	}
	if (w->posted < s->count && w->posted - w->tested < s->depth) {
		void *req = is_recv ? stream_recv(s, w->posted) : stream_send(s, w->posted);

		if (req) {
			CHECK(req != NO_REQ, "*req was not written");
			w->req[w->posted++ % s->depth] = req;
			busy = true;
		}
	}
	return busy;
}

void stream_begin(struct stream *s)
{
	s->way_out = s->way_in = (struct way){.posted = 0};
}

bool stream_turn(struct stream *s, bool is_recv)
{
	return way_turn(s, is_recv ? &s->way_in : &s->way_out, is_recv);
}

bool stream_is_over(const struct stream *s)
{
	return s->way_out.tested == s->count && s->way_in.tested == s->count;
}

void stream_run(void *arg)
{
	struct stream *s = arg;

	stream_begin(s);
	UNTIL(({
		while (stream_turn(s, true) | stream_turn(s, false))
			;
		stream_is_over(s);
	}));
}

/* ---- On the right threads ---- */

static void job_open(void *arg)
{
	struct link_job *j = arg;

	link_open(j->r, j->l, j->peer, j->slot);
}

static void job_close(void *arg)
{
	link_close(arg);
}

static void job_stream_open(void *arg)
{
	stream_open(arg);
}

static void job_stream_close(void *arg)
{
	stream_close(arg);
}

void rank_link(struct rank *r, struct link *l, unsigned peer, unsigned slot)
{
	worker_do(&r->service, job_open, &(struct link_job){r, l, peer, slot});
}

void rank_unlink(struct rank *r, struct link *l)
{
	worker_do(&r->service, job_close, l);
}

void rank_stream(struct rank *r, struct stream *s)
{
	worker_do(&r->service, job_stream_open, s);
	worker_do(&r->progress, stream_run, s);
	worker_do(&r->service, job_stream_close, s);
}
