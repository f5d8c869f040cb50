/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending TCP payload from device memory (Linux 6.16): a dma-buf is bound to an interface
 * (nic_bind_tx()), and a send names offsets in it. The NIC reads the payload from the device later, so
 * nobody can copy it instead, and the kernel says in the error queue of the socket when that has
 * finished. Until then the source must not change. UNTRIED on hardware.
 *
 *   zc_tx_post()    one sendmsg(): the kernel has taken bytes, all or the first ones
 *   zc_tx_device()  the same, of a dma-buf
 *   zc_tx_reap()    sources that nobody reads any more, in the order of their posts
 *   zc_tx_held()    how many may still be read
 *
 * The connection must leave by the interface of the binding, which ends after the last post that is
 * held.
 *
 * The kernel numbers the sends of a socket, from 0 on, and wraps at 2^32. It reports ranges of
 * numbers.
 *
 * The polling core that turns the socket owns everything here; open and close are for the control
 * path. A turn allocates nothing and logs nothing. The socket may be closed when zc_tx_held() is 0,
 * not before: nobody would learn of the end of the other sends. zc_sys.drop() ends them all, with the
 * connection.
 */
#ifndef GX_ZC_TX_H
#define GX_ZC_TX_H

#include "gx_internal/base.h"

#include <sys/socket.h>
#include <sys/types.h>

#define ZC_DEPTH_MAX 65536
#define ZC_CALLS     8	  /* reads of the error queue in one reap */
#define ZC_ENDS	     4	  /* ranges of one read */
#define ZC_CTL_B     512u /* of control messages of one read */

/* A range of sends that the kernel has finished: both ends included, it may wrap. */
struct zc_end {
	uint32_t first, last;
};

/* System calls. Each returns at once; -errno, never -1. owner: nobody, frozen */
struct zc_sys {
	ssize_t (*send)(int fd, const struct msghdr *msg); /* without a copy */
	/* One message of the error queue; -EAGAIN: none. */
	ssize_t (*end)(int fd, struct msghdr *msg);
	/* The socket may be sent from without a copy. */
	int (*allow)(int fd);
	/* Reset the connection. The kernel lets go of all that has not left, and reports its end;
	 * the descriptor stays. */
	int (*drop)(int fd);
};
extern const struct zc_sys zc_sys_kernel;

/** zc_ends() - The ranges in the control messages of @msg; *n are set, also with an error. Others
 * are passed over. Return: 0, -EPROTO: nonsense, or more than @max. */
int zc_ends(const struct msghdr *msg, struct zc_end out[], unsigned max, unsigned *n);

struct zc_stat {
	uint64_t sends, bytes; /* that the kernel took */
	uint64_t full;	       /* posts that the depth had no room for */
	uint64_t others;       /* messages of the error queue about other things */
};

struct zc_post {
	uint64_t user;
	bool is_done;
};

/* Of one socket. Posts form a ring, in [tail, head): the index of a post is the kernel's number. */
struct zc_tx {
	const struct zc_sys *sys;
	int fd;
	int err;	 /* sticky: the socket broke, or is_deaf */
	const char *why; /* its text */
	bool is_deaf;	 /* nothing is learned of sends any more */
	int last;	 /* why the last post took no byte: the kernel's -errno; 0: the depth */
	uint32_t head, tail, mask;
	struct zc_stat stat;
	struct zc_post post[];
};

struct zc_cfg {
	const struct zc_sys *sys;
	int fd;		/* a connected TCP socket; stays the caller's */
	unsigned depth; /* sends that may wait for their end; power of two */
};

/** zc_tx_open() - Return: 0, -EINVAL, -ENOMEM, -errno: the kernel sends from no such socket without
 * a copy. */
int zc_tx_open(const struct zc_cfg *cfg, struct zc_tx **out);
/** zc_tx_close() - Nothing is held, or nobody needs to know of its end. NULL is fine. */
void zc_tx_close(struct zc_tx *tx);
/**
 * zc_tx_post() - Send once.
 * @msg: bytes, not none, and maybe control messages, which are kept no longer than the call
 * @user: for zc_tx_reap(), if bytes were taken
 *
 * Return: bytes that were taken; 0: none now, try later; -errno: the socket is broken.
 */
ssize_t zc_tx_post(struct zc_tx *tx, const struct msghdr *msg, uint64_t user);
/* Bytes of a dma-buf. */
struct zc_piece {
	uint32_t id;	   /* of the binding: nic_bind_id() */
	uint64_t dmabuf_b; /* bytes of the dma-buf */
	uint64_t off;
	uint32_t len;
};
/** zc_tx_device() - Send @p. Return: as zc_tx_post(); -EINVAL: it is empty, or beyond the dma-buf. */
ssize_t zc_tx_device(struct zc_tx *tx, const struct zc_piece *p, uint64_t user);
/** zc_tx_ask() - Would the kernel send from binding @id by this socket? Nothing is sent. Return: 0;
 * -EAGAIN, -ENOBUFS: not known now; -ENODEV: the connection leaves by another interface; -EPROTO: a
 * byte of nobody has left, so the socket is lost; -errno. */
int zc_tx_ask(const struct zc_sys *sys, int fd, uint32_t id, uint64_t dmabuf_b);
/** zc_tx_reap() - Up to @n posts that have ended. A system call if any is held. Return: how many; 0:
 * none now. tx->is_deaf: no more can come, and tx->why says why. */
unsigned zc_tx_reap(struct zc_tx *tx, uint64_t users[], unsigned n);
/** zc_tx_lose() - Nobody will report the end of those that are held: zc_tx_reap() gives them all. */
void zc_tx_lose(struct zc_tx *tx);
/** zc_tx_held() - Posts that zc_tx_reap() has not given. */
static inline uint32_t zc_tx_held(const struct zc_tx *tx)
{
	return tx->head - tx->tail;
}

#endif
