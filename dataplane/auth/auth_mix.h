/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges of X25519 whose results go into the secrets of data: one in the set-up (control/), and for
 * each direction another every AUTH_MIX_PHASES phases, asked for by its sender over the bootstrap
 * connection. So neither the secrets of TLS, which OpenSSL leaves in memory, nor what a memory held
 * some minutes ago open data. On the control thread.
 */
#ifndef AUTH_MIX_H
#define AUTH_MIX_H

#include "auth/auth_data.h"
#include "core/core.h"

#define AUTH_WORD_B 44 /* of what the ends say, from link to link */

extern uint64_t auth_mix_gap_ns; /* between two answers for a direction; for tests */

enum auth_what { AUTH_ASK = 1, AUTH_ANSWER };

struct auth_word {
	uint8_t what;  /* enum auth_what */
	uint32_t lane; /* the link's number of the lane or socket */
	uint32_t nr;   /* of the exchange */
	uint8_t half[AUTH_HALF_B];
};

int auth_word_get(const uint8_t *b, uint32_t len, struct auth_word *w); /* 0, -EPROTO */

struct auth_tick {
	struct gx_conn *c;
	void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len); /* NULL: it is not up */
	uint64_t now_ns;
	uint32_t lane;
};

/** auth_rings_tick() - Make the keys of a lane or socket that are due, and ask and answer. Return: 0;
 * -EKEYEXPIRED: the peer has not answered for long; -EPROTO: it has broken the exchange. */
int auth_rings_tick(struct auth_ring *tx, struct auth_ring *rx, const struct auth_tick *t);
/** auth_rings_take() - The peer's word about a lane or socket. Return: 0; -EPROTO: not now, or not
 * so. */
int auth_rings_take(struct auth_ring *tx, struct auth_ring *rx, const struct auth_word *w);

#endif
