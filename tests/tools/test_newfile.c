// SPDX-License-Identifier: Apache-2.0
/*
 * Files that come into being whole: what is there before, while and after one is written, and what
 * is refused.
 */
#include "gxperf/report/newfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char old_folder[4096];

/* Each test has a folder of its own, and is in it. */
static int folder_make(void **state)
{
	char *folder = strdup("/tmp/test_newfile-XXXXXX");

	*state = folder;
	return !getcwd(old_folder, sizeof(old_folder)) || !folder || !mkdtemp(folder) ||
	       chdir(folder);
}

static unsigned folder_count(void)
{
	DIR *dir = opendir(".");
	unsigned nr = 0;

	while (readdir(dir))
		nr++;
	closedir(dir);
	return nr - 2;
}

static int folder_end(void **state)
{
	DIR *dir = opendir(".");
	struct dirent *e;

	while ((e = readdir(dir)))
		unlink(e->d_name);
	closedir(dir);
	rmdir("d");
	if (chdir(old_folder) || rmdir(*state))
		return -1;
	free(*state);
	return 0;
}

static void holds(const char *path, const char *text)
{
	char buf[64] = "";
	int fd = open(path, O_RDONLY);

	assert_true(fd >= 0);
	assert_int_equal(read(fd, buf, sizeof(buf) - 1), strlen(text));
	assert_string_equal(buf, text);
	close(fd);
}

static void put(const char *path, const char *text, mode_t mode)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
}

static void newfile_keep__there_when_whole(void **state)
{
	struct newfile f;
	char buf[4] = "";

	assert_int_equal(newfile_open(&f, "a", false), 0);
	assert_int_equal(newfile_write(&f, "one", 3), 0);
	assert_int_equal(access("a", F_OK), -1);
	assert_int_equal(pread(f.fd, buf, 3, 0), 3);
	assert_string_equal(buf, "one");
	assert_int_equal(newfile_keep(&f), 0);
	holds("a", "one");
	assert_int_equal(folder_count(), 1);
	assert_int_equal(f.fd, -1);
}

static void newfile_keep__replaces_when_whole(void **state)
{
	struct newfile f;
	struct stat st;

	put("a", "before", 0640);
	assert_int_equal(symlink("a", "link"), 0);
	assert_int_equal(newfile_open(&f, "link", false), -EEXIST);
	assert_int_equal(newfile_open(&f, "link", true), 0);
	assert_int_equal(newfile_write(&f, "after", 5), 0);
	holds("a", "before");
	assert_int_equal(newfile_keep(&f), 0);
	holds("a", "after");
	assert_int_equal(lstat("link", &st), 0);
	assert_true(S_ISLNK(st.st_mode));
	assert_int_equal(stat("a", &st), 0);
	assert_int_equal(st.st_mode & 07777, 0640);
	assert_int_equal(folder_count(), 2);
}

static void newfile_drop__leaves_nothing(void **state)
{
	struct newfile f, none = NEWFILE_NONE;

	put("a", "before", 0600);
	assert_int_equal(newfile_open(&f, "a", true), 0);
	assert_int_equal(newfile_write(&f, "after", 5), 0);
	newfile_drop(&f);
	newfile_drop(&f);
	newfile_drop(&none);
	holds("a", "before");
	assert_int_equal(folder_count(), 1);
}

/* As where the file system knows no file without a name. */
static void newfile_part_named(struct newfile *f, bool keep)
{
	assert_int_equal(newfile_open(f, "a", true), 0);
	close(f->fd);
	f->fd = open(f->part, O_RDWR | O_CREAT | O_EXCL, 0600);
	assert_true(f->fd >= 0);
	f->nameless = false;
	assert_int_equal(newfile_write(f, "after", 5), 0);
	if (keep)
		assert_int_equal(newfile_keep(f), 0);
	else
		newfile_drop(f);
}

static void newfile_keep__under_a_name_of_its_own(void **state)
{
	struct newfile f;

	put("a", "before", 0600);
	newfile_part_named(&f, false);
	holds("a", "before");
	assert_int_equal(folder_count(), 1);
	newfile_part_named(&f, true);
	holds("a", "after");
	assert_int_equal(folder_count(), 1);
}

static void newfile_keep__not_over_what_came_meanwhile(void **state)
{
	struct newfile f;

	assert_int_equal(newfile_open(&f, "a", false), 0);
	put("a", "theirs", 0600);
	assert_int_equal(newfile_keep(&f), -EEXIST);
	holds("a", "theirs");
	assert_int_equal(folder_count(), 1);
	assert_int_equal(f.fd, -1);
}

static void newfile_write__no_room(void **state)
{
	struct newfile f;

	assert_int_equal(newfile_open(&f, "/dev/full", false), 0);
	assert_true(f.stream);
	assert_int_equal(newfile_write(&f, "x", 1), -ENOSPC);
	newfile_drop(&f);
	assert_int_equal(newfile_open(&f, "/dev/null", false), 0);
	assert_int_equal(newfile_write(&f, "x", 1), 0);
	assert_int_equal(newfile_keep(&f), 0);
}

static void newfile_open__refuses(void **state)
{
	char long_name[PATH_MAX + 8];
	struct newfile f;

	memset(long_name, 'x', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = '\0';
	assert_int_equal(newfile_open(&f, long_name, false), -ENAMETOOLONG);
	assert_int_equal(newfile_open(&f, "", false), -ENOENT);
	assert_int_equal(newfile_open(&f, "none/a", false), -ENOENT);
	assert_int_equal(mkdir("d", 0700), 0);
	assert_int_equal(newfile_open(&f, "d", true), -EISDIR);
	assert_int_equal(mkfifo("fifo", 0600), 0);
	assert_int_equal(newfile_open(&f, "fifo", true), -ENXIO);
	assert_int_equal(f.fd, -1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(newfile_keep__there_when_whole),
		TEST(newfile_keep__replaces_when_whole),
		TEST(newfile_drop__leaves_nothing),
		TEST(newfile_keep__under_a_name_of_its_own),
		TEST(newfile_keep__not_over_what_came_meanwhile),
		TEST(newfile_write__no_room),
		TEST(newfile_open__refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
