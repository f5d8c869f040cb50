// SPDX-License-Identifier: Apache-2.0
/*
 * From documents to gnuplot scripts: which results become which line, ratios, axes, quoting, and
 * what is refused.
 */
#include "common/plot.h"

#include "common/json.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HEAD "{\"command\": \"h2d\", \"results\": ["
#define TAIL "]}"

static char why[256];

static int add(struct plot *p, const char *text, const char *name)
{
	struct json_t *doc = js_parse(text, strlen(text), why, sizeof(why));
	int ret;

	assert_non_null(doc);
	ret = plot_add(p, doc, name, why, sizeof(why));
	js_free(doc);
	return ret;
}

/* The script of one document. */
static char *script_of(struct plot_how how, const char *text)
{
	struct plot *p = plot_open(&how);
	char *script;

	assert_non_null(p);
	assert_int_equal(add(p, text, "one"), 0);
	script = plot_script(p, "a.svg", "a.png", why, sizeof(why));
	plot_close(p);
	return script;
}

static void has(const char *script, const char *words)
{
	if (!script || !strstr(script, words))
		fail_msg("no '%s' in:\n%s", words, script ? script : why);
}

static void has_not(const char *script, const char *words)
{
	if (!script || strstr(script, words))
		fail_msg("'%s' in:\n%s", words, script ? script : why);
}

/* The script of @text holds these words; those behind a '!' it does not hold. */
static void draws(struct plot_how how, const char *text, const char *const words[])
{
	char *s = script_of(how, text);

	for (; *words; words++)
		if (**words == '!')
			has_not(s, *words + 1);
		else
			has(s, *words);
	free(s);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Results with SIZE and GB/s. */
#define ROW(op, size, gb_s) "{\"op\": \"" op "\", \"size_b\": " #size ", \"GB_s\": " #gb_s "}"
#define ROW_SMS(op, gb_s, sms)                                                                     \
	"{\"op\": \"" op "\", \"size_b\": 1, \"GB_s\": " #gb_s ", \"sms\": " #sms "}"

static void plot_add__a_line_for_each_op(void **state)
{
	draws((struct plot_how){0},
	      HEAD ROW("b", 8192, 3.5) "," ROW("a", 4096, 1) "," ROW("b", 4096, 2) TAIL,
	      WORDS("$line0 << EOD\n4096 2\n8192 3.5\nEOD\n", "$line1 << EOD\n4096 1\nEOD\n",
		    "title 'b'", "title 'a'", "set xtics ('4K' 4096, '8K' 8192)",
		    "set xrange [3900.95238:8601.6]", "set ylabel 'GB/s'", "set output 'a.svg'",
		    "set output 'a.png'", "!$all"));
}

static void plot_add__sms_tell_lines_apart(void **state)
{
	draws((struct plot_how){0},
	      HEAD ROW_SMS("k", 3, 4) "," ROW_SMS("k", 1, 16) "," ROW_SMS("l", 1, 16) TAIL,
	      WORDS("title 'k, 4 SMs'", "title 'k, 16 SMs'", "title 'l'"));
}

static void plot_add__what_is_null_is_left_out(void **state)
{
	draws((struct plot_how){.y = "p50_us"},
	      HEAD "{\"op\": \"a\", \"size_b\": 64, \"p50_us\": null},"
		   "{\"op\": \"a\", \"size_b\": 0, \"p50_us\": 5},"
		   "{\"op\": \"a\", \"size_b\": 65, \"p50_us\": 7}" TAIL,
	      WORDS("$line0 << EOD\n65 7\nEOD\n", "set xtics ('65' 65)"));
}

static void plot_add__several_results_of_one_x(void **state)
{
	draws((struct plot_how){0},
	      HEAD ROW("a", 64, 9) "," ROW("a", 64, 1) "," ROW("a", 64, 2) TAIL,
	      WORDS("$line0 << EOD\n64 2\nEOD\n", "$all0 << EOD\n64 1\n64 2\n64 9\nEOD\n"));
}

static void plot_add__several_files(void **state)
{
	struct plot_how how = {.only = "a"};
	struct plot *p = plot_open(&how);
	char *s;

	assert_int_equal(add(p, HEAD ROW("a", 2, 9) TAIL, "f"), 0);
	assert_int_equal(add(p, HEAD ROW("a", 2, 8) "," ROW("ab", 2, 8) TAIL, "it's"), 0);
	s = plot_script(p, "o'.svg", "p\n.png", why, sizeof(why));
	has(s, "title 'f: a'");
	has(s, "title 'it''s: a'");
	has(s, "set output 'o''.svg'");
	has(s, "set output 'p?.png'");
	has_not(s, "s: ab'");
	free(s);
	plot_close(p);
}

static void plot_add__overlap_shows_the_slowdown(void **state)
{
	draws((struct plot_how){.x = "blocks"},
	      "{\"command\": \"overlap\", \"results\": ["
	      "{\"op\": \"ce\", \"blocks\": 16, \"slowdown\": 1.02}]}",
	      WORDS("$line0 << EOD\n16 1.02\n", "set ylabel 'slowdown", "set xlabel 'thread blocks",
		    "set format x"));
}

/* As tools/bench/bench.py writes them. */
#define BENCH                                                                                      \
	"{\"command\": [\"bench.py\"], \"rows\": ["                                                \
	"{\"name\": \"gx put 4K, shm, verified\", \"unit\": \"GB/s\", \"values\": [9, 7, 8]},"     \
	"{\"name\": \"gx put 1M, shm, verified\", \"unit\": \"GB/s\", \"values\": [12]},"          \
	"{\"name\": \"gx put 64M, shm, verified\", \"unit\": \"GB/s\", \"values\": [],"            \
	" \"error\": \"it failed\"},"                                                              \
	"{\"name\": \"UCX put 4K, posix\", \"unit\": \"GB/s\", \"values\": [3, 7, 2]},"            \
	"{\"name\": \"testpmd memif, 1500-byte frames\", \"unit\": \"GB/s\", \"values\": [3]},"    \
	"{\"name\": \"gx lat 64, shm\", \"unit\": \"us\", \"values\": [0.5]}, 7, null],"           \
	"\"ratios\": [{\"gx\": \"gx put 4K, shm, verified\", \"rival\": \"UCX put 4K, posix\","    \
	" \"values\": [3, 1, 4]},"                                                                 \
	"{\"gx\": \"gx put 1M, shm, verified\", \"rival\": \"testpmd memif, 1500-byte frames\","   \
	" \"values\": [4]}]}"

static void plot_add__bench_by_size(void **state)
{
	draws((struct plot_how){0}, BENCH,
	      WORDS("$line0 << EOD\n4096 8\n1048576 12\nEOD\n", "$all0 << EOD\n4096 7\n4096 8\n",
		    "title 'gx put, shm, verified'", "title 'UCX put, posix'", "set ylabel 'GB/s'",
		    "!lat", "!testpmd"));
	draws((struct plot_how){.y = "p50_us"}, BENCH,
	      WORDS("$line0 << EOD\n64 0.5\nEOD\n", "title 'gx lat, shm'", "!gx put"));
}

/* Those that it has computed round by round: 3, 1, 4 and not 8 / 3. */
static void plot_add__bench_ratios(void **state)
{
	struct plot_how how = {.rival = "nobody"};
	struct plot *p = plot_open(&how);

	draws((struct plot_how){.rival = "UCX put, posix"}, BENCH,
	      WORDS("$line0 << EOD\n4096 3\nEOD\n", "title 'gx put, shm, verified'",
		    "set ylabel 'GB/s, ratio to UCX put, posix'", "!$line1"));
	draws((struct plot_how){.y = "ratio"}, BENCH,
	      WORDS("$line0 << EOD\n4096 3\nEOD\n", "$line1 << EOD\n1048576 4\nEOD\n",
		    "title 'gx put, shm, verified / UCX put, posix'",
		    "title 'gx put, shm, verified / testpmd memif, 1500-byte frames'"));
	assert_int_equal(add(p, BENCH, "x"), -EINVAL);
	assert_non_null(strstr(why, "nobody"));
	plot_close(p);
}

static void plot_add__bench_gpu_by_cores(void **state)
{
	draws((struct plot_how){.x = "cores"},
	      "{\"rows\": ["
	      "{\"name\": \"put to GPU, unpack d2d, 1 cores a side\", \"values\": [5, 6, 7]},"
	      "{\"name\": \"put to GPU, unpack d2d, 4 cores a side\", \"values\": [20]}]}",
	      WORDS("$line0 << EOD\n1 6\n4 20\nEOD\n", "set xlabel 'cores a side'",
		    "title 'put to GPU, unpack d2d, cores a side'"));
}

/* Without another word: what the results have. */
static void plot_add__latency_when_there_is_no_rate(void **state)
{
	draws((struct plot_how){0},
	      HEAD "{\"op\": \"lat\", \"size_b\": 64, \"GB_s\": null, \"p50_us\": 3}" TAIL,
	      WORDS("$line0 << EOD\n64 3\nEOD\n", "set ylabel 'microseconds, median'"));
}

static void plot_add__refuses(void **state)
{
	struct plot_how how = {.y = "share"};
	struct plot *p = plot_open(&how);

	assert_int_equal(add(p, "{\"rows\": []}", "x"), -EINVAL);
	assert_non_null(strstr(why, "\"results\""));
	assert_non_null(strstr(why, "tools/bench/bench.py"));
	assert_int_equal(add(p, "{\"results\": 7}", "x"), -EINVAL);
	assert_int_equal(add(p, "{\"results\": [7, null, [], {\"op\": 1}]}", "x"), -EINVAL);
	assert_int_equal(add(p, HEAD ROW("a", 2, 8) TAIL, "x"), -EINVAL);
	assert_non_null(strstr(why, "share"));
	plot_close(p);
	plot_close(NULL);
}

static void plot_add__too_many_lines(void **state)
{
	struct plot_how how = {0};
	struct plot *p = plot_open(&how);
	char text[128];
	int ret = 0;

	for (unsigned i = 0; i < 65 && !ret; i++) {
		snprintf(text, sizeof(text),
			 HEAD "{\"op\": \"a%u\", \"size_b\": 2, \"GB_s\": 8}" TAIL, i);
		ret = add(p, text, "x");
	}
	assert_int_equal(ret, -EINVAL);
	assert_non_null(strstr(why, "--only"));
	plot_close(p);
}

static void plot_script__ratio_to_a_rival(void **state)
{
	static const char text[] =
		HEAD ROW("gx", 4, 9) "," ROW("gx", 8, 9) "," ROW("nccl", 4, 2) "," ROW("nccl", 4, 4)
			TAIL;
	char *s = script_of((struct plot_how){.rival = "nccl"}, text);

	has(s, "$line0 << EOD\n4 3\nEOD\n");
	has(s, "ratio to nccl");
	has_not(s, "$line1");
	free(s);
	assert_null(script_of((struct plot_how){.rival = "ucx"}, text));
	assert_non_null(strstr(why, "ucx"));
}

static void plot_script__same_bytes_again(void **state)
{
	static const char text[] = HEAD ROW("gx", 4, 9) TAIL;
	struct plot_how how = {.title = "`date` 'x'", .log_y = true};
	char *a = script_of(how, text), *b = script_of(how, text);

	assert_string_equal(a, b);
	has(a, "set title '`date` ''x''' noenhanced");
	has(a, "set logscale y 10");
	free(a);
	free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plot_add__a_line_for_each_op),
		cmocka_unit_test(plot_add__sms_tell_lines_apart),
		cmocka_unit_test(plot_add__what_is_null_is_left_out),
		cmocka_unit_test(plot_add__several_results_of_one_x),
		cmocka_unit_test(plot_add__several_files),
		cmocka_unit_test(plot_add__overlap_shows_the_slowdown),
		cmocka_unit_test(plot_add__bench_by_size),
		cmocka_unit_test(plot_add__bench_ratios),
		cmocka_unit_test(plot_add__bench_gpu_by_cores),
		cmocka_unit_test(plot_add__latency_when_there_is_no_rate),
		cmocka_unit_test(plot_add__refuses),
		cmocka_unit_test(plot_add__too_many_lines),
		cmocka_unit_test(plot_script__ratio_to_a_rival),
		cmocka_unit_test(plot_script__same_bytes_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
