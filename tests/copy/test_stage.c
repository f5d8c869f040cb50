/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage.c over the CPU backend, whose copies finish late: a chunk is not sent before it is there, a
 * buffer not used again before the copy into it has ended. It has the source, to begin with other tickets.
 */
#include "copy/stage.c"
#include "gpu/late_gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define CHUNK_B 65536u
#define NR	6u
#define DELAY	10000u
#define TIMEOUT 1000000u

struct rig {
	struct gx_gpu *gpu;
	struct gx_arena *arena;
	struct stage *s;
	char *src;
};

static void rig_open_delay(struct rig *r, uint64_t delay_ns)
{
	*r = (struct rig){.src = malloc(STAGE_MSG_CHUNKS * CHUNK_B)};
	for (unsigned i = 0; i < STAGE_MSG_CHUNKS * CHUNK_B; i++)
		r->src[i] = (char)(i / CHUNK_B + i * 3);
	assert_int_equal(late_gpu_open(delay_ns, &r->gpu), 0);
	assert_int_equal(gx_arena_open(64 << 20, &r->arena), 0);
	assert_int_equal(stage_open(r->gpu, r->arena, CHUNK_B, NR, TIMEOUT, &r->s), 0);
}

static void rig_open(struct rig *r)
{
	rig_open_delay(r, DELAY);
}

static void rig_close(struct rig *r)
{
	stage_close(r->s);
	gx_arena_close(r->arena);
	gx_gpu_host_ops.close(r->gpu);
	free(r->src);
}

/* Every buffer can be had again at @now_ns: nothing leaked. */
static void rig_check_all_free(struct rig *r, uint64_t now_ns)
{
	struct stage_msg m;
	unsigned n = 0;

	stage_msg_init(&m);
	while (stage_fetch(r->s, &m, r->src, CHUNK_B, 0, now_ns))
		n++;
	assert_int_equal(n, NR);
	stage_reap(r->s, now_ns + DELAY);
	stage_drop(r->s, &m, m.next);
}

static void stage_ready__after_the_copy(void **state)
{
	struct stage_msg m;
	const char *p;
	struct rig r;

	rig_open(&r);
	stage_msg_init(&m);
	assert_null(stage_ready(r.s, &m, 0));
	assert_true(stage_fetch(r.s, &m, r.src, 1000, 0, 0));
	stage_reap(r.s, DELAY - 1);
	assert_null(stage_ready(r.s, &m, 0));
	stage_reap(r.s, DELAY);
	p = stage_ready(r.s, &m, 0);
	assert_non_null(p);
	assert_memory_equal(p, r.src, 1000);
	assert_null(stage_ready(r.s, &m, 1));
	stage_drop(r.s, &m, 1);
	assert_null(stage_ready(r.s, &m, 0));
	rig_check_all_free(&r, 2 * DELAY);
	rig_close(&r);
}

static void stage_fetch__no_more_than_there_are(void **state)
{
	struct stage_msg m;
	struct rig r;

	rig_open(&r);
	stage_msg_init(&m);
	for (unsigned i = 0; i < NR; i++)
		assert_true(stage_fetch(r.s, &m, r.src + i * CHUNK_B, CHUNK_B, 0, 0));
	assert_false(stage_fetch(r.s, &m, r.src, CHUNK_B, 0, 0));
	stage_reap(r.s, DELAY);
	for (unsigned i = 0; i < NR; i++)
		assert_memory_equal(stage_ready(r.s, &m, i), r.src + i * CHUNK_B, CHUNK_B);
	stage_drop(r.s, &m, 2);
	assert_true(stage_fetch(r.s, &m, r.src, CHUNK_B, 0, DELAY));
	assert_true(stage_fetch(r.s, &m, r.src, CHUNK_B, 0, DELAY));
	assert_false(stage_fetch(r.s, &m, r.src, CHUNK_B, 0, DELAY));
	for (unsigned i = 2; i < NR; i++) /* those that stay are what they were */
		assert_memory_equal(stage_ready(r.s, &m, i), r.src + i * CHUNK_B, CHUNK_B);
	stage_reap(r.s, 2 * DELAY);
	stage_drop(r.s, &m, m.next);
	rig_check_all_free(&r, 2 * DELAY);
	rig_close(&r);
}

/* A message given up while its chunk is being copied: the buffer belongs to the copy until that has
 * ended. */
static void stage_drop__under_way(void **state)
{
	struct stage_msg a, b;
	struct rig r;

	rig_open(&r);
	stage_msg_init(&a);
	stage_msg_init(&b);
	for (unsigned i = 0; i < NR; i++)
		assert_true(stage_fetch(r.s, &a, r.src, CHUNK_B, 0, 0));
	stage_drop(r.s, &a, a.next);
	assert_false(stage_fetch(r.s, &b, r.src, CHUNK_B, 0, 0));
	stage_reap(r.s, DELAY);
	assert_true(stage_fetch(r.s, &b, r.src + CHUNK_B, CHUNK_B, 0, DELAY));
	assert_null(stage_ready(r.s, &b, 0)); /* not ready by the flag of the copy before it */
	stage_reap(r.s, 2 * DELAY);
	assert_memory_equal(stage_ready(r.s, &b, 0), r.src + CHUNK_B, CHUNK_B);
	stage_drop(r.s, &b, b.next);
	rig_check_all_free(&r, 2 * DELAY);
	rig_close(&r);
}

/* One message, many times round the ring, and two at once. */
static void stage_fetch__round_and_round(void **state)
{
	struct stage_msg m[2];
	uint64_t now_ns = 0;
	struct rig r;

	rig_open(&r);
	stage_msg_init(&m[0]);
	stage_msg_init(&m[1]);
	for (unsigned i = 0; i < 1000; i++, now_ns += DELAY) {
		struct stage_msg *one = &m[i & 1];
		uint64_t chunk = one->next;

		assert_true(stage_fetch(r.s, one, r.src + i % STAGE_MSG_CHUNKS * CHUNK_B, CHUNK_B,
					0, now_ns));
		assert_null(stage_ready(r.s, one, chunk));
		stage_reap(r.s, now_ns + DELAY);
		assert_int_equal(stage_ready(r.s, one, chunk)[7],
				 r.src[i % STAGE_MSG_CHUNKS * CHUNK_B + 7]);
		stage_drop(r.s, one, chunk >= 1 ? chunk - 1 : 0);
	}
	stage_drop(r.s, &m[0], m[0].next);
	stage_drop(r.s, &m[1], m[1].next);
	rig_check_all_free(&r, now_ns);
	rig_close(&r);
}

static void stage_close__with_copies_under_way(void **state)
{
	struct stage_msg m;
	struct rig r;

	rig_open(&r);
	stage_msg_init(&m);
	assert_true(stage_fetch(r.s, &m, r.src, CHUNK_B, 0, 0));
	rig_close(&r);
}

static void stage_fetch__keeps_some(void **state)
{
	struct stage_msg m, n;
	struct rig r;

	rig_open(&r);
	stage_msg_init(&m);
	stage_msg_init(&n);
	for (unsigned i = 0; i < NR - 2; i++)
		assert_true(stage_fetch(r.s, &m, r.src, CHUNK_B, 2, 0));
	assert_false(stage_fetch(r.s, &m, r.src, CHUNK_B, 2, 0));
	assert_true(stage_fetch(r.s, &m, r.src, CHUNK_B, 1, 0));
	assert_false(stage_fetch(r.s, &m, r.src, CHUNK_B, 1, 0));
	assert_true(stage_fetch(r.s, &n, r.src, CHUNK_B, 0, 0));
	assert_false(stage_fetch(r.s, &n, r.src, CHUNK_B, 0, 0));
	stage_reap(r.s, DELAY);
	stage_drop(r.s, &m, m.next);
	stage_drop(r.s, &n, n.next);
	rig_check_all_free(&r, DELAY);
	rig_close(&r);
}

static void stage_is_short__for_a_while(void **state)
{
	struct stage_msg m;
	struct rig r;

	rig_open(&r);
	stage_msg_init(&m);
	for (unsigned i = 0; i < NR; i++)
		assert_true(stage_fetch(r.s, &m, r.src, CHUNK_B, 0, 0));
	assert_false(stage_is_short(r.s, 0));
	assert_false(stage_fetch(r.s, &m, r.src, CHUNK_B, 0, 1000));
	assert_true(stage_is_short(r.s, 1000));
	assert_true(stage_is_short(r.s, 1000 + 1999999));
	assert_false(stage_is_short(r.s, 1000 + 2000000));
	rig_close(&r);
}

/* The last chunks go back and are fetched again, each into the buffer that it gets then. */
static void stage_cut__the_last_come_again(void **state)
{
	struct stage_msg m;
	struct rig r;

	rig_open(&r);
	stage_msg_init(&m);
	for (unsigned i = 0; i < NR; i++)
		assert_true(stage_fetch(r.s, &m, r.src + i * CHUNK_B, CHUNK_B, 0, 0));
	stage_cut(r.s, &m, NR);
	assert_int_equal(m.next, NR);
	stage_reap(r.s, DELAY);
	stage_cut(r.s, &m, 2);
	assert_null(stage_ready(r.s, &m, 2));
	assert_memory_equal(stage_ready(r.s, &m, 1), r.src + CHUNK_B, CHUNK_B);
	for (unsigned i = 2; i < NR; i++)
		assert_true(stage_fetch(r.s, &m, r.src + i * CHUNK_B, CHUNK_B, 0, DELAY));
	assert_false(stage_fetch(r.s, &m, r.src, CHUNK_B, 0, DELAY));
	stage_reap(r.s, 2 * DELAY);
	for (unsigned i = 0; i < NR; i++)
		assert_memory_equal(stage_ready(r.s, &m, i), r.src + i * CHUNK_B, CHUNK_B);
	stage_drop(r.s, &m, 3);
	stage_cut(r.s, &m, 1); /* not below the first */
	assert_int_equal(m.next, 3);
	assert_int_equal(m.first, 3);
	rig_check_all_free(&r, 2 * DELAY);
	rig_close(&r);
}

static void stage_fetch__in_time(void **state)
{
	struct stage_msg m;
	struct rig r;

	rig_open_delay(&r, 0);
	stage_msg_init(&m);
	assert_true(stage_fetch(r.s, &m, r.src, CHUNK_B, 0, 0));
	assert_memory_equal(stage_ready(r.s, &m, 0), r.src, CHUNK_B);
	stage_drop(r.s, &m, 1);
	rig_check_all_free(&r, 0);
	rig_close(&r);
}

static void stage_reap__does_not_finish(void **state)
{
	struct stage_msg m;
	struct rig r;

	rig_open_delay(&r, 10 * TIMEOUT);
	stage_msg_init(&m);
	assert_true(stage_fetch(r.s, &m, r.src, CHUNK_B, 0, 5)); /* after the last turn, long ago */
	stage_reap(r.s, 3 * TIMEOUT);
	stage_reap(r.s, 3 * TIMEOUT - 1); /* a clock that is behind */
	stage_reap(r.s, 4 * TIMEOUT);
	assert_int_equal(stage_err(r.s), 0);
	stage_reap(r.s, 4 * TIMEOUT + 1);
	assert_int_equal(stage_err(r.s), -ETIMEDOUT);
	assert_false(stage_fetch(r.s, &m, r.src, CHUNK_B, 0, 4 * TIMEOUT + 1));
	assert_null(stage_ready(r.s, &m, 0));
	stage_drop(r.s, &m, m.next);
	rig_close(&r);
}

static int copy_refused(struct gx_gpu_stream *s, const struct gx_gpu_copy list[], unsigned n,
			uint32_t *done, uint32_t value, uint64_t now_ns)
{
	return -EINVAL;
}

static void stage_fetch__refused_address(void **state)
{
	struct gx_gpu_stream_ops refusing;
	struct stage_msg m;
	struct rig r;

	rig_open(&r);
	stage_msg_init(&m);
	stage_close(r.s);
	refusing = *r.gpu->stream;
	refusing.copy = copy_refused;
	r.gpu->stream = &refusing;
	assert_int_equal(stage_open(r.gpu, r.arena, CHUNK_B, NR, TIMEOUT, &r.s), 0);
	assert_false(stage_fetch(r.s, &m, r.src, CHUNK_B, 0, 0));
	assert_int_equal(stage_err(r.s), -EIO);
	rig_close(&r);
}

/* Two chunks of rows of 96 bytes, in pieces of 32, from the second piece on; what another writes there
 * meanwhile is held within the rows that were checked. The caller's move may go at once. */
static void stage_gather__rows(void **state)
{
	enum { ROW = 96, PIECE = 32, PIECES = 300 };
	uint32_t rows[PIECES / 3 + 1];
	struct stage_msg m;
	struct rig r;

	rig_open(&r);
	stage_msg_init(&m);
	for (unsigned k = 0; k < 2; k++) {
		struct gx_move move = {.src = {.base = (uintptr_t)r.src + k,
					       .run_b = ROW,
					       .dim = {{1, 0}, {1, 0}, {1, 0}, {1, 0}},
					       .rows = rows,
					       .row_b = 200},
				       .piece_b = PIECE,
				       .first = 1,
				       .nr = PIECES};

		for (uint32_t i = 0; i <= PIECES / 3; i++)
			rows[i] = i % 50 == 7 ? 1100 : i % 50 == 9 ? 0 : i * 77 % 1000 + 3;
		assert_true(stage_gather(r.s, &m, &move,
					 &(struct stage_rows){PIECES / 3 + 1, 3, 1002}, 0, 0));
		memset(&move, 0, sizeof(move));
		memset(rows, 0xff, sizeof(rows));
		assert_null(stage_ready(r.s, &m, k));
	}
	stage_reap(r.s, DELAY);
	for (unsigned k = 0; k < 2; k++) {
		const char *got = stage_ready(r.s, &m, k);

		assert_non_null(got);
		for (uint32_t n = 1; n <= PIECES; n++) {
			uint32_t i = n / 3, row = i * 77 % 1000 + 3;

			row = i % 50 == 7 ? 1002 : i % 50 == 9 ? 3 : row;
			assert_memory_equal(got + (n - 1) * PIECE,
					    r.src + k + row * 200 + n % 3 * PIECE, PIECE);
		}
	}
	stage_drop(r.s, &m, 2);
	rig_check_all_free(&r, 2 * DELAY);
	rig_close(&r);
}

/* Tickets pass 2^32, where none is 0, and 2^31: a chunk is there, and a ticket past, when its own gather has
 * ended; also that of a buffer whose message has gone. */
static void tickets_wrap(uint32_t from)
{
	const struct gx_move move = {.piece_b = 64, .nr = CHUNK_B / 64};
	struct stage_msg m;
	struct rig r;

	rig_open(&r);
	rig_check_all_free(&r, 0); /* each buffer has had a ticket */
	r.s->ticket = from;
	stage_msg_init(&m);
	for (unsigned k = 0; k < 20; k++) {
		struct gx_move own = move;
		uint64_t now_ns = (k + 1) * 10 * DELAY;
		uint32_t before = stage_ticket(r.s);

		own.src =
			(struct gx_move_end){.base = (uintptr_t)r.src + k,
					     .run_b = 64,
					     .dim = {{1, 0}, {1, 0}, {1, 0}, {CHUNK_B / 64, 100}}};
		assert_true(stage_gather(r.s, &m, &own, &(struct stage_rows){0}, 0, now_ns));
		assert_int_not_equal(stage_ticket(r.s), 0);
		stage_reap(r.s, now_ns + DELAY - 1);
		assert_null(stage_ready(r.s, &m, k));
		assert_true(stage_is_past(r.s, before));
		assert_false(stage_is_past(r.s, stage_ticket(r.s)));
		if (k % 3 == 2)
			stage_drop(r.s, &m, k + 1);
		assert_false(stage_is_past(r.s, stage_ticket(r.s) + 1));
		stage_reap(r.s, now_ns + DELAY);
		assert_true(stage_is_past(r.s, stage_ticket(r.s)));
		for (unsigned i = 0; k % 3 != 2 && i < CHUNK_B; i++)
			assert_int_equal(stage_ready(r.s, &m, k)[i],
					 r.src[k + i / 64 * 100 + i % 64]);
		stage_drop(r.s, &m, k + 1);
	}
	rig_check_all_free(&r, 1000 * DELAY);
	rig_close(&r);
}

static void stage_gather__tickets_wrap(void **state)
{
	tickets_wrap(UINT32_MAX - 5);
	tickets_wrap(INT32_MAX - 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stage_ready__after_the_copy),
		cmocka_unit_test(stage_fetch__no_more_than_there_are),
		cmocka_unit_test(stage_drop__under_way),
		cmocka_unit_test(stage_fetch__round_and_round),
		cmocka_unit_test(stage_close__with_copies_under_way),
		cmocka_unit_test(stage_fetch__keeps_some),
		cmocka_unit_test(stage_is_short__for_a_while),
		cmocka_unit_test(stage_cut__the_last_come_again),
		cmocka_unit_test(stage_fetch__in_time),
		cmocka_unit_test(stage_reap__does_not_finish),
		cmocka_unit_test(stage_fetch__refused_address),
		cmocka_unit_test(stage_gather__rows),
		cmocka_unit_test(stage_gather__tickets_wrap),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
