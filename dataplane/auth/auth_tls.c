/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS 1.3 with a pre-shared key over OpenSSL's memory BIOs. OpenSSL has a library context of its own
 * here: what openssl.cnf loads does not reach it, and it does not reach what else the process does with
 * OpenSSL. ctl_tls.c calls it, on the control thread.
 */
#include "auth/auth_tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>

#define OUT_MAX_B (256 << 10) /* bytes that wait for a peer which asks and never reads */

struct auth_tls_ctx {
	OSSL_LIB_CTX *lib;
	SSL_CTX *ssl;
	uint8_t stranger[AUTH_SECRET_B]; /* nobody has it */
};

struct auth_tls {
	SSL *ssl;
	BIO *in, *out; /* the SSL's */
	const struct auth_tls_ctx *ctx;
	bool server, no_memory;
	char name[AUTH_TLS_NAME_MAX];
	const uint8_t *secret; /* the caller's, or the stranger's */
	const char *peer;      /* the caller's: the server's name, in the secret; NULL: not */
};

/* ---- A client's first record ---- */

/* A cursor over bytes that came; sticky. */
struct cur {
	const uint8_t *b;
	size_t left;
	bool bad;
};

static const uint8_t *cur_take(struct cur *c, size_t n)
{
	const uint8_t *p = c->b;

	if (c->bad || n > c->left) {
		c->bad = true;
		return NULL;
	}
	c->b += n;
	c->left -= n;
	return p;
}

/* A number of @n bytes, big endian. */
static uint32_t cur_int(struct cur *c, unsigned n)
{
	const uint8_t *p = cur_take(c, n);
	uint32_t v = 0;

	for (unsigned i = 0; p && i < n; i++)
		v = v << 8 | p[i];
	return v;
}

/* What a length of @n bytes is before. */
static struct cur cur_part(struct cur *c, unsigned n)
{
	size_t len = cur_int(c, n);
	const uint8_t *p = cur_take(c, len);

	return (struct cur){.b = p, .left = p ? len : 0, .bad = !p};
}

/* Does a list of numbers of @n bytes have @v? */
static bool cur_has(struct cur list, unsigned n, uint32_t v)
{
	bool has = false;

	while (list.left && !list.bad)
		has |= cur_int(&list, n) == v;
	return has && !list.bad;
}

static bool name_char(uint8_t c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '.' || c == '_' || c == '-';
}

/* pre_shared_key, of which nothing may follow: one name and one binder of SHA-256. */
static bool psk_take(struct cur e, char name[AUTH_TLS_NAME_MAX])
{
	struct cur ids = cur_part(&e, 2), id = cur_part(&ids, 2), binders;
	size_t n = id.left && id.b[id.left - 1] == AUTH_TLS_BOUND ? id.left - 1 : id.left;
	bool ok = n && n < AUTH_TLS_NAME_MAX - 1;

	cur_int(&ids, 4); /* age of a ticket, which it is none */
	binders = cur_part(&e, 2);
	ok = ok && !ids.bad && !ids.left && !binders.bad && !e.left && binders.left == 33 &&
	     cur_int(&binders, 1) == 32;
	for (size_t i = 0; ok && i < n; i++)
		ok = name_char(id.b[i]);
	if (!ok)
		return false;
	memcpy(name, id.b, id.left);
	name[id.left] = 0;
	return true;
}

static bool has_x25519(struct cur e)
{
	struct cur list = cur_part(&e, 2);
	bool has = false;

	while (list.left && !list.bad) {
		uint32_t group = cur_int(&list, 2);
		struct cur key = cur_part(&list, 2);

		has |= group == 0x1d && key.left == 32;
	}
	return has && !list.bad;
}

/* TLS 1.3, a secret together with X25519, and the name of a key last. */
static bool extensions_are(struct cur all, char name[AUTH_TLS_NAME_MAX])
{
	bool version = false, group = false, mode = false, psk = false;

	while (all.left && !all.bad && !psk) {
		uint32_t type = cur_int(&all, 2);
		struct cur e = cur_part(&all, 2), list = e;

		if (type == 43) /* supported_versions */
			version = cur_has(cur_part(&list, 1), 2, 0x304);
		else if (type == 45) /* psk_key_exchange_modes: psk_dhe_ke */
			mode = cur_has(cur_part(&list, 1), 1, 1);
		else if (type == 51) /* key_share */
			group = has_x25519(e);
		else if (type == 41 && !psk_take(e, name))
			return false;
		psk = type == 41;
	}
	return psk && version && group && mode && !all.bad && !all.left;
}

static bool hello_is(struct cur c, char name[AUTH_TLS_NAME_MAX])
{
	struct cur body, id, ciphers, compression;
	bool good = cur_int(&c, 1) == 1; /* ClientHello */

	body = cur_part(&c, 3);
	good = good && !body.bad && !c.left && cur_int(&body, 2) == 0x303;
	cur_take(&body, 32); /* random */
	id = cur_part(&body, 1);
	ciphers = cur_part(&body, 2);
	compression = cur_part(&body, 1);
	good = good && !id.bad && id.left <= 32 && cur_has(ciphers, 2, 0x1301) &&
	       cur_has(compression, 1, 0);
	return good && extensions_are(cur_part(&body, 2), name) && !body.left;
}

enum auth_tls_first auth_tls_first(const uint8_t *b, size_t len, char name[AUTH_TLS_NAME_MAX])
{
	static const uint8_t begin[3] = {0x16, 3, 1}; /* no frame of gx is that long */
	size_t rec;

	if (memcmp(b, begin, GX_MIN(len, sizeof(begin))))
		return AUTH_TLS_NOT;
	if (len < 6)
		return AUTH_TLS_MORE;
	rec = (size_t)b[3] << 8 | b[4];
	if (b[5] != 1 || rec > AUTH_TLS_FIRST_MAX - 5 || len > 5 + rec)
		return AUTH_TLS_BAD; /* nothing follows it: the client waits for the server */
	if (len < 5 + rec)
		return AUTH_TLS_MORE;
	return hello_is((struct cur){.b = b + 5, .left = rec}, name) ? AUTH_TLS_HELLO
								     : AUTH_TLS_BAD;
}

void auth_tls_no_keys(uint8_t b[AUTH_TLS_ALERT_B])
{
	static const uint8_t alert[AUTH_TLS_ALERT_B] = {
		0x15, 3, 3, 0, 2, SSL3_AL_FATAL, SSL_AD_UNKNOWN_PSK_IDENTITY};

	memcpy(b, alert, sizeof(alert));
}

/* ---- The secret, as OpenSSL asks for it ---- */

/* The key's secret, or one made of it for a name, in the manner of RFC 9258. */
static bool secret_take(const struct auth_tls *t, uint8_t b[AUTH_SECRET_B])
{
	size_t n;

	memcpy(b, t->secret, AUTH_SECRET_B);
	return !t->peer ||
	       EVP_Q_mac(t->ctx->lib, "HMAC", NULL, "SHA256", NULL, t->secret, AUTH_SECRET_B,
			 (const uint8_t *)t->peer, strlen(t->peer), b, AUTH_SECRET_B, &n);
}

static SSL_SESSION *session_new(SSL *ssl)
{
	static const unsigned char aes_128_gcm_sha256[2] = {0x13, 0x01};
	struct auth_tls *t = SSL_get_app_data(ssl);
	SSL_SESSION *s = SSL_SESSION_new();
	uint8_t b[AUTH_SECRET_B];
	bool ok = s && secret_take(t, b) && SSL_SESSION_set1_master_key(s, b, sizeof(b));

	explicit_bzero(b, sizeof(b));
	t->no_memory = !s;
	if (ok && SSL_SESSION_set_cipher(s, SSL_CIPHER_find(ssl, aes_128_gcm_sha256)) &&
	    SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION))
		return s;
	SSL_SESSION_free(s);
	return NULL;
}

static int server_find(SSL *ssl, const unsigned char *id, size_t len, SSL_SESSION **out)
{
	const struct auth_tls *t = SSL_get_app_data(ssl);

	*out = NULL;
	if (len == strlen(t->name) && !memcmp(id, t->name, len))
		*out = session_new(ssl);
	return *out != NULL;
}

static int client_use(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *len,
		      SSL_SESSION **out)
{
	const struct auth_tls *t = SSL_get_app_data(ssl);

	*id = (const unsigned char *)t->name;
	*len = strlen(t->name);
	*out = session_new(ssl);
	return *out != NULL;
}

/* ---- Open and close ---- */

static bool ctx_set(SSL_CTX *c)
{
	SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
	SSL_CTX_clear_options(c, SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_ALLOW_NO_DHE_KEX);
	SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_psk_find_session_callback(c, server_find);
	SSL_CTX_set_psk_use_session_callback(c, client_use);
	return SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) &&
	       SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) &&
	       SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256") &&
	       SSL_CTX_set1_groups_list(c, "X25519") && SSL_CTX_set_num_tickets(c, 0) &&
	       SSL_CTX_set_max_early_data(c, 0);
}

struct auth_tls_ctx *auth_tls_ctx_open(void)
{
	struct auth_tls_ctx *ctx = calloc(1, sizeof(*ctx));

	/* At exit other threads still use it. */
	if (!ctx || !OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, NULL) ||
	    gx_random(ctx->stranger, sizeof(ctx->stranger)))
		goto err;
	ctx->lib = OSSL_LIB_CTX_new();
	ctx->ssl = ctx->lib ? SSL_CTX_new_ex(ctx->lib, NULL, TLS_method()) : NULL;
	if (ctx->ssl && ctx_set(ctx->ssl))
		return ctx;
err:
	auth_tls_ctx_close(ctx);
	return NULL;
}

void auth_tls_ctx_close(struct auth_tls_ctx *ctx)
{
	if (!ctx)
		return;
	SSL_CTX_free(ctx->ssl);
	if (ctx->lib)
		OPENSSL_thread_stop_ex(ctx->lib);
	OSSL_LIB_CTX_free(ctx->lib);
	free(ctx);
}

struct auth_tls *auth_tls_new(struct auth_tls_ctx *ctx, bool server, const char *name,
			      const uint8_t secret[AUTH_SECRET_B])
{
	struct auth_tls *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->server = server;
	t->ctx = ctx;
	memccpy(t->name, name, 0, sizeof(t->name) - 1);
	t->secret = secret ? secret : ctx->stranger;
	t->ssl = SSL_new(ctx->ssl);
	t->in = BIO_new(BIO_s_mem());
	t->out = BIO_new(BIO_s_mem());
	if (!t->ssl || !t->in || !t->out || !SSL_set_app_data(t->ssl, t)) {
		BIO_free(t->in);
		BIO_free(t->out);
		auth_tls_free(t);
		return NULL;
	}
	SSL_set_bio(t->ssl, t->in, t->out);
	if (server) {
		SSL_set_accept_state(t->ssl);
		return t;
	}
	SSL_set_connect_state(t->ssl);
	/* Where the server has not the key, the client wants a certificate, and trusts nobody's. */
	SSL_set_verify(t->ssl, SSL_VERIFY_PEER, NULL);
	return t;
}

void auth_tls_peer(struct auth_tls *t, const char *peer)
{
	char *end = t->name + strlen(t->name);

	if (!t->server && peer)
		*end++ = AUTH_TLS_BOUND;
	if (end[-1] != AUTH_TLS_BOUND)
		return;
	t->peer = peer;
	t->secret = peer ? t->secret : t->ctx->stranger;
}

void auth_tls_free(struct auth_tls *t)
{
	if (!t)
		return;
	SSL_free(t->ssl);
	free(t);
}

/* ---- Bytes ---- */

int auth_tls_put(struct auth_tls *t, const uint8_t *b, size_t len)
{
	return BIO_write(t->in, b, (int)len) == (int)len ? 0 : -ENOMEM;
}

size_t auth_tls_out(struct auth_tls *t, uint8_t *b, size_t room)
{
	int n = BIO_read(t->out, b, (int)room);

	return n > 0 ? (size_t)n : 0;
}

/* Why the last call of OpenSSL failed with @ret; 0: it waits for bytes. */
static int tls_error(const struct auth_tls *t, int ret)
{
	int err = SSL_get_error(t->ssl, ret), reason;

	if (err == SSL_ERROR_WANT_READ)
		return 0;
	if (err == SSL_ERROR_ZERO_RETURN)
		return -ESHUTDOWN;
	reason = ERR_GET_REASON(ERR_peek_last_error());
	switch (reason) {
	case ERR_R_MALLOC_FAILURE:
		return -ENOMEM;
	case SSL_R_BINDER_DOES_NOT_VERIFY:
	case SSL_AD_REASON_OFFSET + SSL_AD_ILLEGAL_PARAMETER: /* the peer says that to us */
	case SSL_AD_REASON_OFFSET + SSL_AD_DECRYPT_ERROR:
		return -EACCES;
	case SSL_AD_REASON_OFFSET + SSL_AD_UNKNOWN_PSK_IDENTITY:
		return -ENOKEY;
	}
	return -EPROTO;
}

int auth_tls_step(struct auth_tls *t)
{
	static const uint8_t zero[AUTH_SECRET_B];
	int ret;

	ERR_clear_error();
	ret = SSL_do_handshake(t->ssl);
	/* The secret of OpenSSL's session has done its work. TLS's early secret, which is made of it,
	 * stays: docs/security.md says what that is worth. */
	if (SSL_session_reused(t->ssl))
		SSL_SESSION_set1_master_key(SSL_get_session(t->ssl), zero, sizeof(zero));
	if (ret == 1) /* by the secret, and no other way? */
		return SSL_session_reused(t->ssl) ? 1 : -EPROTO;
	ret = tls_error(t, ret);
	if (ret)
		return t->no_memory ? -ENOMEM : ret == -ESHUTDOWN ? -EPROTO : ret;
	return t->server && BIO_pending(t->out);
}

int auth_tls_read(struct auth_tls *t, uint8_t *b, size_t room)
{
	int ret;

	ERR_clear_error();
	ret = SSL_read(t->ssl, b, (int)room);
	if (ret <= 0)
		ret = tls_error(t, ret);
	if (ret >= 0 && BIO_pending(t->out) > OUT_MAX_B)
		return -EPROTO;
	return ret == -EACCES || ret == -ENOKEY ? -EPROTO : ret;
}

int auth_tls_write(struct auth_tls *t, const uint8_t *b, size_t len)
{
	int ret;

	if (!SSL_is_init_finished(t->ssl))
		return -EPROTO;
	ERR_clear_error();
	ret = SSL_write(t->ssl, b, (int)len);
	return ret == (int)len ? 0 : tls_error(t, ret) == -ENOMEM ? -ENOMEM : -EPROTO;
}

void auth_tls_end(struct auth_tls *t)
{
	ERR_clear_error();
	if (SSL_is_init_finished(t->ssl))
		SSL_shutdown(t->ssl);
}

int auth_tls_secret(struct auth_tls *t, const struct auth_dir *dir, struct auth_secret *out)
{
	static const char label[] = "EXPORTER-gx-data";
	const uint8_t context[] = {dir->kind,
				   (uint8_t)dir->lane,
				   (uint8_t)(dir->lane >> 8),
				   (uint8_t)(dir->lane >> 16),
				   (uint8_t)(dir->lane >> 24),
				   dir->dir};

	ERR_clear_error();
	if (!SSL_is_init_finished(t->ssl) ||
	    SSL_export_keying_material(t->ssl, out->b, sizeof(out->b), label, sizeof(label) - 1,
				       context, sizeof(context), 1) != 1)
		return -EPROTO;
	return 0;
}
