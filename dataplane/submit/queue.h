/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue for threads that own no core, as the files of submit/ share it. Private to them.
 *
 * A queue (struct gx_queue) has a lane to each core: a ring there, a ring back, and the records
 * that travel between. A record belongs to the queue's thread until it is in the ring there, to the
 * core until it is in the ring back; both rings hold all that can ever be in them, so that neither
 * side ever finds one full. A message over lanes has a record on each, and is put together again on
 * the queue's thread, so that no core waits for another.
 */
#ifndef GX_SUBMIT_QUEUE_H
#define GX_SUBMIT_QUEUE_H

#include "gx_internal/ring.h"
#include "submit/marks.h"

#define SUB_BURST      32	      /* records moved at once */
#define SUB_TAG	       ((uintptr_t)1) /* in a ring there: cancel it; in a ring back: LOCAL */
/* A cancellation of a record, the record again, and its cancellation may be on the way at once. */
#define SUB_PER_RECORD 4

/* Where a record is, as its core sees it. */
enum sub_state { SUB_IDLE, SUB_PEND, SUB_WAIT, SUB_POSTED };

struct sub_rec {
	/* written by the core */
	alignas(GX_CACHE_LINE) struct gx_route route; /* while not SUB_IDLE */
	struct sub_lane *lane;			      /* frozen */
	struct sub_rec *next;			      /* in ep->pend */
	uint64_t len, tag;
	int status;
	uint8_t state; /* enum sub_state */

	/* written by the thread while it is free */
	alignas(GX_CACHE_LINE) struct gx_op op;
	struct gx_ep *ep;
	uint32_t mark;		      /* in the queue's marks; SUB_NO_MARK */
	bool busy;		      /* thread: posted, and not come back */
	bool silent, cancelled;	      /* thread */
	struct sub_msg *msg;	      /* thread: what it is a part of; NULL: nothing */
	struct gx_conn *_Atomic conn; /* of ep, until its completion is taken; ctl reads it */
};

/* A message cut over lanes. owner: the queue's thread */
struct sub_msg {
	struct sub_msg *next; /* free ones */
	struct gx_op op;
	struct gx_ep *ep;
	uint32_t mark;
	unsigned left, locals; /* parts to come back; their LOCALs to come */
	bool imm;	       /* the immediate is still to be sent */
	bool cancelled;
	int err; /* of the first part that failed */
};

/* A queue's way to one core. */
struct sub_lane {
	struct gx_queue *q;
	struct gx_core *core;
	struct gx_ring *out, *back; /* records, tagged with SUB_TAG */
	struct sub_rec *recs;	    /* [q->depth] */

	/* owner: the queue's thread */
	struct sub_rec **free; /* stack */
	uint32_t nr_free;

	/* owner: core */
	alignas(GX_CACHE_LINE) struct sub_lane *next; /* in submit_core.lanes */
	uint32_t nr_in;				      /* records that are not SUB_IDLE */
	bool closing;

	struct gx_call attach, detach; /* ctl -> core */
	bool want_attach, want_detach; /* ctl: the core's inbox was full */
	_Atomic bool detached;	       /* core: its last touch */
};

/* owner: its thread, but for what says otherwise */
struct gx_queue {
	struct gx *gx;
	struct gx_queue *next; /* ctl: in gx->submits */
	bool closing;	       /* ctl */
	uint32_t depth;	       /* frozen */
	unsigned nr_lanes;     /* frozen: one for each core */
	struct sub_lane *lane[GX_CORES_MAX];
	struct marks *marks; /* NULL: no GPU was open */
	unsigned rover;	     /* lane that is polled first */
	unsigned spread;     /* lane that the next message begins with */
	struct sub_msg *msgs, *msg_free;
};

/* Completions that @op may still report. */
static inline unsigned sub_comps(const struct gx_op *op)
{
	bool sends = op->kind == GX_OP_PUT || op->kind == GX_OP_SEND;

	return 1 + (sends && op->flags & GX_OP_LOCAL);
}

static inline void sub_comp_set(struct gx_comp *comp, enum gx_comp_kind kind,
				const struct gx_op *op, struct gx_ep *ep, int status)
{
	*comp = (struct gx_comp){.kind = kind,
				 .op = op->kind,
				 .status = status,
				 .ep = ep,
				 .user = op->user,
				 .tag = op->tag};
}

/* -- submit.c, run on the core of the lane -- */

void submit_attach(struct gx_call *call); /* sub_lane.attach */
/** submit_detach() - sub_lane.detach: the queue's thread uses the lane no more. All its records
 * end, then ->detached says so. */
void submit_detach(struct gx_call *call);

/* -- queue.c, for stripe.c and comps.c: the queue's thread -- */

struct sub_rec *sub_rec_get(struct sub_lane *l); /* NULL: all are under way */
void sub_rec_put(struct sub_rec *r);
void sub_rec_fill(struct sub_rec *r, struct gx_ep *ep, const struct gx_op *op, uint32_t mark,
		  struct sub_msg *msg);
/** sub_rec_make() - A record of its own for @op; *@item is what sub_lane_send() takes.
 * Return: 0, -EAGAIN, or -errno with gx_error(). */
int sub_rec_make(struct gx_queue *q, struct gx_ep *ep, const struct gx_op *op, void **item);
/* There is always room. */
void sub_lane_send(struct sub_lane *l, void *const items[], uint32_t n);
int sub_conn_check(const struct gx_queue *q, const struct gx_conn *c); /* 0, or with gx_error() */
/** sub_stream_get() - A flag behind op->stream, SUB_NO_MARK where it names none.
 * Return: 0, -EAGAIN, or -errno with gx_error(). */
int sub_stream_get(struct gx_queue *q, const struct gx_op *op, uint32_t *mark);
/** sub_recs_cancel() - Cancel every record under way that belongs to @msg, or else to operations
 * of @user. Return: operations found. */
unsigned sub_recs_cancel(struct gx_queue *q, const struct sub_msg *msg, uint64_t user);

/* -- stripe.c, for comps.c: the queue's thread -- */

/** sub_msg_back() - A part is back. Return: the message is done, and @comp says so. */
bool sub_msg_back(struct gx_queue *q, struct sub_rec *r, struct gx_comp *comp);

#endif
