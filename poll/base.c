// SPDX-License-Identifier: Apache-2.0
/*
 * The clock, pages, random bytes, users, and descriptors that a child of fork() must not keep. Any
 * thread may call all of it.
 */
#include "gx_internal/base.h"
#include "gx_internal/fork.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26) /* linux/mman.h: log2 of the size, from bit 26 */
#endif

_Thread_local bool gx_thread_own;

uint64_t gx_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Not calloc(): it clears memory that malloc() uses again, and so touches all pages of it. Not huge
 * pages either: the first word written would take 2 MiB. */
void *gx_pages_get(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	/* A failure of either does no harm. Without the second, the kernel copies each page that is
	 * written after a fork. */
	madvise(p, len, MADV_NOHUGEPAGE);
	madvise(p, len, MADV_DONTFORK);
	return p;
}

void gx_pages_put(void *ptr, size_t len)
{
	if (ptr)
		munmap(ptr, len);
}

/* The kernel writes, since a system call gets an error where a store gets a SIGBUS. Also before
 * Linux 5.14, which has no MADV_POPULATE_WRITE. */
bool gx_huge_take(char *ptr, size_t len)
{
	for (size_t at = 0; at < len; at += GX_HUGE_PAGE) {
		if (syscall(SYS_clock_gettime, CLOCK_MONOTONIC, ptr + at))
			return false;
		memset(ptr + at, 0, sizeof(struct timespec));
	}
	return true;
}

void *gx_huge_get(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_HUGE_2MB, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	if (gx_huge_take(p, len))
		return p;
	munmap(p, len);
	return NULL;
}

int gx_random(void *buf, size_t len)
{
	uint8_t *p = buf;

	while (len > 0) {
		ssize_t n = getrandom(p, len, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

/* ---- Users ---- */

#define UIDS_ALL     UINT32_MAX /* (uid_t)-1 is no user */
#define OVERFLOW_UID 65534u	/* the kernel's default */

/* The sum of the numbers that @fmt finds. 0: it cannot be read. */
static uint64_t file_sum(const char *path, const char *fmt)
{
	FILE *f = fopen(path, "re");
	uint64_t all = 0;
	unsigned n;

	while (f && fscanf(f, fmt, &n) == 1)
		all += n;
	if (f)
		fclose(f);
	return all;
}

/* Ranges of a map do not overlap. One of a part of the users may have the overflow uid too: then the
 * kernel's answer has two meanings. */
bool gx_uid_is_nobody(unsigned uid)
{
	uint64_t overflow = file_sum("/proc/sys/kernel/overflowuid", "%u") ?: OVERFLOW_UID;

	return uid == overflow && file_sum("/proc/self/uid_map", "%*u %*u %u") < UIDS_ALL;
}

bool gx_uid_is_own(unsigned uid)
{
	return uid == geteuid() && !gx_uid_is_nobody(uid);
}

/* ---- Descriptors and fork() ---- */

#define OWN_FDS_MAX 65536 /* a child keeps higher ones open until it ends */

static _Atomic uint64_t own_fds[OWN_FDS_MAX / 64];
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

/* Runs in the child, which has only the thread that forked. close() leaves the parent's files
 * open. */
static void own_child(void)
{
	for (unsigned w = 0; w < GX_ARRAY_SIZE(own_fds); w++) {
		uint64_t bits = atomic_exchange_explicit(&own_fds[w], 0, memory_order_relaxed);

		for (; bits; bits &= bits - 1)
			close((int)(64 * w) + __builtin_ctzll(bits));
	}
}

static void own_start(void)
{
	pthread_atfork(NULL, NULL, own_child);
}

int gx_fd_own(int fd)
{
	if (fd < 0 || fd >= OWN_FDS_MAX)
		return fd;
	pthread_once(&own_once, own_start);
	atomic_fetch_or_explicit(&own_fds[fd / 64], 1ull << fd % 64, memory_order_relaxed);
	return fd;
}

void gx_fd_forget(int fd)
{
	if (fd >= 0 && fd < OWN_FDS_MAX)
		atomic_fetch_and_explicit(&own_fds[fd / 64], ~(1ull << fd % 64),
					  memory_order_relaxed);
}

/* Forget it first: another thread may get the number as soon as it is closed. */
void gx_fd_close(int fd)
{
	gx_fd_forget(fd);
	close(fd);
}
