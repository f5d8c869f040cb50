/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole transfers over a simulated network that loses, doubles, delays and corrupts packets: every
 * byte is compared, the bytes around it must be untouched, and afterwards nothing may be out at
 * either end.
 */
#include "kit/common_seeds.h"
#include "sim/sim_rig.h"

#include <stdlib.h>
#include <string.h>

#define LOAD_OPS 512

enum load_kinds { PUTS = 1, GETS = 2, SENDS = 4, ALL = 7 };

/* One transfer of a load. */
struct load_op {
	unsigned kind; /* one of load_kinds */
	int side;      /* who posts it, or sends */
	uint64_t len;
	uint8_t *src, *dst; /* where the bytes are, and shall be; guard bands around dst */
	void *own_src, *own_dst;
};

/* What to transfer. */
struct load {
	unsigned nr, kinds, depth;
	const uint64_t *lens; /* in turn; NULL: random up to len_max */
	unsigned nr_lens;
	uint64_t len_max;
	bool both; /* either side posts */
	uint64_t limit_ns;

	struct load_op op[LOAD_OPS];
	unsigned posted[2], done[2], due[2]; /* done: completions of a side, of due */
	unsigned at[2];			     /* next transfer to look at, for a side */
	unsigned notified;
	uint64_t used[2]; /* of a side's region */
	struct rig *r;
};

static struct load *current;

static uint8_t *guarded(void **own, uint64_t len)
{
	*own = malloc(len + 2 * RIG_GUARD);
	memset(*own, RIG_POISON, len + 2 * RIG_GUARD);
	return (uint8_t *)*own + RIG_GUARD;
}

/* Bytes of @side's region that no other transfer uses, guard bands around. */
static uint8_t *load_region(struct load *l, int side, uint64_t len)
{
	uint64_t off = l->used[side] + RIG_GUARD + rig_random(l->r) % 64;

	l->used[side] = off + len + RIG_GUARD;
	assert_true(l->used[side] <= l->r->cfg.mem_b);
	return rig_mem(l->r, side) + off;
}

/* A buffer of @side's own: in its region when that is the GPU's memory. */
static uint8_t *load_buf(struct load *l, int side, uint64_t len, void **own)
{
	return l->r->cfg.gpu ? load_region(l, side, len) : guarded(own, len);
}

static uint64_t load_len(struct load *l, unsigned i)
{
	uint64_t r = rig_random(l->r);

	if (l->lens)
		return l->lens[i % l->nr_lens];
	/* Small ones as likely as large ones. */
	return (r >> 8) % ((l->len_max >> r % 12) + 1);
}

static void load_op_init(struct load *l, unsigned i)
{
	struct load_op *op = &l->op[i];

	op->side = l->both ? rig_random(l->r) & 1 : 0;
	do
		op->kind = 1u << rig_random(l->r) % 3;
	while (!(op->kind & l->kinds));
	op->len = load_len(l, i);
	if (op->kind == GETS)
		op->src = load_region(l, !op->side, op->len);
	else
		op->src = load_buf(l, op->side, op->len, &op->own_src);
	if (op->kind == PUTS)
		op->dst = load_region(l, !op->side, op->len);
	else
		op->dst = load_buf(l, op->side ^ (op->kind == SENDS), op->len, &op->own_dst);
	rig_fill(op->src, op->len, i + 1);
	l->due[op->side]++;
	l->due[!op->side] += op->kind == SENDS;
}

static void load_comp(void *arg, int side, const struct gx_comp *comp)
{
	struct load *l = arg;

	if (comp->kind == GX_COMP_NOTIFY) {
		l->notified++;
		assert_true(comp->imm < l->nr && l->op[comp->imm].kind == PUTS);
		rig_check(l->op[comp->imm].dst, l->op[comp->imm].len, comp->imm + 1);
		return;
	}
	if (comp->status)
		fail_msg("transfer %u (kind %d, %llu bytes): %s", (unsigned)comp->user, comp->op,
			 (unsigned long long)l->op[comp->user].len, strerror(-comp->status));
	assert_int_equal(comp->len, l->op[comp->user].len);
	l->done[side]++;
	if (comp->op == GX_OP_PUT || comp->op == GX_OP_SEND) { /* nobody may read it any more */
		free(l->op[comp->user].own_src);
		l->op[comp->user].own_src = NULL;
	}
	/* Visible, not only reported. */
	if (comp->op != GX_OP_SEND)
		rig_check(l->op[comp->user].dst, comp->len, comp->user + 1);
}

/* Transfer @i as @side posts it; false: that side has no part in it. */
static bool load_gx_op(struct load *l, unsigned i, int side, struct gx_op *op)
{
	const struct load_op *t = &l->op[i];

	*op = (struct gx_op){0};
	op->user = i;
	op->len = t->len;
	op->tag = i;
	op->token = l->r->peer[side].token;
	op->remote_off = (t->kind == PUTS ? t->dst : t->src) - rig_mem(l->r, !t->side);
	if (t->kind == SENDS)
		op->kind = side == t->side ? GX_OP_SEND : GX_OP_RECV;
	else
		op->kind = t->kind == PUTS ? GX_OP_PUT : GX_OP_GET;
	if (op->kind == GX_OP_PUT) {
		op->flags = GX_OP_IMM;
		op->imm = i;
	}
	op->addr = op->kind == GX_OP_PUT || op->kind == GX_OP_SEND ? t->src : t->dst;
	if (l->r->cfg.gpu) {
		op->mem = l->r->mem[side];
		op->off = (uint8_t *)op->addr - rig_mem(l->r, side);
		op->addr = NULL;
	}
	return side == t->side || t->kind == SENDS;
}

static void load_post(struct load *l, int side)
{
	struct gx_op op;

	while (l->at[side] < l->nr && l->posted[side] - l->done[side] < l->depth) {
		if (load_gx_op(l, l->at[side], side, &op)) {
			int ret = common_post(l->r->ep[side][l->at[side] % l->r->nr_conns], &op, 1);

			if (ret < 0)
				fail_msg("post: %s", gx_error());
			if (!ret)
				return;
			l->posted[side]++;
		}
		l->at[side]++;
	}
}

static bool load_done(struct rig *r)
{
	load_post(current, 0);
	load_post(current, 1);
	return current->done[0] == current->due[0] && current->done[1] == current->due[1];
}

static void load_run(struct rig *r, const struct load *cfg)
{
	struct load *l = calloc(1, sizeof(*l));
	unsigned puts = 0;

	*l = *cfg;
	l->r = r;
	l->depth = l->depth ? l->depth : 16;
	l->kinds = l->kinds ? l->kinds : ALL;
	current = l;
	r->on_comp = load_comp;
	r->arg = l;
	for (unsigned i = 0; i < l->nr; i++)
		load_op_init(l, i);
	if (!rig_until(r, load_done, l->limit_ns ? l->limit_ns : 4 * SECOND))
		fail_msg("%u of %u and %u of %u completions in time", l->done[0], l->due[0],
			 l->done[1], l->due[1]);
	rig_rest(r, SECOND);
	for (unsigned i = 0; i < l->nr; i++) {
		rig_check(l->op[i].dst, l->op[i].len, i + 1);
		puts += l->op[i].kind == PUTS;
		free(l->op[i].own_src);
		free(l->op[i].own_dst);
	}
	assert_int_equal(l->notified, puts);
	r->on_comp = NULL;
	free(l);
}

/* ---- sizes and shapes ---- */

#define Q  4096ull
#define CH (64ull << 10)
static const uint64_t edge_lens[] = {
	0,	     1,		15,
	16,	     17,	1023,
	1024,	     1025,	Q / 2 - 1,
	Q / 2,	     Q / 2 + 1, Q - 1,
	Q,	     Q + 1,	2 * Q,
	63 * Q + 1,  64 * Q,	65 * Q - 1,
	CH - 1,	     CH,	CH + 1,
	4 * CH - 1,  4 * CH,	4 * CH + 1,
	5 * CH + 17, 1 << 20,	(3 << 20) + 5,
};

static void load__sizes(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}, .chunk_b = CH, .window = 4});

	for (unsigned kind = PUTS; kind <= SENDS; kind *= 2)
		for (int i = 0; i < 2; i++) {
			memset(rig_mem(r, 0), RIG_POISON, RIG_MEM_B);
			memset(rig_mem(r, 1), RIG_POISON, RIG_MEM_B);
			load_run(r, &(struct load){.nr = GX_ARRAY_SIZE(edge_lens),
						   .kinds = kind,
						   .lens = edge_lens,
						   .depth = i ? 32 : 1,
						   .nr_lens = GX_ARRAY_SIZE(edge_lens)});
		}
	rig_done(r);
}

static void shape_run(uint32_t chunk_b, uint32_t window, uint32_t quantum_b, uint32_t slots)
{
	struct rig *r =
		rig_open(&(struct rig_cfg){.sim = {.seed = chunk_b + window, .loss_ppm = 2000},
					   .chunk_b = chunk_b,
					   .window = window,
					   .quantum_b = quantum_b,
					   .slots = slots});

	load_run(r, &(struct load){.nr = 12, .len_max = 3 << 20, .both = true});
	rig_done(r);
}

static void load__windows(void **state)
{
	static const uint32_t windows[] = {1, 2, 3, 16, 64};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(windows); i++)
		shape_run(64 << 10, windows[i], 0, 0);
}

static void load__chunks(void **state)
{
	static const uint32_t chunks[] = {16 << 10, 100000, 1 << 20, 4 << 20};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(chunks); i++)
		shape_run(chunks[i], 2, 0, 0);
}

static void load__quanta(void **state)
{
	static const uint32_t quanta[] = {1280, 1392, 3328, 8192};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(quanta); i++)
		shape_run(128 << 10, 4, quanta[i], 256);
}

static void load__chunk_is_a_quantum(void **state)
{
	shape_run(4096, 1, 0, 0);
	shape_run(4096, 7, 1280, 0);
}

static void load__few_buffers(void **state)
{
	shape_run(64 << 10, 16, 0, 48);
}

/* ---- impairments ---- */

static void impaired(const struct rig_cfg *cfg, unsigned nr)
{
	struct rig *r = rig_open(cfg);

	load_run(r, &(struct load){.nr = nr, .len_max = 1 << 20, .both = true});
	rig_done(r);
}

static void load__loss(void **state)
{
	static const uint32_t ppm[] = {1000, 10000, 50000, 200000};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(ppm); i++)
		impaired(&(struct rig_cfg){.sim = {.seed = i, .loss_ppm = ppm[i]}}, 40);
}

static void load__duplication(void **state)
{
	impaired(&(struct rig_cfg){.sim = {.seed = 1, .dup_ppm = 100000}}, 40);
	impaired(&(struct rig_cfg){.sim = {.seed = 2, .dup_ppm = 500000, .loss_ppm = 10000}}, 40);
}

static void load__reordering(void **state)
{
	impaired(&(struct rig_cfg){.sim = {.seed = 1, .reorder_ppm = 200000, .reorder_slots = 16}},
		 40);
	impaired(&(struct rig_cfg){.sim = {.seed = 2, .reorder_ppm = 100000, .reorder_slots = 500}},
		 40);
}

static void load__everything_at_once(void **state)
{
	for (unsigned seed = 0; seed < common_seeds(6, 6); seed++)
		impaired(&(struct rig_cfg){.sim = {.seed = seed,
						   .loss_ppm = 20000,
						   .dup_ppm = 20000,
						   .reorder_ppm = 50000,
						   .reorder_slots = 64,
						   .corrupt_ppm = 10000,
						   .peer_any = seed & 1,
						   .attach = seed & 2},
					   .integrity = 1 + seed % 3,
					   .gpu_delay_ns = seed & 4 ? 30000 : 0},
			 40);
}

static void load__corruption_is_caught(void **state)
{
	struct rig *r = rig_open(
		&(struct rig_cfg){.sim = {.seed = 3, .corrupt_ppm = 50000}, .integrity = 1});

	load_run(r, &(struct load){.nr = 60, .len_max = 1 << 20, .both = true});
	assert_true(rig_stat(r, 0, "rx_crc") + rig_stat(r, 1, "rx_crc") > 5);
	rig_done(r);
}

static uint64_t both_stat(struct rig *r, const char *name)
{
	return rig_stat(r, 0, name) + rig_stat(r, 1, name);
}

/* Bits turn over in the receivers' buffers, where only who copies can see it; besides, the network
 * loses, doubles and reorders. */
static uint64_t rotten(const struct rig_cfg *cfg, unsigned nr)
{
	struct rig *r = rig_open(cfg);
	struct sim_counts c;
	uint64_t found;

	load_run(r, &(struct load){
			    .nr = nr, .len_max = 1 << 20, .both = true, .limit_ns = 5 * SECOND});
	rig_rest(r, SECOND);
	sim_net_counts(r->net, &c);
	found = both_stat(r, "rx_crc_unpack");
	/* A late copy of what has landed has nobody to copy it, and is checked by the CPU. */
	assert_true(found + both_stat(r, "rx_crc") <= c.rotten);
	/* Every packet asked for was sent, unless a copy of it was under way that had been sent
	 * needlessly. A request or a packet of these may be lost and repeated. */
	assert_true(both_stat(r, "resend_served") + both_stat(r, "tx_spurious") >=
		    both_stat(r, "resend_asked"));
	assert_int_equal(both_stat(r, "resend_asked"), found);
	assert_true(both_stat(r, "resend_stray") <= both_stat(r, "tx_spurious"));
	rig_done(r);
	return found;
}

static void load__wrong_while_copied(void **state)
{
	static const uint32_t ppm[] = {1000, 10000, 50000};
	uint64_t found = 0;

	for (unsigned i = 0; i < 18; i++)
		found += rotten(
			&(struct rig_cfg){.sim = {.seed = i,
						  .rot_ppm = ppm[i % 3],
						  .loss_ppm = i & 1 ? 10000 : 0,
						  .dup_ppm = i & 2 ? 10000 : 0,
						  .reorder_ppm = i & 4 ? 50000 : 0,
						  .reorder_slots = 64,
						  .peer_any = i & 1,
						  .attach = i & 2},
					  .integrity = 1,
					  .check = i % 4 == 3 ? GX_CRC_BY_AUTO : GX_CRC_BY_COPY,
					  .gpu = i % 4 == 3 || i % 5 == 4,
					  .window = i & 8 ? 2 : 0,
					  .chunk_b = i & 8 ? 16 << 10 : 0,
					  .gpu_delay_ns = i & 2 ? 30000 : 0},
			100);
	assert_true(found > 300);
}

static void load__switch_queue_overflows(void **state)
{
	impaired(
		&(struct rig_cfg){.sim = {.seed = 5, .queue_b = 60000, .rate_bps = 10000000000ull}},
		40);
}

/* Each packet of a short exchange is lost in turn: OPEN, OFFER, GET, DATA, ACK, PROBE. */
static void load__each_packet_lost_once(void **state)
{
	for (uint64_t n = 0; n < 70; n++) {
		uint64_t drop[] = {n, n + 1 + n % 7};
		struct rig *r = rig_open(&(struct rig_cfg){
			.sim = {.seed = n, .drop = drop, .nr_drop = 2}, .mem_b = 1 << 20});

		load_run(r, &(struct load){.nr = 7,
					   .len_max = 40000,
					   .both = true,
					   .depth = 2,
					   .limit_ns = 100 * MS});
		rig_done(r);
	}
}

/* ---- buffers that are held ---- */

static void load__late_copies(void **state)
{
	static const uint64_t delay_ns[] = {1000, 100000, 2000000};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(delay_ns); i++) {
		struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = i, .loss_ppm = 3000},
							   .gpu_delay_ns = delay_ns[i]});

		load_run(r, &(struct load){.nr = 20, .len_max = 1 << 20, .both = true});
		rig_done(r);
	}
}

/* GPU memory at both ends: staged on the way out, unpacked in batches on the way in. */
static void load__gpu_memory(void **state)
{
	static const uint64_t delay_ns[] = {0, 5000, 200000};

	for (unsigned i = 0; i < 2 * GX_ARRAY_SIZE(delay_ns); i++) {
		struct rig *r = rig_open(&(struct rig_cfg){
			.sim = {.seed = i, .loss_ppm = i & 1 ? 20000 : 0, .attach = i & 1},
			.gpu_delay_ns = delay_ns[i / 2],
			.chunk_b = 64 << 10,
			.window = i == 5 ? 100 : 2,
			.gpu = true});

		load_run(r, &(struct load){.nr = 20, .len_max = 1 << 20, .both = true});
		rig_done(r);
	}
}

static void load__attached_payload(void **state)
{
	impaired(&(struct rig_cfg){.sim = {.seed = 1, .attach = true}}, 40);
	impaired(&(struct rig_cfg){.sim = {.seed = 2, .attach = true, .loss_ppm = 20000}}, 40);
}

/* ---- many at once ---- */

static void load__many_small(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 9, .loss_ppm = 1000}});

	load_run(r, &(struct load){.nr = LOAD_OPS, .len_max = 3000, .both = true, .depth = 200});
	rig_done(r);
}

static void load__two_connections(void **state)
{
	impaired(&(struct rig_cfg){.sim = {.seed = 11, .loss_ppm = 2000}, .nr_conns = 2}, 60);
}

static void load__many_connections(void **state)
{
	struct rig *r =
		rig_open(&(struct rig_cfg){.sim = {.seed = 12, .loss_ppm = 1000}, .nr_conns = 64});

	load_run(r, &(struct load){.nr = 192, .len_max = 200000, .both = true, .depth = 150});
	rig_done(r);
}

/* ---- a path narrower than the port ---- */

static void load__mtu_black_hole(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1, .path_payload_b = 1400}});

	load_run(r, &(struct load){.nr = 20, .len_max = 1 << 20, .both = true});
	assert_int_equal(rig_ep(r, 0, 0)->shape.quantum, 1392);
	assert_int_equal(rig_ep(r, 1, 0)->shape.quantum, 1392);
	rig_done(r);
}

static void load__wide_path_is_proven(void **state)
{
	struct rig *r = rig_open(
		&(struct rig_cfg){.sim = {.seed = 1, .path_payload_b = 9000, .loss_ppm = 100000}});

	load_run(r, &(struct load){.nr = 20, .len_max = 1 << 20, .both = true});
	assert_int_equal(rig_ep(r, 0, 0)->shape.quantum, 4096);
	rig_done(r);
}

/* It becomes narrower while messages are under way: they begin again with smaller packets, and all
 * of them end well. */
static void narrowed(struct rig_cfg *cfg, const struct load *load, uint32_t payload_b,
		     uint32_t quantum_b)
{
	const struct sim_path path[] = {{.at_ns = 1200000, .payload_b = payload_b}};
	struct rig *r;

	cfg->sim.path_payload_b = 9000;
	cfg->sim.path = path;
	cfg->sim.nr_path = 1;
	r = rig_open(cfg);
	load_run(r, load);
	assert_true(rig_stat(r, 0, "msgs_again") + rig_stat(r, 1, "msgs_again") > 0);
	for (int side = 0; side < 2; side++) {
		uint32_t now_b = rig_ep(r, side, 0)->shape.quantum;

		assert_true(now_b == quantum_b || now_b == 4096);
	}
	rig_done(r);
}

static void load__path_narrows(void **state)
{
	static const uint32_t to_b[][2] = {{3400, 3328}, {1400, 1392}, {1300, 1280}};

	for (unsigned i = 0; i < 4 * GX_ARRAY_SIZE(to_b); i++)
		narrowed(&(struct rig_cfg){.sim = {.seed = i,
						   .loss_ppm = i & 2 ? 5000 : 0,
						   .dup_ppm = i & 2 ? 5000 : 0,
						   .reorder_ppm = i & 2 ? 20000 : 0,
						   .reorder_slots = 64,
						   .attach = i & 2},
					   .integrity = i & 3},
			 &(struct load){.nr = 20, .len_max = 3 << 20, .both = true}, to_b[i / 4][0],
			 to_b[i / 4][1]);
}

static void load__path_narrows_for_each_kind(void **state)
{
	for (unsigned i = 0; i < 12; i++)
		narrowed(&(struct rig_cfg){.sim = {.seed = i}, .integrity = i & 3},
			 &(struct load){.nr = i & 2 ? 20 : 2,
					.len_max = 4 << 20,
					.lens = i & 2 ? NULL : (uint64_t[]){4 << 20, (3 << 20) + 1},
					.nr_lens = 2,
					.depth = i & 2 ? 40 : 2,
					.kinds = 1u << i / 4},
			 1400, 1392);
}

/* Messages of one packet need bits of their own when it becomes several. */
static void load__path_narrows_for_many(void **state)
{
	static const uint64_t lens[] = {4096, 3000, 4095, 1, 1024, 200000, 2049, 0, 1281, 4096};

	for (unsigned i = 0; i < 4; i++)
		narrowed(&(struct rig_cfg){.sim = {.seed = i}, .integrity = i & 3},
			 &(struct load){.nr = LOAD_OPS,
					.kinds = i & 2 ? ALL : PUTS,
					.lens = lens,
					.nr_lens = i < 2 ? 4 : GX_ARRAY_SIZE(lens),
					.both = i & 2,
					.depth = 240},
			 1400, 1392);
}

/* Copies of what came before are under way until long after. */
static void load__path_narrows_with_late_copies(void **state)
{
	for (unsigned i = 0; i < 3; i++)
		narrowed(&(struct rig_cfg){.sim = {.seed = i, .attach = i & 1},
					   .gpu_delay_ns = i & 2 ? 200000 : 90 * MS,
					   .gpu = i & 1,
					   .slots = 2048},
			 &(struct load){.nr = 10,
					.len_max = 3 << 20,
					.both = true,
					.depth = 12,
					.limit_ns = 60 * SECOND},
			 1400, 1392);
}

static void load__path_narrows_twice(void **state)
{
	for (unsigned i = 0; i < 3; i++) {
		const struct sim_path path[] = {
			{.at_ns = 1300000, .payload_b = 3500},
			{.at_ns = 82500000 + i * 100000, .payload_b = 2000}};
		struct rig *r = rig_open(&(struct rig_cfg){
			.sim = {.seed = i, .path_payload_b = 9000, .path = path, .nr_path = 2},
			.gpu_delay_ns = i & 2 ? 100 * MS : 0,
			.slots = 2048,
			.integrity = i & 3});

		load_run(r, &(struct load){.nr = i & 2 ? 20 : 100,
					   .len_max = 2 << 20,
					   .depth = 30,
					   .limit_ns = 60 * SECOND});
		assert_int_equal(rig_ep(r, 0, 0)->shape.quantum, 1392);
		rig_done(r);
	}
}

static void load_again(struct rig *r, const struct load *load)
{
	memset(rig_mem(r, 0), RIG_POISON, RIG_MEM_B);
	memset(rig_mem(r, 1), RIG_POISON, RIG_MEM_B);
	load_run(r, load);
}

/* It carries more again: that is found at the latest when it is tried, and no message is lost by it. It
 * may carry less than at first. */
static void load__path_widens(void **state)
{
	for (unsigned i = 0; i < 4; i++) {
		const struct sim_path path[] = {
			{.at_ns = 1200000, .payload_b = 1300},
			{.at_ns = 5 * SECOND, .payload_b = i & 1 ? 3400 : 9000}};
		struct rig *r = rig_open(&(struct rig_cfg){
			.sim = {.seed = i, .path_payload_b = 9000, .path = path, .nr_path = 2}});
		struct load load = {.nr = 40, .len_max = 1 << 20, .both = i & 2};

		load_run(r, &load);
		assert_int_equal(rig_ep(r, 0, 0)->shape.quantum, 1280);
		rig_idle(r, 300 * SECOND); /* not yet */
		load_again(r, &load);
		assert_int_equal(rig_ep(r, 0, 0)->shape.quantum, 1280);
		rig_idle(r, 301 * SECOND);
		load.nr = 100;
		load_again(r, &load);
		for (int side = 0; side < (i & 2 ? 2 : 1); side++)
			assert_int_equal(rig_ep(r, side, 0)->shape.quantum, i & 1 ? 3328 : 4096);
		rig_done(r);
	}
}

static void load__lossy_path_is_not_narrow(void **state)
{
	struct rig *r = rig_open(
		&(struct rig_cfg){.sim = {.seed = 1, .path_payload_b = 9000, .loss_ppm = 200000}});

	load_run(r, &(struct load){.nr = 40, .len_max = 1 << 20, .both = true});
	assert_int_equal(rig_ep(r, 0, 0)->shape.quantum, 4096);
	assert_int_equal(rig_ep(r, 1, 0)->shape.quantum, 4096);
	rig_done(r);
}

/* A turn hears packets later than its time; the program turns on with that time for a while. */
static void turn__no_time_goes_back(void **state)
{
	struct rig *r =
		rig_open(&(struct rig_cfg){.sim = {.rate_bps = 1000000000}, .mem_b = 1 << 20});
	struct pkt_ep *e = rig_ep(r, 0, 0);
	struct gx_op op = {.kind = GX_OP_PUT, .len = 1 << 20, .token = r->peer[0].token};
	bool heard = false;

	op.mem = r->mem[0];
	rig_post(r, 0, &op);
	for (unsigned i = 0; i < 2000; i++) {
		uint64_t before = e->now_ns;

		if (i == 100)
			e->link->q->heard_ns = r->now_ns + MS; /* each packet that it hears now */
		rig_pass(r, 1000);
		assert_true(e->now_ns >= before);
		heard |= i < 1000 && e->now_ns > r->now_ns;
	}
	assert_true(heard);
	rig_comps(r, 0, 1, SECOND);
	assert_int_equal(r->last[0][0].status, 0);
	rig_forget(r);
	rig_done(r);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(load__sizes),
		rig_test(load__windows),
		rig_test(load__chunks),
		rig_test(load__quanta),
		rig_test(load__chunk_is_a_quantum),
		rig_test(load__few_buffers),
		rig_test(load__loss),
		rig_test(load__duplication),
		rig_test(load__reordering),
		rig_test(load__everything_at_once),
		rig_test(load__corruption_is_caught),
		rig_test(load__wrong_while_copied),
		rig_test(load__switch_queue_overflows),
		rig_test(load__each_packet_lost_once),
		rig_test(load__late_copies),
		rig_test(load__gpu_memory),
		rig_test(load__attached_payload),
		rig_test(load__many_small),
		rig_test(load__two_connections),
		rig_test(load__many_connections),
		rig_test(load__mtu_black_hole),
		rig_test(load__wide_path_is_proven),
		rig_test(load__path_narrows),
		rig_test(load__path_narrows_for_each_kind),
		rig_test(load__path_narrows_for_many),
		rig_test(load__path_narrows_with_late_copies),
		rig_test(load__path_narrows_twice),
		rig_test(load__path_widens),
		rig_test(load__lossy_path_is_not_narrow),
		rig_test(turn__no_time_goes_back),
	};

	return rig_run("sim", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
