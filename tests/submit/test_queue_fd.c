/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that sleeps on the descriptor of its queue, while gx's own threads turn the cores. No wake
 * is lost: a thread that sleeps for ever would end the test.
 */
#include "gx/gx.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kit/common_gx.h"
#include "kit/common_seeds.h"

#define CORES	2
#define THREADS 2
#define KV_B	65536
#define ROUNDS	5000
#define WAIT_MS 20000

struct sleeper {
	struct common_rig *rig;
	struct gx_conn *conn;
	unsigned index;
	unsigned done, slept, lost;
};

static const char *link_name = "packet";
static char out[THREADS][64];

static int setup(void **state)
{
	static struct common_rig rig;

	common_rig_open(
		&rig, (struct gx_opts){.nr_cores = CORES, .peer_timeout_ns = 30000000000ull}, KV_B);
	for (unsigned i = 0; i < CORES; i++)
		assert_int_equal(gx_core_start(gx_core(rig.client, i)), 0);
	*state = &rig;
	return 0;
}

static int teardown(void **state)
{
	common_rig_close(*state);
	return 0;
}

static struct gx_op put_op(struct sleeper *s)
{
	struct gx_region kv = GX_INIT(kv);

	gx_conn_region(s->conn, "kv", 0, &kv);
	return (struct gx_op){.kind = GX_OP_PUT,
			      .addr = out[s->index],
			      .len = sizeof(out[0]),
			      .token = kv.token,
			      .remote_off = 64ull * CORES * s->index};
}

/* Wait for a completion. Return: false: the descriptor did not become readable. */
static bool sleep_one(struct sleeper *s, struct gx_queue *q)
{
	struct pollfd p = {.fd = gx_queue_fd(q), .events = POLLIN};
	struct gx_comp comp;

	while (!gx_poll(q, &comp, 1)) {
		int ret = gx_queue_arm(q);

		if (ret == 1)
			continue;
		s->slept++;
		if (ret || poll(&p, 1, WAIT_MS) != 1)
			return false;
	}
	s->done += !comp.status;
	return true;
}

static void *sleep_rounds(void *arg)
{
	struct sleeper *s = arg;
	struct gx_op op = put_op(s);
	unsigned rounds = common_rounds(ROUNDS);
	struct gx_queue *q;

	if (gx_queue_open(s->rig->client, NULL, &q) || gx_queue_fd(q) < 0)
		return NULL;
	for (unsigned i = 0; i < rounds && !s->lost; i++) {
		/* One or several under way: the core wakes while the thread arms, too. */
		unsigned n = 1 + i % 3;

		op.remote_off = 64ull * (CORES * s->index + i % CORES); /* each core its own */
		for (unsigned k = 0; k < n; k++)
			while (gx_post(q, gx_conn_ep(s->conn, i % CORES), &op, 1) != 1)
				;
		for (unsigned k = 0; k < n && !s->lost; k++)
			s->lost = !sleep_one(s, q);
	}
	while (gx_queue_close(q))
		;
	return NULL;
}

static void queue_arm__no_wake_is_lost(void **state)
{
	struct sleeper s[THREADS];
	struct gx_conn *c = common_gx_connect(((struct common_rig *)*state)->client,
					      ((struct common_rig *)*state)->addr, link_name);
	unsigned want = 0, slept = 0;
	pthread_t thread[THREADS];

	for (unsigned i = 0; i < common_rounds(ROUNDS); i++)
		want += 1 + i % 3;
	for (unsigned i = 0; i < THREADS; i++) {
		s[i] = (struct sleeper){.rig = *state, .conn = c, .index = i};
		assert_int_equal(pthread_create(&thread[i], NULL, sleep_rounds, &s[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	for (unsigned i = 0; i < THREADS; i++) {
		assert_int_equal(s[i].lost, 0);
		assert_int_equal(s[i].done, want);
		slept += s[i].slept;
	}
	assert_true(slept > 0);
	gx_conn_close(c);
}

static void queue_arm__once_more(void **state)
{
	struct common_rig *r = *state;
	struct sleeper s = {.rig = r, .conn = common_gx_connect(r->client, r->addr, link_name)};
	struct gx_op op = put_op(&s);
	struct gx_queue *q;
	struct gx_comp comp;
	struct pollfd p = {.events = POLLIN};

	assert_int_equal(gx_queue_open(r->client, NULL, &q), 0);
	assert_int_equal(gx_queue_arm(q), -EINVAL);
	p.fd = gx_queue_fd(q);
	assert_true(p.fd >= 0);
	assert_int_equal(gx_queue_fd(q), p.fd);
	/* Armed twice, and nothing comes. */
	assert_int_equal(gx_queue_arm(q), 0);
	assert_int_equal(gx_queue_arm(q), 0);
	assert_int_equal(poll(&p, 1, 0), 0);
	/* A child of fork() takes nothing away. */
	if (!fork())
		_exit(fcntl(p.fd, F_GETFD) >= 0);
	int status;
	assert_true(wait(&status) > 0 && status == 0);
	assert_int_equal(gx_post(q, gx_conn_ep(s.conn, 0), &op, 1), 1);
	assert_int_equal(poll(&p, 1, WAIT_MS), 1);
	assert_int_equal(gx_queue_arm(q), 1); /* it was not taken */
	assert_int_equal(gx_poll(q, &comp, 1), 1);
	assert_int_equal(comp.status, 0);
	assert_int_equal(gx_queue_arm(q), 0);
	assert_int_equal(poll(&p, 1, 0), 0);
	/* The connection ends: what is under way completes, and wakes. */
	assert_int_equal(gx_post(q, gx_conn_ep(s.conn, 0), &op, 1), 1);
	gx_conn_close(s.conn);
	assert_int_equal(poll(&p, 1, WAIT_MS), 1);
	assert_int_equal(gx_poll(q, &comp, 1), 1);
	/* Closed while armed. */
	assert_int_equal(gx_queue_arm(q), 0);
	while (gx_queue_close(q))
		;
	assert_int_equal(fcntl(p.fd, F_GETFD), -1);
	assert_int_equal(gx_core_fd(gx_core(r->client, 0)), -EBUSY);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(queue_arm__once_more, setup, teardown),
		cmocka_unit_test_setup_teardown(queue_arm__no_wake_is_lost, setup, teardown),
	};

	if (argc > 1)
		link_name = argv[1];
	return cmocka_run_group_tests_name(link_name, tests, NULL, NULL);
}
