/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes to a server on a bootstrap connection, over a real socket. The first byte says how far the
 * peer has come before: bits 0 and 1: 0 just connected, 1 has shown its user, 2 has an ACCEPT, 3 is up;
 * bit 2: by TLS, so that these bytes come from a peer with the key. The server ends the connection, and
 * serves the next one. Run by libFuzzer, or by fuzz_main.c as an ordinary test.
 */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control/ctl_hand.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum stage { FIRST, PROVEN, ACCEPTED, UP };

static struct hand h; /* .t NULL: in clear */
static int port;

static void say(const void *b, uint32_t len)
{
	if (h.t)
		hand_send(&h, b, len);
	else
		raw_send(h.fd, b, len);
}

static void hear(int type)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	uint32_t len;

	assert_int_equal(h.t ? hand_recv(&h, b, &len) : raw_recv(h.fd, b, &len), type);
}

/* Return: the Unix socket, -1. */
static int come_to(enum stage stage)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	static struct gx_hello hello;
	struct gx_hello_lanes l;
	int un;

	if (stage == FIRST)
		return -1;
	if (h.t)
		hello = *hand_client(&h, port);
	else
		h.fd = raw_client(port, &hello);
	un = raw_prove(&hello);
	if (stage == PROVEN)
		return un;
	if (h.t)
		hand_lanes_fill(&l, "udp");
	else
		raw_lanes_fill(&l, "udp");
	say(b, gx_hello_lanes_put(b, GX_HELLO_CONNECT, &l));
	hear(GX_HELLO_ACCEPT);
	if (stage == UP) {
		hear(GX_HELLO_UP);
		say(b, gx_hello_plain_put(b, GX_HELLO_UP, NULL, 0));
	}
	return un;
}

static void begin(void)
{
	static enum gx_uring_method epoll = GX_URING_EPOLL;
	void *state = &epoll;
	char addr[32];

	rig_setup(&state);
	hand_keys();
	port = server_listen(addr);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static unsigned nr;
	enum stage stage;
	char c[4096];
	int un;

	if (!size || data[0] > 7)
		return 0;
	if (!port)
		begin();
	stage = data[0] & 3;
	h = (struct hand){0};
	if (stage == FIRST)
		h.fd = raw_connect(port);
	if (data[0] & 4)
		h.t = (void *)1; /* hand_client() makes it */
	if (data[0] == (4 | FIRST))
		hand_open(&h, false, h.fd, "kv", hand_secret);
	un = come_to(stage);
	say(data + 1, (uint32_t)size - 1);
	shutdown(h.fd, SHUT_WR);
	while (raw_recv_some(h.fd, c, sizeof(c)) > 0)
		;
	if (h.t)
		hand_close(&h);
	else
		close(h.fd);
	if (un >= 0)
		close(un);
	server->nr_msgs = 0;
	if (++nr % 64 == 0)
		wait_conns(server, 0);
	return 0;
}
