/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Long sends over queue pairs, between two contexts of one process whose devices are scripted: sizes
 * around the limit, who takes no part and what packets carry then, ends that come while the
 * receiver's device reads, and peers that lie.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "gx/gx.h"
#include "gx_internal/base.h"

#include <cmocka.h>

#include "core/core.h"
#include "verbs/link_verbs.h"
#include "verbs/verbs_rig.h"

#define OVER_B	(64u << 10) /* the default of gx_host_opts.pull_over_b */
#define CHUNK_B (512u << 10)
#define LONG_B	(3u << 20)
#define POISON	0x5b
#define EDGE_B	64
#define TURNS	500

static struct rig *rig_of(struct gx_opts client, struct gx_opts server)
{
	static const struct gx_rail rails[] = {{"script0"}, {"script1"}};
	struct rig *r;

	client.verbs = GX_WITH(gx_verbs_opts, .rails = &rails[0], .nr_rails = 1);
	server.verbs = GX_WITH(gx_verbs_opts, .rails = &rails[1], .nr_rails = 1);
	r = rig_new_of(client, server);
	assert_int_equal(rig_connect(r, 2), 0);
	return r;
}

/* ---- Sends ---- */

static struct verbs_ep *ep_of(const struct end *e)
{
	return GX_CONTAINER_OF(e->ep, struct verbs_ep, pkt.ep);
}

/* With the devices. */
static uint64_t under_b(const struct end *e)
{
	const struct verbs_lane *l = &ep_of(e)->lane;
	uint64_t n = 0;

	for (unsigned i = 0; i < l->nr_ways; i++)
		n += l->way[i].under_b;
	return n;
}

static void post_of(struct end *e, enum gx_op_kind kind, uint64_t off, uint64_t len)
{
	struct gx_op op = {.kind = kind, .mem = e->kv, .off = off, .len = len, .tag = 3, .user = 7};

	post(e, &op);
}

/* The client is to send @len bytes, into the server's memory. */
static void begin(struct rig *r, uint64_t len)
{
	fill(r->client.base, len, (unsigned)len);
	memset(r->server.base, POISON, len + 2 * EDGE_B);
	post_of(&r->server, GX_OP_RECV, EDGE_B, len);
	post_of(&r->client, GX_OP_SEND, 0, len);
}

static bool both_ended(const struct rig *r, unsigned n)
{
	return r->client.nr_done == n && r->server.nr_done == n;
}

static void good(const struct rig *r, uint64_t len)
{
	assert_int_equal(r->client.nr_failed + r->server.nr_failed, 0);
	assert_int_equal(r->server.last.len, len);
	assert_int_equal(r->server.last.tag, 3);
	assert_int_equal(r->server.last.user, 7);
	assert_int_equal(r->client.last.len, len);
	assert_memory_equal(r->server.base + EDGE_B, r->client.base, len);
	for (unsigned i = 0; i < EDGE_B; i++) {
		assert_int_equal(r->server.base[i], POISON);
		assert_int_equal(r->server.base[EDGE_B + len + i], POISON);
	}
}

static void send_good(struct rig *r, uint64_t len)
{
	unsigned n = r->client.nr_done + 1;

	begin(r, len);
	UNTIL(r, both_ended(r, n));
	good(r, len);
}

/* One that the receiver's device has begun to read, and cannot go on with. */
static void begin_held(struct rig *r)
{
	r->hold = true;
	begin(r, LONG_B);
	UNTIL(r, under_b(&r->server) > 0);
}

static void turns(struct rig *r)
{
	for (unsigned i = 0; i < TURNS; i++)
		rig_turn(r);
}

/* Nothing writes to the receiver's memory any more, whatever the sender does with its own. */
static void nothing_lands(struct rig *r)
{
	char *was = malloc(KV_B);

	assert_non_null(was);
	memcpy(was, r->server.base, KV_B);
	fill(r->client.base, KV_B, 99);
	r->hold = false;
	turns(r);
	assert_memory_equal(was, r->server.base, KV_B);
	free(was);
}

/* The connection has outlived what went wrong. */
static void goes_on(struct rig *r)
{
	r->hold = false;
	r->client.nr_failed = r->server.nr_failed = 0;
	send_good(r, LONG_B);
	assert_int_equal(stat_of(&r->client, "verbs_sends"), 1);
	assert_int_equal(atomic_load(&r->client.nr_down) + atomic_load(&r->server.nr_down), 0);
}

static bool says(const struct end *e, const char *what, uint64_t over_b)
{
	struct gx_conn_info info = GX_INIT(info);

	assert_int_equal(gx_conn_info(e->conn, &info), 0);
	assert_int_equal(info.pull_over_b, over_b);
	return strstr(info.why, what);
}

/* ---- Bytes and order ---- */

static void send__sizes_around_the_limit(void **state)
{
	static const uint64_t sizes[] = {OVER_B + 1,  OVER_B + 15,	  CHUNK_B - 1,	    CHUNK_B,
					 CHUNK_B + 1, 3 * CHUNK_B + 4097, KV_B - 2 * EDGE_B};
	struct rig *r = rig_up(4);
	uint64_t bytes = 0, rx_bytes = stat_of(&r->server, "rx_bytes");

	assert_true(says(&r->client, "long sends over queue pairs", OVER_B));
	assert_true(says(&r->server, "long sends over queue pairs", OVER_B));
	for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++) {
		send_good(r, sizes[i]);
		bytes += sizes[i];
		assert_int_equal(stat_of(&r->client, "verbs_sends"), i + 1);
		assert_int_equal(stat_of(&r->server, "pulls"), i + 1);
		assert_int_equal(stat_of(&r->server, "pull_bytes"), bytes);
		assert_int_equal(script.bytes, bytes);
	}
	assert_int_equal(stat_of(&r->server, "rx_bytes"), rx_bytes);
	send_good(r, OVER_B);
	send_good(r, 1);
	assert_int_equal(script.bytes, bytes);
	assert_int_equal(stat_of(&r->client, "verbs_sends"), GX_ARRAY_SIZE(sizes));
	assert_int_equal(stat_of(&r->client, "verbs_misses"), 0);
	rig_free(r);
}

/* Long and short sends of one tag meet the receives in the order of posting; more than a lane reads
 * at a time. */
static void order__of_one_tag(void **state)
{
	static const uint64_t sizes[] = {OVER_B + 7, 8, 100, OVER_B + 1};
	struct rig *r = rig_up(2);
	const unsigned n = VERBS_PULLS + 20;
	uint64_t at = 0;

	fill(r->client.base, KV_B, 9);
	for (unsigned i = 0; i < n; i++) {
		post_of(&r->server, GX_OP_RECV, at, sizes[i % 4]);
		at += sizes[i % 4];
	}
	at = 0;
	r->hold = true;
	for (unsigned i = 0; i < n; i++) {
		post_of(&r->client, GX_OP_SEND, at, sizes[i % 4]);
		at += sizes[i % 4];
	}
	turns(r);
	assert_in_range(ep_of(&r->server)->lane.nr_pulls, 1, VERBS_PULLS);
	r->hold = false;
	UNTIL(r, both_ended(r, n));
	assert_int_equal(r->client.nr_failed + r->server.nr_failed, 0);
	assert_memory_equal(r->server.base, r->client.base, at);
	assert_int_equal(stat_of(&r->server, "pulls"), n / 2);
	rig_free(r);
}

/* More long ones at a time than a lane reads. */
static void send__many(void **state)
{
	const unsigned n = VERBS_PULLS + 20;
	const uint64_t len = OVER_B + 5;
	struct rig *r = rig_up(3);

	fill(r->client.base, KV_B, 2);
	r->hold = true;
	for (unsigned i = 0; i < n; i++)
		post_of(&r->server, GX_OP_RECV, i * len, len);
	for (unsigned i = 0; i < n; i++)
		post_of(&r->client, GX_OP_SEND, i * len, len);
	turns(r);
	assert_int_equal(ep_of(&r->server)->lane.nr_pulls, VERBS_PULLS);
	r->hold = false;
	UNTIL(r, both_ended(r, n));
	assert_int_equal(r->client.nr_failed + r->server.nr_failed, 0);
	assert_memory_equal(r->server.base, r->client.base, n * len);
	assert_int_equal(stat_of(&r->server, "pulls"), n);
	rig_free(r);
}

static void send__both_ways(void **state)
{
	struct rig *r = rig_up(2);

	fill(r->client.base, LONG_B / 2, 1);
	fill(r->server.base, LONG_B / 2, 2);
	post_of(&r->client, GX_OP_RECV, LONG_B / 2, LONG_B / 2);
	post_of(&r->server, GX_OP_RECV, LONG_B / 2, LONG_B / 2);
	post_of(&r->client, GX_OP_SEND, 0, LONG_B / 2);
	post_of(&r->server, GX_OP_SEND, 0, LONG_B / 2);
	UNTIL(r, both_ended(r, 2));
	assert_int_equal(r->client.nr_failed + r->server.nr_failed, 0);
	assert_memory_equal(r->client.base, r->server.base + LONG_B / 2, LONG_B / 2);
	assert_memory_equal(r->server.base, r->client.base + LONG_B / 2, LONG_B / 2);
	assert_int_equal(stat_of(&r->client, "verbs_sends") + stat_of(&r->client, "pulls"), 2);
	rig_free(r);
}

/* The sender hears of its end when the receiver has all bytes, and not before. */
static void send__ends_with_all_bytes(void **state)
{
	struct rig *r = rig_up(1);
	struct gx_op op = {
		.kind = GX_OP_SEND, .flags = GX_OP_LOCAL, .mem = r->client.kv, .len = LONG_B};

	memset(r->server.base, POISON, KV_B);
	fill(r->client.base, LONG_B, 8);
	post_of(&r->server, GX_OP_RECV, EDGE_B, LONG_B);
	op.tag = 3;
	script.run_max = 1;
	post(&r->client, &op);
	while (!r->client.nr_done) {
		assert_int_equal(r->client.nr_local, 0);
		rig_turn(r);
	}
	assert_int_equal(r->server.nr_done, 1);
	assert_int_equal(r->client.nr_local, 1);
	good(r, LONG_B);
	rig_free(r);
}

static struct rig *rig_up_rails(void)
{
	struct rig *r;

	script.more = 2;
	r = rig_new("script0+script1", "script2+script3");
	assert_int_equal(rig_connect(r, 4), 0);
	return r;
}

/* Both ends have two: each way has a part of the message. */
static void send__over_several_devices(void **state)
{
	struct rig *r = rig_up_rails();
	const struct verbs_lane *l;

	begin_held(r);
	l = &ep_of(&r->server)->lane;
	assert_int_equal(l->nr_ways, 2);
	assert_true(l->way[0].under_b && l->way[1].under_b);
	r->hold = false;
	UNTIL(r, both_ended(r, 1));
	good(r, LONG_B);
	script.fail_status = IBV_WC_RETRY_EXC_ERR;
	script.fail_qpn = SCRIPT_ANY;
	send_good(r, LONG_B);
	assert_int_equal(stat_of(&r->client, "verbs_sends"), 2);
	rig_free(r);
}

/* Memory that one of them refuses goes by packets. */
static void send__one_device_refuses(void **state)
{
	struct rig *r = rig_up_rails();
	struct gx_op op = {.kind = GX_OP_SEND, .len = LONG_B, .tag = 3};
	char *plain = calloc(1, LONG_B);

	assert_non_null(plain);
	fill(plain, LONG_B, 1);
	script.calls = 0;
	script.plan = 1; /* the first registration */
	assert_int_equal(gx_mem_reg(r->client.gx, GX_MEM_HOST, 0, plain, LONG_B, &op.mem), 0);
	script.plan = 0;
	post_of(&r->server, GX_OP_RECV, 0, LONG_B);
	post(&r->client, &op);
	UNTIL(r, both_ended(r, 1));
	assert_int_equal(r->client.nr_failed + r->server.nr_failed, 0);
	assert_memory_equal(r->server.base, plain, LONG_B);
	assert_int_equal(script.nr_reads, 0);
	assert_int_equal(stat_of(&r->client, "verbs_misses"), 1);
	rig_free(r);
	free(plain);
}

/* ---- By packets ---- */

/* The limits of both ends count: of the sender for the message, of the receiver for the receive. */
static void send__limits_of_both_ends(void **state)
{
	const struct gx_opts near = {.host = GX_WITH(gx_host_opts, .pull = GX_PULL_ON)},
			     far = {.host = GX_WITH(gx_host_opts, .pull = GX_PULL_ON,
						    .pull_over_b = 1u << 20)};

	for (unsigned i = 0; i < 2; i++) {
		struct rig *r = rig_of(i ? far : near, i ? near : far);

		send_good(r, 1u << 20);
		assert_int_equal(script.nr_reads, 0);
		send_good(r, (1u << 20) + 1);
		assert_int_equal(stat_of(&r->client, "verbs_sends"), 1);
		assert_int_equal(stat_of(&r->client, "verbs_misses"), 0);
		rig_free(r);
	}
}

/* An end that has not asked for it sees none of it, and its memory is not lent. */
static void send__where_an_end_takes_no_part(void **state)
{
	const struct gx_opts offs[] = {{.host = GX_WITH(gx_host_opts, .pull = GX_PULL_OFF)},
				       {.host = GX_WITH(gx_host_opts, .pull = GX_PULL_AUTO)}};
	const struct gx_opts on = {.host = GX_WITH(gx_host_opts, .pull = GX_PULL_ON)};

	for (unsigned k = 0; k < 6; k++) {
		struct gx_opts off = offs[k / 3];
		unsigned i = k % 3;
		struct rig *r = rig_of(i == 1 ? on : off, i == 2 ? on : off);

		assert_true(says(&r->client, "long sends as packets", 0));
		assert_true(says(&r->server, "long sends as packets", 0));
		assert_int_equal(verbs_reg_of(r->client.kv)->lent.rails, i == 1);
		assert_int_equal(verbs_reg_of(r->server.kv)->lent.rails, i == 2);
		send_good(r, LONG_B);
		assert_int_equal(script.nr_reads, 0);
		assert_int_equal(stat_of(&r->client, "verbs_sends"), 0);
		assert_int_equal(stat_of(&r->client, "verbs_misses"), 0);
		rig_free(r);
	}
}

/* Memory that a device does not know: counted at the end whose memory it is. */
static void send__memory_without_a_registration(void **state)
{
	for (unsigned i = 0; i < 2; i++) {
		struct rig *r = rig_up(2);
		struct end *e = i ? &r->server : &r->client, *other = i ? &r->client : &r->server;
		struct gx_op op = {.kind = i ? GX_OP_RECV : GX_OP_SEND, .len = LONG_B, .tag = 3};
		char *plain = calloc(1, LONG_B);

		assert_non_null(plain);
		fill(i ? r->client.base : plain, LONG_B, i);
		op.addr = plain;
		post(e, &op);
		post_of(other, i ? GX_OP_SEND : GX_OP_RECV, 0, LONG_B);
		UNTIL(r, both_ended(r, 1));
		assert_int_equal(r->client.nr_failed + r->server.nr_failed, 0);
		assert_memory_equal(plain, other->base, LONG_B);
		assert_int_equal(script.nr_reads, 0);
		assert_int_equal(stat_of(e, "verbs_misses"), 1);
		assert_int_equal(stat_of(other, "verbs_misses"), 0);
		rig_free(r);
		free(plain);
	}
}

/* ---- Early ends ---- */

/* The peer's device may still read it: the sender's memory is not the user's until that has ended. */
static void cancel__at_the_sender(void **state)
{
	struct rig *r = rig_up(2);

	begin_held(r);
	assert_int_equal(common_cancel(r->client.ep, 7), 1);
	assert_int_equal(common_cancel(r->client.ep, 7), 0);
	turns(r);
	assert_int_equal(r->client.nr_done + r->server.nr_done, 0);
	r->hold = false;
	UNTIL(r, both_ended(r, 1));
	assert_int_equal(r->client.status, -ECANCELED);
	assert_int_equal(r->server.status, -ECANCELED);
	assert_int_equal(r->client.nr_local, 0);
	nothing_lands(r);
	goes_on(r);
	rig_free(r);
}

/* Its device may still write: the same at the receiver. What the window has kept back is not read. */
static void cancel__at_the_receiver(void **state)
{
	const struct gx_opts narrow = {
		.host = GX_WITH(gx_host_opts, .pull = GX_PULL_ON),
		.packet = GX_WITH(gx_packet_opts, .chunk_b = OVER_B, .window = 2)};
	struct rig *r = rig_of(narrow, narrow);

	begin_held(r);
	assert_int_equal(common_cancel(r->server.ep, 7), 1);
	turns(r);
	assert_int_equal(r->client.nr_done + r->server.nr_done, 0);
	r->hold = false;
	while (!r->server.nr_done)
		rig_turn(r);
	assert_int_equal(under_b(&r->server), 0);
	assert_int_equal(script.nr_reads, 2);
	assert_int_equal(r->server.status, -ECANCELED);
	UNTIL(r, both_ended(r, 1));
	assert_int_equal(r->client.status, -ECANCELED);
	nothing_lands(r);
	goes_on(r);
	rig_free(r);
}

/* Before the device has any of it. */
static void cancel__before_it_is_read(void **state)
{
	for (unsigned i = 0; i < 2; i++) {
		struct rig *r = rig_up(1);
		struct verbs_lane *l = &ep_of(&r->server)->lane;

		l->nr_pulls += VERBS_PULLS; /* it is full */
		begin(r, LONG_B);
		UNTIL(r, ep_of(&r->server)->pkt.pull.nr_due == 1);
		assert_int_equal(common_cancel(i ? r->server.ep : r->client.ep, 7), 1);
		UNTIL(r, both_ended(r, 1));
		assert_int_equal(ep_of(&r->server)->pkt.pull.nr_due, 0);
		assert_int_equal(r->client.status, -ECANCELED);
		assert_int_equal(r->server.status, -ECANCELED);
		l->nr_pulls -= VERBS_PULLS;
		nothing_lands(r);
		assert_int_equal(script.nr_reads, 0);
		goes_on(r);
		rig_free(r);
	}
}

static void deadline__at_each_end(void **state)
{
	for (unsigned i = 0; i < 2; i++) {
		struct rig *r = rig_up(2);
		struct gx_op recv = {.kind = GX_OP_RECV, .mem = r->server.kv, .len = LONG_B};
		struct gx_op send = {.kind = GX_OP_SEND, .mem = r->client.kv, .len = LONG_B};

		(i ? &recv : &send)->deadline_ns = gx_now() + 20000000;
		r->hold = true;
		post(&r->server, &recv);
		post(&r->client, &send);
		while (gx_now() < (i ? &recv : &send)->deadline_ns + 5000000)
			rig_turn(r);
		assert_int_equal(r->client.nr_done + r->server.nr_done, 0);
		r->hold = false;
		UNTIL(r, both_ended(r, 1));
		assert_int_equal(r->client.status, -ETIMEDOUT);
		assert_int_equal(r->server.status, i ? -ETIMEDOUT : -ECANCELED);
		nothing_lands(r);
		goes_on(r);
		rig_free(r);
	}
}

/* The device refuses reads of freed memory, and whatever stands there now stays where it is. */
static void freed__at_the_sender(void **state)
{
	struct rig *r = rig_up(2);
	struct gx_op op = {.kind = GX_OP_SEND, .len = LONG_B, .tag = 3};
	char *plain = calloc(1, LONG_B);

	assert_non_null(plain);
	assert_int_equal(gx_mem_reg(r->client.gx, GX_MEM_HOST, 0, plain, LONG_B, &op.mem), 0);
	memset(r->server.base, POISON, LONG_B);
	post_of(&r->server, GX_OP_RECV, 0, LONG_B);
	r->hold = true;
	post(&r->client, &op);
	UNTIL(r, under_b(&r->server) > 0);
	assert_int_equal(gx_mem_free(op.mem), 0); /* it waits for nobody */
	memset(plain, 1, LONG_B);
	r->hold = false;
	UNTIL(r, both_ended(r, 1));
	assert_int_equal(r->client.status, -ECANCELED);
	assert_int_equal(r->server.status, -ECANCELED);
	for (unsigned i = 0; i < LONG_B; i++)
		assert_int_equal(r->server.base[i], POISON);
	assert_int_equal(script.nr_reads, 0);
	free(plain);
	goes_on(r);
	rig_free(r);
}

static bool all_up(const struct end *e)
{
	const struct verbs_lane *l = &ep_of(e)->lane;
	unsigned n = 0;

	for (unsigned i = 0; i < l->nr_qps; i++)
		n += qp_state(&l->qp[i]) == VERBS_QP_UP;
	return n == l->nr_qps;
}

/* It costs queue pairs, and not the connection, however often. */
static void freed__often(void **state)
{
	struct rig *r = rig_up(2);
	struct gx_op op = {.kind = GX_OP_SEND, .len = LONG_B, .tag = 3};
	char *plain = calloc(1, LONG_B);

	assert_non_null(plain);
	for (unsigned i = 1; i <= 8; i++) {
		assert_int_equal(gx_mem_reg(r->client.gx, GX_MEM_HOST, 0, plain, LONG_B, &op.mem),
				 0);
		post_of(&r->server, GX_OP_RECV, 0, LONG_B);
		r->hold = true;
		post(&r->client, &op);
		UNTIL(r, under_b(&r->server) > 0);
		assert_int_equal(gx_mem_free(op.mem), 0);
		r->hold = false;
		UNTIL(r, both_ended(r, i) && all_up(&r->client) && all_up(&r->server));
	}
	assert_true(stat_of(&r->server, "verbs_qps_lost") > 0);
	free(plain);
	goes_on(r);
	rig_free(r);
}

static void *free_on_a_thread(void *mem)
{
	return (void *)(intptr_t)gx_mem_free(mem);
}

/* While its core turns, the sender has the receiver stop first: no queue pair is lost. A receiver that
 * does not answer is not waited for: the device refuses it after a while. */
static void freed__while_the_core_turns(void **state)
{
	for (int answers = 1; answers >= 0; answers--) {
		struct rig *r = rig_up(2);
		struct gx_op op = {.kind = GX_OP_SEND, .len = LONG_B, .tag = 3};
		char *plain = calloc(1, LONG_B);
		unsigned mrs = script.nr_mrs;
		pthread_t thread;
		void *ret;

		assert_non_null(plain);
		assert_int_equal(gx_mem_reg(r->client.gx, GX_MEM_HOST, 0, plain, LONG_B, &op.mem),
				 0);
		post_of(&r->server, GX_OP_RECV, 0, LONG_B);
		r->hold = true;
		post(&r->client, &op);
		UNTIL(r, under_b(&r->server) > 0);
		assert_int_equal(pthread_create(&thread, NULL, free_on_a_thread, op.mem), 0);
		UNTIL(r, mem_is_dead(op.mem));
		for (unsigned i = 0; i < 20; i++)
			rig_turn(r);
		assert_int_equal(script.nr_mrs, mrs + 1);
		if (!answers)
			UNTIL(r, script.nr_mrs == mrs);
		r->hold = false;
		UNTIL(r, both_ended(r, 1) && script.nr_mrs == mrs);
		assert_int_equal(pthread_join(thread, &ret), 0);
		assert_null(ret);
		assert_int_equal(r->client.status, -ECANCELED);
		assert_int_equal(r->server.status, -ECANCELED);
		assert_int_equal(stat_of(&r->server, "verbs_qps_lost") == 0, answers);
		free(plain);
		goes_on(r);
		rig_free(r);
	}
}

/* The device keeps the registration: no peer may reach it all the same. */
static void freed__and_not_given_back(void **state)
{
	struct rig *r = rig_up(2);
	struct gx_mem *mem;
	char *plain = calloc(1, LONG_B);

	assert_non_null(plain);
	assert_int_equal(gx_mem_reg(r->client.gx, GX_MEM_HOST, 0, plain, LONG_B, &mem), 0);
	script.keep_mr = 1;
	r->forget = true;
	assert_int_equal(script_live(0), 2);
	assert_int_equal(gx_mem_free(mem), 0);
	assert_int_equal(script_live(0), 0);
	UNTIL(r, atomic_load(&r->client.nr_down) == 1 && atomic_load(&r->server.nr_down) == 1);
	rig_free(r);
	free(plain);
}

/* The memory stays until the device has let go of it. */
static void freed__at_the_receiver(void **state)
{
	struct rig *r = rig_up(2);
	struct gx_op op = {.kind = GX_OP_RECV, .len = LONG_B, .tag = 3};
	unsigned mrs = script.nr_mrs;
	char *at;

	assert_int_equal(gx_mem_alloc(r->server.gx, GX_MEM_HOST, 0, LONG_B, &op.mem), 0);
	at = gx_mem_addr(op.mem);
	post(&r->server, &op);
	r->hold = true;
	post_of(&r->client, GX_OP_SEND, 0, LONG_B);
	UNTIL(r, under_b(&r->server) > 0);
	assert_int_equal(gx_mem_free(op.mem), 0);
	turns(r);
	assert_int_equal(script.nr_mrs, mrs + 1);
	assert_int_equal(at[LONG_B - 1], 0);
	assert_int_equal(r->client.nr_done + r->server.nr_done, 0);
	r->hold = false;
	UNTIL(r, both_ended(r, 1) && script.nr_mrs == mrs);
	assert_int_equal(r->server.status, -ECANCELED);
	assert_int_equal(r->client.status, -ECANCELED);
	goes_on(r);
	rig_free(r);
}

/* ---- Failures ---- */

static void qp__fails(void **state)
{
	struct rig *r = rig_up(4);

	for (unsigned i = 0; i < 8; i++) {
		script.fail_status = IBV_WC_RETRY_EXC_ERR;
		script.fail_landed = i & 1;
		script.fail_after = i % 4;
		script.fail_qpn = SCRIPT_ANY;
		send_good(r, LONG_B);
	}
	assert_int_equal(atomic_load(&r->client.nr_down) + atomic_load(&r->server.nr_down), 0);
	assert_true(stat_of(&r->server, "verbs_redone") > 0);
	assert_int_equal(stat_of(&r->client, "verbs_sends"), 8);
	rig_free(r);
}

/* The device itself is at fault: both ends hear of it, and nothing else is hurt. */
static void device__reads_wrong(void **state)
{
	struct rig *r = rig_up(2);

	script.fail_status = IBV_WC_LOC_PROT_ERR;
	script.fail_qpn = SCRIPT_ANY;
	begin(r, LONG_B);
	UNTIL(r, both_ended(r, 1));
	assert_int_equal(r->client.status, -EIO);
	assert_int_equal(r->server.status, -EIO);
	assert_int_equal(stat_of(&r->server, "pulls_failed"), 1);
	goes_on(r);
	rig_free(r);
}

/* All queue pairs are gone, and none can be made anew: the connection ends, as with a get. */
static void device__way_is_cut(void **state)
{
	const struct gx_opts hasty = {.host = GX_WITH(gx_host_opts, .pull = GX_PULL_ON),
				      .peer_timeout_ns = 500000000};
	struct rig *r = rig_of(hasty, hasty);

	begin_held(r);
	script.lossy = true;
	r->hold = false;
	UNTIL(r, both_ended(r, 1) && atomic_load(&r->client.nr_down) == 1);
	assert_int_equal(r->client.nr_failed + r->server.nr_failed, 2);
	nothing_lands(r);
	rig_free(r);
}

static void device__gone(void **state)
{
	struct rig *r = rig_up(2);

	begin_held(r);
	script.gone = true;
	script.fatal_events = 2;
	UNTIL(r, both_ended(r, 1));
	assert_int_equal(r->client.nr_failed + r->server.nr_failed, 2);
	rig_free(r);
}

static void conn__closed_while_busy(void **state)
{
	for (unsigned i = 0; i < 2; i++) {
		struct rig *r = rig_up(3);
		struct end *e = i ? &r->server : &r->client, *other = i ? &r->client : &r->server;

		begin_held(r);
		gx_conn_close(e->conn);
		UNTIL(r, both_ended(r, 1));
		assert_int_equal(e->status, -ECANCELED);
		assert_int_equal(other->nr_failed, 1);
		nothing_lands(r);
		gx_conn_close(other->conn);
		UNTIL(r, !script.nr_qps);
		rig_free(r);
	}
}

/* ---- Peers that lie ---- */

static struct pkt_offer *offer_of(struct rig *r)
{
	struct pkt_ep *e = &ep_of(&r->client)->pkt;

	UNTIL(r, e->match.nr_offers == 1);
	for (unsigned i = 0; i < PKT_SLOTS; i++)
		if (e->offers[i].used)
			return &e->offers[i];
	return NULL;
}

static void refused(struct rig *r, int server_err, int client_err)
{
	UNTIL(r, both_ended(r, 1));
	assert_int_equal(r->server.status, server_err);
	assert_int_equal(r->client.status, client_err);
	assert_int_equal(script.nr_reads, 0);
	goes_on(r);
	rig_free(r);
}

/* A message that is longer than the receive. */
static void hostile__longer_than_the_receive(void **state)
{
	struct rig *r = rig_up(1);

	post_of(&r->server, GX_OP_RECV, 0, LONG_B);
	offer_of(r)->len = KV_B;
	post_of(&r->client, GX_OP_SEND, 0, LONG_B + 1);
	UNTIL(r, r->client.nr_done == 1);
	assert_int_equal(r->server.nr_done, 0); /* as with packets: it waits for another message */
	assert_int_equal(common_cancel(r->server.ep, 7), 1);
	refused(r, -ECANCELED, -EMSGSIZE);
}

/* A key for a receive that was not offered so: the device does not know its memory. */
static void hostile__not_offered(void **state)
{
	struct rig *r = rig_up(1);
	struct gx_op op = {.kind = GX_OP_RECV, .len = LONG_B, .tag = 3};
	char *plain = calloc(1, LONG_B);

	assert_non_null(plain);
	op.addr = plain;
	post(&r->server, &op);
	assert_false(offer_of(r)->qps);
	offer_of(r)->qps = true;
	post_of(&r->client, GX_OP_SEND, 0, LONG_B);
	refused(r, -EPROTO, -EPROTO);
	free(plain);
}

/* A key that is none. */
static void hostile__wrong_key(void **state)
{
	struct rig *r = rig_up(1);
	uint32_t *key = &verbs_reg_of(r->client.kv)->lent.key[0], was = *key;

	*key = 0xf000;
	begin(r, LONG_B);
	UNTIL(r, both_ended(r, 1));
	*key = was;
	refused(r, -ECANCELED, -ECANCELED);
}

/* ---- Memory of a GPU ---- */

static struct gx_mem *mem_of(struct end *e, bool gpu)
{
	struct gx_mem *mem;

	assert_int_equal(gx_mem_alloc(e->gx, gpu ? GX_MEM_CUDA : GX_MEM_HOST, 0, LONG_B, &mem), 0);
	return mem;
}

/* Where the device takes its dma-buf, and by packets where not. */
static void gpu_send(bool from_gpu, bool to_gpu, bool refused)
{
	struct rig *r = rig_new("script0", "script1");
	struct gx_op send = {.kind = GX_OP_SEND, .len = LONG_B, .tag = 3},
		     recv = {.kind = GX_OP_RECV, .len = LONG_B, .tag = 3};
	char *bytes = malloc(LONG_B), *got = calloc(1, LONG_B);

	assert_true(bytes && got);
	fill(bytes, LONG_B, 7);
	script.no_dmabuf = refused;
	send.mem = mem_of(&r->client, from_gpu);
	recv.mem = mem_of(&r->server, to_gpu);
	assert_int_equal(rig_connect(r, 2), 0);
	assert_int_equal(gx_mem_copy_in(send.mem, 0, bytes, LONG_B), 0);
	post(&r->server, &recv);
	post(&r->client, &send);
	UNTIL(r, both_ended(r, 1));
	assert_int_equal(r->client.nr_failed + r->server.nr_failed, 0);
	assert_int_equal(gx_mem_copy_out(recv.mem, 0, got, LONG_B), 0);
	assert_memory_equal(got, bytes, LONG_B);
	assert_int_equal(stat_of(&r->client, "verbs_sends"), !refused);
	assert_int_equal(stat_of(&r->client, "verbs_misses"), refused && from_gpu);
	assert_int_equal(stat_of(&r->server, "verbs_misses"), refused && to_gpu);
	rig_free(r);
	free(bytes);
	free(got);
}

static void gpu__at_each_end(void **state)
{
	for (unsigned i = 1; i < 4; i++)
		for (unsigned refused = 0; refused < 2; refused++)
			gpu_send(i & 1, i & 2, refused);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(send__sizes_around_the_limit),
		cmocka_unit_test(order__of_one_tag),
		cmocka_unit_test(send__many),
		cmocka_unit_test(send__both_ways),
		cmocka_unit_test(send__ends_with_all_bytes),
		cmocka_unit_test(send__over_several_devices),
		cmocka_unit_test(send__one_device_refuses),
		cmocka_unit_test(send__limits_of_both_ends),
		cmocka_unit_test(send__where_an_end_takes_no_part),
		cmocka_unit_test(send__memory_without_a_registration),
		cmocka_unit_test(cancel__at_the_sender),
		cmocka_unit_test(cancel__at_the_receiver),
		cmocka_unit_test(cancel__before_it_is_read),
		cmocka_unit_test(deadline__at_each_end),
		cmocka_unit_test(freed__at_the_sender),
		cmocka_unit_test(freed__often),
		cmocka_unit_test(freed__while_the_core_turns),
		cmocka_unit_test(freed__and_not_given_back),
		cmocka_unit_test(freed__at_the_receiver),
		cmocka_unit_test(qp__fails),
		cmocka_unit_test(device__reads_wrong),
		cmocka_unit_test(device__way_is_cut),
		cmocka_unit_test(device__gone),
		cmocka_unit_test(conn__closed_while_busy),
		cmocka_unit_test(hostile__longer_than_the_receive),
		cmocka_unit_test(hostile__not_offered),
		cmocka_unit_test(hostile__wrong_key),
	};

	const struct CMUnitTest gpu[] = {cmocka_unit_test(gpu__at_each_end)};

	if (argc > 1 && !strcmp(argv[1], "cuda")) /* on a GPU, or what passes for one */
		return cmocka_run_group_tests(gpu, NULL, NULL);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
