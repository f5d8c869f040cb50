/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu/view_core.h on the CPU: a division that multiplies is exact, a piece lies where the loops of
 * gx/op.h put it, and tiles have all words once, aligned, with room for the places of their pieces.
 */
#include "gx_internal/base.h"
#include "view_core.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TOP   0x7fffffffu /* the largest number that is divided */
#define LOOPS 20000
#define ROWS  64

static uint64_t seed;

static uint64_t rnd(uint64_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (seed >> 29) % n;
}

/* ---- gx_view_div() ---- */

static void divides(uint32_t n, const struct gx_view_by *by)
{
	if (gx_view_div(n, by) != n / by->by)
		fail_msg("%u / %u is %u, not %u", n, by->by, n / by->by, gx_view_div(n, by));
}

/* Quotients change at multiples of the divisor: on both sides of some, and of the last. */
static void divisor(uint32_t d)
{
	struct gx_view_by by = gx_view_by_get(d);

	assert_int_equal(by.by, d);
	for (unsigned i = 0; i < 12; i++) {
		uint32_t most = TOP / d;
		uint32_t at = d * (i == 0 ? most : i == 1 ? 1 : (uint32_t)rnd((uint64_t)most + 1));

		divides(at, &by);
		divides(at ? at - 1 : 0, &by);
		divides(GX_MIN(at + 1, TOP), &by);
	}
	divides(0, &by);
	divides(TOP, &by);
	divides(TOP - 1, &by);
}

static void div__around_multiples(void **state)
{
	for (uint32_t d = 1; d < LOOPS; d++)
		divisor(d);
	for (unsigned shift = 1; shift < 32; shift++) {
		divisor((1u << shift) - 1);
		divisor(1u << shift);
		if (shift < 31)
			divisor((1u << shift) + 1);
	}
	for (unsigned i = 0; i < LOOPS; i++)
		divisor(1 + (uint32_t)rnd(TOP >> rnd(31)));
}

static void div__every_small_one(void **state)
{
	for (uint32_t d = 1; d < 40; d++) {
		struct gx_view_by by = gx_view_by_get(d);

		for (uint32_t n = 0; n < 1u << 17; n++)
			divides(n, &by);
	}
}

/* ---- gx_view_place() ---- */

/* An end of a move with so many pieces as it returns. */
static uint64_t end_draw(struct gx_move_end *e, uint64_t piece_b, uint64_t unit,
			 uint32_t rows[ROWS])
{
	uint64_t nr = 1 + rnd(5);

	memset(e, 0, sizeof(*e));
	e->base = (rnd(1u << 20) + (1u << 20)) * unit;
	e->run_b = nr * piece_b;
	for (unsigned k = 0; k < GX_MOVE_DIMS; k++) {
		e->dim[k].count = rnd(3) ? 1 + rnd(9) : 1;
		e->dim[k].stride_b = ((int64_t)rnd(1u << 16) - (1 << 15)) * (int64_t)unit;
		nr *= e->dim[k].count;
	}
	if (rnd(2))
		return nr;
	for (unsigned i = 0; i < ROWS; i++)
		rows[i] = (uint32_t)rnd(1u << 20);
	e->rows = rows;
	e->row_b = rnd(1u << 12) * unit;
	e->row0 = rnd(8);
	return nr * (e->row0 + ROWS);
}

/* Piece @n by the words of gx/op.h: the last dimension is the innermost, rows are the outermost. */
static uint64_t place(const struct gx_move_end *e, uint64_t piece_b, uint64_t n)
{
	uint64_t at = e->base + n % (e->run_b / piece_b) * piece_b;

	n /= e->run_b / piece_b;
	for (unsigned k = GX_MOVE_DIMS; k-- > 0; n /= e->dim[k].count)
		at += n % e->dim[k].count * (uint64_t)e->dim[k].stride_b;
	return e->rows ? at + e->rows[n - e->row0] * e->row_b : at;
}

static uint64_t first_piece(const struct gx_move_end *e, uint64_t piece_b)
{
	uint64_t nr = e->run_b / piece_b;

	for (unsigned k = 0; k < GX_MOVE_DIMS; k++)
		nr *= e->dim[k].count;
	return e->rows ? nr * e->row0 : 0;
}

static void plan_draw(struct gx_move *m, struct gx_view_args *a, uint32_t rows[2][ROWS])
{
	static const uint64_t units[] = {1, 2, 4, 8, 12, 16, 32, 48};
	uint64_t unit = units[rnd(8)], src, dst;

	memset(a, 0, sizeof(*a));
	m->piece_b = unit * (1 + rnd(rnd(4) ? 20 : 3000));
	do {
		src = end_draw(&m->src, m->piece_b, units[rnd(2) * 7] * unit, rows[0]);
		dst = end_draw(&m->dst, m->piece_b, unit, rows[1]);
		m->first = (uint32_t)GX_MAX(first_piece(&m->src, m->piece_b),
					    first_piece(&m->dst, m->piece_b));
	} while (GX_MIN(src, dst) <= m->first);
	m->nr = (uint32_t)GX_MIN(GX_MIN(src, dst) - m->first, TOP / m->piece_b);
	gx_view_plan(a, m);
}

static void place__as_the_loops_have_it(void **state)
{
	static uint32_t rows[2][ROWS];
	struct gx_view_args a;
	struct gx_move m;

	for (unsigned i = 0; i < LOOPS / 10; i++) {
		plan_draw(&m, &a, rows);
		for (unsigned k = 0; k < 40; k++) {
			uint32_t n = m.first + (k == 0	 ? 0
						: k == 1 ? m.nr - 1
							 : (uint32_t)rnd(m.nr));

			assert_int_equal(gx_view_place(&a.src, n), place(&m.src, m.piece_b, n));
			assert_int_equal(gx_view_place(&a.dst, n), place(&m.dst, m.piece_b, n));
			assert_int_equal(gx_view_place(&a.src, n) % a.word_b, 0);
			assert_int_equal(gx_view_place(&a.dst, n) % a.word_b, 0);
		}
	}
}

/* ---- gx_view_plan() ---- */

static void tiles__have_all_words_and_few_pieces(void **state)
{
	static uint32_t rows[2][ROWS];
	struct gx_view_args a;
	struct gx_move m;

	for (unsigned i = 0; i < LOOPS / 4; i++) {
		uint64_t done = 0;

		plan_draw(&m, &a, rows);
		assert_true(a.word_b == 1 || a.word_b == 4 || a.word_b == 16);
		assert_int_equal(m.piece_b % a.word_b, 0);
		assert_int_equal((uint64_t)a.words * a.word_b, m.nr * m.piece_b);
		assert_true(a.tile && a.tile <= GX_VIEW_TILE);
		for (uint32_t t = 0; done < a.words; t++) {
			uint32_t n = gx_view_tile(&a, t), begin = t * a.tile;
			uint32_t first = gx_view_div(begin, &a.piece_w);

			assert_int_equal(begin, done);
			assert_true(n && n <= a.tile);
			/* gather.cu has places for so many */
			assert_true(gx_view_div(begin + n - 1, &a.piece_w) - first + 1 <=
				    GX_VIEW_PLACES);
			done += n;
		}
		assert_int_equal(done, a.words);
	}
}

/* All is a multiple of 16 but one thing, which alone says how wide a word may be. */
static void words__by_what_is_least_aligned(void **state)
{
	static const uint64_t low[] = {1, 2, 4, 8, 12};
	static const uint32_t want[] = {1, 1, 4, 4, 4};
	uint32_t rows[1] = {0};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(low); i++)
		for (unsigned which = 0; which < 8; which++) {
			struct gx_move m = {.piece_b = 64, .nr = 2};
			struct gx_move_end *e = which & 1 ? &m.src : &m.dst;
			struct gx_view_args a;

			for (unsigned side = 0; side < 2; side++) {
				struct gx_move_end *x = side ? &m.src : &m.dst;

				*x = (struct gx_move_end){
					.base = 4096, .run_b = 64, .rows = rows, .row_b = 256};
				for (unsigned k = 0; k < GX_MOVE_DIMS; k++)
					x->dim[k].count = 1;
				x->dim[3].count = 2;
				x->dim[3].stride_b = -128;
			}
			if (which / 2 == 0)
				e->base += low[i];
			else if (which / 2 == 1)
				e->dim[3].stride_b -= (int64_t)low[i];
			else if (which / 2 == 2)
				e->row_b += low[i];
			gx_view_plan(&a, &m);
			assert_int_equal(a.word_b, which / 2 == 3 ? 16 : want[i]);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(div__around_multiples),
		cmocka_unit_test(div__every_small_one),
		cmocka_unit_test(place__as_the_loops_have_it),
		cmocka_unit_test(tiles__have_all_words_and_few_pieces),
		cmocka_unit_test(words__by_what_is_least_aligned),
	};

	return cmocka_run_group_tests_name("view_core", tests, NULL, NULL);
}
