/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of the verbs link over the scripted provider (verbs_script.h): two ends in one thread.
 * Every byte is looked at; a fixture ends with nothing made, posted or owed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/opt_ctx.h"
#include "gx_internal/gpu.h"
#include "verbs/verbs_lane.h"
#include "verbs/verbs_mend.h"

#include <cmocka.h>

#include "verbs/verbs_script.h"

#define MEM_B	(4u << 20)
#define CHUNK_B (64u << 10)
#define TURNS	20000
#define TOKEN	0x110000 /* index 0 */

/* @text: as the tools spell devices. */
static int named_open(const char *text, struct verbs_dev **out)
{
	struct gx_rail rail;
	char name[64];
	bool all;

	if (opt_rail(text, name, &rail, &all))
		return -EINVAL;
	return verbs_dev_open(&rail, out);
}

struct end {
	struct gx *gx;
	struct gx_core *core;
	struct verbs_dev *dev;
	struct verbs_lane *lane;
	struct gx_ep ep;
	struct gx_mem mem; /* region 0 */
	struct verbs_region region[GX_REGIONS_MAX];
	struct verbs_side side[VERBS_QPS_MAX];
	struct verbs_port hello;
	unsigned nr_done, nr_local, nr_notify, nr_failed;
	int status;
	struct gx_comp last, notify;
	const char *puts_from; /* the peer's memory: it puts each byte to its own place */
};

struct rig {
	struct end a, b;
	bool no_mend; /* the control threads are slow */
	unsigned nr_mends;
	uint64_t now_ns;
};

/* ---- Two ends ---- */

/* Registered for ourselves and for peers. NULL: refused. */
static struct verbs_reg *reg_both(struct verbs_dev *dev, const struct gx_mem *mem, unsigned access)
{
	struct verbs_reg *r = verbs_reg_new(dev, mem);
	void *shared;

	if (!r)
		return NULL;
	verbs_reg_keep(dev, r);
	shared = verbs_share_new(dev, mem, access);
	if (shared)
		verbs_share_keep(r, shared);
	return shared ? r : NULL;
}

static void end_open(struct end *e, const char *device, unsigned nr_qps)
{
	e->gx = calloc(1, sizeof(*e->gx));
	e->core = aligned_alloc(GX_CACHE_LINE, GX_ALIGN_UP(sizeof(*e->core), GX_CACHE_LINE));
	e->lane = calloc(1, sizeof(*e->lane));
	assert_true(e->gx && e->core && e->lane);
	memset(e->core, 0, sizeof(*e->core));
	e->core->gx = e->gx;
	e->core->comps = calloc(GX_COMPS_MAX, sizeof(*e->core->comps));
	assert_int_equal(named_open(device, &e->dev), 0);
	e->mem = (struct gx_mem){.gx = e->gx,
				 .kind = GX_MEM_HOST,
				 .len = MEM_B,
				 .id = 7,
				 .token = TOKEN,
				 .access = GX_ACCESS_PUT | GX_ACCESS_GET};
	e->mem.addr = aligned_alloc(4096, MEM_B);
	assert_true(e->mem.addr && e->core->comps);
	memset(e->mem.addr, 0, MEM_B);
	e->gx->region = calloc(GX_KEYS_MAX, sizeof(e->gx->region[0]));
	assert_non_null(e->gx->region);
	e->gx->region[0] = &e->mem;
	e->mem.link[GX_LINK_VERBS] = reg_both(e->dev, &e->mem, e->mem.access);
	assert_non_null(e->mem.link[GX_LINK_VERBS]);
	e->ep.core = e->core;
	e->ep.access = CORE_ACCESS;
	e->lane->core = e->core;
	e->lane->ep = &e->ep;
	e->lane->nr_paths = 1;
	e->lane->path[0] = (struct verbs_path){.dev = e->dev, .window_b = 16 * CHUNK_B};
	e->lane->region = e->region;
	assert_int_equal(verbs_qps_open(e->lane, nr_qps), 0);
	verbs_port_fill(e->dev, &e->hello);
	for (unsigned i = 0; i < nr_qps; i++)
		assert_int_equal(verbs_qp_reset(e->lane, &e->lane->qp[i], &e->side[i].own), 0);
}

/* Until the threads of the device have done what they were asked for. */
static void dials_wait(const struct end *e)
{
	while (verbs_qps_connect_due(e->lane))
		sched_yield();
}

static void end_connect(struct end *e, const struct end *to)
{
	const struct verbs_reg *reg = to->mem.link[GX_LINK_VERBS];

	e->lane->chunk_b = verbs_chunk_b(e->dev, &to->hello, CHUNK_B);
	e->region[0] = (struct verbs_region){.token = TOKEN,
					     .len = MEM_B,
					     .addr = reg->addr,
					     .rails = 1,
					     .rkey = {reg->rkey},
					     .access = to->mem.access};
	for (unsigned i = 0; i < e->lane->nr_qps; i++)
		verbs_qp_connect(e->lane, &e->lane->qp[i], &to->hello, &e->side[i].own,
				 &to->side[i].own, false);
	dials_wait(e);
	for (unsigned i = 0; i < e->lane->nr_qps; i++)
		assert_int_equal(verbs_dial_take(&e->lane->qp[i].dial), 0);
}

static void take(struct end *e)
{
	while (e->core->comp_tail != e->core->comp_head) {
		struct gx_comp *c = &e->core->comps[e->core->comp_tail++ % GX_COMPS_MAX];

		assert_ptr_equal(c->ep, &e->ep);
		e->nr_local += c->kind == GX_COMP_LOCAL;
		if (c->kind == GX_COMP_NOTIFY) {
			e->nr_notify++;
			e->notify = *c;
			/* All bytes are there, and not only later. */
			assert_memory_equal(e->mem.addr + c->off, e->puts_from + c->off, c->len);
		}
		if (c->kind != GX_COMP_DONE)
			continue;
		e->nr_done++;
		e->last = *c;
		if (c->status) {
			e->nr_failed++;
			e->status = c->status;
		}
	}
}

/* The control thread of @e: what it says reaches the other at once. */
static void mend(struct rig *r, struct end *e, struct end *to)
{
	for (unsigned i = 0; i < e->lane->nr_qps; i++) {
		struct verbs_mend m;

		if (!verbs_mend_step(e->lane, &e->lane->qp[i], &e->side[i], &to->hello, true, &m))
			continue;
		assert_int_equal(
			verbs_mend_take(to->lane, &to->lane->qp[i], &to->side[i], &e->hello, &m),
			0);
		r->nr_mends++;
	}
	dials_wait(e);
	dials_wait(to);
}

static void turn(struct rig *r)
{
	verbs_lane_turn(r->a.lane, ++r->now_ns);
	verbs_lane_turn(r->b.lane, r->now_ns);
	script_run();
	take(&r->a);
	take(&r->b);
	if (!r->no_mend) {
		mend(r, &r->a, &r->b);
		mend(r, &r->b, &r->a);
	}
}

#define UNTIL(r, cond)                                                                             \
	do {                                                                                       \
		for (unsigned turns_ = 0; !(cond) && turns_ < TURNS; turns_++)                     \
			turn(r);                                                                   \
		assert_true(cond);                                                                 \
	} while (0)

static void quiesce(struct rig *r)
{
	for (unsigned i = 0; i < 64; i++)
		turn(r);
}

static struct rig *rig_new_of(const char *a, const char *b, unsigned nr_qps)
{
	struct rig *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	verbs_api_set(&script_api);
	end_open(&r->a, a, nr_qps);
	end_open(&r->b, b, nr_qps);
	end_connect(&r->a, &r->b);
	end_connect(&r->b, &r->a);
	r->a.puts_from = r->b.mem.addr;
	r->b.puts_from = r->a.mem.addr;
	return r;
}

static struct rig *rig_new(unsigned nr_qps)
{
	return rig_new_of("script0", "script1:2", nr_qps);
}

static void end_close(struct end *e)
{
	assert_int_equal(e->lane->nr_ops, 0);
	assert_int_equal(e->lane->nr_free, VERBS_OPS);
	assert_int_equal(e->lane->path[0].under_b, 0);
	for (unsigned i = 0; i < VERBS_OPS; i++)
		assert_int_equal(e->lane->op[i].data_redo, 0);
	assert_int_equal(e->core->comps_due, 0);
	assert_true(verbs_lane_is_quiet(e->lane));
	verbs_qps_close(e->lane);
	verbs_reg_put(e->dev, &e->mem);
	verbs_dev_close(e->dev);
	free(e->mem.addr);
	free(e->core->comps);
	free(e->core);
	free(e->lane);
	free(e->gx->region);
	free(e->gx);
}

static void rig_free_of(struct rig *r, bool forget)
{
	verbs_mend_stop(r->a.lane);
	verbs_mend_stop(r->b.lane);
	verbs_lane_fail(r->a.lane, -ECONNRESET);
	verbs_lane_fail(r->b.lane, -ECONNRESET);
	r->no_mend = true;
	script.poll_max = 0;
	if (script.gone) { /* nothing comes back */
		verbs_mend_give_up(r->a.lane);
		verbs_mend_give_up(r->b.lane);
	}
	UNTIL(r, verbs_lane_is_quiet(r->a.lane) && verbs_lane_is_quiet(r->b.lane));
	end_close(&r->a);
	end_close(&r->b);
	free(r);
	if (forget)
		script_forget();
	script_reset();
	verbs_api_set(NULL);
}

static void rig_free(struct rig *r)
{
	rig_free_of(r, false);
}

/* Lines of the log that have log_what. */
static const char *log_what;
static unsigned nr_logged;

static void log_count(void *arg, int level, const char *line)
{
	nr_logged += !!strstr(line, log_what);
}

static void log_watch(const char *what)
{
	log_what = what;
	nr_logged = 0;
	gx_log_level_set(GX_LOG_INFO);
	gx_log_sink(what ? log_count : NULL, NULL);
	if (!what)
		gx_log_level_set(GX_LOG_WARN);
}

/* ---- Operations ---- */

static void fill(char *p, uint64_t len, unsigned seed)
{
	for (uint64_t i = 0; i < len; i++)
		p[i] = (char)(i * 7 + i / 251 + seed);
}

static struct gx_op op_of(struct end *e, enum gx_op_kind kind, uint64_t off, uint64_t len)
{
	return (struct gx_op){.kind = kind,
			      .user = 5,
			      .mem = &e->mem,
			      .off = off,
			      .len = len,
			      .token = TOKEN,
			      .remote_off = off};
}

static void post(struct end *e, const struct gx_op *op)
{
	assert_int_equal(verbs_post(e->lane, op, NULL), 0);
	verbs_lane_kick(e->lane);
}

static struct gx_op put_imm(struct end *e, uint64_t off, uint64_t len, uint64_t imm)
{
	struct gx_op op = op_of(e, GX_OP_PUT, off, len);

	op.flags = GX_OP_IMM;
	op.imm = imm;
	return op;
}

static void same(const struct rig *r, uint64_t off, uint64_t len)
{
	assert_memory_equal(r->a.mem.addr + off, r->b.mem.addr + off, len);
}

/* Fail the next request but @after of queue pair @i of @e. */
static void plan(const struct end *e, unsigned i, unsigned after, enum ibv_wc_status status)
{
	script.fail_qpn = e->lane->qp[i].qp->qp_num;
	script.fail_after = after;
	script.fail_status = status;
}

static unsigned nr_up(const struct end *e)
{
	unsigned n = 0;

	for (unsigned i = 0; i < e->lane->nr_qps; i++)
		n += qp_state(&e->lane->qp[i]) == VERBS_QP_UP;
	return n;
}

/* ---- No faults ---- */

static void put__sizes(void **state)
{
	static const uint64_t sizes[] = {0, 1, 64, 65, 4096, CHUNK_B, CHUNK_B + 1, 1 << 20, MEM_B};

	for (unsigned nr_qps = 1; nr_qps <= VERBS_QPS_MAX; nr_qps *= 4) {
		struct rig *r = rig_new(nr_qps);

		for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++) {
			struct gx_op op = put_imm(&r->a, 0, sizes[i], 0x123456789abcdefull + i);

			fill(r->a.mem.addr, sizes[i], i);
			post(&r->a, &op);
			UNTIL(r, r->b.nr_notify == i + 1);
			same(r, 0, sizes[i]);
			assert_int_equal(r->b.notify.imm, op.imm);
			assert_int_equal(r->b.notify.len, sizes[i]);
			assert_int_equal(r->b.notify.token, TOKEN);
			UNTIL(r, r->a.nr_done == i + 1);
			assert_int_equal(r->a.last.len, sizes[i]);
		}
		assert_int_equal(r->a.nr_failed, 0);
		rig_free(r);
	}
}

static void get__sizes(void **state)
{
	static const uint64_t sizes[] = {0, 1, 4096, CHUNK_B + 1, MEM_B};
	struct rig *r = rig_new(4);

	for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++) {
		struct gx_op op = op_of(&r->a, GX_OP_GET, 0, sizes[i]);

		fill(r->b.mem.addr, sizes[i], i);
		post(&r->a, &op);
		UNTIL(r, r->a.nr_done == i + 1);
		same(r, 0, sizes[i]);
	}
	assert_int_equal(r->a.nr_failed, 0);
	rig_free(r);
}

static void put__inline_needs_no_key(void **state)
{
	struct rig *r = rig_new(1);
	char plain[65] = "sixty-four bytes at most travel inside of a request";
	struct gx_op op = {
		.kind = GX_OP_PUT, .addr = plain, .len = 64, .token = TOKEN, .remote_off = 3};

	post(&r->a, &op);
	UNTIL(r, r->a.nr_done == 1);
	assert_memory_equal(r->b.mem.addr + 3, plain, 64);
	op.len = 65;
	assert_int_equal(verbs_post(r->a.lane, &op, NULL), -EOPNOTSUPP);
	rig_free(r);
}

static void put__outside_is_for_packets(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, 1);

	op.remote_off = MEM_B;
	assert_int_equal(verbs_post(r->a.lane, &op, NULL), -EOPNOTSUPP);
	op.remote_off = 0;
	op.token++;
	assert_int_equal(verbs_post(r->a.lane, &op, NULL), -EOPNOTSUPP);
	r->a.region[0].access = GX_ACCESS_GET;
	op.token--;
	assert_int_equal(verbs_post(r->a.lane, &op, NULL), -EOPNOTSUPP);
	rig_free(r);
}

static void put__lists(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, 8);

	for (unsigned i = 0; i < VERBS_BATCH; i++)
		assert_int_equal(verbs_post(r->a.lane, &op, NULL), 0);
	verbs_lane_kick(r->a.lane);
	assert_int_equal(script.nr_lists, 1);
	assert_int_equal(script.nr_signalled, 1);
	UNTIL(r, r->a.nr_done == VERBS_BATCH);
	rig_free(r);
}

/* Small puts one by one share a queue pair until it has many out, and then take the next one. */
static void put__few_share_a_queue_pair(void **state)
{
	struct rig *r = rig_new(4);
	const struct verbs_qp *q = r->a.lane->qp;
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, 8);
	unsigned first = r->a.lane->next, n = 0;

	for (; n < VERBS_SPREAD; n++)
		post(&r->a, &op);
	assert_int_equal(q[first].head, VERBS_SPREAD);
	for (; n < 4 * VERBS_SPREAD; n++)
		post(&r->a, &op);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(q[i].head, VERBS_SPREAD);
	UNTIL(r, r->a.nr_done == n);
	for (; n < 6 * VERBS_SPREAD; n++) {
		post(&r->a, &op);
		UNTIL(r, r->a.nr_done == n + 1);
	}
	assert_int_equal(q[first].head, 3 * VERBS_SPREAD);
	rig_free(r);
}

/* Larger ones take turns, all queue pairs of them. */
static void put__large_take_turns(void **state)
{
	struct rig *r = rig_new(4);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, VERBS_SMALL_B + 1);

	for (unsigned n = 0; n < 8; n++)
		post(&r->a, &op);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(r->a.lane->qp[i].head, 2);
	UNTIL(r, r->a.nr_done == 8);
	rig_free(r);
}

/* Its poster learns of an end after it has posted: of an empty put, too, that needs no device. */
static void put__empty_ends_after_the_post(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, 0);

	assert_int_equal(verbs_post(r->a.lane, &op, NULL), 0);
	take(&r->a);
	assert_int_equal(r->a.nr_done, 0);
	verbs_lane_kick(r->a.lane);
	take(&r->a);
	assert_int_equal(r->a.nr_done, 1);
	assert_int_equal(script.nr_lists, 0);
	rig_free(r);
}

/* A new operation queues behind one that waits for the window. */
static void put__waits_behind_others(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op large = op_of(&r->a, GX_OP_PUT, 0, MEM_B), op = op_of(&r->a, GX_OP_PUT, 0, 8);
	uint32_t sent;

	r->a.lane->path[0].window_b += 8;
	post(&r->a, &large);
	sent = r->a.lane->qp[0].head;
	assert_int_equal(verbs_post(r->a.lane, &op, NULL), 0);
	assert_int_equal(r->a.lane->qp[0].head, sent);
	UNTIL(r, r->a.nr_done == 2);
	rig_free(r);
}

static void put__window(void **state)
{
	struct rig *r = rig_new(4);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, MEM_B);

	post(&r->a, &op);
	assert_int_equal(r->a.lane->path[0].under_b, r->a.lane->path[0].window_b);
	UNTIL(r, r->a.nr_done == 1);
	rig_free(r);
}

static void put__ops_full(void **state)
{
	struct rig *r = rig_new(2);
	struct gx_op op = put_imm(&r->a, 0, 8, 1);
	unsigned n = 0;

	while (!verbs_post(r->a.lane, &op, NULL))
		n++;
	assert_int_equal(n, VERBS_OPS);
	UNTIL(r, r->a.nr_done == n && r->b.nr_notify == n);
	rig_free(r);
}

/* A receiver that takes one completion a poll is never sent more immediates than it has receives. */
static void imm__credit(void **state)
{
	struct rig *r = rig_new(2);
	struct gx_op op = put_imm(&r->a, 0, 8, 1);
	unsigned n = 0;

	script.poll_max = 1;
	for (unsigned turns = 0; turns < TURNS && n < 2000; turns++) {
		while (n < 2000 && !verbs_post(r->a.lane, &op, NULL))
			n++;
		turn(r);
	}
	UNTIL(r, r->a.nr_done == n && r->b.nr_notify == n);
	assert_int_equal(n, 2000);
	assert_int_equal(script.nr_rnr, 0);
	rig_free(r);
}

/* A device acknowledges bytes before they are in memory; a send behind them on their queue pair comes
 * later than they do. Whoever is notified sees them (take() looks). */
/* A receiver whose own requests fill the queue pair tells later how many immediates it took. */
static void imm__credit_waits_for_room(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op there = put_imm(&r->a, 0, 8, 1), back = op_of(&r->b, GX_OP_PUT, 64, 8);
	unsigned n = 0;

	script.paused = 1 << 1;
	for (unsigned i = 0; i < VERBS_SENDS; i++)
		post(&r->b, &back);
	while (!verbs_post(r->a.lane, &there, NULL))
		n++;
	UNTIL(r, r->b.nr_notify == VERBS_RQ - VERBS_CREDIT_KEPT);
	quiesce(r);
	assert_int_equal(r->b.nr_notify, VERBS_RQ - VERBS_CREDIT_KEPT);
	script.paused = 0;
	UNTIL(r, r->a.nr_done == n && r->b.nr_notify == n && r->b.nr_done == VERBS_SENDS);
	assert_int_equal(script.nr_rnr, 0);
	rig_free(r);
}

/* The ring of completions has room for a burst of immediates, or for less: none of them is lost. */
static void imm__burst_to_a_full_ring(void **state)
{
	enum { BURST = 16, MANY = 2 * BURST };
	struct rig *r = rig_new(1);
	struct gx_op op = put_imm(&r->a, 0, 8, 1);
	struct gx_core *core = r->b.core;

	for (unsigned i = 0; i < MANY; i++)
		post(&r->a, &op);
	for (unsigned i = 0; i < 64; i++) {
		verbs_lane_turn(r->a.lane, ++r->now_ns);
		script_run();
	}
	for (unsigned room = 0; room < MANY; room++) {
		uint32_t before = core->comp_head;

		core->comps_due += GX_COMPS_MAX - room; /* as if so many were under way */
		verbs_lane_turn(r->b.lane, ++r->now_ns);
		core->comps_due -= GX_COMPS_MAX - room;
		assert_true(core->comp_head - before <= room);
		take(&r->b);
	}
	UNTIL(r, r->b.nr_notify == MANY && r->a.nr_done == MANY);
	rig_free(r);
}

static void imm__receives_are_posted_again(void **state)
{
	struct rig *r = rig_new(2);
	struct gx_op op = put_imm(&r->a, 0, 8, 1);

	for (unsigned i = 0; i < 3; i++)
		post(&r->a, &op);
	UNTIL(r, r->b.nr_notify == 3);
	quiesce(r);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(r->b.lane->qp[i].nr_recvs, VERBS_RQ);
	rig_free(r);
}

static void put__device_is_lazy(void **state)
{
	struct rig *r = rig_new(4);

	script.lazy = true;
	for (unsigned i = 0; i < 20; i++) {
		struct gx_op op = put_imm(&r->a, 0, 1000 + i * CHUNK_B, i);

		fill(r->a.mem.addr, op.len, i);
		post(&r->a, &op);
		UNTIL(r, r->a.nr_done == i + 1 && r->b.nr_notify == i + 1);
	}
	rig_free(r);
}

/* Soft RoCE refuses requests of more than 8 MiB, other devices of more than 2 GiB: the smaller one
 * of both ends holds. */
static void put__largest_request(void **state)
{
	struct verbs_port small;
	struct gx_op op;
	struct rig *r;

	script.max_msg_b = 10000;
	r = rig_new(2);
	assert_int_equal(r->a.lane->chunk_b, 8192);
	op = put_imm(&r->a, 0, 100000, 3);
	fill(r->a.mem.addr, 100000, 3);
	post(&r->a, &op);
	UNTIL(r, r->a.nr_done == 1 && r->b.nr_notify == 1);
	assert_int_equal(r->a.nr_failed, 0);
	same(r, 0, 100000);
	small = r->b.hello;
	small.msg_log2 = 12;
	assert_int_equal(verbs_chunk_b(r->a.dev, &small, CHUNK_B), 4096);
	rig_free(r);
}

static void put__local(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, 8);

	op.flags = GX_OP_LOCAL;
	post(&r->a, &op);
	UNTIL(r, r->a.nr_done == 1);
	assert_int_equal(r->a.nr_local, 1);
	op.flags = GX_OP_SILENT;
	post(&r->a, &op);
	quiesce(r);
	assert_int_equal(r->a.nr_done, 1);
	rig_free(r);
}

/* ---- Queue pairs that fail ---- */

/* Each kind of error of the path, on each queue pair, early and late in a transfer. */
static void qp__fails(void **state)
{
	static const enum ibv_wc_status errors[] = {IBV_WC_RETRY_EXC_ERR,  IBV_WC_RNR_RETRY_EXC_ERR,
						    IBV_WC_WR_FLUSH_ERR,   IBV_WC_GENERAL_ERR,
						    IBV_WC_LOC_QP_OP_ERR,  IBV_WC_REM_OP_ERR,
						    IBV_WC_REM_INV_REQ_ERR};

	for (unsigned nr_qps = 1; nr_qps <= 4; nr_qps++)
		for (unsigned k = 0; k < 4 * GX_ARRAY_SIZE(errors) * nr_qps; k++) {
			struct rig *r = rig_new(nr_qps);
			struct gx_op op = put_imm(&r->a, 0, MEM_B, k);

			script.run_max = 1 + k % 3;
			fill(r->a.mem.addr, MEM_B, k);
			plan(&r->a, k % nr_qps, k / nr_qps % 16,
			     errors[k / nr_qps % GX_ARRAY_SIZE(errors)]);
			post(&r->a, &op);
			UNTIL(r, r->a.nr_done == 1 && r->b.nr_notify == 1);
			same(r, 0, MEM_B);
			assert_int_equal(r->a.nr_failed, 0);
			quiesce(r);
			assert_int_equal(r->b.nr_notify, 1);
			assert_int_equal(nr_up(&r->a), nr_qps);
			assert_int_equal(nr_up(&r->b), nr_qps);
			rig_free(r);
		}
}

/* An immediate waits for all bytes of a put that was sent again, and not for those of the next put. */
static void qp__fails_and_the_next_put_does_not(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op op = put_imm(&r->a, 0, 8, 1);
	unsigned lists;

	plan(&r->a, 0, 0, IBV_WC_RETRY_EXC_ERR);
	post(&r->a, &op);
	UNTIL(r, r->a.nr_done == 1 && r->b.nr_notify == 1);
	quiesce(r);
	lists = script.nr_lists;
	post(&r->a, &op);
	assert_int_equal(script.nr_lists, lists + 1);
	assert_int_equal(r->a.lane->nr_ops, 1);
	UNTIL(r, r->a.nr_done == 2 && r->b.nr_notify == 2);
	assert_int_equal(script.nr_lists, lists + 1);
	rig_free(r);
}

/* Its answer was lost: the bytes, or the immediate, had arrived. Nothing is told twice. */
static void qp__fails_landed(void **state)
{
	for (unsigned after = 0; after < 3; after++) {
		struct rig *r = rig_new(1);
		struct gx_op op = put_imm(&r->a, 0, 2 * CHUNK_B, 9);

		fill(r->a.mem.addr, 2 * CHUNK_B, after);
		script.fail_landed = true;
		plan(&r->a, 0, after, IBV_WC_RETRY_EXC_ERR);
		post(&r->a, &op);
		UNTIL(r, r->a.nr_done == 1);
		quiesce(r);
		same(r, 0, 2 * CHUNK_B);
		assert_int_equal(r->b.nr_notify, 1);
		assert_int_equal(r->a.nr_failed, 0);
		rig_free(r);
	}
}

/* The put had landed with its immediate when the queue pair failed, and nobody has told the sender
 * so. The receiver was notified: the bytes are its own again, and nobody writes them a second time. */
static void landed_is_not_sent_again(uint32_t imms)
{
	struct rig *r = rig_new(2);
	struct gx_op op = put_imm(&r->a, 0, 4 * CHUNK_B, 9);

	for (unsigned i = 0; i < 2; i++) {
		r->a.lane->qp[i].imms_sent = r->a.lane->qp[i].imms_known = imms;
		r->b.lane->qp[i].imms_taken = r->b.lane->qp[i].imms_credited = imms;
	}
	fill(r->a.mem.addr, 4 * CHUNK_B, 1);
	script.fail_landed = true;
	plan(&r->a, 0, 2, IBV_WC_WR_FLUSH_ERR); /* two chunks, then the immediate */
	r->no_mend = true;
	post(&r->a, &op);
	UNTIL(r, r->b.nr_notify == 1);
	quiesce(r);
	assert_int_equal(nr_up(&r->a), 1);
	assert_int_equal(r->a.nr_done, 0);
	memset(r->b.mem.addr, 0x77, 4 * CHUNK_B);
	r->no_mend = false;
	UNTIL(r, r->a.nr_done == 1);
	assert_int_equal(r->a.status, 0);
	quiesce(r);
	for (unsigned i = 0; i < 4 * CHUNK_B; i++)
		assert_int_equal(r->b.mem.addr[i], 0x77);
	assert_int_equal(r->b.nr_notify, 1);
	assert_int_equal(r->a.lane->nr_redone, 0);
	rig_free(r);
}

static void qp__landed_is_not_sent_again(void **state)
{
	landed_is_not_sent_again(0);
	landed_is_not_sent_again(UINT32_MAX); /* the number of immediates wraps with this one */
}

/* An immediate was taken behind a read whose answer may be lost: the write between them is not sent
 * again, the read is. */
static void qp__read_before_an_imm(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op get = op_of(&r->a, GX_OP_GET, 0, 4096);
	struct gx_op put = put_imm(&r->a, CHUNK_B, 4096, 9);

	fill(r->b.mem.addr, 4096, 1);
	fill(r->a.mem.addr + CHUNK_B, 4096, 2);
	script.fail_landed = true;
	plan(&r->a, 0, 2, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(verbs_post(r->a.lane, &get, NULL), 0);
	post(&r->a, &put);
	UNTIL(r, r->a.nr_done == 2 && r->b.nr_notify == 1);
	assert_int_equal(r->a.lane->nr_redone, 1);
	assert_int_equal(script.nr_reads, 2);
	assert_int_equal(script.nr_writes, 1);
	same(r, 0, 4096);
	rig_free(r);
}

/* The bytes had landed, and the immediate was lost. */
static void qp__lost_imm_sends_all_again(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op op = put_imm(&r->a, 0, 4 * CHUNK_B, 9);

	fill(r->a.mem.addr, 4 * CHUNK_B, 1);
	plan(&r->a, 0, 4, IBV_WC_WR_FLUSH_ERR);
	post(&r->a, &op);
	UNTIL(r, r->a.nr_done == 1 && r->b.nr_notify == 1);
	assert_int_equal(r->a.status, 0);
	assert_int_equal(r->a.lane->nr_redone, 4);
	rig_free(r);
}

static void both_turn(void *arg)
{
	struct rig *r = arg;

	verbs_lane_turn(r->b.lane, ++r->now_ns);
	script_run();
	verbs_lane_turn(r->a.lane, r->now_ns);
}

/* The peer connects first, and its immediate arrives when our end can receive and not yet send. */
static void qp__imm_before_up(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op op = put_imm(&r->b, 0, 4096, 3);

	fill(r->b.mem.addr, 4096, 2);
	r->no_mend = true;
	verbs_qp_error(r->a.lane, &r->a.lane->qp[0]);
	verbs_qp_error(r->b.lane, &r->b.lane->qp[0]);
	quiesce(r);
	assert_int_equal(qp_state(&r->a.lane->qp[0]), VERBS_QP_DRAINED);
	post(&r->b, &op);
	script.after_rtr = both_turn;
	script.arg = r;
	r->no_mend = false;
	UNTIL(r, r->b.nr_done == 1 && r->a.nr_notify == 1);
	assert_int_equal(r->a.lane->nr_bad + r->b.lane->nr_bad, 0);
	script.after_rtr = NULL;
	assert_int_equal(nr_up(&r->a) + nr_up(&r->b), 2);
	rig_free(r);
}

/* A packet of a queue pair that failed is still on its way. The put does not end before it cannot
 * land any more; else it would overwrite the bytes of the next put. */
static void qp__late_packet(void **state)
{
	struct rig *r = rig_new(2);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, 4096);

	r->no_mend = true;
	script.fail_late = true;
	fill(r->a.mem.addr, 4096, 1);
	plan(&r->a, r->a.lane->next, 0, IBV_WC_RETRY_EXC_ERR);
	post(&r->a, &op);
	quiesce(r);
	assert_int_equal(nr_up(&r->a), 1);
	assert_int_equal(r->a.nr_done, 0);
	r->no_mend = false;
	UNTIL(r, r->a.nr_done == 1);
	same(r, 0, 4096);
	fill(r->a.mem.addr, 4096, 2);
	post(&r->a, &op);
	UNTIL(r, r->a.nr_done == 2);
	script_late();
	assert_int_equal(script.late_landed, 0);
	same(r, 0, 4096);
	rig_free(r);
}

/* The others go on while one is down. */
static void qp__others_go_on(void **state)
{
	struct rig *r = rig_new(4);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, 16 * CHUNK_B);

	r->no_mend = true;
	plan(&r->a, 2, 0, IBV_WC_RETRY_EXC_ERR);
	post(&r->a, &op);
	quiesce(r);
	assert_int_equal(nr_up(&r->a), 3);
	for (unsigned i = 0; i < 8; i++) {
		struct gx_op more = op_of(&r->a, GX_OP_PUT, MEM_B / 2, CHUNK_B);

		post(&r->a, &more);
	}
	UNTIL(r, r->a.nr_done == 8);
	r->no_mend = false;
	UNTIL(r, r->a.nr_done == 9);
	rig_free(r);
}

/* Both ends lose it at the same time, again and again, with traffic both ways. */
static void qp__fails_often(void **state)
{
	struct rig *r = rig_new(3);
	unsigned n = 0;

	script.run_max = 2;
	for (unsigned i = 0; i < 300; i++) {
		struct gx_op put = put_imm(&r->a, 0, MEM_B / 2, i);
		struct gx_op get = op_of(&r->b, GX_OP_GET, MEM_B / 2, MEM_B / 4);

		fill(r->a.mem.addr, MEM_B / 2 + MEM_B / 4, i);
		post(&r->a, &put);
		post(&r->b, &get);
		verbs_qp_error(r->a.lane, &r->a.lane->qp[i % 3]);
		turn(r);
		verbs_qp_error(r->b.lane, &r->b.lane->qp[i / 3 % 3]);
		n++;
		UNTIL(r, r->a.nr_done == n && r->b.nr_done == n && r->b.nr_notify == n);
		same(r, 0, MEM_B / 2 + MEM_B / 4);
		UNTIL(r, nr_up(&r->a) == 3 && nr_up(&r->b) == 3);
	}
	assert_int_equal(r->a.nr_failed + r->b.nr_failed, 0);
	rig_free(r);
}

/* An outage of the path fails each queue pair in turn, each with another chunk of one put. */
static void qp__all_fail_once(void **state)
{
	struct rig *r = rig_new(3);
	struct gx_op op = put_imm(&r->a, 0, MEM_B, 3);

	script.run_max = 1;
	r->a.lane->chunk_b = 4096; /* so that it lasts */
	fill(r->a.mem.addr, MEM_B, 3);
	post(&r->a, &op);
	for (unsigned i = 0; i < 2 * VERBS_TRIES; i++) {
		assert_int_equal(r->a.nr_done, 0);
		plan(&r->a, i % 3, i % 2, IBV_WC_RETRY_EXC_ERR);
		UNTIL(r, !script.fail_qpn);
		UNTIL(r, nr_up(&r->a) == 3 && nr_up(&r->b) == 3);
	}
	UNTIL(r, r->a.nr_done == 1 && r->b.nr_notify == 1);
	assert_int_equal(r->a.nr_failed, 0);
	same(r, 0, MEM_B);
	rig_free(r);
}

/* An outage when the bytes have landed, and the immediates of the put on all queue pairs have not. */
static void qp__all_lose_their_imm(void **state)
{
	enum { N = VERBS_TRIES + 4 };
	struct rig *r = rig_new(N);
	struct gx_op op = put_imm(&r->a, 0, N * CHUNK_B, 3);

	fill(r->a.mem.addr, N * CHUNK_B, 3);
	script.run_max = 1;
	post(&r->a, &op);
	turn(r);
	same(r, 0, N * CHUNK_B);
	script.lossy = true;
	UNTIL(r, !nr_up(&r->a));
	script.lossy = false;
	UNTIL(r, r->a.nr_done == 1 && r->b.nr_notify == 1);
	assert_int_equal(r->a.nr_failed, 0);
	rig_free(r);
}

/* Its immediate alone fails with each queue pair: in the end the put does. */
static void qp__poisoned_imm(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op op = put_imm(&r->a, 0, 64, 3);

	post(&r->a, &op);
	for (unsigned i = 0; i < TURNS && !r->a.nr_done; i++) {
		plan(&r->a, 0, r->a.lane->op[0].data_out != 0, IBV_WC_RETRY_EXC_ERR);
		turn(r);
	}
	assert_int_equal(r->a.status, -EIO);
	assert_int_equal(r->a.lane->nr_lost, VERBS_TRIES);
	rig_free(r);
}

/* The path is cut: it is never UP again before packets get through. */
static void qp__path_is_cut(void **state)
{
	struct rig *r = rig_new(2);
	struct gx_op op = put_imm(&r->a, 0, 8 * CHUNK_B, 3);

	fill(r->a.mem.addr, 8 * CHUNK_B, 3);
	post(&r->a, &op);
	script.lossy = true;
	UNTIL(r, !nr_up(&r->a));
	for (unsigned i = 0; i < 200; i++) {
		turn(r);
		assert_int_equal(nr_up(&r->a), 0);
	}
	assert_true(r->a.side[0].vain > 4 && r->a.side[1].vain > 4);
	assert_int_equal(r->a.nr_done, 0);
	script.lossy = false;
	UNTIL(r, r->a.nr_done == 1 && r->b.nr_notify == 1);
	assert_int_equal(r->a.nr_failed, 0);
	same(r, 0, 8 * CHUNK_B);
	rig_free(r);
}

static void qp__refuses_posts(void **state)
{
	struct rig *r = rig_new(2);
	struct gx_op op = put_imm(&r->a, 0, MEM_B, 3);

	fill(r->a.mem.addr, MEM_B, 3);
	script.refuse_posts = 3;
	post(&r->a, &op);
	UNTIL(r, r->a.nr_done == 1 && r->b.nr_notify == 1);
	same(r, 0, MEM_B);
	assert_int_equal(r->a.nr_failed, 0);
	rig_free(r);
}

/* The device takes the first chunk of a list of sixteen, and refuses the others. Their immediate
 * does not go before they have gone, and the first one, which asked for no completion, is not
 * waited for. */
static void qp__refused_before_imm(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op op = put_imm(&r->a, 0, VERBS_BATCH * CHUNK_B, 3);

	fill(r->a.mem.addr, VERBS_BATCH * CHUNK_B, 3);
	script.refuse_posts = 1;
	post(&r->a, &op);
	UNTIL(r, r->a.nr_done == 1 && r->b.nr_notify == 1);
	assert_int_equal(r->a.lane->nr_redone, VERBS_BATCH);
	assert_int_equal(r->a.nr_failed, 0);
	rig_free(r);
}

static void poison(enum ibv_wc_status status)
{
	struct rig *r = rig_new(1);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, 64);

	post(&r->a, &op);
	for (unsigned i = 0; i < TURNS && !r->a.nr_done; i++) {
		plan(&r->a, 0, 0, status);
		turn(r);
	}
	assert_int_equal(r->a.status, -EIO);
	assert_int_equal(r->a.lane->nr_lost, VERBS_TRIES);
	script.fail_qpn = 0;
	post(&r->a, &op);
	UNTIL(r, r->a.nr_done == 2);
	assert_int_equal(r->a.nr_failed, 1);
	rig_free(r);
}

/* Whatever queue pair has it fails, again and again: in the end the operation does. */
static void qp__poison(void **state)
{
	poison(IBV_WC_GENERAL_ERR);
	poison(IBV_WC_LOC_QP_OP_ERR);
}

static void poll__short(void **state)
{
	struct rig *r = rig_new(4);
	struct gx_op op = put_imm(&r->a, 0, MEM_B, 3);

	script.poll_max = 1;
	fill(r->a.mem.addr, MEM_B, 3);
	plan(&r->a, 1, 5, IBV_WC_RETRY_EXC_ERR);
	post(&r->a, &op);
	UNTIL(r, r->a.nr_done == 1 && r->b.nr_notify == 1);
	same(r, 0, MEM_B);
	rig_free(r);
}

/* ---- Ends ---- */

static void put__region_freed(void **state)
{
	struct rig *r = rig_new(2);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, 4096);

	verbs_reg_revoke(r->b.dev, &r->b.mem);
	post(&r->a, &op);
	UNTIL(r, r->a.nr_done == 1);
	assert_int_equal(r->a.status, -ESTALE);
	assert_int_equal(r->a.last.len, 0);
	UNTIL(r, nr_up(&r->a) == 2 && nr_up(&r->b) == 2);
	rig_free(r);
}

static void drop__waits(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, 4096);
	struct drop d = {.want = 1, .first = 1, .upto = 1};

	post(&r->a, &op);
	r->a.mem.drop_seq = 1;
	r->a.mem.dead = true;
	verbs_drop(r->a.lane, &d);
	assert_int_equal(d.upto, 0); /* the device may still read it */
	UNTIL(r, r->a.nr_done == 1);
	assert_int_equal(r->a.status, -ECANCELED);
	d.upto = 1;
	verbs_drop(r->a.lane, &d);
	assert_int_equal(d.upto, 1);
	r->a.mem.dead = false;
	rig_free(r);
}

/* The queue pair has failed, and the peer does not make its end anew for a long time: the device has
 * let go of our memory, so the user gets it back at once. The operation ends later. */
static void drop__of_a_failed_queue_pair(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, 4 * CHUNK_B);
	struct drop d = {.want = 1, .first = 1, .upto = 1};

	r->no_mend = true;
	plan(&r->a, 0, 1, IBV_WC_RETRY_EXC_ERR);
	post(&r->a, &op);
	r->a.mem.drop_seq = 1;
	r->a.mem.dead = true;
	verbs_drop(r->a.lane, &d);
	assert_int_equal(d.upto, 0);
	quiesce(r);
	assert_int_equal(qp_state(r->a.lane->qp), VERBS_QP_DRAINED);
	d.upto = 1;
	verbs_drop(r->a.lane, &d);
	assert_int_equal(d.upto, 1);
	assert_int_equal(r->a.nr_done, 0);
	r->no_mend = false;
	UNTIL(r, r->a.nr_done == 1);
	assert_int_equal(r->a.status, -ECANCELED);
	r->a.mem.dead = false;
	rig_free(r);
}

static void cancel__before_and_after(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op op = put_imm(&r->a, 0, MEM_B, 1);

	post(&r->a, &op);
	assert_int_equal(verbs_cancel(r->a.lane, 5, NULL), 1);
	assert_int_equal(verbs_cancel(r->a.lane, 5, NULL), 0);
	UNTIL(r, r->a.nr_done == 1);
	assert_int_equal(r->a.status, -ECANCELED);
	assert_int_equal(verbs_cancel(r->a.lane, 5, NULL), 0);
	quiesce(r);
	assert_int_equal(r->b.nr_notify, 0);
	rig_free(r);
}

/* What was cancelled while it was out may come back with an error. */
static void cancel__then_refused(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, 4096);

	post(&r->a, &op);
	assert_int_equal(verbs_cancel(r->a.lane, 5, NULL), 1);
	verbs_lane_kick(r->a.lane); /* it leaves the queue */
	assert_int_equal(r->a.nr_done, 0);
	verbs_reg_revoke(r->b.dev, &r->b.mem);
	UNTIL(r, r->a.nr_done == 1);
	assert_int_equal(r->a.status, -ECANCELED);
	rig_free(r);
}

static void deadline__passes(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, MEM_B);

	op.deadline_ns = r->now_ns + 2;
	script.run_max = 1;
	post(&r->a, &op);
	UNTIL(r, r->a.nr_done == 1);
	assert_int_equal(r->a.status, -ETIMEDOUT);
	rig_free(r);
}

static void lane__fails(void **state)
{
	struct rig *r = rig_new(4);
	struct gx_op op = put_imm(&r->a, 0, MEM_B, 1);

	post(&r->a, &op);
	post(&r->a, &op);
	verbs_mend_stop(r->a.lane);
	verbs_lane_fail(r->a.lane, -ECONNRESET);
	assert_int_equal(verbs_post(r->a.lane, &op, NULL), -ENOTCONN);
	r->no_mend = true;
	UNTIL(r, r->a.nr_done == 2);
	assert_int_equal(r->a.status, -ECONNRESET);
	UNTIL(r, verbs_lane_is_quiet(r->a.lane));
	rig_free(r);
}

/* The device was removed: it flushes nothing. */
static void device__gone(void **state)
{
	struct rig *r = rig_new(2);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, MEM_B);

	post(&r->a, &op);
	script.gone = true;
	script.fatal_events = 1;
	assert_false(verbs_dev_events(r->a.dev));
	quiesce(r);
	assert_int_equal(r->a.ep.fault, -ENODEV);
	assert_int_equal(r->a.nr_done, 0); /* the device may still read the bytes */
	verbs_mend_give_up(r->a.lane);	   /* not yet: the core still posts */
	assert_non_null(r->a.lane->qp[0].qp);
	verbs_lane_fail(r->a.lane, -ENODEV);
	verbs_mend_give_up(r->a.lane);
	r->no_mend = true;
	UNTIL(r, r->a.nr_done == 1);
	assert_int_equal(r->a.status, -ENODEV);
	assert_true(verbs_lane_is_quiet(r->a.lane));
	rig_free(r);
}

/* The library says EIO to each end, because the kernel has ended all before. Nobody tries again. */
static void device__gone_ends_nothing(void **state)
{
	struct rig *r = rig_new(2);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, MEM_B);

	post(&r->a, &op);
	script.gone = true;
	script.fatal_events = 1;
	assert_false(verbs_dev_events(r->a.dev));
	script.fatal_events = 1;
	assert_false(verbs_dev_events(r->b.dev));
	verbs_lane_fail(r->a.lane, -ENODEV);
	log_watch("does not");
	script.keep_qp = script.keep_cq = script.keep_mr = script.keep_pd = 100;
	verbs_mend_give_up(r->a.lane);
	r->no_mend = true;
	UNTIL(r, r->a.nr_done == 1);
	rig_free_of(r, true);
	assert_int_equal(nr_logged, 0);
	log_watch(NULL);
}

static void event(struct rig *r, enum ibv_event_type type)
{
	struct ibv_async_event *e = &script.event[script.nr_events++];

	e->event_type = type;
	if (type == IBV_EVENT_CQ_ERR)
		e->element.cq = r->a.lane->path[0].cq;
	else if (type < IBV_EVENT_DEVICE_FATAL)
		e->element.qp = r->a.lane->qp[1].qp;
	else
		e->element.port_num = 2;
	script.nr_acked = 0;
	assert_true(verbs_dev_events(r->a.dev));
	assert_int_equal(script.nr_acked, 1);
}

/* Completions are lost: the endpoint fails. */
static void event__completion_queue(void **state)
{
	struct rig *r = rig_new(2);

	event(r, IBV_EVENT_CQ_ERR);
	assert_int_equal(r->a.ep.fault, -ENODEV);
	assert_int_equal(r->b.ep.fault, 0);
	rig_free(r);
}

/* The device does not say so by a completion: it is made to flush the queue pair, which then is made
 * anew. An event that comes late, when it has been made anew, changes nothing. */
static void event__queue_pair(void **state)
{
	struct rig *r = rig_new(2);

	event(r, IBV_EVENT_QP_FATAL);
	assert_true(r->a.lane->qp[1].sick);
	assert_false(r->a.lane->qp[0].sick);
	UNTIL(r, nr_up(&r->a) == 1);
	UNTIL(r, nr_up(&r->a) == 2 && nr_up(&r->b) == 2);
	assert_int_equal(r->a.lane->qp[1].gen, 2);
	assert_false(r->a.lane->qp[1].sick);
	event(r, IBV_EVENT_QP_ACCESS_ERR);
	event(r, IBV_EVENT_QP_REQ_ERR);
	event(r, IBV_EVENT_PATH_MIG_ERR);
	event(r, IBV_EVENT_COMM_EST);
	assert_false(r->a.lane->qp[1].sick);
	quiesce(r);
	assert_int_equal(r->a.lane->qp[1].gen, 2);
	script.no_flush = true;
	verbs_qp_error(r->a.lane, &r->a.lane->qp[1]);
	event(r, IBV_EVENT_QP_ACCESS_ERR);
	assert_int_equal(qp_state(&r->a.lane->qp[1]), VERBS_QP_UP);
	assert_true(r->a.lane->qp[1].sick); /* verbs_conn.c gives it a time */
	script.no_flush = false;
	verbs_qp_error(r->a.lane, &r->a.lane->qp[1]);
	rig_free(r);
}

static void event__port(void **state)
{
	struct rig *r = rig_new(1);

	log_watch("script0 port 2 is ");
	event(r, IBV_EVENT_PORT_ERR);
	event(r, IBV_EVENT_PORT_ACTIVE);
	assert_int_equal(nr_logged, 2);
	log_watch(NULL);
	rig_free(r);
}

/* ---- Immediates of a peer that lies ---- */

static void imm__lies(void **state)
{
	struct rig *r = rig_new(1);
	struct verbs_imm n = {
		.kind = VERBS_WR_IMM, .nr_parts = 1, .token = TOKEN, .len = MEM_B + 1};
	uint8_t b[VERBS_IMM_B];

	verbs_imm_put(b, &n);
	imm_take(r->b.lane, &r->b.lane->qp[0], b, sizeof(b)); /* outside of the region */
	n.seq++;
	n.len = 1;
	n.token++;
	verbs_imm_put(b, &n);
	imm_take(r->b.lane, &r->b.lane->qp[0], b, sizeof(b)); /* no such region */
	imm_take(r->b.lane, &r->b.lane->qp[0], b, sizeof(b) - 1);
	b[2] = VERBS_QPS_MAX + 1;
	imm_take(r->b.lane, &r->b.lane->qp[0], b, sizeof(b));
	n = (struct verbs_imm){.kind = VERBS_WR_CREDIT, .taken = 1};
	verbs_imm_put(b, &n);
	imm_take(r->b.lane, &r->b.lane->qp[0], b, sizeof(b)); /* of immediates that were not sent */
	take(&r->b);
	assert_int_equal(r->b.nr_notify, 0);
	assert_int_equal(r->b.lane->nr_bad, 5);
	rig_free(r);
}

static unsigned imm_of(struct rig *r, uint8_t part)
{
	struct verbs_imm n = {.kind = VERBS_WR_IMM, .nr_parts = 2, .part = part, .token = TOKEN};
	uint8_t b[VERBS_IMM_B];

	verbs_imm_put(b, &n);
	imm_take(r->b.lane, &r->b.lane->qp[part], b, sizeof(b));
	take(&r->b);
	return r->b.nr_notify;
}

/* An immediate that comes twice, because its acknowledgement was lost, stands for one queue pair. */
static void imm__twice(void **state)
{
	struct rig *r = rig_new(2);

	r->b.puts_from = r->a.mem.addr;
	assert_int_equal(imm_of(r, 0), 0);
	assert_int_equal(imm_of(r, 0), 0);
	assert_int_equal(imm_of(r, 1), 1);
	assert_int_equal(imm_of(r, 1), 1);
	assert_int_equal(imm_of(r, 0), 1);
	rig_free(r);
}

/* ---- Set-up ---- */

static void mend__lies(void **state)
{
	struct rig *r = rig_new(1);
	struct verbs_mend m = {.gen = 1};

	assert_int_equal(verbs_mend_take(r->a.lane, r->a.lane->qp, r->a.side, &r->b.hello, &m),
			 -EPROTO);
	m.gen = 3;
	assert_int_equal(verbs_mend_take(r->a.lane, r->a.lane->qp, r->a.side, &r->b.hello, &m),
			 -EPROTO);
	assert_int_equal(nr_up(&r->a), 1);
	rig_free(r);
}

/* A device that is slow, or a peer that asks again and again: a fifth of the time at most. */
static void mend__has_a_budget(void **state)
{
	struct verbs_budget b = {0};
	uint64_t now_ns = 50000000000ull, spent_ns = 0;
	unsigned n = 0;

	for (unsigned i = 0; i < 8; i++) /* all fail at once: fast ones all go */
		verbs_budget_spend(&b, now_ns, now_ns + 1000000);
	assert_true(verbs_budget_has(&b, now_ns));
	for (uint64_t end_ns = now_ns + 60000000000ull; now_ns < end_ns; now_ns += 20000000) {
		if (!verbs_budget_has(&b, now_ns))
			continue;
		verbs_budget_spend(&b, now_ns, now_ns + 1000000000);
		now_ns += 1000000000;
		spent_ns += 1000000000;
		n++;
	}
	assert_in_range(n, 10, 13);
	assert_true(spent_ns <= 13000000000ull);
}

/* Nothing is reset, and the peer told nothing, while it may not. */
static void mend__waits_for_the_budget(void **state)
{
	struct rig *r = rig_new(1);
	struct verbs_mend m;

	r->no_mend = true;
	verbs_qp_error(r->a.lane, r->a.lane->qp);
	quiesce(r);
	assert_int_equal(qp_state(r->a.lane->qp), VERBS_QP_DRAINED);
	assert_false(verbs_mend_step(r->a.lane, r->a.lane->qp, r->a.side, &r->b.hello, false, &m));
	assert_int_equal(r->a.lane->qp->gen, 1);
	r->no_mend = false;
	UNTIL(r, nr_up(&r->a) == 1 && nr_up(&r->b) == 1);
	rig_free(r);
}

/* The kernel does not find the peer's address at once: the life fails, and the next one works. What
 * says nothing of the path ends the connection. */
static void mend__finds_no_address(void **state)
{
	static const int path[] = {ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, ENODATA};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(path); i++) {
		struct rig *r = rig_new(2);
		struct gx_op op = put_imm(&r->a, 0, 16 * CHUNK_B, 9);

		fill(r->a.mem.addr, 16 * CHUNK_B, i);
		script.refuse_rtr = i + 1;
		script.rtr_err = path[i];
		plan(&r->a, 0, 1, IBV_WC_RETRY_EXC_ERR);
		post(&r->a, &op);
		UNTIL(r, r->a.nr_done == 1 && r->b.nr_notify == 1);
		assert_int_equal(r->a.nr_failed, 0);
		assert_int_equal(script.refuse_rtr, 0);
		UNTIL(r, nr_up(&r->a) == 2 && nr_up(&r->b) == 2);
		assert_int_equal(r->a.ep.fault, 0);
		assert_int_equal(r->b.ep.fault, 0);
		assert_true(r->a.side[0].vain + r->b.side[0].vain >= i + 1);
		assert_int_equal(r->a.lane->nr_bad + r->b.lane->nr_bad, 0);
		same(r, 0, 16 * CHUNK_B);
		rig_free(r);
	}
}

/* The device refuses to flush queue pairs, whose requests it took no more, or whose peer waits. */
static void mend__flush_is_refused(void **state)
{
	struct rig *r = rig_new(2);
	struct gx_op op = put_imm(&r->a, 0, 16 * CHUNK_B, 9);

	fill(r->a.mem.addr, 16 * CHUNK_B, 1);
	script.refuse_posts = 1;
	script.refuse_err = 7;
	post(&r->a, &op);
	UNTIL(r, r->a.nr_done == 1 && r->b.nr_notify == 1);
	UNTIL(r, nr_up(&r->a) == 2 && nr_up(&r->b) == 2);
	assert_int_equal(script.refuse_err, 0);
	assert_int_equal(r->a.nr_failed, 0);
	same(r, 0, 16 * CHUNK_B);
	script.refuse_err = 1;
	assert_int_equal(verbs_mend_stop(r->a.lane), -EINVAL);
	assert_int_equal(verbs_mend_stop(r->a.lane), 0);
	rig_free(r);
}

/* The peer says that its end has begun a new life, and our device refuses to end the old one. */
static void mend__peer_waits_for_a_flush(void **state)
{
	struct rig *r = rig_new(1);

	r->no_mend = true;
	verbs_qp_error(r->b.lane, r->b.lane->qp);
	quiesce(r);
	assert_int_equal(qp_state(r->b.lane->qp), VERBS_QP_DRAINED);
	script.refuse_err = 3;
	r->no_mend = false;
	UNTIL(r, nr_up(&r->a) == 1 && nr_up(&r->b) == 1 && r->a.lane->qp->gen == 2);
	assert_int_equal(script.refuse_err, 0);
	rig_free(r);
}

static void mend__is_refused(void **state)
{
	struct rig *r = rig_new(2);

	script.refuse_rtr = 1;
	script.rtr_err = EINVAL;
	verbs_qp_error(r->a.lane, r->a.lane->qp);
	UNTIL(r, r->a.ep.fault || r->b.ep.fault);
	assert_int_equal(r->a.ep.fault + r->b.ep.fault, -ENODEV);
	verbs_lane_fail(r->a.lane, -ENODEV);
	verbs_lane_fail(r->b.lane, -ENODEV);
	verbs_mend_give_up(r->a.lane); /* it is neither flushed nor connected */
	verbs_mend_give_up(r->b.lane);
	rig_free(r);
}

/* Call @i of those that make something fails. Return: did the set-up fail? */
static bool open_fails(unsigned i)
{
	static char page[4096];
	struct gx_mem mem = {.kind = GX_MEM_HOST, .len = sizeof(page), .id = 1};
	struct verbs_lane *l = calloc(1, sizeof(*l));
	struct verbs_dev *dev;
	bool failed;

	assert_non_null(l);
	mem.addr = page;
	script.plan = 1ull << i;
	failed = named_open("script0", &dev) != 0;
	if (!failed) {
		l->nr_paths = 1;
		l->path[0].dev = dev;
		failed = !reg_both(dev, &mem, GX_ACCESS_PUT) || verbs_qps_open(l, 2);
		verbs_qps_close(l);
		verbs_reg_put(dev, &mem);
		verbs_dev_close(dev);
	}
	free(l);
	script_reset();
	return failed;
}

/* List, open, query, domain, own and shared registration, slots, completion queue. A queue pair
 * that is refused is asked for again with less inline data. */
static void open__each_call_fails(void **state)
{
	verbs_api_set(&script_api);
	for (unsigned i = 0; i < 8; i++)
		assert_true(open_fails(i));
	assert_false(open_fails(8));
	verbs_api_set(NULL);
}

static void open__names(void **state)
{
	static const char *const bad[] = {"",
					  "nosuch0",
					  "script0:1",
					  "script0:9",
					  "script0:x",
					  "script0:2:3",
					  "script0:2:2:1",
					  ":2",
					  "script0:2:99",
					  "script0:2:258",
					  "script0:0",
					  "script0,",
					  "script0,sl=1,",
					  "script0,sl=16",
					  "script0,tc=256",
					  "script0,sl=1,sl=2",
					  "script0,sl=1tc=2",
					  "script0,dscp=1",
					  "script0,sl=-1",
					  ",sl=1"};
	struct verbs_dev *dev;
	char text[256];

	verbs_api_set(&script_api);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++)
		assert_int_not_equal(named_open(bad[i], &dev), 0);
	assert_int_equal(named_open("auto", &dev), 0);
	assert_int_equal(dev->port, 2);
	assert_int_equal(dev->gid_index, 2); /* RoCE v2, IPv4 */
	assert_true(verbs_dev_text(dev, text, sizeof(text)) > 0);
	assert_non_null(strstr(text, "script0 port 2"));
	verbs_dev_close(dev);
	script.iwarp = 1;
	assert_int_equal(named_open("script0", &dev), -ENODEV);
	assert_non_null(strstr(gx_error(), "iWARP"));
	assert_int_equal(named_open("auto", &dev), 0);
	assert_true(verbs_dev_text(dev, text, sizeof(text)) > 0);
	assert_non_null(strstr(text, "script1 port 2"));
	verbs_dev_close(dev);
	script.iwarp = 0;
	assert_int_equal(named_open("script1:2:1", &dev), 0);
	assert_int_equal(dev->gid_index, 1);
	verbs_dev_close(dev);
	script_reset();
	verbs_api_set(NULL);
}

/* One put there and one back. */
static void ib_works(const char *a, const char *b)
{
	struct rig *r = rig_new_of(a, b, 2);
	struct gx_op op = put_imm(&r->a, 0, 3 * CHUNK_B, 1);

	fill(r->a.mem.addr, 3 * CHUNK_B, 1);
	post(&r->a, &op);
	UNTIL(r, r->a.nr_done == 1 && r->b.nr_notify == 1);
	same(r, 0, 3 * CHUNK_B);
	op = put_imm(&r->b, 0, 4096, 2);
	post(&r->b, &op);
	UNTIL(r, r->b.nr_done == 1 && r->a.nr_notify == 1);
	assert_int_equal(r->a.nr_failed + r->b.nr_failed, 0);
	assert_int_equal(r->a.lane->nr_lost + r->b.lane->nr_lost, 0);
	rig_free(r);
}

/* By LID alone. Or by GID as well, if one end says so: both ends then send with GIDs. */
static void ib__one_end_names_a_gid(void **state)
{
	script.infiniband = true;
	ib_works("script0", "script1");
	script.infiniband = true;
	ib_works("script0:2:1", "script1");
	script.infiniband = true;
	ib_works("script0", "script1:2:0");
	script.infiniband = true;
	script.grh_required = 2;
	ib_works("script0", "script1");
}

/* Of the packets of the end that names them. */
static void path__has_a_class(void **state)
{
	char text[256];

	for (unsigned ib = 0; ib < 2; ib++) {
		struct rig *r;

		script.infiniband = ib;
		r = rig_new_of("script0", "script1:2,tc=106,sl=3", 1);
		assert_int_equal(script.path.sl, 3); /* it connects last */
		assert_int_equal(script.path.grh.traffic_class, 106);
		assert_int_equal(script.path.is_global, 1);
		assert_int_equal(r->a.dev->sl + r->a.dev->traffic_class, 0);
		assert_true(verbs_dev_text(r->b.dev, text, sizeof(text)) > 0);
		assert_non_null(strstr(text, "service level 3, traffic class 106"));
		rig_free(r);
	}
	script.infiniband = true;
	ib_works("script0", "script1,tc=106");
	ib_works("script0,sl=3", "script1");
}

static void open__level_of_ethernet(void **state)
{
	struct verbs_dev *dev;

	verbs_api_set(&script_api);
	assert_int_equal(named_open("script0,sl=7", &dev), 0);
	verbs_dev_close(dev);
	assert_int_equal(named_open("script0,sl=8", &dev), -EINVAL);
	assert_non_null(strstr(gx_error(), "script0 port 2 is Ethernet"));
	script.infiniband = true;
	assert_int_equal(named_open("script0,sl=15", &dev), 0);
	verbs_dev_close(dev);
	script_reset();
	verbs_api_set(NULL);
}

static void ib__no_such_gid(void **state)
{
	struct verbs_dev *dev;
	char text[256];

	verbs_api_set(&script_api);
	script.infiniband = true;
	assert_int_equal(named_open("script0:2:3", &dev), -ENODEV);
	assert_int_equal(named_open("script0", &dev), 0);
	assert_true(verbs_dev_text(dev, text, sizeof(text)) > 0);
	assert_non_null(strstr(text, "by LID 17;"));
	verbs_dev_close(dev);
	script_reset();
	verbs_api_set(NULL);
}

/* What @peer says of its device is refused, and the text has @what. */
static void path_is_refused(const struct rig *r, const char *gid, struct verbs_port peer,
			    const char *what)
{
	if (gid)
		assert_int_equal(inet_pton(AF_INET6, gid, peer.gid), 1);
	assert_true(verbs_path_check(r->a.dev, &peer) < 0);
	assert_non_null(strstr(gx_error(), what));
}

static void path__of_a_peer_that_lies(void **state)
{
	static const char *const bad[] = {"::",
					  "ff02::1",
					  "::ffff:0.0.0.0",
					  "::ffff:224.0.0.1",
					  "::ffff:127.0.0.1",
					  "::ffff:255.255.255.255",
					  "::1"};
	struct rig *r = rig_new(1);
	struct verbs_port h = r->b.hello;

	assert_int_equal(verbs_path_check(r->a.dev, &h), 0);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++)
		path_is_refused(r, bad[i], h, bad[i]);
	path_is_refused(r, "fe80::2", h, "fe80::2: name two of IPv4");
	h.gid_type = VERBS_GID_V1;
	path_is_refused(r, NULL, h, "::ffff:10.0.0.2 of v1");
	h.gid_type = VERBS_GID_UNKNOWN;
	assert_int_equal(verbs_path_check(r->a.dev, &h), 0);
	h.is_ethernet = 0;
	path_is_refused(r, NULL, h, "different networks");
	rig_free(r);
}

static void path__infiniband(void **state)
{
	struct verbs_port h;
	struct rig *r;

	script.infiniband = true;
	r = rig_new(1);
	h = r->b.hello;
	h.lid = 0;
	path_is_refused(r, NULL, h, "LID 0");
	h.lid = 0xc000;
	path_is_refused(r, NULL, h, "LID 49152");
	h.lid = 0xbfff;
	assert_int_equal(verbs_path_check(r->a.dev, &h), 0);
	h.wants_grh = 1;
	path_is_refused(r, "::", h, "the peer's device has none");
	assert_int_equal(verbs_path_check(r->a.dev, &h), 0);
	rig_free(r);
}

/* A script that took wrong attributes would hide mistakes: each one that the manual demands, and one
 * that it does not allow. */
static void script__masks(void **state)
{
	static const int must[] = {
		[IBV_QPS_INIT] =
			IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
		[IBV_QPS_RTR] = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
		[IBV_QPS_RTS] = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC |
				IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT,
	};
	struct rig *r = rig_new(1);
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET,
				.port_num = 2,
				.qp_access_flags = IBV_ACCESS_LOCAL_WRITE |
						   IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
				.path_mtu = IBV_MTU_1024,
				.dest_qp_num = r->b.lane->qp->qp->qp_num,
				.ah_attr = {.is_global = 1, .port_num = 2}};
	struct ibv_qp *qp = r->a.lane->qp->qp;

	verbs_qp_error(r->a.lane, r->a.lane->qp);
	verbs_qp_error(r->b.lane, r->b.lane->qp);
	r->no_mend = true;
	quiesce(r);
	a.ah_attr.grh =
		(struct ibv_global_route){.dgid = r->b.dev->gid, .sgid_index = 2, .hop_limit = 1};
	assert_int_equal(script_api.modify_qp(qp, &a, IBV_QP_STATE), 0);
	for (a.qp_state = IBV_QPS_INIT; a.qp_state <= IBV_QPS_RTS; a.qp_state++) {
		int mask = must[a.qp_state];

		for (int bit = 1; bit <= mask; bit <<= 1)
			if (mask & bit)
				assert_int_equal(script_api.modify_qp(qp, &a, mask & ~bit), EINVAL);
		assert_int_equal(script_api.modify_qp(qp, &a, mask | IBV_QP_QKEY), EINVAL);
		assert_int_equal(script_api.modify_qp(qp, &a, mask), 0);
	}
	r->no_mend = false;
	rig_free(r);
}

static char page[4096];

static struct gx_mem page_mem(uint64_t id)
{
	struct gx_mem mem = {.kind = GX_MEM_HOST, .len = sizeof(page), .id = id};

	mem.addr = page;
	return mem;
}

static struct verbs_dev *dev_open(void)
{
	struct verbs_dev *dev;

	verbs_api_set(&script_api);
	assert_int_equal(named_open("auto", &dev), 0);
	return dev;
}

static void dev_close(struct verbs_dev *dev)
{
	verbs_dev_close(dev);
	script_reset();
	verbs_api_set(NULL);
}

static void reg__by_id(void **state)
{
	struct gx_mem one = page_mem(1), two = page_mem(2); /* the same address, made again */
	struct verbs_dev *dev = dev_open();

	assert_non_null(reg_both(dev, &one, GX_ACCESS_GET));
	assert_non_null(reg_both(dev, &two, GX_ACCESS_GET));
	assert_int_equal(script.nr_mrs, 4);
	assert_int_equal(verbs_reg_revoke(dev, &one), 0);
	assert_int_equal(verbs_reg_revoke(dev, &one), 0);
	assert_int_equal(script.nr_mrs, 3);
	verbs_reg_put(dev, &one);
	verbs_reg_put(dev, &two);
	verbs_reg_put(dev, &two);
	assert_int_equal(script.nr_mrs, 0);
	dev_close(dev);
}

/* A GPU whose memory is host memory. */
static size_t dmabuf_b; /* that were asked for */
static int dmabuf_err;

static int fake_dmabuf(struct gx_gpu *gpu, const void *ptr, size_t len, int *fd)
{
	assert_int_equal((uintptr_t)ptr % 4096 + len % 4096, 0);
	dmabuf_b = len;
	*fd = dmabuf_err ? -1 : open("/dev/null", O_RDONLY | O_CLOEXEC);
	return dmabuf_err;
}

static const struct gx_gpu_share_ops fake_share = {.dmabuf = fake_dmabuf};
static struct gx_gpu fake_gpu = {.share = &fake_share, .dma = GX_GPU_DMA_OWN};

/* Memory of a GPU that the device takes goes by the device, at both ends. */
static void reg__by_dmabuf(void **state)
{
	struct rig *r = rig_new(2);
	struct gx_mem gpu = r->a.mem;
	struct gx_op op = put_imm(&r->a, 100, 2 * CHUNK_B, 1);

	dmabuf_err = 0;
	gpu.kind = GX_MEM_CUDA;
	gpu.gpu = &fake_gpu;
	gpu.id = 99;
	gpu.addr += 100;
	gpu.len = 2 * CHUNK_B;
	gpu.link[GX_LINK_VERBS] = reg_both(r->a.dev, &gpu, GX_ACCESS_PUT);
	assert_non_null(gpu.link[GX_LINK_VERBS]);
	assert_int_equal(script.nr_dmabufs, 2);
	assert_int_equal(dmabuf_b, 2 * CHUNK_B + 4096);
	fill(gpu.addr, gpu.len, 4);
	op.mem = &gpu;
	op.off = 0;
	post(&r->a, &op);
	UNTIL(r, r->a.nr_done == 1 && r->b.nr_notify == 1);
	assert_int_equal(r->a.nr_failed, 0);
	same(r, 100, 2 * CHUNK_B);
	verbs_reg_put(r->a.dev, &gpu);
	rig_free(r);
}

/* Each of those who may refuse is named, and packets carry the memory. */
static void reg__dmabuf_is_refused(void **state)
{
	struct gx_mem mem = page_mem(1);
	struct verbs_dev *dev = dev_open();
	struct verbs_api old = script_api;

	mem.kind = GX_MEM_CUDA;
	mem.gpu = &fake_gpu;
	dmabuf_err = 0;
	script.no_dmabuf = true;
	assert_null(verbs_reg_new(dev, &mem));
	assert_non_null(strstr(gx_error(), "refuses its dma-buf"));
	script.no_dmabuf = false;
	dmabuf_err = -EOPNOTSUPP;
	assert_null(verbs_reg_new(dev, &mem));
	assert_non_null(strstr(gx_error(), "memory of cuda:0 has no dma-buf: packets carry it"));
	dmabuf_err = 0;
	fake_gpu.dma = GX_GPU_DMA_NONE;
	assert_null(verbs_reg_new(dev, &mem));
	assert_non_null(strstr(gx_error(), "after a flush"));
	fake_gpu.dma = GX_GPU_DMA_OWN;
	old.reg_dmabuf_mr = NULL;
	dev->api = &old;
	assert_null(verbs_reg_new(dev, &mem));
	assert_non_null(strstr(gx_error(), "rdma-core 34"));
	dev->api = &script_api;
	assert_int_equal(script.nr_mrs, 0);
	dev_close(dev);
}

static void reg__of_gpus_is_said_once(void **state)
{
	struct gx_mem mem = page_mem(1);
	struct verbs_dev *dev = dev_open();

	log_watch("memory of cuda:0");
	script.no_dmabuf = true;
	mem.kind = GX_MEM_CUDA;
	mem.gpu = &fake_gpu;
	for (unsigned i = 0; i < 3; i++)
		assert_null(verbs_reg_new(dev, &mem));
	assert_int_equal(nr_logged, 1);
	log_watch(NULL);
	dev_close(dev);
}

static void reg__slow_is_said(void **state)
{
	struct gx_mem mem = page_mem(1);
	struct verbs_dev *dev = dev_open();

	log_watch("ms to register");
	assert_non_null(reg_both(dev, &mem, GX_ACCESS_PUT));
	assert_int_equal(nr_logged, 0);
	verbs_reg_put(dev, &mem);
	script.slow_reg_ms = 110;
	verbs_reg_keep(dev, verbs_reg_new(dev, &mem));
	assert_int_equal(nr_logged, 1);
	verbs_reg_put(dev, &mem);
	log_watch(NULL);
	dev_close(dev);
}

/* Peers may still reach it: the device counts as failed, so all its connections end. */
static void reg__is_not_given_back(void **state)
{
	struct gx_mem mem = page_mem(1);
	struct verbs_dev *dev = dev_open();

	assert_non_null(reg_both(dev, &mem, GX_ACCESS_PUT));
	log_watch("does not give the registration of 4096 bytes back");
	script.keep_mr = 1;
	assert_int_equal(verbs_reg_revoke(dev, &mem), -EBUSY);
	assert_int_equal(nr_logged, 1);
	assert_true(dev->failed);
	verbs_reg_put(dev, &mem); /* tries again */
	assert_int_equal(script.nr_mrs, 0);
	assert_int_equal(nr_logged, 1);
	log_watch(NULL);
	dev_close(dev);
}

/* Of a device that is there, EIO is a refusal: at the second time too, and of its queue pairs, whose
 * operations do not end while they live. */
static void reg__is_refused_with_eio(void **state)
{
	struct rig *r = rig_new(1);
	struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, 4096);

	log_watch("does not give the registration of");
	script.keep_err = EIO;
	script.keep_mr = 2;
	assert_int_equal(verbs_reg_revoke(r->a.dev, &r->a.mem), -EIO);
	assert_int_equal(verbs_reg_revoke(r->a.dev, &r->a.mem), -EIO);
	assert_int_equal(nr_logged, 2);
	assert_true(r->a.dev->failed);
	assert_false(r->a.dev->removed);
	assert_true(verbs_dev_events(r->a.dev));
	post(&r->a, &op);
	script.no_flush = r->no_mend = true;
	verbs_mend_stop(r->a.lane);
	verbs_lane_fail(r->a.lane, -ENODEV);
	script.keep_qp = 5;
	for (unsigned i = 0; i < 5; i++) {
		verbs_mend_give_up(r->a.lane);
		turn(r);
		assert_int_equal(r->a.nr_done, 0);
		assert_non_null(r->a.lane->qp->qp);
	}
	verbs_mend_give_up(r->a.lane);
	UNTIL(r, r->a.nr_done == 1);
	assert_null(r->a.lane->qp->qp);
	script.no_flush = false;
	log_watch(NULL);
	rig_free(r);
}

/* The device may still write immediates: their memory is not used for something else before the
 * device is closed. */
static void lane__is_not_ended(void **state)
{
	unsigned *const keep[] = {&script.keep_qp, &script.keep_cq, &script.keep_mr};
	struct verbs_lane *l = calloc(1, sizeof(*l));
	struct verbs_dev *dev = dev_open();

	assert_non_null(l);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(keep); i++) {
		memset(l, 0, sizeof(*l));
		l->nr_paths = 1;
		l->path[0].dev = dev;
		assert_int_equal(verbs_qps_open(l, 2), 0);
		log_watch("does not end a");
		*keep[i] = 1;
		verbs_qps_close(l);
		assert_int_equal(nr_logged, 1);
		assert_int_equal(*keep[i], 0);
	}
	for (unsigned i = 0; i < GX_ARRAY_SIZE(keep); i++) {
		struct verbs_kept *k = dev->kept;

		for (unsigned n = 0; n < i && k; n++)
			k = k->next;
		assert_non_null(k);
	}
	free(l);
	log_watch("does not end the context's protection domain");
	script.keep_pd = 1;
	verbs_dev_close(dev);
	assert_int_equal(nr_logged, 1);
	log_watch(NULL);
	script_forget();
	script_reset();
	verbs_api_set(NULL);
}

/* Queue pairs of a device that flushes nothing and does not end them at once, or never: operations
 * end when they have ended, or after a while with a line in the log. */
static void give_up__is_refused(void **state)
{
	for (unsigned keep = 1; keep < 1000; keep += 998) {
		struct rig *r = rig_new(1);
		struct gx_op op = op_of(&r->a, GX_OP_PUT, 0, 4096);
		unsigned n = 0;

		log_watch("may read or write the memory of the connection's operations");
		post(&r->a, &op);
		script.no_flush = r->no_mend = true;
		verbs_qp_error(r->a.lane, r->a.lane->qp);
		verbs_lane_fail(r->a.lane, -ENODEV);
		script.keep_qp = keep;
		verbs_mend_give_up(r->a.lane);
		turn(r);
		assert_int_equal(r->a.nr_done, 0);
		for (; !r->a.nr_done && n < 1000; n++) {
			verbs_mend_give_up(r->a.lane);
			turn(r);
		}
		assert_int_equal(r->a.status, -ENODEV);
		assert_int_equal(n == 1, keep == 1);
		assert_int_equal(nr_logged, keep != 1);
		log_watch(NULL);
		script.no_flush = false;
		script.keep_qp = 0;
		rig_free_of(r, keep != 1);
	}
}

/* The largest description. Two devices may number queue pairs alike. */
static void hello_full(struct verbs_hello *h, unsigned nr_ports)
{
	*h = (struct verbs_hello){
		.nr_ports = nr_ports, .nr_qps = VERBS_QPS_MAX, .nr_keys = GX_REGIONS_MAX};
	for (uint32_t i = 0; i < nr_ports; i++)
		h->port[i] = (struct verbs_port){.gid = {1, 2, (uint8_t)i},
						 .lid = 3,
						 .mtu = 5,
						 .reads = 16,
						 .gid_type = 2,
						 .msg_log2 = 23,
						 .speed_mbps = 100000 + i};
	for (uint32_t i = 0; i < h->nr_qps; i++) {
		h->own[i] = (uint8_t)(i % nr_ports);
		h->peer[i] = (uint8_t)(7 - i % 8);
		h->qp[i] = (struct verbs_qp_say){2 + i / nr_ports, 0xffffff - i};
	}
	h->probe_addr = 0x123456789abcdef0;
	for (uint32_t r = 0; r < nr_ports; r++)
		h->probe_key[r] = 1000 + r;
	for (uint32_t i = 0; i < h->nr_keys; i++) {
		h->key[i] = (struct verbs_key){
			.token = i, .addr = ~(uint64_t)i, .rails = (1u << nr_ports) - 1};
		for (uint32_t r = 0; r < nr_ports; r++)
			h->key[i].rkey[r] = 7 * i + r;
	}
}

static void hello_round(unsigned nr_ports, uint32_t want_b)
{
	uint8_t b[VERBS_HELLO_MAX], again[VERBS_HELLO_MAX];
	struct verbs_hello h, got;
	uint32_t len;

	hello_full(&h, nr_ports);
	len = verbs_hello_put(b, &h);
	assert_int_equal(len, want_b);
	assert_int_equal(verbs_hello_get(b, len, &got), 0);
	assert_int_equal(got.port[nr_ports - 1].gid_type, VERBS_GID_V2);
	assert_int_equal(got.key[9].rkey[nr_ports - 1], 7 * 9 + nr_ports - 1);
	assert_int_equal(got.probe_addr, h.probe_addr);
	assert_int_equal(got.probe_key[nr_ports - 1], 1000 + nr_ports - 1);
	assert_int_equal(verbs_hello_put(again, &got), len);
	assert_memory_equal(again, b, len);
	for (uint32_t i = 0; i < len; i++)
		assert_int_equal(verbs_hello_get(b, i, &got), -EPROTO);
	b[8 + 18] = 6;
	assert_int_equal(verbs_hello_get(b, len, &got), -EPROTO);
	for (unsigned i = 0; i < 6; i++) { /* zeros: of the head, of a port, of a queue pair */
		const uint32_t keys = len - GX_REGIONS_MAX * (20 + 4 * nr_ports);
		const uint32_t at[] = {1, 6, 7, 8 + 23, keys - 2, keys - 1};

		verbs_hello_put(b, &h);
		b[at[i]] = 1;
		assert_int_equal(verbs_hello_get(b, len, &got), -EPROTO);
	}
}

static void hello__round(void **state)
{
	hello_round(1, 8 + 28 + 12 + VERBS_QPS_MAX * 12 + GX_REGIONS_MAX * 24);
	hello_round(2, 8 + 56 + 16 + VERBS_QPS_MAX * 12 + GX_REGIONS_MAX * 28);
	hello_round(VERBS_RAILS_MAX, VERBS_HELLO_MAX);
}

static void hello__bad(void **state)
{
	static const uint32_t bad_qpns[] = {0, 1, 0xffffff, 0x1000002, 4 /* of another one */};
	struct verbs_mend m = {.qp = 63, .gen = 9, .say = {0xabcdef, 1}, .taken = 7}, seen;
	uint8_t b[VERBS_HELLO_MAX];
	struct verbs_hello h, got;
	uint32_t len;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad_qpns); i++) {
		hello_full(&h, 1);
		h.qp[3].qpn = bad_qpns[i];
		len = verbs_hello_put(b, &h);
		assert_int_equal(verbs_hello_get(b, len, &got), -EPROTO);
		verbs_hello_mend_put(b, &(struct verbs_mend){.say = {bad_qpns[i], 1}});
		if (bad_qpns[i] != h.qp[2].qpn)
			assert_int_equal(verbs_hello_mend_get(b, VERBS_MEND_B, &seen), -EPROTO);
	}
	verbs_hello_mend_put(b, &m);
	assert_int_equal(verbs_hello_mend_get(b, VERBS_MEND_B, &seen), 0);
	assert_memory_equal(&seen, &m, sizeof(m));
	assert_int_equal(verbs_hello_mend_get(b, VERBS_MEND_B - 1, &seen), -EPROTO);
	m.say = (struct verbs_qp_say){0}; /* it is no more */
	verbs_hello_mend_put(b, &m);
	assert_int_equal(verbs_hello_mend_get(b, VERBS_MEND_B, &seen), 0);
	hello_full(&h, 2);
	for (unsigned i = 0; i < 5; i++) {
		hello_full(&h, 2);
		if (i == 0)
			h.own[5] = 2; /* of two */
		if (i == 1)
			h.peer[5] = VERBS_RAILS_MAX;
		if (i == 2)
			h.key[5].rails = 4;
		if (i == 3)
			h.key[5].rails = 1; /* and a number for the other one */
		if (i == 4)
			h.qp[2].qpn = h.qp[0].qpn; /* twice of one device */
		len = verbs_hello_put(b, &h);
		assert_int_equal(verbs_hello_get(b, len, &got), -EPROTO);
	}
}

/* What a server says of its rails in HELLO. */
static void ports__round(void **state)
{
	struct verbs_port got[VERBS_RAILS_MAX];
	uint8_t b[VERBS_RAILS_B];
	struct verbs_hello h;
	uint32_t len;

	hello_full(&h, VERBS_RAILS_MAX);
	len = verbs_ports_put(b, h.port, VERBS_RAILS_MAX);
	assert_int_equal(len, VERBS_RAILS_B);
	memset(got, 0, sizeof(got));
	assert_int_equal(verbs_ports_get(b, len, got), VERBS_RAILS_MAX);
	assert_memory_equal(got, h.port, sizeof(got));
	for (uint32_t i = 0; i < len; i++)
		assert_int_equal(verbs_ports_get(b, i, got), -EPROTO);
	b[0] = 0;
	assert_int_equal(verbs_ports_get(b, 4, got), -EPROTO);
}

/* One piece, as long as it is: the list of all tests, by what they are about. */
static const struct CMUnitTest tests[] = {
	cmocka_unit_test(put__sizes),
	cmocka_unit_test(get__sizes),
	cmocka_unit_test(put__inline_needs_no_key),
	cmocka_unit_test(put__outside_is_for_packets),
	cmocka_unit_test(put__lists),
	cmocka_unit_test(put__few_share_a_queue_pair),
	cmocka_unit_test(put__large_take_turns),
	cmocka_unit_test(put__empty_ends_after_the_post),
	cmocka_unit_test(put__waits_behind_others),
	cmocka_unit_test(put__window),
	cmocka_unit_test(put__ops_full),
	cmocka_unit_test(imm__credit),
	cmocka_unit_test(imm__credit_waits_for_room),
	cmocka_unit_test(imm__burst_to_a_full_ring),
	cmocka_unit_test(imm__receives_are_posted_again),
	cmocka_unit_test(put__device_is_lazy),
	cmocka_unit_test(put__largest_request),
	cmocka_unit_test(put__local),
	cmocka_unit_test(qp__fails),
	cmocka_unit_test(qp__fails_and_the_next_put_does_not),
	cmocka_unit_test(qp__fails_landed),
	cmocka_unit_test(qp__landed_is_not_sent_again),
	cmocka_unit_test(qp__read_before_an_imm),
	cmocka_unit_test(qp__lost_imm_sends_all_again),
	cmocka_unit_test(qp__imm_before_up),
	cmocka_unit_test(qp__late_packet),
	cmocka_unit_test(qp__others_go_on),
	cmocka_unit_test(qp__fails_often),
	cmocka_unit_test(qp__all_fail_once),
	cmocka_unit_test(qp__all_lose_their_imm),
	cmocka_unit_test(qp__poisoned_imm),
	cmocka_unit_test(qp__path_is_cut),
	cmocka_unit_test(qp__refuses_posts),
	cmocka_unit_test(qp__refused_before_imm),
	cmocka_unit_test(qp__poison),
	cmocka_unit_test(poll__short),
	cmocka_unit_test(put__region_freed),
	cmocka_unit_test(drop__waits),
	cmocka_unit_test(drop__of_a_failed_queue_pair),
	cmocka_unit_test(cancel__before_and_after),
	cmocka_unit_test(cancel__then_refused),
	cmocka_unit_test(deadline__passes),
	cmocka_unit_test(lane__fails),
	cmocka_unit_test(device__gone),
	cmocka_unit_test(device__gone_ends_nothing),
	cmocka_unit_test(event__completion_queue),
	cmocka_unit_test(event__queue_pair),
	cmocka_unit_test(event__port),
	cmocka_unit_test(imm__lies),
	cmocka_unit_test(imm__twice),
	cmocka_unit_test(mend__lies),
	cmocka_unit_test(mend__has_a_budget),
	cmocka_unit_test(mend__waits_for_the_budget),
	cmocka_unit_test(mend__finds_no_address),
	cmocka_unit_test(mend__flush_is_refused),
	cmocka_unit_test(mend__peer_waits_for_a_flush),
	cmocka_unit_test(mend__is_refused),
	cmocka_unit_test(open__each_call_fails),
	cmocka_unit_test(open__names),
	cmocka_unit_test(open__level_of_ethernet),
	cmocka_unit_test(ib__one_end_names_a_gid),
	cmocka_unit_test(ib__no_such_gid),
	cmocka_unit_test(path__has_a_class),
	cmocka_unit_test(path__of_a_peer_that_lies),
	cmocka_unit_test(path__infiniband),
	cmocka_unit_test(script__masks),
	cmocka_unit_test(reg__by_id),
	cmocka_unit_test(reg__by_dmabuf),
	cmocka_unit_test(reg__dmabuf_is_refused),
	cmocka_unit_test(reg__of_gpus_is_said_once),
	cmocka_unit_test(reg__slow_is_said),
	cmocka_unit_test(reg__is_not_given_back),
	cmocka_unit_test(reg__is_refused_with_eio),
	cmocka_unit_test(lane__is_not_ended),
	cmocka_unit_test(give_up__is_refused),
	cmocka_unit_test(hello__round),
	cmocka_unit_test(hello__bad),
	cmocka_unit_test(ports__round),
};

int main(int argc, char *argv[])
{
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
