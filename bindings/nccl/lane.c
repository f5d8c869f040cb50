/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests on a core of gx. The progress threads put requests into the core's inbox; the core posts
 * them as sends and receives with exact tags, and sets their flags when they complete.
 *
 * gx has a bounded number of operations on an endpoint, and on a core. A request that waits for the
 * peer holds one. So that no comm waits for another one for ever, the first request of each comm is
 * always posted, and only a part of the room is for further ones, the extra requests. That part is
 * small enough for comms that open later: extra requests that wait for the peer stay.
 *
 * What a turn does is bounded: so many orders, so many completions, so many of the comms that wait
 * for room. The next turn goes on.
 *
 * lane_put() and lane_flush(): any thread. All others: the core, in its turn. They neither allocate
 * nor call the system.
 */
#include "plug.h"

#include <errno.h>
#include <time.h>

#define LANE_EXTRA_RECVS  96   /* of 256 receives of an endpoint; the others are first ones */
#define LANE_EXTRA_SENDS  384  /* of 1,024 operations */
#define LANE_EXTRA	  500  /* of a core's operations: receives, and as many sends */
#define LANE_OPS	  4000 /* of 4,094 of a core: first requests of its comms, and extra ones */
#define LANE_COMPS	  64   /* completions taken at once */
#define LANE_ROUNDS	  4    /* so often in a turn */
#define LANE_ORDERS	  256  /* in a turn */
#define LANE_TRIES	  64   /* waiting comms that a turn looks at */
#define LANE_FLUSH_NAP_NS 20000

#define FIELD_OF(ptr, type, field) ((type *)((char *)(ptr)-offsetof(type, field)))

void lane_put(struct lane *l, struct order *o)
{
	struct order *head = atomic_load_explicit(&l->inbox, memory_order_relaxed);

	do
		o->next = head;
	while (!atomic_compare_exchange_weak_explicit(&l->inbox, &head, o, memory_order_release,
						      memory_order_relaxed));
}

/* ---- Ends ---- */

/* The poster may use @r again at once, so the flag is the last store. */
static void lane_req_end(struct req *r, int status, uint64_t len)
{
	r->place = REQ_IDLE;
	r->status = status;
	r->landed = len;
	if (r->reg) /* pairs with the acquire in reg_is_used() */
		atomic_fetch_add_explicit(&r->reg->nr_ended, 1, memory_order_release);
	atomic_store_explicit(&r->done, 1, memory_order_release);
}

static void lane_bury(struct comm *c)
{
	struct comm *head = atomic_load_explicit(&plug.graves, memory_order_relaxed);

	do
		c->grave_next = head;
	while (!atomic_compare_exchange_weak_explicit(&plug.graves, &head, c, memory_order_release,
						      memory_order_relaxed));
}

/* Has the peer had this request before it closed the comm? */
static bool lane_reached(const struct req *r)
{
	return (int32_t)(r->seq - r->comm->count) < 0;
}

/* Why a request that waits can end at once: -errno. 0: it can not. */
static int lane_why_over(const struct req *r)
{
	if (r->comm->is_closing)
		return -ECANCELED;
	if (r->reg && atomic_load_explicit(&r->reg->going, memory_order_relaxed))
		return -ECANCELED;
	return r->comm->peer_gone && !lane_reached(r) ? -EPIPE : 0;
}

/* ---- Waiting ---- */

/* In lane.waiting: comms with requests that gx had no room for, the next to look at first. */
static void lane_list(struct lane *l, struct comm *c)
{
	c->is_waiting = true;
	c->wait_next = NULL;
	c->wait_at = l->wait_end;
	*l->wait_end = c;
	l->wait_end = &c->wait_next;
	l->nr_waiting++;
}

static void lane_unlist(struct lane *l, struct comm *c)
{
	if (!c->is_waiting)
		return;
	c->is_waiting = false;
	l->nr_waiting--;
	*c->wait_at = c->wait_next;
	if (c->wait_next)
		c->wait_next->wait_at = c->wait_at;
	else
		l->wait_end = c->wait_at;
}

/* A comm has 32 requests at most. */
static void lane_wait_end(struct comm *c)
{
	struct req **at = &c->wait_head;

	while (*at) {
		struct req *r = *at;
		int why = lane_why_over(r);

		if (!why) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		lane_req_end(r, why, 0);
	}
	c->wait_end = at;
}

/* ---- Posting ---- */

static bool lane_has_room(const struct lane *l, const struct comm *c)
{
	unsigned max = c->is_send ? LANE_EXTRA_SENDS : LANE_EXTRA_RECVS;

	if (!c->nr_posted)
		return true;
	return c->path->extra[c->is_send] < max && l->extra[c->is_send] < LANE_EXTRA &&
	       l->extra[0] + l->extra[1] +
			       atomic_load_explicit(&l->nr_comms, memory_order_relaxed) <
		       LANE_OPS;
}

static void lane_count(struct lane *l, struct comm *c, int more)
{
	c->path->extra[c->is_send] += (unsigned)more;
	l->extra[c->is_send] += (unsigned)more;
}

/* Return: as gx_post(). */
static int lane_post(struct comm *c, struct req *r)
{
	struct gx_op op = {0};

	op.kind = c->is_send ? GX_OP_SEND : GX_OP_RECV;
	op.user = (uintptr_t)r;
	op.mem = r->reg ? r->reg->mem : NULL;
	op.off = r->off;
	op.len = r->len;
	if (!c->is_send && r->len <= plug.conf.pull_over_b)
		op.flags = GX_OP_WORDS; /* it may be of LL */
	op.tag = (uint64_t)c->number << 32 | r->seq;
	return gx_post(c->path->lane->queue, c->path->ep, &op, 1);
}

/* Post what waits, in order. Return: was there something to do? */
static bool lane_try(struct lane *l, struct comm *c)
{
	bool busy = false;

	lane_wait_end(c);
	while (c->wait_head && lane_has_room(l, c)) {
		struct req *r = c->wait_head;
		int ret = lane_post(c, r);

		if (!ret)
			break;
		busy = true;
		c->wait_head = r->next;
		if (!c->wait_head)
			c->wait_end = &c->wait_head;
		if (ret < 0) {
			lane_req_end(r, ret, 0);
			continue;
		}
		r->place = REQ_POSTED;
		if (c->nr_posted++)
			lane_count(l, c, 1);
	}
	return busy;
}

/* Those that must wait on go to the end. */
static bool lane_waiting(struct lane *l)
{
	unsigned n = l->nr_waiting < LANE_TRIES ? l->nr_waiting : LANE_TRIES;
	bool busy = false;

	while (n--) {
		struct comm *c = l->waiting;

		lane_unlist(l, c);
		busy |= lane_try(l, c);
		if (c->wait_head)
			lane_list(l, c);
	}
	return busy;
}

/* ---- Orders ---- */

void lane_req(struct lane *l, struct order *o)
{
	struct req *r = FIELD_OF(o, struct req, order);
	struct comm *c = r->comm;

	r->place = REQ_WAITING;
	r->next = NULL;
	*c->wait_end = r;
	c->wait_end = &r->next;
	if (c->is_waiting)
		return;
	lane_try(l, c);
	if (c->wait_head)
		lane_list(l, c);
}

/* Where the connection has ended, gx ends the operations itself. */
static void lane_cancel(struct comm *c, bool all)
{
	if (!gx_conn_ep(c->peer->conn, 0))
		return;
	for (unsigned i = 0; i < NCCL_REQS_MAX; i++) {
		struct req *r = &c->req[i];

		if (r->place == REQ_POSTED && (all || !lane_reached(r)))
			gx_cancel(c->path->lane->queue, c->path->ep, (uintptr_t)r);
	}
}

void lane_close(struct lane *l, struct order *o)
{
	struct comm *c = FIELD_OF(o, struct comm, closing);

	c->is_closing = true;
	lane_wait_end(c);
	lane_unlist(l, c);
	lane_cancel(c, true);
	if (!c->nr_posted)
		lane_bury(c);
}

void lane_end(struct lane *l, struct order *o)
{
	struct comm *c = FIELD_OF(o, struct comm, ending);

	c->peer_gone = true;
	lane_wait_end(c);
	if (!c->wait_head)
		lane_unlist(l, c);
	lane_cancel(c, false);
}

/* A thread waits for it, on whose stack it is. */
struct flush {
	struct order order;
	_Atomic uint32_t *nr_left;
};

static void lane_flush_run(struct lane *l, struct order *o)
{
	(void)l;
	/* Pairs with the acquire in lane_flush(): @o may be gone from here on. */
	atomic_fetch_sub_explicit(FIELD_OF(o, struct flush, order)->nr_left, 1,
				  memory_order_release);
}

void lane_flush(void)
{
	_Atomic uint32_t nr_left = plug.nr_lanes;
	struct flush flush[LANES_MAX];

	for (unsigned i = 0; i < plug.nr_lanes; i++) {
		flush[i] = (struct flush){{NULL, lane_flush_run}, &nr_left};
		lane_put(&plug.lane[i], &flush[i].order);
	}
	while (atomic_load_explicit(&nr_left, memory_order_acquire))
		nanosleep(&(struct timespec){.tv_nsec = LANE_FLUSH_NAP_NS}, NULL);
}

/* ---- Orders that come ---- */

/* Take the inbox, a stack that comes out newest first, when all earlier orders have run. Return: is
 * there one to run? */
static bool lane_take(struct lane *l)
{
	struct order *o;

	if (l->todo || !atomic_load_explicit(&l->inbox, memory_order_relaxed))
		return l->todo;
	/* Pairs with the release in lane_put(). */
	o = atomic_exchange_explicit(&l->inbox, NULL, memory_order_acquire);
	while (o) {
		struct order *next = o->next;

		o->next = l->todo;
		l->todo = o;
		o = next;
	}
	return true;
}

/* Return: have all run that were put before this turn? */
static bool lane_orders(struct lane *l, bool *busy)
{
	for (unsigned i = 0; i < LANE_ORDERS; i++) {
		struct order *o;

		if (!lane_take(l))
			return true;
		o = l->todo;
		l->todo = o->next; /* an order that has run may be put again */
		o->run(l, o);
		*busy = true;
	}
	return false;
}

/* ---- Completions ---- */

static void lane_comp(struct lane *l, const struct gx_comp *comp)
{
	struct req *r = (struct req *)(uintptr_t)comp->user;
	struct comm *c = r->comm;
	int status = comp->status;
	uint64_t len = comp->len;

	if (--c->nr_posted)
		lane_count(l, c, -1);
	if (status && c->is_send && c->peer_gone && lane_reached(r)) {
		status = 0; /* the peer had it, and said so before its connection ended */
		len = r->len;
	} else if (status && c->peer_gone) {
		status = -EPIPE;
	}
	lane_req_end(r, status, len);
	if (c->is_closing && !c->nr_posted)
		lane_bury(c);
}

static bool lane_comps(struct lane *l)
{
	struct gx_comp comps[LANE_COMPS];
	bool busy = false;

	for (unsigned round = 0; round < LANE_ROUNDS; round++) {
		unsigned n = gx_poll(l->queue, comps, LANE_COMPS);

		for (unsigned i = 0; i < n; i++)
			if (comps[i].kind ==
			    GX_COMP_DONE) /* peers cannot put: no region is shared */
				lane_comp(l, &comps[i]);
		busy |= n > 0;
		if (n < LANE_COMPS)
			break;
	}
	return busy;
}

/* Orders first: word that the peer has closed a comm comes before the end of its connection. */
bool lane_poll(void *lane, uint64_t now_ns)
{
	struct lane *l = lane;
	bool busy = false;

	(void)now_ns;
	if (plug.stopped)
		return false;
	if (lane_orders(l, &busy))
		busy |= lane_comps(l);
	return lane_waiting(l) || busy;
}
