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
	} want[] = {{1000, 0.99}, {10000, 0.95}, {50000, 0.85}};
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

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(goodput__under_loss),
		rig_test(resends__under_reordering),
	};

	return rig_run("sim_speed", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
