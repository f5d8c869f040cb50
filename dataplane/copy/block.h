/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptor blocks of one (core, GPU): fill, launch, reap. A fragment holds its bounce buffer
 * until the block that copies it has finished and block_reap() hands the buffer back, in order. I/O
 * goes through the GPU's ops only, time is an argument, and nothing allocates after open. Owner:
 * poll core.
 */
#ifndef GX_BLOCK_H
#define GX_BLOCK_H

#include "gx_internal/gpu.h"

#define BLOCK_DEPTH    16	  /* blocks of a queue, power of two; a launch takes at most all */
#define BLOCK_FLUSH_B  (1u << 20) /* launch when so many bytes are gathered */
#define BLOCK_AGE_NS   50000	  /* or when the oldest fragment is so old */
#define BLOCK_LAUNCHES 2	  /* launches under way at most */
#define BLOCK_BUF_NONE UINT64_MAX /* a fragment without a bounce buffer */
#define BLOCK_BUF_PART                                                                             \
	(UINT64_MAX - 1) /* the last fragment of its buffer brings it: block_begin() */

struct block_q;

/* A fragment on its way to its destination. */
struct block_frag {
	const char *src;   /* payload, within 4 GiB of the queue's src_base if it has one */
	uint32_t len;	   /* > 0 */
	uint32_t crc;	   /* CRC-32C of the bytes, when check */
	bool check;	   /* the copy must check it: see block_checks() */
	uint64_t dst_base; /* destination range of the message: the copy writes nothing outside */
	uint64_t dst_len;
	uint64_t dst_off; /* in that range */
	uint64_t buf;	  /* block_reap() hands it back */
	uint32_t ref;	  /* likewise; for the caller */
};

struct block_done {
	uint64_t buf;
	uint32_t ref;
	uint32_t len;
	int status;   /* 0, -ERANGE (bounds), -EBADMSG (its CRC is wrong, and its destination holds
			 garbage), -EIO (GPU failed), -ETIMEDOUT (GPU does not finish) */
	uint64_t off; /* -EBADMSG: its dst_off */
};

/** block_open() - @src_base: offsets count from here. NULL: each block takes a base that suits its
 * first fragment; a fragment too far away begins another block. @timeout_ns: a launch that takes
 * longer fails its fragments with -ETIMEDOUT. If a launch fails or takes too long, the buffers that
 * the GPU got are not handed back (BLOCK_BUF_NONE). Control path. Return: 0, -ENOMEM, the
 * backend's. */
int block_open(struct gx_gpu *gpu, char *src_base, uint64_t timeout_ns, struct block_q **out);
void block_close(struct block_q *q);

/** block_checks() - Can copies check fragments? */
bool block_checks(const struct block_q *q);
/** block_room() - Fragments that block_add() takes now. */
unsigned block_room(const struct block_q *q);
/** block_begin() - The next @n fragments, at most 64, go into one block, to one destination range. So a
 * buffer may have several of them: the last one to be added has .buf, and is the last to be handed back;
 * the others have BLOCK_BUF_PART. Where block_room() was BLOCK_ROOM_PARTS there is room for GX_BURST_MAX
 * such buffers, whatever the number of their fragments. */
#define BLOCK_ROOM_PARTS (4 * GX_BLOCK_SEGS_MAX)
void block_begin(struct block_q *q, unsigned n);
void block_add(struct block_q *q, const struct block_frag *frag, uint64_t now_ns);
/** block_flush() - Launch gathered blocks if it is time; @burst_short: the port has no more packets
 * waiting. Return: blocks launched. */
unsigned block_flush(struct block_q *q, bool burst_short, uint64_t now_ns);
/** block_reap() - Take fragments of finished blocks, at most @n. After a launch that failed or did
 * not end the queue launches nothing any more: new fragments come back with that status, and with
 * their buffers. */
unsigned block_reap(struct block_q *q, struct block_done done[], unsigned n, uint64_t now_ns);
/** block_held() - Fragments added and not yet reaped. */
unsigned block_held(const struct block_q *q);
/** Cumulative counters, for the core's statistics. */
struct block_stat {
	uint64_t descs, merges, blocks, launches;
};
const struct block_stat *block_stat(const struct block_q *q);

#endif
