/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues, to which programs post. Private to the files of submit/.
 *
 * The queue of a core (struct gx_queue) has the core alone, and works on the thread that turns it.
 * That of any other thread has a lane to each core: a ring there, a ring back, and the requests
 * that travel between. The queue's thread owns a request until it puts it into the ring there. The
 * core owns it until it puts it into the ring back. Both rings have room for everything that can be
 * in them, so neither side ever finds one full. A message over lanes has a request on each of them.
 * The queue's thread puts it together again, so that no core waits for another.
 */
#ifndef GX_SUBMIT_QUEUE_H
#define GX_SUBMIT_QUEUE_H

#include "list/note.h"
#include "gx_internal/ring.h"
#include "gx_internal/sleep.h"
#include "list/list.h"
#include "submit/marks.h"

#define SUB_BURST	32	       /* requests moved at once */
#define SUB_TAG		((uintptr_t)1) /* in a ring there: cancel it; in a ring back: LOCAL */
/* A ring holds at most a cancellation of a request, the request again, and its cancellation: 3,
 * rounded up to a power of two. */
#define SUB_PER_REQUEST 4

/* Where a request is on its core. */
enum sub_state { SUB_IDLE, SUB_PEND, SUB_WAIT, SUB_POSTED };

/* An operation, or a message's part, on its way to a core and back. */
struct sub_req {
	/* the core writes these */
	alignas(GX_CACHE_LINE) struct gx_route route; /* while not SUB_IDLE */
	struct sub_lane *lane;			      /* frozen */
	struct sub_req *next;			      /* in ep->pend */
	uint64_t len, tag;
	int status;
	uint8_t state;	/* enum sub_state */
	bool counted;	/* a fence or a flush, with nothing before it in ep->pend: .ahead is set */
	uint32_t ahead; /* operations of its lane on the endpoint that it waits for */

	/* the thread writes these while the request is free */
	alignas(GX_CACHE_LINE) struct gx_op op;
	struct gx_ep *ep;
	uint32_t mark;		      /* in the queue's marks; SUB_NO_MARK: none */
	bool busy;		      /* thread: posted, not back yet */
	bool silent, cancelled;	      /* thread */
	bool striped;		      /* thread: posted on a connection, not on an endpoint */
	struct sub_msg *msg;	      /* thread: the message that it is a part of; NULL: none */
	uint64_t posted_ns;	      /* thread: 0: it is not timed, or a part */
	struct gx_conn *_Atomic conn; /* of ep, until its completion is taken; ctl reads it */
};

/* A message cut over lanes. owner: the queue's thread */
struct sub_msg {
	struct sub_msg *next; /* in gx_queue.msg_free */
	struct gx_op op;
	struct gx_ep *ep;
	uint32_t mark;
	unsigned left, locals;	   /* parts that are not back yet; their LOCALs that are not */
	bool imm;		   /* the immediate, or the note, has not been sent yet */
	struct sub_msg *note_next; /* in gx_queue.notes: with a note, in the order of posting */
	struct sub_req *last;	   /* all parts are back; this one holds the connection, until it
				      is the note's turn. NULL: they are not */
	bool cancelled;
	int err;	    /* of the first part that failed */
	uint64_t posted_ns; /* 0: it is not timed */
};

/* A queue's way to one core. */
struct sub_lane {
	struct gx_queue *q;
	struct gx_core *core;
	struct gx_ring *out, *back; /* requests, tagged with SUB_TAG */
	struct sub_req *reqs;	    /* [q->depth] */

	/* owner: the queue's thread */
	struct sub_req **free; /* stack */
	uint32_t nr_free;

	/* owner: core */
	alignas(GX_CACHE_LINE) struct sub_lane *next; /* in submit_core.lanes */
	uint32_t nr_in;				      /* requests that are not SUB_IDLE */
	bool closing;

	struct note_sink sink; /* of a queue that takes notes; see note.h */

	struct gx_call attach, detach; /* ctl -> core */
	bool want_attach, want_detach; /* ctl: ask again, the core's inbox was full */
	_Atomic bool detached;	       /* core: it does not touch the lane after this */
};

/* owner: the queue's thread, unless a field says otherwise */
struct gx_queue {
	struct gx_core *
		core; /* frozen; its queue, which uses nothing below but .lists. NULL: with lanes */
	struct gx *gx;
	struct gx_queue *next; /* ctl: in gx->submits */
	bool closing;	       /* ctl */
	bool left;	       /* ctl: gx_queue_open() failed, so nobody else closes it */
	bool notify;	       /* frozen: it takes the notes of peers */
	bool notes_last;       /* the next gx_poll() looks for them last */
	uint32_t depth;	       /* frozen */
	unsigned nr_lanes;     /* frozen: one for each core */
	struct gx_sleep
		sleep; /* gx_queue_fd(); cores wake it. Between frozen fields: cores read it */
	struct sub_lane *lane[GX_CORES_MAX];
	struct marks *marks; /* NULL: no GPU was open */
	unsigned rover;	     /* lane to poll first */
	unsigned spread;     /* first lane of the next message */
	struct sub_msg *msgs, *msg_free;
	struct sub_msg *notes;	/* oldest first */
	struct list_pool lists; /* of a core's queue, too */
	struct core_hist hist;	/* of its operations */
	unsigned nr_untimed;	/* operations since the last one that was timed */
};

/* Does @op wait for those that the queue has posted before? */
static inline bool sub_is_gate(const struct gx_op *op)
{
	return op->kind == GX_OP_FLUSH || op->flags & GX_OP_FENCE;
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

/* One writer: no locked instruction. */
static inline void sub_count(_Atomic uint64_t *v, uint64_t n)
{
	atomic_store_explicit(v, atomic_load_explicit(v, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

/* The time, for one operation of CORE_TIMED; else 0. */
static inline uint64_t sub_stamp(struct gx_queue *q)
{
	if (gx_likely(++q->nr_untimed < CORE_TIMED))
		return 0;
	q->nr_untimed = 0;
	return gx_now_ns();
}

/* -- submit.c, run on the core of the lane -- */

void submit_attach(struct gx_call *call); /* sub_lane.attach */
/** submit_detach() - sub_lane.detach: the queue's thread uses the lane no more. All its requests
 * end, then the core sets ->detached. */
void submit_detach(struct gx_call *call);

/* -- queue.c, for stripe.c and comps.c: the queue's thread -- */

/** sub_note_take() - Give @op a note of its own, for sub_note_put(). Return: 0, -ENOMEM. */
int sub_note_take(struct gx_op *op);
void sub_note_put(struct gx_op *op);
void sub_req_let_go(struct sub_req *r);		 /* of its list and note */
struct sub_req *sub_req_get(struct sub_lane *l); /* NULL: all are under way */
void sub_req_put(struct sub_req *r);
void sub_req_fill(struct sub_req *r, struct gx_ep *ep, const struct gx_op *op, uint32_t mark,
		  struct sub_msg *msg);
/** sub_req_make() - Make a request for @op; *@item is for sub_lane_send().
 * Return: 0, -EAGAIN, or -errno with gx_error(). */
int sub_req_make(struct gx_queue *q, struct gx_ep *ep, const struct gx_op *op, void **item);
/* The ring always has room. */
void sub_lane_send(struct sub_lane *l, void *const items[], uint32_t n);
int sub_conn_check(const struct gx_queue *q, const struct gx_conn *c); /* 0, or with gx_error() */
/** sub_stream_get() - mark_get() if op->stream names a stream, else SUB_NO_MARK.
 * Return: 0, -EAGAIN, or -errno with gx_error(). */
int sub_stream_get(struct gx_queue *q, const struct gx_op *op, uint32_t *mark);
/** sub_hist_take() - An operation has ended with @comp. */
void sub_hist_take(struct gx_queue *q, const struct gx_comp *comp, uint64_t posted_ns);
/** sub_reqs_cancel() - Cancel every request under way that belongs to @msg, or with NULL to
 * operations of @user as gx_cancel() says. Return: operations found. */
unsigned sub_reqs_cancel(struct gx_queue *q, const struct sub_msg *msg, const struct gx_ep *ep,
			 uint64_t user);

/* -- stripe.c, for comps.c: the queue's thread -- */

/** sub_msg_back() - A part is back. Return: true: the message has ended, and @comp is its
 * completion. */
bool sub_msg_back(struct gx_queue *q, struct sub_req *r, struct gx_comp *comp);
void sub_notes_send(struct gx_queue *q); /* those of messages whose turn it is */

#endif
