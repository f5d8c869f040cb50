/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection's sequence numbers, acknowledgement, credit and loss detection. No I/O, no clock,
 * no allocation after open: time is an argument. Owner: poll core. It knows nothing of messages:
 * the caller describes a packet by (ref, pkt), and gets that back when the packet is acknowledged
 * or lost.
 */
#ifndef GX_FLOW_H
#define GX_FLOW_H

#include "gx_internal/wire.h"

#define FLOW_WINDOW_MAX 32768

struct flow;

/* A packet that was sent. The caller gives ref, pkt and kind their meaning. */
struct flow_pkt {
	uint64_t sent_ns;
	uint32_t ref;	/* the caller's message or record batch */
	uint32_t pkt;	/* the caller's packet number */
	uint16_t len;	/* payload bytes */
	uint8_t kind;	/* the caller's; 0 is reserved for flow */
	uint8_t resend; /* the packet is a resend */
	uint8_t half;	/* enum gx_half: it leaves by this one */
	uint8_t late;	/* flow_next_acked() alone: it was handed out as lost before */
};

struct flow_cfg {
	uint32_t window;    /* packets outstanding at most: power of two, 64 to FLOW_WINDOW_MAX */
	bool lossless;	    /* no RACK, no RTO: only acknowledgement and credit */
	bool ordered;	    /* no reordering expected: ACK only every ack_every or at ack-now */
	uint64_t tx_psn;    /* first psn to send */
	uint64_t rx_psn;    /* first psn to expect */
	uint32_t tx_credit; /* first transmissions of DATA that the peer allows at the start */
	uint32_t rx_credit; /* the same, which we allow the peer */
	uint32_t ack_every; /* packets; 0: 16 */
	uint64_t ack_delay_ns; /* 0: 8,000 */
	uint64_t rto_min_ns;   /* 0: 500,000 */
};

int flow_open(const struct flow_cfg *cfg,
	      struct flow **out); /* control path; 0, -ENOMEM, -EINVAL */
void flow_close(struct flow *f);

/* -- sender -- */

/* Packets that may go out now (room in the window of outstanding psns). */
uint32_t flow_room(const struct flow *f);
/* First transmissions of DATA that credit allows; flow_credit_use() takes @n of them. */
uint32_t flow_credit(const struct flow *f);
void flow_credit_use(struct flow *f, uint32_t n);
/* Remember that @p goes out. flow_room() must be > 0. Returns its 64-bit psn. */
uint64_t flow_sent(struct flow *f, uint64_t now_ns, const struct flow_pkt *p);
/* Take an ACK. Taking it twice does no harm, and a stale one changes nothing. Return: 0, -EPROTO
 * for psns that were never sent. */
int flow_ack(struct flow *f, uint64_t now_ns, const struct gx_wire_ack *ack);
/* Then take out the packets that it acknowledged, and those deemed lost, until false. The flow
 * forgets a lost packet: the caller sends its content again with a new psn (resend = 1), or drops
 * it. If the peer acknowledges it after all, flow_next_acked() hands it out, too, as late: what has not
 * gone again need not. */
bool flow_next_acked(struct flow *f, struct flow_pkt *p);
bool flow_next_lost(struct flow *f, struct flow_pkt *p);
/* Packets of flow_next_lost() that the peer acknowledged after all (spurious losses), cumulative.
 */
uint64_t flow_spurious(const struct flow *f);
/* Packets that the peer says came with a mark of congestion (ECN), cumulative, low 32 bits. It may
 * say anything. */
uint32_t flow_marks(const struct flow *f);
/* For congestion control, which names a packet by its place, below twice the window: psns given out
 * so far; the packet at a place; places of packets that wait in flow_next_acked() and
 * flow_next_lost(), from @i = 0 on, FLOW_NO_PLACE at the end. */
#define FLOW_NO_PLACE UINT32_MAX
uint64_t flow_nr_sent(const struct flow *f);
const struct flow_pkt *flow_at(const struct flow *f, uint64_t place);
uint32_t flow_acked_place(const struct flow *f, uint32_t i);
uint32_t flow_lost_place(const struct flow *f, uint32_t i);
/* Timers of each half: RACK, tail probe, RTO. FLOW_PROBE << half: send a PROBE by that half, and say so
 * by flow_sent(). FLOW_RTO: and for as long nothing at all was acknowledged. flow_next_lost() has the
 * lost packets. */
#define FLOW_HALVES 2
enum { FLOW_PROBE = 1, FLOW_RTO = 1 << FLOW_HALVES };
unsigned flow_tick(struct flow *f, uint64_t now_ns);
/* Earliest time at which flow_tick() has work, UINT64_MAX for never. */
uint64_t flow_due(const struct flow *f);
uint32_t flow_outstanding(const struct flow *f);
uint64_t flow_srtt_ns(const struct flow *f); /* 0: no sample */
uint64_t flow_pto_ns(const struct flow *f);  /* a packet or its ACK that takes longer is lost */
/* Of late, packets were lost or came after later ones, by more than a quarter of a round trip. */
bool flow_is_uneven(const struct flow *f);

/* -- receiver -- */

enum flow_rx { FLOW_RX_NEW, FLOW_RX_DUP, FLOW_RX_OLD };
/* Is this psn a new one (32 bits of the header, expanded here)? Nothing changes, so a packet that
 * is dropped for another reason stays unacknowledged. */
enum flow_rx flow_rx_look(const struct flow *f, uint32_t psn);
/* The packet was accepted: remember it, and acknowledge it later; @ack_now: at the next chance. */
void flow_rx_take(struct flow *f, uint64_t now_ns, uint32_t psn, bool ack_now);
/* It came with a mark of congestion. */
void flow_rx_marked(struct flow *f);
/* A duplicate means that the peer misses our ACK: send one soon. */
void flow_rx_again(struct flow *f, uint64_t now_ns);
/* Should an ACK go out now? flow_ack_want() asks for one at the next chance (done moved, credit
 * grew). */
bool flow_ack_due(const struct flow *f, uint64_t now_ns);
void flow_ack_want(struct flow *f);
/* When flow_ack_due() may turn true by time alone; UINT64_MAX: never. */
uint64_t flow_ack_due_ns(const struct flow *f);
/* Fill largest, delay, words, credit, marks; the caller fills done. No ACK is due afterwards. Return:
 * false when no packet was ever received (then there is no ACK to build). */
bool flow_ack_build(struct flow *f, uint64_t now_ns, struct gx_wire_ack *ack);

/* Grant credit. @need: DATA packets declared and not yet received. @free: bounce buffers free for
 * this peer. Return: how much the grant grew: max(min(@need + 8, @free) - outstanding credit, 0).
 */
uint32_t flow_grant(struct flow *f, uint32_t need, uint32_t free);
/* @n first transmissions arrived (each unique DATA packet once), or a CANCEL declared them sent.
 * They make room for grants. */
void flow_grant_used(struct flow *f, uint32_t n);
/* Credit that the peer holds and has not used. Buffers must stay posted for it. */
uint32_t flow_granted(const struct flow *f);
/* What is reported of a flow now and then. */
struct flow_sums {
	uint64_t tx_pkts; /* flow_nr_sent() */
	uint64_t rx_pkts; /* that the peer has numbered up to the last one that came, less jumps */
	uint64_t srtt_ns;
	uint32_t rx_data; /* flow_used() */
};
void flow_sums(const struct flow *f, struct flow_sums *out);
/* Credit that the peer has used in all, low 32 bits. */
uint32_t flow_used(const struct flow *f);

#endif
