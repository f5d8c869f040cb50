/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeping several things busy at once and timing them, and medians. Main thread
 * only: one thread posts and polls all.
 */
#ifndef PACE_H
#define PACE_H

#include <stdbool.h>
#include <stdint.h>

#define PACE_MAX 16

/** enum pace_mode - For what goes on without being posted each time. */
enum pace_mode {
	PACE_REST, /* stop */
	PACE_STEP, /* what is posted */
	PACE_FREE, /* as fast as it goes, without a post */
};

/** struct pace - Something that is posted again and again: a way, or a load. */
struct pace {
	void *arg;
	int (*post)(void *arg);		       /* 0, -EAGAIN, -errno */
	int (*ended)(void *arg, uint64_t *nr); /* 0, -errno */
	/* NULL, or told before and after a run how it goes. Return: how many have begun; with
	 * PACE_FREE that does not count. */
	uint64_t (*mode)(void *arg, enum pace_mode mode);
	uint64_t nap_ns; /* sleep so long between two looks: the CPU is wanted by others */
	uint64_t posted, nr;
	uint64_t first, last, first_ns, last_ns; /* number and time at the ends of what is timed */
	unsigned depth;				 /* out at once */
};

/** pace_run() - Keep @n of them busy: warm up, then time for @ns and at least three of each, then
 * wait for all.
 * @pairs: post one of each together and the next when all have ended, two of such groups at once.
 * Return: 0, -errno (way_why()), -ETIMEDOUT. */
int pace_run(struct pace *p, unsigned n, uint64_t ns, bool pairs);
/** pace_us() - Time of one in the last run. */
double pace_us(const struct pace *p);

double median(double *v, unsigned n); /* sorts; NAN when n is 0 */
/** median_ratio() - Of @a over @b, round by round; at most MEDIAN_MAX. Sorts neither. */
#define MEDIAN_MAX 99
double median_ratio(const double *a, const double *b, unsigned n);

#endif
