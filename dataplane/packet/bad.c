/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets whose bytes the copy found wrong. The receiver has acknowledged them, so no timer of the
 * sender sends them again. The receiver asks for them (RESEND) and remembers its requests. The
 * sender keeps the source until done, and sends those bytes in new packets. Runs on the polling
 * core.
 *
 * A packet in bad[] that has not come again counts as missing, whatever its bit says: the window of
 * bits may have moved past it. A packet that was asked for uses no credit. On a pool that peers
 * share it counts as granted until it comes.
 */
#include "packet/pkt.h"
#include "packet/bad.h"
#include "packet/rec.h"

#include <errno.h>

static struct pkt_bad *bad_find(struct pkt_ep *e, uint32_t mid, uint32_t pkt)
{
	for (uint32_t i = 0; i < e->rx.nr_bad; i++)
		if (e->bad[i].pkt == pkt && e->bad[i].mid == mid)
			return &e->bad[i];
	return NULL;
}

static void bad_state(struct pkt_ep *e, struct pkt_bad *b, uint8_t state)
{
	if (e->link->port->caps.flags & GX_PORT_SHARED_POOL) {
		e->link->pool_out -= b->state == BAD_ASKED;
		e->link->pool_out += state == BAD_ASKED;
	}
	b->state = state;
}

static void bad_drop(struct pkt_ep *e, struct pkt_bad *b)
{
	bad_state(e, b, BAD_CAME);
	e->in[b->mid % GX_WIRE_MIDS].nr_bad--;
	*b = e->bad[--e->rx.nr_bad];
}

/* A place for one more. Those that have come again stay for the count of tries alone, and make
 * room. NULL: PKT_BAD_MAX packets are missing. */
static struct pkt_bad *bad_new(struct pkt_ep *e)
{
	for (uint32_t i = 0; e->rx.nr_bad == PKT_BAD_MAX && i < PKT_BAD_MAX; i++)
		if (e->bad[i].state == BAD_CAME)
			bad_drop(e, &e->bad[i]);
	return e->rx.nr_bad < PKT_BAD_MAX ? &e->bad[e->rx.nr_bad++] : NULL;
}

/* Does the last record ask for the bytes just before, and was it never sent? Then make it longer.
 */
static bool bad_extend(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	struct rec_slot *last = &e->recs[(e->rec.next - 1) % PKT_RECS];

	if (last->state != REC_QUEUED || last->sent || last->rec.type != GX_REC_RESEND ||
	    last->rec.resend.mid != rec->resend.mid ||
	    last->rec.resend.off + last->rec.resend.len != rec->resend.off)
		return false;
	last->rec.resend.len += rec->resend.len;
	return true;
}

static void bad_ask(struct pkt_ep *e, struct pkt_bad *b)
{
	const struct in_msg *m = &e->in[b->mid % GX_WIRE_MIDS];
	uint64_t off = (uint64_t)b->pkt * m->shape->quantum;
	struct gx_wire_rec rec = {.type = GX_REC_RESEND,
				  .resend = {.mid = b->mid,
					     .off = off,
					     .len = GX_MIN(m->len - off, m->shape->quantum)}};

	/* Without room for the record, bad_tick() asks. */
	if (!bad_extend(e, &rec) && (rec_room(e) <= PKT_RECS_KEPT || !rec_add(e, &rec, PKT_NONE))) {
		e->rx.bads_due = true;
		return;
	}
	bad_state(e, b, BAD_ASKED);
	gx_stat_add(pkt_stats(e->link), GX_STAT_RESEND_ASKED, 1);
}

bool bad_found(struct pkt_ep *e, struct in_msg *m, uint64_t off, uint32_t len)
{
	struct pkt_bad *b;
	uint64_t pkt;

	gx_stat_add(pkt_stats(e->link), GX_STAT_RX_CRC_UNPACK, 1);
	if (m->state != IN_ACTIVE)
		return true;
	if (msg_pkt(m->shape, m->len, off, len, off + len == m->len, &pkt))
		return false;
	b = bad_find(e, m->mid, pkt);
	if (!b) {
		b = bad_new(e);
		if (!b)
			return false;
		*b = (struct pkt_bad){.mid = m->mid, .pkt = pkt, .state = BAD_CAME};
		m->nr_bad++;
	}
	if (b->tries++ == PKT_BAD_TRIES)
		return false;
	bad_state(e, b, BAD_DUE);
	bad_ask(e, b);
	return true;
}

bool bad_again(struct pkt_ep *e, const struct in_msg *m, uint64_t pkt)
{
	struct pkt_bad *b = m->nr_bad ? bad_find(e, m->mid, pkt) : NULL;

	if (!b || b->state == BAD_CAME)
		return false;
	bad_state(e, b, BAD_CAME);
	return true;
}

void bad_forget(struct pkt_ep *e, struct in_msg *m)
{
	for (uint32_t i = e->rx.nr_bad; m->nr_bad && i-- > 0;)
		if (e->bad[i].mid == m->mid)
			bad_drop(e, &e->bad[i]);
}

void bad_tick(struct pkt_ep *e)
{
	e->rx.bads_due = false;
	for (uint32_t i = 0; i < e->rx.nr_bad && !e->rx.bads_due; i++)
		if (e->bad[i].state == BAD_DUE)
			bad_ask(e, &e->bad[i]);
}

void bad_close(struct pkt_ep *e)
{
	while (e->rx.nr_bad)
		bad_drop(e, &e->bad[e->rx.nr_bad - 1]);
}
