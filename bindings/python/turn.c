/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How calls wait, and who turns the core of gx.Context([]), which has no thread of gx: the callers'
 * threads while they call, and a thread of this file while they do not.
 */
#include "gxpy.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define CALLED_NS 200000u /* after a call the thread leaves the core to callers so long */
#define IDLE_NS	  50000u  /* it turns so long after the last work */
#define POLL_NS	  MS_NS	  /* a call polls so long before it sleeps */
#define SLICE_MS  20	  /* a sleep, at most: signals come through, and close() of others */
#define BATCH	  64	  /* turns without the GIL */

static void nap(uint64_t ns)
{
	nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

/* ---- The thread ---- */

/* Under the lock. Return: it may sleep. From then on a call of another thread that turns wakes it. */
static bool may_rest(struct context *c, struct gx_core *core)
{
	int ret = gx_core_arm(core);

	if (!ret)
		atomic_store(&c->rests, true);
	else if (ret != 1) /* something there wakes nobody */
		nap(CALLED_NS);
	return !ret;
}

static void *help(void *arg)
{
	struct context *c = arg;
	struct gx_core *core = c->turned; /* c->gx may be gone before this thread has begun */
	struct pollfd p[] = {{.fd = gx_core_fd(core), .events = POLLIN},
			     {.fd = c->wake_fd, .events = POLLIN}};
	uint64_t worked_ns = gx_now();
	eventfd_t n;

	while (!atomic_load(&c->stops)) {
		uint64_t now = gx_now();
		bool rest = false;

		if (now < atomic_load(&c->called_ns) + CALLED_NS ||
		    pthread_mutex_trylock(&c->turn_lock)) {
			nap(CALLED_NS);
			worked_ns = now;
			continue;
		}
		if (gx_core_turn(core, now))
			worked_ns = now;
		else if (now - worked_ns > IDLE_NS)
			rest = may_rest(c, core);
		pthread_mutex_unlock(&c->turn_lock);
		if (rest && poll(p, 2, -1) > 0 && p[1].revents)
			eventfd_read(c->wake_fd, &n);
		atomic_store(&c->rests, false);
	}
	return NULL;
}

static void wake(struct context *c)
{
	if (atomic_load(&c->rests) && atomic_exchange(&c->rests, false))
		eventfd_write(c->wake_fd, 1);
}

int turn_begin(struct context *c)
{
	int ret;

	c->turned = gx_core(c->gx, 0);
	ret = gx_core_fd(c->turned);
	if (ret < 0)
		return ret;
	c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->wake_fd < 0)
		return -errno;
	ret = -pthread_create(&c->helper, NULL, help, c);
	if (ret)
		close(c->wake_fd);
	c->turns = !ret;
	return ret;
}

void turn_end(struct context *c)
{
	if (!c->turns)
		return;
	c->turns = false;
	atomic_store(&c->stops, true);
	eventfd_write(c->wake_fd, 1);
	pthread_join(c->helper, NULL);
	close(c->wake_fd);
}

/* ---- Callers ---- */

bool turn_core(struct context *c)
{
	uint64_t now = gx_now();
	bool worked;

	if (!c->turns)
		return false;
	atomic_store_explicit(&c->called_ns, now, memory_order_relaxed);
	if (pthread_mutex_trylock(&c->turn_lock)) /* another thread turns it */
		return false;
	worked = gx_core_turn(gx_core(c->gx, 0), now);
	pthread_mutex_unlock(&c->turn_lock);
	wake(c);
	return worked;
}

/* One thread at a time sleeps on the descriptor, which a second one would disarm. What came before this
 * makes it readable no more; what comes later does, also where others take it. */
int turn_arm(struct context *c)
{
	bool words;
	eventfd_t n;
	int ret;

	if (c->armer && tgkill(getpid(), c->armer, 0) && errno == ESRCH)
		c->armer = 0, c->sleeper = false; /* it ended while it held the sleep */
	if (c->sleeper || !c->queue || c->fd < 0)
		return -1;
	pthread_mutex_lock(&c->lock);
	eventfd_read(c->came_fd, &n);
	words = c->words;
	pthread_mutex_unlock(&c->lock);
	ret = words ? 1 : gx_queue_arm(c->queue);
	if (!ret)
		c->sleeper = true;
	return ret;
}

/* Return: it slept, or something has come. */
static bool queue_sleep(struct context *c)
{
	struct pollfd p = {.fd = c->fd, .events = POLLIN};
	int ret = turn_arm(c);

	if (ret)
		return ret == 1;
	Py_BEGIN_ALLOW_THREADS
	poll(&p, 1, SLICE_MS);
	Py_END_ALLOW_THREADS
	c->sleeper = false;
	return true;
}

int turn_rest(struct context *c, uint64_t from_ns)
{
	uint64_t now = gx_now();

	c->busy++;
	if (now - from_ns < POLL_NS) {
		Py_BEGIN_ALLOW_THREADS
		if (!c->turns)
			sched_yield();
		for (unsigned i = 0; c->turns && i < BATCH && !turn_core(c); i++)
			;
		Py_END_ALLOW_THREADS
	} else if (!queue_sleep(c)) {
		Py_BEGIN_ALLOW_THREADS
		nap(MS_NS / 2);
		Py_END_ALLOW_THREADS
	}
	c->busy--;
	return PyErr_CheckSignals();
}

PyObject *turn_until(struct context *c, PyObject *(*look)(void *arg), void *arg, uint64_t for_ns)
{
	uint64_t from = gx_now();

	for (;;) {
		PyObject *o = look(arg);

		if (o || PyErr_Occurred() || gx_now() - from >= for_ns || turn_rest(c, from))
			return o;
	}
}
