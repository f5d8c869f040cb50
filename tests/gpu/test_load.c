// SPDX-License-Identifier: Apache-2.0
/*
 * Patterns and loads: test_load [host|cuda], default host. `cuda` exits 77 where there is no GPU,
 * and says why; cases that need cuBLAS say so where it is not found (GX_TEST_CUBLAS: its folder).
 */
#include <gxlab/load.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LEN	((size_t)1 << 20)
#define WAIT_NS 60000000000ull

static struct gx_engine *engine;
static int device = -1;

static int setup(void **state)
{
	void *mem = NULL;

	assert_int_equal(gx_engine_alloc(engine, LEN, &mem), 0);
	*state = mem;
	return 0;
}

static int teardown(void **state)
{
	gx_engine_free(engine, *state, LEN);
	return 0;
}

/* Bytes of the engine's memory as the CPU sees them. */
static void fetch(uint8_t *to, const void *from, size_t len)
{
	struct gx_engine_queue *q;
	uint32_t t;

	assert_int_equal(gx_engine_queue_open(engine, NULL, &q), 0);
	assert_int_equal(gx_engine_copy(q, to, from, len, &t), 0);
	assert_int_equal(gx_engine_wait(q, t, WAIT_NS), 0);
	gx_engine_queue_close(q);
}

static void store(void *to, const uint8_t *from, size_t len)
{
	fetch(to, from, len);
}

static void pattern_fill__words(void **state)
{
	uint64_t got[64];

	assert_int_equal(gx_pattern_fill(engine, *state, LEN, 7), 0);
	fetch((uint8_t *)got, (uint8_t *)*state + LEN - sizeof(got), sizeof(got));
	for (uint64_t i = 0; i < 64; i++)
		assert_int_equal(got[i], gx_pattern_word(7, LEN / 8 - 64 + i));
	assert_int_not_equal(gx_pattern_word(7, 0), gx_pattern_word(8, 0));
	assert_int_not_equal(gx_pattern_word(7, 0), gx_pattern_word(7, 1));
}

static void pattern_diff__every_wrong_byte(void **state)
{
	uint8_t *mem = *state, byte[1];
	uint64_t wrong = 9;

	assert_int_equal(gx_pattern_fill(engine, mem, LEN, 1), 0);
	assert_int_equal(gx_pattern_diff(engine, mem, LEN, 1, &wrong), 0);
	assert_int_equal(wrong, 0);
	for (unsigned i = 0; i < 3; i++) {
		size_t at[] = {0, LEN / 3, LEN - 1};

		fetch(byte, mem + at[i], 1);
		byte[0] ^= 0x40;
		store(mem + at[i], byte, 1);
		assert_int_equal(gx_pattern_diff(engine, mem, LEN, 1, &wrong), 0);
		assert_int_equal(wrong, i + 1);
	}
	assert_int_equal(gx_pattern_diff(engine, mem, LEN, 2, &wrong), 0);
	assert_true(wrong > LEN * 9 / 10);
	assert_int_equal(gx_pattern_diff(engine, mem, 0, 2, &wrong), 0);
	assert_int_equal(wrong, 0);
}

static void pattern_fill__odd_length(void **state)
{
	uint64_t wrong;

	assert_int_equal(gx_pattern_fill(engine, *state, 12, 1), -EINVAL);
	assert_int_equal(gx_pattern_diff(engine, *state, 12, 1, &wrong), -EINVAL);
	assert_non_null(strstr(gx_engine_why(), "multiple of 8"));
}

static struct gx_load_opts gemm(uint32_t n, uint32_t grid)
{
	struct gx_load_opts o = GX_INIT(o);

	o.kind = GX_LOAD_GEMM;
	o.n = n;
	o.grid_x = o.grid_y = grid;
	return o;
}

static void run(struct gx_load *l, unsigned n)
{
	uint64_t before, nr = 0;

	assert_int_equal(gx_load_done(l, &before), 0);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(gx_load_post(l), 0);
	while (nr < before + n)
		assert_int_equal(gx_load_done(l, &nr), 0);
	assert_int_equal(nr, before + n);
}

/* Programs of another version, as in test_struct.c. */
static void load_sizes(struct gx_load *l)
{
	struct gx_load_info info[2];
	struct gx_load_check check[2];

	memset(info, 0xff, sizeof(info));
	memset(check, 0xff, sizeof(check));
	info->size = offsetof(struct gx_load_info, flop);
	check->size = offsetof(struct gx_load_check, worst);
	assert_int_equal(gx_load_info(l, info), 0);
	assert_int_equal(gx_load_check(l, check), 0);
	assert_true(info->flop != info->flop && check->worst != check->worst);
	info->size = sizeof(*info) + 8;
	check->size = sizeof(*check) + 8;
	assert_int_equal(gx_load_info(l, info), 0);
	assert_int_equal(gx_load_check(l, check), 0);
	assert_true(info->flop > 0 && check->nr == 64);
	assert_int_equal(info[1].size | check[1].size, 0);
	info->size = check->size = 0;
	assert_int_equal(gx_load_info(l, info), -EINVAL);
	assert_int_equal(gx_load_check(l, check), -EINVAL);
	assert_non_null(strstr(gx_engine_why(), "gx_load_check.size is 0"));
}

/* GPU only. Opens, runs, and checks. */
static void load_good(const struct gx_load_opts *o, const char *word)
{
	struct gx_load_info info = GX_INIT(info);
	struct gx_load_check check = GX_INIT(check);
	struct gx_load *l;
	int ret = gx_load_open(engine, o, &l);

	if (ret == -EOPNOTSUPP && strstr(gx_engine_why(), "cuBLAS")) {
		print_message("not tested: %s\n", gx_engine_why());
		return;
	}
	assert_int_equal(ret, 0);
	run(l, 3);
	assert_int_equal(gx_load_check(l, &check), 0);
	assert_int_equal(check.nr, 64);
	if (check.wrong)
		fail_msg("%u elements differ by up to %g", check.wrong, check.worst);
	assert_int_equal(gx_load_info(l, &info), 0);
	assert_true(info.flop > 0);
	assert_non_null(strstr(info.name, word));
	load_sizes(l);
	gx_load_close(l);
}

static void load__gemm(void **state)
{
	struct gx_load_opts all = gemm(128, 0), some = gemm(256, 1);

	if (device < 0)
		return;
	load_good(&all, "2x2");
	load_good(&some, "1x1");
}

static void load__cublas(void **state)
{
	struct gx_load_opts o = GX_INIT(o);

	o.kind = GX_LOAD_CUBLAS;
	o.n = 136;
	o.lib_path = getenv("GX_TEST_CUBLAS");
	if (device >= 0)
		load_good(&o, "cuBLAS");
}

static struct gx_load_opts attention(void)
{
	struct gx_load_opts o = GX_INIT(o);

	o.kind = GX_LOAD_ATTENTION;
	o.batch = 1;
	o.heads = 2;
	o.tokens = 512;
	o.head_dim = 16;
	o.lib_path = getenv("GX_TEST_CUBLAS");
	return o;
}

static void load__attention(void **state)
{
	struct gx_load_opts o = attention();

	if (device >= 0)
		load_good(&o, "not fused");
}

static void load_check__sees_a_no_op(void **state)
{
	struct gx_load_check check = GX_INIT(check);
	struct gx_load_opts o = attention();
	struct gx_load *l;

	if (device < 0 || !getenv("GX_FAKE_CUDA"))
		return; /* only the fake library can be told to do nothing */
	setenv("GX_FAKE_CUBLAS_LAZY", "1", 1);
	assert_int_equal(gx_load_open(engine, &o, &l), 0);
	run(l, 1);
	assert_int_equal(gx_load_check(l, &check), 0);
	assert_true(check.wrong > 32);
	gx_load_close(l);
	unsetenv("GX_FAKE_CUBLAS_LAZY");
}

static void load_post__at_most_64(void **state)
{
	struct gx_load_check check = GX_INIT(check);
	struct gx_load_opts o = gemm(128, 2);
	struct gx_load *l;
	unsigned n = 0;

	if (device < 0)
		return;
	assert_int_equal(gx_load_open(engine, &o, &l), 0);
	while (n < 10000 && !gx_load_post(l))
		n++;
	assert_true(n >= 64);
	if (n < 10000)
		assert_int_equal(gx_load_check(l, &check), -EBUSY);
	gx_load_close(l); /* with work out */
}

static void load_open__refuses(void **state)
{
	struct gx_load_opts o = gemm(100, 0), big = gemm(128, 3), a = attention(),
			    unset = gemm(128, 0);
	struct gx_load *l = NULL;

	assert_int_equal(gx_load_open(engine, &o, &l), -EINVAL);
	assert_int_equal(gx_load_open(engine, &big, &l), -EINVAL);
	assert_non_null(strstr(gx_engine_why(), "2 x 2 tiles"));
	a.tokens = 100;
	assert_int_equal(gx_load_open(engine, &a, &l), -EINVAL);
	a.tokens = 512;
	a.head_dim = 0;
	assert_int_equal(gx_load_open(engine, &a, &l), -EINVAL);
	unset.size = 0;
	assert_int_equal(gx_load_open(engine, &unset, &l), -EINVAL);
	unset = gemm(128, 0);
	if (device < 0)
		assert_int_equal(gx_load_open(engine, &unset, &l), -EOPNOTSUPP);
	assert_null(l);
	gx_load_close(NULL);
}

static int engine_start(void)
{
	struct gx_engine_opts opts = GX_INIT(opts);
	int ret;

	opts.device = device;
	ret = gx_engine_open(&opts, &engine);
	if (!ret)
		return 0;
	printf("skipped: %s\n", gx_engine_why());
	return 77;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(pattern_fill__words, setup, teardown),
		cmocka_unit_test_setup_teardown(pattern_diff__every_wrong_byte, setup, teardown),
		cmocka_unit_test_setup_teardown(pattern_fill__odd_length, setup, teardown),
		cmocka_unit_test(load__gemm),
		cmocka_unit_test(load__cublas),
		cmocka_unit_test(load__attention),
		cmocka_unit_test(load_check__sees_a_no_op),
		cmocka_unit_test(load_post__at_most_64),
		cmocka_unit_test(load_open__refuses),
	};
	int ret;

	device = argc > 1 && !strcmp(argv[1], "cuda") ? 0 : -1;
	if (engine_start())
		return 77;
	ret = cmocka_run_group_tests(tests, NULL, NULL);
	gx_engine_close(engine);
	return ret;
}
