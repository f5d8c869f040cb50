// SPDX-License-Identifier: Apache-2.0
/*
 * gx_copy(), its streaming forms and gx_crc32c(): every length and alignment around the limits of
 * their size classes, and not one byte outside.
 */
#include "gx_internal/base.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GUARD_B	  64
#define LEN_MAX_B (1u << 20)
#define SHORT_B	  600 /* every length up to here */
#define POISON	  0xa5

typedef void copy_fn(void *dst, const void *src, size_t len);

struct area {
	uint8_t *src, *dst; /* LEN_MAX_B and a guard on both sides */
};

static int area_setup(void **state)
{
	static struct area a;
	size_t room = LEN_MAX_B + 4 * GUARD_B;

	a.src = aligned_alloc(GUARD_B, room);
	a.dst = aligned_alloc(GUARD_B, room);
	if (!a.src || !a.dst)
		return -1;
	for (size_t i = 0; i < room; i++)
		a.src[i] = (uint8_t)(i * 131 + (i >> 8));
	*state = &a;
	return 0;
}

static int area_teardown(void **state)
{
	struct area *a = *state;

	free(a->src);
	free(a->dst);
	return 0;
}

/* Copies once and looks at the guards on both sides as well. */
static void copy_checked(const struct area *a, copy_fn *fn, size_t dst_off, size_t src_off,
			 size_t len)
{
	uint8_t guard[GUARD_B], *dst = a->dst + GUARD_B + dst_off;
	const uint8_t *src = a->src + GUARD_B + src_off;

	memset(guard, POISON, sizeof(guard));
	memset(dst - GUARD_B, POISON, len + 2 * GUARD_B);
	fn(dst, src, len);
	assert_memory_equal(dst, src, len);
	assert_memory_equal(dst - GUARD_B, guard, GUARD_B);
	assert_memory_equal(dst + len, guard, GUARD_B);
}

static void every_short_length(const struct area *a, copy_fn *fn)
{
	for (size_t len = 0; len <= SHORT_B; len++) {
		copy_checked(a, fn, 0, 0, len);
		copy_checked(a, fn, len % 61, len % 17, len);
	}
}

static void every_alignment(const struct area *a, copy_fn *fn)
{
	static const size_t len[] = {64, 255, 256, 257, 320, 1408, 8191};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(len); i++) {
		for (size_t off = 0; off < GUARD_B; off++) {
			copy_checked(a, fn, off, 0, len[i]);
			copy_checked(a, fn, 0, off, len[i]);
		}
	}
}

static void long_lengths(const struct area *a, copy_fn *fn)
{
	static const size_t len[] = {4096,  8192,  8193,   16383,  16384,
				     16385, 65536, 100001, 524288, LEN_MAX_B};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(len); i++) {
		copy_checked(a, fn, 0, 0, len[i]);
		copy_checked(a, fn, 13, 16, len[i]);
	}
}

static void gx_copy__every_short_length(void **state)
{
	every_short_length(*state, gx_copy);
}

static void gx_copy__every_alignment(void **state)
{
	every_alignment(*state, gx_copy);
}

static void gx_copy__long_lengths(void **state)
{
	long_lengths(*state, gx_copy);
}

static void gx_copy_stream__every_short_length(void **state)
{
	every_short_length(*state, gx_copy_stream);
}

static void gx_copy_stream__every_alignment(void **state)
{
	every_alignment(*state, gx_copy_stream);
}

static void gx_copy_stream__long_lengths(void **state)
{
	long_lengths(*state, gx_copy_stream);
}

static void gx_copy_stream_nofence__every_short_length(void **state)
{
	every_short_length(*state, gx_copy_stream_nofence);
	gx_store_fence();
}

static void gx_copy_stream_nofence__every_alignment(void **state)
{
	every_alignment(*state, gx_copy_stream_nofence);
	gx_store_fence();
}

static void gx_copy_slot__every_alignment(void **state)
{
	every_alignment(*state, gx_copy_slot);
}

static void gx_copy_slot__long_lengths(void **state)
{
	long_lengths(*state, gx_copy_slot);
}

static void gx_copy_stream_nofence__long_lengths(void **state)
{
	long_lengths(*state, gx_copy_stream_nofence);
	gx_store_fence();
}

static void gx_copy_name__is_known(void **state)
{
	static const char *const known[] = {"avx512", "avx2", "sse2", "generic"};
	bool found = false;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(known); i++)
		found |= strcmp(gx_copy_name(), known[i]) == 0;
	assert_true(found);
	print_message("variant: %s\n", gx_copy_name());
}

/* Values from RFC 3720, B.4, and the check value of the polynomial. */
static void gx_crc32c__known_values(void **state)
{
	uint8_t buf[32];

	assert_int_equal(gx_crc32c(0, "123456789", 9), 0xe3069283);
	memset(buf, 0, sizeof(buf));
	assert_int_equal(gx_crc32c(0, buf, sizeof(buf)), 0x8a9136aa);
	memset(buf, 0xff, sizeof(buf));
	assert_int_equal(gx_crc32c(0, buf, sizeof(buf)), 0x62a8ab43);
}

static void gx_crc32c__nothing(void **state)
{
	assert_int_equal(gx_crc32c(0, NULL, 0), 0);
	assert_int_equal(gx_crc32c(0x12345678, NULL, 0), 0x12345678);
}

static void gx_crc32c__chains(void **state)
{
	const struct area *a = *state;
	uint32_t whole = gx_crc32c(0, a->src, 5000);

	for (size_t cut = 0; cut <= 5000; cut += 7)
		assert_int_equal(gx_crc32c(gx_crc32c(0, a->src, cut), a->src + cut, 5000 - cut),
				 whole);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gx_copy__every_short_length),
		cmocka_unit_test(gx_copy__every_alignment),
		cmocka_unit_test(gx_copy__long_lengths),
		cmocka_unit_test(gx_copy_stream__every_short_length),
		cmocka_unit_test(gx_copy_stream__every_alignment),
		cmocka_unit_test(gx_copy_stream__long_lengths),
		cmocka_unit_test(gx_copy_stream_nofence__every_short_length),
		cmocka_unit_test(gx_copy_stream_nofence__every_alignment),
		cmocka_unit_test(gx_copy_stream_nofence__long_lengths),
		cmocka_unit_test(gx_copy_slot__every_alignment),
		cmocka_unit_test(gx_copy_slot__long_lengths),
		cmocka_unit_test(gx_copy_name__is_known),
		cmocka_unit_test(gx_crc32c__known_values),
		cmocka_unit_test(gx_crc32c__nothing),
		cmocka_unit_test(gx_crc32c__chains),
	};

	return cmocka_run_group_tests(tests, area_setup, area_teardown);
}
