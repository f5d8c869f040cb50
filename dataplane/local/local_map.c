/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection's half of the local link: our memory that a peer on this host may map, descriptors
 * of it for the peer, and mappings of the peer's memory, unless an earlier connection with that
 * process has made them (local_peer.c). This code checks every descriptor of a peer before it maps
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

/* A peer that may not write gets a descriptor that cannot write. Return: it, -errno with gx_error(). */
static int export_fd(const struct gx_mem *mem)
{
	char path[32];
	int fd;

	if (mem->share.kind == GX_GPU_SHARE_CHUNKS) {
		int ret = mem->gpu->share->chunks(mem->gpu, mem->addr, mem->len, &fd);

		return ret ? gx_fail(ret, "no descriptors for region '%s': %s", mem->name,
				     gx_gpu_why())
			   : fd;
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", mem->fd);
	fd = mem->access & GX_ACCESS_PUT ? fcntl(mem->fd, F_DUPFD_CLOEXEC, 0)
					 : open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? gx_fail(-errno, "no descriptor for region '%s': %s (ulimit -n?)", mem->name,
				strerror(errno))
		      : fd;
}

static size_t rings_len(unsigned nr_lanes)
{
	return GX_ALIGN_UP(sizeof(struct local_rings) + nr_lanes * sizeof(struct local_ring),
			   GX_HUGE_PAGE);
}

static int rings_make(struct gx_conn *c)
{
	struct local_conn *l = local_conn_of(c);
	bool huge = false;

	l->rings_fd = gx_memfd("gx-rings", l->rings_b, &huge);
	if (l->rings_fd < 0)
		return gx_fail(l->rings_fd, "no memfd for notifications: %s",
			       strerror(-l->rings_fd));
	l->rx = mmap(NULL, l->rings_b, PROT_READ | PROT_WRITE, MAP_SHARED, l->rings_fd, 0);
	if (l->rx == MAP_FAILED) {
		l->rx = NULL;
		return gx_fail(-ENOMEM, "cannot map %zu bytes for notifications", l->rings_b);
	}
	/* Avoids page faults later; may fail. */
	madvise(l->rx, sizeof(*l->rx) + l->nr_lanes * sizeof(l->rx->ring[0]), MADV_POPULATE_WRITE);
	l->rx->hdr.magic = LOCAL_MAGIC;
	l->rx->hdr.version = LOCAL_VERSION;
	l->rx->hdr.nr_lanes = l->nr_lanes;
	l->fds[l->nr_fds++] = l->rings_fd;
	return 0;
}

int local_open(struct gx_conn *c, unsigned nr_lanes)
{
	struct local_conn *l = calloc(1, sizeof(*l));
	int ret;

	if (!l)
		return gx_fail(-ENOMEM, "no memory for a connection");
	c->link_state = l;
	c->maps = true;
	l->nr_lanes = nr_lanes;
	l->uid = (uid_t)-1;
	l->rings_b = rings_len(nr_lanes);
	ret = rings_make(c);
	for (unsigned i = 0; i < c->nr_told && !ret; i++) {
		int fd;

		/* Freed since the HELLO: local_revoke() found no rings then. */
		if (!c->told[i] || mem_is_dead(c->told[i]))
			l->rx->hdr.revoked |= 1ull << i;
		if (!(c->told_fds >> i & 1))
			continue;
		if (!c->told[i]) { /* the peer counts on its descriptor */
			ret = gx_fail(-EAGAIN,
				      "a region was freed while the connection was set up: "
				      "connect again");
			break;
		}
		fd = export_fd(c->told[i]);
		if (fd < 0)
			ret = fd;
		else
			l->fds[l->nr_fds++] = fd;
	}
	return ret;
}

unsigned local_fds(struct gx_conn *c, int fds[LOCAL_FDS_MAX])
{
	if (!local_conn_of(c))
		return 0;
	local_conn_of(c)->shown = true;
	memcpy(fds, local_conn_of(c)->fds, local_conn_of(c)->nr_fds * sizeof(fds[0]));
	return local_conn_of(c)->nr_fds;
}

/* ---- The peer's memory for us ---- */

unsigned local_fds_due(const struct gx_hello *peer)
{
	unsigned n = 1; /* of the rings */

	for (unsigned i = 0; i < peer->nr_regions; i++)
		n += export_is_fd(peer->regions[i].export.kind);
	return n;
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
static struct gx_gpu *gpu_any(const struct gx *gx)
{
	for (unsigned i = 0; i < GX_GPUS_MAX; i++)
		if (gx->gpu[i])
			return gx->gpu[i];
	return NULL;
}

static int rings_map(struct local_conn *l, int fd)
{
	struct local_rings *r;
	struct local_hdr hdr;

	if (gx_memfd_check(fd, l->rings_b))
		return gx_fail(-EPROTO,
			       "the peer's notification rings are not a sealed memfd of %zu bytes",
			       l->rings_b);
	r = mmap(NULL, l->rings_b, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (r == MAP_FAILED)
		return gx_fail(errno == ENOMEM ? -ENOMEM : -EPROTO,
			       "cannot map the peer's notification rings: %s", strerror(errno));
	l->tx = r;
	memcpy(&hdr, &r->hdr, sizeof(hdr));
	__asm__ volatile("" : "+m"(hdr)); /* check the copy, not the shared memory */
	if (hdr.magic != LOCAL_MAGIC || hdr.version != LOCAL_VERSION || hdr.nr_lanes != l->nr_lanes)
		return gx_fail(-EPROTO, "the peer's notification rings begin with another header");
	madvise(r, sizeof(*r) + l->nr_lanes * sizeof(r->ring[0]), MADV_POPULATE_WRITE);
	return 0;
}

/* Region @r, number @i of the peer's HELLO, lies in @mem. */
static void map_fill(struct gx_conn *c, const struct gx_hello_region *r, unsigned i,
		     struct local_mem *mem)
{
	struct local_map *map = &local_conn_of(c)->map[r->token % GX_REGIONS_MAX];

	*map = (struct local_map){.token = r->token,
				  .len = r->len,
				  .access = r->access,
				  .bit = 1ull << i,
				  .addr = mem->addr + (mem->is_gpu ? 0 : r->export.map_off),
				  .gpu = mem->gpu,
				  .is_gpu = mem->is_gpu,
				  .place = mem->place,
				  .mem = mem};
	for (unsigned d = 0; d < GX_GPUS_MAX; d++)
		map->seen[d] = mem->view[d].addr;
	local_conn_of(c)->nr_maps++;
}

/* Only writable mappings can be registered. If that fails, packets carry operations between it and
 * GPUs. */
static void host_register(const struct gx *gx, struct local_mem *mem)
{
	struct gx_gpu *gpu = gpu_any(gx);

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

/* Map region @r, number @i of the peer's HELLO. gx never gives two tokens with one place in map[];
 * if a peer does, packets serve the second. */
static int region_map(struct gx_conn *c, const struct gx_hello_region *r, unsigned i, int fd)
{
	struct local_mem want = {.as = r->export, .writable = r->access & GX_ACCESS_PUT};
	struct local_mem *mem;
	struct stat st;
	int ret = 0;

	if (gx_memfd_check(fd, r->export.map_len) || fstat(fd, &st))
		return gx_fail(-EPROTO, "region '%s' is not a sealed memfd of %llu bytes", r->name,
			       (unsigned long long)r->export.map_len);
	if (local_conn_of(c)->map[r->token % GX_REGIONS_MAX].len || !r->len)
		return 0;
	want.dev = st.st_dev;
	want.ino = st.st_ino;
	mem = local_mem_find(c, &want);
	if (mem)
		host_register(c->gx, mem); /* for a GPU that was opened since */
	else
		ret = host_map(c, r->name, &want, fd, &mem);
	if (!ret)
		map_fill(c, r, i, mem);
	return ret;
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
			mem->place = local_place(mem->gpu->mem->device(mem->gpu, v->addr));
		}
	}
}

/* Keep why region @r is not mapped, if it is the first. */
static void region_missed(struct gx_conn *c, const struct gx_hello_region *r, const char *why)
{
	struct local_conn *l = local_conn_of(c);

	if (!l->miss[0])
		snprintf(l->miss, sizeof(l->miss), "'%s': %s", r->name, why);
}

/* Return: the mapping; NULL: gx has logged the reason. */
static struct local_mem *gpu_import(struct gx_conn *c, const struct gx_hello_region *r,
				    struct local_mem *want, const struct gx_gpu_handle *h)
{
	struct local_mem *mem;

	views_make(c->gx, want, h, r->len);
	if (!want->gpu) {
		gx_warn("region '%s' of %s: %s; packets go there", r->name, c->peer_name,
			gx_gpu_why());
		region_missed(c, r, gx_gpu_why());
		return NULL;
	}
	mem = local_mem_add(c, want);
	if (!mem)
		local_mem_unmap(want);
	return mem;
}

/* Map memory of the peer's GPU. If no GPU of ours reaches it, packets serve the region. */
static int region_import(struct gx_conn *c, const struct gx_hello_region *r, unsigned i, int fd)
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

	if (!gpu_any(c->gx) || local_conn_of(c)->map[r->token % GX_REGIONS_MAX].len || !r->len ||
	    !(r->access & GX_ACCESS_PUT))
		return 0;
	memcpy(h.ipc, e->handle, sizeof(h.ipc));
	mem = local_mem_find(c, &want);
	if (mem)
		views_make(c->gx, mem, &h, r->len);
	else
		mem = gpu_import(c, r, &want, &h);
	if (mem)
		map_fill(c, r, i, mem);
	return 0;
}

static void fds_close(struct local_conn *l)
{
	for (unsigned i = 0; i < l->nr_fds; i++)
		close(l->fds[i]);
	l->nr_fds = 0;
}

/* The regions that are not mapped: do they have to be? */
static int regions_missed(struct gx_conn *c)
{
	const struct local_conn *l = local_conn_of(c);

	for (unsigned i = 0; i < c->peer.nr_regions; i++) {
		const struct gx_hello_region *r = &c->peer.regions[i];

		if (!r->len || l->map[r->token % GX_REGIONS_MAX].token == r->token)
			continue;
		region_missed(c, r,
			      r->kind == GX_MEM_CUDA && !gpu_any(c->gx)
				      ? "this end has opened no GPU (gx_gpu_open())"
				      : "its owner cannot or does not let peers map it");
		if (r->access & GX_ACCESS_MAPPED)
			return gx_fail(-EOPNOTSUPP,
				       "region '%s' is not mapped, and its owner demands that "
				       "(GX_ACCESS_MAPPED); the first that is not is %s",
				       r->name, l->miss);
	}
	return 0;
}

int local_connect(struct gx_conn *c, const int fds[], unsigned n)
{
	struct local_conn *l = local_conn_of(c);
	int ret = n == local_fds_due(&c->peer) ? 0 : gx_fail(-EPROTO, "%u descriptors came", n);
	unsigned k = 1;

	if (!ret)
		ret = rings_map(l, fds[0]);
	if (!ret)
		local_pull_probe(c);
	for (unsigned i = 0; i < c->peer.nr_regions && !ret; i++) {
		const struct gx_hello_region *r = &c->peer.regions[i];

		int fd = export_is_fd(r->export.kind) ? fds[k++] : -1;

		if (r->export.kind == GX_EXPORT_MEMFD)
			ret = region_map(c, r, i, fd);
		else if (r->export.kind != GX_EXPORT_NONE)
			ret = region_import(c, r, i, fd);
	}
	if (!ret)
		ret = regions_missed(c);
	if (!ret)
		local_pairs_time(c);
	for (unsigned i = 0; i < n; i++)
		close(fds[i]);
	fds_close(l); /* the peer has received them */
	return ret;
}

/* ---- The end ---- */

void local_revoke(struct gx_conn *c, const struct gx_mem *mem)
{
	uint64_t bits = mem ? 0 : LOCAL_REVOKED;

	if (!local_conn_of(c) || !local_conn_of(c)->rx)
		return;
	for (unsigned i = 0; i < c->nr_told; i++)
		if (mem && c->told[i] == mem)
			bits |= 1ull << i;
	/* The peer may see it late, or ignore it; no safety of ours depends on it. */
	atomic_fetch_or_explicit(&local_conn_of(c)->rx->hdr.revoked, bits, memory_order_release);
}

/* Add the growth since the last look. The counters of a peer that lies may fall. */
static void made_add(struct gx *gx, enum gx_stat_id id, uint64_t now, uint64_t *told)
{
	if (now > *told)
		gx_stat_add(&gx->ctl_stats, id, now - *told);
	*told = now;
}

void local_count(struct gx_conn *c)
{
	struct local_conn *l = local_conn_of(c);
	uint64_t puts = 0, gets = 0, bytes = 0;

	if (!l || !l->rx)
		return;
	for (unsigned i = 0; i < l->nr_lanes; i++) {
		struct local_made *made = &l->rx->ring[i].made;

		puts += atomic_load_explicit(&made->puts, memory_order_relaxed);
		gets += atomic_load_explicit(&made->gets, memory_order_relaxed);
		bytes += atomic_load_explicit(&made->bytes, memory_order_relaxed);
	}
	made_add(c->gx, GX_STAT_PEER_PUTS, puts, &l->told.puts);
	made_add(c->gx, GX_STAT_PEER_GETS, gets, &l->told.gets);
	made_add(c->gx, GX_STAT_PEER_BYTES, bytes, &l->told.bytes);
}

void local_close(struct gx_conn *c)
{
	struct local_conn *l = local_conn_of(c);

	if (!l)
		return;
	local_count(c);
	local_part(c);
	if (l->tx)
		munmap(l->tx, l->rings_b);
	if (l->rx)
		munmap(l->rx, l->rings_b);
	fds_close(l);
	free(l);
	c->link_state = NULL;
}
