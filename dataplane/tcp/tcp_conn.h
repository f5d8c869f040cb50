/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp link as an object (struct gx_link), and its part of a connection. On the control thread.
 */
#ifndef GX_TCP_CONN_H
#define GX_TCP_CONN_H

#include "core/socks.h"

#include "gx_internal/link.h"

/* What CONNECT (the token is 0) and ACCEPT say. */
struct tcp_addr {
	uint8_t version, nr_socks; /* 1; 1 to GX_SOCKS_MAX */
	uint8_t bare; /* 1: this end receives bare payload, for memory of its GPU .device; else 0 */
	uint8_t device; /* ordinal */
	uint8_t zero[4];
	uint8_t token[GX_SOCK_TOKEN_B];
};
_Static_assert(sizeof(struct tcp_addr) == 24, "no holes");

/* c->socks has the data sockets. owner: ctl */
struct tcp_conn {
	bool bare;	/* we receive bare payload, for memory of our GPU .device */
	uint8_t device; /* ordinal */
	bool tx_bare;	/* so does the peer, for its .tx_device */
	uint8_t tx_device;
};
static inline struct tcp_conn *tcp_conn_of(const struct gx_conn *c)
{
	return c->link_state;
}

extern const struct gx_link gx_link_tcp;
extern const struct gx_link_conn_ops tcp_conn_ops;
extern const struct gx_ep_ops gx_link_tcp_ops; /* link_tcp.c */
void tcp_core_close(struct gx_core *core);     /* ctl: of a core that may have no link */

/* What any object of the link says of itself. Within a host the last resort: slower than any port. Between
 * hosts it moves more for a core than port udp. In clear, TCP's own checksum is all that guards its
 * bytes. */
#define TCP_LINK_SELF                                                                              \
	.name = "tcp", .id = GX_LINK_TCP, .port = GX_LINK_PORT_NONE, .score = 1, .score_far = 3,   \
	.quantum_b = 4096, .seals = true, .how = "the kernel's TCP copies",                        \
	.cure = "install the same gx at both ends"

int tcp_ctx_gpu(struct gx *gx, struct gx_gpu *gpu);

/** tcp_conn_open() - Make our part, for as many lanes, and sockets of each. Return: 0, -errno with
 * gx_error(). */
int tcp_conn_open(struct gx_conn *c, unsigned nr_lanes, unsigned nr_socks);
void tcp_conn_close(struct gx_conn *c); /* closes sockets that no endpoint took */
/** link_tcp_release() - Close the sockets of its endpoints, which all cores have let go of; the
 * endpoints wait for the user. In link_tcp.c. */
void link_tcp_release(struct gx_conn *c);
/** link_tcp_push() - This end is about to say that it closes. What its cores left in the kernel to wait
 * for an answer goes first: the peer hears that its messages came. In link_tcp.c. */
void link_tcp_push(struct gx_conn *c);
/** tcp_look() - struct gx_link_conn_ops.look. In tcp_look.c. */
void tcp_look(const struct gx_conn *c, struct gx_link_look *out);
uint32_t tcp_addr_put(uint8_t *b, const struct gx_conn *c); /* bytes written */
/** tcp_addr_get() - Return: 0, -EPROTO. */
int tcp_addr_get(const uint8_t *b, uint32_t len, struct tcp_addr *out);

#endif
