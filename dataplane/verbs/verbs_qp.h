/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue pair of a lane. Who may touch it:
 *
 *   DOWN -> READY -> UP -> FAILED -> DRAINED -> READY
 *    ctl    core     core   core       ctl
 *
 *   READY, UP, FAILED -> DEAD    given up (verbs_mend_give_up()): it is no more
 *   FAILED, DRAINED -> DEAD      its device is gone, and others are left (verbs_mend.c)
 *
 * The word below a state is the owner of struct verbs_qp. READY takes immediates, and the core sends
 * nothing yet: the control thread posts requests that prove the path (verbs_qp_probe()), and the core
 * makes the queue pair UP when the peer's device has answered them. So one is UP only over a path that
 * works. (While a connection is set up, its client does that for all of them: verbs_conn_prove().)
 * The core leaves both when it sees an error, and FAILED when every work request has come back. The
 * control thread resets the queue pair then, and hands it back when the peer has reset its end too
 * (verbs_mend.c). Only then may the core send again what had not been acknowledged: until the
 * peer's end is reset, a packet that is late could still land, over newer bytes.
 */
#ifndef GX_VERBS_QP_H
#define GX_VERBS_QP_H

#include "verbs/verbs_dev.h"

struct verbs_lane;

#define VERBS_SQ	  128		 /* send requests of a queue pair; power of two */
#define VERBS_SENDS	  (VERBS_SQ - 1) /* of these, for the core; one is verbs_qp_mark()'s */
#define VERBS_RQ	  128		 /* receives of a queue pair; power of two */
#define VERBS_CREDIT_KEPT 16		 /* of these, for immediates of credit */
#define VERBS_BATCH	  16		 /* requests of one list */
#define VERBS_SLOT_B	  64		 /* of an immediate in registered memory */
#define VERBS_NO_OP	  UINT16_MAX

enum verbs_qp_state {
	VERBS_QP_DOWN,
	VERBS_QP_READY,
	VERBS_QP_UP,
	VERBS_QP_FAILED,
	VERBS_QP_DRAINED,
	VERBS_QP_DEAD,
};

enum verbs_wr_kind { VERBS_WR_DATA, VERBS_WR_IMM, VERBS_WR_CREDIT };

/* What is known of a request that failed. The peer says how many immediates it had taken, so
 * verbs_mend.c knows which requests had landed before its end was reset. */
enum verbs_fate { VERBS_WR_UNKNOWN, VERBS_WR_LANDED, VERBS_WR_LOST };

/* What a work request is for. Its number in the queue pair is the index. */
struct verbs_wr {
	uint64_t off;	 /* DATA: in the operation; IMM: immediates that were sent before it */
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
	uint8_t path;	       /* of the lane. Frozen */
	/* verbs_mend.c, each set once: ctl: it ends; core: and looks at no completion of it any more;
	 * ctl: DEAD, and the peer's end takes nothing of it in any more */
	_Atomic bool quit, has_quit, settled;
	uint32_t dead_taken; /* immediates that the peer had taken; ctl writes it before settled */
	bool judged;	     /* core: so fates of redo are known */
	uint32_t gen;	     /* this life; ctl writes it before UP */
	uint32_t head, tail; /* of sent, free-running: next free, oldest not acknowledged */
	uint32_t nr_recvs;   /* receives that the device has */
	uint32_t imms_sent, imms_known; /* in all; of these, taken as far as the peer has said */
	uint32_t imms_taken, imms_credited; /* the peer's; of these, as far as we have said */
	uint32_t nr_pend;  /* requests of wr that are not posted yet; they are in sent */
	uint32_t nr_again; /* slots of again to receive into */
	uint32_t redo_head, redo_tail;	  /* of redo: next free, next to send */
	uint8_t *send_slots, *recv_slots; /* VERBS_SQ, VERBS_RQ slots */
	struct verbs_wr sent[VERBS_SQ];
	struct verbs_wr redo[VERBS_SQ]; /* to send again once this is UP or DEAD */
	struct ibv_send_wr wr[VERBS_BATCH];
	struct ibv_sge sge[VERBS_BATCH];
	uint32_t again[VERBS_BATCH];
	/* While it is being connected, a thread of the device has qp, and owns READY together with the core: it
	 * makes it UP or posts requests of verbs_qp_probe(). ctl may put qp into error meanwhile, and
	 * else leaves it alone. */
	struct verbs_dial dial;
	struct ibv_qp_attr rtr, rts; /* frozen meanwhile, as is: */
	bool dial_proves;
	struct verbs_lane *lane;
};

static inline int qp_state(const struct verbs_qp *q)
{
	/* Pairs with the release in qp_goto(). */
	return atomic_load_explicit(&q->state, memory_order_acquire);
}

/** qp_goto() - The changes in the drawing above; verbs_qp.c. False: the control thread has given the
 * queue pair up meanwhile, or it is no longer in state @from. */
bool qp_goto(struct verbs_qp *q, int from, int to);

static inline uint64_t qp_bit(const struct verbs_qp *q)
{
	return 1ull << q->index;
}

/* Does it take immediates? */
static inline bool qp_lives(int state)
{
	return state == VERBS_QP_READY || state == VERBS_QP_UP;
}

/* The name of a request in its completion: queue pair, life, receive or not, number. */
#define VERBS_ID_RECV (1ull << 55)
#define VERBS_ID_MARK                                                                              \
	(1ull << 54) /* of verbs_qp_mark(), verbs_qp_probe(); its number says nothing */
static inline uint64_t wr_id(const struct verbs_qp *q, bool recv, uint32_t number)
{
	return (uint64_t)q->index << 56 | (recv ? VERBS_ID_RECV : 0) |
	       (uint64_t)(q->gen & 0xff) << 32 | number;
}

/* -- verbs_qp.c; control thread -- */

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
/** verbs_qp_error() - Have the device flush it. Return: 0; -errno: it was refused, and the queue pair
 * may go on. */
int verbs_qp_error(struct verbs_lane *l, struct verbs_qp *q);
bool verbs_qp_is_in_error(const struct verbs_lane *l, struct verbs_qp *q); /* asks the device */
int verbs_qp_end(struct verbs_lane *l, struct verbs_qp *q); /* 0, errno as of the device */
/** verbs_qp_mark() - Post a write of no bytes. Of a queue pair that is FAILED, after
 * verbs_qp_error(): its completion says that all before it have ended. Return: 0, -EIO. */
int verbs_qp_mark(struct verbs_qp *q);
/** verbs_qp_probe() - Post verbs_probes() requests, whose completions say that the peer's device answers,
 * or why not: a write of no bytes, and, if the peer has memory for that, a write and a read of the
 * path's MTU. Nothing else is out. Return: 0, -EIO. */
int verbs_qp_probe(struct verbs_lane *l, struct verbs_qp *q);
/** verbs_probe_failed() - One of these has failed with @status. Whoever owns @q. */
void verbs_probe_failed(struct verbs_qp *q, int status);

/* -- verbs_cq.c; core -- */

void qp_try_drained(struct verbs_qp *q);
/** verbs_redo_judge() - Say of what @q has to send again whether it landed. The peer had taken @taken
 * immediates; verbs_mend.c. Whoever owns @q. */
void verbs_redo_judge(struct verbs_qp *q, uint32_t taken);
int verbs_wc_errno(int status); /* 0: send it again over another queue pair */
int verbs_recv(struct verbs_qp *q, const uint32_t slots[], unsigned n, uint32_t lkey);

#endif
