/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue pair that failed is made anew, and nothing is sent twice into memory that may be in use
 * again. Both ends do the same:
 *
 *   - Its core has let go of it (DRAINED): reset it, and tell the peer its new life.
 *   - The peer reports a new life: have the device flush our end, unless that is under way. A
 *     device that refuses is asked again at each tick.
 *   - Both are reset: have them connected (verbs_dial.c), and do nothing with them meanwhile. When
 *     the peer's device has answered, it is UP, and the core sends again what was not acknowledged.
 *     An address that is not found fails this life too.
 *
 * Where other paths work meanwhile, a queue pair whose path does not is tried in the background for as
 * long as the connection lasts (side_holds()).
 *
 * The peer's message says that its end takes in nothing of the old life, and how many immediates it had
 * taken. These have landed, and so has all that was posted before them: it is not sent again. The
 * peer's user may have changed the bytes of a put since it was notified. Control thread.
 */
#include "verbs/verbs_lane.h"
#include "verbs/verbs_mend.h"

#include <errno.h>
#include <string.h>

#define MEND_END_TRIES 100 /* ticks: 2 s */
#define MEND_HELD_NS                                                                               \
	250000000ull /* below the time in which a device gives up a write: ends that do
				       not try at the same time meet all the same */

void verbs_redo_judge(struct verbs_qp *q, uint32_t taken)
{
	uint32_t last = 0; /* number of the last immediate that was taken */
	bool any = false;

	for (uint32_t i = q->redo_tail; i != q->redo_head; i++) {
		const struct verbs_wr *wr = &q->redo[i % VERBS_SQ];

		if (wr->kind != VERBS_WR_IMM || wr->fate ||
		    (int32_t)((uint32_t)wr->off - taken) >= 0)
			continue;
		if (!any || (int32_t)(wr->number - last) > 0)
			last = wr->number;
		any = true;
	}
	for (uint32_t i = q->redo_tail; i != q->redo_head; i++) {
		struct verbs_wr *wr = &q->redo[i % VERBS_SQ];
		bool landed = any && (int32_t)(wr->number - last) <= 0;

		if (!wr->fate) /* else it was judged at the end of an earlier life */
			wr->fate = landed ? VERBS_WR_LANDED : VERBS_WR_LOST;
	}
}

/* The core sees this life flushed. */
static int life_end(struct verbs_lane *l, struct verbs_qp *q)
{
	int err = verbs_qp_error(l, q);

	if (err)
		return err;
	return q->proving ? verbs_qp_probe(l, q) : verbs_qp_mark(q); /* proving waits for them */
}

/* Both ends begin the next life, within the budget and the patience. The kernel asks for the address of
 * the peer's GID, and an answer may come another time; so may our own address come back. What the peer
 * sends may end a life that has just begun to receive. */
int verbs_mend_later(struct verbs_lane *l, struct verbs_qp *q, struct verbs_side *s, int err)
{
	bool no_answer = verbs_dial_no_answer(err);

	if (!no_answer && !l->path[q->path].addr_lost && !verbs_qp_is_in_error(l, q))
		return err;
	if (no_answer && (!s->vain++ || l->nr_paths == 1))
		gx_info("%s does not find the address of the peer's device: %s: queue pair tries "
			"again",
			qp_dev(l, q)->name, strerror(-err));
	return life_end(l, q);
}

static void side_connect_now(struct verbs_lane *l, struct verbs_qp *q, struct verbs_side *s,
			     const struct verbs_port *peer)
{
	verbs_qp_connect(l, q, peer, &s->own, &s->peer, true);
}

/* Connecting has ended, maybe. */
static void side_connected(struct verbs_lane *l, struct verbs_qp *q, struct verbs_side *s)
{
	int ret = verbs_dial_take(&q->dial);

	if (ret)
		ret = verbs_mend_later(l, q, s, ret);
	if (!ret)
		return;
	/* The peer counts on it, and would wait for its immediates: so the path ends, or the
	 * connection. */
	if (verbs_mend_has_other(l, q->path))
		atomic_store_explicit(&q->quit, true, memory_order_relaxed);
	else
		atomic_store_explicit(&l->ep->fault, -ENODEV, memory_order_release);
}

/* Is it too early to connect? While its port has no address or is down, or a life was in vain
 * shortly before; and then one queue pair of a path tries at a time, the first one. A connection of
 * one path tries at once, if its port has an address. */
static bool side_holds(const struct verbs_lane *l, const struct verbs_qp *q,
		       const struct verbs_side *s, uint64_t now_ns)
{
	if (l->path[q->path].addr_lost)
		return true;
	if (l->nr_paths == 1)
		return false;
	if (qp_dev(l, q)->port_down)
		return true;
	if (!s->vain)
		return false;
	for (unsigned i = 0; i < q->index; i++) {
		int state = qp_state(&l->qp[i]);

		if (l->qp[i].path == q->path && state != VERBS_QP_UP && state != VERBS_QP_DEAD)
			return true;
	}
	return now_ns - s->held_ns < MEND_HELD_NS;
}

/* Both ends are reset. What was lost may go over other queue pairs from now on, as the core sees
 * when this one is READY. */
static void side_connect(struct verbs_lane *l, struct verbs_qp *q, struct verbs_side *s,
			 const struct verbs_port *peer)
{
	if (!s->own_reset || !s->peer_reset)
		return;
	s->own_reset = s->peer_reset = false;
	verbs_redo_judge(q, s->peer_taken);
	s->held_ns = gx_now_ns();
	s->held = side_holds(l, q, s, s->held_ns);
	if (s->held)
		qp_goto(q, VERBS_QP_DRAINED, VERBS_QP_READY);
	else
		side_connect_now(l, q, s, peer);
}

/* Has it been held for long enough? One that is to quit is the core's, which may leave it by now. */
static void side_release(struct verbs_lane *l, struct verbs_qp *q, struct verbs_side *s,
			 const struct verbs_port *peer)
{
	if (!s->held || atomic_load_explicit(&q->quit, memory_order_relaxed))
		return;
	if (qp_state(q) == VERBS_QP_READY && side_holds(l, q, s, gx_now_ns()))
		return;
	s->held = false;
	if (qp_state(q) == VERBS_QP_READY)
		side_connect_now(l, q, s, peer);
}

bool verbs_mend_step(struct verbs_lane *l, struct verbs_qp *q, struct verbs_side *s,
		     const struct verbs_port *peer, bool may, struct verbs_mend *m)
{
	uint32_t taken;

	if (verbs_qp_connects(q))
		return false;
	side_connected(l, q, s);
	if (may)
		side_release(l, q, s, peer);
	if (atomic_exchange_explicit(&q->want_err, false, memory_order_acq_rel) &&
	    qp_state(q) == VERBS_QP_FAILED && (verbs_qp_error(l, q) || verbs_qp_mark(q)))
		/* Try again in the next tick. */
		atomic_store_explicit(&q->want_err, true, memory_order_relaxed);
	if (s->peer_reset && qp_lives(qp_state(q))) /* the core has not seen it flushed yet */
		verbs_qp_error(l, q);
	if (qp_state(q) != VERBS_QP_DRAINED || s->own_reset || !may)
		return false;
	taken = q->imms_taken;
	s->vain += !atomic_load_explicit(&q->proven, memory_order_relaxed);
	if (verbs_qp_reset(l, q, &s->own)) {
		if (verbs_mend_has_other(l, q->path)) {
			atomic_store_explicit(&q->quit, true, memory_order_relaxed);
			return false;
		}
		atomic_store_explicit(&l->ep->fault, -ENODEV, memory_order_release);
		return false;
	}
	s->own_reset = true;
	*m = (struct verbs_mend){.qp = q->index, .gen = q->gen, .say = s->own, .taken = taken};
	side_connect(l, q, s, peer);
	return true;
}

int verbs_mend_take(struct verbs_lane *l, struct verbs_qp *q, struct verbs_side *s,
		    const struct verbs_port *peer, const struct verbs_mend *m)
{
	/* The life that begins is ours already if our end is reset. */
	uint32_t want = s->own_reset ? q->gen : q->gen + 1;

	if (s->own_gone) { /* it has not heard that yet; what it had taken counts */
		if (!s->peer_reset && !s->peer_gone)
			s->peer_taken = m->taken;
		s->peer_reset = true;
		return 0;
	}
	if (m->gen != want || s->peer_reset)
		return -EPROTO;
	s->peer = m->say;
	s->peer_taken = m->taken;
	s->peer_reset = true;
	s->held = false;
	if (qp_lives(qp_state(q)) && !verbs_qp_connects(q)) /* else at the tick after that */
		verbs_qp_error(l, q);
	side_connect(l, q, s, peer);
	return 0;
}

int verbs_mend_stop(struct verbs_lane *l)
{
	int ret = 0;

	atomic_store_explicit(&l->ending, true, memory_order_relaxed); /* for a counter */
	for (unsigned i = 0; i < l->nr_qps; i++) {
		struct verbs_qp *q = &l->qp[i];
		int state = qp_state(q), err;

		verbs_dial_cancel(&qp_dev(l, q)->dials, &q->dial);
		err = verbs_qp_error(l, q); /* also while it connects: then that fails */
		/* The others take nothing in; one that was just reset cannot go into error. */
		if (err && (qp_lives(state) || state == VERBS_QP_FAILED))
			ret = err;
	}
	return ret;
}

void verbs_mend_stopped(struct verbs_lane *l)
{
	for (unsigned i = 0; i < l->nr_qps; i++) {
		struct verbs_qp *q = &l->qp[i];

		if (atomic_load_explicit(&q->dial.state, memory_order_relaxed) == VERBS_DIAL_DONE &&
		    verbs_dial_take(&q->dial))
			life_end(l, q);
	}
}

/* False: the device refuses, and the next tick tries again. In the end the operations end all the
 * same, and the log says that their memory was not given back. */
bool verbs_mend_end(struct verbs_lane *l, struct verbs_qp *q)
{
	int ret = verbs_qp_end(l, q);

	if (ret && q->end_tries++ < MEND_END_TRIES)
		return false;
	if (ret) {
		gx_err("%s does not end a queue pair: %s: it may read or write the memory of the "
		       "connection's operations until the context is closed",
		       qp_dev(l, q)->name, strerror(ret));
		l->slots_by = qp_dev(l, q);
	}
	q->qp = NULL;
	return true;
}

void verbs_mend_give_up(struct verbs_lane *l)
{
	/* Pairs with the release in verbs_lane_fail(). */
	if (!atomic_load_explicit(&l->stopped, memory_order_acquire))
		return;
	for (unsigned i = 0; i < l->nr_qps; i++) {
		struct verbs_qp *q = &l->qp[i];
		int state = qp_state(q);

		if ((!qp_lives(state) && state != VERBS_QP_FAILED) || !q->qp ||
		    verbs_qp_connects(q))
			continue;
		/* Once it is destroyed, the device touches no memory for it. */
		if (!verbs_mend_end(l, q))
			continue;
		/* The core may see its end at the same time: both states are the last. */
		while ((qp_lives(state) || state == VERBS_QP_FAILED) &&
		       !qp_goto(q, state, VERBS_QP_DEAD))
			state = qp_state(q);
	}
}

/* ---- Gone ---- */

/*
 * A queue pair that does not come back, because its device was removed or does not let go of it,
 * while other paths of its lane work. Both ends end theirs, and then its work moves to the others:
 *
 *   - quit: the core leaves it, and takes no completion of it any more (has_quit).
 *   - It is destroyed: nothing can be sent or land there. DEAD, and the peer is told.
 *   - The peer's end is no more either: settled. The core sends again what had not landed.
 *
 * The peer's message says how many immediates it had taken, as that of a reset does.
 */

bool verbs_mend_has_other(const struct verbs_lane *l, unsigned path)
{
	for (unsigned i = 0; i < l->nr_qps; i++)
		if (l->qp[i].path != path && qp_state(&l->qp[i]) == VERBS_QP_UP && !l->qp[i].sick)
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
	*m = (struct verbs_mend){.qp = q->index, .gen = q->gen, .taken = q->imms_taken};
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
