/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A socket full of descriptors, see chunks.h. A message is the lengths of some chunks, a descriptor
 * of each next to them. Control path, any thread.
 */
#include "chunks.h"
#include "gx_internal/fds.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHUNKS_SOCK_B (4 << 20) /* asked for; the kernel cuts it to net.core.wmem_max */

int chunks_open(int fds[2])
{
	int room = CHUNKS_SOCK_B;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds))
		return -errno;
	setsockopt(fds[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	return 0;
}

int chunks_send(int sock, const struct chunk c[], unsigned n)
{
	uint64_t len[CHUNKS_MSG];
	int fd[CHUNKS_MSG];

	for (unsigned i = 0; i < n; i++) {
		len[i] = c[i].len;
		fd[i] = c[i].fd;
	}
	return gx_fds_send(sock, len, n * sizeof(len[0]), fd, n);
}

int chunks_recv(int sock, struct chunk c[CHUNKS_MSG])
{
	uint64_t len[CHUNKS_MSG];
	int fd[CHUNKS_MSG];
	unsigned nr = CHUNKS_MSG;
	ssize_t got = gx_fds_recv(sock, len, sizeof(len), fd, &nr);

	if (nr && (size_t)got == nr * sizeof(len[0])) {
		for (unsigned i = 0; i < nr; i++)
			c[i] = (struct chunk){len[i], fd[i]};
		return (int)nr;
	}
	for (unsigned i = 0; i < nr; i++)
		close(fd[i]);
	return got == -EMFILE ? -EMFILE : -EPROTO;
}
