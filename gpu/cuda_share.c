/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a GPU that other processes or a NIC's driver use, whoever allocated it. The driver says
 * what it is:
 *
 * - mapped allocations of cuMemCreate, as gx's own are and PyTorch's expandable segments: one or
 *   many, one after another. Each is a descriptor. The importer maps them in one range.
 * - one allocation of cuMemAlloc (cudaMalloc): a handle of cudaIpc, and an offset.
 * - of a pool (cudaMallocAsync): refused.
 *
 * Control path, any thread. Every slot makes the device's primary context current and restores the
 * context before it.
 */
#include "chunks.h"
#include "cuda_priv.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- allocations of cuMemCreate ---- */

struct piece {
	unsigned long long base; /* where it is mapped, from its first byte on: the driver maps
				    whole allocations only (580) */
	size_t len;
	unsigned long long handle; /* ours, until cuMemRelease() */
};

/* The allocation that is mapped at @at. */
static int piece_get(unsigned long long at, struct piece *p)
{
	int ret = CUDA_TRY(cuMemGetAddressRange_v2, &p->base, &p->len, at);

	return ret ? ret : CUDA_TRY(cuMemRetainAllocationHandle, &p->handle, (void *)(uintptr_t)at);
}

/* Return: 0, -EOPNOTSUPP with the cure. */
static int piece_check(const struct piece *p)
{
	struct cuda_mem_prop prop = {0};
	int ret = CUDA_TRY(cuMemGetAllocationPropertiesFromHandle, (void *)&prop, p->handle);

	if (ret)
		return -EOPNOTSUPP;
	if (prop.handle_types & GX_CU_HANDLE_POSIX_FD)
		return 0;
	gx_gpu_why_set("cuMemCreate() made it without a descriptor to share (handle types %#x): "
		       "PyTorch must not have TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=0, other programs "
		       "need CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
		       prop.handle_types);
	return -EOPNOTSUPP;
}

static int piece_fd(const struct piece *p, int *fd)
{
	unsigned res = cu.cuMemExportToShareableHandle(fd, p->handle, GX_CU_HANDLE_POSIX_FD, 0);

	if (cuda_try(res, res == GX_CU_ERROR_OPERATING_SYSTEM
				  ? "cuMemExportToShareableHandle (ulimit -n?)"
				  : "cuMemExportToShareableHandle"))
		return -EOPNOTSUPP;
	fcntl(*fd, F_SETFD, FD_CLOEXEC);
	return 0;
}

/* The piece at @at is one of the range that @out names. If it is all of it, its descriptor is. */
static int export_piece(const struct piece *p, unsigned long long at, unsigned long long end,
			struct gx_gpu_handle *out)
{
	int ret = piece_check(p);

	if (ret)
		return ret;
	if (!out->len) {
		out->off = at - p->base;
		ret = CUDA_TRY(cuPointerGetAttribute, &out->id, GX_CU_POINTER_BUFFER_ID, at);
	}
	if (!ret && !out->len && p->len - out->off >= end - at) {
		out->kind = GX_GPU_SHARE_FD;
		ret = piece_fd(p, &out->fd);
	}
	out->len += p->len;
	return ret ? -EOPNOTSUPP : 0;
}

static int export_pieces(unsigned long long ptr, size_t len, struct gx_gpu_handle *out)
{
	struct gx_gpu_handle h = {.kind = GX_GPU_SHARE_CHUNKS, .fd = -1};
	unsigned long long at = ptr, end = ptr + len;
	struct piece p;
	int ret = 0;

	while (!ret && at < end) {
		if (piece_get(at, &p))
			return -EOPNOTSUPP;
		ret = export_piece(&p, at, end, &h);
		cu.cuMemRelease(p.handle);
		at = p.base + p.len;
	}
	if (!ret)
		*out = h;
	return ret;
}

/* The next ones of a range, for one message. Return: how many, -EOPNOTSUPP with the reason; those in
 * @c need closing either way, *nr of them. */
static int chunks_fill(unsigned long long *at, unsigned long long end, struct chunk c[],
		       unsigned *nr)
{
	struct piece p;
	int ret = 0;

	for (*nr = 0; !ret && *at < end && *nr < CHUNKS_MSG; *at = p.base + p.len) {
		if (piece_get(*at, &p))
			return -EOPNOTSUPP;
		ret = piece_fd(&p, &c[*nr].fd);
		cu.cuMemRelease(p.handle);
		c[*nr].len = p.len;
		*nr += !ret;
	}
	return ret;
}

static int chunks_put(unsigned long long at, unsigned long long end, int sock)
{
	struct chunk c[CHUNKS_MSG];
	int ret = 0, err;
	unsigned nr;

	while (!ret && at < end) {
		ret = chunks_fill(&at, end, c, &nr);
		err = ret ? 0 : chunks_send(sock, c, nr);
		for (unsigned i = 0; i < nr; i++)
			close(c[i].fd);
		if (!err)
			continue;
		gx_gpu_why_set("its allocations are too many for one socket: %s%s", strerror(-err),
			       err == -EAGAIN ? ": raise net.core.wmem_max, or register it in parts"
					      : " (ulimit -n?)");
		ret = -EOPNOTSUPP;
	}
	return ret;
}

static int cuda_share_chunks(struct gx_gpu *gpu, const void *ptr, size_t len, int *fd)
{
	struct cuda_gpu *g = cuda_of(gpu);
	int ends[2], ret = chunks_open(ends);
	struct cuda_prev prev;

	if (ret) {
		gx_gpu_why_set("no socket pair: %s (ulimit -n?)", strerror(-ret));
		return -EOPNOTSUPP;
	}
	prev = cuda_enter(g);
	ret = chunks_put(cuda_ptr(ptr), cuda_ptr(ptr) + len, ends[1]);
	cuda_leave(g, prev);
	close(ends[1]);
	if (ret)
		close(ends[0]);
	else
		*fd = ends[0];
	return ret;
}

/* ---- other memory ---- */

/* @base, @len: the allocation. */
static int export_ipc(unsigned long long ptr, unsigned long long base, size_t len,
		      struct gx_gpu_handle *out)
{
	struct gx_gpu_handle h = {
		.kind = GX_GPU_SHARE_IPC, .fd = -1, .off = ptr - base, .len = len};
	struct CUipcMemHandle_st ipc;
	int ret = CUDA_TRY(cuIpcGetMemHandle, &ipc, ptr);

	if (!ret)
		ret = CUDA_TRY(cuPointerGetAttribute, &h.id, GX_CU_POINTER_BUFFER_ID, ptr);
	if (ret)
		return -EOPNOTSUPP;
	_Static_assert(sizeof(ipc) == sizeof(h.ipc), "the driver's 64 opaque bytes");
	memcpy(h.ipc, &ipc, sizeof(ipc));
	*out = h;
	return 0;
}

static bool is_of_pool(unsigned long long ptr)
{
	void *pool = NULL;

	return !cu.cuPointerGetAttribute(&pool, GX_CU_POINTER_MEMPOOL, ptr) && pool;
}

static int export_any(struct cuda_gpu *g, unsigned long long ptr, size_t len,
		      struct gx_gpu_handle *out)
{
	unsigned long long base = 0;
	size_t all = 0;

	if (cuda_device_of(g, ptr, len) < 0)
		return -EOPNOTSUPP;
	if (cuda_is_mapped(ptr))
		return export_pieces(ptr, len, out);
	if (is_of_pool(ptr)) {
		gx_gpu_why_set(
			"it is of a stream-ordered pool (cudaMallocAsync), which gx does not "
			"share: allocate by cudaMalloc or cuMemCreate; PyTorch: "
			"PYTORCH_CUDA_ALLOC_CONF=backend:native");
		return -EOPNOTSUPP;
	}
	if (CUDA_TRY(cuMemGetAddressRange_v2, &base, &all, ptr))
		return -EOPNOTSUPP;
	return export_ipc(ptr, base, all, out);
}

static int cuda_share_export(struct gx_gpu *gpu, const void *ptr, size_t len,
			     struct gx_gpu_handle *out)
{
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_prev prev = cuda_enter(g);
	int ret = export_any(g, cuda_ptr(ptr), len, out);

	cuda_leave(g, prev);
	return ret;
}

static int cuda_share_dmabuf(struct gx_gpu *gpu, const void *ptr, size_t len, int *fd)
{
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_prev prev;
	int ret, got = -1;

	if (!g->dmabuf || !g->vmm_rdma) {
		gx_gpu_why_set("%s, or its driver, gives no dma-buf of its memory to a NIC",
			       g->gpu.name);
		return -EOPNOTSUPP;
	}
	prev = cuda_enter(g);
	ret = CUDA_TRY(cuMemGetHandleForAddressRange, &got, cuda_ptr(ptr), len,
		       GX_CU_RANGE_DMABUF_FD, 0);
	cuda_leave(g, prev);
	if (ret)
		return -EOPNOTSUPP;
	fcntl(got, F_SETFD, FD_CLOEXEC);
	*fd = got;
	return 0;
}

/* ---- of another process ---- */

/* The driver refuses to map another length than that of the allocation. */
static int import_chunk(struct cuda_range *r, const struct chunk *c)
{
	unsigned long long handle;
	int ret;

	if (c->len > r->len - r->mapped) {
		gx_gpu_why_set("its allocations are longer than the %zu bytes that were named",
			       r->len);
		return -EPROTO;
	}
	ret = CUDA_TRY(cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)c->fd,
		       GX_CU_HANDLE_POSIX_FD);
	if (ret)
		return ret;
	ret = cuda_range_map(r, handle, c->len);
	cu.cuMemRelease(handle);
	return ret;
}

static int import_message(struct cuda_range *r, int sock)
{
	struct chunk c[CHUNKS_MSG];
	int n = chunks_recv(sock, c), ret = 0;

	if (n < 0) {
		gx_gpu_why_set("the descriptors of its allocations do not come: %s%s", strerror(-n),
			       n == -EMFILE ? " (ulimit -n?)" : "");
		return -EPROTO;
	}
	for (int i = 0; i < n; i++) {
		if (!ret)
			ret = import_chunk(r, &c[i]);
		close(c[i].fd);
	}
	return ret;
}

static int import_fd(struct cuda_gpu *g, const struct gx_gpu_handle *h, struct cuda_range *r)
{
	int ret;

	r->len = h->len;
	ret = cuda_range_reserve(r);
	if (!ret && h->kind == GX_GPU_SHARE_FD)
		ret = import_chunk(r, &(struct chunk){h->len, h->fd});
	while (!ret && r->mapped < r->len) /* each message maps some */
		ret = import_message(r, h->fd);
	return ret ? ret : cuda_range_allow(g, r);
}

static int import_ipc(const struct gx_gpu_handle *h, struct cuda_range *r)
{
	unsigned long long base = 0;
	struct CUipcMemHandle_st ipc;
	int ret;

	memcpy(&ipc, h->ipc, sizeof(ipc));
	ret = CUDA_TRY(cuIpcOpenMemHandle_v2, &r->base, ipc, GX_CU_IPC_LAZY_PEER_ACCESS);
	if (ret) {
		r->base = 0;
		return ret;
	}
	r->ipc = true;
	/* The peer may lie about its length. */
	ret = CUDA_TRY(cuMemGetAddressRange_v2, &base, &r->len, r->base);
	if (!ret && (base != r->base || r->len < h->len)) {
		gx_gpu_why_set("the handle opens %zu bytes, not the %llu that were named", r->len,
			       (unsigned long long)h->len);
		ret = -EPROTO;
	}
	return ret;
}

static int import_kind(struct cuda_gpu *g, const struct gx_gpu_handle *h, struct cuda_range *r)
{
	switch (h->kind) {
	case GX_GPU_SHARE_FD:
	case GX_GPU_SHARE_CHUNKS:
		return import_fd(g, h, r);
	case GX_GPU_SHARE_IPC:
		return import_ipc(h, r);
	}
	gx_gpu_why_set("a handle of unknown kind %u", h->kind);
	return -EPROTO;
}

static int cuda_share_import(struct gx_gpu *gpu, const struct gx_gpu_handle *h, size_t len,
			     void **out)
{
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_range *r;
	struct cuda_prev prev;
	int ret;

	if (len > h->len || h->off > h->len - len) {
		gx_gpu_why_set("a handle of %llu bytes does not hold %zu at %llu",
			       (unsigned long long)h->len, len, (unsigned long long)h->off);
		return -EPROTO;
	}
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	prev = cuda_enter(g);
	ret = import_kind(g, h, r);
	if (ret)
		cuda_range_close(r);
	cuda_leave(g, prev);
	if (ret)
		return ret == -ENODEV ? -EPROTO : ret;
	r->user = r->base + h->off;
	cuda_range_add(r);
	*out = (void *)(uintptr_t)r->user;
	return 0;
}

static void cuda_share_unimport(struct gx_gpu *gpu, void *ptr)
{
	struct cuda_range *r = cuda_is_lost(cuda_of(gpu)) ? NULL : cuda_range_take(cuda_ptr(ptr));
	struct cuda_prev prev;

	if (!r)
		return;
	prev = cuda_enter(cuda_of(gpu));
	cuda_range_close(r);
	cuda_leave(cuda_of(gpu), prev);
}

const struct gx_gpu_share_ops cuda_share_ops = {
	.export = cuda_share_export,
	.chunks = cuda_share_chunks,
	.dmabuf = cuda_share_dmabuf,
	.import = cuda_share_import,
	.unimport = cuda_share_unimport,
};
