/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments of lists that share packets: pieces.c by itself, and puts and gets of lists over a simulated
 * network that loses, doubles, delays, corrupts and narrows. Then peers that lie.
 */
#include "sim/sim_rig.h"
#include "packet/op.h"
#include "packet/rec.h"
#include "packet/rxtx.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SEGS  900
#define ROOM  (2u << 20)
#define FAR_B (4u << 20)

static uint8_t near[ROOM + RIG_GUARD], want[FAR_B];
static struct gx_seg segs[SEGS];
static struct pieces_pool pool;

/* ---- pieces.c ---- */

static void pieces__reads_and_writes(void **state)
{
	static const uint32_t len[] = {1, 656, 3, 1024, 7, 64};
	struct pieces *pieces = pieces_get(&pool, PIECES_TAKE);
	char whole[1755], out[1755], in[6][1100];
	uint32_t at = 0;

	rig_fill(whole, sizeof(whole), 3);
	for (unsigned i = 0; i < 6; i++)
		pieces_add(pieces, in[i], len[i]);
	assert_int_equal(pieces->at[6], sizeof(whole));
	for (uint32_t n = 1; n < 300; n++)
		for (uint32_t off = 0; off < sizeof(whole); off += 97) {
			uint32_t some = GX_MIN(n, (uint32_t)sizeof(whole) - off);

			pieces_write(pieces, off, some, whole + off);
		}
	for (unsigned i = 0; i < 6; at += len[i++])
		assert_memory_equal(in[i], whole + at, len[i]);
	for (at = sizeof(whole); at > 0;) { /* backwards */
		uint32_t some = GX_MIN(at, 100u);

		at -= some;
		pieces_read(pieces, at, some, out + at);
	}
	assert_memory_equal(out, whole, sizeof(whole));
	pieces_put(NULL, &pool, pieces);
	assert_int_equal(pool.used[PIECES_TAKE], 0);
}

static void pieces__uses_are_apart(void **state)
{
	struct pieces *all[PIECES_USES][PIECES_EACH];
	uint16_t number;

	assert_int_equal(pieces_number(&pool, NULL), 0);
	for (unsigned use = 0; use < PIECES_USES; use++) {
		for (unsigned i = 0; i < PIECES_EACH; i++) {
			all[use][i] = pieces_get(&pool, use);
			assert_non_null(all[use][i]);
			number = pieces_number(&pool, all[use][i]);
			assert_ptr_equal(pieces_of(&pool, number), all[use][i]);
			assert_true(pieces_is(number, use));
			assert_false(pieces_is(number, (use + 1) % PIECES_USES));
		}
		assert_null(pieces_get(&pool, use));
	}
	pieces_put(NULL, &pool, all[PIECES_GET][7]);
	assert_null(pieces_get(&pool, PIECES_PUT));
	assert_ptr_equal(pieces_get(&pool, PIECES_GET), all[PIECES_GET][7]);
	memset(&pool, 0, sizeof(pool));
}

/* ---- lists ---- */

/* Segments of 1 to @most bytes in any order, here and there, with a few bytes between them. */
static uint64_t segs_make(struct rig *r, unsigned n, uint32_t most)
{
	uint64_t here = 0, there = 0;

	for (unsigned i = 0; i < n; i++) {
		uint64_t len = 1 + rig_random(r) % most;

		segs[i] = (struct gx_seg){.off = (uintptr_t)near + here,
					  .token = r->peer[0].token,
					  .remote_off = FAR_B / 2 - (there += len + i % 3 + 1),
					  .len = len};
		here += len + 1;
	}
	assert_true(here <= sizeof(near) && there <= FAR_B / 2);
	for (unsigned i = 0; i < n; i++) {
		unsigned k = rig_random(r) % n;
		struct gx_seg seg = segs[i];

		segs[i] = segs[k];
		segs[k] = seg;
	}
	return here;
}

static void list_post(struct rig *r, enum gx_op_kind kind, unsigned n)
{
	rig_post(r, 0, &(struct gx_op){.kind = kind, .user = 1, .segs = segs, .nr_segs = n});
}

static void list_ended(struct rig *r, int status)
{
	rig_comps(r, 0, 1, 10 * SECOND);
	assert_int_equal(r->last[0][0].status, status);
}

/* All there is at the server: @want and nothing else. */
static void far_check(struct rig *r)
{
	assert_memory_equal(rig_mem(r, 1), want, sizeof(want));
}

static void puts_run(const struct rig_cfg *cfg, unsigned n, uint32_t most)
{
	struct rig *r = rig_open(cfg);

	segs_make(r, n, most);
	rig_fill(near, sizeof(near), 7);
	memset(want, RIG_POISON, sizeof(want));
	for (unsigned i = 0; i < n; i++)
		memcpy(want + segs[i].remote_off, (void *)(uintptr_t)segs[i].off, segs[i].len);
	list_post(r, GX_OP_PUT, n);
	list_ended(r, 0);
	far_check(r);
	rig_done(r);
}

static void gets_run(const struct rig_cfg *cfg, unsigned n, uint32_t most)
{
	static uint8_t all[sizeof(near)];
	struct rig *r = rig_open(cfg);

	segs_make(r, n, most);
	rig_fill(want, sizeof(want), 9);
	memcpy(rig_mem(r, 1), want, sizeof(want));
	memset(near, RIG_POISON, sizeof(near));
	memset(all, RIG_POISON, sizeof(all));
	for (unsigned i = 0; i < n; i++)
		memcpy(all + (segs[i].off - (uintptr_t)near), want + segs[i].remote_off,
		       segs[i].len);
	list_post(r, GX_OP_GET, n);
	list_ended(r, 0);
	assert_memory_equal(near, all, sizeof(near));
	rig_done(r);
}

static struct rig_cfg cfg_of(unsigned i)
{
	return (struct rig_cfg){.sim = {.seed = i,
					.loss_ppm = i % 4 ? 20000 : 0,
					.dup_ppm = i % 3 ? 20000 : 0,
					.corrupt_ppm = i % 2 ? 5000 : 0,
					.reorder_ppm = i % 5 ? 50000 : 0,
					.reorder_slots = 16,
					.attach = i % 7 == 3},
				.integrity = i % 2 ? 1 + i / 2 % 3 : 0,
				.check = i % 4 == 3 ? GX_CRC_BY_COPY : GX_CRC_BY_CPU,
				.quantum_b = i % 3 == 1 ? 1280 : 0,
				.gpu_delay_ns = i % 6 == 5 ? 50000 : 0,
				.mem_b = FAR_B};
}

static const uint32_t mosts[] = {8, 656, 1024, 2000};

static void list__put(void **state)
{
	for (unsigned i = 0; i < 24; i++) {
		struct rig_cfg cfg = cfg_of(i);

		puts_run(&cfg, i ? SEGS : 2, mosts[i % 4]);
	}
}

static void list__get(void **state)
{
	for (unsigned i = 0; i < 24; i++) {
		struct rig_cfg cfg = cfg_of(i);

		gets_run(&cfg, i ? SEGS : 2, mosts[i % 4]);
	}
}

/* Descriptors place the pieces; the GPU is late. */
static void list__put_gpu(void **state)
{
	for (unsigned i = 0; i < 12; i++) {
		struct rig_cfg cfg = cfg_of(i);

		cfg.gpu = true;
		puts_run(&cfg, SEGS, mosts[i % 4]);
	}
}

/* Messages begin again with smaller packets. */
static void list__path_narrows(void **state)
{
	const struct sim_path path[] = {{.at_ns = 1100000, .payload_b = 1400}};

	for (unsigned i = 0; i < 8; i++) {
		struct rig_cfg cfg = {.sim = {.seed = i,
					      .loss_ppm = i & 2 ? 5000 : 0,
					      .rate_bps = 1000000000,
					      .path_payload_b = 9000,
					      .path = path,
					      .nr_path = 1},
				      .integrity = i & 3,
				      .mem_b = FAR_B};

		if (i & 4)
			gets_run(&cfg, SEGS, 2000);
		else
			puts_run(&cfg, SEGS, 2000);
	}
}

/* How many messages does a list take? */
static void list__packets_are_few(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}, .mem_b = FAR_B});
	uint64_t msgs = rig_stat(r, 0, "msgs_tx"), pkts = rig_stat(r, 0, "tx_pkts");

	segs_make(r, 640, 1024);
	for (unsigned i = 0; i < 640; i++)
		segs[i].len = 656;
	list_post(r, GX_OP_PUT, 640);
	list_ended(r, 0);
	assert_int_equal(rig_stat(r, 0, "msgs_tx") - msgs, 10);
	assert_true(rig_stat(r, 0, "tx_pkts") - pkts < 640 / 4);
	rig_done(r);
}

/* The 500th is wrong: nothing of its message moves, and the error names it. */
static void refused(enum gx_op_kind kind, uint64_t off, uint64_t token, int status)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 2}, .mem_b = FAR_B});
	unsigned first = 500 / GX_WIRE_SEGS * GX_WIRE_SEGS;

	segs_make(r, SEGS, 1024);
	memset(near, RIG_POISON, sizeof(near));
	memset(rig_mem(r, 1), 1, FAR_B);
	segs[500].remote_off = off;
	for (unsigned i = first; token && i < first + GX_WIRE_SEGS; i++)
		segs[i].token = token;
	list_post(r, kind, SEGS);
	list_ended(r, status);
	assert_int_equal(r->last[0][0].seg, token ? first : 500);
	for (unsigned i = first; i < first + GX_WIRE_SEGS; i++) {
		if (kind == GX_OP_GET)
			rig_check_poison((void *)(uintptr_t)segs[i].off, segs[i].len);
		else if (i != 500)
			assert_int_equal(rig_mem(r, 1)[segs[i].remote_off], 1);
	}
	rig_done(r);
}

static void list__refused(void **state)
{
	static const uint64_t off[] = {FAR_B, FAR_B - 1 + 1, 1ull << 40,
				       ~0ull, ~0ull - 100,   1ull << 63};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(off); i++) {
		refused(GX_OP_PUT, off[i], 0, -ERANGE);
		refused(GX_OP_GET, off[i], 0, -ERANGE);
	}
	refused(GX_OP_PUT, 0, 0x3ff, -ENOENT);
	refused(GX_OP_GET, 0, 0x3ff, -ENOENT);
}

static void list__access(void **state)
{
	for (unsigned get = 0; get < 2; get++) {
		struct rig *r =
			rig_open(&(struct rig_cfg){.sim = {.seed = 2},
						   .mem_b = FAR_B,
						   .access = get ? GX_ACCESS_PUT : GX_ACCESS_GET});

		segs_make(r, SEGS, 1024);
		list_post(r, get ? GX_OP_GET : GX_OP_PUT, SEGS);
		list_ended(r, -EACCES);
		rig_done(r);
	}
}

/* It ends at each stage, with packets lost: nobody reads or writes its memory any more. */
static void ends(enum gx_op_kind kind, uint64_t ns, unsigned how)
{
	struct rig *r = rig_open(&(struct rig_cfg){
		.sim = {.seed = 1 + ns, .loss_ppm = 30000, .rate_bps = 2000000000},
		.mem_b = FAR_B});
	struct gx_op op = {.kind = kind, .user = 1, .segs = segs, .nr_segs = SEGS};
	uint8_t *seen = malloc(sizeof(near));

	segs_make(r, SEGS, 1024);
	rig_fill(near, sizeof(near), 7);
	if (how == 1)
		op.deadline_ns = r->now_ns + ns;
	rig_post(r, 0, &op);
	memset(segs, 0xee, sizeof(segs));
	rig_pass(r, ns);
	if (how == 0)
		gx_cancel(gx_core_queue(r->core[0]), r->ep[0][0], 1);
	if (how == 2)
		assert_int_equal(gx_mem_free(r->mem[1]), 0);
	rig_comps(r, 0, 1, SECOND);
	memcpy(seen, near, sizeof(near));
	if (r->last[0][0].status && (how < 2 || r->last[0][0].status != -ESTALE))
		assert_int_equal(r->last[0][0].status, how == 1 ? -ETIMEDOUT : -ECANCELED);
	rig_forget(r);
	segs[0] = (struct gx_seg){.off = (uintptr_t)near, .token = r->peer[0].token, .len = 900};
	segs[1] = (struct gx_seg){.off = (uintptr_t)near, .token = r->peer[0].token, .len = 901};
	list_post(r, GX_OP_PUT, 2); /* takes the room of the first one */
	list_ended(r, how == 2 ? -ESTALE : 0);
	rig_pass(r, 20 * MS);
	if (how != 2)
		assert_memory_equal(seen, near, sizeof(near));
	free(seen);
	rig_done(r);
}

static void list__ends_at_every_stage(void **state)
{
	for (uint64_t us = 0; us < 1500; us += 75)
		for (unsigned how = 0; how < 3; how++) {
			ends(GX_OP_PUT, us * 1000, how);
			ends(GX_OP_GET, us * 1000, how);
		}
}

static unsigned no_room(struct gx_port_queue *q, enum gx_half half, uint32_t peer)
{
	return 0;
}

/* Its record waits for room when it ends, and its segments go: the record must not read them. */
static void list__segments_are_not_read_after_its_end(void **state)
{
	for (unsigned get = 0; get < 2; get++) {
		struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 5}, .mem_b = FAR_B});
		struct gx_port_queue *q = pkt_link(r->core[0], 0)->q;
		const struct gx_port_ops *ops = q->ops;
		struct gx_port_ops blocked = *ops;
		struct pkt_ep *e = rig_ep(r, 0, 0);
		uint32_t rsn = e->rec.next;

		blocked.tx_room = no_room;
		q->ops = &blocked;
		segs_make(r, 50, 1024);
		list_post(r, get ? GX_OP_GET : GX_OP_PUT, 50);
		rig_turn(r);
		assert_int_equal(e->recs[rsn % PKT_RECS].rec.type, get ? GX_REC_GETS : GX_REC_LIST);
		gx_cancel(gx_core_queue(r->core[0]), r->ep[0][0], 1);
		list_ended(r, -ECANCELED);
		assert_int_equal(e->recs[rsn % PKT_RECS].state, REC_QUEUED);
		if (get)
			assert_null(e->recs[rsn % PKT_RECS].rec.get.segs);
		else
			assert_null(e->recs[rsn % PKT_RECS].rec.open.segs);
		q->ops = ops;
		rig_done(r);
	}
}

/* ---- lists that end early, and what lies between their segments ---- */

#define GAP_LISTS 5
#define GAP_SEG_B 1000u
#define GAP_STEP  3000u
#define GAP_B	  (GAP_LISTS * GX_WIRE_SEGS * GAP_STEP)

enum { BY_CANCEL, BY_DEADLINE, BY_FREE, BY_ALL };

/* Lists of 64 segments, a message each, with gaps on both sides. */
static void gaps_post(struct rig *r, enum gx_op_kind kind, struct gx_mem *mem, uint64_t deadline_ns)
{
	static struct gx_seg gap[GX_WIRE_SEGS];

	for (unsigned l = 0; l < GAP_LISTS; l++) {
		for (unsigned i = 0; i < GX_WIRE_SEGS; i++) {
			uint64_t off = (l * GX_WIRE_SEGS + i) * (uint64_t)GAP_STEP;

			gap[i] = (struct gx_seg){.mem = mem,
						 .off = mem ? off : (uintptr_t)near + off,
						 .token = r->peer[0].token,
						 .remote_off = off,
						 .len = GAP_SEG_B};
		}
		rig_post(r, 0,
			 &(struct gx_op){.kind = kind,
					 .user = l,
					 .deadline_ns = deadline_ns,
					 .segs = gap,
					 .nr_segs = GX_WIRE_SEGS});
	}
}

static void gaps_check(const uint8_t *at)
{
	for (uint32_t i = 0; i < GAP_B; i += GAP_STEP)
		rig_check_poison(at + i + GAP_SEG_B, GAP_STEP - GAP_SEG_B);
}

/* Five lists begin, and end at any time. Where their records and packets are lost, come twice or
 * late, nothing comes between the segments, nor to memory of gets that have ended. */
static void gaps_round(struct rig *r, const struct sim_cfg *bad, enum gx_op_kind kind, unsigned how)
{
	uint64_t ns = rig_random(r) % (3 * MS / 2);
	struct sim_cfg calm = {.path_payload_b = bad->path_payload_b};
	struct gx_mem *mem = NULL;

	if (how == BY_FREE)
		assert_int_equal(gx_mem_reg(r->gx[0], GX_MEM_HOST, 0, near, GAP_B, &mem), 0);
	rig_set(r, bad);
	gaps_post(r, kind, mem, how == BY_DEADLINE ? r->now_ns + ns : 0);
	rig_pass(r, ns);
	for (unsigned l = 0; how == BY_CANCEL && l < GAP_LISTS; l++)
		common_cancel(r->ep[0][0], l);
	if (how == BY_FREE)
		assert_int_equal(gx_mem_free(mem), 0);
	rig_comps(r, 0, GAP_LISTS, SECOND);
	rig_forget(r);
	if (kind == GX_OP_GET)
		memcpy(want, near, GAP_B);
	rig_pass(r, 4 * MS);
	rig_set(r, &calm);
	rig_pass(r, 10 * MS);
	assert_int_equal(atomic_load(&r->ep[0][0]->fault), 0);
	assert_int_equal(atomic_load(&r->ep[1][0]->fault), 0);
	gaps_check(kind == GX_OP_GET ? near : rig_mem(r, 1));
	if (kind == GX_OP_GET)
		assert_memory_equal(near, want, GAP_B);
}

static void gaps_run(uint64_t seed, enum gx_op_kind kind, unsigned how, unsigned rounds)
{
	struct sim_cfg bad = {.seed = seed,
			      .delay_ns = 1000,
			      .rate_bps = 10000000000,
			      .loss_ppm = 500000,
			      .dup_ppm = 200000,
			      .reorder_ppm = 500000,
			      .reorder_slots = 2000};
	struct rig *r = rig_open(
		&(struct rig_cfg){.sim = {.seed = seed, .delay_ns = 1000, .rate_bps = 10000000000},
				  .quantum_b = 1392,
				  .mem_b = FAR_B});

	memset(near, RIG_POISON, sizeof(near));
	memset(rig_mem(r, 1), RIG_POISON, FAR_B);
	for (uint32_t i = 0; i < GAP_B; i += GAP_STEP)
		memset((kind == GX_OP_GET ? rig_mem(r, 1) : near) + i, 0x11, GAP_SEG_B);
	for (unsigned i = 0; i < rounds; i++)
		gaps_round(r, &bad, kind, how);
	rig_done(r);
}

static void list__ends_between_its_segments(void **state)
{
	for (unsigned how = 0; how < BY_ALL; how++)
		for (uint64_t seed = 1; seed <= 2; seed++) {
			gaps_run(seed, GX_OP_PUT, how, 20);
			gaps_run(seed, GX_OP_GET, how, 20);
		}
}

static bool list_again(struct rig *r)
{
	return rig_stat(r, 0, "msgs_again") > 0;
}

/* The path narrows, and lists that begin again end while their new record is lost: that is no fault
 * of the connection. */
static void again_run(uint64_t seed)
{
	const struct sim_path path[] = {{.at_ns = 1100000, .payload_b = 1400}};
	struct sim_cfg sim = {.seed = seed,
			      .rate_bps = 1000000000,
			      .path_payload_b = 9000,
			      .path = path,
			      .nr_path = 1};
	struct rig *r = rig_open(&(struct rig_cfg){.sim = sim, .mem_b = FAR_B});

	memset(near, 0x11, sizeof(near));
	memset(rig_mem(r, 1), RIG_POISON, FAR_B);
	rig_pass(r, MS);
	gaps_post(r, GX_OP_PUT, NULL, 0);
	assert_true(rig_until(r, list_again, SECOND));
	sim.loss_ppm = 500000;
	rig_set(r, &sim);
	rig_pass(r, rig_random(r) % 50000);
	for (unsigned l = 0; l < GAP_LISTS; l++)
		common_cancel(r->ep[0][0], l);
	rig_comps(r, 0, GAP_LISTS, SECOND);
	rig_pass(r, 50 * MS);
	sim.loss_ppm = 0;
	rig_set(r, &sim);
	rig_pass(r, 50 * MS);
	assert_int_equal(atomic_load(&r->ep[0][0]->fault), 0);
	assert_int_equal(atomic_load(&r->ep[1][0]->fault), 0);
	gaps_check(rig_mem(r, 1));
	rig_done(r);
}

static void list__ends_while_it_begins_again(void **state)
{
	for (uint64_t seed = 1; seed <= 20; seed++)
		again_run(seed);
}

/* A list that ends before its record was made leaves the first record of the endpoint alone, which is of
 * another operation: put or get, whose packet was lost. (Seed 299 of sim_all.) */
static void ends_before_its_record(enum gx_op_kind kind)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}, .mem_b = FAR_B});
	struct pkt_ep *e = rig_ep(r, 0, 0);
	bool get = kind == GX_OP_GET;

	rig_fill(near, ROOM, 1);
	for (unsigned i = 0; i < 4; i++)
		segs[i] = (struct gx_seg){.off = (uintptr_t)near + 1000 * i,
					  .token = r->peer[0].token,
					  .remote_off = 1000 * i,
					  .len = 700};
	rig_set(r, &(struct sim_cfg){.loss_ppm = 1000000});
	rig_post(r, 0,
		 &(struct gx_op){.kind = kind, .user = 1, .segs = segs, .nr_segs = get ? 2 : 1});
	rig_pass(r, 50000);	/* its record is lost */
	e->path.proven = false; /* the next one does not begin */
	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT, .user = 2, .segs = segs + 2, .nr_segs = 2});
	assert_int_equal(common_cancel(r->ep[0][0], 2), 1);
	e->path.proven = true;
	rig_set(r, &(struct sim_cfg){0});
	rig_comps(r, 0, 2, 5 * SECOND);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(r->last[0][i].status, r->last[0][i].user == 2 ? -ECANCELED : 0);
	assert_memory_equal(rig_mem(r, 1), near, 700);
	rig_done(r);
}

static void list__ends_before_its_record(void **state)
{
	ends_before_its_record(GX_OP_PUT);
	ends_before_its_record(GX_OP_GET);
}

/* ---- peers that lie ---- */

/* Side 0 says that a message of @n segments of @len bytes begins. */
static void claim_list(struct rig *r, unsigned n, uint64_t len)
{
	static struct gx_link_seg s[GX_WIRE_SEGS];
	struct pkt_ep *e = rig_ep(r, 0, 0);
	struct gx_wire_rec rec = {.type = GX_REC_LIST,
				  .open = {.mid = tx_mid(e, PKT_NONE),
					   .quantum = e->shape.quantum,
					   .token = r->peer[0].token,
					   .len = n * len,
					   .nr = n,
					   .segs = s}};

	for (unsigned i = 0; i < n; i++)
		s[i] = (struct gx_link_seg){.len = len, .remote_off = i * len};
	assert_true(rec_add(e, &rec, PKT_NONE));
}

/* More lists under way than an end may have. */
static void peer__too_many_lists(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 3}, .mem_b = FAR_B});

	for (unsigned i = 0; i < PIECES_EACH; i++)
		claim_list(r, 2, 700);
	rig_pass(r, MS);
	assert_int_equal(atomic_load(&r->ep[1][0]->fault), 0);
	claim_list(r, 2, 700);
	rig_pass(r, MS);
	assert_int_equal(atomic_load(&r->ep[1][0]->fault), -EPROTO);
	rig_close(r);
}

/* The decoder refuses the record: nothing of its packet counts, and the connection goes on. */
static void peer__list_of_nothing(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 3}, .mem_b = FAR_B});
	uint64_t bad = rig_stat(r, 1, "rx_bad");

	claim_list(r, 0, 0);
	rig_pass(r, MS);
	assert_true(rig_stat(r, 1, "rx_bad") > bad);
	assert_int_equal(rig_ep(r, 1, 0)->rx.nr_in, 0);
	assert_int_equal(rig_ep(r, 1, 0)->pieces.used[PIECES_TAKE], 0);
	rig_close(r);
}

/* The answer to a get in pieces comes inside of a record, or is to be read in the peer's process. */
static void peer__answers_otherwise(void **state)
{
	static const uint8_t data[GX_WIRE_INLINE_MAX];

	for (unsigned pull = 0; pull < 2; pull++) {
		struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 4}, .mem_b = FAR_B});
		struct pkt_ep *e = rig_ep(r, 0, 0), *p = rig_ep(r, 1, 0);
		struct gx_wire_rec rec = {.type = GX_REC_OPEN,
					  .flags = GX_REC_SLOT |
						   (pull ? GX_REC_PULL : GX_REC_INLINE)};

		segs_make(r, 2, 8);
		segs[0].len = 1024;
		segs[1].len = 8;
		segs[1].off = segs[0].off + 2000;
		memset(near, RIG_POISON, sizeof(near));
		list_post(r, GX_OP_GET, 2);
		rig_turn(r);
		assert_int_equal(e->match.gets_out, 1);
		rec.open.mid = tx_mid(p, PKT_NONE);
		rec.open.quantum = p->shape.quantum;
		rec.open.token = slot_token(e, 0);
		rec.open.len = 1032;
		rec.open.from = (uintptr_t)data;
		if (!pull) {
			rec.open.data = data;
			e->ops[e->slots[0].op].len = rec.open.len = 1024;
		}
		p->err = 0;
		assert_true(rec_add(p, &rec, PKT_NONE));
		rig_comps(r, 0, 1, SECOND);
		assert_int_equal(r->last[0][0].status, -EPROTO);
		rig_check_poison(near, 4000);
		rig_close(r);
	}
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(pieces__reads_and_writes),
		rig_test(pieces__uses_are_apart),
		rig_test(list__put),
		rig_test(list__get),
		rig_test(list__put_gpu),
		rig_test(list__path_narrows),
		rig_test(list__packets_are_few),
		rig_test(list__refused),
		rig_test(list__access),
		rig_test(list__ends_at_every_stage),
		rig_test(list__segments_are_not_read_after_its_end),
		rig_test(list__ends_between_its_segments),
		rig_test(list__ends_while_it_begins_again),
		rig_test(list__ends_before_its_record),
		rig_test(peer__too_many_lists),
		rig_test(peer__list_of_nothing),
		rig_test(peer__answers_otherwise),
	};

	return rig_run("pieces", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
