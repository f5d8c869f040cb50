// SPDX-License-Identifier: Apache-2.0
/*
 * Operations of the local link that are under way: this core copies them in slices, or a GPU's copy
 * engines copy them, until their completion. Runs on the polling core.
 */
#include "local/link_local.h"

#include "list/view_gpu.h"

#include <errno.h>

#define LOCAL_SLICE_B (256u << 10) /* bytes copied before another operation has its turn */
#define LOCAL_STREAM_B                                                                             \
	(32u << 20) /* from this length on stores bypass the cache, which is too small */

/* ---- Completions ---- */

void local_op_report(struct local_ep *e, const struct local_op *op)
{
	core_ended(&(struct core_end){.ep = &e->pkt.ep,
				      .route = op->route,
				      .op = op->kind,
				      .status = op->status,
				      .flags = op->flags,
				      .user = op->user,
				      .len = op->status ? 0 : op->len,
				      .tag = op->tag});
	/* Pairs with the acquire in local_keys_tick(): no byte of the mapping is touched any more. */
	if (op->key)
		atomic_fetch_sub_explicit(&op->key->users, 1, memory_order_release);
}

/* ---- Copies by this core ---- */

/* Once a turn, not for each small operation. */
void local_made_tell(struct local_ep *e)
{
	struct local_made *made = &e->tx->made;

	atomic_store_explicit(&made->gets, e->made[0], memory_order_relaxed);
	atomic_store_explicit(&made->puts, e->made[1], memory_order_relaxed);
	atomic_store_explicit(&made->bytes, e->made_b, memory_order_relaxed);
	e->made_due = false;
}

/* End an operation: notify the peer, then the user. False: the peer's ring is full. */
static bool op_end(struct local_ep *e, const struct local_op *op)
{
	if (op->flags & GX_OP_IMM && !op->status) {
		if (!local_imm_room(e))
			return false;
		local_imm_put(e, core_token_hide(op->token, op->flags), op->off, op->len, op->imm);
	}
	if (!op->status)
		local_ops_count(e, op->kind, 1, op->len);
	local_op_report(e, op);
	return true;
}

static void op_stale(struct local_ep *e, struct local_op *op)
{
	op->status = -ESTALE;
	gx_stat_add(local_stats(e), GX_STAT_STALE, 1);
}

static void op_copy(struct local_ep *e, struct local_op *op, uint64_t n)
{
	if (op->key && !local_key_enter(e, op->key)) {
		op_stale(e, op);
		return;
	}
	if (op->list)
		local_move(op->list->views, op->kind == GX_OP_PUT, op->dst, op->src,
			   op->list->from + op->done_b, n);
	else if (op->len >= LOCAL_STREAM_B)
		gx_copy_stream(op->dst + op->done_b, op->src + op->done_b, n);
	else
		gx_copy(op->dst + op->done_b, op->src + op->done_b, n);
	if (op->key && !local_key_leave(e, op->key, op->kind))
		op_stale(e, op);
}

/* Bytes of a slice: fewer in short runs, which the core looks for one by one. */
static uint64_t slice_b(const struct local_op *op)
{
	uint64_t b = op->list ? op->list->pieces.b : LOCAL_RUN_B;

	return LOCAL_SLICE_B / LOCAL_RUN_B * GX_MIN(b, LOCAL_RUN_B);
}

/* Copy one slice of @op. Return: has it ended? */
static bool op_slice(struct local_ep *e, struct local_op *op)
{
	uint64_t room = slice_b(op), n = GX_MIN(op->len - op->done_b, room);

	if (!op->status && n && local_is_revoked(e, op->bit))
		op->status = -ESTALE;
	if (!op->status && n) {
		op_copy(e, op, n);
		if (op->status)
			return op_end(e, op);
		op->done_b += n;
		e->link->budget_b -= GX_MIN(e->link->budget_b,
					    (uint32_t)(room < LOCAL_SLICE_B ? LOCAL_SLICE_B : n));
		if (op->done_b < op->len)
			return false;
	}
	return op_end(e, op);
}

/* Round robin: an operation that has not ended goes to the end of the queue. */
static bool ops_turn(struct local_ep *e)
{
	uint32_t last = e->tail;
	bool worked = false, waits = false; /* an operation waits for room in the ring */

	while (e->head != last && e->link->budget_b) {
		struct local_op *op = &e->ops[e->head % LOCAL_OPS];
		uint64_t before = op->done_b;

		if (op_slice(e, op)) {
			e->head++;
			worked = true;
			continue;
		}
		worked |= op->done_b != before;
		waits |= op->done_b == op->len;
		e->ops[e->tail++ % LOCAL_OPS] = *op;
		e->head++;
	}
	e->waits = waits;
	return worked;
}

/* ---- Copies by copy engines ---- */

static unsigned dma_hints(const struct local_op *op)
{
	/* Pairs with the release in pair_time(). */
	bool lone = op->pair && atomic_load_explicit(&op->pair->kernel, memory_order_acquire);

	return (lone ? DMA_LONE : 0) | (op->flags & OP_MANY ? DMA_MANY : 0);
}

/* A copy with a key's memory is about to begin: the owner waits for it from here on. */
static void dma_key_begin(struct local_ep *e, struct local_op *op)
{
	op->key_no = e->key_begun++;
	/* In the order of all threads before the look at the key: see lane_is_past(). */
	atomic_exchange(&e->tx->inside.begun, e->key_begun);
}

/* Copy @no has ended, or does not begin: which is the oldest now? */
static void dma_key_end(struct local_ep *e, uint32_t no)
{
	uint32_t oldest = e->key_begun;

	if (no != atomic_load_explicit(&e->tx->inside.oldest, memory_order_relaxed))
		return;
	for (unsigned i = 0; i < e->nr_dma; i++) {
		const struct local_op *op = &e->dma[i];

		if (op->key && op->begun && (int32_t)(op->key_no - oldest) < 0)
			oldest = op->key_no;
	}
	if (!e->key_stuck)
		atomic_store_explicit(&e->tx->inside.oldest, oldest, memory_order_release);
}

static bool move_is_whole(const struct local_op *op)
{
	return !op->list || op->moved == op->list->pieces.end - op->list->pieces.first;
}

/* As many launches as there is room for. Return: did one begin? */
static bool move_begin(struct local_op *op, uint64_t now_ns)
{
	const struct list_pieces *p = &op->list->pieces;
	const struct list_views *v = op->list->views;
	bool put = op->kind == GX_OP_PUT;
	struct gx_move m = {.piece_b = p->b};
	uint32_t before = op->moved, n;

	view_end(&m.src, put ? &v->local : &v->remote, op->src);
	view_end(&m.dst, put ? &v->remote : &v->local, op->dst);
	do {
		m.first = p->first + op->moved;
		m.nr = (uint32_t)(p->end - m.first);
		n = m.nr ? dma_move(op->dma, &m, now_ns, &op->ticket) : 0;
		op->moved += n;
	} while (n);
	return op->moved != before;
}

static bool copy_begin(struct local_op *op, uint64_t now_ns)
{
	return op->list ? move_begin(op, now_ns)
			: dma_copy(op->dma, op->dst, op->src, op->len, dma_hints(op), now_ns,
				   &op->ticket);
}

/* Views: also to begin more of it. */
bool local_dma_begin(struct local_ep *e, struct local_op *op, uint64_t now_ns)
{
	bool was = op->begun, began;

	if (!op->status && local_is_revoked(e, op->bit))
		op->status = -ESTALE;
	if (!op->status && dma_err(op->dma))
		op->status = -EIO;
	if (op->status)
		return false;
	if (op->key && !was)
		dma_key_begin(e, op);
	if (op->key && !local_key_holds(op->key))
		op_stale(e, op);
	began = !op->status && copy_begin(op, now_ns);
	op->begun |= began;
	e->nr_begun += began && !was;
	if (op->key && !op->begun)
		dma_key_end(e, op->key_no);
	return began;
}

/* If the GPU failed, it may still write later: the operation fails, and the mapping stays. */
static bool dma_has_ended(struct local_ep *e, struct local_op *op)
{
	if (!op->begun)
		return op->status || op->done_b;
	if (!dma_done(op->dma, op->ticket)) {
		if (!dma_err(op->dma))
			return false;
		op->status = -EIO;
		e->key_stuck |= op->key != NULL;
		atomic_store_explicit(&local_conn_of(e->pkt.ep.conn)->stuck, true,
				      memory_order_release);
	}
	op->begun = false;
	e->nr_begun--;
	if (op->key && op->kind == GX_OP_GET && !op->status && !local_key_holds(op->key))
		op_stale(e, op);
	if (op->key)
		dma_key_end(e, op->key_no);
	if (!move_is_whole(op) && !op->status)
		return false;
	op->done_b = op->len;
	return true;
}

/* An operation that a GPU had no room for is the first of the next turn: others that follow leave none
 * behind. Return: did one begin? */
static bool dma_begin(struct local_ep *e, uint64_t now_ns)
{
	unsigned i = e->dma_next < e->nr_dma ? e->dma_next : 0;
	bool worked = false, full = false;

	for (unsigned k = e->nr_dma; k; k--) {
		struct local_op *op = &e->dma[i];
		bool due = !op->status && (op->begun ? !move_is_whole(op) : !op->done_b);

		if (due && local_dma_begin(e, op, now_ns)) {
			worked = true;
		} else if (due && !full) {
			full = true;
			e->dma_next = i;
		}
		i = i + 1 == e->nr_dma ? 0 : i + 1;
	}
	return worked;
}

/* Return: did one begin or end? */
static bool dma_turn(struct local_ep *e, uint64_t now_ns)
{
	bool worked = dma_begin(e, now_ns);

	for (unsigned i = e->nr_dma; i-- > 0;) {
		struct local_op *op = &e->dma[i];

		if (!dma_has_ended(e, op))
			continue;
		if (!op_end(e, op)) { /* the peer's ring is full */
			e->waits = true;
			continue;
		}
		*op = e->dma[--e->nr_dma];
		e->link->nr_dma--;
		worked = true;
	}
	return worked;
}

bool local_dma_drain(struct local_ep *e)
{
	for (unsigned i = e->nr_dma; i-- > 0;) {
		struct local_op *op = &e->dma[i];

		if (op->begun && !dma_has_ended(e, op))
			continue;
		op->status = op->status ? op->status : e->fail_err;
		local_op_report(e, op);
		*op = e->dma[--e->nr_dma];
		e->link->nr_dma--;
	}
	return !e->nr_dma;
}

/* Out of line, for in local_kick() its loop would save registers at each post. */
__attribute__((noinline)) void local_dma_kick(struct link_local *l, uint64_t now_ns)
{
	for (unsigned i = 0; i < l->nr_gpus; i++)
		if (l->dma[i])
			dma_kick(l->dma[i], now_ns);
}

bool local_dma_reap(struct link_local *l, uint64_t now_ns)
{
	bool worked = false;

	for (unsigned i = 0; i < l->nr_gpus; i++)
		if (l->dma[i])
			worked |= dma_reap(l->dma[i], now_ns);
	return worked;
}

/* ---- All operations of an endpoint ---- */

/* gx cannot stop a copy engine: such an operation ends, failed, when its copy has ended. */
static void op_deadline(struct local_ep *e, struct local_op *op, uint64_t now_ns)
{
	if (!op->deadline_ns || op->status)
		return;
	if (op->deadline_ns <= now_ns)
		op->status = -ETIMEDOUT;
	else
		e->deadline_ns = GX_MIN(e->deadline_ns, op->deadline_ns);
}

static void ops_deadlines(struct local_ep *e, uint64_t now_ns)
{
	e->deadline_ns = UINT64_MAX;
	for (uint32_t i = e->head; i != e->tail; i++)
		op_deadline(e, &e->ops[i % LOCAL_OPS], now_ns);
	for (unsigned i = 0; i < e->nr_dma; i++)
		op_deadline(e, &e->dma[i], now_ns);
}

bool local_ops_turn(struct local_ep *e, uint64_t now_ns)
{
	bool worked;

	if (now_ns >= e->deadline_ns)
		ops_deadlines(e, now_ns);
	worked = ops_turn(e);
	return dma_turn(e, now_ns) || worked;
}

void local_ops_fail(struct local_ep *e)
{
	for (; e->head != e->tail; e->head++) {
		struct local_op *op = &e->ops[e->head % LOCAL_OPS];

		op->status = op->status ? op->status : e->fail_err;
		local_op_report(e, op);
	}
}

/* Operations that have not begun end in the ep's next turn, and copy no more bytes. */
void local_ops_drop(struct local_ep *e, struct drop *d)
{
	for (uint32_t i = e->head; i != e->tail; i++) {
		struct local_op *op = &e->ops[i % LOCAL_OPS];

		if (mem_is_dead(op->mem) && !op->status)
			op->status = -ECANCELED;
	}
	for (unsigned i = 0; i < e->nr_dma; i++) {
		struct local_op *op = &e->dma[i];

		if (!mem_is_dead(op->mem))
			continue;
		if (!op->status)
			op->status = -ECANCELED;
		if (op->begun && !dma_has_ended(e, op))
			drop_hold(d, op->mem);
	}
}
