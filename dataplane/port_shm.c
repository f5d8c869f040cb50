/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes of one host: the sender writes straight into the receiver's posted bounce buffers,
 * as a NIC's DMA would. Segments are described in port_shm.h. All state that decides is private
 * memory; what is read from a segment is copied out once and then checked. A segment belongs to one
 * peer, so what a stopped and continued, dying or hostile sender writes can reach no other peer's
 * buffers: whoever breaks the rules loses its own traffic only. (A peer of our own uid may still
 * punch holes into a segment on huge pages; the control path gives the descriptor to nobody else.)
 */
#include "port_shm.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define SHM_CTL_MORE	  (SHM_CTL_NR / 4) /* entries consumed before the sender is told */
#define SHM_SLOTS	  1024
#define SHM_SLOTS_MAX	  65536
#define SHM_SLOT_B	  8192
#define SHM_SLOT_B_MAX	  (1u << 20)
#define SHM_VIOLATION_MAX 1024 /* bad entries, then the peer is no longer listened to */
#define SHM_PREFETCH	  4    /* entries */

enum shm_slot_state { SHM_SLOT_POSTED, SHM_SLOT_HELD };

/* One peer of a queue. */
struct shm_peer {
	/* owner: poll core; receiving, from our segment */
	struct shm_seg rx;
	uint32_t ctl_told;    /* value of ctl_done */
	uint32_t posted_head; /* slots posted in all */
	uint32_t posted_told; /* value of hdr->posted_head */
	uint32_t nr_bad;      /* violations seen */
	uint8_t *state;	      /* enum shm_slot_state, [nr_slots] */
	uint32_t nr_held;     /* slots the caller has */
	bool attached;

	/* owner: poll core; sending, into the peer's segment */
	alignas(GX_CACHE_LINE) struct shm_seg tx;
	uint32_t tx_ctl_head;	 /* entries written in all */
	uint32_t tx_ctl_done;	 /* last look at ctl_done */
	uint32_t tx_used_head;	 /* entries written in all */
	uint32_t tx_posted_head; /* last look at posted_head */
	uint32_t *tx_free; /* slots to fill, the one given back last on top: its lines are still in
			      a cache */
	uint32_t nr_tx_free;
	bool tx_bad; /* the peer's indices make no sense: nothing is sent any more */

	int fd; /* owner: ctl; of our segment */
	uint32_t index;
};

/* What rx_burst looks at when idle: one load for each peer and half. owner: poll core */
struct shm_poll {
	const _Atomic uint32_t *seq; /* word of the entry that comes next */
	uint32_t want; /* its value when the entry is there = number of the entry + 1 */
	uint32_t peer;
};

struct shm_half {
	struct shm_poll poll[GX_PEERS_MAX]; /* [nr_active] */
	unsigned start;			    /* who is asked first */
};

struct shm_queue {
	struct gx_port_queue q;
	unsigned nr_active;		     /* owner: poll core */
	struct shm_half half[2];	     /* owner: poll core; enum gx_half */
	struct shm_peer *peer[GX_PEERS_MAX]; /* owner: ctl; an attached one is the core's */
	uint8_t *ctl_buf; /* owner: poll core; GX_BURST_MAX copies of control payloads */
};

struct shm_port {
	struct gx_port p;
	struct gx_arena *arena;
	uint32_t nr_slots, slot_b; /* frozen after open */
	bool huge;
};

static const _Atomic uint32_t shm_never; /* a word that never becomes 1: a peer not listened to */

static struct shm_queue *shm_queue_of(struct gx_port_queue *q)
{
	return GX_CONTAINER_OF(q, struct shm_queue, q);
}

/* ---- Segments (control path) ---- */

static bool shm_slots_ok(uint32_t nr_slots, uint32_t slot_b)
{
	return nr_slots && nr_slots <= SHM_SLOTS_MAX && slot_b && slot_b <= SHM_SLOT_B_MAX &&
	       slot_b % 16 == 0 && (uint64_t)nr_slots * slot_b < GX_ARENA_SIZE_MAX;
}

/* Our own segment for one peer, with every slot posted. */
static int shm_seg_make(struct shm_port *p, struct shm_peer *peer)
{
	struct shm_seg *s = &peer->rx;
	bool huge = p->huge;
	void *base;
	int ret;

	shm_seg_layout(s, NULL, p->nr_slots, p->slot_b);
	peer->fd = gx_memfd("gx-shm", s->len, &huge);
	if (peer->fd < 0) {
		gx_port_why_set("port shm: no memfd of %zu bytes: %s", s->len, strerror(-peer->fd));
		return peer->fd;
	}
	ret = gx_arena_map(p->arena, peer->fd, s->len, &base);
	if (ret) {
		gx_port_why_set(
			"port shm: %zu bytes for a peer do not fit the arena: %s; give fewer slots",
			s->len, strerror(-ret));
		close(peer->fd);
		return ret;
	}
	shm_seg_layout(s, base, p->nr_slots, p->slot_b);
	*s->hdr = (struct shm_hdr){.magic = SHM_MAGIC,
				   .version = SHM_VERSION,
				   .nr_slots = s->nr_slots,
				   .slot_b = s->slot_b,
				   .len = s->len};
	for (uint32_t i = 0; i < s->nr_slots; i++)
		atomic_init(&s->posted[i], i);
	peer->posted_head = peer->posted_told = s->nr_slots;
	atomic_store_explicit(&s->hdr->posted_head, s->nr_slots, memory_order_release);
	return 0;
}

/* Map the peer's segment @fd; every number in it is judged before it is used. */
static int shm_seg_open(struct shm_seg *s, int fd, const struct shm_addr *addr)
{
	struct shm_seg geo;
	struct shm_hdr hdr;
	void *base;

	if (gx_memfd_check(fd, addr->len))
		return -EPROTO;
	base = mmap(NULL, addr->len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return errno == ENOMEM ? -ENOMEM : -EPROTO;
	memcpy(&hdr, base, sizeof(hdr));
	__asm__ volatile("" : "+m"(hdr)); /* the copy is what is judged, and what is used */
	if (hdr.magic != SHM_MAGIC || hdr.version != SHM_VERSION || hdr.len != addr->len ||
	    !shm_slots_ok(hdr.nr_slots, hdr.slot_b))
		goto err_unmap;
	shm_seg_layout(&geo, base, hdr.nr_slots, hdr.slot_b);
	if (geo.len != addr->len)
		goto err_unmap;
	madvise(base, geo.len, MADV_POPULATE_WRITE); /* a wish: no page faults later */
	*s = geo;
	return 0;

err_unmap:
	munmap(base, addr->len);
	return -EPROTO;
}

/* ---- Port and queue (control path) ---- */

/* Are there huge pages? One is taken and given back: the answer is for gx_describe(). */
static bool shm_huge_there(void)
{
	bool huge = true;
	int fd = gx_memfd("gx-shm-probe", GX_HUGE_PAGE, &huge);

	if (fd >= 0)
		close(fd);
	return fd >= 0 && huge;
}

static int shm_port_open(const struct gx_port_cfg *cfg, struct gx_port **out)
{
	uint32_t nr_slots = cfg->slots ? cfg->slots : SHM_SLOTS;
	uint32_t slot_b = cfg->payload_b ? cfg->payload_b : SHM_SLOT_B;
	struct shm_port *p;

	if (cfg->args && *cfg->args) {
		gx_port_why_set("port shm: takes no arguments, not \"%s\"", cfg->args);
		return -EINVAL;
	}
	if (!shm_slots_ok(nr_slots, slot_b)) {
		gx_port_why_set(
			"port shm: %u slots of %u bytes; there can be %u slots of up to %u bytes, "
			"a multiple of 16, in less than 4 GiB",
			nr_slots, slot_b, SHM_SLOTS_MAX, SHM_SLOT_B_MAX);
		return -EINVAL;
	}
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->p.ops = &gx_port_shm_ops;
	p->p.caps =
		(struct gx_port_caps){.payload_max = slot_b,
				      .payload_best = slot_b,
				      .rx_slots = nr_slots,
				      .flags = GX_PORT_ORDERED | GX_PORT_LOSSLESS | GX_PORT_LOCAL};
	p->arena = cfg->arena;
	p->nr_slots = nr_slots;
	p->slot_b = slot_b;
	p->huge = cfg->huge;
	if (p->huge && !shm_huge_there())
		p->p.caps.flags |= GX_PORT_NORMAL_PAGES;
	*out = &p->p;
	return 0;
}

static void shm_port_close(struct gx_port *p)
{
	free(p ? GX_CONTAINER_OF(p, struct shm_port, p) : NULL);
}

static int shm_queue_open(struct gx_port *p, unsigned index, struct gx_stats *stats,
			  struct gx_port_queue **out)
{
	struct shm_queue *q = aligned_alloc(GX_CACHE_LINE, GX_ALIGN_UP(sizeof(*q), GX_CACHE_LINE));

	if (!q)
		return -ENOMEM;
	memset(q, 0, sizeof(*q));
	q->ctl_buf = aligned_alloc(GX_CACHE_LINE, GX_BURST_MAX * GX_CTL_PAYLOAD_MAX);
	if (!q->ctl_buf) {
		free(q);
		return -ENOMEM;
	}
	memset(q->ctl_buf, 0, GX_BURST_MAX * GX_CTL_PAYLOAD_MAX);
	q->q.ops = &gx_port_shm_ops;
	q->q.port = p;
	q->q.stats = stats;
	q->q.rx_base = gx_arena_base(GX_CONTAINER_OF(p, struct shm_port, p)->arena);
	*out = &q->q;
	return 0;
}

static void shm_peer_free(struct shm_port *p, struct shm_peer *peer)
{
	if (peer->tx.base)
		munmap(peer->tx.base, peer->tx.len);
	if (peer->rx.base)
		gx_arena_unmap(p->arena, peer->rx.base, peer->rx.len);
	close(peer->fd);
	free(peer->tx_free);
	free(peer->state);
	free(peer);
}

static void shm_queue_close(struct gx_port_queue *gq)
{
	struct shm_queue *q = shm_queue_of(gq);

	for (unsigned i = 0; i < GX_PEERS_MAX; i++)
		if (q->peer[i])
			shm_peer_free(GX_CONTAINER_OF(gq->port, struct shm_port, p), q->peer[i]);
	free(q->ctl_buf);
	free(q);
}

static int shm_mem_map(struct gx_port *p, void *ptr, size_t len)
{
	return 0;
}

static void shm_mem_unmap(struct gx_port *p, void *ptr, size_t len)
{
}

/* ---- Peers ---- */

static int shm_peer_add(struct gx_port_queue *gq, uint32_t *out, struct gx_port_addr *laddr)
{
	struct shm_port *p = GX_CONTAINER_OF(gq->port, struct shm_port, p);
	struct shm_queue *q = shm_queue_of(gq);
	struct shm_addr addr = {.magic = SHM_MAGIC, .version = SHM_VERSION};
	struct shm_peer *peer;
	uint32_t i = 0;
	int ret;

	while (i < GX_PEERS_MAX && q->peer[i])
		i++;
	if (i == GX_PEERS_MAX) {
		gx_port_why_set("port shm: a core can have %u peers", GX_PEERS_MAX);
		return -ENOSPC;
	}
	peer = aligned_alloc(GX_CACHE_LINE, sizeof(*peer));
	if (!peer)
		return -ENOMEM;
	memset(peer, 0, sizeof(*peer));
	peer->index = i;
	peer->state = calloc(p->nr_slots, 1); /* SHM_SLOT_POSTED */
	ret = peer->state ? shm_seg_make(p, peer) : -ENOMEM;
	if (ret) {
		free(peer->state);
		free(peer);
		return ret;
	}
	q->peer[i] = peer;
	addr.len = peer->rx.len;
	memcpy(laddr->b, &addr, sizeof(addr));
	laddr->len = sizeof(addr);
	laddr->fd = peer->fd;
	*out = i;
	return 0;
}

static int shm_peer_connect(struct gx_port_queue *gq, uint32_t index,
			    const struct gx_port_addr *raddr)
{
	struct shm_peer *peer = shm_queue_of(gq)->peer[index];
	struct shm_addr addr;
	int ret = -EPROTO;

	if (raddr->len == sizeof(addr) && raddr->fd >= 0 && !peer->tx.base) {
		memcpy(&addr, raddr->b, sizeof(addr));
		if (addr.magic == SHM_MAGIC && addr.version == SHM_VERSION && addr.len &&
		    addr.len <= 2 * GX_ARENA_SIZE_MAX)
			ret = shm_seg_open(&peer->tx, raddr->fd, &addr);
	}
	if (raddr->fd >= 0)
		close(raddr->fd);
	if (!ret) {
		peer->tx_free = calloc(peer->tx.nr_slots, sizeof(*peer->tx_free));
		ret = peer->tx_free ? 0 : -ENOMEM;
	}
	if (ret)
		gx_port_why_set("port shm: the peer's segment is %s",
				ret == -ENOMEM ? "too large to map" : "not a valid one");
	return ret;
}

static void shm_peer_del(struct gx_port_queue *gq, uint32_t index)
{
	struct shm_queue *q = shm_queue_of(gq);
	struct shm_peer *peer = q->peer[index];

	assert(peer && !peer->attached && !peer->nr_held);
	q->peer[index] = NULL;
	shm_peer_free(GX_CONTAINER_OF(gq->port, struct shm_port, p), peer);
}

/* The expected number of the first entry is 1; a peer is attached once in its life. */
static void shm_peer_attach(struct gx_port_queue *gq, uint32_t index)
{
	struct shm_queue *q = shm_queue_of(gq);
	struct shm_peer *peer = q->peer[index];
	unsigned i = q->nr_active++;

	q->half[GX_HALF_CTL].poll[i] = (struct shm_poll){&peer->rx.ctl[0].seq, 1, index};
	q->half[GX_HALF_DATA].poll[i] = (struct shm_poll){&peer->rx.used[0].seq, 1, index};
	peer->attached = true;
}

static void shm_peer_detach(struct gx_port_queue *gq, uint32_t index)
{
	struct shm_queue *q = shm_queue_of(gq);

	for (unsigned i = 0; i < q->nr_active; i++) {
		if (q->half[0].poll[i].peer != index)
			continue;
		q->nr_active--;
		q->half[0].poll[i] = q->half[0].poll[q->nr_active];
		q->half[1].poll[i] = q->half[1].poll[q->nr_active];
		break;
	}
	q->half[0].start = q->half[1].start = 0;
	q->peer[index]->attached = false;
}

/* ---- Receive [core] ---- */

/* Nothing more is read from @peer, so that to the link it is a silent one, and its operations end.
 */
static void shm_mute(struct shm_queue *q, const struct shm_peer *peer)
{
	for (unsigned i = 0; i < q->nr_active; i++) {
		for (unsigned h = 0; h < 2; h++) {
			struct shm_poll *poll = &q->half[h].poll[i];

			if (poll->peer == peer->index)
				*poll = (struct shm_poll){&shm_never, 1, peer->index};
		}
	}
}

/* An entry that breaks the rules: counted, dropped, and after many of them nothing more is read. */
static void shm_rx_bad(struct shm_queue *q, struct shm_peer *peer)
{
	gx_stat_add(q->q.stats, GX_STAT_RX_BAD, 1);
	if (++peer->nr_bad >= SHM_VIOLATION_MAX)
		shm_mute(q, peer);
}

/* Pairs with the release in shm_tx_ctl_one() and shm_tx_data_one(): the entry is complete. */
static bool shm_poll_ready(const struct shm_poll *poll)
{
	return atomic_load_explicit(poll->seq, memory_order_acquire) == poll->want;
}

/* Copy the entry to private memory. False: it was bad, and counted. */
static bool shm_rx_ctl_one(struct shm_queue *q, struct shm_peer *peer, const struct shm_ctl *e,
			   struct gx_rx *pkt, uint8_t *buf)
{
	/* Both lengths in one load, once: the sender could change them under us. */
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
	if (poll->want - 1 - peer->ctl_told >= SHM_CTL_MORE) {
		peer->ctl_told = poll->want - 1;
		/* Pairs with the acquire in shm_ctl_room(): the entries have been copied out. */
		atomic_store_explicit(&peer->rx.hdr->ctl_done, peer->ctl_told,
				      memory_order_release);
	}
	return got;
}

static bool shm_rx_data_one(struct shm_queue *q, struct shm_peer *peer, const struct shm_used *e,
			    struct gx_rx *pkt)
{
	/* Each word in one load, once: the sender could change them under us. */
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

/* Out of line, so that the look below, which mostly finds nothing, saves no registers. */
static __attribute__((noinline)) unsigned shm_rx_take(struct shm_queue *q, enum gx_half half,
						      struct gx_rx pkts[], unsigned n)
{
	struct shm_half *h = &q->half[half];
	unsigned got = 0, i = h->start;

	for (unsigned k = 0; k < q->nr_active && got < n; k++) {
		struct shm_poll *poll = &h->poll[i];

		if (++i == q->nr_active)
			i = 0;
		if (!shm_poll_ready(poll))
			continue;
		if (half == GX_HALF_CTL)
			got = shm_rx_ctl(q, poll, pkts, n, got);
		else
			got = shm_rx_data(q, poll, pkts, n, got);
		h->start = i; /* whoever was served last is asked last */
	}
	return got;
}

static unsigned shm_rx_burst(struct gx_port_queue *gq, enum gx_half half, struct gx_rx pkts[],
			     unsigned n)
{
	struct shm_queue *q = shm_queue_of(gq);

	for (unsigned i = 0; i < q->nr_active; i++)
		if (shm_poll_ready(&q->half[half].poll[i]))
			return shm_rx_take(q, half, pkts, GX_MIN(n, (unsigned)GX_BURST_MAX));
	return 0;
}

/* Pairs with the acquire in shm_data_room(): slot numbers, and our last reads of the slots. */
static void shm_post_publish(struct shm_peer *peer)
{
	if (peer->posted_head == peer->posted_told)
		return;
	peer->posted_told = peer->posted_head;
	atomic_store_explicit(&peer->rx.hdr->posted_head, peer->posted_head, memory_order_release);
}

static void shm_rx_release(struct gx_port_queue *gq, const uint64_t bufs[], unsigned n)
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
		peer->state[slot] = SHM_SLOT_POSTED;
		peer->nr_held--;
		/* The entry is free: at most nr_slots slots are posted and not yet used. */
		atomic_store_explicit(&peer->rx.posted[peer->posted_head++ & peer->rx.used_mask],
				      slot, memory_order_relaxed);
	}
	if (peer)
		shm_post_publish(peer);
}

/* ---- Send [core] ---- */

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
 * Take in what the receiver has posted since the last look. Slots are used last in, first out, so
 * that only as many are in use as are under way and they stay in a cache; of those posted together
 * the first goes first, so that neighbours stay neighbours and their descriptors merge.
 */
static uint32_t shm_data_room(struct shm_queue *q, struct shm_peer *peer)
{
	struct shm_seg *s = &peer->tx;
	/* Pairs with the release in shm_post_publish(). */
	uint32_t head = atomic_load_explicit(&s->hdr->posted_head, memory_order_acquire);
	uint32_t more = head - peer->tx_posted_head;

	if (!more)
		return peer->nr_tx_free;
	if (more > s->nr_slots - peer->nr_tx_free) {
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

static uint32_t shm_room(struct shm_queue *q, enum gx_half half, uint32_t index, uint32_t wanted)
{
	struct shm_peer *peer = q->peer[index];

	if (!peer || !peer->attached || !peer->tx.base || peer->tx_bad)
		return 0;
	return half == GX_HALF_CTL ? shm_ctl_room(q, peer, wanted) : shm_data_room(q, peer);
}

static unsigned shm_tx_room(struct gx_port_queue *gq, enum gx_half half, uint32_t peer)
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
	struct shm_used *e = &s->used[peer->tx_used_head & s->used_mask];
	uint32_t slot = peer->tx_free[peer->nr_tx_free - 1];

	assert(pkt->len <= s->slot_b && pkt->hlen <= SHM_HDR_B);
	gx_copy_slot(s->slots + (size_t)slot * s->slot_b, pkt->data, pkt->len);
	e->slot = slot;
	e->len = pkt->len;
	e->hlen = pkt->hlen;
	memcpy(e->hdr, pkt->hdr, SHM_HDR_B);
	peer->nr_tx_free--;
	peer->tx_used_head++;
	/* Pairs with the acquire in shm_poll_ready(). */
	atomic_store_explicit(&e->seq, peer->tx_used_head, memory_order_release);
}

static unsigned shm_tx_burst(struct gx_port_queue *gq, enum gx_half half, const struct gx_tx pkts[],
			     unsigned n)
{
	struct shm_queue *q = shm_queue_of(gq);
	uint32_t room = 0, last = GX_PEER_ANY;
	unsigned i;

	for (i = 0; i < n; i++, room--) {
		const struct gx_tx *pkt = &pkts[i];

		if (pkt->peer != last || !room) {
			last = pkt->peer;
			room = shm_room(q, half, last, 1);
			if (!room)
				break;
		}
		if (half == GX_HALF_CTL)
			shm_tx_ctl_one(q->peer[last], pkt);
		else
			shm_tx_data_one(q->peer[last], pkt);
	}
	return i;
}

static unsigned shm_tx_reap(struct gx_port_queue *q, uint32_t cookies[], unsigned n)
{
	return 0;
}

static int shm_fault(struct gx_port_queue *q)
{
	return 0;
}

const struct gx_port_ops gx_port_shm_ops = {
	.name = "shm",
	.open = shm_port_open,
	.close = shm_port_close,
	.queue_open = shm_queue_open,
	.queue_close = shm_queue_close,
	.mem_map = shm_mem_map,
	.mem_unmap = shm_mem_unmap,
	.peer_add = shm_peer_add,
	.peer_connect = shm_peer_connect,
	.peer_del = shm_peer_del,
	.peer_attach = shm_peer_attach,
	.peer_detach = shm_peer_detach,
	.rx_burst = shm_rx_burst,
	.rx_release = shm_rx_release,
	.tx_room = shm_tx_room,
	.tx_burst = shm_tx_burst,
	.tx_reap = shm_tx_reap,
	.fault = shm_fault,
};
