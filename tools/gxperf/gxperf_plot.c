// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf plot: pictures of result documents, SVG and PNG. A gnuplot child process draws them. Main
 * thread only.
 */
#include "common/child.h"
#include "common/json.h"
#include "common/opt_argp.h"
#include "gxperf/gxperf_plot.h"
#include "common/plot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PLOT_FILES_MAX 32
#define PLOT_FILE_B    ((off_t)64 << 20)
#define PLOT_PATH_MAX  4096

static struct {
	struct plot_how how;
	const char *out;
	bool force;
	const char *file[PLOT_FILES_MAX];
	unsigned nr_files;
} opts;

enum { KEY_OUT = 700, KEY_FORCE, KEY_X, KEY_Y, KEY_RIVAL, KEY_ONLY, KEY_TITLE, KEY_LOG_Y };

static const struct argp_option plot_options[] = {
	{"out", KEY_OUT, "PATH", 0,
	 "Write PATH.svg and PATH.png; default: the first FILE without .json", 1},
	{"force", KEY_FORCE, NULL, 0, "They may exist", 1},
	{"x", KEY_X, "MEMBER", 0, "Horizontal axis: size_b (default), blocks, cores, ...", 1},
	{"y", KEY_Y, "MEMBER", 0,
	 "Vertical axis: GB_s, p50_us (default: what there is), slowdown (default for overlap), "
	 "share, ratio, ...",
	 1},
	{"rival", KEY_RIVAL, "OP", 0,
	 "Ratios to the results of this op in the same file; of tools/bench/bench.py: its ratios, round "
	 "by round",
	 1},
	{"only", KEY_ONLY, "OP,...", 0, "Only these ops", 1},
	{"title", KEY_TITLE, "TEXT", 0, "Above the picture", 1},
	{"log-y", KEY_LOG_Y, NULL, 0, "Logarithmic vertical axis", 1},
	{0},
};

static const struct opt_value plot_values[] = {
	{KEY_OUT, OPT_TEXT, &opts.out},
	{KEY_FORCE, OPT_FLAG, &opts.force},
	{KEY_X, OPT_TEXT, &opts.how.x},
	{KEY_Y, OPT_TEXT, &opts.how.y},
	{KEY_RIVAL, OPT_TEXT, &opts.how.rival},
	{KEY_ONLY, OPT_TEXT, &opts.how.only},
	{KEY_TITLE, OPT_TEXT, &opts.how.title},
	{KEY_LOG_Y, OPT_FLAG, &opts.how.log_y},
	{0},
};

static error_t plot_parse(int key, char *arg, struct argp_state *state)
{
	if (key == ARGP_KEY_NO_ARGS)
		argp_error(state,
			   "which file? One that gxperf -J or tools/bench/bench.py -J has written");
	if (key != ARGP_KEY_ARG)
		return opt_parse(plot_options, plot_values, key, arg, state);
	if (opts.nr_files == PLOT_FILES_MAX)
		argp_error(state, "more than %d files", PLOT_FILES_MAX);
	opts.file[opts.nr_files++] = arg;
	return 0;
}

const struct argp perf_plot_argp = {.options = plot_options, .parser = plot_parse};

/* ---- Files ---- */

static char *file_read(const char *path, size_t *len)
{
	FILE *f = fopen(path, "re");
	struct stat st;
	char *text;

	if (!f)
		return NULL;
	if (fstat(fileno(f), &st) || !S_ISREG(st.st_mode) || st.st_size > PLOT_FILE_B) {
		errno = errno ? errno : EFBIG;
		fclose(f);
		return NULL;
	}
	text = malloc((size_t)st.st_size + 1);
	*len = text ? fread(text, 1, (size_t)st.st_size, f) : 0;
	fclose(f);
	return text;
}

/* "gpu-unpack" of "folder/gpu-unpack.json". */
static void file_stem(const char *path, bool folder, char *buf, size_t room)
{
	const char *slash = strrchr(path, '/');
	size_t len;

	snprintf(buf, room, "%s", slash && !folder ? slash + 1 : path);
	len = strlen(buf);
	if (len > 5 && !strcmp(buf + len - 5, ".json"))
		buf[len - 5] = '\0';
}

/* Parse the output of --format jsonl or --append: one result in each line. */
static struct json_t *lines_parse(char *text)
{
	struct json_t *results = js_array(), *doc = js_pack("{}");
	char *save = NULL, why[256];

	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		struct json_t *one = js_parse(line, strlen(line), why, sizeof(why));

		if (!one || (!js_get(one, "op") && !js_get(one, "command"))) {
			js_free(doc);
			js_free(one);
			js_free(results);
			return NULL;
		}
		js_set(doc, "command", js_string(js_text(js_get(one, "command"), "gxperf")));
		/* In older files the last line is the document without its results. */
		if (js_get(one, "op"))
			js_append(results, one);
		else
			js_free(one);
	}
	js_set(doc, "results", results);
	return doc;
}

static int file_add(struct plot *p, const char *path, struct report *report)
{
	char name[256], why[256] = "";
	struct json_t *doc;
	size_t len = 0;
	char *text;
	int ret;

	errno = 0;
	text = file_read(path, &len);
	if (!text) {
		report_error(report, "%s: %s", path,
			     errno ? strerror(errno) : "not a file of 64M or less");
		return PERF_FAILED;
	}
	doc = js_parse(text, len, why, sizeof(why));
	text[len] = '\0';
	if (!doc)
		doc = lines_parse(text);
	free(text);
	file_stem(path, false, name, sizeof(name));
	ret = doc ? plot_add(p, doc, name, why, sizeof(why)) : -EINVAL;
	js_free(doc);
	if (ret)
		report_error(report, "%s: %s", path, why[0] ? why : strerror(-ret));
	return ret ? PERF_FAILED : PERF_OK;
}

/* ---- gnuplot ---- */

static int gnuplot_run(const char *script, struct report *report)
{
	static char *const argv[] = {(char *)"gnuplot", NULL};
	struct child child = CHILD_NONE;
	size_t len = strlen(script);
	int ends[2], status, ret;
	bool wrote;
	FILE *to;

	if (pipe2(ends, O_CLOEXEC)) {
		report_error(report, "gnuplot: %s", strerror(errno));
		return PERF_FAILED;
	}
	ret = child_start(&child, argv[0], argv, ends[0], false);
	close(ends[0]);
	to = fdopen(ends[1], "w");
	wrote = to && !ret && fwrite(script, 1, len, to) == len;
	wrote = (to ? !fclose(to) : !close(ends[1])) && wrote;
	status = ret ? 0 : child_end(&child, UINT64_MAX / 2);
	if (ret)
		report_error(report, "gnuplot: %s", strerror(-ret));
	else if (status == CHILD_NOT_RUN)
		report_error(report,
			     "gnuplot does not run; install it: apt-get install gnuplot-nox");
	else if (status > CHILD_SIGNAL)
		report_error(report, "gnuplot was ended by signal %d", status - CHILD_SIGNAL);
	else if (status || !wrote)
		report_error(report, "gnuplot failed with status %d; its message is above", status);
	return ret || status || !wrote ? PERF_FAILED : PERF_OK;
}

/* ---- Pictures ---- */

enum { PICTURE_SVG, PICTURE_PNG, PICTURES };

struct pictures {
	char path[PICTURES][PLOT_PATH_MAX];
	char part[PICTURES][PLOT_PATH_MAX]; /* gnuplot writes it; renamed when it is good */
};

static int pictures_name(struct pictures *pic, struct report *report)
{
	static const char *const suffix[] = {"svg", "png"};
	char base[PLOT_PATH_MAX - 64];

	if (strlen(opts.out ? opts.out : opts.file[0]) >= sizeof(base)) {
		report_error(report, "--out: a path of %zu bytes at most", sizeof(base) - 1);
		return PERF_USAGE;
	}
	if (opts.out)
		snprintf(base, sizeof(base), "%s", opts.out);
	else
		file_stem(opts.file[0], true, base, sizeof(base));
	for (unsigned i = 0; i < PICTURES; i++) {
		snprintf(pic->path[i], PLOT_PATH_MAX, "%s.%s", base, suffix[i]);
		snprintf(pic->part[i], PLOT_PATH_MAX, "%s.%s.%d.part", base, suffix[i],
			 (int)getpid());
		if (opts.force || access(pic->path[i], F_OK))
			continue;
		report_error(report,
			     "%s is there; give another name with --out, or --force to replace it",
			     pic->path[i]);
		return PERF_FAILED;
	}
	return PERF_OK;
}

static int pictures_finish(struct pictures *pic, int ret, struct report *report)
{
	struct stat st;

	for (unsigned i = 0; i < PICTURES && !ret; i++)
		if (stat(pic->part[i], &st) || !st.st_size || rename(pic->part[i], pic->path[i])) {
			report_error(report, "%s: gnuplot did not write it (%s)", pic->path[i],
				     strerror(errno));
			ret = PERF_FAILED;
		}
	for (unsigned i = 0; i < PICTURES; i++) {
		unlink(pic->part[i]);
		if (!ret)
			printf("%s\n", pic->path[i]);
	}
	return ret;
}

static int plot_draw(struct plot *p, struct report *report)
{
	static struct pictures pic;
	int ret = pictures_name(&pic, report);
	char why[256] = "", *script;

	if (ret)
		return ret;
	script = plot_script(p, pic.part[PICTURE_SVG], pic.part[PICTURE_PNG], why, sizeof(why));
	if (!script) {
		report_error(report, "%s", why);
		return PERF_FAILED;
	}
	ret = pictures_finish(&pic, gnuplot_run(script, report), report);
	free(script);
	return ret;
}

int perf_plot(const struct perf_opts *unused, struct report *report)
{
	struct plot *p = plot_open(&opts.how);
	int ret = p ? PERF_OK : PERF_FAILED;

	for (unsigned i = 0; i < opts.nr_files && !ret; i++)
		ret = file_add(p, opts.file[i], report);
	if (!ret)
		ret = plot_draw(p, report);
	plot_close(p);
	return ret;
}
