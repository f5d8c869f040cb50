/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may connect from another host, and what he may do there. A key is a secret of 32 random bytes
 * with a name and rights; both ends have it. ("Key" alone is a key of memory in gx.h: gx_conn_key().)
 *
 * A key file is text: mode 0600 or 0400, owner this user or root, 4 KiB at most. A file of root may
 * also be read by its group, as systemd's credentials and secrets of Kubernetes are:
 *
 *	gx-key 1
 *	name kv
 *	secret 64 hexadecimal digits
 *
 * Between the last two lines may be rights, a line each: "access put,get", "regions kv,log*",
 * "connections 16", "under-way 1G". The secret is the last line, so that a file of which a part is
 * missing is no key.
 *
 * The ends meet by TLS 1.3: who has no key of a server hears nothing of it. A client with a key wants a
 * server with that key, on its own host too.
 *
 * Under a key nothing goes to another host that is not sealed. Links packet and tcp encrypt, or packet signs
 * (gx_packet_opts.integrity); other links are refused there, with words.
 */
#ifndef GX_AUTH_H
#define GX_AUTH_H

#include "gx/gx.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GX_AUTH_SECRET_B    32
#define GX_AUTH_NAME_MAX    32	/* with the final 0 */
#define GX_AUTH_REGIONS_MAX 512 /* likewise */
#define GX_PEER_NAME_MAX    127

/** struct gx_auth_key - A key. The rights are those of the peer that shows it to a server. Zero in a
 * right: no limit. */
struct gx_auth_key {
	size_t size;
	char name[GX_AUTH_NAME_MAX]; /* letters, digits and "._-"; it begins with one of the first
					two */
	uint8_t secret[GX_AUTH_SECRET_B];
	unsigned access; /* GX_ACCESS_PUT, GX_ACCESS_GET: to the server's memory. 0: both. Messages
			       are free */
	uint32_t conns_max; /* connections at a time */
	/* Payload under way to the server by packets, over all lanes of all connections together, in
	 * equal parts, and one packet a lane at least. What has come and waits to be copied is not counted,
	 * so more may lie in the server's buffers at once. Link tcp: the kernel's buffer of each socket, by
	 * the connections that there are when it is made. A peer on the server's host that maps its
	 * memory has nothing under way */
	uint64_t under_way_max_b;
	/* Names of regions, "kv,log*": '*' at the end is any rest. Memory of no such region is not the
	 * peer's, by a key of memory neither. "": all */
	char regions[GX_AUTH_REGIONS_MAX];
};

/** struct gx_auth_opts - Group of gx_opts. */
struct gx_auth_opts {
	size_t size;
	/* What this end shows when it connects: the path of a key file, or "fd:3", an inherited
	 * descriptor. NULL: no key */
	const char *key_file;
	/* A server: whom it serves. Key files, and folders, of which it takes each *.key. */
	const char *const *key_files;
	/* The same by the program, which has no .key_files then: the key of that name into *key, of
	 * which .size is set and the rest 0. Return: 0, -ENOENT. Control thread; must not wait. */
	int (*find)(void *arg, const char *name, struct gx_auth_key *key);
	void *arg; /* of it */
	unsigned nr_key_files;
	uint32_t reserved; /* 0 */
	/* A server's, for gx_connect_opts.peer; at most GX_PEER_NAME_MAX bytes. NULL: none */
	const char *name;
};

/**
 * gx_auth_read() - Read a key file. The program wipes @key (explicit_bzero()) when it needs it no
 * more. Any thread; waits for the file.
 * @path: or "fd:3": an inherited descriptor of a file or a pipe, which stays open. Who gave it is
 * trusted: neither its mode nor its owner is looked at
 * Return: 0, -ENOENT, -EACCES (mode, owner), -EINVAL (its content; not a file), -EFBIG (more than
 * 4 KiB), another -errno of the system. gx_error() names the line, and never shows a byte of it.
 */
int gx_auth_read(const char *path, struct gx_auth_key *key);

/**
 * gx_auth_make() - Make a key file, mode 0600, with a new secret. It is on the disk when the call
 * returns. Any thread.
 * @key: name and rights; .secret is not read
 * Return: 0, -EEXIST (a file is never overwritten), -EINVAL (@key), another -errno of the system.
 */
int gx_auth_make(const char *path, const struct gx_auth_key *key);

/**
 * gx_auth_reload() - Read .key_files, and .key_file, once more, or ask .find once more for each key in
 * use. Connections of keys that are gone, or have another secret or other rights, end within a second,
 * with GX_REASON_AUTH at both ends. Also in a callback; waits for the files. An inherited descriptor
 * is not read again: its key stays. [control]
 * Return: 0; else the first error, with gx_error(), and the log has all: a file that is there and
 * cannot be taken changes nothing, so its key stays as it was. The others are taken.
 */
int gx_auth_reload(struct gx *gx);

#ifdef __cplusplus
}
#endif

#endif
