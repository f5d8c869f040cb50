/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that end early: the peer is told by CANCEL, and the mid stays until it is done with
 * it. Runs on the polling core.
 */
#include "packet/pkt.h"

#include <errno.h>

void op_cancel_rec(struct pkt_ep *e, struct pkt_op *op)
{
	struct gx_wire_rec rec = {.type = GX_REC_CANCEL,
				  .cancel = {.mid = op->mid, .sent = op->sent_pkts}};

	op->cancel_due = !tx_rec(e, &rec, PKT_NONE);
	e->tx.cancels_due |= op->cancel_due;
}

void op_doom(struct pkt_ep *e, uint32_t i, int err)
{
	struct pkt_op *op = &e->ops[i];

	if (op->doomed || op->done)
		return;
	op->status = err;
	switch (op->state) {
	case OP_QUEUED:
		list_remove(e, &e->tx.wait_head, &e->tx.wait_tail, i);
		if (op->again) { /* its message is still the peer's business */
			op->again = false;
			break;
		}
		list_remove(e, &e->tx.send_head, &e->tx.send_tail, i);
		match_unbind(e, i);
		op_finish(e, i, err, 0);
		return;
	case OP_SENDING:
		list_remove(e, &e->tx.act_head, &e->tx.act_tail, i);
		break;
	case OP_POSTED:
		op->doomed = true;
		rx_give_up(e, i);
		return;
	}
	op->state = OP_SENT;
	op->doomed = true;
	op_neutralise(e, op);
	op_cancel_rec(e, op);
	if (!op->refs)
		op_complete(e, i, err, 0);
}
