/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that connect queue pairs: how many at a time, and who gets which answer. Addresses are
 * numbers; a look ends when the test says so.
 */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "gx_internal/base.h"
#include "verbs/verbs_dial.h"

#include <cmocka.h>

#define N	64
#define WAIT_NS 20000000000ull

struct look {
	struct verbs_dial dial;
	int result;
	_Atomic bool begun, may_end;
	pthread_t thread;
};

static struct look look[N];
static struct verbs_dials dials;

static int look_run(struct verbs_dial *d)
{
	struct look *l = GX_CONTAINER_OF(d, struct look, dial);

	l->thread = pthread_self();
	l->begun = true;
	while (!l->may_end)
		sched_yield();
	return l->result;
}

#define UNTIL(cond)                                                                                \
	do {                                                                                       \
		uint64_t until_ = gx_now_ns() + WAIT_NS;                                           \
		while (!(cond) && gx_now_ns() < until_)                                            \
			sched_yield();                                                             \
		assert_true(cond);                                                                 \
	} while (0)

static int setup(void **state)
{
	memset(look, 0, sizeof(look));
	memset(&dials, 0, sizeof(dials));
	verbs_dials_init(&dials);
	return 0;
}

static int teardown(void **state)
{
	for (unsigned i = 0; i < N; i++)
		look[i].may_end = true;
	verbs_dials_close(&dials);
	for (unsigned i = 0; i < N; i++)
		assert_false(verbs_dial_is_out(&look[i].dial));
	return 0;
}

static void dial(unsigned i, unsigned address)
{
	look[i].dial.to[0] = (uint8_t)address;
	look[i].dial.run = look_run;
	verbs_dial(&dials, &look[i].dial);
}

static int end(unsigned i)
{
	look[i].may_end = true;
	UNTIL(!verbs_dial_is_out(&look[i].dial));
	return verbs_dial_take(&look[i].dial);
}

static void dial__says_it_once(void **state)
{
	assert_int_equal(verbs_dial_take(&look[0].dial), 0);
	look[0].result = -EINVAL;
	dial(0, 1);
	UNTIL(look[0].begun);
	assert_int_equal(verbs_dial_take(&look[0].dial), 0);
	assert_int_equal(end(0), -EINVAL);
	assert_int_equal(verbs_dial_take(&look[0].dial), 0);
	look[0].result = 0;
	dial(0, 1);
	assert_int_equal(end(0), 0);
	assert_int_equal(dials.nr_threads, 1);
}

/* One at a time for an address, in order; the next address does not wait for it. */
static void dial__one_of_an_address(void **state)
{
	for (unsigned i = 0; i < 4; i++)
		dial(i, 1);
	dial(4, 2);
	UNTIL(look[0].begun && look[4].begun);
	assert_int_equal(end(4), 0);
	for (unsigned i = 0; i < 4; i++) {
		UNTIL(look[i].begun);
		assert_false(i < 3 && look[i + 1].begun);
		assert_int_equal(end(i), 0);
	}
	assert_int_equal(dials.nr_threads, 2);
}

/* The answer of one is that of all who wait for the address, and of nobody else. */
static void dial__no_answer(void **state)
{
	static const int none[] = {-ETIMEDOUT, -EHOSTUNREACH, -ENETUNREACH, -ENODATA};

	for (unsigned k = 0; k < GX_ARRAY_SIZE(none); k++) {
		teardown(state);
		setup(state);
		for (unsigned i = 0; i < 6; i++)
			dial(i, i % 2);
		UNTIL(look[0].begun && look[1].begun);
		look[0].result = none[k];
		assert_int_equal(end(0), none[k]);
		for (unsigned i = 2; i < 6; i += 2) {
			assert_false(look[i].begun || verbs_dial_is_out(&look[i].dial));
			assert_int_equal(verbs_dial_take(&look[i].dial), none[k]);
			assert_true(verbs_dial_is_out(&look[i + 1].dial));
		}
	}
}

/* A device that refuses one queue pair says nothing of the address. */
static void dial__refused(void **state)
{
	dial(0, 1);
	dial(1, 1);
	UNTIL(look[0].begun);
	look[0].result = -EINVAL;
	assert_int_equal(end(0), -EINVAL);
	assert_int_equal(end(1), 0);
}

/* As many addresses at a time as there are threads. */
static void dial__many_addresses(void **state)
{
	for (unsigned i = 0; i < VERBS_DIALLERS + 2; i++)
		dial(i, i);
	for (unsigned i = 0; i < VERBS_DIALLERS; i++)
		UNTIL(look[i].begun);
	assert_false(look[VERBS_DIALLERS].begun || look[VERBS_DIALLERS + 1].begun);
	assert_int_equal(end(3), 0);
	UNTIL(look[VERBS_DIALLERS].begun);
	assert_false(look[VERBS_DIALLERS + 1].begun);
	assert_int_equal(dials.nr_threads, VERBS_DIALLERS);
}

/* Threads sleep, and are taken again. */
static void dial__again(void **state)
{
	for (unsigned round = 0; round < 200; round++) {
		for (unsigned i = 0; i < 3; i++) {
			look[i].may_end = true;
			dial(i, i);
		}
		for (unsigned i = 0; i < 3; i++)
			assert_int_equal(end(i), 0);
	}
	assert_true(dials.nr_threads <= 3);
}

static void cancel__what_waits(void **state)
{
	for (unsigned i = 0; i < 4; i++)
		dial(i, 1);
	UNTIL(look[0].begun);
	for (unsigned i = 0; i < 4; i += 3) /* the last one, too */
		verbs_dial_cancel(&dials, &look[i].dial);
	assert_true(verbs_dial_is_out(&look[0].dial)); /* it runs */
	assert_false(verbs_dial_is_out(&look[3].dial));
	assert_int_equal(verbs_dial_take(&look[3].dial), -ECANCELED);
	dial(5, 1);
	assert_int_equal(end(0), 0);
	assert_int_equal(end(1), 0);
	assert_int_equal(end(2), 0);
	assert_int_equal(end(5), 0);
	assert_false(look[3].begun);
}

static void close__while_they_wait(void **state)
{
	for (unsigned i = 0; i < 4; i++)
		dial(i, 1 + i / 2);
	UNTIL(look[0].begun && look[2].begun);
	look[0].may_end = look[2].may_end = true;
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(dial__says_it_once), TEST(dial__one_of_an_address), TEST(dial__no_answer),
		TEST(dial__refused),	  TEST(dial__many_addresses),	 TEST(dial__again),
		TEST(cancel__what_waits), TEST(close__while_they_wait),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
