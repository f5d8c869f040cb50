/* SPDX-License-Identifier: Apache-2.0 */
/* A peer made by hand, for tests of ctl_*.c: what it sends, and what it must hear. See ctl_rig.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <unistd.h>

#include "control/ctl_rig.h"
#include "gx_internal/fds.h"

/* libFuzzer's timer interrupts it; a further connect() waits for the same connection. */
static int raw_connect_to(int fd, const struct sockaddr *sa, socklen_t len)
{
	int err;

	do
		err = connect(fd, sa, len);
	while (err && errno == EINTR);
	return err;
}

int raw_connect_from(int port, uint32_t from)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr = {htonl(from)}};
	struct timeval tv = {.tv_sec = WAIT_S};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	if (from != INADDR_LOOPBACK)
		assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	sa.sin_port = htons((uint16_t)port);
	assert_int_equal(raw_connect_to(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	return fd;
}

int raw_connect(int port)
{
	return raw_connect_from(port, INADDR_LOOPBACK);
}

int raw_bind(int *port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET};
	socklen_t len = sizeof(sa);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
	*port = ntohs(sa.sin_port);
	return fd;
}

int raw_listen(int *port)
{
	int fd = raw_bind(port);

	assert_int_equal(listen(fd, 8), 0);
	return fd;
}

int raw_listen_at(char addr[32])
{
	int port, fd = raw_listen(&port);

	snprintf(addr, 32, "127.0.0.1:%d", port);
	return fd;
}

bool raw_send(int fd, const void *data, size_t len)
{
	return send(fd, data, len, MSG_NOSIGNAL) == (ssize_t)len;
}

ssize_t raw_recv_some(int fd, void *data, size_t len)
{
	ssize_t n;

	do
		n = recv(fd, data, len, 0);
	while (n < 0 && errno == EINTR);
	return n;
}

bool raw_has_ended(int fd)
{
	char c;

	return recv(fd, &c, 1, MSG_DONTWAIT) == 0 || (errno != EAGAIN && errno != EINTR);
}

int raw_accept(int fd)
{
	int peer;

	do
		peer = accept(fd, NULL, NULL);
	while (peer < 0 && errno == EINTR);
	assert_true(peer >= 0);
	return peer;
}

static bool raw_read(int fd, void *data, size_t len)
{
	for (size_t got = 0; got < len;) {
		ssize_t n = raw_recv_some(fd, (uint8_t *)data + got, len - got);

		if (n <= 0)
			return false;
		got += (size_t)n;
	}
	return true;
}

uint16_t raw_recv(int fd, uint8_t body[GX_HELLO_FRAME_MAX], uint32_t *len)
{
	static const uint8_t bare[4];
	uint16_t type;

	do
		type = raw_recv_any(fd, body, len);
	while (type == GX_HELLO_HELLO && *len > 12 && memcmp(body + 8, bare, sizeof(bare)) != 0);
	return type;
}

uint16_t raw_recv_any(int fd, uint8_t body[GX_HELLO_FRAME_MAX], uint32_t *len)
{
	uint8_t hdr[HDR_B];
	uint16_t type;

	if (!raw_read(fd, hdr, sizeof(hdr)))
		return 0;
	assert_int_equal(gx_hello_frame(hdr, &type, len), 0);
	assert_true(raw_read(fd, body, *len));
	return type;
}

void raw_recv_error(int fd, int err, enum gx_reason reason, const char *what)
{
	static uint8_t body[GX_HELLO_FRAME_MAX];
	struct gx_hello_error e;
	uint32_t len;

	assert_int_equal(raw_recv(fd, body, &len), GX_HELLO_ERROR);
	assert_int_equal(gx_hello_error_get(body, len, &e), 0);
	assert_int_equal(e.err, err);
	assert_int_equal(e.reason, reason);
	assert_says(e.text, what);
}

void raw_hello_fill(struct gx_hello *h)
{
	*h = (struct gx_hello){.magic = GX_HELLO_MAGIC,
			       .version = GX_HELLO_VERSION,
			       .pid = 77,
			       .nr_lanes = CORES,
			       .chunk_b = 65536,
			       .window = 4,
			       .integrity = 3,
			       .links = 1u << GX_LINK_PACKET,
			       .nr_ports = 2};
	memcpy(h->host_id, server->gx.ctl->host_id, sizeof(h->host_id));
	memset(h->nonce, 0x5a, sizeof(h->nonce));
	for (unsigned i = 0; i < 2; i++) {
		snprintf(h->ports[i].name, sizeof(h->ports[i].name), i ? "udp" : "shm");
		h->ports[i].flags = i ? 0 : GX_PORT_LOCAL;
		h->ports[i].payload_max = 8192;
		h->ports[i].payload_best = 4096;
	}
}

uint32_t raw_hello(uint8_t *b, uint32_t version)
{
	struct gx_hello h;

	raw_hello_fill(&h);
	h.version = version;
	return gx_hello_put(b, &h);
}

void raw_lanes_fill(struct gx_hello_lanes *l, const char *port)
{
	*l = (struct gx_hello_lanes){.quantum = 4096,
				     .chunk_b = 65536,
				     .window = 4,
				     .integrity = 1,
				     .peer_timeout_ns = 1000000000,
				     .nr_lanes = CORES};
	snprintf(l->port, sizeof(l->port), "%s", port);
	for (unsigned i = 0; i < CORES; i++)
		l->lanes[i].port = (struct gx_port_addr){.len = 4, .fd = -1};
}

int raw_client(int port, struct gx_hello *h)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	int fd = raw_connect(port);
	uint32_t len = raw_hello(b, GX_HELLO_VERSION);

	assert_true(raw_send(fd, b, len));
	assert_int_equal(raw_recv(fd, b, &len), GX_HELLO_HELLO);
	assert_int_equal(gx_hello_get(b, len, h), 0);
	return fd;
}

int raw_prove(const struct gx_hello *h)
{
	uint8_t b[64];
	int un = raw_unix(h->unix_name);

	assert_true(un >= 0);
	assert_int_equal(send(un, h->nonce, sizeof(h->nonce), MSG_NOSIGNAL), sizeof(h->nonce));
	assert_int_equal(raw_recv_some(un, b, sizeof(b)), sizeof(h->nonce));
	for (unsigned i = 0; i < sizeof(h->nonce); i++)
		assert_int_equal(b[i], 0x5a); /* the nonce of raw_hello_fill() */
	return un;
}

int raw_client_lanes(int port, struct gx_hello *h, const struct gx_hello_lanes *l, int *un)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	int fd = raw_client(port, h), proof = raw_prove(h);
	uint32_t len = gx_hello_lanes_put(b, GX_HELLO_CONNECT, l);

	if (un)
		*un = proof;
	assert_true(raw_send(fd, b, len));
	assert_int_equal(raw_recv(fd, b, &len), GX_HELLO_ACCEPT);
	if (!un)
		close(proof);
	return fd;
}

int raw_unix(const char *name)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	struct timeval tv = {.tv_sec = WAIT_S};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));

	memcpy(sa.sun_path + 1, name, strlen(name));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	if (raw_connect_to(fd, (struct sockaddr *)&sa, len)) {
		close(fd);
		return -1;
	}
	return fd;
}

bool raw_unix_send(int fd, const void *data, size_t len, const int *fds, unsigned n)
{
	struct iovec iov = {.iov_base = (void *)data, .iov_len = len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	union gx_fds_room room;

	gx_fds_put(&msg, &room, fds, n);
	return sendmsg(fd, &msg, MSG_NOSIGNAL) == (ssize_t)len;
}

void server_lives(const char *addr)
{
	unsigned n = client->nr_up, m = server->nr_up;

	client_connect(addr, NULL);
	wait_up(client, n + 1);
	wait_up(server, m + 1);
}

void connect_refused(int port, const struct gx_hello_lanes *l, int err, const char *what)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	struct gx_hello h;
	int fd = raw_client(port, &h), un = raw_prove(&h);

	assert_true(raw_send(fd, b, gx_hello_lanes_put(b, GX_HELLO_CONNECT, l)));
	raw_recv_error(fd, err, err == -EPROTO ? GX_REASON_PROTOCOL : GX_REASON_NO_PORT, what);
	close(un);
	close(fd);
}

int stats_connect(const char *path)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	struct timeval tv = {.tv_sec = WAIT_S};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	size_t n = strlen(path);

	memcpy(sa.sun_path, path, n);
	if (path[0] == '@')
		sa.sun_path[0] = 0;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	assert_int_equal(raw_connect_to(fd, (struct sockaddr *)&sa,
					(socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)),
			 0);
	return fd;
}
