/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of data: what the packets of a lane, and the records of a data socket, are sealed with. The
 * bootstrap's TLS and an exchange of gx's own give a secret for each direction (gx_conn.secret). The
 * control thread makes a key of it, and the secret of the next phase (docs/wire.md). Control path, but for what a core does with
 * a finished key.
 */
#ifndef GX_AUTH_DATA_H
#define GX_AUTH_DATA_H

#include "gx_internal/gcm.h"

#include <stdatomic.h>
#include <string.h>

#define AUTH_SECRET_B 32
#define AUTH_HALF_B   32 /* a public half of X25519 */

/* A phase ends after so many packets or records, or so much time. */
#define AUTH_PHASE_NRS (1ull << 22)
#define AUTH_PHASE_NS  60000000000ull

/* Another exchange goes into each phase of a number that this divides: after four minutes, or so many
 * packets. */
#define AUTH_MIX_PHASES 4u

/* Without the next key a connection ends at the limits of RFC 9001 6.6 for AES-128-GCM: 2^23 packets
 * sealed by a key, 2^52 that were forged. A packet has up to 2^16 bytes, and for these they hold; those
 * for 2^11 bytes (B.1.1, B.1.2: 2^28, 2^57) are not gx's. */
#define AUTH_END_NRS	(1ull << 23)
#define AUTH_END_FORGED (1ull << 52)

/* Of one direction, in one phase. */
struct auth_secret {
	uint8_t b[AUTH_SECRET_B];
};

enum auth_kind { AUTH_PACKET = 0, AUTH_TCP = 1 };

/* Whose secret: the context of TLS's exporter is u8 kind, u32 lane (little endian), u8 dir. */
struct auth_dir {
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

/** auth_half_new() - A private half into @own, which lies in memory for secrets. Return: 0, -ENOMEM. */
int auth_half_new(uint8_t own[AUTH_SECRET_B], uint8_t pub[AUTH_HALF_B]);
/** auth_half_meet() - The private half in @own goes, and what both ends have by it comes in its place.
 * Return: 0; -EPROTO: of the peer's half comes nothing secret; -ENOMEM. */
int auth_half_meet(uint8_t own[AUTH_SECRET_B], const uint8_t peer[AUTH_HALF_B]);

/** auth_secret_mix() - HKDF-Extract (RFC 5869 2.2) with @s as the salt and @shared, which is wiped.
 * Return: 0; -ENOMEM: nothing has changed. */
int auth_secret_mix(struct auth_secret *s, struct auth_secret *shared);

/** auth_nonce() - That of number @nr of a kind, which must not come twice with @p. */
static inline void auth_nonce(const struct auth_phase *p, uint8_t type, uint64_t nr,
			      uint8_t nonce[GX_GCM_NONCE_B])
{
	memcpy(nonce, p->salt, GX_GCM_NONCE_B);
	nonce[3] ^= type;
	for (unsigned i = 0; i < 8; i++)
		nonce[4 + i] ^= (uint8_t)(nr >> (56 - 8 * i));
}

/* The next exchange of a direction. owner: ctl. All zero: the one of the set-up was the last. */
struct auth_mix {
	uint32_t nr;	   /* exchanges that went in since the set-up */
	bool asked;	   /* sender: it has asked; receiver: it was asked */
	bool met;	   /* .secret is what both ends have by the next one */
	uint64_t since_ns; /* sender: it asked then; receiver: it answered the last time */
	uint8_t peer[AUTH_SECRET_B]; /* receiver: the half that came */
	struct auth_secret secret;   /* until .met: a private half */
};

/* The phases of a direction: one thread makes their keys ahead, a core uses them. Those from over on
 * and below made are there, at phase modulo nr. ctl writes made (release), the core reads it
 * (acquire); the other way round with over. */
struct auth_ring {
	_Atomic uint32_t over, made;
	uint32_t nr;		   /* frozen */
	struct auth_phase *phase;  /* [nr], all zero at the start. frozen */
	struct auth_secret secret; /* ctl: of the phase that is made next */
	struct auth_mix mix;
};

/** auth_ring_make() - ctl: make the keys that are due, as far as exchanges have gone. Return: 0;
 * -ENOMEM: some are still due. */
int auth_ring_make(struct auth_ring *r);
void auth_ring_wipe(struct auth_ring *r); /* ctl; no core uses it any more */
/** auth_ring_waits() - ctl: does the key that is made next wait for an exchange? */
static inline bool auth_ring_waits(const struct auth_ring *r)
{
	return atomic_load_explicit(&r->made, memory_order_relaxed) ==
		       (r->mix.nr + 1) * AUTH_MIX_PHASES &&
	       !r->mix.met;
}
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
