/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of a context: found by name, read again, and revoked. What the control thread does, the
 * test does while no connection is there.
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
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/gx-auth-XXXXXX";

static const char *file(const char *name)
{
	static char path[4][128];
	static unsigned n;

	n = (n + 1) % 4;
	snprintf(path[n], sizeof(path[n]), "%s/%s", dir, name);
	return path[n];
}

static void make(const char *where, const char *name)
{
	struct gx_auth_key key = GX_INIT(key);

	snprintf(key.name, sizeof(key.name), "%s", name);
	assert_int_equal(gx_auth_make(file(where), &key), 0);
}

static int setup(void **state)
{
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	char cmd[64];

	snprintf(cmd, sizeof(cmd), "rm -r %s", dir);
	assert_int_equal(system(cmd), 0);
	memcpy(dir + sizeof(dir) - 7, "XXXXXX", 6);
	return 0;
}

static int open_with(const struct gx_auth_opts *a, struct gx **gx)
{
	static const struct gx_port_name shm = {.name = "shm"};
	struct gx_opts o = GX_INIT(o);

	o.server = true;
	o.ports = &shm;
	o.nr_ports = 1;
	o.auth = a;
	return gx_open(&o, gx);
}

/* @where: a file or a folder; @more: NULL: none */
static int open_files(const char *where, const char *more, struct gx **gx)
{
	const char *files[] = {where, more};
	struct gx_auth_opts a = GX_INIT(a);

	a.key_files = files;
	a.nr_key_files = more ? 2 : 1;
	return open_with(&a, gx);
}

static bool has(struct gx *gx, const char *name)
{
	struct auth_key *key = NULL;
	int ret = auth_set_find(gx, name, &key);

	assert_true(ret == 0 || ret == -ENOENT);
	if (!ret)
		assert_string_equal(key->k.name, name);
	auth_key_put(key);
	return !ret;
}

static void open__refused(void **state)
{
	const char *none[] = {NULL}, *many[65];
	struct gx_auth_opts a = GX_INIT(a);
	struct gx_opts o = GX_INIT(o);
	struct gx *gx;

	a.key_file = file("none.key");
	assert_int_equal(open_with(&a, &gx), -ENOENT);
	a.key_file = NULL;
	a.nr_key_files = 1;
	assert_int_equal(open_with(&a, &gx), -EINVAL);
	a.key_files = none;
	assert_int_equal(open_with(&a, &gx), -EINVAL);
	assert_non_null(strstr(gx_error(), "key_files[0] is NULL"));
	a.find = (int (*)(void *, const char *, struct gx_auth_key *))abort;
	assert_int_equal(open_with(&a, &gx), -EINVAL);
	a.nr_key_files = 0;
	o.insecure = true;
	o.auth = &a;
	assert_int_equal(gx_open(&o, &gx), -EINVAL);
	assert_non_null(strstr(gx_error(), "insecure"));
	a.find = NULL;
	a.key_files = many;
	a.nr_key_files = 65;
	assert_int_equal(open_with(&a, &gx), -EINVAL);
	a.nr_key_files = 0;
	a.reserved = 1;
	assert_int_equal(open_with(&a, &gx), -EINVAL);
	assert_int_equal(open_files(file("none.key"), NULL, &gx), -ENOENT);
	assert_non_null(strstr(gx_error(), "none.key"));
}

static void find__in_files(void **state)
{
	struct gx *gx;

	make("a.key", "a");
	make("b.key", "b-2");
	assert_int_equal(open_files(file("a.key"), file("b.key"), &gx), 0);
	assert_true(auth_serves(gx));
	assert_null(auth_own(gx));
	assert_true(has(gx, "a"));
	assert_true(has(gx, "b-2"));
	assert_false(has(gx, "b"));
	assert_false(has(gx, ""));
	assert_false(has(gx, "b-22"));
	gx_close(gx);
}

/* *.key alone, and no hidden one. */
static void find__in_folder(void **state)
{
	struct gx *gx;

	make("a.key", "a");
	make(".b.key", "b");
	make("c.key~", "c");
	make(".key", "d");
	assert_int_equal(open_files(dir, NULL, &gx), 0);
	assert_true(has(gx, "a"));
	assert_false(has(gx, "b"));
	assert_false(has(gx, "c"));
	assert_false(has(gx, "d"));
	gx_close(gx);
}

static void open__two_of_one_name(void **state)
{
	struct gx *gx;

	make("a.key", "a");
	make("b.key", "a");
	assert_int_equal(open_files(dir, NULL, &gx), -EEXIST);
	assert_non_null(strstr(gx_error(), "a.key"));
	assert_non_null(strstr(gx_error(), "b.key"));
}

static void open__bad_file_in_folder(void **state)
{
	struct gx *gx;

	make("a.key", "a");
	make("b.key", "b");
	assert_int_equal(chmod(file("b.key"), 0644), 0);
	assert_int_equal(open_files(dir, NULL, &gx), -EACCES);
	assert_non_null(strstr(gx_error(), "b.key"));
}

/* Who holds a key sees that it is no longer listed: it is gone, or has changed. */
static void reload__gone_changed_new(void **state)
{
	struct auth_key *a, *b, *c;
	struct gx *gx;

	make("a.key", "a");
	make("b.key", "b");
	make("c.key", "c");
	assert_int_equal(open_files(dir, NULL, &gx), 0);
	assert_int_equal(auth_set_find(gx, "a", &a), 0);
	assert_int_equal(auth_set_find(gx, "b", &b), 0);
	assert_int_equal(auth_set_find(gx, "c", &c), 0);
	assert_int_equal(gx_auth_reload(gx), 0);
	assert_true(a->listed && b->listed && c->listed);
	unlink(file("b.key"));
	unlink(file("c.key"));
	make("c.key", "c"); /* another secret */
	make("d.key", "d");
	assert_int_equal(rename(file("a.key"), file("z.key")), 0);
	assert_int_equal(gx_auth_reload(gx), 0);
	assert_true(a->listed);
	assert_false(b->listed || c->listed);
	assert_false(has(gx, "b"));
	assert_true(has(gx, "c"));
	assert_true(has(gx, "d"));
	auth_key_put(a);
	auth_key_put(b);
	auth_key_put(c);
	gx_close(gx);
}

/* A right that changed is another key. */
static void reload__rights(void **state)
{
	struct auth_key *a;
	struct gx *gx;
	char text[AUTH_FILE_MAX_B];
	struct gx_auth_key key;
	size_t len;
	FILE *f;

	make("a.key", "a");
	assert_int_equal(open_files(file("a.key"), NULL, &gx), 0);
	assert_int_equal(auth_set_find(gx, "a", &a), 0);
	key = a->k;
	key.access = GX_ACCESS_GET;
	len = auth_key_text(&key, text);
	f = fopen(file("a.key"), "we");
	assert_int_equal(fwrite(text, 1, len, f), len);
	fclose(f);
	assert_int_equal(gx_auth_reload(gx), 0);
	assert_false(a->listed);
	auth_key_put(a);
	assert_true(has(gx, "a"));
	unlink(file("a.key"));
	assert_int_equal(gx_auth_reload(gx), 0);
	assert_false(has(gx, "a"));
	gx_close(gx);
}

/* A file that is there and cannot be taken keeps its key; the others are read. */
static void reload__with_a_bad_file(void **state)
{
	struct auth_key *a;
	struct gx *gx;

	make("a.key", "a");
	make("b.key", "b");
	assert_int_equal(open_files(dir, NULL, &gx), 0);
	assert_int_equal(auth_set_find(gx, "a", &a), 0);
	assert_int_equal(truncate(file("a.key"), 20), 0); /* as one that is being written */
	unlink(file("b.key"));
	make("c.key", "c");
	make("d.key", "a"); /* the name is taken */
	assert_int_equal(gx_auth_reload(gx), -EINVAL);
	assert_non_null(strstr(gx_error(), "a.key"));
	assert_true(a->listed);
	assert_false(has(gx, "b"));
	assert_true(has(gx, "c"));
	unlink(file("a.key")); /* now d.key has the name */
	assert_int_equal(gx_auth_reload(gx), 0);
	assert_false(a->listed);
	assert_true(has(gx, "a"));
	auth_key_put(a);
	gx_close(gx);
}

/* So does a folder. One that is gone is a folder without keys. */
static void reload__folder(void **state)
{
	struct auth_key *a;
	char keys[64];
	struct gx *gx;

	if (!geteuid()) /* root reads all */
		print_message("as root: without the mode\n");
	snprintf(keys, sizeof(keys), "%s", file("keys"));
	assert_int_equal(mkdir(keys, 0700), 0);
	make("keys/a.key", "a");
	assert_int_equal(open_files(keys, NULL, &gx), 0);
	assert_int_equal(auth_set_find(gx, "a", &a), 0);
	if (geteuid()) {
		assert_int_equal(chmod(keys, 0100), 0);
		assert_int_equal(gx_auth_reload(gx), -EACCES);
		assert_true(a->listed);
		assert_int_equal(chmod(keys, 0700), 0);
	}
	assert_int_equal(rename(keys, file("away")), 0);
	assert_int_equal(gx_auth_reload(gx), 0);
	assert_false(a->listed);
	auth_key_put(a);
	gx_close(gx);
}

/* An inherited descriptor is read once. */
static void reload__descriptor(void **state)
{
	struct auth_key *a;
	char name[16];
	struct gx *gx;
	int fd;

	make("a.key", "a");
	fd = open(file("a.key"), O_RDONLY | O_CLOEXEC);
	snprintf(name, sizeof(name), "fd:%d", fd);
	assert_int_equal(open_files(name, NULL, &gx), 0);
	assert_int_equal(auth_set_find(gx, "a", &a), 0);
	close(fd);
	assert_int_equal(gx_auth_reload(gx), 0);
	assert_true(a->listed);
	auth_key_put(a);
	gx_close(gx);
}

static void reload__without_keys(void **state)
{
	struct gx *gx;

	assert_int_equal(open_with(NULL, &gx), 0);
	assert_false(auth_serves(gx));
	assert_false(has(gx, "a"));
	assert_int_equal(gx_auth_reload(gx), -EINVAL);
	gx_close(gx);
	assert_int_equal(open_files(dir, NULL, &gx), 0); /* none is there yet */
	make("a.key", "a");
	assert_false(has(gx, "a"));
	assert_int_equal(gx_auth_reload(gx), 0);
	assert_true(has(gx, "a"));
	gx_close(gx);
}

/* ---- the program's keys ---- */

static struct {
	uint8_t secret;
	const char *name; /* in the answer; NULL: that it was asked for */
	unsigned asked;
} program;

static int find(void *arg, const char *name, struct gx_auth_key *key)
{
	assert_ptr_equal(arg, &program);
	assert_int_equal(key->size, sizeof(*key));
	assert_int_equal(key->name[0] | key->secret[0] | key->secret[31] | key->access, 0);
	program.asked++;
	if (strcmp(name, "a") && strcmp(name, "b"))
		return -ENOENT;
	snprintf(key->name, sizeof(key->name), "%s", program.name ? program.name : name);
	memset(key->secret, program.secret, sizeof(key->secret));
	return 0;
}

static void find__by_the_program(void **state)
{
	struct gx_auth_opts a = GX_INIT(a);
	struct auth_key *one, *two;
	struct gx *gx;

	program.secret = 1;
	program.name = NULL;
	a.find = find;
	a.arg = &program;
	assert_int_equal(open_with(&a, &gx), 0);
	assert_true(auth_serves(gx));
	assert_false(has(gx, "c"));
	assert_int_equal(auth_set_find(gx, "a", &one), 0);
	assert_int_equal(one->k.access, GX_ACCESS_PUT | GX_ACCESS_GET);
	assert_int_equal(auth_set_find(gx, "a", &two), 0);
	assert_ptr_equal(one, two); /* so connections count together */
	auth_key_put(two);
	assert_true(has(gx, "b"));
	program.asked = 0;
	assert_int_equal(gx_auth_reload(gx), 0);
	assert_int_equal(program.asked, 1); /* nobody holds b */
	assert_true(one->listed);
	program.secret = 2;
	assert_int_equal(auth_set_find(gx, "a", &two), 0);
	assert_false(one->listed);
	assert_int_equal(two->k.secret[0], 2);
	program.secret = 3;
	assert_int_equal(gx_auth_reload(gx), 0);
	assert_false(two->listed);
	auth_key_put(one);
	auth_key_put(two);
	program.name = "b"; /* not the one that was asked for */
	assert_false(has(gx, "a"));
	program.name = NULL;
	program.secret = 0; /* no secret */
	assert_false(has(gx, "a"));
	gx_close(gx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(open__refused, setup, teardown),
		cmocka_unit_test_setup_teardown(find__in_files, setup, teardown),
		cmocka_unit_test_setup_teardown(find__in_folder, setup, teardown),
		cmocka_unit_test_setup_teardown(open__two_of_one_name, setup, teardown),
		cmocka_unit_test_setup_teardown(open__bad_file_in_folder, setup, teardown),
		cmocka_unit_test_setup_teardown(reload__gone_changed_new, setup, teardown),
		cmocka_unit_test_setup_teardown(reload__rights, setup, teardown),
		cmocka_unit_test_setup_teardown(reload__with_a_bad_file, setup, teardown),
		cmocka_unit_test_setup_teardown(reload__folder, setup, teardown),
		cmocka_unit_test_setup_teardown(reload__descriptor, setup, teardown),
		cmocka_unit_test_setup_teardown(reload__without_keys, setup, teardown),
		cmocka_unit_test_setup_teardown(find__by_the_program, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
