/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A log-linear histogram of nanoseconds with 3 significant digits: the scheme of HdrHistogram (Gil
 * Tene, http://hdrhistogram.org), written anew. It counts values up to HIST_LINEAR exactly. Above
 * that it cuts each power of two into HIST_LINEAR / 2 equal steps, so a value is known to 1 part in
 * 1,024. One thread records; merge and read only when it has stopped.
 */
#ifndef HIST_H
#define HIST_H

#include <stdint.h>

#define HIST_LINEAR_BITS 11
#define HIST_LINEAR	 (1u << HIST_LINEAR_BITS)
#define HIST_VALUE_BITS	 42 /* 73 minutes; larger values count as the largest */
#define HIST_VALUE_MAX	 ((1ull << HIST_VALUE_BITS) - 1)
#define HIST_CELLS	 (HIST_LINEAR + (HIST_VALUE_BITS - HIST_LINEAR_BITS) * (HIST_LINEAR / 2))

struct hist {
	uint64_t count; /* values recorded */
	uint64_t sum;	/* of these values, for the average */
	uint64_t max;	/* largest, exact */
	uint64_t cell[HIST_CELLS];
};

/** hist_cell() - The cell that counts @v (at most HIST_VALUE_MAX). */
static inline uint32_t hist_cell(uint64_t v)
{
	uint32_t shift;

	if (v < HIST_LINEAR)
		return (uint32_t)v;
	shift = 64 - HIST_LINEAR_BITS - (uint32_t)__builtin_clzll(v);
	return shift * (HIST_LINEAR / 2) + (uint32_t)(v >> shift);
}

static inline void hist_record(struct hist *h, uint64_t v)
{
	h->count++;
	h->sum += v;
	if (v > h->max)
		h->max = v;
	h->cell[hist_cell(v < HIST_VALUE_MAX ? v : HIST_VALUE_MAX)]++;
}

void hist_reset(struct hist *h);
void hist_merge(struct hist *to, const struct hist *from);

/** hist_cell_top() - The largest value that cell @i counts. */
uint64_t hist_cell_top(uint32_t i);

/**
 * hist_percentile() - The value that @per_mille of 1,000 recorded values do not exceed (500: the
 * median). Return: never more than the largest recorded value; 0: nothing recorded.
 */
uint64_t hist_percentile(const struct hist *h, uint32_t per_mille);

/** hist_average() - 0: nothing recorded. */
double hist_average(const struct hist *h);

#endif
