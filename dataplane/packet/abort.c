/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that end early. CANCEL tells the peer, and the mid stays in use until the peer is done
 * with it. Runs on the polling core.
 */
#include "packet/pkt.h"
#include "packet/abort.h"
#include "packet/in.h"
#include "packet/match.h"
#include "packet/op.h"
#include "packet/rec.h"

#include <errno.h>

void abort_rec(struct pkt_ep *e, struct pkt_op *op)
{
	struct gx_wire_rec rec = {.type = GX_REC_CANCEL,
				  .cancel = {.mid = op->mid, .sent = op->sent_pkts}};

	op->cancel_due = !rec_add(e, &rec, PKT_NONE);
	e->tx.cancels_due |= op->cancel_due;
}

void abort_op(struct pkt_ep *e, uint32_t i, int err)
{
	struct pkt_op *op = &e->ops[i];
	enum pkt_op_state was = op->state;

	if (!op_is_live(op))
		return;
	op_unlist(e, i);
	op->status = err;
	if (was == OP_QUEUED) { /* the peer knows nothing of it */
		match_unbind(e, i);
		op_finish(e, i, err, 0);
		return;
	}
	op_goto(op, OP_DOOMED);
	if (was == OP_POSTED) {
		in_give_up(e, i);
		return;
	}
	op_neutralise(e, op);
	abort_rec(e, op);
	if (!op->refs) /* else later: the port may still read the memory */
		op_complete(e, i, err, 0);
}
