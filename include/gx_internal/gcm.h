/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AES-128-GCM (NIST SP 800-38D), from one place in memory to another. Implemented in poll/gcm.c, by
 * libipsec-mb where it and AES instructions are there, else by OpenSSL. A key belongs to one thread
 * at a time.
 */
#ifndef GX_INTERNAL_GCM_H
#define GX_INTERNAL_GCM_H

#include "gx_internal/base.h"

#define GX_GCM_SECRET_B 16
#define GX_GCM_NONCE_B	12
#define GX_GCM_TAG_B	16
#define GX_GCM_KEY_B	1024 /* of a key in the form that the kernel uses */

/* All zero: none. */
struct gx_gcm_key {
	alignas(64) uint8_t b[GX_GCM_KEY_B];
};

/** gx_gcm_key_set() - Prepare @k, which is all zero or wiped, from the 16 bytes of @secret. Control
 * path: it may allocate. Return: 0, -ENOMEM. */
int gx_gcm_key_set(struct gx_gcm_key *k, const uint8_t secret[GX_GCM_SECRET_B]);
/** gx_gcm_key_wipe() - Control path: overwrite it, and give back what it holds. */
void gx_gcm_key_wipe(struct gx_gcm_key *k);

/* Bytes that go along in clear; the tag covers them. */
struct gx_gcm_aad {
	const void *b;
	size_t len;
};

/** gx_gcm_seal() - Encrypt @len bytes from @src to @dst, which are the same place or do not overlap,
 * and write the tag. A nonce must not come twice with a key. With @len 0 the tag is a MAC of @aad
 * (GMAC). No system call, no allocation. */
void gx_gcm_seal(const struct gx_gcm_key *k, const uint8_t nonce[GX_GCM_NONCE_B],
		 struct gx_gcm_aad aad, void *dst, const void *src, size_t len,
		 uint8_t tag[GX_GCM_TAG_B]);
/** gx_gcm_open() - Decrypt, and compare the tag in constant time. Return: false: nobody with the key
 * has sealed this, and @dst holds garbage. */
bool gx_gcm_open(const struct gx_gcm_key *k, const uint8_t nonce[GX_GCM_NONCE_B],
		 struct gx_gcm_aad aad, void *dst, const void *src, size_t len,
		 const uint8_t tag[GX_GCM_TAG_B]);

/** gx_gcm_name() - Which kernel: "ipsec-mb vaes-avx512", "ipsec-mb avx2", "openssl", ... */
const char *gx_gcm_name(void);
/** gx_gcm_use() - For tests: take a kernel whose name begins with @name, NULL for the best, while
 * there is no key. Return: false if this build or CPU has not got it. */
bool gx_gcm_use(const char *name);

#endif
