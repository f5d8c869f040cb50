/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controller `rate`: a model of the path by its rate and its least round trip, after BBRv3
 * (draft-ietf-ccwg-bbr-05, whose sections are named below). It probes for more rate in a cycle, DOWN,
 * CRUISE, REFILL, UP, and for the least round trip every few seconds. Runs on the polling core.
 * Marked `gx:`: what gx does otherwise, with the reason.
 */
#include "flow/cc_part.h"

/* Gains in percent (2.4, 5.1, 5.3.3). */
#define RATE_STARTUP_PACE 277
#define RATE_DRAIN_PACE	  35
#define RATE_DOWN_PACE	  90
#define RATE_UP_PACE	  125
#define RATE_WINDOW	  200
#define RATE_UP_WINDOW	  225
#define RATE_RTT_WINDOW	  50
#define RATE_MARGIN_PACE  99  /* pacing margin 1 % (2.4) */
#define RATE_FULL_GROWTH  125 /* startup: the rate grows by a quarter a round ... */
#define RATE_FULL_ROUNDS  3   /* ... or the pipe is full after so many (5.3.1.2) */
#define RATE_LOSS_PCT	  2   /* of a round trip's bytes: too much under way (2.7) */
#define RATE_LOSS_PKTS	  3 /* gx: and so many packets, or a few under way meet chance for a queue */
#define RATE_LOSS_EVENTS  6  /* in a round of startup (5.3.1.3) */
#define RATE_BETA_PCT	  70 /* bounds after a loss (2.7) */
/* Marks of congestion: the draft names no answer (3.7); these are those of Linux's BBRv3
 * (net/ipv4/tcp_bbr.c of github.com/google/bbr, branch v3: bbr_ecn_*). gx: at any round trip, not up
 * to 5 ms alone, because whoever sends packets that may be marked must heed the marks. */
#define RATE_Q		  10 /* fraction bits of a share */
#define RATE_ONE	  (1u << RATE_Q)
#define RATE_MARK_SHIFT	  4  /* a round counts a 16th of the smoothed share ... */
#define RATE_MARK_CUT	  3  /* ... by a third of which inflight_lo shrinks */
#define RATE_MARK_PCT	  50 /* of what is reported: too much under way */
#define RATE_MARK_ROUNDS  2  /* of startup above it: the pipe is full */
#define RATE_HEADROOM_PCT 85 /* of inflight_hi while cruising (2.7), ... */
#define RATE_YIELD_PCT	  70 /* gx: ... with others: what cubic keeps after a loss (RFC 9438, 4.6) */
#define RATE_MIN_PKTS	  4  /* window (2.9) */
#define RATE_RENO_ROUNDS  63 /* between probes at most (5.3.3.5.1) */
#define RATE_FEW_ROUNDS	  16 /* gx: and at least, or a path of few packets would always be probing */
#define RATE_WAIT_NS	  (2 * CC_S)	/* the same in time, and a random second more */
#define RATE_RTT_MIN_NS	  (10 * CC_S)	/* filter of the least round trip (2.13.1) */
#define RATE_RTT_PROBE_NS (5 * CC_S)	/* between probes for it (2.13.2) */
#define RATE_RTT_NS	  (200 * CC_MS) /* such a probe takes so long at most */
#define RATE_RTT_TIMES	  10 /* gx: or so many round trips: at 20 us 200 ms were 10,000 of them */
#define RATE_START_NS	  (75 * CC_MS) /* gx: a first window for each such part of the round trip, */
#define RATE_START_TIMES  8	       /* gx: at most */
#define RATE_SLOW_PCT	  70	       /* gx: below this part of the rate, with a queue, ... */
#define RATE_SLOW_ROUNDS  4	       /* gx: ... in so many rounds in a row, the rate has fallen */
#define RATE_ALONE_PCT	  110	       /* gx: below this part of it there is none */
#define RATE_DRAIN_ROUNDS 4   /* gx: after a probe a quarter of a queue is drained in so many */
#define RATE_QUEUE_PCT	  125 /* gx: a round trip above this part of the least one has a queue */

static uint64_t percent(uint64_t of, uint32_t pct)
{
	return of / 100 * pct + of % 100 * pct / 100;
}

static bool is_probing(const struct cc_rate *r)
{
	return r->phase == RATE_STARTUP || r->phase == RATE_REFILL || r->phase == RATE_UP;
}

static bool in_cycle(const struct cc_rate *r)
{
	return r->phase >= RATE_DOWN && r->phase <= RATE_UP;
}

/* Beside others a probe's queue is never gone, so that DOWN lasts until the next probe. */
static bool holds_still(const struct cc_rate *r)
{
	return r->phase == RATE_CRUISE || (r->phase == RATE_DOWN && r->rounds >= RATE_DRAIN_ROUNDS);
}

static uint64_t max_bw(const struct cc_rate *r)
{
	return GX_MAX(r->max_bw[0], r->max_bw[1]);
}

/* ---- Windows from the model (5.6.4) ---- */

static uint64_t window_min(const struct cc *c)
{
	return (uint64_t)RATE_MIN_PKTS * c->packet_b;
}

static uint64_t bdp(const struct cc *c, uint64_t b_s, uint32_t pct)
{
	const struct cc_rate *r = &c->rate;

	if (r->rtt_min_ns == CC_NEVER)
		return c->window_b;
	return percent(cc_bytes(b_s, r->rtt_min_ns), pct);
}

/* A turn of the core sends so much at once. The model's window must hold some of it besides. */
static uint64_t burst_b(const struct cc *c)
{
	return GX_MAX(GX_MIN(cc_bytes(c->pace_b_s, CC_MS), 65536ull), 2ull * c->packet_b);
}

static uint64_t inflight_of(const struct cc *c, uint64_t b_s, uint32_t pct)
{
	uint64_t b = GX_MAX(bdp(c, b_s, pct) + c->packet_b, window_min(c));

	return c->rate.phase == RATE_UP ? b + 2ull * c->packet_b : b;
}

/* gx: a probe next to others ends when they have lost packets, too. Cubic keeps 0.7 of its window; 0.85
 * would take the rest from it, probe by probe. Alone the model's bytes and lumps are not cut: after a
 * start that a queue of a quarter ended, a sixth of the link would be idle until the next probe. */
static uint64_t inflight_headroom(const struct cc *c)
{
	const struct cc_rate *r = &c->rate;
	uint32_t pct = r->up_alone ? RATE_HEADROOM_PCT : RATE_YIELD_PCT;
	uint64_t least = window_min(c);

	if (r->up_alone)
		least = inflight_of(c, max_bw(r), 100) + cc_lumps_b(&r->lumps);
	if (r->inflight_hi == CC_NEVER)
		return CC_NEVER;
	return GX_MAX(GX_MIN(percent(r->inflight_hi, pct), r->inflight_hi - c->packet_b), least);
}

static uint64_t inflight_target(const struct cc *c)
{
	return GX_MIN(bdp(c, c->rate.bw, 100), c->window_b);
}

/* ---- Phases ---- */

static void round_begin(struct cc *c)
{
	c->rate.round_b = c->sent_b;
}

static void full_reset(struct cc_rate *r, uint64_t rate_b_s)
{
	r->full_bw = rate_b_s;
	r->full_count = 0;
	r->full_now = false;
}

static void phase_set(struct cc *c, enum rate_phase phase)
{
	static const struct {
		uint32_t pace, window;
	} gain[] = {[RATE_STARTUP] = {RATE_STARTUP_PACE, RATE_WINDOW},
		    [RATE_DRAIN] = {RATE_DRAIN_PACE, RATE_WINDOW},
		    [RATE_DOWN] = {RATE_DOWN_PACE, RATE_WINDOW},
		    [RATE_CRUISE] = {100, RATE_WINDOW},
		    [RATE_REFILL] = {100, RATE_WINDOW},
		    [RATE_UP] = {RATE_UP_PACE, RATE_UP_WINDOW},
		    [RATE_RTT] = {100, RATE_RTT_WINDOW}};
	struct cc_rate *r = &c->rate;

	r->phase = phase;
	r->pace_pct = gain[phase].pace;
	r->window_pct = gain[phase].window;
	r->rounds = 0;
}

static void lower_reset(struct cc_rate *r)
{
	r->bw_lo = r->inflight_lo = CC_NEVER;
}

static void down_start(struct cc *c, uint64_t now_ns)
{
	struct cc_rate *r = &c->rate;

	r->loss_in_round = r->marked_in_round = false;
	r->bw_latest = r->inflight_latest = 0;
	r->up_each_b = UINT32_MAX;
	r->rounds_since_probe = (uint32_t)cc_random(c, 2);
	r->wait_ns = RATE_WAIT_NS + cc_random(c, CC_S);
	r->cycle_ns = now_ns;
	r->acks = ACKS_STOPPING;
	round_begin(c);
	phase_set(c, RATE_DOWN);
}

static void refill_start(struct cc *c)
{
	struct cc_rate *r = &c->rate;

	lower_reset(r);
	r->up_rounds = r->up_acks_b = 0;
	r->acks = ACKS_REFILLING;
	round_begin(c);
	phase_set(c, RATE_REFILL);
}

/* The slope of inflight_hi doubles each round (5.3.3.6). */
static void up_raise_slope(struct cc *c)
{
	struct cc_rate *r = &c->rate;
	uint64_t growth = 1ull << r->up_rounds;

	r->up_rounds = GX_MIN(r->up_rounds + 1, 30u);
	r->up_each_b = (uint32_t)GX_MAX(c->window_b / growth, (uint64_t)c->packet_b);
}

static void up_start(struct cc *c, uint64_t now_ns, const struct cc_sample *s)
{
	struct cc_rate *r = &c->rate;

	r->acks = ACKS_STARTING;
	round_begin(c);
	full_reset(r, s->rate_b_s);
	r->cycle_ns = now_ns;
	r->up_alone = s->rtt_ns < percent(r->rtt_min_ns, RATE_ALONE_PCT);
	r->up_lost = false;
	r->up_pct = (uint32_t)(c->in_flight_b * 100 / inflight_of(c, max_bw(r), 100));
	phase_set(c, RATE_UP);
	up_raise_slope(c);
}

/* gx: next to others whose windows grow the next probe waits, or cubic would lose again before it has
 * what it had. At 1 Gb/s and 10 ms that takes 9 s, not 63 round trips. Connections of gx become equal
 * the faster for probing. Who met no queue and no loss is alone, and his packets come late. */
static bool others_grow(const struct cc *c, uint64_t now_ns)
{
	const struct cc_rate *r = &c->rate;
	uint64_t b;

	if (!r->trend.grows || (r->up_alone && !r->up_lost))
		return false;
	b = GX_MIN(r->inflight_hi, bdp(c, max_bw(r), RATE_WINDOW));
	return now_ns < r->cycle_ns + cc_regrow_ns(b / c->packet_b, c->rtt_ns);
}

static bool is_time_to_probe(struct cc *c, uint64_t now_ns)
{
	struct cc_rate *r = &c->rate;
	uint64_t rounds = GX_MAX(inflight_target(c) / c->packet_b, (uint64_t)RATE_FEW_ROUNDS);

	if (others_grow(c, now_ns))
		return false;
	if (now_ns < r->cycle_ns + r->wait_ns &&
	    r->rounds_since_probe < GX_MIN(rounds, (uint64_t)RATE_RENO_ROUNDS))
		return false;
	refill_start(c);
	return true;
}

/* gx: where packets come late, more than the model's are under way without a queue. After the rounds
 * that drain a probe's queue the round trip shows it. */
static bool is_time_to_cruise(const struct cc *c)
{
	const struct cc_rate *r = &c->rate;

	if (c->in_flight_b > inflight_headroom(c))
		return false;
	if (c->in_flight_b <= inflight_of(c, max_bw(r), 100))
		return true;
	return r->rounds >= RATE_DRAIN_ROUNDS && c->rtt_ns < percent(r->rtt_min_ns, RATE_ALONE_PCT);
}

/* gx: a queue of a quarter ends the probe as well, as in BBRv2, if there was none before it, and the rate
 * grows no longer. BBRv3 waits for three rounds, which fill half of a deep buffer. Among rivals their
 * queue is always there. Late packets put more under way than the model has, without a queue. */
static bool is_time_to_go_down(struct cc *c, const struct cc_sample *s)
{
	struct cc_rate *r = &c->rate;

	if (c->at_window && c->window_b >= r->inflight_hi) {
		full_reset(r, s->rate_b_s);
		return false;
	}
	if (r->full_now)
		return true;
	return r->up_alone && r->round_start && r->full_count >= 2 &&
	       c->in_flight_b >=
		       inflight_of(c, max_bw(r), GX_MAX(r->up_pct, 100u) * RATE_UP_PACE / 100);
}

static void cycle_step(struct cc *c, uint64_t now_ns, const struct cc_sample *s)
{
	struct cc_rate *r = &c->rate;

	if (!r->full_reached)
		return;
	switch (r->phase) {
	case RATE_DOWN:
		if (!is_time_to_probe(c, now_ns) && is_time_to_cruise(c))
			phase_set(c, RATE_CRUISE);
		break;
	case RATE_CRUISE:
		is_time_to_probe(c, now_ns);
		break;
	case RATE_REFILL:
		if (r->round_start && r->rounds) {
			r->probe_samples = true;
			up_start(c, now_ns, s);
		}
		break;
	case RATE_UP:
		if (is_time_to_go_down(c, s))
			down_start(c, now_ns);
		break;
	default:
		break;
	}
}

/* ---- Too much under way (5.3.3.6, 5.5.10) ---- */

static bool is_too_much(const struct cc *c, uint64_t lost_b, uint64_t in_flight_b)
{
	uint64_t few_b = (uint64_t)RATE_LOSS_PKTS * c->packet_b;

	return lost_b > few_b && (lost_b - few_b) * 100 > in_flight_b * RATE_LOSS_PCT;
}

static bool is_marked_too_much(const struct cc_sample *s)
{
	return (uint64_t)s->span_marked_b * 100 > (uint64_t)s->span_b * RATE_MARK_PCT;
}

static void too_much(struct cc *c, uint64_t now_ns, uint64_t in_flight_b, bool limited)
{
	struct cc_rate *r = &c->rate;

	r->probe_samples = false;
	r->up_lost = true;
	if (!limited)
		r->inflight_hi = GX_MAX(in_flight_b, percent(inflight_target(c), RATE_BETA_PCT));
	if (r->phase == RATE_UP)
		down_start(c, now_ns);
}

/* Where in the packets before did the losses pass the bound? */
static uint64_t inflight_at_loss(const struct cc_pkt *p, uint64_t lost_b)
{
	uint64_t before = p->in_flight_b - p->len;
	uint64_t lost_before = lost_b - GX_MIN(lost_b, (uint64_t)p->len);
	uint64_t bound = percent(before, RATE_LOSS_PCT);

	if (bound <= lost_before)
		return before;
	return before + (bound - lost_before) * 100 / (100 - RATE_LOSS_PCT);
}

static void rate_lost(struct cc *c, uint64_t now_ns, const struct cc_pkt *p)
{
	struct cc_rate *r = &c->rate;
	uint64_t lost_b = c->lost_b - p->lost_b;

	if (!r->loss_in_round) {
		r->loss_round_b = c->sent_b;
		r->loss_begin_b = c->lost_b - p->len;
		r->loss_delivered_b = c->delivered_b;
		r->loss_events = 0;
	}
	r->loss_in_round = true;
	if (c->sample.lost_b == p->len) /* the first one that this acknowledgement reports */
		r->loss_events++;
	if (r->probe_samples && is_too_much(c, lost_b, p->in_flight_b))
		too_much(c, now_ns, inflight_at_loss(p, lost_b), p->limited);
}

static void up_grow(struct cc *c, const struct cc_sample *s)
{
	struct cc_rate *r = &c->rate;

	if (!c->at_window || c->window_b < r->inflight_hi)
		return;
	r->up_acks_b += s->acked_b;
	if (r->up_acks_b >= r->up_each_b) {
		uint32_t n = r->up_acks_b / r->up_each_b;

		r->up_acks_b -= n * r->up_each_b;
		r->inflight_hi += (uint64_t)n * c->packet_b;
	}
	if (r->round_start)
		up_raise_slope(c);
}

/* The bounds that last, by the losses that probes meet. */
static void long_term(struct cc *c, uint64_t now_ns, const struct cc_sample *s)
{
	struct cc_rate *r = &c->rate;

	if (r->acks == ACKS_STARTING && r->round_start)
		r->acks = ACKS_FEEDBACK;
	if (r->acks == ACKS_STOPPING && r->round_start) {
		if (in_cycle(r) && !s->limited) {
			r->max_bw[0] = r->max_bw[1];
			r->max_bw[1] = 0;
		}
		r->acks = ACKS_INIT;
		r->probe_samples = false;
	}
	if (is_too_much(c, s->span_lost_b, s->in_flight_b) || is_marked_too_much(s)) {
		if (r->probe_samples)
			too_much(c, now_ns, s->in_flight_b, s->limited);
		return;
	}
	if (r->inflight_hi == CC_NEVER)
		return;
	r->inflight_hi = GX_MAX(r->inflight_hi, (uint64_t)s->in_flight_b);
	if (r->phase == RATE_UP)
		up_grow(c, s);
}

/* ---- Signals of a round (5.5) ---- */

static void round_update(struct cc *c, const struct cc_sample *s)
{
	struct cc_rate *r = &c->rate;

	r->round_start = false;
	if (!s->any || (int32_t)(s->prior_sent_b - r->round_b) < 0)
		return;
	round_begin(c);
	r->round_start = true;
	r->rounds++;
	r->rounds_since_probe++;
	c->at_window = c->at_window_now;
	c->at_window_now = false;
}

/* gx: BBRv3 lowers its bounds at any loss of a round. On a path that loses 1 % at random its rate would
 * fall each round, until the next probe. So only rounds above the bound on loss count, as in a probe. */
static bool loss_is_high(const struct cc *c)
{
	const struct cc_rate *r = &c->rate;
	uint64_t lost_b = c->lost_b - r->loss_begin_b;

	return r->loss_in_round &&
	       is_too_much(c, lost_b, c->delivered_b - r->loss_delivered_b + lost_b);
}

static void lower_bounds(struct cc *c)
{
	struct cc_rate *r = &c->rate;
	bool lost = loss_is_high(c);
	uint64_t marked = CC_NEVER;

	if (is_probing(r) || (!lost && !r->marked_in_round))
		return;
	if (r->inflight_lo == CC_NEVER)
		r->inflight_lo = c->window_b;
	if (r->marked_in_round)
		marked = (r->inflight_lo * (RATE_ONE - r->alpha_q / RATE_MARK_CUT)) >> RATE_Q;
	if (lost) {
		if (r->bw_lo == CC_NEVER)
			r->bw_lo = max_bw(r);
		r->bw_lo = GX_MAX(r->bw_latest, percent(r->bw_lo, RATE_BETA_PCT));
		r->inflight_lo = GX_MAX((uint64_t)r->inflight_latest,
					percent(r->inflight_lo, RATE_BETA_PCT));
	}
	r->inflight_lo = GX_MAX(GX_MIN(r->inflight_lo, marked), window_min(c));
}

/* gx: the rate of the path has fallen by much when the path has a queue and delivers little, round
 * after round. The filter of two cycles would keep the queue full for seconds. */
static void fallen(struct cc *c, uint64_t now_ns, const struct cc_sample *s)
{
	struct cc_rate *r = &c->rate;

	if (!r->full_reached || !in_cycle(r))
		return;
	if (s->limited || r->bw_latest >= percent(max_bw(r), RATE_SLOW_PCT) ||
	    c->rtt_ns < percent(r->rtt_min_ns, RATE_QUEUE_PCT)) {
		r->slow_rounds = 0;
		return;
	}
	if (++r->slow_rounds < RATE_SLOW_ROUNDS)
		return;
	r->slow_rounds = 0;
	r->max_bw[0] = 0;
	r->max_bw[1] = r->bw_latest;
	lower_reset(r);
	down_start(c, now_ns);
}

static void pipe_is_full(struct cc *c)
{
	c->rate.full_reached = true;
	c->rate.inflight_hi = bdp(c, max_bw(&c->rate), 100);
	c->rate.inflight_hi = GX_MAX(c->rate.inflight_hi, (uint64_t)c->rate.inflight_latest);
}

/* gx: more than 2 % of the window, too. When a burst ends, the losses of a round are reported after
 * most of its deliveries, so 2 % of the round is soon passed. */
static void startup_loss(struct cc *c)
{
	if (c->rate.phase == RATE_STARTUP && c->rate.loss_events >= RATE_LOSS_EVENTS &&
	    loss_is_high(c) && is_too_much(c, c->lost_b - c->rate.loss_begin_b, c->window_b))
		pipe_is_full(c);
}

/* The smoothed share of marked bytes, a round at a time. */
static void marks_update(struct cc *c)
{
	struct cc_rate *r = &c->rate;
	uint32_t acked_b = c->delivered_b - r->alpha_delivered_b;
	uint32_t marked_b = c->marked_b - r->alpha_marked_b;
	uint32_t share_q = acked_b ? (uint32_t)(((uint64_t)marked_b << RATE_Q) / acked_b) : 0;

	if (!acked_b)
		return;
	r->alpha_delivered_b = c->delivered_b;
	r->alpha_marked_b = c->marked_b;
	r->alpha_q -= r->alpha_q >> RATE_MARK_SHIFT;
	r->alpha_q = GX_MIN(r->alpha_q + (share_q >> RATE_MARK_SHIFT), RATE_ONE);
	r->marked_rounds = share_q * 100 >= RATE_ONE * RATE_MARK_PCT ? r->marked_rounds + 1 : 0;
	if (r->phase == RATE_STARTUP && r->marked_rounds >= RATE_MARK_ROUNDS)
		pipe_is_full(c);
}

static void signals(struct cc *c, uint64_t now_ns, const struct cc_sample *s)
{
	struct cc_rate *r = &c->rate;

	r->loss_round_start = s->any && (int32_t)(s->prior_sent_b - r->loss_round_b) >= 0;
	r->bw_latest = GX_MAX(r->bw_latest, s->rate_b_s);
	r->inflight_latest = GX_MAX(r->inflight_latest, s->any ? s->span_b : 0);
	round_update(c, s);
	r->marked_in_round |= s->marked_b > 0;
	if (r->round_start)
		marks_update(c);
	if (s->rate_b_s && (s->rate_b_s >= max_bw(r) || !s->limited))
		r->max_bw[1] = GX_MAX(r->max_bw[1], s->rate_b_s);
	if (r->loss_round_start) {
		lower_bounds(c);
		startup_loss(c);
		fallen(c, now_ns, s);
		r->loss_in_round = r->marked_in_round = false;
		r->loss_round_b = c->sent_b;
	}
}

static void signals_advance(struct cc_rate *r, const struct cc_sample *s)
{
	if (!r->loss_round_start)
		return;
	r->bw_latest = s->rate_b_s;
	r->inflight_latest = s->span_b;
}

/* ---- Startup and drain (5.3.1, 5.3.2) ---- */

/* gx: a window that still grows again after a time-out says nothing. */
static void full_look(struct cc *c, const struct cc_sample *s)
{
	struct cc_rate *r = &c->rate;

	if (r->full_now || !r->round_start || s->limited || !s->rate_b_s ||
	    (r->phase == RATE_STARTUP && !r->grown && c->window_b < r->window_lost_b))
		return;
	if (s->rate_b_s >= percent(r->full_bw, RATE_FULL_GROWTH)) {
		full_reset(r, s->rate_b_s);
		return;
	}
	r->full_now = ++r->full_count >= RATE_FULL_ROUNDS;
	r->full_reached |= r->full_now;
}

/* gx: else a satellite's start would take three round trips more. */
static void startup_long(struct cc *c, const struct cc_sample *s)
{
	struct cc_rate *r = &c->rate;
	uint64_t times = GX_MIN(s->rtt_ns / RATE_START_NS, (uint64_t)RATE_START_TIMES);

	if (times < 2 || c->delivered_b != s->acked_b)
		return;
	c->window_b *= times;
	r->start_b = (uint32_t)c->window_b;
	cc_pace(c, percent(c->window_b * CC_S / s->rtt_ns, RATE_STARTUP_PACE));
}

static void startup_step(struct cc *c, uint64_t now_ns)
{
	struct cc_rate *r = &c->rate;

	if (r->phase == RATE_STARTUP && r->full_reached)
		phase_set(c, RATE_DRAIN);
	if (r->phase == RATE_DRAIN && c->in_flight_b <= inflight_of(c, max_bw(r), 100))
		down_start(c, now_ns);
}

/* ---- The least round trip (5.3.4) ---- */

static void rtt_update(struct cc *c, uint64_t now_ns, const struct cc_sample *s)
{
	struct cc_rate *r = &c->rate;

	if (r->rtt_min_ns == CC_NEVER && s->rtt_ns)
		startup_long(c, s);
	r->rtt_expired = now_ns > r->probe_stamp_ns + RATE_RTT_PROBE_NS;
	if (s->rtt_ns && (s->rtt_ns < r->rtt_probe_ns || r->rtt_expired)) {
		r->rtt_probe_ns = s->rtt_ns;
		r->probe_stamp_ns = now_ns;
	}
	if (r->rtt_probe_ns < r->rtt_min_ns || now_ns > r->rtt_stamp_ns + RATE_RTT_MIN_NS) {
		r->rtt_min_ns = r->rtt_probe_ns;
		r->rtt_stamp_ns = r->probe_stamp_ns;
	}
}

static void rtt_end(struct cc *c, uint64_t now_ns)
{
	struct cc_rate *r = &c->rate;

	r->probe_stamp_ns = now_ns;
	c->window_b = GX_MAX(c->window_b, r->window_before_b);
	lower_reset(r);
	if (!r->full_reached) {
		phase_set(c, RATE_STARTUP);
		return;
	}
	down_start(c, now_ns);
	phase_set(c, RATE_CRUISE);
}

static uint64_t rtt_window(const struct cc *c)
{
	return GX_MAX(bdp(c, c->rate.bw, RATE_RTT_WINDOW), window_min(c));
}

static void rtt_step(struct cc *c, uint64_t now_ns)
{
	struct cc_rate *r = &c->rate;

	if (r->phase != RATE_RTT) {
		/* gx: not in the start. It may take 5 s where the round trip is long, and longer where
		 * credit keeps it: a cut window would be in the way when credit comes. */
		if (!r->rtt_expired || r->idle_restart || r->phase == RATE_STARTUP)
			return;
		r->window_before_b = c->window_b;
		phase_set(c, RATE_RTT);
		r->rtt_done_ns = 0;
		r->acks = ACKS_STOPPING;
		round_begin(c);
	}
	cc_limited(c);
	if (!r->rtt_done_ns) {
		/* The window may round up to one more packet. */
		if (c->in_flight_b > rtt_window(c) + c->packet_b)
			return;
		r->rtt_done_ns = now_ns + GX_MIN(RATE_RTT_NS, RATE_RTT_TIMES * r->rtt_min_ns);
		r->rtt_round_done = false;
		round_begin(c);
		return;
	}
	r->rtt_round_done |= r->round_start;
	if (r->rtt_round_done && now_ns > r->rtt_done_ns)
		rtt_end(c, now_ns);
}

/* ---- Rate and window (5.6) ---- */

static void pace_set(struct cc *c)
{
	const struct cc_rate *r = &c->rate;
	uint64_t b_s = percent(percent(r->bw, r->pace_pct), RATE_MARGIN_PACE);

	if (b_s && (r->full_reached || b_s > c->pace_b_s))
		cc_pace(c, b_s);
}

static void window_bound(struct cc *c)
{
	const struct cc_rate *r = &c->rate;
	uint64_t bound = CC_NEVER;

	if (r->phase == RATE_CRUISE || r->phase == RATE_RTT ||
	    (r->phase == RATE_DOWN && !r->up_alone))
		bound = inflight_headroom(c);
	else if (in_cycle(r))
		bound = r->inflight_hi;
	bound = GX_MAX(GX_MIN(bound, r->inflight_lo), window_min(c));
	c->window_b = GX_MIN(c->window_b, bound);
}

static void window_set(struct cc *c, const struct cc_sample *s)
{
	struct cc_rate *r = &c->rate;
	uint64_t most = inflight_of(c, r->bw, r->window_pct) + cc_lumps_b(&r->lumps) + burst_b(c);

	r->start_b -= GX_MIN(r->start_b, s->acked_b);
	if (r->full_reached)
		c->window_b = GX_MIN(c->window_b + s->acked_b, most);
	else if (c->window_b < most || r->start_b)
		c->window_b += s->acked_b;
	r->grown = c->window_b >= most;
	c->window_b = GX_MAX(c->window_b, window_min(c));
	if (r->phase == RATE_RTT)
		c->window_b = GX_MIN(c->window_b, rtt_window(c));
	window_bound(c);
}

/* ---- Events ---- */

static void rate_begin(struct cc *c, uint64_t now_ns)
{
	struct cc_rate *r = &c->rate;

	*r = (struct cc_rate){.bw = CC_NEVER,
			      .inflight_hi = CC_NEVER,
			      .rtt_min_ns = CC_NEVER,
			      .rtt_probe_ns = CC_NEVER,
			      .probe_stamp_ns = now_ns,
			      .rtt_stamp_ns = now_ns,
			      .up_alone = true,
			      .start_b = (uint32_t)c->window_b,
			      .round_b = c->sent_b,
			      .alpha_q = RATE_ONE,
			      .alpha_delivered_b = c->delivered_b,
			      .alpha_marked_b = c->marked_b,
			      .loss_round_b = c->sent_b};
	lower_reset(r);
	phase_set(c, RATE_STARTUP);
	cc_pace(c, percent(c->window_b * CC_S / CC_MS, RATE_STARTUP_PACE));
}

/* Packets after a pause: no round of the pause counts, and the filters of the round trip neither. */
static void rate_sent(struct cc *c, uint64_t now_ns)
{
	struct cc_rate *r = &c->rate;

	if (r->rtt_min_ns == CC_NEVER)
		r->probe_stamp_ns = r->rtt_stamp_ns = now_ns;
	if (!c->limited)
		return;
	r->idle_restart = true;
	r->lumps.since_ns = now_ns;
	r->lumps.b = 0;
	if (in_cycle(r))
		cc_pace(c, percent(r->bw, RATE_MARGIN_PACE));
}

static void rate_ack_end(struct cc *c, uint64_t now_ns, const struct cc_sample *s)
{
	struct cc_rate *r = &c->rate;

	signals(c, now_ns, s);
	cc_lumps_look(&r->lumps, c, now_ns, s->acked_b);
	full_look(c, s);
	startup_step(c, now_ns);
	long_term(c, now_ns, s);
	if (r->round_start && holds_still(r))
		cc_trend_look(&r->trend, now_ns, r->rtt_min_ns);
	else if (r->round_start)
		r->trend = (struct cc_trend){0};
	cycle_step(c, now_ns, s);
	rtt_update(c, now_ns, s);
	rtt_step(c, now_ns);
	if (s->acked_b)
		r->idle_restart = false;
	signals_advance(r, s);
	r->bw = GX_MIN(max_bw(r), r->bw_lo);
	pace_set(c);
	window_set(c, s);
}

/* Everything is deemed lost. The window grows again by what arrives (5.6.4.4). gx: the model stays,
 * because a black-out says nothing about the path after it. */
static void rate_timeout(struct cc *c, uint64_t now_ns)
{
	struct cc_rate *r = &c->rate;

	(void)now_ns;
	r->window_lost_b = GX_MAX(c->window_b, r->window_lost_b);
	r->loss_in_round = r->grown = false;
	c->window_b = GX_MAX(window_min(c), c->in_flight_b + c->packet_b);
}

/* Losses that were none: their bounds go (5.5.10.3), and their round has had none. flow.c has to learn
 * how late packets come: meanwhile such losses would end the start at a small part of the rate. */
static void rate_spurious(struct cc *c, uint64_t now_ns)
{
	struct cc_rate *r = &c->rate;

	(void)now_ns;
	lower_reset(r);
	r->loss_in_round = false;
	c->window_b = GX_MAX(c->window_b, r->window_lost_b);
	r->window_lost_b = 0;
}

static const char *rate_phase_name(const struct cc *c)
{
	static const char *const name[] = {"startup", "drain", "down", "cruise",
					   "refill",  "up",    "rtt"};

	return name[c->rate.phase];
}

const struct cc_ops cc_rate_ops = {
	.kind = CC_RATE,
	.begin = rate_begin,
	.sent = rate_sent,
	.lost = rate_lost,
	.ack_end = rate_ack_end,
	.timeout = rate_timeout,
	.spurious = rate_spurious,
	.phase = rate_phase_name,
};
