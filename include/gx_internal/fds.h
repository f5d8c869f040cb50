/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors that travel with the bytes of a message of a Unix socket (SCM_RIGHTS). The socket is
 * SOCK_SEQPACKET, so a message and its descriptors stay together. Any thread. Implemented in
 * poll/fds.c.
 */
#ifndef GX_INTERNAL_FDS_H
#define GX_INTERNAL_FDS_H

#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

#define GX_FDS_MAX 253 /* of a message; the kernel passes no more */

/* Room of a message for its descriptors. */
union gx_fds_room {
	struct cmsghdr align;
	char b[CMSG_SPACE(GX_FDS_MAX * sizeof(int))];
};

/** gx_fds_put() - Have @msg carry @n descriptors, in @room until it is sent. They stay the caller's. */
void gx_fds_put(struct msghdr *msg, union gx_fds_room *room, const int fds[], unsigned n);
/** gx_fds_take() - All descriptors of a message that has come; those above @max are closed: a peer must
 * not keep any open here. Return: how many are in @fds, now the caller's. */
unsigned gx_fds_take(struct msghdr *msg, int fds[], unsigned max);

/** gx_fds_send() - Send a message without waiting. Return: 0; -EAGAIN: the socket is full;
 * -ETOOMANYREFS: too many descriptors of this user are under way; -errno. */
int gx_fds_send(int sock, const void *buf, size_t len, const int fds[], unsigned n);
/** gx_fds_recv() - Receive a message without waiting, and up to *@n descriptors; out: how many.
 * Return: its bytes; -EAGAIN; -EMSGSIZE: it is longer; -EMFILE: it had more descriptors, or this process
 * may open no more; -errno. No descriptor is open after an error. */
ssize_t gx_fds_recv(int sock, void *buf, size_t len, int fds[], unsigned *n);

#endif
