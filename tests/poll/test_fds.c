/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors beside messages: they come with their bytes, and whatever goes wrong, none stays open.
 */
#include "gx_internal/fds.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "kit/common_fds.h"

static int ends[2]; /* [0] is read */
static unsigned before;

static int setup(void **state)
{
	before = common_fds_count();
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends);
}

static int teardown(void **state)
{
	close(ends[0]);
	close(ends[1]);
	assert_int_equal(common_fds_count(), before);
	return 0;
}

/* @n descriptors of one pipe's end, and a number. */
static void send_some(unsigned n, uint32_t number)
{
	int pipes[2], fds[GX_FDS_MAX];

	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	for (unsigned i = 0; i < n; i++)
		fds[i] = pipes[0];
	assert_int_equal(gx_fds_send(ends[1], &number, sizeof(number), fds, n), 0);
	close(pipes[0]);
	close(pipes[1]);
}

static void fds__come_with_their_bytes(void **state)
{
	static const unsigned sizes[] = {0, 1, 2, GX_FDS_MAX};
	int fds[GX_FDS_MAX];

	for (unsigned i = 0; i < 4; i++)
		send_some(sizes[i], i);
	for (uint32_t i = 0, got = 99; i < 4; i++) {
		unsigned n = GX_FDS_MAX;

		assert_int_equal(gx_fds_recv(ends[0], &got, sizeof(got), fds, &n), sizeof(got));
		assert_int_equal(got, i);
		assert_int_equal(n, sizes[i]);
		while (n) {
			assert_int_equal(fcntl(fds[--n], F_GETFD), FD_CLOEXEC);
			close(fds[n]);
		}
	}
}

static void fds__nothing_waits(void **state)
{
	const int any = STDOUT_FILENO;
	char big[4096] = {0};
	unsigned n = 1;
	int fd, ret;

	assert_int_equal(gx_fds_recv(ends[0], big, sizeof(big), &fd, &n), -EAGAIN);
	assert_int_equal(n, 0);
	do
		ret = gx_fds_send(ends[1], big, sizeof(big), &any, 1);
	while (!ret);
	assert_true(ret == -EAGAIN || ret == -ETOOMANYREFS);
	close(ends[0]);
	ret = gx_fds_send(ends[1], big, 1, NULL, 0); /* an error, and no signal */
	assert_true(ret == -EPIPE || ret == -ECONNRESET);
	ends[0] = dup(ends[1]);
}

/* More descriptors, or more bytes, than there is room for: an error, and none is open. */
static void fds__more_than_expected(void **state)
{
	unsigned count = common_fds_count(), n = 3;
	uint32_t number;
	int fds[3];

	send_some(9, 1);
	assert_int_equal(gx_fds_recv(ends[0], &number, sizeof(number), fds, &n), -EMFILE);
	assert_int_equal(n, 0);
	n = 3;
	send_some(3, 2);
	assert_int_equal(gx_fds_recv(ends[0], &number, 2, fds, &n), -EMSGSIZE);
	assert_int_equal(n, 0);
	assert_int_equal(common_fds_count(), count);
}

/* The process may open one of three. */
static void fds__no_more_may_be_open(void **state)
{
	unsigned count = common_fds_count(), n = 3;
	struct rlimit was, few;
	uint32_t number;
	int fds[3], top;

	send_some(3, 1);
	top = dup(ends[0]);
	close(top);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
	few = (struct rlimit){(rlim_t)top + 1, was.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	assert_int_equal(gx_fds_recv(ends[0], &number, sizeof(number), fds, &n), -EMFILE);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
	assert_int_equal(n, 0);
	assert_int_equal(common_fds_count(), count);
}

/* Taken from a message that was received elsewhere: those above the limit are closed. */
static void fds_take__closes_the_rest(void **state)
{
	unsigned count = common_fds_count();
	union gx_fds_room room;
	char b[4];
	struct iovec iov = {b, sizeof(b)};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = room.b,
			     .msg_controllen = sizeof(room.b)};
	int fds[2];

	send_some(7, 1);
	assert_int_equal(recvmsg(ends[0], &msg, MSG_CMSG_CLOEXEC), sizeof(b));
	assert_int_equal(gx_fds_take(&msg, fds, 2), 2);
	assert_int_equal(common_fds_count(), count + 2);
	close(fds[0]);
	close(fds[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(fds__come_with_their_bytes, setup, teardown),
		cmocka_unit_test_setup_teardown(fds__nothing_waits, setup, teardown),
		cmocka_unit_test_setup_teardown(fds__more_than_expected, setup, teardown),
		cmocka_unit_test_setup_teardown(fds__no_more_may_be_open, setup, teardown),
		cmocka_unit_test_setup_teardown(fds_take__closes_the_rest, setup, teardown),
	};

	return cmocka_run_group_tests_name("fds", tests, NULL, NULL);
}
