// SPDX-License-Identifier: Apache-2.0
/*
 * Loads of CPUs: what they compute, what is refused.
 */
#include "gxperf/base/cpu_load.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define WAIT_NS 20000000000ull

static struct cpu_load_opts opts_of(enum cpu_load_kind kind, uint32_t n)
{
	struct cpu_load_opts o = {.kind = kind, .n = n};

	assert_int_equal(opt_cpus_allowed(&o.cpus), 0);
	if (o.cpus.nr > 2)
		o.cpus.nr = 2;
	return o;
}

static void wait_for(struct cpu_load *l, uint64_t want)
{
	uint64_t nr = 0, end = gx_now() + WAIT_NS;

	while (nr < want && gx_now() < end)
		assert_int_equal(cpu_load_done(l, &nr), 0);
	assert_int_equal(nr, want);
}

/* Return: elements that were compared on each CPU. */
static uint32_t computes(enum cpu_load_kind kind, uint32_t n, double flop)
{
	struct cpu_load_opts o = opts_of(kind, n);
	struct gx_load_check check = GX_INIT(check);
	struct gx_load_info info = GX_INIT(info);
	struct cpu_load *l = NULL;

	assert_int_equal(cpu_load_open(&o, &l), 0);
	wait_for(l, 1); /* it has run once */
	assert_int_equal(cpu_load_check(l, &check), 0);
	assert_int_equal(check.wrong, 0);
	assert_int_equal(cpu_load_post(l), 0);
	assert_int_equal(cpu_load_post(l), 0);
	wait_for(l, 3);
	assert_int_equal(cpu_load_check(l, &check), 0);
	assert_int_equal(check.wrong, 0);
	assert_true(check.worst == 0);
	cpu_load_info(l, &info);
	assert_true(info.flop == flop * o.cpus.nr);
	assert_int_equal(info.blocks, 0);
	assert_non_null(strstr(info.name, kind == CPU_LOAD_GEMM ? "GEMM" : "triad"));
	cpu_load_close(l);
	return check.nr / o.cpus.nr;
}

static void cpu_load__triad(void **state)
{
	assert_int_equal(computes(CPU_LOAD_TRIAD, 12345, 2 * 12345.0), 12345);
}

static void cpu_load__gemm(void **state)
{
	assert_int_equal(computes(CPU_LOAD_GEMM, 128, 2.0 * 128 * 128 * 128), 64);
}

static void cpu_load_check__busy(void **state)
{
	struct cpu_load_opts o = opts_of(CPU_LOAD_TRIAD, 1 << 20);
	struct gx_load_check check = GX_INIT(check);
	struct cpu_load *l = NULL;

	uint64_t end = gx_now() + WAIT_NS;
	int ret;

	assert_int_equal(cpu_load_open(&o, &l), 0);
	do { /* they are all done when this thread was put aside for long */
		for (unsigned i = 0; i < 8; i++)
			assert_int_equal(cpu_load_post(l), 0);
		ret = cpu_load_check(l, &check);
	} while (!ret && gx_now() < end);
	assert_int_equal(ret, -EBUSY);
	cpu_load_close(l); /* waits */
}

static void cpu_load_open__refuses(void **state)
{
	struct cpu_load_opts o = opts_of(CPU_LOAD_GEMM, 100);
	struct cpu_load *l = NULL;

	assert_int_equal(cpu_load_open(&o, &l), -EINVAL);
	o.n = 16384 + 64;
	assert_int_equal(cpu_load_open(&o, &l), -EINVAL);
	o.n = 0;
	assert_int_equal(cpu_load_open(&o, &l), -EINVAL);
	o.kind = CPU_LOAD_TRIAD;
	o.n = (1u << 25) + 1;
	assert_int_equal(cpu_load_open(&o, &l), -EINVAL);
	o.n = 64;
	o.cpus = (struct opt_cpus){.cpu = {1000}, .nr = 1};
	assert_int_equal(cpu_load_open(&o, &l), -EINVAL); /* there is no such CPU */
	o.cpus.nr = 0;
	assert_int_equal(cpu_load_open(&o, &l), -EINVAL);
	assert_null(l);
	cpu_load_close(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cpu_load__triad),
		cmocka_unit_test(cpu_load__gemm),
		cmocka_unit_test(cpu_load_check__busy),
		cmocka_unit_test(cpu_load_open__refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
