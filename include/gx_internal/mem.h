/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that packets land in. An arena is one reserved range of at most 4 GiB of addresses, so
 * that a descriptor's 32-bit source offset reaches all of it; pools and per-peer segments are
 * mapped inside it and every attached GPU can read them. Control path only (implemented in
 * dataplane/core/mem.c).
 */
#ifndef GX_INTERNAL_MEM_H
#define GX_INTERNAL_MEM_H

#include "gx_internal/base.h"
#include "gx_internal/gpu.h"

#define GX_ARENA_SIZE_MAX (4ull << 30)
#define GX_HUGE_PAGE	  (2ull << 20)

struct gx_arena;

/** gx_arena_open() - Reserve @len bytes of addresses (no memory yet). Return: 0, -EINVAL, -ENOMEM.
 */
int gx_arena_open(size_t len, struct gx_arena **out);
/** gx_arena_open_gpu() - Same, for memory of @gpu alone: descriptors are always -1, and host memory
 * never comes. Return: 0, -EINVAL, -ENOMEM, -EOPNOTSUPP with gx_gpu_why(). */
int gx_arena_open_gpu(struct gx_gpu *gpu, size_t len, struct gx_arena **out);
void gx_arena_close(struct gx_arena *a); /* everything must have been unmapped */
char *gx_arena_base(const struct gx_arena *a);

/** gx_arena_attach() - From now on everything mapped is also mapped for @gpu; what is there
 * already, too. Of an arena of another GPU: @gpu must reach that, else -EXDEV. */
int gx_arena_attach(struct gx_arena *a, struct gx_gpu *gpu);

/**
 * gx_arena_map() - Map @len bytes (rounded up to 2 MiB) of @fd shared, or of anonymous memory when
 * @fd is -1 (huge pages when the system has them). Zeroed when new. The caller keeps @fd. Pages are
 * touched at once, but for those of a @fd on normal pages: they come when somebody writes there.
 * Return: 0, -ENOSPC when the arena is full, -errno.
 */
int gx_arena_map(struct gx_arena *a, int fd, size_t len, void **out);
void gx_arena_unmap(struct gx_arena *a, void *ptr, size_t len);

/**
 * gx_memfd() - A memfd of @len bytes (a multiple of 2 MiB), sealed against shrinking and growing;
 * on huge pages if @huge is true on entry and they can be had, else *@huge says they were not.
 * Return: fd, -errno.
 */
int gx_memfd(const char *name, size_t len, bool *huge);
/** gx_memfd_open() - Same, but more seals can follow, in gx_memfd_freeze(). */
int gx_memfd_open(const char *name, size_t len, bool *huge);
/**
 * gx_memfd_freeze() - No more seals; with @read_only none but the mappings that are there can ever
 * be written through, whoever has the descriptor. Return: 0, -errno.
 */
int gx_memfd_freeze(int fd, bool read_only);
/** gx_memfd_is_huge() - Is @fd on huge pages? */
bool gx_memfd_is_huge(int fd);
/** gx_memfd_check() - Is a peer's fd a memfd of at least @len bytes that cannot shrink? Return: 0,
 * -EPROTO. */
int gx_memfd_check(int fd, size_t len);

/** struct gx_mem_room - What host memory on normal pages can still be had. */
struct gx_mem_room {
	uint64_t len;  /* bytes; UINT64_MAX: not known */
	char what[96]; /* what says so, in words */
};

/**
 * gx_mem_room() - The smallest of MemAvailable and what the memory cgroups of this process leave
 * (memory.max less memory.current, but for file pages that are not in use; version 1 likewise:
 * Documentation/admin-guide/cgroup-v2.rst).
 * @root: "", or in tests a folder that has proc/ and sys/
 */
void gx_mem_room(const char *root, struct gx_mem_room *out);
/** gx_mem_fits() - Is there room for @len bytes, all of them touched at once? GX_MEM_CHECK=off of
 * the environment says that there always is: for virtual machines whose memory grows as it is used.
 */
bool gx_mem_fits(uint64_t len);

/** gx_range_access() - What this process may do at @addr .. @len, by /proc/self/maps. Return:
 * GX_RANGE_ bits, -EFAULT (a part cannot be read, or is no memory at all). Where there is no /proc
 * all is taken for good. */
#define GX_RANGE_READ  1
#define GX_RANGE_WRITE 2
int gx_range_access(const void *addr, uint64_t len);

#endif
