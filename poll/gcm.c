// SPDX-License-Identifier: Apache-2.0
/*
 * AES-128-GCM. libipsec-mb's functions for single buffers need neither a job nor a lock; its manager
 * is a table of them, which all threads share. OpenSSL's objects have the state of a call in them, so
 * a key has one for each direction. The control path makes keys; polling cores use them.
 */
#include "gx_internal/gcm.h"

#include <errno.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#ifdef GX_HAVE_IPSEC_MB
#include <intel-ipsec-mb.h>
#endif

struct gcm_call {
	const struct gx_gcm_key *k;
	const uint8_t *nonce;
	struct gx_gcm_aad aad;
	void *dst;
	const void *src;
	size_t len;
};

struct gcm_kernel {
	int (*key_set)(struct gx_gcm_key *k, const uint8_t *secret);
	void (*key_end)(struct gx_gcm_key *k);
	void (*seal)(const struct gcm_call *c, uint8_t *tag);
	bool (*open)(const struct gcm_call *c, const uint8_t *tag);
};

/* ---- OpenSSL ---- */

struct gcm_evp {
	EVP_CIPHER_CTX *seal, *open;
};

static const struct gcm_evp *evp_of(const struct gx_gcm_key *k)
{
	return (const struct gcm_evp *)k->b;
}

static void evp_key_end(struct gx_gcm_key *k)
{
	struct gcm_evp *e = (struct gcm_evp *)k->b;

	EVP_CIPHER_CTX_free(e->seal); /* overwrites the key */
	EVP_CIPHER_CTX_free(e->open);
}

static int evp_key_set(struct gx_gcm_key *k, const uint8_t *secret)
{
	struct gcm_evp *e = (struct gcm_evp *)k->b;

	e->seal = EVP_CIPHER_CTX_new();
	e->open = EVP_CIPHER_CTX_new();
	if (e->seal && e->open &&
	    EVP_EncryptInit_ex(e->seal, EVP_aes_128_gcm(), NULL, secret, NULL) &&
	    EVP_DecryptInit_ex(e->open, EVP_aes_128_gcm(), NULL, secret, NULL))
		return 0;
	evp_key_end(k);
	*e = (struct gcm_evp){0};
	return -ENOMEM;
}

/* Neither call fails for a context with a key and a nonce of 12 bytes; if one ever did, the tag would
 * be wrong. */
static void evp_seal(const struct gcm_call *c, uint8_t *tag)
{
	EVP_CIPHER_CTX *e = evp_of(c->k)->seal;
	uint8_t none[GX_GCM_TAG_B];
	int n;

	memset(tag, 0, GX_GCM_TAG_B);
	EVP_EncryptInit_ex(e, NULL, NULL, NULL, c->nonce);
	if (c->aad.len)
		EVP_EncryptUpdate(e, NULL, &n, c->aad.b, (int)c->aad.len);
	if (c->len)
		EVP_EncryptUpdate(e, c->dst, &n, c->src, (int)c->len);
	EVP_EncryptFinal_ex(e, none, &n);
	EVP_CIPHER_CTX_ctrl(e, EVP_CTRL_AEAD_GET_TAG, GX_GCM_TAG_B, tag);
}

static bool evp_open(const struct gcm_call *c, const uint8_t *tag)
{
	EVP_CIPHER_CTX *e = evp_of(c->k)->open;
	uint8_t want[GX_GCM_TAG_B], none[GX_GCM_TAG_B];
	int n;

	memcpy(want, tag, sizeof(want)); /* OpenSSL's argument is not const */
	EVP_DecryptInit_ex(e, NULL, NULL, NULL, c->nonce);
	if (c->aad.len)
		EVP_DecryptUpdate(e, NULL, &n, c->aad.b, (int)c->aad.len);
	if (c->len)
		EVP_DecryptUpdate(e, c->dst, &n, c->src, (int)c->len);
	return EVP_CIPHER_CTX_ctrl(e, EVP_CTRL_AEAD_SET_TAG, GX_GCM_TAG_B, want) > 0 &&
	       EVP_DecryptFinal_ex(e, none, &n) > 0;
}

static const struct gcm_kernel gcm_evp = {evp_key_set, evp_key_end, evp_seal, evp_open};

/* ---- libipsec-mb ---- */

static char gcm_name[32] = "openssl";		/* frozen after gcm_once, but for gx_gcm_use() */
static const struct gcm_kernel *gcm = &gcm_evp; /* likewise */

#ifdef GX_HAVE_IPSEC_MB

static IMB_MGR *imb; /* frozen after gcm_once */

_Static_assert(sizeof(struct gcm_key_data) <= GX_GCM_KEY_B, "room for a key");
_Static_assert(alignof(struct gcm_key_data) <= 64, "and aligned");

/* Its kernels for AVX-512 leave the upper halves of the vector registers in use, as ISA-L's do. */
static inline void imb_registers_clean(void)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx"))
		__asm__ volatile("vzeroupper");
#endif
}

/* Is it the right tag? The time does not depend on which byte differs. */
static bool gcm_same(const uint8_t *a, const uint8_t *b)
{
	uint64_t x[2], y[2];

	memcpy(x, a, sizeof(x));
	memcpy(y, b, sizeof(y));
	return !((x[0] ^ y[0]) | (x[1] ^ y[1]));
}

static int imb_key_set(struct gx_gcm_key *k, const uint8_t *secret)
{
	IMB_AES128_GCM_PRE(imb, secret, (struct gcm_key_data *)k->b);
	imb_registers_clean();
	return 0;
}

static void imb_key_end(struct gx_gcm_key *k)
{
}

static void imb_seal(const struct gcm_call *c, uint8_t *tag)
{
	struct gcm_context_data ctx;

	IMB_AES128_GCM_ENC(imb, (const struct gcm_key_data *)c->k->b, &ctx, c->dst, c->src, c->len,
			   c->nonce, c->aad.b, c->aad.len, tag, GX_GCM_TAG_B);
	imb_registers_clean();
}

static bool imb_open(const struct gcm_call *c, const uint8_t *tag)
{
	struct gcm_context_data ctx;
	uint8_t is[GX_GCM_TAG_B];

	IMB_AES128_GCM_DEC(imb, (const struct gcm_key_data *)c->k->b, &ctx, c->dst, c->src, c->len,
			   c->nonce, c->aad.b, c->aad.len, is, GX_GCM_TAG_B);
	imb_registers_clean();
	return gcm_same(is, tag);
}

static const struct gcm_kernel gcm_imb = {imb_key_set, imb_key_end, imb_seal, imb_open};

static const char *imb_arch(void)
{
	if (imb->features & IMB_FEATURE_AVX512F)
		return imb->features & IMB_FEATURE_VAES ? "vaes-avx512" : "avx512";
	if (imb->features & IMB_FEATURE_AVX2)
		return "avx2";
	return imb->features & IMB_FEATURE_AVX ? "avx" : "sse";
}

/* Without AES instructions the library emulates them, with tables: slower than OpenSSL, and its time
 * depends on the key. */
static bool gcm_use_imb(void)
{
	if (!imb) {
		imb = alloc_mb_mgr(0);
		if (!imb)
			return false;
		init_mb_mgr_auto(imb, NULL);
	}
	if (!(imb->features & IMB_FEATURE_AESNI) || !(imb->features & IMB_FEATURE_PCLMULQDQ))
		return false;
	snprintf(gcm_name, sizeof(gcm_name), "ipsec-mb %s", imb_arch());
	gcm = &gcm_imb;
	return true;
}

#else

static bool gcm_use_imb(void)
{
	return false;
}

#endif

/* ---- Choice ---- */

static void gcm_use_evp(void)
{
	snprintf(gcm_name, sizeof(gcm_name), "openssl");
	gcm = &gcm_evp;
}

static void gcm_choose(void)
{
	if (!gcm_use_imb())
		gcm_use_evp();
}

static void gcm_ready(void)
{
	static pthread_once_t gcm_once = PTHREAD_ONCE_INIT;

	pthread_once(&gcm_once, gcm_choose);
}

const char *gx_gcm_name(void)
{
	gcm_ready();
	return gcm_name;
}

bool gx_gcm_use(const char *name)
{
	gcm_ready();
	gcm_choose();
	if (name && strncmp(name, gcm_name, strlen(name)))
		gcm_use_evp();
	return !name || !strncmp(name, gcm_name, strlen(name));
}

int gx_gcm_key_set(struct gx_gcm_key *k, const uint8_t secret[GX_GCM_SECRET_B])
{
	gcm_ready();
	return gcm->key_set(k, secret);
}

void gx_gcm_key_wipe(struct gx_gcm_key *k)
{
	gcm_ready(); /* a key that was never set is wiped as well */
	gcm->key_end(k);
	explicit_bzero(k, sizeof(*k));
}

void gx_gcm_seal(const struct gx_gcm_key *k, const uint8_t nonce[GX_GCM_NONCE_B],
		 struct gx_gcm_aad aad, void *dst, const void *src, size_t len,
		 uint8_t tag[GX_GCM_TAG_B])
{
	gcm->seal(&(struct gcm_call){k, nonce, aad, dst, src, len}, tag);
}

bool gx_gcm_open(const struct gx_gcm_key *k, const uint8_t nonce[GX_GCM_NONCE_B],
		 struct gx_gcm_aad aad, void *dst, const void *src, size_t len,
		 const uint8_t tag[GX_GCM_TAG_B])
{
	return gcm->open(&(struct gcm_call){k, nonce, aad, dst, src, len}, tag);
}
