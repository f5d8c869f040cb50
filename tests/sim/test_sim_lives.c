/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What belongs to another life, or to somebody else, over a simulated network: packets of a
 * connection whose place another one has, tokens of a slot that is used again, a peer that names
 * another's connection, records and packets that come twice.
 */
#include "sim/sim_rig.h"
#include "packet/make.h"
#include "packet/op.h"
#include "packet/rec.h"
#include "packet/rxtx.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MEM_B (1u << 20)

static uint8_t src[MEM_B], dst[MEM_B];

static struct rig *lives_open(const struct rig_cfg *cfg)
{
	struct rig_cfg full = *cfg;

	rig_fill(src, MEM_B, 1);
	memset(dst, RIG_POISON, MEM_B);
	full.mem_b = MEM_B;
	return rig_open(&full);
}

static void put_on(struct rig *r, unsigned conn, uint64_t user, uint64_t len)
{
	rig_post_on(r, 0, conn,
		    &(struct gx_op){.kind = GX_OP_PUT,
				    .user = user,
				    .len = len,
				    .addr = src,
				    .token = r->peer[0].token});
}

static void ended_well(struct rig *r, int node, unsigned n)
{
	assert_int_equal(r->nr_last[node], n);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(r->last[node][i].status, 0);
}

/* ---- another connection at the same place ---- */

/* Nothing of a put arrives while side 0 speaks as @word says (*at is in its endpoint); it does
 * afterwards. */
static void put_in_vain(struct rig *r, uint32_t *at, uint32_t word, const char *counter)
{
	uint32_t right = *at;
	uint64_t before = rig_stat(r, 1, counter);

	assert_true(word != right);
	*at = word;
	put_on(r, 0, 1, 20000);
	put_on(r, 0, 2, 100);
	rig_pass(r, 5 * MS);
	assert_true(rig_stat(r, 1, counter) > before);
	assert_int_equal(rig_stat(r, 1, "msgs_rx"), 0);
	assert_int_equal(rig_ep(r, 1, 0)->rx.nr_in, 0);
	rig_check_poison(rig_mem(r, 1), MEM_B);
	assert_int_equal(r->nr_last[0], 0);
	*at = right;
	rig_comps(r, 0, 2, SECOND);
	ended_well(r, 0, 2);
	assert_memory_equal(rig_mem(r, 1), src, 20000);
	rig_done(r);
}

static void restart__cid_of_the_life_before(void **state)
{
	struct rig *r = lives_open(&(struct rig_cfg){.sim = {.seed = 1}});
	uint32_t cid = rig_ep(r, 0, 0)->cid_peer, index = rig_ep(r, 1, 0)->index;

	rig_reconnect(r);
	assert_int_equal(rig_ep(r, 1, 0)->index, index);
	assert_int_equal(rig_ep(r, 0, 0)->cid_peer & 0xfffff, cid & 0xfffff);
	put_in_vain(r, &rig_ep(r, 0, 0)->cid_peer, cid, "rx_stray");
}

static void restart__salt_of_the_life_before(void **state)
{
	struct rig *r = lives_open(&(struct rig_cfg){.sim = {.seed = 2}, .integrity = 1});
	uint32_t salt = rig_ep(r, 0, 0)->salt_peer;

	rig_reconnect(r);
	put_in_vain(r, &rig_ep(r, 0, 0)->salt_peer, salt, "rx_crc");
}

/* What the new connection was told is its own. */
static void restart__numbers_are_new(void **state)
{
	struct rig *r = lives_open(&(struct rig_cfg){.sim = {.seed = 3}, .integrity = 1});
	uint64_t psn[2] = {rig_ep(r, 0, 0)->psn0, rig_ep(r, 1, 0)->psn0};
	uint32_t salt[2] = {rig_ep(r, 0, 0)->salt, rig_ep(r, 1, 0)->salt};
	uint32_t gen[2] = {rig_ep(r, 0, 0)->gen, rig_ep(r, 1, 0)->gen};

	put_on(r, 0, 1, 300000); /* ends with the connection */
	rig_pass(r, 30000);
	rig_reconnect(r);
	rig_forget(r);
	for (int side = 0; side < 2; side++) {
		const struct pkt_ep *e = rig_ep(r, side, 0);

		assert_int_equal(e->gen, (gen[side] + 1) & 0xfff);
		assert_true(e->psn0 != psn[side]);
		assert_int_not_equal(e->salt, salt[side]);
		assert_int_equal(rig_ep(r, !side, 0)->salt_peer, e->salt);
	}
	assert_int_not_equal(rig_ep(r, 0, 0)->salt, rig_ep(r, 1, 0)->salt);
	put_on(r, 0, 1, 300000);
	rig_comps(r, 0, 1, SECOND);
	ended_well(r, 0, 1);
	rig_done(r);
}

/* ---- a slot that is used again ---- */

static uint64_t recv_slot(struct rig *r, uint64_t user)
{
	struct pkt_ep *e = rig_ep(r, 1, 0);

	rig_post(r, 1,
		 &(struct gx_op){
			 .kind = GX_OP_RECV, .user = user, .len = 4096, .addr = dst, .tag = 7});
	for (uint32_t i = 0; i < PKT_SLOTS; i++)
		if (e->slots[i].used)
			return slot_token(e, i);
	fail_msg("no slot is used");
	return 0;
}

/* An OPEN that names the receive that had the slot before: it is refused, and the receive that has
 * it now waits on. */
static void slot__token_of_the_life_before(void **state)
{
	struct rig *r = lives_open(&(struct rig_cfg){.sim = {.seed = 4}});
	struct pkt_ep *e = rig_ep(r, 0, 0), *p = rig_ep(r, 1, 0);
	uint64_t first = recv_slot(r, 0), token = first;
	struct gx_wire_rec rec = {
		.type = GX_REC_OPEN,
		.flags = GX_REC_SLOT,
		.open = {.token = first, .len = 100, .quantum = e->shape.quantum}};

	for (unsigned i = 1; i <= PKT_SLOTS; i++) {
		assert_int_equal(common_cancel(r->ep[1][0], i - 1), 1);
		rig_pass(r, 100000);
		token = recv_slot(r, i);
	}
	assert_int_equal((uint32_t)token, (uint32_t)first);
	assert_true(token != first);
	rig_forget(r);
	rec.open.mid = tx_mid(e, PKT_NONE);
	assert_true(rec_add(e, &rec, PKT_NONE));
	rig_pass(r, MS);
	assert_int_equal(p->in[rec.open.mid].state, IN_REFUSED);
	assert_int_equal(p->in[rec.open.mid].err, -ECANCELED);
	assert_false(p->slots[(uint32_t)token].bound);
	rec = (struct gx_wire_rec){.type = GX_REC_CANCEL, .cancel = {.mid = rec.open.mid}};
	assert_true(rec_add(e, &rec, PKT_NONE));
	rig_pass(r, MS);
	assert_int_equal(r->nr_last[1], 0);
	rig_post(
		r, 0,
		&(struct gx_op){.kind = GX_OP_SEND, .user = 1, .len = 4000, .addr = src, .tag = 7});
	rig_comps(r, 1, 1, SECOND);
	ended_well(r, 1, 1);
	assert_memory_equal(dst, src, 4000);
	rig_done(r);
}

/* The sender's half: an OFFER of the life before does not come back, whenever it comes. */
static void slot__offer_of_the_life_before(void **state)
{
	struct rig *r = lives_open(&(struct rig_cfg){.sim = {.seed = 5}});
	struct pkt_ep *e = rig_ep(r, 0, 0);
	struct gx_wire_rec rec = {.type = GX_REC_OFFER,
				  .offer = {.len = 4096, .tag = 7, .tag_mask = UINT64_MAX}};
	uint64_t first = recv_slot(r, 0), token = first;

	for (unsigned i = 1; i <= PKT_SLOTS; i++) {
		assert_int_equal(common_cancel(r->ep[1][0], i - 1), 1);
		rig_pass(r, 100000);
		token = recv_slot(r, i);
	}
	rig_pass(r, MS);
	rec.offer.slot = first;
	assert_true(rec_add(rig_ep(r, 1, 0), &rec, PKT_NONE));
	rig_pass(r, MS);
	assert_true(e->offers[(uint32_t)token].token == token);
	rec = (struct gx_wire_rec){.type = GX_REC_REVOKE, .revoke = {.slot = first}};
	assert_true(rec_add(rig_ep(r, 1, 0), &rec, PKT_NONE));
	rig_pass(r, MS);
	assert_true(e->offers[(uint32_t)token].used);
	assert_int_equal(common_cancel(r->ep[1][0], PKT_SLOTS), 1);
	rig_pass(r, MS);
	rig_done(r);
}

/* ---- a peer that speaks for another one ---- */

static void cid__of_another(bool lossless)
{
	struct rig *r = lives_open(&(struct rig_cfg){
		.sim = {.seed = 6, .lossless = lossless, .own_slots = lossless}, .nr_clients = 2});
	struct pkt_ep *liar = rig_ep(r, 0, 1);
	uint32_t right = liar->cid_peer;

	liar->cid_peer = rig_ep(r, 0, 0)->cid_peer;
	put_on(r, 1, 1, 100);
	rig_pass(r, 200000);
	assert_true(rig_stat(r, 1, "rx_stray") > 0);
	assert_int_equal(rig_stat(r, 1, "msgs_rx"), 0);
	rig_check_poison(rig_mem(r, 1), MEM_B);
	assert_int_equal(atomic_load(&r->ep[1][0]->fault), 0);
	assert_int_equal(atomic_load(&r->ep[1][1]->fault), lossless ? -EPROTO : 0);
	liar->cid_peer = right;
	put_on(r, 0, 2, 20000);
	rig_comps(r, 0, 1, SECOND);
	ended_well(r, 0, 1);
	assert_memory_equal(rig_mem(r, 1), src, 20000);
	if (lossless) {
		rig_close(r);
		return;
	}
	rig_comps(r, 2, 1, SECOND);
	ended_well(r, 2, 1);
	rig_done(r);
}

/* The port tells from whom a packet came: it is dropped. */
static void cid__of_another_is_dropped(void **state)
{
	cid__of_another(false);
}

/* Where nothing is lost or changed it ends the liar's connection, not the other one. */
static void cid__of_another_ends_the_liar(void **state)
{
	cid__of_another(true);
}

/* ---- twice ---- */

/* A record that is sent again has its effect once: credit is given back once. */
static void twice__refund(void **state)
{
	struct rig *r = lives_open(&(struct rig_cfg){.sim = {.seed = 7}});
	struct pkt_ep *e = rig_ep(r, 0, 0), *p = rig_ep(r, 1, 0);
	struct gx_wire_rec rec = {.type = GX_REC_REFUND, .refund = {.pkts = 2}};
	uint32_t rsn = e->rec.next, granted = flow_granted(p->flow);

	assert_int_equal(flow_credit(e->flow), granted);
	assert_true(granted >= 4);
	flow_credit_use(e->flow, 2);
	assert_true(rec_add(e, &rec, PKT_NONE));
	rig_pass(r, 22000);
	assert_int_equal(e->recs[rsn % PKT_RECS].state, REC_SENT); /* its ACK is under way */
	e->recs[rsn % PKT_RECS].state = REC_QUEUED;
	e->rec.queued++;
	e->rec.scan = rsn;
	rig_pass(r, 15000);
	assert_int_equal(e->recs[rsn % PKT_RECS].state, REC_SENT);
	rig_pass(r, MS); /* what was given back is granted anew, and told */
	assert_int_equal(flow_credit(e->flow), granted);
	assert_int_equal(flow_granted(p->flow), flow_credit(e->flow));
	rig_done(r);
}

/* Each packet comes twice while nothing has been copied: one buffer is held of each. */
static void twice__data(void **state)
{
	struct rig *r = lives_open(
		&(struct rig_cfg){.sim = {.seed = 8, .dup_ppm = 1000000}, .gpu_delay_ns = 5 * MS});
	struct pkt_ep *e = rig_ep(r, 0, 0), *p = rig_ep(r, 1, 0);
	uint64_t len = 6ull * e->shape.quantum;

	put_on(r, 0, 1, len);
	rig_pass(r, 2 * MS);
	assert_int_equal(p->in[0].state, IN_ACTIVE);
	assert_int_equal(p->rx.held_bufs, 6);
	assert_int_equal(p->in[0].pending, 6);
	assert_true(rig_stat(r, 1, "rx_dup") >= 6);
	/* And once more under new psns, as when ACKs are lost. */
	for (unsigned pkt = 0; pkt < 6; pkt++) {
		struct gx_tx tx = {.data = src + (size_t)pkt * e->shape.quantum};
		struct gx_port_queue *q = e->link->q;

		make_data(e, &tx, e->out[0].op, pkt,
			  &(struct tx_how){.kind = PKT_K_DATA, .resend = true, .copy = true});
		assert_int_equal(q->ops->tx_burst(q, GX_HALF_DATA, &tx, 1), 1);
	}
	rig_pass(r, MS);
	assert_int_equal(p->rx.held_bufs, 6);
	assert_int_equal(p->in[0].pending, 6);
	assert_true(rig_stat(r, 1, "rx_dup") >= 18);
	rig_comps(r, 0, 1, SECOND);
	ended_well(r, 0, 1);
	assert_memory_equal(rig_mem(r, 1), src, len);
	rig_set(r, &(struct sim_cfg){0});
	rig_done(r);
}

static const struct gx_port_ops *real_ops;

static unsigned no_data_room(struct gx_port_queue *q, enum gx_half half, uint32_t peer)
{
	return half == GX_HALF_DATA ? 0 : real_ops->tx_room(q, half, peer);
}

/* A message is open, none of its packets has come; one of the message that had its place before
 * comes late. */
static void twice__of_the_message_before(void **state)
{
	struct rig *r = lives_open(&(struct rig_cfg){.sim = {.seed = 9}});
	struct pkt_ep *e = rig_ep(r, 0, 0), *p = rig_ep(r, 1, 0);
	struct gx_port_queue *q = e->link->q;
	uint64_t len = 6ull * e->shape.quantum;
	struct gx_port_ops blocked = *q->ops;
	struct gx_tx tx = {.data = src + MEM_B / 2};

	put_on(r, 0, 1, len);
	rig_comps(r, 0, 1, SECOND);
	real_ops = q->ops;
	blocked.tx_room = no_data_room;
	q->ops = &blocked;
	put_on(r, 0, 2, len);
	rig_pass(r, 100000);
	assert_int_equal(p->in[0].mid, GX_WIRE_MIDS);
	assert_int_equal(p->in[0].state, IN_ACTIVE);
	e->ops[e->out[0].op].mid = 0;
	make_data(e, &tx, e->out[0].op, 3, &(struct tx_how){.kind = PKT_K_DATA, .resend = true});
	e->ops[e->out[0].op].mid = GX_WIRE_MIDS;
	assert_int_equal(real_ops->tx_burst(q, GX_HALF_DATA, &tx, 1), 1);
	rig_pass(r, 100000);
	assert_int_equal(p->in[0].seen_pkts, 0);
	assert_int_equal(flow_outstanding(e->flow), 0); /* it was acknowledged: a late copy */
	q->ops = real_ops;
	rig_comps(r, 0, 2, SECOND);
	ended_well(r, 0, 2);
	assert_memory_equal(rig_mem(r, 1), src, len);
	rig_done(r);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(restart__cid_of_the_life_before),
		rig_test(restart__salt_of_the_life_before),
		rig_test(restart__numbers_are_new),
		rig_test(slot__token_of_the_life_before),
		rig_test(slot__offer_of_the_life_before),
		rig_test(cid__of_another_is_dropped),
		rig_test(cid__of_another_ends_the_liar),
		rig_test(twice__refund),
		/* a rig that holds a buffer twice cannot be closed */
		cmocka_unit_test(twice__data),
		rig_test(twice__of_the_message_before),
	};

	return rig_run("sim_lives", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
