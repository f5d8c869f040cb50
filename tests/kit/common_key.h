/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A key that both ends of a test have.
 */
#ifndef COMMON_KEY_H
#define COMMON_KEY_H

#include <gx/auth.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static inline int common_key_find(void *arg, const char *name, struct gx_auth_key *key)
{
	snprintf(key->name, sizeof(key->name), "test");
	memset(key->secret, 0x5a, sizeof(key->secret));
	return 0;
}

/* gx_opts.auth: a server's, or a client's, whose file stays open until common_key_close(). */
struct common_key {
	struct gx_auth_opts auth;
	char file[16];
	int fd;
};

static inline const struct gx_auth_opts *common_key_open(struct common_key *k, bool server)
{
	char text[128] = "gx-key 1\nname test\nsecret ";
	size_t len = strlen(text);

	*k = (struct common_key){.auth = {.size = sizeof(k->auth)}, .fd = -1};
	if (server) {
		k->auth.find = common_key_find;
		return &k->auth;
	}
	for (unsigned i = 0; i < GX_AUTH_SECRET_B; i++)
		len += (size_t)snprintf(text + len, sizeof(text) - len, "5a");
	text[len++] = '\n';
	k->fd = memfd_create("key", MFD_CLOEXEC);
	if (k->fd < 0 || pwrite(k->fd, text, len, 0) != (ssize_t)len)
		return NULL;
	snprintf(k->file, sizeof(k->file), "fd:%d", k->fd);
	k->auth.key_file = k->file;
	return &k->auth;
}

static inline void common_key_close(struct common_key *k)
{
	if (k->fd >= 0)
		close(k->fd);
}

#endif
