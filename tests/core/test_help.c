/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The help board of a core: pieces change hands between the core (the test's thread) and threads in
 * gx_help().
 */
#include "core/core.h"
#include "core/help.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HELPERS 3
#define ROUNDS	5000
#define WAIT_NS 40000000000ull

static struct gx_core *core;
static struct help_board *board;

static int setup(void **state)
{
	(void)state;
	core = aligned_alloc(alignof(struct gx_core), sizeof(*core));
	if (!core)
		return -1;
	memset(core, 0, sizeof(*core));
	board = &core->help;
	return 0;
}

/* Nothing is offered, and no end was left out. */
static int teardown(void **state)
{
	bool clean = !board->used && !board->offered && !board->ended;

	(void)state;
	free(core);
	return clean ? 0 : -1;
}

/* ---- One thread ---- */

static ssize_t copy_bytes(const struct help_slice *p)
{
	memcpy(p->to, p->whose, p->len);
	return (ssize_t)p->len;
}

static ssize_t copy_half(const struct help_slice *p)
{
	memcpy(p->to, (const char *)p->whose + p->from, p->len / 2);
	return (ssize_t)(p->len / 2);
}

static ssize_t copy_fails(const struct help_slice *p)
{
	(void)p;
	return -EFAULT;
}

/* The core looks while a helper copies. */
static ssize_t copy_looks(const struct help_slice *p)
{
	(void)p;
	assert_false(help_take(board, 0));
	assert_int_equal(help_ended(board, ~0u), 0);
	assert_int_equal(help_nr_offered(board, ~0u), 0);
	assert_false(gx_help(core)); /* another thread */
	return 1;
}

static void help__with_nothing_to_do(void **state)
{
	(void)state;
	assert_false(help_comes(board));
	assert_false(gx_help(core));
	assert_true(help_comes(board));
	assert_false(gx_help(core));
}

static void help__copies_what_is_offered(void **state)
{
	char to[8] = "";
	int i = help_offer(
		board,
		&(struct help_slice){.copy = copy_bytes, .whose = "payload", .to = to, .len = 8});
	(void)state;

	assert_int_equal(i, 0);
	assert_int_equal(help_nr_offered(board, 1), 1);
	assert_int_equal(help_nr_offered(board, ~1u), 0);
	assert_int_equal(help_ended(board, ~0u), 0);
	assert_true(gx_help(core));
	assert_string_equal(to, "payload");
	assert_false(gx_help(core));
	assert_int_equal(help_ended(board, ~1u), 0); /* it is not among those */
	assert_int_equal(help_ended(board, 1), 1);
	assert_int_equal(help_ended(board, 1), 0); /* told once */
	assert_int_equal(board->slice[0].got, 8);
	help_free(board, 0);
}

static void help__tells_the_error(void **state)
{
	(void)state;
	assert_int_equal(help_offer(board, &(struct help_slice){.copy = copy_fails, .len = 8}), 0);
	assert_true(gx_help(core));
	assert_int_equal(help_ended(board, ~0u), 1);
	assert_int_equal(board->slice[0].got, -EFAULT);
	help_free(board, 0);
}

static void offer__all_are_in_use(void **state)
{
	const struct help_slice p = {.copy = copy_fails};
	(void)state;

	for (int i = 0; i < HELP_SLICES; i++)
		assert_int_equal(help_offer(board, &p), i);
	assert_int_equal(help_offer(board, &p), -1);
	assert_true(help_take(board, 3));
	assert_int_equal(help_offer(board, &p), -1); /* it is the core's, and in use */
	help_free(board, 3);
	assert_int_equal(help_offer(board, &p), 3);
	for (unsigned i = 0; i < HELP_SLICES; i++) {
		assert_true(help_take(board, i));
		assert_false(help_take(board, i));
		help_free(board, i);
	}
	assert_false(gx_help(core));
}

static void take__while_a_helper_has_it(void **state)
{
	(void)state;
	assert_int_equal(help_offer(board, &(struct help_slice){.copy = copy_looks}), 0);
	assert_true(gx_help(core));
	assert_false(help_take(board, 0));
	assert_int_equal(help_ended(board, ~0u), 1);
	help_free(board, 0);
}

static void again__the_rest(void **state)
{
	char to[8] = "";
	(void)state;

	help_offer(board,
		   &(struct help_slice){.copy = copy_half, .whose = "payload", .to = to, .len = 8});
	assert_true(gx_help(core));
	assert_int_equal(help_ended(board, ~0u), 1);
	board->slice[0].to += 4;
	board->slice[0].from += 4;
	help_offer_again(board, 0);
	assert_true(gx_help(core));
	assert_int_equal(help_ended(board, ~0u), 1);
	assert_string_equal(to, "payload");
	help_free(board, 0);
}

/* ---- Threads ---- */

static _Atomic bool over;

static void *helper(void *arg)
{
	while (!atomic_load_explicit(&over, memory_order_relaxed))
		gx_help(core);
	return arg;
}

/* A plain add: two threads with one piece, or a late one, are a race. */
static ssize_t copy_counts(const struct help_slice *p)
{
	unsigned *nr = (unsigned *)(void *)p->to;

	*nr += 1;
	return (ssize_t)*nr;
}

/* The core offers all pieces over and over, takes some back, and waits for the others. */
static void threads__each_piece_has_one_taker(void **state)
{
	unsigned nr[HELP_SLICES] = {0}, mine = 0, theirs = 0, done = 0;
	/* Each round may wait for a helper without CPU; and there may be none for long. */
	uint64_t enough = gx_now() + WAIT_NS / 16, none = gx_now() + WAIT_NS;
	pthread_t thread[HELPERS];
	(void)state;

	atomic_store(&over, false);
	for (unsigned i = 0; i < HELPERS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, helper, NULL), 0);
	for (unsigned round = 1; theirs ? round <= ROUNDS && gx_now() < enough : gx_now() < none;
	     round++) {
		uint64_t until = gx_now() + WAIT_NS;
		uint32_t out = (1u << HELP_SLICES) - 1;

		for (unsigned i = 0; i < HELP_SLICES; i++)
			assert_int_equal(
				help_offer(board, &(struct help_slice){.copy = copy_counts,
								       .to = (char *)&nr[i]}),
				i);
		for (unsigned i = round % 3; i < HELP_SLICES; i += 3)
			if (help_take(board, i)) {
				board->slice[i].got = copy_counts(&board->slice[i]);
				out &= ~(1u << i);
				mine++;
			}
		while (out) {
			uint32_t ended = help_ended(board, out);

			theirs += (unsigned)__builtin_popcount(ended);
			out &= ~ended;
			if (!ended) /* the helpers may have no CPU */
				sched_yield();
			assert_true(gx_now() < until);
		}
		for (unsigned i = 0; i < HELP_SLICES; i++) {
			assert_int_equal(nr[i], round);
			assert_int_equal(board->slice[i].got, round);
			help_free(board, i);
		}
		done = round;
	}
	atomic_store(&over, true);
	for (unsigned i = 0; i < HELPERS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(mine + theirs, done * HELP_SLICES);
	assert_true(theirs > 0);
}

/* An argument chooses tests, as take__*. */
int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		T(help__with_nothing_to_do),
		T(help__copies_what_is_offered),
		T(help__tells_the_error),
		T(offer__all_are_in_use),
		T(take__while_a_helper_has_it),
		T(again__the_rest),
		T(threads__each_piece_has_one_taker),
#undef T
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
