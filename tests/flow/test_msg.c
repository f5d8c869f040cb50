/* SPDX-License-Identifier: Apache-2.0 */
/*
 * msg.c against a plain bitmap, and the arithmetic of packets and offsets.
 */
#include "flow/msg.h"

#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t rnd = 1;

static uint64_t next_random(void)
{
	uint64_t x = rnd += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static struct msg_shape shape(uint32_t quantum, uint32_t chunk_b, uint32_t window)
{
	struct msg_shape s;

	assert_int_equal(msg_shape_init(&s, quantum, chunk_b, window), 0);
	return s;
}

static void msg_shape_init__refuses(void **state)
{
	struct msg_shape s;

	assert_int_equal(msg_shape_init(&s, 0, 4096, 1), -EINVAL);
	assert_int_equal(msg_shape_init(&s, 1288, 4096, 1), -EINVAL);
	assert_int_equal(msg_shape_init(&s, 4096, 4095, 1), -EINVAL);
	assert_int_equal(msg_shape_init(&s, 4096, 4096, 0), -EINVAL);
	assert_int_equal(msg_shape_init(&s, 1280, 64 << 20, 1024), -EINVAL);
}

static void msg_shape_init__sizes(void **state)
{
	struct msg_shape s = shape(4096, 4096, 1);

	assert_int_equal(s.window_pkts, 1);
	assert_int_equal(s.bits, 64);
	s = shape(4096, 65536 + 4095, 5); /* a chunk is a whole number of quanta */
	assert_int_equal(s.chunk_pkts, 16);
	assert_int_equal(s.window_pkts, 80);
	assert_int_equal(s.bits, 128);
	assert_int_equal(msg_words(&s), 2);
}

static void msg_nr_pkts__edges(void **state)
{
	struct msg_shape s = shape(1392, 65536, 1);

	assert_int_equal(msg_nr_pkts(&s, 0), 1);
	assert_int_equal(msg_nr_pkts(&s, 1), 1);
	assert_int_equal(msg_nr_pkts(&s, 1392), 1);
	assert_int_equal(msg_nr_pkts(&s, 1393), 2);
	assert_true(msg_nr_pkts(&s, 1ull << 36) == (1ull << 36) / 1392 + 1);
}

/* Every packet of every length comes back as its number; nothing else is a packet. */
static void msg_pkt__inverts_the_offset(void **state)
{
	static const uint32_t quanta[] = {1280, 1392, 3328, 4096, 8192, 8944, 16384};
	uint64_t pkt;

	for (unsigned q = 0; q < GX_ARRAY_SIZE(quanta); q++) {
		struct msg_shape s = shape(quanta[q], 1 << 20, 4);

		for (unsigned i = 0; i < 20000; i++) {
			uint64_t n = next_random() % ((1ull << 36) / s.quantum);
			uint64_t off = n * s.quantum;

			assert_int_equal(msg_pkt(&s, off + s.quantum, off, s.quantum, true, &pkt),
					 0);
			assert_true(pkt == n);
			assert_int_equal(
				msg_pkt(&s, off + 2 * s.quantum, off, s.quantum, false, &pkt), 0);
			assert_true(pkt == n);
			assert_int_equal(msg_pkt(&s, 1ull << 37,
						 off + 16 * (1 + i % (s.quantum / 16 - 1)),
						 s.quantum, false, &pkt),
					 -EPROTO);
		}
	}
}

static void msg_pkt__refuses(void **state)
{
	struct msg_shape s = shape(4096, 65536, 4);
	uint64_t pkt;

	assert_int_equal(msg_pkt(&s, 10000, 8192, 1808, true, &pkt), 0);
	assert_int_equal(msg_pkt(&s, 10000, 8192, 1808, false, &pkt),
			 -EPROTO); /* the last without EOM */
	assert_int_equal(msg_pkt(&s, 10000, 8192, 1807, true, &pkt),
			 -EPROTO); /* EOM before the end */
	assert_int_equal(msg_pkt(&s, 10000, 8192, 1809, true, &pkt), -EPROTO); /* past the end */
	assert_int_equal(msg_pkt(&s, 10000, 12288, 4096, false, &pkt), -EPROTO);
	assert_int_equal(msg_pkt(&s, 10000, 0, 4096, true, &pkt), -EPROTO);
	assert_int_equal(msg_pkt(&s, 10000, 0, 4095, false, &pkt),
			 -EPROTO); /* short, not the last */
	assert_int_equal(msg_pkt(&s, 10000, 0, 10000, true, &pkt),
			 -EPROTO); /* longer than a quantum */
	assert_int_equal(msg_pkt(&s, 8192, 8192, 0, true, &pkt), -EPROTO); /* empty after the end */
	assert_int_equal(msg_pkt(&s, 0, 0, 0, true, &pkt), 0);
	assert_int_equal(msg_pkt(&s, 0, 0, 0, false, &pkt), -EPROTO);
	assert_int_equal(msg_pkt(&s, UINT64_MAX, 1ull << 35, 4096, false, &pkt), 0);
}

/* A window beside one byte a packet. */
static void check_against_bytes(const struct msg_win *w, const uint8_t *set, uint64_t nr)
{
	uint64_t base = 0;

	while (base < nr && set[base])
		base++;
	assert_true(w->base == base);
	for (uint64_t i = 0; i < nr; i++) {
		int want = i > base + w->mask ? -1 : set[i];

		assert_int_equal(msg_win_test(w, i), want);
	}
	assert_int_equal(msg_win_test(w, nr), nr > base ? -1 : 1 - 2 * (nr >= base));
}

static void msg_range__whole_packets(void **state)
{
	static const struct {
		uint64_t off, n_b;
		int ret;
		uint64_t first, end;
	} all[] = {
		{0, 4096, 0, 0, 1},
		{4096, 8192, 0, 1, 3},
		{8192, 4096 + 100, 0, 2, 4},
		{12288, 100, 0, 3, 4},
		{0, 12388, 0, 0, 4},
		{0, 0, -EPROTO},
		{0, 100, -EPROTO},
		{16, 4096, -EPROTO},
		{4096, 4080, -EPROTO},
		{12288, 101, -EPROTO},
		{12388, 1, -EPROTO},
		{12288, UINT64_MAX - 12287, -EPROTO},
		{UINT64_MAX & ~15ull, 4096, -EPROTO},
	};
	struct msg_shape s = shape(4096, 65536, 4);
	uint64_t first, end;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(all); i++) {
		assert_int_equal(msg_range(&s, 12388, all[i].off, all[i].n_b, &first, &end),
				 all[i].ret);
		if (all[i].ret)
			continue;
		assert_true(first == all[i].first && end == all[i].end);
	}
	assert_int_equal(msg_range(&s, UINT64_MAX, 1ull << 36, 4096, &first, &end), -EPROTO);
}

static void msg_win__like_a_bitmap(void **state)
{
	for (unsigned round = 0; round < 60; round++) {
		struct msg_shape s = shape(4096, 4096u << round % 5, 1 + round % 40);
		uint64_t nr = 1 + next_random() % 700;
		uint64_t *words = calloc(msg_words(&s), sizeof(*words));
		uint8_t *set = calloc(1, nr);
		struct msg_win w;

		msg_win_init(&w, &s, nr * 4096 - round % 2, words);
		assert_true(w.nr_pkts == nr);
		for (unsigned step = 0; !msg_win_full(&w); step++) {
			uint64_t limit = msg_limit(&w, &s);
			uint64_t pkt = w.base + (round % 3 ? next_random() % (limit - w.base) : 0);

			assert_true(limit > w.base && limit <= w.base + s.bits && limit <= nr);
			assert_true(w.chunk % s.chunk_pkts == 0 && w.base - w.chunk < s.chunk_pkts);
			if (msg_win_test(&w, pkt) == 0) {
				msg_win_set(&w, pkt);
				set[pkt] = 1;
			}
			if (step % 16 == 0)
				check_against_bytes(&w, set, nr);
		}
		for (unsigned i = 0; i < msg_words(&s); i++) /* zero again, for the next message */
			assert_true(words[i] == 0);
		free(words);
		free(set);
	}
}

static void msg_win__one_packet_needs_no_words(void **state)
{
	struct msg_shape s = shape(4096, 65536, 4);
	struct msg_win w;

	msg_win_init(&w, &s, 0, NULL);
	assert_int_equal(msg_win_test(&w, 0), 0);
	assert_true(msg_limit(&w, &s) == 1);
	msg_win_set(&w, 0);
	assert_int_equal(msg_win_test(&w, 0), 1);
	assert_true(msg_win_full(&w));
	msg_win_clear_rest(&w);
}

static void msg_win_clear_rest__half_way(void **state)
{
	struct msg_shape s = shape(4096, 65536, 16);
	uint64_t words[4] = {0};
	struct msg_win w;

	msg_win_init(&w, &s, 1 << 20, words);
	for (uint64_t i = 0; i < 256; i += 3)
		msg_win_set(&w, i);
	msg_win_clear_rest(&w);
	for (unsigned i = 0; i < 4; i++)
		assert_true(words[i] == 0);
}

/* Chunk k + window starts when k is wholly set. */
static void msg_limit__by_chunks(void **state)
{
	struct msg_shape s = shape(4096, 16384, 2);
	uint64_t words[1] = {0};
	struct msg_win w;

	msg_win_init(&w, &s, 100 * 4096, words);
	assert_true(msg_limit(&w, &s) == 8);
	for (uint64_t i = 1; i < 8; i++)
		msg_win_set(&w, i);
	assert_true(msg_limit(&w, &s) == 8);
	msg_win_set(&w, 0);
	assert_true(msg_limit(&w, &s) == 16);
	msg_win_set(&w, 8);
	assert_true(msg_limit(&w, &s) == 16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(msg_shape_init__refuses),
		cmocka_unit_test(msg_shape_init__sizes),
		cmocka_unit_test(msg_nr_pkts__edges),
		cmocka_unit_test(msg_pkt__inverts_the_offset),
		cmocka_unit_test(msg_pkt__refuses),
		cmocka_unit_test(msg_range__whole_packets),
		cmocka_unit_test(msg_win__like_a_bitmap),
		cmocka_unit_test(msg_win__one_packet_needs_no_words),
		cmocka_unit_test(msg_win_clear_rest__half_way),
		cmocka_unit_test(msg_limit__by_chunks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
