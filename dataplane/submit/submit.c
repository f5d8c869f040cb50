// SPDX-License-Identifier: Apache-2.0
/*
 * The core's half of queues. It posts requests of other threads' queues (queue.h) on their
 * endpoint's link, and sends them back when they have ended. It holds operations, of requests and of
 * the core's own queue, that wait for a stream of the user. A link knows nothing of a queue:
 * it gives the route of post(), which is the request, to core_report(). Runs on the polling core but
 * for the last section.
 */
#include "submit/submit.h"

#include "gx_internal/link.h"
#include "list/list.h"
#include "submit/queue.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define SUB_TICK_NS 1000000 /* between two looks at the deadlines of waiting requests */

/* An operation that waits on its core for a stream. owner: core */
struct sub_wait {
	struct sub_wait *next;
	struct gx_ep *ep;
	struct sub_req *req; /* NULL: of the core's queue */
	const struct marks *marks;
	uint32_t mark;
	bool there; /* the stream got there */
	struct gx_op op;
};

/* A core's part. owner: core */
struct submit_core {
	struct gx_queue queue;	/* of who turns the core */
	struct sub_lane *lanes; /* attached */
	struct gx_ep *pend;	/* endpoints with requests that wait for their link */
	struct lists *lists;
	struct marks *marks;		      /* of the core's queue; NULL: no GPU is open */
	struct marks *made;		      /* ctl: the same, before the core takes it */
	struct sub_wait *pool;		      /* [2 * SUBMIT_WAITS] */
	struct sub_wait *free, *head, **tail; /* waiting, in the order of posting */
	uint32_t nr_waits;		      /* of these */
	uint32_t turn;
	uint64_t tick_ns;
	bool polled; /* submit_poll() is in the loop */
};

/* ---- The end of requests ---- */

static void lane_back(struct sub_lane *l, uintptr_t item)
{
	void *p = (void *)item;
	uint32_t n = gx_ring_put(l->back, &p, 1);

	assert(n == 1);
	(void)n;
	gx_sleep_wake(&l->q->sleep);
}

/* @r ends, which a link or a stream had. Does a fence or a flush of its lane wait for it? */
static void gate_count(const struct sub_req *r)
{
	struct sub_req *gate = r->ep->pend_head;

	if (r->op.kind != GX_OP_RECV && gate && gate->counted && gate->lane == r->lane)
		gate->ahead--;
}

static void req_end(struct sub_req *r, int status, uint64_t len, uint64_t tag)
{
	struct sub_lane *l = r->lane;

	if (gx_unlikely(r->ep->pend_head != NULL) && r->state != SUB_PEND)
		gate_count(r);
	r->status = status;
	r->len = len;
	r->tag = tag;
	r->state = SUB_IDLE;
	l->nr_in--;
	if (l->closing) /* pairs with the acquire in submit_names() */
		atomic_store_explicit(&r->conn, NULL, memory_order_release);
	else
		lane_back(l, (uintptr_t)r);
}

/* End a request that no link has taken. */
static void req_fail(struct sub_req *r, int status)
{
	if (core_op_comps(&r->op) > 1 && !r->lane->closing)
		lane_back(r->lane, (uintptr_t)r | SUB_TAG);
	gx_stat_add(&r->lane->core->loop.stats, GX_STAT_MSGS_FAILED, 1);
	req_end(r, status, 0, 0);
}

/* A link completes an operation whose route is a request. */
static void req_comp(struct gx_route *route, const struct gx_comp *comp)
{
	struct sub_req *r = GX_CONTAINER_OF(route, struct sub_req, route);

	if (comp->kind != GX_COMP_LOCAL)
		req_end(r, comp->status, comp->len, comp->tag);
	else if (!r->lane->closing)
		lane_back(r->lane, (uintptr_t)r | SUB_TAG);
}

/* ---- Waiting for a stream ---- */

/* One whose link has no room waits as long as its peer stands still. So the second half of the places
 * is for endpoints that have none. */
static bool wait_room(const struct submit_core *s, const struct gx_ep *ep)
{
	return s->free && (s->nr_waits < SUBMIT_WAITS || !ep->nr_waits);
}

static int wait_add(struct submit_core *s, struct gx_ep *ep, const struct gx_op *op,
		    struct sub_req *req, const struct marks *marks, uint32_t mark)
{
	struct sub_wait *w = s->free;

	if (!wait_room(s, ep))
		return -EAGAIN;
	s->free = w->next;
	s->nr_waits++;
	ep->nr_waits++;
	*w = (struct sub_wait){.ep = ep, .req = req, .marks = marks, .mark = mark, .op = *op};
	*s->tail = w;
	s->tail = &w->next;
	return 0;
}

/* Remove *@at from the list. */
static void wait_remove(struct submit_core *s, struct sub_wait **at)
{
	struct sub_wait *w = *at;

	*at = w->next;
	if (!w->next)
		s->tail = at;
	w->next = s->free;
	s->free = w;
	s->nr_waits--;
	w->ep->nr_waits--;
	if (w->req)
		return; /* the thread gives the mark back */
	w->ep->core->comps_due -= core_op_comps(&w->op);
	if (!w->there)
		mark_put(s->marks, w->mark);
}

static void wait_fail(struct submit_core *s, struct sub_wait **at, int status)
{
	struct sub_wait *w = *at;
	const struct gx_op *op = &w->op;

	wait_remove(s, at);
	if (w->req)
		req_fail(w->req, status);
	else
		core_report(&(struct core_end){.ep = w->ep,
					       .op = op->kind,
					       .status = status,
					       .flags = core_op_comps(op) > 1 ? GX_OP_LOCAL : 0,
					       .user = op->user,
					       .tag = op->tag});
}

/* The stream got there: post the operation on its link. If the link has no room, later operations
 * of the endpoint wait too, so that none overtakes this one. */
static bool wait_post(struct submit_core *s, struct sub_wait **at)
{
	struct sub_wait *w = *at;
	struct gx_ep *ep = w->ep;
	int ret;

	if (ep->stuck_turn == s->turn)
		return false;
	if (w->req)
		w->req->state = SUB_POSTED;
	ret = ep->ops->post(ep, &w->op, w->req ? &w->req->route : NULL);
	if (!ret) {
		wait_remove(s, at);
		ep->ops->kick(ep);
		return true;
	}
	if (w->req)
		w->req->state = SUB_WAIT;
	if (ret == -EAGAIN)
		ep->stuck_turn = s->turn;
	else
		wait_fail(s, at, ret);
	return ret != -EAGAIN;
}

static bool waits_run(struct submit_core *s, uint64_t now_ns)
{
	struct sub_wait **at = &s->head;
	bool worked = false;

	while (*at) {
		struct sub_wait *w = *at;

		if (!w->there && mark_there(w->marks, w->mark)) {
			w->there = true;
			if (!w->req)
				mark_put(s->marks, w->mark);
		}
		if (w->op.deadline_ns && w->op.deadline_ns <= now_ns)
			wait_fail(s, at, -ETIMEDOUT);
		else if (w->there)
			wait_post(s, at);
		if (*at == w)
			at = &w->next;
		else
			worked = true;
	}
	return worked;
}

static bool submit_poll(void *arg, uint64_t now_ns);

/* Awake while a lane is attached, as its requests come without a call. */
static bool submit_asleep(const void *arg)
{
	const struct submit_core *s = ((const struct gx_core *)arg)->submit;

	return !s->lanes && !s->pend && !s->head && lists_idle(s->lists);
}

/* Requests that lie in rings. Lists and requests without room wait for ends of others, or for the
 * tick; streams write to memory alone. */
static int submit_look(void *arg, struct gx_look *look)
{
	const struct gx_core *core = arg;
	const struct submit_core *s = core->submit;

	if (s->head)
		return 1;
	if (core->notes.sink && !gx_ring_empty(core->notes.sink->to_core))
		return 1;
	for (const struct sub_lane *l = s->lanes; l; l = l->next)
		if (!gx_ring_empty(l->out))
			return 1;
	if (s->pend || !lists_idle(s->lists))
		look->until_ns = GX_MIN(look->until_ns, look->now_ns + SUB_TICK_NS);
	return 0;
}

static int submit_on(struct gx_core *core)
{
	struct submit_core *s = core->submit;
	int ret = 0;

	if (!s->polled)
		ret = gx_loop_add(&core->loop, &(struct gx_poller){"submit", submit_poll, core,
								   submit_asleep, submit_look});
	s->polled = !ret;
	return ret;
}

int submit_stream(struct gx_ep *ep, const struct gx_op *op)
{
	struct gx_core *core = ep->core;
	struct submit_core *s = core->submit;
	uint32_t mark;
	int ret;

	if (ep->failed)
		return -ENOTCONN;
	if (!s->marks)
		return gx_fail(-ENODEV, "gx_op.stream: no GPU is open here: allocate or register "
					"memory of one first");
	if (!wait_room(s, ep) || !core_post_room(core, ep->nr_waits) || submit_on(core))
		return -EAGAIN;
	ret = mark_get(s->marks, op, &mark);
	if (ret)
		return ret;
	core->comps_due += core_op_comps(op);
	return wait_add(s, ep, op, NULL, s->marks, mark);
}

int submit_run(struct gx_ep *ep, const struct gx_op *op)
{
	struct gx_core *core = ep->core;
	struct gx_op mine = *op;
	int ret;

	if (sub_is_gate(op))
		return gx_fail(-EINVAL,
			       "FENCE and FLUSH are for queues of gx_queue_open(): who turns the "
			       "core takes the completions of its queue itself");
	if (ep->failed)
		return -ENOTCONN;
	if (!core_post_room(core, ep->list_runs) || submit_on(core))
		return -EAGAIN;
	ret = list_take(core->gx, &core->submit->queue.lists, op, &mine.list);
	if (ret)
		return ret;
	mine.nr_segs = 0;
	ret = lists_begin(core->submit->lists, ep, &mine, NULL);
	if (ret)
		list_put(mine.list);
	return ret;
}

int submit_cancel(struct gx_ep *ep, uint64_t user)
{
	struct submit_core *s = ep->core->submit;
	struct sub_wait **at = &s->head;
	int n = lists_cancel(s->lists, ep, user, NULL);

	while (*at) {
		struct sub_wait *w = *at;

		if (w->ep != ep || w->req || w->op.user != user) {
			at = &w->next;
			continue;
		}
		wait_fail(s, at, -ECANCELED);
		n++;
	}
	return n;
}

/* ---- Requests ---- */

static void pend_add(struct submit_core *s, struct sub_req *r)
{
	struct gx_ep *ep = r->ep;

	r->state = SUB_PEND;
	r->next = NULL;
	if (ep->pend_head) {
		ep->pend_tail->next = r;
	} else {
		ep->pend_head = r;
		ep->pend_next = s->pend;
		s->pend = ep;
	}
	ep->pend_tail = r;
}

/* An endpoint that loses its last request stays in the list until pend_run() or pend_forget(). */
static void pend_remove(struct gx_ep *ep, struct sub_req *r)
{
	struct sub_req **at = &ep->pend_head, *before = NULL;

	while (*at != r) {
		before = *at;
		at = &before->next;
	}
	*at = r->next;
	if (ep->pend_tail == r)
		ep->pend_tail = before;
}

/* Take endpoints without requests out of the list. */
static void pend_forget(struct submit_core *s)
{
	struct gx_ep **at = &s->pend;

	while (*at) {
		if ((*at)->pend_head)
			at = &(*at)->pend_next;
		else
			*at = (*at)->pend_next;
	}
}

static bool req_is_run(const struct sub_req *r)
{
	return r->op.list || r->op.flags & GX_OP_NOTE;
}

/* @r is the first that waits on its endpoint, so no later one begins there. Is an operation of its
 * queue under way there? Receives do not count: a peer may never send. */
static bool gate_is_shut(struct sub_req *r)
{
	const struct sub_lane *l = r->lane;

	if (r->counted)
		return r->ahead;
	r->ahead = 0;
	for (uint32_t i = 0, left = l->nr_in - 1; i < l->q->depth && left; i++) {
		const struct sub_req *other = &l->reqs[i];

		/* The rest of an idle one is the thread's, which may be writing it. */
		if (other == r || other->state == SUB_IDLE)
			continue;
		left--;
		r->ahead += other->state != SUB_PEND && other->ep == r->ep &&
			    other->op.kind != GX_OP_RECV;
	}
	r->counted = true;
	return r->ahead;
}

/* 0: the link, or the list of operations that wait for a stream, has it. It may have completed
 * already. */
static int req_post(struct submit_core *s, struct sub_req *r)
{
	struct gx_ep *ep = r->ep;

	if (ep->failed)
		return -ENOTCONN;
	if (gx_unlikely(sub_is_gate(&r->op))) {
		if (gate_is_shut(r))
			return -EAGAIN;
		r->op.flags &= ~GX_OP_FENCE; /* the link may have no room: do not look again */
		r->counted = false;
		if (r->op.kind == GX_OP_FLUSH) {
			req_end(r, 0, 0, 0);
			return 0;
		}
	}
	if (r->mark != SUB_NO_MARK) {
		r->state = SUB_WAIT;
		return wait_add(s, ep, &r->op, r, r->lane->q->marks, r->mark);
	}
	r->state = SUB_POSTED;
	if (gx_unlikely(req_is_run(r)))
		return lists_begin(s->lists, ep, &r->op, &r->route);
	return ep->ops->post(ep, &r->op, &r->route);
}

/* Return: the endpoint to kick, if its link took the request; else NULL. After that the request may
 * belong to the thread again. */
static struct gx_ep *req_start(struct submit_core *s, struct sub_req *r)
{
	struct gx_ep *ep = r->mark == SUB_NO_MARK ? r->ep : NULL;
	int ret;

	r->lane->nr_in++;
	r->route.comp = req_comp;
	r->counted = false;
	if (r->ep->pend_head) { /* not before earlier requests of the endpoint */
		pend_add(s, r);
		return NULL;
	}
	ret = req_post(s, r);
	if (ret == -EAGAIN)
		pend_add(s, r);
	else if (ret)
		req_fail(r, ret);
	return ret ? NULL : ep;
}

static struct sub_wait **wait_of(struct submit_core *s, const struct sub_req *r)
{
	struct sub_wait **at = &s->head;

	while ((*at)->req != r)
		at = &(*at)->next;
	return at;
}

static void req_cancel(struct submit_core *s, struct sub_req *r)
{
	switch (r->state) {
	case SUB_PEND:
		pend_remove(r->ep, r);
		pend_forget(s);
		req_fail(r, -ECANCELED);
		break;
	case SUB_WAIT:
		wait_fail(s, wait_of(s, r), -ECANCELED);
		break;
	case SUB_POSTED:
		if (req_is_run(r))
			lists_cancel(s->lists, r->ep, r->op.user, &r->route);
		else
			r->ep->ops->cancel(r->ep, r->op.user, &r->route);
		break;
	}
}

/* Requests come from another CPU's cache: fetch all of them before the first is used. */
static void reqs_prefetch(void *const items[], uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		const char *r = (const char *)((uintptr_t)items[i] & ~SUB_TAG);

		__builtin_prefetch(r, 1);
		__builtin_prefetch(r + GX_CACHE_LINE);
		__builtin_prefetch(r + 2 * GX_CACHE_LINE);
	}
}

static bool lane_take(struct submit_core *s, struct sub_lane *l)
{
	struct gx_ep *kick = NULL, *ep;
	void *items[SUB_BURST];
	uint32_t n;

	if (gx_ring_empty(l->out))
		return false;
	n = gx_ring_get(l->out, items, SUB_BURST);
	reqs_prefetch(items, n);
	for (uint32_t i = 0; i < n; i++) {
		struct sub_req *r = (struct sub_req *)((uintptr_t)items[i] & ~SUB_TAG);

		if ((uintptr_t)items[i] & SUB_TAG) {
			req_cancel(s, r);
			continue;
		}
		ep = req_start(s, r);
		if (ep && kick && kick != ep)
			kick->ops->kick(kick);
		if (ep)
			kick = ep;
	}
	if (kick)
		kick->ops->kick(kick);
	return true;
}

static bool pend_run_ep(struct submit_core *s, struct gx_ep *ep)
{
	struct sub_req *r;
	bool worked = false;

	while ((r = ep->pend_head)) {
		struct sub_req *next = r->next;
		int ret = req_post(s, r);

		if (ret == -EAGAIN) {
			r->state = SUB_PEND;
			break;
		}
		ep->pend_head = next;
		if (ret)
			req_fail(r, ret);
		worked = true;
	}
	if (worked)
		ep->ops->kick(ep);
	return worked;
}

static bool pend_expire_ep(struct gx_ep *ep, uint64_t now_ns)
{
	struct sub_req *r, *next;
	bool worked = false;

	for (r = ep->pend_head; r; r = next) {
		next = r->next;
		if (!r->op.deadline_ns || r->op.deadline_ns > now_ns)
			continue;
		pend_remove(ep, r);
		req_fail(r, -ETIMEDOUT);
		worked = true;
	}
	return worked;
}

static bool pend_run(struct submit_core *s, uint64_t now_ns)
{
	bool tick = now_ns >= s->tick_ns, worked = false;

	if (tick)
		s->tick_ns = now_ns + SUB_TICK_NS;
	for (struct gx_ep *ep = s->pend; ep; ep = ep->pend_next) {
		worked |= pend_run_ep(s, ep);
		if (tick)
			worked |= pend_expire_ep(ep, now_ns);
	}
	pend_forget(s);
	return worked;
}

void submit_ep_fail(struct gx_ep *ep, int err)
{
	struct submit_core *s = ep->core->submit;
	struct sub_wait **at = &s->head;
	struct sub_req *r;

	err = err ? err : -ECONNRESET;
	lists_ep_fail(s->lists, ep, err);
	while (*at) {
		struct sub_wait *w = *at;

		if (w->ep == ep)
			wait_fail(s, at, err);
		else
			at = &w->next;
	}
	while ((r = ep->pend_head)) {
		ep->pend_head = r->next;
		req_fail(r, err);
	}
	pend_forget(s);
}

/* ---- Lanes come and go ---- */

void submit_attach(struct gx_call *call)
{
	struct sub_lane *l = GX_CONTAINER_OF(call, struct sub_lane, attach);
	struct submit_core *s = l->core->submit;
	int ret = submit_on(l->core);

	assert(!ret); /* gx_core_poller() leaves a place */
	(void)ret;
	l->next = s->lanes;
	s->lanes = l;
	if (l->q->notify)
		core_sink_begin(l->core, &l->sink);
}

/* The queue's thread uses the lane no more, so the core owns all requests. */
void submit_detach(struct gx_call *call)
{
	struct sub_lane *l = GX_CONTAINER_OF(call, struct sub_lane, detach);
	void *item;

	l->closing = true;
	if (l->q->notify)
		core_sink_end(l->core);
	while (gx_ring_get(l->out, &item, 1))
		; /* drop requests that were not started */
	for (uint32_t i = 0; i < l->q->depth; i++) {
		struct sub_req *r = &l->reqs[i];

		if (r->state != SUB_IDLE)
			req_cancel(l->core->submit, r);
		else
			atomic_store_explicit(&r->conn, NULL, memory_order_release);
	}
}

/* Take requests from each lane. A closing lane leaves when the core has none of its requests. */
static bool lanes_run(struct submit_core *s)
{
	struct sub_lane **at = &s->lanes, *l;
	bool worked = false;

	while ((l = *at)) {
		worked |= lane_take(s, l);
		if (!l->closing || l->nr_in) {
			at = &l->next;
			continue;
		}
		*at = l->next;
		/* The last touch. Pairs with the acquire in lane_ended(). */
		atomic_store_explicit(&l->detached, true, memory_order_release);
	}
	return worked;
}

static bool submit_poll(void *arg, uint64_t now_ns)
{
	struct gx_core *core = arg;
	struct submit_core *s = core->submit;
	bool worked = lanes_run(s);

	if (gx_unlikely(core->notes.sink != NULL))
		worked |= core_sink_turn(core);
	s->turn++;
	if (s->pend)
		worked |= pend_run(s, now_ns);
	if (s->head)
		worked |= waits_run(s, now_ns);
	if (!lists_idle(s->lists))
		worked |= lists_run(s->lists);
	return worked;
}

/* Post the requests that lie in rings first. The links come after this in core_drop(), and end
 * those with dead memory. */
static void submit_drop(void *submit, struct drop *d)
{
	struct submit_core *s = submit;
	struct sub_wait **at = &s->head;

	if (d->parts)
		return;
	for (struct sub_lane *l = s->lanes; l; l = l->next)
		for (uint32_t n = 0; n < SUB_PER_REQUEST * l->q->depth && lane_take(s, l); n++)
			;
	lists_drop(s->lists, d);
	while (*at) {
		struct sub_wait *w = *at;

		if (mem_is_dead(w->op.mem))
			wait_fail(s, at, -ECANCELED);
		else
			at = &w->next;
	}
	for (struct gx_ep *ep = s->pend; ep; ep = ep->pend_next)
		for (struct sub_req *r = ep->pend_head, *next; r; r = next) {
			next = r->next;
			if (!mem_is_dead(r->op.mem) && !list_is_dead(r->op.list, 0, d))
				continue;
			pend_remove(ep, r);
			req_fail(r, -ECANCELED);
		}
	pend_forget(s);
}

GX_EXPORT struct gx_queue *gx_core_queue(struct gx_core *core)
{
	return &core->submit->queue;
}

/* ---- Control path: a core opened, closed ---- */

int submit_core_open(struct gx_core *core)
{
	struct submit_core *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->tail = &s->head;
	s->turn = 1; /* endpoints begin with stuck_turn 0 */
	s->queue.core = core;
	core->submit = s;
	if (lists_open(core, &s->lists))
		return -ENOMEM;
	return core_dropper_add(core, submit_drop, s);
}

void submit_core_close(struct gx_core *core)
{
	if (!core->submit)
		return;
	marks_end(core->submit->made, core->gx->opts.gpu->timeout_ns);
	lists_close(core->submit->lists);
	list_pool_end(&core->submit->queue.lists);
	free(core->submit->pool);
	free(core->submit);
	core->submit = NULL;
}

int submit_gpu(struct gx_core *core, struct gx_gpu *gpu)
{
	struct submit_core *s = core->submit;

	if (s->made)
		return 0;
	s->pool = calloc(2 * SUBMIT_WAITS, sizeof(*s->pool));
	return s->pool ? marks_open(gpu, &s->made) : -ENOMEM;
}

void submit_take(struct gx_core *core, struct gx_gpu *gpu)
{
	struct submit_core *s = core->submit;

	for (unsigned i = 0; i < 2 * SUBMIT_WAITS && !s->marks; i++) {
		s->pool[i].next = s->free;
		s->free = &s->pool[i];
	}
	s->marks = s->made;
	if (s->marks->gpu[0] != gpu)
		s->marks->gpu[s->marks->nr_gpus++] = gpu;
}
