// SPDX-License-Identifier: Apache-2.0
/*
 * Around gx_post(): posting from threads that own no core (gx_submit...), operations that wait for
 * a stream of the user's, and messages cut over the lanes of a connection.
 *
 * A queue (struct gx_submit) has a lane to each core: a ring there, a ring back, and the records
 * that travel between. A record belongs to the queue's thread until it is in the ring there, to the
 * core until it is in the ring back; both rings hold all that can ever be in them, so that neither
 * side ever finds one full. Links know of it only that core_comp() gets the route that post got:
 * the record. Messages that are cut are put together again on the queue's thread, so that no core
 * waits for another. Functions say in their section which thread they run on.
 */
#include "submit/submit.h"

#include "gx_internal/link.h"
#include "gx_internal/ring.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SUB_DEPTH      512 /* default of gx_submit_opts.depth */
#define SUB_DEPTH_MIN  8
#define SUB_DEPTH_MAX  8192
#define SUB_BURST      32      /* records moved at once */
#define SUB_TICK_NS    1000000 /* between looks at deadlines of records that wait */
#define SUB_ASK_TRIES  1000    /* a core's inbox that is full, 1 ms apart */
#define SUB_NO_MARK    UINT32_MAX
#define SUB_TAG	       ((uintptr_t)1) /* in a ring there: cancel it; in a ring back: LOCAL */
/* A cancellation of a record, the record again, and its cancellation may be on the way at once. */
#define SUB_PER_RECORD 4

/* Flags that streams write when they get there. owner: the posting thread; a core reads held ones.
 */
struct marks {
	uint32_t *flags; /* [SUBMIT_WAITS], memory of gpu[0] that every GPU can write */
	unsigned rover, nr_gpus;
	struct gx_gpu *gpu[GX_GPUS_MAX];
	struct {
		uint64_t due_ns;
		uint32_t value; /* the flag has it: free again, unless held */
		bool held;
	} mark[SUBMIT_WAITS];
};

/* An operation that waits for a stream on its core. owner: core */
struct sub_wait {
	struct sub_wait *next;
	struct gx_ep *ep;
	struct sub_rec *rec; /* NULL: gx_post() took it */
	const struct marks *marks;
	uint32_t mark;
	bool there; /* the stream is */
	struct gx_op op;
};

/* A core's part. owner: core */
struct submit_core {
	struct sub_lane *lanes;		      /* attached */
	struct gx_ep *pend;		      /* endpoints with records that wait for their link */
	struct marks *marks;		      /* of gx_post(); NULL: no GPU is open */
	struct sub_wait *pool;		      /* [SUBMIT_WAITS] */
	struct sub_wait *free, *head, **tail; /* waiting, in the order of posting */
	uint32_t turn;
	uint64_t tick_ns;
	bool polled; /* the loop has our poller */
};

/* Where a record is, as its core sees it. */
enum rec_state { REC_IDLE, REC_PEND, REC_WAIT, REC_POSTED };

struct sub_rec {
	/* written by the core */
	alignas(GX_CACHE_LINE) struct sub_lane *lane; /* frozen */
	struct sub_rec *next;			      /* in ep->pend */
	uint64_t len, tag;
	int status;
	uint8_t state; /* enum rec_state */

	/* written by the thread while it is free */
	alignas(GX_CACHE_LINE) struct gx_op op;
	struct gx_ep *ep;
	uint32_t mark;		      /* in the queue's marks; SUB_NO_MARK */
	bool busy;		      /* thread: posted, and not come back */
	bool silent, cancelled;	      /* thread */
	struct sub_msg *msg;	      /* thread: what it is a part of; NULL: nothing */
	struct gx_conn *_Atomic conn; /* of ep, until its completion is taken; ctl reads it */
};

/* A message cut over lanes. owner: the queue's thread */
struct sub_msg {
	struct sub_msg *next; /* free ones */
	struct gx_op op;
	struct gx_ep *ep;
	uint32_t mark;
	unsigned left, locals; /* parts to come back; their LOCALs to come */
	bool imm;	       /* the immediate is still to be sent */
	bool cancelled;
	int err; /* of the first part that failed */
};

/* A queue's way to one core. */
struct sub_lane {
	struct gx_submit *q;
	struct gx_core *core;
	struct gx_ring *out, *back; /* records, tagged with SUB_TAG */
	struct sub_rec *recs;	    /* [q->depth] */

	/* owner: the queue's thread */
	struct sub_rec **free; /* stack */
	uint32_t nr_free;

	/* owner: core */
	alignas(GX_CACHE_LINE) struct sub_lane *next; /* in submit_core.lanes */
	uint32_t nr_in;				      /* records that are not REC_IDLE */
	bool closing;

	struct gx_call attach, detach; /* ctl -> core */
	bool want_attach, want_detach; /* ctl: the core's inbox was full */
	_Atomic bool detached;	       /* core: its last touch */
};

/* owner: its thread, but for what says otherwise */
struct gx_submit {
	struct gx *gx;
	struct gx_submit *next; /* ctl: in gx->submits */
	bool closing;		/* ctl */
	uint32_t depth;		/* frozen */
	unsigned nr_lanes;	/* frozen: one for each core */
	struct sub_lane *lane[GX_CORES_MAX];
	struct marks *marks; /* NULL: no GPU was open */
	unsigned rover;	     /* lane that is polled first */
	unsigned spread;     /* lane that the next message begins with */
	struct sub_msg *msgs, *msg_free;
};

/* ---- marks: flags behind the work of a stream ---- */

static void marks_close(struct marks *m)
{
	if (!m)
		return;
	if (m->flags)
		m->gpu[0]->ops->flag_free(m->gpu[0], m->flags, SUBMIT_WAITS);
	free(m);
}

static int marks_open(struct gx_gpu *gpu, struct marks **out)
{
	struct marks *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->gpu[m->nr_gpus++] = gpu;
	m->flags = gpu->ops->flag_alloc(gpu, SUBMIT_WAITS);
	if (!m->flags) {
		free(m);
		return -ENOMEM;
	}
	*out = m;
	return 0;
}

/* Pairs with the backend's write: what the stream did before is visible. */
static bool mark_written(const struct marks *m, uint32_t i)
{
	return __atomic_load_n(&m->flags[i], __ATOMIC_ACQUIRE) == m->mark[i].value;
}

static bool mark_there(const struct marks *m, uint32_t i, uint64_t now_ns)
{
	return mark_written(m, i) && now_ns >= m->mark[i].due_ns;
}

static void mark_put(struct marks *m, uint32_t i)
{
	if (i != SUB_NO_MARK)
		m->mark[i].held = false;
}

/* No stream may still write into the flags? */
static bool marks_idle(const struct marks *m)
{
	for (uint32_t i = 0; m && i < SUBMIT_WAITS; i++)
		if (!mark_written(m, i))
			return false;
	return true;
}

/* The GPU of the operation's memory knows the stream, or another does: host memory says nothing. */
static int mark_queue(struct marks *m, const struct gx_op *op, uint32_t i, uint64_t now_ns)
{
	struct gx_gpu *first = op->mem && op->mem->gpu->device >= 0 ? op->mem->gpu : m->gpu[0];
	uint32_t value = m->mark[i].value + 1;
	int ret = first->ops->stream_mark(first, op->stream, &m->flags[i], value, now_ns,
					  &m->mark[i].due_ns);

	if (ret)
		gx_fail(ret, "gx_op.stream: %s", gx_gpu_why());
	for (unsigned k = 0; ret && k < m->nr_gpus; k++)
		if (m->gpu[k] != first)
			ret = m->gpu[k]->ops->stream_mark(m->gpu[k], op->stream, &m->flags[i],
							  value, now_ns, &m->mark[i].due_ns);
	if (!ret)
		m->mark[i].value = value;
	return ret;
}

/* Queue a flag behind what op->stream has to do. 0, -EAGAIN: all are in use, -EINVAL. */
static int mark_get(struct marks *m, const struct gx_op *op, uint64_t now_ns, uint32_t *out)
{
	for (unsigned k = 0; k < SUBMIT_WAITS; k++) {
		uint32_t i = (m->rover + k) % SUBMIT_WAITS;
		int ret;

		if (m->mark[i].held || !mark_written(m, i))
			continue;
		ret = mark_queue(m, op, i, now_ns);
		if (ret)
			return ret;
		m->rover = i + 1;
		m->mark[i].held = true;
		*out = i;
		return 0;
	}
	return -EAGAIN;
}

/* ---- core: the end of records ---- */

static unsigned op_comps(const struct gx_op *op)
{
	bool sends = op->kind == GX_OP_PUT || op->kind == GX_OP_SEND;

	return 1 + (sends && op->flags & GX_OP_LOCAL);
}

static void lane_back(struct sub_lane *l, uintptr_t item)
{
	void *p = (void *)item;
	uint32_t n = gx_ring_put(l->back, &p, 1);

	assert(n == 1);
	(void)n;
}

static void rec_end(struct sub_rec *r, int status, uint64_t len, uint64_t tag)
{
	struct sub_lane *l = r->lane;

	r->status = status;
	r->len = len;
	r->tag = tag;
	r->state = REC_IDLE;
	l->nr_in--;
	if (l->closing) /* pairs with the acquire in submit_names() */
		atomic_store_explicit(&r->conn, NULL, memory_order_release);
	else
		lane_back(l, (uintptr_t)r);
}

/* It ends before a link has taken it. */
static void rec_fail(struct sub_rec *r, int status)
{
	if (op_comps(&r->op) > 1 && !r->lane->closing)
		lane_back(r->lane, (uintptr_t)r | SUB_TAG);
	gx_stat_add(&r->lane->core->loop.stats, GX_STAT_MSGS_FAILED, 1);
	rec_end(r, status, 0, 0);
}

void submit_comp(void *route, const struct gx_comp *comp)
{
	struct sub_rec *r = route;

	if (comp->kind != GX_COMP_LOCAL)
		rec_end(r, comp->status, comp->len, comp->tag);
	else if (!r->lane->closing)
		lane_back(r->lane, (uintptr_t)r | SUB_TAG);
}

/* ---- core: waiting for a stream ---- */

static int wait_add(struct submit_core *s, struct gx_ep *ep, const struct gx_op *op,
		    struct sub_rec *rec, const struct marks *marks, uint32_t mark)
{
	struct sub_wait *w = s->free;

	if (!w)
		return -EAGAIN;
	s->free = w->next;
	*w = (struct sub_wait){.ep = ep, .rec = rec, .marks = marks, .mark = mark, .op = *op};
	*s->tail = w;
	s->tail = &w->next;
	return 0;
}

/* Take the one that *@at points to out of the list. */
static void wait_remove(struct submit_core *s, struct sub_wait **at)
{
	struct sub_wait *w = *at;

	*at = w->next;
	if (!w->next)
		s->tail = at;
	w->next = s->free;
	s->free = w;
	if (w->rec)
		return; /* its mark is the thread's to give back */
	w->ep->core->comps_due -= op_comps(&w->op);
	mark_put(s->marks, w->mark);
}

static void wait_fail(struct submit_core *s, struct sub_wait **at, int status)
{
	struct sub_wait *w = *at;
	struct gx_core *core = w->ep->core;
	struct gx_comp comp = {.op = w->op.kind, .ep = w->ep, .user = w->op.user, .tag = w->op.tag};

	wait_remove(s, at);
	if (w->rec) {
		rec_fail(w->rec, status);
		return;
	}
	if (op_comps(&w->op) > 1) {
		comp.kind = GX_COMP_LOCAL;
		core_comp(core, &comp, NULL);
	}
	comp.kind = GX_COMP_DONE;
	comp.status = status;
	gx_stat_add(&core->loop.stats, GX_STAT_MSGS_FAILED, 1);
	core_comp(core, &comp, NULL);
}

/* The stream is there: to the link. What waits behind it for the same endpoint does not overtake
 * it. */
static bool wait_post(struct submit_core *s, struct sub_wait **at)
{
	struct sub_wait *w = *at;
	struct gx_ep *ep = w->ep;
	int ret;

	if (ep->stuck_turn == s->turn)
		return false;
	if (w->rec)
		w->rec->state = REC_POSTED;
	ret = ep->ops->post(ep, &w->op, w->rec);
	if (!ret) {
		wait_remove(s, at);
		ep->ops->kick(ep);
		return true;
	}
	if (w->rec)
		w->rec->state = REC_WAIT;
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

		w->there = w->there || mark_there(w->marks, w->mark, now_ns);
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

/* A lane is attached by a call; what it brings is not. */
static bool submit_asleep(const void *arg)
{
	const struct submit_core *s = ((const struct gx_core *)arg)->submit;

	return !s->lanes && !s->pend && !s->head;
}

static int submit_on(struct gx_core *core)
{
	struct submit_core *s = core->submit;
	int ret = 0;

	if (!s->polled)
		ret = gx_loop_add(&core->loop,
				  &(struct gx_poller){"submit", submit_poll, core, submit_asleep});
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
	if (!s->free || !core_post_room(core) || submit_on(core))
		return -EAGAIN;
	ret = mark_get(s->marks, op, core->now_ns, &mark);
	if (ret)
		return ret;
	core->comps_due += op_comps(op);
	return wait_add(s, ep, op, NULL, s->marks, mark);
}

int submit_cancel(struct gx_ep *ep, uint64_t user)
{
	struct submit_core *s = ep->core->submit;
	struct sub_wait **at = &s->head;
	int n = 0;

	while (*at) {
		struct sub_wait *w = *at;

		if (w->ep != ep || w->rec || w->op.user != user) {
			at = &w->next;
			continue;
		}
		wait_fail(s, at, -ECANCELED);
		n++;
	}
	return n;
}

/* ---- core: records ---- */

static void pend_add(struct submit_core *s, struct sub_rec *r)
{
	struct gx_ep *ep = r->ep;

	r->state = REC_PEND;
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

/* The endpoint whose last one goes stays in the list until pend_run() or pend_forget(). */
static void pend_remove(struct gx_ep *ep, struct sub_rec *r)
{
	struct sub_rec **at = &ep->pend_head, *before = NULL;

	while (*at != r) {
		before = *at;
		at = &before->next;
	}
	*at = r->next;
	if (ep->pend_tail == r)
		ep->pend_tail = before;
}

/* Take endpoints without records out of the list. */
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

/* 0: the link, or the list of those who wait for a stream, has it. The completion may have come. */
static int rec_post(struct submit_core *s, struct sub_rec *r)
{
	struct gx_ep *ep = r->ep;

	if (ep->failed)
		return -ENOTCONN;
	if (r->mark != SUB_NO_MARK) {
		r->state = REC_WAIT;
		return wait_add(s, ep, &r->op, r, r->lane->q->marks, r->mark);
	}
	r->state = REC_POSTED;
	return ep->ops->post(ep, &r->op, r);
}

/* Return: the endpoint whose link has it, and wants to be kicked; NULL: none. Where it has it the
 * record may be the thread's again. */
static struct gx_ep *rec_start(struct submit_core *s, struct sub_rec *r)
{
	struct gx_ep *ep = r->mark == SUB_NO_MARK ? r->ep : NULL;
	int ret;

	r->lane->nr_in++;
	if (r->ep->pend_head) { /* not before those of the same endpoint */
		pend_add(s, r);
		return NULL;
	}
	ret = rec_post(s, r);
	if (ret == -EAGAIN)
		pend_add(s, r);
	else if (ret)
		rec_fail(r, ret);
	return ret ? NULL : ep;
}

static struct sub_wait **wait_of(struct submit_core *s, const struct sub_rec *r)
{
	struct sub_wait **at = &s->head;

	while ((*at)->rec != r)
		at = &(*at)->next;
	return at;
}

static void rec_cancel(struct submit_core *s, struct sub_rec *r)
{
	switch (r->state) {
	case REC_PEND:
		pend_remove(r->ep, r);
		pend_forget(s);
		rec_fail(r, -ECANCELED);
		break;
	case REC_WAIT:
		wait_fail(s, wait_of(s, r), -ECANCELED);
		break;
	case REC_POSTED:
		r->ep->ops->cancel(r->ep, r->op.user, r);
		break;
	}
}

/* Records come from another CPU: ask for all of them before the first is looked at. */
static void recs_prefetch(void *const items[], uint32_t n)
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
	recs_prefetch(items, n);
	for (uint32_t i = 0; i < n; i++) {
		struct sub_rec *r = (struct sub_rec *)((uintptr_t)items[i] & ~SUB_TAG);

		if ((uintptr_t)items[i] & SUB_TAG) {
			rec_cancel(s, r);
			continue;
		}
		ep = rec_start(s, r);
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
	struct sub_rec *r;
	bool worked = false;

	while ((r = ep->pend_head)) {
		struct sub_rec *next = r->next;
		int ret = rec_post(s, r);

		if (ret == -EAGAIN) {
			r->state = REC_PEND;
			break;
		}
		ep->pend_head = next;
		if (ret)
			rec_fail(r, ret);
		worked = true;
	}
	if (worked)
		ep->ops->kick(ep);
	return worked;
}

static bool pend_late_ep(struct gx_ep *ep, uint64_t now_ns)
{
	struct sub_rec *r, *next;
	bool worked = false;

	for (r = ep->pend_head; r; r = next) {
		next = r->next;
		if (!r->op.deadline_ns || r->op.deadline_ns > now_ns)
			continue;
		pend_remove(ep, r);
		rec_fail(r, -ETIMEDOUT);
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
			worked |= pend_late_ep(ep, now_ns);
	}
	pend_forget(s);
	return worked;
}

void submit_ep_fail(struct gx_ep *ep, int err)
{
	struct submit_core *s = ep->core->submit;
	struct sub_wait **at = &s->head;
	struct sub_rec *r;

	err = err ? err : -ECONNRESET;
	while (*at) {
		struct sub_wait *w = *at;

		if (w->ep == ep)
			wait_fail(s, at, err);
		else
			at = &w->next;
	}
	while ((r = ep->pend_head)) {
		ep->pend_head = r->next;
		rec_fail(r, err);
	}
	pend_forget(s);
}

/* ---- core: lanes come and go ---- */

static void call_attach(struct gx_call *call)
{
	struct sub_lane *l = GX_CONTAINER_OF(call, struct sub_lane, attach);
	struct submit_core *s = l->core->submit;
	int ret = submit_on(l->core);

	assert(!ret); /* gx_core_poller() leaves a place */
	(void)ret;
	l->next = s->lanes;
	s->lanes = l;
}

/* The queue's thread uses it no more, so that all records are ours. */
static void call_detach(struct gx_call *call)
{
	struct sub_lane *l = GX_CONTAINER_OF(call, struct sub_lane, detach);
	void *item;

	l->closing = true;
	while (gx_ring_get(l->out, &item, 1))
		; /* never started */
	for (uint32_t i = 0; i < l->q->depth; i++) {
		struct sub_rec *r = &l->recs[i];

		if (r->state != REC_IDLE)
			rec_cancel(l->core->submit, r);
		else
			atomic_store_explicit(&r->conn, NULL, memory_order_release);
	}
}

/* Lanes that close go when nothing of them is left on the core. */
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

	s->turn++;
	if (s->pend)
		worked |= pend_run(s, now_ns);
	if (s->head)
		worked |= waits_run(s, now_ns);
	return worked;
}

/* Records that lie in a ring are taken: they end as they are looked at. */
void submit_drop(struct gx_core *core)
{
	struct submit_core *s = core->submit;
	struct sub_wait **at = &s->head;

	for (struct sub_lane *l = s->lanes; l; l = l->next)
		for (uint32_t n = 0; n < SUB_PER_RECORD * l->q->depth && lane_take(s, l); n++)
			;
	while (*at) {
		struct sub_wait *w = *at;

		if (mem_is_dead(w->op.mem))
			wait_fail(s, at, -ECANCELED);
		else
			at = &w->next;
	}
	for (struct gx_ep *ep = s->pend; ep; ep = ep->pend_next)
		for (struct sub_rec *r = ep->pend_head, *next; r; r = next) {
			next = r->next;
			if (!mem_is_dead(r->op.mem))
				continue;
			pend_remove(ep, r);
			rec_fail(r, -ECANCELED);
		}
	pend_forget(s);
}

/* ---- control path: cores ---- */

int submit_core_open(struct gx_core *core)
{
	struct submit_core *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->tail = &s->head;
	s->turn = 1; /* 0 is what endpoints begin with */
	core->submit = s;
	return 0;
}

/* What streams have yet to write must not be freed; when one does not get there, it is left. */
static void marks_end(struct marks *m, uint64_t timeout_ns)
{
	uint64_t until = gx_now_ns() + timeout_ns;

	while (!marks_idle(m) && gx_now_ns() < until)
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	if (marks_idle(m))
		marks_close(m);
	else
		gx_warn("a stream of the user's does not get to where an operation waited for it; "
			"its flags are left to the process's end");
}

void submit_core_close(struct gx_core *core)
{
	if (!core->submit)
		return;
	marks_end(core->submit->marks, core->gx->opts.gpu_timeout_ns);
	free(core->submit->pool);
	free(core->submit);
	core->submit = NULL;
}

int submit_gpu(struct gx_core *core, struct gx_gpu *gpu)
{
	struct submit_core *s = core->submit;

	if (s->marks) {
		s->marks->gpu[s->marks->nr_gpus++] = gpu;
		return 0;
	}
	s->pool = calloc(SUBMIT_WAITS, sizeof(*s->pool));
	if (!s->pool)
		return -ENOMEM;
	for (unsigned i = 0; i < SUBMIT_WAITS; i++) {
		s->pool[i].next = s->free;
		s->free = &s->pool[i];
	}
	return marks_open(gpu, &s->marks);
}

/* ---- control path: queues ---- */

static void lane_close(struct sub_lane *l)
{
	if (!l)
		return;
	gx_ring_close(l->out);
	gx_ring_close(l->back);
	free(l->recs);
	free(l->free);
	free(l);
}

static int lane_recs(struct sub_lane *l, uint32_t depth)
{
	l->recs = aligned_alloc(GX_CACHE_LINE, depth * sizeof(*l->recs));
	l->free = calloc(depth, sizeof(*l->free));
	if (!l->recs || !l->free)
		return -ENOMEM;
	memset(l->recs, 0, depth * sizeof(*l->recs));
	for (uint32_t i = depth; i-- > 0;) {
		l->recs[i].lane = l;
		l->free[l->nr_free++] = &l->recs[i];
	}
	return 0;
}

static int lane_open(struct gx_submit *q, struct gx_core *core, struct sub_lane **out)
{
	struct sub_lane *l = aligned_alloc(GX_CACHE_LINE, sizeof(*l));
	int ret;

	if (!l)
		return -ENOMEM;
	memset(l, 0, sizeof(*l));
	l->q = q;
	l->core = core;
	l->attach.fn = call_attach;
	l->detach.fn = call_detach;
	l->want_attach = true;
	ret = gx_ring_open(SUB_PER_RECORD * q->depth, &l->out);
	if (!ret)
		ret = gx_ring_open(SUB_PER_RECORD * q->depth, &l->back);
	if (!ret)
		ret = lane_recs(l, q->depth);
	if (ret)
		lane_close(l);
	else
		*out = l;
	return ret;
}

static void submit_free(struct gx_submit *q)
{
	for (unsigned i = 0; i < q->nr_lanes; i++)
		lane_close(q->lane[i]);
	marks_close(q->marks);
	free(q->msgs);
	free(q);
}

static int submit_marks(struct gx_submit *q)
{
	int ret = 0;

	for (unsigned i = 0; !ret && i < GX_GPUS_MAX; i++) {
		struct gx_gpu *gpu = q->gx->gpu[i];

		if (gpu && q->marks)
			q->marks->gpu[q->marks->nr_gpus++] = gpu;
		else if (gpu)
			ret = marks_open(gpu, &q->marks);
	}
	return ret;
}

static int submit_fill(struct gx_submit *q)
{
	int ret = submit_marks(q);

	for (unsigned i = 0; !ret && i < q->gx->nr_cores; i++) {
		ret = lane_open(q, q->gx->core[i], &q->lane[i]);
		q->nr_lanes += !ret;
	}
	q->msgs = calloc(q->depth, sizeof(*q->msgs));
	if (!q->msgs)
		return -ENOMEM;
	for (uint32_t i = 0; i < q->depth; i++) {
		q->msgs[i].next = q->msg_free;
		q->msg_free = &q->msgs[i];
	}
	return ret;
}

static void lane_ask(struct sub_lane *l)
{
	if (l->want_attach)
		l->want_attach = gx_loop_call(&l->core->loop, &l->attach) != 0;
	if (l->want_detach && !l->want_attach)
		l->want_detach = gx_loop_call(&l->core->loop, &l->detach) != 0;
}

/* Control thread. 0: every core has been told of its lane. */
static int attach_run(void *arg)
{
	struct gx_submit *q = arg;
	int ret = 0;

	for (unsigned i = 0; i < q->nr_lanes; i++) {
		lane_ask(q->lane[i]);
		if (q->lane[i]->want_attach)
			ret = -EAGAIN;
	}
	return ret;
}

static int list_run(void *arg)
{
	struct gx_submit *q = arg;

	q->next = q->gx->submits;
	q->gx->submits = q;
	return attach_run(q);
}

/* Control thread. A lane that its core never heard of has nothing to end. */
static bool lane_ended(struct sub_lane *l, bool first)
{
	if (first && l->want_attach) {
		l->want_attach = false;
		atomic_store_explicit(&l->detached, true, memory_order_relaxed);
	} else if (first) {
		l->want_detach = true;
	}
	lane_ask(l);
	return atomic_load_explicit(&l->detached, memory_order_acquire);
}

/* Control thread: a step towards the end of @q. 0: it is freed. */
static int end_run(void *arg)
{
	struct gx_submit *q = arg, **at = &q->gx->submits;
	bool first = !q->closing;
	int ret = 0;

	q->closing = true;
	for (unsigned i = 0; i < q->nr_lanes; i++)
		if (!lane_ended(q->lane[i], first))
			ret = -EAGAIN;
	if (ret || !marks_idle(q->marks))
		return -EAGAIN;
	while (*at != q)
		at = &(*at)->next;
	*at = q->next;
	submit_free(q);
	return 0;
}

bool submit_end_all(struct gx *gx)
{
	struct gx_submit *q, *next;

	for (q = gx->submits; q; q = next) {
		next = q->next;
		end_run(q);
	}
	return !gx->submits;
}

bool submit_names(const struct gx *gx, const struct gx_conn *c)
{
	for (const struct gx_submit *q = gx->submits; q; q = q->next)
		for (unsigned i = 0; i < q->nr_lanes; i++)
			for (uint32_t k = 0; k < q->depth; k++)
				/* Pairs with the releases where it becomes NULL. */
				if (atomic_load_explicit(&q->lane[i]->recs[k].conn,
							 memory_order_acquire) == c)
					return true;
	return false;
}

static uint32_t depth_of(const struct gx_submit_opts *user)
{
	struct gx_submit_opts o = GX_INIT(o);
	uint32_t depth = SUB_DEPTH_MIN;

	if (user)
		memcpy(&o, user, GX_MIN(user->size, sizeof(o)));
	if (o.depth > SUB_DEPTH_MAX)
		return 0;
	while (depth < (o.depth ? o.depth : SUB_DEPTH))
		depth *= 2;
	return depth;
}

GX_EXPORT int gx_submit_open(struct gx *gx, const struct gx_submit_opts *opts,
			     struct gx_submit **out)
{
	int ret = opts ? gx_size_check(opts->size, "gx_submit_opts") : 0;
	uint32_t depth = ret ? 0 : depth_of(opts);
	struct gx_submit *q;

	if (ret)
		return ret;
	if (!depth)
		return gx_fail(-EINVAL, "a queue of %u operations: at most %d", opts->depth,
			       SUB_DEPTH_MAX);
	q = calloc(1, sizeof(*q));
	if (!q)
		return gx_fail(-ENOMEM, "no memory for a queue");
	q->gx = gx;
	q->depth = depth;
	ret = submit_fill(q);
	if (ret) {
		submit_free(q);
		return gx_fail(ret, "no memory for a queue of %u operations a core", depth);
	}
	ret = gx_uring_run_wait(gx->uring, list_run, q);
	for (unsigned i = 0; ret && i < SUB_ASK_TRIES; i++) {
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		ret = gx_uring_run_wait(gx->uring, attach_run, q);
	}
	if (ret) { /* what cores have heard of it goes with them */
		gx_uring_run_wait(gx->uring, end_run, q);
		return gx_fail(ret, "a core's inbox is full: does anybody turn it?");
	}
	*out = q;
	return 0;
}

GX_EXPORT int gx_submit_close(struct gx_submit *q)
{
	if (!q || !gx_uring_run_wait(q->gx->uring, end_run, q))
		return 0;
	return gx_fail(-EAGAIN, "cores have yet to end what is under way: turn them, and close "
				"again");
}

/* ---- the queue's thread: posting ---- */

static struct sub_rec *rec_get(struct sub_lane *l)
{
	return l->nr_free ? l->free[--l->nr_free] : NULL;
}

static void rec_put(struct sub_rec *r)
{
	r->busy = false;
	r->lane->free[r->lane->nr_free++] = r;
	/* Pairs with the acquire in submit_names(). */
	atomic_store_explicit(&r->conn, NULL, memory_order_release);
}

static void rec_fill(struct sub_rec *r, struct gx_ep *ep, const struct gx_op *op, uint32_t mark,
		     struct sub_msg *msg)
{
	r->op = *op;
	r->op.flags &= ~GX_OP_SILENT; /* it has to come back */
	r->silent = op->flags & GX_OP_SILENT;
	r->ep = ep;
	r->mark = mark;
	r->msg = msg;
	r->busy = true;
	r->cancelled = false;
	atomic_store_explicit(&r->conn, ep->conn, memory_order_relaxed);
}

static void lane_send(struct sub_lane *l, void *const items[], uint32_t n)
{
	uint32_t put = gx_ring_put(l->out, items, n);

	assert(put == n);
	(void)put;
}

static int conn_check(const struct gx_submit *q, const struct gx_conn *c)
{
	if (c->gx != q->gx)
		return gx_fail(-EINVAL, "the queue is of another context than the connection");
	if (atomic_load_explicit(&c->state, memory_order_acquire) != GX_CONN_STATE_UP)
		return gx_fail(-ENOTCONN, "the connection is not up");
	return 0;
}

/* The flag behind op->stream, where it names one. */
static int stream_get(struct gx_submit *q, const struct gx_op *op, uint32_t *mark)
{
	*mark = SUB_NO_MARK;
	if (!op->stream)
		return 0;
	if (!q->marks)
		return gx_fail(-ENODEV,
			       "gx_op.stream: no GPU was open when the queue was made: "
			       "allocate or register memory of one before gx_submit_open()");
	return mark_get(q->marks, op, gx_now_ns(), mark);
}

static int rec_make(struct gx_submit *q, struct gx_ep *ep, const struct gx_op *op, void **item)
{
	struct sub_lane *l = q->lane[ep->core->index];
	struct sub_rec *r;
	uint32_t mark;
	int ret = op_check(op);

	if (!ret && !l->nr_free)
		ret = -EAGAIN;
	if (!ret)
		ret = stream_get(q, op, &mark);
	if (ret)
		return ret;
	r = rec_get(l);
	rec_fill(r, ep, op, mark, NULL);
	*item = r;
	return 0;
}

GX_EXPORT int gx_submit(struct gx_submit *q, struct gx_ep *ep, const struct gx_op ops[], unsigned n)
{
	unsigned taken = 0;
	int ret = conn_check(q, ep->conn);

	while (!ret && taken < n) {
		void *items[SUB_BURST];
		unsigned k = 0;

		while (k < SUB_BURST && taken + k < n && !ret) {
			ret = rec_make(q, ep, &ops[taken + k], &items[k]);
			k += !ret;
		}
		lane_send(q->lane[ep->core->index], items, k);
		taken += k;
	}
	return taken || ret == -EAGAIN ? (int)taken : ret;
}

/* ---- the queue's thread: messages over lanes ---- */

/* The part of @op for lane @i of @parts: whole chunks, and what is left with the last. */
static struct gx_op part_op(const struct gx_op *op, uint32_t chunk_b, unsigned i, unsigned parts)
{
	uint64_t chunks = (op->len + chunk_b - 1) / chunk_b;
	uint64_t from = chunks * i / parts * chunk_b;
	uint64_t to = GX_MIN(chunks * (i + 1) / parts * chunk_b, op->len);
	struct gx_op part = *op;

	part.flags &= GX_OP_LOCAL;
	if (part.mem)
		part.off += from;
	else
		part.addr = (char *)part.addr + from;
	part.remote_off += from;
	part.len = to - from;
	return part;
}

static unsigned parts_of(const struct gx_conn *c, const struct gx_op *op)
{
	uint64_t chunks = (op->len + c->agreed.chunk_b - 1) / c->agreed.chunk_b;

	return GX_MIN(GX_MAX(chunks, 1), c->nr_lanes);
}

/* Is there a record on each lane that the message needs? Two lanes may share a core. */
static bool parts_room(const struct gx_submit *q, const struct gx_conn *c, unsigned parts)
{
	for (unsigned i = 0; i < parts; i++) {
		const struct gx_core *core = c->ep[(q->spread + i) % c->nr_lanes]->core;
		unsigned need = 0;

		for (unsigned k = 0; k < parts; k++)
			need += c->ep[(q->spread + k) % c->nr_lanes]->core == core;
		if (q->lane[core->index]->nr_free < need)
			return false;
	}
	return true;
}

static void msg_send(struct gx_submit *q, struct gx_conn *c, const struct gx_op *op, unsigned parts,
		     uint32_t mark)
{
	struct sub_msg *m = q->msg_free;

	q->msg_free = m->next;
	*m = (struct sub_msg){.op = *op,
			      .ep = c->ep[q->spread % c->nr_lanes],
			      .mark = mark,
			      .left = parts,
			      .locals = op_comps(op) > 1 ? parts : 0,
			      .imm = op->kind == GX_OP_PUT && op->flags & GX_OP_IMM};
	for (unsigned i = 0; i < parts; i++) {
		struct gx_ep *ep = c->ep[(q->spread + i) % c->nr_lanes];
		struct gx_op part = part_op(op, c->agreed.chunk_b, i, parts);
		struct sub_lane *l = q->lane[ep->core->index];
		struct sub_rec *r = rec_get(l);
		void *item = r;

		rec_fill(r, ep, &part, mark, m);
		lane_send(l, &item, 1);
	}
}

static int msg_make(struct gx_submit *q, struct gx_conn *c, const struct gx_op *op)
{
	struct gx_ep *ep = c->ep[q->spread % c->nr_lanes];
	int ret = op_check(op);
	unsigned parts;
	uint32_t mark;
	void *item;

	if (!ret && op->kind != GX_OP_PUT && op->kind != GX_OP_GET)
		ret = gx_fail(-EINVAL,
			      "only PUT and GET go over all lanes: a SEND and its RECV meet "
			      "on one endpoint (gx_submit())");
	if (ret)
		return ret;
	parts = parts_of(c, op);
	if (parts == 1) {
		ret = rec_make(q, ep, op, &item);
		if (!ret)
			lane_send(q->lane[ep->core->index], &item, 1);
	} else {
		ret = q->msg_free && parts_room(q, c, parts) ? stream_get(q, op, &mark) : -EAGAIN;
		if (!ret)
			msg_send(q, c, op, parts, mark);
	}
	if (!ret)
		q->spread = (q->spread + parts) % c->nr_lanes;
	return ret;
}

GX_EXPORT int gx_submit_striped(struct gx_submit *q, struct gx_conn *c, const struct gx_op ops[],
				unsigned n)
{
	unsigned taken = 0;
	int ret = conn_check(q, c);

	while (!ret && taken < n) {
		ret = msg_make(q, c, &ops[taken]);
		taken += !ret;
	}
	return taken || ret == -EAGAIN ? (int)taken : ret;
}

/* ---- the queue's thread: cancelling, completions ---- */

static void rec_ask_cancel(struct sub_rec *r)
{
	void *item = (void *)((uintptr_t)r | SUB_TAG);

	if (r->cancelled)
		return;
	r->cancelled = true;
	lane_send(r->lane, &item, 1);
}

/* Every record under way for which @msg, or else @user, is its own. Return: operations found. */
static unsigned recs_cancel(struct gx_submit *q, const struct sub_msg *msg, uint64_t user)
{
	unsigned found = 0;

	for (unsigned i = 0; i < q->nr_lanes; i++)
		for (uint32_t k = 0; k < q->depth; k++) {
			struct sub_rec *r = &q->lane[i]->recs[k];

			if (!r->busy || (msg ? r->msg != msg : r->op.user != user))
				continue;
			found += !r->msg || !r->msg->cancelled;
			if (r->msg)
				r->msg->cancelled = true;
			rec_ask_cancel(r);
		}
	return found;
}

GX_EXPORT int gx_submit_cancel(struct gx_submit *q, uint64_t user)
{
	return (int)recs_cancel(q, NULL, user);
}

static void comp_set(struct gx_comp *comp, enum gx_comp_kind kind, const struct gx_op *op,
		     struct gx_ep *ep, int status)
{
	*comp = (struct gx_comp){.kind = kind,
				 .op = op->kind,
				 .status = status,
				 .ep = ep,
				 .user = op->user,
				 .tag = op->tag};
}

/* All bytes of @m are visible: say so, by the record that told us. */
static void msg_notify(struct sub_msg *m, struct sub_rec *r)
{
	struct gx_op op = m->op;
	void *item = r;

	op.flags = GX_OP_IMM;
	op.len = 0;
	op.stream = NULL;
	m->imm = false;
	m->left = 1;
	rec_fill(r, r->ep, &op, SUB_NO_MARK, m);
	lane_send(r->lane, &item, 1);
}

/* A part is back. Return: the message is done, and @comp says so. */
static bool msg_back(struct gx_submit *q, struct sub_rec *r, struct gx_comp *comp)
{
	struct sub_msg *m = r->msg;
	bool silent = m->op.flags & GX_OP_SILENT;

	r->busy = false;
	if (r->status && !m->err) {
		m->err = r->status;
		recs_cancel(q, m, 0);
	}
	if (--m->left) {
		rec_put(r);
		return false;
	}
	if (m->imm && m->cancelled && !m->err)
		m->err = -ECANCELED;
	if (m->imm && !m->err) {
		msg_notify(m, r);
		return false;
	}
	comp_set(comp, GX_COMP_DONE, &m->op, m->ep, m->err);
	comp->len = m->err ? 0 : m->op.len;
	silent = silent && !m->err;
	if (m->mark != SUB_NO_MARK)
		mark_put(q->marks, m->mark);
	m->next = q->msg_free;
	q->msg_free = m;
	rec_put(r);
	return !silent;
}

static bool rec_done(struct gx_submit *q, struct sub_rec *r, struct gx_comp *comp)
{
	comp_set(comp, GX_COMP_DONE, &r->op, r->ep, r->status);
	comp->len = r->len;
	comp->tag = r->tag;
	if (r->mark != SUB_NO_MARK)
		mark_put(q->marks, r->mark);
	rec_put(r);
	return comp->status || !r->silent;
}

static bool rec_local(struct sub_rec *r, struct gx_comp *comp)
{
	struct sub_msg *m = r->msg;

	if (m && --m->locals)
		return false;
	if (m)
		comp_set(comp, GX_COMP_LOCAL, &m->op, m->ep, 0);
	else
		comp_set(comp, GX_COMP_LOCAL, &r->op, r->ep, 0);
	comp->len = m ? m->op.len : r->op.len;
	return true;
}

/* What came back: at most one completion. */
static bool item_back(struct gx_submit *q, uintptr_t item, struct gx_comp *comp)
{
	struct sub_rec *r = (struct sub_rec *)(item & ~SUB_TAG);

	if (item & SUB_TAG)
		return rec_local(r, comp);
	return r->msg ? msg_back(q, r, comp) : rec_done(q, r, comp);
}

static unsigned lane_poll(struct sub_lane *l, struct gx_comp comps[], unsigned n)
{
	void *items[SUB_BURST];
	unsigned got = 0;
	uint32_t nr;

	if (l->nr_free == l->q->depth)
		return 0;
	do {
		nr = gx_ring_get(l->back, items, GX_MIN(n - got, SUB_BURST));
		for (uint32_t i = 0; i < nr; i++)
			got += item_back(l->q, (uintptr_t)items[i], &comps[got]);
	} while (nr == SUB_BURST && got < n);
	return got;
}

GX_EXPORT unsigned gx_submit_poll(struct gx_submit *q, struct gx_comp comps[], unsigned n)
{
	unsigned got = 0;

	for (unsigned k = 0; k < q->nr_lanes && got < n; k++) {
		struct sub_lane *l = q->lane[q->rover];

		q->rover = q->rover + 1 < q->nr_lanes ? q->rover + 1 : 0;
		got += lane_poll(l, comps + got, n - got);
	}
	return got;
}
