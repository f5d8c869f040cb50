/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One seed of the random load from its begin to its end.
 */
#include "sim/all.h"

#include <dirent.h>
#include <stdlib.h>

#define END_NS (3 * ALL_S) /* in which all ends once nothing is lost and all nodes turn */

static unsigned nr_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

/* Operations that will say that they have ended. */
static unsigned nr_waited(bool messages)
{
	unsigned n = 0;

	for (uint32_t i = 1; i <= world->nr_ops; i++) {
		const struct aop *op = &world->op[i];

		n += op->state == OPS_OPEN && (!(op->flags & GX_OP_SILENT) || op->cancelled) &&
		     (messages || (op->kind != GX_OP_SEND && op->kind != GX_OP_RECV));
	}
	return n;
}

static bool all_ended(void)
{
	return !nr_waited(true);
}

static void calm_down(void)
{
	uint64_t end = world->now_ns + END_NS;

	world->step = world->cfg.nr_steps;
	world->calm = true;
	world_net(true);
	trace("the network is calm, and all nodes turn");
	world_until(all_ended, 2 * ALL_MS);
	cancel_waiting(); /* also silent ones */
	while (!all_ended() && world->now_ns < end) {
		cancel_waiting(); /* behind a fence others wait for them */
		world_until(all_ended, 5 * ALL_MS);
	}
	links_look();
	world_until(rest_is, END_NS);
	world_pass(3 * ALL_MS); /* an ACK that brings the last credit */
	rest_ask();
	world_until(rest_is, END_NS);
	comps_end();
	mem_check();
	rest_check();
}

static void links_begin(void)
{
	link_open(0, 0, 1);
	if (world->nr_nodes > 2)
		link_open(1, 2, chance(50) ? 1 : 0);
	if (chance(40))
		link_open(2, 1, 0);
}

static void links_end(void)
{
	for (unsigned i = 0; i < ALL_LINKS; i++)
		link_close(i, 0);
	world_pass(5 * ALL_MS);
	mem_check();
}

void all_one(const struct all_cfg *cfg, struct all_counts *out, uint64_t *hash)
{
	unsigned fds = nr_fds();
	uint64_t began_ns;

	world_open(cfg);
	began_ns = world->now_ns;
	links_begin();
	for (unsigned i = 0; i < cfg->nr_steps; i++)
		step_run(i);
	calm_down();
	links_end();
	world->counts.virtual_ns = world->now_ns - began_ns;
	*out = world->counts;
	*hash = world->hash;
	world->step++;
	world_close();
	if (nr_fds() != fds) {
		fprintf(stderr, "seed %llu: %u descriptors, not %u\n",
			(unsigned long long)cfg->seed, nr_fds(), fds);
		exit(1);
	}
}
