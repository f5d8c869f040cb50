/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data sockets of a connection; see socks.h. On the control thread.
 */
#include "core/socks.h"
#include "gx_internal/fork.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int gx_socks_open(struct gx_conn *c, unsigned nr_lanes, unsigned nr_socks)
{
	struct gx_socks *s = calloc(1, sizeof(*s));
	int ret;

	if (!s)
		return gx_fail(-ENOMEM, "out of memory");
	ret = gx_random(s->token, sizeof(s->token));
	if (ret) {
		free(s);
		return gx_fail(ret, "no random bytes: %s", strerror(-ret));
	}
	s->nr_lanes = nr_lanes;
	s->nr_socks = nr_socks;
	memset(s->fd, 0xff, sizeof(s->fd));
	c->socks = s;
	return 0;
}

void gx_socks_close(struct gx_conn *c)
{
	struct gx_socks *s = c->socks;

	if (!s)
		return;
	for (unsigned lane = 0; lane < GX_HELLO_LANES; lane++)
		for (unsigned i = 0; i < GX_SOCKS_MAX; i++)
			if (s->fd[lane][i] >= 0)
				gx_fd_close(s->fd[lane][i]);
	free(s);
	c->socks = NULL;
}

int gx_socks_add(struct gx_conn *c, unsigned lane, unsigned i, int fd)
{
	struct gx_socks *s = c->socks;

	if (lane >= s->nr_lanes || i >= s->nr_socks || s->fd[lane][i] >= 0)
		return -EPROTO;
	s->fd[lane][i] = fd;
	s->nr_fds++;
	return 0;
}

bool gx_socks_are_whole(const struct gx_conn *c)
{
	return c->socks->nr_fds == c->socks->nr_lanes * c->socks->nr_socks;
}

bool gx_socks_are(const struct gx_conn *c, const uint8_t token[GX_SOCK_TOKEN_B])
{
	uint8_t diff = 0;

	for (unsigned i = 0; i < GX_SOCK_TOKEN_B; i++)
		diff |= c->socks->token[i] ^ token[i];
	return !diff;
}
