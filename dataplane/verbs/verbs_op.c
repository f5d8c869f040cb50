/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of a lane that are under way: cancelled, late, and ended. An operation ends when nothing
 * of it is out: until then the device may read or write its memory. Runs on the polling core.
 */
#include "verbs/verbs_op.h"

#include <assert.h>
#include <errno.h>

/* ---- The end ---- */

static void op_report(const struct verbs_lane *l, const struct verbs_op *op)
{
	core_ended(&(struct core_end){.ep = l->ep,
				      .route = op->route,
				      .op = (enum gx_op_kind)op->kind,
				      .status = op->status,
				      .flags = op->flags,
				      .user = op->user,
				      .len = op->status ? 0 : op->len,
				      .tag = op->tag});
}

static void op_count(struct verbs_lane *l, const struct verbs_op *op)
{
	struct gx_stats *s = &l->core->loop.stats;

	if (op->status)
		return;
	gx_stat_add(s, op->kind == GX_OP_PUT ? GX_STAT_VERBS_PUTS : GX_STAT_VERBS_GETS, 1);
	gx_stat_add(s, GX_STAT_VERBS_BYTES, op->len);
}

void op_try_end(struct verbs_lane *l, struct verbs_op *op)
{
	if (!op->used || op->queued || op->data_out || op->imm_out)
		return;
	op->used = false;
	if (op->has_seq)
		l->seq_busy[op->tell.seq % VERBS_SEQS] = false;
	l->free[l->nr_free++] = (uint16_t)(op - l->op);
	l->nr_ops--;
	op_count(l, op);
	op_report(l, op);
}

void op_queue(struct verbs_lane *l, struct verbs_op *op)
{
	if (op->queued)
		return;
	op->queued = true;
	assert(l->queue_tail - l->queue_head < VERBS_OPS);
	l->queue[l->queue_tail++ % VERBS_OPS] = (uint16_t)(op - l->op);
}

/* What is not posted yet of @op is not posted any more; the next tx_queue() ends it. */
void op_set_status(struct verbs_lane *l, struct verbs_op *op, int status)
{
	if (!op->used || op->status)
		return;
	op->status = status;
	op->tell.parts_due = 0;
	op_queue(l, op);
}

/* ---- Paths ---- */

uint32_t paths_rest(const struct verbs_lane *l, const struct verbs_reg *reg, bool is_inline,
		    uint32_t theirs)
{
	uint32_t keyed = paths_of(l, own_rails(reg, is_inline, false), theirs);

	return keyed & ~l->away ? keyed & ~l->away : keyed & ~l->lost_seen;
}

uint32_t paths_take(const struct verbs_lane *l, const struct verbs_reg *reg, bool is_inline,
		    uint32_t theirs)
{
	uint32_t paths = paths_first(l, reg, is_inline, theirs);

	return paths ? paths : paths_rest(l, reg, is_inline, theirs);
}

/* ---- Early ends ---- */

int verbs_cancel(struct verbs_lane *l, uint64_t user, const struct gx_route *route)
{
	int n = 0;

	for (unsigned i = 0; l->nr_ops && i < VERBS_OPS; i++) {
		struct verbs_op *op = &l->op[i];

		if (!op->used || op->user != user || op->route != route || op->status)
			continue;
		op_set_status(l, op, -ECANCELED);
		n++;
	}
	return n;
}

void ops_deadlines(struct verbs_lane *l, uint64_t now_ns)
{
	l->deadline_ns = UINT64_MAX;
	for (unsigned i = 0; i < VERBS_OPS; i++) {
		struct verbs_op *op = &l->op[i];

		if (!op->used || !op->deadline_ns || op->status)
			continue;
		if (op->deadline_ns <= now_ns)
			op_set_status(l, op, -ETIMEDOUT);
		else
			l->deadline_ns = GX_MIN(l->deadline_ns, op->deadline_ns);
	}
}

/* While it has no status, the registration of its memory is there (verbs_drop()). */
static uint32_t under_way_paths(const struct verbs_lane *l, const struct verbs_op *op)
{
	uint32_t theirs = l->region[op->token % GX_REGIONS_MAX].rails;

	return paths_take(l, reg_of(op->mem), op->is_inline, theirs);
}

void ops_paths(struct verbs_lane *l)
{
	uint32_t up = 0;

	if (l->nr_paths == 1 || l->fail_err)
		return;
	for (unsigned i = 0; i < l->nr_qps; i++)
		up |= (uint32_t)(qp_state(&l->qp[i]) == VERBS_QP_UP) << l->qp[i].path;
	l->away = l->lost_seen | ~up;
	for (unsigned i = 0; l->nr_ops && i < VERBS_OPS; i++) {
		struct verbs_op *op = &l->op[i];

		if (!op->used || op->status)
			continue;
		op->paths = under_way_paths(l, op);
		if (!op->paths)
			op_set_status(l, op, -ENETUNREACH);
	}
}

void ops_lost(struct verbs_lane *l)
{
	l->lost_seen = atomic_load_explicit(&l->lost, memory_order_relaxed);
	ops_paths(l);
}

/* A request that is out cannot be taken back: the memory is held until it has come back. One that
 * waits to be sent again has come back; nothing reads or writes the memory for it any more, and the
 * operation ends when the peer's end can take nothing of it in either. */
void verbs_drop(struct verbs_lane *l, struct drop *d)
{
	for (unsigned i = 0; l->nr_ops && i < VERBS_OPS; i++) {
		struct verbs_op *op = &l->op[i];

		if (!op->used || !mem_is_dead(op->mem))
			continue;
		op_set_status(l, op, -ECANCELED);
		if (op->data_out > op->data_redo)
			drop_hold(d, op->mem);
	}
}
