/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How operations end, over a simulated network: matching of sends and receives, refusals,
 * cancellation at every stage, deadlines, lost peers. After each case nothing may be out at either
 * end.
 */
#include "kit/common_seeds.h"
#include "sim/sim_rig.h"
#include "packet/ack.h"
#include "packet/rec.h"
#include "packet/rxtx.h"
#include "packet/wake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BIG   (2u << 20)
#define MEM_B (3ull << 20) /* of the region */

/* Buffers of both sides: put from, sent from, received into. */
struct bufs {
	uint8_t *src[2], *dst[2];
};

static struct bufs bufs;

static struct rig *ops_open(const struct rig_cfg *cfg)
{
	struct rig_cfg full = *cfg;

	for (int side = 0; side < 2; side++) {
		bufs.src[side] = realloc(bufs.src[side], BIG);
		bufs.dst[side] = realloc(bufs.dst[side], BIG);
		memset(bufs.dst[side], RIG_POISON, BIG);
		rig_fill(bufs.src[side], BIG, side + 1);
	}
	full.mem_b = MEM_B;
	return rig_open(&full);
}

static void ops_free(void)
{
	for (int side = 0; side < 2; side++) {
		free(bufs.src[side]);
		free(bufs.dst[side]);
	}
}

static struct rig *ops_plain(void)
{
	return ops_open(&(struct rig_cfg){.sim = {.seed = 1}});
}

static void post(struct rig *r, int side, enum gx_op_kind kind, uint64_t user, uint64_t len)
{
	bool reads = kind == GX_OP_PUT || kind == GX_OP_SEND;

	rig_post(r, side,
		 &(struct gx_op){.kind = kind,
				 .user = user,
				 .len = len,
				 .addr = reads ? bufs.src[side] : bufs.dst[side],
				 .token = r->peer[side].token,
				 .tag = 7});
}

static void post_tag(struct rig *r, int side, enum gx_op_kind kind, uint64_t user, uint64_t len,
		     uint64_t tag, uint64_t mask)
{
	uint8_t *at = kind == GX_OP_SEND ? bufs.src[side] : bufs.dst[side];

	rig_post(r, side,
		 &(struct gx_op){.kind = kind,
				 .user = user,
				 .len = len,
				 .addr = at + 1024 * user,
				 .tag = tag,
				 .tag_mask = mask});
}

/* The completion of @user at @side, which must have come. */
static const struct gx_comp *comp_of(struct rig *r, int side, uint64_t user)
{
	for (unsigned i = 0; i < r->nr_last[side]; i++)
		if (r->last[side][i].user == user && r->last[side][i].kind == GX_COMP_DONE)
			return &r->last[side][i];
	fail_msg("no completion of %u at side %d", (unsigned)user, side);
	return NULL;
}

static void expect(struct rig *r, int side, uint64_t user, int status)
{
	int is = comp_of(r, side, user)->status;

	if (is != status)
		fail_msg("operation %u of side %d: %s, not %s", (unsigned)user, side, strerror(-is),
			 strerror(-status));
}

/* ---- tags ---- */

static void match__receive_before_send(void **state)
{
	struct rig *r = ops_plain();

	post(r, 1, GX_OP_RECV, 1, 5000);
	rig_pass(r, MS);
	post(r, 0, GX_OP_SEND, 2, 5000);
	rig_comps(r, 1, 1, SECOND);
	assert_memory_equal(bufs.dst[1], bufs.src[0], 5000);
	assert_int_equal(comp_of(r, 1, 1)->tag, 7);
	rig_done(r);
}

static void match__send_before_receive(void **state)
{
	struct rig *r = ops_plain();

	post(r, 0, GX_OP_SEND, 2, 100);
	rig_pass(r, 50 * MS);
	assert_int_equal(r->nr_last[0], 0);
	post(r, 1, GX_OP_RECV, 1, 5000);
	rig_comps(r, 1, 1, SECOND);
	assert_int_equal(comp_of(r, 1, 1)->len, 100); /* room is no length */
	rig_check_poison(bufs.dst[1] + 100, 4900);
	rig_done(r);
}

static void match__masks(void **state)
{
	struct rig *r = ops_plain();

	post_tag(r, 1, GX_OP_RECV, 1, 16, 0x500, 0xff00);
	post_tag(r, 1, GX_OP_RECV, 2, 16, 0x0607, 0);
	rig_pass(r, MS);
	post_tag(r, 0, GX_OP_SEND, 3, 16, 0x0607, 0);
	post_tag(r, 0, GX_OP_SEND, 4, 16, 0x05aa, 0);
	rig_comps(r, 1, 2, SECOND);
	assert_int_equal(comp_of(r, 1, 1)->tag, 0x05aa);
	assert_int_equal(comp_of(r, 1, 2)->tag, 0x0607);
	rig_done(r);
}

/* Receives of one tag take sends in the order of posting, whatever the network does to OFFERs and
 * OPENs. */
static void match__order(void **state)
{
	for (unsigned seed = 0; seed < common_seeds(12, 12); seed++) {
		struct rig *r = ops_open(&(struct rig_cfg){.sim = {.seed = seed,
								   .loss_ppm = 150000,
								   .reorder_ppm = 300000,
								   .reorder_slots = 3000}});

		for (unsigned i = 0; i < 30; i++) {
			post_tag(r, 1, GX_OP_RECV, i, 1000, 9, 0);
			rig_pass(r, rig_random(r) % 20000);
			if (seed & 1)
				post_tag(r, 0, GX_OP_SEND, i, 10 + i, 9, 0);
		}
		for (unsigned i = 0; !(seed & 1) && i < 30; i++)
			post_tag(r, 0, GX_OP_SEND, i, 10 + i, 9, 0);
		rig_comps(r, 1, 30, 5 * SECOND);
		for (unsigned i = 0; i < 30; i++)
			assert_int_equal(comp_of(r, 1, i)->len, 10 + i);
		rig_set(r, &(struct sim_cfg){0});
		rig_done(r);
	}
}

static bool offer_waits(struct rig *r)
{
	return rig_ep(r, 0, 0)->match.nr_early;
}

/* Of three records the second comes alone: it is an offer that has to wait. Then they come in one
 * packet. The first ends the wait, and the third, an offer too, must not overtake the second. */
static void match__offer_behind_one_that_waited(void **state)
{
	struct gx_wire_rec nothing = {.type = GX_REC_REVOKE};
	struct rig *r = ops_plain();
	struct pkt_ep *e = rig_ep(r, 1, 0);
	uint32_t first = e->rec.next;

	post_tag(r, 0, GX_OP_SEND, 1, 10, 9, 0);
	post_tag(r, 0, GX_OP_SEND, 2, 20, 9, 0);
	rig_set(r, &(struct sim_cfg){.loss_ppm = 1000000});
	rec_add(e, &nothing, PKT_NONE);
	post_tag(r, 1, GX_OP_RECV, 1, 100, 9, 0);
	post_tag(r, 1, GX_OP_RECV, 2, 100, 9, 0);
	rig_pass(r, 1000);
	assert_int_equal(e->rec.queued, 0); /* all have left, and are lost */
	rig_set(r, &(struct sim_cfg){0});
	rec_requeue(e, first + 1, 1);
	assert_true(rig_until(r, offer_waits, MS));
	rec_requeue(e, first, 3);
	assert_int_equal(e->rec.queued, 3); /* no ACK has come yet */
	rig_comps(r, 1, 2, SECOND);
	assert_int_equal(comp_of(r, 1, 1)->len, 10);
	assert_int_equal(comp_of(r, 1, 2)->len, 20);
	rig_done(r);
}

static void match__too_long_leaves_the_receive(void **state)
{
	struct rig *r = ops_plain();

	post(r, 1, GX_OP_RECV, 1, 100);
	rig_pass(r, MS);
	post(r, 0, GX_OP_SEND, 2, 101);
	post(r, 0, GX_OP_SEND, 3, 100);
	rig_comps(r, 0, 2, SECOND);
	rig_comps(r, 1, 1, SECOND);
	expect(r, 0, 2, -EMSGSIZE);
	expect(r, 0, 3, 0);
	expect(r, 1, 1, 0);
	rig_check_poison(bufs.dst[1] + 100, 1000);
	rig_done(r);
}

static void match__too_long_when_it_waited(void **state)
{
	struct rig *r = ops_plain();

	post(r, 0, GX_OP_SEND, 2, 101);
	post(r, 0, GX_OP_SEND, 3, 100);
	rig_pass(r, MS);
	post(r, 1, GX_OP_RECV, 1, 100);
	rig_comps(r, 1, 1, SECOND);
	rig_comps(r, 0, 2, SECOND);
	expect(r, 0, 2, -EMSGSIZE);
	expect(r, 0, 3, 0);
	rig_done(r);
}

/* A sender that lies about the room that the receiver has told: its message is refused, inside of the
 * OPEN and in packets of its own, and the bytes behind the receive stay. */
static void match__sender_who_makes_the_room_larger(void **state)
{
	static const unsigned lens[] = {101, 1000, BIG};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(lens); i++) {
		struct rig *r = ops_plain();
		struct pkt_ep *liar = rig_ep(r, 0, 0);

		post(r, 1, GX_OP_RECV, 1, 100);
		rig_pass(r, MS);
		for (unsigned k = 0; k < PKT_SLOTS; k++)
			liar->offers[k].len = liar->offers[k].used ? BIG : 0;
		post(r, 0, GX_OP_SEND, 2, lens[i]);
		rig_comps(r, 0, 1, SECOND);
		expect(r, 0, 2, -EMSGSIZE);
		rig_check_poison(bufs.dst[1], BIG);
		assert_int_equal(common_cancel(r->ep[1][0], 1), 1);
		rig_pass(r, MS);
		rig_done(r);
	}
}

static void match__more_receives_than_slots(void **state)
{
	struct rig *r = ops_plain();
	struct gx_op op = {.kind = GX_OP_RECV, .len = 8, .addr = bufs.dst[1]};
	unsigned n = 0;

	while (common_post(r->ep[1][0], &op, 1) == 1)
		n++;
	assert_int_equal(n, PKT_SLOTS);
	assert_int_equal(common_cancel(r->ep[1][0], 0), PKT_SLOTS);
	for (unsigned i = 0; i < 5; i++) {
		rig_pass(r, MS);
		rig_forget(r);
	}
	rig_done(r);
}

/* ---- gets, notifications, flags ---- */

/* The network's time passes, and side 0 alone is turned. */
static void pass_alone(struct rig *r, uint64_t ns)
{
	for (uint64_t end = r->now_ns + ns; r->now_ns < end; r->now_ns += 500) {
		sim_net_advance(r->net, r->now_ns);
		gx_core_turn(r->core[0], r->now_ns);
	}
}

/* Gets that were given up count as requests until the peer has answered: it is never asked for more
 * than it takes. */
/* An answer that is longer or shorter than what was asked for is refused: not a byte is placed, and the
 * get does not end well. */
static void get__answer_of_another_length(void **state)
{
	static const uint64_t asked[] = {1000, 200000}, room[] = {900, 1100};

	for (unsigned i = 0; i < 4; i++) {
		struct rig *r =
			ops_open(&(struct rig_cfg){.sim = {.seed = i}, .access = GX_ACCESS_GET});
		struct pkt_ep *e = rig_ep(r, 0, 0);

		post(r, 0, GX_OP_GET, 1, asked[i / 2]);
		for (unsigned k = 0; k < GX_ARRAY_SIZE(e->ops); k++)
			if (e->ops[k].len == asked[i / 2])
				e->ops[k].len = asked[i / 2] / 1000 * room[i % 2];
		rig_pass(r, 10 * MS);
		assert_int_equal(r->nr_last[0], 0);
		rig_check_poison(bufs.dst[0], BIG);
		rig_close(r);
	}
}

static void get__more_than_the_peer_takes(void **state)
{
	struct rig *r = ops_plain();
	struct gx_op op = {
		.kind = GX_OP_GET, .len = 8, .addr = bufs.dst[0], .token = r->peer[0].token};
	unsigned total = 0;

	for (unsigned round = 0; round < 4; round++) {
		while (common_post(r->ep[0][0], &op, 1) == 1)
			total++;
		common_cancel(r->ep[0][0], 0);
		pass_alone(r, 30000);
	}
	assert_int_equal(total, PKT_GETS_MAX);
	rig_pass(r, 10 * MS);
	assert_int_equal(r->nr_last[0], total);
	op.user = 1;
	assert_int_equal(common_post(r->ep[0][0], &op, 1), 1);
	rig_comps(r, 0, total + 1, SECOND);
	expect(r, 0, 1, 0);
	rig_done(r);
}

static unsigned no_room(struct gx_port_queue *q, enum gx_half half, uint32_t peer)
{
	return 0;
}

/* A put that came with its OPEN, deemed lost and queued to be sent again, when it turns out that it
 * is done: its buffer is the user's again, and must not be read. */
static void put__inline_is_not_read_after_its_end(void **state)
{
	struct rig *r = ops_plain();
	struct gx_port_queue *q = pkt_link(r->core[0], 0)->q;
	const struct gx_port_ops *ops = q->ops;
	struct gx_port_ops blocked = *ops;
	uint8_t *buf = malloc(100);

	blocked.tx_room = no_room;
	rig_fill(buf, 100, 1);
	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .addr = buf,
				 .len = 100,
				 .token = r->peer[0].token,
				 .remote_off = 1024});
	rig_pass(r, 15000); /* it is on its way; no answer will come */
	rig_set(r, &(struct sim_cfg){.loss_ppm = 1000000});
	q->ops = &blocked;
	for (unsigned k = 0; !rig_ep(r, 0, 0)->rec.queued; k++) {
		assert_in_range(k, 0, 1100); /* the time-out before a sample is 1 s */
		rig_pass(r, MS);
	}
	rig_set(r, &(struct sim_cfg){0});
	ep_touch(rig_ep(r, 1, 0));
	flow_ack_want(rig_ep(r, 1, 0)->flow);
	rig_comps(r, 0, 1, MS);
	free(buf);
	q->ops = ops;
	rig_pass(r, MS);
	rig_check(rig_mem(r, 1) + 1024, 100, 1);
	rig_done(r);
}

static void put__local_silent_notify(void **state)
{
	struct rig *r = ops_plain();

	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .flags = GX_OP_LOCAL | GX_OP_IMM,
				 .user = 1,
				 .addr = bufs.src[0],
				 .len = 100000,
				 .imm = 77,
				 .remote_off = 5,
				 .token = r->peer[0].token});
	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .flags = GX_OP_SILENT | GX_OP_IMM,
				 .user = 2,
				 .imm = 78,
				 .token = r->peer[0].token});
	rig_pass(r, 10 * MS);
	assert_int_equal(r->nr_last[0], 2);
	assert_int_equal(r->last[0][0].kind, GX_COMP_LOCAL);
	assert_int_equal(r->last[0][1].kind, GX_COMP_DONE);
	assert_int_equal(r->nr_last[1], 2);
	for (unsigned i = 0; i < 2; i++) {
		const struct gx_comp *c = &r->last[1][i];

		assert_int_equal(c->kind, GX_COMP_NOTIFY);
		assert_int_equal(c->len, c->imm == 77 ? 100000 : 0);
		assert_int_equal(c->off, c->imm == 77 ? 5 : 0);
		assert_true(c->token == r->peer[0].token);
	}
	rig_done(r);
}

/* Nobody takes completions: notifications wait, and their puts are not done; nothing is lost. */
static void put__notifications_wait_for_room(void **state)
{
	struct rig *r = ops_plain();
	struct gx_core *core = r->core[1];
	uint32_t head = core->comp_head;

	core->comp_head += GX_COMPS_MAX - 4; /* as if so many waited */
	for (unsigned i = 0; i < 40; i++)
		rig_post(r, 0,
			 &(struct gx_op){.kind = GX_OP_PUT,
					 .flags = GX_OP_IMM,
					 .user = i,
					 .addr = bufs.src[0],
					 .len = i * 300,
					 .imm = i,
					 .token = r->peer[0].token});
	for (unsigned i = 0; i < 20000; i++) {
		sim_net_advance(r->net, r->now_ns += 500);
		gx_core_turn(r->core[0], r->now_ns);
		gx_core_turn(core, r->now_ns);
	}
	assert_true(core->comp_head - head <= GX_COMPS_MAX);
	assert_true(rig_ep(r, 0, 0)->tx.nr_mids > 0);
	atomic_store(&core->comp_tail, head + GX_COMPS_MAX - 4);
	rig_comps(r, 1, 40, SECOND);
	rig_comps(r, 0, 40, SECOND);
	rig_done(r);
}

/* ---- refusals ---- */

static void refused(struct rig *r, enum gx_op_kind kind, uint64_t token, uint64_t off, uint64_t len,
		    int status)
{
	rig_forget(r);
	rig_post(r, 0,
		 &(struct gx_op){.kind = kind,
				 .user = 1,
				 .addr = bufs.src[0],
				 .len = len,
				 .token = token,
				 .remote_off = off});
	rig_comps(r, 0, 1, SECOND);
	expect(r, 0, 1, status);
	rig_rest(r, SECOND);
}

static void refuse__no_such_region(void **state)
{
	struct rig *r = ops_plain();
	uint64_t token = r->peer[0].token;

	for (uint64_t len = 0; len <= BIG; len = len ? len * 60 : 1) {
		refused(r, GX_OP_PUT, token ^ 1ull << 40, 0, len, -ESTALE);
		refused(r, GX_OP_GET, token ^ 1ull << 40, 0, len, -ESTALE);
		refused(r, GX_OP_PUT, token | 0xff, 0, len, -ENOENT);
		refused(r, GX_OP_GET, 0, 0, len, -ESTALE);
	}
	/* A user cannot name a slot. */
	refused(r, GX_OP_PUT, 1ull << 63 | 1ull << 32, 0, 100, -ESTALE);
	rig_done(r);
}

static void refuse__out_of_range(void **state)
{
	struct rig *r = ops_plain();
	uint64_t token = r->peer[0].token;

	refused(r, GX_OP_PUT, token, MEM_B - 99, 100, -ERANGE);
	refused(r, GX_OP_PUT, token, MEM_B - 99999, 100000, -ERANGE);
	refused(r, GX_OP_PUT, token, MEM_B + 1, 0, -ERANGE);
	refused(r, GX_OP_PUT, token, UINT64_MAX - 5, 100, -ERANGE);
	refused(r, GX_OP_GET, token, MEM_B - 99, 100, -ERANGE);
	refused(r, GX_OP_GET, token, UINT64_MAX, 2, -ERANGE);
	refused(r, GX_OP_PUT, token, MEM_B, 0, 0);
	rig_check_poison(rig_mem(r, 1) + MEM_B - 200000, 200000);
	rig_done(r);
}

static void refuse__longer_than_the_wire_can_say(void **state)
{
	struct rig *r = ops_plain();
	struct gx_op op = {.kind = GX_OP_PUT,
			   .addr = bufs.src[0],
			   .len = (1ull << 36) + 1,
			   .token = r->peer[0].token};

	assert_int_equal(common_post(r->ep[0][0], &op, 1), -EINVAL);
	op.len--;
	assert_int_equal(common_post(r->ep[0][0], &op, 1), 1);
	rig_comps(r, 0, 1, SECOND);
	expect(r, 0, 0, -ERANGE);
	rig_done(r);
}

static void refuse__access(void **state)
{
	struct rig *r = ops_open(&(struct rig_cfg){.sim = {.seed = 1}, .access = GX_ACCESS_GET});

	refused(r, GX_OP_PUT, r->peer[0].token, 0, 100, -EACCES);
	refused(r, GX_OP_PUT, r->peer[0].token, 0, BIG, -EACCES);
	refused(r, GX_OP_GET, r->peer[0].token, 0, 100, 0);
	rig_check_poison(rig_mem(r, 1), BIG);
	rig_done(r);
	r = ops_open(&(struct rig_cfg){.sim = {.seed = 1}, .access = GX_ACCESS_PUT});
	refused(r, GX_OP_GET, r->peer[0].token, 0, 100, -EACCES);
	refused(r, GX_OP_PUT, r->peer[0].token, 0, 100, 0);
	rig_done(r);
}

/* Hundreds at once, on a network that loses: a FAIL for each, and everything comes back. */
static void refuse__many(void **state)
{
	struct rig *r = ops_open(&(struct rig_cfg){.sim = {.seed = 4,
							   .loss_ppm = 50000,
							   .dup_ppm = 20000,
							   .reorder_ppm = 50000,
							   .reorder_slots = 100}});
	struct gx_op op = {.kind = GX_OP_PUT, .addr = bufs.src[0]};
	unsigned taken = 0, n = 0;
	struct gx_comp comp;

	while (n < 2000) {
		op.len = taken % 3 ? 100 : 20000;
		if (taken < 2000)
			taken += common_post(r->ep[0][0], &op, 1);
		sim_net_advance(r->net, r->now_ns += 2000);
		gx_core_turn(r->core[0], r->now_ns);
		gx_core_turn(r->core[1], r->now_ns);
		while (common_poll(r->core[0], &comp, 1)) {
			assert_int_equal(comp.status, -ESTALE);
			n++;
		}
		assert_true(r->now_ns < 60 * SECOND);
	}
	rig_done(r);
}

/* Both ends ask for as much as they can, all of it refused: FAIL records find no room, and wait for
 * it. */
static void refuse__more_than_there_are_records(void **state)
{
	struct rig *r = ops_plain();
	struct gx_op op = {.kind = GX_OP_PUT, .addr = bufs.src[0], .len = 100000};
	unsigned taken[2] = {0}, n[2] = {0};
	struct gx_comp comp;

	for (int side = 0; side < 2; side++)
		while (common_post(r->ep[side][0], &op, 1) == 1)
			taken[side]++;
	assert_true(taken[0] > 900);
	for (uint64_t end = r->now_ns + SECOND; r->now_ns < end; r->now_ns += 1000) {
		sim_net_advance(r->net, r->now_ns);
		for (int side = 0; side < 2; side++) {
			gx_core_turn(r->core[side], r->now_ns);
			while (common_poll(r->core[side], &comp, 1)) {
				assert_int_equal(comp.status, -ESTALE);
				n[side]++;
			}
		}
		if (n[0] == taken[0] && n[1] == taken[1])
			break;
	}
	assert_true(n[0] == taken[0] && n[1] == taken[1]);
	rig_done(r);
}

/* ---- cancellation ---- */

static uint64_t cancel_drop[2]; /* numbers of packets to lose, when not 0 */
static const uint32_t cancel_losses[] = {0, 20000};

/* Both sides post; after @ns @side cancels user 1; everything must end, and come back. */
static void cancelled(enum gx_op_kind kind, uint64_t len, uint64_t ns, int side, uint32_t loss_ppm,
		      uint64_t gpu_delay_ns)
{
	struct rig *r = ops_open(&(struct rig_cfg){.sim = {.seed = ns + len,
							   .loss_ppm = loss_ppm,
							   .reorder_ppm = loss_ppm,
							   .reorder_slots = 100,
							   .attach = ns & 1,
							   .drop = cancel_drop,
							   .nr_drop = cancel_drop[0] ? 2 : 0},
						   .gpu_delay_ns = gpu_delay_ns,
						   .chunk_b = 64 << 10,
						   .window = 4});
	enum gx_op_kind mine = side && kind == GX_OP_SEND ? GX_OP_RECV : kind;
	unsigned found;
	int status;

	post(r, 0, kind, 1, len);
	if (kind == GX_OP_SEND)
		post(r, 1, GX_OP_RECV, 1, len);
	rig_pass(r, ns);
	found = common_cancel(r->ep[side][0], 1);
	rig_comps(r, side, 1, SECOND);
	status = comp_of(r, side, 1)->status;
	assert_true(status == 0 || status == -ECANCELED);
	assert_true(!status || !comp_of(r, side, 1)->len);
	assert_true(!found || r->nr_last[side] == 1);
	if (found && (mine == GX_OP_GET || mine == GX_OP_RECV) && status) {
		/* The buffer is ours again: nothing may write to it any more. */
		memset(bufs.dst[side], RIG_POISON, BIG);
		rig_pass(r, 20 * MS);
		rig_check_poison(bufs.dst[side], BIG);
	}
	/* What the other side had to do with it ends, or can be ended. */
	if (kind == GX_OP_SEND && !r->nr_last[!side]) {
		rig_pass(r, 20 * MS);
		if (!r->nr_last[!side])
			assert_int_equal(common_cancel(r->ep[!side][0], 1), 1);
		rig_comps(r, !side, 1, SECOND);
	}
	rig_set(r, &(struct sim_cfg){.attach = ns & 1});
	rig_rest(r, SECOND);
	/* And everything works as before. */
	rig_forget(r);
	post(r, 0, GX_OP_PUT, 5, 300000);
	post(r, 1, GX_OP_GET, 6, 300000);
	rig_comps(r, 0, 1, SECOND);
	rig_comps(r, 1, 1, SECOND);
	expect(r, 0, 5, 0);
	expect(r, 1, 6, 0);
	assert_memory_equal(rig_mem(r, 1), bufs.src[0], 300000);
	rig_done(r);
}

/* From "not even sent" to "done": the round trip is 40 us, BIG takes 170 us. */
static void cancelled_at_every_stage(enum gx_op_kind kind, int side)
{
	static const uint64_t at_ns[] = {0,	1001,	21000,	41001,	50000,
					 90001, 140000, 250001, 2000000};
	static const uint64_t lens[] = {10, 5000, BIG};

	for (unsigned k = 0; k < GX_ARRAY_SIZE(lens); k++)
		for (unsigned i = 0; i < GX_ARRAY_SIZE(at_ns); i++)
			for (unsigned j = 0; j < GX_ARRAY_SIZE(cancel_losses); j++)
				cancelled(kind, lens[k], at_ns[i], side, cancel_losses[j],
					  i % 3 ? 0 : 40000);
}

static void cancel__put(void **state)
{
	cancelled_at_every_stage(GX_OP_PUT, 0);
}

static void cancel__get(void **state)
{
	cancelled_at_every_stage(GX_OP_GET, 0);
}

static void cancel__send(void **state)
{
	cancelled_at_every_stage(GX_OP_SEND, 0);
}

static void cancel__recv(void **state)
{
	cancelled_at_every_stage(GX_OP_SEND, 1);
}

/* OPEN, OFFER, GET, CANCEL, FAIL, DATA and ACK: each is lost once. */
static void cancel__each_packet_lost_once(void **state)
{
	static const uint64_t at_ns[] = {0, 30000, 60000};

	for (uint64_t n = 1; n < 24; n++)
		for (unsigned i = 0; i < 4 * GX_ARRAY_SIZE(at_ns); i++) {
			cancel_drop[0] = n;
			cancel_drop[1] = n + 1 + i % 5;
			cancelled(i % 4 == 0   ? GX_OP_PUT
				  : i % 4 == 1 ? GX_OP_GET
					       : GX_OP_SEND,
				  n % 2 ? 100 : 20000, at_ns[i / 4], i % 4 == 3, 0, 0);
		}
	cancel_drop[0] = 0;
}

/* A receive that is taken back is not met by a later send; the next receive is. */
static void cancel__recv_before_send(void **state)
{
	struct rig *r = ops_plain();

	post(r, 1, GX_OP_RECV, 1, 5000);
	rig_pass(r, MS);
	assert_int_equal(common_cancel(r->ep[1][0], 1), 1);
	rig_pass(r, MS);
	expect(r, 1, 1, -ECANCELED);
	post(r, 0, GX_OP_SEND, 2, 5000);
	rig_pass(r, MS);
	assert_int_equal(r->nr_last[0], 0);
	post(r, 1, GX_OP_RECV, 3, 5000);
	rig_comps(r, 0, 1, SECOND);
	expect(r, 0, 2, 0);
	expect(r, 1, 3, 0);
	rig_done(r);
}

/* A send that is taken back before it began leaves the receive to the next one. */
static void cancel__send_before_it_began(void **state)
{
	struct rig *r = ops_plain();

	post(r, 1, GX_OP_RECV, 1, 100000);
	rig_pass(r, MS);
	/* What may be under way is: the send waits behind it. */
	for (unsigned i = 0; i < GX_WIRE_ACTIVE; i++)
		post(r, 0, GX_OP_PUT, 100 + i, 100000);
	post(r, 0, GX_OP_SEND, 2, 100000);
	assert_int_equal(common_cancel(r->ep[0][0], 2), 1);
	post(r, 0, GX_OP_SEND, 3, 4000);
	rig_comps(r, 1, 1, SECOND);
	expect(r, 0, 2, -ECANCELED);
	expect(r, 1, 1, 0);
	assert_int_equal(comp_of(r, 1, 1)->len, 4000);
	rig_done(r);
}

/* The OPEN is lost, the CANCEL comes through: the receive that the OPEN would have taken ends by
 * itself. */
static void cancel__overtakes_its_open(void **state)
{
	for (unsigned i = 0; i < 2; i++) {
		struct rig *r = ops_plain();

		post(r, 1, GX_OP_RECV, 1, 50000);
		rig_pass(r, MS);
		rig_set(r, &(struct sim_cfg){.loss_ppm = 1000000});
		post(r, 0, GX_OP_SEND, 2, i ? 100 : 50000);
		rig_pass(r, 15000);
		rig_set(r, &(struct sim_cfg){0});
		assert_int_equal(common_cancel(r->ep[0][0], 2), 1);
		rig_comps(r, 1, 1, SECOND);
		expect(r, 1, 1, -ECANCELED);
		expect(r, 0, 2, -ECANCELED);
		rig_done(r);
	}
}

static void cancel__unknown(void **state)
{
	struct rig *r = ops_plain();

	assert_int_equal(common_cancel(r->ep[0][0], 99), 0);
	rig_done(r);
}

/* Random operations, random cancellations of either side, a bad network: every operation ends once.
 */
static void cancel__storm(void **state)
{
	for (unsigned seed = 0; seed < common_seeds(10, 10); seed++) {
		struct rig *r = ops_open(&(struct rig_cfg){.sim = {.seed = seed,
								   .loss_ppm = 20000,
								   .dup_ppm = 20000,
								   .attach = seed & 1,
								   .reorder_ppm = 30000,
								   .reorder_slots = 200},
							   .gpu_delay_ns = seed & 2 ? 50000 : 0,
							   .chunk_b = 32 << 10,
							   .window = 2,
							   .nr_conns = 1});
		unsigned posted[2] = {0};

		for (unsigned i = 0; i < 60; i++) {
			int side = rig_random(r) & 1;
			enum gx_op_kind kind = GX_OP_PUT + rig_random(r) % 4;

			post(r, side, kind, i, rig_random(r) % (BIG >> rig_random(r) % 16));
			posted[side]++;
			rig_pass(r, rig_random(r) % 60000);
			common_cancel(r->ep[side][0], rig_random(r) % (i + 1));
		}
		rig_pass(r, 50 * MS);
		for (unsigned i = 0; i < 60; i++) {
			common_cancel(r->ep[0][0], i);
			common_cancel(r->ep[1][0], i);
		}
		rig_comps(r, 0, posted[0], SECOND);
		rig_comps(r, 1, posted[1], SECOND);
		assert_int_equal(r->nr_last[0], posted[0]);
		assert_int_equal(r->nr_last[1], posted[1]);
		rig_done(r);
	}
}

/* ---- deadlines ---- */

static void deadline__ends_in_time(void **state)
{
	static const enum gx_op_kind kinds[] = {GX_OP_PUT, GX_OP_GET, GX_OP_SEND, GX_OP_RECV};
	struct rig *r = ops_plain();

	rig_set(r, &(struct sim_cfg){.loss_ppm = 1000000});
	for (unsigned i = 0; i < GX_ARRAY_SIZE(kinds); i++)
		rig_post(r, 0,
			 &(struct gx_op){.kind = kinds[i],
					 .user = i,
					 .addr = bufs.dst[0],
					 .len = 100000,
					 .token = r->peer[0].token,
					 .deadline_ns = r->now_ns + 5 * MS});
	rig_pass(r, 4 * MS);
	assert_int_equal(r->nr_last[0], 0);
	rig_comps(r, 0, 4, 3 * MS);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(kinds); i++)
		expect(r, 0, i, -ETIMEDOUT);
	rig_set(r, &(struct sim_cfg){0});
	rig_done(r);
}

static void deadline__not_reached(void **state)
{
	struct rig *r = ops_plain();

	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .user = 1,
				 .addr = bufs.src[0],
				 .len = BIG,
				 .token = r->peer[0].token,
				 .deadline_ns = r->now_ns + 5 * MS});
	rig_pass(r, 10 * MS);
	expect(r, 0, 1, 0);
	assert_int_equal(r->nr_last[0], 1);
	rig_done(r);
}

/* ---- peers that go ---- */

static bool faulted(struct rig *r)
{
	return r->nr_last[0] >= 4;
}

/* A peer whose core is silent: everything ends with -ETIMEDOUT, after the time-out and not before.
 */
static void peer__silent(void **state)
{
	static const enum gx_op_kind kinds[] = {GX_OP_PUT, GX_OP_GET, GX_OP_SEND, GX_OP_RECV};
	struct rig *r = ops_open(&(struct rig_cfg){.sim = {.seed = 1}, .peer_timeout_ns = SECOND});

	rig_pass(r, 10 * MS);
	rig_set(r, &(struct sim_cfg){.loss_ppm = 1000000});
	for (unsigned i = 0; i < GX_ARRAY_SIZE(kinds); i++)
		post(r, 0, kinds[i], i, 100000);
	rig_pass(r, 900 * MS);
	assert_int_equal(atomic_load(&r->ep[0][0]->fault), 0);
	rig_pass(r, 200 * MS);
	assert_int_equal(atomic_load(&r->ep[0][0]->fault), -ETIMEDOUT);
	rig_wait_real(r, faulted);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(kinds); i++)
		expect(r, 0, i, -ETIMEDOUT);
	rig_close(r);
}

static void peer__silent_to_a_receive_alone(void **state)
{
	struct rig *r = ops_open(&(struct rig_cfg){.sim = {.seed = 1}, .peer_timeout_ns = SECOND});

	post(r, 0, GX_OP_RECV, 1, 100);
	rig_pass(r, 3 * SECOND); /* a peer that is there answers */
	assert_int_equal(atomic_load(&r->ep[0][0]->fault), 0);
	rig_set(r, &(struct sim_cfg){.loss_ppm = 1000000});
	rig_pass(r, 1200 * MS);
	assert_int_equal(atomic_load(&r->ep[0][0]->fault), -ETIMEDOUT);
	rig_close(r);
}

/* ---- a path that becomes narrower; what ends well is in test_sim.c ---- */

static struct rig *ops_wide(unsigned seed)
{
	return ops_open(&(struct rig_cfg){.sim = {.seed = seed, .path_payload_b = 9000}});
}

static void post_all(struct rig *r)
{
	static const enum gx_op_kind kinds[] = {GX_OP_PUT, GX_OP_GET, GX_OP_SEND, GX_OP_RECV};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(kinds); i++)
		post(r, 0, kinds[i], i, 300000);
}

static void path__carries_no_quantum(void **state)
{
	struct rig *r = ops_wide(1);

	rig_pass(r, MS);
	rig_set(r, &(struct sim_cfg){.path_payload_b = 1000});
	post_all(r);
	rig_pass(r, 600 * MS);
	assert_int_equal(atomic_load(&r->ep[0][0]->fault), -EHOSTUNREACH);
	rig_wait_real(r, faulted);
	for (unsigned i = 0; i < 4; i++)
		assert_true(comp_of(r, 0, i)->status < 0);
	rig_close(r);
}

static void path__nothing_passes_for_a_while(void **state)
{
	struct rig *r = ops_wide(2);

	post(r, 0, GX_OP_PUT, 1, 300000);
	rig_pass(r, 60000);
	rig_set(r, &(struct sim_cfg){.path_payload_b = 9000, .loss_ppm = 1000000});
	rig_pass(r, 300 * MS);
	rig_set(r, &(struct sim_cfg){.path_payload_b = 9000});
	rig_comps(r, 0, 1, SECOND);
	expect(r, 0, 1, 0);
	assert_int_equal(rig_ep(r, 0, 0)->shape.quantum, 4096);
	rig_done(r);
}

/* At any moment: before it is noticed, while it is proven, while messages begin again. */
static void path__cancel_while_it_narrows(void **state)
{
	for (unsigned i = 0; i < 24; i++) {
		struct rig *r = ops_wide(i);

		post(r, 1, GX_OP_RECV, 9, 300000);
		rig_pass(r, MS);
		post_all(r);
		rig_pass(r, 25000);
		rig_set(r, &(struct sim_cfg){.path_payload_b = 1400});
		rig_pass(r, i < 8 ? i * 500000 : 80 * MS + (i & 7) * (i < 16 ? 500000 : 20000));
		for (unsigned k = 0; k < 4; k++)
			common_cancel(r->ep[0][0], k);
		if (i & 1)
			common_cancel(r->ep[1][0], 9);
		rig_comps(r, 0, 4, SECOND);
		rig_comps(r, 1, 1, SECOND);
		rig_done(r);
	}
}

/* A message begins again, that OPEN is lost, and the CANCEL of the new mid overtakes it: the old
 * mid, which no other record names, ends as well. */
static void again__cancel_overtakes_its_open(void **state)
{
	static const enum gx_op_kind kinds[] = {GX_OP_PUT, GX_OP_SEND};

	for (unsigned k = 0; k < 4; k++) {
		struct rig *r = ops_wide(k);
		struct pkt_ep *e = rig_ep(r, 0, 0), *p = rig_ep(r, 1, 0);
		bool sends = kinds[k & 1] == GX_OP_SEND;

		if (sends)
			post(r, 1, GX_OP_RECV, 5, 300000);
		rig_pass(r, MS);
		post(r, 0, kinds[k & 1], 1, 300000);
		rig_pass(r, 25000 + 10000 * (k / 2));
		rig_set(r, &(struct sim_cfg){.path_payload_b = 1400});
		while (!rig_stat(r, 0, "msgs_again"))
			rig_turn(r);
		rig_set(r, &(struct sim_cfg){.path_payload_b = 1400, .loss_ppm = 1000000});
		rig_pass(r, 1500); /* the OPEN leaves, and is lost */
		rig_set(r, &(struct sim_cfg){.path_payload_b = 1400});
		assert_int_equal(p->in[1].state, IN_FREE);
		assert_int_equal(common_cancel(r->ep[0][0], 1), 1);
		rig_comps(r, 0, 1, SECOND);
		expect(r, 0, 1, -ECANCELED);
		rig_pass(r, 100 * MS);
		assert_int_equal(p->rx.nr_in, 0);
		assert_int_equal(e->tx.nr_mids, 0);
		if (sends)
			expect(r, 1, 5, -ECANCELED);
		rig_done(r);
	}
}

static void path__deadline_while_it_narrows(void **state)
{
	struct rig *r = ops_wide(3);

	rig_pass(r, MS);
	rig_set(r, &(struct sim_cfg){.path_payload_b = 1400});
	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .user = 1,
				 .len = 300000,
				 .addr = bufs.src[0],
				 .token = r->peer[0].token,
				 .deadline_ns = r->now_ns + 100 * MS});
	rig_comps(r, 0, 1, 110 * MS);
	expect(r, 0, 1, -ETIMEDOUT);
	rig_done(r);
}

/* Side 0 claims that its next message takes the place of @old_mid, of @len bytes at 0; @early: and
 * gives it up before it says so. */
static void claim_again(struct rig *r, uint32_t old_mid, uint64_t len, bool early)
{
	struct pkt_ep *e = rig_ep(r, 0, 0);
	struct gx_wire_rec rec = {.type = GX_REC_OPEN,
				  .flags = GX_REC_AGAIN,
				  .open = {.mid = tx_mid(e, PKT_NONE),
					   .quantum = e->shape.quantum,
					   .token = r->peer[0].token,
					   .len = len,
					   .old_mid = old_mid,
					   .old_sent = 3}};

	if (early)
		rec_add(e,
			&(struct gx_wire_rec){.type = GX_REC_CANCEL,
					      .cancel = {.mid = rec.open.mid}},
			PKT_NONE);
	assert_true(rec_add(e, &rec, PKT_NONE));
	rig_pass(r, MS);
}

/* A peer that says so of a message that never was, is to come, is another, or is this one. */
static void again__nonsense(void **state)
{
	static const uint32_t old_mids[] = {0, 1, 2, 700, 5000};

	for (unsigned i = 0; i < 2 * GX_ARRAY_SIZE(old_mids); i++) {
		struct rig *r = ops_plain();

		post(r, 0, GX_OP_PUT, 1, 300000);
		rig_pass(r, 22000); /* its OPEN is there, its bytes are not all */
		assert_int_equal(rig_ep(r, 1, 0)->in[0].state, IN_ACTIVE);
		claim_again(r, old_mids[i / 2], 299999, i & 1);
		assert_int_equal(atomic_load(&r->ep[1][0]->fault), -EPROTO);
		rig_close(r);
	}
}

/* A message to a posted receive, and one that claims to replace it, but says that its token is not a
 * slot's: the receive would be nobody's while bytes still come for it. */
static void again__without_its_slot(void **state)
{
	struct rig *r = ops_plain();
	struct pkt_ep *e = rig_ep(r, 0, 0), *p = rig_ep(r, 1, 0);
	struct gx_wire_rec rec = {.type = GX_REC_OPEN, .flags = GX_REC_AGAIN};

	post(r, 1, GX_OP_RECV, 1, 300000);
	rig_pass(r, MS);
	post(r, 0, GX_OP_SEND, 2, 300000);
	for (unsigned i = 0; i < 100 && p->in[0].state != IN_ACTIVE; i++)
		rig_pass(r, 1000);
	assert_int_equal(p->in[0].state, IN_ACTIVE);
	rec.open.mid = tx_mid(e, PKT_NONE);
	rec.open.quantum = e->shape.quantum;
	rec.open.token = p->in[0].token;
	rec.open.len = 300000;
	assert_true(rec_add(e, &rec, PKT_NONE));
	rig_pass(r, 30000);
	assert_int_equal(atomic_load(&r->ep[1][0]->fault), -EPROTO);
	rig_close(r);
}

/* One that has landed already is not delivered, or written, twice. */
static void again__after_it_landed(void **state)
{
	struct rig *r = ops_plain();

	post(r, 0, GX_OP_PUT, 1, 300000);
	rig_comps(r, 0, 1, SECOND);
	memset(rig_mem(r, 1), RIG_POISON, 300000);
	claim_again(r, 0, 300000, false);
	claim_again(r, 0, 300000, true);
	assert_int_equal(atomic_load(&r->ep[1][0]->fault), 0);
	rig_check_poison(rig_mem(r, 1), 300000);
	assert_int_equal(r->nr_last[1], 0);
	rig_done(r);
}

static bool both_ended(struct rig *r)
{
	return r->nr_last[0] >= 4 && r->nr_last[1] >= 1;
}

/* A connection closed at any time: every operation of both ends completes once, no buffer stays
 * out. */
static void peer__closes_in_the_middle(void **state)
{
	static const uint64_t at_ns[] = {0, 30000, 60000, 120000, 300000};

	for (unsigned i = 0; i < 2 * GX_ARRAY_SIZE(at_ns); i++) {
		struct rig *r = ops_open(
			&(struct rig_cfg){.sim = {.seed = i, .attach = i & 1, .loss_ppm = 10000},
					  .gpu_delay_ns = i & 2 ? 100000 : 0});

		for (unsigned k = 0; k < 4; k++)
			post(r, 0, GX_OP_PUT + k, k, BIG / 2);
		post(r, 1, GX_OP_GET, 1, BIG);
		rig_pass(r, at_ns[i / 2]);
		gx_conn_close(r->conn[i & 1][0]);
		r->conn[i & 1][0] = NULL;
		rig_wait_real(r, both_ended);
		for (int side = 0; side < 2; side++) {
			struct link_pkt *l = pkt_link(r->core[side], 0);
			struct gx_rx rx;

			for (unsigned k = 0; k < 400 && l->nr_live; k++)
				rig_pass(r, MS);
			assert_int_equal(l->nr_live, 0);
			/* What lies in the port for a peer that is gone, it drops. */
			assert_int_equal(l->q->ops->rx_burst(l->q, GX_HALF_DATA, &rx, 1), 0);
			assert_int_equal(l->held_bufs, 0);
			assert_int_equal(l->refs, 0);
			assert_int_equal(l->pool_out, 0);
			assert_int_equal(block_held(l->bq_host), 0);
			assert_int_equal(r->core[side]->comps_due, 0);
			assert_int_equal(sim_queue_free_bufs(l->q), l->port->caps.rx_slots);
		}
		assert_int_equal(r->nr_last[0], 4);
		assert_int_equal(r->nr_last[1], 1);
		rig_close(r);
	}
}

/* ---- a GPU that stops ---- */

static void gpu_stops(int side, int put_status)
{
	struct rig *r = ops_open(&(struct rig_cfg){
		.sim = {.seed = 1}, .gpu = true, .gpu_timeout_ns = 50 * MS, .gpu_delay_ns = 1000});
	struct gx_op op = {.kind = GX_OP_PUT,
			   .user = 1,
			   .mem = r->mem[0],
			   .len = 100000,
			   .token = r->peer[0].token};

	rig_post(r, 0, &op);
	rig_comps(r, 0, 1, 10 * MS);
	expect(r, 0, 1, 0);
	rig_gpu_stop(r, side);
	op.user = 2;
	rig_post(r, 0, &op);
	rig_comps(r, 0, 2, 100 * MS);
	expect(r, 0, 2, put_status);
	/* What does not need that GPU goes on. */
	post(r, 0, GX_OP_SEND, 3, 50000);
	post(r, 1, GX_OP_RECV, 3, 50000);
	rig_comps(r, 1, 1, 100 * MS);
	expect(r, 1, 3, 0);
	op.user = 4;
	rig_post(r, 0, &op);
	rig_comps(r, 0, 4, 100 * MS);
	expect(r, 0, 4, -EIO);
	/* It comes back to life, as long as its memory is there. */
	rig_gpu_finish();
	rig_close(r);
}

static void gpu__stops_at_the_receiver(void **state)
{
	gpu_stops(1, -EIO);
}

static void gpu__stops_at_the_sender(void **state)
{
	gpu_stops(0, -EIO);
}

/* ---- an ACK that told of the end was lost ---- */

static void done__lost_is_asked_for(void **state)
{
	struct rig *r = ops_open(&(struct rig_cfg){.sim = {.seed = 1}, .gpu_delay_ns = 300000});

	post(r, 0, GX_OP_PUT, 1, 50000);
	for (unsigned k = 0; flow_outstanding(rig_ep(r, 0, 0)->flow) || !rig_ep(r, 1, 0)->rx.nr_in;
	     k++) {
		assert_in_range(k, 0, 1000);
		rig_pass(r, 1000);
	}
	rig_set(r, &(struct sim_cfg){.loss_ppm = 1000000});
	rig_pass(r, MS / 2);
	rig_set(r, &(struct sim_cfg){0});
	rig_comps(r, 0, 1, 5 * MS);
	rig_done(r);
}

static void put_small(struct rig *r, uint64_t user)
{
	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .user = user,
				 .len = 64,
				 .addr = bufs.src[0],
				 .token = r->peer[0].token,
				 .remote_off = 1 << 20});
}

/* One message waits for its copy. Thousands that begin after it are done, and told at once; they
 * use few places over and over. */
static void done__beside_one_that_waits(void **state)
{
	struct rig *r = ops_open(&(struct rig_cfg){.sim = {.seed = 1}, .gpu_delay_ns = 500 * MS});
	struct pkt_ep *e = rig_ep(r, 0, 0);

	post(r, 0, GX_OP_PUT, 1, 50000);
	rig_pass(r, MS);
	for (unsigned i = 0; i < 3000; i += 40) {
		for (unsigned k = 0; k < 40; k++)
			put_small(r, 100 + i + k);
		rig_comps(r, 0, 40, MS);
		for (unsigned k = 0; k < 40; k++)
			expect(r, 0, 100 + i + k, 0);
		rig_forget(r);
	}
	assert_int_equal(e->tx.nr_mids, 1);
	for (unsigned place = 41; place < GX_WIRE_MIDS; place++)
		assert_int_equal(e->out[place].mid, place - GX_WIRE_MIDS);
	rig_comps(r, 0, 1, SECOND);
	expect(r, 0, 1, 0);
	rig_done(r);
}

/* As many under way as need several words of done bits. */
static void done__words_of_many(void **state)
{
	struct rig *r = ops_plain();

	for (unsigned round = 0; round < 3; round++) {
		rig_forget(r);
		for (unsigned i = 0; i < 400; i++)
			put_small(r, i);
		assert_int_equal(rig_ep(r, 0, 0)->tx.nr_mids, 400);
		rig_comps(r, 0, 400, MS);
		for (unsigned i = 0; i < 400; i++)
			assert_int_equal(r->last[0][i].status, 0);
	}
	assert_int_equal(rig_ep(r, 1, 0)->rx.done_used, 0x7f);
	rig_done(r);
}

/* What a late ACK says of a place is of the message before: it neither ends the one that is there
 * now, nor does a newer ACK that was written before that one came. */
static void done__stale_ack(void **state)
{
	struct rig *r = ops_plain();
	struct pkt_ep *e = rig_ep(r, 0, 0);
	struct gx_wire_ack ack = {.done_words = 1};

	put_small(r, 1);
	rig_comps(r, 0, 1, MS);
	rig_set(r, &(struct sim_cfg){.loss_ppm = 1000000});
	put_small(r, 2);
	rig_pass(r, 100000);
	assert_int_equal(e->out[0].mid, GX_WIRE_MIDS);
	ack.number =
		e->tx.peer_done_by
			[0]; /* as before the first was done: the same bit as after the second */
	ack.done[0] = e->tx.peer_done[0] ^ 1;
	ack_done(e, &ack);
	ack.number -= 1u << 30;
	ack_done(e, &ack);
	assert_int_equal(e->tx.nr_mids, 1);
	ack.number = e->tx.peer_done_by[0] + 1;
	ack.done[0] = e->tx.peer_done[0];
	ack_done(e, &ack);
	assert_int_equal(e->tx.nr_mids, 1);
	ack.done_words = 2; /* of other places */
	ack.done[1] = UINT64_MAX;
	ack.number++;
	ack_done(e, &ack);
	assert_int_equal(e->tx.nr_mids, 1);
	assert_int_equal(r->nr_last[0], 1);
	rig_set(r, &(struct sim_cfg){0});
	e->tx.peer_done_by[0] -= 2; /* those were not the peer's */
	e->tx.peer_done_by[1] -= 2;
	rig_comps(r, 0, 2, SECOND);
	rig_done(r);
}

/* Each word counts by itself: an ACK that was overtaken still tells of the places that the other
 * one did not name. */
static void done__overtaken_ack(void **state)
{
	struct rig *r = ops_plain();
	struct pkt_ep *e = rig_ep(r, 0, 0);
	struct gx_wire_ack ack = {.number = 7, .done_words = 2, .done = {0, 1}};

	rig_set(r, &(struct sim_cfg){.loss_ppm = 1000000});
	for (unsigned i = 0; i < 65; i++)
		put_small(r, i);
	rig_pass(r, 100000);
	ack_done(e, &ack);
	rig_turn(r);
	assert_int_equal(r->nr_last[0], 1);
	expect(r, 0, 64, 0);
	ack = (struct gx_wire_ack){.number = 6, .done_words = 3, .done = {4, 3}};
	ack_done(e, &ack);
	rig_turn(r);
	assert_int_equal(r->nr_last[0], 2);
	expect(r, 0, 2, 0);
	rig_close(r);
}

/* CANCEL, FAIL and AGAIN of a message that is done do nothing to the one that has its place now. */
static void done__records_of_the_one_before(void **state)
{
	static const struct gx_wire_rec recs[] = {
		{.type = GX_REC_CANCEL, .cancel = {.mid = 0, .sent = 1}},
		{.type = GX_REC_FAIL, .fail = {.id = 0, .err = -EIO}},
	};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(recs); i++) {
		struct rig *r =
			ops_open(&(struct rig_cfg){.sim = {.seed = 1}, .gpu_delay_ns = 20 * MS});

		put_small(r, 1);
		rig_comps(r, 0, 1, MS);
		post(r, 0, GX_OP_PUT, 2, 50000);
		rig_pass(r, MS);
		assert_int_equal(rig_ep(r, 1, 0)->in[0].mid, GX_WIRE_MIDS);
		assert_int_equal(rig_ep(r, 1, 0)->in[0].state, IN_ACTIVE);
		assert_true(rec_add(rig_ep(r, i, 0), &recs[i], PKT_NONE));
		rig_pass(r, MS);
		assert_int_equal(rig_ep(r, 1, 0)->in[0].state, IN_ACTIVE);
		rig_comps(r, 0, 2, SECOND);
		expect(r, 0, 2, 0);
		assert_memory_equal(rig_mem(r, 1), bufs.src[0], 50000);
		rig_done(r);
	}
}

/* A peer that begins a message where another one is not done, or leaves one out. */
static void done__place_taken_out_of_turn(void **state)
{
	static const uint32_t mids[] = {GX_WIRE_MIDS, 5 + GX_WIRE_MIDS, 5 - 2 * GX_WIRE_MIDS};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(mids); i++) {
		struct rig *r =
			ops_open(&(struct rig_cfg){.sim = {.seed = 1}, .gpu_delay_ns = 20 * MS});
		struct gx_wire_rec rec = {.type = GX_REC_OPEN,
					  .open = {.mid = mids[i],
						   .quantum = rig_ep(r, 0, 0)->shape.quantum,
						   .token = r->peer[0].token,
						   .len = 50000}};

		post(r, 0, GX_OP_PUT, 1, 50000);
		rig_pass(r, MS);
		assert_true(rec_add(rig_ep(r, 0, 0), &rec, PKT_NONE));
		rig_pass(r, MS);
		assert_int_equal(atomic_load(&r->ep[1][0]->fault), -EPROTO);
		rig_close(r);
	}
}

/* Copies of packets of the message before come when its place has another one: late copies. */
static void done__doubles_of_the_one_before(void **state)
{
	struct rig *r = ops_open(&(struct rig_cfg){.sim = {.seed = 3,
							   .dup_ppm = 300000,
							   .reorder_ppm = 300000,
							   .reorder_slots = 400}});

	for (unsigned i = 0; i < 300; i++) {
		uint64_t len = 3000 + i * 16;

		memset(rig_mem(r, 1), RIG_POISON, 64 << 10);
		rig_forget(r);
		rig_post(r, 0,
			 &(struct gx_op){.kind = GX_OP_PUT,
					 .user = i,
					 .len = len,
					 .addr = bufs.src[0] + 8 * i,
					 .token = r->peer[0].token});
		rig_comps(r, 0, 1, SECOND);
		assert_memory_equal(rig_mem(r, 1), bufs.src[0] + 8 * i, len);
		rig_check_poison(rig_mem(r, 1) + len, (64 << 10) - len);
	}
	assert_true(rig_stat(r, 1, "rx_dup") > 0);
	rig_set(r, &(struct sim_cfg){0});
	rig_done(r);
}

/* Numbers of messages and of ACKs wrap. */
static void done__wraps(void **state)
{
	struct rig *r = ops_plain();

	for (int side = 0; side < 2; side++) {
		struct pkt_ep *e = rig_ep(r, side, 0);

		for (uint32_t i = 0; i < GX_WIRE_MIDS; i++)
			e->out[i].mid = e->in[i].mid = i - 3 * GX_WIRE_MIDS;
		for (uint32_t w = 0; w < GX_WIRE_DONE_WORDS; w++)
			e->tx.peer_done_by[w] = -5;
		e->ack.number = -5;
	}
	for (unsigned i = 0; i < 20; i++) {
		rig_forget(r);
		post(r, 0, GX_OP_PUT, 1, 20000);
		put_small(r, 2);
		rig_comps(r, 0, 2, MS);
	}
	assert_int_equal(rig_ep(r, 1, 0)->in[0].mid, 17 * GX_WIRE_MIDS);
	rig_done(r);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(match__receive_before_send),
		rig_test(match__send_before_receive),
		rig_test(match__masks),
		rig_test(match__order),
		rig_test(match__offer_behind_one_that_waited),
		rig_test(match__too_long_leaves_the_receive),
		rig_test(match__too_long_when_it_waited),
		rig_test(match__sender_who_makes_the_room_larger),
		rig_test(match__more_receives_than_slots),
		rig_test(get__answer_of_another_length),
		rig_test(get__more_than_the_peer_takes),
		rig_test(put__inline_is_not_read_after_its_end),
		rig_test(put__local_silent_notify),
		rig_test(put__notifications_wait_for_room),
		rig_test(refuse__no_such_region),
		rig_test(refuse__out_of_range),
		rig_test(refuse__longer_than_the_wire_can_say),
		rig_test(refuse__access),
		rig_test(refuse__many),
		rig_test(refuse__more_than_there_are_records),
		rig_test(cancel__put),
		rig_test(cancel__get),
		rig_test(cancel__send),
		rig_test(cancel__recv),
		rig_test(cancel__each_packet_lost_once),
		rig_test(cancel__recv_before_send),
		rig_test(cancel__send_before_it_began),
		rig_test(cancel__overtakes_its_open),
		rig_test(cancel__unknown),
		rig_test(cancel__storm),
		rig_test(deadline__ends_in_time),
		rig_test(deadline__not_reached),
		rig_test(path__carries_no_quantum),
		rig_test(path__nothing_passes_for_a_while),
		rig_test(path__cancel_while_it_narrows),
		rig_test(path__deadline_while_it_narrows),
		rig_test(again__cancel_overtakes_its_open),
		rig_test(again__nonsense),
		rig_test(again__without_its_slot),
		rig_test(again__after_it_landed),
		rig_test(peer__silent),
		rig_test(peer__silent_to_a_receive_alone),
		rig_test(peer__closes_in_the_middle),
		rig_test(gpu__stops_at_the_receiver),
		rig_test(gpu__stops_at_the_sender),
		rig_test(done__lost_is_asked_for),
		rig_test(done__beside_one_that_waits),
		rig_test(done__words_of_many),
		rig_test(done__stale_ack),
		rig_test(done__overtaken_ack),
		rig_test(done__records_of_the_one_before),
		rig_test(done__place_taken_out_of_turn),
		rig_test(done__doubles_of_the_one_before),
		rig_test(done__wraps),
	};
	int ret = rig_run("sim_ops", tests, GX_ARRAY_SIZE(tests), argc, argv);

	ops_free();
	return ret;
}
