// SPDX-License-Identifier: Apache-2.0
/*
 * A thin wrapper of jansson (see json.h). Any thread; one thread at a time uses a document.
 */
#include "common/json.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

struct json_t *js_pack(const char *fmt, ...)
{
	struct json_t *doc;
	va_list ap;

	va_start(ap, fmt);
	doc = json_vpack_ex(NULL, 0, fmt, ap);
	va_end(ap);
	return doc;
}

int js_unpack(struct json_t *doc, char *why, size_t room, const char *fmt, ...)
{
	json_error_t err = {.text = ""};
	va_list ap;
	int ret;

	va_start(ap, fmt);
	ret = json_vunpack_ex(doc, &err, 0, fmt, ap);
	va_end(ap);
	if (!ret)
		return 0;
	snprintf(why, room, "%s", err.text);
	return -EINVAL;
}

struct json_t *js_parse(const void *text, size_t len, char *why, size_t room)
{
	json_error_t err = {.text = ""};
	struct json_t *doc = json_loadb(text, len, JSON_REJECT_DUPLICATES, &err);

	if (doc && !json_is_object(doc)) {
		json_decref(doc);
		doc = NULL;
		snprintf(err.text, sizeof(err.text), "not an object");
	}
	if (!doc)
		snprintf(why, room, "%s", err.text);
	return doc;
}

char *js_print(const struct json_t *doc, bool pretty)
{
	return json_dumps(doc, (pretty ? JSON_INDENT(2) : JSON_COMPACT) | JSON_REAL_PRECISION(6));
}

void js_set(struct json_t *object, const char *key, struct json_t *value)
{
	json_object_set_new(object, key, value);
}

void js_append(struct json_t *array, struct json_t *value)
{
	json_array_append_new(array, value);
}

void js_merge(struct json_t *to, struct json_t *from)
{
	json_object_update(to, from);
}

struct json_t *js_share(struct json_t *value)
{
	return json_incref(value);
}

struct json_t *js_real(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

struct json_t *js_string(const char *s)
{
	struct json_t *v;
	char plain[512];
	size_t i;

	if (!s)
		return json_null();
	v = json_string(s);
	if (v)
		return v;
	for (i = 0; s[i] && i < sizeof(plain) - 1; i++)
		plain[i] = (unsigned char)s[i] < 0x80 ? s[i] : '?';
	plain[i] = '\0';
	return json_string(plain);
}

struct json_t *js_array(void)
{
	return json_array();
}

struct json_t *js_get(struct json_t *object, const char *key)
{
	return json_object_get(object, key);
}

struct json_t *js_at(struct json_t *array, size_t i)
{
	return json_array_get(array, i);
}

const char *js_text(struct json_t *value, const char *otherwise)
{
	return json_is_string(value) ? json_string_value(value) : otherwise;
}

void js_free(struct json_t *doc)
{
	json_decref(doc);
}
