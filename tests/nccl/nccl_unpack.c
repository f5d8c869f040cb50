/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of the NCCL harness in mode unpack. The harness plays NCCL's device code on the CPU: it reads
 * descriptors, and copies out of the bounce memory into NCCL's buffers. Those are plain memory, that
 * the plugin takes for a GPU's and must not touch. The driver of GPUs is the fake one.
 */
#include "nccl_rank.h"
#include "kit/common_seeds.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KIB	   1024u
#define MIB	   (1024u * KIB)
#define GUARD_B	   64
#define GUARD	   0xa5
#define BOUNCE_MB  "24"
#define PARTS	   4 /* receiving comms that have room in it */
#define RING_B	   (5 * MIB)
#define TIMEOUT_MS 2000 /* GX_NCCL_TIMEOUT_S of the case with a dead peer */
#define SLOW_MS	   30000
#define FLAG_TRY   1

static const char *const unpack_vars[][2] = {
	{"GX_NCCL_MODE", "unpack"},    {"GX_NCCL_BOUNCE_MB", BOUNCE_MB},
	{"NCCL_PROTO", "Simple"},      {"NCCL_PAT_ENABLE", "0"},
	{"NCCL_LOCAL_REGISTER", "0"},  {"NCCL_GRAPH_REGISTER", "0"},
	{"NCCL_NET_GDR_LEVEL", "SYS"}, {"NCCL_NET_GDR_READ", "0"},
};

static const size_t sizes_all[] = {0,	      1,  7, 8, 4 * KIB, 64 * KIB, MIB - 1, 64 * KIB + 1,
				   512 * KIB, MIB};
static const size_t sizes_short[] = {8, 0, 1, 4096, 7};

void unpack_env(bool on)
{
	for (unsigned i = 0; i < sizeof(unpack_vars) / sizeof(unpack_vars[0]); i++)
		if (on)
			setenv(unpack_vars[i][0], unpack_vars[i][1], 1);
		else
			unsetenv(unpack_vars[i][0]);
}

void unpack_current(bool on)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *ctx = NULL;
	unsigned (*init)(unsigned flags), (*retain)(void **ctx, int device), (*set)(void *ctx);

	CHECK(lib, "the fake driver is not in LD_LIBRARY_PATH: %s", dlerror());
	*(void **)&init = dlsym(lib, "cuInit");
	*(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain");
	*(void **)&set = dlsym(lib, "cuCtxSetCurrent");
	CHECK(init && retain && set && !init(0) && !retain(&ctx, 0));
	CHECK(!set(on ? ctx : NULL));
}

static unsigned other(const struct rank *r)
{
	return 1 - r->me;
}

/* ---- NCCL's device code ---- */

/* A slice whose place in NCCL's buffer is @data, with @room bytes. Return: bytes. */
static size_t device_slice(struct link *l, char *data, size_t room)
{
	struct nccl_unpack_handle *h = l->dev.handle;
	unsigned slot = (unsigned)(++h->head % NCCL_UNPACK_SLOTS);
	uint64_t cnt = atomic_load_explicit(&h->meta->cnt[slot], memory_order_relaxed);
	size_t len = 0;

	CHECK(cnt <= NCCL_UNPACK_DESCS);
	for (uint64_t i = 0; i < cnt; i++) {
		const struct nccl_unpack_desc *d = &h->meta->desc[slot][i];

		CHECK(d->dst_off == len && d->len && d->len <= room - len);
		memcpy(data + d->dst_off, (char *)h->bounce + d->src_off, d->len);
		len += d->len;
	}
	return len;
}

/* Memory of NCCL in a GPU: it is not even the fake one's. */
static void gpu_open(struct rank *r, void *comm, struct buf *b, size_t len)
{
	*b = (struct buf){.base = malloc(len), .len = len};
	CHECK(b->base);
	CHECK(!r->net.v12->reg_mr(comm, b->base, len, r->is_unpack ? NCCL_PTR_CUDA : NCCL_PTR_HOST,
				  &b->mh) &&
	      b->mh);
}

/* ---- Messages both ways, every byte checked ---- */

struct run {
	struct link *link;
	unsigned count, depth; /* depth: receives that are not consumed */
	unsigned held;	       /* receives that are done, and wait for the device */
	const size_t *sizes;
	unsigned nr_sizes;
	uint64_t seed;
	/* The run's own. */
	struct buf out, in;
	size_t room;
	void *sent[NCCL_REQS_MAX], *got[NCCL_REQS_MAX];
	unsigned nr_sent, nr_gone, posted, tested, copied;
};

static size_t run_size(const struct run *u, unsigned i)
{
	return u->sizes[i % u->nr_sizes];
}

static char *run_at(const struct run *u, const struct buf *b, unsigned i)
{
	return b->base + i % u->depth * (u->room + GUARD_B);
}

static bool run_send(struct run *u)
{
	struct rank *r = u->link->r;
	char *at = run_at(u, &u->out, u->nr_sent);
	int done = 0, size = -1;

	if (u->nr_gone < u->nr_sent) {
		CHECK(!r->net.v12->test(u->sent[u->nr_gone % u->depth], &done, &size));
		CHECK(!done || size == (int)run_size(u, u->nr_gone));
		u->nr_gone += (unsigned)done;
	}
	if (u->nr_sent == u->count || u->nr_sent - u->nr_gone == u->depth)
		return done;
	pattern_fill(at, run_size(u, u->nr_sent), u->seed + u->nr_sent);
	CHECK(!net_isend(&r->net, u->link->send, at, run_size(u, u->nr_sent), u->out.mh,
			 &u->sent[u->nr_sent % u->depth]));
	if (!u->sent[u->nr_sent % u->depth])
		return done;
	u->nr_sent++;
	return true;
}

static bool run_test(struct run *u)
{
	int done = 0, size = -1;

	if (u->tested == u->posted)
		return false;
	CHECK(!u->link->r->net.v12->test(u->got[u->tested % u->depth], &done, &size));
	CHECK(!done || size == (int)run_size(u, u->tested), "message %u has %d bytes", u->tested,
	      size);
	u->tested += (unsigned)done;
	return done;
}

/* The oldest that is done: the device copies it. */
static bool run_copy(struct run *u)
{
	struct rank *r = u->link->r;
	size_t len = run_size(u, u->copied);
	char *at = run_at(u, &u->in, u->copied);

	if (u->copied == u->tested || (u->tested - u->copied <= u->held && u->tested < u->count &&
				       u->posted - u->copied < u->depth))
		return false;
	if (r->is_unpack) {
		for (size_t i = 0; i < len; i += 509)
			CHECK((uint8_t)at[i] == GUARD, "the plugin writes into a GPU");
		CHECK(device_slice(u->link, at, u->room) == len);
	}
	CHECK(pattern_is(at, len, u->seed + u->copied), "message %u has wrong bytes", u->copied);
	CHECK((uint8_t)at[len] == GUARD);
	CHECK(!r->net.v12->irecv_consumed(u->link->recv, 1, u->got[u->copied % u->depth]));
	u->copied++;
	return true;
}

static bool run_post(struct run *u)
{
	struct rank *r = u->link->r;
	char *at = run_at(u, &u->in, u->posted);
	void **req = &u->got[u->posted % u->depth];

	if (u->posted == u->count || u->posted - u->copied == u->depth)
		return false;
	memset(at, GUARD, u->room + GUARD_B);
	CHECK(!net_irecv(&r->net, u->link->recv, at, u->room, u->in.mh, req));
	if (!*req)
		return false;
	u->posted++;
	return true;
}

static void run_run(void *arg)
{
	struct run *u = arg;

	UNTIL(({
		while (run_send(u) | run_test(u) | run_copy(u) | run_post(u))
			;
		/* With fewer slots than receives that are to be held, the device goes on. */
		if (u->copied < u->tested && u->posted < u->count)
			u->held = 0;
		u->copied == u->count && u->nr_gone == u->count;
	}));
}

static void run_open(void *arg)
{
	struct run *u = arg;
	struct link *l = u->link;

	u->room = 0;
	for (unsigned i = 0; i < u->nr_sizes; i++)
		u->room = u->sizes[i] > u->room ? u->sizes[i] : u->room;
	buf_open(l->r, l->send, &u->out, u->depth * (u->room + GUARD_B));
	gpu_open(l->r, l->recv, &u->in, u->depth * (u->room + GUARD_B));
}

static void run_close(void *arg)
{
	struct run *u = arg;

	buf_close(u->link->r, u->link->send, &u->out);
	buf_close(u->link->r, u->link->recv, &u->in);
}

static void run_all(struct rank *r, struct run *u)
{
	worker_do(&r->service, run_open, u);
	worker_do(&r->progress, run_run, u);
	worker_do(&r->service, run_close, u);
}

static void exchange(struct rank *r, const size_t *sizes, unsigned nr, unsigned count,
		     unsigned depth, unsigned held)
{
	struct link l;
	struct run u = {.link = &l,
			.count = count,
			.depth = depth,
			.held = held,
			.sizes = sizes,
			.nr_sizes = nr,
			.seed = 70};

	rank_link(r, &l, other(r), 0);
	run_all(r, &u);
	barrier(r);
	rank_unlink(r, &l);
}

/* ---- Data ---- */

/* As NCCL: eight receives at most, of a buffer of 4 MiB; then with a device that is slow. */
static void case_sizes(struct rank *r)
{
	static const size_t large[] = {4 * MIB + 3};

	exchange(r, sizes_all, 10, 80, 4, 0);
	exchange(r, sizes_all, 10, 80, 8, 3);
	exchange(r, large, 1, 3, 1, 0);
}

/* More receives than slots: irecv says so, and nothing is lost. */
static void case_slots(struct rank *r)
{
	static const size_t some[] = {1000, 0, 300 * KIB};

	exchange(r, sizes_short, 5, r->is_full ? 100000 : common_rounds(20000), 16, 5);
	exchange(r, sizes_short, 5, common_rounds(2000), 32, 31);
	exchange(r, some, 3, common_rounds(500), 32, 31);
}

/* Nothing is consumed: 16 receives are taken, or what the ring has room for. */
static void case_full(struct rank *r)
{
	void *req[NCCL_UNPACK_SLOTS + 1], *sent[NCCL_UNPACK_SLOTS];
	struct buf in, out;
	struct link l;
	int size;

	rank_link(r, &l, other(r), 0);
	buf_open(r, l.send, &out, 100);
	gpu_open(r, l.recv, &in, RING_B);
	for (unsigned i = 0; i < NCCL_UNPACK_SLOTS; i++)
		CHECK(!net_irecv(&r->net, l.recv, in.base, 100, in.mh, &req[i]) && req[i]);
	for (unsigned i = 0; i < NCCL_UNPACK_SLOTS; i++)
		CHECK(!net_isend(&r->net, l.send, out.base, i, out.mh, &sent[i]) && sent[i]);
	for (unsigned i = 0; i < NCCL_UNPACK_SLOTS; i++) {
		req_wait(r, req[i], &size);
		CHECK(size == (int)i);
		req_wait(r, sent[i], NULL);
		CHECK(!net_irecv(&r->net, l.recv, in.base, 0, in.mh, &req[16]) && !req[16],
		      "a 17th receive was taken");
	}
	for (unsigned i = 0; i < NCCL_UNPACK_SLOTS; i++) {
		CHECK(device_slice(&l, in.base, 100) == i);
		CHECK(!r->net.v12->irecv_consumed(l.recv, 1, req[i]));
	}
	for (unsigned i = 0; i < 5; i++)
		CHECK(!net_irecv(&r->net, l.recv, in.base, MIB, in.mh, &req[i]) && req[i]);
	CHECK(!net_irecv(&r->net, l.recv, in.base, 1, in.mh, &req[5]) && !req[5]);
	barrier(r);
	rank_unlink(r, &l); /* with five receives under way */
	buf_close(r, NULL, &in);
	buf_close(r, NULL, &out);
}

/* The other rank is in mode host: that is each rank's own business. */
static void case_mixed(struct rank *r)
{
	if (r->me == 1) {
		CHECK(!net_finalize(&r->net, r->ctx));
		unsetenv("GX_NCCL_MODE");
		r->is_unpack = false;
		CHECK(!net_init(&r->net, &r->ctx));
	}
	exchange(r, sizes_all, 10, 40, 8, 0);
}

/* Older tables have the same; these have no finalize, so they come last. */
static void case_versions(struct rank *r)
{
	struct nccl_props_v12 p12;

	CHECK(strstr(net_opened(), " near the GPU at 0000:f0:00.0;"), "%s", net_opened());
	CHECK(!r->net.v12->get_properties(0, &p12));
	CHECK(p12.device_type == NCCL_DEVICE_UNPACK && p12.device_version == NCCL_UNPACK_VERSION &&
	      p12.ptr_support == (NCCL_PTR_HOST | NCCL_PTR_CUDA) && p12.recvs_max == 1);
	for (int version = 11; version >= 10; version--) {
		barrier(r);
		CHECK(!net_finalize(&r->net, r->ctx));
		net_load(&r->net, version);
		CHECK(!net_init(&r->net, &r->ctx));
		/* They have the fields up to these at the same place. */
		memset(&p12, 0, sizeof(p12));
		CHECK(!r->net.v12->get_properties(0, &p12));
		CHECK(p12.device_type == NCCL_DEVICE_UNPACK &&
		      p12.device_version == NCCL_UNPACK_VERSION);
		exchange(r, sizes_short, 5, 40, 8, 2);
	}
}

/* ---- What is refused ---- */

static void consumed_wrong(struct rank *r, struct link *l, void *req)
{
	CHECK(r->net.v12->irecv_consumed(l->recv, 1, req) == NCCL_INVALID_ARGUMENT);
}

static void case_misuse(struct rank *r)
{
	struct nccl_unpack_handle *h;
	struct link l, l2;
	struct buf in, out;
	void *req[3], *mh[3], *none = &in;

	rank_link(r, &l, other(r), 0);
	rank_link(r, &l2, other(r), 1);
	buf_open(r, l.send, &out, 100);
	gpu_open(r, l.recv, &in, 2 * RING_B);
	h = l.dev.handle;
	CHECK(l.dev.handle_b == sizeof(*h) && l.dev.needs_progress == 1 && h->head == UINT64_MAX);
	CHECK(h->bounce == ((struct nccl_unpack_handle *)l2.dev.handle)->bounce,
	      "NCCL wants one address");
	CHECK(net_irecv(&r->net, l.recv, in.base, RING_B + 1, in.mh, &none) ==
		      NCCL_INVALID_ARGUMENT &&
	      !none);
	r->net.is_simple = false; /* as NCCL does with LL */
	CHECK(net_irecv(&r->net, l.recv, in.base, 8, in.mh, &none) == NCCL_INVALID_ARGUMENT &&
	      !none);
	r->net.is_simple = true;
	for (unsigned i = 0; i < 2; i++)
		CHECK(!r->net.v12->reg_mr(l.recv, in.base, 8, NCCL_PTR_CUDA, &mh[i]));
	CHECK(r->net.v12->reg_mr(l.recv, in.base, 8, NCCL_PTR_CUDA, &none) && !none,
	      "a buffer that is not NCCL's");
	CHECK(net_isend(&r->net, l.send, in.base, 8, in.mh, &none) == NCCL_INVALID_ARGUMENT &&
	      !none);
	CHECK(r->net.v12->reg_mr(l.send, in.base, 8, NCCL_PTR_CUDA, &none) && !none);
	for (unsigned i = 0; i < 3; i++)
		CHECK(!net_irecv(&r->net, l.recv, in.base, 100, in.mh, &req[i]) && req[i]);
	consumed_wrong(r, &l, req[0]); /* it is not done */
	for (unsigned i = 0; i < 2; i++) {
		CHECK(!net_isend(&r->net, l.send, out.base, 100, out.mh, &none) && none);
		req_wait(r, req[i], NULL);
		req_wait(r, none, NULL);
	}
	consumed_wrong(r, &l, req[1]); /* it is not the oldest */
	consumed_wrong(r, &l2, req[0]);
	consumed_wrong(r, &l, NULL);
	CHECK(r->net.v12->irecv_consumed(l.recv, 2, req[0]) == NCCL_INVALID_ARGUMENT);
	CHECK(device_slice(&l, in.base, 100) == 100);
	CHECK(!r->net.v12->irecv_consumed(l.recv, 1, req[0]));
	consumed_wrong(r, &l, req[0]);
	CHECK(device_slice(&l, in.base, 100) == 100);
	CHECK(!r->net.v12->irecv_consumed(l.recv, 1, req[1]));
	consumed_wrong(r, &l, req[2]);
	barrier(r);
	for (unsigned i = 0; i < 2; i++)
		CHECK(!r->net.v12->dereg_mr(l.recv, mh[i]));
	buf_close(r, l.recv, &in);
	buf_close(r, l.send, &out);
	rank_unlink(r, &l);
	rank_unlink(r, &l2);
}

/* Each variable of NCCL that does not go with the mode fails init. NULL: it is not set. */
static void case_init(struct rank *r)
{
	static const char *const wrong[][2] = {
		{"NCCL_PROTO", "LL"},
		{"NCCL_PROTO", NULL},
		{"NCCL_PAT_ENABLE", "1"},
		{"NCCL_LOCAL_REGISTER", NULL},
		{"NCCL_GRAPH_REGISTER", "1"},
		{"NCCL_NET_GDR_LEVEL", "PHB"},
		{"NCCL_NET_GDR_READ", "1"},
		{"NCCL_ALLOC_P2P_NET_LL_BUFFERS", "1"},
		{"NCCL_NET_SHARED_BUFFERS", "0"},
		{"NCCL_BUFFSIZE", "1024"},
		{"NCCL_BUFFSIZE", "1000000000"},
		{"GX_NCCL_BOUNCE_MB", "6"},
		{"GX_NCCL_BOUNCE_MB", "5000"},
		{"GX_NCCL_MODE", "rope"},
	};

	CHECK(!net_finalize(&r->net, r->ctx));
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		const char *old = getenv(wrong[i][0]);
		char *kept = old ? strdup(old) : NULL;

		if (wrong[i][1])
			setenv(wrong[i][0], wrong[i][1], 1);
		else
			unsetenv(wrong[i][0]);
		CHECK(net_init(&r->net, &r->ctx) && !r->ctx, "%s=%s is taken", wrong[i][0],
		      wrong[i][1] ? wrong[i][1] : "");
		CHECK(!net_finalize(&r->net, r->ctx));
		if (kept)
			setenv(wrong[i][0], kept, 1);
		else
			unsetenv(wrong[i][0]);
		free(kept);
	}
	unpack_current(false);
	CHECK(net_init(&r->net, &r->ctx) && !r->ctx, "without a context of CUDA");
	CHECK(!net_finalize(&r->net, r->ctx));
	unpack_current(true);
	CHECK(!net_init(&r->net, &r->ctx) && r->ctx);
	exchange(r, sizes_short, 5, 20, 8, 0);
}

/* ---- Ends ---- */

/* Rank 1 dies while rank 0 has receives that are done and not consumed, and others. */
static void case_kill(struct rank *r)
{
	void *send, *recv[4];
	struct buf in, out;
	struct link l;
	uint64_t at;

	rank_link(r, &l, other(r), 0);
	buf_open(r, l.send, &out, MIB);
	gpu_open(r, l.recv, &in, MIB);
	pattern_fill(out.base, MIB, 8);
	for (unsigned i = 0; i < 4; i++)
		CHECK(!net_irecv(&r->net, l.recv, in.base, MIB, in.mh, &recv[i]) && recv[i]);
	for (unsigned i = 0; i < 3; i++) {
		CHECK(!net_isend(&r->net, l.send, out.base, MIB, out.mh, &send) && send);
		req_wait(r, send, NULL);
		req_wait(r, recv[i], NULL);
	}
	barrier(r);
	if (r->me == 1) {
		raise(SIGKILL);
		for (;;)
			pause();
	}
	for (unsigned i = 0; i < 2; i++) /* the peer had room for one */
		CHECK(!net_isend(&r->net, l.send, out.base, MIB, out.mh, &send) && send);
	CHECK(req_error(r, recv[3], TIMEOUT_MS + 1000 + SLOW_MS) == NCCL_REMOTE_ERROR);
	CHECK(req_error(r, send, TIMEOUT_MS + 1000 + SLOW_MS) == NCCL_REMOTE_ERROR);
	/* What had come is there. */
	for (unsigned i = 0; i < 2; i++) {
		memset(in.base, 0, MIB);
		CHECK(device_slice(&l, in.base, MIB) == MIB && pattern_is(in.base, MIB, 8));
		CHECK(!r->net.v12->irecv_consumed(l.recv, 1, recv[i]));
	}
	consumed_wrong(r, &l, recv[3]);
	at = now_ns();
	buf_close(r, l.recv, &in);
	buf_close(r, l.send, &out);
	rank_unlink(r, &l);
	CHECK(now_ns() - at < SLOW_MS * 1000000ull, "cleaning up waits for the peer");
}

/* Another connect of rank 0 to the listener of rank 1, until an accept there succeeds. */
static void parts_again(struct rank *r, struct link *l, char *handle)
{
	for (unsigned i = 1;; i++) {
		void *comm = r->me ? NULL : connect_wait(r, handle);
		int ret = 0;

		if (r->me) {
			UNTIL((ret = link_accept(l)) || l->recv);
			CHECK(!ret || (ret == NCCL_SYSTEM_ERROR && !l->recv));
			atomic_store(&r->w->flag[FLAG_TRY], 2 * i + !ret);
		} else {
			UNTIL(atomic_load(&r->w->flag[FLAG_TRY]) / 2 == i);
			CHECK(!r->net.v12->close_send(comm));
			ret = !(atomic_load(&r->w->flag[FLAG_TRY]) % 2);
		}
		if (!ret)
			return;
		usleep(1000);
	}
}

/* The bounce memory is full of comms: one more is refused. A comm that is closed, with slots held,
 * gives its part back. */
static void case_parts(struct rank *r)
{
	void *send[PARTS + 1], *req;
	struct link l[PARTS + 1];
	char handle[NCCL_HANDLE_B], copy[NCCL_HANDLE_B];
	void *listen = NULL;
	struct buf in;
	int ret = 0;

	if (r->me == 1) {
		CHECK(!net_listen(&r->net, r->ctx, handle, &listen));
		mail_put(r, 0, 0, handle);
	} else {
		mail_get(r, 1, 0, handle);
	}
	for (unsigned i = 0; i <= PARTS; i++) {
		l[i] = (struct link){.r = r, .listen = listen};
		if (r->me == 0) {
			memcpy(copy, handle, sizeof(copy));
			send[i] = connect_wait(r, copy);
			continue;
		}
		UNTIL((ret = link_accept(&l[i])) || l[i].recv);
		CHECK(!ret == (i < PARTS) && !l[i].recv == (i == PARTS), "accept %u: %d", i, ret);
	}
	barrier(r);
	if (r->me == 1) {
		gpu_open(r, l[0].recv, &in, 100);
		for (unsigned i = 0; i < 5; i++)
			CHECK(!net_irecv(&r->net, l[0].recv, in.base, 100, in.mh, &req) && req);
		CHECK(!r->net.v12->close_recv(l[0].recv));
		buf_close(r, NULL, &in);
	}
	memcpy(copy, handle, sizeof(copy));
	parts_again(r, &l[0], copy);
	barrier(r);
	for (unsigned i = 0; i < PARTS; i++)
		CHECK(!(r->me ? r->net.v12->close_recv(l[i].recv)
			      : r->net.v12->close_send(send[i])));
	CHECK(r->me || !r->net.v12->close_send(send[PARTS]));
	CHECK(!listen || !r->net.v12->close_listen(listen));
}

/* Communicators come and go, faster than there are parts. */
static void case_many(struct rank *r)
{
	unsigned rounds = r->is_full ? 300 : common_rounds(30);
	void *ctx = r->ctx;

	for (unsigned i = 0; i < rounds; i++) {
		CHECK(!net_init(&r->net, &r->ctx));
		exchange(r, sizes_short, 5, 6, 4, 1);
		CHECK(!net_finalize(&r->net, r->ctx));
		if (i % 3 || !ctx)
			continue;
		/* And the context, too: the memory stays mapped. */
		barrier(r);
		CHECK(!net_finalize(&r->net, ctx));
		CHECK(!net_init(&r->net, &ctx));
	}
	r->ctx = ctx;
}

#define CASE(name, run)                                                                            \
	{                                                                                          \
		name, 2, run, false, NULL, true                                                    \
	}

const struct nccl_case cases_unpack[] = {
	CASE("unpack_sizes", case_sizes),	CASE("unpack_slots", case_slots),
	CASE("unpack_full", case_full),		CASE("unpack_mixed", case_mixed),
	CASE("unpack_versions", case_versions), CASE("unpack_misuse", case_misuse),
	CASE("unpack_init", case_init),		{"unpack_kill", 2, case_kill, true, "2", true},
	CASE("unpack_parts", case_parts),	CASE("unpack_many", case_many),
};
const unsigned nr_cases_unpack = sizeof(cases_unpack) / sizeof(cases_unpack[0]);
