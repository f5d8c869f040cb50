/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes: what a lane sends to the peer's lane. A put with an immediate has a note behind its chunks
 * on each queue pair that has some; the receiver tells its user when it has them all. A queue pair
 * delivers a send after the writes before it, so the bytes are in place then. A note that was sent
 * twice, because its first acknowledgement was lost, counts once. Runs on the polling core.
 */
#include "core/le.h"
#include "verbs/verbs_lane.h"

#include <errno.h>
#include <string.h>

void verbs_note_put(uint8_t b[VERBS_NOTE_B], const struct verbs_note *n)
{
	memset(b, 0, VERBS_NOTE_B);
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

int verbs_note_get(const uint8_t *b, uint32_t len, struct verbs_note *n)
{
	if (len != VERBS_NOTE_B || b[3] || le32_get(b + 12))
		return -EPROTO;
	*n = (struct verbs_note){.kind = b[0],
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
	if (n->kind != VERBS_WR_NOTE || n->part >= VERBS_QPS_MAX || !n->nr_parts ||
	    n->nr_parts > VERBS_QPS_MAX)
		return -EPROTO;
	return 0;
}

bool note_room(const struct verbs_qp *q)
{
	return q->notes_sent - q->notes_known < VERBS_RQ - VERBS_CREDIT_KEPT;
}

static void note_bad(struct verbs_lane *l)
{
	l->nr_bad++;
	gx_stat_add(&l->core->loop.stats, GX_STAT_RX_BAD, 1);
}

/* All notes of a put are here. */
static void note_tell(struct verbs_lane *l, const struct verbs_note *n)
{
	struct gx_comp comp = {.kind = GX_COMP_NOTIFY,
			       .op = GX_OP_PUT,
			       .ep = l->ep,
			       .len = n->len,
			       .imm = n->imm,
			       .token = n->token,
			       .off = n->off};
	struct gx_mem *mem;

	if (core_region(l->core, n->token, GX_ACCESS_PUT, n->off, n->len, &mem)) {
		note_bad(l); /* freed meanwhile, or the peer lies */
		return;
	}
	gx_stat_add(&l->core->loop.stats, GX_STAT_MSGS_RX, 1);
	core_comp(l->core, &comp);
}

static void note_part(struct verbs_lane *l, const struct verbs_note *n)
{
	struct verbs_in *in = &l->in[n->seq % VERBS_SEQS];

	if (in->seq != n->seq) {
		if ((int32_t)(n->seq - in->seq) < 0) {
			note_bad(l);
			return;
		}
		*in = (struct verbs_in){.seq = n->seq};
	}
	if (in->done || in->parts >> n->part & 1)
		return;
	in->parts |= 1ull << n->part;
	in->done = ++in->nr_got >= n->nr_parts;
	if (in->done)
		note_tell(l, n);
}

/* The slot is memory that the device writes: it is copied out first. */
void note_take(struct verbs_lane *l, struct verbs_qp *q, const uint8_t *b, uint32_t len)
{
	uint8_t own[VERBS_NOTE_B];
	struct verbs_note n;

	memcpy(own, b, sizeof(own));
	if (verbs_note_get(own, len, &n)) {
		note_bad(l);
		return;
	}
	if (n.taken - q->notes_known <= q->notes_sent - q->notes_known)
		q->notes_known = n.taken;
	else
		note_bad(l);
	if (n.kind == VERBS_WR_CREDIT)
		return;
	q->notes_taken++;
	if (note_is_owed(q))
		l->owes |= qp_bit(q);
	if (!l->fail_err)
		note_part(l, &n);
}
