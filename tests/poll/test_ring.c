// SPDX-License-Identifier: Apache-2.0
/*
 * The single-producer, single-consumer ring: bounds, order, wrap, and two threads at once (which is
 * what ThreadSanitizer looks at).
 */
#include "gx_internal/ring.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>

#include <cmocka.h>

#define RING_SIZE   8
#define THREAD_NR   200000 /* items handed over by the two-thread case */
#define THREAD_SIZE 64

static int ring_setup(void **state)
{
	return gx_ring_open(RING_SIZE, (struct gx_ring **)state);
}

static int ring_teardown(void **state)
{
	struct gx_ring *r = *state;
	bool empty = gx_ring_empty(r);

	gx_ring_close(r);
	return empty ? 0 : -1;
}

static void *item(uintptr_t i)
{
	return (void *)(i + 1);
}

static uint32_t put(struct gx_ring *r, uintptr_t first, uint32_t n)
{
	void *items[4 * RING_SIZE];

	for (uint32_t i = 0; i < n; i++)
		items[i] = item(first + i);
	return gx_ring_put(r, items, n);
}

static void get_checked(struct gx_ring *r, uintptr_t first, uint32_t n)
{
	void *items[4 * RING_SIZE];

	assert_int_equal(gx_ring_get(r, items, n), n);
	for (uint32_t i = 0; i < n; i++)
		assert_ptr_equal(items[i], item(first + i));
}

static void gx_ring_open__refuses_bad_size(void **state)
{
	static const uint32_t bad[] = {0, 1, 3, 48, (1u << 20) + 1, 1u << 21, UINT32_MAX};
	struct gx_ring *r = NULL;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++)
		assert_int_equal(gx_ring_open(bad[i], &r), -EINVAL);
	assert_null(r);
}

static void gx_ring_open__takes_largest(void **state)
{
	struct gx_ring *r;

	assert_int_equal(gx_ring_open(1u << 20, &r), 0);
	gx_ring_close(r);
}

static void gx_ring_put__fills_to_size(void **state)
{
	assert_int_equal(put(*state, 0, RING_SIZE + 3), RING_SIZE);
	assert_int_equal(put(*state, 0, 1), 0);
	get_checked(*state, 0, RING_SIZE);
}

static void gx_ring_put__none(void **state)
{
	assert_int_equal(put(*state, 0, 0), 0);
	assert_true(gx_ring_empty(*state));
}

static void gx_ring_get__nothing_there(void **state)
{
	void *items[4];

	assert_int_equal(gx_ring_get(*state, items, 4), 0);
}

static void gx_ring_get__fewer_than_asked(void **state)
{
	void *items[4];

	assert_int_equal(put(*state, 0, 2), 2);
	assert_int_equal(gx_ring_get(*state, items, 4), 2);
	assert_ptr_equal(items[1], item(1));
}

static void gx_ring_get__keeps_order_over_wrap(void **state)
{
	uintptr_t sent = 0;

	for (unsigned i = 0; i < 100; i++) {
		uint32_t n = 1 + i % RING_SIZE;

		assert_int_equal(put(*state, sent, n), n);
		get_checked(*state, sent, n);
		sent += n;
	}
}

static void gx_ring_put__index_overflow(void **state)
{
	struct gx_ring *r = *state;
	uint32_t start = UINT32_MAX - 2;

	atomic_store(&r->head, start);
	atomic_store(&r->tail, start);
	r->head_seen = start;
	r->tail_seen = start;
	assert_int_equal(put(r, 0, RING_SIZE + 1), RING_SIZE);
	get_checked(r, 0, RING_SIZE);
}

static void gx_ring_empty__follows_content(void **state)
{
	assert_true(gx_ring_empty(*state));
	put(*state, 0, 1);
	assert_false(gx_ring_empty(*state));
	get_checked(*state, 0, 1);
	assert_true(gx_ring_empty(*state));
}

/* Slots point into this array, so that a lost release would show as a race on its contents. */
struct shared {
	struct gx_ring *ring;
	uint32_t val[THREAD_NR];
};

static void *producer(void *arg)
{
	struct shared *s = arg;
	uint32_t sent = 0;

	while (sent < THREAD_NR) {
		uint32_t n = GX_MIN(1 + sent % 7, THREAD_NR - sent);
		void *items[8];

		for (uint32_t i = 0; i < n; i++) {
			s->val[sent + i] = sent + i;
			items[i] = &s->val[sent + i];
		}
		n = gx_ring_put(s->ring, items, n);
		if (n == 0)
			sched_yield();
		sent += n;
	}
	return NULL;
}

static void gx_ring_put__two_threads(void **state)
{
	static struct shared s;
	uint32_t got = 0, wrong = 0;
	pthread_t thread;

	assert_int_equal(gx_ring_open(THREAD_SIZE, &s.ring), 0);
	assert_int_equal(pthread_create(&thread, NULL, producer, &s), 0);
	while (got < THREAD_NR) {
		void *items[16];
		uint32_t n = gx_ring_get(s.ring, items, 16);

		for (uint32_t i = 0; i < n; i++)
			wrong += *(uint32_t *)items[i] != got + i;
		if (n == 0)
			sched_yield();
		got += n;
	}
	pthread_join(thread, NULL);
	assert_int_equal(wrong, 0);
	assert_true(gx_ring_empty(s.ring));
	gx_ring_close(s.ring);
}

#define RING_TEST(fn) cmocka_unit_test_setup_teardown(fn, ring_setup, ring_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gx_ring_open__refuses_bad_size),
		cmocka_unit_test(gx_ring_open__takes_largest),
		RING_TEST(gx_ring_put__fills_to_size),
		RING_TEST(gx_ring_put__none),
		RING_TEST(gx_ring_get__nothing_there),
		RING_TEST(gx_ring_get__fewer_than_asked),
		RING_TEST(gx_ring_get__keeps_order_over_wrap),
		RING_TEST(gx_ring_put__index_overflow),
		RING_TEST(gx_ring_empty__follows_content),
		cmocka_unit_test(gx_ring_put__two_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
