/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection's sequence numbers: a flow opens and closes, and its sender counts what is under
 * way, takes acknowledgements and finds losses. flow.h has the contract, flow_part.h the numbers
 * inside. Runs on the polling core. Time is an argument, and nothing allocates after flow_open().
 */
#include "flow/flow_part.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define FLOW_WINDOW_MIN 64

#define FLOW_ACK_EVERY	  16
#define FLOW_ACK_DELAY_NS 8000
#define FLOW_RX_LOSSLESS  16384 /* psns that a receiver remembers where nothing overtakes */

#define FLOW_RTO_MIN_NS	   500000
#define FLOW_PTO_FIRST	   4		 /* times rto_min, before the first sample, ... */
#define FLOW_RTO_FIRST_NS  1000000000ull /* ... and the RTO (RFC 6298 2.1); probes come sooner */
/* The RTO heeds the oldest age of this span of time and of the one before. */
#define FLOW_AGE_SPAN_NS   1000000000ull
#define FLOW_AGE_MAX_NS	   25000000ull /* no age above it, and above srtt, counts for the RTO */
#define FLOW_BACKOFF_MAX   6	       /* doublings: 64 times. RFC 6298 5.5 */
#define FLOW_PROBE_MIN_NS  20000
#define FLOW_REO_MIN_NS	   1000 /* less is only the jitter of a turn */
#define FLOW_REO_SHIFT_MAX 10	/* doublings of min_rtt / 4 */
#define FLOW_REO_PERSIST   16	/* rounds with loss before it shrinks, RFC 8985 6.2 step 4 */

/* Of two callers, one for a flow where nothing is lost, which costs what it did with one. */
#define FLOW_INLINE static inline __attribute__((always_inline))
#define FLOW_APART  __attribute__((noinline))

/* ---- Open and close ---- */

int flow_open(const struct flow_cfg *cfg, struct flow **out)
{
	uint32_t nr = 2 * cfg->window;
	uint32_t rx_bits = cfg->lossless ? FLOW_RX_LOSSLESS : FLOW_WINDOW_MAX;
	struct flow *f;

	if (cfg->window < FLOW_WINDOW_MIN || cfg->window > FLOW_WINDOW_MAX ||
	    (cfg->window & (cfg->window - 1)))
		return -EINVAL;
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	for (unsigned i = 0; i < FLOW_HALVES; i++)
		f->half[i].out = calloc(nr / 64, sizeof(*f->half[i].out));
	f->lost = calloc(nr / 64, sizeof(*f->lost));
	f->sent = gx_pages_get(nr * sizeof(*f->sent));
	f->acked_q.slot = gx_pages_get(nr * sizeof(*f->acked_q.slot));
	f->lost_q.slot = gx_pages_get(nr * sizeof(*f->lost_q.slot));
	f->late_q.slot = gx_pages_get(nr * sizeof(*f->late_q.slot));
	f->rx = calloc(rx_bits / 64, sizeof(*f->rx));
	f->mask = nr - 1;
	if (!f->half[0].out || !f->half[1].out || !f->lost || !f->sent || !f->acked_q.slot ||
	    !f->lost_q.slot || !f->late_q.slot || !f->rx) {
		flow_close(f);
		return -ENOMEM;
	}
	f->tx_first = cfg->tx_psn;
	f->held_low = FLOW_NEVER;
	f->window = cfg->window;
	f->tx_limit = cfg->tx_credit;
	f->lossless = cfg->lossless;
	f->ordered = cfg->ordered;
	f->rtt_min_ns = FLOW_NEVER;
	f->rto_min_ns = cfg->rto_min_ns ? cfg->rto_min_ns : FLOW_RTO_MIN_NS;
	f->rx_first = cfg->rx_psn;
	f->rx_mask = rx_bits - 1;
	f->rx_limit = cfg->rx_credit;
	f->ack_every = cfg->ack_every ? cfg->ack_every : FLOW_ACK_EVERY;
	f->ack_delay_ns = cfg->ack_delay_ns ? cfg->ack_delay_ns : FLOW_ACK_DELAY_NS;
	f->ack_due_ns = FLOW_NEVER;
	*out = f;
	return 0;
}

void flow_close(struct flow *f)
{
	size_t nr;

	if (!f)
		return;
	nr = f->mask + 1u;
	for (unsigned i = 0; i < FLOW_HALVES; i++)
		free(f->half[i].out);
	free(f->lost);
	gx_pages_put(f->sent, nr * sizeof(*f->sent));
	gx_pages_put(f->acked_q.slot, nr * sizeof(*f->acked_q.slot));
	gx_pages_put(f->lost_q.slot, nr * sizeof(*f->lost_q.slot));
	gx_pages_put(f->late_q.slot, nr * sizeof(*f->late_q.slot));
	free(f->rx);
	free(f);
}

/* ---- Sender: packets out ---- */

/* Return: the oldest outstanding seq; tx_next: none is. */
static inline uint64_t flow_out_low(const struct flow *f)
{
	uint64_t low = f->half[0].nr_out ? f->half[0].low : f->tx_next;

	return f->half[1].nr_out ? GX_MIN(low, f->half[1].low) : low;
}

static inline struct flow_half *flow_half_of(struct flow *f, const struct flow_pkt *p)
{
	return &f->half[f->lossless ? 0 : p->half];
}

uint32_t flow_room(const struct flow *f)
{
	uint64_t span = f->tx_next - flow_out_low(f);
	uint64_t room = span < f->window ? f->window - span : 0;
	uint64_t held = f->held_low < f->tx_next ? f->tx_next - f->held_low : 0;

	return (uint32_t)GX_MIN(room, f->mask + 1ull - held);
}

uint32_t flow_credit(const struct flow *f)
{
	return f->tx_limit - f->tx_used;
}

void flow_credit_use(struct flow *f, uint32_t n)
{
	assert(n <= flow_credit(f));
	f->tx_used += n;
}

uint64_t flow_sent(struct flow *f, uint64_t now_ns, const struct flow_pkt *p)
{
	uint64_t seq = f->tx_next++;
	struct flow_pkt *mine = &f->sent[seq & f->mask];
	struct flow_half *h = flow_half_of(f, p);

	/* A probe may go out above flow_room(); the slots are twice the window. */
	assert(seq - GX_MIN(seq, GX_MIN(flow_out_low(f), f->held_low)) <= f->mask);
	if (gx_unlikely(f->nr_lost) && bits_test(f->lost, f->mask, seq)) {
		bits_clear(f->lost, f->mask, seq, 1);
		f->nr_lost--;
	}
	bits_set(h->out, f->mask, seq);
	*mine = *p;
	mine->sent_ns = now_ns;
	if (!h->nr_out++) {
		h->low = seq;
		h->rto_since_ns = now_ns;
	}
	h->probe_since_ns = now_ns;
	return f->tx_first + seq;
}

uint32_t flow_outstanding(const struct flow *f)
{
	return f->half[0].nr_out + f->half[1].nr_out;
}

uint64_t flow_srtt_ns(const struct flow *f)
{
	return f->srtt_ns;
}

bool flow_is_uneven(const struct flow *f)
{
	return f->nr_lost || f->tx_next < f->late_seq;
}

uint64_t flow_spurious(const struct flow *f)
{
	return f->nr_spurious;
}

uint32_t flow_marks(const struct flow *f)
{
	return f->tx_marks;
}

/* ---- Sender: round-trip time and loss ---- */

/*
 * RFC 6298 2.3 with our minimum, and twice the longest time that an arrived packet took of late. A
 * peer whose CPU is shared is silent for milliseconds now and then, and a smoothed time forgets
 * that at once. Where all packets take as long, rttvar is 0. Tail probes find a loss before the RTO
 * does, so a longer RTO costs little.
 */
static uint64_t flow_rto_span_ns(const struct flow *f)
{
	uint64_t most = GX_MAX(FLOW_AGE_MAX_NS, f->srtt_ns);
	uint64_t age = GX_MIN(GX_MAX(f->age_ns[0], f->age_ns[1]), most);

	if (!f->srtt_ns)
		return FLOW_PTO_FIRST * f->rto_min_ns;
	return GX_MAX(GX_MAX(f->srtt_ns + 4 * f->rttvar_ns, 2 * age), f->rto_min_ns);
}

uint64_t flow_pto_ns(const struct flow *f)
{
	return flow_rto_span_ns(f);
}

/* An ACK reported the packet @seq, which was not deemed lost, or wrongly so. */
static void flow_age(struct flow *f, uint64_t now_ns, uint64_t seq)
{
	uint64_t sent_ns = f->sent[seq & f->mask].sent_ns;

	if (now_ns - f->age_since_ns > FLOW_AGE_SPAN_NS) {
		f->age_ns[1] = now_ns - f->age_since_ns > 2 * FLOW_AGE_SPAN_NS ? 0 : f->age_ns[0];
		f->age_ns[0] = 0;
		f->age_since_ns = now_ns;
	}
	if (now_ns > sent_ns)
		f->age_ns[0] = GX_MAX(f->age_ns[0], now_ns - sent_ns);
}

/* The window of reordering need not be longer than the RTO, or than a packet took of late. Samples of
 * the round trip are of the newest packets, which are never the late ones: they alone would hold the
 * window at one round trip, and a queue that empties adds to that. */
static uint64_t flow_reo_max(const struct flow *f)
{
	return GX_MAX(flow_rto_span_ns(f), GX_MAX(f->age_ns[0], f->age_ns[1]));
}

static uint64_t flow_reo_base(const struct flow *f)
{
	return GX_MAX(f->rtt_min_ns / 4, FLOW_REO_MIN_NS);
}

/* RACK's window: min_rtt / 4, doubled as far as reordering showed (RFC 8985 6.2 step 4). The RFC
 * stops at srtt; here it may grow further. Else half of all packets would go twice where paths
 * differ by several round trips. */
static void flow_reo_set(struct flow *f)
{
	uint64_t base = flow_reo_base(f);

	f->reo_ns = GX_MIN(base << f->reo_shift, GX_MAX(flow_reo_max(f), base));
}

static void flow_reo_grow(struct flow *f)
{
	f->reo_seq = f->tx_next;
	f->reo_rounds = 0;
	if (f->reo_shift < FLOW_REO_SHIFT_MAX && f->reo_ns < flow_reo_max(f))
		f->reo_shift++;
	flow_reo_set(f);
}

/* A round trip had losses, and no packet came late. After FLOW_REO_PERSIST of them the window
 * shrinks. */
static void flow_reo_decay(struct flow *f)
{
	f->loss_seq = f->tx_next;
	if (!f->reo_shift || ++f->reo_rounds < FLOW_REO_PERSIST)
		return;
	f->reo_rounds = 0;
	f->reo_shift--;
	flow_reo_set(f);
}

/* Take a sample from the largest packet of an ACK. min_rtt takes the time as it is. srtt takes it
 * without the time for which the receiver says that it held the ACK, but no less than min_rtt (RFC
 * 9002 5.2, 5.3). RFC 6298 2 smooths it. */
static void flow_rtt_sample(struct flow *f, uint64_t now_ns, uint64_t top, uint32_t delay_ns)
{
	const struct flow_pkt *p = &f->sent[top & f->mask];
	struct flow_half *h = flow_half_of(f, p);
	uint64_t rtt = now_ns > p->sent_ns ? now_ns - p->sent_ns : 1;
	uint64_t off;

	f->rtt_min_ns = GX_MIN(f->rtt_min_ns, rtt);
	rtt = rtt >= f->rtt_min_ns + delay_ns ? rtt - delay_ns : f->rtt_min_ns;
	h->hi = top + 1;
	h->rack_rtt_ns = rtt;
	if (!f->srtt_ns) {
		f->srtt_ns = rtt;
		f->rttvar_ns = rtt / 2;
	} else {
		off = rtt > f->srtt_ns ? rtt - f->srtt_ns : f->srtt_ns - rtt;
		f->rttvar_ns = f->rttvar_ns - f->rttvar_ns / 4 + off / 4;
		f->srtt_ns = f->srtt_ns - f->srtt_ns / 8 + rtt / 8;
	}
	flow_reo_set(f);
}

/* The oldest packet is lost when a round trip and the window of reordering have passed since it
 * went out. */
static uint64_t flow_rack_ns(const struct flow *f, const struct flow_half *h)
{
	return f->sent[h->low & f->mask].sent_ns + h->rack_rtt_ns + f->reo_ns;
}

/* RFC 6298 5.5: each RTO without an answer doubles the next. */
static uint64_t flow_rto_ns(const struct flow *f, const struct flow_half *h)
{
	uint64_t span = f->srtt_ns ? flow_rto_span_ns(f) : FLOW_RTO_FIRST_NS;

	return h->rto_since_ns + (span << h->backoff);
}

/* RFC 8985 7.2: two round trips, and the time for which the peer may hold an ACK. Unlike there,
 * another probe follows one without an answer, each after twice the time, until the RTO: the
 * network loses a probe as easily as a packet. */
static uint64_t flow_probe_ns(const struct flow *f, const struct flow_half *h)
{
	uint64_t wait = f->rto_min_ns;

	if (f->srtt_ns)
		wait = GX_MAX(2 * f->srtt_ns + f->ack_delay_ns, FLOW_PROBE_MIN_NS);
	return h->probe_since_ns + (wait << h->nr_probes);
}

static void flow_queue_put(struct flow *f, struct flow_queue *q, uint64_t seq)
{
	q->slot[q->head++ & f->mask] = (uint32_t)seq & f->mask;
}

/* Packets @top - i for the set bits i of @which, oldest first. */
FLOW_INLINE void flow_queue_word(struct flow *f, struct flow_queue *q, uint64_t top, uint64_t which)
{
	f->held_low = GX_MIN(f->held_low, top - (63 - (uint32_t)__builtin_clzll(which)));
	while (which) {
		uint32_t i = 63 - (uint32_t)__builtin_clzll(which);

		flow_queue_put(f, q, top - i);
		which ^= 1ull << i;
	}
}

/* The oldest outstanding packet of @h is lost, as far as we know. */
static void flow_lose(struct flow *f, struct flow_half *h)
{
	uint64_t seq = h->low;

	bits_clear(h->out, f->mask, seq, 1);
	bits_set(f->lost, f->mask, seq);
	h->nr_out--;
	f->nr_lost++;
	f->held_low = GX_MIN(f->held_low, seq);
	flow_queue_put(f, &f->lost_q, seq);
	h->low = bits_next(h->out, f->mask, seq + 1, f->tx_next);
}

/* RACK (RFC 8985 6.2 step 5): packets of a half go out in the order of seq, so its oldest outstanding
 * one is lost first. Packet hi - 1 is the newest that arrived of this half. One of the other half says
 * nothing: a receiver takes bursts of records before the data that came before them. */
static void flow_rack(struct flow *f, struct flow_half *h, uint64_t now_ns)
{
	while (h->nr_out && h->low < h->hi && flow_rack_ns(f, h) <= now_ns) {
		if (h->low >= f->loss_seq)
			flow_reo_decay(f);
		flow_lose(f, h);
	}
}

/* @h has something under way. */
static unsigned flow_half_tick(struct flow *f, struct flow_half *h, uint64_t now_ns)
{
	flow_rack(f, h, now_ns);
	if (!h->nr_out)
		return 0;
	if (now_ns >= flow_rto_ns(f, h)) {
		while (h->nr_out)
			flow_lose(f, h);
		h->backoff = GX_MIN(h->backoff + 1, FLOW_BACKOFF_MAX);
		h->nr_probes = 0;
		f->reo_seq = f->tx_next; /* a late ACK says nothing about reordering now */
		return now_ns - f->news_ns < flow_rto_span_ns(f) ? 0 : FLOW_RTO;
	}
	if (now_ns < flow_probe_ns(f, h))
		return 0;
	h->nr_probes = GX_MIN(h->nr_probes + 1, FLOW_BACKOFF_MAX);
	h->probe_since_ns = now_ns;
	return FLOW_PROBE << (h - f->half);
}

unsigned flow_tick(struct flow *f, uint64_t now_ns)
{
	unsigned what = 0;

	if (f->lossless)
		return 0;
	for (unsigned i = 0; i < FLOW_HALVES; i++)
		if (f->half[i].nr_out)
			what |= flow_half_tick(f, &f->half[i], now_ns);
	return what;
}

static uint64_t flow_half_due(const struct flow *f, const struct flow_half *h)
{
	uint64_t due = GX_MIN(flow_rto_ns(f, h), flow_probe_ns(f, h));

	return h->low < h->hi ? GX_MIN(due, flow_rack_ns(f, h)) : due;
}

static FLOW_APART uint64_t flow_due_any(const struct flow *f)
{
	uint64_t due = FLOW_NEVER;

	for (unsigned i = 0; i < FLOW_HALVES; i++)
		if (f->half[i].nr_out)
			due = GX_MIN(due, flow_half_due(f, &f->half[i]));
	return due;
}

uint64_t flow_due(const struct flow *f)
{
	return f->lossless ? FLOW_NEVER : flow_due_any(f);
}

/* ---- Sender: ACKs in ---- */

/* Can the peer have received all packets that it acknowledges? */
static bool flow_ack_possible(const struct flow *f, const struct gx_wire_ack *ack)
{
	uint64_t top = ack->largest - f->tx_first;

	if (top >= f->tx_next || ack->nr_words < 1 || ack->nr_words > GX_WIRE_ACK_WORDS)
		return false;
	for (uint32_t w = (uint32_t)GX_MIN((top + 1) / 64, ack->nr_words); w < ack->nr_words; w++) {
		uint64_t real = top + 1 > 64ull * w ? top + 1 - 64ull * w : 0;

		if (ack->words[w] >> real)
			return false;
	}
	return true;
}

/* The peer hears this half. */
static void flow_half_heard(struct flow_half *h, uint64_t now_ns)
{
	h->rto_since_ns = now_ns;
	h->probe_since_ns = now_ns;
	h->backoff = 0;
	h->nr_probes = 0;
}

/* Packets @top - i for the set bits i of @spurious were deemed lost, and had arrived. */
static FLOW_APART void flow_ack_spurious(struct flow *f, uint64_t now_ns, uint64_t top,
					 uint64_t spurious)
{
	uint32_t n = (uint32_t)__builtin_popcountll(spurious);

	bits_clear(f->lost, f->mask, top, spurious);
	f->nr_lost -= n;
	f->nr_spurious += n;
	if (top - (uint32_t)__builtin_ctzll(spurious) >= f->reo_seq)
		flow_reo_grow(f);
	flow_queue_word(f, &f->late_q, top, spurious);
	for (unsigned i = 0; i < FLOW_HALVES; i++)
		flow_half_heard(&f->half[i], now_ns);
}

/* It came after newer ones of its half: so late that the shortest window would deem it lost? Then an
 * OPEN may come late as well. This holds for as many packets as are remembered. */
static FLOW_APART void flow_late(struct flow *f, const struct flow_half *h, uint64_t now_ns,
				 uint64_t seq)
{
	if (now_ns >= f->sent[seq & f->mask].sent_ns + h->rack_rtt_ns + flow_reo_base(f))
		f->late_seq = f->tx_next + f->mask + 1;
}

/* Packets @top - i of @h for the set bits i of @fresh have arrived. */
FLOW_INLINE void flow_half_acked(struct flow *f, struct flow_half *h, uint64_t now_ns, uint64_t top,
				 uint64_t fresh)
{
	uint64_t newest = top - (uint32_t)__builtin_ctzll(fresh);
	uint64_t oldest = top - (63 - (uint32_t)__builtin_clzll(fresh));

	bits_clear(h->out, f->mask, top, fresh);
	h->nr_out -= (uint32_t)__builtin_popcountll(fresh);
	if (oldest == h->low)
		h->low = bits_next(h->out, f->mask, oldest + 1, f->tx_next);
	if (f->lossless)
		return;
	if (gx_unlikely(oldest < h->hi))
		flow_late(f, h, now_ns, oldest);
	if (newest >= h->hi) {
		h->hi = newest + 1;
		h->rack_rtt_ns = now_ns - GX_MIN(now_ns, f->sent[newest & f->mask].sent_ns);
	}
	flow_half_heard(h, now_ns);
}

/* Take one word of an ACK. Return: did it say anything new? */
static bool flow_ack_word(struct flow *f, uint64_t now_ns, uint64_t top, uint64_t word)
{
	uint64_t spurious = gx_unlikely(f->nr_lost) ? bits_get(f->lost, f->mask, top) & word : 0;
	uint64_t fresh = bits_get(f->half[0].out, f->mask, top) & word, more;

	if (fresh)
		flow_half_acked(f, &f->half[0], now_ns, top, fresh);
	if (f->half[1].nr_out && (more = bits_get(f->half[1].out, f->mask, top) & word)) {
		flow_half_acked(f, &f->half[1], now_ns, top, more);
		fresh |= more;
	}
	if (fresh | spurious)
		flow_age(f, now_ns, top - (63 - (uint32_t)__builtin_clzll(fresh | spurious)));
	if (spurious)
		flow_ack_spurious(f, now_ns, top, spurious);
	if (!fresh)
		return spurious;
	flow_queue_word(f, &f->acked_q, top, fresh);
	return true;
}

/* Take all words, oldest first. Packets further back than the ring have lost their slots to others.
 */
static bool flow_ack_words(struct flow *f, uint64_t now_ns, uint64_t top,
			   const struct gx_wire_ack *ack)
{
	uint64_t low = f->tx_next > f->mask ? f->tx_next - f->mask - 1 : 0;
	bool any = false;

	for (uint32_t w = ack->nr_words; w-- > 0;) {
		uint64_t word = ack->words[w];
		uint64_t first = top - 64ull * w; /* of this word: its bit 0 */

		if (!word || top < low + 64ull * w)
			continue;
		if (first - low < 63)
			word &= (2ull << (first - low)) - 1;
		any |= flow_ack_word(f, now_ns, first, word);
	}
	return any;
}

int flow_ack(struct flow *f, uint64_t now_ns, const struct gx_wire_ack *ack)
{
	uint64_t top = ack->largest - f->tx_first;

	if (!flow_ack_possible(f, ack))
		return -EPROTO;
	if ((int32_t)(ack->credit - f->tx_limit) > 0)
		f->tx_limit = ack->credit;
	if ((int32_t)(ack->marks - f->tx_marks) > 0)
		f->tx_marks = ack->marks;
	if (flow_ack_words(f, now_ns, top, ack))
		f->news_ns = now_ns;
	if (top >= f->hi) {
		f->hi = top + 1;
		if (f->tx_next - top <= f->mask)
			flow_rtt_sample(f, now_ns, top, ack->delay_ns);
	}
	for (unsigned i = 0; i < FLOW_HALVES && !f->lossless; i++)
		flow_rack(f, &f->half[i], now_ns);
	return 0;
}

/* Probes (kind 0) are flow's own and stay here. */
FLOW_INLINE bool flow_queue_get(struct flow *f, struct flow_queue *q, struct flow_pkt *p)
{
	while (q->tail != q->head) {
		const struct flow_pkt *mine = &f->sent[q->slot[q->tail++ & f->mask]];

		if (mine->kind) {
			*p = *mine;
			return true;
		}
	}
	if (f->acked_q.tail == f->acked_q.head && f->lost_q.tail == f->lost_q.head &&
	    f->late_q.tail == f->late_q.head)
		f->held_low = FLOW_NEVER;
	return false;
}

static FLOW_APART bool flow_next_late(struct flow *f, struct flow_pkt *p)
{
	p->late = flow_queue_get(f, &f->late_q, p);
	return p->late;
}

bool flow_next_acked(struct flow *f, struct flow_pkt *p)
{
	if (flow_queue_get(f, &f->acked_q, p))
		return true;
	return gx_unlikely(f->late_q.tail != f->late_q.head) && flow_next_late(f, p);
}

bool flow_next_lost(struct flow *f, struct flow_pkt *p)
{
	return flow_queue_get(f, &f->lost_q, p);
}

void flow_sums(const struct flow *f, struct flow_sums *out)
{
	*out = (struct flow_sums){f->tx_next, f->rx_next - f->rx_skipped, f->srtt_ns, f->rx_used};
}

uint64_t flow_nr_sent(const struct flow *f)
{
	return f->tx_next;
}

const struct flow_pkt *flow_at(const struct flow *f, uint64_t place)
{
	return &f->sent[place & f->mask];
}

static uint32_t flow_queue_place(const struct flow *f, const struct flow_queue *q, uint32_t i)
{
	return i < q->head - q->tail ? q->slot[(q->tail + i) & f->mask] : FLOW_NO_PLACE;
}

uint32_t flow_acked_place(const struct flow *f, uint32_t i)
{
	return flow_queue_place(f, &f->acked_q, i);
}

uint32_t flow_lost_place(const struct flow *f, uint32_t i)
{
	return flow_queue_place(f, &f->lost_q, i);
}
