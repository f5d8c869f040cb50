/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machines of the tcp link: the states of an incoming message and of an operation, and which
 * state may follow which. tcp_in_goto() and tcp_op_goto() in tcp.h make every change, and assert
 * that the table here has it.
 */
#ifndef GX_TCP_STATE_H
#define GX_TCP_STATE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * A message that comes in:
 *
 *         DATA              all is visible            its completion is given
 *   FREE ------> ACTIVE ------------------> LANDED ---------------------------> FREE
 *    |            |  |
 *    |  our side  |  | CANCEL                 each frame has come, no copy is under way
 *    |  gives up  |  +------------> DRAIN ------------------------------------> FREE
 *    |            |                 ^  ^
 *    |            +---> REFUSED ----+  |
 *    |                          CANCEL |
 *    +---------------------------------+
 *      CANCEL comes before the first DATA, which another socket carries
 */
enum tcp_in_state {
	TCP_IN_FREE,
	TCP_IN_ACTIVE,
	TCP_IN_LANDED,	/* all is visible; waits until there is room for its completion */
	TCP_IN_REFUSED, /* FAIL is sent; waits for CANCEL, and drops bytes that still come */
	TCP_IN_DRAIN,	/* CANCEL came; waits for frames in other sockets, and for copies */
};

static inline bool tcp_in_may_go(enum tcp_in_state from, enum tcp_in_state to)
{
	static const uint8_t next[] = {
		[TCP_IN_FREE] = 1 << TCP_IN_ACTIVE | 1 << TCP_IN_DRAIN,
		[TCP_IN_ACTIVE] = 1 << TCP_IN_LANDED | 1 << TCP_IN_REFUSED | 1 << TCP_IN_DRAIN,
		[TCP_IN_LANDED] = 1 << TCP_IN_FREE,
		[TCP_IN_REFUSED] = 1 << TCP_IN_DRAIN,
		[TCP_IN_DRAIN] = 1 << TCP_IN_FREE,
	};

	return next[from] >> to & 1;
}

/*
 * An operation:
 *
 *         post            a mid                 each chunk is in a socket's queue
 *   FREE ------> QUEUED ---------> SENDING ------------------------------------> SENT
 *                  |
 *                  | RECV, GET: a slot
 *                  +--------------------> POSTED
 *
 *   SENDING, SENT, POSTED  -> DOOMED  it ends early: cancelled, too late, failed
 *   SENT, DOOMED           -> HELD    the peer is done with it, and a NIC is not (tcp_offload.h)
 *   each of them           -> FREE    it is over, or its endpoint is
 *
 * A put in QUEUED or SENDING lies in the list of those that have chunks to send; a send in QUEUED
 * lies there, or in the list of sends that wait for an offer.
 */
enum tcp_op_state {
	TCP_OP_FREE,
	TCP_OP_QUEUED,
	TCP_OP_SENDING,
	TCP_OP_SENT,
	TCP_OP_POSTED,
	TCP_OP_DOOMED, /* its completion is given, or .late. With a mid: waits for DONE. A get: waits
			  for the peer's answer */
	TCP_OP_HELD,   /* .status is that of its completion */
};

static inline bool tcp_op_may_go(enum tcp_op_state from, enum tcp_op_state to)
{
	static const uint8_t next[] = {
		[TCP_OP_FREE] = 1 << TCP_OP_QUEUED,
		[TCP_OP_QUEUED] = 1 << TCP_OP_SENDING | 1 << TCP_OP_POSTED | 1 << TCP_OP_FREE,
		[TCP_OP_SENDING] = 1 << TCP_OP_SENT | 1 << TCP_OP_DOOMED | 1 << TCP_OP_FREE,
		[TCP_OP_SENT] = 1 << TCP_OP_DOOMED | 1 << TCP_OP_HELD | 1 << TCP_OP_FREE,
		[TCP_OP_POSTED] = 1 << TCP_OP_DOOMED | 1 << TCP_OP_FREE,
		[TCP_OP_DOOMED] = 1 << TCP_OP_HELD | 1 << TCP_OP_FREE,
		[TCP_OP_HELD] = 1 << TCP_OP_FREE,
	};

	return next[from] >> to & 1;
}

#endif
