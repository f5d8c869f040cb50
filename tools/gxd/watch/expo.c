// SPDX-License-Identifier: Apache-2.0
/*
 * Reads lines, and adds texts up: samples of one metric must stand together, so each metric has a
 * buffer of its own. See expo.h.
 */
#include "gxd/watch/expo.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- Lines ---- */

enum { IS_NAME = 1, IS_DIGIT = 2, IS_VALUE = 4, IS_PLAIN = 8 };

#define L(c) [c] = IS_NAME | IS_PLAIN
#define D(c) [c] = IS_DIGIT | IS_NAME | IS_VALUE | IS_PLAIN
#define P(c) [c] = IS_PLAIN
/* Of a label's value: all printable ASCII but quotes and backslashes. */
static const uint8_t is[256] = {
	L('a'), L('b'), L('c'), L('d'), L('e'),	 L('f'), L('g'), L('h'), L('i'), L('j'), L('k'),
	L('l'), L('m'), L('n'), L('o'), L('p'),	 L('q'), L('r'), L('s'), L('t'), L('u'), L('v'),
	L('w'), L('x'), L('y'), L('z'), L('A'),	 L('B'), L('C'), L('D'), L('E'), L('F'), L('G'),
	L('H'), L('I'), L('J'), L('K'), L('L'),	 L('M'), L('N'), L('O'), L('P'), L('Q'), L('R'),
	L('S'), L('T'), L('U'), L('V'), L('W'),	 L('X'), L('Y'), L('Z'), L('_'), D('0'), D('1'),
	D('2'), D('3'), D('4'), D('5'), D('6'),	 D('7'), D('8'), D('9'), P(' '), P('!'), P('#'),
	P('$'), P('%'), P('&'), P('('), P(')'),	 P('*'), P('+'), P(','), P('-'), P('.'), P('/'),
	P(':'), P(';'), P('<'), P('='), P('>'),	 P('?'), P('@'), P('['), P(']'), P('^'), P('`'),
	P('{'), P('|'), P('}'), P('~'), P('\''),
};
#undef L
#undef D
#undef P

static size_t run(const char *at, const char *end, uint8_t what)
{
	const char *p = at;

	while (p < end && is[(uint8_t)*p] & what)
		p++;
	return (size_t)(p - at);
}

bool expo_is(struct expo_str s, const char *text)
{
	return s.len == strlen(text) && !memcmp(s.at, text, s.len);
}

static bool skip(const char **at, const char *end, const char *what)
{
	size_t len = strlen(what);

	if ((size_t)(end - *at) < len || memcmp(*at, what, len))
		return false;
	*at += len;
	return true;
}

/* gx_... */
static bool name_take(const char **at, const char *end, struct expo_str *out)
{
	*out = (struct expo_str){*at, run(*at, end, IS_NAME)};
	*at += out->len;
	return out->len > 3 && out->len < EXPO_NAME_MAX && !memcmp(out->at, "gx_", 3);
}

/* A name that the exporter puts itself, and one that Prometheus keeps for itself. */
static bool label_is_free(struct expo_str s)
{
	return !expo_is(s, "pid") && !expo_is(s, "context") && !expo_is(s, "name") &&
	       !expo_is(s, "job") && !expo_is(s, "instance") &&
	       !(s.len > 1 && s.at[0] == '_' && s.at[1] == '_');
}

static bool label_take(const char **at, const char *end, struct expo_str *name)
{
	*name = (struct expo_str){*at, run(*at, end, IS_NAME)};
	*at += name->len;
	if (!name->len || is[(uint8_t)name->at[0]] & IS_DIGIT || !label_is_free(*name) ||
	    !skip(at, end, "=\""))
		return false;
	for (;;) {
		*at += run(*at, end, IS_PLAIN);
		if (skip(at, end, "\""))
			return true;
		if (!skip(at, end, "\\\\") && !skip(at, end, "\\\"") && !skip(at, end, "\\n"))
			return false;
	}
}

static bool labels_take(const char **at, const char *end, struct expo_str *out)
{
	struct expo_str seen[EXPO_LABEL_MAX];
	unsigned n = 0;

	out->at = *at;
	do {
		if (n == EXPO_LABEL_MAX || !label_take(at, end, &seen[n]))
			return false;
		for (unsigned i = 0; i < n; i++)
			if (seen[i].len == seen[n].len &&
			    !memcmp(seen[i].at, seen[n].at, seen[n].len))
				return false;
		n++;
	} while (skip(at, end, ","));
	out->len = (size_t)(*at - out->at);
	return skip(at, end, "}");
}

/* "17", "0.25", "1e-06": what gx writes, and no sign, for nothing of gx is below 0. */
static bool value_take(const char **at, const char *end, struct expo_str *out)
{
	size_t n = run(*at, end, IS_DIGIT);

	out->at = *at;
	*at += n;
	if (!n || n > 20)
		return false;
	if (skip(at, end, ".")) {
		n = run(*at, end, IS_DIGIT);
		*at += n;
		if (!n || n > 20)
			return false;
	}
	if (skip(at, end, "e")) {
		if (!skip(at, end, "-"))
			skip(at, end, "+");
		n = run(*at, end, IS_DIGIT);
		*at += n;
		if (!n || n > 3)
			return false;
	}
	out->len = (size_t)(*at - out->at);
	return *at == end;
}

static bool type_take(const char *at, const char *end, enum expo_type *out)
{
	struct expo_str s = {at, (size_t)(end - at)};

	*out = expo_is(s, "counter")	 ? EXPO_COUNTER
	       : expo_is(s, "gauge")	 ? EXPO_GAUGE
	       : expo_is(s, "histogram") ? EXPO_HISTOGRAM
					 : EXPO_NONE;
	return *out != EXPO_NONE;
}

static bool line_take(const char *at, const char *end, struct expo_line *out)
{
	if (skip(&at, end, "# HELP ")) {
		out->kind = EXPO_HELP;
		if (!name_take(&at, end, &out->name) || !skip(&at, end, " "))
			return false;
		out->value = (struct expo_str){at, (size_t)(end - at)};
		return out->value.len && run(at, end, IS_PLAIN) == out->value.len;
	}
	if (skip(&at, end, "# TYPE ")) {
		out->kind = EXPO_TYPE;
		return name_take(&at, end, &out->name) && skip(&at, end, " ") &&
		       type_take(at, end, &out->type);
	}
	out->kind = EXPO_SAMPLE;
	out->labels = (struct expo_str){at, 0};
	return name_take(&at, end, &out->name) &&
	       (!skip(&at, end, "{") || labels_take(&at, end, &out->labels)) &&
	       skip(&at, end, " ") && value_take(&at, end, &out->value);
}

int expo_next(struct expo_str *text, struct expo_line *out)
{
	const char *end;

	if (!text->len)
		return 0;
	end = memchr(text->at, '\n', text->len < EXPO_LINE_MAX ? text->len : EXPO_LINE_MAX);
	if (!end || !line_take(text->at, end, out))
		return -EPROTO;
	text->len -= (size_t)(end + 1 - text->at);
	text->at = end + 1;
	return 1;
}

bool expo_label(struct expo_str *labels, struct expo_str *name, struct expo_str *value)
{
	const char *at = labels->at, *end = at + labels->len;

	if (!labels->len || !label_take(&at, end, name))
		return false;
	value->at = name->at + name->len + 2;
	value->len = (size_t)(at - 1 - value->at);
	skip(&at, end, ",");
	*labels = (struct expo_str){at, (size_t)(end - at)};
	return true;
}

/* ---- The sum ---- */

struct fam {
	char name[EXPO_NAME_MAX];
	char help[EXPO_LINE_MAX];
	enum expo_type type;
	char *buf; /* samples */
	size_t len, room;
	size_t mark; /* len before the text that is being added */
};

struct expo {
	struct fam *fams[EXPO_FAMS_MAX];
	unsigned nr;
	size_t all_b;
	bool full;
};

struct expo *expo_new(void)
{
	return calloc(1, sizeof(struct expo));
}

void expo_free(struct expo *x)
{
	if (!x)
		return;
	for (unsigned i = 0; i < x->nr; i++) {
		free(x->fams[i]->buf);
		free(x->fams[i]);
	}
	free(x);
}

/* @hint: most texts have the same metrics in the same order */
static struct fam *fam_find(struct expo *x, struct expo_str name, unsigned *hint)
{
	for (unsigned k = 0; k < x->nr; k++) {
		unsigned i = (*hint + k) % x->nr;

		if (expo_is(name, x->fams[i]->name)) {
			*hint = i + 1;
			return x->fams[i];
		}
	}
	return NULL;
}

static struct fam *fam_make(struct expo *x, const struct expo_line *help)
{
	struct fam *f;

	x->full |= x->nr == EXPO_FAMS_MAX;
	f = x->full ? NULL : calloc(1, sizeof(*f));
	if (!f)
		return NULL;
	memcpy(f->name, help->name.at, help->name.len);
	memcpy(f->help, help->value.at, help->value.len); /* both are shorter than that */
	x->fams[x->nr++] = f;
	return f;
}

static bool fam_room(struct expo *x, struct fam *f, size_t len)
{
	size_t room = f->room ? f->room : 4096;
	char *more;

	if (f->room - f->len >= len)
		return true;
	while (room - f->len < len)
		room *= 2;
	x->full |= x->all_b + room - f->room > EXPO_ALL_MAX;
	more = x->full ? NULL : realloc(f->buf, room);
	if (!more)
		return false;
	x->all_b += room - f->room;
	f->buf = more;
	f->room = room;
	return true;
}

static char *put(char *to, const char *from, size_t len)
{
	memcpy(to, from, len);
	return to + len;
}

static int sample_add(struct expo *x, struct fam *f, const struct expo_line *l, const char *labels,
		      size_t labels_len)
{
	char *to;

	if (!fam_room(x, f, l->name.len + labels_len + l->labels.len + l->value.len + 8))
		return x->full ? -E2BIG : -ENOMEM;
	to = put(f->buf + f->len, l->name.at, l->name.len);
	*to++ = '{';
	to = put(to, labels, labels_len);
	if (l->labels.len)
		*to++ = ',';
	to = put(to, l->labels.at, l->labels.len);
	to = put(to, "} ", 2);
	to = put(to, l->value.at, l->value.len);
	*to++ = '\n';
	f->len = (size_t)(to - f->buf);
	return 0;
}

/* Is a sample of this name one of the metric? */
static bool name_is_of(struct expo_str name, const struct fam *f)
{
	static const char *const ends[] = {"_bucket", "_sum", "_count"};
	size_t len = strlen(f->name);

	if (name.len < len || memcmp(name.at, f->name, len))
		return false;
	name = (struct expo_str){name.at + len, name.len - len};
	for (unsigned i = 0; i < 3 && f->type == EXPO_HISTOGRAM; i++)
		if (expo_is(name, ends[i]))
			return true;
	return f->type != EXPO_HISTOGRAM && !name.len;
}

static bool ends_in_total(const char *name)
{
	size_t len = strlen(name);

	return len > 6 && !strcmp(name + len - 6, "_total");
}

/* The TYPE of a metric must be the same in all texts, and come before its samples. */
static bool type_fits(struct fam *f, const struct expo_line *l)
{
	if (!f || !expo_is(l->name, f->name) || (f->type && f->type != l->type) ||
	    (l->type == EXPO_COUNTER) != ends_in_total(f->name))
		return false;
	f->type = l->type;
	return true;
}

static int text_add(struct expo *x, struct expo_str text, const char *labels)
{
	size_t labels_len = strlen(labels);
	struct fam *f = NULL;
	struct expo_line l = {0};
	unsigned hint = 0;
	bool typed = true;
	int ret;

	while ((ret = expo_next(&text, &l)) > 0) {
		if (l.kind == EXPO_HELP) {
			if (!typed)
				return -EPROTO;
			f = fam_find(x, l.name, &hint) ?: fam_make(x, &l);
			typed = false;
			if (!f)
				return x->full ? -E2BIG : -ENOMEM;
			if (f->len != f->mark) /* its samples do not stand together */
				return -EPROTO;
		} else if (l.kind == EXPO_TYPE) {
			if (typed || !type_fits(f, &l))
				return -EPROTO;
			typed = true;
		} else {
			if (!f || !typed || !name_is_of(l.name, f))
				return -EPROTO;
			ret = sample_add(x, f, &l, labels, labels_len);
			if (ret)
				return ret;
		}
	}
	return typed ? ret : -EPROTO;
}

int expo_add(struct expo *x, struct expo_str text, const char *labels)
{
	unsigned nr = x->nr;
	int ret;

	for (unsigned i = 0; i < nr; i++)
		x->fams[i]->mark = x->fams[i]->len;
	ret = text_add(x, text, labels);
	x->full = false;
	if (!ret)
		return 0;
	while (x->nr > nr) {
		struct fam *f = x->fams[--x->nr];

		x->all_b -= f->room;
		free(f->buf);
		free(f);
	}
	for (unsigned i = 0; i < nr; i++)
		x->fams[i]->len = x->fams[i]->mark;
	return ret;
}

/* OpenMetrics names a counter without the _total of its samples. */
static char *fam_print(char *to, const struct fam *f, bool open)
{
	static const char *const types[] = {
		[EXPO_COUNTER] = "counter", [EXPO_GAUGE] = "gauge", [EXPO_HISTOGRAM] = "histogram"};
	size_t len = strlen(f->name);

	if (open && f->type == EXPO_COUNTER)
		len -= 6;
	to = put(to, "# HELP ", 7);
	to = put(to, f->name, len);
	*to++ = ' ';
	to = put(to, f->help, strlen(f->help));
	to = put(to, "\n# TYPE ", 8);
	to = put(to, f->name, len);
	*to++ = ' ';
	to = put(to, types[f->type], strlen(types[f->type]));
	*to++ = '\n';
	return put(to, f->buf, f->len);
}

char *expo_print(const struct expo *x, bool open, size_t head_room, size_t *len)
{
	size_t room = head_room + 8;
	char *text, *to;

	for (unsigned i = 0; i < x->nr; i++)
		room += x->fams[i]->len + 2 * EXPO_NAME_MAX + EXPO_LINE_MAX + 32;
	text = malloc(room);
	if (!text)
		return NULL;
	to = text + head_room;
	for (unsigned i = 0; i < x->nr; i++)
		if (x->fams[i]->len)
			to = fam_print(to, x->fams[i], open);
	if (open)
		to = put(to, "# EOF\n", 6);
	*len = (size_t)(to - text) - head_room;
	return text;
}
