/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control thread: one io_uring (or, if the kernel does not permit it, one epoll set) and the
 * thread that waits on it. The whole control path runs here, one callback at a time: sockets,
 * timers, signals, the stats socket. Never on a polling core.
 */
#ifndef GX_INTERNAL_URING_H
#define GX_INTERNAL_URING_H

#include "gx_internal/base.h"

#include <sys/socket.h>

struct gx_uring;

enum gx_io_op {
	GX_IO_NONE,
	GX_IO_ACCEPT,
	GX_IO_CONNECT,
	GX_IO_RECV,
	GX_IO_SEND,
	GX_IO_RECVMSG,
	GX_IO_SENDMSG,
	GX_IO_POLL,
	GX_IO_TIMEOUT
};

/*
 * One asynchronous operation. The caller owns the memory and fills it in. gx_uring holds it from
 * gx_uring_submit() until it calls done(). done() may submit the same gx_io again.
 */
struct gx_io {
	enum gx_io_op op;
	int fd;
	void *buf;	       /* RECV, SEND */
	size_t len;	       /* RECV, SEND; SEND may send less, and reports how much */
	struct msghdr *msg;    /* RECVMSG, SENDMSG; a send always has MSG_NOSIGNAL */
	struct sockaddr *addr; /* CONNECT: address to connect to; ACCEPT: filled, may be NULL */
	socklen_t addr_len;    /* CONNECT, ACCEPT (room) */
	uint32_t events;       /* POLL: POLLIN...; one shot */
	uint64_t timeout_ns;   /* TIMEOUT: from now */
	/* @res: as the system call (ACCEPT: new fd, SOCK_CLOEXEC; TIMEOUT: 0; POLL: revents) or
	 * -errno; -ECANCELED after gx_uring_cancel(). Runs on the control thread. */
	void (*done)(struct gx_io *io, int res);
	void *arg;	    /* the caller's */
	struct gx_io *next; /* gx_uring's, while held */
	uint64_t due_ns;    /* gx_uring's */
	bool held;	    /* gx_uring's: true from submit until done() */
};

/* How the control thread waits for events. */
enum gx_uring_method { GX_URING_AUTO, GX_URING_IO_URING, GX_URING_EPOLL };

/**
 * gx_uring_open() - Start the control thread, with all signals blocked. @method: AUTO tries
 * io_uring, else logs one warning with the reason (io_uring_disabled sysctl, seccomp, memlock, old
 * kernel) and takes epoll. Environment GX_URING=io_uring|epoll overrides AUTO. Return: 0, -errno.
 */
int gx_uring_open(enum gx_uring_method method, struct gx_uring **out);
/** gx_uring_close() - Cancel all operations (each done() gets -ECANCELED), and join the thread. */
void gx_uring_close(struct gx_uring *u);
const char *gx_uring_method_name(const struct gx_uring *u); /* "io_uring" or "epoll" */

/** gx_uring_submit() - Control thread only. Cannot fail: done() reports errors. */
void gx_uring_submit(struct gx_uring *u, struct gx_io *io);
/** gx_uring_cancel() - Control thread only; does nothing if gx_uring does not hold @io. done()
 * follows, later. */
void gx_uring_cancel(struct gx_uring *u, struct gx_io *io);

/**
 * gx_uring_run() - Any other thread: run fn(arg) on the control thread. Return: 0, -ENOMEM.
 * gx_uring_run_wait() - The same, and wait for the return value of fn(); on the control thread it
 * calls fn() at once. Return: the value of fn().
 */
int gx_uring_run(struct gx_uring *u, void (*fn)(void *arg), void *arg);
int gx_uring_run_wait(struct gx_uring *u, int (*fn)(void *arg), void *arg);
bool gx_uring_is_me(const struct gx_uring *u); /* is the caller the control thread? */

/** gx_uring_signals() - Call @fn(signo) on the control thread for the @signos (the caller has
 * blocked them in every thread). Return: 0, -errno. */
int gx_uring_signals(struct gx_uring *u, const int signos[], unsigned n,
		     void (*fn)(void *arg, int signo), void *arg);

#endif
