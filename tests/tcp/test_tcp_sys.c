/* SPDX-License-Identifier: Apache-2.0 */
/* Options of data sockets, of real ones over loopback. */
#include "kit/common_tcp.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>

#include "tcp/tcp.h"

#define TIMEOUT_NS 20000000000ull

/* Sockets with this congestion control, between two addresses of the host. */
static void pair_of(int fd[2], int family, const char *from, const char *to, const char *name)
{
	struct sockaddr_storage a[2] = {{.ss_family = (sa_family_t)family},
					{.ss_family = (sa_family_t)family}};
	socklen_t len =
		family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	const char *text[] = {to, from};
	int l = socket(family, SOCK_STREAM, 0);

	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(
			inet_pton(family, text[i],
				  family == AF_INET
					  ? (void *)&((struct sockaddr_in *)&a[i])->sin_addr
					  : (void *)&((struct sockaddr_in6 *)&a[i])->sin6_addr),
			1);
	if (bind(l, (struct sockaddr *)&a[0], len)) {
		close(l);
		print_message("no address %s here\n", to);
		skip();
	}
	assert_int_equal(listen(l, 1), 0);
	assert_int_equal(getsockname(l, (struct sockaddr *)&a[0], &len), 0);
	fd[0] = socket(family, SOCK_STREAM, 0);
	assert_int_equal(bind(fd[0], (struct sockaddr *)&a[1], len), 0);
	assert_int_equal(connect(fd[0], (struct sockaddr *)&a[0], len), 0);
	fd[1] = accept(l, NULL, NULL);
	assert_true(fd[1] >= 0);
	close(l);
	for (unsigned i = 0; i < 2; i++)
		if (setsockopt(fd[i], IPPROTO_TCP, TCP_CONGESTION, name, strlen(name))) {
			print_message("%s: %s\n", name, strerror(errno));
			close(fd[0]);
			close(fd[1]);
			skip();
		}
}

/* Tune both; then they have congestion control @want. */
static void tuned(int fd[2], const char *want)
{
	for (unsigned i = 0; i < 2; i++) {
		char name[16] = "";
		socklen_t len = sizeof(name);

		tcp_sys_tune(fd[i], TIMEOUT_NS);
		assert_int_equal(getsockopt(fd[i], IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
		assert_string_equal(name, want);
		close(fd[i]);
	}
}

static void tune__bbr_within_the_host(void **state)
{
	int fd[2];

	pair_of(fd, AF_INET, "127.0.0.1", "127.0.0.1", "bbr");
	tuned(fd, "reno");
}

static void tune__bbr_within_the_host_v6(void **state)
{
	int fd[2];

	pair_of(fd, AF_INET6, "::1", "::1", "bbr");
	tuned(fd, "reno");
}

/* As to another host: it stays what the administrator chose. */
static void tune__bbr_elsewhere(void **state)
{
	int fd[2];

	pair_of(fd, AF_INET, "127.0.0.2", "127.0.0.1", "bbr");
	tuned(fd, "bbr");
}

static void tune__without_a_pace(void **state)
{
	int fd[2];

	pair_of(fd, AF_INET, "127.0.0.1", "127.0.0.1", "cubic");
	tuned(fd, "cubic");
}

/* Sockets of another kind are let be. */
static void tune__unix(void **state)
{
	int fd[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	tcp_sys_tune(fd[0], TIMEOUT_NS);
	assert_int_equal(write(fd[0], "x", 1), 1);
	close(fd[0]);
	close(fd[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tune__bbr_within_the_host),
		cmocka_unit_test(tune__bbr_within_the_host_v6),
		cmocka_unit_test(tune__bbr_elsewhere),
		cmocka_unit_test(tune__without_a_pace),
		cmocka_unit_test(tune__unix),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
