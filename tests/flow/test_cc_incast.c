// SPDX-License-Identifier: Apache-2.0
/*
 * Many senders to one receiver, as in a data centre: 100 Gb/s, 20 us without queues, a switch with 1 MB
 * for that port, in virtual time (cc_rig.h). Long transfers, and 64 KiB of each at the same moment, by
 * connections that have never sent before.
 *
 * usage: test_cc_incast [TEST]
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "flow/cc_rig.h"
#include "flow/cc_names.h"

#include <cmocka.h>

#define US	   1000ull
#define LINK_BPS   100e9
#define RTT_NS	   (20 * US)
#define SHORT_B	   65536
#define SHORT_RUNS 20 /* seeds */

static const struct way_cfg port_100g = {
	.seed = 3, .rate_bps = {100000000000}, .nr_rates = 1, .queue_b = 1000000};

static void senders_make(struct rig_sender_cfg s[], unsigned nr, enum cc_kind kind)
{
	for (unsigned i = 0; i < nr; i++)
		s[i] = (struct rig_sender_cfg){.kind = kind, .payload_b = 4096, .rtt_ns = RTT_NS};
}

/* Return: part of the payload that the link carries. */
static double long_run(enum cc_kind kind, unsigned nr)
{
	struct rig_sender_cfg s[RIG_SENDERS];
	uint64_t resent = 0, got = 0;
	double part;
	struct rig r;

	senders_make(s, nr, kind);
	rig_open(&r, &port_100g, s, nr, 1);
	rig_run(&r, 10 * RIG_MS);
	rig_count_anew(&r);
	rig_run(&r, 30 * RIG_MS);
	part = rig_part(&r, LINK_BPS);
	for (unsigned i = 0; i < nr; i++) {
		resent += r.s[i].resent;
		got += r.s[i].got;
	}
	printf("%s, %u long ones: goodput %.3f, queue %.0f kB, Jain %.3f, resent %.2f %%\n",
	       cc_kind_name(kind), nr, part, way_queue_mean_b(&r.way) / 1e3, rig_jain(&r),
	       100.0 * (double)resent / (double)got);
	rig_close(&r);
	return part;
}

static int by_ns(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Return: time in which 99 of 100 are through. */
static uint64_t short_run(enum cc_kind kind, unsigned nr)
{
	struct rig_sender_cfg s[RIG_SENDERS];
	uint64_t took[RIG_SENDERS * SHORT_RUNS];
	unsigned n = 0;

	senders_make(s, nr, kind);
	for (unsigned seed = 1; seed <= SHORT_RUNS; seed++) {
		struct rig r;

		for (unsigned i = 0; i < nr; i++) {
			s[i].total_b = SHORT_B;
			s[i].start_ns = 1 + (seed * 7919 + i * 104729) % US; /* not quite at once */
		}
		rig_open(&r, &port_100g, s, nr, seed);
		rig_run(&r, 100 * RIG_MS);
		for (unsigned i = 0; i < nr; i++) {
			assert_true(r.s[i].done_ns);
			took[n++] = r.s[i].done_ns - s[i].start_ns;
		}
		rig_close(&r);
	}
	qsort(took, n, sizeof(took[0]), by_ns);
	printf("%s, %u of 64 KiB: median %.1f, p99 %.1f, longest %.1f us\n", cc_kind_name(kind), nr,
	       (double)took[n / 2] / 1e3, (double)took[n * 99 / 100] / 1e3,
	       (double)took[n - 1] / 1e3);
	return took[n * 99 / 100];
}

static void incast__long(void **state)
{
	for (unsigned i = 0; i < 4; i++)
		assert_true(long_run(i & 1 ? CC_RATE : CC_SWIFT, i < 2 ? 16 : 64) > 0.9);
}

/* The link alone takes 5.3 us for each. */
static void incast__short(void **state)
{
	static const unsigned nr[] = {1, 16, 64};

	for (unsigned i = 0; i < 6; i++) {
		enum cc_kind kind = i < 3 ? CC_SWIFT : CC_RATE;
		uint64_t p99_ns = short_run(kind, nr[i % 3]);

		if (nr[i % 3] > 1)
			assert_true(p99_ns < 2 * (nr[i % 3] * 5300 + RTT_NS));
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(incast__long),
		cmocka_unit_test(incast__short),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
