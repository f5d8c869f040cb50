/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload that goes wrong in the receiver's bounce buffers on a port that loses nothing (shm): two
 * contexts of one process, both turned by this thread. test_resend_pair shm: into host memory, with
 * gx_packet_opts.crc_by = copy. test_resend_pair cuda: into memory of GPU 0, in the unpack modes that
 * check and in those for which the CPU does; exits 77 where there is no GPU. On a fake GPU, whose
 * memory the CPU may turn bits in, also with the bounce pool there.
 */
#include "packet/pkt.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kit/common_gx.h"
#include "kit/common_post.h"

#define KV_B	((uint64_t)4 << 20)
#define WAIT_NS 60000000000ull

static enum gx_mem_kind kind;
static enum gx_unpack_mode mode;
static bool pool; /* the server's packets land in memory of GPU 0 */
static struct gx *server, *client;
static struct gx_conn *conn;
static struct gx_region region;
static uint8_t *want, *got;

/* What happens to packets between the port and the link, at the server. */
static const struct gx_port_ops *port_ops;
static uint32_t rot_ppm;
static uint64_t rot_state, rotten;

static uint64_t rot_random(void)
{
	rot_state = rot_state * 6364136223846793005ull + 1442695040888963407ull;
	return rot_state >> 33;
}

static unsigned rot_burst(struct gx_port_queue *q, enum gx_half half, struct gx_rx pkts[],
			  unsigned n)
{
	unsigned got_n = port_ops->rx_burst(q, half, pkts, n);

	for (unsigned i = 0; half == GX_HALF_DATA && i < got_n; i++) {
		if (!pkts[i].len || rot_random() % 1000000 >= rot_ppm)
			continue;
		((uint8_t *)pkts[i].data)[rot_random() % pkts[i].len] ^= 1u << rot_random() % 8;
		rotten++;
	}
	return got_n;
}

static uint64_t stat_of(struct gx *gx, const char *name)
{
	uint64_t v = 0;

	assert_int_equal(gx_core_stat(gx_core(gx, 0), name, &v), 0);
	return v;
}

static void rot_install(void)
{
	static struct gx_port_ops ops;
	struct gx_port_queue *q = server->port[0].queue[0];

	port_ops = q->ops;
	ops = *q->ops;
	ops.rx_burst = rot_burst;
	q->ops = &ops;
	rot_state = 1;
	rotten = 0;
}

static int setup(void **state)
{
	struct gx_packet_opts packet = {.size = sizeof(packet),
					.integrity = GX_INTEGRITY_MODE_CRC32C};
	struct gx_gpu_opts gpu = {.size = sizeof(gpu), .unpack = mode};
	struct gx_opts o = {
		.packet = &packet, .gpu = &gpu, .host = GX_WITH(gx_host_opts, .huge = GX_OFF)};
	char addr[32];

	if (kind == GX_MEM_HOST && !pool)
		packet.crc_by = GX_CRC_BY_COPY;
	want = malloc(KV_B);
	got = malloc(KV_B);
	assert_int_equal(common_gx_open(o, "shm", &client), 0);
	o.server = true;
	if (pool) {
		gpu.bounce = GX_BOUNCE_CUDA;
		assert_int_equal(gx_gpu_open(client, 0), 0);
	}
	assert_int_equal(common_gx_open(o, "shm", &server), 0);
	common_gx_kv(server, kind, KV_B);
	common_gx_listen(server, addr);
	conn = common_gx_connect(client, addr, "packet");
	region = (struct gx_region)GX_INIT(region);
	assert_int_equal(gx_conn_region(conn, "kv", 0, &region), 0);
	rot_install();
	return 0;
}

static int teardown(void **state)
{
	gx_conn_close(conn);
	gx_close(client);
	gx_close(server);
	free(want);
	free(got);
	return 0;
}

/* One operation of the client's. Return: its status. */
static int run(enum gx_op_kind op_kind, void *at, uint64_t len)
{
	struct gx_op op = {0};
	uint64_t until = gx_now() + WAIT_NS;
	struct gx_comp comp;

	op.kind = op_kind;
	op.addr = at;
	op.len = len;
	op.token = region.token;
	assert_int_equal(common_post(gx_conn_ep(conn, 0), &op, 1), 1);
	while (!common_poll(gx_core(client, 0), &comp, 1)) {
		gx_core_turn(gx_core(client, 0), gx_now());
		gx_core_turn(gx_core(server, 0), gx_now());
		sched_yield(); /* a fake GPU is a thread */
		assert_true(gx_now() < until);
	}
	return comp.status;
}

static bool by_unpack(void)
{
	return kind == GX_MEM_HOST || mode == GX_UNPACK_MODE_AUTO || mode == GX_UNPACK_MODE_KERNEL;
}

static void put__says_who_checks(void **state)
{
	struct gx_conn_info info = GX_INIT(info);

	assert_int_equal(gx_conn_info(conn, &info), 0);
	assert_int_equal(info.peer_crc_by_copy >> kind & 1, by_unpack());
	assert_string_equal(info.peer_bounce, pool ? "cuda:0" : "host");
	/* As large as the slots are that they go to. */
	assert_int_equal(info.quantum_b, pool ? 32768 : 8192);
	assert_int_equal(info.quantum_in_b, 8192);
}

static void put__wrong_in_the_buffers(void **state)
{
	for (unsigned i = 0; i < 12; i++) {
		uint64_t len = KV_B >> i % 6;

		rot_ppm = (i & 1 ? 10000 : 1000) * (pool ? 4 : 1); /* fewer, larger packets */
		for (uint64_t k = 0; k < len; k++)
			want[k] = (uint8_t)(k * 31 + (k >> 9) + i);
		assert_int_equal(run(GX_OP_PUT, want, len), 0);
		assert_int_equal(run(GX_OP_GET, got, len), 0);
		assert_memory_equal(got, want, len);
	}
	assert_true(rotten > 10);
	assert_int_equal(stat_of(server, "rx_crc_unpack"), rotten);
	assert_int_equal(stat_of(server, "resend_asked"), rotten);
	assert_int_equal(stat_of(client, "resend_served"), rotten);
	assert_int_equal(stat_of(server, "rx_crc"), 0);
}

static void put__never_right(void **state)
{
	rot_ppm = 1000000;
	assert_int_equal(run(GX_OP_PUT, want, 20000), -EBADMSG);
	assert_int_equal(run(GX_OP_PUT, want, KV_B), -EBADMSG);
	rot_ppm = 0;
	memset(want, 7, KV_B);
	assert_int_equal(run(GX_OP_PUT, want, KV_B), 0);
	assert_int_equal(run(GX_OP_GET, got, KV_B), 0);
	assert_memory_equal(got, want, KV_B);
}

/* A port that loses nothing sends nothing again: what the CPU finds ends the connection. */
static void put__the_cpu_finds_it(void **state)
{
	memset(want, 9, KV_B);
	rot_ppm = 0;
	assert_int_equal(run(GX_OP_PUT, want, KV_B), 0);
	assert_int_equal(run(GX_OP_GET, got, KV_B), 0);
	assert_memory_equal(got, want, KV_B);
	assert_int_equal(stat_of(server, "rx_crc"), 0);
	rot_ppm = 1000000;
	assert_true(run(GX_OP_PUT, want, 20000) < 0);
	assert_true(stat_of(server, "rx_crc") > 0);
	assert_int_equal(stat_of(server, "rx_crc_unpack"), 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

static int suite(const char *name, enum gx_unpack_mode how)
{
	const struct CMUnitTest checks[] = {
		TEST(put__says_who_checks),
		TEST(put__wrong_in_the_buffers),
		TEST(put__never_right),
	};
	const struct CMUnitTest others[] = {
		TEST(put__says_who_checks),
		TEST(put__the_cpu_finds_it),
	};

	mode = how;
	return by_unpack() ? cmocka_run_group_tests_name(name, checks, NULL, NULL)
			   : cmocka_run_group_tests_name(name, others, NULL, NULL);
}

int main(int argc, char *argv[])
{
	int failed;

	if (argc < 2 || strcmp(argv[1], "cuda"))
		return suite("host", GX_UNPACK_MODE_AUTO);
	if (!common_gpu_there())
		return 77;
	kind = GX_MEM_CUDA;
	failed = suite("kernel", GX_UNPACK_MODE_KERNEL) + suite("auto", GX_UNPACK_MODE_AUTO) +
		 suite("resident", GX_UNPACK_MODE_RESIDENT) + suite("d2d", GX_UNPACK_MODE_D2D);
	pool = getenv("GX_FAKE_CUDA");
	if (!pool)
		return failed;
	failed += suite("pool", GX_UNPACK_MODE_KERNEL) + suite("pool auto", GX_UNPACK_MODE_AUTO);
	kind = GX_MEM_HOST;
	return failed + suite("pool to host", GX_UNPACK_MODE_AUTO);
}
