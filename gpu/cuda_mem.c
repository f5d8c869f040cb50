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

#include "gx/log.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

bool cuda_is_mapped(unsigned long long at)
{
	unsigned long long handle;

	return !cu.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at) &&
	       !cu.cuMemRelease(handle);
}

/* The device that the memory at @at lies on, and where its allocation ends; 0: the driver does not
 * say. */
static int place_get(struct cuda_gpu *g, unsigned long long at, unsigned long long *end)
{
	unsigned type = 0, managed = 0;
	unsigned long long base = 0;
	int device = g->gpu.device; /* managed memory is every GPU's */
	size_t len = 0;

	if (!cu.cuPointerGetAttribute(&type, GX_CU_POINTER_MEMORY_TYPE, at))
		cu.cuPointerGetAttribute(&managed, GX_CU_POINTER_IS_MANAGED, at);
	if (!managed && (type != GX_CU_MEMORYTYPE_DEVICE ||
			 cu.cuPointerGetAttribute(&device, GX_CU_POINTER_DEVICE, at))) {
		gx_gpu_why_set("%#llx is not memory of a GPU: is it the host's, or freed?", at);
		return -EOPNOTSUPP;
	}
	*end = cu.cuMemGetAddressRange_v2(&base, &len, at) ? 0 : base + len;
	return device;
}

int cuda_device_of(struct cuda_gpu *g, unsigned long long at, size_t len)
{
	unsigned long long end = len > ULLONG_MAX - at ? ULLONG_MAX : at + len, next;
	int device = place_get(g, at, &next), one = device;

	while (one >= 0 && one == device && next < end) {
		if (next && !cuda_is_mapped(at)) {
			gx_gpu_why_set("the allocation at %#llx ends at %#llx, before %#llx", at,
				       next, end);
			return -EOPNOTSUPP;
		}
		at = next ? next : end - 1; /* the last byte, if the driver does not say */
		one = place_get(g, at, &next);
		next = next ? next : end;
	}
	if (one >= 0 && one != device)
		gx_gpu_why_set("at %#llx memory of cuda:%d begins", at, one);
	return one == device ? device : -EOPNOTSUPP;
}

static int cuda_mem_device(struct gx_gpu *gpu, const void *ptr, size_t len)
{
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_prev prev = cuda_enter(g);
	int ret = cuda_device_of(g, cuda_ptr(ptr), len);

	cuda_leave(g, prev);
	return ret;
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
 * registered. All are made in a context of their own, since the driver's end of one waits for all
 * work in its context, and launches there wait with it.
 *
 * Callers' ranges overlap as they like: a tensor within a buffer, a buffer around tensors. Each has
 * an entry of its own, and holds all registrations that it lies in; what is between these is
 * registered with it. A range that ends unregisters nothing under another. All in whole pages, of
 * which the driver makes no parts. owner of both: control threads, under map_lock.
 */
struct cuda_map {
	struct cuda_map *next;
	uint8_t *ptr, *end;
};

/* One registration; they do not overlap. */
struct cuda_reg {
	struct cuda_reg *next;
	uint8_t *ptr, *end;
	unsigned maps; /* that hold it */
	bool foreign;  /* the program registered it, or has it from the driver, and ends that */
	bool stays;    /* a GPU may still use it: it is never unregistered */
};

static struct cuda_map *map_list;
static struct cuda_reg *reg_list;
static struct CUctx_st *reg_ctx; /* while there are registrations */
static int reg_device;		 /* its GPU */
static bool reg_shares;		 /* it is the primary one, for want of memory */
static pthread_mutex_t map_lock = PTHREAD_MUTEX_INITIALIZER;

static void map_round(uint8_t *ptr, size_t len, struct cuda_map *map)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	map->ptr = ptr - (uintptr_t)ptr % page;
	map->end = map->ptr + GX_ALIGN_UP((size_t)(ptr - map->ptr) + len, page);
}

/* Is it all in one range of a caller's? Else the pages there may have changed since a registration
 * that another range still holds. */
static bool map_covers(const uint8_t *ptr, const uint8_t *end)
{
	const struct cuda_map *m = map_list;

	while (m && (ptr < m->ptr || end > m->end))
		m = m->next;
	return m != NULL;
}

/* The next registration in @ptr to @end, by address. NULL: none. */
static struct cuda_reg *reg_next(const uint8_t *ptr, const uint8_t *end)
{
	struct cuda_reg *first = NULL;

	for (struct cuda_reg *r = reg_list; r; r = r->next)
		if (r->ptr < end && r->end > ptr && (!first || r->ptr < first->ptr))
			first = r;
	return first;
}

static bool same_address(uint8_t *ptr)
{
	unsigned long long dev = 0;

	if (CUDA_TRY(cuMemHostGetDevicePointer_v2, &dev, ptr, 0))
		return false;
	if (dev != cuda_ptr(ptr))
		gx_gpu_why_set("host memory has another address on the GPU");
	return dev == cuda_ptr(ptr);
}

static bool same_buffer(const uint8_t *first, const uint8_t *last)
{
	uint64_t id[2] = {0};

	return !CUDA_TRY(cuPointerGetAttribute, &id[0], GX_CU_POINTER_BUFFER_ID, cuda_ptr(first)) &&
	       !CUDA_TRY(cuPointerGetAttribute, &id[1], GX_CU_POINTER_BUFFER_ID, cuda_ptr(last)) &&
	       id[0] == id[1];
}

/* Does the GPU find all bytes from @first to @last, which lie in @r? A hole would end its context, so
 * what the program registered must be one registration there. */
static int reg_check(const struct cuda_reg *r, uint8_t *first, uint8_t *last)
{
	bool known = same_address(first) && same_address(last);

	if (known && (!r->foreign || same_buffer(first, last)))
		return 0;
	if (r->foreign)
		gx_gpu_why_set("the driver does not register it, nor is all of it in one "
			       "registration of the program's");
	return -EOPNOTSUPP;
}

static void reg_free(struct cuda_reg *r)
{
	struct cuda_reg **at = &reg_list;

	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	free(r);
	if (reg_list)
		return;
	if (reg_shares)
		cu.cuDevicePrimaryCtxRelease_v2(reg_device);
	else
		cu.cuCtxDestroy_v2(reg_ctx);
	reg_ctx = NULL;
}

/* No kernel runs in it: with the smallest stack it takes 264 MiB of an H200 in place of 524. The
 * thread's stack of contexts stays as it was. */
static int reg_open(int device)
{
	struct CUctx_st *made;

	reg_device = device;
	reg_shares = CUDA_TRY(cuCtxCreate_v2, &made, 0, device);
	if (reg_shares) {
		gx_warn("gpu %d: no context for registrations: %s: peers that come and go hold up "
			"others",
			device, gx_gpu_why());
		return CUDA_TRY(cuDevicePrimaryCtxRetain, &reg_ctx, device);
	}
	cu.cuCtxSetLimit(GX_CU_LIMIT_STACK_SIZE, 16);
	cu.cuCtxPopCurrent_v2(&reg_ctx);
	return 0;
}

/* Makes the registrations' context current. */
static int reg_enter(struct cuda_gpu *g)
{
	int ret = reg_ctx ? 0 : reg_open(g->gpu.device);

	return ret ? ret : CUDA_TRY(cuCtxSetCurrent, reg_ctx);
}

/* @g's context is current, also after it. The driver says that memory of cuMemHostAlloc(), as
 * PyTorch's pinned tensors are, is an invalid value. */
static int reg_add(struct cuda_gpu *g, uint8_t *ptr, uint8_t *end, struct cuda_reg **out)
{
	struct cuda_reg *r = calloc(1, sizeof(*r));
	unsigned res;
	int ret;

	if (!r)
		return -ENOMEM;
	*r = (struct cuda_reg){.ptr = ptr, .end = end};
	ret = reg_enter(g);
	if (ret) {
		free(r);
		return ret;
	}
	r->next = reg_list;
	reg_list = r;
	res = cu.cuMemHostRegister_v2(ptr, (size_t)(end - ptr),
				      GX_CU_HOST_PORTABLE | GX_CU_HOST_DEVICEMAP);
	cu.cuCtxSetCurrent(g->ctx);
	r->foreign = res == GX_CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED ||
		     res == GX_CU_ERROR_INVALID_VALUE;
	ret = r->foreign ? 0 : cuda_try(res, "cuMemHostRegister");
	if (ret)
		reg_free(r);
	else
		*out = r;
	return ret;
}

/* Let go of what @ptr to @end lies in. Sets a context; the caller restores its own. Return: are the
 * addresses the caller's again? */
static bool regs_put(const uint8_t *ptr, const uint8_t *end, bool lost)
{
	struct cuda_reg *r;
	bool ours = true;

	while (ptr < end && (r = reg_next(ptr, end))) {
		ptr = r->end;
		r->stays |= lost;
		ours &= !r->stays;
		if (--r->maps || r->stays)
			continue;
		cu.cuCtxSetCurrent(reg_ctx);
		if (!r->foreign)
			cu.cuMemHostUnregister(r->ptr);
		reg_free(r);
	}
	return ours;
}

/* Hold what is registered there, and register what is between. @first, @last: the caller's bytes in
 * these pages. */
static int regs_get(struct cuda_gpu *g, const struct cuda_map *map, uint8_t *first, uint8_t *last)
{
	uint8_t *at = map->ptr;
	int ret = 0;

	while (!ret && at < map->end) {
		struct cuda_reg *r = reg_next(at, map->end);

		if (!r || r->ptr > at) {
			ret = reg_add(g, at, r ? r->ptr : map->end, &r);
		} else if (r->stays || !map_covers(at, GX_MIN(map->end, r->end))) {
			/* The pages may be others than the program has now. */
			gx_gpu_why_set(
				r->stays
					? "a GPU has not finished with memory that was there before"
					: "of memory that was there before a part is registered");
			ret = -EOPNOTSUPP;
		}
		if (ret)
			break;
		r->maps++;
		ret = reg_check(r, GX_MAX(first, r->ptr), GX_MIN(last, r->end - 1));
		at = GX_MIN(map->end, r->end);
	}
	if (ret)
		regs_put(map->ptr, at, false);
	return ret;
}

int cuda_host_map(struct gx_gpu *gpu, void *ptr, size_t len)
{
	struct cuda_map *map = len ? calloc(1, sizeof(*map)) : NULL;
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_prev prev;
	int ret;

	if (!map)
		return len ? -ENOMEM : 0;
	map_round(ptr, len, map);
	prev = cuda_enter(g);
	pthread_mutex_lock(&map_lock);
	ret = regs_get(g, map, ptr, (uint8_t *)ptr + len - 1);
	if (!ret) {
		map->next = map_list;
		map_list = map;
	}
	pthread_mutex_unlock(&map_lock);
	cu.cuCtxSetCurrent(g->ctx);
	cuda_leave(g, prev);
	if (ret)
		free(map);
	return ret == -ENODEV ? -EOPNOTSUPP : ret;
}

bool cuda_host_unmap(struct gx_gpu *gpu, void *ptr, size_t len)
{
	struct cuda_gpu *g = cuda_of(gpu);
	bool lost = cuda_is_lost(g), ours = true;
	struct cuda_prev prev = cuda_enter(g);
	struct cuda_map **at = &map_list, *map, want;

	map_round(ptr, len, &want);
	pthread_mutex_lock(&map_lock);
	while ((map = *at) && (map->ptr != want.ptr || map->end != want.end))
		at = &map->next;
	if (map) {
		*at = map->next;
		ours = regs_put(map->ptr, map->end, lost);
	}
	pthread_mutex_unlock(&map_lock);
	cu.cuCtxSetCurrent(g->ctx);
	cuda_leave(g, prev);
	free(map);
	return ours;
}
