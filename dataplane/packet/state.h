/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machines of the packet link: the states of an incoming message and of an operation, and which
 * state may follow which. in_goto() and op_goto() in pkt.h make every change of state, and assert
 * that the table here has it. So builds with assertions end at a change that a table lacks; in a
 * release build a change is one store. A message changes its state a few times; a packet never
 * does.
 *
 * tests/packet/test_state.c lists the same changes by the functions that make them.
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

/*
 * An operation:
 *
 *         post            a mid, OPEN              all is sent
 *   FREE ------> QUEUED ---------------> SENDING --------------> SENT
 *                  |                      ^   |                   |
 *                  | RECV, GET:    a mid, |   | packets too large |
 *                  | a slot          OPEN |   | for the path      |
 *                  v                      |   v                   |
 *                POSTED                   AGAIN <-----------------+
 *
 *   QUEUED                          -> SENT    the data goes in the OPEN
 *   AGAIN                           -> AGAIN   the path got narrower once more
 *   SENDING, SENT, AGAIN, POSTED    -> DOOMED  it ends early: cancelled, too late, failed
 *   SENDING, SENT, AGAIN, DOOMED    -> ENDED   the peer is done with its mid, and the port is not
 *                                              with its packets
 *   each of them                    -> FREE    it is over, or its endpoint is
 *
 * An operation in QUEUED lies in the list of those that wait for a mid, or of sends that wait for
 * an offer; one in AGAIN, in the former; one in SENDING, in the list of those that have packets to
 * send. op_unlist() relies on this, and op_is_live() on the order of the states: those after
 * POSTED are on the way to the end.
 */
enum pkt_op_state {
	OP_FREE,
	OP_QUEUED,  /* posted; waits for a mid, SEND for an offer before that */
	OP_AGAIN,   /* waits for another mid; mid and sent_pkts are still those of its message under
		       way, which the message of the other mid replaces */
	OP_SENDING, /* has a mid; packets are to be sent */
	OP_SENT,    /* everything sent once; waits for done */
	OP_POSTED,  /* RECV, GET: waits for its data in a slot */
	OP_DOOMED,  /* ended early. With a mid: CANCEL is under way, and the mid stays until the
		       peer is done with it. With a slot: waits for copies under way, or for the
		       answer to a GET */
	OP_ENDED,   /* the peer is done; waits until the port references no packet */
};

static inline bool op_may_go(enum pkt_op_state from, enum pkt_op_state to)
{
	static const uint8_t next[] = {
		[OP_FREE] = 1 << OP_QUEUED,
		[OP_QUEUED] = 1 << OP_SENDING | 1 << OP_SENT | 1 << OP_POSTED | 1 << OP_FREE,
		[OP_AGAIN] = 1 << OP_SENDING | 1 << OP_AGAIN | 1 << OP_DOOMED | 1 << OP_ENDED |
			     1 << OP_FREE,
		[OP_SENDING] = 1 << OP_SENT | 1 << OP_AGAIN | 1 << OP_DOOMED | 1 << OP_ENDED |
			       1 << OP_FREE,
		[OP_SENT] = 1 << OP_AGAIN | 1 << OP_DOOMED | 1 << OP_ENDED | 1 << OP_FREE,
		[OP_POSTED] = 1 << OP_DOOMED | 1 << OP_FREE,
		[OP_DOOMED] = 1 << OP_ENDED | 1 << OP_FREE,
		[OP_ENDED] = 1 << OP_FREE,
	};

	return next[from] >> to & 1;
}

#endif
