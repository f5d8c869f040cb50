// SPDX-License-Identifier: Apache-2.0
/*
 * Results of gxperf (see report.h). The JSON document is kept while the program runs and printed at
 * the end; tables, CSV and JSON lines are printed row by row.
 */
#include "gxperf/report/report.h"

#include "gxperf/report/report_csv.h"

#include "common/flag.h"
#include "common/json.h"
#include "gxperf/report/newfile.h"
#include "common/opt.h"

#include <gx/gx.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define REPORT_TEXT_MAX 1024
#define REPORT_SMALL	0.001	      /* smaller values are printed with an exponent */
#define REPORT_TELL_NS	5000000000ull /* between two lines of progress without a terminal */

/* Held while a thread prints or adds to a document. report_close() keeps it. */
static pthread_mutex_t report_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct report *report_kept; /* closed; freed by the next report_open() */

struct report {
	struct report_opts opts;
	struct newfile file;  /* of -J, or none */
	int lines;	      /* of --append, or -1 */
	bool lines_csv;	      /* it takes CSV, else lines of JSON */
	struct json_t *parts; /* members of the document, next to the results */
	const char *commit;
	int lines_err; /* error of the last line not added; 0: none */
	int out_err;   /* error of what stdout did not take; 0: none */
	char host[65];
	struct json_t *path, *results, *errors;
	struct json_t *intervals; /* among the parts; NULL: none was asked for */
	const char *reason;	  /* NULL: no connection has failed */
	char op[16];		  /* of the table's last header */
	uint64_t checked_b;	  /* sums, for the table's last line */
	uint64_t wrong;
	unsigned nr_rows;
	bool unchecked; /* some row is unchecked */
	int signo;	/* signal that ended the program; 0: none */
	void (*on_row)(void *arg, const struct report_row *row);
	void *on_row_arg;
	bool terminal;	   /* stderr is a terminal */
	bool progress;	   /* a progress line is on the terminal */
	uint64_t shown_ns; /* time of the last progress, or of the start */
};

int report_format_parse(const char *text, enum report_format *out)
{
	static const char *const names[] = {"table", "csv", "json", "jsonl"};

	return opt_name(text, names, 4, out);
}

/* Open it now: an error comes before any measurement. */
static int report_file_open(struct report *report)
{
	const char *path = report->opts.json_path;
	int ret = newfile_open(&report->file, path, report->opts.force);

	if (ret)
		fprintf(stderr, "gxperf: -J %s: %s%s\n", path, strerror(-ret),
			ret == -EEXIST ? "; give another name, or --force to replace it" : "");
	return ret;
}

static int report_file_close(struct report *report, struct json_t *doc)
{
	char *text = js_print(doc, true);
	int ret = text ? newfile_write(&report->file, text, strlen(text)) : -ENOMEM;

	free(text);
	if (!ret)
		ret = newfile_write(&report->file, "\n", 1);
	if (!ret)
		return newfile_keep(&report->file);
	newfile_drop(&report->file);
	return ret;
}

static int report_lines_open(struct report *report)
{
	const char *path = report->opts.lines_path;

	report->lines_csv = strlen(path) > 4 && !strcmp(path + strlen(path) - 4, ".csv");
	report->lines = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	if (report->lines >= 0)
		return 0;
	fprintf(stderr, "gxperf: --append %s: %s\n", path, strerror(errno));
	return -errno;
}

/* Remove a file that has got no line. */
static void report_lines_close(struct report *report)
{
	struct stat st;

	if (report->lines < 0)
		return;
	if (!fstat(report->lines, &st) && S_ISREG(st.st_mode) && !st.st_size)
		unlink(report->opts.lines_path);
	close(report->lines);
	report->lines = -1;
}

int report_open(const struct report_opts *opts, struct report **out)
{
	struct report *o = calloc(1, sizeof(*o));
	struct utsname u;
	int ret;

	if (!o)
		return -ENOMEM;
	free(report_kept);
	report_kept = NULL;
	o->opts = *opts;
	o->file.fd = o->lines = -1;
	o->terminal = isatty(STDERR_FILENO);
	o->shown_ns = gx_now();
	if (!uname(&u))
		snprintf(o->host, sizeof(o->host), "%s", u.nodename);
	ret = opts->lines_path ? report_lines_open(o) : 0;
	if (!ret && opts->json_path)
		ret = report_file_open(o);
	if (ret) {
		report_lines_close(o);
		free(o);
		return ret;
	}
	o->path = js_pack("{}");
	o->parts = js_pack("{}");
	o->results = js_array();
	o->errors = js_array();
	*out = o;
	return 0;
}

/* ---- stderr ---- */

static void report_progress_end(struct report *report)
{
	if (report->progress)
		fputs("\r\033[K", stderr);
	report->progress = false;
}

/* A line on stderr. @text becomes what it says, with the tools' names of options. */
static void report_tell(struct report *report, char text[REPORT_TEXT_MAX], const char *fmt,
			va_list ap)
{
	vsnprintf(text, REPORT_TEXT_MAX, fmt, ap);
	pthread_mutex_lock(&report_lock);
	report_progress_end(report);
	fprintf(stderr, "gxperf: %s\n", flag_say(text));
	pthread_mutex_unlock(&report_lock);
}

void report_error(struct report *report, const char *fmt, ...)
{
	char text[REPORT_TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	report_tell(report, text, fmt, ap);
	va_end(ap);
	pthread_mutex_lock(&report_lock);
	js_append(report->errors, js_string(text));
	pthread_mutex_unlock(&report_lock);
}

void report_reason(struct report *report, const char *reason)
{
	pthread_mutex_lock(&report_lock);
	report->reason = reason;
	pthread_mutex_unlock(&report_lock);
}

void report_note(struct report *report, const char *fmt, ...)
{
	char text[REPORT_TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	report_tell(report, text, fmt, ap);
	va_end(ap);
}

void report_progress(struct report *report, const char *fmt, ...)
{
	uint64_t now = gx_now();
	va_list ap;

	if (!report->terminal && now - report->shown_ns < REPORT_TELL_NS)
		return;
	pthread_mutex_lock(&report_lock);
	report->shown_ns = now;
	report_progress_end(report);
	fputs(report->terminal ? "\r" : "gxperf: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	if (!report->terminal)
		fputc('\n', stderr);
	fflush(stderr);
	report->progress = report->terminal;
	pthread_mutex_unlock(&report_lock);
}

void report_flush(struct report *report)
{
	if (fflush(stdout))
		report->out_err = errno;
	else if (ferror(stdout) && !report->out_err)
		report->out_err = EIO;
}

/* ---- JSON ---- */

void report_path(struct report *report, const struct report_path *p)
{
	struct json_t *path = js_pack("{}");

	js_set(path, "link", js_string(p->link));
	js_set(path, "port", js_string(p->port));
	js_set(path, "gpu", js_string(p->gpu));
	js_set(path, "bounce", js_string(p->bounce));
	js_set(path, "engine", js_string(p->engine));
	js_set(path, "control", js_string(p->control));
	js_set(path, "unpack", js_string(p->unpack));
	js_set(path, "integrity", js_string(p->integrity));
	js_set(path, "auth", js_string(p->auth));
	js_set(path, "crc_by", js_string(p->crc_by));
	js_set(path, "quantum",
	       p->quantum_b < 0 ? js_string(NULL) : js_pack("I", (long long)p->quantum_b));
	js_set(path, "cores", js_string(p->cores));
	js_set(path, "why", js_string(p->why));
	js_set(path, "reason", js_string(p->reason));
	pthread_mutex_lock(&report_lock);
	js_free(report->path);
	report->path = path;
	if (report->opts.format == REPORT_TABLE)
		printf("# link %s, port %s, memory there %s, bounce pool %s, unpack %s, engine %s, "
		       "integrity %s, %s, CRC by %s, quantum %lld, CPUs here %s, control %s\n# why: %s\n",
		       p->link, p->port, p->gpu, p->bounce ? p->bounce : "none", p->unpack,
		       p->engine ? p->engine : "none", p->integrity, p->auth, p->crc_by,
		       (long long)p->quantum_b, p->cores, p->control, p->why);
	report_flush(report); /* the path, before the first row */
	pthread_mutex_unlock(&report_lock);
}

const char *const report_limits[REPORT_LIMITS] = {"app", "link", "window", "credit", "core"};

static struct json_t *row_congestion(const struct report_row *r)
{
	struct json_t *out = js_pack("{s:f, s:f}", "rate_GB_s", r->rate_gb_s, "rtt_us", r->rtt_us);

	for (unsigned i = 0; i < REPORT_LIMITS; i++)
		js_set(out, report_limits[i], js_real(r->limit[i]));
	return out;
}

static struct json_t *row_paths(const struct report_row *r)
{
	struct json_t *out = js_array();

	for (unsigned i = 0; i < r->nr_paths; i++) {
		const struct report_source *p = &r->paths[i];

		js_append(out, js_pack("{s:i, s:i, s:s, s:I, s:I, s:f, s:b}", "lane", (int)p->lane,
				       "source_port", (int)p->source_port, "packets",
				       p->data ? "data" : "control", "sent", (long long)p->sent,
				       "resent", (long long)p->resent, "rtt_us", p->rtt_us, "dead",
				       p->dead));
	}
	return out;
}

static struct json_t *row_doc(const struct report_row *r)
{
	struct json_t *row = js_pack("{s:s, s:I, s:I}", "op", r->op, "size_b", (long long)r->size_b,
				     "count", (long long)r->count);

	js_set(row, "p50_us", js_real(r->p50_us));
	js_set(row, "avg_us", js_real(r->avg_us));
	js_set(row, "p99_us", js_real(r->p99_us));
	js_set(row, "p999_us", js_real(r->p999_us));
	js_set(row, "GB_s", js_real(r->gb_s));
	js_set(row, "cpu_pct", js_real(r->cpu_pct));
	js_set(row, "sms", r->sms < 0 ? js_string(NULL) : js_pack("i", r->sms));
	js_set(row, "checked_b", js_pack("I", (long long)r->checked_b));
	js_set(row, "wrong", r->checked ? js_pack("I", (long long)r->wrong) : js_string(NULL));
	js_set(row, "sha256", js_string(r->sha256));
	if (r->share > 0)
		js_set(row, "share", js_real(r->share));
	if (r->bus)
		js_set(row, "bus_GB_s", js_real(r->bus_gb_s));
	if (r->cpu_us > 0)
		js_set(row, "cpu_us", js_real(r->cpu_us));
	if (r->rate_gb_s > 0)
		js_set(row, "congestion", row_congestion(r));
	if (r->nr_paths)
		js_set(row, "paths", row_paths(r));
	js_set(row, "lost", r->pkts ? js_pack("I", (long long)r->lost) : js_string(NULL));
	js_set(row, "resent", r->pkts ? js_pack("I", (long long)r->resent) : js_string(NULL));
	js_set(row, "duplicate", r->pkts ? js_pack("I", (long long)r->dup) : js_string(NULL));
	if (r->depth)
		js_set(row, "depth", js_pack("i", (int)r->depth));
	if (r->bidirectional)
		js_set(row, "bidirectional", js_pack("b", 1));
	if (r->interrupted)
		js_set(row, "interrupted", js_pack("b", 1));
	return row;
}

/* The value after "@key :" in a file such as /proc/cpuinfo or /proc/meminfo. */
static void report_proc_value(const char *path, const char *key, char *buf, size_t room)
{
	FILE *f = fopen(path, "re");
	char line[256];
	size_t len = strlen(key);

	snprintf(buf, room, "unknown");
	while (f && fgets(line, sizeof(line), f)) {
		char *at = line + len;

		if (strncmp(line, key, len))
			continue;
		at += strspn(at, " \t:");
		at[strcspn(at, "\n")] = '\0';
		snprintf(buf, room, "%s", at);
		break;
	}
	if (f)
		fclose(f);
}

static void report_time(char *buf, size_t room)
{
	time_t now = time(NULL);
	struct tm tm;

	if (!gmtime_r(&now, &tm) || !strftime(buf, room, "%Y-%m-%dT%H:%M:%SZ", &tm))
		snprintf(buf, room, "unknown");
}

static struct json_t *report_env(const struct report *report)
{
	struct json_t *env = js_pack("{}"), *args = js_array();
	char text[128];
	struct utsname u;

	js_set(env, "gx", js_string(gx_version()));
	js_set(env, "commit", js_string(report->commit));
	if (!uname(&u)) {
		js_set(env, "host", js_string(u.nodename));
		js_set(env, "kernel", js_string(u.release));
		js_set(env, "machine", js_string(u.machine));
	}
	report_proc_value("/proc/cpuinfo", "model name", text, sizeof(text));
	js_set(env, "cpu", js_string(text));
	js_set(env, "nr_cpus", js_pack("i", (int)sysconf(_SC_NPROCESSORS_ONLN)));
	report_proc_value("/proc/meminfo", "HugePages_Free", text, sizeof(text));
	js_set(env, "hugepages_free", js_string(text));
	report_time(text, sizeof(text));
	js_set(env, "time", js_string(text));
	for (int i = 0; i < report->opts.argc; i++)
		js_append(args, js_string(report->opts.argv[i]));
	js_set(env, "args", args);
	return env;
}

/* The document without the results. It takes path and errors out of @report. */
static struct json_t *report_document(struct report *report, int exit_code)
{
	struct json_t *doc = js_pack("{s:i, s:s}", "schema_version", REPORT_SCHEMA_VERSION,
				     "command", report->opts.command);

	js_set(doc, "env", report_env(report));
	js_set(doc, "path", report->path);
	js_merge(doc, report->parts);
	js_set(doc, "errors", report->errors);
	js_set(doc, "reason", js_string(report->reason));
	js_set(doc, "interrupted", js_pack("b", report->signo != 0));
	js_set(doc, "exit_code", js_pack("i", exit_code));
	return doc;
}

static int doc_write(struct json_t *doc, bool pretty, FILE *to)
{
	char *text = js_print(doc, pretty);
	int ret = -ENOMEM;

	if (text)
		ret = fprintf(to, "%s\n", text) < 0 ? -errno : 0;
	free(text);
	return ret;
}

/* A result that stands alone, with place, time and way of its measurement. All lines begin with the
 * same members. */
static void report_line(struct report *report, struct json_t *row)
{
	struct json_t *line = js_pack("{}");
	bool append = report->lines >= 0 && !report->lines_csv;
	char time_text[64], *text;
	size_t len;
	ssize_t n;

	if (!append && report->opts.format != REPORT_JSONL)
		goto end;
	report_time(time_text, sizeof(time_text));
	js_set(line, "env", report_env(report));
	js_set(line, "path", js_share(report->path));
	js_set(line, "command", js_string(report->opts.command));
	js_set(line, "time", js_string(time_text));
	js_set(line, "host", js_string(report->host));
	js_set(line, "link", js_string(js_text(js_get(report->path, "link"), NULL)));
	js_set(line, "port", js_string(js_text(js_get(report->path, "port"), NULL)));
	js_merge(line, row);
	if (report->opts.format == REPORT_JSONL)
		doc_write(line, false, stdout);
	text = append ? js_print(line, false) : NULL;
	len = text ? strlen(text) : 0;
	/* One call, so that lines of several programs do not mix. */
	if (text)
		text[len] = '\n';
	n = text ? write(report->lines, text, len + 1) : 0;
	if (append && n != (ssize_t)len + 1) /* a part is written: no room is left */
		report->lines_err = !text ? ENOMEM : n < 0 ? errno : ENOSPC;
	free(text);
end:
	js_free(line);
}

/* ---- Rows ---- */

/* At least three significant digits, also for small values. */
static const char *cell(double v, char buf[32])
{
	int digits = v < 0.01 ? 5 : v < 1 ? 4 : v < 10 ? 3 : v < 1000 ? 2 : 1;

	if (!isfinite(v))
		snprintf(buf, 32, "-");
	else if (v > 0 && v < REPORT_SMALL)
		snprintf(buf, 32, "%.2e", v);
	else
		snprintf(buf, 32, "%.*f", digits, v);
	return buf;
}

/* "# path: 0.125 GB/s, round trip 10.020 ms; limit: link 83 %, window 17 %" */
static void row_limits(const struct report_row *r)
{
	const char *before = "; limit: ";

	printf("# path: %.3f GB/s, round trip %.3f ms", r->rate_gb_s, r->rtt_us / 1e3);
	for (unsigned i = 0; i < REPORT_LIMITS; i++) {
		if (r->limit[i] < 0.005)
			continue;
		printf("%s%s %.0f %%", before, report_limits[i], 100 * r->limit[i]);
		before = ", ";
	}
	putchar('\n');
}

/* "# source ports: 16, round trip 0.020 to 10.020 ms; dead: 40123 (data)". Packets that each has sent again
 * are in JSON: how many of them were lost is known of all together. */
static void row_sources(const struct report_row *r)
{
	double least_us = r->paths[0].rtt_us, most_us = least_us;
	unsigned dead = 0;

	if (!r->nr_paths)
		return;
	for (unsigned i = 1; i < r->nr_paths; i++) {
		least_us = fmin(least_us, r->paths[i].rtt_us);
		most_us = fmax(most_us, r->paths[i].rtt_us);
	}
	printf("# source ports: %u, round trip %.3f to %.3f ms", r->nr_paths, least_us / 1e3,
	       most_us / 1e3);
	for (unsigned i = 0; i < r->nr_paths; i++)
		if (r->paths[i].dead)
			printf("%s %u (%s)", dead++ ? "," : "; dead:", r->paths[i].source_port,
			       r->paths[i].data ? "data" : "control");
	putchar('\n');
}

static void row_table(struct report *report, const struct report_row *r)
{
	char b[6][32], wrong[32] = "-", sms[16] = "-", cpu[16] = "-";
	int name = (int)strlen(r->op);

	if (strcmp(report->op, r->op)) {
		snprintf(report->op, sizeof(report->op), "%s", r->op);
		printf("# %-4s %*s %9s %10s %10s %10s %10s %9s %9s %6s %4s %7s%s\n", r->op,
		       name < 5	  ? 10
		       : name < 9 ? 14 - name
				  : 5,
		       "size", "count", "p50 us", "avg us", "p99 us", "p99.9 us", "GB/s", "Gb/s",
		       "CPU%", "SMs", "#wrong", r->bus ? "  bus GB/s" : "");
	}
	if (r->checked)
		snprintf(wrong, sizeof(wrong), "%llu", (unsigned long long)r->wrong);
	if (r->sms >= 0)
		snprintf(sms, sizeof(sms), "%d", r->sms);
	printf("%17llu %9llu %10s %10s %10s %10s %9s %9s", (unsigned long long)r->size_b,
	       (unsigned long long)r->count, cell(r->p50_us, b[0]), cell(r->avg_us, b[1]),
	       cell(r->p99_us, b[2]), cell(r->p999_us, b[3]), cell(r->gb_s, b[4]),
	       cell(r->gb_s * 8, b[5]));
	if (isfinite(r->cpu_pct))
		snprintf(cpu, sizeof(cpu), "%.0f", r->cpu_pct);
	printf(" %6s %4s %7s", cpu, sms, wrong);
	if (r->bus)
		printf(" %9s", cell(r->bus_gb_s, b[0]));
	if (r->share > 0)
		printf("  %.3f of the limit", r->share);
	if (r->cpu_us > 0)
		printf("  %.3f us CPU", r->cpu_us);
	if (r->interrupted)
		printf("  cut short");
	putchar('\n');
	if (r->rate_gb_s > 0)
		row_limits(r);
	row_sources(r);
	if (r->resent || r->dup)
		printf("# packets: %llu lost, %llu sent again, %llu came twice\n",
		       (unsigned long long)r->lost, (unsigned long long)r->resent,
		       (unsigned long long)r->dup);
	if (r->sha256)
		printf("# sha256 %s\n", r->sha256);
}

/* Columns of CSV that distinguish a row from those of other runs. @time: room for them */
static struct csv_where csv_where(const struct report *report, char time[64])
{
	report_time(time, 64);
	return (struct csv_where){.link = js_text(js_get(report->path, "link"), ""),
				  .port = js_text(js_get(report->path, "port"), ""),
				  .time = time,
				  .host = report->host};
}

/* Print a row as CSV, with @cells if there are some, on stdout and to a file of --append: there the header
 * stands once, whoever wrote it. One call, so that rows of several programs do not mix. Under report_lock. */
static void report_csv(struct report *report, const struct report_row *row,
		       const struct report_cell *cells, unsigned n)
{
	char time[64], *text = NULL;
	struct csv_where where = csv_where(report, time);
	struct stat st;
	size_t len;
	ssize_t put;
	FILE *out;

	if (report->opts.format == REPORT_CSV)
		csv_row(stdout, row, cells, n, &where, !report->nr_rows);
	if (!report->lines_csv)
		return;
	out = open_memstream(&text, &len);
	if (out)
		csv_row(out, row, cells, n, &where, !fstat(report->lines, &st) && !st.st_size);
	put = !out || fclose(out) ? -1 : write(report->lines, text, len);
	if (put < 0 || put != (ssize_t)len)
		report->lines_err = put < 0 ? errno : ENOSPC;
	free(text);
}

static void report_count(struct report *report, const struct report_row *row)
{
	report->nr_rows++;
	report->checked_b += row->checked_b;
	report->wrong += row->wrong;
	report->unchecked |= !row->checked;
}

void report_row(struct report *report, const struct report_row *row)
{
	struct json_t *doc = row_doc(row);

	pthread_mutex_lock(&report_lock);
	report_progress_end(report);
	if (report->opts.format == REPORT_TABLE)
		row_table(report, row);
	report_csv(report, row, NULL, 0);
	report_line(report, doc);
	report_flush(report);
	report_count(report, row);
	if (report->on_row)
		report->on_row(report->on_row_arg, row);
	js_append(report->results, doc);
	pthread_mutex_unlock(&report_lock);
}

void report_watch(struct report *report, bool mute,
		  void (*on_row)(void *arg, const struct report_row *row), void *arg)
{
	pthread_mutex_lock(&report_lock);
	report_progress_end(report);
	report->on_row = on_row;
	report->on_row_arg = arg;
	if (mute && report->opts.format == REPORT_TABLE)
		report->opts.format = REPORT_NONE;
	pthread_mutex_unlock(&report_lock);
}

static void cells_table(struct report *report, const struct report_row *r,
			const struct report_cell *c, unsigned n)
{
	char b[32], size[32];

	/* Repeat the header when the columns or the section change. */
	if (strcmp(report->op, c[0].key)) {
		snprintf(report->op, sizeof(report->op), "%s", c[0].key);
		printf("# %-14s %12s", "way", "size");
		for (unsigned i = 0; i < n; i++)
			if (c[i].head)
				printf(" %10s", c[i].head);
		printf(" %7s\n", "#wrong");
	}
	snprintf(size, sizeof(size), "%llu", (unsigned long long)r->size_b);
	printf("  %-14s %12s", r->op, size);
	for (unsigned i = 0; i < n; i++)
		if (c[i].head)
			printf(" %10s", c[i].text ? c[i].text : cell(c[i].v, b));
	if (r->checked)
		printf(" %7llu\n", (unsigned long long)r->wrong);
	else
		printf(" %7s\n", "-");
}

void report_cells(struct report *report, const struct report_row *row,
		  const struct report_cell *cells, unsigned n)
{
	struct json_t *doc = js_pack("{s:s, s:I}", "op", row->op, "size_b", (long long)row->size_b);

	for (unsigned i = 0; i < n; i++)
		js_set(doc, cells[i].key,
		       cells[i].text ? js_string(cells[i].text) : js_real(cells[i].v));
	js_set(doc, "checked_b", js_pack("I", (long long)row->checked_b));
	js_set(doc, "wrong", row->checked ? js_pack("I", (long long)row->wrong) : js_string(NULL));
	if (row->interrupted)
		js_set(doc, "interrupted", js_pack("b", 1));
	pthread_mutex_lock(&report_lock);
	report_progress_end(report);
	if (report->opts.format == REPORT_TABLE)
		cells_table(report, row, cells, n);
	report_csv(report, row, cells, n);
	report_line(report, doc);
	report_flush(report);
	report_count(report, row);
	js_append(report->results, doc);
	pthread_mutex_unlock(&report_lock);
}

void report_interval(struct report *report, const struct report_interval *v)
{
	double s = v->to_s - v->from_s, gb_s = (double)v->count * (double)v->size_b / s / 1e9;
	char b[2][32];

	pthread_mutex_lock(&report_lock);
	report_progress_end(report);
	if (report->opts.format == REPORT_TABLE)
		printf("# %7.2f-%-7.2f s %4s %12llu messages %10s GB/s %10s Gb/s\n", v->from_s,
		       v->to_s, v->op, (unsigned long long)v->count, cell(gb_s, b[0]),
		       cell(gb_s * 8, b[1]));
	report_flush(report);
	if (!report->intervals) {
		report->intervals = js_array();
		js_set(report->parts, "intervals", report->intervals);
	}
	js_append(report->intervals,
		  js_pack("{s:s, s:I, s:f, s:f, s:I, s:f}", "op", v->op, "size_b",
			  (long long)v->size_b, "from_s", v->from_s, "to_s", v->to_s, "count",
			  (long long)v->count, "GB_s", gb_s));
	pthread_mutex_unlock(&report_lock);
}

bool report_is_table(const struct report *report)
{
	return report->opts.format == REPORT_TABLE;
}

void report_part(struct report *report, const char *key, struct json_t *part)
{
	pthread_mutex_lock(&report_lock);
	if (part)
		js_set(report->parts, key, part);
	pthread_mutex_unlock(&report_lock);
}

void report_commit(struct report *report, const char *commit)
{
	report->commit = commit;
}

void report_section(struct report *report, const char *fmt, ...)
{
	va_list ap;

	if (report->opts.format != REPORT_TABLE)
		return;
	pthread_mutex_lock(&report_lock);
	report_progress_end(report);
	printf("# ");
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	report->op[0] = '\0'; /* the next row prints its header again */
	report_flush(report);
	pthread_mutex_unlock(&report_lock);
}

void report_stop(struct report *report, int signo)
{
	pthread_mutex_lock(&report_lock);
	report->signo = signo;
	pthread_mutex_unlock(&report_lock);
}

bool report_wrong(const struct report *report)
{
	return report->wrong != 0;
}

static void report_table_end(const struct report *report)
{
	if (report->signo)
		printf("# ended by %s: what stands here is good, the rest was not measured\n",
		       report->signo == SIGINT ? "SIGINT" : "SIGTERM");
	if (!report->nr_rows)
		return;
	if (report->unchecked)
		printf("# payload was NOT checked in every row; ");
	else
		printf("# ");
	printf("checked_b %llu, wrong %llu\n", (unsigned long long)report->checked_b,
	       (unsigned long long)report->wrong);
}

int report_close(struct report *report, int exit_code)
{
	struct json_t *doc;
	int ret = 0;

	pthread_mutex_lock(&report_lock); /* never unlocked: no other thread prints after this */
	report_progress_end(report);
	if (report->opts.format == REPORT_TABLE)
		report_table_end(report);
	doc = report_document(report, exit_code);
	report_lines_close(report);
	js_set(doc, "results", report->results);
	if (report->opts.format == REPORT_JSON)
		ret = doc_write(doc, true, stdout);
	report_flush(report);
	if (report->out_err || ret) {
		fprintf(stderr, "gxperf: the results could not be written: %s\n",
			strerror(report->out_err ? report->out_err : -ret));
		exit_code = exit_code ? exit_code : 1;
	}
	if (report->lines_err) {
		fprintf(stderr, "gxperf: --append %s: %s\n", report->opts.lines_path,
			strerror(report->lines_err));
		exit_code = exit_code ? exit_code : 1;
	}
	ret = report->file.fd >= 0 ? report_file_close(report, doc) : 0;
	if (ret) {
		fprintf(stderr, "gxperf: -J %s: %s\n", report->opts.json_path, strerror(-ret));
		exit_code = exit_code ? exit_code : 1;
	}
	js_free(doc);
	js_free(report->parts);
	/* Another thread may be the one that closes it, while the main thread still looks at it. */
	report_kept = report;
	return exit_code;
}
