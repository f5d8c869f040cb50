/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving TCP payload in device memory. The NIC puts payload into a dma-buf (the pool), the kernel
 * does TCP, and recvmsg() tells where the fragments lie. Each fragment has a token, and keeps pages
 * of the pool from the NIC until the token goes back. So:
 *
 *   devmem_rx_pull()  one recvmsg(): the next bytes of the stream, as fragments in their order
 *   (the caller)      a descriptor for each (block_add), with the fragment's ref
 *   devmem_done()     a copy that read the fragment has finished (block_reap)
 *   devmem_release()  tokens of fragments that nobody reads any more go back, in their order
 *
 * Payload that the NIC did not put there (linear, or plain data) lies in host memory of the rx, and
 * has the same life without a token. The polling core that turns the socket owns everything here;
 * open, close and report are for the control path. A turn allocates nothing and logs nothing.
 *
 * The socket may be closed when devmem_rx_held() is 0, not before: by the close every token goes
 * back, and the NIC writes where a copy still reads. A fragment of a copy that failed, and that a
 * GPU may still read, is never done; its socket stays open until that GPU is gone.
 */
#ifndef GX_DEVMEM_H
#define GX_DEVMEM_H

#include "nic/devmem_abi.h"

#include "gx_internal/base.h"

#include <stdatomic.h>
#include <sys/types.h>

#define DEVMEM_READ_MAX 256  /* fragments of one read at most */
#define DEVMEM_POOLS	4    /* dma-bufs of one rx */
#define DEVMEM_BATCH	128  /* so many tokens are worth a system call */
#define DEVMEM_CALLS	8    /* system calls of one devmem_release() */
#define DEVMEM_PAGE_B	4096 /* what the kernel gives to a NIC, and waits for, as one */

/* A fragment as a control message claims it: not checked. */
struct devmem_claim {
	uint64_t off;
	uint32_t len, token, id;
	bool is_linear;
};

/* System calls, and what they mean. Each returns at once; -errno, never -1. owner: nobody, frozen */
struct devmem_sys {
	/* recvmsg(): bytes, 0 when the peer has closed its direction. */
	ssize_t (*recv)(int fd, struct msghdr *msg);
	/* The fragments of @len bytes of control messages: @out has room for @max, and *n are set,
	 * also with an error. Return 0, -EPROTO: nonsense, or more than @max. */
	int (*claims)(const void *ctl, size_t len, struct devmem_claim out[], unsigned max,
		      unsigned *n);
	/* Give tokens back, at most DEVMEM_RANGES_MAX ranges and DEVMEM_TOKENS_MAX tokens. Return
	 * how many, the first ones. */
	int (*release)(int fd, const struct devmem_range range[], unsigned n);
};
extern const struct devmem_sys devmem_sys_kernel;
int devmem_claims(const void *ctl, size_t len, struct devmem_claim out[], unsigned max,
		  unsigned *n);

/* A dma-buf that is bound to queues of a NIC. */
struct devmem_pool {
	uint32_t id;   /* of the binding */
	char *base;    /* in the GPU's space */
	uint64_t len;  /* at most 4 GiB: 32 bits of a descriptor reach every fragment */
	uint32_t held; /* pages that wait for a copy, or for their release */
	uint32_t high, low;
	bool is_slow;	       /* held reached high, and is not down to low again */
	_Atomic uint64_t slow; /* how often it became so; the control thread reads it */
	_Atomic uint32_t peak; /* most pages held; likewise */
	uint64_t said;	       /* ctl: slow, when it was last reported */
	uint32_t nr_pages;
	uint32_t page[]; /* fragments that hold it */
};

/** devmem_pool_open() - @ring_b: bytes of the pool that the NIC's queues always hold. Return: 0,
 * -EINVAL (not whole pages, more than 4 GiB, or all for the NIC), -ENOMEM. */
int devmem_pool_open(uint32_t id, void *base, uint64_t len, uint64_t ring_b,
		     struct devmem_pool **out);
void devmem_pool_close(struct devmem_pool *p); /* nothing is held; NULL is fine */
/** devmem_pool_report() - Control thread, now and then: warn if copies fell behind the NIC since the
 * last report. Return: how often they did, in all. */
uint64_t devmem_pool_report(struct devmem_pool *p);

/* For the caller: bytes of the stream, all of them at @src. */
struct devmem_frag {
	const char *src;
	uint32_t len;
	uint32_t ref;
};

struct devmem_stat {
	uint64_t bytes;	   /* of the stream */
	uint64_t linear_b; /* of them: bytes that the kernel copied to host memory */
	uint64_t tokens;   /* that the kernel gave */
	uint64_t
		merged; /* fragments that lie right after the one before, and share its descriptor */
	uint64_t full;	/* turns without a read: too much waits for copies */
	uint64_t releases;   /* system calls that gave tokens back, */
	uint64_t released;   /* and tokens */
	uint64_t short_ones; /* releases of which the kernel took a part */
};

/* Neighbours in a pool, with neighbouring tokens; or bytes in host memory. */
struct devmem_rec {
	uint32_t token, nr; /* first token, tokens; nr 0: none, or none left */
	uint32_t off, len;
	uint32_t refs; /* copies that read it */
	uint32_t pool; /* index; or what the .c says */
};

/* Of one socket. Records form a ring: those of [tail, ready) may go back, [ready, head) are read. */
struct devmem_rx {
	const struct devmem_sys *sys;
	int fd;
	int err;	   /* sticky: the stream cannot go on */
	const char *why;   /* its text */
	bool is_stuck;	   /* tokens go back by closing the socket alone */
	bool is_unsettled; /* the kernel took a part of a release: the rest goes before a read */
	struct devmem_pool *pool[DEVMEM_POOLS];
	unsigned nr_pools;
	unsigned ranges_max;	    /* that the kernel takes at once */
	uint32_t tail, ready, head; /* free-running */
	uint32_t tokens;	    /* in [tail, ready) */
	uint32_t mask;
	char *lin; /* host memory: a ring too */
	uint32_t lin_b, lin_tail, lin_head;
	struct devmem_stat stat;
	struct devmem_rec rec[];
};

struct devmem_cfg {
	const struct devmem_sys *sys;
	int fd;		/* a connected TCP socket; stays the caller's */
	void *lin;	/* memory that the GPU reads, for bytes that do not come into a pool */
	size_t lin_b;	/* power of two, up to 1 GiB; one read takes no more bytes */
	unsigned depth; /* fragments that may wait for copies; power of two, 4 to 65,536 */
};

/** devmem_rx_open() - Return: 0, -EINVAL, -ENOMEM. */
int devmem_rx_open(const struct devmem_cfg *cfg, struct devmem_rx **out);
/** devmem_rx_close() - No copy reads a fragment any more. Tokens that are left go back when the
 * caller closes the socket, which it does next. NULL is fine. */
void devmem_rx_close(struct devmem_rx *rx);
/** devmem_rx_leave() - The polling core will not touch @rx any more: the pages of fragments that are
 * done count no longer, though their tokens go back with the socket's close alone. A pool belongs to
 * one core, and the close to another thread. */
void devmem_rx_leave(struct devmem_rx *rx);
/** devmem_rx_forget() - No fragment is read any more, though some were never done: their GPU is gone.
 * Only devmem_rx_close() may follow. */
void devmem_rx_forget(struct devmem_rx *rx);
/** devmem_rx_pool() - Fragments of @p may come. Return: 0, -ENOSPC, -EEXIST. */
int devmem_rx_pool(struct devmem_rx *rx, struct devmem_pool *p);

/**
 * devmem_rx_pull() - Read once.
 * @want_b: bytes at most
 * @frags: filled from index 0, in the order of the stream; each has one reference, the caller's
 * @n: room there, at least 2
 *
 * Return: fragments; 0: nothing now, or too much waits for copies; -errno: the stream has ended,
 * rx->why says how. -ESHUTDOWN: the peer closed it. -EPROTO: the kernel's words make no sense.
 * -EXDEV: payload in a dma-buf that this rx does not have. -ENODEV, -EFAULT, -EMSGSIZE, ...: the
 * kernel's, see rx->why. What came before stays good; and release goes on.
 */
int devmem_rx_pull(struct devmem_rx *rx, uint64_t want_b, struct devmem_frag frags[], unsigned n);
/** devmem_hold() - One more copy reads the fragment: its bytes go to two places. */
void devmem_hold(struct devmem_rx *rx, uint32_t ref);
/** devmem_done() - One of its copies has finished. */
void devmem_done(struct devmem_rx *rx, uint32_t ref);
/** devmem_release() - In each turn: give tokens back if it is worth a system call or urgent.
 * @idle: the socket had nothing to read: give back whatever there is.
 * Return: 0, or why no token goes back any more. */
int devmem_release(struct devmem_rx *rx, bool idle);
/** devmem_rx_held() - Fragments that a copy may still read, or that come after such a one. */
static inline uint32_t devmem_rx_held(const struct devmem_rx *rx)
{
	return rx->head - rx->ready;
}

/* -- devmem_pool.c: pages, for devmem_rx.c -- */

void devmem_pool_hold(struct devmem_pool *p, uint32_t first, uint32_t last); /* pages */
void devmem_pool_drop(struct devmem_pool *p, uint32_t first, uint32_t last);
void devmem_pool_look(struct devmem_pool *p); /* has it become slow, or got over it? */

#endif
