/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Congestion control beside streams of cubic, in virtual time (cc_rig.h): who has which part of a
 * narrow way, and how those that grow are told from those that do not (cc_rivals.c).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "flow/cc_part.h"
#include "flow/cc_rig.h"
#include "kit/common_seeds.h"

#include <cmocka.h>

#define US 1000ull
#define MS RIG_MS
#define S  RIG_S

struct beside_row {
	unsigned streams;
	double bps;
	uint64_t rtt_ns;
	double queue_bdp, least, most;
	uint32_t slow; /* packets at which cubic's slow start ends; 0: as found */
	bool jitters;  /* half of the packets are late by 0.8 ms */
};

/* Streams of cubic, and gx 3 s later; from 5 s on. Return: the part of gx. */
static double beside_cubic(const struct beside_row *row, unsigned seed)
{
	struct rig_sender_cfg s[RIG_SENDERS] = {{.kind = CC_RATE, .rtt_ns = row->rtt_ns}};
	struct way_cfg way = {.seed = 7 + seed, .rate_bps = {(uint64_t)row->bps}, .nr_rates = 1};
	double all = 0, mine;
	struct rig r;

	way.queue_b = (uint64_t)(row->queue_bdp * row->bps / 8e9 * (double)row->rtt_ns);
	way.late_ppm = row->jitters ? 500000 : 0;
	way.late_ns = 800 * US;
	s[0].start_ns = 3 * S;
	for (unsigned i = 0; i <= row->streams; i++) {
		if (i)
			s[i] = (struct rig_sender_cfg){.cubic = true,
						       .cubic_slow = row->slow,
						       .rtt_ns = row->rtt_ns,
						       .ack_every = 2,
						       .start_ns = (20 * i + 3 * seed) * MS};
		s[i].payload_b = 1440;
	}
	rig_open(&r, &way, s, row->streams + 1, 1);
	rig_run(&r, 5 * S);
	rig_count_anew(&r);
	rig_run(&r, 35 * S);
	for (unsigned i = 0; i <= row->streams; i++)
		all += rig_b_s(&r, i);
	mine = rig_b_s(&r, 0) / all;
	printf("beside %u cubic, %u Mb/s, %u ms%s, queue %.2f BDP: %.3f of what passes; all %.3f of "
	       "the link\n",
	       row->streams, (unsigned)(row->bps / 1e6), (unsigned)(row->rtt_ns / MS),
	       row->jitters ? " and jitter" : "", row->queue_bdp, mine, rig_part(&r, row->bps));
	assert_true(rig_part(&r, row->bps) > 0.95);
	rig_close(&r);
	return mine;
}

/* What the kernel's cubic gets is in docs/measured/network.md. Rows of 1 Gb/s have cubic with a small
 * window when gx comes, as the kernel's has, which ends slow start early. With jitter gx had 0.73 of a
 * queue of 1 BDP before it looked in DOWN who grows, and 0.89 of a quarter while a probe that found no
 * queue, but loss, counted as one alone. */
static void beside__cubic(void **state)
{
	static const struct beside_row row[] = {{1, 1e8, 10 * MS, 1, 0.33, 0.6, 0},
						{1, 1e8, 10 * MS, 0.25, 0.2, 0.66, 0},
						{1, 1e8, 10 * MS, 4, 0.2, 0.8, 0},
						{8, 1e8, 10 * MS, 1, 0.055, 0.5, 0},
						{8, 1e8, 10 * MS, 0.25, 0.055, 0.5, 0},
						{8, 1e8, 10 * MS, 4, 0.055, 0.5, 0},
						{1, 1e8, 50 * MS, 4, 0.2, 0.8, 0},
						{1, 1e8, 2 * MS, 1, 0.33, 0.84, 0},
						{1, 1e9, 10 * MS, 1, 0.33, 0.7, 300},
						{1, 1e9, 10 * MS, 1, 0.33, 0.7, 300, true},
						{1, 1e9, 10 * MS, 0.25, 0.2, 0.86, 300, true}};

	for (unsigned i = 0; i < (common_rates() ? GX_ARRAY_SIZE(row) : 3); i++)
		for (unsigned k = 0; k < (getenv("GX_TEST_FULL") ? 5 : 1); k++) {
			double mine = beside_cubic(&row[i], k);

			assert_true(mine > row[i].least && mine < row[i].most);
		}
}

enum what { PEAKS, STEP, GROWS, GROWS_JITTERS, GREW };

/* How a round trip passes of 10 ms without a queue. */
static uint64_t round_ns(enum what what, unsigned round)
{
	uint64_t rtt_ns = 12 * MS + (round % 8 == 3 ? 300 * US : 0);

	switch (what) {
	case PEAKS:
		return rtt_ns + (round % 20 < 3 ? 3 * MS : 0);
	case STEP:
		return rtt_ns + (round >= 32 ? 2 * MS : 0);
	case GROWS:
		return rtt_ns + round * 12 * US;
	case GROWS_JITTERS: /* every second span is longer than the one behind it */
		return rtt_ns + round * 12 * US + (round / 8 % 2 ? 0 : 150 * US);
	default:
		return rtt_ns + GX_MIN(round, 56u) * 12 * US;
	}
}

/* One whose window grows by a packet each round trip is seen, whatever a span more or less has. One that
 * makes a peak, a step, or holds still, is not. What has grown and stands for six spans is still
 * believed to grow, for thirteen no longer. */
static void beside__others_that_grow(void **state)
{
	static const struct {
		enum what what;
		unsigned rounds;
		bool grows;
	} row[] = {{PEAKS, 200, false},	      {STEP, 65, false},	  {STEP, 200, false},
		   {GROWS, 32, false},	      {GROWS, 33, true},	  {GROWS, 200, true},
		   {GROWS_JITTERS, 97, true}, {GROWS_JITTERS, 200, true}, {GREW, 105, true},
		   {GREW, 161, false}};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(row); i++) {
		struct cc_trend t = {0};
		uint64_t now_ns = S;

		for (unsigned round = 0; round < row[i].rounds; round++) {
			now_ns += round_ns(row[i].what, round);
			cc_trend_look(&t, now_ns, 10 * MS);
		}
		print_message("row %u: grows %u\n", i, t.grows);
		assert_int_equal(t.grows, row[i].grows);
	}
	/* 83 packets: as fast as Reno, 47 round trips. 833: K is 8.55 s. */
	assert_in_range(cc_regrow_ns(83, 20 * MS), 900 * MS, 1000 * MS);
	assert_in_range(cc_regrow_ns(833, 20 * MS), 8500 * MS, 9000 * MS);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(beside__cubic),
		cmocka_unit_test(beside__others_that_grow),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
