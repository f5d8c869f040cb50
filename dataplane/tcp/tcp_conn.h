/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data sockets of a connection over the tcp link, from the set-up until its endpoints take
 * them. On the control thread.
 */
#ifndef GX_TCP_CONN_H
#define GX_TCP_CONN_H

#include "core/core.h"

#define TCP_SOCKS_MAX 16 /* of a lane */
#define TCP_TOKEN_B   16

/* A lane's address in CONNECT (the token is 0) and ACCEPT. */
struct tcp_addr {
	uint8_t version, nr_socks; /* 1; 1 to TCP_SOCKS_MAX */
	uint8_t bare;	/* 1: this end receives bare payload, for memory of its GPU .device, where
			   the peer's HELLO has GX_LINKS_BARE; else 0 */
	uint8_t device; /* ordinal */
	uint8_t zero[4];
	uint8_t token[TCP_TOKEN_B];
};
_Static_assert(sizeof(struct tcp_addr) == 24, "no holes");

/* owner: ctl */
struct tcp_conn {
	uint8_t token[TCP_TOKEN_B]; /* the first frame of a data socket has it */
	unsigned nr_lanes, nr_socks;
	bool bare; /* we receive bare payload, for memory of .device */
	uint8_t device;
	unsigned nr_fds;		       /* that are here */
	int fd[GX_HELLO_LANES][TCP_SOCKS_MAX]; /* -1: not here, or its endpoint has it */
};

/** tcp_conn_open() - Make c->tcp for as many lanes and sockets. Return: 0, -errno. */
int tcp_conn_open(struct gx_conn *c, unsigned nr_lanes, unsigned nr_socks);
void tcp_conn_close(struct gx_conn *c); /* closes sockets that no endpoint took */
/** tcp_conn_release() - Close the sockets of its endpoints, which all cores have let go of; the
 * endpoints wait for the user. In link_tcp.c. */
void tcp_conn_release(struct gx_conn *c);
/** tcp_conn_push() - This end is about to say that it closes. What its cores left in the kernel to wait
 * for an answer goes first: the peer hears that its messages came. In link_tcp.c. */
void tcp_conn_push(struct gx_conn *c);
/** tcp_conn_add() - Data socket @i of lane @lane is there. Takes @fd over, unless it fails.
 * Return: 0, -EPROTO (no such socket, or it is there). */
int tcp_conn_add(struct gx_conn *c, unsigned lane, unsigned i, int fd);
bool tcp_conn_is_whole(const struct gx_conn *c); /* are all sockets there? */
/** tcp_conn_is() - Is @token that of @c? Takes the same time for each. */
bool tcp_conn_is(const struct gx_conn *c, const uint8_t token[TCP_TOKEN_B]);
void tcp_addr_put(struct gx_port_addr *a, const struct gx_conn *c, bool with_token);
/** tcp_addr_get() - Return: 0, -EPROTO. */
int tcp_addr_get(const struct gx_port_addr *a, struct tcp_addr *out);

#endif
