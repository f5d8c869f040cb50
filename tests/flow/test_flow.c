/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flow.c, function by function, with faults planned packet by packet; then two flows over a small
 * model of a network in virtual time (seeded loss, duplication, reordering), where everything sent
 * must be acknowledged, credit conserved, and goodput and needless resends within their bounds. The
 * last tests print their figures.
 */
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "flow/flow.h"

#include "gx_internal/port.h"

#include <cmocka.h>

#define US 1000ull

static const struct flow_cfg cfg_lossy = {.window = 256, .tx_credit = 8, .rx_credit = 8};

static struct flow *flow_new(const struct flow_cfg *cfg)
{
	struct flow *f = NULL;

	assert_int_equal(flow_open(cfg, &f), 0);
	return f;
}

/* Send @n packets numbered from @pkt on, at @now, by @half. */
static void send_by(struct flow *f, uint64_t now, enum gx_half half, uint32_t pkt, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct flow_pkt p = {.pkt = pkt + i, .kind = 1, .len = 4096, .half = half};

		assert_true(flow_room(f) > 0);
		flow_sent(f, now, &p);
	}
}

static void send_n(struct flow *f, uint64_t now, uint32_t pkt, uint32_t n)
{
	send_by(f, now, GX_HALF_CTL, pkt, n);
}

/* Take @n packets from psn on. */
static void take_n(struct flow *f, uint64_t now, uint64_t psn, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(flow_rx_look(f, (uint32_t)(psn + i)), FLOW_RX_NEW);
		flow_rx_take(f, now, (uint32_t)(psn + i), false);
	}
}

/* An ACK of the last @n psns up to @largest. */
static struct gx_wire_ack ack_of(uint64_t largest, uint32_t n)
{
	struct gx_wire_ack a = {.largest = largest, .nr_words = (n + 63) / 64};

	for (uint32_t w = 0; w < a.nr_words; w++)
		a.words[w] = n >= 64 * (w + 1) ? ~0ull : (1ull << n % 64) - 1;
	return a;
}

static uint32_t drain_acked(struct flow *f)
{
	struct flow_pkt p;
	uint32_t n = 0;

	while (flow_next_acked(f, &p))
		n++;
	return n;
}

static uint32_t drain_lost(struct flow *f)
{
	struct flow_pkt p;
	uint32_t n = 0;

	while (flow_next_lost(f, &p))
		n++;
	return n;
}

/* ---- flow_sums ---- */

/* The first packet behind probes has left out many numbers: those were never sent. One that is lost
 * within a window was. */
static void sums__numbers_that_were_left_out(void **state)
{
	static const uint64_t jumps[] = {0, 722000000, 2 * FLOW_WINDOW_MAX};
	struct flow_sums now;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(jumps); i++) {
		struct flow *f = flow_new(&cfg_lossy);

		take_n(f, 5, jumps[i], 100);
		flow_sums(f, &now);
		assert_int_equal(now.rx_pkts, 100);
		take_n(f, 6, jumps[i] + 110, 1); /* ten before it are late, and count as numbered */
		flow_sums(f, &now);
		assert_int_equal(now.rx_pkts, 111);
		take_n(f, 7, jumps[i] + 100, 10);
		flow_sums(f, &now);
		assert_int_equal(now.rx_pkts, 111);
		flow_close(f);
	}
}

/* ---- flow_open ---- */

static void open__bad_window(void **state)
{
	static const uint32_t bad[] = {0, 1, 32, 63, 65, 96, 2 * FLOW_WINDOW_MAX, UINT32_MAX};
	struct flow *f = NULL;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		struct flow_cfg cfg = {.window = bad[i]};

		assert_int_equal(flow_open(&cfg, &f), -EINVAL);
		assert_null(f);
	}
	flow_close(NULL);
}

/* ---- Sender ---- */

static void sent__numbers_and_room(void **state)
{
	struct flow_cfg cfg = {.window = 64, .tx_psn = 0xfffffffffffffff0ull};
	struct flow *f = flow_new(&cfg);
	struct flow_pkt p = {.kind = 1};

	for (uint32_t i = 0; i < 64; i++) {
		assert_int_equal(flow_room(f), 64 - i);
		assert_true(flow_sent(f, 5, &p) == cfg.tx_psn + i);
		assert_int_equal(flow_outstanding(f), i + 1);
	}
	assert_int_equal(flow_room(f), 0);
	flow_close(f);
}

static void credit__use_and_wrap(void **state)
{
	struct flow_cfg cfg = {.window = 64, .tx_credit = 0xfffffffc};
	struct flow *f = flow_new(&cfg);
	struct gx_wire_ack a;

	send_n(f, 0, 0, 2);
	flow_credit_use(f, 0xfffffffa);
	assert_int_equal(flow_credit(f), 2);
	a = ack_of(0, 1);
	a.credit = 4; /* 8 more, over the end */
	assert_int_equal(flow_ack(f, 10, &a), 0);
	assert_int_equal(flow_credit(f), 10);
	a = ack_of(1, 2);
	a.credit = 0xfffffffe; /* an old ACK that came late */
	assert_int_equal(flow_ack(f, 10, &a), 0);
	assert_int_equal(flow_credit(f), 10);
	flow_close(f);
}

static void ack__hands_back_in_order(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a = ack_of(199, 200);
	struct flow_pkt p;

	send_n(f, 100, 1000, 200);
	assert_int_equal(flow_ack(f, 200, &a), 0);
	for (uint32_t i = 0; i < 200; i++) {
		assert_true(flow_next_acked(f, &p));
		assert_int_equal(p.pkt, 1000 + i);
		assert_int_equal(p.sent_ns, 100);
		assert_int_equal(p.len, 4096);
	}
	assert_false(flow_next_acked(f, &p));
	assert_false(flow_next_lost(f, &p));
	assert_int_equal(flow_outstanding(f), 0);
	assert_int_equal(flow_room(f), 256);
	flow_close(f);
}

static void ack__twice(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a = ack_of(9, 10);

	send_n(f, 0, 0, 20);
	assert_int_equal(flow_ack(f, 100, &a), 0);
	assert_int_equal(drain_acked(f), 10);
	assert_int_equal(flow_ack(f, 200, &a), 0);
	assert_int_equal(drain_acked(f), 0);
	assert_int_equal(flow_srtt_ns(f), 100);
	flow_close(f);
}

static void ack__stale_fills_in(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack newer = ack_of(19, 10), older = ack_of(9, 10);

	send_n(f, 0, 0, 20);
	assert_int_equal(flow_ack(f, 20 * US, &newer), 0);
	assert_int_equal(drain_acked(f), 10);
	assert_int_equal(flow_ack(f, 20 * US, &older), 0);
	assert_int_equal(drain_acked(f), 10);
	assert_int_equal(drain_lost(f), 0);
	flow_close(f);
}

static void ack__impossible(void **state)
{
	struct flow_cfg cfg = cfg_lossy;
	struct gx_wire_ack a;
	struct flow *f;

	cfg.tx_psn = 1000;
	f = flow_new(&cfg);
	a = ack_of(1000, 1);
	a.credit = 1000;
	assert_int_equal(flow_ack(f, 5, &a), -EPROTO); /* nothing was sent */
	send_n(f, 0, 0, 100);
	a.largest = 1100;
	assert_int_equal(flow_ack(f, 5, &a), -EPROTO); /* the next one */
	a.largest = 999;
	assert_int_equal(flow_ack(f, 5, &a), -EPROTO); /* before the first */
	for (unsigned n = 11; n <= 130; n++) {
		a = ack_of(1009, n);
		assert_int_equal(flow_ack(f, 5, &a), -EPROTO); /* reaches back before it */
	}
	a = ack_of(1009, 10);
	a.nr_words = 0;
	assert_int_equal(flow_ack(f, 5, &a), -EPROTO);
	a.nr_words = GX_WIRE_ACK_WORDS + 1;
	assert_int_equal(flow_ack(f, 5, &a), -EPROTO);
	assert_int_equal(flow_credit(f), 8);
	assert_int_equal(flow_outstanding(f), 100);
	assert_int_equal(drain_acked(f) + drain_lost(f), 0);
	assert_int_equal(flow_srtt_ns(f), 0);
	flow_close(f);
}

static void ack__every_shape(void **state)
{
	/* Any set of bits at any place: exactly those packets come back, each once. */
	struct flow_cfg cfg = {.window = 64, .lossless = true, .tx_psn = 77};
	struct flow *f = flow_new(&cfg);
	uint64_t rnd = 1, got = 0, sent = 0;

	for (unsigned round = 0; round < 20000; round++) {
		struct gx_wire_ack a = {.nr_words = 2};
		uint32_t room = flow_room(f);

		send_n(f, round, (uint32_t)sent, room);
		sent += room;
		rnd = rnd * 6364136223846793005ull + 1442695040888963407ull;
		a.largest = 77 + sent - 1 - (rnd >> 33) % GX_MIN(64, sent);
		a.words[0] = (rnd ^ rnd >> 7) | 1;
		if (a.largest - 77 < 63)
			a.words[0] &= (2ull << (a.largest - 77)) - 1;
		else if (a.largest - 77 >= 127)
			a.words[1] = rnd >> 5 | rnd << 40;
		assert_int_equal(flow_ack(f, round, &a), 0);
		got += drain_acked(f);
		assert_int_equal(flow_outstanding(f), sent - got);
	}
	assert_true(got > 20000);
	flow_close(f);
}

static void room__held_records_survive(void **state)
{
	/* What waits in the queue is not overwritten however late it is taken. */
	struct flow_cfg cfg = {.window = 64, .lossless = true};
	struct flow *f = flow_new(&cfg);
	struct flow_pkt p;
	uint32_t sent = 0, want = 0;

	while (flow_room(f)) {
		struct gx_wire_ack a;

		send_n(f, 0, sent, 1);
		a = ack_of(sent, 1);
		sent++;
		assert_int_equal(flow_ack(f, 1, &a), 0);
	}
	assert_int_equal(sent, 128);
	while (flow_next_acked(f, &p))
		assert_int_equal(p.pkt, want++);
	assert_int_equal(want, sent);
	assert_int_equal(flow_room(f), 64);
	flow_close(f);
}

/* ---- Loss ---- */

static void rack__time_not_count(void **state)
{
	/* 100 packets sent at one instant, the first one missing: whatever comes after it, it is
	 * lost only when min_rtt / 4 has passed. */
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a = ack_of(99, 99);

	send_n(f, 0, 0, 100);
	assert_int_equal(flow_ack(f, 20 * US, &a), 0);
	assert_int_equal(drain_acked(f), 99);
	assert_int_equal(drain_lost(f), 0);
	assert_int_equal(flow_due(f), 25 * US);
	assert_int_equal(flow_tick(f, 25 * US - 1), 0);
	assert_int_equal(drain_lost(f), 0);
	assert_int_equal(flow_tick(f, 25 * US), 0);
	assert_int_equal(drain_lost(f), 1);
	assert_int_equal(flow_outstanding(f), 0);
	assert_true(flow_due(f) == UINT64_MAX);
	flow_close(f);
}

static void rack__sent_long_before(void **state)
{
	/* Sent 6 us before one that arrived: lost at once, the one sent 4 us before it not yet. */
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a = ack_of(2, 1);
	struct flow_pkt p;

	send_n(f, 0, 0, 1);
	send_n(f, 2 * US, 1, 1);
	send_n(f, 6 * US, 2, 1);
	assert_int_equal(flow_ack(f, 26 * US, &a), 0);
	assert_true(flow_next_lost(f, &p));
	assert_int_equal(p.pkt, 0);
	assert_false(flow_next_lost(f, &p));
	assert_int_equal(flow_due(f), 27 * US);
	flow_close(f);
}

static void rack__window_grows_and_shrinks(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	uint64_t now = 0, psn = 0, wait[40];

	/* In each round one packet is overtaken; the first three times it arrives after all. */
	for (unsigned round = 0; round < GX_ARRAY_SIZE(wait); round++, psn += 2) {
		struct gx_wire_ack a = ack_of(psn + 1, 1);

		send_n(f, now, 0, 2);
		flow_ack(f, now + 20 * US, &a);
		wait[round] = flow_due(f) - now - 20 * US;
		flow_tick(f, flow_due(f));
		assert_int_equal(drain_lost(f), 1);
		a = ack_of(psn + 1, 2);
		if (round < 3)
			flow_ack(f, now + 100 * US, &a);
		drain_acked(f);
		now += 200 * US;
	}
	assert_int_equal(flow_spurious(f), 3);
	assert_int_equal(wait[0], 5 * US);
	assert_int_equal(wait[1], 10 * US);
	assert_int_equal(wait[2], 20 * US);
	assert_int_equal(wait[3], 40 * US);
	assert_int_equal(wait[18], 40 * US);
	assert_int_equal(wait[19], 20 * US);
	assert_int_equal(wait[36], 10 * US);
	flow_close(f);
}

static void rack__many_losses_are_one_round(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a = ack_of(1, 1);

	send_n(f, 0, 0, 2);
	flow_ack(f, 20 * US, &a);
	flow_tick(f, flow_due(f));
	assert_int_equal(drain_lost(f), 1);
	a = ack_of(1, 2);
	flow_ack(f, 40 * US, &a); /* it came: the window is 10 us now */
	drain_acked(f);
	send_n(f, 100 * US, 0, 100);
	a = ack_of(101, 1);
	flow_ack(f, 120 * US, &a);
	assert_int_equal(flow_due(f), 130 * US);
	flow_tick(f, 130 * US);
	assert_int_equal(drain_lost(f), 99);
	send_n(f, 200 * US, 0, 2);
	a = ack_of(103, 1);
	flow_ack(f, 220 * US, &a);
	assert_int_equal(flow_due(f), 230 * US);
	flow_close(f);
}

/* The receiver takes control packets before the data that was sent before them: that says nothing of
 * the data, however long it waits. */
static void rack__a_half_says_nothing_of_the_other(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a = ack_of(101, 2);

	send_by(f, 0, GX_HALF_DATA, 0, 100);
	send_by(f, 10 * US, GX_HALF_CTL, 100, 2);
	assert_int_equal(flow_ack(f, 30 * US, &a), 0);
	assert_int_equal(drain_acked(f), 2);
	assert_int_equal(flow_tick(f, 47 * US), 0);
	assert_int_equal(flow_tick(f, 300 * US), FLOW_PROBE << GX_HALF_DATA);
	assert_int_equal(drain_lost(f), 0);
	a = ack_of(101, 102);
	assert_int_equal(flow_ack(f, 400 * US, &a), 0);
	assert_int_equal(drain_acked(f), 100);
	assert_int_equal(flow_spurious(f), 0);
	assert_false(flow_is_uneven(f));

	/* Nor the other way round. */
	send_by(f, 1000 * US, GX_HALF_CTL, 0, 1);
	send_by(f, 1010 * US, GX_HALF_DATA, 0, 1);
	a = ack_of(103, 1);
	assert_int_equal(flow_ack(f, 1030 * US, &a), 0);
	assert_int_equal(flow_tick(f, 1300 * US), FLOW_PROBE << GX_HALF_CTL);
	assert_int_equal(drain_lost(f), 0);
	flow_close(f);
}

/* Each half finds its own losses, also behind an older packet of the other half that waits. */
static void rack__each_half_by_itself(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a = {.largest = 4, .nr_words = 1, .words = {1 << 2 | 1 << 1 | 1}};
	struct flow_pkt p;

	send_by(f, 0, GX_HALF_CTL, 0, 1);
	send_by(f, 0, GX_HALF_DATA, 1, 3);
	send_by(f, 0, GX_HALF_CTL, 4, 1);
	assert_int_equal(flow_ack(f, 20 * US, &a), 0); /* 0 and 1 did not come */
	assert_int_equal(drain_acked(f), 3);
	assert_int_equal(flow_tick(f, 25 * US), 0);
	assert_true(flow_next_lost(f, &p));
	assert_int_equal(p.pkt, 0);
	assert_true(flow_next_lost(f, &p));
	assert_int_equal(p.pkt, 1);
	assert_int_equal(flow_outstanding(f), 0);

	send_by(f, 100 * US, GX_HALF_CTL, 5, 1); /* waits; psn 5 */
	send_by(f, 100 * US, GX_HALF_DATA, 6, 2);
	a = ack_of(7, 1);
	assert_int_equal(flow_ack(f, 120 * US, &a), 0);
	assert_int_equal(flow_tick(f, 125 * US), 0);
	assert_int_equal(drain_lost(f), 1);
	assert_int_equal(flow_outstanding(f), 1);
	flow_close(f);
}

/* Data is lost for good, while control packets come and are acknowledged: by time alone. Nothing was
 * silent, so congestion control need not hear of it. */
static void tick__rto_of_a_half(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a = ack_of(0, 1);
	unsigned probes = 0;
	uint64_t now;

	send_by(f, 0, GX_HALF_CTL, 0, 1);
	flow_ack(f, 20 * US, &a);
	send_by(f, 100 * US, GX_HALF_DATA, 0, 5);
	for (now = 100 * US; now < 600 * US; now += 20 * US) {
		unsigned what = flow_tick(f, now);

		assert_int_equal(what & ~(FLOW_PROBE << GX_HALF_DATA), 0);
		probes += what != 0;
		send_by(f, now, GX_HALF_CTL, 0, 1);
		a = ack_of(a.largest + (now == 100 * US ? 6 : 1), 1);
		assert_int_equal(flow_ack(f, now + 10 * US, &a), 0);
		assert_int_equal(drain_lost(f), 0);
	}
	assert_in_range(probes, 2, 4);
	assert_int_equal(flow_tick(f, 600 * US), 0);
	assert_int_equal(drain_lost(f), 5);
	assert_int_equal(flow_outstanding(f), 0);
	assert_int_equal(flow_room(f), 256);
	flow_close(f);
}

/* Losses that were none leave nothing behind. One that came late does, for as many packets as are
 * remembered. */
static void uneven__of_late(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a = ack_of(9, 10);
	uint64_t now = 1000000 * US;

	send_n(f, 0, 0, 10);
	assert_int_equal(flow_tick(f, now), FLOW_RTO);
	assert_int_equal(drain_lost(f), 10);
	assert_true(flow_is_uneven(f));
	flow_ack(f, now + 500 * US, &a);
	assert_int_equal(drain_acked(f), 10);
	assert_false(flow_is_uneven(f));

	send_n(f, now += 1000 * US, 0, 2);
	a = ack_of(11, 1);
	flow_ack(f, now + 20 * US, &a);
	a = ack_of(11, 2);
	flow_ack(f, now + 30 * US, &a);
	assert_int_equal(drain_acked(f), 2);
	assert_int_equal(drain_lost(f), 0);
	assert_true(flow_is_uneven(f));
	for (uint64_t psn = 12; psn < 12 + 512; psn++) {
		assert_true(flow_is_uneven(f));
		send_n(f, now += 20 * US, 0, 1);
		a = ack_of(psn, 1);
		flow_ack(f, now + 20 * US, &a);
		drain_acked(f);
	}
	assert_false(flow_is_uneven(f));
	flow_close(f);
}

static void rtt__held_time_is_not_ours(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a = ack_of(0, 1);

	send_n(f, 0, 0, 3);
	flow_ack(f, 20 * US, &a);
	assert_int_equal(flow_srtt_ns(f), 20 * US);
	a = ack_of(1, 2);
	a.delay_ns = 8 * US;
	flow_ack(f, 28 * US, &a);
	assert_int_equal(flow_srtt_ns(f), 20 * US);
	a = ack_of(2, 3);
	a.delay_ns = UINT32_MAX; /* a lie: no less than the least that was seen */
	flow_ack(f, 28 * US, &a);
	assert_int_equal(flow_srtt_ns(f), 20 * US);
	flow_close(f);
}

static void tick__probe(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct flow_pkt probe = {.kind = 0};
	struct gx_wire_ack a = ack_of(0, 1);
	uint64_t now = 100 * US;

	send_n(f, 0, 0, 1);
	flow_ack(f, 20 * US, &a);
	send_n(f, now, 1, 10); /* all of them are lost */
	assert_int_equal(flow_due(f), now + 48 * US);
	assert_int_equal(flow_tick(f, now + 48 * US - 1), 0);
	assert_int_equal(flow_tick(f, now + 48 * US), FLOW_PROBE);
	flow_sent(f, now + 48 * US, &probe);
	assert_int_equal(flow_due(f), now + 48 * US + 96 * US); /* the next after twice the time */
	a = ack_of(11, 1);
	flow_ack(f, now + 68 * US, &a);
	assert_int_equal(drain_acked(f), 1); /* packet 0; the probe is not handed out */
	assert_int_equal(drain_lost(f), 10);
	assert_int_equal(flow_outstanding(f), 0);
	flow_close(f);
}

static void tick__probe_above_room(void **state)
{
	struct flow_cfg cfg = {.window = 64};
	struct flow *f = flow_new(&cfg);
	struct flow_pkt probe = {.kind = 0};
	uint64_t now = 0;
	unsigned probes = 0, what;

	send_n(f, 0, 0, 64);
	assert_int_equal(flow_room(f), 0);
	while ((what = flow_tick(f, now = flow_due(f))) != FLOW_RTO) {
		assert_int_equal(what, FLOW_PROBE);
		flow_sent(f, now, &probe);
		assert_int_equal(flow_room(f), 0);
		assert_in_range(++probes, 1, 40);
	}
	assert_true(probes > 0);
	assert_int_equal(drain_lost(f), 64);
	assert_int_equal(flow_room(f), 64);
	flow_close(f);
}

static void tick__rto_backs_off(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a = ack_of(0, 1);
	uint64_t now = 20 * US, rto;
	uint64_t psn = 0;

	send_n(f, 0, 0, 1);
	flow_ack(f, now, &a);
	drain_acked(f);
	for (unsigned round = 0; round < 10; round++) {
		send_n(f, now, 0, 5);
		psn += 5;
		rto = now + ((500 * US) << GX_MIN(round, 6u));
		while (flow_due(f) < rto) {
			now = flow_due(f);
			assert_int_equal(flow_tick(f, now), FLOW_PROBE);
		}
		assert_int_equal(flow_due(f), rto);
		now = rto;
		assert_int_equal(flow_tick(f, now), FLOW_RTO);
		assert_int_equal(drain_lost(f), 5);
		assert_true(flow_due(f) == UINT64_MAX);
	}
	/* The peer is back: the next RTO is short again, and counts from the ACK on. */
	send_n(f, now, 0, 2);
	a = ack_of(psn + 1, 1);
	flow_ack(f, now + 20 * US, &a);
	assert_int_equal(drain_acked(f), 1);
	for (rto = now + 520 * US; flow_due(f) < rto;)
		assert_int_equal(flow_tick(f, flow_due(f)), FLOW_PROBE);
	assert_int_equal(flow_tick(f, rto), FLOW_RTO);
	flow_close(f);
}

static void tick__rto_from_variation(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a = ack_of(0, 1);

	send_n(f, 0, 0, 1);
	flow_ack(f, 1000 * US, &a); /* srtt 1 ms, rttvar 0.5 ms: RTO 3 ms */
	send_n(f, 1000 * US, 0, 1);
	while (flow_due(f) < 4000 * US)
		assert_int_equal(flow_tick(f, flow_due(f)), FLOW_PROBE);
	assert_int_equal(flow_due(f), 4000 * US);
	assert_int_equal(flow_tick(f, 4000 * US), FLOW_RTO);
	flow_close(f);
}

/* A peer that was put aside for 4 ms, and may be again. */
static void tick__rto_above_what_was_seen(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a = ack_of(0, 1);
	uint64_t now;
	uint32_t psn = 6;
	unsigned what;

	send_n(f, 0, 0, 1);
	flow_ack(f, 20 * US, &a);
	send_n(f, 100 * US, 0, 5);
	while ((what = flow_tick(f, flow_due(f))) != FLOW_RTO)
		assert_int_equal(what, FLOW_PROBE);
	assert_int_equal(drain_lost(f), 5);
	a = ack_of(5, 5);
	flow_ack(f, 4100 * US, &a);
	assert_int_equal(flow_spurious(f), 5);
	send_n(f, 5000 * US, 0, 1);
	while (flow_due(f) < 13000 * US)
		assert_int_equal(flow_tick(f, flow_due(f)), FLOW_PROBE);
	assert_int_equal(flow_due(f), 13000 * US);

	/* After two spans of time without it, it is forgotten. */
	a = ack_of(6, 1);
	flow_ack(f, 5020 * US, &a);
	for (now = 2100000 * US; psn < 200; now += 20 * US) {
		send_n(f, now, 0, 1);
		a = ack_of(++psn, 1);
		flow_ack(f, now + 20 * US, &a);
		drain_acked(f);
	}
	send_n(f, now, 0, 1);
	while (flow_due(f) < now + 500 * US)
		assert_int_equal(flow_tick(f, flow_due(f)), FLOW_PROBE);
	assert_int_equal(flow_due(f), now + 500 * US);
	flow_close(f);
}

/* Before the first sample the round trip may be a satellite's: nothing is deemed lost for a second.
 * Probes go out all the time, so the acknowledgement of one tells of a first packet that was lost. */
static void tick__rto_before_a_sample(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct flow_pkt probe = {.kind = 0};
	uint64_t now, last = 0;
	unsigned probes = 0;

	send_n(f, 0, 0, 1);
	while ((now = flow_due(f)) < 1000000 * US) {
		assert_int_equal(now - last, (500 * US) << GX_MIN(probes, 6u));
		last = now;
		probes++;
		assert_int_equal(flow_tick(f, now), FLOW_PROBE);
		flow_sent(f, now, &probe);
	}
	assert_int_equal(drain_lost(f), 0);
	assert_int_equal(now, 1000000 * US);
	assert_int_equal(flow_tick(f, now), FLOW_RTO);
	assert_int_equal(drain_lost(f), 1);
	flow_close(f);
}

static void tick__rto_was_wrong(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a = ack_of(9, 10);
	struct flow_pkt p;

	send_n(f, 0, 0, 10);
	assert_int_equal(flow_tick(f, 1000000 * US), FLOW_RTO);
	assert_int_equal(drain_lost(f), 10);
	flow_ack(f, 1000500 * US, &a);
	assert_int_equal(flow_spurious(f), 10);
	for (uint32_t i = 0; i < 10; i++) {
		assert_true(flow_next_acked(f, &p));
		assert_true(p.late);
		assert_int_equal(p.pkt, i);
	}
	assert_false(flow_next_acked(f, &p));
	assert_int_equal(flow_room(f), 256);
	assert_int_equal(flow_srtt_ns(f), 1000500 * US);
	flow_ack(f, 1000500 * US, &a);
	assert_int_equal(flow_spurious(f), 10);

	/* No sign of reordering: the window is min_rtt / 4 as before. */
	send_n(f, 1001000 * US, 0, 2);
	a = ack_of(11, 1);
	flow_ack(f, 1001100 * US, &a);
	assert_int_equal(flow_due(f), 1001125 * US);
	flow_close(f);
}

static void tick__lossless_never(void **state)
{
	struct flow_cfg cfg = {.window = 64, .lossless = true, .ordered = true};
	struct flow *f = flow_new(&cfg);
	struct gx_wire_ack a = ack_of(9, 1);

	send_n(f, 0, 0, 10);
	assert_true(flow_due(f) == UINT64_MAX);
	assert_int_equal(flow_tick(f, 1ull << 60), 0);
	flow_ack(f, 1ull << 60, &a);
	assert_int_equal(flow_tick(f, UINT64_MAX), 0);
	assert_int_equal(drain_lost(f), 0);
	assert_int_equal(flow_outstanding(f), 9);
	flow_close(f);
}

/* ---- Receiver ---- */

static void rx_look__new_dup_old(void **state)
{
	struct flow_cfg cfg = cfg_lossy;
	struct flow *f;

	cfg.rx_psn = 5000;
	f = flow_new(&cfg);
	assert_int_equal(flow_rx_look(f, 4999), FLOW_RX_OLD);
	assert_int_equal(flow_rx_look(f, 5000), FLOW_RX_NEW);
	assert_int_equal(flow_rx_look(f, 5000), FLOW_RX_NEW); /* looking changes nothing */
	take_n(f, 0, 5000, 1);
	assert_int_equal(flow_rx_look(f, 5000), FLOW_RX_DUP);
	flow_rx_take(f, 0, 5000 + FLOW_WINDOW_MAX, false);
	assert_int_equal(flow_rx_look(f, 5000), FLOW_RX_OLD);
	assert_int_equal(flow_rx_look(f, 5001), FLOW_RX_NEW);
	assert_int_equal(flow_rx_look(f, 5000 + FLOW_WINDOW_MAX - 1), FLOW_RX_NEW);
	flow_rx_take(f, 0, 5000 + 100000, false); /* all bits are someone else's now */
	for (uint32_t psn = 5000 + 100001 - FLOW_WINDOW_MAX; psn < 5000 + 100000; psn++)
		assert_int_equal(flow_rx_look(f, psn), FLOW_RX_NEW);
	assert_int_equal(flow_rx_look(f, 5000 + 100000 - FLOW_WINDOW_MAX), FLOW_RX_OLD);
	flow_close(f);
}

static void rx_take__random_order(void **state)
{
	/* Against a plain array: 4,096 psns around the wrap of 32 bits, within 64 of their place.
	 */
	struct flow_cfg cfg = cfg_lossy;
	static uint8_t seen[4096];
	struct gx_wire_ack a;
	uint64_t rnd = 3, top = 0;
	struct flow *f;

	memset(seen, 0, sizeof(seen));
	cfg.rx_psn = 0x1fffffc00ull;
	f = flow_new(&cfg);
	for (uint32_t i = 0; i < 3 * sizeof(seen); i++) {
		uint64_t at;

		rnd = rnd * 6364136223846793005ull + 1442695040888963407ull;
		at = GX_MIN(i / 3 + (rnd >> 40) % 64, sizeof(seen) - 1);
		assert_int_equal(flow_rx_look(f, (uint32_t)(cfg.rx_psn + at)),
				 seen[at] ? FLOW_RX_DUP : FLOW_RX_NEW);
		if (seen[at])
			continue;
		flow_rx_take(f, i, (uint32_t)(cfg.rx_psn + at), false);
		seen[at] = 1;
		top = GX_MAX(top, at);
		assert_true(flow_ack_build(f, i, &a));
		assert_true(a.largest == cfg.rx_psn + top);
		for (uint32_t b = 0; b < 64 * a.nr_words; b++)
			assert_int_equal(a.words[b / 64] >> b % 64 & 1, b <= top && seen[top - b]);
	}
	flow_close(f);
}

static void ack_due__every_and_delay(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a;

	assert_false(flow_ack_due(f, 1000 * US));
	assert_false(flow_ack_build(f, 0, &a));
	flow_ack_want(f);
	assert_false(flow_ack_due(f, 0)); /* nothing that it could say */
	take_n(f, 100 * US, 0, 1);
	assert_true(flow_ack_due(f, 100 * US)); /* still wanted */
	assert_true(flow_ack_build(f, 100 * US, &a));
	assert_true(flow_ack_due_ns(f) == UINT64_MAX);

	take_n(f, 200 * US, 1, 15);
	assert_false(flow_ack_due(f, 200 * US));
	assert_int_equal(flow_ack_due_ns(f), 208 * US);
	assert_false(flow_ack_due(f, 208 * US - 1));
	assert_true(flow_ack_due(f, 208 * US));
	take_n(f, 200 * US, 16, 1);
	assert_true(flow_ack_due(f, 200 * US));
	assert_true(flow_ack_build(f, 203 * US, &a));
	assert_int_equal(a.delay_ns, 3 * US);
	assert_int_equal(a.largest, 16);
	assert_int_equal(a.credit, 8);
	assert_false(flow_ack_due(f, 1000 * US));
	flow_close(f);
}

static void ack_due__flag_and_again(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a;

	flow_rx_take(f, 100 * US, 0, true);
	assert_true(flow_ack_due(f, 100 * US));
	assert_true(flow_ack_build(f, 100 * US, &a));
	flow_rx_again(f, 200 * US);
	assert_true(flow_ack_due(f, 200 * US));
	assert_true(flow_ack_build(f, 200 * US, &a));
	flow_rx_again(f, 200 * US); /* many at once: one ACK in a while */
	assert_false(flow_ack_due(f, 201 * US));
	assert_true(flow_ack_due(f, 202 * US));
	flow_close(f);
}

static void ack_due__gap(void **state)
{
	struct flow_cfg cfg = cfg_lossy;
	struct flow *f = flow_new(&cfg), *ordered;

	cfg.ordered = true;
	ordered = flow_new(&cfg);
	take_n(f, 100 * US, 0, 2);
	take_n(ordered, 100 * US, 0, 2);
	assert_false(flow_ack_due(f, 100 * US));
	take_n(f, 100 * US, 3, 1);
	take_n(ordered, 100 * US, 3, 1);
	assert_true(flow_ack_due(f, 100 * US));
	assert_false(flow_ack_due(ordered, 100 * US));
	flow_close(f);
	flow_close(ordered);
}

static void ack_build__words(void **state)
{
	struct flow_cfg cfg = {.window = 1024, .ack_every = 2000};
	struct flow *f = flow_new(&cfg), *quiet;
	struct gx_wire_ack a;

	cfg.lossless = cfg.ordered = true;
	quiet = flow_new(&cfg);
	take_n(f, 0, 0, 65);
	take_n(quiet, 0, 0, 65);
	flow_ack_build(f, 0, &a);
	assert_int_equal(a.nr_words, 2);
	flow_ack_build(quiet, 0, &a);
	assert_int_equal(a.nr_words, 2);

	take_n(f, 0, 65, 1000);
	take_n(quiet, 0, 65, 64);
	flow_ack_build(f, 0, &a);
	assert_int_equal(a.nr_words, 16);
	flow_ack_build(quiet, 0, &a);
	assert_int_equal(a.nr_words, 1);
	assert_true(a.words[0] == ~0ull);

	take_n(f, 0, 1065, 1);
	flow_ack_build(f, 0, &a);
	assert_int_equal(a.nr_words, 8);
	flow_close(f);
	flow_close(quiet);
}

static void ack_build__late_one(void **state)
{
	/* A packet 700 behind the newest: the ACK reaches back to it. */
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a;

	take_n(f, 0, 1, 800);
	flow_ack_build(f, 0, &a);
	flow_rx_take(f, 0, 0, false);
	flow_ack_build(f, 0, &a);
	assert_int_equal(a.nr_words, 13);
	assert_int_equal(a.words[12] >> 32 & 1, 1);
	assert_int_equal(a.words[12] >> 33, 0);
	flow_close(f);

	f = flow_new(&cfg_lossy); /* the same with no ACK in between */
	take_n(f, 0, 1, 831);
	flow_rx_take(f, 0, 0, false);
	flow_rx_take(f, 0, 832, false);
	flow_ack_build(f, 0, &a);
	assert_int_equal(a.nr_words, 14);
	flow_close(f);
}

static void ack_build__lossless_backlog(void **state)
{
	/* 10,000 packets before an ACK could be sent: several tell about all of them. */
	struct flow_cfg cfg = {.window = 16384, .lossless = true, .ordered = true};
	struct flow *tx = flow_new(&cfg), *rx = flow_new(&cfg);
	struct gx_wire_ack a;
	uint32_t acks = 0;

	send_n(tx, 0, 0, 10000);
	for (uint32_t psn = 0; psn < 10000; psn += 2)
		take_n(rx, 0, psn, 1);
	for (uint32_t psn = 1; psn < 10000; psn += 2)
		take_n(rx, 0, psn, 1);
	for (; flow_ack_due(rx, 0); acks++) {
		assert_true(flow_ack_build(rx, 0, &a));
		assert_int_equal(flow_ack(tx, 0, &a), 0);
		drain_acked(tx);
	}
	assert_int_equal(acks, 10);
	assert_int_equal(flow_outstanding(tx), 0);
	flow_close(tx);
	flow_close(rx);
}

static void grant__amounts(void **state)
{
	struct flow *f = flow_new(&cfg_lossy);
	struct gx_wire_ack a;

	assert_int_equal(flow_granted(f), 8);
	assert_int_equal(flow_grant(f, 0, 100), 0);
	assert_int_equal(flow_grant(f, 50, 100), 50);
	assert_int_equal(flow_granted(f), 58);
	assert_int_equal(flow_grant(f, 50, 100), 0);
	assert_int_equal(flow_grant(f, 200, 100), 42);
	assert_int_equal(flow_grant(f, 0, 0), 0); /* what was given stays given */
	assert_int_equal(flow_granted(f), 100);
	flow_grant_used(f, 30);
	assert_int_equal(flow_granted(f), 70);
	assert_int_equal(flow_grant(f, UINT32_MAX, 80), 10);
	flow_rx_take(f, 0, 0, true);
	assert_true(flow_ack_build(f, 0, &a));
	assert_int_equal(a.credit, 110);
	flow_grant_used(f, 1000); /* more than there was */
	assert_int_equal(flow_granted(f), 0);
	flow_close(f);
}

/* ---- Two flows over a network in virtual time ---- */

#define SLOT_NS	   334 /* 4,096 bytes and 80 of headers at 100 Gb/s */
#define ITEMS_MAX  400000
#define EVENTS_MAX 8192

struct event {
	uint64_t at_ns;
	uint64_t order; /* of events at one time: first in, first out */
	bool is_ack;
	uint32_t psn, item; /* item UINT32_MAX: a probe */
	struct gx_wire_ack ack;
};

struct sim_cfg {
	double loss, dup;
	uint32_t reorder; /* each packet is late by up to so many slots */
	uint32_t items;	  /* to move */
	uint64_t psn, oneway_ns, slot_ns;
	uint64_t turn_ns; /* both ends look up only so often, and send in bursts; 0: at once */
	uint32_t window, pool;
	bool lossless;
	uint64_t seed;
};

struct sim {
	struct sim_cfg cfg;
	struct flow *tx, *rx;
	uint64_t now, link_free_ns, rnd, order;
	struct event *heap;
	uint32_t nr_heap;
	uint32_t *resend, nr_resend; /* items deemed lost */
	uint32_t next_item, nr_arrived, nr_acked;
	uint8_t *arrived, *acked;
	uint64_t nr_sent, nr_probes, nr_acks, nr_rto;
};

static uint64_t sim_rnd(struct sim *s)
{
	s->rnd ^= s->rnd << 13;
	s->rnd ^= s->rnd >> 7;
	s->rnd ^= s->rnd << 17;
	return s->rnd * 0x2545f4914f6cdd1dull;
}

static bool sim_chance(struct sim *s, double p)
{
	return (double)(sim_rnd(s) >> 11) < p * 9007199254740992.0;
}

static bool event_before(const struct event *a, const struct event *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void heap_put(struct sim *s, const struct event *e)
{
	uint32_t i = s->nr_heap++;

	assert_true(s->nr_heap < EVENTS_MAX);
	for (; i && event_before(e, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
		s->heap[i] = s->heap[(i - 1) / 2];
	s->heap[i] = *e;
}

static struct event heap_get(struct sim *s)
{
	struct event top = s->heap[0], last = s->heap[--s->nr_heap];
	uint32_t i = 0, kid;

	while ((kid = 2 * i + 1) < s->nr_heap) {
		if (kid + 1 < s->nr_heap && event_before(&s->heap[kid + 1], &s->heap[kid]))
			kid++;
		if (!event_before(&s->heap[kid], &last))
			break;
		s->heap[i] = s->heap[kid];
		i = kid;
	}
	s->heap[i] = last;
	return top;
}

/* Into the network at @at_ns: lost, twice, late. */
static void sim_carry(struct sim *s, struct event e, uint64_t at_ns)
{
	if (sim_chance(s, s->cfg.loss))
		return;
	for (unsigned n = sim_chance(s, s->cfg.dup) ? 2 : 1; n; n--) {
		e.order = s->order++;
		e.at_ns = at_ns + s->cfg.oneway_ns;
		if (s->cfg.reorder && !e.is_ack)
			e.at_ns += sim_rnd(s) % (s->cfg.reorder + 1) * s->cfg.slot_ns;
		heap_put(s, &e);
	}
}

static void sim_send(struct sim *s, uint32_t item, bool resend)
{
	struct flow_pkt p = {.ref = item, .kind = item != UINT32_MAX, .resend = resend};
	struct event e = {.item = item};

	e.psn = (uint32_t)flow_sent(s->tx, s->now, &p);
	s->link_free_ns = GX_MAX(s->now, s->link_free_ns) + s->cfg.slot_ns;
	s->nr_sent++;
	sim_carry(s, e, s->link_free_ns - s->cfg.slot_ns);
}

static bool sim_can_send(const struct sim *s)
{
	if (!flow_room(s->tx))
		return false;
	return s->nr_resend || (s->next_item < s->cfg.items && flow_credit(s->tx));
}

static void sim_tx(struct sim *s)
{
	if (s->nr_resend) {
		sim_send(s, s->resend[--s->nr_resend], true);
		return;
	}
	flow_credit_use(s->tx, 1);
	sim_send(s, s->next_item++, false);
}

static void sim_drain(struct sim *s)
{
	struct flow_pkt p;

	while (flow_next_acked(s->tx, &p)) {
		if (!s->acked[p.ref])
			s->nr_acked++;
		s->acked[p.ref] = 1;
		assert_true(s->arrived[p.ref]);
	}
	while (flow_next_lost(s->tx, &p))
		if (!s->acked[p.ref])
			s->resend[s->nr_resend++] = p.ref;
}

static void sim_rx(struct sim *s, const struct event *e)
{
	bool probe = e->item == UINT32_MAX;

	if (flow_rx_look(s->rx, e->psn) != FLOW_RX_NEW) {
		flow_rx_again(s->rx, s->now);
		return;
	}
	flow_rx_take(s->rx, s->now, e->psn, probe || e->item == s->cfg.items - 1);
	if (probe || s->arrived[e->item])
		return;
	s->arrived[e->item] = 1;
	s->nr_arrived++;
	flow_grant_used(s->rx, 1);
	if (flow_grant(s->rx, s->cfg.items - s->nr_arrived, s->cfg.pool) > s->cfg.pool / 2)
		flow_ack_want(s->rx);
}

static void sim_timers(struct sim *s)
{
	struct event e = {.is_ack = true};
	unsigned what;

	if (flow_ack_due(s->rx, s->now) && flow_ack_build(s->rx, s->now, &e.ack)) {
		s->nr_acks++;
		sim_carry(s, e, s->now);
	}
	if (s->now < flow_due(s->tx))
		return;
	what = flow_tick(s->tx, s->now);
	sim_drain(s);
	if (what == FLOW_PROBE) {
		s->nr_probes++;
		sim_send(s, UINT32_MAX, false);
	}
	s->nr_rto += what == FLOW_RTO;
	assert_true(flow_due(s->tx) > s->now);
}

static void sim_step(struct sim *s)
{
	uint64_t next = GX_MIN(flow_due(s->tx), flow_ack_due_ns(s->rx));

	if (s->nr_heap)
		next = GX_MIN(next, s->heap[0].at_ns);
	if (sim_can_send(s))
		next = GX_MIN(next, s->link_free_ns);
	assert_true(next !=
		    UINT64_MAX); /* something must be going on: else an operation would hang */
	s->now = GX_MAX(s->now, next);
	if (s->cfg.turn_ns)
		s->now = (s->now / s->cfg.turn_ns + 1) * s->cfg.turn_ns;
	while (s->nr_heap && s->heap[0].at_ns <= s->now) {
		struct event e = heap_get(s);

		if (!e.is_ack) {
			sim_rx(s, &e);
			continue;
		}
		assert_int_equal(flow_ack(s->tx, s->now, &e.ack), 0);
		sim_drain(s);
	}
	sim_timers(s);
	while (sim_can_send(s) && s->link_free_ns <= s->now + s->cfg.turn_ns)
		sim_tx(s);
}

struct sim_result {
	double goodput, spurious; /* share of line rate; of packets sent */
	uint64_t nr_sent, nr_probes, nr_acks, nr_rto;
};

static void sim_check_rest(struct sim *s)
{
	struct gx_wire_ack ack;

	/* At rest: all acknowledged, nothing out, both ends agree on the credit that is left. */
	assert_int_equal(s->nr_acked, s->cfg.items);
	assert_int_equal(s->nr_arrived, s->cfg.items);
	s->nr_heap = 0;
	assert_true(flow_ack_build(s->rx, s->now, &ack));
	assert_int_equal(flow_ack(s->tx, s->now, &ack), 0);
	for (uint64_t end = s->now + 1000000000; flow_outstanding(s->tx) && s->now < end;)
		sim_step(s);
	assert_int_equal(flow_outstanding(s->tx), 0);
	assert_int_equal(flow_room(s->tx), s->cfg.window);
	assert_int_equal(flow_credit(s->tx), flow_granted(s->rx));
	assert_true(flow_granted(s->rx) <= s->cfg.pool);
}

static struct sim_result sim_run(const struct sim_cfg *cfg)
{
	struct sim *s = calloc(1, sizeof(*s));
	struct flow_cfg fc = {.window = cfg->window,
			      .tx_psn = cfg->psn,
			      .rx_psn = cfg->psn,
			      .tx_credit = 8,
			      .rx_credit = 8,
			      .lossless = cfg->lossless};
	struct sim_result r;

	s->cfg = *cfg;
	s->rnd = cfg->seed * 0x9e3779b97f4a7c15ull + 1;
	s->tx = flow_new(&fc);
	s->rx = flow_new(&fc);
	s->heap = calloc(EVENTS_MAX, sizeof(*s->heap));
	s->resend = calloc(cfg->items + 65536, sizeof(*s->resend));
	s->arrived = calloc(cfg->items, 1);
	s->acked = calloc(cfg->items, 1);
	s->now = 1000 * US;
	for (uint64_t n = 0; s->nr_acked < cfg->items; n++) {
		assert_in_range(n, 0, 100 * cfg->items); /* steps: it gets somewhere */
		sim_step(s);
	}
	r.goodput = (double)cfg->items * (double)cfg->slot_ns / (double)(s->now - 1000 * US);
	r.spurious = (double)flow_spurious(s->tx) / (double)s->nr_sent;
	r.nr_sent = s->nr_sent;
	r.nr_probes = s->nr_probes;
	r.nr_acks = s->nr_acks;
	r.nr_rto = s->nr_rto;
	sim_check_rest(s);
	flow_close(s->tx);
	flow_close(s->rx);
	free(s->heap);
	free(s->resend);
	free(s->arrived);
	free(s->acked);
	free(s);
	return r;
}

static const struct sim_cfg sim_base = {.items = 100000,
					.oneway_ns = 10 * US,
					.slot_ns = SLOT_NS,
					.window = 256,
					.pool = 1024,
					.seed = 1};

static struct sim_result sim_shown(const char *what, const struct sim_cfg *cfg)
{
	struct sim_result r = sim_run(cfg);

	printf("# %-34s goodput %.4f  spurious %.5f  sent %" PRIu64 "  acks %" PRIu64
	       "  probes %" PRIu64 "  rto %" PRIu64 "\n",
	       what, r.goodput, r.spurious, r.nr_sent, r.nr_acks, r.nr_probes, r.nr_rto);
	return r;
}

static void sim__goodput(void **state)
{
	static const struct {
		const char *name;
		double loss, least;
	} rows[] = {{"no loss", 0, 0.99},
		    {"loss 1e-4", 1e-4, 0.98},
		    {"loss 1e-3", 1e-3, 0.97},
		    {"loss 1e-2", 1e-2, 0.94},
		    {"loss 5e-2", 5e-2, 0.80}};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(rows); i++) {
		struct sim_cfg cfg = sim_base;
		struct sim_result r;

		cfg.loss = rows[i].loss;
		r = sim_shown(rows[i].name, &cfg);
		assert_true(r.goodput >= rows[i].least);
		assert_true(r.spurious <= 0.01 + rows[i].loss);
	}
}

static void sim__coarse_turns(void **state)
{
	static const struct {
		const char *name;
		double loss;
		uint32_t reorder;
		uint64_t turn_ns;
	} rows[] = {{"turn of 5 us, no loss", 0, 0, 5 * US},
		    {"turn of 5 us, loss 1e-2", 1e-2, 0, 5 * US},
		    {"turn of 15 us, loss 5e-2", 5e-2, 0, 15 * US},
		    {"turn of 15 us, 16 slots, loss 1e-3", 1e-3, 16, 15 * US}};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(rows); i++) {
		struct sim_cfg cfg = sim_base;
		struct sim_result r;

		cfg.loss = rows[i].loss;
		cfg.reorder = rows[i].reorder;
		cfg.turn_ns = rows[i].turn_ns;
		cfg.window = 1024;
		r = sim_shown(rows[i].name, &cfg);
		assert_true(r.spurious <= 0.05);
		assert_true(r.goodput >= 0.9 - cfg.loss);
	}
}

static void sim__reordering(void **state)
{
	static const struct {
		const char *name;
		double loss;
		uint32_t slots;
		uint64_t slot_ns;
	} rows[] = {{"16 slots", 0, 16, SLOT_NS},
		    {"16 slots, loss 1e-3", 1e-3, 16, SLOT_NS},
		    {"16 slots, loss 1e-2", 1e-2, 16, SLOT_NS},
		    {"16 slots at 40 Gb/s", 0, 16, 835},
		    {"16 slots at 25 Gb/s, loss 1e-3", 1e-3, 16, 1336},
		    {"16 slots at 10 Gb/s", 0, 16, 3340},
		    {"16 slots at 3 Gb/s, loss 1e-3", 1e-3, 16, 11133}};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(rows); i++) {
		struct sim_cfg cfg = sim_base;
		struct sim_result r;

		cfg.loss = rows[i].loss;
		cfg.reorder = rows[i].slots;
		cfg.slot_ns = rows[i].slot_ns;
		r = sim_shown(rows[i].name, &cfg);
		assert_true(r.spurious <= 0.05);
		assert_true(r.goodput >= 0.9);
	}
}

static void sim__all_faults_many_seeds(void **state)
{
	for (uint64_t seed = 1; seed <= 200; seed++) {
		struct sim_cfg cfg = sim_base;

		cfg.items = 500;
		cfg.seed = seed;
		cfg.loss = (double)(seed % 7) * 0.05;
		cfg.dup = (double)(seed % 5) * 0.05;
		cfg.reorder = seed % 3 * 40;
		cfg.window = 64u << seed % 3;
		cfg.pool = 16 + seed % 4 * 100;
		cfg.psn = seed * 0x1000000ull - 200; /* the low half wraps under way for some */
		sim_run(&cfg);
	}
}

static void sim__psn_wrap(void **state)
{
	static const uint64_t first[] = {0xffffffffull - 1000, 0x7fffffffull - 1000, ~0ull - 1000};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(first); i++) {
		struct sim_cfg cfg = sim_base;

		cfg.items = 3000;
		cfg.psn = first[i];
		cfg.loss = 0.01;
		cfg.reorder = 16;
		assert_true(sim_run(&cfg).goodput > 0.5);
	}
}

static void sim__duplicates(void **state)
{
	struct sim_cfg cfg = sim_base;
	struct sim_result r;

	cfg.items = 10000;
	cfg.dup = 0.5;
	r = sim_run(&cfg);
	assert_true(r.spurious == 0);
	assert_int_equal(r.nr_sent, cfg.items);
	assert_true(r.goodput > 0.95);
}

static void sim__lossless(void **state)
{
	struct sim_cfg cfg = sim_base;
	struct sim_result r;

	cfg.items = 10000;
	cfg.lossless = true;
	cfg.reorder = 16;
	r = sim_run(&cfg);
	assert_int_equal(r.nr_sent, cfg.items);
	assert_int_equal(r.nr_probes + r.nr_rto, 0);
}

static long resident_pages(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	long size, pages;

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%ld %ld", &size, &pages), 2);
	fclose(f);
	return pages;
}

/* Memory comes with use: nothing that is large is written by flow_open(). */
static void open__weighs_little(void **state)
{
	enum { NR = 256 };
	struct flow *f[NR];
	const struct flow_cfg cfg = {.window = 4096, .tx_credit = 8, .rx_credit = 8};
	long before, pages;

	before = resident_pages();
	for (unsigned i = 0; i < NR; i++)
		assert_int_equal(flow_open(&cfg, &f[i]), 0);
	pages = resident_pages() - before;
	for (unsigned i = 0; i < NR; i++)
		flow_close(f[i]);
	if (pages * sysconf(_SC_PAGESIZE) > NR * (32l << 10))
		fail_msg("%ld pages for %u flows", pages, NR);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(sums__numbers_that_were_left_out),
		cmocka_unit_test(open__bad_window),
		cmocka_unit_test(sent__numbers_and_room),
		cmocka_unit_test(credit__use_and_wrap),
		cmocka_unit_test(ack__hands_back_in_order),
		cmocka_unit_test(ack__twice),
		cmocka_unit_test(ack__stale_fills_in),
		cmocka_unit_test(ack__impossible),
		cmocka_unit_test(ack__every_shape),
		cmocka_unit_test(room__held_records_survive),
		cmocka_unit_test(rack__time_not_count),
		cmocka_unit_test(rack__sent_long_before),
		cmocka_unit_test(rack__window_grows_and_shrinks),
		cmocka_unit_test(rack__many_losses_are_one_round),
		cmocka_unit_test(rack__a_half_says_nothing_of_the_other),
		cmocka_unit_test(rack__each_half_by_itself),
		cmocka_unit_test(tick__rto_of_a_half),
		cmocka_unit_test(uneven__of_late),
		cmocka_unit_test(rtt__held_time_is_not_ours),
		cmocka_unit_test(tick__probe),
		cmocka_unit_test(tick__probe_above_room),
		cmocka_unit_test(tick__rto_backs_off),
		cmocka_unit_test(tick__rto_from_variation),
		cmocka_unit_test(tick__rto_above_what_was_seen),
		cmocka_unit_test(tick__rto_before_a_sample),
		cmocka_unit_test(tick__rto_was_wrong),
		cmocka_unit_test(tick__lossless_never),
		cmocka_unit_test(rx_look__new_dup_old),
		cmocka_unit_test(rx_take__random_order),
		cmocka_unit_test(ack_due__every_and_delay),
		cmocka_unit_test(ack_due__flag_and_again),
		cmocka_unit_test(ack_due__gap),
		cmocka_unit_test(ack_build__words),
		cmocka_unit_test(ack_build__late_one),
		cmocka_unit_test(ack_build__lossless_backlog),
		cmocka_unit_test(grant__amounts),
		cmocka_unit_test(sim__goodput),
		cmocka_unit_test(sim__coarse_turns),
		cmocka_unit_test(sim__reordering),
		cmocka_unit_test(sim__all_faults_many_seeds),
		cmocka_unit_test(sim__psn_wrap),
		cmocka_unit_test(sim__duplicates),
		cmocka_unit_test(sim__lossless),
		cmocka_unit_test(open__weighs_little),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
