/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The error queue of the real kernel, over TCP of loopback with host memory. And its refusal of device memory that nobody bound.
 */
#include "nic/zc_tx.h"

#include "kit/common_tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define SRC_B 65536u

static char src[SRC_B], got[SRC_B];

/* Each send ends, after its bytes were read or before. */
static void post__loopback(void **state)
{
	struct zc_cfg cfg = {.sys = &zc_sys_kernel, .depth = 64};
	uint64_t users[64], reaped = 0;
	struct zc_tx *tx;
	int fd[2];

	common_tcp_pair(fd);
	cfg.fd = fd[1];
	assert_int_equal(zc_tx_open(&cfg, &tx), 0);
	for (unsigned i = 0; i < 32; i++) {
		struct iovec iov = {src, SRC_B};
		struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
		size_t in = 0;
		ssize_t n;

		memset(src, (int)i, SRC_B);
		n = zc_tx_post(tx, &msg, i);
		assert_true(n > 0);
		while (in < (size_t)n) {
			ssize_t ret = recv(fd[0], got + in, (size_t)n - in, 0);

			assert_true(ret > 0);
			in += (size_t)ret;
		}
		assert_memory_equal(got, src, in);
		for (unsigned tries = 0; zc_tx_held(tx) && tries < 1000; tries++) {
			unsigned nr = zc_tx_reap(tx, users, 64);

			for (unsigned j = 0; j < nr; j++)
				assert_int_equal(users[j], reaped++);
			if (!nr)
				usleep(1000);
		}
		assert_int_equal(zc_tx_held(tx), 0);
	}
	assert_int_equal(tx->err, 0);
	zc_tx_close(tx);
	close(fd[0]);
	close(fd[1]);
}

static void post__unbound(void **state)
{
	struct zc_cfg cfg = {.sys = &zc_sys_kernel, .depth = 4};
	const struct zc_piece p = {.id = 0x7fffffff, .dmabuf_b = SRC_B, .off = 4096, .len = 1024};
	struct zc_tx *tx;
	ssize_t ret;
	int fd[2];

	common_tcp_pair(fd);
	cfg.fd = fd[1];
	assert_int_equal(zc_tx_open(&cfg, &tx), 0);
	ret = zc_tx_device(tx, &p, 0);
	/* Linux before 6.16 does not know the message, 6.16 and newer not the binding. */
	assert_true(ret == -EINVAL || ret == -ENODEV || ret == -EFAULT);
	assert_non_null(tx->why);
	assert_int_equal(zc_tx_held(tx), 0);
	zc_tx_close(tx);
	close(fd[0]);
	close(fd[1]);
}

static void open__no_tcp(void **state)
{
	struct zc_cfg cfg = {.sys = &zc_sys_kernel, .depth = 64};
	struct zc_tx *tx;
	int fd[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	cfg.fd = fd[0];
	assert_int_equal(zc_tx_open(&cfg, &tx), -EOPNOTSUPP);
	close(fd[0]);
	close(fd[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(post__loopback),
		cmocka_unit_test(post__unbound),
		cmocka_unit_test(open__no_tcp),
	};

	return cmocka_run_group_tests_name("zc_kernel", tests, NULL, NULL);
}
