// SPDX-License-Identifier: Apache-2.0
/*
 * Results of gxperf (see out.h). The JSON document is kept while the program runs and printed at
 * the end; tables, CSV and JSON lines are printed row by row.
 */
#include "common/report.h"

#include "common/json.h"
#include "common/newfile.h"

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

#define OUT_TEXT_MAX 1024
#define OUT_SMALL    0.001	   /* below it five digits behind the point are too few */
#define OUT_TELL_NS  5000000000ull /* between two lines of progress where there is no terminal */

/* Held while anything is printed or added to a document; by out_close() for good. */
static pthread_mutex_t out_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct out *out_kept; /* closed, and not freed before the next one */

struct out {
	struct out_opts opts;
	struct newfile file;  /* of -J, or none */
	int lines;	      /* of --append, or -1 */
	struct json_t *parts; /* of the document, beside the results */
	const char *commit;
	int lines_err; /* of the last line that could not be added, or 0 */
	char host[65];
	struct json_t *path, *results, *errors;
	char op[16];	    /* of the table's last header */
	uint64_t checked_b; /* sums, for the table's last line */
	uint64_t wrong;
	unsigned nr_rows;
	bool unchecked; /* some row was not checked */
	int signo;	/* what ended the program, or 0 */
	struct out_row last;
	bool terminal;	  /* stderr is one */
	bool progress;	  /* a progress line stands there */
	uint64_t told_ns; /* of the last progress, or of the start */
};

int out_format_parse(const char *text, enum out_format *out)
{
	static const char *const names[] = {"table", "csv", "json", "jsonl"};

	for (unsigned i = 0; i < 4; i++) {
		if (!strcmp(text, names[i])) {
			*out = (enum out_format)i;
			return 0;
		}
	}
	return -EINVAL;
}

/* Now, so that a place where nothing can be written is known before anything is measured. */
static int out_file_open(struct out *out)
{
	const char *path = out->opts.json_path;
	int ret = newfile_open(&out->file, path, out->opts.force);

	if (ret)
		fprintf(stderr, "gxperf: -J %s: %s%s\n", path, strerror(-ret),
			ret == -EEXIST ? "; give another name, or --force to replace it" : "");
	return ret;
}

static int out_file_close(struct out *out, struct json_t *doc)
{
	char *text = js_print(doc, true);
	int ret = text ? newfile_write(&out->file, text, strlen(text)) : -ENOMEM;

	free(text);
	if (!ret)
		ret = newfile_write(&out->file, "\n", 1);
	if (!ret)
		return newfile_keep(&out->file);
	newfile_drop(&out->file);
	return ret;
}

static int out_lines_open(struct out *out)
{
	const char *path = out->opts.lines_path;

	out->lines = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	if (out->lines >= 0)
		return 0;
	fprintf(stderr, "gxperf: --append %s: %s\n", path, strerror(errno));
	return -errno;
}

/* Nothing is left of one to which nothing was added. */
static void out_lines_close(struct out *out)
{
	struct stat st;

	if (out->lines < 0)
		return;
	if (!fstat(out->lines, &st) && S_ISREG(st.st_mode) && !st.st_size)
		unlink(out->opts.lines_path);
	close(out->lines);
	out->lines = -1;
}

int out_open(const struct out_opts *opts, struct out **out)
{
	struct out *o = calloc(1, sizeof(*o));
	struct utsname u;
	int ret;

	if (!o)
		return -ENOMEM;
	free(out_kept);
	out_kept = NULL;
	o->opts = *opts;
	o->file.fd = o->lines = -1;
	o->terminal = isatty(STDERR_FILENO);
	o->told_ns = gx_now();
	if (!uname(&u))
		snprintf(o->host, sizeof(o->host), "%s", u.nodename);
	ret = opts->lines_path ? out_lines_open(o) : 0;
	if (!ret && opts->json_path)
		ret = out_file_open(o);
	if (ret) {
		out_lines_close(o);
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

static void out_progress_end(struct out *out)
{
	if (out->progress)
		fputs("\r\033[K", stderr);
	out->progress = false;
}

void out_error(struct out *out, const char *fmt, ...)
{
	char text[OUT_TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	pthread_mutex_lock(&out_lock);
	out_progress_end(out);
	fprintf(stderr, "gxperf: %s\n", text);
	js_append(out->errors, js_string(text));
	pthread_mutex_unlock(&out_lock);
}

void out_note(struct out *out, const char *fmt, ...)
{
	va_list ap;

	pthread_mutex_lock(&out_lock);
	out_progress_end(out);
	fputs("gxperf: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	pthread_mutex_unlock(&out_lock);
}

void out_progress(struct out *out, const char *fmt, ...)
{
	uint64_t now = gx_now();
	va_list ap;

	if (!out->terminal && now - out->told_ns < OUT_TELL_NS)
		return;
	pthread_mutex_lock(&out_lock);
	out->told_ns = now;
	out_progress_end(out);
	fputs(out->terminal ? "\r" : "gxperf: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	if (!out->terminal)
		fputc('\n', stderr);
	fflush(stderr);
	out->progress = out->terminal;
	pthread_mutex_unlock(&out_lock);
}

/* ---- JSON ---- */

void out_path(struct out *out, const struct out_path *p)
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
	js_set(path, "check", js_string(p->check));
	js_set(path, "quantum",
	       p->quantum_b < 0 ? js_string(NULL) : js_pack("I", (long long)p->quantum_b));
	js_set(path, "cores", js_string(p->cores));
	js_set(path, "why", js_string(p->why));
	pthread_mutex_lock(&out_lock);
	js_free(out->path);
	out->path = path;
	if (out->opts.format == OUT_TABLE)
		printf("# link %s, port %s, memory there %s, bounce pool %s, unpack %s, engine %s, "
		       "integrity "
		       "%s, "
		       "check "
		       "%s, quantum %lld, CPUs here %s, control %s\n# why: %s\n",
		       p->link, p->port, p->gpu, p->bounce ? p->bounce : "none", p->unpack,
		       p->engine ? p->engine : "none", p->integrity, p->check,
		       (long long)p->quantum_b, p->cores, p->control, p->why);
	fflush(stdout); /* whoever reads along knows the way before the first row */
	pthread_mutex_unlock(&out_lock);
}

static struct json_t *row_doc(const struct out_row *r)
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
	js_set(row, "lost", r->pkts ? js_pack("I", (long long)r->lost) : js_string(NULL));
	js_set(row, "resent", r->pkts ? js_pack("I", (long long)r->resent) : js_string(NULL));
	js_set(row, "duplicate", r->pkts ? js_pack("I", (long long)r->dup) : js_string(NULL));
	if (r->depth)
		js_set(row, "depth", js_pack("i", (int)r->depth));
	if (r->interrupted)
		js_set(row, "interrupted", js_pack("b", 1));
	return row;
}

/* The value behind "@key :" in a file such as /proc/cpuinfo or /proc/meminfo. */
static void out_proc_value(const char *path, const char *key, char *buf, size_t room)
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

static void out_time(char *buf, size_t room)
{
	time_t now = time(NULL);
	struct tm tm;

	if (!gmtime_r(&now, &tm) || !strftime(buf, room, "%Y-%m-%dT%H:%M:%SZ", &tm))
		snprintf(buf, room, "unknown");
}

static struct json_t *out_env(const struct out *out)
{
	struct json_t *env = js_pack("{}"), *args = js_array();
	char text[128];
	struct utsname u;

	js_set(env, "gx", js_string(gx_version()));
	js_set(env, "commit", js_string(out->commit));
	if (!uname(&u)) {
		js_set(env, "host", js_string(u.nodename));
		js_set(env, "kernel", js_string(u.release));
		js_set(env, "machine", js_string(u.machine));
	}
	out_proc_value("/proc/cpuinfo", "model name", text, sizeof(text));
	js_set(env, "cpu", js_string(text));
	js_set(env, "nr_cpus", js_pack("i", (int)sysconf(_SC_NPROCESSORS_ONLN)));
	out_proc_value("/proc/meminfo", "HugePages_Free", text, sizeof(text));
	js_set(env, "hugepages_free", js_string(text));
	out_time(text, sizeof(text));
	js_set(env, "time", js_string(text));
	for (int i = 0; i < out->opts.argc; i++)
		js_append(args, js_string(out->opts.argv[i]));
	js_set(env, "args", args);
	return env;
}

/* All but the results; takes path and errors out of @out. */
static struct json_t *out_document(struct out *out, int exit_code)
{
	struct json_t *doc = js_pack("{s:i, s:s}", "schema_version", OUT_SCHEMA_VERSION, "command",
				     out->opts.command);

	js_set(doc, "env", out_env(out));
	js_set(doc, "path", out->path);
	js_merge(doc, out->parts);
	js_set(doc, "errors", out->errors);
	js_set(doc, "interrupted", js_pack("b", out->signo != 0));
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

/* A result that stands alone: with where, when and how it was measured. All have the same members
 * before its own. */
static void out_line(struct out *out, struct json_t *row)
{
	struct json_t *line = js_pack("{}");
	char time_text[64], *text;
	size_t len;
	ssize_t n;

	if (out->lines < 0 && out->opts.format != OUT_JSONL)
		goto end;
	out_time(time_text, sizeof(time_text));
	js_set(line, "env", out_env(out));
	js_set(line, "path", js_share(out->path));
	js_set(line, "command", js_string(out->opts.command));
	js_set(line, "time", js_string(time_text));
	js_set(line, "host", js_string(out->host));
	js_set(line, "link", js_string(js_text(js_get(out->path, "link"), NULL)));
	js_set(line, "port", js_string(js_text(js_get(out->path, "port"), NULL)));
	js_merge(line, row);
	if (out->opts.format == OUT_JSONL)
		doc_write(line, false, stdout);
	text = out->lines >= 0 ? js_print(line, false) : NULL;
	len = text ? strlen(text) : 0;
	/* One call, so that lines of several programs do not mix. */
	if (text)
		text[len] = '\n';
	n = text ? write(out->lines, text, len + 1) : 0;
	if (out->lines >= 0 &&
	    n != (ssize_t)len + 1) /* a part of it is in: then there is no room */
		out->lines_err = !text ? ENOMEM : n < 0 ? errno : ENOSPC;
	free(text);
end:
	js_free(line);
}

/* ---- Rows ---- */

/* Three digits or more that count, also of what is little. */
static const char *cell(double v, char buf[32])
{
	int digits = v < 0.01 ? 5 : v < 1 ? 4 : v < 10 ? 3 : v < 1000 ? 2 : 1;

	if (!isfinite(v))
		snprintf(buf, 32, "-");
	else if (v > 0 && v < OUT_SMALL)
		snprintf(buf, 32, "%.2e", v);
	else
		snprintf(buf, 32, "%.*f", digits, v);
	return buf;
}

static void row_table(struct out *out, const struct out_row *r)
{
	char b[6][32], wrong[32] = "-", sms[16] = "-", cpu[16] = "-";
	int name = (int)strlen(r->op);

	if (strcmp(out->op, r->op)) {
		snprintf(out->op, sizeof(out->op), "%s", r->op);
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
	if (r->resent || r->dup)
		printf("# packets: %llu lost, %llu sent again, %llu came twice\n",
		       (unsigned long long)r->lost, (unsigned long long)r->resent,
		       (unsigned long long)r->dup);
	if (r->sha256)
		printf("# sha256 %s\n", r->sha256);
}

/* In quotes where it must be. */
static void csv_text(const char *text)
{
	bool plain = !text[strcspn(text, ",\"\n")];

	putchar(',');
	if (!plain)
		putchar('"');
	for (; *text; text++) {
		if (*text == '"')
			putchar('"');
		putchar(*text);
	}
	if (!plain)
		putchar('"');
}

/* What a row needs to be understood beside those of other runs. */
static void csv_where(const struct out *out)
{
	char text[64];

	csv_text(js_text(js_get(out->path, "link"), ""));
	csv_text(js_text(js_get(out->path, "port"), ""));
	out_time(text, sizeof(text));
	csv_text(text);
	csv_text(out->host);
	putchar('\n');
}

static void csv_cell(double v)
{
	if (isfinite(v))
		printf(",%.6g", v);
	else
		printf(",");
}

static void row_csv(struct out *out, const struct out_row *r)
{
	if (!out->nr_rows)
		printf("op,size_b,count,p50_us,avg_us,p99_us,p999_us,GB_s,Gb_s,cpu_pct,sms,wrong,"
		       "checked_b,sha256%s,depth,lost,resent,duplicate,link,port,time,host\n",
		       r->bus ? ",bus_GB_s" : "");
	printf("%s,%llu,%llu", r->op, (unsigned long long)r->size_b, (unsigned long long)r->count);
	csv_cell(r->p50_us);
	csv_cell(r->avg_us);
	csv_cell(r->p99_us);
	csv_cell(r->p999_us);
	csv_cell(r->gb_s);
	csv_cell(r->gb_s * 8);
	csv_cell(r->cpu_pct);
	csv_cell(r->sms < 0 ? NAN : r->sms);
	csv_cell(r->checked ? (double)r->wrong : NAN);
	printf(",%llu,%s", (unsigned long long)r->checked_b, r->sha256 ? r->sha256 : "");
	if (r->bus)
		csv_cell(r->bus_gb_s);
	csv_cell(r->depth ? r->depth : NAN);
	csv_cell(r->pkts ? (double)r->lost : NAN);
	csv_cell(r->pkts ? (double)r->resent : NAN);
	csv_cell(r->pkts ? (double)r->dup : NAN);
	csv_where(out);
}

static void out_count(struct out *out, const struct out_row *row)
{
	out->nr_rows++;
	out->last = *row;
	out->last.sha256 = NULL;
	out->checked_b += row->checked_b;
	out->wrong += row->wrong;
	out->unchecked |= !row->checked;
}

void out_row(struct out *out, const struct out_row *row)
{
	struct json_t *doc = row_doc(row);

	pthread_mutex_lock(&out_lock);
	out_progress_end(out);
	if (out->opts.format == OUT_TABLE)
		row_table(out, row);
	else if (out->opts.format == OUT_CSV)
		row_csv(out, row);
	out_line(out, doc);
	fflush(stdout);
	out_count(out, row);
	js_append(out->results, doc);
	pthread_mutex_unlock(&out_lock);
}

const struct out_row *out_last(const struct out *out)
{
	return out->nr_rows ? &out->last : NULL;
}

static void cells_table(struct out *out, const struct out_row *r, const struct out_cell *c,
			unsigned n)
{
	char b[32], size[32];

	/* The header again when the columns or the section are others. */
	if (strcmp(out->op, c[0].key)) {
		snprintf(out->op, sizeof(out->op), "%s", c[0].key);
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

static void cells_csv(struct out *out, const struct out_row *r, const struct out_cell *c,
		      unsigned n)
{
	if (!out->nr_rows) {
		printf("op,size_b");
		for (unsigned i = 0; i < n; i++)
			printf(",%s", c[i].key);
		printf(",checked_b,wrong,path_link,path_port,time,host\n");
	}
	printf("%s,%llu", r->op, (unsigned long long)r->size_b);
	for (unsigned i = 0; i < n; i++) {
		if (c[i].text)
			csv_text(c[i].text);
		else
			csv_cell(c[i].v);
	}
	printf(",%llu", (unsigned long long)r->checked_b);
	csv_cell(r->checked ? (double)r->wrong : NAN);
	csv_where(out);
}

void out_cells(struct out *out, const struct out_row *row, const struct out_cell *cells, unsigned n)
{
	struct json_t *doc = js_pack("{s:s, s:I}", "op", row->op, "size_b", (long long)row->size_b);

	for (unsigned i = 0; i < n; i++)
		js_set(doc, cells[i].key,
		       cells[i].text ? js_string(cells[i].text) : js_real(cells[i].v));
	js_set(doc, "checked_b", js_pack("I", (long long)row->checked_b));
	js_set(doc, "wrong", row->checked ? js_pack("I", (long long)row->wrong) : js_string(NULL));
	pthread_mutex_lock(&out_lock);
	out_progress_end(out);
	if (out->opts.format == OUT_TABLE)
		cells_table(out, row, cells, n);
	else if (out->opts.format == OUT_CSV)
		cells_csv(out, row, cells, n);
	out_line(out, doc);
	fflush(stdout);
	out_count(out, row);
	js_append(out->results, doc);
	pthread_mutex_unlock(&out_lock);
}

bool out_is_table(const struct out *out)
{
	return out->opts.format == OUT_TABLE;
}

void out_part(struct out *out, const char *key, struct json_t *part)
{
	pthread_mutex_lock(&out_lock);
	if (part)
		js_set(out->parts, key, part);
	pthread_mutex_unlock(&out_lock);
}

void out_commit(struct out *out, const char *commit)
{
	out->commit = commit;
}

void out_section(struct out *out, const char *fmt, ...)
{
	va_list ap;

	if (out->opts.format != OUT_TABLE)
		return;
	pthread_mutex_lock(&out_lock);
	out_progress_end(out);
	printf("# ");
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	out->op[0] = '\0'; /* the next row has its header again */
	fflush(stdout);
	pthread_mutex_unlock(&out_lock);
}

void out_stop(struct out *out, int signo)
{
	pthread_mutex_lock(&out_lock);
	out->signo = signo;
	pthread_mutex_unlock(&out_lock);
}

bool out_wrong(const struct out *out)
{
	return out->wrong != 0;
}

static void out_table_end(const struct out *out)
{
	if (out->signo)
		printf("# ended by %s: what stands here is good, the rest was not measured\n",
		       out->signo == SIGINT ? "SIGINT" : "SIGTERM");
	if (!out->nr_rows)
		return;
	if (out->unchecked)
		printf("# payload was NOT checked in every row; ");
	else
		printf("# ");
	printf("checked_b %llu, wrong %llu\n", (unsigned long long)out->checked_b,
	       (unsigned long long)out->wrong);
}

int out_close(struct out *out, int exit_code)
{
	struct json_t *doc;
	int ret = 0;

	pthread_mutex_lock(&out_lock); /* for good: nobody else prints after this */
	out_progress_end(out);
	if (out->opts.format == OUT_TABLE)
		out_table_end(out);
	doc = out_document(out, exit_code);
	out_lines_close(out);
	js_set(doc, "results", out->results);
	if (out->opts.format == OUT_JSON)
		ret = doc_write(doc, true, stdout);
	if (fflush(stdout) || ret) {
		fprintf(stderr, "gxperf: the results could not be written: %s\n", strerror(errno));
		exit_code = exit_code ? exit_code : 1;
	}
	if (out->lines_err) {
		fprintf(stderr, "gxperf: --append %s: %s\n", out->opts.lines_path,
			strerror(out->lines_err));
		exit_code = exit_code ? exit_code : 1;
	}
	ret = out->file.fd >= 0 ? out_file_close(out, doc) : 0;
	if (ret) {
		fprintf(stderr, "gxperf: -J %s: %s\n", out->opts.json_path, strerror(-ret));
		exit_code = exit_code ? exit_code : 1;
	}
	js_free(doc);
	js_free(out->parts);
	/* Another thread may have closed it under the main thread, which then still looks at it. */
	out_kept = out;
	return exit_code;
}
