// SPDX-License-Identifier: Apache-2.0
/* Help texts; see help.h. Main thread, before the program opens anything. */
#include "common/help.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_HELP_ALL  1100
#define KEY_USAGE     1101
#define HELP_CHILDREN 16
#define HELP_ROOM     65536

static const struct argp_option help_options[] = {
	{"help", 'h', NULL, 0, "Print a short help, with examples", -1},
	{NULL, '?', NULL, OPTION_HIDDEN, NULL, -1},
	{"help-all", KEY_HELP_ALL, NULL, 0, "Print all options", -1},
	{"usage", KEY_USAGE, NULL, OPT_MORE, "Print a line of usage", -1},
	{"version", 'V', NULL, OPT_MORE, "Print version, commit and parts", -1},
	{0},
};

enum help_lines { HELP_EXAMPLES, HELP_LISTS, HELP_REST };

static enum help_lines help_line(const char *line)
{
	if (!strncmp(line, "  gx", 4))
		return HELP_EXAMPLES;
	return !strncmp(line, "  ", 2) || !strncmp(line, "Exit status:", 12) ? HELP_LISTS
									     : HELP_REST;
}

/* Room for copies of one command's tables and texts. */
static void *help_alloc(size_t size)
{
	static _Alignas(16) char room[HELP_ROOM];
	static size_t used;
	char *at = room + used;

	used += (size + 15) & ~(size_t)15;
	assert(used <= sizeof(room));
	return at;
}

/* The lines behind @doc's vertical tab that are of kinds @from to @to. */
static char *help_lines(const char *doc, enum help_lines from, enum help_lines to)
{
	const char *line = strchr(doc, '\v'), *next;
	char *text = help_alloc(strlen(doc) + 1);

	for (line = line ? line + 1 : ""; *line; line = next) {
		enum help_lines kind = help_line(line);

		next = line + strcspn(line, "\n");
		next += *next == '\n';
		if (kind >= from && kind <= to)
			strncat(text, line, (size_t)(next - line));
	}
	return text;
}

/* Its first sentence. */
static const char *help_brief(const char *doc)
{
	char *text = strcpy(help_alloc(strlen(doc) + 1), doc);

	for (char *c = text; *c; c++)
		if (*c == ';' || (*c == '.' && c[1] == ' ' && c[2] >= 'A' && c[2] <= 'Z'))
			*c = '\0';
	return text;
}

static struct argp_option *help_options_short(const struct argp_option *all)
{
	struct argp_option *made;
	size_t n = 0;

	while (all[n].name || all[n].key || all[n].doc)
		n++;
	made = help_alloc((n + 1) * sizeof(*made));
	for (size_t i = 0; i < n; i++) {
		made[i] = all[i];
		if (made[i].flags & OPT_MORE)
			made[i].flags |= OPTION_HIDDEN;
		else if ((made[i].name || made[i].key) && made[i].doc)
			made[i].doc = help_brief(made[i].doc);
	}
	return made;
}

/* @argp with its children, two deep, and @brief: without the options that --help leaves out.
 * NOLINTNEXTLINE(misc-no-recursion): as deep as @depth */
static void help_copy(const struct argp *argp, bool brief, unsigned depth, struct argp *out)
{
	struct argp_child *made = help_alloc((HELP_CHILDREN + 1) * sizeof(*made));
	const struct argp_child *c = argp->children;

	*out = *argp;
	if (brief && argp->options)
		out->options = help_options_short(argp->options);
	for (unsigned i = 0; c && c[i].argp && i < HELP_CHILDREN && depth; i++) {
		struct argp *one = help_alloc(sizeof(*one));

		help_copy(c[i].argp, brief, depth - 1, one);
		made[i] = c[i];
		made[i].argp = one;
	}
	out->children = made;
}

static void help_print(const struct argp_state *state, bool brief)
{
	const char *doc = state->root_argp->doc ? state->root_argp->doc : "";
	size_t room = strlen(doc) + 8;
	char name[64], *text;
	struct argp argp;

	snprintf(name, sizeof(name), "%s", state->name);
	help_copy(state->root_argp, brief, 2, &argp);
	text = help_alloc(room);
	snprintf(text, room, "%.*s\n\n%s\v%s", (int)strcspn(doc, "\v"), doc,
		 help_lines(doc, HELP_EXAMPLES, HELP_EXAMPLES),
		 help_lines(doc, HELP_LISTS, brief ? HELP_LISTS : HELP_REST));
	argp.doc = text;
	setenv("ARGP_HELP_FMT", "no-dup-args-note,rmargin=80,opt-doc-col=26", 0);
	argp_help(&argp, stdout, ARGP_HELP_SHORT_USAGE | ARGP_HELP_DOC | ARGP_HELP_LONG, name);
	if (brief)
		printf("\nAll options: %s --help-all\n", name);
	exit(fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS);
}

static error_t help_parse(int key, char *arg, struct argp_state *state)
{
	switch (key) {
	case 'h':
	case '?':
	case KEY_HELP_ALL:
		help_print(state, key != KEY_HELP_ALL);
		return 0;
	case KEY_USAGE:
		argp_state_help(state, stdout, ARGP_HELP_USAGE | ARGP_HELP_EXIT_OK);
		return 0;
	case 'V':
		argp_program_version_hook(stdout, state);
		exit(EXIT_SUCCESS);
	}
	return ARGP_ERR_UNKNOWN;
}

const struct argp help_argp = {.options = help_options, .parser = help_parse};
const struct argp_child help_children[] = {{&help_argp}, {0}};

void help_words(int *argc, char **argv)
{
	static char help[] = "--help", version[] = "--version";

	if (*argc > 1 && !strcmp(argv[1], "version"))
		argv[1] = version;
	if (*argc < 2 || strcmp(argv[1], "help") != 0)
		return;
	argv[1] = help;
	if (*argc > 2) {
		argv[1] = argv[2];
		argv[2] = help;
	}
}
