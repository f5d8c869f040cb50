/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One direction of a narrow path, as a function of time and a seed: a queue, a link that serves it
 * at a rate, and what befalls packets behind the link. It holds no packet and reads no clock: the
 * caller gives each packet's arrival, in order, and is told its fate. So it serves the bottleneck,
 * which carries real packets, and tests in virtual time alike.
 *
 * A packet waits in the queue, leaves it when its first bit is served, and leaves the link with its
 * last one. Behind the link it may be lost, held back, doubled or damaged; so a lost packet has
 * used the link. Each kind of mishap has random numbers of its own, one for each packet that
 * arrives: the n-th packet's mishaps depend on the seed and on n, not on what else is on.
 */
#ifndef WAY_H
#define WAY_H

#include <stdbool.h>
#include <stdint.h>

#define WAY_RATES 8   /* rates that take turns, at most */
#define WAY_BINS  512 /* of the histogram of the queue */

/* ppm: of 1,000,000 packets. All zero but a rate: a link without mishaps, and no queue before it. */
struct way_cfg {
	uint64_t seed;
	uint64_t rate_bps[WAY_RATES]; /* each for step_ns, then the first again; the first: not 0 */
	unsigned nr_rates;	      /* 1: always the same */
	uint64_t step_ns;	      /* with several rates: not 0 */
	uint64_t delay_ns;	      /* behind the link */
	uint64_t queue_b;   /* that wait, beside the packet being served; more are dropped */
	uint64_t bucket_b;  /* tokens of a bucket that fills at the rate: so many bytes pass at once
			       after a pause; 0: none do */
	uint64_t mark_b;    /* ECN: a capable packet that finds more in the queue is marked; 0: none
			       is */
	uint32_t loss_ppm;  /* at random, each packet by itself */
	uint32_t burst_ppm; /* a burst of loss begins at a packet ... */
	uint32_t burst_len; /* ... and takes so many packets on average, geometrically; 0 is 1 */
	uint32_t late_ppm;  /* held back behind the link ... */
	uint64_t late_ns;   /* ... for so long, so that others overtake it */
	uint32_t dup_ppm, corrupt_ppm;
	uint64_t on_ns, off_ns; /* black-outs: what leaves the link in the off part is lost; 0, 0:
				   none */
};

enum way_drop { WAY_PASSES, WAY_QUEUE_FULL, WAY_LOST, WAY_BURST, WAY_DARK };

struct way_fate {
	enum way_drop drop; /* unless WAY_PASSES, nothing else is valid */
	uint64_t due_ns;    /* when it comes out */
	bool mark, dup, late;
	bool corrupt;
	uint32_t bit; /* random: which bit is damaged */
};

struct way_counts {
	uint64_t packets, bytes;     /* arrived */
	uint64_t passed, passed_b;   /* came out, doubles not counted */
	uint64_t drop[WAY_DARK + 1]; /* by enum way_drop */
	uint64_t marks, dups, lates, corrupts;
};

/* A packet that waits: when the link begins with it. */
struct way_wait {
	uint64_t start_ns;
	uint32_t len_b;
};

struct way {
	struct way_cfg cfg;
	double cycle_bits; /* that all rates serve, one after the other */
	double served;	   /* bits that the link will have served when all that came is through */
	uint64_t rng[5];
	bool in_burst; /* the next packet is lost, too */
	struct way_wait *wait;
	uint32_t head, tail, mask; /* of the ring wait */
	uint64_t queued_b;
	struct way_counts n;
	/* The queue over time: */
	uint64_t since_ns, seen_ns;
	double area;		/* bytes x ns */
	uint64_t bin[WAY_BINS]; /* ns, by bytes waiting over bin_b */
	uint64_t bin_b, queue_max_b;
};

/** way_open() - Time begins at 0. Return: 0, -EINVAL, -ENOMEM. */
int way_open(struct way *w, const struct way_cfg *cfg);
void way_close(struct way *w);

/** way_take() - A packet of @len_b bytes arrives at @now_ns, no earlier than the one before.
 * @ect: it is ECN capable. */
struct way_fate way_take(struct way *w, uint64_t now_ns, uint32_t len_b, bool ect);

/** way_pass() - Time passes; brings the figures of the queue up to @now_ns. */
void way_pass(struct way *w, uint64_t now_ns);
/** way_count_anew() - Counters and figures of the queue begin at @now_ns. */
void way_count_anew(struct way *w, uint64_t now_ns);

double way_queue_mean_b(const struct way *w);
/** way_queue_p_b() - Bytes that waited at most for @part (0 to 1) of the time; rounded up by one
 * part in WAY_BINS of the queue. */
uint64_t way_queue_p_b(const struct way *w, double part);

/** way_bits() - Bits that the link can have served by @now_ns. */
double way_bits(const struct way *w, uint64_t now_ns);

#endif
