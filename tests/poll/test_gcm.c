// SPDX-License-Identifier: Apache-2.0
/*
 * AES-128-GCM against published answers, against OpenSSL for every length up to a packet's, in and
 * out of place, and with each bit of tag, nonce and clear bytes wrong once. With each kernel that
 * this build and CPU have.
 */
#include "gx_internal/gcm.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LEN_MAX_B 4200
#define GUARD_B	  64
#define POISON	  0xa5
#define AAD_B	  22 /* as of a packet */

static const char *const kernels[] = {NULL, "openssl"}; /* NULL: the best */

static size_t unhex(uint8_t *b, const char *hex)
{
	size_t n = strlen(hex) / 2;

	for (size_t i = 0; i < n; i++) {
		char two[3] = {hex[2 * i], hex[2 * i + 1], 0};

		b[i] = (uint8_t)strtoul(two, NULL, 16);
	}
	return n;
}

/* 1 to 4: McGrew and Viega, The Galois/Counter Mode of Operation, test cases 1 to 4. 5: NIST's
 * gcmEncryptExtIV128, a GMAC. */
static const struct answer {
	const char *key, *nonce, *aad, *plain, *sealed, *tag;
} answers[] = {
	{"00000000000000000000000000000000", "000000000000000000000000", "", "", "",
	 "58e2fccefa7e3061367f1d57a4e7455a"},
	{"00000000000000000000000000000000", "000000000000000000000000", "",
	 "00000000000000000000000000000000", "0388dace60b6a392f328c2b971b2fe78",
	 "ab6e47d42cec13bdf53a67b21257bddf"},
	{"feffe9928665731c6d6a8f9467308308", "cafebabefacedbaddecaf888", "",
	 "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
	 "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255",
	 "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e"
	 "21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985",
	 "4d5c2af327cd64a62cf35abd2ba6fab4"},
	{"feffe9928665731c6d6a8f9467308308", "cafebabefacedbaddecaf888",
	 "feedfacedeadbeeffeedfacedeadbeefabaddad2",
	 "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
	 "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
	 "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e"
	 "21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091",
	 "5bc94fbc3221a5db94fae95ae7121a47"},
	{"77be63708971c4e240d1cb79e8d77feb", "e0e00f19fed7ba0136a797f3",
	 "7a43ec1d9c0a5a78a0b16533a6213cab", "", "", "209fcc8d3675ed938e9c7166709dd946"},
};

static void key_make(struct gx_gcm_key *k, const uint8_t *secret)
{
	memset(k, 0, sizeof(*k));
	assert_int_equal(gx_gcm_key_set(k, secret), 0);
}

static void answers_of_kernel(void)
{
	struct gx_gcm_key k;

	for (size_t i = 0; i < GX_ARRAY_SIZE(answers); i++) {
		uint8_t secret[16], nonce[12], aad[64], plain[128], sealed[128], tag[16];
		uint8_t out[128], is[16];
		struct gx_gcm_aad a = {aad, unhex(aad, answers[i].aad)};
		size_t n = unhex(plain, answers[i].plain);

		unhex(secret, answers[i].key);
		unhex(nonce, answers[i].nonce);
		assert_int_equal(unhex(sealed, answers[i].sealed), n);
		key_make(&k, secret);
		gx_gcm_seal(&k, nonce, a, out, plain, n, is);
		assert_memory_equal(out, sealed, n);
		if (unhex(tag, answers[i].tag))
			assert_memory_equal(is, tag, sizeof(tag));
		assert_true(gx_gcm_open(&k, nonce, a, out, sealed, n, is));
		assert_memory_equal(out, plain, n);
		gx_gcm_key_wipe(&k);
	}
}

static void seal__published_answers(void **state)
{
	for (size_t i = 0; i < GX_ARRAY_SIZE(kernels); i++) {
		assert_true(gx_gcm_use(kernels[i]));
		answers_of_kernel();
	}
	gx_gcm_use(NULL);
}

/* ---- every length ---- */

struct room {
	uint8_t plain[LEN_MAX_B], want[LEN_MAX_B];
	uint8_t at[GUARD_B + LEN_MAX_B + GUARD_B];
};

static const uint8_t secret[16] = {1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233};
static const uint8_t aad[AAD_B] = "the header of a packet";

static void nonce_of(uint8_t *nonce, size_t n)
{
	memset(nonce, 0, GX_GCM_NONCE_B);
	nonce[0] = (uint8_t)n;
	nonce[1] = (uint8_t)(n >> 8);
}

static void guards_whole(const struct room *r, size_t len)
{
	for (size_t i = 0; i < GUARD_B; i++) {
		assert_int_equal(r->at[i], POISON);
		assert_int_equal(r->at[GUARD_B + len + i], POISON);
	}
}

/* @k is of the kernel under test; want and tag are OpenSSL's. */
static void length_one(struct room *r, const struct gx_gcm_key *k, size_t n,
		       const uint8_t *want_tag, bool in_place)
{
	uint8_t nonce[GX_GCM_NONCE_B], tag[GX_GCM_TAG_B], *at = r->at + GUARD_B;
	struct gx_gcm_aad a = {aad, n % (AAD_B + 1)};

	nonce_of(nonce, n);
	memset(r->at, POISON, GUARD_B + n + GUARD_B);
	if (in_place)
		memcpy(at, r->plain, n);
	gx_gcm_seal(k, nonce, a, at, in_place ? at : r->plain, n, tag);
	assert_memory_equal(at, r->want, n);
	assert_memory_equal(tag, want_tag, sizeof(tag));
	guards_whole(r, n);
	if (!in_place)
		memset(at, POISON, n);
	assert_true(gx_gcm_open(k, nonce, a, at, in_place ? at : r->want, n, tag));
	assert_memory_equal(at, r->plain, n);
	guards_whole(r, n);
	tag[n % GX_GCM_TAG_B] ^= (uint8_t)(1 << n % 8);
	assert_false(gx_gcm_open(k, nonce, a, at, r->want, n, tag));
	guards_whole(r, n);
}

static void seal__every_length(void **state)
{
	struct room *r = calloc(1, sizeof(*r));
	uint8_t(*tags)[GX_GCM_TAG_B] = calloc(LEN_MAX_B + 1, GX_GCM_TAG_B);
	uint8_t *all = malloc((size_t)(LEN_MAX_B + 1) * LEN_MAX_B / 2 + LEN_MAX_B), *next = all;
	struct gx_gcm_key k;

	assert_non_null(r);
	assert_non_null(tags);
	assert_non_null(all);
	for (size_t i = 0; i < LEN_MAX_B; i++)
		r->plain[i] = (uint8_t)(i * 131 + (i >> 8));
	assert_true(gx_gcm_use("openssl"));
	key_make(&k, secret);
	for (size_t n = 0; n <= LEN_MAX_B; next += n, n++) {
		uint8_t nonce[GX_GCM_NONCE_B];

		nonce_of(nonce, n);
		gx_gcm_seal(&k, nonce, (struct gx_gcm_aad){aad, n % (AAD_B + 1)}, next, r->plain, n,
			    tags[n]);
	}
	gx_gcm_key_wipe(&k);
	assert_true(gx_gcm_use(NULL));
	key_make(&k, secret);
	next = all;
	for (size_t n = 0; n <= LEN_MAX_B; next += n, n++) {
		memcpy(r->want, next, n);
		length_one(r, &k, n, tags[n], false);
		length_one(r, &k, n, tags[n], true);
	}
	gx_gcm_key_wipe(&k);
	free(all);
	free(tags);
	free(r);
}

/* ---- what is wrong ---- */

static void open_wrong(const struct gx_gcm_key *k, size_t n)
{
	uint8_t nonce[GX_GCM_NONCE_B] = {7}, tag[GX_GCM_TAG_B], clear[AAD_B], sealed[300], out[300];
	struct gx_gcm_aad a = {clear, sizeof(clear)};
	struct {
		uint8_t *b;
		size_t len;
	} part[] = {
		{nonce, sizeof(nonce)}, {tag, sizeof(tag)}, {clear, sizeof(clear)}, {sealed, n}};

	memcpy(clear, aad, sizeof(clear));
	memset(out, 1, sizeof(out));
	gx_gcm_seal(k, nonce, a, sealed, out, n, tag);
	for (size_t p = 0; p < GX_ARRAY_SIZE(part); p++) {
		for (size_t bit = 0; bit < 8 * part[p].len; bit++) {
			part[p].b[bit / 8] ^= (uint8_t)(1 << bit % 8);
			assert_false(gx_gcm_open(k, nonce, a, out, sealed, n, tag));
			part[p].b[bit / 8] ^= (uint8_t)(1 << bit % 8);
		}
	}
	assert_true(gx_gcm_open(k, nonce, a, out, sealed, n, tag));
}

static void open__each_wrong_bit(void **state)
{
	struct gx_gcm_key k;

	for (size_t i = 0; i < GX_ARRAY_SIZE(kernels); i++) {
		assert_true(gx_gcm_use(kernels[i]));
		key_make(&k, secret);
		open_wrong(&k, 0);
		open_wrong(&k, 1);
		open_wrong(&k, 300);
		gx_gcm_key_wipe(&k);
		for (size_t b = 0; b < sizeof(k); b++)
			assert_int_equal(k.b[b], 0);
	}
	gx_gcm_use(NULL);
}

static void use__says_which(void **state)
{
	assert_true(gx_gcm_use("openssl"));
	assert_string_equal(gx_gcm_name(), "openssl");
	assert_false(gx_gcm_use("none"));
	assert_true(gx_gcm_use(NULL));
	print_message("%s\n", gx_gcm_name());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(seal__published_answers),
		cmocka_unit_test(seal__every_length),
		cmocka_unit_test(open__each_wrong_bit),
		cmocka_unit_test(use__says_which),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
