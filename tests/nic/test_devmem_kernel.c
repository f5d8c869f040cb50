/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real kernel's half of devmem TCP, as far as a host without a NIC for it shows that: plain
 * data that is read with the flag, and what the release of tokens refuses. Over loopback. Exit 77
 * where the kernel is older than 6.12 or was built without it.
 */
#include "nic/devmem.h"

#include "kit/common_tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cmocka.h>

#define LIN_B 65536u

static void pair_close(const int fd[2])
{
	close(fd[0]);
	close(fd[1]);
}

static int dontneed(int fd, unsigned ranges, uint32_t count, socklen_t more_b)
{
	struct devmem_range range[DEVMEM_RANGES_MAX + 2];

	for (unsigned i = 0; i < GX_ARRAY_SIZE(range); i++)
		range[i] = (struct devmem_range){1 + i * count, count};
	return setsockopt(fd, SOL_SOCKET, DEVMEM_DONTNEED, range,
			  (socklen_t)(ranges * sizeof(range[0])) + more_b)
		       ? -errno
		       : 0;
}

/* The kernel answers with the number of tokens that it knew: none here. */
static void release__limits(void **state)
{
	int fd[2], udp = socket(AF_INET, SOCK_DGRAM, 0);

	common_tcp_pair(fd);
	assert_int_equal(dontneed(fd[0], 1, 1, 0), 0);
	assert_int_equal(dontneed(fd[0], DEVMEM_RANGES_MAX, 1, 0), 0);
	assert_int_equal(dontneed(fd[0], DEVMEM_RANGES_MAX + 1, 1, 0), -EINVAL);
	assert_int_equal(dontneed(fd[0], 0, 1, 0), -EINVAL);
	assert_int_equal(dontneed(fd[0], 1, 1, 4), -EINVAL);
	/* More tokens than it looks at are no error. */
	assert_int_equal(dontneed(fd[0], 2, DEVMEM_TOKENS_MAX, 0), 0);
	assert_int_equal(dontneed(udp, 1, 1, 0), -EBADF);
	assert_int_equal(setsockopt(fd[0], SOL_SOCKET, DEVMEM_DONTNEED, NULL, 8), -1);
	assert_int_equal(errno, EFAULT);
	close(udp);
	pair_close(fd);
}

/* The slot of the table says the same: of tokens that nobody gave none goes back. */
static void release__unknown(void **state)
{
	static const struct devmem_range range[DEVMEM_RANGES_MAX + 1] = {{1, 1}};
	int fd[2];

	common_tcp_pair(fd);
	assert_int_equal(devmem_sys_kernel.release(fd[0], range, 1), 0);
	assert_int_equal(devmem_sys_kernel.release(fd[0], range, DEVMEM_RANGES_MAX), 0);
	assert_int_equal(devmem_sys_kernel.release(fd[0], range, DEVMEM_RANGES_MAX + 1), -EINVAL);
	pair_close(fd);
	assert_int_equal(devmem_sys_kernel.release(fd[0], range, 1), -EBADF);
}

static struct devmem_rx *in_open(int fd, void *lin)
{
	struct devmem_cfg cfg = {
		.sys = &devmem_sys_kernel, .fd = fd, .lin = lin, .lin_b = LIN_B, .depth = 64};
	struct devmem_rx *rx;

	assert_int_equal(devmem_rx_open(&cfg, &rx), 0);
	return rx;
}

/* One read: its bytes behind @got; they are done at once. */
static int pull(struct devmem_rx *rx, char *got, size_t *n)
{
	struct devmem_frag frag[8];
	int nr = devmem_rx_pull(rx, LIN_B, frag, GX_ARRAY_SIZE(frag));

	for (int i = 0; i < nr; i++) {
		memcpy(got + *n, frag[i].src, frag[i].len);
		*n += frag[i].len;
		devmem_done(rx, frag[i].ref);
	}
	assert_int_equal(devmem_release(rx, true), 0);
	return nr;
}

/* Data that no device memory holds comes as it is, without tokens; and the end of the stream. */
static void pull__plain(void **state)
{
	char *lin = malloc(LIN_B), *sent = malloc(4 * LIN_B), *got = malloc(4 * LIN_B);
	size_t n = 0, out = 0;
	struct devmem_rx *rx;
	int fd[2], nr = 0;

	assert_true(lin && sent && got);
	for (size_t i = 0; i < 4 * LIN_B; i++)
		sent[i] = (char)(i * 2654435761u >> 16);
	common_tcp_pair(fd);
	rx = in_open(fd[0], lin);
	assert_int_equal(pull(rx, got, &n), 0);
	while (n < 4 * LIN_B && nr >= 0) {
		if (out < 4 * LIN_B) {
			ssize_t ret = send(fd[1], sent + out, GX_MIN(4 * LIN_B - out, 40000u),
					   MSG_DONTWAIT);

			out += ret > 0 ? (size_t)ret : 0;
		}
		nr = pull(rx, got, &n);
	}
	assert_int_equal(n, 4 * LIN_B);
	assert_memory_equal(got, sent, n);
	assert_int_equal(rx->stat.linear_b, n);
	assert_int_equal(rx->stat.tokens + rx->stat.releases, 0);
	shutdown(fd[1], SHUT_WR);
	do
		nr = pull(rx, got, &n);
	while (!nr);
	assert_int_equal(nr, -ESHUTDOWN);
	assert_non_null(rx->why);
	devmem_rx_close(rx);
	pair_close(fd);
	free(lin);
	free(sent);
	free(got);
}

static void pull__reset(void **state)
{
	struct linger off = {.l_onoff = 1};
	char lin[LIN_B], got[LIN_B];
	struct devmem_rx *rx;
	size_t n = 0;
	int fd[2], nr;

	common_tcp_pair(fd);
	rx = in_open(fd[0], lin);
	assert_int_equal(setsockopt(fd[1], SOL_SOCKET, SO_LINGER, &off, sizeof(off)), 0);
	close(fd[1]);
	do
		nr = pull(rx, got, &n);
	while (!nr);
	assert_int_equal(nr, -ECONNRESET);
	devmem_rx_close(rx);
	close(fd[0]);
}

/* Does this kernel have it? */
static bool is_there(char why[static 256])
{
	static const struct devmem_range range = {1, 1};
	struct utsname u = {0};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	int ret = fd < 0 ? -errno : devmem_sys_kernel.release(fd, &range, 1);

	uname(&u);
	if (fd >= 0)
		close(fd);
	if (ret >= 0)
		return true;
	snprintf(why, 256, "skipped: Linux %s has no SO_DEVMEM_DONTNEED (6.12 and newer do): %s",
		 u.release, strerror(-ret));
	return false;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(release__limits),
		cmocka_unit_test(release__unknown),
		cmocka_unit_test(pull__plain),
		cmocka_unit_test(pull__reset),
	};
	char why[256];

	if (!is_there(why)) {
		fprintf(stderr, "test_devmem_kernel: %s\n", why);
		return 77;
	}
	return cmocka_run_group_tests_name("devmem_kernel", tests, NULL, NULL);
}
