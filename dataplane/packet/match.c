/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Send and receive with tags, and gets, built on put. A posted receive grants {slot, tag, length}
 * to the sender, and a send that matches becomes a put into the slot. A get asks for such a put.
 * Runs on the polling core.
 *
 * Order: a send matches the oldest grant that fits, a grant the oldest send, as in MPI.
 */
#include "packet/pkt.h"

#include <errno.h>

int match_recv(struct pkt_ep *e, uint32_t i)
{
	struct pkt_op *op = &e->ops[i];
	struct gx_wire_rec rec = {
		.type = GX_REC_GRANT,
		.grant = {.len = op->len, .tag = op->tag, .tag_mask = op->tag_mask}};
	uint32_t slot = slot_alloc(e, i);

	if (slot == PKT_NONE)
		return -EAGAIN;
	op_goto(op, OP_POSTED);
	rec.grant.slot = slot_token(e, slot);
	if (op->gpu->device >= 0)
		rec.flags |= GX_REC_GPU;
	tx_rec(e, &rec, PKT_NONE);
	return 0;
}

static bool match_fits(const struct pkt_grant *g, uint64_t tag)
{
	return g->used && !g->early && !((g->tag ^ tag) & g->mask);
}

/* The oldest grant for @tag; NULL: none. */
static struct pkt_grant *match_find(struct pkt_ep *e, uint64_t tag)
{
	struct pkt_grant *best = NULL;

	if (!e->match.nr_grants)
		return NULL;
	for (unsigned k = 0; k < PKT_SLOTS; k++) {
		struct pkt_grant *g = &e->grants[k];

		if (match_fits(g, tag) && (!best || (int32_t)(g->rsn - best->rsn) < 0))
			best = g;
	}
	return best;
}

/* The send becomes a put into the granted slot. */
static void match_bind(struct pkt_ep *e, uint32_t i, struct pkt_grant *g)
{
	struct pkt_op *op = &e->ops[i];

	if (op->len > g->len) { /* the grant stays: another send may fit it */
		op_finish(e, i, -EMSGSIZE, 0);
		return;
	}
	op->token = g->token;
	op->remote_off = 0;
	if (g->gpu)
		op->flags |= PKT_F_SLOT_GPU;
	g->used = false;
	e->match.nr_grants--;
	list_push(e, &e->tx.wait_head, &e->tx.wait_tail, i);
}

void match_send(struct pkt_ep *e, uint32_t i)
{
	struct pkt_grant *g = match_find(e, e->ops[i].tag);

	if (g)
		match_bind(e, i, g);
	else
		list_push(e, &e->tx.send_head, &e->tx.send_tail, i);
}

/* Sends that waited for this grant, oldest first. */
static void match_waiting(struct pkt_ep *e, struct pkt_grant *g)
{
	uint32_t i = e->tx.send_head;

	while (i != PKT_NONE && g->used) {
		uint32_t next = e->ops[i].next;

		if (match_fits(g, e->ops[i].tag)) {
			list_remove(e, &e->tx.send_head, &e->tx.send_tail, i);
			match_bind(e, i, g);
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

static struct pkt_grant *grant_at(struct pkt_ep *e, uint64_t token)
{
	uint32_t slot = (uint32_t)token;

	return token & PKT_SLOT_BIT && slot < PKT_SLOTS ? &e->grants[slot] : NULL;
}

static void grant_drop(struct pkt_ep *e, struct pkt_grant *g)
{
	e->match.nr_grants -= g->used;
	e->match.nr_early -= g->early;
	g->used = g->early = false;
}

void match_grant(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	struct pkt_grant *g = grant_at(e, rec->grant.slot);

	if (!g || !token_newer(rec->grant.slot, g->token)) /* nonsense, or its REVOKE came first */
		return;
	grant_drop(e, g);
	*g = (struct pkt_grant){.token = rec->grant.slot,
				.tag = rec->grant.tag,
				.mask = rec->grant.tag_mask,
				.len = rec->grant.len,
				.rsn = rec->rsn,
				.used = true,
				.early = (int32_t)(rec->rsn - e->rx.rsn_floor) >= 0,
				.gpu = rec->flags & GX_REC_GPU};
	e->match.nr_grants++;
	e->match.nr_early += g->early;
	if (!g->early)
		match_waiting(e, g);
}

void match_early(struct pkt_ep *e)
{
	struct pkt_grant *next;

	do {
		next = NULL;
		for (unsigned k = 0; k < PKT_SLOTS; k++) {
			struct pkt_grant *g = &e->grants[k];

			if (g->early && (int32_t)(g->rsn - e->rx.rsn_floor) < 0 &&
			    (!next || (int32_t)(g->rsn - next->rsn) < 0))
				next = g;
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
	struct pkt_grant *g = grant_at(e, token);

	if (!g || (g->token != token && !token_newer(token, g->token)))
		return;
	grant_drop(e, g);
	g->token = token;
	g->revoked = true;
}

void match_unbind(struct pkt_ep *e, uint32_t i)
{
	struct pkt_op *op = &e->ops[i];
	struct pkt_grant *g = op->kind == GX_OP_SEND ? grant_at(e, op->token) : NULL;

	if (!g || g->token != op->token || g->used || g->revoked)
		return;
	g->used = true;
	e->match.nr_grants++;
	match_waiting(e, g);
}

static int get_check(struct pkt_ep *e, const struct gx_wire_rec *rec, struct gx_mem **out)
{
	struct gx_mem *mem;
	int ret = core_region(e->ep.core, rec->get.token, GX_ACCESS_GET, rec->get.off, rec->get.len,
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

/* A get of the peer becomes a put of ours into its slot. */
static bool serve_one(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	struct gx_wire_rec fail = {
		.type = GX_REC_FAIL, .flags = GX_REC_SLOT, .fail = {.id = rec->get.slot}};
	struct gx_mem *mem;
	struct pkt_op *op;
	uint32_t i;

	fail.fail.err = get_check(e, rec, &mem);
	if (fail.fail.err)
		return tx_rec(e, &fail, PKT_NONE);
	i = op_alloc(e);
	if (i == PKT_NONE)
		return false;
	op = &e->ops[i];
	op->kind = GX_OP_PUT;
	op->internal = true;
	op->src = mem->addr + rec->get.off;
	op->mem = mem;
	op->gpu = mem->gpu;
	op->mapped = mem_is_mapped(mem);
	op->len = rec->get.len;
	op->token = rec->get.slot;
	if (rec->flags & GX_REC_GPU)
		op->flags |= PKT_F_SLOT_GPU;
	list_push(e, &e->tx.wait_head, &e->tx.wait_tail, i);
	return true;
}

void match_serve_gets(struct pkt_ep *e)
{
	while (e->match.gets_tail != e->match.gets_head &&
	       serve_one(e, &e->gets[e->match.gets_tail % PKT_GETS_MAX]))
		e->match.gets_tail++;
}

/* Its source has been freed, and the region is gone. The get waits again: match_serve_gets() finds
 * no region, and tells the peer when there is room for a record. */
void match_unserve(struct pkt_ep *e, uint32_t i)
{
	struct pkt_op *op = &e->ops[i];
	struct gx_wire_rec rec = {
		.type = GX_REC_GET,
		.get = {.token = op->mem->token, .len = op->len, .slot = op->token}};

	list_remove(e, &e->tx.wait_head, &e->tx.wait_tail, i);
	op_free(e, i);
	if (e->match.gets_head - e->match.gets_tail < PKT_GETS_MAX)
		e->gets[e->match.gets_head++ % PKT_GETS_MAX] = rec;
	else /* the peer has asked for more gets than it may have under way */
		rx_fault(e, -EPROTO);
}
