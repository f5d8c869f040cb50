// SPDX-License-Identifier: Apache-2.0
/*
 * Ends the program by a signal (see stop.h). The handler only counts and wakes a thread. That
 * thread waits for the main thread to end the process, and ends it itself if it must.
 */
#include "gxperf/base/stop.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define STOP_KILLS 3 /* this signal kills */

static struct {
	pid_t owner;
	sem_t ready; /* posted when the thread has begun */
	sem_t came;  /* posted once for each signal */
	_Atomic int signo, nr;
	_Atomic uint64_t grace_ns;
	void (*last)(void *arg, int signo);
	void *arg;
} stop;

/* Runs in any thread. */
static void stop_on_signal(int signo)
{
	int none = 0, err = errno;

	if (getpid() != stop.owner || atomic_fetch_add(&stop.nr, 1) + 1 >= STOP_KILLS) {
		signal(signo, SIG_DFL);
		raise(signo);
		return;
	}
	atomic_compare_exchange_strong(&stop.signo, &none, signo);
	sem_post(&stop.came);
	errno = err;
}

static void *stop_thread(void *arg)
{
	struct timespec end;
	uint64_t grace_ns;

	sem_post(&stop.ready);
	while (sem_wait(&stop.came))
		;
	grace_ns = atomic_load_explicit(&stop.grace_ns, memory_order_relaxed);
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += (time_t)(grace_ns / 1000000000u);
	end.tv_nsec += (long)(grace_ns % 1000000000u);
	end.tv_sec += end.tv_nsec / 1000000000;
	end.tv_nsec %= 1000000000;
	while (sem_clockwait(&stop.came, CLOCK_MONOTONIC, &end) && errno == EINTR)
		;
	stop.last(stop.arg, stop_asked());
	return NULL;
}

int stop_open(uint64_t grace_ns, void (*last)(void *arg, int signo), void *arg)
{
	static const int signos[] = {SIGINT, SIGTERM};
	struct sigaction act = {.sa_handler = stop_on_signal, .sa_flags = SA_RESTART}, was;
	pthread_t thread;
	int ret;

	stop.owner = getpid();
	stop.grace_ns = grace_ns;
	stop.last = last;
	stop.arg = arg;
	if (sem_init(&stop.came, 0, 0) || sem_init(&stop.ready, 0, 0))
		return -errno;
	ret = pthread_create(&thread, NULL, stop_thread, NULL);
	if (ret)
		return -ret;
	/* Commands fork. A starting thread may hold a lock of the allocator, and the child would
	 * wait for it. A thread at rest holds none. */
	while (sem_wait(&stop.ready))
		;
	pthread_detach(thread);
	/* The parent may want us to ignore one: nohup, a shell's background. */
	for (unsigned i = 0; i < 2; i++)
		if (sigaction(signos[i], NULL, &was) ||
		    (was.sa_handler != SIG_IGN && sigaction(signos[i], &act, NULL)))
			return -errno;
	return 0;
}

void stop_grace(uint64_t grace_ns)
{
	atomic_store_explicit(&stop.grace_ns, grace_ns, memory_order_relaxed);
}

int stop_asked(void)
{
	return atomic_load_explicit(&stop.signo, memory_order_relaxed);
}
