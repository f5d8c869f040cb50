/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging of GPU payload for sending: a ring of pinned chunk buffers per (core, GPU). The copy
 * engine brings a chunk in, packets are sent from it, acknowledgement frees it. Owner: poll core;
 * made and closed on the control path.
 */
#ifndef GX_STAGE_H
#define GX_STAGE_H

#include "gx_internal/gpu.h"
#include "gx_internal/mem.h"

#define STAGE_MSG_CHUNKS 64 /* chunks of one message that may be staged at once */
#define STAGE_NONE	 UINT16_MAX

struct stage;

/* What one message has staged: buffers of chunks [first, next), a ring. */
struct stage_msg {
	uint64_t first, next; /* chunk numbers */
	uint16_t buf[STAGE_MSG_CHUNKS];
};

/** stage_open() - @nr buffers of @chunk_b; a copy that takes longer than @timeout_ns ends staging.
 * Control path. */
int stage_open(struct gx_gpu *gpu, struct gx_arena *arena, uint32_t chunk_b, unsigned nr,
	       uint64_t timeout_ns, struct stage **out);
void stage_close(struct stage *s);

void stage_msg_init(struct stage_msg *m);
/** stage_fetch() - Begin to copy chunk m->next (@src, @len <= chunk_b). @keep buffers stay free.
 * False: no other is, or queue full. */
bool stage_fetch(struct stage *s, struct stage_msg *m, const char *src, uint32_t len, unsigned keep,
		 uint64_t now_ns);
/** stage_is_short() - Was somebody refused because no buffer was free, in the last 2 ms? */
bool stage_is_short(const struct stage *s, uint64_t now_ns);
/** stage_ready() - Where chunk @chunk lies in pinned memory; NULL while it is still being copied or
 * not staged. */
const char *stage_ready(struct stage *s, struct stage_msg *m, uint64_t chunk);
/** stage_drop() - Chunks below @chunk are not needed any more: free their buffers. Ones still being
 * copied stay until they end. */
void stage_drop(struct stage *s, struct stage_msg *m, uint64_t chunk);
/** stage_cut() - Chunks from @chunk on are not needed yet: the same, and they are fetched again. */
void stage_cut(struct stage *s, struct stage_msg *m, uint64_t chunk);
/** stage_reap() - Once a turn: push copies that end late, see faults. True: it worked. */
bool stage_reap(struct stage *s, uint64_t now_ns);
/** stage_err() - 0; -EIO, -ETIMEDOUT: the GPU failed, or did not end a copy. Nothing is fetched any
 * more. */
int stage_err(const struct stage *s);

/** stage_ticket() - Of the last copy that was begun. stage_is_past(): have all up to @ticket ended?
 * After a time-out or a fault they count as ended: what they may still do is read. */
uint32_t stage_ticket(const struct stage *s);
bool stage_is_past(const struct stage *s, uint32_t ticket);

#endif
