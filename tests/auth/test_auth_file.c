/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Key files: what is taken, and what is refused with which words.
 */
#include "auth/auth.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define HEX    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define SECRET "secret " HEX "\n"
#define HEAD   "gx-key 1\nname kv\n"
#define GOOD   HEAD SECRET

static char dir[] = "/tmp/gx-auth-XXXXXX", path[128];

static int setup(void **state)
{
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/kv.key", dir);
	return 0;
}

static int teardown(void **state)
{
	unlink(path);
	rmdir(dir);
	memcpy(dir + sizeof(dir) - 7, "XXXXXX", 6);
	return 0;
}

static void file_put(const char *text, size_t len, mode_t mode)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_int_equal(write(fd, text, len), len);
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
}

/* No error shows a byte of the file. */
static int key_get(struct gx_auth_key *key)
{
	int ret;

	*key = (struct gx_auth_key)GX_INIT(*key);
	ret = gx_auth_read(path, key);
	if (ret) {
		assert_null(strstr(gx_error(), "00112233"));
		assert_non_null(strstr(gx_error(), path));
		assert_int_equal(key->name[0], 0); /* results are written on success alone */
	}
	return ret;
}

static void read__least(void **state)
{
	struct gx_auth_key key;

	file_put(GOOD, strlen(GOOD), 0600);
	assert_int_equal(key_get(&key), 0);
	assert_string_equal(key.name, "kv");
	for (unsigned i = 0; i < GX_AUTH_SECRET_B; i++)
		assert_int_equal(key.secret[i], i % 16 * 0x11);
	assert_int_equal(key.access, GX_ACCESS_PUT | GX_ACCESS_GET);
	assert_string_equal(key.regions, "");
	assert_int_equal(key.conns_max | key.under_way_max_b, 0);
}

static void read__rights(void **state)
{
	static const char text[] = HEAD "access put\nregions kv,log*\nconnections 16\n"
					"under-way 3M\nsecret " HEX; /* no end of line is fine */
	struct gx_auth_key key;

	file_put(text, strlen(text), 0400);
	assert_int_equal(key_get(&key), 0);
	assert_int_equal(key.access, GX_ACCESS_PUT);
	assert_string_equal(key.regions, "kv,log*");
	assert_int_equal(key.conns_max, 16);
	assert_int_equal(key.under_way_max_b, 3 << 20);
}

/* Which line, and the cure. */
static void read__content(void **state)
{
	static const struct {
		const char *text, *line;
	} row[] = {
		{"", "line 0: the file ends without"},
		{"name kv\n" SECRET, "line 1: a key file begins"},
		{"gx-key 2\nname kv\n" SECRET, "line 1: a key file begins"},
		{"gx-key 1\r\nname kv\n" SECRET, "line 1: a key file begins"},
		{"\nname kv\n" SECRET, "line 1: a key file begins"},
		{"gx-key 1\nname kv\n", "line 2: the file ends without"},
		{"gx-key 1\n" SECRET, "line 2: the file ends without"},
		{"gx-key 1\nname kv\n" HEX "\n", "line 3: a line is name, secret"},
		{HEAD "colour red\n" SECRET, "line 3: a line is name, secret"},
		{HEAD "names x\n" SECRET, "line 3: a line is name, secret"},
		{HEAD "\n" SECRET, "line 3: a line is name, secret"},
		{GOOD "\n", "line 4: the secret is the last line"},
		{GOOD "access get\n", "line 4: the secret is the last line"},
		{HEAD "name kv\n" SECRET, "line 3: this word has come before"},
		{GOOD SECRET, "line 4: the secret is the last line"},
		{"gx-key 1\nname kv\nsecret 0011\n", "line 3: a secret is 64 digits"},
		{"gx-key 1\nname kv\nsecret " HEX "0\n", "line 3: a secret is 64 digits"},
		{"gx-key 1\nname kv\nsecret  " HEX "\n", "line 3: a secret is 64 digits"},
		{"gx-key 1\nname 0123456789012345678901234567890x\n" SECRET, "line 2: the name is"},
		{"gx-key 1\nname \n" SECRET, "the name of a key is 1 to 31"},
		{"gx-key 1\nname a b\n" SECRET, "the name of a key is 1 to 31"},
		{"gx-key 1\nname .a\n" SECRET, "the name of a key is 1 to 31"},
		{"gx-key 1\nname a/b\n" SECRET, "the name of a key is 1 to 31"},
		{HEAD "access all\n" SECRET, "line 3: access is put, get"},
		{HEAD "access put,\n" SECRET, "line 3: access is put, get"},
		{HEAD "regions \n" SECRET, "line 3: the list of regions"},
		{HEAD "regions a,,b\n" SECRET, "regions of a key are names"},
		{HEAD "regions ,a\n" SECRET, "regions of a key are names"},
		{HEAD "regions a,\n" SECRET, "regions of a key are names"},
		{HEAD "regions a*b\n" SECRET, "regions of a key are names"},
		{HEAD "regions a b\n" SECRET, "regions of a key are names"},
		{HEAD "connections 0\n" SECRET, "line 3: this is a number from 1"},
		{HEAD "connections 4294967296\n" SECRET, "line 3: this is a number from 1"},
		{HEAD "connections 18446744073709551617\n" SECRET,
		 "line 3: this is a number from 1"},
		{HEAD "connections 1K\n" SECRET, "line 3: this is a number from 1"},
		{HEAD "connections -1\n" SECRET, "line 3: this is a number from 1"},
		{HEAD "under-way 1g\n" SECRET, "line 3: this is a number of bytes"},
		{HEAD "under-way 16777216T\n" SECRET, "line 3: this is a number of bytes"},
		{HEAD "under-way 18446744073709551616\n" SECRET,
		 "line 3: this is a number of bytes"},
	};
	struct gx_auth_key key;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(row); i++) {
		file_put(row[i].text, strlen(row[i].text), 0600);
		assert_int_equal(key_get(&key), -EINVAL);
		if (!strstr(gx_error(), row[i].line))
			fail_msg("row %u: %s", i, gx_error());
	}
}

static void read__byte_0_and_length(void **state)
{
	static const char
		zero[] = "gx-key 1\nname k\0v\n" SECRET,
		zeros[] = "gx-key 1\nname kv\nsecret "
			  "0000000000000000000000000000000000000000000000000000000000000000\n";
	static char text[AUTH_FILE_MAX_B + 1];
	struct gx_auth_key key;

	file_put(zero, sizeof(zero) - 1, 0600);
	assert_int_equal(key_get(&key), -EINVAL);
	assert_non_null(strstr(gx_error(), "line 2: the line is too long"));
	file_put(zeros, strlen(zeros), 0600);
	assert_int_equal(key_get(&key), -EINVAL);
	assert_non_null(strstr(gx_error(), "and not zeros"));
	memset(text, 'x', sizeof(text));
	file_put(text, sizeof(text), 0600);
	assert_int_equal(key_get(&key), -EFBIG);
	file_put(text, sizeof(text) - 1, 0600);
	assert_int_equal(key_get(&key), -EINVAL);
}

/* However much of a file is there, it is the whole key or none: never one with more rights. */
static void read__part(void **state)
{
	static const char text[] = HEAD "access get\nregions kv\nconnections 1\n" SECRET;
	struct gx_auth_key key;

	for (size_t len = 0; len < sizeof(text) - 1; len++) {
		file_put(text, len, 0600);
		if (!key_get(&key)) { /* without the end of the last line */
			assert_int_equal(len, sizeof(text) - 2);
			assert_int_equal(key.access, GX_ACCESS_GET);
			assert_string_equal(key.regions, "kv");
		}
	}
}

/* Root's files may be read by a group: that of systemd's credentials. Others' never. */
static void read__modes(void **state)
{
	static const mode_t bad[] = {0644, 0604, 0602, 0620, 0660, 0601, 0610, 0666, 0777};
	struct gx_auth_key key;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		char mode[8];

		file_put(GOOD, strlen(GOOD), bad[i]);
		assert_int_equal(key_get(&key), -EACCES);
		snprintf(mode, sizeof(mode), "%04o", bad[i]);
		assert_non_null(strstr(gx_error(), mode));
		assert_non_null(strstr(gx_error(), "chmod 600"));
	}
	file_put(GOOD, strlen(GOOD), 0440);
	assert_int_equal(key_get(&key), geteuid() ? -EACCES : 0);
}

static void read__owners(void **state)
{
	struct gx_auth_key key;

	if (geteuid()) {
		print_message("skipped: root alone gives files away\n");
		skip();
	}
	file_put(GOOD, strlen(GOOD), 0600);
	assert_int_equal(chown(path, 12345, 0), 0);
	assert_int_equal(key_get(&key), -EACCES);
	assert_non_null(strstr(gx_error(), "is of user 12345"));
	/* Root's, read by the group that root chose; and the user's own, where a group may read. */
	assert_int_equal(chown(path, 0, 0), 0);
	assert_int_equal(chmod(path, 0644), 0);
	assert_int_equal(seteuid(12345), 0);
	assert_int_equal(key_get(&key), -EACCES);
	assert_int_equal(seteuid(0), 0);
	assert_int_equal(chown(path, 12345, 0), 0);
	assert_int_equal(chmod(path, 0640), 0);
	assert_int_equal(chmod(dir, 0755), 0);
	assert_int_equal(seteuid(12345), 0);
	assert_int_equal(key_get(&key), -EACCES);
	assert_int_equal(chmod(path, 0600), 0);
	assert_int_equal(key_get(&key), 0);
	assert_int_equal(seteuid(0), 0);
}

static void read__kinds(void **state)
{
	struct gx_auth_key key;
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	int fd;

	assert_int_equal(key_get(&key), -ENOENT);
	assert_non_null(strstr(gx_error(), "gx_auth_make() makes one"));
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(key_get(&key), -EINVAL);
	assert_non_null(strstr(gx_error(), "is a folder"));
	rmdir(path);
	assert_int_equal(mkfifo(path, 0600), 0); /* does not wait for a writer */
	assert_int_equal(key_get(&key), -EINVAL);
	assert_non_null(strstr(gx_error(), "is a pipe"));
	unlink(path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	memcpy(un.sun_path, path, strlen(path));
	assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof(un)), 0);
	assert_int_equal(key_get(&key), -ENXIO);
	close(fd);
	unlink(path);
	assert_int_equal(symlink("/dev/null", path), 0);
	assert_int_equal(key_get(&key), -EINVAL);
	assert_non_null(strstr(gx_error(), "is a device"));
	unlink(path);
	assert_int_equal(symlink("kv.key", path), 0); /* itself */
	assert_int_equal(key_get(&key), -ELOOP);
}

/* What counts is the file behind it, as Kubernetes has them. */
static void read__symlink(void **state)
{
	struct gx_auth_key key;
	char real[160];

	snprintf(real, sizeof(real), "%s.real", path);
	file_put(GOOD, strlen(GOOD), 0600);
	assert_int_equal(rename(path, real), 0);
	assert_int_equal(symlink(real, path), 0);
	assert_int_equal(key_get(&key), 0);
	assert_int_equal(chmod(real, 0604), 0);
	assert_int_equal(key_get(&key), -EACCES);
	unlink(real);
}

static int fd_get(int fd, struct gx_auth_key *key)
{
	char name[16];

	snprintf(name, sizeof(name), "fd:%d", fd);
	*key = (struct gx_auth_key)GX_INIT(*key);
	return gx_auth_read(name, key);
}

static void read__descriptor(void **state)
{
	static const char *const none[] = {"fd:",   "fd:x",  "fd:3x", "fd:-1",
					   "fd: 3", "fd:+3", "fd:00"};
	struct gx_auth_key key = GX_INIT(key);
	int fd = memfd_create("key", MFD_CLOEXEC), both[2];
	char text[AUTH_FILE_MAX_B + 1] = "";

	assert_int_equal(write(fd, GOOD, strlen(GOOD)), strlen(GOOD));
	for (unsigned i = 0; i < 2; i++) { /* from its beginning, each time */
		assert_int_equal(fd_get(fd, &key), 0);
		assert_string_equal(key.name, "kv");
	}
	close(fd);
	assert_int_equal(fd_get(fd, &key), -EBADF);
	assert_int_equal(pipe(both), 0);
	assert_int_equal(write(both[1], GOOD, strlen(GOOD)), strlen(GOOD));
	close(both[1]);
	assert_int_equal(fd_get(both[0], &key), 0);
	assert_string_equal(key.name, "kv");
	close(both[0]);
	assert_int_equal(pipe(both), 0); /* a pipe does not tell its length */
	assert_int_equal(write(both[1], text, sizeof(text)), sizeof(text));
	close(both[1]);
	assert_int_equal(fd_get(both[0], &key), -EFBIG);
	close(both[0]);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(none); i++) {
		assert_int_equal(gx_auth_read(none[i], &key), -EINVAL);
		assert_non_null(strstr(gx_error(), "is given as fd:3"));
	}
}

/* A key that is made reads the same, is no other's, and is never overwritten. */
static void make__and_read(void **state)
{
	struct gx_auth_key key = GX_INIT(key), got, other;
	struct stat st;

	snprintf(key.name, sizeof(key.name), "a-1");
	snprintf(key.regions, sizeof(key.regions), "kv,log*");
	key.access = GX_ACCESS_GET;
	key.conns_max = 7;
	key.under_way_max_b = 1 << 30;
	umask(0);
	assert_int_equal(gx_auth_make(path, &key), 0);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(key_get(&got), 0);
	assert_int_equal(gx_auth_make(path, &key), -EEXIST);
	assert_int_equal(key_get(&other), 0);
	assert_memory_equal(&got, &other, sizeof(got));
	unlink(path);
	assert_int_equal(gx_auth_make(path, &key), 0);
	assert_int_equal(key_get(&other), 0);
	assert_memory_not_equal(got.secret, other.secret, sizeof(got.secret));
	memcpy(key.secret, got.secret, sizeof(key.secret));
	assert_memory_equal(&got, &key, sizeof(got));
}

static void make__refused(void **state)
{
	struct gx_auth_key key = GX_INIT(key);

	assert_int_equal(gx_auth_make(path, &key), -EINVAL);
	memset(key.name, 'a', sizeof(key.name));
	assert_int_equal(gx_auth_make(path, &key), -EINVAL);
	key.name[1] = 0;
	key.access = GX_ACCESS_MAPPED;
	assert_int_equal(gx_auth_make(path, &key), -EINVAL);
	key.access = 0;
	memset(key.regions, 'a', sizeof(key.regions));
	assert_int_equal(gx_auth_make(path, &key), -EINVAL);
	memcpy(key.regions, "a\nsecret", 9);
	assert_int_equal(gx_auth_make(path, &key), -EINVAL);
	assert_int_equal(access(path, F_OK), -1);
	key.regions[0] = 0;
	assert_int_equal(gx_auth_make("/nowhere/a.key", &key), -ENOENT);
}

/* Written as dirty pages of our own, and gone afterwards. */
static void mem__is_locked_and_not_dumped(void **state)
{
	char line[256], *p = auth_mem_get();
	bool here = false, locked = false, dumped = true;
	FILE *f = fopen("/proc/self/smaps", "re");

	assert_non_null(p);
	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		unsigned long at, end;

		if (sscanf(line, "%lx-%lx ", &at, &end) == 2)
			here = at <= (unsigned long)p && (unsigned long)p < end;
		if (!here || strncmp(line, "VmFlags:", 8))
			continue;
		locked = strstr(line, " lo");
		dumped = !strstr(line, " dd");
	}
	fclose(f);
#ifdef __SANITIZE_ADDRESS__
	locked = true; /* its mlock() does nothing */
#endif
	assert_true(locked);
	assert_false(dumped);
	auth_mem_put(p);
	auth_mem_put(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(read__least, setup, teardown),
		cmocka_unit_test_setup_teardown(read__rights, setup, teardown),
		cmocka_unit_test_setup_teardown(read__content, setup, teardown),
		cmocka_unit_test_setup_teardown(read__byte_0_and_length, setup, teardown),
		cmocka_unit_test_setup_teardown(read__part, setup, teardown),
		cmocka_unit_test_setup_teardown(read__modes, setup, teardown),
		cmocka_unit_test_setup_teardown(read__owners, setup, teardown),
		cmocka_unit_test_setup_teardown(read__kinds, setup, teardown),
		cmocka_unit_test_setup_teardown(read__symlink, setup, teardown),
		cmocka_unit_test_setup_teardown(read__descriptor, setup, teardown),
		cmocka_unit_test_setup_teardown(make__and_read, setup, teardown),
		cmocka_unit_test_setup_teardown(make__refused, setup, teardown),
		cmocka_unit_test(mem__is_locked_and_not_dumped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
