/* SPDX-License-Identifier: Apache-2.0 */
#include "flow/cc_rig.h"
#include "flow/cc_names.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define US 1000ull
#define MS RIG_MS
#define S  RIG_S

static const struct way_cfg link_1g = {
	.seed = 7, .rate_bps = {1000000000}, .nr_rates = 1, .queue_b = 1250000};

static struct rig_paths_cfg same(unsigned nr, unsigned spread, const struct way_cfg *way)
{
	struct rig_paths_cfg p = {.nr = nr, .spread = spread};

	for (unsigned i = 0; i < nr; i++)
		p.way[i] = *way;
	return p;
}

static struct paths_state state_of(const struct rig *r, enum gx_half half)
{
	struct paths_state st;

	paths_state(r->s[0].paths, half, &st);
	return st;
}

/* One sender, 10 ms, to @until_ns. */
static void run(struct rig *r, const struct rig_paths_cfg *p, uint64_t until_ns)
{
	struct rig_sender_cfg s = {.kind = CC_RATE, .payload_b = 4096, .rtt_ns = 10 * MS};

	rig_open(r, &p->way[0], &s, 1, 1);
	rig_paths(r, p);
	rig_run(r, until_ns);
}

static void dead__left_within_3_round_trips_and_used_again(void **state)
{
	struct rig_paths_cfg p = same(8, 1, &link_1g);
	uint64_t t0 = 2 * S, back = 4 * S, got;
	struct rig r;

	p.dead[0].from_ns = t0;
	p.dead[0].to_ns = back;
	run(&r, &p, t0);
	assert_int_equal(state_of(&r, GX_HALF_DATA).use, 1);
	rig_run(&r, t0 + 30 * MS);
	assert_int_equal(state_of(&r, GX_HALF_DATA).moves, 1);
	assert_int_equal(state_of(&r, GX_HALF_DATA).dead, 1);
	for (unsigned i = 1; i < 8; i++)
		if (r.s[0].first_ns[i])
			printf("left after %.1f ms, by path %u\n",
			       (double)(r.s[0].first_ns[i] - t0) / 1e6, i);
	/* As fast as before. The queue of the old path is gone, and nothing is lost for good. */
	rig_run(&r, t0 + 500 * MS);
	rig_count_anew(&r);
	rig_run(&r, back);
	printf("beside it: %.3f of the link\n", rig_b_s(&r, 0) * 8 / 1e9);
	assert_true(rig_b_s(&r, 0) * 8 > 0.9e9);
	assert_true(r.s[0].data_ns[0] < t0 + 30 * MS);
	/* It is asked once a second, and answers. */
	rig_run(&r, back + 1100 * MS);
	assert_int_equal(state_of(&r, GX_HALF_DATA).use, 1);
	assert_int_equal(state_of(&r, GX_HALF_DATA).dead, 0);
	got = r.s[0].got;
	rig_run(&r, back + 2 * S);
	assert_true((double)(r.s[0].got - got) * 4096 * 8 > 0.8 * 0.9e9);
	assert_true(r.s[0].data_ns[0] > back + 1990 * MS);
	rig_close(&r);
}

/* Most of them die together: one is found that does not. */
static void dead__seven_of_eight(void **state)
{
	struct rig_paths_cfg p = same(8, 1, &link_1g);
	struct rig r;

	for (unsigned i = 0; i < 8; i++)
		if (i != 5)
			p.dead[i].from_ns = S, p.dead[i].to_ns = 100 * S;
	run(&r, &p, S + 30 * MS);
	assert_int_equal(state_of(&r, GX_HALF_DATA).use, 1 << 5);
	rig_run(&r, 3 * S);
	assert_int_equal(state_of(&r, GX_HALF_DATA).moves, 1);
	assert_true(r.s[0].got_ns > 3 * S - MS);
	rig_close(&r);
}

/* A path that dies, comes back and dies again is asked less and less often. */
static void dead__a_path_that_flaps_is_asked_less_often(void **state)
{
	struct way_cfg way = link_1g;
	struct rig_paths_cfg p = same(8, 1, &way);
	struct rig r;

	p.way[0].on_ns = p.way[0].off_ns = 300 * MS;
	run(&r, &p, 40 * S);
	printf("flapping: left %u times in 40 s\n", (unsigned)state_of(&r, GX_HALF_DATA).moves);
	assert_in_range(state_of(&r, GX_HALF_DATA).moves, 2, 7);
	rig_close(&r);
}

/* Path 0 carries nothing for so long that it is left. Return: time until it is used again. */
static uint64_t die_ns(struct rig *r)
{
	uint64_t died_ns = r->now_ns;

	r->paths.dead[0].from_ns = died_ns;
	r->paths.dead[0].to_ns = died_ns + 200 * MS;
	rig_run(r, died_ns + 200 * MS);
	assert_int_equal(state_of(r, GX_HALF_DATA).dead, 1);
	while (state_of(r, GX_HALF_DATA).dead && r->now_ns < died_ns + 100 * S)
		rig_run(r, r->now_ns + 20 * MS);
	return r->now_ns - died_ns;
}

/* One that lived for a minute is as good as new. */
static void dead__a_path_that_was_calm_is_asked_soon_again(void **state)
{
	struct way_cfg way = link_1g;
	struct rig_paths_cfg p;
	struct rig r;

	way.rate_bps[0] /= 10;
	p = same(8, 1, &way);
	run(&r, &p, S);
	for (unsigned i = 0; i < 4; i++)
		assert_in_range(die_ns(&r) / MS, 1000 << i, (1000 << i) + 200);
	rig_run(&r, r.now_ns + 65 * S);
	assert_in_range(die_ns(&r) / MS, 1000, 1200);
	rig_close(&r);
}

/* Nothing answers: then nobody knows that it is the path, so it is kept. */
static void blackout__is_not_the_paths_fault(void **state)
{
	struct rig_paths_cfg p = same(8, 1, &link_1g);
	struct rig r;

	for (unsigned i = 0; i < 8; i++)
		p.dead[i].from_ns = S, p.dead[i].to_ns = 3 * S;
	run(&r, &p, 3 * S);
	rig_count_anew(&r);
	rig_run(&r, 5 * S);
	assert_int_equal(state_of(&r, GX_HALF_DATA).moves, 0);
	assert_int_equal(state_of(&r, GX_HALF_DATA).use, 1);
	printf("two seconds dark: %u probes\n", (unsigned)state_of(&r, GX_HALF_DATA).path_sent[7]);
	assert_in_range(state_of(&r, GX_HALF_DATA).path_sent[7], 3, 20);
	assert_true(rig_b_s(&r, 0) * 8 > 0.5e9);
	rig_close(&r);
}

/* Without a fault there are no probes beside the first, whatever the loss and the queue. */
static void alone__costs_nothing(void **state)
{
	struct way_cfg way = link_1g;
	struct rig_paths_cfg p = same(8, 1, &way);
	struct paths_state st;
	struct rig r;

	for (unsigned i = 0; i < 3; i++) {
		p.way[0].loss_ppm = i == 1 ? 10000 : 0;
		p.way[0].queue_b = i == 2 ? 5000000 : 1250000;
		run(&r, &p, 10 * S);
		st = state_of(&r, GX_HALF_DATA);
		printf("case %u: %u packets, %u lost, %u probes of path 1\n", i, (unsigned)st.sent,
		       (unsigned)st.lost, (unsigned)st.path_sent[1]);
		assert_int_equal(st.moves, 0);
		assert_int_equal(st.lost, st.path_lost[0]);
		assert_true(st.path_sent[1] <= 3);
		assert_true(i != 1 || (st.lost > st.sent / 125 && st.lost < st.sent / 80));
		assert_in_range(st.rtt_ns, 10 * MS, 21 * MS);
		rig_close(&r);
	}
}

/* ---- Spread ---- */

/* Row 14: 8 paths of 12.5 Gb/s, one at half rate, 20 us; or three by @late_ns farther. Return: part of the sum. */
static double spread(enum cc_kind kind, uint64_t late_ns)
{
	struct rig_sender_cfg s = {
		.kind = kind, .payload_b = 4096, .rtt_ns = 20 * US, .ack_every = 4};
	struct way_cfg way = {
		.seed = 7, .rate_bps = {12500000000}, .nr_rates = 1, .queue_b = 125000};
	struct rig_paths_cfg p = same(8, 8, &way);
	double sum = 0;
	struct rig r;

	for (unsigned i = 0; i < 3; i++)
		p.way[i].delay_ns = late_ns;
	p.way[0].rate_bps[0] /= late_ns ? 1 : 2;
	for (unsigned i = 0; i < 8; i++)
		sum += (double)p.way[i].rate_bps[0];
	rig_open(&r, &way, &s, 1, 1);
	rig_paths(&r, &p);
	rig_run(&r, 100 * MS);
	rig_count_anew(&r);
	rig_run(&r, 200 * MS);
	sum = rig_b_s(&r, 0) * 8 * (4096 + RIG_HDR_B) / 4096 / sum;
	printf("%s, %s: %.3f of the sum, resent %.2f %%, needless %.2f %%\n", cc_kind_name(kind),
	       late_ns ? "three farther" : "one slower", sum,
	       100.0 * (double)r.s[0].resent / (double)r.s[0].got,
	       100.0 * (double)r.s[0].late / (double)r.s[0].got);
	/* Slow is not dead, even where packets of it count as lost because they are late. */
	assert_int_equal(state_of(&r, GX_HALF_DATA).moves, 0);
	rig_close(&r);
	return sum;
}

static void spread__one_of_eight_at_half_rate(void **state)
{
	assert_true(spread(CC_SWIFT, 0) >= 0.9);
	assert_true(spread(CC_RATE, 0) >= 0.9);
}

/* Three of the paths take ten times as long: reordering by nine round trips. */
static void spread__three_of_eight_are_far(void **state)
{
	assert_true(spread(CC_SWIFT, 180 * US) >= 0.62);
	assert_true(spread(CC_RATE, 180 * US) >= 0.62);
}

static void spread__a_dead_path_carries_nothing(void **state)
{
	struct rig_paths_cfg p = same(8, 4, &link_1g);
	struct rig r;

	p.dead[2].from_ns = S;
	p.dead[2].to_ns = 2 * S;
	run(&r, &p, S);
	assert_int_equal(state_of(&r, GX_HALF_DATA).use, 0xf);
	rig_run(&r, S + 30 * MS);
	assert_int_equal(state_of(&r, GX_HALF_DATA).dead, 1 << 2);
	assert_int_equal(__builtin_popcount(state_of(&r, GX_HALF_DATA).use), 4);
	assert_true(r.s[0].data_ns[2] < S + 30 * MS);
	rig_run(&r, 4 * S);
	assert_int_equal(state_of(&r, GX_HALF_DATA).use, 0xf);
	assert_true(r.s[0].data_ns[2] > 4 * S - 20 * MS);
	rig_close(&r);
}

static void open__refuses(void **state)
{
	static const struct paths_cfg bad[] = {{.places = 128, .nr = 1, .spread = 1},
					       {.places = 128, .nr = 9, .spread = 1},
					       {.places = 128, .nr = 8, .spread = 0},
					       {.places = 128, .nr = 4, .spread = 5},
					       {.places = 100, .nr = 8, .spread = 1}};
	struct paths *p;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++)
		assert_int_equal(paths_open(&bad[i], &p), -22);
	paths_close(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open__refuses),
		cmocka_unit_test(dead__left_within_3_round_trips_and_used_again),
		cmocka_unit_test(dead__seven_of_eight),
		cmocka_unit_test(dead__a_path_that_flaps_is_asked_less_often),
		cmocka_unit_test(dead__a_path_that_was_calm_is_asked_soon_again),
		cmocka_unit_test(blackout__is_not_the_paths_fault),
		cmocka_unit_test(alone__costs_nothing),
		cmocka_unit_test(spread__one_of_eight_at_half_rate),
		cmocka_unit_test(spread__three_of_eight_are_far),
		cmocka_unit_test(spread__a_dead_path_carries_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
