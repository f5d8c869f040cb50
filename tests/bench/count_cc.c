/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What congestion control costs a sender: a flow whose packets go out and are acknowledged 16 at a
 * time, 64 under way, at a steady rate in virtual time. Prints the least time of a packet, of many
 * rounds. Under callgrind it counts: --toggle-collect=the_turn. Without a controller the flow
 * alone is measured: take that from the others.
 *
 * usage: count_cc none|rate|swift [rounds]
 */
#include "flow/pace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH	 16
#define BATCHES	 4 /* under way */
#define TURNS	 1000
#define STEP_NS	 16000 /* between batches: 1 us a packet */
#define PACKET_B 4096

struct bench {
	struct flow *tx;
	struct pace pace;
	uint64_t now_ns, first;
	struct gx_wire_ack ack;
};

void the_turn(struct bench *b);

/* What link_pkt does for an acknowledgement and for the packets that follow it. */
__attribute__((noipa)) void the_turn(struct bench *b)
{
	struct flow_pkt p = {.len = PACKET_B, .kind = 1};

	b->ack.largest += BATCH;
	b->ack.nr_words = 1;
	b->ack.words[0] = b->ack.largest < 63 ? (2ull << b->ack.largest) - 1 : UINT64_MAX;
	if (flow_ack(b->tx, b->now_ns, &b->ack))
		abort();
	if (b->pace.cc)
		pace_ack_end(&b->pace, b->tx, b->now_ns);
	while (flow_next_acked(b->tx, &p))
		;
	if (b->pace.cc)
		cc_room(b->pace.cc, b->now_ns, BATCH);
	for (unsigned i = 0; i < BATCH; i++)
		flow_sent(b->tx, b->now_ns, &p);
	if (b->pace.cc)
		pace_sent(&b->pace, b->tx);
}

static void bench_open(struct bench *b, enum cc_kind kind)
{
	struct flow_cfg fc = {.window = 4096, .tx_credit = UINT32_MAX / 2};
	struct cc_cfg cc = {
		.kind = kind, .places = 8192, .packet_b = PACKET_B + 60, .hdr_b = 60, .seed = 1};
	struct flow_pkt p = {.len = PACKET_B, .kind = 1};

	*b = (struct bench){.now_ns = 1000000000};
	if (flow_open(&fc, &b->tx) || (kind != CC_NONE && cc_open(&cc, &b->pace.cc)))
		abort();
	for (unsigned k = 0; k < BATCHES; k++, b->now_ns += STEP_NS)
		for (unsigned i = 0; i < BATCH; i++)
			flow_sent(b->tx, b->now_ns, &p);
	b->ack.largest = UINT64_MAX;
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "rate";
	unsigned rounds = argc > 2 ? (unsigned)atoi(argv[2]) : 300;
	uint64_t least = UINT64_MAX;
	struct bench b;

	bench_open(&b, !strcmp(kind, "rate")	? CC_RATE
		       : !strcmp(kind, "swift") ? CC_SWIFT
						: CC_NONE);
	for (unsigned r = 0; r < rounds; r++) {
		uint64_t from_ns = gx_now_ns();

		for (unsigned i = 0; i < TURNS; i++, b.now_ns += STEP_NS)
			the_turn(&b);
		least = GX_MIN(least, gx_now_ns() - from_ns);
	}
	printf("%s: %u packets, %.2f ns each at least\n", kind, rounds * TURNS * BATCH,
	       (double)least / (TURNS * BATCH));
	flow_close(b.tx);
	cc_close(b.pace.cc);
	return 0;
}
