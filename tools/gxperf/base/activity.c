// SPDX-License-Identifier: Apache-2.0
/*
 * Keeps several activities busy at once and times them (see activity.h).
 */
#include "gxperf/base/activity.h"

#include <gx/gx.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ACTIVITY_WARM_NR 2
#define ACTIVITY_MIN_NR	 3
#define ACTIVITY_LATE_NS 60000000000ull

double activity_us(const struct activity *a)
{
	if (a->last <= a->first)
		return NAN;
	return (double)(a->last_ns - a->first_ns) / 1e3 / (double)(a->last - a->first);
}

/* Look at one: how many have ended, and the time when we see it. */
static int activity_look(struct activity *a, uint64_t warm_nr, uint64_t warm_ns)
{
	uint64_t nr, now;
	int ret = a->ended(a->arg, &nr);

	if (ret || nr == a->nr)
		return ret;
	now = gx_now();
	a->nr = nr;
	if (!a->first_ns) {
		if (nr < warm_nr || now < warm_ns)
			return 0;
		a->first = nr;
		a->first_ns = now;
	}
	a->last = nr;
	a->last_ns = now;
	return 0;
}

static int activity_fill(struct activity *a, uint64_t upto)
{
	int ret = 0;

	while (!ret && a->posted < upto && a->posted - a->nr < a->depth) {
		ret = a->post(a->arg);
		a->posted += !ret;
		/* One at a time if posts are quick: the others must not wait. */
		if (a->posted - a->nr > 1)
			break;
	}
	return ret == -EAGAIN ? 0 : ret;
}

/* In ACTIVITY_FREE we post nothing. Back in another mode, posted goes on from the number begun. */
static void activity_mode(struct activity *a, unsigned n, enum activity_mode mode)
{
	for (unsigned i = 0; i < n; i++)
		if (a[i].mode)
			a[i].posted = a[i].mode(a[i].arg, mode);
}

static void activity_nap(const struct activity *a, unsigned n)
{
	struct timespec ts = {.tv_nsec = 0};

	for (unsigned i = 0; i < n; i++)
		if (a[i].nap_ns > (uint64_t)ts.tv_nsec)
			ts.tv_nsec = (long)a[i].nap_ns;
	if (ts.tv_nsec)
		nanosleep(&ts, NULL);
}

static bool activity_enough(const struct activity *a, unsigned n, uint64_t end_ns)
{
	for (unsigned i = 0; i < n; i++)
		if (!a[i].first_ns || a[i].last < a[i].first + ACTIVITY_MIN_NR ||
		    a[i].last_ns < end_ns)
			return false;
	return true;
}

static int activity_drain(struct activity *a, unsigned n, uint64_t start)
{
	int ret = 0;

	for (unsigned i = 0; i < n && !ret; i++)
		while (!ret && a[i].nr < a[i].posted) {
			ret = a[i].ended(a[i].arg, &a[i].nr);
			activity_nap(a, n);
			if (gx_now() - start > ACTIVITY_LATE_NS)
				ret = -ETIMEDOUT;
		}
	return ret;
}

/* Numbers continue from earlier runs. */
static int activity_reset(struct activity *a)
{
	uint64_t nr;
	int ret = a->ended(a->arg, &nr);

	a->nr = a->posted = nr;
	a->first = a->last = a->first_ns = a->last_ns = 0;
	return ret;
}

int activity_run(struct activity *a, unsigned n, uint64_t ns, bool pairs)
{
	uint64_t start = gx_now(), base[ACTIVITY_MAX], least;
	int ret = 0;

	for (unsigned i = 0; i < n && !ret; i++) {
		ret = activity_reset(&a[i]);
		base[i] = a[i].nr;
	}
	activity_mode(a, ret ? 0 : n, pairs ? ACTIVITY_STEP : ACTIVITY_FREE);
	while (!ret && !activity_enough(a, n, start + ns + ns / 4)) {
		least = UINT64_MAX;
		for (unsigned i = 0; i < n; i++)
			least = a[i].nr - base[i] < least ? a[i].nr - base[i] : least;
		for (unsigned i = 0; i < n && !ret; i++) {
			if (pairs || !a[i].mode)
				ret = activity_fill(&a[i],
						    pairs ? base[i] + least + 2 : UINT64_MAX);
		}
		for (unsigned i = 0; i < n && !ret; i++)
			ret = activity_look(&a[i], base[i] + ACTIVITY_WARM_NR, start + ns / 4);
		if (gx_now() - start > ACTIVITY_LATE_NS)
			ret = -ETIMEDOUT;
		activity_nap(a, n);
	}
	activity_mode(a, n, ACTIVITY_STEP); /* only units that have begun */
	if (!ret)
		ret = activity_drain(a, n, start);
	activity_mode(a, n, ACTIVITY_REST);
	return ret;
}

static int double_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double activity_median(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), double_compare);
	return !n ? NAN : n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double activity_median_ratio(const double *a, const double *b, unsigned n)
{
	double v[MEDIAN_MAX];

	for (unsigned i = 0; i < n; i++)
		v[i] = a[i] / b[i];
	return activity_median(v, n);
}
