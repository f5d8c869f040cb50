/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of a context: whom it serves, and which one it shows. They come from files, or from the
 * program, one at a time. The control thread owns them; files are read on the caller's thread, into a
 * list of its own.
 */
#include "auth/auth.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SET_FILES_MAX 64 /* of gx_auth_opts.key_files */

/* owner: ctl; the options are frozen */
struct auth_set {
	struct gx_auth_opts opts; /* its texts are copies, or NULL */
	char *key_file, *name, *files[SET_FILES_MAX];
	struct auth_key *keys; /* those that peers may show */
	struct auth_key *own;  /* that this end shows; NULL: none */
	unsigned nr_keys;
};

/* A list of keys in the making. owner: the thread that reads them */
struct load {
	struct auth_key *keys, **end;
	unsigned nr;
	bool again; /* the context has keys: a file that is gone is no error, others are logged */
	int ret;    /* the first error */
	char why[CORE_TEXT_MAX];
};

/* ---- A key ---- */

static struct auth_key *key_new(void)
{
	struct auth_key *key = auth_mem_get();

	if (!key)
		return NULL;
	key->k.size = sizeof(key->k);
	key->holds = 1;
	return key;
}

void auth_key_put(struct auth_key *key)
{
	if (key && !--key->holds)
		auth_mem_put(key);
}

static void keys_put(struct auth_key *keys)
{
	while (keys) {
		struct auth_key *key = keys;

		keys = key->next;
		auth_key_put(key);
	}
}

/* The same secret and the same rights? Both are ours, so time tells nobody anything. */
static bool key_same(const struct gx_auth_key *a, const struct gx_auth_key *b)
{
	return !memcmp(a->secret, b->secret, sizeof(a->secret)) && a->access == b->access &&
	       a->conns_max == b->conns_max && a->under_way_max_b == b->under_way_max_b &&
	       !strcmp(a->regions, b->regions);
}

static struct auth_key **key_at(struct auth_key **list, const char *name)
{
	while (*list && strcmp((*list)->k.name, name))
		list = &(*list)->next;
	return list;
}

/* The set, or its next life, has it from now on. */
static void key_list(struct auth_key **list, struct auth_key *key)
{
	key->next = *list;
	*list = key;
	key->listed = true;
}

/* Take it out of the list. Its connections see that and end. */
static struct auth_key *key_unlist(struct auth_key **at)
{
	struct auth_key *key = *at;

	*at = key->next;
	key->next = NULL;
	key->listed = false;
	return key;
}

/* ---- Reading files ---- */

static int load_fail(struct load *load, int ret)
{
	if (load->again)
		gx_err("%s", gx_error());
	if (!load->ret) {
		load->ret = ret;
		snprintf(load->why, sizeof(load->why), "%s", gx_error());
	}
	return ret;
}

/* A place in the list for @path, without a key as yet: whoever has a key from there keeps it. */
static struct auth_key *load_add(struct load *load, const char *path)
{
	struct auth_key *key = load->nr < AUTH_KEYS_MAX ? key_new() : NULL;

	if (!key || strlen(path) >= sizeof(key->path)) {
		load_fail(load, gx_fail(-ENOMEM, "key file %.200s: %s", path,
					load->nr >= AUTH_KEYS_MAX ? "there are too many keys"
					: !key			  ? "no memory"
								  : "its path is too long"));
		auth_key_put(key);
		return NULL;
	}
	snprintf(key->path, sizeof(key->path), "%s", path);
	*load->end = key;
	load->end = &key->next;
	load->nr++;
	return key;
}

static void load_file(struct load *load, const char *path)
{
	struct auth_key **at = load->end, *key = load_add(load, path);
	int ret;

	if (!key || (load->again && auth_path_is_fd(path)))
		return;
	ret = gx_auth_read(path, &key->k);
	if (!ret)
		return;
	memset(&key->k, 0, sizeof(key->k));
	if (!load->again || ret != -ENOENT) {
		load_fail(load, ret);
		return;
	}
	*at = NULL; /* the file was taken away */
	load->end = at;
	load->nr--;
	auth_key_put(key);
}

static int name_is_key(const struct dirent *d)
{
	size_t len = strlen(d->d_name);

	return d->d_name[0] != '.' && len > 4 && !strcmp(d->d_name + len - 4, ".key");
}

static void load_folder(struct load *load, const char *dir)
{
	char path[PATH_MAX];
	struct dirent **names;
	int n = scandir(dir, &names, name_is_key, alphasort), ret = -errno;

	if (n < 0) {
		load_add(load, dir);
		load_fail(load, gx_fail(ret, "folder of keys %s: %s", dir, strerror(-ret)));
		return;
	}
	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, names[i]->d_name);
		load_file(load, path);
		free(names[i]);
	}
	free(names);
}

static void load_files(struct load *load, const struct auth_set *set, bool again)
{
	struct stat st;

	*load = (struct load){.again = again};
	load->end = &load->keys;
	for (unsigned i = 0; i < set->opts.nr_key_files; i++) {
		const char *path = set->files[i];

		if (!auth_path_is_fd(path) && !stat(path, &st) && S_ISDIR(st.st_mode))
			load_folder(load, path);
		else
			load_file(load, path);
	}
}

/* ---- The set ---- */

/* Was @path read for @file, which may be a folder? */
static bool path_is_of(const char *path, const char *file)
{
	size_t len = strlen(file);

	return !strncmp(path, file, len) && (!path[len] || path[len] == '/');
}

/* Keys that came from there stay as they are. */
static void swap_keep(struct auth_key **old, struct auth_key **list, const char *file)
{
	while (*old) {
		if (path_is_of((*old)->path, file))
			key_list(list, key_unlist(old));
		else
			old = &(*old)->next;
	}
}

/* @key is of a file. Takes it over. Return: 0, -EEXIST with gx_error(). */
static int swap_one(struct auth_key **old, struct auth_key **list, struct auth_key *key)
{
	struct auth_key **at, *twin = *key_at(list, key->k.name);
	int ret = 0;

	if (twin) {
		ret = gx_fail(-EEXIST,
			      "keys %.200s and %.200s have one name, %s: the first is taken; "
			      "remove one",
			      twin->path, key->path, key->k.name);
		auth_key_put(key);
		return ret;
	}
	at = key_at(old, key->k.name);
	if (*at && key_same(&(*at)->k, &key->k)) {
		struct auth_key *same = key_unlist(at);

		memcpy(same->path, key->path, sizeof(same->path));
		auth_key_put(key);
		key = same;
	}
	key_list(list, key);
	return 0;
}

/* The keys of @load become those of the set. What is left of the old ones is revoked. ctl, or in
 * gx_open(). */
static void set_swap(struct auth_set *set, struct load *load)
{
	struct auth_key *list = NULL, *key;

	/* First those that stay: a file that cannot be read keeps its name against others. */
	for (key = load->keys; key; key = key->next)
		if (!key->k.name[0])
			swap_keep(&set->keys, &list, key->path);
	while ((key = load->keys)) {
		load->keys = key->next;
		if (!key->k.name[0])
			auth_key_put(key);
		else if (swap_one(&set->keys, &list, key))
			load_fail(load, -EEXIST);
	}
	while (set->keys) {
		key = key_unlist(&set->keys);
		gx_info("key %s is revoked", key->k.name);
		auth_key_put(key);
	}
	set->keys = list;
}

/* ---- The program's keys ---- */

/* Ask for a key. Return: 0, -ENOENT, -ENOMEM. */
static int ask_new(const struct auth_set *set, const char *name, struct auth_key **out)
{
	struct auth_key *key = key_new();
	int ret = key ? set->opts.find(set->opts.arg, name, &key->k) : -ENOMEM;

	if (!ret && (strncmp(key->k.name, name, sizeof(key->k.name)) || auth_key_check(&key->k))) {
		gx_err("the program gave a bad key for %s: %s", name,
		       strncmp(key->k.name, name, sizeof(key->k.name)) ? "its name is another"
								       : gx_error());
		ret = -ENOENT;
	}
	if (!ret)
		*out = key;
	else
		auth_key_put(key);
	return ret ? (ret == -ENOMEM ? ret : -ENOENT) : 0;
}

/* The set lists a key of the program as long as the program knows it, and somebody holds it. */
static int ask(struct auth_set *set, const char *name)
{
	struct auth_key *key = NULL, **at = key_at(&set->keys, name);
	int ret = ask_new(set, name, &key);

	if (!ret && *at && key_same(&(*at)->k, &key->k)) {
		auth_key_put(key);
		return 0;
	}
	if (*at)
		auth_key_put(key_unlist(at));
	if (!ret)
		key_list(&set->keys, key);
	return ret;
}

/* Once more for those that somebody holds; nobody needs the others. */
static void ask_again(struct auth_set *set)
{
	struct auth_key *old = set->keys, *key;

	set->keys = NULL;
	while ((key = old)) {
		old = key->next;
		if (key->holds == 1) {
			auth_key_put(key);
			continue;
		}
		key_list(&set->keys, key);
		ask(set, key->k.name);
	}
}

int auth_set_find(struct gx *gx, const char *name, struct auth_key **out)
{
	struct auth_set *set = gx->auth;
	int ret = set && set->opts.find ? ask(set, name) : 0;
	struct auth_key *key = ret || !set ? NULL : *key_at(&set->keys, name);

	if (!key)
		return ret ? ret : -ENOENT;
	key->holds++;
	*out = key;
	return 0;
}

struct auth_key *auth_own(struct gx *gx)
{
	struct auth_key *key = gx->auth ? gx->auth->own : NULL;

	if (key)
		key->holds++;
	return key;
}

bool auth_shows(const struct gx *gx)
{
	return gx->auth && gx->auth->key_file;
}

const char *auth_name(const struct gx *gx)
{
	return gx->auth ? gx->auth->name : NULL;
}

bool auth_serves(const struct gx *gx)
{
	return gx->auth && (gx->auth->opts.find || gx->auth->opts.nr_key_files);
}

/* ---- Open, reload, close ---- */

/* Read the key of this end into @load, a list of one. */
static void load_own(struct load *load, const struct auth_set *set, bool again)
{
	*load = (struct load){.again = again};
	load->end = &load->keys;
	if (set->key_file)
		load_file(load, set->key_file);
}

/* A connection that was made with the old one goes on: whether it is good is the server's to say. */
static void own_swap(struct auth_set *set, struct load *load)
{
	struct auth_key *key = load->keys;

	load->keys = NULL;
	if (key && !key->k.name[0]) {
		auth_key_put(key);
		return;
	}
	auth_key_put(set->own);
	set->own = key;
}

struct reload {
	struct auth_set *set;
	struct load files, own;
};

static int reload_run(void *arg)
{
	struct reload *r = arg;

	if (r->set->opts.find)
		ask_again(r->set);
	else
		set_swap(r->set, &r->files);
	own_swap(r->set, &r->own);
	return 0;
}

GX_EXPORT int gx_auth_reload(struct gx *gx)
{
	struct reload r = {.set = gx->auth};
	struct load *bad = &r.files;

	if (!gx->auth)
		return gx_fail(-EINVAL, "this context has no keys: gx_opts.auth names none");
	load_files(&r.files, r.set, true);
	load_own(&r.own, r.set, true);
	gx_uring_run_wait(gx->uring, reload_run, &r);
	if (!bad->ret)
		bad = &r.own;
	return bad->ret ? gx_fail(bad->ret, "%s", bad->why) : 0;
}

static int opts_check(const struct gx_opts *o, const struct gx_auth_opts *a)
{
	bool serves = a->find || a->nr_key_files;

	if (a->reserved || (a->nr_key_files && !a->key_files))
		return gx_fail(-EINVAL, "gx_auth_opts: .reserved is 0, and .nr_key_files counts "
					".key_files");
	if (a->find && a->nr_key_files)
		return gx_fail(
			-EINVAL,
			"gx_auth_opts.key_files and a function that finds keys: take one of them");
	if (a->name && (!serves || !a->name[0] || strlen(a->name) > GX_PEER_NAME_MAX))
		return gx_fail(-EINVAL,
			       "gx_auth_opts.name is of a server with keys, and of 1 to %d bytes",
			       GX_PEER_NAME_MAX);
	if (a->nr_key_files > SET_FILES_MAX)
		return gx_fail(-EINVAL, "%u key files: at most %d, or name their folder",
			       a->nr_key_files, SET_FILES_MAX);
	if (o->insecure && (serves || a->key_file))
		return gx_fail(-EINVAL,
			       "gx_opts.auth names a key, and gx_opts.insecure lets peers in "
			       "without: take one of them");
	return 0;
}

static int set_texts(struct auth_set *set, const struct gx_auth_opts *a)
{
	set->opts = *a;
	set->opts.key_files = NULL; /* the caller's */
	set->opts.key_file = NULL;
	set->key_file = a->key_file ? strdup(a->key_file) : NULL;
	set->opts.name = set->name = a->name ? strdup(a->name) : NULL;
	if ((a->key_file && !set->key_file) || (a->name && !set->name))
		return gx_fail(-ENOMEM, "no memory for keys");
	for (unsigned i = 0; i < a->nr_key_files; i++) {
		if (!a->key_files[i])
			return gx_fail(-EINVAL, "gx_auth_opts.key_files[%u] is NULL", i);
		set->files[i] = strdup(a->key_files[i]);
		if (!set->files[i])
			return gx_fail(-ENOMEM, "no memory for keys");
	}
	return 0;
}

static int set_fill(struct auth_set *set)
{
	struct load files, own;
	int ret;

	load_files(&files, set, false);
	load_own(&own, set, false);
	set_swap(set, &files);
	own_swap(set, &own);
	ret = files.ret ? files.ret : own.ret;
	if (!ret && set->opts.nr_key_files && !set->keys)
		gx_warn("no key in %s: peers of other hosts are refused until one is there "
			"(gx_auth_reload())",
			set->files[0]);
	return ret ? gx_fail(ret, "%s", files.ret ? files.why : own.why) : 0;
}

int auth_open(struct gx *gx)
{
	const struct gx_auth_opts *a = gx->opts.auth;
	int ret = opts_check(&gx->opts, a);

	if (ret || (!a->find && !a->nr_key_files && !a->key_file))
		return ret;
	gx->auth = calloc(1, sizeof(*gx->auth));
	if (!gx->auth)
		return gx_fail(-ENOMEM, "no memory for keys");
	ret = set_texts(gx->auth, a);
	return ret ? ret : set_fill(gx->auth);
}

void auth_close(struct gx *gx)
{
	struct auth_set *set = gx->auth;

	if (!set)
		return;
	gx->auth = NULL;
	keys_put(set->keys);
	auth_key_put(set->own);
	free(set->key_file);
	free(set->name);
	for (unsigned i = 0; i < SET_FILES_MAX; i++)
		free(set->files[i]);
	free(set);
}
