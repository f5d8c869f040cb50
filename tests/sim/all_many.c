/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that run seeds, a block after the other, and say where they are in shared memory. One that
 * fails, crashes or hangs costs its seed alone: another goes on behind it.
 */
#include "sim/all_many.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCK	  64   /* seeds that a process takes at a time */
#define ROUND	  1024 /* seeds for each process between two lines of the file */
#define JOBS_MAX  256
#define HANG_S	  120 /* of real time, for a seed */
#define FAILS_MAX 4096

/* owner: the process that runs here; when it has ended, its parent */
struct job {
	pid_t pid;
	uint64_t at, end;	  /* the seed that runs; behind the last of its block */
	struct all_counts counts; /* of the seeds that are done */
	uint64_t nr;
	uint64_t cpu_us;
};

/* Of a round. owner: the parent, but for next, from which each process takes its blocks. */
struct round {
	_Atomic uint64_t next;
	uint64_t end;	/* behind the last */
	double until_s; /* of now_s(); 0: no end. A block that has begun is done */
	struct job job[JOBS_MAX];
};

static struct round *work; /* shared */
static uint64_t fails[FAILS_MAX];
static unsigned nr_fails;

/* ---- a process ---- */

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void counts_add(struct all_counts *to, const struct all_counts *c)
{
	uint64_t *t = (uint64_t *)to;
	const uint64_t *f = (const uint64_t *)c;

	for (size_t i = 0; i < sizeof(*c) / sizeof(*t); i++)
		t[i] += f[i];
}

static uint64_t cpu_us(int who)
{
	struct rusage u;

	getrusage(who, &u);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
	       (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Return: @j has a seed to run. */
static bool job_take(struct job *j)
{
	if (j->at < j->end)
		return true;
	if (work->until_s && now_s() >= work->until_s)
		return false;
	j->at = atomic_fetch_add(&work->next, BLOCK);
	j->end = GX_MIN(j->at + BLOCK, work->end);
	return j->at < j->end;
}

static void job_main(struct job *j, const struct all_cfg *cfg)
{
	uint64_t began = cpu_us(RUSAGE_SELF);

	for (; job_take(j); j->at++) {
		struct all_cfg one = *cfg;
		struct all_counts c;
		uint64_t hash;

		one.seed = j->at;
		alarm(HANG_S);
		all_one(&one, &c, &hash);
		counts_add(&j->counts, &c);
		j->nr++;
		j->cpu_us += cpu_us(RUSAGE_SELF) - began;
		began = cpu_us(RUSAGE_SELF);
	}
	exit(0);
}

static void job_start(struct job *j, const struct all_cfg *cfg)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		perror("fork");
		exit(2);
	}
	if (!pid)
		job_main(j, cfg);
	j->pid = pid; /* in shared memory */
}

/* ---- what is done ---- */

struct done {
	uint64_t first, last; /* of a run of blocks */
	uint64_t nr, cpu_us;
	double wall_s;
	struct all_counts counts;
};

/* The file has one line: the next seed, and the sums so far. */
static void state_load(const struct many *m, uint64_t *next, struct done *d)
{
	FILE *f = m->state ? fopen(m->state, "r") : NULL;
	unsigned long long v[4] = {0}, c[sizeof(d->counts) / sizeof(uint64_t)] = {0};
	uint64_t *to = (uint64_t *)&d->counts;
	unsigned long long fail;

	if (!f)
		return;
	if (fscanf(f, "next %llu seeds %llu cpu_us %llu wall_ms %llu counts", &v[0], &v[1], &v[2],
		   &v[3]) == 4) {
		*next = v[0];
		d->nr = v[1];
		d->cpu_us = v[2];
		d->wall_s = v[3] / 1e3;
		for (size_t i = 0; i < GX_ARRAY_SIZE(c) && fscanf(f, "%llu", &c[i]) == 1; i++)
			to[i] = c[i];
		if (fscanf(f, " failed") == 0)
			while (nr_fails < FAILS_MAX && fscanf(f, "%llu", &fail) == 1)
				fails[nr_fails++] = fail;
	}
	fclose(f);
}

static void state_save(const struct many *m, uint64_t next, const struct done *d)
{
	char temp[4096];
	const uint64_t *c = (const uint64_t *)&d->counts;
	FILE *f;

	if (!m->state)
		return;
	snprintf(temp, sizeof(temp), "%s.new", m->state);
	f = fopen(temp, "w");
	if (!f) {
		perror(temp);
		exit(2);
	}
	fprintf(f, "next %llu seeds %llu cpu_us %llu wall_ms %.0f counts", (unsigned long long)next,
		(unsigned long long)d->nr, (unsigned long long)d->cpu_us, d->wall_s * 1e3);
	for (size_t i = 0; i < sizeof(d->counts) / sizeof(*c); i++)
		fprintf(f, " %llu", (unsigned long long)c[i]);
	fprintf(f, " failed");
	for (unsigned i = 0; i < nr_fails; i++)
		fprintf(f, " %llu", (unsigned long long)fails[i]);
	fprintf(f, "\n");
	fclose(f);
	rename(temp, m->state);
}

static void report(const struct many *m, const struct done *d)
{
	const struct all_counts *c = &d->counts;

	printf("{\"seeds\": %llu, \"failed\": %u, \"seconds\": %.1f, \"seeds_s\": %.1f, \"cpu_ms\": "
	       "%.2f, \"operations\": %llu, \"ended_well\": %llu, \"ended_ill\": %llu, \"notes\": %llu, "
	       "\"bytes\": %llu, \"steps\": %llu, \"connections\": %llu, \"turns\": %llu, "
	       "\"virtual_s\": %.3f, \"failed_seeds\": [",
	       (unsigned long long)d->nr, nr_fails, d->wall_s, d->wall_s ? d->nr / d->wall_s : 0,
	       d->nr ? d->cpu_us / 1e3 / d->nr : 0, (unsigned long long)c->ops,
	       (unsigned long long)c->ended_well, (unsigned long long)c->ended_ill,
	       (unsigned long long)c->notes, (unsigned long long)c->bytes,
	       (unsigned long long)c->steps, (unsigned long long)c->links,
	       (unsigned long long)c->turns, c->virtual_ns / 1e9);
	for (unsigned i = 0; i < nr_fails; i++)
		printf("%s%llu", i ? ", " : "", (unsigned long long)fails[i]);
	printf("]}\n");
	(void)m;
}

/* ---- many ---- */

static struct job *job_of(pid_t pid, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (work->job[i].pid == pid)
			return &work->job[i];
	return NULL;
}

/* The process of @j has ended. Return: it has more seeds to run. */
static bool job_ended(struct job *j, int status, bool first_alone)
{
	bool well = WIFEXITED(status) && !WEXITSTATUS(status);

	j->pid = 0;
	if (well)
		return false;
	fprintf(stderr, "seed %llu failed: %s %d\n", (unsigned long long)j->at,
		WIFSIGNALED(status) ? WTERMSIG(status) == SIGALRM ? "hangs, signal" : "signal"
				    : "exit status",
		WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	if (nr_fails < FAILS_MAX)
		fails[nr_fails++] = j->at;
	j->at++;
	j->nr++;
	if (first_alone)
		work->until_s = 1; /* which is long ago */
	return !first_alone;
}

static void sum_up(struct done *d, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		counts_add(&d->counts, &work->job[i].counts);
		d->nr += work->job[i].nr;
		d->cpu_us += work->job[i].cpu_us;
	}
}

/* All processes end with a round, so that the file has one number. */
static void round_run(const struct many *m, const struct all_cfg *cfg, uint64_t *next,
		      struct done *d, double until_s)
{
	unsigned left;
	int status;

	memset(work->job, 0, sizeof(work->job));
	work->next = *next;
	work->end = GX_MIN(*next + (uint64_t)m->jobs * ROUND, m->last + 1);
	work->until_s = until_s;
	for (unsigned i = 0; i < m->jobs; i++)
		job_start(&work->job[i], cfg);
	for (left = m->jobs; left;) {
		pid_t pid = wait(&status);
		struct job *j = pid > 0 ? job_of(pid, m->jobs) : NULL;

		if (!j)
			continue;
		if (job_ended(j, status, m->first_alone))
			job_start(j, cfg);
		else
			left--;
	}
	sum_up(d, m->jobs);
	*next = GX_MIN(work->next, work->end);
}

int many_run(const struct many *m, const struct all_cfg *cfg)
{
	struct many own = *m;
	struct done d = {0};
	uint64_t next = m->first;
	double began = now_s(), last = began;

	own.jobs = GX_MAX(1u, GX_MIN(m->jobs, (unsigned)JOBS_MAX));
	work = mmap(NULL, sizeof(*work), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (work == MAP_FAILED) {
		perror("mmap");
		return 2;
	}
	state_load(m, &next, &d);
	while (next <= m->last && (!m->seconds || now_s() - began < m->seconds) &&
	       !(m->first_alone && nr_fails)) {
		round_run(&own, cfg, &next, &d, m->seconds ? began + m->seconds : 0);
		d.wall_s += now_s() - last;
		last = now_s();
		state_save(m, next, &d);
	}
	report(m, &d);
	return nr_fails ? 1 : 0;
}

/* ---- fewer steps ---- */

/* Does it fail, in a process of its own, without a word? */
static bool fails_with(const struct all_cfg *cfg, const uint8_t *skip)
{
	int status = 0, null;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (!pid) {
		struct all_cfg one = *cfg;
		struct all_counts c;
		uint64_t hash;

		null = open("/dev/null", O_WRONLY | O_CLOEXEC);
		dup2(null, 1);
		dup2(null, 2);
		close(null);
		one.skip = skip;
		alarm(HANG_S);
		all_one(&one, &c, &hash);
		exit(0);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return !WIFEXITED(status) || WEXITSTATUS(status);
}

static void shrink_told(const struct all_cfg *cfg, const uint8_t *skip)
{
	const char *comma = "";

	printf("test_sim_all --seed %llu --steps %u --trace --only ", (unsigned long long)cfg->seed,
	       cfg->nr_steps);
	for (unsigned i = 0; i < cfg->nr_steps; i++)
		if (!skip[i]) {
			printf("%s%u", comma, i);
			comma = ",";
		}
	printf("\n");
}

/* Leave out ever smaller runs of steps. */
int many_shrink(const struct all_cfg *cfg)
{
	static uint8_t skip[ALL_STEPS], tried[ALL_STEPS];
	unsigned left = cfg->nr_steps;

	if (cfg->skip)
		memcpy(skip, cfg->skip, sizeof(skip));
	if (!fails_with(cfg, skip)) {
		printf("seed %llu does not fail\n", (unsigned long long)cfg->seed);
		return 0;
	}
	for (unsigned run = cfg->nr_steps / 2; run; run /= 2)
		for (unsigned at = 0; at < cfg->nr_steps; at += run) {
			memcpy(tried, skip, sizeof(tried));
			memset(tried + at, 1, GX_MIN(run, cfg->nr_steps - at));
			if (memcmp(tried, skip, sizeof(tried)) && fails_with(cfg, tried))
				memcpy(skip, tried, sizeof(skip));
		}
	for (unsigned i = 0; i < cfg->nr_steps; i++)
		left -= skip[i];
	printf("%u of %u steps are left:\n", left, cfg->nr_steps);
	shrink_told(cfg, skip);
	return 1;
}
