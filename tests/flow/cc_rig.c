/* SPDX-License-Identifier: Apache-2.0 */
#include "flow/cc_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WINDOW	 FLOW_WINDOW_MAX
#define CONTENTS (1u << 24) /* packets that a run may send */
#define TURN_NS	 2000	    /* between turns of a core that waits */

enum event_kind { EV_DATA, EV_ACK, EV_TIMER };

struct rig_event {
	uint64_t ns, nr;
	enum event_kind kind;
	uint32_t who;
	uint32_t psn, content;
	bool marked;
	struct gx_wire_ack *ack;
};

/* ---- Events, in order of time, then of making ---- */

static bool is_before(const struct rig_event *a, const struct rig_event *b)
{
	return a->ns < b->ns || (a->ns == b->ns && a->nr < b->nr);
}

static void event_put(struct rig *r, struct rig_event ev)
{
	size_t i = r->nr_events++;

	if (r->nr_events > r->cap_events) {
		r->cap_events = 2 * r->cap_events + 1024;
		r->heap = realloc(r->heap, r->cap_events * sizeof(*r->heap));
		assert_non_null(r->heap);
	}
	ev.nr = r->nr_made++;
	for (; i && is_before(&ev, &r->heap[(i - 1) / 2]); i = (i - 1) / 2)
		r->heap[i] = r->heap[(i - 1) / 2];
	r->heap[i] = ev;
}

static struct rig_event event_get(struct rig *r)
{
	struct rig_event first = r->heap[0], last = r->heap[--r->nr_events];
	size_t i = 0;

	for (;;) {
		size_t kid = 2 * i + 1;

		if (kid >= r->nr_events)
			break;
		if (kid + 1 < r->nr_events && is_before(&r->heap[kid + 1], &r->heap[kid]))
			kid++;
		if (is_before(&last, &r->heap[kid]))
			break;
		r->heap[i] = r->heap[kid];
		i = kid;
	}
	r->heap[i] = last;
	return first;
}

/* ---- Cubic ---- */

#define CUBIC_C	   0.4
#define CUBIC_BETA 0.7

static void cubic_acked(struct rig_cubic *q, uint64_t now_ns, uint64_t sent_ns)
{
	uint64_t rtt_ns = now_ns - sent_ns, late_ns;
	double k = cbrt(q->before * (1 - CUBIC_BETA) / CUBIC_C), t, want;

	q->rtt_min_ns = q->rtt_min_ns ? GX_MIN(q->rtt_min_ns, rtt_ns) : rtt_ns;
	late_ns = GX_MIN(GX_MAX(q->rtt_min_ns / 8, 4 * RIG_MS), 16 * RIG_MS);
	if (q->window < q->slow) {
		q->window++;
		if (q->window >= 16 && rtt_ns > q->rtt_min_ns + late_ns)
			q->slow = q->window;
		return;
	}
	if (!q->cut_ns) {
		q->cut_ns = now_ns;
		q->before = q->estimate = q->window;
		k = 0;
	}
	t = (double)(now_ns - q->cut_ns + rtt_ns) / 1e9;
	want = CUBIC_C * (t - k) * (t - k) * (t - k) + q->before;
	q->estimate += 3 * (1 - CUBIC_BETA) / (1 + CUBIC_BETA) / q->window;
	q->window += GX_MAX(want - q->window, 0.01) / q->window;
	q->window = GX_MAX(q->window, q->estimate);
}

/* Losses of one round trip count once. */
static void cubic_lost(struct rig_cubic *q, uint64_t now_ns, uint64_t sent_ns)
{
	if (sent_ns <= q->cut_ns)
		return;
	q->cut_ns = now_ns;
	q->before = q->window < q->before ? q->window * (1 + CUBIC_BETA) / 2 : q->window;
	q->window = GX_MAX(q->window * CUBIC_BETA, 2);
	q->slow = q->estimate = q->window;
}

/* ---- A sender's turn ---- */

static void conserved(struct rig *r, struct rig_sender *s)
{
	struct cc_state st;

	if (!s->pace.cc)
		return;
	cc_state(s->pace.cc, r->now_ns, &st);
	assert_int_equal(st.in_flight, flow_outstanding(s->tx));
	assert_int_equal(st.in_flight_b, s->out_b);
	r->hash = (r->hash ^ st.window_b ^ st.in_flight_b << 20) * 0x9e3779b97f4a7c15ull;
}

static struct way_fate way_of(struct rig *r, struct rig_sender *s, enum gx_half half,
			      uint32_t bytes)
{
	unsigned i = s->by[half];
	struct way_fate fate =
		way_take(i ? &r->more[i] : &r->way, r->now_ns, bytes, s->cfg.kind == CC_RATE);

	if (!s->paths)
		return fate;
	if (r->now_ns >= r->paths.dead[i].from_ns && r->now_ns < r->paths.dead[i].to_ns)
		fate.drop = WAY_DARK;
	paths_sent(s->paths, s->tx, half, i);
	return fate;
}

static void send_by(struct rig *r, struct rig_sender *s, enum gx_half half, uint32_t content,
		    uint32_t len, uint8_t kind, bool resend)
{
	struct flow_pkt p = {.pkt = content, .len = (uint16_t)len, .kind = kind, .resend = resend};
	uint32_t bytes = len + RIG_HDR_B;
	struct rig_event ev = {.kind = EV_DATA,
			       .who = (uint32_t)(s - r->s),
			       .psn = (uint32_t)flow_sent(s->tx, r->now_ns, &p),
			       .content = kind == 1 ? content : UINT32_MAX};
	struct way_fate fate = way_of(r, s, half, bytes);

	s->out_b += bytes;
	if (fate.drop != WAY_PASSES || fate.corrupt) /* its check sum is wrong */
		return;
	ev.ns = fate.due_ns + s->cfg.rtt_ns / 2;
	ev.marked = fate.mark;
	event_put(r, ev);
	if (fate.dup)
		event_put(r, ev);
}

static void send_one(struct rig *r, struct rig_sender *s, uint32_t content, uint32_t len,
		     uint8_t kind, bool resend)
{
	enum gx_half half = kind == 1 ? GX_HALF_DATA : GX_HALF_CTL;

	if (s->paths)
		s->by[half] = paths_pick(s->paths, half);
	if (!s->first_ns[s->by[half]] && kind == 1)
		s->first_ns[s->by[half]] = r->now_ns;
	s->data_ns[s->by[half]] = kind == 1 ? r->now_ns : s->data_ns[s->by[half]];
	send_by(r, s, half, content, len, kind, resend);
}

/* As tick_paths() of path.c. */
static void paths_turn(struct rig *r, struct rig_sender *s)
{
	uint32_t probe[2];

	if (!s->paths || !flow_outstanding(s->tx) || r->now_ns < paths_due(s->paths))
		return;
	paths_tick(s->paths, r->now_ns, probe);
	for (unsigned h = 0; h < 2; h++)
		for (; probe[h]; probe[h] &= probe[h] - 1) {
			s->by[h] = (unsigned)__builtin_ctz(probe[h]);
			send_by(r, s, h, 0, 64, 3, false);
		}
}

static void told(struct rig *r, struct rig_sender *s)
{
	if (s->paths)
		paths_ack_end(s->paths, s->tx, r->now_ns);
	if (s->pace.cc)
		pace_ack_end(&s->pace, s->tx, r->now_ns);
}

static void taken_out(struct rig *r, struct rig_sender *s)
{
	struct flow_pkt p;

	while (flow_next_acked(s->tx, &p)) {
		if (p.late)
			continue;
		s->out_b -= p.len + RIG_HDR_B;
		s->credit_out -= p.kind == 1 && !p.resend;
		s->known |= p.kind == 3;
		if (s->cfg.cubic)
			cubic_acked(&s->cubic, r->now_ns, p.sent_ns);
	}
	while (flow_next_lost(s->tx, &p)) {
		s->out_b -= p.len + RIG_HDR_B;
		s->asked &= p.kind == 1 || s->known;
		if (p.kind != 1)
			continue;
		s->credit_out -= !p.resend;
		if (s->cfg.cubic)
			cubic_lost(&s->cubic, r->now_ns, p.sent_ns);
		s->again[s->again_head++ % (4 * WINDOW)] = p.pkt;
	}
}

static bool has_more(const struct rig *r, const struct rig_sender *s)
{
	if (!s->known || r->now_ns < s->cfg.start_ns ||
	    (s->cfg.stop_ns && r->now_ns >= s->cfg.stop_ns))
		return false;
	if (s->cfg.total_b && s->next * s->cfg.payload_b >= s->cfg.total_b)
		return false;
	return !s->cfg.app_b_s ||
	       (double)(s->next * s->cfg.payload_b) <
		       (double)s->cfg.app_b_s * (double)(r->now_ns - s->cfg.start_ns) / 1e9;
}

static bool has_credit(const struct rig *r, const struct rig_sender *s)
{
	return !s->cfg.credit || (s->cfg.credit_ns && r->now_ns >= s->cfg.credit_ns) ||
	       s->credit_out < s->cfg.credit;
}

/* Return: something still waits. */
static bool send_some(struct rig *r, struct rig_sender *s)
{
	uint32_t room = flow_room(s->tx), out = flow_outstanding(s->tx);

	if (s->cfg.cubic)
		room = GX_MIN(room, s->cubic.window > out ? (uint32_t)s->cubic.window - out : 0);
	if (s->again_head == s->again_tail && !has_more(r, s)) {
		if (s->pace.cc)
			cc_short(s->pace.cc, r->now_ns, CC_BY_APP);
		return false;
	}
	if (s->pace.cc)
		room = GX_MIN(room, cc_room(s->pace.cc, r->now_ns, 64));
	for (; room; room--) {
		if (s->again_tail != s->again_head) {
			send_one(r, s, s->again[s->again_tail++ % (4 * WINDOW)], s->cfg.payload_b,
				 1, true);
			s->resent++;
			continue;
		}
		if (!has_more(r, s) || !has_credit(r, s)) {
			if (s->pace.cc)
				cc_short(s->pace.cc, r->now_ns,
					 has_more(r, s) ? CC_BY_CREDIT : CC_BY_APP);
			break;
		}
		assert_true(s->next < CONTENTS);
		send_one(r, s, (uint32_t)s->next++, s->cfg.payload_b, 1, false);
		s->credit_out++;
	}
	return true;
}

static uint64_t timer_next(struct rig *r, struct rig_sender *s, bool waits)
{
	uint64_t due = GX_MIN(flow_due(s->tx), flow_ack_due_ns(s->rx));

	if (s->paths && flow_outstanding(s->tx))
		due = GX_MIN(due, paths_due(s->paths));
	if (waits && s->pace.cc)
		due = GX_MIN(due, cc_due(s->pace.cc));
	else if (waits)
		due = GX_MIN(due, r->now_ns + 10 * TURN_NS);
	if (r->now_ns < s->cfg.start_ns)
		due = GX_MIN(due, s->cfg.start_ns);
	if (s->cfg.app_b_s && r->now_ns >= s->cfg.start_ns)
		due = GX_MIN(due, r->now_ns + 10 * TURN_NS);
	if (s->cfg.credit_ns > r->now_ns)
		due = GX_MIN(due, s->cfg.credit_ns);
	return due;
}

/* Stafford's mix, as in splitmix64. Return: below 100. */
static uint32_t dice(uint64_t x)
{
	x *= 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
	return (uint32_t)((x >> 32) % 100);
}

/* Does the core of the sender, or of the receiver, not run then? */
static bool is_off(const struct rig *r, const struct rig_sender *s, bool rx, uint64_t ns)
{
	uint64_t cycle_ns = s->cfg.on_ns + s->cfg.off_ns;

	if (!s->cfg.slice_ns)
		return !rx && s->cfg.off_ns && ns % cycle_ns >= s->cfg.on_ns;
	return dice(ns / s->cfg.slice_ns + 1000003 * (2 * r->seed + rx)) <
	       (rx ? s->cfg.rx_off_pct : s->cfg.tx_off_pct);
}

static void turn(struct rig *r, struct rig_sender *s)
{
	uint64_t due;
	bool waits;

	if (r->now_ns >= flow_due(s->tx)) {
		unsigned what = flow_tick(s->tx, r->now_ns);

		told(r, s);
		if (s->pace.cc && what & FLOW_RTO)
			cc_timeout(s->pace.cc, r->now_ns);
		taken_out(r, s);
		if (what & FLOW_PROBE)
			send_one(r, s, 0, 0, 3, false);
	}
	if (!s->asked && r->now_ns >= s->cfg.start_ns) {
		s->asked = true;
		send_one(r, s, 0, 0, 3, false);
	}
	paths_turn(r, s);
	waits = send_some(r, s);
	if (s->pace.cc)
		pace_sent(&s->pace, s->tx);
	conserved(r, s);
	due = timer_next(r, s, waits);
	if (due == UINT64_MAX)
		return;
	due = GX_MAX(due, r->now_ns + TURN_NS);
	if (s->timer_ns > r->now_ns && s->timer_ns <= due)
		return;
	s->timer_ns = due;
	event_put(r, (struct rig_event){.ns = due, .kind = EV_TIMER, .who = (uint32_t)(s - r->s)});
}

/* ---- What comes ---- */

static void ack_send(struct rig *r, struct rig_sender *s)
{
	struct rig_event ev = {.kind = EV_ACK,
			       .who = (uint32_t)(s - r->s),
			       .ns = r->now_ns + s->cfg.rtt_ns - s->cfg.rtt_ns / 2};

	if (!flow_ack_due(s->rx, r->now_ns))
		return;
	ev.ack = calloc(1, sizeof(*ev.ack));
	assert_non_null(ev.ack);
	if (!flow_ack_build(s->rx, r->now_ns, ev.ack)) {
		free(ev.ack);
		return;
	}
	if (s->cfg.lie)
		ev.ack->marks = s->lied += s->cfg.lie;
	if (dice(r->nr_made + 1000003 * r->seed) < s->cfg.ack_late_pct)
		ev.ns += s->cfg.rtt_ns;
	if (dice(r->nr_made + 1000033 * r->seed) < s->cfg.ack_lost_pct) {
		free(ev.ack);
		return;
	}
	event_put(r, ev);
}

static void data_came(struct rig *r, struct rig_sender *s, const struct rig_event *ev)
{
	uint32_t c = ev->content;

	if (flow_rx_look(s->rx, ev->psn) != FLOW_RX_NEW) {
		flow_rx_again(s->rx, r->now_ns);
		return;
	}
	flow_rx_take(s->rx, r->now_ns, ev->psn, c == UINT32_MAX);
	if (ev->marked)
		flow_rx_marked(s->rx);
	if (c == UINT32_MAX)
		return;
	if (s->seen[c / 64] >> (c & 63) & 1) {
		s->late++;
		return;
	}
	s->seen[c / 64] |= 1ull << (c & 63);
	s->last_gap_ns = GX_MAX(s->last_gap_ns, r->now_ns - GX_MAX(s->got_ns, r->since_ns));
	s->got_ns = r->now_ns;
	if (!s->first_got_ns)
		s->first_got_ns = r->now_ns;
	s->got++;
	s->got_b += s->cfg.payload_b;
	if (s->cfg.total_b && s->got_b >= s->cfg.total_b && !s->done_ns)
		s->done_ns = r->now_ns;
}

static void ack_came(struct rig *r, struct rig_sender *s, struct gx_wire_ack *ack)
{
	assert_int_equal(flow_ack(s->tx, r->now_ns, ack), 0);
	free(ack);
	told(r, s);
	taken_out(r, s);
	turn(r, s);
}

/* A core that does not run finds what came when it runs again: packets first, as in a turn. */
static bool put_off(struct rig *r, struct rig_sender *s, const struct rig_event *ev)
{
	uint64_t step = s->cfg.slice_ns ? s->cfg.slice_ns : s->cfg.on_ns + s->cfg.off_ns;
	struct rig_event later = *ev;
	bool rx = ev->kind == EV_DATA;

	if (!is_off(r, s, rx, r->now_ns))
		return false;
	do
		later.ns = (later.ns / step + 1) * step;
	while (is_off(r, s, rx, later.ns));
	later.ns += ev->kind == EV_TIMER;
	event_put(r, later);
	return true;
}

static void event_do(struct rig *r, const struct rig_event *ev)
{
	struct rig_sender *s = &r->s[ev->who];

	r->now_ns = ev->ns;
	if (put_off(r, s, ev))
		return;
	switch (ev->kind) {
	case EV_DATA:
		data_came(r, s, ev);
		break;
	case EV_ACK:
		ack_came(r, s, ev->ack);
		break;
	case EV_TIMER:
		turn(r, s);
		break;
	}
	ack_send(r, s);
	if (flow_ack_due_ns(s->rx) != UINT64_MAX && flow_ack_due_ns(s->rx) < s->timer_ns) {
		s->timer_ns = GX_MAX(flow_ack_due_ns(s->rx), r->now_ns + TURN_NS);
		event_put(r, (struct rig_event){.ns = s->timer_ns,
						.kind = EV_TIMER,
						.who = (uint32_t)(s - r->s)});
	}
}

/* ---- Open, run, close ---- */

static void sender_open(struct rig_sender *s, const struct rig_sender_cfg *cfg, uint64_t seed)
{
	struct flow_cfg fc = {.window = WINDOW, .tx_credit = UINT32_MAX / 2};
	struct cc_cfg cc = {.kind = cfg->kind,
			    .places = 2 * WINDOW,
			    .packet_b = cfg->payload_b + RIG_HDR_B,
			    .hdr_b = RIG_HDR_B,
			    .seed = seed};

	*s = (struct rig_sender){.cfg = *cfg, .cubic = {.window = 10, .slow = 1e9}};
	if (cfg->cubic_slow)
		s->cubic.slow = cfg->cubic_slow;
	assert_int_equal(flow_open(&fc, &s->tx), 0);
	fc.ack_every = cfg->ack_every;
	assert_int_equal(flow_open(&fc, &s->rx), 0);
	if (cfg->kind != CC_NONE)
		assert_int_equal(cc_open(&cc, &s->pace.cc), 0);
	s->again = calloc(4 * WINDOW, sizeof(*s->again));
	s->seen = calloc(CONTENTS / 64, sizeof(*s->seen));
	assert_true(s->again && s->seen);
}

void rig_open(struct rig *r, const struct way_cfg *way, const struct rig_sender_cfg *s, unsigned nr,
	      uint64_t seed)
{
	*r = (struct rig){.nr = nr, .seed = seed};
	assert_true(nr <= RIG_SENDERS);
	assert_int_equal(way_open(&r->way, way), 0);
	for (unsigned i = 0; i < nr; i++) {
		sender_open(&r->s[i], &s[i], seed * 1000003 + i);
		event_put(r, (struct rig_event){.ns = s[i].start_ns, .kind = EV_TIMER, .who = i});
	}
}

void rig_paths(struct rig *r, const struct rig_paths_cfg *cfg)
{
	struct paths_cfg pc = {.places = 2 * WINDOW, .nr = cfg->nr, .spread = cfg->spread};

	r->paths = *cfg;
	way_close(&r->way);
	assert_int_equal(way_open(&r->way, &cfg->way[0]), 0);
	for (unsigned i = 1; i < cfg->nr; i++)
		assert_int_equal(way_open(&r->more[i], &cfg->way[i]), 0);
	for (unsigned i = 0; i < r->nr; i++)
		assert_int_equal(paths_open(&pc, &r->s[i].paths), 0);
}

void rig_close(struct rig *r)
{
	while (r->nr_events)
		free(event_get(r).ack);
	for (unsigned i = 0; i < r->nr; i++) {
		flow_close(r->s[i].tx);
		flow_close(r->s[i].rx);
		cc_close(r->s[i].pace.cc);
		paths_close(r->s[i].paths);
		free(r->s[i].again);
		free(r->s[i].seen);
	}
	free(r->heap);
	way_close(&r->way);
	for (unsigned i = 1; i < r->paths.nr; i++)
		way_close(&r->more[i]);
}

void rig_run(struct rig *r, uint64_t until_ns)
{
	while (r->nr_events && r->heap[0].ns <= until_ns) {
		struct rig_event ev = event_get(r);

		event_do(r, &ev);
	}
	r->now_ns = until_ns;
	way_pass(&r->way, until_ns);
}

void rig_count_anew(struct rig *r)
{
	way_count_anew(&r->way, r->now_ns);
	r->since_ns = r->now_ns;
	for (unsigned i = 0; i < r->nr; i++) {
		struct rig_sender *s = &r->s[i];

		s->got = s->got_b = s->late = s->resent = s->last_gap_ns = 0;
	}
}

double rig_b_s(const struct rig *r, unsigned i)
{
	return (double)r->s[i].got_b * 1e9 / (double)(r->now_ns - r->since_ns);
}

double rig_part(const struct rig *r, double link_bps)
{
	double sum = 0;

	for (unsigned i = 0; i < r->nr; i++)
		sum += rig_b_s(r, i) * 8 * (r->s[i].cfg.payload_b + RIG_HDR_B) /
		       r->s[i].cfg.payload_b;
	return sum / link_bps;
}

double rig_jain(const struct rig *r)
{
	double sum = 0, squares = 0;

	for (unsigned i = 0; i < r->nr; i++) {
		sum += rig_b_s(r, i);
		squares += rig_b_s(r, i) * rig_b_s(r, i);
	}
	return sum * sum / (r->nr * squares);
}
