// SPDX-License-Identifier: Apache-2.0
/*
 * What overlap gives and what a command takes: the command is a child that takes whatever it can.
 */
#include "gxperf/base/throttle.h"

#include <gx/gx.h>

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define SIZE_B	 7
#define WAIT_NS	 30000000000ull
#define QUIET_NS 20000000

struct rig {
	struct throttle *t;
	int fd;
	pid_t pid;
};

static void nap(long ns)
{
	nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* Exit status 0: it was let go on until the end. */
static void command(int fd)
{
	uint64_t n;

	if (throttle_join(fd) || !throttle_on() || !throttle_rests() || throttle_ends() ||
	    throttle_take(1))
		_exit(1);
	throttle_ready(SIZE_B);
	while (!throttle_ends()) {
		n = throttle_take(3);
		if (n > 3)
			_exit(2);
		throttle_done(n);
		nap(1000);
	}
	_exit(throttle_rests() ? 3 : 0);
}

static int setup(void **state)
{
	static struct rig r;
	uint64_t size = 0, end = gx_now() + WAIT_NS;

	*state = &r;
	assert_int_equal(throttle_open(&r.t, &r.fd), 0);
	assert_false(throttle_size(r.t, &size));
	r.pid = fork();
	if (!r.pid)
		command(r.fd);
	while (!throttle_size(r.t, &size) && gx_now() < end)
		nap(100000);
	assert_int_equal(size, SIZE_B);
	return 0;
}

static int teardown(void **state)
{
	struct rig *r = *state;
	int status;

	throttle_mode(r->t, THROTTLE_END);
	assert_int_equal(waitpid(r->pid, &status, 0), r->pid);
	assert_int_equal(status, 0);
	throttle_close(r->t, r->fd);
	return 0;
}

static void comes_to(struct rig *r, uint64_t n)
{
	uint64_t end = gx_now() + WAIT_NS;

	while (throttle_ended(r->t) < n && gx_now() < end)
		nap(100000);
	assert_true(throttle_ended(r->t) >= n);
}

/* It comes to @n and stays there. */
static void ends_at(struct rig *r, uint64_t n)
{
	comes_to(r, n);
	nap(QUIET_NS);
	assert_int_equal(throttle_ended(r->t), n);
}

static void throttle_allow__so_many_and_no_more(void **state)
{
	struct rig *r = *state;

	ends_at(r, 0);
	throttle_mode(r->t, THROTTLE_STEP);
	throttle_allow(r->t, 10);
	ends_at(r, 10);
	throttle_allow(r->t, 1);
	throttle_allow(r->t, 5);
	ends_at(r, 16);
}

static void throttle_mode__runs_until_it_is_settled(void **state)
{
	struct rig *r = *state;
	uint64_t upto = 0;

	for (unsigned i = 0; i < 5; i++) {
		throttle_mode(r->t, THROTTLE_RUN);
		comes_to(r, upto + 1);
		upto = throttle_settle(r->t, 16);
		assert_int_equal(upto % 16, 0);
		ends_at(r, upto);
		throttle_mode(r->t, THROTTLE_REST);
	}
}

static void throttle_settle__takes_back_what_was_not_begun(void **state)
{
	struct rig *r = *state;

	throttle_mode(r->t, THROTTLE_STEP);
	throttle_allow(r->t, 32);
	ends_at(r, 32);
	assert_int_equal(throttle_settle(r->t, 16), 32);
	throttle_allow(r->t, 1);
	ends_at(r, 33);
	assert_int_equal(throttle_settle(r->t, 16), 48);
	ends_at(r, 48);
}

static void throttle_join__refuses(void **state)
{
	int plain = memfd_create("plain", 0), other, status;
	struct throttle *t;
	pid_t pid;

	assert_int_equal(throttle_join(-1), -EBADF);
	assert_int_equal(throttle_join(STDIN_FILENO), -EINVAL);
	assert_int_equal(ftruncate(plain, 4096), 0);
	assert_int_equal(throttle_join(plain), -EINVAL); /* no throttle */
	assert_int_equal(throttle_open(&t, &other), 0);
	assert_int_equal(throttle_join(other), -EINVAL); /* not our parent's */
	assert_false(throttle_on() || throttle_rests() || throttle_ends());
	pid = fork();
	if (!pid) {
		throttle_give_up();
		_exit(throttle_ends() ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	throttle_close(t, -1);
	throttle_close(NULL, -1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(throttle_allow__so_many_and_no_more),
		TEST(throttle_mode__runs_until_it_is_settled),
		TEST(throttle_settle__takes_back_what_was_not_begun),
		cmocka_unit_test(throttle_join__refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
