/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load generator: flows of messages over endpoints, on the threads of the cores. move/put.c
 * plans them and starts a phase; traffic.c does the cores' work in it.
 */
#ifndef GXPERF_TRAFFIC_H
#define GXPERF_TRAFFIC_H

#include "gxperf/base/perf.h"

/** struct traffic_plan - Common values of all flows of one size. Frozen during a phase. */
struct traffic_plan {
	enum gx_op_kind op; /* PUT, GET, SEND */
	uint64_t size, stride;
	struct check_ring ring;
	uint64_t nr_slots; /* check_ring_total() */
	/* Messages of a flow under way, at most ring.nr_slots; may be reduced between two
	 * phases. */
	uint32_t depth;
	bool fixed; /* slot s always holds message s: its payload cannot be stamped later */
	bool same;  /* every message goes from and to slot 0, many at once */
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
	TRAFFIC_CHECK_ASKED,   /* the server checks */
	TRAFFIC_CHECK_REPLIED, /* written by the control thread */
	TRAFFIC_CHECK_LOCAL,   /* this core checks, piece by piece */
};

/* The check of one group of messages, while others go on. */
struct traffic_check {
	struct rpc_wait wait; /* first: the reply is cast back to this struct */
	_Atomic int state;
	int err;		   /* with REPLIED */
	struct check_result reply; /* with REPLIED */
	uint64_t first;		   /* number of the group's first message */
	uint64_t nr_done;	   /* messages of the group that have completed */
	uint64_t slot, at;	   /* LOCAL: position of the check */
};

/** struct traffic_flow - Messages over one endpoint. Owner: its core's thread during a phase, else main. */
struct traffic_flow {
	const struct traffic_plan *plan;
	struct perf_conn *conn;
	unsigned lane;
	bool back; /* --bidirectional: of the other direction than the command's */
	struct gx_ep *ep;
	uint64_t remote_off, local_off; /* of slot 0 */
	unsigned char *local;		/* address of slot 0; NULL: the CPU cannot write there */
	uint8_t *state;			/* of each slot: enum traffic_slot */
	uint64_t *number;		/* message in each slot */
	uint64_t *post_ns;
	uint64_t prep, post; /* number of the next message to prepare, to post */
	uint64_t first;	     /* first message of this phase */
	uint64_t prep_stamp; /* stamps of message prep that are written */
	uint64_t poisoned;   /* messages below this number are of the warm-up, poisoned again */
	/* Messages from post on whose slots were prepared, at least in part, but not posted. */
	uint64_t spoiled;
	uint64_t limit; /* end: no message from this number on */
	uint32_t in_flight;
	int err; /* status of the first operation that failed */
	struct traffic_check check;
	struct gx_op op;     /* the part that all operations share */
	struct gx_op *burst; /* same: TRAFFIC_BURST copies of op; else NULL */
	uint64_t time_mask;  /* same: index mask of post_ns, by number */
	uint64_t taken; /* same: completions so far; they come nearly in the order of posting */
};

/** struct traffic_way - What a core did in a phase, in one direction. */
struct traffic_dir {
	uint64_t end_ns;	     /* last completion */
	_Atomic uint64_t count;	     /* messages completed; main reads it for progress */
	struct check_result checked; /* results of checks during the phase */
	struct hist hist;
};

/** struct traffic_core - A core's share of the flows. Owner: its thread during a phase, else
 * main. */
struct traffic_core {
	struct perf_job job; /* first */
	struct perf_core *core;
	struct gx_queue *queue; /* the core's; --stripe: perf.queue, over all lanes */
	struct traffic_flow **flows;
	unsigned nr_flows;
	uint64_t deadline_ns; /* 0: only limits count; each flow posts at least one message */
	uint64_t begin_ns;    /* set in the phase: first step */
	bool stopping;
	bool stopped;		   /* a signal asked to end */
	bool throttled;		   /* this phase follows the throttle, without a limit of its own */
	struct traffic_dir dir[2]; /* [1]: of flows that go back */
	unsigned char *room;	   /* TRAFFIC_PIECE_B, for checks of GPU memory */
};

#define TRAFFIC_BURST	64     /* most posts and completions at once */
#define TRAFFIC_PIECE_B 262144 /* bytes to check between two turns */

/** traffic_core_step() - struct perf_job's step. */
enum perf_step traffic_core_step(struct perf_job *job, uint64_t now_ns);

/**
 * traffic_verify_local() - Check (a piece of) a slot of a get's destination. @at: a multiple of
 * CHECK_PAGE_B. Return: 0, -errno of gx_mem_copy_out().
 */
int traffic_verify_local(const struct traffic_flow *f, uint64_t slot, uint64_t at, uint64_t len,
			 unsigned char *room, struct check_result *res);

/** traffic_number() - The stamp in @slot; UINT64_MAX: no message went there since it was
 * poisoned. */
uint64_t traffic_number(const struct traffic_flow *f, uint64_t slot);

/** traffic_is_spoiled() - After a phase: was this slot prepared for a message that was not posted?
 * For a get that poisons the destination, so its last message cannot be checked any more. */
bool traffic_is_spoiled(const struct traffic_flow *f, uint64_t slot);
/** traffic_rollback() - After a phase: undo slots that were prepared and not posted. */
void traffic_rollback(struct traffic_flow *f);

#endif
