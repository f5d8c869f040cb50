/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes: what an end sends behind the bytes of a put, and how many of the peer's it has taken. A decoder
 * refuses what its encoder could not write.
 */
#ifndef GX_VERBS_NOTE_H
#define GX_VERBS_NOTE_H

#include "verbs/verbs_qp.h"

#define VERBS_NOTE_B 48

struct verbs_note {
	uint8_t kind; /* enum verbs_wr_kind: NOTE, CREDIT */
	uint8_t part, nr_parts;
	uint32_t seq;
	uint32_t taken; /* notes that the sender of this one has taken from this queue pair */
	uint64_t token, off, len, imm;
};
void verbs_note_put(uint8_t b[VERBS_NOTE_B], const struct verbs_note *n);
int verbs_note_get(const uint8_t *b, uint32_t len, struct verbs_note *n); /* 0, -EPROTO */
bool note_room(const struct verbs_qp *q); /* has the peer a receive for one more? */
/* Is it time to tell the peer how many of its notes were taken? */
static inline bool note_is_owed(const struct verbs_qp *q)
{
	return q->notes_taken - q->notes_told >= VERBS_RQ / 4;
}
void note_take(struct verbs_lane *l, struct verbs_qp *q, const uint8_t *b, uint32_t len);

#endif
