// SPDX-License-Identifier: Apache-2.0
/*
 * A peer that speaks the protocol and lies: it has a connection like any other, and numbers of its
 * packets are changed before they leave, as its own program could change them. Whatever it says, the
 * server goes on, no assertion of either end fails, what another client does is right, memory that the
 * liar may not write stays as it is, and when all have left nothing of the server is missing. A run is
 * a function of its seed; GX_TEST_FULL has 10,000 of them.
 *
 * usage: test_sim_liar [TEST [SEED]]     SEED: added to every seed
 */
#include "kit/common_seeds.h"
#include "sim/sim_rig.h"

#include <stdlib.h>
#include <string.h>

#define MEM_B	(1u << 20)
#define POSTS	12 /* of each client */
#define SEEDS	150
#define LIAR	1 /* its connection */
#define PATTERN 77

struct lie {
	struct rig *r;
	unsigned honest_done, honest_due;
	uint8_t *honest, *liar, *server; /* buffers, POSTS pieces of PIECE each */
};

#define PIECE (96u << 10)

static void lie_comp(void *arg, int node, const struct gx_comp *comp)
{
	struct lie *l = arg;

	if (node != 0 || comp->kind == GX_COMP_NOTIFY)
		return;
	assert_int_equal(comp->status, 0);
	l->honest_done++;
}

/* A piece of the region, and of a client's buffer. */
static struct gx_op piece(struct lie *l, enum gx_op_kind kind, unsigned i, uint8_t *buf)
{
	uint64_t len = 1 + rig_random(l->r) % (PIECE >> rig_random(l->r) % 8);

	return (struct gx_op){.kind = kind,
			      .user = i,
			      .addr = buf + (size_t)i * PIECE,
			      .len = len,
			      .token = l->r->peer[0].token,
			      .remote_off = rig_random(l->r) % (MEM_B - len),
			      .tag = i};
}

/* What the liar posts; the connection may be gone. */
static void liar_posts(struct lie *l, unsigned i)
{
	static const enum gx_op_kind kinds[] = {GX_OP_PUT, GX_OP_GET, GX_OP_SEND, GX_OP_RECV};
	struct gx_op op = piece(l, kinds[rig_random(l->r) % 4], i, l->liar);

	op.flags = op.kind == GX_OP_PUT && rig_random(l->r) & 1 ? GX_OP_IMM : 0;
	common_post(l->r->ep[0][LIAR], &op, 1);
	/* The server has receives for it, and sends. */
	op = piece(l, rig_random(l->r) & 1 ? GX_OP_RECV : GX_OP_SEND, i, l->server);
	op.token = l->r->peer[1].token;
	common_post(l->r->ep[1][LIAR], &op, 1);
}

static bool honest_is_done(struct rig *r)
{
	struct lie *l = r->arg;

	return l->honest_done == l->honest_due;
}

/* Return: lies that were told. */
static uint64_t lie_run(const struct rig_cfg *how, unsigned seed)
{
	struct rig_cfg cfg = *how;
	struct sim_counts counts;
	struct lie l = {0};
	uint64_t off[POSTS], len[POSTS];
	uint8_t *region;

	cfg.sim.seed = seed;
	cfg.sim.liars = 1u << 2; /* the second client's queue is the third that opens */
	cfg.sim.lie_ppm = seed % 3 ? 100000 : 500000;
	cfg.nr_clients = 2;
	cfg.mem_b = MEM_B;
	cfg.access = GX_ACCESS_GET;
	l.r = rig_open(&cfg);
	l.r->on_comp = lie_comp;
	l.r->arg = &l;
	l.honest = calloc(3 * POSTS, PIECE);
	l.liar = l.honest + POSTS * PIECE;
	l.server = l.liar + POSTS * PIECE;
	region = rig_mem(l.r, 1);
	/* It thinks that it may put, too. */
	for (unsigned i = 0; i < l.r->conn[0][LIAR]->peer.nr_regions; i++)
		l.r->conn[0][LIAR]->peer.regions[i].access |= GX_ACCESS_PUT;
	rig_fill(region, MEM_B, PATTERN);
	for (unsigned i = 0; i < POSTS; i++) {
		struct gx_op op = piece(&l, GX_OP_GET, i, l.honest);

		liar_posts(&l, i);
		off[i] = op.remote_off;
		len[i] = op.len;
		rig_post_on(l.r, 0, 0, &op);
		l.honest_due++;
		for (unsigned n = rig_random(l.r) % 40; n; n--)
			rig_turn(l.r);
	}
	if (!rig_until(l.r, honest_is_done, 10 * SECOND))
		fail_msg("seed %u: %u of %u gets of the honest client are done", seed,
			 l.honest_done, l.honest_due);
	rig_pass(l.r, 20 * MS); /* more time to lie */
	for (unsigned i = 0; i < POSTS; i++)
		assert_memory_equal(l.honest + (size_t)i * PIECE, region + off[i], len[i]);
	rig_fill(l.liar, MEM_B, PATTERN); /* of no more use: is the region as it was? */
	assert_memory_equal(region, l.liar, MEM_B);
	sim_net_counts(l.r->net, &counts);
	rig_close(l.r);
	free(l.honest);
	return counts.lies;
}

static void lies__hurt_nobody(void **state)
{
	unsigned seeds = common_seeds(SEEDS, 10000);
	uint64_t lies = 0;

	for (unsigned seed = 0; seed < seeds; seed++)
		lies += lie_run(&(struct rig_cfg){.sim = {.peer_any = seed & 1,
							  .attach = seed & 2,
							  .own_slots = seed & 4}},
				seed);
	print_message("%u seeds, %u lies\n", seeds, (unsigned)lies);
	assert_true(lies > 4 * seeds);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(lies__hurt_nobody),
	};

	return rig_run("sim_liar", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
