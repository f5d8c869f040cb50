/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives (include/gx/coll.h): ranks as threads of this process over a link (the first
 * argument: local, or packets over shm or udp; cuda, cuda-local: memory of GPUs, 77 where there is
 * none), and as processes of their own, this program again, where one is to be killed or stopped.
 * Every byte of every destination is compared, with poison around it.
 */
#include "gx/coll.h"
#include "gx_internal/base.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/opt_ctx.h"

#define RANKS_MAX 4
#define BUF_B	  (16u << 20)
#define POISON	  0x6b
#define GUARD_B	  64

extern char **environ;

static const char *way, *port, *link_name; /* the first argument, and what it means */
static bool on_gpu;
static unsigned nr_gpus; /* at most RANKS_MAX: rank i takes GPU i of them, in turns */

/* In a rank's thread, where CMocka's assertions cannot be used. */
#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #cond, gx_error()); \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

static void nap(unsigned us)
{
	nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
}

/* ---- Ranks ---- */

struct rig;

/* One rank. owner: its thread */
struct rank {
	struct rig *rig;
	pthread_t thread;
	unsigned rank;
	struct gx_group *group;
	unsigned char *host; /* BUF_B, to look at what is in a buffer */
	int ret;	     /* of connect */
	char why[512];
};

/* What all ranks of a test share. Frozen once they run. */
struct rig {
	unsigned nr;
	void (*fn)(struct rank *r);
	struct gx_group_opts opts;
	unsigned nr_cores;
	uint64_t peer_timeout_ns;
	char addr[64];	    /* of rank 0 here */
	const char *master; /* where the others find it */
	unsigned first;	    /* ranks from here on are threads of this process */
	unsigned count;
	bool alone;  /* ranks need not connect */
	bool behind; /* rank 2 begins when rank 1 has come to rank 0, or rank 0 has given up */
	_Atomic bool over;   /* .behind: rank 0 is back from connecting */
	_Atomic bool looked; /* .behind: rank 2 reads rank 0's group no more */
	struct rank ranks[RANKS_MAX];
	_Atomic unsigned arrived;
};

static void rank_open(struct rank *r, const char *master)
{
	const struct rig *rig = r->rig;
	struct gx_group_buf bufs[2];
	struct gx_group_opts o = rig->opts;
	struct gx_opts gx = GX_INIT(gx);
	struct opt_ports ports = {0};

	for (unsigned i = 0; i < 2; i++)
		bufs[i] = (struct gx_group_buf){.kind = on_gpu ? GX_MEM_CUDA : GX_MEM_HOST,
						.device = on_gpu ? (int)(r->rank % nr_gpus) : 0,
						.len = BUF_B};
	assert_int_equal(opt_ports(port, &ports), 0);
	gx.ports = ports.v;
	gx.nr_ports = 1;
	gx.nr_cores = rig->nr_cores;
	gx.host = GX_WITH(gx_host_opts, .huge = GX_OFF);
	gx.peer_timeout_ns = rig->peer_timeout_ns;
	o.size = sizeof(o);
	o.rank = r->rank;
	o.nr_ranks = o.nr_ranks ? o.nr_ranks : rig->nr;
	o.master = master;
	o.gx = &gx;
	o.link = link_name;
	o.bufs = bufs;
	o.nr_bufs = 2;
	o.connect_timeout_ns = o.connect_timeout_ns ? o.connect_timeout_ns
						    : 120000000000ull; /* a machine under load */
	CHECK(!gx_group_open(&o, &r->group));
	r->host = malloc(BUF_B);
	CHECK(r->host);
}

/* Rank 2 looks into rank 0's group, so rank 0 closes it after that. */
static void rank_behind(struct rank *r, bool back)
{
	struct rig *rig = r->rig;

	if (rig->behind && r == &rig->ranks[2] && !back) {
		while (!gx_group_conn(rig->ranks[0].group, 1) && !atomic_load(&rig->over))
			nap(100);
		atomic_store(&rig->looked, true);
	} else if (rig->behind && r == &rig->ranks[0] && back) {
		atomic_store(&rig->over, true);
		while (!atomic_load(&rig->looked))
			nap(100);
	}
}

static void *rank_run(void *arg)
{
	struct rank *r = arg;

	rank_behind(r, false);
	if (!r->group)
		rank_open(r, r->rig->master);
	r->ret = gx_group_connect(r->group);
	snprintf(r->why, sizeof(r->why), "%s", gx_error());
	rank_behind(r, true);
	if (!r->rig->alone)
		CHECK(!r->ret);
	for (unsigned i = 1; !r->ret && i < r->rig->nr_cores; i++)
		CHECK(!gx_core_start(gx_core(gx_group_gx(r->group), i)));
	if (!r->ret)
		r->rig->fn(r);
	gx_group_close(r->group);
	free(r->host);
	return NULL;
}

/* Run the ranks that are this process's. Rank 0 opens first: it knows where the others must come.
 */
static void rig_begin(struct rig *rig)
{
	for (unsigned i = 0; i < rig->count; i++)
		rig->ranks[i] = (struct rank){.rig = rig, .rank = rig->first + i};
	if (rig->first == 0) {
		rank_open(&rig->ranks[0], "127.0.0.1:0");
		snprintf(rig->addr, sizeof(rig->addr), "%s", gx_group_addr(rig->ranks[0].group));
		rig->master = rig->addr;
	}
}

static void rig_end(struct rig *rig)
{
	for (unsigned i = 0; i < rig->count; i++)
		CHECK(!pthread_create(&rig->ranks[i].thread, NULL, rank_run, &rig->ranks[i]));
	for (unsigned i = 0; i < rig->count; i++)
		pthread_join(rig->ranks[i].thread, NULL);
}

static void ranks_run(unsigned nr, void (*fn)(struct rank *r))
{
	struct rig rig = {.nr = nr, .count = nr, .fn = fn};

	rig_begin(&rig);
	rig_end(&rig);
}

/* ---- Payload ---- */

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 31) * 0x9e3779b97f4a7c15ull;
	return x ^ x >> 29;
}

/* What rank @from sends to rank @to in round @round. */
static void pattern(unsigned char *p, uint64_t len, unsigned from, unsigned to, unsigned round)
{
	uint64_t x = mix(from * 1000003ull + to * 10007 + round + 1);

	for (uint64_t i = 0; i < len; i++) {
		if (i % 8 == 0)
			x = x * 6364136223846793005ull + 1442695040888963407ull;
		p[i] = (unsigned char)(x >> (i % 8 * 8));
	}
}

/* One collective of a test. */
struct move {
	bool all_to_all, in_place;
	uint64_t len, src_off, dst_off;
	unsigned round;
};

static void move_fill(struct rank *r, const struct move *m)
{
	unsigned n = m->all_to_all ? r->rig->nr : 1;
	struct gx_mem *src = gx_group_mem(r->group, m->in_place);

	for (unsigned q = 0; q < n; q++) {
		pattern(r->host, m->len, r->rank, m->all_to_all ? q : 0, m->round);
		CHECK(!gx_mem_copy_in(src, m->src_off + q * m->len, r->host, m->len));
	}
}

static void move_poison(struct rank *r, const struct move *m)
{
	uint64_t len = m->len * r->rig->nr + 2 * GUARD_B;

	memset(r->host, POISON, len);
	CHECK(!gx_mem_copy_in(gx_group_mem(r->group, 1), m->dst_off - GUARD_B, r->host, len));
}

static int move_post(struct rank *r, const struct move *m, uint64_t *ticket)
{
	struct gx_coll c = GX_INIT(c);

	c.src = gx_group_mem(r->group, m->in_place);
	c.src_off = m->src_off;
	c.dst = 1;
	c.dst_off = m->dst_off;
	c.len = m->len;
	return m->all_to_all ? gx_alltoall(r->group, &c, ticket)
			     : gx_allgather(r->group, &c, ticket);
}

static void move_verify(struct rank *r, const struct move *m)
{
	unsigned char *want = malloc(m->len + 1);
	uint64_t all = m->len * r->rig->nr;

	CHECK(!gx_mem_copy_out(gx_group_mem(r->group, 1), m->dst_off - GUARD_B, r->host,
			       all + 2 * GUARD_B));
	for (unsigned i = 0; i < GUARD_B; i++) {
		CHECK(r->host[i] == POISON);
		CHECK(r->host[GUARD_B + all + i] == POISON);
	}
	for (unsigned q = 0; q < r->rig->nr; q++) {
		pattern(want, m->len, q, m->all_to_all ? r->rank : 0, m->round);
		CHECK(!memcmp(r->host + GUARD_B + q * m->len, want, m->len));
	}
	free(want);
}

static void move_whole(struct rank *r, struct move m)
{
	uint64_t ticket;

	m.dst_off += GUARD_B;
	if (m.in_place)
		m.src_off = m.dst_off + r->rank * m.len;
	move_poison(r, &m);
	move_fill(r, &m);
	CHECK(!move_post(r, &m, &ticket));
	CHECK(!gx_coll_wait(r->group, ticket));
	move_verify(r, &m);
}

/* ---- All-gather, all-to-all ---- */

static const uint64_t sizes[] = {0, 1, 15, 64, 4095, 4097, 100003, (1u << 20) + 5, 3000017};

static void allgather_sizes_fn(struct rank *r)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++)
		move_whole(r, (struct move){
				      .len = sizes[i], .src_off = i, .dst_off = 3 * i, .round = i});
}

static void gx_allgather__sizes(void **state)
{
	for (unsigned nr = 1; nr <= RANKS_MAX; nr++)
		ranks_run(nr, allgather_sizes_fn);
}

static void alltoall_sizes_fn(struct rank *r)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++)
		move_whole(r, (struct move){.all_to_all = true,
					    .len = sizes[i],
					    .src_off = 5 * i,
					    .dst_off = i,
					    .round = i});
}

static void gx_alltoall__sizes(void **state)
{
	for (unsigned nr = 1; nr <= RANKS_MAX; nr++)
		ranks_run(nr, alltoall_sizes_fn);
}

static void in_place_fn(struct rank *r)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++)
		move_whole(r, (struct move){.in_place = true, .len = sizes[i], .round = i});
}

static void gx_allgather__in_place(void **state)
{
	ranks_run(3, in_place_fn);
}

/* Small pieces, few under way, one peer at a time. */
static void gx_allgather__small_pieces(void **state)
{
	struct rig rig = {.nr = 3, .count = 3, .fn = allgather_sizes_fn};

	rig.opts.piece_b = 4096;
	rig.opts.depth = 2;
	rig.opts.fan = 1;
	rig_begin(&rig);
	rig_end(&rig);
}

static void lanes_fn(struct rank *r)
{
	allgather_sizes_fn(r);
	alltoall_sizes_fn(r);
}

/* The first core turned by the rank's thread, the other by gx's. */
static void gx_allgather__two_lanes(void **state)
{
	struct rig rig = {.nr = 2, .count = 2, .nr_cores = 2, .fn = lanes_fn};

	rig_begin(&rig);
	rig_end(&rig);
}

/* As many as there may be, in places of their own; the next one must wait. */
static void in_flight_fn(struct rank *r)
{
	uint64_t ticket[GX_COLL_DEPTH], more;
	struct move m[GX_COLL_DEPTH];

	for (unsigned i = 0; i < GX_COLL_DEPTH; i++) {
		m[i] = (struct move){.all_to_all = i & 1,
				     .len = 20011 + 4 * i,
				     .src_off = i * 200000,
				     .dst_off = i * 200000 + GUARD_B,
				     .round = i};
		move_poison(r, &m[i]);
		move_fill(r, &m[i]);
	}
	for (unsigned i = 0; i < GX_COLL_DEPTH; i++)
		CHECK(!move_post(r, &m[i], &ticket[i]));
	CHECK(gx_barrier(r->group, &more) == -EAGAIN);
	for (unsigned i = 0; i < GX_COLL_DEPTH; i++)
		CHECK(gx_coll_test(r->group, ticket[i]) == -EINPROGRESS);
	for (unsigned i = 0; i < GX_COLL_DEPTH; i++)
		CHECK(!gx_coll_wait(r->group, ticket[i]));
	for (unsigned i = 0; i < GX_COLL_DEPTH; i++)
		move_verify(r, &m[i]);
	CHECK(!gx_barrier(r->group, &more));
	CHECK(!gx_coll_wait(r->group, more));
}

static void gx_allgather__several_in_flight(void **state)
{
	for (unsigned nr = 2; nr <= RANKS_MAX; nr++)
		ranks_run(nr, in_flight_fn);
}

/* The same destination again and again. Rank 1 takes its time to read it while the others have long
 * posted the next: they must not write into it before rank 1 posts. */
static void reuse_fn(struct rank *r)
{
	struct move m = {.len = 70001, .dst_off = GUARD_B};

	for (m.round = 0; m.round < 40; m.round++) {
		uint64_t ticket;

		m.all_to_all = m.round % 3 == 0;
		m.src_off = m.round % 2 * 1000000; /* the source of the last one is free again */
		move_poison(r, &m);
		move_fill(r, &m);
		CHECK(!move_post(r, &m, &ticket));
		CHECK(!gx_coll_wait(r->group, ticket));
		for (unsigned i = 0; r->rank == 1 && i < 20; i++) {
			nap(100);
			gx_core_turn(gx_core(gx_group_gx(r->group), 0), gx_now());
			move_verify(r, &m);
		}
		move_verify(r, &m);
	}
}

static void gx_allgather__slow_reader(void **state)
{
	ranks_run(3, reuse_fn);
}

/* ---- Barrier ---- */

static void barrier_fn(struct rank *r)
{
	uint64_t ticket;

	for (unsigned i = 1; i <= 20; i++) {
		nap(mix(r->rank * 77 + i) % 2000);
		atomic_fetch_add(&r->rig->arrived, 1);
		CHECK(!gx_barrier(r->group, &ticket));
		CHECK(!gx_coll_wait(r->group, ticket));
		CHECK(atomic_load(&r->rig->arrived) >= i * r->rig->nr);
		CHECK(!gx_barrier(r->group, &ticket));
		CHECK(!gx_coll_wait(r->group, ticket));
	}
}

static void gx_barrier__all_have_come(void **state)
{
	ranks_run(4, barrier_fn);
}

/* ---- What is refused ---- */

static void bad_fn(struct rank *r)
{
	struct gx_coll c = GX_INIT(c), ok;
	uint64_t t;

	c.src = gx_group_mem(r->group, 0);
	c.dst = 1;
	c.len = 1000;
	ok = c;
	CHECK(gx_coll_test(r->group, 0) == -EINVAL);
	c.dst = 2;
	CHECK(gx_allgather(r->group, &c, &t) == -EINVAL && strstr(gx_error(), "buffer 2"));
	c = ok;
	c.src = NULL;
	CHECK(gx_allgather(r->group, &c, &t) == -EINVAL && strstr(gx_error(), "source"));
	c = ok;
	c.src_off = BUF_B - 999;
	CHECK(gx_allgather(r->group, &c, &t) == -EINVAL && strstr(gx_error(), "source"));
	c = ok;
	c.dst_off = BUF_B - 1999;
	CHECK(gx_allgather(r->group, &c, &t) == -EINVAL && strstr(gx_error(), "destination"));
	c = ok;
	c.len = UINT64_MAX / 2;
	CHECK(gx_alltoall(r->group, &c, &t) == -EINVAL);
	c = ok;
	c.src = gx_group_mem(r->group, 1);
	c.src_off = 1500;
	CHECK(gx_allgather(r->group, &c, &t) == -EINVAL && strstr(gx_error(), "overlap"));
	c.size = 0;
	CHECK(gx_allgather(r->group, &c, &t) == -EINVAL && strstr(gx_error(), "GX_INIT"));
	/* None of that was posted. */
	CHECK(!gx_allgather(r->group, &ok, &t) && t == 0);
	CHECK(!gx_coll_wait(r->group, t));
	CHECK(!gx_leave(r->group, &t));
	CHECK(gx_barrier(r->group, &t) == -ENOTCONN);
}

static void gx_allgather__bad_input(void **state)
{
	ranks_run(2, bad_fn);
}

static void different_fn(struct rank *r)
{
	struct move m = {.len = r->rank == 2 ? 2000 : 1000, .dst_off = GUARD_B};
	uint64_t t;

	CHECK(!move_post(r, &m, &t));
	CHECK(gx_coll_wait(r->group, t) == -EPROTO);
	CHECK(strstr(gx_group_error(r->group), "different collectives"));
	CHECK(move_post(r, &m, &t) == -EPROTO);
}

static void gx_allgather__ranks_disagree(void **state)
{
	/* A rank may hear of it before it is back from connecting. */
	struct rig rig = {.nr = 3, .count = 3, .alone = true, .fn = different_fn};

	rig_begin(&rig);
	rig_end(&rig);
	for (unsigned i = 0; i < 3; i++)
		assert_true(!rig.ranks[i].ret || rig.ranks[i].ret == -EPROTO);
}

static void late_fn(struct rank *r)
{
	uint64_t t;

	if (r->rank == 1) {
		while (!gx_group_error(r->group)[0]) {
			gx_core_turn(gx_core(gx_group_gx(r->group), 0), gx_now());
			nap(100);
		}
	} else {
		CHECK(!gx_barrier(r->group, &t));
		CHECK(gx_coll_wait(r->group, t) == -ETIMEDOUT);
	}
	CHECK(strstr(gx_group_error(r->group), "rank 1"));
	CHECK(gx_group_lost(r->group) == 1);
}

static void gx_coll_test__late_rank(void **state)
{
	struct rig rig = {.nr = 3, .count = 3, .fn = late_fn};

	rig.opts.timeout_ns = 1500000000; /* ranks 0 and 2 post within that */
	rig_begin(&rig);
	rig_end(&rig);
}

/* ---- Meeting ---- */

static void nothing_fn(struct rank *r)
{
}

/* Rank 2 of 3 is never started: the other two name it. */
static void gx_group_connect__missing_rank(void **state)
{
	struct rig rig = {.nr = 3, .count = 2, .alone = true, .fn = nothing_fn};

	rig.opts.connect_timeout_ns = 2000000000;
	rig_begin(&rig);
	rank_open(&rig.ranks[1], rig.master); /* so that all of that time is for its coming */
	rig_end(&rig);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(rig.ranks[i].ret, -ETIMEDOUT);
		assert_non_null(strstr(rig.ranks[i].why, "rank"));
	}
	assert_non_null(strstr(rig.ranks[0].why, "rank 2 of 3 did not come"));
}

static void gx_group_connect__no_rank_0(void **state)
{
	struct rig rig = {.nr = 2, .count = 1, .first = 1, .alone = true, .fn = nothing_fn};

	rig.opts.connect_timeout_ns = 300000000;
	rig.master = "127.0.0.1:1";
	rig_begin(&rig);
	rig_end(&rig);
	assert_int_equal(rig.ranks[0].ret, -ETIMEDOUT);
	assert_non_null(strstr(rig.ranks[0].why, "rank 0"));
	assert_non_null(strstr(rig.ranks[0].why, "127.0.0.1:1"));
}

/* Two say that they are rank 1, or one believes in another number of ranks. */
static void gx_group_connect__does_not_fit(void **state)
{
	for (unsigned pass = 0; pass < 2; pass++) {
		struct rig rig = {.nr = 3, .count = 3, .alone = true, .fn = nothing_fn};

		rig.opts.job = "one"; /* so that they are known to be of one */
		rig_begin(&rig);
		if (pass == 0) {
			rig.ranks[2].rank = 1;
		} else {
			/* Rank 0 gives up when rank 2 has come; rank 1 is to be told of it. */
			rank_open(&rig.ranks[1], rig.master);
			rig.opts.nr_ranks = 4;
			rig.behind = true;
		}
		rig_end(&rig);
		for (unsigned i = 0; i < 3; i++) {
			if (rig.ranks[i].ret != -EPROTO)
				fail_msg("pass %u, rank %u: %s", pass, i, rig.ranks[i].why);
			assert_non_null(strstr(rig.ranks[i].why, "does not fit"));
			assert_non_null(strstr(rig.ranks[i].why, pass ? "one of 4" : "two proc"));
		}
	}
}

static void *close_run(void *group)
{
	gx_group_close(group);
	return NULL;
}

/* Rank 2 comes when rank 0 has found that rank 1 does not fit, and closes: it hears so at once. */
static void gx_group_connect__after_the_failure(void **state)
{
	struct rig rig = {.nr = 3, .count = 3, .alone = true, .fn = nothing_fn};
	uint64_t begin_ns;
	pthread_t thread;

	rig.opts.job = "one";
	rig.opts.connect_timeout_ns = 60000000000ull;
	rig_begin(&rig);
	rig.opts.nr_ranks = 4;
	rank_open(&rig.ranks[1], rig.master);
	rig.opts.nr_ranks = 3;
	rank_open(&rig.ranks[2], rig.master);
	assert_int_equal(gx_group_connect(rig.ranks[1].group), -EPROTO);
	assert_int_equal(pthread_create(&thread, NULL, close_run, rig.ranks[0].group), 0);
	nap(200000);
	begin_ns = gx_now();
	assert_int_equal(gx_group_connect(rig.ranks[2].group), -EPROTO);
	assert_true(gx_now() - begin_ns < rig.opts.connect_timeout_ns / 2);
	assert_non_null(strstr(gx_error(), "rank 1 does not fit: it was started as one of 4"));
	pthread_join(thread, NULL);
	for (unsigned i = 0; i < 3; i++) {
		if (i)
			gx_group_close(rig.ranks[i].group);
		free(rig.ranks[i].host);
	}
}

/* ---- Strangers ---- */

static void *connect_run(void *arg)
{
	struct rank *r = arg;

	r->ret = gx_group_connect(r->group);
	snprintf(r->why, sizeof(r->why), "%s", gx_error());
	return NULL;
}

/* A rank of another job, or of another run of it, comes to @addr. */
static void stranger_comes(const char *addr, unsigned rank, unsigned nr, const char *job,
			   const char *hears)
{
	struct rig rig = {.nr = nr};
	struct rank r = {.rig = &rig, .rank = rank};

	rig.opts.job = job;
	rig.opts.connect_timeout_ns = 20000000000ull;
	rank_open(&r, addr);
	connect_run(&r);
	assert_int_equal(r.ret, -EPROTO);
	if (!strstr(r.why, hears))
		fail_msg("heard '%s', not '%s'", r.why, hears);
	gx_group_close(r.group);
	free(r.host);
}

/* Says what is no NAME of this version: it hears, or not, and nothing else happens. */
static void stranger_says(const char *addr, const void *data, uint32_t len)
{
	struct gx_conn *conn;
	struct gx *gx;

	assert_int_equal(gx_open(NULL, &gx), 0);
	assert_int_equal(gx_connect(gx, addr, NULL, &conn), 0);
	assert_int_equal(gx_conn_wait(conn, 20000000000ull), 0);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(gx_conn_msg(conn, data, len), 0);
	nap(50000);
	gx_close(gx);
}

/* magic and version, then what another version might say. */
static void strangers_say(const char *addr)
{
	uint32_t words[400] = {0x6c6f6378, 1, 1, 1, 2, 1, 2, 20};

	stranger_says(addr, words, 684); /* as version 1 said it */
	words[1] = 3;
	stranger_says(addr, words, sizeof(words));
	stranger_says(addr, words, 8);
	stranger_says(addr, words, 7);
	words[2] = 5;
	words[1] = 2;
	stranger_says(addr, words, sizeof(words)); /* ABORT */
	stranger_says(addr, words, 100);
}

/* This thread turns both ranks until what @post posts is done. */
static void both_do(struct rig *rig, int (*post)(struct gx_group *g, uint64_t *ticket))
{
	uint64_t t[2];

	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(post(rig->ranks[i].group, &t[i]), 0);
	for (unsigned k = 0; k < 20000 && (gx_coll_test(rig->ranks[0].group, t[0]) ||
					   gx_coll_test(rig->ranks[1].group, t[1]));
	     k++) {
		for (unsigned i = 0; i < 2; i++)
			gx_core_turn(gx_core(gx_group_gx(rig->ranks[i].group), 0), gx_now());
		nap(100);
	}
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(gx_coll_test(rig->ranks[i].group, t[i]), 0);
}

/* Strangers come while rank 0 waits for rank 1, and when both are at work, to either of them. */
static void gx_group_connect__strangers(void **state)
{
	for (unsigned pass = 0; pass < 2; pass++) {
		struct rig rig = {.nr = 2, .count = 2};
		const char *job = pass ? "ours" : NULL, *addr;

		rig.opts.job = job;
		rig_begin(&rig);
		assert_int_equal(
			pthread_create(&rig.ranks[0].thread, NULL, connect_run, &rig.ranks[0]), 0);
		stranger_comes(rig.master, 1, 3, "theirs", "another job");
		if (pass) /* one that says the same job, and does not fit, would end it */
			stranger_comes(rig.master, 1, 2, NULL, "another job");
		else
			stranger_comes(rig.master, 1, 3, NULL, "one of 3");
		strangers_say(rig.master);
		rank_open(&rig.ranks[1], rig.master);
		connect_run(&rig.ranks[1]);
		pthread_join(rig.ranks[0].thread, NULL);
		for (unsigned i = 0; i < 2; i++)
			if (rig.ranks[i].ret)
				fail_msg("rank %u: %s", i, rig.ranks[i].why);
		both_do(&rig, gx_barrier);
		for (unsigned i = 0; i < 2; i++) {
			addr = gx_group_addr(rig.ranks[i].group);
			stranger_comes(addr, 1, 2, job, i ? "another run" : "begun already");
			stranger_comes(addr, 1, 3, job, i ? "another run" : "begun already");
			stranger_comes(addr, 1, 2, "theirs", "another job");
			if (!pass)
				strangers_say(addr);
			both_do(&rig, gx_barrier);
		}
		both_do(&rig, gx_leave); /* or the first to close would wait for the other's core */
		for (unsigned i = 0; i < 2; i++) {
			assert_string_equal(gx_group_error(rig.ranks[i].group), "");
			gx_group_close(rig.ranks[i].group);
			free(rig.ranks[i].host);
		}
	}
}

/* Who waits in vain is told that one was refused, and why. */
static void gx_group_connect__names_who_was_refused(void **state)
{
	struct rig rig = {.nr = 2, .count = 1};

	rig.opts.connect_timeout_ns = 2000000000;
	rig_begin(&rig);
	assert_int_equal(pthread_create(&rig.ranks[0].thread, NULL, connect_run, &rig.ranks[0]), 0);
	stranger_comes(rig.master, 1, 3, NULL, "one of 3");
	pthread_join(rig.ranks[0].thread, NULL);
	assert_int_equal(rig.ranks[0].ret, -ETIMEDOUT);
	assert_non_null(strstr(rig.ranks[0].why, "rank 1 of 2 did not come"));
	assert_non_null(strstr(rig.ranks[0].why, "refused: rank 1 does not fit: it was started"));
	gx_group_close(rig.ranks[0].group);
	free(rig.ranks[0].host);
}

static int open_try(struct gx_group_opts *o)
{
	struct gx_group *group = NULL;
	int ret = gx_group_open(o, &group);

	if (!ret)
		gx_group_close(group);
	return ret;
}

static void gx_group_open__bad_input(void **state)
{
	const struct gx_opts gx = {.size = sizeof(gx), .arg = (void *)state};
	struct gx_group_opts good = GX_INIT(good), o;

	good.nr_ranks = 2;
	good.master = "127.0.0.1:0";
	o = good;
	o.nr_ranks = 0;
	assert_int_equal(open_try(&o), -EINVAL);
	o.nr_ranks = GX_GROUP_RANKS_MAX + 1;
	assert_int_equal(open_try(&o), -EINVAL);
	o = good;
	o.rank = 2;
	assert_int_equal(open_try(&o), -EINVAL);
	assert_non_null(strstr(gx_error(), "rank 2"));
	o = good;
	o.master = "nowhere";
	assert_int_equal(open_try(&o), -EINVAL);
	o.master = NULL;
	assert_int_equal(open_try(&o), -EINVAL);
	o = good;
	o.piece_b = 5000;
	assert_int_equal(open_try(&o), -EINVAL);
	o = good;
	o.nr_bufs = 1;
	assert_int_equal(open_try(&o), -EINVAL);
	o = good;
	o.gx = &gx;
	assert_int_equal(open_try(&o), -EINVAL);
	gx_group_close(NULL);
	/* One that was opened and never connected. */
	assert_int_equal(open_try(&good), 0);
}

/* ---- Ranks that go ---- */

/* Rank 2 leaves while the others go on: that it was told of is no excuse for those. It comes to one
 * barrier first, or it might be gone before the others know that the group has begun. */
static void leaver_fn(struct rank *r)
{
	uint64_t t;
	int ret = 0;

	if (r->rank == 2) {
		CHECK(!gx_barrier(r->group, &t) && !gx_coll_wait(r->group, t));
		return;
	}
	while (!ret) {
		CHECK(!gx_barrier(r->group, &t) || gx_group_error(r->group)[0]);
		ret = gx_coll_wait(r->group, t);
	}
	CHECK(strstr(gx_group_error(r->group), "rank"));
}

static void gx_group_close__others_go_on(void **state)
{
	struct rig rig = {.nr = 3, .count = 3, .fn = leaver_fn, .peer_timeout_ns = 1000000000};

	rig_begin(&rig);
	rig_end(&rig);
}

/* This program again, as the last rank. */
static pid_t rank_spawn(const struct rig *rig)
{
	char rank[16], nr[16];
	char *argv[] = {"test_coll", (char *)way, "rank", rank, nr, (char *)rig->master, NULL};
	pid_t pid;

	snprintf(rank, sizeof(rank), "%u", rig->nr - 1);
	snprintf(nr, sizeof(nr), "%u", rig->nr);
	assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
	return pid;
}

static pid_t victim;
static int victim_signal;

/* All ranks: all-gathers without end. Rank 0 sends the last one its signal in the middle of them.
 */
static void endless_fn(struct rank *r)
{
	struct move m = {.len = 300001, .dst_off = GUARD_B};
	uint64_t t, begin = 0;
	int ret = 0;

	for (unsigned i = 0; !ret; i++) {
		if (r->rank == 0 && i == 50) {
			kill(victim, victim_signal);
			begin = gx_now();
		}
		ret = move_post(r, &m, &t);
		if (!ret)
			ret = gx_coll_wait(r->group, t);
	}
	if (r->rank == r->rig->nr - 1)
		return;
	CHECK(ret == -ECONNRESET || ret == -ETIMEDOUT);
	CHECK(gx_group_lost(r->group) == (int)r->rig->nr - 1);
	CHECK(strstr(gx_group_error(r->group), "rank 2 is lost"));
	CHECK(r->rank || gx_now() - begin < 20000000000ull);
}

static void last_rank_lost(int signo)
{
	struct rig rig = {.nr = 3, .count = 2, .fn = endless_fn, .peer_timeout_ns = 1000000000};
	int status;

	rig_begin(&rig);
	victim = rank_spawn(&rig);
	victim_signal = signo;
	rig_end(&rig);
	kill(victim, SIGKILL);
	waitpid(victim, &status, 0);
}

static void gx_coll_wait__rank_killed(void **state)
{
	last_rank_lost(SIGKILL);
}

static void gx_coll_wait__rank_stopped(void **state)
{
	last_rank_lost(SIGSTOP);
}

static int role_rank(char *argv[])
{
	struct rig rig = {.first = strtoul(argv[3], NULL, 10),
			  .nr = strtoul(argv[4], NULL, 10),
			  .master = argv[5],
			  .count = 1,
			  .fn = endless_fn,
			  .peer_timeout_ns = 1000000000};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	rig_begin(&rig);
	rig_end(&rig);
	return 0;
}

/* ---- Environment ---- */

static const char *const env_names[] = {"RANK",
					"WORLD_SIZE",
					"LOCAL_RANK",
					"MASTER_ADDR",
					"MASTER_PORT",
					"TORCHELASTIC_USE_AGENT_STORE",
					"OMPI_COMM_WORLD_RANK",
					"OMPI_COMM_WORLD_SIZE",
					"OMPI_COMM_WORLD_LOCAL_RANK",
					"OMPI_COMM_WORLD_LOCAL_SIZE",
					"PMI_RANK",
					"PMI_SIZE",
					"MPI_LOCALRANKID",
					"MPI_LOCALNRANKS",
					"SLURM_PROCID",
					"SLURM_NTASKS",
					"SLURM_LOCALID",
					"SLURM_NNODES",
					"SLURM_STEP_NODELIST",
					"GX_JOB",
					"TORCHELASTIC_RUN_ID",
					"PMIX_NAMESPACE",
					"PMI_JOBID",
					"SLURM_JOB_ID",
					"SLURM_STEP_ID"};

/* "NAME=VALUE NAME=VALUE", and nothing else of what counts. */
static int env_try(const char *vars, struct gx_group_env *env)
{
	char copy[256], *save = NULL;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(env_names); i++)
		unsetenv(env_names[i]);
	snprintf(copy, sizeof(copy), "%s", vars);
	for (char *v = strtok_r(copy, " ", &save); v; v = strtok_r(NULL, " ", &save)) {
		char *value = strchr(v, '=');

		*value++ = 0;
		setenv(v, value, 1);
	}
	*env = (struct gx_group_env)GX_INIT(*env);
	return gx_group_env(env);
}

static void gx_group_env__launchers(void **state)
{
	static const struct {
		const char *vars, *launcher;
		unsigned rank, nr, local;
		const char *master, *job;
	} rows[] = {
		{"RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=h MASTER_PORT=77", "torchrun", 3, 8,
		 1, "h:77"},
		{"RANK=3 WORLD_SIZE=8 MASTER_ADDR=fe80::1", "torchrun", 3, 8, 3, "[fe80::1]:29500"},
		{"RANK=3 WORLD_SIZE=8 MASTER_ADDR=h TORCHELASTIC_USE_AGENT_STORE=True", "torchrun",
		 3, 8, 3, "h:29501"},
		{"RANK=3 WORLD_SIZE=8 MASTER_ADDR=h MASTER_PORT=77 "
		 "TORCHELASTIC_USE_AGENT_STORE=False",
		 "torchrun", 3, 8, 3, "h:77"},
		{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2",
		 "Open MPI", 1, 2, 1, "127.0.0.1:29500"},
		{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2",
		 "Open MPI", 1, 4, 1, ""},
		{"PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0 MASTER_ADDR=a", "PMI", 0, 1, 0,
		 "a:29500"},
		{"SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_NNODES=4 "
		 "SLURM_STEP_NODELIST=gpu[03-05,9]",
		 "Slurm", 5, 8, 1, "gpu03:29500"},
		{"SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_STEP_NODELIST=a1,b2", "Slurm", 5, 8, 5,
		 "a1:29500"},
		{"RANK=0 WORLD_SIZE=1 TORCHELASTIC_RUN_ID=none", "torchrun", 0, 1, 0, ""},
		{"RANK=0 WORLD_SIZE=1 TORCHELASTIC_RUN_ID=r7", "torchrun", 0, 1, 0, "", "r7"},
		{"RANK=0 WORLD_SIZE=1 TORCHELASTIC_RUN_ID=r7 GX_JOB=mine", "torchrun", 0, 1, 0, "",
		 "mine"},
		{"PMI_RANK=0 PMI_SIZE=1 PMI_JOBID=12345678901234567890123456789012345678901234567"
		 "8901234567890123456789",
		 "PMI", 0, 1, 0, "",
		 "789012345678901234567890123456789012345678901234567890123456789"},
		{"SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_JOB_ID=8 SLURM_STEP_ID=2", "Slurm", 0, 1, 0,
		 "", "8.2"},
		{"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NNODES=1", "Slurm", 0, 2, 0,
		 "127.0.0.1:29500"},
		{"SLURM_PROCID=0 SLURM_NTASKS=2 RANK=1 WORLD_SIZE=2", "torchrun", 1, 2, 1, ""},
	};
	struct gx_group_env env;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(rows); i++) {
		assert_int_equal(env_try(rows[i].vars, &env), 0);
		assert_string_equal(env.launcher, rows[i].launcher);
		assert_int_equal(env.rank, rows[i].rank);
		assert_int_equal(env.nr_ranks, rows[i].nr);
		assert_int_equal(env.local_rank, rows[i].local);
		assert_string_equal(env.master, rows[i].master);
		assert_string_equal(env.job, rows[i].job ? rows[i].job : "");
	}
}

static void gx_group_env__bad(void **state)
{
	static const char *const rows[] = {
		"RANK=x WORLD_SIZE=2",
		"RANK=2 WORLD_SIZE=2",
		"RANK=0 WORLD_SIZE=0",
		"RANK=-1 WORLD_SIZE=2",
		"RANK=0 WORLD_SIZE=257",
		"PMI_RANK= PMI_SIZE=1",
		"RANK=0 WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=65536",
		"RANK=0 WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=65535 "
		"TORCHELASTIC_USE_AGENT_STORE=True",
	};
	struct gx_group_env env;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(rows); i++)
		assert_int_equal(env_try(rows[i], &env), -EINVAL);
	assert_int_equal(env_try("", &env), -ENOENT);
	assert_int_equal(env_try("RANK=0", &env), -ENOENT);
}

/* ---- main ---- */

/* Return: how many there are, at most RANKS_MAX; 0 after the reason. */
static unsigned gpus_count(void)
{
	unsigned n = 0;
	struct gx *gx;

	if (gx_open(NULL, &gx))
		return 0;
	while (n < RANKS_MAX && !gx_gpu_open(gx, (int)n))
		n++;
	if (!n)
		printf("no GPU: %s\n", gx_error());
	gx_close(gx);
	return n;
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest moves[] = {
		cmocka_unit_test(gx_allgather__sizes),
		cmocka_unit_test(gx_alltoall__sizes),
		cmocka_unit_test(gx_allgather__in_place),
		cmocka_unit_test(gx_allgather__small_pieces),
		cmocka_unit_test(gx_allgather__two_lanes),
		cmocka_unit_test(gx_allgather__several_in_flight),
		cmocka_unit_test(gx_allgather__slow_reader),
	};
	const struct CMUnitTest rest[] = {
		cmocka_unit_test(gx_barrier__all_have_come),
		cmocka_unit_test(gx_allgather__bad_input),
		cmocka_unit_test(gx_allgather__ranks_disagree),
		cmocka_unit_test(gx_coll_test__late_rank),
		cmocka_unit_test(gx_group_close__others_go_on),
		cmocka_unit_test(gx_coll_wait__rank_killed),
		cmocka_unit_test(gx_coll_wait__rank_stopped),
	};
	/* Who meets whom: the same for every way that data takes. */
	const struct CMUnitTest meet[] = {
		cmocka_unit_test(gx_group_connect__missing_rank),
		cmocka_unit_test(gx_group_connect__no_rank_0),
		cmocka_unit_test(gx_group_connect__does_not_fit),
		cmocka_unit_test(gx_group_connect__strangers),
		cmocka_unit_test(gx_group_connect__names_who_was_refused),
		cmocka_unit_test(gx_group_connect__after_the_failure),
		cmocka_unit_test(gx_group_open__bad_input),
		cmocka_unit_test(gx_group_env__launchers),
		cmocka_unit_test(gx_group_env__bad),
	};
	int failed;

	way = argc > 1 ? argv[1] : "local";
	on_gpu = !strncmp(way, "cuda", 4);
	port = strcmp(way, "udp") ? "shm" : "udp";
	link_name = strstr(way, "local") ? "local" : "packet";
	if (argc == 6 && !strcmp(argv[2], "rank"))
		return role_rank(argv);
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	nr_gpus = on_gpu ? gpus_count() : 0;
	if (on_gpu && !nr_gpus)
		return 77;
	failed = cmocka_run_group_tests_name("moves", moves, NULL, NULL);
	if (!on_gpu)
		failed += cmocka_run_group_tests_name("rest", rest, NULL, NULL);
	if (!strcmp(way, "local"))
		failed += cmocka_run_group_tests_name("meet", meet, NULL, NULL);
	return failed;
}
