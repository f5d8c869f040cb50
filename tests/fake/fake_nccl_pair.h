/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the fake NCCL for two ranks that are processes: bytes go through shared memory, in
 * the order of the stream.
 */
#ifndef FAKE_NCCL_PAIR_H
#define FAKE_NCCL_PAIR_H

#include <stddef.h>
#include <stdint.h>

struct CUstream_st;
struct fake_pair;

/* What a rank does in one operation. */
struct fake_job {
	const uint8_t *send; /* to the peer */
	uint8_t *recv;	     /* from the peer ... */
	size_t send_b, recv_b;
	const uint8_t *add; /* ... plus these 64-bit numbers; NULL: as they come */
	const uint8_t *own; /* copied to own_to */
	uint8_t *own_to;
	size_t own_b;
};

/* Write the name of fresh shared memory, which ends with this process. */
void fake_pair_name(char name[128]);
/* Meet the other rank there, for at most 20 s. NULL: it has not come. */
struct fake_pair *fake_pair_join(const char *name, int rank);
void fake_pair_leave(struct fake_pair *p);
/* Queue it. Return: 0, an ncclResult_t. */
int fake_pair_queue(struct fake_pair *p, const struct fake_job *job, struct CUstream_st *stream);

#endif
