/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS 1.3 for the bootstrap: a secret that both ends have (pre-shared key), X25519 and
 * TLS_AES_128_GCM_SHA256, and nothing else of TLS: no certificates, tickets, early data. It works on
 * bytes in memory: no sockets, no clock. On the control thread.
 */
#ifndef AUTH_TLS_H
#define AUTH_TLS_H

#include "auth/auth_data.h"

#define AUTH_TLS_NAME_MAX  33	/* of a key's name, with AUTH_TLS_BOUND and the final 0 */
#define AUTH_TLS_BOUND	   '+'	/* after it: the secret is that of the key and the server's name */
#define AUTH_TLS_FIRST_MAX 1024 /* bytes of a client's first record */
#define AUTH_TLS_ALERT_B   7

/* What both methods share; one for each context. */
struct auth_tls_ctx;
struct auth_tls_ctx *auth_tls_ctx_open(void);	   /* NULL: no memory, or OpenSSL lacks a part */
void auth_tls_ctx_close(struct auth_tls_ctx *ctx); /* on the thread that used it; NULL is fine */

enum auth_tls_first {
	AUTH_TLS_MORE,	/* not all of it is there */
	AUTH_TLS_HELLO, /* a ClientHello as gx writes one */
	AUTH_TLS_NOT,	/* no TLS */
	AUTH_TLS_BAD,	/* TLS of somebody else */
};

/** auth_tls_first() - What a client's first bytes are. Allocates nothing. @name: HELLO: of the key that
 * the client says it has. Whether it has it is not known yet. */
enum auth_tls_first auth_tls_first(const uint8_t *b, size_t len, char name[AUTH_TLS_NAME_MAX]);
/** auth_tls_no_keys() - What a server without keys answers to HELLO. */
void auth_tls_no_keys(uint8_t b[AUTH_TLS_ALERT_B]);

/* One end of a connection. */
struct auth_tls;

/** auth_tls_new() - @secret: of the key; stays until auth_tls_free(). NULL, for a server: it has no key
 * of that name. Then the handshake fails as with another secret, with the same words and work. Return: NULL: no
 * memory. */
struct auth_tls *auth_tls_new(struct auth_tls_ctx *ctx, bool server, const char *name,
			      const uint8_t secret[AUTH_SECRET_B]);
void auth_tls_free(struct auth_tls *t); /* NULL is fine */
/** auth_tls_peer() - Before the first step. @peer: the server's name, in the secret if the client wants
 * one; it stays. NULL: none. */
void auth_tls_peer(struct auth_tls *t, const char *peer);

/* Bytes of the wire come in and go out. Return: 0, -ENOMEM; how many. */
int auth_tls_put(struct auth_tls *t, const uint8_t *b, size_t len);
size_t auth_tls_out(struct auth_tls *t, uint8_t *b, size_t room);

/** auth_tls_step() - Go on with the handshake, by what has come in. Something may have to go out,
 * even when it has failed. Return:
 * 1: both ends have the key. A server may say so one message early: the client has it, and what it
 *    sends later proves that this is not a copy of another connection's ClientHello (auth_tls_read());
 * 0: more must come in;
 * -EACCES: the ends have not the same secret, or the server no key of that name;
 * -ENOKEY: the server has no keys at all;
 * -EPROTO: the peer speaks no TLS, or not of this kind; -ENOMEM. */
int auth_tls_step(struct auth_tls *t);
/** auth_tls_read() - Return: bytes of the peer; 0: none now; -ESHUTDOWN: the peer has ended TLS and
 * nothing of it was cut off; -EPROTO: somebody has changed the bytes on the way; -ENOMEM. */
int auth_tls_read(struct auth_tls *t, uint8_t *b, size_t room);
/** auth_tls_write() - After step() said 1. Return: 0, -EPROTO, -ENOMEM. */
int auth_tls_write(struct auth_tls *t, const uint8_t *b, size_t len);
/** auth_tls_end() - Nothing more will be written: tell the peer (close_notify). */
void auth_tls_end(struct auth_tls *t);
/** auth_tls_secret() - The first secret of one direction of data, for auth_phase_next(). Both ends
 * know that the other has the key. Return: 0; -EPROTO: they do not yet. */
int auth_tls_secret(struct auth_tls *t, const struct auth_dir *dir, struct auth_secret *out);

#endif
