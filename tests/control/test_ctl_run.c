/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts in the folder of this host's gx processes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control/ctl_rig.h"

static char dir[] = "/tmp/gx-run-XXXXXX";

/* "DIR/PID-N.what" */
static const char *at(unsigned n, const char *what)
{
	static char path[96];

	snprintf(path, sizeof(path), "%s/%d-%u.%s", dir, getpid(), n, what);
	return path;
}

static bool is_there(unsigned n, const char *what)
{
	struct stat st;

	return !lstat(at(n, what), &st);
}

static void contexts_anew(void)
{
	if (client)
		fake_close(client);
	if (server)
		fake_close(server);
	server = fake_open("server");
	client = fake_open("client");
}

static void dir_begin(void)
{
	strcpy(strrchr(dir, '-'), "-XXXXXX");
	assert_non_null(mkdtemp(dir));
	setenv("GX_RUN_DIR", dir, 1);
	contexts_anew();
}

/* Nothing is left of both, so the folder is empty. */
static void dir_end(void)
{
	unsetenv("GX_RUN_DIR");
	contexts_anew();
	assert_int_equal(rmdir(dir), 0);
}

static void run__each_context_is_found(void **state)
{
	static char buf[1 << 20];
	char name[64] = "";
	struct stat st;
	ssize_t n;
	int fd;

	umask(0077);
	dir_begin();
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(stat(at(i, "sock"), &st), 0);
		assert_int_equal(st.st_mode, S_IFSOCK | 0660);
		fd = stats_connect(at(i, "sock"));
		assert_true(raw_send(fd, "GET / HTTP/1.0\r\n\r\n", 18));
		n = raw_recv_some(fd, buf, sizeof(buf) - 1);
		assert_true(n > 1000);
		close(fd);
		fd = open(at(i, "lock"), O_RDONLY | O_CLOEXEC);
		assert_int_equal(fstat(fd, &st), 0);
		assert_int_equal(st.st_mode, S_IFREG | 0660);
		assert_int_equal(flock(fd, LOCK_SH | LOCK_NB), -1); /* its owner lives */
		assert_true(read(fd, name, sizeof(name) - 1) > 0);
		assert_string_equal(name, "test_ctl_run");
		close(fd);
	}
	assert_false(is_there(2, "sock"));
	dir_end();
}

/* A name that is taken, by whatever it is, is left alone. */
static void run__leaves_what_is_there(void **state)
{
	dir_begin();
	fake_close(client);
	client = NULL;
	assert_int_equal(symlink("/nonexistent", at(1, "lock")), 0);
	assert_int_equal(mkdir(at(2, "sock"), 0700), 0);
	client = fake_open("client");
	assert_true(is_there(1, "lock"));
	assert_false(is_there(1, "sock"));
	assert_false(is_there(2, "lock")); /* its socket could not be made, so it was taken back */
	assert_true(is_there(3, "sock"));
	assert_true(is_there(3, "lock"));
	assert_int_equal(unlink(at(1, "lock")), 0);
	assert_int_equal(rmdir(at(2, "sock")), 0);
	dir_end();
}

/* Without a folder, and in one that may not be written, a context opens as before. */
static void run__opens_without(void **state)
{
	static const char *const dirs[] = {"", "/nonexistent", "/proc", "/dev/null"};
	char longest[200];

	memset(longest, 'x', sizeof(longest) - 1);
	longest[0] = '/';
	longest[sizeof(longest) - 1] = 0;
	for (unsigned i = 0; i < GX_ARRAY_SIZE(dirs); i++) {
		setenv("GX_RUN_DIR", dirs[i], 1);
		contexts_anew();
	}
	setenv("GX_RUN_DIR", longest, 1);
	contexts_anew();
	unsetenv("GX_RUN_DIR");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(run__each_context_is_found),
		TEST(run__leaves_what_is_there),
		TEST(run__opens_without),
	};

	return rig_run("ctl_run", tests, GX_ARRAY_SIZE(tests));
}
