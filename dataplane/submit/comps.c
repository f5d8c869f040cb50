// SPDX-License-Identifier: Apache-2.0
/*
 * Completions: those of a core, and requests that came back to a queue. Runs on the queue's thread.
 */
#include "submit/queue.h"

#include <errno.h>

static void hist_time(struct core_hist *h, uint64_t ns)
{
	unsigned i = 0;

	while (i + 1 < CORE_TIMES && ns > core_hist_time_ns(i))
		i++;
	sub_count(&h->time[i], 1);
	sub_count(&h->time_ns, ns);
}

void sub_hist_take(struct gx_queue *q, const struct gx_comp *comp, uint64_t posted_ns)
{
	/* 64 B and less, then each fourfold. */
	unsigned bits = comp->len > 64 ? 64 - (unsigned)__builtin_clzll(comp->len - 1) : 6;
	unsigned i = GX_MIN((bits - 5) / 2, CORE_SIZES - 1);

	if (!comp->status) {
		sub_count(&q->hist.size[i], 1);
		sub_count(&q->hist.size_b, comp->len);
	}
	if (gx_unlikely(posted_ns))
		hist_time(&q->hist, gx_now_ns() - posted_ns);
}

static bool req_done(struct gx_queue *q, struct sub_req *r, struct gx_comp *comp)
{
	sub_comp_set(comp, GX_COMP_DONE, &r->op, r->ep, r->status);
	comp->len = r->len;
	comp->tag = r->tag;
	sub_hist_take(q, comp, r->posted_ns);
	if (r->mark != SUB_NO_MARK)
		mark_put(q->marks, r->mark);
	if (gx_unlikely((uintptr_t)r->op.list | r->op.note_len))
		sub_req_let_go(r);
	sub_req_put(r);
	return comp->status || !r->silent;
}

static bool req_local(struct sub_req *r, struct gx_comp *comp)
{
	struct sub_msg *m = r->msg;

	if (m && --m->locals)
		return false;
	if (m)
		sub_comp_set(comp, GX_COMP_LOCAL, &m->op, m->ep, 0);
	else
		sub_comp_set(comp, GX_COMP_LOCAL, &r->op, r->ep, 0);
	comp->len = m ? m->op.len : r->op.len;
	return true;
}

/* Make at most one completion of an item that came back. */
static bool item_back(struct gx_queue *q, uintptr_t item, struct gx_comp *comp)
{
	struct sub_req *r = (struct sub_req *)(item & ~SUB_TAG);

	if (item & SUB_TAG)
		return req_local(r, comp);
	return r->msg ? sub_msg_back(q, r, comp) : req_done(q, r, comp);
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

/* Give back what the last gx_poll() returned. */
static void lane_notes_give(struct sub_lane *l)
{
	struct note_in *in = l->sink.taken;

	if (!in)
		return;
	do {
		void *item = in;

		in = in->next;
		gx_ring_put(l->sink.to_core, &item, 1);
	} while (in);
	l->sink.taken = NULL;
	gx_sleep_wake(&l->core->loop.sleep);
}

static unsigned lane_notes(struct sub_lane *l, struct gx_comp comps[], unsigned n)
{
	unsigned got = 0;
	void *item;

	while (got < n && gx_ring_get(l->sink.to_queue, &item, 1)) {
		struct note_in *in = item;

		comps[got++] = (struct gx_comp){.kind = GX_COMP_NOTIFY,
						.op = GX_OP_PUT,
						.ep = in->of->ep,
						.note = note_in_at(in),
						.note_len = in->len};
		in->next = l->sink.taken;
		l->sink.taken = in;
	}
	return got;
}

static unsigned notes_poll(struct gx_queue *q, struct gx_comp comps[], unsigned n)
{
	unsigned got = 0;

	for (unsigned i = 0; i < q->nr_lanes; i++)
		got += lane_notes(q->lane[i], comps + got, n - got);
	return got;
}

/* Apart, so that a core's queue does not save its registers. */
static __attribute__((noinline)) unsigned rings_poll(struct gx_queue *q, struct gx_comp comps[],
						     unsigned n)
{
	unsigned got = 0;

	if (gx_unlikely(q->notes != NULL))
		sub_notes_send(q);
	if (gx_unlikely(q->notify)) {
		for (unsigned i = 0; i < q->nr_lanes; i++)
			lane_notes_give(q->lane[i]);
		if (!q->notes_last)
			got = notes_poll(q, comps, n);
	}
	for (unsigned k = 0; k < q->nr_lanes && got < n; k++) {
		struct sub_lane *l = q->lane[q->rover];

		q->rover = q->rover + 1 < q->nr_lanes ? q->rover + 1 : 0;
		got += lane_poll(l, comps + got, n - got);
	}
	if (gx_unlikely(q->notify)) {
		if (q->notes_last)
			got += notes_poll(q, comps + got, n - got);
		q->notes_last = !q->notes_last; /* neither keeps the other out */
	}
	return got;
}

GX_EXPORT unsigned gx_poll(struct gx_queue *q, struct gx_comp comps[], unsigned n)
{
	struct gx_core *core = q->core;
	unsigned got = 0;
	uint32_t tail;

	if (!core)
		return rings_poll(q, comps, n);
	if (gx_unlikely(core->notes.odd))
		return core_notes_poll(core, comps, n);
	tail = atomic_load_explicit(&core->comp_tail, memory_order_relaxed);
	while (got < n && tail != core->comp_head)
		comps[got++] = core->comps[tail++ % GX_COMPS_MAX];
	if (got) /* pairs with the acquire in conn_quiet() */
		atomic_store_explicit(&core->comp_tail, tail, memory_order_release);
	return got;
}

/* ---- Sleeping ---- */

GX_EXPORT int gx_queue_fd(struct gx_queue *q)
{
	if (q->core)
		return gx_core_fd(q->core);
	return core_sleep_open(&q->sleep) ?: q->sleep.fd;
}

/* Those that the program has go back with the next gx_poll(): the peer may wait for the places. */
static bool lane_has_notes(const struct sub_lane *l)
{
	return l->sink.taken || !gx_ring_empty(l->sink.to_queue);
}

GX_EXPORT int gx_queue_arm(struct gx_queue *q)
{
	if (q->core)
		return gx_core_arm(q->core);
	if (!q->sleep.is_open)
		return gx_fail(-EINVAL, "gx_queue_fd() comes before gx_queue_arm()");
	sub_notes_send(q);
	gx_sleep_arm(&q->sleep);
	for (unsigned i = 0; i < q->nr_lanes; i++)
		if (!gx_ring_empty(q->lane[i]->back) || (q->notify && lane_has_notes(q->lane[i]))) {
			gx_sleep_disarm(&q->sleep);
			return 1;
		}
	return 0;
}
