/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several paths through the simulated network, by source ports: paths of data, of records and of
 * acknowledgements die, one of them or most, and come back. Nothing but time is lost.
 */
#include "sim/sim_rig.h"
#include "kit/common_seeds.h"
#include "packet/make.h"
#include "packet/timer.h"

#include <stdio.h>
#include <string.h>

#define RTT_NS MS
#define BYTES  (16ull << 20)

static uint8_t src[BYTES];

/* One connection at 1 Gb/s, 1 ms. */
static struct rig *paths_open_rig(uint64_t seed, int integrity)
{
	struct sim_cfg sim = {.seed = seed,
			      .rate_bps = 1000000000,
			      .delay_ns = RTT_NS / 2,
			      .queue_b = 125000,
			      .path_payload_b = 8192, /* so there is congestion control */
			      .paths = GX_PATHS_MAX};
	struct rig *r = rig_open(&(struct rig_cfg){.sim = sim,
						   .integrity = integrity,
						   .slots = 4096,
						   .quantum_b = 1280,
						   .peer_timeout_ns = 2 * SECOND,
						   .mem_b = BYTES});

	rig_fill(src, sizeof(src), seed);
	return r;
}

static void put(struct rig *r, uint64_t len)
{
	rig_post(r, 0,
		 &(struct gx_op){
			 .kind = GX_OP_PUT, .addr = src, .len = len, .token = r->peer[0].token});
}

static void whole(struct rig *r)
{
	assert_int_equal(r->last[0][0].status, 0);
	assert_memory_equal(rig_mem(r, 1), src, BYTES);
}

static void set_dead(struct rig *r, const uint8_t dead[2][2])
{
	struct sim_cfg cfg = r->cfg.sim;

	memcpy(cfg.dead_path, dead, sizeof(cfg.dead_path));
	rig_set(r, &cfg);
}

static struct paths_state state_of(struct rig *r, int side, enum gx_half half)
{
	struct paths_state st;

	paths_state(rig_ep(r, side, 0)->paths, half, &st);
	return st;
}

/* The longest time without a packet of the control or the data half at the server. */
static uint64_t longest_gap(struct rig *r, uint64_t ns)
{
	uint64_t end = r->now_ns + ns, gap = 0, last = r->now_ns, had = rig_stat(r, 1, "rx_bytes"),
		 now;

	while (r->now_ns < end && !r->nr_last[0]) {
		rig_pass(r, RTT_NS / 20);
		now = rig_stat(r, 1, "rx_bytes");
		if (now < had + 8192) /* data, not a probe */
			continue;
		gap = GX_MAX(gap, r->now_ns - last);
		last = r->now_ns;
		had = now;
	}
	return gap;
}

/* [client, server][control, data]: bit 0 is the path that is in use. */
static const struct {
	const char *what;
	uint8_t dead[2][2];
	double rtts; /* most round trips without data, the queue included */
} fault[] = {
	{"data", {{0, 1}, {0, 0}}, 3.5},
	{"records", {{1, 0}, {0, 0}}, 0.5},
	{"acknowledgements", {{0, 0}, {1, 0}}, 0.5},
	{"data and acknowledgements", {{0, 1}, {1, 0}}, 6},
	{"all that is in use", {{1, 1}, {1, 1}}, 6},
	{"seven of eight, of all", {{0xef, 0xdf}, {0xbf, 0x7f}}, 6},
};

static void dead__all_arrives(void **state)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(fault); i++) {
		struct rig *r = paths_open_rig(i + 1, i & 1 ? GX_INTEGRITY_CRC : GX_INTEGRITY_NONE);
		uint64_t gap, rtt;

		put(r, BYTES);
		rig_pass(r, 50 * MS);
		assert_int_equal(r->nr_last[0], 0);
		set_dead(r, fault[i].dead);
		rtt = flow_srtt_ns(rig_ep(r, 0, 0)->flow);
		gap = longest_gap(r, SECOND);
		printf("dead: %s: %.1f round trips without data; left %u %u | %u %u times\n",
		       fault[i].what, (double)gap / (double)rtt,
		       (unsigned)state_of(r, 0, GX_HALF_CTL).moves,
		       (unsigned)state_of(r, 0, GX_HALF_DATA).moves,
		       (unsigned)state_of(r, 1, GX_HALF_CTL).moves,
		       (unsigned)state_of(r, 1, GX_HALF_DATA).moves);
		rig_comps(r, 0, 1, SECOND);
		whole(r);
		rig_pass(r, 5 * MS);
		assert_int_equal(rig_stat(r, 0, "path_moves"),
				 state_of(r, 0, GX_HALF_CTL).moves +
					 state_of(r, 0, GX_HALF_DATA).moves);
		assert_int_equal(rig_stat(r, 0, "path_dead_now") > 0, fault[i].dead[0][1] > 0);
		assert_true((double)gap <= fault[i].rtts * (double)rtt);
		rig_close(r);
	}
}

/* Any set of dead paths, as long as one of each kind lives: the connection lives, too. */
static void dead__any_but_one(void **state)
{
	for (unsigned seed = 0; seed < common_seeds(8, 40); seed++) {
		struct rig *r = paths_open_rig(seed, GX_INTEGRITY_NONE);
		uint8_t dead[2][2];

		put(r, BYTES);
		rig_pass(r, 20 * MS);
		for (unsigned k = 0; k < 5 && !r->nr_last[0]; k++) {
			for (unsigned i = 0; i < 4; i++) {
				uint64_t x = rig_random(r);

				dead[i / 2][i % 2] =
					(uint8_t)(x & (x >> 8) & ~(1u << (x >> 16) % 8));
			}
			set_dead(r, dead);
			rig_pass(r, 20 * MS);
		}
		rig_comps(r, 0, 1, 3 * SECOND);
		whole(r);
		rig_close(r);
	}
}

/* What people see of them: nothing, as long as one carries all. Else the bad one can be told. */
static void look__names_the_bad_one(void **state)
{
	static const uint8_t dead[2][2] = {{0, 1}, {0, 0}};
	struct rig *r = paths_open_rig(5, GX_INTEGRITY_NONE);
	const struct gx_conn *conn = rig_ep(r, 0, 0)->ep.conn;
	struct paths_state st;
	unsigned at = 0, nr = 0;
	struct gx_path p;

	put(r, BYTES);
	rig_pass(r, 50 * MS);
	assert_false(pkt_conn_path(conn, &at, &p));
	set_dead(r, dead);
	rig_pass(r, 50 * MS);
	st = state_of(r, 0, GX_HALF_DATA);
	for (at = 0; pkt_conn_path(conn, &at, &p) && p.data; nr++) {
		unsigned i = p.source_port - SIM_PORT_FROM;

		assert_int_equal(i, nr); /* all were asked */
		assert_int_equal(p.lane, 0);
		assert_int_equal(p.dead, !i);
		assert_int_equal(p.sent, st.path_sent[i]);
		assert_int_equal(p.lost, st.path_lost[i]);
		assert_int_equal(p.rtt_ns, st.path_rtt_ns[i]);
		assert_int_equal(p.lost > 0, !i);
	}
	assert_int_equal(nr, GX_PATHS_MAX);
	rig_comps(r, 0, 1, SECOND);
	whole(r);
	rig_done(r);
}

static void home__is_used_again(void **state)
{
	struct rig *r = paths_open_rig(3, GX_INTEGRITY_NONE);
	static const uint8_t dead[2][2] = {{1, 1}, {1, 1}}, none[2][2];

	for (unsigned i = 0; i < common_rounds(30); i++) {
		if (i == 1)
			set_dead(r, dead);
		if (i == 3)
			assert_int_not_equal(state_of(r, 0, GX_HALF_DATA).use, 1);
		if (i == 3)
			set_dead(r, none);
		rig_forget(r);
		put(r, BYTES);
		rig_comps(r, 0, 1, 3 * SECOND);
		whole(r);
	}
	assert_int_equal(state_of(r, 0, GX_HALF_DATA).use, 1);
	assert_int_equal(state_of(r, 0, GX_HALF_CTL).use, 1);
	assert_int_equal(state_of(r, 0, GX_HALF_DATA).dead, 0);
	rig_done(r);
}

/* A peer that says with each packet that it hears nothing gets no more than a round a millisecond. */
static void seek__answers_are_few(void **state)
{
	struct rig *r = paths_open_rig(4, GX_INTEGRITY_NONE);
	struct sim_counts after;
	struct pkt_ep *e = rig_ep(r, 0, 0);

	for (unsigned i = 0; i < 1000; i++) {
		if (flow_room(e->flow) > 100)
			make_probe(e, 0, GX_PKT_SEEK);
		rig_pass(r, 10000);
	}
	rig_pass(r, 10 * MS);
	sim_net_counts(r->net, &after);
	for (unsigned i = 1; i < GX_PATHS_MAX; i++)
		assert_in_range(state_of(r, 1, GX_HALF_CTL).path_sent[i], 2, 11);
	/* Acknowledgements go by all paths, and no more of them than by one. */
	for (unsigned i = 1; i < GX_PATHS_MAX; i++)
		assert_true(after.by_path[1][GX_HALF_CTL][i] <= after.by_path[1][GX_HALF_CTL][0]);
	put(r, BYTES);
	rig_comps(r, 0, 1, SECOND);
	whole(r);
	rig_done(r);
}

/* The port that has no choice of paths ignores that. */
static void seek__of_a_port_with_one_path(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}, .mem_b = BYTES});

	make_probe(rig_ep(r, 0, 0), 0, GX_PKT_SEEK);
	put(r, BYTES);
	rig_comps(r, 0, 1, SECOND);
	rig_done(r);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(dead__all_arrives),	   rig_test(dead__any_but_one),
		rig_test(look__names_the_bad_one), rig_test(home__is_used_again),
		rig_test(seek__answers_are_few),   rig_test(seek__of_a_port_with_one_path),
	};

	return rig_run("sim_paths", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
