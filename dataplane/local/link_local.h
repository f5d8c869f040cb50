/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local link's endpoints on their core, for link_local.c (a turn, attach and fail),
 * local_live.c (endpoints that a turn looks at), local_imm.c (notifications), local_op.c
 * (operations under way), local_post.c (posting) and local_list.c (lists) alone. All of it runs on the polling core.
 */
#ifndef GX_LINK_LOCAL_H
#define GX_LINK_LOCAL_H

#include "copy/dma.h"
#include "list/list.h"
#include "local/local.h"
#include "packet/pkt.h"

#define LOCAL_OPS	256	   /* operations of an ep that gx_post() did not finish */
#define LOCAL_TURN_B	(1u << 20) /* bytes that a core copies in one turn, in gx_post() or later */
#define LOCAL_LIST_B	(256u << 10) /* that lists may copy though these are spent */
#define LOCAL_INLINE_B	(64u << 10)  /* gx_post() itself copies up to here */
#define LOCAL_RUN_B	256u /* bytes that a core copies while it looks for a run of a view */
#define LOCAL_DMA	320  /* operations of an ep for GPUs */
#define LOCAL_LIST_GETS 96   /* of these, gets of lists */
#define LOCAL_FEW	4    /* eps; among so few none is ever cold */
#define EP_NOT_LIVE	UINT32_MAX

/* An operation that was not done at once. owner: core */
struct local_op {
	uint8_t kind;
	uint32_t flags;
	int status;		/* not 0: the operation ends with it, and copies no more bytes */
	struct gx_route *route; /* for core_report() */
	uint64_t user, tag, deadline_ns;
	const char *src; /* with views: where the view begins, as .dst */
	char *dst;
	const struct gx_list *list; /* with views, kept until the completion; NULL: two ranges */
	const struct gx_mem *mem;   /* our side; NULL: not registered */
	uint64_t len, done_b;
	uint64_t bit;	       /* of the region in the peer's word revoked */
	struct local_map *key; /* the mapping, if it is of a key; NULL: a named region */
	uint32_t key_no;       /* dma: number of this copy among those of keys */
	uint64_t token, off, imm;
	struct dma *dma;	       /* the GPU's copy queue; NULL: this core copies */
	const struct local_pair *pair; /* dma: places of source and destination; NULL: not known */
	struct dma_ticket ticket;      /* with views: of the last launch */
	uint32_t moved;		       /* dma, views: pieces that were launched */
	bool begun;
};

/* owner: core */
struct local_ep {
	struct pkt_ep pkt; /* first: the packet link frees the whole struct by it */
	struct link_local *link;
	const struct local_conn *conn;	 /* frozen */
	const _Atomic uint64_t *revoked; /* the peer's word */
	struct local_ring *rx;		 /* NULL: the core reads no notifications of the peer */
	uint32_t rx_next, rx_credited;	 /* entries consumed in all; value of rx->done */
	uint32_t nr_bad;
	uint64_t made[2], made_b;  /* for tx->made: gets, puts; bytes */
	bool made_due;		   /* the peer does not have these yet */
	uintptr_t rx_at, rx_guess; /* address of the last notified bytes; of the next ones, if they
				      are as far on */
	struct local_ring *tx;
	uint32_t tx_head, tx_done; /* entries written in all; last look at tx->done */
	uint32_t head, tail;	   /* of ops, free-running: next to work on, next free */
	uint64_t deadline_ns;	   /* earliest of all operations; UINT64_MAX: none */
	uint32_t at;		   /* in link->live; EP_NOT_LIVE: not attached yet, or has left */
	uint64_t busy_ns;	   /* time of the turn that last saw a notification, or used */
	bool used;		   /* the user has posted since the last turn */
	bool waits;		   /* an operation waits for the peer: the ring is full */
	uint64_t used_ns;	   /* time of the turn that last saw used */
	struct local_op ops[LOCAL_OPS];
	unsigned nr_dma, nr_begun;	/* entries of dma; of these, copies under way */
	uint32_t key_turn;		/* for tx->inside.core */
	uint32_t key_begun;		/* for tx->inside.begun */
	unsigned dma_next;		/* of dma: begins first, as it had no room before */
	bool key_stuck;			/* a GPU has not ended such a copy: the owner must wait */
	int fail_err;			/* not 0: failed, but copies are under way */
	struct local_op dma[LOCAL_DMA]; /* in no order */
};

/* The word of a cold ep that the core looks at: the next notification is there when it is @want. */
struct local_look {
	const _Atomic uint32_t *seq;
	uint32_t want;
};

/*
 * Attached eps. Each turn serves the hot ones, which come first in live. A cold ep has nothing
 * under way here, so only a notification can come. A turn looks for one at as many cold eps as
 * microseconds have passed. So idle connections cost a turn next to nothing.
 */
struct link_local {
	struct gx_core *core;
	struct local_ep *live[GX_PEERS_MAX];
	struct local_look look[GX_PEERS_MAX]; /* for live[i], if it is cold */
	unsigned nr_live, nr_hot;
	unsigned cool;	   /* the next hot ep to check for cooling */
	unsigned cold;	   /* the next cold ep to look at */
	uint64_t cold_ns;  /* time of the last look at a cold ep */
	unsigned rover;	   /* the hot ep that this turn serves first */
	uint32_t budget_b; /* bytes left of LOCAL_TURN_B */
	uint32_t list_b;   /* the same of LOCAL_LIST_B */
	uint64_t imm_ns;   /* time of the turn that took the last notification */
	unsigned nr_gpus;  /* highest device in dma + 1 */
	struct dma *dma[GX_GPUS_MAX];
	struct dma
		*made[GX_GPUS_MAX]; /* ctl: for GPUs that are open; the core takes them into dma */
	unsigned nr_dma;	    /* operations in dma of all eps */
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

/* The mapping of @token. NULL: there is none. */
static inline struct local_map *local_map_of(const struct local_conn *l, uint64_t token)
{
	unsigned at = token & CORE_TOKEN_INDEX;
	struct local_key_page *page;
	struct local_keys *keys;
	struct local_map *m;

	if (at < GX_REGIONS_MAX) {
		m = (struct local_map *)&l->map[at];
		return m->token == token && m->len ? m : NULL;
	}
	/* These pair with the releases in local_key.c. */
	keys = atomic_load_explicit(&l->keys, memory_order_acquire);
	page = keys ? atomic_load_explicit(&keys->page[at / LOCAL_KEY_PAGE], memory_order_acquire)
		    : NULL;
	m = page ? atomic_load_explicit(&page->map[at % LOCAL_KEY_PAGE], memory_order_acquire)
		 : NULL;
	return m && m->token == token ? m : NULL;
}

static inline bool local_key_holds(const struct local_map *m)
{
	return atomic_load(m->live) == m->token;
}

/* Before a copy by this core with a key's memory: is the key good? If so, the owner waits until
 * local_key_leave(). */
static inline bool local_key_enter(struct local_ep *e, const struct local_map *m)
{
	/* In the order of all threads before the load: see lane_is_past(). */
	atomic_exchange(&e->tx->inside.core, ++e->key_turn);
	if (gx_likely(local_key_holds(m)))
		return true;
	atomic_store_explicit(&e->tx->inside.core, ++e->key_turn, memory_order_release);
	return false;
}

/* Behind the copy. Return: did the key hold? A put that it began with the key is done. */
static inline bool local_key_leave(struct local_ep *e, const struct local_map *m, unsigned kind)
{
	if (kind == GX_OP_PUT) {
		atomic_store_explicit(&e->tx->inside.core, ++e->key_turn, memory_order_release);
		return true;
	}
	/* The loads of the copy come before the look at the key. */
	atomic_exchange(&e->tx->inside.core, ++e->key_turn);
	return local_key_holds(m);
}

/* The same, if the peer lets this end do @kind there. */
static inline struct local_map *local_map_for(const struct local_ep *e, unsigned kind,
					      uint64_t token)
{
	struct local_map *m = local_map_of(e->conn, token);
	unsigned access = kind == GX_OP_PUT ? GX_ACCESS_PUT : GX_ACCESS_GET;

	return m && m->access & access ? m : NULL;
}

/* May this end touch these bytes of it now? */
static inline bool local_map_holds(const struct local_ep *e, const struct local_map *m,
				   uint64_t off, uint64_t len)
{
	return off <= m->len && len <= m->len - off && !local_is_revoked(e, m->bit);
}

/* What the core pays for the bytes of @op, which may lie in runs. */
static inline uint64_t local_cost(const struct gx_op *op)
{
	const struct list_pieces *p = op->flags & OP_VIEWS ? &op->list->pieces : NULL;

	return gx_unlikely(p) ? GX_MAX(op->len, (p->end - p->first) * LOCAL_RUN_B) : op->len;
}

/* Does a GPU move such pieces? */
static inline bool local_moves(const struct list_pieces *p)
{
	return p->b <= DMA_MOVE_B && p->end <= GX_MOVE_MAX;
}

/* Copy bytes [@at, @at + @len) from view to view; @dst and @src are where these begin. */
static inline void local_move(const struct list_views *v, bool put, char *dst, const char *src,
			      uint64_t at, uint64_t len)
{
	struct view_at to, from;

	view_at_init(&to, put ? &v->remote : &v->local, dst, at);
	view_at_init(&from, put ? &v->local : &v->remote, (char *)(uintptr_t)src, at);
	view_move(&to, &from, 0, len);
}

/* Count @n operations that are done: in our counters, and for the peer's. */
static inline void local_ops_count(struct local_ep *e, unsigned kind, unsigned n, uint64_t len)
{
	gx_stat_add(local_stats(e), kind == GX_OP_PUT ? GX_STAT_LOCAL_PUTS : GX_STAT_LOCAL_GETS, n);
	gx_stat_add(local_stats(e), GX_STAT_LOCAL_BYTES, len);
	e->made[kind == GX_OP_PUT] += n;
	e->made_b += len;
	e->made_due = true;
}

/* -- local_live.c -- */

void local_heat(struct local_ep *e);   /* make it hot: each turn serves it */
void local_unlist(struct local_ep *e); /* it is no longer attached */
/** local_cold() - Cool one hot ep if it is idle. Look for notifications at as many cold eps as
 * microseconds have passed. */
void local_cold(struct link_local *l, uint64_t now_ns);

/* -- local_imm.c -- */

/** local_imm_room() - Has the peer's ring room for a notification? Nonsense in the ring is a
 * fault. */
bool local_imm_room(struct local_ep *e);
/** local_imm_put() - Tell the peer of a put whose bytes are in place. There must be room. */
void local_imm_put(struct local_ep *e, uint64_t token, uint64_t off, uint64_t len, uint64_t imm);
/** local_imms_take() - Make completions of the peer's notifications. @e->rx is not NULL.
 * Return: was there one? */
bool local_imms_take(struct local_ep *e);
bool local_imm_there(const struct local_ep *e); /* has a notification come? */
bool local_imms_wait(struct link_local *l); /* the same for few eps, and looks a little longer */

/* -- local_op.c -- */

void local_op_report(struct local_ep *e, const struct local_op *op);
void local_made_tell(struct local_ep *e); /* tell the peer what this end has copied so far */
/** local_ops_turn() - Copy, begin copies by copy engines, and end operations that are done or late.
 * Return: did anything happen? */
bool local_ops_turn(struct local_ep *e, uint64_t now_ns);
/** local_ops_fail() - The ep fails: operations that this core copies end with e->fail_err. */
void local_ops_fail(struct local_ep *e);
void local_ops_drop(struct local_ep *e, struct drop *d); /* end operations with dead memory */
bool local_dma_begin(struct local_ep *e, struct local_op *op, uint64_t now_ns); /* did it? */
/** local_dma_drain() - For a failed ep: end operations that have not begun, and others when their
 * copies end.
 * Return: have all ended? */
bool local_dma_drain(struct local_ep *e);
void local_dma_kick(struct link_local *l, uint64_t now_ns); /* all GPUs */
bool local_dma_reap(struct link_local *l, uint64_t now_ns); /* all GPUs */

/* -- local_post.c: slots of gx_link_local_ops -- */

int local_post(struct gx_ep *ep, const struct gx_op *user, struct gx_route *route);
int local_join(struct gx_ep *ep, const struct gx_op *op, const struct gx_link_seg segs[],
	       unsigned n, struct gx_route *route);
void local_kick(struct gx_ep *ep);
int local_cancel(struct gx_ep *ep, uint64_t user, const struct gx_route *route);

/* -- local_list.c: slot of gx_link_local_ops -- */

unsigned local_copy(struct gx_ep *ep, bool put, const struct gx_link_seg segs[], unsigned n,
		    uint64_t *room_b);

#endif
