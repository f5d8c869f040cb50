/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations, their completions, and the queues that take the one and return the other. gx.h includes
 * this; its text at the top (order, limits, pointers, threads) holds here.
 */
#ifndef GX_OP_H
#define GX_OP_H

#include "gx/gx.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Operations ---- */

enum gx_op_kind {
	GX_OP_PUT = 1,
	GX_OP_GET,
	GX_OP_SEND,
	GX_OP_RECV,
	GX_OP_FLUSH, /* moves nothing: it is done when what GX_OP_FENCE waits for is. No flags */
};

enum gx_op_flag {
	GX_OP_IMM = 1,	  /* PUT: give .imm to the peer, in a GX_COMP_NOTIFY, when all has landed */
	GX_OP_LOCAL = 2,  /* PUT, SEND: report GX_COMP_LOCAL as well, when the program may use the
			  * buffer again. Where the peer checks payload while it copies
			  * (gx_conn_info.peer_crc_by_copy), that is not before it is done */
	GX_OP_SILENT = 4, /* no completion when the operation succeeds. As operations have no order,
			   * the completion of a later one says nothing of a silent one */
	GX_OP_NOTE = 8,	  /* PUT: give .note to the peer, in a GX_COMP_NOTIFY, when all bytes of
			   * the operation are visible. Not with GX_OP_IMM or a .stream */
	/* Begin when all PUTs, GETs and SENDs that this queue has posted before on the endpoint (on
	 * the connection: gx_post_striped()) are done, or have failed. What is posted later on the
	 * endpoint, by any queue, begins after it. Receives are not waited for. For queues of
	 * gx_queue_open() alone: who turns a core takes its completions itself (-EINVAL).
	 * gx_post_striped() takes a fence and a flush only when there is nothing to wait for: poll,
	 * and post again */
	GX_OP_FENCE = 16,
	/* RECV into host memory at a multiple of eight: each eight bytes at such an address are stored
	 * together, so that a program may read them while the message comes (as NCCL does by protocol
	 * LL: a flag beside the data). Link packet stores all messages so; link local those that
	 * gx_host_opts.pull_over_b has go as packets; link tcp those with this flag, for one copy
	 * more, but not over sockets whose bytes a NIC places (gx_nic_opts) */
	GX_OP_WORDS = 32,
};

/* ---- Views ---- */

#define GX_VIEW_DIMS	 4u
#define GX_VIEW_ROWS_MAX (1u << 20)
struct gx_view_dim {
	uint64_t count;	  /* steps: at least 1 */
	int64_t stride_b; /* bytes from one step to the next; may be negative */
};
/** struct gx_view - Bytes of one memory in the order of their indices: a tensor or array with strides, or a
 * part of one. Begin with zeros. The run of row r and steps i[] is the .run_b bytes from
 * off + .rows[r] * .row_b + sum of i[k] * .dim[k].stride_b on, where off is gx_op.off (or .addr) or
 * .remote_off. The view's bytes are those of its runs: the last dimension is the innermost, rows are the
 * outermost. Where bytes land, runs must not overlap: with dimensions in the order of their |stride_b|,
 * each is at least what those before it span. Rows may meet, also a row itself; which one wins is open. */
struct gx_view {
	uint64_t run_b; /* bytes that lie in one piece, such as an element or a head: 1 to 64 GiB */
	struct gx_view_dim dim[GX_VIEW_DIMS]; /* .nr_dims of them, the outermost first */
	uint32_t nr_dims;		      /* 0 to GX_VIEW_DIMS */
	uint32_t nr_rows;     /* 0: no rows; else 1 to GX_VIEW_ROWS_MAX, such as pages or tokens */
	const uint32_t *rows; /* their indices, in any order */
	uint64_t row_b;	      /* bytes from row 0 to row 1 */
};
/** struct gx_views - How the bytes lie at the two ends: byte i of the one view is byte i of the other. Both
 * have as many bytes; at most 64 GiB. NULL: a plain range. */
struct gx_views {
	const struct gx_view *local, *remote;
};

#define GX_NOTE_MAX 4096u  /* bytes of gx_op.note */
#define GX_SEGS_MAX 65536u /* of a list */
/** struct gx_seg - A segment of a list: .len bytes. */
struct gx_seg {
	struct gx_mem *mem;		      /* NULL: .off is an address of the host */
	uint64_t off, token, remote_off, len; /* token, remote_off: the peer's region, and in it */
};

/** struct gx_op - One operation. Begin with zeros: struct gx_op op = {0}; C++: gx_op op = {}. gx
 * reads it during the post alone; the bytes that it names are gx's until the last completion. */
struct gx_op {
	enum gx_op_kind kind;
	unsigned flags;
	uint64_t user;	    /* given back in completions, and the name for gx_cancel() */
	void *addr;	    /* local host memory, when .mem is NULL */
	struct gx_mem *mem; /* or registered memory (needed for GPUs) and .off in it */
	uint64_t off;
	uint64_t len;	      /* 0 to 64 GiB; RECV: room */
	uint64_t token;	      /* PUT, GET: the peer's region */
	uint64_t remote_off;  /* PUT, GET: in that region */
	uint64_t imm;	      /* PUT with GX_OP_IMM */
	uint64_t tag;	      /* SEND, RECV */
	uint64_t tag_mask;    /* RECV: bits of tag that must match, 0: all */
	uint64_t deadline_ns; /* time of gx_now() after which it fails with -ETIMEDOUT; 0: only the
				 peer time-out holds */
	void *stream; /* CUDA stream (CUstream). gx reads or writes the buffer after the work that
		       * the stream has so far. NULL: at once. See below */
	/* A list of segments, in place of .addr to .remote_off; see gx_list_open(). Both NULL: none */
	union {
		const struct gx_seg
			*segs;	      /* .nr_segs of them; gx reads them during the post alone */
		struct gx_list *list; /* .nr_segs 0: of gx_list_open() */
	};
	uint32_t nr_segs;
	uint32_t note_len; /* 0 to GX_NOTE_MAX */
	/* PUT with GX_OP_NOTE: .note_len bytes, which gx copies during the post. A PUT of .len 0 is a
	 * note without data; it names no region. The peer gets the notes of gx_post() in the order of
	 * posting for each endpoint, those of gx_post_striped() for each connection and queue. An
	 * endpoint has at most 64 that the peer's program has not given back: so a program that does
	 * not poll holds up the notes of its peers, and what they post behind them, and loses none.
	 * A note of up to 4 bytes costs no message of its own. One whose operation fails never comes,
	 * or has come when the operation fails too late for that */
	const void *note;
};

/**
 * gx_list_open() - Prepare 1 to GX_SEGS_MAX segments, 64 GiB in all, for posts with gx_op.list by any
 * thread, several at a time. Any thread.
 * A list is one PUT or GET: its completion has the .len of the whole. Segments land in any order; gx
 * merges neighbours. They begin as the endpoint has room, of which half stays for other operations.
 * After the first error none begins any more, and some bytes may have landed. GX_OP_LOCAL comes just
 * before DONE; an immediate when all bytes are visible, with .len 0 at the last segment's place. A
 * .stream is refused (-EINVAL), and so is the post of a list whose memory was freed. A core has at
 * most 256 lists under way, and 16 more of each endpoint, which no other can take. gx_post_striped()
 * cuts a list by bytes, and leaves segments below 4 KiB whole.
 * Return: 0, -EINVAL (number of segments; one outside of its .mem, or without memory), -ENOMEM.
 */
int gx_list_open(struct gx *gx, const struct gx_seg segs[], unsigned n, struct gx_list **out);
/**
 * gx_views_open() - Prepare two views, for PUTs and GETs with gx_op.list by any thread, several at a
 * time, and each with memory and places of its own: .mem and .off, or .addr; .token and .remote_off. gx
 * copies the views, rows too. Any thread.
 * The peer keeps the remote view, unless it is one run: the first put or get with a region on an endpoint
 * sends it ahead, which costs a round trip, and later ones have no message more than a plain one has. Of
 * an endpoint it keeps 16, the latest ones. So prepare views once, and move each layer of a cache with them.
 * A put or get with views is one: .len is 0, or the bytes of the views; its completion has them. An
 * immediate comes when all bytes are visible, with .len 0 at .remote_off. It fails before a byte
 * lands with -ERANGE if a byte of the remote view lies outside of the region, or of the key; with
 * -ETIMEDOUT if the peer has no room for the view for a peer time-out. A .stream is refused.
 * gx_post_striped() gives each lane a part of the bytes.
 * Where link "local" has the region mapped, the core copies from view to view, and with memory of GPUs a kernel
 * does (not with GX_COPY_CE). Else packets carry it, also on "verbs"; and link "tcp" does. Then its source in
 * memory of a GPU has rows of at least 64 bytes, and at most 2^30 pieces (in a row, if it has rows): of the
 * largest power of two up to 16 bytes that divides its runs; to land there it takes runs of at least 1/62 of
 * gx_conn_info.quantum_b. Else it fails with -EOPNOTSUPP; so it does with a peer of a version without views,
 * over sockets whose bytes a NIC places, from or into a local view on link "verbs", and to a port with its
 * bounce buffers in a GPU.
 * Return: 0; -EINVAL (a dimension or row, by its number, that is empty, too large, or, of the remote view,
 * overlaps; views of different length; both NULL), -ENOMEM. A local view that overlaps is for PUTs alone.
 */
int gx_views_open(struct gx *gx, const struct gx_views *views, struct gx_list **out);
/** gx_list_close() - Once. The list goes when its posts have completed. NULL is fine. Any thread. */
void gx_list_close(struct gx_list *list);

enum gx_comp_kind {
	GX_COMP_DONE = 1, /* PUT, SEND: the bytes are visible in the peer's memory (link "verbs":
			     see Order above). GET, RECV: in ours. Or the operation failed; see
			     .status */
	GX_COMP_LOCAL,	  /* PUT, SEND: the peer has acknowledged all, and nothing reads the buffer
			     any more */
	GX_COMP_NOTIFY,	  /* a peer's PUT with GX_OP_IMM or GX_OP_NOTE has landed here */
};

/** struct gx_comp - A completion. */
struct gx_comp {
	enum gx_comp_kind kind;
	enum gx_op_kind op;
	int status; /* 0; -ETIMEDOUT, -ENOTCONN (submitted, and the endpoint is down), -ECONNRESET
		     * (peer lost), -ECANCELED, -EACCES, -ENOENT (no such region), -ESTALE (the
		     * region was withdrawn: freed, its key withdrawn, its lease over), -ERANGE
		     * (outside the region), -EMSGSIZE (RECV room too small), -EIO (GPU; link verbs: the device,
		     * or the path again and again; gx_host_opts.pull: the kernel cannot read),
		     * -ENETUNREACH (link verbs: no device is left that reaches the peer), -EBADMSG
		     * (CRC-32C: the same bytes came wrong nine times, or too many at once: a memory
		     * or a link corrupts them, or the source was changed meanwhile), -EFAULT (the
		     * operation's memory was unmapped), -EPERM (gx_host_opts.pull: the kernel no longer
		     * lets one process read the other) */
	struct gx_ep *ep;
	uint64_t user; /* of the operation; NOTIFY: 0 */
	uint64_t len;  /* bytes that landed */
	union {
		uint64_t tag; /* RECV: the sender's */
		uint64_t seg; /* of a list that failed: index of the segment that failed first; of
				 neighbours that gx merged: of the first of them */
	};
	uint64_t imm;	     /* NOTIFY */
	uint64_t token, off; /* NOTIFY of an immediate: our region and where in it */
	/* NOTIFY of a note: .note_len bytes, until the next gx_poll() of the queue; never NULL. Other
	 * completions: NULL */
	const void *note;
	uint32_t note_len, reserved; /* reserved: 0 */
};

/* ---- Queues ---- */

/*
 * A thread posts operations to a queue, and takes their completions from it.
 * - Each core has one, gx_core_queue(), for the thread that turns the core. It reaches the
 *   endpoints of that core. gx_post() itself hands operations to the link; a small put leaves, or
 *   is done, before it returns. GX_COMP_NOTIFY of all endpoints of the core come to this queue
 *   alone; notes to another one if it asks for them (gx_queue_opts.notify).
 * - Any thread makes others, gx_queue_open(). They reach the endpoints of all cores, by a ring to
 *   each core and one back; the cores take operations out in their turns. So they cost a hand-over
 *   between two CPUs each way, and up to gx_core_opts.sleep_max_ns where the core sleeps.
 *
 * Calls marked [queue] never block and take no lock.
 */

/** gx_core_queue() - The queue of the thread that turns @core. It lives as long as @core does. */
struct gx_queue *gx_core_queue(struct gx_core *core);

/** struct gx_queue_opts - Zero means the default everywhere. */
struct gx_queue_opts {
	size_t size;
	uint64_t depth; /* operations of it under way on each core, at most; default 512, up to
			   8,192, a power of two (else the next) */
	/* The notes of peers (GX_OP_NOTE), from all endpoints of the context, come to this queue in
	 * place of the cores' queues: those of an endpoint in order, those of different endpoints in
	 * any. A note's bytes are its reader's until the next gx_poll() of the queue, and so is its
	 * endpoint. While it holds 1,024 of a core that gx_poll() has not taken, the others wait as they do
	 * for the queue of a core. gx_queue_close() gives those that were not taken to the next such
	 * queue, or to the cores' queues. Those that lie there come here. Immediates stay there */
	bool notify;
	uint8_t reserved[7]; /* 0 */
};

/**
 * gx_queue_open() - Make a queue. [control]
 * @opts: NULL: all default
 * The cores need not run yet; operations wait for them. A queue for operations with a .stream must
 * be opened after the first memory of a GPU was allocated or registered.
 * Return: 0, -EINVAL (depth), -ENOMEM, -EBUSY (another queue has .notify), -EAGAIN (a core that
 * nobody turns has not yet learnt of earlier queues).
 */
int gx_queue_open(struct gx *gx, const struct gx_queue_opts *opts, struct gx_queue **out);

/**
 * gx_queue_close() - End a queue of gx_queue_open(). [control] Its thread must have stopped using
 * it. Operations under way are cancelled, and completions that were not taken are dropped, but
 * notes go to the cores' queues.
 * Return: 0: the queue is gone, and every buffer belongs to the caller again; -EAGAIN: a core has
 * yet to end an operation, or a stream has yet to reach a flag: have the cores turned, and call
 * again; no other call may use the queue meanwhile. gx_close() ends queues that are left. -EINVAL:
 * it is a core's.
 */
int gx_queue_close(struct gx_queue *q);

/**
 * gx_post() - Post operations on an endpoint. [queue] A queue's operations on one endpoint begin in
 * the order of posting. Where the endpoint has no room, those of a core's queue are not taken, and
 * those of other queues wait on the core, while those of other endpoints pass.
 * Return: how many were taken, from index 0; fewer than @n when queues are full: turn (a core's
 * queue), poll and post the rest. For the first one: -EINVAL (unknown kind or flag, .reserved not
 * 0, outside of .mem, a stream that cannot be waited for; .mem was freed; @ep is of another core
 * than the queue, or of another context), -EFAULT (.mem cannot be written), -ENOTCONN (the endpoint
 * is down), -ENODEV (it names a stream, and no GPU is open), -ENOMEM (a core's queue; link tcp has
 * no buffers for memory of that GPU, as a warning said when it was opened). Queues of
 * gx_queue_open() report what the link refuses later as the status of a completion.
 *
 * Operations with a .stream. gx_post() queues a flag behind the stream's work, and the operation
 * waits until the core sees the flag. The stream itself waits for nothing, and gx does not wait for
 * work that is queued on the stream later. The buffer may be of the host or of any GPU. The context
 * must have opened some GPU, which the first gx_mem_alloc() or gx_mem_reg() of GPU memory does. Two
 * operations that wait for the same stream on one endpoint begin in the order of posting; other
 * operations overtake them. A queue holds at most 256 operations that wait for streams; gx_post()
 * takes no more. Deadlines and gx_cancel() hold while an operation waits. CU_STREAM_LEGACY is that
 * of .mem's GPU, else of the first GPU opened. gx refuses CU_STREAM_PER_THREAD (of which thread?)
 * and a stream that is being captured.
 */
int gx_post(struct gx_queue *q, struct gx_ep *ep, const struct gx_op ops[], unsigned n);

/**
 * gx_post_striped() - Post PUTs and GETs on a connection as a whole. [queue] gx cuts each into
 * parts of whole chunks, one for each lane, which the cores move at the same time. An operation
 * with fewer chunks has fewer parts; one of at most a chunk has one part, and the lanes take turns.
 * An operation completes once, when all its parts have. After the first error gx cancels the other
 * parts and reports that error; some bytes may have landed then. An immediate is delivered when all
 * parts are visible, by an empty put behind them: its GX_COMP_NOTIFY has .len 0 and the .off of the
 * whole, unless the message is one part. gx_poll() moves operations on. A completion names one of
 * the connection's endpoints.
 * Return: as gx_post(). -EINVAL for SEND and RECV, which meet on one endpoint, and for a core's
 * queue, which does not reach the lanes of other cores: the thread that turns a core may use one of
 * gx_queue_open(), too.
 */
int gx_post_striped(struct gx_queue *q, struct gx_conn *conn, const struct gx_op ops[], unsigned n);

/**
 * gx_cancel() - Ask to end the operations of the queue with this .user that were posted on @ep, or
 * striped over @ep's connection. [queue] Each completes with -ECANCELED unless it is done first;
 * over link "verbs", and "tcp" with gx_nic_opts.tx, when devices or the kernel have let go of its
 * memory, at the latest when the peer is lost. Bytes of a put that have left may land after that, at
 * their places alone: by packets also over those of a later put there. So it is at its deadline. The
 * call looks at each operation of the endpoint, or of the queue, that is under way.
 * Return: how many it found; -EINVAL: @ep is of another core than the queue.
 */
int gx_cancel(struct gx_queue *q, struct gx_ep *ep, uint64_t user);

/**
 * gx_poll() - Take completions. [queue] Never blocks, never turns a core. An endpoint in a
 * completion stays valid until gx_conn_close() was called and the completions were taken.
 * Return: entries written, at most @n.
 */
unsigned gx_poll(struct gx_queue *q, struct gx_comp comps[], unsigned n);

/**
 * gx_queue_fd() - A descriptor to sleep on, for poll(), epoll or select(), until completions may be
 * there. [queue] It is the same at each call, the queue's until gx_queue_close(), and only to wait
 * for. Return: the descriptor; -EOPNOTSUPP (the kernel, or a filter, has no membarrier(2)), -EMFILE.
 *
 * gx_queue_arm() - May the thread sleep now? [queue] From here on a completion makes the descriptor
 * readable, once; and the call looks for completions that came before. So none is missed:
 *
 *	while (!(n = gx_poll(q, comps, 16)) && gx_queue_arm(q) == 1)
 *		;
 *	if (!n)
 *		poll(&(struct pollfd){.fd = gx_queue_fd(q), .events = POLLIN}, 1, -1);
 *
 * A wake lasts until the next call; it may come without a completion. The cores pay nothing for
 * queues that are not armed.
 * Return: 0: sleep; 1: poll; -EINVAL (no gx_queue_fd() before). The queue of a core: as
 * gx_core_fd() and gx_core_arm().
 */
int gx_queue_fd(struct gx_queue *q);
int gx_queue_arm(struct gx_queue *q);

#ifdef __cplusplus
}
#endif

#endif
