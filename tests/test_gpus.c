// SPDX-License-Identifier: Apache-2.0
/*
 * Who moves what to whom among GPUs of a process, and that payload which did not move is seen. The
 * second half needs two GPUs (tests/fake_cuda.c will do) and exits 77 without: test_gang [cuda].
 */
#include "gxperf/beside/gpus.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SIZE ((uint64_t)64 * GANG_MAX)

static struct report *report;

/* Every byte that is received is written once, from where it should come. */
static void covers(enum gang_pattern pattern, unsigned n)
{
	struct gang gang = {.n = n};
	struct gang_copy c[GANG_COPIES_MAX];
	unsigned nr = gang_copies(&gang, pattern, SIZE, c), got[GANG_MAX][GANG_MAX] = {{0}};

	assert_true(nr <= GANG_COPIES_MAX);
	for (unsigned i = 0; i < nr; i++) {
		assert_true(c[i].from < n && c[i].to < n);
		got[c[i].from][c[i].to]++;
		if (pattern == GANG_ALLGATHER) {
			assert_true(c[i].in_place && c[i].by == c[i].from);
			assert_int_equal(c[i].src_off, c[i].from * SIZE);
			assert_int_equal(c[i].dst_off, c[i].src_off);
			assert_int_equal(c[i].len, SIZE);
		} else {
			assert_int_equal(c[i].len, SIZE / n);
			assert_int_equal(c[i].src_off, c[i].to * c[i].len);
			assert_int_equal(c[i].dst_off, c[i].from * c[i].len);
		}
	}
	for (unsigned a = 0; a < n; a++)
		for (unsigned b = 0; b < n; b++)
			assert_int_equal(got[a][b], a != b || pattern == GANG_ALLTOALL);
}

static void gang_copies__each_part_once(void **state)
{
	for (unsigned n = 2; n <= GANG_MAX; n++) {
		covers(GANG_ALLGATHER, n);
		if (SIZE % n == 0)
			covers(GANG_ALLTOALL, n);
	}
}

/* In each step every GPU sends to one and receives from one. */
static void gang_copies__no_two_to_one(void **state)
{
	struct gang gang = {.n = 4};
	struct gang_copy c[GANG_COPIES_MAX];
	unsigned nr = gang_copies(&gang, GANG_ALLGATHER, SIZE, c);

	for (unsigned step = 0; step < nr; step += 4) {
		unsigned to = 0, from = 0;

		for (unsigned i = step; i < step + 4; i++) {
			to |= 1u << c[i].to;
			from |= 1u << c[i].from;
		}
		assert_int_equal(to, 15);
		assert_int_equal(from, 15);
	}
}

static void gang_copies__between_two(void **state)
{
	struct gang gang = {.n = 2};
	struct gang_copy c[GANG_COPIES_MAX];

	assert_int_equal(gang_copies(&gang, GANG_WRITE, 64, c), 1);
	assert_true(c[0].from == 0 && c[0].to == 1 && c[0].by == 0 && c[0].len == 64);
	assert_int_equal(gang_copies(&gang, GANG_READ, 64, c), 1);
	assert_true(c[0].from == 0 && c[0].to == 1 && c[0].by == 1);
	assert_int_equal(gang_copies(&gang, GANG_BOTH, 64, c), 2);
	assert_true(c[1].from == 1 && c[1].to == 0 && c[1].by == 1);
}

static void gang_moved__by_pattern(void **state)
{
	struct gang gang = {.n = 4};

	assert_int_equal(gang_moved(&gang, GANG_WRITE, 4096), 4096);
	assert_int_equal(gang_moved(&gang, GANG_ALLGATHER, 4096), 3 * 4096);
	assert_int_equal(gang_moved(&gang, GANG_ALLTOALL, 4096), 3 * 1024);
}

static void gang_pattern_parse__names(void **state)
{
	enum gang_pattern p;

	for (unsigned i = 0; i < GANG_PATTERNS; i++) {
		assert_int_equal(gang_pattern_parse(gang_pattern_text(i), &p), 0);
		assert_int_equal(p, i);
	}
	assert_int_equal(gang_pattern_parse("ring", &p), -EINVAL);
}

/* ---- two GPUs ---- */

static void gang_check__what_did_not_move(void **state)
{
	struct gang_copy c[GANG_COPIES_MAX];
	struct gang gang;

	for (unsigned pattern = 0; pattern < GANG_PATTERNS; pattern++) {
		uint64_t checked = 0, wrong = 0;
		unsigned nr;

		assert_int_equal(gang_open(report, 2, pattern, SIZE, &gang), PERF_OK);
		assert_int_equal(gang_fill(&gang, pattern, SIZE), PERF_OK);
		nr = gang_copies(&gang, pattern, SIZE, c);
		for (unsigned i = 0; i < nr; i++) {
			struct gx_engine_queue *q = gang.gpu[c[i].by].q[0];
			uint32_t t;

			assert_int_equal(gang_check(&gang, pattern, SIZE, &checked, &wrong),
					 PERF_OK);
			assert_true(wrong > c[i].len * 9 / 10);
			wrong = 0;
			assert_int_equal(gx_engine_copy(q, gang_dst(&gang, &c[i]),
							gang_src(&gang, &c[i]), c[i].len, &t),
					 0);
			assert_int_equal(gx_engine_wait(q, t, BENCH_WAIT_NS), 0);
		}
		checked = 0;
		assert_int_equal(gang_check(&gang, pattern, SIZE, &checked, &wrong), PERF_OK);
		assert_int_equal(wrong, 0);
		assert_int_equal(checked, nr * c[0].len);
		gang_close(&gang);
	}
}

static void gang_open__fewer_gpus(void **state)
{
	struct gang gang;
	unsigned n = gang_count();

	assert_true(n >= 2);
	if (n < GANG_MAX)
		assert_int_equal(gang_open(report, n + 1, GANG_ALLGATHER, SIZE, &gang),
				 PERF_FAILED);
	if (n < GANG_MAX)
		gang_close(&gang);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gang_copies__each_part_once),
		cmocka_unit_test(gang_copies__no_two_to_one),
		cmocka_unit_test(gang_copies__between_two),
		cmocka_unit_test(gang_moved__by_pattern),
		cmocka_unit_test(gang_pattern_parse__names),
	};
	const struct CMUnitTest gpu_tests[] = {
		cmocka_unit_test(gang_check__what_did_not_move),
		cmocka_unit_test(gang_open__fewer_gpus),
	};
	const struct report_opts opts = {.format = REPORT_JSONL, .command = "test"};

	if (argc < 2)
		return cmocka_run_group_tests(tests, NULL, NULL);
	if (gang_count() < 2) {
		printf("skipped: two GPUs are needed: %s\n", gx_engine_why());
		return 77;
	}
	if (report_open(&opts, &report))
		return 1;
	return cmocka_run_group_tests(gpu_tests, NULL, NULL) || report_close(report, 0);
}
