/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Send and receive with tags, and gets, built on put. A posted receive offers {slot, tag, length}
 * to the sender, and a send that matches becomes a put into the slot. A get asks for such a put.
 * Runs on the polling core.
 *
 * Order: a send matches the oldest offer that fits, an offer the oldest send, as in MPI.
 */
#include "packet/pkt.h"
#include "packet/match.h"
#include "packet/op.h"
#include "packet/rec.h"

#include <errno.h>

int match_recv(struct pkt_ep *e, uint32_t i)
{
	struct pkt_op *op = &e->ops[i];
	struct gx_wire_rec rec = {
		.type = GX_REC_OFFER,
		.offer = {.len = op->len, .tag = op->tag, .tag_mask = op->tag_mask}};
	uint32_t slot = slot_alloc(e, i);

	if (slot == PKT_NONE)
		return -EAGAIN;
	op_goto(op, OP_POSTED);
	rec.offer.slot = slot_token(e, slot);
	if (op->gpu->device >= 0)
		rec.flags |= GX_REC_GPU;
	rec_add(e, &rec, PKT_NONE);
	return 0;
}

static bool match_fits(const struct pkt_offer *o, uint64_t tag)
{
	return o->used && !o->early && !((o->tag ^ tag) & o->mask);
}

/* The oldest offer for @tag; NULL: none. */
static struct pkt_offer *match_find(struct pkt_ep *e, uint64_t tag)
{
	struct pkt_offer *best = NULL;

	if (!e->match.nr_offers)
		return NULL;
	for (unsigned k = 0; k < PKT_SLOTS; k++) {
		struct pkt_offer *o = &e->offers[k];

		if (match_fits(o, tag) && (!best || (int32_t)(o->rsn - best->rsn) < 0))
			best = o;
	}
	return best;
}

/* The send becomes a put into the offered slot. */
static void match_bind(struct pkt_ep *e, uint32_t i, struct pkt_offer *o)
{
	struct pkt_op *op = &e->ops[i];

	if (op->len > o->len) { /* the offer stays: another send may fit it */
		op_finish(e, i, -EMSGSIZE, 0);
		return;
	}
	op->token = o->token;
	op->remote_off = 0;
	if (o->gpu)
		op->flags |= PKT_F_SLOT_GPU;
	o->used = false;
	e->match.nr_offers--;
	op_push(e, &e->tx.wait_head, &e->tx.wait_tail, i);
}

void match_send(struct pkt_ep *e, uint32_t i)
{
	struct pkt_offer *o = match_find(e, e->ops[i].tag);

	if (o)
		match_bind(e, i, o);
	else
		op_push(e, &e->tx.send_head, &e->tx.send_tail, i);
}

/* Sends that waited for this offer, oldest first. */
static void match_waiting(struct pkt_ep *e, struct pkt_offer *o)
{
	uint32_t i = e->tx.send_head;

	while (i != PKT_NONE && o->used) {
		uint32_t next = e->ops[i].next;

		if (match_fits(o, e->ops[i].tag)) {
			op_remove(e, &e->tx.send_head, &e->tx.send_tail, i);
			match_bind(e, i, o);
		}
		i = next;
	}
}

/* Is slot token @a of a later life of the slot than @b? */
static bool token_newer(uint64_t a, uint64_t b)
{
	/* 31 bits count: the highest is PKT_SLOT_BIT. */
	return !b || (int32_t)(((uint32_t)(a >> 32) - (uint32_t)(b >> 32)) << 1) > 0;
}

static struct pkt_offer *offer_at(struct pkt_ep *e, uint64_t token)
{
	uint32_t slot = (uint32_t)token;

	return token & PKT_SLOT_BIT && slot < PKT_SLOTS ? &e->offers[slot] : NULL;
}

static void offer_drop(struct pkt_ep *e, struct pkt_offer *o)
{
	e->match.nr_offers -= o->used;
	e->match.nr_early -= o->early;
	o->used = o->early = false;
}

void match_offer(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	struct pkt_offer *o = offer_at(e, rec->offer.slot);

	if (!o || !token_newer(rec->offer.slot, o->token)) /* nonsense, or its REVOKE came first */
		return;
	offer_drop(e, o);
	*o = (struct pkt_offer){.token = rec->offer.slot,
				.tag = rec->offer.tag,
				.mask = rec->offer.tag_mask,
				.len = rec->offer.len,
				.rsn = rec->rsn,
				.used = true,
				.early = e->match.nr_early ||
					 (int32_t)(rec->rsn - e->rx.rsn_floor) >= 0,
				.gpu = rec->flags & GX_REC_GPU};
	e->match.nr_offers++;
	e->match.nr_early += o->early;
	if (!o->early)
		match_waiting(e, o);
}

void match_early(struct pkt_ep *e)
{
	struct pkt_offer *next;

	do {
		next = NULL;
		for (unsigned k = 0; k < PKT_SLOTS; k++) {
			struct pkt_offer *o = &e->offers[k];

			if (o->early && (int32_t)(o->rsn - e->rx.rsn_floor) < 0 &&
			    (!next || (int32_t)(o->rsn - next->rsn) < 0))
				next = o;
		}
		if (next) {
			next->early = false;
			e->match.nr_early--;
			match_waiting(e, next);
		}
	} while (next && e->match.nr_early);
}

void match_revoke(struct pkt_ep *e, uint64_t token)
{
	struct pkt_offer *o = offer_at(e, token);

	if (!o || (o->token != token && !token_newer(token, o->token)))
		return;
	offer_drop(e, o);
	o->token = token;
	o->revoked = true;
}

void match_unbind(struct pkt_ep *e, uint32_t i)
{
	struct pkt_op *op = &e->ops[i];
	struct pkt_offer *o = op->kind == GX_OP_SEND ? offer_at(e, op->token) : NULL;

	if (!o || o->token != op->token || o->used || o->revoked)
		return;
	o->used = true;
	e->match.nr_offers++;
	match_waiting(e, o);
}

static int get_check(struct pkt_ep *e, const struct gx_wire_rec *rec, struct gx_mem **out)
{
	struct gx_mem *mem;
	int ret = core_region(&e->ep, rec->get.token, GX_ACCESS_GET, rec->get.off, rec->get.len,
			      &mem);

	if (ret)
		return ret;
	if (!(rec->get.slot & PKT_SLOT_BIT))
		return -EPROTO;
	if (mem->kind != GX_MEM_HOST && !link_bq(e->link, mem->gpu))
		return -EIO;
	*out = mem;
	return 0;
}

/* The segments of a get, in host memory, which the CPU gathers. *@bad: the one that is wrong. */
static int gets_check(struct pkt_ep *e, const struct gx_wire_rec *rec, struct pieces *pieces,
		      struct gx_mem **out, uint32_t *bad)
{
	const struct gx_wire_seg *segs = e->get_segs[(rec - e->gets) % PKT_GETS_MAX];
	struct gx_wire_rec one = *rec;

	for (uint32_t i = 0; i < rec->get.nr; i++) {
		int ret;

		one.get.off = segs[i].off;
		one.get.len = segs[i].len;
		*bad = i;
		ret = get_check(e, &one, out);
		if (!ret && (*out)->kind != GX_MEM_HOST)
			ret = -EPROTO;
		if (ret)
			return ret;
		pieces_add(pieces, (*out)->addr + segs[i].off, segs[i].len);
	}
	*bad = 0;
	return 0;
}

/* A view that the peer has sent before. */
static int get_view(struct pkt_ep *e, const struct gx_wire_rec *rec, struct pieces **pieces,
		    struct gx_mem **out)
{
	int ret = rec->get.slot & PKT_SLOT_BIT
			  ? pieces_map(&e->ep, &e->pieces, GX_ACCESS_GET, rec->get.token,
				       rec->get.off, rec->get.len, out)
			  : -EPROTO;

	if (ret < 0)
		return ret;
	*pieces = pieces_of(&e->pieces, (unsigned)ret);
	return (*out)->kind == GX_MEM_HOST || link_bq(e->link, (*out)->gpu) ? 0 : -EIO;
}

/* Where the bytes of a get lie. Return: false: it waits for pieces. */
static bool get_find(struct pkt_ep *e, const struct gx_wire_rec *rec, struct pieces **pieces,
		     struct gx_mem **out, struct gx_wire_rec *fail)
{
	bool list = rec->type == GX_REC_GETS;

	fail->fail.err = list ? -EXDEV : get_check(e, rec, out);
	if (gx_likely(fail->fail.err != -EXDEV))
		return true;
	if (!list) {
		fail->fail.err = get_view(e, rec, pieces, out);
		return fail->fail.err != -EBUSY;
	}
	*pieces = pieces_get(&e->pieces, PIECES_SERVE);
	if (*pieces)
		fail->fail.err = gets_check(e, rec, *pieces, out, &fail->fail.seg);
	return *pieces;
}

static bool serve_fail(struct pkt_ep *e, struct pieces *pieces, const struct gx_wire_rec *fail)
{
	if (pieces)
		pieces_put(&e->ep, &e->pieces, pieces);
	return rec_add(e, fail, PKT_NONE);
}

/* A get of the peer becomes a put of ours into its slot. */
static bool serve_one(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	struct gx_wire_rec fail = {
		.type = GX_REC_FAIL, .flags = GX_REC_SLOT, .fail = {.id = rec->get.slot}};
	struct pieces *pieces = NULL;
	struct gx_mem *mem;
	struct pkt_op *op;
	uint32_t i;

	if (!get_find(e, rec, &pieces, &mem, &fail))
		return false;
	if (fail.fail.err || rec->flags & GX_REC_LEASE)
		return serve_fail(e, pieces, &fail);
	i = op_alloc(e);
	if (i == PKT_NONE) {
		if (pieces)
			pieces_put(&e->ep, &e->pieces, pieces);
		return false;
	}
	op = &e->ops[i];
	op->kind = GX_OP_PUT;
	op->internal = true;
	op->leased = mem->until_ns;
	op->tag = mem->token; /* for match_lease(): a put has no tag */
	op->tag_mask = pieces ? 0 : rec->get.off;
	op->src = mem->addr + rec->get.off;
	op->pieces = pieces;
	op->mem = mem;
	core_use(e->ep.core, mem, &op->use);
	op->gpu = mem->gpu;
	op->mapped = mem_is_mapped(mem);
	op->len = rec->get.len;
	op->token = rec->get.slot;
	if (rec->flags & GX_REC_GPU)
		op->flags |= PKT_F_SLOT_GPU;
	op_push(e, &e->tx.wait_head, &e->tx.wait_tail, i);
	return true;
}

void match_serve_gets(struct pkt_ep *e)
{
	while (e->match.gets_tail != e->match.gets_head &&
	       serve_one(e, &e->gets[e->match.gets_tail % PKT_GETS_MAX]))
		e->match.gets_tail++;
}

/* Keep a request of the peer for match_serve_gets(). */
static void gets_push(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	if (e->match.gets_head - e->match.gets_tail < PKT_GETS_MAX)
		e->gets[e->match.gets_head++ % PKT_GETS_MAX] = *rec;
	else /* the peer has asked for more gets than it may have under way */
		rx_fault(e, -EPROTO);
}

/* The peer has all bytes of a get from a region with a lease, so all were read by now, and waits for
 * the word whether the lease holds still; or the get has ended there, and the word names no slot. Of
 * many segments one names. The word waits when there is no room for a record. */
void match_lease(struct pkt_ep *e, const struct pkt_op *op)
{
	struct gx_wire_rec rec = {.type = GX_REC_GET,
				  .flags = GX_REC_LEASE,
				  .get = {.token = op->tag,
					  .off = op->tag_mask,
					  .len = op->pieces ? 0 : op->len,
					  .slot = op->token}};

	if (!serve_one(e, &rec))
		gets_push(e, &rec);
}

/* Its source has been freed, and the region is gone. The get waits again: match_serve_gets() finds
 * no region, and tells the peer when there is room for a record. */
void match_unserve(struct pkt_ep *e, uint32_t i)
{
	struct pkt_op *op = &e->ops[i];
	struct gx_wire_rec rec = {
		.type = GX_REC_GET,
		.get = {.token = op->mem->token, .len = op->len, .slot = op->token}};

	op_remove(e, &e->tx.wait_head, &e->tx.wait_tail, i);
	op_drop(e, op);
	op_free(e, i);
	gets_push(e, &rec);
}
