// SPDX-License-Identifier: Apache-2.0
/*
 * The polling loop: order, busy and idle, the inbox, the idle policy, and its own thread (the cases
 * that start it are the ones for ThreadSanitizer).
 */
#include "gx_internal/loop.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

#define CALLS_NR       1000
#define WAIT_TRIES_MAX 20000 /* looks, 100 us apart, before a wait for the thread is given up */
#define ORDER_MAX      16
#define NOW_NS	       1000000000u

/* What the pollers of a test have done. owner: the loop's owner */
struct trace {
	char order[ORDER_MAX];
	unsigned n;
	uint64_t now_ns; /* as the last poller was told */
	bool busy;	 /* what the pollers answer */
	struct gx_loop *loop;
};

static struct trace trace;

static bool poll_mark(char mark, uint64_t now_ns)
{
	if (trace.n < ORDER_MAX - 1)
		trace.order[trace.n++] = mark;
	trace.now_ns = now_ns;
	return trace.busy;
}

static bool poll_a(void *arg, uint64_t now_ns)
{
	return poll_mark('a', now_ns);
}

static bool poll_b(void *arg, uint64_t now_ns)
{
	return poll_mark('b', now_ns);
}

static int loop_setup(void **state)
{
	static struct gx_loop loop;

	memset(&trace, 0, sizeof(trace));
	trace.loop = &loop;
	*state = &loop;
	return gx_loop_init(&loop, -1, NULL);
}

static int loop_teardown(void **state)
{
	struct gx_loop *loop = *state;
	bool empty = gx_ring_empty(loop->inbox);

	gx_loop_fini(loop);
	return empty ? 0 : -1;
}

static void add(struct gx_loop *loop, const char *name, bool (*fn)(void *, uint64_t))
{
	const struct gx_poller p = {.name = name, .fn = fn};

	assert_int_equal(gx_loop_add(loop, &p), 0);
}

static uint64_t stat(struct gx_loop *loop, enum gx_stat_id id)
{
	return gx_stat_get(&loop->stats, id);
}

static void gx_loop_add__up_to_max(void **state)
{
	const struct gx_poller p = {.name = "a", .fn = poll_a};

	for (unsigned i = 0; i < GX_LOOP_POLLERS_MAX; i++)
		assert_int_equal(gx_loop_add(*state, &p), 0);
	assert_int_equal(gx_loop_add(*state, &p), -ENOSPC);
}

static void gx_loop_turn__calls_in_order(void **state)
{
	add(*state, "b", poll_b);
	add(*state, "a", poll_a);
	gx_loop_turn(*state, NOW_NS + 5);
	gx_loop_turn(*state, NOW_NS + 6);
	assert_string_equal(trace.order, "baba");
	assert_int_equal(trace.now_ns, NOW_NS + 6);
	gx_loop_turn(*state, NOW_NS + 5); /* time does not go back */
	assert_int_equal(trace.now_ns, NOW_NS + 6);
	gx_loop_turn(*state, NOW_NS + 7);
	assert_int_equal(trace.now_ns, NOW_NS + 7);
}

static void gx_loop_turn__says_whether_busy(void **state)
{
	add(*state, "a", poll_a);
	assert_false(gx_loop_turn(*state, NOW_NS));
	trace.busy = true;
	assert_true(gx_loop_turn(*state, NOW_NS));
}

static void gx_loop_turn__accounts_cycles(void **state)
{
	add(*state, "a", poll_a);
	gx_loop_turn(*state, NOW_NS); /* the first only sets the mark */
	assert_int_equal(stat(*state, GX_STAT_CYCLES_IDLE), 0);
	gx_loop_turn(*state, NOW_NS);
	assert_true(stat(*state, GX_STAT_CYCLES_IDLE) > 0);
	assert_int_equal(stat(*state, GX_STAT_CYCLES_BUSY), 0);
	trace.busy = true;
	gx_loop_turn(*state, NOW_NS);
	assert_true(stat(*state, GX_STAT_CYCLES_BUSY) > 0);
	assert_int_equal(stat(*state, GX_STAT_TURNS), 3);
}

static void gx_loop_turn__counts_stalls(void **state)
{
	struct gx_loop *loop = *state;

	gx_loop_turn(loop, NOW_NS); /* the first follows none */
	gx_loop_turn(loop, NOW_NS + 999999999);
	assert_int_equal(stat(loop, GX_STAT_STALLS), 0);
	gx_loop_turn(loop, NOW_NS + 1999999999ull);
	assert_int_equal(stat(loop, GX_STAT_STALLS), 1);
	assert_int_equal(atomic_load(&loop->stall_ns), 1000000000);
	gx_loop_turn(loop, NOW_NS + 5000000000ull);
	assert_int_equal(stat(loop, GX_STAT_STALLS), 2);
	assert_int_equal(atomic_load(&loop->stall_ns), 3000000001ull);
	gx_loop_turn(loop, NOW_NS); /* a clock that goes back is none */
	gx_loop_turn(loop, NOW_NS + 1);
	assert_int_equal(stat(loop, GX_STAT_STALLS), 2);
}

struct counted_call {
	struct gx_call call;
	unsigned runs; /* written by the owner */
};

static void call_count(struct gx_call *call)
{
	GX_CONTAINER_OF(call, struct counted_call, call)->runs++;
}

static void gx_loop_call__runs_once_and_is_work(void **state)
{
	struct counted_call c = {.call.fn = call_count};

	assert_int_equal(gx_loop_call(*state, &c.call), 0);
	assert_true(gx_loop_turn(*state, NOW_NS));
	assert_false(gx_loop_turn(*state, NOW_NS));
	assert_int_equal(c.runs, 1);
}

struct long_call {
	struct gx_call call;
	struct gx_loop *loop;
	unsigned runs;
};

static void call_is_long(struct gx_call *call)
{
	struct long_call *c = GX_CONTAINER_OF(call, struct long_call, call);

	c->runs++;
	c->loop->enough = true;
}

static void gx_loop_call__after_a_long_one_the_others_wait_a_turn(void **state)
{
	struct long_call c = {.call.fn = call_is_long, .loop = *state};
	struct counted_call other = {.call.fn = call_count};

	assert_int_equal(gx_loop_call(*state, &c.call), 0);
	assert_int_equal(gx_loop_call(*state, &c.call), 0);
	assert_int_equal(gx_loop_call(*state, &other.call), 0);
	for (unsigned turn = 1; turn <= 3; turn++) {
		assert_true(gx_loop_turn(*state, NOW_NS));
		assert_int_equal(c.runs, GX_MIN(turn, 2u));
		assert_int_equal(other.runs, turn == 3);
	}
	assert_false(gx_loop_turn(*state, NOW_NS));
}

static void gx_loop_call__full_inbox(void **state)
{
	struct counted_call c = {.call.fn = call_count};
	unsigned taken = 0;

	while (gx_loop_call(*state, &c.call) == 0)
		taken++;
	assert_true(taken > 0);
	assert_int_equal(gx_loop_call(*state, &c.call), -EAGAIN);
	while (gx_loop_turn(*state, NOW_NS))
		;
	assert_int_equal(c.runs, taken);
}

static void gx_loop_idle__does_not_sleep_unless_asked(void **state)
{
	gx_loop_idle(*state, NOW_NS);
	gx_loop_idle(*state, NOW_NS + 3600000000000u);
	assert_int_equal(stat(*state, GX_STAT_SLEEPS), 0);
}

static void gx_loop_idle__spins_then_sleeps(void **state)
{
	struct gx_loop *loop = *state;

	loop->idle = (struct gx_idle){.spin_ns = 100, .pause_ns = 200, .sleep_max_ns = 50000};
	gx_loop_idle(loop, NOW_NS);
	gx_loop_idle(loop, NOW_NS + 99);
	gx_loop_idle(loop, NOW_NS + 199);
	assert_int_equal(stat(loop, GX_STAT_SLEEPS), 0);
	gx_loop_idle(loop, NOW_NS + 200);
	assert_int_equal(stat(loop, GX_STAT_SLEEPS), 1);
}

static void gx_loop_idle__sleep_is_bounded(void **state)
{
	struct gx_loop *loop = *state;
	uint64_t start_ns = gx_now_ns();

	loop->idle = (struct gx_idle){.sleep_max_ns = 1000};
	gx_loop_idle(loop, NOW_NS);
	gx_loop_idle(loop, NOW_NS + 3600000000000u); /* an hour of idling: still 1 us */
	assert_int_equal(stat(loop, GX_STAT_SLEEPS), 1);
	assert_true(gx_now_ns() - start_ns < 30000000000u);
}

/* Long silences have long sleeps, each a small part of its own, and bounded. */
static void gx_idle_sleep_ns__grows_with_the_silence(void **state)
{
	struct gx_idle idle = {.spin_ns = 100, .pause_ns = 200, .sleep_max_ns = 50000};

	assert_int_equal(gx_idle_sleep_ns(&idle, 199), 0);
	assert_int_equal(gx_idle_sleep_ns(&idle, 200), 1000);
	assert_int_equal(gx_idle_sleep_ns(&idle, 10200), 11000);
	assert_int_equal(gx_idle_sleep_ns(&idle, 3600000000000u), 50000);
	idle.long_max_ns = 400000;
	assert_int_equal(gx_idle_sleep_ns(&idle, 199), 0);
	assert_int_equal(gx_idle_sleep_ns(&idle, 10200), 11000);
	assert_int_equal(gx_idle_sleep_ns(&idle, 50000u << 11), 50000);
	assert_int_equal(gx_idle_sleep_ns(&idle, 200000u << 11), 200000);
	assert_int_equal(gx_idle_sleep_ns(&idle, 3600000000000u), 400000);
	idle.sleep_max_ns = 0;
	assert_int_equal(gx_idle_sleep_ns(&idle, 199), 0);
	assert_int_equal(gx_idle_sleep_ns(&idle, 3600000000000u), 0);
}

static void gx_loop_idle__starts_anew_after_work(void **state)
{
	struct gx_loop *loop = *state;

	loop->idle = (struct gx_idle){.spin_ns = 100, .pause_ns = 200, .sleep_max_ns = 1000};
	add(loop, "a", poll_a);
	gx_loop_idle(loop, NOW_NS);
	trace.busy = true;
	gx_loop_turn(loop, NOW_NS + 1000);
	gx_loop_idle(loop, NOW_NS + 1001);
	assert_int_equal(stat(loop, GX_STAT_SLEEPS), 0);
}

static void wait_for_turns(struct gx_loop *loop, uint64_t n)
{
	const struct timespec ts = {.tv_nsec = 100000};

	for (unsigned i = 0; i < WAIT_TRIES_MAX && stat(loop, GX_STAT_TURNS) < n; i++)
		clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, NULL);
	assert_true(stat(loop, GX_STAT_TURNS) >= n);
}

static void gx_loop_start__turns_until_stop(void **state)
{
	struct gx_loop *loop = *state;
	uint64_t turns;

	assert_int_equal(gx_loop_start(loop, "gx-test"), 0);
	wait_for_turns(loop, 10);
	gx_loop_stop(loop);
	turns = stat(loop, GX_STAT_TURNS);
	sched_yield();
	assert_int_equal(stat(loop, GX_STAT_TURNS), turns);
}

static void gx_loop_start__twice(void **state)
{
	assert_int_equal(gx_loop_start(*state, "gx-test"), 0);
	assert_int_equal(gx_loop_start(*state, "gx-test"), -EBUSY);
	gx_loop_stop(*state);
	gx_loop_stop(*state);
	assert_int_equal(gx_loop_start(*state, "a name that is longer than the kernel takes"), 0);
	gx_loop_stop(*state);
}

static void gx_loop_start__reports_pin_failure(void **state)
{
	struct gx_loop *loop = *state;

	loop->cpu = CPU_SETSIZE - 1; /* no machine of these tests has it */
	assert_int_equal(gx_loop_start(loop, "gx-test"), -EINVAL);
	loop->cpu = CPU_SETSIZE;
	assert_int_equal(gx_loop_start(loop, "gx-test"), -EINVAL);
	assert_false(loop->running);
}

static int first_cpu(void)
{
	cpu_set_t set;

	assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
	for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (CPU_ISSET(cpu, &set))
			return (int)cpu;
	}
	return -1;
}

static void gx_loop_start__pins(void **state)
{
	struct gx_loop *loop = *state;
	cpu_set_t set;

	loop->cpu = first_cpu();
	assert_int_equal(gx_loop_start(loop, "gx-test"), 0);
	assert_int_equal(pthread_getaffinity_np(loop->thread, sizeof(set), &set), 0);
	gx_loop_stop(loop);
	assert_int_equal(CPU_COUNT(&set), 1);
	assert_true(CPU_ISSET((unsigned)loop->cpu, &set));
}

/* Each call is run exactly once, those still in the inbox at stop included. */
static void gx_loop_call__two_threads(void **state)
{
	static struct counted_call calls[CALLS_NR];
	struct gx_loop *loop = *state;
	unsigned wrong = 0;

	memset(calls, 0, sizeof(calls));
	assert_int_equal(gx_loop_start(loop, "gx-test"), 0);
	for (unsigned i = 0; i < CALLS_NR; i++) {
		calls[i].call.fn = call_count;
		while (gx_loop_call(loop, &calls[i].call) == -EAGAIN)
			sched_yield();
	}
	gx_loop_stop(loop);
	for (unsigned i = 0; i < CALLS_NR; i++)
		wrong += calls[i].runs != 1;
	assert_int_equal(wrong, 0);
}

#define LOOP_TEST(fn) cmocka_unit_test_setup_teardown(fn, loop_setup, loop_teardown)

static bool is_asleep(const void *arg)
{
	return atomic_load((const _Atomic bool *)arg);
}

static bool poll_nothing(void *arg, uint64_t now_ns)
{
	return false;
}

struct flag_call {
	struct gx_call call;
	_Atomic bool ran;
};

static void call_flag(struct gx_call *call)
{
	atomic_store(&GX_CONTAINER_OF(call, struct flag_call, call)->ran, true);
}

static void pass_ms(unsigned ms)
{
	nanosleep(&(struct timespec){.tv_nsec = ms * 1000000l}, NULL);
}

static uint64_t turns_within(struct gx_loop *loop, unsigned ms)
{
	uint64_t before = stat(loop, GX_STAT_TURNS);

	pass_ms(ms);
	return stat(loop, GX_STAT_TURNS) - before;
}

/* Nothing to do until a call: the thread sleeps, a call wakes it each time, and so does the end. */
static void gx_loop_start__sleeps_until_a_call(void **state)
{
	static _Atomic bool asleep;
	struct gx_loop *loop = *state;
	const struct gx_poller p = {
		.name = "p", .fn = poll_nothing, .arg = &asleep, .asleep = is_asleep};
	struct flag_call c = {.call.fn = call_flag};
	uint64_t begin, turns;

	loop->idle = (struct gx_idle){.spin_ns = 100, .pause_ns = 200, .sleep_max_ns = 50000};
	atomic_store(&asleep, true);
	assert_int_equal(gx_loop_add(loop, &p), 0);
	assert_int_equal(gx_loop_start(loop, "park"), 0);
	pass_ms(20);
	assert_true(turns_within(loop, 300) <= 20); /* not a thousand */
	for (unsigned i = 0; i < 2000; i++) {
		atomic_store(&c.ran, false);
		assert_int_equal(gx_loop_call(loop, &c.call), 0);
		begin = gx_now_ns();
		while (!atomic_load(&c.ran))
			sched_yield();
		/* Its own look round comes after 100 ms: many in a row cannot be by that. */
		trace.n += gx_now_ns() - begin > 90000000;
		assert_true(trace.n < 20);
		if (i % 16 == 0)
			pass_ms(1);
	}
	atomic_store(&asleep, false); /* seen when it looks round */
	begin = gx_now_ns();	      /* asleep it has ten turns a second */
	for (turns = stat(loop, GX_STAT_TURNS); stat(loop, GX_STAT_TURNS) - turns < 1000;
	     pass_ms(1))
		assert_true(gx_now_ns() - begin < 30000000000u);
	atomic_store(&asleep, true);
	pass_ms(20);
	gx_loop_stop(loop);
}

/* Puts a call when the loop has looked into its inbox for the last time before it sleeps. */
static struct late_call {
	struct gx_loop *loop;
	struct flag_call c;
	_Atomic bool due;
} late;

static bool is_asleep_and_calls(const void *arg)
{
	if (atomic_exchange(&late.due, false))
		gx_loop_call(late.loop, &late.c.call);
	return true;
}

static void gx_loop_start__call_when_it_falls_asleep(void **state)
{
	struct gx_loop *loop = *state;
	const struct gx_poller p = {.name = "p", .fn = poll_nothing, .asleep = is_asleep_and_calls};
	uint64_t best = UINT64_MAX;

	late = (struct late_call){.loop = loop, .c.call.fn = call_flag};
	loop->idle = (struct gx_idle){.spin_ns = 100, .pause_ns = 200, .sleep_max_ns = 50000};
	assert_int_equal(gx_loop_add(loop, &p), 0);
	assert_int_equal(gx_loop_start(loop, "park"), 0);
	for (unsigned i = 0; i < 5; i++) {
		uint64_t begin;

		atomic_store(&late.c.ran, false);
		atomic_store(&late.due, true);
		while (atomic_load(&late.due))
			sched_yield();
		begin = gx_now_ns();
		while (!atomic_load(&late.c.ran))
			sched_yield();
		best = GX_MIN(best, gx_now_ns() - begin);
	}
	gx_loop_stop(loop);
	assert_true(best < 50000000); /* it did not sleep over it, which takes 100 ms */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		LOOP_TEST(gx_loop_add__up_to_max),
		LOOP_TEST(gx_loop_turn__calls_in_order),
		LOOP_TEST(gx_loop_turn__says_whether_busy),
		LOOP_TEST(gx_loop_turn__accounts_cycles),
		LOOP_TEST(gx_loop_turn__counts_stalls),
		LOOP_TEST(gx_loop_call__runs_once_and_is_work),
		LOOP_TEST(gx_loop_call__after_a_long_one_the_others_wait_a_turn),
		LOOP_TEST(gx_loop_call__full_inbox),
		LOOP_TEST(gx_loop_idle__does_not_sleep_unless_asked),
		LOOP_TEST(gx_loop_idle__spins_then_sleeps),
		LOOP_TEST(gx_loop_idle__sleep_is_bounded),
		LOOP_TEST(gx_idle_sleep_ns__grows_with_the_silence),
		LOOP_TEST(gx_loop_idle__starts_anew_after_work),
		LOOP_TEST(gx_loop_start__turns_until_stop),
		LOOP_TEST(gx_loop_start__twice),
		LOOP_TEST(gx_loop_start__reports_pin_failure),
		LOOP_TEST(gx_loop_start__pins),
		LOOP_TEST(gx_loop_call__two_threads),
		LOOP_TEST(gx_loop_start__sleeps_until_a_call),
		LOOP_TEST(gx_loop_start__call_when_it_falls_asleep),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
