/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Senders with congestion control over one narrow way (net_way.h), in virtual time: flow.c, pace.c
 * and cc.c as they are shipped. Each sender has a receiver behind the way; acknowledgements come
 * back after a delay. After each event the rig asserts that the controller counts
 * under way what is under way. A run is a function of its seed.
 */
#ifndef CC_RIG_H
#define CC_RIG_H

#include "net/net_way.h"
#include "flow/pace.h"
#include "flow/paths.h"

#define RIG_SENDERS 64
#define RIG_HDR_B   60 /* of a packet, as on the wire */
#define RIG_MS	    1000000ull
#define RIG_S	    1000000000ull

/* What a sender does. */
struct rig_sender_cfg {
	enum cc_kind kind;
	bool cubic;		/* with kind CC_NONE: as the kernel's TCP has it, not gx */
	uint32_t cubic_slow;	/* its slow start ends at so many packets; 0: by what it meets */
	uint32_t payload_b;	/* of a packet */
	uint64_t rtt_ns;	/* without queues */
	uint64_t start_ns;	/* it begins to send, ... */
	uint64_t stop_ns;	/* ... and stops; 0: never */
	uint64_t total_b;	/* to send; 0: without end */
	uint64_t app_b_s;	/* the application makes so much; 0: enough */
	uint32_t credit;	/* packets that the receiver allows under way, ... */
	uint64_t credit_ns;	/* ... until then; 0: always */
	uint64_t on_ns, off_ns; /* the core runs, then does not; 0, 0: it always does */
	uint64_t slice_ns; /* others use the CPUs of both ends: of so long slices of time, ... */
	uint32_t tx_off_pct, rx_off_pct; /* ... chosen by the seed, so many in 100 are theirs */
	uint32_t ack_every;
	uint32_t
		ack_late_pct; /* so many acknowledgements in 100, chosen by the seed, are a round trip
				  late */
	uint32_t ack_lost_pct; /* likewise, are lost */
	uint32_t
		lie; /* its receiver says so many marked packets more with each acknowledgement, whatever
			 came; 0: the truth */
};

/* Several paths instead of one: a way each, of which data takes spread at a time. What leaves by a dead
 * one is lost. */
struct rig_paths_cfg {
	unsigned nr, spread;
	struct way_cfg way[GX_PATHS_MAX];
	struct {
		uint64_t from_ns, to_ns;
	} dead[GX_PATHS_MAX];
};

/* RFC 9438, and the delay that ends slow start in Linux (tcp_cubic.c: hystart_update). Packets. */
struct rig_cubic {
	double window, slow, before, estimate; /* slow: up to here it doubles */
	uint64_t cut_ns, rtt_min_ns;
};

struct rig_sender {
	struct rig_sender_cfg cfg;
	struct rig_cubic cubic;
	struct flow *tx, *rx;
	struct pace pace;
	struct paths *paths; /* NULL: one way */
	unsigned by[2];	     /* enum gx_half: the path of the next packets */
	uint64_t first_ns[GX_PATHS_MAX],
		data_ns[GX_PATHS_MAX]; /* first and last data sent by each */
	uint64_t out_b;		       /* under way, as the rig counts */
	uint64_t next, resent;	       /* first transmissions; resends */
	uint64_t got, got_b, late;     /* contents that came once; since rig_count_anew() */
	uint64_t first_got_ns, done_ns;
	uint64_t last_gap_ns, got_ns; /* longest time without a new packet; last one */
	uint64_t timer_ns;
	uint32_t *again;
	uint32_t again_head, again_tail;
	uint64_t *seen; /* bitmap of contents that came */
	uint32_t credit_out;
	uint32_t lied;
	uint64_t app_used_b;
	bool asked, known; /* a probe went out, and came back: as path.c has it */
};

struct rig {
	struct way way;		       /* path 0 */
	struct way more[GX_PATHS_MAX]; /* with several paths: the others, at their number */
	struct rig_paths_cfg paths;
	struct rig_sender s[RIG_SENDERS];
	unsigned nr;
	uint64_t now_ns, since_ns, seed;
	struct rig_event *heap;
	size_t nr_events, cap_events;
	uint64_t nr_made;
	uint64_t hash; /* of everything that happened */
};

void rig_open(struct rig *r, const struct way_cfg *way, const struct rig_sender_cfg *s, unsigned nr,
	      uint64_t seed);
void rig_paths(struct rig *r, const struct rig_paths_cfg *cfg); /* after rig_open() */
void rig_close(struct rig *r);
void rig_run(struct rig *r, uint64_t until_ns);
void rig_count_anew(struct rig *r);
double rig_b_s(const struct rig *r, unsigned i); /* payload that came, since rig_count_anew() */
/* Part of the payload that a link carries, of all senders. */
double rig_part(const struct rig *r, double link_bps);
double rig_jain(const struct rig *r);

#endif
