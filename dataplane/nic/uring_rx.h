/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving TCP payload by io_uring, without a read for each socket: the kernel holds a receive of
 * every socket (multishot), and takes memory for the bytes from a pool that all sockets share: pages
 * of a NIC's queue (zcrx.h). A GPU reads the pool, so a fragment of it is the source of a descriptor.
 *
 *   uring_rx_turn()   once a turn: at most one system call, none if no socket has anything
 *   uring_rx_pull()   the next bytes of a socket's stream, as fragments in their order
 *   (the caller)      a descriptor for each (block_add), with the fragment's ref; or a copy
 *   uring_done()      a copy that read the fragment has finished (block_reap)
 *
 * The next turn gives the memory of fragments that nobody reads back, without a system call. The
 * caller pulls every socket: the bytes of one that it leaves alone fill the pool.
 *
 * A socket that leaves keeps its place until uring_rx_left(), and may be closed then. The polling core
 * owns everything; open and close are for the control path, while no core turns. A turn allocates
 * nothing and logs nothing.
 */
#ifndef GX_URING_RX_H
#define GX_URING_RX_H

#include "nic/io_ring.h"

#define URING_SQ    256 /* entries of the submission queue */
#define URING_TURN  512 /* completions, and sockets that are armed again, of a turn */
#define URING_SOCKS 16384
#define URING_DEPTH 65536 /* fragments, at most */
#define URING_NONE  UINT32_MAX

/* For the caller: bytes of the stream, all of them at @src. */
struct uring_frag {
	const char *src;
	uint32_t len;
	uint32_t ref;
};

/* Of a socket's receive. uring_goto() alone writes it. */
enum uring_state {
	URING_FREE,  /* no socket */
	URING_WANTS, /* to be handed to the kernel */
	URING_DRY,   /* the same; the pool was empty */
	URING_ARMED, /* the kernel has it */
	URING_ENDED, /* no more bytes come */
};

struct uring_sock {
	uint8_t state; /* enum uring_state */
	bool is_leaving;
	bool is_forgotten; /* its place becomes free by itself */
	bool is_listed;	   /* in the list of those that a turn looks at */
	bool cancel_due;   /* to be cancelled */
	bool cancel_out;   /* the kernel has not answered to the cancel */
	int fd;
	int err; /* sticky: what came before is still pulled */
	const char *why;
	uint32_t next;	     /* in the list */
	uint32_t head, tail; /* records with bytes that are not pulled */
	uint32_t held;	     /* references to its fragments */
};

/* Bytes of a completion. */
struct uring_rec {
	uint32_t off, left; /* those that are not pulled */
	uint32_t refs;
	uint32_t next; /* of its socket, of the free ones, or of those that wait to go back */
	uint32_t sock;
	uint32_t first; /* where the completion's bytes began */
};

struct uring_stat {
	uint64_t frags, bytes; /* that completions brought */
	uint64_t dry;	       /* receives that ended because the pool was empty */
	uint64_t full;	       /* turns that left completions, for want of records */
	uint64_t strays;       /* completions that belong to no socket */
};

struct uring_rx {
	struct io_ring ring;
	struct zcrx *own; /* of the pool: zcrx.c */
	char *pool;	  /* every fragment lies in pool_b bytes from here on */
	uint64_t pool_b;
	uint32_t nr_socks, nr_used;
	struct uring_sock *sock;
	uint32_t list_head, list_tail, nr_listed;
	uint32_t rec_free, nr_recs, nr_free;
	uint32_t nr_out; /* records with bytes that somebody reads, or that are not pulled */
	struct uring_rec *rec;
	struct uring_stat stat;
};

/** uring_rx_make() - A ring, places and records, without a pool yet: zcrx_open() is for all others.
 * Return: 0, -errno with @why. */
int uring_rx_make(const struct io_ring_cfg *cfg, uint32_t nr_socks, uint32_t depth,
		  struct uring_rx **out, char why[IO_RING_WHY_B]);
/** uring_rx_close() - No core turns, and no copy reads a fragment any more. NULL is fine. */
void uring_rx_close(struct uring_rx *rx);
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
	return !rx->nr_free || rx->sock[sock].state == URING_DRY;
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

/** uring_rec_free() - For zcrx.c: the memory of record @i has gone back. */
void uring_rec_free(struct uring_rx *rx, uint32_t i);

#endif
