/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/nixl/rows.cc: which blocks become rows, and that each row is its block. */
#include "rows.hpp"

extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
}
#include <random>

static std::vector<struct gx_seg> blocks(unsigned n, uint64_t len, uint64_t step, uint64_t base)
{
	std::mt19937_64 random(n * 7 + len);
	std::vector<struct gx_seg> segs;

	for (unsigned i = 0; i < n; i++)
		segs.push_back({(struct gx_mem *)8, base + random() % 100000 * step, 5,
				random() % 100000 * step, len});
	return segs;
}

static void check_rows(const std::vector<struct gx_seg> &segs, uint64_t row_b)
{
	Rows rows;

	assert_true(rows_find(segs, &rows));
	assert_int_equal(rows.row_b, row_b);
	assert_int_equal(rows.here.size(), segs.size());
	assert_int_equal(rows.there.size(), segs.size());
	for (size_t i = 0; i < segs.size(); i++) {
		assert_int_equal(rows.here[i] * rows.row_b, segs[i].off);
		assert_int_equal(rows.there[i] * rows.row_b, segs[i].remote_off);
	}
}

static void rows__are_their_blocks(void **)
{
	check_rows(blocks(16384, 576, 576, 0), 64);
	check_rows(blocks(16384, 656, 656, 0), 16);
	check_rows(blocks(1000, 576, 576, 3), 1);
	check_rows(blocks(1000, 1024, 4096, 0), 4096);
	/* The last one that 32 bits reach. */
	auto far = blocks(10, 64, 64, 0);
	far[7].remote_off = 64ull * UINT32_MAX;
	check_rows(far, 64);
	/* Each end by itself. */
	auto odd = blocks(10, 64, 64, 0);
	for (auto &s : odd)
		s.remote_off += 3;
	check_rows(odd, 1);
	/* All at one place: sources may be. */
	auto same = blocks(10, 64, 64, 0);
	for (auto &s : same)
		s.off = s.remote_off = 0;
	check_rows(same, 1);
	/* Half of them adjoin. */
	auto half = blocks(9, 64, 256, 0);
	for (unsigned i = 1; i < 5; i++) {
		half[i].off = half[0].off + i * 64;
		half[i].remote_off = half[0].remote_off + i * 64;
	}
	check_rows(half, 64);
}

static void rows__are_not(void **)
{
	auto segs = blocks(1000, 576, 576, 0);
	Rows rows;

	segs[999].len = 575;
	assert_false(rows_find(segs, &rows));
	segs[999].len = 576;
	segs[999].token = 6;
	assert_false(rows_find(segs, &rows));
	segs[999].token = 5;
	segs[500].mem = nullptr;
	assert_false(rows_find(segs, &rows));
	segs[500].mem = segs[0].mem;
	segs[3].off = (1ull << 40) + 1;
	assert_false(rows_find(segs, &rows)); /* 41 bits */
	assert_false(rows_find(blocks(1, 576, 576, 0), &rows));
	assert_false(rows_find(blocks(1000, 4096, 4096, 0), &rows));
	assert_false(rows_find(blocks(1000, 0, 4096, 0), &rows));
	/* One stretch, and all blocks but two: a list makes a few segments of them. */
	auto joined = blocks(10, 64, 64, 0);
	for (unsigned i = 1; i < 10; i++) {
		joined[i].off = joined[0].off + i * 64;
		joined[i].remote_off = joined[0].remote_off + i * 64;
	}
	assert_false(rows_find(joined, &rows));
	joined[9].off = 0;
	assert_false(rows_find(joined, &rows));
	assert_true(rows.here.empty() && rows.there.empty());
}

int main()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows__are_their_blocks),
		cmocka_unit_test(rows__are_not),
	};

	return cmocka_run_group_tests(tests, nullptr, nullptr);
}
