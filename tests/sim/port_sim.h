/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated network for tests: virtual time, seeded and planned impairments, all inside one
 * process. A test adds the port "sim" (gx_port_add()), opens a net, gives "net=<id>" as arguments
 * to such ports, and moves the clock itself. A packet leaves its queue at the link's rate, meets
 * the impairments, waits at the receiver's link, and lands there.
 */
#ifndef PORT_SIM_H
#define PORT_SIM_H

#include "gx_internal/port.h"

/* What a packet takes on the wire beside header and payload: Ethernet, IPv4, UDP */
#define SIM_FRAME_B 66

#define SIM_OWN_PEERS 8

extern struct gx_port_ops port_sim_ops;

struct sim_net;

#define SIM_PORT_FROM 1000 /* source port of path 0 of data; of control: 100 more */

/* From @at_ns on larger payloads vanish; 0: none do. */
struct sim_path {
	uint64_t at_ns;
	uint32_t payload_b;
};

/* Impairments meet packets in the order in which they leave; ppm: of 1,000,000 packets. */
struct sim_cfg {
	uint64_t seed;
	uint64_t rate_bps; /* of each queue's link, both directions; 0: infinite */
	uint64_t send_bps; /* of what leaves a queue, if that is faster; 0: rate_bps */
	uint64_t delay_ns; /* one way */
	uint64_t queue_b; /* waiting before a receiver's link, then packets are dropped; 0: no limit
			   */
	uint32_t loss_ppm, dup_ppm, corrupt_ppm; /* corrupt: one bit, header or payload */
	uint32_t rot_ppm; /* one bit of a data packet's payload turns over in the receiver's buffer
			   */
	uint32_t reorder_ppm;	 /* these packets are held back ... */
	uint32_t reorder_slots;	 /* ... for the time of so many packets of their size (at infinite
				    rate: us) */
	uint32_t path_payload_b; /* larger payloads vanish (MTU black hole), NEEDS_PROBE is set; 0:
				    none do */
	const struct sim_path *path; /* planned changes of path_payload_b, ascending; memory of the
					caller for the net's life */
	unsigned nr_path;
	const uint64_t *
		drop; /* planned loss: numbers of packets in order of leaving, from 0; ascending, */
	unsigned nr_drop; /* memory of the caller for the net's life */
	uint64_t dead; /* bit i: all packets from and to the i-th queue that was opened are lost */
	uint64_t
		liars; /* bit i: the packets of that queue are changed where it hurts, lie_ppm of them: a
			   field of the header, or a number in the payload */
	uint32_t lie_ppm;
	uint32_t paths; /* gx_port_caps.paths; set before ports open. */
	uint8_t dead_path[2]
			 [2]; /* [queue it leaves & 1][enum gx_half]: packets by these paths (bits)
				    are lost */
	bool peer_any;	      /* rx says GX_PEER_ANY, as most NICs do */
	bool attach;	      /* GX_PORT_TX_ATTACH: payload is read when the packet leaves */
	/* LOSSLESS and ORDERED: nothing is sent that the receiver has no room for. No impairments
	 * with it. */
	bool lossless;
	uint32_t ctl_nr; /* lossless: control packets that a peer leaves lying until there is no
			    room for more; 0: 256 */
	bool own_slots;	 /* each peer has its own, SIM_OWN_PEERS a queue; else they share */
	int fault;	 /* what the queues' fault() says */
	bool realtime;	 /* the clock is gx_now_ns(), polling moves it; for threads */
};

/* At rest, sent + dup == lost + blackhole + queue_drop + nobuf + stray + delivered. */
struct sim_counts {
	uint64_t sent, lost, dup, reordered, corrupted, lies, rotten, blackhole, queue_drop, nobuf,
		stray, delivered;
	uint64_t bytes;			      /* payload delivered */
	uint64_t by_path[2][2][GX_PATHS_MAX]; /* sent: [queue & 1][enum gx_half][path] */
};

/** sim_net_open() - Return: 0, -ENOMEM, -ENOSPC (16 nets at once). Time starts at 1 ms. */
int sim_net_open(const struct sim_cfg *cfg, struct sim_net **out);
void sim_net_close(struct sim_net *net); /* its ports must have been closed */
unsigned sim_net_id(const struct sim_net *net);

uint64_t sim_net_now(struct sim_net *net);
/** sim_net_advance() - Let everything happen until @now_ns, which becomes the time. */
void sim_net_advance(struct sim_net *net, uint64_t now_ns);
/** sim_net_next() - When the next thing happens; UINT64_MAX: nothing is under way. */
uint64_t sim_net_next(struct sim_net *net);

/** sim_net_set() - Other impairments from now on; flags of ports, seed and clock stay. */
void sim_net_set(struct sim_net *net, const struct sim_cfg *cfg);
void sim_net_counts(struct sim_net *net, struct sim_counts *out);
/** sim_queue_free_bufs() - Bounce buffers of @q that nobody holds and nothing lies in. */
uint32_t sim_queue_free_bufs(struct gx_port_queue *q);

#endif
