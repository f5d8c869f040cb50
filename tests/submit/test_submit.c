/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues of other threads, operations that wait for a stream, and messages over lanes, in virtual
 * time: the test is the queue's thread and turns the cores as well, so that it says what happens
 * before what. test_submit_threads.c has the threads. After each case nothing may be out at either
 * end.
 */
#include "sim/sim_rig.h"

#include "submit/queue.h"
#include "submit/submit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BUF_B	  (2u << 20)
#define COMPS_MAX 4096

static uint8_t *src, *dst;
static struct gx_queue *queue;
static struct gx_comp comps[COMPS_MAX]; /* of the queue */
static unsigned nr_comps;

/* ---- the rig ---- */

static struct rig *submit_rig_of(const struct rig_cfg *cfg, unsigned depth)
{
	struct gx_queue_opts opts = GX_INIT(opts);
	struct rig_cfg full = *cfg;
	struct rig *r;

	full.mem_b = full.mem_b ? full.mem_b : 4 << 20;
	r = rig_open(&full);
	opts.depth = depth;
	assert_int_equal(gx_queue_open(r->gx[0], &opts, &queue), 0);
	src = realloc(src, BUF_B);
	dst = realloc(dst, BUF_B);
	rig_fill(src, BUF_B, 7);
	memset(dst, RIG_POISON, BUF_B);
	nr_comps = 0;
	return r;
}

static struct rig *submit_rig(void)
{
	return submit_rig_of(&(struct rig_cfg){.sim = {.seed = 1}}, 64);
}

static struct rig *lanes_rig(unsigned lanes)
{
	return submit_rig_of(
		&(struct rig_cfg){.sim = {.seed = 1}, .nr_cores = lanes, .chunk_b = 65536}, 64);
}

static unsigned take(void)
{
	unsigned n = gx_poll(queue, comps + nr_comps, COMPS_MAX - nr_comps);

	nr_comps += n;
	return n;
}

static void until_comps(struct rig *r, unsigned n, uint64_t ns)
{
	uint64_t end = r->now_ns + ns;

	while (take(), nr_comps < n && r->now_ns < end)
		rig_turn(r);
	if (nr_comps != n)
		fail_msg("%u completions, not %u", nr_comps, n);
}

static void queue_close(struct rig *r)
{
	for (unsigned i = 0; gx_queue_close(queue); i++) {
		assert_true(i < 10000);
		rig_turn(r);
	}
	queue = NULL;
}

/* Nothing more came, nothing is out. */
static void submit_done(struct rig *r)
{
	rig_pass(r, 5 * MS);
	assert_int_equal(take(), 0);
	queue_close(r);
	rig_done(r);
}

static struct gx_op op_of(struct rig *r, enum gx_op_kind kind, uint64_t user, uint64_t len)
{
	bool reads = kind == GX_OP_PUT || kind == GX_OP_SEND;

	return (struct gx_op){.kind = kind,
			      .user = user,
			      .addr = reads ? src : dst,
			      .len = len,
			      .token = r->peer[0].token,
			      .tag = 7};
}

static void submit(struct rig *r, const struct gx_op *op)
{
	int ret = gx_post(queue, r->ep[0][0], op, 1);

	if (ret != 1)
		fail_msg("gx_post: %d, %s", ret, gx_error());
}

static void stripe(struct rig *r, const struct gx_op *op)
{
	int ret = gx_post_striped(queue, r->conn[0][0], op, 1);

	if (ret != 1)
		fail_msg("gx_post_striped: %d, %s", ret, gx_error());
}

static const struct gx_comp *comp_of(uint64_t user, enum gx_comp_kind kind)
{
	for (unsigned i = 0; i < nr_comps; i++)
		if (comps[i].user == user && comps[i].kind == kind)
			return &comps[i];
	fail_msg("no completion of %u", (unsigned)user);
	return NULL;
}

static void expect(uint64_t user, int status)
{
	int is = comp_of(user, GX_COMP_DONE)->status;

	if (is != status)
		fail_msg("operation %u: %s, not %s", (unsigned)user, strerror(-is),
			 strerror(-status));
}

/* ---- queues ---- */

static void submit_open__depth(void **state)
{
	struct rig *r = submit_rig();
	struct gx_queue_opts opts = GX_INIT(opts);
	struct gx_queue *q;

	opts.depth = 8193;
	assert_int_equal(gx_queue_open(r->gx[0], &opts, &q), -EINVAL);
	assert_non_null(strstr(gx_error(), "8193"));
	assert_int_equal(gx_queue_open(r->gx[0], NULL, &q), 0);
	assert_int_equal(gx_queue_close(q), -EAGAIN); /* its core has not turned */
	rig_turn(r);
	assert_int_equal(gx_queue_close(q), 0);
	assert_int_equal(gx_queue_close(NULL), 0);
	submit_done(r);
}

static void submit__all_kinds(void **state)
{
	struct rig *r = submit_rig();
	struct gx_op op = op_of(r, GX_OP_PUT, 1, 100000);

	submit(r, &op);
	op = op_of(r, GX_OP_GET, 2, 5000);
	memcpy(rig_mem(r, 1) + BUF_B, src, 5000);
	op.remote_off = BUF_B;
	op.addr = dst + RIG_GUARD;
	submit(r, &op);
	rig_post(r, 1,
		 &(struct gx_op){.kind = GX_OP_RECV,
				 .user = 9,
				 .addr = dst + BUF_B / 2,
				 .len = 3000,
				 .tag = 7});
	op = op_of(r, GX_OP_SEND, 3, 3000);
	submit(r, &op);
	until_comps(r, 3, SECOND);
	for (unsigned i = 1; i <= 3; i++)
		expect(i, 0);
	assert_memory_equal(rig_mem(r, 1), src, 100000);
	rig_check(dst + RIG_GUARD, 5000, 7);
	assert_memory_equal(dst + BUF_B / 2, src, 3000);
	assert_ptr_equal(comps[0].ep, r->ep[0][0]);
	rig_comps(r, 1, 1, SECOND);
	assert_int_equal(r->nr_last[0], 0); /* none to who polls the core */
	submit_done(r);
}

static void submit__recv_says_tag_and_length(void **state)
{
	struct rig *r = submit_rig();
	struct gx_op op = op_of(r, GX_OP_RECV, 1, 5000);

	op.tag_mask = 0xf;
	submit(r, &op);
	rig_pass(r, MS);
	rig_post(r, 1, &(struct gx_op){.kind = GX_OP_SEND, .addr = src, .len = 77, .tag = 0x107});
	until_comps(r, 1, SECOND);
	assert_int_equal(comps[0].len, 77);
	assert_int_equal(comps[0].tag, 0x107);
	assert_int_equal(comps[0].op, GX_OP_RECV);
	submit_done(r);
}

static void submit__local_silent_notify(void **state)
{
	struct rig *r = submit_rig();
	struct gx_op op = op_of(r, GX_OP_PUT, 1, 5000);

	op.flags = GX_OP_LOCAL | GX_OP_IMM;
	op.imm = 99;
	submit(r, &op);
	op.user = 2;
	op.flags = GX_OP_SILENT;
	submit(r, &op);
	op.user = 3;
	op.token ^= 1ull << 40;
	submit(r, &op);
	until_comps(r, 3, SECOND);
	assert_int_equal(comp_of(1, GX_COMP_LOCAL)->len, 5000);
	assert_true(comp_of(1, GX_COMP_LOCAL) < comp_of(1, GX_COMP_DONE));
	expect(1, 0);
	expect(3, -ESTALE);
	rig_comps(r, 1, 1, SECOND);
	assert_int_equal(r->last[1][0].kind, GX_COMP_NOTIFY);
	assert_int_equal(r->last[1][0].imm, 99);
	submit_done(r);
}

static void submit__full_takes_fewer(void **state)
{
	struct rig *r = submit_rig_of(&(struct rig_cfg){.sim = {.seed = 1}}, 8);
	struct gx_op ops[12];

	for (unsigned i = 0; i < 12; i++)
		ops[i] = op_of(r, GX_OP_PUT, i, 64);
	assert_int_equal(gx_post(queue, r->ep[0][0], ops, 12), 8);
	assert_int_equal(gx_post(queue, r->ep[0][0], ops + 8, 4), 0);
	until_comps(r, 8, SECOND);
	assert_int_equal(gx_post(queue, r->ep[0][0], ops + 8, 4), 4);
	until_comps(r, 12, SECOND);
	submit_done(r);
}

static void submit__malformed(void **state)
{
	struct rig *r = submit_rig();
	struct gx_op op = op_of(r, GX_OP_PUT, 1, 64), good = op;
	struct gx_op two[] = {good, op};

	op.kind = 9;
	assert_int_equal(gx_post(queue, r->ep[0][0], &op, 1), -EINVAL);
	op = good;
	op.flags = GX_OP_WORDS << 1; /* a later version's */
	assert_int_equal(gx_post(queue, r->ep[0][0], &op, 1), -EINVAL);
	assert_non_null(strstr(gx_error(), "gx_op.flags 0x40"));
	op = good;
	op.note_len = 1;
	assert_int_equal(gx_post(queue, r->ep[0][0], &op, 1), -EINVAL);
	assert_non_null(strstr(gx_error(), "gx_op.note_len"));
	assert_int_equal(common_post(r->ep[0][0], &op, 1), -EINVAL);
	assert_int_equal(gx_post_striped(queue, gx_ep_conn(r->ep[0][0]), &op, 1), -EINVAL);
	op = good;
	op.stream = &op;
	assert_int_equal(gx_post(queue, r->ep[0][0], &op, 1), -ENODEV);
	assert_non_null(strstr(gx_error(), "no GPU"));
	assert_int_equal(common_post(r->ep[0][0], &op, 1), -ENODEV);
	assert_int_equal(gx_post(queue, r->ep[1][0], &good, 1), -EINVAL);
	assert_non_null(strstr(gx_error(), "another context"));
	two[1].addr = NULL;
	assert_int_equal(gx_post(queue, r->ep[0][0], two, 2), 1);
	until_comps(r, 1, SECOND);
	submit_done(r);
}

/* More than the link takes: what waits goes later, in order. */
static void submit__order_beyond_the_links_room(void **state)
{
	struct rig *r = submit_rig_of(&(struct rig_cfg){.sim = {.seed = 1}}, 2048);
	unsigned nr = PKT_OPS + 300, got = 0;

	for (unsigned i = 0; i < nr; i++) {
		struct gx_op op = op_of(r, GX_OP_SEND, i, i);

		submit(r, &op);
	}
	rig_pass(r, MS);
	assert_non_null(r->ep[0][0]->pend_head);
	for (unsigned i = 0; i < nr; i++) {
		rig_post(r, 1,
			 &(struct gx_op){.kind = GX_OP_RECV,
					 .user = i,
					 .addr = dst,
					 .len = BUF_B,
					 .tag = 7});
		if (i % 64 != 63 && i != nr - 1)
			continue;
		rig_comps(r, 1, i % 64 + 1, SECOND);
		for (unsigned k = 0; k < r->nr_last[1]; k++)
			assert_int_equal(r->last[1][k].len, got++);
		rig_forget(r);
	}
	until_comps(r, nr, SECOND);
	assert_null(r->ep[0][0]->pend_head);
	submit_done(r);
}

/* An endpoint without room does not hold up another. */
static void submit__endpoints_pass_each_other(void **state)
{
	struct rig *r = submit_rig_of(&(struct rig_cfg){.sim = {.seed = 1}, .nr_conns = 2}, 2048);
	struct gx_op op;

	for (unsigned i = 0; i < PKT_OPS + 10; i++) {
		op = op_of(r, GX_OP_SEND, 1, 64);
		submit(r, &op);
	}
	op = op_of(r, GX_OP_PUT, 2, 64);
	assert_int_equal(gx_post(queue, r->ep[0][1], &op, 1), 1);
	until_comps(r, 1, 10 * MS);
	expect(2, 0);
	assert_int_equal(gx_cancel(queue, r->ep[0][0], 1), PKT_OPS + 10);
	until_comps(r, 1 + PKT_OPS + 10, SECOND);
	submit_done(r);
}

static void submit__deadlines(void **state)
{
	struct rig *r = submit_rig_of(&(struct rig_cfg){.sim = {.seed = 1}}, 2048);
	unsigned nr = PKT_OPS + 10;

	for (unsigned i = 0; i < nr; i++) {
		struct gx_op op = op_of(r, GX_OP_SEND, i, 64);

		op.deadline_ns = r->now_ns + 5 * MS;
		submit(r, &op);
	}
	rig_pass(r, 4 * MS);
	assert_int_equal(take(), 0);
	until_comps(r, nr, 20 * MS);
	for (unsigned i = 0; i < nr; i++)
		expect(i, -ETIMEDOUT);
	submit_done(r);
}

/* ---- cancelling ---- */

static void cancel__wherever_it_is(void **state)
{
	struct rig *r = submit_rig_of(&(struct rig_cfg){.sim = {.seed = 1}}, 2048);
	unsigned nr = PKT_OPS + 10;
	struct gx_op op;

	/* In the ring. */
	op = op_of(r, GX_OP_SEND, 1, 64);
	submit(r, &op);
	assert_int_equal(gx_cancel(queue, r->ep[0][0], 1), 1);
	until_comps(r, 1, MS);
	expect(1, -ECANCELED);
	/* With the link, and waiting for it. A direct one of the same number stays. */
	for (unsigned i = 0; i < nr; i++) {
		op = op_of(r, GX_OP_SEND, 2, 64);
		submit(r, &op);
	}
	rig_pass(r, MS);
	assert_int_equal(common_cancel(r->ep[0][0], 2), 0);
	assert_int_equal(gx_cancel(queue, r->ep[0][0], 2), nr);
	until_comps(r, 1 + nr, 10 * MS);
	op = op_of(r, GX_OP_SEND, 3, 64);
	rig_post(r, 0, &op);
	assert_int_equal(gx_cancel(queue, r->ep[0][0], 3), 0);
	assert_int_equal(common_cancel(r->ep[0][0], 3), 1);
	rig_comps(r, 0, 1, MS);
	/* When it is done, and nobody has taken it. */
	op = op_of(r, GX_OP_PUT, 4, 64);
	submit(r, &op);
	rig_pass(r, MS);
	assert_int_equal(gx_cancel(queue, r->ep[0][0], 4), 1);
	until_comps(r, 2 + nr, MS);
	expect(4, 0);
	/* Its request carries another operation, when the core sees the cancellation. */
	op.user = 5;
	submit(r, &op);
	until_comps(r, 3 + nr, MS);
	expect(5, 0);
	submit_done(r);
}

/* The last of those that wait ends: later ones wait behind the others. */
static void cancel__last_that_waits(void **state)
{
	struct rig *r = submit_rig_of(&(struct rig_cfg){.sim = {.seed = 1}}, 2048);
	struct gx_op op = op_of(r, GX_OP_SEND, 1, 64);

	for (unsigned i = 0; i < PKT_OPS; i++)
		submit(r, &op);
	op = op_of(r, GX_OP_PUT, 2, 64);
	submit(r, &op);
	op.user = 3;
	submit(r, &op);
	rig_pass(r, MS);
	assert_int_equal(gx_cancel(queue, r->ep[0][0], 3), 1);
	until_comps(r, 1, MS);
	expect(3, -ECANCELED);
	op.user = 4;
	submit(r, &op);
	rig_pass(r, MS);
	assert_int_equal(gx_cancel(queue, r->ep[0][0], 1), PKT_OPS);
	until_comps(r, 3 + PKT_OPS, 10 * MS);
	expect(2, 0);
	expect(4, 0);
	submit_done(r);
}

static int submit_looks(struct rig *r)
{
	struct gx_look look = {.until_ns = UINT64_MAX};
	const struct gx_loop *loop = &r->core[0]->loop;

	for (unsigned i = 0; i < loop->nr_pollers; i++)
		if (!strcmp(loop->poller[i].name, "submit"))
			return loop->poller[i].look(loop->poller[i].arg, &look);
	fail_msg("no poller of requests");
	return 0;
}

/* A core that is about to sleep sees what lies in a ring. */
static void core_look__ring(void **state)
{
	struct rig *r = submit_rig();
	struct gx_op op = op_of(r, GX_OP_PUT, 1, 64);

	rig_pass(r, MS);
	assert_int_equal(submit_looks(r), 0);
	submit(r, &op);
	assert_int_equal(submit_looks(r), 1);
	until_comps(r, 1, SECOND);
	assert_int_equal(submit_looks(r), 0);
	submit_done(r);
}

/* ---- connections that end ---- */

struct listed {
	struct gx_conn *c;
	struct gx *gx;
};

/* On the control thread: is the connection still there? */
static int listed_run(void *arg)
{
	struct listed *l = arg;

	for (struct gx_conn *c = l->gx->conns; c; c = c->next)
		if (c == l->c)
			return 1;
	return 0;
}

static bool conn_is_there(struct rig *r, struct gx_conn *c)
{
	struct listed l = {c, r->gx[0]};

	return gx_uring_run_wait(r->gx[0]->uring, listed_run, &l);
}

static void turn_real(struct rig *r, unsigned ms)
{
	for (unsigned i = 0; i < ms; i++) {
		rig_pass(r, 100000);
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
}

/* Operations in every state when the connection is closed: each ends once, and the endpoint lives
 * until that was taken. */
static void conn_close__operations_in_every_state(void **state)
{
	struct rig *r = submit_rig_of(&(struct rig_cfg){.sim = {.seed = 1}, .nr_conns = 2}, 2048);
	struct gx_conn *c = r->conn[0][0];
	unsigned nr = PKT_OPS + 10;
	struct gx_op op;

	op = op_of(r, GX_OP_PUT, 1, 64);
	submit(r, &op);
	rig_pass(r, MS); /* done, not taken */
	for (unsigned i = 0; i < nr; i++) {
		op = op_of(r, GX_OP_SEND, 2, 64);
		submit(r, &op);
	}
	rig_pass(r, MS);
	op.user = 3;
	submit(r, &op); /* in the ring */
	gx_conn_close(c);
	r->conn[0][0] = r->conn[1][0] = NULL;
	turn_real(r, 200);
	assert_true(conn_is_there(r, c));
	assert_int_equal(take(), nr + 2);
	turn_real(r, 100);
	assert_false(conn_is_there(r, c));
	expect(1, 0);
	assert_true(comp_of(3, GX_COMP_DONE)->status < 0);
	for (unsigned i = 0; i < nr_comps; i++)
		assert_true(comps[i].user == 1 || comps[i].status < 0);
	/* The other one is not touched. */
	op = op_of(r, GX_OP_PUT, 4, 64);
	assert_int_equal(gx_post(queue, r->ep[0][1], &op, 1), 1);
	until_comps(r, nr + 3, SECOND);
	expect(4, 0);
	queue_close(r);
	rig_close(r);
}

static void conn_close__posting_after_it(void **state)
{
	struct rig *r = submit_rig_of(&(struct rig_cfg){.sim = {.seed = 1}, .nr_conns = 2}, 64);
	struct gx_op op = op_of(r, GX_OP_PUT, 1, 64);

	gx_conn_close(r->conn[1][0]); /* the peer does */
	r->conn[1][0] = NULL;
	for (unsigned i = 0; i < 20000 && gx_conn_ep(r->conn[0][0], 0); i++)
		turn_real(r, 1);
	assert_int_equal(gx_post(queue, r->ep[0][0], &op, 1), -ENOTCONN);
	assert_int_equal(gx_post_striped(queue, r->conn[0][0], &op, 1), -ENOTCONN);
	queue_close(r);
	rig_close(r);
}

/* ---- queues that end ---- */

static void submit_close__under_way(void **state)
{
	for (unsigned at = 0; at < 4; at++) {
		struct rig *r = submit_rig_of(&(struct rig_cfg){.sim = {.seed = at}}, 2048);
		struct gx_op op;

		for (unsigned i = 0; i < PKT_OPS + 10; i++) {
			op = op_of(r, i % 8 ? GX_OP_SEND : GX_OP_PUT, i, 20000);
			op.flags = GX_OP_LOCAL;
			submit(r, &op);
		}
		rig_pass(r, at * 20000);
		queue_close(r);
		rig_done(r);
	}
}

static void gx_close__with_queues_left(void **state)
{
	struct rig *r = submit_rig();
	struct gx_queue *never; /* its core does not turn any more */
	struct gx_op op = op_of(r, GX_OP_SEND, 1, 64);

	for (unsigned i = 0; i < 32; i++)
		submit(r, &op);
	rig_pass(r, MS);
	for (unsigned i = 0; i < 10; i++)
		submit(r, &op);
	assert_int_equal(gx_queue_open(r->gx[0], NULL, &never), 0);
	assert_int_equal(gx_post(never, r->ep[0][0], &op, 1), 1);
	rig_close(r);
	queue = NULL;
}

/* ---- streams ---- */

/* The CPU backend with streams that get there when the test says so. */
static struct gx_gpu_ops stream_ops;
static struct {
	void *stream;
	uint32_t *flag;
	uint32_t value;
} marks[2 * SUBMIT_WAITS];
static unsigned nr_marks;

static int test_mark(struct gx_gpu *gpu, void *stream, uint32_t *flag, uint32_t value)
{
	if (stream == (void *)9)
		return -EINVAL;
	assert_true(nr_marks < GX_ARRAY_SIZE(marks));
	marks[nr_marks].stream = stream;
	marks[nr_marks].flag = flag;
	marks[nr_marks++].value = value;
	return 0;
}

static void stream_reach(void *stream)
{
	for (unsigned i = 0; i < nr_marks; i++)
		if (marks[i].stream == stream)
			__atomic_store_n(marks[i].flag, marks[i].value, __ATOMIC_RELEASE);
}

static void streams_by_hand(struct rig *r, unsigned node)
{
	stream_ops = gx_gpu_host_ops;
	stream_ops.stream_mark = test_mark;
	r->gx[node]->gpu[0]->ops = &stream_ops;
	nr_marks = 0;
}

static struct rig *stream_rig(void)
{
	struct rig *r = submit_rig_of(&(struct rig_cfg){.sim = {.seed = 1}, .gpu = true}, 1024);

	streams_by_hand(r, 0);
	return r;
}

#define STREAM_A ((void *)16)
#define STREAM_B ((void *)32)

static void post_stream(struct rig *r, uint64_t user, void *stream)
{
	struct gx_op op = op_of(r, GX_OP_PUT, user, 64);

	op.stream = stream;
	rig_post(r, 0, &op);
}

static void submit_stream_op(struct rig *r, uint64_t user, void *stream)
{
	struct gx_op op = op_of(r, GX_OP_PUT, user, 64);

	op.stream = stream;
	submit(r, &op);
}

static void stream__waits_and_others_pass(void **state)
{
	struct rig *r = stream_rig();

	post_stream(r, 1, STREAM_A);
	post_stream(r, 2, STREAM_B);
	submit_stream_op(r, 3, STREAM_A);
	submit_stream_op(r, 4, NULL);
	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .user = 5,
				 .addr = src,
				 .len = 64,
				 .token = r->peer[0].token});
	rig_pass(r, 5 * MS);
	take();
	assert_int_equal(nr_comps, 1);
	assert_int_equal(comps[0].user, 4);
	assert_int_equal(r->nr_last[0], 1);
	assert_int_equal(r->last[0][0].user, 5);
	stream_reach(STREAM_A);
	rig_comps(r, 0, 2, MS);
	assert_int_equal(r->last[0][1].user, 1);
	until_comps(r, 2, MS);
	stream_reach(STREAM_B);
	rig_comps(r, 0, 3, MS);
	submit_done(r);
}

/* The streams of operations to two peers that stand still got there, and their links have no room. That
 * stops none to a third. */
static void stream__peers_stand_still(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){
		.sim = {.seed = 1}, .gpu = true, .mem_b = 4 << 20, .nr_conns = 3, .nr_clients = 3});
	struct gx_region to = GX_INIT(to);
	struct gx_op op = {.kind = GX_OP_PUT, .len = 64, .stream = STREAM_A};
	unsigned taken = 0, last;

	src = realloc(src, BUF_B);
	op.addr = src;
	streams_by_hand(r, 1);
	r->still[rig_node(r, 0, 0)] = r->still[rig_node(r, 0, 1)] = true;
	do {
		last = taken;
		nr_marks = 0;
		for (unsigned i = 0; i < 128; i++) {
			assert_int_equal(gx_conn_region(r->conn[1][i % 2], "mem", 0, &to), 0);
			op.token = to.token;
			taken += gx_post(gx_core_queue(r->core[1]), r->ep[1][i % 2], &op, 1) == 1;
		}
		stream_reach(STREAM_A);
		rig_pass(r, MS / 10);
	} while (taken != last);
	assert_true(taken > 2 * SUBMIT_WAITS);
	assert_int_equal(r->nr_last[1], 0);
	assert_int_equal(gx_conn_region(r->conn[1][2], "mem", 0, &to), 0);
	op.token = to.token;
	rig_post_on(r, 1, 2, &op);
	stream_reach(STREAM_A);
	rig_comps(r, 1, 1, 10 * MS);
	assert_int_equal(r->last[1][0].status, 0);
	assert_ptr_equal(r->last[1][0].ep, r->ep[1][2]);
	rig_close(r);
}

/* The bytes that go are those that the stream left there, and a get writes only then. */
/* The stream got there, and the link has room for a put but for no get: the put stays behind. */
static void stream__none_overtakes(void **state)
{
	struct rig *r = stream_rig();
	struct gx_op op = op_of(r, GX_OP_GET, 1, 64);

	r->still[1] = true;
	for (unsigned i = 0; i < PKT_GETS_MAX; i++)
		rig_post(r, 0, &op);
	op.user = 2;
	op.stream = STREAM_A;
	rig_post(r, 0, &op);
	post_stream(r, 3, STREAM_A);
	stream_reach(STREAM_A);
	rig_pass(r, MS);
	assert_int_equal(r->ep[0][0]->nr_waits, 2);
	r->still[1] = false;
	rig_comps(r, 0, PKT_GETS_MAX + 2, SECOND);
	submit_done(r);
}

static void stream__bytes_of_then(void **state)
{
	struct rig *r = stream_rig();
	struct gx_op op = op_of(r, GX_OP_PUT, 1, 100000);

	op.mem = r->mem[0];
	op.stream = STREAM_A;
	rig_post(r, 0, &op);
	memcpy(rig_mem(r, 1) + BUF_B, src, 100000);
	op = op_of(r, GX_OP_GET, 2, 100000);
	op.remote_off = BUF_B;
	op.addr = dst + RIG_GUARD;
	op.stream = STREAM_B;
	rig_post(r, 0, &op);
	rig_pass(r, 2 * MS);
	rig_check_poison(dst, BUF_B);
	memcpy(rig_mem(r, 0), src, 100000); /* the stream's work */
	stream_reach(STREAM_A);
	stream_reach(STREAM_B);
	rig_comps(r, 0, 2, 10 * MS);
	assert_memory_equal(rig_mem(r, 1), src, 100000);
	rig_check(dst + RIG_GUARD, 100000, 7);
	submit_done(r);
}

static void stream__refused(void **state)
{
	struct rig *r = stream_rig();
	struct gx_op op = op_of(r, GX_OP_PUT, 1, 64);

	op.stream = (void *)9;
	assert_int_equal(common_post(r->ep[0][0], &op, 1), -EINVAL);
	assert_non_null(strstr(gx_error(), "stream"));
	assert_int_equal(gx_post(queue, r->ep[0][0], &op, 1), -EINVAL);
	submit_done(r);
}

static void stream__cancel_and_deadline(void **state)
{
	struct rig *r = stream_rig();
	struct gx_op op = op_of(r, GX_OP_PUT, 1, 64);

	op.stream = STREAM_A;
	op.flags = GX_OP_LOCAL;
	rig_post(r, 0, &op);
	op.user = 2;
	op.deadline_ns = r->now_ns + 3 * MS;
	rig_post(r, 0, &op);
	submit(r, &op);
	op.user = 3;
	op.deadline_ns = 0;
	submit(r, &op);
	rig_pass(r, MS);
	assert_int_equal(common_cancel(r->ep[0][0], 1), 1);
	assert_int_equal(common_cancel(r->ep[0][0], 3), 0);
	assert_int_equal(gx_cancel(queue, r->ep[0][0], 3), 1);
	rig_comps(r, 0, 2, MS);
	assert_int_equal(r->last[0][0].kind, GX_COMP_LOCAL);
	assert_int_equal(r->last[0][1].status, -ECANCELED);
	until_comps(r, 2, MS);
	expect(3, -ECANCELED);
	rig_comps(r, 0, 4, 5 * MS);
	assert_int_equal(r->last[0][3].status, -ETIMEDOUT);
	until_comps(r, 4, MS);
	expect(2, -ETIMEDOUT);
	/* The stream writes when nobody waits any more: until then the queue stays. */
	rig_pass(r, MS);
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(gx_queue_close(queue), -EAGAIN);
		rig_turn(r);
	}
	stream_reach(STREAM_A);
	queue_close(r);
	rig_done(r);
}

static void stream__bounded(void **state)
{
	struct rig *r = stream_rig();
	struct gx_op op = op_of(r, GX_OP_PUT, 1, 64);
	unsigned n = 0;

	op.stream = STREAM_A;
	while (common_post(r->ep[0][0], &op, 1) == 1)
		n++;
	assert_int_equal(n, SUBMIT_WAITS);
	for (n = 0; gx_post(queue, r->ep[0][0], &op, 1) == 1; n++)
		;
	assert_int_equal(n, SUBMIT_WAITS);
	rig_pass(r, MS);
	stream_reach(STREAM_A);
	rig_comps(r, 0, SUBMIT_WAITS, SECOND);
	until_comps(r, SUBMIT_WAITS, SECOND);
	/* All flags are free again, with another value. */
	nr_marks = 0;
	post_stream(r, 2, STREAM_B);
	rig_pass(r, MS);
	assert_int_equal(r->nr_last[0], SUBMIT_WAITS);
	stream_reach(STREAM_B);
	rig_comps(r, 0, SUBMIT_WAITS + 1, MS);
	submit_done(r);
}

static void stream__connection_ends(void **state)
{
	struct rig *r = stream_rig();

	post_stream(r, 1, STREAM_A);
	submit_stream_op(r, 2, STREAM_A);
	rig_pass(r, MS);
	gx_conn_close(r->conn[0][0]);
	r->conn[0][0] = NULL;
	turn_real(r, 100);
	assert_int_equal(take(), 1);
	expect(2, -ECANCELED);
	assert_int_equal(r->nr_last[0], 1);
	assert_int_equal(r->last[0][0].status, -ECANCELED);
	assert_int_equal(r->core[0]->comps_due, 0);
	stream_reach(STREAM_A);
	queue_close(r);
	rig_close(r);
}

/* The CPU backend itself: there at once. */
static void stream__of_the_cpu_backend(void **state)
{
	struct rig *r = submit_rig_of(&(struct rig_cfg){.sim = {.seed = 1}, .gpu = true}, 64);

	post_stream(r, 1, STREAM_A);
	rig_comps(r, 0, 1, 10 * MS);
	submit_stream_op(r, 2, STREAM_A);
	until_comps(r, 1, MS);
	submit_done(r);
}

/* ---- messages over lanes ---- */

static uint64_t lane_bytes(struct rig *r, unsigned lane)
{
	uint64_t v = 0;

	assert_int_equal(gx_core_stat(gx_core(r->gx[0], lane), "tx_bytes", &v), 0);
	return v;
}

static void striped__put_and_get(void **state)
{
	static const uint64_t lens[] = {0, 1, 65535, 65536, 65537, 3 * 65536, 1000003, BUF_B - 128};

	for (unsigned lanes = 1; lanes <= 4; lanes++) {
		struct rig *r = lanes_rig(lanes);

		for (unsigned i = 0; i < GX_ARRAY_SIZE(lens); i++) {
			struct gx_op op = op_of(r, GX_OP_PUT, 2 * i, lens[i]);

			memset(rig_mem(r, 1), RIG_POISON, BUF_B);
			memset(dst, RIG_POISON, BUF_B);
			op.remote_off = RIG_GUARD;
			stripe(r, &op);
			until_comps(r, 2 * i + 1, SECOND);
			expect(2 * i, 0);
			assert_int_equal(comps[2 * i].len, lens[i]);
			rig_check(rig_mem(r, 1) + RIG_GUARD, lens[i], 7);
			op = op_of(r, GX_OP_GET, 2 * i + 1, lens[i]);
			op.remote_off = RIG_GUARD;
			op.addr = dst + RIG_GUARD;
			stripe(r, &op);
			until_comps(r, 2 * i + 2, SECOND);
			rig_check(dst + RIG_GUARD, lens[i], 7);
		}
		for (unsigned i = 0; i < lanes; i++)
			assert_true(lane_bytes(r, i) > BUF_B / lanes / 2);
		submit_done(r);
	}
}

/* Runs of 100 bytes of this end are runs of 300 of the other; or either is a plain range. Each lane has some
 * bytes of the views, which end with the last of these. */
static void striped__views(void **state)
{
	enum { LEN = 300 * 2501 };
	const struct gx_view l = {.run_b = 100, .dim = {{3 * 2501, 120}}, .nr_dims = 1};
	const struct gx_view w = {.run_b = 300, .dim = {{41, 310 * 61}, {61, 310}}, .nr_dims = 2};

	for (unsigned i = 0; i < 12; i++) {
		bool get = i & 1;
		const struct gx_views views = {i % 3 == 1 ? NULL : &l, i % 3 == 2 ? NULL : &w};
		struct rig *r = lanes_rig(2 + i % 3);
		struct gx_op op = op_of(r, get ? GX_OP_GET : GX_OP_PUT, 1, 0);
		uint8_t *far = rig_mem(r, 1), *near = get ? dst : src;

		assert_int_equal(gx_views_open(r->gx[0], &views, &op.list), 0);
		rig_fill(get ? far : near, BUF_B, 9);
		memset(get ? near : far, RIG_POISON, BUF_B);
		op.remote_off = RIG_GUARD;
		op.flags = get ? 0 : GX_OP_IMM;
		for (unsigned again = 1; again <= 2; again++) {
			stripe(r, &op);
			until_comps(r, again, SECOND);
			expect(1, 0);
			assert_int_equal(comps[again - 1].len, LEN);
		}
		gx_list_close(op.list);
		for (unsigned k = 0; k < LEN; k++) {
			unsigned at = views.local ? k / 100 * 120 + k % 100 : k;
			unsigned to = views.remote ? k / 300 * 310 + k % 300 : k;

			if (near[at] != far[RIG_GUARD + to])
				fail_msg("%u: byte %u of the views", i, k);
		}
		if (!get && views.remote)
			for (unsigned k = 0; k < 2500; k++)
				rig_check_poison(far + RIG_GUARD + k * 310 + 300, 10);
		if (get && views.local)
			for (unsigned k = 0; k < 3 * 2501; k++)
				rig_check_poison(near + k * 120 + 100, 20);
		for (unsigned k = 0; !get && k < 2 + i % 3; k++)
			assert_true(lane_bytes(r, k) > LEN / (2 + i % 3));
		rig_pass(r, MS);
		assert_int_equal(r->nr_last[1], get ? 0 : 2);
		rig_forget(r);
		submit_done(r);
	}
}

/* Chunks are short, and a lane's part would end before the first piece at which it may: no part is empty. */
static void striped__views_of_few_bytes(void **state)
{
	enum { LEN = 300 * 14 };
	const struct gx_view w = {.run_b = 300, .dim = {{14, 310}}, .nr_dims = 1};
	const struct gx_views views = {NULL, &w};
	struct rig *r = submit_rig_of(
		&(struct rig_cfg){.sim = {.seed = 1}, .nr_cores = 3, .chunk_b = 4096}, 64);
	struct gx_op op = op_of(r, GX_OP_PUT, 1, 0);
	uint8_t *far = rig_mem(r, 1);

	op.remote_off = RIG_GUARD;
	assert_int_equal(gx_views_open(r->gx[0], &views, &op.list), 0);
	stripe(r, &op);
	until_comps(r, 1, SECOND);
	expect(1, 0);
	assert_int_equal(comps[0].len, LEN);
	for (unsigned k = 0; k < LEN; k++)
		assert_int_equal(far[RIG_GUARD + k / 300 * 310 + k % 300], src[k]);
	gx_list_close(op.list);
	rig_forget(r);
	submit_done(r);
}

/* The immediate comes when all is there, though packets are lost and lanes differ. */
static void striped__immediate_is_last(void **state)
{
	for (unsigned seed = 0; seed < 8; seed++) {
		struct rig *r = submit_rig_of(&(struct rig_cfg){.sim = {.seed = seed,
									.loss_ppm = 20000,
									.reorder_ppm = 100000,
									.reorder_slots = 64},
								.nr_cores = 3,
								.chunk_b = 65536},
					      64);
		struct gx_op op = op_of(r, GX_OP_PUT, 1, 1000003);

		op.flags = GX_OP_IMM | GX_OP_LOCAL;
		op.imm = 55;
		op.remote_off = RIG_GUARD;
		stripe(r, &op);
		for (uint64_t end = r->now_ns + SECOND; !r->nr_last[1] && r->now_ns < end; take())
			rig_turn(r);
		assert_int_equal(r->nr_last[1], 1);
		rig_check(rig_mem(r, 1) + RIG_GUARD, 1000003, 7);
		assert_int_equal(r->last[1][0].imm, 55);
		assert_int_equal(r->last[1][0].len, 0);
		assert_int_equal(r->last[1][0].off, RIG_GUARD);
		until_comps(r, 2, SECOND);
		assert_int_equal(comps[0].kind, GX_COMP_LOCAL);
		assert_int_equal(comps[0].len, 1000003);
		expect(1, 0);
		rig_set(r, &(struct sim_cfg){0});
		submit_done(r);
	}
}

/* One part is outside of the region: one completion, and no immediate. */
static void striped__first_error_wins(void **state)
{
	struct rig *r = lanes_rig(3);
	struct gx_op op = op_of(r, GX_OP_PUT, 1, 6 * 65536);

	op.remote_off = (4 << 20) - 5 * 65536;
	op.flags = GX_OP_IMM | GX_OP_LOCAL | GX_OP_SILENT;
	stripe(r, &op);
	until_comps(r, 2, SECOND);
	comp_of(1, GX_COMP_LOCAL);
	expect(1, -ERANGE);
	assert_int_equal(comp_of(1, GX_COMP_DONE)->len, 0);
	op.remote_off = 0;
	op.flags = GX_OP_SILENT;
	stripe(r, &op);
	rig_pass(r, 5 * MS);
	assert_int_equal(r->nr_last[1], 0);
	submit_done(r);
}

/* By the endpoint that an operation was posted on, or any one of the connection it was striped over. */
static void cancel__where_it_was_posted(void **state)
{
	static const uint64_t len[] = {64, BUF_B};
	struct rig *r = submit_rig_of(&(struct rig_cfg){.sim = {.seed = 1}, .nr_conns = 2}, 64);
	struct gx_op op = op_of(r, GX_OP_SEND, 1, 64);

	submit(r, &op);
	assert_int_equal(gx_post(queue, r->ep[0][1], &op, 1), 1);
	assert_int_equal(gx_cancel(queue, r->ep[0][1], 1), 1);
	until_comps(r, 1, MS);
	assert_ptr_equal(comps[0].ep, r->ep[0][1]);
	assert_int_equal(comps[0].status, -ECANCELED);
	assert_int_equal(gx_cancel(queue, r->ep[0][0], 1), 1);
	until_comps(r, 2, MS);
	submit_done(r);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(len); i++) {
		r = lanes_rig(3);
		op = op_of(r, GX_OP_PUT, 1, len[i]);
		stripe(r, &op);
		assert_int_equal(gx_cancel(queue, gx_conn_ep(r->conn[0][0], 2), 1), 1);
		until_comps(r, 1, SECOND);
		expect(1, -ECANCELED);
		submit_done(r);
	}
}

/* A core's queue takes nothing of other cores, and is not closed. */
static void core_queue__refused(void **state)
{
	struct rig *r = lanes_rig(2);
	struct gx_queue *q = gx_core_queue(gx_core(r->gx[0], 1));
	struct gx_op op = op_of(r, GX_OP_PUT, 1, 64);

	assert_int_equal(gx_post(q, r->ep[0][0], &op, 1), -EINVAL);
	assert_non_null(strstr(gx_error(), "another core"));
	assert_int_equal(gx_cancel(q, r->ep[0][0], 1), -EINVAL);
	assert_non_null(strstr(gx_error(), "another core"));
	assert_int_equal(gx_post(q, r->ep[1][0], &op, 1), -EINVAL);
	assert_int_equal(gx_post_striped(q, r->conn[0][0], &op, 1), -EINVAL);
	assert_non_null(strstr(gx_error(), "gx_queue_open()"));
	assert_int_equal(gx_queue_close(q), -EINVAL);
	assert_int_equal(gx_post(q, gx_conn_ep(r->conn[0][0], 1), &op, 1), 1);
	rig_comps(r, 0, 1, MS);
	assert_int_equal(take(), 0);
	assert_ptr_equal(r->last[0][0].ep, gx_conn_ep(r->conn[0][0], 1));
	submit_done(r);
}

/* A message over two lanes is under way, and its note waits for it: the thread may sleep until a part is
 * back. */
static void striped__note_and_sleep(void **state)
{
	struct rig *r = lanes_rig(2);
	struct gx_op op = op_of(r, GX_OP_PUT, 1, 1 << 20);
	unsigned arms = 0;

	op.flags = GX_OP_NOTE;
	op.note = "abcd";
	op.note_len = 4;
	assert_true(gx_queue_fd(queue) >= 0);
	r->still[1] = true;
	assert_int_equal(gx_post_striped(queue, r->conn[0][0], &op, 1), 1);
	for (unsigned i = 0; i < 50; i++)
		rig_turn(r);
	assert_int_equal(take(), 0);
	assert_int_equal(gx_queue_arm(queue), 0);
	r->still[1] = false;
	for (uint64_t end = r->now_ns + SECOND; !take(); rig_turn(r)) {
		assert_true(r->now_ns < end);
		arms += gx_queue_arm(queue);
	}
	expect(1, 0);
	assert_true(arms < 10);
	rig_forget(r);
	queue_close(r);
	rig_close(r);
}

static char notes[64];
static unsigned notes_b;

static void note_keep(void *arg, int node, const struct gx_comp *comp)
{
	assert_int_equal(node, 1);
	assert_true(comp->note_len <= sizeof(notes) - notes_b);
	memcpy(notes + notes_b, comp->note, comp->note_len);
	notes_b += comp->note_len;
}

static const struct sub_msg *msg_of(uint64_t user)
{
	for (uint32_t i = 0; i < queue->depth; i++)
		if (queue->msgs[i].op.user == user)
			return &queue->msgs[i];
	fail_msg("no message %u", (unsigned)user);
	return NULL;
}

/* All bytes of a message are there, and its note waits for that of an earlier one: it is cancelled
 * then. The peer has one note, of the first. */
static void striped__note_of_a_cancelled(void **state)
{
	struct rig *r = lanes_rig(2);
	struct gx_op op = op_of(r, GX_OP_PUT, 1, BUF_B);

	r->on_comp = note_keep;
	notes_b = 0;
	op.flags = GX_OP_NOTE;
	op.note = "one ";
	op.note_len = 4;
	stripe(r, &op);
	op.user = 2;
	op.len = 2 * 65536;
	op.note = "two ";
	stripe(r, &op);
	while (!msg_of(2)->last) {
		assert_null(msg_of(1)->last);
		assert_int_equal(take(), 0);
		rig_turn(r);
	}
	assert_int_equal(gx_cancel(queue, r->ep[0][0], 2), 1);
	until_comps(r, 2, SECOND);
	expect(1, 0);
	expect(2, -ECANCELED);
	op.user = 3; /* the numbers of notes go on */
	op.note = "tri ";
	stripe(r, &op);
	until_comps(r, 3, SECOND);
	expect(3, 0);
	submit_done(r);
	assert_int_equal(notes_b, 8);
	assert_memory_equal(notes, "one tri ", 8);
}

/* ---- fences and flushes ---- */

static unsigned place_of(uint64_t user)
{
	return (unsigned)(comp_of(user, GX_COMP_DONE) - comps);
}

static struct gx_op flush_of(uint64_t user)
{
	return (struct gx_op){.kind = GX_OP_FLUSH, .user = user};
}

/* A fence looks for operations until it has seen all that are under way, and not at each place of the
 * queue. One behind these looks as if it were. */
static void fence__looks_at_what_is_under_way(void **state)
{
	struct rig *r = submit_rig();
	struct gx_op ahead = op_of(r, GX_OP_PUT, 1, 1 << 20), fenced = op_of(r, GX_OP_PUT, 2, 64);
	struct sub_req *last = &queue->lane[0]->reqs[queue->depth - 1];

	last->ep = r->ep[0][0];
	last->state = SUB_POSTED;
	fenced.flags = GX_OP_FENCE;
	submit(r, &ahead);
	submit(r, &fenced);
	until_comps(r, 2, SECOND);
	expect(1, 0);
	expect(2, 0);
	assert_int_equal(place_of(2), 1);
	last->state = SUB_IDLE;
	submit_done(r);
}

/* No byte of the fenced put is there before the put ahead is done; what is behind begins later. */
static void fence__begins_after_what_is_ahead(void **state)
{
	struct rig *r = submit_rig();
	struct gx_op ahead = op_of(r, GX_OP_PUT, 1, 1 << 20), fenced = op_of(r, GX_OP_PUT, 2, 64);
	struct gx_op flush = flush_of(3), behind = op_of(r, GX_OP_PUT, 4, 64);
	uint8_t *there = (uint8_t *)rig_mem(r, 1) + BUF_B;

	memset(there, RIG_POISON, 256);
	fenced.flags = GX_OP_FENCE;
	fenced.remote_off = BUF_B;
	behind.remote_off = BUF_B + 128;
	submit(r, &ahead);
	submit(r, &fenced);
	submit(r, &flush);
	submit(r, &behind);
	while (take(), !nr_comps) {
		assert_int_equal(there[0], RIG_POISON);
		rig_turn(r);
	}
	assert_int_equal(there[128], RIG_POISON);
	until_comps(r, 4, SECOND);
	for (unsigned i = 1; i <= 4; i++) {
		expect(i, 0);
		assert_int_equal(place_of(i), i - 1);
	}
	assert_int_equal(comp_of(3, GX_COMP_DONE)->op, GX_OP_FLUSH);
	assert_memory_equal(there, src, 64);
	assert_memory_equal(there + 128, src, 64);
	submit_done(r);
}

/* A receive that was there before ends while a send ahead of the fence waits for the peer. */
static void fence__no_receive_counts(void **state)
{
	struct rig *r = submit_rig();
	struct gx_op recv = op_of(r, GX_OP_RECV, 1, 64), send = op_of(r, GX_OP_SEND, 2, 64);
	struct gx_op fenced = op_of(r, GX_OP_PUT, 3, 64);
	struct gx_op theirs = {.kind = GX_OP_SEND, .addr = src, .len = 64, .tag = 9};
	uint8_t *there = (uint8_t *)rig_mem(r, 1) + BUF_B;

	memset(there, RIG_POISON, 64);
	recv.tag = 9;
	send.tag = 5;
	fenced.flags = GX_OP_FENCE;
	fenced.remote_off = BUF_B;
	submit(r, &recv);
	submit(r, &send);
	submit(r, &fenced);
	rig_pass(r, MS);
	rig_post(r, 1, &theirs);
	until_comps(r, 1, SECOND);
	expect(1, 0);
	rig_pass(r, 5 * MS);
	assert_int_equal(take(), 0);
	assert_int_equal(there[0], RIG_POISON);
	theirs = (struct gx_op){.kind = GX_OP_RECV, .addr = dst + RIG_GUARD, .len = 64, .tag = 5};
	rig_post(r, 1, &theirs);
	until_comps(r, 3, SECOND);
	expect(2, 0);
	expect(3, 0);
	assert_memory_equal(there, src, 64);
	rig_forget(r);
	submit_done(r);
}

/* With nothing ahead, behind a receive, and behind what fails. */
static void fence__what_it_waits_for(void **state)
{
	struct rig *r = submit_rig();
	struct gx_op flush = flush_of(1), recv = op_of(r, GX_OP_RECV, 2, 64);
	struct gx_op bad = op_of(r, GX_OP_PUT, 3, 64), put = op_of(r, GX_OP_PUT, 5, 64);

	submit(r, &flush);
	until_comps(r, 1, MS);
	expect(1, 0);
	submit(r, &recv);
	bad.token ^= 1ull << 40;
	submit(r, &bad);
	flush.user = 4;
	submit(r, &flush);
	put.flags = GX_OP_FENCE;
	submit(r, &put);
	until_comps(r, 4, SECOND);
	expect(3, -ESTALE);
	expect(4, 0);
	expect(5, 0);
	assert_int_equal(place_of(3), 1);
	assert_int_equal(gx_cancel(queue, r->ep[0][0], 2), 1);
	until_comps(r, 5, MS);
	submit_done(r);
}

/* Several fences one behind the other, with more ahead of each than the link takes. */
static void fence__many(void **state)
{
	struct rig *r = submit_rig();
	unsigned posted = 0;

	for (unsigned round = 0; round < 3; round++)
		for (unsigned i = 0; i < 20; i++) {
			struct gx_op op = op_of(r, GX_OP_PUT, posted, 3000);

			op.flags = i ? 0 : GX_OP_FENCE;
			submit(r, &op);
			posted++;
		}
	until_comps(r, posted, SECOND);
	for (unsigned i = 0; i < posted; i++)
		assert_int_equal(comps[i].user / 20, i / 20);
	submit_done(r);
}

/* It can be cancelled, has its deadline, and ends with its endpoint. */
static void fence__ends_early(void **state)
{
	struct rig *r = submit_rig();
	struct gx_op put = op_of(r, GX_OP_PUT, 1, 64), flush = flush_of(2);

	r->still[1] = true;
	submit(r, &put);
	submit(r, &flush);
	flush.user = 3;
	flush.deadline_ns = r->now_ns + MS;
	submit(r, &flush);
	put.user = 4;
	submit(r, &put);
	rig_pass(r, MS / 2);
	assert_int_equal(take(), 0);
	assert_int_equal(gx_cancel(queue, r->ep[0][0], 2), 1);
	until_comps(r, 1, MS / 10);
	put.user = 5;
	submit(r, &put);
	rig_pass(r, MS / 10);
	assert_int_equal(gx_cancel(queue, r->ep[0][0], 5), 1); /* behind it, and nothing ahead */
	until_comps(r, 3, 10 * MS);
	expect(2, -ECANCELED);
	expect(5, -ECANCELED);
	expect(3, -ETIMEDOUT);
	r->still[1] = false;
	until_comps(r, 5, SECOND);
	expect(1, 0);
	expect(4, 0);
	submit_done(r);
}

static void fence__refused(void **state)
{
	struct rig *r = submit_rig();
	struct gx_queue *q = gx_core_queue(r->core[0]);
	struct gx_op op = op_of(r, GX_OP_PUT, 1, 64), flush = flush_of(1);

	op.flags = GX_OP_FENCE;
	assert_int_equal(gx_post(q, r->ep[0][0], &op, 1), -EINVAL);
	assert_non_null(strstr(gx_error(), "gx_queue_open()"));
	assert_int_equal(gx_post(q, r->ep[0][0], &flush, 1), -EINVAL);
	flush.len = 1;
	assert_int_equal(gx_post(queue, r->ep[0][0], &flush, 1), -EINVAL);
	flush.len = 0;
	flush.flags = GX_OP_FENCE;
	assert_int_equal(gx_post(queue, r->ep[0][0], &flush, 1), -EINVAL);
	flush.flags = 0;
	flush.kind++;
	assert_int_equal(gx_post(queue, r->ep[0][0], &flush, 1), -EINVAL);
	assert_non_null(strstr(gx_error(), "kind"));
	submit_done(r);
}

/* Over lanes it is not taken before there is nothing to wait for. */
static void striped__fence(void **state)
{
	struct rig *r = lanes_rig(3);
	struct gx_op put = op_of(r, GX_OP_PUT, 1, 1 << 20), flush = flush_of(3);

	stripe(r, &put);
	put.user = 2;
	put.flags = GX_OP_FENCE;
	assert_int_equal(gx_post_striped(queue, r->conn[0][0], &put, 1), 0);
	assert_int_equal(gx_post_striped(queue, r->conn[0][0], &flush, 1), 0);
	until_comps(r, 1, SECOND);
	stripe(r, &put);
	assert_int_equal(gx_post_striped(queue, r->conn[0][0], &flush, 1), 0);
	until_comps(r, 2, SECOND);
	stripe(r, &flush);
	until_comps(r, 3, MS);
	expect(3, 0);
	submit_done(r);
}

static void striped__cancel_and_deadline(void **state)
{
	static const uint64_t at_ns[] = {0, 1000, 30000, 60000, 100000, 150000};

	for (unsigned i = 0; i < 2 * GX_ARRAY_SIZE(at_ns); i++) {
		struct rig *r = lanes_rig(3);
		struct gx_op op = op_of(r, GX_OP_PUT, 1, BUF_B);
		bool late = i & 1;
		int status;

		op.flags = GX_OP_IMM;
		op.deadline_ns = late ? r->now_ns + at_ns[i / 2] : 0;
		stripe(r, &op);
		rig_pass(r, at_ns[i / 2]);
		if (!late)
			assert_int_equal(gx_cancel(queue, r->ep[0][0], 1), 1);
		until_comps(r, 1, SECOND);
		status = comps[0].status;
		assert_true(status == 0 || status == (late ? -ETIMEDOUT : -ECANCELED));
		rig_pass(r, 5 * MS);
		assert_int_equal(r->nr_last[1], !status);
		submit_done(r);
	}
}

/* A part that waits ends with another one that fails, whose peer stands still. */
static void striped__others_end(void **state)
{
	struct rig *r = submit_rig_of(
		&(struct rig_cfg){.sim = {.seed = 1}, .nr_cores = 2, .chunk_b = 65536}, 2048);
	struct gx_op op = op_of(r, GX_OP_SEND, 1, 64);

	for (unsigned i = 0; i < PKT_OPS; i++)
		assert_int_equal(gx_post(queue, gx_conn_ep(r->conn[0][0], 1), &op, 1), 1);
	op = op_of(r, GX_OP_PUT, 2, 2 * 65536);
	op.token ^= 1ull << 40;
	stripe(r, &op);
	until_comps(r, 1, 100 * MS);
	expect(2, -ESTALE);
	assert_int_equal(gx_cancel(queue, gx_conn_ep(r->conn[0][0], 1), 1), PKT_OPS);
	until_comps(r, 1 + PKT_OPS, SECOND);
	submit_done(r);
}

/* The note of one that fails holds up none. */
static void striped__note_of_one_that_fails(void **state)
{
	struct rig *r = lanes_rig(2);
	struct gx_op op = op_of(r, GX_OP_PUT, 1, 2 * 65536);

	r->on_comp = note_keep;
	notes_b = 0;
	op.flags = GX_OP_NOTE;
	op.note = "one ";
	op.note_len = 4;
	op.token ^= 1ull << 40;
	stripe(r, &op);
	op.user = 2;
	op.note = "two ";
	op.token ^= 1ull << 40;
	stripe(r, &op);
	until_comps(r, 2, SECOND);
	expect(1, -ESTALE);
	expect(2, 0);
	submit_done(r);
	assert_int_equal(notes_b, 4);
	assert_memory_equal(notes, "two ", 4);
}

static void striped__connection_ends(void **state)
{
	static const uint64_t at_ns[] = {0, 1000, 30000, 60000, 100000, 150000};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(at_ns); i++) {
		struct rig *r = lanes_rig(3);
		struct gx_conn *c = r->conn[0][0];
		struct gx_op op = op_of(r, GX_OP_PUT, 1, BUF_B);

		op.flags = GX_OP_IMM;
		for (op.user = 0; op.user < 4; op.user++)
			stripe(r, &op);
		rig_pass(r, at_ns[i]);
		gx_conn_close(c);
		r->conn[0][0] = r->conn[1][0] = NULL;
		turn_real(r, 50);
		assert_true(conn_is_there(r, c));
		for (unsigned k = 0; k < 1000 && nr_comps < 4; k++) {
			take();
			turn_real(r, 1);
		}
		assert_int_equal(nr_comps, 4);
		turn_real(r, 100);
		assert_false(conn_is_there(r, c));
		queue_close(r);
		rig_close(r);
	}
}

static void striped__more_than_the_queue_holds(void **state)
{
	struct rig *r = submit_rig_of(
		&(struct rig_cfg){.sim = {.seed = 1}, .nr_cores = 2, .chunk_b = 65536}, 8);
	struct gx_op ops[40];
	unsigned at = 0;

	for (unsigned i = 0; i < 40; i++)
		ops[i] = op_of(r, GX_OP_PUT, i, i % 3 ? 200000 : 100);
	while (nr_comps < 40) {
		int n = gx_post_striped(queue, r->conn[0][0], ops + at, 40 - at);

		assert_true(n >= 0 && n <= 16);
		at += (unsigned)n;
		rig_turn(r);
		take();
	}
	for (unsigned i = 0; i < 40; i++)
		expect(i, 0);
	submit_done(r);
}

static void striped__waits_for_a_stream_on_all_lanes(void **state)
{
	struct rig *r = submit_rig_of(
		&(struct rig_cfg){.sim = {.seed = 1}, .nr_cores = 2, .chunk_b = 65536, .gpu = true},
		64);
	struct gx_op op = op_of(r, GX_OP_PUT, 1, 1000003);

	streams_by_hand(r, 0);
	op.stream = STREAM_A;
	stripe(r, &op);
	assert_int_equal(nr_marks, 1);
	rig_pass(r, MS);
	assert_int_equal(take(), 0);
	stream_reach(STREAM_A);
	until_comps(r, 1, SECOND);
	expect(1, 0);
	assert_memory_equal(rig_mem(r, 1), src, 1000003);
	submit_done(r);
}

static void striped__refused(void **state)
{
	struct rig *r = lanes_rig(2);
	struct gx_op op = op_of(r, GX_OP_SEND, 1, 64);

	assert_int_equal(gx_post_striped(queue, r->conn[0][0], &op, 1), -EINVAL);
	assert_non_null(strstr(gx_error(), "one endpoint"));
	op.kind = GX_OP_RECV;
	assert_int_equal(gx_post_striped(queue, r->conn[0][0], &op, 1), -EINVAL);
	op = op_of(r, GX_OP_PUT, 1, 64);
	assert_int_equal(gx_post_striped(queue, r->conn[1][0], &op, 1), -EINVAL);
	submit_done(r);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(submit_open__depth),
		rig_test(submit__all_kinds),
		rig_test(submit__recv_says_tag_and_length),
		rig_test(submit__local_silent_notify),
		rig_test(submit__full_takes_fewer),
		rig_test(submit__malformed),
		rig_test(submit__order_beyond_the_links_room),
		rig_test(submit__endpoints_pass_each_other),
		rig_test(submit__deadlines),
		rig_test(cancel__wherever_it_is),
		rig_test(cancel__where_it_was_posted),
		rig_test(cancel__last_that_waits),
		rig_test(core_look__ring),
		rig_test(core_queue__refused),
		rig_test(conn_close__operations_in_every_state),
		rig_test(conn_close__posting_after_it),
		rig_test(submit_close__under_way),
		rig_test(gx_close__with_queues_left),
		rig_test(stream__waits_and_others_pass),
		rig_test(stream__peers_stand_still),
		rig_test(stream__none_overtakes),
		rig_test(stream__bytes_of_then),
		rig_test(stream__refused),
		rig_test(stream__cancel_and_deadline),
		rig_test(stream__bounded),
		rig_test(stream__connection_ends),
		rig_test(stream__of_the_cpu_backend),
		rig_test(striped__note_and_sleep),
		rig_test(striped__note_of_a_cancelled),
		rig_test(fence__looks_at_what_is_under_way),
		rig_test(fence__begins_after_what_is_ahead),
		rig_test(fence__no_receive_counts),
		rig_test(fence__what_it_waits_for),
		rig_test(fence__many),
		rig_test(fence__ends_early),
		rig_test(fence__refused),
		rig_test(striped__fence),
		rig_test(striped__put_and_get),
		rig_test(striped__views),
		cmocka_unit_test(striped__views_of_few_bytes),
		rig_test(striped__immediate_is_last),
		rig_test(striped__first_error_wins),
		rig_test(striped__cancel_and_deadline),
		rig_test(striped__others_end),
		rig_test(striped__note_of_one_that_fails),
		rig_test(striped__connection_ends),
		rig_test(striped__more_than_the_queue_holds),
		rig_test(striped__waits_for_a_stream_on_all_lanes),
		rig_test(striped__refused),
	};
	int ret = rig_run("submit", tests, GX_ARRAY_SIZE(tests), argc, argv);

	free(src);
	free(dst);
	return ret;
}
