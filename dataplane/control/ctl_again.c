/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's second set-up: what answers at an address is no gx, so it goes on with the others; or the link
 * that it chose lets nothing through, so it connects once more, by another one. The struct gx_conn stays,
 * for its user has it: its lanes leave their cores, and a new bootstrap connection takes the place of the
 * first. Runs on the control thread.
 */
#include "control/ctl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ctl_conn *again_conn(const struct ctl_conn *cc)
{
	struct ctl_try *tries = ctl_dial_tries(cc->dial.nr_addrs);
	struct ctl_conn *next = tries ? ctl_conn_new(cc->ctl, false) : NULL;

	if (!next) {
		free(tries);
		return NULL;
	}
	next->dial = cc->dial;
	next->dial.tries = tries; /* cc has its own */
	next->dial.nr_begun = next->dial.addr = 0;
	next->dial.next_ns = UINT64_MAX; /* not before ctl_again_may() */
	next->dial.data = NULL;
	next->dial.data_forget = NULL;
	next->dial.prove_again = false;
	next->dial.no_share[0] = 0;
	next->dial.again = true;
	memcpy(next->name, cc->name, sizeof(next->name));
	next->data_len = cc->data_len;
	memcpy(next->data_out, cc->data_out, sizeof(next->data_out));
	next->key = auth_own(cc->ctl->gx);
	return next;
}

/* @next takes the place of @cc. */
static void again_swap(struct ctl_conn *cc, struct ctl_conn *next)
{
	next->conn = cc->conn;
	next->next = cc->ctl->conns;
	cc->ctl->conns = next;
	cc->conn->ctl = next;
	cc->conn = NULL;
}

void ctl_again_next(struct ctl_conn *cc, enum gx_reason reason, int err)
{
	struct ctl_conn *next;

	if (!cc->conn || cc->conn->user_closed || cc->ctl->closing || cc->dial.nr_addrs < 2 ||
	    (cc->state != CTL_TLS && cc->state != CTL_HELLO))
		return;
	next = ctl_dial_bad(cc, reason, err) ? again_conn(cc) : NULL;
	if (!next) {
		ctl_dial_none(cc);
		return;
	}
	ctl_dial_move(next, cc);
	next->due_ns = cc->dial.end_ns;
	snprintf(next->name, sizeof(next->name), "%.95s", cc->conn->peer_name); /* all of them */
	again_swap(cc, next);
}

bool ctl_again(struct ctl_conn *cc, const char *why)
{
	struct gx_hello_error e = {.err = -EHOSTUNREACH, .reason = GX_REASON_UNREACHABLE};
	struct gx_conn *c = cc->conn;
	struct ctl_path path = {0};
	struct ctl_conn *next;

	if (cc->server || cc->dial.link || c->user_closed || cc->ctl->closing)
		return false;
	cc->dial.dead |= 1u << c->link->id;
	snprintf(cc->dial.dead_why, sizeof(cc->dial.dead_why), "%s", why);
	if (ctl_path_choose(cc, &path))
		return false;
	next = again_conn(cc);
	if (!next)
		return false;
	gx_warn("peer %s: no link %s: %s; link %s takes its place", ctl_conn_peer(cc),
		c->link->name, why, path.link->name);
	snprintf(e.text, sizeof(e.text), "%s", why);
	(void)ctl_conn_frame_send(cc, gx_hello_error_put(cc->ctl->frame, &e));
	ctl_conn_linger(cc, CTL_LINGER_NS);
	next->dial.addrs[0] = cc->dial.addrs[cc->dial.addr]; /* the one that has answered */
	next->dial.nr_addrs = 1;
	next->due_ns =
		gx_later_ns(gx_now_ns(), cc->dial.timeout_ns); /* its cores may have stopped */
	conn_retry(c, -EHOSTUNREACH);
	again_swap(cc, next);
	return true;
}

bool ctl_again_may(struct ctl_conn *cc)
{
	if (cc->state != CTL_CONNECT || !conn_again(cc->conn))
		return false;
	cc->dial.again = false;
	if (!cc->dial.nr_begun) /* else ctl_again_next() has said how long */
		cc->due_ns = gx_later_ns(gx_now_ns(), cc->dial.timeout_ns);
	return true;
}
