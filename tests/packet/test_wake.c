/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Endpoints that have nothing to do, over a simulated network: no turn looks at them, they have
 * hardly any memory, and whatever they wait for finds them in time.
 */
#include "sim/sim_rig.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MANY	   40
#define TICK	   MS
#define WEIGHT_B   (64u << 10) /* of an endpoint before it is used: at most */
#define TIMEOUT_MS 80	       /* milliseconds */

static uint8_t buf[2][RIG_CONNS][64];

static struct rig *wake_open(unsigned nr_conns, uint64_t peer_timeout_ns)
{
	return rig_open(&(struct rig_cfg){.sim = {.seed = 3},
					  .nr_conns = nr_conns,
					  .mem_b = 1 << 20,
					  .peer_timeout_ns = peer_timeout_ns});
}

static struct link_pkt *link_of(struct rig *r, int side)
{
	return pkt_link(r->core[side], 0);
}

static void post_at(struct rig *r, int side, unsigned conn, const struct gx_op *op)
{
	struct gx_op full = *op;

	full.addr = buf[side][conn];
	full.user = conn;
	assert_int_equal(common_post(r->ep[side][conn], &full, 1), 1);
}

/* Every endpoint is in one list, where it says that it is, and the heap is one. */
static void check_lists(struct rig *r, int side)
{
	struct link_pkt *l = link_of(r, side);

	assert_int_equal(l->nr_hot + l->nr_cold, l->nr_live);
	for (unsigned i = 0; i < l->nr_live; i++) {
		struct pkt_ep *e = l->live[i];

		assert_int_equal(e->wake.live_at, i);
		assert_true((e->wake.hot_at == PKT_NONE) != (e->wake.cold_at == PKT_NONE));
		assert_ptr_equal(e->wake.hot_at == PKT_NONE ? l->cold[e->wake.cold_at].ep
							    : l->hot[e->wake.hot_at],
				 e);
	}
	for (unsigned i = 1; i < l->nr_cold; i++)
		assert_true(l->cold[(i - 1) / 2].due_ns <= l->cold[i].due_ns);
}

static void check_all_cold(struct rig *r)
{
	for (int side = 0; side < 2; side++) {
		check_lists(r, side);
		assert_int_equal(link_of(r, side)->nr_hot, 0);
	}
}

static void turn__looks_at_none_that_is_idle(void **state)
{
	struct rig *r = wake_open(MANY, 0);

	rig_pass(r, 5 * TICK);
	check_all_cold(r);
	for (unsigned i = 0; i < MANY; i += 13) {
		post_at(r, 0, i,
			&(struct gx_op){.kind = GX_OP_PUT, .len = 64, .token = r->peer[0].token});
		assert_int_equal(link_of(r, 0)->nr_hot, 1);
		rig_comps(r, 0, 1, TICK);
		check_lists(r, 0);
		check_lists(r, 1);
		assert_int_equal(link_of(r, 0)->nr_hot, 1);
		assert_int_equal(link_of(r, 1)->nr_hot, 1);
		rig_forget(r);
		rig_pass(r, 4 * TICK);
		check_all_cold(r);
	}
	rig_done(r);
}

/* A receive is posted at each: they wait, and nothing is under way. */
static void turn__looks_at_none_that_waits_to_receive(void **state)
{
	struct rig *r = wake_open(MANY, 0);

	for (unsigned i = 0; i < MANY; i++)
		post_at(r, 1, i, &(struct gx_op){.kind = GX_OP_RECV, .len = 64, .tag = i});
	rig_pass(r, 5 * TICK);
	check_all_cold(r);
	for (unsigned i = 0; i < MANY; i++)
		post_at(r, 0, i, &(struct gx_op){.kind = GX_OP_SEND, .len = 64, .tag = i});
	rig_comps(r, 1, MANY, 5 * TICK);
	rig_comps(r, 0, MANY, 5 * TICK);
	rig_pass(r, 5 * TICK);
	check_all_cold(r);
	rig_done(r);
}

/* An ACK is not due before its delay: the endpoint does not sleep over it. */
static void ack__of_one_that_was_cold(void **state)
{
	struct rig *r = wake_open(2, 0);
	uint64_t begin;

	rig_pass(r, 5 * TICK);
	check_all_cold(r);
	begin = r->now_ns;
	post_at(r, 0, 1, &(struct gx_op){.kind = GX_OP_PUT, .len = 64, .token = r->peer[0].token});
	rig_comps(r, 0, 1, 5 * TICK);
	assert_true(r->now_ns - begin < 2 * r->cfg.sim.delay_ns + 20000);
	rig_done(r);
}

/* A packet to a cold endpoint is lost: the sender is hot until it was acknowledged. */
static void loss__is_made_up_for(void **state)
{
	struct rig *r = wake_open(MANY, 0);

	rig_pass(r, 5 * TICK);
	rig_set(r, &(struct sim_cfg){.loss_ppm = 1000000});
	post_at(r, 0, 7, &(struct gx_op){.kind = GX_OP_PUT, .len = 64, .token = r->peer[0].token});
	rig_pass(r, 5 * TICK);
	assert_int_equal(link_of(r, 0)->nr_hot, 1);
	rig_set(r, &(struct sim_cfg){0});
	rig_comps(r, 0, 1, 100 * TICK);
	rig_done(r);
}

/* Each at its own time, in an order that is none of the endpoints'. */
static void deadline__of_cold_ones(void **state)
{
	struct rig *r = wake_open(MANY, 0);
	uint64_t at[MANY], begin;
	bool seen[MANY] = {false};
	unsigned n = 0;

	rig_pass(r, 5 * TICK);
	begin = r->now_ns;
	for (unsigned i = 0; i < MANY; i++) {
		at[i] = begin + 10 * TICK + i * 7919 % MANY * 3 * TICK;
		post_at(r, 1, i,
			&(struct gx_op){
				.kind = GX_OP_RECV, .len = 64, .tag = 1, .deadline_ns = at[i]});
	}
	rig_pass(r, 5 * TICK);
	check_all_cold(r);
	while (r->now_ns < begin + 200 * TICK) {
		rig_turn(r);
		r->now_ns += TICK / 10;
		for (; n < r->nr_last[1]; n++) {
			const struct gx_comp *c = &r->last[1][n];

			assert_int_equal(c->status, -ETIMEDOUT);
			assert_false(seen[c->user]);
			seen[c->user] = true;
			assert_true(r->now_ns >= at[c->user]);
			assert_true(r->now_ns < at[c->user] + 2 * TICK);
		}
	}
	assert_int_equal(n, MANY);
	rig_done(r);
}

/* Woken in an order that is not that of their timers. */
static void wake__any_of_the_cold(void **state)
{
	struct rig *r = wake_open(MANY, 0);

	for (unsigned round = 0; round < 8; round++) {
		for (unsigned i = 0; i < MANY; i++)
			post_at(r, 1, i,
				&(struct gx_op){.kind = GX_OP_RECV,
						.len = 64,
						.tag = 1,
						.deadline_ns = r->now_ns + 5 * TICK +
							       rig_random(r) % (50 * TICK)});
		rig_pass(r, 4 * TICK);
		check_all_cold(r);
		while (link_of(r, 1)->nr_cold) {
			unsigned i = rig_random(r) % MANY;

			common_cancel(r->ep[1][i], i);
			assert_int_equal(rig_ep(r, 1, i)->wake.cold_at, PKT_NONE);
			check_lists(r, 1);
		}
		rig_pass(r, 100 * TICK);
		rig_forget(r);
	}
	rig_done(r);
}

static bool is_at_fault(struct rig *r, unsigned conn)
{
	return atomic_load(&r->ep[1][conn]->fault) != 0;
}

/* Those that wait ask whether their peer lives, and find that it does, or does not. */
static void alive__is_asked_by_cold_ones(void **state)
{
	struct rig *r = wake_open(3, TIMEOUT_MS * MS);
	uint64_t probes, silent;

	post_at(r, 1, 2, &(struct gx_op){.kind = GX_OP_RECV, .len = 64, .tag = 1});
	rig_pass(r, 3 * TICK);
	check_all_cold(r);
	probes = rig_stat(r, 1, "probe_tx");
	rig_pass(r, 10 * TIMEOUT_MS * MS);
	probes = rig_stat(r, 1, "probe_tx") - probes;
	assert_false(is_at_fault(r, 2));
	if (probes < 60 || probes > 85) /* eight a time-out, less what an answer takes */
		fail_msg("%u probes", (unsigned)probes);
	rig_set(r, &(struct sim_cfg){.loss_ppm = 1000000});
	silent = r->now_ns;
	while (!is_at_fault(r, 2) && r->now_ns < silent + 2 * TIMEOUT_MS * MS)
		rig_pass(r, TICK);
	assert_int_equal(atomic_load(&r->ep[1][2]->fault), -ETIMEDOUT);
	assert_true(r->now_ns - silent > (TIMEOUT_MS - TIMEOUT_MS / 4) * MS);
	assert_true(r->now_ns - silent < (TIMEOUT_MS + 3) * MS);
	assert_false(is_at_fault(r, 0));
	assert_false(is_at_fault(r, 1));
	rig_close(r);
}

/* Both cores are not run for several time-outs, while their endpoints are cold. Nobody was asked
 * meanwhile, so nobody is at fault; who does not answer then is. */
static void alive__of_a_cold_one_that_was_not_run(void **state)
{
	struct rig *r = wake_open(2, TIMEOUT_MS * MS);
	uint64_t silent;

	post_at(r, 1, 1, &(struct gx_op){.kind = GX_OP_RECV, .len = 64, .tag = 1});
	rig_pass(r, 3 * TICK);
	for (unsigned i = 0; i < 5; i++) {
		r->now_ns += 3 * TIMEOUT_MS * MS + i * 777777;
		rig_pass(r, 5 * TICK);
		assert_false(is_at_fault(r, 1));
	}
	rig_set(r, &(struct sim_cfg){.loss_ppm = 1000000});
	r->now_ns += 3 * TIMEOUT_MS * MS;
	silent = r->now_ns;
	rig_pass(r, TIMEOUT_MS * MS / 16);
	assert_false(is_at_fault(r, 1));
	while (!is_at_fault(r, 1) && r->now_ns < silent + 2 * TIMEOUT_MS * MS)
		rig_pass(r, TICK);
	assert_int_equal(atomic_load(&r->ep[1][1]->fault), -ETIMEDOUT);
	assert_true(r->now_ns - silent < (TIMEOUT_MS + 5) * MS);
	rig_close(r);
}

/* As the verbs link has them: another link carries their puts and gets. */
static struct rig *fallback_open(void)
{
	struct rig *r = wake_open(2, TIMEOUT_MS * MS);

	for (int side = 0; side < 2; side++)
		for (unsigned i = 0; i < 2; i++) {
			rig_ep(r, side, i)->is_fallback = true;
			link_of(r, side)->nr_fallback++;
		}
	return r;
}

static uint64_t put_ns(struct rig *r)
{
	uint64_t begin = r->now_ns;

	post_at(r, 0, 1, &(struct gx_op){.kind = GX_OP_PUT, .len = 64, .token = r->peer[0].token});
	assert_int_equal(link_of(r, 0)->look_ns, 0);
	rig_comps(r, 0, 1, 5 * TICK);
	rig_forget(r);
	return r->now_ns - begin;
}

/* What the first packet waits for a look at most, after so long without one. */
static uint64_t look_ns(uint64_t quiet_ns)
{
	return GX_MIN(GX_MAX(quiet_ns / 64, (uint64_t)PKT_LOOK_NS), (uint64_t)PKT_RARE_NS);
}

/* The first packet after a quiet time waits for a part of it at most, and those behind it do not. An end
 * that has posted something waits for nothing. */
static void port__is_looked_at_now_and_then(void **state)
{
	struct rig *r = fallback_open();
	uint64_t way_ns = 2 * r->cfg.sim.delay_ns + 20000;

	for (unsigned k = 0; k < 50; k++) {
		uint64_t quiet_ns = (2 + k % 10 * 4) * TICK + k * 777;

		rig_pass(r, quiet_ns);
		assert_true(link_of(r, 1)->look_ns);
		assert_true(put_ns(r) < way_ns + look_ns(quiet_ns + way_ns) + 1000);
		assert_int_equal(link_of(r, 1)->look_ns, 0);
		assert_true(put_ns(r) < way_ns);
	}
	rig_pass(r, 5 * TICK);
	post_at(r, 1, 0, &(struct gx_op){.kind = GX_OP_RECV, .len = 64, .tag = 1});
	rig_pass(r, 5 * TICK);
	assert_int_equal(link_of(r, 1)->look_ns, 0);
	assert_true(put_ns(r) < way_ns);
	rig_pass(r, 10 * TIMEOUT_MS * MS);
	assert_false(is_at_fault(r, 0));
	rig_close(r);
}

/* Each look at a port that is quiet may be system calls. */
static void port__is_left_alone(void **state)
{
	struct rig *r = fallback_open();
	uint64_t next_ns;

	rig_pass(r, 100 * TICK);
	next_ns = link_of(r, 1)->look_ns;
	assert_true(next_ns > r->now_ns);
	rig_pass(r, next_ns - r->now_ns + 2000);
	assert_true(link_of(r, 1)->look_ns >= next_ns + PKT_RARE_NS);
	assert_true(link_of(r, 1)->look_ns <= next_ns + PKT_RARE_NS + 2000);
	rig_done(r);
}

/* The program's clock was ahead by a second at the last look. */
static void port__when_time_goes_back(void **state)
{
	struct rig *r = fallback_open();

	rig_pass(r, 5 * TICK);
	assert_true(link_of(r, 1)->look_ns);
	link_of(r, 1)->look_ns += 1000 * MS;
	assert_true(put_ns(r) < 2 * r->cfg.sim.delay_ns + 20000 + look_ns(5 * TICK) + 1000);
	rig_done(r);
}

/* Ended while cold: nothing is left in a list. */
static void close__of_a_cold_one(void **state)
{
	struct rig *r = wake_open(MANY, 0);

	for (unsigned i = 0; i < MANY; i += 3)
		post_at(r, 0, i, &(struct gx_op){.kind = GX_OP_RECV, .len = 64, .tag = 1});
	rig_pass(r, 5 * TICK);
	check_all_cold(r);
	for (unsigned i = 0; i < MANY; i++)
		r->ep[0][i]->ops->ep_fail(r->ep[0][i], -ECANCELED);
	assert_int_equal(link_of(r, 0)->nr_live, 0);
	assert_int_equal(link_of(r, 0)->nr_cold, 0);
	assert_int_equal(link_of(r, 0)->nr_hot, 0);
	rig_close(r);
}

static size_t resident_b(const void *at, size_t len)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)at & ~(page - 1);
	size_t n = ((uintptr_t)at + len - from + page - 1) / page, sum = 0;
	unsigned char vec[1024];

	assert_true(n <= sizeof(vec));
	assert_int_equal(mincore((void *)from, n * page, vec), 0);
	for (size_t i = 0; i < n; i++)
		sum += vec[i] & 1;
	return sum * page;
}

/* What the packet link has of an endpoint; what its flow has, test_flow weighs. */
static size_t ep_weight_b(const struct pkt_ep *e)
{
	size_t words_b = GX_WIRE_ACTIVE * e->words_max * sizeof(uint64_t);

	return resident_b(e, e->alloc_b) + resident_b(e->tx.words, words_b) +
	       resident_b(e->rx.words, words_b) +
	       resident_b(e->tx.resend, (e->tx.resend_mask + 1) * sizeof(*e->tx.resend));
}

static void weight__before_use(void **state)
{
	struct rig *r = wake_open(4, 0);

	rig_pass(r, 5 * TICK);
	for (int side = 0; side < 2; side++)
		for (unsigned i = 0; i < 4; i++)
			assert_in_range(ep_weight_b(rig_ep(r, side, i)), 1, WEIGHT_B / 2);
	post_at(r, 0, 0, &(struct gx_op){.kind = GX_OP_PUT, .len = 64, .token = r->peer[0].token});
	rig_comps(r, 0, 1, 5 * TICK);
	assert_in_range(ep_weight_b(rig_ep(r, 0, 0)), 1, WEIGHT_B);
	rig_done(r);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(turn__looks_at_none_that_is_idle),
		rig_test(turn__looks_at_none_that_waits_to_receive),
		rig_test(ack__of_one_that_was_cold),
		rig_test(loss__is_made_up_for),
		rig_test(deadline__of_cold_ones),
		rig_test(wake__any_of_the_cold),
		rig_test(alive__is_asked_by_cold_ones),
		rig_test(alive__of_a_cold_one_that_was_not_run),
		rig_test(port__is_looked_at_now_and_then),
		rig_test(port__is_left_alone),
		rig_test(port__when_time_goes_back),
		rig_test(close__of_a_cold_one),
		rig_test(weight__before_use),
	};

	return rig_run("wake", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
