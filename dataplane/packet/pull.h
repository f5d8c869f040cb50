/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pulls: messages within a host that the receiver reads out of the sender's process, in one copy
 * (pull.c). The link fills in the first part of struct pull before the endpoint is attached
 * (local/local_pull.c).
 */
#ifndef GX_PULL_H
#define GX_PULL_H

#include "gx_internal/wire.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

#define PULL_SLICE_B (256u << 10) /* bytes of one call */
#define PULL_TURN_B  (1u << 20)	  /* bytes of all endpoints of a core in one turn */
#define PULL_WORD_B  16
/* While other threads help: bytes of one call, theirs or this core's. Some 20 us */
#define PULL_LENT_B  (128u << 10)
#define PULL_AHEAD   2 /* slices of an endpoint that wait for a helper, at most */

/* The system call of pulls. Tests put another table in its place before a connection is made. */
struct pull_sys {
	/* As process_vm_readv(2), but returns -errno. */
	ssize_t (*read)(pid_t pid, const struct iovec *to, unsigned nr_to, const struct iovec *from,
			unsigned nr_from);
};
extern const struct pull_sys pull_sys_kernel;
extern const struct pull_sys *pull_sys;

/* A word that only the right process has, and its place there. Each read takes it along. So no
 * bytes count that come from another process which has got the number of the peer's. */
struct pull_who {
	pid_t pid; /* 0: this end reads nothing of the peer */
	uint64_t word_at;
	uint8_t word[PULL_WORD_B];
};

/* An endpoint's part. owner: core, but for what the link fills in. */
struct pull {
	/* frozen */
	struct pull_who who;
	pid_t own;
	uint64_t over_b; /* longer messages of ours are for pulling */
	/* The peer writes it: it reads messages of this process that are longer than this; 0:
	 * none. NULL: it never does. */
	const _Atomic uint32_t *peer_reads;
	_Atomic uint32_t *we_read; /* the same, ours for the peer */
	/* Bit of a message's place: the sender has taken its memory back. The sender alone changes
	 * it. */
	_Atomic uint64_t *taken_tx, *taken_rx;
	/* Places with messages of which this core may read something, and where the next turn
	 * begins. */
	uint64_t due[GX_WIRE_DONE_WORDS];
	uint32_t nr_due, rover;
	uint32_t
		lent; /* bit i: slice i of the core's help board is of a message of this endpoint */
};

/** pull_who_reads() - Read @len bytes at @from of @who's process to @to. Return: bytes, 0: there is
 * no memory at either end; -ECONNRESET: the process has ended, or is another; -EPERM, -ENOSYS: not
 * allowed; -EINTR, -ENOMEM: try again; -EIO: other errors. */
ssize_t pull_who_reads(const struct pull_who *who, void *to, uint64_t from, uint64_t len);

#endif
