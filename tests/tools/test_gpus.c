// SPDX-License-Identifier: Apache-2.0
/*
 * Who moves what to whom among GPUs of a process, and that payload which did not move is seen. The
 * second half needs two GPUs (tests/fake/fake_cuda.c will do) and exits 77 without: test_gpus
 * [cuda].
 */
#include "gxperf/lab/gpus.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SIZE ((uint64_t)64 * GPUS_MAX)

static struct report *report;

/* Every byte that is received is written once, from where it should come. */
static void covers(enum gpus_pattern pattern, unsigned n)
{
	struct gpus gpus = {.n = n};
	struct gpus_copy c[GPUS_COPIES_MAX];
	unsigned nr = gpus_copies(&gpus, pattern, SIZE, c), got[GPUS_MAX][GPUS_MAX] = {{0}};

	assert_true(nr <= GPUS_COPIES_MAX);
	for (unsigned i = 0; i < nr; i++) {
		assert_true(c[i].from < n && c[i].to < n);
		got[c[i].from][c[i].to]++;
		if (pattern == GPUS_ALLGATHER) {
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
			assert_int_equal(got[a][b], a != b || pattern == GPUS_ALLTOALL);
}

static void gpus_copies__each_part_once(void **state)
{
	for (unsigned n = 2; n <= GPUS_MAX; n++) {
		covers(GPUS_ALLGATHER, n);
		if (SIZE % n == 0)
			covers(GPUS_ALLTOALL, n);
	}
}

/* In each step every GPU sends to one and receives from one. */
static void gpus_copies__no_two_to_one(void **state)
{
	struct gpus gpus = {.n = 4};
	struct gpus_copy c[GPUS_COPIES_MAX];
	unsigned nr = gpus_copies(&gpus, GPUS_ALLGATHER, SIZE, c);

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

static void gpus_copies__between_two(void **state)
{
	struct gpus gpus = {.n = 2};
	struct gpus_copy c[GPUS_COPIES_MAX];

	assert_int_equal(gpus_copies(&gpus, GPUS_WRITE, 64, c), 1);
	assert_true(c[0].from == 0 && c[0].to == 1 && c[0].by == 0 && c[0].len == 64);
	assert_int_equal(gpus_copies(&gpus, GPUS_READ, 64, c), 1);
	assert_true(c[0].from == 0 && c[0].to == 1 && c[0].by == 1);
	assert_int_equal(gpus_copies(&gpus, GPUS_BOTH, 64, c), 2);
	assert_true(c[1].from == 1 && c[1].to == 0 && c[1].by == 1);
}

static void gpus_moved__by_pattern(void **state)
{
	struct gpus gpus = {.n = 4};

	assert_int_equal(gpus_moved(&gpus, GPUS_WRITE, 4096), 4096);
	assert_int_equal(gpus_moved(&gpus, GPUS_ALLGATHER, 4096), 3 * 4096);
	assert_int_equal(gpus_moved(&gpus, GPUS_ALLTOALL, 4096), 3 * 1024);
}

static void gpus_pattern_parse__names(void **state)
{
	enum gpus_pattern p;

	for (unsigned i = 0; i < GPUS_PATTERNS; i++) {
		assert_int_equal(gpus_pattern_parse(gpus_pattern_text(i), &p), 0);
		assert_int_equal(p, i);
	}
	assert_int_equal(gpus_pattern_parse("ring", &p), -EINVAL);
}

/* ---- two GPUs ---- */

static void gpus_check__what_did_not_move(void **state)
{
	struct gpus_copy c[GPUS_COPIES_MAX];
	struct gpus gpus;

	for (unsigned pattern = 0; pattern < GPUS_PATTERNS; pattern++) {
		uint64_t checked = 0, wrong = 0;
		unsigned nr;

		assert_int_equal(gpus_open(report, 2, pattern, SIZE, &gpus), PERF_OK);
		assert_int_equal(gpus_fill(&gpus, pattern, SIZE), PERF_OK);
		nr = gpus_copies(&gpus, pattern, SIZE, c);
		for (unsigned i = 0; i < nr; i++) {
			struct gx_engine_queue *q = gpus.gpu[c[i].by].q[0];
			uint32_t t;

			assert_int_equal(gpus_check(&gpus, pattern, SIZE, &checked, &wrong),
					 PERF_OK);
			assert_true(wrong > c[i].len * 9 / 10);
			wrong = 0;
			assert_int_equal(gx_engine_copy(q, gpus_dst(&gpus, &c[i]),
							gpus_src(&gpus, &c[i]), c[i].len, &t),
					 0);
			assert_int_equal(gx_engine_wait(q, t, BENCH_WAIT_NS), 0);
		}
		checked = 0;
		assert_int_equal(gpus_check(&gpus, pattern, SIZE, &checked, &wrong), PERF_OK);
		assert_int_equal(wrong, 0);
		assert_int_equal(checked, nr * c[0].len);
		gpus_close(&gpus);
	}
}

static void gpus_open__fewer_gpus(void **state)
{
	struct gpus gpus;
	unsigned n = gpus_count();

	assert_true(n >= 2);
	if (n < GPUS_MAX)
		assert_int_equal(gpus_open(report, n + 1, GPUS_ALLGATHER, SIZE, &gpus),
				 PERF_FAILED);
	if (n < GPUS_MAX)
		gpus_close(&gpus);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gpus_copies__each_part_once),
		cmocka_unit_test(gpus_copies__no_two_to_one),
		cmocka_unit_test(gpus_copies__between_two),
		cmocka_unit_test(gpus_moved__by_pattern),
		cmocka_unit_test(gpus_pattern_parse__names),
	};
	const struct CMUnitTest gpu_tests[] = {
		cmocka_unit_test(gpus_check__what_did_not_move),
		cmocka_unit_test(gpus_open__fewer_gpus),
	};
	const struct report_opts opts = {.format = REPORT_JSONL, .command = "test"};

	if (argc < 2)
		return cmocka_run_group_tests(tests, NULL, NULL);
	if (gpus_count() < 2) {
		printf("skipped: two GPUs are needed: %s\n", gx_engine_why());
		return 77;
	}
	if (report_open(&opts, &report))
		return 1;
	return cmocka_run_group_tests(gpu_tests, NULL, NULL) || report_close(report, 0);
}
