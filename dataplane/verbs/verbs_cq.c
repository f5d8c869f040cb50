/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completions of a lane: which requests they end, which immediates of the peer's lane they bring, which
 * queue pair has failed, and what must be sent again. Requests of a queue pair end in order, so one completion ends all before it. Runs on
 * the polling core.
 */
#include "core/le.h"
#include "verbs/verbs_lane.h"

#include <errno.h>
#include <string.h>

#define CQ_ROUNDS 4 /* bursts of a turn */
#define CQ_BURST  16

/* ---- Immediates ---- */

/* A put with GX_OP_IMM sends an immediate after its chunks on each queue pair that has some; the
 * receiver notifies its user when it has them all. A queue pair delivers a send after the writes
 * before it, so the bytes are in place then. An immediate that was sent twice, because its first
 * acknowledgement was lost, counts once. */
void verbs_imm_put(uint8_t b[VERBS_IMM_B], const struct verbs_imm *n)
{
	memset(b, 0, VERBS_IMM_B);
	b[0] = n->kind;
	b[1] = n->part;
	b[2] = n->nr_parts;
	le32_put(b + 4, n->seq);
	le32_put(b + 8, n->taken);
	le64_put(b + 16, n->token);
	le64_put(b + 24, n->off);
	le64_put(b + 32, n->len);
	le64_put(b + 40, n->imm);
}

int verbs_imm_get(const uint8_t *b, uint32_t len, struct verbs_imm *n)
{
	if (len != VERBS_IMM_B || b[3] || le32_get(b + 12))
		return -EPROTO;
	*n = (struct verbs_imm){.kind = b[0],
				.part = b[1],
				.nr_parts = b[2],
				.seq = le32_get(b + 4),
				.taken = le32_get(b + 8),
				.token = le64_get(b + 16),
				.off = le64_get(b + 24),
				.len = le64_get(b + 32),
				.imm = le64_get(b + 40)};
	if (n->kind == VERBS_WR_CREDIT)
		return n->part || n->nr_parts ? -EPROTO : 0;
	if (n->kind != VERBS_WR_IMM || n->part >= VERBS_QPS_MAX || !n->nr_parts ||
	    n->nr_parts > VERBS_QPS_MAX)
		return -EPROTO;
	return 0;
}

bool imm_room(const struct verbs_qp *q)
{
	return q->imms_sent - q->imms_known < VERBS_RQ - VERBS_CREDIT_KEPT;
}

static void imm_bad(struct verbs_lane *l)
{
	l->nr_bad++;
	gx_stat_add(&l->core->loop.stats, GX_STAT_RX_BAD, 1);
}

/* All immediates of a put are here. */
static void imm_tell(struct verbs_lane *l, const struct verbs_imm *n)
{
	const struct core_imm imm = {n->token, n->off, n->len, n->imm,
				     n->token & CORE_TOKEN_HIDDEN};
	struct gx_mem *mem;

	if (!imm.hidden && core_region(l->ep, n->token, GX_ACCESS_PUT, n->off, n->len, &mem)) {
		imm_bad(l); /* freed meanwhile, or the peer lies */
		return;
	}
	gx_stat_add(&l->core->loop.stats, GX_STAT_MSGS_RX, 1);
	core_imm(l->ep, &imm); /* there is room: comp_room() */
}

static void imm_part(struct verbs_lane *l, const struct verbs_imm *n)
{
	struct verbs_in *in = &l->in[n->seq % VERBS_SEQS];

	if (in->seq != n->seq) {
		if ((int32_t)(n->seq - in->seq) < 0) {
			imm_bad(l);
			return;
		}
		*in = (struct verbs_in){.seq = n->seq};
	}
	if (in->done || in->parts >> n->part & 1)
		return;
	in->parts |= 1ull << n->part;
	in->done = ++in->nr_got >= n->nr_parts;
	if (in->done)
		imm_tell(l, n);
}

/* The slot is memory that the device writes: it is copied out first. */
void imm_take(struct verbs_lane *l, struct verbs_qp *q, const uint8_t *b, uint32_t len)
{
	uint8_t own[VERBS_IMM_B];
	struct verbs_imm n;

	memcpy(own, b, sizeof(own));
	if (verbs_imm_get(own, len, &n)) {
		imm_bad(l);
		return;
	}
	if (n.taken - q->imms_known <= q->imms_sent - q->imms_known)
		q->imms_known = n.taken;
	else
		imm_bad(l);
	if (n.kind == VERBS_WR_CREDIT)
		return;
	q->imms_taken++;
	if (imm_is_owed(q))
		l->owes |= qp_bit(q);
	if (!l->fail_err)
		imm_part(l, &n);
}

/* ---- One request ---- */

static struct verbs_op *wr_op(struct verbs_lane *l, const struct verbs_wr *wr)
{
	return wr->op == VERBS_NO_OP ? NULL : &l->op[wr->op];
}

/* The device has acknowledged it: it has landed. */
static void wr_done(struct verbs_lane *l, struct verbs_qp *q, const struct verbs_wr *wr)
{
	struct verbs_op *op = wr_op(l, wr);

	if (!op)
		return;
	if (wr->kind == VERBS_WR_DATA) {
		l->path[q->path].under_b -= wr->len;
		op->data_out--;
	} else {
		op->imm_out--;
	}
	op_try_end(l, op);
}

void wr_redo(struct verbs_lane *l, struct verbs_qp *q, const struct verbs_wr *wr)
{
	struct verbs_op *op = wr_op(l, wr);

	if (!op)
		return;
	op->redone = true;
	if (wr->kind == VERBS_WR_DATA) {
		l->path[q->path].under_b -= wr->len;
		op->data_redo++;
	}
	q->redo[q->redo_head++ % VERBS_SQ] = *wr; /* counts as out meanwhile */
	l->redo |= qp_bit(q);
}

/* The operation itself is at fault, so it is not sent again. */
static void wr_refused(struct verbs_lane *l, struct verbs_qp *q, const struct verbs_wr *wr, int err)
{
	struct verbs_op *op = wr_op(l, wr);

	if (!op)
		return;
	if (mem_is_dead(op->mem))
		err = -ECANCELED;
	op_set_status(l, op, err);
	if (wr->kind == VERBS_WR_DATA) {
		l->path[q->path].under_b -= wr->len;
		op->data_out--;
	} else {
		op->imm_out--;
	}
	op_try_end(l, op); /* if it had a status before, it is not in the queue */
}

/* ---- Queue pairs ---- */

/* Errors in which the device blames the request: others of the same operation would fail, too. It
 * gives the other statuses also for faults of the path: soft RoCE says LOC_QP_OP_ERR when the
 * network interface goes down or there is no room for a packet, and a peer's device REM_OP_ERR or
 * REM_INV_REQ_ERR for its own queue pair. These are tried again, VERBS_TRIES times at most. */
int verbs_wc_errno(int status)
{
	switch (status) {
	case IBV_WC_REM_ACCESS_ERR: /* bounds and rights were checked here: it was freed */
		return -ESTALE;
	case IBV_WC_LOC_LEN_ERR:
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_LOC_ACCESS_ERR:
		return -EIO;
	default: /* retries in vain, no receive, flushed, ... */
		return 0;
	}
}

void qp_fail(struct verbs_lane *l, struct verbs_qp *q, int status)
{
	int state = qp_state(q);

	/* Otherwise it is flushed because the connection ends. The core may see that before it
	 * hears why. */
	if (!l->fail_err && !atomic_load_explicit(&l->ending, memory_order_relaxed)) {
		l->nr_lost++;
		gx_stat_add(&l->core->loop.stats, GX_STAT_VERBS_QPS_LOST, 1);
	}
	atomic_store_explicit(&q->status, status, memory_order_relaxed);
	/* The control thread may make READY UP, once, or either DEAD. */
	while (qp_lives(state) && !qp_goto(q, state, VERBS_QP_FAILED))
		state = qp_state(q);
	ops_paths(l);
	qp_try_drained(q);
}

/* Nothing of it is with the device: the control thread may have it. */
void qp_try_drained(struct verbs_qp *q)
{
	if (qp_state(q) != VERBS_QP_FAILED || q->head != q->tail || q->nr_recvs || q->nr_pend ||
	    q->proving)
		return;
	q->nr_again = 0;
	qp_goto(q, VERBS_QP_FAILED, VERBS_QP_DRAINED);
}

/* How many queue pairs have failed with this request? One outage of a path fails all of them, each
 * with another request, and that says nothing of the operation. An immediate is made anew each
 * time, so its put counts how often one of its immediates failed that had failed before. */
static unsigned wr_tries(struct verbs_lane *l, struct verbs_wr *wr)
{
	struct verbs_tell *t = &l->op[wr->op].tell;
	uint64_t part = 1ull << wr->part;

	if (wr->kind == VERBS_WR_DATA)
		return ++wr->tries;
	if (t->parts_failed & part) {
		t->tries++;
		t->parts_failed = 0;
	}
	t->parts_failed |= part;
	return t->tries + 1u;
}

static void send_failed(struct verbs_lane *l, struct verbs_qp *q, uint32_t number, int status)
{
	bool first = qp_state(q) == VERBS_QP_UP;
	struct verbs_wr *wr;
	int err;

	if (first)
		qp_fail(l, q, status);
	/* The first error of a queue pair says that all before it is done. Of one that is being
	 * flushed, what has no completion of its own is not known: it is sent again. */
	while (q->tail != number) {
		wr = &q->sent[q->tail++ % VERBS_SQ];
		if (first && status != IBV_WC_WR_FLUSH_ERR)
			wr_done(l, q, wr);
		else
			wr_redo(l, q, wr);
	}
	wr = &q->sent[q->tail++ % VERBS_SQ];
	err = verbs_wc_errno(status);
	if (!err && status != IBV_WC_WR_FLUSH_ERR && wr->op != VERBS_NO_OP &&
	    wr_tries(l, wr) >= VERBS_TRIES)
		err = -EIO;
	if (err)
		wr_refused(l, q, wr, err);
	else
		wr_redo(l, q, wr);
}

static void send_one(struct verbs_lane *l, struct verbs_qp *q, uint32_t number, int status)
{
	if (number - q->tail >= q->head - q->tail) { /* not of this life, or nonsense */
		l->nr_bad++;
		return;
	}
	if (status != IBV_WC_SUCCESS) {
		send_failed(l, q, number, status);
		return;
	}
	while (q->tail != number + 1)
		wr_done(l, q, &q->sent[q->tail++ % VERBS_SQ]);
}

/* ---- Receives ---- */

int verbs_recv(struct verbs_qp *q, const uint32_t slots[], unsigned n, uint32_t lkey)
{
	struct ibv_recv_wr wr[VERBS_BATCH], *bad = NULL;
	struct ibv_sge sge[VERBS_BATCH];
	bool refused;

	for (unsigned i = 0; i < n; i++) {
		uint8_t *at = q->recv_slots + (size_t)slots[i] * VERBS_SLOT_B;

		sge[i] = (struct ibv_sge){(uintptr_t)at, VERBS_SLOT_B, lkey};
		wr[i] = (struct ibv_recv_wr){.wr_id = wr_id(q, true, slots[i]),
					     .next = i + 1 < n ? &wr[i + 1] : NULL,
					     .sg_list = &sge[i],
					     .num_sge = 1};
	}
	refused = n && ibv_post_recv(q->qp, wr, &bad);
	if (refused) /* the device has those before *bad */
		n = bad >= wr && bad < wr + n ? (unsigned)(bad - wr) : 0;
	q->nr_recvs += n;
	return refused ? -EIO : 0;
}

static void recv_again(struct verbs_lane *l, struct verbs_qp *q)
{
	unsigned n = q->nr_again;

	q->nr_again = 0;
	if (!n || l->fail_err || !qp_lives(qp_state(q)))
		return;
	if (verbs_recv(q, q->again, n, l->path[q->path].slots_mr->lkey)) {
		qp_fail(l, q, IBV_WC_GENERAL_ERR);
		atomic_store_explicit(&q->want_err, true, memory_order_release);
	}
}

static void recv_one(struct verbs_lane *l, struct verbs_qp *q, const struct ibv_wc *wc)
{
	uint32_t slot = (uint32_t)wc->wr_id % VERBS_RQ;

	if (!q->nr_recvs) {
		l->nr_bad++;
		return;
	}
	q->nr_recvs--;
	if (wc->status != IBV_WC_SUCCESS) {
		if (qp_lives(qp_state(q)))
			qp_fail(l, q, wc->status);
		return;
	}
	imm_take(l, q, q->recv_slots + (size_t)slot * VERBS_SLOT_B, wc->byte_len);
	q->again[q->nr_again++] = slot;
	l->again |= qp_bit(q);
	if (q->nr_again == VERBS_BATCH)
		recv_again(l, q);
}

/* ---- A burst ---- */

/* Nothing of its send queue will have a completion any more. */
static void qp_forget(struct verbs_lane *l, struct verbs_qp *q)
{
	while (q->tail != q->head)
		wr_redo(l, q, &q->sent[q->tail++ % VERBS_SQ]);
}

/* The peer's device has answered, or not; or the queue pair is being flushed. */
static void mark_one(struct verbs_lane *l, struct verbs_qp *q, int status)
{
	q->proving -= q->proving != 0;
	if (status == IBV_WC_SUCCESS && q->proving) {
		q->reached = true;
		return;
	}
	if (status == IBV_WC_SUCCESS) {
		atomic_store_explicit(&q->holed, false, memory_order_relaxed);
		atomic_store_explicit(&q->proven, true, memory_order_relaxed);
		if (qp_state(q) == VERBS_QP_READY)
			qp_goto(q, VERBS_QP_READY, VERBS_QP_UP); /* unless it was given up */
		ops_paths(l);
		return;
	}
	verbs_probe_failed(q, status);
	if (qp_lives(qp_state(q)))
		qp_fail(l, q, status);
	qp_forget(l, q);
}

/* The queue pair that a completion names. NULL: of an earlier life, or nonsense. */
static struct verbs_qp *cq_qp(struct verbs_lane *l, uint64_t id)
{
	unsigned i = id >> 56;
	struct verbs_qp *q = &l->qp[i];
	int state = i < l->nr_qps ? qp_state(q) : VERBS_QP_DEAD;

	if (!qp_lives(state) && state != VERBS_QP_FAILED)
		return NULL;
	return (id >> 32 & 0xff) == (q->gen & 0xff) ? q : NULL;
}

static void cq_one(struct verbs_lane *l, const struct ibv_wc *wc)
{
	struct verbs_qp *q = cq_qp(l, wc->wr_id);

	if (!q) {
		l->nr_bad++;
		return;
	}
	if (gx_unlikely(atomic_load_explicit(&q->has_quit, memory_order_relaxed)))
		return; /* the control thread has told the peer by now how many immediates were taken */
	if (wc->wr_id & VERBS_ID_MARK)
		mark_one(l, q, wc->status);
	else if (wc->wr_id & VERBS_ID_RECV)
		recv_one(l, q, wc);
	else
		send_one(l, q, (uint32_t)wc->wr_id, wc->status);
	qp_try_drained(q);
}

/* Each receive may be a notification, until the lane fails. Is there room for a burst of them? */
static bool comp_room(const struct verbs_lane *l)
{
	const struct gx_core *core = l->core;
	uint32_t tail = atomic_load_explicit(&core->comp_tail, memory_order_relaxed);

	if (l->fail_err)
		return true;
	return core->comp_head - tail + core->comps_due + CQ_BURST + 2 <= GX_COMPS_MAX;
}

/* The control thread gave it up before everything came back: nothing more will come. */
static void qp_bury(struct verbs_lane *l, struct verbs_qp *q)
{
	qp_forget(l, q);
	q->nr_recvs = q->nr_again = 0;
}

/* The control thread has it end. If it has drained, nothing of it is the core's any more. */
static void qp_quit(struct verbs_lane *l, struct verbs_qp *q, int state)
{
	if (qp_lives(state))
		qp_fail(l, q, IBV_WC_FATAL_ERR);
	/* Pairs with the acquire in verbs_mend.c: imms_taken is final. */
	atomic_store_explicit(&q->has_quit, true, memory_order_release);
}

static bool path_reap(struct verbs_lane *l, struct verbs_path *w)
{
	struct ibv_wc wc[CQ_BURST];
	bool worked = false;
	int n = CQ_BURST;

	/* Where there is no other path, the connection ends, and takes what still comes. */
	if (!w->cq || (l->nr_paths > 1 && atomic_load_explicit(&w->broken, memory_order_relaxed)))
		return false;
	for (unsigned r = 0; r < CQ_ROUNDS && n == CQ_BURST && comp_room(l); r++) {
		n = ibv_poll_cq(w->cq, CQ_BURST, wc);
		for (int i = 0; i < n; i++)
			cq_one(l, &wc[i]);
		worked |= n > 0;
	}
	if (n < 0)
		verbs_path_broken(l, w);
	return worked;
}

/* What the control thread wants of a queue pair. */
static void qps_watch(struct verbs_lane *l)
{
	const struct verbs_qp *end = l->qp + l->nr_qps;

	for (struct verbs_qp *q = l->qp; q < end; q++) {
		int state = qp_state(q);
		bool quit = atomic_load_explicit(&q->quit, memory_order_relaxed);

		if (gx_likely(!quit && state != VERBS_QP_DEAD))
			continue;
		if (quit && (qp_lives(state) || state == VERBS_QP_FAILED))
			qp_quit(l, q, state);
		if (state == VERBS_QP_DEAD && q->head != q->tail)
			qp_bury(l, q);
	}
}

bool cq_reap(struct verbs_lane *l)
{
	bool worked = false;

	for (unsigned i = 0; i < l->nr_paths; i++)
		worked |= path_reap(l, &l->path[i]);
	qps_watch(l);
	for (; l->again; l->again &= l->again - 1) {
		struct verbs_qp *q = &l->qp[__builtin_ctzll(l->again)];

		if (qp_lives(qp_state(q)) && q->nr_again)
			recv_again(l, q);
	}
	return worked;
}
