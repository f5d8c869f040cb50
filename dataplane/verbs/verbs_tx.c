/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work requests: a put or get is cut into chunks, which go round the queue pairs that are up; the
 * immediates of a put with GX_OP_IMM follow its chunks. Requests gather in a list for each queue
 * pair, and the device gets a list at a time. The last request of a list asks for a completion, so
 * a list costs one, and no request waits for a later list to be seen. Runs on the polling core.
 */
#include "verbs/verbs_lane.h"

/* ---- Queue pairs ---- */

static bool qp_room(const struct verbs_qp *q)
{
	return qp_state(q) == VERBS_QP_UP && q->head - q->tail < VERBS_SENDS;
}

/* While a queue pair has lost requests to send again, it takes these alone. So the lists sent and
 * redo hold VERBS_SQ requests at most together, however often it fails. */
static bool qp_takes(const struct verbs_qp *q, const struct verbs_qp *redo_of)
{
	return qp_room(q) && (q->redo_head == q->redo_tail || q == redo_of);
}

static bool path_takes(const struct verbs_path *w, uint64_t len)
{
	return !w->under_b || w->under_b + len <= w->window_b;
}

/* Those of @paths whose window has room for @len bytes. */
static uint32_t paths_open(const struct verbs_lane *l, uint64_t len, uint32_t paths)
{
	uint32_t open = 0;

	for (unsigned i = 0; i < l->nr_paths; i++)
		open |= (uint32_t)path_takes(&l->path[i], len) << i;
	return open & paths;
}

static struct verbs_qp *qp_picked(struct verbs_lane *l, unsigned i, uint64_t len)
{
	l->next = i;
	if (len > VERBS_SMALL_B)
		l->next = i + 1 < l->nr_qps ? i + 1 : 0;
	return &l->qp[i];
}

/* Each operation that waits asks in each turn: while all windows are full, no queue pair is looked
 * at. */
static __attribute__((noinline)) struct verbs_qp *lane_search(struct verbs_lane *l, uint64_t len,
							      uint32_t paths,
							      const struct verbs_qp *redo_of)
{
	paths = paths_open(l, len, paths);
	if (!paths)
		return NULL;
	for (unsigned k = 0, i = l->next; k < l->nr_qps; k++, i = i + 1 < l->nr_qps ? i + 1 : 0)
		if (paths >> l->qp[i].path & 1 && qp_takes(&l->qp[i], redo_of))
			return qp_picked(l, i, len);
	return NULL;
}

/* The next queue pair for a request of @len bytes, on one of @paths. NULL: wait. */
static inline struct verbs_qp *lane_pick(struct verbs_lane *l, uint64_t len, uint32_t paths,
					 const struct verbs_qp *redo_of)
{
	const struct verbs_qp *q = &l->qp[l->next];

	if (gx_likely(paths >> q->path & 1 && path_takes(&l->path[q->path], len) &&
		      qp_takes(q, redo_of)))
		return qp_picked(l, l->next, len);
	return lane_search(l, len, paths, redo_of);
}

/* The last @n requests, which the device has not taken: nobody will complete them. */
static void qp_unsend(struct verbs_lane *l, struct verbs_qp *q, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		wr_redo(l, q, &q->sent[--q->head % VERBS_SQ]);
}

static void qp_flush(struct verbs_lane *l, struct verbs_qp *q)
{
	struct ibv_send_wr *bad = NULL;
	unsigned n = q->nr_pend, taken;

	if (!n)
		return;
	q->nr_pend = 0;
	/* It failed after they were made. What was before them is lost, so an immediate among them
	 * would come too early. */
	if (qp_state(q) != VERBS_QP_UP) {
		qp_unsend(l, q, n);
		qp_try_drained(q);
		return;
	}
	for (unsigned i = 0; i + 1 < n; i++)
		q->wr[i].next = &q->wr[i + 1];
	q->wr[n - 1].next = NULL;
	q->wr[n - 1].send_flags |= IBV_SEND_SIGNALED;
	if (!ibv_post_send(q->qp, q->wr, &bad))
		return;
	taken = bad >= q->wr && bad < q->wr + n ? (unsigned)(bad - q->wr) : 0;
	qp_unsend(l, q, n - taken);
	qp_fail(l, q, IBV_WC_LOC_QP_OP_ERR);
	/* After the state, which the control thread looks at. */
	atomic_store_explicit(&q->want_err, true, memory_order_release);
}

void tx_flush(struct verbs_lane *l)
{
	uint64_t left = l->pend;
	const struct verbs_qp *q;

	l->pend = 0;
	for (; left; left &= left - 1)
		qp_flush(l, &l->qp[__builtin_ctzll(left)]);
	/* Small puts stay where they are while they are few: the device, and its driver, have that
	 * queue pair at hand. */
	q = &l->qp[l->next];
	if (q->head - q->tail >= VERBS_SPREAD)
		l->next = l->next + 1 < l->nr_qps ? l->next + 1 : 0;
}

/* A request at the end of the list. The caller sets all that its kind uses, and the last entry of
 * sent, in place: there is room. Fields that no kind uses are 0 from the start. */
static inline struct ibv_send_wr *wr_new(struct verbs_lane *l, struct verbs_qp *q)
{
	struct ibv_send_wr *wr;

	if (q->nr_pend == VERBS_BATCH)
		qp_flush(l, q);
	wr = &q->wr[q->nr_pend];
	wr->wr_id = wr_id(q, false, q->head);
	wr->sg_list = &q->sge[q->nr_pend++];
	wr->num_sge = 1;
	q->head++;
	l->pend |= qp_bit(q);
	return wr;
}

/* ---- Data ---- */

static inline void data_add(struct verbs_lane *l, struct verbs_qp *q, struct verbs_op *op,
			    uint64_t off, uint32_t len, uint8_t tries)
{
	struct ibv_send_wr *wr = wr_new(l, q);
	uint32_t number = q->head - 1;
	struct verbs_path *w = &l->path[q->path];

	q->sent[number % VERBS_SQ] = (struct verbs_wr){.off = off,
						       .len = len,
						       .number = number,
						       .op = (uint16_t)(op - l->op),
						       .kind = VERBS_WR_DATA,
						       .tries = tries};
	*wr->sg_list = (struct ibv_sge){(uintptr_t)op->mine + off, len,
					op->is_inline ? 0 : op->lkey[w->dev->rail]};
	wr->opcode = op->kind == GX_OP_PUT ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
	wr->send_flags = op->is_inline ? IBV_SEND_INLINE : 0;
	wr->wr.rdma.remote_addr = op->theirs + off;
	wr->wr.rdma.rkey = op->rkey[w->peer];
	if (op->flags & GX_OP_IMM && !op->tell.parts_set)
		op->tell.parts |= qp_bit(q);
	w->under_b += len;
}

/* ---- Immediates ---- */

static void imm_add(struct verbs_lane *l, struct verbs_qp *q, struct verbs_imm *n, uint16_t op)
{
	struct ibv_send_wr *wr = wr_new(l, q);
	uint32_t number = q->head - 1;
	uint8_t *slot = q->send_slots + (size_t)(number % VERBS_SQ) * VERBS_SLOT_B;

	q->sent[number % VERBS_SQ] = (struct verbs_wr){
		.off = q->imms_sent, .number = number, .op = op, .kind = n->kind, .part = n->part};
	q->imms_sent += n->kind == VERBS_WR_IMM;
	n->taken = q->imms_credited = q->imms_taken;
	verbs_imm_put(slot, n);
	*wr->sg_list =
		(struct ibv_sge){(uintptr_t)slot, VERBS_IMM_B, l->path[q->path].slots_mr->lkey};
	wr->opcode = IBV_WR_SEND;
	wr->send_flags = l->inline_b >= VERBS_IMM_B ? IBV_SEND_INLINE : 0;
}

/* The queue pair for immediate @part. In order after the bytes: that of the bytes themselves. If
 * one of these failed, any, when all bytes have been acknowledged. NULL: wait. */
static struct verbs_qp *imm_qp(struct verbs_lane *l, struct verbs_op *op, unsigned part)
{
	struct verbs_qp *q = &l->qp[part];

	if (!op->redone && qp_state(q) == VERBS_QP_UP)
		return qp_takes(q, NULL) && imm_room(q) ? q : NULL;
	op->redone = true;
	if (op->data_out)
		return NULL;
	for (unsigned i = 0; i < l->nr_qps; i++)
		if (qp_takes(&l->qp[i], NULL) && imm_room(&l->qp[i]))
			return &l->qp[i];
	return NULL;
}

static bool imms_parts(struct verbs_lane *l, struct verbs_tell *t)
{
	struct verbs_qp *q;

	if (t->parts_set)
		return true;
	if (!t->parts) { /* no bytes */
		q = lane_pick(l, 0, UINT32_MAX, NULL);
		if (!q)
			return false;
		t->parts = 1ull << q->index;
	}
	t->parts_due = t->parts;
	t->parts_set = true;
	return true;
}

/* Return: are all posted? */
static bool imms_send(struct verbs_lane *l, struct verbs_op *op)
{
	struct verbs_tell *t = &op->tell;

	if (!imms_parts(l, t))
		return false;
	while (t->parts_due) {
		unsigned part = (unsigned)__builtin_ctzll(t->parts_due);
		struct verbs_qp *q = imm_qp(l, op, part);
		struct verbs_imm n = {.kind = VERBS_WR_IMM,
				      .part = (uint8_t)part,
				      .nr_parts = (uint8_t)__builtin_popcountll(t->parts),
				      .seq = t->seq,
				      .token = core_token_hide(op->token, op->flags),
				      .off = t->off,
				      .len = op->len,
				      .imm = t->imm};

		if (!q)
			return false;
		t->parts_due &= t->parts_due - 1;
		op->imm_out++;
		imm_add(l, q, &n, (uint16_t)(op - l->op));
	}
	return true;
}

/* Numbers are used in order, each again when the put that had it has ended. */
static bool op_seq(struct verbs_lane *l, struct verbs_op *op)
{
	struct verbs_tell *t = &op->tell;

	if (op->has_seq)
		return true;
	if (l->seq_busy[l->seq % VERBS_SEQS])
		return false;
	t->seq = l->seq++;
	op->has_seq = l->seq_busy[t->seq % VERBS_SEQS] = true;
	return true;
}

/* Post what @op has left. Return: nothing is left. Twice in the program: a new operation is posted by
 * the shortest path. */
static inline __attribute__((always_inline)) bool op_send(struct verbs_lane *l, struct verbs_op *op)
{
	if (op->status)
		return true;
	if (op->flags & GX_OP_IMM && !op_seq(l, op))
		return false;
	while (op->posted_b < op->len) {
		uint32_t n = (uint32_t)GX_MIN(op->len - op->posted_b, (uint64_t)l->chunk_b);
		struct verbs_qp *q = lane_pick(l, n, op->paths, NULL);

		if (!q)
			return false;
		op->data_out++;
		data_add(l, q, op, op->posted_b, n, 0);
		op->posted_b += n;
	}
	return !(op->flags & GX_OP_IMM) || imms_send(l, op);
}

/* Those that wait come first. One that has nothing out ends in tx_queue(), after the call that posted
 * it. */
void tx_first(struct verbs_lane *l, struct verbs_op *op)
{
	if (l->queue_head != l->queue_tail || !op_send(l, op) || !(op->data_out | op->imm_out))
		op_queue(l, op);
}

bool tx_queue(struct verbs_lane *l)
{
	uint32_t last = l->queue_tail;
	bool worked = false;

	while (l->queue_head != last) {
		struct verbs_op *op = &l->op[l->queue[l->queue_head++ % VERBS_OPS]];

		op->queued = false;
		if (op_send(l, op)) {
			worked = true;
			if (!op->data_out)
				op_try_end(l, op); /* empty, or it has failed */
		} else {
			op_queue(l, op);
		}
	}
	return worked || l->pend;
}

/* ---- Again ---- */

/* It is not sent again as it was: it has landed, its operation ends early, or it is an immediate,
 * which has to wait for the bytes of its put. tx_queue() goes on with the operation. */
static void redo_settle(struct verbs_lane *l, struct verbs_op *op, const struct verbs_wr *wr,
			bool over)
{
	if (wr->kind == VERBS_WR_DATA) {
		op->data_out--;
		op->data_redo--;
	} else {
		op->imm_out--;
	}
	if (wr->kind == VERBS_WR_IMM && !over)
		op->tell.parts_due |= 1ull << wr->part;
	op_queue(l, op);
}

/* The queue pair to send a request of @of again. If none of the operation's paths takes it, @of
 * itself: its path had the keys. Otherwise two queue pairs that work could each wait for the
 * other's path, for ever. */
static struct verbs_qp *redo_qp(struct verbs_lane *l, struct verbs_qp *of,
				const struct verbs_op *op, uint32_t len)
{
	struct verbs_qp *q = lane_pick(l, len, op->paths, of);

	return !q && qp_room(of) && path_takes(&l->path[of->path], len) ? of : q;
}

/* Return: the request has gone, out again or for good. */
static bool redo_one(struct verbs_lane *l, struct verbs_qp *of, const struct verbs_wr *wr)
{
	struct verbs_op *op = &l->op[wr->op];
	/* The answer to a read may be lost although the request had arrived. */
	bool landed = wr->fate == VERBS_WR_LANDED && op->kind == GX_OP_PUT;
	bool over = op->status || l->fail_err || landed;
	struct verbs_qp *q;

	if (over || wr->kind == VERBS_WR_IMM) {
		redo_settle(l, op, wr, over);
		return true;
	}
	q = redo_qp(l, of, op, wr->len);
	if (!q)
		return false;
	op->data_redo--;
	data_add(l, q, op, wr->off, wr->len, wr->tries);
	l->nr_redone++;
	gx_stat_add(&l->core->loop.stats, GX_STAT_VERBS_REDONE, 1);
	return true;
}

/* May what @q has to send again go out? Not while the peer's end may still take in what was sent
 * before. It was reset before @q became READY; of a dead one, settled says so. */
static bool redo_may(struct verbs_lane *l, struct verbs_qp *q)
{
	int state = qp_state(q);

	if (l->fail_err || qp_lives(state))
		return true;
	/* Pairs with the release in verbs_mend.c. */
	if (state != VERBS_QP_DEAD || !atomic_load_explicit(&q->settled, memory_order_acquire) ||
	    q->head != q->tail)
		return false;
	if (!q->judged)
		verbs_redo_judge(q, q->dead_taken);
	q->judged = true;
	return true;
}

bool tx_redo(struct verbs_lane *l)
{
	bool worked = false;

	for (uint64_t left = l->redo; left; left &= left - 1) {
		struct verbs_qp *q = &l->qp[__builtin_ctzll(left)];

		if (!redo_may(l, q))
			continue;
		while (q->redo_head != q->redo_tail &&
		       redo_one(l, q, &q->redo[q->redo_tail % VERBS_SQ])) {
			q->redo_tail++;
			worked = true;
		}
		if (q->redo_head == q->redo_tail)
			l->redo &= ~qp_bit(q);
	}
	return worked;
}

/* Tell peers whose immediates come in one direction how many were taken. */
void tx_credit(struct verbs_lane *l)
{
	for (uint64_t left = l->owes; left; left &= left - 1) {
		struct verbs_qp *q = &l->qp[__builtin_ctzll(left)];
		struct verbs_imm n = {.kind = VERBS_WR_CREDIT};

		if (!qp_room(q))
			continue;
		if (imm_is_owed(q)) /* an immediate since may have said so */
			imm_add(l, q, &n, VERBS_NO_OP);
		l->owes &= ~qp_bit(q);
	}
}
