/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views; see view.h. No state, no clock, no allocation.
 */
#include "list/view.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define INNER (GX_VIEW_DIMS - 1)

/* ---- Checks ---- */

static uint64_t magnitude(int64_t v)
{
	return v < 0 ? -(uint64_t)v : (uint64_t)v;
}

static int why_dim(char *why, unsigned i, const char *what)
{
	snprintf(why, VIEW_WHY_MAX, "gx_view.dim[%u]: %s", i, what);
	return -EINVAL;
}

/* Widen the extent by @count steps of @stride: the view's least byte, and those from there on. */
static bool extent_add(struct view *v, uint64_t steps, int64_t stride)
{
	uint64_t way;

	if (__builtin_mul_overflow(steps, magnitude(stride), &way) || way > INT64_MAX ||
	    __builtin_add_overflow(v->span_b, way, &v->span_b) || v->span_b > INT64_MAX)
		return false;
	return stride >= 0 || !__builtin_sub_overflow(v->lo, (int64_t)way, &v->lo);
}

static int dims_take(const struct gx_view *in, struct view *v, char *why)
{
	for (unsigned k = 0; k < in->nr_dims; k++) {
		unsigned i = in->nr_dims - 1 - k;
		const struct gx_view_dim *d = &in->dim[i];

		if (!d->count)
			return why_dim(why, i, "its count is 0");
		if (__builtin_mul_overflow(v->len, d->count, &v->len) || v->len > VIEW_LEN_MAX)
			return why_dim(why, i, "with it the view has more than 64 GiB");
		if (!extent_add(v, d->count - 1, d->stride_b))
			return why_dim(why, i, "with it the view spans more than 2^63 bytes");
		v->dim[INNER - k] = *d;
	}
	return 0;
}

static int rows_take(const struct gx_view *in, struct view *v, char *why)
{
	uint64_t first;

	if (!in->nr_rows != !in->rows || in->nr_rows > GX_VIEW_ROWS_MAX) {
		snprintf(why, VIEW_WHY_MAX, "gx_view.nr_rows is %u%s: at most %u", in->nr_rows,
			 in->rows ? "" : ", and .rows is NULL", GX_VIEW_ROWS_MAX);
		return -EINVAL;
	}
	if (!in->nr_rows)
		return 0;
	v->rows = in->rows;
	v->nr_rows = in->nr_rows;
	v->row_b = in->row_b;
	v->row_min = UINT32_MAX;
	for (uint32_t i = 0; i < in->nr_rows; i++) {
		uint32_t row = __atomic_load_n(&in->rows[i], __ATOMIC_RELAXED);

		v->row_min = GX_MIN(v->row_min, row);
		v->row_max = GX_MAX(v->row_max, row);
	}
	v->len *= v->nr_rows; /* at most 2^56 */
	if (v->len <= VIEW_LEN_MAX && in->row_b <= INT64_MAX &&
	    extent_add(v, v->row_max - v->row_min, (int64_t)in->row_b) &&
	    !__builtin_mul_overflow((uint64_t)v->row_min, in->row_b, &first) &&
	    first <= INT64_MAX && !__builtin_add_overflow(v->lo, (int64_t)first, &v->lo))
		return 0;
	snprintf(why, VIEW_WHY_MAX, "gx_view.row_b %" PRIu64 ", rows up to %u: %s", in->row_b,
		 v->row_max,
		 v->len > VIEW_LEN_MAX ? "more than 64 GiB"
				       : "the view spans more than 2^63 bytes");
	return -EINVAL;
}

/* Dimensions by the length of their steps: each step goes past all that lies inside. */
static int overlap_check(const struct gx_view *in, struct view *v, char *why)
{
	uint64_t inside = in->run_b;
	unsigned done = 0;

	for (unsigned k = 0; k < in->nr_dims; k++) {
		unsigned best = GX_VIEW_DIMS;

		for (unsigned i = 0; i < in->nr_dims; i++)
			if (!(done >> i & 1) &&
			    (best == GX_VIEW_DIMS ||
			     magnitude(in->dim[i].stride_b) < magnitude(in->dim[best].stride_b)))
				best = i;
		done |= 1u << best;
		if (in->dim[best].count < 2)
			continue;
		if (magnitude(in->dim[best].stride_b) < inside) {
			snprintf(why, VIEW_WHY_MAX,
				 "gx_view.dim[%u]: steps of %" PRId64
				 " bytes, and what lies inside "
				 "spans %" PRIu64 ": runs would overlap where they land",
				 best, in->dim[best].stride_b, inside);
			v->overlap = 1 + best;
			return -EINVAL;
		}
		inside += (in->dim[best].count - 1) * magnitude(in->dim[best].stride_b);
	}
	return 0;
}

/* Leave out dimensions of one step, and make one run of runs that lie without a gap. */
static void view_merge(struct view *v)
{
	struct gx_view_dim some[GX_VIEW_DIMS];
	unsigned n = 0;

	for (unsigned i = 0; i < GX_VIEW_DIMS; i++) {
		if (v->dim[i].count > 1)
			some[n++] = v->dim[i];
		v->dim[i] = (struct gx_view_dim){.count = 1};
	}
	for (; n && some[n - 1].stride_b == (int64_t)v->run_b; n--)
		v->run_b *= some[n - 1].count;
	for (unsigned k = 0; k < n; k++)
		v->dim[GX_VIEW_DIMS - n + k] = some[k];
}

int view_take(const struct gx_view *in, bool lands, struct view *v, char why[VIEW_WHY_MAX])
{
	int ret;

	*v = (struct view){.run_b = in->run_b, .nr_rows = 1, .len = in->run_b, .span_b = in->run_b};
	for (unsigned i = 0; i < GX_VIEW_DIMS; i++)
		v->dim[i].count = 1;
	if (!in->run_b || in->run_b > VIEW_LEN_MAX || in->nr_dims > GX_VIEW_DIMS) {
		snprintf(why, VIEW_WHY_MAX,
			 "gx_view.run_b %" PRIu64 ", .nr_dims %u: 1 byte to 64 GiB, and at most %u",
			 in->run_b, in->nr_dims, GX_VIEW_DIMS);
		return -EINVAL;
	}
	ret = dims_take(in, v, why);
	if (!ret && overlap_check(in, v, why) && lands)
		ret = -EINVAL;
	if (!ret)
		ret = rows_take(in, v, why);
	if (ret)
		return ret;
	view_merge(v);
	return 0;
}

void view_plain(struct view *v, uint64_t len)
{
	*v = (struct view){.nr_rows = 1, .len = len, .span_b = len};
	for (unsigned i = 0; i < GX_VIEW_DIMS; i++)
		v->dim[i].count = 1;
}

bool view_span(const struct view *v, uint64_t off, uint64_t room, uint64_t *first)
{
	*first = off + (uint64_t)v->lo;
	if (v->lo < 0 ? off < magnitude(v->lo) : *first < off)
		return false;
	return *first <= room && v->span_b <= room - *first;
}

/* ---- Places ---- */

void view_at_init(struct view_at *at, const struct view *v, char *base, uint64_t from)
{
	*at = (struct view_at){.v = *v, .base = base, .from = from};
	if (!v->run_b) /* plain: a run */
		at->v.run_b = v->len;
	at->off = UINT64_MAX; /* nowhere: the first look seeks */
}

/* Row @i of .rows. They may lie in memory that a peer writes: one that was changed is held within those
 * that were checked. */
static inline char *row_at(const struct view_at *at, uint32_t i)
{
	const struct view *v = &at->v;
	uint32_t row = __atomic_load_n(&v->rows[GX_MIN(i, v->nr_rows - 1)], __ATOMIC_RELAXED);

	row = GX_MIN(GX_MAX(row, v->row_min), v->row_max);
	return at->base + row * v->row_b;
}

static char *row_base(const struct view_at *at)
{
	return at->v.rows ? row_at(at, at->row) : at->base;
}

static __attribute__((noinline)) void at_seek(struct view_at *at, uint64_t off)
{
	uint64_t byte = at->from + off, run = at->v.run_b ? byte / at->v.run_b : 0;

	at->off = off;
	at->in = byte - run * at->v.run_b;
	for (unsigned d = GX_VIEW_DIMS; d-- > 0;) {
		uint64_t count = at->v.dim[d].count, above = count > 1 ? run / count : run;

		at->i[d] = run - above * count;
		run = above;
	}
	at->row = (uint32_t)run;
	at->p = row_base(at);
	for (unsigned d = 0; d < GX_VIEW_DIMS; d++)
		at->p += (int64_t)at->i[d] * at->v.dim[d].stride_b;
}

/* The innermost dimension has ended: go to the next step of one outside of it, or to the next row. */
static void at_carry(struct view_at *at)
{
	unsigned d = INNER;

	while (d > 0 && at->i[d] == at->v.dim[d].count) {
		at->p -= (int64_t)at->v.dim[d].count * at->v.dim[d].stride_b;
		at->i[d] = 0;
		d--;
		at->i[d]++;
		at->p += at->v.dim[d].stride_b;
	}
	if (at->i[0] < at->v.dim[0].count)
		return;
	at->i[0] = 0;
	at->row++;
	at->p = row_base(at);
}

#define VIEW_INLINE static inline __attribute__((always_inline))

/* ---- Copies ---- */

#define ROWS	16  /* a row is asked for so many before its turn: only this code knows it ... */
#define AHEAD_B 640 /* ... and of it so many bytes */

/* @n runs, at most to the end of the innermost dimension, end at @p. */
VIEW_INLINE void at_runs(struct view_at *at, char *p, uint64_t n)
{
	if (at->v.rows && at->v.dim[INNER].count == 1) { /* the others are 1, too */
		gx_prefetch_read(row_at(at, at->row + ROWS),
				 GX_MIN(at->v.run_b, (uint64_t)AHEAD_B));
		at->row++;
		at->p = row_base(at);
		return;
	}
	at->p = p;
	at->i[INNER] += n;
	if (at->i[INNER] == at->v.dim[INNER].count)
		at_carry(at);
}

/* @len bytes of a run, at most to its end. */
static void at_bytes(struct view_at *at, uint64_t len)
{
	at->in += len;
	if (at->in < at->v.run_b)
		return;
	at->in = 0;
	at_runs(at, at->p + at->v.dim[INNER].stride_b, 1);
}

VIEW_INLINE uint64_t runs_left(const struct view_at *at)
{
	return at ? at->v.dim[INNER].count - at->i[INNER] : UINT64_MAX;
}

/* Whole runs, in @len bytes, of @from to those of @to. One of both may be NULL: its bytes are @lin. @b: the
 * length of a run if that is constant, else 0. Return: bytes. */
VIEW_INLINE uint64_t runs_copy_b(struct view_at *to, struct view_at *from, char *lin, uint64_t len,
				 uint64_t b)
{
	uint64_t run_b = b ? b : to ? to->v.run_b : from->v.run_b, left = len;
	int64_t to_b = to ? to->v.dim[INNER].stride_b : (int64_t)run_b;
	int64_t from_b = from ? from->v.dim[INNER].stride_b : (int64_t)run_b;

	while (left >= run_b) {
		uint64_t n = GX_MIN(runs_left(to), runs_left(from)), k = 0;
		char *p = to ? to->p : lin, *q = from ? from->p : lin;

		for (; k < n && left >= run_b; k++, left -= run_b, p += to_b, q += from_b) {
			if (b)
				__builtin_memcpy(p, q, b);
			else
				gx_copy(p, q, run_b);
		}
		lin = to ? q : p;
		if (to)
			at_runs(to, p, k);
		if (from)
			at_runs(from, q, k);
	}
	return len - left;
}

/* Where gx_copy() would be slower the length is a constant. */
VIEW_INLINE uint64_t runs_copy(struct view_at *to, struct view_at *from, char *lin, uint64_t len)
{
	switch (to ? to->v.run_b : from->v.run_b) {
	case 16:
		return runs_copy_b(to, from, lin, len, 16);
	case 64:
		return runs_copy_b(to, from, lin, len, 64);
	case 128:
		return runs_copy_b(to, from, lin, len, 128);
	default:
		return runs_copy_b(to, from, lin, len, 0);
	}
}

VIEW_INLINE void lin_copy(struct view_at *at, char *lin, uint64_t len, bool lands)
{
	while (len) {
		uint64_t part = GX_MIN(len, at->v.run_b - at->in);

		if (part < at->v.run_b) {
			char *p = at->p + at->in;

			gx_copy(lands ? p : lin, lands ? lin : p, part);
			at_bytes(at, part);
		} else {
			part = runs_copy(lands ? at : NULL, lands ? NULL : at, lin, len);
		}
		lin += part;
		len -= part;
	}
}

static void lin_gather(struct view_at *at, uint64_t len, char *to)
{
	lin_copy(at, to, len, false);
}

static void lin_scatter(struct view_at *at, uint64_t len, char *from)
{
	lin_copy(at, from, len, true);
}

/* Go to byte @off of the view; @len bytes are about to be moved. */
VIEW_INLINE void at_begin(struct view_at *at, uint64_t off, uint64_t len)
{
	if (gx_unlikely(off != at->off) && len)
		at_seek(at, off);
	at->off += len;
}

void view_gather(struct view_at *at, uint64_t off, uint64_t len, char *to)
{
	at_begin(at, off, len);
	lin_gather(at, len, to);
}

void view_scatter(struct view_at *at, uint64_t off, uint64_t len, const char *from)
{
	at_begin(at, off, len);
	lin_scatter(at, len, (char *)(uintptr_t)from);
}

void view_move(struct view_at *to, struct view_at *from, uint64_t off, uint64_t len)
{
	at_begin(to, off, len);
	at_begin(from, off, len);
	while (len) {
		uint64_t room = to->v.run_b - to->in, there = from->v.run_b - from->in;
		uint64_t part = GX_MIN(len, GX_MAX(room, there));

		if (to->v.run_b == from->v.run_b && !to->in && part == room) {
			part = runs_copy(to, from, NULL, len);
		} else if (room > there) { /* several runs into a longer one */
			lin_gather(from, part, to->p + to->in);
			at_bytes(to, part);
		} else {
			lin_scatter(to, part, from->p + from->in);
			at_bytes(from, part);
		}
		len -= part;
	}
}

char *view_find(struct view_at *at, uint64_t off, uint32_t *len)
{
	char *p;

	if (off != at->off)
		at_seek(at, off);
	p = at->p + at->in;
	*len = (uint32_t)GX_MIN((uint64_t)*len, at->v.run_b - at->in);
	at->off += *len;
	at_bytes(at, *len);
	return p;
}
