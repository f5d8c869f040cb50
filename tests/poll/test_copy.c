// SPDX-License-Identifier: Apache-2.0
/*
 * gx_copy(), its streaming forms and gx_crc32c(): every length and alignment around the limits of
 * their size classes, not one byte outside, and no half of a word for a reader on another core.
 */
#include "gx_internal/base.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

/* ---- Words that somebody reads meanwhile ---- */

#define WORDS_NS 10000000 /* of one length at one place */
#define SOURCE_B (128u << 10)
#define PAGE_B	 4096

struct reader {
	const uint64_t *word;
	size_t nr_words;
	atomic_bool stop;
	uint64_t nr_read, nr_torn; /* to be read after its end */
};

static uint64_t whole_word(size_t i, uint32_t turn)
{
	return (uint64_t)(turn * 0x9e3779b9u) << 32 |
	       (uint32_t)(turn * 0x9e3779b9u + i * 0x85ebca6bu);
}

/* Both halves of a word are of one turn. */
static void *reader_run(void *arg)
{
	struct reader *r = arg;

	while (!atomic_load_explicit(&r->stop, memory_order_relaxed)) {
		for (size_t i = 0; i < r->nr_words; i++) {
			uint64_t w = __atomic_load_n(&r->word[i], __ATOMIC_RELAXED);

			r->nr_torn += (uint32_t)w != (uint32_t)((w >> 32) + i * 0x85ebca6bu);
		}
		r->nr_read += r->nr_words;
	}
	return NULL;
}

/* Return: @len bytes, behind which is memory that nobody may read. With rep movsb some CPUs store the
 * end of a copy from there byte by byte (seen on a Xeon, family 6, model 207). */
static uint8_t *source_open(size_t len)
{
	uint8_t *all = mmap(NULL, SOURCE_B + PAGE_B, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(all, MAP_FAILED);
	assert_int_equal(mprotect(all + SOURCE_B, PAGE_B, PROT_NONE), 0);
	return all + SOURCE_B - len;
}

static void source_close(uint8_t *src, size_t len)
{
	munmap(src + len - SOURCE_B, SOURCE_B + PAGE_B);
}

static void words_at(const struct area *a, copy_fn *fn, size_t dst_off, size_t src_off, size_t len)
{
	uint64_t *dst = (uint64_t *)(void *)(a->dst + dst_off), end;
	uint8_t *src = source_open(len + src_off), *other = source_open(len + src_off);
	struct reader r = {.word = dst, .nr_words = len / 8};
	pthread_t thread;

	for (size_t i = 0; i < len / 8; i++) {
		memcpy(src + i * 8, &(uint64_t){whole_word(i, 1)}, 8);
		memcpy(other + i * 8, &(uint64_t){whole_word(i, 2)}, 8);
		dst[i] = whole_word(i, 0);
	}
	assert_int_equal(pthread_create(&thread, NULL, reader_run, &r), 0);
	for (end = gx_now_ns() + WORDS_NS; gx_now_ns() < end;) {
		fn(dst, src, len);
		fn(dst, other, len);
	}
	atomic_store(&r.stop, true);
	pthread_join(thread, NULL);
	source_close(src, len + src_off);
	source_close(other, len + src_off);
	if (r.nr_torn)
		fail_msg("%zu bytes to %zu: %llu of %llu words were torn", len, dst_off,
			 (unsigned long long)r.nr_torn, (unsigned long long)r.nr_read);
}

/* "generic" is libc's copy, which promises nothing. */
static void words_stay_whole(const struct area *a, copy_fn *fn)
{
	static const size_t len[] = {8, 24, 56, 104, 136, 1000, 9000, 16384, 32760, 65536};

	if (!strcmp(gx_copy_name(), "generic"))
		skip();
	for (unsigned i = 0; i < GX_ARRAY_SIZE(len); i++) {
		for (size_t off = 0; off < 64; off += 24) {
			words_at(a, fn, off, 0, len[i]);
			words_at(a, fn, 0, off, len[i]);
		}
	}
}

static void gx_copy__words_stay_whole(void **state)
{
	words_stay_whole(*state, gx_copy);
}

static void gx_copy_stream__words_stay_whole(void **state)
{
	words_stay_whole(*state, gx_copy_stream);
}

static const char *const variants[] = {"avx512", "avx2", "sse2", "generic"};

static void gx_copy_use__the_best_by_default(void **state)
{
	const char *name = gx_copy_name();
	unsigned i = 0;

	while (i < GX_ARRAY_SIZE(variants) && !gx_copy_use(variants[i]))
		i++;
	assert_true(i < GX_ARRAY_SIZE(variants));
	assert_string_equal(gx_copy_name(), variants[i]);
	assert_string_equal(name, variants[i]);
	assert_false(gx_copy_use("mmx"));
	assert_string_equal(gx_copy_name(), variants[i]);
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

/* ---- Copied and summed at once ---- */

static void copy_slot_crc(void *dst, const void *src, size_t len)
{
	assert_int_equal(gx_copy_slot_crc(dst, src, len), gx_crc32c(0, src, len));
}

/* Values from RFC 3720, B.4, and bit by bit: ISA-L has no part in these. */
static void gx_copy_slot_crc__known_values(void **state)
{
	const struct area *a = *state;
	uint8_t out[2048] = {0}, in[2048];

	assert_int_equal(gx_copy_slot_crc(out, "123456789", 9), 0xe3069283);
	memset(in, 0xff, sizeof(in));
	assert_int_equal(gx_copy_slot_crc(out, in, 32), 0x62a8ab43);
	for (size_t len = 250; len <= sizeof(in); len += 89) {
		uint32_t crc = ~0u;

		for (size_t i = 0; i < 8 * len; i++) {
			crc ^= a->src[i / 8] >> i % 8 & 1u;
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
		}
		assert_int_equal(gx_copy_slot_crc(out, a->src, len), ~crc);
		assert_memory_equal(out, a->src, len);
	}
}

/* Each length at each alignment of the source, and at one of the destination. */
static void gx_copy_slot_crc__every_length(void **state)
{
	for (size_t off = 0; off < GUARD_B; off++)
		for (size_t len = 0; len <= 4096; len++)
			copy_checked(*state, copy_slot_crc, (off * 7 + len) % GUARD_B, off, len);
}

static void gx_copy_slot_crc__every_alignment(void **state)
{
	every_alignment(*state, copy_slot_crc);
}

static void gx_copy_slot_crc__long_lengths(void **state)
{
	long_lengths(*state, copy_slot_crc);
}

/* As gx_copy_slot() does, it fetches what lies behind the source, where nobody may read. */
static void gx_copy_slot_crc__reads_nothing_behind(void **state)
{
	const struct area *a = *state;

	for (size_t len = 1; len <= 1024; len += 51) {
		uint8_t *src = source_open(len);

		copy_slot_crc(a->dst, src, len);
		assert_memory_equal(a->dst, src, len);
		source_close(src, len);
	}
}

static void gx_copy_crc_use__the_best_by_default(void **state)
{
	assert_false(gx_copy_crc_use("mmx"));
	assert_true(gx_copy_crc_use("steps"));
	assert_true(gx_copy_crc_use(NULL));
}

static int run_crc_variants(void)
{
	static const char *const names[] = {"vector", "steps"};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gx_copy_slot_crc__known_values),
		cmocka_unit_test(gx_copy_slot_crc__every_length),
		cmocka_unit_test(gx_copy_slot_crc__every_alignment),
		cmocka_unit_test(gx_copy_slot_crc__long_lengths),
		cmocka_unit_test(gx_copy_slot_crc__reads_nothing_behind),
	};
	int failed = 0;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(names); i++)
		if (gx_copy_crc_use(names[i]))
			failed += cmocka_run_group_tests_name(names[i], tests, area_setup,
							      area_teardown);
		else
			print_message("%s: not here\n", names[i]);
	return failed;
}

/* Of each variant that this CPU has. */
static int run_variants(void)
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
		cmocka_unit_test(gx_copy__words_stay_whole),
		cmocka_unit_test(gx_copy_stream__words_stay_whole),
	};
	int failed = 0;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(variants); i++)
		if (gx_copy_use(variants[i]))
			failed += cmocka_run_group_tests_name(variants[i], tests, area_setup,
							      area_teardown);
		else
			print_message("%s: not here\n", variants[i]);
	return failed;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gx_copy_use__the_best_by_default),
		cmocka_unit_test(gx_copy_crc_use__the_best_by_default),
		cmocka_unit_test(gx_crc32c__known_values),
		cmocka_unit_test(gx_crc32c__nothing),
		cmocka_unit_test(gx_crc32c__chains),
	};
	int failed = cmocka_run_group_tests(tests, area_setup, area_teardown);

	return failed + run_variants() + run_crc_variants();
}
