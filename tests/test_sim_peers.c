/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends that do not keep pace, over a simulated network: cores that are not turned for a while,
 * ports that lose nothing and are full, several clients of one server of which some stand still.
 */
#include "sim_rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MEM_B (16ull << 20) /* of each region */
#define BUF_B (8u << 20)

static uint8_t *src, *dst;

static struct rig *peers_open(const struct rig_cfg *cfg)
{
	struct rig_cfg full = *cfg;

	src = realloc(src, BUF_B);
	dst = realloc(dst, BUF_B);
	rig_fill(src, BUF_B, 1);
	memset(dst, RIG_POISON, BUF_B);
	full.mem_b = MEM_B;
	return rig_open(&full);
}

static void post(struct rig *r, int side, unsigned conn, enum gx_op_kind kind, uint64_t user,
		 uint64_t len)
{
	bool reads = kind == GX_OP_PUT || kind == GX_OP_SEND;

	rig_post_on(r, side, conn,
		    &(struct gx_op){.kind = kind,
				    .user = user,
				    .len = len,
				    .addr = reads ? src : dst,
				    .token = r->peer[side].token,
				    .tag = 7});
}

static void all_ended_well(struct rig *r, unsigned node, unsigned n)
{
	assert_int_equal(r->nr_last[node], n);
	for (unsigned i = 0; i < n; i++)
		if (r->last[node][i].status)
			fail_msg("operation %u of node %u: %s", (unsigned)r->last[node][i].user,
				 node, strerror(-r->last[node][i].status));
}

static void no_faults(struct rig *r)
{
	for (int side = 0; side < 2; side++)
		for (unsigned i = 0; i < r->nr_conns; i++)
			assert_int_equal(atomic_load(&r->ep[side][i]->fault), 0);
}

/* ---- a port that loses nothing ---- */

/* The control half is full of GRANTs that the peer does not take, the data half has room: a put's
 * packets must not get there before its OPEN. */
static void order__data_waits_for_its_open(void **state)
{
	for (unsigned nr = 254; nr <= 258; nr++) {
		struct rig *r = peers_open(&(struct rig_cfg){
			.sim = {.seed = nr, .lossless = true, .own_slots = nr & 1}});

		r->still[1] = true;
		for (unsigned i = 0; i < GX_MIN(nr, 256u); i++)
			post(r, 0, 0, GX_OP_RECV, 100 + i, 64);
		for (unsigned i = 256; i < nr; i++)
			post(r, 0, 0, GX_OP_PUT, 100 + i, 64);
		post(r, 0, 0, GX_OP_PUT, 1, 65536);
		rig_pass(r, MS);
		r->still[1] = false;
		rig_pass(r, MS);
		no_faults(r);
		assert_int_equal(rig_stat(r, 1, "rx_stray"), 0);
		for (unsigned i = 0; i < GX_MIN(nr, 256u); i++)
			assert_int_equal(gx_cancel(r->ep[0][0], 100 + i), 1);
		rig_comps(r, 0, nr + 1, SECOND);
		rig_done(r);
	}
}

/* Small puts, and each 64th a long one, as many under way as an end takes, to a peer that is away
 * now and then for as long as its control half takes to fill. */
static void order__many_puts_to_a_slow_peer(void **state)
{
	struct rig *r = peers_open(
		&(struct rig_cfg){.sim = {.seed = 3, .lossless = true, .own_slots = true}});
	unsigned posted = 0, done = 0;

	while (done < 20000) {
		for (; posted - done < 450; posted++)
			post(r, 0, 0, GX_OP_PUT, posted, posted % 64 ? 64 : 65536);
		r->still[1] = rig_random(r) % 8 == 0;
		rig_pass(r, rig_random(r) % 8 * 1000);
		no_faults(r);
		all_ended_well(r, 0, r->nr_last[0]);
		done += r->nr_last[0];
		rig_forget(r);
	}
	r->still[1] = false;
	rig_comps(r, 0, posted - done, SECOND);
	all_ended_well(r, 0, posted - done);
	rig_done(r);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(order__data_waits_for_its_open),
		rig_test(order__many_puts_to_a_slow_peer),
	};
	int ret = rig_run("sim_peers", tests, GX_ARRAY_SIZE(tests), argc, argv);

	free(src);
	free(dst);
	return ret;
}
