/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a GPU that lies in many allocations goes to another process through a socket of its
 * own: the exporter fills it with a descriptor of each allocation, and passes its reading end; the
 * importer reads it to the end, and never waits. So neither end ever has more than CHUNKS_MSG of
 * these descriptors open, however many there are.
 */
#ifndef GX_GPU_CHUNKS_H
#define GX_GPU_CHUNKS_H

#include <stdint.h>

#define CHUNKS_MSG 128 /* chunks of a message; the kernel passes at most 253 descriptors in one */

struct chunk {
	uint64_t len; /* bytes of the allocation */
	int fd;
};

/** chunks_open() - @fds: [0] is read, [1] is written. Return: 0, -errno. */
int chunks_open(int fds[2]);
/** chunks_send() - Add @n chunks, at most CHUNKS_MSG; their descriptors stay the caller's. Return: 0;
 * -EAGAIN: the socket is full; -ETOOMANYREFS: too many descriptors of this user are under way; -errno. */
int chunks_send(int sock, const struct chunk c[], unsigned n);
/** chunks_recv() - The next ones; their descriptors are the caller's. @sock may be anything of a
 * peer. Return: how many, 1 to CHUNKS_MSG; -EPROTO: there are none, or nonsense; -EMFILE: this process
 * may open no more descriptors. */
int chunks_recv(int sock, struct chunk c[CHUNKS_MSG]);

#endif
