/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU as a GPU backend: the calling core executes blocks and copies in place. Control slots are
 * for any thread, [core] slots for the thread that owns the stream.
 */
#include "gpu_priv.h"
#include "gx_internal/warm.h"
#include "view_core.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HOST_STREAM_MIN GX_WARM_UNIT_B /* shorter copies go through the cache */
#define HOST_HUGE	((size_t)2 << 20)
#define HOST_PAGE	((size_t)4096)

/* owner: poll core */
struct host_stream {
	struct gx_gpu_stream stream;
	struct gx_warm warm; /* where it copied to */
};

static struct host_stream *host_stream_of(struct gx_gpu_stream *s)
{
	return GX_CONTAINER_OF(s, struct host_stream, stream);
}

static size_t host_map_len(size_t len)
{
	return len >= HOST_HUGE ? GX_ALIGN_UP(len, HOST_HUGE) : GX_ALIGN_UP(len + !len, HOST_PAGE);
}

/* Ordinary pages on a 2 MiB boundary, where the kernel may use huge ones. */
static void *host_mem_plain(size_t len)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	uint8_t *raw = mmap(NULL, len + HOST_HUGE, PROT_READ | PROT_WRITE, flags, -1, 0);
	uint8_t *mem;

	if (raw == MAP_FAILED)
		return NULL;
	mem = (uint8_t *)GX_ALIGN_UP((uintptr_t)raw, HOST_HUGE);
	if (mem > raw)
		munmap(raw, mem - raw);
	if (raw + HOST_HUGE > mem)
		munmap(mem + len, raw + HOST_HUGE - mem);
	madvise(mem, len, MADV_HUGEPAGE);
	return mem;
}

static int host_mem_alloc(struct gx_gpu *gpu, size_t len, void **out)
{
	size_t map_len = host_map_len(len);
	void *mem = NULL;

	if (map_len < len || map_len > SIZE_MAX - HOST_HUGE)
		return -ENOMEM;
	if (map_len >= HOST_HUGE)
		mem = gx_huge_get(map_len);
	if (!mem)
		mem = host_mem_plain(map_len);
	if (!mem)
		return -ENOMEM;
	*out = mem;
	return 0;
}

static void host_mem_free(struct gx_gpu *gpu, void *ptr, size_t len)
{
	if (ptr)
		munmap(ptr, host_map_len(len));
}

static int host_mem_alloc_on(struct gx_gpu *gpu, int device, size_t len, void **out)
{
	gx_gpu_why_set("the CPU does not allocate memory of a GPU");
	return -EOPNOTSUPP;
}

static int host_mem_device(struct gx_gpu *gpu, const void *ptr, size_t len)
{
	return -EOPNOTSUPP;
}

static int host_addr_reserve(struct gx_gpu *gpu, size_t len, void **out)
{
	gx_gpu_why_set("host memory has its own arena");
	return -EOPNOTSUPP;
}

static void host_addr_free(struct gx_gpu *gpu, void *base, size_t len)
{
}

static int host_mem_alloc_at(struct gx_gpu *gpu, void *at, size_t len)
{
	return -EOPNOTSUPP;
}

static int host_mem_reach(struct gx_gpu *gpu, const void *ptr)
{
	gx_gpu_why_set("the CPU does not read memory of a GPU");
	return -EXDEV;
}

static int host_mem_dmabuf(struct gx_gpu *gpu, const void *ptr, size_t len, int *fd)
{
	gx_gpu_why_set("host memory is mapped for DMA by its address");
	return -EOPNOTSUPP;
}

static int host_mem_export(struct gx_gpu *gpu, const void *ptr, size_t len,
			   struct gx_gpu_handle *out)
{
	gx_gpu_why_set("host memory is named by the memfd that it lies in, not by its backend");
	return -EOPNOTSUPP;
}

static int host_mem_chunks(struct gx_gpu *gpu, const void *ptr, size_t len, int *fd)
{
	return host_mem_export(gpu, ptr, len, NULL);
}

static int host_mem_import(struct gx_gpu *gpu, const struct gx_gpu_handle *h, size_t len,
			   void **out)
{
	gx_gpu_why_set("the CPU cannot map memory of a GPU");
	return -EOPNOTSUPP;
}

static void host_mem_unimport(struct gx_gpu *gpu, void *ptr)
{
}

static int host_host_map(struct gx_gpu *gpu, void *ptr, size_t len)
{
	return 0;
}

static bool host_host_unmap(struct gx_gpu *gpu, void *ptr, size_t len)
{
	return true;
}

static void *host_pinned_alloc(struct gx_gpu *gpu, size_t len)
{
	size_t room = GX_ALIGN_UP(len + !len, GX_CACHE_LINE);
	void *mem = aligned_alloc(GX_CACHE_LINE, room);

	if (mem)
		memset(mem, 0, room);
	else
		gx_gpu_why_set("out of memory");
	return mem;
}

static void host_pinned_free(struct gx_gpu *gpu, void *ptr)
{
	free(ptr);
}

static int host_stream_open(struct gx_gpu *gpu, enum gx_stream_kind kind,
			    struct gx_gpu_stream **out)
{
	struct host_stream *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->stream.ops = gpu->stream;
	s->stream.gpu = gpu;
	*out = &s->stream;
	return 0;
}

static void host_copy_one(struct host_stream *s, void *dst, const void *src, size_t len)
{
	if (len < HOST_STREAM_MIN || gx_warm_write(&s->warm, dst, len))
		gx_copy(dst, src, len);
	else
		gx_copy_stream(dst, src, len);
}

static void host_block_run(struct host_stream *s, struct gx_block *b)
{
	bool copies = s->stream.gpu->unpack == GX_UNPACK_HOST;
	uint32_t status = GX_BLOCK_OK;

	for (uint32_t i = 0; i < b->nr && copies; i++) {
		void *dst = gx_block_dst(b, i);

		if (!dst)
			status = GX_MAX(status, GX_BLOCK_BOUNDS);
		else if (!gx_block_crc_ok(b, i))
			status = GX_MAX(status, GX_BLOCK_CRC);
		else
			host_copy_one(s, dst, gx_block_src(b, i), b->desc[i].len);
	}
	gx_block_status_set(b, status);
}

static bool host_gather_fits(const struct gx_gpu_gather *g, uint32_t i)
{
	return g->pairs[i].src < g->nr_src && g->pairs[i].dst < g->nr_dst;
}

static void host_gather_row(struct host_stream *s, const struct gx_gpu_gather *g, uint32_t i)
{
	uint8_t *dst = (uint8_t *)g->dst + (uint64_t)g->pairs[i].dst * g->row_b;

	host_copy_one(s, dst, (const uint8_t *)g->src + (uint64_t)g->pairs[i].src * g->row_b,
		      g->row_b);
}

static void host_move(struct host_stream *s, const struct gx_move *m)
{
	struct gx_view_args a;

	gx_view_plan(&a, m);
	for (uint32_t i = m->first; i < m->first + m->nr; i++)
		host_copy_one(s, (void *)(uintptr_t)gx_view_place(&a.dst, i),
			      (const void *)(uintptr_t)gx_view_place(&a.src, i), m->piece_b);
}

static void host_gather_run(struct host_stream *s, const struct gx_gpu_gather *g)
{
	uint32_t bad = 0;

	if (g->move) {
		host_move(s, g->move);
		return;
	}

	for (uint32_t i = 0; i < g->nr; i++) {
		if (host_gather_fits(g, i))
			host_gather_row(s, g, i);
		else
			bad++;
	}
	*g->bad = bad;
}

static bool host_reap(struct gx_gpu_stream *stream, uint64_t now_ns)
{
	return false;
}

static bool host_stream_close(struct gx_gpu_stream *stream)
{
	free(host_stream_of(stream));
	return true;
}

static unsigned host_unpack(struct gx_gpu_stream *stream, struct gx_block *const blocks[],
			    unsigned n, uint64_t now_ns)
{
	n = GX_MIN(n, GX_UNPACK_BLOCKS_MAX);
	for (unsigned i = 0; i < n; i++) {
		assert(blocks[i]->nr <= GX_BLOCK_DESCS_MAX);
		host_block_run(host_stream_of(stream), blocks[i]);
	}
	return n;
}

static int host_copy(struct gx_gpu_stream *stream, const struct gx_gpu_copy list[], unsigned n,
		     uint32_t *done, uint32_t value, uint64_t now_ns)
{
	struct host_stream *s = host_stream_of(stream);

	for (unsigned i = 0; i < n; i++)
		host_copy_one(s, list[i].dst, list[i].src, list[i].len);
	if (done)
		__atomic_store_n(done, value, __ATOMIC_RELEASE);
	return 0;
}

static int host_gather(struct gx_gpu_stream *stream, const struct gx_gpu_gather *g, uint32_t *done,
		       uint32_t value, uint64_t now_ns)
{
	host_gather_run(host_stream_of(stream), g);
	__atomic_store_n(done, value, __ATOMIC_RELEASE);
	return 0;
}

static int host_call(struct gx_gpu_stream *stream, int (*fn)(void *arg, void *stream), void *arg,
		     uint32_t *done, uint32_t value, uint64_t now_ns)
{
	int ret = fn ? fn(arg, NULL) : 0;

	return ret || !done ? ret : host_copy(stream, NULL, 0, done, value, now_ns);
}

static int host_fault(struct gx_gpu_stream *s)
{
	return 0;
}

/* The CPU has no streams: the caller's earlier work is done. */
static int host_stream_mark(struct gx_gpu *gpu, void *stream, uint32_t *flag, uint32_t value)
{
	__atomic_store_n(flag, value, __ATOMIC_RELEASE);
	return 0;
}

static const struct gx_gpu_mem_ops host_mem_ops = {
	.alloc = host_mem_alloc,
	.free = host_mem_free,
	.alloc_on = host_mem_alloc_on,
	.device = host_mem_device,
	.reach = host_mem_reach,
	.addr_reserve = host_addr_reserve,
	.addr_free = host_addr_free,
	.alloc_at = host_mem_alloc_at,
};

static const struct gx_gpu_share_ops host_share_ops = {
	.export = host_mem_export,
	.chunks = host_mem_chunks,
	.dmabuf = host_mem_dmabuf,
	.import = host_mem_import,
	.unimport = host_mem_unimport,
};

static const struct gx_gpu_stream_ops host_stream_ops = {
	.open = host_stream_open,
	.close = host_stream_close,
	.unpack = host_unpack,
	.copy = host_copy,
	.gather = host_gather,
	.call = host_call,
	.reap = host_reap,
	.fault = host_fault,
};

static int host_open(const struct gx_gpu_cfg *cfg, struct gx_gpu **out)
{
	struct gx_gpu *gpu = calloc(1, sizeof(*gpu));

	if (!gpu)
		return -ENOMEM;
	gpu->ops = &gx_gpu_host_ops;
	gpu->mem = &host_mem_ops;
	gpu->share = &host_share_ops;
	gpu->stream = &host_stream_ops;
	gpu->device = -1;
	gpu->unpack = cfg->unpack == GX_UNPACK_NONE ? GX_UNPACK_NONE : GX_UNPACK_HOST;
	gpu->checks_crc = gpu->unpack == GX_UNPACK_HOST;
	snprintf(gpu->name, sizeof(gpu->name), "host (%s copies)", gx_copy_name());
	*out = gpu;
	return 0;
}

static void host_close(struct gx_gpu *gpu)
{
	free(gpu);
}

const struct gx_gpu_ops gx_gpu_host_ops = {
	.name = "host",
	.open = host_open,
	.close = host_close,
	.host_map = host_host_map,
	.host_unmap = host_host_unmap,
	.pinned_alloc = host_pinned_alloc,
	.pinned_free = host_pinned_free,
	.stream_mark = host_stream_mark,
};
