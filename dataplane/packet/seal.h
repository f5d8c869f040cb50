/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets that are sealed: integrity modes MAC and GCM. An endpoint has the keys of both directions,
 * phase by phase. The control thread makes keys ahead (seal_make()); the core that turns the endpoint
 * does all else. docs/wire.md has the record. Also mode CRC, as far as it goes out.
 */
#ifndef GX_SEAL_H
#define GX_SEAL_H

#include "auth/auth_data.h"

#include "gx_internal/wire.h"

#define SEAL_TX_PHASES 2     /* the one in use, and the next */
#define SEAL_RX_PHASES 4     /* the last one, the one in use, and the next two */
#define SEAL_WINDOW    16384 /* numbers below the largest that may still come; a power of two */

struct pkt_ep;
struct link_pkt;

/* Numbers of packets that have come and were authentic. */
struct seal_window {
	uint64_t next; /* 1 + the largest */
	uint64_t bits[SEAL_WINDOW / 64];
};

/* owner: core, except where a field says otherwise. Its pages are locked and in no core dump. */
struct seal {
	uint32_t tx_phase, rx_phase;
	uint64_t tx_pkts, tx_since_ns; /* sealed in tx_phase, and when that began */
	uint64_t old_until_ns;	       /* the keys of rx_phase - 1 are good until then */
	struct seal_window window[2];  /* of ACKs; of all other packets */
	struct auth_ring tx, rx;
	struct auth_phase tx_slot[SEAL_TX_PHASES], rx_slot[SEAL_RX_PHASES];
};

/* What a port does with payload while it copies it, and with the header then. */
struct seal_how {
	struct gx_tx_guard guard;
	uint8_t *hdr;
	uint32_t salt;		      /* mode CRC */
	const struct gx_gcm_key *key; /* modes MAC and GCM */
	uint8_t nonce[GX_GCM_NONCE_B];
};

/* Where a link guards payload. owner: core */
struct seal_link {
	struct seal_how how[GX_BURST_MAX]; /* of packets in link->tx, by a port that copies */
	uint8_t ctl[GX_CTL_PAYLOAD_MAX];
	size_t len;
	uint32_t used_b;
	uint8_t slots[]; /* otherwise of these packets: payload, one after the other */
};

extern uint64_t seal_phase_pkts; /* sealed in a phase, before the next one begins; for tests */

/* ctl: the connection has keys, and its lanes connect. @rx_psn: first one to expect. Return: 0, -errno
 * with words. */
int seal_open(struct pkt_ep *e, uint64_t rx_psn);
void seal_close(struct seal *s); /* ctl: NULL: nothing to do */
/* ctl: makes the keys that are due. Return: 0, -ENOMEM: some are still due. */
int seal_make(struct seal *s);
void seal_link_close(struct seal_link *l);

int seal_link_open(struct link_pkt *l); /* ctl: for any integrity mode. Return: 0, -ENOMEM */

/* Seal a packet whose header is in tx->hdr, but for phase and tag. The port, or this, sums or encrypts
 * the payload of one that goes out by the data half, which stands in link->tx. */
void seal_packet(struct pkt_ep *e, struct gx_tx *tx, uint8_t type, uint64_t psn, enum gx_half half);
void seal_crc(struct pkt_ep *e, struct gx_tx *tx, enum gx_half half); /* the same, in mode CRC */
void seal_sent(struct link_pkt *l, unsigned n); /* the port has link->tx[0 .. n) */
/* Is it authentic, and has it not come before? Its payload goes to @dst, which may be rx->data; that
 * of DATA in mode MAC stays. False: the packet is dropped and counted, nothing else has changed,
 * but @dst may hold garbage. */
bool seal_take(struct pkt_ep *e, const struct gx_rx *rx, const struct gx_wire_hdr *h, void *dst);
void seal_tick(struct pkt_ep *e); /* once a millisecond: does another phase begin, does one end? */

#endif
