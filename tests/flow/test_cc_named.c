/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scenarios of two public suites, by their names and sizes, in virtual time (cc_rig.h): those of
 * the QUIC interop runner (testcases_quic.py, with its ns-3 options) and of picoquic
 * (cc_compete_test.c), with picoquic's target times. One table, one sender of gx whose transfer is
 * timed from its first packet to the last byte that comes. A run is a function of its seed; each row
 * runs twice, and must do the same.
 *
 * Where the rig has no such thing: acknowledgements have no link of their own, and jitter is packets
 * that come late by a fixed time. picoquic's link has 1.024^2 less than the megabits that it names, and
 * so it has here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "flow/cc_rig.h"

#include <cmocka.h>

#define MS     RIG_MS
#define S      RIG_S
#define MB     1000000ull
#define PICO   953674ull /* bit/s of picoquic's megabit a second */
#define PHASES 3

/* What befalls packets, until then; the last one has no end. ppm */
struct phase {
	uint64_t until_ns;
	uint32_t loss_ppm, burst_ppm, burst_len, corrupt_ppm, late_ppm;
	uint64_t late_ns;
};

struct scenario {
	const char *name;
	uint64_t bps, delay_ns, queue_b, total_b; /* delay: one way */
	uint64_t target_ns, missed_ns; /* missed: it takes so long at most; 0: it is met */
	uint64_t beside_b;	       /* a second one of gx sends so much; 0: there is none */
	unsigned cubic;		       /* streams of cubic beside it, without end */
	unsigned part[8]; /* of the rate in percent, for step_ns each; all 0: it is steady */
	uint64_t step_ns;
	uint64_t on_ns, off_ns, mark_b;
	uint32_t ack_lost_pct;
	unsigned seeds; /* 0: one */
	struct phase phase[PHASES];
};

#define INTEROP_AT(n, bytes, target, delay)                                                        \
	.name = "interop " n, .bps = 10 * MB, .delay_ns = (delay), .queue_b = 25 * 1500,           \
	.total_b = (bytes), .target_ns = (target)
#define INTEROP(n, bytes, target) INTEROP_AT(n, bytes, target, 15 * MS)
#define PICOQUIC_AT(n, delay_ms, queue_ms, target_ms, mb_s, bytes)                                 \
	.name = "picoquic " n, .bps = (mb_s)*PICO, .delay_ns = (delay_ms)*MS,                      \
	.queue_b = (queue_ms) * (mb_s)*PICO / 8000, .total_b = (bytes),                            \
	.target_ns = (target_ms)*MS
#define PICOQUIC(n, delay_ms, queue_ms, target_ms)                                                 \
	PICOQUIC_AT(n, delay_ms, queue_ms, target_ms, 10, 4 * MB)

/* The interop runner names no times but its own limit of 60 s. The targets of its rows: 1.2 times what
 * the link alone takes; for crosstraffic a third of the link. */
static const struct scenario row[] = {
	{INTEROP("transfer, goodput", 10 * MB, 10 * S), .seeds = 5},
	{INTEROP_AT("longrtt", 1000, 4 * S, 750 * MS)},
	{INTEROP("blackhole", 10 * MB, 14 * S), .on_ns = 5 * S, .off_ns = 2 * S},
	{INTEROP("transferloss, 2 %", 2 * MB, 3 * S), .ack_lost_pct = 2, .seeds = 5,
	 .phase = {{.loss_ppm = 20000}}},
	{INTEROP("transfercorruption, 2 %", 2 * MB, 3 * S), .ack_lost_pct = 2, .seeds = 5,
	 .phase = {{.corrupt_ppm = 20000}}},
	{INTEROP("handshakeloss, 30 %, 1 KB", 1000, 5 * S), .ack_lost_pct = 30, .seeds = 50,
	 .phase = {{.burst_ppm = 125000, .burst_len = 3}}},
	{INTEROP("handshakecorruption, 30 %", 1000, 5 * S), .ack_lost_pct = 30, .seeds = 50,
	 .phase = {{.corrupt_ppm = 300000}}},
	{INTEROP("amplificationlimit, first packets lost", 1000, 2 * S),
	 .phase = {{.until_ns = 30 * MS, .loss_ppm = 1000000}}},
	{INTEROP("ecn", 10 * MB, 10 * S), .mark_b = 5 * 1500},
	{INTEROP("crosstraffic", 25 * MB, 62 * S), .cubic = 1},
	{PICOQUIC("compete, 4 MB beside 10", 10, 40, 8500), .beside_b = 10 * MB},
	{PICOQUIC_AT("compete, marks of L4S", 25, 200, 5000, 50, 4 * MB), .beside_b = 10 * MB,
	 .mark_b = 50 * PICO * 15 / 8000},
	{PICOQUIC_AT("compete with cubic, 20 Mb/s", 40, 500, 10000, 20, 4 * MB), .cubic = 1},
	{PICOQUIC("asymmetric", 300, 600, 7500)},
	{PICOQUIC("blackhole", 40, 80, 6000), .step_ns = 2 * S,
	 .part = {100, 0, 100, 100, 100, 100, 100, 100}},
	{PICOQUIC("drop and back", 40, 80, 5000), .missed_ns = 6500 * MS, .step_ns = S / 2,
	 .part = {100, 100, 100, 50, 50, 50, 50, 100}},
	{PICOQUIC("low and up", 40, 80, 5500), .missed_ns = 6000 * MS, .step_ns = 5 * S / 2,
	 .part = {50, 100, 100, 100, 100, 100, 100, 100}},
	{PICOQUIC("wifi fade", 5, 15, 7000), .step_ns = S,
	 .part = {100, 90, 90, 100, 100, 100, 100, 100},
	 .phase = {{.until_ns = S}, {.until_ns = 3 * S, .late_ppm = 500000, .late_ns = 24 * MS}}},
	{PICOQUIC("wifi suspension", 5, 15, 4000), .on_ns = 1800 * MS, .off_ns = 200 * MS},
	{PICOQUIC("bad wifi", 1, 80, 4500), .phase = {{.late_ppm = 500000, .late_ns = 25 * MS}}},
	{PICOQUIC("varylink", 5, 15, 7000), .step_ns = S,
	 .part = {100, 10, 10, 100, 100, 100, 100, 100},
	 .phase = {{.until_ns = S}, {.until_ns = 3 * S, .burst_ppm = 111000, .burst_len = 2}}},
	{PICOQUIC_AT("satellite, nothing known before", 300, 600, 7250, 50, 20 * MB)},
};

static void phase_set(struct rig *r, const struct phase *p)
{
	r->way.cfg.loss_ppm = p->loss_ppm;
	r->way.cfg.burst_ppm = p->burst_ppm;
	r->way.cfg.burst_len = p->burst_len;
	r->way.cfg.corrupt_ppm = p->corrupt_ppm;
	r->way.cfg.late_ppm = p->late_ppm;
	r->way.cfg.late_ns = p->late_ns;
}

/* Return: when the last byte came; 0: not in twice the target. */
static uint64_t done_ns(const struct scenario *sc, unsigned seed, uint64_t *hash)
{
	struct rig_sender_cfg s[3] = {{.kind = CC_RATE,
				       .payload_b = 1440,
				       .rtt_ns = 2 * sc->delay_ns,
				       .total_b = sc->total_b,
				       .ack_lost_pct = sc->ack_lost_pct}};
	struct way_cfg way = {.seed = 7 + seed,
			      .nr_rates = sc->step_ns ? 8 : 1,
			      .rate_bps = {sc->bps},
			      .step_ns = sc->step_ns,
			      .queue_b = sc->queue_b,
			      .mark_b = sc->mark_b,
			      .on_ns = sc->on_ns,
			      .off_ns = sc->off_ns};
	unsigned nr = 1;
	uint64_t end_ns;
	struct rig r;

	for (unsigned i = 0; sc->step_ns && i < 8; i++)
		way.rate_bps[i] = sc->bps * sc->part[i] / 100;
	if (sc->beside_b) {
		s[nr] = s[0];
		s[nr++].total_b = sc->beside_b;
	}
	for (unsigned i = 0; i < sc->cubic; i++)
		s[nr++] = (struct rig_sender_cfg){.cubic = true,
						  .ack_every = 2,
						  .payload_b = 1440,
						  .rtt_ns = 2 * sc->delay_ns};
	rig_open(&r, &way, s, nr, 1 + seed);
	for (unsigned i = 0; i < PHASES; i++) {
		phase_set(&r, &sc->phase[i]);
		if (!sc->phase[i].until_ns)
			break;
		rig_run(&r, sc->phase[i].until_ns);
	}
	for (end_ns = r.now_ns; !r.s[0].done_ns && end_ns < 2 * sc->target_ns; end_ns += 10 * MS)
		rig_run(&r, end_ns);
	end_ns = r.s[0].done_ns;
	*hash = r.hash;
	rig_close(&r);
	return end_ns;
}

static int by_time(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* The median of the seeds is in time, and each one gets there. */
static void named__in_time(void **state)
{
	unsigned late = 0;

	for (unsigned i = 0; i < sizeof(row) / sizeof(*row); i++) {
		unsigned seeds = GX_MAX(row[i].seeds, 1u);
		uint64_t took[50], hash, again;

		for (unsigned k = 0; k < seeds; k++) {
			took[k] = done_ns(&row[i], k, &hash);
			took[k] = took[k] ? took[k] : UINT64_MAX;
		}
		if (row[i].total_b <= 4 * MB) {
			done_ns(&row[i], seeds - 1, &again);
			assert_int_equal(hash, again);
		}
		qsort(took, seeds, sizeof(*took), by_time);
		printf("%-48s %6.2f s, longest %6.2f, target %5.2f%s\n", row[i].name,
		       (double)took[seeds / 2] / 1e9, (double)took[seeds - 1] / 1e9,
		       (double)row[i].target_ns / 1e9,
		       took[seeds / 2] > row[i].target_ns ? " MISSED" : "");
		late += took[seeds / 2] > GX_MAX(row[i].target_ns, row[i].missed_ns) ||
			took[seeds - 1] == UINT64_MAX;
	}
	assert_int_equal(late, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(named__in_time)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
