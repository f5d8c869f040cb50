/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data sockets of a connection whose link wants some, from the set-up until its endpoints take
 * them. The link makes this when it opens its part of a connection; control/ connects the sockets.
 * On the control thread.
 */
#ifndef GX_SOCKS_H
#define GX_SOCKS_H

#include "core/core.h"

#define GX_SOCKS_MAX	16 /* of a lane */
#define GX_SOCK_TOKEN_B 16

/* owner: ctl */
struct gx_socks {
	/* The first frame of a data socket has it. The server makes it; its link tells the client. */
	uint8_t token[GX_SOCK_TOKEN_B];
	unsigned nr_lanes, nr_socks;	      /* of the connection; of a lane */
	unsigned nr_fds;		      /* that are here */
	int fd[GX_HELLO_LANES][GX_SOCKS_MAX]; /* -1: not here, or its endpoint has it */
};

/** gx_socks_open() - Make c->socks for as many lanes and sockets. Return: 0, -errno with gx_error(). */
int gx_socks_open(struct gx_conn *c, unsigned nr_lanes, unsigned nr_socks);
void gx_socks_close(struct gx_conn *c); /* closes sockets that no endpoint took; accepts none */
/** gx_socks_add() - Data socket @i of lane @lane is there. Takes @fd over, unless it fails.
 * Return: 0, -EPROTO (no such socket, or it is there). */
int gx_socks_add(struct gx_conn *c, unsigned lane, unsigned i, int fd);
bool gx_socks_are_whole(const struct gx_conn *c); /* are all sockets there? */
/** gx_socks_are() - Is @token that of @c? Takes the same time for each. */
bool gx_socks_are(const struct gx_conn *c, const uint8_t token[GX_SOCK_TOKEN_B]);

#endif
