/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers that stand still in front of one that does not: what is under way to the ones never stops
 * lists, notes and puts to the other. Real links, one thread, which turns all cores; a peer stands
 * still when the thread does not turn its core. Usage: test_slow_peers LINK [TEST]
 */
#include "gx/gx.h"
#include "gx_internal/base.h"

#include <errno.h>
#include <stdlib.h>

#include "kit/common_gx.h"

#define STILL	24
#define SEGS	1024
#define SEG_B	(20u << 10) /* of a list; a message each, as it is more than shares packets */
#define STEP	(24u << 10)
#define KV_B	(SEGS * STEP)
#define LIMIT_S 60 /* several times what a busy machine needs; the peer time-out is longer */

static const char *link_name = "packet";
static struct gx *client, *still, *healthy;
static struct gx_conn *conn[STILL], *good;
static struct gx_region kv;
static struct gx_queue *queue;
static struct gx_seg segs[SEGS];
static char *src;
static unsigned nr_done; /* operations with the healthy peer */

static void take(struct gx_queue *q)
{
	struct gx_comp comps[64];
	unsigned n;

	while ((n = gx_poll(q, comps, 64)))
		for (unsigned i = 0; i < n; i++)
			if (comps[i].ep && gx_ep_conn(comps[i].ep) == good) {
				assert_int_equal(comps[i].status, 0);
				nr_done++;
			}
}

/* The core that no longer turns is that of @still. */
static void turn(bool all)
{
	struct gx_comp comp;

	gx_core_turn(gx_core(client, 0), gx_now_ns());
	gx_core_turn(gx_core(healthy, 0), gx_now_ns());
	while (gx_poll(gx_core_queue(gx_core(healthy, 0)), &comp, 1))
		;
	if (all)
		gx_core_turn(gx_core(still, 0), gx_now_ns());
	take(queue);
	take(gx_core_queue(gx_core(client, 0)));
}

static struct gx *server_open(char addr[32])
{
	struct gx_opts o = {
		.server = true, .on_conn = common_gx_on_conn, .peer_timeout_ns = 600000000000ull};
	struct gx *gx;

	assert_int_equal(common_gx_open(o, "shm", &gx), 0);
	common_gx_kv(gx, GX_MEM_HOST, KV_B);
	common_gx_listen(gx, addr);
	return gx;
}

static int setup(void **state)
{
	struct gx_opts o = {.peer_timeout_ns = 600000000000ull};
	struct gx_queue_opts qo = GX_INIT(qo);
	char at_still[32], at_healthy[32];

	still = server_open(at_still);
	healthy = server_open(at_healthy);
	assert_int_equal(common_gx_open(o, "shm", &client), 0);
	qo.depth = 1024;
	assert_int_equal(gx_queue_open(client, &qo, &queue), 0);
	for (unsigned i = 0; i < STILL; i++)
		conn[i] = common_gx_connect(client, at_still, link_name);
	good = common_gx_connect(client, at_healthy, link_name);
	for (unsigned i = 0; i < 2000; i++)
		turn(true);
	src = calloc(1, KV_B);
	nr_done = 0;
	return 0;
}

static int teardown(void **state)
{
	gx_close(client);
	gx_close(healthy);
	gx_close(still);
	free(src);
	return 0;
}

static struct gx_op list_to(struct gx_conn *c)
{
	kv = (struct gx_region)GX_INIT(kv);
	assert_int_equal(gx_conn_region(c, "kv", 0, &kv), 0);
	for (unsigned i = 0; i < SEGS; i++)
		segs[i] = (struct gx_seg){.off = (uintptr_t)src + i * STEP,
					  .token = kv.token,
					  .remote_off = i * STEP,
					  .len = SEG_B};
	return (struct gx_op){.kind = GX_OP_PUT, .segs = segs, .nr_segs = SEGS};
}

static struct gx_op note_of(void)
{
	return (struct gx_op){.kind = GX_OP_PUT,
			      .flags = GX_OP_NOTE,
			      .note = "a note of its own",
			      .note_len = 17};
}

/* All of these on each endpoint whose peer stands still, as long as gx takes them. */
static void fill(struct gx_queue *q, struct gx_op *op, unsigned max)
{
	for (unsigned n = 0; n < max; n++)
		for (unsigned i = 0; i < STILL; i++) {
			struct gx_op one = *op;

			one.token = op->len ? kv.token : 0;
			gx_post(q, gx_conn_ep(conn[i], 0), &one, 1);
			if (!(i % 8))
				turn(false);
		}
}

static void fill_lists(struct gx_queue *q, unsigned max)
{
	for (unsigned n = 0; n < max; n++)
		for (unsigned i = 0; i < STILL; i++) {
			struct gx_op op = list_to(conn[i]);

			gx_post(q, gx_conn_ep(conn[i], 0), &op, 1);
			turn(false);
		}
}

/* It is taken, and it ends. */
static void passes(struct gx_queue *q, struct gx_op op)
{
	uint64_t end = gx_now_ns() + LIMIT_S * 1000000000ull;
	unsigned want = nr_done + 1;
	int ret;

	while ((ret = gx_post(q, gx_conn_ep(good, 0), &op, 1)) != 1) {
		if (gx_now_ns() > end)
			fail_msg("not taken: %d", ret);
		turn(false);
	}
	while (nr_done < want) {
		if (gx_now_ns() > end)
			fail_msg("it was taken, and does not end");
		turn(false);
	}
}

static void all_pass(struct gx_queue *q)
{
	struct gx_op op = note_of();

	passes(q, op);
	passes(q, list_to(good));
	op = (struct gx_op){.kind = GX_OP_PUT, .addr = src, .len = 100, .token = kv.token};
	passes(q, op);
	op.kind = GX_OP_GET;
	passes(q, op);
}

static void slow__lists(void **state)
{
	fill_lists(queue, 2);
	all_pass(queue);
	fill_lists(gx_core_queue(gx_core(client, 0)), 4);
	all_pass(gx_core_queue(gx_core(client, 0)));
}

static void slow__notes(void **state)
{
	struct gx_op op = note_of();

	fill(gx_core_queue(gx_core(client, 0)), &op, 80);
	all_pass(queue);
	all_pass(gx_core_queue(gx_core(client, 0)));
}

static void slow__puts(void **state)
{
	struct gx_op op = {.kind = GX_OP_PUT, .flags = GX_OP_LOCAL, .addr = src, .len = 100000};

	list_to(conn[0]);
	fill(gx_core_queue(gx_core(client, 0)), &op, 700);
	all_pass(gx_core_queue(gx_core(client, 0)));
	all_pass(queue);
}

static void slow__gets(void **state)
{
	struct gx_op op = {.kind = GX_OP_GET, .addr = src, .len = 100000};

	list_to(conn[0]);
	fill(gx_core_queue(gx_core(client, 0)), &op, 100);
	all_pass(gx_core_queue(gx_core(client, 0)));
	all_pass(queue);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(slow__lists, setup, teardown),
		cmocka_unit_test_setup_teardown(slow__notes, setup, teardown),
		cmocka_unit_test_setup_teardown(slow__puts, setup, teardown),
		cmocka_unit_test_setup_teardown(slow__gets, setup, teardown),
	};

	if (argc > 1)
		link_name = argv[1];
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	return cmocka_run_group_tests_name(link_name, tests, NULL, NULL);
}
