/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control records on their way out. They lie in a ring, are packed into packets of the control
 * half, and go again until the peer has acknowledged them. Runs on the polling core.
 */
#include "packet/pkt.h"
#include "packet/make.h"
#include "packet/rec.h"
#include "packet/wake.h"

#define REC_COPIES_MIN 2
#define REC_COPIES_MAX 6
#define REC_COPY_PKTS  16 /* packets of data for which an OPEN goes once more */

bool rec_add(struct pkt_ep *e, const struct gx_wire_rec *rec, uint32_t op)
{
	struct rec_slot *s = &e->recs[e->rec.next % PKT_RECS];

	ep_touch(e); /* the next turn sends the record */
	if (!rec_room(e))
		return false;
	s->rec = *rec;
	s->rec.rsn = e->rec.next++;
	s->op = op;
	s->sent = false;
	s->state = REC_QUEUED;
	e->rec.queued++;
	return true;
}

void rec_requeue(struct pkt_ep *e, uint32_t first, uint32_t n)
{
	for (uint32_t i = first; i != first + n; i++) {
		struct rec_slot *s = &e->recs[i % PKT_RECS];

		if (s->state != REC_SENT || s->rec.rsn != i)
			continue;
		s->state = REC_QUEUED;
		e->rec.queued++;
		if (i - e->rec.floor < e->rec.scan - e->rec.floor)
			e->rec.scan = i;
	}
}

void rec_acked(struct pkt_ep *e, uint32_t first, uint32_t n)
{
	for (uint32_t i = first; i != first + n; i++) {
		struct rec_slot *s = &e->recs[i % PKT_RECS];

		if (s->state == REC_FREE || s->rec.rsn != i)
			continue;
		e->rec.queued -= s->state == REC_QUEUED;
		s->state = REC_FREE;
	}
	while (e->rec.floor != e->rec.next && e->recs[e->rec.floor % PKT_RECS].state == REC_FREE)
		e->rec.floor++;
	if (e->rec.floor - e->rec.scan < 1u << 31)
		e->rec.scan = e->rec.floor;
}

/* DATA of @i may follow now. It goes another way, and would overtake an OPEN that waits for room.
 */
static void op_opened(struct pkt_ep *e, uint32_t i, uint32_t rsn)
{
	if (i != PKT_NONE && e->ops[i].open_rsn == rsn)
		e->ops[i].opened = true;
}

/* Fill @b with the run of queued records that begins at rec.scan. Return: bytes; *n: records. */
static uint32_t recs_pack(struct pkt_ep *e, uint8_t *b, uint32_t *n)
{
	uint32_t room = GX_MIN((uint32_t)GX_CTL_PAYLOAD_MAX, e->shape.quantum);
	uint32_t at = 0;

	while (e->rec.scan != e->rec.next && e->recs[e->rec.scan % PKT_RECS].state != REC_QUEUED)
		e->rec.scan++;
	for (*n = 0; e->rec.scan != e->rec.next; (*n)++, e->rec.scan++) {
		struct rec_slot *s = &e->recs[e->rec.scan % PKT_RECS];
		uint32_t put;

		if (s->state != REC_QUEUED)
			break;
		put = gx_wire_rec_put(b + at, room - at, &s->rec);
		if (!put)
			break;
		at += put;
		if (!s->sent)
			op_opened(e, s->op, s->rec.rsn);
		s->sent = true;
		s->state = REC_SENT;
		e->rec.queued--;
	}
	return at;
}

/* The @n records from @first on lie in link->ctl_buf: @len bytes, then @ack of an ACK. */
static void recs_send(struct pkt_ep *e, uint32_t first, uint32_t n, uint32_t len, uint32_t ack)
{
	struct flow_pkt pkt = {
		.ref = first, .pkt = n, .len = len, .kind = PKT_K_CTL, .half = GX_HALF_CTL};
	uint64_t psn = flow_sent(e->flow, e->now_ns, &pkt);

	if (gx_unlikely(e->paths))
		path_sent(e, GX_HALF_CTL);
	make_ctl(e, GX_PKT_CTL, 0, psn, ack, e->link->ctl_buf, len + ack);
}

/* How often do these records go again at once? Without its OPEN all data of a message is lost that
 * comes before the OPEN has gone again, a round trip later. So where packets are lost or come late,
 * an OPEN that data follows goes three times, and up to seven times if that is much data. */
static unsigned recs_copies(const struct pkt_ep *e, uint32_t first, uint32_t n)
{
	uint64_t copies = 0;

	if (gx_likely(e->lossless) || !flow_is_uneven(e->flow))
		return 0;
	for (uint32_t i = first; i != first + n; i++) {
		const struct gx_wire_rec *rec = &e->recs[i % PKT_RECS].rec;
		uint64_t pkts;

		if ((rec->type != GX_REC_OPEN && rec->type != GX_REC_LIST) ||
		    rec->flags & (GX_REC_INLINE | GX_REC_PULL))
			continue;
		pkts = rec->open.len / rec->open.quantum;
		copies = GX_MAX(copies, GX_MIN(pkts / REC_COPY_PKTS, (uint64_t)REC_COPIES_MAX));
		copies = GX_MAX(copies, (uint64_t)REC_COPIES_MIN);
	}
	return (unsigned)copies;
}

bool rec_send(struct pkt_ep *e)
{
	bool worked = false;

	/* One place of the control half stays free for an ACK. */
	while (e->rec.queued && flow_room(e->flow) && make_ctl_room(e) > 1) {
		uint32_t n;
		uint32_t len = recs_pack(e, e->link->ctl_buf, &n);
		uint32_t first = e->rec.scan - n;
		uint32_t ack = 0;

		if (!n)
			break;
		/* A due ACK rides in the same packet as the records, which saves both ends a packet. */
		if (len + make_ack_bound(e) <=
			    GX_MIN((uint32_t)GX_CTL_PAYLOAD_MAX, e->shape.quantum) &&
		    !path_in_doubt(e))
			ack = make_ack(e, e->link->ctl_buf + len);
		recs_send(e, first, n, len, ack);
		for (unsigned i = recs_copies(e, first, n);
		     i && flow_room(e->flow) && make_ctl_room(e) > 1; i--)
			recs_send(e, first, n, len, 0);
		worked = true;
	}
	return worked;
}
