/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Port shm's bursts. They decide by private memory alone: they copy each value out of a segment
 * once, then check the copy. Runs on the polling core.
 */
#include "ports/shm.h"

#include <assert.h>
#include <errno.h>

#define SHM_CTL_MORE	  (SHM_CTL_NR / 4) /* entries read before the sender hears of it */
#define SHM_VIOLATION_MAX 1024		   /* bad entries before we mute the peer */
#define SHM_PREFETCH	  4		   /* entries */

/* A look at a peer and half costs a load from the cache, or from memory if there are many peers. So
 * with more than a few peers each burst looks at hot ones alone: those with a packet of late, from
 * them or to them. It looks at quiet peers in turn, at a fixed pace: 1,000 of them take 1 ms. After
 * a long pause one burst looks at all of them. */
#define SHM_FEW	   4	   /* of so few peers none is ever quiet */
#define SHM_HOT_NS 4000000 /* a peer turns quiet so long after its last packet */
#define SHM_PACE   10	   /* log2 of the ns between two looks at quiet peers */

static const _Atomic uint32_t shm_never; /* never becomes 1: the word of a muted peer */

/* ---- Hot and quiet peers ---- */

static void shm_swap(struct shm_queue *q, uint32_t a, uint32_t b)
{
	for (unsigned h = 0; h < 2; h++) {
		struct shm_poll was = q->half[h].poll[a];

		q->half[h].poll[a] = q->half[h].poll[b];
		q->half[h].poll[b] = was;
	}
	q->peer[q->half[0].poll[a].peer]->at = a;
	q->peer[q->half[0].poll[b].peer]->at = b;
}

/* A packet came from @peer or goes to it. */
static void shm_heat(struct shm_queue *q, struct shm_peer *peer)
{
	peer->used_ns = q->q.now_ns;
	if (peer->at >= q->nr_hot)
		shm_swap(q, peer->at, q->nr_hot++);
}

/* Check one hot peer: has it become quiet? */
static void shm_cool(struct shm_queue *q)
{
	if (!q->nr_hot)
		return;
	if (++q->cool >= q->nr_hot)
		q->cool = 0;
	if (q->q.now_ns - q->peer[q->half[0].poll[q->cool].peer]->used_ns > SHM_HOT_NS)
		shm_swap(q, q->cool, --q->nr_hot);
}

/* The expected number of the first entry is 1: a peer is attached once in its life. */
void shm_peer_attach(struct gx_port_queue *gq, uint32_t index)
{
	struct shm_queue *q = shm_queue_of(gq);
	struct shm_peer *peer = q->peer[index];
	unsigned i = q->nr_active++;

	q->half[GX_HALF_CTL].poll[i] = (struct shm_poll){&peer->rx.ctl[0].seq, 1, index};
	q->half[GX_HALF_DATA].poll[i] = (struct shm_poll){&peer->rx.used[0].seq, 1, index};
	peer->attached = true;
	peer->at = i;
	shm_heat(q, peer);
}

void shm_peer_detach(struct gx_port_queue *gq, uint32_t index)
{
	struct shm_queue *q = shm_queue_of(gq);

	struct shm_peer *peer = q->peer[index];

	if (peer->at < q->nr_hot)
		shm_swap(q, peer->at, --q->nr_hot);
	shm_swap(q, peer->at, --q->nr_active);
	if (q->nr_active <= SHM_FEW)
		q->nr_hot = q->nr_active;
	q->half[0].start = q->half[1].start = 0;
	peer->attached = false;
	shm_poison_drain(q, peer);
}

/* ---- Receive ---- */

/* Read nothing more from @peer. The link then finds it silent and ends its operations. */
static void shm_mute(struct shm_queue *q, const struct shm_peer *peer)
{
	for (unsigned h = 0; h < 2; h++)
		q->half[h].poll[peer->at] = (struct shm_poll){&shm_never, 1, peer->index};
}

/* An entry breaks the rules: count it and drop it. After many of them mute the peer. */
static void shm_rx_bad(struct shm_queue *q, struct shm_peer *peer)
{
	gx_stat_add(q->q.stats, GX_STAT_RX_BAD, 1);
	if (++peer->nr_bad >= SHM_VIOLATION_MAX)
		shm_mute(q, peer);
}

/* Pairs with the release in shm_tx_ctl_one() and shm_tx_ring(): the entry is complete. */
static bool shm_poll_ready(const struct shm_poll *poll)
{
	return atomic_load_explicit(poll->seq, memory_order_acquire) == poll->want;
}

/* Copy the entry to private memory. False: it was bad, and is counted. */
static bool shm_rx_ctl_one(struct shm_queue *q, struct shm_peer *peer, const struct shm_ctl *e,
			   struct gx_rx *pkt, uint8_t *buf)
{
	/* One load for both lengths, and only once: the sender may change them meanwhile. */
	uint32_t word = *(const volatile uint32_t *)&e->len;

	_Static_assert(offsetof(struct shm_ctl, hlen) == offsetof(struct shm_ctl, len) + 2,
		       "one load");
	pkt->len = word & 0xffff;
	pkt->hlen = word >> 16;
	if (pkt->len > GX_CTL_PAYLOAD_MAX || pkt->hlen > SHM_HDR_B) {
		shm_rx_bad(q, peer);
		return false;
	}
	memcpy(pkt->hdr, e->b, SHM_HDR_B);
	memcpy(buf, e->b + GX_ALIGN_UP(pkt->hlen, 8), pkt->len);
	pkt->buf = 0;
	pkt->data = buf;
	pkt->peer = peer->index;
	return true;
}

static unsigned shm_rx_ctl(struct shm_queue *q, struct shm_poll *poll, struct gx_rx pkts[],
			   unsigned n, unsigned got)
{
	struct shm_peer *peer = q->peer[poll->peer];
	uint32_t left = SHM_CTL_NR;

	for (; got < n && left && shm_poll_ready(poll); left--) {
		const struct shm_ctl *e = &peer->rx.ctl[(poll->want - 1) % SHM_CTL_NR];
		uint32_t next = poll->want % SHM_CTL_NR;

		poll->seq = &peer->rx.ctl[next].seq;
		poll->want++;
		if (shm_rx_ctl_one(q, peer, e, &pkts[got], q->ctl_buf + got * GX_CTL_PAYLOAD_MAX))
			got++;
		if (poll->seq == &shm_never)
			return got;
	}
	if (poll->want - 1 - peer->ctl_written >= SHM_CTL_MORE) {
		peer->ctl_written = poll->want - 1;
		/* Pairs with the acquire in shm_ctl_room(): the entries have been copied out. */
		atomic_store_explicit(&peer->rx.hdr->ctl_done, peer->ctl_written,
				      memory_order_release);
	}
	return got;
}

static bool shm_rx_data_one(struct shm_queue *q, struct shm_peer *peer, const struct shm_used *e,
			    struct gx_rx *pkt)
{
	/* One load for each word, and only once: the sender may change them meanwhile. */
	uint32_t slot = *(const volatile uint32_t *)&e->slot;
	uint32_t len = *(const volatile uint32_t *)&e->len;
	uint32_t hlen = *(const volatile uint32_t *)&e->hlen;

	if (slot >= peer->rx.nr_slots || len > peer->rx.slot_b || hlen > SHM_HDR_B ||
	    peer->state[slot] != SHM_SLOT_POSTED) {
		shm_rx_bad(q, peer);
		return false;
	}
	peer->state[slot] = SHM_SLOT_HELD;
	peer->nr_held++;
	pkt->buf = (uint64_t)peer->index << 32 | slot;
	pkt->data = peer->rx.slots + (size_t)slot * peer->rx.slot_b;
	pkt->len = len;
	pkt->peer = peer->index;
	pkt->hlen = hlen;
	memcpy(pkt->hdr, e->hdr, SHM_HDR_B);
	return true;
}

static unsigned shm_rx_data(struct shm_queue *q, struct shm_poll *poll, struct gx_rx pkts[],
			    unsigned n, unsigned got)
{
	struct shm_peer *peer = q->peer[poll->peer];
	uint32_t left = GX_BURST_MAX;

	for (; got < n && left && shm_poll_ready(poll); left--) {
		const struct shm_used *line = &peer->rx.used[(poll->want - 1) & peer->rx.used_mask];

		__builtin_prefetch(
			&peer->rx.used[(poll->want - 1 + SHM_PREFETCH) & peer->rx.used_mask]);
		poll->seq = &peer->rx.used[poll->want & peer->rx.used_mask].seq;
		poll->want++;
		if (shm_rx_data_one(q, peer, line, &pkts[got]))
			got++;
		if (poll->seq == &shm_never)
			return got;
	}
	return got;
}

/* Out of line: shm_rx_burst(), which mostly finds nothing, then saves no registers. */
static __attribute__((noinline)) unsigned shm_rx_take(struct shm_queue *q, enum gx_half half,
						      struct gx_rx pkts[], unsigned n)
{
	struct shm_half *h = &q->half[half];
	unsigned got = 0, i = h->start < q->nr_hot ? h->start : 0;

	for (unsigned k = 0; k < q->nr_hot && got < n; k++) {
		struct shm_poll *poll = &h->poll[i];

		if (++i == q->nr_hot)
			i = 0;
		if (!shm_poll_ready(poll))
			continue;
		q->peer[poll->peer]->used_ns = q->q.now_ns;
		if (half == GX_HALF_CTL)
			got = shm_rx_ctl(q, poll, pkts, n, got);
		else
			got = shm_rx_data(q, poll, pkts, n, got);
		h->start = i; /* the peer served last is asked last */
	}
	return got;
}

/* Look at as many quiet peers as are due by the time passed, at most once at each. One that has
 * rung becomes hot. */
static __attribute__((noinline)) void shm_rx_quiet(struct shm_queue *q, struct shm_half *h)
{
	uint64_t n = (q->q.now_ns - h->quiet_ns) >> SHM_PACE;

	h->quiet_ns += n << SHM_PACE;
	shm_cool(q);
	n = GX_MIN(n, q->nr_active - q->nr_hot);
	for (; n && q->nr_hot < q->nr_active; n--) {
		if (h->quiet < q->nr_hot || h->quiet >= q->nr_active)
			h->quiet = q->nr_hot;
		if (shm_poll_ready(&h->poll[h->quiet]))
			shm_heat(q, q->peer[h->poll[h->quiet].peer]);
		h->quiet++;
	}
	/* The word of the next look, long before it is needed. */
	if (h->quiet < q->nr_active)
		__builtin_prefetch((const void *)h->poll[h->quiet].seq);
}

/* Peers whose entries wait become hot. */
int shm_rxtx_look(struct gx_port_queue *gq)
{
	struct shm_queue *q = shm_queue_of(gq);
	int ret = shm_sleep_arm(q);
	bool ready = false;

	if (ret)
		return ret;
	for (unsigned i = 0; i < q->nr_active; i++)
		if (shm_poll_ready(&q->half[GX_HALF_CTL].poll[i]) ||
		    shm_poll_ready(&q->half[GX_HALF_DATA].poll[i])) {
			shm_heat(q, q->peer[q->half[0].poll[i].peer]);
			ready = true;
		}
	return ready;
}

unsigned shm_rx_burst(struct gx_port_queue *gq, enum gx_half half, struct gx_rx pkts[], unsigned n)
{
	struct shm_queue *q = shm_queue_of(gq);

	if (q->poison)
		shm_poison_reap(q);
	if (gx_unlikely(q->nr_active > SHM_FEW) &&
	    (q->q.now_ns - q->half[half].quiet_ns) >> SHM_PACE)
		shm_rx_quiet(q, &q->half[half]);
	for (unsigned i = 0; i < q->nr_hot; i++)
		if (shm_poll_ready(&q->half[half].poll[i]))
			return shm_rx_take(q, half, pkts, GX_MIN(n, (unsigned)GX_BURST_MAX));
	return 0;
}

void shm_rx_release(struct gx_port_queue *gq, const uint64_t bufs[], unsigned n)
{
	struct shm_queue *q = shm_queue_of(gq);
	struct shm_peer *peer = NULL;

	for (unsigned i = 0; i < n; i++) {
		uint32_t slot = (uint32_t)bufs[i];
		struct shm_peer *owner = q->peer[bufs[i] >> 32];

		if (peer && peer != owner)
			shm_post_publish(peer);
		peer = owner;
		assert(slot < peer->rx.nr_slots && peer->state[slot] == SHM_SLOT_HELD);
		peer->nr_held--;
		if (!q->poison || !shm_poison(q, peer, slot))
			shm_post(peer, slot);
	}
	if (peer)
		shm_post_publish(peer);
	if (q->poison)
		block_flush(q->poison, true, gx_now_ns());
}

/* ---- Send ---- */

static void shm_tx_bad(struct shm_queue *q, struct shm_peer *peer)
{
	peer->tx_bad = true;
	gx_stat_add(q->q.stats, GX_STAT_RX_BAD, 1);
	shm_mute(q, peer);
}

static uint32_t shm_ctl_room(struct shm_queue *q, struct shm_peer *peer, uint32_t wanted)
{
	uint32_t out = peer->tx_ctl_head - peer->tx_ctl_done;

	if (SHM_CTL_NR - out >= wanted)
		return SHM_CTL_NR - out;
	/* Pairs with the release in shm_rx_ctl(). */
	peer->tx_ctl_done = atomic_load_explicit(&peer->tx.hdr->ctl_done, memory_order_acquire);
	out = peer->tx_ctl_head - peer->tx_ctl_done;
	if (out <= SHM_CTL_NR)
		return SHM_CTL_NR - out;
	peer->tx_ctl_done = peer->tx_ctl_head - SHM_CTL_NR;
	shm_tx_bad(q, peer);
	return 0;
}

/*
 * Take in the slots that the receiver has posted since the last look. The sender uses slots last
 * in, first out: then no more slots are in use than packets are under way, and they stay in a
 * cache. Of slots posted together the first goes first: neighbours stay neighbours, and their
 * descriptors merge.
 */
static uint32_t shm_data_room(struct shm_queue *q, struct shm_peer *peer)
{
	struct shm_seg *s = &peer->tx;
	/* Pairs with the release in shm_post_publish(). */
	uint32_t head = atomic_load_explicit(&s->hdr->posted_head, memory_order_acquire);
	uint32_t more = head - peer->tx_posted_head;

	if (!more)
		return peer->nr_tx_free;
	/* Each slot is free, waits for its copy, or belongs to the receiver. */
	if (more > s->nr_slots - peer->nr_tx_free - (peer->pend_head - peer->pend_tail)) {
		shm_tx_bad(q, peer);
		return 0;
	}
	for (uint32_t i = 1; i <= more; i++) {
		uint32_t slot = atomic_load_explicit(&s->posted[(head - i) & s->used_mask],
						     memory_order_relaxed);

		if (slot >= s->nr_slots) {
			shm_tx_bad(q, peer);
			return 0;
		}
		peer->tx_free[peer->nr_tx_free++] = slot;
	}
	peer->tx_posted_head = head;
	return peer->nr_tx_free;
}

/* A pool in GPU memory: room is free slots, and copies that the GPUs take now. Each pending entry
 * holds a slot, so it always finds a place in pend. */
static uint32_t shm_pend_room(struct shm_queue *q, struct shm_peer *peer)
{
	uint32_t room = GX_MIN(shm_data_room(q, peer), push_room(shm_push_of(q)));

	/* A packet without payload gives its cookie back at once. */
	return GX_MIN(room, (uint32_t)GX_ARRAY_SIZE(q->reaped) - q->nr_reaped);
}

static uint32_t shm_room(struct shm_queue *q, enum gx_half half, uint32_t index, uint32_t wanted)
{
	struct shm_peer *peer = q->peer[index];

	if (!peer || !peer->attached || !peer->tx.base || peer->tx_bad)
		return 0;
	if (half == GX_HALF_CTL)
		return shm_ctl_room(q, peer, wanted);
	return peer->pend ? shm_pend_room(q, peer) : shm_data_room(q, peer);
}

unsigned shm_tx_room(struct gx_port_queue *gq, enum gx_half half, uint32_t peer)
{
	return shm_room(shm_queue_of(gq), half, peer, GX_BURST_MAX);
}

static void shm_tx_ctl_one(struct shm_peer *peer, const struct gx_tx *pkt)
{
	struct shm_ctl *e = &peer->tx.ctl[peer->tx_ctl_head % SHM_CTL_NR];

	assert(pkt->len <= GX_CTL_PAYLOAD_MAX && pkt->hlen <= SHM_HDR_B);
	memcpy(e->b + GX_ALIGN_UP(pkt->hlen, 8), pkt->data, pkt->len);
	memcpy(e->b, pkt->hdr, pkt->hlen);
	e->len = (uint16_t)pkt->len;
	e->hlen = (uint16_t)pkt->hlen;
	peer->tx_ctl_head++;
	/* Pairs with the acquire in shm_poll_ready(). */
	atomic_store_explicit(&e->seq, peer->tx_ctl_head, memory_order_release);
}

static void shm_tx_data_one(struct shm_peer *peer, const struct gx_tx *pkt)
{
	struct shm_seg *s = &peer->tx;
	uint32_t slot = peer->tx_free[--peer->nr_tx_free];

	assert(pkt->len <= s->slot_b && pkt->hlen <= SHM_HDR_B);
	gx_tx_copy(s->slots + (size_t)slot * s->slot_b, pkt);
	shm_tx_ring(peer, slot, pkt->len, pkt->hlen, pkt->hdr);
}

/* The peer of entries that were just rung. */
static void shm_wake_last(struct shm_queue *q, uint32_t index)
{
	const struct shm_peer *peer = q->peer[index];

	if (gx_port_is_asleep(&peer->tx.hdr->asleep, peer->tx_woken))
		shm_wake(&q->q, index);
}

unsigned shm_tx_burst(struct gx_port_queue *gq, enum gx_half half, const struct gx_tx pkts[],
		      unsigned n)
{
	struct shm_queue *q = shm_queue_of(gq);
	uint32_t room = 0, last = GX_PEER_ANY;
	uint64_t now_ns = 0;
	unsigned i;

	for (i = 0; i < n; i++, room--) {
		const struct gx_tx *pkt = &pkts[i];

		if (pkt->peer != last || !room) {
			if (i && pkt->peer != last)
				shm_wake_last(q, last);
			last = pkt->peer;
			room = shm_room(q, half, last, 1);
			if (!room) {
				last = i ? pkts[i - 1].peer : GX_PEER_ANY;
				break;
			}
			shm_heat(q, q->peer[last]); /* expect an answer */
		}
		if (half == GX_HALF_CTL)
			shm_tx_ctl_one(q->peer[last], pkt);
		else if (!q->peer[last]->pend)
			shm_tx_data_one(q->peer[last], pkt);
		else
			shm_tx_pool_one(q, q->peer[last], pkt,
					now_ns ? now_ns : (now_ns = gx_now_ns()));
	}
	if (now_ns)
		push_flush(shm_push_of(q), n < GX_BURST_MAX, now_ns);
	if (i)
		shm_wake_last(q, last);
	return i;
}

unsigned shm_tx_reap(struct gx_port_queue *gq, uint32_t cookies[], unsigned n)
{
	struct shm_queue *q = shm_queue_of(gq);
	struct push *push = shm_push_of(q);
	uint64_t now_ns;

	if (!push)
		return 0;
	now_ns = gx_now_ns();
	push_flush(push, true, now_ns);
	shm_pend_reap(q, now_ns);
	n = GX_MIN(n, q->nr_reaped);
	q->nr_reaped -= n;
	memcpy(cookies, q->reaped + q->nr_reaped, n * sizeof(cookies[0]));
	return n;
}

int shm_fault(struct gx_port_queue *gq)
{
	return atomic_load_explicit(&shm_queue_of(gq)->fault, memory_order_relaxed);
}
