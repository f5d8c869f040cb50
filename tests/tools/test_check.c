// SPDX-License-Identifier: Apache-2.0
/*
 * What payload must look like: the pattern, stamps, the comparison that finds every wrong byte, and
 * the ring of slots that sender and receiver agree on.
 */
#include "common/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEED	 77
#define ROOM	 (5 * CHECK_PAGE_B)
#define MSGS_MAX 40000

static const uint64_t sizes[] = {0, 1, 7, 8, 9, 15, 64, 4095, 4096, 4097, 4103, 4104, 8192, 12289};

#define NR_SIZES (sizeof(sizes) / sizeof(sizes[0]))

static void message(unsigned char *buf, uint64_t size, uint64_t off, uint64_t iter)
{
	check_pattern(buf, size, off, SEED);
	check_stamp(buf, size, 0, check_stamps(size), iter);
}

static struct check_result look(const unsigned char *buf, uint64_t size, uint64_t off,
				uint64_t iter)
{
	struct check_result res = CHECK_RESULT_NONE;

	check_piece(buf, size, 0, off, SEED, iter, &res);
	return res;
}

static void check_pattern__same_bytes_however_cut(void **state)
{
	unsigned char *whole = malloc(ROOM), *cut = malloc(ROOM);

	check_pattern(whole, ROOM, 3, SEED);
	for (uint64_t at = 0, n = 1; at < ROOM; at += n, n = n * 3 + 1) {
		n = n < ROOM - at ? n : ROOM - at;
		check_pattern(cut + at, n, 3 + at, SEED);
	}
	assert_memory_equal(whole, cut, ROOM);
	free(whole);
	free(cut);
}

static void check_pattern__other_places_and_seeds_differ(void **state)
{
	unsigned char a[512], b[512];
	unsigned same = 0;

	check_pattern(a, sizeof(a), 0, SEED);
	check_pattern(b, sizeof(b), 4096, SEED);
	for (unsigned i = 0; i < sizeof(a); i++)
		same += a[i] == b[i];
	assert_true(same < 16);
	check_pattern(b, sizeof(b), 0, SEED + 1000);
	assert_memory_not_equal(a, b, sizeof(a));
}

static void check_stamp__stays_inside(void **state)
{
	unsigned char buf[3 * CHECK_PAGE_B + 64];

	for (unsigned s = 0; s < NR_SIZES; s++) {
		if (sizes[s] > sizeof(buf) - 64)
			continue;
		memset(buf, 0, sizeof(buf));
		check_stamp(buf, sizes[s], 0, check_stamps(sizes[s]), UINT64_MAX);
		for (uint64_t i = 0; i < sizeof(buf); i++)
			assert_int_equal(buf[i], i < sizes[s] && i % CHECK_PAGE_B < 8 ? 0xff : 0);
	}
}

static void check_stamp__in_steps_is_all_at_once(void **state)
{
	unsigned char a[ROOM] = {0}, b[ROOM] = {0};
	uint64_t nr = check_stamps(ROOM - 3);

	check_stamp(a, ROOM - 3, 0, nr, 5);
	for (uint64_t i = 0; i < nr; i += 2)
		check_stamp(b, ROOM - 3, i, 2, 5);
	assert_memory_equal(a, b, ROOM);
}

static void check_piece__right_is_right(void **state)
{
	static const uint64_t offs[] = {0, 1, 5, 4096, 123457};
	unsigned char buf[ROOM];

	for (unsigned s = 0; s < NR_SIZES; s++) {
		for (unsigned o = 0; o < 5; o++) {
			message(buf, sizes[s], offs[o], 9);
			assert_int_equal(look(buf, sizes[s], offs[o], 9).wrong, 0);
			assert_int_equal(look(buf, sizes[s], offs[o], 9).checked_b, sizes[s]);
		}
	}
}

static void check_piece__finds_each_wrong_byte(void **state)
{
	unsigned char buf[2 * CHECK_PAGE_B + 3];

	message(buf, sizeof(buf), 64, 9);
	for (uint64_t i = 0; i < sizeof(buf); i++) {
		struct check_result res;

		buf[i] ^= 0x10;
		res = look(buf, sizeof(buf), 64, 9);
		buf[i] ^= 0x10;
		assert_int_equal(res.wrong, 1);
		assert_int_equal(res.first_wrong_off, 64 + i);
	}
}

static void check_piece__another_iteration_is_wrong(void **state)
{
	unsigned char buf[ROOM];

	for (unsigned s = 1; s < NR_SIZES; s++) {
		message(buf, sizes[s], 0, 8);
		assert_int_equal(look(buf, sizes[s], 0, 9).wrong, check_stamps(sizes[s]));
	}
}

static void check_piece__poison_is_wrong(void **state)
{
	unsigned char buf[ROOM];

	check_poison(buf, sizeof(buf));
	/* One byte in 256 is equal by chance. */
	assert_true(look(buf, ROOM, 0, 0).wrong > ROOM - ROOM / 64);
}

static void check_piece__pieces_add_up(void **state)
{
	unsigned char buf[ROOM];
	struct check_result res = CHECK_RESULT_NONE;

	message(buf, ROOM - 1, 7, 3);
	buf[ROOM - 2] ^= 1;
	check_piece(buf, CHECK_PAGE_B, 0, 7, SEED, 3, &res);
	check_piece(buf + CHECK_PAGE_B, ROOM - 1 - CHECK_PAGE_B, CHECK_PAGE_B, 7, SEED, 3, &res);
	assert_int_equal(res.checked_b, ROOM - 1);
	assert_int_equal(res.wrong, 1);
	assert_int_equal(res.first_wrong_off, 7 + ROOM - 2);
}

static void check_guard__sees_a_byte_behind_the_slot(void **state)
{
	unsigned char buf[64];
	struct check_result res = CHECK_RESULT_NONE;

	check_poison(buf, sizeof(buf));
	check_guard(buf, sizeof(buf), 100, &res);
	assert_int_equal(res.wrong, 0);
	buf[63] = 0;
	check_guard(buf, sizeof(buf), 100, &res);
	assert_int_equal(res.wrong, 1);
	assert_int_equal(res.first_wrong_off, 163);
	assert_int_equal(res.checked_b, 0);
}

static void check_result_add__first_is_the_smallest(void **state)
{
	struct check_result a = CHECK_RESULT_NONE,
			    b = {.checked_b = 4, .wrong = 2, .first_wrong_off = 9};

	check_result_add(&a, &b);
	b.first_wrong_off = 30;
	check_result_add(&a, &b);
	assert_int_equal(a.checked_b, 8);
	assert_int_equal(a.wrong, 4);
	assert_int_equal(a.first_wrong_off, 9);
}

/* Against the plain way: remember the last message of each slot. */
static void ring_last_is_right(const struct check_ring *r)
{
	uint64_t total = check_ring_total(r), *last = malloc(total * sizeof(*last));

	memset(last, 0xff, total * sizeof(*last));
	for (uint64_t n = 0; n <= MSGS_MAX; n++) {
		if (n % 997 == 0 || n < 300) {
			for (uint64_t slot = 0; slot < total; slot++)
				assert_int_equal(check_ring_last(r, slot, n), last[slot]);
		}
		assert_true(check_ring_slot(r, n) < total);
		last[check_ring_slot(r, n)] = n;
	}
	free(last);
}

static void check_ring_last__agrees_with_memory(void **state)
{
	static const struct check_ring rings[] = {
		{.nr_slots = 1},
		{.nr_slots = 8},
		{.nr_slots = 1, .sample = true},
		{.nr_slots = 2, .sample = true, .apart = true},
		{.nr_slots = 1, .sample = true, .apart = true},
		{.nr_slots = 4, .group_bits = 3, .sample = true, .apart = true},
		{.nr_slots = 16, .group_bits = 2, .sample = true, .apart = true},
		{.nr_slots = 64, .group_bits = 6, .sample = true, .apart = true},
	};

	for (unsigned i = 0; i < sizeof(rings) / sizeof(rings[0]); i++)
		ring_last_is_right(&rings[i]);
}

static void check_ring_sampled__one_in_64(void **state)
{
	const struct check_ring r = {.nr_slots = 4, .group_bits = 3, .sample = true, .apart = true};
	unsigned n = 0;

	for (uint64_t i = 0; i < 64 * 8 * 10; i++)
		n += check_ring_sampled(&r, i);
	assert_int_equal(n, 80);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(check_pattern__same_bytes_however_cut),
		cmocka_unit_test(check_pattern__other_places_and_seeds_differ),
		cmocka_unit_test(check_stamp__stays_inside),
		cmocka_unit_test(check_stamp__in_steps_is_all_at_once),
		cmocka_unit_test(check_piece__right_is_right),
		cmocka_unit_test(check_piece__finds_each_wrong_byte),
		cmocka_unit_test(check_piece__another_iteration_is_wrong),
		cmocka_unit_test(check_piece__poison_is_wrong),
		cmocka_unit_test(check_piece__pieces_add_up),
		cmocka_unit_test(check_guard__sees_a_byte_behind_the_slot),
		cmocka_unit_test(check_result_add__first_is_the_smallest),
		cmocka_unit_test(check_ring_last__agrees_with_memory),
		cmocka_unit_test(check_ring_sampled__one_in_64),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
