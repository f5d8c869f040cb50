// SPDX-License-Identifier: Apache-2.0
/*
 * Lists: made by any thread, run by the core that owns the endpoint. A run never has more parts
 * under way than half of the endpoint's room, so that single operations pass. A put with a note is a
 * run, too, of one segment or none. The note goes beside the data of one segment, else behind them;
 * core/note.h has the rest.
 */
#include "submit/list.h"

#include "core/note.h"
#include "gx_internal/link.h"
#include "submit/queue.h"

#include <errno.h>
#include <stdlib.h>

#define LIST_LEN_MAX (1ull << 36) /* bytes, as of any operation */
#define LIST_SPARES  4		  /* rooms that a queue keeps */
#define LIST_RUNS    256	  /* under way on a core, of all its endpoints */
#define LIST_PARTS   1024	  /* the same for parts */
#define LIST_BURST   64		  /* parts that a run begins in a turn */
#define LIST_BURST_B (1u << 20)	  /* bytes of host memory after which it begins no other */
#define LIST_TURN    256	  /* parts that all runs begin in a turn */
#define LIST_POST_B  (64u << 10)  /* bytes that a link copies within the post */
#define LIST_MANY    4		  /* segments from which on its parts are said to be many */

/* Memory that a prepared list names. Handles of freed memory stay: another allocation has another id. */
struct list_mem {
	const struct gx_mem *mem;
	uint64_t id;
};

/* Frozen, but for .refs. */
struct gx_list {
	struct gx *gx;
	struct list_pool *pool; /* to which it goes back; NULL: prepared */
	struct gx_list *next;	/* there */
	uint32_t room;		/* for segments */
	struct list_mem *mems;	/* prepared */
	uint32_t nr_mems;
	_Atomic unsigned refs; /* gx_list_open(), and posts under way */
	bool read_only;	       /* a memory can't be written */
	uint32_t nr;	       /* at least 1 */
	uint64_t len;
	struct gx_link_seg seg[]; /* .first: of the caller's segments that it was merged from */
};

struct list_part {
	struct gx_route route;
	struct list_run *run; /* NULL: free */
	struct list_part *next;
	uint32_t at;  /* its first segment, in the run */
	uint8_t bits; /* of the run's note, that it brings */
	bool note;    /* it is the note, not data */
};

struct list_run {
	struct list_run *next;
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
	bool beside;		/* the data bring their half of it */
	uint32_t at;		/* segment to begin next */
	uint32_t out;		/* parts under way */
	uint32_t first;
	int err; /* of the part that failed first; .first is its segment */
	bool imm;
	bool busy; /* its parts may end, but not it */
	bool over; /* reported */
};

struct lists {
	struct gx_core *core;
	struct list_run *head, **tail;
	struct list_run *run_free;
	struct list_part *part_free;
	struct list_run runs[LIST_RUNS];
	struct list_part parts[LIST_PARTS];
};

/* ---- Making a list ---- */

static int seg_check(const struct gx_seg *s, unsigned i)
{
	if (s->len > LIST_LEN_MAX)
		return gx_fail(-EINVAL, "segment %u has %llu bytes: at most 64 GiB", i,
			       (unsigned long long)s->len);
	if (gx_unlikely(mem_is_dead(s->mem)))
		return gx_fail(-EINVAL, "segment %u: its memory was freed", i);
	if (s->mem && (s->off > s->mem->len || s->len > s->mem->len - s->off))
		return gx_fail(-EINVAL, "segment %u is outside of the registered memory", i);
	if (!s->mem && !s->off && s->len)
		return gx_fail(-EINVAL, "segment %u has no memory", i);
	return 0;
}

/* Add a segment to @list: to its last one, or behind. */
static void list_add(struct gx_list *list, const struct gx_seg *s, unsigned i)
{
	struct gx_link_seg *last = list->nr ? &list->seg[list->nr - 1] : NULL;

	list->len += s->len;
	list->read_only |= s->mem && s->mem->read_only;
	if (last && !s->len)
		return;
	if (last && last->mem == s->mem && last->token == s->token &&
	    last->off + last->len == s->off && last->remote_off + last->len == s->remote_off) {
		last->len += s->len;
		return;
	}
	if (!last || last->len)
		last = &list->seg[list->nr++];
	*last = (struct gx_link_seg){.mem = s->mem,
				     .off = s->off,
				     .token = s->token,
				     .remote_off = s->remote_off,
				     .len = s->len,
				     .first = i};
}

/* Room of an earlier post, else new room: a program that posts again what it has posted before
 * allocates no more. */
static struct gx_list *list_get(struct list_pool *pool, unsigned n)
{
	struct gx_list **at = pool ? &pool->free : NULL, *list;
	uint32_t room = n;

	while (at && *at && (*at)->room < n)
		at = &(*at)->next;
	if (at && *at) {
		list = *at;
		*at = list->next;
		pool->nr--;
		return list;
	}
	if (pool && pool->nr == LIST_SPARES) { /* it gives way to a longer one */
		list = pool->free;
		pool->free = list->next;
		pool->nr--;
		free(list);
	}
	for (room = pool ? 64 : n; room < n;)
		room *= 2;
	list = malloc(sizeof(*list) + room * sizeof(list->seg[0]));
	if (list)
		list->room = room;
	return list;
}

static void list_free(struct gx_list *list)
{
	struct list_pool *pool = list->pool;

	if (pool && pool->nr < LIST_SPARES) {
		list->next = pool->free;
		pool->free = list;
		pool->nr++;
		return;
	}
	if (!pool)
		free(list->mems);
	free(list);
}

void list_pool_end(struct list_pool *pool)
{
	for (struct gx_list *list; (list = pool->free);) {
		pool->free = list->next;
		free(list);
	}
	pool->nr = 0;
}

static int list_make(struct gx *gx, struct list_pool *pool, const struct gx_seg segs[], unsigned n,
		     struct gx_list **out)
{
	struct gx_list *list;
	int ret = 0;

	if (!segs || !n || n > GX_SEGS_MAX)
		return gx_fail(-EINVAL, "a list of %u segments: 1 to %u", n, GX_SEGS_MAX);
	list = list_get(pool, n);
	if (!list)
		return gx_fail(-ENOMEM, "no memory for a list of %u segments", n);
	*list = (struct gx_list){.gx = gx, .pool = pool, .room = list->room, .refs = 1};
	for (unsigned i = 0; !ret && i < n; i++) {
		ret = seg_check(&segs[i], i);
		if (!ret)
			list_add(list, &segs[i], i);
		if (!ret && list->len > LIST_LEN_MAX)
			ret = gx_fail(-EINVAL, "a list of more than 64 GiB");
	}
	if (ret)
		list_free(list);
	else
		*out = list;
	return ret;
}

/* Note which memory @list names, mostly one. */
static int list_mems(struct gx_list *list)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < list->nr; i++)
		n += !i || list->seg[i].mem != list->seg[i - 1].mem;
	list->mems = malloc(n * sizeof(list->mems[0]));
	if (!list->mems)
		return gx_fail(-ENOMEM, "no memory for a list of %u segments", list->nr);
	for (uint32_t i = 0; i < list->nr; i++) {
		const struct gx_mem *mem = list->seg[i].mem;

		if (mem && (!list->nr_mems || list->mems[list->nr_mems - 1].mem != mem))
			list->mems[list->nr_mems++] = (struct list_mem){mem, mem->id};
	}
	return 0;
}

static bool mems_are_alive(const struct gx_list *list)
{
	for (uint32_t i = 0; i < list->nr_mems; i++)
		if (list->mems[i].mem->id != list->mems[i].id || mem_is_dead(list->mems[i].mem))
			return false;
	return true;
}

GX_EXPORT int gx_list_open(struct gx *gx, const struct gx_seg segs[], unsigned n,
			   struct gx_list **out)
{
	struct gx_list *list;
	int ret = list_make(gx, NULL, segs, n, &list);

	if (!ret && (ret = list_mems(list)))
		list_put(list);
	if (!ret)
		*out = list;
	return ret;
}

GX_EXPORT void gx_list_close(struct gx_list *list)
{
	list_put(list);
}

int list_take(struct gx *gx, struct list_pool *pool, const struct gx_op *op, struct gx_list **out)
{
	struct gx_list *list = op->list;
	int ret = 0;

	if (!list) /* a note */
		return 0;
	if (op->nr_segs)
		ret = list_make(gx, pool, op->segs, op->nr_segs, &list);
	else if (list->gx != gx)
		return gx_fail(-EINVAL, "the list is of another context");
	else if (gx_unlikely(!mems_are_alive(list)))
		return gx_fail(-EINVAL, "memory of the list was freed");
	else
		atomic_fetch_add_explicit(&list->refs, 1, memory_order_relaxed);
	if (!ret && list->read_only && op->kind == GX_OP_GET) {
		list_put(list);
		ret = gx_fail(-EFAULT, "a segment's memory cannot be written");
	}
	if (!ret)
		*out = list;
	return ret;
}

void list_put(struct gx_list *list)
{
	if (list && atomic_fetch_sub_explicit(&list->refs, 1, memory_order_acq_rel) == 1)
		list_free(list);
}

uint64_t list_len(const struct gx_op *op)
{
	uint64_t len = 0;

	if (!op->nr_segs)
		return op->list->len;
	for (unsigned i = 0; i < op->nr_segs && i < GX_SEGS_MAX; i++)
		len += op->segs[i].len;
	return len;
}

/* Move segments of @from, from byte @off of segment *@i on, to @to, until that has @len bytes, and the
 * rest of a short segment. Return: bytes of segment *@i that were moved. */
static uint64_t list_move(const struct gx_list *from, uint32_t *i, uint64_t off, uint64_t len,
			  struct gx_list *to)
{
	while (*i < from->nr && to->len < len) {
		struct gx_link_seg s = from->seg[*i];
		uint64_t room = GX_ALIGN_UP(len - to->len, LIST_CUT_B);

		s.off += off;
		s.remote_off += off;
		s.len = GX_MIN(s.len - off, room);
		to->seg[to->nr++] = s;
		to->len += s.len;
		off += s.len;
		if (off < from->seg[*i].len)
			break;
		off = 0;
		(*i)++;
	}
	return off;
}

int list_split(struct gx *gx, struct list_pool *pool, struct gx_op *op, unsigned parts,
	       struct gx_list *out[])
{
	const struct gx_link_seg *last;
	struct gx_list *whole;
	uint64_t off = 0, done = 0;
	uint32_t at = 0;
	int n = 0, ret = list_take(gx, pool, op, &whole);

	if (ret)
		return ret;
	for (unsigned i = 1; !ret && i <= parts; i++) {
		uint64_t to = whole->len * i / parts;
		struct gx_list *part = to > done ? list_get(pool, whole->nr - at) : NULL;

		if (to <= done) /* a part before has taken these */
			continue;
		if (!part) {
			ret = gx_fail(-ENOMEM, "no memory for a list of %u segments", whole->nr);
			break;
		}
		*part = (struct gx_list){.gx = gx, .pool = pool, .room = part->room, .refs = 1};
		off = list_move(whole, &at, off, to - done, part);
		done += part->len;
		out[n++] = part;
	}
	while (ret && n > 0)
		list_put(out[--n]);
	last = &whole->seg[whole->nr - 1];
	op->list = NULL;
	op->nr_segs = 0;
	op->mem = NULL;
	op->addr = NULL;
	op->len = whole->len;
	op->token = last->token;
	op->remote_off = last->remote_off;
	list_put(whole);
	return ret ? ret : n;
}

bool list_is_dead(const struct gx_list *list)
{
	for (uint32_t i = 0; list && i < list->nr; i++)
		if (mem_is_dead(list->seg[i].mem))
			return true;
	return false;
}

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

static void run_check(struct list_run *run)
{
	bool local = sub_comps(&run->op) > 1;

	if (run->busy || run->over || run->out || run->due ||
	    (!run->err && (run->at < run->nr || run->imm)))
		return;
	run->over = true;
	if (!run->route)
		run->lists->core->comps_due -= sub_comps(&run->op);
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

/* Parts of the runs of this kind that the endpoint's link has. */
static uint32_t *run_out(const struct list_run *run)
{
	return run->op.kind == GX_OP_GET ? &run->ep->list_gets : &run->ep->list_puts;
}

static void part_free(struct lists *l, struct list_part *p)
{
	struct list_run *run = p->run;

	if (p->note)
		run->ep->notes->busy &= ~(1ull << run->note % NOTES);
	run->out--;
	(*run_out(run))--;
	p->run = NULL;
	p->next = l->part_free;
	l->part_free = p;
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

	if (comp->status) {
		run_err(run, comp->status, part_first(p, comp->seg));
		run->due |= p->note || run->ep->failed ? 0 : p->bits;
	}
	part_free(run->lists, p);
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
		     unsigned bits, bool note)
{
	const struct gx_ep_ops *ops = run->ep->ops;
	struct lists *l = run->lists;
	struct list_part *p = l->part_free;
	int ret;

	if (!p)
		return -EAGAIN;
	l->part_free = p->next;
	p->run = run;
	p->at = at;
	p->bits = (uint8_t)bits;
	p->note = note;
	run->due &= ~p->bits;
	run->out++;
	(*run_out(run))++;
	ret = more ? ops->join(run->ep, op, run->seg + at, 1 + more, &p->route) : 0;
	if (!ret)
		ret = ops->post(run->ep, op, &p->route);
	if (ret >= 0)
		return ret ? ret : 1;
	p->note = false; /* the bytes stay */
	run->due |= p->bits;
	part_free(l, p);
	if (ret != -EAGAIN)
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
	if (part_post(run, &op, run->nr - 1, 0, 0, false) > 0)
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
	run->beside = run->nr == 1 && run->len;
	if (note_is_long(run)) {
		n->busy |= 1ull << run->note % NOTES;
		memcpy(note_out_at(n, run->note), run->op.note, run->op.note_len);
	} else if (run->op.note_len) {
		memcpy(&run->word, run->op.note, run->op.note_len);
	}
}

/* The segment of a run whose note goes beside it. */
static int note_data(struct list_run *run, struct gx_op *op)
{
	unsigned bits = note_is_long(run) ? NOTE_DATA : NOTE_WHOLE;

	op->flags = GX_OP_IMM | OP_HIDDEN;
	op->imm = note_word(run->note, bits, run->op.note_len, run->word);
	return part_post(run, op, 0, 0, bits, false);
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

	if (!bits || (!no && run->at < run->nr) || ((no || !run->beside) && run->out))
		return false;
	if (bytes && no)
		n->busy &= ~(1ull << run->note % NOTES);
	if (bytes && !no) {
		op.addr = note_out_at(n, run->note);
		op.len = run->op.note_len;
		op.remote_off = (uint64_t)(run->note % NOTES) * GX_NOTE_MAX;
	}
	ret = part_post(run, &op, 0, 0, bits, bytes && !no);
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
	if (run->beside) /* its note goes with it */
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

/* @copy_b: bytes that the link may copy at once. Return: parts begun; 1 if there are copies alone. */
static unsigned run_feed(struct list_run *run, uint64_t copy_b)
{
	uint32_t before = run->at;
	unsigned n = 0, room = run_room(run);
	uint64_t bytes = 0;

	run->busy = true;
	if (run->op.deadline_ns && run->op.deadline_ns <= run->lists->core->now_ns)
		run_err(run, -ETIMEDOUT, run_first(run));
	while (!run->err && run->at < run->nr && n < LIST_BURST && bytes < LIST_BURST_B) {
		struct gx_op op;
		int took;

		if (!run_copy(run, &copy_b) || run->at == run->nr || *run_out(run) >= room)
			break;
		op = part_op(run, &run->seg[run->at]);
		took = run->beside ? note_data(run, &op)
				   : part_post(run, &op, run->at, run->nr - run->at - 1, 0, false);
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
	if (op->list) {
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
	if (op->flags & GX_OP_NOTE)
		note_begin(run);
}

int lists_begin(struct lists *l, struct gx_ep *ep, const struct gx_op *op, struct gx_route *route)
{
	struct list_run *run = l->run_free;

	if (ep->failed)
		return -ENOTCONN;
	if (!run || (!route && !core_post_room(l->core)))
		return -EAGAIN;
	if (op->flags & GX_OP_NOTE && !notes_room(ep->notes))
		return -EAGAIN;
	l->run_free = run->next;
	*run = (struct list_run){.lists = l,
				 .ep = ep,
				 .route = route,
				 .op = *op,
				 .imm = op->kind == GX_OP_PUT && op->flags & GX_OP_IMM};
	run_fill(run, op);
	*l->tail = run;
	l->tail = &run->next;
	if (!route)
		l->core->comps_due += sub_comps(op);
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
		run->next = l->run_free;
		l->run_free = run;
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

static void parts_cancel(struct lists *l, const struct list_run *run)
{
	for (unsigned i = 0; run->out && i < LIST_PARTS; i++)
		if (l->parts[i].run == run && !l->parts[i].note)
			run->ep->ops->cancel(run->ep, run->op.user, &l->parts[i].route);
}

int lists_cancel(struct lists *l, struct gx_ep *ep, uint64_t user, const struct gx_route *route)
{
	int n = 0;

	for (struct list_run *run = l->head; run; run = run->next) {
		if (run->over || run->ep != ep || run->op.user != user || run->route != route)
			continue;
		run->busy = true;
		run_err(run, -ECANCELED, run_first(run));
		parts_cancel(l, run);
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
static bool run_is_dead(const struct list_run *run)
{
	for (uint32_t i = run->at; i < run->nr; i++)
		if (mem_is_dead(run->seg[i].mem))
			return true;
	return false;
}

void lists_drop(struct lists *l)
{
	for (struct list_run *run = l->head; run; run = run->next) {
		if (run->over || run->err || !run_is_dead(run))
			continue;
		run_err(run, -ECANCELED, run_first(run));
		run_check(run);
	}
}

/* ---- Control path ---- */

int lists_open(struct gx_core *core, struct lists **out)
{
	struct lists *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->core = core;
	l->tail = &l->head;
	for (unsigned i = LIST_RUNS; i-- > 0;) {
		l->runs[i].next = l->run_free;
		l->run_free = &l->runs[i];
	}
	for (unsigned i = LIST_PARTS; i-- > 0;) {
		l->parts[i].route.comp = part_comp;
		l->parts[i].next = l->part_free;
		l->part_free = &l->parts[i];
	}
	*out = l;
	return 0;
}

void lists_close(struct lists *l)
{
	for (struct list_run *run = l ? l->head : NULL; run; run = run->next)
		if (!run->over && !run->route)
			list_put(run->op.list);
	free(l);
}
