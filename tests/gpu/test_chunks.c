/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the socket that carries the descriptors of a range of memory.
 */
#include "chunks.h"

#include "kit/common_fds.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static unsigned before;

static int setup(void **state)
{
	before = common_fds_count();
	return 0;
}

/* No descriptor is left open. */
static int teardown(void **state)
{
	assert_int_equal(common_fds_count(), before);
	return 0;
}

static int file_of(uint64_t len)
{
	int fd = memfd_create("chunk", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)len), 0);
	return fd;
}

/* @n chunks, whose files are as long as they say, from @first on. */
static int send_some(int sock, unsigned first, unsigned n)
{
	struct chunk c[CHUNKS_MSG];
	int ret;

	for (unsigned i = 0; i < n; i++)
		c[i] = (struct chunk){first + i + 1, file_of(first + i + 1)};
	ret = chunks_send(sock, c, n);
	for (unsigned i = 0; i < n; i++)
		close(c[i].fd);
	return ret;
}

static void chunks__many_in_order(void **state)
{
	struct chunk c[CHUNKS_MSG];
	unsigned seen = 0;
	struct stat st;
	int ends[2], n;

	assert_int_equal(chunks_open(ends), 0);
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(send_some(ends[1], i * CHUNKS_MSG, i < 9 ? CHUNKS_MSG : 3), 0);
	assert_int_equal(common_fds_count(), before + 2); /* the socket holds them, not we */
	close(ends[1]);
	while ((n = chunks_recv(ends[0], c)) > 0)
		for (int i = 0; i < n; i++) {
			assert_int_equal(c[i].len, ++seen);
			assert_int_equal(fstat(c[i].fd, &st), 0);
			assert_int_equal(st.st_size, seen);
			close(c[i].fd);
		}
	assert_int_equal(n, -EPROTO);
	assert_int_equal(seen, 9 * CHUNKS_MSG + 3);
	close(ends[0]);
}

static void chunks__none_there(void **state)
{
	struct chunk c[CHUNKS_MSG];
	int ends[2], pipes[2];

	assert_int_equal(chunks_open(ends), 0);
	assert_int_equal(chunks_recv(ends[0], c), -EPROTO); /* nothing yet: nobody waits */
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(chunks_recv(pipes[0], c), -EPROTO);
	assert_int_equal(chunks_recv(-1, c), -EPROTO);
	for (unsigned i = 0; i < 2; i++) {
		close(ends[i]);
		close(pipes[i]);
	}
}

/* The socket is full: the sender is told, and does not wait. */
static void chunks__more_than_fit(void **state)
{
	int ends[2], ret = 0;

	assert_int_equal(chunks_open(ends), 0);
	for (unsigned i = 0; i < 20000 && !ret; i++)
		ret = send_some(ends[1], 0, 1);
	assert_true(ret == -EAGAIN || ret == -ETOOMANYREFS);
	close(ends[0]);
	close(ends[1]);
}

/* A message as a peer may write it: @len_b bytes, and @n descriptors in one or two parts. */
static void send_raw(int sock, size_t len_b, unsigned n, bool two)
{
	char bytes[CHUNKS_MSG * 8 + 8] = {0};
	union {
		struct cmsghdr align;
		char b[2 * CMSG_SPACE(CHUNKS_MSG * sizeof(int))];
	} control = {0};
	struct iovec iov = {bytes, len_b};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.b};
	struct cmsghdr *m = &control.align;
	int fd = file_of(4096);

	msg.msg_controllen = (two ? 2 : 1) * CMSG_SPACE(n * sizeof(int));
	for (unsigned k = 0; k < (two ? 2u : 1u); k++) {
		*m = (struct cmsghdr){.cmsg_len = CMSG_LEN(n * sizeof(int)),
				      .cmsg_level = SOL_SOCKET,
				      .cmsg_type = SCM_RIGHTS};
		for (unsigned i = 0; i < n; i++)
			memcpy(CMSG_DATA(m) + i * sizeof(int), &fd, sizeof(fd));
		m = (struct cmsghdr *)((char *)m + CMSG_SPACE(n * sizeof(int)));
	}
	if (!n)
		msg.msg_control = NULL, msg.msg_controllen = 0;
	assert_true(sendmsg(sock, &msg, MSG_DONTWAIT) >= 0);
	close(fd);
}

static void chunks__lies(void **state)
{
	static const struct {
		size_t len_b;
		unsigned n;
		bool two;
		int want;
	} lie[] = {
		{8, 0, false, -EPROTO},
		{8, 2, false, -EPROTO},
		{16, 1, false, -EPROTO},
		{7, 1, false, -EPROTO},
		{0, 1, false, -EPROTO},
		{CHUNKS_MSG * 8 + 8, CHUNKS_MSG, false, -EPROTO},
		{16, 1, true, 2},
		{CHUNKS_MSG * 8, CHUNKS_MSG, false, CHUNKS_MSG},
		/* more descriptors than there is room: those that did come are closed */
		{CHUNKS_MSG * 8, 100, true, -EMFILE},
	};
	struct chunk c[CHUNKS_MSG];

	for (unsigned i = 0; i < sizeof(lie) / sizeof(lie[0]); i++) {
		int ends[2], n;

		assert_int_equal(chunks_open(ends), 0);
		send_raw(ends[1], lie[i].len_b, lie[i].n, lie[i].two);
		n = chunks_recv(ends[0], c);
		assert_int_equal(n, lie[i].want);
		for (int k = 0; k < n; k++)
			close(c[k].fd);
		close(ends[0]);
		close(ends[1]);
		assert_int_equal(common_fds_count(), before);
	}
}

/* The table of descriptors is full: that is said, and nothing is lost open. */
static void chunks__no_room_for_descriptors(void **state)
{
	struct rlimit was, few;
	struct chunk c[CHUNKS_MSG];
	int ends[2], n;

	assert_int_equal(chunks_open(ends), 0);
	assert_int_equal(send_some(ends[1], 0, 50), 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
	few = was;
	few.rlim_cur = (rlim_t)ends[1] + 10;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	n = chunks_recv(ends[0], c);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
	assert_int_equal(n, -EMFILE);
	close(ends[0]);
	close(ends[1]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(chunks__many_in_order),	       TEST(chunks__none_there),
		TEST(chunks__more_than_fit),	       TEST(chunks__lies),
		TEST(chunks__no_room_for_descriptors),
	};

	return cmocka_run_group_tests_name("chunks", tests, NULL, NULL);
}
