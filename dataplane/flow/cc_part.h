/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a struct cc, which cc.c and the controllers share. cc.c counts what is under way,
 * takes rate samples and paces; a controller sets window_b and pace_b_s. Owner: poll core.
 */
#ifndef GX_CC_PART_H
#define GX_CC_PART_H

#include "flow/cc.h"

#include "gx_internal/base.h"

#define CC_NEVER UINT64_MAX
#define CC_MS	 1000000ull
#define CC_S	 1000000000ull

/* A packet under way, with the counts of when it left (draft-ietf-ccwg-bbr, 4.1.2.2). */
struct cc_pkt {
	uint64_t sent_ns, first_ns;	      /* when it left; the packet that began its sample */
	uint64_t delivered_ns;		      /* when the newest acknowledgement before it came */
	uint32_t sent_b, delivered_b, lost_b; /* sent, acknowledged and lost by then */
	uint32_t marked_b;		      /* acknowledged with a mark by then */
	uint32_t in_flight_b;		      /* under way, this one included */
	uint16_t len;			      /* with headers */
	bool used, limited;
};

/* Rate of a span that ends at this acknowledgement (draft-ietf-ccwg-bbr, 4.1.2.3). */
struct cc_sample {
	uint32_t acked_b, lost_b; /* by this acknowledgement */
	uint32_t marked_b;	  /* likewise */
	uint32_t prior_b;	  /* acknowledged when its newest packet left, ... */
	uint32_t prior_sent_b;	  /* ... and sent */
	uint32_t span_b;	  /* acknowledged since */
	uint32_t span_lost_b, span_marked_b;
	uint32_t in_flight_b; /* when its newest packet left */
	uint64_t rate_b_s;    /* 0: no sample */
	uint64_t rtt_ns;      /* 0: no sample */
	bool limited;	      /* the path was not the limit */
	bool any;
	uint64_t prior_ns, sent_ns, first_ns;
};

struct cc_ops {
	enum cc_kind kind;
	void (*begin)(struct cc *c, uint64_t now_ns);
	void (*sent)(struct cc *c, uint64_t now_ns); /* the first packet after nothing was out */
	void (*lost)(struct cc *c, uint64_t now_ns, const struct cc_pkt *p);
	void (*ack_end)(struct cc *c, uint64_t now_ns, const struct cc_sample *s);
	void (*timeout)(struct cc *c, uint64_t now_ns);
	void (*spurious)(struct cc *c, uint64_t now_ns);
	const char *(*phase)(const struct cc *c);
};

/* The model of BBRv3, with the names of draft-ietf-ccwg-bbr where gx has none. owner: cc_rate.c */
enum rate_phase {
	RATE_STARTUP,
	RATE_DRAIN,
	RATE_DOWN,
	RATE_CRUISE,
	RATE_REFILL,
	RATE_UP,
	RATE_RTT
};
enum rate_acks { ACKS_INIT, ACKS_REFILLING, ACKS_STARTING, ACKS_FEEDBACK, ACKS_STOPPING };

#define CC_TREND_SPANS 12

/* Does the queue grow while this connection holds still? The newest spans of rounds, each with the mean
 * time of its rounds; all zero before the first. owner: cc_rivals.c */
struct cc_trend {
	uint64_t since_ns; /* this span; 0: none has begun */
	uint64_t span_ns[CC_TREND_SPANS];
	uint32_t rounds; /* of this span */
	uint32_t spans;
	bool grows;
};

/* Acknowledgements that come in lumps. owner: cc_lumps.c */
struct cc_lumps {
	uint64_t since_ns, b; /* so much has come since then */
	uint64_t max_b[2]; /* the most above the rate, in the newest rounds and the ones before */
	uint32_t rounds;
};

struct cc_rate {
	enum rate_phase phase;
	enum rate_acks acks;
	uint32_t pace_pct, window_pct; /* gains */

	/* rate of the path: the largest of this cycle and the one before, ... */
	uint64_t max_bw[2];
	uint64_t bw_lo;			   /* ... bounded since a loss; CC_NEVER: no bound */
	uint64_t bw;			   /* the lesser of them */
	uint64_t inflight_hi, inflight_lo; /* bounds in bytes; CC_NEVER: none */

	/* the newest round's signals */
	uint64_t bw_latest;
	uint32_t inflight_latest;
	uint32_t loss_round_b; /* a loss round ends when packets sent from here on arrive */
	uint32_t loss_begin_b, loss_delivered_b; /* lost, acknowledged in all when it began */
	uint32_t loss_events;

	/* marks of congestion */
	uint32_t alpha_q;			    /* their smoothed share << RATE_Q */
	uint32_t alpha_delivered_b, alpha_marked_b; /* in all, when the round began */
	uint32_t marked_rounds;			    /* of startup, in a row */
	bool marked_in_round;

	bool loss_round_start, loss_in_round;

	uint32_t round_b; /* a round ends when packets sent from here on arrive */
	uint32_t rounds;  /* in this phase */
	bool round_start;

	/* how full is the pipe */
	uint64_t full_bw;
	uint32_t full_count;
	bool full_now, full_reached;
	uint32_t start_b; /* the window doubles for so many bytes more, whatever the rate */

	/* the cycle of probes */
	uint64_t cycle_ns, wait_ns;
	uint32_t rounds_since_probe;
	uint32_t up_rounds, up_acks_b, up_each_b;
	bool probe_samples;
	bool up_lost;	 /* the last probe met loss, or marks */
	bool up_alone;	 /* there was no queue when the last probe began, ... */
	uint32_t up_pct; /* ... and so many parts in 100 of the model's bytes were under way */
	struct cc_trend trend;
	uint32_t slow_rounds; /* in a row, with a queue and far below the rate: it has fallen */

	struct cc_lumps lumps;

	/* the round trip */
	uint64_t rtt_min_ns, rtt_stamp_ns;     /* over RATE_RTT_MIN_NS */
	uint64_t rtt_probe_ns, probe_stamp_ns; /* over RATE_RTT_PROBE_NS */
	uint64_t rtt_done_ns;
	bool rtt_expired, rtt_round_done;
	uint64_t window_before_b; /* the probe for it began */
	uint64_t window_lost_b;	  /* before the last time-out; 0: what it lost is lost */
	bool idle_restart, grown; /* grown: the window is as large as the model lets it grow */
};

/* owner: cc_swift.c */
struct cc_swift {
	uint64_t base_ns;  /* least round trip */
	uint64_t window_q; /* packets << SWIFT_Q; may be less than one */
	uint64_t cut_ns;   /* last cut */
	uint64_t full_ns;  /* delay above the target since, with cuts; 0: it is not */
	uint32_t timeouts;
};

struct cc {
	const struct cc_ops *ops;
	struct cc_pkt *pkt; /* by place */
	uint32_t mask;	    /* frozen */
	uint32_t packet_b;
	uint32_t hdr_b;
	uint64_t rng;

	/* under way */
	uint64_t in_flight_b;
	uint32_t in_flight;

	/* sums, modulo 2^32 */
	uint32_t delivered_b, lost_b, sent_b;
	uint64_t delivered_ns, first_ns;
	bool limited; /* until packets are acknowledged that left after the first limited_b bytes */
	uint32_t limited_b;
	/* Likewise a sum, apart from the others: four in a row are read as one, just after one of them
	 * was written, which waits for the write. */
	uint32_t marked_b;
	uint64_t gap_ns; /* packets sent up to here have seen a core without CPU */

	/* set by the controller */
	uint64_t window_b;
	uint64_t pace_b_s; /* 0: no pacing */
	bool at_window;	   /* the window was the limit in this round or in the last one */
	bool at_window_now;

	/* pacer */
	uint64_t byte_ns_q; /* ns for a byte << CC_Q */
	uint64_t next_ns;   /* when the next packet may leave */
	uint64_t debt_ns;   /* so late it may be, as of the last cc_room() */
	uint64_t asked_ns;  /* last cc_room(); 0: nothing waits */
	bool held;	    /* by the pacer, then */

	enum cc_limit limit;
	uint64_t limit_ns, limit_sum_ns[CC_LIMITS];

	struct cc_sample sample;
	uint64_t rtt_ns, rtt_min_ns;
	struct cc_rate rate;
	struct cc_swift swift;
};

/* A round has ended. */
void cc_trend_look(struct cc_trend *t, uint64_t now_ns, uint64_t rtt_min_ns);
/* So long takes cubic to have a window of so many packets again after a loss. */
uint64_t cc_regrow_ns(uint64_t pkts, uint64_t rtt_ns);

void cc_lumps_look(struct cc_lumps *l, const struct cc *c, uint64_t now_ns, uint32_t acked_b);
uint64_t cc_lumps_b(const struct cc_lumps *l); /* that were under way without a queue */

extern const struct cc_ops cc_rate_ops, cc_swift_ops;

/* Bytes that a rate carries in a time. */
static inline uint64_t cc_bytes(uint64_t b_s, uint64_t ns)
{
	return b_s / 1000 * GX_MIN(ns, 10 * CC_S) / 1000000;
}

uint64_t cc_random(struct cc *c, uint64_t below);
void cc_pace(struct cc *c, uint64_t b_s); /* sets the pacer */
void cc_limited(struct cc *c);		  /* samples of what is under way are limited */

#endif
