// SPDX-License-Identifier: Apache-2.0
/*
 * The log-linear histogram's slow half: merging and percentiles (see hist.h for the scheme and its
 * source).
 */
#include "gxperf/report/hist.h"

#include <string.h>

void hist_reset(struct hist *h)
{
	memset(h, 0, sizeof(*h));
}

void hist_merge(struct hist *to, const struct hist *from)
{
	to->count += from->count;
	to->sum += from->sum;
	if (from->max > to->max)
		to->max = from->max;
	for (uint32_t i = 0; i < HIST_CELLS; i++)
		to->cell[i] += from->cell[i];
}

uint64_t hist_cell_top(uint32_t i)
{
	uint32_t shift;

	if (i < HIST_LINEAR)
		return i;
	/* The inverse of hist_cell(): its second term lies in [HIST_LINEAR / 2, HIST_LINEAR). */
	shift = i / (HIST_LINEAR / 2) - 1;
	return ((uint64_t)(i - shift * (HIST_LINEAR / 2) + 1) << shift) - 1;
}

uint64_t hist_percentile(const struct hist *h, uint32_t per_mille)
{
	/* Rounded up: the least rank that has at least this share. */
	uint64_t rank = (uint64_t)(((__uint128_t)h->count * per_mille + 999) / 1000), seen = 0, top;

	if (rank == 0)
		rank = 1;
	for (uint32_t i = 0; i < HIST_CELLS; i++) {
		seen += h->cell[i];
		if (seen >= rank) {
			top = hist_cell_top(i);
			return top < h->max ? top : h->max;
		}
	}
	return h->max;
}

double hist_average(const struct hist *h)
{
	return h->count ? (double)h->sum / (double)h->count : 0;
}
