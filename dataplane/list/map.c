/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps of an endpoint, both ways; see map.h. Runs on the polling core, but for opening and closing.
 */
#include "list/map.h"
#include "core/le.h"
#include "gx_internal/link.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define MAPS_B ((uint64_t)CORE_MAPS * CORE_MAP_B)

/* The record. Its rows, u32 each, begin CORE_MAP_REC_B behind its first byte. */
enum {
	REC_GEN = 0,	 /* u32, also in the tokens that name it */
	REC_NR_DIMS = 4, /* u32 */
	REC_NR_ROWS = 8, /* u32 */
	REC_ZERO = 12,	 /* u32 */
	REC_TOKEN = 16,	 /* u64, of the region */
	REC_RUN_B = 24,	 /* u64 */
	REC_ROW_B = 32,	 /* u64 */
	REC_DIMS = 40,	 /* 4 times u64 count, i64 stride; 0 where there are fewer */
	REC_FROM = REC_DIMS + 16 * GX_VIEW_DIMS, /* u64: byte of the view that comes first */
	REC_B = REC_FROM + 8,
};
_Static_assert(REC_B <= CORE_MAP_REC_B, "the rows come behind it");

/* ---- Control path ---- */

int maps_open(struct gx_ep *ep)
{
	struct maps *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	ep->maps = m;
	/* Pages that are never used cost nothing. Where the process may not have as many addresses, its
	 * peers hear that it takes no views, and it sends none. */
	m->in = mmap(NULL, 2 * MAPS_B, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m->in == MAP_FAILED) {
		m->in = NULL;
		return 0;
	}
	m->mem.gx = ep->core->gx;
	m->mem.addr = m->in;
	m->mem.len = MAPS_B;
	m->mem.kind = GX_MEM_HOST;
	m->mem.device = -1;
	m->mem.gpu = ep->core->gx->host;
	m->mem.fd = -1;
	m->mem.access = GX_ACCESS_PUT;
	m->mem.token = CORE_TOKEN_MAPS;
	ep->maps_mem = &m->mem;
	return 0;
}

void maps_close(struct gx_ep *ep)
{
	if (ep->maps && ep->maps->in)
		munmap(ep->maps->in, 2 * MAPS_B);
	free(ep->maps);
	ep->maps = NULL;
	ep->maps_mem = NULL;
}

/* ---- Messages of the peer ---- */

/* The view of record @b, as its sender would write it. */
static int rec_get(const uint8_t *b, const char *place, struct gx_view *w)
{
	*w = (struct gx_view){.run_b = le64_get(b + REC_RUN_B),
			      .nr_dims = le32_get(b + REC_NR_DIMS),
			      .nr_rows = le32_get(b + REC_NR_ROWS),
			      .row_b = le64_get(b + REC_ROW_B)};
	if (w->nr_dims > GX_VIEW_DIMS || w->nr_rows > GX_VIEW_ROWS_MAX || le32_get(b + REC_ZERO))
		return -EINVAL;
	if (w->nr_rows)
		w->rows = (const uint32_t *)(place + CORE_MAP_REC_B);
	else if (w->row_b)
		return -EINVAL;
	for (unsigned i = 0; i < GX_VIEW_DIMS; i++) {
		struct gx_view_dim d = {.count = le64_get(b + REC_DIMS + 16 * i),
					.stride_b = (int64_t)le64_get(b + REC_DIMS + 16 * i + 8)};

		if (i >= w->nr_dims && (d.count || d.stride_b))
			return -EINVAL;
		w->dim[i] = d;
	}
	return 0;
}

/* The region that @token names: no view of a view. */
static int map_region(struct gx_ep *ep, uint64_t token, unsigned access, uint64_t off, uint64_t len,
		      struct gx_mem **mem)
{
	int ret = token == CORE_TOKEN_MAPS || token == CORE_TOKEN_NOTES
			  ? -EACCES
			  : core_region(ep, token, access, off, len, mem);

	return ret == -EXDEV ? -EACCES : ret;
}

/* Are the view's bytes from @from on @len, or the part of a lane? Asked before its rows are looked at: a
 * message of few bytes costs as few. */
static bool view_is_of(const struct gx_view *w, uint64_t from, uint64_t len)
{
	uint64_t sum = w->run_b;
	bool over = false;

	for (unsigned d = 0; d < w->nr_dims; d++)
		over |= __builtin_mul_overflow(sum, w->dim[d].count, &sum);
	over |= w->nr_rows && __builtin_mul_overflow(sum, (uint64_t)w->nr_rows, &sum);
	return !over && len && from <= sum && len <= sum - from &&
	       len >= sum / GX_HELLO_LANES - GX_MIN(sum / GX_HELLO_LANES, LIST_CUT_VIEW_B);
}

int map_open(struct gx_ep *ep, uint64_t token, unsigned access, uint64_t off, uint64_t len,
	     struct view_at *at, struct gx_mem **mem)
{
	unsigned i = token & CORE_MAP_INDEX;
	char why[VIEW_WHY_MAX], *place;
	uint8_t own[REC_B];
	struct gx_view w;
	struct view v;
	uint64_t first, from;
	int ret;

	if (!ep->maps_mem)
		return -ENOENT;
	place = ep->maps->in + (uint64_t)i * CORE_MAP_B;
	memcpy(own, place, sizeof(own));
	if (le32_get(own + REC_GEN) != core_map_gen(token))
		return -ESTALE;
	ret = rec_get(own, place, &w)
		      ?: map_region(ep, le64_get(own + REC_TOKEN), access, 0, 0, mem);
	from = le64_get(own + REC_FROM);
	if (!ret && !view_is_of(&w, from, len))
		ret = -EMSGSIZE;
	else if (!ret)
		ret = view_take(&w, access == GX_ACCESS_PUT, &v, why);
	if (!ret && !view_span(&v, off, INT64_MAX, &first))
		ret = -ERANGE;
	if (!ret)
		ret = map_region(ep, le64_get(own + REC_TOKEN), access, first, v.span_b, mem);
	if (ret)
		return ret;
	view_at_init(at, &v, (*mem)->addr + off, from);
	ep->maps->users[i]++;
	ep->maps_busy |= 1u << i;
	return (int)i;
}

void map_done(struct gx_ep *ep, int number)
{
	if (number != MAP_NONE && !--ep->maps->users[number])
		ep->maps_busy &= ~(1u << number);
}

/* ---- Puts and gets of ours ---- */

static bool map_has(const struct map_out *o, const struct list_views *v, uint64_t from,
		    uint64_t token)
{
	return o->id == v->id && o->from == from && o->token == token;
}

/* The put that brings it has ended. */
static void map_comp(struct gx_route *route, const struct gx_comp *comp)
{
	struct map_out *o = GX_CONTAINER_OF(route, struct map_out, route);
	bool none = comp->status == -ENOENT || comp->status == -EIO;

	o->is_out = false;
	o->is_there = !comp->status;
	o->err = none ? -EOPNOTSUPP
		      : comp->status; /* the peer has no room for maps, or does not know them */
}

int map_get(struct gx_ep *ep, const struct list_views *v, uint64_t from, uint64_t token)
{
	struct maps *m = ep->maps;
	int best = MAP_NONE;

	for (int i = 0; i < CORE_MAPS; i++) {
		struct map_out *o = &m->out[i];

		if (map_has(o, v, from, token)) {
			best = i;
			break;
		}
		if (!o->refs && !o->is_out && (best == MAP_NONE || o->used < m->out[best].used))
			best = i;
	}
	if (best == MAP_NONE)
		return best;
	if (!map_has(&m->out[best], v, from, token))
		m->out[best] = (struct map_out){.route.comp = map_comp,
						.id = v->id,
						.from = from,
						.token = token,
						.gen = m->out[best].gen};
	if (!m->out[best].refs)
		m->out[best].err = 0;
	m->out[best].used = ++m->used;
	m->out[best].refs++;
	return best;
}

void map_put(struct gx_ep *ep, int number)
{
	ep->maps->out[number].refs--;
}

static void rec_put(uint8_t *b, const struct map_out *o, const struct view *v)
{
	unsigned from = 0;

	memset(b, 0, CORE_MAP_REC_B);
	while (from < GX_VIEW_DIMS && v->dim[from].count == 1)
		from++;
	le32_put(b + REC_GEN, o->gen);
	le32_put(b + REC_NR_DIMS, GX_VIEW_DIMS - from);
	le32_put(b + REC_NR_ROWS, v->rows ? v->nr_rows : 0);
	le64_put(b + REC_TOKEN, o->token);
	le64_put(b + REC_RUN_B, v->run_b);
	le64_put(b + REC_ROW_B, v->rows ? v->row_b : 0);
	le64_put(b + REC_FROM, o->from);
	for (unsigned i = from; i < GX_VIEW_DIMS; i++) {
		le64_put(b + REC_DIMS + 16 * (i - from), v->dim[i].count);
		le64_put(b + REC_DIMS + 16 * (i - from) + 8, (uint64_t)v->dim[i].stride_b);
	}
}

bool map_send(struct gx_ep *ep, int number, const struct view *v)
{
	uint64_t at = (uint64_t)number * CORE_MAP_B, rows_b = 0;
	struct map_out *o = &ep->maps->out[number];
	char *own = ep->maps->in + MAPS_B + at;
	struct gx_op op = {
		.kind = GX_OP_PUT, .token = CORE_TOKEN_MAPS, .addr = own, .remote_off = at};
	int ret;

	if (o->is_out)
		return false;
	if (!ep->maps->in) {
		o->err = -ENOMEM;
		return false;
	}
	o->gen++;
	rec_put((uint8_t *)own, o, v);
	if (v->rows) {
		rows_b = v->nr_rows * sizeof(uint32_t);
		memcpy(own + CORE_MAP_REC_B, v->rows, rows_b);
	}
	op.len = CORE_MAP_REC_B + rows_b;
	o->is_out = true;
	ret = ep->ops->post(ep, &op, &o->route); /* it may end within */
	if (!ret)
		return true;
	o->is_out = false;
	o->err = ret == -EAGAIN ? 0 : ret;
	return false;
}
