// SPDX-License-Identifier: Apache-2.0
/*
 * Lists, run by the core that owns the endpoint. A run never has more parts under way than half of
 * the endpoint's room, so that single operations pass. A put with a note is a run, too, of one segment
 * or none. The note goes with the data of one segment, after those of several; list/note.h has the rest.
 */
#include "list/list.h"

#include "list/note.h"

#include <errno.h>
#include <stdlib.h>

#define LIST_RUNS    256	 /* under way on a core, of all its endpoints */
#define LIST_PARTS   1024	 /* the same for parts */
#define LIST_OWN     16		 /* runs that each endpoint has besides these */
#define LIST_OWN_P   64		 /* the same for parts */
#define LIST_BURST   64		 /* parts that a run begins in a turn */
#define LIST_BURST_B (1u << 20)	 /* bytes of host memory after which it begins no other */
#define LIST_TURN    256	 /* parts that all runs begin in a turn */
#define LIST_POST_B  (64u << 10) /* bytes that a link copies within the post */
#define LIST_MANY    4		 /* segments from which on its parts are said to be many */
#define AGAIN_NS     10000	 /* the least pause before a peer that is busy is asked again */

/* Those that are no data are never cancelled: their bytes land nowhere else later. PART_VIEW: data that name
 * a map. */
enum part_is { PART_DATA, PART_VIEW, PART_NOTE };

struct list_part {
	struct gx_route route;
	struct list_run *run;		/* NULL: free */
	struct list_part *next, **home; /* home: where it lies when it is free */
	uint32_t at;			/* its first segment, in the run */
	uint8_t bits;			/* of the run's note, that it brings */
	uint8_t is;			/* enum part_is */
};

struct list_run {
	struct list_run *next, **home;
	struct lists *lists;
	struct gx_ep *ep;	/* not to be used once .over */
	struct gx_route *route; /* NULL: of the core's queue */
	struct gx_op op;
	const struct gx_link_seg *seg;
	uint32_t nr;
	uint64_t len;
	struct gx_link_seg one; /* without a list */
	uint32_t note, word;	/* its number; a short one */
	uint8_t due;		/* halves of it to send: enum note_bit */
	bool with_note;		/* the data bring their half of it */
	uint32_t at;		/* segment to begin next */
	uint32_t out;		/* parts under way */
	uint32_t first;
	int err; /* of the part that failed first; .first is its segment */
	bool imm;
	const struct list_views *views; /* NULL: it moves segments */
	int map;			/* with views: its place at the peer; MAP_NONE: none yet */
	uint64_t again_ns,
		next_ns; /* when the peer first asked to try again; 0: never; not before */
	bool by_map;	 /* with views: the link has no straight way */
	bool busy;	 /* its parts may end, but not it */
	bool over;	 /* reported */
};

struct lists {
	struct gx_core *core;
	struct list_run *head, **tail;
	struct list_run *run_free;
	struct list_part *part_free;
	struct list_run runs[LIST_RUNS];
	struct list_part parts[LIST_PARTS];
};

/* What an endpoint alone may use, so what is under way to peers that stand still never stops it.
 * owner: core */
struct list_own {
	struct list_run *run_free;
	struct list_part *part_free;
	struct list_run runs[LIST_OWN];
	struct list_part parts[LIST_OWN_P];
};

/* ---- The end of parts and runs ---- */

static void run_err(struct list_run *run, int err, uint32_t first)
{
	if (run->err)
		return;
	run->err = err;
	run->first = first;
}

/* The segment to name when a run ends that none has failed of. */
static uint32_t run_first(const struct list_run *run)
{
	return run->nr ? run->seg[GX_MIN(run->at, run->nr - 1)].first : 0;
}

static void run_report(struct list_run *run)
{
	bool local = core_op_comps(&run->op) > 1;

	run->over = true;
	if (!run->route)
		run->lists->core->comps_due -= core_op_comps(&run->op);
	core_report(&(struct core_end){.ep = run->ep,
				       .route = run->route,
				       .op = run->op.kind,
				       .status = run->err,
				       .flags = (run->op.flags & GX_OP_SILENT) |
						(local ? GX_OP_LOCAL : 0),
				       .user = run->op.user,
				       .len = run->err ? 0 : run->len,
				       .tag = run->err ? run->first : 0});
	if (!run->route)
		list_put(run->op.list);
}

static void run_check(struct list_run *run)
{
	if (run->busy || run->over || run->out || run->due ||
	    (!run->err && (run->at < run->nr || run->imm)))
		return;
	if (run->map != MAP_NONE)
		map_put(run->ep, run->map);
	run_report(run);
}

/* Parts of the runs of this kind that the endpoint's link has. */
static uint32_t *run_out(const struct list_run *run)
{
	return run->op.kind == GX_OP_GET ? &run->ep->list_gets : &run->ep->list_puts;
}

/* A message that this end gave up still reads the place, or all that read some are of these: the peer is
 * asked again, for as long as it might be silent. */
static bool view_waits(struct list_run *run, int *status)
{
	uint64_t now_ns = run->lists->core->now_ns;

	if (run->err || run->ep->failed)
		return false;
	if (mem_is_dead(run->one.mem)) { /* lists_drop() has been here before */
		*status = -ECANCELED;
		return false;
	}
	if (!run->again_ns)
		run->again_ns = now_ns;
	run->next_ns = now_ns + GX_MIN((now_ns - run->again_ns) / 4 + AGAIN_NS, 100 * AGAIN_NS);
	if (now_ns - run->again_ns < run->ep->conn->agreed.peer_timeout_ns)
		return true;
	*status = -ETIMEDOUT;
	return false;
}

/* Data with views have ended. Does the run go on as if it had not begun them? */
static bool view_part_end(const struct list_part *p, int *status)
{
	struct list_run *run = p->run;

	if (p->is != PART_VIEW)
		return false;
	run->ep->maps->nr_msgs -= run->map != MAP_NONE;
	if (*status != -EBUSY || !view_waits(run, status))
		return false;
	run->at = 0;
	run->due |= p->bits;
	return true;
}

static void part_free(struct list_part *p)
{
	struct list_run *run = p->run;

	if (p->is == PART_NOTE)
		run->ep->notes->busy &= ~(1ull << run->note % NOTES);
	run->out--;
	(*run_out(run))--;
	p->run = NULL;
	p->next = *p->home;
	*p->home = p;
}

/* The segment to name: the @i-th of the part. */
static uint32_t part_first(const struct list_part *p, uint64_t i)
{
	const struct list_run *run = p->run;

	return run->nr ? run->seg[GX_MIN(p->at + i, run->nr - 1)].first : 0;
}

/* A link has ended a part. It may still be within its post. */
static void part_comp(struct gx_route *route, const struct gx_comp *comp)
{
	struct list_part *p = GX_CONTAINER_OF(route, struct list_part, route);
	struct list_run *run = p->run;
	int status = comp->status;

	if (!view_part_end(p, &status) && status) {
		run_err(run, status, run->views ? 0 : part_first(p, comp->seg));
		run->due |= p->is == PART_NOTE || run->ep->failed ? 0 : p->bits;
	}
	part_free(p);
	run_check(run);
}

/* ---- Feeding the links ---- */

static struct gx_op part_op(const struct list_run *run, const struct gx_link_seg *s)
{
	return (struct gx_op){.kind = run->op.kind,
			      .flags = run->nr >= LIST_MANY ? OP_MANY : 0,
			      .user = run->op.user,
			      .addr = s->mem ? NULL : (void *)(uintptr_t)s->off,
			      .mem = s->mem,
			      .off = s->mem ? s->off : 0,
			      .len = s->len,
			      .token = s->token,
			      .remote_off = s->remote_off,
			      .deadline_ns = run->op.deadline_ns};
}

/* @op: segment @at of the run, with which up to @more others may go. @bits: of the note, that it
 * brings. Return: segments begun; -errno. */
static int part_post(struct list_run *run, const struct gx_op *op, uint32_t at, unsigned more,
		     unsigned bits, enum part_is is)
{
	const struct gx_ep_ops *ops = run->ep->ops;
	struct list_part *p = run->ep->lists->part_free ?: run->lists->part_free;
	int ret;

	if (!p)
		return -EAGAIN;
	*p->home = p->next;
	p->run = run;
	p->at = at;
	p->bits = (uint8_t)bits;
	p->is = (uint8_t)is;
	run->due &= ~p->bits;
	run->out++;
	(*run_out(run))++;
	ret = more | (op->flags & OP_VIEW)
		      ? ops->join(run->ep, op, run->seg + at, 1 + more, &p->route)
		      : 0;
	if (gx_unlikely(!ret && op->flags & OP_VIEW))
		ret = -EOPNOTSUPP;
	if (!ret)
		ret = ops->post(run->ep, op, &p->route);
	if (ret >= 0)
		return ret ? ret : 1;
	if (is == PART_NOTE)
		p->is = PART_DATA; /* the bytes stay */
	run->due |= p->bits;
	part_free(p);
	if (ret != -EAGAIN && !(op->flags & OP_VIEWS && ret == -EXDEV))
		run_err(run, ret, run->nr ? run->seg[at].first : 0);
	return ret;
}

/* All bytes of the run are visible: the immediate goes by an empty put. */
static bool run_notify(struct list_run *run)
{
	const struct gx_link_seg *last = &run->seg[run->nr - 1];
	struct gx_op op = part_op(run, last);

	op.flags = GX_OP_IMM;
	op.imm = run->op.imm;
	op.len = 0;
	run->imm = false;
	if (part_post(run, &op, run->nr - 1, 0, 0, PART_DATA) > 0)
		return true;
	run->imm = !run->err;
	return false;
}

static bool note_is_long(const struct list_run *run)
{
	return run->op.note_len > NOTE_WORD_B;
}

static void note_begin(struct list_run *run)
{
	struct notes *n = run->ep->notes;

	run->note = n->number++;
	run->due = NOTE_WHOLE;
	run->with_note = run->nr == 1 && run->len;
	if (note_is_long(run)) {
		n->busy |= 1ull << run->note % NOTES;
		memcpy(note_out_at(n, run->note), run->op.note, run->op.note_len);
	} else if (run->op.note_len) {
		memcpy(&run->word, run->op.note, run->op.note_len);
	}
}

/* The segment of a run whose note goes with it. */
static int note_data(struct list_run *run, struct gx_op *op)
{
	unsigned bits = note_is_long(run) ? NOTE_DATA : NOTE_WHOLE;

	op->flags |= GX_OP_IMM | OP_HIDDEN;
	op->imm = note_word(run->note, bits, run->op.note_len, run->word);
	return part_post(run, op, 0, 0, bits, run->views ? PART_VIEW : PART_DATA);
}

/* Send what the note has to send by itself: its bytes, or that it will not come. */
static bool note_send(struct list_run *run)
{
	struct notes *n = run->ep->notes;
	unsigned bits = run->due, no = run->err ? NOTE_VOID : 0;
	struct gx_op op = {.kind = GX_OP_PUT,
			   .flags = GX_OP_IMM | OP_HIDDEN,
			   .user = run->op.user,
			   .token = CORE_TOKEN_NOTES,
			   .imm = note_word(run->note, bits | no, run->op.note_len, run->word)};
	bool bytes = bits & NOTE_BYTES && note_is_long(run);
	int ret;

	if (!bits || (!no && run->at < run->nr) || ((no || !run->with_note) && run->out))
		return false;
	if (bytes && no)
		n->busy &= ~(1ull << run->note % NOTES);
	if (bytes && !no) {
		op.addr = note_out_at(n, run->note);
		op.len = run->op.note_len;
		op.remote_off = (uint64_t)(run->note % NOTES) * GX_NOTE_MAX;
	}
	ret = part_post(run, &op, 0, 0, bits, bytes && !no ? PART_NOTE : PART_DATA);
	if (ret < 0 && ret != -EAGAIN)
		run->due = 0; /* the endpoint ends */
	return ret > 0;
}

/* Gets have a share of their own, which no puts take. */
static unsigned run_room(const struct list_run *run)
{
	const struct gx_link_room *room = &run->ep->ops->room;

	if (run->op.kind == GX_OP_GET && room->list_gets)
		return room->list_gets;
	return (run->op.kind == GX_OP_GET ? room->gets : room->ops - room->gets) / 2;
}

/* Have the link copy what it can at once. Return: has it room for more in this turn? */
static bool run_copy(struct list_run *run, uint64_t *room_b)
{
	if (run->with_note) /* its note goes with it */
		return true;
	run->at += run->ep->ops->copy(run->ep, run->op.kind == GX_OP_PUT, &run->seg[run->at],
				      run->nr - run->at, room_b);
	return *room_b;
}

/* Bytes that a core may have to copy: where memory of a GPU is at an end, a GPU moves them. */
static uint64_t seg_core_b(const struct gx_link_seg *s)
{
	bool gpu = s->token & CORE_TOKEN_GPU || (s->mem && s->mem->kind != GX_MEM_HOST);

	return gpu ? 0 : s->len;
}

/* All bytes, as one part. Return: 1; 0: not now; -errno. */
static int view_post(struct list_run *run, struct gx_op *op)
{
	uint32_t *msgs = &run->ep->maps->nr_msgs, one = run->map != MAP_NONE;
	int ret;

	run->at = 1; /* a retry takes it back, perhaps within the post */
	*msgs += one;
	ret = run->with_note ? note_data(run, op) : part_post(run, op, 0, 0, 0, PART_VIEW);
	if (ret > 0)
		return 1;
	run->at = 0;
	*msgs -= one;
	return ret == -EAGAIN ? 0 : ret;
}

/* From view to view, without a map, where the link can. */
static int view_straight(struct list_run *run)
{
	const struct view *local = &run->views->local;
	struct gx_link_seg whole = run->one;
	struct gx_op op;

	if (view_is_run(local))
		whole.off -= (uint64_t)local->lo + run->op.list->from;
	op = part_op(run, &whole);
	op.flags |= OP_VIEWS;
	op.list = run->op.list;
	return view_post(run, &op);
}

/* The last put of the map ended so. Return: 0. */
static unsigned view_map_failed(struct list_run *run, struct map_out *o)
{
	int err = o->err;

	if (err == -EBUSY && view_waits(run, &err))
		o->err = 0;
	else
		run_err(run, err, 0);
	return 0;
}

/* The map first, but for a plain range; then all bytes, as one message. */
static unsigned view_feed(struct list_run *run)
{
	struct map_out *o;
	struct gx_op op;
	int ret;

	if (run->err || run->at == run->nr || *run_out(run) + 2 > run_room(run) ||
	    run->lists->core->now_ns < run->next_ns)
		return 0;
	if (!run->by_map && run->ep->ops->room.views) {
		ret = view_straight(run);
		if (ret != -EXDEV)
			return ret > 0;
	}
	run->by_map = true;
	op = part_op(run, &run->one);
	if (!view_is_run(&run->views->remote)) {
		if (run->map == MAP_NONE)
			run->map = map_get(run->ep, run->views, run->op.list->from, run->op.token);
		if (run->map == MAP_NONE || run->ep->maps->nr_msgs == MAP_MSGS)
			return 0;
		o = &run->ep->maps->out[run->map];
		if (o->err)
			return view_map_failed(run, o);
		if (!o->is_there)
			return map_send(run->ep, run->map, &run->views->remote);
		op.token = core_token_map((unsigned)run->map, o->gen);
	} else {
		op.remote_off += (uint64_t)run->views->remote.lo + run->op.list->from;
	}
	if (!view_is_run(&run->views->local)) {
		op.flags |= OP_VIEW;
		op.list = run->op.list;
	}
	return view_post(run, &op) > 0;
}

/* @copy_b: bytes that the link may copy at once. Return: parts begun; 1 if there are copies alone. */
static unsigned run_feed(struct list_run *run, uint64_t copy_b)
{
	uint32_t before = run->at;
	unsigned n = 0, room = run_room(run);
	uint32_t nr = run->nr;
	uint64_t bytes = 0;

	run->busy = true;
	if (run->op.deadline_ns && run->op.deadline_ns <= run->lists->core->now_ns)
		run_err(run, -ETIMEDOUT, run_first(run));
	if (gx_unlikely(run->views != NULL)) {
		n = view_feed(run);
		nr = 0;
	}
	while (!run->err && run->at < nr && n < LIST_BURST && bytes < LIST_BURST_B) {
		struct gx_op op;
		int took;

		if (!run_copy(run, &copy_b) || run->at == run->nr || *run_out(run) >= room)
			break;
		op = part_op(run, &run->seg[run->at]);
		took = run->with_note
			       ? note_data(run, &op)
			       : part_post(run, &op, run->at, run->nr - run->at - 1, 0, PART_DATA);
		for (; took > 0; took--)
			bytes += seg_core_b(&run->seg[run->at++]);
		if (took < 0)
			break;
		n++;
	}
	if (!run->err && run->imm && run->at == run->nr && !run->out)
		n += run_notify(run);
	if (gx_unlikely(run->due))
		n += note_send(run);
	run->busy = false;
	return n ? n : run->at != before;
}

/* What it has to move: its list, or itself. */
static void run_fill(struct list_run *run, const struct gx_op *op)
{
	if (op->list && !op->list->views) {
		run->seg = op->list->seg;
		run->nr = op->list->nr;
		run->len = op->list->len;
	} else {
		run->one = (struct gx_link_seg){.mem = op->mem,
						.off = op->mem ? op->off : (uintptr_t)op->addr,
						.token = op->token,
						.remote_off = op->remote_off,
						.len = op->len};
		run->seg = &run->one;
		run->nr = op->len > 0;
		run->len = op->len;
	}
	if (op->list && op->list->views) {
		run->views = op->list->views;
		run->len = run->one.len = op->list->len;
		run->nr = 1;
		if (view_is_run(&run->views->local))
			run->one.off += (uint64_t)run->views->local.lo + op->list->from;
	}
	if (op->flags & GX_OP_NOTE)
		note_begin(run);
}

/* Pairs with the acquire in conn_detached(): the endpoint may have their memory. */
static void runs_count(struct gx_ep *ep, uint32_t n)
{
	n += atomic_load_explicit(&ep->list_runs, memory_order_relaxed);
	atomic_store_explicit(&ep->list_runs, n, memory_order_release);
}

int lists_begin(struct lists *l, struct gx_ep *ep, const struct gx_op *op, struct gx_route *route)
{
	struct list_run *run = ep->lists->run_free ?: l->run_free;

	if (ep->failed)
		return -ENOTCONN;
	if (!run || (!route && !core_post_room(l->core, ep->list_runs)))
		return -EAGAIN;
	if (op->flags & GX_OP_NOTE && !notes_room(ep->notes))
		return -EAGAIN;
	*run->home = run->next;
	runs_count(ep, 1);
	*run = (struct list_run){.home = run->home,
				 .lists = l,
				 .ep = ep,
				 .route = route,
				 .op = *op,
				 .map = MAP_NONE,
				 .imm = op->kind == GX_OP_PUT && op->flags & GX_OP_IMM};
	run_fill(run, op);
	*l->tail = run;
	l->tail = &run->next;
	if (!route)
		l->core->comps_due += core_op_comps(op);
	run_feed(run, LIST_POST_B);
	run_check(run);
	return 0;
}

bool lists_idle(const struct lists *l)
{
	return !l->head;
}

/* Take runs that are over out of the list. */
static void lists_sweep(struct lists *l)
{
	struct list_run **at = &l->head, *run;

	while ((run = *at)) {
		if (!run->over) {
			at = &run->next;
			continue;
		}
		*at = run->next;
		run->next = *run->home;
		*run->home = run;
		runs_count(run->ep, -1u);
	}
	l->tail = at;
}

bool lists_run(struct lists *l)
{
	struct list_run *first = l->head;
	unsigned n = 0;

	for (struct list_run *run = first; run && n < LIST_TURN; run = run->next) {
		unsigned fed = run->over ? 0 : run_feed(run, UINT64_MAX);

		if (fed)
			run->ep->ops->kick(run->ep);
		run_check(run);
		n += fed;
	}
	if (first && first->next) { /* another run begins the next turn */
		l->head = first->next;
		first->next = NULL;
		*l->tail = first;
		l->tail = &first->next;
	}
	lists_sweep(l);
	return n;
}

/* ---- Ending runs ---- */

static void parts_cancel(struct list_part parts[], unsigned n, const struct list_run *run)
{
	for (unsigned i = 0; run->out && i < n; i++)
		if (parts[i].run == run && parts[i].is < PART_NOTE)
			run->ep->ops->cancel(run->ep, run->op.user, &parts[i].route);
}

int lists_cancel(struct lists *l, struct gx_ep *ep, uint64_t user, const struct gx_route *route)
{
	int n = 0;

	for (struct list_run *run = l->head; run; run = run->next) {
		if (run->over || run->ep != ep || run->op.user != user || run->route != route)
			continue;
		run->busy = true;
		run_err(run, -ECANCELED, run_first(run));
		parts_cancel(ep->lists->parts, LIST_OWN_P, run);
		parts_cancel(l->parts, LIST_PARTS, run);
		run->busy = false;
		run_check(run);
		n++;
	}
	return n;
}

/* The link then fails the parts that are under way. */
void lists_ep_fail(struct lists *l, const struct gx_ep *ep, int err)
{
	for (struct list_run *run = l->head; run; run = run->next) {
		if (run->over || run->ep != ep)
			continue;
		run_err(run, err, run_first(run));
		run->due = 0;
		run_check(run);
	}
}

/* Was a memory freed that the run has yet to read or write? */
static bool run_is_dead(const struct list_run *run, const struct drop *d)
{
	if (run->op.list && !run->views)
		return list_is_dead(run->op.list, run->at, d);
	return run->at < run->nr && mem_is_dead(run->one.mem);
}

void lists_drop(struct lists *l, const struct drop *d)
{
	for (struct list_run *run = l->head; run; run = run->next) {
		if (run->over || run->err || !run_is_dead(run, d))
			continue;
		run_err(run, -ECANCELED, run_first(run));
		run_check(run);
	}
}

/* ---- Control path ---- */

static void runs_fill(struct list_run **home, struct list_run runs[], unsigned n)
{
	while (n--) {
		runs[n].home = home;
		runs[n].next = *home;
		*home = &runs[n];
	}
}

static void parts_fill(struct list_part **home, struct list_part parts[], unsigned n)
{
	while (n--) {
		parts[n].route.comp = part_comp;
		parts[n].home = home;
		parts[n].next = *home;
		*home = &parts[n];
	}
}

int lists_open(struct gx_core *core, struct lists **out)
{
	struct lists *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->core = core;
	l->tail = &l->head;
	runs_fill(&l->run_free, l->runs, LIST_RUNS);
	parts_fill(&l->part_free, l->parts, LIST_PARTS);
	*out = l;
	return 0;
}

int lists_ep_open(struct gx_ep *ep)
{
	struct list_own *own = calloc(1, sizeof(*own));

	if (!own)
		return -ENOMEM;
	runs_fill(&own->run_free, own->runs, LIST_OWN);
	parts_fill(&own->part_free, own->parts, LIST_OWN_P);
	ep->lists = own;
	return 0;
}

void lists_ep_close(struct gx_ep *ep)
{
	free(ep->lists);
	ep->lists = NULL;
}

void lists_close(struct lists *l)
{
	for (struct list_run *run = l ? l->head : NULL; run; run = run->next)
		if (!run->over && !run->route)
			list_put(run->op.list);
	free(l);
}
