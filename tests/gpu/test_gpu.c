/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One suite for every GPU backend: test_gpu [host|cuda [wrap|resident|ring_faults]], default host.
 * Each backend is run in each of its unpack modes. The whole destination is compared after every
 * unpack, so that bytes beside a fragment are guarded too. `cuda` exits 77 where there is no GPU,
 * and says why.
 */
#include "gx_internal/gpu.h"
#include "gpu/late_gpu.h"

#include "kit/common_cuda.h"
#include "cuda_abi.h"
#include "fatbin.h"
#include "lab/load_core.h"
#include "lab/lab_fatbin.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SRC_B	((size_t)4 << 20)
#define DST_B	((size_t)8 << 20)
#define HOST_B	(SRC_B + 2 * DST_B)
#define BLOCKS	18
#define POISON	0xa5
#define WAIT_NS 60000000000ull

static uint64_t wait_ns = WAIT_NS;

/* Which backend the group that runs now is about. */
static const struct gx_gpu_ops *ops;
static struct gx_gpu_cfg cfg;
static struct gx_gpu *gpu;

/* Host memory: source, wanted image, fetched image. The destination is memory of the GPU. */
struct fix {
	struct gx_gpu_stream *s;
	uint8_t *host, *want, *got;
	uint8_t *dst;
	uint32_t *flags;
	uint32_t flag_seq;
	struct gx_block b[BLOCKS];
	struct gx_block *list[BLOCKS];
	uint64_t used; /* of the destination */
	uint32_t rnd;
};

static uint32_t fix_random(struct fix *f)
{
	f->rnd = f->rnd * 1664525u + 1013904223u;
	return f->rnd >> 8;
}

/* A GPU that is a thread of this process is let run: two of them may share one CPU. */
static void reap(struct fix *f)
{
	if (!f->s->ops->reap(f->s, gx_now_ns()))
		sched_yield();
}

static void copy_wait(struct fix *f, const struct gx_gpu_copy list[], unsigned n)
{
	uint64_t end_ns = gx_now_ns() + wait_ns;
	uint32_t value = ++f->flag_seq;

	assert_int_equal(f->s->ops->copy(f->s, list, n, &f->flags[1], value, gx_now_ns()), 0);
	while (__atomic_load_n(&f->flags[1], __ATOMIC_ACQUIRE) != value) {
		reap(f);
		assert_true(gx_now_ns() < end_ns);
	}
}

static void copy_one(struct fix *f, void *dst, const void *src, size_t len)
{
	copy_wait(f, &(struct gx_gpu_copy){dst, src, len}, 1);
}

static int setup(void **state)
{
	struct fix *f = calloc(1, sizeof(*f));
	void *dst = NULL;

	f->host = mmap(NULL, HOST_B, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(f->host, MAP_FAILED);
	assert_int_equal(ops->host_map(gpu, f->host, HOST_B), 0);
	assert_int_equal(gpu->mem->alloc(gpu, DST_B, &dst), 0);
	assert_int_equal(gpu->stream->open(gpu, GX_STREAM_UNPACK, &f->s), 0);
	f->flags = gx_gpu_flag_alloc(gpu, 4);
	assert_non_null(f->flags);
	f->want = f->host + SRC_B;
	f->got = f->want + DST_B;
	f->dst = dst;
	f->rnd = 7;
	for (size_t i = 0; i < SRC_B; i++)
		f->host[i] = fix_random(f);
	memset(f->want, POISON, DST_B);
	copy_one(f, f->dst, f->want, DST_B);
	for (unsigned i = 0; i < BLOCKS; i++) {
		assert_int_equal(gx_gpu_block_alloc(gpu, &f->b[i]), 0);
		f->b[i].src_base = (uintptr_t)f->host;
		f->b[i].seg[0] = (struct gx_dest){(uintptr_t)f->dst, DST_B};
		f->b[i].nr_seg = 1;
		f->list[i] = &f->b[i];
	}
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fix *f = *state;

	assert_int_equal(f->s->ops->fault(f->s), 0);
	gx_gpu_stream_close(f->s);
	for (unsigned i = 0; i < BLOCKS; i++)
		gx_gpu_block_free(gpu, &f->b[i]);
	gx_gpu_flag_free(gpu, f->flags);
	gpu->mem->free(gpu, f->dst, DST_B);
	ops->host_unmap(gpu, f->host, HOST_B);
	munmap(f->host, HOST_B);
	free(f);
	return 0;
}

static bool writes(void)
{
	return cfg.unpack != GX_UNPACK_NONE;
}

/* Append a descriptor to block @b; @lands: it is in bounds and must be found in the destination. */
static struct gx_desc_aux *desc_add(struct fix *f, unsigned b, struct gx_desc d, bool lands)
{
	struct gx_block *blk = &f->b[b];

	blk->desc[blk->nr] = d;
	blk->aux[blk->nr] = (struct gx_desc_aux){0};
	blk->bytes += d.len;
	blk->nr++;
	blk->cnt[0] = blk->nr;
	if (lands && writes())
		memcpy(f->want + d.dst_off, (uint8_t *)(uintptr_t)blk->src_base + d.src_off, d.len);
	return &blk->aux[blk->nr - 1];
}

/* A fragment of @len bytes from anywhere to the next free place, with a gap that spoils alignment.
 */
static void frag_add(struct fix *f, unsigned b, uint32_t len)
{
	struct gx_desc d = {fix_random(f) % (SRC_B - len + 1), len, f->used};

	assert_true(f->used + len <= DST_B);
	desc_add(f, b, d, true);
	f->used += len + 1 + fix_random(f) % 20;
}

static uint32_t block_wait(struct fix *f, unsigned b)
{
	uint64_t end_ns = gx_now_ns() + wait_ns;
	uint32_t status;

	while (!(status = __atomic_load_n(f->b[b].status, __ATOMIC_ACQUIRE))) {
		reap(f);
		assert_int_equal(f->s->ops->fault(f->s), 0);
		assert_true(gx_now_ns() < end_ns);
	}
	return status;
}

static void want_check(struct fix *f)
{
	memset(f->got, 0, DST_B);
	copy_one(f, f->got, f->dst, DST_B);
	assert_memory_equal(f->got, f->want, DST_B);
}

/* Launch the first @n blocks, as many at a time as are taken. */
static void blocks_launch(struct fix *f, unsigned n)
{
	uint64_t end_ns = gx_now_ns() + wait_ns;

	for (unsigned at = 0; at < n;) {
		unsigned k = f->s->ops->unpack(f->s, f->list + at, n - at, gx_now_ns());

		assert_true(k <= n - at && k <= 16);
		assert_int_equal(f->s->ops->fault(f->s), 0);
		assert_true(gx_now_ns() < end_ns);
		if (!k)
			reap(f);
		at += k;
	}
}

static void blocks_run(struct fix *f, unsigned n)
{
	blocks_launch(f, n);
	for (unsigned b = 0; b < n; b++)
		assert_int_equal(block_wait(f, b), GX_BLOCK_OK);
	want_check(f);
}

/* --- memory --- */

static void mem_alloc__zeroed(void **state)
{
	static const size_t len[] = {1, 4096, 100000, (2u << 20) + 1};
	struct fix *f = *state;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(len); i++) {
		void *mem = NULL;

		assert_int_equal(gpu->mem->alloc(gpu, len[i], &mem), 0);
		assert_int_equal((uintptr_t)mem % 16, 0);
		memset(f->got, POISON, len[i]);
		copy_one(f, f->got, mem, len[i]);
		for (size_t k = 0; k < len[i]; k++)
			assert_int_equal(f->got[k], 0);
		gpu->mem->free(gpu, mem, len[i]);
	}
}

static void mem_alloc__too_much(void **state)
{
	void *mem = NULL;

	assert_int_equal(gpu->mem->alloc(gpu, SIZE_MAX - 5, &mem), -ENOMEM);
	assert_int_equal(gpu->mem->alloc(gpu, (size_t)1 << 60, &mem), -ENOMEM);
	assert_null(mem);
}

static void mem_free__null(void **state)
{
	gpu->mem->free(gpu, NULL, 0);
	gx_gpu_flag_free(gpu, NULL);
	assert_true(gx_gpu_stream_close(NULL)); /* nothing of it is under way */
	gx_gpu_block_free(gpu, &(struct gx_block){0});
}

static void host_map__twice(void **state)
{
	struct fix *f = *state;

	assert_int_equal(ops->host_map(gpu, f->host, HOST_B), 0);
	assert_int_equal(ops->host_map(gpu, f->host + 4096, 8192), 0);
	ops->host_unmap(gpu, f->host + 4096, 8192);
	ops->host_unmap(gpu, f->host, HOST_B);
	frag_add(f, 0, 5000);
	blocks_run(f, 1); /* still mapped once */
}

/* The driver registers no memory that it has pinned itself. */
static void host_map__pinned_by_the_driver(void **state)
{
	uint8_t *host = ops->pinned_alloc(gpu, 3 << 20);

	assert_non_null(host);
	assert_int_equal(ops->host_map(gpu, host, 3 << 20), 0);
	assert_int_equal(ops->host_map(gpu, host + 4096, 8192), 0);
	assert_true(ops->host_unmap(gpu, host + 4096, 8192));
	assert_true(ops->host_unmap(gpu, host, 3 << 20));
	host[0] = host[(3 << 20) - 1] = 1; /* still there */
	ops->pinned_free(gpu, host);
}

static void block_alloc__empty_and_aligned(void **state)
{
	struct gx_block b;

	memset(&b, POISON, sizeof(b));
	assert_int_equal(gx_gpu_block_alloc(gpu, &b), 0);
	assert_int_equal(b.nr, 0);
	assert_int_equal(b.nr_seg, 0);
	assert_int_equal(b.bytes, 0);
	assert_int_equal(*b.status, GX_BLOCK_PENDING);
	assert_int_equal(*b.cnt, 0);
	assert_int_equal((uintptr_t)b.desc % 16, 0);
	assert_int_equal((uintptr_t)b.aux % 8, 0);
	assert_int_equal((uintptr_t)b.seg % 16, 0);
	assert_int_equal((uintptr_t)b.status % GX_CACHE_LINE, 0);
	assert_true((uintptr_t)b.cnt - (uintptr_t)b.status >= GX_CACHE_LINE);
	memset(b.desc, 1, sizeof(*b.desc) * GX_BLOCK_DESCS_MAX);
	memset(b.aux, 1, sizeof(*b.aux) * GX_BLOCK_DESCS_MAX);
	memset(b.seg, 1, sizeof(*b.seg) * GX_BLOCK_SEGS_MAX);
	gx_gpu_block_free(gpu, &b);
	assert_null(b.status);
	gx_gpu_block_free(gpu, &b);
}

/* --- unpack --- */

static void unpack__no_blocks(void **state)
{
	struct fix *f = *state;

	assert_int_equal(f->s->ops->unpack(f->s, f->list, 0, gx_now_ns()), 0);
}

static void unpack__no_descriptors(void **state)
{
	blocks_run(*state, 1);
}

static void unpack__one_descriptor(void **state)
{
	frag_add(*state, 0, 1392);
	blocks_run(*state, 1);
}

static void unpack__zero_length(void **state)
{
	struct fix *f = *state;

	for (unsigned i = 0; i < 10; i++)
		frag_add(f, 0, 0);
	desc_add(f, 0, (struct gx_desc){0, 0, DST_B}, true);
	blocks_run(f, 1);
}

static void unpack__every_alignment(void **state)
{
	static const uint32_t len[] = {1, 15, 16, 17, 33, 100, 1448, 4097};
	struct fix *f = *state;
	uint64_t at = 64;

	for (unsigned k = 0; k < GX_ARRAY_SIZE(len); k++)
		for (unsigned i = 0; i < 256; i++) {
			struct gx_desc d = {4096 * (i % 100) + i % 16, len[k], at + i / 16};

			desc_add(f, 0, d, true);
			at += GX_ALIGN_UP(len[k], 16) + 48;
		}
	assert_int_equal(f->b[0].nr, GX_BLOCK_DESCS_MAX);
	blocks_run(f, 1);
}

static void unpack__2047_equal(void **state)
{
	for (unsigned i = 0; i < 2047; i++)
		frag_add(*state, 0, 1448);
	blocks_run(*state, 1);
}

static void unpack__2048_odd(void **state)
{
	struct fix *f = *state;

	for (unsigned i = 0; i < 2048; i++)
		frag_add(f, 0, fix_random(f) % 3000);
	blocks_run(f, 1);
}

static void unpack__large_among_small(void **state)
{
	for (unsigned i = 0; i < 500; i++)
		frag_add(*state, 0, i == 123 ? (3u << 20) + 5 : 1 + i % 70);
	blocks_run(*state, 1);
}

static void unpack__several_blocks(void **state)
{
	struct fix *f = *state;

	for (unsigned b = 0; b < 16; b++)
		for (unsigned i = 0; i < b * b; i++)
			frag_add(f, b, b % 2 ? 4096 : fix_random(f) % 5000);
	blocks_run(f, 16);
}

static void unpack__more_than_one_launch(void **state)
{
	for (unsigned b = 0; b < BLOCKS; b++)
		frag_add(*state, b, 10000);
	blocks_run(*state, BLOCKS);
}

static void unpack__again_and_again(void **state)
{
	struct fix *f = *state;

	for (unsigned round = 0; round < 50; round++) {
		for (unsigned b = 0; b < 3; b++) {
			f->b[b].nr = 0;
			frag_add(f, b, 1 + fix_random(f) % 9000);
			frag_add(f, b, 1 + fix_random(f) % 40000);
		}
		blocks_launch(f, 3);
		for (unsigned b = 0; b < 3; b++)
			assert_int_equal(block_wait(f, b), GX_BLOCK_OK);
	}
	want_check(f);
}

static void unpack__many_segs(void **state)
{
	struct fix *f = *state;

	f->b[0].nr_seg = GX_BLOCK_SEGS_MAX;
	for (unsigned i = 0; i < GX_BLOCK_SEGS_MAX; i++) {
		uint64_t base = 1000 * i + i % 16;

		f->b[0].seg[i] = (struct gx_dest){(uintptr_t)f->dst + base, 900};
		desc_add(f, 0, (struct gx_desc){i, 900 - i, i}, false)->seg = i;
		if (writes())
			memcpy(f->want + base + i, f->host + i, 900 - i);
	}
	blocks_run(f, 1);
}

/* Bounce buffers in the GPU's memory. The CPU cannot gather from there. */
static void unpack__from_gpu_memory(void **state)
{
	struct fix *f = *state;
	void *src = NULL;

	if (ops == &gx_gpu_cuda_ops && cfg.unpack == GX_UNPACK_HOST)
		skip();
	assert_int_equal(gpu->mem->alloc(gpu, SRC_B, &src), 0);
	copy_one(f, src, f->host, SRC_B);
	for (unsigned i = 0; i < 300; i++)
		frag_add(f, 0, fix_random(f) % 9000);
	f->b[0].src_base = (uintptr_t)src;
	blocks_run(f, 1);
	gpu->mem->free(gpu, src, SRC_B);
}

/* The source in the GPU's memory instead, after the descriptors were added. */
static void *src_to_gpu(struct fix *f, unsigned n)
{
	void *src = NULL;

	assert_int_equal(gpu->mem->alloc(gpu, SRC_B, &src), 0);
	copy_one(f, src, f->host, SRC_B);
	for (unsigned b = 0; b < n; b++)
		f->b[b].src_base = (uintptr_t)src;
	return src;
}

static void unpack__every_alignment_from_gpu_memory(void **state)
{
	static const uint32_t len[] = {1, 15, 33, 1391, 2047, 2049, 4095, 9001};
	struct fix *f = *state;
	uint64_t at = 64;
	void *src;

	if (ops == &gx_gpu_cuda_ops && cfg.unpack == GX_UNPACK_HOST)
		skip();
	for (unsigned k = 0; k < GX_ARRAY_SIZE(len); k++)
		for (unsigned i = 0; i < 256; i++) {
			struct gx_desc d = {4096 * (i % 100) + i % 16, len[k], at + i / 16};

			desc_add(f, 0, d, true);
			at += GX_ALIGN_UP(len[k], 16) + 48;
		}
	src = src_to_gpu(f, 1);
	blocks_run(f, 1);
	gpu->mem->free(gpu, src, SRC_B);
}

/* Launches that fill the GPU may overlap; what is queued after them sees all of their bytes. */
static void unpack__back_to_back_from_gpu_memory(void **state)
{
	struct fix *f = *state;
	void *src;

	if (ops == &gx_gpu_cuda_ops && cfg.unpack == GX_UNPACK_HOST)
		skip();
	for (unsigned b = 0; b < BLOCKS; b++)
		for (unsigned i = 0; i < 100; i++)
			frag_add(f, b, b % 2 ? 4096 : 4000 + i);
	src = src_to_gpu(f, BLOCKS);
	for (unsigned round = 0; round < 20; round++) {
		for (unsigned b = 0; b < BLOCKS; b++)
			while (!f->s->ops->unpack(f->s, f->list + b, 1, gx_now_ns()))
				reap(f);
		if (round % 5 == 0)
			want_check(f);
		for (unsigned b = 0; b < BLOCKS; b++)
			assert_int_equal(block_wait(f, b), GX_BLOCK_OK);
	}
	want_check(f);
	gpu->mem->free(gpu, src, SRC_B);
}

static void unpack__bounds(void **state)
{
	static const struct gx_desc bad[] = {
		{0, 101, 0},	    {0, 1, 100},  {0, 0, 101},	      {0, 4, UINT64_MAX - 3},
		{0, 4, UINT64_MAX}, {0, 5000, 0}, {0, 8, 1ull << 63}, {0, UINT32_MAX, 1},
	};
	struct fix *f = *state;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		f->b[i].seg[0].dst_len = 100;
		desc_add(f, i, (struct gx_desc){50, 10, 0}, true);
		desc_add(f, i, bad[i], false);
		desc_add(f, i, (struct gx_desc){70, 90, 10}, true);
	}
	blocks_launch(f, GX_ARRAY_SIZE(bad));
	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++)
		assert_int_equal(block_wait(f, i), writes() ? GX_BLOCK_BOUNDS : GX_BLOCK_OK);
	want_check(f);
	f->b[0].nr = 1; /* a refusal does not stick to the next launch */
	blocks_run(f, 1);
}

/* Lengths that nobody can mean are refused like others, in any number; what is good among them
 * arrives. */
static void unpack__garbage_lengths(void **state)
{
	static const uint32_t nrs[] = {1, 3, 19, 75, 320, 2047};
	struct fix *f = *state;

	for (unsigned k = 0; k < GX_ARRAY_SIZE(nrs); k++) {
		f->b[0].nr = f->b[0].bytes = 0;
		for (uint32_t i = 0; i < nrs[k]; i++)
			desc_add(f, 0, (struct gx_desc){i, 0xfffffec0u, 0}, false);
		frag_add(f, 0, 5000);
		for (unsigned hinted = 0; hinted < 2; hinted++) {
			f->b[0].hints = hinted ? GX_HINT_WEIGHT | GX_HINT_SEG0 : 0;
			blocks_launch(f, 1);
			assert_int_equal(block_wait(f, 0),
					 writes() ? GX_BLOCK_BOUNDS : GX_BLOCK_OK);
		}
	}
	f->b[0].hints = 0;
	want_check(f);
}

static void unpack__no_such_seg(void **state)
{
	struct fix *f = *state;

	desc_add(f, 0, (struct gx_desc){0, 10, 0}, false)->seg = 1;
	desc_add(f, 0, (struct gx_desc){0, 10, 50}, false)->seg = UINT16_MAX;
	desc_add(f, 0, (struct gx_desc){0, 10, 100}, true);
	blocks_launch(f, 1);
	assert_int_equal(block_wait(f, 0), writes() ? GX_BLOCK_BOUNDS : GX_BLOCK_OK);
	want_check(f);
}

/* Two destinations that overlap: what leaves one is refused although the other has these bytes. */
static void unpack__overlapping_segs(void **state)
{
	struct fix *f = *state;

	f->b[0].nr_seg = 2;
	f->b[0].seg[0].dst_len = 1000;
	f->b[0].seg[1] = (struct gx_dest){(uintptr_t)f->dst + 500, 1000};
	desc_add(f, 0, (struct gx_desc){0, 101, 900}, false)->seg = 0;
	desc_add(f, 0, (struct gx_desc){0, 100, 901}, false)->seg = 1;
	desc_add(f, 0, (struct gx_desc){0, 100, 900}, true)->seg = 0;
	blocks_launch(f, 1);
	assert_int_equal(block_wait(f, 0), writes() ? GX_BLOCK_BOUNDS : GX_BLOCK_OK);
	want_check(f);
}

/* A kernel checks while it copies: what is wrong has been written. */
static bool crc_by_kernel(void)
{
	return ops == &gx_gpu_cuda_ops &&
	       (cfg.unpack == GX_UNPACK_KERNEL || cfg.unpack == GX_UNPACK_AUTO);
}

/* Every alignment of both sides, lengths round every step of the arithmetic; and one bit wrong. */
static void crc_lengths(struct fix *f, bool from_gpu)
{
	static const uint32_t len[] = {0,   1,	 3,    4,    5,	   15,	 16,  17,
				       31,  32,	 33,   47,   100,  511,	 512, 513,
				       528, 545, 1391, 1448, 4096, 4097, 8941};
	void *src = NULL;
	uint64_t at = 0;

	for (unsigned k = 0; k < GX_ARRAY_SIZE(len); k++)
		for (unsigned i = 0; i < 64; i++) {
			struct gx_desc d = {4096 * i + i % 16, len[k], at + i / 4};
			struct gx_desc_aux *aux = desc_add(f, 0, d, true);

			aux->flags = i % 7 ? GX_AUX_CRC : 0;
			aux->crc = i % 7 ? gx_crc32c(0, f->host + d.src_off, d.len) : 77;
			at += GX_ALIGN_UP(len[k], 16) + 48;
		}
	if (from_gpu)
		src = src_to_gpu(f, 1);
	blocks_run(f, 1);
	for (unsigned k = 0; k < GX_ARRAY_SIZE(len); k++) {
		unsigned i = 64 * k + 1 + k % 6;

		f->b[0].aux[i].crc ^= 1u << k;
		blocks_launch(f, 1);
		assert_int_equal(block_wait(f, 0), GX_BLOCK_CRC);
		f->b[0].aux[i].crc ^= 1u << k;
		for (unsigned j = 0; j < f->b[0].nr; j++)
			assert_int_equal(f->b[0].aux[j].flags & GX_AUX_BAD,
					 j == i ? GX_AUX_BAD : 0);
		f->b[0].aux[i].flags &= ~GX_AUX_BAD;
	}
	blocks_run(f, 1);
	if (from_gpu)
		gpu->mem->free(gpu, src, SRC_B);
}

static void unpack__crc_every_alignment(void **state)
{
	if (!gpu->checks_crc)
		skip();
	crc_lengths(*state, false);
}

static void unpack__crc_from_gpu_memory(void **state)
{
	if (!crc_by_kernel())
		skip();
	crc_lengths(*state, true);
}

static void unpack__crc(void **state)
{
	struct fix *f = *state;
	bool good[] = {true, false, true};

	for (unsigned b = 0; b < 2; b++)
		for (unsigned i = 0; i < 3; i++) {
			struct gx_desc d = {100 * i, 99, f->used};
			bool ok = good[i] || b == 0;
			struct gx_desc_aux *aux =
				desc_add(f, b, d, ok || !gpu->checks_crc || crc_by_kernel());

			aux->flags = GX_AUX_CRC;
			aux->crc = gx_crc32c(0, f->host + d.src_off, d.len) ^ !ok;
			f->used += 128;
		}
	blocks_launch(f, 2);
	assert_int_equal(block_wait(f, 0), GX_BLOCK_OK);
	assert_int_equal(block_wait(f, 1), gpu->checks_crc ? GX_BLOCK_CRC : GX_BLOCK_OK);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(f->b[1].aux[i].flags,
				 GX_AUX_CRC | (good[i] || !gpu->checks_crc ? 0 : GX_AUX_BAD));
	want_check(f);
}

/* Out of bounds is worse than wrong: nobody takes the rest of the block for good. */
static void unpack__crc_and_bounds(void **state)
{
	struct fix *f = *state;

	if (!gpu->checks_crc)
		skip();
	f->b[0].seg[0].dst_len = 1000;
	for (unsigned i = 0; i < 2; i++) {
		struct gx_desc_aux *aux = desc_add(f, 0, (struct gx_desc){0, 100, 950 * i}, false);

		aux->flags = GX_AUX_CRC;
		aux->crc = gx_crc32c(0, f->host, 100) ^ !i;
	}
	blocks_launch(f, 1);
	assert_int_equal(block_wait(f, 0), GX_BLOCK_BOUNDS);
}

/* --- copy --- */

static void copy__both_ways(void **state)
{
	struct fix *f = *state;
	struct gx_gpu_copy in[64], out[64];

	for (unsigned i = 0; i < 64; i++) {
		size_t len = i * 131, at = i * 10007 + i;

		in[i] = (struct gx_gpu_copy){f->dst + at, f->host + at / 2, len};
		out[i] = (struct gx_gpu_copy){f->got + at, f->dst + at, len};
		memcpy(f->want + at, f->host + at / 2, len);
	}
	memset(f->got, POISON, DST_B);
	copy_wait(f, in, 64);
	copy_wait(f, out, 64);
	assert_memory_equal(f->got, f->want, DST_B);
	want_check(f);
}

static void copy__inside_the_gpu(void **state)
{
	struct fix *f = *state;

	copy_one(f, f->dst + 100, f->host, 100000);
	copy_one(f, f->dst + (1 << 20) + 3, f->dst + 101, 99999);
	memcpy(f->want + 100, f->host, 100000);
	memcpy(f->want + (1 << 20) + 3, f->host + 1, 99999);
	want_check(f);
}

static void copy__flag_alone(void **state)
{
	struct fix *f = *state;

	copy_wait(f, NULL, 0);
	copy_wait(f, &(struct gx_gpu_copy){f->dst, f->host, 0}, 1);
	assert_int_equal(f->flags[0], 0);
	assert_int_equal(f->flags[2], 0);
}

static void copy__after_unpack(void **state)
{
	struct fix *f = *state;

	frag_add(f, 0, 1 << 20);
	blocks_launch(f, 1);
	want_check(f); /* a stream keeps order: the copy finds what the block brought */
	assert_int_equal(block_wait(f, 0), GX_BLOCK_OK);
}

/* The caller's mistake: the stream goes on. The CPU has no driver that looks. */
static void copy__bad_address(void **state)
{
	struct fix *f = *state;
	struct gx_gpu_copy bad = {NULL, f->host, 100000};

	if (ops == &gx_gpu_host_ops)
		skip();
	assert_int_equal(f->s->ops->copy(f->s, &bad, 1, &f->flags[0], 7, gx_now_ns()), -EINVAL);
	assert_non_null(strstr(gx_gpu_why(), "refuses an address"));
	assert_int_equal(f->s->ops->fault(f->s), 0);
	copy_one(f, f->dst, f->host, 100000);
	assert_int_equal(f->flags[0], 0); /* of what was refused nobody is told */
	memcpy(f->want, f->host, 100000);
	frag_add(f, 0, 5000);
	blocks_run(f, 1);
}

/* --- streams --- */

static void stream_close__work_outstanding(void **state)
{
	struct fix *f = *state;

	for (unsigned b = 0; b < 4; b++)
		for (unsigned i = 0; i < 100; i++)
			frag_add(f, b, 4096);
	blocks_launch(f, 4);
	assert_int_equal(f->s->ops->copy(f->s, &(struct gx_gpu_copy){f->got, f->dst, 100000}, 1,
					 &f->flags[0], 5, gx_now_ns()),
			 0);
	gx_gpu_stream_close(f->s);
	for (unsigned b = 0; b < 4; b++)
		assert_int_equal(*f->b[b].status, GX_BLOCK_OK);
	assert_int_equal(f->flags[0], 5);
	assert_memory_equal(f->got, f->want, 100000);
	assert_int_equal(gpu->stream->open(gpu, GX_STREAM_UNPACK, &f->s), 0);
	want_check(f);
}

static void stream_open__two_at_once(void **state)
{
	struct fix *f = *state;
	struct gx_gpu_stream *first = f->s, *second = NULL;

	assert_int_equal(gpu->stream->open(gpu, GX_STREAM_UNPACK, &second), 0);
	for (unsigned i = 0; i < 8; i++) {
		frag_add(f, i, 200000 + i);
		f->s = i % 2 ? second : first;
		while (!f->s->ops->unpack(f->s, f->list + i, 1, gx_now_ns()))
			reap(f);
	}
	for (unsigned i = 0; i < 8; i++) {
		f->s = i % 2 ? second : first;
		assert_int_equal(block_wait(f, i), GX_BLOCK_OK);
	}
	f->s = first;
	want_check(f);
	gx_gpu_stream_close(second);
}

/* --- streams of the user's --- */

/* The driver as a program of the user's calls it; the CPU backend has no streams. */
static struct {
	struct CUctx_st *ctx;
	struct CUstream_st *stream;
	unsigned (*copy)(unsigned long long dst, unsigned long long src, size_t len,
			 struct CUstream_st *stream);
	unsigned (*set_current)(struct CUctx_st *ctx);
	unsigned (*destroy)(struct CUstream_st *stream);
} user;

static void user_open(void)
{
	unsigned (*retain)(struct CUctx_st * *ctx, int device);
	unsigned (*create)(struct CUstream_st * *stream, unsigned flags, int priority);

	user.stream = (struct CUstream_st *)&user; /* anything but NULL */
	if (ops == &gx_gpu_host_ops)
		return;
	retain = common_cuda_symbol("cuDevicePrimaryCtxRetain");
	create = common_cuda_symbol("cuStreamCreateWithPriority");
	user.copy = common_cuda_symbol("cuMemcpyAsync");
	user.set_current = common_cuda_symbol("cuCtxSetCurrent");
	user.destroy = common_cuda_symbol("cuStreamDestroy_v2");
	assert_int_equal(retain(&user.ctx, cfg.device), 0);
	assert_int_equal(user.set_current(user.ctx), 0);
	assert_int_equal(create(&user.stream, GX_CU_STREAM_NON_BLOCKING, 0), 0);
	assert_int_equal(user.set_current(NULL), 0);
}

static void user_close(void)
{
	unsigned (*release)(int device);

	if (ops == &gx_gpu_host_ops)
		return;
	release = common_cuda_symbol("cuDevicePrimaryCtxRelease_v2");
	assert_int_equal(user.destroy(user.stream), 0);
	assert_int_equal(release(cfg.device), 0);
}

static void user_copy(void *dst, const void *src, size_t len)
{
	if (ops == &gx_gpu_host_ops) {
		memcpy(dst, src, len);
		return;
	}
	assert_int_equal(user.set_current(user.ctx), 0);
	assert_int_equal(user.copy((uintptr_t)dst, (uintptr_t)src, len, user.stream), 0);
	assert_int_equal(user.set_current(NULL), 0);
}

static void mark_wait(const uint32_t *flag, uint32_t value)
{
	uint64_t end_ns = gx_now_ns() + wait_ns;

	while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != value) {
		sched_yield();
		assert_true(gx_now_ns() < end_ns);
	}
}

/* When the flag is seen, what the stream had to do before is done. */
static void stream_mark__behind_the_work(void **state)
{
	struct fix *f = *state;

	user_open();
	for (uint32_t i = 1; i <= 20; i++) {
		for (size_t k = 0; k < 8; k++)
			user_copy(f->got + k * SRC_B / 8, f->host + (i + k) % 8 * SRC_B / 8,
				  SRC_B / 8);
		assert_int_equal(ops->stream_mark(gpu, user.stream, &f->flags[2], i), 0);
		mark_wait(&f->flags[2], i);
		for (size_t k = 0; k < 8; k++)
			assert_memory_equal(f->got + k * SRC_B / 8,
					    f->host + (i + k) % 8 * SRC_B / 8, SRC_B / 8);
	}
	assert_int_equal(f->flags[1], f->flag_seq);
	assert_int_equal(f->flags[3], 0);
	user_close();
}

static void stream_mark__refused(void **state)
{
	struct fix *f = *state;

	if (ops == &gx_gpu_host_ops)
		return;
	assert_int_equal(ops->stream_mark(gpu, (void *)GX_CU_STREAM_PER_THREAD, &f->flags[2], 1),
			 -EINVAL);
	assert_non_null(strstr(gx_gpu_why(), "PER_THREAD"));
	if (!getenv("GX_FAKE_CUDA"))
		return;
	assert_int_equal(ops->stream_mark(gpu, (void *)3, &f->flags[2], 1), -EINVAL);
	assert_non_null(strstr(gx_gpu_why(), "captured"));
	user_open();
	setenv("GX_FAKE_CUDA_DEAD", "1", 1);
	assert_int_equal(ops->stream_mark(gpu, user.stream, &f->flags[2], 1), -EINVAL);
	unsetenv("GX_FAKE_CUDA_DEAD");
	assert_non_null(strstr(gx_gpu_why(), "719"));
	assert_int_equal(f->s->ops->fault(f->s), 0); /* no stream of ours is at fault */
	user_close();
}

static void open__says_what_is_used(void **state)
{
	unsigned sms = gpu->unpack_sms;

	assert_true(strlen(gpu->name) > 0);
	assert_int_equal(gpu->unpack, cfg.unpack);
	assert_int_equal(sms > 0, ops == &gx_gpu_cuda_ops && cfg.unpack <= GX_UNPACK_RESIDENT);
	if (cfg.sms && sms)
		assert_true(sms <= cfg.sms);
	if (sms && !cfg.sms)
		assert_int_equal(sms, cfg.unpack == GX_UNPACK_RESIDENT ? 4 : 16);
	if (sms)
		assert_in_range(gpu->resident_sms, 1, cfg.sms ? cfg.sms : 4);
	assert_int_equal(gpu->device, ops == &gx_gpu_host_ops ? -1 : cfg.device);
}

/* --- host only: work that is late on purpose; the test holds the clock --- */

static void late__unpack_touches_nothing_before(void **state)
{
	struct fix *f = *state;

	desc_add(f, 0, (struct gx_desc){0, 5000, 100}, false);
	assert_int_equal(f->s->ops->unpack(f->s, f->list, 1, 1000), 1);
	assert_false(f->s->ops->reap(f->s, 1000 + late_gpu_ns - 1));
	assert_int_equal(*f->b[0].status, GX_BLOCK_PENDING);
	assert_memory_equal(f->dst, f->want, DST_B);
	memset(f->host, 0x11, 5000); /* the buffer was let go too early: this is what arrives */
	memset(f->want + 100, 0x11, 5000);
	assert_true(f->s->ops->reap(f->s, 1000 + late_gpu_ns));
	assert_int_equal(*f->b[0].status, GX_BLOCK_OK);
	assert_memory_equal(f->dst, f->want, DST_B);
	assert_false(f->s->ops->reap(f->s, UINT64_MAX));
}

static void late__copy_touches_nothing_before(void **state)
{
	struct fix *f = *state;
	struct gx_gpu_copy list[] = {{f->dst, f->host, 10}, {f->dst + 50, f->host, 2000}};

	assert_int_equal(f->s->ops->copy(f->s, list, 2, f->flags, 9, 1000), 0);
	assert_false(f->s->ops->reap(f->s, 1000 + late_gpu_ns - 1));
	assert_int_equal(f->flags[0], 0);
	assert_memory_equal(f->dst, f->want, DST_B);
	memcpy(f->want, f->host, 10);
	memcpy(f->want + 50, f->host, 2000);
	assert_true(f->s->ops->reap(f->s, 1000 + late_gpu_ns));
	assert_int_equal(f->flags[0], 9);
	assert_memory_equal(f->dst, f->want, DST_B);
}

static void late__in_order_one_by_one(void **state)
{
	struct fix *f = *state;

	for (unsigned i = 0; i < 3; i++) {
		frag_add(f, i, 100);
		assert_int_equal(f->s->ops->unpack(f->s, f->list + i, 1, 1000 * i), 1);
	}
	for (unsigned i = 0; i < 3; i++) {
		assert_true(f->s->ops->reap(f->s, 1000 * i + late_gpu_ns));
		for (unsigned k = 0; k < 3; k++)
			assert_int_equal(*f->b[k].status, k <= i ? GX_BLOCK_OK : GX_BLOCK_PENDING);
	}
	want_check(f);
}

static void late__full_takes_no_more(void **state)
{
	struct fix *f = *state;
	struct gx_gpu_copy one = {f->dst, f->host, 1};
	unsigned n = 0;

	while (f->s->ops->unpack(f->s, f->list, 1, 1000) == 1)
		n++;
	assert_true(n >= 256);
	assert_int_equal(f->s->ops->copy(f->s, &one, 1, f->flags, 1, 1000), -EAGAIN);
	assert_true(f->s->ops->reap(f->s, 1000 + late_gpu_ns));
	assert_int_equal(f->s->ops->copy(f->s, &one, 1, f->flags, 1, 1000), 0);
	assert_true(f->s->ops->reap(f->s, 1000 + late_gpu_ns));
	assert_int_equal(f->flags[0], 1);
}

static void copy__told_by_a_later_flag(void **state)
{
	struct fix *f = *state;
	uint64_t end_ns = gx_now_ns() + wait_ns;

	for (unsigned i = 0; i < 8; i++) {
		struct gx_gpu_copy one = {f->dst + i * 1000, f->host + i * 5000, 1000};

		memcpy(f->want + i * 1000, one.src, 1000);
		assert_int_equal(f->s->ops->copy(f->s, &one, 1, NULL, 0, gx_now_ns()), 0);
	}
	assert_int_equal(f->s->ops->copy(f->s, NULL, 0, f->flags, 77, gx_now_ns()), 0);
	while (__atomic_load_n(f->flags, __ATOMIC_ACQUIRE) != 77) {
		reap(f);
		assert_true(gx_now_ns() < end_ns);
	}
	want_check(f);
}

/* --- memory that is named to another process: cuda alone --- */

#define SHARE_B ((size_t)5 << 20)

/* What the child does to the exported bytes: it reads the parent's pattern and writes its own. */
static uint8_t share_byte(size_t at, uint8_t who)
{
	return (uint8_t)(at * 131 >> 3 ^ at ^ who);
}

static void share_fill(struct fix *f, void *mem, uint8_t who)
{
	for (size_t i = 0; i < SHARE_B; i++)
		f->got[i] = share_byte(i, who);
	copy_one(f, mem, f->got, SHARE_B);
}

static void share_check(struct fix *f, const void *mem, size_t len, uint8_t who)
{
	memset(f->got, POISON, len);
	copy_one(f, f->got, mem, len);
	for (size_t i = 0; i < len; i++)
		assert_int_equal(f->got[i], share_byte(i, who));
}

static void mem_export__of_a_part(void **state)
{
	struct fix *f = *state;
	struct gx_gpu_handle h;
	void *mem, *same;

	assert_int_equal(gpu->mem->alloc(gpu, SHARE_B, &mem), 0);
	share_fill(f, mem, 1);
	assert_int_equal(gpu->share->export(gpu, (char *)mem + 4096, SHARE_B - 4096, &h), 0);
	assert_int_equal(h.kind, GX_GPU_SHARE_FD);
	assert_int_equal(h.off, 4096);
	assert_int_equal(gpu->share->import(gpu, &h, SHARE_B - 4096, &same), 0);
	close(h.fd);
	copy_one(f, same, f->host, 100); /* seen at the other address */
	copy_one(f, f->got, (char *)mem + 4096, 100);
	assert_memory_equal(f->got, f->host, 100);
	gpu->mem->free(gpu, mem, SHARE_B);
	memset(f->got, 0, 100); /* an import holds the memory */
	copy_one(f, f->got, same, 100);
	assert_memory_equal(f->got, f->host, 100);
	gpu->share->unimport(gpu, same);
}

static void mem_export__each_allocation_has_its_id(void **state)
{
	struct gx_gpu_handle h[2];

	for (unsigned i = 0; i < 2; i++) {
		void *mem;

		assert_int_equal(gpu->mem->alloc(gpu, 4096, &mem), 0);
		assert_int_equal(gpu->share->export(gpu, mem, 4096, &h[i]), 0);
		close(h[i].fd);
		gpu->mem->free(gpu, mem, 4096);
	}
	assert_true(h[0].id != h[1].id);
}

/* What a bounce pool is: addresses at once, memory when it is needed, freed and taken again. */
static void mem_alloc_at__in_reserved_addresses(void **state)
{
	const size_t piece = 2u << 20;
	struct fix *f = *state;
	struct gx_gpu_handle h;
	char *base, *same;

	assert_int_equal(gpu->mem->addr_reserve(gpu, 2048 * piece, (void **)&base), 0);
	assert_int_equal(gpu->mem->alloc_at(gpu, base + 3 * piece, 3 * piece), 0);
	assert_int_equal(gpu->mem->alloc_at(gpu, base + 2047 * piece, piece), 0);
	assert_int_equal(gpu->mem->reach(gpu, base + 3 * piece), 0);
	memset(f->got, 1, 100);
	copy_one(f, f->got, base + 6 * piece - 100, 100);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(f->got[i], 0); /* zeroed */
	share_fill(f, base + 3 * piece, 3);
	assert_int_equal(gpu->share->export(gpu, base + 3 * piece, 3 * piece, &h), 0);
	assert_int_equal(h.len, 3 * piece); /* that piece alone */
	assert_int_equal(gpu->share->import(gpu, &h, 3 * piece, (void **)&same), 0);
	close(h.fd);
	share_check(f, same, SHARE_B, 3);
	gpu->mem->free(gpu, base + 3 * piece, 3 * piece);
	assert_int_equal(gpu->mem->alloc_at(gpu, base + 3 * piece, piece), 0);
	share_check(f, same, SHARE_B, 3); /* whoever has it, keeps it */
	gpu->share->unimport(gpu, same);
	assert_int_equal(gpu->mem->alloc_at(gpu, base + 100 * piece, piece - 4096), -EOPNOTSUPP);
	gpu->mem->free(gpu, base + 3 * piece, piece);
	gpu->mem->free(gpu, base + 2047 * piece, piece);
	gpu->mem->addr_free(gpu, base, 2048 * piece);
}

static void mem_dmabuf__a_descriptor_or_a_reason(void **state)
{
	void *mem;
	int fd = -1;
	int ret;

	assert_int_equal(gpu->mem->alloc(gpu, SHARE_B, &mem), 0);
	ret = gpu->share->dmabuf(gpu, mem, 4096, &fd);
	if (ret) {
		assert_int_equal(ret, -EOPNOTSUPP);
		assert_true(strlen(gx_gpu_why()) > 0);
	} else {
		assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
		close(fd);
	}
	gpu->mem->free(gpu, mem, SHARE_B);
}

/* The other process is this program again, which finds the descriptor open. */
static void mem_import__in_another_process(void **state)
{
	struct fix *f = *state;
	struct gx_gpu_handle h;
	char fd[16], len[24];
	int status;
	void *mem;
	pid_t pid;

	assert_int_equal(gpu->mem->alloc(gpu, SHARE_B, &mem), 0);
	share_fill(f, mem, 1);
	assert_int_equal(gpu->share->export(gpu, mem, SHARE_B, &h), 0);
	assert_true(fcntl(h.fd, F_GETFD) & FD_CLOEXEC);
	snprintf(len, sizeof(len), "%llu", (unsigned long long)h.len);
	pid = vfork();
	if (!pid) {
		int kept = dup(h.fd); /* without FD_CLOEXEC */

		snprintf(fd, sizeof(fd), "%d", kept);
		execl("/proc/self/exe", "test_gpu", "import", fd, len, NULL);
		_exit(127);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	share_check(f, mem, SHARE_B, 2);
	close(h.fd);
	gpu->mem->free(gpu, mem, SHARE_B);
}

static int import_main(int fd, uint64_t len)
{
	struct gx_gpu_handle h = {.kind = GX_GPU_SHARE_FD, .fd = fd, .len = len};
	void *state, *mem;

	ops = &gx_gpu_cuda_ops;
	if (ops->open(&cfg, &gpu))
		return 1;
	setup(&state);
	if (gpu->share->import(gpu, &h, SHARE_B, &mem))
		return 1;
	share_check(state, mem, SHARE_B, 1);
	share_fill(state, mem, 2);
	gpu->share->unimport(gpu, mem);
	teardown(&state);
	ops->close(gpu);
	return 0;
}

static void mem_import__lies_are_refused(void **state)
{
	struct gx_gpu_handle h, lie;
	void *mem, *out = NULL;
	int ends[2];

	assert_int_equal(gpu->mem->alloc(gpu, SHARE_B, &mem), 0);
	assert_int_equal(gpu->share->export(gpu, mem, SHARE_B, &h), 0);
	lie = h;
	lie.len = 64 * SHARE_B; /* more than there is */
	assert_int_equal(gpu->share->import(gpu, &lie, SHARE_B, &out), -EPROTO);
	lie = h;
	lie.len = h.len - 1; /* no whole granules */
	assert_int_equal(gpu->share->import(gpu, &lie, SHARE_B, &out), -EPROTO);
	lie = h;
	lie.off = UINT64_MAX - 4095;
	assert_int_equal(gpu->share->import(gpu, &lie, SHARE_B, &out), -EPROTO);
	assert_int_equal(gpu->share->import(gpu, &h, h.len + 1, &out), -EPROTO);
	assert_int_equal(pipe(ends), 0);
	lie = h;
	lie.fd = ends[0];
	assert_int_equal(gpu->share->import(gpu, &lie, SHARE_B, &out), -EPROTO);
	lie = (struct gx_gpu_handle){.kind = GX_GPU_SHARE_IPC, .fd = -1, .len = SHARE_B};
	memset(lie.ipc, 0x5a, sizeof(lie.ipc));
	assert_int_equal(gpu->share->import(gpu, &lie, SHARE_B, &out), -EPROTO);
	assert_null(out);
	assert_true(strlen(gx_gpu_why()) > 0);
	close(ends[0]);
	close(ends[1]);
	close(h.fd);
	gpu->mem->free(gpu, mem, SHARE_B);
	gpu->share->unimport(gpu, NULL);
}

/* --- resident streams: a kernel that is there already takes jobs from a ring --- */

/* The stream of the fixture, as the local link opens its own: copies are unordered, too. */
static void stream_reopen(struct fix *f, enum gx_stream_kind kind)
{
	gx_gpu_stream_close(f->s);
	assert_int_equal(gpu->stream->open(gpu, kind, &f->s), 0);
}

static void flag_wait(struct fix *f, const uint32_t *flag, uint32_t value)
{
	uint64_t end_ns = gx_now_ns() + wait_ns;

	while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != value) {
		reap(f);
		assert_int_equal(f->s->ops->fault(f->s), 0);
		assert_true(gx_now_ns() < end_ns);
	}
}

static void block_one(struct fix *f, unsigned b, uint32_t len)
{
	f->b[b].nr = 0;
	f->used %= DST_B / 2;
	frag_add(f, b, len);
	blocks_launch(f, 1);
	assert_int_equal(block_wait(f, b), GX_BLOCK_OK);
}

/* Longer than a launch waits, and about as long: some jobs meet one that is just leaving. */
static void resident__idle_between(void **state)
{
	struct fix *f = *state;

	for (unsigned i = 0; i < 300; i++) {
		usleep(i % 3 ? 90 + i % 40 : 300);
		block_one(f, 0, 1 + fix_random(f) % 9000);
	}
	want_check(f);
}

/* Through several launches, each of which ends after a millisecond. */
static void resident__busy_for_long(void **state)
{
	struct fix *f = *state;
	uint64_t end_ns = gx_now_ns() + 20000000;

	while (gx_now_ns() < end_ns)
		block_one(f, 0, 4096);
	want_check(f);
}

/* Mode auto: blocks by launches and by jobs, as they come. */
static void auto__by_load(void **state)
{
	struct fix *f = *state;

	for (unsigned i = 0; i < 400; i++) {
		if (i / 20 % 2)
			usleep(150);
		block_one(f, 0, 1 + fix_random(f) % 9000);
		if (i % 50 == 7)
			want_check(f);
	}
	want_check(f);
}

/* More than the ring holds, none waited for; nothing is lost and the rest is refused. */
static void resident__ring_full(void **state)
{
	struct fix *f = *state;
	unsigned posted = 0, refused = 0;

	f->flags[2] = 0;
	while (posted < 500) {
		struct gx_gpu_copy one = {f->dst + posted * 4099, f->host + posted * 5000, 4096};

		if (f->s->ops->copy(f->s, &one, 1, &f->flags[posted % 4], posted, gx_now_ns())) {
			refused++;
			reap(f);
			continue;
		}
		memcpy(f->want + posted * 4099, f->host + posted * 5000, 4096);
		posted++;
	}
	want_check(f); /* driver work, which comes after all of them */
	print_message("%u times refused\n", refused);
}

/* Small ones are jobs, a large one is driver work; each sees what the one before it wrote. */
static void resident__order_of_kinds(void **state)
{
	struct fix *f = *state;
	size_t len[] = {1000, 300000, 65536, 17, 2000000, 4};

	for (unsigned i = 0; i < 60; i++) {
		size_t n = len[i % GX_ARRAY_SIZE(len)];
		struct gx_gpu_copy down = {f->dst + i, f->host + i * 1001, n};
		struct gx_gpu_copy move = {f->dst + DST_B / 2 + i, f->dst + i, n};

		while (f->s->ops->copy(f->s, &down, 1, &f->flags[0], 2 * i, gx_now_ns()))
			reap(f);
		while (f->s->ops->copy(f->s, &move, 1, &f->flags[0], 2 * i + 1, gx_now_ns()))
			reap(f);
		memcpy(f->want + i, f->host + i * 1001, n);
		memcpy(f->want + DST_B / 2 + i, f->want + i, n);
	}
	flag_wait(f, &f->flags[0], 119);
	want_check(f);
}

/* What the ring has no room for is as it was: a caller who waits for its end waits for nothing. */
static void resident__refused_blocks_keep_their_status(void **state)
{
	struct fix *f = *state;
	struct gx_block b[80], *list[80];
	unsigned refused = 0, at = 0;

	for (unsigned i = 0; i < 80; i++) {
		assert_int_equal(gx_gpu_block_alloc(gpu, &b[i]), 0);
		b[i].src_base = (uintptr_t)f->host;
		b[i].seg[0] = (struct gx_dest){(uintptr_t)f->dst, DST_B};
		b[i].nr = b[i].nr_seg = 1;
		b[i].desc[0] = (struct gx_desc){0, 1 << 20, 0};
		*b[i].status = GX_BLOCK_OK;
		list[i] = &b[i];
	}
	memcpy(f->want, f->host, 1 << 20);
	while (at < 80) {
		unsigned k = f->s->ops->unpack(f->s, list + at, 80 - at, gx_now_ns());

		at += k;
		refused += at < 80 && k < 16;
		for (unsigned i = at; i < 80; i++)
			assert_int_equal(*b[i].status, GX_BLOCK_OK);
		if (!k)
			reap(f);
	}
	for (unsigned i = 0; i < 80; i++)
		while (!__atomic_load_n(b[i].status, __ATOMIC_ACQUIRE))
			reap(f);
	want_check(f);
	for (unsigned i = 0; i < 80; i++)
		gx_gpu_block_free(gpu, &b[i]);
	print_message("%u times refused\n", refused);
}

/* @round's bytes of the pool, and where fragment @i of 40 goes: sectors are shared by neighbours.
 */
static void pool_fill(uint8_t *pool, unsigned round, size_t len)
{
	for (size_t i = 0; i < len; i++)
		pool[i] = (uint8_t)(i * 7 + round * 31 + (i >> 8));
}

/*
 * The kernel stays while its pool is written anew: no byte of an earlier round may come from a
 * cache. Into host memory, so that every round is compared as soon as its end is seen.
 */
static void rewritten(struct fix *f, uint8_t *pool, bool by_copy)
{
	uint8_t *src = f->host;

	for (unsigned i = 0; i < 40; i++)
		desc_add(f, 0, (struct gx_desc){i * 409, 401 + i % 9, i * 500 + i % 16}, false);
	f->b[0].src_base = (uintptr_t)pool;
	f->b[0].seg[0] = (struct gx_dest){(uintptr_t)f->got, DST_B};
	for (unsigned round = 0; round < (getenv("GX_FAKE_CUDA") ? 100 : 3000); round++) {
		pool_fill(src, round, 16384);
		if (by_copy)
			while (f->s->ops->copy(f->s, &(struct gx_gpu_copy){pool, src, 16384}, 1,
					       &f->flags[0], round, gx_now_ns()))
				reap(f);
		blocks_launch(f, 1);
		assert_int_equal(block_wait(f, 0), GX_BLOCK_OK);
		for (unsigned i = 0; i < 40; i++)
			assert_memory_equal(f->got + i * 500 + i % 16, src + i * 409, 401 + i % 9);
	}
	f->b[0].nr = 0;
	f->b[0].seg[0] = (struct gx_dest){(uintptr_t)f->dst, DST_B};
}

static void resident__pool_rewritten(void **state)
{
	struct fix *f = *state;
	void *src = NULL;

	rewritten(f, f->host, false);
	assert_int_equal(gpu->mem->alloc(gpu, 16384, &src), 0);
	rewritten(f, src, true);
	gpu->mem->free(gpu, src, 16384);
}

/* Fragments of one length, in a pool that every round writes anew and in another order: into host
 * memory. Now and then one does not fit. */
static uint32_t lone_fill(struct fix *f, unsigned round, uint32_t nr, uint32_t len, uint32_t bad)
{
	uint32_t turn = fix_random(f) % nr, last = 1 + fix_random(f) % len;

	f->b[0].nr = 0;
	pool_fill(f->host, round, (size_t)nr * len);
	memset(f->got, POISON, (size_t)nr * len);
	for (uint32_t i = 0; i < nr; i++)
		desc_add(f, 0,
			 (struct gx_desc){(i + turn) % nr * len, i + 1 == nr ? last : len,
					  i == bad ? DST_B : (uint64_t)i * len},
			 false);
	return turn;
}

static void lone_check(struct fix *f, uint32_t nr, uint32_t len, uint32_t turn, uint32_t bad)
{
	for (uint32_t i = 0; i < nr; i++) {
		const uint8_t *got = f->got + (size_t)i * len;

		if (i == bad)
			for (uint32_t k = 0; k < f->b[0].desc[i].len; k++)
				assert_int_equal(got[k], POISON);
		else
			assert_memory_equal(got, f->host + (size_t)((i + turn) % nr) * len,
					    f->b[0].desc[i].len);
	}
}

/* Lone blocks, whose descriptors come with the job if they are 2 to 128; a block of one is a copy.
 */
static void resident__lone_blocks(void **state)
{
	struct fix *f = *state;

	f->b[0].src_base = (uintptr_t)f->host;
	f->b[0].seg[0] = (struct gx_dest){(uintptr_t)f->got, DST_B};
	for (unsigned round = 0; round < (getenv("GX_FAKE_CUDA") ? 300 : 4000); round++) {
		uint32_t nr = round % 3 ? 1 + fix_random(f) % 9 : 1 + fix_random(f) % 140;
		uint32_t most = round % 4 ? 16384 : 400000;
		uint32_t len = 1 + fix_random(f) % (most / nr);
		uint32_t bad = round % 50 == 49 ? fix_random(f) % nr : nr;
		uint32_t turn = lone_fill(f, round, nr, len, bad);

		blocks_launch(f, 1);
		assert_int_equal(block_wait(f, 0), bad < nr ? GX_BLOCK_BOUNDS : GX_BLOCK_OK);
		lone_check(f, nr, len, turn, bad);
	}
	f->b[0].nr = 0;
	f->b[0].seg[0] = (struct gx_dest){(uintptr_t)f->dst, DST_B};
}

/* Unordered copies: each list tells its own end, and its end alone. */
static void resident__lists_of_copies(void **state)
{
	struct fix *f = *state;
	uint32_t *own = gx_gpu_flag_alloc(gpu, 200);

	stream_reopen(f, GX_STREAM_RESIDENT);
	for (unsigned i = 0; i < 200; i++) {
		struct gx_gpu_copy list[GX_RESIDENT_COPIES];
		unsigned n = 1 + i % GX_RESIDENT_COPIES;

		for (unsigned k = 0; k < n; k++) {
			size_t at = 33000 * i + 4001 * k, len = fix_random(f) % 4000;

			list[k] = (struct gx_gpu_copy){f->dst + at, f->host + at / 3, len};
			memcpy(f->want + at, f->host + at / 3, len);
		}
		while (f->s->ops->copy(f->s, list, n, &own[i], i + 1, gx_now_ns()))
			reap(f);
	}
	for (unsigned i = 0; i < 200; i++)
		flag_wait(f, &own[i], i + 1);
	stream_reopen(f, GX_STREAM_UNPACK);
	gx_gpu_flag_free(gpu, own);
	want_check(f);
}

/* What a program does to the GPU beside us, from a thread of its own. */
struct beside {
	atomic_bool stop;
	unsigned nr;
	uint64_t worst_ns;
	unsigned (*sync)(void); /* cuCtxSynchronize, NULL: not there */
};

static void beside_note(struct beside *w, uint64_t begin_ns)
{
	w->worst_ns = GX_MAX(w->worst_ns, gx_now_ns() - begin_ns);
	w->nr++;
}

static void *beside_run(void *arg)
{
	struct beside *w = arg;

	do { /* once at least, however late this thread is */
		uint64_t begin_ns = gx_now_ns();
		void *mem = NULL;

		assert_int_equal(gpu->mem->alloc(gpu, 1 << 20, &mem), 0);
		beside_note(w, begin_ns);
		begin_ns = gx_now_ns();
		gpu->mem->free(gpu, mem, 1 << 20); /* waits for the whole GPU */
		beside_note(w, begin_ns);
		begin_ns = gx_now_ns();
		if (w->sync && w->sync() == 0)
			beside_note(w, begin_ns);
		usleep(200);
	} while (!atomic_load(&w->stop));
	return NULL;
}

/* The context of the test's thread is the GPU's, once it has worked there. */
static void *beside_thread(void *arg)
{
	struct gx_gpu_stream *s = NULL;
	struct gx_block b = {0}, *list[] = {&b};

	assert_int_equal(gpu->stream->open(gpu, GX_STREAM_LAUNCH, &s), 0);
	assert_int_equal(gx_gpu_block_alloc(gpu, &b), 0);
	assert_int_equal(s->ops->unpack(s, list, 1, gx_now_ns()), 1);
	gx_gpu_stream_close(s);
	gx_gpu_block_free(gpu, &b);
	return beside_run(arg);
}

/* Allocating, freeing and synchronising wait a bounded time while the ring is never empty. */
static void resident__others_wait_bounded(void **state)
{
	struct fix *f = *state;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	struct beside w = {.sync = lib ? (unsigned (*)(void))dlsym(lib, "cuCtxSynchronize") : NULL};
	uint64_t end_ns = gx_now_ns() + (getenv("GX_FAKE_CUDA") ? 200000000 : 1000000000);
	unsigned rounds = 0;
	pthread_t thread;

	for (unsigned b = 0; b < 4; b++)
		for (unsigned i = 0; i < 128; i++)
			frag_add(f, b, 4096);
	blocks_run(f, 4);
	assert_int_equal(pthread_create(&thread, NULL, beside_thread, &w), 0);
	while (gx_now_ns() < end_ns) {
		unsigned b = rounds++ % 4;

		assert_int_equal(block_wait(f, b), GX_BLOCK_OK);
		while (!f->s->ops->unpack(f->s, f->list + b, 1, gx_now_ns()))
			reap(f);
	}
	for (unsigned b = 0; b < 4; b++)
		assert_int_equal(block_wait(f, b), GX_BLOCK_OK);
	atomic_store(&w.stop, true);
	pthread_join(thread, NULL);
	want_check(f);
	print_message("%u blocks; beside them %u calls (%s), the longest %.2f ms\n", rounds, w.nr,
		      w.sync ? "with cuCtxSynchronize" : "without", (double)w.worst_ns / 1e6);
	assert_true(w.nr > 0);
	assert_true(w.worst_ns < (getenv("GX_FAKE_CUDA") ? 30000000000 : 50000000));
	if (lib)
		dlclose(lib);
}

/* --- a GPU of which others hold almost all SMs, for as long as they like --- */

#define HOLD_NS 30000000000ull /* they end then, so that a test that fails ends, too */

struct hold {
	struct CUmod_st *module;
	uint32_t *words; /* [0]: over; from 32 on: who has begun */
	unsigned (*query)(struct CUstream_st *stream);
};

static unsigned device_number(int attribute)
{
	unsigned (*get)(int *value, int attr, int device) =
		common_cuda_symbol("cuDeviceGetAttribute");
	int n = 0;

	assert_int_equal(get(&n, attribute, cfg.device), 0);
	return (unsigned)n;
}

/* A thread block on each of all SMs but @left, which has that SM's shared memory for itself. */
static void hold_begin(struct hold *h, unsigned left)
{
	unsigned (*load)(struct CUmod_st **, const void *) = common_cuda_symbol("cuModuleLoadData");
	unsigned (*find)(struct CUfunc_st **, struct CUmod_st *, const char *) =
		common_cuda_symbol("cuModuleGetFunction");
	unsigned (*set)(struct CUfunc_st *, int, int) = common_cuda_symbol("cuFuncSetAttribute");
	unsigned (*launch)(struct CUfunc_st *, unsigned, unsigned, unsigned, unsigned, unsigned,
			   unsigned, unsigned, struct CUstream_st *, void **, void **) =
		common_cuda_symbol("cuLaunchKernel");
	unsigned grid = device_number(GX_CU_ATTR_MULTIPROCESSOR_COUNT) - left;
	unsigned shared_b = device_number(97); /* most of a thread block, when asked for */
	struct gx_load_args args = {.n = HOLD_NS};
	void *params[] = {&args};
	struct CUfunc_st *fn;
	uint64_t end_ns = gx_now_ns() + wait_ns;

	user_open();
	h->query = common_cuda_symbol("cuStreamQuery");
	h->words = gx_gpu_flag_alloc(gpu, 32 + grid);
	assert_non_null(h->words);
	args.mem = h->words + 32;
	args.wrong = (uint64_t *)h->words;
	assert_int_equal(user.set_current(user.ctx), 0);
	assert_int_equal(load(&h->module, gx_load_fatbin), 0);
	assert_int_equal(find(&fn, h->module, "gx_load_hold"), 0);
	assert_int_equal(set(fn, GX_CU_FUNC_MAX_DYNAMIC_SHARED_B, (int)shared_b), 0);
	assert_int_equal(
		launch(fn, grid, 1, 1, GX_LOAD_THREADS, 1, 1, shared_b, user.stream, params, NULL),
		0);
	for (unsigned i = 0; i < grid; i++)
		while (!__atomic_load_n(&h->words[32 + i], __ATOMIC_ACQUIRE))
			assert_true(gx_now_ns() < end_ns);
	assert_int_equal(user.set_current(NULL), 0);
}

static void hold_end(struct hold *h)
{
	unsigned (*unload)(struct CUmod_st *) = common_cuda_symbol("cuModuleUnload");
	unsigned (*sync)(struct CUstream_st *) = common_cuda_symbol("cuStreamSynchronize");

	assert_int_equal(user.set_current(user.ctx), 0);
	assert_int_equal(h->query(user.stream), GX_CU_ERROR_NOT_READY); /* they were there */
	__atomic_store_n(&h->words[0], 1, __ATOMIC_RELEASE);
	assert_int_equal(sync(user.stream), 0);
	assert_int_equal(unload(h->module), 0);
	assert_int_equal(user.set_current(NULL), 0);
	gx_gpu_flag_free(gpu, h->words);
	user_close();
}

/* Blocks that many thread blocks share, copies that wait for them, blocks that wait for those, and
 * now and then a copy of the driver's, which comes after all of them; none is waited for. */
static void partly_round(struct fix *f, unsigned i)
{
	uint64_t end_ns = gx_now_ns() + wait_ns;
	size_t len = i % 5 == 4 ? 300000 : 1000;
	struct gx_gpu_copy move = {f->dst + DST_B / 2 + i * 4096, f->dst, len};
	unsigned b = i % BLOCKS;

	if (i >= BLOCKS)
		assert_int_equal(block_wait(f, b), GX_BLOCK_OK);
	f->b[b].nr = f->used = 0;
	for (unsigned k = 0; k < 128; k++)
		frag_add(f, b, 4096);
	while (!f->s->ops->unpack(f->s, f->list + b, 1, gx_now_ns())) {
		reap(f);
		assert_true(gx_now_ns() < end_ns);
	}
	while (f->s->ops->copy(f->s, &move, 1, &f->flags[0], i + 1, gx_now_ns())) {
		reap(f);
		assert_true(gx_now_ns() < end_ns);
	}
	memcpy(f->want + DST_B / 2 + i * 4096, f->want, len);
}

static void resident__partly_placed(void **state)
{
	struct fix *f = *state;
	struct hold h;

	if (getenv("CUDA_LAUNCH_BLOCKING"))
		skip(); /* the launch of the kernel that holds the SMs would wait for its end */
	wait_ns = 10000000000;
	for (unsigned left = 1; left <= 3; left++) {
		hold_begin(&h, left);
		for (unsigned i = 0; i < 40; i++)
			partly_round(f, i);
		flag_wait(f, &f->flags[0], 40);
		want_check(f);
		hold_end(&h);
	}
	wait_ns = WAIT_NS;
}

/* --- counters that wrap: GX_COUNT_FROM begins 24 before --- */

/* Jobs and launches on every kind of stream, through 2^31 or 2^32: small and large copies, blocks
 * by one and by three, each found where it belongs. */
static void wrap_rounds(struct fix *f, enum gx_stream_kind kind)
{
	stream_reopen(f, kind);
	for (unsigned i = 0; i < 90; i++) {
		size_t len = i % 8 == 5 ? 200000 : 1 + fix_random(f) % 9000;
		struct gx_gpu_copy list[2] = {{f->dst + DST_B / 2 + 11 * i, f->host + 7 * i, len},
					      {f->dst + DST_B - 4096, f->host + i, 4000}};
		unsigned n = 1 + 2 * (i % 3 == 2);

		for (unsigned k = 0; k < 2; k++)
			memcpy(f->want + ((uint8_t *)list[k].dst - f->dst), list[k].src,
			       list[k].len);
		copy_wait(f, list, 2);
		f->used = 0;
		for (unsigned b = 0; b < n; b++) {
			f->b[b].nr = 0;
			frag_add(f, b, 1 + fix_random(f) % 100000);
			frag_add(f, b, 1 + fix_random(f) % 9000);
		}
		blocks_launch(f, n);
		for (unsigned b = 0; b < n; b++)
			assert_int_equal(block_wait(f, b), GX_BLOCK_OK);
		if (i % 9 == 0)
			want_check(f);
	}
	want_check(f);
	stream_reopen(f, GX_STREAM_UNPACK);
}

static void wrap__every_kind(void **state)
{
	wrap_rounds(*state, GX_STREAM_UNPACK);
	wrap_rounds(*state, GX_STREAM_LAUNCH);
	wrap_rounds(*state, GX_STREAM_RESIDENT);
}

/* No copy was ever among them: those of mode auto are the driver's. */
static void wrap__blocks_alone(void **state)
{
	struct fix *f = *state;

	for (unsigned i = 0; i < 100; i++)
		block_one(f, 0, 1 + fix_random(f) % 9000);
	want_check(f);
}

/* A launch for each, and no STOP. */
static void wrap__launches(void **state)
{
	struct fix *f = *state;

	stream_reopen(f, GX_STREAM_RESIDENT);
	for (unsigned i = 0; i < 40; i++) {
		usleep(400);
		copy_one(f, f->dst + 100 * i, f->host + i, 1 + 100 * i);
		memcpy(f->want + 100 * i, f->host + i, 1 + 100 * i);
	}
	stream_reopen(f, GX_STREAM_UNPACK);
	want_check(f);
}

/* --- fake driver only: the GPU fails while it runs --- */

static void fault__sticks_and_says_why(void **state)
{
	struct fix *f = *state;
	struct gx_gpu_copy one = {f->dst, f->host, 100};

	assert_int_equal(f->s->ops->fault(f->s), 0);
	frag_add(f, 0, 100);
	setenv("GX_FAKE_CUDA_DEAD", "1", 1);
	assert_int_equal(f->s->ops->unpack(f->s, f->list, 1, 1000), 0);
	unsetenv("GX_FAKE_CUDA_DEAD");
	assert_int_equal(f->s->ops->fault(f->s), -EIO);
	assert_non_null(strstr(gx_gpu_why(), "719"));
	assert_int_equal(*f->b[0].status, GX_BLOCK_PENDING);
	assert_int_equal(f->s->ops->unpack(f->s, f->list, 1, 1000), 0);
	assert_int_equal(f->s->ops->copy(f->s, &one, 1, f->flags, 1, 1000), -EAGAIN);
	gx_gpu_stream_close(f->s);
	assert_int_equal(gpu->stream->open(gpu, GX_STREAM_UNPACK, &f->s), 0);
	blocks_run(f, 1); /* the fault was the stream's */
}

/* Who tries again and again while the ring is full learns that the GPU has stopped. */
static void fault__seen_by_who_tries(void **state)
{
	struct fix *f = *state;
	uint64_t now_ns = 1u << 30, end_ns;
	unsigned b = 0;

	setenv("GX_FAKE_CUDA_STOPPED", "1", 1);
	for (frag_add(f, 0, 100); f->s->ops->unpack(f->s, f->list, 1, now_ns); b++)
		assert_true(b < 1000);
	setenv("GX_FAKE_CUDA_QUERY", "719", 1);
	for (end_ns = now_ns + 4000000; !f->s->ops->fault(f->s) && now_ns < end_ns;
	     now_ns += 1000) {
		assert_int_equal(f->s->ops->unpack(f->s, f->list, 1, now_ns), 0);
		f->s->ops->reap(f->s, now_ns);
	}
	unsetenv("GX_FAKE_CUDA_QUERY");
	unsetenv("GX_FAKE_CUDA_STOPPED");
	assert_int_equal(f->s->ops->fault(f->s), -EIO);
	assert_non_null(strstr(gx_gpu_why(), "719"));
	stream_reopen(f, GX_STREAM_UNPACK);
}

/* A launch that is waited for when it is made ends by what was posted before it. */
static void launch__blocking(void **state)
{
	struct fix *f = *state;

	setenv("GX_FAKE_CUDA_BLOCKING", "1", 1);
	for (unsigned i = 0; i < 5; i++) {
		struct gx_gpu_copy large = {f->dst + 1000, f->host + i, 300000};

		f->b[0].nr = f->used = 0;
		frag_add(f, 0, 1000);
		blocks_launch(f, 1); /* a job, which is out when the driver's copy comes */
		copy_wait(f, &large, 1);
		memcpy(f->want + 1000, large.src, 300000);
		assert_int_equal(block_wait(f, 0), GX_BLOCK_OK);
	}
	unsetenv("GX_FAKE_CUDA_BLOCKING");
	want_check(f);
}

/* --- without a backend --- */

static void unpack_name__all(void **state)
{
	assert_string_equal(gx_unpack_name(GX_UNPACK_AUTO), "auto");
	assert_string_equal(gx_unpack_name(GX_UNPACK_KERNEL), "kernel");
	assert_string_equal(gx_unpack_name(GX_UNPACK_RESIDENT), "resident");
	assert_string_equal(gx_unpack_name(GX_UNPACK_D2D), "d2d");
	assert_string_equal(gx_unpack_name(GX_UNPACK_HOST), "host");
	assert_string_equal(gx_unpack_name(GX_UNPACK_NONE), "none");
	assert_string_equal(gx_unpack_name(GX_UNPACK_HOST + 1), "?");
}

static void cuda_open__no_such_device(void **state)
{
	struct gx_gpu_cfg none = {.device = 4711};
	struct gx_gpu *out = NULL;

	assert_int_equal(gx_gpu_cuda_ops.open(&none, &out), -ENODEV);
	assert_null(out);
	assert_true(strlen(gx_gpu_why()) > 0);
}

static void host_open__gpu_modes_are_host(void **state)
{
	struct gx_gpu_cfg d2d = {.unpack = GX_UNPACK_D2D};
	struct gx_gpu *out = NULL;

	assert_int_equal(gx_gpu_host_ops.open(&d2d, &out), 0);
	assert_int_equal(out->unpack, GX_UNPACK_HOST);
	out->ops->close(out);
	gx_gpu_host_ops.close(NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static int group_open(void **state)
{
	int ret = (late_gpu_ns ? &late_gpu_ops : ops)->open(&cfg, &gpu);

	if (ret)
		print_error("%s: open: %d, %s\n", ops->name, ret, gx_gpu_why());
	return ret;
}

static int group_close(void **state)
{
	ops->close(gpu);
	return 0;
}

static int suite_run(const struct gx_gpu_ops *which, struct gx_gpu_cfg how)
{
	const struct CMUnitTest tests[] = {
		TEST(mem_alloc__zeroed),
		TEST(mem_alloc__too_much),
		TEST(mem_free__null),
		TEST(copy__told_by_a_later_flag),
		TEST(host_map__twice),
		TEST(host_map__pinned_by_the_driver),
		TEST(block_alloc__empty_and_aligned),
		TEST(unpack__no_blocks),
		TEST(unpack__no_descriptors),
		TEST(unpack__one_descriptor),
		TEST(unpack__zero_length),
		TEST(unpack__every_alignment),
		TEST(unpack__2047_equal),
		TEST(unpack__2048_odd),
		TEST(unpack__large_among_small),
		TEST(unpack__several_blocks),
		TEST(unpack__more_than_one_launch),
		TEST(unpack__again_and_again),
		TEST(unpack__many_segs),
		TEST(unpack__from_gpu_memory),
		TEST(unpack__every_alignment_from_gpu_memory),
		TEST(unpack__back_to_back_from_gpu_memory),
		TEST(unpack__bounds),
		TEST(unpack__garbage_lengths),
		TEST(unpack__no_such_seg),
		TEST(unpack__overlapping_segs),
		TEST(unpack__crc),
		TEST(unpack__crc_and_bounds),
		TEST(unpack__crc_every_alignment),
		TEST(unpack__crc_from_gpu_memory),
		TEST(copy__both_ways),
		TEST(copy__inside_the_gpu),
		TEST(copy__flag_alone),
		TEST(copy__after_unpack),
		TEST(copy__bad_address),
		TEST(stream_close__work_outstanding),
		TEST(stream_open__two_at_once),
		TEST(stream_mark__behind_the_work),
		TEST(stream_mark__refused),
		TEST(open__says_what_is_used),
	};
	char name[80];

	ops = which;
	cfg = how;
	snprintf(name, sizeof(name), "%s %s sms=%u delay=%u", ops->name, gx_unpack_name(cfg.unpack),
		 cfg.sms, (unsigned)late_gpu_ns);
	return cmocka_run_group_tests_name(name, tests, group_open, group_close);
}

static int late_run(void)
{
	const struct CMUnitTest tests[] = {
		TEST(late__unpack_touches_nothing_before),
		TEST(late__copy_touches_nothing_before),
		TEST(late__in_order_one_by_one),
		TEST(late__full_takes_no_more),
	};

	ops = &gx_gpu_host_ops;
	cfg = (struct gx_gpu_cfg){.unpack = GX_UNPACK_HOST};
	late_gpu_ns = 500;
	return cmocka_run_group_tests_name("host, late", tests, group_open, group_close);
}

static int auto_run(void)
{
	const struct CMUnitTest tests[] = {
		TEST(auto__by_load),	       TEST(resident__idle_between),
		TEST(resident__busy_for_long), TEST(resident__pool_rewritten),
		TEST(resident__lone_blocks),   TEST(resident__others_wait_bounded),
	};

	ops = &gx_gpu_cuda_ops;
	cfg = (struct gx_gpu_cfg){.unpack = GX_UNPACK_AUTO};
	return cmocka_run_group_tests_name("cuda auto", tests, group_open, group_close);
}

static int resident_run(struct gx_gpu_cfg how)
{
	const struct CMUnitTest tests[] = {
		TEST(resident__idle_between),
		TEST(resident__busy_for_long),
		TEST(resident__ring_full),
		TEST(resident__order_of_kinds),
		TEST(resident__lists_of_copies),
		TEST(resident__refused_blocks_keep_their_status),
		TEST(resident__pool_rewritten),
		TEST(resident__lone_blocks),
		TEST(resident__others_wait_bounded),
		TEST(resident__partly_placed),
	};

	ops = &gx_gpu_cuda_ops;
	cfg = how;
	return cmocka_run_group_tests_name("cuda resident, the ring", tests, group_open,
					   group_close);
}

/* Every mode, each with its kinds of streams. */
static int wrap_run(const char *from)
{
	const struct CMUnitTest tests[] = {
		TEST(wrap__every_kind),
		TEST(stream_close__work_outstanding),
		/* The ring is the stream's own, too. */
		TEST(wrap__blocks_alone),
		TEST(wrap__launches),
		TEST(auto__by_load),
		TEST(resident__ring_full),
		TEST(resident__order_of_kinds),
		TEST(resident__lists_of_copies),
		TEST(resident__refused_blocks_keep_their_status),
		TEST(resident__lone_blocks),
	};
	const struct CMUnitTest some[] = {tests[0], tests[1]};
	char name[80];
	int failed = 0;

	setenv("GX_COUNT_FROM", from, 1);
	wait_ns = 10000000000;
	ops = &gx_gpu_cuda_ops;
	for (unsigned mode = GX_UNPACK_AUTO; mode <= GX_UNPACK_HOST; mode++) {
		cfg = (struct gx_gpu_cfg){.unpack = mode};
		snprintf(name, sizeof(name), "%s from %s", gx_unpack_name(mode), from);
		failed +=
			mode == GX_UNPACK_AUTO || mode == GX_UNPACK_RESIDENT
				? cmocka_run_group_tests_name(name, tests, group_open, group_close)
				: cmocka_run_group_tests_name(name, some, group_open, group_close);
	}
	wait_ns = WAIT_NS;
	unsetenv("GX_COUNT_FROM");
	return failed;
}

/* The driver is tests/fake/fake_cuda.c: whoever puts it in the library path sets GX_FAKE_CUDA. */
static int fault_run(struct gx_gpu_cfg how)
{
	const struct CMUnitTest tests[] = {
		TEST(fault__sticks_and_says_why),
	};

	ops = &gx_gpu_cuda_ops;
	cfg = how;
	return cmocka_run_group_tests_name(gx_unpack_name(how.unpack), tests, group_open,
					   group_close);
}

static int ring_fault_run(void)
{
	const struct CMUnitTest tests[] = {
		TEST(fault__seen_by_who_tries),
		TEST(launch__blocking),
	};

	ops = &gx_gpu_cuda_ops;
	cfg = (struct gx_gpu_cfg){.unpack = GX_UNPACK_RESIDENT};
	return cmocka_run_group_tests_name("cuda resident, faults", tests, group_open, group_close);
}

static int share_run(void)
{
	const struct CMUnitTest tests[] = {
		TEST(mem_alloc_at__in_reserved_addresses),
		TEST(mem_dmabuf__a_descriptor_or_a_reason),
		TEST(mem_export__of_a_part),
		TEST(mem_export__each_allocation_has_its_id),
		TEST(mem_import__in_another_process),
		TEST(mem_import__lies_are_refused),
	};

	ops = &gx_gpu_cuda_ops;
	cfg = (struct gx_gpu_cfg){.unpack = GX_UNPACK_KERNEL};
	return cmocka_run_group_tests_name("shared", tests, group_open, group_close);
}

static int common_run(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unpack_name__all),
		cmocka_unit_test(cuda_open__no_such_device),
		cmocka_unit_test(host_open__gpu_modes_are_host),
	};

	return cmocka_run_group_tests_name("no backend", tests, NULL, NULL);
}

static int host_main(void)
{
	const struct gx_gpu_ops *h = &gx_gpu_host_ops;
	int failed = common_run();

	failed += suite_run(h, (struct gx_gpu_cfg){.unpack = GX_UNPACK_HOST});
	late_gpu_ns = 20000;
	failed += suite_run(h, (struct gx_gpu_cfg){.unpack = GX_UNPACK_HOST});
	late_gpu_ns = 0;
	failed += suite_run(h, (struct gx_gpu_cfg){.unpack = GX_UNPACK_NONE});
	return failed + late_run();
}

static int wraps_run(void)
{
	return wrap_run("0x7fffffe8") + wrap_run("0xffffffe8");
}

static int residents_run(void)
{
	return resident_run((struct gx_gpu_cfg){.unpack = GX_UNPACK_RESIDENT}) +
	       resident_run((struct gx_gpu_cfg){.unpack = GX_UNPACK_RESIDENT, .sms = 1}) +
	       resident_run((struct gx_gpu_cfg){.unpack = GX_UNPACK_RESIDENT, .sms = 1000});
}

/* @only: "wrap", "resident", "ring_faults", or NULL: all */
static int cuda_main(const char *only)
{
	const struct gx_gpu_ops *c = &gx_gpu_cuda_ops;
	int failed = 0;

	if (c->open(&cfg, &gpu)) {
		printf("no CUDA backend: %s\n", gx_gpu_why());
		/* A GPU that is there and does not open is a failure, a missing one is not. */
		exit(strcmp(gx_gpu_why(), "built without nvcc") && common_cuda_count() ? 1 : 77);
	}
	c->close(gpu);
	if (only && !strcmp(only, "wrap"))
		return wraps_run();
	if (only && !strcmp(only, "resident"))
		return residents_run();
	if (only && !strcmp(only, "ring_faults"))
		return ring_fault_run();
	failed += common_run();
	failed += share_run();
	failed += suite_run(c, (struct gx_gpu_cfg){.unpack = GX_UNPACK_KERNEL});
	failed += suite_run(c, (struct gx_gpu_cfg){.unpack = GX_UNPACK_KERNEL, .sms = 1});
	failed += suite_run(c, (struct gx_gpu_cfg){.unpack = GX_UNPACK_KERNEL, .sms = 1000});
	failed += suite_run(c, (struct gx_gpu_cfg){.unpack = GX_UNPACK_RESIDENT});
	failed += suite_run(c, (struct gx_gpu_cfg){.unpack = GX_UNPACK_RESIDENT, .sms = 1});
	failed += suite_run(c, (struct gx_gpu_cfg){.unpack = GX_UNPACK_RESIDENT, .sms = 1000});
	failed += suite_run(c, (struct gx_gpu_cfg){.unpack = GX_UNPACK_AUTO});
	failed += suite_run(c, (struct gx_gpu_cfg){.unpack = GX_UNPACK_D2D});
	failed += suite_run(c, (struct gx_gpu_cfg){.unpack = GX_UNPACK_HOST});
	failed += suite_run(c, (struct gx_gpu_cfg){.unpack = GX_UNPACK_NONE});
	failed += auto_run();
	failed += residents_run();
	failed += wraps_run();
	if (getenv("GX_FAKE_CUDA")) {
		failed += fault_run((struct gx_gpu_cfg){.unpack = GX_UNPACK_KERNEL});
		failed += fault_run((struct gx_gpu_cfg){.unpack = GX_UNPACK_RESIDENT});
		failed += fault_run((struct gx_gpu_cfg){.unpack = GX_UNPACK_D2D});
		failed += fault_run((struct gx_gpu_cfg){.unpack = GX_UNPACK_HOST});
		failed += ring_fault_run();
	}
	return failed;
}

int main(int argc, char **argv)
{
	int failed;

	if (argc < 2 || !strcmp(argv[1], "host")) {
		failed = host_main();
	} else if (!strcmp(argv[1], "cuda")) {
		failed = cuda_main(argc > 2 ? argv[2] : NULL);
	} else if (!strcmp(argv[1], "import") &&
		   argc == 4) { /* by mem_import__in_another_process */
		failed = import_main(atoi(argv[2]), strtoull(argv[3], NULL, 10));
	} else {
		fprintf(stderr, "usage: %s [host|cuda [wrap|resident|ring_faults]]\n", argv[0]);
		return 2;
	}
	return failed ? 1 : 0;
}
