/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What loss and reordering cost, in virtual time on a simulated network of 100 Gb/s with 20 us each
 * way. Prints the figures and holds them against the targets of the design.
 */
#include "sim/sim_rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define SPEED_MSG_B (8u << 20)
#define SPEED_DEPTH 4

struct speed {
	double gbps;
	double resent;	 /* packets sent again, of first transmissions */
	double spurious; /* of those that had arrived, of first transmissions */
};

static void speed_post(struct rig *r, const uint8_t *src)
{
	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .addr = (void *)src,
				 .len = SPEED_MSG_B,
				 .token = r->peer[0].token});
}

/* @nr puts of 8 MiB, four at a time, from the first post to the last completion: a clock that began
 * or ended while messages are under way would count what others had sent by then. */
static struct speed speed_run(const struct sim_cfg *sim, unsigned nr)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = *sim, .window = 16, .slots = 4096});
	uint8_t *src = malloc(SPEED_MSG_B);
	uint64_t pkts = nr * (SPEED_MSG_B / 4096ull);
	uint64_t since = r->now_ns;
	struct speed s;

	rig_fill(src, SPEED_MSG_B, 1);
	for (unsigned i = 0; i < nr; i++) {
		if (i >= SPEED_DEPTH)
			rig_comps(r, 0, i - SPEED_DEPTH + 1, 10 * SECOND);
		speed_post(r, src);
	}
	rig_comps(r, 0, nr, 10 * SECOND);
	s.gbps = nr * 8.0 * SPEED_MSG_B / (r->now_ns - since);
	s.resent = 1.0 * rig_stat(r, 0, "tx_resent") / pkts;
	s.spurious = 1.0 * flow_spurious(rig_ep(r, 0, 0)->flow) / pkts;
	assert_memory_equal(rig_mem(r, 1), src, SPEED_MSG_B);
	rig_done(r);
	free(src);
	return s;
}

static void goodput__under_loss(void **state)
{
	static const struct {
		uint32_t ppm;
		double least; /* of the loss-free goodput */
	} want[] = {{100, 0.99}, {1000, 0.99}, {10000, 0.95}, {50000, 0.85}};
	struct speed free_of_loss = speed_run(&(struct sim_cfg){.seed = 1}, 16);

	print_message("loss 0: %.1f Gb/s\n", free_of_loss.gbps);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(want); i++) {
		struct speed s =
			speed_run(&(struct sim_cfg){.seed = 1, .loss_ppm = want[i].ppm}, 16);
		double ratio = s.gbps / free_of_loss.gbps;

		print_message("loss %g: %.1f Gb/s, %.3f of that without (least %.2f), resent %.4f, "
			      "spurious %.4f\n",
			      want[i].ppm / 1e6, s.gbps, ratio, want[i].least, s.resent,
			      s.spurious);
		if (ratio < want[i].least)
			fail_msg("goodput is too low");
	}
	assert_true(free_of_loss.gbps > 94);
}

static void resends__under_reordering(void **state)
{
	struct speed s = speed_run(
		&(struct sim_cfg){.seed = 1, .reorder_ppm = 100000, .reorder_slots = 16}, 16);

	print_message("reordering by 16 packets: %.1f Gb/s, resent %.4f, spurious %.4f\n", s.gbps,
		      s.resent, s.spurious);
	assert_true(s.resent <= 0.05);
}

/* ---- A receiver that shares its CPU ---- */

#define BUSY_MSG_B   (512u << 10)
#define BUSY_SMALL_B 64
#define BUSY_MSGS    64
#define BUSY_GAP_NS  60000 /* between two turns of the receiver */

struct busy {
	double us; /* from the first post to the last completion */
	uint64_t resent, spurious;
	bool uneven;
};

/* One turn of the receiver takes all control packets that wait, up to four bursts, and one burst of
 * data. So records and probes overtake data that was sent long before them. Each message has a small
 * one after it, which is all in its OPEN. */
static struct busy busy_run(uint64_t gap_ns, uint32_t loss_ppm)
{
	struct rig *r = rig_open(&(struct rig_cfg){
		.sim = {.seed = 1, .loss_ppm = loss_ppm}, .window = 16, .slots = 4096});
	uint8_t *src = malloc(BUSY_MSG_B);
	uint64_t since = r->now_ns;
	struct busy b = {0};

	rig_fill(src, BUSY_MSG_B, 1);
	for (unsigned posted = 0; r->nr_last[0] < 2 * BUSY_MSGS;) {
		struct gx_op op = {.kind = GX_OP_PUT,
				   .addr = src,
				   .len = BUSY_MSG_B,
				   .token = r->peer[0].token};

		assert_true(r->now_ns - since < 10 * SECOND);
		for (; posted < BUSY_MSGS && 2 * posted < r->nr_last[0] + 2 * SPEED_DEPTH;
		     posted++) {
			rig_post(r, 0, &op);
			op.len = BUSY_SMALL_B;
			rig_post(r, 0, &op);
			op.len = BUSY_MSG_B;
		}
		r->still[1] = true;
		rig_pass(r, gap_ns);
		r->still[1] = false;
		rig_turn(r);
		b.uneven |= flow_is_uneven(rig_ep(r, 0, 0)->flow);
	}
	b.us = (r->now_ns - since) / 1e3;
	b.resent = rig_stat(r, 0, "tx_resent");
	b.spurious = flow_spurious(rig_ep(r, 0, 0)->flow);
	assert_memory_equal(rig_mem(r, 1), src, BUSY_MSG_B);
	rig_done(r);
	free(src);
	return b;
}

static void resends__control_overtakes_data(void **state)
{
	for (uint64_t gap_ns = BUSY_GAP_NS / 4; gap_ns <= 4 * BUSY_GAP_NS; gap_ns *= 2) {
		struct busy b = busy_run(gap_ns, 0);

		print_message("a turn each %.0f us: %.0f us, resent %llu, spurious %llu\n",
			      gap_ns / 1e3, b.us, (unsigned long long)b.resent,
			      (unsigned long long)b.spurious);
		assert_int_equal(b.resent, 0);
		assert_int_equal(b.spurious, 0);
		assert_false(b.uneven); /* then each OPEN went once */
	}
}

/* Losses are found as before, by packets of their own half. */
static void resends__control_overtakes_data_and_some_is_lost(void **state)
{
	static const uint32_t ppm[] = {100, 1000, 10000, 50000};
	const double pkts = 1.0 * BUSY_MSGS * BUSY_MSG_B / 4096;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(ppm); i++) {
		struct busy b = busy_run(BUSY_GAP_NS, ppm[i]);

		print_message("loss %g: %.0f us, resent %.4f, spurious %.4f\n", ppm[i] / 1e6, b.us,
			      b.resent / pkts, b.spurious / pkts);
		assert_true(b.spurious / pkts <= 0.001);
	}
}

/* The receiver has no CPU for 20 ms. All that was under way is deemed lost; when the acknowledgements
 * come, what has not gone again by then does not go. */
static void resends__end_with_the_pause(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){
		.sim = {.seed = 1, .path_payload_b = 65536}, .window = 16, .slots = 4096});
	uint8_t *src = malloc(BUSY_MSG_B);
	uint64_t pkts;

	rig_fill(src, BUSY_MSG_B, 1);
	for (unsigned i = 1; i <= 16; i++) {
		for (unsigned k = 0; k < 4; k++)
			rig_post(r, 0,
				 &(struct gx_op){.kind = GX_OP_PUT,
						 .addr = src,
						 .len = BUSY_MSG_B,
						 .token = r->peer[0].token});
		if (i == 16)
			break;
		rig_comps(r, 0, 4 * i, SECOND);
	}
	r->still[1] = true;
	rig_pass(r, 20 * MS);
	assert_true(rig_stat(r, 0, "rto") > 0);
	r->still[1] = false;
	rig_comps(r, 0, 64, SECOND);
	pkts = flow_spurious(rig_ep(r, 0, 0)->flow);
	print_message("%llu packets deemed lost and not lost, %llu sent again\n",
		      (unsigned long long)pkts, (unsigned long long)rig_stat(r, 0, "tx_resent"));
	assert_true(pkts > 100);
	assert_true(rig_stat(r, 0, "tx_resent") < pkts / 4);
	assert_memory_equal(rig_mem(r, 1), src, BUSY_MSG_B);
	rig_done(r);
	free(src);
}

/* The last packet of a message is lost: a probe that leaves by the same half finds that long before
 * the time-out does. @at: 0: the OPEN of a message that is all in it; 2: the last of two packets. */
static void tail_lost(unsigned at, uint32_t len)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}});
	struct sim_counts n;
	struct sim_cfg sim = r->cfg.sim;
	uint64_t drop;

	for (unsigned i = 1; i <= 2; i++) {
		rig_post(r, 0,
			 &(struct gx_op){.kind = GX_OP_PUT,
					 .addr = rig_mem(r, 0),
					 .len = len,
					 .token = r->peer[0].token});
		rig_comps(r, 0, i, 300000); /* ns; the time-out is 500,000 */
		rig_pass(r, MS);
		sim_net_counts(r->net, &n);
		drop = n.sent + at;
		sim.drop = &drop;
		sim.nr_drop = 1;
		rig_set(r, &sim);
	}
	assert_int_equal(n.lost, 1);
	assert_int_equal(rig_stat(r, 0, "rto"), 0);
	rig_done(r);
}

static void tail__is_found_by_a_probe(void **state)
{
	tail_lost(0, BUSY_SMALL_B);
	tail_lost(2, 8192);
}

/* ---- Whose turn it is ---- */

#define TURN_PKT_B 1280u
#define TURN_MAX_B (3000u * TURN_PKT_B)

static struct rig *turn_rig(uint8_t **src, bool own_slots)
{
	*src = malloc(TURN_MAX_B);
	rig_fill(*src, TURN_MAX_B, 1);
	return rig_open(&(struct rig_cfg){
		.sim = {.seed = 1, .rate_bps = 1000000000, .own_slots = own_slots},
		.window = 16,
		.slots = 4096,
		.quantum_b = TURN_PKT_B,
		.mem_b = TURN_MAX_B});
}

static void turn_post(struct rig *r, const uint8_t *src, uint32_t pkts)
{
	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .addr = (void *)src,
				 .len = (uint64_t)pkts * TURN_PKT_B,
				 .token = r->peer[0].token});
}

/* Packets that each of the messages of so many has sent. Return: of how many messages. */
static unsigned turn_sent(struct rig *r, uint32_t pkts, uint64_t sent[])
{
	struct pkt_ep *e = rig_ep(r, 0, 0);
	unsigned n = 0;

	for (uint32_t i = 0; i < e->tx.ops_top; i++)
		if (e->ops[i].len == (uint64_t)pkts * TURN_PKT_B &&
		    (e->ops[i].state == OP_SENDING || e->ops[i].state == OP_SENT))
			sent[n++] = e->ops[i].sent_pkts;
	return n;
}

/* When the first of eight is sent, the others have much left. */
static void turns__messages_end_apart(void **state)
{
	uint64_t sent[8], most = 0, left = 8 * 700;
	uint8_t *src;
	struct rig *r = turn_rig(&src, false);

	for (unsigned i = 0; i < 8; i++)
		turn_post(r, src, 700);
	while (most < 700) {
		rig_turn(r);
		assert_int_equal(turn_sent(r, 700, sent), 8);
		for (unsigned i = 0; i < 8; i++)
			most = GX_MAX(most, sent[i]);
	}
	for (unsigned i = 0; i < 8; i++)
		left -= sent[i];
	print_message("%u packets left\n", (unsigned)left);
	assert_true(left > 7 * 100);
	rig_comps(r, 0, 8, 10 * SECOND);
	rig_done(r);
	free(src);
}

static uint64_t turn_sum(const uint64_t sent[4])
{
	return sent[0] + sent[1] + sent[2] + sent[3];
}

/* A new message does not wait for long ones, nor a long one for ever while new ones come. */
static void turns__new_messages_pass(void **state)
{
	uint64_t sent[600], before;
	unsigned shorts = 0;
	uint8_t *src;
	struct rig *r = turn_rig(&src, false);

	for (unsigned i = 0; i < 4; i++)
		turn_post(r, src, 700);
	do {
		rig_turn(r);
		assert_int_equal(turn_sent(r, 700, sent), 4);
	} while (sent[3] < 32);
	before = turn_sum(sent);
	turn_post(r, src, 30);
	while (!turn_sent(r, 30, sent) || sent[0] < 30) {
		rig_turn(r);
		assert_int_equal(turn_sent(r, 700, sent), 4);
		assert_in_range(turn_sum(sent) - before, 0, 128);
	}
	rig_comps(r, 0, 5, 10 * SECOND);
	turn_post(r, src, 3000);
	do {
		unsigned n = turn_sent(r, 32, sent), waits = 0;

		for (unsigned i = 0; i < n; i++)
			waits += sent[i] < 32;
		for (; waits < 2; waits++, shorts++)
			turn_post(r, src, 32);
		rig_turn(r);
		n = turn_sent(r, 3000, sent);
		sent[0] = n ? sent[0] : 0;
	} while (sent[0] < 3000 && shorts < 400);
	assert_int_equal(sent[0], 3000);
	print_message("%u short messages passed\n", shorts);
	assert_in_range(shorts, 60, 130); /* each half */
	rig_comps(r, 0, 6 + shorts, 10 * SECOND);
	rig_done(r);
	free(src);
}

/* Messages of one packet that went out in the next turn, of @posted. */
static unsigned turn_small(struct rig *r, const uint8_t *src, unsigned posted)
{
	uint64_t sent[600], packets = 0;

	for (unsigned i = 0; i < posted; i++)
		turn_post(r, src, 1);
	assert_true(flow_credit(rig_ep(r, 0, 0)->flow) >= posted);
	rig_turn(r);
	for (unsigned n = turn_sent(r, 1, sent); n; n--)
		packets += sent[n - 1];
	return (unsigned)packets;
}

/* Short messages share a burst, also when all long ones have nothing to send: that lets nobody wait. */
static void turns__short_messages_share_a_burst(void **state)
{
	struct pkt_ep *e;
	uint8_t *src;
	struct rig *r = turn_rig(&src, true);

	e = rig_ep(r, 0, 0);
	assert_int_equal(turn_small(r, src, GX_BURST_MAX), GX_BURST_MAX);
	rig_comps(r, 0, GX_BURST_MAX, 10 * SECOND);
	for (unsigned i = 0; i < 3; i++)
		turn_post(r, src, 700);
	while (e->tx.new_head != PKT_NONE || e->tx.act_head == PKT_NONE)
		rig_turn(r);
	for (uint32_t i = e->tx.act_head; i != PKT_NONE; i = e->ops[i].next)
		e->ops[i].opened = false; /* they have nothing to send */
	while (flow_outstanding(e->flow))
		rig_turn(r);
	assert_int_equal(turn_small(r, src, GX_BURST_MAX), GX_BURST_MAX);
	for (uint32_t i = e->tx.act_head; i != PKT_NONE; i = e->ops[i].next)
		e->ops[i].opened = true;
	rig_comps(r, 0, GX_BURST_MAX + 3, 10 * SECOND);
	rig_done(r);
	free(src);
}

/* A message that has nothing to send holds nobody up, be it new or not. */
static void turns__stuck_messages_are_passed(void **state)
{
	uint64_t sent[8];
	struct pkt_ep *e;
	uint8_t *src;
	struct rig *r = turn_rig(&src, false);
	uint32_t stuck;

	e = rig_ep(r, 0, 0);
	turn_post(r, src, 3000);
	while (!turn_sent(r, 3000, sent) || sent[0] < 64)
		rig_turn(r);
	stuck = e->tx.act_head;
	e->ops[stuck].opened = false;
	for (unsigned i = 0; i < 2; i++)
		turn_post(r, src, 300);
	rig_comps(r, 0, 2, 10 * SECOND);
	e->ops[stuck].opened = true;
	rig_comps(r, 0, 1, 10 * SECOND);
	rig_done(r);
	free(src);
}

/* A quarter of all packets is late by a round trip, so is a quarter of all OPENs. Data that overtakes
 * its OPEN is dropped. */
static void turns__data_follows_its_open(void **state)
{
	uint8_t *src;
	struct rig *r = turn_rig(&src, false);
	uint64_t strays, pkts = 0;

	rig_set(r, &(struct sim_cfg){.rate_bps = 1000000000,
				     .delay_ns = 2 * MS,
				     .reorder_ppm = 250000,
				     .reorder_slots = 370});
	for (unsigned i = 0; i < 300; i++, pkts += 100) {
		if (i >= 16)
			rig_comps(r, 0, i - 15, 10 * SECOND);
		turn_post(r, src, 100);
	}
	rig_comps(r, 0, 300, 10 * SECOND);
	strays = rig_stat(r, 1, "rx_stray");
	print_message("%.2f %% of packets came before their OPEN, %.2f %% were sent again\n",
		      100.0 * (double)strays / (double)pkts,
		      100.0 * (double)rig_stat(r, 0, "tx_resent") / (double)pkts);
	assert_true(strays * 100 < pkts);
	rig_done(r);
	free(src);
}

/* A path of 1 Gb/s and 100 ms holds 9,300 packets. Buffers for that at both ends are all it takes. */
static void window__follows_the_buffers(void **state)
{
	for (uint32_t slots = 4096; slots <= 16384; slots *= 4) {
		uint8_t *src = malloc(TURN_MAX_B);
		struct rig *r = rig_open(&(struct rig_cfg){
			.sim = {.seed = 1, .rate_bps = 1000000000, .delay_ns = 50 * MS},
			.window = 16,
			.slots = slots,
			.quantum_b = TURN_PKT_B,
			.mem_b = TURN_MAX_B});
		uint64_t since;

		rig_fill(src, TURN_MAX_B, 1);
		assert_int_equal(flow_room(rig_ep(r, 0, 0)->flow), slots);
		since = r->now_ns;
		for (unsigned i = 0; i < 20; i++)
			turn_post(r, src, 3000);
		rig_comps(r, 0, 20, 10 * SECOND);
		print_message("%u buffers: 60,000 packets in %.2f s\n", slots,
			      (double)(r->now_ns - since) / SECOND);
		/* The link alone takes 0.65 s; and two round trips, to announce and to begin. */
		assert_true(slots == 4096 || r->now_ns - since < SECOND);
		assert_memory_equal(rig_mem(r, 1), src, TURN_MAX_B);
		rig_done(r);
		free(src);
	}
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(goodput__under_loss),
		rig_test(resends__under_reordering),
		rig_test(resends__control_overtakes_data),
		rig_test(resends__end_with_the_pause),
		rig_test(tail__is_found_by_a_probe),
		rig_test(resends__control_overtakes_data_and_some_is_lost),
		rig_test(turns__messages_end_apart),
		rig_test(turns__new_messages_pass),
		rig_test(turns__short_messages_share_a_burst),
		rig_test(turns__stuck_messages_are_passed),
		rig_test(turns__data_follows_its_open),
		rig_test(window__follows_the_buffers),
	};

	return rig_run("sim_speed", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
