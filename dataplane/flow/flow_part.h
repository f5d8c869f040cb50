/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a struct flow, which its sender (flow.c) and its receiver (flow_rx.c) share. Owner:
 * poll core.
 *
 * Inside, a packet has a seq: its psn less the first psn. So seqs start at 0 and never wrap.
 * Bitmaps over seqs are rings that run backwards (bit -seq), as the words of an ACK do. So one
 * shift compares 64 packets, whatever the largest psn of the ACK is.
 */
#ifndef GX_FLOW_PART_H
#define GX_FLOW_PART_H

#include "flow/flow.h"

#include "gx_internal/base.h"

#define FLOW_NEVER    UINT64_MAX
#define FLOW_ACK_SPAN (64 * GX_WIRE_ACK_WORDS) /* psns that one ACK can tell about */

/* Slots, in the order in which their packets were acknowledged or lost. */
struct flow_queue {
	uint32_t head, tail; /* free running; head - tail are waiting */
	uint32_t *slot;
};

/* Packets that left by one half of the port. The halves share seqs and nothing else: each has queues
 * of its own, so the order of packets says something only within a half. */
struct flow_half {
	uint64_t *out;	 /* bitmap: under way */
	uint32_t nr_out; /* bits set in it */
	uint64_t low;	 /* nr_out > 0: the oldest of them */
	uint64_t hi; /* 1 + largest seq that was ever acknowledged; rack_rtt_ns is its packet's */
	uint64_t rack_rtt_ns;
	uint64_t rto_since_ns, probe_since_ns;
	uint32_t backoff, nr_probes;
};

/* owner: poll core */
struct flow {
	/* sender */
	uint64_t tx_first;		    /* psn of seq 0; frozen */
	uint64_t tx_next;		    /* seq of the next packet */
	struct flow_half half[FLOW_HALVES]; /* enum gx_half; lossless: the first one alone */
	uint64_t hi;			    /* 1 + largest seq that was ever acknowledged */
	uint64_t held_low; /* no packet below it waits in either queue; FLOW_NEVER: none waits */
	uint32_t window;   /* frozen */
	uint32_t mask;	   /* 2 * window - 1: slots; lost packets stay known for a window. frozen */
	uint32_t nr_lost;  /* bits set in lost */
	uint32_t tx_limit, tx_used; /* credit, cumulative */
	uint64_t *lost;	       /* bitmap: deemed lost; an ACK of one shows that this was wrong */
	struct flow_pkt *sent; /* at the slot of its psn */
	struct flow_queue acked_q, lost_q;
	struct flow_queue late_q; /* were in lost_q, and had arrived */
	uint64_t nr_spurious;
	uint32_t tx_marks;	/* marked packets, as ACKs reported them, cumulative */
	bool lossless, ordered; /* frozen */

	/* sender's clock */
	uint64_t srtt_ns, rttvar_ns, rtt_min_ns; /* srtt 0: no sample yet */
	uint64_t reo_ns;			 /* window of reordering */
	uint32_t reo_shift, reo_rounds;
	uint64_t reo_seq;   /* it may grow again by packets from here on: once a round trip */
	uint64_t loss_seq;  /* a loss of packets from here on is a new round */
	uint64_t late_seq;  /* up to here, later packets came before earlier ones of late */
	uint64_t news_ns;   /* an ACK said something new */
	uint64_t age_ns[2]; /* longest time to an ACK, in this span of time and the one before */
	uint64_t age_since_ns;
	uint64_t rto_min_ns; /* frozen */

	/* receiver */
	uint64_t rx_first;   /* psn of seq 0; frozen */
	uint64_t rx_next;    /* 1 + largest seq received; 0: nothing yet */
	uint64_t rx_skipped; /* packets below it that the peer never sent: it left out numbers */
	uint64_t rx_max_ns;  /* when that packet came */
	uint64_t *rx;	     /* bitmap: received, of the last rx_mask + 1 */
	uint32_t rx_mask;    /* frozen */
	uint32_t rx_limit, rx_used; /* credit given, cumulative */
	uint64_t ack_low; /* oldest packet that no ACK has reported; counts when nr_unacked > 0 */
	uint32_t nr_unacked; /* received since the last ACK */
	uint32_t ack_every;  /* frozen */
	bool ack_want;
	uint64_t ack_ns, ack_due_ns; /* last one built; next one due by time */
	uint64_t ack_delay_ns;	     /* frozen */
	uint32_t rx_marks;	     /* packets that came marked, cumulative */
};

/* ---- Bitmaps that run backwards. @mask: bits - 1, bits a power of two of at least 128 ---- */

static inline uint32_t bit_of(uint64_t seq, uint32_t mask)
{
	return (0 - (uint32_t)seq) & mask;
}

/* Return: bit i is that of seq - i. */
static inline uint64_t bits_get(const uint64_t *bits, uint32_t mask, uint64_t seq)
{
	uint32_t bit = bit_of(seq, mask), next = (bit + 64) & mask;

	return bits[bit >> 6] >> (bit & 63) | (bits[next >> 6] << 1) << (63 - (bit & 63));
}

static inline void bits_clear(uint64_t *bits, uint32_t mask, uint64_t seq, uint64_t which)
{
	uint32_t bit = bit_of(seq, mask), next = (bit + 64) & mask;

	bits[bit >> 6] &= ~(which << (bit & 63));
	bits[next >> 6] &= ~((which >> 1) >> (63 - (bit & 63)));
}

static inline bool bits_test(const uint64_t *bits, uint32_t mask, uint64_t seq)
{
	uint32_t bit = bit_of(seq, mask);

	return bits[bit >> 6] >> (bit & 63) & 1;
}

static inline void bits_set(uint64_t *bits, uint32_t mask, uint64_t seq)
{
	uint32_t bit = bit_of(seq, mask);

	bits[bit >> 6] |= 1ull << (bit & 63);
}

/* Return: the first seq from @seq on whose bit is set, @end when there is none before it. */
static inline uint64_t bits_next(const uint64_t *bits, uint32_t mask, uint64_t seq, uint64_t end)
{
	while (seq < end) {
		uint32_t bit = bit_of(seq, mask);
		uint64_t here = bits[bit >> 6] << (63 - (bit & 63));

		if (here)
			return GX_MIN(seq + (uint32_t)__builtin_clzll(here), end);
		seq += (bit & 63) + 1;
	}
	return end;
}

#endif
