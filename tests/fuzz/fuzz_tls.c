/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes to an end of TLS. The first byte chooses: 0 a client's first bytes, 1 a server's answer to
 * another client, 2 what comes after the handshake. Nobody without the secret is believed, and what is
 * believed was sent in this connection. Run by libFuzzer, or by fuzz_main.c as an ordinary test.
 */
#include "auth/auth_tls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "fuzz_tls:%d: %s does not hold\n", __LINE__, #cond);       \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* No input was made with it. */
static const uint8_t secret[AUTH_SECRET_B] = "0123456789abcdef0123456789abcdx";

static struct auth_tls_ctx *ctx;

static struct auth_tls *end_new(bool server)
{
	struct auth_tls *t = auth_tls_new(ctx, server, "kv", secret);

	CHECK(t);
	return t;
}

static void carry(struct auth_tls *from, struct auth_tls *to)
{
	uint8_t b[4096];
	size_t n;

	while ((n = auth_tls_out(from, b, sizeof(b))))
		CHECK(!auth_tls_put(to, b, n));
}

/* TLS goes on with bytes that its ClientHello's check has let through alone. */
static void fuzz_first(const uint8_t *b, size_t len)
{
	char name[AUTH_TLS_NAME_MAX];
	struct auth_tls *t;
	uint8_t c;

	if (auth_tls_first(b, len, name) != AUTH_TLS_HELLO)
		return;
	CHECK(len <= AUTH_TLS_FIRST_MAX && name[0] && memchr(name, 0, sizeof(name)));
	t = auth_tls_new(ctx, true, name, secret);
	CHECK(t && !auth_tls_put(t, b, len));
	CHECK(auth_tls_step(t) < 0);
	CHECK(auth_tls_write(t, b, 1) < 0 && auth_tls_read(t, &c, 1) <= 0);
	auth_tls_free(t);
}

static void fuzz_answer(const uint8_t *b, size_t len)
{
	struct auth_tls *t = end_new(false);

	CHECK(!auth_tls_step(t));
	CHECK(!auth_tls_put(t, b, len));
	CHECK(auth_tls_step(t) <= 0);
	CHECK(auth_tls_write(t, b, 1) < 0);
	auth_tls_free(t);
}

static void fuzz_after(const uint8_t *b, size_t len)
{
	struct auth_tls *server = end_new(true), *client = end_new(false);
	uint8_t c[2];

	CHECK(auth_tls_step(client) == 0);
	carry(client, server);
	CHECK(auth_tls_step(server) == 1);
	carry(server, client);
	CHECK(auth_tls_step(client) == 1);
	CHECK(!auth_tls_write(client, b, 1));
	carry(client, server);
	CHECK(auth_tls_read(server, c, sizeof(c)) == 1 && c[0] == b[0]);
	CHECK(!auth_tls_put(server, b, len));
	CHECK(auth_tls_read(server, c, sizeof(c)) <= 0);
	auth_tls_free(server);
	auth_tls_free(client);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const fuzz[])(const uint8_t *b, size_t len) = {fuzz_first, fuzz_answer,
								     fuzz_after};

	if (!ctx)
		ctx = auth_tls_ctx_open();
	CHECK(ctx);
	if (size >= 2 && data[0] < GX_ARRAY_SIZE(fuzz))
		fuzz[data[0]](data + 1, size - 1);
	return 0;
}
