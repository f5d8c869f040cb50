/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rule for payload: both ends can make the bytes, and both can check them. The bytes of a
 * region are a pattern of a seed and their offset in the region. The first 8 bytes of every 4 KiB
 * of a message hold the message's iteration number.
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECK_PAGE_B	   4096
#define CHECK_STAMP_B	   8
#define CHECK_POISON	   0xdb /* destinations are filled with it */
/* 8 bytes of poison: a get's destination holds them until a stamp lands there. */
#define CHECK_STAMP_POISON 0xdbdbdbdbdbdbdbdbull

/** check_pattern() - Fill @buf with the pattern of region bytes [@off, @off + @len). */
void check_pattern(void *buf, uint64_t len, uint64_t off, uint64_t seed);

void check_poison(void *buf, uint64_t len);

/** check_stamps() - Number of stamps in a message of @size. */
static inline uint64_t check_stamps(uint64_t size)
{
	return (size + CHECK_PAGE_B - 1) / CHECK_PAGE_B;
}

/**
 * check_stamp() - Stamp @iter into places [@first, @first + @n) of the message of @size bytes at
 * @msg. A place with less than 8 bytes left takes the low bytes. @n is clipped to the message.
 */
void check_stamp(void *msg, uint64_t size, uint64_t first, uint64_t n, uint64_t iter);

struct check_result {
	uint64_t checked_b;	  /* bytes compared */
	uint64_t wrong;		  /* bytes that differ */
	uint64_t first_wrong_off; /* in the region; UINT64_MAX: none */
};

#define CHECK_RESULT_NONE                                                                          \
	{                                                                                          \
		.first_wrong_off = UINT64_MAX                                                      \
	}

void check_result_add(struct check_result *to, const struct check_result *from);

/**
 * check_piece() - Compare a piece of a message with the rule; adds to @res.
 * @piece: @len bytes. They begin at byte @msg_off of the message, a multiple of CHECK_PAGE_B, and
 * end at another multiple or with the message
 * @region_off: offset of the message in the region
 */
void check_piece(const void *piece, uint64_t len, uint64_t msg_off, uint64_t region_off,
		 uint64_t seed, uint64_t iter, struct check_result *res);

/** check_guard() - @len bytes at region offset @off must still be poison. Counts into @res->wrong
 * only. */
void check_guard(const void *buf, uint64_t len, uint64_t off, struct check_result *res);

/**
 * struct check_ring - Which slot of a region message number i takes. @nr_slots slots are used in
 * turn. To check one message in CHECK_SAMPLE while the others go on, groups of 2^group_bits
 * consecutive messages go to slots of their own after the ring. A server that posts receives and
 * its client must agree on it. Frozen once made.
 */
#define CHECK_SAMPLE 64

struct check_ring {
	uint64_t nr_slots;   /* power of two */
	uint32_t group_bits; /* 2^group_bits messages form a group */
	bool sample;	     /* check one group in CHECK_SAMPLE */
	/* Sampled groups have slots of their own, one for each message; else group_bits is 0. */
	bool apart;
};

static inline uint64_t check_ring_group(const struct check_ring *r)
{
	return 1ull << r->group_bits;
}

static inline bool check_ring_sampled(const struct check_ring *r, uint64_t i)
{
	return r->sample && (i >> r->group_bits) % CHECK_SAMPLE == 0;
}

static inline uint64_t check_ring_slot(const struct check_ring *r, uint64_t i)
{
	if (r->apart && check_ring_sampled(r, i))
		return r->nr_slots + (i & (check_ring_group(r) - 1));
	return i & (r->nr_slots - 1);
}

/** check_ring_total() - Slots in all. */
static inline uint64_t check_ring_total(const struct check_ring *r)
{
	return r->nr_slots + (r->apart ? check_ring_group(r) : 0);
}

/** check_ring_last() - Number of the last of @n messages (0 to @n - 1) that took @slot; UINT64_MAX:
 * none. */
uint64_t check_ring_last(const struct check_ring *r, uint64_t slot, uint64_t n);

#endif
