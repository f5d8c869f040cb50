/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts and gets with views in the random load. The model knows each run of both views: the source's pattern
 * goes by the place in the source, so that bytes which a stride repeats, or rows share, are known at all the
 * places where they land. Prepared views are used again, for other memory and other endpoints.
 */
#include "sim/all.h"

#include <errno.h>
#include <string.h>

#define SPAN_MAX 24000 /* from the least to the last byte of a view */
#define GAP_MAX	 48

void views_close(unsigned node)
{
	for (unsigned i = 0; i < ALL_VIEWS; i++) {
		struct aview *v = &world->view[i];

		if (!v->list || v->node != node)
			continue;
		gx_list_close(v->list); /* puts of it may be under way */
		v->list = NULL;
	}
}

/* ---- what a view is like ---- */

/* A divisor of @n, at most @max. */
static uint32_t divisor(uint32_t n, uint32_t max)
{
	uint32_t d = 1 + (uint32_t)rnd(GX_MIN(n, max));

	while (n % d)
		d--;
	return d;
}

static uint32_t gap(void)
{
	return chance(40) ? 0 : (uint32_t)rnd_len(GAP_MAX);
}

/* Dimensions lie within one another in any order. Return: bytes from the first to the last. */
static uint64_t strides_draw(struct gx_view *v, bool apart)
{
	uint64_t span = v->run_b;
	unsigned done = 0;

	while (done != (1u << v->nr_dims) - 1) {
		unsigned k = (unsigned)rnd(v->nr_dims);
		struct gx_view_dim *d = &v->dim[k];
		uint64_t stride = span + gap();

		if (done >> k & 1)
			continue;
		done |= 1u << k;
		if (!apart && chance(12)) /* bytes go more than once */
			stride = chance(50) ? 0 : rnd(span);
		d->stride_b = chance(25) ? -(int64_t)stride : (int64_t)stride;
		span += stride * (d->count - 1);
	}
	return span;
}

static void rows_draw(struct gx_view *v, uint32_t rows[ALL_RUNS], uint64_t span, bool once)
{
	uint32_t n = v->nr_rows, step = 1 + (uint32_t)rnd(2), first = (uint32_t)rnd(3);

	for (uint32_t i = 0; i < n; i++)
		rows[i] = first + i * step;
	for (uint32_t i = n - 1; i > 0 && chance(90); i--) {
		uint32_t k = (uint32_t)rnd(i + 1), x = rows[k];

		rows[k] = rows[i];
		rows[i] = x;
	}
	if (!once && chance(15))
		rows[rnd(n)] = rows[rnd(n)];
	v->rows = rows;
	v->row_b = !once && chance(10) ? rnd(span) : span + gap();
}

/* @apart: no run of a row overlaps; @once: no byte goes twice. */
static void view_draw(struct gx_view *v, uint32_t rows[ALL_RUNS], uint32_t len, bool apart,
		      bool once)
{
	uint32_t left = divisor(len, ALL_RUNS);
	uint64_t span;

	memset(v, 0, sizeof(*v));
	v->run_b = len / left;
	if (chance(50)) {
		v->nr_rows = divisor(left, ALL_RUNS);
		left /= v->nr_rows;
	}
	v->nr_dims = (uint32_t)rnd(GX_VIEW_DIMS + 1);
	if (left > 1 && !v->nr_dims)
		v->nr_dims = 1;
	for (unsigned k = 0; k < v->nr_dims; k++) {
		v->dim[k].count = k + 1 < v->nr_dims ? divisor(left, left) : left;
		left /= (uint32_t)v->dim[k].count;
	}
	span = strides_draw(v, apart);
	if (v->nr_rows)
		rows_draw(v, rows, span, once);
}

/* Where each run is, by the words of gx/op.h. */
static void shape_of(const struct gx_view *v, struct shape *s)
{
	uint32_t rows = v->nr_rows ? v->nr_rows : 1, steps = 1;

	for (unsigned k = 0; k < v->nr_dims; k++)
		steps *= (uint32_t)v->dim[k].count;
	s->nr = rows * steps;
	s->run_b = (uint32_t)v->run_b;
	for (uint32_t i = 0; i < s->nr; i++) {
		int64_t at = v->nr_rows ? (int64_t)(v->rows[i / steps] * v->row_b) : 0;
		uint32_t step = i % steps;

		for (unsigned k = v->nr_dims; k-- > 0;) {
			at += (int64_t)(step % v->dim[k].count) * v->dim[k].stride_b;
			step /= (uint32_t)v->dim[k].count;
		}
		s->at[i] = (int32_t)at;
		s->lo = i ? GX_MIN(s->lo, s->at[i]) : s->at[i];
		s->hi = i ? GX_MAX(s->hi, s->at[i] + (int32_t)s->run_b)
			  : s->at[i] + (int32_t)s->run_b;
	}
}

static void shape_plain(uint32_t len, struct shape *s)
{
	*s = (struct shape){.nr = 1, .run_b = len, .hi = (int32_t)len};
}

/* Return: false: it is too long for the areas. */
static bool views_open(struct aview *v, unsigned node)
{
	static const uint32_t times[] = {1, 2, 4, 6, 12, 16, 24, 36};
	static uint32_t near_rows[ALL_RUNS], far_rows[ALL_RUNS];
	struct gx_view near, far;
	struct gx_views views = {&near, &far};
	bool newer = world->cfg.seed >= ALL_SOCKS;
	unsigned plain = (unsigned)rnd(10), draw = newer ? (unsigned)rnd(10) : 0;

	v->node = node;
	v->puts = !newer || draw < 7;
	v->gets = newer && draw >= 4;
	v->len = (uint32_t)rnd_len(400) * times[rnd(GX_ARRAY_SIZE(times))];
	if (plain == 0)
		views.local = NULL;
	else
		view_draw(&near, near_rows, v->len, v->gets, v->gets);
	if (plain == 1)
		views.remote = NULL;
	else
		view_draw(&far, far_rows, v->len, true, v->puts);
	if (views.local)
		shape_of(&near, &v->near);
	else
		shape_plain(v->len, &v->near);
	if (views.remote)
		shape_of(&far, &v->far);
	else
		shape_plain(v->len, &v->far);
	if (v->near.hi - v->near.lo > SPAN_MAX || v->far.hi - v->far.lo > SPAN_MAX)
		return false;
	if (gx_views_open(world->node[node].gx, &views, &v->list))
		wrong("gx_views_open: %s", gx_error());
	trace("node %u prepares views %u: %u bytes in %u runs from %d to %d, into %u from %d to %d",
	      node, (unsigned)(v - world->view), v->len, v->near.nr, v->near.lo, v->near.hi,
	      v->far.nr, v->far.lo, v->far.hi);
	return true;
}

static bool views_fit(const struct aview *v, const struct aop *op)
{
	return v->node == op->node && (op->kind == GX_OP_PUT ? v->puts : v->gets);
}

static struct aview *views_take(const struct aop *op)
{
	struct aview *v = &world->view[rnd(ALL_VIEWS)];

	for (unsigned i = 0; i < 4 && v->list && !views_fit(v, op); i++)
		v = &world->view[rnd(ALL_VIEWS)];
	if (v->list && !views_fit(v, op))
		return NULL;
	if (v->list && chance(world->cfg.seed >= ALL_GPUS ? 60 : 80))
		return v;
	gx_list_close(v->list);
	v->list = NULL;
	return views_open(v, op->node) && views_fit(v, op) ? v : NULL;
}

/* ---- its bytes ---- */

/* A base in [@lo, @hi) of the area from which all of @s lies in there; -1: there is none. */
static int64_t base_draw(const struct shape *s, uint32_t lo, uint32_t hi)
{
	int64_t first = (int64_t)lo + GX_MAX(s->lo, 0),
		room = (int64_t)hi - first - (s->hi - s->lo);

	return room < 0 ? -1 : first + (int64_t)rnd((uint64_t)room + 1) - s->lo;
}

/* Its runs may overlap, and each byte is one cell's. Return: cells, 0: no place. */
static unsigned src_cells(struct aop *op, const struct shape *s, unsigned node, enum area_id area,
			  int64_t base)
{
	uint32_t id = (uint32_t)(op - world->op);
	int32_t sorted[ALL_RUNS];
	unsigned n = 0;

	for (unsigned i = 0; i < s->nr; i++) {
		unsigned k = i;

		for (; k > 0 && sorted[k - 1] > s->at[i]; k--)
			sorted[k] = sorted[k - 1];
		sorted[k] = s->at[i];
	}
	for (unsigned i = 0; i < s->nr;) {
		int32_t first = sorted[i], end = first + (int32_t)s->run_b;

		while (++i < s->nr && sorted[i] <= end)
			end = sorted[i] + (int32_t)s->run_b;
		op->from[n] =
			cell_new_at(node, area, (uint32_t)(base + first), (uint32_t)(end - first),
				    id, (uint32_t)(first - s->lo), CELL_SRC);
		if (!op->from[n++])
			return 0;
	}
	return n;
}

/* What lies in one piece at both ends is a cell. */
static unsigned dst_cells(struct aop *op, const struct shape *src, const struct shape *dst,
			  unsigned node, enum area_id area, int64_t base)
{
	uint32_t id = (uint32_t)(op - world->op), off = 0, pos = 0, len = 0;
	uint32_t all = src->nr * src->run_b;
	unsigned n = 0;

	for (uint32_t done = 0; done <= all;) {
		uint32_t in = done % src->run_b, out = done % dst->run_b;
		uint32_t part = GX_MIN(src->run_b - in, dst->run_b - out);
		bool end = done == all;
		uint32_t at = end ? 0 : (uint32_t)(base + dst->at[done / dst->run_b]) + out;
		uint32_t from = end ? 0 : (uint32_t)(src->at[done / src->run_b] - src->lo) + in;

		done += part;
		if (len && !end && at == off + len && from == pos + len) {
			len += part;
			continue;
		}
		if (len) {
			op->to[n] = cell_new_at(node, area, off, len, id, pos, CELL_DST);
			if (!op->to[n++])
				return 0;
		}
		if (end)
			break;
		off = at;
		pos = from;
		len = part;
	}
	return n;
}

static void cells_drop(struct aop *op)
{
	for (unsigned i = 0; i < ALL_PARTS; i++) {
		cell_free(op->from[i]);
		cell_free(op->to[i]);
		op->from[i] = op->to[i] = NULL;
	}
}

/* One byte of it, at one of its ends, is outside of the region or key. */
static uint64_t far_outside(const struct aview *v, const struct far *f)
{
	if (v->far.lo < 0 && chance(50))
		return (uint64_t)-v->far.lo - 1;
	return (uint64_t)GX_MAX((int64_t)(f->hi - f->lo) - v->far.hi + 1, 0);
}

static bool may_refuse(const struct aop *op, const struct aview *v, const struct far *f,
		       enum area_id own)
{
	uint32_t least_b = world->quantum_b / 62 + 1; /* of a run that lands in memory of a GPU */

	if (!world->gpu)
		return false;
	if (op->kind == GX_OP_PUT)
		return f->area == AREA_MEM && v->far.run_b < least_b;
	return (f->area == AREA_MEM && v->far.nr > 1) ||
	       (own == AREA_MEM && v->near.run_b < least_b);
}

static unsigned near_cells(struct aop *op, const struct aview *v, enum area_id own, int64_t base)
{
	return op->kind == GX_OP_PUT ? src_cells(op, &v->near, op->node, own, base)
				     : dst_cells(op, &v->far, &v->near, op->node, own, base);
}

static unsigned far_cells(struct aop *op, const struct aview *v, enum area_id area, int64_t base)
{
	return op->kind == GX_OP_PUT ? dst_cells(op, &v->near, &v->far, op->peer, area, base)
				     : src_cells(op, &v->far, op->peer, area, base);
}

/* Cells at both ends; an operation that must fail has none at the peer. Return: false: no place. */
static bool cells_place(struct aop *op, const struct aview *v, const struct far *f,
			enum area_id own, int64_t *near, int64_t *far)
{
	struct cell **away = op->kind == GX_OP_PUT ? op->to : op->from;
	unsigned n = 0, m = 0;

	for (unsigned i = 0; i < 8 && !n; i++) {
		cells_drop(op);
		*near = base_draw(&v->near, 0, ALL_AREA_B);
		n = near_cells(op, v, own, *near);
	}
	for (unsigned i = 0; i < 8 && n && !m && !f->must; i++) {
		for (unsigned k = 0; k < ALL_PARTS; k++) {
			cell_free(away[k]);
			away[k] = NULL;
		}
		*far = base_draw(&v->far, f->lo, f->hi);
		m = *far < 0 ? 0 : far_cells(op, v, f->area, *far);
	}
	op->nr_segs = GX_MAX(n, m);
	if (n && (m || f->must))
		return true;
	cells_drop(op);
	return false;
}

bool view_place(struct aop *op, struct far *f, enum area_id own, struct gx_op *gx)
{
	const struct aview *v = views_take(op);
	int64_t near = -1, far = -1;

	if (!v)
		return false;
	/* A source in memory of a GPU is a plain range; what lands there has runs that are long enough. */
	if (world->gpu && own == AREA_MEM && v->near.nr > 1 && op->kind == GX_OP_PUT)
		own = AREA_RAW;
	op->may_refuse = may_refuse(op, v, f, own);
	if (!f->must && chance(3))
		f->must = -ERANGE;
	op->must = f->must;
	if (!cells_place(op, v, f, own, &near, &far))
		return false;
	op->is_view = true;
	op->len = v->len;
	op->remote_off = f->must == -ERANGE ? far_outside(v, f)
			 : f->must	    ? (uint64_t)GX_MAX(-v->far.lo, 0)
					    : (uint64_t)far - f->lo;
	gx->list = v->list;
	gx->len = chance(50) ? v->len : 0;
	gx->token = f->token;
	gx->remote_off = op->remote_off;
	gx->mem = own == AREA_RAW ? NULL : world->node[op->node].area[own].mem;
	if (gx->mem)
		gx->off = (uint64_t)near;
	else
		gx->addr = world->node[op->node].area[own].b + near;
	trace("by views %u: base %lld of area %u, and %lld", (unsigned)(v - world->view),
	      (long long)near, own, (long long)op->remote_off);
	return true;
}
