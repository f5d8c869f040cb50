/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which packets of a message have landed (receiver) or are acknowledged (sender). Each packet has
 * one bit in a circular window of `window` chunks, so no message costs more memory than another.
 * Pure: no I/O, no clock, no allocation (the caller lends the words). Owner: poll core.
 */
#ifndef GX_MSG_H
#define GX_MSG_H

#include "gx_internal/base.h"

/* How a connection cuts messages; frozen once agreed. */
struct msg_shape {
	uint32_t quantum;     /* bytes, a multiple of 16 */
	uint64_t quantum_inv; /* 2^40 / (quantum / 16), rounded up: to multiply, not divide */
	uint32_t chunk_pkts;  /* packets of a chunk */
	uint32_t window_pkts; /* packets of `window` chunks */
	uint32_t bits; /* size of the window of bits: power of two, at least window_pkts and 64 */
};

/** msg_shape_init() - Return: 0, -EINVAL (a quantum that is no multiple of 16, a chunk below a
 * quantum). */
int msg_shape_init(struct msg_shape *s, uint32_t quantum, uint32_t chunk_b, uint32_t window);
/** msg_words() - u64 words of a bit window. */
static inline uint32_t msg_words(const struct msg_shape *s)
{
	return s->bits / 64;
}
/** msg_nr_pkts() - Packets of a message of @len bytes; a message of 0 bytes is one packet. */
uint64_t msg_nr_pkts(const struct msg_shape *s, uint64_t len);

/* A circular window of bits over packet numbers. Every packet below base is set, and no packet at
 * base + bits or above is. words may be NULL for a message of one packet, and is one word for up to
 * 64 packets. */
struct msg_win {
	uint64_t nr_pkts;
	uint64_t base;	 /* first packet that is not set */
	uint64_t chunk;	 /* sender: first packet of the chunk that base is in */
	uint64_t *words; /* the caller lends them, all zero between messages */
	uint32_t mask;	 /* bits - 1 */
};

void msg_win_init(struct msg_win *w, const struct msg_shape *s, uint64_t len, uint64_t *words);
/** msg_win_test() - 1: set, 0: not set, -1: beyond the window. */
int msg_win_test(const struct msg_win *w, uint64_t pkt);
/** msg_win_set() - msg_win_test() of @pkt was 0. */
void msg_win_set(struct msg_win *w, uint64_t pkt);
/** msg_win_clear_rest() - Zero the words again (of a message that was given up half way). */
void msg_win_clear_rest(struct msg_win *w);
static inline bool msg_win_full(const struct msg_win *w)
{
	return w->base == w->nr_pkts;
}

/** msg_limit() - Sender: packets below this number may go out. Chunk k + window may begin when
 * every packet of chunk k is set. */
uint64_t msg_limit(struct msg_win *w, const struct msg_shape *s);

/** msg_range() - The packets [*first, *end) that hold the @n_b bytes at @off of a message of @len
 * bytes. Return: 0, -EPROTO when the bytes are not whole packets. */
int msg_range(const struct msg_shape *s, uint64_t len, uint64_t off, uint64_t n_b, uint64_t *first,
	      uint64_t *end);

/** msg_pkt() - Receiver: the number of the packet at @moff with @plen bytes and @eom of a message
 * of @len bytes. Return: 0, -EPROTO when no such packet can be. */
int msg_pkt(const struct msg_shape *s, uint64_t len, uint64_t moff, uint32_t plen, bool eom,
	    uint64_t *pkt);

#endif
