/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes of one host: the sender writes straight into the receiver's posted bounce buffers,
 * as a NIC's DMA would. Segments are described in port_shm.h. All state that decides is private
 * memory; what is read from a segment is copied out once and then checked. A segment belongs to one
 * peer, so what a stopped and continued, dying or hostile sender writes can reach no other peer's
 * buffers: whoever breaks the rules loses its own traffic only. (A peer of our own uid may still
 * punch holes into a segment on huge pages; the control path gives the descriptor to nobody else.)
 *
 * With a bounce pool in GPU memory (gx_port_cfg.pool) the slots of each peer are an allocation of
 * their own there. A sender's GPU writes them (push.c), and an entry is rung when its payload lies
 * there, in the order of sending. Debug builds overwrite a slot when it is released, before the
 * sender gets it back, so that a copy which still reads it moves rubbish.
 */
#include "ports/port_shm.h"

#include "copy/block.h"
#include "copy/push.h"

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
#define SHM_POOL_SLOT_B	  32768 /* of a GPU: no cache to stay in, and packets cost */
#define SHM_PIECE_B	  65536 /* no payload is longer, whatever a peer's slots are */
#define SHM_SLOT_B_MAX	  (1u << 20)
#define SHM_VIOLATION_MAX 1024 /* bad entries, then the peer is no longer listened to */
#define SHM_PREFETCH	  4    /* entries */

/* A load for each peer and half is a line of the cache, or of memory when there are many. Beyond a
 * few peers only those that sent or were sent something of late are looked at by each burst; the
 * others one after the other, at a pace: a thousand of them within 1 ms, or in one burst when the
 * last one is as long ago. */
#define SHM_FEW	   4	   /* peers; none of so few is ever quiet */
#define SHM_HOT_NS 4000000 /* from its last packet on, until a peer is quiet */
#define SHM_PACE   10	   /* log2 of the ns between two looks at quiet peers */

#define SHM_POISON   0xdb
#define SHM_DRAIN_NS 1000000000 /* debug builds: for slots that are being overwritten */

enum shm_slot_state { SHM_SLOT_POSTED, SHM_SLOT_HELD };

/* An entry whose payload is on its way to a pool in GPU memory. owner: poll core */
struct shm_pend {
	uint32_t slot, len, hlen;
	uint32_t cookie;
	bool there; /* its payload lies in the slot */
	uint8_t hdr[SHM_HDR_B];
};

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
	uint32_t nr_poison;   /* slots being overwritten */
	bool attached;
	uint32_t at;	  /* index in shm_half.poll, while attached */
	uint64_t used_ns; /* when something came from it or went to it; of a quiet one: or before */

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

	struct push_pool tx_pool; /* frozen once connected; base NULL: the segment has the slots */
	struct shm_pend *pend;	  /* [tx.used_mask + 1] */
	uint32_t pend_head, pend_tail;
	bool tx_stuck; /* the GPU has not ended a copy there: it stays mapped */

	int fd;	     /* owner: ctl; of our segment */
	int pool_fd; /* owner: ctl; of its slots in GPU memory; -1: there are none */
	struct shm_addr_pool addr;
	int peer_device; /* of the peer's pool; -1: host memory */
	uint32_t index;
};

/* What rx_burst looks at when idle: one load for each peer and half. owner: poll core */
struct shm_poll {
	const _Atomic uint32_t *seq; /* word of the entry that comes next */
	uint32_t want; /* its value when the entry is there = number of the entry + 1 */
	uint32_t peer;
};

struct shm_half {
	struct shm_poll poll[GX_PEERS_MAX]; /* [nr_active], of which [nr_hot] by each burst */
	unsigned start;			    /* who is asked first */
	unsigned quiet;			    /* index of the quiet peer that is looked at next */
	uint64_t quiet_ns;		    /* until when quiet ones have been looked at */
};

struct shm_queue {
	struct gx_port_queue q;
	unsigned nr_active;	 /* owner: poll core */
	unsigned nr_hot;	 /* owner: poll core; of them, not quiet */
	unsigned cool;		 /* owner: poll core; who is asked next if it is quiet */
	struct shm_half half[2]; /* owner: poll core; enum gx_half */
	struct shm_peer *peer[GX_PEERS_MAX]; /* owner: ctl; an attached one is the core's */
	uint8_t *ctl_buf;	   /* owner: poll core; GX_BURST_MAX copies of control payloads */
	struct push *_Atomic push; /* written once by ctl (release), read by the core (acquire) */
	uint32_t reaped[2 * GX_BURST_MAX]; /* owner: poll core; cookies for tx_reap */
	unsigned nr_reaped;
	_Atomic int fault;
	struct block_q *poison; /* owner: poll core; NULL: slots are not overwritten */
	char *poison_src;	/* a slot's worth of SHM_POISON, in the arena */
};

struct shm_port {
	struct gx_port p;
	struct gx_arena *arena;
	struct gx_arena *pool; /* NULL: slots are host memory */
	struct gx_gpu *pool_gpu;
	struct gx_gpu *const *gpus;
	uint64_t gpu_timeout_ns;
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

/* The slots of one peer in the memory of our GPU, and their name. */
static int shm_pool_make(struct shm_port *p, struct shm_peer *peer)
{
	const struct gx_gpu_ops *gpu = p->pool_gpu->ops;
	size_t len = GX_ALIGN_UP((size_t)p->nr_slots * p->slot_b, GX_HUGE_PAGE);
	struct gx_gpu_handle h;
	void *slots;
	int ret = gx_arena_map(p->pool, -1, len, &slots);

	if (ret) {
		gx_port_why_set("port shm: no %zu bytes on cuda:%d for a peer's slots: %s; give "
				"fewer slots",
				len, p->pool_gpu->device, strerror(-ret));
		return ret;
	}
	peer->rx.slots = slots;
	ret = gpu->mem_export(p->pool_gpu, slots, len, &h);
	if (ret) {
		gx_port_why_set("port shm: cuda:%d gives its memory to no other process: %s",
				p->pool_gpu->device, gx_gpu_why());
		gx_arena_unmap(p->pool, slots, len);
		peer->rx.slots = NULL;
		return ret;
	}
	peer->pool_fd = h.fd;
	peer->addr.id = h.id;
	peer->addr.off = h.off;
	peer->addr.len = h.len;
	peer->addr.device = (uint32_t)p->pool_gpu->device;
	return 0;
}

static void shm_slots_free(struct shm_port *p, struct shm_peer *peer)
{
	if (peer->rx.base)
		gx_arena_unmap(p->arena, peer->rx.base, peer->rx.len);
	if (peer->pool_fd < 0)
		return;
	close(peer->pool_fd);
	gx_arena_unmap(p->pool, peer->rx.slots, (size_t)p->nr_slots * p->slot_b);
}

/* Our own segment for one peer, with every slot posted. */
static int shm_seg_make(struct shm_port *p, struct shm_peer *peer)
{
	struct shm_seg *s = &peer->rx;
	bool huge = p->huge;
	void *base;
	int ret;

	shm_seg_layout(s, NULL, p->nr_slots, p->slot_b, p->pool);
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
	shm_seg_layout(s, base, p->nr_slots, p->slot_b, p->pool);
	*s->hdr = (struct shm_hdr){.magic = SHM_MAGIC,
				   .version = SHM_VERSION,
				   .nr_slots = s->nr_slots,
				   .slot_b = s->slot_b,
				   .len = s->len};
	for (uint32_t i = 0; i < s->nr_slots; i++)
		atomic_init(&s->posted[i], i);
	peer->posted_head = peer->posted_told = s->nr_slots;
	atomic_store_explicit(&s->hdr->posted_head, s->nr_slots, memory_order_release);
	ret = p->pool ? shm_pool_make(p, peer) : 0;
	if (ret) {
		gx_arena_unmap(p->arena, base, s->len);
		close(peer->fd);
	}
	return ret;
}

/* Map the peer's segment @fd; every number in it is judged before it is used. */
static int shm_seg_open(struct shm_seg *s, int fd, const struct shm_addr *addr, bool apart)
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
	shm_seg_layout(&geo, base, hdr.nr_slots, hdr.slot_b, apart);
	if (geo.len != addr->len)
		goto err_unmap;
	if (gx_memfd_is_huge(fd))
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
	uint32_t slot_b = cfg->payload_b ? cfg->payload_b
			  : cfg->pool	 ? SHM_POOL_SLOT_B
					 : SHM_SLOT_B;
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
	p->pool = cfg->pool;
	p->pool_gpu = cfg->pool_gpu;
	p->gpus = cfg->gpus;
	p->gpu_timeout_ns = cfg->gpu_timeout_ns;
	if (p->pool)
		p->p.caps.flags |= GX_PORT_RX_GPU;
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

/* Debug builds alone: released slots are overwritten. */
static int shm_poison_open(struct shm_port *p, struct shm_queue *q)
{
	int ret = 0;

#ifndef NDEBUG
	if (!p->pool)
		return 0;
	ret = gx_arena_map(p->arena, -1, p->slot_b, (void **)&q->poison_src);
	if (!ret) {
		memset(q->poison_src, SHM_POISON, p->slot_b);
		ret = block_open(p->pool_gpu, q->poison_src, p->gpu_timeout_ns, &q->poison);
	}
#endif
	return ret;
}

static void shm_queue_free(struct shm_port *p, struct shm_queue *q)
{
	block_close(q->poison);
	if (q->poison_src)
		gx_arena_unmap(p->arena, q->poison_src, p->slot_b);
	free(q->ctl_buf);
	free(q);
}

static int shm_queue_open(struct gx_port *p, unsigned index, struct gx_stats *stats,
			  struct gx_port_queue **out)
{
	struct shm_port *sp = GX_CONTAINER_OF(p, struct shm_port, p);
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
	q->q.rx_base = gx_arena_base(sp->pool ? sp->pool : sp->arena);
	q->q.rx_gpu = sp->pool_gpu;
	if (shm_poison_open(sp, q)) {
		gx_port_why_set("port shm: cannot set up what overwrites slots on cuda:%d: %s",
				sp->pool_gpu->device, gx_gpu_why());
		shm_queue_free(sp, q);
		return -ENOMEM;
	}
	*out = &q->q;
	return 0;
}

static void shm_peer_free(struct shm_port *p, struct shm_peer *peer)
{
	if (peer->tx.base)
		munmap(peer->tx.base, peer->tx.len);
	if (!peer->tx_stuck)
		push_unmap(&peer->tx_pool);
	/* What a GPU has not ended may still touch the slots. */
	if (peer->nr_held || peer->nr_poison)
		gx_warn("port shm: %u slots of a peer stay with a GPU that does not finish; their "
			"memory "
			"is kept",
			peer->nr_held + peer->nr_poison);
	else
		shm_slots_free(p, peer);
	close(peer->fd);
	free(peer->pend);
	free(peer->tx_free);
	free(peer->state);
	free(peer);
}

static void shm_queue_close(struct gx_port_queue *gq)
{
	struct shm_port *p = GX_CONTAINER_OF(gq->port, struct shm_port, p);
	struct shm_queue *q = shm_queue_of(gq);

	push_close(q->push); /* waits for what is on its way to the peers' pools */
	for (unsigned i = 0; i < GX_PEERS_MAX; i++)
		if (q->peer[i])
			shm_peer_free(p, q->peer[i]);
	shm_queue_free(p, q);
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
	peer->pool_fd = peer->peer_device = -1;
	peer->state = calloc(p->nr_slots, 1); /* SHM_SLOT_POSTED */
	ret = peer->state ? shm_seg_make(p, peer) : -ENOMEM;
	if (ret) {
		free(peer->state);
		free(peer);
		return ret;
	}
	q->peer[i] = peer;
	peer->addr.addr = (struct shm_addr){SHM_MAGIC, SHM_VERSION, peer->rx.len};
	memcpy(laddr->b, &peer->addr, sizeof(peer->addr));
	laddr->len = p->pool ? sizeof(peer->addr) : sizeof(peer->addr.addr);
	laddr->fd = peer->fd;
	laddr->has_pool = p->pool;
	laddr->pool_fd = peer->pool_fd;
	*out = i;
	return 0;
}

/* Who writes to peers' pools: made for the first such peer, of the GPUs that are open by then. */
static int shm_push_get(struct shm_port *p, struct shm_queue *q, struct push **out)
{
	int ret = p->gpus ? 0 : -ENODEV;

	*out = atomic_load_explicit(&q->push, memory_order_relaxed);
	if (*out || ret)
		return ret;
	ret = push_open(p->gpus, p->arena, SHM_PIECE_B, p->gpu_timeout_ns, out);
	/* Pairs with the acquire in shm_push_of(). */
	if (!ret)
		atomic_store_explicit(&q->push, *out, memory_order_release);
	return ret;
}

/* The peer's slots lie in the memory of its GPU: a GPU of ours has to write there. */
static int shm_pool_open(struct shm_port *p, struct shm_queue *q, struct shm_peer *peer,
			 const struct gx_port_addr *raddr)
{
	size_t need = (size_t)peer->tx.nr_slots * peer->tx.slot_b;
	struct gx_gpu_handle h = {.kind = GX_GPU_SHARE_FD, .fd = raddr->pool_fd};
	struct shm_addr_pool addr;
	struct push *push;
	int ret;

	memcpy(&addr, raddr->b, sizeof(addr));
	h.id = addr.id;
	h.off = addr.off;
	h.len = addr.len;
	if (addr.device >= GX_PUSH_GPUS || addr.len > GX_ARENA_SIZE_MAX)
		return -EPROTO;
	peer->peer_device = (int)addr.device;
	ret = shm_push_get(p, q, &push);
	if (ret == -ENODEV) {
		gx_port_why_set(
			"port shm: the peer's bounce pool is memory of its cuda:%u, and no GPU "
			"is open here that could write there: open one (gx_gpu_open(); gxperf "
			"--gpu N), or start the peer with --bounce host",
			addr.device);
		return ret;
	}
	if (!ret)
		ret = push_map(push, &h, need, &peer->tx_pool);
	if (ret) {
		gx_port_why_set(
			"port shm: no GPU of ours can write to the peer's bounce pool on its "
			"cuda:%u: %s; start the peer with --bounce host",
			addr.device, gx_gpu_why());
		return ret;
	}
	peer->pend = calloc(peer->tx.used_mask + 1, sizeof(*peer->pend));
	return peer->pend ? 0 : -ENOMEM;
}

static int shm_addr_check(const struct gx_port_addr *raddr, struct shm_addr *addr)
{
	size_t len = raddr->has_pool ? sizeof(struct shm_addr_pool) : sizeof(*addr);

	if (raddr->len != len || raddr->fd < 0)
		return -EPROTO;
	memcpy(addr, raddr->b, sizeof(*addr));
	return addr->magic == SHM_MAGIC && addr->version == SHM_VERSION && addr->len &&
			       addr->len <= 2 * GX_ARENA_SIZE_MAX
		       ? 0
		       : -EPROTO;
}

static int shm_peer_connect(struct gx_port_queue *gq, uint32_t index,
			    const struct gx_port_addr *raddr)
{
	struct shm_port *p = GX_CONTAINER_OF(gq->port, struct shm_port, p);
	struct shm_peer *peer = shm_queue_of(gq)->peer[index];
	struct shm_addr addr;
	int ret = peer->tx.base ? -EPROTO : shm_addr_check(raddr, &addr);

	if (!ret)
		ret = shm_seg_open(&peer->tx, raddr->fd, &addr, raddr->has_pool);
	if (!ret) {
		peer->tx_free = calloc(peer->tx.nr_slots, sizeof(*peer->tx_free));
		ret = peer->tx_free ? 0 : -ENOMEM;
	}
	if (ret)
		gx_port_why_set("port shm: the peer's segment is %s",
				ret == -ENOMEM ? "too large to map" : "not a valid one");
	if (!ret && raddr->has_pool) {
		gx_port_why_set("port shm: what the peer says of its bounce pool makes no sense");
		ret = shm_pool_open(p, shm_queue_of(gq), peer, raddr);
	}
	if (raddr->fd >= 0)
		close(raddr->fd);
	if (raddr->has_pool)
		close(raddr->pool_fd);
	return ret;
}

static void shm_peer_info(struct gx_port_queue *gq, uint32_t index, struct gx_port_peer *out)
{
	const struct shm_peer *peer = shm_queue_of(gq)->peer[index];

	*out = (struct gx_port_peer){.flags = peer->tx_pool.base ? GX_PORT_TX_ATTACH : 0,
				     .gpus = peer->tx_pool.from,
				     .pool = peer->peer_device,
				     .pool_here = peer->tx_pool.base ? peer->tx_pool.device : -1,
				     .payload_max = peer->tx.slot_b};
}

static void shm_peer_del(struct gx_port_queue *gq, uint32_t index)
{
	struct shm_queue *q = shm_queue_of(gq);
	struct shm_peer *peer = q->peer[index];

	assert(peer && !peer->attached);
	q->peer[index] = NULL;
	shm_peer_free(GX_CONTAINER_OF(gq->port, struct shm_port, p), peer);
}

/* ---- Who is looked at [core] ---- */

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

/* Something came from it or goes to it. */
static void shm_heat(struct shm_queue *q, struct shm_peer *peer)
{
	peer->used_ns = q->q.now_ns;
	if (peer->at >= q->nr_hot)
		shm_swap(q, peer->at, q->nr_hot++);
}

/* One of those that are not quiet: has it become so? */
static void shm_cool(struct shm_queue *q)
{
	if (!q->nr_hot)
		return;
	if (++q->cool >= q->nr_hot)
		q->cool = 0;
	if (q->q.now_ns - q->peer[q->half[0].poll[q->cool].peer]->used_ns > SHM_HOT_NS)
		shm_swap(q, q->cool, --q->nr_hot);
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
	peer->at = i;
	shm_heat(q, peer);
}

static void shm_poison_reap(struct shm_queue *q);

/* Debug builds alone: the memory of slots that are being overwritten is about to go. */
static void shm_poison_drain(struct shm_queue *q, const struct shm_peer *peer)
{
	uint64_t until = gx_now_ns() + SHM_DRAIN_NS;

	while (peer->nr_poison && gx_now_ns() < until)
		shm_poison_reap(q);
}

static void shm_peer_detach(struct gx_port_queue *gq, uint32_t index)
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

/* ---- Receive [core] ---- */

/* Nothing more is read from @peer, so that to the link it is a silent one, and its operations end.
 */
static void shm_mute(struct shm_queue *q, const struct shm_peer *peer)
{
	for (unsigned h = 0; h < 2; h++)
		q->half[h].poll[peer->at] = (struct shm_poll){&shm_never, 1, peer->index};
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
		h->start = i; /* whoever was served last is asked last */
	}
	return got;
}

/* As many quiet peers as time has passed for, all of them at most. Whoever rang is quiet no more.
 */
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
	/* That of the next look: it takes its time to come. */
	if (h->quiet < q->nr_active)
		__builtin_prefetch((const void *)h->poll[h->quiet].seq);
}

static unsigned shm_rx_burst(struct gx_port_queue *gq, enum gx_half half, struct gx_rx pkts[],
			     unsigned n)
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

/* Pairs with the acquire in shm_data_room(): slot numbers, and our last reads of the slots. */
static void shm_post_publish(struct shm_peer *peer)
{
	if (peer->posted_head == peer->posted_told)
		return;
	peer->posted_told = peer->posted_head;
	atomic_store_explicit(&peer->rx.hdr->posted_head, peer->posted_head, memory_order_release);
}

/* The slot is the sender's again, when that is told. */
static void shm_post(struct shm_peer *peer, uint32_t slot)
{
	peer->state[slot] = SHM_SLOT_POSTED;
	/* The entry is free: at most nr_slots slots are posted and not yet used. */
	atomic_store_explicit(&peer->rx.posted[peer->posted_head++ & peer->rx.used_mask], slot,
			      memory_order_relaxed);
}

/* Slots that have been overwritten go back to their senders. */
static void shm_poison_reap(struct shm_queue *q)
{
	struct block_done done[GX_BURST_MAX];
	uint64_t now_ns = gx_now_ns();
	unsigned n;

	block_flush(q->poison, true, now_ns);
	n = block_reap(q->poison, done, GX_BURST_MAX, now_ns);
	for (unsigned i = 0; i < n; i++) {
		struct shm_peer *peer = q->peer[done[i].ref];

		if (done[i].buf == BLOCK_BUF_NONE) /* the GPU did not end it: it stays counted */
			continue;
		peer->nr_poison--;
		shm_post(peer, (uint32_t)done[i].buf);
		if (peer->attached)
			shm_post_publish(peer);
	}
}

/* False: no room; the slot goes back as it is. */
static bool shm_poison(struct shm_queue *q, struct shm_peer *peer, uint32_t slot)
{
	if (!q->poison || !block_room(q->poison))
		return false;
	peer->nr_poison++;
	block_add(q->poison,
		  &(struct block_frag){.src = q->poison_src,
				       .len = peer->rx.slot_b,
				       .dst_base = (uintptr_t)peer->rx.slots,
				       .dst_len = (uint64_t)peer->rx.nr_slots * peer->rx.slot_b,
				       .dst_off = (uint64_t)slot * peer->rx.slot_b,
				       .buf = slot,
				       .ref = peer->index},
		  gx_now_ns());
	return true;
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
		peer->nr_held--;
		if (!shm_poison(q, peer, slot))
			shm_post(peer, slot);
	}
	if (peer)
		shm_post_publish(peer);
	if (q->poison)
		block_flush(q->poison, true, gx_now_ns());
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
	/* A slot is free, on its way there, or the receiver's. */
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

/* Pairs with the release in shm_push_get(). */
static struct push *shm_push_of(struct shm_queue *q)
{
	return atomic_load_explicit(&q->push, memory_order_acquire);
}

/* A pool in GPU memory: slots, and what the GPUs take now. Entries on their way hold a slot each,
 * so there is always a place for one. */
static uint32_t shm_pend_room(struct shm_queue *q, struct shm_peer *peer)
{
	uint32_t room = GX_MIN(shm_data_room(q, peer), push_room(shm_push_of(q)));

	/* An empty one gives its cookie back at once. */
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

/* The entry is whole, and so is what it names. */
static void shm_tx_ring(struct shm_peer *peer, uint32_t slot, uint32_t len, uint32_t hlen,
			const uint8_t hdr[SHM_HDR_B])
{
	struct shm_used *e = &peer->tx.used[peer->tx_used_head & peer->tx.used_mask];

	e->slot = slot;
	e->len = len;
	e->hlen = hlen;
	memcpy(e->hdr, hdr, SHM_HDR_B);
	peer->tx_used_head++;
	/* Pairs with the acquire in shm_poll_ready(). */
	atomic_store_explicit(&e->seq, peer->tx_used_head, memory_order_release);
}

static void shm_tx_data_one(struct shm_peer *peer, const struct gx_tx *pkt)
{
	struct shm_seg *s = &peer->tx;
	uint32_t slot = peer->tx_free[--peer->nr_tx_free];

	assert(pkt->len <= s->slot_b && pkt->hlen <= SHM_HDR_B);
	gx_copy_slot(s->slots + (size_t)slot * s->slot_b, pkt->data, pkt->len);
	shm_tx_ring(peer, slot, pkt->len, pkt->hlen, pkt->hdr);
}

/* ---- Send into a pool in GPU memory [core] ---- */

/* Entries whose payload lies there, in the order of sending. */
static void shm_pend_ring(struct shm_peer *peer)
{
	while (peer->pend_tail != peer->pend_head) {
		struct shm_pend *e = &peer->pend[peer->pend_tail & peer->tx.used_mask];

		if (!e->there)
			return;
		shm_tx_ring(peer, e->slot, e->len, e->hlen, e->hdr);
		peer->pend_tail++;
	}
}

static void shm_tx_pool_one(struct shm_queue *q, struct shm_peer *peer, const struct gx_tx *pkt,
			    uint64_t now_ns)
{
	uint32_t slot = peer->tx_free[--peer->nr_tx_free];
	uint32_t at = peer->pend_head++ & peer->tx.used_mask;
	struct shm_pend *e = &peer->pend[at];

	assert(pkt->len <= peer->tx.slot_b && pkt->hlen <= SHM_HDR_B);
	*e = (struct shm_pend){slot, pkt->len, pkt->hlen, pkt->cookie, !pkt->len, {0}};
	memcpy(e->hdr, pkt->hdr, SHM_HDR_B);
	if (!pkt->len) {
		if (pkt->cookie != UINT32_MAX)
			q->reaped[q->nr_reaped++] = pkt->cookie;
		shm_pend_ring(peer);
		return;
	}
	push_add(shm_push_of(q),
		 &(struct push_frag){.data = pkt->data,
				     .len = pkt->len,
				     .device = pkt->gpu,
				     .mapped = pkt->mapped && pkt->cookie != UINT32_MAX,
				     .pool = &peer->tx_pool,
				     .off = (uint64_t)slot * peer->tx.slot_b,
				     .ref = peer->index << 16 | at},
		 now_ns);
	gx_stat_add(q->q.stats, GX_STAT_TX_PUSHED, pkt->len);
}

/* A copy that a GPU did not make: nothing more is sent to that peer, and the link ends what is out.
 */
static void shm_pend_lost(struct shm_queue *q, struct shm_peer *peer, int status)
{
	peer->tx_bad = true;
	peer->tx_stuck |= status == -ETIMEDOUT || status == -EIO;
	atomic_store_explicit(&q->fault, -EIO, memory_order_relaxed);
}

/* What has ended since: ring it, and keep the cookies for tx_reap. */
static void shm_pend_reap(struct shm_queue *q, uint64_t now_ns)
{
	struct push_done done[GX_BURST_MAX];
	unsigned n = GX_MIN(GX_ARRAY_SIZE(q->reaped) - q->nr_reaped, (size_t)GX_BURST_MAX);

	n = push_reap(shm_push_of(q), done, n, now_ns);
	for (unsigned i = 0; i < n; i++) {
		struct shm_peer *peer = q->peer[done[i].ref >> 16];
		struct shm_pend *e = &peer->pend[done[i].ref & 0xffff];

		if (e->cookie != UINT32_MAX)
			q->reaped[q->nr_reaped++] = e->cookie;
		if (done[i].status) {
			shm_pend_lost(q, peer, done[i].status);
			continue;
		}
		e->there = true;
		shm_pend_ring(peer);
	}
}

static unsigned shm_tx_burst(struct gx_port_queue *gq, enum gx_half half, const struct gx_tx pkts[],
			     unsigned n)
{
	struct shm_queue *q = shm_queue_of(gq);
	uint32_t room = 0, last = GX_PEER_ANY;
	uint64_t now_ns = 0;
	unsigned i;

	for (i = 0; i < n; i++, room--) {
		const struct gx_tx *pkt = &pkts[i];

		if (pkt->peer != last || !room) {
			last = pkt->peer;
			room = shm_room(q, half, last, 1);
			if (!room)
				break;
			shm_heat(q, q->peer[last]); /* there will be an answer */
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
	return i;
}

static unsigned shm_tx_reap(struct gx_port_queue *gq, uint32_t cookies[], unsigned n)
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

static int shm_fault(struct gx_port_queue *gq)
{
	return atomic_load_explicit(&shm_queue_of(gq)->fault, memory_order_relaxed);
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
	.peer_info = shm_peer_info,
	.peer_attach = shm_peer_attach,
	.peer_detach = shm_peer_detach,
	.rx_burst = shm_rx_burst,
	.rx_release = shm_rx_release,
	.tx_room = shm_tx_room,
	.tx_burst = shm_tx_burst,
	.tx_reap = shm_tx_reap,
	.fault = shm_fault,
};
