/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of the tcp link that end early. No byte of their host memory is touched any more when
 * tcp_abort_op() returns: frames under way go on with zeros, and the receiver drops them, as their
 * trailers say it. CANCEL ends the message. A receive or a get with memory of a GPU ends when the
 * copies into it that have begun have ended. A copy out of such memory may outlive its operation. An
 * operation whose memory a NIC sends completes later (tcp_offload.h).
 * Runs on the polling core.
 */
#include "tcp/tcp_fetch.h"
#include "tcp/tcp_in.h"
#include "tcp/tcp_match.h"
#include "tcp/tcp_offload.h"
#include "tcp/tcp_op.h"

#include <errno.h>

/* @peer_err: what the peer's operation ends with; 0: ECANCELED. */
static void abort_op(struct tcp_ep *e, uint32_t i, int err, int peer_err)
{
	struct tcp_op *op = &e->ops[i];
	struct tcp_frame cancel = {
		.type = TCP_CANCEL, .mid = op->mid, .moff = op->next_chunk, .err = peer_err};
	enum tcp_op_state was = op->state;

	if (!tcp_op_is_live(op))
		return;
	tcp_op_unlist(e, i);
	op->status = err;
	if (was == TCP_OP_QUEUED) { /* no frame of it was made */
		tcp_match_unbind(e, i);
		tcp_op_finish(e, i, err, 0);
		return;
	}
	tcp_op_goto(op, TCP_OP_DOOMED);
	if (was == TCP_OP_POSTED) {
		tcp_in_give_up(e, i);
		return;
	}
	tcp_op_pad(e, i);
	tcp_ctl_put(e, &cancel);
	if (op->held) {
		e->link->offload->early(e, i);
		return;
	}
	tcp_fetch_end(e, op);
	tcp_op_complete(e, i, err, 0);
}

void tcp_abort_op(struct tcp_ep *e, uint32_t i, int err)
{
	abort_op(e, i, err, 0);
}

void tcp_abort_let_go(struct tcp_ep *e, uint32_t i, int err, int peer_err)
{
	const struct tcp_op *op = &e->ops[i];
	struct tcp_frame fail = {
		.type = TCP_FAIL, .flags = TCP_F_SLOT, .token = op->token, .err = peer_err};

	if (op->internal && op->state == TCP_OP_QUEUED)
		tcp_ctl_put(e, &fail);
	/* A program that frees memory gives its own messages up, and no more. */
	abort_op(e, i, err, op->internal || err == -EIO ? peer_err : 0);
}
