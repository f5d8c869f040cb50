/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON documents. json.c alone uses jansson among the tools; jansson's names begin with json_.
 * Formats of js_pack() and js_unpack() are jansson's
 * (https://jansson.readthedocs.io/en/latest/apiref.html#building-values), e.g. "{s:s, s:I}" with I
 * for an int64_t given as long long.
 */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stddef.h>

struct json_t; /* jansson's own */

/** js_pack() - Build a document. Return: NULL: no memory, or a string is not UTF-8. */
struct json_t *js_pack(const char *fmt, ...);

/**
 * js_unpack() - Take values out by format; strings stay the document's.
 * @why: after a failure: the member that is missing or has the wrong type, in words
 * Return: 0, -EINVAL.
 */
int js_unpack(struct json_t *doc, char *why, size_t room, const char *fmt, ...);

/** js_parse() - Parse a JSON object. Return: NULL, with @why, if @text is none. */
struct json_t *js_parse(const void *text, size_t len, char *why, size_t room);

/** js_print() - Print as text; the caller frees it. @pretty: over several lines. Return: NULL: no
 * memory. */
char *js_print(const struct json_t *doc, bool pretty);

/** js_set() / js_append() - Put @value into an object or array, which owns it from then on. */
void js_set(struct json_t *object, const char *key, struct json_t *value);
void js_append(struct json_t *array, struct json_t *value);

/** js_merge() - Copy all members of object @from into @to. js_share() - Another reference to
 * @value, for a second document; nobody may change either then. */
void js_merge(struct json_t *to, struct json_t *from);
struct json_t *js_share(struct json_t *value);

/** js_real() - A number; null if @v is NaN or infinite. js_string() - A string; null for NULL. In a
 * text that is not UTF-8 each byte beyond ASCII becomes '?'. */
struct json_t *js_real(double v);
struct json_t *js_string(const char *s);
struct json_t *js_array(void);

/** js_get() - Member @key of an object; js_at(): element @i of an array. NULL: none. They stay the
 * document's. */
struct json_t *js_get(struct json_t *object, const char *key);
struct json_t *js_at(struct json_t *array, size_t i);
/** js_text() - The text of the string @value; @otherwise if it is no string. */
const char *js_text(struct json_t *value, const char *otherwise);

void js_free(struct json_t *doc); /* NULL is fine */

#endif
