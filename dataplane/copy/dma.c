/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See dma.h. A driver call costs some 2 us, and a flag that tells the end of a copy another. So one
 * flag stands for a group of copies. It is queued at once if no flag is awaited on that stream. Else
 * it is queued when that flag has come, or when DMA_TELL copies have gathered. So a lone copy gets
 * a flag at once, a queue of copies one each round trip.
 */
#include "copy/dma.h"

#include <errno.h>
#include <stdlib.h>

#define DMA_FEW		 2  /* a copy is alone if fewer than this are under way */
#define DMA_CALM	 64 /* lone copies to see before the resident kernel takes one again */
#define DMA_LONES	 32 /* power of two; copies that the resident kernel may have under way */
#define DMA_TRIES	 31 /* copies to time, at most */
#define DMA_TRIES_MIN	 5
#define DMA_TRY_NS	 5000000ull   /* after this time DMA_TRIES_MIN are enough */
#define DMA_TELL	 16	      /* copies that one flag covers, at most */
#define DMA_KERNELS	 32	      /* blocks of KERNEL that may be under way; power of two */
#define DMA_KERNELS_MANY 16	      /* of AUTO; power of two */
#define DMA_KERNEL_B	 (1ull << 30) /* bytes of a descriptor, whose length has 32 bits */
#define DMA_KERNEL_SPAN	 (1ull << 32) /* bytes that the sources of a block may span */
#define DMA_KERNEL_BURST 16	      /* blocks of one launch */
#define DMA_MOVES	 4	      /* moves that may be under way; power of two */
#define DMA_ROWS	 32768u	      /* rows that a move may have at an end */
/* Longer copies use the first stream only, out of the way of short ones */
#define DMA_BULK_B	 (8u << 20)

/* Numbers of copies are free-running. */
struct dma_stream {
	struct gx_gpu_stream *stream;
	uint32_t queued;   /* number of the last copy begun */
	uint32_t flagged;  /* last copy that a queued flag covers */
	uint32_t done;	   /* last copy that the core saw end */
	uint64_t since_ns; /* when done last moved, or the first began */
};

/* Short copies by the resident kernel. Each has its own flag, as they end in any order. */
struct dma_lone {
	struct gx_gpu_stream *stream; /* NULL: not used */
	uint32_t begun, done;	      /* all copies up to done have ended */
	uint64_t since_ns;	      /* when done last moved, or the first began */
};

/* Copies by launched kernels: those that begin between two launches share blocks. The numbers count
 * blocks. */
struct dma_kernel {
	struct gx_gpu_stream *stream; /* NULL: not used */
	struct gx_block *block;	      /* [nr] */
	uint32_t nr;
	uint32_t begun, launched; /* between them are those that still take copies */
	uint32_t done;		  /* all blocks up to it have ended */
	uint64_t since_ns;
};

/* Launches from view to view. */
struct dma_moves {
	struct gx_gpu_stream *stream; /* NULL: not used */
	struct {
		struct gx_move move;
		struct gx_gpu_gather gather;
		uint32_t *rows[2]; /* pinned; of source and destination */
	} slot[DMA_MOVES];
	uint32_t *rows; /* of all slots */
	uint32_t begun, done;
	uint64_t since_ns;
};

struct dma {
	struct gx_gpu *gpu;
	uint64_t timeout_ns;
	enum dma_by by;
	struct dma_lone lone;
	struct dma_kernel kernel;
	struct dma_moves moves;
	uint32_t crowd; /* AUTO: the next copies that copy engines do even if they are alone */
	/* One cache line each, written by the GPU. First [DMA_STREAMS]: number of the last copy
	 * that ended. Then [DMA_LONES]: number of the slot's last copy, once it has ended. Then
	 * that of the last move. */
	uint32_t *flags;
	unsigned rover;
	int err;
	struct dma_stream stream[DMA_STREAMS];
};

#define DMA_FLAG_STRIDE (GX_CACHE_LINE / sizeof(uint32_t))
#define DMA_FLAGS	((DMA_STREAMS + DMA_LONES + 1) * DMA_FLAG_STRIDE)
enum { BY_LONE = DMA_STREAMS, BY_KERNEL, BY_MOVE }; /* in dma_ticket.stream, behind the streams */

static uint32_t *flag_of(const struct dma *d, struct dma_ticket t)
{
	uint32_t i = t.stream < DMA_STREAMS ? t.stream
		     : t.stream == BY_MOVE  ? DMA_STREAMS + DMA_LONES
					    : DMA_STREAMS + t.seq % DMA_LONES;

	return &d->flags[i * DMA_FLAG_STRIDE];
}

/* Copies that copy engines have under way, as far as the core knows. */
static uint32_t dma_out(const struct dma *d)
{
	uint32_t n = 0;

	for (unsigned i = 0; i < DMA_STREAMS; i++)
		n += d->stream[i].queued - d->stream[i].done;
	return n;
}

/* Did the stream refuse the copy for good? */
static void dma_look_for_fault(struct dma *d, struct gx_gpu_stream *stream, int ret)
{
	if (ret == -EINVAL || stream->ops->fault(stream))
		d->err = -EIO;
}

/* After a look at the copies on @stream. @moved: one has ended. Else the stream may have failed, or
 * take too long. */
static bool dma_moved(struct dma *d, struct gx_gpu_stream *stream, uint64_t *since_ns, bool moved,
		      uint64_t now_ns)
{
	int err = 0;

	if (moved)
		*since_ns = GX_GPU_UNSEEN;
	else if (stream->ops->fault(stream))
		err = -EIO;
	else if (gx_gpu_is_late(since_ns, now_ns, d->timeout_ns))
		err = -ETIMEDOUT;
	d->err = d->err ? d->err : err;
	return moved;
}

/* ---- Launched kernels ---- */

static int kernel_open(struct dma *d)
{
	struct dma_kernel *k = &d->kernel;
	int ret = 0;

	k->nr = d->by == DMA_KERNEL ? DMA_KERNELS : DMA_KERNELS_MANY;
	k->block = calloc(k->nr, sizeof(*k->block));
	if (!k->block)
		return -ENOMEM;
	for (unsigned i = 0; i < k->nr && !ret; i++)
		ret = gx_gpu_block_alloc(d->gpu, &k->block[i]);
	return ret ? ret : d->gpu->stream->open(d->gpu, GX_STREAM_LAUNCH, &k->stream);
}

static void kernel_close(struct dma *d)
{
	struct dma_kernel *k = &d->kernel;

	gx_gpu_stream_close(k->stream);
	for (unsigned i = 0; k->block && i < k->nr; i++)
		gx_gpu_block_free(d->gpu, &k->block[i]);
	free(k->block);
}

/* Does a launch of this GPU reach both ends of any copy? */
static bool kernel_pays(const struct gx_gpu *gpu)
{
	return !gpu->reads_host && gpu->unpack != GX_UNPACK_D2D && gpu->unpack != GX_UNPACK_NONE;
}

static struct gx_block *kernel_block(struct dma *d, uint32_t number)
{
	return &d->kernel.block[number & (d->kernel.nr - 1)];
}

static void kernel_begin(struct gx_block *b, uint64_t src_base, uint32_t len)
{
	b->src_base = src_base;
	b->nr = 0;
	b->nr_seg = 1;
	b->seg[0] = (struct gx_dest){0, UINT64_MAX}; /* dst_off is an address */
	b->bytes = 0;
	b->hints = GX_HINT_WEIGHT | GX_HINT_LEN | GX_HINT_SEG0;
	b->hint_len = len;
	__atomic_store_n(b->status, GX_BLOCK_PENDING, __ATOMIC_RELAXED);
}

/* The block, not launched yet, for a source there, with room for all of its span. @number: as a
 * ticket has it. Return: NULL: too many blocks are under way. */
static struct gx_block *kernel_room(struct dma *d, uint64_t src, uint32_t len, uint32_t *number)
{
	struct dma_kernel *k = &d->kernel;
	uint64_t base = src & ~(DMA_KERNEL_SPAN - 1);
	struct gx_block *b;

	for (uint32_t i = k->begun; i != k->launched; i--) {
		b = kernel_block(d, i - 1);
		*number = i;
		if (b->src_base == base &&
		    b->nr + DMA_KERNEL_SPAN / DMA_KERNEL_B <= GX_BLOCK_DESCS_MAX)
			return b;
	}
	if (k->begun - k->done == k->nr)
		return NULL;
	if (k->begun == k->done)
		k->since_ns = GX_GPU_UNSEEN;
	b = kernel_block(d, k->begun++);
	*number = k->begun;
	kernel_begin(b, base, len);
	return b;
}

static void kernel_add(struct gx_block *b, uint64_t dst, uint64_t src, uint32_t len)
{
	b->desc[b->nr] = (struct gx_desc){(uint32_t)(src - b->src_base), len, dst};
	b->aux[b->nr] = (struct gx_desc_aux){0};
	*b->cnt = ++b->nr;
	b->bytes += len;
	if (len != b->hint_len)
		b->hints &= ~GX_HINT_LEN;
}

/* All of a copy goes, or nothing. */
static bool kernel_copy(struct dma *d, uint64_t dst, uint64_t src, uint64_t len,
			struct dma_ticket *out)
{
	uint64_t spans = (src + len - 1) / DMA_KERNEL_SPAN - src / DMA_KERNEL_SPAN;
	struct dma_kernel *k = &d->kernel;
	uint32_t last = k->launched;

	if (spans >= k->nr - (k->begun - k->done) && spans)
		return false;
	while (len) {
		uint64_t in = GX_MIN(len, DMA_KERNEL_SPAN - src % DMA_KERNEL_SPAN);
		uint32_t number;
		struct gx_block *b =
			kernel_room(d, src, (uint32_t)GX_MIN(in, DMA_KERNEL_B), &number);

		if (!b)
			return false;
		last = (int32_t)(number - last) > 0 ? number : last;
		len -= in;
		for (uint32_t n; in; in -= n, src += n, dst += n) {
			n = (uint32_t)GX_MIN(in, DMA_KERNEL_B);
			kernel_add(b, dst, src, n);
		}
	}
	*out = (struct dma_ticket){.seq = last, .stream = BY_KERNEL};
	return true;
}

/* Launch the copies begun since the last launch, at most DMA_KERNEL_BURST blocks a launch. */
static void kernel_launch(struct dma *d, uint64_t now_ns)
{
	struct dma_kernel *k = &d->kernel;

	while (k->launched != k->begun && !d->err) {
		struct gx_block *list[DMA_KERNEL_BURST];
		uint32_t n = GX_MIN(k->begun - k->launched, (uint32_t)DMA_KERNEL_BURST), took;

		for (uint32_t i = 0; i < n; i++)
			list[i] = kernel_block(d, k->launched + i);
		took = k->stream->ops->unpack(k->stream, list, n, now_ns);
		k->launched += took;
		if (!took) {
			dma_look_for_fault(d, k->stream, 0);
			return;
		}
	}
}

/* Take ended blocks in order, up to the first that has not ended. True: one has. */
static bool kernel_reap(struct dma *d, uint64_t now_ns)
{
	struct dma_kernel *k = &d->kernel;
	uint32_t before = k->done;

	if (k->begun == before)
		return false;
	kernel_launch(d, now_ns);
	k->stream->ops->reap(k->stream, now_ns);
	while (k->done != k->launched) {
		uint32_t status =
			__atomic_load_n(kernel_block(d, k->done)->status, __ATOMIC_ACQUIRE);

		if (status == GX_BLOCK_PENDING)
			break;
		if (status != GX_BLOCK_OK)
			d->err = d->err ? d->err : -EIO;
		k->done++;
	}
	return dma_moved(d, k->stream, &k->since_ns, k->done != before, now_ns);
}

/* ---- From view to view ---- */

static int moves_open(struct dma *d)
{
	struct dma_moves *m = &d->moves;

	m->rows = d->gpu->ops->pinned_alloc(d->gpu, sizeof(uint32_t) * DMA_MOVES * 2 * DMA_ROWS);
	for (unsigned i = 0; m->rows && i < 2 * DMA_MOVES; i++)
		m->slot[i / 2].rows[i % 2] = m->rows + i * DMA_ROWS;
	return m->rows ? d->gpu->stream->open(d->gpu, GX_STREAM_COPY, &m->stream) : -ENOMEM;
}

static void moves_close(struct dma *d)
{
	gx_gpu_stream_close(d->moves.stream);
	if (d->moves.rows)
		d->gpu->ops->pinned_free(d->gpu, d->moves.rows);
}

static uint64_t row_pieces(const struct gx_move_end *e, uint64_t piece_b)
{
	uint64_t n = e->run_b / piece_b;

	for (unsigned i = 0; i < GX_MOVE_DIMS; i++)
		n *= e->dim[i].count;
	return n;
}

/* Pieces from the first on whose rows have room. */
static uint32_t rows_fit(const struct gx_move *m, const struct gx_move_end *e, uint32_t nr)
{
	uint64_t per = row_pieces(e, m->piece_b), to = (m->first / per + DMA_ROWS) * per;

	return e->rows && to - m->first < nr ? (uint32_t)(to - m->first) : nr;
}

static void rows_copy(const struct gx_move *m, struct gx_move_end *e, uint32_t *rows)
{
	uint64_t per = row_pieces(e, m->piece_b), last = (m->first + m->nr - 1) / per;

	if (!e->rows)
		return;
	e->row0 = m->first / per;
	gx_copy(rows, e->rows + e->row0, (last - e->row0 + 1) * sizeof(*rows));
	e->rows = rows;
}

bool dma_moves(const struct dma *d)
{
	return d->moves.stream;
}

uint32_t dma_move(struct dma *d, const struct gx_move *move, uint64_t now_ns,
		  struct dma_ticket *out)
{
	struct dma_moves *m = &d->moves;
	uint32_t i = m->begun & (DMA_MOVES - 1), nr;
	struct gx_gpu_gather *g = &m->slot[i].gather;
	struct gx_move *own = &m->slot[i].move;
	struct dma_ticket t = {.seq = m->begun + 1, .stream = BY_MOVE};

	if (d->err || m->begun - m->done == DMA_MOVES)
		return 0;
	nr = (uint32_t)GX_MIN((uint64_t)move->nr, DMA_MOVE_B / move->piece_b);
	*own = *move;
	own->nr = rows_fit(move, &move->src, rows_fit(move, &move->dst, nr));
	rows_copy(own, &own->src, m->slot[i].rows[0]);
	rows_copy(own, &own->dst, m->slot[i].rows[1]);
	*g = (struct gx_gpu_gather){.move = own, .sms = d->gpu->unpack_sms};
	if (m->stream->ops->gather(m->stream, g, flag_of(d, t), t.seq, now_ns)) {
		dma_look_for_fault(d, m->stream, 0);
		return 0;
	}
	if (m->begun == m->done)
		m->since_ns = GX_GPU_UNSEEN;
	m->begun++;
	*out = t;
	return own->nr;
}

static bool moves_reap(struct dma *d, uint64_t now_ns)
{
	struct dma_moves *m = &d->moves;
	uint32_t before = m->done;

	if (m->begun == before)
		return false;
	m->stream->ops->reap(m->stream, now_ns);
	m->done = __atomic_load_n(flag_of(d, (struct dma_ticket){.stream = BY_MOVE}),
				  __ATOMIC_ACQUIRE);
	return dma_moved(d, m->stream, &m->since_ns, m->done != before, now_ns);
}

/* ---- open and close ---- */

int dma_open(struct gx_gpu *gpu, enum dma_by by, uint64_t timeout_ns, struct dma **out)
{
	struct dma *d = calloc(1, sizeof(*d));
	int ret = 0;

	if (!d)
		return -ENOMEM;
	d->gpu = gpu;
	d->timeout_ns = timeout_ns;
	d->by = by;
	d->flags = gx_gpu_flag_alloc(gpu, DMA_FLAGS);
	if (!d->flags)
		ret = -ENOMEM;
	for (unsigned i = 0; i < DMA_STREAMS && !ret; i++)
		ret = gpu->stream->open(gpu, GX_STREAM_COPY, &d->stream[i].stream);
	if (!ret && (by == DMA_KERNEL || (by == DMA_AUTO && kernel_pays(gpu))))
		ret = kernel_open(d);
	if (!ret && by != DMA_CE && kernel_pays(gpu))
		ret = moves_open(d);
	if (!ret && (by == DMA_AUTO || by == DMA_RESIDENT))
		ret = gpu->stream->open(gpu, GX_STREAM_RESIDENT, &d->lone.stream);
	if (ret) {
		dma_close(d);
		return ret;
	}
	*out = d;
	return 0;
}

void dma_close(struct dma *d)
{
	if (!d)
		return;
	for (unsigned i = 0; i < DMA_STREAMS; i++)
		gx_gpu_stream_close(d->stream[i].stream);
	gx_gpu_stream_close(d->lone.stream);
	kernel_close(d);
	moves_close(d);
	if (d->flags)
		gx_gpu_flag_free(d->gpu, d->flags);
	free(d);
}

static bool stream_has_room(const struct dma_stream *s)
{
	return s->queued - s->done < DMA_OUT_MAX;
}

/* Spread short copies over the streams after the first, so that several are under way at once. */
static struct dma_stream *stream_choose(struct dma *d, uint64_t len)
{
	if (len > DMA_BULK_B)
		return stream_has_room(&d->stream[0]) ? &d->stream[0] : NULL;
	for (unsigned k = 0; k < DMA_STREAMS - 1; k++) {
		struct dma_stream *s = &d->stream[1 + d->rover];

		if (++d->rover == DMA_STREAMS - 1)
			d->rover = 0;
		if (stream_has_room(s))
			return s;
	}
	return NULL;
}

/*
 * Does the resident kernel do it? A queue of copies that runs empty now and then still counts as a
 * queue: 16 puts of 4 KiB took 53 us when the kernel did the first ones, else 38 us (H200).
 */
static bool is_lone(struct dma *d, uint64_t len, unsigned hints)
{
	const struct dma_lone *l = &d->lone;

	if (d->by == DMA_CE || !l->stream || len > GX_RESIDENT_COPY_B ||
	    l->begun - l->done >= DMA_LONES)
		return false;
	if (d->by == DMA_RESIDENT)
		return true;
	if (!(hints & DMA_LONE))
		return false;
	if (dma_out(d) + l->begun - l->done >= DMA_FEW)
		d->crowd = DMA_CALM;
	else if (d->crowd)
		d->crowd--;
	return !d->crowd;
}

static bool lone_copy(struct dma *d, const struct gx_gpu_copy *copy, uint64_t now_ns,
		      struct dma_ticket *out)
{
	struct dma_lone *l = &d->lone;
	struct dma_ticket t = {.seq = l->begun + 1, .stream = BY_LONE};
	int ret = l->stream->ops->copy(l->stream, copy, 1, flag_of(d, t), t.seq, now_ns);

	if (ret) {
		dma_look_for_fault(d, l->stream, ret);
		return false;
	}
	if (l->begun == l->done)
		l->since_ns = GX_GPU_UNSEEN;
	l->begun++;
	*out = t;
	return true;
}

/* Does a launch do it, with others? */
static bool is_launched(const struct dma *d, uint64_t len, unsigned hints)
{
	return d->by == DMA_KERNEL || (d->kernel.stream && hints & DMA_MANY && len <= DMA_MANY_B);
}

bool dma_copy(struct dma *d, void *dst, const void *src, uint64_t len, unsigned hints,
	      uint64_t now_ns, struct dma_ticket *out)
{
	struct gx_gpu_copy copy = {dst, src, len};
	struct dma_stream *s;
	int ret;

	if (d->err)
		return false;
	if (is_launched(d, len, hints))
		return kernel_copy(d, (uintptr_t)dst, (uintptr_t)src, len, out);
	if (is_lone(d, len, hints) && lone_copy(d, &copy, now_ns, out))
		return true;
	s = stream_choose(d, len);
	if (!s)
		return false;
	ret = s->stream->ops->copy(s->stream, &copy, 1, NULL, 0, now_ns);
	if (ret) {
		dma_look_for_fault(d, s->stream, ret);
		return false;
	}
	if (s->queued == s->done)
		s->since_ns = GX_GPU_UNSEEN;
	s->queued++;
	*out = (struct dma_ticket){.seq = s->queued, .stream = (uint32_t)(s - d->stream)};
	return true;
}

bool dma_done(const struct dma *d, struct dma_ticket t)
{
	if (t.stream == BY_KERNEL)
		return (int32_t)(d->kernel.done - t.seq) >= 0;
	/* Pairs with the GPU: a copy's bytes are visible before its flag. */
	uint32_t done = __atomic_load_n(flag_of(d, t), __ATOMIC_ACQUIRE);

	return (int32_t)(done - t.seq) >= 0;
}

static void stream_tell(struct dma *d, unsigned i, uint64_t now_ns)
{
	struct dma_stream *s = &d->stream[i];

	if (s->queued == s->flagged || d->err)
		return;
	if (s->flagged != s->done && s->queued - s->flagged < DMA_TELL)
		return;
	if (!s->stream->ops->copy(s->stream, NULL, 0, &d->flags[i * DMA_FLAG_STRIDE], s->queued,
				  now_ns))
		s->flagged = s->queued;
}

static void stream_look(struct dma *d, unsigned i)
{
	struct dma_stream *s = &d->stream[i];
	uint32_t done =
		__atomic_load_n(flag_of(d, (struct dma_ticket){.stream = i}), __ATOMIC_ACQUIRE);

	if (done != s->done)
		s->since_ns = GX_GPU_UNSEEN;
	s->done = done;
}

void dma_kick(struct dma *d, uint64_t now_ns)
{
	kernel_launch(d, now_ns);
	for (unsigned i = 0; i < DMA_STREAMS; i++) {
		if (d->stream[i].queued == d->stream[i].flagged)
			continue;
		stream_look(d, i);
		stream_tell(d, i, now_ns);
	}
}

/* Take ended copies in order, up to the first that has not ended. True: one has. */
static bool lone_reap(struct dma *d, uint64_t now_ns)
{
	struct dma_lone *l = &d->lone;
	uint32_t before = l->done;

	if (l->begun == before)
		return false;
	l->stream->ops->reap(l->stream, now_ns);
	while (l->done != l->begun &&
	       dma_done(d, (struct dma_ticket){.seq = l->done + 1, .stream = BY_LONE}))
		l->done++;
	return dma_moved(d, l->stream, &l->since_ns, l->done != before, now_ns);
}

bool dma_reap(struct dma *d, uint64_t now_ns)
{
	bool ended = lone_reap(d, now_ns) | kernel_reap(d, now_ns) | moves_reap(d, now_ns);

	for (unsigned i = 0; i < DMA_STREAMS; i++) {
		struct dma_stream *s = &d->stream[i];
		uint32_t before = s->done;

		if (s->queued == before)
			continue;
		s->stream->ops->reap(s->stream, now_ns);
		stream_look(d, i);
		stream_tell(d, i, now_ns);
		ended |= dma_moved(d, s->stream, &s->since_ns, s->done != before, now_ns);
	}
	return ended;
}

int dma_err(const struct dma *d)
{
	return d->err;
}

/* ---- Which way is faster for one short copy ---- */

/* Do one copy and wait. Return: ns; UINT32_MAX: it did not end. */
static uint32_t try_one(struct dma *d, void *dst, const void *src)
{
	uint64_t begin = gx_now_ns(), now = begin;
	struct dma_ticket t;

	if (!dma_copy(d, dst, src, DMA_TRY_B, DMA_LONE, begin, &t))
		return UINT32_MAX;
	dma_kick(d, begin);
	while (!dma_done(d, t) && !dma_err(d) && now - begin < d->timeout_ns) {
		now = gx_now_ns();
		dma_reap(d, now);
	}
	return dma_done(d, t) ? (uint32_t)(gx_now_ns() - begin) : UINT32_MAX;
}

/* The median of some copies, after one that does not count. Fewer, if a copy takes long. */
static uint32_t try_by(struct dma *d, enum dma_by by, void *dst, const void *src)
{
	uint64_t begin = gx_now_ns();
	uint32_t ns[DMA_TRIES], n = 0;

	d->by = by;
	if (try_one(d, dst, src) == UINT32_MAX)
		return UINT32_MAX;
	while (n < DMA_TRIES && (n < DMA_TRIES_MIN || gx_now_ns() - begin < DMA_TRY_NS)) {
		uint32_t k = n++, v = try_one(d, dst, src);

		if (v == UINT32_MAX)
			return v;
		for (; k && ns[k - 1] > v; k--)
			ns[k] = ns[k - 1];
		ns[k] = v;
	}
	return ns[n / 2];
}

int dma_time(struct gx_gpu *gpu, void *dst, const void *src, uint64_t timeout_ns, uint32_t *ce_ns,
	     uint32_t *resident_ns)
{
	struct dma *d;
	int ret = dma_open(gpu, DMA_RESIDENT, timeout_ns, &d);

	if (ret)
		return ret;
	*ce_ns = try_by(d, DMA_CE, dst, src);
	if (*ce_ns != UINT32_MAX)
		*resident_ns = try_by(d, DMA_RESIDENT, dst, src);
	if (*ce_ns == UINT32_MAX || *resident_ns == UINT32_MAX)
		ret = d->err ? d->err : -ETIMEDOUT;
	dma_close(d);
	return ret;
}
