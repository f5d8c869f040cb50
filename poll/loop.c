// SPDX-License-Identifier: Apache-2.0
/*
 * The polling loop: inbox, then every poller, in a fixed order; and the pinned thread that turns it
 * for programs that do not. The loop's owner calls gx_loop_turn() and gx_loop_idle(). The control
 * thread calls gx_loop_call(), start and stop.
 */
#include "gx_internal/loop.h"
#include "gx_internal/probe.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define LOOP_INBOX_SIZE	     256	/* calls that the inbox holds */
#define LOOP_CALLS_MAX	     16		/* calls run in one turn */
#define LOOP_PAUSES	     8		/* pause instructions a turn, in the second idle stage */
#define LOOP_SLEEP_MIN_NS    1000	/* the first sleep */
#define LOOP_LONG_SHIFT	     11		/* a long sleep lasts 1 / 2^11 of the idle time */
#define LOOP_SPIN_NS	     20000	/* spin_ns if the caller gives no policy */
#define LOOP_STALL_NS	     1000000000 /* between two turns: the loop has stalled */
#define LOOP_PARK_NS	     100000000	/* longest sleep of a parked thread */
#define LOOP_START_LOOK_NS   20000	/* between two looks whether the thread has started */
#define LOOP_THREAD_NAME_MAX 16		/* the kernel's, with the final 0 */

int gx_loop_init(struct gx_loop *loop, int cpu, const struct gx_idle *idle)
{
	pthread_condattr_t attr;
	int ret;

	memset(loop, 0, sizeof(*loop));
	loop->cpu = cpu;
	loop->idle = idle ? *idle : (struct gx_idle){.spin_ns = LOOP_SPIN_NS};
	ret = gx_ring_open(LOOP_INBOX_SIZE, &loop->inbox);
	if (ret)
		return ret;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&loop->park_cond, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_init(&loop->park_lock, NULL);
	return 0;
}

void gx_loop_fini(struct gx_loop *loop)
{
	gx_loop_stop(loop);
	gx_sleep_close(&loop->sleep);
	if (!loop->inbox)
		return;
	gx_ring_close(loop->inbox);
	loop->inbox = NULL;
	pthread_cond_destroy(&loop->park_cond);
	pthread_mutex_destroy(&loop->park_lock);
}

int gx_loop_add(struct gx_loop *loop, const struct gx_poller *p)
{
	if (loop->nr_pollers == GX_LOOP_POLLERS_MAX)
		return -ENOSPC;
	loop->poller[loop->nr_pollers++] = *p;
	return 0;
}

/*
 * Called after a call was put or stop was set. Both sides change `parked`, so the later one sees
 * the earlier one's work. Either loop_park() sees the call or stop and does not sleep, or this
 * function sees that the thread parks and wakes it.
 */
static void loop_unpark(struct gx_loop *loop)
{
	if (!atomic_fetch_or_explicit(&loop->parked, 0, memory_order_acq_rel))
		return;
	pthread_mutex_lock(&loop->park_lock); /* now the thread waits, or has gone on */
	pthread_cond_signal(&loop->park_cond);
	pthread_mutex_unlock(&loop->park_lock);
}

int gx_loop_call(struct gx_loop *loop, struct gx_call *call)
{
	void *item = call;

	if (gx_ring_put(loop->inbox, &item, 1) != 1)
		return -EAGAIN;
	loop_unpark(loop);
	gx_sleep_wake(&loop->sleep);
	return 0;
}

/* Out of line: calls are rare. */
static __attribute__((noinline)) bool loop_inbox_run(struct gx_loop *loop)
{
	unsigned n = 0;
	void *item;

	for (loop->enough = false; n < LOOP_CALLS_MAX && !loop->enough; n++) {
		struct gx_call *call;

		if (!gx_ring_get(loop->inbox, &item, 1))
			break;
		call = item;
		call->fn(call);
	}
	return n > 0;
}

void gx_loop_calls(struct gx_loop *loop)
{
	while (!gx_ring_empty(loop->inbox))
		loop_inbox_run(loop);
}

/* A turn's cycles begin where the turn before ended. So a sleep counts as idle if the turn after it
 * finds no work. */
static inline void loop_account(struct gx_loop *loop, bool busy)
{
	uint64_t now = gx_cycles();

	gx_stat_add(&loop->stats, GX_STAT_TURNS, 1);
	if (loop->last_cycles != 0)
		gx_stat_add(&loop->stats, busy ? GX_STAT_CYCLES_BUSY : GX_STAT_CYCLES_IDLE,
			    now - loop->last_cycles);
	loop->last_cycles = now;
}

/* Return: the time of this turn. It stands still where the caller's clock goes back: pollers take
 * differences. */
static __attribute__((noinline)) uint64_t loop_stalled(struct gx_loop *loop, uint64_t now_ns)
{
	if (now_ns < loop->turn_ns)
		return loop->turn_ns;
	if (loop->turn_ns) {
		atomic_store_explicit(&loop->stall_ns, now_ns - loop->turn_ns,
				      memory_order_relaxed);
		gx_stat_add(&loop->stats, GX_STAT_STALLS, 1);
	}
	return now_ns;
}

bool gx_loop_turn(struct gx_loop *loop, uint64_t now_ns)
{
	bool busy = false;

	if (gx_unlikely(now_ns - loop->turn_ns >= LOOP_STALL_NS))
		now_ns = loop_stalled(loop, now_ns);
	loop->turn_ns = now_ns;
	if (!gx_ring_empty(loop->inbox))
		busy = loop_inbox_run(loop);
	/* Read nr_pollers each time: a poller may add or delete pollers. */
	for (unsigned i = 0; i < loop->nr_pollers; i++)
		busy |= loop->poller[i].fn(loop->poller[i].arg, now_ns);
	if (busy)
		loop->idle_since_ns = 0;
	loop_account(loop, busy);
	GX_PROBE(turn, loop, busy);
	return busy;
}

int gx_loop_look(struct gx_loop *loop, struct gx_look *look)
{
	if (!gx_ring_empty(loop->inbox))
		return 1;
	for (unsigned i = 0; i < loop->nr_pollers; i++) {
		const struct gx_poller *p = &loop->poller[i];
		int ret;

		if (p->asleep && p->asleep(p->arg))
			continue;
		ret = p->look ? p->look(p->arg, look) : -EOPNOTSUPP;
		look->who = p->name;
		if (ret)
			return ret;
	}
	return 0;
}

static void loop_sleep(uint64_t ns)
{
	struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u),
			      .tv_nsec = (long)(ns % 1000000000u)};

	/* A signal may end the sleep early; the caller looks again either way. */
	clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, NULL);
}

/* Each sleep is as long as all sleeps before it and the first again, so the idle time gives its
 * length. */
uint64_t gx_idle_sleep_ns(const struct gx_idle *idle, uint64_t idle_ns)
{
	uint64_t awake_ns = GX_MAX(idle->spin_ns, idle->pause_ns), ns;

	if (idle->sleep_max_ns == 0 || idle_ns < awake_ns)
		return 0;
	ns = GX_MIN(idle_ns - awake_ns + LOOP_SLEEP_MIN_NS, idle->sleep_max_ns);
	return GX_MAX(ns, GX_MIN(idle_ns >> LOOP_LONG_SHIFT, idle->long_max_ns));
}

void gx_loop_idle(struct gx_loop *loop, uint64_t now_ns)
{
	const struct gx_idle *idle = &loop->idle;
	uint64_t idle_ns, sleep_ns;

	if (loop->idle_since_ns == 0) {
		loop->idle_since_ns = now_ns;
		return;
	}
	idle_ns = now_ns - loop->idle_since_ns;
	if (idle_ns < idle->spin_ns)
		return;
	sleep_ns = gx_idle_sleep_ns(idle, idle_ns);
	if (!sleep_ns) {
		for (unsigned i = 0; i < LOOP_PAUSES; i++)
			gx_cpu_relax();
		return;
	}
	gx_stat_add(&loop->stats, GX_STAT_SLEEPS, 1);
	loop_sleep(sleep_ns);
}

/* Has the loop been idle for longer than spin_ns and pause_ns, and do all pollers sleep? */
static bool loop_may_park(const struct gx_loop *loop, uint64_t now_ns)
{
	const struct gx_idle *idle = &loop->idle;

	if (!idle->sleep_max_ns || !loop->idle_since_ns ||
	    now_ns - loop->idle_since_ns < GX_MAX(idle->spin_ns, idle->pause_ns))
		return false;
	for (unsigned i = 0; i < loop->nr_pollers; i++)
		if (!loop->poller[i].asleep || !loop->poller[i].asleep(loop->poller[i].arg))
			return false;
	return true;
}

static bool loop_has_calls(struct gx_loop *loop)
{
	return !gx_ring_empty(loop->inbox) ||
	       atomic_load_explicit(&loop->stop, memory_order_acquire);
}

/* Sleep until a call or stop, at most LOOP_PARK_NS. Return: false: the loop may not park. */
static bool loop_park(struct gx_loop *loop, uint64_t now_ns)
{
	uint64_t until_ns = now_ns + LOOP_PARK_NS;
	struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
				 .tv_nsec = (long)(until_ns % 1000000000u)};

	if (!loop_may_park(loop, now_ns))
		return false;
	gx_stat_add(&loop->stats, GX_STAT_SLEEPS, 1);
	pthread_mutex_lock(&loop->park_lock);
	atomic_exchange_explicit(&loop->parked, 1, memory_order_acq_rel); /* see loop_unpark() */
	if (!loop_has_calls(loop))
		pthread_cond_timedwait(&loop->park_cond, &loop->park_lock, &until);
	atomic_store_explicit(&loop->parked, 0, memory_order_relaxed);
	pthread_mutex_unlock(&loop->park_lock);
	loop->turn_ns = 0;
	return true;
}

static int loop_thread_pin(int cpu)
{
	cpu_set_t set;

	if (cpu < 0)
		return 0;
	if (cpu >= CPU_SETSIZE)
		return -EINVAL;
	CPU_ZERO(&set);
	CPU_SET((unsigned)cpu, &set);
	return -pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

static void *loop_main(void *arg)
{
	struct gx_loop *loop = arg;

	gx_thread_own = true;
	loop->err = loop_thread_pin(loop->cpu);
	/* Pairs with the acquire in loop_wait_started(): err is written before. */
	atomic_store_explicit(&loop->started, gettid(), memory_order_release);
	if (loop->err)
		return NULL;
	prctl(PR_SET_TIMERSLACK, 1ul); /* the default lengthens each sleep by up to 50 us */
	/* Pairs with the release in gx_loop_stop(): the loop below sees all calls queued before. */
	while (!atomic_load_explicit(&loop->stop, memory_order_acquire)) {
		uint64_t now_ns = gx_now_ns();

		if (!gx_loop_turn(loop, now_ns) && !loop_park(loop, now_ns))
			gx_loop_idle(loop, now_ns);
	}
	/* Run every call that was accepted: its sender may wait for it. This loop ends, as only the
	 * control thread puts calls in, and it waits for this thread. */
	while (loop_inbox_run(loop))
		;
	return NULL;
}

static int loop_wait_started(struct gx_loop *loop)
{
	/* Pairs with the release in loop_main(). */
	while (!atomic_load_explicit(&loop->started, memory_order_acquire))
		loop_sleep(LOOP_START_LOOK_NS);
	return loop->err;
}

/* Block all signals: the control thread handles them, and they must not interrupt a polling
 * core. */
static int loop_thread_create(struct gx_loop *loop)
{
	sigset_t all, old;
	int ret;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	ret = -pthread_create(&loop->thread, NULL, loop_main, loop);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return ret;
}

int gx_loop_start(struct gx_loop *loop, const char *name)
{
	char short_name[LOOP_THREAD_NAME_MAX];
	int ret;

	if (loop->running)
		return -EBUSY;
	atomic_store_explicit(&loop->stop, false, memory_order_relaxed);
	loop->idle_since_ns = 0;
	loop->last_cycles = 0;
	loop->turn_ns = 0;
	ret = loop_thread_create(loop);
	if (ret)
		return ret;
	ret = loop_wait_started(loop);
	if (ret) {
		pthread_join(loop->thread, NULL);
		atomic_store_explicit(&loop->started, 0, memory_order_relaxed);
		return ret;
	}
	snprintf(short_name, sizeof(short_name), "%s", name);
	pthread_setname_np(loop->thread, short_name); /* for people only: a failure does no harm */
	loop->running = true;
	return 0;
}

void gx_loop_stop(struct gx_loop *loop)
{
	if (!loop->running)
		return;
	/* Pairs with the acquire in loop_main(). */
	atomic_store_explicit(&loop->stop, true, memory_order_release);
	loop_unpark(loop);
	pthread_join(loop->thread, NULL);
	atomic_store_explicit(&loop->started, 0, memory_order_relaxed);
	loop->running = false;
}
