/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_way.c, the model under the bottleneck: times of a link to the nanosecond, its queue, its token
 * bucket, rates that change, black-outs, and the shares of mishaps, each against arithmetic.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "net/net_way.h"

#include <cmocka.h>

#define US 1000ull
#define MS 1000000ull
#define S  1000000000ull

/* 1,000 bytes take 1 ms. */
static const struct way_cfg plain = {.rate_bps = {8000000}, .nr_rates = 1, .queue_b = 5000};

static struct way way_new(const struct way_cfg *cfg)
{
	struct way w;

	assert_int_equal(way_open(&w, cfg), 0);
	return w;
}

static void open__refuses(void **state)
{
	static const struct way_cfg bad[] = {
		{.nr_rates = 1},
		{.rate_bps = {1}, .nr_rates = 0},
		{.rate_bps = {1}, .nr_rates = WAY_RATES + 1, .step_ns = 1},
		{.rate_bps = {1, 2}, .nr_rates = 2}};
	struct way w;

	for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_int_equal(way_open(&w, &bad[i]), -EINVAL);
}

static void link__times(void **state)
{
	struct way_cfg cfg = plain;
	struct way w;

	cfg.delay_ns = 7 * MS;
	w = way_new(&cfg);
	/* At once; behind the first; after a pause. */
	assert_int_equal(way_take(&w, 10 * MS, 1000, false).due_ns, 18 * MS);
	assert_int_equal(way_take(&w, 10 * MS + 500 * US, 500, false).due_ns, 18 * MS + 500 * US);
	assert_int_equal(way_take(&w, 20 * MS, 2000, false).due_ns, 29 * MS);
	way_close(&w);
}

static void queue__tail_is_dropped(void **state)
{
	struct way w = way_new(&plain);

	/* One is being served, five wait. */
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(way_take(&w, 0, 1000, false).drop, WAY_PASSES);
	assert_int_equal(way_take(&w, 0, 1, false).drop, WAY_QUEUE_FULL);
	/* The second leaves the queue when the first is through. */
	assert_int_equal(way_take(&w, MS - 1, 1000, false).drop, WAY_QUEUE_FULL);
	assert_int_equal(way_take(&w, MS, 1000, false).due_ns, 7 * MS);
	/* 600 bytes are free, and 1,000 do not fit. */
	assert_int_equal(way_take(&w, 2 * MS, 400, false).drop, WAY_PASSES);
	assert_int_equal(way_take(&w, 2 * MS, 1000, false).drop, WAY_QUEUE_FULL);
	assert_int_equal(w.n.drop[WAY_QUEUE_FULL], 3);
	assert_int_equal(w.queue_max_b, 5000);
	way_close(&w);
}

static void queue__figures(void **state)
{
	struct way_cfg cfg = plain;
	struct way w;

	cfg.queue_b = WAY_BINS - 2; /* so that each byte has a bin */
	cfg.rate_bps[0] = 8000;	    /* a byte a ms */
	w = way_new(&cfg);
	way_take(&w, 0, 100, false);
	way_take(&w, 0, 100, false); /* waits 100 ms */
	way_take(&w, 0, 200, false); /* waits 200 ms */
	way_pass(&w, 1000 * MS);
	/* 300 bytes for 100 ms, 200 for 100 ms, none for 800 ms. */
	assert_true(way_queue_mean_b(&w) == 50);
	assert_int_equal(way_queue_p_b(&w, 0.8), 0);
	assert_int_equal(way_queue_p_b(&w, 0.801), 200);
	assert_int_equal(way_queue_p_b(&w, 0.9), 200);
	assert_int_equal(way_queue_p_b(&w, 0.91), 300);
	way_take(&w, 1000 * MS, 100, false);
	way_take(&w, 1000 * MS, 50, false);
	way_count_anew(&w, 1050 * MS);
	assert_int_equal(w.n.packets, 0);
	way_pass(&w, 1150 * MS);
	assert_true(way_queue_mean_b(&w) == 25);
	assert_int_equal(w.queue_max_b, 50);
	way_close(&w);
}

static void queue__many_wait(void **state)
{
	struct way_cfg cfg = plain;
	struct way w;

	cfg.queue_b = 1ull << 40;
	w = way_new(&cfg);
	/* While the ring grows twice, and has wrapped. */
	for (unsigned i = 0; i < 5000; i++) {
		assert_int_equal(way_take(&w, i * MS / 2, 1000, false).due_ns, (i + 1) * MS);
		assert_int_equal(w.queued_b, (i - i / 2) * 1000);
	}
	way_pass(&w, 4900 * MS);
	assert_int_equal(w.queued_b, 99 * 1000);
	way_close(&w);
}

static void bucket__lets_a_burst_through(void **state)
{
	struct way_cfg cfg = plain;
	struct way w;

	cfg.bucket_b = 3000;
	w = way_new(&cfg);
	way_take(&w, 0, 3000, false); /* begins full of what 0 s have filled: nothing */
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(way_take(&w, S, 1000, false).due_ns, S);
	assert_int_equal(way_take(&w, S, 1000, false).due_ns, S + MS);
	assert_int_equal(w.queued_b, 0);
	assert_int_equal(way_take(&w, S, 1000, false).due_ns, S + 2 * MS);
	assert_int_equal(w.queued_b, 1000);
	/* 3 ms fill 1,000 bytes beyond what was owed. */
	assert_int_equal(way_take(&w, S + 3 * MS, 1000, false).due_ns, S + 3 * MS);
	assert_int_equal(way_take(&w, S + 3 * MS, 1000, false).due_ns, S + 4 * MS);
	way_close(&w);
}

static void rates__take_turns(void **state)
{
	struct way_cfg cfg = plain;
	struct way w;

	/* 8, 2, 0 Mb/s, for 10 ms each. */
	cfg.nr_rates = 3;
	cfg.rate_bps[1] = 2000000;
	cfg.step_ns = 10 * MS;
	cfg.queue_b = 1000000;
	w = way_new(&cfg);
	assert_true(way_bits(&w, 65 * MS) == 2 * 100000 + 40000);
	assert_int_equal(way_take(&w, 0, 9000, false).due_ns, 9 * MS);
	assert_int_equal(way_take(&w, 0, 2000, false).due_ns, 14 * MS); /* 1,000 fast, 1,000 slow */
	assert_int_equal(way_take(&w, 0, 1500, false).due_ns, 20 * MS);
	assert_int_equal(way_take(&w, 0, 1000, false).due_ns, 31 * MS); /* not in the third part */
	assert_int_equal(way_take(&w, 25 * MS, 9000, false).due_ns, 40 * MS);
	assert_int_equal(way_take(&w, 75 * MS, 500, false).due_ns, 77 * MS);
	way_close(&w);
}

static void dark__by_when_it_leaves(void **state)
{
	struct way_cfg cfg = plain;
	struct way w;

	cfg.on_ns = 3 * MS;
	cfg.off_ns = 2 * MS;
	w = way_new(&cfg);
	for (unsigned i = 0; i < 10; i++) {
		bool dark = (i + 1) % 5 >= 3;

		assert_int_equal(way_take(&w, i * MS, 1000, false).drop,
				 dark ? WAY_DARK : WAY_PASSES);
	}
	way_close(&w);
}

static void mark__what_can_be_marked(void **state)
{
	struct way_cfg cfg = plain;
	struct way w;

	cfg.mark_b = 2000;
	w = way_new(&cfg);
	for (unsigned i = 0; i < 4; i++)
		assert_false(way_take(&w, 0, 1000, true).mark); /* finds 2,000 at most */
	assert_true(way_take(&w, 0, 1000, true).mark);
	assert_false(way_take(&w, 0, 1000, false).mark);
	assert_int_equal(way_take(&w, 0, 1000, true).drop, WAY_QUEUE_FULL);
	assert_int_equal(w.n.marks, 1);
	way_close(&w);
}

/* Is @got of @n one of @ppm, but for four standard deviations? */
static bool is_share(uint64_t got, uint64_t n, double ppm)
{
	double want = (double)n * ppm / 1e6, off = (double)got - want;

	return off * off <= 16 * want;
}

static void mishaps__shares_and_seed(void **state)
{
	struct way_cfg cfg = plain;
	struct way_counts first;
	struct way w;
	unsigned n = 1000000;

	cfg.loss_ppm = 10000;
	cfg.late_ppm = 250000;
	cfg.late_ns = 50 * MS;
	cfg.dup_ppm = 1000;
	cfg.corrupt_ppm = 20000;
	for (uint64_t seed = 0; seed < 2; seed++) {
		cfg.seed = seed;
		for (unsigned again = 0; again < 2; again++) {
			w = way_new(&cfg);
			for (uint64_t i = 0; i < n; i++) {
				struct way_fate f = way_take(&w, i * MS, 1000, false);

				if (!f.drop)
					assert_int_equal(f.due_ns, (i + 1 + 50 * f.late) * MS);
			}
			way_close(&w);
			if (again)
				assert_memory_equal(&w.n, &first, sizeof(first));
			else if (seed)
				assert_int_not_equal(w.n.drop[WAY_LOST], first.drop[WAY_LOST]);
			first = w.n;
		}
		assert_true(is_share(first.drop[WAY_LOST], n, 10000));
		assert_true(is_share(first.lates, first.passed, 250000));
		assert_true(is_share(first.dups, first.passed, 1000));
		assert_true(is_share(first.corrupts, first.passed, 20000));
		assert_int_equal(first.passed + first.drop[WAY_LOST], n);
		assert_int_equal(first.passed_b, 1000 * first.passed);
	}
}

/* The n-th packet's loss is the same whatever else is on. */
static void mishaps__each_by_itself(void **state)
{
	struct way_cfg cfg = plain, other;
	struct way a, b;

	cfg.loss_ppm = 100000;
	other = cfg;
	other.dup_ppm = other.late_ppm = other.corrupt_ppm = 500000;
	a = way_new(&cfg);
	b = way_new(&other);
	for (uint64_t i = 0; i < 10000; i++)
		assert_int_equal(way_take(&a, i * MS, 1000, false).drop,
				 way_take(&b, i * MS, 1000, false).drop);
	assert_true(is_share(a.n.drop[WAY_LOST], 10000, 100000));
	way_close(&a);
	way_close(&b);
}

static void burst__number_and_length(void **state)
{
	struct way_cfg cfg = plain;
	unsigned bursts = 0, n = 2000000;
	bool in = false;
	struct way w;

	cfg.burst_ppm = 1000;
	cfg.burst_len = 8;
	w = way_new(&cfg);
	for (uint64_t i = 0; i < n; i++) {
		bool lost = way_take(&w, i * MS, 1000, false).drop == WAY_BURST;

		bursts += lost && !in;
		in = lost;
	}
	assert_true(is_share(bursts, n - w.n.drop[WAY_BURST], 1000));
	assert_in_range(100 * w.n.drop[WAY_BURST] / bursts, 740, 860);
	way_close(&w);
	cfg.burst_len = 0;
	w = way_new(&cfg);
	for (uint64_t i = 0; i < n; i++)
		way_take(&w, i * MS, 1000, false);
	assert_true(is_share(w.n.drop[WAY_BURST], n, 1000));
	way_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open__refuses),
		cmocka_unit_test(link__times),
		cmocka_unit_test(queue__tail_is_dropped),
		cmocka_unit_test(queue__figures),
		cmocka_unit_test(queue__many_wait),
		cmocka_unit_test(bucket__lets_a_burst_through),
		cmocka_unit_test(rates__take_turns),
		cmocka_unit_test(dark__by_when_it_leaves),
		cmocka_unit_test(mark__what_can_be_marked),
		cmocka_unit_test(mishaps__shares_and_seed),
		cmocka_unit_test(mishaps__each_by_itself),
		cmocka_unit_test(burst__number_and_length),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
