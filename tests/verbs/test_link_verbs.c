/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs link between two contexts of one process, whose devices are scripted (verbs_script.h):
 * who gets the link and why not, what goes by packets beside it, failures, and ends that leave
 * nothing behind. Lanes by themselves are in test_verbs_lane.c.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gx/gx.h"
#include "gx_internal/base.h"

#include <cmocka.h>

#include "core/core.h"
#include "kit/common_gx.h"
#include "packet/pkt.h"
#include "verbs/verbs_script.h"

#define KV_B	(4u << 20)
#define WAIT_NS 30000000000ull

struct end {
	struct gx *gx;
	struct gx_core *core;
	struct gx_mem *kv;
	char *base;
	_Atomic(struct gx_conn *) up;
	_Atomic unsigned nr_down;
	struct gx_conn *conn;
	struct gx_ep *ep;
	unsigned nr_done, nr_notify, nr_failed;
	int status;
	struct gx_comp note;
};

struct rig {
	struct end server, client;
	char addr[32];
	bool forget; /* the devices keep something for good */
};

static void on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		    const char *why)
{
	struct end *e = arg;

	if (event == GX_CONN_EVENT_UP)
		atomic_store(&e->up, conn);
	else
		atomic_fetch_add(&e->nr_down, 1);
}

static void end_open(struct end *e, const char *device, bool server, uint64_t timeout_ns)
{
	struct gx_opts o = {.server = server,
			    .verbs = device,
			    .on_conn = on_conn,
			    .arg = e,
			    .peer_timeout_ns = timeout_ns};

	*e = (struct end){0};
	assert_int_equal(common_gx_open(o, "shm", &e->gx), 0);
	e->core = gx_core(e->gx, 0);
	assert_int_equal(gx_mem_alloc(e->gx, GX_MEM_HOST, 0, KV_B, &e->kv), 0);
	assert_int_equal(gx_mem_share(e->kv, "kv", GX_ACCESS_PUT | GX_ACCESS_GET), 0);
	e->base = gx_mem_addr(e->kv);
}

static void take(struct end *e)
{
	struct gx_comp comp;

	while (gx_poll(e->core, &comp, 1)) {
		if (comp.kind == GX_COMP_NOTIFY) {
			e->nr_notify++;
			e->note = comp;
		}
		if (comp.kind != GX_COMP_DONE)
			continue;
		e->nr_done++;
		if (comp.status) {
			e->nr_failed++;
			e->status = comp.status;
		}
	}
}

static void turn(struct rig *r)
{
	gx_core_turn(r->server.core, gx_now());
	gx_core_turn(r->client.core, gx_now());
	script_run();
	take(&r->server);
	take(&r->client);
}

#define UNTIL(r, cond)                                                                             \
	do {                                                                                       \
		uint64_t until_ = gx_now() + WAIT_NS;                                              \
		while (!(cond) && gx_now() < until_)                                               \
			turn(r);                                                                   \
		assert_true(cond);                                                                 \
	} while (0)

static struct rig *rig_new_within(const char *client, const char *server, uint64_t timeout_ns)
{
	struct rig *r = calloc(1, sizeof(*r));
	int port;

	assert_non_null(r);
	verbs_api_set(&script_api);
	end_open(&r->server, server, true, timeout_ns);
	end_open(&r->client, client, false, timeout_ns);
	port = gx_listen(r->server.gx, "127.0.0.1:0");
	assert_true(port > 0);
	snprintf(r->addr, sizeof(r->addr), "127.0.0.1:%d", port);
	return r;
}

static struct rig *rig_new(const char *client, const char *server)
{
	return rig_new_within(client, server, 0);
}

static int rig_connect(struct rig *r, unsigned queue_pairs)
{
	struct gx_connect_opts o = GX_INIT(o);
	uint64_t until_ns = gx_now() + WAIT_NS;
	int ret;

	o.link = "verbs";
	o.queue_pairs = queue_pairs;
	atomic_store(&r->server.up, NULL);
	ret = gx_connect(r->client.gx, r->addr, &o, &r->client.conn);
	if (ret)
		return ret;
	do { /* the devices move nothing by themselves */
		turn(r);
		ret = gx_conn_wait(r->client.conn, 1000000);
	} while (ret == -ETIMEDOUT && gx_now() < until_ns);
	if (ret)
		return ret;
	UNTIL(r, atomic_load(&r->server.up));
	r->client.ep = gx_conn_ep(r->client.conn, 0);
	r->server.conn = atomic_load(&r->server.up);
	r->server.ep = gx_conn_ep(r->server.conn, 0);
	return 0;
}

static struct rig *rig_up_within(unsigned queue_pairs, uint64_t timeout_ns)
{
	struct rig *r = rig_new_within("script0", "script1", timeout_ns);

	assert_int_equal(rig_connect(r, queue_pairs), 0);
	return r;
}

static struct rig *rig_up(unsigned queue_pairs)
{
	return rig_up_within(queue_pairs, 0);
}

static void rig_free(struct rig *r)
{
	gx_close(r->client.gx);
	gx_close(r->server.gx);
	if (r->forget)
		script_forget();
	free(r);
	script_reset(); /* nothing was left behind */
	verbs_api_set(NULL);
}

static struct gx_op op_to(struct end *e, enum gx_op_kind kind, uint64_t len)
{
	struct gx_region kv = GX_INIT(kv);

	assert_int_equal(gx_conn_region(e->conn, "kv", 0, &kv), 0);
	return (struct gx_op){.kind = kind, .user = 7, .mem = e->kv, .len = len, .token = kv.token};
}

static void post(struct end *e, const struct gx_op *op)
{
	assert_int_equal(gx_post(e->ep, op, 1), 1);
}

static void fill(char *p, uint64_t len, unsigned seed)
{
	for (uint64_t i = 0; i < len; i++)
		p[i] = (char)(i * 7 + i / 251 + seed);
}

static uint64_t stat_of(const struct end *e, const char *name)
{
	uint64_t v = 0;

	assert_int_equal(gx_core_stat(e->core, name, &v), 0);
	return v;
}

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
static void connect__way_is_cut(void **state)
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

/* It breaks later: the connection ends after four peer time-outs, with the reason. */
static void device__way_is_cut(void **state)
{
	struct rig *r = rig_up_within(2, 500000000);
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

/* No address is found any more: the same end, with the same reason. */
static void device__finds_no_address(void **state)
{
	struct rig *r = rig_up_within(2, 500000000);
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
	struct gx_opts o = {.verbs = "nosuch0"};
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
	assert_true(r->server.note.imm == op.imm);
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
	assert_int_equal(r->client.status, -ENOENT);
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
static unsigned nr_looks;

static unsigned looks_burst(struct gx_port_queue *q, enum gx_half half, struct gx_rx pkts[],
			    unsigned n)
{
	nr_looks += half == GX_HALF_DATA;
	return looks_of->rx_burst(q, half, pkts, n);
}

/* 1000 turns of the client's core, 1 us apart. */
static unsigned looks_count(struct rig *r, uint64_t start_ns)
{
	nr_looks = 0;
	for (unsigned i = 0; i < 1000; i++)
		gx_core_turn(r->client.core, start_ns + i * 1000ull);
	return nr_looks;
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
		turn(r);
	looks_of = q->ops;
	ops.rx_burst = looks_burst;
	q->ops = &ops;
	assert_in_range(looks_count(r, until_ns + 10000000), 1, 100);
	op.token = 0;
	post(&r->client, &op);
	assert_in_range(looks_count(r, until_ns + 12000000), 900, 1000);
	q->ops = looks_of;
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
	struct rig *r = rig_up_within(2, 500000000);
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

/* The control threads find the peer's address slowly, and all queue pairs fail: a second later, no
 * more were connected than the budget allows; then all come back. */
static void device__is_slow(void **state)
{
	struct rig *r = rig_up(16);
	struct gx_op op = op_to(&r->client, GX_OP_PUT, KV_B);
	uint64_t until_ns = gx_now() + 1500000000;
	unsigned before = script.nr_rtr;

	script.slow_rtr_ms = 40;
	script_break(0);
	while (gx_now() < until_ns)
		turn(r);
	assert_in_range(script.nr_rtr - before, 2, 2 * 14);
	script.slow_rtr_ms = 0;
	UNTIL(r, script.nr_rtr - before >= 32);
	fill(r->client.base, KV_B, 5);
	post(&r->client, &op);
	UNTIL(r, r->client.nr_done == 1);
	assert_memory_equal(r->client.base, r->server.base, KV_B);
	assert_int_equal(atomic_load(&r->client.nr_down) + atomic_load(&r->server.nr_down), 0);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(connect__takes_it),
		cmocka_unit_test(connect__refusals),
		cmocka_unit_test(connect__way_is_cut),
		cmocka_unit_test(connect__is_refused_otherwise),
		cmocka_unit_test(device__way_is_cut),
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
		cmocka_unit_test(conn__many),
		cmocka_unit_test(device__gone),
		cmocka_unit_test(device__does_not_flush),
		cmocka_unit_test(device__says_it_by_an_event),
		cmocka_unit_test(device__is_slow),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
