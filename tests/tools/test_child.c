// SPDX-License-Identifier: Apache-2.0
/*
 * Programs that are started: what they print, how they end, and that they do not outlive us.
 */
#include "gxperf/base/child.h"

#include <gx/gx.h>

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define WAIT_NS 20000000000ull

static void start(struct child *c, const char *script)
{
	char *const argv[] = {(char *)"sh", (char *)"-c", (char *)script, NULL};

	assert_int_equal(child_start(c, "sh", argv, -1, true), 0);
	assert_true(c->pid > 0);
}

static void printed(int fd, const char *want)
{
	size_t len = 0;
	char *text = child_text(fd, &len);

	assert_non_null(text);
	assert_string_equal(text, want);
	assert_int_equal(len, strlen(want));
	free(text);
}

static void child_end__status_and_what_it_printed(void **state)
{
	struct child c;

	start(&c, "cat; echo out; echo err >&2; exit 3"); /* its input is empty */
	assert_int_equal(child_end(&c, WAIT_NS), 3);
	assert_true(child_ended(&c));
	assert_int_equal(child_end(&c, 0), 3); /* again */
	printed(c.out, "out\n");
	printed(c.err, "err\n");
	child_close(&c);
	printed(c.out, "");
}

static void child_end__a_signal(void **state)
{
	struct child c;

	start(&c, "kill -9 $$");
	assert_int_equal(child_end(&c, WAIT_NS), CHILD_SIGNAL + SIGKILL);
	child_close(&c);
	signal(SIGPIPE, SIG_IGN);
	start(&c, "kill -PIPE $$"); /* is not ignored there */
	assert_int_equal(child_end(&c, WAIT_NS), CHILD_SIGNAL + SIGPIPE);
	child_close(&c);
}

static void child_end__makes_it(void **state)
{
	struct child c;

	start(&c, "exec sleep 100");
	assert_false(child_ended(&c));
	assert_int_equal(child_end(&c, 1000000), CHILD_SIGNAL + SIGTERM);
	child_close(&c);
	start(&c, "trap 'exit 5' TERM; echo here; while :; do sleep 0.01; done");
	for (size_t len = 0; !len;) {
		char *text = child_text(c.out, &len);

		free(text);
	}
	child_stop(&c);
	assert_int_equal(child_end(&c, WAIT_NS), 5);
	child_close(&c);
}

static void child_start__no_such_program(void **state)
{
	char *const argv[] = {(char *)"gx", NULL};
	struct child c;

	assert_int_equal(child_start(&c, "/nonexistent/gx", argv, -1, true), 0);
	assert_int_equal(child_end(&c, WAIT_NS), CHILD_NOT_RUN);
	printed(c.err, "/nonexistent/gx: No such file or directory\n");
	child_close(&c);
}

/* By then it has asked for the signal of our end. */
static void runs_sleep(pid_t pid)
{
	struct timespec nap = {.tv_nsec = 10000000};
	uint64_t end = gx_now() + WAIT_NS;
	char path[64], name[64] = "";

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	while (strcmp(name, "sleep\n") && gx_now() < end) {
		FILE *f = fopen(path, "re");

		if (f && !fgets(name, sizeof(name), f))
			name[0] = 0;
		if (f)
			fclose(f);
		nanosleep(&nap, NULL);
	}
}

/* @fd: where the one in between says the pid. */
static void in_between(int fd)
{
	char *const argv[] = {(char *)"sleep", (char *)"100", NULL};
	struct child c;

	if (child_start(&c, "sleep", argv, -1, false) ||
	    write(fd, &c.pid, sizeof(c.pid)) != sizeof(c.pid))
		_exit(1);
	runs_sleep(c.pid);
	_exit(0);
}

static void child_start__ends_with_us(void **state)
{
	struct timespec nap = {.tv_nsec = 10000000};
	uint64_t end = gx_now() + WAIT_NS;
	pid_t pid, sleeper = 0;
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (!pid)
		in_between(ends[1]);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(read(ends[0], &sleeper, sizeof(sleeper)), sizeof(sleeper));
	while (!kill(sleeper, 0) && gx_now() < end) {
		char path[64], text[64] = "";
		FILE *f;

		/* Dead and not yet reaped by whoever took it over is dead. */
		snprintf(path, sizeof(path), "/proc/%d/stat", (int)sleeper);
		f = fopen(path, "re");
		if (f && fgets(text, sizeof(text), f) && strstr(text, ") Z"))
			end = 0;
		if (f)
			fclose(f);
		nanosleep(&nap, NULL);
	}
	assert_true(kill(sleeper, 0) || !end);
	close(ends[0]);
	close(ends[1]);
}

static void child_self__beside_this_program(void **state)
{
	char self[4096], other[4096];

	assert_int_equal(child_self(NULL, self, sizeof(self)), 0);
	assert_non_null(strstr(self, "/test_child"));
	assert_int_equal(child_self("gxd", other, sizeof(other)), 0);
	assert_string_equal(strrchr(other, '/'), "/gxd");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(child_end__status_and_what_it_printed),
		cmocka_unit_test(child_end__a_signal),
		cmocka_unit_test(child_end__makes_it),
		cmocka_unit_test(child_start__no_such_program),
		cmocka_unit_test(child_start__ends_with_us),
		cmocka_unit_test(child_self__beside_this_program),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
