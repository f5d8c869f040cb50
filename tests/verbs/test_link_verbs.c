/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs link between two contexts of one process, whose devices are scripted (verbs_script.h):
 * who gets the link and why not, what goes by packets beside it, failures, and ends that leave
 * nothing behind. Lanes by themselves are in test_verbs_lane.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gx/gx.h"
#include "gx_internal/base.h"

#include <cmocka.h>

#include "core/core.h"
#include "kit/common_gx.h"
#include "packet/pkt.h"
#include "verbs/verbs_rig.h"

/* Peer time-out of ends whose path is cut: a quarter of the time in which they give it up. Where
 * this program has no CPU for so long, its cores have not seen that a queue pair failed in vain,
 * and the reason is another one. */
#define CUT_NS 1250000000

/* ---- Tests ---- */

static void connect__takes_it(void **state)
{
	struct rig *r = rig_up(5);
	struct gx_conn_info info = GX_INIT(info);
	char text[4096];

	assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
	assert_string_equal(info.link, "verbs");
	assert_string_equal(info.port, "shm");
	assert_non_null(strstr(info.why, "link verbs: asked for"));
	assert_int_equal(script.nr_qps, 10);
	assert_true(gx_describe(r->client.gx, text, sizeof(text)) > 0);
	assert_non_null(strstr(text, "script0 port 2"));
	rig_free(r);
}

static int key_find(void *arg, const char *name, struct gx_auth_key *key)
{
	return -ENOENT;
}

/* Who gives a key is told at the start for whom the devices are. */
static void describe__key(void **state)
{
	static struct gx_auth_opts auth = {.size = sizeof(auth), .find = key_find};
	static struct gx_rail rail = {.device = "script0"};
	struct gx_verbs_opts verbs = {.size = sizeof(verbs), .rails = &rail, .nr_rails = 1};
	struct rig *r = rig_new_of((struct gx_opts){.verbs = &verbs},
				   (struct gx_opts){.verbs = &verbs, .auth = &auth});
	char text[8192];

	assert_true(gx_describe(r->server.gx, text, sizeof(text)) > 0);
	assert_non_null(strstr(text, "cannot be encrypted"));
	assert_true(gx_describe(r->client.gx, text, sizeof(text)) > 0);
	assert_null(strstr(text, "encrypted"));
	rig_free(r);
}

static void connect__refusals(void **state)
{
	struct rig *r = rig_new("script0", NULL);

	assert_int_equal(rig_connect(r, 0), -ENODEV); /* the server has none */
	assert_non_null(strstr(gx_error(), "gx_opts.verbs"));
	rig_free(r);
	r = rig_new(NULL, "script1");
	assert_int_equal(rig_connect(r, 0), -ENODEV); /* nor has the client */
	rig_free(r);
	r = rig_new("script0", "script1");
	assert_int_equal(rig_connect(r, 65), -EINVAL);
	rig_free(r);
}

/* No packet gets from one device to the other: the connection never says UP, and both ends hear
 * why. */
static void connect__path_is_cut(void **state)
{
	struct rig *r = rig_new("script0", "script1");

	script.lossy = true;
	assert_int_equal(rig_connect(r, 3), -ENETUNREACH);
	assert_non_null(strstr(gx_error(), "script0 (GID ::ffff:10.0.0.1)"));
	assert_non_null(strstr(gx_error(), "(GID ::ffff:10.0.0.2)"));
	assert_non_null(strstr(gx_error(), "UDP port 4791"));
	assert_null(atomic_load(&r->server.up));
	rig_free(r);
}

/* Only an answer that does not come is blamed on the path. */
static void connect__is_refused_otherwise(void **state)
{
	static const enum ibv_wc_status of[] = {IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR,
						IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_RESP_TIMEOUT_ERR};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(of); i++) {
		struct rig *r = rig_new("script0", "script1");

		script.mark_status = of[i];
		assert_int_equal(rig_connect(r, 3), i < 2 ? -EIO : -ENETUNREACH);
		assert_non_null(
			strstr(gx_error(), i < 2 ? "device failed: scripted" : "UDP port 4791"));
		rig_free(r);
	}
}

/* As many operations as gx_conn_info says, one call each, before a core or a device moves. */
static void post__takes_ops_max(void **state)
{
	struct rig *r = rig_up(2);
	struct gx_conn_info info = GX_INIT(info);

	assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
	assert_int_equal(info.ops_max, 256);
	assert_true(info.gets_max >= 64);
	for (uint32_t i = 0; i < info.ops_max; i++) {
		struct gx_op op =
			op_to(&r->client, i < info.gets_max ? GX_OP_GET : GX_OP_PUT, KV_B / 16);

		assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	}
	UNTIL(r, r->client.nr_done == info.ops_max);
	assert_int_equal(r->client.nr_failed, 0);
	rig_free(r);
}

/* It breaks later: the connection ends after four peer time-outs, with the reason. */
static void device__path_is_cut(void **state)
{
	struct rig *r = rig_up_within(2, CUT_NS);
	struct gx_op op = op_to(&r->client, GX_OP_PUT, KV_B);
	struct gx_conn_info info = GX_INIT(info);

	script.lossy = true;
	post(&r->client, &op);
	UNTIL(r, atomic_load(&r->client.nr_down) == 1 && r->client.nr_done == 1);
	assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
	assert_int_equal(info.err, -ENETUNREACH);
	assert_non_null(strstr(info.text, "no packet gets from script")); /* of either end */
	rig_free(r);
}

/* The server's port gets another address: the connection ends, and says which GID is gone; the next
 * one takes the new GID. */
static void device__gets_another_gid(void **state)
{
	struct rig *r = rig_up_within(2, CUT_NS);
	struct gx_conn_info info = GX_INIT(info);
	struct gx_op op;

	script.host[1] = 7;
	script_address(1);
	UNTIL(r, atomic_load(&r->client.nr_down) == 1 && atomic_load(&r->server.nr_down) == 1);
	assert_int_equal(gx_conn_info(r->server.conn, &info), 0);
	if (info.err != -ENETUNREACH)
		print_error("%s\n", info.text);
	assert_int_equal(info.err, -ENETUNREACH);
	assert_non_null(strstr(info.text, "(GID ::ffff:10.0.0.2, which its port has lost)"));
	gx_conn_close(r->client.conn);
	gx_conn_close(r->server.conn);
	assert_int_equal(rig_connect(r, 2), 0);
	op = op_to(&r->client, GX_OP_PUT, KV_B);
	post(&r->client, &op);
	UNTIL(r, r->client.nr_done == 1);
	assert_int_equal(r->client.nr_failed, 0);
	rig_free(r);
}

/* No address is found any more: the same end, with the same reason. */
static void device__finds_no_address(void **state)
{
	struct rig *r = rig_up_within(2, CUT_NS);
	struct gx_op op = op_to(&r->client, GX_OP_PUT, KV_B);
	struct gx_conn_info info = GX_INIT(info);
	uint64_t start_ns = gx_now();

	script.refuse_rtr = UINT32_MAX;
	script.rtr_err = ETIMEDOUT;
	script.fail_status = IBV_WC_RETRY_EXC_ERR;
	script.fail_qpn = SCRIPT_ANY;
	post(&r->client, &op);
	UNTIL(r, atomic_load(&r->client.nr_down) == 1 && r->client.nr_done == 1);
	assert_true(gx_now() - start_ns > 1000000000);
	assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
	assert_int_equal(info.err, -ENETUNREACH);
	assert_non_null(strstr(info.text, "no packet gets from script"));
	rig_free(r);
}

static void open__no_device(void **state)
{
	const struct gx_rail rail = {.device = "nosuch0"};
	struct gx_opts o = {.verbs = GX_WITH(gx_verbs_opts, .rails = &rail, .nr_rails = 1)};
	struct gx *gx;

	verbs_api_set(&script_api);
	assert_int_equal(common_gx_open(o, "shm", &gx), -ENODEV);
	assert_non_null(strstr(gx_error(), "nosuch0"));
	script_reset();
	verbs_api_set(NULL);
}

static void put_and_get(void)
{
	struct rig *r = rig_up(4);
	struct gx_op op = op_to(&r->client, GX_OP_PUT, KV_B);

	fill(r->client.base, KV_B, 1);
	op.flags = GX_OP_IMM;
	op.imm = 0xfedcba9876543210ull;
	post(&r->client, &op);
	UNTIL(r, r->client.nr_done == 1 && r->server.nr_notify == 1);
	assert_memory_equal(r->client.base, r->server.base, KV_B);
	assert_true(r->server.notify.imm == op.imm);
	fill(r->server.base, KV_B, 2);
	op = op_to(&r->client, GX_OP_GET, KV_B);
	post(&r->client, &op);
	UNTIL(r, r->client.nr_done == 2);
	assert_memory_equal(r->client.base, r->server.base, KV_B);
	assert_int_equal(r->client.nr_failed, 0);
	assert_int_equal(stat_of(&r->client, "verbs_puts"), 1);
	assert_int_equal(stat_of(&r->client, "verbs_gets"), 1);
	assert_int_equal(stat_of(&r->client, "verbs_misses"), 0);
	rig_free(r);
}

static void put__and_get(void **state)
{
	put_and_get();
	script.max_msg_b = 100000; /* of a device, less than a chunk of the connection */
	put_and_get();
}

/* Memory without a registration, and sends, go by packets beside it. */
static void packets__beside(void **state)
{
	struct rig *r = rig_up(1);
	struct gx_op op = op_to(&r->client, GX_OP_PUT, 65536);
	char *plain = malloc(65536), *room = calloc(1, 65536);

	assert_true(plain && room);
	fill(plain, 65536, 3);
	op.mem = NULL;
	op.addr = plain;
	post(&r->client, &op);
	UNTIL(r, r->client.nr_done == 1);
	assert_memory_equal(r->server.base, plain, 65536);
	assert_int_equal(stat_of(&r->client, "verbs_misses"), 1);
	op = (struct gx_op){.kind = GX_OP_RECV, .addr = room, .len = 65536, .tag = 4};
	post(&r->server, &op);
	op = (struct gx_op){.kind = GX_OP_SEND, .addr = plain, .len = 65536, .tag = 4};
	post(&r->client, &op);
	UNTIL(r, r->client.nr_done == 2 && r->server.nr_done == 1);
	assert_memory_equal(room, plain, 65536);
	rig_free(r);
	free(plain);
	free(room);
}

/* The control threads of both ends make it anew. */
static void qp__fails(void **state)
{
	struct rig *r = rig_up(4);
	struct gx_op op = op_to(&r->client, GX_OP_PUT, KV_B);

	op.flags = GX_OP_IMM;
	for (unsigned i = 0; i < 8; i++) {
		fill(r->client.base, KV_B, i);
		script.fail_status = IBV_WC_RETRY_EXC_ERR;
		script.fail_after = i;
		script.fail_qpn = SCRIPT_ANY;
		post(&r->client, &op);
		UNTIL(r, r->client.nr_done == i + 1 && r->server.nr_notify == i + 1);
		assert_memory_equal(r->client.base, r->server.base, KV_B);
	}
	assert_int_equal(r->client.nr_failed, 0);
	assert_int_equal(atomic_load(&r->client.nr_down) + atomic_load(&r->server.nr_down), 0);
	assert_true(stat_of(&r->client, "verbs_redone") > 0);
	rig_free(r);
}

static void region__freed(void **state)
{
	struct rig *r = rig_up(2);
	struct gx_op op = op_to(&r->client, GX_OP_PUT, 4096);

	assert_int_equal(gx_mem_free(r->server.kv), 0);
	post(&r->client, &op);
	UNTIL(r, r->client.nr_done == 1);
	assert_int_equal(r->client.status, -ESTALE);
	assert_int_equal(atomic_load(&r->client.nr_down), 0);
	rig_free(r);
}

/* The device keeps the registration for peers: they must not reach the memory all the same. */
static void region__is_not_given_back(void **state)
{
	struct rig *r = rig_up(2);
	struct gx_op op = op_to(&r->client, GX_OP_PUT, 4096);

	script.keep_mr = 2;
	r->forget = true;
	assert_int_equal(script_live(1), 2);
	assert_int_equal(gx_mem_free(r->server.kv), 0);
	assert_int_equal(script_live(1), 0); /* of those that could still write there */
	fill(r->client.base, 4096, 1);
	post(&r->client, &op);
	UNTIL(r, r->client.nr_done == 1);
	assert_int_equal(r->client.nr_failed, 1);
	UNTIL(r, atomic_load(&r->client.nr_down) == 1 && atomic_load(&r->server.nr_down) == 1);
	assert_int_equal(script.nr_writes, 0);
	rig_free(r);
}

/* Nor does it flush the queue pairs at once: it is asked until it does. */
static void region__is_not_flushed(void **state)
{
	struct rig *r = rig_up(2);

	script.keep_mr = 2;
	r->forget = true;
	script.refuse_err = 5;
	assert_int_equal(gx_mem_free(r->server.kv), 0);
	UNTIL(r, !script.refuse_err && !script_live(1));
	UNTIL(r, atomic_load(&r->client.nr_down) == 1 && atomic_load(&r->server.nr_down) == 1);
	rig_free(r);
}

static void conn__closed_while_busy(void **state)
{
	struct rig *r = rig_up(4);
	struct gx_op op = op_to(&r->client, GX_OP_PUT, KV_B);

	for (unsigned i = 0; i < 4; i++)
		post(&r->client, &op);
	gx_conn_close(r->client.conn);
	UNTIL(r, r->client.nr_done == 4 && atomic_load(&r->server.nr_down) == 1);
	assert_int_equal(r->client.status, -ECANCELED);
	UNTIL(r, script.nr_qps <= 4); /* the server's end waits for its own close */
	gx_conn_close(r->server.conn);
	UNTIL(r, !script.nr_qps);
	rig_free(r);
}

/* ---- The port beside it ---- */

static const struct gx_port_ops *looks_of; /* of the port itself */
static unsigned nr_looks[2];		   /* by half */

static unsigned looks_burst(struct gx_port_queue *q, enum gx_half half, struct gx_rx pkts[],
			    unsigned n)
{
	nr_looks[half]++;
	return looks_of->rx_burst(q, half, pkts, n);
}

/* 1000 turns of the client's core, 1 us apart. */
static unsigned looks_count(struct rig *r, uint64_t start_ns)
{
	memset(nr_looks, 0, sizeof(nr_looks));
	for (unsigned i = 0; i < 1000; i++)
		gx_core_turn(r->client.core, start_ns + i * 1000ull);
	return nr_looks[GX_HALF_CTL];
}

/* Each look may be two system calls. While the device does the work, and packets are few, a turn
 * looks seldom; with a message of packets under way each turn looks. */
static void packets__are_looked_for(void **state)
{
	struct rig *r = rig_up(2);
	struct gx_port_queue *q = pkt_of(r->client.ep)->link->q;
	struct gx_port_ops ops = *q->ops;
	struct gx_op op = op_to(&r->client, GX_OP_SEND, 64);
	uint64_t until_ns = gx_now() + 20000000;

	while (gx_now() < until_ns) /* the greetings of both ends */
		rig_turn(r);
	looks_of = q->ops;
	ops.rx_burst = looks_burst;
	q->ops = &ops;
	assert_in_range(looks_count(r, until_ns + 10000000), 1, 20);
	assert_in_range(nr_looks[GX_HALF_DATA], 0, 3);
	op.token = 0;
	post(&r->client, &op);
	assert_in_range(looks_count(r, until_ns + 12000000), 900, 1000);
	assert_in_range(nr_looks[GX_HALF_DATA], 900, 1000);
	q->ops = looks_of;
	rig_free(r);
}

/* The device answers for the peer. All the same the connection ends when the peer's core is silent. */
static void peer__core_is_asked(void **state)
{
	struct rig *r = rig_up_within(1, 2000000000);
	struct gx_op op = op_to(&r->client, GX_OP_PUT, 64);
	struct gx_conn_info info = GX_INIT(info);
	uint64_t until_ns = gx_now() + 3000000000;
	struct gx_comp comp;

	op.flags = GX_OP_SILENT;
	for (; gx_now() < until_ns; rig_turn(r)) /* it answers */
		post(&r->client, &op);
	assert_int_equal(atomic_load(&r->client.nr_down), 0);
	for (until_ns += WAIT_NS; !atomic_load(&r->client.nr_down) && gx_now() < until_ns;) {
		common_post(r->client.ep, &op, 1);
		script_run();
		gx_core_turn(r->client.core, gx_now());
		while (common_poll(r->client.core, &comp, 1))
			;
	}
	assert_int_equal(atomic_load(&r->client.nr_down), 1);
	assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
	assert_int_equal(info.err, -ETIMEDOUT);
	UNTIL(r, atomic_load(&r->server.nr_down) == 1);
	rig_free(r);
}

static uint64_t qps_lost(const struct end *e)
{
	return gx_stat_get(&e->core->loop.stats, GX_STAT_VERBS_QPS_LOST);
}

static void conn__many(void **state)
{
	struct rig *r = rig_new("script0", "script1");
	unsigned mrs = script.nr_mrs;

	for (unsigned i = 0; i < 20; i++) {
		struct gx_op op;

		assert_int_equal(rig_connect(r, 1 + i % 8), 0);
		op = op_to(&r->client, GX_OP_PUT, 65536);
		post(&r->client, &op);
		UNTIL(r, r->client.nr_done == i + 1);
		gx_conn_close(r->client.conn);
		gx_conn_close(r->server.conn);
		UNTIL(r, !script.nr_qps && !script.nr_cqs && script.nr_mrs == mrs);
	}
	assert_int_equal(qps_lost(&r->client) + qps_lost(&r->server), 0); /* an end is no loss */
	rig_free(r);
}

static void device__gone(void **state)
{
	struct rig *r = rig_up(2);
	struct gx_op op = op_to(&r->client, GX_OP_PUT, KV_B);
	struct gx_conn_info info = GX_INIT(info);

	post(&r->client, &op);
	script.gone = true;
	script.fatal_events = 2;
	UNTIL(r, r->client.nr_done == 1);
	assert_int_equal(r->client.nr_failed, 1);
	assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
	assert_int_equal(info.state, GX_CONN_STATE_DOWN);
	rig_free(r);
}

/* A device that keeps the requests of a queue pair in error: the connection ends, and the memory
 * comes back when the queue pairs are destroyed. */
static void device__does_not_flush(void **state)
{
	struct rig *r = rig_up_within(2, CUT_NS);
	struct gx_op op = op_to(&r->client, GX_OP_PUT, KV_B);

	script.no_flush = true;
	script.fail_status = IBV_WC_RETRY_EXC_ERR;
	script.fail_qpn = SCRIPT_ANY;
	post(&r->client, &op);
	UNTIL(r, r->client.nr_done == 1);
	assert_int_equal(r->client.status, -ENODEV);
	assert_int_equal(atomic_load(&r->client.nr_down), 1);
	rig_free(r);
}

/* A queue pair in error that says so by an event alone. */
static void device__says_it_by_an_event(void **state)
{
	struct rig *r = rig_up_within(1, 500000000);

	script.no_flush = true;
	script_break(0);
	UNTIL(r, atomic_load(&r->client.nr_down) == 1);
	script.no_flush = false;
	rig_free(r);
}

/* ---- Addresses that do not answer ---- */

#define LOOK_MS	 60000	      /* if the test does not end it */
#define QUICK_NS 30000000000u /* a call that waits for no look */
#define CALLS	 10
#define NR_DOWN	 (atomic_load(&r->client.nr_down) + atomic_load(&r->server.nr_down))

/* A call of the program at @e, which its control thread carries out, waits for no look. */
static void call(struct end *e)
{
	uint64_t start_ns = gx_now();
	struct gx_mem *mem;

	assert_int_equal(gx_mem_alloc(e->gx, GX_MEM_HOST, 0, 4096, &mem), 0);
	gx_mem_free(mem);
	assert_true(gx_now() - start_ns < QUICK_NS);
}

static void turn_and_call(struct rig *r)
{
	rig_turn(r);
	call(&r->server);
	call(&r->client);
}

static void turn_for(struct rig *r, uint64_t ns)
{
	uint64_t until_ns = gx_now() + ns;

	while (gx_now() < until_ns)
		rig_turn(r);
}

/* Until @looks are under way; and calls meanwhile. */
static void looks_begin(struct rig *r, unsigned looks)
{
	uint64_t until_ns = gx_now() + WAIT_NS;

	while (script.looks_now < looks && gx_now() < until_ns)
		turn_and_call(r);
	for (unsigned i = 0; i < CALLS; i++)
		turn_and_call(r);
	assert_int_equal(script.looks_now, looks);
}

static void unanswered(unsigned devices)
{
	script.unanswered = devices;
	script.look_ms = LOOK_MS;
}

/* The server finds none of the client: one look for all queue pairs of a path, all paths at a time,
 * and the client hears why. */
static void look__in_vain_at_set_up(void **state)
{
	static const char *const of[][2] = {{"script0", "script2"},
					    {"script0+script1", "script2+script3"}};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(of); i++) {
		struct gx_connect_opts o = GX_INIT(o);
		struct gx_conn_info info = GX_INIT(info);
		struct rig *r;

		script.more = 2;
		r = rig_new(of[i][0], of[i][1]);
		unanswered(1 << 2 | 1 << 3);
		o.link = "verbs";
		o.verbs = GX_WITH(gx_connect_verbs_opts, .queue_pairs = 16);
		assert_int_equal(gx_connect(r->client.gx, r->addr, &o, &r->client.conn), 0);
		looks_begin(r, i + 1);
		script.look_ends++;
		UNTIL(r, atomic_load(&r->client.nr_down) == 1);
		assert_int_equal(script.nr_looks, i + 1);
		assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
		assert_non_null(strstr(info.text, "does not reach the peer's"));
		rig_free(r);
	}
}

/* One that connects again and again takes nobody's time. */
static void look__in_vain_again_and_again(void **state)
{
	struct rig *r = rig_new("script0", "script1");

	unanswered(1 << 1);
	for (unsigned i = 0; i < 3; i++) {
		struct gx_connect_opts o = GX_INIT(o);

		o.link = "verbs";
		assert_int_equal(gx_connect(r->client.gx, r->addr, &o, &r->client.conn), 0);
		looks_begin(r, 1);
		script.look_ends++;
		UNTIL(r, atomic_load(&r->client.nr_down) == i + 1);
		gx_conn_close(r->client.conn);
	}
	script.unanswered = 0;
	assert_int_equal(rig_connect(r, 4), 0);
	rig_free(r);
}

/* A path is cut, whose queue pairs are tried again and again: those of the other are mended
 * meanwhile. */
static void look__in_vain_of_one_path(void **state)
{
	uint64_t until_ns;
	struct gx_op op;
	struct rig *r;

	script.more = 2;
	r = rig_new("script0+script1", "script2+script3");
	assert_int_equal(rig_connect(r, 8), 0);
	unanswered(1 << 2);
	script_break(2);
	looks_begin(r, 1);
	script_break(3);
	assert_int_equal(script_live(3), 0);
	until_ns = gx_now() + WAIT_NS;
	while (script_live(3) < 4 && gx_now() < until_ns)
		turn_and_call(r);
	assert_int_equal(script_live(3), 4);
	assert_int_equal(script_live(2), 0);
	op = op_to(&r->client, GX_OP_PUT, KV_B);
	fill(r->client.base, KV_B, 5);
	post(&r->client, &op);
	UNTIL(r, r->client.nr_done == 1);
	assert_memory_equal(r->client.base, r->server.base, KV_B);
	script.unanswered = 0;
	script.look_ends++;
	UNTIL(r, script_live(2) == 4);
	assert_int_equal(NR_DOWN, 0);
	rig_free(r);
}

/* The only path, at both ends: the connection ends with the patience. */
static void look__in_vain_of_the_only_path(void **state)
{
	struct rig *r = rig_up_within(8, CUT_NS);
	struct gx_conn_info info = GX_INIT(info);

	unanswered(1 << 0 | 1 << 1);
	script_break(1);
	looks_begin(r, 2);
	script.look_ms = 300;
	script.look_ends++;
	UNTIL(r, atomic_load(&r->client.nr_down) == 1);
	assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
	assert_int_equal(info.err, -ENETUNREACH);
	rig_free(r);
}

/* A context is closed while its device looks for an address, of a connection that is set up and of one
 * that is up; the device is removed meanwhile. */
static void look__and_the_end(void **state)
{
	for (unsigned i = 0; i < 4; i++) {
		struct rig *r = i & 1 ? rig_up(8) : rig_new("script0", "script1");
		struct gx_connect_opts o = GX_INIT(o);

		unanswered(1 << 1);
		script.look_ms = 500;
		o.link = "verbs";
		if (i & 1)
			script_break(1);
		else
			assert_int_equal(gx_connect(r->client.gx, r->addr, &o, &r->client.conn), 0);
		UNTIL(r, script.nr_looks);
		if (i & 2)
			script_remove(1);
		rig_free(r);
	}
}

/* The peer begins a life more while our end is being connected. */
static void look__and_the_peer_begins_anew(void **state)
{
	struct rig *r = rig_up(4);
	struct gx_op op = op_to(&r->client, GX_OP_PUT, KV_B);

	script.slow_rtr_ms = 400;
	script_break(0);
	turn_for(r, 200000000);
	script_break(0);
	script_break(1);
	turn_for(r, 200000000);
	script.slow_rtr_ms = 0;
	fill(r->client.base, KV_B, 5);
	post(&r->client, &op);
	UNTIL(r, r->client.nr_done == 1 && script_live(0) == 4 && script_live(1) == 4);
	assert_int_equal(r->client.nr_failed, 0);
	assert_memory_equal(r->client.base, r->server.base, KV_B);
	assert_int_equal(NR_DOWN, 0);
	rig_free(r);
}

/* Addresses are found slowly, and all queue pairs fail: all come back. */
static void device__is_slow(void **state)
{
	struct rig *r = rig_up(16);
	struct gx_op op = op_to(&r->client, GX_OP_PUT, KV_B);
	unsigned before = script.nr_rtr;

	script.slow_rtr_ms = 40;
	script_break(0);
	UNTIL(r, script.nr_rtr - before >= 32);
	fill(r->client.base, KV_B, 5);
	post(&r->client, &op);
	UNTIL(r, r->client.nr_done == 1);
	assert_memory_equal(r->client.base, r->server.base, KV_B);
	assert_int_equal(atomic_load(&r->client.nr_down) + atomic_load(&r->server.nr_down), 0);
	rig_free(r);
}

/* ---- Fork ---- */

static bool fd_is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static bool page_is_mapped(void *page)
{
	unsigned char vec;

	return !mincore(page, 4096, &vec);
}

/* What does a child have? Return: its descriptors and pages, of @devices, as a number. */
static int in_child(unsigned devices, const struct script *of)
{
	pid_t pid = fork();
	int status = 0, n = 0;

	if (!pid) {
		for (unsigned i = 0; i < devices; i++)
			n += fd_is_open(of->cmd_fd[i]) + fd_is_open(of->async_fd[i]) +
			     (of->page[i] && page_is_mapped(of->page[i]));
		_exit(n);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Else the kernel would keep queue pairs and registrations of a process that has died. */
static void fork__child_keeps_no_device(void **state)
{
	struct rig *r = rig_up(4);
	struct script was;
	int fd[4];

	assert_true(script.page[0] && script.page[1]);
	assert_int_equal(in_child(2, &script), 0);
	assert_true(fd_is_open(script.cmd_fd[0]) && page_is_mapped(script.page[0]));
	was = script;
	rig_free(r);
	memset(was.page, 0, sizeof(was.page));
	for (unsigned i = 0; i < 4; i++) { /* others have the numbers now */
		fd[i] = i & 1 ? was.async_fd[i / 2] : was.cmd_fd[i / 2];
		assert_int_equal(dup2(STDERR_FILENO, fd[i]), fd[i]);
	}
	assert_int_equal(in_child(2, &was), 4);
	for (unsigned i = 0; i < 4; i++)
		close(fd[i]);
}

/* ---- Several devices ---- */

/* Through HELLO, CONNECT and ACCEPT: both ends know two devices, or one of them one. */
static void rails__connect(void **state)
{
	static const char *const of[][2] = {{"script0+script1", "script2+script3"},
					    {"script0", "script2+script3"},
					    {"script0+script1", "script2"}};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(of); i++) {
		struct gx_conn_info info = GX_INIT(info);
		struct gx_op op;
		struct rig *r;

		script.more = 2;
		r = rig_new(of[i][0], of[i][1]);
		assert_int_equal(rig_connect(r, 0), 0);
		op = op_to(&r->client, GX_OP_PUT, KV_B);
		fill(r->client.base, KV_B, i);
		post(&r->client, &op);
		UNTIL(r, r->client.nr_done == 1);
		assert_memory_equal(r->client.base, r->server.base, KV_B);
		assert_int_equal(r->client.nr_failed, 0);
		assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
		assert_non_null(strstr(info.why, "script0 to its rail 0: 2 queue pairs"));
		rig_free(r);
	}
}

static void rails__all(void **state)
{
	struct rig *r;
	char text[8192];

	script.more = 1;
	r = rig_new("all", NULL);
	assert_true(gx_describe(r->client.gx, text, sizeof(text)) > 0);
	for (unsigned i = 0; i < 3; i++) {
		char line[32];

		snprintf(line, sizeof(line), "verbs    script%u port 2", i);
		assert_non_null(strstr(text, line));
	}
	rig_free(r);
}

static void rails__refusals(void **state)
{
	static const struct {
		struct gx_rail rail[3];
		unsigned nr;
		bool all, no_list;
	} bad[] = {{{{"script0"}, {"script0"}}, 2},		 /* twice */
		   {{{"script0"}, {"nosuch0"}}, 2},		 /* none */
		   {{{"script0"}, {"script1"}}, 2, .all = true}, /* of which they are some */
		   {{{"script0"}, {"script1"}}, 9},		 /* too many */
		   {{{"script0"}}, 1, .no_list = true},
		   {{{"script0"}, {"script1", .port = 9}}, 2}, /* no such port */
		   {{{"script0", .port = 256}}, 1},
		   {{{"script0", .gid = 256, .has_gid = true}}, 1},
		   {{{"script0", .sl = 16}}, 1}};
	struct gx *gx;

	verbs_api_set(&script_api);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		struct gx_opts o = {.verbs = GX_WITH(gx_verbs_opts,
						     .rails = bad[i].no_list ? NULL : bad[i].rail,
						     .nr_rails = bad[i].nr, .all = bad[i].all)};

		assert_true(common_gx_open(o, "shm", &gx) < 0);
	}
	script_reset();
	verbs_api_set(NULL);
}

/* The client's first device is removed in mid-transfer; then the other one, which ends it. */
static void rails__removed(void **state)
{
	struct gx_conn_info info = GX_INIT(info);
	struct gx_op op;
	struct rig *r;

	script.more = 2;
	r = rig_new("script0+script1", "script2+script3");
	assert_int_equal(rig_connect(r, 4), 0);
	op = op_to(&r->client, GX_OP_PUT, KV_B);
	op.flags = GX_OP_IMM;
	fill(r->client.base, KV_B, 1);
	post(&r->client, &op);
	script_remove(0);
	UNTIL(r, r->client.nr_done == 1 && r->server.nr_notify == 1);
	assert_memory_equal(r->client.base, r->server.base, KV_B);
	assert_int_equal(r->client.nr_failed, 0);
	post(&r->client, &op);
	UNTIL(r, r->client.nr_done == 2);
	assert_int_equal(atomic_load(&r->client.nr_down) + atomic_load(&r->server.nr_down), 0);
	script_remove(1);
	UNTIL(r, atomic_load(&r->client.nr_down) == 1);
	assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
	assert_int_equal(info.err, -ENODEV);
	assert_non_null(strstr(info.text, "script0 (removed), script1 ("));
	rig_free(r);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(connect__takes_it),
		cmocka_unit_test(describe__key),
		cmocka_unit_test(connect__refusals),
		cmocka_unit_test(connect__path_is_cut),
		cmocka_unit_test(connect__is_refused_otherwise),
		cmocka_unit_test(post__takes_ops_max),
		cmocka_unit_test(device__path_is_cut),
		cmocka_unit_test(device__gets_another_gid),
		cmocka_unit_test(device__finds_no_address),
		cmocka_unit_test(open__no_device),
		cmocka_unit_test(put__and_get),
		cmocka_unit_test(packets__beside),
		cmocka_unit_test(qp__fails),
		cmocka_unit_test(region__freed),
		cmocka_unit_test(region__is_not_given_back),
		cmocka_unit_test(region__is_not_flushed),
		cmocka_unit_test(conn__closed_while_busy),
		cmocka_unit_test(packets__are_looked_for),
		cmocka_unit_test(peer__core_is_asked),
		cmocka_unit_test(conn__many),
		cmocka_unit_test(device__gone),
		cmocka_unit_test(device__does_not_flush),
		cmocka_unit_test(device__says_it_by_an_event),
		cmocka_unit_test(fork__child_keeps_no_device),
		cmocka_unit_test(look__in_vain_at_set_up),
		cmocka_unit_test(look__in_vain_again_and_again),
		cmocka_unit_test(look__in_vain_of_one_path),
		cmocka_unit_test(look__in_vain_of_the_only_path),
		cmocka_unit_test(look__and_the_end),
		cmocka_unit_test(look__and_the_peer_begins_anew),
		cmocka_unit_test(device__is_slow),
		cmocka_unit_test(rails__connect),
		cmocka_unit_test(rails__all),
		cmocka_unit_test(rails__refusals),
		cmocka_unit_test(rails__removed),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
