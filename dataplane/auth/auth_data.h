/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of data: what the packets of a lane, and the records of a data socket, are sealed with. The
 * bootstrap's TLS gives a secret for each direction (gx_conn.secret). The control thread makes a key
 * of it, and the secret of the next phase (docs/wire.md). Control path, but for what a core does with
 * a finished key.
 */
#ifndef GX_AUTH_DATA_H
#define GX_AUTH_DATA_H

#include "gx_internal/gcm.h"

#define AUTH_SECRET_B 32

/* Of one direction, in one phase. */
struct auth_secret {
	uint8_t b[AUTH_SECRET_B];
};

enum auth_kind { AUTH_PACKET = 0, AUTH_TCP = 1 };

/* Whose secret: the context of TLS's exporter is u8 kind, u32 lane (little endian), u8 dir. */
struct auth_way {
	uint8_t kind;  /* enum auth_kind */
	uint8_t dir;   /* 0: from client to server */
	uint32_t lane; /* AUTH_TCP: 16 * lane + the socket in it */
};

/* A key, and 12 bytes that are combined with each nonce. */
struct auth_phase {
	struct gx_gcm_key key;
	uint8_t salt[GX_GCM_NONCE_B];
};

/** auth_phase_next() - Make the key of the phase that @s is the secret of, into @p, which is all zero
 * or wiped; @s becomes the secret of the next phase. Return: 0; -ENOMEM: nothing has changed. */
int auth_phase_next(struct auth_secret *s, struct auth_phase *p);
void auth_phase_wipe(struct auth_phase *p); /* accepts one that is all zero */

#endif
