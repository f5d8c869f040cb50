/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of the two contexts of the rig, and a peer of TLS made by hand: see ctl_hand.h. */
#include "control/ctl_hand.h"

#include <stdio.h>
#include <string.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

const uint8_t hand_secret[AUTH_SECRET_B] = "0123456789abcdef0123456789abcde";

void hand_key(struct auth_key *key, const char *name, const uint8_t b[AUTH_SECRET_B])
{
	snprintf(key->k.name, sizeof(key->k.name), "%s", name);
	memcpy(key->k.secret, b, AUTH_SECRET_B);
	key->listed = true;
}

void hand_keys(void)
{
	hand_key(&server->served, "kv", hand_secret);
	hand_key(&client->own, "kv", hand_secret);
}

void hand_flush(struct hand *h)
{
	uint8_t b[4096];
	size_t n;

	while ((n = auth_tls_out(h->t, b, sizeof(b))))
		raw_send(h->fd, b, n);
}

/* Return: the end has come. */
static bool hand_recv_some(struct hand *h)
{
	uint8_t b[4096];
	ssize_t n = raw_recv_some(h->fd, b, sizeof(b));

	if (n > 0)
		assert_int_equal(auth_tls_put(h->t, b, (size_t)n), 0);
	return n <= 0;
}

void hand_open(struct hand *h, bool is_server, int fd, const char *name,
	       const uint8_t key[AUTH_SECRET_B])
{
	static struct auth_tls_ctx *ctx; /* the test's, to its end */
	const int on = 1;
	int ret;

	if (!ctx)
		ctx = auth_tls_ctx_open();
	assert_non_null(ctx);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	h->t = auth_tls_new(ctx, is_server, name, key);
	h->fd = fd;
	h->len = 0;
	while (!(ret = auth_tls_step(h->t))) {
		hand_flush(h);
		assert_false(hand_recv_some(h));
	}
	assert_int_equal(ret, 1);
	hand_flush(h);
}

void hand_close(struct hand *h)
{
	auth_tls_free(h->t);
	close(h->fd);
}

void hand_send(struct hand *h, const void *b, uint32_t len)
{
	assert_int_equal(auth_tls_write(h->t, b, len), 0);
	hand_flush(h);
}

int hand_recv(struct hand *h, uint8_t *body, uint32_t *len)
{
	uint16_t type;
	int n;

	for (;;) {
		n = auth_tls_read(h->t, h->in + h->len, (uint32_t)sizeof(h->in) - h->len);
		h->len += (uint32_t)GX_MAX(n, 0);
		if (h->len >= HDR_B) {
			assert_int_equal(gx_hello_frame(h->in, &type, len), 0);
			if (h->len >= HDR_B + *len)
				break;
		}
		if (n < 0 || (!n && hand_recv_some(h)))
			return n;
	}
	memcpy(body, h->in + HDR_B, *len);
	h->len -= HDR_B + *len;
	memmove(h->in, h->in + HDR_B + *len, h->len);
	return type;
}

void hand_lanes_fill(struct gx_hello_lanes *l, const char *port)
{
	raw_lanes_fill(l, port);
	l->half[0] = 9; /* of the private half 1, nearly */
}

struct gx_hello *hand_client(struct hand *h, int port)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	static struct gx_hello hello;
	uint32_t len = raw_hello(b, GX_HELLO_VERSION);

	hand_open(h, false, raw_connect(port), "kv", hand_secret);
	hand_send(h, b, len);
	assert_int_equal(hand_recv(h, b, &len), GX_HELLO_HELLO);
	assert_int_equal(gx_hello_get(b, len, &hello), 0);
	return &hello;
}
