// SPDX-License-Identifier: Apache-2.0
/*
 * The log-linear histogram of gxperf: which cell, how exact, percentiles.
 */
#include "gxperf/report/hist.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static int hist_setup(void **state)
{
	*state = calloc(1, sizeof(struct hist));
	return *state ? 0 : -1;
}

static int hist_teardown(void **state)
{
	free(*state);
	return 0;
}

static void hist_cell__linear_below_the_limit(void **state)
{
	for (uint32_t v = 0; v < HIST_LINEAR; v++) {
		assert_int_equal(hist_cell(v), v);
		assert_int_equal(hist_cell_top(v), v);
	}
}

static void hist_cell__neighbours_touch(void **state)
{
	for (uint32_t i = 0; i + 1 < HIST_CELLS; i++) {
		uint64_t top = hist_cell_top(i);

		assert_int_equal(hist_cell(top), i);
		assert_int_equal(hist_cell(top + 1), i + 1);
	}
	assert_int_equal(hist_cell_top(HIST_CELLS - 1), HIST_VALUE_MAX);
	assert_int_equal(hist_cell(HIST_VALUE_MAX), HIST_CELLS - 1);
}

static void hist_cell__three_digits(void **state)
{
	for (uint64_t v = HIST_LINEAR; v < HIST_VALUE_MAX; v += v / 7) {
		uint64_t top = hist_cell_top(hist_cell(v));

		assert_true(top >= v);
		assert_true((top - v) * 1000 <= v);
	}
}

static void hist_record__sums_and_largest(void **state)
{
	struct hist *h = *state;

	hist_record(h, 10);
	hist_record(h, 20);
	hist_record(h, 3000000);
	assert_int_equal(h->count, 3);
	assert_int_equal(h->sum, 3000030);
	assert_int_equal(h->max, 3000000);
	assert_true(hist_average(h) == 1000010.0);
}

static void hist_record__too_large_counts_as_largest(void **state)
{
	struct hist *h = *state;

	hist_record(h, UINT64_MAX);
	assert_int_equal(h->count, 1);
	assert_int_equal(h->cell[HIST_CELLS - 1], 1);
}

static void hist_percentile__nothing_recorded(void **state)
{
	struct hist *h = *state;

	assert_int_equal(hist_percentile(h, 500), 0);
	assert_true(hist_average(h) == 0);
}

static void hist_percentile__one_value(void **state)
{
	struct hist *h = *state;

	hist_record(h, 5000001);
	assert_int_equal(hist_percentile(h, 1), 5000001);
	assert_int_equal(hist_percentile(h, 500), 5000001);
	assert_int_equal(hist_percentile(h, 1000), 5000001);
}

static void hist_percentile__thousand_values(void **state)
{
	struct hist *h = *state;

	for (uint64_t v = 1; v <= 1000; v++)
		hist_record(h, v);
	assert_int_equal(hist_percentile(h, 500), 500);
	assert_int_equal(hist_percentile(h, 990), 990);
	assert_int_equal(hist_percentile(h, 999), 999);
	assert_int_equal(hist_percentile(h, 1000), 1000);
}

static void hist_merge__adds_and_reset_clears(void **state)
{
	struct hist *h = *state, *other = calloc(1, sizeof(*other));

	assert_non_null(other);
	hist_record(h, 7);
	hist_record(other, 9);
	hist_record(other, 70000);
	hist_merge(h, other);
	assert_int_equal(h->count, 3);
	assert_int_equal(h->sum, 70016);
	assert_int_equal(h->max, 70000);
	assert_int_equal(hist_percentile(h, 500), 9);
	hist_reset(h);
	assert_int_equal(h->count, 0);
	assert_int_equal(hist_percentile(h, 999), 0);
	free(other);
}

#define HIST_TEST(fn) cmocka_unit_test_setup_teardown(fn, hist_setup, hist_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hist_cell__linear_below_the_limit),
		cmocka_unit_test(hist_cell__neighbours_touch),
		cmocka_unit_test(hist_cell__three_digits),
		HIST_TEST(hist_record__sums_and_largest),
		HIST_TEST(hist_record__too_large_counts_as_largest),
		HIST_TEST(hist_percentile__nothing_recorded),
		HIST_TEST(hist_percentile__one_value),
		HIST_TEST(hist_percentile__thousand_values),
		HIST_TEST(hist_merge__adds_and_reset_clears),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
