/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes packets of the packet link, and hands them to the port. Runs on the polling core.
 */
#include "packet/pkt.h"
#include "packet/seal.h"
#include "packet/make.h"
#include "packet/op.h"

/* The header, where the connection has an integrity mode. */
static __attribute__((noinline)) void tx_guard(struct pkt_ep *e, struct gx_tx *tx,
					       const struct gx_wire_hdr *h, uint64_t psn,
					       enum gx_half half)
{
	gx_wire_hdr_put(tx->hdr, h, GX_INTEGRITY_NONE, 0);
	if (e->seal)
		seal_packet(e, tx, h->type, psn, half);
	else
		seal_crc(e, tx, half);
}

static void tx_hdr(struct pkt_ep *e, struct gx_tx *tx, struct gx_wire_hdr *h, uint64_t psn,
		   enum gx_half half)
{
	h->psn = (uint32_t)psn;
	h->cid = e->cid_peer;
	h->plen = tx->len;
	tx->hlen = GX_WIRE_HDR_B;
	tx->peer = e->port_peer;
	if (gx_likely(e->integrity == GX_INTEGRITY_NONE))
		gx_wire_hdr_put(tx->hdr, h, GX_INTEGRITY_NONE, 0);
	else
		tx_guard(e, tx, h, psn, half);
}

/* One packet of the control half; the caller has seen room for it. @mid: CTL: bytes of an ACK at
 * the end of @data. */
void make_ctl(struct pkt_ep *e, uint8_t type, uint8_t flags, uint64_t psn, uint32_t mid,
	      const void *data, uint32_t len)
{
	struct link_pkt *l = e->link;
	struct gx_wire_hdr h = {.type = type, .flags = flags, .mid = mid};
	struct gx_tx tx; /* not its header, which would be written twice */

	tx.data = data;
	tx.len = len;
	tx.cookie = UINT32_MAX;
	tx.gpu = 0;
	tx.mapped = false;
	tx.guard = NULL;
	tx_hdr(e, &tx, &h, psn, GX_HALF_CTL);
	l->q->ops->tx_burst(l->q, GX_HALF_CTL, &tx, 1);
	gx_stat_add(pkt_stats(l), GX_STAT_TX_PKTS, 1);
	gx_stat_add(pkt_stats(l), GX_STAT_TX_BYTES, len);
}

/* Bytes of the next ACK, at most. */
uint32_t make_ack_bound(const struct pkt_ep *e)
{
	return GX_WIRE_ACK_MAX -
	       8 * (GX_WIRE_DONE_WORDS - (uint32_t)__builtin_popcount(e->rx.done_used));
}

/* Where ACKs are lost, each one reports all words, so the next one makes up for a lost one. Otherwise
 * an ACK reports only words that are new. */
static void make_ack_done(struct pkt_ep *e, struct gx_wire_ack *ack)
{
	uint32_t which = e->lossless ? e->rx.done_due : e->rx.done_used;

	ack->number = ++e->ack.number;
	ack->done_words = (uint16_t)which;
	for (uint32_t rest = which; rest; rest &= rest - 1)
		ack->done[__builtin_ctz(rest)] = e->rx.done[__builtin_ctz(rest)];
	e->rx.done_due = 0;
}

/* Write an ACK to @b if one is due. Return: its bytes, 0: none is. */
uint32_t make_ack(struct pkt_ep *e, uint8_t *b)
{
	struct gx_wire_ack ack;

	if (!flow_ack_due(e->flow, e->now_ns) || !flow_ack_build(e->flow, e->now_ns, &ack))
		return 0;
	make_ack_done(e, &ack);
	e->ack.hold = ACK_HOLD_NO;
	gx_stat_add(pkt_stats(e->link), GX_STAT_ACK_TX, 1);
	return gx_wire_ack_put(b, &ack);
}

unsigned make_ctl_room(struct pkt_ep *e)
{
	return e->link->q->ops->tx_room(e->link->q, GX_HALF_CTL, e->port_peer);
}

void make_data(struct pkt_ep *e, struct gx_tx *tx, uint32_t i, uint64_t pkt,
	       const struct tx_how *how)
{
	struct pkt_op *op = &e->ops[i];
	uint64_t off = pkt * e->shape.quantum;
	bool last = pkt + 1 == op->acked.nr_pkts;
	uint64_t psn;
	struct gx_wire_hdr h = {
		.type = GX_PKT_DATA, .flags = last ? GX_PKT_EOM : 0, .mid = op->mid, .moff = off};

	tx->len = last ? op->len - off : e->shape.quantum;
	tx->cookie = UINT32_MAX;
	tx->gpu = op->gpu->device >= 0 && pkt_in_place(e, op) ? 1 + op->gpu->device : 0;
	tx->mapped = op->mapped || op->gpu->device >= 0; /* staged payload lies in the arena */
	if (e->port_path.flags & GX_PORT_TX_ATTACH && !how->copy && !op->pieces) {
		tx->cookie = e->index << 10 | i;
		op->refs++;
		e->tx.refs++;
		e->link->refs++;
	}
	psn = flow_sent(e->flow, e->now_ns,
			&(struct flow_pkt){.ref = op->mid,
					   .pkt = pkt,
					   .len = tx->len,
					   .kind = how->kind,
					   .resend = how->resend,
					   .half = GX_HALF_DATA});
	tx_hdr(e, tx, &h, psn, GX_HALF_DATA);
}

void make_send(struct link_pkt *l, unsigned n)
{
	uint64_t bytes = 0;
	unsigned sent = l->q->ops->tx_burst(l->q, GX_HALF_DATA, l->tx, n);

	l->gather_b = 0;
	if (gx_unlikely(l->guarded))
		seal_sent(l, n);
	/* A packet that a lossy port did not take is lost like any other: the flow finds that, and
	 * it goes again. */
	if (sent < n)
		gx_stat_add(pkt_stats(l), GX_STAT_TX_FULL, 1);
	for (unsigned i = 0; i < n; i++)
		bytes += l->tx[i].len;
	for (unsigned i = sent; i < n; i++)
		if (l->tx[i].cookie != UINT32_MAX)
			op_unref(l, l->tx[i].cookie);
	gx_stat_add(pkt_stats(l), GX_STAT_TX_PKTS, n);
	gx_stat_add(pkt_stats(l), GX_STAT_TX_BYTES, bytes);
}

void make_probe(struct pkt_ep *e, uint32_t padded_b, uint8_t flags)
{
	uint64_t psn;

	/* A probe may go out above the window, which may be full of lost packets. */
	if (!padded_b && !make_ctl_room(e))
		return;
	psn = flow_sent(e->flow, e->now_ns,
			&(struct flow_pkt){.ref = padded_b,
					   .len = padded_b,
					   .kind = PKT_K_PROBE,
					   .half = padded_b ? GX_HALF_DATA : GX_HALF_CTL});
	gx_stat_add(pkt_stats(e->link), GX_STAT_PROBE_TX, 1);
	if (e->paths)
		path_sent(e, padded_b ? GX_HALF_DATA : GX_HALF_CTL);
	flags |= GX_PKT_ACK_NOW;
	if (!padded_b) {
		make_ctl(e, GX_PKT_PROBE, flags, psn, 0, e->link->ctl_buf, 0);
		return;
	}
	e->link->tx[0] =
		(struct gx_tx){.data = e->link->pad, .len = padded_b, .cookie = UINT32_MAX};
	tx_hdr(e, &e->link->tx[0], &(struct gx_wire_hdr){.type = GX_PKT_PROBE, .flags = flags}, psn,
	       GX_HALF_DATA);
	make_send(e->link, 1);
}
