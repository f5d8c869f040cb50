/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two contexts of one process over shm, by the link that the first argument names: a server whose
 * core runs on a thread of gx's, and a client that this thread turns. For the thread sanitizer: who
 * touches what of a context from which thread. (The segments themselves are mapped twice, so it
 * cannot see across them; nothing here looks at the other side's memory while that runs.)
 */
#include "gx/gx.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "kit/common_gx.h"
#include "kit/common_post.h"

#define KV_B	(1u << 20)
#define OPS_MAX 32
#define WAIT_NS 30000000000ull

static char out[KV_B], in[KV_B];
static const char *link_name = "packet";

static int setup(void **state)
{
	static struct common_rig rig;

	common_rig_open(&rig, (struct gx_opts){0}, KV_B);
	*state = &rig;
	return 0;
}

static int teardown(void **state)
{
	common_rig_close(*state);
	return 0;
}

/* Take completions until @n operations are done; without success is a failure. */
static void run(struct common_rig *r, unsigned n, int status)
{
	struct gx_core *core = gx_core(r->client, 0);
	uint64_t until = gx_now() + WAIT_NS;

	while (n && gx_now() < until) {
		struct gx_comp comp;

		if (!gx_core_turn(core, gx_now()))
			nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL);
		if (!common_poll(core, &comp, 1))
			continue;
		assert_int_equal(comp.status, status);
		n--;
	}
	assert_int_equal(n, 0);
}

static struct gx_conn *connect_one(struct common_rig *r)
{
	return common_gx_connect(r->client, r->addr, link_name);
}

static void post(struct gx_conn *c, enum gx_op_kind kind, char *addr, uint64_t off, uint64_t len)
{
	struct gx_region kv = GX_INIT(kv);
	struct gx_op op = {0};

	assert_int_equal(gx_conn_region(c, "kv", 0, &kv), 0);
	op.kind = kind;
	op.addr = addr;
	op.len = len;
	op.token = kv.token;
	op.remote_off = off;
	assert_int_equal(common_post(gx_conn_ep(c, 0), &op, 1), 1);
}

static void transfer(struct common_rig *r, struct gx_conn *c, unsigned seed)
{
	const uint64_t len = KV_B / OPS_MAX;

	for (unsigned i = 0; i < KV_B; i++)
		out[i] = (char)(i * 7 + i / 4096 + seed);
	memset(in, 0, sizeof(in));
	for (unsigned i = 0; i < OPS_MAX; i++)
		post(c, GX_OP_PUT, out + i * len, i * len, i % 2 ? len : 64);
	run(r, OPS_MAX, 0);
	for (unsigned i = 0; i < OPS_MAX; i++)
		post(c, GX_OP_GET, in + i * len, i * len, i % 2 ? len : 64);
	run(r, OPS_MAX, 0);
	for (unsigned i = 0; i < OPS_MAX; i++)
		assert_memory_equal(in + i * len, out + i * len, i % 2 ? len : 64);
}

static void put_get__with_the_server_on_its_thread(void **state)
{
	struct common_rig *r = *state;
	struct gx_conn *c = connect_one(r);
	char text[16384];
	uint64_t v;

	for (unsigned i = 0; i < 20; i++) {
		transfer(r, c, i);
		assert_true(gx_stats(r->server, false, text, sizeof(text)) > 0);
		assert_int_equal(gx_core_stat(gx_core(r->server, 0), "rx_pkts", &v), 0);
	}
	gx_conn_close(c);
}

static void connect__again_and_again(void **state)
{
	struct common_rig *r = *state;

	for (unsigned i = 0; i < 20; i++) {
		struct gx_conn *c = connect_one(r);

		transfer(r, c, i);
		gx_conn_close(c);
	}
}

/* The server's core stops and goes on, on another thread, between two transfers. */
static void core_stop__and_start(void **state)
{
	struct common_rig *r = *state;
	struct gx_conn *c = connect_one(r);

	for (unsigned i = 0; i < 5; i++) {
		transfer(r, c, i);
		gx_core_stop(gx_core(r->server, 0));
		assert_int_equal(gx_core_start(gx_core(r->server, 0)), 0);
	}
	gx_conn_close(c);
}

static void close__under_operations(void **state)
{
	struct common_rig *r = *state;
	struct gx_conn *c = connect_one(r);
	struct gx_op op = {0};

	op.kind = GX_OP_RECV;
	op.addr = in;
	op.len = 64;
	op.tag = 1;
	for (unsigned i = 0; i < OPS_MAX; i++)
		assert_int_equal(common_post(gx_conn_ep(c, 0), &op, 1), 1);
	gx_conn_close(c);
	run(r, OPS_MAX, -ECANCELED);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(put_get__with_the_server_on_its_thread, setup,
						teardown),
		cmocka_unit_test_setup_teardown(connect__again_and_again, setup, teardown),
		cmocka_unit_test_setup_teardown(core_stop__and_start, setup, teardown),
		cmocka_unit_test_setup_teardown(close__under_operations, setup, teardown),
	};

	if (argc > 1)
		link_name = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
