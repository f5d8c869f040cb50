// SPDX-License-Identifier: Apache-2.0
/*
 * The threads of gxperf that own polling cores: they pin themselves, turn the core, run the step of
 * a job. The main thread hands over a job and looks whether it is done; nothing else passes between
 * them.
 */
#include "gxperf/base/perf.h"

#include "gxperf/base/throttle.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CORE_YIELD_NS	 20000	 /* after so long without work: let others on this CPU run */
#define CORE_SLEEP_NS	 1000000 /* after so long without work and without a job: sleep */
#define CORE_NAP_NS	 20000
/* a nap while overlap lets us rest; short enough for the peer */
#define CORE_REST_NS	 1000000
/* Between two looks of the main thread at the cores, at least and at most. */
#define CORE_LOOK_NS	 2000000
#define CORE_LOOK_MAX_NS 20000000
#define CORE_STUCK_NS	 90000000000ull
#define CORE_PRINT_NS	 1000000000ull
#define CORE_LOOK_PART	 32 /* of the time so far */

static void core_pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set))
		fprintf(stderr, "gxperf: cannot pin to CPU %d: going on unpinned\n", cpu);
}

/* With a job the thread does not sleep, but it yields: client and server may share a CPU. */
static void core_idle(uint64_t idle_ns, bool job)
{
	bool rests = throttle_rests();
	struct timespec ts = {.tv_nsec = rests ? CORE_REST_NS : CORE_NAP_NS};

	if ((!job || rests) && idle_ns > CORE_SLEEP_NS)
		nanosleep(&ts, NULL);
	else if (idle_ns > CORE_YIELD_NS)
		sched_yield();
}

static bool core_step(struct perf_core *core, uint64_t now)
{
	/* Pairs with the release in perf_core_job(). */
	struct perf_job *job = atomic_load_explicit(&core->job, memory_order_acquire);
	enum perf_step step;

	if (!job)
		return false;
	step = job->step(job, now);
	if (step == PERF_STEP_DONE) {
		atomic_store_explicit(&core->job, NULL, memory_order_relaxed);
		/* Pairs with the acquire of the thread that waits for the job. */
		atomic_store_explicit(&job->done, true, memory_order_release);
	}
	return step != PERF_STEP_IDLE;
}

static void *core_thread(void *arg)
{
	struct perf_core *core = arg;
	uint64_t now = gx_now(), busy_ns = now;

	if (core->cpu >= 0)
		core_pin(core->cpu);
	pthread_getcpuclockid(pthread_self(), &core->clock);
	atomic_store_explicit(&core->clock_set, true, memory_order_release);
	while (!atomic_load_explicit(&core->quit, memory_order_relaxed)) {
		bool busy = core->core && gx_core_turn(core->core, now);

		now = gx_now();
		busy |= core_step(core, now);
		if (busy)
			busy_ns = now;
		else
			core_idle(now - busy_ns,
				  atomic_load_explicit(&core->job, memory_order_relaxed) != NULL);
	}
	return NULL;
}

int perf_core_start(struct perf_core *core, struct gx_core *gx_core, int cpu)
{
	int ret;

	core->core = gx_core;
	core->cpu = cpu;
	ret = pthread_create(&core->thread, NULL, core_thread, core);
	core->started = ret == 0;
	return -ret;
}

void perf_core_stop(struct perf_core *core)
{
	if (!core->started)
		return;
	atomic_store_explicit(&core->quit, true, memory_order_relaxed);
	pthread_join(core->thread, NULL);
	core->started = false;
}

void perf_core_job(struct perf_core *core, struct perf_job *job)
{
	atomic_store_explicit(&job->done, false, memory_order_relaxed);
	/* Pairs with the acquire in core_step(). */
	atomic_store_explicit(&core->job, job, memory_order_release);
}

uint64_t perf_core_cpu_ns(const struct perf_core *core)
{
	struct timespec ts;

	if (!atomic_load_explicit(&core->clock_set, memory_order_acquire) ||
	    clock_gettime(core->clock, &ts))
		return 0;
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void perf_nap(uint64_t ns)
{
	struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u),
			      .tv_nsec = (long)(ns % 1000000000u)};

	nanosleep(&ts, NULL);
}

void perf_look_nap(uint64_t since_ns)
{
	uint64_t ns = (gx_now() - since_ns) / CORE_LOOK_PART;

	if (ns < CORE_LOOK_NS)
		ns = CORE_LOOK_NS;
	perf_nap(ns < CORE_LOOK_MAX_NS ? ns : CORE_LOOK_MAX_NS);
}

int perf_job_wait(struct perf *perf, struct perf_job *job, _Atomic uint64_t *count, uint64_t size,
		  const char *what)
{
	uint64_t begin = gx_now(), moved = begin, printed = begin, last = 0, now;

	while (!atomic_load_explicit(&job->done, memory_order_acquire)) {
		uint64_t n = atomic_load_explicit(count, memory_order_relaxed);

		perf_look_nap(begin);
		now = gx_now();
		if (n != last || throttle_rests())
			moved = now;
		last = n;
		if (now - printed >= CORE_PRINT_NS) {
			printed = now;
			report_progress(perf->report, "%s of %llu bytes: %.0f s, %llu %s",
					perf->opts->command, (unsigned long long)size,
					(double)(now - begin) / 1e9, (unsigned long long)n, what);
		}
		/* Only this looks for the end of a server that owes an answer. */
		if (perf_lost(perf))
			return PERF_LOST;
		if (now - moved < CORE_STUCK_NS)
			continue;
		report_error(perf->report, "no %s for %u s", what,
			     (unsigned)(CORE_STUCK_NS / 1000000000u));
		return PERF_LOST;
	}
	return PERF_OK;
}
