/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper: a thread that makes the calls of gx that wait for gx's control thread. It connects,
 * closes connections that nobody uses, and frees comms that their cores have let go of, or that NCCL
 * gave up half made. NCCL's threads wake it to connect; the rest happens some times a second.
 */
#include "plug.h"

#include <signal.h>
#include <time.h>

#define KEEP_NS 100000000 /* between two looks; below a second */

static pthread_cond_t keep_cond;

void keep_wake(void)
{
	plug.keep_due = true;
	pthread_cond_signal(&keep_cond);
}

/* Under plug.lock. */
static void keep_sleep(void)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += KEEP_NS;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	while (!plug.keep_due && !plug.keep_ends)
		if (pthread_cond_timedwait(&keep_cond, &plug.lock, &until))
			break;
	plug.keep_due = false;
}

static void *keep_main(void *arg)
{
	(void)arg;
	pthread_setname_np(pthread_self(), "gx-nccl-keep");
	pthread_mutex_lock(&plug.lock);
	while (!plug.keep_ends) {
		pthread_mutex_unlock(&plug.lock);
		peer_dial();
		peer_show();
		meet_sweep();
		peer_sweep();
		pthread_mutex_lock(&plug.lock);
		keep_sleep();
	}
	pthread_mutex_unlock(&plug.lock);
	return NULL;
}

/* All signals are for the program's threads. */
bool keep_start(void)
{
	pthread_condattr_t attr;
	sigset_t all, old;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&keep_cond, &attr);
	pthread_condattr_destroy(&attr);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	plug.keep_ends = plug.keep_due = false;
	plug.keeps = !pthread_create(&plug.keeper, NULL, keep_main, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!plug.keeps)
		pthread_cond_destroy(&keep_cond);
	return plug.keeps;
}

void keep_stop(void)
{
	if (!plug.keeps)
		return;
	pthread_mutex_lock(&plug.lock);
	plug.keep_ends = true;
	keep_wake();
	pthread_mutex_unlock(&plug.lock);
	pthread_join(plug.keeper, NULL);
	pthread_cond_destroy(&keep_cond);
	plug.keeps = false;
}
