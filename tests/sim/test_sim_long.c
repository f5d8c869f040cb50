/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Long paths: whole connections under `rate` through a bottleneck, in virtual time, with packets that
 * are lost by chance or late by a round trip. A put begins whenever another one has ended. Each row
 * says what part of the bottleneck's payload ended in a time that begins behind the start.
 */
#include "flow/cc.h"
#include "sim/sim_rig.h"
#include "kit/common_seeds.h"

#include <stdio.h>
#include <stdlib.h>

#define LONG_PKT_B   1408u
#define LONG_WIRE_B  (LONG_PKT_B + GX_WIRE_HDR_B + SIM_FRAME_B)
#define LONG_MSG_B   (128u << 10)
#define LONG_START_S 1
#define LONG_RUN_S   4

struct row {
	const char *what;
	double mb_s, rtt_ms, queue_bdp; /* Mb/s of the link, on the wire */
	uint32_t loss_ppm, late_ppm;
	unsigned depth;		 /* puts under way */
	double least;		 /* of the link's payload */
	double resent, needless; /* of all packets, at most */
	bool rounds; /* of puts: 1, then 4, 16 ..., each behind the one before; of twice the size */
	unsigned seed;
};

struct far {
	struct rig *r;
	uint8_t *src;
	uint64_t ended_b;
	uint32_t msg_b;
	unsigned most;	      /* puts under way */
	unsigned round, left; /* puts of this round; that have not ended */
};

static void far_put(struct far *f)
{
	rig_post(f->r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .addr = f->src,
				 .len = f->msg_b,
				 .token = f->r->peer[0].token});
}

static void far_round(struct far *f, unsigned nr)
{
	f->round = GX_MIN(nr, f->most);
	f->left = f->round;
	for (unsigned i = 0; i < f->round; i++)
		far_put(f);
}

static void far_ended(void *arg, int node, const struct gx_comp *comp)
{
	struct far *f = arg;

	assert_int_equal(comp->status, 0);
	f->ended_b += f->msg_b;
	if (f->round == f->most)
		far_put(f);
	else if (!--f->left)
		far_round(f, 4 * f->round);
}

static struct rig *far_open(const struct row *row)
{
	double bdp_b = row->mb_s * row->rtt_ms * 1e3 / 8;
	struct sim_cfg sim = {.seed = 1 + row->seed,
			      .rate_bps = (uint64_t)(row->mb_s * 1e6),
			      .send_bps = (uint64_t)(row->mb_s * 1e7),
			      .delay_ns = (uint64_t)(row->rtt_ms * 5e5),
			      .queue_b = (uint64_t)(row->queue_bdp * bdp_b),
			      .loss_ppm = row->loss_ppm,
			      .reorder_ppm = row->late_ppm,
			      .reorder_slots = (uint32_t)(bdp_b / LONG_WIRE_B),
			      .path_payload_b = 8192}; /* so there is congestion control */

	return rig_open(&(struct rig_cfg){.sim = sim,
					  .window = 16,
					  .slots = 16384,
					  .quantum_b = LONG_PKT_B,
					  .mem_b = 2 * LONG_MSG_B});
}

static void far_begin(struct far *f, const struct row *row)
{
	*f = (struct far){.r = far_open(row), .most = row->depth};
	f->msg_b = row->rounds ? 2 * LONG_MSG_B : LONG_MSG_B;
	f->src = malloc(f->msg_b);
	rig_fill(f->src, f->msg_b, 1);
	f->r->on_comp = far_ended;
	f->r->arg = f;
	far_round(f, row->rounds ? 1 : row->depth);
}

/* What ends in @s seconds, as a part of the link's payload. */
static double far_share(struct far *f, const struct row *row, unsigned s)
{
	uint64_t before_b = f->ended_b;

	rig_pass(f->r, s * SECOND);
	return 8.0 * (double)(f->ended_b - before_b) / s /
	       (row->mb_s * 1e6 * LONG_PKT_B / LONG_WIRE_B);
}

static void far_end(struct far *f)
{
	assert_memory_equal(rig_mem(f->r, 1), f->src, f->msg_b);
	rig_close(f->r);
	free(f->src);
}

static void far_run(const struct row *row)
{
	double pkts, resent, needless, share;
	struct far f;

	far_begin(&f, row);
	rig_pass(f.r, LONG_START_S * SECOND);
	share = far_share(&f, row, LONG_RUN_S);
	pkts = (double)rig_stat(f.r, 0, "tx_pkts");
	resent = (double)rig_stat(f.r, 0, "tx_resent") / pkts;
	needless = (double)flow_spurious(rig_ep(f.r, 0, 0)->flow) / pkts;
	print_message("%s: %.3f of the link; resent %.4f of the packets, needlessly %.5f\n",
		      row->what, share, resent, needless);
	assert_true(share >= row->least);
	assert_true(resent <= row->resent);
	assert_true(needless <= row->needless);
	far_end(&f);
}

static void far__rates(void **state)
{
	static const struct row rows[] = {
		{"200 Mb/s, 50 ms", 200, 50, 1, 0, 0, 24, 0.93, 0.02, 0.001},
		{"the same, few messages", 200, 50, 1, 0, 0, 12, 0.95, 0.02, 0.001},
		{"the same, loss of 0.1 %", 200, 50, 1, 1000, 0, 24, 0.92, 0.02, 0.001},
		{"the same, loss of 1 %", 200, 50, 1, 10000, 0, 24, 0.9, 0.02, 0.001},
		{"the same, 25 % late", 200, 50, 1, 0, 250000, 24, 0.9, 0.002, 0.001},
		{"200 Mb/s, 10 ms, loss of 1 %", 200, 10, 1, 10000, 0, 24, 0.9, 0.02, 0.001},
		{"the same, 25 % late", 200, 10, 1, 0, 250000, 24, 0.95, 0.004, 0.001},
		{"100 Mb/s, 50 ms, a quarter of a queue", 100, 50, 0.25, 0, 0, 24, 0.95, 0.03,
		 0.001},
	};

	for (unsigned i = 0; i < (common_rates() ? GX_ARRAY_SIZE(rows) : 3); i++)
		far_run(&rows[i]);
}

/* Rounds of puts end, and losses at their ends are found late, or by the time-out: that says nothing of
 * the rate of the path. */
static void far__begins_slowly(void **state)
{
	static const unsigned seeds[] = {4, 16, 31}; /* that said too much */
	struct row row = {.what = "1 Gb/s, 50 ms, loss of 1 %, rounds of puts",
			  .mb_s = 1000,
			  .rtt_ms = 50,
			  .queue_bdp = 1,
			  .loss_ppm = 10000,
			  .depth = 64,
			  .least = 0.85,
			  .resent = 0.02,
			  .needless = 0.002,
			  .rounds = true};

	for (unsigned i = 0; i < (common_rates() ? GX_ARRAY_SIZE(seeds) : 1); i++) {
		row.seed = seeds[i];
		far_run(&row);
	}
}

/* A receiver that grants a tenth of what the path holds, for three seconds, and then all: ten round
 * trips later the sender has its full rate. */
static void far__credit_then_free(void **state)
{
	static const struct row row = {"200 Mb/s, 50 ms", 200, 50, 1, 0, 0, 24, 0.95, 0.02, 0.001};
	uint32_t tenth = (uint32_t)(row.mb_s * row.rtt_ms * 1e3 / 8 / LONG_WIRE_B / 10);
	double share;
	struct far f;

	far_begin(&f, &row);
	atomic_store(&rig_ep(f.r, 1, 0)->ep.credit_max, tenth + 1);
	share = far_share(&f, &row, 3);
	print_message("a tenth of the credit: %.3f of the link\n", share);
	assert_in_range((uint64_t)(share * 1000), 40, 120);
	atomic_store(&rig_ep(f.r, 1, 0)->ep.credit_max, 0);
	rig_pass(f.r, (uint64_t)(10 * row.rtt_ms) * MS);
	share = far_share(&f, &row, 1);
	print_message("ten round trips after all credit came: %.3f of the link\n", share);
	assert_true(share >= row.least);
	far_end(&f);
}

static const char *far_phase(struct far *f)
{
	struct cc_state st;

	cc_state(rig_ep(f->r, 0, 0)->pace.cc, f->r->now_ns, &st);
	return st.phase;
}

/* A time-out falls into the start, and the path is shorter behind it: the window is never again what it
 * was, and the start ends all the same. */
static void far__the_start_ends_on_a_shorter_path(void **state)
{
	static const struct row row = {
		.what = "100 Mb/s, 100 ms, then 10", .mb_s = 100, .rtt_ms = 100, .depth = 128};
	struct sim_cfg sim;
	struct far f;

	far_begin(&f, &row);
	sim = f.r->cfg.sim;
	rig_pass(f.r, 700 * MS);
	assert_string_equal(far_phase(&f), "startup");
	sim.loss_ppm = 1000000;
	rig_set(f.r, &sim);
	rig_pass(f.r, 1200 * MS);
	sim.loss_ppm = 0;
	sim.delay_ns = 5 * MS;
	rig_set(f.r, &sim);
	rig_pass(f.r, 3 * SECOND);
	assert_string_not_equal(far_phase(&f), "startup");
	far_end(&f);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(far__rates),
		rig_test(far__begins_slowly),
		rig_test(far__credit_then_free),
		rig_test(far__the_start_ends_on_a_shorter_path),
	};

	return rig_run("sim_long", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
