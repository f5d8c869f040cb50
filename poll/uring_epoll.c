// SPDX-License-Identifier: Apache-2.0
/*
 * The control thread's epoll method, for kernels that do not permit io_uring. It tries each
 * operation at once, and again when the descriptor is ready. It sets O_NONBLOCK on descriptors that
 * accept or connect, as these calls have no flag for it. uring.c calls it on the control thread.
 */
#include "uring_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EPOLL_EVENTS_MAX 64 /* taken by one epoll_wait() */

struct epoll_state {
	int epfd;
};

#define EPOLL_NOT_YET INT_MIN /* result of epoll_try(); no system call returns it */

/* For a connect, due_ns is 1 once it is under way. */
static int epoll_connect(struct gx_io *io)
{
	if (io->due_ns)
		return gx_uring_connected(io->fd);
	if (connect(io->fd, io->addr, io->addr_len) == 0)
		return 0;
	if (errno != EINPROGRESS)
		return -errno;
	io->due_ns = 1;
	return EPOLL_NOT_YET;
}

static int epoll_poll(struct gx_io *io)
{
	struct pollfd p = {.fd = io->fd, .events = (short)io->events};
	int n = poll(&p, 1, 0);

	if (n < 0)
		return -errno;
	if (p.revents & POLLNVAL)
		return -EBADF;
	return n == 0 ? EPOLL_NOT_YET : p.revents;
}

/* One attempt that does not block. */
static int epoll_try(struct gx_io *io)
{
	ssize_t ret;

	switch (io->op) {
	case GX_IO_ACCEPT:
		ret = accept4(io->fd, io->addr, io_addr_len(io), SOCK_CLOEXEC);
		break;
	case GX_IO_CONNECT:
		return epoll_connect(io);
	case GX_IO_RECV:
		ret = recv(io->fd, io->buf, io_len(io), MSG_DONTWAIT);
		break;
	case GX_IO_SEND:
		ret = send(io->fd, io->buf, io_len(io), MSG_DONTWAIT | MSG_NOSIGNAL);
		break;
	case GX_IO_RECVMSG:
		ret = recvmsg(io->fd, io->msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		break;
	case GX_IO_SENDMSG:
		ret = sendmsg(io->fd, io->msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		break;
	default:
		return epoll_poll(io);
	}
	if (ret >= 0)
		return (int)ret;
	return errno == EAGAIN || errno == EINTR ? EPOLL_NOT_YET : -errno;
}

/* Have the kernel watch @fd for the events that its operations wait for. */
static int epoll_arm(struct gx_uring *u, int fd)
{
	const struct epoll_state *e = u->state;
	struct uring_fd *f = &u->fds[fd];
	struct epoll_event ev = {.data.fd = fd};
	int op;

	for (const struct gx_io *io = f->first; io; io = io->next)
		ev.events |= io_events(io) | EPOLLERR; /* never 0 while an operation is out */
	if (ev.events == f->armed)
		return 0;
	op = !ev.events ? EPOLL_CTL_DEL : f->armed ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
	f->armed = ev.events;
	if (epoll_ctl(e->epfd, op, fd, &ev) == 0 || op == EPOLL_CTL_DEL)
		return 0;
	/* @fd was closed and opened again: the kernel has dropped it from the set. */
	if (op == EPOLL_CTL_MOD && errno == ENOENT &&
	    epoll_ctl(e->epfd, EPOLL_CTL_ADD, fd, &ev) == 0)
		return 0;
	f->armed = 0;
	return -errno;
}

/* The kernel cannot watch @fd: end all its operations. */
static void epoll_fail(struct gx_uring *u, int fd, int ret)
{
	while (u->fds[fd].first)
		gx_uring_fd_end(u, u->fds[fd].first, ret);
}

/* Does an earlier operation use the same direction of the descriptor? It goes first. */
static bool epoll_is_behind(const struct gx_uring *u, const struct gx_io *io)
{
	for (const struct gx_io *p = u->fds[io->fd].first; p != io; p = p->next) {
		if (p->op != GX_IO_POLL && io->op != GX_IO_POLL && io_sends(p) == io_sends(io))
			return true;
	}
	return false;
}

static void epoll_start(struct gx_uring *u, struct gx_io *io)
{
	int res = EPOLL_NOT_YET;

	/* accept4() and connect() have no flag for one call that does not block. */
	if (io->op == GX_IO_ACCEPT || io->op == GX_IO_CONNECT) {
		int flags = fcntl(io->fd, F_GETFL);

		if (flags < 0 || fcntl(io->fd, F_SETFL, flags | O_NONBLOCK) < 0)
			res = -errno;
	}
	if (res == EPOLL_NOT_YET && !epoll_is_behind(u, io))
		res = epoll_try(io);
	if (res == EPOLL_NOT_YET) {
		res = epoll_arm(u, io->fd);
		if (res == 0)
			return;
	}
	gx_uring_fd_end(u, io, res);
}

static void epoll_cancel(struct gx_uring *u, struct gx_io *io)
{
	int fd = io->fd, ret;

	gx_uring_fd_end(u, io, -ECANCELED);
	ret = epoll_arm(u, fd);
	if (ret)
		epoll_fail(u, fd, ret);
}

static void epoll_event(struct gx_uring *u, int fd, uint32_t events)
{
	struct gx_io *io = u->fds[fd].first, *next;
	int res;

	for (; io; io = next) {
		next = io->next;
		if (!(events & (io_events(io) | EPOLLERR | EPOLLHUP)))
			continue;
		res = epoll_try(io);
		if (res != EPOLL_NOT_YET)
			gx_uring_fd_end(u, io, res);
	}
	res = epoll_arm(u, fd);
	if (res)
		epoll_fail(u, fd, res);
}

static int epoll_wait_events(struct gx_uring *u, uint64_t wait_ns)
{
	const struct epoll_state *e = u->state;
	struct epoll_event ev[EPOLL_EVENTS_MAX];
	int n = epoll_wait(e->epfd, ev, EPOLL_EVENTS_MAX, (int)((wait_ns + 999999u) / 1000000u));

	for (int i = 0; i < n; i++)
		epoll_event(u, ev[i].data.fd, ev[i].events);
	return n < 0 && errno != EINTR ? -errno : 0;
}

static int epoll_open(struct gx_uring *u, char why[URING_WHY_MAX])
{
	struct epoll_state *e = calloc(1, sizeof(*e));
	int ret = -ENOMEM;

	if (!e)
		goto err;
	e->epfd = epoll_create1(EPOLL_CLOEXEC);
	if (e->epfd < 0) {
		ret = -errno;
		goto err_free;
	}
	u->state = e;
	return 0;

err_free:
	free(e);
err:
	snprintf(why, URING_WHY_MAX, "epoll_create1: %s", strerror(-ret));
	return ret;
}

static void epoll_close(struct gx_uring *u)
{
	struct epoll_state *e = u->state;

	close(e->epfd);
	free(e);
}

const struct uring_ops gx_uring_epoll_ops = {
	.name = "epoll",
	.open = epoll_open,
	.close = epoll_close,
	.start = epoll_start,
	.cancel = epoll_cancel,
	.wait = epoll_wait_events,
};
