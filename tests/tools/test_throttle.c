// SPDX-License-Identifier: Apache-2.0
/*
 * What overlap gives and what a command takes: the command is a child that takes whatever it can.
 */
#include "gxperf/beside/throttle.h"

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
	struct gate *g;
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

	if (gate_join(fd) || !gate_on() || !gate_rests() || gate_ends() || gate_take(1))
		_exit(1);
	gate_ready(SIZE_B);
	while (!gate_ends()) {
		n = gate_take(3);
		if (n > 3)
			_exit(2);
		gate_done(n);
		nap(1000);
	}
	_exit(gate_rests() ? 3 : 0);
}

static int setup(void **state)
{
	static struct rig r;
	uint64_t size = 0, end = gx_now() + WAIT_NS;

	*state = &r;
	assert_int_equal(gate_open(&r.g, &r.fd), 0);
	assert_false(gate_size(r.g, &size));
	r.pid = fork();
	if (!r.pid)
		command(r.fd);
	while (!gate_size(r.g, &size) && gx_now() < end)
		nap(100000);
	assert_int_equal(size, SIZE_B);
	return 0;
}

static int teardown(void **state)
{
	struct rig *r = *state;
	int status;

	gate_mode(r->g, GATE_END);
	assert_int_equal(waitpid(r->pid, &status, 0), r->pid);
	assert_int_equal(status, 0);
	gate_close(r->g, r->fd);
	return 0;
}

static void comes_to(struct rig *r, uint64_t n)
{
	uint64_t end = gx_now() + WAIT_NS;

	while (gate_ended(r->g) < n && gx_now() < end)
		nap(100000);
	assert_true(gate_ended(r->g) >= n);
}

/* It comes to @n and stays there. */
static void ends_at(struct rig *r, uint64_t n)
{
	comes_to(r, n);
	nap(QUIET_NS);
	assert_int_equal(gate_ended(r->g), n);
}

static void gate_allow__so_many_and_no_more(void **state)
{
	struct rig *r = *state;

	ends_at(r, 0);
	gate_mode(r->g, GATE_STEP);
	gate_allow(r->g, 10);
	ends_at(r, 10);
	gate_allow(r->g, 1);
	gate_allow(r->g, 5);
	ends_at(r, 16);
}

static void gate_mode__runs_until_it_is_settled(void **state)
{
	struct rig *r = *state;
	uint64_t upto = 0;

	for (unsigned i = 0; i < 5; i++) {
		gate_mode(r->g, GATE_RUN);
		comes_to(r, upto + 1);
		upto = gate_settle(r->g, 16);
		assert_int_equal(upto % 16, 0);
		ends_at(r, upto);
		gate_mode(r->g, GATE_REST);
	}
}

static void gate_settle__takes_back_what_was_not_begun(void **state)
{
	struct rig *r = *state;

	gate_mode(r->g, GATE_STEP);
	gate_allow(r->g, 32);
	ends_at(r, 32);
	assert_int_equal(gate_settle(r->g, 16), 32);
	gate_allow(r->g, 1);
	ends_at(r, 33);
	assert_int_equal(gate_settle(r->g, 16), 48);
	ends_at(r, 48);
}

static void gate_join__refuses(void **state)
{
	int plain = memfd_create("plain", 0), other, status;
	struct gate *g;
	pid_t pid;

	assert_int_equal(gate_join(-1), -EBADF);
	assert_int_equal(gate_join(STDIN_FILENO), -EINVAL);
	assert_int_equal(ftruncate(plain, 4096), 0);
	assert_int_equal(gate_join(plain), -EINVAL); /* no gate */
	assert_int_equal(gate_open(&g, &other), 0);
	assert_int_equal(gate_join(other), -EINVAL); /* not our parent's */
	assert_false(gate_on() || gate_rests() || gate_ends());
	pid = fork();
	if (!pid) {
		gate_give_up();
		_exit(gate_ends() ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	gate_close(g, -1);
	gate_close(NULL, -1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(gate_allow__so_many_and_no_more),
		TEST(gate_mode__runs_until_it_is_settled),
		TEST(gate_settle__takes_back_what_was_not_begun),
		cmocka_unit_test(gate_join__refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
