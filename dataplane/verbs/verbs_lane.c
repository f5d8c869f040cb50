/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A turn of a lane, and its end. Runs on the polling core.
 */
#include "verbs/verbs_lane.h"

#include <errno.h>

static void lane_send(struct verbs_lane *l)
{
	if (l->owes && !l->fail_err)
		tx_credit(l);
	if (l->pend)
		tx_flush(l);
}

bool verbs_lane_turn(struct verbs_lane *l, uint64_t now_ns)
{
	bool worked;

	if (now_ns >= l->deadline_ns)
		ops_deadlines(l, now_ns);
	if (gx_unlikely(atomic_load_explicit(&l->lost, memory_order_relaxed) != l->lost_seen))
		ops_lost(l);
	worked = cq_reap(l);
	if (l->redo)
		worked |= tx_redo(l);
	if (l->queue_head != l->queue_tail)
		worked |= tx_queue(l);
	lane_send(l);
	return worked;
}

void verbs_lane_kick(struct verbs_lane *l)
{
	if (l->queue_head != l->queue_tail)
		tx_queue(l);
	lane_send(l);
}

void verbs_lane_fail(struct verbs_lane *l, int err)
{
	l->fail_err = err ? err : -ECONNRESET;
	for (unsigned i = 0; i < VERBS_OPS; i++)
		op_set_status(l, &l->op[i], l->fail_err);
	tx_redo(l);
	tx_queue(l);
	/* Pairs with the acquire in verbs_mend_give_up(): no call of the device posts from here on. */
	atomic_store_explicit(&l->stopped, true, memory_order_release);
}

bool verbs_lane_is_quiet(const struct verbs_lane *l)
{
	if (l->nr_ops)
		return false;
	for (unsigned i = 0; i < l->nr_qps; i++) {
		int state = qp_state(&l->qp[i]);

		if (qp_lives(state) || state == VERBS_QP_FAILED)
			return false;
	}
	return true;
}
