/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views against a model that visits each index by four loops: bounds, overlaps, places, and copies in any
 * order and of any length.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "list/view_gpu.h"
#include "local/link_local.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MEM_B  (1u << 16)
#define ROWS   64
#define POISON 0x5a

static uint64_t seed = 1;

static uint64_t rnd(uint64_t n)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (seed >> 33) % n;
}

/* ---- The model ---- */

/* Place of byte @i of the view, relative to its base. */
static int64_t model_at(const struct gx_view *w, uint64_t i)
{
	uint64_t run = i / w->run_b;
	int64_t at = (int64_t)(i % w->run_b);

	for (unsigned d = w->nr_dims; d-- > 0;) {
		at += (int64_t)(run % w->dim[d].count) * w->dim[d].stride_b;
		run /= w->dim[d].count;
	}
	return at + (w->nr_rows ? (int64_t)(w->rows[run] * w->row_b) : 0);
}

static uint64_t model_len(const struct gx_view *w)
{
	uint64_t len = w->run_b * (w->nr_rows ? w->nr_rows : 1);

	for (unsigned d = 0; d < w->nr_dims; d++)
		len *= w->dim[d].count;
	return len;
}

/* Do two different bytes have one place? Rows that meet do not count. */
static bool model_overlaps(const struct gx_view *w)
{
	struct gx_view one = *w;
	static uint8_t seen[4 * MEM_B];
	uint64_t len;

	one.nr_rows = 0;
	len = model_len(&one);
	memset(seen, 0, sizeof(seen));
	for (uint64_t i = 0; i < len; i++) {
		int64_t at = model_at(&one, i) + 2 * MEM_B;

		assert_true(at >= 0 && at < (int64_t)sizeof(seen));
		if (seen[at]++)
			return true;
	}
	return false;
}

/* ---- Random views ---- */

static uint32_t rows[ROWS];

static struct gx_view view_any(void)
{
	static const uint16_t run_b[] = {16, 64, 128, 256, 576, 656, 1, 7, 24, 100, 48};
	struct gx_view w = {.run_b = run_b[rnd(GX_ARRAY_SIZE(run_b))],
			    .nr_dims = (uint32_t)rnd(GX_VIEW_DIMS + 1)};
	int64_t step = (int64_t)w.run_b;
	unsigned order[GX_VIEW_DIMS] = {0, 1, 2, 3};

	for (unsigned i = 0; i < w.nr_dims; i++) { /* the steps get longer in any order */
		unsigned k = i + (unsigned)rnd(w.nr_dims - i), d = order[k];

		order[k] = order[i];
		order[i] = d;
		w.dim[d].count = 1 + rnd(i < 2 ? 5 : 3);
		step += (int64_t)(rnd(3) ? 0 : rnd(40));
		w.dim[d].stride_b = rnd(3) ? step : -step;
		step *= (int64_t)w.dim[d].count;
	}
	if (rnd(2)) {
		w.nr_rows = 1 + (uint32_t)rnd(ROWS);
		w.rows = rows;
		w.row_b = rnd(200);
		for (unsigned i = 0; i < w.nr_rows; i++)
			rows[i] = (uint32_t)rnd(60);
	}
	return w;
}

static struct view taken(const struct gx_view *w, bool lands)
{
	char why[VIEW_WHY_MAX] = "";
	struct view v;

	if (view_take(w, lands, &v, why))
		fail_msg("%s", why);
	return v;
}

static void view__span_is_that_of_the_model(void **state)
{
	for (unsigned n = 0; n < 1000; n++) {
		struct gx_view w = view_any();
		struct view v = taken(&w, true);
		int64_t lo = INT64_MAX, hi = INT64_MIN;
		uint64_t first;

		assert_int_equal(v.len, model_len(&w));
		assert_false(model_overlaps(&w));
		for (uint64_t i = 0; i < v.len; i++) {
			lo = GX_MIN(lo, model_at(&w, i));
			hi = GX_MAX(hi, model_at(&w, i) + 1);
		}
		assert_int_equal(v.lo, lo);
		assert_int_equal(v.span_b, hi - lo);
		/* It fits to the byte, and not one less. */
		assert_true(view_span(&v, (uint64_t)(lo < 0 ? -lo : 0), v.span_b + GX_MAX(lo, 0),
				      &first));
		assert_int_equal(first, GX_MAX(lo, 0));
		assert_false(view_span(&v, (uint64_t)(lo < 0 ? -lo : 0),
				       v.span_b + GX_MAX(lo, 0) - 1, &first));
		if (lo < 0)
			assert_false(view_span(&v, (uint64_t)-lo - 1, 1 << 30, &first));
		assert_false(view_span(&v, UINT64_MAX - 5, 1 << 30, &first));
	}
}

static uint8_t mem[MEM_B * 8], lin[MEM_B], out[MEM_B], want[MEM_B * 8];

/* In order, in pieces of any length; then some again, anywhere. */
static void pieces_move(struct view_at *at, uint64_t len, bool lands)
{
	for (uint64_t off = 0, part; off < len; off += part) {
		part = 1 + rnd(rnd(2) ? 2000 : 90);
		part = GX_MIN(part, len - off);
		if (lands)
			view_scatter(at, off, part, (char *)lin + off);
		else
			view_gather(at, off, part, (char *)out + off);
	}
	for (unsigned k = 0; k < 5 && len; k++) {
		uint64_t off = rnd(len), part = rnd(len - off + 1);

		if (lands)
			view_scatter(at, off, part, (char *)lin + off);
		else
			view_gather(at, off, part, (char *)out + off);
	}
}

static void view__copies_as_the_model(void **state)
{
	for (unsigned n = 0; n < 1000; n++) {
		struct gx_view w = view_any();
		struct view v = taken(&w, true);
		char *base = (char *)mem + sizeof(mem) / 2;
		struct view_at at;

		if (v.len > MEM_B)
			continue;
		for (unsigned i = 0; i < v.len; i++)
			lin[i] = (uint8_t)rnd(256);
		if (w.nr_rows) /* rows that meet: the order is that of the pieces */
			for (uint64_t i = 0; i < v.len; i++)
				lin[i] = (uint8_t)(model_at(&w, i) * 37 % 251);
		memset(mem, POISON, sizeof(mem));
		memset(want, POISON, sizeof(want));
		for (uint64_t i = 0; i < v.len; i++)
			want[(int64_t)sizeof(mem) / 2 + model_at(&w, i)] = lin[i];
		view_at_init(&at, &v, base, 0);
		pieces_move(&at, v.len, true);
		assert_memory_equal(mem, want, sizeof(mem));
		view_at_init(&at, &v, base, 0);
		pieces_move(&at, v.len, false);
		assert_memory_equal(out, lin, v.len);
		assert_memory_equal(mem, want, sizeof(mem));
	}
}

static void view__find_names_each_byte(void **state)
{
	for (unsigned n = 0; n < 500; n++) {
		struct gx_view w = view_any();
		struct view v = taken(&w, true);
		char *base = (char *)mem + sizeof(mem) / 2;
		struct view_at at;
		unsigned again = 0;
		uint64_t from = n % 2 ? rnd(v.len) : 0;

		view_at_init(&at, &v, base, from);
		for (uint64_t off = rnd(v.len - from); off < v.len - from;) {
			uint32_t part = 1 + (uint32_t)rnd(300);
			char *p = view_find(&at, off, &part);

			for (uint32_t i = 0; i < part && from + off + i < v.len; i++)
				assert_ptr_equal(p + i, base + model_at(&w, from + off + i));
			assert_true(part);
			off += part;
			if (!rnd(8) && again++ < 20)
				off = rnd(off + 1);
		}
	}
}

/* A row that somebody changes under way stays within those that were checked. */
static void view__rows_are_held(void **state)
{
	uint32_t own[] = {9, 4, 6, 5};
	struct gx_view w = {.run_b = 16, .nr_rows = 4, .rows = own, .row_b = 16};
	struct view v = taken(&w, true);
	struct view_at at;

	own[1] = 1000000;
	own[2] = 0;
	memset(mem, POISON, sizeof(mem));
	view_at_init(&at, &v, (char *)mem, 0);
	view_scatter(&at, 0, v.len, (char *)lin);
	for (unsigned i = 0; i < sizeof(mem); i++)
		assert_true((i >= 64 && i < 160) || mem[i] == POISON);
}

/* ---- Refused ---- */

static void refused(const struct gx_view *w, bool lands, const char *words)
{
	char why[VIEW_WHY_MAX] = "";
	struct view v;

	assert_int_equal(view_take(w, lands, &v, why), -EINVAL);
	if (!strstr(why, words))
		fail_msg("'%s' is not in '%s'", words, why);
}

static void view__overlaps_are_named(void **state)
{
	struct gx_view w = {.run_b = 64, .dim = {{4, 1024}, {3, 320}, {5, 64}}, .nr_dims = 3};

	taken(&w, true);
	w.dim[2].stride_b = 63;
	refused(&w, true, "dim[2]");
	taken(&w, false); /* to read them is fine */
	w.dim[2].stride_b = -63;
	refused(&w, true, "dim[2]");
	w.dim[2].stride_b = -64;
	taken(&w, true);
	w.dim[1].stride_b = 319;
	refused(&w, true, "dim[1]");
	w.dim[1].stride_b = 320;
	w.dim[0].stride_b = 959;
	refused(&w, true, "dim[0]");
	w.dim[0] = (struct gx_view_dim){2, 0};
	refused(&w, true, "dim[0]");
	w.dim[0] = (struct gx_view_dim){1, 0};
	taken(&w, true);
	/* Swapped, it is the outer one that has no room. */
	w = (struct gx_view){.run_b = 8, .dim = {{10, 8}, {4, 40}}, .nr_dims = 2};
	refused(&w, true, "dim[1]");
	w.dim[1].stride_b = 80;
	taken(&w, true);
}

static void view__limits(void **state)
{
	const struct gx_view good = {.run_b = 8, .dim = {{4, 8}}, .nr_dims = 1};
	uint32_t row = UINT32_MAX;
	struct gx_view w = good;

	w.run_b = 0;
	refused(&w, true, "run_b");
	w.run_b = (1ull << 36) + 1;
	refused(&w, true, "run_b");
	w = good;
	w.nr_dims = 5;
	refused(&w, true, "nr_dims 5");
	w = good;
	w.dim[0].count = 0;
	refused(&w, true, "dim[0]");
	w.dim[0].count = 1ull << 61; /* times 8: 2^64 */
	refused(&w, false, "64 GiB");
	w.dim[0].count = (1ull << 33) + 1;
	refused(&w, false, "64 GiB");
	w.dim[0] = (struct gx_view_dim){2, INT64_MAX};
	refused(&w, false, "2^63");
	w.dim[0] = (struct gx_view_dim){3, INT64_MIN};
	refused(&w, false, "2^63");
	w.dim[0] = (struct gx_view_dim){1u << 31, 1ull << 33};
	refused(&w, false, "2^63");
	w = good;
	w.nr_rows = 1;
	refused(&w, true, "nr_rows");
	w.rows = &row;
	w.nr_rows = GX_VIEW_ROWS_MAX + 1;
	refused(&w, true, "nr_rows");
	w.nr_rows = 0;
	refused(&w, true, "nr_rows");
	w.nr_rows = 1;
	w.row_b = 1ull << 40;
	refused(&w, true, "2^63");
	w.row_b = UINT64_MAX;
	refused(&w, true, "row_b");
	w.row_b = 1 << 20;
	assert_int_equal(taken(&w, true).lo, (uint64_t)UINT32_MAX << 20);
}

/* A part's pieces are counted from the begin of the views: a GPU counts to GX_MOVE_MAX. */
static void pieces__of_a_part(void **state)
{
	struct list_pieces p = list_pieces(576, 576 * 10, 576 * 5 + 64);

	assert_int_equal(p.b, 64);
	assert_int_equal(p.first, 90);
	assert_int_equal(p.end, 90 + 46);
	p = list_pieces(16, 0, 16ull * GX_MOVE_MAX);
	assert_int_equal(p.end, GX_MOVE_MAX);
	assert_true(local_moves(&p));
	p = list_pieces(16, 16ull * (GX_MOVE_MAX - 1), 32);
	assert_int_equal(p.b, 16);
	assert_false(local_moves(&p));
	p = list_pieces(2 * DMA_MOVE_B, 0, 2 * DMA_MOVE_B);
	assert_false(local_moves(&p));
	p = list_pieces(DMA_MOVE_B, 0, 2 * DMA_MOVE_B);
	assert_true(local_moves(&p));
}

/* Of memory of a GPU: 2^30 pieces, as gx/op.h says. */
static void pieces__a_kernel_gathers(void **state)
{
	struct gx_view w = {.run_b = 16, .dim = {{1u << 30, 32}}, .nr_dims = 1};
	char why[VIEW_WHY_MAX];
	struct view_at at;
	struct view v;

	for (unsigned more = 0; more < 2; more++, w.dim[0].count++) {
		assert_int_equal(view_take(&w, false, &v, why), 0);
		view_at_init(&at, &v, NULL, 0);
		assert_int_equal(view_stages(&at, v.len), !more);
	}
}

/* What lies without a gap is one run. */
static void view__merges(void **state)
{
	struct gx_view w = {
		.run_b = 2, .dim = {{3, 4096}, {1, -7}, {16, 256}, {128, 2}}, .nr_dims = 4};
	struct view v = taken(&w, true);

	assert_int_equal(v.run_b, 4096 * 3);
	for (unsigned i = 0; i < GX_VIEW_DIMS; i++)
		assert_int_equal(v.dim[i].count, 1);
	w.dim[2].stride_b = 512;
	w.dim[0].stride_b = 8192;
	v = taken(&w, true);
	assert_int_equal(v.run_b, 256);
	assert_int_equal(v.dim[3].count, 16);
	assert_int_equal(v.dim[2].count, 3);
	view_plain(&v, 77);
	assert_int_equal(v.len, 77);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(view__span_is_that_of_the_model),
		cmocka_unit_test(view__copies_as_the_model),
		cmocka_unit_test(view__find_names_each_byte),
		cmocka_unit_test(view__rows_are_held),
		cmocka_unit_test(view__overlaps_are_named),
		cmocka_unit_test(view__limits),
		cmocka_unit_test(pieces__of_a_part),
		cmocka_unit_test(pieces__a_kernel_gathers),
		cmocka_unit_test(view__merges),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
