// SPDX-License-Identifier: Apache-2.0
/*
 * Texts of the library as users of gxd and gxperf read them.
 */
#include "common/flag.h"

#include <gx/log.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void says(const char *text, const char *want)
{
	char buf[256];

	snprintf(buf, sizeof(buf), "%s", text);
	assert_ptr_equal(flag_say(buf), buf);
	assert_string_equal(buf, want);
}

static void flag_say__names_options(void **state)
{
	says("take gx_gpu_opts.bounce host, or gx_opts.ports shm",
	     "take --bounce host, or --port shm");
	says("gx_opts.insecure", "--insecure");
	says("nothing listens at a:1: run gx_listen() on a:1 there",
	     "nothing listens at a:1: run gxd --listen a:1 there");
	says("(gx_packet_opts.slots)gx_packet_opts.slots.", "(--slots)--slots.");
}

static void flag_say__other_words_stay(void **state)
{
	static const char *const same[] = {"",
					   "no word of the API",
					   "gx_opts",
					   "gx_opts.",
					   "gx_opts.bounc",
					   "gx_gpu_opts.bounce_device 3",
					   "gx_opts.slots2",
					   "gx_listen() failed"};

	for (unsigned i = 0; i < sizeof(same) / sizeof(same[0]); i++)
		says(same[i], same[i]);
}

/* As the log is without a sink: time, level and all, but with the option's name. */
static void flag_log__line(void **state)
{
	char line[256] = "";
	int fds[2], keep = dup(STDERR_FILENO);
	ssize_t n;

	assert_int_equal(pipe(fds), 0);
	assert_int_equal(dup2(fds[1], STDERR_FILENO), STDERR_FILENO);
	flag_log();
	gx_log(GX_LOG_WARN, "set gx_opts.insecure to serve %d", 7);
	gx_log(GX_LOG_DEBUG, "below the level");
	gx_log_sink(NULL, NULL);
	assert_int_equal(dup2(keep, STDERR_FILENO), STDERR_FILENO);
	n = read(fds[0], line, sizeof(line) - 1);
	assert_true(n > 24);
	assert_string_equal(line + 24, " gx: warn: set --insecure to serve 7\n");
	close(keep);
	close(fds[0]);
	close(fds[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(flag_say__names_options),
		cmocka_unit_test(flag_say__other_words_stay),
		cmocka_unit_test(flag_log__line),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
