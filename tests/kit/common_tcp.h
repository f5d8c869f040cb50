/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection of the kernel's TCP over loopback, for tests of what the real kernel does.
 */
#ifndef COMMON_TCP_H
#define COMMON_TCP_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/** common_tcp_pair() - fd[0] receives. */
static inline void common_tcp_pair(int fd[2])
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(a);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	assert_true(l >= 0);
	assert_int_equal(bind(l, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(l, 1), 0);
	assert_int_equal(getsockname(l, (struct sockaddr *)&a, &len), 0);
	fd[1] = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(connect(fd[1], (struct sockaddr *)&a, sizeof(a)), 0);
	fd[0] = accept(l, NULL, NULL);
	assert_true(fd[0] >= 0);
	close(l);
}

#endif
