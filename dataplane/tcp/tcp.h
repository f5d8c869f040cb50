/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp link's own state, which the files of this folder share; tcp_turn.c first. What a file does
 * with it is in its own header, and of tcp_tx.c, tcp_rx.c, tcp_take.c, tcp_bare.c and tcp_frag.c in
 * tcp_sock.h. An endpoint has 1 to 16 TCP sockets to the peer's endpoint, and each carries frames
 * (tcp_frame.h) both ways. The poll core owns everything here, except where a comment names the
 * control thread. Nothing allocates after ep_connect. Calls into the kernel go through struct
 * tcp_sys, never block, and leave no reference to a caller's memory behind. Copies of a GPU
 * (tcp_gpu.c, tcp_fetch.c) may, and sends that a NIC reads from there (tcp_offload.h).
 */
#ifndef GX_TCP_H
#define GX_TCP_H

#include "list/pieces.h"
#include "copy/block.h"
#include "copy/stage.h"
#include "core/core.h"
#include "core/socks.h"
#include "tcp/tcp_frame.h"
#include "tcp/tcp_state.h"

#include "gx_internal/link.h"

#include <assert.h>
#include <sys/socket.h>

#define TCP_SOCKS_MAX GX_SOCKS_MAX /* of a lane */
#define TCP_OPS	      1024	   /* operations of an ep, those that serve gets included */
#define TCP_MIDS      1024 /* messages open in a direction; place of a mid: mid % TCP_MIDS */
#define TCP_SLOTS     256  /* posted receives and gets of an ep */
#define TCP_GETS      64   /* gets that an ep may ask for */
#define TCP_CTLS      8192 /* frames without payload that wait for socket 0 */
#define TCP_CTLS_KEPT 6144 /* of them for answers and CANCEL: posts leave these free */
#define TCP_WORDS     16   /* words of bits for the chunks of a window */
#define TCP_OUTS      32   /* frames in the queue of a socket */
#define TCP_OUT_IOVS  3	   /* pieces of a frame: header, payload, trailer */
#define TCP_VIEW_B    (256u << 10) /* of a link: bytes on their way out of a view, or into one */
#define TCP_OUT_B     (256u << 10) /* a queue with as many bytes takes no other chunk, ... */
#define TCP_OUT_SHIFT 2		   /* ... or 2^2 times as many where the kernel takes them all */
#define TCP_AHEAD_B   16384	   /* bytes that a read may take beyond the frame under way */
#define TCP_PAD_B     65536
#define TCP_PENDS     128	  /* bare frames of a socket that are not whole */
#define TCP_TURN_B    (1u << 20)  /* bytes of a socket and direction in a turn, about */
#define TCP_LINK_B    (2u << 20)  /* the same, of all sockets of a core */
#define TCP_LARGE_B   65536	  /* after a frame so large a read takes trailer and next header */
#define TCP_RING_B    (4u << 20)  /* bytes on their way to a GPU's memory, of a core */
#define TCP_LEAST_B   16384	  /* of a longer payload a read into the ring takes so much */
#define TCP_STAGE_B   (16u << 20) /* pinned buffers for a GPU's payload: as many chunks, ... */
#define TCP_STAGE_MIN 3		  /* ... but so many at least, ... */
#define TCP_STAGE_MAX 16	  /* ... and so many at most */
#define TCP_FETCH_MAX 4		  /* chunks that are staged before an operation sends them */
#define TCP_NONE      UINT32_MAX
#define TCP_SLOT_BIT  (1ull << 63) /* a token with this bit names a slot */
#define TCP_TICK_NS   1000000
#define TCP_SHORT_B   16384u	/* received in a turn: after more, the peer waits for answers */
#define TCP_GRACE_NS  200000000 /* from the end of a socket to a fault: the cause may come */

struct tcp_feed;
struct tcp_offload;

/* System calls of the data path. Each returns at once; -errno, never -1. owner: nobody, frozen */
struct tcp_sys {
	/* Bytes taken or given. 0 of recv: the peer has closed its direction. */
	ssize_t (*send)(int fd, const struct iovec *iov, unsigned n);
	ssize_t (*recv)(int fd, const struct iovec *iov, unsigned n);
	/* As send, but the bytes may wait for those of the next send, or for push. The kernel lets
	 * them go by itself after 200 ms, and when the socket is closed. */
	ssize_t (*lead)(int fd, const struct iovec *iov, unsigned n);
	void (*push)(int fd);
};
extern const struct tcp_sys tcp_sys_kernel;
/* Control path: options of a data socket, of a connection with this peer time-out. */
void tcp_sys_tune(int fd, uint64_t timeout_ns);
/** tcp_sys_limit() - The kernel lets the peer send about @under_way_b ahead of what is read; 0: its own
 * choice. Control path. */
void tcp_sys_limit(int fd, uint64_t under_way_b);

/* What a core has for memory of one GPU: a ring of pinned memory that sockets are read into, blocks
 * that bring the bytes from there to their places, and buffers for payload that leaves. */
struct tcp_gpu {
	struct block_q *bq;
	struct block_q
		*far; /* fragments of feeds, which lie anywhere; NULL: no socket has a feed */
	struct stage *stage;
	char *ring;	      /* TCP_RING_B bytes of the arena */
	uint64_t head, tail;  /* of the ring, free-running: next byte to fill; blocks may read the
				 bytes from tail on */
	int err;	      /* not 0: the GPU failed, or did not end a copy. No byte comes in */
	unsigned device;      /* its index in the link, and in staged[] of endpoints */
	unsigned nr_stage;    /* buffers of stage, ... */
	unsigned nr_staged;   /* ... those that operations hold, ... */
	unsigned stage_share; /* ... and those that an endpoint may hold */
	uint64_t wanted_ns;   /* when one that moves was last refused one, though some were free */
	uint32_t drop_ticket; /* of stage, when memory was last freed */
	struct block_stat seen, far_seen; /* the part of the counters that the core's have */
};

struct tcp_op {
	uint8_t state; /* enum tcp_op_state; tcp_op_goto() alone writes it */
	uint8_t kind;  /* enum gx_op_kind */
	bool internal; /* serves a peer's get: no completion */
	bool reported; /* its last completion is given */
	bool fetching; /* it lies in the list of those whose next chunk is being staged */
	bool bare;     /* its payload goes by sockets of its own */
	bool leased; /* internal: of a region with a lease. GET: its bytes are here, and the owner has
			  yet to say that the lease held */
	uint32_t flags;
	uint32_t next; /* in its list */
	uint32_t mid;
	uint32_t slot; /* RECV, GET; TCP_NONE */
	union {
		struct {
			uint16_t queued; /* its frames in queues of sockets */
			uint16_t held;	 /* its sends that a NIC may still read */
		};
		uint32_t refs; /* both */
	};
	bool late;    /* it ended early, and its completion waits until held is 0 */
	bool dev;     /* a NIC reads its memory, which is of gpu: no buffer has any of it */
	uint16_t use; /* core_use() of mem */
	uint8_t view; /* its memory, in pieces, instead of at; 0: none */
	int status;
	uint64_t user;
	struct gx_route *route;
	char *at; /* local memory: source or destination */
	struct gx_mem *mem;
	struct tcp_gpu *gpu; /* of mem, if there are bytes; NULL: host memory */
	uint64_t len, token, remote_off, imm, tag, tag_mask, deadline_ns;
	uint64_t next_chunk, nr_chunks, acked; /* chunks */
	uint64_t sent; /* bit i: the kernel has all of chunk stage.first + i */
	struct stage_msg stage;
};

static inline void tcp_op_goto(struct tcp_op *op, enum tcp_op_state to)
{
	assert(tcp_op_may_go(op->state, to));
	op->state = to;
}

static inline bool tcp_op_is_live(const struct tcp_op *op)
{
	return op->state > TCP_OP_FREE && op->state < TCP_OP_DOOMED;
}

/* A place for incoming messages, and the message in it. */
struct tcp_in {
	uint8_t state;	      /* enum tcp_in_state; tcp_in_goto() alone writes it */
	bool opened;	      /* a DATA frame of it has come */
	bool imm_set, hidden; /* hidden: imm is for core_note() */
	bool leased;	      /* its frames have LEASE */
	bool words;	      /* GX_OP_WORDS */
	bool ack_due;
	uint8_t view; /* where it goes, in pieces, instead of dst; 0: none */
	uint16_t use; /* core_use() of mem */
	int err;
	uint32_t round;	  /* mid less place; FREE: of the next message */
	uint32_t op;	  /* RECV or GET that owns the slot; TCP_NONE */
	uint32_t readers; /* sockets whose frame under way, trailer included, belongs to it */
	uint32_t next;	  /* in the list of landed ones */
	uint32_t pending; /* its fragments that a GPU has not copied yet */
	char *dst;
	const struct gx_mem *mem;
	struct tcp_gpu *gpu; /* of mem; NULL: host memory */
	uint64_t len, token, off, imm;
	uint64_t nr_chunks, base; /* every chunk below base is in its place, or in the ring */
	uint64_t frames, sent;	  /* DATA headers seen; CANCEL: all that there are */
	/* Bit chunk % 1024, of [base, base + 1024). The last fields: see in_begin(). */
	uint64_t came[TCP_WORDS], landed[TCP_WORDS];
};

static inline void tcp_in_goto(struct tcp_in *m, enum tcp_in_state to)
{
	assert(tcp_in_may_go(m->state, to));
	m->state = to;
}

struct tcp_slot {
	bool used, bound;
	uint32_t gen, op;
};

/* An offer of the peer, at the index of its slot. */
struct tcp_offer {
	bool used, bare;
	uint64_t token; /* also once a send has taken it; 0: revoked */
	uint64_t tag, mask, len;
	uint64_t order; /* of arrival */
};

/* A frame on its way out. */
struct tcp_out {
	uint8_t hdr[TCP_HDR_B];
	uint8_t tail[TCP_TAIL_B]; /* with payload only */
	const char *data;	  /* NULL: gone, or read by a NIC */
	uint32_t len;		  /* of the payload */
	uint32_t op;		  /* TCP_NONE: none */
	bool gone;		  /* its operation has ended: zeros go out, and TCP_TAIL_VOID */
	bool bare;		  /* payload alone: header and END are frames of socket 0 */
	uint64_t chunk;		  /* of op */
};

/* The payload of the DATA frame that a socket is reading. */
struct tcp_sink {
	bool open;     /* one is under way, or its trailer is */
	bool is_void;  /* a bare one: END said so */
	bool words;    /* bytes go by buf, and to dst by words of eight: see GX_OP_WORDS */
	uint8_t view;  /* of its message: the bytes go by link->view */
	uint32_t left; /* bytes of it that have not come */
	uint32_t place;
	uint64_t chunk;
	char *dst;	     /* NULL: the bytes are dropped */
	struct tcp_gpu *gpu; /* dst is its memory: the bytes go by its ring. NULL: host memory */
};

struct tcp_sock {
	int fd;
	bool rx_ended; /* the peer closed it, or it broke: nothing is read or sent any more */
	bool tx_ended; /* nothing is sent: that, or a send failed */
	/* out */
	uint32_t head, tail; /* of out[], free-running: next free, next to send */
	uint32_t pos;	     /* bytes of out[tail] that are sent */
	uint64_t out_b;	     /* bytes in the queue; */
	uint8_t out_shift;   /* ... with TCP_OUT_B << this it takes no other chunk */
	bool leads;	     /* the kernel may keep what it took last, see struct tcp_sys */
	uint32_t watched;    /* events of it in the link's epoll; 0: it is not there */
	struct tcp_out out[TCP_OUTS];
	/* in */
	struct tcp_seal *seal; /* frozen: its bytes are encrypted; NULL: they are not */
	struct tcp_feed *feed; /* frozen: bytes come from it; NULL: by recv() */
	struct tcp_sink sink;
	uint32_t from, to; /* bytes of buf that are not taken yet */
	bool large;	   /* the last frame was */
	bool full;	   /* the next frame is of a socket that has TCP_PENDS bare ones */
	/* in, bare (tcp_bare.c) */
	bool bare;		/* frozen: payload alone comes here */
	uint32_t pend_head;	/* of pend[], free-running: next free; */
	uint32_t pend_paid;	/* ... the first whose payload is not all here; */
	uint32_t pend_ended;	/* ... the first without END; */
	uint32_t pend_tail;	/* ... and the older one of these two */
	uint32_t nr_lost_ticks; /* ticks for which payload has waited for its header */
	uint32_t
		nr_late_ticks; /* ticks for which headers have waited for payload, and none came: */
	uint32_t late_paid, late_left; /* ... pend_paid, and what the frame there lacked */
	struct tcp_sink pend[TCP_PENDS];
	uint8_t buf[TCP_AHEAD_B];
};

/* State of an endpoint by subject. owner: core, except fields marked ctl. */

/* tcp_tx.c, tcp_fetch.c: operations that send, and their messages. */
struct tcp_sends {
	uint32_t act_head, act_tail;	 /* list: operations with chunks to send */
	uint32_t fetch_head, fetch_tail; /* list: operations whose next chunk is not staged */
	uint32_t nr_act, nr_fetch;
	uint32_t nr_staged;	      /* buffers with chunks of it, of all GPUs */
	uint16_t staged[GX_GPUS_MAX]; /* the same, of each */
	uint64_t sent_ns;	      /* when a socket last took bytes */
	unsigned rover;		      /* the socket that comes first */
	uint32_t mids[TCP_MIDS];      /* ring of free mids, the next ones of their places */
	uint32_t mid_head, mid_tail;
	uint32_t mid_op[TCP_MIDS]; /* place: operation; TCP_NONE */
};

/* tcp_rx.c, tcp_in.c, tcp_gpu.c: messages in. */
struct tcp_takes {
	uint32_t nr_in;
	uint32_t nr_held; /* fragments that GPUs have not copied yet */
	uint32_t landed_head, landed_tail;
	uint16_t acks[TCP_MIDS]; /* places with ack_due */
	uint32_t nr_acks;
	unsigned rover;
	uint64_t short_ns; /* the last turn in which a feed had no memory for what may have come */
};

/* tcp_match.c: slots, offers, gets. */
struct tcp_match {
	uint32_t wait_head, wait_tail; /* list: sends that wait for an offer */
	uint32_t slot_rover, nr_offers, gets_out;
	uint64_t offer_order;
	uint32_t gets_head, gets_tail;
	uint32_t nr_served; /* operations that serve gets */
	struct tcp_slot slots[TCP_SLOTS];
	struct tcp_offer offers[TCP_SLOTS];
	struct tcp_frame gets[TCP_GETS];
};

/* tcp_op.c: frames without payload, and when they leave. */
struct tcp_ctls {
	uint32_t head, tail; /* of frame[], free-running */
	bool holds;	     /* they wait a turn for what the program answers */
	bool asked;	   /* a short message came in the last turn, and nothing was posted since */
	bool answered;	   /* after the last one something was posted before the next turn */
	bool leading;	   /* within tcp_tx(): what leaves may wait for that in the kernel */
	uint64_t spoke_ns; /* the last one */
	struct tcp_frame frame[TCP_CTLS];
};

/* tcp_turn.c, tcp_live.c: times, and whether the peer is there. */
struct tcp_timer {
	uint64_t tick_ns, deadline_ns, heard_ns, alive_ns, silence_ns, ping_ns;
	bool waiting;
	_Atomic uint32_t gauge_msgs; /* its part of the gauge; ctl reads it */
};

/* A socket is lost, and the fault of it waits: the cause may still come. */
struct tcp_end {
	int err;	 /* 0: none is */
	bool tx;	 /* it is about sending */
	const char *why; /* static text; NULL: err says all */
	uint64_t ns;
};

/* tcp_bare.c: payload for memory of one GPU comes bare, or goes so. Frozen. */
struct tcp_bares {
	bool rx, tx;
	unsigned rx_device, tx_device; /* that GPU, of this end and of the peer's */
};

/* Bytes [.off, .end) of a view that leave next. They stay until the kernel has all of them. */
struct tcp_gather {
	const struct view_at *of; /* NULL: none */
	uint64_t off, end;
	char b[TCP_VIEW_B];
};

/* Of its offload. */
struct tcp_nics {
	struct tcp_zc *zc;
	uint32_t nr_out;      /* sends that a NIC may still read */
	unsigned nr_promised; /* ctl: feeds that are set aside for its sockets */
};

struct tcp_ep {
	struct gx_ep ep;
	struct link_tcp *link;
	const struct tcp_sys *sys; /* frozen */
	bool counted;		   /* ctl: in link->nr_eps */
	int err;		   /* not 0: failed */
	uint32_t index;		   /* in link->eps; TCP_NONE: not there */
	uint32_t live_at;	   /* index in link->live; TCP_NONE: not there */
	uint64_t now_ns;
	unsigned nr_socks;
	unsigned chunk_shift;
	uint32_t window; /* chunks */
	uint32_t op_free, ops_top, nr_ops;
	struct tcp_bares bare;
	struct tcp_nics nic;
	struct tcp_sends tx;
	struct tcp_takes rx;
	struct tcp_timer timer;
	struct tcp_end end;
	struct tcp_op ops[TCP_OPS];
	struct tcp_in in[TCP_MIDS];
	struct tcp_match match;
	struct tcp_ctls ctls;
	struct pieces_pool pieces; /* views alone */
	uint8_t view_next;	   /* within a post: of the operation */
	struct tcp_sock sock[TCP_SOCKS_MAX];
};

/* The tcp link of a core. */
struct link_tcp {
	struct gx_core *core;
	unsigned nr_eps; /* ctl: endpoints that are open */
	int fd;		 /* ctl: epoll of their sockets, there while nr_eps is not 0; -1: none */
	bool looks;	 /* the core's own epoll has fd */
	unsigned nr_live, nr_hot;
	unsigned rover;	     /* the hot ep that this turn serves first */
	uint32_t look;	     /* free-running: the next of due_ns */
	uint64_t rx_b, tx_b; /* bytes of this turn, against TCP_LINK_B */
	uint32_t nr_held;    /* fragments of all eps */
	uint32_t drop_at;    /* of eps[]: the next one to look at in this pass, see struct drop */
	uint32_t drop_seq;   /* memory freed from here on may still be staged */
	const struct tcp_offload *offload; /* frozen */
	bool has_feeds;			   /* ctl, before GPUs are opened: sockets may have feeds */
	struct tcp_feed *kept;		   /* ctl: feeds whose fragments a GPU may still read */
	unsigned nr_gpus;
	struct tcp_gpu *gpu[GX_GPUS_MAX];  /* by device; NULL: not open */
	struct tcp_gpu *made[GX_GPUS_MAX]; /* ctl: likewise; the core takes them into gpu */
	struct tcp_ep *eps[GX_PEERS_MAX];  /* by index: attached eps, also those that fail */
	struct tcp_ep *live[GX_PEERS_MAX]; /* attached eps, the hot ones first */
	uint64_t due_ns[GX_PEERS_MAX];	   /* as eps: a cold one's next tick; UINT64_MAX: none */
	char pad[TCP_PAD_B];		   /* zeros, to send in place of bytes that are gone */
	char trash[TCP_PAD_B];		   /* bytes that nobody wants */
	char view[TCP_VIEW_B];		   /* bytes that came, for one */
	struct tcp_gather gather;
};

static inline struct tcp_ep *tcp_of(struct gx_ep *ep)
{
	return GX_CONTAINER_OF(ep, struct tcp_ep, ep);
}

static inline struct view_at *tcp_view_at(struct tcp_ep *e, uint8_t number)
{
	return &pieces_of(&e->pieces, number)->view;
}

static inline struct gx_stats *tcp_stats(const struct tcp_ep *e)
{
	return &e->ep.core->loop.stats;
}

static inline uint64_t tcp_nr_chunks(const struct tcp_ep *e, uint64_t len)
{
	return len ? ((len - 1) >> e->chunk_shift) + 1 : 1; /* a peer may name any length */
}

/* The GPU of an operation's or a message's memory. NULL: host memory. */
static inline struct tcp_gpu *tcp_gpu_of(const struct link_tcp *l, const struct gx_mem *mem)
{
	return mem && mem->kind != GX_MEM_HOST ? l->gpu[mem->gpu->device] : NULL;
}

/* No buffers for these bytes could be had when their GPU was opened. */
static inline bool tcp_gpu_lacks(const struct link_tcp *l, const struct gx_mem *mem, uint64_t len)
{
	return len && mem && mem->kind != GX_MEM_HOST && !l->gpu[mem->gpu->device];
}

static inline uint32_t tcp_ctl_room(const struct tcp_ep *e)
{
	return TCP_CTLS - (e->ctls.head - e->ctls.tail);
}

static inline struct link_tcp *tcp_core(const struct gx_core *core)
{
	return core->link[GX_LINK_TCP];
}

#endif
