/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory, by the id of its allocation: memory at the same address that was freed and
 * made again has another id, so a registration is never taken for other memory. A region has two
 * registrations: one for our own requests, one for peers. The second one ends when the user frees
 * the region, and from then on the device refuses peers. The first one ends when the cores have let
 * go. Control thread.
 */
#include "verbs/verbs_dev.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

/* Memory of a GPU needs a descriptor of a dma-buf, which the GPU seam does not give yet. */
static struct ibv_mr *reg_make(struct verbs_dev *dev, const struct gx_mem *mem, int access)
{
	struct ibv_mr *mr;

	if (mem->kind != GX_MEM_HOST) {
		gx_fail(-EOPNOTSUPP, "memory of cuda:%d has no dma-buf: packets carry it",
			mem->device);
		return NULL;
	}
	mr = dev->api->reg_mr(dev->pd, mem->addr, mem->len, access);
	if (!mr)
		gx_fail(errno ? -errno : -ENOMEM,
			"%s does not register %llu bytes: %s%s: packets carry them", dev->name,
			(unsigned long long)mem->len, strerror(errno),
			errno == ENOMEM ? " (raise ulimit -l)" : "");
	return mr;
}

struct verbs_reg *verbs_reg_get(struct verbs_dev *dev, const struct gx_mem *mem)
{
	struct verbs_reg *r = reg_find(dev, mem->id);
	struct ibv_mr *mr;

	if (r)
		return r;
	r = calloc(1, sizeof(*r));
	if (!r) {
		gx_fail(-ENOMEM, "no memory for a registration");
		return NULL;
	}
	mr = reg_make(dev, mem, mem->read_only ? 0 : IBV_ACCESS_LOCAL_WRITE);
	if (!mr) {
		free(r);
		return NULL;
	}
	*r = (struct verbs_reg){.next = dev->regs,
				.id = mem->id,
				.own = mr,
				.lkey = mr->lkey,
				.addr = (uintptr_t)mem->addr};
	dev->regs = r;
	return r;
}

int verbs_reg_share(struct verbs_dev *dev, const struct gx_mem *mem, unsigned access)
{
	struct verbs_reg *r = verbs_reg_get(dev, mem);
	struct ibv_mr *mr;

	if (!r)
		return -ENOMEM;
	if (r->shared)
		return 0;
	mr = reg_make(dev, mem, reg_access(access));
	if (!mr)
		return -ENOMEM;
	r->shared = mr;
	r->rkey = mr->rkey;
	return 0;
}

void verbs_reg_revoke(struct verbs_dev *dev, const struct gx_mem *mem)
{
	struct verbs_reg *r = reg_find(dev, mem->id);

	if (r && r->shared)
		dev->api->dereg_mr(r->shared);
	if (r)
		r->shared = NULL;
}

void verbs_reg_put(struct verbs_dev *dev, const struct gx_mem *mem)
{
	struct verbs_reg **at = &dev->regs, *r = reg_find(dev, mem->id);

	if (!r)
		return;
	verbs_reg_revoke(dev, mem);
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	dev->api->dereg_mr(r->own);
	free(r);
}
