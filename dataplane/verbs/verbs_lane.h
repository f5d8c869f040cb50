/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane of the verbs link: the queue pairs that one endpoint uses, on its core. A lane knows no
 * packets: link_verbs.c puts it next to a packet link. verbs_lane.c takes operations and turns it,
 * verbs_op.c ends operations, verbs_tx.c makes work requests, verbs_cq.c takes completions and immediates.
 * verbs_qp.c and verbs_mend.c make queue pairs and make them anew, on the control thread.
 *
 * The queue pairs of a lane may go by several paths, each between a device of ours and one of the
 * peer's. A path has a window of its own, so one that is slow holds back its own bytes alone.
 */
#ifndef GX_VERBS_LANE_H
#define GX_VERBS_LANE_H

#include "verbs/verbs_qp.h"

#define VERBS_OPS     256	 /* operations of a lane; power of two */
#define VERBS_SEQS    256	 /* puts with an immediate under way; power of two */
#define VERBS_SMALL_B (8u << 10) /* up to here puts share a queue pair, */
#define VERBS_SPREAD  16 /* until it has so many requests out; then the next kick takes another */
#define VERBS_TRIES   8 /* queue pairs that one chunk, or the immediates of a put, may bring down */

/* An immediate: an end sends it after the bytes of a put, and says in it how many of the peer's it
 * has taken. */
#define VERBS_IMM_B 48

struct verbs_imm {
	uint8_t kind; /* enum verbs_wr_kind: IMM, CREDIT */
	uint8_t part, nr_parts;
	uint32_t seq;
	uint32_t taken; /* immediates that the sender of this one has taken from this queue pair */
	uint64_t token, off, len, imm;
};

/* The immediates of a put with GX_OP_IMM, one for each queue pair. owner: core */
struct verbs_tell {
	uint64_t off, imm;
	uint64_t
		parts; /* queue pairs that had bytes of it; at the end: immediates to send in all */
	uint64_t parts_due;    /* of these, not posted */
	uint64_t parts_failed; /* of these, whose immediate failed since tries was counted up */
	uint32_t seq;
	bool parts_set;
	uint8_t tries; /* of its immediates, after the first */
};

/* owner: core. op_begin() sets each field, for zeroing the whole would cost a small put more than
 * that. */
struct verbs_op {
	uint8_t kind;
	bool is_inline;
	bool used, queued, redone; /* queued: something is left to post. redone: a queue pair with
				      bytes of it failed, so immediates wait for all bytes */
	bool has_seq;
	uint32_t flags;
	int status; /* not 0: the operation ends with it when nothing of it is out */
	struct gx_route *route;
	uint64_t user, tag, deadline_ns;
	const struct gx_mem *mem; /* NULL: not registered, and inline */
	char *mine;
	uint64_t theirs;	     /* address at the peer */
	const uint32_t *lkey, *rkey; /* by our rail, not read if inline; by the peer's */
	uint64_t token;
	uint64_t len, posted_b;
	uint32_t paths; /* bit i: path i has keys of both ends, and works as far as is known;
			  ops_paths() */
	uint32_t data_out, imm_out; /* requests that are out, or wait to be sent again */
	uint32_t data_redo;	/* of data_out, those that wait: the device has let go of them */
	struct verbs_tell tell; /* with GX_OP_IMM alone */
};

/* A put of the peer, by its immediates. owner: core */
struct verbs_in {
	uint32_t seq;
	uint64_t parts; /* whose immediates have come */
	uint8_t nr_got;
	bool done; /* the user was notified, so more immediates of it are doubles */
};

/* A region of the peer. Frozen. */
struct verbs_region {
	uint64_t token, len, addr;
	uint32_t rails; /* bit i: by the peer's rail i, and rkey[i] */
	uint32_t rkey[VERBS_RAILS_MAX];
	unsigned access; /* GX_ACCESS_*; 0: this entry is free */
};

/* What a path is proven by (verbs_conn.c). Frozen once the peer has sent its part. */
struct verbs_probe {
	uint64_t mine, theirs;
	uint32_t lkey, rkey;
	uint32_t len; /* the path's MTU; 0: the peer has no such memory, or not there */
};

/* A path of a lane: a device of ours, and one of the peer's. owner: as the lane's */
struct verbs_path {
	struct verbs_dev *dev; /* its number in the context is our rail */
	uint8_t peer;	       /* the peer's rail */
	struct ibv_cq *cq;     /* NULL: the lane has no queue pair here */
	struct ibv_mr *slots_mr;
	uint64_t window_b, under_b; /* most bytes under way; those that are */
	_Atomic bool
		broken; /* any: its completions cannot be had any more, nor were any lost before */
	struct verbs_probe probe;
	/* ctl: of the GID that the peer knows; the port has lost an address that the peer knows */
	int gid_index;
	bool addr_lost;
};

/* owner: core; ctl until it is attached, and after it has left */
struct verbs_lane {
	struct gx_core *core;
	struct gx_ep *ep;
	struct verbs_path path[VERBS_PATHS_MAX];
	unsigned nr_paths;
	uint8_t qp_path[VERBS_QPS_MAX]; /* of each queue pair to be opened */
	_Atomic uint32_t lost;		/* ctl: bit i: path i has carried nothing for long */
	uint32_t lost_seen;
	uint32_t
		away; /* bit i: lost_seen has path i, or none of its queue pairs is UP. One path: 0 */
	uint8_t *slots;
	size_t slots_b;
	struct verbs_dev
		*slots_by; /* this device did not end a queue pair, which may receive into them */
	unsigned nr_qps;
	struct verbs_qp *qp;
	const struct verbs_region *region; /* GX_REGIONS_MAX, of the connection */
	uint32_t chunk_b, inline_b;	   /* most bytes of a request; of one that needs no key */
	unsigned next;			   /* queue pair to look at first */
	/* Bit i: queue pair i has nr_pend; nr_again, perhaps; requests of redo; immediates taken
	 * that the peer has yet to hear of, perhaps. So a turn looks at these queue pairs alone. */
	uint64_t pend, again, redo, owes;
	unsigned nr_ops, nr_free;
	uint64_t deadline_ns; /* earliest; UINT64_MAX: none */
	int fail_err;	      /* not 0: the endpoint fails */
	_Atomic bool ending;  /* ctl: its queue pairs are flushed, as the connection ends */
	_Atomic bool stopped; /* core: it posts nothing any more; ctl reads it */
	uint32_t queue_head, queue_tail;
	uint32_t seq; /* of the next put with an immediate */
	uint64_t nr_redone, nr_bad, nr_lost;
	uint16_t queue[VERBS_OPS], free[VERBS_OPS];
	bool seq_busy[VERBS_SEQS];
	struct verbs_in in[VERBS_SEQS];
	struct verbs_op op[VERBS_OPS];
};

static inline struct verbs_dev *qp_dev(const struct verbs_lane *l, const struct verbs_qp *q)
{
	return l->path[q->path].dev;
}

/* -- verbs_qp.c; control thread -- */

/** verbs_qps_open() - Make a lane of @nr_qps queue pairs, which are DOWN. @l->core, ep, region,
 * nr_paths, dev and peer of each, and qp_path are set; chunk_b and windows before it is used.
 * Return: 0, -errno with gx_error(). */
int verbs_qps_open(struct verbs_lane *l, unsigned nr_qps);
void verbs_qps_close(struct verbs_lane *l); /* accepts a half-open one */
/** verbs_qps_connect_due() - Is one of its queue pairs being connected? */
bool verbs_qps_connect_due(const struct verbs_lane *l);
/** verbs_qps_event() - The device reports that @qp, or with NULL @cq, has failed. @fatal: and perhaps
 * does not flush it. */
void verbs_qps_event(struct verbs_lane *l, const struct ibv_cq *cq, const struct ibv_qp *qp,
		     bool fatal);
/** verbs_path_broken() - Completions of the path are lost: nothing of it can be known any more. If
 * no other is left, the endpoint fails. Core, control thread. */
void verbs_path_broken(struct verbs_lane *l, struct verbs_path *w);
static inline uint8_t verbs_probes(const struct verbs_lane *l, const struct verbs_qp *q)
{
	return l->path[q->path].probe.len ? 3 : 1;
}

/* -- verbs_lane.c; core -- */

bool verbs_lane_turn(struct verbs_lane *l, uint64_t now_ns); /* did anything happen? */
void verbs_lane_kick(struct verbs_lane *l);
/** verbs_lane_fail() - End all operations with @err as soon as the device has let go of them. The
 * control thread has every queue pair flushed. */
void verbs_lane_fail(struct verbs_lane *l, int err);
/** verbs_lane_is_quiet() - After verbs_lane_fail(): is nothing out any more? */
bool verbs_lane_is_quiet(const struct verbs_lane *l);

/** verbs_post() - Take a put or a get. The caller kicks the lane. Return: 0; -EAGAIN; -EOPNOTSUPP: this
 * link cannot carry it, packets can. */
int verbs_post(struct verbs_lane *l, const struct gx_op *user, struct gx_route *route);

/* -- verbs_op.c; core -- */

int verbs_cancel(struct verbs_lane *l, uint64_t user, const struct gx_route *route);
void verbs_drop(struct verbs_lane *l, struct drop *d);
void op_queue(struct verbs_lane *l, struct verbs_op *op); /* something is left to post */
void op_try_end(struct verbs_lane *l, struct verbs_op *op);
void op_set_status(struct verbs_lane *l, struct verbs_op *op, int status);
void ops_deadlines(struct verbs_lane *l, uint64_t now_ns);
/** ops_paths() - A queue pair has failed or is UP: operations under way take the paths that work
 * now for all that is not posted. Those end that no path carries any more. Does nothing where there
 * is one. */
void ops_paths(struct verbs_lane *l);
void ops_lost(struct verbs_lane *l); /* the same when l->lost has changed */

/* -- verbs_tx.c; core -- */

/** tx_first() - Post what there is room for of a new operation; tx_queue() posts the rest. It does not
 * end here. */
void tx_first(struct verbs_lane *l, struct verbs_op *op);
bool tx_queue(struct verbs_lane *l); /* post what operations have left; did it post any? */
bool tx_redo(struct verbs_lane *l);  /* send again what queue pairs lost */
void tx_credit(struct verbs_lane *l);
void tx_flush(struct verbs_lane *l); /* hand the lists to the device */

/* -- verbs_cq.c; core -- */

/* A decoder refuses what its encoder could not write. */
void verbs_imm_put(uint8_t b[VERBS_IMM_B], const struct verbs_imm *n);
int verbs_imm_get(const uint8_t *b, uint32_t len, struct verbs_imm *n); /* 0, -EPROTO */
bool imm_room(const struct verbs_qp *q); /* has the peer a receive for one more? */
/* Is it time to tell the peer how many of its immediates were taken? */
static inline bool imm_is_owed(const struct verbs_qp *q)
{
	return q->imms_taken - q->imms_credited >= VERBS_RQ / 4;
}
void imm_take(struct verbs_lane *l, struct verbs_qp *q, const uint8_t *b, uint32_t len);
bool cq_reap(struct verbs_lane *l);
void qp_fail(struct verbs_lane *l, struct verbs_qp *q, int status);
/* @wr is out no more and was not acknowledged. */
void wr_redo(struct verbs_lane *l, struct verbs_qp *q, const struct verbs_wr *wr);

#endif
