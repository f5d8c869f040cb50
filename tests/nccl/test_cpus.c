/* SPDX-License-Identifier: Apache-2.0 */
/* Which CPUs the NCCL plugin's cores may have, on machines that this one is not. */
#include "nccl/plug.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

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

/* What cpus_choose() returns for a list, and that it pins within the half for a number. */
static void choose__a_list(void **state)
{
	struct conf c = {.cpus = {5, 4, 9}, .nr_cpus = 3};
	int cpus[LANES_MAX];

	assert_int_equal(cpus_choose(&c, NULL, cpus), 3);
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
	assert_int_equal(cpus_choose(&c, NULL, cpus), LANES_MAX);
	for (unsigned i = 0; i < LANES_MAX; i++) {
		if (cpus[i] < 0)
			continue;
		assert_true(CPU_ISSET((unsigned)cpus[i], &may));
		assert_false(CPU_ISSET((unsigned)cpus[i], &seen));
		CPU_SET((unsigned)cpus[i], &seen);
	}
	assert_true(CPU_COUNT(&seen) <= CPU_COUNT(&may) / 2);
	assert_int_equal(cpus_choose(&c, NULL, more), LANES_MAX);
	for (unsigned i = 0; i < LANES_MAX; i++)
		assert_true(more[i] < 0 || !CPU_ISSET((unsigned)more[i], &seen));
	cpus_release();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(spread__upper_half), cmocka_unit_test(spread__no_siblings),
		cmocka_unit_test(spread__too_few),    cmocka_unit_test(spread__whole_set),
		cmocka_unit_test(choose__a_list),     cmocka_unit_test(choose__more_than_there_are),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
