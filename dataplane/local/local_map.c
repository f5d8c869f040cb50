/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the ends of the local link map: descriptors of ours for a peer on this host, and mappings of
 * the peer's memory, unless an earlier connection with that process has made them (local_peer.c). This code checks every descriptor of a peer before it maps
 * it. (A peer may still punch holes into memory on huge pages. The control path exchanges
 * descriptors only with our own user and with the users of gx_opts.allow_uids.) Runs on the control
 * thread.
 */
#include "local/local.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ  22 /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

#define LOCAL_POPULATE_MAX (4ull << 30) /* page faults fill larger mappings */

/* ---- Our memory for the peer ---- */

/* Made for one peer, and not kept: a program may have more tensors than descriptors. */
static int gpu_export_fd(const struct gx_mem *mem)
{
	struct gx_gpu_handle h = {.fd = -1};
	int ret = mem->gpu->share->export(mem->gpu, mem->addr, mem->len, &h);

	if (!ret && h.id == mem->share.id && h.kind == GX_GPU_SHARE_CHUNKS)
		ret = mem->gpu->share->chunks(mem->gpu, mem->addr, mem->len, &h.fd);
	if (!ret && h.id == mem->share.id)
		return h.fd;
	if (h.fd >= 0)
		close(h.fd);
	return gx_fail(-EOPNOTSUPP, "no descriptor of its memory: %s",
		       ret ? gx_gpu_why() : "the program freed it, and other memory is there now");
}

/* A peer that may not write gets a descriptor that cannot write. */
int local_export_fd(const struct gx_mem *mem, unsigned access)
{
	char path[32];
	int fd;

	if (mem->kind == GX_MEM_CUDA && mem->fd < 0)
		return gpu_export_fd(mem);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", mem->fd);
	fd = access & GX_ACCESS_PUT ? fcntl(mem->fd, F_DUPFD_CLOEXEC, 0)
				    : open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? gx_fail(-errno, "no descriptor for region '%s': %s (ulimit -n?)", mem->name,
				strerror(errno))
		      : fd;
}

/* Fault pages in now rather than on a polling core, if the peer has allocated them already. */
static void map_populate(int fd, void *base, size_t len, bool writable)
{
	struct stat st;

	if (len > LOCAL_POPULATE_MAX || fstat(fd, &st) || (uint64_t)st.st_blocks * 512 < len)
		return;
	madvise(base, len, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
}

/* Any GPU of ours: memory registered with one is registered with all. */
struct gx_gpu *local_gpu_any(const struct gx *gx)
{
	for (unsigned i = 0; i < GX_GPUS_MAX; i++)
		if (gx->gpu[i])
			return gx->gpu[i];
	return NULL;
}

void local_map_fill(struct local_map *map, const struct gx_hello_region *r, struct local_mem *mem,
		    uint64_t off, uint64_t len)
{
	*map = (struct local_map){.token = r->token,
				  .len = len,
				  .access = r->access,
				  .addr = mem->addr + (mem->is_gpu ? 0 : r->export.map_off) + off,
				  .gpu = mem->gpu,
				  .is_gpu = mem->is_gpu,
				  .place = mem->place,
				  .mem = mem};
	for (unsigned d = 0; d < GX_GPUS_MAX; d++)
		map->seen[d] = mem->view[d].addr ? mem->view[d].addr + off : NULL;
}

/* Only writable mappings can be registered. If that fails, packets carry operations between it and
 * GPUs. */
static void host_register(const struct gx *gx, struct local_mem *mem)
{
	struct gx_gpu *gpu = local_gpu_any(gx);

	if (!mem->gpu && gpu && mem->writable &&
	    !gpu->ops->host_map(gpu, mem->addr, mem->as.map_len))
		mem->gpu = gpu;
}

/* Return: 0, -EPROTO, -ENOMEM with gx_error(). */
static int host_map(struct gx_conn *c, const char *name, struct local_mem *want, int fd,
		    struct local_mem **out)
{
	const struct gx_hello_export *e = &want->as;
	void *base = mmap(NULL, e->map_len, PROT_READ | (want->writable ? PROT_WRITE : 0),
			  MAP_SHARED, fd, 0);

	if (base == MAP_FAILED)
		return gx_fail(
			errno == ENOMEM ? -ENOMEM : -EPROTO,
			"cannot map %llu bytes of region '%s': %s; gx_connect_opts.link packet needs no "
			"mapping",
			(unsigned long long)e->map_len, name, strerror(errno));
	map_populate(fd, base, e->map_len, want->writable);
	want->addr = base;
	host_register(c->gx, want);
	*out = local_mem_add(c, want);
	if (*out)
		return 0;
	local_mem_unmap(want);
	return gx_fail(-ENOMEM, "no memory for a mapping");
}

/* Return: 0, -EPROTO, -ENOMEM with gx_error(). */
static int region_map(struct gx_conn *c, const struct gx_hello_region *r, int fd,
		      struct local_mem **out)
{
	struct local_mem want = {.as = r->export, .writable = r->access & GX_ACCESS_PUT};
	struct stat st;

	if (gx_memfd_check(fd, r->export.map_len) || fstat(fd, &st))
		return gx_fail(-EPROTO, "region '%s' is not a sealed memfd of %llu bytes", r->name,
			       (unsigned long long)r->export.map_len);
	want.dev = st.st_dev;
	want.ino = st.st_ino;
	*out = local_mem_find(c, &want);
	if (!*out)
		return host_map(c, r->name, &want, fd, out);
	host_register(c->gx, *out); /* for a GPU that was opened since */
	return 0;
}

/* Fill @v for @gpu: by an earlier import that @gpu reaches, else by its own import. */
static void view_make(const struct local_mem *mem, struct gx_gpu *gpu,
		      const struct gx_gpu_handle *h, uint64_t len, struct local_view *v)
{
	void *ptr;

	for (unsigned d = 0; d < GX_GPUS_MAX; d++) {
		const struct local_view *other = &mem->view[d];

		if (!other->by || gpu->mem->reach(gpu, other->addr))
			continue;
		v->addr = other->addr;
		return;
	}
	if (gpu->share->import(gpu, h, len, &ptr))
		return;
	v->addr = ptr;
	v->by = gpu;
}

/* Make a view for each of our GPUs, also those that were opened since the memory was mapped.
 * Between it and our host memory the GPU copies on which it lies, if that is ours, else the first
 * that reaches it. */
static void views_make(const struct gx *gx, struct local_mem *mem, const struct gx_gpu_handle *h,
		       uint64_t len)
{
	for (unsigned d = 0; d < GX_GPUS_MAX; d++) {
		struct local_view *v = &mem->view[d];

		if (!gx->gpu[d] || gx->gpu_ret[d])
			continue;
		if (!v->addr)
			view_make(mem, gx->gpu[d], h, len, v);
		if (v->addr && (!mem->gpu || local_place((int)d) == mem->place)) {
			mem->gpu = gx->gpu[d];
			mem->addr = v->addr;
			mem->place = local_place(mem->gpu->mem->device(mem->gpu, v->addr, 1));
		}
	}
}

/* NULL: with gx_error(); gx has logged the reason. */
static struct local_mem *gpu_import(struct gx_conn *c, const struct gx_hello_region *r,
				    struct local_mem *want, const struct gx_gpu_handle *h)
{
	struct local_mem *mem;

	views_make(c->gx, want, h, r->len);
	if (!want->gpu) {
		gx_fail(-EOPNOTSUPP, "%s", gx_gpu_why());
		gx_warn("region '%s' of %s: %s; packets go there", r->name, c->peer_name,
			gx_error());
		return NULL;
	}
	mem = local_mem_add(c, want);
	if (!mem) {
		gx_fail(-ENOMEM, "no memory for a mapping");
		local_mem_unmap(want);
	}
	return mem;
}

/* Map memory of the peer's GPU. NULL: no GPU of ours reaches it, with gx_error(). */
static struct local_mem *region_import(struct gx_conn *c, const struct gx_hello_region *r, int fd)
{
	const struct gx_hello_export *e = &r->export;
	struct local_mem want = {.as = *e, .writable = true, .is_gpu = true};
	static const uint8_t kind[] = {[GX_EXPORT_VMM] = GX_GPU_SHARE_FD,
				       [GX_EXPORT_CUDA_IPC] = GX_GPU_SHARE_IPC,
				       [GX_EXPORT_CHUNKS] = GX_GPU_SHARE_CHUNKS};
	struct gx_gpu_handle h = {.kind = kind[e->kind],
				  .fd = fd,
				  .id = e->map_id,
				  .off = e->map_off,
				  .len = e->map_len};
	struct local_mem *mem;

	if (!local_gpu_any(c->gx) || !(r->access & GX_ACCESS_PUT)) {
		gx_fail(-EOPNOTSUPP, "%s",
			local_gpu_any(c->gx) ? "its owner does not let peers map it"
					     : "this end has opened no GPU (gx_gpu_open())");
		return NULL;
	}
	memcpy(h.ipc, e->handle, sizeof(h.ipc));
	mem = local_mem_find(c, &want);
	if (mem) {
		views_make(c->gx, mem, &h, r->len);
		return mem;
	}
	if (fd >= 0 || !export_is_fd(e->kind))
		return gpu_import(c, r, &want, &h);
	gx_fail(-EBADF, "its descriptor is not there");
	return NULL;
}

int local_mem_map(struct gx_conn *c, const struct gx_hello_region *r, int fd,
		  struct local_mem **out)
{
	if (r->export.kind == GX_EXPORT_MEMFD)
		return region_map(c, r, fd, out);
	*out = region_import(c, r, fd);
	return *out ? 0 : -EOPNOTSUPP;
}
