// SPDX-License-Identifier: Apache-2.0
/*
 * Making lists, by any thread: segments are checked, neighbours merged, memory that was freed noticed.
 */
#include "list/list.h"
#include "list/view_gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LIST_LEN_MAX (1ull << 36) /* bytes, as of any operation */
#define LIST_SPARES  4		  /* rooms that a queue keeps */

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

/* Add a segment to @list: to its last one, or after it. */
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
	if (s->mem && !(last && last->mem == s->mem))
		core_name(&list->names, s->mem->place);
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
	if (!pool) {
		free(list->mems);
		free(list->views);
	}
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

/* Check a view and copy its rows to *@rows, which goes on behind them. */
static int view_copy(const struct gx_view *in, const char *what, bool lands, struct view *v,
		     uint32_t **rows)
{
	char why[VIEW_WHY_MAX];
	uint32_t *own = *rows;

	if (!in)
		return 0;
	if (view_take(in, lands, v, why))
		return gx_fail(-EINVAL, "%s view: %s", what, why);
	if (v->rows) {
		memcpy(own, v->rows, v->nr_rows * sizeof(*own));
		v->rows = own;
		*rows += v->nr_rows;
	}
	return 0;
}

static size_t rows_b(const struct gx_view *w)
{
	return w && w->rows && w->nr_rows <= GX_VIEW_ROWS_MAX ? w->nr_rows * sizeof(uint32_t) : 0;
}

struct list_pieces list_pieces(uint64_t b, uint64_t from, uint64_t len)
{
	b = view_common_b(view_common_b(b, from), len);
	return (struct list_pieces){b, from / b, (from + len) / b};
}

static int views_make(const struct gx_views *in, struct list_views *v)
{
	static _Atomic uint64_t ids;
	uint32_t *rows = v->rows;
	int ret = view_copy(in->local, "local", false, &v->local, &rows);

	if (!ret)
		ret = view_copy(in->remote, "remote", true, &v->remote, &rows);
	if (ret)
		return ret;
	if (!in->local)
		view_plain(&v->local, v->remote.len);
	if (!in->remote)
		view_plain(&v->remote, v->local.len);
	v->id = 1 + atomic_fetch_add_explicit(&ids, 1, memory_order_relaxed);
	if (v->local.len == v->remote.len)
		return 0;
	return gx_fail(-EINVAL, "the local view has %llu bytes, and the remote one %llu",
		       (unsigned long long)v->local.len, (unsigned long long)v->remote.len);
}

GX_EXPORT int gx_views_open(struct gx *gx, const struct gx_views *in, struct gx_list **out)
{
	struct list_views *v;
	struct gx_list *list;
	int ret;

	if (!in->local && !in->remote)
		return gx_fail(-EINVAL, "gx_views names no view");
	v = malloc(sizeof(*v) + rows_b(in->local) + rows_b(in->remote));
	list = malloc(sizeof(*list));
	ret = v && list ? views_make(in, v) : gx_fail(-ENOMEM, "no memory for views");
	if (ret) {
		free(v);
		free(list);
		return ret;
	}
	*list = (struct gx_list){.gx = gx, .refs = 1, .len = v->local.len, .views = v};
	list->pieces = list_pieces(view_common_b(v->local.run_b, v->remote.run_b), 0, list->len);
	*out = list;
	return 0;
}

/* May @op move its bytes by these views? */
static int views_check(const struct gx_list *list, const struct gx_op *op)
{
	const struct view *v = &list->views->local;
	bool get = op->kind == GX_OP_GET;
	uint64_t first;

	if (get && v->overlap)
		return gx_fail(-EINVAL,
			       "the local view: gx_view.dim[%u]: its runs overlap, and a "
			       "GET lands there",
			       v->overlap - 1);
	if (get && op->mem && op->mem->read_only)
		return gx_fail(-EFAULT, "gx_op.mem cannot be written");
	if (op->len && op->len != list->len)
		return gx_fail(-EINVAL, "gx_op.len is %llu, and the views have %llu bytes",
			       (unsigned long long)op->len, (unsigned long long)list->len);
	if (gx_unlikely(mem_is_dead(op->mem)))
		return gx_fail(-EINVAL, "gx_op.mem was freed");
	if (!op->mem && !op->addr)
		return gx_fail(-EINVAL, "an operation with views without memory");
	if (op->mem && !view_span(v, op->off, op->mem->len, &first))
		return gx_fail(
			-EINVAL,
			"the local view: its bytes from %lld on are outside of the registered "
			"memory of %llu bytes",
			(long long)op->off + v->lo, (unsigned long long)op->mem->len);
	return 0;
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
	if (!ret && list->views && (ret = views_check(list, op)))
		list_put(list);
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
	while (list && atomic_fetch_sub_explicit(&list->refs, 1, memory_order_acq_rel) == 1) {
		struct gx_list *whole = list->whole;

		list_free(list);
		list = whole;
	}
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

/* Where the next part of @whole ends: at byte @to, or before it, at a piece if such are short. */
static uint64_t part_end(const struct gx_list *whole, uint64_t to)
{
	uint64_t unit = whole->pieces.b;

	if (!whole->views || to == whole->len)
		return to;
	unit = unit <= LIST_CUT_VIEW_B
		       ? LIST_CUT_VIEW_B / unit * unit
		       : GX_MAX(view_common_b(unit, LIST_CUT_VIEW_B), (uint64_t)GX_CACHE_LINE);
	return to - to % unit;
}

/* The next part of @whole: its views from byte @done on, to byte @to. */
static void views_move(struct gx_list *whole, uint64_t done, uint64_t to, struct gx_list *part)
{
	part->views = whole->views;
	part->whole = whole;
	part->from = done;
	part->len = to - done;
	part->pieces = list_pieces(whole->pieces.b, done, part->len);
	atomic_fetch_add_explicit(&whole->refs, 1, memory_order_relaxed);
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
		uint64_t to = part_end(whole, whole->len * i / parts);
		struct gx_list *part =
			to > done ? list_get(pool, whole->views ? 1 : whole->nr - at) : NULL;

		if (to <= done) /* a part before has taken these */
			continue;
		if (!part) {
			ret = gx_fail(-ENOMEM, "no memory for a list of %u segments", whole->nr);
			break;
		}
		*part = (struct gx_list){.gx = gx,
					 .pool = pool,
					 .room = part->room,
					 .refs = 1,
					 .names = whole->names};
		if (whole->views)
			views_move(whole, done, to, part);
		else
			off = list_move(whole, &at, off, to - done, part);
		done += part->len;
		out[n++] = part;
	}
	while (ret && n > 0)
		list_put(out[--n]);
	op->list = NULL;
	op->nr_segs = 0;
	op->len = whole->len;
	if (!whole->views) {
		last = &whole->seg[whole->nr - 1];
		op->mem = NULL;
		op->addr = NULL;
		op->token = last->token;
		op->remote_off = last->remote_off;
	}
	list_put(whole);
	return ret ? ret : n;
}

bool list_is_dead(const struct gx_list *list, uint32_t at, const struct drop *d)
{
	uint64_t any = 0;

	for (unsigned i = 0; list && i < GX_ARRAY_SIZE(d->died.bits); i++)
		any |= list->names.bits[i] & d->died.bits[i];
	for (; any && at < list->nr; at++)
		if (mem_is_dead(list->seg[at].mem))
			return true;
	return false;
}
