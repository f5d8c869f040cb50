/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connects that nobody calls any more (meet.c, comm.c): which of them the keeper ends, over a gx and
 * a clock that are faked.
 */
#include "nccl/plug.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SECOND 1000000000ull

struct plug plug = {.lock = PTHREAD_MUTEX_INITIALIZER};
static struct peer peer;
static struct gx_conn *const some_conn = (struct gx_conn *)(uintptr_t)64;
static uint64_t now_ns;
static bool is_up;
static uint8_t asked[64]; /* the last message */
static uint32_t asked_b;

uint64_t gx_now(void)
{
	return now_ns;
}

int gx_conn_msg(struct gx_conn *conn, const void *data, uint32_t len)
{
	assert_true(len <= sizeof(asked));
	memcpy(asked, data, len);
	asked_b = len;
	return 0;
}

void *gx_conn_user(const struct gx_conn *conn)
{
	return &peer;
}

const char *gx_strerror(int status)
{
	return "";
}

void say_warn(const char *fmt, ...)
{
}

void say_info(const char *fmt, ...)
{
}

struct peer *peer_get(const struct handle *h)
{
	peer.nr_users++;
	return &peer;
}

bool peer_up(struct peer *p)
{
	return is_up;
}

struct peer *peer_accept(struct gx_conn *conn)
{
	return NULL;
}

void peer_say(struct peer *p, const char *what, int err)
{
}

void offload_drop(struct comm *c)
{
}

/* No core holds a comm. */
void lane_put(struct lane *l, struct order *o)
{
	struct comm *c = (struct comm *)(void *)((char *)o - offsetof(struct comm, closing));

	pthread_mutex_lock(&plug.lock);
	comm_free(c);
	pthread_mutex_unlock(&plug.lock);
}

void lane_req(struct lane *l, struct order *o)
{
}

void lane_close(struct lane *l, struct order *o)
{
}

void lane_end(struct lane *l, struct order *o)
{
}

/* ---- The rig ---- */

static int setup(void **state)
{
	now_ns = SECOND;
	is_up = true;
	plug.conf.step_ns = SETUP_NS;
	peer = (struct peer){.conn = some_conn, .nr_paths = 1};
	peer.path[0].lane = &plug.lane[0];
	strcpy(plug.addr, "127.0.0.1:41234");
	return 0;
}

static int teardown(void **state)
{
	assert_null(plug.dials);
	assert_null(plug.comms);
	assert_int_equal(peer.nr_users, 0);
	return 0;
}

/* A handle as NCCL carries it. The listener is gone again: the peer is faked. */
static struct handle handle_make(void)
{
	struct handle h;
	void *l;

	assert_int_equal(meet_listen(NULL, &h, &l), 0);
	meet_close_listen(l);
	return h;
}

/* The first call of connect. */
static void dial(const struct life *life, struct handle *h)
{
	void *comm;

	*h = handle_make();
	assert_int_equal(meet_connect(life, h, &comm), 0);
	assert_null(comm);
	assert_true(h->dial);
}

static unsigned nr_dials(void)
{
	unsigned n = 0;

	for (struct comm *c = plug.dials; c; c = c->meet_next)
		n++;
	return n;
}

/* As the peer's message does. */
static void answer(void)
{
	plug.dials->answered = true;
}

/* NCCL calls connect again after a long pause, as it does for one rank among many. */
static void sweep__good_connect_of_a_communicator_stays(void **state)
{
	static const struct life life;
	struct handle h;
	void *comm;

	dial(&life, &h);
	answer();
	now_ns += 1000 * SECOND;
	meet_sweep();
	assert_int_equal(nr_dials(), 1);
	assert_int_equal(meet_connect(&life, &h, &comm), 0);
	assert_non_null(comm);
	comm_close(comm);
}

/* Whatever it waits for, the end of its communicator ends it, and no other one's. */
static void sweep__connect_of_a_communicator_ends_with_it(void **state)
{
	static const struct life life[2];
	struct handle h[3];

	dial(&life[0], &h[0]);
	dial(&life[1], &h[1]);
	is_up = false;
	dial(&life[0], &h[2]);
	now_ns += 1000 * SECOND;
	meet_sweep();
	assert_int_equal(nr_dials(), 3);
	meet_drop(&life[0]);
	assert_int_equal(nr_dials(), 1);
	assert_ptr_equal(plug.dials->life, &life[1]);
	meet_drop(&life[1]);
}

/* Tables without finalize have no end of a communicator. */
static void sweep__connect_without_a_communicator_goes_by_time(void **state)
{
	struct handle h;

	dial(NULL, &h);
	now_ns += 60 * SECOND;
	meet_sweep();
	assert_int_equal(nr_dials(), 1);
	now_ns += 20 * SECOND;
	meet_sweep();
	assert_int_equal(nr_dials(), 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

/* What accept gives back is the first again, and others still come behind it. */
static void accept__put_back(void **state)
{
	struct comm *c[3] = {comm_new(false), comm_new(false), comm_new(false)};
	struct listen l = {.end = &l.first};
	void *got;

	meet_put_back(&l, c[1]);
	meet_put_back(&l, c[0]);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(meet_accept(&l, &got), NCCL_OK);
		assert_ptr_equal(got, c[i]);
		meet_put_back(&l, got);
		assert_int_equal(l.nr_comms, 2 - i);
		assert_int_equal(meet_accept(&l, &got), NCCL_OK);
		assert_ptr_equal(got, c[i]);
	}
	meet_put_back(&l, c[1]);
	*l.end = c[2]; /* as a peer's ask adds one */
	l.end = &c[2]->meet_next;
	for (unsigned i = 1; i < 3; i++) {
		assert_int_equal(meet_accept(&l, &got), NCCL_OK);
		assert_ptr_equal(got, c[i]);
	}
	assert_int_equal(meet_accept(&l, &got), NCCL_OK);
	assert_null(got);
	assert_ptr_equal(l.end, &l.first);
	for (unsigned i = 0; i < 3; i++)
		comm_free(c[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(sweep__good_connect_of_a_communicator_stays),
		TEST(sweep__connect_of_a_communicator_ends_with_it),
		TEST(sweep__connect_without_a_communicator_goes_by_time),
		TEST(accept__put_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
