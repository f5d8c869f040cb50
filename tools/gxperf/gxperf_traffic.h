/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load generator: flows of messages over endpoints, run by the threads of the cores.
 * gxperf_put.c plans them and starts a phase; gxperf_traffic.c is what the cores do in it.
 */
#ifndef GXPERF_TRAFFIC_H
#define GXPERF_TRAFFIC_H

#include "gxperf/gxperf.h"

/** struct traffic_plan - What all flows of one size have in common. Frozen during a phase. */
struct traffic_plan {
	enum gx_op_kind op; /* PUT, GET, SEND */
	uint64_t size, stride;
	struct check_ring ring;
	uint64_t nr_slots; /* check_ring_total() */
	uint32_t depth;	   /* messages of a flow under way, at most ring.nr_slots; may become
			      fewer between two phases */
	bool fixed; /* slot s always holds message s: payload that cannot be stamped on the way */
	bool same;  /* every message from and to slot 0, many at once */
	bool stamp; /* stamp (put, send) or poison the stamps (get) before each post */
	struct gx_mem *local;
	enum gx_mem_kind local_kind;
};

enum traffic_slot {
	TRAFFIC_SLOT_FREE,
	TRAFFIC_SLOT_READY,
	TRAFFIC_SLOT_POSTED,
	TRAFFIC_SLOT_CHECK
};
enum traffic_check_state {
	TRAFFIC_CHECK_NONE,
	TRAFFIC_CHECK_ASKED,   /* the server looks */
	TRAFFIC_CHECK_REPLIED, /* written by the control thread */
	TRAFFIC_CHECK_LOCAL,   /* this core looks, piece by piece */
};

/* The check of one group of messages, while others go on. */
struct traffic_check {
	struct rpc_wait wait; /* first: the reply finds the rest through it */
	_Atomic int state;
	int err;		   /* with REPLIED */
	struct check_result reply; /* with REPLIED */
	uint64_t first;		   /* number of the group's first message */
	uint64_t nr_done;	   /* messages of the group that have landed */
	uint64_t slot, at;	   /* LOCAL: how far */
};

/** struct traffic_flow - Messages over one endpoint. Owner: its core's thread during a phase, else main. */
struct traffic_flow {
	const struct traffic_plan *plan;
	struct perf_conn *conn;
	unsigned lane;
	struct gx_ep *ep;
	uint64_t remote_off, local_off; /* of slot 0 */
	unsigned char *local;		/* address of slot 0, or NULL: not the CPU's to write */
	uint8_t *state;			/* of each slot: enum traffic_slot */
	uint64_t *number;		/* of the message in each slot */
	uint64_t *post_ns;
	uint64_t prep, post; /* number of the next message to prepare, to post */
	uint64_t first;	     /* of this phase */
	uint64_t prep_stamp; /* stamps of message prep that are done */
	uint64_t poisoned;   /* messages below this number were wiped out again after the warm-up */
	uint64_t spoiled; /* messages from post on whose slots were prepared, wholly or in part, and
			     not posted */
	uint64_t limit;	  /* no message from this number on */
	uint32_t in_flight;
	int err; /* of the first operation that failed */
	struct traffic_check check;
	struct gx_op op;     /* what all operations have in common */
	struct gx_op *burst; /* same: TRAFFIC_BURST times that; else NULL */
	uint64_t time_mask;  /* same: of post_ns, by number */
	uint64_t taken; /* same: completions so far; they come in the order of posting, or nearly */
};

/** struct traffic_core - A core's share of the flows. Owner: its thread during a phase, else main. */
struct traffic_core {
	struct perf_job job; /* first */
	struct perf_core *core;
	struct gx_queue *queue; /* not NULL: all goes through it, over all lanes of a connection */
	struct traffic_flow **flows;
	unsigned nr_flows;
	uint64_t deadline_ns;	   /* 0: by the limits; each flow posts one message all the same */
	uint64_t begin_ns, end_ns; /* set by the phase: first post, last completion */
	bool stopping;
	bool stopped;		     /* told to end by a signal */
	bool gated;		     /* this phase goes by the gate: no limit but what it gives */
	_Atomic uint64_t count;	     /* messages landed in this phase; main reads for progress */
	struct check_result checked; /* of the groups looked at under way */
	struct hist hist;
	unsigned char *room; /* TRAFFIC_PIECE_B, for looking at GPU memory */
};

#define TRAFFIC_BURST	64     /* posts and completions at once */
#define TRAFFIC_PIECE_B 262144 /* looked at between two turns */

/** traffic_core_step() - struct perf_job's step. */
enum perf_step traffic_core_step(struct perf_job *job, uint64_t now_ns);

/**
 * traffic_verify_local() - Check (a piece of) a slot of a get's destination. @at: a multiple of
 * CHECK_PAGE_B. Return: 0, -errno of gx_mem_copy_out().
 */
int traffic_verify_local(const struct traffic_flow *f, uint64_t slot, uint64_t at, uint64_t len,
			 unsigned char *room, struct check_result *res);

/** traffic_number() - What is stamped into @slot now; UINT64_MAX: nothing has been sent to it since it
 * was poisoned. */
uint64_t traffic_number(const struct traffic_flow *f, uint64_t slot);

/** traffic_is_spoiled() - After a phase: was this slot prepared for a message that was not posted? A
 * get's destination is poisoned by that, so what it held cannot be checked any more. */
bool traffic_is_spoiled(const struct traffic_flow *f, uint64_t slot);
/** traffic_rollback() - After a phase: forget what was prepared and not posted. */
void traffic_rollback(struct traffic_flow *f);

#endif
