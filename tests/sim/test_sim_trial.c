/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes are tried before a connection is up (packet/trial.c): the cores of the rig turn while a second connection is
 * set up, by the real control threads, over a network that loses what it should.
 */
#include "sim/sim_rig.h"

#include "control/control.h"
#include "gx_internal/link.h"
#include "flow/flow_part.h"
#include "packet/trial.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUE(node) (1ull << (node)) /* of one core and one port: in the order of opening */
#define REAL_MS	    30000	     /* for what must come */

static void real_ms(void)
{
	nanosleep(&(struct timespec){.tv_nsec = MS}, NULL);
}

static struct rig *trial_rig(void)
{
	return rig_open(&(struct rig_cfg){.sim = {.path_payload_b = 1392},
					  .peer_timeout_ns = 100 * SECOND});
}

static struct gx_conn *second(struct rig *r, bool forced)
{
	struct gx_connect_opts opts = GX_INIT(opts);
	char net[32];
	const struct gx_port_name port = {.name = "sim", .args = net};
	struct gx_conn *c;

	snprintf(net, sizeof(net), "net=%u", sim_net_id(r->net));
	opts.ports = &port;
	opts.nr_ports = forced;
	opts.timeout_ns = 100 * SECOND;
	if (gx_connect(r->gx[0], r->addr, &opts, &c))
		fail_msg("connect: %s", gx_error());
	return c;
}

/* Until it is up or down, with the cores turning. */
static struct gx_conn_info settled(struct rig *r, struct gx_conn *c)
{
	struct gx_conn_info info = GX_INIT(info);

	for (unsigned i = 0; i < REAL_MS; i++) {
		assert_int_equal(gx_conn_info(c, &info), 0);
		if (info.state != GX_CONN_STATE_CONNECTING)
			return info;
		rig_pass(r, MS);
		real_ms();
	}
	fail_msg("it does not come up, nor end");
	return info;
}

/* Both ends of it close, and the rig. */
static void over(struct rig *r, struct gx_conn *c)
{
	gx_conn_close(c);
	pthread_mutex_lock(&r->lock);
	for (unsigned i = 1; i < r->nr_accepted; i++)
		gx_conn_close(r->accepted[i]);
	pthread_mutex_unlock(&r->lock);
	rig_close(r);
}

static void loses(struct rig *r, uint64_t queues)
{
	struct sim_cfg sim = r->cfg.sim;

	sim.dead = queues;
	rig_set(r, &sim);
}

static void trial__both_hear(void **state)
{
	struct rig *r = trial_rig();
	struct gx_conn *c = second(r, true);
	struct gx_conn_info info = settled(r, c);
	const struct pkt_trial *t = &pkt_of(c->ep[0])->trial;

	assert_int_equal(info.state, GX_CONN_STATE_UP);
	assert_string_equal(info.link, "packet");
	assert_true(c->trying);
	assert_int_equal(atomic_load(&t->heard), 1 << GX_HALF_CTL | 1 << GX_HALF_DATA);
	rig_pass(r, 100 * MS);
	assert_false(t->on);
	assert_int_equal(rig_stat(r, 0, "tx_resent"), 0);
	over(r, c);
}

static void trial__nothing_comes(void **state)
{
	struct rig *r = trial_rig();
	struct gx_conn_info info;
	struct gx_conn *c;

	loses(r, QUEUE(0) | QUEUE(1));
	c = second(r, true);
	info = settled(r, c);
	assert_int_equal(info.state, GX_CONN_STATE_DOWN);
	assert_int_equal(info.err, -EHOSTUNREACH);
	assert_int_equal(info.reason, GX_REASON_UNREACHABLE);
	assert_non_null(strstr(info.text, "no packet of the peer comes over port sim"));
	assert_non_null(strstr(info.text, "on 1 of 1 lanes"));
	over(r, c);
}

/* It goes on by the kernel's TCP: the same connection, with other lanes. */
static void trial__goes_on_by_tcp(void **state)
{
	struct rig *r = trial_rig();
	struct gx_conn_info info;
	struct gx_conn *c;

	loses(r, QUEUE(0) | QUEUE(1));
	c = second(r, false);
	info = settled(r, c);
	assert_int_equal(info.state, GX_CONN_STATE_UP);
	assert_string_equal(info.link, "tcp");
	assert_int_equal(info.path_reason, GX_REASON_LAST_RESORT);
	assert_non_null(
		strstr(info.why, "link tcp in place of another: no packet of the peer comes"));
	over(r, c);
}

/* Of 40 after which the other end says that its packets have left. */
static bool sent_20(const struct gx_conn *c)
{
	return c->trying && c->nr_lanes && atomic_load(&pkt_of(c->ep[0])->trial.sent) >= 20;
}

/* A peer that stands still says nothing by either way: no way is dead. It goes on later. */
static void trial__slow_is_not_dead(void **state)
{
	struct rig *r = trial_rig();
	struct gx_conn_info info = GX_INIT(info);
	struct gx_conn *c;

	loses(r, QUEUE(1)); /* what the server sends: as if its packets came late */
	c = second(r, true);
	for (unsigned i = 0; i < REAL_MS && !sent_20(c); i++) {
		rig_pass(r, MS);
		real_ms();
	}
	assert_int_equal(gx_conn_info(c, &info), 0);
	assert_int_equal(info.state, GX_CONN_STATE_CONNECTING);
	loses(r, 0);
	info = settled(r, c);
	assert_int_equal(info.state, GX_CONN_STATE_UP);
	over(r, c);
}

/* A program that turns its cores itself waits for the connection: it comes up untried. */
static void trial__nobody_turns(void **state)
{
	uint64_t least_ns = UINT64_MAX;

	/* Its thread sleeps, so it does not wait for as long as for one that computes. A busy machine may be
	 * late, but not each time. */
	for (unsigned i = 0; i < 5 && least_ns > SECOND; i++) {
		struct rig *r = trial_rig();
		uint64_t began_ns;
		struct gx_conn *c;

		loses(r, QUEUE(0) | QUEUE(1));
		began_ns = gx_now();
		c = second(r, true);
		assert_int_equal(gx_conn_wait(c, 60 * SECOND), 0);
		least_ns = GX_MIN(least_ns, gx_now() - began_ns);
		assert_int_equal(c->state, GX_CONN_STATE_UP);
		assert_string_equal(c->link->name, "packet");
		over(r, c);
	}
	assert_true(least_ns < SECOND);
}

/* Words of a liar. */
static void trial__words(void **state)
{
	struct rig *r = trial_rig();
	struct gx_conn *c = r->conn[0][0];
	struct gx_link_want want = {0};
	uint8_t b[4] = {2};
	void *kept = c->link_state;

	c->link_state = NULL;
	want.blob = b;
	want.blob_b = 1;
	assert_int_equal(trial_open(c, &want), -EPROTO);
	trial_close(c);
	b[0] = 1;
	want.blob_b = 2;
	assert_int_equal(trial_open(c, &want), -EPROTO);
	trial_close(c);
	want.blob_b = 0;
	assert_int_equal(trial_open(c, &want), 0);
	assert_false(trial_tries(c));
	assert_int_equal(trial_hear(c, b, 2), -EPROTO);
	b[0] = 2;
	assert_int_equal(trial_hear(c, b, 1), -EPROTO);
	assert_int_equal(trial_hear(c, b, 0), 0);
	assert_false(trial_tries(c));
	assert_int_equal(trial_take(c, 0), -EPROTO);
	assert_int_equal(trial_take(c, TRIAL_READY + 1), -EPROTO);
	assert_true(r->conn[1][0]->server);
	assert_int_equal(trial_take(r->conn[1][0], TRIAL_READY),
			 -EPROTO); /* the server's own word */
	trial_close(c);
	c->link_state = kept;
	rig_close(r);
}

/* This end has said that it tries. Its core stops before the peer's word comes, which is no lie. */
static void trial__core_stops_between(void **state)
{
	struct rig *r = trial_rig();
	struct gx_conn *c = r->conn[0][0];
	const struct gx_link_want want = {0};
	struct gx_core *core = c->ep[0]->core;
	void *kept = c->link_state;
	uintptr_t turner = atomic_load(&core->turner);
	uint8_t b[1];

	assert_int_equal(trial_open(c, &want), 0);
	c->peer.offer[GX_LINK_PACKET].len = 1;
	assert_int_equal(trial_say(c, b), 1);
	atomic_store(&core->turner, CORE_NOBODY);
	assert_int_equal(trial_hear(c, b, 1), 0);
	assert_true(trial_tries(c));
	assert_int_equal(trial_say(c, b), 0); /* now it would not */
	assert_int_equal(trial_hear(c, b, 1), -EPROTO);
	atomic_store(&core->turner, turner);
	trial_close(c);
	c->link_state = kept;
	rig_close(r);
}

static void way_fake(struct gx_port_queue *q, uint32_t peer, struct gx_port_way *way)
{
	*way = (struct gx_port_way){
		.own = "10.0.0.1", .peer = "10.0.0.2", .own_port = 7, .peer_port = 9};
}

/* On the control thread, which ends a connection that has a fault at its tick. */
struct fault_seen {
	struct gx_conn *c;
	bool told[2], late;
	char text[2][256]; /* of a peer that refuses, of silence */
};

static int fault_run(void *arg)
{
	struct fault_seen *s = arg;
	struct gx_conn *c = s->c;
	struct pkt_ep *e = pkt_of(c->ep[0]);
	const struct gx_port_ops *kept = e->link->q->ops;
	struct gx_port_ops ops = *kept;

	ops.peer_way = way_fake;
	e->link->q->ops = &ops;
	for (unsigned silent = 0; silent < 2; silent++) {
		int err = silent ? -ETIMEDOUT : -EHOSTUNREACH;

		atomic_store(&c->ep[0]->fault, err);
		s->told[silent] = trial_fault(c, err, s->text[silent], sizeof(s->text[0]));
	}
	atomic_store(&c->ep[0]->fault, 0);
	s->late = trial_fault(c, -ETIMEDOUT, (char[256]){0}, 256);
	e->link->q->ops = kept;
	return 0;
}

static void trial__fault_says_which(void **state)
{
	struct rig *r = trial_rig();
	struct fault_seen s = {.c = r->conn[0][0]};

	gx_uring_run_wait(r->gx[0]->uring, fault_run, &s);
	for (unsigned silent = 0; silent < 2; silent++) {
		assert_true(s.told[silent]);
		assert_true(silent == (strstr(s.text[silent], "was not heard") != NULL));
		assert_true(silent != (strstr(s.text[silent], "MTU too small") != NULL));
		assert_non_null(strstr(s.text[silent], "UDP ports"));
	}
	assert_false(s.late);
	rig_close(r);
}

/* A peer that stands still, and a connection that went down before its core lets go. */
static void trial__waits_and_holds(void **state)
{
	struct pkt_ep *e = calloc(1, sizeof(*e));
	struct gx_conn *c = calloc(1, sizeof(*c));

	e->flow = calloc(1, sizeof(*e->flow));
	e->ep.conn = c;
	e->trial.on = true;
	e->flow->half[0].nr_out = 1024;
	assert_false(trial_waits(e));
	e->flow->half[0].nr_out = 1025;
	assert_true(trial_waits(e));
	c->state = GX_CONN_STATE_CONNECTING;
	assert_true(trial_holds(e));
	c->state = GX_CONN_STATE_DOWN;
	assert_true(trial_holds(e) && e->trial.on);
	c->state = GX_CONN_STATE_UP;
	assert_false(trial_holds(e) || e->trial.on || trial_waits(e));
	free(e->flow);
	free(e);
	free(c);
}

/* The second set-up finds no server: nothing of the first one's lanes is left. */
static void trial__nothing_of_the_first(void **state)
{
	struct rig *r = trial_rig();
	struct gx_conn *c;
	unsigned i = 0;

	loses(r, QUEUE(0) | QUEUE(1));
	c = second(r, false);
	for (; i < REAL_MS && !sent_20(c); i++) {
		rig_pass(r, MS);
		real_ms();
	}
	ctl_listen_stop(r->gx[1]);
	for (; i < REAL_MS && atomic_load(&c->state) == GX_CONN_STATE_CONNECTING; i++) {
		rig_pass(r, MS);
		real_ms();
	}
	assert_int_equal(atomic_load(&c->state), GX_CONN_STATE_DOWN);
	assert_int_equal(c->reason, GX_REASON_NO_SERVER);
	assert_int_equal(c->nr_lanes, 0);
	assert_null(c->ep[0]);
	over(r, c);
}

int main(int argc, char *argv[])
{
	static const struct CMUnitTest tests[] = {
		rig_test(trial__both_hear),	     rig_test(trial__nothing_comes),
		rig_test(trial__goes_on_by_tcp),     rig_test(trial__slow_is_not_dead),
		rig_test(trial__nobody_turns),	     rig_test(trial__words),
		rig_test(trial__core_stops_between), rig_test(trial__fault_says_which),
		rig_test(trial__waits_and_holds),    rig_test(trial__nothing_of_the_first),
	};

	return rig_run("sim_trial", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
