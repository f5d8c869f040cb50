// SPDX-License-Identifier: Apache-2.0
/*
 * The warning about a core that was not turned: which cause does it name? The core is made by hand,
 * and this thread is the one that turns it.
 */
#include "core/core.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define S 1000000000ull

static struct gx *gx;
static struct gx_core *core;
static struct gx_conn conn;
static char said[512];

static void log_keep(void *arg, int level, const char *line)
{
	snprintf(said, sizeof(said), "%s", line);
}

static int setup(void **state)
{
	static struct gx_core_opts opts;

	core = aligned_alloc(GX_CACHE_LINE, GX_ALIGN_UP(sizeof(*core), GX_CACHE_LINE));
	gx = calloc(1, sizeof(*gx));
	assert_true(core && gx);
	memset(core, 0, sizeof(*core));
	core->loop.cpu = -1;
	core->turner_tid = gettid();
	gx->core[0] = core;
	core->gx = gx;
	gx->nr_cores = 1;
	gx->opts.cores = &opts;
	gx->conns = &conn;
	said[0] = 0;
	gx_log_level_set(GX_LOG_WARN);
	gx_log_sink(log_keep, NULL);
	return 0;
}

static int teardown(void **state)
{
	gx_log_sink(NULL, NULL);
	free(core);
	free(gx);
	return 0;
}

/* The core has stalled for @ns, and the control thread looks. */
static void stall(uint64_t ns, uint64_t now_ns)
{
	said[0] = 0;
	gx_stat_add(&core->loop.stats, GX_STAT_STALLS, 1);
	core->loop.stall_ns = ns;
	core_watch(gx, now_ns);
}

/* All that this thread has ever waited for a CPU, it waited in the stall. */
static void core_watch__had_no_cpu(void **state)
{
	core_watch(gx, 5 * S);
	assert_string_equal(said, "");
	if (core->wait.total_ns < 4)
		skip(); /* the kernel does not say */
	core->loop.stall_ns = core->wait.total_ns;
	core->wait.total_ns = 1;
	stall(core->loop.stall_ns, 5 * S + 1);
	assert_non_null(strstr(said, "core 0 was not turned"));
	assert_non_null(strstr(said, "of that for a CPU"));
}

static void core_watch__had_no_cpu_of_its_own(void **state)
{
	core->loop.started = gettid();
	core->loop.cpu = 7;
	core_watch(gx, 5 * S);
	if (core->wait.total_ns < 4)
		skip();
	core->loop.stall_ns = core->wait.total_ns;
	core->wait.total_ns = 1;
	stall(core->loop.stall_ns, 5 * S + 1);
	assert_non_null(strstr(said, "core 0 was not run"));
	assert_non_null(strstr(said, "of that for CPU 7"));
}

/* It waited for less than half of the time. */
static void core_watch__was_elsewhere(void **state)
{
	core_watch(gx, 5 * S);
	stall(3600 * S, 5 * S + 1);
	assert_non_null(strstr(said, "not turned for 3600.0 s: the program was busy elsewhere"));
}

/* The count of one thread says nothing of another. */
static void core_watch__other_thread(void **state)
{
	core_watch(gx, 5 * S);
	core->wait.total_ns = 1;
	core->wait.tid = -1;
	stall(2, 5 * S + 1);
	assert_non_null(strstr(said, "busy elsewhere"));
}

static void core_watch__not_too_often(void **state)
{
	core_watch(gx, 5 * S);
	stall(3600 * S, 6 * S);
	assert_non_null(strstr(said, "3600.0 s"));
	stall(7200 * S, 7 * S);
	assert_string_equal(said, "");
	core_watch(gx, 17 * S);
	assert_non_null(strstr(said, "7200.0 s: the program was busy elsewhere"));
	said[0] = 0;
	core_watch(gx, 30 * S);
	assert_string_equal(said, "");
}

static void core_watch__nobody_waits(void **state)
{
	gx->conns = NULL;
	stall(3600 * S, 5 * S);
	gx->conns = &conn;
	core_watch(gx, 6 * S);
	assert_string_equal(said, "");
}

/* Another one gives this thread, which is the core's, all the CPUs that it had. */
static void core_watch__pins_again(void **state)
{
	cpu_set_t all, is;

	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	if (CPU_COUNT(&all) < 2)
		skip();
	core->loop.started = gettid();
	core->loop.cpu = 0;
	while (!CPU_ISSET((unsigned)core->loop.cpu, &all))
		core->loop.cpu++;
	core_watch(gx, 5 * S);
	assert_non_null(strstr(said, "is pinned to it again"));
	assert_int_equal(sched_getaffinity(0, sizeof(is), &is), 0);
	assert_true(CPU_COUNT(&is) == 1 && CPU_ISSET((unsigned)core->loop.cpu, &is));
	said[0] = 0;
	core_watch(gx, 7 * S);
	assert_string_equal(said, "");
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

static atomic_int own_tid;
static atomic_bool own_ends;

static void *own_main(void *arg)
{
	atomic_store(&own_tid, gettid());
	while (!atomic_load(&own_ends))
		usleep(1000);
	return NULL;
}

/* gx_core_start() has made a thread, which has not turned yet: this one was the last to turn, and is
 * the program's. */
static void core_watch__pins_no_thread_of_the_program(void **state)
{
	cpu_set_t all, is;
	pthread_t own;

	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	if (CPU_COUNT(&all) < 2)
		skip();
	while (!CPU_ISSET((unsigned)++core->loop.cpu, &all))
		;
	core_watch(gx, 3 * S); /* nor where it has made none */
	atomic_store(&own_tid, 0);
	atomic_store(&own_ends, false);
	assert_int_equal(pthread_create(&own, NULL, own_main, NULL), 0);
	while (!(core->loop.started = atomic_load(&own_tid)))
		usleep(1000);
	core->turner = CORE_STARTING;
	core_watch(gx, 5 * S);
	assert_int_equal(sched_getaffinity(core->loop.started, sizeof(is), &is), 0);
	assert_int_equal(CPU_COUNT(&is), 1);
	assert_int_equal(sched_getaffinity(0, sizeof(is), &is), 0);
	assert_true(CPU_EQUAL(&is, &all));
	atomic_store(&own_ends, true);
	pthread_join(own, NULL);
}

static void core_watch__its_cpu_is_gone(void **state)
{
	core->loop.started = gettid();
	core->loop.cpu = CPU_SETSIZE - 1;
	core_watch(gx, 5 * S);
	assert_non_null(strstr(said, "core 0 has lost CPU 1023"));
	said[0] = 0;
	core_watch(gx, 7 * S);
	assert_string_equal(said, "");
}

static void *spin_main(void *arg)
{
	const cpu_set_t *on = arg;

	assert_int_equal(sched_setaffinity(0, sizeof(*on), on), 0);
	atomic_store(&own_tid, gettid());
	while (!atomic_load(&own_ends))
		;
	return NULL;
}

/* Two threads poll on one CPU, of which one is the core's. */
static void crowd(bool may_move, bool own)
{
	struct gx_core_opts opts = {.may_move = may_move};
	uint64_t until_ns = gx_now_ns() + 60 * S;
	pthread_t spin[2];
	cpu_set_t on, is;

	assert_int_equal(sched_getaffinity(0, sizeof(gx->may), &gx->may), 0);
	if (CPU_COUNT(&gx->may) < 2)
		skip();
	gx->opts.cores = &opts;
	gx_log_level_set(GX_LOG_INFO);
	while (!CPU_ISSET((unsigned)++core->loop.cpu, &gx->may))
		;
	CPU_ZERO(&on);
	CPU_SET((unsigned)core->loop.cpu, &on);
	atomic_store(&own_ends, false);
	for (unsigned i = 0; i < 2; i++) {
		atomic_store(&own_tid, 0);
		assert_int_equal(pthread_create(&spin[i], NULL, spin_main, &on), 0);
		while (!atomic_load(&own_tid))
			usleep(1000);
	}
	core->turner_tid = atomic_load(&own_tid);
	core->loop.started = own ? core->turner_tid : 0;
	for (uint64_t seen = core->wait.look_ns, n = 0; n < 3;
	     usleep(1000)) { /* one that does not turn says nothing of its own thread */
		core_watch(gx, gx_now_ns());
		n += core->wait.look_ns != seen;
		seen = core->wait.look_ns;
	}
	assert_int_equal(core->wait.crowded, 0);
	while (!said[0] && gx_now_ns() < until_ns) {
		gx_stat_add(&core->loop.stats, GX_STAT_TURNS, 1);
		core_watch(gx, gx_now_ns());
		if (core->wait.crowded < 2) /* one look is not enough */
			assert_string_equal(said, "");
		usleep(1000);
	}
	assert_non_null(strstr(said, may_move ? "core 0 leaves CPU" : "give it one of its own"));
	said[0] = 0;
	for (unsigned i = 0; i < 4; i++) /* once; it stays there */
		core_watch(gx, gx_now_ns() + i * 5 * S);
	assert_string_equal(said, "");
	assert_int_equal(sched_getaffinity(core->turner_tid, sizeof(is), &is), 0);
	assert_true(CPU_EQUAL(&is, may_move ? &gx->may : &on));
	assert_true(may_move == (core->loop.cpu < 0));
	gx_log_level_set(GX_LOG_WARN);
	atomic_store(&own_ends, true);
	for (unsigned i = 0; i < 2; i++)
		pthread_join(spin[i], NULL);
}

static void core_watch__leaves_a_cpu_that_others_have(void **state)
{
	crowd(true, true);
}

static void core_watch__stays_where_it_was_put(void **state)
{
	crowd(false, true);
}

static void core_watch__moves_a_program_that_lets_it(void **state)
{
	crowd(true, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(core_watch__moves_a_program_that_lets_it, setup,
						teardown),
		cmocka_unit_test_setup_teardown(core_watch__leaves_a_cpu_that_others_have, setup,
						teardown),
		cmocka_unit_test_setup_teardown(core_watch__stays_where_it_was_put, setup,
						teardown),
		cmocka_unit_test_setup_teardown(core_watch__pins_again, setup, teardown),
		cmocka_unit_test_setup_teardown(core_watch__pins_no_thread_of_the_program, setup,
						teardown),
		cmocka_unit_test_setup_teardown(core_watch__its_cpu_is_gone, setup, teardown),
		cmocka_unit_test_setup_teardown(core_watch__had_no_cpu, setup, teardown),
		cmocka_unit_test_setup_teardown(core_watch__had_no_cpu_of_its_own, setup, teardown),
		cmocka_unit_test_setup_teardown(core_watch__was_elsewhere, setup, teardown),
		cmocka_unit_test_setup_teardown(core_watch__other_thread, setup, teardown),
		cmocka_unit_test_setup_teardown(core_watch__not_too_often, setup, teardown),
		cmocka_unit_test_setup_teardown(core_watch__nobody_waits, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
