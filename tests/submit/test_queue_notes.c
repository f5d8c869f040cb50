/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The notes of all endpoints of a context to one queue, on real threads: the receiver sleeps on the
 * queue's descriptor, gx's threads turn the cores. In one test the queue is closed and opened again,
 * while notes and immediates come: each comes once, by a queue or by its core's.
 */
#include "gx/gx.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "kit/common_gx.h"

#define CORES	2
#define ROUNDS	3000u /* notes of each endpoint */
#define WAIT_MS 20000
#define IMM	77u
#define IMMS	(ROUNDS / 10) /* on each endpoint, among the notes */
#define KV_B	(CORES * ROUNDS * 8ul)

struct note {
	uint32_t lane, number;
	char rest[300];
};

static const char *link_name = "packet";
static struct gx *server, *client;
static struct gx_mem *kv;
static char addr[32];
static struct gx_conn *conn;
static _Atomic uint8_t seen[CORES][ROUNDS];
static _Atomic uint32_t nr_seen, nr_bad, nr_core, nr_imm;

static atomic_bool is_up; /* the server's end */

static void on_conn(void *arg, struct gx_conn *c, enum gx_conn_event event, int err,
		    const char *why)
{
	atomic_store(&is_up, event == GX_CONN_EVENT_UP);
	common_gx_on_conn(arg, c, event, err, why);
}

/* Notes may come before the server's end is up, and gx_conn_ep() has no endpoint until then. */
static struct gx_conn *connect_both(void)
{
	struct gx_conn *c =
		common_gx_connect(client, addr, strcmp(link_name, "udp") ? link_name : "packet");

	for (unsigned i = 0; i < WAIT_MS && !atomic_load(&is_up); i++)
		usleep(1000);
	assert_true(atomic_load(&is_up));
	return c;
}

/* The word that the note's put wrote, in the server's memory, is there. */
static void note_check(const struct gx_comp *comp, uint32_t last[CORES])
{
	const struct note *n = comp->note;
	const _Atomic uint64_t *words = gx_mem_addr(kv);
	bool bad = comp->kind != GX_COMP_NOTIFY || !n || comp->note_len < 8 || n->lane >= CORES ||
		   n->number >= ROUNDS || gx_conn_ep(gx_ep_conn(comp->ep), n->lane) != comp->ep;

	if (!bad) {
		bad = atomic_load(&words[n->lane * ROUNDS + n->number]) != n->number + 1 ||
		      atomic_exchange(&seen[n->lane][n->number], 1) || n->number < last[n->lane] ||
		      (comp->note_len > 8 && n->rest[comp->note_len - 9] != (char)n->number);
		last[n->lane] = n->number;
	}
	atomic_fetch_add(&nr_bad, bad);
	atomic_fetch_add(&nr_seen, 1);
}

/* On the core's thread: what comes while no queue asks. */
static bool core_take(void *arg, uint64_t now_ns)
{
	static uint32_t last[CORES][CORES];
	unsigned core = (unsigned)(uintptr_t)arg;
	struct gx_comp comp;

	if (!gx_poll(gx_core_queue(gx_core(server, core)), &comp, 1))
		return false;
	if (comp.kind == GX_COMP_NOTIFY && comp.imm == IMM && !comp.note) {
		atomic_fetch_add(&nr_imm, 1);
		return true;
	}
	note_check(&comp, last[core]);
	atomic_fetch_add(&nr_core, 1);
	return true;
}

static int setup(void **state)
{
	const char *port = strcmp(link_name, "udp") ? "shm" : "udp";
	struct gx_opts o = {.nr_cores = CORES, .peer_timeout_ns = 30000000000ull};

	assert_int_equal(common_gx_open(o, port, &client), 0);
	o.server = true;
	o.on_conn = on_conn;
	assert_int_equal(common_gx_open(o, port, &server), 0);
	kv = common_gx_kv(server, GX_MEM_HOST, KV_B);
	common_gx_listen(server, addr);
	for (unsigned i = 0; i < CORES; i++) {
		assert_int_equal(
			gx_core_poller(gx_core(server, i), core_take, (void *)(uintptr_t)i), 0);
		assert_int_equal(gx_core_start(gx_core(server, i)), 0);
		assert_int_equal(gx_core_start(gx_core(client, i)), 0);
	}
	memset((void *)seen, 0, sizeof(seen));
	nr_seen = nr_bad = nr_core = nr_imm = 0;
	atomic_store(&is_up, false);
	return 0;
}

static int teardown(void **state)
{
	gx_close(client);
	gx_close(server);
	return 0;
}

/* Post ROUNDS notes on each endpoint, every third with a put of its own for the bytes, and IMMS
 * immediates. */
static void *post_all(void *arg)
{
	static const uint32_t len[] = {8, 8, 308};
	uint64_t words[64];
	struct note n = {0};
	struct gx_region region = GX_INIT(region);
	struct gx_comp comps[64];
	struct gx_queue *q;
	unsigned out = 0, k;

	gx_conn_region(conn, "kv", 0, &region);
	if (gx_queue_open(client, NULL, &q))
		return NULL;
	for (unsigned i = 0; i < CORES * ROUNDS || out; i += i < CORES * ROUNDS) {
		struct gx_op op = {.kind = GX_OP_PUT,
				   .flags = GX_OP_NOTE,
				   .addr = &words[i % 64],
				   .len = 8,
				   .token = region.token,
				   .note = &n};

		while (out >= 64 || (i == CORES * ROUNDS && out)) {
			k = gx_poll(q, comps, 64);
			for (unsigned c = 0; c < k; c++)
				atomic_fetch_add(&nr_bad, comps[c].status != 0);
			out -= k;
			if (!k)
				sched_yield();
		}
		if (i == CORES * ROUNDS)
			break;
		n.lane = i % CORES;
		n.number = i / CORES;
		memset(n.rest, (char)n.number, sizeof(n.rest));
		while (out && i % 64 == 0) { /* the words are free again */
			k = gx_poll(q, comps, 64);
			out -= k;
		}
		words[i % 64] = n.number + 1;
		op.note_len = len[n.number % 3];
		op.remote_off = (n.lane * ROUNDS + n.number) * 8ul;
		while (gx_post(q, gx_conn_ep(conn, n.lane), &op, 1) != 1)
			sched_yield();
		out++;
		if (n.number % 10)
			continue;
		op = (struct gx_op){.kind = GX_OP_PUT, .flags = GX_OP_IMM, .imm = IMM};
		op.token = region.token;
		while (gx_post(q, gx_conn_ep(conn, n.lane), &op, 1) != 1)
			sched_yield();
		out++;
	}
	while (gx_queue_close(q))
		;
	return NULL;
}

static struct gx_queue *sink_open(void)
{
	struct gx_queue *q;

	assert_int_equal(gx_queue_open(server, GX_WITH(gx_queue_opts, .notify = true), &q), 0);
	assert_true(gx_queue_fd(q) >= 0);
	return q;
}

/* Return: false: no wake came. */
static bool take_some(struct gx_queue *q, uint32_t last[CORES])
{
	struct pollfd p = {.fd = gx_queue_fd(q), .events = POLLIN};
	struct gx_comp comps[7];
	unsigned n;

	while (!(n = gx_poll(q, comps, 7)))
		if (!gx_queue_arm(q) && poll(&p, 1, WAIT_MS) != 1)
			return false;
	for (unsigned i = 0; i < n; i++)
		note_check(&comps[i], last);
	return true;
}

static void imms_check(void)
{
	for (unsigned i = 0; i < WAIT_MS && nr_imm < CORES * IMMS; i++)
		usleep(1000);
	assert_int_equal(nr_imm, CORES * IMMS);
}

static void sink__all(void **state)
{
	struct gx_queue *q = sink_open(), *second;
	uint32_t last[CORES] = {0};
	pthread_t thread;

	assert_int_equal(gx_queue_open(server, GX_WITH(gx_queue_opts, .notify = true), &second),
			 -EBUSY);
	conn = connect_both();
	assert_int_equal(pthread_create(&thread, NULL, post_all, NULL), 0);
	while (nr_seen < CORES * ROUNDS)
		if (!take_some(q, last))
			fail_msg("asleep, with %u of %u notes", nr_seen, CORES * ROUNDS);
	pthread_join(thread, NULL);
	assert_int_equal(nr_bad, 0);
	assert_int_equal(nr_core, 0);
	imms_check();
	while (gx_queue_close(q))
		;
	gx_conn_close(conn);
}

static void sink__closed_in_the_middle(void **state)
{
	pthread_t thread;
	unsigned by_queue = 0;

	conn = connect_both();
	assert_int_equal(pthread_create(&thread, NULL, post_all, NULL), 0);
	for (unsigned turn = 0; nr_seen < CORES * ROUNDS; turn++) {
		uint32_t last[CORES] = {0};
		struct gx_queue *q = sink_open();

		for (unsigned i = 0; i < 20 + turn % 50 && nr_seen < CORES * ROUNDS; i++) {
			struct gx_comp comps[3];
			unsigned n = gx_poll(q, comps, 3);

			for (unsigned k = 0; k < n; k++)
				note_check(&comps[k], last);
			by_queue += n;
			if (!n)
				usleep(20);
		}
		while (gx_queue_close(q))
			;
		usleep(turn % 100);
		assert_true(turn < 100000);
	}
	pthread_join(thread, NULL);
	assert_int_equal(nr_bad, 0);
	assert_int_equal(nr_seen, CORES * ROUNDS);
	assert_int_equal(nr_core + by_queue, nr_seen);
	imms_check();
	assert_true(nr_core > 0);
	assert_true(by_queue > 0);
	gx_conn_close(conn);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(sink__all, setup, teardown),
		cmocka_unit_test_setup_teardown(sink__closed_in_the_middle, setup, teardown),
	};

	if (argc > 1)
		link_name = argv[1];
	return cmocka_run_group_tests_name(link_name, tests, NULL, NULL);
}
