/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets in and out. Both halves come out of one device queue, so received packets wait in two
 * short FIFOs. Runs on the polling core.
 */
#include "ports/dpdk/dpdk.h"

#include <errno.h>
#include <string.h>

#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include "gx_internal/ring.h"

#define DPDK_FRAME_MIN 60

static inline void dpdk_enter(void)
{
	static _Thread_local bool entered;

	if (gx_likely(entered))
		return;
	entered = true;
	dpdk_thread_enter();
}

/* ---- Attach and detach ---- */

/* Offer kept packets to the driver again. Return: none is left. */
static bool dev_kept_flush(struct dpdk_dev *d)
{
	unsigned n;

	if (!d->nr_kept)
		return true;
	n = dpdk_dev_tx(d, d->kept + d->kept_at, (uint16_t)d->nr_kept);
	d->kept_at += n;
	d->nr_kept -= n;
	if (d->nr_kept)
		return false;
	d->kept_at = 0;
	return true;
}

void dpdk_peer_attach(struct gx_port_queue *gq, uint32_t index)
{
	struct dpdk_queue *q = dpdk_queue_of(gq);
	struct dpdk_peer *peer = q->peer[index];

	dpdk_enter();
	peer->attached = true;
	if (q->port->args.memif)
		q->devs[q->nr_devs++] = peer->dev;
}

/* Drop the waiting packets of @peer; the others keep their order. */
static void fifo_purge(struct dpdk_fifo *f, uint32_t peer)
{
	uint32_t to = f->tail;

	for (uint32_t i = f->tail; i != f->head; i++) {
		struct dpdk_ent e = f->ent[i % DPDK_FIFO];

		if (e.peer == peer)
			rte_pktmbuf_free(e.m);
		else
			f->ent[to++ % DPDK_FIFO] = e;
	}
	f->head = to;
}

void dpdk_peer_detach(struct gx_port_queue *gq, uint32_t index)
{
	struct dpdk_queue *q = dpdk_queue_of(gq);
	struct dpdk_peer *peer = q->peer[index];

	if (!peer->attached)
		return;
	peer->attached = false;
	if (!q->port->args.memif)
		return;
	for (unsigned i = 0; i < q->nr_devs; i++)
		if (q->devs[i] == peer->dev)
			q->devs[i--] = q->devs[--q->nr_devs];
	q->rover = 0;
	fifo_purge(&q->fifo[GX_HALF_CTL], index);
	fifo_purge(&q->fifo[GX_HALF_DATA], index);
	if (!peer->dev->quiet && dev_kept_flush(peer->dev))
		dpdk_memif_bye(peer->dev);
}

/* ---- Receive ---- */

/* Return: @m asked for our MAC address. The answer may be lost like any packet. */
static bool arp_answer(struct dpdk_queue *q, const struct rte_mbuf *m)
{
	const struct dpdk_dev *d = &q->dev;
	struct rte_mbuf *answer;
	uint8_t *b, frame[DPDK_FRAME_MIN] = {0};

	memcpy(frame, rte_pktmbuf_mtod(m, const uint8_t *),
	       GX_MIN(m->data_len, (uint16_t)DPDK_ARP_B));
	if (!dpdk_arp_answer(&q->port->net, frame, m->data_len))
		return false;
	answer = rte_pktmbuf_alloc(d->tx_pool);
	if (!answer)
		return true;
	b = rte_pktmbuf_mtod(answer, uint8_t *);
	memcpy(b, frame, sizeof(frame));
	answer->data_len = sizeof(frame);
	answer->pkt_len = sizeof(frame);
	if (rte_eth_tx_burst(d->id, d->qid, &answer, 1) != 1)
		rte_pktmbuf_free(answer);
	return true;
}

static uint32_t fifo_count(const struct dpdk_fifo *f)
{
	return f->head - f->tail;
}

static void rx_drop(struct dpdk_queue *q, struct rte_mbuf *m, enum gx_stat_id why)
{
	gx_stat_add(q->q.stats, why, 1);
	rte_pktmbuf_free(m);
}

/* A packet without a gx header: a peer's goodbye, an ARP request, or a stray. */
static void rx_stray(struct dpdk_queue *q, struct dpdk_dev *d, struct rte_mbuf *m)
{
	if (d->peer != GX_PEER_ANY && dpdk_memif_is_bye(m)) {
		d->quiet = true;
		dpdk_memif_bye(d);
		rte_pktmbuf_free(m);
	} else if (q->port->arp && arp_answer(q, m)) {
		rte_pktmbuf_free(m);
	} else {
		rx_drop(q, m, GX_STAT_RX_STRAY);
	}
}

/* Hand @m to the core of its UDP port. Return: that is this core, and @m stays with the caller. */
static bool rx_hand(struct dpdk_queue *q, struct rte_mbuf *m)
{
	uint16_t port = dpdk_get16(rte_pktmbuf_mtod(m, const uint8_t *) + 36);
	uint32_t lane = (uint16_t)(port - q->port->net.udp_port) / 2;
	void *item = m;

	if (lane == q->index)
		return true;
	if (lane >= q->port->nr_queues)
		rx_drop(q, m, GX_STAT_RX_STRAY);
	else if (!gx_ring_put(q->port->queue[lane]->from[q->index], &item, 1))
		rx_drop(q, m, GX_STAT_RX_NOBUF);
	return false;
}

/*
 * Is the packet @m, with @behind bytes after its UDP header, in the right buffers? Usually it is
 * one buffer, for the CPU. A cut queue may bring data packets alone: the header in the first
 * buffer, the payload, if any, in a second one on the GPU. A packet with more buffers is longer
 * than we announced.
 */
static bool rx_fits(const struct dpdk_queue *q, const struct dpdk_dev *d, const struct rte_mbuf *m,
		    enum gx_half half, uint32_t behind)
{
	if (half == GX_HALF_CTL)
		return !d->cut && m->nb_segs == 1 && behind <= GX_CTL_PAYLOAD_MAX + DPDK_HDR_B;
	if (!d->cut)
		return !q->port->pool.arena && m->nb_segs == 1;
	return m->data_len == DPDK_HEAD_B &&
	       (m->nb_segs == 2 ? m->next->data_len >= behind - DPDK_HDR_B
				: m->nb_segs == 1 && behind == DPDK_HDR_B);
}

static void rx_one(struct dpdk_queue *q, struct dpdk_dev *d, struct rte_mbuf *m)
{
	const uint8_t *b = rte_pktmbuf_mtod(m, const uint8_t *);
	/* A packet for us has all headers in the first buffer. */
	uint32_t len = m->data_len == DPDK_HEAD_B ? m->pkt_len : m->data_len;
	uint64_t sum = m->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK;
	enum dpdk_verdict verdict;
	enum gx_half half = GX_HALF_CTL;
	struct dpdk_fifo *f;
	uint32_t behind = 0;

	verdict = dpdk_encap_get(b, len, d->verify ? q->port->net.ip : 0,
				 q->port->hand_over ? 0 : q->udp_port,
				 d->verify && sum != RTE_MBUF_F_RX_IP_CKSUM_GOOD, &half, &behind);
	if (gx_unlikely(verdict == DPDK_STRAY)) {
		rx_stray(q, d, m);
		return;
	}
	if (q->port->hand_over && !rx_hand(q, m))
		return;
	if (gx_unlikely(verdict == DPDK_BAD || sum == RTE_MBUF_F_RX_IP_CKSUM_BAD ||
			!rx_fits(q, d, m, half, behind))) {
		rx_drop(q, m, GX_STAT_RX_BAD);
		return;
	}
	f = &q->fifo[half];
	f->ent[f->head++ % DPDK_FIFO] = (struct dpdk_ent){
		.m = m, .peer = d->peer, .len = behind - DPDK_HDR_B, .seq = q->seq++};
}

/* One burst of one device into the FIFOs. The caller has checked their room. */
static void rx_poll(struct dpdk_queue *q, struct dpdk_dev *d)
{
	struct rte_mbuf *m[DPDK_RX_BURST];
	uint16_t n;

	if (d->nr_kept)
		dev_kept_flush(d);
	if (d->quiet)
		return;
	n = dpdk_dev_rx(d, m, DPDK_RX_BURST);
	for (uint16_t i = 0; i < n; i++) {
		const char *b = rte_pktmbuf_mtod(m[i], const char *);

		__builtin_prefetch(b);
		__builtin_prefetch(b + GX_CACHE_LINE);
	}
	for (uint16_t i = 0; i < n; i++)
		rx_one(q, d, m[i]);
}

static bool rx_has_room(const struct dpdk_queue *q)
{
	return fifo_count(&q->fifo[0]) <= DPDK_FIFO - DPDK_RX_BURST &&
	       fifo_count(&q->fifo[1]) <= DPDK_FIFO - DPDK_RX_BURST;
}

/* Take packets for this core that came in at other cores' queues. */
static void rx_take_over(struct dpdk_queue *q)
{
	void *m[DPDK_RX_BURST];

	for (unsigned i = 0; i < q->port->nr_queues && rx_has_room(q); i++) {
		uint32_t n = i == q->index ? 0 : gx_ring_get(q->from[i], m, DPDK_RX_BURST);

		for (uint32_t k = 0; k < n; k++)
			rx_one(q, &q->dev, m[k]);
	}
}

/*
 * Poll each device once (a lone one twice) while the caller wants more. With a queue for each half
 * the arrival order of data and control is unknown. The packet link copes: it takes data, then all
 * control packets, then looks at the data again. So it has seen all data older than a control
 * packet.
 */
static void rx_fill(struct dpdk_queue *q, const struct dpdk_fifo *f, unsigned n)
{
	unsigned rounds = q->nr_devs == 1 ? 2 : q->nr_devs;
	bool cut = q->port->pool.arena && f == &q->fifo[GX_HALF_DATA];

	for (; rounds && fifo_count(f) < n && rx_has_room(q); rounds--) {
		if (q->rover >= q->nr_devs)
			q->rover = 0;
		rx_poll(q, cut ? &q->cut : q->devs[q->rover++]);
	}
	if (q->port->hand_over)
		rx_take_over(q);
}

static void rx_take(struct dpdk_queue *q, const struct dpdk_ent *e, struct gx_rx *pkt)
{
	char *b = rte_pktmbuf_mtod(e->m, char *);

	pkt->len = e->len;
	pkt->peer = e->peer;
	pkt->hlen = DPDK_HDR_B;
	pkt->marked = dpdk_is_marked((const uint8_t *)b);
	memcpy(pkt->hdr, b + DPDK_ENCAP_B, DPDK_HDR_B);
	pkt->buf = (uintptr_t)e->m;
}

/* Payload, as the CPU sees it, or a GPU if there is a pool. */
static void *rx_payload(const struct dpdk_queue *q, const struct dpdk_ent *e)
{
	if (!q->port->pool.arena)
		return rte_pktmbuf_mtod_offset(e->m, char *, DPDK_HEAD_B) + q->alias;
	return e->len ? rte_pktmbuf_mtod(e->m->next, void *) : q->q.rx_base;
}

static unsigned rx_ctl(struct dpdk_queue *q, struct gx_rx pkts[], unsigned n)
{
	struct dpdk_fifo *f = &q->fifo[GX_HALF_CTL];
	unsigned i;

	if (!fifo_count(f))
		rx_fill(q, f, 1);
	for (i = 0; i < n && fifo_count(f); i++) {
		struct dpdk_ent *e = &f->ent[f->tail++ % DPDK_FIFO];

		rx_take(q, e, &pkts[i]);
		memcpy(q->ctl_buf[i], rte_pktmbuf_mtod(e->m, char *) + DPDK_HEAD_B, e->len);
		pkts[i].buf = 0;
		pkts[i].data = q->ctl_buf[i];
		rte_pktmbuf_free(e->m);
	}
	return i;
}

/* Data must not overtake control packets that arrived earlier. */
static unsigned rx_data(struct dpdk_queue *q, struct gx_rx pkts[], unsigned n)
{
	struct dpdk_fifo *f = &q->fifo[GX_HALF_DATA], *ctl = &q->fifo[GX_HALF_CTL];
	uint32_t limit;
	unsigned i;

	rx_fill(q, f, n);
	limit = fifo_count(ctl) ? ctl->ent[ctl->tail % DPDK_FIFO].seq : q->seq;
	for (i = 0; i < n && fifo_count(f); i++) {
		struct dpdk_ent *e = &f->ent[f->tail % DPDK_FIFO];

		if ((int32_t)(e->seq - limit) >= 0)
			break;
		rx_take(q, e, &pkts[i]);
		pkts[i].data = rx_payload(q, e);
		f->tail++;
	}
	return i;
}

unsigned dpdk_rx_burst(struct gx_port_queue *gq, enum gx_half half, struct gx_rx pkts[], unsigned n)
{
	struct dpdk_queue *q = dpdk_queue_of(gq);

	dpdk_enter();
	n = GX_MIN(n, (unsigned)GX_BURST_MAX);
	if (half == GX_HALF_DATA)
		return rx_data(q, pkts, n);
	n = rx_ctl(q, pkts, n);
	if (n && !q->port->args.memif)
		gq->heard_ns = gx_now_ns();
	return n;
}

void dpdk_rx_release(struct gx_port_queue *gq, const uint64_t bufs[], unsigned n)
{
	struct rte_mbuf *m[GX_BURST_MAX];

	dpdk_enter();
	while (n) {
		unsigned k = GX_MIN(n, (unsigned)GX_BURST_MAX);

		for (unsigned i = 0; i < k; i++)
			m[i] = (struct rte_mbuf *)(uintptr_t)bufs[i];
		rte_pktmbuf_free_bulk(m, k);
		bufs += k;
		n -= k;
	}
}

/* ---- Send ---- */

static bool dev_is_ready(struct dpdk_dev *d)
{
	if (gx_unlikely(!d->up))
		d->up = dpdk_dev_is_up(d);
	return d->up && !d->quiet && dev_kept_flush(d);
}

static void tx_head(const struct dpdk_encap *e, const struct gx_tx *pkt, uint8_t *b)
{
	dpdk_encap_put(e, b, DPDK_HDR_B + pkt->len);
	memcpy(b + DPDK_ENCAP_B, pkt->hdr, DPDK_HDR_B);
}

/* An mbuf with a copy of headers and payload; NULL: the pool is empty. */
static struct rte_mbuf *tx_copy(struct dpdk_dev *d, const struct dpdk_encap *e,
				const struct gx_tx *pkt)
{
	struct rte_mbuf *m = rte_pktmbuf_alloc(d->tx_pool);
	uint8_t *b;

	if (!m)
		return NULL;
	b = rte_pktmbuf_mtod(m, uint8_t *);
	tx_head(e, pkt, b);
	gx_copy(b + DPDK_HEAD_B, pkt->data, pkt->len);
	m->data_len = (uint16_t)(DPDK_HEAD_B + pkt->len);
	m->pkt_len = m->data_len;
	return m;
}

/*
 * Two mbufs that stay ours; the second one points at the payload. Each has one reference more than
 * the driver drops. So they never return to a pool, and their setup stays.
 */
static struct rte_mbuf *tx_gather(struct dpdk_dev *d, unsigned i, const struct dpdk_encap *e,
				  const struct gx_tx *pkt)
{
	struct rte_mbuf *m = d->head[i], *body = d->body[i];

	tx_head(e, pkt, rte_pktmbuf_mtod(m, uint8_t *));
	rte_mbuf_refcnt_set(m, 2);
	m->pkt_len = DPDK_HEAD_B + pkt->len;
	m->nb_segs = pkt->len ? 2 : 1;
	m->next = pkt->len ? body : NULL;
	rte_mbuf_refcnt_set(body, 2);
	body->buf_addr = (void *)(uintptr_t)pkt->data;
	body->buf_len = (uint16_t)pkt->len;
	body->data_len = (uint16_t)pkt->len;
	return m;
}

/* The driver had no room from @i on. Keep copies: the caller may change the payload after the
 * return. */
static unsigned tx_keep(struct dpdk_queue *q, struct dpdk_dev *d, enum gx_half half,
			const struct gx_tx pkts[], struct rte_mbuf *const m[], unsigned i,
			unsigned n)
{
	for (; i < n; i++) {
		struct rte_mbuf *keep = m[i];

		if (d->tx_mode == DPDK_TX_GATHER)
			keep = tx_copy(d, &q->peer[pkts[i].peer]->encap[half], &pkts[i]);
		if (!keep)
			break;
		d->kept[d->nr_kept++] = keep;
	}
	return i;
}

/* The caller must not offer such a packet. It sets the fault: a silent drop would hide the bug. */
static bool tx_is_wrong(struct dpdk_queue *q, const struct dpdk_dev *d, const struct gx_tx *pkt)
{
	if (gx_likely(pkt->hlen == DPDK_HDR_B && pkt->len + DPDK_HEAD_B <= d->frame_max))
		return false;
	q->fault = pkt->hlen == DPDK_HDR_B ? -EMSGSIZE : -EINVAL;
	return true;
}

/* Send up to a burst to one device. Return: packets taken. */
static unsigned tx_dev(struct dpdk_queue *q, struct dpdk_dev *d, enum gx_half half,
		       const struct gx_tx pkts[], unsigned n)
{
	struct rte_mbuf *m[GX_BURST_MAX];
	unsigned i, sent;

	if (!dev_is_ready(d))
		return 0;
	for (i = 0; i < n; i++) {
		const struct dpdk_encap *e = &q->peer[pkts[i].peer]->encap[half];

		if (tx_is_wrong(q, d, &pkts[i]))
			break;
		m[i] = d->tx_mode == DPDK_TX_GATHER ? tx_gather(d, i, e, &pkts[i])
						    : tx_copy(d, e, &pkts[i]);
		if (!m[i])
			break;
	}
	sent = dpdk_dev_tx(d, m, (uint16_t)i);
	return sent == i ? i : tx_keep(q, d, half, pkts, m, sent, i);
}

static struct dpdk_dev *tx_dev_of(const struct dpdk_queue *q, uint32_t index)
{
	const struct dpdk_peer *peer = index < GX_PEERS_MAX ? q->peer[index] : NULL;

	return peer && peer->attached && peer->connected ? peer->dev : NULL;
}

unsigned dpdk_tx_room(struct gx_port_queue *gq, enum gx_half half, uint32_t index)
{
	struct dpdk_dev *d = tx_dev_of(dpdk_queue_of(gq), index);

	dpdk_enter();
	return d && !dpdk_queue_of(gq)->fault && dev_is_ready(d) ? GX_BURST_MAX : 0;
}

unsigned dpdk_tx_burst(struct gx_port_queue *gq, enum gx_half half, const struct gx_tx pkts[],
		       unsigned n)
{
	struct dpdk_queue *q = dpdk_queue_of(gq);
	unsigned i = 0;

	dpdk_enter();
	while (i < n && !q->fault) {
		struct dpdk_dev *d = tx_dev_of(q, pkts[i].peer);
		unsigned k = 1, taken;

		if (!d)
			break;
		while (i + k < n && k < GX_BURST_MAX && tx_dev_of(q, pkts[i + k].peer) == d)
			k++;
		taken = tx_dev(q, d, half, pkts + i, k);
		i += taken;
		if (taken < k)
			break;
	}
	return i;
}

/* A receiver looks at no source port, so the peer need not know them: its device and its cores sort
 * packets by the port that they go to. */
void dpdk_path(struct gx_port_queue *gq, enum gx_half half, uint32_t index, unsigned path)
{
	dpdk_encap_from(&dpdk_queue_of(gq)->peer[index]->encap[half], gq->from[half][path]);
}

unsigned dpdk_tx_reap(struct gx_port_queue *q, uint32_t cookies[], unsigned n)
{
	return 0;
}

int dpdk_fault(struct gx_port_queue *gq)
{
	return dpdk_queue_of(gq)->fault;
}
