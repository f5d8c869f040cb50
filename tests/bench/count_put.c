/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a put over queue pairs costs in instructions, with the scripted provider in place of a
 * device: run it under callgrind, which counts only inside a function: GX_URING=epoll valgrind
 * --fair-sched=yes --tool=callgrind --toggle-collect=the_post build/tests/count_put 64 2000. The
 * other one is the_turn: the turn that finds the completion. Prints the puts; the figures are in
 * docs/measured/rdma.md.
 *
 * usage: count_put BYTES PUTS [queue pairs]
 */
#include "verbs/verbs_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static struct gx_queue *queue; /* of the client's core */

int the_post(struct end *e, const struct gx_op *op);
bool the_turn(struct end *e, uint64_t now);

__attribute__((noipa)) int the_post(struct end *e, const struct gx_op *op)
{
	return gx_post(queue, e->ep, op, 1);
}

__attribute__((noipa)) bool the_turn(struct end *e, uint64_t now)
{
	return gx_core_turn(e->core, now);
}

int main(int argc, char *argv[])
{
	uint64_t len = argc > 1 ? strtoull(argv[1], NULL, 0) : 64;
	unsigned puts = argc > 2 ? atoi(argv[2]) : 2000, done = 0;
	struct rig *r = rig_up(argc > 3 ? atoi(argv[3]) : 1);
	struct gx_op op = op_to(&r->client, GX_OP_PUT, len);
	struct gx_comp comp;

	queue = gx_core_queue(r->client.core);
	for (unsigned i = 0; i < puts; i++) {
		const struct timespec ts = {.tv_nsec = 20000};

		if (the_post(&r->client, &op) != 1)
			return 1;
		script_run();
		nanosleep(&ts, NULL);
		while (!gx_poll(queue, &comp, 1))
			the_turn(&r->client, gx_now());
		done += comp.kind == GX_COMP_DONE && !comp.status;
		gx_core_turn(r->server.core, gx_now());
	}
	printf("%u puts of %llu bytes, %u done\n", puts, (unsigned long long)len, done);
	rig_free(r);
	return done != puts;
}
