/* SPDX-License-Identifier: Apache-2.0 */
/* Which CPUs the NCCL plugin's cores may have, on machines that this one is not. */
#include "nccl/plug.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

void say_info(const char *fmt, ...)
{
	(void)fmt;
}

static unsigned alone(unsigned cpu)
{
	return cpu;
}

/* CPU n and n + 8 are siblings, as Linux numbers them on most machines. */
static unsigned of_eight(unsigned cpu)
{
	return cpu % 8;
}

/* 0 and 1, 2 and 3, ... */
static unsigned of_pairs(unsigned cpu)
{
	return cpu & ~1u;
}

static cpu_set_t cpus_from(unsigned first, unsigned last)
{
	cpu_set_t may;

	CPU_ZERO(&may);
	while (first <= last)
		CPU_SET(first++, &may);
	return may;
}

static void spread_is(cpu_set_t may, unsigned (*first)(unsigned cpu), const int want[], unsigned nr)
{
	int out[CPU_SETSIZE];

	assert_int_equal(cpus_spread(&may, first, out), nr);
	assert_true(!nr || !memcmp(out, want, nr * sizeof(want[0])));
}

static void spread__upper_half(void **state)
{
	spread_is(cpus_from(0, 7), alone, (int[]){7, 6, 5, 4}, 4);
	spread_is(cpus_from(0, 4), alone, (int[]){4, 3}, 2);
	spread_is(cpus_from(0, 3), alone, (int[]){3, 2}, 2);
	spread_is(cpus_from(32, 39), alone, (int[]){39, 38, 37, 36}, 4);
}

static void spread__no_siblings(void **state)
{
	spread_is(cpus_from(0, 15), of_eight, (int[]){7, 6, 5, 4}, 4);
	spread_is(cpus_from(0, 15), of_pairs, (int[]){14, 12, 10, 8}, 4);
	spread_is(cpus_from(8, 15), of_eight, (int[]){15, 14, 13, 12}, 4); /* the others alone */
}

static void spread__too_few(void **state)
{
	spread_is(cpus_from(0, 2), alone, NULL, 0);
	spread_is(cpus_from(0, 5), of_pairs, NULL, 0);
	spread_is(cpus_from(1, 0), alone, NULL, 0);
}

static void spread__whole_set(void **state)
{
	int out[CPU_SETSIZE];
	cpu_set_t may = cpus_from(0, CPU_SETSIZE - 1);

	assert_int_equal(cpus_spread(&may, alone, out), CPU_SETSIZE / 2);
	assert_int_equal(out[0], CPU_SETSIZE - 1);
	assert_int_equal(out[CPU_SETSIZE / 2 - 1], CPU_SETSIZE / 2);
}

/* ---- Near a GPU ---- */

static void order_is(cpu_set_t may, cpu_set_t near, unsigned (*first)(unsigned cpu),
		     const int want[], unsigned nr)
{
	int out[CPU_SETSIZE];

	assert_int_equal(cpus_order(&may, &near, first, out), nr);
	assert_true(!nr || !memcmp(out, want, nr * sizeof(want[0])));
}

/* Two nodes of eight CPUs. Ranks of both take the same half, in another order. */
static void order__near_first(void **state)
{
	order_is(cpus_from(0, 15), cpus_from(0, 7), alone, (int[]){7, 6, 5, 4, 15, 14, 13, 12}, 8);
	order_is(cpus_from(0, 15), cpus_from(8, 15), alone, (int[]){15, 14, 13, 12, 7, 6, 5, 4}, 8);
	order_is(cpus_from(0, 15), cpus_from(0, 15), alone, (int[]){15, 14, 13, 12, 11, 10, 9, 8},
		 8);
}

/* Nothing is known of the GPU, the process may not run there, or on too few CPUs there. */
static void order__not_near(void **state)
{
	const int upper[] = {7, 6, 5, 4};

	order_is(cpus_from(0, 7), cpus_from(1, 0), alone, upper, 4);
	order_is(cpus_from(0, 7), cpus_from(8, 15), alone, upper, 4);
	order_is(cpus_from(0, 7), cpus_from(5, 12), alone, upper, 4);
	order_is(cpus_from(0, 7), cpus_from(2, 7), alone, (int[]){7, 6, 5}, 3); /* two are left */
	order_is(cpus_from(0, 7), cpus_from(0, 7), of_pairs, (int[]){6, 4}, 2);
	order_is(cpus_from(0, 2), cpus_from(0, 2), alone, NULL, 0);
}

static void order__whole_set(void **state)
{
	int out[CPU_SETSIZE + 1];
	cpu_set_t may = cpus_from(0, CPU_SETSIZE - 1), near = cpus_from(0, 7);

	out[CPU_SETSIZE] = 4711;
	assert_int_equal(cpus_order(&may, &near, alone, out), CPU_SETSIZE / 2);
	assert_true(out[0] == 7 && out[3] == 4 && out[4] == CPU_SETSIZE - 1);
	assert_int_equal(out[CPU_SETSIZE], 4711);
}

static void far__counts(void **state)
{
	cpu_set_t near = cpus_from(4, 7), none = cpus_from(1, 0);

	assert_int_equal(cpus_far((int[]){7, 6, 5}, 3, &near), 0);
	assert_int_equal(cpus_far((int[]){7, 6, 3, 8}, 4, &near), 2);
	assert_int_equal(cpus_far((int[]){7, 6}, 2, &none), 2);
	assert_int_equal(cpus_far(NULL, 0, &none), 0);
}

static void read_is(const char *text, cpu_set_t want)
{
	char path[] = "/tmp/gx-cpus.XXXXXX";
	int fd = mkstemp(path);
	cpu_set_t got;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	assert_int_equal(cpus_read(path, &got), CPU_COUNT(&want) > 0);
	unlink(path);
	assert_true(CPU_EQUAL(&got, &want));
}

static void read__lists(void **state)
{
	cpu_set_t want = cpus_from(0, 3), none;

	CPU_ZERO(&none);
	read_is("0-3\n", want);
	read_is("0,1,2-3\n", want);
	CPU_SET(16, &want);
	CPU_SET(CPU_SETSIZE - 1, &want);
	read_is("0-3,16,1023-5000\n", want);
	read_is("5\n", cpus_from(5, 5));
	read_is("5;6\n", cpus_from(5, 5));
	read_is("\n", none);
	read_is("", none);
	read_is("none\n", none);
	read_is("9-\n", none);
	assert_false(cpus_read("/nonexistent/cpulist", &none));
	assert_int_equal(CPU_COUNT(&none), 0);
}

static void default__by_who_reaches_it(void **state)
{
	struct conf near = {.near = true, .key_file = "/a.key"}, key = {.key_file = "/a.key"};
	struct conf here = {0}, open = {.insecure = true};

	setenv("LOCAL_WORLD_SIZE", "2", 1);
	for (unsigned n = 0; n < 64; n++) {
		unsigned least = n < 4 ? 1 : 2, share = n / 2 < 8 ? n / 2 : 8;

		assert_int_equal(cpus_default(&here, n), least);
		assert_int_equal(cpus_default(&near, n), least);
		assert_int_equal(cpus_default(&key, n), share > least ? share : least);
		assert_int_equal(cpus_default(&open, n), share > least ? share : least);
	}
	setenv("LOCAL_WORLD_SIZE", "8", 1);
	assert_int_equal(cpus_default(&key, 48), 6);
	setenv("LOCAL_WORLD_SIZE", "many", 1); /* as if it were not set */
	assert_in_range(cpus_default(&key, 48), 2, 8);
	unsetenv("LOCAL_WORLD_SIZE");
}

/* What cpus_choose() returns for a list, and that it pins within the half for a number. */
static void choose__a_list(void **state)
{
	struct conf c = {.cpus = {5, 4, 9}, .nr_cpus = 3};
	int cpus[LANES_MAX];

	assert_int_equal(cpus_choose(&c, "", NULL, cpus), 3);
	assert_true(cpus[0] == 5 && cpus[1] == 4 && cpus[2] == 9);
}

/* Ranks of a host one after the other, without an end: what is pinned is pinned once, and within
 * what this process may use. */
static void choose__more_than_there_are(void **state)
{
	struct conf c = {.nr_cores = LANES_MAX};
	int cpus[LANES_MAX], more[LANES_MAX];
	cpu_set_t may, seen;

	CPU_ZERO(&seen);
	assert_int_equal(sched_getaffinity(0, sizeof(may), &may), 0);
	assert_int_equal(cpus_choose(&c, "", NULL, cpus), LANES_MAX);
	for (unsigned i = 0; i < LANES_MAX; i++) {
		if (cpus[i] < 0)
			continue;
		assert_true(CPU_ISSET((unsigned)cpus[i], &may));
		assert_false(CPU_ISSET((unsigned)cpus[i], &seen));
		CPU_SET((unsigned)cpus[i], &seen);
	}
	assert_true(CPU_COUNT(&seen) <= CPU_COUNT(&may) / 2);
	assert_int_equal(cpus_choose(&c, "ffff:00:00.0", NULL, more), LANES_MAX);
	for (unsigned i = 0; i < LANES_MAX; i++)
		assert_true(more[i] < 0 || !CPU_ISSET((unsigned)more[i], &seen));
	cpus_release();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(spread__upper_half), cmocka_unit_test(spread__no_siblings),
		cmocka_unit_test(spread__too_few),    cmocka_unit_test(spread__whole_set),
		cmocka_unit_test(order__near_first),  cmocka_unit_test(order__not_near),
		cmocka_unit_test(order__whole_set),   cmocka_unit_test(read__lists),
		cmocka_unit_test(far__counts),	      cmocka_unit_test(default__by_who_reaches_it),
		cmocka_unit_test(choose__a_list),     cmocka_unit_test(choose__more_than_there_are),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
