// SPDX-License-Identifier: Apache-2.0
/* What the fields and calls of the API are called by a program, in the library's texts (gx/log.h). */
#include <gx/log.h>

#include <ctype.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define LINE_MAX_B 1024 /* of a log line, with the final 0 */

static const struct gx_name *_Atomic log_names;

/* The entry of the name that begins at @at. It must match as a whole: gx_gpu_opts.bounce_device is
 * not gx_gpu_opts.bounce. */
static const struct gx_name *name_at(const struct gx_name *names, const char *at)
{
	for (; names->api; names++) {
		size_t len = strlen(names->api);
		unsigned char next;

		if (strncmp(at, names->api, len))
			continue;
		next = (unsigned char)at[len];
		if (!isalnum(next) && next != '_')
			return names;
	}
	return NULL;
}

char *gx_names_say(const struct gx_name names[], char *text)
{
	const char *from = text;
	char *to = text;

	while (*from) {
		const struct gx_name *n = name_at(names, from);
		size_t len = n ? strlen(n->own) : 1;

		memmove(to, n ? n->own : from, len);
		to += len;
		from += n ? strlen(n->api) : 1;
	}
	*to = '\0';
	return text;
}

static void log_line(void *arg, int level, const char *line)
{
	char text[LINE_MAX_B];

	(void)arg;
	snprintf(text, sizeof(text), "%s", line);
	gx_log_stderr(level, gx_names_say(atomic_load(&log_names), text));
}

void gx_names_log(const struct gx_name names[])
{
	atomic_store(&log_names, names);
	gx_log_sink(log_line, NULL);
}
