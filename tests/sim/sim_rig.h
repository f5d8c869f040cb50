/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two contexts or more in one process over a simulated network: connected by the real control path
 * over loopback, then turned by the test in virtual time. One thread; a run is a function of its
 * seed. Side 0 connects, side 1 listens. Side 0 may be several contexts, and each context is a
 * node: 0 the first client, 1 the server, 2 and up further clients. Connection i is that of client
 * i modulo their number. A node can stand still: its cores are not turned while the others are.
 */
#ifndef SIM_RIG_H
#define SIM_RIG_H

#include "packet/pkt.h"
#include "sim/port_sim.h"
#include "kit/common_post.h"

#include <setjmp.h>

#include <cmocka.h>

#define RIG_CONNS  64
#define RIG_NODES  6
#define RIG_PORTS  4
#define RIG_MEM_B  (24ull << 20) /* of each side's region, at most */
#define RIG_POISON 0xa5
#define RIG_GUARD  64 /* bytes that stay poison before and behind a destination */
#define MS	   1000000ull
#define SECOND	   1000000000ull

/* How to set a rig up; zero means the default everywhere. */
struct rig_cfg {
	struct sim_cfg sim; /* 0 delay_ns and rate_bps: 20 us, 100 Gb/s */
	uint32_t chunk_b, window, slots, quantum_b;
	int integrity; /* mode, as it is; with keys that both ends know where it needs some */
	enum gx_crc_by check;
	unsigned nr_conns;
	unsigned nr_clients; /* contexts of side 0 */
	unsigned
		nr_cores; /* of each side: as many lanes; tests look at lane 0 unless they say so */
	unsigned nr_ports;     /* of each side, RIG_PORTS at most: lanes take them in turn */
	uint64_t gpu_delay_ns; /* the CPU backend finishes this late */
	uint64_t peer_timeout_ns;
	bool gpu; /* region "mem" is memory of a GPU: of the CPU backend under device number 0 */
	uint64_t gpu_timeout_ns;
	uint64_t mem_b;	 /* of region "mem" */
	unsigned access; /* of the region "mem"; 0: put and get */
};

/* owner: the test's thread, but for what says otherwise. */
struct rig {
	struct rig_cfg cfg;
	struct sim_net *net;
	unsigned nr_nodes;
	struct gx *gx[RIG_NODES];
	struct gx_core *core[RIG_NODES]; /* the first one */
	struct gx_mem *mem[RIG_NODES];	 /* region "mem" of each */
	bool still[RIG_NODES];		 /* its cores are not turned */
	struct gx_region peer[2];	 /* the other side's region, as side i knows it */
	char addr[32];			 /* of the server */
	unsigned nr_conns;
	struct gx_conn *conn[2][RIG_CONNS];
	struct gx_ep *ep[2][RIG_CONNS];
	pthread_mutex_t lock; /* guards accepted and nr_accepted */
	struct gx_conn *accepted[RIG_CONNS];
	unsigned nr_accepted;
	bool closing;
	uint64_t now_ns;
	uint64_t random;
	void (*on_comp)(void *arg, int node, const struct gx_comp *comp);
	void *arg;
	struct gx_comp last[RIG_NODES][600]; /* completions kept when there is no on_comp */
	unsigned nr_last[RIG_NODES];
};

struct rig *rig_open(const struct rig_cfg *cfg);
void rig_close(struct rig *r); /* no check: see rig_rest() */
/* The only connection ends, with whatever is under way, and another one takes its place. */
void rig_reconnect(struct rig *r);

uint64_t rig_random(struct rig *r);
/* The cores of each node that does not stand still once, and what the network does until then.
 * True: something happened. */
bool rig_turn(struct rig *r);
/* Turn, and let time pass, until @done (NULL: never) or @ns have passed. True: done. */
bool rig_until(struct rig *r, bool (*done)(struct rig *r), uint64_t ns);
void rig_pass(struct rig *r, uint64_t ns);
void rig_idle(struct rig *r, uint64_t ns); /* where nothing is under way, in steps of 20 ms */
/* Wait in real time, with the cores turning, until @done; fails after 20 s. */
void rig_wait_real(struct rig *r, bool (*done)(struct rig *r));
/* Everything ends within @ns of virtual time, and then nothing is out at either end. */
void rig_rest(struct rig *r, uint64_t ns);
/* rig_rest() and rig_close(). */
void rig_done(struct rig *r);

void rig_set(struct rig *r, const struct sim_cfg *sim);
struct pkt_ep *rig_ep(struct rig *r, int side, unsigned conn);
struct pkt_ep *rig_lane(struct rig *r, int side, unsigned conn, unsigned lane);
/* The node that @side of connection @conn is on. */
int rig_node(const struct rig *r, int side, unsigned conn);
uint64_t rig_stat(struct rig *r, int node, const char *name);
uint8_t *rig_mem(struct rig *r, int node);

/* The GPU of @node finishes nothing from now on. Of one rig at a time; until the next one opens. */
void rig_gpu_stop(struct rig *r, int node);
void rig_gpu_go(void); /* the GPU that was stopped finishes work again */
/* The stream of the stopped GPU that a core has asked last does all that it holds. */
void rig_gpu_finish(void);

/* Bytes of a pattern: a function of seed and offset. */
void rig_fill(void *at, uint64_t len, uint64_t seed);
/* Fails unless @len bytes at @at are the pattern and RIG_GUARD bytes on either side are poison. */
void rig_check(const void *at, uint64_t len, uint64_t seed);
/* Fails unless it is all poison. */
void rig_check_poison(const void *at, uint64_t len);

/* Post one operation on connection 0, or @conn; it must be taken. */
void rig_post(struct rig *r, int side, const struct gx_op *op);
void rig_post_on(struct rig *r, int side, unsigned conn, const struct gx_op *op);
/* Turn until node @node has @n completions in last[] (or fail after a virtual @ns). */
void rig_comps(struct rig *r, int node, unsigned n, uint64_t ns);
void rig_forget(struct rig *r); /* last[] is empty again */

/* A test whose rig is closed when it failed half way. */
#define rig_test(fn) cmocka_unit_test_teardown(fn, rig_teardown)
int rig_teardown(void **state);
/* All tests, or those whose name contains the first argument's text; the second is added to every
 * seed. */
int rig_run(const char *group, const struct CMUnitTest tests[], size_t nr, int argc, char *argv[]);

#endif
