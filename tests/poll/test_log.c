// SPDX-License-Identifier: Apache-2.0
/*
 * The log: its lines and formats, those that come again, and that it never waits for whoever reads it. Each test puts a pipe, a
 * socket or a file in the place of stderr.
 */
#include "gx_internal/base.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define LINES 400 /* more than the pipe has room for */

static int real_stderr;

static void stderr_set(int fd)
{
	assert_int_equal(dup2(fd, STDERR_FILENO), STDERR_FILENO);
}

static int stderr_back(void **state)
{
	dup2(real_stderr, STDERR_FILENO);
	gx_log_level_set(GX_LOG_WARN);
	gx_log_format_set(GX_LOG_TEXT);
	gx_log_name_set("gx");
	unsetenv("JOURNAL_STREAM");
	return 0;
}

/* What is there now; never waits. */
static size_t read_all(int fd, char *buf, size_t room)
{
	size_t n = 0;
	ssize_t got;

	fcntl(fd, F_SETFL, O_NONBLOCK);
	while (n + 1 < room && (got = read(fd, buf + n, room - 1 - n)) > 0)
		n += (size_t)got;
	buf[n] = '\0';
	return n;
}

static unsigned lines_of(const char *text)
{
	unsigned n = 0;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

static void log__line(void **state)
{
	char buf[512];
	int fds[2], n = 0;

	assert_int_equal(pipe(fds), 0);
	stderr_set(fds[1]);
	gx_log_name_set("gxd");
	gx_warn("port %s: %d", "udp", 7);
	gx_info("below the level");
	stderr_back(state);
	read_all(fds[0], buf, sizeof(buf));
	/* "2026-11-22T06:20:11.123Z gxd: warn: port udp: 7" */
	assert_int_equal(
		sscanf(buf, "20%*2d-%*2d-%*2dT%*2d:%*2d:%*2d.%*3dZ gxd: warn: port udp: 7%n", &n),
		0);
	assert_int_equal(n, (int)strlen("2026-11-22T06:20:11.123Z gxd: warn: port udp: 7"));
	assert_int_equal(lines_of(buf), 1);
	close(fds[0]);
	close(fds[1]);
}

static void log__long_line_is_cut(void **state)
{
	static char text[4096], buf[8192];
	int fds[2];

	memset(text, 'x', sizeof(text) - 1);
	assert_int_equal(pipe(fds), 0);
	stderr_set(fds[1]);
	gx_err("%s", text);
	stderr_back(state);
	assert_in_range(read_all(fds[0], buf, sizeof(buf)), 1000, 1200);
	assert_int_equal(lines_of(buf), 1);
	close(fds[0]);
	close(fds[1]);
}

/* Different ones, as those that come again are counted. */
static void *warn_lines(void *n)
{
	static unsigned nr;

	for (unsigned i = 0; i < *(unsigned *)n; i++)
		gx_warn("%4u %900s", nr++, "nobody reads this");
	return NULL;
}

/* On a thread of its own: were the log to wait, it would never end. */
static void in_time(void *(*fn)(void *arg), void *arg)
{
	struct timespec until;
	pthread_t thread;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 10;
	assert_int_equal(pthread_create(&thread, NULL, fn, arg), 0);
	assert_int_equal(pthread_timedjoin_np(thread, NULL, &until), 0);
}

static void drops(int reader, int writer)
{
	static unsigned n = LINES;
	static char buf[1 << 20];
	uint64_t before = gx_log_dropped(), dropped;
	char *told;

	stderr_set(writer);
	in_time(warn_lines, &n);
	dropped = gx_log_dropped() - before;
	assert_in_range(dropped, 1, LINES - 1);
	read_all(reader, buf, sizeof(buf));
	assert_int_equal(lines_of(buf), LINES - dropped);
	assert_null(strstr(buf, "were dropped"));
	gx_warn("somebody reads again");
	gx_warn("and again");
	read_all(reader, buf, sizeof(buf));
	told = strstr(buf, " lines of this log were dropped");
	assert_non_null(told);
	assert_int_equal(strtoul(buf + strlen("gx: "), NULL, 10), dropped);
	assert_int_equal(lines_of(buf), 3);
	assert_int_equal(gx_log_dropped() - before, dropped);
}

static void log__full_pipe_drops(void **state)
{
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	drops(fds[0], fds[1]);
	stderr_back(state);
	close(fds[0]);
	close(fds[1]);
}

static void log__full_socket_drops(void **state)
{
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	drops(fds[0], fds[1]);
	stderr_back(state);
	close(fds[0]);
	close(fds[1]);
}

/* Ctrl-S. */
static void log__stopped_terminal_drops(void **state)
{
	uint64_t before = gx_log_dropped();
	int ptm = posix_openpt(O_RDWR | O_NOCTTY), pts;
	static unsigned n = LINES;

	if (ptm < 0 || grantpt(ptm) || unlockpt(ptm))
		skip();
	pts = open(ptsname(ptm), O_RDWR | O_NOCTTY);
	if (pts < 0)
		skip();
	assert_int_equal(write(ptm, "\x13", 1), 1);
	stderr_set(pts);
	in_time(warn_lines, &n);
	stderr_back(state);
	assert_int_equal(gx_log_dropped() - before, LINES);
	close(pts);
	close(ptm);
}

static void log__closed_stderr(void **state)
{
	uint64_t before = gx_log_dropped();
	int err;

	close(STDERR_FILENO);
	errno = ENOTTY;
	gx_warn("into nothing");
	err = errno;
	stderr_back(state);
	assert_int_equal(gx_log_dropped() - before, 1);
	assert_int_equal(err, ENOTTY); /* the caller's, whatever came of the line */
}

static volatile sig_atomic_t nr_sigpipe;

static void sigpipe(int signo)
{
	nr_sigpipe++;
}

/* A program that has not thought of SIGPIPE would end by it. */
static void log__reader_has_gone(void **state)
{
	uint64_t before = gx_log_dropped();
	int fds[2];

	nr_sigpipe = 0;
	signal(SIGPIPE, sigpipe);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(i ? pipe(fds) : socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
		close(fds[0]);
		stderr_set(fds[1]);
		gx_warn("to nobody");
		stderr_back(state);
		close(fds[1]);
	}
	signal(SIGPIPE, SIG_DFL);
	assert_int_equal(nr_sigpipe, 0);
	assert_int_equal(gx_log_dropped() - before, 2);
}

struct sink {
	unsigned nr;
	int level;
	char line[64];
};

static void sink_line(void *arg, int level, const char *line)
{
	struct sink *s = arg;

	s->nr++;
	s->level = level;
	snprintf(s->line, sizeof(s->line), "%s", line);
	gx_err("a sink that logs");
}

static void *sink_warn(void *arg)
{
	gx_log_sink(sink_line, arg);
	gx_warn("%d of %d", 1, 2);
	gx_info("below the level");
	gx_log_sink(NULL, NULL);
	return NULL;
}

/* It gets its lines, those that it causes are not logged, and then stderr has them again. */
static void log_sink__lines(void **state)
{
	static struct sink s;
	char buf[256];
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	stderr_set(fds[1]);
	in_time(sink_warn, &s);
	gx_warn("to stderr");
	stderr_back(state);
	assert_int_equal(s.nr, 1);
	assert_int_equal(s.level, GX_LOG_WARN);
	assert_string_equal(s.line, "1 of 2");
	read_all(fds[0], buf, sizeof(buf));
	assert_null(strstr(buf, "a sink that logs"));
	assert_non_null(strstr(buf, "warn: to stderr\n"));
	close(fds[0]);
	close(fds[1]);
}

/* Lines that push all former ones out of those that are remembered, so that their counts are written. */
static void others(void)
{
	static unsigned nr;

	for (unsigned i = 0; i < 8; i++)
		gx_warn("other %u", nr++);
}

/* Sum of what lines with @what say was said more. */
static unsigned long more_of(const char *buf, const char *what)
{
	unsigned long more = 0;

	for (const char *at = buf; (at = strstr(at, what)); at++)
		more += strtoul(strstr(at, "(said ") + 6, NULL, 10);
	return more;
}

/* A flood of few different lines: each once, and how often it came. */
static void log__flood_is_counted(void **state)
{
	static char buf[1 << 16];
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	others();
	stderr_set(fds[1]);
	for (unsigned i = 0; i < 30000; i++)
		gx_warn("flood %u", i % 3);
	read_all(fds[0], buf, sizeof(buf));
	assert_int_equal(lines_of(buf), 3);
	assert_null(strstr(buf, "times more"));
	others();
	stderr_back(state);
	read_all(fds[0], buf, sizeof(buf));
	assert_int_equal(lines_of(buf), 8 + 3);
	assert_int_equal(more_of(buf, " gx: warn: flood "), 30000 - 3);
	close(fds[0]);
	close(fds[1]);
}

/* Peers that come and go: 16 lines of each kind, whatever their numbers, and how many more. */
static void log__flood_of_peers_is_counted(void **state)
{
	static char buf[1 << 16];
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	others();
	stderr_set(fds[1]);
	for (unsigned i = 0; i < 5000; i++) {
		gx_warn("peer 10.0.0.%u:%u pid %u conn %u came", i % 250, 1000 + i, i * 7, i);
		gx_warn("peer 10.0.0.%u:%u pid %u conn %u has left", i % 250, 1000 + i, i * 7, i);
		if (i < 40)
			gx_warn("number %u of nobody", i);
	}
	read_all(fds[0], buf, sizeof(buf));
	assert_int_equal(lines_of(buf), 16 + 16 + 40);
	assert_non_null(strstr(buf, ":1015 pid 105 conn 15 has left\n"));
	for (int c = 'a'; c <= 'h'; c++)
		gx_warn("peer %c", c);
	stderr_back(state);
	read_all(fds[0], buf, sizeof(buf));
	assert_int_equal(lines_of(buf), 8 + 2);
	assert_non_null(strstr(buf, ":5999 pid 34993 conn 4999 came (said 4984 times more)\n"));
	assert_int_equal(more_of(buf, "conn 4999 "), 2 * (5000 - 16));
	close(fds[0]);
	close(fds[1]);
}

/* One line through @format. */
static void said(enum gx_log_format format, const char *line, char *buf, size_t room)
{
	void *none = NULL;
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	others();
	stderr_set(fds[1]);
	gx_log_format_set(format);
	gx_warn("%s", line);
	stderr_back(&none);
	read_all(fds[0], buf, room);
	assert_int_equal(lines_of(buf), 1);
	close(fds[0]);
	close(fds[1]);
}

static void log__keys(void **state)
{
	char buf[8192];

	said(GX_LOG_KEYS, "peer 10.0.0.1:7501 pid 4711: it said \"a\\b\"", buf, sizeof(buf));
	assert_memory_equal(buf, "time=20", 7);
	assert_non_null(strstr(buf,
			       "Z level=warn name=\"gx\" peer=\"10.0.0.1:7501\" pid=4711 "
			       "msg=\"peer 10.0.0.1:7501 pid 4711: it said \\\"a\\\\b\\\"\"\n"));
	said(GX_LOG_KEYS, "peer [fe80::1]:7501 pid 3 conn 18446744073709551615 is gone", buf,
	     sizeof(buf));
	assert_non_null(
		strstr(buf, " peer=\"[fe80::1]:7501\" pid=3 conn=18446744073709551615 msg="));
	said(GX_LOG_KEYS, "peer host:7501 conn 9: lost", buf, sizeof(buf));
	assert_non_null(strstr(buf, " peer=\"host:7501\" conn=9 msg="));
	/* Behind a name alone the text may be a peer's. */
	said(GX_LOG_KEYS, "peer [fe80::1]:7501: conn 5 pid 6", buf, sizeof(buf));
	assert_non_null(strstr(buf, " peer=\"[fe80::1]:7501\" msg="));
	said(GX_LOG_KEYS, "peer of nobody", buf, sizeof(buf));
	assert_null(strstr(buf, " peer="));
	said(GX_LOG_KEYS, "peer ", buf, sizeof(buf));
	assert_null(strstr(buf, " peer="));
}

/* Whatever a peer has in its name, it is one object with the text. */
static void log__json(void **state)
{
	static char buf[8192], line[1024];
	json_t *doc;

	said(GX_LOG_JSON, "peer 10.0.0.1:7501 pid 4711: \"\n\t\x01\x7f\xff\\", buf, sizeof(buf));
	doc = json_loads(buf, 0, NULL);
	assert_non_null(doc);
	assert_string_equal(json_string_value(json_object_get(doc, "msg")),
			    "peer 10.0.0.1:7501 pid 4711: \"\n\t\x01\x7f?\\");
	assert_string_equal(json_string_value(json_object_get(doc, "level")), "warn");
	assert_string_equal(json_string_value(json_object_get(doc, "peer")), "10.0.0.1:7501");
	assert_int_equal(json_integer_value(json_object_get(doc, "pid")), 4711);
	json_decref(doc);
	memset(line, '"', sizeof(line) - 1);
	said(GX_LOG_JSON, line, buf, sizeof(buf));
	doc = json_loads(buf, 0, NULL);
	assert_non_null(doc);
	json_decref(doc);
}

static void log__journal(void **state)
{
	char buf[4096], env[64];
	struct stat st;
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	assert_int_equal(fstat(fds[1], &st), 0);
	snprintf(env, sizeof(env), "%llu:%llu", (unsigned long long)st.st_dev,
		 (unsigned long long)st.st_ino);
	others();
	setenv("JOURNAL_STREAM", env, 1);
	stderr_set(fds[1]);
	gx_err("of the journal");
	gx_warn("of the journal");
	setenv("JOURNAL_STREAM", "1:1", 1); /* another file than stderr */
	gx_warn("of a file");
	stderr_back(state);
	read_all(fds[0], buf, sizeof(buf));
	assert_memory_equal(buf, "<3>20", 5);
	assert_non_null(strstr(buf, "\n<4>20"));
	assert_null(strchr(strstr(buf, "\n<4>20") + 2, '<'));
	close(fds[0]);
	close(fds[1]);
}

/* A disk without room: lines are counted, and the next one says so. */
static void log__full_disk(void **state)
{
	uint64_t before = gx_log_dropped();
	int fds[2], full = open("/dev/full", O_WRONLY);
	char buf[4096];

	if (full < 0)
		skip();
	stderr_set(full);
	for (unsigned i = 0; i < 3; i++)
		gx_warn("to the full disk");
	stderr_back(state);
	assert_int_equal(gx_log_dropped() - before, 3);
	assert_int_equal(pipe(fds), 0);
	stderr_set(fds[1]);
	gx_log_format_set(GX_LOG_KEYS);
	gx_warn("there is room again");
	stderr_back(state);
	read_all(fds[0], buf, sizeof(buf));
	assert_int_equal(lines_of(buf), 2);
	assert_non_null(strstr(buf, "msg=\"3 lines of this log were dropped\""));
	close(full);
	close(fds[0]);
	close(fds[1]);
}

static int held[2]; /* pipes: a sink holds the log; it may go on */
static int goes_on[2];

static void sink_holds(void *arg, int level, const char *line)
{
	char c = 0;

	assert_int_equal(write(held[1], &c, 1), 1);
	assert_int_equal(read(goes_on[0], &c, 1), 1);
}

static void *log_main(void *arg)
{
	gx_warn("this thread holds the log");
	return NULL;
}

/* Another thread is in a sink: a child has no such thread, and logs. */
static void log__in_a_child(void **state)
{
	pthread_t thread;
	int status = -1;
	pid_t child;
	char c = 0;

	assert_int_equal(pipe(held) | pipe(goes_on), 0);
	gx_log_sink(sink_holds, NULL);
	assert_int_equal(pthread_create(&thread, NULL, log_main, NULL), 0);
	assert_int_equal(read(held[0], &c, 1), 1);
	child = fork();
	if (!child) {
		gx_log_sink(NULL, NULL);
		gx_warn("the child's line");
		_exit(0);
	}
	for (unsigned i = 0; i < 20000 && !waitpid(child, &status, WNOHANG); i++)
		usleep(1000);
	if (status == -1)
		kill(child, SIGKILL);
	assert_int_equal(write(goes_on[1], &c, 1), 1);
	pthread_join(thread, NULL);
	gx_log_sink(NULL, NULL);
	assert_int_equal(status, 0);
	for (unsigned i = 0; i < 2; i++) {
		close(held[i]);
		close(goes_on[i]);
	}
}

static void log_level_parse__names(void **state)
{
	assert_int_equal(gx_log_level_parse("err"), GX_LOG_ERR);
	assert_int_equal(gx_log_level_parse("debug"), GX_LOG_DEBUG);
	assert_int_equal(gx_log_level_parse("loud"), -EINVAL);
	assert_int_equal(gx_log_level_parse(""), -EINVAL);
	assert_int_equal(gx_log_format_parse("keys"), GX_LOG_KEYS);
	assert_int_equal(gx_log_format_parse("json"), GX_LOG_JSON);
	assert_int_equal(gx_log_format_parse("xml"), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(log__line, stderr_back),
		cmocka_unit_test_teardown(log__long_line_is_cut, stderr_back),
		cmocka_unit_test_teardown(log__full_pipe_drops, stderr_back),
		cmocka_unit_test_teardown(log__full_socket_drops, stderr_back),
		cmocka_unit_test_teardown(log__stopped_terminal_drops, stderr_back),
		cmocka_unit_test_teardown(log__closed_stderr, stderr_back),
		cmocka_unit_test_teardown(log__reader_has_gone, stderr_back),
		cmocka_unit_test_teardown(log_sink__lines, stderr_back),
		cmocka_unit_test_teardown(log__flood_is_counted, stderr_back),
		cmocka_unit_test_teardown(log__flood_of_peers_is_counted, stderr_back),
		cmocka_unit_test_teardown(log__keys, stderr_back),
		cmocka_unit_test_teardown(log__json, stderr_back),
		cmocka_unit_test_teardown(log__journal, stderr_back),
		cmocka_unit_test_teardown(log__full_disk, stderr_back),
		cmocka_unit_test_teardown(log__in_a_child, stderr_back),
		cmocka_unit_test(log_level_parse__names),
	};

	real_stderr = dup(STDERR_FILENO);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
