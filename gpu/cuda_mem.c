/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the CUDA backend: memory of the GPU, pinned memory, and memory of the program that gx
 * registers. Control path, any thread. Every slot makes the device's primary context current and
 * restores the context before it.
 *
 * GPU memory is made with the virtual memory management calls if the driver has them: only such
 * memory can go to another process as a descriptor. All GPUs of this process that reach it over
 * NVLink or PCIe may use it at its address.
 */
#include "cuda_priv.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MEM_WAIT_NS 30000000000ull /* for one clearing, or a kernel's first launch */

static struct cuda_range *range_list; /* owner: control threads, under mem_lock */
static pthread_mutex_t mem_lock = PTHREAD_MUTEX_INITIALIZER;

int cuda_mem_clear(struct cuda_gpu *g, unsigned long long ptr, size_t len)
{
	int ret = CUDA_TRY(cuMemsetD8Async, ptr, 0, len, g->ctl);

	return ret ? ret : cuda_wait(g, g->ctl);
}

int cuda_wait(struct cuda_gpu *g, struct CUstream_st *stm)
{
	unsigned res = cuda_drain(stm, gx_now_ns() + MEM_WAIT_NS);

	if (!cuda_is_busy(res))
		return cuda_try(res, "waiting for the GPU");
	gx_gpu_why_set("the GPU does not come to a first job within %llu s: what holds it?",
		       MEM_WAIT_NS / 1000000000);
	if (stm == g->ctl) {
		g->ctl_lost.g = g;
		g->ctl_lost.stm = stm;
		cuda_lose(&g->ctl_lost, "the clearing of memory");
	}
	return -ENODEV;
}

/* ---- mapped ranges ---- */

void cuda_range_add(struct cuda_range *r)
{
	pthread_mutex_lock(&mem_lock);
	r->next = range_list;
	range_list = r;
	pthread_mutex_unlock(&mem_lock);
}

struct cuda_range *cuda_range_take(unsigned long long user)
{
	struct cuda_range **at = &range_list, *r;

	pthread_mutex_lock(&mem_lock);
	while (*at && (*at)->user != user)
		at = &(*at)->next;
	r = *at;
	if (r)
		*at = r->next;
	pthread_mutex_unlock(&mem_lock);
	return r;
}

static unsigned range_allow_one(int device, unsigned long long base, size_t len)
{
	const struct cuda_mem_access who = {.location = {GX_CU_LOCATION_DEVICE, device},
					    .flags = GX_CU_ACCESS_READWRITE};

	return cu.cuMemSetAccess(base, len, (const void *)&who, 1);
}

/* gx asks for each GPU alone: one that cannot would fail all, and of an import the driver alone knows
 * which can. */
int cuda_range_allow(struct cuda_gpu *g, const struct cuda_range *r)
{
	int n = 0,
	    ret = cuda_try(range_allow_one(g->gpu.device, r->base, r->mapped), "cuMemSetAccess");

	if (ret)
		return ret;
	cu.cuDeviceGetCount(&n);
	for (int d = 0; d < n; d++)
		if (d != g->gpu.device)
			range_allow_one(d, r->base, r->mapped);
	return 0;
}

int cuda_range_reserve(struct cuda_range *r)
{
	return CUDA_TRY(cuMemAddressReserve, &r->base, r->len, 0, 0, 0);
}

int cuda_range_map(struct cuda_range *r, unsigned long long handle, size_t len)
{
	int ret = CUDA_TRY(cuMemMap, r->base + r->mapped, len, 0, handle, 0);

	if (!ret)
		r->mapped += len;
	return ret;
}

void cuda_range_close(struct cuda_range *r)
{
	if (r->ipc)
		cu.cuIpcCloseMemHandle(r->base);
	if (r->mapped)
		cu.cuMemUnmap(r->base, r->mapped);
	if (r->base && !r->ipc && !r->placed)
		cu.cuMemAddressFree(r->base, r->len);
	free(r);
}

/* ---- memory of the GPU ---- */

static int vmm_create(struct cuda_gpu *g, int device, struct cuda_range *r, size_t len,
		      unsigned long long *handle)
{
	const struct cuda_mem_prop prop = {.type = GX_CU_ALLOCATION_PINNED,
					   .handle_types = GX_CU_HANDLE_POSIX_FD,
					   .location = {GX_CU_LOCATION_DEVICE, device},
					   .rdma = g->vmm_rdma};
	const struct CUmemAllocationProp_st *as_prop = (const void *)&prop;
	size_t granule = 0;
	int ret;

	ret = CUDA_TRY(cuMemGetAllocationGranularity, &granule, as_prop, GX_CU_GRANULARITY_MIN);
	if (ret)
		return ret;
	if (!granule || len > SIZE_MAX - granule)
		return -ENOMEM;
	r->len = (len + granule - 1) / granule * granule;
	if (r->placed && r->len != len) {
		gx_gpu_why_set("memory comes in pieces of %zu bytes at least", r->len);
		return -EOPNOTSUPP;
	}
	return CUDA_TRY(cuMemCreate, handle, r->len, as_prop, 0);
}

/* Memory in @r, at r->base if that is set. The mapping holds it without the handle. */
static int vmm_fill(struct cuda_gpu *g, int device, struct cuda_range *r, size_t len)
{
	unsigned long long handle;
	int ret = vmm_create(g, device, r, len, &handle);

	if (ret)
		return ret;
	if (!r->placed)
		ret = cuda_range_reserve(r);
	if (!ret)
		ret = cuda_range_map(r, handle, r->len);
	cu.cuMemRelease(handle);
	return ret ? ret : cuda_range_allow(g, r);
}

/* *at: the place, in addresses that are reserved; 0: anywhere, and it is set. */
static int vmm_alloc(struct cuda_gpu *g, int device, size_t len, unsigned long long *at)
{
	struct cuda_range *r = calloc(1, sizeof(*r));
	int ret;

	if (!r)
		return -ENOMEM;
	r->base = *at;
	r->placed = *at != 0;
	ret = vmm_fill(g, device, r, len);
	if (ret) {
		cuda_range_close(r);
		return ret;
	}
	r->user = r->base;
	*at = r->base;
	cuda_range_add(r);
	return 0;
}

static void mem_release(struct cuda_gpu *g, unsigned long long ptr)
{
	struct cuda_range *r;

	if (cuda_is_lost(g))
		return;
	r = cuda_range_take(ptr);
	if (r)
		cuda_range_close(r);
	else
		cu.cuMemFree_v2(ptr);
}

/* The attribute orders the driver's synchronous calls after the writes of other devices to this
 * memory. It is for memory of cuMemAlloc alone: on mapped memory the driver answers "not supported"
 * (driver 580). */
static int plain_alloc(size_t len, unsigned long long *out)
{
	unsigned long long ptr = 0;
	unsigned on = 1;
	int ret = CUDA_TRY(cuMemAlloc_v2, &ptr, len);

	if (ret)
		return ret;
	ret = CUDA_TRY(cuPointerSetAttribute, &on, GX_CU_POINTER_SYNC_MEMOPS, ptr);
	if (ret)
		cu.cuMemFree_v2(ptr);
	else
		*out = ptr;
	return ret;
}

static int cuda_mem_alloc(struct gx_gpu *gpu, size_t len, void **out)
{
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_prev prev = cuda_enter(g);
	unsigned long long ptr = 0;
	int ret = g->vmm ? vmm_alloc(g, gpu->device, len + !len, &ptr)
			 : plain_alloc(len + !len, &ptr);

	if (ret)
		goto out;
	ret = cuda_mem_clear(g, ptr, len + !len);
	if (ret)
		mem_release(g, ptr);
	else
		*out = (void *)(uintptr_t)ptr;
out:
	cuda_leave(g, prev);
	return ret ? -ENOMEM : 0;
}

static int cuda_mem_alloc_on(struct gx_gpu *gpu, int device, size_t len, void **out)
{
	struct cuda_gpu *g = cuda_of(gpu);
	unsigned long long ptr = 0;
	struct cuda_prev prev;
	int ret;

	if (device == gpu->device)
		return cuda_mem_alloc(gpu, len, out);
	gx_gpu_why_set("the driver has no virtual memory management");
	if (!g->vmm)
		return -EOPNOTSUPP;
	prev = cuda_enter(g);
	ret = vmm_alloc(g, device, len + !len, &ptr);
	cuda_leave(g, prev);
	if (!ret)
		*out = (void *)(uintptr_t)ptr;
	return ret == -ENODEV ? -EOPNOTSUPP : ret;
}

static int cuda_mem_device(struct gx_gpu *gpu, const void *ptr)
{
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_prev prev = cuda_enter(g);
	unsigned type = 0;
	int device = 0, ret;

	ret = CUDA_TRY(cuPointerGetAttribute, &type, GX_CU_POINTER_MEMORY_TYPE, cuda_ptr(ptr));
	if (!ret)
		ret = CUDA_TRY(cuPointerGetAttribute, &device, GX_CU_POINTER_DEVICE, cuda_ptr(ptr));
	cuda_leave(g, prev);
	return ret || type != GX_CU_MEMORYTYPE_DEVICE ? -EOPNOTSUPP : device;
}

static int cuda_addr_reserve(struct gx_gpu *gpu, size_t len, void **out)
{
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_prev prev = cuda_enter(g);
	unsigned long long ptr = 0;
	int ret = -EOPNOTSUPP;

	if (!g->vmm)
		gx_gpu_why_set("%s has no virtual memory management", g->gpu.name);
	else
		ret = CUDA_TRY(cuMemAddressReserve, &ptr, len, 0, 0, 0);
	cuda_leave(g, prev);
	if (!ret)
		*out = (void *)(uintptr_t)ptr;
	return ret;
}

static void cuda_addr_free(struct gx_gpu *gpu, void *base, size_t len)
{
	struct cuda_prev prev;

	if (cuda_is_lost(cuda_of(gpu)))
		return;
	prev = cuda_enter(cuda_of(gpu));
	cu.cuMemAddressFree(cuda_ptr(base), len);
	cuda_leave(cuda_of(gpu), prev);
}

static int cuda_mem_alloc_at(struct gx_gpu *gpu, void *at, size_t len)
{
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_prev prev = cuda_enter(g);
	unsigned long long ptr = cuda_ptr(at);
	int ret = vmm_alloc(g, gpu->device, len, &ptr);

	if (!ret) {
		ret = cuda_mem_clear(g, ptr, len);
		if (ret)
			mem_release(g, ptr);
	}
	cuda_leave(g, prev);
	return ret == -EOPNOTSUPP || !ret ? ret : -ENOMEM;
}

static int cuda_mem_reach(struct gx_gpu *gpu, const void *ptr)
{
	const struct cuda_mem_location where = {GX_CU_LOCATION_DEVICE, gpu->device};
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_prev prev = cuda_enter(g);
	unsigned long long flags = 0;
	int ret = CUDA_TRY(cuMemGetAccess, &flags, (const void *)&where, cuda_ptr(ptr));

	cuda_leave(g, prev);
	if (ret)
		return -EXDEV;
	if (flags == GX_CU_ACCESS_READWRITE)
		return 0;
	gx_gpu_why_set("there is no peer access between the two GPUs");
	return -EXDEV;
}

static void cuda_mem_free(struct gx_gpu *gpu, void *ptr, size_t len)
{
	struct cuda_prev prev;

	if (!ptr)
		return;
	prev = cuda_enter(cuda_of(gpu));
	mem_release(cuda_of(gpu), cuda_ptr(ptr));
	cuda_leave(cuda_of(gpu), prev);
}

const struct gx_gpu_mem_ops cuda_mem_ops = {
	.alloc = cuda_mem_alloc,
	.free = cuda_mem_free,
	.alloc_on = cuda_mem_alloc_on,
	.device = cuda_mem_device,
	.reach = cuda_mem_reach,
	.addr_reserve = cuda_addr_reserve,
	.addr_free = cuda_addr_free,
	.alloc_at = cuda_mem_alloc_at,
};

/* ---- pinned memory ---- */

void *cuda_pinned_alloc(struct gx_gpu *gpu, size_t len)
{
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_prev prev = cuda_enter(g);
	unsigned long long dev = 0;
	void *ptr = NULL;

	len += !len;
	if (CUDA_TRY(cuMemHostAlloc, &ptr, len, GX_CU_HOST_PORTABLE | GX_CU_HOST_DEVICEMAP)) {
		ptr = NULL;
	} else if (CUDA_TRY(cuMemHostGetDevicePointer_v2, &dev, ptr, 0) || dev != cuda_ptr(ptr)) {
		cu.cuMemFreeHost(ptr);
		ptr = NULL;
		gx_gpu_why_set("the GPU reaches pinned memory at an address of its own");
	} else {
		memset(ptr, 0, len);
	}
	cuda_leave(g, prev);
	return ptr;
}

void cuda_pinned_free(struct gx_gpu *gpu, void *ptr)
{
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_prev prev;

	if (!ptr || cuda_is_lost(g))
		return;
	prev = cuda_enter(g);
	cu.cuMemFreeHost(ptr);
	cuda_leave(g, prev);
}

void cuda_device_free(struct cuda_gpu *g, void *ptr)
{
	struct cuda_prev prev;

	if (!ptr || cuda_is_lost(g))
		return;
	prev = cuda_enter(g);
	cu.cuMemFree_v2(cuda_ptr(ptr));
	cuda_leave(g, prev);
}

/* --- host memory that is registered with the driver --- */

/*
 * A registration holds for all GPUs of the process: the second GPU to map an arena finds it
 * registered. So each range has one entry, with a count. A registration ends with the context that
 * it was made in, and the GPU that made it may be closed before the others. So the entry holds that
 * context. owner: control threads, under map_lock.
 */
struct cuda_map {
	struct cuda_map *next;
	uint8_t *ptr;
	size_t len;
	unsigned refs;
	struct CUctx_st *ctx; /* of .device, held: the registration ends with it */
	int device;
	bool foreign; /* the program registered it, or has it from the driver, and ends that */
	bool stays;   /* a GPU may still use it: it is never unregistered */
};

static struct cuda_map *map_list;
static pthread_mutex_t map_lock = PTHREAD_MUTEX_INITIALIZER;

static struct cuda_map **map_find(const uint8_t *ptr, size_t len)
{
	struct cuda_map **at = &map_list;

	while (*at && (ptr < (*at)->ptr || len > (*at)->len ||
		       (size_t)(ptr - (*at)->ptr) > (*at)->len - len))
		at = &(*at)->next;
	return at;
}

/* A GPU that has not finished with this range may have other pages there than the program has
 * now. */
static bool map_is_stuck(const uint8_t *ptr, size_t len)
{
	for (const struct cuda_map *m = map_list; m; m = m->next)
		if (m->stays && ptr < m->ptr + m->len && m->ptr < ptr + len)
			return true;
	return false;
}

static bool map_same_address(uint8_t *ptr, size_t len)
{
	uint8_t *ends[] = {ptr, ptr + len - 1};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(ends); i++) {
		unsigned long long dev = 0;

		if (CUDA_TRY(cuMemHostGetDevicePointer_v2, &dev, ends[i], 0))
			return false;
		if (dev != cuda_ptr(ends[i])) {
			gx_gpu_why_set("host memory has another address on the GPU");
			return false;
		}
	}
	return true;
}

static void map_free(struct cuda_map *map)
{
	cu.cuDevicePrimaryCtxRelease_v2(map->device);
	free(map);
}

/* Is all of it one allocation of cuMemHostAlloc()? PyTorch's pinned tensors are. The driver registers
 * no such memory, and calls it an invalid value. */
static bool map_is_pinned(uint8_t *ptr, size_t len)
{
	uint64_t first = 0, last = 0;

	return map_same_address(ptr, len) &&
	       !CUDA_TRY(cuPointerGetAttribute, &first, GX_CU_POINTER_BUFFER_ID, cuda_ptr(ptr)) &&
	       !CUDA_TRY(cuPointerGetAttribute, &last, GX_CU_POINTER_BUFFER_ID,
			 cuda_ptr(ptr + len - 1)) &&
	       first == last;
}

/* @g's context is current. */
static int map_add(struct cuda_gpu *g, uint8_t *ptr, size_t len)
{
	unsigned flags = GX_CU_HOST_PORTABLE | GX_CU_HOST_DEVICEMAP;
	struct cuda_map *map = calloc(1, sizeof(*map));
	unsigned res;
	int ret;

	if (!map)
		return -ENOMEM;
	*map = (struct cuda_map){.ptr = ptr, .len = len, .device = g->gpu.device};
	ret = CUDA_TRY(cuDevicePrimaryCtxRetain, &map->ctx, map->device);
	if (ret) {
		free(map);
		return ret;
	}
	res = cu.cuMemHostRegister_v2(ptr, len, flags);
	map->foreign = res == GX_CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED ||
		       (res == GX_CU_ERROR_INVALID_VALUE && map_is_pinned(ptr, len));
	if (res && !map->foreign) {
		map_free(map);
		return cuda_try(res, "cuMemHostRegister");
	}
	map->next = map_list;
	map_list = map;
	return 0;
}

/* Return: are the addresses the caller's again? */
static bool map_put(struct cuda_map **at)
{
	struct cuda_map *map = *at;

	if (map->refs > 1) {
		map->refs--;
		return !map->stays;
	}
	map->refs = 0;
	if (map->stays)
		return false;
	*at = map->next;
	cu.cuCtxSetCurrent(map->ctx); /* the registration's; the caller restores its own */
	if (!map->foreign)
		cu.cuMemHostUnregister(map->ptr);
	map_free(map);
	return true;
}

int cuda_host_map(struct gx_gpu *gpu, void *ptr, size_t len)
{
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_prev prev;
	struct cuda_map **at;
	int ret = 0;

	if (!len)
		return 0;
	prev = cuda_enter(g);
	pthread_mutex_lock(&map_lock);
	at = map_find(ptr, len);
	if (map_is_stuck(ptr, len)) {
		gx_gpu_why_set("a GPU has not finished with memory that was there before");
		ret = -EOPNOTSUPP;
	} else if (!*at) {
		ret = map_add(g, ptr, len);
		at = &map_list;
	}
	if (!ret && map_same_address(ptr, len)) {
		(*at)->refs++;
	} else if (!ret) {
		if (!(*at)->refs)
			map_put(at);
		ret = -EOPNOTSUPP;
	}
	pthread_mutex_unlock(&map_lock);
	cu.cuCtxSetCurrent(g->ctx);
	cuda_leave(g, prev);
	return ret == -ENODEV ? -EOPNOTSUPP : ret;
}

bool cuda_host_unmap(struct gx_gpu *gpu, void *ptr, size_t len)
{
	struct cuda_gpu *g = cuda_of(gpu);
	bool lost = cuda_is_lost(g), free_now = true;
	struct cuda_prev prev = cuda_enter(g);
	struct cuda_map **at;

	pthread_mutex_lock(&map_lock);
	at = map_find(ptr, len);
	if (*at && len) {
		(*at)->stays |= lost;
		free_now = map_put(at);
	}
	pthread_mutex_unlock(&map_lock);
	cu.cuCtxSetCurrent(g->ctx);
	cuda_leave(g, prev);
	return free_now;
}
