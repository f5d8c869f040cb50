/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue pair that does not come back, because its device was removed or does not let go of it,
 * while other ways of its lane work. Both ends end theirs, and then its work moves to the others:
 *
 *   - quit: the core leaves it, and takes no completion of it any more (has_quit).
 *   - It is destroyed: nothing can be sent or land there. DEAD, and the peer is told.
 *   - The peer's end is no more either: settled. The core sends again what had not landed.
 *
 * The peer's message says how many notes it had taken, as that of a reset does. Control thread.
 */
#include "verbs/verbs_lane.h"
#include "verbs/verbs_mend.h"

bool verbs_lane_has_other(const struct verbs_lane *l, unsigned way)
{
	for (unsigned i = 0; i < l->nr_qps; i++)
		if (l->qp[i].way != way && qp_state(&l->qp[i]) == VERBS_QP_UP && !l->qp[i].sick)
			return true;
	return false;
}

static void side_settle(struct verbs_qp *q, const struct verbs_side *s)
{
	if (!s->own_gone || !s->peer_gone)
		return;
	q->dead_taken = s->peer_taken;
	/* Pairs with the acquire in redo_may(). */
	atomic_store_explicit(&q->settled, true, memory_order_release);
}

/* May it be destroyed: does the core use it no more? */
static bool qp_is_left(const struct verbs_qp *q)
{
	int state = qp_state(q);

	if (verbs_qp_connects(q))
		return false;
	/* Pairs with the release in qp_quit(). */
	return state == VERBS_QP_DRAINED ||
	       (state == VERBS_QP_FAILED &&
		atomic_load_explicit(&q->has_quit, memory_order_acquire));
}

bool verbs_gone_step(struct verbs_lane *l, struct verbs_qp *q, struct verbs_side *s,
		     struct verbs_mend *m)
{
	int state = qp_state(q);

	if (!atomic_load_explicit(&q->quit, memory_order_relaxed) || s->own_gone ||
	    !qp_is_left(q) || !verbs_mend_end(l, q))
		return false;
	/* The core may see it drained at the same time. */
	while (state != VERBS_QP_DEAD && !qp_goto(q, state, VERBS_QP_DEAD))
		state = qp_state(q);
	s->own_gone = true;
	s->held = s->own_reset = false;
	s->down_ns = 0; /* the patience with the peer's answer begins */
	*m = (struct verbs_mend){.qp = q->index, .gen = q->gen, .taken = q->notes_taken};
	side_settle(q, s);
	return true;
}

void verbs_gone_take(struct verbs_qp *q, struct verbs_side *s, const struct verbs_mend *m)
{
	if (s->peer_gone)
		return;
	if (!s->peer_reset) /* else the message of that reset has said it, of the life before */
		s->peer_taken = m->taken;
	s->peer_gone = true;
	atomic_store_explicit(&q->quit, true, memory_order_relaxed);
	side_settle(q, s);
}
