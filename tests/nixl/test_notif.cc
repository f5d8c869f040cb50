/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/nixl/notif.cc: notifications that are longer than a note of gx, also by a sender that lies. */
#include "notif.hpp"

extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
}
#include <algorithm>
#include <cstring>
#include <endian.h>

#include <gx/op.h>

static constexpr size_t PIECE_B = GX_NOTE_MAX - 24;

static std::string text_of(size_t len, unsigned seed)
{
	std::string text(len, 0);

	for (char &c : text)
		c = (char)(seed = seed * 1103515245 + 12345, seed >> 16);
	return text;
}

static std::string note_at(const std::string &notes, size_t i)
{
	return notes.substr(i * GX_NOTE_MAX, GX_NOTE_MAX);
}

static std::string forged(uint64_t number, uint64_t at, uint64_t len)
{
	uint64_t head[3] = {htole64(number), htole64(at), htole64(len)};
	std::string note(GX_NOTE_MAX, 'f');

	memcpy(note.data(), head, sizeof(head));
	return note;
}

static std::vector<Half> halves; /* of all senders of a test */

/* Return: the notification that is whole with this note; "-": none. */
static std::string taken(Sender &from, const std::string &note)
{
	std::string text;

	return from.note_take(note.data(), note.size(), &text, halves) ? text : "-";
}

static void cut__lengths(void **)
{
	for (size_t len : {0ul, 1ul, GX_NOTE_MAX - 1ul, 0ul + GX_NOTE_MAX, GX_NOTE_MAX + 1ul,
			   2 * PIECE_B, 2 * PIECE_B + 1, 1000003ul, NOTIF_MAX_B}) {
		Sender from{"a"};
		std::string text = text_of(len, (unsigned)len), notes = notif_cut(text, 7);
		size_t n = len < GX_NOTE_MAX ? 1 : (len + PIECE_B - 1) / PIECE_B;

		assert_int_equal(notes.size(), len < GX_NOTE_MAX ? len : n * GX_NOTE_MAX);
		for (size_t i = 0; i + 1 < n; i++)
			assert_true(taken(from, note_at(notes, i)) == "-");
		assert_true(taken(from, note_at(notes, n - 1)) == text);
		assert_int_equal(halves.size(), 0);
	}
}

static void take__between_others(void **)
{
	Sender from{"a"};
	std::string a = text_of(3 * PIECE_B, 1), b = text_of(3 * PIECE_B, 2), as = notif_cut(a, 1),
		    bs = notif_cut(b, 2);

	assert_true(taken(from, note_at(as, 0)) == "-");
	assert_true(taken(from, note_at(bs, 0)) == "-");
	assert_true(taken(from, "short") == "short");
	assert_true(taken(from, note_at(as, 1)) == "-");
	assert_true(taken(from, note_at(bs, 1)) == "-");
	assert_true(taken(from, note_at(bs, 2)) == b);
	assert_true(taken(from, note_at(as, 2)) == a);
}

/* A lost piece, one that comes twice, and a sender that begins again: no text of two. */
static void take__lost(void **)
{
	Sender from{"a"};
	std::string a = text_of(3 * PIECE_B, 1), b = text_of(3 * PIECE_B, 2), as = notif_cut(a, 1),
		    bs = notif_cut(b, 1);

	assert_true(taken(from, note_at(as, 0)) == "-");
	assert_true(taken(from, note_at(as, 2)) == "-");
	assert_true(taken(from, note_at(as, 1)) == "-");
	assert_true(taken(from, note_at(as, 1)) == "-");
	assert_true(taken(from, note_at(bs, 0)) == "-");
	assert_true(taken(from, note_at(bs, 1)) == "-");
	assert_true(taken(from, note_at(bs, 2)) == b);
	assert_true(taken(from, note_at(bs, 2)) == "-");
	assert_int_equal(halves.size(), 0);
}

static void take__lies(void **)
{
	Sender from{"a"};
	static const uint64_t lies[][3] = {{1, 1, 8000},
					   {1, PIECE_B, 8000},
					   {1, 0, 0},
					   {1, 0, GX_NOTE_MAX - 1},
					   {1, 0, NOTIF_MAX_B + 1},
					   {1, 0, UINT64_MAX},
					   {1, UINT64_MAX, UINT64_MAX},
					   {1, UINT64_MAX, 1}};

	for (const auto &l : lies) {
		assert_true(taken(from, forged(l[0], l[1], l[2])) == "-");
		assert_int_equal(halves.size(), 0);
	}
	assert_true(taken(from, forged(1, 0, 8000)) == "-");
	assert_true(taken(from, forged(1, PIECE_B, 8001)) == "-"); /* another length */
	assert_int_equal(taken(from, forged(1, PIECE_B, 8000)).size(), 8000);
}

static size_t nr_of(const Sender &s)
{
	return (size_t)std::count_if(halves.begin(), halves.end(),
				     [&](const Half &h) { return h.from == &s; });
}

/* Those of many senders neither: of all the oldest go, but of one that has too many its own. */
static void take__halves_of_all(void **)
{
	std::vector<Sender> from(5, Sender{"a"});

	for (Sender &s : from)
		for (uint64_t i = 0; i < 4; i++)
			taken(s, forged(i, 0, NOTIF_MAX_B));
	assert_int_equal(nr_of(from[0]), 0);
	for (unsigned i = 1; i < 5; i++)
		assert_int_equal(nr_of(from[i]), 4);
	taken(from[4], forged(9, 0, 8000));
	assert_int_equal(nr_of(from[4]), 4);
	assert_int_equal(nr_of(from[1]), 4);
	taken(from[0], forged(9, 0, NOTIF_MAX_B));
	assert_int_equal(nr_of(from[1]), 3);
	assert_int_equal(taken(from[4], forged(9, PIECE_B, 8000)).size(), 8000);
	assert_true(taken(from[1], forged(9, PIECE_B, 8000)) == "-"); /* another's */
}

/* Halves that never end do not fill the memory, and the last one is taken all the same. */
static void take__halves(void **)
{
	Sender from{"a"};
	size_t held_b = 0;

	for (uint64_t i = 0; i < 5000; i++)
		taken(from, forged(i, 0, 8000));
	assert_int_equal(halves.size(), 1024);
	assert_int_equal(taken(from, forged(4999, PIECE_B, 8000)).size(), 8000);
	for (uint64_t i = 0; i < 6; i++)
		for (uint64_t at = 0; at < NOTIF_MAX_B - PIECE_B; at += PIECE_B)
			taken(from, forged(i, at, NOTIF_MAX_B));
	for (const Half &h : halves)
		held_b += h.text.size();
	assert_in_range(held_b, NOTIF_MAX_B, 4 * NOTIF_MAX_B);
	/* What is still to come counts when it is opened. */
	for (uint64_t i = 0; i < 600; i++)
		taken(from, forged(i, 0, 1 << 20));
	held_b = 0;
	for (const Half &h : halves)
		held_b += h.len;
	assert_in_range(held_b, NOTIF_MAX_B, 4 * NOTIF_MAX_B);
}

static int fresh(void **)
{
	halves.clear();
	return 0;
}
#define TEST(name) cmocka_unit_test_setup(name, fresh)

int main()
{
	const struct CMUnitTest tests[] = {
		TEST(cut__lengths), TEST(take__between_others), TEST(take__lost),
		TEST(take__lies),   TEST(take__halves),		TEST(take__halves_of_all),
	};

	return cmocka_run_group_tests(tests, nullptr, nullptr);
}
