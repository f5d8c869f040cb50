/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.c over the CPU backend, in time and late, and over a fake GPU that takes, finishes and
 * fails what it is told to.
 */
#include "copy/block.h"
#include "gpu/late_gpu.h"
#include "unpack_core.h"

#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SRC_B	(4u << 20)
#define DST_B	(4u << 20)
#define FRAG_B	1024u
#define TIMEOUT 1000000ull

/* A GPU that does what the test says. owner: the test. */
struct fake {
	struct gx_gpu gpu;
	struct gx_gpu_stream stream;
	struct gx_block *out[64]; /* taken, not finished */
	unsigned nr_out;
	unsigned take; /* at most so many blocks a launch */
	unsigned launches;
	int fault;
};

struct rig {
	struct fake fake;
	struct gx_gpu *host;
	struct block_q *q;
	char *src, *dst;
	uint64_t next_buf, next_back; /* buffers are handed back in order */
};

static struct fake *fake_of(struct gx_gpu *gpu)
{
	return GX_CONTAINER_OF(gpu, struct fake, gpu);
}

static int fake_stream_open(struct gx_gpu *gpu, enum gx_stream_kind kind,
			    struct gx_gpu_stream **out)
{
	struct fake *f = fake_of(gpu);

	f->stream = (struct gx_gpu_stream){gpu->stream, gpu};
	*out = &f->stream;
	return 0;
}

static bool fake_stream_close(struct gx_gpu_stream *s)
{
	return true;
}

/* What the hints say is what reading all descriptors says. */
static void hints_check(const struct gx_block *b)
{
	struct gx_unpack_arg hinted = {.block = *b}, read = {.block = *b};
	uint64_t weight = gx_unpack_weigh(&hinted);

	assert_true(b->hints & GX_HINT_WEIGHT);
	read.block.hints = 0;
	assert_true(weight == gx_unpack_weigh(&read));
	assert_int_equal(hinted.len, read.len);
	assert_int_equal(hinted.only, read.only);
	assert_int_equal(hinted.crc, read.crc);
	if (read.only)
		assert_memory_equal(&hinted.seg0, &read.seg0, sizeof(read.seg0));
}

static unsigned fake_unpack(struct gx_gpu_stream *s, struct gx_block *const blocks[], unsigned n,
			    uint64_t now_ns)
{
	struct fake *f = fake_of(s->gpu);

	n = GX_MIN(n, f->take);
	for (unsigned i = 0; i < n; i++) {
		assert_int_equal(*blocks[i]->status, GX_BLOCK_PENDING);
		assert_int_equal(*blocks[i]->cnt, blocks[i]->nr);
		hints_check(blocks[i]);
		f->out[f->nr_out++] = blocks[i];
	}
	f->launches += n > 0;
	return n;
}

static bool fake_reap(struct gx_gpu_stream *s, uint64_t now_ns)
{
	return false;
}

static int fake_fault(struct gx_gpu_stream *s)
{
	return fake_of(s->gpu)->fault;
}

static void *fake_pinned_alloc(struct gx_gpu *gpu, size_t len)
{
	return gx_gpu_host_ops.pinned_alloc(NULL, len);
}

static void fake_pinned_free(struct gx_gpu *gpu, void *ptr)
{
	gx_gpu_host_ops.pinned_free(NULL, ptr);
}

static const struct gx_gpu_ops fake_ops = {
	.name = "fake",
	.pinned_alloc = fake_pinned_alloc,
	.pinned_free = fake_pinned_free,
};

static const struct gx_gpu_stream_ops fake_stream_ops = {
	.open = fake_stream_open,
	.close = fake_stream_close,
	.unpack = fake_unpack,
	.reap = fake_reap,
	.fault = fake_fault,
};

/* The oldest @n blocks end with @status. */
static void fake_finish(struct fake *f, unsigned n, uint32_t status)
{
	assert_true(n <= f->nr_out);
	for (unsigned i = 0; i < n; i++)
		*f->out[i]->status = status;
	f->nr_out -= n;
	memmove(f->out, f->out + n, f->nr_out * sizeof(f->out[0]));
}

static void rig_open(struct rig *r, bool fake, uint64_t delay_ns)
{
	*r = (struct rig){
		.fake = {.gpu = {.ops = &fake_ops, .stream = &fake_stream_ops}, .take = 16}};
	r->src = malloc(SRC_B);
	r->dst = calloc(1, DST_B);
	for (unsigned i = 0; i < SRC_B; i++)
		r->src[i] = (char)(i * 7 + (i >> 10));
	assert_int_equal(late_gpu_open(delay_ns, &r->host), 0);
	assert_int_equal(block_open(fake ? &r->fake.gpu : r->host, r->src, TIMEOUT, &r->q), 0);
}

static void rig_close(struct rig *r)
{
	assert_int_equal(block_held(r->q), 0);
	assert_true(r->next_buf == r->next_back);
	block_close(r->q);
	gx_gpu_host_ops.close(r->host);
	free(r->src);
	free(r->dst);
}

/* One fragment, from where @src_off says to destination @seg. */
static void add(struct rig *r, uint32_t src_off, uint32_t len, unsigned seg, uint64_t dst_off,
		uint64_t now_ns)
{
	assert_true(block_room(r->q) > 0);
	block_add(r->q,
		  &(struct block_frag){.src = r->src + src_off,
				       .len = len,
				       .dst_off = dst_off,
				       .dst_base = (uintptr_t)r->dst + seg * 8192ull,
				       .dst_len = 8192,
				       .buf = r->next_buf,
				       .ref = (uint32_t)r->next_buf},
		  now_ns);
	r->next_buf++;
}

/* Fragments that share neither descriptors nor, with @segs, destinations. */
static void add_many(struct rig *r, unsigned n, bool segs)
{
	for (unsigned i = 0; i < n; i++)
		add(r, i % 1024 * 2 * FRAG_B % SRC_B, FRAG_B, segs ? i % 300 : 0, i % 7 * FRAG_B,
		    0);
}

static unsigned reap_all(struct rig *r, int status, bool with_buf, uint64_t now_ns)
{
	struct block_done done[7];
	unsigned total = 0, n;

	while ((n = block_reap(r->q, done, 7, now_ns)) > 0)
		for (unsigned i = 0; i < n; i++, total++) {
			assert_int_equal(done[i].status, status);
			assert_true(done[i].ref == (uint32_t)r->next_back);
			assert_true(done[i].buf == (with_buf ? r->next_back : BLOCK_BUF_NONE));
			r->next_back++;
		}
	return total;
}

static void block_flush__copies(void **state)
{
	struct rig r;

	rig_open(&r, false, 0);
	add(&r, 5, 1000, 0, 3, 0);
	add(&r, 9000, 1, 1, 0, 0);
	assert_int_equal(block_held(r.q), 2);
	assert_int_equal(block_flush(r.q, false, 0), 1);
	assert_int_equal(reap_all(&r, 0, true, 0), 2);
	assert_memory_equal(r.dst + 3, r.src + 5, 1000);
	assert_int_equal(r.dst[8192], r.src[9000]);
	assert_int_equal(block_flush(r.q, true, 0), 0);
	rig_close(&r);
}

static void block_add__merges_neighbours(void **state)
{
	struct rig r;

	rig_open(&r, false, 0);
	add(&r, 0, 1000, 0, 0, 0);
	add(&r, 1000, 500, 0, 1000, 0); /* both go on: merged */
	add(&r, 1600, 100, 0, 1500, 0); /* a gap in the source */
	add(&r, 1700, 100, 0, 1700, 0); /* a gap in the destination */
	add(&r, 1800, 100, 1, 1800, 0); /* another destination */
	assert_int_equal(block_stat(r.q)->merges, 1);
	assert_int_equal(block_stat(r.q)->descs, 4);
	block_flush(r.q, true, 0);
	assert_int_equal(reap_all(&r, 0, true, 0), 5);
	assert_memory_equal(r.dst, r.src, 1500);
	assert_memory_equal(r.dst + 8192 + 1800, r.src + 1800, 100);
	rig_close(&r);
}

/* Equal and odd lengths, the last shorter or longer, merged or not, one destination or several. */
static void block_flush__hints(void **state)
{
	uint32_t rnd = 5;
	struct rig r;

	rig_open(&r, true, 0);
	for (unsigned round = 0; round < 2000; round++) {
		uint32_t src = 0, dst = 0, n = 1 + round % 9;

		for (unsigned i = 0; i < n; i++) {
			uint32_t len = 100;

			rnd = rnd * 1664525u + 1013904223u;
			if (rnd >> 28 == 0 || (i + 1 == n && rnd >> 30 == 1))
				len = 1 + (rnd >> 8) % 200;
			add(&r, src, len, rnd >> 24 == 7, dst, 0);
			dst += len;
			src += len + ((rnd >> 20) % 4 != 0); /* one in four goes on */
		}
		assert_int_equal(block_flush(r.q, true, 0), 1);
		fake_finish(&r.fake, 1, GX_BLOCK_OK);
		assert_int_equal(reap_all(&r, 0, true, 0), n);
	}
	rig_close(&r);
}

static void block_add__new_block_when_full(void **state)
{
	struct rig r;

	rig_open(&r, true, 0);
	add_many(&r, GX_BLOCK_SEGS_MAX + 1, true); /* segments */
	assert_int_equal(block_flush(r.q, true, 0), 2);
	fake_finish(&r.fake, 2, GX_BLOCK_OK);
	reap_all(&r, 0, true, 0);
	add_many(&r, GX_BLOCK_DESCS_MAX + 1, false); /* descriptors */
	assert_int_equal(block_flush(r.q, true, 0), 2);
	fake_finish(&r.fake, 2, GX_BLOCK_OK);
	reap_all(&r, 0, true, 0);
	for (unsigned i = 0; i <= GX_BLOCK_DESCS_MAX; i++) /* references of one descriptor */
		add(&r, i, 1, 0, i, 0);
	assert_int_equal(block_flush(r.q, true, 0), 2);
	assert_int_equal(r.fake.out[0]->nr, 1);
	fake_finish(&r.fake, 2, GX_BLOCK_OK);
	assert_int_equal(reap_all(&r, 0, true, 0), GX_BLOCK_DESCS_MAX + 1);
	rig_close(&r);
}

/* As many as block_room() says, of the kind that needs most blocks, or most references; nothing
 * finishes. */
static void fill_up(struct rig *r, unsigned kind)
{
	unsigned n = 0;

	for (unsigned room; (room = block_room(r->q)) > 0; n++) {
		if (kind == 0)
			add(r, 2 * n % 1000, 1, n % 300, 0, 0);
		else
			add(r, n % 4096, 1, 0, n % 4096, 0);
		assert_true(block_room(r->q) + 1 >= room || block_room(r->q) >= 64);
		assert_true(n < 100000);
		if (kind == 2)
			block_flush(r->q, true, 0);
	}
}

static void block_room__is_true(void **state)
{
	for (unsigned kind = 0; kind < 3; kind++) {
		struct rig r;

		rig_open(&r, true, 0);
		for (unsigned round = 0; round < 3; round++) {
			fill_up(&r, kind);
			while (r.next_back != r.next_buf) {
				block_flush(r.q, true, 1000000);
				fake_finish(&r.fake, r.fake.nr_out, GX_BLOCK_OK);
				assert_true(reap_all(&r, 0, true, 1000000) > 0);
			}
			assert_true(block_room(r.q) >= GX_BURST_MAX);
		}
		rig_close(&r);
	}
}

static void block_flush__when(void **state)
{
	struct rig r;

	rig_open(&r, true, 0);
	add(&r, 0, FRAG_B, 0, 0, 1000);
	assert_int_equal(block_flush(r.q, false, 1000), 0); /* more is coming */
	assert_int_equal(block_flush(r.q, true, 1000), 1);  /* no more, and no launch is out */
	add(&r, 0, FRAG_B, 0, 0, 2000);
	assert_int_equal(block_flush(r.q, true, 1999), 0);		      /* the turn's begin */
	assert_int_equal(block_flush(r.q, true, 2000 + BLOCK_AGE_NS - 1), 0); /* one is out */
	assert_int_equal(block_flush(r.q, false, 2000 + BLOCK_AGE_NS), 1);    /* old */
	add_many(&r, 2 * BLOCK_FLUSH_B / FRAG_B, false);
	assert_int_equal(block_flush(r.q, true, 10 * BLOCK_AGE_NS), 0); /* two are out */
	fake_finish(&r.fake, 1, GX_BLOCK_OK);
	reap_all(&r, 0, true, 10 * BLOCK_AGE_NS);
	assert_int_equal(block_flush(r.q, false, 10 * BLOCK_AGE_NS), 1); /* 1 MiB */
	fake_finish(&r.fake, r.fake.nr_out, GX_BLOCK_OK);
	reap_all(&r, 0, true, 10 * BLOCK_AGE_NS);
	rig_close(&r);
}

static void block_flush__sixteen_in_one_launch(void **state)
{
	struct rig r;

	rig_open(&r, true, 0);
	r.fake.take = 0; /* no launch can be made */
	add_many(&r, 15 * GX_BLOCK_SEGS_MAX + 100, true);
	assert_int_equal(block_flush(r.q, true, 0), 0);
	assert_int_equal(block_flush(r.q, true, 0), 0);
	r.fake.take = 16;
	assert_int_equal(block_flush(r.q, true, 0), BLOCK_DEPTH);
	assert_int_equal(r.fake.launches, 1);
	assert_int_equal(block_room(r.q), 0);
	fake_finish(&r.fake, 1, GX_BLOCK_OK);
	assert_int_equal(reap_all(&r, 0, true, 0), GX_BLOCK_SEGS_MAX);
	assert_true(block_room(r.q) >= GX_BURST_MAX);
	add_many(&r, 10, true);
	fake_finish(&r.fake, 15, GX_BLOCK_OK);
	reap_all(&r, 0, true, 0);
	assert_int_equal(block_flush(r.q, true, 0), 1);
	fake_finish(&r.fake, 1, GX_BLOCK_OK);
	assert_int_equal(reap_all(&r, 0, true, 0), 10);
	rig_close(&r);
}

static void block_flush__taken_in_part(void **state)
{
	struct rig r;

	rig_open(&r, true, 0);
	r.fake.take = 2;
	add_many(&r, 5 * GX_BLOCK_SEGS_MAX, true);
	assert_int_equal(block_flush(r.q, true, 0), 2);
	assert_int_equal(block_flush(r.q, true, BLOCK_AGE_NS), 2);
	assert_int_equal(block_flush(r.q, true, BLOCK_AGE_NS), 0);
	fake_finish(&r.fake, 2, GX_BLOCK_OK);
	reap_all(&r, 0, true, BLOCK_AGE_NS);
	assert_int_equal(block_flush(r.q, true, BLOCK_AGE_NS), 1);
	fake_finish(&r.fake, 3, GX_BLOCK_OK);
	reap_all(&r, 0, true, BLOCK_AGE_NS);
	rig_close(&r);
}

/* A buffer that is handed back is overwritten at once, as a port would: the copy must have been
 * made. */
static void block_reap__not_before_the_copy(void **state)
{
	char want[FRAG_B];
	struct rig r;

	rig_open(&r, false, 5000);
	memcpy(want, r.src, FRAG_B);
	for (unsigned i = 0; i < 20; i++) {
		uint64_t now_ns = i * 100000;

		add(&r, 0, FRAG_B, i, 0, now_ns);
		block_flush(r.q, true, now_ns);
		assert_int_equal(reap_all(&r, 0, true, now_ns), 0);
		assert_int_equal(reap_all(&r, 0, true, now_ns + 4999), 0);
		assert_int_equal(reap_all(&r, 0, true, now_ns + 5000), 1);
		memset(r.src, i, FRAG_B);
		assert_memory_equal(r.dst + i * 8192, want, FRAG_B);
		memcpy(r.src, want, FRAG_B);
	}
	rig_close(&r);
}

static void block_reap__bounds(void **state)
{
	struct rig r;

	rig_open(&r, false, 0);
	add(&r, 0, FRAG_B, 0, 8192 - FRAG_B + 1, 0);
	block_flush(r.q, true, 0);
	assert_int_equal(reap_all(&r, -ERANGE, true, 0), 1);
	for (unsigned i = 0; i < DST_B; i++)
		assert_int_equal(r.dst[i], 0);
	add(&r, 0, FRAG_B, 0, 0, 0);
	block_flush(r.q, true, 0);
	assert_int_equal(reap_all(&r, 0, true, 0), 1);
	rig_close(&r);
}

static void block_reap__crc(void **state)
{
	struct rig r;

	rig_open(&r, true, 0);
	add(&r, 0, FRAG_B, 0, 0, 0);
	block_flush(r.q, true, 0);
	fake_finish(&r.fake, 1, GX_BLOCK_CRC); /* and none is marked */
	assert_int_equal(reap_all(&r, -EBADMSG, true, 0), 1);
	rig_close(&r);
}

/* Fragment @i of a row of neighbours of 100 bytes, checked or not. */
static void add_checked(struct rig *r, unsigned i, bool check, bool wrong)
{
	block_add(r->q,
		  &(struct block_frag){.src = r->src + 100 * i,
				       .len = 100,
				       .crc = gx_crc32c(0, r->src + 100 * i, 100) ^ wrong,
				       .check = check,
				       .dst_off = 100 * i,
				       .dst_base = (uintptr_t)r->dst,
				       .dst_len = 8192,
				       .buf = r->next_buf,
				       .ref = (uint32_t)r->next_buf},
		  0);
	r->next_buf++;
}

/* Wrong fragments are told one by one, whatever they lie between, however they are reaped. */
static void block_reap__which_are_wrong(void **state)
{
	struct block_done done[7];
	struct rig r;
	unsigned n, at = 0;

	rig_open(&r, false, 0);
	assert_true(block_checks(r.q));
	for (unsigned i = 0; i < 60; i++)
		add_checked(&r, i, i % 5 < 3,
			    i % 5 == 1 && i % 2); /* i % 5 > 2: merged, unchecked */
	assert_int_equal(block_stat(r.q)->descs, 12 * 4);
	assert_int_equal(block_flush(r.q, true, 0), 1);
	while ((n = block_reap(r.q, done, 7, 0)) > 0)
		for (unsigned i = 0; i < n; i++, at++) {
			bool wrong = at % 5 == 1 && at % 2;

			assert_int_equal(done[i].status, wrong ? -EBADMSG : 0);
			assert_true(done[i].off == 100 * at);
			assert_int_equal(memcmp(r.dst + 100 * at, r.src + 100 * at, 100) != 0,
					 wrong);
			assert_true(done[i].buf == r.next_back++);
		}
	assert_int_equal(at, 60);
	add_checked(&r, 0, true, false);
	block_flush(r.q, true, 0);
	assert_int_equal(reap_all(&r, 0, true, 0), 1);
	rig_close(&r);
}

/* What a GPU may still read is not handed back, nor written to; what it never got is. */
static void broken(struct rig *r, int status, uint64_t now_ns)
{
	const struct gx_block *held = r->fake.out[0];
	struct gx_desc desc = held->desc[0];

	assert_int_equal(reap_all(r, status, false, now_ns), 20);
	assert_int_equal(block_held(r->q), 0);
	for (unsigned i = 0; i < 3 * BLOCK_DEPTH; i++) {
		add_many(r, GX_BURST_MAX, true);
		assert_int_equal(block_flush(r->q, true, now_ns), 0);
		assert_int_equal(reap_all(r, status, true, now_ns), GX_BURST_MAX);
	}
	assert_memory_equal(&held->desc[0], &desc, sizeof(desc));
	assert_int_equal(*held->status, GX_BLOCK_PENDING);
	assert_int_equal(r->fake.launches, 2);
	rig_close(r);
}

/* Two launches are out: one fragment, and 19. */
static void rig_open_busy(struct rig *r)
{
	rig_open(r, true, 0);
	add(r, 77, 10, 0, 0, 0);
	block_flush(r->q, true, 0);
	add_many(r, 19, true);
	block_flush(r->q, true, BLOCK_AGE_NS);
}

static void block_reap__gpu_does_not_finish(void **state)
{
	struct rig r;

	rig_open_busy(&r);
	assert_int_equal(reap_all(&r, 0, true, 3 * TIMEOUT),
			 0); /* the core stood after the launch */
	assert_int_equal(reap_all(&r, 0, true, 3 * TIMEOUT - 1), 0); /* a clock that is behind */
	assert_int_equal(reap_all(&r, 0, true, 4 * TIMEOUT), 0);
	broken(&r, -ETIMEDOUT, 4 * TIMEOUT + 1);
}

static void block_reap__gpu_fault(void **state)
{
	struct rig r;

	rig_open_busy(&r);
	r.fake.fault = -EIO;
	broken(&r, -EIO, BLOCK_AGE_NS);
}

/* What gathered when the GPU stopped comes back, with its buffers. */
static void block_reap__fault_while_gathering(void **state)
{
	struct rig r;

	rig_open(&r, true, 0);
	add(&r, 77, 10, 0, 0, 0);
	block_flush(r.q, true, 0);
	add_many(&r, 30, true);
	r.fake.fault = -EIO;
	for (unsigned i = 0; i < 31; i++) {
		struct block_done done;

		assert_int_equal(block_reap(r.q, &done, 1, 0), 1);
		assert_int_equal(done.status, -EIO);
		assert_true(done.buf == (i ? r.next_back : BLOCK_BUF_NONE));
		r.next_back++;
	}
	rig_close(&r);
}

/* Nothing is under way, and the launch is refused for good. */
static void block_flush__refused_by_a_failed_gpu(void **state)
{
	struct block_done done;
	struct rig r;

	rig_open(&r, true, 0);
	r.fake.take = 0;
	add(&r, 77, 10, 0, 0, 0);
	assert_int_equal(block_flush(r.q, true, 0), 0);
	assert_int_equal(block_reap(r.q, &done, 1, 0), 0); /* it may take it later */
	r.fake.fault = -EIO;
	assert_int_equal(block_flush(r.q, true, 0), 0);
	assert_int_equal(block_reap(r.q, &done, 1, 0), 1);
	assert_int_equal(done.status, -EIO);
	assert_true(done.buf == r.next_back++);
	rig_close(&r);
}

/* Sources anywhere: what 32 bits from a block's base do not reach goes into another one. */
static void block_open__a_base_for_each_block(void **state)
{
	const uint64_t at[] = {5ull << 40, (5ull << 40) + (1u << 30), (5ull << 40) - (1u << 30),
			       4096, 7ull << 32, (5ull << 40) + 64,
			       /* the last that 32 bits reach with all its bytes, and the next */
			       (5ull << 40) + (1ull << 31) - 1, (5ull << 40) + (1ull << 31)};
	const unsigned block_of[] = {0, 0, 0, 1, 2, 3, 3, 4};
	struct rig r;

	rig_open(&r, true, 0);
	block_close(r.q);
	assert_int_equal(block_open(&r.fake.gpu, NULL, TIMEOUT, &r.q), 0);
	assert_int_equal(block_room(r.q), BLOCK_DEPTH);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(at); i++) {
		r.next_buf++;
		block_add(r.q,
			  &(struct block_frag){.src = (char *)at[i],
					       .len = 64,
					       .dst_base = 4096,
					       .dst_len = 1 << 20,
					       .dst_off = i * 4096,
					       .buf = i,
					       .ref = i},
			  0);
	}
	assert_int_equal(block_room(r.q), BLOCK_DEPTH - 5); /* were each too far from the last */
	assert_int_equal(block_flush(r.q, true, 0), 5);
	for (unsigned i = 0, k = 0; i < GX_ARRAY_SIZE(at); i++) {
		const struct gx_block *b = r.fake.out[block_of[i]];

		k = i && block_of[i] == block_of[i - 1] ? k + 1 : 0;
		assert_true(b->src_base + b->desc[k].src_off == at[i]);
	}
	fake_finish(&r.fake, 5, GX_BLOCK_OK);
	assert_int_equal(reap_all(&r, 0, true, 0), 8);
	rig_close(&r);
}

/* Memory that begins where another one does and is longer: each has its own bounds. */
static void block_add__bounds_of_each(void **state)
{
	struct rig r;

	rig_open(&r, true, 0);
	for (unsigned i = 0; i < 4; i++) {
		r.next_buf++;
		block_add(r.q,
			  &(struct block_frag){.src = r.src + i * 100,
					       .len = 64,
					       .dst_base = 4096,
					       .dst_len = 1000 << i % 2,
					       .dst_off = i * 64,
					       .buf = i,
					       .ref = i},
			  0);
	}
	assert_int_equal(block_flush(r.q, true, 0), 1);
	assert_int_equal(r.fake.out[0]->nr_seg, 2);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(r.fake.out[0]->seg[r.fake.out[0]->aux[i].seg].dst_len,
				 1000 << i % 2);
	fake_finish(&r.fake, 1, GX_BLOCK_OK);
	assert_int_equal(reap_all(&r, 0, true, 0), 4);
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(block_flush__refused_by_a_failed_gpu),
		cmocka_unit_test(block_open__a_base_for_each_block),
		cmocka_unit_test(block_add__bounds_of_each),
		cmocka_unit_test(block_flush__copies),
		cmocka_unit_test(block_add__merges_neighbours),
		cmocka_unit_test(block_flush__hints),
		cmocka_unit_test(block_add__new_block_when_full),
		cmocka_unit_test(block_room__is_true),
		cmocka_unit_test(block_flush__when),
		cmocka_unit_test(block_flush__sixteen_in_one_launch),
		cmocka_unit_test(block_flush__taken_in_part),
		cmocka_unit_test(block_reap__not_before_the_copy),
		cmocka_unit_test(block_reap__bounds),
		cmocka_unit_test(block_reap__crc),
		cmocka_unit_test(block_reap__which_are_wrong),
		cmocka_unit_test(block_reap__gpu_does_not_finish),
		cmocka_unit_test(block_reap__gpu_fault),
		cmocka_unit_test(block_reap__fault_while_gathering),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
