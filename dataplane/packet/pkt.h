/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The packet link's own state, which the files of this folder share. turn.c calls most of them, in
 * the order of a turn. The prototypes at the end stand by file, the lowest first. The poll core
 * owns everything here, except fields marked ctl. Nothing allocates after ep_open.
 */
#ifndef GX_PKT_H
#define GX_PKT_H

#include "copy/block.h"
#include "core/core.h"
#include "list/pieces.h"
#include "flow/flow.h"
#include "flow/msg.h"
#include "flow/pace.h"
#include "packet/path.h"
#include "flow/paths.h"
#include "packet/pull.h"
#include "packet/state.h"
#include "packet/gauges.h"
#include "packet/trial.h"
#include "copy/stage.h"

#include "gx_internal/link.h"
#include "gx_internal/warm.h"

#include <assert.h>

#define PKT_OPS	       1024 /* operations of an ep, internal ones (serving gets) included */
#define PKT_SLOTS      256  /* posted receives and gets of an ep */
#define PKT_RECS       1024 /* control records that the peer has not acknowledged */
#define PKT_RECS_KEPT  64   /* of them for CANCEL and FAIL: an OPEN leaves these free */
#define PKT_GETS_MAX   64   /* gets that an ep may ask for: "64 requests a peer" */
#define PKT_NONE       UINT32_MAX
#define PKT_TICK_NS    1000000	    /* between slow timers of an ep that has something under way */
#define PKT_LOOK_NS    20000	    /* between looks at a port where packets are few: at least */
#define PKT_RARE_NS    400000	    /* the same, at most: a peer sends again later than that */
#define PKT_SLOT_BIT   (1ull << 63) /* a token with this bit names a posted slot, not a region */
#define PKT_F_SLOT_GPU (1u << 31)   /* in pkt_op.flags: the peer's slot is GPU memory */
#define PKT_CREDIT0    8  /* DATA packets that a peer may send undeclared, on shared pools */
#define PKT_SHAPES     8  /* quanta of incoming messages: the agreed one and later smaller ones */
#define PKT_SMALL_B    64 /* payload of a probe that any path carries */
#define PKT_WIRE_B     (GX_WIRE_HDR_B + 46) /* before a payload: Ethernet, IP, UDP and gx */
#define PKT_DOUBT      32  /* packets that may be out while the quantum is in doubt again */
#define PKT_MIDS_KEPT  64  /* for messages that begin again: each needs one more for a while */
#define PKT_MARGIN     32  /* buffers kept out of grants, for duplicates */
#define PKT_BAD_MAX    512 /* packets of an ep that its copies found wrong, and that it asks for */
#define PKT_BAD_TRIES  8   /* times that an ep asks for a packet again */
#define PKT_GATHER_B   (256u << 10) /* of packets gathered from pieces, in a burst */
#define PKT_ASK_MAX    2048 /* packets that a peer has asked for again and not acknowledged */

/* kinds in flow_pkt.kind */
enum { PKT_K_DATA = 1, PKT_K_CTL, PKT_K_PROBE, PKT_K_ASKED };

enum { ACK_HOLD_NO, ACK_HOLD_ASKED, ACK_HOLD_DONE };

/* How the data of an operation goes. */
enum op_by {
	BY_PACKETS,
	BY_OPEN, /* in the OPEN */
	BY_PULL, /* the peer reads it out of this process */
};

/* One operation. The ep's free list has the idle ones. */
struct pkt_op {
	uint8_t state; /* enum pkt_op_state; op_goto() alone writes it */
	uint8_t kind;  /* enum gx_op_kind */

	/* Facts since it was posted, or since its message began. */
	bool internal;	       /* serves a peer's get: no completion */
	bool mapped;	       /* local host memory that GPUs read and write in place */
	uint8_t by;	       /* enum op_by */
	bool peer_crc_by_copy; /* the peer may still check packets that it has acknowledged: until
				  done it may ask for them again */

	/* Events besides its state. A failed endpoint reports in any state. */
	bool opened;   /* the OPEN of its mid went out, once or more: only then may DATA go out */
	bool reported; /* its last completion is given */
	bool leased;   /* internal: of a region with a lease. GET: its bytes are here, and the owner
			    has yet to say that the lease held */
	bool cancel_due; /* there was no room to queue CANCEL */

	uint32_t open_rsn; /* BY_OPEN: the record that reads the buffer; segs: that reads those */
	int status;	   /* DOOMED, ENDED: the status of its completion */
	uint32_t flags;	   /* GX_OP_* */
	uint32_t next;	   /* next one in its list; PKT_NONE: end */
	uint32_t mid;
	uint32_t slot; /* RECV, GET: index in slots; PKT_NONE */
	uint32_t refs; /* packets in the port that still reference the payload */
	uint64_t user;
	struct gx_route *route;		/* for core_report() */
	const char *src;		/* local memory: source or destination */
	struct pieces *pieces;		/* its pieces, instead of src; NULL: it is in one piece */
	const struct gx_link_seg *segs; /* with pieces: the peer's part of them; NULL: a slot */
	struct gx_mem *mem;		/* the memory of src; NULL: not registered */
	struct gx_gpu *gpu;		/* the GPU of that memory; for the host, the host backend */
	uint64_t len;
	uint64_t token, remote_off, imm, tag, tag_mask;
	uint32_t quantum;     /* of its packets */
	uint16_t use;	      /* core_use() of mem */
	uint64_t asked_pkts;  /* packets that the peer has asked for again, in all */
	uint64_t deadline_ns; /* 0: none */
	uint64_t sent_pkts;   /* first transmissions so far = next packet to send */
	struct msg_win acked;
	uint32_t words;		/* index of its bit window in tx_words, PKT_NONE */
	uint64_t word;		/* its bits when it needs no window */
	struct stage_msg stage; /* GPU payload on its way through pinned memory */
};

static inline void op_goto(struct pkt_op *op, enum pkt_op_state to)
{
	assert(op_may_go(op->state, to));
	op->state = to;
}

/* Is it under way, and has nothing ended it yet? */
static inline bool op_is_live(const struct pkt_op *op)
{
	return op->state > OP_FREE && op->state < OP_DOOMED;
}

/* Has it a message whose packets may go out, for the first time or again? */
static inline bool op_may_send(const struct pkt_op *op)
{
	return op->state == OP_SENDING || op->state == OP_SENT;
}

/* A place for incoming messages, and the message in it; at index mid % GX_WIRE_MIDS. */
struct in_msg {
	uint8_t state;	      /* enum in_state; in_goto() alone writes it */
	bool imm_set, hidden; /* hidden: imm is for core_note() */
	bool leased;	      /* OPEN had LEASE */
	bool fail_due;	      /* REFUSED: there was no room to queue FAIL */
	bool checks;  /* the copy checks its payload; else the CPU does when a packet comes */
	bool pulled;  /* no packets: pull_in.c is to read its bytes */
	int err;      /* REFUSED, DRAIN: the status of its operation */
	uint32_t mid; /* FREE: of the last message; the next one has GX_WIRE_MIDS more */
	const struct msg_shape *shape;
	uint32_t op;	  /* RECV or GET that owns the slot; PKT_NONE for a put into a region */
	uint32_t words;	  /* index in rx_words, PKT_NONE */
	uint32_t pending; /* fragments in blocks, slices that are lent */
	uint16_t nr_bad;  /* its packets in ep->bad */
	uint16_t
		pieces; /* ACTIVE: pieces_number() of its pieces, instead of dst; 0: in one piece */
	struct block_q *bq; /* copies to the destination */
	char *dst;
	const struct gx_mem *mem; /* the memory of dst; NULL: not registered */
	uint64_t len;
	uint64_t visible_b;
	uint64_t seen_pkts;
	uint64_t imm, tag, token, off;
	uint64_t from;	  /* pulled: address of its first byte in the peer's process */
	uint64_t begun_b; /* pulled: bytes from the first on that were read, or lent */
	bool streams; /* since its first packet: what the core itself copies bypasses the cache */
	uint16_t use; /* core_use() of mem */
	struct msg_win win;
	uint64_t word; /* its bits when it needs no window */
	union {
		uint32_t next;	  /* LANDED: next place in the list of these */
		uint32_t bad_seg; /* REFUSED: the segment that could not be taken */
	};
	uint32_t
		next_here; /* DRAIN: the place of the message that waits for its end; PKT_NONE: none */
};

static inline void in_goto(struct in_msg *m, enum in_state to)
{
	assert(in_may_go(m->state, to));
	m->state = to;
}

/* A record that the peer has not acknowledged; at index rsn % PKT_RECS. */
enum rec_state { REC_FREE, REC_QUEUED, REC_SENT };
struct rec_slot {
	uint8_t state;
	bool sent;   /* once or more */
	uint32_t op; /* OPEN: its operation; that may have ended, and its place be another's */
	struct gx_wire_rec rec;
};

/* A packet that its copy found wrong. owner: bad.c */
enum bad_state {
	BAD_DUE,   /* there was no room to queue RESEND */
	BAD_ASKED, /* the peer sends it again */
	BAD_CAME,  /* it came again; kept for the tries, while there is room */
};
struct pkt_bad {
	uint32_t mid, pkt;
	uint8_t state, tries;
};

/* Packets [pkt, end) that the peer has asked for again. owner: ask.c */
struct pkt_ask {
	uint32_t mid, pkt, end;
};

/* Packets [from, to) of a message, staged from a GPU's memory to go out once more: the peer has
 * asked for them, or they are lost and no longer staged. owner: fetch.c */
struct pkt_again {
	struct stage_msg stage; /* one chunk at most; while it is there, these are valid: */
	uint32_t mid, from, to;
	int gpu;
	uint64_t since_ns;
	bool in_tx; /* link->tx refers to it */
};

/* A posted receive or get. A slot token names it. */
struct pkt_slot {
	bool used;
	bool bound; /* an OPEN has taken it */
	uint32_t gen;
	uint32_t op;
};

/* An offer of the peer: it has posted a receive. At the slot index of its token, so a newer offer
 * replaces it. */
struct pkt_offer {
	uint64_t token, tag, mask, len;
	uint32_t rsn; /* order of posting */
	bool used;    /* a send may take it */
	bool early;   /* records before it are missing, or one before it is early: it must wait */
	bool revoked; /* the peer took the receive back */
	bool gpu;
};

/* An endpoint's part in a pool that peers share. owner: share.c */
struct share_ep {
	bool on;	     /* the port's peers share a pool. frozen */
	uint32_t lapsed;     /* part of flow_granted() for which no buffers are kept */
	uint32_t used_seen;  /* flow_used() at the last look */
	uint8_t quiet, over; /* looks since it last used some, or since it holds too much */
	bool silent;	     /* it used nothing for long: it has no share until it uses something */
	bool wants;	     /* share.nr_want counts it */
	uint32_t most;	     /* most packets declared at once since it gave credit back */
};

/* Such a pool; all zero where each peer has its own. owner: share.c */
struct share {
	uint32_t nr_want;	       /* endpoints that wait for packets */
	bool is_short;		       /* one of them wants more buffers than there are for it */
	struct pkt_ep *first;	       /* found no buffer at all, so it goes first; NULL: none */
	unsigned look_at;	       /* index in live of the next endpoint to look at */
	uint64_t look_ns;	       /* when the next round of looks begins */
	uint32_t of[GX_PEERS_MAX + 1]; /* buffers of each endpoint, by nr_want. frozen */
};

/* State of an endpoint, by the file that writes it. owner: core, except where a comment says. */

/* timer.c: times of timers, and whether the peer is there. rx.c and ack.c note what they heard. */
struct pkt_timer {
	uint64_t heard_ns;	      /* last packet from the peer's core that passed all checks */
	uint64_t acked_ns;	      /* when it last acknowledged something new */
	bool waiting;		      /* something was outstanding at the last look, ... */
	uint64_t alive_ns;	      /* ... at this time */
	uint64_t silence_ns;	      /* silence of the peer, while this core was turned */
	uint64_t probe_ns;	      /* when the last keepalive probe went out */
	uint64_t ask_ns, ask_wait_ns; /* all is acknowledged and not all is done: when to ask, and
					 the time between two asks */
	uint64_t tick_ns;	      /* when slow timers are due again */
	uint64_t deadline_ns;	      /* earliest of all operations; UINT64_MAX: none */
	uint64_t peer_timeout_ns;
};

/* ack.c, make.c: the ACKs that we send. */
struct pkt_acks {
	uint8_t hold;  /* ACK_HOLD_*: a completion was given, the ACK waits a turn for an answer */
	uint64_t apsn; /* number space of ACKs */
	uint32_t number; /* of the last ACK */
};

/* wake.c: does a turn look at it? */
struct pkt_wake {
	uint32_t live_at; /* index in link->live */
	uint32_t hot_at;  /* index in link->hot; PKT_NONE: it is cold */
	uint32_t cold_at; /* index in link->cold; PKT_NONE: it is hot */
	bool ticked;	  /* its slow timers ran in this turn: it may go to sleep now */
};

/* op.c, tx.c: operations and outgoing messages. */
struct pkt_sends {
	uint32_t op_free;
	uint32_t ops_top; /* no operation from here on was ever used */
	uint32_t nr_ops;  /* not free */
	uint64_t mids_free[GX_WIRE_DONE_WORDS];
	uint32_t mids_words; /* bit w: mids_free[w] is not 0 */
	uint32_t nr_mids;    /* not free */
	uint32_t mids_max;   /* most of them that new messages may have */
	uint64_t
		peer_done[GX_WIRE_DONE_WORDS]; /* done bits as the peer's ACKs reported them, ... */
	uint32_t peer_done_by[GX_WIRE_DONE_WORDS]; /* ... and the number of the ACK that did */
	bool begun;				   /* some message has begun */
	bool cancels_due;			   /* some operation's CANCEL waits for room */
	uint32_t act_head, act_tail; /* list: operations with first packets to send, in turn */
	uint32_t new_head, new_tail; /* list: the same that have yet to have their first turn */
	unsigned new_due;	     /* packets that those of new_head may send before the others */
	bool opens_first;	     /* only messages whose OPEN has arrived send data now */
	uint32_t wait_head, wait_tail; /* list: operations that wait for a mid, as posted */
	uint32_t send_head, send_tail; /* list: sends that wait for an offer */
	struct {
		uint32_t mid, pkt;
	} * resend; /* ring of lost DATA packets */
	uint32_t resend_head, resend_tail, resend_mask;
	uint32_t refs;	     /* packets in the port that reference our operations' memory */
	uint64_t *words;     /* [GX_WIRE_ACTIVE][msg_words] */
	uint64_t words_free; /* bit i: window i is free */
};

/* ask.c: packets that the peer asks for again. */
struct pkt_asks {
	uint32_t head, tail; /* of the ring ask[] */
	uint32_t pkts;	     /* in ask[], or sent and not acknowledged: PKT_ASK_MAX at most */
};

/* fetch.c: payload of GPUs in pinned buffers. */
struct pkt_fetch {
	struct pkt_again asked, lost;
	uint32_t nr_staged; /* chunks that operations hold in pinned buffers */
	uint64_t moved_ns;  /* when the peer last acknowledged a chunk */
	uint64_t staged_ns; /* the same, or when an operation began to hold some */
	bool holds_back;    /* no chunk was acknowledged for long, while others wanted buffers */
};

/* rec.c: outgoing control records. */
struct pkt_recs {
	uint32_t next, floor; /* rsn of the next one; lowest rsn not acknowledged */
	uint32_t queued;      /* records in state REC_QUEUED */
	uint32_t scan;	      /* no queued record below this rsn */
};

/* match.c, op.c: slots, offers and gets. */
struct pkt_match {
	uint32_t slot_rover;
	uint32_t nr_offers, nr_early;
	uint32_t gets_head, gets_tail;
	uint32_t gets_out; /* our gets under way */
};

/* in.c, rx.c, bad.c: incoming messages and records. */
struct pkt_takes {
	uint64_t done[GX_WIRE_DONE_WORDS]; /* bit of a place: each message that is done flips it */
	uint32_t done_used;		   /* bit w: done[w] has ever changed */
	uint32_t done_due;		   /* bit w: done[w] has changed since an ACK reported it */
	bool fails_due;			   /* some message's FAIL waits for room */
	bool bads_due;			   /* some packet's RESEND waits for room */
	uint32_t nr_in;			   /* places that are not free */
	uint64_t need_pkts;		   /* packets declared and not yet received */
	uint32_t held_bufs;		   /* bounce buffers of this peer in blocks */
	uint32_t landed_head, landed_tail;
	uint32_t nr_bad;
	uint64_t *words;
	uint64_t words_free;
	uint32_t rsn_floor; /* every record below has come */
	uint64_t rsn_seen[PKT_RECS / 64];
};

/* An endpoint over a port: one lane of one connection. */
struct pkt_ep {
	struct gx_ep ep;
	struct link_pkt *link;
	struct flow *flow;
	struct pace pace;	/* congestion control of the flow; .cc is NULL on memory links */
	struct paths *paths;	/* NULL: the port has one */
	struct msg_shape shape; /* of outgoing messages */
	struct msg_shape rx_shape[PKT_SHAPES]; /* of incoming ones, by their OPEN's quantum */
	unsigned nr_rx_shapes;
	uint32_t words_max; /* u64 words of one bit window, for the smallest quantum possible */
	uint32_t index;	    /* in link->eps */
	uint32_t gen;	    /* generation of the cid */
	uint32_t cid_peer;  /* the peer's name of this connection */
	uint32_t port_peer; /* the peer's name at the port */
	struct gx_port_peer port_path; /* .gpus is 0 where the CPU must read what goes out */
	uint64_t psn0;
	uint32_t psn_skip; /* on a path that probes prove, the first packet skips so many psns */
	uint32_t salt, salt_peer;
	enum gx_integrity integrity;
	struct seal *seal; /* modes MAC and GCM: keys; else NULL */
	bool guards;	   /* the port copies payload by gx_tx.guard */
	/* Bit enum gx_mem_kind: copies into such memory check incoming payload, here, at the peer. */
	uint8_t crc_by_copy, peer_crc_by_copy;
	uint32_t credit0;      /* the peer's first credit, which it keeps when idle */
	uint32_t credit0_peer; /* our first credit */
	int err;	       /* 0, or why it failed: set by ep_fail */
	bool lossless;
	bool want_peer;	  /* the holder of this ep waits for the peer's core */
	bool is_fallback; /* another link carries its puts and gets. Frozen */
	bool have_peer;	  /* ctl: peer_add was done */
	uint64_t now_ns;  /* of the turn */
	struct pkt_path path;
	struct pkt_trial trial;
	struct pkt_timer timer;
	struct pkt_gauges gauges;
	struct pkt_acks ack;
	struct pkt_wake wake;
	struct pkt_sends tx;
	struct pkt_asks asks;
	struct pkt_fetch fetch;
	struct pkt_recs rec;
	struct pkt_match match;
	struct pkt_takes rx;
	struct share_ep share;
	struct pull pull;

	/* Large tables come last. The memory is all zero at the start and has no pages yet, and
	 * nobody writes here before there is use, so an ep weighs only its used pages. */
	size_t alloc_b; /* ctl: length of the whole, a link's own part included */
	/* Places for outgoing messages: mid % GX_WIRE_MIDS. Each message at a place has
	 * GX_WIRE_MIDS more than the one before, and begins when the peer has reported that that one is
	 * done. */
	struct {
		uint32_t op;  /* PKT_NONE: none waits for done */
		uint32_t mid; /* of the last message */
	} out[GX_WIRE_MIDS];
	struct pkt_op ops[PKT_OPS];
	struct in_msg in[GX_WIRE_MIDS];
	struct rec_slot recs[PKT_RECS];
	struct pkt_slot slots[PKT_SLOTS];
	struct pkt_offer offers[PKT_SLOTS];
	struct gx_wire_rec gets[PKT_GETS_MAX]; /* requests of the peer that wait for an operation */
	struct gx_wire_seg get_segs[PKT_GETS_MAX][GX_WIRE_SEGS]; /* of those that are GETS */
	struct pieces_pool pieces;
	struct pkt_ask ask[PKT_ASK_MAX]; /* ring */
	struct pkt_bad bad[PKT_BAD_MAX];
};

/* How a port gathers the payload of a packet while it copies it. */
struct pkt_gather {
	struct gx_tx_guard guard;
	struct pieces *pieces;
	uint64_t off; /* of the message */
};

/* An ep with nothing under way, and when its next timer is due. */
struct pkt_cold {
	uint64_t due_ns;
	struct pkt_ep *ep;
};

/* The packet link of one core over one port's queue. */
struct link_pkt {
	struct gx_core *core;
	struct gx_port_queue *q;
	const struct gx_port *port;
	struct pkt_ep *eps[GX_PEERS_MAX];  /* by cid index, attached ones */
	struct pkt_ep *live[GX_PEERS_MAX]; /* attached ones, hot and cold */
	unsigned nr_live, nr_fallback;	   /* of these, with pkt_ep.is_fallback */
	uint64_t heard_ns, look_ns;	   /* the last packet came; look at the port not before;
						      0: in each turn */
	unsigned looks;			   /* that were put off so */
	struct pkt_ep *hot[GX_PEERS_MAX];  /* something is under way: each turn looks at them */
	unsigned nr_hot;
	struct pkt_cold cold[GX_PEERS_MAX]; /* heap: the earliest first */
	unsigned nr_cold;
	bool ticked;	/* the slow timers of some ep ran in this turn */
	unsigned rover; /* the ep that sends first this turn */
	struct block_q *bq_host;
	struct block_q *bq_gpu[GX_GPUS_MAX];
	struct block_q *bqs[1 + GX_GPUS_MAX]; /* bq_host and those of bq_gpu */
	unsigned nr_bqs;
	struct stage *stage[GX_GPUS_MAX]; /* for sending from that GPU */
	unsigned nr_gpus;		  /* 1 + the largest device in bq_gpu and stage */
	struct {
		struct block_q *bq;
		struct stage *stage;
	} made[GX_GPUS_MAX]; /* ctl: of GPUs that are open; link_pkt_take() has the core use them */
	struct block_stat seen; /* part of the blocks' counters that the core's statistics have */
	uint32_t pool_out;	/* shared pool: granted to all peers, without lapsed credit */
	struct share share;
	uint32_t credit0_out;	     /* ctl: first credit of all peers together */
	uint32_t held_bufs;	     /* in blocks, all peers */
	uint64_t stats_ns;	     /* when to bring the blocks' counters over again */
	bool seeded;		     /* ctl: gens are random */
	uint32_t gens[GX_PEERS_MAX]; /* ctl: generation of each cid index; bit 31: in use */
	uint32_t refs;		     /* packets of all eps in the port: has tx_reap() work? */
	uint32_t pull_left_b;	     /* of PULL_TURN_B in this turn */
	uint32_t drop_at;  /* of eps[]: the next one to look at in this pass, see struct drop */
	uint32_t drop_seq; /* copies into stage[] may read memory that died from here on ... */
	uint32_t drop_ticket[GX_GPUS_MAX]; /* ... until these tickets are past */
	struct gx_rx rx_data[GX_BURST_MAX], rx_ctl[GX_BURST_MAX];
	struct gx_tx tx[GX_BURST_MAX];
	struct seal_link *seal; /* NULL: none of its endpoints has an integrity mode */
	bool guarded, unfenced; /* tx[] has packets in seal, or with a guard; in_fence() is due */
	struct gx_warm warm;	/* where payload went by the core itself */
	uint8_t ctl_buf[GX_CTL_PAYLOAD_MAX];
	const char *pad; /* zeros, for padded probes */
	char *gather;	 /* [PKT_GATHER_B]: payload of packets in tx whose source is in pieces */
	struct pkt_gather gathers[GX_BURST_MAX]; /* of these, by a port that copies */
	uint32_t gather_b, nr_scattered;	 /* messages whose pieces blocks copy */
	uint64_t release[GX_BURST_MAX * 4];
	unsigned nr_release;
};

static inline struct pkt_ep *pkt_of(struct gx_ep *ep)
{
	return GX_CONTAINER_OF(ep, struct pkt_ep, ep);
}

static inline struct gx_stats *pkt_stats(const struct link_pkt *l)
{
	return &l->core->loop.stats;
}

/* A protocol error of a peer that nobody can repair: the control thread ends the connection. */
static inline void rx_fault(struct pkt_ep *e, int err)
{
	if (!atomic_load_explicit(&e->ep.fault, memory_order_relaxed))
		atomic_store_explicit(&e->ep.fault, err, memory_order_release);
}

/* Does the port read the payload in place? Else it is staged. */
static inline bool pkt_in_place(const struct pkt_ep *e, const struct pkt_op *op)
{
	return op->gpu->device < 0 || (!op->pieces && e->port_path.gpus >> op->gpu->device & 1);
}

/* Are its packets larger than the path carries now, or would it be cut into others now? */
static inline bool op_outsized(const struct pkt_ep *e, const struct pkt_op *op)
{
	return op->quantum != e->shape.quantum && op->len > e->shape.quantum;
}

/* Does a message need a window of bits? Else one word holds them, for every quantum. So a message
 * that begins again with smaller packets never waits for bits, and both ends count the same
 * windows. */
static inline bool pkt_needs_window(uint64_t len)
{
	return len > 64 * GX_WIRE_QUANTUM_MIN;
}

/* Buffers kept out of grants, for duplicates. */
static inline uint32_t pkt_margin(const struct gx_port_caps *caps)
{
	return GX_MIN((uint32_t)PKT_MARGIN, caps->rx_slots / 4);
}

static inline struct block_q *link_bq(const struct link_pkt *l, const struct gx_gpu *gpu)
{
	return gpu->device < 0 ? l->bq_host : l->bq_gpu[gpu->device];
}

/* ---- pull.c, pull_in.c: messages that the receiver reads where they lie ---- */

bool pull_sends(const struct pkt_ep *e,
		const struct pkt_op *op); /* does the peer read, and can it read these bytes? */
void pull_give(struct pkt_ep *e, const struct pkt_op *op);	/* the peer may pull from here on */
void pull_take_back(struct pkt_ep *e, const struct pkt_op *op); /* what it reads is void now */
void pull_begin(struct pkt_ep *e, struct in_msg *m);		/* an OPEN came */
/* @m ends; or all its bytes are here. Pieces that helpers are at stay pending. */
void pull_forget(struct pkt_ep *e, struct in_msg *m);
bool pull_is_taken(struct pkt_ep *e, uint32_t mid);	      /* are bytes read by now void? */
void pull_due(struct pkt_ep *e, const struct in_msg *m);      /* this core may read some of it */
void pull_not_due(struct pkt_ep *e, const struct in_msg *m);  /* helpers are at all that is left */
void pull_lend(struct pkt_ep *e, struct in_msg *m);	      /* its next slices, to helpers */
int pull_lent_take(struct pkt_ep *e, const struct in_msg *m); /* one back; -1: there is none */
bool pull_turn(struct pkt_ep *e);			      /* reads one slice */
void pull_reap(struct pkt_ep *e);			      /* slices whose helpers are through */
void pull_fail_ep(struct pkt_ep *e); /* the endpoint has failed: read nothing more */

/* ---- path.c, path.h: which quantum the path carries, and which path packets take ---- */

/* Does this acknowledgement say something about the path? */
static inline bool link_watches(const struct pkt_ep *e, const struct flow_pkt *p)
{
	return gx_unlikely(e->path.proving || p->len >= e->path.hole_b);
}
/* The psns since the last call leave by path.by[half]. */
static inline void path_sent(struct pkt_ep *e, enum gx_half half)
{
	paths_sent(e->paths, e->flow, half, e->path.by[half]);
}
/* Does nobody know which path of control packets the peer hears? */
static inline bool path_in_doubt(const struct pkt_ep *e)
{
	return gx_unlikely(e->paths) && paths_asks(e->paths, GX_HALF_CTL);
}

/* ---- turn.c: the stages of a turn ---- */

/* This core's part: the link over each port, by this core's queue. */
struct pkt_core {
	struct link_pkt *port[GX_HELLO_PORTS];
};
static inline struct link_pkt *pkt_link(const struct gx_core *core, unsigned port)
{
	return ((const struct pkt_core *)core->link[GX_LINK_PACKET])->port[port];
}

extern const struct gx_link gx_link_packet;
extern const struct gx_ep_ops gx_link_pkt_ops; /* links that hold a packet link hand endpoints on */

bool link_pkt_poll(void *link, uint64_t now_ns);     /* the poller */
int link_pkt_look(void *link, struct gx_look *look); /* wake.c; of struct gx_poller */
bool link_pkt_asleep(const void *link); /* without an endpoint the poller has nothing to do */
bool turn_settle_tx(struct link_pkt *l, uint64_t now_ns); /* the port and GPUs give buffers back */
void turn_settle_rx(struct link_pkt *l,
		    uint64_t now_ns); /* begins waiting copies, takes ended ones */

#endif
