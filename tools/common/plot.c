// SPDX-License-Identifier: Apache-2.0
/*
 * Turns result documents into gnuplot scripts (see plot.h).
 */
#include "common/plot.h"

#include "common/json.h"
#include "common/opt.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLOT_LINES_MAX	64
#define PLOT_POINTS_MAX 4096 /* most points of a line */
#define PLOT_NAME_MAX	160
#define PLOT_TICS_MAX	12 /* most sizes named on an axis */
#define PLOT_MARGIN	1.05

struct plot_point {
	double x, y;
};

/* A line of the picture: results of one op, one file and one bound on SMs. */
struct plot_line {
	char file[PLOT_NAME_MAX], op[PLOT_NAME_MAX];
	double sms; /* NAN: unknown */
	unsigned nr_file;
	struct plot_point *point;
	unsigned n;
	bool many;  /* some x has several results */
	bool ratio; /* y is a ratio already */
};

struct plot {
	struct plot_how how;
	const char *y; /* default vertical axis, from the first document */
	struct plot_line line[PLOT_LINES_MAX];
	unsigned n, nr_files;
};

struct plot *plot_open(const struct plot_how *how)
{
	struct plot *p = calloc(1, sizeof(*p));

	if (p)
		p->how = *how;
	return p;
}

void plot_close(struct plot *p)
{
	for (unsigned i = 0; p && i < p->n; i++)
		free(p->line[i].point);
	free(p);
}

static const char *plot_x(const struct plot *p)
{
	return p->how.x ? p->how.x : "size_b";
}

static const char *plot_y(const struct plot *p)
{
	return p->how.y ? p->how.y : p->y ? p->y : "GB_s";
}

/* ---- Documents ---- */

static double row_number(struct json_t *row, const char *key)
{
	struct json_t *v = js_get(row, key);
	char why[64];
	double d;

	return v && !js_unpack(v, why, sizeof(why), "F", &d) && isfinite(d) ? d : NAN;
}

static bool op_wanted(const char *list, const char *op)
{
	size_t len = strlen(op);
	const char *at = list;

	while (at && *at) {
		size_t n = strcspn(at, ",");

		if (n == len && !strncmp(at, op, len))
			return true;
		at += n + (at[n] == ',');
	}
	return !list;
}

/* ---- Documents of tools/bench/bench.py ---- */

/* Find the word of @name that is a size or a number of cores. @op gets @name without it. Return:
 * the result's member for the value @v; NULL: no such word. */
static const char *name_split(const char *name, char op[PLOT_NAME_MAX], uint64_t *v)
{
	char word[32];
	size_t len;

	for (const char *at = name; *at; at += len, at += *at == ',', at += *at == ' ') {
		len = strcspn(at, ", ");
		snprintf(word, sizeof(word), "%.*s", (int)len, at);
		if (at == name || at[-1] != ' ' || len >= sizeof(word) || opt_size(word, v))
			continue;
		/* Drop the blank before the word too. */
		snprintf(op, PLOT_NAME_MAX, "%.*s%s", (int)(at - 1 - name), name, at + len);
		return strncmp(at + len, " cores", 6) ? "size_b" : "cores";
	}
	return NULL;
}

/* Add a result for each of @values. @op: NULL: @name without its size. */
static void bench_add(struct json_t *to, const char *name, const char *op, const char *y,
		      struct json_t *values)
{
	char rest[PLOT_NAME_MAX];
	const char *x;
	uint64_t v;

	x = name_split(name, rest, &v);
	for (size_t i = 0; x && i < js_size(values); i++) {
		struct json_t *row = js_pack("{s:s, s:I, s:O}", "op", op ? op : rest, x,
					     (long long)v, y, js_at(values, i));

		if (row)
			js_append(to, row);
	}
}

static void bench_rows(struct json_t *doc, struct json_t *to)
{
	struct json_t *rows = js_get(doc, "rows");

	for (size_t i = 0; i < js_size(rows); i++) {
		struct json_t *row = js_at(rows, i);
		bool us = !strcmp(js_text(js_get(row, "unit"), ""), "us");

		bench_add(to, js_text(js_get(row, "name"), ""), NULL, us ? "p50_us" : "GB_s",
			  js_get(row, "values"));
	}
}

/* Add the ratios to @rival, under the op that is compared with it; NULL: all ratios, under both
 * ops. */
static void bench_ratios(struct json_t *doc, const char *rival, struct json_t *to)
{
	struct json_t *ratios = js_get(doc, "ratios");
	char gx[PLOT_NAME_MAX], other[PLOT_NAME_MAX], both[2 * PLOT_NAME_MAX + 8];
	uint64_t v;

	for (size_t i = 0; i < js_size(ratios); i++) {
		struct json_t *row = js_at(ratios, i);
		const char *name = js_text(js_get(row, "gx"), ""),
			   *to_name = js_text(js_get(row, "rival"), "");

		if (!name_split(name, gx, &v))
			continue;
		if (!name_split(to_name, other, &v))
			snprintf(other, sizeof(other), "%s", to_name);
		snprintf(both, sizeof(both), "%s / %s", gx, other);
		if (!rival || !strcmp(rival, other))
			bench_add(to, name, rival ? gx : both, "ratio", js_get(row, "values"));
	}
}

/* Its results, in the form of gxperf's; the caller frees them. */
static struct json_t *bench_results(const struct plot *p, struct json_t *doc)
{
	struct json_t *to = js_array();

	if (!p->how.rival)
		bench_rows(doc, to);
	bench_ratios(doc, p->how.rival, to);
	return to;
}

/* ---- Lines ---- */

static struct plot_line *line_find(struct plot *p, unsigned nr_file, const char *op, double sms)
{
	for (unsigned i = 0; i < p->n; i++) {
		struct plot_line *l = &p->line[i];

		if (l->nr_file == nr_file && !strcmp(l->op, op) &&
		    (l->sms == sms || (isnan(l->sms) && isnan(sms))))
			return l;
	}
	return NULL;
}

static struct plot_line *line_add(struct plot *p, const char *file, const char *op, double sms)
{
	struct plot_line *l = &p->line[p->n];

	if (p->n == PLOT_LINES_MAX)
		return NULL;
	l->point = calloc(PLOT_POINTS_MAX, sizeof(*l->point));
	if (!l->point)
		return NULL;
	snprintf(l->file, sizeof(l->file), "%s", file);
	snprintf(l->op, sizeof(l->op), "%s", op);
	l->sms = sms;
	l->nr_file = p->nr_files;
	p->n++;
	return l;
}

/* Add a result to its line. @ratio: the row has a ratio to the rival. */
static int row_add(struct plot *p, struct json_t *row, bool ratio, const char *file, char *why,
		   size_t room)
{
	const char *op = js_text(js_get(row, "op"), NULL);
	double x = row_number(row, plot_x(p)), y = row_number(row, ratio ? "ratio" : plot_y(p));
	double sms = row_number(row, "sms");
	bool rival = op && p->how.rival && !strcmp(op, p->how.rival);
	struct plot_line *l;

	if (!op || isnan(x) || isnan(y) || (!op_wanted(p->how.only, op) && !rival))
		return 0;
	l = line_find(p, p->nr_files, op, sms);
	if (!l)
		l = line_add(p, file, op, sms);
	if (!l || l->n == PLOT_POINTS_MAX) {
		snprintf(why, room, "more than %d lines, or points of one: choose with --only",
			 l ? PLOT_POINTS_MAX : PLOT_LINES_MAX);
		return -EINVAL;
	}
	l->ratio = ratio;
	l->point[l->n++] = (struct plot_point){x, y};
	return 1;
}

static const char *default_y(struct json_t *doc, struct json_t *results)
{
	static const char *const y[] = {"GB_s", "p50_us"};

	if (!strcmp(js_text(js_get(doc, "command"), ""), "overlap"))
		return "slowdown";
	for (unsigned k = 0; k < sizeof(y) / sizeof(y[0]); k++)
		for (size_t i = 0; i < js_size(results); i++)
			if (!isnan(row_number(js_at(results, i), y[k])))
				return y[k];
	return y[0];
}

static int results_add(struct plot *p, struct json_t *results, bool ratio, const char *name,
		       char *why, size_t room)
{
	unsigned nr = 0;
	int ret;

	for (size_t i = 0; i < js_size(results); i++) {
		ret = row_add(p, js_at(results, i), ratio, name, why, room);
		if (ret < 0)
			return ret;
		nr += (unsigned)ret;
	}
	p->nr_files++;
	if (nr)
		return 0;
	snprintf(why, room, "no result with \"%s\" and %s\"%s\"%s%s", plot_x(p),
		 ratio ? "a ratio to " : "", ratio ? p->how.rival : plot_y(p),
		 p->how.only ? " among " : "", p->how.only ? p->how.only : "");
	return -EINVAL;
}

int plot_add(struct plot *p, struct json_t *doc, const char *name, char *why, size_t room)
{
	struct json_t *results = js_get(doc, "results"), *made = NULL;
	int ret;

	if (!results && js_size(js_get(doc, "rows")))
		results = made = bench_results(p, doc);
	if (!made && !js_size(results)) {
		snprintf(why, room,
			 "neither \"results\", as gxperf -J writes them, nor \"rows\" of "
			 "tools/bench/bench.py");
		return -EINVAL;
	}
	if (!p->nr_files)
		p->y = default_y(doc, results);
	ret = results_add(p, results, made && p->how.rival, name, why, room);
	js_free(made);
	return ret;
}

/* ---- Ratios ---- */

static int double_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The median of the rival's results at @x, or NAN. */
static double rival_at(const struct plot *p, unsigned nr_file, double x)
{
	double y[64];
	unsigned n = 0;

	for (unsigned i = 0; i < p->n; i++) {
		const struct plot_line *l = &p->line[i];

		if (l->nr_file != nr_file || strcmp(l->op, p->how.rival))
			continue;
		for (unsigned k = 0; k < l->n && n < 64; k++)
			if (l->point[k].x == x)
				y[n++] = l->point[k].y;
	}
	qsort(y, n, sizeof(*y), double_compare);
	return !n ? NAN : n % 2 ? y[n / 2] : (y[n / 2 - 1] + y[n / 2]) / 2;
}

static bool line_drawn(const struct plot *p, const struct plot_line *l)
{
	return !p->how.rival || strcmp(l->op, p->how.rival);
}

/* ---- The script ---- */

/* gnuplot replaces nothing within single quotes; a quote is doubled. */
static void text_put(FILE *to, const char *text)
{
	fputc('\'', to);
	for (; *text; text++) {
		if (*text == '\'')
			fputc('\'', to);
		fputc((unsigned char)*text < ' ' ? '?' : *text, to);
	}
	fputc('\'', to);
}

static const struct {
	const char *member, *label;
	bool bytes;
} axis_names[] = {
	{"size_b", "bytes", true},
	{"blocks", "thread blocks of the computation", false},
	{"GB_s", "GB/s", false},
	{"p50_us", "microseconds, median", false},
	{"avg_us", "microseconds, mean", false},
	{"p99_us", "microseconds, 99 %", false},
	{"share", "share of the limit", false},
	{"slowdown", "slowdown: time of both / time of the longer alone", false},
	{"keep_comp", "share of its speed alone that the computation keeps", false},
	{"keep_comm", "share of its speed alone that the communication keeps", false},
	{"ratio", "ratio to the rival", false},
	{"cores", "cores a side", false},
	{"sms", "SMs", false},
};

static bool axis_bytes(const char *member)
{
	for (unsigned i = 0; i < sizeof(axis_names) / sizeof(axis_names[0]); i++)
		if (!strcmp(axis_names[i].member, member))
			return axis_names[i].bytes;
	return false;
}

static void axis_put(const struct plot *p, FILE *to, char axis, const char *member)
{
	const char *name = member;
	char text[PLOT_NAME_MAX];

	for (unsigned i = 0; i < sizeof(axis_names) / sizeof(axis_names[0]); i++)
		if (!strcmp(axis_names[i].member, member))
			name = axis_names[i].label;
	snprintf(text, sizeof(text), "%s", name);
	if (axis == 'y' && p->how.rival)
		snprintf(text, sizeof(text), "%.60s, ratio to %.60s", name, p->how.rival);
	fprintf(to, "set %clabel ", axis);
	text_put(to, text);
	fputc('\n', to);
}

static void size_put(FILE *to, double v)
{
	static const char unit[] = " KMGT";
	unsigned u = 0;

	while (u < 4 && v >= 1024 && fmod(v, 1024) == 0) {
		v /= 1024;
		u++;
	}
	if (u)
		fprintf(to, "'%.0f%c'", v, unit[u]);
	else
		fprintf(to, "'%.0f'", v);
}

/* Name the sizes of the points, without those that would touch the one before. */
static void tics_put(const struct plot *p, FILE *to)
{
	double x[PLOT_LINES_MAX * 8], before = 0;
	unsigned n = 0;

	for (unsigned i = 0; i < p->n; i++)
		for (unsigned k = 0; line_drawn(p, &p->line[i]) && k < p->line[i].n; k++)
			if (n < PLOT_LINES_MAX * 8 && p->line[i].point[k].x > 0)
				x[n++] = p->line[i].point[k].x;
	qsort(x, n, sizeof(*x), double_compare);
	fputs("set xtics (", to);
	for (unsigned i = 0; i < n; i++) {
		if (before && log(x[i] / before) < log(x[n - 1] / x[0]) / PLOT_TICS_MAX)
			continue;
		fputs(before ? ", " : "", to);
		size_put(to, x[i]);
		fprintf(to, " %.17g", x[i]);
		before = x[i];
		while (i + 1 < n && x[i + 1] == before)
			i++;
	}
	fputs(") nomirror\n", to);
	/* A little wider: gnuplot does not draw a tic at the very end. */
	if (n)
		fprintf(to, "set xrange [%.9g:%.9g]\n", x[0] / PLOT_MARGIN, x[n - 1] * PLOT_MARGIN);
}

static int point_compare(const void *a, const void *b)
{
	const struct plot_point *p = a, *q = b;

	return p->x != q->x ? (p->x > q->x) - (p->x < q->x) : (p->y > q->y) - (p->y < q->y);
}

/* Sort by x, make ratios if wanted, drop points that the axes cannot show. */
static void line_prepare(const struct plot *p, struct plot_line *l)
{
	unsigned kept = 0;

	qsort(l->point, l->n, sizeof(*l->point), point_compare);
	for (unsigned k = 0; k < l->n; k++) {
		struct plot_point at = l->point[k];

		if (p->how.rival && !l->ratio)
			at.y /= rival_at(p, l->nr_file, at.x);
		if (at.x > 0 && isfinite(at.y) && (at.y > 0 || !p->how.log_y))
			l->point[kept++] = at;
	}
	l->n = kept;
	qsort(l->point, l->n, sizeof(*l->point), point_compare);
}

/* Return: points from @k on with one x. */
static unsigned line_alike(const struct plot_line *l, unsigned k)
{
	unsigned n = 1;

	while (k + n < l->n && l->point[k + n].x == l->point[k].x)
		n++;
	return n;
}

/* The line goes through the medians. If some x has several results, all results are points. */
static void data_put(struct plot_line *l, FILE *to, unsigned i)
{
	fprintf(to, "$line%u << EOD\n", i);
	for (unsigned k = 0, n; k < l->n; k += n) {
		const struct plot_point *at = l->point + k;

		n = line_alike(l, k);
		fprintf(to, "%.17g %.9g\n", at->x, (at[(n - 1) / 2].y + at[n / 2].y) / 2);
		l->many |= n > 1;
	}
	fprintf(to, "EOD\n");
	if (!l->many)
		return;
	fprintf(to, "$all%u << EOD\n", i);
	for (unsigned k = 0; k < l->n; k++)
		fprintf(to, "%.17g %.9g\n", l->point[k].x, l->point[k].y);
	fprintf(to, "EOD\n");
}

/* Does @l's op have lines with other numbers of SMs in its file? */
static bool line_needs_sms(const struct plot *p, const struct plot_line *l)
{
	for (unsigned i = 0; i < p->n; i++)
		if (&p->line[i] != l && p->line[i].nr_file == l->nr_file &&
		    !strcmp(p->line[i].op, l->op))
			return !isnan(l->sms);
	return false;
}

static void line_put(const struct plot *p, FILE *to, unsigned i, unsigned nr)
{
	const struct plot_line *l = &p->line[i];
	char name[2 * PLOT_NAME_MAX + 32], sms[32] = "";

	if (line_needs_sms(p, l))
		snprintf(sms, sizeof(sms), ", %.0f SMs", l->sms);
	if (p->nr_files > 1)
		snprintf(name, sizeof(name), "%s: %s%s", l->file, l->op, sms);
	else
		snprintf(name, sizeof(name), "%s%s", l->op, sms);
	fprintf(to,
		"%s$line%u using 1:2 with linespoints linetype %u linewidth 2 pointtype 7 "
		"pointsize 0.6 title ",
		nr > 1 ? ", \\\n     " : "plot ", i, nr);
	text_put(to, name);
	if (l->many)
		fprintf(to,
			", \\\n     $all%u using 1:2 with points linetype %u pointtype 6 notitle",
			i, nr);
}

static void head_put(const struct plot *p, FILE *to)
{
	fputs("set encoding utf8\nset key outside center bottom horizontal maxcols 3 noenhanced\n"
	      "set grid linetype 1 linewidth 0.5 linecolor rgb '#d8d8d8'\nset border 3\nset tics "
	      "nomirror\n",
	      to);
	if (p->how.title) {
		fputs("set title ", to);
		text_put(to, p->how.title);
		fputs(" noenhanced\n", to);
	}
	axis_put(p, to, 'x', plot_x(p));
	axis_put(p, to, 'y', plot_y(p));
	fputs("set logscale x 2\nset offsets 0, 0, graph 0.05, 0\n", to);
	if (axis_bytes(plot_x(p)))
		tics_put(p, to);
	else
		fputs("set format x '%.0f'\n", to);
	fputs(p->how.log_y ? "set logscale y 10\n" : "set yrange [0:*]\n", to);
}

static unsigned body_put(struct plot *p, FILE *to)
{
	unsigned nr = 0;

	for (unsigned i = 0; i < p->n; i++)
		if (line_drawn(p, &p->line[i]))
			line_prepare(p, &p->line[i]);
	for (unsigned i = 0; i < p->n; i++)
		if (line_drawn(p, &p->line[i]) && p->line[i].n)
			data_put(&p->line[i], to, i);
	for (unsigned i = 0; i < p->n; i++)
		if (line_drawn(p, &p->line[i]) && p->line[i].n)
			line_put(p, to, i, ++nr);
	return nr;
}

char *plot_script(struct plot *p, const char *svg, const char *png, char *why, size_t room)
{
	char *text = NULL;
	size_t len = 0;
	FILE *to = open_memstream(&text, &len);
	unsigned nr;

	if (!to) {
		snprintf(why, room, "no memory");
		return NULL;
	}
	fputs("set terminal svg size 900,540 noenhanced font 'sans-serif,13' background rgb "
	      "'white'\n"
	      "set output ",
	      to);
	text_put(to, svg);
	fputc('\n', to);
	head_put(p, to);
	nr = body_put(p, to);
	fputs("\nset terminal pngcairo size 1350,810 noenhanced font 'sans-serif,16' background "
	      "rgb "
	      "'white'\nset output ",
	      to);
	text_put(to, png);
	fputs("\nreplot\nset output\n", to);
	if (fclose(to) || !nr) {
		free(text);
		snprintf(why, room, "nothing to draw%s%s",
			 p->how.rival ? ": no result beside " : "",
			 p->how.rival ? p->how.rival : "");
		return NULL;
	}
	return text;
}
