/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An io_uring for a polling core. The kernel does its work for this ring within io_ring_enter()
 * alone (DEFER_TASKRUN): nothing of the program's memory changes at other times. The kernel sets a
 * flag in shared memory when it has such work, so a core without work makes no system call.
 *
 * The control path opens the ring, and registers memory with it. The first io_ring_enter() makes the
 * ring the calling thread's (SINGLE_ISSUER); no other thread may turn it from then on. liburing is
 * not used: its version of Debian 12 knows neither these flags' later companions nor zero-copy
 * receive, and a ring is a few words of shared memory. Tests put another table in place of the calls.
 */
#ifndef GX_IO_RING_H
#define GX_IO_RING_H

#include "gx_internal/base.h"

#include <linux/io_uring.h>
#include <stdatomic.h>

#define IO_RING_WHY_B 256

/* System calls. Each returns at once; -errno, never -1. owner: nobody, frozen */
struct io_ring_sys {
	int (*setup)(unsigned entries, struct io_uring_params *p); /* a descriptor */
	int (*enter)(int fd, unsigned nr, unsigned flags);	   /* entries taken */
	int (*reg)(int fd, unsigned op, void *arg, unsigned nr);
	int (*map)(int fd, uint64_t off, size_t len, void **out);
	void (*unmap)(void *at, size_t len);
	void (*close)(int fd);
};
extern const struct io_ring_sys io_ring_sys_kernel;

struct io_ring_cfg {
	const struct io_ring_sys *sys;
	unsigned entries;    /* of the submission queue; power of two */
	unsigned cq_entries; /* of the completion queue; power of two */
	bool is_cqe32;	     /* completions of 32 bytes */
};

struct io_ring {
	const struct io_ring_sys *sys;
	int fd;
	bool is_mine; /* the thread that turns it has entered */
	int err;      /* sticky: the ring does not work any more */
	const char *why;
	/* out */
	_Atomic uint32_t *sq_head, *sq_tail, *sq_flags;
	uint32_t sq_mask, sq_at; /* sq_at: the tail, with those that are not submitted */
	struct io_uring_sqe *sqe;
	/* in */
	_Atomic uint32_t *cq_head, *cq_tail;
	uint32_t cq_mask, cq_at, cq_seen; /* next one to take; the tail that was last seen */
	unsigned cqe_shift;		  /* bytes of a completion */
	char *cqe;
	/* mapped */
	char *rings;
	size_t rings_b, sqes_b;
	uint64_t enters; /* system calls */
};

/** io_ring_open() - Return: 0, -errno with @why: what is missing, and the cure. */
int io_ring_open(struct io_ring *r, const struct io_ring_cfg *cfg, char why[IO_RING_WHY_B]);
/** io_ring_close() - The kernel ends what is under way, without touching memory. Nothing if it was
 * never opened, and the struct was zero. */
void io_ring_close(struct io_ring *r);
/** io_ring_refusal() - What -@err of making a ring means. */
void io_ring_refusal(int err, char why[IO_RING_WHY_B]);

/** io_ring_sqe() - The next entry, all zero; NULL: the queue is full. */
struct io_uring_sqe *io_ring_sqe(struct io_ring *r);
/** io_ring_void() - An entry with @user_data that the kernel has not taken yet will do nothing, and
 * end with 0: its descriptor is about to be closed, and its number may become another file's. */
void io_ring_void(struct io_ring *r, uint64_t user_data);
/** io_ring_enter() - Once a turn: submit, and let the kernel do its work. No system call if there is
 * neither. Return: 0, or the sticky error, with r->why. */
int io_ring_enter(struct io_ring *r);
/** io_ring_cqe() - The next completion; NULL: none. It is the caller's until io_ring_seen(). */
static inline struct io_uring_cqe *io_ring_cqe(struct io_ring *r)
{
	if (r->cq_at == r->cq_seen) {
		/* Pairs with the kernel's release of the tail behind its writes. */
		r->cq_seen = atomic_load_explicit(r->cq_tail, memory_order_acquire);
		if (r->cq_at == r->cq_seen)
			return NULL;
	}
	return (struct io_uring_cqe *)(r->cqe + ((size_t)(r->cq_at & r->cq_mask) << r->cqe_shift));
}

/** io_ring_seen() - The completion of io_ring_cqe() is read. */
static inline void io_ring_seen(struct io_ring *r)
{
	/* Pairs with the kernel's acquire of the head before it writes there again. */
	atomic_store_explicit(r->cq_head, ++r->cq_at, memory_order_release);
}

#endif
