/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a program registers: host memory in ranges that overlap, and memory of GPUs as the
 * driver knows it: test_cuda_mem cuda. Exits with 77 where there is no GPU. After each case the GPU
 * still copies: a wrong one ends the program's context on a card, and in the fake driver.
 */
#include "gx_internal/gpu.h"

#include "core/core.h"
#include "kit/common_gx.h"
#include "kit/common_vmm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MB ((size_t)1 << 20)

static const struct gx_gpu_ops *ops = &gx_gpu_cuda_ops;
static struct gx_gpu *gpu;
static struct gx_gpu_stream *stm;
static uint32_t *flag;
static char *dev; /* of the GPU, 8 MiB */
static struct gx *gx;

static struct {
	unsigned (*alloc)(unsigned long long *ptr, size_t len);
	unsigned (*free)(unsigned long long ptr);
	unsigned (*pool_alloc)(unsigned long long *ptr, size_t len, void *stream);
	unsigned (*reg)(void *ptr, size_t len, unsigned flags);
	unsigned (*unreg)(void *ptr);
	unsigned (*dev_ptr)(unsigned long long *out, void *ptr, unsigned flags);
	unsigned (*attribute)(void *value, unsigned which, unsigned long long ptr);
	unsigned (*range)(unsigned long long *base, size_t *len, unsigned long long ptr);
	unsigned (*retain)(struct CUctx_st **ctx, int device);
	unsigned (*set_current)(struct CUctx_st *ctx);
	unsigned (*get_current)(struct CUctx_st **ctx);
} drv;

static char *pages(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	return p;
}

/* Other pages at the same addresses, which hold @value. */
static void pages_anew(char *at, size_t len, int value)
{
	assert_ptr_equal(mmap(at, len, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
			 at);
	memset(at, value, len);
}

/* Return: 0, or that the GPU refuses; a fault of the stream fails the test. */
static int copy(void *dst, const void *src, size_t len)
{
	struct gx_gpu_copy one = {dst, src, len};
	static uint32_t seq;
	int ret = stm->ops->copy(stm, &one, 1, flag, ++seq, gx_now_ns());

	while (!ret && __atomic_load_n(flag, __ATOMIC_ACQUIRE) != seq) {
		stm->ops->reap(stm, gx_now_ns());
		if (stm->ops->fault(stm))
			fail_msg("the context is gone: %s", gx_gpu_why());
	}
	return ret;
}

/* All of it goes to the GPU and comes back. */
static void moves(char *host, size_t len)
{
	static unsigned turn;
	char *want = malloc(len);

	for (size_t i = 0; i < len; i++)
		want[i] = (char)(i * 2654435761u >> 13 ^ turn);
	turn++;
	memcpy(host, want, len);
	assert_int_equal(copy(dev, host, len), 0);
	memset(host, 0, len);
	assert_int_equal(copy(host, dev, len), 0);
	assert_memory_equal(host, want, len);
	free(want);
}

static bool registered(char *ptr)
{
	unsigned long long out;

	return !drv.dev_ptr(&out, ptr, 0);
}

static void map_ok(char *ptr, size_t len)
{
	if (ops->host_map(gpu, ptr, len))
		fail_msg("%s", gx_gpu_why());
	moves(ptr, len);
}

static void map_fails(char *ptr, size_t len, const char *why)
{
	assert_int_equal(ops->host_map(gpu, ptr, len), -EOPNOTSUPP);
	if (!strstr(gx_gpu_why(), why))
		fail_msg("'%s' is not in: %s", why, gx_gpu_why());
}

static void unmap(char *ptr, size_t len)
{
	assert_true(ops->host_unmap(gpu, ptr, len));
}

static int setup(void **state)
{
	*state = pages(8 * MB);
	return 0;
}

/* The GPU works, and nothing is registered any more. */
static int teardown(void **state)
{
	char *a = *state;

	for (size_t at = 0; at < 8 * MB; at += MB / 2)
		assert_false(registered(a + at));
	map_ok(a, 8 * MB);
	unmap(a, 8 * MB);
	munmap(a, 8 * MB);
	return 0;
}

/* ---- host memory ---- */

/* Where its end would wait for the work of cores, and launches of cores with it. */
static void host_map__not_among_the_work(void **state)
{
	struct CUctx_st *is = NULL, *now = NULL;
	char *a = *state;

	map_ok(a, MB);
	assert_int_equal(drv.attribute(&is, 1 /* CU_POINTER_ATTRIBUTE_CONTEXT */, (uintptr_t)a), 0);
	assert_true(is && is != vmm_drv.ctx);
	unmap(a, MB);
	assert_int_equal(drv.get_current(&now), 0);
	assert_ptr_equal(now, vmm_drv.ctx);
}

/* A GPU whose memory others have. */
static void host_map__without_a_context(void **state)
{
	struct CUctx_st *is = NULL;
	char *a = *state;

	if (!getenv("GX_FAKE_CUDA"))
		skip();
	setenv("GX_FAKE_CUDA_FAIL", "cuCtxCreate 1", 1);
	map_ok(a, MB);
	map_ok(a + 2 * MB, MB);
	unsetenv("GX_FAKE_CUDA_FAIL");
	assert_int_equal(drv.attribute(&is, 1 /* CU_POINTER_ATTRIBUTE_CONTEXT */, (uintptr_t)a), 0);
	assert_ptr_equal(is, vmm_drv.ctx);
	unmap(a, MB);
	unmap(a + 2 * MB, MB);
}

static void host_map__around_a_hole(void **state)
{
	char *a = *state;

	map_ok(a, MB);
	map_ok(a + 3 * MB, MB);
	map_ok(a, 4 * MB);
	assert_true(registered(a + 2 * MB));
	unmap(a, MB);
	unmap(a + 3 * MB, MB);
	moves(a, 4 * MB);
	unmap(a, 4 * MB);
}

static void host_map__halves_and_the_whole(void **state)
{
	char *a = *state;

	for (int first = 0; first < 2; first++) {
		map_ok(a, MB);
		map_ok(a + MB, MB);
		map_ok(a, 2 * MB);
		unmap(a + (first ? MB : 0), MB);
		moves(a, 2 * MB);
		unmap(a + (first ? 0 : MB), MB);
		moves(a, 2 * MB);
		unmap(a, 2 * MB);
		assert_false(registered(a) || registered(a + 2 * MB - 1));
	}
}

/* A half that is unregistered is not unregistered twice, nor does it find the other's. */
static void host_map__halves(void **state)
{
	char *a = *state;

	map_ok(a, MB);
	map_ok(a + MB, MB);
	unmap(a, MB);
	assert_false(registered(a));
	moves(a + MB, MB);
	map_ok(a, 2 * MB);
	unmap(a + MB, MB);
	moves(a, 2 * MB);
	unmap(a, 2 * MB);
}

static void host_map__crosswise(void **state)
{
	char *a = *state;

	map_ok(a, 2 * MB);
	map_ok(a + MB, 2 * MB);
	map_ok(a + MB, 2 * MB); /* once more */
	unmap(a, 2 * MB);
	moves(a + MB, 2 * MB);
	unmap(a + MB, 2 * MB);
	moves(a + MB, 2 * MB);
	unmap(a + MB, 2 * MB);
}

/* The part keeps the whole's registration, which is of pages that the program may have replaced. */
static void host_map__a_part_outlives(void **state)
{
	char *a = *state;

	map_ok(a, 4 * MB);
	map_ok(a + MB, MB);
	unmap(a, 4 * MB);
	moves(a + MB, MB);
	pages_anew(a, MB, 1);
	map_fails(a, MB, "there before");
	map_fails(a, 2 * MB, "there before");
	moves(a + MB, MB);
	unmap(a + MB, MB);
	map_ok(a, 2 * MB);
	unmap(a, 2 * MB);
}

/* Pages that come again at freed addresses are the ones that the GPU reads. */
static void host_map__new_pages(void **state)
{
	char *a = *state, got;

	for (int i = 1; i < 4; i++) {
		map_ok(a, 2 * MB);
		map_ok(a, MB);
		unmap(a, MB);
		unmap(a, 2 * MB);
		pages_anew(a, 2 * MB, i);
		map_ok(a + MB, MB);
		memset(a + MB, i, MB);
		assert_int_equal(copy(dev, a + MB, 1), 0);
		memset(a + MB, 0, MB);
		assert_int_equal(copy(a + MB, dev, 1), 0);
		got = a[MB];
		assert_int_equal(got, i);
		unmap(a + MB, MB);
	}
}

/* Two buffers in one page. */
static void host_map__within_a_page(void **state)
{
	char *a = *state;

	map_ok(a + 64, 100);
	map_ok(a + 200, 3000);
	unmap(a + 64, 100);
	moves(a + 200, 3000);
	map_ok(a + 3500, 2 * 4096);
	unmap(a + 200, 3000);
	moves(a + 3500, 2 * 4096);
	unmap(a + 3500, 2 * 4096);
}

static void host_map__beyond_the_mapping(void **state)
{
	char *a = *state, *b = pages(2 * MB);

	munmap(b + MB, MB);
	assert_int_not_equal(ops->host_map(gpu, b, 2 * MB), 0);
	map_ok(b, MB);
	assert_int_not_equal(ops->host_map(gpu, b, 2 * MB), 0);
	moves(b, MB);
	unmap(b, MB);
	assert_false(registered(b));
	munmap(b, MB);
	map_ok(a, MB);
	unmap(a, MB);
}

/* What the program registered itself stays its own, and is used where it is one. */
static void host_map__of_the_program(void **state)
{
	char *a = *state;

	assert_int_equal(drv.reg(a, MB, 3), 0);
	assert_int_equal(drv.reg(a + 2 * MB, MB, 3), 0);
	map_fails(a, 2 * MB, "nor is all of it in one"); /* its end is not registered */
	map_fails(a, 3 * MB, "nor is all of it in one"); /* its middle */
	map_fails(a + MB, 3 * MB, "nor is all of it in one");
	map_ok(a, MB);
	map_ok(a + 4096, MB - 4096);
	map_fails(a, 3 * MB, "nor is all of it in one");
	map_ok(a, 2 * MB); /* its second half is gx's */
	unmap(a, 2 * MB);
	unmap(a, MB);
	unmap(a + 4096, MB - 4096);
	assert_true(registered(a));
	assert_int_equal(drv.unreg(a), 0);
	assert_int_equal(drv.unreg(a + 2 * MB), 0);
}

/* The program ends its registration while gx knows it. */
static void host_map__ended_by_the_program(void **state)
{
	char *a = *state;

	assert_int_equal(drv.reg(a, 2 * MB, 3), 0);
	map_ok(a, 2 * MB);
	assert_int_equal(drv.unreg(a), 0);
	assert_int_equal(drv.reg(a, MB, 3), 0);
	map_fails(a, 2 * MB, "nor is all of it in one");
	unmap(a, 2 * MB);
	assert_true(registered(a));
	assert_int_equal(drv.unreg(a), 0);
	map_ok(a, 2 * MB);
	unmap(a, 2 * MB);
}

static void host_map__second_gpu(void **state)
{
	struct gx_gpu_cfg cfg = {.device = 1};
	struct gx_gpu *other;
	char *a = *state;

	if (common_cuda_count() < 2)
		skip();
	assert_int_equal(ops->open(&cfg, &other), 0);
	assert_int_equal(ops->host_map(other, a, 2 * MB), 0);
	map_ok(a, 4 * MB);
	assert_true(ops->host_unmap(other, a, 2 * MB));
	ops->close(other);
	moves(a, 4 * MB);
	unmap(a, 4 * MB);
}

/* ---- memory of GPUs ---- */

static struct gx_mem *reg_ok(const void *ptr, size_t len)
{
	struct gx_mem *mem;

	if (gx_mem_reg(gx, GX_MEM_CUDA, 0, (void *)ptr, len, &mem))
		fail_msg("%s", gx_error());
	assert_int_equal(copy((void *)ptr, dev, GX_MIN(len, 8 * MB)), 0);
	return mem;
}

static void reg_end(struct gx_mem *mem)
{
	assert_int_equal(gx_mem_free(mem), 0);
}

static void reg_fails(int device, const void *ptr, size_t len, const char *why)
{
	struct gx_mem *mem = NULL;

	assert_int_equal(gx_mem_reg(gx, GX_MEM_CUDA, device, (void *)ptr, len, &mem), -EINVAL);
	if (!strstr(gx_error(), why))
		fail_msg("'%s' is not in: %s", why, gx_error());
	assert_null(mem);
}

static void mem_reg__of_cuda_malloc(void **state)
{
	unsigned long long at = 0;
	const char *p;

	assert_int_equal(drv.alloc(&at, 4 * MB), 0);
	p = (const char *)(uintptr_t)at;
	reg_end(reg_ok(p, 4 * MB));
	reg_end(reg_ok(p + 4096, MB));
	reg_end(reg_ok(p + 4 * MB - 1, 1));
	reg_fails(0, p, 64 * MB, "");
	reg_fails(0, p + 4096, SIZE_MAX - 1, "");
	reg_fails(0, p, SIZE_MAX, "");
	assert_int_equal(drv.free(at), 0);
	reg_fails(0, p, 4 * MB, "freed?");
}

static void mem_reg__of_the_host(void **state)
{
	char *a = *state;

	reg_fails(0, a, 4096, "is not memory of a GPU");
	assert_int_equal(ops->host_map(gpu, a, MB), 0);
	reg_fails(0, a, 4096, "is not memory of a GPU");
	unmap(a, MB);
	reg_fails(0, (void *)8, 4096, "is not memory of a GPU");
}

static void mem_reg__of_cu_mem_create(void **state)
{
	struct vmm v = vmm_reserve(6);

	for (unsigned i = 0; i < 4; i++)
		vmm_map(&v, GX_CU_HANDLE_POSIX_FD);
	reg_end(reg_ok(vmm_at(&v, 0), 4 * VMM_CHUNK_B));
	reg_end(reg_ok(vmm_at(&v, 4096), 3 * VMM_CHUNK_B));
	reg_end(reg_ok(vmm_at(&v, VMM_CHUNK_B), 1));
	reg_fails(0, vmm_at(&v, 0), 4 * VMM_CHUNK_B + 1, "");
	reg_fails(0, vmm_at(&v, 4096), 6 * VMM_CHUNK_B - 4096, "");
	reg_fails(0, vmm_at(&v, 4 * VMM_CHUNK_B), 4096, "");
	vmm_close(&v);
	reg_fails(0, vmm_at(&v, 0), VMM_CHUNK_B, "");
}

static void mem_reg__of_a_pool(void **state)
{
	unsigned long long at = 0;
	char *p;

	assert_int_equal(drv.pool_alloc(&at, 4 * MB, NULL), 0);
	p = (char *)(uintptr_t)at;
	reg_end(reg_ok(p, 4 * MB));
	reg_end(reg_ok(p + MB, MB));
	assert_int_equal(drv.free(at), 0);
}

/* Of another GPU, and of one behind the other. */
static void mem_reg__of_another_gpu(void **state)
{
	struct CUctx_st *other = NULL;
	unsigned long long at = 0;

	if (common_cuda_count() < 2)
		skip();
	assert_int_equal(drv.retain(&other, 1), 0);
	assert_int_equal(drv.set_current(other), 0);
	assert_int_equal(drv.alloc(&at, MB), 0);
	assert_int_equal(drv.set_current(vmm_drv.ctx), 0);
	reg_fails(0, (void *)(uintptr_t)at, MB, "memory of cuda:1, not of cuda:0");
	assert_int_equal(drv.set_current(other), 0);
	assert_int_equal(drv.free(at), 0);
	assert_int_equal(drv.set_current(vmm_drv.ctx), 0);
}

static void mem_reg__managed(void **state)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	unsigned (*alloc)(unsigned long long *ptr, size_t len, unsigned flags) =
		lib ? dlsym(lib, "cuMemAllocManaged") : NULL;
	unsigned long long at = 0;

	if (!alloc) /* the fake driver has none */
		skip();
	assert_int_equal(alloc(&at, 4 * MB, 1), 0);
	reg_end(reg_ok((void *)(uintptr_t)at, 4 * MB));
	reg_fails(0, (void *)(uintptr_t)at, 64 * MB, "");
	assert_int_equal(drv.free(at), 0);
}

/* Of another process, or named as if. */
static void mem_reg__imported(void **state)
{
	struct vmm v = vmm_open(3);
	struct gx_gpu_handle h;
	void *same;

	assert_int_equal(gpu->share->export(gpu, vmm_at(&v, 0), 3 * VMM_CHUNK_B, &h), 0);
	assert_int_equal(gpu->share->chunks(gpu, vmm_at(&v, 0), 3 * VMM_CHUNK_B, &h.fd), 0);
	assert_int_equal(gpu->share->import(gpu, &h, h.len, &same), 0);
	close(h.fd);
	reg_end(reg_ok(same, 3 * VMM_CHUNK_B));
	gpu->share->unimport(gpu, same);
	vmm_close(&v);
}

/* ---- copies for checks ---- */

static const struct gx_gpu_stream_ops *ops_of_gx;
static struct gx_gpu_stream_ops counted;
static unsigned nr_opened;

static int open_counted(struct gx_gpu *g, enum gx_stream_kind kind, struct gx_gpu_stream **out)
{
	nr_opened++;
	return ops_of_gx->open(g, kind, out);
}

/* The end of a stream waits for all work of the GPU, and cores wait for it: one is kept. */
static void mem_copy__opens_one_stream(void **state)
{
	const struct gx_gpu_stream_ops *was;
	char word[16] = "0123456789abcde", got[16];
	struct gx_mem *mem;

	assert_int_equal(gx_mem_alloc(gx, GX_MEM_CUDA, 0, MB, &mem), 0);
	was = ops_of_gx = gx->gpu[0]->stream;
	counted = *was;
	counted.open = open_counted;
	gx->gpu[0]->stream = &counted;
	for (unsigned i = 0; i < 20; i++) {
		word[i % 15]++;
		assert_int_equal(gx_mem_copy_in(mem, i * 100, word, sizeof(word)), 0);
		assert_int_equal(gx_mem_copy_out(mem, i * 100, got, sizeof(got)), 0);
		assert_memory_equal(got, word, sizeof(word));
	}
	assert_int_equal(nr_opened, 1);
	if (getenv("GX_FAKE_CUDA")) { /* one that has failed is not used again */
		setenv("GX_FAKE_CUDA_DEAD", "1", 1);
		assert_int_not_equal(gx_mem_copy_out(mem, 0, got, sizeof(got)), 0);
		unsetenv("GX_FAKE_CUDA_DEAD");
		assert_int_equal(gx_mem_copy_out(mem, 1900, got, sizeof(got)), 0);
		assert_memory_equal(got, word, sizeof(word));
		assert_int_equal(nr_opened, 2);
	}
	gx->gpu[0]->stream = was;
	assert_int_equal(gx_mem_free(mem), 0);
}

/* ---- what the driver says, for people ---- */

static void say(const char *what, char *ptr, size_t len)
{
	unsigned long long base = 0, first = 0, last = 0;
	unsigned type = 0, managed = 0, r[5];
	size_t all = 0;
	int device = -9;

	r[0] = drv.range(&base, &all, (uintptr_t)ptr);
	r[1] = drv.attribute(&type, GX_CU_POINTER_MEMORY_TYPE, (uintptr_t)ptr);
	r[2] = drv.attribute(&device, GX_CU_POINTER_DEVICE, (uintptr_t)ptr);
	r[3] = drv.attribute(&first, GX_CU_POINTER_BUFFER_ID, (uintptr_t)ptr);
	r[4] = drv.attribute(&last, GX_CU_POINTER_BUFFER_ID, (uintptr_t)(ptr + len - 1));
	drv.attribute(&managed, GX_CU_POINTER_IS_MANAGED, (uintptr_t)ptr);
	printf("# %s: range %u: begins %lld before, %zu bytes; type %u: %u; device %u: %d; buffers "
	       "%u, %u: %s; managed %u\n",
	       what, r[0], (long long)((uintptr_t)ptr - base), all, r[1], type, r[2], device, r[3],
	       r[4], first == last ? "one" : "two", managed);
}

static void driver__says(void **state)
{
	unsigned long long at = 0;
	char *a = *state, *pinned = ops->pinned_alloc(gpu, MB);
	struct vmm v = vmm_open(2);

	say("host, unknown", a, MB);
	assert_int_equal(drv.reg(a, MB, 3), 0);
	assert_int_equal(drv.reg(a + MB, MB, 3), 0);
	say("host, registered", a + 4096, MB - 4096);
	say("host, two registrations", a, 2 * MB);
	assert_int_equal(drv.reg(a + MB / 2, MB, 3), GX_CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	assert_int_equal(drv.reg(a, MB, 3), GX_CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	drv.unreg(a);
	drv.unreg(a + MB);
	say("host, pinned", pinned + 4096, MB - 4096);
	ops->pinned_free(gpu, pinned);
	say("cuMemCreate, two", vmm_at(&v, 4096), VMM_CHUNK_B);
	vmm_close(&v);
	say("cuMemCreate, ended", vmm_at(&v, 4096), VMM_CHUNK_B);
	drv.alloc(&at, MB);
	say("cuMemAlloc", (char *)(uintptr_t)at + 4096, 4096);
	drv.free(at);
	say("cuMemAlloc, freed", (char *)(uintptr_t)at + 4096, 4096);
	drv.pool_alloc(&at, MB, NULL);
	say("pool", (char *)(uintptr_t)at + 4096, 4096);
	drv.free(at);
	say("pool, freed", (char *)(uintptr_t)at + 4096, 4096);
}

static void drv_find(void)
{
	drv.alloc = common_cuda_symbol("cuMemAlloc_v2");
	drv.free = common_cuda_symbol("cuMemFree_v2");
	drv.pool_alloc = common_cuda_symbol("cuMemAllocAsync");
	drv.reg = common_cuda_symbol("cuMemHostRegister_v2");
	drv.unreg = common_cuda_symbol("cuMemHostUnregister");
	drv.dev_ptr = common_cuda_symbol("cuMemHostGetDevicePointer_v2");
	drv.attribute = common_cuda_symbol("cuPointerGetAttribute");
	drv.range = common_cuda_symbol("cuMemGetAddressRange_v2");
	drv.retain = common_cuda_symbol("cuDevicePrimaryCtxRetain");
	drv.set_current = common_cuda_symbol("cuCtxSetCurrent");
	drv.get_current = common_cuda_symbol("cuCtxGetCurrent");
}

static int group_setup(void **state)
{
	struct gx_opts o = GX_INIT(o);

	drv_find();
	vmm_start();
	if (gpu->stream->open(gpu, GX_STREAM_COPY, &stm) ||
	    gpu->mem->alloc(gpu, 8 * MB, (void **)&dev) || gx_open(&o, &gx))
		return -1;
	flag = gx_gpu_flag_alloc(gpu, 1);
	return !flag;
}

static int group_teardown(void **state)
{
	gx_gpu_stream_close(stm);
	gx_gpu_flag_free(gpu, flag);
	gpu->mem->free(gpu, dev, 8 * MB);
	gx_close(gx);
	ops->close(gpu);
	return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(driver__says),
		TEST(host_map__not_among_the_work),
		TEST(host_map__without_a_context),
		TEST(host_map__around_a_hole),
		TEST(host_map__halves_and_the_whole),
		TEST(host_map__halves),
		TEST(host_map__crosswise),
		TEST(host_map__a_part_outlives),
		TEST(host_map__new_pages),
		TEST(host_map__within_a_page),
		TEST(host_map__beyond_the_mapping),
		TEST(host_map__of_the_program),
		TEST(host_map__ended_by_the_program),
		TEST(host_map__second_gpu),
		TEST(mem_reg__of_cuda_malloc),
		TEST(mem_reg__of_the_host),
		TEST(mem_reg__of_cu_mem_create),
		TEST(mem_reg__of_a_pool),
		TEST(mem_reg__of_another_gpu),
		TEST(mem_reg__managed),
		TEST(mem_reg__imported),
		TEST(mem_copy__opens_one_stream),
	};
	struct gx_gpu_cfg cfg = {0};

	if (ops->open(&cfg, &gpu)) {
		printf("no CUDA backend: %s\n", gx_gpu_why());
		return 77;
	}
	return cmocka_run_group_tests_name("memory that is registered", tests, group_setup,
					   group_teardown);
}
