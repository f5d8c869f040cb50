/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of states, each against a list of the changes that the sources make.
 */
#include "control/ctl.h"
#include "packet/pkt.h"
#include "packet/abort.h"
#include "packet/in.h"
#include "packet/match.h"
#include "packet/op.h"
#include "packet/rxtx.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define STATES_MAX 16

struct change {
	unsigned from, to;
	const char *by; /* for the reader */
};

struct machine {
	bool (*may_go)(unsigned from, unsigned to);
	const struct change *changes;
	unsigned nr_changes;
	unsigned nr_states;
	unsigned first, last; /* where everything begins and ends */
};

static bool is_listed(const struct machine *m, unsigned from, unsigned to)
{
	for (unsigned i = 0; i < m->nr_changes; i++)
		if (m->changes[i].from == from && m->changes[i].to == to)
			return true;
	return false;
}

/* Bits of the states that changes lead to, from @from on; with it, even if none leads back. */
static uint32_t reach(const struct machine *m, unsigned from)
{
	uint32_t seen = 1u << from, before;

	do {
		before = seen;
		for (unsigned s = 0; s < m->nr_states; s++)
			for (unsigned to = 0; seen >> s & 1 && to < m->nr_states; to++)
				seen |= (uint32_t)m->may_go(s, to) << to;
	} while (seen != before);
	return seen;
}

/* The table has what the list has and nothing else; no state is out of reach, or without a way to
 * the end. */
static void check_machine(const struct machine *m)
{
	assert_true(m->nr_states <= STATES_MAX);
	for (unsigned from = 0; from < m->nr_states; from++)
		for (unsigned to = 0; to < m->nr_states; to++)
			if (m->may_go(from, to) != is_listed(m, from, to))
				fail_msg("%u to %u: %s", from, to,
					 is_listed(m, from, to) ? "not in the table"
								: "in the table only");
	assert_int_equal(reach(m, m->first), (1u << m->nr_states) - 1);
	for (unsigned s = 0; s < m->nr_states; s++)
		assert_true(reach(m, s) >> m->last & 1);
}

/* ---- messages that come in ---- */

static bool in_may(unsigned from, unsigned to)
{
	return in_may_go(from, to);
}

static const struct change in_changes[] = {
	{IN_FREE, IN_ACTIVE, "rx_open"},
	{IN_FREE, IN_EARLY, "in_cancel"},
	{IN_ACTIVE, IN_LANDED, "in_landed"},
	{IN_ACTIVE, IN_REFUSED, "in_refuse"},
	{IN_ACTIVE, IN_DRAIN, "in_cancel"},
	{IN_ACTIVE, IN_FREE, "rx_open, of one that replaces what has landed"},
	{IN_EARLY, IN_FREE, "open_early"},
	{IN_REFUSED, IN_DRAIN, "in_cancel"},
	{IN_DRAIN, IN_FREE, "in_cancel, in_drained"},
	{IN_LANDED, IN_FREE, "in_deliver"},
};

static void in_may_go__as_listed(void **state)
{
	check_machine(&(struct machine){.may_go = in_may,
					.changes = in_changes,
					.nr_changes = GX_ARRAY_SIZE(in_changes),
					.nr_states = IN_LANDED + 1,
					.first = IN_FREE,
					.last = IN_FREE});
}

static void in_goto__goes(void **state)
{
	struct in_msg m = {.mid = 5};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(in_changes); i++) {
		m.state = (uint8_t)in_changes[i].from;
		in_goto(&m, in_changes[i].to);
		assert_int_equal(m.state, in_changes[i].to);
	}
	assert_int_equal(m.mid, 5);
}

/* ---- operations ---- */

static bool op_may(unsigned from, unsigned to)
{
	return op_may_go(from, to);
}

static const struct change op_changes[] = {
	{OP_FREE, OP_QUEUED, "op_alloc"},
	{OP_QUEUED, OP_SENDING, "op_start"},
	{OP_QUEUED, OP_SENT, "op_start, of one that goes in its OPEN"},
	{OP_QUEUED, OP_POSTED, "match_recv, post_get"},
	{OP_AGAIN, OP_SENDING, "op_start"},
	{OP_AGAIN, OP_AGAIN, "op_withdraw, by ops_again"},
	{OP_SENDING, OP_SENT, "tx_data"},
	{OP_SENDING, OP_AGAIN, "op_withdraw"},
	{OP_SENT, OP_AGAIN, "op_withdraw"},
	{OP_AGAIN, OP_DOOMED, "abort_op"},
	{OP_SENDING, OP_DOOMED, "abort_op"},
	{OP_SENT, OP_DOOMED, "abort_op"},
	{OP_POSTED, OP_DOOMED, "abort_op"},
	{OP_AGAIN, OP_ENDED, "op_done"},
	{OP_SENDING, OP_ENDED, "op_done"},
	{OP_SENT, OP_ENDED, "op_done"},
	{OP_DOOMED, OP_ENDED, "op_done"},
	{OP_QUEUED, OP_FREE, "abort_op, match_bind, match_unserve, pkt_post"},
	{OP_AGAIN, OP_FREE, "op_done"},
	{OP_SENDING, OP_FREE, "op_done"},
	{OP_SENT, OP_FREE, "op_done"},
	{OP_POSTED, OP_FREE, "in_op_end, rx_fail"},
	{OP_DOOMED, OP_FREE, "op_done, in_op_end, rx_give_up, open_slot"},
	{OP_ENDED, OP_FREE, "tx_unref"},
};

static void op_may_go__as_listed(void **state)
{
	check_machine(&(struct machine){.may_go = op_may,
					.changes = op_changes,
					.nr_changes = GX_ARRAY_SIZE(op_changes),
					.nr_states = OP_ENDED + 1,
					.first = OP_FREE,
					.last = OP_FREE});
}

static void op_goto__goes(void **state)
{
	struct pkt_op op = {.mid = 5};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(op_changes); i++) {
		op.state = (uint8_t)op_changes[i].from;
		op_goto(&op, op_changes[i].to);
		assert_int_equal(op.state, op_changes[i].to);
	}
	assert_int_equal(op.mid, 5);
}

static void op_is_live__until_it_ends(void **state)
{
	static const bool live[] = {
		[OP_QUEUED] = true, [OP_AGAIN] = true,	 [OP_SENDING] = true, [OP_SENT] = true,
		[OP_POSTED] = true, [OP_DOOMED] = false, [OP_ENDED] = false,
	};

	for (unsigned s = 0; s < GX_ARRAY_SIZE(live); s++) {
		struct pkt_op op = {.state = (uint8_t)s};

		assert_int_equal(op_is_live(&op), live[s]);
		assert_int_equal(op_may_send(&op), s == OP_SENDING || s == OP_SENT);
	}
}

/* ---- bootstrap connections ---- */

static bool ctl_may(unsigned from, unsigned to)
{
	return ctl_may_go(from, to);
}

static const struct change ctl_changes[] = {
	{CTL_CONNECT, CTL_HELLO, "conn_begin, without a key"},
	{CTL_CONNECT, CTL_TLS, "conn_begin with a key; ctl_frame_accepted"},
	{CTL_TLS, CTL_HELLO, "client_let_in, ctl_first_answer"},
	{CTL_HELLO, CTL_PROVE, "client_hello_take"},
	{CTL_HELLO, CTL_LANES, "server_hello_take; connect_send, by client_hello_take"},
	{CTL_PROVE, CTL_LANES, "connect_send, by ctl_hello_shown"},
	{CTL_LANES, CTL_FDS, "accept_send, ctl_hello_accept_take"},
	{CTL_LANES, CTL_LINKED, "lanes_connect, by ctl_hello_accept_take"},
	{CTL_FDS, CTL_LINKED, "lanes_connect, by accept_send and ctl_hello_passed"},
	{CTL_LINKED, CTL_UP, "ctl_hello_up"},
	{CTL_TLS, CTL_LINGER, "conn_linger"},
	{CTL_HELLO, CTL_LINGER, "conn_linger"},
	{CTL_PROVE, CTL_LINGER, "conn_linger"},
	{CTL_LANES, CTL_LINGER, "conn_linger"},
	{CTL_FDS, CTL_LINGER, "conn_linger"},
	{CTL_LINKED, CTL_LINGER, "conn_linger"},
	{CTL_UP, CTL_LINGER, "conn_linger"},
	{CTL_CONNECT, CTL_CLOSING, "ctl_conn_close"},
	{CTL_TLS, CTL_CLOSING, "ctl_conn_close"},
	{CTL_HELLO, CTL_CLOSING, "ctl_conn_close"},
	{CTL_PROVE, CTL_CLOSING, "ctl_conn_close"},
	{CTL_LANES, CTL_CLOSING, "ctl_conn_close"},
	{CTL_FDS, CTL_CLOSING, "ctl_conn_close"},
	{CTL_LINKED, CTL_CLOSING, "ctl_conn_close"},
	{CTL_UP, CTL_CLOSING, "ctl_conn_close"},
	{CTL_LINGER, CTL_CLOSING, "ctl_conn_close"},
	{CTL_CLOSING, CTL_CLOSED, "ctl_conn_closed_check"},
};

static void ctl_may_go__as_listed(void **state)
{
	check_machine(&(struct machine){.may_go = ctl_may,
					.changes = ctl_changes,
					.nr_changes = GX_ARRAY_SIZE(ctl_changes),
					.nr_states = CTL_CLOSED + 1,
					.first = CTL_CONNECT,
					.last = CTL_CLOSED});
}

static void ctl_conn_goto__goes(void **state)
{
	struct ctl_conn cc = {.fd = 5};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(ctl_changes); i++) {
		cc.state = ctl_changes[i].from;
		ctl_conn_goto(&cc, ctl_changes[i].to);
		assert_int_equal(cc.state, ctl_changes[i].to);
	}
	assert_int_equal(cc.fd, 5);
}

/* ---- a change that a table lacks ---- */

#ifndef NDEBUG
static void in_lands_twice(void)
{
	struct in_msg m = {.state = IN_LANDED};

	in_goto(&m, IN_LANDED);
}

static void op_is_posted_when_sent(void)
{
	struct pkt_op op = {.state = OP_SENT};

	op_goto(&op, OP_POSTED);
}

static void conn_comes_back(void)
{
	struct ctl_conn cc = {.state = CTL_LINGER};

	ctl_conn_goto(&cc, CTL_UP);
}

/* Does @fn end at an assertion? */
static bool stops(void (*fn)(void))
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (!pid) {
		signal(SIGABRT, SIG_DFL);
		if (!freopen("/dev/null", "w", stderr))
			_exit(1);
		fn();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void goto__stops(void **state)
{
	assert_true(stops(in_lands_twice));
	assert_true(stops(op_is_posted_when_sent));
	assert_true(stops(conn_comes_back));
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(in_may_go__as_listed),
		cmocka_unit_test(in_goto__goes),
		cmocka_unit_test(op_may_go__as_listed),
		cmocka_unit_test(op_goto__goes),
		cmocka_unit_test(op_is_live__until_it_ends),
		cmocka_unit_test(ctl_may_go__as_listed),
		cmocka_unit_test(ctl_conn_goto__goes),
#ifndef NDEBUG
		cmocka_unit_test(goto__stops),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
