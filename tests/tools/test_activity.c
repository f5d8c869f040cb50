// SPDX-License-Identifier: Apache-2.0
/*
 * What is posted when, and what is timed. The things that are kept busy are
 * counters that end by the clock.
 */
#include "gxperf/base/activity.h"

#include <gx/gx.h>

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define NS 3000000ull

/* Ends one unit each @each_ns, one after the other, and remembers how many were out. */
struct thing {
	uint64_t posted, nr, free_ns, each_ns;
	uint64_t end_ns[4096];
	unsigned most;
	struct thing *other; /* how far ahead of it? */
	uint64_t ahead;
	int fail; /* post returns it after 10 */
	unsigned again;
};

static int thing_post(void *arg)
{
	struct thing *t = arg;
	uint64_t now = gx_now();

	if (t->posted >= 10 && t->fail)
		return t->fail;
	if (t->again && t->again--)
		return -EAGAIN;
	t->free_ns = (t->free_ns > now ? t->free_ns : now) + t->each_ns;
	t->end_ns[t->posted++ % 4096] = t->free_ns;
	if (t->posted - t->nr > t->most)
		t->most = (unsigned)(t->posted - t->nr);
	if (t->other && t->posted > t->other->nr && t->posted - t->other->nr > t->ahead)
		t->ahead = t->posted - t->other->nr;
	return 0;
}

static int thing_ended(void *arg, uint64_t *nr)
{
	struct thing *t = arg;

	while (t->nr < t->posted && t->end_ns[t->nr % 4096] <= gx_now())
		t->nr++;
	*nr = t->nr;
	return 0;
}

static struct activity activity_of(struct thing *t, unsigned depth)
{
	return (struct activity){
		.arg = t, .post = thing_post, .ended = thing_ended, .depth = depth};
}

static void activity_run__time_of_one(void **state)
{
	struct thing t = {.each_ns = 20000};
	struct activity p = activity_of(&t, 3);

	assert_true(isnan(activity_us(&p)));
	assert_int_equal(activity_run(&p, 1, NS, false), 0);
	assert_true(t.most <= 3 && t.most >= 2);
	assert_int_equal(t.nr, t.posted);
	assert_true(activity_us(&p) >= 10);
	assert_true(p.last - p.first >= 3);
	assert_true(p.first >= 2);
	/* Again, from where it stands. */
	assert_int_equal(activity_run(&p, 1, NS, false), 0);
	assert_true(activity_us(&p) >= 10);
}

static void activity_run__slow_ones_three_times(void **state)
{
	struct thing slow = {.each_ns = 2 * NS}, fast = {.each_ns = 10000};
	struct activity p[] = {activity_of(&slow, 2), activity_of(&fast, 2)};

	assert_int_equal(activity_run(p, 2, NS, false), 0);
	assert_true(p[0].last - p[0].first >= 3);
	assert_true(activity_us(&p[0]) >= 1e-3 * NS);
	assert_true(fast.nr > slow.nr * 10);
}

static void activity_run__pairs(void **state)
{
	struct thing slow = {.each_ns = 200000}, fast = {.each_ns = 10000, .other = &slow};
	struct activity p[] = {activity_of(&slow, 4), activity_of(&fast, 4)};

	assert_int_equal(activity_run(p, 2, NS, true), 0);
	/* The fast one waits for the slow one, two pairs are out at most. */
	assert_true(fast.ahead <= 2);
	assert_true(activity_us(&p[1]) >= 100);
	assert_int_equal(slow.posted, slow.nr);
}

static void activity_run__again_is_no_failure(void **state)
{
	struct thing t = {.each_ns = 1000, .again = 100};
	struct activity p = activity_of(&t, 1);

	assert_int_equal(activity_run(&p, 1, NS / 10, false), 0);
	assert_int_equal(t.again, 0);
}

static void activity_run__failure(void **state)
{
	struct thing t = {.each_ns = 1000, .fail = -EIO};
	struct activity p = activity_of(&t, 4);

	assert_int_equal(activity_run(&p, 1, NS, false), -EIO);
}

static void median__of_few(void **state)
{
	double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2};

	assert_true(activity_median(odd, 3) == 2);
	assert_true(activity_median(even, 4) == 2.5);
	assert_true(isnan(activity_median(odd, 0)));
}

/* Goes by itself while it is let, a unit each 10 us. */
struct loose {
	enum activity_mode mode;
	uint64_t nr, since_ns;
	unsigned posts, told[3];
};

static int loose_ended(void *arg, uint64_t *nr)
{
	struct loose *l = arg;
	uint64_t now = gx_now();

	if (l->mode == ACTIVITY_FREE) {
		l->nr += (now - l->since_ns) / 10000;
		l->since_ns += (now - l->since_ns) / 10000 * 10000;
	}
	*nr = l->nr;
	return 0;
}

static int loose_post(void *arg)
{
	struct loose *l = arg;

	assert_int_equal(l->mode, ACTIVITY_STEP);
	l->posts++;
	l->nr++;
	return 0;
}

static uint64_t loose_mode(void *arg, enum activity_mode mode)
{
	struct loose *l = arg;

	l->mode = mode;
	l->since_ns = gx_now();
	l->told[mode]++;
	return l->nr;
}

static void activity_run__what_goes_by_itself(void **state)
{
	struct thing t = {.each_ns = 20000};
	struct loose l = {.nr = 5};
	struct activity p[2] = {activity_of(&t, 3),
				{.arg = &l,
				 .post = loose_post,
				 .ended = loose_ended,
				 .mode = loose_mode,
				 .nap_ns = 1000,
				 .depth = 4}};

	assert_int_equal(activity_run(p, 2, NS, false), 0);
	assert_int_equal(l.posts, 0);
	assert_int_equal(l.mode, ACTIVITY_REST);
	assert_true(activity_us(&p[1]) > 9 && activity_us(&p[1]) < 100);
	assert_int_equal(l.told[ACTIVITY_FREE], 1);
	assert_int_equal(activity_run(p, 2, NS, true), 0);
	assert_true(l.posts > 3);
	assert_int_equal(l.told[ACTIVITY_FREE], 1);
	assert_int_equal(l.mode, ACTIVITY_REST);
}

static void median_ratio__round_by_round(void **state)
{
	double a[] = {9, 2, 8}, b[] = {3, 2, 2};

	assert_true(activity_median_ratio(a, b, 3) == 3);
	assert_true(a[0] == 9 && b[2] == 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(activity_run__time_of_one),
		cmocka_unit_test(activity_run__slow_ones_three_times),
		cmocka_unit_test(activity_run__pairs),
		cmocka_unit_test(activity_run__again_is_no_failure),
		cmocka_unit_test(activity_run__failure),
		cmocka_unit_test(median__of_few),
		cmocka_unit_test(activity_run__what_goes_by_itself),
		cmocka_unit_test(median_ratio__round_by_round),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
