/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON documents: the one file of the tools that knows jansson, whose own names begin with json_.
 * Formats of js_pack() and js_unpack() are jansson's
 * (https://jansson.readthedocs.io/en/latest/apiref.html#building-values), e.g. "{s:s, s:I}" with I
 * for an int64_t given as long long.
 */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stddef.h>

struct json_t; /* jansson's own */

/** js_pack() - Build a document. Return: NULL when there is no memory or a string is not UTF-8. */
struct json_t *js_pack(const char *fmt, ...);

/**
 * js_unpack() - Take values out by format; strings stay the document's.
 * @why: what is missing or of the wrong type, in words, upon failure
 * Return: 0, -EINVAL.
 */
int js_unpack(struct json_t *doc, char *why, size_t room, const char *fmt, ...);

/** js_parse() - Return: NULL with @why filled when it is no JSON object. */
struct json_t *js_parse(const void *text, size_t len, char *why, size_t room);

/** js_print() - As text, to be freed; @pretty: over several lines. Return: NULL when there is no
 * memory. */
char *js_print(const struct json_t *doc, bool pretty);

/** js_set() / js_append() - Put @value into an object or array, which owns it from then on. */
void js_set(struct json_t *object, const char *key, struct json_t *value);
void js_append(struct json_t *array, struct json_t *value);

/** js_merge() - Put all members of object @from into @to as well. js_share() - @value once more,
 * to be put into a second document; neither may be changed then. */
void js_merge(struct json_t *to, struct json_t *from);
struct json_t *js_share(struct json_t *value);

/** js_real() - A number, or null when @v is NaN or infinite. js_string(): null for NULL; never
 * fails on bytes that are no UTF-8: they become '?'. */
struct json_t *js_real(double v);
struct json_t *js_string(const char *s);
struct json_t *js_array(void);

/** js_get() - Member @key of an object, element @i of an array, or NULL; they stay the document's.
 */
struct json_t *js_get(struct json_t *object, const char *key);
struct json_t *js_at(struct json_t *array, size_t i);
size_t js_size(struct json_t *array);
/** js_text() - The string that @value is, or @otherwise. */
const char *js_text(struct json_t *value, const char *otherwise);

void js_free(struct json_t *doc); /* NULL is fine */

#endif
