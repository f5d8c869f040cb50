/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data sockets of a connection over the tcp link; see tcp_conn.h. On the control thread.
 */
#include "tcp/tcp_conn.h"
#include "gx_internal/fork.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int tcp_conn_open(struct gx_conn *c, unsigned nr_lanes, unsigned nr_socks)
{
	struct tcp_conn *t = calloc(1, sizeof(*t));
	int ret;

	if (!t)
		return gx_fail(-ENOMEM, "out of memory");
	ret = gx_random(t->token, sizeof(t->token));
	if (ret) {
		free(t);
		return gx_fail(ret, "no random bytes: %s", strerror(-ret));
	}
	t->nr_lanes = nr_lanes;
	t->nr_socks = nr_socks;
	memset(t->fd, 0xff, sizeof(t->fd));
	c->tcp = t;
	return 0;
}

void tcp_conn_close(struct gx_conn *c)
{
	if (!c->tcp)
		return;
	for (unsigned lane = 0; lane < GX_HELLO_LANES; lane++)
		for (unsigned i = 0; i < TCP_SOCKS_MAX; i++)
			if (c->tcp->fd[lane][i] >= 0)
				gx_fd_close(c->tcp->fd[lane][i]);
	free(c->tcp);
	c->tcp = NULL;
}

int tcp_conn_add(struct gx_conn *c, unsigned lane, unsigned i, int fd)
{
	struct tcp_conn *t = c->tcp;

	if (lane >= t->nr_lanes || i >= t->nr_socks || t->fd[lane][i] >= 0)
		return -EPROTO;
	t->fd[lane][i] = fd;
	t->nr_fds++;
	return 0;
}

bool tcp_conn_is_whole(const struct gx_conn *c)
{
	return c->tcp->nr_fds == c->tcp->nr_lanes * c->tcp->nr_socks;
}

bool tcp_conn_is(const struct gx_conn *c, const uint8_t token[TCP_TOKEN_B])
{
	uint8_t diff = 0;

	for (unsigned i = 0; i < TCP_TOKEN_B; i++)
		diff |= c->tcp->token[i] ^ token[i];
	return !diff;
}

void tcp_addr_put(struct gx_port_addr *a, const struct gx_conn *c, bool with_token)
{
	struct tcp_addr addr = {.version = 1,
				.nr_socks = (uint8_t)c->tcp->nr_socks,
				.bare = c->tcp->bare,
				.device = c->tcp->device};

	if (with_token)
		memcpy(addr.token, c->tcp->token, sizeof(addr.token));
	memcpy(a->b, &addr, sizeof(addr));
	a->len = sizeof(addr);
	a->fd = -1;
}

int tcp_addr_get(const struct gx_port_addr *a, struct tcp_addr *out)
{
	static const uint8_t zero[sizeof(out->zero)];

	if (a->len != sizeof(*out) || a->fd >= 0)
		return -EPROTO;
	memcpy(out, a->b, sizeof(*out));
	if (out->version != 1 || !out->nr_socks || out->nr_socks > TCP_SOCKS_MAX || out->bare > 1 ||
	    (out->bare && out->nr_socks < 2) || (out->device && !out->bare) ||
	    memcmp(out->zero, zero, sizeof(zero)))
		return -EPROTO;
	return 0;
}
