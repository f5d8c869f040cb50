/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors over Unix sockets, see fds.h. */
#include "gx_internal/fds.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

void gx_fds_put(struct msghdr *msg, union gx_fds_room *room, const int fds[], unsigned n)
{
	assert(n <= GX_FDS_MAX);
	if (!n)
		return;
	room->align = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
				       .cmsg_type = SCM_RIGHTS,
				       .cmsg_len = CMSG_LEN(n * sizeof(int))};
	memcpy(CMSG_DATA(&room->align), fds, n * sizeof(int));
	msg->msg_control = room->b;
	msg->msg_controllen = CMSG_SPACE(n * sizeof(int));
}

unsigned gx_fds_take(struct msghdr *msg, int fds[], unsigned max)
{
	unsigned nr = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			if (nr < max)
				fds[nr++] = fd;
			else
				close(fd);
		}
	}
	return nr;
}

int gx_fds_send(int sock, const void *buf, size_t len, const int fds[], unsigned n)
{
	struct iovec iov = {(void *)buf, len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	union gx_fds_room room = {0};

	gx_fds_put(&msg, &room, fds, n);
	return sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

ssize_t gx_fds_recv(int sock, void *buf, size_t len, int fds[], unsigned *n)
{
	union gx_fds_room room;
	struct iovec iov = {buf, len};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = room.b,
			     .msg_controllen = CMSG_SPACE(*n * sizeof(int))};
	ssize_t got = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (got < 0)
		got = -errno;
	*n = got < 0 ? 0 : gx_fds_take(&msg, fds, *n);
	if (got >= 0 && msg.msg_flags & MSG_CTRUNC)
		got = -EMFILE;
	else if (got >= 0 && msg.msg_flags & MSG_TRUNC)
		got = -EMSGSIZE;
	while (got < 0 && *n)
		close(fds[--*n]);
	return got;
}
