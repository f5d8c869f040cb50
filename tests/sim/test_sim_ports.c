/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of a connection over several ports of the simulated network: which lane takes which port,
 * bytes over all of them with loss, and a port that goes silent.
 */
#include "sim/sim_rig.h"

#include <errno.h>
#include <string.h>

#define CORES 4
#define PART  (1u << 20)

static uint8_t src[CORES * PART];

static struct rig *ports_open(unsigned nr_ports, const struct sim_cfg *sim)
{
	rig_fill(src, sizeof(src), 1);
	return rig_open(&(struct rig_cfg){.sim = *sim,
					  .nr_cores = CORES,
					  .nr_ports = nr_ports,
					  .peer_timeout_ns = SECOND,
					  .mem_b = sizeof(src)});
}

static void put_on_lane(struct rig *r, unsigned lane, uint64_t len)
{
	struct gx_op op = {.kind = GX_OP_PUT,
			   .user = lane,
			   .addr = src + lane * PART,
			   .len = len,
			   .remote_off = lane * PART,
			   .token = r->peer[0].token};

	assert_int_equal(common_post(gx_conn_ep(r->conn[0][0], lane), &op, 1), 1);
}

/* Each lane moves its part, over its port. */
static void lanes_check(struct rig *r, unsigned nr_ports)
{
	for (int side = 0; side < 2; side++)
		for (unsigned lane = 0; lane < CORES; lane++) {
			struct pkt_ep *e = rig_lane(r, side, 0, lane);

			assert_int_equal(e->ep.port, lane % nr_ports);
			assert_ptr_equal(e->link, pkt_link(e->ep.core, lane % nr_ports));
		}
	for (unsigned lane = 0; lane < CORES; lane++)
		put_on_lane(r, lane, PART);
	rig_comps(r, 0, CORES, SECOND);
	for (unsigned i = 0; i < CORES; i++)
		assert_int_equal(r->last[0][i].status, 0);
	assert_memory_equal(rig_mem(r, 1), src, sizeof(src));
	rig_rest(r, SECOND);
}

static void lanes__take_ports_in_turn(void **state)
{
	for (unsigned nr_ports = 1; nr_ports <= RIG_PORTS; nr_ports++) {
		struct rig *r = ports_open(nr_ports, &(struct sim_cfg){.seed = nr_ports});
		struct gx_conn_info info = GX_INIT(info);

		lanes_check(r, nr_ports);
		assert_int_equal(gx_conn_info(r->conn[0][0], &info), 0);
		assert_int_equal(!strstr(info.why, "ports in turn"), nr_ports == 1);
		rig_close(r);
	}
}

static void lanes__with_loss(void **state)
{
	for (unsigned seed = 0; seed < 5; seed++) {
		struct rig *r = ports_open(2, &(struct sim_cfg){.seed = seed,
								.loss_ppm = 10000,
								.dup_ppm = 5000,
								.reorder_ppm = 50000,
								.reorder_slots = 30});

		lanes_check(r, 2);
		rig_close(r);
	}
}

static bool is_down(struct rig *r)
{
	return r->conn[0][0]->state == GX_CONN_STATE_DOWN &&
	       r->conn[1][0]->state == GX_CONN_STATE_DOWN && r->nr_last[0] == 3;
}

/* The second port of the client goes silent. Lanes of the other one work on until the time-out, and
 * the connection then ends with that port's name. */
static void port__goes_silent(void **state)
{
	struct rig *r = ports_open(2, &(struct sim_cfg){.seed = 1});
	struct sim_cfg cfg = r->cfg.sim;

	cfg.dead = ((1ull << CORES) - 1) << CORES; /* a port opens a queue for each core */
	rig_set(r, &cfg);
	put_on_lane(r, 0, PART);
	put_on_lane(r, 1, PART);
	put_on_lane(r, 2, PART);
	rig_pass(r, SECOND / 2);
	assert_int_equal(r->nr_last[0], 2);
	assert_memory_equal(rig_mem(r, 1), src, PART);
	assert_memory_equal(rig_mem(r, 1) + 2 * PART, src + 2 * PART, PART);
	rig_pass(r, 2 * SECOND);
	assert_int_equal(atomic_load(&r->conn[0][0]->ep[0]->fault), 0);
	assert_int_equal(atomic_load(&r->conn[0][0]->ep[1]->fault), -ETIMEDOUT);
	assert_int_equal(atomic_load(&r->conn[0][0]->ep[2]->fault), 0);
	rig_wait_real(r, is_down);
	assert_int_equal(r->conn[0][0]->err, -ETIMEDOUT);
	assert_int_equal(r->conn[0][0]->reason, GX_REASON_PEER_SILENT);
	assert_non_null(strstr(r->conn[0][0]->text, "on lane 1, over port sim:net="));
	assert_int_equal(r->nr_last[0], 3);
	assert_int_equal(r->last[0][2].user, 1);
	assert_true(r->last[0][2].status < 0);
	rig_close(r);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(lanes__take_ports_in_turn),
		rig_test(lanes__with_loss),
		rig_test(port__goes_silent),
	};

	return rig_run("sim_ports", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
