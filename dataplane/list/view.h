/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views: bytes of one memory in the order of an index, as gx/op.h has them. A leaf: it checks a view,
 * finds the place of a byte, and copies into and out of host memory. The place is worked out once for
 * a packet, and stepped from there; runs of lengths that are common have loops of their own. It knows
 * no token and no link. Private to dataplane/.
 */
#ifndef GX_LIST_VIEW_H
#define GX_LIST_VIEW_H

#include "gx/op.h"
#include "gx_internal/base.h"

#define VIEW_WHY_MAX 160
#define VIEW_LEN_MAX (1ull << 36) /* bytes, as of any operation */

/* A view that was checked. Dimensions that lie without a gap are merged; unused ones are outside of
 * the others, with count 1. */
struct view {
	uint64_t run_b; /* 0: a plain range of .len bytes */
	struct gx_view_dim dim[GX_VIEW_DIMS];
	const uint32_t *rows; /* NULL: none */
	uint32_t nr_rows;     /* 1 without .rows */
	uint32_t row_min, row_max;
	uint64_t row_b;
	uint64_t len;
	int64_t lo; /* bytes of the view are in [base + lo, base + lo + span_b) */
	uint64_t span_b;
	uint32_t overlap; /* 1 + the dimension whose runs overlap; 0: none */
};

/* A place in a view, and the memory. */
struct view_at {
	struct view v;
	char *base;
	uint64_t from; /* byte of the view from which on .off counts */
	uint64_t off;  /* the byte at the place */
	uint64_t in;   /* of these, in the run */
	uint64_t i[GX_VIEW_DIMS];
	uint32_t row; /* index in .rows */
	char *p;      /* the run */
};

/** view_take() - Check @in, and write @v. Its rows stay the caller's. @lands: bytes are written, so runs
 * must not overlap (else .overlap says whether they do); rows may meet. Return: 0; -EINVAL, with words in
 * @why. */
int view_take(const struct gx_view *in, bool lands, struct view *v, char why[VIEW_WHY_MAX]);
/** view_plain() - A range of @len bytes. */
void view_plain(struct view *v, uint64_t len);
/** view_span() - Does the view from @off on lie in @room bytes? *@first: where its least byte is. */
bool view_span(const struct view *v, uint64_t off, uint64_t room, uint64_t *first);

/** view_is_run() - Is it one run? It begins at .lo. */
static inline bool view_is_run(const struct view *v)
{
	return !v->run_b || v->run_b == v->len;
}

/** view_at_init() - Its byte 0 is byte @from of the view. */
void view_at_init(struct view_at *at, const struct view *v, char *base, uint64_t from);
/** view_gather(), view_scatter() - Copy bytes [@off, @off + @len) of the view. In order they cost no
 * division. */
void view_gather(struct view_at *at, uint64_t off, uint64_t len, char *to);
void view_scatter(struct view_at *at, uint64_t off, uint64_t len, const char *from);
/** view_move() - Copy bytes [@off, @off + @len) of view @from to those of view @to. */
void view_move(struct view_at *to, struct view_at *from, uint64_t off, uint64_t len);
/** view_find() - Where byte @off of the view lies. *@len: to the end of its run, if that is less; the
 * place goes on behind it. */
char *view_find(struct view_at *at, uint64_t off, uint32_t *len);

#endif
