/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of messages of the packet link at both ends: OPEN, LIST, CANCEL, FAIL, RESEND, data,
 * acknowledgements with done bits and credit, over a network that loses, doubles and reorders. The
 * model has one direction. test_message.py runs it with spin, and its mutants (-DMUTANT_...).
 *
 * What is checked:
 *   - a byte lands in a segment of its own message, or nowhere; none after the message has landed,
 *     and none of a source that the user has back
 *   - an operation ends once; if it ends well, all its bytes are visible and it was delivered once
 *   - an honest peer never makes the other end give up the connection (rx_fault())
 *   - credit: what the sender has used is what the receiver has counted, when all is over
 *   - no deadlock. Loss, doubles, wrong copies, cancels and refusals are finite, and each other step
 *     brings the end closer. So each run ends; where it ends, everything must be over.
 *
 * What stands for what:
 *   start                op_start(), tx_mid()                    tx.c
 *   open_out             rec_send(), rec_requeue()               rec.c
 *   first_out            make_data() with a first packet         make.c
 *   MUST_AGAIN           lost_data(), ask_send()                 ack.c, ask.c
 *   doom, SAYS           abort_op(), op_neutralise()             abort.c, op.c
 *   fail_in, resend_in   rx_fail(), ask_take()                   rx.c, ask.c
 *   ack_in, mid_done     ack_done(), mid_done()                  ack.c
 *   open_in              rec_is_new(), in_open(), open_early()   rx.c, in.c
 *   cancel_in, refuse    in_cancel(), in_refuse()                in.c
 *   data_in, place_data  rx_unplaced(), rx_place()               rx.c
 *   copy_end             reap_one(), bad_found(), in_drained()   rx.c, bad.c, in.c
 *   deliver, settle      in_deliver(), in_settle()               in.c
 *   grant, ack_out       tx_grant(), make_ack()                  tx.c, make.c
 *
 * What is simpler than the code:
 *   - Each record and packet is a packet of its own. The network is a set: any of it may come next.
 *   - A sender knows at once what has arrived, and sends again only what has not. An ACK that is lost
 *     makes it send needlessly: that is a double.
 *   - A packet that comes before its OPEN is one that is lost, since the receiver drops it.
 *   - A probe is sent only if its answer says something new.
 *   - Not in it: AGAIN, slots (receives and gets), PULL, REFUND, lapsed credit, packets that a port
 *     still references.
 */

#ifndef PLACES
#define PLACES 1 /* places of messages; 1 or 2 */
#endif
#ifndef FAULTS
#define FAULTS 3 /* in all: losses, doubles, cancels, memory freed at the receiver, wrong copies */
#endif
#define SLOTS 2 /* buffers of the receiver: the most that it grants */

/* Kinds of messages. */
#define PUT    0 /* two packets, one piece of memory */
#define LIST   1 /* two packets, two segments with a gap between them */
#define INLINE 2 /* its bytes are in the OPEN */

/* The messages, in the order in which they were posted. */
#ifndef KIND0
#define KIND0 LIST
#endif
#ifndef KIND1
#define KIND1 PUT
#endif
#define N 2

#define KIND(i)	   (i == 0 -> KIND0 : KIND1)
#define PKTS(i)	   (KIND(i) == INLINE -> 0 : 2)
#define ALL(i)	   (KIND(i) == INLINE -> 0 : 3) /* a bit for each packet */

/* Is that cell of memory in a segment? Two segments are cells 0 and 2, and one of two packets is 0 and 1. */
#define IN_SEGMENTS(i, cell) ((cell) == 0 || (cell) == (KIND(i) == LIST -> 2 : 1))

/* What an OPEN or LIST on its way says: bits of open_fly. */
#define SAYS_ALL     1 /* as posted */
#define SAYS_NEUTRAL 2 /* as op_neutralise() left it */

/* States of an operation, as in state.h. */
#define OP_QUEUED  0
#define OP_SENDING 1
#define OP_SENT	   2
#define OP_DOOMED  3
#define OP_FREE	   4

/* States of a message that comes in. NONE: before its life. FREE: behind it, its done bit has changed. */
#define IN_NONE	   0
#define IN_ACTIVE  1
#define IN_REFUSED 2
#define IN_EARLY   3
#define IN_DRAIN   4
#define IN_LANDED  5
#define IN_FREE	   6

/* ---- the sender ---- */
byte op[N];	  /* its state */
byte place[N];	  /* place of its mid; the message itself stands for the number in the mid */
byte pkts[N];	  /* packets sent once: sent_pkts */
bit opened[N];	  /* its OPEN has gone out */
byte asked[N];	  /* packets to send once more, since the receiver asks for them */
bit cancelled[N]; /* there is a CANCEL */
byte ended[N];	  /* completions that the user got */
byte next_op;	  /* the first one that has not begun */
byte holder[PLACES]; /* whose the place is; N: free */
bit peer_done[PLACES];
byte credit, credit_known; /* first packets sent; allowed */

/* ---- on the way ---- */
byte open_fly[N], data_fly[N], resend_fly[N]; /* sets: of SAYS_, of packets */
bit cancel_fly[N], fail_fly[N];
/* Two ACKs, the older one first. Late: one with a higher number has come. */
bit ack_fly[2], ack_late[2];
byte ack_done[2], ack_credit[2];

/* ---- the receiver ---- */
byte msg[N];	     /* its state */
byte last[PLACES];   /* the message that came last to the place; N: none */
bit open_seen[N], cancel_seen[N], fail_seen[N]; /* records taken, by their rsn */
byte resend_seen[N];
bit inlined[N], in_pieces[N]; /* the OPEN had the bytes; the memory is as the LIST says */
byte seen[N], pending[N], visible[N], wrong[N]; /* sets of packets */
bit fail_due[N];
byte resend_due[N];
byte delivered[N];
byte done_bits, counted, granted; /* first packets counted; allowed */

byte faults = FAULTS; /* still to come */
byte k; /* of one step, and 0 between steps */

#define TEST(set, p)  (((set) >> (p)) & 1)
#define SET(set, p)   set = (set) | (1 << (p))
#define CLEAR(set, p) set = (set) & ~(1 << (p))
#define COUNT(set)    (((set) & 1) + ((set) >> 1)) /* of two packets */
#define OP_LIVE(i)    (op[i] == OP_SENDING || op[i] == OP_SENT)

/* ---- steps of the sender ---- */

inline end_op(i, well)
{
	ended[i]++;
	assert(ended[i] == 1);
	assert(!(well) || (delivered[i] == 1 && visible[i] == ALL(i)))
}

inline start(i, w)
{
	place[i] = w;
	holder[w] = i;
	next_op++;
	op[i] = (KIND(i) == INLINE -> OP_SENT : OP_SENDING)
}

inline doom(i)
{
	if
	:: op[i] == OP_QUEUED -> op[i] = OP_FREE
	:: else ->
		op[i] = OP_DOOMED;
		asked[i] = 0;
		cancelled[i] = 1
	fi;
	end_op(i, false)
}

/* What a record says that goes out now. */
#ifdef MUTANT_INLINE_STAYS /* it reads bytes that the user has back */
#define SAYS(i) (OP_LIVE(i) || KIND(i) == INLINE -> SAYS_ALL : SAYS_NEUTRAL)
#else
#define SAYS(i) (OP_LIVE(i) -> SAYS_ALL : SAYS_NEUTRAL)
#endif

inline open_out(i)
{
	assert(KIND(i) != INLINE || SAYS(i) != SAYS_ALL || OP_LIVE(i));
	open_fly[i] = open_fly[i] | SAYS(i);
	opened[i] = 1
}

inline first_out(i)
{
	SET(data_fly[i], pkts[i]);
	pkts[i]++;
	credit++;
	op[i] = (pkts[i] == PKTS(i) -> OP_SENT : OP_SENDING)
}

/* The receiver has not taken it, as far as its ACKs say, or asks for it. It takes each packet of a
 * message that is over, and throws it away. */
#define MUST_AGAIN(i, p)                                                                             \
	(OP_LIVE(i) && (p) < pkts[i] && !TEST(data_fly[i], p) &&                                     \
	 (TEST(asked[i], p) || (!TEST(seen[i], p) && msg[i] <= IN_REFUSED)))

inline fail_in(i)
{
	if
	:: !fail_seen[i] && OP_LIVE(i) -> doom(i)
	:: else
	fi;
	fail_seen[i] = 1
}

inline resend_in(i, p)
{
	if
	:: !TEST(resend_seen[i], p) && OP_LIVE(i) && p < pkts[i] -> SET(asked[i], p)
	:: else
	fi;
	SET(resend_seen[i], p)
}

inline mid_done(w)
{
	k = holder[w];
	holder[w] = N;
	peer_done[w] = !peer_done[w];
	if
	:: op[k] != OP_DOOMED -> end_op(k, true)
	:: else
	fi;
	op[k] = OP_FREE;
	asked[k] = 0;
	k = 0
}

#ifdef MUTANT_ACK_LATE
#define ACK_COUNTS(a) true
#else
#define ACK_COUNTS(a) !ack_late[a]
#endif
#define ACK_ENDS(a, w) (ACK_COUNTS(a) && holder[w] != N && TEST(ack_done[a], w) != peer_done[w])

inline ack_in(a)
{
	if
	:: ACK_ENDS(a, 0) -> mid_done(0)
	:: else
	fi;
#if PLACES > 1
	if
	:: ACK_ENDS(a, 1) -> mid_done(1)
	:: else
	fi;
#endif
	credit_known = (ack_credit[a] > credit_known -> ack_credit[a] : credit_known)
}

/* ---- steps of the receiver ---- */

/* May the message come to its place? */
#define IS_NEXT(i)                                                                                   \
	(msg[i] == IN_NONE && (last[place[i]] == N || msg[last[place[i]]] == IN_FREE))

inline begin(i, state)
{
	last[place[i]] = i;
	msg[i] = state
}

inline settle(i)
{
	msg[i] = IN_FREE;
	done_bits = done_bits ^ (1 << place[i])
}

inline used(n)
{
	counted = counted + n;
	grant()
}

/* As much as there are buffers. What was granted is never taken back. */
inline grant()
{
	k = counted + SLOTS - COUNT(pending[0]) - COUNT(pending[1]);
	granted = (k > granted -> k : granted);
	k = 0
}

inline check_landed(i)
{
	if
	:: msg[i] == IN_ACTIVE && visible[i] == ALL(i) && !pending[i] && inlined[i] == (KIND(i) == INLINE) ->
		msg[i] = IN_LANDED
	:: else
	fi
}

inline refuse(i)
{
	msg[i] = IN_REFUSED;
	wrong[i] = 0;
	fail_due[i] = 1
}

inline deliver(i)
{
	delivered[i]++;
	assert(delivered[i] == 1);
	settle(i)
}

/* A record that goes again has its effect once: rec_is_new(), and the number in the mid. */
#ifdef MUTANT_OPEN_TWICE
#define REC_IS_NEW(i)  (!open_seen[i] || msg[i] == IN_FREE)
#define MUTANT_NEXT(i) (msg[i] == IN_FREE)
#else
#define REC_IS_NEW(i)  !open_seen[i]
#define MUTANT_NEXT(i) false
#endif

inline open_new(i, says)
{
	assert(MUTANT_NEXT(i) || IS_NEXT(i)); /* rx_fault() */
	begin(i, IN_ACTIVE);
	if
	:: KIND(i) == LIST && says == SAYS_ALL -> in_pieces[i] = 1
#ifndef MUTANT_LIST_BECOMES_OPEN
	:: KIND(i) == LIST && says == SAYS_NEUTRAL -> refuse(i) /* it names no memory */
#endif
	:: KIND(i) == INLINE && says == SAYS_ALL -> inlined[i] = 1; check_landed(i)
	:: else
	fi
}

inline open_in(i, says)
{
	if
	:: REC_IS_NEW(i) && msg[i] == IN_EARLY -> settle(i) /* open_early() */
	:: REC_IS_NEW(i) && msg[i] != IN_EARLY -> open_new(i, says)
	:: else
	fi;
	open_seen[i] = 1
}

#ifdef MUTANT_CREDIT_LOST
#define NOT_SEEN(i) 0
#else
#define NOT_SEEN(i) (pkts[i] - COUNT(seen[i]))
#endif

inline cancel_in(i)
{
	if
	:: !cancel_seen[i] && IS_NEXT(i) -> begin(i, IN_EARLY); used(pkts[i])
	:: !cancel_seen[i] && (msg[i] == IN_ACTIVE || msg[i] == IN_REFUSED) ->
		used(NOT_SEEN(i));
		wrong[i] = 0;
		msg[i] = IN_DRAIN;
		if
		:: !pending[i] -> settle(i)
		:: else
		fi
	:: else
	fi;
	cancel_seen[i] = 1
}

/* A packet of message @from goes to its place in @i. It is visible when its copy ends. */
inline place_data(i, p, from)
{
	assert(i == from);				 /* bytes of another message */
	assert(msg[i] == IN_ACTIVE);			 /* it has landed, or was given up */
	assert(IN_SEGMENTS(i, (in_pieces[i] -> 2 * p : p))); /* a byte outside of its segments */
	SET(pending[i], p)
}

inline data_active(i, p, from)
{
	if
	:: !TEST(seen[i], p) -> SET(seen[i], p); place_data(i, p, from); used(1)
	:: TEST(seen[i], p) && TEST(wrong[i], p) ->
		CLEAR(wrong[i], p);
		place_data(i, p, from)
	:: else
	fi
}

#ifdef MUTANT_LIFE_IGNORED /* whatever message is at the place now */
#define OF_MID(i) last[place[i]]
#else
#define OF_MID(i) i
#endif

inline data_in(i, p)
{
	CLEAR(asked[i], p); /* its ACK says so */
	if
	:: OF_MID(i) != N && msg[OF_MID(i) % N] == IN_ACTIVE -> data_active(OF_MID(i), p, i)
	:: msg[i] == IN_REFUSED && !TEST(seen[i], p) -> SET(seen[i], p); used(1)
	:: else
	fi
}

/* reap_one(). A copy that finds wrong bytes leaves garbage, and asks for the packet. */
inline copy_end(i, p, bad)
{
	CLEAR(pending[i], p);
	grant();
	if
	:: msg[i] == IN_ACTIVE && bad -> SET(wrong[i], p); SET(resend_due[i], p)
	:: msg[i] == IN_ACTIVE && !(bad) -> SET(visible[i], p); check_landed(i)
	:: msg[i] == IN_DRAIN && !pending[i] -> settle(i)
	:: else
	fi
}

/* ---- who may do what, and when ---- */

/* Something comes out of the network. Or it comes, and comes once more later. */
#define COMES(set, p, step)                                                                          \
	:: d_step { TEST(set, p) -> CLEAR(set, p); step }                                           \
	:: d_step { TEST(set, p) && faults -> faults--; step }

#define LOST(set, p) :: d_step { TEST(set, p) && faults -> faults--; CLEAR(set, p) }

#define PACKET_STEPS(i, p)                                                                           \
	:: d_step { MUST_AGAIN(i, p) -> SET(data_fly[i], p) }                                       \
	:: d_step { TEST(data_fly[i], p) && msg[i] == IN_NONE && faults -> /* before its OPEN */    \
		faults--; CLEAR(data_fly[i], p); data_in(i, p) }                                    \
	:: d_step { TEST(data_fly[i], p) && msg[i] != IN_NONE -> CLEAR(data_fly[i], p); data_in(i, p) } \
	:: d_step { TEST(data_fly[i], p) && msg[i] != IN_NONE && faults -> faults--; data_in(i, p) } \
	LOST(data_fly[i], p)                                                                         \
	:: d_step { TEST(pending[i], p) -> copy_end(i, p, false) }                                  \
	:: d_step { TEST(pending[i], p) && !TEST(resend_due[i], p) && faults -> faults--; copy_end(i, p, true) }               \
	:: d_step { TEST(resend_due[i], p) && !TEST(resend_seen[i], p) && !TEST(resend_fly[i], p) -> \
		SET(resend_fly[i], p) }                                                             \
	COMES(resend_fly[i], p, resend_in(i, p))                                                     \
	LOST(resend_fly[i], p)

#define MESSAGE_STEPS(i)                                                                             \
	:: d_step { next_op == i && op[i] == OP_QUEUED && holder[0] == N -> start(i, 0) }           \
	SECOND_PLACE(i)                                                                              \
	:: d_step { next_op == i && op[i] == OP_FREE -> next_op++ } /* cancelled before */          \
	:: d_step { (OP_LIVE(i) || op[i] == OP_DOOMED) && !open_seen[i] && !open_fly[i] -> open_out(i) } \
	:: d_step { opened[i] && !TEST(open_fly[i], SAYS(i) - 1) && faults -> faults--; open_out(i) } \
	:: d_step { op[i] == OP_SENDING && opened[i] && credit < credit_known -> first_out(i) }     \
	:: d_step { (OP_LIVE(i) || op[i] == OP_QUEUED) && faults -> faults--; doom(i) }           \
	:: d_step { cancelled[i] && !cancel_seen[i] && !cancel_fly[i] -> cancel_fly[i] = 1 }        \
	COMES(open_fly[i], 0, open_in(i, SAYS_ALL))                                                  \
	COMES(open_fly[i], 1, open_in(i, SAYS_NEUTRAL))                                              \
	LOST(open_fly[i], 0)                                                                         \
	LOST(open_fly[i], 1)                                                                         \
	COMES(cancel_fly[i], 0, cancel_in(i))                                                        \
	LOST(cancel_fly[i], 0)                                                                       \
	:: d_step { msg[i] == IN_ACTIVE && faults -> faults--; refuse(i) } /* its memory is freed */ \
	:: d_step { msg[i] == IN_LANDED -> deliver(i) } /* there is room for a completion */        \
	:: d_step { fail_due[i] && !fail_seen[i] && !fail_fly[i] -> fail_fly[i] = 1 }               \
	COMES(fail_fly[i], 0, fail_in(i))                                                            \
	LOST(fail_fly[i], 0)                                                                         \
	PACKET_STEPS(i, 0)                                                                           \
	PACKET_STEPS(i, 1)

#if PLACES > 1
#define SECOND_PLACE(i)                                                                              \
	:: d_step { next_op == i && op[i] == OP_QUEUED && holder[0] != N && holder[1] == N -> start(i, 1) }
#define DONE_KNOWN (peer_done[0] + 2 * peer_done[1])
#else
#define SECOND_PLACE(i)
#define DONE_KNOWN peer_done[0]
#endif

/* Would an ACK say something that no ACK on its way says? */
#define ACK_NEWS(done, limit) (done_bits != (done) || granted != (limit))

inline ack_out(a)
{
	ack_fly[a] = 1;
	ack_done[a] = done_bits;
	ack_credit[a] = granted
}

inline ack_gone(a)
{
	ack_fly[a] = 0; ack_late[a] = 0; ack_done[a] = 0; ack_credit[a] = 0
}

/* The older one is gone: the younger one is the older one now. */
inline ack_shift()
{
	ack_fly[0] = ack_fly[1]; ack_late[0] = ack_late[1];
	ack_done[0] = ack_done[1]; ack_credit[0] = ack_credit[1];
	ack_gone(1)
}

#define RECS_TAKEN(i)                                                                                \
	(op[i] == OP_FREE && cancelled[i] == cancel_seen[i] && opened[i] == open_seen[i] &&          \
	 fail_due[i] == fail_seen[i] && resend_due[i] == resend_seen[i] && !pending[i])

/* What must come to pass, so that what is found right was there. */
#define IS_REACHED(nr)                                                                               \
	((nr == 1 && msg[0] == IN_EARLY) || (nr == 2 && msg[0] == IN_DRAIN && pending[0]) ||         \
	 (nr == 3 && asked[0] && data_fly[0] && op[0] == OP_SENT && ack_fly[0]) ||                   \
	 (nr == 4 && msg[0] == IN_REFUSED && pending[0] && fail_fly[0]) ||                           \
	 (nr == 5 && ack_late[0] && op[1] == OP_SENDING) ||                                          \
	 (nr == 6 && cancel_fly[0] && msg[1] == IN_ACTIVE) ||                                        \
	 (nr == 7 && data_fly[0] && msg[1] == IN_ACTIVE) || (nr == 8 && open_fly[0] == 3))

init
{
	d_step {
		holder[0] = N; last[0] = N;
#if PLACES > 1
		holder[1] = N; last[1] = N;
#endif
		granted = SLOTS; credit_known = SLOTS
	}
	do
	MESSAGE_STEPS(0)
	MESSAGE_STEPS(1)
	:: d_step { !ack_fly[0] && ACK_NEWS(DONE_KNOWN, credit_known) -> ack_out(0) }
	:: d_step { ack_fly[0] && !ack_fly[1] && ACK_NEWS(ack_done[0], ack_credit[0]) &&
			ACK_NEWS(DONE_KNOWN, credit_known) -> ack_out(1) }
	:: d_step { ack_fly[0] -> ack_in(0); ack_shift() }
	:: d_step { ack_fly[1] -> ack_in(1); ack_late[0] = 1; ack_gone(1) }
	:: d_step { ack_fly[0] && !ack_late[0] && faults -> faults--; ack_in(0); ack_late[0] = 1 }
	:: d_step { ack_fly[0] && faults -> faults--; ack_shift() }
	:: d_step { ack_fly[1] && faults -> faults--; ack_gone(1) }
#ifdef WITNESS
	:: IS_REACHED(WITNESS) -> assert(false)
#endif
	:: next_op == N && RECS_TAKEN(0) && RECS_TAKEN(1) -> break
	od;
	assert(ended[0] == 1 && ended[1] == 1);
	assert(credit == counted);
progress_end: /* it is over. For a search for circles (pan -l) only this one is progress. */
	do
	:: k = 1 - k
	od
}
