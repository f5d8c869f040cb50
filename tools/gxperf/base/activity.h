/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps several activities busy at once and times them; and medians. Main thread only: one thread
 * posts and polls all.
 */
#ifndef ACTIVITY_H
#define ACTIVITY_H

#include <stdbool.h>
#include <stdint.h>

#define ACTIVITY_MAX 16

/** enum activity_mode - For an activity that can go on without posts. */
enum activity_mode {
	ACTIVITY_REST, /* stop */
	ACTIVITY_STEP, /* only posted units */
	ACTIVITY_FREE, /* as fast as it can, without posts */
};

/** struct activity - Units to post again and again: of a way, or of a load. */
struct activity {
	void *arg;
	int (*post)(void *arg);		       /* 0, -EAGAIN, -errno */
	int (*ended)(void *arg, uint64_t *nr); /* 0, -errno */
	/* NULL, or called before and after a run to set the mode. Return: units begun so far; with
	 * ACTIVITY_FREE the number is ignored. */
	uint64_t (*mode)(void *arg, enum activity_mode mode);
	uint64_t nap_ns; /* sleep between two looks: others need the CPU */
	uint64_t posted, nr;
	uint64_t first, last, first_ns, last_ns; /* number and time at its ends */
	unsigned depth;				 /* units out at once */
};

/** activity_run() - Keep @n activities busy: warm up, then time for @ns and at least three units of
 * each, then wait for all.
 * @pairs: post one unit of each together, and the next group when all have ended; two groups at
 * once.
 * Return: 0, -errno (way_why()), -ETIMEDOUT. */
int activity_run(struct activity *a, unsigned n, uint64_t ns, bool pairs);
/** activity_us() - Time of one unit in the last run. */
double activity_us(const struct activity *a);

double activity_median(double *v, unsigned n); /* sorts; NAN when n is 0 */
/** median_ratio() - Median of @a / @b, round by round; at most MEDIAN_MAX rounds. Sorts neither. */
#define MEDIAN_MAX 99
double activity_median_ratio(const double *a, const double *b, unsigned n);

#endif
