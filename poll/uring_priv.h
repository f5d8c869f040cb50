/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the control thread (uring.c) and its two engines (uring_ring.c, uring_epoll.c), and for
 * them alone. Everything here belongs to the control thread, unless a field says otherwise.
 */
#ifndef GX_URING_PRIV_H
#define GX_URING_PRIV_H

#include "gx_internal/uring.h"

#include <poll.h>
#include <pthread.h>

#define URING_LEN_MAX (1u << 30) /* bytes of one send or receive: the result is an int */
#define URING_WHY_MAX 192	 /* bytes of the reason why an engine is not there */

struct uring_job;
struct uring_watch;

/* What is out on one descriptor. owner: ctl */
struct uring_fd {
	struct gx_io *first; /* linked by next, in order of submission */
	uint32_t armed;	     /* epoll engine: events the kernel watches; 0: not in the set */
};

/*
 * An engine. All slots but open and close run on the control thread. start() and wait() report an
 * ended operation by gx_uring_fd_end(), cancel() leads to one. None but wait() blocks.
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
	void *engine;		     /* the engine's own state, from open to close */
	struct uring_fd *fds;	     /* owner: ctl; indexed by descriptor */
	unsigned nr_fds;	     /* entries of fds */
	unsigned nr_held;	     /* owner: ctl; operations submitted, done() not yet called */
	struct gx_io *timers;	     /* owner: ctl; soonest first */
	struct gx_io *ended, **ended_end; /* owner: ctl; due_ns holds the result */
	struct uring_watch *watches;	  /* owner: ctl */
	struct gx_io wake;		  /* owner: ctl; looks at wake_fd */
	int wake_fd;			  /* eventfd: jobs wait */
	bool closing;			  /* owner: ctl; from now on all ends with -ECANCELED */
	bool faulty;			  /* owner: ctl; a wait failed, and was logged */
	pthread_mutex_t lock;		  /* jobs */
	struct uring_job *jobs, **jobs_end;
	pthread_t thread;
};

extern const struct uring_ops gx_uring_ring_ops, gx_uring_epoll_ops;

/** gx_uring_end() - @io, on no list any more, has ended: done() gets @res later in this turn. */
void gx_uring_end(struct gx_uring *u, struct gx_io *io, int res);

/** gx_uring_fd_end() - The same for an @io that is out on its descriptor. */
void gx_uring_fd_end(struct gx_uring *u, struct gx_io *io, int res);

/** gx_uring_connected() - What became of a connect that was under way. Return: 0, -errno. */
int gx_uring_connected(int fd);

static inline bool io_sends(const struct gx_io *io)
{
	return io->op == GX_IO_CONNECT || io->op == GX_IO_SEND || io->op == GX_IO_SENDMSG;
}

/* The events after which @io can go on. */
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
