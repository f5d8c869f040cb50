/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Congestion control: what is under way, samples of the rate, and the pacer; cc.h has the contract,
 * cc_rate.c and cc_swift.c the controllers. Runs on the polling core.
 */
#include "flow/cc_part.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define CC_Q		20 /* fraction bits of byte_ns_q */
#define CC_BURST_PKTS	2  /* the pacer may be so late, at least */
#define CC_BURST_B	65536
#define CC_BURST_NS	CC_MS
#define CC_LATE_PART	4 /* of the least round trip: a turn that comes later is late */
#define CC_LATE_MIN_NS	1000
#define CC_WINDOW_PKTS	10 /* RFC 6928 */
#define CC_PACE_MIN_B_S 1000

uint64_t cc_random(struct cc *c, uint64_t below)
{
	/* xorshift64* (Vigna 2016) */
	c->rng ^= c->rng >> 12;
	c->rng ^= c->rng << 25;
	c->rng ^= c->rng >> 27;
	return (c->rng * 0x2545f4914f6cdd1dull >> 32) * below >> 32;
}

int cc_open(const struct cc_cfg *cfg, struct cc **out)
{
	struct cc *c;

	if (cfg->kind != CC_RATE && cfg->kind != CC_SWIFT)
		return -EINVAL;
	if (!cfg->places || cfg->places & (cfg->places - 1) || !cfg->packet_b ||
	    cfg->packet_b + cfg->hdr_b > UINT16_MAX)
		return -EINVAL;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->pkt = gx_pages_get(cfg->places * sizeof(*c->pkt));
	c->mask = cfg->places - 1;
	if (!c->pkt) {
		cc_close(c);
		return -ENOMEM;
	}
	c->ops = cfg->kind == CC_SWIFT ? &cc_swift_ops : &cc_rate_ops;
	c->packet_b = cfg->packet_b;
	c->hdr_b = cfg->hdr_b;
	c->rng = cfg->seed | 1;
	c->rtt_min_ns = CC_NEVER;
	c->window_b = (uint64_t)CC_WINDOW_PKTS * cfg->packet_b;
	c->ops->begin(c, 0);
	*out = c;
	return 0;
}

void cc_close(struct cc *c)
{
	if (!c)
		return;
	gx_pages_put(c->pkt, (c->mask + 1ull) * sizeof(*c->pkt));
	free(c);
}

void cc_packet_set(struct cc *c, uint32_t packet_b)
{
	assert(packet_b && packet_b <= UINT16_MAX);
	c->packet_b = packet_b;
}

/* ---- The pacer ---- */

void cc_pace(struct cc *c, uint64_t b_s)
{
	if (b_s)
		b_s = GX_MAX(b_s, (uint64_t)CC_PACE_MIN_B_S);
	if (b_s == c->pace_b_s)
		return;
	c->pace_b_s = b_s;
	c->byte_ns_q = b_s ? (CC_S << CC_Q) / b_s : 0;
}

static uint64_t pace_ns(const struct cc *c, uint64_t bytes)
{
	return bytes * c->byte_ns_q >> CC_Q;
}

/* So late a turn is the fault of the core. */
static uint64_t core_late_ns(const struct cc *c)
{
	return c->rtt_min_ns == CC_NEVER ? 0 : c->rtt_min_ns / CC_LATE_PART;
}

/* How late may the pacer be? A turn comes now and then, so a few packets leave at once: 1 ms
 * of the rate, 64 KiB at most (draft-ietf-ccwg-bbr, 5.6.3), or two packets. A core that was starved,
 * so that the path is not full, makes up for more of it: a quarter of a round trip, which the queue
 * of any sound path holds, as it does when the rate is probed. */
static uint64_t pace_debt_ns(const struct cc *c)
{
	uint64_t few = pace_ns(c, (uint64_t)CC_BURST_PKTS * c->packet_b),
		 burst = pace_ns(c, CC_BURST_B);
	uint64_t debt = GX_MAX(few, GX_MIN(burst, (uint64_t)CC_BURST_NS));

	if (c->rtt_min_ns != CC_NEVER && c->in_flight_b < cc_bytes(c->pace_b_s, c->rtt_min_ns))
		debt = GX_MAX(debt, core_late_ns(c));
	return debt;
}

static void limit_set(struct cc *c, uint64_t now_ns, enum cc_limit why)
{
	if (now_ns > c->limit_ns && c->limit_ns)
		c->limit_sum_ns[c->limit] += now_ns - c->limit_ns;
	c->limit = why;
	c->limit_ns = now_ns;
}

/* A turn came late, while something could have left: the samples of this time are of the core, as those
 * under credit are of the receiver. They never lower the rate. If they did, a core that others leave
 * half of the time would come down to 0.10 of the link, in place of 0.58 (test_cc). */
static void core_gap(struct cc *c, uint64_t now_ns)
{
	uint64_t from_ns = GX_MAX(c->asked_ns, c->held ? c->next_ns : 0);
	uint64_t gap = c->asked_ns && now_ns > from_ns ? now_ns - from_ns : 0;

	if (gap <= GX_MAX(core_late_ns(c), (uint64_t)CC_LATE_MIN_NS) || c->rtt_min_ns == CC_NEVER)
		return;
	limit_set(c, from_ns, CC_BY_CORE);
	c->gap_ns = now_ns;
}

uint32_t cc_room(struct cc *c, uint64_t now_ns, uint32_t max)
{
	uint64_t window = c->window_b > c->in_flight_b ? c->window_b - c->in_flight_b : 0, left;
	uint32_t room;

	core_gap(c, now_ns);
	c->asked_ns = now_ns;
	/* A last packet may be over the window by a part of it, else a window that is no multiple
	 * of a packet would never be full. */
	room = (uint32_t)GX_MIN((window + c->packet_b - 1) / c->packet_b, max);
	if (!room) {
		limit_set(c, now_ns, CC_BY_WINDOW);
		c->at_window_now = c->at_window = true;
		c->held = false;
		c->asked_ns = 0; /* an acknowledgement opens it, not a turn */
		return 0;
	}
	if (!c->pace_b_s)
		return room;
	c->debt_ns = pace_debt_ns(c);
	if (!c->held)
		c->next_ns = GX_MAX(c->next_ns, now_ns);
	else if (now_ns > c->next_ns)
		c->next_ns = GX_MAX(c->next_ns, now_ns - GX_MIN(now_ns, c->debt_ns));
	c->held = true;
	if (now_ns < c->next_ns) {
		limit_set(c, now_ns, CC_BY_LINK);
		return 0;
	}
	left = (now_ns - c->next_ns) / GX_MAX(pace_ns(c, c->packet_b), 1ull) + 1;
	return (uint32_t)GX_MIN(left, room);
}

bool cc_is_open(const struct cc *c)
{
	return c->in_flight_b < c->window_b;
}

uint64_t cc_due(const struct cc *c)
{
	return c->held && cc_is_open(c) ? c->next_ns : CC_NEVER;
}

void cc_limited(struct cc *c)
{
	c->limited = true;
	c->limited_b = c->sent_b;
}

void cc_short(struct cc *c, uint64_t now_ns, enum cc_limit why)
{
	limit_set(c, now_ns, why);
	c->held = false;
	c->asked_ns = 0;
	if (c->in_flight_b < c->window_b)
		cc_limited(c);
}

/* ---- Packets ---- */

void cc_sent(struct cc *c, uint64_t now_ns, uint32_t place, uint32_t len)
{
	struct cc_pkt *p = &c->pkt[place & c->mask];
	uint32_t bytes = len + c->hdr_b;

	assert(!p->used);
	/* A record, and nobody asks for room: rounds of them say nothing of the path, and would end
	 * the start. */
	if (!c->asked_ns && c->in_flight_b < c->window_b)
		cc_limited(c);
	if (!c->in_flight) {
		c->first_ns = c->delivered_ns = now_ns;
		c->ops->sent(c, now_ns);
	}
	c->in_flight++;
	c->in_flight_b += bytes;
	*p = (struct cc_pkt){.sent_ns = now_ns,
			     .first_ns = c->first_ns,
			     .delivered_ns = c->delivered_ns,
			     .sent_b = c->sent_b,
			     .delivered_b = c->delivered_b,
			     .lost_b = c->lost_b,
			     .marked_b = c->marked_b,
			     .in_flight_b = (uint32_t)c->in_flight_b,
			     .len = (uint16_t)bytes,
			     .used = true,
			     .limited = c->limited};
	c->sent_b += bytes;
	if (c->pace_b_s)
		c->next_ns =
			GX_MAX(c->next_ns, now_ns - GX_MIN(now_ns, c->debt_ns)) + pace_ns(c, bytes);
}

static struct cc_pkt *pkt_out(struct cc *c, uint32_t place)
{
	struct cc_pkt *p = &c->pkt[place & c->mask];

	assert(p->used && c->in_flight && c->in_flight_b >= p->len);
	p->used = false;
	c->in_flight--;
	c->in_flight_b -= p->len;
	return p;
}

/* The newest packet of an acknowledgement begins the span of its sample. */
void cc_acked(struct cc *c, uint64_t now_ns, uint32_t place)
{
	const struct cc_pkt *p = pkt_out(c, place);
	struct cc_sample *s = &c->sample;

	if (!s->any)
		core_gap(c, now_ns);
	c->delivered_b += p->len;
	c->delivered_ns = now_ns;
	s->acked_b += p->len;
	if (s->any && p->sent_ns < s->sent_ns)
		return;
	s->any = true;
	s->sent_ns = p->sent_ns;
	s->first_ns = p->first_ns;
	s->prior_ns = p->delivered_ns;
	s->prior_b = p->delivered_b;
	s->prior_sent_b = p->sent_b;
	s->span_lost_b = c->lost_b - p->lost_b;
	s->span_marked_b = c->marked_b - p->marked_b;
	s->in_flight_b = p->in_flight_b;
	s->limited = p->limited || (c->gap_ns && p->sent_ns <= c->gap_ns);
	s->rtt_ns = now_ns > p->sent_ns ? now_ns - p->sent_ns : 1;
}

void cc_lost(struct cc *c, uint64_t now_ns, uint32_t place)
{
	const struct cc_pkt *p = pkt_out(c, place);

	c->lost_b += p->len;
	c->sample.lost_b += p->len;
	c->ops->lost(c, now_ns, p);
}

/* Their bytes do not count as acknowledged: all in one moment they would look like a high rate. */
void cc_spurious(struct cc *c, uint64_t now_ns)
{
	c->ops->spurious(c, now_ns);
}

/* The peer counts them. It cannot say more than it acknowledges. */
void cc_marked(struct cc *c, uint32_t nr)
{
	uint32_t b = (uint32_t)GX_MIN((uint64_t)nr * c->packet_b, (uint64_t)c->sample.acked_b);

	c->marked_b += b;
	c->sample.marked_b += b;
	c->sample.span_marked_b += b;
}

/* The rate is that of the slower one of sending and acknowledging. A span that is shorter than the
 * least round trip says nothing. */
static void sample_end(struct cc *c, struct cc_sample *s)
{
	uint64_t sent_ns = s->sent_ns - s->first_ns, delivered_ns = c->delivered_ns - s->prior_ns;
	uint64_t span_ns = GX_MAX(sent_ns, delivered_ns);

	c->rtt_ns = s->rtt_ns;
	c->rtt_min_ns = GX_MIN(c->rtt_min_ns, s->rtt_ns);
	c->first_ns = GX_MAX(c->first_ns, s->sent_ns);
	s->span_b = c->delivered_b - s->prior_b;
	if (span_ns && span_ns >= c->rtt_min_ns)
		s->rate_b_s = s->span_b * CC_S / span_ns;
}

void cc_ack_end(struct cc *c, uint64_t now_ns)
{
	struct cc_sample *s = &c->sample;

	if (!s->any && !s->lost_b)
		return;
	if (c->limited && (int32_t)(c->delivered_b + c->lost_b - c->limited_b) > 0)
		c->limited = false;
	if (s->any)
		sample_end(c, s);
	c->ops->ack_end(c, now_ns, s);
	*s = (struct cc_sample){0};
}

void cc_timeout(struct cc *c, uint64_t now_ns)
{
	c->ops->timeout(c, now_ns);
}

/* ---- State ---- */

void cc_state(const struct cc *c, uint64_t now_ns, struct cc_state *out)
{
	*out = (struct cc_state){.kind = c->ops->kind,
				 .phase = c->ops->phase(c),
				 .in_flight_b = c->in_flight_b,
				 .in_flight = c->in_flight,
				 .window_b = c->window_b,
				 .pace_b_s = c->pace_b_s,
				 .rate_b_s = c->rate.bw == CC_NEVER ? 0 : c->rate.bw,
				 .rtt_ns = c->rtt_ns,
				 .rtt_min_ns = c->rtt_min_ns == CC_NEVER ? 0 : c->rtt_min_ns,
				 .limit = c->limit};
	for (unsigned i = 0; i < CC_LIMITS; i++)
		out->ns[i] = c->limit_sum_ns[i];
	if (c->limit_ns && now_ns > c->limit_ns)
		out->ns[c->limit] += now_ns - c->limit_ns;
}

void cc_sums(const struct cc *c, uint64_t now_ns, struct cc_sums *out)
{
	for (unsigned i = 0; i < CC_LIMITS; i++)
		out->ns[i] = c->limit_sum_ns[i];
	if (c->limit_ns && now_ns > c->limit_ns)
		out->ns[c->limit] += now_ns - c->limit_ns;
	out->rate_b_s = c->rate.bw == CC_NEVER ? 0 : c->rate.bw;
	out->rtt_ns = c->rtt_ns;
	out->window_b = c->window_b;
	out->sent_b = c->sent_b;
	out->lost_b = c->lost_b;
}
