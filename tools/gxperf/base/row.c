// SPDX-License-Identifier: Apache-2.0
/*
 * Common parts of rows of several sub-commands: latency, rate, CPU time and packets of both ends.
 * Main thread.
 */
#include "gxperf/base/perf.h"

#include "gxperf/base/throttle.h"

#include <math.h>

#define ROW_CPU_NS 20000000 /* in a shorter run most CPU time goes into asking for it */

void perf_row_hist(struct report_row *row, const struct hist *h)
{
	row->p50_us = h->count ? (double)hist_percentile(h, 500) / 1e3 : NAN;
	row->avg_us = h->count ? hist_average(h) / 1e3 : NAN;
	row->p99_us = h->count >= 100 ? (double)hist_percentile(h, 990) / 1e3 : NAN;
	row->p999_us = h->count >= 1000 ? (double)hist_percentile(h, 999) / 1e3 : NAN;
}

static void perf_row_limits(struct report_row *row, const struct perf_mark m[2])
{
	uint64_t all_ns = 0;

	for (unsigned i = 0; i < REPORT_LIMITS; i++)
		all_ns += m[1].limit_ns[i] - m[0].limit_ns[i];
	for (unsigned i = 0; i < REPORT_LIMITS && all_ns; i++)
		row->limit[i] = (double)(m[1].limit_ns[i] - m[0].limit_ns[i]) / (double)all_ns;
}

/* Paths that were not compared at the first mark are taken whole. */
static void perf_row_paths(struct report_row *row, const struct perf_mark m[2])
{
	for (unsigned i = 0; i < m[1].nr_paths; i++) {
		const struct gx_path *p = &m[1].paths[i];
		struct report_source *to = &row->paths[row->nr_paths];

		*to = (struct report_source){.lane = p->lane,
					     .source_port = p->source_port,
					     .data = p->data,
					     .dead = p->dead,
					     .sent = p->sent,
					     .resent = p->lost,
					     .rtt_us = (double)p->rtt_ns / 1e3};
		for (unsigned k = 0; k < m[0].nr_paths; k++) {
			const struct gx_path *was = &m[0].paths[k];

			if (was->source_port != p->source_port || was->lane != p->lane ||
			    was->data != p->data)
				continue;
			to->sent -= was->sent;
			to->resent -= was->lost;
		}
		row->nr_paths += to->sent || to->dead;
	}
}

void perf_row_marks(struct report_row *row, const struct perf_mark m[2])
{
	uint64_t ns = m[1].at_ns - m[0].at_ns, resent = m[1].resent - m[0].resent;
	uint64_t spurious = m[1].spurious - m[0].spurious;

	row->cpu_pct =
		ns >= ROW_CPU_NS ? 100.0 * (double)(m[1].cpu_ns - m[0].cpu_ns) / (double)ns : NAN;
	row->pkts = true;
	row->resent = resent;
	row->lost = resent > spurious ? resent - spurious : 0;
	row->dup = m[1].dup - m[0].dup;
	row->rate_gb_s = (double)m[1].rate_b_s / 1e9;
	row->rtt_us = (double)m[1].rtt_ns / 1e3;
	perf_row_limits(row, m);
	perf_row_paths(row, m);
}

double perf_gb_s(uint64_t count, uint64_t size, uint64_t ns)
{
	return count && ns ? (double)count * (double)size / (double)ns : NAN;
}

void perf_row_times(struct perf *perf)
{
	report_section(perf->report,
		       "times: from posting a message to its completion here, behind those "
		       "that are under way with it (--depth); of one alone: lat");
}

int perf_timed(struct perf *perf, uint64_t count, uint64_t size)
{
	if (count || throttle_on())
		return PERF_OK;
	report_error(perf->report,
		     "%s of %llu bytes: no message was timed: give more time with -D, or -n",
		     perf->opts->command, (unsigned long long)size);
	return PERF_FAILED;
}
