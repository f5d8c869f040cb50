/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames of the tcp link: a header of 64 bytes, and after a DATA header its payload, if it has
 * some, and a trailer of 8 bytes. Pure encode and decode; little endian (docs/wire.md). A decoder
 * accepts only what its encoder could have written. Any thread.
 */
#ifndef GX_TCP_FRAME_H
#define GX_TCP_FRAME_H

#include "gx_internal/base.h"

#define TCP_HDR_B    64
#define TCP_TAIL_B   8
#define TCP_SOCK_TOP 15 /* number of the last socket that a lane can have */

enum tcp_type {
	TCP_DATA = 1, /* one chunk of a message; names all that opens the message, too */
	TCP_ACK,      /* receiver: it has the first chunks of a message */
	TCP_DONE,     /* receiver: the message is over, and its mid is free */
	TCP_FAIL,     /* receiver: cannot take a message; (SLOT) cannot serve a get */
	TCP_CANCEL,   /* sender: gives a message up, after so many DATA frames */
	TCP_OFFER,    /* a receive is posted */
	TCP_REVOKE,   /* it was taken back */
	TCP_GET,      /* put this range of your region into my slot */
	TCP_PING,     /* is your core alive? */
	TCP_PONG,
	TCP_END, /* sender: the payload of the oldest BARE frame of this socket that has no END has
		    left */
};

enum tcp_flag {
	TCP_F_HIDDEN = 32, /* DATA with IMM: imm is not for the user, but for his notes */
	TCP_F_IMM = 1,	   /* DATA: imm is for the user */
	TCP_F_SLOT = 2,	   /* DATA: token is a posted slot; FAIL: likewise */
	TCP_F_BARE = 4, /* DATA: the payload comes by another socket, bare, and END stands for its
			   trailer; OFFER, GET: it may */
	TCP_F_VOID = 8, /* END: as TCP_TAIL_VOID */
	TCP_F_LEASE =
		16, /* DATA with SLOT, of a get: the bytes count when FAIL with error 0 has said
			     that the lease held to the end */
};

/* The trailer after a payload. The sender may lose the bytes after it has sent the header. */
enum tcp_tail {
	TCP_TAIL_GOOD, /* the payload is the message's */
	TCP_TAIL_VOID, /* it is not: CANCEL follows, or has come */
};

/* A header, decoded. Fields that its type does not use are 0. */
struct tcp_frame {
	uint8_t type, flags;
	uint16_t sock;	/* DATA with BARE, END: the payload's socket, 1 to TCP_SOCK_TOP */
	uint32_t mid;	/* DATA, ACK, DONE, FAIL, CANCEL */
	uint64_t token; /* DATA: region or slot; OFFER, REVOKE: slot; GET: region; FAIL: slot */
	uint64_t off;	/* DATA, GET: in the region; OFFER: mask of the tag */
	uint64_t len;	/* DATA, OFFER, GET: bytes of the whole message */
	uint64_t imm;	/* DATA: immediate or tag; OFFER: tag; GET: slot */
	uint64_t moff;	/* DATA: offset of the payload; ACK: chunks; CANCEL: frames */
	uint32_t plen;	/* DATA: payload bytes after the header */
	int32_t err;	/* DONE: 0 or -errno; FAIL: -errno; CANCEL: -errno, 0: ECANCELED */
};

void tcp_frame_put(uint8_t b[TCP_HDR_B], const struct tcp_frame *f);
int tcp_frame_get(const uint8_t b[TCP_HDR_B], struct tcp_frame *f); /* 0, -EPROTO */
void tcp_tail_put(uint8_t b[TCP_TAIL_B], enum tcp_tail tail);
int tcp_tail_get(const uint8_t b[TCP_TAIL_B], enum tcp_tail *tail); /* 0, -EPROTO */

#endif
