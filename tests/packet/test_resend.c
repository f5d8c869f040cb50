/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets that are found wrong while they are copied, over a simulated network: how often they are
 * asked for again, what ends when they never come right, and what a peer that asks for nonsense
 * gets. After each case nothing may be out at either end. Whole loads are in test_sim.
 */
#include "sim/sim_rig.h"
#include "packet/bad.h"
#include "packet/rec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BIG   (1u << 20)
#define MEM_B (3ull << 20)

static uint8_t src[BIG], dst[BIG];

static struct rig *open_with(const struct rig_cfg *cfg)
{
	struct rig_cfg full = *cfg;

	full.mem_b = MEM_B;
	full.integrity = 1;
	full.check = GX_CRC_BY_COPY;
	rig_fill(src, sizeof(src), 1);
	memset(dst, RIG_POISON, sizeof(dst));
	return rig_open(&full);
}

static struct rig *open_plain(uint32_t rot_ppm)
{
	return open_with(&(struct rig_cfg){.sim = {.seed = 1, .rot_ppm = rot_ppm}});
}

static void rot(struct rig *r, uint32_t ppm)
{
	struct sim_cfg sim = r->cfg.sim;

	sim.rot_ppm = ppm;
	rig_set(r, &sim);
}

static void post(struct rig *r, int side, enum gx_op_kind kind, uint64_t len, unsigned flags)
{
	rig_post(r, side,
		 &(struct gx_op){.kind = kind,
				 .flags = flags,
				 .user = 1,
				 .len = len,
				 .addr = kind == GX_OP_PUT || kind == GX_OP_SEND ? src : dst,
				 .token = r->peer[side].token});
}

static void expect(struct rig *r, int side, unsigned i, enum gx_comp_kind kind, int status)
{
	assert_true(i < r->nr_last[side]);
	assert_int_equal(r->last[side][i].kind, kind);
	assert_int_equal(r->last[side][i].status, status);
}

/* ---- asking ---- */

static void bad__each_packet_of_a_put_once(void **state)
{
	struct rig *r = open_plain(1000000);
	uint32_t n = rig_ep(r, 0, 0)->shape.quantum;

	n = (300000 + n - 1) / n;
	post(r, 0, GX_OP_PUT, 300000, 0);
	while (rig_stat(r, 1, "rx_crc_unpack") < n)
		rig_pass(r, 1000);
	rot(r, 0);
	rig_comps(r, 0, 1, SECOND);
	expect(r, 0, 0, GX_COMP_DONE, 0);
	assert_memory_equal(rig_mem(r, 1), src, 300000);
	assert_true(rig_stat(r, 1, "resend_asked") >= n);
	rig_done(r);
}

/* Neighbours are asked for by one record. */
static void bad__neighbours_share_a_record(void **state)
{
	struct rig *r = open_with(
		&(struct rig_cfg){.sim = {.seed = 1, .rot_ppm = 1000000}, .gpu_delay_ns = 200000});
	uint32_t before = rig_ep(r, 1, 0)->rec.next;

	post(r, 0, GX_OP_PUT, 300000, 0);
	while (rig_stat(r, 1, "resend_asked") < 40)
		rig_pass(r, 1000);
	rot(r, 0);
	rig_comps(r, 0, 1, SECOND);
	assert_true(rig_stat(r, 1, "resend_asked") > 2 * (rig_ep(r, 1, 0)->rec.next - before));
	rig_done(r);
}

/* No notification, and no local completion, before every byte is right. */
static void bad__nothing_is_told_before(void **state)
{
	struct rig *r = open_plain(1000000);

	post(r, 0, GX_OP_PUT, 3000, GX_OP_IMM | GX_OP_LOCAL);
	while (rig_stat(r, 1, "resend_asked") < 4)
		rig_pass(r, 1000);
	assert_int_equal(flow_outstanding(rig_ep(r, 0, 0)->flow), 1); /* the next copy */
	assert_int_equal(r->nr_last[0] + r->nr_last[1], 0);
	rot(r, 0);
	rig_comps(r, 0, 2, SECOND);
	expect(r, 0, 0, GX_COMP_LOCAL, 0);
	expect(r, 0, 1, GX_COMP_DONE, 0);
	expect(r, 1, 0, GX_COMP_NOTIFY, 0);
	assert_memory_equal(rig_mem(r, 1), src, 3000);
	rig_done(r);
}

static void never_right(enum gx_op_kind kind, uint64_t len, bool gpu)
{
	struct rig *r = open_with(&(struct rig_cfg){.sim = {.seed = 1, .rot_ppm = 1000000},
						    .gpu = gpu,
						    .gpu_delay_ns = gpu ? 20000 : 0});

	if (kind == GX_OP_SEND)
		post(r, 1, GX_OP_RECV, len, 0);
	post(r, 0, kind, len, GX_OP_LOCAL);
	rig_comps(r, 0, 1, SECOND);
	rig_rest(r, SECOND);
	expect(r, 0, r->nr_last[0] - 1, GX_COMP_DONE, -EBADMSG);
	if (kind == GX_OP_SEND)
		expect(r, 1, 0, GX_COMP_DONE, -EBADMSG);
	rot(r, 0);
	rig_forget(r);
	post(r, 0, GX_OP_PUT, BIG, 0);
	rig_comps(r, 0, 1, SECOND);
	expect(r, 0, 0, GX_COMP_DONE, 0);
	assert_memory_equal(rig_mem(r, 1), src, BIG);
	rig_done(r);
}

/* What never comes right ends at both ends, and harms nothing that comes later. */
static void bad__never_right(void **state)
{
	static const enum gx_op_kind kinds[] = {GX_OP_PUT, GX_OP_GET, GX_OP_SEND};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(kinds); i++) {
		never_right(kinds[i], 2000, false);
		never_right(kinds[i], BIG, false);
		never_right(kinds[i], BIG, true);
	}
}

static void bad__tries_of_one_packet(void **state)
{
	struct rig *r = open_plain(1000000);

	post(r, 0, GX_OP_PUT, 2000, 0);
	rig_comps(r, 0, 1, SECOND);
	expect(r, 0, 0, GX_COMP_DONE, -EBADMSG);
	assert_int_equal(rig_stat(r, 1, "resend_asked"), PKT_BAD_TRIES);
	assert_int_equal(rig_stat(r, 0, "resend_served"), PKT_BAD_TRIES);
	assert_int_equal(rig_stat(r, 1, "rx_crc_unpack"), PKT_BAD_TRIES + 1);
	rig_done(r);
}

/* The user gives up while packets are being asked for. */
static void bad__cancelled(void **state)
{
	static const enum gx_op_kind kinds[] = {GX_OP_PUT, GX_OP_GET};

	for (unsigned i = 0; i < 2; i++) {
		struct rig *r = open_plain(1000000);

		post(r, 0, kinds[i], 100000, 0);
		while (rig_stat(r, 0, "resend_asked") + rig_stat(r, 1, "resend_asked") == 0)
			rig_pass(r, 1000);
		assert_int_equal(common_cancel(r->ep[0][0], 1), 1);
		rig_comps(r, 0, 1, SECOND);
		expect(r, 0, 0, GX_COMP_DONE, -ECANCELED);
		rig_done(r);
	}
}

/* No room for a record: the packet is not forgotten. */
static void bad__waits_for_a_record(void **state)
{
	struct rig *r = open_plain(1000000);
	struct pkt_ep *e = rig_ep(r, 1, 0);
	struct gx_wire_rec rec = {.type = GX_REC_REVOKE, .revoke = {.slot = 1}};

	post(r, 0, GX_OP_PUT, 100000, 0);
	while (!e->rx.held_bufs && !rig_stat(r, 1, "rx_pkts"))
		rig_turn(r);
	while (rec_room(e) > PKT_RECS_KEPT)
		assert_true(rec_add(e, &rec, PKT_NONE));
	while (!e->rx.nr_bad)
		rig_turn(r);
	assert_true(e->rx.bads_due);
	assert_int_equal(e->bad[0].state, BAD_DUE);
	rot(r, 0);
	rig_comps(r, 0, 1, SECOND);
	expect(r, 0, 0, GX_COMP_DONE, 0);
	assert_memory_equal(rig_mem(r, 1), src, 100000);
	rig_done(r);
}

/* Asked packets are missing packets: a message of which too many are is given up, and those of
 * other messages that have come make room. */
static void bad__table(void **state)
{
	struct rig *r = open_plain(0);
	struct pkt_ep *e = rig_ep(r, 1, 0);
	uint32_t q = e->shape.quantum;
	struct in_msg *m = &e->in[5], *other = &e->in[6];

	m->shape = other->shape = &e->rx_shape[0];
	m->state = other->state = IN_ACTIVE;
	m->mid = 5;
	other->mid = 6;
	m->len = other->len = 10000ull * q;
	for (uint32_t i = 0; i < PKT_BAD_MAX; i++)
		assert_true(bad_found(e, i & 1 ? m : other, (uint64_t)i * q, q));
	assert_false(bad_found(e, m, 9000ull * q, q));
	assert_int_equal(e->rx.nr_bad, PKT_BAD_MAX);
	assert_false(bad_again(e, m, 0));
	assert_true(bad_again(e, other, 0));
	assert_false(bad_again(e, other, 0)); /* a double */
	assert_true(bad_found(e, m, 9000ull * q, q));
	assert_int_equal(m->nr_bad, PKT_BAD_MAX / 2 + 1);
	assert_int_equal(other->nr_bad, PKT_BAD_MAX / 2 - 1);
	assert_false(bad_found(e, m, q / 2, q)); /* no packet of it */
	bad_forget(e, m);
	assert_int_equal(e->rx.nr_bad, PKT_BAD_MAX / 2 - 1);
	bad_forget(e, other);
	assert_int_equal(e->rx.nr_bad + m->nr_bad + other->nr_bad, 0);
	m->state = other->state = IN_FREE;
	m->mid -= GX_WIRE_MIDS; /* they never were */
	other->mid -= GX_WIRE_MIDS;
	rig_pass(r, MS);
	rig_done(r);
}

/* ---- answering ---- */

/* Side 1 asks side 0. */
static void ask(struct rig *r, uint32_t mid, uint64_t off, uint64_t len)
{
	struct gx_wire_rec rec = {.type = GX_REC_RESEND,
				  .resend = {.mid = mid, .off = off, .len = len}};

	assert_true(rec_add(rig_ep(r, 1, 0), &rec, PKT_NONE));
	rig_pass(r, 100000);
}

static void ask__nonsense(void **state)
{
	struct rig *r = open_with(&(struct rig_cfg){.sim = {.seed = 1}, .gpu_delay_ns = 20 * MS});
	uint32_t q = rig_ep(r, 0, 0)->shape.quantum;
	uint64_t all = 5 * q + 16;
	const struct {
		uint32_t mid;
		uint64_t off, len;
	} bad[] = {{1, 0, q},	   {0xffffffff, 0, q}, {1024, 0, q},
		   {0, 16, q},	   {0, 0, q + 16},     {0, 0, all + 1},
		   {0, 5 * q, 32}, {0, 6 * q, q},      {0, 1ull << 40, q}};

	post(r, 0, GX_OP_PUT, all, 0);
	rig_pass(r, MS);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		ask(r, bad[i].mid, bad[i].off, bad[i].len);
		assert_int_equal(rig_stat(r, 0, "resend_stray"), i + 1);
	}
	assert_int_equal(rig_stat(r, 0, "resend_served"), 0);
	ask(r, 0, 4 * q, q + 16); /* right, and not needed: doubles */
	assert_int_equal(rig_stat(r, 0, "resend_served"), 2);
	assert_int_equal(rig_stat(r, 1, "rx_dup"), 2);
	rig_comps(r, 0, 1, SECOND);
	expect(r, 0, 0, GX_COMP_DONE, 0);
	ask(r, 0, 0, q); /* it has ended */
	assert_int_equal(rig_stat(r, 0, "resend_stray"), GX_ARRAY_SIZE(bad) + 1);
	assert_int_equal(atomic_load(&r->ep[0][0]->fault), 0);
	assert_memory_equal(rig_mem(r, 1), src, all);
	rig_done(r);
}

/* Nothing that was not sent yet, nothing that came with its OPEN, nothing that is given up. */
static void ask__too_early_or_late(void **state)
{
	struct rig *r = open_with(&(struct rig_cfg){
		.sim = {.seed = 1}, .chunk_b = 64 << 10, .window = 1, .gpu_delay_ns = 20 * MS});
	uint32_t q = rig_ep(r, 0, 0)->shape.quantum;

	post(r, 0, GX_OP_PUT, BIG, 0);
	rig_pass(r, 5000);
	ask(r, 0, BIG / q / 2 * q, q);
	assert_int_equal(rig_stat(r, 0, "resend_stray"), 1);
	common_cancel(r->ep[0][0], 1);
	ask(r, 0, 0, q);
	assert_int_equal(rig_stat(r, 0, "resend_stray"), 2);
	post(r, 0, GX_OP_PUT, 100, 0);
	rig_turn(r);
	ask(r, 1, 0, 100);
	assert_int_equal(rig_stat(r, 0, "resend_stray"), 3);
	assert_int_equal(rig_stat(r, 0, "resend_served"), 0);
	rig_rest(r, SECOND);
	rig_done(r);
}

/* Who asks for the same for ever gets it a bounded number of times. */
static void ask__for_ever(void **state)
{
	struct rig *r = open_with(&(struct rig_cfg){
		.sim = {.seed = 1}, .gpu_delay_ns = 3 * SECOND, .gpu_timeout_ns = 10 * SECOND});
	uint32_t q = rig_ep(r, 0, 0)->shape.quantum;

	post(r, 0, GX_OP_PUT, 3 * q, 0);
	rig_pass(r, MS);
	for (unsigned i = 0; i < 2 * PKT_BAD_TRIES; i++)
		ask(r, 0, 0, 3 * q);
	assert_int_equal(rig_stat(r, 0, "resend_served"), 6 * PKT_BAD_TRIES);
	assert_int_equal(r->nr_last[0], 0);
	ask(r, 0, 0, q);
	rig_comps(r, 0, 1, SECOND);
	expect(r, 0, 0, GX_COMP_DONE, -EBADMSG);
	rig_rest(r, 10 * SECOND);
	rig_done(r);
}

/* Who asks for more than anybody can miss loses the connection. */
static void ask__flood(void **state)
{
	struct rig *r = open_with(
		&(struct rig_cfg){.sim = {.seed = 1}, .gpu_delay_ns = 20 * MS, .mem_b = MEM_B});
	struct pkt_ep *e = rig_ep(r, 1, 0);
	struct gx_wire_rec rec = {.type = GX_REC_RESEND,
				  .resend = {.len = BIG / e->shape.quantum * e->shape.quantum}};

	post(r, 0, GX_OP_PUT, BIG, 0);
	rig_pass(r, MS);
	for (unsigned i = 0; i < 15; i++)
		assert_true(rec_add(e, &rec, PKT_NONE));
	rig_pass(r, 100000);
	assert_int_equal(atomic_load(&r->ep[0][0]->fault), -EPROTO);
	assert_true(rig_ep(r, 0, 0)->asks.pkts <= PKT_ASK_MAX);
	rig_close(r);
}

/* Packets of a size that the path has stopped to carry: the message begins again. */
static void ask__of_a_path_that_narrowed(void **state)
{
	const struct sim_path path[] = {{.at_ns = 5 * MS, .payload_b = 1400}};
	struct rig *r = open_with(&(struct rig_cfg){
		.sim = {.seed = 1, .path_payload_b = 9000, .path = path, .nr_path = 1},
		.peer_timeout_ns = 20 * SECOND});

	rig_pass(r, 2 * MS); /* the quantum is proven */
	rot(r, 1000000);
	post(r, 0, GX_OP_PUT, 8192, 0);
	rig_rest(r, 20 * SECOND);
	rig_done(r);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(bad__each_packet_of_a_put_once),
		rig_test(bad__neighbours_share_a_record),
		rig_test(bad__nothing_is_told_before),
		rig_test(bad__never_right),
		rig_test(bad__tries_of_one_packet),
		rig_test(bad__cancelled),
		rig_test(bad__waits_for_a_record),
		rig_test(bad__table),
		rig_test(ask__nonsense),
		rig_test(ask__too_early_or_late),
		rig_test(ask__for_ever),
		rig_test(ask__flood),
		rig_test(ask__of_a_path_that_narrowed),
	};

	return rig_run("resend", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
