/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Send and receive with tags, and gets, built on put. A posted receive offers a slot to the peer's
 * sends; a get asks for a put into a slot. Frames without payload keep their order (socket 0), so a
 * offer never comes before an older one. Runs on the polling core.
 *
 * Order: a send matches the oldest offer that fits, an offer the oldest send, as in MPI.
 */
#include "tcp/tcp_match.h"
#include "tcp/tcp_op.h"
#include "tcp/tcp_sock.h"
#include "tcp/tcp_view.h"

#include <errno.h>

void tcp_match_recv(struct tcp_ep *e, uint32_t i, uint32_t slot)
{
	struct tcp_op *op = &e->ops[i];
	struct tcp_frame f = {.type = TCP_OFFER,
			      .flags = op->gpu && tcp_bare_takes(e, op->mem) ? TCP_F_BARE : 0,
			      .token = tcp_slot_token(e, slot),
			      .off = op->tag_mask,
			      .len = op->len,
			      .imm = op->tag};

	tcp_op_goto(op, TCP_OP_POSTED);
	tcp_ctl_put(e, &f);
}

static struct tcp_offer *match_find(struct tcp_ep *e, uint64_t tag)
{
	struct tcp_offer *best = NULL;

	for (unsigned k = 0; e->match.nr_offers && k < TCP_SLOTS; k++) {
		struct tcp_offer *o = &e->match.offers[k];

		if (o->used && !((o->tag ^ tag) & o->mask) && (!best || o->order < best->order))
			best = o;
	}
	return best;
}

static void match_bind(struct tcp_ep *e, uint32_t i, struct tcp_offer *o)
{
	struct tcp_op *op = &e->ops[i];

	if (op->len > o->len) { /* the offer stays: another send may fit it */
		tcp_op_finish(e, i, -EMSGSIZE, 0);
		return;
	}
	op->token = o->token;
	op->remote_off = 0;
	op->bare = o->bare && op->len;
	o->used = false;
	e->match.nr_offers--;
	tcp_act_push(e, i);
}

void tcp_match_send(struct tcp_ep *e, uint32_t i)
{
	struct tcp_offer *o = match_find(e, e->ops[i].tag);

	if (o)
		match_bind(e, i, o);
	else
		tcp_list_push(e, &e->match.wait_head, &e->match.wait_tail, i);
}

static void match_waiting(struct tcp_ep *e, struct tcp_offer *o)
{
	uint32_t i = e->match.wait_head;

	while (i != TCP_NONE && o->used) {
		uint32_t next = e->ops[i].next;

		if (!((o->tag ^ e->ops[i].tag) & o->mask)) {
			tcp_list_remove(e, &e->match.wait_head, &e->match.wait_tail, i);
			match_bind(e, i, o);
		}
		i = next;
	}
}

void tcp_match_offer(struct tcp_ep *e, const struct tcp_frame *f)
{
	uint32_t slot = (uint32_t)f->token;
	struct tcp_offer *o = &e->match.offers[slot % TCP_SLOTS];

	if (!(f->token & TCP_SLOT_BIT) || slot >= TCP_SLOTS ||
	    (f->flags & TCP_F_BARE && !e->bare.tx)) {
		tcp_sock_end(e, &e->sock[0], -EPROTO);
		return;
	}
	e->match.nr_offers += !o->used;
	*o = (struct tcp_offer){.used = true,
				.bare = f->flags & TCP_F_BARE,
				.token = f->token,
				.tag = f->imm,
				.mask = f->off,
				.len = f->len,
				.order = e->match.offer_order++};
	match_waiting(e, o);
}

void tcp_match_revoke(struct tcp_ep *e, uint64_t token)
{
	struct tcp_offer *o = &e->match.offers[(uint32_t)token % TCP_SLOTS];

	if (o->token != token)
		return;
	/* A send of ours that has taken it will be refused. */
	e->match.nr_offers -= o->used;
	o->used = false;
	o->token = 0;
}

void tcp_match_unbind(struct tcp_ep *e, uint32_t i)
{
	const struct tcp_op *op = &e->ops[i];
	struct tcp_offer *o = &e->match.offers[(uint32_t)op->token % TCP_SLOTS];

	if (op->kind != GX_OP_SEND || !op->token || o->token != op->token || o->used)
		return;
	o->used = true;
	e->match.nr_offers++;
	match_waiting(e, o);
}

/* ---- gets ---- */

void tcp_match_get(struct tcp_ep *e, const struct tcp_frame *f)
{
	if (e->match.gets_head - e->match.gets_tail == TCP_GETS || !(f->imm & TCP_SLOT_BIT) ||
	    (f->flags & TCP_F_BARE && !e->bare.tx))
		tcp_sock_end(e, &e->sock[0], -EPROTO);
	else
		e->match.gets[e->match.gets_head++ % TCP_GETS] = *f;
}

/* A get of the peer becomes a put of ours into its slot. */
static bool serve_one(struct tcp_ep *e, const struct tcp_frame *f)
{
	struct tcp_frame fail = {.type = TCP_FAIL, .flags = TCP_F_SLOT, .token = f->imm};
	struct gx_mem *mem;
	struct tcp_op *op;
	uint8_t view = 0;
	uint32_t i;

	fail.err = core_region(&e->ep, f->token, GX_ACCESS_GET, f->off, f->len, &mem);
	if (gx_unlikely(fail.err == -EXDEV)) {
		int ret = pieces_map(&e->ep, &e->pieces, GX_ACCESS_GET, f->token, f->off, f->len,
				     &mem);

		if (ret == -EBUSY)
			return false;
		view = (uint8_t)GX_MAX(ret, 0);
		fail.err = GX_MIN(ret, 0);
	}
	if (!fail.err && tcp_gpu_lacks(e->link, mem, f->len))
		fail.err = -EIO;
	if (fail.err) {
		if (view)
			tcp_view_put(e, view);
		tcp_ctl_put(e, &fail);
		return true;
	}
	i = e->match.nr_served < TCP_GETS ? tcp_op_alloc(e) : TCP_NONE;
	if (i == TCP_NONE) {
		if (view)
			tcp_view_put(e, view);
		return false;
	}
	e->match.nr_served++;
	op = &e->ops[i];
	op->kind = GX_OP_PUT;
	op->internal = true;
	op->leased = mem->until_ns;
	op->tag = mem->token; /* for tcp_match_lease(): a put has no tag */
	op->tag_mask = view ? 0 : f->off;
	op->view = view;
	op->bare = f->flags & TCP_F_BARE && f->len && !view;
	op->at = mem->addr + f->off;
	op->mem = mem;
	core_use(e->ep.core, mem, &op->use);
	op->gpu = f->len ? tcp_gpu_of(e->link, mem) : NULL;
	op->len = f->len;
	op->nr_chunks = tcp_nr_chunks(e, f->len);
	op->token = f->imm;
	tcp_act_push(e, i);
	return true;
}

/* The peer has all bytes of a get from a region with a lease, so all were read by now. It waits for
 * the word whether the lease holds still. */
void tcp_match_lease(struct tcp_ep *e, const struct tcp_op *op)
{
	struct tcp_frame word = {.type = TCP_FAIL, .flags = TCP_F_SLOT, .token = op->token};
	struct gx_mem *mem;

	word.err = core_region(&e->ep, op->tag, GX_ACCESS_GET, op->tag_mask, op->view ? 0 : op->len,
			       &mem);
	tcp_ctl_put(e, &word);
}

bool tcp_match_serve(struct tcp_ep *e)
{
	bool worked = false;

	while (e->match.gets_tail != e->match.gets_head &&
	       serve_one(e, &e->match.gets[e->match.gets_tail % TCP_GETS])) {
		e->match.gets_tail++;
		worked = true;
	}
	return worked;
}
