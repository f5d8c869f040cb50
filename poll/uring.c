// SPDX-License-Identifier: Apache-2.0
/*
 * The control thread and its two engines. Timers, the list of functions to run, and what is out on
 * each descriptor are kept here for both; an engine only starts an operation, cancels it and waits.
 * What ended goes through one list, so done() is never called from inside gx_uring_submit().
 * Everything runs on the control thread, except open, close, run and run_wait.
 */
#include "gx_internal/uring.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <liburing.h>

#define URING_SQ_SIZE	    256		   /* a full queue is submitted, so this is no limit */
#define URING_CQ_SIZE	    4096	   /* more than that the kernel keeps for us */
#define URING_EVENTS_MAX    64		   /* events of one epoll_wait() */
#define URING_LEN_MAX	    (1u << 30)	   /* of one send or receive: the result is an int */
#define URING_WAIT_MAX_NS   3600000000000u /* one hour, so that a wait fits every interface */
#define URING_CLOSE_TURNS   500		   /* turns in which everything must end at close */
#define URING_CLOSE_WAIT_NS 10000000u	   /* the longest of those turns */
#define URING_FAULT_WAIT_MS 10		   /* pause after a wait that failed */
#define URING_WHY_MAX	    192		   /* bytes of the reason why an engine is not there */
#define URING_SIGNALS_MAX   16		   /* signals read at once */

/* What is out on one descriptor. owner: ctl */
struct uring_fd {
	struct gx_io *first; /* linked by next, in order of submission */
	uint32_t armed;	     /* epoll engine: events the kernel watches; 0: not in the set */
};

/* A function that waits to run on the control thread. owner: whoever made it, then ctl */
struct uring_job {
	void (*fn)(struct uring_job *job); /* gives the memory back, or tells its owner */
	struct uring_job *next;
};

/* Signals that one gx_uring_signals() asked for. owner: ctl; freed at close */
struct uring_watch {
	struct gx_io io;
	struct gx_uring *u;
	void (*fn)(void *arg, int signo);
	void *arg;
	struct uring_watch *next;
};

/*
 * An engine. All slots but open and close run on the control thread. start() and wait() report an
 * ended operation by uring_end(), cancel() leads to one. None but wait() blocks.
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
	struct io_uring ring;	     /* io_uring engine */
	bool ring_short;	     /* io_uring engine; some entries found no room in the queue */
	int epfd;		     /* epoll engine */
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

static _Thread_local const struct gx_uring *uring_mine; /* set in the control thread */

/* ---- What ended ---- */

static void uring_end(struct gx_uring *u, struct gx_io *io, int res)
{
	io->due_ns = (uint64_t)(int64_t)res; /* no longer a time */
	io->next = NULL;
	*u->ended_end = io;
	u->ended_end = &io->next;
}

/* Bounded by what had ended before the first done(): those may submit and end more. */
static void uring_ended_run(struct gx_uring *u)
{
	struct gx_io *io = u->ended;

	u->ended = NULL;
	u->ended_end = &u->ended;
	while (io) {
		struct gx_io *next = io->next;

		io->held = false;
		u->nr_held--;
		io->done(io, (int)(int64_t)io->due_ns); /* io may be gone after this */
		io = next;
	}
}

/* ---- What is out on a descriptor ---- */

static int fd_room(struct gx_uring *u, int fd)
{
	unsigned n = GX_MAX(u->nr_fds, 64u);
	struct uring_fd *fds;

	while (n <= (unsigned)fd)
		n *= 2;
	if (n == u->nr_fds)
		return 0;
	fds = realloc(u->fds, n * sizeof(*fds));
	if (!fds)
		return -ENOMEM;
	memset(fds + u->nr_fds, 0, (n - u->nr_fds) * sizeof(*fds));
	u->fds = fds;
	u->nr_fds = n;
	return 0;
}

static int fd_add(struct gx_uring *u, struct gx_io *io)
{
	struct gx_io **p;
	int ret;

	if (io->fd < 0)
		return -EBADF;
	ret = fd_room(u, io->fd);
	if (ret)
		return ret;
	for (p = &u->fds[io->fd].first; *p; p = &(*p)->next)
		;
	io->next = NULL;
	*p = io;
	return 0;
}

/* Return: was it there? */
static bool list_del(struct gx_io **p, struct gx_io *io)
{
	for (; *p; p = &(*p)->next) {
		if (*p == io) {
			*p = io->next;
			return true;
		}
	}
	return false;
}

static void fd_end(struct gx_uring *u, struct gx_io *io, int res)
{
	list_del(&u->fds[io->fd].first, io);
	uring_end(u, io, res);
}

/* ---- Timers ---- */

static void timer_add(struct gx_uring *u, struct gx_io *io)
{
	struct gx_io **p = &u->timers;
	uint64_t now_ns = gx_now_ns();

	io->due_ns = now_ns + GX_MIN(io->timeout_ns, UINT64_MAX - now_ns);
	while (*p && (*p)->due_ns <= io->due_ns)
		p = &(*p)->next;
	io->next = *p;
	*p = io;
}

static void timers_expire(struct gx_uring *u)
{
	uint64_t now_ns;

	if (!u->timers)
		return;
	now_ns = gx_now_ns();
	while (u->timers && u->timers->due_ns <= now_ns) {
		struct gx_io *io = u->timers;

		u->timers = io->next;
		uring_end(u, io, 0);
	}
}

static uint64_t uring_wait_ns(const struct gx_uring *u)
{
	uint64_t now_ns;

	if (u->ended)
		return 0;
	if (u->closing)
		return URING_CLOSE_WAIT_NS;
	if (!u->timers)
		return URING_WAIT_MAX_NS;
	now_ns = gx_now_ns();
	if (u->timers->due_ns <= now_ns)
		return 0;
	return GX_MIN(u->timers->due_ns - now_ns, URING_WAIT_MAX_NS);
}

/* ---- What both engines know of sockets ---- */

static bool io_sends(const struct gx_io *io)
{
	return io->op == GX_IO_CONNECT || io->op == GX_IO_SEND || io->op == GX_IO_SENDMSG;
}

/* The events after which @io can go on. */
static uint32_t io_events(const struct gx_io *io)
{
	if (io->op == GX_IO_POLL)
		return io->events;
	return io_sends(io) ? POLLOUT : POLLIN;
}

static socklen_t *io_addr_len(struct gx_io *io)
{
	return io->addr ? &io->addr_len : NULL;
}

static size_t io_len(const struct gx_io *io)
{
	return GX_MIN(io->len, (size_t)URING_LEN_MAX);
}

/* What became of a connect that was under way when it was last looked at. */
static int io_connected(int fd)
{
	struct sockaddr_storage addr;
	socklen_t len = sizeof(int);
	int err = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len))
		return -errno;
	if (err)
		return -err;
	/* A Unix listener with a full backlog leaves no error behind, and no connection. */
	len = sizeof(addr);
	if (getpeername(fd, (struct sockaddr *)&addr, &len))
		return errno == ENOTCONN ? -EAGAIN : -errno;
	return 0;
}

/* ---- io_uring engine ---- */

/* State of an operation that is out, in due_ns. */
#define RING_WAITS	   1u /* a poll is out in its place: the descriptor is non-blocking */
#define RING_CANCELED	   2u
#define RING_UNSENT	   4u /* found no room in the queue */
#define RING_CANCEL_UNSENT 8u /* its cancel found none */

/* A full queue is submitted. NULL: the kernel took nothing, which it does when completions pile up.
 */
static struct io_uring_sqe *ring_sqe(struct gx_uring *u)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

	if (sqe)
		return sqe;
	io_uring_submit(&u->ring);
	sqe = io_uring_get_sqe(&u->ring);
	if (!sqe)
		u->ring_short = true;
	return sqe;
}

static void ring_prep(struct io_uring_sqe *sqe, struct gx_io *io)
{
	switch (io->op) {
	case GX_IO_ACCEPT:
		io_uring_prep_accept(sqe, io->fd, io->addr, io_addr_len(io), SOCK_CLOEXEC);
		break;
	case GX_IO_CONNECT:
		io_uring_prep_connect(sqe, io->fd, io->addr, io->addr_len);
		break;
	case GX_IO_RECV:
		io_uring_prep_recv(sqe, io->fd, io->buf, io_len(io), 0);
		break;
	case GX_IO_SEND:
		io_uring_prep_send(sqe, io->fd, io->buf, io_len(io), MSG_NOSIGNAL);
		break;
	case GX_IO_RECVMSG:
		io_uring_prep_recvmsg(sqe, io->fd, io->msg, MSG_CMSG_CLOEXEC);
		break;
	case GX_IO_SENDMSG:
		io_uring_prep_sendmsg(sqe, io->fd, io->msg, MSG_NOSIGNAL);
		break;
	default:
		io_uring_prep_poll_add(sqe, io->fd, io->events);
		break;
	}
}

/* Queues @io, or the poll that stands in for it. */
static void ring_push(struct gx_uring *u, struct gx_io *io)
{
	struct io_uring_sqe *sqe = ring_sqe(u);

	if (!sqe) {
		io->due_ns |= RING_UNSENT;
		return;
	}
	io->due_ns &= ~(uint64_t)RING_UNSENT;
	if (io->due_ns & RING_WAITS)
		io_uring_prep_poll_add(sqe, io->fd, io_events(io));
	else
		ring_prep(sqe, io);
	io_uring_sqe_set_data(sqe, io);
}

/* Whatever is submitted at this address later comes behind the cancel in the queue, and so is not
 * hit. */
static void ring_push_cancel(struct gx_uring *u, struct gx_io *io)
{
	struct io_uring_sqe *sqe = ring_sqe(u);

	if (!sqe) {
		io->due_ns |= RING_CANCEL_UNSENT;
		return;
	}
	io->due_ns &= ~(uint64_t)RING_CANCEL_UNSENT;
	io_uring_prep_cancel(sqe, io, 0);
	io_uring_sqe_set_data(sqe, NULL);
}

static void ring_cancel(struct gx_uring *u, struct gx_io *io)
{
	if (io->due_ns & RING_UNSENT) {
		fd_end(u, io, -ECANCELED);
		return;
	}
	if (io->due_ns & RING_CANCELED)
		return;
	io->due_ns |= RING_CANCELED;
	ring_push_cancel(u, io);
}

/* Entries that found no room: there is some, now that completions were taken. */
static void ring_retry(struct gx_uring *u)
{
	u->ring_short = false;
	for (unsigned fd = 0; fd < u->nr_fds; fd++) {
		for (struct gx_io *io = u->fds[fd].first; io; io = io->next) {
			if (io->due_ns & RING_UNSENT)
				ring_push(u, io);
			else if (io->due_ns & RING_CANCEL_UNSENT)
				ring_push_cancel(u, io);
		}
	}
}

/* Did the kernel refuse to wait, as it does on a non-blocking descriptor? */
static bool ring_must_wait(const struct gx_io *io, int res)
{
	return res == -EAGAIN || res == -EINTR || (res == -EINPROGRESS && io->op == GX_IO_CONNECT);
}

/* The poll in place of @io has ended: now @io itself, unless it was cancelled meanwhile. */
static void ring_polled(struct gx_uring *u, struct gx_io *io, int res)
{
	io->due_ns &= ~(uint64_t)RING_WAITS;
	if (res < 0)
		fd_end(u, io, res);
	else if (io->due_ns & RING_CANCELED)
		fd_end(u, io, -ECANCELED);
	else if (io->op == GX_IO_CONNECT)
		fd_end(u, io, io_connected(io->fd));
	else
		ring_push(u, io);
}

static void ring_completed(struct gx_uring *u, struct gx_io *io, int res)
{
	if (io->due_ns & RING_WAITS) {
		ring_polled(u, io, res);
	} else if (!ring_must_wait(io, res)) {
		fd_end(u, io, res);
	} else if (io->due_ns & RING_CANCELED) {
		fd_end(u, io, -ECANCELED);
	} else {
		io->due_ns |= RING_WAITS;
		ring_push(u, io);
	}
}

/* Bounded: each completion stands for an operation that is out, and no done() is called from here.
 */
static void ring_reap(struct gx_uring *u)
{
	struct io_uring_cqe *cqe;

	while (io_uring_peek_cqe(&u->ring, &cqe) == 0) {
		struct gx_io *io = io_uring_cqe_get_data(cqe);
		int res = cqe->res;

		io_uring_cqe_seen(&u->ring, cqe);
		if (io) /* else the answer to a cancel */
			ring_completed(u, io, res);
	}
}

static int ring_wait(struct gx_uring *u, uint64_t wait_ns)
{
	struct __kernel_timespec ts = {.tv_sec = (long long)(wait_ns / 1000000000u),
				       .tv_nsec = (long long)(wait_ns % 1000000000u)};
	struct io_uring_cqe *cqe;
	int ret;

	if (wait_ns == 0 || u->ring_short)
		ret = io_uring_submit(&u->ring);
	else
		ret = io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &ts, NULL);
	ring_reap(u);
	if (u->ring_short)
		ring_retry(u);
	if (ret == -ETIME || ret == -EINTR || ret == -EBUSY || ret == -EAGAIN)
		return 0;
	return GX_MIN(ret, 0);
}

/* The value of the sysctl that forbids io_uring; 0: it does not, or is not there. */
static int ring_sysctl(void)
{
	FILE *f = fopen("/proc/sys/kernel/io_uring_disabled", "re");
	int val = 0;

	if (!f)
		return 0;
	if (fscanf(f, "%d", &val) != 1)
		val = 0;
	fclose(f);
	return val;
}

static void ring_explain(int ret, char why[URING_WHY_MAX])
{
	struct rlimit lim = {0};
	int val = ring_sysctl();

	if (ret == -EPERM && val != 0)
		snprintf(why, URING_WHY_MAX, "sysctl kernel.io_uring_disabled is %d", val);
	else if (ret == -EPERM || ret == -EACCES)
		snprintf(why, URING_WHY_MAX,
			 "a seccomp filter or security policy forbids it, "
			 "as containers' default profiles do");
	else if (ret == -ENOSYS)
		snprintf(why, URING_WHY_MAX,
			 "the kernel is too old or built without it, or a "
			 "seccomp filter hides it");
	else if (ret == -ENOMEM && getrlimit(RLIMIT_MEMLOCK, &lim) == 0)
		snprintf(why, URING_WHY_MAX,
			 "out of memory, or RLIMIT_MEMLOCK too low (%llu KiB; see ulimit -l)",
			 (unsigned long long)lim.rlim_cur / 1024);
	else
		snprintf(why, URING_WHY_MAX, "io_uring_setup: %s", strerror(-ret));
}

static bool ring_ops_supported(struct io_uring *ring)
{
	static const int ops[] = {IORING_OP_ACCEPT,   IORING_OP_CONNECT,     IORING_OP_RECV,
				  IORING_OP_SEND,     IORING_OP_RECVMSG,     IORING_OP_SENDMSG,
				  IORING_OP_POLL_ADD, IORING_OP_ASYNC_CANCEL};
	struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
	bool all = probe != NULL;

	for (unsigned i = 0; all && i < GX_ARRAY_SIZE(ops); i++)
		all = io_uring_opcode_supported(probe, ops[i]) != 0;
	if (probe)
		io_uring_free_probe(probe);
	return all;
}

static int ring_open(struct gx_uring *u, char why[URING_WHY_MAX])
{
	const unsigned need = IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP;
	struct io_uring_params p = {.flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
				    .cq_entries = URING_CQ_SIZE};
	int ret = io_uring_queue_init_params(URING_SQ_SIZE, &u->ring, &p);

	if (ret) {
		ring_explain(ret, why);
		return ret;
	}
	if ((p.features & need) == need && ring_ops_supported(&u->ring))
		return 0;
	snprintf(why, URING_WHY_MAX, "the kernel's io_uring is too old (5.11 is needed)");
	io_uring_queue_exit(&u->ring);
	return -EOPNOTSUPP;
}

static void ring_close(struct gx_uring *u)
{
	io_uring_queue_exit(&u->ring);
}

static const struct uring_ops ring_ops = {
	.name = "io_uring",
	.open = ring_open,
	.close = ring_close,
	.start = ring_push,
	.cancel = ring_cancel,
	.wait = ring_wait,
};

/* ---- epoll engine ---- */

#define EPOLL_NOT_YET INT_MIN /* of a try; no system call returns it */

/* due_ns of a connect that is out: 1 once it is under way. */
static int epoll_connect(struct gx_io *io)
{
	if (io->due_ns)
		return io_connected(io->fd);
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

/* Makes what the kernel watches on @fd what its operations wait for. */
static int epoll_arm(struct gx_uring *u, int fd)
{
	struct uring_fd *f = &u->fds[fd];
	struct epoll_event ev = {.data.fd = fd};
	int op;

	for (const struct gx_io *io = f->first; io; io = io->next)
		ev.events |= io_events(io) | EPOLLERR; /* never 0 while one is out */
	if (ev.events == f->armed)
		return 0;
	op = !ev.events ? EPOLL_CTL_DEL : f->armed ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
	f->armed = ev.events;
	if (epoll_ctl(u->epfd, op, fd, &ev) == 0 || op == EPOLL_CTL_DEL)
		return 0;
	/* Closed and opened again under the same number: the kernel has forgotten it. */
	if (op == EPOLL_CTL_MOD && errno == ENOENT &&
	    epoll_ctl(u->epfd, EPOLL_CTL_ADD, fd, &ev) == 0)
		return 0;
	f->armed = 0;
	return -errno;
}

/* Nothing on @fd can be waited for any more. */
static void epoll_fail(struct gx_uring *u, int fd, int ret)
{
	while (u->fds[fd].first)
		fd_end(u, u->fds[fd].first, ret);
}

/* Is another one before @io that wants the same direction? Then it is that one's turn. */
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

	/* There is no flag for a single call of these two. */
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
	fd_end(u, io, res);
}

static void epoll_cancel(struct gx_uring *u, struct gx_io *io)
{
	int fd = io->fd, ret;

	fd_end(u, io, -ECANCELED);
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
			fd_end(u, io, res);
	}
	res = epoll_arm(u, fd);
	if (res)
		epoll_fail(u, fd, res);
}

static int epoll_wait_events(struct gx_uring *u, uint64_t wait_ns)
{
	struct epoll_event ev[URING_EVENTS_MAX];
	int n = epoll_wait(u->epfd, ev, URING_EVENTS_MAX, (int)((wait_ns + 999999u) / 1000000u));

	for (int i = 0; i < n; i++)
		epoll_event(u, ev[i].data.fd, ev[i].events);
	return n < 0 && errno != EINTR ? -errno : 0;
}

static int epoll_open(struct gx_uring *u, char why[URING_WHY_MAX])
{
	u->epfd = epoll_create1(EPOLL_CLOEXEC);
	if (u->epfd >= 0)
		return 0;
	snprintf(why, URING_WHY_MAX, "epoll_create1: %s", strerror(errno));
	return -errno;
}

static void epoll_close(struct gx_uring *u)
{
	close(u->epfd);
}

static const struct uring_ops epoll_ops = {
	.name = "epoll",
	.open = epoll_open,
	.close = epoll_close,
	.start = epoll_start,
	.cancel = epoll_cancel,
	.wait = epoll_wait_events,
};

/* ---- Operations ---- */

bool gx_uring_is_me(const struct gx_uring *u)
{
	return uring_mine == u;
}

void gx_uring_submit(struct gx_uring *u, struct gx_io *io)
{
	int ret = -EINVAL;

	assert(gx_uring_is_me(u) && !io->held && io->done);
	io->held = true;
	io->due_ns = 0;
	u->nr_held++;
	if (u->closing) {
		uring_end(u, io, -ECANCELED);
		return;
	}
	if (io->op == GX_IO_TIMEOUT) {
		timer_add(u, io);
		return;
	}
	if (io->op > GX_IO_NONE && io->op < GX_IO_TIMEOUT)
		ret = fd_add(u, io);
	if (ret)
		uring_end(u, io, ret);
	else
		u->ops->start(u, io);
}

/* One that has ended already, but whose done() is still to come, keeps its result. */
void gx_uring_cancel(struct gx_uring *u, struct gx_io *io)
{
	struct gx_io *p;

	assert(gx_uring_is_me(u));
	if (!io->held)
		return;
	if (io->op == GX_IO_TIMEOUT) {
		if (list_del(&u->timers, io))
			uring_end(u, io, -ECANCELED);
		return;
	}
	if (io->fd < 0 || (unsigned)io->fd >= u->nr_fds)
		return;
	for (p = u->fds[io->fd].first; p && p != io; p = p->next)
		;
	if (p)
		u->ops->cancel(u, io);
}

static void uring_cancel_all(struct gx_uring *u)
{
	while (u->timers)
		gx_uring_cancel(u, u->timers);
	for (unsigned fd = 0; fd < u->nr_fds; fd++) {
		struct gx_io *io = u->fds[fd].first, *next;

		for (; io; io = next) {
			next = io->next; /* the cancel may take io off the list */
			u->ops->cancel(u, io);
		}
	}
}

/* ---- Jobs from other threads ---- */

static void job_post(struct gx_uring *u, struct uring_job *job)
{
	uint64_t one = 1;
	ssize_t n;

	job->next = NULL;
	pthread_mutex_lock(&u->lock);
	*u->jobs_end = job;
	u->jobs_end = &job->next;
	pthread_mutex_unlock(&u->lock);
	/* It can only fail when the counter is full, and then the thread is awake. */
	n = write(u->wake_fd, &one, sizeof(one));
	(void)n;
}

/* Return: was there any? */
static bool jobs_run(struct gx_uring *u)
{
	struct uring_job *job, *next;
	bool any;

	pthread_mutex_lock(&u->lock);
	job = u->jobs;
	u->jobs = NULL;
	u->jobs_end = &u->jobs;
	pthread_mutex_unlock(&u->lock);
	for (any = job != NULL; job; job = next) {
		next = job->next;
		job->fn(job);
	}
	return any;
}

static void wake_done(struct gx_io *io, int res)
{
	struct gx_uring *u = io->arg;
	uint64_t count;
	ssize_t n;

	if (res == -ECANCELED)
		return;				     /* closing */
	n = read(u->wake_fd, &count, sizeof(count)); /* before the jobs are taken: none is missed */
	(void)n;
	gx_uring_submit(u, io);
	jobs_run(u);
}

struct job_run {
	struct uring_job job;
	void (*fn)(void *arg);
	void *arg;
};

static void job_run(struct uring_job *job)
{
	struct job_run *r = GX_CONTAINER_OF(job, struct job_run, job);

	r->fn(r->arg);
	free(r);
}

int gx_uring_run(struct gx_uring *u, void (*fn)(void *arg), void *arg)
{
	struct job_run *r = malloc(sizeof(*r));

	if (!r)
		return -ENOMEM;
	*r = (struct job_run){.job.fn = job_run, .fn = fn, .arg = arg};
	job_post(u, &r->job);
	return 0;
}

struct job_wait {
	struct uring_job job;
	int (*fn)(void *arg);
	void *arg;
	int ret;
	sem_t done;
};

static void job_wait_run(struct uring_job *job)
{
	struct job_wait *w = GX_CONTAINER_OF(job, struct job_wait, job);

	w->ret = w->fn(w->arg);
	sem_post(&w->done); /* w is on the waiter's stack, and gone after this */
}

int gx_uring_run_wait(struct gx_uring *u, int (*fn)(void *arg), void *arg)
{
	struct job_wait w = {.job.fn = job_wait_run, .fn = fn, .arg = arg};

	if (gx_uring_is_me(u))
		return fn(arg);
	sem_init(&w.done, 0, 0);
	job_post(u, &w.job);
	while (sem_wait(&w.done) && errno == EINTR)
		;
	sem_destroy(&w.done);
	return w.ret;
}

/* ---- Signals ---- */

static void watch_done(struct gx_io *io, int res)
{
	struct uring_watch *w = GX_CONTAINER_OF(io, struct uring_watch, io);
	struct signalfd_siginfo info[URING_SIGNALS_MAX];
	ssize_t n;

	if (res == -ECANCELED)
		return; /* closing */
	n = read(io->fd, info, sizeof(info));
	for (ssize_t i = 0; i < n / (ssize_t)sizeof(info[0]); i++)
		w->fn(w->arg, (int)info[i].ssi_signo);
	gx_uring_submit(w->u, io);
}

static int watch_start(void *arg)
{
	struct uring_watch *w = arg;

	w->next = w->u->watches;
	w->u->watches = w;
	gx_uring_submit(w->u, &w->io);
	return 0;
}

int gx_uring_signals(struct gx_uring *u, const int signos[], unsigned n,
		     void (*fn)(void *arg, int signo), void *arg)
{
	struct uring_watch *w;
	sigset_t set;
	int fd;

	sigemptyset(&set);
	for (unsigned i = 0; i < n; i++) {
		if (sigaddset(&set, signos[i]))
			return -errno;
	}
	fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	w = calloc(1, sizeof(*w));
	if (!w) {
		close(fd);
		return -ENOMEM;
	}
	w->io = (struct gx_io){.op = GX_IO_POLL, .fd = fd, .events = POLLIN, .done = watch_done};
	w->u = u;
	w->fn = fn;
	w->arg = arg;
	return gx_uring_run_wait(u, watch_start, w);
}

static void watches_close(struct gx_uring *u)
{
	while (u->watches) {
		struct uring_watch *w = u->watches;

		u->watches = w->next;
		close(w->io.fd);
		free(w);
	}
}

/* ---- The thread ---- */

static void uring_turn(struct gx_uring *u)
{
	int ret = u->ops->wait(u, uring_wait_ns(u));

	if (ret && !u->faulty) {
		u->faulty = true;
		gx_err("control thread: waiting by %s failed: %s; control may be slow or stuck",
		       u->ops->name, strerror(-ret));
	}
	if (ret)
		poll(NULL, 0, URING_FAULT_WAIT_MS);
	timers_expire(u);
	uring_ended_run(u);
}

static void *uring_main(void *arg)
{
	struct gx_uring *u = arg;
	unsigned turns = 0;

	uring_mine = u;
	gx_uring_submit(u, &u->wake);
	while (!u->closing)
		uring_turn(u);
	uring_cancel_all(u);
	while ((jobs_run(u) || u->nr_held > 0) && turns++ < URING_CLOSE_TURNS)
		uring_turn(u);
	if (u->nr_held > 0)
		gx_err("control thread: %u operations did not end at close", u->nr_held);
	return NULL;
}

static int uring_env(enum gx_uring_engine *engine)
{
	const char *env = getenv("GX_URING");

	if (*engine != GX_URING_AUTO || !env || !*env)
		return 0;
	if (strcmp(env, "io_uring") == 0) {
		*engine = GX_URING_IO_URING;
	} else if (strcmp(env, "epoll") == 0) {
		*engine = GX_URING_EPOLL;
	} else {
		gx_err("GX_URING=%s is not known; say io_uring or epoll", env);
		return -EINVAL;
	}
	return 0;
}

static int uring_engine_open(struct gx_uring *u, enum gx_uring_engine engine)
{
	char why[URING_WHY_MAX];
	int ret = uring_env(&engine);

	if (ret)
		return ret;
	if (engine != GX_URING_EPOLL) {
		u->ops = &ring_ops;
		ret = ring_open(u, why);
		if (ret == 0)
			return 0;
		if (engine == GX_URING_IO_URING) {
			gx_err("io_uring is not to be had: %s", why);
			return ret;
		}
		gx_warn("io_uring is not to be had: %s; using epoll", why);
	}
	u->ops = &epoll_ops;
	ret = epoll_open(u, why);
	if (ret)
		gx_err("control thread: %s", why);
	return ret;
}

static int uring_thread_start(struct gx_uring *u)
{
	sigset_t all, old;
	int ret;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	ret = -pthread_create(&u->thread, NULL, uring_main, u);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (ret == 0)
		pthread_setname_np(u->thread, "gx-ctl");
	return ret;
}

int gx_uring_open(enum gx_uring_engine engine, struct gx_uring **out)
{
	struct gx_uring *u = calloc(1, sizeof(*u));
	int ret;

	if (!u)
		return -ENOMEM;
	u->ended_end = &u->ended;
	u->jobs_end = &u->jobs;
	pthread_mutex_init(&u->lock, NULL);
	ret = uring_engine_open(u, engine);
	if (ret)
		goto err_free;
	u->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (u->wake_fd < 0) {
		ret = -errno;
		goto err_engine;
	}
	u->wake = (struct gx_io){
		.op = GX_IO_POLL, .fd = u->wake_fd, .events = POLLIN, .done = wake_done, .arg = u};
	ret = uring_thread_start(u);
	if (ret)
		goto err_wake;
	*out = u;
	return 0;

err_wake:
	close(u->wake_fd);
err_engine:
	u->ops->close(u);
err_free:
	pthread_mutex_destroy(&u->lock);
	free(u);
	return ret;
}

static int uring_closing(void *arg)
{
	struct gx_uring *u = arg;

	u->closing = true;
	return 0;
}

void gx_uring_close(struct gx_uring *u)
{
	if (!u)
		return;
	assert(!gx_uring_is_me(u));
	gx_uring_run_wait(u, uring_closing, u);
	pthread_join(u->thread, NULL);
	watches_close(u);
	u->ops->close(u);
	close(u->wake_fd);
	free(u->fds);
	pthread_mutex_destroy(&u->lock);
	free(u);
}

const char *gx_uring_engine_name(const struct gx_uring *u)
{
	return u->ops->name;
}
