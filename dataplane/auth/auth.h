/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may connect: keys in memory, key files, and the keys of a context. Control path.
 */
#ifndef AUTH_H
#define AUTH_H

#include "core/core.h"
#include "gx/auth.h"

#define AUTH_FILE_MAX_B 4096
#define AUTH_KEYS_MAX	1024 /* of a context */
#define AUTH_PATH_MAX	1024 /* bytes of the path of a key file, with the final 0 */

/* A key of this end, in memory of its own (auth_mem_get()). owner: ctl; .k is frozen. It lives until
 * the last one lets go of it. */
struct auth_key {
	struct gx_auth_key k;
	struct auth_key *next; /* in the set */
	unsigned holds;	       /* of the set, and of each that found it */
	bool listed;	       /* in the set. Else it was revoked: who holds it lets go */
	char path[AUTH_PATH_MAX];
};

/* -- memory for secrets, auth_mem.c; any thread -- */

/** auth_mem_get() - AUTH_FILE_MAX_B + 1 bytes of zeros or more, locked in memory, and in no core dump
 * nor child of a fork. NULL: no memory. auth_mem_put(): wipes and frees it; NULL is fine. */
void *auth_mem_get(void);
void auth_mem_put(void *p);
/** auth_mem_lock() - The first @secret_b bytes at @p are secrets: not in swap, as far as the process
 * may lock memory; nothing of @len bytes is in a core dump. @p: of gx_pages_get(), so a child of a
 * fork has nothing of it. */
void auth_mem_lock(void *p, size_t len, size_t secret_b);
#define AUTH_MEM_B 8192

/* -- auth_file.c; any thread -- */

/** auth_key_parse() - The content of a key file. Return: 0, -EINVAL with gx_error(), which says
 * @path and the line. */
int auth_key_parse(const char *b, size_t len, const char *path, struct gx_auth_key *key);
/** auth_key_check() - Is it well formed? Sets the default of .access. Return: 0, -EINVAL with
 * gx_error(). */
int auth_key_check(struct gx_auth_key *key);
/** auth_key_text() - The content of its file. Return: its length. */
size_t auth_key_text(const struct gx_auth_key *key, char buf[AUTH_FILE_MAX_B]);

/** auth_path_is_fd() - "fd:3": an inherited descriptor. */
bool auth_path_is_fd(const char *path);

/* -- the keys of a context, auth_set.c -- */

/** auth_open() - Take gx_opts.auth: read its files. In gx_open(). Return: 0, -errno with gx_error(). */
int auth_open(struct gx *gx);
void auth_close(struct gx *gx); /* nobody holds a key any more */
/** auth_serves() - Does this context have keys that peers may show? Any thread. */
bool auth_serves(const struct gx *gx);
const char *auth_name(const struct gx *gx); /* gx_auth_opts.name. Any thread */
/** auth_shows() - Does this end show a key when it connects? Any thread. */
bool auth_shows(const struct gx *gx);
/** auth_own() - The key that this end shows. The caller holds it. NULL: none. ctl. */
struct auth_key *auth_own(struct gx *gx);
/** auth_set_find() - The key of that name, any text. The caller holds it. ctl. Return: 0, -ENOENT,
 * -ENOMEM. */
int auth_set_find(struct gx *gx, const char *name, struct auth_key **out);
/** auth_key_put() - Let go of a key; NULL is fine. ctl. */
void auth_key_put(struct auth_key *key);

#endif
