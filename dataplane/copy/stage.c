/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging of GPU payload for sending; see stage.h. If a message gives a buffer back while its copy
 * is under way, the buffer stays busy until the copy engine has written its flag. Runs on the
 * polling core.
 */
#include "copy/stage.h"

#include <errno.h>
#include <stdlib.h>

#define STAGE_SHORT_NS 2000000

enum { STAGE_FREE, STAGE_USED, STAGE_ORPHAN };

struct stage_buf {
	uint8_t state;
	uint64_t since_ns; /* see gx_gpu_is_late() */
	uint32_t ticket;   /* the flag gets this value when the copy has ended */
	struct gx_move move;
};

struct stage {
	struct gx_gpu *gpu;
	struct gx_gpu_stream *stream;
	struct gx_arena *arena;
	char *mem;
	size_t mem_len;
	uint32_t chunk_b; /* behind it, to step_b, is room for the rows of a gather */
	size_t step_b;	  /* from buffer to buffer */
	unsigned nr;
	unsigned rover;
	uint32_t ticket;
	bool refused; /* stage_fetch() found no free buffer, last at refused_ns */
	uint64_t refused_ns;
	unsigned nr_copying; /* copies that stage_reap() has not seen end */
	uint64_t timeout_ns;
	int err;
	uint32_t *flags; /* [nr], the GPU writes them */
	struct stage_buf buf[];
};

int stage_open(struct gx_gpu *gpu, struct gx_arena *arena, uint32_t chunk_b, unsigned nr,
	       uint64_t timeout_ns, struct stage **out)
{
	struct stage *s = calloc(1, sizeof(*s) + nr * sizeof(s->buf[0]));
	int ret;

	if (!s)
		return -ENOMEM;
	s->gpu = gpu;
	s->arena = arena;
	s->chunk_b = GX_ALIGN_UP(chunk_b, 4096);
	s->nr = nr;
	s->timeout_ns = timeout_ns;
	s->step_b =
		s->chunk_b + GX_ALIGN_UP((s->chunk_b / STAGE_ROW_B + 2) * sizeof(uint32_t), 4096);
	s->mem_len = GX_ALIGN_UP(s->step_b * nr, GX_HUGE_PAGE);
	ret = gx_arena_map(arena, -1, s->mem_len, (void **)&s->mem);
	if (ret)
		goto err;
	s->flags = gx_gpu_flag_alloc(gpu, nr);
	ret = s->flags ? gpu->stream->open(gpu, GX_STREAM_COPY, &s->stream) : -ENOMEM;
	if (ret)
		goto err;
	*out = s;
	return 0;

err:
	stage_close(s);
	return ret;
}

void stage_close(struct stage *s)
{
	if (!s)
		return;
	gx_gpu_stream_close(s->stream); /* waits for copies under way */
	if (s->flags)
		gx_gpu_flag_free(s->gpu, s->flags);
	if (s->mem)
		gx_arena_unmap(s->arena, s->mem, s->mem_len);
	free(s);
}

void stage_msg_init(struct stage_msg *m)
{
	m->first = m->next = 0;
}

static bool buf_copied(const struct stage *s, unsigned i)
{
	/* Pairs with the copy engine: the bytes are visible before the flag. */
	return __atomic_load_n(&s->flags[i], __ATOMIC_ACQUIRE) == s->buf[i].ticket;
}

/* Take a free buffer, if there are more than @keep. */
static unsigned buf_take(struct stage *s, unsigned keep)
{
	unsigned first = STAGE_NONE;

	for (unsigned k = 0; k < s->nr; k++) {
		unsigned i = (s->rover + k) % s->nr;

		if (s->buf[i].state == STAGE_ORPHAN && buf_copied(s, i))
			s->buf[i].state = STAGE_FREE;
		if (s->buf[i].state != STAGE_FREE)
			continue;
		if (first == STAGE_NONE)
			first = i;
		if (keep--)
			continue;
		s->rover = first + 1;
		return first;
	}
	return STAGE_NONE;
}

static char *buf_at(const struct stage *s, unsigned i)
{
	return s->mem + i * s->step_b;
}

/* A buffer for the next chunk, with a ticket. Return: STAGE_NONE: none now. */
static unsigned chunk_buf(struct stage *s, const struct stage_msg *m, unsigned keep,
			  uint64_t now_ns)
{
	unsigned i;

	if (s->err || m->next - m->first == STAGE_MSG_CHUNKS)
		return STAGE_NONE;
	i = buf_take(s, keep);
	if (i == STAGE_NONE) {
		s->refused = true;
		s->refused_ns = now_ns;
		return i;
	}
	if (++s->ticket == 0)
		s->ticket = 1;
	s->buf[i].ticket = s->ticket;
	return i;
}

/* The stream has taken the chunk for buffer @i, or (@ret) has not. */
static bool chunk_begun(struct stage *s, struct stage_msg *m, unsigned i, int ret)
{
	if (ret) {
		if (ret == -EINVAL || s->stream->ops->fault(s->stream))
			s->err = -EIO;
		s->buf[i].ticket = s->flags[i];
		return false;
	}
	s->buf[i].state = STAGE_USED;
	s->buf[i].since_ns = GX_GPU_UNSEEN;
	s->nr_copying++;
	m->buf[m->next++ % STAGE_MSG_CHUNKS] = i;
	return true;
}

bool stage_fetch(struct stage *s, struct stage_msg *m, const char *src, uint32_t len, unsigned keep,
		 uint64_t now_ns)
{
	unsigned i = chunk_buf(s, m, keep, now_ns);
	struct gx_gpu_copy copy = {.src = src, .len = len};

	if (i == STAGE_NONE)
		return false;
	copy.dst = buf_at(s, i);
	return chunk_begun(
		s, m, i,
		s->stream->ops->copy(s->stream, &copy, 1, &s->flags[i], s->ticket, now_ns));
}

bool stage_gather(struct stage *s, struct stage_msg *m, const struct gx_move *move,
		  const struct stage_rows *rows, unsigned keep, uint64_t now_ns)
{
	unsigned i = chunk_buf(s, m, keep, now_ns);
	struct gx_gpu_gather g = {.sms = s->gpu->unpack_sms};
	struct gx_move *own;
	uint32_t *to;

	if (i == STAGE_NONE)
		return false;
	g.move = own = &s->buf[i].move;
	*own = *move;
	own->dst = (struct gx_move_end){
		.base = (uintptr_t)buf_at(s, i) - own->first * own->piece_b,
		.run_b = ((uint64_t)own->first + own->nr) * own->piece_b,
	};
	for (unsigned d = 0; d < GX_MOVE_DIMS; d++)
		own->dst.dim[d].count = 1;
	to = (uint32_t *)(buf_at(s, i) + s->chunk_b);
	for (uint32_t k = 0; k < rows->nr; k++) {
		uint32_t row = __atomic_load_n(&move->src.rows[k], __ATOMIC_RELAXED);

		to[k] = GX_MIN(GX_MAX(row, rows->min), rows->max);
	}
	own->src.rows = rows->nr ? to : NULL;
	return chunk_begun(s, m, i,
			   s->stream->ops->gather(s->stream, &g, &s->flags[i], s->ticket, now_ns));
}

bool stage_is_short(const struct stage *s, uint64_t now_ns)
{
	return s->refused && (int64_t)(now_ns - s->refused_ns) < STAGE_SHORT_NS;
}

const char *stage_ready(struct stage *s, struct stage_msg *m, uint64_t chunk)
{
	unsigned i;

	if (chunk < m->first || chunk >= m->next)
		return NULL;
	i = m->buf[chunk % STAGE_MSG_CHUNKS];
	return buf_copied(s, i) ? buf_at(s, i) : NULL;
}

static void buf_give(struct stage *s, unsigned i)
{
	s->buf[i].state = buf_copied(s, i) ? STAGE_FREE : STAGE_ORPHAN;
}

void stage_drop(struct stage *s, struct stage_msg *m, uint64_t chunk)
{
	for (; m->first < m->next && m->first < chunk; m->first++)
		buf_give(s, m->buf[m->first % STAGE_MSG_CHUNKS]);
}

void stage_cut(struct stage *s, struct stage_msg *m, uint64_t chunk)
{
	for (; m->first < m->next && m->next > chunk; m->next--)
		buf_give(s, m->buf[(m->next - 1) % STAGE_MSG_CHUNKS]);
}

bool stage_reap(struct stage *s, uint64_t now_ns)
{
	unsigned copying = 0;
	bool worked;

	if (!s->nr_copying || s->err)
		return false;
	worked = s->stream->ops->reap(s->stream, now_ns);
	for (unsigned i = 0; i < s->nr; i++) {
		if (buf_copied(s, i))
			continue;
		copying++;
		if (gx_gpu_is_late(&s->buf[i].since_ns, now_ns, s->timeout_ns))
			s->err = -ETIMEDOUT;
	}
	if (copying && s->stream->ops->fault(s->stream))
		s->err = -EIO;
	s->nr_copying = copying;
	return worked;
}

int stage_err(const struct stage *s)
{
	return s->err;
}

uint32_t stage_ticket(const struct stage *s)
{
	return s->ticket;
}

bool stage_is_past(const struct stage *s, uint32_t ticket)
{
	for (unsigned i = 0; i < s->nr && !s->err; i++)
		if (!buf_copied(s, i) && (int32_t)(ticket - s->buf[i].ticket) >= 0)
			return false;
	return true;
}
