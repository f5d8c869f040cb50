/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A socket full of descriptors, see chunks.h. A message is the lengths of some chunks, a descriptor
 * of each beside them. Control path, any thread.
 */
#include "chunks.h"
#include "gx_internal/base.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHUNKS_SOCK_B (4 << 20) /* asked for; the kernel cuts it to net.core.wmem_max */

union control {
	struct cmsghdr align;
	char b[CMSG_SPACE(CHUNKS_MSG * sizeof(int))];
};

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
	union control control = {0};
	struct iovec iov = {.iov_base = len, .iov_len = n * sizeof(len[0])};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.b,
			     .msg_controllen = CMSG_SPACE(n * sizeof(int))};

	for (unsigned i = 0; i < n; i++) {
		len[i] = c[i].len;
		fd[i] = c[i].fd;
	}
	control.align = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
					 .cmsg_type = SCM_RIGHTS,
					 .cmsg_len = CMSG_LEN(n * sizeof(int))};
	memcpy(CMSG_DATA(&control.align), fd, n * sizeof(int));
	return sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* All descriptors that came. A peer must not keep any open here. */
static unsigned fds_take(struct msghdr *msg, int fd[CHUNKS_MSG])
{
	unsigned nr = 0;

	for (struct cmsghdr *m = CMSG_FIRSTHDR(msg); m; m = CMSG_NXTHDR(msg, m)) {
		size_t n = (m->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (m->cmsg_level != SOL_SOCKET || m->cmsg_type != SCM_RIGHTS)
			continue;
		memcpy(&fd[nr], CMSG_DATA(m), n * sizeof(int)); /* the kernel cuts to the room */
		nr += (unsigned)n;
	}
	return nr;
}

int chunks_recv(int sock, struct chunk c[CHUNKS_MSG])
{
	uint64_t len[CHUNKS_MSG];
	int fd[CHUNKS_MSG];
	union control control;
	struct iovec iov = {.iov_base = len, .iov_len = sizeof(len)};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.b,
			     .msg_controllen = sizeof(control.b)};
	ssize_t got = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	unsigned nr = got < 0 ? 0 : fds_take(&msg, fd);

	if (nr && (size_t)got == nr * sizeof(len[0]) &&
	    !(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
		for (unsigned i = 0; i < nr; i++)
			c[i] = (struct chunk){len[i], fd[i]};
		return (int)nr;
	}
	for (unsigned i = 0; i < nr; i++)
		close(fd[i]);
	return got > 0 && msg.msg_flags & MSG_CTRUNC ? -EMFILE : -EPROTO;
}
