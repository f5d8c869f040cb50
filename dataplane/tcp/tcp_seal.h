/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data sockets of the tcp link whose bytes are encrypted: records of AES-128-GCM between the link's
 * stream and the socket's (docs/wire.md). The link calls these in place of struct tcp_sys; they keep
 * its contract. The core owns all of it, but for what makes and frees keys, on the control thread.
 */
#ifndef GX_TCP_SEAL_H
#define GX_TCP_SEAL_H

#include "auth/auth_data.h"

#include <sys/types.h>
#include <sys/uio.h>

#define TCP_REC_HDR_B 4
#define TCP_REC_B     16384 /* bytes of the link in a record, at most */
#define TCP_REC_MAX_B (TCP_REC_HDR_B + TCP_REC_B + GX_GCM_TAG_B)
#define TCP_RECS      16 /* records that one call makes, or that are read at once */

/* One direction. */
struct tcp_seal_way {
	struct auth_ring keys;
	struct auth_phase slot[2];
	uint32_t phase;
	uint64_t nr;	   /* of the next record, since the start */
	uint64_t phase_nr; /* of the first one of this phase; */
	uint64_t since_ns; /* ... and when that was made. 0: not yet */
};

struct tcp_seal {
	struct tcp_seal_way tx, rx;
	/* Records on their way into the kernel: bytes, those that it has, and those of records of which
	 * the link has heard. No other record is made before all have left. */
	uint32_t out_b, out_sent, out_reported;
	uint32_t in_at, in_b;	    /* bytes of in[] that are not opened */
	uint32_t plain_at, plain_b; /* bytes of an opened record that the link has not taken */
	uint8_t out[TCP_RECS * TCP_REC_MAX_B];
	uint8_t in[TCP_RECS * TCP_REC_MAX_B];
};

typedef ssize_t tcp_seal_call(int fd, const struct iovec *iov, unsigned n);

extern uint64_t tcp_seal_phase_recs; /* records of a phase; for tests */

/* ctl: with the first secrets of both directions; NULL: no memory. */
struct tcp_seal *tcp_seal_new(const struct auth_secret *tx, const struct auth_secret *rx);
void tcp_seal_free(struct tcp_seal *t); /* ctl: NULL: nothing to do */

/* As struct tcp_sys.send (or .lead, as @send is) and .recv. recv also returns -EBADMSG or -EPROTO: this
 * is not what the peer has sent. */
ssize_t tcp_seal_send(struct tcp_seal *t, int fd, tcp_seal_call *send, const struct iovec *iov,
		      unsigned n, uint64_t now_ns);
ssize_t tcp_seal_recv(struct tcp_seal *t, int fd, tcp_seal_call *recv, const struct iovec *iov,
		      unsigned n);

#endif
