// SPDX-License-Identifier: Apache-2.0
/*
 * Commands and options as lines (see opt_table.h). Main thread, before the program opens anything.
 */
#include "common/opt_table.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define TABLE_CHILDREN_MAX 16 /* of a program, as far as they wait */

/* Neither tabs nor ends of line within a field. */
static void field_print(const char *text, size_t len)
{
	putchar('\t');
	for (size_t i = 0; i < len; i++)
		putchar(text[i] == '\t' || text[i] == '\n' ? ' ' : text[i]);
}

static void text_print(const char *text)
{
	field_print(text ? text : "", text ? strlen(text) : 0);
}

static void option_print(const char *name, const struct argp_option *o)
{
	char group[16], key[2] = {0};
	bool heading = !o->name && !o->key;

	if (o->flags & OPTION_HIDDEN)
		return;
	if (o->key > ' ' && o->key <= '~')
		key[0] = (char)o->key;
	snprintf(group, sizeof(group), "%d", o->group);
	printf(heading ? "heading" : "option");
	text_print(name);
	text_print(group);
	if (!heading) {
		text_print(o->name);
		text_print(key);
		text_print(o->arg);
	}
	text_print(o->doc);
	putchar('\n');
}

/* Children follow their parent, in their order. */
static void options_print(const char *name, const struct argp *argp)
{
	const struct argp *rest[TABLE_CHILDREN_MAX] = {argp};

	for (unsigned nr = 1; nr;) {
		const struct argp *now = rest[--nr];
		unsigned first = nr;

		for (const struct argp_option *o = now->options; o && (o->name || o->key || o->doc);
		     o++)
			option_print(name, o);
		for (const struct argp_child *c = now->children; c && c->argp; c++)
			nr++;
		assert(nr <= TABLE_CHILDREN_MAX);
		for (unsigned i = first; i < nr; i++) /* the last one is taken first */
			rest[i] = now->children[nr - 1 - i].argp;
	}
}

/* After a vertical tab is the end of a help text. */
static void more_print(const char *name, const char *doc)
{
	const char *at = strchr(doc, '\v');

	while (at && at[1]) {
		const char *line = at + 1, *end = strchr(line, '\n');

		printf("more");
		text_print(name);
		field_print(line, end ? (size_t)(end - line) : strlen(line));
		putchar('\n');
		at = end;
	}
}

void opt_table(const char *name, const struct argp *argp)
{
	const char *doc = argp->doc ? argp->doc : "";

	printf("command");
	text_print(name);
	text_print(argp->args_doc);
	field_print(doc, strcspn(doc, "\v"));
	putchar('\n');
	more_print(name, doc);
	options_print(name, argp);
}
