// SPDX-License-Identifier: Apache-2.0
/*
 * The control thread, whose method is io_uring or epoll. This file keeps the timers, the functions
 * to run and the operations on each descriptor, for both. A method only starts an operation,
 * cancels it, and waits. Ended operations go through one list, so gx_uring_submit() never calls
 * done(). Everything runs on the control thread, except open, close, run and run_wait.
 */
#include "uring_priv.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define URING_WAIT_MAX_NS   3600000000000u /* one hour: fits the argument of every wait */
#define URING_CLOSE_TURNS   500		   /* turns in which all operations must end at close */
#define URING_CLOSE_WAIT_NS 10000000u	   /* longest wait of such a turn */
#define URING_FAULT_WAIT_MS 10		   /* pause after a wait that failed */
#define URING_SIGNALS_MAX   16		   /* signals read at once */

/* A function that waits to run on the control thread. owner: the thread that made it, then ctl */
struct uring_job {
	void (*fn)(struct uring_job *job); /* frees the job, or wakes the waiting thread */
	struct uring_job *next;
};

/* The signals of one gx_uring_signals(). owner: ctl; freed at close */
struct uring_watch {
	struct gx_io io;
	struct gx_uring *u;
	void (*fn)(void *arg, int signo);
	void *arg;
	struct uring_watch *next;
};

static _Thread_local const struct gx_uring *uring_mine; /* set in the control thread */

/* ---- Ended operations ---- */

void gx_uring_end(struct gx_uring *u, struct gx_io *io, int res)
{
	io->due_ns = (uint64_t)(int64_t)res; /* holds the result from here on */
	io->next = NULL;
	*u->ended_end = io;
	u->ended_end = &io->next;
}

/* Takes the list first, so it is bounded: done() may submit operations and end more. */
static void uring_ended_run(struct gx_uring *u)
{
	struct gx_io *io = u->ended;

	u->ended = NULL;
	u->ended_end = &u->ended;
	while (io) {
		struct gx_io *next = io->next;

		io->held = false;
		u->nr_held--;
		io->done(io, (int)(int64_t)io->due_ns); /* done() may free io */
		io = next;
	}
}

/* ---- Operations on a descriptor ---- */

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

/* Return: true: @io was on the list. */
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

void gx_uring_fd_end(struct gx_uring *u, struct gx_io *io, int res)
{
	list_del(&u->fds[io->fd].first, io);
	gx_uring_end(u, io, res);
}

int gx_uring_connected(int fd)
{
	struct sockaddr_storage addr;
	socklen_t len = sizeof(int);
	int err = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len))
		return -errno;
	if (err)
		return -err;
	/* A full backlog of a Unix listener leaves no error, but there is no connection either. */
	len = sizeof(addr);
	if (getpeername(fd, (struct sockaddr *)&addr, &len))
		return errno == ENOTCONN ? -EAGAIN : -errno;
	return 0;
}

/* ---- Timers ---- */

static void timer_add(struct gx_uring *u, struct gx_io *io)
{
	struct gx_io **p = &u->timers;
	uint64_t now_ns = gx_now_ns();

	io->due_ns = gx_later_ns(now_ns, io->timeout_ns);
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
		gx_uring_end(u, io, 0);
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
		gx_uring_end(u, io, -ECANCELED);
		return;
	}
	if (io->op == GX_IO_TIMEOUT) {
		timer_add(u, io);
		return;
	}
	if (io->op > GX_IO_NONE && io->op < GX_IO_TIMEOUT)
		ret = fd_add(u, io);
	if (ret)
		gx_uring_end(u, io, ret);
	else
		u->ops->start(u, io);
}

/* An operation that has ended keeps its result, even if its done() has not run yet. */
void gx_uring_cancel(struct gx_uring *u, struct gx_io *io)
{
	struct gx_io *p;

	assert(gx_uring_is_me(u));
	if (!io->held)
		return;
	if (io->op == GX_IO_TIMEOUT) {
		if (list_del(&u->timers, io))
			gx_uring_end(u, io, -ECANCELED);
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
			next = io->next; /* cancel() may take io off the list */
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
	/* Fails only if the counter is full; then the thread is awake. */
	n = write(u->wake_fd, &one, sizeof(one));
	(void)n;
}

/* Return: true: it ran a job. */
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
	n = read(u->wake_fd, &count, sizeof(count)); /* before jobs_run(): no job is missed */
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
	sem_post(&w->done); /* w lies on the waiter's stack: do not touch it after this */
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
	gx_thread_own = true;
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

static int uring_env(enum gx_uring_method *method)
{
	const char *env = getenv("GX_URING");

	if (*method != GX_URING_AUTO || !env || !*env)
		return 0;
	if (strcmp(env, "io_uring") == 0) {
		*method = GX_URING_IO_URING;
	} else if (strcmp(env, "epoll") == 0) {
		*method = GX_URING_EPOLL;
	} else {
		gx_err("GX_URING=%s is not known; say io_uring or epoll", env);
		return -EINVAL;
	}
	return 0;
}

static int uring_method_open(struct gx_uring *u, enum gx_uring_method method)
{
	char why[URING_WHY_MAX];
	int ret = uring_env(&method);

	if (ret)
		return ret;
	if (method != GX_URING_EPOLL) {
		u->ops = &gx_uring_ring_ops;
		ret = u->ops->open(u, why);
		if (ret == 0)
			return 0;
		if (method == GX_URING_IO_URING) {
			gx_err("io_uring is not to be had: %s", why);
			return ret;
		}
		gx_warn("io_uring is not to be had: %s; using epoll", why);
	}
	u->ops = &gx_uring_epoll_ops;
	ret = u->ops->open(u, why);
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

int gx_uring_open(enum gx_uring_method method, struct gx_uring **out)
{
	struct gx_uring *u = calloc(1, sizeof(*u));
	int ret;

	if (!u)
		return -ENOMEM;
	u->ended_end = &u->ended;
	u->jobs_end = &u->jobs;
	pthread_mutex_init(&u->lock, NULL);
	ret = uring_method_open(u, method);
	if (ret)
		goto err_free;
	u->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (u->wake_fd < 0) {
		ret = -errno;
		goto err_method;
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
err_method:
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

const char *gx_uring_method_name(const struct gx_uring *u)
{
	return u->ops->name;
}
