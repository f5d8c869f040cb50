/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of gx processes: what is taken, what is refused, and their sum. */
#include "gxd/watch/expo.h"
#include "gxd/watch/http.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOOD                                                                                       \
	"# HELP gx_a_total things\n# TYPE gx_a_total counter\n"                                    \
	"gx_a_total{core=\"0\"} 7\ngx_a_total{core=\"control\"} 18446744073709551615\n"            \
	"# HELP gx_b of a gauge: (x) 'y'\n# TYPE gx_b gauge\ngx_b 0.25\n"                          \
	"# HELP gx_h_seconds times\n# TYPE gx_h_seconds histogram\n"                               \
	"gx_h_seconds_bucket{le=\"1e-06\"} 1\ngx_h_seconds_bucket{le=\"+Inf\"} 2\n"                \
	"gx_h_seconds_sum 1.5\ngx_h_seconds_count 2\n"

static struct expo_str str(const char *text)
{
	return (struct expo_str){text, strlen(text)};
}

static char *printed(const struct expo *x, bool open)
{
	size_t len;
	char *text = expo_print(x, open, 0, &len);

	assert_non_null(text);
	text = realloc(text, len + 1);
	text[len] = 0;
	return text;
}

static void expo_add__two_of_a_kind(void **state)
{
	struct expo *x = expo_new();
	char *text;

	assert_int_equal(expo_add(x, str(GOOD), "pid=\"1\""), 0);
	assert_int_equal(expo_add(x, str(GOOD), "pid=\"2\""), 0);
	text = printed(x, false);
	assert_ptr_equal(strstr(text,
				"# HELP gx_a_total things\n# TYPE gx_a_total counter\n"
				"gx_a_total{pid=\"1\",core=\"0\"} 7\n"
				"gx_a_total{pid=\"1\",core=\"control\"} 18446744073709551615\n"
				"gx_a_total{pid=\"2\",core=\"0\"} 7\n"),
			 text);
	assert_non_null(strstr(text, "\ngx_b{pid=\"2\"} 0.25\n"));
	assert_null(strstr(text, "# EOF"));
	free(text);
	text = printed(x, true);
	assert_ptr_equal(strstr(text, "# HELP gx_a things\n# TYPE gx_a counter\ngx_a_total{pid="),
			 text);
	assert_string_equal(text + strlen(text) - 6, "# EOF\n");
	free(text);
	expo_free(x);
}

#define HEAD "# HELP gx_a_total things\n# TYPE gx_a_total counter\n"

static void expo_add__refuses(void **state)
{
	static const char *const bad[] = {
		"gx_a_total 1\n",	      /* no HELP, no TYPE */
		"# HELP gx_a_total things\n", /* no TYPE */
		"# HELP gx_a_total things\ngx_a_total 1\n",
		HEAD "gx_a_total 1", /* no end */
		HEAD "gx_b_total 1\n",
		HEAD "gx_a_total_bucket 1\n",
		HEAD "gx_a_total -1\n",
		HEAD "gx_a_total NaN\n",
		HEAD "gx_a_total 1 1700000000\n", /* a time */
		HEAD "gx_a_total  1\n",
		HEAD "gx_a_total 1.\n",
		HEAD "gx_a_total 123456789012345678901\n",
		HEAD "gx_a_total{} 1\n",
		HEAD "gx_a_total{core=\"0\",} 1\n",
		HEAD "gx_a_total{core=\"0\" 1\n",
		HEAD "gx_a_total{core=\"0\",core=\"1\"} 1\n",
		HEAD "gx_a_total{pid=\"0\"} 1\n", /* ours to say */
		HEAD "gx_a_total{name=\"0\"} 1\n",
		HEAD "gx_a_total{instance=\"0\"} 1\n", /* Prometheus' */
		HEAD "gx_a_total{__name__=\"x\"} 1\n",
		HEAD "gx_a_total{0=\"x\"} 1\n",
		HEAD "gx_a_total{a=\"\\x\"} 1\n",
		HEAD "gx_a_total{a=\"\xff\"} 1\n",
		HEAD "gx_a_total{a=\"\x01\"} 1\n",
		HEAD "\n",
		HEAD "# EOF\n",
		HEAD "gx_a_total 1\n" HEAD "gx_a_total{b=\"1\"} 1\n", /* not together */
		"# HELP up things\n# TYPE up gauge\nup 1\n",	      /* not gx's */
		"# HELP gx_a_total things\n# TYPE gx_a_total gauge\ngx_a_total 1\n",
		"# HELP gx_a things\n# TYPE gx_a counter\ngx_a 1\n",
		"# HELP gx_a things\n# TYPE gx_a untyped\ngx_a 1\n",
		"# HELP gx_a th\"ings\n# TYPE gx_a gauge\ngx_a 1\n",
		"# HELP gx_a \n# TYPE gx_a gauge\ngx_a 1\n",
		"# TYPE gx_a gauge\ngx_a 1\n",
		/* what the text before it says otherwise */
		"# HELP gx_b b\n# TYPE gx_b histogram\ngx_b_sum 1\n",
	};
	struct expo *x = expo_new();
	char *before, *after;

	assert_int_equal(expo_add(x, str(GOOD), "pid=\"1\""), 0);
	before = printed(x, false);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (expo_add(x, str(bad[i]), "pid=\"2\"") != -EPROTO)
			fail_msg("taken: %s", bad[i]);
		after = printed(x, false);
		assert_string_equal(after, before);
		free(after);
	}
	free(before);
	expo_free(x);
}

/* Long lines, and more metrics and labels than there are places for. */
static void expo_add__is_bounded(void **state)
{
	static char text[EXPO_FAMS_MAX * 80 + 4096];
	struct expo *x = expo_new();
	size_t at = 0;

	for (unsigned i = 0; i <= EXPO_FAMS_MAX; i++)
		at += (size_t)sprintf(text + at, "# HELP gx_m%u m\n# TYPE gx_m%u gauge\ngx_m%u 1\n",
				      i, i, i);
	assert_int_equal(expo_add(x, str(text), "pid=\"1\""), -E2BIG);
	at = (size_t)sprintf(text, HEAD "gx_a_total{");
	for (unsigned i = 0; i <= EXPO_LABEL_MAX; i++)
		at += (size_t)sprintf(text + at, "%sl%u=\"\"", i ? "," : "", i);
	sprintf(text + at, "} 1\n");
	assert_int_equal(expo_add(x, str(text), "pid=\"1\""), -EPROTO);
	at = (size_t)sprintf(text, "# HELP gx_a ");
	memset(text + at, 'x', EXPO_LINE_MAX);
	sprintf(text + at + EXPO_LINE_MAX, "\n# TYPE gx_a gauge\ngx_a 1\n");
	assert_int_equal(expo_add(x, str(text), "pid=\"1\""), -EPROTO);
	at = (size_t)sprintf(text, "# HELP gx_");
	memset(text + at, 'x', EXPO_NAME_MAX);
	sprintf(text + at + EXPO_NAME_MAX, " m\n");
	assert_int_equal(expo_add(x, str(text), "pid=\"1\""), -EPROTO);
	text[0] = 0;
	at = 0;
	assert_int_equal(expo_add(x, str(GOOD), "pid=\"1\""), 0); /* there is still room */
	expo_free(x);
}

static void expo_label__takes_them_apart(void **state)
{
	struct expo_str labels = str("peer=\"a,\\\"b\",le=\"+Inf\""), name, value;

	assert_true(expo_label(&labels, &name, &value));
	assert_true(expo_is(name, "peer") && expo_is(value, "a,\\\"b"));
	assert_true(expo_label(&labels, &name, &value));
	assert_true(expo_is(name, "le") && expo_is(value, "+Inf"));
	assert_false(expo_label(&labels, &name, &value));
}

static uint64_t random_next(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	return *x ^= *x << 17;
}

/* Changes of a good text, of a size that no byte follows: whatever is taken, the sum is still good. */
static void expo_add__changed_texts(void **state)
{
	size_t len = strlen(GOOD);
	uint64_t seed = 1;

	for (unsigned i = 0; i < 20000; i++) {
		struct expo *x = expo_new();
		size_t n = len;
		char *text = malloc(len);
		char *sum;

		memcpy(text, GOOD, len);
		for (unsigned k = random_next(&seed) % 4; k < 4; k++) {
			size_t a = random_next(&seed) % n, b = random_next(&seed) % n;

			switch (random_next(&seed) % 4) {
			case 0:
				text[a] = (char)random_next(&seed);
				break;
			case 1:
				text[a] = text[b];
				break;
			case 2:
				n = a + 1;
				break;
			case 3:
				memmove(text + (a < b ? a : b), text + (a < b ? b : a),
					n - (a < b ? b : a));
				break;
			}
		}
		text = realloc(text, n);
		if (!expo_add(x, (struct expo_str){text, n}, "extra=\"9\"")) {
			struct expo_str left;
			struct expo_line l;

			sum = printed(x, false);
			left = str(sum);
			while (left.len)
				assert_int_equal(expo_next(&left, &l), 1);
			free(sum);
		}
		free(text);
		expo_free(x);
	}
}

static void http_accepts_open__by_q(void **state)
{
	static const struct {
		const char *accept;
		bool open;
	} t[] = {
		{NULL, false},
		{"", false},
		{"*/*", false},
		{"text/plain", false},
		{"application/openmetrics-text", true},
		{"application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;"
		 "q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
		 true},
		{"application/openmetrics-text;q=0.2, text/plain;q=0.5", false},
		{"application/openmetrics-text;q=0", false},
		{"application/openmetrics-textual", false},
		{",,; ,application/openmetrics-text ; q=0.001,", true},
		{";q=", false},
		{"application/openmetrics-text;q=nonsense", false},
	};

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
		if (http_accepts_open(t[i].accept) != t[i].open)
			fail_msg("%s", t[i].accept);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(expo_add__two_of_a_kind),
		cmocka_unit_test(expo_add__refuses),
		cmocka_unit_test(expo_add__is_bounded),
		cmocka_unit_test(expo_label__takes_them_apart),
		cmocka_unit_test(expo_add__changed_texts),
		cmocka_unit_test(http_accepts_open__by_q),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
