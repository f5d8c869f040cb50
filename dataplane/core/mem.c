/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arena that packets land in, and memfds to share. An arena is address space only, until
 * something is mapped into it. A sorted list of used ranges, searched first fit at 2 MiB
 * granularity, shows the gaps. The arena touches pages when it maps them, so that a poll core takes
 * no page fault. It does not touch a peer's memfd on normal pages: there may be many, and some are
 * never used. Control path, one thread at a time.
 */
#include "gx_internal/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

#define ROOM_PATH_MAX	1024
#define ROOM_GROUPS_MAX 64 /* depth of a tree of cgroups */

#define HUGE_DIR "/sys/kernel/mm/hugepages/hugepages-2048kB"

#define ARENA_GPUS_MAX	 16
#define ARENA_RANGES_MAX (GX_ARENA_SIZE_MAX / GX_HUGE_PAGE)

/* A mapping. owner: ctl */
struct arena_range {
	size_t off, len; /* bytes from base; multiples of GX_HUGE_PAGE */
};

/* owner: ctl; base and len frozen after open */
struct gx_arena {
	char *base;
	size_t len;
	struct gx_gpu *owner; /* the arena holds memory of this GPU; NULL: host memory */
	struct gx_gpu *gpu[ARENA_GPUS_MAX];
	unsigned nr_gpus;
	unsigned nr_ranges;
	unsigned nr_stay; /* unmapped ranges that a GPU may still use: they stay for good */
	struct arena_range range[ARENA_RANGES_MAX]; /* sorted by off */
};

/* Reserve @len bytes at a multiple of GX_HUGE_PAGE: reserve more, then give both ends back. */
static char *arena_reserve(size_t len)
{
	char *raw = mmap(NULL, len + GX_HUGE_PAGE, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *base = (char *)GX_ALIGN_UP((uintptr_t)raw, GX_HUGE_PAGE);

	if (raw == MAP_FAILED)
		return NULL;
	if (base > raw)
		munmap(raw, (size_t)(base - raw));
	munmap(base + len, (size_t)(raw + GX_HUGE_PAGE - base));
	return base;
}

static int arena_new(struct gx_gpu *owner, size_t len, struct gx_arena **out)
{
	struct gx_arena *a;
	int ret = 0;

	if (!len || len > GX_ARENA_SIZE_MAX)
		return -EINVAL;
	a = calloc(1, sizeof(*a));
	if (!a)
		return -ENOMEM;
	a->len = GX_ALIGN_UP(len, GX_HUGE_PAGE);
	a->owner = owner;
	if (owner)
		ret = owner->mem->addr_reserve(owner, a->len, (void **)&a->base);
	else
		a->base = arena_reserve(a->len);
	if (ret || !a->base) {
		free(a);
		return ret ? ret : -ENOMEM;
	}
	*out = a;
	return 0;
}

int gx_arena_open(size_t len, struct gx_arena **out)
{
	return arena_new(NULL, len, out);
}

int gx_arena_open_gpu(struct gx_gpu *gpu, size_t len, struct gx_arena **out)
{
	return arena_new(gpu, len, out);
}

void gx_arena_close(struct gx_arena *a)
{
	if (!a)
		return;
	if (a->nr_ranges > a->nr_stay)
		gx_err("arena: %u ranges are still mapped at close", a->nr_ranges - a->nr_stay);
	if (a->owner)
		a->owner->mem->addr_free(a->owner, a->base, a->len);
	else if (!a->nr_stay)
		munmap(a->base, a->len);
	free(a);
}

char *gx_arena_base(const struct gx_arena *a)
{
	return a->base;
}

/* Let @gpu read the memory that is mapped there. */
static int arena_show(const struct gx_arena *a, struct gx_gpu *gpu, char *ptr, size_t len)
{
	return a->owner ? gpu->mem->reach(gpu, ptr) : gpu->ops->host_map(gpu, ptr, len);
}

/* False: the GPU may still use that memory. */
static bool arena_hide(const struct gx_arena *a, struct gx_gpu *gpu, char *ptr, size_t len)
{
	return a->owner || gpu->ops->host_unmap(gpu, ptr, len);
}

int gx_arena_attach(struct gx_arena *a, struct gx_gpu *gpu)
{
	unsigned i;
	int ret;

	if (a->nr_gpus == ARENA_GPUS_MAX)
		return -ENOSPC;
	for (i = 0; i < a->nr_ranges; i++) {
		ret = arena_show(a, gpu, a->base + a->range[i].off, a->range[i].len);
		if (ret)
			goto err_unmap;
	}
	a->gpu[a->nr_gpus++] = gpu;
	return 0;

err_unmap:
	while (i--)
		arena_hide(a, gpu, a->base + a->range[i].off, a->range[i].len);
	return ret;
}

/* First gap of @len bytes. Return: index of the range to insert before and the gap's offset, or
 * -ENOSPC. */
static int arena_find(const struct gx_arena *a, size_t len, size_t *off)
{
	size_t at = 0;
	unsigned i;

	for (i = 0; i < a->nr_ranges; i++) {
		if (a->range[i].off - at >= len)
			break;
		at = a->range[i].off + a->range[i].len;
	}
	if (a->len - at < len)
		return -ENOSPC;
	*off = at;
	return (int)i;
}

/* Turn @ptr .. @len back into reserved addresses. */
static void arena_vacate(const struct gx_arena *a, char *ptr, size_t len)
{
	void *p;

	if (a->owner) {
		a->owner->mem->free(a->owner, ptr, len);
		return;
	}
	p = mmap(ptr, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
		 0);

	if (p == MAP_FAILED)
		gx_err("arena: cannot unmap %zu bytes: %s", len, strerror(errno));
}

/*
 * Map anonymous huge pages elsewhere, then move them to @ptr: a MAP_FIXED that fails may leave a
 * hole, which another thread's mmap could fill.
 */
static bool arena_map_huge(char *ptr, size_t len)
{
	void *p = gx_huge_get(len);

	if (!p)
		return false;
	if (mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, ptr) != MAP_FAILED) {
		madvise(ptr, len, MADV_DONTFORK); /* as in arena_map_pages() */
		return true;
	}
	munmap(p, len);
	return false;
}

static int arena_map_pages(const struct gx_arena *a, char *ptr, int fd, size_t len)
{
	int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;

	if (a->owner)
		return fd < 0 ? a->owner->mem->alloc_at(a->owner, ptr, len) : -EINVAL;
	if (fd < 0 && arena_map_huge(ptr, len))
		return 0;
	if (fd < 0 && !gx_mem_fits(len))
		return -ENOMEM;
	if (mmap(ptr, len, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
		int ret = -errno;

		arena_vacate(a, ptr, len);
		return ret;
	}
	/* These may fail: the memory is then slower, not wrong. */
	if (fd < 0 || gx_memfd_is_huge(fd)) {
		madvise(ptr, len, MADV_HUGEPAGE);
		madvise(ptr, len, MADV_POPULATE_WRITE);
	}
	/* Else a core that writes a page after a fork takes a fault, and the kernel copies the
	 * page. */
	madvise(ptr, len, MADV_DONTFORK);
	return 0;
}

static int arena_map_gpus(struct gx_arena *a, char *ptr, size_t len)
{
	unsigned i;
	int ret;

	for (i = 0; i < a->nr_gpus; i++) {
		ret = arena_show(a, a->gpu[i], ptr, len);
		if (ret)
			goto err_unmap;
	}
	return 0;

err_unmap:
	while (i--)
		arena_hide(a, a->gpu[i], ptr, len);
	return ret;
}

int gx_arena_map(struct gx_arena *a, int fd, size_t len, void **out)
{
	size_t off, room = GX_ALIGN_UP(len, GX_HUGE_PAGE);
	int i, ret;

	if (!len || len > a->len)
		return len ? -ENOSPC : -EINVAL;
	i = arena_find(a, room, &off);
	if (i < 0)
		return i;
	ret = arena_map_pages(a, a->base + off, fd, room);
	if (ret)
		return ret;
	ret = arena_map_gpus(a, a->base + off, room);
	if (ret) {
		arena_vacate(a, a->base + off, room);
		return ret;
	}
	memmove(&a->range[i + 1], &a->range[i], (a->nr_ranges - (unsigned)i) * sizeof(a->range[0]));
	a->range[i] = (struct arena_range){.off = off, .len = room};
	a->nr_ranges++;
	*out = a->base + off;
	return 0;
}

void gx_arena_unmap(struct gx_arena *a, void *ptr, size_t len)
{
	size_t off = (size_t)((char *)ptr - a->base), room = GX_ALIGN_UP(len, GX_HUGE_PAGE);
	bool ours = true;
	unsigned i;

	for (i = 0; i < a->nr_ranges; i++)
		if (a->range[i].off == off && a->range[i].len == room)
			break;
	if (i == a->nr_ranges) {
		gx_err("arena: unmap of a range that is not mapped");
		return;
	}
	for (unsigned g = 0; g < a->nr_gpus; g++)
		ours &= arena_hide(a, a->gpu[g], ptr, room);
	if (!ours) { /* the range keeps its place, and the arena its addresses */
		a->nr_stay++;
		return;
	}
	arena_vacate(a, ptr, room);
	a->nr_ranges--;
	memmove(&a->range[i], &a->range[i + 1], (a->nr_ranges - i) * sizeof(a->range[0]));
}

/* ---- Room in memory ---- */

/* Read the number after @key in a file of lines "key value", or a file that is one number (@key
 * NULL). Return: false: no such file or number ("max" is none). */
static bool file_number(const char *path, const char *key, uint64_t *out)
{
	char line[256];
	bool found = false;
	FILE *f = fopen(path, "re");
	size_t n = key ? strlen(key) : 0;

	while (f && !found && fgets(line, sizeof(line), f))
		found = (!key || !strncmp(line, key, n)) && sscanf(line + n, "%" SCNu64, out) == 1;
	if (f)
		fclose(f);
	return found;
}

/* One group: its limit, less its memory in use that it cannot give back. */
static void room_of_group(const char *dir, const char *max, const char *used, const char *idle,
			  struct gx_mem_room *r)
{
	char path[ROOM_PATH_MAX + 64];
	uint64_t limit, now, cache = 0, left;

	snprintf(path, sizeof(path), "%s/%s", dir, max);
	if (!file_number(path, NULL, &limit))
		return;
	snprintf(path, sizeof(path), "%s/%s", dir, used);
	if (!file_number(path, NULL, &now))
		return;
	snprintf(path, sizeof(path), "%s/memory.stat", dir);
	file_number(path, idle, &cache);
	now -= GX_MIN(cache, now);
	left = limit > now ? limit - now : 0;
	if (left >= r->len)
		return;
	r->len = left;
	snprintf(r->what, sizeof(r->what), "the limit of the memory cgroup, %" PRIu64 " MiB",
		 limit >> 20);
}

/* Is "memory" one of the controllers in a line like "cpu,memory:/path"? */
static bool room_is_of_memory(const char *list)
{
	size_t n;

	for (;; list += n + 1) {
		n = strcspn(list, ",:");
		if (n == strlen("memory") && !memcmp(list, "memory", n))
			return true;
		if (list[n] != ',')
			return false;
	}
}

/* All groups from the one in a line of /proc/self/cgroup up to the root of its tree. In a container
 * without a cgroup namespace the path is the host's. Then gx finds only the tree's root, which is
 * the container's own group. */
static void room_of_line(const char *root, char *line, struct gx_mem_room *r)
{
	char dir[ROOM_PATH_MAX], *at = strchr(line, ':'), *group = at ? strchr(at + 1, ':') : NULL;
	bool v2 = at && group == at + 1;
	char *cut;
	int base;

	if (!group || (!v2 && !room_is_of_memory(at + 1)))
		return;
	group[strcspn(group, "\n")] = '\0';
	base = snprintf(dir, sizeof(dir), "%s/sys/fs/cgroup%s", root, v2 ? "" : "/memory");
	if (base + (int)strlen(group + 1) >= (int)sizeof(dir))
		return;
	strcat(dir, strcmp(group + 1, "/") ? group + 1 : "");
	for (unsigned i = 0; i < ROOM_GROUPS_MAX; i++) {
		if (v2)
			room_of_group(dir, "memory.max", "memory.current", "inactive_file ", r);
		else
			room_of_group(dir, "memory.limit_in_bytes", "memory.usage_in_bytes",
				      "total_inactive_file ", r);
		cut = strrchr(dir + base, '/');
		if (!cut)
			return;
		*cut = '\0';
	}
}

void gx_mem_room(const char *root, struct gx_mem_room *r)
{
	char path[ROOM_PATH_MAX], line[ROOM_PATH_MAX];
	uint64_t kib;
	FILE *f;

	*r = (struct gx_mem_room){.len = UINT64_MAX, .what = "nothing known"};
	snprintf(path, sizeof(path), "%.256s/proc/meminfo", root);
	if (file_number(path, "MemAvailable:", &kib)) {
		r->len = kib << 10;
		snprintf(r->what, sizeof(r->what), "MemAvailable of /proc/meminfo");
	}
	snprintf(path, sizeof(path), "%.256s/proc/self/cgroup", root);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		room_of_line(root, line, r);
	if (f)
		fclose(f);
}

/* If all pages are touched without room for them, the kernel kills this process or another. */
bool gx_mem_fits(uint64_t len)
{
	const char *check = getenv("GX_MEM_CHECK");
	struct gx_mem_room r;

	if (check && !strcmp(check, "off"))
		return true;
	gx_mem_room("", &r);
	return len <= r.len;
}

/* One attempt, with or without huge pages. fallocate() takes huge pages from the system now: a
 * shortage later would be a SIGBUS. */
static int memfd_make(const char *name, size_t len, bool huge, int seals)
{
	unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	int fd, ret;

	fd = memfd_create(name, huge ? flags | MFD_HUGETLB | MFD_HUGE_2MB : flags);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)len) || (huge && fallocate(fd, 0, 0, (off_t)len)) ||
	    fcntl(fd, F_ADD_SEALS, seals)) {
		ret = -errno;
		close(fd);
		return ret;
	}
	return fd;
}

static int memfd_any(const char *name, size_t len, bool *huge, int seals)
{
	int fd;

	if (!len || len % GX_HUGE_PAGE)
		return -EINVAL;
	if (*huge) {
		fd = memfd_make(name, len, true, seals);
		if (fd >= 0)
			return fd;
		*huge = false;
	}
	if (!gx_mem_fits(len))
		return -ENOMEM;
	return memfd_make(name, len, false, seals);
}

int gx_memfd(const char *name, size_t len, bool *huge)
{
	return memfd_any(name, len, huge, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
}

int gx_memfd_open(const char *name, size_t len, bool *huge)
{
	return memfd_any(name, len, huge, F_SEAL_SHRINK | F_SEAL_GROW);
}

int gx_memfd_freeze(int fd, bool read_only)
{
	int seals = F_SEAL_SEAL | (read_only ? F_SEAL_FUTURE_WRITE : 0);

	return fcntl(fd, F_ADD_SEALS, seals) ? -errno : 0;
}

bool gx_memfd_is_huge(int fd)
{
	struct stat st;

	return !fstat(fd, &st) && (uint64_t)st.st_blksize >= GX_HUGE_PAGE;
}

const char *gx_huge_why(size_t len)
{
	uint64_t nr_free = 0, nr_resv = 0;

	file_number(HUGE_DIR "/free_hugepages", NULL, &nr_free);
	file_number(HUGE_DIR "/resv_hugepages", NULL, &nr_resv);
	if (nr_free < nr_resv + len / GX_HUGE_PAGE)
		return "too few huge pages of 2 MiB are free; cure: raise vm.nr_hugepages (sysctl)";
	return "huge pages are free, and denied to this process: by the hugetlb limit of its cgroup "
	       "(hugetlb.2MB.max; in Kubernetes resources.limits, hugepages-2Mi), or by its NUMA "
	       "nodes";
}

bool gx_huge_there(size_t len)
{
	int fd = memfd_make("gx-huge", len, true, 0);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

int gx_memfd_check(int fd, size_t len)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return -EPROTO;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size < 0 || (uint64_t)st.st_size < len)
		return -EPROTO;
	/* Who writes into a hole of huge pages needs one of its own, or gets a SIGBUS. */
	if (gx_memfd_is_huge(fd) && st.st_blocks * 512 < st.st_size)
		return -EPROTO;
	return 0;
}
