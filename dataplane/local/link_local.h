/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local link's endpoints on their core, as link_local.c (a turn, attach and fail), local_live.c
 * (which endpoints a turn looks at), local_note.c (notifications), local_op.c (operations under
 * way) and local_post.c (posting) share them. Private to those. All of it runs on the polling core.
 */
#ifndef GX_LINK_LOCAL_H
#define GX_LINK_LOCAL_H

#include "copy/dma.h"
#include "local/local.h"
#include "packet/pkt.h"

#define LOCAL_OPS    256	/* of an ep, not done in gx_post() */
#define LOCAL_TURN_B (1u << 20) /* a core copies this much in one turn, in gx_post() or later */
#define LOCAL_DMA    256	/* of an ep, that copy engines do */
#define LOCAL_FEW    4		/* eps; none of so few is ever cold */
#define EP_NOT_LIVE  UINT32_MAX

/* One that was not done at once. owner: core */
struct local_op {
	uint8_t kind;
	uint32_t flags;
	int status;		/* not 0: it ends so, without another byte */
	struct gx_route *route; /* for core_comp() */
	uint64_t user, tag, deadline_ns;
	const char *src;
	char *dst;
	const struct gx_mem *mem; /* ours of the two; NULL: not registered */
	uint64_t len, done_b;
	uint64_t bit; /* of the region in the peer's word revoked */
	uint64_t token, off, imm;
	struct dma *dma;	       /* who copies; NULL: this core */
	const struct local_pair *pair; /* dma: from where to where; NULL: not known */
	struct dma_ticket ticket;
	bool begun;
};

/* owner: core, but for what is marked ctl */
struct local_ep {
	struct pkt_ep pkt; /* first: the packet link frees it with all of this */
	struct link_local *link;
	const struct local_conn *conn;	 /* frozen */
	const _Atomic uint64_t *revoked; /* the peer's word */
	struct local_ring *rx;		 /* NULL: the peer is not listened to */
	uint32_t rx_next, rx_told;	 /* entries consumed in all; value of rx->done */
	uint32_t nr_bad;
	uint64_t made[2], made_b;  /* of tx->made: gets, puts, bytes */
	bool made_due;		   /* these are not told yet */
	uintptr_t rx_at, rx_guess; /* where the last notified bytes lie; the next, if as far on */
	struct local_ring *tx;
	uint32_t tx_head, tx_done; /* entries written in all; last look at tx->done */
	uint32_t head, tail;	   /* of ops, free-running: next to work on, next free */
	uint64_t deadline_ns;	   /* earliest of ops; UINT64_MAX: none */
	uint32_t at;		   /* in link->live; EP_NOT_LIVE: not attached yet, or has left */
	uint64_t busy_ns;	   /* the turn that last saw a notification, or used */
	bool used;		   /* something was posted since the last turn */
	bool waits;		   /* an operation waits for the peer: the ring is full */
	uint64_t used_ns;	   /* the turn that saw used */
	struct local_op ops[LOCAL_OPS];
	unsigned nr_dma, nr_begun;	/* of dma; of those, under way */
	int fail_err;			/* not 0: failed, but copies are under way */
	struct local_op dma[LOCAL_DMA]; /* in no order */
};

/* What is to be seen of a cold ep: the next notification's word. */
struct local_look {
	const _Atomic uint32_t *seq;
	uint32_t want;
};

/*
 * Attached eps. Each turn sees to the hot ones, which come first. Of the others nothing is under
 * way here, so all that can happen is a notification: a turn looks for one at as many of them as
 * microseconds have passed, so that idle connections cost a turn next to nothing.
 */
struct link_local {
	struct gx_core *core;
	struct local_ep *live[GX_PEERS_MAX];
	struct local_look look[GX_PEERS_MAX]; /* of live[i], if it is cold */
	unsigned nr_live, nr_hot;
	unsigned cool;	   /* the next hot one to see whether it is */
	unsigned cold;	   /* the next cold one to look at */
	uint64_t cold_ns;  /* of the last look at a cold one */
	unsigned rover;	   /* who copies first this turn */
	uint32_t budget_b; /* of LOCAL_TURN_B, what is left */
	uint64_t noted_ns; /* the turn that took the last notification */
	unsigned nr_gpus;  /* highest device opened + 1; frozen while the core runs */
	struct dma *dma[GX_GPUS_MAX];
	unsigned nr_dma; /* operations of all eps' dma */
};

static inline struct local_ep *local_of(struct gx_ep *ep)
{
	return GX_CONTAINER_OF(ep, struct local_ep, pkt.ep);
}

static inline struct gx_stats *local_stats(const struct local_ep *e)
{
	return &e->pkt.ep.core->loop.stats;
}

static inline bool local_is_revoked(const struct local_ep *e, uint64_t bit)
{
	/* Pairs with the release in local_revoke(). */
	return atomic_load_explicit(e->revoked, memory_order_acquire) & bit;
}

static inline unsigned local_comps_left(const struct local_op *op)
{
	return 1 + !!(op->flags & GX_OP_LOCAL);
}

/* @kind and bytes of one that is done: for our counters, and for the peer's. */
static inline void local_op_count(struct local_ep *e, unsigned kind, uint64_t len)
{
	gx_stat_add(local_stats(e), kind == GX_OP_PUT ? GX_STAT_LOCAL_PUTS : GX_STAT_LOCAL_GETS, 1);
	gx_stat_add(local_stats(e), GX_STAT_LOCAL_BYTES, len);
	e->made[kind == GX_OP_PUT]++;
	e->made_b += len;
	e->made_due = true;
}

/* -- local_live.c -- */

void local_heat(struct local_ep *e);   /* something happens on it: each turn sees to it */
void local_unlist(struct local_ep *e); /* it is attached no more */
/** local_cold() - Look at one hot ep: does it cool? And at cold ones for notifications, as many as
 * microseconds have passed. */
void local_cold(struct link_local *l, uint64_t now_ns);

/* -- local_note.c -- */

/** local_note_room() - Has the peer's ring room for a notification? Nonsense in it is a fault. */
bool local_note_room(struct local_ep *e);
/** local_note_put() - Tell the peer of a put that is in place. There must be room. */
void local_note_put(struct local_ep *e, uint64_t token, uint64_t off, uint64_t len, uint64_t imm);
/** local_notes_take() - The peer's notifications become completions. @e->rx is not NULL.
 * Return: was there one? */
bool local_notes_take(struct local_ep *e);
bool local_notes_wait(struct link_local *l); /* the same, of few eps, looking a little longer */

/* -- local_op.c -- */

void local_op_report(struct local_ep *e, const struct local_op *op);
/** local_report() - A completion of an operation that was done at once. */
void local_report(struct local_ep *e, const struct gx_op *op, struct gx_route *route,
		  enum gx_comp_kind kind);
void local_made_tell(struct local_ep *e); /* the peer, what was copied so far */
/** local_ops_turn() - Copy, begin copies of copy engines, and end what is done or late.
 * Return: did anything happen? */
bool local_ops_turn(struct local_ep *e, uint64_t now_ns);
/** local_ops_fail() - The ep fails: what this core copies ends with e->fail_err. */
void local_ops_fail(struct local_ep *e);
void local_ops_drop(struct local_ep *e, struct drop *d); /* operations with memory that is freed */
void local_dma_begin(struct local_ep *e, struct local_op *op, uint64_t now_ns);
/** local_dma_drain() - Of a failed ep: what has not begun ends; what has, when it is done.
 * Return: has all ended? */
bool local_dma_drain(struct local_ep *e);
void local_dma_kick(struct link_local *l, uint64_t now_ns); /* all GPUs */
bool local_dma_reap(struct link_local *l, uint64_t now_ns); /* all GPUs */

/* -- local_post.c: slots of gx_link_local_ops -- */

int local_post(struct gx_ep *ep, const struct gx_op *user, struct gx_route *route);
void local_kick(struct gx_ep *ep);
int local_cancel(struct gx_ep *ep, uint64_t user, const struct gx_route *route);

#endif
