/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications as notes of gx: long ones are cut, and joined again. */
#include "notif.hpp"

#include <algorithm>
#include <cstring>
#include <endian.h>

#include <gx/log.h>
#include <gx/op.h>

/* Begins each piece. The last one ends with zeros, so a note of another length is no piece. */
struct Piece {
	uint64_t number, at, len; /* little-endian: of the notification, this piece, all of it */
};
static constexpr size_t PIECE_B = GX_NOTE_MAX - sizeof(Piece);
static constexpr size_t HALVES_MAX = 1024, HALVES_MAX_B = 4 * NOTIF_MAX_B; /* of a sender */

std::string notif_cut(const std::string &text, uint64_t number)
{
	std::string notes;

	if (text.size() < GX_NOTE_MAX)
		return text;
	for (size_t at = 0; at < text.size(); at += PIECE_B) {
		Piece piece = {htole64(number), htole64(at), htole64(text.size())};

		notes.append((const char *)&piece, sizeof(piece));
		notes.append(text, at, PIECE_B);
	}
	notes.resize((notes.size() + GX_NOTE_MAX - 1) / GX_NOTE_MAX * GX_NOTE_MAX);
	return notes;
}

/* A sender that ends in the midst leaves a half, for good: so the oldest ones go, its own first. */
void Sender::half_open(uint64_t number, uint64_t len, std::vector<Half> &halves) const
{
	size_t nr = 0, own_b = len, all_b = len, gone = 0; /* with what is still to come */

	for (const Half &h : halves) {
		nr += h.from == this;
		own_b += h.from == this ? h.len : 0;
		all_b += h.len;
	}
	for (bool any : {false, true})
		std::erase_if(halves, [&](const Half &h) {
			bool own = h.from == this;
			bool goes = any ? all_b > HALVES_ALL_B
					: own && (nr >= HALVES_MAX || own_b > HALVES_MAX_B);

			nr -= goes && own;
			own_b -= goes && own ? h.len : 0;
			all_b -= goes ? h.len : 0;
			gone += goes;
			return goes;
		});
	if (gone)
		gx_log(GX_LOG_WARN,
		       "nixl: %zu notifications that came in part are dropped for one of %.64s",
		       gone, name.c_str());
	halves.push_back({this, number, len, ""});
}

bool Sender::note_take(const char *note, size_t len, std::string *text,
		       std::vector<Half> &halves) const
{
	Piece piece;

	if (len != GX_NOTE_MAX) {
		text->assign(note, len);
		return true;
	}
	memcpy(&piece, note, sizeof(piece));
	uint64_t number = le64toh(piece.number), at = le64toh(piece.at), all = le64toh(piece.len);
	auto is_it = [&](const Half &h) { return h.from == this && h.number == number; };
	if (!at && all >= GX_NOTE_MAX && all <= NOTIF_MAX_B) {
		std::erase_if(halves, is_it);
		half_open(number, all, halves);
	}
	auto half = std::find_if(halves.begin(), halves.end(), is_it);
	if (half == halves.end() || half->text.size() != at || half->len != all)
		return false;
	half->text.append(note + sizeof(piece), std::min<uint64_t>(all - at, PIECE_B));
	if (half->text.size() < all)
		return false;
	*text = std::move(half->text);
	halves.erase(half);
	return true;
}
