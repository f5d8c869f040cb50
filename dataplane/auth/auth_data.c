// SPDX-License-Identifier: Apache-2.0
/*
 * Keys of data out of secrets: HKDF-Expand-Label of TLS 1.3 (RFC 8446 7.1) with SHA-256, as QUIC
 * (RFC 9001 6.1) goes from phase to phase; and exchanges of X25519 (RFC 7748), which go into them. On the
 * control thread.
 */
#include "auth/auth_data.h"

#include <assert.h>
#include <errno.h>
#include <openssl/hmac.h>
#include <string.h>

/* @len bytes, at most one block of the hash, so that one round of HKDF-Expand (RFC 5869 2.3) is all. */
static bool expand_label(const struct auth_secret *s, const char *label, uint8_t *out, size_t len)
{
	uint8_t info[64] = {0, (uint8_t)len}, block[EVP_MAX_MD_SIZE];
	size_t label_b = strlen(label), n = 2;
	unsigned block_b = 0;

	assert(len <= AUTH_SECRET_B && label_b <= 32);
	info[n++] = (uint8_t)(6 + label_b);
	memcpy(info + n, "tls13 ", 6);
	memcpy(info + n + 6, label, label_b);
	n += 6 + label_b;
	info[n++] = 0; /* no context */
	info[n++] = 1; /* number of the round */
	if (!HMAC(EVP_sha256(), s->b, sizeof(s->b), info, n, block, &block_b) || block_b < len)
		return false;
	memcpy(out, block, len);
	explicit_bzero(block, sizeof(block));
	return true;
}

int auth_phase_next(struct auth_secret *s, struct auth_phase *p)
{
	uint8_t secret[GX_GCM_SECRET_B];
	struct auth_secret next;
	int ret = -ENOMEM;

	if (expand_label(s, "gx key", secret, sizeof(secret)) &&
	    expand_label(s, "gx iv", p->salt, sizeof(p->salt)) &&
	    expand_label(s, "gx ku", next.b, sizeof(next.b)))
		ret = gx_gcm_key_set(&p->key, secret);
	if (!ret)
		*s = next;
	explicit_bzero(secret, sizeof(secret));
	explicit_bzero(&next, sizeof(next));
	return ret;
}

/* OpenSSL overwrites its copy of a private half when it frees the key. */
int auth_half_new(uint8_t own[AUTH_SECRET_B], uint8_t pub[AUTH_HALF_B])
{
	size_t len = AUTH_HALF_B;
	EVP_PKEY *key;
	bool ok;

	if (gx_random(own, AUTH_SECRET_B))
		return -ENOMEM;
	key = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, own, AUTH_SECRET_B);
	ok = key && EVP_PKEY_get_raw_public_key(key, pub, &len) > 0;
	EVP_PKEY_free(key);
	return ok ? 0 : -ENOMEM;
}

int auth_half_meet(uint8_t own[AUTH_SECRET_B], const uint8_t peer[AUTH_HALF_B])
{
	EVP_PKEY *key = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, own, AUTH_SECRET_B);
	EVP_PKEY *other = EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, NULL, peer, AUTH_HALF_B);
	EVP_PKEY_CTX *ctx = key && other ? EVP_PKEY_CTX_new(key, NULL) : NULL;
	size_t len = AUTH_HALF_B;
	int ret = -ENOMEM;

	OPENSSL_cleanse(own, AUTH_SECRET_B);
	/* It fails for a point of small order, of which everybody knows what comes. */
	if (ctx)
		ret = EVP_PKEY_derive_init(ctx) > 0 && EVP_PKEY_derive_set_peer(ctx, other) > 0 &&
				      EVP_PKEY_derive(ctx, own, &len) > 0
			      ? 0
			      : -EPROTO;
	EVP_PKEY_CTX_free(ctx);
	EVP_PKEY_free(other);
	EVP_PKEY_free(key);
	return ret;
}

int auth_secret_mix(struct auth_secret *s, struct auth_secret *shared)
{
	uint8_t out[EVP_MAX_MD_SIZE];
	unsigned out_b = 0;

	if (!HMAC(EVP_sha256(), s->b, sizeof(s->b), shared->b, sizeof(shared->b), out, &out_b))
		return -ENOMEM;
	memcpy(s->b, out, sizeof(s->b));
	explicit_bzero(out, sizeof(out));
	explicit_bzero(shared, sizeof(*shared));
	return 0;
}

void auth_phase_wipe(struct auth_phase *p)
{
	gx_gcm_key_wipe(&p->key);
	explicit_bzero(p->salt, sizeof(p->salt));
}

/* The next key is made of the exchange that was for it, too. */
static int ring_mix(struct auth_ring *r, uint32_t phase)
{
	int ret;

	if (phase != (r->mix.nr + 1) * AUTH_MIX_PHASES)
		return 0;
	ret = auth_secret_mix(&r->secret, &r->mix.secret);
	if (!ret) {
		r->mix.nr++;
		r->mix.met = false;
	}
	return ret;
}

int auth_ring_make(struct auth_ring *r)
{
	uint32_t made = atomic_load_explicit(&r->made, memory_order_relaxed);
	int ret = 0;

	/* Pairs with the release in auth_ring_leave(): the core uses their keys no more. */
	while (!ret && !auth_ring_waits(r) &&
	       made - atomic_load_explicit(&r->over, memory_order_acquire) < r->nr) {
		auth_phase_wipe(&r->phase[made % r->nr]);
		ret = ring_mix(r, made);
		if (!ret)
			ret = auth_phase_next(&r->secret, &r->phase[made % r->nr]);
		/* Pairs with the acquire in auth_ring_has(). */
		if (!ret)
			atomic_store_explicit(&r->made, ++made, memory_order_release);
	}
	return ret;
}

void auth_ring_wipe(struct auth_ring *r)
{
	for (uint32_t i = 0; i < r->nr; i++)
		auth_phase_wipe(&r->phase[i]);
	explicit_bzero(&r->secret, sizeof(r->secret));
	explicit_bzero(&r->mix, sizeof(r->mix));
}
