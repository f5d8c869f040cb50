/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications as notes of gx: long ones are cut, and joined again. The caller has the locks. */
#ifndef NOTIF_HPP
#define NOTIF_HPP

#include <cstdint>
#include <string>
#include <vector>

static constexpr size_t NOTIF_MAX_B = 64 << 20, HALVES_ALL_B = 1 << 30; /* of all senders */

/* The notes that a notification takes: a short one is one; a long one is cut in pieces of
 * GX_NOTE_MAX bytes. @number: no other one of this agent has it. */
std::string notif_cut(const std::string &text, uint64_t number);

struct Sender;

/* A notification of which not all pieces have come. */
struct Half {
	const Sender *from;
	uint64_t number, len; /* len: of all */
	std::string text;
};

/* An agent that sends notifications; threads of it send at the same time. */
struct Sender {
	std::string name;

	/* Return: a notification is whole, and in @text. Where a piece was lost, it never is. @halves: of all
	 * senders, the oldest first. */
	bool note_take(const char *note, size_t len, std::string *text,
		       std::vector<Half> &halves) const;

      private:
	void half_open(uint64_t number, uint64_t len, std::vector<Half> &halves) const;
};

#endif
