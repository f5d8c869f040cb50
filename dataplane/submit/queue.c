// SPDX-License-Identifier: Apache-2.0
/*
 * Posting and cancelling: on a core's queue straight by the links, on others through rings. The
 * control thread opens and closes those, for the caller of gx_queue_open().
 */
#include "submit/queue.h"
#include "gx_internal/probe.h"

#include "gx_internal/link.h"
#include "list/list.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SUB_DEPTH     512 /* default of gx_queue_opts.depth */
#define SUB_DEPTH_MIN 8
#define SUB_DEPTH_MAX 8192
#define SUB_ASK_TRIES 1000 /* tries, 1 ms apart, while a core's inbox is full */

/* ---- What a request holds ---- */

int sub_note_take(struct gx_op *op)
{
	void *own;

	if (!(op->flags & GX_OP_NOTE) || !op->note_len)
		return 0;
	own = malloc(op->note_len);
	if (!own)
		return gx_fail(-ENOMEM, "no memory for a note");
	op->note = memcpy(own, op->note, op->note_len);
	return 0;
}

void sub_note_put(struct gx_op *op)
{
	if (op->note_len)
		free((void *)(uintptr_t)op->note);
	op->note_len = 0;
}

void sub_req_let_go(struct sub_req *r)
{
	list_put(r->op.list);
	if (!r->msg)
		sub_note_put(&r->op);
}

/* ---- Opening and closing ---- */

static void lane_close(struct sub_lane *l)
{
	if (!l)
		return;
	gx_ring_close(l->out);
	gx_ring_close(l->back);
	note_sink_close(&l->sink);
	for (uint32_t i = 0; l->reqs && i < l->q->depth; i++)
		if (l->reqs[i].busy) /* its completion was never taken */
			sub_req_let_go(&l->reqs[i]);
	free(l->reqs);
	free(l->free);
	free(l);
}

static int lane_reqs(struct sub_lane *l, uint32_t depth)
{
	l->free = calloc(depth, sizeof(*l->free));
	if (l->free) /* lane_close() reads them */
		l->reqs = aligned_alloc(GX_CACHE_LINE, depth * sizeof(*l->reqs));
	if (!l->reqs)
		return -ENOMEM;
	memset(l->reqs, 0, depth * sizeof(*l->reqs));
	for (uint32_t i = depth; i-- > 0;) {
		l->reqs[i].lane = l;
		l->free[l->nr_free++] = &l->reqs[i];
	}
	return 0;
}

static int lane_open(struct gx_queue *q, struct gx_core *core, struct sub_lane **out)
{
	struct sub_lane *l = aligned_alloc(GX_CACHE_LINE, sizeof(*l));
	int ret;

	if (!l)
		return -ENOMEM;
	memset(l, 0, sizeof(*l));
	l->q = q;
	l->core = core;
	l->attach.fn = submit_attach;
	l->detach.fn = submit_detach;
	l->want_attach = true;
	ret = gx_ring_open(SUB_PER_REQUEST * q->depth, &l->out);
	if (!ret)
		ret = gx_ring_open(SUB_PER_REQUEST * q->depth, &l->back);
	if (!ret)
		ret = lane_reqs(l, q->depth);
	if (!ret && q->notify)
		ret = note_sink_open(&l->sink, &q->sleep);
	if (ret)
		lane_close(l);
	else
		*out = l;
	return ret;
}

static void submit_free(struct gx_queue *q)
{
	for (unsigned i = 0; i < q->nr_lanes; i++)
		lane_close(q->lane[i]);
	for (uint32_t i = 0; q->msgs && i < q->depth; i++)
		sub_note_put(&q->msgs[i].op);
	marks_close(q->marks);
	list_pool_end(&q->lists);
	gx_sleep_close(&q->sleep);
	free(q->msgs);
	free(q);
}

static int submit_marks(struct gx_queue *q)
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

static int submit_fill(struct gx_queue *q)
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

/* Control thread. 0: every core knows its lane. */
static int attach_run(void *arg)
{
	struct gx_queue *q = arg;
	int ret = 0;

	for (unsigned i = 0; i < q->nr_lanes; i++) {
		lane_ask(q->lane[i]);
		if (q->lane[i]->want_attach)
			ret = -EAGAIN;
	}
	return ret;
}

/* Control thread. If the core never heard of the lane, there is nothing to end. */
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

const struct core_hist *submit_hist_next(const struct gx *gx, const struct gx_queue **q)
{
	*q = *q ? (*q)->next : gx->submits;
	return *q ? &(*q)->hist : NULL;
}

/* The counts of a queue outlive it. Its thread is out of it. */
static void hist_keep(const struct gx_queue *q)
{
	struct core_hist *to = &q->gx->ended;

	for (unsigned i = 0; i < CORE_SIZES; i++)
		sub_count(&to->size[i], q->hist.size[i]);
	for (unsigned i = 0; i < CORE_TIMES; i++)
		sub_count(&to->time[i], q->hist.time[i]);
	sub_count(&to->size_b, q->hist.size_b);
	sub_count(&to->time_ns, q->hist.time_ns);
}

/* Control thread: one step towards the end of @q. 0: @q is freed. */
static int end_run(void *arg)
{
	struct gx_queue *q = arg, **at = &q->gx->submits;
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
	hist_keep(q);
	if (q->gx->notify == q)
		q->gx->notify = NULL;
	submit_free(q);
	return 0;
}

static int leave_run(void *arg)
{
	((struct gx_queue *)arg)->left = true;
	return end_run(arg);
}

/* Cores that did not turn when a queue failed may have turned since. */
static int list_run(void *arg)
{
	struct gx_queue *q = arg;

	for (struct gx_queue *old = q->gx->submits, *next; old; old = next) {
		next = old->next;
		if (old->left)
			end_run(old);
	}
	if (q->notify && q->gx->notify)
		return -EBUSY;
	if (q->notify)
		q->gx->notify = q;
	q->next = q->gx->submits;
	q->gx->submits = q;
	return attach_run(q);
}

bool submit_end_all(struct gx *gx)
{
	struct gx_queue *q, *next;

	for (q = gx->submits; q; q = next) {
		next = q->next;
		end_run(q);
	}
	return !gx->submits;
}

bool submit_names(const struct gx *gx, const struct gx_conn *c)
{
	for (unsigned i = 0; i < c->nr_lanes; i++)
		if (!gx->closing && notes_away(c->ep[i]))
			return true;
	for (const struct gx_queue *q = gx->submits; q; q = q->next)
		for (unsigned i = 0; i < q->nr_lanes; i++)
			for (uint32_t k = 0; k < q->depth; k++)
				/* Pairs with the releases that set it to NULL. */
				if (atomic_load_explicit(&q->lane[i]->reqs[k].conn,
							 memory_order_acquire) == c)
					return true;
	return false;
}

static uint32_t depth_of(uint64_t wanted)
{
	uint32_t depth = SUB_DEPTH_MIN;

	while (depth < (wanted ? wanted : SUB_DEPTH))
		depth *= 2;
	return depth;
}

GX_EXPORT int gx_queue_open(struct gx *gx, const struct gx_queue_opts *user, struct gx_queue **out)
{
	struct gx_queue_opts opts;
	uint32_t depth;
	int ret = core_struct_take("gx_queue_opts", &opts, sizeof(opts), user);
	struct gx_queue *q;

	if (ret)
		return ret;
	if (opts.depth > SUB_DEPTH_MAX)
		return gx_fail(-EINVAL, "a queue of %llu operations: at most %d",
			       (unsigned long long)opts.depth, SUB_DEPTH_MAX);
	depth = depth_of(opts.depth);
	q = calloc(1, sizeof(*q));
	if (!q)
		return gx_fail(-ENOMEM, "no memory for a queue");
	q->gx = gx;
	q->depth = depth;
	q->notify = opts.notify;
	ret = submit_fill(q);
	if (ret) {
		submit_free(q);
		return gx_fail(ret, "no memory for a queue of %u operations a core", depth);
	}
	ret = gx_uring_run_wait(gx->uring, list_run, q);
	if (ret == -EBUSY) {
		submit_free(q);
		return gx_fail(ret, "another queue of the context takes the notes: close it "
				    "first");
	}
	for (unsigned i = 0; ret && i < SUB_ASK_TRIES; i++) {
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		ret = gx_uring_run_wait(gx->uring, attach_run, q);
	}
	if (ret) { /* ends the lanes that cores know */
		gx_uring_run_wait(gx->uring, leave_run, q);
		return gx_fail(ret, "a core's inbox is full: does anybody turn it?");
	}
	*out = q;
	return 0;
}

GX_EXPORT int gx_queue_close(struct gx_queue *q)
{
	if (q && q->core)
		return gx_fail(-EINVAL, "the queue of a core ends with its context");
	if (!q || !gx_uring_run_wait(q->gx->uring, end_run, q))
		return 0;
	return gx_fail(-EAGAIN, "cores have yet to end what is under way: turn them, and close "
				"again");
}

/* ---- Posting ---- */

struct sub_req *sub_req_get(struct sub_lane *l)
{
	return l->nr_free ? l->free[--l->nr_free] : NULL;
}

void sub_req_put(struct sub_req *r)
{
	r->busy = false;
	r->lane->free[r->lane->nr_free++] = r;
	/* Pairs with the acquire in submit_names(). */
	atomic_store_explicit(&r->conn, NULL, memory_order_release);
}

void sub_req_fill(struct sub_req *r, struct gx_ep *ep, const struct gx_op *op, uint32_t mark,
		  struct sub_msg *msg)
{
	r->op = *op;
	r->op.flags &= ~GX_OP_SILENT; /* the request must come back */
	r->silent = op->flags & GX_OP_SILENT;
	r->striped = msg != NULL;
	r->ep = ep;
	r->mark = mark;
	r->msg = msg;
	r->posted_ns = msg ? 0 : sub_stamp(r->lane->q);
	r->busy = true;
	r->cancelled = false;
	atomic_store_explicit(&r->conn, ep->conn, memory_order_relaxed);
}

void sub_lane_send(struct sub_lane *l, void *const items[], uint32_t n)
{
	uint32_t put = gx_ring_put(l->out, items, n);

	assert(put == n);
	(void)put;
	gx_sleep_wake(&l->core->loop.sleep);
}

int sub_conn_check(const struct gx_queue *q, const struct gx_conn *c)
{
	if (c->gx != q->gx)
		return gx_fail(-EINVAL, "the queue is of another context than the connection");
	if (atomic_load_explicit(&c->state, memory_order_acquire) != GX_CONN_STATE_UP)
		return gx_fail(-ENOTCONN, "the connection is not up");
	return 0;
}

int sub_stream_get(struct gx_queue *q, const struct gx_op *op, uint32_t *mark)
{
	*mark = SUB_NO_MARK;
	if (!op->stream)
		return 0;
	if (!q->marks)
		return gx_fail(-ENODEV,
			       "gx_op.stream: no GPU was open when the queue was made: "
			       "allocate or register memory of one before gx_queue_open()");
	return mark_get(q->marks, op, mark);
}

/* Give @op a list and a note of its own. */
static int run_take(struct gx_queue *q, struct gx_op *op)
{
	struct gx_list *list = NULL;
	int ret = list_take(q->gx, &q->lists, op, &list);

	op->list = list;
	op->nr_segs = 0;
	if (!ret)
		ret = sub_note_take(op);
	if (ret)
		list_put(list);
	return ret;
}

int sub_req_make(struct gx_queue *q, struct gx_ep *ep, const struct gx_op *op, void **item)
{
	struct sub_lane *l = q->lane[ep->core->index];
	struct gx_op own = *op;
	struct sub_req *r;
	uint32_t mark;
	int ret = op_check(op);

	if (ret >= 0 && !l->nr_free)
		ret = -EAGAIN;
	if (ret == OP_IS_RUN)
		ret = run_take(q, &own);
	if (!ret)
		ret = sub_stream_get(q, op, &mark);
	if (ret)
		return ret;
	r = sub_req_get(l);
	sub_req_fill(r, ep, &own, mark, NULL);
	*item = r;
	return 0;
}

/* On the thread that turns the endpoint's core. */
static int ep_post(struct gx_ep *ep, const struct gx_op ops[], unsigned n)
{
	unsigned i;
	int ret = 0;

	for (i = 0; i < n; i++) {
		ret = op_check(&ops[i]);
		if (!ret)
			ret = gx_unlikely(ops[i].stream) ? submit_stream(ep, &ops[i])
							 : ep->ops->post(ep, &ops[i], NULL);
		else if (ret == OP_IS_RUN)
			ret = submit_run(ep, &ops[i]);
		if (ret)
			break;
	}
	if (i)
		ep->ops->kick(ep);
	if (i || ret == -EAGAIN)
		return i;
	/* The control thread wrote its text before it told the core. */
	if (ret == -ENOTCONN)
		gx_fail(ret, "the connection with peer %s has ended: %s", ep->conn->peer_name,
			ep->conn->text);
	return ret;
}

static int ep_check(const struct gx_queue *q, const struct gx_ep *ep)
{
	if (!q->core || q->core == ep->core)
		return 0;
	return gx_fail(-EINVAL, "the endpoint is of another core than the queue: post it on "
				"gx_core_queue(gx_ep_core()), or on one of gx_queue_open()");
}

/* To any core. Apart, so that a core's queue does not save its registers. */
static __attribute__((noinline)) int rings_post(struct gx_queue *q, struct gx_ep *ep,
						const struct gx_op ops[], unsigned n)
{
	unsigned taken = 0;
	int ret = ep_check(q, ep);

	if (!ret)
		ret = sub_conn_check(q, ep->conn);
	while (!ret && taken < n) {
		void *items[SUB_BURST];
		unsigned k = 0;

		while (k < SUB_BURST && taken + k < n && !ret) {
			ret = sub_req_make(q, ep, &ops[taken + k], &items[k]);
			k += !ret;
		}
		sub_lane_send(q->lane[ep->core->index], items, k);
		taken += k;
	}
	return taken || ret == -EAGAIN ? (int)taken : ret;
}

GX_EXPORT int gx_post(struct gx_queue *q, struct gx_ep *ep, const struct gx_op ops[], unsigned n)
{
	GX_PROBE(post, q, ep, ops, n);
	return gx_likely(q->core == ep->core) ? ep_post(ep, ops, n) : rings_post(q, ep, ops, n);
}

/* ---- Cancelling ---- */

static void req_ask_cancel(struct sub_req *r)
{
	void *item = (void *)((uintptr_t)r | SUB_TAG);

	if (r->cancelled)
		return;
	r->cancelled = true;
	sub_lane_send(r->lane, &item, 1);
}

/* Was @r posted with @user on @ep, or striped over its connection? */
static bool req_is(const struct sub_req *r, const struct gx_ep *ep, uint64_t user)
{
	return r->op.user == user && (r->ep == ep || (r->striped && r->ep->conn == ep->conn));
}

unsigned sub_reqs_cancel(struct gx_queue *q, const struct sub_msg *msg, const struct gx_ep *ep,
			 uint64_t user)
{
	unsigned found = 0;

	for (unsigned i = 0; i < q->nr_lanes; i++)
		for (uint32_t k = 0; k < q->depth; k++) {
			struct sub_req *r = &q->lane[i]->reqs[k];

			if (!r->busy || !(msg ? r->msg == msg : req_is(r, ep, user)))
				continue;
			found += !r->msg || !r->msg->cancelled;
			if (r->msg)
				r->msg->cancelled = true;
			req_ask_cancel(r);
		}
	return found;
}

GX_EXPORT int gx_cancel(struct gx_queue *q, struct gx_ep *ep, uint64_t user)
{
	if (q->core == ep->core)
		return ep->ops->cancel(ep, user, NULL) + submit_cancel(ep, user);
	return ep_check(q, ep) ?: (int)sub_reqs_cancel(q, NULL, ep, user);
}
