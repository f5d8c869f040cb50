/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of the two contexts of the rig, and a peer of TLS made by hand. */
#ifndef CTL_HAND_H
#define CTL_HAND_H

#include "control/ctl_rig.h"

extern const uint8_t hand_secret[AUTH_SECRET_B];

void hand_key(struct auth_key *key, const char *name, const uint8_t b[AUTH_SECRET_B]);
void hand_keys(void); /* both contexts have "kv" */

struct hand {
	struct auth_tls *t;
	int fd;
	uint8_t in[2 * GX_HELLO_FRAME_MAX]; /* decrypted */
	uint32_t len;
};

/* Up to the end of the handshake, on @fd, which it takes over. */
void hand_open(struct hand *h, bool is_server, int fd, const char *name,
	       const uint8_t key[AUTH_SECRET_B]);
void hand_close(struct hand *h);
void hand_flush(struct hand *h);
void hand_send(struct hand *h, const void *b, uint32_t len);
/* Return: type of the next frame, -errno of TLS, 0 at the end of the socket. */
int hand_recv(struct hand *h, uint8_t *body, uint32_t *len);
/* Of a client by TLS: raw_lanes_fill(), with a half of an exchange. */
void hand_lanes_fill(struct gx_hello_lanes *l, const char *port);
/* A client that has said HELLO. Return: the server's. */
struct gx_hello *hand_client(struct hand *h, int port);

#endif
