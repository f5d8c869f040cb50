/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves from view to view of dma.c, over the CPU backend, which finishes late: they end in order, more rows
 * than one launch has go by several, numbers that wrap, and a GPU that fails or does not finish. It has the
 * source, to begin with other numbers.
 */
#include "copy/dma.c"
#include "copy/dma_rig.h"

#include <string.h>

#define ROWS (DMA_ROWS + 100)
#define LEN  ((size_t)ROWS * 24)

static int setup(void **state)
{
	struct rig *r = rig_open(LEN, DMA_AUTO);

	r->rows = malloc(ROWS * sizeof(*r->rows));
	for (uint32_t i = 0; i < ROWS; i++)
		r->rows[i] = (uint32_t)(i * 7919ull % ROWS);
	assert_true(dma_moves(r->d));
	*state = r;
	return 0;
}

/* Rows of 16 bytes, 24 apart, into a plain range. */
static struct gx_move move_of(const struct rig *r, uint32_t first, uint32_t nr)
{
	struct gx_move m = {
		.src = {.base = (uintptr_t)r->src, .run_b = 16, .rows = r->rows, .row_b = 24},
		.dst = {.base = (uintptr_t)r->dst, .run_b = (uint64_t)ROWS * 16},
		.piece_b = 16,
		.first = first,
		.nr = nr};

	for (unsigned d = 0; d < GX_MOVE_DIMS; d++)
		m.src.dim[d].count = m.dst.dim[d].count = 1;
	return m;
}

static void check_rows(const struct rig *r, uint32_t first, uint32_t nr)
{
	for (uint32_t i = first; i < first + nr; i++)
		assert_memory_equal(r->dst + (size_t)i * 16, r->src + (size_t)r->rows[i] * 24, 16);
}

static void dma_move__more_rows_than_fit(void **state)
{
	struct rig *r = *state;
	struct gx_move m = move_of(r, 0, ROWS);
	struct dma_ticket t[2];

	assert_int_equal(dma_move(r->d, &m, 0, &t[0]), DMA_ROWS);
	m.first = DMA_ROWS;
	m.nr = ROWS - DMA_ROWS;
	assert_int_equal(dma_move(r->d, &m, 0, &t[1]), m.nr);
	memset(r->rows, 0xff, ROWS * sizeof(*r->rows)); /* they were copied */
	dma_reap(r->d, DELAY - 1);
	assert_false(dma_done(r->d, t[0]));
	dma_reap(r->d, DELAY);
	assert_true(dma_done(r->d, t[0]) && dma_done(r->d, t[1]));
	for (uint32_t i = 0; i < ROWS; i++)
		r->rows[i] = (uint32_t)(i * 7919ull % ROWS);
	check_rows(r, 0, ROWS);
}

/* From number 2^32 - 6 on, and from 2^31 - 6 on: as many at once as there may be, more than pass the wrap. */
static void numbers_wrap(struct rig *r, uint32_t from)
{
	struct dma_moves *m = &r->d->moves;
	uint64_t now_ns = 0;

	m->begun = m->done = *flag_of(r->d, (struct dma_ticket){.stream = BY_MOVE}) = from;
	memset(r->dst, 0, LEN);
	for (unsigned round = 0; round < 4; round++) {
		struct dma_ticket t[DMA_MOVES], none;

		for (unsigned i = 0; i < DMA_MOVES; i++) {
			struct gx_move move = move_of(r, 50 * (4 * round + i), 50);

			assert_int_equal(dma_move(r->d, &move, now_ns + i, &t[i]), 50);
		}
		assert_int_equal(
			dma_move(r->d, &(struct gx_move){.piece_b = 16, .nr = 1}, now_ns, &none),
			0);
		for (unsigned i = 0; i < DMA_MOVES; i++) {
			assert_false(dma_done(r->d, t[i]));
			assert_true(dma_reap(r->d, now_ns + i + DELAY));
			for (unsigned k = 0; k < DMA_MOVES; k++)
				assert_int_equal(dma_done(r->d, t[k]), k <= i);
		}
		now_ns += 10 * DELAY;
	}
	assert_int_equal(dma_err(r->d), 0);
	check_rows(r, 0, 800);
}

static void dma_move__numbers_wrap(void **state)
{
	numbers_wrap(*state, UINT32_MAX - 5);
	numbers_wrap(*state, INT32_MAX - 5);
}

static int gather_refused(struct gx_gpu_stream *s, const struct gx_gpu_gather *g, uint32_t *done,
			  uint32_t value, uint64_t now_ns)
{
	return -EAGAIN;
}

static int faulted(struct gx_gpu_stream *s)
{
	return -EIO;
}

/* A launch that is refused is tried again; after one that failed nothing begins any more. */
static void dma_move__stream_fails(void **state)
{
	struct rig *r = *state;
	struct gx_move m = move_of(r, 0, 10);
	struct dma_ticket t;

	r->stream.gather = gather_refused;
	assert_int_equal(dma_move(r->d, &m, 0, &t), 0);
	assert_int_equal(dma_err(r->d), 0);
	r->stream.fault = faulted;
	r->stream.gather = gather_refused;
	assert_int_equal(dma_move(r->d, &m, 0, &t), 0);
	assert_int_equal(dma_err(r->d), -EIO);
	assert_int_equal(dma_move(r->d, &m, 0, &t), 0);
}

/* The GPU stops within a move: what has not ended is not told ended, in bounded time. */
static void dma_move__does_not_finish(void **state)
{
	struct rig *r = *state;
	struct gx_move m = move_of(r, 0, 10);
	struct dma_ticket t;

	assert_int_equal(dma_move(r->d, &m, 10 * TIMEOUT, &t),
			 10); /* the poster's clock is ahead */
	assert_false(dma_reap(r->d, 5));
	assert_false(dma_reap(r->d, 5 + TIMEOUT));
	assert_int_equal(dma_err(r->d), 0);
	dma_reap(r->d, 6 + TIMEOUT);
	assert_int_equal(dma_err(r->d), -ETIMEDOUT);
	assert_false(dma_done(r->d, t));
	assert_int_equal(dma_move(r->d, &m, 6 + TIMEOUT, &t), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(dma_move__more_rows_than_fit),
		TEST(dma_move__numbers_wrap),
		TEST(dma_move__stream_fails),
		TEST(dma_move__does_not_finish),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
