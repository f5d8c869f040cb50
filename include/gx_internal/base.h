/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiler helpers, the log and the clock, for every file of gx. Implemented in poll/base.c. Any
 * thread may call all of it.
 */
#ifndef GX_INTERNAL_BASE_H
#define GX_INTERNAL_BASE_H

#include "gx/log.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GX_CACHE_LINE 64
#define GX_BURST_MAX  64 /* entries of any burst on the data path */

#define GX_ARRAY_SIZE(a)		 (sizeof(a) / sizeof((a)[0]))
#define GX_MIN(a, b)			 ((a) < (b) ? (a) : (b))
#define GX_MAX(a, b)			 ((a) > (b) ? (a) : (b))
#define GX_ALIGN_UP(x, a)		 (((x) + ((a)-1)) & ~((uint64_t)(a)-1)) /* a: power of two */
#define GX_CONTAINER_OF(p, type, member) ((type *)((char *)(p)-offsetof(type, member)))
#define gx_likely(x)			 __builtin_expect(!!(x), 1)
#define gx_unlikely(x)			 __builtin_expect(!!(x), 0)

/** GX_EXPORT - The shared library shows this function; the build hides all others. */
#define GX_EXPORT __attribute__((visibility("default")))

#define gx_err(...)   gx_log(GX_LOG_ERR, __VA_ARGS__)
#define gx_warn(...)  gx_log(GX_LOG_WARN, __VA_ARGS__)
#define gx_info(...)  gx_log(GX_LOG_INFO, __VA_ARGS__)
#define gx_debug(...) gx_log(GX_LOG_DEBUG, __VA_ARGS__)

/** gx_thread_own - This thread is gx's: a polling core that gx started, or the control thread. gx
 * may leave a library's per-thread state there as it needs it; it restores the state of a program's
 * thread. */
extern _Thread_local bool gx_thread_own;

/** gx_now_ns() - Monotonic nanoseconds. The only clock of gx; leaves get time as an argument. */
uint64_t gx_now_ns(void);

/** gx_later_ns() - @wait_ns after @now_ns. A program may ask for UINT64_MAX, which is never. */
static inline uint64_t gx_later_ns(uint64_t now_ns, uint64_t wait_ns)
{
	return now_ns + GX_MIN(wait_ns, UINT64_MAX - now_ns);
}

/** gx_cycles() - Time-stamp counter (invariant on all targets), only to account for busy and idle
 * time. */
static inline uint64_t gx_cycles(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#else
	return gx_now_ns();
#endif
}

static inline void gx_cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

/**
 * gx_prefetch_write() - This core will write @p: fetch its cache line, to own. Never faults.
 * gx_demote() - This core wrote @p and another CPU reads it next: move its line to the cache that
 * both share. Both are hints; a CPU that does not know them ignores them.
 */
static inline void gx_prefetch_write(const void *p)
{
#if defined(__x86_64__)
	__asm__ volatile("prefetchw %0" : : "m"(*(const char *)p));
#else
	__builtin_prefetch(p, 1);
#endif
}

static inline void gx_demote(const void *p)
{
#if defined(__x86_64__)
	__asm__ volatile(".byte 0x0f, 0x1c, 0x00" : : "a"(p) : "memory"); /* cldemote (%rax) */
#endif
}

/** gx_prefetch_read() - This core reads @len bytes at @p soon. Never faults. */
static inline void gx_prefetch_read(const void *p, size_t len)
{
#pragma GCC unroll 8
	for (size_t i = 0; i < len; i += GX_CACHE_LINE)
		__builtin_prefetch((const char *)p + i, 0, 2);
}

/** gx_store_fence() - Earlier stores, streaming ones too, are visible before later ones. */
static inline void gx_store_fence(void)
{
#if defined(__x86_64__)
	__builtin_ia32_sfence();
#else
	__atomic_thread_fence(__ATOMIC_RELEASE);
#endif
}

/**
 * gx_pages_get() - @len bytes of zeros that have addresses but no memory yet: a page comes with the
 * first write to it. So a large range that is seldom used weighs only the pages that were used.
 * Control path; later writers take the page faults. A child of fork() does not have the range.
 * NULL: no memory.
 * gx_pages_put() - Give all of it back; NULL: nothing to do.
 */
void *gx_pages_get(size_t len);
void gx_pages_put(void *ptr, size_t len);

#define GX_HUGE_PAGE (2ull << 20)

/**
 * gx_huge_get() - @len bytes (a multiple of GX_HUGE_PAGE) of zeros on huge pages, private, with all
 * of the memory there. NULL: none are to be had. The caller gives it to munmap().
 * gx_huge_take() - Take each page of such a mapping now. Return: false: the kernel refused one. A
 * limit of a cgroup, or of NUMA nodes, counts at the first write alone, which is then a SIGBUS.
 */
void *gx_huge_get(size_t len);
bool gx_huge_take(char *ptr, size_t len);

/**
 * gx_uid_is_nobody() - Does @uid, from the kernel, stand for all users that our user namespace does not
 * map? Such a one is never our own user, nor one that may be allowed. It is the kernel's overflow uid,
 * wherever /proc/self/uid_map lacks users or cannot be read. Control path: reads files.
 * gx_uid_is_own() - Is it our own user, surely?
 */
bool gx_uid_is_nobody(unsigned uid);
bool gx_uid_is_own(unsigned uid);

/** gx_random() - Fill @buf from the kernel's generator. Return: 0, -errno. */
int gx_random(void *buf, size_t len);

/**
 * gx_copy() - memcpy for the data path: the best variant for this CPU, chosen once at load.
 * gx_copy_stream() - The same with stores that bypass the cache, for long copies that this core
 * will not read again soon. Ends with a store fence from 8 KiB on; shorter copies use plain stores.
 * Both take any alignment and length, 0 included. Where @dst and @len are multiples of 8, they store
 * each 8-byte word at once (on x86-64): a reader on another core, or a GPU over PCIe, meets the old
 * word or the new one. NCCL's protocol LL needs that, since it reads messages while they arrive.
 */
extern void (*gx_copy)(void *dst, const void *src, size_t len);
extern void (*gx_copy_stream)(void *dst, const void *src, size_t len);
/**
 * gx_copy_stream_nofence() - gx_copy_stream() without the fence, which costs more than the copy
 * below 8 KiB. After a burst of copies the caller runs gx_store_fence() once, before it signals
 * anyone of the bytes.
 */
extern void (*gx_copy_stream_nofence)(void *dst, const void *src, size_t len);
/**
 * gx_copy_slot() - gx_copy() into a slot that another core or a GPU reads next, from a long source
 * that the caller reads from front to back. It may prefetch bytes after the source (never faults).
 */
extern void (*gx_copy_slot)(void *dst, const void *src, size_t len);
const char *gx_copy_name(void); /* "avx512", "avx2", "sse2", "generic" */
/**
 * gx_copy_use() - For tests: take variant @name, NULL for the best, while no thread copies. Return:
 * false if this CPU has not got it.
 */
bool gx_copy_use(const char *name);

/** gx_crc32c() - CRC-32C (RFC 3720 B.4) of @len bytes, continuing from @crc; start with 0. */
uint32_t gx_crc32c(uint32_t crc, const void *buf, size_t len);
/** gx_copy_slot_crc() - gx_copy_slot(). Return: the CRC-32C of the bytes, which are read once. */
extern uint32_t (*gx_copy_slot_crc)(void *dst, const void *src, size_t len);
/**
 * gx_copy_crc_use() - For tests: take variant "vector" or "steps" of gx_copy_slot_crc(), NULL for the
 * best. Return: false if this CPU has not got it.
 */
bool gx_copy_crc_use(const char *name);

#endif
