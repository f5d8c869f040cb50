// SPDX-License-Identifier: Apache-2.0
/*
 * A document of what /metrics of each process says: {"metric": [{"labels": {...}, "value": 7}]}. Main
 * thread only.
 */
#include "gxd/watch/dump.h"

#include "gxd/watch/expo.h"
#include "gxd/watch/peers.h"

#include "common/help.h"
#include "common/json.h"

#include <gx/gx.h>
#include <gx/log.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DUMP_TEXT_B (256u << 10)

enum { DUMP_OK = 0, DUMP_FAILED = 1, DUMP_USAGE = 2 };
enum { KEY_DIR = 256 };

static const struct argp_option dump_options[] = {
	{"dir", KEY_DIR, "DIR", 0,
	 "Where processes publish; default: GX_RUN_DIR of the environment, or " PEERS_DIR
	 ", or gx in XDG_RUNTIME_DIR where that is missing",
	 0},
	{0},
};

/* A label, or a name: [@room], cut. */
static const char *text_of(struct expo_str s, char *buf, size_t room)
{
	snprintf(buf, room, "%.*s", (int)s.len, s.at);
	return buf;
}

/* Whole numbers as such, as far as JSON's readers take them. */
static struct json_t *value_of(struct expo_str s)
{
	char buf[64];

	text_of(s, buf, sizeof(buf));
	if (strlen(buf) < 19 && strspn(buf, "0123456789") == strlen(buf))
		return js_pack("I", strtoll(buf, NULL, 10));
	return js_real(strtod(buf, NULL));
}

static struct json_t *sample_of(const struct expo_line *l)
{
	struct json_t *labels = js_pack("{}"), *sample = js_pack("{}");
	struct expo_str left = l->labels, name, value;
	char key[EXPO_NAME_MAX], text[256];

	while (expo_label(&left, &name, &value))
		js_set(labels, text_of(name, key, sizeof(key)),
		       js_string(text_of(value, text, sizeof(text))));
	js_set(sample, "labels", labels);
	js_set(sample, "value", value_of(l->value));
	return sample;
}

/* Return: NULL: the text has a line that is not understood. */
static struct json_t *metrics_of(struct expo_str text)
{
	struct json_t *all = js_pack("{}"), *list;
	char name[EXPO_NAME_MAX];
	struct expo_line l;
	int ret;

	while ((ret = expo_next(&text, &l)) > 0) {
		if (l.kind != EXPO_SAMPLE)
			continue;
		text_of(l.name, name, sizeof(name));
		list = js_get(all, name);
		if (!list) {
			js_set(all, name, js_array());
			list = js_get(all, name);
		}
		js_append(list, sample_of(&l));
	}
	if (!ret)
		return all;
	js_free(all);
	return NULL;
}

static struct json_t *process_of(const struct peer *p)
{
	struct json_t *metrics = p->why ? NULL : metrics_of((struct expo_str){p->body, p->len});
	const char *why = p->why ? p->why : metrics ? NULL : "its answer is not understood";
	struct json_t *one =
		js_pack("{s:I, s:I, s:I, s:s}", "pid", (long long)p->pid, "context",
			(long long)p->context, "uid", (long long)p->uid, "name", p->name);

	js_set(one, "why_silent", js_string(why));
	js_set(one, "metrics", metrics ? metrics : js_pack("{}"));
	return one;
}

static int dump_print(const struct peers *all)
{
	struct json_t *doc =
		js_pack("{s:i, s:s, s:I, s:I}", "schema_version", 1, "gx_version", gx_version(),
			"time_s", (long long)time(NULL), "left_out", (long long)all->nr_left_out);
	struct json_t *list = js_array();
	int ret = 0;
	char *text;

	for (unsigned i = 0; i < all->nr; i++)
		js_append(list, process_of(&all->v[i]));
	js_set(doc, "processes", list);
	text = js_print(doc, true);
	js_free(doc);
	if (!text)
		return -ENOMEM;
	errno = 0;
	if (puts(text) < 0 || fflush(stdout))
		ret = errno ? -errno : -EIO;
	free(text);
	return ret;
}

/* Each line of @text, but for counters that are 0. */
static void lines_log(char *text)
{
	char *at, *line;

	for (line = strtok_r(text, "\n", &at); line; line = strtok_r(NULL, "\n", &at)) {
		size_t len = strlen(line);

		if (len < 2 || strcmp(line + len - 2, " 0"))
			gx_log(GX_LOG_INFO, "%s", line);
	}
}

void gxd_dump_log(struct gx *gx)
{
	char *text = malloc(DUMP_TEXT_B);

	if (!text)
		return;
	if (gx_describe(gx, text, DUMP_TEXT_B) >= 0)
		lines_log(text);
	if (gx_stats(gx, false, text, DUMP_TEXT_B) >= 0)
		lines_log(text);
	free(text);
}

static error_t opts_parse(int key, char *arg, struct argp_state *state)
{
	const char **dir = state->input;

	if (key == KEY_DIR) {
		*dir = arg;
		return 0;
	}
	if (key == ARGP_KEY_ARG)
		argp_error(state, "what is '%s'? gxd dump has options only", arg);
	return ARGP_ERR_UNKNOWN;
}

const struct argp gxd_dump_argp = {
	.options = dump_options,
	.parser = opts_parse,
	.children = help_children,
	.doc = "gxd dump prints all that the gx processes of this host publish as JSON: counters, "
	       "connections, operations."
	       "\v  gxd dump\n"
	       "  gxd dump --dir /run/user/1000/gx\n"
	       "Of a process that does not answer, why_silent says why.\n"
	       "Exit status: 0 ok, 1 failed, 2 usage.",
};

int gxd_dump(int argc, char **argv)
{
	const char *dir = peers_dir();
	struct peers all;
	int ret, asked;

	argp_parse(&gxd_dump_argp, argc, argv, ARGP_NO_HELP, NULL, &dir);
	ret = asked = peers_ask(dir, "/metrics", &all);
	if (!ret)
		ret = dump_print(&all);
	if (ret)
		fprintf(stderr, "gxd: %s: %s\n", asked ? dir : "the dump cannot be printed",
			strerror(-ret));
	peers_free(&all);
	return ret ? DUMP_FAILED : DUMP_OK;
}
