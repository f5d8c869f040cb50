/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many seeds a test of the simulated network tries, how many rounds one of threads makes, and who
 * measures.
 */
#ifndef COMMON_SEEDS_H
#define COMMON_SEEDS_H

#include <stdbool.h>
#include <stdlib.h>

/* @few in a usual run, @full with GX_TEST_FULL=1. The release build takes a quarter of @few, which
 * the build with sanitizers has tried already. */
static inline unsigned common_seeds(unsigned few, unsigned full)
{
	if (getenv("GX_TEST_FULL"))
		return full;
#ifdef NDEBUG
	return (few + 3) / 4;
#else
	return few;
#endif
}

/* @n, and a third of it in each of three builds of ./run tests: by sanitizers of addresses and of
 * threads, and what ships. */
static inline unsigned common_rounds(unsigned n)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(NDEBUG)
	return getenv("GX_TEST_FULL") ? n : (n + 2) / 3;
#else
	return n;
#endif
}

/* Rates in virtual time are the same by each build, and take the address sanitizer three times as long:
 * there the longest are left out. */
static inline bool common_rates(void)
{
#ifdef __SANITIZE_ADDRESS__
	return getenv("GX_TEST_FULL");
#else
	return true;
#endif
}

#endif
