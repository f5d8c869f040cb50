/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a GPU that the program allocated, named to another process: test_cuda_share cuda. Exits
 * with 77 where there is no GPU. test_gpu.c has gx's own memory; test_local_gpu.c moves bytes.
 */
#include "gx_internal/gpu.h"

#include "chunks.h"
#include "kit/common_fds.h"
#include "kit/common_vmm.h"

#include <gx/engine.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct gx_gpu *gpu;
static unsigned before;

static bool is_fake(void)
{
	return getenv("GX_FAKE_CUDA") != NULL;
}

static int setup(void **state)
{
	vmm_start();
	before = common_fds_count();
	return 0;
}

static int teardown(void **state)
{
	unsetenv("GX_FAKE_CUDA_FAIL");
	assert_int_equal(common_fds_count(), before);
	return 0;
}

/* By the driver, and waited for. */
static void set(const void *ptr, uint8_t value, size_t len)
{
	unsigned (*fn)(unsigned long long, unsigned char, size_t, void *) =
		common_cuda_symbol("cuMemsetD8Async");
	unsigned (*create)(void **, unsigned, int) =
		common_cuda_symbol("cuStreamCreateWithPriority");
	unsigned (*sync)(void *) = common_cuda_symbol("cuStreamSynchronize");
	unsigned (*destroy)(void *) = common_cuda_symbol("cuStreamDestroy_v2");
	void *stm;

	assert_int_equal(create(&stm, GX_CU_STREAM_NON_BLOCKING, 0), 0);
	assert_int_equal(fn((uintptr_t)ptr, value, len, stm), 0);
	assert_int_equal(sync(stm), 0);
	destroy(stm);
}

static uint8_t get(const void *ptr)
{
	struct gx_gpu_copy copy = {.src = ptr, .len = 1};
	uint32_t *flag = gx_gpu_flag_alloc(gpu, 2);
	struct gx_gpu_stream *s;
	uint8_t got;

	assert_non_null(flag);
	copy.dst = &flag[1];
	assert_int_equal(gpu->stream->open(gpu, GX_STREAM_COPY, &s), 0);
	assert_int_equal(s->ops->copy(s, &copy, 1, flag, 1, gx_now_ns()), 0);
	while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != 1)
		s->ops->reap(s, gx_now_ns());
	got = *(uint8_t *)&flag[1];
	gx_gpu_stream_close(s);
	gx_gpu_flag_free(gpu, flag);
	return got;
}

static void export_ok(const void *ptr, size_t len, enum gx_gpu_share kind, struct gx_gpu_handle *h)
{
	memset(h, 0x5a, sizeof(*h));
	if (gpu->share->export(gpu, ptr, len, h))
		fail_msg("%s", gx_gpu_why());
	assert_int_equal(h->kind, kind);
	if (kind == GX_GPU_SHARE_CHUNKS)
		assert_int_equal(gpu->share->chunks(gpu, ptr, len, &h->fd), 0);
}

static void export_fails(const void *ptr, size_t len, const char *why)
{
	struct gx_gpu_handle h = {0};

	assert_int_equal(gpu->share->export(gpu, ptr, len, &h), -EOPNOTSUPP);
	if (!strstr(gx_gpu_why(), why))
		fail_msg("'%s' is not in: %s", why, gx_gpu_why());
	assert_int_equal(h.kind, GX_GPU_SHARE_NONE);
}

/* Every chunk, in one range, in order: each is found where it was. */
static void vmm__all_chunks(void **state)
{
	struct vmm v = vmm_open(300); /* more than two messages */
	unsigned fds = common_fds_count();
	struct gx_gpu_handle h;
	char *same;

	for (unsigned i = 0; i < v.nr; i++)
		set(vmm_at(&v, i * VMM_CHUNK_B), (uint8_t)(i * 7), VMM_CHUNK_B);
	export_ok(vmm_at(&v, 0), v.nr * VMM_CHUNK_B, GX_GPU_SHARE_CHUNKS, &h);
	assert_int_equal(h.len, v.nr * VMM_CHUNK_B);
	assert_int_equal(common_fds_count(), fds + 1);
	assert_int_equal(gpu->share->import(gpu, &h, h.len, (void **)&same), 0);
	close(h.fd);
	assert_int_equal(common_fds_count() - fds, is_fake() ? v.nr : 0); /* its mappings */
	for (unsigned i = 0; i < v.nr; i++) {
		assert_int_equal(get(same + i * VMM_CHUNK_B), (uint8_t)(i * 7));
		assert_int_equal(get(same + (i + 1) * VMM_CHUNK_B - 1), (uint8_t)(i * 7));
	}
	set(same + VMM_CHUNK_B - 1, 0xab, 2); /* the other way, across two */
	assert_int_equal(get(vmm_at(&v, VMM_CHUNK_B - 1)), 0xab);
	assert_int_equal(get(vmm_at(&v, VMM_CHUNK_B)), 0xab);
	vmm_close(&v);
	assert_int_equal(get(same + 5 * VMM_CHUNK_B), 5 * 7);	   /* the mapping holds them */
	export_fails(same, 4096, "without a descriptor to share"); /* an import goes no further */
	gpu->share->unimport(gpu, same);
}

/* A tensor begins and ends somewhere in a chunk: those that it touches go, no others. */
static void vmm__a_part(void **state)
{
	struct vmm v = vmm_open(6);
	const size_t off = VMM_CHUNK_B + 4096 * 3, len = 2 * VMM_CHUNK_B;
	struct gx_gpu_handle h;
	char *same;

	export_ok(vmm_at(&v, off), len, GX_GPU_SHARE_CHUNKS, &h);
	assert_int_equal(h.len, 3 * VMM_CHUNK_B);
	assert_int_equal(h.off, 4096 * 3);
	set(vmm_at(&v, off), 0x11, len);
	assert_int_equal(gpu->share->import(gpu, &h, len, (void **)&same), 0);
	close(h.fd);
	assert_int_equal(get(same), 0x11);
	assert_int_equal(get(same + len - 1), 0x11);
	gpu->share->unimport(gpu, same);
	export_ok(vmm_at(&v, 4 * VMM_CHUNK_B + 100), VMM_CHUNK_B - 100, GX_GPU_SHARE_FD, &h);
	assert_int_equal(h.off, 100);
	assert_int_equal(h.len, VMM_CHUNK_B);
	close(h.fd);
	vmm_close(&v);
}

/* One chunk among others that nobody can share: the whole is refused, with the cure. */
static void vmm__a_chunk_without_a_type(void **state)
{
	for (unsigned bad = 0; bad < 3; bad++) {
		struct vmm v = vmm_reserve(3);

		while (v.nr_mapped < 3)
			vmm_map(&v, v.nr_mapped == bad ? 0 : GX_CU_HANDLE_POSIX_FD);
		export_fails(vmm_at(&v, 0), 3 * VMM_CHUNK_B, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC");
		vmm_close(&v);
	}
}

static void vmm__a_hole_behind(void **state)
{
	struct vmm v = vmm_reserve(3);

	vmm_map(&v, GX_CU_HANDLE_POSIX_FD);
	vmm_map(&v, GX_CU_HANDLE_POSIX_FD);
	export_fails(vmm_at(&v, 4096), 2 * VMM_CHUNK_B, "is not memory of a GPU");
	vmm_close(&v);
}

static void plain__by_cuda_ipc(void **state)
{
	unsigned (*alloc)(unsigned long long *, size_t) = common_cuda_symbol("cuMemAlloc_v2");
	unsigned (*release)(unsigned long long) = common_cuda_symbol("cuMemFree_v2");
	struct gx_gpu_handle h;
	unsigned long long ptr;
	char *mem;

	assert_int_equal(alloc(&ptr, 4 * VMM_CHUNK_B), 0);
	mem = (char *)(uintptr_t)ptr;
	export_ok(mem + 4096, 4 * VMM_CHUNK_B - 4096, GX_GPU_SHARE_IPC, &h);
	assert_int_equal(h.off, 4096);
	assert_int_equal(h.len, 4 * VMM_CHUNK_B);
	assert_int_equal(h.fd, -1);
	export_fails(mem + 4096, 4 * VMM_CHUNK_B, "ends at");
	assert_int_equal(release(ptr), 0);
}

static void pool__is_refused(void **state)
{
	unsigned (*alloc)(unsigned long long *, size_t, void *) =
		common_cuda_symbol("cuMemAllocAsync");
	unsigned (*release)(unsigned long long) = common_cuda_symbol("cuMemFree_v2");
	unsigned long long ptr;

	assert_int_equal(alloc(&ptr, VMM_CHUNK_B, NULL), 0);
	export_fails((void *)(uintptr_t)ptr, 4096, "backend:native");
	assert_int_equal(release(ptr), 0);
}

static void host__is_none(void **state)
{
	int on_stack = 0;

	export_fails(&on_stack, sizeof(on_stack), "is not memory of a GPU");
}

/* A peer may send anything in the place of such a socket. */
static void import__lies(void **state)
{
	struct vmm v = vmm_open(4);
	struct gx_gpu_handle h;
	void *out = NULL;
	struct chunk c[CHUNKS_MSG];
	int ends[2], n;

	export_ok(vmm_at(&v, 0), 4 * VMM_CHUNK_B, GX_GPU_SHARE_CHUNKS, &h);
	h.len = 5 * VMM_CHUNK_B; /* more than come */
	assert_int_equal(gpu->share->import(gpu, &h, h.len, &out), -EPROTO);
	close(h.fd);
	export_ok(vmm_at(&v, 0), 4 * VMM_CHUNK_B, GX_GPU_SHARE_CHUNKS, &h);
	h.len = 3 * VMM_CHUNK_B; /* fewer */
	assert_int_equal(gpu->share->import(gpu, &h, h.len, &out), -EPROTO);
	assert_non_null(strstr(gx_gpu_why(), "longer than"));
	close(h.fd);
	export_ok(vmm_at(&v, 0), 4 * VMM_CHUNK_B, GX_GPU_SHARE_CHUNKS, &h);
	n = chunks_recv(h.fd, c);
	close(h.fd);
	assert_int_equal(n, 4);
	for (unsigned i = 0; i < 3; i++) {
		static const uint64_t len[] = {VMM_CHUNK_B / 2, 2 * VMM_CHUNK_B, 0};

		assert_int_equal(chunks_open(ends), 0);
		c[1].len = len[i]; /* not what that allocation has */
		assert_int_equal(chunks_send(ends[1], c, 4), 0);
		h.fd = ends[0];
		h.len = 8 * VMM_CHUNK_B;
		assert_int_equal(gpu->share->import(gpu, &h, h.len, &out), -EPROTO);
		close(ends[0]);
		close(ends[1]);
	}
	for (int i = 0; i < n; i++)
		close(c[i].fd);
	assert_int_equal(pipe(ends), 0);
	h.fd = ends[0];
	assert_int_equal(gpu->share->import(gpu, &h, h.len, &out), -EPROTO);
	close(ends[0]);
	close(ends[1]);
	assert_null(out);
	vmm_close(&v);
}

/* The driver fails in the midst: nothing is left mapped, and no descriptor open. */
static void fails__in_the_midst(void **state)
{
	static const char *const at_import[] = {"cuMemImportFromShareableHandle 3", "cuMemMap 1",
						"cuMemMap 4", "cuMemSetAccess 1"};
	struct vmm v = vmm_open(4);
	struct gx_gpu_handle h;
	unsigned fds = common_fds_count();
	void *out = NULL;
	int fd = -1;

	if (!is_fake())
		goto out;
	for (unsigned i = 0; i < GX_ARRAY_SIZE(at_import); i++) {
		export_ok(vmm_at(&v, 0), 4 * VMM_CHUNK_B, GX_GPU_SHARE_CHUNKS, &h);
		setenv("GX_FAKE_CUDA_FAIL", at_import[i], 1);
		assert_int_equal(gpu->share->import(gpu, &h, h.len, &out), -EPROTO);
		assert_true(strlen(gx_gpu_why()) > 0);
		unsetenv("GX_FAKE_CUDA_FAIL");
		close(h.fd);
		assert_int_equal(common_fds_count(), fds);
	}
	setenv("GX_FAKE_CUDA_FAIL", "cuMemExportToShareableHandle 3", 1);
	assert_int_equal(gpu->share->chunks(gpu, vmm_at(&v, 0), 4 * VMM_CHUNK_B, &fd), -EOPNOTSUPP);
	assert_non_null(strstr(gx_gpu_why(), "cuMemExportToShareableHandle"));
	unsetenv("GX_FAKE_CUDA_FAIL");
	assert_int_equal(fd, -1);
	assert_null(out);
out:
	vmm_close(&v);
}

/* An engine names such memory, too. */
static void engine__chunks(void **state)
{
	struct vmm v = vmm_open(3);
	struct gx_engine_opts o = {.size = sizeof(o)};
	struct gx_engine_handle h;
	struct gx_engine *e;
	void *same;

	assert_int_equal(gx_engine_open(&o, &e), 0);
	before = common_fds_count() - (is_fake() ? v.nr : 0);
	assert_int_equal(gx_engine_export(e, vmm_at(&v, 0), 3 * VMM_CHUNK_B, &h), 0);
	assert_int_equal(gx_engine_import(e, &h, 3 * VMM_CHUNK_B, &same), 0);
	set(vmm_at(&v, 2 * VMM_CHUNK_B), 0x77, 1);
	assert_int_equal(get((char *)same + 2 * VMM_CHUNK_B), 0x77);
	gx_engine_unimport(e, same);
	close(h.fd);
	gx_engine_close(e);
	vmm_close(&v);
	before = common_fds_count();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(vmm__all_chunks),
		TEST(vmm__a_part),
		TEST(vmm__a_chunk_without_a_type),
		TEST(vmm__a_hole_behind),
		TEST(plain__by_cuda_ipc),
		TEST(pool__is_refused),
		TEST(host__is_none),
		TEST(import__lies),
		TEST(fails__in_the_midst),
		TEST(engine__chunks),
	};
	struct gx_gpu_cfg cfg = {0};
	int failed;

	if (gx_gpu_cuda_ops.open(&cfg, &gpu)) {
		printf("no CUDA backend: %s\n", gx_gpu_why());
		return strcmp(gx_gpu_why(), "built without nvcc") && common_cuda_count() ? 1 : 77;
	}
	failed = cmocka_run_group_tests_name("memory of the program", tests, NULL, NULL);
	gpu->ops->close(gpu);
	return failed;
}
