/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contract between the control thread (uring.c) and its two methods (uring_ring.c, uring_epoll.c),
 * for them alone. The control thread owns everything here, unless a field says otherwise.
 */
#ifndef GX_URING_PRIV_H
#define GX_URING_PRIV_H

#include "gx_internal/uring.h"

#include <poll.h>
#include <pthread.h>

#define URING_LEN_MAX (1u << 30) /* bytes of one send or receive: the result is an int */
#define URING_WHY_MAX 192	 /* bytes of the reason why a method cannot be used */

struct uring_job;
struct uring_watch;

/* The operations on one descriptor. owner: ctl */
struct uring_fd {
	struct gx_io *first; /* linked by next, in order of submission */
	uint32_t armed;	     /* epoll method: events that the kernel watches; 0: not in the set */
};

/*
 * A method: how the control thread starts operations and waits for events. All slots but open and
 * close run on the control thread. start() and wait() report the end of an operation by
 * gx_uring_fd_end(). cancel() reports it too, at once or in a later wait(). None but wait() blocks.
 */
struct uring_ops {
	const char *name;
	int (*open)(struct gx_uring *u, char why[URING_WHY_MAX]); /* @why: filled on error */
	void (*close)(struct gx_uring *u);
	void (*start)(struct gx_uring *u, struct gx_io *io);
	void (*cancel)(struct gx_uring *u, struct gx_io *io);
	int (*wait)(struct gx_uring *u, uint64_t wait_ns); /* 0, or -errno when it cannot wait */
};

struct gx_uring {
	const struct uring_ops *ops; /* frozen after start */
	void *state;		     /* the method's own, from open to close */
	struct uring_fd *fds;	     /* owner: ctl; indexed by descriptor */
	unsigned nr_fds;	     /* entries of fds */
	unsigned nr_held;	     /* owner: ctl; operations submitted, done() not yet called */
	struct gx_io *timers;	     /* owner: ctl; soonest first */
	struct gx_io *ended, **ended_end; /* owner: ctl; due_ns holds the result */
	struct uring_watch *watches;	  /* owner: ctl */
	struct gx_io wake;		  /* owner: ctl; polls wake_fd */
	int wake_fd;			  /* eventfd; written when a job is added */
	bool closing;			  /* owner: ctl; new operations end with -ECANCELED */
	bool faulty;			  /* owner: ctl; a wait failed and gx logged it */
	pthread_mutex_t lock;		  /* protects jobs and jobs_end */
	struct uring_job *jobs, **jobs_end;
	pthread_t thread;
};

extern const struct uring_ops gx_uring_ring_ops, gx_uring_epoll_ops;

/** gx_uring_end() - @io has ended and is on no list: done() gets @res later in this turn. */
void gx_uring_end(struct gx_uring *u, struct gx_io *io, int res);

/** gx_uring_fd_end() - The same; it takes @io off the list of its descriptor first. */
void gx_uring_fd_end(struct gx_uring *u, struct gx_io *io, int res);

/** gx_uring_connected() - How did a connect that was under way end? Return: 0, -errno. */
int gx_uring_connected(int fd);

static inline bool io_sends(const struct gx_io *io)
{
	return io->op == GX_IO_CONNECT || io->op == GX_IO_SEND || io->op == GX_IO_SENDMSG;
}

/* The events that @io waits for. */
static inline uint32_t io_events(const struct gx_io *io)
{
	if (io->op == GX_IO_POLL)
		return io->events;
	return io_sends(io) ? POLLOUT : POLLIN;
}

static inline socklen_t *io_addr_len(struct gx_io *io)
{
	return io->addr ? &io->addr_len : NULL;
}

static inline size_t io_len(const struct gx_io *io)
{
	return GX_MIN(io->len, (size_t)URING_LEN_MAX);
}

#endif
