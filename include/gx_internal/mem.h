/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that packets land in. An arena is one reserved range of at most 4 GiB of addresses, so
 * that a descriptor's 32-bit source offset reaches all of it. Pools and per-peer segments are
 * mapped inside it, and every attached GPU can read them. Control path only (implemented in
 * dataplane/core/mem.c).
 */
#ifndef GX_INTERNAL_MEM_H
#define GX_INTERNAL_MEM_H

#include "gx_internal/base.h"
#include "gx_internal/gpu.h"

#define GX_ARENA_SIZE_MAX (4ull << 30)

struct gx_arena;

/** gx_arena_open() - Reserve @len bytes of addresses (no memory yet). Return: 0, -EINVAL, -ENOMEM.
 */
int gx_arena_open(size_t len, struct gx_arena **out);
/** gx_arena_open_gpu() - The same, for memory of @gpu alone: gx_arena_map() takes no descriptor,
 * and maps no host memory. Return: 0, -EINVAL, -ENOMEM, -EOPNOTSUPP with gx_gpu_why(). */
int gx_arena_open_gpu(struct gx_gpu *gpu, size_t len, struct gx_arena **out);
void gx_arena_close(struct gx_arena *a); /* the caller has unmapped everything */
char *gx_arena_base(const struct gx_arena *a);

/** gx_arena_attach() - Let @gpu read all that is mapped, now and later. If the arena holds memory
 * of another GPU, @gpu must reach it, else -EXDEV. */
int gx_arena_attach(struct gx_arena *a, struct gx_gpu *gpu);

/**
 * gx_arena_map() - Map @len bytes (rounded up to 2 MiB) of @fd shared, or of anonymous memory when
 * @fd is -1 (huge pages when the system has them). Zeroed when new. The caller keeps @fd. It
 * touches the pages at once, unless @fd is on normal pages: these come with the first write.
 * Return: 0, -ENOSPC when the arena is full, -errno.
 */
int gx_arena_map(struct gx_arena *a, int fd, size_t len, void **out);
void gx_arena_unmap(struct gx_arena *a, void *ptr, size_t len);

/**
 * gx_memfd() - Make a memfd of @len bytes (a multiple of 2 MiB), sealed against shrinking and
 * growing. If @huge is true on entry it tries huge pages; *@huge becomes false if the system has
 * none. Return: fd, -errno.
 */
int gx_memfd(const char *name, size_t len, bool *huge);
/** gx_memfd_open() - The same, but gx_memfd_freeze() may add seals. */
int gx_memfd_open(const char *name, size_t len, bool *huge);
/**
 * gx_memfd_freeze() - Forbid more seals. With @read_only no holder of the descriptor can write any
 * more, except through mappings that exist now. Return: 0, -errno.
 */
int gx_memfd_freeze(int fd, bool read_only);
/** gx_memfd_is_huge() - Is @fd on huge pages? */
bool gx_memfd_is_huge(int fd);
/** gx_huge_there() - Can a memfd of @len bytes on huge pages be had now? It is given back. */
bool gx_huge_there(size_t len);
/** gx_huge_why() - Why this process just got no huge pages for @len bytes, in words. */
const char *gx_huge_why(size_t len);
/** gx_memfd_check() - Is a peer's fd a memfd of at least @len bytes that cannot shrink, with all of
 * its huge pages there? Return: 0, -EPROTO. */
int gx_memfd_check(int fd, size_t len);

/** struct gx_mem_room - Host memory on normal pages that the system still has. */
struct gx_mem_room {
	uint64_t len;  /* bytes; UINT64_MAX: not known */
	char what[96]; /* source of that number, in words */
};

/**
 * gx_mem_room() - The smallest of MemAvailable and the rooms in the memory cgroups of this process.
 * A group's room is memory.max less memory.current, where file pages that are not in use count as
 * free; version 1 likewise (Documentation/admin-guide/cgroup-v2.rst).
 * @root: "", or in tests a folder that has proc/ and sys/
 */
void gx_mem_room(const char *root, struct gx_mem_room *out);
/** gx_mem_fits() - Is there room for @len bytes if all of them are touched? Always true if the
 * environment has GX_MEM_CHECK=off, for virtual machines whose memory grows as it is used. */
bool gx_mem_fits(uint64_t len);

/** gx_range_access() - May this process read and write @addr .. @len, by /proc/self/maps? Return:
 * GX_RANGE_ bits; -EFAULT: it cannot read a part, or a part is no memory. Without /proc it returns
 * all bits. gx_range_access_by(): the same; @ask false: as on a kernel before 6.11, for tests. */
#define GX_RANGE_READ  1
#define GX_RANGE_WRITE 2
int gx_range_access(const void *addr, uint64_t len);
int gx_range_access_by(const void *addr, uint64_t len, bool ask);

#endif
