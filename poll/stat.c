// SPDX-License-Identifier: Apache-2.0
/*
 * Names of the counters, and how the statistics socket prints them. Runs on the control thread
 * while the cores count on: each value is whole, but the values are not of one instant.
 */
#include "gx_internal/stat.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *const gx_stat_name[GX_STAT_NR] = {
#define STAT_NAME(id, name, help) [GX_STAT_##id] = #name,
	GX_STAT_LIST(STAT_NAME)
#undef STAT_NAME
};

const char *const gx_stat_help[GX_STAT_NR] = {
#define STAT_HELP(id, name, help) [GX_STAT_##id] = help,
	GX_STAT_LIST(STAT_HELP)
#undef STAT_HELP
};

struct stat_buf {
	char *p;
	size_t room; /* bytes left, the final 0 included */
	bool full;   /* sticky: something did not fit */
};

static void __attribute__((format(printf, 2, 3)))
stat_append(struct stat_buf *b, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (b->full)
		return;
	va_start(ap, fmt);
	n = vsnprintf(b->p, b->room, fmt, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= b->room) {
		b->full = true;
		return;
	}
	b->p += n;
	b->room -= (size_t)n;
}

/* The last of @n is the control thread. */
static const char *stat_core(unsigned i, unsigned n, char room[12])
{
	if (i + 1 == n)
		return "control";
	snprintf(room, 12, "%u", i);
	return room;
}

/* Length of the name without the _now of a gauge. */
static size_t stat_stem_len(const char *name, bool *gauge)
{
	static const char suffix[] = "_now";
	size_t len = strlen(name), cut = sizeof(suffix) - 1;

	*gauge = len > cut && strcmp(name + len - cut, suffix) == 0;
	return *gauge ? len - cut : len;
}

/* Prometheus writes units as whole words, and times in seconds. Return: that word, which takes the
 * place of the end of @name. */
static const char *stat_unit(const char *name, int *len)
{
	if (*len > 2 && !strncmp(name + *len - 2, "_b", 2)) {
		*len -= 2;
		return "_bytes";
	}
	if (*len > 3 && !strncmp(name + *len - 3, "_ns", 3)) {
		*len -= 3;
		return "_seconds";
	}
	return "";
}

/* Prometheus wants one HELP and TYPE a metric, names of counters that end in _total, and all
 * samples of a metric together. */
static void stat_prometheus(struct stat_buf *b, unsigned id, const struct gx_stats *const cores[],
			    unsigned n)
{
	bool gauge;
	int len = (int)stat_stem_len(gx_stat_name[id], &gauge);
	const char *unit = stat_unit(gx_stat_name[id], &len);
	char name[64], core[12];

	snprintf(name, sizeof(name), "gx_%.*s%s%s", len, gx_stat_name[id], unit,
		 gauge ? "" : "_total");
	stat_append(b, "# HELP %s %s\n", name, gx_stat_help[id]);
	stat_append(b, "# TYPE %s %s\n", name, gauge ? "gauge" : "counter");
	for (unsigned i = 0; i < n; i++) {
		uint64_t v = gx_stat_get(cores[i], (enum gx_stat_id)id);

		stat_append(b, "%s{core=\"%s\"} ", name, stat_core(i, n, core));
		if (!strcmp(unit, "_seconds"))
			stat_append(b, "%" PRIu64 ".%09" PRIu64 "\n", v / 1000000000,
				    v % 1000000000);
		else
			stat_append(b, "%" PRIu64 "\n", v);
	}
}

/* Three columns: name, core, value. */
static void stat_text(struct stat_buf *b, unsigned id, const struct gx_stats *const cores[],
		      unsigned n)
{
	char core[12];

	for (unsigned i = 0; i < n; i++)
		stat_append(b, "%s %s %" PRIu64 "\n", gx_stat_name[id], stat_core(i, n, core),
			    gx_stat_get(cores[i], (enum gx_stat_id)id));
}

/* When the library was loaded. */
static struct timespec stat_start;

static void __attribute__((constructor)) stat_start_set(void)
{
	clock_gettime(CLOCK_REALTIME, &stat_start);
}

/* Version and start: a restart explains counters that fell to 0. */
static void stat_about(struct stat_buf *b, enum gx_stat_format format)
{
	struct timespec now;

	if (format == GX_STAT_PROMETHEUS) {
		stat_append(b, "# HELP gx_build_info the build that runs\n"
			       "# TYPE gx_build_info gauge\ngx_build_info{version=\"" GX_VERSION
			       "\"} 1\n"
			       "# HELP gx_start_time_seconds when it was started, in Unix time\n"
			       "# TYPE gx_start_time_seconds gauge\n");
		stat_append(b, "gx_start_time_seconds %lld\n", (long long)stat_start.tv_sec);
		return;
	}
	clock_gettime(CLOCK_REALTIME, &now);
	stat_append(b, "uptime_s control %lld\n", (long long)(now.tv_sec - stat_start.tv_sec));
}

int gx_stat_print(const struct gx_stats *const cores[], unsigned n, enum gx_stat_format format,
		  char *buf, size_t room)
{
	struct stat_buf b = {.p = buf, .room = room};

	if (room == 0)
		return -ENOSPC;
	buf[0] = 0;
	if (n)
		stat_about(&b, format);
	for (unsigned id = 0; id < GX_STAT_NR; id++) {
		if (format == GX_STAT_PROMETHEUS)
			stat_prometheus(&b, id, cores, n);
		else
			stat_text(&b, id, cores, n);
	}
	return b.full ? -ENOSPC : (int)(b.p - buf);
}
