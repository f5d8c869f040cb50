// SPDX-License-Identifier: Apache-2.0
/*
 * Loads of CPUs (see cpu_load.h). A thread sleeps while no run is posted.
 */
#include "gxperf/base/cpu_load.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOAD_TILE   64 /* rows and columns: three tiles of floats are 48 KiB */
#define LOAD_CHECKS 64
#define TRIAD_MAX   (1u << 25)
#define GEMM_MAX    16384u
#define TRIAD_BY    3.0

/* owner: its thread, unless a comment says otherwise; main before it starts and after it has
 * ended. */
struct cpu_part {
	struct cpu_load *l;
	pthread_t thread;
	void *a, *b, *c; /* a is the result */
	_Atomic uint64_t done;
	int err; /* error of pinning; main reads it when done is not 0 */
	int cpu;
	bool started;
};

struct cpu_load {
	struct cpu_load_opts opts;
	pthread_mutex_t lock;
	pthread_cond_t more;
	uint64_t posted; /* under lock; main alone writes */
	bool quit;	 /* under lock */
	struct cpu_part part[OPT_CPUS_MAX];
};

/* Small whole numbers, so that sums are exact. */
static float value(unsigned seed, uint64_t i)
{
	return (float)(gx_pattern_word(seed, i) % 16);
}

static uint64_t part_values(const struct cpu_load *l)
{
	return l->opts.kind == CPU_LOAD_TRIAD ? l->opts.n : (uint64_t)l->opts.n * l->opts.n;
}

static size_t value_b(const struct cpu_load *l)
{
	return l->opts.kind == CPU_LOAD_TRIAD ? sizeof(double) : sizeof(float);
}

/* ---- the work ---- */

static void triad_run(struct cpu_part *p)
{
	double *restrict a = p->a;
	const double *restrict b = p->b, *restrict c = p->c;

	for (uint32_t i = 0; i < p->l->opts.n; i++)
		a[i] = b[i] + TRIAD_BY * c[i];
}

static void gemm_tile(const float *restrict a, const float *restrict b, float *restrict c,
		      uint32_t n)
{
	for (uint32_t i = 0; i < LOAD_TILE; i++)
		for (uint32_t k = 0; k < LOAD_TILE; k++)
			for (uint32_t j = 0; j < LOAD_TILE; j++)
				c[(size_t)i * n + j] += a[(size_t)i * n + k] * b[(size_t)k * n + j];
}

static void gemm_run(struct cpu_part *p)
{
	uint32_t n = p->l->opts.n;
	float *c = p->a;

	memset(c, 0, (size_t)n * n * sizeof(*c));
	for (uint32_t i = 0; i < n; i += LOAD_TILE)
		for (uint32_t k = 0; k < n; k += LOAD_TILE)
			for (uint32_t j = 0; j < n; j += LOAD_TILE)
				gemm_tile((const float *)p->b + (size_t)i * n + k,
					  (const float *)p->c + (size_t)k * n + j,
					  c + (size_t)i * n + j, n);
}

/* Results are NaN until the first run. The thread fills on its own CPU, so that memory is near
 * it. */
static void part_fill(struct cpu_part *p)
{
	uint64_t n = part_values(p->l);
	bool triad = p->l->opts.kind == CPU_LOAD_TRIAD;

	memset(p->a, 0xff, n * value_b(p->l));
	for (uint64_t i = 0; i < n; i++) {
		if (triad) {
			((double *)p->b)[i] = value(1, i);
			((double *)p->c)[i] = value(2, i);
		} else {
			((float *)p->b)[i] = value(1, i);
			((float *)p->c)[i] = value(2, i);
		}
	}
}

static bool part_next(struct cpu_part *p, uint64_t done)
{
	struct cpu_load *l = p->l;
	bool go;

	pthread_mutex_lock(&l->lock);
	while (l->posted == done && !l->quit)
		pthread_cond_wait(&l->more, &l->lock);
	go = l->posted > done;
	pthread_mutex_unlock(&l->lock);
	return go;
}

static void *part_thread(void *arg)
{
	struct cpu_part *p = arg;
	uint64_t done = 0;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((unsigned)p->cpu, &set);
	p->err = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
	if (!p->err)
		part_fill(p);
	while (part_next(p, done)) {
		if (p->err)
			;
		else if (p->l->opts.kind == CPU_LOAD_TRIAD)
			triad_run(p);
		else
			gemm_run(p);
		/* Pairs with the acquire in cpu_load_done(). */
		atomic_store_explicit(&p->done, ++done, memory_order_release);
	}
	return NULL;
}

/* ---- open and close ---- */

static int opts_check(const struct cpu_load_opts *o)
{
	if (!o->cpus.nr || !o->n)
		return -EINVAL;
	if (o->kind == CPU_LOAD_TRIAD)
		return o->n <= TRIAD_MAX ? 0 : -EINVAL;
	return o->n % LOAD_TILE || o->n > GEMM_MAX ? -EINVAL : 0;
}

static int part_open(struct cpu_load *l, unsigned i)
{
	size_t len = (part_values(l) * value_b(l) + 4095) / 4096 * 4096;
	struct cpu_part *p = &l->part[i];

	p->l = l;
	p->cpu = l->opts.cpus.cpu[i];
	p->a = aligned_alloc(4096, len);
	p->b = aligned_alloc(4096, len);
	p->c = aligned_alloc(4096, len);
	if (!p->a || !p->b || !p->c)
		return -ENOMEM;
	p->started = !pthread_create(&p->thread, NULL, part_thread, p);
	return p->started ? 0 : -EAGAIN;
}

/* The first run. After it all threads have tried to pin themselves. */
static int load_warm(struct cpu_load *l)
{
	uint64_t nr = 0;

	cpu_load_post(l);
	while (!nr) {
		sched_yield();
		cpu_load_done(l, &nr);
	}
	for (unsigned i = 0; i < l->opts.cpus.nr; i++)
		if (l->part[i].err)
			return -l->part[i].err;
	return 0;
}

int cpu_load_open(const struct cpu_load_opts *opts, struct cpu_load **out)
{
	struct cpu_load *l;
	int ret = opts_check(opts);

	if (ret)
		return ret;
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->opts = *opts;
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->more, NULL);
	for (unsigned i = 0; i < opts->cpus.nr && !ret; i++)
		ret = part_open(l, i);
	if (!ret)
		ret = load_warm(l);
	if (ret)
		cpu_load_close(l);
	else
		*out = l;
	return ret;
}

void cpu_load_close(struct cpu_load *l)
{
	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	l->quit = true;
	pthread_cond_broadcast(&l->more);
	pthread_mutex_unlock(&l->lock);
	for (unsigned i = 0; i < l->opts.cpus.nr; i++) {
		struct cpu_part *p = &l->part[i];

		if (p->started)
			pthread_join(p->thread, NULL);
		free(p->a);
		free(p->b);
		free(p->c);
	}
	pthread_cond_destroy(&l->more);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

void cpu_load_info(const struct cpu_load *l, struct gx_load_info *info)
{
	double n = l->opts.n;
	char cpus[64];

	opt_cpus_text(&l->opts.cpus, cpus, sizeof(cpus));
	info->blocks = 0;
	if (l->opts.kind == CPU_LOAD_TRIAD) {
		info->flop = 2 * n * l->opts.cpus.nr;
		snprintf(info->name, sizeof(info->name),
			 "triad of doubles on CPUs %s, three arrays of %.0f KiB each", cpus,
			 n * sizeof(double) / 1024);
	} else {
		info->flop = 2 * n * n * n * l->opts.cpus.nr;
		snprintf(info->name, sizeof(info->name), "own fp32 GEMM on CPUs %s, %u x %u each",
			 cpus, l->opts.n, l->opts.n);
	}
}

/* ---- running ---- */

int cpu_load_post(struct cpu_load *l)
{
	pthread_mutex_lock(&l->lock);
	l->posted++;
	pthread_cond_broadcast(&l->more);
	pthread_mutex_unlock(&l->lock);
	return 0;
}

int cpu_load_done(struct cpu_load *l, uint64_t *nr)
{
	*nr = UINT64_MAX;
	for (unsigned i = 0; i < l->opts.cpus.nr; i++) {
		/* Pairs with the release in part_thread(). */
		uint64_t done = atomic_load_explicit(&l->part[i].done, memory_order_acquire);

		*nr = done < *nr ? done : *nr;
	}
	return 0;
}

/* ---- checks ---- */

static void check_one(struct gx_load_check *check, double got, double want)
{
	double far = fabs(got - want);

	check->nr++;
	if (far == 0)
		return;
	check->wrong++;
	if (!(far <= check->worst))
		check->worst = far;
}

static void gemm_check(const struct cpu_part *p, struct gx_load_check *check)
{
	uint64_t n = p->l->opts.n;

	for (unsigned i = 0; i < LOAD_CHECKS; i++) {
		uint64_t at = gx_pattern_word(99, i) % (n * n);
		double want = 0;

		for (uint64_t k = 0; k < n; k++)
			want += value(1, at / n * n + k) * value(2, k * n + at % n);
		check_one(check, ((const float *)p->a)[at], want);
	}
}

int cpu_load_check(struct cpu_load *l, struct gx_load_check *check)
{
	uint64_t nr;

	cpu_load_done(l, &nr);
	if (nr != l->posted)
		return -EBUSY;
	check->nr = check->wrong = 0;
	check->worst = 0;
	for (unsigned i = 0; i < l->opts.cpus.nr; i++) {
		const struct cpu_part *p = &l->part[i];

		if (l->opts.kind == CPU_LOAD_GEMM)
			gemm_check(p, check);
		for (uint64_t k = 0; l->opts.kind == CPU_LOAD_TRIAD && k < l->opts.n; k++)
			check_one(check, ((const double *)p->a)[k],
				  value(1, k) + TRIAD_BY * value(2, k));
	}
	return 0;
}
