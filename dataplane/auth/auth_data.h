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

#include <stdatomic.h>
#include <string.h>

#define AUTH_SECRET_B 32

/* A phase ends after so many packets or records, or so much time. */
#define AUTH_PHASE_NRS (1ull << 22)
#define AUTH_PHASE_NS  60000000000ull

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

/** auth_nonce() - That of number @nr of a kind, which must not come twice with @p. */
static inline void auth_nonce(const struct auth_phase *p, uint8_t type, uint64_t nr,
			      uint8_t nonce[GX_GCM_NONCE_B])
{
	memcpy(nonce, p->salt, GX_GCM_NONCE_B);
	nonce[3] ^= type;
	for (unsigned i = 0; i < 8; i++)
		nonce[4 + i] ^= (uint8_t)(nr >> (56 - 8 * i));
}

/* The phases of a direction: one thread makes their keys ahead, a core uses them. Those from over on
 * and below made are there, at phase modulo nr. ctl writes made (release), the core reads it
 * (acquire); the other way round with over. */
struct auth_ring {
	_Atomic uint32_t over, made;
	uint32_t nr;		   /* frozen */
	struct auth_phase *phase;  /* [nr], all zero at the start. frozen */
	struct auth_secret secret; /* ctl: of the phase that is made next */
};

/** auth_ring_make() - ctl: make the keys that are due. Return: 0; -ENOMEM: some are still due. */
int auth_ring_make(struct auth_ring *r);
void auth_ring_wipe(struct auth_ring *r); /* ctl; no core uses it any more */
/** auth_ring_has() - core: are the keys of @phase made? */
static inline bool auth_ring_has(const struct auth_ring *r, uint32_t phase)
{
	return (int32_t)(atomic_load_explicit(&r->made, memory_order_acquire) - phase) > 0;
}
/** auth_ring_leave() - core: the keys before @phase are used no more. */
static inline void auth_ring_leave(struct auth_ring *r, uint32_t phase)
{
	atomic_store_explicit(&r->over, phase, memory_order_release);
}

#endif
