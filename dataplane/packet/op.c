/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of an operation of the packet link, from the post to the completion: the lists that it
 * lies in, the slots through which a peer reaches its memory, and buffers that go back to the port.
 * Runs on the polling core.
 */
#include "packet/pkt.h"
#include "packet/fetch.h"
#include "packet/op.h"
#include "gx_internal/probe.h"

#include <string.h>

void op_push(struct pkt_ep *e, uint32_t *head, uint32_t *tail, uint32_t i)
{
	e->ops[i].next = PKT_NONE;
	if (*head == PKT_NONE)
		*head = i;
	else
		e->ops[*tail].next = i;
	*tail = i;
}

void op_remove(struct pkt_ep *e, uint32_t *head, uint32_t *tail, uint32_t i)
{
	uint32_t before = PKT_NONE;

	for (uint32_t k = *head; k != i; k = e->ops[k].next) {
		if (k == PKT_NONE)
			return;
		before = k;
	}
	if (before == PKT_NONE)
		*head = e->ops[i].next;
	else
		e->ops[before].next = e->ops[i].next;
	if (*tail == i)
		*tail = before;
}

uint32_t op_alloc(struct pkt_ep *e)
{
	uint32_t i = e->tx.op_free;

	if (i != PKT_NONE)
		e->tx.op_free = e->ops[i].next;
	else if (e->tx.ops_top < PKT_OPS)
		i = e->tx.ops_top++;
	else
		return PKT_NONE;
	e->tx.nr_ops++;
	assert(e->ops[i].state == OP_FREE);
	memset(&e->ops[i], 0, offsetof(struct pkt_op, stage));
	e->ops[i].slot = e->ops[i].words = e->ops[i].next = PKT_NONE;
	e->ops[i].open_rsn = e->rec.floor - 1; /* none yet: that record is nobody's any more */
	op_goto(&e->ops[i], OP_QUEUED);
	return i;
}

void op_free(struct pkt_ep *e, uint32_t i)
{
	op_goto(&e->ops[i], OP_FREE);
	core_unuse(e->ep.core, e->ops[i].use);
	e->ops[i].next = e->tx.op_free;
	e->tx.op_free = i;
	e->tx.nr_ops--;
}

void op_unlist(struct pkt_ep *e, uint32_t i)
{
	switch (e->ops[i].state) {
	case OP_QUEUED:
		op_remove(e, &e->tx.send_head, &e->tx.send_tail, i);
		op_remove(e, &e->tx.wait_head, &e->tx.wait_tail, i);
		break;
	case OP_AGAIN:
		op_remove(e, &e->tx.wait_head, &e->tx.wait_tail, i);
		break;
	case OP_SENDING:
		op_remove(e, &e->tx.new_head, &e->tx.new_tail, i);
		op_remove(e, &e->tx.act_head, &e->tx.act_tail, i);
		break;
	}
}

static struct core_end op_end(struct pkt_ep *e, const struct pkt_op *op, int status, uint64_t len)
{
	return (struct core_end){.ep = &e->ep,
				 .route = op->route,
				 .op = op->kind,
				 .status = status,
				 .flags = op->flags,
				 .user = op->user,
				 .len = len,
				 .tag = op->tag};
}

void op_complete(struct pkt_ep *e, uint32_t i, int status, uint64_t len)
{
	struct pkt_op *op = &e->ops[i];
	struct core_end end = op_end(e, op, status, len);

	if (op->reported)
		return;
	op->reported = true;
	GX_PROBE(op_done, e, i, status, len);
	if (status && op->by == BY_PULL)
		pull_take_back(e, op); /* before the caller has the memory again */
	if (!op->internal)
		core_ended(&end);
}

/* The buffer and the segments go back to the user, so a record that goes out later, or once more, must
 * not read them. Nor may it name other memory for a list: packets that left before may come after it. */
void op_neutralise(struct pkt_ep *e, const struct pkt_op *op)
{
	struct rec_slot *s = &e->recs[op->open_rsn % PKT_RECS];

	if (!(op->by == BY_OPEN || op->segs) || s->state == REC_FREE || s->rec.rsn != op->open_rsn)
		return;
	if (gx_unlikely(op->segs)) {
		gx_wire_rec_void(&s->rec);
		return;
	}
	s->rec.flags &= ~GX_REC_INLINE;
	s->rec.open.data = NULL;
}

/* Give back its resources of the ep. The caller deals with its mid, if it has one. */
void op_drop(struct pkt_ep *e, struct pkt_op *op)
{
	if (op->words != PKT_NONE) {
		if (!msg_win_full(&op->acked))
			msg_win_clear_rest(&op->acked);
		e->tx.words_free |= 1ull << op->words;
		op->words = PKT_NONE;
	}
	fetch_end(e, op);
	if (gx_unlikely(op->pieces)) {
		op_neutralise(e, op);
		pieces_put(&e->ep, &e->pieces, op->pieces);
		op->pieces = NULL;
	}
	if (op->kind == GX_OP_GET && !op->internal)
		e->match.gets_out--;
}

void op_finish(struct pkt_ep *e, uint32_t i, int status, uint64_t len)
{
	struct pkt_op *op = &e->ops[i];

	if (op->refs) { /* op_unref() calls this once more */
		op->status = status;
		op->len = status ? op->len : len;
		op_goto(op, OP_ENDED);
		return;
	}
	op_complete(e, i, status, len);
	op_drop(e, op);
	op_free(e, i);
}

void op_local(struct pkt_ep *e, uint32_t i)
{
	struct pkt_op *op = &e->ops[i];
	struct core_end end = op_end(e, op, 0, op->len);

	if (op->refs || op->reported || op->peer_crc_by_copy || !(op->flags & GX_OP_LOCAL))
		return;
	op->flags &= ~GX_OP_LOCAL; /* it is given */
	e->ep.core->comps_due--;
	core_tell(&end, GX_COMP_LOCAL);
}

void op_done(struct pkt_ep *e, uint32_t i)
{
	struct pkt_op *op = &e->ops[i];

	e->out[op->mid % GX_WIRE_MIDS].op = PKT_NONE;
	op_unlist(e, i);
	op_neutralise(e, op);
	op_finish(e, i, op->status, op->status ? 0 : op->len);
}

void op_unref(struct link_pkt *l, uint32_t cookie)
{
	struct pkt_ep *e = l->eps[cookie >> 10];
	uint32_t i = cookie & (PKT_OPS - 1);
	struct pkt_op *op = &e->ops[i];

	op->refs--;
	e->tx.refs--;
	l->refs--;
	if (op->refs)
		return;
	if (op->state == OP_ENDED)
		op_finish(e, i, op->status, op->status ? 0 : op->len);
	else if (op->state == OP_DOOMED)
		op_complete(e, i, op->status, 0);
	else if (op->state == OP_SENT && msg_win_full(&op->acked))
		op_local(e, i);
}

uint32_t slot_alloc(struct pkt_ep *e, uint32_t op)
{
	for (uint32_t k = 0; k < PKT_SLOTS; k++) {
		uint32_t i = (e->match.slot_rover + k) % PKT_SLOTS;

		if (e->slots[i].used)
			continue;
		e->match.slot_rover = i + 1;
		e->slots[i].used = true;
		e->slots[i].bound = false;
		e->slots[i].gen++;
		e->slots[i].op = op;
		e->ops[op].slot = i;
		return i;
	}
	return PKT_NONE;
}

uint64_t slot_token(const struct pkt_ep *e, uint32_t slot)
{
	return PKT_SLOT_BIT | (uint64_t)(e->slots[slot].gen & 0x7fffffff) << 32 | slot;
}

struct pkt_slot *slot_find(struct pkt_ep *e, uint64_t token)
{
	uint32_t i = token & 0xffffffff;

	if (!(token & PKT_SLOT_BIT) || i >= PKT_SLOTS || !e->slots[i].used ||
	    slot_token(e, i) != token)
		return NULL;
	return &e->slots[i];
}

void slot_free(struct pkt_ep *e, uint32_t slot)
{
	if (slot != PKT_NONE)
		e->slots[slot].used = false;
}

/* Are the packets of its message larger than the quantum is now? A message that the peer has
 * acknowledged as a whole need not begin again. */
bool op_outgrown(const struct pkt_ep *e, const struct pkt_op *op)
{
	if (op->state != OP_AGAIN && !op_may_send(op))
		return false;
	return op->by == BY_PACKETS && op->len > e->shape.quantum && !msg_win_full(&op->acked);
}

void op_withdraw(struct pkt_ep *e, struct pkt_op *op, uint32_t i)
{
	op_unlist(e, i);
	op_goto(op, OP_AGAIN);
}

void op_again(struct pkt_ep *e, uint32_t i)
{
	op_withdraw(e, &e->ops[i], i);
	e->ops[i].next = e->tx.wait_head;
	if (e->tx.wait_head == PKT_NONE)
		e->tx.wait_tail = i;
	e->tx.wait_head = i;
}

void link_release(struct link_pkt *l, uint64_t buf)
{
	l->release[l->nr_release++] = buf;
	if (l->nr_release == GX_ARRAY_SIZE(l->release))
		link_release_flush(l);
}

void link_release_flush(struct link_pkt *l)
{
	if (!l->nr_release)
		return;
	l->q->ops->rx_release(l->q, l->release, l->nr_release);
	l->nr_release = 0;
}
