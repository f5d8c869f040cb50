/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane of the verbs link: the queue pairs that one endpoint uses, on its core. A lane knows no
 * packets: link_verbs.c puts it beside a packet link. verbs_lane.c opens and turns it, verbs_post.c
 * takes operations, verbs_op.c ends them, verbs_tx.c makes work requests, verbs_cq.c takes
 * completions, verbs_note.c has notifications. verbs_qp.c and verbs_mend.c make queue pairs and make
 * them anew, on the control thread.
 *
 * Who may touch a queue pair:
 *
 *   DOWN -> READY -> UP -> FAILED -> DRAINED -> READY
 *    ctl    core     core   core       ctl
 *
 *   READY, UP, FAILED -> DEAD    given up (verbs_mend_give_up()): it is no more
 *   FAILED, DRAINED -> DEAD      its device is gone, and others are left (verbs_gone.c)
 *
 * The word below a state is the owner of struct verbs_qp. READY takes notes, and the core sends
 * nothing yet: the control thread posts requests that prove the way (verbs_qp_probe()), and the core
 * makes the queue pair UP when the peer's device has answered them. So one is UP only over a way that
 * works. (While a connection is set up, its client does that for all of them: verbs_conn_prove().)
 * The core leaves both when it sees an error, and FAILED when every work request has come back. The
 * control thread resets the queue pair then, and hands it back when the peer has reset its end too
 * (verbs_mend.c). Only then may the core send again what had not been acknowledged: until the
 * peer's end is reset, a packet that is late could still land, over newer bytes.
 *
 * The queue pairs of a lane may go by several ways, each between a device of ours and one of the
 * peer's. A way has a window of its own, so one that is slow holds back its own bytes alone.
 */
#ifndef GX_VERBS_LANE_H
#define GX_VERBS_LANE_H

#include "verbs/verbs_dev.h"
#include "verbs/verbs_dial.h"

#define VERBS_SQ	  128		 /* send requests of a queue pair; power of two */
#define VERBS_SENDS	  (VERBS_SQ - 1) /* of these, for the core; one is verbs_qp_mark()'s */
#define VERBS_RQ	  128		 /* receives of a queue pair; power of two */
#define VERBS_CREDIT_KEPT 16		 /* of these, for notes of credit */
#define VERBS_BATCH	  16		 /* requests of one list */
#define VERBS_OPS	  256		 /* operations of a lane; power of two */
#define VERBS_PULLS	  32		 /* of these, for sends of the peer that we read */
#define VERBS_SEQS	  256		 /* puts with an immediate under way; power of two */
#define VERBS_NOTE_B	  48
#define VERBS_SLOT_B	  64	     /* of a note in registered memory */
#define VERBS_SMALL_B	  (8u << 10) /* up to here puts share a queue pair, */
#define VERBS_SPREAD	  16 /* until it has so many requests out; then the next kick takes another */
#define VERBS_TRIES	  8 /* queue pairs that one chunk, or the notes of a put, may bring down */
#define VERBS_NO_OP	  UINT16_MAX

enum verbs_qp_state {
	VERBS_QP_DOWN,
	VERBS_QP_READY,
	VERBS_QP_UP,
	VERBS_QP_FAILED,
	VERBS_QP_DRAINED,
	VERBS_QP_DEAD,
};

enum verbs_wr_kind { VERBS_WR_DATA, VERBS_WR_NOTE, VERBS_WR_CREDIT };

/* What is known of a request that failed. The peer says how many notes it had taken, so
 * verbs_mend.c knows which requests had landed before its end was reset. */
enum verbs_fate { VERBS_WR_UNKNOWN, VERBS_WR_LANDED, VERBS_WR_LOST };

/* What a work request is for. Its number in the queue pair is the index. */
struct verbs_wr {
	uint64_t off;	 /* DATA: in the operation; NOTE: notes that were sent before it */
	uint32_t len;	 /* DATA */
	uint32_t number; /* in the queue pair, in the order of posting */
	uint16_t op;	 /* index in lane->op; VERBS_NO_OP: of none */
	uint8_t kind, part, fate;
	uint8_t tries; /* DATA: queue pairs that failed with it */
};

/* owner: see above; state is written by its owner and read by both */
struct verbs_qp {
	struct ibv_qp *qp;
	uint8_t index; /* in the lane */
	/* Requests out of verbs_qp_probe(), and the first one was answered. ctl before READY, then
	 * core */
	uint8_t proving;
	bool reached;
	_Atomic bool holed;    /* core; ctl before it is attached: since it was UP, a write of no
				  bytes was answered, and one of the path's MTU was not. ctl reads */
	_Atomic bool proven;   /* it was UP in this life. core; ctl when DRAINED */
	bool sick;	       /* ctl: the device says that this life has failed */
	uint8_t end_tries;     /* ctl: verbs_mend_give_up() was refused so often */
	_Atomic int state;     /* enum verbs_qp_state */
	_Atomic bool want_err; /* core: the device refused requests: have it flush the others. ctl
				  takes it */
	_Atomic int status;    /* core: enum ibv_wc_status of the first error; for people */
	uint8_t way;	       /* of the lane. Frozen */
	/* verbs_gone.c, each set once: ctl: it ends; core: and looks at no completion of it any more;
	 * ctl: DEAD, and the peer's end takes nothing of it in any more */
	_Atomic bool quit, has_quit, settled;
	uint32_t dead_taken; /* notes that the peer had taken; ctl writes it before settled */
	bool judged;	     /* core: so fates of redo are known */
	uint32_t gen;	     /* this life; ctl writes it before UP */
	uint32_t head, tail; /* of sent, free-running: next free, oldest not acknowledged */
	uint32_t nr_recvs;   /* receives that the device has */
	uint32_t notes_sent, notes_known; /* in all; of these, taken as far as the peer has said */
	uint32_t notes_taken, notes_told; /* the peer's; of these, as far as we have said */
	uint32_t nr_pend;  /* requests of wr that are not posted yet; they are in sent */
	uint32_t nr_again; /* slots of again to receive into */
	uint32_t redo_head, redo_tail;	  /* of redo: next free, next to send */
	uint8_t *send_slots, *recv_slots; /* VERBS_SQ, VERBS_RQ slots */
	struct verbs_wr sent[VERBS_SQ];
	struct verbs_wr redo[VERBS_SQ]; /* to send again once this is UP or DEAD */
	struct ibv_send_wr wr[VERBS_BATCH];
	struct ibv_sge sge[VERBS_BATCH];
	uint32_t again[VERBS_BATCH];
	/* While it is being connected, a thread of the device has qp, and owns READY beside the core: it
	 * makes it UP or posts requests of verbs_qp_probe(). ctl may put qp into error meanwhile, and
	 * else leaves it alone. */
	struct verbs_dial dial;
	struct ibv_qp_attr rtr, rts; /* frozen meanwhile, as is: */
	bool dial_proves;
	struct verbs_lane *lane;
};

/* The notes of a put with an immediate. owner: core */
struct verbs_tell {
	uint64_t off, imm;
	uint64_t parts;	    /* queue pairs that had bytes of it; at the end: notes to send in all */
	uint64_t parts_due; /* of these, not posted */
	uint64_t parts_failed; /* of these, whose note failed since tries was counted up */
	uint32_t seq;
	bool parts_set;
	uint8_t tries; /* of its notes, after the first */
};

/* owner: core. op_begin() sets each field, for zeroing the whole would cost a small put more than
 * that. */
struct verbs_op {
	uint8_t kind;
	bool is_inline;
	bool used, queued, redone; /* queued: something is left to post. redone: a queue pair with
				      bytes of it failed, so notes wait for all bytes */
	bool has_seq;
	bool pull;	/* of a send of the peer: a get without completions of its own */
	uint32_t place; /* pull: the message's, for lane->pull_ended() */
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
	uint32_t ways; /* bit i: way i has keys of both ends, and works as far as is known;
			  ops_ways() */
	uint32_t data_out, note_out; /* requests that are out, or wait to be sent again */
	uint32_t data_redo;	/* of data_out, those that wait: the device has let go of them */
	struct verbs_tell tell; /* with GX_OP_IMM alone */
};

/* A put of the peer, by its notes. owner: core */
struct verbs_in {
	uint32_t seq;
	uint64_t parts; /* whose notes have come */
	uint8_t nr_got;
	bool done; /* told, so more notes of it are doubles */
};

/* A region of the peer. Frozen. */
struct verbs_region {
	uint64_t token, len, addr;
	uint32_t rails; /* bit i: by the peer's rail i, and rkey[i] */
	uint32_t rkey[VERBS_RAILS_MAX];
	unsigned access; /* GX_ACCESS_*; 0: this entry is free */
};

/* What a way is proven by (verbs_probe.c). Frozen once the peer has told its part. */
struct verbs_probe {
	uint64_t mine, theirs;
	uint32_t lkey, rkey;
	uint32_t len; /* the path's MTU; 0: the peer has no such memory, or not there */
};

/* A way of a lane: a device of ours, and one of the peer's. owner: as the lane's */
struct verbs_way {
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
	bool astray;
};

/* owner: core; ctl until it is attached, and after it has left */
struct verbs_lane {
	struct gx_core *core;
	struct gx_ep *ep;
	struct verbs_way way[VERBS_WAYS_MAX];
	unsigned nr_ways;
	uint8_t qp_way[VERBS_QPS_MAX]; /* of each queue pair to be opened */
	_Atomic uint32_t lost;	       /* ctl: bit i: way i has carried nothing for long */
	uint32_t lost_seen;
	uint32_t
		away; /* bit i: lost_seen has way i, or none of its queue pairs is UP. One way: 0 */
	uint8_t *slots;
	size_t slots_b;
	struct verbs_dev
		*slots_by; /* this device did not end a queue pair, which may receive into them */
	unsigned nr_qps;
	struct verbs_qp *qp;
	const struct verbs_region *region; /* GX_REGIONS_MAX, of the connection */
	uint32_t chunk_b, inline_b;	   /* most bytes of a request; of one that needs no key */
	unsigned next;			   /* queue pair to look at first */
	/* Bit i: queue pair i has nr_pend; nr_again, perhaps; requests of redo; notes taken that the
	 * peer has yet to hear of, perhaps. So a turn looks at these queue pairs alone. */
	uint64_t pend, again, redo, owes;
	unsigned nr_ops, nr_free, nr_pulls;
	/* Nothing of a pull is with the device any more. @status: 0: all its bytes are here. */
	void (*pull_ended)(struct gx_ep *ep, uint32_t place, int status);
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

static inline int qp_state(const struct verbs_qp *q)
{
	/* Pairs with the release in qp_goto(). */
	return atomic_load_explicit(&q->state, memory_order_acquire);
}

static inline struct verbs_dev *qp_dev(const struct verbs_lane *l, const struct verbs_qp *q)
{
	return l->way[q->way].dev;
}

/** qp_goto() - The changes in the drawing above; verbs_qp.c. False: the control thread has given the
 * queue pair up meanwhile, or it is no longer in state @from. */
bool qp_goto(struct verbs_qp *q, int from, int to);

static inline uint64_t qp_bit(const struct verbs_qp *q)
{
	return 1ull << q->index;
}

/* Does it take notes? */
static inline bool qp_lives(int state)
{
	return state == VERBS_QP_READY || state == VERBS_QP_UP;
}

/* -- verbs_qp.c; control thread -- */

/** verbs_lane_open() - Make a lane of @nr_qps queue pairs, which are DOWN. @l->core, ep, region,
 * nr_ways, dev and peer of each, and qp_way are set; chunk_b and windows before it is used. Return: 0, -errno with gx_error(). */
int verbs_lane_open(struct verbs_lane *l, unsigned nr_qps);
void verbs_lane_close(struct verbs_lane *l); /* accepts a half-open one */
/** verbs_qp_reset() - Have the queue pair forget everything; receives are posted. @say: for the
 * peer. Return: 0, -errno. */
int verbs_qp_reset(struct verbs_lane *l, struct verbs_qp *q, struct verbs_qp_say *say);
/** verbs_qp_connect() - The peer's end is @say of @h: begin to connect, on a thread of the device. READY,
 * and with @prove the core makes it UP; else that thread. */
void verbs_qp_connect(struct verbs_lane *l, struct verbs_qp *q, const struct verbs_port *h,
		      const struct verbs_qp_say *own, const struct verbs_qp_say *say, bool prove);
/** verbs_qp_connects() - Is that under way? */
static inline bool verbs_qp_connects(const struct verbs_qp *q)
{
	return verbs_dial_is_out(&q->dial);
}
/** verbs_lane_connects() - Is that under way of any? */
bool verbs_lane_connects(const struct verbs_lane *l);
/** verbs_qp_error() - Have the device flush it. Return: 0; -errno: it was refused, and the queue pair
 * may go on. */
int verbs_qp_error(struct verbs_lane *l, struct verbs_qp *q);
bool verbs_qp_is_in_error(const struct verbs_lane *l, struct verbs_qp *q); /* asks the device */
int verbs_qp_end(struct verbs_lane *l, struct verbs_qp *q); /* 0, errno as of the device */
/** verbs_lane_event() - The device reports that @qp, or with NULL @cq, has failed. @fatal: and perhaps
 * does not flush it. */
void verbs_lane_event(struct verbs_lane *l, const struct ibv_cq *cq, const struct ibv_qp *qp,
		      bool fatal);
/** verbs_way_broken() - Completions of the way are lost: nothing of it can be known any more. If no
 * other is left, the endpoint fails. Core, control thread. */
void verbs_way_broken(struct verbs_lane *l, struct verbs_way *w);
/** verbs_qp_mark() - Post a write of no bytes. Of a queue pair that is FAILED, after
 * verbs_qp_error(): its completion says that all before it have ended. Return: 0, -EIO. */
int verbs_qp_mark(struct verbs_qp *q);
/** verbs_qp_probe() - Post verbs_probes() requests, whose completions say that the peer's device answers,
 * or why not: a write of no bytes, and, if the peer has memory for that, a write and a read of the
 * path's MTU. Nothing else is out. Return: 0, -EIO. */
int verbs_qp_probe(struct verbs_lane *l, struct verbs_qp *q);
static inline uint8_t verbs_probes(const struct verbs_lane *l, const struct verbs_qp *q)
{
	return l->way[q->way].probe.len ? 3 : 1;
}
/** verbs_probe_failed() - One of these has failed with @status. Whoever owns @q. */
void verbs_probe_failed(struct verbs_qp *q, int status);
/** verbs_path_mtu() - Of the packets between two ports: enum ibv_mtu. */
int verbs_path_mtu(const struct verbs_dev *dev, const struct verbs_port *peer);
/** verbs_chunk_b() - The largest request that both devices take, at most @asked_b. */
uint32_t verbs_chunk_b(const struct verbs_dev *dev, const struct verbs_port *peer,
		       uint32_t asked_b);
/** verbs_port_fill() - What our end of a connection says of a device. */
void verbs_port_fill(const struct verbs_dev *dev, struct verbs_port *p);

/* -- verbs_way.c; control thread -- */

#define VERBS_GID_TEXT_MAX 46
const char *verbs_gid_text(const uint8_t gid[16], char text[VERBS_GID_TEXT_MAX]);
/** verbs_way_check() - Can packets go between @dev and the device of @peer? Return: 0, -EINVAL,
 * -EOPNOTSUPP with gx_error(). */
int verbs_way_check(const struct verbs_dev *dev, const struct verbs_port *peer);
/** verbs_way_near() - Of two ways that pass verbs_way_check(), which one stays in its own network,
 * as far as GIDs tell? Higher is better. */
unsigned verbs_way_near(const struct verbs_dev *dev, const struct verbs_port *peer);

/* -- verbs_lane.c; core -- */

bool verbs_lane_turn(struct verbs_lane *l, uint64_t now_ns); /* did anything happen? */
void verbs_lane_kick(struct verbs_lane *l);
/** verbs_lane_fail() - End all operations with @err as soon as the device has let go of them. The
 * control thread has every queue pair flushed. */
void verbs_lane_fail(struct verbs_lane *l, int err);
/** verbs_lane_is_quiet() - After verbs_lane_fail(): is nothing out any more? */
bool verbs_lane_is_quiet(const struct verbs_lane *l);

/* -- verbs_post.c; core -- */

/** verbs_post() - Take a put or a get. The caller kicks the lane. Return: 0; -EAGAIN; -EOPNOTSUPP: this
 * link cannot carry it, packets can. */
int verbs_post(struct verbs_lane *l, const struct gx_op *user, struct gx_route *route);
/* Bytes of the peer, to be read to our memory. */
struct verbs_pull {
	uint32_t place;
	uint64_t theirs, len;
	char *mine;
	const struct gx_mem *mem; /* of mine */
	const uint32_t *lkey;	  /* by rail; both stay until the pull has ended */
	const uint32_t *rkey;	  /* by the peer's rail */
};
/** verbs_pull() - Begin one; l->pull_ended() tells of its end. Return: false: not now. */
bool verbs_pull(struct verbs_lane *l, const struct verbs_pull *p);

/* -- verbs_op.c; core -- */

int verbs_cancel(struct verbs_lane *l, uint64_t user, const struct gx_route *route);
void verbs_drop(struct verbs_lane *l, struct drop *d);
/** verbs_pull_stop() - Read no more of it; l->pull_ended() comes later, with an error. */
void verbs_pull_stop(struct verbs_lane *l, uint32_t place);
void op_queue(struct verbs_lane *l, struct verbs_op *op); /* something is left to post */
void op_try_end(struct verbs_lane *l, struct verbs_op *op);
void op_set_status(struct verbs_lane *l, struct verbs_op *op, int status);
void ops_deadlines(struct verbs_lane *l, uint64_t now_ns);
/** ops_ways() - A queue pair has failed or is UP: operations under way take the ways that work now for
 * all that is not posted. Those end that no way carries any more. Does nothing where there is one. */
void ops_ways(struct verbs_lane *l);
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

bool cq_reap(struct verbs_lane *l);
void qp_fail(struct verbs_lane *l, struct verbs_qp *q, int status);
void qp_try_drained(struct verbs_qp *q);
/* @wr is out no more and was not acknowledged. */
void wr_redo(struct verbs_lane *l, struct verbs_qp *q, const struct verbs_wr *wr);
/** verbs_redo_judge() - Say of what @q has to send again whether it landed. The peer had taken @taken
 * notes; verbs_mend.c. Whoever owns @q. */
void verbs_redo_judge(struct verbs_qp *q, uint32_t taken);
int verbs_wc_errno(int status); /* 0: send it again over another queue pair */
int verbs_recv(struct verbs_qp *q, const uint32_t slots[], unsigned n, uint32_t lkey);

/* -- verbs_note.c; core -- */

struct verbs_note {
	uint8_t kind; /* enum verbs_wr_kind: NOTE, CREDIT */
	uint8_t part, nr_parts;
	uint32_t seq;
	uint32_t taken; /* notes that the sender of this one has taken from this queue pair */
	uint64_t token, off, len, imm;
};
void verbs_note_put(uint8_t b[VERBS_NOTE_B], const struct verbs_note *n);
int verbs_note_get(const uint8_t *b, uint32_t len, struct verbs_note *n); /* 0, -EPROTO */
bool note_room(const struct verbs_qp *q); /* has the peer a receive for one more? */
/* Is it time to tell the peer how many of its notes were taken? */
static inline bool note_is_owed(const struct verbs_qp *q)
{
	return q->notes_taken - q->notes_told >= VERBS_RQ / 4;
}
void note_take(struct verbs_lane *l, struct verbs_qp *q, const uint8_t *b, uint32_t len);

/* The name of a request in its completion: queue pair, life, receive or not, number. */
#define VERBS_ID_RECV (1ull << 55)
#define VERBS_ID_MARK                                                                              \
	(1ull << 54) /* of verbs_qp_mark(), verbs_qp_probe(); its number says nothing */
static inline uint64_t wr_id(const struct verbs_qp *q, bool recv, uint32_t number)
{
	return (uint64_t)q->index << 56 | (recv ? VERBS_ID_RECV : 0) |
	       (uint64_t)(q->gen & 0xff) << 32 | number;
}

#endif
