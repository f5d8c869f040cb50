/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests on a core of the NCCL plugin (lane.c, comm.c, req.c) over a core of gx that is faked: it
 * has the limits of the real one, and completes what a test says.
 */
#include "nccl/plug.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PEERS	    64
#define COMMS	    8 /* of a peer, each way */
#define EARLY	    8 /* receives that wait */
#define COMMS_FIRST 1990
#define COMMS_ALL   3000
#define OPS_MAX	    4094
#define EP_RECVS    256
#define EP_OPS	    1024
#define TURNS_MAX   1000
#define SOME_MEM    ((struct gx_mem *)(uintptr_t)64)
#define SOME_CORE   ((struct gx_core *)(uintptr_t)64)
#define TURN_MAX    (256 + 64 * NCCL_REQS_MAX) /* posts of a turn: orders, and waiting comms */

struct gx_ep {
	unsigned nr_recvs, nr_ops;
};

/* The core of gx. */
static struct {
	struct gx_op ops[OPS_MAX];
	struct gx_ep *ep[OPS_MAX];
	unsigned nr, max;
	struct gx_comp comps[OPS_MAX];
	unsigned nr_comps;
	unsigned nr_posts; /* so far */
	unsigned nr_helps; /* the same */
} fake;

struct plug plug = {.lock = PTHREAD_MUTEX_INITIALIZER};
static struct peer *peers[PEERS];
static struct gx_ep eps[PEERS];
static struct gx_conn *const some_conn = (struct gx_conn *)(uintptr_t)64;
static char bytes[64];
static struct reg reg = {.mem = SOME_MEM, .addr = bytes, .len = sizeof(bytes)};

int gx_post(struct gx_queue *q, struct gx_ep *ep, const struct gx_op ops[], unsigned n)
{
	assert_int_equal(n, 1);
	if (fake.nr == fake.max || ep->nr_ops == EP_OPS ||
	    (ops->kind == GX_OP_RECV && ep->nr_recvs == EP_RECVS))
		return 0;
	ep->nr_ops++;
	ep->nr_recvs += ops->kind == GX_OP_RECV;
	fake.ep[fake.nr] = ep;
	fake.ops[fake.nr++] = *ops;
	fake.nr_posts++;
	return 1;
}

/* Operation @i ends. */
static void fake_end(unsigned i, int status)
{
	fake.comps[fake.nr_comps++] = (struct gx_comp){.kind = GX_COMP_DONE,
						       .op = fake.ops[i].kind,
						       .status = status,
						       .user = fake.ops[i].user,
						       .len = status ? 0 : fake.ops[i].len};
	fake.ep[i]->nr_ops--;
	fake.ep[i]->nr_recvs -= fake.ops[i].kind == GX_OP_RECV;
	fake.nr--;
	memmove(fake.ops + i, fake.ops + i + 1, (fake.nr - i) * sizeof(fake.ops[0]));
	memmove(fake.ep + i, fake.ep + i + 1, (fake.nr - i) * sizeof(fake.ep[0]));
}

unsigned gx_poll(struct gx_queue *q, struct gx_comp comps[], unsigned n)
{
	unsigned got = fake.nr_comps < n ? fake.nr_comps : n;

	memcpy(comps, fake.comps, got * sizeof(comps[0]));
	fake.nr_comps -= got;
	memmove(fake.comps, fake.comps + got, fake.nr_comps * sizeof(comps[0]));
	return got;
}

int gx_cancel(struct gx_queue *q, struct gx_ep *ep, uint64_t user)
{
	for (unsigned i = 0; i < fake.nr; i++)
		if (fake.ep[i] == ep && fake.ops[i].user == user) {
			fake_end(i, -ECANCELED);
			return 1;
		}
	return 0;
}

struct gx_ep *gx_conn_ep(struct gx_conn *conn, unsigned lane)
{
	return &eps[0];
}

bool gx_help(struct gx_core *core)
{
	assert_ptr_equal(core, SOME_CORE);
	fake.nr_helps++;
	return true;
}

void say_warn(const char *fmt, ...)
{
}

void peer_say(struct peer *p, const char *what, int err)
{
}

void meet_close_say(struct comm *c, uint32_t count)
{
}

/* No comm of these tests has a part of the bounce memory. */
void offload_drop(struct comm *c)
{
}

int offload_take(struct offload *o, uint64_t len, uint64_t *off)
{
	return -1;
}

void offload_publish(struct offload *o, uint32_t nr, uint64_t len)
{
}

bool offload_consumed(struct offload *o, uint32_t nr)
{
	return false;
}

/* ---- The rig ---- */

static int setup(void **state)
{
	memset(&fake, 0, sizeof(fake));
	memset(eps, 0, sizeof(eps));
	fake.max = OPS_MAX;
	plug.nr_lanes = 1;
	plug.lane[0] = (struct lane){.wait_end = &plug.lane[0].waiting};
	plug.conf.pull_over_b = 0;
	atomic_store(&reg.going, false);
	atomic_store(&reg.nr_begun, 0);
	atomic_store(&reg.nr_ended, 0);
	for (unsigned i = 0; i < PEERS; i++) {
		peers[i] = aligned_alloc(alignof(struct peer), sizeof(*peers[i]));
		assert_non_null(peers[i]);
		memset(peers[i], 0, sizeof(*peers[i]));
		peers[i]->conn = some_conn;
		peers[i]->nr_paths = 1;
		peers[i]->path[0].ep = &eps[i];
		peers[i]->path[0].lane = &plug.lane[0];
	}
	return 0;
}

/* Nothing is left but comms that the test has not closed. */
static int teardown(void **state)
{
	while (plug.comms)
		comm_free(plug.comms);
	assert_int_equal(atomic_load(&plug.lane[0].nr_comms), 0);
	atomic_store(&plug.graves, NULL);
	for (unsigned i = 0; i < PEERS; i++)
		free(peers[i]);
	return 0;
}

static struct comm *comm_open(unsigned peer, bool is_send, uint32_t number)
{
	struct comm *c = comm_new(is_send);

	assert_non_null(c);
	c->peer = peers[peer];
	c->peer->nr_users++;
	comm_bind(c, &peers[peer]->path[0], number);
	c->state = COMM_OPEN;
	return c;
}

static struct req *post(struct comm *c)
{
	void *req = NULL;

	assert_int_equal((c->is_send ? req_isend : req_irecv)(c, bytes, 8, &reg, &req), 0);
	assert_non_null(req);
	return req;
}

static bool turn(void)
{
	unsigned before = fake.nr_posts;
	bool busy = lane_poll(&plug.lane[0], 0);

	assert_true(fake.nr_posts - before <= TURN_MAX);
	return busy;
}

static void turns(void)
{
	unsigned n = 0;

	while (turn())
		assert_true(n++ < TURNS_MAX);
}

static int done(struct req *r)
{
	int is = 0, size = -1;

	return req_test(r, &is, &size) ? -1 : is;
}

/* Requests under way with @x. */
static uint32_t out(struct reg *x)
{
	return atomic_load(&x->nr_begun) - atomic_load(&x->nr_ended);
}

static void is_posted(const struct comm *c, unsigned n)
{
	unsigned got = 0;

	for (unsigned i = 0; i < fake.nr; i++)
		got += ((struct req *)(uintptr_t)fake.ops[i].user)->comm == c;
	assert_int_equal(got, n);
}

/* ---- Room ---- */

/* Every peer's comms have eight receives each that wait. There is room for a send of each comm. */
static void room__early_receives_of_many_peers(void **state)
{
	static struct comm *recv[PEERS][COMMS], *send[PEERS][COMMS];

	for (unsigned p = 0; p < PEERS; p++)
		for (unsigned i = 0; i < COMMS; i++) {
			recv[p][i] = comm_open(p, false, i);
			send[p][i] = comm_open(p, true, COMMS + i);
			for (unsigned k = 0; k < EARLY; k++)
				post(recv[p][i]);
		}
	turns();
	assert_true(fake.nr > PEERS * COMMS); /* extras, too */
	for (unsigned p = 0; p < PEERS; p++)
		for (unsigned i = 0; i < COMMS; i++)
			post(send[p][i]);
	turns();
	for (unsigned p = 0; p < PEERS; p++)
		for (unsigned i = 0; i < COMMS; i++)
			is_posted(send[p][i], 1);
	while (fake.nr) { /* and all get their turn */
		fake_end(fake.nr / 2, 0);
		turns();
	}
	assert_int_equal(fake.nr_posts, PEERS * COMMS * (EARLY + 1));
	assert_int_equal(out(&reg), 0);
}

/* Those of one endpoint, as far as that has room for them. */
static void room__first_of_each_comm(void **state)
{
	struct comm *c[PATH_COMMS];

	for (unsigned i = 0; i < PATH_COMMS; i++) {
		c[i] = comm_open(0, false, i);
		for (unsigned k = 0; k < NCCL_REQS_MAX; k++)
			post(c[i]);
		turn();
	}
	turns();
	for (unsigned i = 0; i < PATH_COMMS; i++)
		assert_true(c[i]->req[0].place == REQ_POSTED);
	assert_true(fake.nr < EP_RECVS);
}

/* Comms open while many have all the extra requests that they may. */
static void room__comms_that_open_later(void **state)
{
	static struct comm *c[COMMS_ALL];

	for (unsigned i = 0; i < COMMS_ALL; i++) {
		c[i] = comm_open(i % PEERS, i / PEERS % 2, i);
		for (unsigned k = 0; k < (i < COMMS_FIRST ? EARLY : 1); k++)
			post(c[i]);
		if (i == COMMS_FIRST - 1)
			turns();
	}
	assert_true(plug.lane[0].extra[0] > 100 && plug.lane[0].extra[1] > 100);
	turns();
	for (unsigned i = 0; i < COMMS_ALL; i++)
		assert_true(c[i]->req[0].place == REQ_POSTED);
	while (fake.nr) {
		for (unsigned n = 64; n && fake.nr; n--)
			fake_end(fake.nr - 1, 0);
		turns();
	}
	assert_int_equal(fake.nr_posts, COMMS_FIRST * EARLY + COMMS_ALL - COMMS_FIRST);
	assert_int_equal(out(&reg), 0);
}

/* ---- Help ---- */

/* Calls of test() that help, of two. */
static unsigned helps(struct req *r)
{
	unsigned before = fake.nr_helps;

	assert_int_equal(done(r), 0);
	assert_int_equal(done(r), 0);
	return fake.nr_helps - before;
}

/* test() helps while it waits for a receive that may be a long one. */
static void help__of_a_long_receive(void **state)
{
	struct comm *in = comm_open(0, false, 7), *from = comm_open(0, true, 8);
	struct req *r = post(in), *s = post(from); /* of 8 bytes */

	assert_int_equal(helps(r), 0); /* GX_NCCL_HELP=0 */
	plug.lane[0].helped = SOME_CORE;
	plug.conf.pull_over_b = 7;
	assert_int_equal(helps(r), 2); /* from the start: others may be under way */
	turns();
	assert_int_equal(helps(r), 2);
	assert_int_equal(helps(s), 0);
	plug.conf.pull_over_b = 8;
	assert_int_equal(helps(r), 0);
	plug.conf.pull_over_b = 7;
	atomic_store(&plug.forked, true);
	assert_int_equal(helps(r), 0);
	atomic_store(&plug.forked, false);
	fake_end(0, 0);
	turns();
	fake.nr_helps = 0;
	assert_int_equal(done(r), 1);
	assert_int_equal(fake.nr_helps, 0);
}

/* ---- Order ---- */

static void order__of_a_comm_that_waited(void **state)
{
	struct comm *c = comm_open(0, true, 7);
	uint32_t first = c->seq, n = 0;

	fake.max = 3;
	for (unsigned k = 0; k < NCCL_REQS_MAX; k++)
		post(c);
	turns();
	for (; fake.nr; n++) {
		assert_true(fake.ops[0].tag == ((uint64_t)7 << 32 | (uint32_t)(first + n)));
		fake_end(0, 0);
		turns();
	}
	assert_int_equal(n, NCCL_REQS_MAX);
}

/* A comm whose requests were counted for days. */
static void order__numbers_wrap(void **state)
{
	struct comm *c = comm_open(0, true, 7);
	struct req *r[8];

	c->seq = UINT32_MAX - 2;
	for (unsigned k = 0; k < 8; k++)
		r[k] = post(c);
	turns();
	for (unsigned k = 0; k < 8; k++)
		assert_true(fake.ops[k].tag == ((uint64_t)7 << 32 | (UINT32_MAX - 2 + k)));
	/* The peer has closed it, and had the first five. */
	c->count = UINT32_MAX - 2 + 5;
	lane_put(&plug.lane[0], &c->ending);
	turns();
	while (fake.nr)
		fake_end(0, -ECONNRESET);
	turns();
	for (unsigned k = 0; k < 8; k++)
		assert_int_equal(done(r[k]), k < 5 ? 1 : -1);
}

/* ---- A turn ---- */

/* Word that the peer has closed a comm stands behind many orders. It comes before the end of the
 * connection all the same. */
static void turn__many_orders(void **state)
{
	struct comm *c = comm_open(0, true, 1), *other[64];
	struct req *r = post(c);

	turns();
	for (unsigned i = 0; i < 64; i++) {
		other[i] = comm_open(1 + i % 8, true, i);
		for (unsigned k = 0; k < NCCL_REQS_MAX; k++)
			post(other[i]);
	}
	c->count = c->seq;
	lane_put(&plug.lane[0], &c->ending);
	fake_end(0, -ECONNRESET);
	assert_true(turn());
	assert_int_equal(done(r), 0);
	turns();
	assert_int_equal(done(r), 1);
}

/* More comms wait than a turn looks at. None is left out when there is room again. */
static void turn__many_that_wait(void **state)
{
	struct comm *c[300];

	fake.max = 0;
	for (unsigned i = 0; i < 300; i++) {
		c[i] = comm_open(i % PEERS, true, i);
		post(c[i]);
	}
	while (turn()) /* takes the orders */
		;
	assert_int_equal(plug.lane[0].nr_waiting, 300);
	assert_int_equal(fake.nr, 0);
	fake.max = OPS_MAX;
	turns();
	assert_int_equal(fake.nr, 300);
	assert_int_equal(plug.lane[0].nr_waiting, 0);
}

/* ---- Ends ---- */

/* Requests that wait for room end when their memory goes; those of other memory stay. */
static void end__memory_goes(void **state)
{
	static struct reg kept = {.mem = SOME_MEM, .addr = bytes, .len = sizeof(bytes)};
	struct comm *c = comm_open(0, false, 1);
	struct req *r[6];
	void *req;

	fake.max = 2;
	for (unsigned k = 0; k < 6; k++) {
		assert_int_equal(req_irecv(c, bytes, 8, k % 2 ? &kept : &reg, &req), 0);
		r[k] = req;
	}
	turns();
	assert_int_equal(fake.nr, 2);
	atomic_store(&reg.going, true);
	turn();
	for (unsigned k = 0; k < 6; k++)
		assert_int_equal(done(r[k]), k < 2 || k % 2 ? 0 : -1);
	assert_int_equal(out(&reg), 1); /* the one that is posted */
	while (fake.nr) {
		fake_end(0, 0);
		turns();
	}
	assert_int_equal(fake.nr_posts, 4);
	assert_int_equal(out(&kept), 0);
}

/* Comms in the middle of those that wait are closed, by either end. */
static void end__comms_that_wait(void **state)
{
	struct comm *c[8];
	struct req *r[8];

	fake.max = 0;
	for (unsigned i = 0; i < 8; i++) {
		c[i] = comm_open(0, true, i);
		r[i] = post(c[i]);
	}
	turns();
	comm_close(c[3]);
	comm_close(c[7]);
	c[0]->count = c[0]->seq - 1;
	lane_put(&plug.lane[0], &c[0]->ending);
	turns();
	assert_int_equal(done(r[0]), -1);
	assert_int_equal(plug.lane[0].nr_waiting, 5);
	fake.max = OPS_MAX;
	turns();
	assert_int_equal(fake.nr, 5);
	for (struct comm *x = atomic_load(&plug.graves); x; x = x->grave_next)
		assert_true(x == c[3] || x == c[7]);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(room__early_receives_of_many_peers),
		TEST(room__first_of_each_comm),
		TEST(room__comms_that_open_later),
		TEST(help__of_a_long_receive),
		TEST(order__of_a_comm_that_waited),
		TEST(order__numbers_wrap),
		TEST(turn__many_orders),
		TEST(turn__many_that_wait),
		TEST(end__memory_goes),
		TEST(end__comms_that_wait),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
