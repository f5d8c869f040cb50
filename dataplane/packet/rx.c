/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving half of a turn of a packet link: it takes packets from the port, looks at each
 * packet (wire, flow), finds the place of its bytes (msg), writes a descriptor (block), and hands
 * finished copies back. Runs on the polling core.
 */
#include "packet/pkt.h"
#include "packet/seal.h"
#include "packet/abort.h"
#include "packet/ack.h"
#include "packet/ask.h"
#include "packet/bad.h"
#include "packet/in.h"
#include "packet/match.h"
#include "packet/op.h"
#include "packet/rxtx.h"
#include "packet/share.h"
#include "packet/trial.h"
#include "packet/wake.h"

#include <errno.h>

#define RX_FEW 4 /* packets that a look takes where none is expected */

/* Of two callers, one for packets in clear, where it costs what it did with one. */
#define RX_INLINE static inline __attribute__((always_inline))

/* ---- records ---- */

static void rx_fail(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	uint32_t mid = rec->fail.id;
	uint32_t i;

	if (rec->flags & GX_REC_SLOT) {
		struct pkt_slot *s = slot_find(e, rec->fail.id);

		if (s && !s->bound && e->ops[s->op].kind == GX_OP_GET) {
			i = s->op;
			if (!rec->fail.err && !e->ops[i].leased) {
				rx_fault(e, -EPROTO); /* its bytes have not come */
				return;
			}
			slot_free(e, e->ops[i].slot);
			if (e->ops[i].segs)
				e->ops[i].tag = rec->fail.seg;
			op_finish(e, i, rec->fail.err, rec->fail.err ? 0 : e->ops[i].len);
		}
		return;
	}
	i = e->out[mid % GX_WIRE_MIDS].op;
	if (i == PKT_NONE || e->ops[i].mid != mid)
		return;
	if (e->ops[i].segs)
		e->ops[i].tag = rec->fail.seg;
	abort_op(e, i, rec->fail.err < 0 ? rec->fail.err : -EIO);
}

static void rx_get(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	uint32_t at;

	if (e->match.gets_head - e->match.gets_tail == PKT_GETS_MAX) {
		rx_fault(e, -EPROTO);
		return;
	}
	at = e->match.gets_head++ % PKT_GETS_MAX;
	e->gets[at] = *rec;
	for (uint32_t i = 0; rec->type == GX_REC_GETS && i < rec->get.nr; i++)
		e->get_segs[at][i] = gx_wire_seg_get(rec->get.data, i);
}

/* Take every record once: one whose rsn is below the floor or in the bitmap has been here. */
static bool rec_is_new(struct pkt_ep *e, uint32_t rsn)
{
	uint32_t i = rsn % PKT_RECS;

	if (rsn - e->rx.rsn_floor >= PKT_RECS || e->rx.rsn_seen[i / 64] >> (i & 63) & 1)
		return false;
	e->rx.rsn_seen[i / 64] |= 1ull << (i & 63);
	for (i = e->rx.rsn_floor % PKT_RECS; e->rx.rsn_seen[i / 64] >> (i & 63) & 1;
	     i = e->rx.rsn_floor % PKT_RECS) {
		e->rx.rsn_seen[i / 64] &= ~(1ull << (i & 63));
		e->rx.rsn_floor++;
	}
	return true;
}

static void rx_rec(struct pkt_ep *e, const struct gx_wire_rec *rec)
{
	switch (rec->type) {
	case GX_REC_OPEN:
	case GX_REC_LIST:
		in_open(e, rec);
		break;
	case GX_REC_OFFER:
		match_offer(e, rec);
		break;
	case GX_REC_GET:
	case GX_REC_GETS:
		rx_get(e, rec);
		break;
	case GX_REC_RESEND:
		ask_take(e, rec);
		break;
	case GX_REC_FAIL:
		rx_fail(e, rec);
		break;
	case GX_REC_CANCEL:
		in_cancel(e, rec);
		break;
	case GX_REC_REVOKE:
		match_revoke(e, rec->revoke.slot);
		break;
	case GX_REC_REFUND:
		share_refunded(e, rec->refund.pkts);
		break;
	}
}

static bool rx_recs(struct pkt_ep *e, const uint8_t *b, uint32_t len)
{
	struct gx_wire_rec rec;
	uint32_t at = 0;
	int n;

	/* All or nothing: a packet with a bad record is not acknowledged, and none of its records
	 * is taken. */
	for (at = 0; at < len; at += n) {
		n = gx_wire_rec_get(b + at, len - at, &rec);
		if (n <= 0)
			return false;
	}
	for (at = 0; at < len; at += n) {
		n = gx_wire_rec_get(b + at, len - at, &rec);
		if (rec_is_new(e, rec.rsn))
			rx_rec(e, &rec);
	}
	if (e->match.nr_early)
		match_early(e);
	return true;
}

/* ---- packets ---- */

/* A packet that no gx sends. If the port vouches for its sender and changes no bytes, that peer is
 * not sane. Its connection ends, instead of waiting for packets that do not come. */
static void rx_insane(struct link_pkt *l, const struct gx_rx *rx, enum gx_stat_id stat)
{
	gx_stat_add(pkt_stats(l), stat, 1);
	if (rx->peer == GX_PEER_ANY || !(l->port->caps.flags & GX_PORT_LOSSLESS))
		return;
	for (unsigned i = 0; i < l->nr_live; i++)
		if (l->live[i]->port_peer == rx->peer)
			rx_fault(l->live[i], -EPROTO);
}

/* These are not the bytes that the sender sent. Where no packet is lost, none is sent again. Then
 * some memory is faulty, and the connection ends instead of waiting for ever. */
static void rx_wrong(struct pkt_ep *e)
{
	gx_stat_add(pkt_stats(e->link), GX_STAT_RX_CRC, 1);
	if (e->lossless)
		rx_fault(e, -EBADMSG);
}

/* Header and connection of a packet; NULL: the packet is dropped and counted. */
static struct pkt_ep *rx_ep(struct link_pkt *l, const struct gx_rx *rx, struct gx_wire_hdr *h)
{
	struct pkt_ep *e;
	uint32_t i;

	if (gx_unlikely(gx_wire_hdr_get(rx->hdr, rx->hlen, rx->len, h))) {
		rx_insane(l, rx, GX_STAT_RX_BAD);
		return NULL;
	}
	i = h->cid & 0xfffff;
	e = i < GX_PEERS_MAX ? l->eps[i] : NULL;
	if (gx_unlikely(!e || e->gen != h->cid >> 20 || e->err ||
			(rx->peer != GX_PEER_ANY && rx->peer != e->port_peer))) {
		rx_insane(l, rx, GX_STAT_RX_STRAY);
		return NULL;
	}
	e->now_ns = l->core->now_ns;
	if (gx_unlikely(e->integrity != GX_INTEGRITY_NONE)) {
		if (e->seal)
			return e; /* nothing of it changes before the packet was found authentic */
		if (gx_wire_hdr_check(rx->hdr, h, e->salt)) {
			rx_wrong(e);
			return NULL;
		}
	}
	if (gx_unlikely(!gx_wire_hdr_plain(rx->hdr))) {
		rx_insane(l, rx, GX_STAT_RX_BAD);
		return NULL;
	}
	ep_touch(e);
	return e;
}

/* The CPU reads the payload of a packet of a burst that ends before @end. Another core has written it,
 * and the next one. */
static void rx_prefetch(const struct link_pkt *l, const struct gx_rx *rx, const struct gx_rx *end)
{
	if (rx + 1 < end && !l->q->rx_gpu)
		gx_prefetch_read(rx[1].data, rx[1].len);
}

/* The CPU checks the payload of a packet, or decrypts it in place. False: the packet is dropped and
 * counted. */
static bool rx_payload(struct pkt_ep *e, const struct gx_rx *rx, const struct gx_wire_hdr *h)
{
	if (e->seal)
		return seal_take(e, rx, h, rx->data);
	if (gx_crc32c(0, rx->data, rx->len) == h->crc_payload)
		return true;
	rx_wrong(e);
	return false;
}

static bool rx_ack(struct pkt_ep *e, const uint8_t *b, uint32_t len)
{
	uint64_t spurious = flow_spurious(e->flow);
	struct gx_wire_ack ack;

	if (gx_wire_ack_get(b, len, &ack) || flow_ack(e->flow, e->now_ns, &ack))
		return false;
	spurious = flow_spurious(e->flow) - spurious;
	if (spurious)
		e->timer.acked_ns = e->now_ns;
	gx_stat_add(pkt_stats(e->link), GX_STAT_TX_SPURIOUS, spurious);
	gx_stat_add(pkt_stats(e->link), GX_STAT_ACK_RX, 1);
	ack_take_out(e);
	ack_done(e, &ack);
	return true;
}

/* Is this psn a new one? If not, the peer misses our ACK. */
static bool rx_new(struct pkt_ep *e, const struct gx_wire_hdr *h)
{
	if (gx_likely(flow_rx_look(e->flow, h->psn) == FLOW_RX_NEW))
		return true;
	gx_stat_add(pkt_stats(e->link), GX_STAT_RX_DUP, 1);
	flow_rx_again(e->flow, e->now_ns);
	return false;
}

/* The next ACK tells the sender. */
static void rx_marked(struct pkt_ep *e)
{
	gx_stat_add(pkt_stats(e->link), GX_STAT_RX_MARKED, 1);
	flow_rx_marked(e->flow);
}

/* Records, and after them an ACK of h->mid bytes, if any. The records go first, because somebody
 * may wait for them. */
static bool rx_ctl_packet(struct pkt_ep *e, const struct gx_rx *rx, const struct gx_wire_hdr *h)
{
	uint32_t recs = rx->len - h->mid;

	if (h->mid > rx->len || !rx_recs(e, rx->data, recs))
		return false;
	flow_rx_take(e->flow, e->now_ns, h->psn, h->flags & GX_PKT_ACK_NOW);
	return !h->mid || rx_ack(e, (const uint8_t *)rx->data + recs, h->mid);
}

/* The peer may have missed something, so the next ACK reports all. It may hear nothing of us. */
static void rx_probe(struct pkt_ep *e, const struct gx_wire_hdr *h, enum gx_half half)
{
	if (gx_unlikely(e->trial.on))
		trial_heard(e, half);
	e->path.seek_due |= h->flags & GX_PKT_SEEK;
	e->rx.done_due = e->rx.done_used;
	flow_rx_take(e->flow, e->now_ns, h->psn, true);
}

static bool rx_ctl_any(struct pkt_ep *e, const struct gx_rx *rx, const struct gx_wire_hdr *h)
{
	if (h->type == GX_PKT_ACK)
		return rx_ack(e, rx->data, rx->len);
	if (!rx_new(e, h))
		return true;
	if (h->type == GX_PKT_CTL)
		return (gx_unlikely(e->trial.on) && trial_holds(e)) || rx_ctl_packet(e, rx, h);
	if (h->type != GX_PKT_PROBE)
		return false;
	rx_probe(e, h, GX_HALF_CTL);
	return true;
}

static void rx_ctl_one(struct link_pkt *l, const struct gx_rx *rx)
{
	struct gx_wire_hdr h;
	struct pkt_ep *e = rx_ep(l, rx, &h);

	if (!e || (e->integrity != GX_INTEGRITY_NONE && !rx_payload(e, rx, &h)))
		return;
	if (rx_ctl_any(e, rx, &h)) {
		e->timer.heard_ns = e->now_ns;
		return;
	}
	gx_stat_add(pkt_stats(l), GX_STAT_RX_BAD, 1);
	if (e->lossless)
		rx_fault(e, -EPROTO);
}

/* DATA of a message that was refused: count each packet once. */
static void rx_refused(struct pkt_ep *e, const struct gx_wire_hdr *h, struct in_msg *m)
{
	uint64_t pkt;

	if (msg_pkt(m->shape, m->len, h->moff, h->plen, h->flags & GX_PKT_EOM, &pkt) ||
	    msg_win_test(&m->win, pkt) != 0)
		return;
	if (m->win.words || m->win.nr_pkts == 1)
		msg_win_set(&m->win, pkt);
	m->seen_pkts++;
	share_used(e, 1);
}

/* DATA of a mid that takes no packets. True: it may be acknowledged, because it is a late copy: its
 * place holds another message by now, or the message is done. */
static bool rx_unplaced(struct pkt_ep *e, const struct gx_wire_hdr *h, struct in_msg *m)
{
	if (gx_unlikely((int32_t)(h->mid - m->mid) > 0)) {
		gx_stat_add(pkt_stats(e->link), GX_STAT_RX_STRAY, 1);
		if (e->lossless)
			rx_fault(e, -EPROTO); /* its OPEN cannot come later */
		return false;
	}
	if (m->mid == h->mid &&
	    m->state == IN_REFUSED) /* in EARLY and DRAIN, CANCEL has named the number of packets */
		rx_refused(e, h, m);
	return true;
}

/* A packet comes for the first time: set its bit, and take its credit. False: there is no buffer
 * for it. */
static bool rx_first(struct pkt_ep *e, struct in_msg *m, uint64_t pkt)
{
	if (gx_unlikely(!share_take(e))) {
		gx_stat_add(pkt_stats(e->link), GX_STAT_RX_NOBUF, 1);
		return false;
	}
	msg_win_set(&m->win, pkt);
	m->seen_pkts++;
	e->rx.need_pkts--;
	return true;
}

/* Its bytes belong in several places. This core copies them there, or a block does, which gives the
 * buffer back with the last of them. */
static bool rx_scatter(struct pkt_ep *e, const struct gx_rx *rx, const struct gx_wire_hdr *h,
		       struct in_msg *m)
{
	struct block_frag frag = {.ref = e->index << 10 | h->mid % GX_WIRE_MIDS,
				  .buf = BLOCK_BUF_PART};
	struct pieces *pieces = pieces_of(&e->pieces, m->pieces);
	uint32_t at = 0;

	if (!in_scatters(e, m)) {
		pieces_write(pieces, h->moff, rx->len, rx->data);
		m->visible_b += rx->len;
		in_check_landed(e, m);
		return false;
	}
	frag.dst_base = (uintptr_t)m->mem->addr;
	frag.dst_len = m->mem->len;
	block_begin(m->bq, GX_WIRE_SEGS);
	for (; at < rx->len; at += frag.len) {
		frag.src = (const char *)rx->data + at;
		frag.len = rx->len - at;
		frag.dst_off =
			(uintptr_t)pieces_find(pieces, h->moff + at, &frag.len) - frag.dst_base;
		if (at + frag.len == rx->len)
			frag.buf = rx->buf;
		block_add(m->bq, &frag, e->now_ns);
		m->pending++;
	}
	e->rx.held_bufs++;
	e->link->held_bufs++;
	return true;
}

/* Who brings payload to its place? */
enum rx_by {
	RX_BY_BLOCK,
	RX_BY_CORE, /* now, if it is host memory in one piece: the core has just read the payload, for
		       its CRC, and has it in its cache */
	RX_BY_NOBODY, /* it is there */
};

/* As the CPU backend copies: past the cache, but for memory that lies in it. */
static void rx_copy(struct link_pkt *l, const struct gx_rx *rx, const struct gx_wire_hdr *h,
		    struct in_msg *m)
{
	if (m->seen_pkts <= 1)
		m->streams = m->len >= GX_WARM_UNIT_B && !gx_warm_write(&l->warm, m->dst, m->len);
	if (m->streams)
		gx_copy_stream_nofence(m->dst + h->moff, rx->data, rx->len);
	else
		gx_copy(m->dst + h->moff, rx->data, rx->len);
	l->unfenced |= m->streams;
}

static bool rx_is_plain(const struct pkt_ep *e, const struct in_msg *m)
{
	return m->bq == e->link->bq_host && !m->pieces && !m->checks;
}

/* The packet's bytes get a descriptor, and a block holds its buffer until they are copied. True: a
 * block holds it. */
RX_INLINE bool rx_place(struct pkt_ep *e, const struct gx_rx *rx, const struct gx_wire_hdr *h,
			struct in_msg *m, enum rx_by by)
{
	flow_rx_take(e->flow, e->now_ns, h->psn, h->flags & (GX_PKT_EOM | GX_PKT_ACK_NOW));
	if (by == RX_BY_CORE && rx_is_plain(e, m)) {
		rx_copy(e->link, rx, h, m);
		by = RX_BY_NOBODY;
	}
	if (!rx->len || by == RX_BY_NOBODY) {
		m->visible_b += rx->len;
		in_check_landed(e, m);
		return false;
	}
	if (gx_unlikely(m->pieces))
		return rx_scatter(e, rx, h, m);
	block_add(m->bq,
		  &(struct block_frag){.src = rx->data,
				       .len = rx->len,
				       .crc = h->crc_payload,
				       .check = m->checks,
				       .dst_base = (uintptr_t)m->dst,
				       .dst_len = m->len,
				       .dst_off = h->moff,
				       .buf = rx->buf,
				       .ref = e->index << 10 | h->mid % GX_WIRE_MIDS},
		  e->now_ns);
	m->pending++;
	e->rx.held_bufs++;
	e->link->held_bufs++;
	return true;
}

/* A packet that is whole and, as far as anybody can see, the peer's. @active: its message @m is under
 * way. True: a block holds the buffer. */
RX_INLINE bool rx_data_take(struct pkt_ep *e, const struct gx_rx *rx, const struct gx_wire_hdr *h,
			    struct in_msg *m, bool active, enum rx_by by)
{
	uint64_t pkt;
	int seen;

	e->timer.heard_ns = e->now_ns;
	if (!rx_new(e, h))
		return false;
	if (gx_unlikely(rx->marked))
		rx_marked(e);
	if (h->type == GX_PKT_PROBE) {
		rx_probe(e, h, GX_HALF_DATA);
		return false;
	}
	if (gx_unlikely(h->type != GX_PKT_DATA)) {
		gx_stat_add(pkt_stats(e->link), GX_STAT_RX_BAD, 1);
		return false;
	}
	if (gx_unlikely(!active)) {
		if (rx_unplaced(e, h, m))
			flow_rx_take(e->flow, e->now_ns, h->psn, true);
		return false;
	}
	if (msg_pkt(m->shape, m->len, h->moff, rx->len, h->flags & GX_PKT_EOM, &pkt) ||
	    (seen = msg_win_test(&m->win, pkt)) < 0) {
		gx_stat_add(pkt_stats(e->link), GX_STAT_RX_BAD, 1);
		rx_fault(e, -EPROTO);
		return false;
	}
	if (!seen) {
		if (!rx_first(e, m, pkt))
			return false; /* it counts as lost, and comes again */
	} else if (!bad_again(e, m, pkt)) {
		gx_stat_add(pkt_stats(e->link), GX_STAT_RX_DUP, 1);
		flow_rx_take(e->flow, e->now_ns, h->psn, true);
		return false;
	}
	return rx_place(e, rx, h, m, by);
}

/* May a packet be decrypted straight to its place? Only to host memory in one piece where no byte of it
 * has come: a forged packet spoils nothing that is authentic. */
static bool rx_is_direct(const struct pkt_ep *e, const struct gx_rx *rx,
			 const struct gx_wire_hdr *h, const struct in_msg *m)
{
	uint64_t pkt;

	return e->integrity == GX_INTEGRITY_GCM && rx_is_plain(e, m) &&
	       !msg_pkt(m->shape, m->len, h->moff, rx->len, h->flags & GX_PKT_EOM, &pkt) &&
	       msg_win_test(&m->win, pkt) == 0;
}

/* A packet of a connection that has an integrity mode. It is checked before anything else. */
static __attribute__((noinline)) bool rx_data_guarded(struct pkt_ep *e, const struct gx_rx *rx,
						      const struct gx_wire_hdr *h, struct in_msg *m,
						      bool active)
{
	bool direct = active && rx_is_direct(e, rx, h, m);

	if (e->seal) {
		if (!seal_take(e, rx, h, direct ? m->dst + h->moff : rx->data))
			return false;
	} else if (!(active && m->checks) && !e->link->q->rx_gpu && !rx_payload(e, rx, h)) {
		return false; /* only its copy reads payload in a GPU */
	}
	return rx_data_take(e, rx, h, m, active, direct ? RX_BY_NOBODY : RX_BY_CORE);
}

/* True: a block holds the buffer; false: it goes back at once. */
static bool rx_data_one(struct link_pkt *l, const struct gx_rx *rx, const struct gx_rx *end)
{
	struct gx_wire_hdr h;
	struct pkt_ep *e = rx_ep(l, rx, &h);
	struct in_msg *m;
	bool active;

	if (!e)
		return false;
	m = in_at(e, h.mid);
	active = h.type == GX_PKT_DATA && m->mid == h.mid && m->state == IN_ACTIVE;
	if (gx_unlikely(e->integrity != GX_INTEGRITY_NONE)) {
		if (!(active && m->checks))
			rx_prefetch(l, rx, end);
		return rx_data_guarded(e, rx, &h, m, active);
	}
	return rx_data_take(e, rx, &h, m, active, RX_BY_BLOCK);
}

static bool rx_room(const struct link_pkt *l)
{
	unsigned n = l->held_bufs ? l->nr_bqs : 0;
	unsigned want = l->nr_scattered ? BLOCK_ROOM_PARTS : GX_BURST_MAX;

	for (unsigned i = 0; i < n; i++)
		if (block_room(l->bqs[i]) < want)
			return false;
	return true;
}

/* Look at blocks only while they hold fragments: most turns of a core find none, and each look
 * delays the reader of a notification. */
void rx_flush(struct link_pkt *l, bool burst_short, uint64_t now_ns)
{
	unsigned n = l->held_bufs ? l->nr_bqs : 0;

	for (unsigned i = 0; i < n; i++)
		block_flush(l->bqs[i], burst_short, now_ns);
}

static unsigned rx_ctl_burst(struct link_pkt *l, unsigned max)
{
	unsigned n = l->q->ops->rx_burst(l->q, GX_HALF_CTL, l->rx_ctl, max);

	/* ACKs are timed by the clock. A core that shares its CPU may have begun this turn long before, and
	 * would take a round trip of 10 ms for one of 25 us. */
	if (n)
		l->core->now_ns = GX_MAX(l->core->now_ns, l->q->heard_ns);
	for (unsigned i = 0; i < n; i++)
		rx_ctl_one(l, &l->rx_ctl[i]);
	return n;
}

/* Control packets. Where nothing is lost, take all that wait: the OPEN of a data packet in hand was
 * sent before that packet, and must be known first. The limit is several times the size of any
 * port's control ring. On a network anybody may send control packets, so the data has its turn
 * after a few bursts. A data packet that overtakes its OPEN comes again. */
static unsigned rx_ctl(struct link_pkt *l)
{
	unsigned max = l->port->caps.flags & GX_PORT_LOSSLESS ? 16384 : 4 * GX_BURST_MAX;
	unsigned total = 0;
	unsigned n;

	while ((n = rx_ctl_burst(l, GX_BURST_MAX)) > 0) {
		total += n;
		if (total >= max)
			break;
	}
	return total;
}

/* @few: none is expected. Data has a control packet before it, or, like a probe of the path, one that
 * asks for its acknowledgement after it. So a look at the control half alone will do. A tail probe of
 * data comes alone, and soon after that data. */
bool rx_poll(struct link_pkt *l, bool few, uint64_t now_ns)
{
	unsigned n_ctl = few ? rx_ctl_burst(l, RX_FEW) : 0;
	uint64_t bytes = 0;
	unsigned n = 0;

	if (few && !n_ctl)
		return false;
	if (rx_room(l))
		n = l->q->ops->rx_burst(l->q, GX_HALF_DATA, l->rx_data, GX_BURST_MAX);
	n_ctl += rx_ctl(l);
	for (unsigned i = 0; i < n; i++) {
		bytes += l->rx_data[i].len;
		if (!rx_data_one(l, &l->rx_data[i], l->rx_data + n))
			link_release(l, l->rx_data[i].buf);
	}
	rx_flush(l, n < GX_BURST_MAX, now_ns);
	if (n + n_ctl) {
		if (gx_unlikely(l->unfenced))
			in_fence(l);
		gx_stat_add(pkt_stats(l), GX_STAT_RX_PKTS, n + n_ctl);
		gx_stat_add(pkt_stats(l), GX_STAT_RX_BYTES, bytes);
	}
	return n + n_ctl > 0;
}

/* ---- finished copies ---- */

static void reap_one(struct link_pkt *l, const struct block_done *d)
{
	struct pkt_ep *e = l->eps[d->ref >> 10];
	struct in_msg *m = &e->in[d->ref & (GX_WIRE_MIDS - 1)];

	e->rx.held_bufs--;
	l->held_bufs--;
	m->pending--;
	if (gx_likely(d->buf < BLOCK_BUF_PART)) {
		link_release(l, d->buf);
	} else if (d->buf == BLOCK_BUF_NONE) {
		gx_stat_add(pkt_stats(l), GX_STAT_QUARANTINED_B, d->len);
	} else { /* a later fragment has the buffer */
		e->rx.held_bufs++;
		l->held_bufs++;
	}
	if (gx_unlikely(d->status == -EBADMSG)) {
		if (!bad_found(e, m, d->off, d->len))
			in_refuse(e, m, -EBADMSG);
	} else if (gx_unlikely(d->status)) {
		in_refuse(e, m, -EIO);
	} else {
		m->visible_b += d->len;
		in_check_landed(e, m);
	}
	if (gx_unlikely(in_is_drained(m)))
		in_drained(e, m);
}

static bool reap_q(struct link_pkt *l, struct block_q *q, uint64_t now_ns)
{
	struct block_done done[GX_BURST_MAX];
	unsigned total = 0;
	unsigned n;

	do {
		n = block_reap(q, done, GX_BURST_MAX, now_ns);
		for (unsigned i = 0; i < n; i++)
			reap_one(l, &done[i]);
		total += n;
	} while (n == GX_BURST_MAX && total < GX_BLOCK_DESCS_MAX);
	return total > 0;
}

bool rx_reap(struct link_pkt *l, uint64_t now_ns)
{
	unsigned n = l->held_bufs ? l->nr_bqs : 0;
	bool worked = false;

	for (unsigned i = 0; i < n; i++)
		worked |= reap_q(l, l->bqs[i], now_ns);
	link_release_flush(l);
	return worked;
}
