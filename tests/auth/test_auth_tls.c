/* SPDX-License-Identifier: Apache-2.0 */
/* TLS of the bootstrap: two ends in memory, other TLS programs, and bytes that somebody changed. */
#include "auth/auth_tls.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FRAME_B 65536
#define WIRE_B	(2 * FRAME_B)

static const uint8_t secret[AUTH_SECRET_B] = "0123456789abcdef0123456789abcde";
static const uint8_t other[AUTH_SECRET_B] = "0123456789abcdef0123456789abcdf";

static struct auth_tls_ctx *ctx;
static struct auth_tls *server, *client;

static int setup(void **state)
{
	ctx = auth_tls_ctx_open();
	return !ctx;
}

static int teardown(void **state)
{
	auth_tls_free(server);
	auth_tls_free(client);
	auth_tls_ctx_close(ctx);
	server = client = NULL;
	ctx = NULL;
	return 0;
}

static void ends_open(const uint8_t *server_secret)
{
	auth_tls_free(server);
	auth_tls_free(client);
	server = auth_tls_new(ctx, true, "kv", server_secret);
	client = auth_tls_new(ctx, false, "kv", secret);
	assert_non_null(server);
	assert_non_null(client);
}

/* At most @step bytes at a time. Return: bytes moved. */
static size_t carry(struct auth_tls *from, struct auth_tls *to, size_t step)
{
	uint8_t b[4096];
	size_t all = 0, n;

	while ((n = auth_tls_out(from, b, GX_MIN(step, sizeof(b))))) {
		assert_int_equal(auth_tls_put(to, b, n), 0);
		all += n;
	}
	return all;
}

/* The client has finished; what finishes the server is on its way. */
static void ends_meet(void)
{
	ends_open(secret);
	assert_int_equal(auth_tls_step(client), 0);
	assert_true(carry(client, server, 4096) > 0);
	assert_int_equal(auth_tls_step(server), 1);
	assert_true(carry(server, client, 4096) > 0);
	assert_int_equal(auth_tls_step(client), 1);
}

static void frame_fill(uint8_t *b, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		b[i] = (uint8_t)(i * 7 + seed + i / 251);
}

/* @len bytes go over, @step at a time on the wire. */
static void frame_goes(struct auth_tls *from, struct auth_tls *to, size_t len, size_t step)
{
	static uint8_t sent[FRAME_B], got[FRAME_B + 1], b[WIRE_B];
	size_t n = 0;

	frame_fill(sent, len, (unsigned)len);
	assert_int_equal(auth_tls_write(from, sent, len), 0);
	for (size_t k; (k = auth_tls_out(from, b, step));) {
		int ret;

		assert_int_equal(auth_tls_put(to, b, k), 0);
		while ((ret = auth_tls_read(to, got + n, GX_MIN(sizeof(got) - n, (size_t)1000))) >
		       0)
			n += (size_t)ret;
		assert_int_equal(ret, 0);
	}
	assert_int_equal(n, len);
	assert_memory_equal(sent, got, len);
}

/* ---- two ends of gx ---- */

static void ends__meet(void **state)
{
	ends_meet();
	frame_goes(client, server, 100, WIRE_B);
	frame_goes(server, client, FRAME_B, WIRE_B);
	frame_goes(client, server, FRAME_B, 4096);
	frame_goes(server, client, 1, 1);
	frame_goes(client, server, 40000, 1);
}

/* A byte at a time, each step in between. */
static void ends__meet_slowly(void **state)
{
	uint8_t c;
	int ret = 0;

	ends_open(secret);
	assert_int_equal(auth_tls_step(client), 0);
	while (auth_tls_out(client, &c, 1)) {
		assert_int_equal(ret, 0);
		assert_int_equal(auth_tls_put(server, &c, 1), 0);
		ret = auth_tls_step(server);
	}
	assert_int_equal(ret, 1);
	ret = 0;
	while (auth_tls_out(server, &c, 1)) {
		assert_int_equal(ret, 0);
		assert_int_equal(auth_tls_put(client, &c, 1), 0);
		ret = auth_tls_step(client);
	}
	assert_int_equal(ret, 1);
	frame_goes(client, server, 10, 1);
}

/* Words and bytes of the wire are the same, whether the name or the secret is wrong. */
static void ends__other_secret(void **state)
{
	static const struct {
		const uint8_t *secret;
	} wrong[] = {{other}, {NULL}};
	uint8_t said[2][64];
	size_t len[2];

	for (unsigned i = 0; i < GX_ARRAY_SIZE(wrong); i++) {
		ends_open(wrong[i].secret);
		assert_int_equal(auth_tls_step(client), 0);
		carry(client, server, 4096);
		assert_int_equal(auth_tls_step(server), -EACCES);
		len[i] = auth_tls_out(server, said[i], sizeof(said[i]));
		assert_true(len[i] > 0);
		assert_int_equal(auth_tls_put(client, said[i], len[i]), 0);
		assert_int_equal(auth_tls_step(client), -EACCES);
	}
	assert_int_equal(len[0], len[1]);
	assert_memory_equal(said[0], said[1], len[0]);
}

static void client__server_without_keys(void **state)
{
	uint8_t alert[AUTH_TLS_ALERT_B];

	ends_open(secret);
	assert_int_equal(auth_tls_step(client), 0);
	auth_tls_no_keys(alert);
	assert_int_equal(auth_tls_put(client, alert, sizeof(alert)), 0);
	assert_int_equal(auth_tls_step(client), -ENOKEY);
}

static void client__not_tls(void **state)
{
	static const uint8_t http[] = "HTTP/1.1 400 Bad Request\r\n\r\n";

	ends_open(secret);
	assert_int_equal(auth_tls_step(client), 0);
	assert_int_equal(auth_tls_put(client, http, sizeof(http)), 0);
	assert_int_equal(auth_tls_step(client), -EPROTO);
}

/* An end that does not answer in this connection has no secrets of its data. */
static void secret__both_ends_agree(void **state)
{
	const struct auth_dir ways[] = {{AUTH_PACKET, 0, 0}, {AUTH_PACKET, 1, 0},
					{AUTH_PACKET, 0, 1}, {AUTH_PACKET, 0, 256},
					{AUTH_TCP, 0, 0},    {AUTH_PACKET, 0, 1u << 24}};
	struct auth_secret a[GX_ARRAY_SIZE(ways)], b;

	ends_open(secret);
	assert_int_equal(auth_tls_step(client), 0);
	assert_int_equal(auth_tls_secret(client, &ways[0], &b), -EPROTO);
	ends_meet();
	assert_int_equal(auth_tls_secret(server, &ways[0], &b), -EPROTO);
	frame_goes(client, server, 10, WIRE_B);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(ways); i++) {
		assert_int_equal(auth_tls_secret(client, &ways[i], &a[i]), 0);
		assert_int_equal(auth_tls_secret(server, &ways[i], &b), 0);
		assert_memory_equal(a[i].b, b.b, sizeof(b.b));
		for (unsigned k = 0; k < i; k++)
			assert_memory_not_equal(a[i].b, a[k].b, sizeof(b.b));
	}
	b = a[0];
	ends_meet(); /* another connection with the same key */
	assert_int_equal(auth_tls_secret(client, &ways[0], &a[0]), 0);
	assert_memory_not_equal(a[0].b, b.b, sizeof(b.b));
}

static void end__close_notify(void **state)
{
	uint8_t c;

	ends_meet();
	frame_goes(client, server, 10, WIRE_B);
	assert_int_equal(auth_tls_read(server, &c, 1), 0); /* cut off: no word */
	auth_tls_end(client);
	assert_true(carry(client, server, 4096) > 0);
	assert_int_equal(auth_tls_read(server, &c, 1), -ESHUTDOWN);
	auth_tls_end(server);
	assert_true(carry(server, client, 4096) > 0);
	assert_int_equal(auth_tls_read(client, &c, 1), -ESHUTDOWN);
}

/* ---- somebody on the way ---- */

/* One bit of the handshake is wrong: at no time do both ends say that they know the other. */
static void way__handshake_changed(void **state)
{
	static uint8_t b[4096];

	for (unsigned at = 0, len = 1; at < len; at++) {
		uint8_t c = 0;
		int ret;

		ends_open(secret);
		assert_int_equal(auth_tls_step(client), 0);
		carry(client, server, 4096);
		assert_int_equal(auth_tls_step(server), 1);
		len = (unsigned)auth_tls_out(server, b, sizeof(b));
		b[at] ^= (uint8_t)(1u << at % 8);
		assert_int_equal(auth_tls_put(client, b, len), 0);
		ret = auth_tls_step(client);
		if (at == 1 || at == 2)
			continue; /* the version of a record, which TLS 1.3 ignores */
		assert_int_not_equal(ret, 1);
		assert_int_not_equal(auth_tls_write(client, &c, 1), 0);
		carry(client, server, 4096);
		assert_true(auth_tls_read(server, &c, 1) <= 0);
	}
}

/* The same ClientHello once more: the server answers, and nobody can say a word after it. */
static void way__hello_again(void **state)
{
	static uint8_t hello[AUTH_TLS_FIRST_MAX], flight[4096];
	struct auth_tls *again;
	size_t len, n;
	uint8_t c;

	ends_open(secret);
	assert_int_equal(auth_tls_step(client), 0);
	len = auth_tls_out(client, hello, sizeof(hello));
	assert_int_equal(auth_tls_put(server, hello, len), 0);
	assert_int_equal(auth_tls_step(server), 1);
	carry(server, client, 4096);
	assert_int_equal(auth_tls_step(client), 1);
	assert_int_equal(auth_tls_write(client, (const uint8_t *)"word", 4), 0);
	n = auth_tls_out(client, flight, sizeof(flight));
	again = auth_tls_new(ctx, true, "kv", secret);
	assert_int_equal(auth_tls_put(again, hello, len), 0);
	assert_int_equal(auth_tls_step(again), 1);
	assert_int_equal(auth_tls_put(again, flight, n), 0);
	assert_int_equal(auth_tls_read(again, &c, 1), -EPROTO);
	auth_tls_free(again);
	assert_int_equal(auth_tls_put(server, flight, n), 0);
	assert_int_equal(auth_tls_read(server, &c, 1), 1);
}

static void way__word_changed(void **state)
{
	uint8_t b[64], c;
	size_t len;

	for (unsigned at = 0; at < 20; at++) {
		ends_meet();
		frame_goes(client, server, 10, WIRE_B);
		assert_int_equal(auth_tls_write(client, (const uint8_t *)"word", 4), 0);
		len = auth_tls_out(client, b, sizeof(b));
		if (at == 3 || at == 4)
			continue; /* another length: the rest is missing */
		b[at % len] ^= 1;
		assert_int_equal(auth_tls_put(server, b, len), 0);
		assert_int_equal(auth_tls_read(server, &c, 1), -EPROTO);
	}
}

/* ---- first bytes ---- */

static size_t hello_make(uint8_t b[AUTH_TLS_FIRST_MAX])
{
	ends_open(secret);
	assert_int_equal(auth_tls_step(client), 0);
	return auth_tls_out(client, b, AUTH_TLS_FIRST_MAX);
}

static void first__hello(void **state)
{
	uint8_t b[AUTH_TLS_FIRST_MAX + 1];
	char name[AUTH_TLS_NAME_MAX];
	size_t len = hello_make(b);

	for (size_t n = 0; n < len; n++)
		assert_int_equal(auth_tls_first(b, n, name), AUTH_TLS_MORE);
	assert_int_equal(auth_tls_first(b, len, name), AUTH_TLS_HELLO);
	assert_string_equal(name, "kv");
	b[len] = 0;
	assert_int_equal(auth_tls_first(b, len + 1, name), AUTH_TLS_BAD);
}

static void first__strangers(void **state)
{
	char name[AUTH_TLS_NAME_MAX];
	const uint8_t long_one[6] = {0x16, 3, 1, 0x04, 0, 1},
		      certificate[6] = {0x16, 3, 1, 0, 9, 11};

	assert_int_equal(auth_tls_first((const uint8_t *)"GET / HTTP/1.1\r\n", 16, name),
			 AUTH_TLS_NOT);
	assert_int_equal(auth_tls_first((const uint8_t *)"\x16\x03\x00", 3, name), AUTH_TLS_NOT);
	assert_int_equal(auth_tls_first(long_one, sizeof(long_one), name), AUTH_TLS_BAD);
	assert_int_equal(auth_tls_first(certificate, sizeof(certificate), name), AUTH_TLS_BAD);
}

/* Each byte of a good one wrong, and cut off anywhere with lengths that agree: it is read, and nothing
 * beyond it. Where it is still good, OpenSSL decides. */
static void first__damaged(void **state)
{
	uint8_t good[AUTH_TLS_FIRST_MAX];
	char name[AUTH_TLS_NAME_MAX];
	size_t len = hello_make(good);
	unsigned bad = 0;

	for (size_t at = 0; at < len; at++) {
		for (unsigned v = 1; v < 256; v += 2) {
			uint8_t *b = malloc(len); /* the sanitizer sees its end */

			memcpy(b, good, len);
			b[at] ^= (uint8_t)v;
			bad += auth_tls_first(b, len, name) == AUTH_TLS_BAD;
			free(b);
		}
	}
	assert_true(bad > 1000);
	for (size_t n = 6; n < len; n++) {
		uint8_t *b = malloc(n);

		memcpy(b, good, n);
		b[4] = (uint8_t)(n - 5);
		b[3] = (uint8_t)((n - 5) >> 8);
		if (n >= 9) {
			b[8] = (uint8_t)(n - 9);
			b[7] = (uint8_t)((n - 9) >> 8);
		}
		assert_int_equal(auth_tls_first(b, n, name), AUTH_TLS_BAD);
		free(b);
	}
}

/* ---- other TLS programs ---- */

static SSL_SESSION *foreign_session(SSL *ssl)
{
	static const unsigned char suite[2] = {0x13, 0x01};
	SSL_SESSION *s = SSL_SESSION_new();

	SSL_SESSION_set1_master_key(s, secret, sizeof(secret));
	SSL_SESSION_set_cipher(s, SSL_CIPHER_find(ssl, suite));
	SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION);
	return s;
}

static const char *foreign_name;

static int foreign_use(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *len,
		       SSL_SESSION **out)
{
	*id = (const unsigned char *)foreign_name;
	*len = strlen(foreign_name);
	*out = foreign_session(ssl);
	return 1;
}

/* The ClientHello of OpenSSL's client. @name: of its key; NULL: none. Return: what gx says to it. */
static enum auth_tls_first foreign_hello(const char *name, const char *groups, const char *suites)
{
	SSL_CTX *c = SSL_CTX_new(TLS_client_method());
	char got[AUTH_TLS_NAME_MAX];
	uint8_t b[AUTH_TLS_FIRST_MAX];
	enum auth_tls_first ret;
	SSL *ssl;
	BIO *out;

	assert_non_null(c);
	foreign_name = name;
	if (name)
		SSL_CTX_set_psk_use_session_callback(c, foreign_use);
	if (groups)
		assert_int_equal(SSL_CTX_set1_groups_list(c, groups), 1);
	if (suites)
		assert_int_equal(SSL_CTX_set_ciphersuites(c, suites), 1);
	ssl = SSL_new(c);
	out = BIO_new(BIO_s_mem());
	SSL_set_bio(ssl, BIO_new(BIO_s_mem()), out);
	assert_int_equal(SSL_connect(ssl), -1);
	ret = auth_tls_first(b, (size_t)BIO_read(out, b, sizeof(b)), got);
	SSL_free(ssl);
	SSL_CTX_free(c);
	return ret;
}

static void first__other_clients(void **state)
{
	assert_int_equal(foreign_hello(NULL, NULL, NULL), AUTH_TLS_BAD); /* certificates */
	assert_int_equal(foreign_hello("kv", NULL, NULL), AUTH_TLS_HELLO);
	assert_int_equal(foreign_hello("kv", "P-256", NULL), AUTH_TLS_BAD);
	assert_int_equal(foreign_hello("kv", "P-256:X25519", NULL), AUTH_TLS_BAD);
	assert_int_equal(foreign_hello("a name of 31 letters, no more.", NULL, NULL), AUTH_TLS_BAD);
	assert_int_equal(foreign_hello("a-name-of-31-letters.-no-more--", NULL, NULL),
			 AUTH_TLS_HELLO);
	assert_int_equal(foreign_hello("a-name-of-32-letters.-no-more---", NULL, NULL),
			 AUTH_TLS_BAD);
	assert_int_equal(foreign_hello("a-name-of-31-letters.-no-more--+", NULL, NULL),
			 AUTH_TLS_HELLO);
	assert_int_equal(foreign_hello("+", NULL, NULL), AUTH_TLS_BAD);
	assert_int_equal(foreign_hello("k+v", NULL, NULL), AUTH_TLS_BAD);
}

static SSL_CTX *certificate_ctx(void)
{
	EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
	SSL_CTX *c = SSL_CTX_new(TLS_server_method());
	X509 *cert = X509_new();

	ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
	X509_gmtime_adj(X509_getm_notBefore(cert), 0);
	X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
	X509_set_pubkey(cert, key);
	X509_set_issuer_name(cert, X509_get_subject_name(cert));
	assert_true(X509_sign(cert, key, NULL) > 0);
	assert_int_equal(SSL_CTX_use_certificate(c, cert), 1);
	assert_int_equal(SSL_CTX_use_PrivateKey(c, key), 1);
	X509_free(cert);
	EVP_PKEY_free(key);
	return c;
}

/* A server that shows a certificate in place of the key. */
static void client__server_with_certificate(void **state)
{
	SSL_CTX *c = certificate_ctx();
	SSL *ssl = SSL_new(c);
	BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
	uint8_t b[8192];
	int n;

	SSL_set_bio(ssl, in, out);
	ends_open(secret);
	assert_int_equal(auth_tls_step(client), 0);
	n = (int)auth_tls_out(client, b, sizeof(b));
	assert_int_equal(BIO_write(in, b, n), n);
	assert_int_equal(SSL_accept(ssl), -1);
	n = BIO_read(out, b, sizeof(b));
	assert_true(n > 300); /* with a certificate */
	assert_int_equal(auth_tls_put(client, b, (size_t)n), 0);
	assert_int_equal(auth_tls_step(client), -EPROTO);
	SSL_free(ssl);
	SSL_CTX_free(c);
}

#define TEST(fn)                                                                                   \
	{                                                                                          \
#fn, fn, setup, teardown, NULL                                                     \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(ends__meet),
		TEST(ends__meet_slowly),
		TEST(ends__other_secret),
		TEST(client__server_without_keys),
		TEST(client__not_tls),
		TEST(secret__both_ends_agree),
		TEST(end__close_notify),
		TEST(way__handshake_changed),
		TEST(way__hello_again),
		TEST(way__word_changed),
		TEST(first__hello),
		TEST(first__strangers),
		TEST(first__damaged),
		TEST(first__other_clients),
		TEST(client__server_with_certificate),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
