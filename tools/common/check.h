/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What payload must look like, and whether it does. The bytes of a region are a pattern of a seed
 * and their offset in the region; a message's iteration number is stamped into the first 8 bytes of
 * every 4 KiB of the message. Both ends know the rule, so either can make the bytes and either can
 * check them.
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECK_PAGE_B	   4096
#define CHECK_STAMP_B	   8
#define CHECK_POISON	   0xdb /* byte that destinations are filled with */
/* What a get's destination holds where a stamp will land. */
#define CHECK_STAMP_POISON 0xdbdbdbdbdbdbdbdbull

/** check_pattern() - Fill @buf with the pattern of region bytes [@off, @off + @len). */
void check_pattern(void *buf, uint64_t len, uint64_t off, uint64_t seed);

void check_poison(void *buf, uint64_t len);

/** check_stamps() - How many stamps a message of @size has. */
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
 * check_piece() - Compare a piece of a message with what it must be; adds to @res.
 * @piece: @len bytes, which begin at byte @msg_off (a multiple of CHECK_PAGE_B) of a message and
 *end at another such multiple or with the message
 * @region_off: where the message begins in the region
 */
void check_piece(const void *piece, uint64_t len, uint64_t msg_off, uint64_t region_off,
		 uint64_t seed, uint64_t iter, struct check_result *res);

/** check_guard() - @len bytes at region offset @off must still be poison. Counts into @res->wrong
 * only. */
void check_guard(const void *buf, uint64_t len, uint64_t off, struct check_result *res);

/**
 * struct check_ring - Which slot of a region message number i takes. @nr_slots slots are used in
 * turn; where one message in CHECK_SAMPLE is to be checked under way, groups of @group consecutive
 * messages go to slots of their own behind the ring, so that they can be looked at while the ring
 * goes on turning. A server that posts receives and its client must agree on it. Frozen after it
 * was made.
 */
#define CHECK_SAMPLE 64

struct check_ring {
	uint64_t nr_slots;   /* power of two */
	uint32_t group_bits; /* 2^group_bits messages are checked together */
	bool sample;	     /* check one group in CHECK_SAMPLE */
	bool apart; /* sampled groups have slots of their own, one a message; else group_bits is 0
		     */
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
