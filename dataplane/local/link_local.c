/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local link: puts and gets between two ends on one host, copied by this core straight into and
 * out of the peer's mapped memory, or by a GPU's copy engines where memory of a GPU is at either
 * end. What it cannot do itself (sends, memory that is not mapped, liveness) goes by the packet
 * link that an endpoint holds inside. Small copies are done in gx_post(), long ones in slices of a
 * turn. The peer hears of a put with an immediate by an entry in a ring of its own, written after
 * the data. ep_open, connect and free run on the control path, everything else on the polling core.
 */
#include "copy/dma.h"
#include "local/local.h"
#include "packet/pkt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LOCAL_OPS	 256	      /* of an ep, not done in gx_post() */
#define LOCAL_INLINE_B	 (64u << 10)  /* up to here gx_post() copies */
#define LOCAL_SLICE_B	 (256u << 10) /* copied before another operation has its turn */
/* From here stores bypass the cache, which holds no such thing */
#define LOCAL_STREAM_B	 (32u << 20)
#define LOCAL_TURN_B	 (1u << 20) /* a core copies this much in one turn, in gx_post() or later */
#define LOCAL_DMA	 256	    /* of an ep, that copy engines do */
#define LOCAL_NOTES_TAKE 64	    /* of one ep in one turn */
#define LOCAL_FEW	 4	    /* eps; none of so few is ever cold */
#define LOCAL_LOOKS	 64	    /* at the rings of few eps */
#define LOCAL_COLD_NS	 4000000    /* after the last put, get or notification */
#define LOCAL_PACE	 10	    /* 2^ns between two looks at cold eps */
#define EP_NOT_LIVE	 UINT32_MAX
#define LOCAL_HOT_NS	 1000000 /* after the last notification such looks go on for so long */
#define LOCAL_NOTES_TELL (LOCAL_NOTES / 4) /* consumed before the sender is told */
#define LOCAL_BAD_MAX	 1024 /* bad notifications, then the peer's are no longer read */

/* One that was not done at once. owner: core */
struct local_op {
	uint8_t kind;
	uint32_t flags;
	int status;  /* not 0: it ends so, without another byte */
	void *route; /* for core_comp() */
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
	unsigned cool,
		cold;	   /* the next hot one to see whether it is, the next cold one to look at */
	uint64_t cold_ns;  /* of the last look at a cold one */
	unsigned rover;	   /* who copies first this turn */
	uint32_t budget_b; /* of LOCAL_TURN_B, what is left */
	uint64_t noted_ns; /* the turn that took the last notification */
	unsigned nr_gpus;  /* highest device opened + 1; frozen while the core runs */
	struct dma *dma[GX_GPUS_MAX];
	unsigned nr_dma; /* operations of all eps' dma */
};

static struct local_ep *local_of(struct gx_ep *ep)
{
	return GX_CONTAINER_OF(ep, struct local_ep, pkt.ep);
}

static struct gx_stats *stats(const struct local_ep *e)
{
	return &e->pkt.ep.core->loop.stats;
}

/* ---- Hot and cold ---- */

static void live_swap(struct link_local *l, uint32_t a, uint32_t b)
{
	struct local_ep *ep = l->live[a];
	struct local_look look = l->look[a];

	l->live[a] = l->live[b];
	l->look[a] = l->look[b];
	l->live[b] = ep;
	l->look[b] = look;
	l->live[a]->at = a;
	ep->at = b;
}

static void ep_heat(struct local_ep *e)
{
	struct link_local *l = e->link;

	e->busy_ns = l->core->now_ns;
	if (e->at >= l->nr_hot && e->at != EP_NOT_LIVE)
		live_swap(l, e->at, l->nr_hot++);
}

static void ep_unlist(struct local_ep *e)
{
	struct link_local *l = e->link;

	if (e->at < l->nr_hot)
		live_swap(l, e->at, --l->nr_hot);
	live_swap(l, e->at, --l->nr_live);
	if (l->nr_live <= LOCAL_FEW)
		l->nr_hot = l->nr_live;
	e->at = EP_NOT_LIVE;
}

static bool ep_is_cold(const struct local_ep *e, uint64_t now_ns)
{
	return e->head == e->tail && !e->nr_dma && !e->used && !e->pkt.want_peer && !e->fail_err &&
	       now_ns - e->busy_ns > LOCAL_COLD_NS;
}

static void ep_cool(struct local_ep *e)
{
	static const _Atomic uint32_t never;
	struct link_local *l = e->link;

	live_swap(l, e->at, --l->nr_hot);
	l->look[e->at] = (struct local_look){&never, 1};
	if (e->rx)
		l->look[e->at] = (struct local_look){&e->rx->note[e->rx_next % LOCAL_NOTES].seq,
						     e->rx_next + 1};
}

/* One of the hot: is it still? And who of the cold has a notification is hot from now on. */
static __attribute__((noinline)) void link_cold(struct link_local *l, uint64_t now_ns)
{
	uint64_t n = (now_ns - l->cold_ns) >> LOCAL_PACE;
	const struct local_look *look;

	if (++l->cool >= l->nr_hot)
		l->cool = 0;
	if (l->nr_hot && ep_is_cold(l->live[l->cool], now_ns))
		ep_cool(l->live[l->cool]);
	l->cold_ns += n << LOCAL_PACE;
	for (n = GX_MIN(n, (uint64_t)l->nr_live - l->nr_hot); n && l->nr_hot < l->nr_live; n--) {
		if (l->cold < l->nr_hot || l->cold >= l->nr_live)
			l->cold = l->nr_hot;
		look = &l->look[l->cold];
		/* Pairs with the release in note_put(), as notes_take() does once more. */
		if (atomic_load_explicit(look->seq, memory_order_acquire) == look->want)
			ep_heat(l->live[l->cold]);
		l->cold++;
	}
	if (l->cold >= l->nr_hot && l->cold < l->nr_live) /* it takes its time to come */
		__builtin_prefetch((const void *)l->look[l->cold].seq);
}

/* ---- Completions ---- */

static void op_report(struct local_ep *e, const struct local_op *op)
{
	struct gx_comp comp = {.kind = GX_COMP_DONE,
			       .op = op->kind,
			       .status = op->status,
			       .ep = &e->pkt.ep,
			       .user = op->user,
			       .len = op->status ? 0 : op->len,
			       .tag = op->tag};

	if (op->flags & GX_OP_LOCAL) {
		comp.kind = GX_COMP_LOCAL;
		core_comp(e->pkt.ep.core, &comp, op->route);
		comp.kind = GX_COMP_DONE;
	}
	if (op->status)
		gx_stat_add(stats(e), GX_STAT_MSGS_FAILED, 1);
	if (op->status || !(op->flags & GX_OP_SILENT))
		core_comp(e->pkt.ep.core, &comp, op->route);
}

/* Of one that was done at once. */
static void report(struct local_ep *e, const struct gx_op *op, void *route, enum gx_comp_kind kind)
{
	struct gx_core *core = e->pkt.ep.core;
	struct gx_comp elsewhere, *comp = route ? &elsewhere : core_comp_place(core);

	comp->kind = kind;
	comp->op = op->kind;
	comp->status = 0;
	comp->ep = &e->pkt.ep;
	comp->user = op->user;
	comp->len = op->len;
	comp->tag = op->tag;
	comp->imm = comp->token = comp->off = 0;
	if (route)
		core_comp(core, comp, route);
}

/* ---- Notifications ---- */

static bool note_room(struct local_ep *e)
{
	if (e->tx_head - e->tx_done < LOCAL_NOTES)
		return true;
	/* Pairs with the release in notes_tell(): the entries have been copied out. */
	e->tx_done = atomic_load_explicit(&e->tx->done, memory_order_acquire);
	if (e->tx_head - e->tx_done <= LOCAL_NOTES)
		return e->tx_head - e->tx_done < LOCAL_NOTES;
	e->tx_done = e->tx_head - LOCAL_NOTES; /* nonsense: the peer is no longer one */
	atomic_store_explicit(&e->pkt.ep.fault, -EPROTO, memory_order_release);
	return false;
}

static void note_put(struct local_ep *e, uint64_t token, uint64_t off, uint64_t len, uint64_t imm)
{
	struct local_note *n = &e->tx->note[e->tx_head++ % LOCAL_NOTES];

	n->token = token;
	n->off = off;
	n->len = len;
	n->imm = imm;
	/* Pairs with the acquire in notes_take(): the entry is complete, and the data in place. */
	atomic_store_explicit(&n->seq, e->tx_head, memory_order_release);
}

static void notes_tell(struct local_ep *e)
{
	e->rx_told = e->rx_next;
	/* Pairs with the acquire in note_room(). */
	atomic_store_explicit(&e->rx->done, e->rx_told, memory_order_release);
}

/* Copied out, then judged: is it a region of ours that may be written, and does it lie inside? */
static bool note_get(struct local_ep *e, const struct local_note *n, struct gx_comp *comp)
{
	struct gx *gx = e->pkt.ep.core->gx;
	const struct gx_mem *mem;

	comp->kind = GX_COMP_NOTIFY;
	comp->op = GX_OP_PUT;
	comp->status = 0;
	comp->ep = &e->pkt.ep;
	comp->user = comp->tag = 0;
	comp->token = *(const volatile uint64_t *)&n->token;
	comp->off = *(const volatile uint64_t *)&n->off;
	comp->len = *(const volatile uint64_t *)&n->len;
	comp->imm = *(const volatile uint64_t *)&n->imm;
	if ((comp->token & 0xff) >= GX_REGIONS_MAX)
		return false;
	/* Pairs with the release in gx_mem_share(). */
	mem = atomic_load_explicit(&gx->region[comp->token & 0xff], memory_order_acquire);
	if (!mem || mem->token != comp->token || !(mem->access & GX_ACCESS_PUT) ||
	    comp->off > mem->len || comp->len > mem->len - comp->off)
		return false;
	/* Its reader comes next, and the line is still in the other core's cache. */
	if (mem->kind == GX_MEM_HOST) {
		uintptr_t at = (uintptr_t)mem->addr + comp->off;

		__builtin_prefetch((const void *)at);
		e->rx_guess = 2 * at - e->rx_at;
		e->rx_at = at;
	}
	return true;
}

static void note_bad(struct local_ep *e)
{
	gx_stat_add(stats(e), GX_STAT_RX_BAD, 1);
	e->nr_bad++;
}

static const struct local_note *note_next(const struct local_ep *e)
{
	return &e->rx->note[e->rx_next % LOCAL_NOTES];
}

/* Is @n the entry of this number? Pairs with the release in note_put(). */
static inline bool note_is(const struct local_note *n, uint32_t number)
{
	return atomic_load_explicit(&n->seq, memory_order_acquire) == number + 1;
}

static bool notes_take(struct local_ep *e)
{
	struct gx_core *core = e->pkt.ep.core;
	uint32_t first = e->rx_next, end = first + LOCAL_NOTES_TAKE;
	const struct local_note *n;

	for (; e->rx_next != end && core_comp_room(core); e->rx_next++) {
		n = note_next(e);
		if (!note_is(n, e->rx_next))
			break;
		if (note_get(e, n, core_comp_next(core)))
			core->comp_head++;
		else
			note_bad(e);
	}
	if (e->rx_next == first)
		return false;
	e->pkt.heard_ns = e->busy_ns = e->link->noted_ns = core->now_ns;
	gx_stat_add(stats(e), GX_STAT_MSGS_RX, e->rx_next - first);
	if (e->rx_next - e->rx_told >= LOCAL_NOTES_TELL)
		notes_tell(e);
	if (e->nr_bad >= LOCAL_BAD_MAX)
		e->rx = NULL;
	return true;
}

/* ---- Copies ---- */

static inline void op_count(struct local_ep *e, unsigned kind, uint64_t len)
{
	gx_stat_add(stats(e), kind == GX_OP_PUT ? GX_STAT_LOCAL_PUTS : GX_STAT_LOCAL_GETS, 1);
	gx_stat_add(stats(e), GX_STAT_LOCAL_BYTES, len);
	e->made[kind == GX_OP_PUT]++;
	e->made_b += len;
	e->made_due = true;
}

/* Once a turn, not for each of many small ones. */
static void made_tell(struct local_ep *e)
{
	struct local_made *made = &e->tx->made;

	atomic_store_explicit(&made->gets, e->made[0], memory_order_relaxed);
	atomic_store_explicit(&made->puts, e->made[1], memory_order_relaxed);
	atomic_store_explicit(&made->bytes, e->made_b, memory_order_relaxed);
	e->made_due = false;
}

/* All bytes are there: tell the peer, then the user. False: the ring is full. */
static bool op_end(struct local_ep *e, const struct local_op *op)
{
	if (op->flags & GX_OP_IMM && !op->status) {
		if (!note_room(e))
			return false;
		note_put(e, op->token, op->off, op->len, op->imm);
	}
	if (!op->status)
		op_count(e, op->kind, op->len);
	op_report(e, op);
	return true;
}

static bool is_revoked(const struct local_ep *e, uint64_t bit)
{
	/* Pairs with the release in local_revoke(). */
	return atomic_load_explicit(e->revoked, memory_order_acquire) & bit;
}

/* One slice of @op. Return: has it ended? */
static bool op_slice(struct local_ep *e, struct local_op *op)
{
	uint64_t n = GX_MIN(op->len - op->done_b, (uint64_t)LOCAL_SLICE_B);

	if (!op->status && n && is_revoked(e, op->bit))
		op->status = -ENOENT;
	if (!op->status && n) {
		if (op->len >= LOCAL_STREAM_B)
			gx_copy_stream(op->dst + op->done_b, op->src + op->done_b, n);
		else
			gx_copy(op->dst + op->done_b, op->src + op->done_b, n);
		op->done_b += n;
		e->link->budget_b -= GX_MIN(e->link->budget_b, (uint32_t)n);
		if (op->done_b < op->len)
			return false;
	}
	return op_end(e, op);
}

static unsigned comps_left(const struct local_op *op)
{
	return 1 + !!(op->flags & GX_OP_LOCAL);
}

/* Round robin: what has not ended goes to the end of the queue. */
static bool ops_turn(struct local_ep *e)
{
	uint32_t last = e->tail;
	bool worked = false, waits = false; /* for room in the ring */

	while (e->head != last && e->link->budget_b) {
		struct local_op *op = &e->ops[e->head % LOCAL_OPS];
		uint64_t before = op->done_b;

		e->pkt.ep.core->comps_due -= comps_left(op);
		if (op_slice(e, op)) {
			e->head++;
			worked = true;
			continue;
		}
		e->pkt.ep.core->comps_due += comps_left(op);
		worked |= op->done_b != before;
		waits |= op->done_b == op->len;
		e->ops[e->tail++ % LOCAL_OPS] = *op;
		e->head++;
	}
	e->waits = waits;
	return worked;
}

/* A copy needs nothing of the peer's core; that it lives is asked all the same while it is used, so
 * that nobody puts into a process that has stopped for good. */
static void ep_ask(struct local_ep *e, uint64_t now_ns)
{
	if (e->used)
		e->used_ns = e->busy_ns = now_ns;
	e->pkt.want_peer =
		e->used || e->waits || (e->pkt.want_peer && e->pkt.heard_ns < e->used_ns);
	if (e->used)
		ep_touch(&e->pkt);
	e->used = false;
}

/* A copy engine that is at it is not stopped: the operation ends, failed, when it is through. */
static void op_deadline(struct local_ep *e, struct local_op *op, uint64_t now_ns)
{
	if (!op->deadline_ns || op->status)
		return;
	if (op->deadline_ns <= now_ns)
		op->status = -ETIMEDOUT;
	else
		e->deadline_ns = GX_MIN(e->deadline_ns, op->deadline_ns);
}

static void ops_deadlines(struct local_ep *e, uint64_t now_ns)
{
	e->deadline_ns = UINT64_MAX;
	for (uint32_t i = e->head; i != e->tail; i++)
		op_deadline(e, &e->ops[i % LOCAL_OPS], now_ns);
	for (unsigned i = 0; i < e->nr_dma; i++)
		op_deadline(e, &e->dma[i], now_ns);
}

/* ---- Copies by copy engines ---- */

static bool pair_kernel(const struct local_pair *p)
{
	/* Pairs with the release in pair_time(). */
	return p && atomic_load_explicit(&p->kernel, memory_order_acquire);
}

static void dma_begin(struct local_ep *e, struct local_op *op, uint64_t now_ns)
{
	if (!op->status && is_revoked(e, op->bit))
		op->status = -ENOENT;
	if (!op->status && dma_err(op->dma))
		op->status = -EIO;
	if (op->status || !dma_copy(op->dma, op->dst, op->src, op->len, pair_kernel(op->pair),
				    now_ns, &op->ticket))
		return;
	op->begun = true;
	e->nr_begun++;
}

/* A GPU that does not finish may write later: neither memory is to be used again. */
static bool dma_has_ended(struct local_ep *e, struct local_op *op)
{
	if (!op->begun)
		return op->status || op->done_b;
	if (!dma_done(op->dma, op->ticket)) {
		if (!dma_err(op->dma))
			return false;
		op->status = -EIO;
		atomic_store_explicit(&e->pkt.ep.conn->local->stuck, true, memory_order_release);
	}
	op->begun = false;
	op->done_b = op->len;
	e->nr_begun--;
	return true;
}

/* Return: did one begin or end? */
static bool dma_turn(struct local_ep *e, uint64_t now_ns)
{
	bool worked = false;

	for (unsigned i = e->nr_dma; i-- > 0;) {
		struct local_op *op = &e->dma[i];

		if (!op->begun && !op->done_b && !op->status) {
			dma_begin(e, op, now_ns);
			worked |= op->begun;
		}
		if (!dma_has_ended(e, op))
			continue;
		e->pkt.ep.core->comps_due -= comps_left(op);
		if (!op_end(e, op)) { /* the peer's ring is full */
			e->pkt.ep.core->comps_due += comps_left(op);
			e->waits = true;
			continue;
		}
		*op = e->dma[--e->nr_dma];
		e->link->nr_dma--;
		worked = true;
	}
	return worked;
}

/* Of a failed ep: what has not begun ends; what has, when it is done. Return: has all ended? */
static bool dma_drain(struct local_ep *e)
{
	for (unsigned i = e->nr_dma; i-- > 0;) {
		struct local_op *op = &e->dma[i];

		if (op->begun && !dma_has_ended(e, op))
			continue;
		e->pkt.ep.core->comps_due -= comps_left(op);
		op->status = op->status ? op->status : e->fail_err;
		op_report(e, op);
		*op = e->dma[--e->nr_dma];
		e->link->nr_dma--;
	}
	return !e->nr_dma;
}

static void dma_kick_all(struct link_local *l, uint64_t now_ns)
{
	for (unsigned i = 0; i < l->nr_gpus; i++)
		if (l->dma[i])
			dma_kick(l->dma[i], now_ns);
}

static bool dma_reap_all(struct link_local *l, uint64_t now_ns)
{
	bool worked = false;

	for (unsigned i = 0; i < l->nr_gpus; i++)
		if (l->dma[i])
			worked |= dma_reap(l->dma[i], now_ns);
	return worked;
}

static bool ep_turn(struct local_ep *e, uint64_t now_ns)
{
	bool worked = e->rx && notes_take(e);

	if (e->head != e->tail || e->nr_dma) {
		if (now_ns >= e->deadline_ns)
			ops_deadlines(e, now_ns);
		worked |= ops_turn(e);
		worked |= dma_turn(e, now_ns);
	}
	if (e->used || e->pkt.want_peer)
		ep_ask(e, now_ns);
	if (e->made_due)
		made_tell(e);
	return worked;
}

/* Nothing of the local link's is under way any more; the packet link ends the ep. */
static void ep_leave(struct local_ep *e)
{
	int err = e->fail_err;

	if (e->at != EP_NOT_LIVE)
		ep_unlist(e);
	gx_link_pkt_ops.ep_fail(&e->pkt.ep, err); /* the last touch may be its */
}

/* The rest of a turn takes longer than a notification: where some have come of late, look a little
 * longer at the few rings that there are, each of which costs a load from the cache. The line where
 * the next bytes lie, if they are as far on as the last ones were, is asked for together with the
 * notification, not after it: two transfers from the other core at once. Nothing is read there. */
static bool notes_wait(struct link_local *l)
{
	const struct local_note *next[LOCAL_FEW];
	uint32_t number[LOCAL_FEW];
	struct local_ep *at[LOCAL_FEW];
	unsigned n = 0;

	for (unsigned i = 0; i < l->nr_live; i++)
		if (l->live[i]->rx) {
			at[n] = l->live[i];
			next[n] = note_next(at[n]);
			number[n] = at[n]->rx_next;
			n++;
		}
	for (unsigned k = 0; k < LOCAL_LOOKS; k++)
		for (unsigned i = 0; i < n; i++) {
			__builtin_prefetch((const void *)at[i]->rx_guess);
			if (note_is(next[i], number[i]))
				return notes_take(at[i]);
		}
	return false;
}

/* What has not begun ends without another byte, when the ep is turned. */
static void ep_drop(struct local_ep *e, struct drop *d)
{
	for (uint32_t i = e->head; i != e->tail; i++) {
		struct local_op *op = &e->ops[i % LOCAL_OPS];

		if (mem_is_dead(op->mem) && !op->status)
			op->status = -ECANCELED;
	}
	for (unsigned i = 0; i < e->nr_dma; i++) {
		struct local_op *op = &e->dma[i];

		if (!mem_is_dead(op->mem))
			continue;
		if (!op->status)
			op->status = -ECANCELED;
		if (op->begun && !dma_has_ended(e, op))
			drop_hold(d, op->mem);
	}
}

void link_local_drop(struct link_local *l, struct drop *d)
{
	if (l->nr_dma) {
		dma_reap_all(l, l->core->now_ns);
		dma_kick_all(l, l->core->now_ns);
	}
	for (unsigned i = 0; i < l->nr_live; i++)
		ep_drop(l->live[i], d);
}

bool link_local_asleep(const void *link)
{
	const struct link_local *l = link;

	return !l->nr_live && !l->nr_dma;
}

bool link_local_poll(void *link, uint64_t now_ns)
{
	struct link_local *l = link;
	bool worked = false;

	l->core->now_ns = now_ns;
	core_mine(l->core);
	if (gx_unlikely(core_drop_due(l->core)))
		core_drop(l->core);
	l->budget_b = LOCAL_TURN_B;
	if (l->nr_dma)
		worked |= dma_reap_all(l, now_ns);
	if (gx_unlikely(l->nr_live > LOCAL_FEW))
		link_cold(l, now_ns);
	if (++l->rover >= l->nr_hot)
		l->rover = 0;
	for (unsigned k = 0, i = l->rover; k < l->nr_hot; k++) {
		worked |= ep_turn(l->live[i], now_ns);
		if (++i == l->nr_hot)
			i = 0;
	}
	if (!worked && l->nr_live <= LOCAL_FEW && now_ns - l->noted_ns < LOCAL_HOT_NS)
		worked = notes_wait(l);
	if (l->nr_dma)
		dma_kick_all(l, now_ns);
	for (unsigned i = l->nr_hot; i-- > 0;)
		if (l->live[i]->fail_err && dma_drain(l->live[i]))
			ep_leave(l->live[i]);
	return worked;
}

/* ---- Posting ---- */

/* The mapping that takes @op; NULL: packets do, and find what is wrong with it, if anything. */
static const struct local_map *map_find(const struct local_ep *e, const struct gx_op *op)
{
	const struct local_map *m = &e->conn->map[op->token % GX_REGIONS_MAX];
	unsigned access = op->kind == GX_OP_PUT ? GX_ACCESS_PUT : GX_ACCESS_GET;

	if (m->token != op->token || !m->len || !(m->access & access))
		return NULL;
	if (op->remote_off > m->len || op->len > m->len - op->remote_off)
		return NULL;
	return is_revoked(e, m->bit) ? NULL : m;
}

/* Who copies @op: a GPU when memory of one is at either end; @theirs: the region as that one has
 * it. False: nobody here can. */
static bool op_dma(const struct local_ep *e, const struct gx_op *op, const struct local_map *m,
		   struct dma **out, char **theirs)
{
	bool gpu = op->mem && op->mem->kind != GX_MEM_HOST;
	const struct gx_gpu *by;

	*out = NULL;
	*theirs = m->addr;
	if ((!gpu && !m->is_gpu) || !op->len)
		return true;
	/* Pairs with the release in host_register(): copy engines know the memory. */
	if (!gpu && (!op->mem || !atomic_load_explicit(&op->mem->dma, memory_order_acquire)))
		return false;
	if (!m->gpu)
		return false;
	by = gpu ? op->mem->gpu : m->gpu;
	if (m->is_gpu)
		*theirs = m->seen[by->device];
	*out = e->link->dma[by->device];
	return *out && *theirs;
}

static void op_fill(struct local_op *op, const struct gx_op *user, void *route,
		    const struct local_map *m, char *theirs)
{
	char *mine = user->mem ? user->mem->addr + user->off : user->addr;
	bool put = user->kind == GX_OP_PUT;

	theirs += user->remote_off;
	*op = (struct local_op){.kind = (uint8_t)user->kind,
				.flags = user->flags & (put ? GX_OP_IMM | GX_OP_LOCAL | GX_OP_SILENT
							    : GX_OP_SILENT),
				.route = route,
				.user = user->user,
				.tag = user->tag,
				.deadline_ns = user->deadline_ns,
				.src = put ? mine : theirs,
				.dst = put ? theirs : mine,
				.mem = user->mem,
				.len = user->len,
				.bit = m->bit,
				.token = user->token,
				.off = user->remote_off,
				.imm = user->imm};
}

/* All of a small operation. In its own way, because a put of 64 bytes takes no longer than the
 * writing of a struct local_op. */
static void op_now(struct local_ep *e, const struct gx_op *op, void *route,
		   const struct local_map *m, bool lone)
{
	char *mine = op->mem ? op->mem->addr + op->off : op->addr;
	char *theirs = m->addr + op->remote_off;
	bool put = op->kind == GX_OP_PUT;

	gx_copy(put ? theirs : mine, put ? mine : theirs, op->len);
	e->link->budget_b -= (uint32_t)op->len;
	if (put && op->flags & GX_OP_IMM) {
		note_put(e, op->token, op->remote_off, op->len, op->imm);
		if (lone) {
			gx_demote(theirs);
			gx_demote(&e->tx->note[(e->tx_head - 1) % LOCAL_NOTES]);
		}
	}
	op_count(e, op->kind, op->len);
	if (put && op->flags & GX_OP_LOCAL)
		report(e, op, route, GX_COMP_LOCAL);
	if (!(op->flags & GX_OP_SILENT))
		report(e, op, route, GX_COMP_DONE);
}

/* A line or less, and the first in this turn: somebody waits for it, more than for its rate. */
static bool op_is_lone(const struct local_ep *e, const struct gx_op *op)
{
	return !e->used && op->kind == GX_OP_PUT && op->len <= GX_CACHE_LINE;
}

/* The peer's core has the lines that are about to be written: ask for them now, both at once. */
static void op_ahead(const struct local_ep *e, const struct gx_op *op, const struct local_map *m)
{
	gx_prefetch_write(m->addr + op->remote_off);
	if (op->flags & GX_OP_IMM)
		gx_prefetch_write(&e->tx->note[e->tx_head % LOCAL_NOTES]);
}

/* Is it small enough to be done now, and would no notification overtake another? */
static bool op_is_now(struct local_ep *e, const struct gx_op *op)
{
	if (op->len > LOCAL_INLINE_B || op->len > e->link->budget_b)
		return false;
	return !(op->flags & GX_OP_IMM) || (e->head == e->tail && note_room(e));
}

static const struct local_pair *op_pair(const struct local_ep *e, const struct gx_op *op,
					const struct local_map *m)
{
	const struct local_pairs *all = e->pkt.ep.core->gx->pairs;
	unsigned ours = op->mem->kind == GX_MEM_HOST ? 0 : 1u + (unsigned)op->mem->device;

	if (m->place == LOCAL_PLACE_UNKNOWN)
		return NULL;
	return op->kind == GX_OP_PUT ? &all->pair[ours][m->place] : &all->pair[m->place][ours];
}

static int post_dma(struct local_ep *e, const struct gx_op *user, const struct local_map *m,
		    struct dma *dma, char *theirs, void *route)
{
	struct local_op *op = &e->dma[e->nr_dma];

	if (e->nr_dma == LOCAL_DMA)
		return -EAGAIN;
	op_fill(op, user, route, m, theirs);
	op->dma = dma;
	op->pair = op_pair(e, user, m);
	e->nr_dma++;
	e->link->nr_dma++;
	e->pkt.ep.core->comps_due += comps_left(op);
	if (op->deadline_ns)
		e->deadline_ns = GX_MIN(e->deadline_ns, op->deadline_ns);
	dma_begin(e, op, e->pkt.ep.core->now_ns);
	return 0;
}

static int local_post(struct gx_ep *ep, const struct gx_op *user, void *route)
{
	struct local_ep *e = local_of(ep);
	const struct local_map *m;
	struct local_op *op;
	struct dma *dma;
	char *theirs;
	bool lone;

	if (user->kind > GX_OP_GET)
		return gx_link_pkt_ops.post(ep, user, route);
	m = map_find(e, user);
	if (!m || !op_dma(e, user, m, &dma, &theirs)) {
		gx_stat_add(stats(e), GX_STAT_LOCAL_MISSES, 1);
		return gx_link_pkt_ops.post(ep, user, route);
	}
	if (e->pkt.err || e->fail_err)
		return -ENOTCONN;
	if (!core_post_room(ep->core))
		return -EAGAIN;
	if (gx_unlikely(e->at >= e->link->nr_hot))
		ep_heat(e);
	lone = op_is_lone(e, user);
	if (lone)
		op_ahead(e, user, m);
	e->used = true;
	if (dma)
		return post_dma(e, user, m, dma, theirs, route);
	if (op_is_now(e, user)) {
		op_now(e, user, route, m, lone);
		return 0;
	}
	if (e->tail - e->head == LOCAL_OPS)
		return -EAGAIN;
	op = &e->ops[e->tail++ % LOCAL_OPS];
	op_fill(op, user, route, m, theirs);
	ep->core->comps_due += comps_left(op);
	if (op->deadline_ns)
		e->deadline_ns = GX_MIN(e->deadline_ns, op->deadline_ns);
	return 0;
}

static void local_kick(struct gx_ep *ep)
{
	struct local_ep *e = local_of(ep);

	if (e->link->nr_dma)
		dma_kick_all(e->link, ep->core->now_ns);
	if (e->pkt.wait_head != PKT_NONE || e->pkt.rec_queued)
		gx_link_pkt_ops.kick(ep);
}

static int op_cancel(struct local_op *op, uint64_t user, const void *route)
{
	if (op->user != user || op->route != route || op->status)
		return 0;
	op->status = -ECANCELED;
	return 1;
}

static int local_cancel(struct gx_ep *ep, uint64_t user, const void *route)
{
	struct local_ep *e = local_of(ep);
	int n = 0;

	for (uint32_t i = e->head; i != e->tail; i++)
		n += op_cancel(&e->ops[i % LOCAL_OPS], user, route);
	for (unsigned i = 0; i < e->nr_dma; i++)
		n += op_cancel(&e->dma[i], user, route);
	return n + gx_link_pkt_ops.cancel(ep, user, route);
}

/* ---- Attach, fail ---- */

static void local_attach(struct gx_ep *ep)
{
	struct local_ep *e = local_of(ep);

	e->at = e->link->nr_live;
	e->link->live[e->link->nr_live++] = e;
	ep_heat(e);
	gx_link_pkt_ops.ep_attach(ep);
}

static void local_fail(struct gx_ep *ep, int err)
{
	struct local_ep *e = local_of(ep);

	e->fail_err = err ? err : -ECONNRESET;
	if (e->made_due)
		made_tell(e);
	ep_heat(e); /* until it leaves */
	for (; e->head != e->tail; e->head++) {
		struct local_op *op = &e->ops[e->head % LOCAL_OPS];

		ep->core->comps_due -= comps_left(op);
		op->status = op->status ? op->status : e->fail_err;
		op_report(e, op);
	}
	if (dma_drain(e))
		ep_leave(e);
}

/* ---- Control path ---- */

static struct gx_ep *local_ep_new(void)
{
	struct pkt_ep *e = pkt_ep_alloc(sizeof(struct local_ep));

	_Static_assert(offsetof(struct local_ep, pkt) == 0, "the packet link frees it");
	return e ? &e->ep : NULL;
}

static int local_ep_open(struct gx_ep *ep, struct gx_hello_lane *local)
{
	struct local_ep *e = local_of(ep);

	e->link = ep->core->local;
	e->conn = ep->conn->local;
	e->rx = &e->conn->rx->ring[ep->lane];
	e->at = EP_NOT_LIVE;
	e->deadline_ns = UINT64_MAX;
	return gx_link_pkt_ops.ep_open(ep, local);
}

static int local_ep_connect(struct gx_ep *ep, const struct gx_hello_lane *remote)
{
	struct local_ep *e = local_of(ep);

	e->tx = &e->conn->tx->ring[ep->lane];
	e->revoked = &e->conn->tx->hdr.revoked;
	return gx_link_pkt_ops.ep_connect(ep, remote);
}

static void local_ep_free(struct gx_ep *ep)
{
	gx_link_pkt_ops.ep_free(ep);
}

const struct gx_link_ops gx_link_local_ops = {
	.name = "local",
	.ep_new = local_ep_new,
	.ep_open = local_ep_open,
	.ep_connect = local_ep_connect,
	.ep_free = local_ep_free,
	.ep_attach = local_attach,
	.ep_fail = local_fail,
	.post = local_post,
	.kick = local_kick,
	.cancel = local_cancel,
};

int link_local_open(struct gx_core *core, struct link_local **out)
{
	struct link_local *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->core = core;
	l->budget_b = LOCAL_TURN_B;
	*out = l;
	return 0;
}

_Static_assert((int)GX_COPY_KERNEL == (int)DMA_KERNEL, "same order");

int link_local_gpu(struct link_local *l, struct gx_gpu *gpu)
{
	const struct gx_opts *o = &l->core->gx->opts;

	l->nr_gpus = GX_MAX(l->nr_gpus, gpu->device + 1u);
	if (l->dma[gpu->device])
		return 0;
	return dma_open(gpu, (enum dma_engine)o->engine, o->gpu_timeout_ns, &l->dma[gpu->device]);
}

void link_local_close(struct link_local *l)
{
	for (unsigned i = 0; l && i < GX_GPUS_MAX; i++)
		dma_close(l->dma[i]);
	free(l);
}
