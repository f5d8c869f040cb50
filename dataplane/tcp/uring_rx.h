/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving TCP payload by io_uring, without a read for each socket: the kernel holds a receive of
 * every socket (multishot), and takes memory for the bytes from a pool that all sockets share. The
 * pool lies where a GPU can read it, so a fragment of it is the source of a descriptor.
 *
 *   uring_rx_turn()   once a turn: at most one system call, none if no socket has anything
 *   uring_rx_pull()   the next bytes of a socket's stream, as fragments in their order
 *   (the caller)      a descriptor for each (block_add), with the fragment's ref; or a copy
 *   uring_done()      a copy that read the fragment has finished (block_reap)
 *
 * The next turn gives the memory of fragments that nobody reads back, without a system call. There
 * are two kinds of pool: buffers that the kernel copies into (uring_buf.c), and pages of a NIC's
 * queue (zcrx.c). The kernel writes into buffers within the turn's system call alone.
 *
 * The caller pulls every socket: the bytes of one that it leaves alone fill the pool. In a fair pool
 * a socket may keep, from one turn to the next, a fourth of what is free; then its receive is
 * cancelled, and begins again when it has half of that. So one that nobody reads, or that a slow GPU
 * reads, has a fifth of the pool, and n of them leave 4 parts of n + 4. Bytes that come within one
 * turn count in the next: many such sockets that all bring more at once may yet fill the pool, until
 * the GPU goes on or is given up.
 *
 * A socket that leaves keeps its place until uring_rx_left(), and may be closed then. The polling core
 * owns everything; open and close are for the control path, while no core turns. A turn allocates
 * nothing and logs nothing.
 */
#ifndef GX_URING_RX_H
#define GX_URING_RX_H

#include "tcp/io_ring.h"

#define URING_SQ      256 /* entries of the submission queue */
#define URING_TURN    512 /* completions, and sockets that are armed again, of a turn */
#define URING_SOCKS   16384
#define URING_DEPTH   65536 /* fragments, at most */
#define URING_BUFS    32768 /* of the kernel, at most */
#define URING_BUF_B   (1u << 20)
#define URING_BUF_MIN 64u
#define URING_NONE    UINT32_MAX

/* For the caller: bytes of the stream, all of them at @src. */
struct uring_frag {
	const char *src;
	uint32_t len;
	uint32_t ref;
};

/* Of a socket's receive. uring_goto() alone writes it. */
enum uring_state {
	URING_FREE,   /* no socket */
	URING_WANTS,  /* to be handed to the kernel */
	URING_DRY,    /* the same, when the pool has memory again */
	URING_PAUSED, /* the same, when its fragments have gone back */
	URING_ARMED,  /* the kernel has it */
	URING_ENDED,  /* no more bytes come */
};

struct uring_sock {
	uint8_t state; /* enum uring_state */
	bool is_leaving;
	bool is_forgotten; /* its place becomes free by itself */
	bool is_listed;	   /* in the list of those that a turn looks at */
	bool cancel_due;   /* to be cancelled */
	bool cancel_out;   /* the kernel has not answered to the cancel */
	bool pauses;	   /* the cancel is for a pause */
	int fd;
	int err; /* sticky: what came before is still pulled */
	const char *why;
	uint32_t next;	     /* in the list */
	uint32_t head, tail; /* records with bytes that are not pulled */
	uint32_t held;	     /* references to its fragments */
	uint32_t turn;	     /* of its last completion */
	uint64_t charge;     /* of its records */
};

/* Bytes of a completion. */
struct uring_rec {
	uint32_t off, left; /* those that are not pulled */
	uint32_t refs;
	uint32_t next; /* of its socket, of the free ones, or of those that wait to go back */
	uint32_t sock;
	uint32_t buf;	 /* of the kind */
	uint32_t charge; /* bytes of the pool that nobody else gets meanwhile; the kind may ask for
			    more than those that came */
};

struct uring_stat {
	uint64_t frags, bytes; /* that completions brought */
	uint64_t dry;	       /* receives that ended because the pool was empty */
	uint64_t armed;	       /* receives that the kernel was given */
	uint64_t full;	       /* turns that left completions, for want of records */
	uint64_t strays;       /* completions that belong to no socket */
	uint64_t paused;       /* receives that were cancelled, as others need the pool */
};

struct uring_rx;

/* What a kind of pool does. */
struct uring_kind {
	/* The entry of a receive: what the socket alone does not say. */
	void (*prep)(struct uring_rx *rx, struct io_uring_sqe *sqe);
	/* Where are the bytes of this completion? 1: @rec says it. 0: it has none. -EPROTO. */
	int (*place)(struct uring_rx *rx, const struct io_uring_cqe *cqe, struct uring_rec *rec);
	/* Nobody reads record @i any more, and its off is its end: uring_rec_free(), now or when its memory has gone back. */
	void (*give)(struct uring_rx *rx, uint32_t i);
	void (*flush)(struct uring_rx *rx);    /* once a turn: the kernel may have what was given */
	uint32_t (*room)(struct uring_rx *rx); /* places that the kernel could fill, about */
	void (*close)(struct uring_rx *rx);    /* its own part; the ring is closed */
};

struct uring_rx {
	struct io_ring ring;
	const struct uring_kind *kind;
	void *own;  /* of the kind */
	char *pool; /* every fragment lies in pool_b bytes from here on */
	uint64_t pool_b;
	uint32_t nr_socks, nr_used;
	struct uring_sock *sock;
	bool is_fair;
	uint32_t turn;
	uint32_t price;	  /* the least charge of a record: its share of the pool */
	uint64_t charged; /* of all records; may be more than the pool */
	uint64_t free_b;  /* what the pool had beside them when the turn began */
	uint32_t list_head, list_tail, nr_listed;
	uint32_t rec_free, nr_recs, nr_free;
	uint32_t nr_out; /* records with bytes that somebody reads, or that are not pulled */
	struct uring_rec *rec;
	struct uring_stat stat;
};

struct uring_cfg {
	const struct io_ring_sys *sys;
	void *pool; /* nr_bufs times buf_b bytes, that a GPU may read */
	uint32_t buf_b;
	uint32_t nr_bufs;  /* power of two */
	uint32_t nr_socks; /* that it may have at a time */
	uint32_t depth;	   /* completions that may wait; power of two, at least nr_bufs */
	bool is_packed;	   /* a buffer takes bytes until it is full, if the kernel can (6.12) */
	bool is_fair;	   /* a socket whose fragments stay leaves some of the pool to others */
};

/** uring_rx_open() - A pool of buffers. Return: 0, -EINVAL, -ENOMEM, -errno of the kernel; with
 * @why. */
int uring_rx_open(const struct uring_cfg *cfg, struct uring_rx **out, char why[IO_RING_WHY_B]);
/** uring_rx_close() - No core turns, and no copy reads a fragment any more. NULL is fine. */
void uring_rx_close(struct uring_rx *rx);
/** uring_rx_is_packed() - Does a buffer take bytes of several completions? */
bool uring_rx_is_packed(const struct uring_rx *rx);

/** uring_rx_add() - Receive from the connected socket @fd, which stays the caller's. Return: its
 * place; -ENOSPC. */
int uring_rx_add(struct uring_rx *rx, int fd);
/** uring_rx_turn() - Once a turn of the core. True: something came. */
bool uring_rx_turn(struct uring_rx *rx);
/**
 * uring_rx_pull() - The next bytes of socket @sock, at most @want_b.
 * @frags: filled from index 0, room for @n; each has one reference, the caller's
 *
 * Return: fragments; 0: nothing now; -errno: the stream has ended, uring_why() says how.
 * -ESHUTDOWN: the peer closed it.
 */
int uring_rx_pull(struct uring_rx *rx, uint32_t sock, uint64_t want_b, struct uring_frag frags[],
		  unsigned n);
const char *uring_why(const struct uring_rx *rx, uint32_t sock);
/** uring_hold() - One more copy reads the fragment: its bytes go to two places. */
void uring_hold(struct uring_rx *rx, uint32_t ref);
/** uring_done() - One of its copies has finished. */
void uring_done(struct uring_rx *rx, uint32_t ref);
/** uring_rx_leave() - Nothing more is pulled from @sock; bytes that came go back. */
void uring_rx_leave(struct uring_rx *rx, uint32_t sock);
/** uring_rx_left() - Behind uring_rx_leave(), and a turn or more. True: the kernel has no receive of
 * it, and no copy reads its fragments. The place is free. */
bool uring_rx_left(struct uring_rx *rx, uint32_t sock);
/** uring_rx_forget() - The same in one: nobody asks for uring_rx_left(), and later turns free the
 * place. The caller may close the socket at once; the kernel keeps it open until then. */
void uring_rx_forget(struct uring_rx *rx, uint32_t sock);
/** uring_rx_is_busy() - Has a socket a place? */
static inline bool uring_rx_is_busy(const struct uring_rx *rx)
{
	return rx->nr_used;
}
/** uring_rx_is_short() - The kernel has, or may have, bytes of @sock that wait for memory. */
static inline bool uring_rx_is_short(const struct uring_rx *rx, uint32_t sock)
{
	return !rx->nr_free || rx->sock[sock].state == URING_DRY ||
	       rx->sock[sock].state == URING_PAUSED;
}
/** uring_rx_is_whole() - Nobody has bytes that came: all memory has gone back, or is about to. */
static inline bool uring_rx_is_whole(const struct uring_rx *rx)
{
	return !rx->nr_out;
}
/** uring_rx_held() - References to fragments of @sock. */
static inline uint32_t uring_rx_held(const struct uring_rx *rx, uint32_t sock)
{
	return rx->sock[sock].held;
}

/* -- for the kinds -- */

/** uring_rx_make() - A ring, places and records. */
int uring_rx_make(const struct io_ring_cfg *cfg, uint32_t nr_socks, uint32_t depth,
		  const struct uring_kind *kind, struct uring_rx **out, char why[IO_RING_WHY_B]);
void uring_rec_free(struct uring_rx *rx, uint32_t i);

#endif
