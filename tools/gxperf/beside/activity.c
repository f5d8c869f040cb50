// SPDX-License-Identifier: Apache-2.0
/*
 * Keeps several activities busy at once and times them (see activity.h).
 */
#include "gxperf/beside/activity.h"

#include <gx/gx.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PACE_WARM_NR 2
#define PACE_MIN_NR  3
#define PACE_LATE_NS 60000000000ull

double pace_us(const struct pace *p)
{
	if (p->last <= p->first)
		return NAN;
	return (double)(p->last_ns - p->first_ns) / 1e3 / (double)(p->last - p->first);
}

/* Look at one: how many have ended, and the time when we see it. */
static int pace_look(struct pace *p, uint64_t warm_nr, uint64_t warm_ns)
{
	uint64_t nr, now;
	int ret = p->ended(p->arg, &nr);

	if (ret || nr == p->nr)
		return ret;
	now = gx_now();
	p->nr = nr;
	if (!p->first_ns) {
		if (nr < warm_nr || now < warm_ns)
			return 0;
		p->first = nr;
		p->first_ns = now;
	}
	p->last = nr;
	p->last_ns = now;
	return 0;
}

static int pace_fill(struct pace *p, uint64_t upto)
{
	int ret = 0;

	while (!ret && p->posted < upto && p->posted - p->nr < p->depth) {
		ret = p->post(p->arg);
		p->posted += !ret;
		/* One at a time if posts are quick: the others must not wait. */
		if (p->posted - p->nr > 1)
			break;
	}
	return ret == -EAGAIN ? 0 : ret;
}

/* In PACE_FREE we post nothing. Back in another mode, posted continues from the number begun. */
static void pace_mode(struct pace *p, unsigned n, enum pace_mode mode)
{
	for (unsigned i = 0; i < n; i++)
		if (p[i].mode)
			p[i].posted = p[i].mode(p[i].arg, mode);
}

static void pace_nap(const struct pace *p, unsigned n)
{
	struct timespec ts = {.tv_nsec = 0};

	for (unsigned i = 0; i < n; i++)
		if (p[i].nap_ns > (uint64_t)ts.tv_nsec)
			ts.tv_nsec = (long)p[i].nap_ns;
	if (ts.tv_nsec)
		nanosleep(&ts, NULL);
}

static bool pace_enough(const struct pace *p, unsigned n, uint64_t end_ns)
{
	for (unsigned i = 0; i < n; i++)
		if (!p[i].first_ns || p[i].last < p[i].first + PACE_MIN_NR || p[i].last_ns < end_ns)
			return false;
	return true;
}

static int pace_drain(struct pace *p, unsigned n, uint64_t start)
{
	int ret = 0;

	for (unsigned i = 0; i < n && !ret; i++)
		while (!ret && p[i].nr < p[i].posted) {
			ret = p[i].ended(p[i].arg, &p[i].nr);
			pace_nap(p, n);
			if (gx_now() - start > PACE_LATE_NS)
				ret = -ETIMEDOUT;
		}
	return ret;
}

/* Numbers continue from earlier runs. */
static int pace_reset(struct pace *p)
{
	uint64_t nr;
	int ret = p->ended(p->arg, &nr);

	p->nr = p->posted = nr;
	p->first = p->last = p->first_ns = p->last_ns = 0;
	return ret;
}

int pace_run(struct pace *p, unsigned n, uint64_t ns, bool pairs)
{
	uint64_t start = gx_now(), base[PACE_MAX], least;
	int ret = 0;

	for (unsigned i = 0; i < n && !ret; i++) {
		ret = pace_reset(&p[i]);
		base[i] = p[i].nr;
	}
	pace_mode(p, ret ? 0 : n, pairs ? PACE_STEP : PACE_FREE);
	while (!ret && !pace_enough(p, n, start + ns + ns / 4)) {
		least = UINT64_MAX;
		for (unsigned i = 0; i < n; i++)
			least = p[i].nr - base[i] < least ? p[i].nr - base[i] : least;
		for (unsigned i = 0; i < n && !ret; i++)
			ret = pairs || !p[i].mode
				      ? pace_fill(&p[i], pairs ? base[i] + least + 2 : UINT64_MAX)
				      : 0;
		for (unsigned i = 0; i < n && !ret; i++)
			ret = pace_look(&p[i], base[i] + PACE_WARM_NR, start + ns / 4);
		if (gx_now() - start > PACE_LATE_NS)
			ret = -ETIMEDOUT;
		pace_nap(p, n);
	}
	pace_mode(p, n, PACE_STEP); /* only units that have begun */
	if (!ret)
		ret = pace_drain(p, n, start);
	pace_mode(p, n, PACE_REST);
	return ret;
}

static int double_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double median(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), double_compare);
	return !n ? NAN : n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double median_ratio(const double *a, const double *b, unsigned n)
{
	double v[MEDIAN_MAX];

	for (unsigned i = 0; i < n; i++)
		v[i] = a[i] / b[i];
	return median(v, n);
}
