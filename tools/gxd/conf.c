// SPDX-License-Identifier: Apache-2.0
/* Files of options; see conf.h. */
#include "gxd/conf.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONF_LINE_MAX 4096
#define CONF_ARGS_MAX 1024 /* of the command line and all files */

/* Words, and where each stands: a line of a file, or 0. */
static struct conf {
	char *args[CONF_ARGS_MAX + 1];
	const char *path[CONF_ARGS_MAX];
	unsigned line[CONF_ARGS_MAX];
	int n;
	const struct argp_state *state; /* while argp takes words */
	int behind;			/* words between the wrong one and state->next */
} conf;

static int conf_add(struct conf *c, char *arg, const char *path, unsigned line)
{
	if (!arg || c->n == CONF_ARGS_MAX) {
		fprintf(stderr, "gxd: too many options: %d at most\n", CONF_ARGS_MAX);
		return -ENOMEM;
	}
	c->path[c->n] = path;
	c->line[c->n] = line;
	c->args[c->n++] = arg;
	c->args[c->n] = NULL;
	return 0;
}

/* Cut off blanks at both ends. */
static char *trimmed(char *text)
{
	size_t len;

	text += strspn(text, " \t");
	len = strlen(text);
	while (len && isspace((unsigned char)text[len - 1]))
		len--;
	text[len] = '\0';
	return text;
}

/* "--name value" or "--name=value" into "--name=value"; @why is set upon failure. */
static char *conf_word(char *line, const char **why)
{
	size_t name = strcspn(line, "= \t");
	char *value = line[name] ? trimmed(line + name + 1) : NULL, *word = NULL;
	const char *folder = "";

	if (strncmp(line, "--", 2) || !isalpha((unsigned char)line[2])) {
		*why = "no option; a line is as --mem kv=host:2G";
		return NULL;
	}
	line[name] = '\0';
	if (!strcmp(line, "--config")) {
		*why = "a file names no other file";
		return NULL;
	}
	if (value && !strncmp(value, "%d/", 3)) {
		folder = getenv("CREDENTIALS_DIRECTORY");
		value += 2;
		if (!folder) {
			*why = "%d: there is no CREDENTIALS_DIRECTORY, which systemd sets (LoadCredential=)";
			return NULL;
		}
	}
	if (asprintf(&word, "%s%s%s%s", line, value ? "=" : "", folder, value ? value : "") < 0)
		*why = "out of memory";
	return *why ? NULL : word;
}

static int conf_line(struct conf *c, const char *path, unsigned nr, char *line)
{
	const char *why = NULL;
	char *word;

	if (!strchr(line, '\n') && strlen(line) == CONF_LINE_MAX - 1)
		why = "the line is too long";
	line = trimmed(line);
	if (!why && (!*line || *line == '#'))
		return 0;
	word = why ? NULL : conf_word(line, &why);
	if (!why)
		return conf_add(c, word, path, nr);
	fprintf(stderr, "gxd: %s:%u: %s\n", path, nr, why);
	return -EINVAL;
}

static int conf_file(struct conf *c, const char *path)
{
	char line[CONF_LINE_MAX];
	FILE *f = fopen(path, "re");
	int ret = 0;

	for (unsigned nr = 1; f && !ret && fgets(line, sizeof(line), f); nr++)
		ret = conf_line(c, path, nr, line);
	if (!f || (!ret && ferror(f))) {
		ret = -errno;
		fprintf(stderr, "gxd: --config %s: %s\n", path, strerror(errno));
	}
	if (f)
		fclose(f);
	return ret;
}

/* The program ends in a call of argp_error(), of whatever parser, or of argp itself: its state is still there. */
static void conf_say(void)
{
	int at = conf.state ? conf.state->next - conf.behind : 0;

	if (at > 0 && at < conf.n && conf.line[at])
		fprintf(stderr, "gxd: this is about %s:%u: %s\n", conf.path[at], conf.line[at],
			conf.args[at]);
}

error_t conf_parse(argp_parser_t take, int key, char *arg, struct argp_state *state)
{
	int at = state->next - 1;

	conf.state = key == ARGP_KEY_END || key == ARGP_KEY_FINI ? NULL : state;
	conf.behind = 1;
	if (conf.state && arg && at < conf.n && arg == conf.args[at] && conf.line[at]) {
		conf.behind = 2; /* a line is one word: this one is the next option */
		argp_error(state, "%s: it takes a value", conf.args[at - 1]);
	}
	return take(key, arg, state);
}

int conf_expand(int *argc, char ***argv)
{
	struct conf *c = &conf;
	int ret = 0;

	atexit(conf_say);
	for (int i = 0; i < *argc && !ret; i++) {
		char *arg = (*argv)[i];

		if (!strncmp(arg, "--config=", 9))
			ret = conf_file(c, arg + 9);
		else if (!strcmp(arg, "--config") && i + 1 < *argc)
			ret = conf_file(c, (*argv)[++i]);
		else
			ret = conf_add(c, arg, NULL, 0);
	}
	*argc = c->n;
	*argv = c->args;
	return ret;
}
