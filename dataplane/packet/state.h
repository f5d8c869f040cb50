/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machines of the packet link: which states a message that comes in can have, and which state
 * may follow which. in_goto() in pkt.h makes every change of state, and asserts that the table here
 * has it. So builds with assertions end at a change that the table lacks; in a release build a
 * change is one store. A message changes its state a few times; a packet never does.
 *
 * tests/test_state.c lists the same changes by the functions that make them.
 */
#ifndef GX_PKT_STATE_H
#define GX_PKT_STATE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * A message that comes in:
 *
 *         OPEN             all is visible            its completion is given
 *   FREE ------> ACTIVE -----------------> LANDED ---------------------------> FREE
 *    |            |  |
 *    |  our side  |  | CANCEL               no copy is under way
 *    |  gives up  |  +-----------> DRAIN -------------------------------------> FREE
 *    |            |                  ^
 *    |            |         CANCEL   |
 *    |            +---> REFUSED -----+
 *    |
 *    |  CANCEL, its OPEN is late             its OPEN
 *    +--------------------------> EARLY -------------------------------------> FREE
 *
 * ACTIVE goes straight to FREE when its OPEN names a message that it is to replace, and that one
 * has landed as a whole.
 */
enum in_state {
	IN_FREE, /* its mid is done; the next mid may come to this place */
	IN_ACTIVE,
	IN_EARLY,   /* CANCEL came before the OPEN, which is still to come */
	IN_REFUSED, /* FAIL is sent, or due; waits for CANCEL */
	IN_DRAIN,   /* CANCEL came; waits for copies that are under way */
	IN_LANDED,  /* all is visible; waits until there is room for its completion */
};

static inline bool in_may_go(enum in_state from, enum in_state to)
{
	static const uint8_t next[] = {
		[IN_FREE] = 1 << IN_ACTIVE | 1 << IN_EARLY,
		[IN_ACTIVE] = 1 << IN_LANDED | 1 << IN_REFUSED | 1 << IN_DRAIN | 1 << IN_FREE,
		[IN_EARLY] = 1 << IN_FREE,
		[IN_REFUSED] = 1 << IN_DRAIN,
		[IN_DRAIN] = 1 << IN_FREE,
		[IN_LANDED] = 1 << IN_FREE,
	};

	return next[from] >> to & 1;
}

#endif
