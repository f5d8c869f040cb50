// SPDX-License-Identifier: Apache-2.0
/*
 * Makes and checks payload (see check.h). No I/O; any thread, on memory that it may touch.
 */
#include "common/check.h"

#include <string.h>

#define CHECK_WORDS (CHECK_PAGE_B / 8)

/* Neighbouring words differ in all bytes; so do words of one offset and different seeds. One
 * multiplication, and no dependence between words: as fast as the memory. */
static inline uint64_t check_word(uint64_t index, uint64_t seed)
{
	uint64_t x = (index + seed + 1) * 0x9e3779b97f4a7c15ull;

	return x ^ x >> 29;
}

/* The pattern of [@off, @off + @len), @len at most a page. It begins within the first 8 bytes of
 * @room. */
static inline const unsigned char *check_page(uint64_t room[CHECK_WORDS + 1], uint64_t len,
					      uint64_t off, uint64_t seed)
{
	uint64_t index = off / 8, n = (off % 8 + len + 7) / 8;

	for (uint64_t i = 0; i < n; i++)
		room[i] = check_word(index + i, seed);
	return (const unsigned char *)room + off % 8;
}

void check_pattern(void *buf, uint64_t len, uint64_t off, uint64_t seed)
{
	uint64_t room[CHECK_WORDS + 1];
	unsigned char *to = buf;

	while (len) {
		uint64_t n = len < CHECK_PAGE_B ? len : CHECK_PAGE_B;

		memcpy(to, check_page(room, n, off, seed), n);
		to += n;
		off += n;
		len -= n;
	}
}

void check_poison(void *buf, uint64_t len)
{
	memset(buf, CHECK_POISON, len);
}

void check_stamp(void *msg, uint64_t size, uint64_t first, uint64_t n, uint64_t iter)
{
	uint64_t nr = check_stamps(size), full = size / CHECK_PAGE_B, last = first + n, i = first;
	unsigned char *at = (unsigned char *)msg + first * CHECK_PAGE_B;

	if (last > nr)
		last = nr;
	for (; i < last && i < full; i++, at += CHECK_PAGE_B)
		memcpy(at, &iter, CHECK_STAMP_B);
	if (i < last) {
		uint64_t rest = size - i * CHECK_PAGE_B;

		memcpy(at, &iter, rest < CHECK_STAMP_B ? rest : CHECK_STAMP_B);
	}
}

void check_result_add(struct check_result *to, const struct check_result *from)
{
	to->checked_b += from->checked_b;
	to->wrong += from->wrong;
	if (from->first_wrong_off < to->first_wrong_off)
		to->first_wrong_off = from->first_wrong_off;
}

static void check_wrong(struct check_result *res, uint64_t off)
{
	res->wrong++;
	if (off < res->first_wrong_off)
		res->first_wrong_off = off;
}

void check_piece(const void *piece, uint64_t len, uint64_t msg_off, uint64_t region_off,
		 uint64_t seed, uint64_t iter, struct check_result *res)
{
	uint64_t room[CHECK_WORDS + 1];
	const unsigned char *got = piece;

	while (len) {
		uint64_t n = len < CHECK_PAGE_B ? len : CHECK_PAGE_B, off = region_off + msg_off;
		unsigned char *want = (unsigned char *)check_page(room, n, off, seed);

		check_stamp(want, n, 0, 1, iter);
		if (memcmp(got, want, n)) {
			for (uint64_t i = 0; i < n; i++)
				if (got[i] != want[i])
					check_wrong(res, off + i);
		}
		res->checked_b += n;
		got += n;
		msg_off += n;
		len -= n;
	}
}

void check_guard(const void *buf, uint64_t len, uint64_t off, struct check_result *res)
{
	const unsigned char *got = buf;

	for (uint64_t i = 0; i < len; i++)
		if (got[i] != CHECK_POISON)
			check_wrong(res, off + i);
}

uint64_t check_ring_last(const struct check_ring *r, uint64_t slot, uint64_t n)
{
	uint64_t period, i;

	if (r->apart && slot >= r->nr_slots) {
		period = check_ring_group(r) * CHECK_SAMPLE;
		slot -= r->nr_slots;
	} else {
		period = r->nr_slots;
	}
	if (n <= slot)
		return UINT64_MAX;
	i = n - 1 - (n - 1 - slot) % period;
	if (!r->apart || period != r->nr_slots)
		return i;
	/* Step out of a sampled group: at most group / nr_slots steps. */
	while (check_ring_sampled(r, i)) {
		if (i < period)
			return UINT64_MAX;
		i -= period;
	}
	return i;
}
