/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane: the operations that it takes, its turn, and its end. A put or get is posted at once as far
 * as there is room. Runs on the polling core.
 */
#include "verbs/verbs_op.h"

#include <errno.h>

/* ---- Taken ---- */

/* The peer's region that @op names, whole and with the right to it; NULL: packets report the
 * error, if it is one. */
static const struct verbs_region *region_find(const struct verbs_lane *l, const struct gx_op *op)
{
	const struct verbs_region *r = &l->region[op->token % GX_REGIONS_MAX];
	unsigned access = op->kind == GX_OP_PUT ? GX_ACCESS_PUT : GX_ACCESS_GET;

	if (r->token != op->token || !(r->access & access))
		return NULL;
	if (op->remote_off > r->len || op->len > r->len - op->remote_off)
		return NULL;
	return r;
}

/* Do the bytes travel in the request? */
static inline bool op_inlines(const struct verbs_lane *l, const struct gx_op *op)
{
	return op->kind == GX_OP_PUT && (!op->mem || op->mem->kind == GX_MEM_HOST) &&
	       op->len <= l->inline_b;
}

/* What an operation has from its poster. */
static inline void op_fill(struct verbs_op *op, const struct gx_op *user, struct gx_route *route,
			   const struct verbs_region *r, const struct verbs_reg *reg)
{
	op->kind = (uint8_t)user->kind;
	op->flags = user->flags &
		    (user->kind == GX_OP_PUT ? GX_OP_IMM | GX_OP_LOCAL | GX_OP_SILENT | OP_HIDDEN
					     : GX_OP_SILENT);
	op->route = route;
	op->user = user->user;
	op->tag = user->tag;
	op->deadline_ns = user->deadline_ns;
	op->mem = user->mem;
	op->mine = user->mem ? user->mem->addr + user->off : user->addr;
	op->theirs = r->addr + user->remote_off;
	op->lkey = reg ? reg->lkey : NULL;
	op->rkey = r->rkey;
	op->token = user->token;
	op->len = user->len;
	if (op->flags & GX_OP_IMM)
		op->tell = (struct verbs_tell){.off = user->remote_off, .imm = user->imm};
}

/* Nothing of it is under way. */
static inline void op_clear(struct verbs_op *op)
{
	op->used = true;
	op->queued = op->redone = op->has_seq = false;
	op->status = 0;
	op->posted_b = 0;
	op->data_out = op->imm_out = op->data_redo = 0;
}

static inline int op_begin(struct verbs_lane *l, const struct gx_op *user, struct gx_route *route,
			   const struct verbs_region *r, bool is_inline, uint32_t paths)
{
	struct verbs_op *op;

	if (l->fail_err)
		return -ENOTCONN;
	if (l->nr_ops == VERBS_OPS || !core_post_room(l->core, l->nr_ops))
		return -EAGAIN;
	op = &l->op[l->free[--l->nr_free]];
	op_clear(op);
	op_fill(op, user, route, r, reg_of(user->mem));
	op->is_inline = is_inline;
	op->paths = paths;
	l->nr_ops++;
	core_began(l->core, op->flags);
	if (op->deadline_ns)
		l->deadline_ns = GX_MIN(l->deadline_ns, op->deadline_ns);
	tx_first(l, op);
	return 0;
}

int verbs_post(struct verbs_lane *l, const struct gx_op *user, struct gx_route *route)
{
	const struct verbs_region *r = region_find(l, user);
	bool is_inline;
	uint32_t paths;

	if (!r)
		return -EOPNOTSUPP;
	is_inline = op_inlines(l, user);
	paths = paths_first(l, reg_of(user->mem), is_inline, r->rails);
	if (gx_unlikely(!paths))
		paths = paths_rest(l, reg_of(user->mem), is_inline, r->rails);
	return gx_likely(paths) ? op_begin(l, user, route, r, is_inline, paths) : -EOPNOTSUPP;
}

/* ---- A turn ---- */

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
