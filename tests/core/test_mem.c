// SPDX-License-Identifier: Apache-2.0
/*
 * The arena and the memfds: first fit, what GPUs get to see, seals, and what a peer's descriptor is
 * refused for.
 */
#include "gx_internal/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/memfd.h>
#include <sched.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB  (1ull << 20)
#define PAGE GX_HUGE_PAGE

/* A GPU that notes its mappings; call fail_at of host_map fails. */
struct fake_gpu {
	struct gx_gpu gpu;
	int maps, calls, fail_at;
	bool busy; /* it has not finished with anything */
	void *last;
	size_t last_len;
};

static int fake_map(struct gx_gpu *gpu, void *ptr, size_t len)
{
	struct fake_gpu *f = GX_CONTAINER_OF(gpu, struct fake_gpu, gpu);

	if (++f->calls == f->fail_at)
		return -ENOMEM;
	f->maps++;
	f->last = ptr;
	f->last_len = len;
	return 0;
}

static bool fake_unmap(struct gx_gpu *gpu, void *ptr, size_t len)
{
	struct fake_gpu *f = GX_CONTAINER_OF(gpu, struct fake_gpu, gpu);

	f->maps--;
	return !f->busy;
}

static void fake_free(struct gx_gpu *gpu, void *ptr, size_t len)
{
	GX_CONTAINER_OF(gpu, struct fake_gpu, gpu)->maps--;
}

/* Its own memory: addresses that nothing ever touches. */
static int fake_reserve(struct gx_gpu *gpu, size_t len, void **out)
{
	*out = (void *)(1ull << 40);
	return 0;
}

static void fake_addr_free(struct gx_gpu *gpu, void *base, size_t len)
{
	assert_ptr_equal(base, (void *)(1ull << 40));
}

static int fake_reach(struct gx_gpu *gpu, const void *ptr)
{
	struct fake_gpu *f = GX_CONTAINER_OF(gpu, struct fake_gpu, gpu);

	return ++f->calls == f->fail_at ? -EXDEV : 0;
}

static int fake_alloc_at(struct gx_gpu *gpu, void *at, size_t len)
{
	return fake_map(gpu, at, len);
}

static const struct gx_gpu_ops fake_ops = {.host_map = fake_map, .host_unmap = fake_unmap};

static const struct gx_gpu_mem_ops fake_mem_ops = {.addr_reserve = fake_reserve,
						   .addr_free = fake_addr_free,
						   .alloc_at = fake_alloc_at,
						   .free = fake_free,
						   .reach = fake_reach};

static const struct gx_gpu fake_base = {.ops = &fake_ops, .mem = &fake_mem_ops};

static int arena_setup(void **state)
{
	return gx_arena_open(16 * PAGE, (struct gx_arena **)state);
}

static int arena_teardown(void **state)
{
	gx_arena_close(*state);
	return 0;
}

static char *map(struct gx_arena *a, int fd, size_t len)
{
	void *p = NULL;

	assert_int_equal(gx_arena_map(a, fd, len, &p), 0);
	assert_int_equal(((char *)p - gx_arena_base(a)) % PAGE, 0);
	return p;
}

static void gx_arena_open__bounds(void **state)
{
	struct gx_arena *a;

	assert_int_equal(gx_arena_open(0, &a), -EINVAL);
	assert_int_equal(gx_arena_open(GX_ARENA_SIZE_MAX + 1, &a), -EINVAL);
	assert_int_equal(gx_arena_open(GX_ARENA_SIZE_MAX, &a), 0);
	assert_int_equal((uintptr_t)gx_arena_base(a) % PAGE, 0);
	gx_arena_close(a);
	gx_arena_close(NULL);
}

static void gx_arena_map__is_zeroed_and_writable(void **state)
{
	struct gx_arena *a = *state;
	char *p = map(a, -1, 100);

	for (size_t i = 0; i < PAGE; i += 509)
		assert_int_equal(p[i], 0);
	memset(p, 1, PAGE);
	gx_arena_unmap(a, p, 100);
	p = map(a, -1, PAGE);
	assert_int_equal(p[12345], 0);
	gx_arena_unmap(a, p, PAGE);
}

static void gx_arena_map__first_fit(void **state)
{
	struct gx_arena *a = *state;
	char *base = gx_arena_base(a), *p[4];

	for (int i = 0; i < 4; i++) {
		p[i] = map(a, -1, 2 * PAGE);
		assert_ptr_equal(p[i], base + 2 * PAGE * i);
	}
	gx_arena_unmap(a, p[1], 2 * PAGE);
	p[1] = map(a, -1, 3 * PAGE); /* too long for the gap */
	assert_ptr_equal(p[1], base + 8 * PAGE);
	assert_ptr_equal(map(a, -1, PAGE), base + 2 * PAGE);
	assert_ptr_equal(map(a, -1, PAGE - 5), base + 3 * PAGE);
	gx_arena_unmap(a, base + 2 * PAGE, PAGE);
	gx_arena_unmap(a, base + 3 * PAGE, PAGE);
	gx_arena_unmap(a, p[0], 2 * PAGE);
	assert_ptr_equal(map(a, -1, 4 * PAGE), base);
	gx_arena_unmap(a, base, 4 * PAGE);
	gx_arena_unmap(a, p[1], 3 * PAGE);
	gx_arena_unmap(a, p[2], 2 * PAGE);
	gx_arena_unmap(a, p[3], 2 * PAGE);
}

static void gx_arena_map__full(void **state)
{
	struct gx_arena *a = *state;
	void *p;
	char *all;

	assert_int_equal(gx_arena_map(a, -1, 0, &p), -EINVAL);
	assert_int_equal(gx_arena_map(a, -1, 17 * PAGE, &p), -ENOSPC);
	assert_int_equal(gx_arena_map(a, -1, SIZE_MAX, &p), -ENOSPC);
	all = map(a, -1, 16 * PAGE);
	assert_int_equal(gx_arena_map(a, -1, 1, &p), -ENOSPC);
	gx_arena_unmap(a, all, 16 * PAGE);
}

static void gx_arena_map__bad_fd_leaves_room(void **state)
{
	struct gx_arena *a = *state;
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	void *p;

	assert_true(gx_arena_map(a, fd, PAGE, &p) < 0);
	close(fd);
	assert_true(gx_arena_map(a, fd, PAGE, &p) < 0);
	p = map(a, -1, 16 * PAGE);
	gx_arena_unmap(a, p, 16 * PAGE);
}

static void gx_arena_map__shares_a_memfd(void **state)
{
	struct gx_arena *a = *state;
	bool huge = false;
	int fd = gx_memfd("test", 2 * PAGE, &huge);
	char *p, *q;

	assert_true(fd >= 0);
	p = map(a, fd, 2 * PAGE);
	q = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(q, MAP_FAILED);
	close(fd);
	p[PAGE + 7] = 42;
	assert_int_equal(q[PAGE + 7], 42);
	munmap(q, 2 * PAGE);
	gx_arena_unmap(a, p, 2 * PAGE);
}

static void gx_arena_attach__maps_old_and_new(void **state)
{
	struct fake_gpu one = {.gpu = fake_base}, two = {.gpu = fake_base};
	struct gx_arena *a = *state;
	char *p = map(a, -1, PAGE), *q;

	assert_int_equal(gx_arena_attach(a, &one.gpu), 0);
	assert_int_equal(one.maps, 1);
	assert_ptr_equal(one.last, p);
	assert_int_equal(one.last_len, PAGE);
	assert_int_equal(gx_arena_attach(a, &two.gpu), 0);
	q = map(a, -1, PAGE + 1);
	assert_int_equal(one.maps, 2);
	assert_int_equal(two.maps, 2);
	assert_int_equal(two.last_len, 2 * PAGE);
	gx_arena_unmap(a, p, PAGE);
	gx_arena_unmap(a, q, PAGE + 1);
	assert_int_equal(one.maps, 0);
	assert_int_equal(two.maps, 0);
}

static void gx_arena_attach__failure_undoes(void **state)
{
	struct fake_gpu good = {.gpu = fake_base}, bad = {.gpu = fake_base, .fail_at = 2};
	struct gx_arena *a = *state;
	char *p = map(a, -1, PAGE), *q = map(a, -1, PAGE);
	void *r;

	assert_int_equal(gx_arena_attach(a, &bad.gpu), -ENOMEM);
	assert_int_equal(bad.maps, 0);
	assert_int_equal(gx_arena_attach(a, &good.gpu), 0);
	bad.fail_at = 5;
	assert_int_equal(gx_arena_attach(a, &bad.gpu), 0);
	assert_int_equal(gx_arena_map(a, -1, PAGE, &r), -ENOMEM);
	assert_int_equal(good.maps, 2);
	assert_int_equal(bad.maps, 2);
	gx_arena_unmap(a, p, PAGE);
	gx_arena_unmap(a, q, PAGE);
	assert_int_equal(good.maps, 0);
}

/* What a GPU has not finished with keeps its bytes and its addresses, also after the end. */
static void gx_arena_unmap__a_gpu_is_busy(void **state)
{
	struct fake_gpu gpu = {.gpu = fake_base};
	struct gx_arena *a = NULL;
	char *p, *q, *base;
	void *taken;

	assert_int_equal(gx_arena_open(8 * PAGE, &a), 0);
	assert_int_equal(gx_arena_attach(a, &gpu.gpu), 0);
	base = gx_arena_base(a);
	p = map(a, -1, PAGE);
	q = map(a, -1, PAGE);
	memset(p, 7, PAGE);
	gpu.busy = true;
	gx_arena_unmap(a, p, PAGE);
	assert_int_equal(p[PAGE - 1], 7);
	gpu.busy = false;
	gx_arena_unmap(a, q, PAGE);
	assert_ptr_equal(map(a, -1, PAGE), q);
	gx_arena_unmap(a, q, PAGE);
	gx_arena_close(a);
	p[0] = 8; /* the GPU does */
	taken = mmap(base, 8 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
		     -1, 0);
	assert_ptr_equal(taken, MAP_FAILED);
	munmap(base, 8 * PAGE);
}

static void gx_arena_open_gpu__its_memory_at_our_addresses(void **state)
{
	struct fake_gpu owner = {.gpu = fake_base}, other = {.gpu = fake_base};
	struct gx_arena *a;
	void *p[2], *none;

	assert_int_equal(gx_arena_open_gpu(&owner.gpu, 4 * PAGE, &a), 0);
	assert_int_equal(gx_arena_attach(a, &other.gpu), 0);
	assert_int_equal(gx_arena_map(a, -1, PAGE + 1, &p[0]), 0);
	assert_ptr_equal(p[0], gx_arena_base(a));
	assert_int_equal(owner.maps, 1);
	assert_int_equal(owner.last_len, 2 * PAGE);
	assert_int_equal(other.calls, 1); /* asked whether it reaches that */
	assert_int_equal(other.maps, 0);
	assert_int_equal(gx_arena_map(a, 0, PAGE, &none), -EINVAL); /* a descriptor of the host */
	assert_int_equal(gx_arena_map(a, -1, 2 * PAGE, &p[1]), 0);
	assert_ptr_equal(p[1], gx_arena_base(a) + 2 * PAGE);
	gx_arena_unmap(a, p[0], PAGE + 1);
	gx_arena_unmap(a, p[1], 2 * PAGE);
	assert_int_equal(owner.maps, 0);
	assert_int_equal(other.maps, 0);
	gx_arena_close(a);
}

static void gx_arena_open_gpu__another_does_not_reach_it(void **state)
{
	struct fake_gpu owner = {.gpu = fake_base};
	struct fake_gpu far = {.gpu = fake_base, .fail_at = 1};
	struct gx_arena *a;
	void *p;

	assert_int_equal(gx_arena_open_gpu(&owner.gpu, 4 * PAGE, &a), 0);
	assert_int_equal(gx_arena_map(a, -1, PAGE, &p), 0);
	assert_int_equal(gx_arena_attach(a, &far.gpu), -EXDEV);
	far.fail_at = 3;
	assert_int_equal(gx_arena_attach(a, &far.gpu), 0);
	assert_int_equal(gx_arena_map(a, -1, PAGE, &p), -EXDEV);
	assert_int_equal(owner.maps, 1); /* given back */
	gx_arena_unmap(a, gx_arena_base(a), PAGE);
	gx_arena_close(a);
}

static void gx_memfd__is_sealed(void **state)
{
	bool huge = false;
	int fd = gx_memfd("test", PAGE, &huge);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, MIB), -1);
	assert_int_equal(ftruncate(fd, 2 * PAGE), -1);
	assert_int_equal(gx_memfd_check(fd, PAGE), 0);
	assert_int_equal(gx_memfd_check(fd, PAGE + 1), -EPROTO);
	close(fd);
	assert_int_equal(gx_memfd("test", 4096, &huge), -EINVAL);
	assert_int_equal(gx_memfd("test", 0, &huge), -EINVAL);
}

static void gx_memfd__huge_or_says_not(void **state)
{
	bool huge = true;
	int fd = gx_memfd("test", PAGE, &huge);
	char *p;

	assert_true(fd >= 0);
	p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	memset(p, 1, PAGE);
	munmap(p, PAGE);
	assert_int_equal(gx_memfd_check(fd, PAGE), 0);
	close(fd);
	huge = true;
	fd = gx_memfd("test", 1ull << 40, &huge); /* no machine has so many huge pages */
	assert_false(huge);
	if (fd >= 0)
		close(fd);
}

static void gx_memfd_check__refuses_others(void **state)
{
	int fd = memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING), pipes[2];

	assert_int_equal(ftruncate(fd, (off_t)PAGE), 0);
	assert_int_equal(gx_memfd_check(fd, PAGE), -EPROTO); /* it could shrink */
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
	assert_int_equal(gx_memfd_check(fd, PAGE), -EPROTO);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	assert_int_equal(gx_memfd_check(fd, PAGE), 0);
	close(fd);
	assert_int_equal(gx_memfd_check(fd, 1), -EPROTO);
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(gx_memfd_check(pipes[0], 0), -EPROTO);
	close(pipes[0]);
	close(pipes[1]);
	fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	assert_int_equal(gx_memfd_check(fd, 1), -EPROTO);
	close(fd);
}

/* A peer's memfd on huge pages with a hole: who writes there may have no page for it. */
static void gx_memfd_check__a_hole_in_huge_pages(void **state)
{
	int fd = memfd_create("hole", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB);

	if (fd < 0) {
		print_message("note: a kernel without huge pages\n");
		return;
	}
	assert_int_equal(ftruncate(fd, (off_t)PAGE), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	assert_int_equal(gx_memfd_check(fd, PAGE), -EPROTO);
	close(fd);
}

/* Behind the end of a file a page is refused as a huge one is by the limit of a cgroup: who stores
 * there gets a SIGBUS. */
static void gx_huge_take__a_page_is_refused(void **state)
{
	int fd = memfd_create("short", MFD_CLOEXEC);
	char *p = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), in;

	assert_ptr_not_equal(p, MAP_FAILED);
	assert_false(gx_huge_take(p, PAGE));
	assert_int_equal(ftruncate(fd, (off_t)(2 * PAGE)), 0);
	assert_true(gx_huge_take(p, 2 * PAGE));
	assert_false(gx_huge_take(p, 3 * PAGE));
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(mincore(p + i * PAGE, 4096, (unsigned char *)&in), 0);
		assert_true(in & 1);
		for (unsigned b = 0; b < 64; b++)
			assert_int_equal(p[i * PAGE + b], 0);
	}
	munmap(p, 3 * PAGE);
	close(fd);
}

/* As many as no machine has: not had, and said why. */
static void gx_huge_get__more_than_there_is(void **state)
{
	assert_null(gx_huge_get(1ull << 46));
	assert_non_null(strstr(gx_huge_why(1ull << 46), "vm.nr_hugepages"));
}

/* ---- A folder in the place of / ---- */

static char fake_root[64];

static void root_file(const char *path, const char *text)
{
	char full[512];
	FILE *f;

	snprintf(full, sizeof(full), "%s/%s", fake_root, path);
	for (char *p = full + strlen(fake_root) + 1; (p = strchr(p, '/')); *p++ = '/') {
		*p = '\0';
		mkdir(full, 0700);
	}
	f = fopen(full, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static int root_setup(void **state)
{
	strcpy(fake_root, "/tmp/gx-test-mem-XXXXXX");
	if (!mkdtemp(fake_root))
		return -1;
	root_file("proc/meminfo",
		  "MemTotal: 32768000 kB\nMemFree: 7 kB\nMemAvailable: 2048000 kB\n");
	return 0;
}

static int root_entry_remove(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static int root_teardown(void **state)
{
	return nftw(fake_root, root_entry_remove, 8, FTW_DEPTH | FTW_PHYS);
}

static void gx_mem_room__meminfo(void **state)
{
	struct gx_mem_room r;

	gx_mem_room(fake_root, &r);
	assert_int_equal(r.len, 2048000ull << 10);
	assert_non_null(strstr(r.what, "MemAvailable"));
	root_file("proc/meminfo", "nothing\n");
	gx_mem_room(fake_root, &r);
	assert_int_equal(r.len, UINT64_MAX);
}

static void gx_mem_room__cgroup_2(void **state)
{
	struct gx_mem_room r;

	root_file("proc/self/cgroup", "0::/a/b\n");
	root_file("sys/fs/cgroup/a/b/memory.max", "max\n");
	root_file("sys/fs/cgroup/a/b/memory.current", "300000000\n");
	gx_mem_room(fake_root, &r);
	assert_int_equal(r.len, 2048000ull << 10);
	/* The group above it has a limit. */
	root_file("sys/fs/cgroup/a/memory.max", "536870912\n");
	root_file("sys/fs/cgroup/a/memory.current", "400000000\n");
	root_file("sys/fs/cgroup/a/memory.stat",
		  "anon 1\ninactive_file 100000000\nactive_file 9\n");
	gx_mem_room(fake_root, &r);
	assert_int_equal(r.len, 536870912 - 300000000);
	assert_string_equal(r.what, "the limit of the memory cgroup, 512 MiB");
	/* That of the inner one is tighter. */
	root_file("sys/fs/cgroup/a/b/memory.max", "300001000\n");
	gx_mem_room(fake_root, &r);
	assert_int_equal(r.len, 1000);
	/* And all of it is used. */
	root_file("sys/fs/cgroup/a/memory.current", "900000000\n");
	gx_mem_room(fake_root, &r);
	assert_int_equal(r.len, 0);
}

/* A container without a cgroup namespace: the path is the host's, the tree is its own. */
static void gx_mem_room__cgroup_2_root(void **state)
{
	struct gx_mem_room r;

	root_file("proc/self/cgroup", "0::/docker/1234\n");
	root_file("sys/fs/cgroup/memory.max", "1048576\n");
	root_file("sys/fs/cgroup/memory.current", "48576\n");
	gx_mem_room(fake_root, &r);
	assert_int_equal(r.len, 1000000);
}

static void gx_mem_room__cgroup_1(void **state)
{
	struct gx_mem_room r;

	root_file("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1000000\n");
	root_file("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "600000\n");
	root_file("sys/fs/cgroup/memory/x/memory.stat",
		  "inactive_file 7\ntotal_inactive_file 100000\n");
	/* Alone in its line, first, in the middle, or last. */
	for (unsigned i = 0; i < 4; i++) {
		static const char *const names[] = {"memory", "memory,cpu", "cpu,memory,io",
						    "cpu,memory"};
		char text[96];

		snprintf(text, sizeof(text), "5:cpuset:/x\n4:%s:/x\n1:name=memory_:/x\n0::/\n",
			 names[i]);
		root_file("proc/self/cgroup", text);
		gx_mem_room(fake_root, &r);
		assert_int_equal(r.len, 500000);
	}
}

static void gx_mem_room__odd_lines(void **state)
{
	static char line[2000];
	struct gx_mem_room r;

	root_file("proc/self/cgroup", "\nno colon\n0:\n:::\n7:memory\n0::\n");
	gx_mem_room(fake_root, &r);
	assert_int_equal(r.len, 2048000ull << 10);
	/* Longer than a path may be, and cut. */
	memset(line, 'x', sizeof(line) - 1);
	memcpy(line, "0::/", 4);
	root_file("proc/self/cgroup", line);
	gx_mem_room(fake_root, &r);
	assert_int_equal(r.len, 2048000ull << 10);
}

static void gx_mem_fits__this_machine(void **state)
{
	assert_true(gx_mem_fits(1));
	assert_false(gx_mem_fits(1ull << 50));
	setenv("GX_MEM_CHECK", "off", 1);
	assert_true(gx_mem_fits(1ull << 50));
	unsetenv("GX_MEM_CHECK");
}

/* In the place of the kernel's: who sees another MemAvailable is this process alone. Return: 0; 1:
 * it may not, or this machine has huge pages free, of which MemAvailable does not tell. */
static int fits_here(void)
{
	struct gx_arena *a;
	char path[128];
	void *p;

	snprintf(path, sizeof(path), "%s/proc/meminfo", fake_root);
	root_file("proc/meminfo", "MemAvailable: 5000 kB\n");
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount(path, "/proc/meminfo", NULL, MS_BIND, NULL))
		return 1;
	if (!gx_mem_fits(5000 << 10) || gx_mem_fits((5000 << 10) + 1))
		return 2;
	if (gx_arena_open(8 * PAGE, &a))
		return 3;
	if (gx_arena_map(a, -1, 2 * PAGE, &p))
		return 4;
	p = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (p != MAP_FAILED)
		return 1;
	return gx_arena_map(a, -1, 3 * PAGE, &p) == -ENOMEM ? 0 : 5;
}

static void gx_mem_fits__to_the_byte(void **state)
{
	pid_t pid = fork();
	int status;

	if (!pid)
		_exit(fits_here());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 1)
		print_message("note: no mount namespace to be had, or huge pages are\n");
	else
		assert_int_equal(WEXITSTATUS(status), 0);
}

/* Or each page that a core writes after a fork is a fault, and a copy. */
static void not_forked(char *const p[], unsigned n)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		unsigned char in;

		for (unsigned i = 0; i < n; i++)
			if (!mincore(p[i], 4096, &in) || errno != ENOMEM)
				_exit(1);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void gx_arena_map__is_not_forked(void **state)
{
	struct gx_arena *a = *state;
	bool huge = false;
	int fd = gx_memfd("test", PAGE, &huge);
	char *p[2] = {map(a, -1, PAGE), map(a, fd, PAGE)};

	not_forked(p, 2);
	gx_arena_unmap(a, p[0], PAGE);
	gx_arena_unmap(a, p[1], PAGE);
	close(fd);
}

/* Endpoints and their tables. */
static void gx_pages_get__is_not_forked(void **state)
{
	char *p = gx_pages_get(100000);

	memset(p, 1, 100000);
	not_forked(&p, 1);
	gx_pages_put(p, 100000);
}

/* More than there is: said, not tried (the kernel would end a process for it). */
static void gx_memfd__more_than_there_is(void **state)
{
	bool huge = false;

	assert_int_equal(gx_memfd("gx-test", 1ull << 46, &huge), -ENOMEM);
}

#define ROOT_TEST(fn)  cmocka_unit_test_setup_teardown(fn, root_setup, root_teardown)
#define ARENA_TEST(fn) cmocka_unit_test_setup_teardown(fn, arena_setup, arena_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gx_arena_open__bounds),
		ARENA_TEST(gx_arena_map__is_zeroed_and_writable),
		ARENA_TEST(gx_arena_map__first_fit),
		ARENA_TEST(gx_arena_map__full),
		ARENA_TEST(gx_arena_map__bad_fd_leaves_room),
		ARENA_TEST(gx_arena_map__shares_a_memfd),
		ARENA_TEST(gx_arena_attach__maps_old_and_new),
		ARENA_TEST(gx_arena_attach__failure_undoes),
		cmocka_unit_test(gx_arena_unmap__a_gpu_is_busy),
		cmocka_unit_test(gx_arena_open_gpu__its_memory_at_our_addresses),
		cmocka_unit_test(gx_arena_open_gpu__another_does_not_reach_it),
		cmocka_unit_test(gx_memfd__is_sealed),
		cmocka_unit_test(gx_memfd__huge_or_says_not),
		cmocka_unit_test(gx_memfd_check__refuses_others),
		cmocka_unit_test(gx_memfd_check__a_hole_in_huge_pages),
		cmocka_unit_test(gx_huge_take__a_page_is_refused),
		cmocka_unit_test(gx_huge_get__more_than_there_is),
		ROOT_TEST(gx_mem_room__meminfo),
		ROOT_TEST(gx_mem_room__cgroup_2),
		ROOT_TEST(gx_mem_room__cgroup_2_root),
		ROOT_TEST(gx_mem_room__cgroup_1),
		ROOT_TEST(gx_mem_room__odd_lines),
		cmocka_unit_test(gx_mem_fits__this_machine),
		ROOT_TEST(gx_mem_fits__to_the_byte),
		ARENA_TEST(gx_arena_map__is_not_forked),
		cmocka_unit_test(gx_pages_get__is_not_forked),
		cmocka_unit_test(gx_memfd__more_than_there_is),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
