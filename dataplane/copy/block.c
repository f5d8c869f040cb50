/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptor blocks; see block.h. Blocks form a ring: the GPU has [reap, launched); the blocks
 * [launched, fill] gather. A fragment is a reference (buffer, message) and usually a descriptor;
 * neighbours in source and destination share one.
 */
#include "copy/block.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

struct block_ref {
	uint64_t buf;
	uint32_t ref;
	uint32_t len;
};

/* One block and its fragments. owner: poll core; the GPU reads b's arrays from launch to end. */
struct block_slot {
	struct gx_block b;
	uint64_t first_ns; /* when its first fragment was added */
	uint64_t since_ns; /* that it is the oldest, see gx_gpu_is_late() */
	uint32_t nr_refs, reaped;
	bool lone;     /* first of its launch: launches_out counts it */
	bool sent;     /* the GPU got it */
	bool odd;      /* a descriptor between the first and the last has another length */
	bool check;    /* the copy must check some fragment */
	uint32_t at;   /* reaping wrong fragments: descriptor of the next one, ... */
	uint32_t at_b; /* ... and bytes of it already reaped */
	struct block_ref refs[GX_BLOCK_DESCS_MAX];
};

struct block_q {
	struct gx_gpu *gpu;
	struct gx_gpu_stream *stream;
	char *src_base; /* NULL: each block has its own */
	uint64_t timeout_ns;
	uint32_t reap, launched, fill; /* free-running */
	unsigned launches_out;
	unsigned held;
	uint64_t gather_b; /* bytes in [launched, fill] */
	int broken; /* 0; -EIO, -ETIMEDOUT: a launch failed or did not end, and the GPU keeps its
		       blocks */
	bool sync;  /* the backend copies on this core: no reason to gather */
	struct block_stat stat;
	struct block_slot *slot[BLOCK_DEPTH];
};

static struct block_slot *slot_at(const struct block_q *q, uint32_t i)
{
	return q->slot[i & (BLOCK_DEPTH - 1)];
}

int block_open(struct gx_gpu *gpu, char *src_base, uint64_t timeout_ns, struct block_q **out)
{
	struct block_q *q = calloc(1, sizeof(*q));
	int ret;

	if (!q)
		return -ENOMEM;
	q->gpu = gpu;
	q->src_base = src_base;
	q->timeout_ns = timeout_ns;
	q->sync = gpu->device < 0;
	ret = gpu->stream->open(gpu, GX_STREAM_UNPACK, &q->stream);
	if (ret)
		goto err;
	for (unsigned i = 0; i < BLOCK_DEPTH; i++) {
		q->slot[i] = calloc(1, sizeof(*q->slot[i]));
		ret = q->slot[i] ? gx_gpu_block_alloc(gpu, &q->slot[i]->b) : -ENOMEM;
		if (ret)
			goto err;
		q->slot[i]->b.src_base = (uintptr_t)src_base;
	}
	*out = q;
	return 0;

err:
	block_close(q);
	return ret;
}

void block_close(struct block_q *q)
{
	if (!q)
		return;
	gx_gpu_stream_close(q->stream); /* waits for blocks under way */
	for (unsigned i = 0; i < BLOCK_DEPTH; i++) {
		if (!q->slot[i])
			continue;
		if (q->slot[i]->b.desc)
			gx_gpu_block_free(q->gpu, &q->slot[i]->b);
		free(q->slot[i]);
	}
	free(q);
}

bool block_checks(const struct block_q *q)
{
	return q->gpu->checks_crc;
}

unsigned block_room(const struct block_q *q)
{
	const struct block_slot *s = slot_at(q, q->fill);
	uint32_t used = q->fill - q->reap;

	if (used >= BLOCK_DEPTH)
		return 0;
	/* Each fragment may be too far from the base of the block before. */
	if (!q->src_base)
		return BLOCK_DEPTH - 1 - used + !s->nr_refs;
	/* Each block after the one being filled takes at least 256 fragments, whatever their
	 * segments. */
	return (BLOCK_DEPTH - 1 - used) * GX_BLOCK_SEGS_MAX +
	       GX_MIN(GX_BLOCK_SEGS_MAX - s->b.nr_seg, GX_BLOCK_DESCS_MAX - s->nr_refs);
}

/* Find the segment for @frag among the last few, as connections take turns, or add one.
 * GX_BLOCK_SEGS_MAX: none is free. */
static unsigned block_seg(struct gx_block *b, const struct block_frag *frag)
{
	unsigned low = b->nr_seg > 4 ? b->nr_seg - 4 : 0;

	for (unsigned i = b->nr_seg; i > low; i--)
		if (b->seg[i - 1].dst_base == frag->dst_base &&
		    b->seg[i - 1].dst_len == frag->dst_len)
			return i - 1;
	if (b->nr_seg < GX_BLOCK_SEGS_MAX)
		b->seg[b->nr_seg++] =
			(struct gx_dest){.dst_base = frag->dst_base, .dst_len = frag->dst_len};
	else
		return GX_BLOCK_SEGS_MAX;
	return b->nr_seg - 1;
}

static bool block_merge(struct gx_block *b, const struct block_frag *frag, uint32_t src_off,
			unsigned seg)
{
	struct gx_desc *last = b->desc + b->nr - 1;

	if (!b->nr || b->aux[b->nr - 1].seg != seg ||
	    last->src_off + (uint64_t)last->len != src_off ||
	    last->dst_off + last->len != frag->dst_off || frag->check || b->aux[b->nr - 1].flags)
		return false;
	last->len += frag->len;
	return true;
}

static void slot_reset(struct block_slot *s)
{
	s->b.nr = s->b.nr_seg = s->nr_refs = s->reaped = 0;
	s->at = s->at_b = 0;
	s->b.bytes = 0;
	s->sent = s->odd = s->check = false;
}

/* Hints spare the launch from reading the descriptors. */
static void slot_hint(struct block_slot *s)
{
	uint32_t first = s->b.nr ? s->b.desc[0].len : 0;

	s->b.hints = GX_HINT_WEIGHT; /* bytes counts every fragment, merged or not */
	s->b.hint_len = first;
	if (s->b.nr && !s->odd && s->b.desc[s->b.nr - 1].len <= first)
		s->b.hints |= GX_HINT_LEN;
	if (s->b.nr_seg == 1)
		s->b.hints |= GX_HINT_SEG0;
	if (s->check)
		s->b.hints |= GX_HINT_CRC;
}

/* Add a descriptor. The one before now has its final length. */
static void slot_desc(struct block_slot *s, uint32_t src_off, const struct block_frag *frag,
		      unsigned seg)
{
	struct gx_block *b = &s->b;

	s->odd |= b->nr > 1 && b->desc[b->nr - 1].len != b->desc[0].len;
	b->desc[b->nr] = (struct gx_desc){src_off, frag->len, frag->dst_off};
	b->aux[b->nr] = (struct gx_desc_aux){
		.seg = seg, .flags = frag->check ? GX_AUX_CRC : 0, .crc = frag->crc};
	s->check |= frag->check;
	b->nr++;
}

static void block_next(struct block_q *q)
{

	q->fill++;
	if (q->fill - q->reap >= BLOCK_DEPTH)
		return; /* full, until block_reap() frees a block and resets this slot */
	slot_reset(slot_at(q, q->fill));
}

/* The queue launches nothing any more, and does not touch arrays that the GPU may still read.
 * block_reap() hands the fragment back. */
static void block_add_broken(struct block_q *q, const struct block_frag *frag)
{
	struct block_slot *s = slot_at(q, q->fill);

	if (s->nr_refs == GX_BLOCK_DESCS_MAX) {
		block_next(q);
		s = slot_at(q, q->fill);
	}
	s->refs[s->nr_refs++] = (struct block_ref){frag->buf, frag->ref, frag->len};
	q->held++;
}

/* Does a 32-bit offset reach the fragment? An empty block takes a base 2 GiB below its first
 * fragment, so that fragments on both sides fit. */
static bool block_reaches(const struct block_q *q, struct block_slot *s,
			  const struct block_frag *frag)
{
	uint64_t src = (uintptr_t)frag->src;

	if (q->src_base)
		return true;
	if (!s->nr_refs)
		s->b.src_base = src > 1ull << 31 ? src - (1ull << 31) : 0;
	return src - s->b.src_base <= UINT32_MAX - frag->len;
}

void block_begin(struct block_q *q, unsigned n)
{
	_Static_assert(GX_BURST_MAX * 64 <= 2 * GX_BLOCK_DESCS_MAX,
		       "two whole blocks, and one begun");
	if (slot_at(q, q->fill)->nr_refs + n > GX_BLOCK_DESCS_MAX)
		block_next(q);
}

void block_add(struct block_q *q, const struct block_frag *frag, uint64_t now_ns)
{
	struct block_slot *s = slot_at(q, q->fill);
	uint32_t src_off;
	unsigned seg;

	if (gx_unlikely(q->broken)) {
		block_add_broken(q, frag);
		return;
	}
	seg = block_seg(&s->b, frag);
	if (seg == GX_BLOCK_SEGS_MAX || s->b.nr == GX_BLOCK_DESCS_MAX ||
	    s->nr_refs == GX_BLOCK_DESCS_MAX || !block_reaches(q, s, frag)) {
		block_next(q);
		s = slot_at(q, q->fill);
		seg = block_seg(&s->b, frag);
		block_reaches(q, s, frag);
	}
	src_off = (uintptr_t)frag->src - s->b.src_base;
	if (!s->nr_refs)
		s->first_ns = now_ns;
	if (block_merge(&s->b, frag, src_off, seg)) {
		q->stat.merges++;
	} else {
		slot_desc(s, src_off, frag, seg);
		q->stat.descs++;
	}
	s->refs[s->nr_refs++] = (struct block_ref){frag->buf, frag->ref, frag->len};
	s->b.bytes += frag->len;
	q->gather_b += frag->len;
	q->held++;
}

/* Launch when 1 MiB is gathered, when the burst was short and no launch is out, or when the oldest
 * fragment is 50 us old; at most two launches are out. A fragment may be newer than @now_ns: packets
 * are heard within a turn. A backend that copies on this core need not gather. */
static bool block_due(const struct block_q *q, bool burst_short, uint64_t now_ns)
{
	const struct block_slot *s = slot_at(q, q->launched);

	if (q->launched == q->fill && !s->nr_refs)
		return false;
	if (q->sync)
		return true;
	if (q->launches_out >= BLOCK_LAUNCHES)
		return false;
	return q->gather_b >= BLOCK_FLUSH_B || (burst_short && !q->launches_out) ||
	       (int64_t)(now_ns - s->first_ns) >= BLOCK_AGE_NS;
}

unsigned block_flush(struct block_q *q, bool burst_short, uint64_t now_ns)
{
	struct gx_block *list[BLOCK_DEPTH];
	unsigned n = 0;
	unsigned taken;

	if (q->fill - q->reap >= BLOCK_DEPTH && q->launched == q->fill)
		return 0; /* the GPU has every block */
	if (gx_unlikely(q->broken)) {
		if (q->fill - q->reap < BLOCK_DEPTH && slot_at(q, q->fill)->nr_refs)
			block_next(q);
		q->launched = q->fill;
		return 0;
	}
	if (!block_due(q, burst_short, now_ns))
		return 0;
	if (q->fill - q->reap < BLOCK_DEPTH && slot_at(q, q->fill)->nr_refs)
		block_next(q); /* close the one being filled */
	for (uint32_t i = q->launched; i != q->fill; i++) {
		struct block_slot *s = slot_at(q, i);

		*s->b.cnt = s->b.nr;
		slot_hint(s);
		__atomic_store_n(s->b.status, GX_BLOCK_PENDING, __ATOMIC_RELEASE);
		s->lone = false;
		list[n++] = &s->b;
	}
	taken = q->stream->ops->unpack(q->stream, list, n, now_ns);
	if (!taken) {
		/* After a fault it takes none any more: block_reap() returns them. */
		if (q->stream->ops->fault(q->stream))
			q->broken = -EIO;
		return 0;
	}
	slot_at(q, q->launched)->lone = true;
	for (unsigned i = 0; i < taken; i++) {
		struct block_slot *s = slot_at(q, q->launched + i);

		s->since_ns = GX_GPU_UNSEEN;
		s->sent = true;
		q->gather_b -= s->b.bytes;
	}
	q->launched += taken;
	q->launches_out++;
	q->stat.launches++;
	q->stat.blocks += taken;
	return taken;
}

static int block_status(struct block_q *q, struct block_slot *s, uint64_t now_ns)
{
	if (!s->sent)
		return q->broken;
	/* Pairs with the GPU or CPU that executes the block: its copies are visible before its
	 * status. */
	switch (__atomic_load_n(s->b.status, __ATOMIC_ACQUIRE)) {
	case GX_BLOCK_OK:
		return 0;
	case GX_BLOCK_BOUNDS:
		return -ERANGE;
	case GX_BLOCK_CRC:
		return -EBADMSG;
	}
	if (!q->broken && !gx_gpu_is_late(&s->since_ns, now_ns, q->timeout_ns) &&
	    !q->stream->ops->fault(q->stream))
		return -EAGAIN;
	if (!q->broken)
		q->broken = q->stream->ops->fault(q->stream) ? -EIO : -ETIMEDOUT;
	return q->broken;
}

/* If the status says CRC but no fragment is marked, trust none of the block. */
static void block_bad_all(struct gx_block *b)
{
	uint32_t flags = 0;

	for (uint32_t i = 0; i < b->nr; i++)
		flags |= b->aux[i].flags;
	for (uint32_t i = 0; i < b->nr && !(flags & GX_AUX_BAD); i++)
		b->aux[i].flags |= GX_AUX_BAD;
}

/* Is this fragment wrong? A descriptor is one checked fragment, or all neighbours that fill its
 * length. */
static int block_bad(struct block_slot *s, const struct block_ref *r, uint64_t *off)
{
	const struct gx_desc *d = &s->b.desc[s->at];
	bool bad;

	if (s->reaped == 1)
		block_bad_all(&s->b);
	bad = s->b.aux[s->at].flags & GX_AUX_BAD;
	*off = d->dst_off + s->at_b;
	s->at_b += r->len;
	if (s->at_b >= d->len) {
		s->at++;
		s->at_b = 0;
	}
	return bad ? -EBADMSG : 0;
}

unsigned block_reap(struct block_q *q, struct block_done done[], unsigned n, uint64_t now_ns)
{
	unsigned got = 0;

	if (gx_unlikely(q->broken))
		block_flush(q, true, now_ns);
	if (q->reap == q->launched)
		return 0;
	q->stream->ops->reap(q->stream, now_ns);
	while (got < n && q->reap != q->launched) {
		struct block_slot *s = slot_at(q, q->reap);
		int status = block_status(q, s, now_ns);

		if (status == -EAGAIN)
			break;
		while (got < n && s->reaped < s->nr_refs) {
			const struct block_ref *r = &s->refs[s->reaped++];
			bool lost = s->sent && (status == -EIO || status == -ETIMEDOUT) &&
				    r->buf != BLOCK_BUF_PART;

			done[got] = (struct block_done){lost ? BLOCK_BUF_NONE : r->buf, r->ref,
							r->len, status, 0};
			if (gx_unlikely(status == -EBADMSG))
				done[got].status = block_bad(s, r, &done[got].off);
			got++;
			q->held--;
		}
		if (s->reaped < s->nr_refs)
			break;
		q->launches_out -= s->lone;
		q->reap++;
		if (q->fill - q->reap == BLOCK_DEPTH - 1) {
			/* The slot that block_next() found in use is free now. */
			slot_reset(slot_at(q, q->fill));
		}
	}
	return got;
}

unsigned block_held(const struct block_q *q)
{
	return q->held;
}

const struct block_stat *block_stat(const struct block_q *q)
{
	return &q->stat;
}
