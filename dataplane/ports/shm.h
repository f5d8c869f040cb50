/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations for the files of port shm: port_shm.c (port, queues, peers), shm_rxtx.c (bursts),
 * shm_pool.c (into a peer's pool in GPU memory), shm_poison.c (debug builds), shm_sleep.c (wakes) and
 * shm_seg.c (segments). The prototypes are in order, the lowest first: each file calls those above it alone.
 */
#ifndef GX_SHM_H
#define GX_SHM_H

#include "copy/block.h"
#include "copy/push.h"
#include "ports/shm_seg.h"

#include <string.h>

#define SHM_SLOTS_MAX  65536
#define SHM_SLOT_B_MAX (1u << 20)

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
	uint32_t ctl_written;	 /* hdr->ctl_done as we last wrote it */
	uint32_t posted_head;	 /* slots posted in all */
	uint32_t posted_written; /* hdr->posted_head as we last wrote it */
	uint32_t nr_bad;	 /* bad entries seen */
	uint8_t *state;		 /* enum shm_slot_state, [nr_slots] */
	uint32_t nr_held;	 /* slots the caller has */
	uint32_t nr_poison;	 /* slots being overwritten */
	bool attached;
	uint32_t at;	  /* index in shm_half.poll, while attached */
	uint64_t used_ns; /* when a burst last saw a packet from it or to it */

	/* owner: poll core; sending, into the peer's segment */
	alignas(GX_CACHE_LINE) struct shm_seg tx;
	uint32_t tx_ctl_head;	 /* entries written since the start */
	uint32_t tx_ctl_done;	 /* ctl_done as we last read it */
	uint32_t tx_used_head;	 /* entries written since the start */
	uint32_t tx_posted_head; /* posted_head as we last read it */
	/* Free slots. The last one given back is on top: its lines are still in a cache. */
	uint32_t *tx_free;
	uint32_t nr_tx_free;
	bool tx_bad; /* the peer's indices are wrong: send nothing more */

	struct push_pool tx_pool; /* frozen once connected; base NULL: the segment has the slots */
	struct shm_pend *pend;	  /* [tx.used_mask + 1] */
	uint32_t pend_head, pend_tail;
	bool tx_stuck;	   /* the GPU has not ended a copy there: keep the mapping */
	uint32_t tx_woken; /* hdr->asleep of the peer at its last wake */
	uint64_t tx_wake;  /* frozen once connected: the peer's shm_addr.wake */

	int fd;	     /* owner: ctl; of our segment */
	int pool_fd; /* owner: ctl; of its slots in GPU memory; -1: there are none */
	struct shm_addr_pool addr;
	int peer_device; /* GPU of the peer's pool; -1: host memory */
	uint32_t index;
};

/* An idle rx_burst looks here: one load for each peer and half. owner: poll core */
struct shm_poll {
	const _Atomic uint32_t *seq; /* sequence word of the next entry */
	uint32_t want;		     /* its value once the entry is there: the entry's number + 1 */
	uint32_t peer;
};

struct shm_half {
	struct shm_poll poll[GX_PEERS_MAX]; /* [nr_active]; each burst looks at the first nr_hot */
	unsigned start;			    /* first peer to ask */
	unsigned quiet;			    /* index of the next quiet peer to look at */
	uint64_t quiet_ns;		    /* quiet peers have been looked at until then */
};

struct shm_queue {
	struct gx_port_queue q;
	unsigned nr_active;		     /* owner: poll core */
	unsigned nr_hot;		     /* owner: poll core; those that are not quiet */
	unsigned cool;			     /* owner: poll core; next one to check for quiet */
	struct shm_half half[2];	     /* owner: poll core; enum gx_half */
	struct shm_peer *peer[GX_PEERS_MAX]; /* owner: ctl; the core's while attached */
	uint8_t *ctl_buf;	   /* owner: poll core; GX_BURST_MAX copies of control payloads */
	struct push *_Atomic push; /* written once by ctl (release), read by the core (acquire) */
	uint32_t reaped[2 * GX_BURST_MAX]; /* owner: poll core; cookies for tx_reap */
	unsigned nr_reaped;
	_Atomic int fault;
	int wake_fd;	    /* owner: poll core; the socket that wakes it; -1: it polls */
	int poke_fd;	    /* owner: poll core; wakes peers; -1: none yet */
	uint32_t nr_asleep; /* owner: poll core; value of hdr->asleep of all peers that may wake */
	_Atomic uint64_t wake;	/* name of wake_fd: the core writes it (release), ctl reads it */
	struct block_q *poison; /* owner: poll core; NULL: slots are not overwritten */
	char *poison_src;	/* one slot full of SHM_POISON, in the arena */
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

static inline struct shm_queue *shm_queue_of(struct gx_port_queue *q)
{
	return GX_CONTAINER_OF(q, struct shm_queue, q);
}

/* The pushes to peers' pools; NULL: no peer has one. Pairs with the release in shm_push_get(). */
static inline struct push *shm_push_of(struct shm_queue *q)
{
	return atomic_load_explicit(&q->push, memory_order_acquire);
}

/* -- shm_seg.c (control path) -- */

bool shm_slots_ok(uint32_t nr_slots, uint32_t slot_b);
/** shm_seg_make() - Our own segment for one peer, with every slot posted. */
int shm_seg_make(struct shm_port *p, struct shm_peer *peer);
void shm_slots_free(struct shm_port *p, struct shm_peer *peer);
/** shm_seg_open() - Map the peer's segment @fd. -ENOMEM; -EPROTO: its numbers are wrong. */
int shm_seg_open(struct shm_seg *s, int fd, const struct shm_addr *addr, bool apart);

/* -- shm_sleep.c [core] -- */

int shm_sleep_open(struct gx_port_queue *gq, int fd);
/** shm_sleep_arm() - From here on entries wake the core. Return: 0, -EOPNOTSUPP. */
int shm_sleep_arm(struct shm_queue *q);
void shm_sleep_close(struct shm_queue *q); /* control path */
void shm_wake(struct gx_port_queue *gq, uint32_t index);

/* -- giving slots back, and ringing entries [core] -- */

/* Pairs with the acquire in shm_data_room(): slot numbers, and our last reads of the slots. */
static inline void shm_post_publish(struct shm_peer *peer)
{
	if (peer->posted_head == peer->posted_written)
		return;
	peer->posted_written = peer->posted_head;
	atomic_store_explicit(&peer->rx.hdr->posted_head, peer->posted_head, memory_order_release);
}

/* The sender gets the slot back with the next shm_post_publish(). */
static inline void shm_post(struct shm_peer *peer, uint32_t slot)
{
	peer->state[slot] = SHM_SLOT_POSTED;
	/* The entry is free: at most nr_slots slots are posted and not yet used. */
	atomic_store_explicit(&peer->rx.posted[peer->posted_head++ & peer->rx.used_mask], slot,
			      memory_order_relaxed);
}

/* The caller has written the payload. Fill in the entry and ring it. */
static inline void shm_tx_ring(struct shm_peer *peer, uint32_t slot, uint32_t len, uint32_t hlen,
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

/* -- shm_poison.c: debug builds, with a pool -- */

int shm_poison_open(struct shm_port *p, struct shm_queue *q);
void shm_poison_close(struct shm_port *p, struct shm_queue *q);
/** shm_poison() - [core] Overwrite @slot, then give it back. False: no room, nothing is done. */
bool shm_poison(struct shm_queue *q, struct shm_peer *peer, uint32_t slot);
/** shm_poison_reap() - [core] Give overwritten slots back to their senders. */
void shm_poison_reap(struct shm_queue *q);
/** shm_poison_drain() - [core] Wait for overwrites under way: the slots' memory is about to go. */
void shm_poison_drain(struct shm_queue *q, const struct shm_peer *peer);

/* -- shm_pool.c -- */

/** shm_pool_open() - Control path: let a GPU of ours write to the peer's pool. */
int shm_pool_open(struct shm_port *p, struct shm_queue *q, struct shm_peer *peer,
		  const struct gx_port_addr *raddr);
void shm_tx_pool_one(struct shm_queue *q, struct shm_peer *peer, const struct gx_tx *pkt,
		     uint64_t now_ns);
/** shm_pend_reap() - [core] Ring entries whose copy has ended; keep their cookies for tx_reap. */
void shm_pend_reap(struct shm_queue *q, uint64_t now_ns);

/* -- shm_rxtx.c: slots of gx_port_ops [core] -- */

void shm_peer_attach(struct gx_port_queue *gq, uint32_t index);
void shm_peer_detach(struct gx_port_queue *gq, uint32_t index);
unsigned shm_rx_burst(struct gx_port_queue *gq, enum gx_half half, struct gx_rx pkts[], unsigned n);
void shm_rx_release(struct gx_port_queue *gq, const uint64_t bufs[], unsigned n);
unsigned shm_tx_room(struct gx_port_queue *gq, enum gx_half half, uint32_t peer);
unsigned shm_tx_burst(struct gx_port_queue *gq, enum gx_half half, const struct gx_tx pkts[],
		      unsigned n);
unsigned shm_tx_reap(struct gx_port_queue *gq, uint32_t cookies[], unsigned n);
int shm_fault(struct gx_port_queue *gq);
int shm_rxtx_look(struct gx_port_queue *gq);

#endif
