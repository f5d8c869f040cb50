/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging of GPU payload for sending: pinned chunk buffers per (core, GPU). The copy engine brings
 * a chunk in, the core sends packets from it, an acknowledgement frees it. Owner: poll core; the
 * control path opens and closes it.
 */
#ifndef GX_STAGE_H
#define GX_STAGE_H

#include "gx_internal/gpu.h"
#include "gx_internal/mem.h"

#define STAGE_MSG_CHUNKS 64 /* chunks of one message that can be staged at once */
#define STAGE_NONE	 UINT16_MAX
#define STAGE_UNIT_B	 16u /* chunks are whole numbers of these, but for the last of a message */
#define STAGE_ROW_B	 64u /* bytes of a row of stage_gather(), at least */

struct stage;

/* Staged chunks of one message: buffers of chunks [first, next), a ring. */
struct stage_msg {
	uint64_t first, next; /* chunk numbers */
	uint16_t buf[STAGE_MSG_CHUNKS];
};

/** stage_open() - @nr buffers of @chunk_b. If a copy takes longer than @timeout_ns, staging ends.
 * Control path. */
int stage_open(struct gx_gpu *gpu, struct gx_arena *arena, uint32_t chunk_b, unsigned nr,
	       uint64_t timeout_ns, struct stage **out);
void stage_close(struct stage *s);

void stage_msg_init(struct stage_msg *m);
/** stage_fetch() - Begin to copy chunk m->next (@src, @len <= chunk_b). @keep buffers stay free.
 * False: no other buffer is free, the message has STAGE_MSG_CHUNKS, the stream took no copy, or
 * staging has failed. */
bool stage_fetch(struct stage *s, struct stage_msg *m, const char *src, uint32_t len, unsigned keep,
		 uint64_t now_ns);
/** stage_gather() - Likewise of bytes that lie in pieces: those of @move, whose destination is the buffer's.
 * Its source has @rows->nr rows, of which the chunk needs all. They are copied, and held within min and
 * max. A kernel of the GPU does it. */
struct stage_rows {
	uint32_t nr, min, max;
};
bool stage_gather(struct stage *s, struct stage_msg *m, const struct gx_move *move,
		  const struct stage_rows *rows, unsigned keep, uint64_t now_ns);
/** stage_is_short() - Did stage_fetch() find no free buffer in the last 2 ms? */
bool stage_is_short(const struct stage *s, uint64_t now_ns);
/** stage_ready() - Address of chunk @chunk in pinned memory; NULL: not staged, or its copy is under
 * way. */
const char *stage_ready(struct stage *s, struct stage_msg *m, uint64_t chunk);
/** stage_drop() - The message needs no chunks below @chunk any more: free their buffers. A buffer
 * whose copy is under way becomes free when the copy ends. */
void stage_drop(struct stage *s, struct stage_msg *m, uint64_t chunk);
/** stage_cut() - The same for chunks from @chunk on, which the message fetches again later. */
void stage_cut(struct stage *s, struct stage_msg *m, uint64_t chunk);
/** stage_reap() - Once a turn: complete late copies, look for faults. True: it worked. */
bool stage_reap(struct stage *s, uint64_t now_ns);
/** stage_err() - 0; -EIO, -ETIMEDOUT: the GPU failed, or did not end a copy. No copy begins any
 * more. */
int stage_err(const struct stage *s);

/** stage_ticket() - Ticket of the last copy begun. stage_is_past() - Have all copies up to @ticket
 * ended? After a time-out or a fault all count as ended: they only read the caller's memory. */
uint32_t stage_ticket(const struct stage *s);
bool stage_is_past(const struct stage *s, uint32_t ticket);

#endif
