/* SPDX-License-Identifier: Apache-2.0 */
/* Rights on ranges of memory, as the kernel tells them of a range, and as it prints all of them. */
#include "gx_internal/mem.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>

#include <cmocka.h>

#define PAGE_B 4096u
#define PAGES  8u
#define BOTH   (GX_RANGE_READ | GX_RANGE_WRITE)

static char *pages_map(void)
{
	char *at = mmap(NULL, PAGES * PAGE_B, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			-1, 0);

	assert_true(at != MAP_FAILED);
	return at;
}

static void pages_unmap(char *at)
{
	munmap(at, PAGES * PAGE_B);
}

static void page_protect(char *at, unsigned page, int prot)
{
	assert_int_equal(mprotect(at + page * PAGE_B, PAGE_B, prot), 0);
}

static void range__whole_pages_and_parts(void **state)
{
	char *at = pages_map();

	for (int ask = 0; ask < 2; ask++) {
		assert_int_equal(gx_range_access_by(at, PAGES * PAGE_B, ask), BOTH);
		assert_int_equal(gx_range_access_by(at + 1, PAGE_B, ask), BOTH);
		assert_int_equal(gx_range_access_by(at + 17, 1, ask), BOTH);
		assert_int_equal(gx_range_access_by(at, 0, ask), BOTH);
		assert_int_equal(gx_range_access_by((void *)8, 8, ask), -EFAULT);
		assert_int_equal(gx_range_access_by(at, UINT64_MAX, ask), -EFAULT);
		assert_int_equal(gx_range_access_by(at, 1ull << 46, ask), -EFAULT);
	}
	pages_unmap(at);
}

/* Several mappings: the least of their rights. */
static void range__a_page_to_read(void **state)
{
	char *at = pages_map();

	page_protect(at, 3, PROT_READ);
	for (int ask = 0; ask < 2; ask++) {
		assert_int_equal(gx_range_access_by(at, PAGES * PAGE_B, ask), GX_RANGE_READ);
		assert_int_equal(gx_range_access_by(at, 3 * PAGE_B, ask), BOTH);
		assert_int_equal(gx_range_access_by(at, 3 * PAGE_B + 1, ask), GX_RANGE_READ);
		assert_int_equal(gx_range_access_by(at + 4 * PAGE_B, PAGE_B, ask), BOTH);
	}
	page_protect(at, 5, PROT_WRITE); /* without the right to read */
	for (int ask = 0; ask < 2; ask++)
		assert_int_equal(gx_range_access_by(at, PAGES * PAGE_B, ask), -EFAULT);
	pages_unmap(at);
}

static void range__a_page_that_is_none(void **state)
{
	char *at = pages_map();

	page_protect(at, 3, PROT_NONE);
	for (int ask = 0; ask < 2; ask++) {
		assert_int_equal(gx_range_access_by(at, PAGES * PAGE_B, ask), -EFAULT);
		assert_int_equal(gx_range_access_by(at + 3 * PAGE_B, 1, ask), -EFAULT);
		assert_int_equal(gx_range_access_by(at, 3 * PAGE_B, ask), BOTH);
		assert_int_equal(gx_range_access_by(at, 3 * PAGE_B + 1, ask), -EFAULT);
	}
	munmap(at + 3 * PAGE_B, PAGE_B);
	for (int ask = 0; ask < 2; ask++) {
		assert_int_equal(gx_range_access_by(at, PAGES * PAGE_B, ask), -EFAULT);
		assert_int_equal(gx_range_access_by(at + 3 * PAGE_B, 1, ask), -EFAULT);
		assert_int_equal(gx_range_access_by(at + 4 * PAGE_B, 4 * PAGE_B, ask), BOTH);
	}
	pages_unmap(at);
}

/* Another mapping in the place of one that was looked at before. */
static void range__another_in_the_same_place(void **state)
{
	char *at = pages_map();

	assert_int_equal(gx_range_access(at, PAGE_B), BOTH);
	assert_ptr_equal(
		mmap(at, PAGE_B, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), at);
	assert_int_equal(gx_range_access(at, PAGE_B), GX_RANGE_READ);
	pages_unmap(at);
	assert_int_equal(gx_range_access(at, PAGE_B), -EFAULT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(range__whole_pages_and_parts),
		cmocka_unit_test(range__a_page_to_read),
		cmocka_unit_test(range__a_page_that_is_none),
		cmocka_unit_test(range__another_in_the_same_place),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
