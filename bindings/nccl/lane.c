/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests on a core of gx. The progress threads put requests into the core's inbox; the core posts
 * them as sends and receives with exact tags, and sets their flags when they complete.
 *
 * gx has a bounded number of operations on an endpoint, and a request that waits for the peer holds
 * one. So that no comm of an endpoint waits for another one for ever, the first request of each
 * comm is always posted, and only a part of the room is for further ones. A core as a whole takes
 * 4,094 operations (core_post_room() of gx), and nothing here bounds what all endpoints of a core
 * hold together: some 500 comms on one core, each with 8 receives that wait, leave no room for
 * sends.
 *
 * lane_put() and lane_purge(): any thread. All others: the core, in its turn. They neither allocate
 * nor call the system.
 */
#include "plug.h"

#include <errno.h>
#include <time.h>

#define LANE_EXTRA_RECVS  96  /* of 256 receives of an endpoint; the others are first ones */
#define LANE_EXTRA_SENDS  384 /* of 1,024 operations */
#define LANE_COMPS	  64  /* completions taken at once */
#define LANE_ROUNDS	  4   /* so often in a turn */
#define LANE_PURGE_NAP_NS 20000

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
	r->len = len;
	if (r->reg) /* pairs with the acquire in reg_drop() */
		atomic_fetch_sub_explicit(&r->reg->nr_out, 1, memory_order_release);
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

static bool lane_is_lost(const struct req *r)
{
	return r->comm->peer_gone && !lane_reached(r);
}

/* ---- Waiting ---- */

static void lane_wait_push(struct lane *l, struct comm *c, struct req *r)
{
	r->place = REQ_WAITING;
	r->next = NULL;
	*c->wait_end = r;
	c->wait_end = &r->next;
	if (c->is_waiting)
		return;
	c->is_waiting = true;
	c->wait_next = l->waiting;
	l->waiting = c;
}

/* End waiting requests of @c: those with @reg, or those that are lost, or all. */
static void lane_wait_end(struct comm *c, const struct reg *reg, int status)
{
	struct req **at = &c->wait_head;

	while (*at) {
		struct req *r = *at;

		if (reg ? r->reg != reg : !c->is_closing && !lane_is_lost(r)) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		lane_req_end(r, status, 0);
	}
	c->wait_end = at;
}

static void lane_unlist(struct lane *l, struct comm *c)
{
	struct comm **at = &l->waiting;

	if (!c->is_waiting)
		return;
	while (*at != c)
		at = &(*at)->wait_next;
	*at = c->wait_next;
	c->is_waiting = false;
}

/* ---- Posting ---- */

static bool lane_has_room(const struct comm *c)
{
	unsigned max = c->is_send ? LANE_EXTRA_SENDS : LANE_EXTRA_RECVS;

	return !c->nr_posted || c->path->extra[c->is_send] < max;
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
	op.tag = (uint64_t)c->number << 32 | r->seq;
	return gx_post(c->path->ep, &op, 1);
}

/* Post what waits, in order. Return: was there something to do? */
static bool lane_try(struct comm *c)
{
	bool busy = false;

	while (c->wait_head && lane_has_room(c)) {
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
			c->path->extra[c->is_send]++;
	}
	return busy;
}

static bool lane_waiting(struct lane *l)
{
	struct comm **at = &l->waiting;
	bool busy = false;

	while (*at) {
		struct comm *c = *at;

		busy |= lane_try(c);
		if (c->wait_head) {
			at = &c->wait_next;
			continue;
		}
		*at = c->wait_next;
		c->is_waiting = false;
	}
	return busy;
}

/* ---- Orders ---- */

void lane_req(struct lane *l, struct order *o)
{
	struct req *r = FIELD_OF(o, struct req, order);

	if (r->comm->is_closing)
		lane_req_end(r, -ECANCELED, 0);
	else if (lane_is_lost(r))
		lane_req_end(r, -EPIPE, 0);
	else
		lane_wait_push(l, r->comm, r);
}

/* Where the connection has ended, gx ends the operations itself. */
static void lane_cancel(struct comm *c, bool all)
{
	if (!gx_conn_ep(c->peer->conn, 0))
		return;
	for (unsigned i = 0; i < NCCL_REQS_MAX; i++) {
		struct req *r = &c->req[i];

		if (r->place == REQ_POSTED && (all || !lane_reached(r)))
			gx_cancel(c->path->ep, (uintptr_t)r);
	}
}

void lane_close(struct lane *l, struct order *o)
{
	struct comm *c = FIELD_OF(o, struct comm, closing);

	c->is_closing = true;
	lane_wait_end(c, NULL, -ECANCELED);
	lane_unlist(l, c);
	lane_cancel(c, true);
	if (!c->nr_posted)
		lane_bury(c);
}

void lane_end(struct lane *l, struct order *o)
{
	struct comm *c = FIELD_OF(o, struct comm, ending);

	(void)l;
	c->peer_gone = true;
	lane_wait_end(c, NULL, -EPIPE);
	lane_cancel(c, false);
}

/* A thread waits for it, on whose stack it is. */
struct purge {
	struct order order;
	struct reg *reg;
	_Atomic uint32_t *nr_left;
};

static void lane_purge_run(struct lane *l, struct order *o)
{
	struct purge *p = FIELD_OF(o, struct purge, order);

	for (struct comm *c = l->waiting; c; c = c->wait_next)
		lane_wait_end(c, p->reg, -ECANCELED);
	/* Pairs with the acquire in lane_purge(): @p may be gone from here on. */
	atomic_fetch_sub_explicit(p->nr_left, 1, memory_order_release);
}

void lane_purge(struct reg *reg)
{
	_Atomic uint32_t nr_left = plug.nr_lanes;
	struct purge purge[LANES_MAX];

	for (unsigned i = 0; i < plug.nr_lanes; i++) {
		purge[i] = (struct purge){{NULL, lane_purge_run}, reg, &nr_left};
		lane_put(&plug.lane[i], &purge[i].order);
	}
	while (atomic_load_explicit(&nr_left, memory_order_acquire))
		nanosleep(&(struct timespec){.tv_nsec = LANE_PURGE_NAP_NS}, NULL);
}

/* A stack comes out newest first. At most the requests of all comms, and two orders of each. */
static bool lane_orders(struct lane *l)
{
	struct order *o, *list = NULL;

	if (!atomic_load_explicit(&l->inbox, memory_order_relaxed))
		return false;
	/* Pairs with the release in lane_put(). */
	o = atomic_exchange_explicit(&l->inbox, NULL, memory_order_acquire);
	while (o) {
		struct order *next = o->next;

		o->next = list;
		list = o;
		o = next;
	}
	while (list) {
		o = list;
		list = o->next; /* an order that has run may be put again */
		o->run(l, o);
	}
	return true;
}

/* ---- Completions ---- */

static void lane_comp(const struct gx_comp *comp)
{
	struct req *r = (struct req *)(uintptr_t)comp->user;
	struct comm *c = r->comm;
	int status = comp->status;
	uint64_t len = comp->len;

	if (--c->nr_posted)
		c->path->extra[c->is_send]--;
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
		unsigned n = gx_poll(l->core, comps, LANE_COMPS);

		for (unsigned i = 0; i < n; i++)
			if (comps[i].kind ==
			    GX_COMP_DONE) /* peers cannot put: no region is shared */
				lane_comp(&comps[i]);
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
	bool busy;

	(void)now_ns;
	if (plug.stopped)
		return false;
	busy = lane_orders(l);
	busy |= lane_comps(l);
	return lane_waiting(l) || busy;
}
