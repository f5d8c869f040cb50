/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications as notes of gx: long ones are cut, and joined again. The caller has the locks. */
#ifndef NOTIF_HPP
#define NOTIF_HPP

#include <cstdint>
#include <string>
#include <vector>

static constexpr size_t NOTIF_MAX_B = 64 << 20;

/* The notes that a notification takes: a short one is one; a long one is cut in pieces of
 * GX_NOTE_MAX bytes. @number: no other one of this agent has it. */
std::string notif_cut(const std::string &text, uint64_t number);

/* A notification of which not all pieces have come. */
struct Half {
	uint64_t number, len; /* len: of all */
	std::string text;
};

/* An agent that sends notifications. */
struct Sender {
	std::string name;
	std::vector<Half> halves; /* threads of it send at the same time */

	/* Return: a notification is whole, and in @text. Where a piece was lost, it never is. */
	bool note_take(const char *note, size_t len, std::string *text);

      private:
	void half_open(uint64_t number, uint64_t len);
};

#endif
