/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON documents: the one file of the tools that knows jansson. Formats of doc_pack() and
 * doc_unpack() are jansson's
 * (https://jansson.readthedocs.io/en/latest/apiref.html#building-values), e.g. "{s:s, s:I}" with I
 * for an int64_t given as long long.
 */
#ifndef DOC_H
#define DOC_H

#include <stdbool.h>
#include <stddef.h>

struct json_t; /* jansson's own */

/** doc_pack() - Build a document. Return: NULL when there is no memory or a string is not UTF-8. */
struct json_t *doc_pack(const char *fmt, ...);

/**
 * doc_unpack() - Take values out by format; strings stay the document's.
 * @why: what is missing or of the wrong type, in words, upon failure
 * Return: 0, -EINVAL.
 */
int doc_unpack(struct json_t *doc, char *why, size_t room, const char *fmt, ...);

/** doc_parse() - Return: NULL with @why filled when it is no JSON object. */
struct json_t *doc_parse(const void *text, size_t len, char *why, size_t room);

/** doc_print() - As text, to be freed; @pretty: over several lines. Return: NULL when there is no
 * memory. */
char *doc_print(const struct json_t *doc, bool pretty);

/** doc_set() / doc_append() - Put @value into an object or array, which owns it from then on. */
void doc_set(struct json_t *object, const char *key, struct json_t *value);
void doc_append(struct json_t *array, struct json_t *value);

/** doc_merge() - Put all members of object @from into @to as well. doc_share() - @value once more,
 * to be put into a second document; neither may be changed then. */
void doc_merge(struct json_t *to, struct json_t *from);
struct json_t *doc_share(struct json_t *value);

/** doc_real() - A number, or null when @v is NaN or infinite. doc_string(): null for NULL; never
 * fails on bytes that are no UTF-8: they become '?'. */
struct json_t *doc_real(double v);
struct json_t *doc_string(const char *s);
struct json_t *doc_array(void);

/** doc_get() - Member @key of an object, element @i of an array, or NULL; they stay the document's.
 */
struct json_t *doc_get(struct json_t *object, const char *key);
struct json_t *doc_at(struct json_t *array, size_t i);
size_t doc_size(struct json_t *array);
/** doc_text() - The string that @value is, or @otherwise. */
const char *doc_text(struct json_t *value, const char *otherwise);

void doc_free(struct json_t *doc); /* NULL is fine */

#endif
