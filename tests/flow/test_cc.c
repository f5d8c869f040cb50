/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Congestion control: cc.c call by call, then whole connections over a narrow way in virtual time
 * (cc_rig.h). The rig asserts after each event that the controller counts under way what is under
 * way. Each scenario prints its figures, which depend on nothing but its seed.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "flow/cc_rig.h"
#include "kit/common_seeds.h"

#include <cmocka.h>

#define US 1000ull
#define MS RIG_MS
#define S  RIG_S

/* ---- cc.c, call by call ---- */

static const struct cc_cfg plain = {
	.kind = CC_RATE, .places = 1024, .packet_b = 1000, .hdr_b = 40, .seed = 1};

static struct cc *cc_new(enum cc_kind kind)
{
	struct cc_cfg cfg = plain;
	struct cc *c = NULL;

	cfg.kind = kind;
	assert_int_equal(cc_open(&cfg, &c), 0);
	return c;
}

static struct cc_state state_of(const struct cc *c, uint64_t now_ns)
{
	struct cc_state st;

	cc_state(c, now_ns, &st);
	return st;
}

static void open__refuses(void **state)
{
	struct cc_cfg bad[] = {plain, plain, plain, plain, plain};
	struct cc *c = NULL;

	bad[0].kind = CC_NONE;
	bad[1].places = 1000;
	bad[2].places = 0;
	bad[3].packet_b = 0;
	bad[4].packet_b = UINT16_MAX;
	for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_int_equal(cc_open(&bad[i], &c), -EINVAL);
}

static void count__bytes_under_way(void **state)
{
	struct cc *c = cc_new(CC_RATE);

	cc_sent(c, 1 * MS, 0, 960);
	cc_sent(c, 1 * MS, 1, 460);
	assert_int_equal(state_of(c, MS).in_flight_b, 1500);
	assert_int_equal(state_of(c, MS).in_flight, 2);
	cc_lost(c, 2 * MS, 0);
	assert_int_equal(state_of(c, MS).in_flight_b, 500);
	cc_acked(c, 3 * MS, 1);
	cc_ack_end(c, 3 * MS);
	assert_int_equal(state_of(c, MS).in_flight_b, 0);
	assert_int_equal(state_of(c, MS).rtt_ns, 2 * MS);
	/* The place of a packet that was lost is free, although the packet may arrive. */
	cc_sent(c, 4 * MS, 1024, 960);
	cc_spurious(c, 4 * MS);
	assert_int_equal(state_of(c, MS).in_flight_b, 1000);
	cc_close(c);
}

/* So many packets a millisecond for so many round trips of 10 ms, and until the last one is told of.
 * Return: the time then. */
static uint64_t fed(struct cc *c, uint64_t now_ns, unsigned rounds, bool limited, unsigned per_ms)
{
	static uint32_t place;
	uint32_t told = place, end = place + 10 * rounds * per_ms;

	for (unsigned ms = 0; told != end; ms++, now_ns += MS) {
		for (unsigned i = 0; i < per_ms && ms >= 10; i++)
			cc_acked(c, now_ns, told++);
		cc_ack_end(c, now_ns);
		for (unsigned i = 0; i < per_ms && place != end; i++)
			cc_sent(c, now_ns, place++, 960);
		if (limited)
			cc_short(c, now_ns, CC_BY_CREDIT);
		else
			cc_room(c, now_ns, 1);
	}
	return now_ns;
}

/* 10,000 B/ms are known; then the receiver allows a fifth for a long time. */
static void limited__lowers_nothing(void **state)
{
	for (int limited = 0; limited <= 1; limited++) {
		struct cc *c = cc_new(CC_RATE);
		uint64_t now_ns = fed(c, MS, 40, false, 10), rate;

		rate = state_of(c, now_ns).rate_b_s;
		assert_in_range(rate, 9000000, 11000000);
		now_ns = fed(c, now_ns + MS, 1500, limited, 2);
		if (limited)
			assert_in_range(state_of(c, now_ns).rate_b_s, rate, 2 * rate);
		else
			assert_in_range(state_of(c, now_ns).rate_b_s, 0, rate / 2);
		cc_close(c);
	}
}

/* Two ends that only talk: a small packet now and then, for which nobody asks for room. */
static void records__do_not_end_the_start(void **state)
{
	struct cc *c = cc_new(CC_RATE);
	uint64_t now_ns = MS;

	for (uint32_t i = 0; i < 20; i++, now_ns += 10 * MS) {
		cc_sent(c, now_ns, 5000 + i, 60);
		cc_acked(c, now_ns + 10 * MS, 5000 + i);
		cc_ack_end(c, now_ns + 10 * MS);
	}
	assert_string_equal(state_of(c, now_ns).phase, "startup");
	cc_close(c);
}

/* A sender whose window is full, and whose records go out all the same: 10 packets a millisecond arrive,
 * and the start ends. */
static void records__beside_a_full_window(void **state)
{
	struct cc *c = cc_new(CC_RATE);
	uint64_t sent_ns[1024] = {0}, now_ns = MS;
	uint32_t sent = 0, told = 0, beside = 0;

	for (unsigned ms = 0; ms < 600; ms++, now_ns += MS) {
		for (unsigned i = 0;
		     i < 10 && told < sent && sent_ns[told % 1024] + 10 * MS <= now_ns; i++)
			cc_acked(c, now_ns, told++);
		cc_ack_end(c, now_ns);
		for (uint32_t n = cc_room(c, now_ns, 64); n; n--) {
			sent_ns[sent % 1024] = now_ns;
			cc_sent(c, now_ns, sent++, 960);
		}
		if (cc_room(c, now_ns, 64) || state_of(c, now_ns).limit != CC_BY_WINDOW)
			continue;
		sent_ns[sent % 1024] = now_ns;
		cc_sent(c, now_ns, sent++, 60);
		beside++;
	}
	assert_in_range(beside, 20, 600);
	assert_string_not_equal(state_of(c, now_ns).phase, "startup");
	cc_close(c);
}

static void pacer__spaces(void **state)
{
	struct cc *c = cc_new(CC_RATE);
	uint64_t now_ns = fed(c, MS, 40, false, 10), last_ns = 0, pace = 0;
	unsigned sent = 0;

	/* Packets leave as the pace says, to a percent, and cc_due() names the time of the next. */
	for (uint64_t end_ns = now_ns + 5 * MS; now_ns < end_ns;) {
		struct cc_state st = state_of(c, now_ns);

		pace = st.pace_b_s;
		if (st.in_flight_b >= st.window_b)
			break;
		if (!cc_room(c, now_ns, 1)) {
			assert_true(cc_due(c) > now_ns);
			now_ns = cc_due(c);
			assert_int_equal(cc_room(c, now_ns, 1), 1);
		}
		if (sent > 40)
			assert_in_range(now_ns - last_ns, 990000000000 / pace,
					1010000000000 / pace);
		last_ns = now_ns;
		cc_sent(c, now_ns, 5000 + sent++, 960);
	}
	assert_true(sent > 60);
	cc_close(c);
}

/* A core that comes late makes up for a bounded part of what it has missed. */
static void pacer__debt_is_bounded(void **state)
{
	struct cc *c = cc_new(CC_RATE);
	uint64_t now_ns = fed(c, MS, 40, false, 10);

	while (cc_room(c, now_ns, 64))
		cc_sent(c, now_ns, 5000 + state_of(c, now_ns).in_flight, 960);
	assert_int_equal(state_of(c, now_ns).limit, CC_BY_LINK);
	cc_ack_end(c, now_ns);
	while (state_of(c, now_ns).in_flight > 5)
		cc_acked(c, now_ns, 4999 + state_of(c, now_ns).in_flight);
	/* A quarter of the round trip of 10 ms, at 10 packets a millisecond. */
	assert_in_range(cc_room(c, now_ns + 1000 * MS, 1000), 24, 32);
	assert_int_equal(state_of(c, now_ns + 1000 * MS).limit, CC_BY_CORE);
	/* An application that had nothing to send gets no such burst. */
	cc_short(c, now_ns + 1000 * MS, CC_BY_APP);
	assert_in_range(cc_room(c, now_ns + 2000 * MS, 1000), 1, 2);
	cc_close(c);
}

/* While the path is full, a late core sends at once what 1 ms of the rate is, and no more. So a port
 * that hands the kernel several packets as one hands it no longer a train. */
static void pacer__burst_is_a_quantum(void **state)
{
	struct cc *c = cc_new(CC_RATE);
	uint64_t now_ns = fed(c, MS, 40, false, 10);
	unsigned sent = 0;

	while (state_of(c, now_ns).in_flight_b < 120 * 1000)
		cc_sent(c, now_ns, 5000 + sent++, 960);
	cc_room(c, now_ns, 64);
	assert_int_equal(state_of(c, now_ns).limit, CC_BY_LINK);
	assert_in_range(cc_room(c, now_ns + 1000 * MS, 1000), 8, 12);
	cc_close(c);
}

/* ---- Connections over a narrow way ---- */

static const struct way_cfg link_1g = {
	.seed = 7, .rate_bps = {1000000000}, .nr_rates = 1, .queue_b = 1250000};

/* At 1 Gb/s, large packets, so that a run is short. */
static struct rig_sender_cfg sender_of(uint64_t rtt_ns)
{
	return (struct rig_sender_cfg){.kind = CC_RATE, .payload_b = 4096, .rtt_ns = rtt_ns};
}

static void say(const char *what, const struct rig *r, double link_bps, uint64_t rtt_ns)
{
	double bdp = link_bps / 8 * (double)rtt_ns / 1e9;
	uint64_t resent = 0, late = 0, got = 1;

	for (unsigned i = 0; i < r->nr; i++) {
		resent += r->s[i].resent;
		late += r->s[i].late;
		got += r->s[i].got;
	}
	printf("%s: rate %.3f, queue %.2f p99 %.2f BDP, resent %.2f %%, needless %.2f %%, Jain "
	       "%.3f\n",
	       what, rig_part(r, link_bps), way_queue_mean_b(&r->way) / bdp,
	       (double)way_queue_p_b(&r->way, 0.99) / bdp, 100.0 * (double)resent / (double)got,
	       100.0 * (double)late / (double)got, rig_jain(r));
}

static void run(struct rig *r, const struct way_cfg *way, const struct rig_sender_cfg *s,
		unsigned nr, uint64_t warm_ns, uint64_t ns)
{
	rig_open(r, way, s, nr, 1);
	rig_run(r, warm_ns);
	rig_count_anew(r);
	rig_run(r, warm_ns + ns);
}

static void alone__fills_the_link(void **state)
{
	static const uint64_t rate[] = {100000000, 1000000000, 5000000000};
	static const uint64_t rtt[] = {200 * US, MS, 10 * MS, 50 * MS};
	char what[64];

	if (!common_rates())
		skip();
	for (unsigned i = 0; i < 3 * 4 * 2; i++) {
		uint64_t bps = rate[i % 3], rtt_ns = rtt[i / 3 % 4];
		double bdp = (double)bps / 8 * (double)rtt_ns / 1e9;
		struct rig_sender_cfg s = sender_of(rtt_ns);
		struct way_cfg way = link_1g;
		struct rig r;

		s.payload_b = bps < 1000000000 ? 1440 : bps > 1000000000 ? 8192 : 4096;
		way.rate_bps[0] = bps;
		way.queue_b = (uint64_t)(bdp / (i < 12 ? 4 : 1));
		way.queue_b = GX_MAX(way.queue_b, 10ull * s.payload_b);
		run(&r, &way, &s, 1, 3 * S, bps > 1000000000 ? S / 2 : 3 * S);
		snprintf(what, sizeof(what), "%u Mb/s, %.1f ms, queue %s BDP",
			 (unsigned)(bps / 1000000), (double)rtt_ns / 1e6, i < 12 ? "1/4" : "1");
		say(what, &r, (double)bps, rtt_ns);
		assert_true(rig_part(&r, (double)bps) > 0.93);
		rig_close(&r);
	}
}

static void alone__first_bytes_are_fast(void **state)
{
	static const uint64_t rtt[] = {MS / 5, MS, 10 * MS, 50 * MS};
	static const uint64_t bps[] = {100000000, 1000000000, 5000000000};

	for (unsigned i = 0; i < 24; i++) {
		uint64_t rtt_ns = rtt[i / 2 % 4], b_s = bps[i / 8] / 8, took_ns[2];

		for (unsigned cubic = 0; cubic < 2; cubic++) {
			struct rig_sender_cfg s = sender_of(rtt_ns);
			struct way_cfg way = link_1g;
			struct rig r;

			if (cubic) {
				s.kind = CC_NONE;
				s.cubic = true;
			}
			s.payload_b = 1440;
			s.total_b = 10000000;
			way.rate_bps[0] = 8 * b_s;
			way.queue_b = GX_MAX(b_s * rtt_ns / S / (i % 2 ? 4 : 1), 15000ull);
			run(&r, &way, &s, 1, 0, 3 * S);
			took_ns[cubic] = r.s[0].done_ns;
			rig_close(&r);
		}
		printf("10 MB at %u Mb/s, %.1f ms, queue %s BDP: %.1f ms, cubic %.1f ms\n",
		       (unsigned)(bps[i / 8] / 1000000), (double)rtt_ns / 1e6, i % 2 ? "1/4" : "1",
		       (double)took_ns[0] / 1e6, (double)took_ns[1] / 1e6);
		/* At the rate of the link, and round trips until that is reached. */
		assert_true(took_ns[0] > 10000000 * S / b_s);
		assert_true(took_ns[0] < took_ns[1] * 12 / 10);
	}
}

static void loss__at_random_costs_little(void **state)
{
	static const struct {
		uint64_t rtt_ns;
		uint32_t ppm;
		double least;
	} row[] = {{10 * MS, 1000, 0.93},
		   {50 * MS, 1000, 0.93},
		   {10 * MS, 10000, 0.90},
		   {50 * MS, 10000, 0.85},
		   {10 * MS, 50000, 0.035}};
	char what[64];

	if (!common_rates())
		skip();
	for (unsigned i = 0; i < sizeof(row) / sizeof(*row); i++) {
		struct rig_sender_cfg s = sender_of(row[i].rtt_ns);
		struct way_cfg way = link_1g;
		struct rig r;

		way.loss_ppm = row[i].ppm;
		way.queue_b = row[i].rtt_ns / 8;
		run(&r, &way, &s, 1, 4 * S, 6 * S);
		snprintf(what, sizeof(what), "loss %.1f %%, %u ms", row[i].ppm / 1e4,
			 (unsigned)(row[i].rtt_ns / MS));
		say(what, &r, 1e9, row[i].rtt_ns);
		assert_true(rig_part(&r, 1e9) > row[i].least);
		/* What is lost goes once more, and hardly anything else does. */
		assert_true((double)r.s[0].late <= 0.002 * (double)r.s[0].got);
		rig_close(&r);
	}
}

static void queue__stays_short(void **state)
{
	for (unsigned deep = 1; deep <= 4; deep += 3) {
		struct rig_sender_cfg s = sender_of(10 * MS);
		struct way_cfg way = link_1g;
		struct rig r;

		way.queue_b *= deep;
		run(&r, &way, &s, 1, 3 * S, 6 * S);
		say(deep > 1 ? "queue of 4 BDP" : "queue of 1 BDP", &r, 1e9, 10 * MS);
		assert_true(way_queue_mean_b(&r.way) < 0.25 * 1250000);
		assert_true(way_queue_p_b(&r.way, 0.99) < 0.51 * 1250000);
		assert_int_equal(r.s[0].resent, 0);
		rig_close(&r);
	}
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Jain's index of flows beside one another, from 5 s to 17 s. It depends much on the seed: with
 * GX_TEST_FULL the median of five, of 30 s each. */
static double shared(const char *what, const struct rig_sender_cfg *s, unsigned nr)
{
	unsigned seeds = getenv("GX_TEST_FULL") ? 5 : 1;
	double jain[5];

	for (unsigned k = 0; k < seeds; k++) {
		struct way_cfg way = link_1g;
		struct rig r;

		way.seed += k;
		rig_open(&r, &way, s, nr, 1 + k);
		rig_run(&r, 5 * S);
		rig_count_anew(&r);
		rig_run(&r, seeds > 1 ? 35 * S : 17 * S);
		say(what, &r, 1e9, 10 * MS);
		assert_true(rig_part(&r, 1e9) > 0.95);
		jain[k] = rig_jain(&r);
		rig_close(&r);
	}
	qsort(jain, seeds, sizeof(*jain), by_size);
	return jain[seeds / 2];
}

static void flows__share(void **state)
{
	static const struct {
		unsigned nr;
		double jain;
	} row[] = {{2, 0.97}, {4, 0.9}, {16, 0.95}};
	struct rig_sender_cfg s[RIG_SENDERS];
	char what[64];

	if (!common_rates())
		skip();
	for (unsigned i = 0; i < 3; i++) {
		for (unsigned k = 0; k < row[i].nr; k++) {
			s[k] = sender_of(10 * MS);
			s[k].payload_b = 1440;
			s[k].start_ns = k * 100 * MS;
		}
		snprintf(what, sizeof(what), "%u flows", row[i].nr);
		/* One seed alone may have it worse than the median, and so may five: of forty starts
		 * four connections have 0.95. */
		assert_true(shared(what, s, row[i].nr) >
			    (getenv("GX_TEST_FULL") ? row[i].jain : 0.8));
	}
}

static void flows__of_other_round_trips_share(void **state)
{
	struct rig_sender_cfg s[2] = {sender_of(10 * MS), sender_of(40 * MS)};

	if (!common_rates())
		skip();
	s[0].payload_b = s[1].payload_b = 1440;
	s[1].start_ns = 100 * MS;
	/* The median of five seeds is 0.89, the least 0.88. It depends on who starts when: of twenty
	 * other starts the median was 0.96, the least 0.78. */
	assert_true(shared("10 ms beside 40 ms", s, 2) > 0.8);
}

static void flows__newcomer(void **state)
{
	struct rig_sender_cfg s[2] = {sender_of(10 * MS), sender_of(10 * MS)};
	struct rig r;

	s[1].start_ns = 5 * S;
	run(&r, &link_1g, s, 2, 8 * S, 2 * S);
	printf("a newcomer after 3 s: %.2f of its share\n", rig_b_s(&r, 1) * 8 / 0.5e9);
	assert_true(rig_b_s(&r, 1) * 8 > 0.8 * 0.5e9);
	rig_close(&r);
}

static void late__is_not_lost(void **state)
{
	struct rig_sender_cfg s = sender_of(10 * MS);
	struct way_cfg way = link_1g;
	struct rig r;

	way.late_ppm = 250000;
	way.late_ns = 10 * MS;
	way.dup_ppm = 1000;
	run(&r, &way, &s, 1, 3 * S, 10 * S);
	say("25 % a round trip late", &r, 1e9, 10 * MS);
	assert_true(rig_part(&r, 1e9) > 0.9);
	assert_true(r.s[0].late < 0.01 * r.s[0].got);
	rig_close(&r);
}

/* From the start, when flow.c does not know yet how late packets are: what it deems lost then must
 * not end the start at a small part of the rate. The time counts from the first packet. */
static void late__from_the_start(void **state)
{
	for (unsigned k = 0; k < (getenv("GX_TEST_FULL") ? 20 : 4); k++) {
		struct rig_sender_cfg s = sender_of(50 * MS);
		struct way_cfg way = link_1g;
		struct rig r;

		way.seed += k;
		way.rate_bps[0] = 100000000;
		way.queue_b = 625000;
		way.late_ppm = 250000;
		way.late_ns = 50 * MS;
		s.payload_b = 1440;
		rig_open(&r, &way, &s, 1, 1 + k);
		rig_run(&r, 8 * S);
		say("25 % late by 50 ms, from the start", &r, 1e8, 50 * MS);
		assert_true(rig_part(&r, 1e8) > 0.9);
		assert_true(r.s[0].late < 0.01 * r.s[0].got);
		rig_close(&r);
	}
}

/* Late by four round trips, which is more than the RTO: of a packet's age it counts no more than the
 * smoothed time. So the window of reordering must grow beyond it. */
static void late__by_several_round_trips(void **state)
{
	struct rig_sender_cfg s = sender_of(50 * MS);
	struct way_cfg way = link_1g;
	struct rig r;

	way.rate_bps[0] = 100000000;
	way.queue_b = 625000;
	way.late_ppm = 250000;
	way.late_ns = 200 * MS;
	s.payload_b = 1440;
	run(&r, &way, &s, 1, 4 * S, 8 * S);
	say("25 % late by 200 ms", &r, 1e8, 50 * MS);
	assert_true(rig_part(&r, 1e8) > 0.2);
	assert_true(r.s[0].late < 0.01 * r.s[0].got);
	rig_close(&r);
}

/* Late by 4,300 packets: more than one acknowledgement can tell of. */
static void late__by_many_packets(void **state)
{
	struct rig_sender_cfg s = sender_of(50 * MS);
	struct way_cfg way = link_1g;
	struct rig r;

	way.queue_b = 6250000;
	way.late_ppm = 250000;
	way.late_ns = 50 * MS;
	s.payload_b = 1440;
	s.ack_late_pct = 25;
	run(&r, &way, &s, 1, 2 * S, 2 * S);
	say("1 Gb/s, 25 % late by 50 ms", &r, 1e9, 50 * MS);
	assert_true(rig_part(&r, 1e9) > 0.8);
	assert_true(r.s[0].late < 0.01 * r.s[0].got);
	rig_close(&r);
}

static void rate__falls_and_rises(void **state)
{
	struct rig_sender_cfg s = sender_of(10 * MS);
	struct way_cfg way = link_1g;
	struct rig r;

	way.nr_rates = 2;
	way.rate_bps[1] = 250000000;
	way.step_ns = 5 * S;
	run(&r, &way, &s, 1, 6 * S, S);
	printf("1 s after the fall: %.2f of the new rate, queue %.2f BDP\n", rig_part(&r, 250e6),
	       way_queue_mean_b(&r.way) / 312500);
	assert_true(rig_part(&r, 250e6) > 0.9);
	assert_true(way_queue_mean_b(&r.way) < 0.25 * 312500);
	rig_run(&r, 12 * S);
	rig_count_anew(&r);
	rig_run(&r, 13 * S);
	printf("2 s after the rise: %.2f of the new rate\n", rig_part(&r, 1e9));
	assert_true(rig_part(&r, 1e9) > 0.9);
	rig_close(&r);
}

/* Where packets come late more are under way than the rate needs, which is no queue: a probe goes on
 * while the rate grows. Else the last second had 0.21. */
static void rate__rises_with_late_packets(void **state)
{
	struct rig_sender_cfg s = sender_of(50 * MS);
	struct way_cfg way = {.seed = 9, .rate_bps = {40000000, 1000000000}, .nr_rates = 2};
	struct rig r;

	s.payload_b = 1440;
	s.ack_late_pct = 25;
	way.queue_b = 15625000;
	way.step_ns = 5 * S;
	way.late_ppm = 250000;
	way.late_ns = 50 * MS;
	rig_open(&r, &way, &s, 1, 3);
	rig_run(&r, 9 * S);
	rig_count_anew(&r);
	rig_run(&r, 10 * S);
	printf("25 times the rate, 25 %% late by 50 ms: 4 s later %.2f of it\n", rig_part(&r, 1e9));
	assert_true(rig_part(&r, 1e9) > 0.9);
	rig_close(&r);
}

static void black_out__passes(void **state)
{
	struct rig_sender_cfg s = sender_of(10 * MS);
	struct way_cfg way = link_1g;
	struct rig r;

	way.on_ns = 3 * S;
	way.off_ns = 2 * S;
	run(&r, &way, &s, 1, 5 * S, 15 * S);
	printf("black-outs of 2 s: %.2f of the time that is left, longest gap %.0f ms\n",
	       rig_part(&r, 0.6e9), (double)r.s[0].last_gap_ns / 1e6);
	assert_true(rig_part(&r, 0.6e9) > 0.85);
	assert_in_range(r.s[0].last_gap_ns, 2000 * MS, 2100 * MS);
	rig_close(&r);
}

/* Half of the time, in parts of 50 ms as a group with cpu.max has them, and shorter ones. A sender
 * without control sends what such a core can send at all. */
static void core__without_cpu(void **state)
{
	static const uint64_t off_ns[] = {50 * MS, 2 * MS};

	for (unsigned i = 0; i < 2; i++) {
		struct rig_sender_cfg s = sender_of(10 * MS);
		struct cc_state st;
		double most;
		struct rig r;

		s.on_ns = s.off_ns = off_ns[i];
		s.kind = CC_NONE;
		run(&r, &link_1g, &s, 1, 3 * S, 2 * S);
		most = rig_part(&r, 1e9);
		rig_close(&r);
		s.kind = CC_RATE;
		run(&r, &link_1g, &s, 1, 3 * S, 5 * S);
		cc_state(r.s[0].pace.cc, r.now_ns, &st);
		say("core runs half the time", &r, 1e9, 10 * MS);
		printf("  without control %.3f\n", most);
		assert_true(rig_part(&r, 1e9) > 0.8 * most);
		assert_true(st.ns[CC_BY_CORE] > S || off_ns[i] < 5 * MS);
		rig_close(&r);
	}
}

/* Others take half to three quarters of the CPUs of both ends, at random. What the cores could not do
 * says nothing of the path: the rate that is believed stays. */
static void core__starved_at_both_ends(void **state)
{
	static const struct {
		uint64_t slice_ns;
		uint32_t tx_pct, rx_pct;
	} row[] = {{5 * MS, 50, 50}, {3 * MS, 75, 75}, {5 * MS, 70, 0}, {5 * MS, 0, 70}};

	for (unsigned i = 0; i < sizeof(row) / sizeof(*row); i++) {
		struct rig_sender_cfg s = sender_of(10 * MS);
		struct way_cfg way = link_1g;
		struct cc_state st;
		double got[2];
		struct rig r;

		way.rate_bps[0] = 100000000;
		way.queue_b = 125000;
		s.payload_b = 1440;
		s.slice_ns = row[i].slice_ns;
		s.tx_off_pct = row[i].tx_pct;
		s.rx_off_pct = row[i].rx_pct;
		for (unsigned on = 0; on < 2; on++) {
			s.kind = on ? CC_RATE : CC_NONE;
			run(&r, &way, &s, 1, 3 * S, 8 * S);
			got[on] = rig_part(&r, 1e8);
			if (on)
				cc_state(r.s[0].pace.cc, r.now_ns, &st);
			rig_close(&r);
		}
		printf("CPUs of others %u and %u %%, %u ms: %.3f, without control %.3f; believed "
		       "%.2f of the link\n",
		       row[i].tx_pct, row[i].rx_pct, (unsigned)(row[i].slice_ns / MS), got[1],
		       got[0], (double)st.rate_b_s * 8 / 1e8);
		assert_true(got[1] > 0.75 * got[0]);
		assert_true((double)st.rate_b_s * 8 > 0.8e8);
		assert_true((double)st.rate_b_s * 8 < 1.3e8);
	}
}

/* Others use the receiver's CPU for slices of 128 us: it acknowledges in lumps, and what waits for it is
 * under way without a queue. Without room for lumps this is 0.74. */
static void core__acks_in_lumps(void **state)
{
	struct rig_sender_cfg s = sender_of(MS);
	struct way_cfg way = link_1g;
	struct rig r;

	s.payload_b = 1440;
	s.slice_ns = 128 * US;
	s.rx_off_pct = 60;
	way.queue_b = 31250;
	run(&r, &way, &s, 1, S, 2 * S);
	say("acknowledged in lumps, queue 1/4", &r, 1e9, MS);
	assert_true(rig_part(&r, 1e9) > 0.77);
	rig_close(&r);
}

static void credit__then_free(void **state)
{
	struct rig_sender_cfg s = sender_of(10 * MS);
	struct rig r;

	/* The rate is known, then the receiver allows a tenth of it for 20 s, then all again. */
	s.credit = 125000 / 4096;
	s.credit_ns = 10 * S;
	run(&r, &link_1g, &s, 1, 10 * S + 100 * MS, S);
	say("10 round trips after credit came", &r, 1e9, 10 * MS);
	assert_true(rig_part(&r, 1e9) > 0.96);
	rig_close(&r);
}

static void application__is_slow(void **state)
{
	struct rig_sender_cfg s = sender_of(10 * MS);
	struct cc_state st;
	struct rig r;

	s.app_b_s = 10000000;
	run(&r, &link_1g, &s, 1, 3 * S, 2 * S);
	cc_state(r.s[0].pace.cc, r.now_ns, &st);
	assert_in_range(rig_b_s(&r, 0), 9900000, 10100000);
	assert_int_equal(st.limit, CC_BY_APP);
	assert_int_equal(r.s[0].resent, 0);
	rig_close(&r);
}

/* Four flows, a deep buffer: with marks from a tenth of a BDP on their queue is short and nothing is
 * lost. What the link marked, the receivers counted and the senders heard. */
static void marks__keep_the_queue_short(void **state)
{
	double mean[2];

	for (int on = 0; on <= 1; on++) {
		struct rig_sender_cfg s[4];
		struct way_cfg way = link_1g;
		double heard = 0;
		struct rig r;

		for (unsigned i = 0; i < 4; i++) {
			s[i] = sender_of(10 * MS);
			s[i].start_ns = i * 100 * MS;
		}
		way.mark_b = on ? 125000 : 0;
		way.queue_b = 4 * 1250000;
		rig_open(&r, &way, s, 4, 1);
		rig_run(&r, 5 * S);
		rig_count_anew(&r);
		for (unsigned i = 0; i < 4; i++)
			heard -= flow_marks(r.s[i].tx);
		rig_run(&r, 15 * S);
		say(on ? "4 flows, marked from 0.1 BDP on" : "4 flows, not marked", &r, 1e9,
		    10 * MS);
		mean[on] = way_queue_mean_b(&r.way);
		for (unsigned i = 0; i < 4; i++)
			heard += flow_marks(r.s[i].tx);
		/* But for those under way at the begin and at the end. */
		assert_float_equal(heard, (double)r.way.n.marks, on ? 1000 : 0);
		assert_true(on == (heard > 5000));
		assert_true(rig_part(&r, 1e9) > 0.9);
		assert_true(!on || !r.s[0].resent);
		rig_close(&r);
	}
	assert_true(mean[1] < 0.5 * mean[0]);
}

/* A peer may say of marks what it likes. Then its own packets come slowly, and no count is wrong. */
static void marks__of_a_liar(void **state)
{
	static const uint32_t lie[] = {16, 1000000000, UINT32_MAX, 1u << 31};

	for (unsigned i = 0; i < sizeof(lie) / sizeof(*lie); i++) {
		struct rig_sender_cfg s[2] = {sender_of(10 * MS), sender_of(10 * MS)};
		struct cc_state st;
		struct rig r;

		s[0].lie = lie[i];
		run(&r, &link_1g, s, 2, 3 * S, 5 * S);
		cc_state(r.s[0].pace.cc, r.now_ns, &st);
		printf("a peer adds %u marks each time: it gets %.3f, the other %.3f\n", lie[i],
		       rig_b_s(&r, 0) * 8 / 1e9, rig_b_s(&r, 1) * 8 / 1e9);
		assert_true(st.window_b >= 4ull * (4096 + RIG_HDR_B));
		/* The last two never add up to more than before. */
		assert_true(i < 2 ? rig_b_s(&r, 0) * 8 < 0.1e9 : rig_b_s(&r, 0) * 8 > 0.3e9);
		assert_true(r.s[0].got_b > 0);
		assert_true(rig_b_s(&r, 1) * 8 > 0.4e9);
		rig_close(&r);
	}
}

static void swift__holds_a_target(void **state)
{
	struct rig_sender_cfg s[4];
	struct way_cfg way = link_1g;
	struct rig r;

	way.rate_bps[0] = 10000000000;
	way.queue_b = 1000000;
	for (unsigned i = 0; i < 4; i++) {
		s[i] = sender_of(50 * US);
		s[i].kind = CC_SWIFT;
	}
	run(&r, &way, s, 4, S / 2, S / 2);
	say("swift, 4 flows", &r, 1e10, 50 * US);
	assert_true(rig_part(&r, 1e10) > 0.95);
	assert_true(rig_jain(&r) > 0.9);
	/* 25 us and what flow scaling adds: far from the 800 us that the queue holds. */
	assert_true(way_queue_mean_b(&r.way) < 350000);
	assert_int_equal(r.s[0].resent, 0);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(state_of(r.s[i].pace.cc, S).kind, CC_SWIFT);
	rig_close(&r);
}

/* Beside a stream that has no congestion control, swift would starve. */
static void swift__turns_into_rate(void **state)
{
	struct rig_sender_cfg s[2] = {sender_of(MS), sender_of(MS)};
	struct rig r;

	s[0].kind = CC_SWIFT;
	s[1].kind = CC_NONE;
	s[1].start_ns = 200 * MS;
	rig_open(&r, &link_1g, s, 2, 1);
	rig_run(&r, 200 * MS);
	assert_int_equal(state_of(r.s[0].pace.cc, S).kind, CC_SWIFT);
	rig_run(&r, 2 * S);
	assert_int_equal(state_of(r.s[0].pace.cc, S).kind, CC_RATE);
	rig_close(&r);
}

static void seed__says_all(void **state)
{
	struct rig_sender_cfg s[2] = {sender_of(10 * MS), sender_of(10 * MS)};
	struct way_cfg way = link_1g;
	uint64_t hash[3];
	struct rig r;

	way.loss_ppm = 10000;
	for (unsigned i = 0; i < 3; i++) {
		rig_open(&r, &way, s, 2, i < 2 ? 1 : 2);
		rig_run(&r, 3 * S);
		hash[i] = r.hash;
		rig_close(&r);
	}
	assert_int_equal(hash[0], hash[1]);
	assert_true(hash[0] != hash[2]);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open__refuses),
		cmocka_unit_test(count__bytes_under_way),
		cmocka_unit_test(limited__lowers_nothing),
		cmocka_unit_test(records__do_not_end_the_start),
		cmocka_unit_test(records__beside_a_full_window),
		cmocka_unit_test(pacer__spaces),
		cmocka_unit_test(pacer__debt_is_bounded),
		cmocka_unit_test(pacer__burst_is_a_quantum),
		cmocka_unit_test(alone__fills_the_link),
		cmocka_unit_test(alone__first_bytes_are_fast),
		cmocka_unit_test(loss__at_random_costs_little),
		cmocka_unit_test(queue__stays_short),
		cmocka_unit_test(flows__share),
		cmocka_unit_test(flows__of_other_round_trips_share),
		cmocka_unit_test(flows__newcomer),
		cmocka_unit_test(late__is_not_lost),
		cmocka_unit_test(late__from_the_start),
		cmocka_unit_test(late__by_several_round_trips),
		cmocka_unit_test(late__by_many_packets),
		cmocka_unit_test(rate__falls_and_rises),
		cmocka_unit_test(rate__rises_with_late_packets),
		cmocka_unit_test(black_out__passes),
		cmocka_unit_test(core__without_cpu),
		cmocka_unit_test(core__starved_at_both_ends),
		cmocka_unit_test(core__acks_in_lumps),
		cmocka_unit_test(credit__then_free),
		cmocka_unit_test(application__is_slow),
		cmocka_unit_test(marks__keep_the_queue_short),
		cmocka_unit_test(marks__of_a_liar),
		cmocka_unit_test(swift__holds_a_target),
		cmocka_unit_test(swift__turns_into_rate),
		cmocka_unit_test(seed__says_all),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
