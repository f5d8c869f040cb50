/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection's congestion control: how many bytes may be under way, and when the next packet
 * may leave. No I/O, no clock, no allocation after open: time is an argument, and chance comes from
 * a seed. Owner: poll core. It knows nothing of psns: the caller names a packet by a place, which
 * is free again when the packet was acknowledged or lost.
 *
 * A controller is a table of a few functions (cc_part.h). `rate` (cc_rate.c) models the path by its
 * rate and its round trip, as BBRv3 does; `swift` (cc_swift.c) holds a target of delay. `none` is
 * no controller: there is no struct cc then.
 *
 * Bytes are those of payload and of headers, as on the wire. Rates are bytes a second.
 */
#ifndef GX_CC_H
#define GX_CC_H

#include <stdbool.h>
#include <stdint.h>

struct cc;

enum cc_kind { CC_NONE, CC_RATE, CC_SWIFT };

/* What keeps the next packet, as the caller and the controller see it. */
enum cc_limit {
	CC_BY_APP,    /* nothing waits to be sent */
	CC_BY_LINK,   /* the pacer: the rate of the path */
	CC_BY_WINDOW, /* bytes under way */
	CC_BY_CREDIT, /* the receiver */
	CC_BY_CORE,   /* this core was not turned for long, or the port had no room */
	CC_LIMITS
};

struct cc_cfg {
	enum cc_kind kind; /* not CC_NONE */
	uint32_t places;   /* of packets: power of two */
	uint32_t packet_b; /* a full packet, as on the wire */
	uint32_t hdr_b;	   /* headers of a packet, added to the length that cc_sent() gets */
	uint64_t seed;
};

int cc_open(const struct cc_cfg *cfg, struct cc **out); /* control path; 0, -ENOMEM, -EINVAL */
void cc_close(struct cc *c);
void cc_packet_set(struct cc *c, uint32_t packet_b); /* a full packet has another size now */

/* Packets of full size that may leave now, @max at most. The caller asks when something waits, in
 * each turn. */
uint32_t cc_room(struct cc *c, uint64_t now_ns, uint32_t max);
/* When cc_room() may grow by time alone; UINT64_MAX: never, for the pacer is not the limit. */
uint64_t cc_due(const struct cc *c);
/* Is there room in the window, whatever the pacer says? For small packets that come before data. */
bool cc_is_open(const struct cc *c);
/* Less than cc_room() was sent, since @why. CC_BY_APP, CC_BY_CREDIT, CC_BY_CORE. */
void cc_short(struct cc *c, uint64_t now_ns, enum cc_limit why);

/* A packet of @len payload bytes left at @now_ns, as @place. Its window may be full: probes and
 * records do not ask. Where nobody has asked since cc_short(), its sample is a limited one. */
void cc_sent(struct cc *c, uint64_t now_ns, uint32_t place, uint32_t len);
/* An acknowledgement: its lost packets, its new ones, cc_spurious() if packets that were deemed
 * lost had arrived, cc_marked() if @nr more came with a mark of congestion, and then cc_ack_end().
 * After a timer found losses, cc_ack_end() as well. */
void cc_acked(struct cc *c, uint64_t now_ns, uint32_t place);
void cc_lost(struct cc *c, uint64_t now_ns, uint32_t place);
void cc_spurious(struct cc *c, uint64_t now_ns);
void cc_marked(struct cc *c, uint32_t nr);
void cc_ack_end(struct cc *c, uint64_t now_ns);
/* All that was under way is deemed lost, by the time-out; cc_lost() has named each. */
void cc_timeout(struct cc *c, uint64_t now_ns);

struct cc_state {
	enum cc_kind kind;	/* swift turns into rate next to a stream that fills the queue */
	const char *phase;	/* of the controller */
	uint64_t in_flight_b;	/* bytes under way */
	uint32_t in_flight;	/* packets under way */
	uint64_t window_b;	/* bytes that may be */
	uint64_t pace_b_s;	/* of the pacer; 0: it does not pace */
	uint64_t rate_b_s;	/* of the path, as far as known; 0: not yet */
	uint64_t rtt_ns;	/* last sample */
	uint64_t rtt_min_ns;	/* without queues, as far as known */
	enum cc_limit limit;	/* what kept the last packet */
	uint64_t ns[CC_LIMITS]; /* time under each limit */
};
void cc_state(const struct cc *c, uint64_t now_ns, struct cc_state *out);
/* The part of it that is reported in each slow tick. */
struct cc_sums {
	uint64_t ns[CC_LIMITS], rate_b_s, rtt_ns, window_b;
	uint32_t sent_b, lost_b; /* in all, low 32 bits */
};
void cc_sums(const struct cc *c, uint64_t now_ns, struct cc_sums *out);

#endif
