/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends that do not keep pace, over a simulated network: cores that are not turned for a while,
 * ports that lose nothing and are full, several clients of one server of which some stand still.
 */
#include "sim/sim_rig.h"
#include "packet/share.h"

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

/* The control half is full of OFFERs that the peer does not take, the data half has room: a put's
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
			assert_int_equal(common_cancel(r->ep[0][0], 100 + i), 1);
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

/* ---- a pool that clients share ---- */

#define SLOTS 512

static unsigned granted(struct rig *r, unsigned conn)
{
	return flow_granted(rig_ep(r, 1, conn)->flow);
}

/* Client @conn puts @n times 64 KiB, one at a time. Return: the longest that one took. */
static uint64_t puts_worst_ns(struct rig *r, unsigned conn, unsigned n, uint64_t limit_ns)
{
	unsigned node = (unsigned)rig_node(r, 0, conn);
	uint64_t worst_ns = 0;

	for (unsigned i = 0; i < n; i++) {
		uint64_t since_ns = r->now_ns;

		post(r, 0, conn, GX_OP_PUT, i, 65536);
		rig_comps(r, (int)node, 1, limit_ns);
		all_ended_well(r, node, 1);
		r->nr_last[node] = 0;
		worst_ns = GX_MAX(worst_ns, r->now_ns - since_ns);
	}
	return worst_ns;
}

/* One client has declared a long message, was granted what there is to grant, and is stopped: the
 * other works on, at once. The first goes on later, and nothing of it is lost. */
static void pool__stopped_client_leaves_buffers(void **state)
{
	struct rig *r = peers_open(&(struct rig_cfg){.sim = {.seed = 1},
						     .nr_clients = 2,
						     .slots = SLOTS,
						     .peer_timeout_ns = 3600 * SECOND});

	post(r, 0, 0, GX_OP_PUT, 1, BUF_B);
	rig_pass(r, 1000); /* its OPEN, and what it had the credit for, have left */
	r->still[0] = true;
	rig_pass(r, MS);
	assert_true(granted(r, 0) >= SLOTS / 4);
	assert_true(granted(r, 0) <= SLOTS * 3 / 4);
	assert_true(puts_worst_ns(r, 1, 50, SECOND) < MS / 2);
	rig_pass(r, 10 * SECOND);
	assert_true(puts_worst_ns(r, 1, 50, SECOND) < MS / 2);
	r->still[0] = false;
	rig_comps(r, 0, 1, SECOND);
	all_ended_well(r, 0, 1);
	assert_memory_equal(rig_mem(r, 1), src, BUF_B);
	rig_done(r);
}

/* More and more clients are stopped: what they hold and do not use is taken back. */
static void pool__stopped_clients_are_many(void **state)
{
	struct rig *r = peers_open(&(struct rig_cfg){.sim = {.seed = 2},
						     .nr_clients = 5,
						     .slots = 64,
						     .peer_timeout_ns = 3600 * SECOND});

	for (unsigned i = 0; i < 4; i++) {
		post(r, 0, i, GX_OP_PUT, 1, BUF_B);
		rig_pass(r, 1000);
		r->still[rig_node(r, 0, i)] = true;
		rig_pass(r, MS);
	}
	puts_worst_ns(r, 4, 100, SECOND);
	/* They are silent by now, and have no share. */
	assert_true(rig_stat(r, 1, "credit_lapsed") > 0);
	assert_true(puts_worst_ns(r, 4, 50, SECOND) < MS / 2);
	memset(r->still, 0, sizeof(r->still));
	for (unsigned i = 0; i < 4; i++) {
		unsigned node = (unsigned)rig_node(r, 0, i);

		rig_comps(r, (int)node, 1, SECOND);
		all_ended_well(r, node, 1);
	}
	assert_memory_equal(rig_mem(r, 1), src, BUF_B);
	rig_done(r);
}

/* A client whose core gets a turn each 5 ms, and sends a burst in it, does not set the pace. */
static void pool__slow_client_has_its_own_pace(void **state)
{
	struct rig *r =
		peers_open(&(struct rig_cfg){.sim = {.seed = 3}, .nr_clients = 2, .slots = SLOTS});
	uint64_t worst_ns = 0;

	post(r, 0, 0, GX_OP_PUT, 1, BUF_B);
	for (unsigned i = 0; i < 40; i++) {
		r->still[0] = false;
		rig_turn(r);
		r->still[0] = true;
		rig_pass(r, 4 * MS);
		worst_ns = GX_MAX(worst_ns, puts_worst_ns(r, 1, 5, SECOND));
	}
	assert_true(worst_ns < MS / 2);
	r->still[0] = false;
	rig_comps(r, 0, 1, SECOND);
	all_ended_well(r, 0, 1);
	rig_done(r);
}

/* A pool of one buffer, or a few, serves all clients, whatever the others do. */
static void pool__few_buffers_for_many(void **state)
{
	static const uint32_t slots[] = {1, 2, 3, 5, 40};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(slots); i++) {
		struct rig *r = peers_open(
			&(struct rig_cfg){.sim = {.seed = i}, .nr_clients = 3, .slots = slots[i]});

		for (unsigned k = 0; k < 3; k++)
			post(r, 0, k, GX_OP_PUT, k, 300000);
		for (unsigned k = 0; k < 3; k++) {
			unsigned node = (unsigned)rig_node(r, 0, k);

			rig_comps(r, (int)node, 1, SECOND);
			all_ended_well(r, node, 1);
			r->nr_last[node] = 0;
		}
		post(r, 0, 0, GX_OP_PUT, 1, 300000);
		rig_pass(r, 30000);
		r->still[0] = true;
		puts_worst_ns(r, 1, 3, SECOND);
		r->still[0] = false;
		rig_comps(r, 0, 1, SECOND);
		all_ended_well(r, 0, 1);
		rig_done(r);
	}
}

static unsigned landed_b(struct rig *r, unsigned conn)
{
	const struct pkt_ep *e = rig_ep(r, 1, conn);
	unsigned n = 0;

	for (unsigned i = 0; i < GX_WIRE_MIDS; i++)
		if (e->in[i].state == IN_ACTIVE)
			n += e->in[i].visible_b;
	return n;
}

/* A client holds more than is its share by now, and uses a packet of it now and then. */
static void pool__hog_that_uses_a_little(void **state)
{
	struct rig *r =
		peers_open(&(struct rig_cfg){.sim = {.seed = 6}, .nr_clients = 3, .slots = SLOTS});
	struct pkt_ep *hog = rig_ep(r, 1, 0);

	post(r, 0, 0, GX_OP_PUT, 1, BUF_B);
	rig_pass(r, 1000);
	r->still[0] = true;
	rig_pass(r, MS);
	post(r, 0, 1, GX_OP_PUT, 1, BUF_B);
	rig_pass(r, 30000);
	r->still[2] = true;
	assert_true(granted(r, 0) > SLOTS / 3);
	post(r, 0, 2, GX_OP_PUT, 1, BUF_B);
	for (unsigned i = 0; i < 12; i++) {
		share_used(hog, 1); /* as if it had sent one */
		post(r, 0, 2, GX_OP_PUT, 1, BUF_B);
		rig_pass(r, MS / 2);
	}
	assert_false(hog->share.silent);
	assert_true(granted(r, 0) - hog->share.lapsed <= SLOTS / 4);
	rig_close(r);
}

/* Copies take long, so that buffers are short indeed. A client that was silent comes back with
 * credit whose buffers others have: what there is no room for is sent again, nothing is lost, and
 * it has its share again. */
static void pool__silent_client_comes_back(void **state)
{
	static const uint32_t slots[] = {1, 4, 12, 64};
	uint64_t no_room = 0;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(slots); i++) {
		struct rig *r = peers_open(&(struct rig_cfg){.sim = {.seed = 7},
							     .nr_clients = 3,
							     .slots = slots[i],
							     .gpu_delay_ns = 200000});
		uint64_t len = slots[i] * 16384;

		post(r, 0, 0, GX_OP_PUT, 1, len);
		rig_pass(r, 1000);
		r->still[0] = true;
		rig_pass(r, MS / 4);
		for (unsigned k = 1; k < 3; k++)
			post(r, 0, k, GX_OP_PUT, k, BUF_B);
		rig_pass(r, 60 * MS);
		assert_true(rig_ep(r, 1, 0)->share.silent);
		r->still[0] = false;
		rig_comps(r, 0, 1, SECOND);
		all_ended_well(r, 0, 1);
		no_room += rig_stat(r, 1, "rx_nobuf");
		rig_close(r);
	}
	assert_true(no_room > 0);
}

/* Client 0 has a long message under way, was stopped, and is silent: nothing is kept for it. */
static struct rig *silent_open(void)
{
	struct rig *r =
		peers_open(&(struct rig_cfg){.sim = {.seed = 9}, .nr_clients = 2, .slots = SLOTS});

	post(r, 0, 0, GX_OP_PUT, 1, BUF_B);
	rig_pass(r, 1000);
	r->still[0] = true;
	for (unsigned i = 0; i < 60; i++) {
		post(r, 0, 1, GX_OP_PUT, 1, BUF_B);
		rig_pass(r, MS / 2);
	}
	rig_comps(r, 2, 60, SECOND);
	rig_forget(r);
	assert_true(rig_ep(r, 1, 0)->share.silent);
	assert_int_equal(granted(r, 0) - rig_ep(r, 1, 0)->share.lapsed, 8);
	return r;
}

/* Whoever uses credit again has its share again. */
static void pool__lapsed_credit_comes_back(void **state)
{
	struct rig *r = silent_open();
	struct pkt_ep *e = rig_ep(r, 1, 0);

	rig_pass(r, 10 * MS);
	assert_true(e->share.silent);
	share_used(e, 1);
	rig_pass(r, MS);
	assert_int_equal(e->share.lapsed, 0);
	assert_int_equal(granted(r, 0), SLOTS * 3 / 4);
	assert_int_equal(pkt_link(r->core[1], 0)->pool_out, SLOTS * 3 / 4 + 8);
	rig_close(r);
}

/* Credit that lapsed and comes back unused is neither granted nor lapsed any more. */
static void pool__lapsed_credit_is_refunded(void **state)
{
	struct rig *r = silent_open();
	struct pkt_ep *e = rig_ep(r, 1, 0);
	uint32_t had = granted(r, 0), lapsed = e->share.lapsed;
	uint32_t out = pkt_link(r->core[1], 0)->pool_out;

	assert_true(lapsed > 4);
	share_refunded(e, 4);
	assert_int_equal(granted(r, 0), had - 4);
	assert_int_equal(e->share.lapsed, lapsed - 4);
	assert_int_equal(pkt_link(r->core[1], 0)->pool_out, out); /* no buffers were kept for it */
	share_refunded(e, UINT64_MAX);
	assert_int_equal(granted(r, 0), 0);
	assert_int_equal(e->share.lapsed, 0);
	assert_int_equal(pkt_link(r->core[1], 0)->pool_out, out - (had - lapsed));
	rig_close(r);
}

/* A packet on lapsed credit finds all buffers in use: it is as lost, and comes again. */
static void pool__no_room_for_lapsed_credit(void **state)
{
	struct rig *r = silent_open();
	struct link_pkt *l = pkt_link(r->core[1], 0);
	struct pkt_ep *e = rig_ep(r, 1, 0);
	uint64_t had = rig_stat(r, 1, "rx_nobuf");
	uint32_t used = flow_used(e->flow);

	l->held_bufs += SLOTS; /* by a GPU that does not end its copies */
	r->still[0] = false;
	rig_pass(r, MS / 2);
	assert_true(rig_stat(r, 1, "rx_nobuf") > had);
	assert_int_equal(flow_used(e->flow) - used, 8); /* that were kept for it */
	l->held_bufs -= SLOTS;
	rig_comps(r, 0, 1, SECOND);
	all_ended_well(r, 0, 1);
	assert_memory_equal(rig_mem(r, 1), src, BUF_B);
	rig_done(r);
}

/* The pool is granted to others, and hardly a buffer is in use: lapsed credit is as good as new. */
static void pool__room_for_lapsed_credit(void **state)
{
	struct rig *r = silent_open();
	struct link_pkt *l = pkt_link(r->core[1], 0);
	uint64_t had = rig_stat(r, 1, "rx_nobuf");

	l->pool_out += SLOTS;
	r->still[0] = false;
	rig_pass(r, MS / 2);
	assert_int_equal(rig_stat(r, 1, "rx_nobuf"), had);
	l->pool_out -= SLOTS;
	rig_comps(r, 0, 1, SECOND);
	rig_done(r);
}

/* Who waits for its GPU holds a share at most, of buffers and of credit together. */
static void pool__what_is_held_counts(void **state)
{
	struct rig *r =
		peers_open(&(struct rig_cfg){.sim = {.seed = 10}, .nr_clients = 2, .slots = SLOTS});
	struct pkt_ep *e = rig_ep(r, 1, 0);

	e->rx.held_bufs += SLOTS / 2;
	post(r, 0, 0, GX_OP_PUT, 1, BUF_B);
	rig_pass(r, 1000);
	r->still[0] = true;
	rig_pass(r, MS);
	assert_int_equal(granted(r, 0), SLOTS / 4);
	e->rx.held_bufs -= SLOTS / 2;
	r->still[0] = false;
	rig_comps(r, 0, 1, SECOND);
	rig_done(r);
}

/* Buffers that come back go round, whoever is asked first. */
static void pool__first_in_line_is_served(void **state)
{
	struct rig *r =
		peers_open(&(struct rig_cfg){.sim = {.seed = 8}, .nr_clients = 2, .slots = 1});
	struct link_pkt *l = pkt_link(r->core[1], 0);
	unsigned done[2] = {0};

	for (unsigned k = 0; k < 2; k++)
		post(r, 0, k, GX_OP_PUT, k, 100 * 4096);
	while (!r->nr_last[0] && !r->nr_last[2]) {
		l->rover = l->nr_live - 1; /* the same one is first each turn */
		rig_turn(r);
		for (unsigned k = 0; k < 2; k++)
			done[k] = GX_MAX(done[k], landed_b(r, k));
	}
	assert_in_range(done[0], 30 * 4096, 100 * 4096);
	assert_in_range(done[1], 30 * 4096, 100 * 4096);
	rig_comps(r, 0, 1, SECOND);
	rig_comps(r, 2, 1, SECOND);
	rig_done(r);
}

/* Clients that all have long messages under way get on alike, the one that came first too. */
static void pool__shares_are_alike(void **state)
{
	struct rig *r =
		peers_open(&(struct rig_cfg){.sim = {.seed = 5}, .nr_clients = 3, .slots = SLOTS});
	unsigned before[3], least = UINT32_MAX, most = 0;

	for (unsigned k = 0; k < 3; k++) {
		post(r, 0, k, GX_OP_PUT, k, BUF_B);
		rig_pass(r, 40000);
	}
	rig_pass(r, 200000);
	for (unsigned k = 0; k < 3; k++)
		before[k] = landed_b(r, k);
	rig_pass(r, 600000);
	for (unsigned k = 0; k < 3; k++) {
		unsigned n = landed_b(r, k) - before[k];

		least = GX_MIN(least, n);
		most = GX_MAX(most, n);
	}
	assert_true(least > BUF_B / 8);
	assert_in_range(most, least, least + least / 3);
	for (unsigned k = 0; k < 3; k++)
		rig_comps(r, rig_node(r, 0, k), 1, SECOND);
	rig_done(r);
}

/* ---- cores that are away ---- */

/* A core that was not turned for longer than the time-out finds a peer that was there all the time,
 * had nothing to say, and was not asked. */
static void away__own_pause_is_not_the_peers_silence(void **state)
{
	for (int side = 0; side < 2; side++) {
		struct rig *r = peers_open(
			&(struct rig_cfg){.sim = {.seed = 1}, .peer_timeout_ns = SECOND});

		post(r, side, 0, GX_OP_RECV, 7, 64);
		rig_pass(r, 10 * MS);
		for (unsigned i = 0; i < 3; i++) {
			if (i) /* heard of since the last look */
				rig_ep(r, side, 0)->timer.heard_ns = r->now_ns;
			r->still[side] = true;
			rig_pass(r, (i + 1) * 1200 * MS);
			r->still[side] = false;
			rig_pass(r, 300 * MS);
			no_faults(r);
		}
		post(r, !side, 0, GX_OP_SEND, 8, 64);
		rig_comps(r, side, 1, SECOND);
		all_ended_well(r, (unsigned)side, 1);
		rig_done(r);
	}
}

/* Both were away, and come back one after the other. */
static void away__both(void **state)
{
	struct rig *r =
		peers_open(&(struct rig_cfg){.sim = {.seed = 2}, .peer_timeout_ns = SECOND});

	post(r, 0, 0, GX_OP_PUT, 1, BUF_B);
	rig_pass(r, 100000);
	r->still[0] = r->still[1] = true;
	rig_pass(r, 10 * SECOND);
	r->still[0] = false;
	rig_pass(r, 700 * MS);
	r->still[1] = false;
	rig_comps(r, 0, 1, SECOND);
	all_ended_well(r, 0, 1);
	no_faults(r);
	rig_done(r);
}

/* A dead peer is found out all the same, a time-out after we are back; and by a core that is turned
 * once in a while only. */
static void away__dead_peer_is_found_out(void **state)
{
	for (unsigned seldom = 0; seldom < 2; seldom++) {
		struct rig *r = peers_open(
			&(struct rig_cfg){.sim = {.seed = 3}, .peer_timeout_ns = SECOND});
		uint64_t since_ns;

		post(r, 0, 0, GX_OP_RECV, 7, 64);
		rig_pass(r, 10 * MS);
		r->still[1] = r->still[0] = true;
		rig_pass(r, 1500 * MS);
		since_ns = r->now_ns;
		while (!atomic_load(&r->ep[0][0]->fault) && r->now_ns < since_ns + 20 * SECOND) {
			r->still[0] = false;
			rig_turn(r);
			r->still[0] = seldom;
			rig_pass(r, seldom ? 400 * MS : 10 * MS);
		}
		assert_int_equal(atomic_load(&r->ep[0][0]->fault), -ETIMEDOUT);
		if (seldom)
			assert_in_range(r->now_ns - since_ns, 2 * SECOND, 4 * SECOND);
		else
			assert_in_range(r->now_ns - since_ns, 850 * MS, 1100 * MS);
		rig_close(r);
	}
}

/* An address that has not answered is sent probes alone, two each 20 ms, whatever is posted; when
 * it answers, all goes. */
static void away__little_goes_to_who_never_answered(void **state)
{
	struct rig *r = peers_open(&(struct rig_cfg){.sim = {.seed = 6, .path_payload_b = 9000}});
	uint64_t bytes, pkts;

	r->still[1] = true;
	bytes = rig_stat(r, 0, "tx_bytes");
	pkts = rig_stat(r, 0, "tx_pkts");
	for (unsigned i = 0; i < 100; i++)
		post(r, 0, 0, GX_OP_PUT, i, i ? 64 : BUF_B);
	rig_pass(r, SECOND);
	/* Nor does it help to acknowledge what one knows from the bootstrap connection alone. */
	for (unsigned i = 0; i < 200; i++)
		assert_int_equal(
			flow_ack(rig_ep(r, 0, 0)->flow, r->now_ns,
				 &(struct gx_wire_ack){.largest = rig_ep(r, 0, 0)->psn0 + i,
						       .nr_words = 1,
						       .words = {1}}),
			-EPROTO);
	assert_int_equal(rig_stat(r, 0, "msgs_tx"), 0);
	assert_in_range(rig_stat(r, 0, "tx_pkts") - pkts, 50, 2 * 50 + 100);
	assert_in_range(rig_stat(r, 0, "tx_bytes") - bytes, 1, 50 * (4096 + 64));
	r->still[1] = false;
	rig_comps(r, 0, 100, SECOND);
	all_ended_well(r, 0, 100);
	rig_done(r);
}

static bool conn_ended(struct rig *r)
{
	return atomic_load(&r->ep[0][0]->fault);
}

/* A packet that nobody of the two has sent, and that nothing showed to be wrong: from then on the
 * server takes the client's for old ones. Both cores are heard all the time, and nothing moves. */
static void away__nothing_moves_after_a_forged_packet(void **state)
{
	static const uint64_t at_ns[] = {50000, 10 * MS};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(at_ns); i++) {
		struct rig *r = peers_open(
			&(struct rig_cfg){.sim = {.seed = 5}, .peer_timeout_ns = SECOND});
		struct pkt_ep *e = rig_ep(r, 1, 0);
		uint64_t since_ns;

		post(r, 1, 0, GX_OP_RECV, 9, 64); /* the server asks for the client, too */
		if (!i)
			post(r, 0, 0, GX_OP_PUT, 1, BUF_B);
		rig_pass(r, at_ns[i]);
		flow_rx_take(e->flow, r->now_ns, (uint32_t)rig_ep(r, 0, 0)->psn0 + (1u << 30),
			     true);
		if (i)
			post(r, 0, 0, GX_OP_PUT, 1, BUF_B);
		since_ns = r->now_ns;
		/* What the server sends comes right all the time. */
		for (unsigned k = 0; k < 200 && !rig_until(r, conn_ended, 10 * MS); k++)
			post(r, 1, 0, GX_OP_PUT, k, 64);
		assert_true(conn_ended(r));
		assert_true(r->nr_last[1] > 80);
		assert_int_equal(r->nr_last[0], 0);
		assert_int_equal(atomic_load(&r->ep[0][0]->fault), -ETIMEDOUT);
		assert_in_range(r->now_ns - since_ns, 900 * MS, 1200 * MS);
		rig_close(r);
	}
}

/* The path is being proven when our core goes away for longer than that may take. */
static void away__while_the_path_is_proven(void **state)
{
	struct rig *r = peers_open(&(struct rig_cfg){.sim = {.seed = 4, .path_payload_b = 9000},
						     .peer_timeout_ns = SECOND,
						     .gpu_timeout_ns = SECOND});

	rig_pass(r, 10 * MS);
	rig_set(r, &(struct sim_cfg){.path_payload_b = 9000, .loss_ppm = 1000000});
	post(r, 0, 0, GX_OP_PUT, 1, BUF_B);
	rig_pass(r, 300 * MS);
	r->still[0] = true;
	rig_set(r, &(struct sim_cfg){.path_payload_b = 9000});
	rig_pass(r, 10 * SECOND);
	r->still[0] = false;
	rig_comps(r, 0, 1, 5 * SECOND);
	all_ended_well(r, 0, 1);
	rig_done(r);
}

/* ---- pinned buffers through which a GPU's payload goes out ---- */

#define STAGE_OPS  4
#define STAGE_OP_B (1u << 20)

/* A server that puts from its GPU's memory to @nr_clients clients, through @window + 2 buffers of
 * 60 KiB. */
static struct rig *stage_rig(const struct sim_cfg *sim, unsigned nr_clients, uint32_t window,
			     uint64_t gpu_delay_ns)
{
	struct rig *r = peers_open(&(struct rig_cfg){.sim = *sim,
						     .nr_clients = nr_clients,
						     .chunk_b = 60 << 10,
						     .window = window,
						     .gpu = true,
						     .gpu_delay_ns = gpu_delay_ns,
						     .gpu_timeout_ns = 100 * MS,
						     .peer_timeout_ns = 3600 * SECOND});

	memcpy(rig_mem(r, 1), src, BUF_B);
	return r;
}

/* The server puts @len bytes at @off of its region to the same place of client @conn's. */
static void stage_put(struct rig *r, unsigned conn, uint64_t off, uint64_t len)
{
	struct gx_region region = GX_INIT(region);

	assert_int_equal(gx_conn_region(r->conn[1][conn], "mem", 0, &region), 0);
	rig_post_on(r, 1, conn,
		    &(struct gx_op){.kind = GX_OP_PUT,
				    .user = conn,
				    .mem = r->mem[1],
				    .off = off,
				    .len = len,
				    .token = region.token,
				    .remote_off = off});
}

/* Puts to client @conn that have ended. */
static unsigned stage_ended(struct rig *r, unsigned conn)
{
	unsigned n = 0;

	for (unsigned i = 0; i < r->nr_last[1]; i++)
		n += r->last[1][i].user == conn;
	return n;
}

/* Puts to client @conn, one after another. Return: the longest that one took. */
static uint64_t stage_worst_ns(struct rig *r, unsigned conn)
{
	uint64_t worst_ns = 0;

	for (unsigned i = 0; i < 8; i++) {
		uint64_t since_ns = r->now_ns;
		unsigned ended = stage_ended(r, conn);

		stage_put(r, conn, i * STAGE_OP_B, STAGE_OP_B);
		while (stage_ended(r, conn) == ended && r->now_ns < since_ns + SECOND)
			rig_pass(r, 10000);
		worst_ns = GX_MAX(worst_ns, r->now_ns - since_ns);
	}
	return worst_ns;
}

static unsigned stage_held(struct rig *r, unsigned conn)
{
	const struct pkt_ep *e = rig_ep(r, 1, conn);
	unsigned n = 0;

	for (unsigned i = 0; i < e->tx.ops_top; i++)
		n += e->ops[i].stage.next - e->ops[i].stage.first;
	assert_int_equal(n, e->fetch.nr_staged);
	return n;
}

/* Clients stop after @run_ns, with puts to them under way that could hold every buffer several
 * times over. The one that does not stop waits once, for as long as the others are given. What they
 * go on with on a network of @back comes right. */
static void stage_stop(struct rig *r, uint64_t run_ns, const struct sim_cfg *back)
{
	unsigned last = r->nr_conns - 1;

	for (unsigned i = 0; i < last * STAGE_OPS; i++)
		stage_put(r, i / STAGE_OPS, i % STAGE_OPS * STAGE_OP_B, STAGE_OP_B);
	rig_pass(r, run_ns);
	for (unsigned i = 0; i < last; i++)
		r->still[rig_node(r, 0, i)] = true;
	assert_true(stage_worst_ns(r, last) < 30 * MS);
	for (unsigned i = 0; i < last; i++)
		assert_in_range(stage_held(r, i), 0, 1);
	assert_true(stage_worst_ns(r, last) < 5 * MS);
	rig_pass(r, SECOND);
	assert_true(stage_worst_ns(r, last) < 30 * MS);
	assert_true(stage_worst_ns(r, last) < 5 * MS);
	assert_true(rig_stat(r, 1, "stage_taken") > 0);
	for (unsigned i = 0; i < last; i++)
		assert_in_range(stage_held(r, i), 0, 1);
	rig_set(r, back);
	memset(r->still, 0, sizeof(r->still));
	rig_comps(r, 1, last * STAGE_OPS + 4 * 8, 10 * SECOND);
	all_ended_well(r, 1, last * STAGE_OPS + 4 * 8);
	for (unsigned i = 0; i < last; i++)
		assert_memory_equal(rig_mem(r, rig_node(r, 0, i)), src, STAGE_OPS * STAGE_OP_B);
	assert_memory_equal(rig_mem(r, rig_node(r, 0, last)), src, 8 * STAGE_OP_B);
	rig_rest(r, 2 * SECOND);
	for (unsigned i = 0; i <= last; i++)
		assert_false(rig_ep(r, 1, i)->fetch.holds_back);
	rig_close(r);
}

static void stage__stopped_peers_give_back(void **state)
{
	stage_stop(stage_rig(&(struct sim_cfg){.seed = 20}, 3, 4, 20000), 40000,
		   &(struct sim_cfg){0});
}

/* With all the credit that there is, so that they keep what was sent. */
static void stage__stopped_peers_with_credit(void **state)
{
	for (unsigned i = 0; i < 2; i++)
		stage_stop(
			stage_rig(&(struct sim_cfg){.seed = 21 + i, .own_slots = true, .attach = i},
				  3, 4, i ? 0 : 20000),
			300000, &(struct sim_cfg){.loss_ppm = 10000, .dup_ppm = 1000});
}

/* More of them than buffers. */
static void stage__many_stopped_peers(void **state)
{
	stage_stop(stage_rig(&(struct sim_cfg){.seed = 23, .own_slots = true}, 5, 1, 0), 100000,
		   &(struct sim_cfg){.loss_ppm = 20000, .reorder_ppm = 10000, .reorder_slots = 20});
}

/* Lost packets of a message that was sent as a whole, and is staged no more, when the GPU has
 * stopped: the message ends, and the peer need not come back for that. */
static void stage__gpu_stops_when_some_is_lost(void **state)
{
	struct rig *r = stage_rig(&(struct sim_cfg){.seed = 25, .own_slots = true}, 3, 4, 20000);

	r->still[0] = r->still[2] = true;
	stage_put(r, 0, 0, 60000);
	for (unsigned i = 0; i < STAGE_OPS; i++)
		stage_put(r, 1, i * STAGE_OP_B, STAGE_OP_B);
	assert_true(stage_worst_ns(r, 2) < 30 * MS);
	assert_int_equal(stage_ended(r, 0) + stage_ended(r, 1), 0);
	assert_int_equal(stage_held(r, 0), 0);
	assert_int_equal(rig_ep(r, 1, 0)->ops[0].state, OP_SENT);
	rig_gpu_stop(r, 1);
	rig_pass(r, 2 * SECOND); /* the time-out before a sample is 1 s */
	assert_int_equal(stage_ended(r, 0), 1);
	assert_int_equal(stage_ended(r, 1), STAGE_OPS);
	for (unsigned i = 8; i < r->nr_last[1]; i++)
		assert_int_equal(r->last[1][i].status, -EIO);
	/* It comes back to life, as long as its memory is there. */
	rig_gpu_go();
	rig_gpu_finish();
	rig_close(r);
}

/* Packets that a peer has asked for, and has no room for when they come. */
static void stage__asked_for_and_stopped(void **state)
{
	struct rig *r = stage_rig(
		&(struct sim_cfg){.seed = 26, .own_slots = true, .lossless = true}, 2, 2, 0);
	struct pkt_ep *e = rig_ep(r, 1, 0);
	const struct pkt_op *op = &e->ops[0];

	r->still[0] = true;
	for (unsigned i = 0; i < 8; i++)
		stage_put(r, 0, i * STAGE_OP_B, STAGE_OP_B);
	rig_pass(r, 2 * MS);
	for (unsigned i = 0; i < 120; i++)
		e->ask[e->asks.head++ % PKT_ASK_MAX] = (struct pkt_ask){op->mid, 0, 12};
	e->asks.pkts += 120 * 12;
	rig_pass(r, 30 * MS);
	assert_true(e->asks.head - e->asks.tail > 20);
	assert_int_equal(e->fetch.asked.stage.next - e->fetch.asked.stage.first, 1);
	for (unsigned i = 0; i < STAGE_OPS; i++)
		stage_put(r, 1, i * STAGE_OP_B, STAGE_OP_B);
	rig_pass(r, 10 * MS);
	assert_int_equal(stage_ended(r, 1), STAGE_OPS);
	assert_int_equal(e->fetch.asked.stage.next, e->fetch.asked.stage.first);
	r->still[0] = false;
	rig_comps(r, 1, 8 + STAGE_OPS, SECOND);
	all_ended_well(r, 1, 8 + STAGE_OPS);
	rig_done(r);
}

/* An endpoint that holds back has one chunk at a time, also while there are buffers, until one is
 * acknowledged. */
static void stage__holds_back_with_one_chunk(void **state)
{
	struct rig *r = stage_rig(&(struct sim_cfg){.seed = 28, .own_slots = true}, 1, 4, 20000);
	struct pkt_ep *e = rig_ep(r, 1, 0);

	r->still[0] = true;
	e->fetch.holds_back = true;
	stage_put(r, 0, 0, STAGE_OP_B);
	stage_put(r, 0, STAGE_OP_B, STAGE_OP_B);
	rig_pass(r, MS);
	assert_int_equal(stage_held(r, 0), 1);
	r->still[0] = false;
	rig_comps(r, 1, 2, 100 * MS);
	all_ended_well(r, 1, 2);
	assert_false(e->fetch.holds_back);
	rig_done(r);
}

/* A port reads a chunk when it has time, later than its peer is taken for stopped. */
static void stage__what_the_port_reads_stays(void **state)
{
	struct rig *r = stage_rig(
		&(struct sim_cfg){
			.seed = 27, .own_slots = true, .attach = true, .rate_bps = 10000000},
		1, 4, 0);
	struct pkt_ep *e = rig_ep(r, 1, 0);
	struct stage_msg others;

	stage_msg_init(&others);
	stage_put(r, 0, 0, 300000);
	for (unsigned i = 0; i < 25; i++) {
		rig_pass(r, MS);
		while (stage_fetch(e->link->stage[0], &others, (char *)src, 4096, 0, r->now_ns))
			;
	}
	assert_true(e->tx.refs > 0);
	assert_true(e->fetch.holds_back);
	assert_in_range(stage_held(r, 0), 1, 3);
	assert_true(rig_stat(r, 1, "stage_taken") > 0);
	stage_drop(e->link->stage[0], &others, others.next);
	rig_pass(r, MS);
	assert_in_range(stage_held(r, 0), 1, 3);
	rig_comps(r, 1, 1, 10 * SECOND);
	all_ended_well(r, 1, 1);
	assert_memory_equal(rig_mem(r, 0), src, 300000);
	rig_done(r);
}

/* On a port that loses nothing, what was sent needs no buffer. */
static void stage__stopped_peers_lose_nothing(void **state)
{
	stage_stop(stage_rig(&(struct sim_cfg){.seed = 24, .own_slots = true, .lossless = true}, 3,
			     4, 20000),
		   100000, &(struct sim_cfg){0});
}

/* ---- what ends a queue, what holds up a turn ---- */

/* A port that carries nothing any more ends its connections, whether it may lose packets or not. */
static void port__fault_is_seen(void **state)
{
	for (unsigned i = 0; i < 2; i++) {
		struct rig *r = peers_open(&(struct rig_cfg){.sim = {.lossless = i}});

		rig_pass(r, 10 * MS);
		no_faults(r);
		rig_set(r, &(struct sim_cfg){.fault = -EBADF});
		post(r, 0, 0, GX_OP_RECV, 1, 64);
		rig_pass(r, 10 * MS);
		assert_int_equal(atomic_load(&r->ep[0][0]->fault), -EIO);
		rig_set(r, &(struct sim_cfg){0});
		rig_close(r);
	}
}

/* However many control packets lie there, a turn takes a few bursts of them, and then data. */
static void port__control_packets_do_not_hold_up_data(void **state)
{
	struct rig *r = peers_open(&(struct rig_cfg){.sim = {.seed = 1}});
	uint64_t before;

	r->still[1] = true;
	for (unsigned i = 0; i < 500; i++)
		post(r, 0, 0, GX_OP_PUT, i, 64);
	rig_pass(r, 200000);
	before = rig_stat(r, 1, "rx_pkts");
	gx_core_turn(r->core[1], r->now_ns);
	assert_in_range(rig_stat(r, 1, "rx_pkts") - before, 64, 4 * 64);
	r->still[1] = false;
	rig_comps(r, 0, 500, SECOND);
	all_ended_well(r, 0, 500);
	rig_done(r);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(order__data_waits_for_its_open),
		rig_test(order__many_puts_to_a_slow_peer),
		rig_test(pool__stopped_client_leaves_buffers),
		rig_test(pool__stopped_clients_are_many),
		rig_test(pool__slow_client_has_its_own_pace),
		rig_test(pool__few_buffers_for_many),
		rig_test(pool__shares_are_alike),
		rig_test(away__own_pause_is_not_the_peers_silence),
		rig_test(away__both),
		rig_test(away__dead_peer_is_found_out),
		rig_test(away__little_goes_to_who_never_answered),
		rig_test(away__nothing_moves_after_a_forged_packet),
		rig_test(away__while_the_path_is_proven),
		rig_test(port__fault_is_seen),
		rig_test(port__control_packets_do_not_hold_up_data),
		rig_test(stage__stopped_peers_give_back),
		rig_test(stage__stopped_peers_with_credit),
		rig_test(stage__many_stopped_peers),
		rig_test(stage__stopped_peers_lose_nothing),
		rig_test(stage__holds_back_with_one_chunk),
		rig_test(stage__what_the_port_reads_stays),
		rig_test(stage__gpu_stops_when_some_is_lost),
		rig_test(stage__asked_for_and_stopped),
		rig_test(pool__hog_that_uses_a_little),
		rig_test(pool__silent_client_comes_back),
		rig_test(pool__lapsed_credit_comes_back),
		rig_test(pool__lapsed_credit_is_refunded),
		rig_test(pool__no_room_for_lapsed_credit),
		rig_test(pool__room_for_lapsed_credit),
		rig_test(pool__what_is_held_counts),
		rig_test(pool__first_in_line_is_served),
	};
	int ret = rig_run("sim_peers", tests, GX_ARRAY_SIZE(tests), argc, argv);

	free(src);
	free(dst);
	return ret;
}
