/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of the text that gx processes publish (Prometheus' text format 0.0.4, the part that gx writes),
 * and the sum of several processes' texts. The text is a stranger's: each byte of it is looked at, and a
 * text with one bad line is refused as a whole. One thread.
 */
#ifndef GXD_EXPO_H
#define GXD_EXPO_H

#include <stdbool.h>
#include <stddef.h>

#define EXPO_NAME_MAX  128	   /* bytes of a metric's name */
#define EXPO_LINE_MAX  2048	   /* bytes of a line */
#define EXPO_FAMS_MAX  512	   /* metrics in a sum */
#define EXPO_LABEL_MAX 16	   /* labels of a sample */
#define EXPO_ALL_MAX   (96u << 20) /* bytes of a sum */

struct expo_str {
	const char *at;
	size_t len;
};

enum expo_kind { EXPO_HELP, EXPO_TYPE, EXPO_SAMPLE };
enum expo_type { EXPO_NONE, EXPO_COUNTER, EXPO_GAUGE, EXPO_HISTOGRAM };

struct expo_line {
	enum expo_kind kind;
	struct expo_str name;	/* of the metric; of a sample with _bucket, _sum, _count */
	struct expo_str labels; /* of a sample, without braces */
	struct expo_str value;	/* of a sample; HELP: the text */
	enum expo_type type;	/* TYPE */
};

/** expo_next() - Take the next line of @text. Return: 1; 0: there is none; -EPROTO: it is none of gx's. */
int expo_next(struct expo_str *text, struct expo_line *out);
/** expo_label() - Take the next label of @labels, which expo_next() has checked. Return: false: none is left.
 * @value: as it stands in the text, with its escapes */
bool expo_label(struct expo_str *labels, struct expo_str *name, struct expo_str *value);
bool expo_is(struct expo_str s, const char *text);

/* A sum of texts. */
struct expo;
struct expo *expo_new(void); /* NULL: no memory */
void expo_free(struct expo *x);
/**
 * expo_add() - Add @text, whose samples get @labels in front ("pid=\"7\""). Of a text that is refused
 * nothing is added.
 * Return: 0; -EPROTO: it is refused; -E2BIG: there is no room; -ENOMEM.
 */
int expo_add(struct expo *x, struct expo_str text, const char *labels);
/** expo_print() - The sum as text 0.0.4, or OpenMetrics 1.0. malloc()ed; NULL: no memory. @head_room:
 * free bytes in front */
char *expo_print(const struct expo *x, bool open, size_t head_room, size_t *len);

#endif
