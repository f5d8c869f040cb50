/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completions of the random load against the model: each operation ends once, with a status that what
 * was done to it allows; all bytes are there then; notes, sends and fences keep the order of gx.h.
 */
#include "sim/all.h"

#include <errno.h>
#include <string.h>

/* The last note of a stream of notes: of an endpoint and queue, or of a striped connection and queue. */
static struct {
	uint32_t life, queue_life, last;
	uint8_t side, lane, queue;
	bool striped;
} order[512];
static unsigned nr_order;

void order_forget(void)
{
	nr_order = 0;
}

static struct aop *op_of(uint64_t id)
{
	if (!id || id > world->nr_ops)
		wrong("a completion of operation %llu, which never was", (unsigned long long)id);
	return &world->op[id];
}

static uint32_t id_of(const struct aop *op)
{
	return (uint32_t)(op - world->op);
}

bool *messages_fail(const struct aop *op)
{
	int from = op->kind == GX_OP_SEND ? op->side : !op->side;

	return &world->send_failed[op->life][from][op->lane];
}

/* ---- its memory ---- */

static void cells_free(struct cell *c[], unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		cell_free(c[i]);
		c[i] = NULL;
	}
}

void aop_let_go(struct aop *op)
{
	bool put = op->kind == GX_OP_PUT;

	cells_free(op->from, op->nr_segs);
	if (put && op->status)
		for (unsigned i = 0; i < op->nr_segs; i++) {
			if (op->to[i])
				op->to[i]->state = CELL_STAIN;
		}
	else
		cells_free(op->to, op->nr_segs);
}

static bool op_is_full(const struct aop *op)
{
	for (unsigned i = 0; i < op->nr_segs; i++)
		if (op->to[i] && !cell_is_full(op->to[i]))
			return false;
	return true;
}

/* ---- how it may end ---- */

/* Is there a receive that a send is too long for? */
static bool some_are_short(const struct aop *send)
{
	for (uint32_t i = 1; i <= world->nr_ops; i++) {
		const struct aop *op = &world->op[i];

		if (op->kind == GX_OP_RECV && op->life == send->life && op->side != send->side &&
		    op->lane == send->lane && op->len < send->len)
			return true;
	}
	return false;
}

static bool status_may_be(const struct aop *op, int status)
{
	const struct key *k = op->key >= 0 && op->kind <= GX_OP_GET ? &world->key[op->key] : NULL;

	if (link_is_over(op->life) || world->life[op->life].cut)
		return true;
	if (op->must && status == op->must)
		return true;
	switch (status) {
	case 0:
		return !op->must;
	case -ECANCELED:
		return op->cancelled || op->freed || (op->kind == GX_OP_GET && op->stale) ||
		       (is_message(op) && *messages_fail(op));
	case -ETIMEDOUT:
		return (op->deadline_ns && world->now_ns >= op->deadline_ns) ||
		       (is_message(op) && *messages_fail(op));
	case -EOPNOTSUPP:
		return op->may_refuse;
	case -ESTALE:
		return op->stale || (k && k->until_ns && world->now_ns >= k->until_ns);
	case -EMSGSIZE:
		return op->kind == GX_OP_SEND && some_are_short(op);
	default:
		return false;
	}
}

static void check_status(struct aop *op, int status)
{
	bool fails = status < 0;

	if (!status_may_be(op, status))
		wrong("operation %u (kind %d) ended with %d (%s), and nothing was done to it that "
		      "allows this",
		      id_of(op), op->kind, status, strerror(-status));
	if (!fails && op->flags & GX_OP_SILENT)
		wrong("operation %u is silent, and ended well with a completion", id_of(op));
	if (fails && is_message(op))
		*messages_fail(op) = true;
}

/* ---- fences ---- */

static bool same_stream(const struct aop *a, const struct aop *b)
{
	return a->life == b->life && a->side == b->side && a->lane == b->lane &&
	       a->queue == b->queue && a->queue_life == b->queue_life && !a->striped && !b->striped;
}

/* One that ends early holds up nobody any more. */
static bool is_fence(const struct aop *op)
{
	if (op->kind != GX_OP_FLUSH && !(op->flags & GX_OP_FENCE))
		return false;
	return !op->cancelled && !op->freed && !op->deadline_ns && !op->status;
}

/* @op has ended well: has all ended that it, or a fence before it, waited for? */
static void check_fences(const struct aop *op)
{
	const struct aop *open = NULL;

	if (op->queue == ALL_QUEUES || op->striped || op->kind == GX_OP_RECV)
		return;
	for (const struct aop *x = &world->op[1]; x <= op; x++) {
		if (!same_stream(x, op) || x->kind == GX_OP_RECV)
			continue;
		if (open && is_fence(x))
			wrong("operation %u has ended before operation %u, though %u is a fence",
			      id_of(op), id_of(open), id_of(x));
		if (x->state == OPS_OPEN && !(x->flags & GX_OP_SILENT))
			open = x;
	}
}

/* ---- sends and receives ---- */

static bool tag_fits(const struct aop *send, const struct aop *recv)
{
	return !((send->tag ^ recv->tag) & recv->mask) && send->len <= recv->len;
}

/* Of two sends the earlier one takes the older of two receives that it fits. */
static void check_match_order(const struct aop *recv, const struct aop *send)
{
	if (*messages_fail(send))
		return;
	for (uint32_t i = 1; i <= world->nr_ops; i++) {
		const struct aop *r = &world->op[i], *s = &world->op[r->got];

		if (r->kind != GX_OP_RECV || !r->got || !same_stream(r, recv) ||
		    !same_stream(s, send))
			continue;
		if ((s < send && r > recv && tag_fits(s, recv)) ||
		    (send < s && recv > r && tag_fits(send, r)))
			wrong("sends %u and %u came to receives %u and %u: not in order", id_of(s),
			      id_of(send), id_of(r), id_of(recv));
	}
}

static void check_recv_bytes(const struct aop *recv, const struct aop *send)
{
	static uint8_t want[65536];
	const uint8_t *b = cell_at(recv->to[0]);

	pattern_fill(want, id_of(send), 0, (uint32_t)send->len);
	if (memcmp(b, want, send->len))
		wrong("receive %u: wrong bytes of send %u", id_of(recv), id_of(send));
	for (uint64_t i = send->len; i < recv->len; i++)
		if (b[i] != ALL_POISON && !*messages_fail(send))
			wrong("receive %u: byte %llu behind a message of %llu was written",
			      id_of(recv), (unsigned long long)i, (unsigned long long)send->len);
}

static void recv_done(struct aop *recv, const struct gx_comp *comp)
{
	struct aop *send = op_of(comp->tag >> 8);

	if (send->kind != GX_OP_SEND || send->life != recv->life || send->side == recv->side ||
	    send->lane != recv->lane)
		wrong("receive %u took operation %u, which is no send to it", id_of(recv),
		      id_of(send));
	if (send->got)
		wrong("send %u came twice: to %u and %u", id_of(send), send->got, id_of(recv));
	if (!tag_fits(send, recv) || comp->len != send->len || comp->tag != send->tag)
		wrong("receive %u took send %u, of other tag or length (%llu)", id_of(recv),
		      id_of(send), (unsigned long long)comp->len);
	send->got = id_of(recv);
	recv->got = id_of(send);
	if (recv->to[0])
		check_recv_bytes(recv, send);
	check_match_order(recv, send);
}

/* ---- the end of an operation ---- */

static void check_bytes(const struct aop *op, const struct gx_comp *comp)
{
	if (op->kind != GX_OP_FLUSH && comp->len != op->len)
		wrong("operation %u of %llu bytes says %llu", id_of(op),
		      (unsigned long long)op->len, (unsigned long long)comp->len);
	if (op->kind == GX_OP_PUT && op->stale && !op->stale_full)
		wrong("put %u ended well, and its bytes were not there when the peer took its memory "
		      "back",
		      id_of(op));
	if (op->kind <= GX_OP_GET && !op_is_full(op))
		wrong("operation %u (kind %d) ended well, and not all of its bytes are there",
		      id_of(op), op->kind);
}

static void op_done(struct aop *op, const struct gx_comp *comp)
{
	check_status(op, comp->status);
	if (comp->op != op->kind)
		wrong("operation %u of kind %d ended as kind %d", id_of(op), op->kind, comp->op);
	if (!comp->status && op->kind == GX_OP_RECV)
		recv_done(op, comp);
	else if (!comp->status)
		check_bytes(op, comp);
	if (!comp->status && op->flags & GX_OP_LOCAL && op->nr_local != 1)
		wrong("operation %u ended without GX_COMP_LOCAL", id_of(op));
	if (!comp->status)
		check_fences(op);
	op->state = OPS_ENDED;
	op->status = comp->status;
	op->ended_ns = world->now_ns;
	aop_let_go(op);
	world->nr_open--;
	if (comp->status)
		world->counts.ended_ill++;
	else
		world->counts.ended_well++;
}

/* The program may use the buffer again. */
static void op_local(struct aop *op, const struct gx_comp *comp)
{
	if (!(op->flags & GX_OP_LOCAL) || op->nr_local++ ||
	    (comp->status && !status_may_be(op, comp->status)))
		wrong("operation %u: GX_COMP_LOCAL that nobody asked for, or %d", id_of(op),
		      comp->status);
	cells_free(op->from, op->nr_segs);
}

/* ---- what a peer's put tells ---- */

static void check_note_order(const struct aop *op)
{
	unsigned i;

	for (i = 0; i < nr_order; i++)
		if (order[i].life == op->life && order[i].side == op->side &&
		    order[i].queue == op->queue && order[i].queue_life == op->queue_life &&
		    order[i].striped == op->striped && (op->striped || order[i].lane == op->lane))
			break;
	if (i == GX_ARRAY_SIZE(order))
		return;
	if (i < nr_order && order[i].last > id_of(op))
		wrong("note %u came behind note %u", id_of(op), order[i].last);
	nr_order += i == nr_order;
	order[i].life = op->life;
	order[i].side = op->side;
	order[i].lane = op->lane;
	order[i].queue = op->queue;
	order[i].queue_life = op->queue_life;
	order[i].striped = op->striped;
	order[i].last = id_of(op);
}

static void check_note(const struct aop *op, const struct gx_comp *comp)
{
	static uint8_t want[GX_NOTE_MAX];
	uint32_t id = id_of(op);

	memcpy(want, &id, sizeof(id));
	if (op->note_len > 4)
		pattern_fill(want + 4, id, 4, op->note_len - 4);
	if (!(op->flags & GX_OP_NOTE) || comp->note_len != op->note_len ||
	    memcmp(comp->note, want, op->note_len))
		wrong("note %u is another one, or has other bytes (%u, not %u)", id, comp->note_len,
		      op->note_len);
	check_note_order(op);
	world->counts.notes++;
}

static void check_imm(const struct aop *op, const struct gx_comp *comp)
{
	const struct cell *last = op->nr_segs ? op->to[op->nr_segs - 1] : NULL;
	bool whole = !op->is_list && !op->is_view && !op->striped;

	if (!(op->flags & GX_OP_IMM))
		wrong("an immediate of operation %u, which has none", id_of(op));
	if (whole && comp->len != op->len)
		wrong("immediate %u says %llu bytes, not %llu", id_of(op),
		      (unsigned long long)comp->len, (unsigned long long)op->len);
	if (whole && last && comp->off != last->off - (op->key < 0 ? 0 : world->key[op->key].off))
		wrong("immediate %u says it is at %llu", id_of(op), (unsigned long long)comp->off);
	if (op->is_view && (comp->len || comp->off != op->remote_off))
		wrong("immediate %u of views says %llu bytes at %llu", id_of(op),
		      (unsigned long long)comp->len, (unsigned long long)comp->off);
}

static void notified(unsigned node, unsigned queue, const struct gx_comp *comp)
{
	uint32_t id;
	struct aop *op;

	if (comp->note)
		memcpy(&id, comp->note, sizeof(id));
	else
		id = (uint32_t)comp->imm;
	op = op_of(id);
	trace("node %u, queue %u: %s of %u", node, queue, comp->note ? "note" : "immediate", id);
	if (op->kind != GX_OP_PUT || op->peer != node || op->must)
		wrong("node %u is told of operation %u, which is no put to it", node, id);
	if (op->nr_notify++)
		wrong("node %u is told of operation %u twice", node, id);
	if (comp->note)
		check_note(op, comp);
	else
		check_imm(op, comp);
	if (op->state == OPS_OPEN && !op->stale && !op_is_full(op))
		wrong("node %u is told of put %u, and not all of its bytes are there", node, id);
	hash_add(id);
}

void comp_take(unsigned node, unsigned queue, const struct gx_comp *comp)
{
	struct aop *op;

	if (comp->kind == GX_COMP_NOTIFY) {
		notified(node, queue, comp);
		return;
	}
	op = op_of(comp->user);
	trace("node %u, queue %u: operation %u, %s: %s", node, queue, id_of(op),
	      comp->kind == GX_COMP_LOCAL ? "local" : "done", strerror(-comp->status));
	hash_add(comp->user * 2048 + (uint64_t)comp->kind * 512 + (uint64_t)-comp->status);
	if (op->node != node || op->queue != queue)
		wrong("operation %u of node %u and queue %u ended at node %u, queue %u", id_of(op),
		      op->node, op->queue, node, queue);
	if (op->state != OPS_OPEN || op->dropped)
		wrong("operation %u ends twice", id_of(op));
	if (comp->kind == GX_COMP_LOCAL)
		op_local(op, comp);
	else
		op_done(op, comp);
}

/* ---- at the end ---- */

static void silent_end(struct aop *op)
{
	if (op->kind == GX_OP_PUT && op->stale && !op->stale_full)
		wrong("silent put %u: nobody says that it failed", id_of(op));
	if (op->must || (op->kind <= GX_OP_GET && !op_is_full(op)))
		wrong("silent operation %u has not done what it should, and says nothing",
		      id_of(op));
	op->state = OPS_ENDED;
	aop_let_go(op);
}

void comps_end(void)
{
	for (uint32_t i = 1; i <= world->nr_ops; i++) {
		struct aop *op = &world->op[i];

		if (op->dropped || link_is_over(op->life))
			continue;
		if (op->state == OPS_OPEN && op->flags & GX_OP_SILENT)
			silent_end(op);
		if (op->state == OPS_OPEN)
			wrong("operation %u (kind %d) has not ended", i, op->kind);
		if (!op->status && op->flags & (GX_OP_IMM | GX_OP_NOTE) && op->nr_notify != 1)
			wrong("put %u has ended well, and the peer is not told", i);
		if (!op->status && op->kind == GX_OP_SEND && !op->got && !*messages_fail(op))
			wrong("send %u has ended well, and no receive has it", i);
	}
}
