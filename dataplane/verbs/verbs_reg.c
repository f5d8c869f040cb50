/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory, by the id of its allocation: memory at the same address that was freed and
 * made again has another id, so a registration is never taken for other memory. A region has two
 * registrations: one for our own requests, one for peers. The second one ends when the user frees
 * the region, and from then on the device refuses peers. The first one ends when the cores have let
 * go. By its key peers read long sends, in contexts that take part in them. The device pins all pages of a registration, which takes seconds for large memory: the caller's
 * thread makes registrations, and the control thread keeps and ends them.
 */
#include "verbs/verbs_dev.h"

#include "gx_internal/gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REG_PAGE_B  4096ul	 /* of a dma-buf: whole ones */
#define REG_SLOW_NS 100000000ull /* of a registration; from here on the log says how long it took */

static struct verbs_reg *reg_find(const struct verbs_dev *dev, uint64_t id)
{
	for (struct verbs_reg *r = dev->regs; r; r = r->next)
		if (r->id == id)
			return r;
	return NULL;
}

static int reg_access(unsigned access)
{
	int flags = access & GX_ACCESS_PUT ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0;

	return flags | (access & GX_ACCESS_GET ? IBV_ACCESS_REMOTE_READ : 0);
}

static void reg_say_slow(const struct verbs_dev *dev, const char *what, uint64_t len,
			 uint64_t start_ns)
{
	uint64_t took_ns = gx_now_ns() - start_ns;

	if (took_ns >= REG_SLOW_NS)
		gx_info("%s took %llu ms to %s %llu MiB", dev->name,
			(unsigned long long)took_ns / 1000000, what, (unsigned long long)len >> 20);
}

/* Memory of a GPU, by a descriptor of whole pages. @why: @room bytes; of those who cannot do it. */
static struct ibv_mr *reg_dmabuf(const struct verbs_dev *dev, const struct gx_mem *mem, int access,
				 char *why, size_t room)
{
	uintptr_t at = (uintptr_t)mem->addr, first = at & ~(REG_PAGE_B - 1);
	struct ibv_mr *mr = NULL;
	int fd = -1;

	if (!dev->api->reg_dmabuf_mr)
		snprintf(why, room, "this libibverbs registers no dma-buf: take rdma-core 34");
	else if (mem->gpu->dma == GX_GPU_DMA_NONE)
		snprintf(why, room, "its kernels see a device's writes only after a flush");
	else if (mem->gpu->share->dmabuf(mem->gpu, (void *)first,
					 GX_ALIGN_UP(at + mem->len, REG_PAGE_B) - first, &fd))
		snprintf(why, room, "%s", gx_gpu_why());
	if (fd < 0)
		return NULL;
	mr = dev->api->reg_dmabuf_mr(dev->pd, at - first, mem->len, at, fd, access);
	if (!mr)
		snprintf(why, room, "%s refuses its dma-buf: %s", dev->name, strerror(errno));
	close(fd); /* the registration holds the memory */
	return mr;
}

static struct ibv_mr *reg_gpu(const struct verbs_dev *dev, const struct gx_mem *mem, int access)
{
	char why[200] = "";
	struct ibv_mr *mr = reg_dmabuf(dev, mem, access, why, sizeof(why));

	if (mr)
		gx_debug("%s reaches %llu bytes of cuda:%d by dma-buf", dev->name,
			 (unsigned long long)mem->len, mem->device);
	else
		gx_fail(-EOPNOTSUPP, "memory of cuda:%d has no dma-buf: packets carry it: %s",
			mem->device, why);
	return mr;
}

static struct ibv_mr *reg_make(const struct verbs_dev *dev, const struct gx_mem *mem, int access)
{
	uint64_t start_ns = gx_now_ns();
	struct ibv_mr *mr;

	if (mem->kind != GX_MEM_HOST)
		return reg_gpu(dev, mem, access);
	mr = dev->api->reg_mr(dev->pd, mem->addr, mem->len, access);
	if (!mr)
		gx_fail(errno ? -errno : -ENOMEM,
			"%s does not register %llu bytes: %s%s: %s carry them", dev->name,
			(unsigned long long)mem->len, strerror(errno),
			errno == ENOMEM ? " (raise ulimit -l)" : "",
			dev->has_others ? "other devices, or packets," : "packets");
	reg_say_slow(dev, "register", mem->len, start_ns);
	return mr;
}

/* Return: 0, -errno: the device has it still. */
static int reg_end(const struct verbs_dev *dev, struct ibv_mr *mr)
{
	uint64_t start_ns = gx_now_ns(), len = mr->length;
	int ret = verbs_end_err(dev, dev->api->dereg_mr(mr));

	if (ret)
		gx_err("%s does not give the registration of %llu bytes back: %s: they stay pinned "
		       "until the context is closed",
		       dev->name, (unsigned long long)len, strerror(ret));
	reg_say_slow(dev, "let go of", len, start_ns);
	return -ret;
}

struct verbs_reg *verbs_reg_new(struct verbs_dev *dev, const struct gx_mem *mem)
{
	struct verbs_reg *r = calloc(1, sizeof(*r));
	int access = dev->lends ? IBV_ACCESS_REMOTE_READ : 0;
	struct ibv_mr *mr = NULL;

	if (r)
		mr = reg_make(dev, mem, access | (mem->read_only ? 0 : IBV_ACCESS_LOCAL_WRITE));
	else
		gx_fail(-ENOMEM, "no memory for a registration");
	if (!mr) {
		/* Once for all memory of GPUs: it says nothing of this allocation. */
		if (mem->kind == GX_MEM_HOST || !atomic_exchange(&dev->said_gpu, true))
			gx_warn("link verbs: %s", gx_error());
		free(r);
		return NULL;
	}
	*r = (struct verbs_reg){.id = mem->id,
				.own = mr,
				.rail = dev->rail,
				.addr = (uintptr_t)mem->addr,
				.rails = 1u << dev->rail,
				.near = 1u << dev->rail};
	r->lkey[dev->rail] = mr->lkey;
	if (dev->lends) {
		r->lent.rails = r->rails;
		r->lent.key[dev->rail] = mr->rkey;
	}
	return r;
}

void verbs_reg_keep(struct verbs_dev *dev, struct verbs_reg *r)
{
	r->next = dev->regs;
	dev->regs = r;
}

void *verbs_share_new(struct verbs_dev *dev, const struct gx_mem *mem, unsigned access)
{
	return reg_make(dev, mem, reg_access(access));
}

void verbs_share_keep(struct verbs_reg *r, void *shared)
{
	struct ibv_mr *mr = shared;

	r->shared = mr;
	r->rkey = mr->rkey;
}

void verbs_share_put(struct verbs_dev *dev, void *shared)
{
	if (shared)
		reg_end(dev, shared);
}

int verbs_reg_revoke(struct verbs_dev *dev, const struct gx_mem *mem)
{
	struct verbs_reg *r = reg_find(dev, mem->id);
	int ret = r && r->shared ? reg_end(dev, r->shared) : 0;

	if (ret) /* nothing that it promises can be relied upon */
		atomic_store_explicit(&dev->failed, true, memory_order_release);
	else if (r)
		r->shared = NULL;
	return ret;
}

int verbs_reg_put(struct verbs_dev *dev, const struct gx_mem *mem)
{
	struct verbs_reg **at = &dev->regs, *r = reg_find(dev, mem->id);
	int ret;

	if (!r)
		return 0;
	verbs_reg_revoke(dev, mem);
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	ret = reg_end(dev, r->own);
	if (!r->lent.rails) /* only our own requests name it */
		ret = 0;
	if (ret)
		atomic_store_explicit(&dev->failed, true, memory_order_release);
	free(r);
	return ret;
}
