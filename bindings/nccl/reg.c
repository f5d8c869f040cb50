/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registrations of memory. When deregMr returns, nothing of this process touches the memory any
 * more, although requests with it may be under way: NCCL frees it then. It does not wait for the
 * peer. The service threads call this, also while a progress thread posts on the same comm.
 */
#include "plug.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REG_TRIES_MAX 3
#define REG_NAP_NS    20000
#define REG_WAIT_NS   2000000000ull

/* Registrations may overlap: NCCL makes several of one allocation. In mode unpack nothing of gx
 * touches NCCL's receive buffers, so gx need not know them. */
static int reg_mem_make(struct comm *c, struct reg *reg, int type)
{
	int ret;

	if (c->offload) {
		if (offload_may_reg(c))
			return NCCL_OK;
		say_warn("regMr: more than NCCL's own buffers: set NCCL_LOCAL_REGISTER=0 and "
			 "NCCL_GRAPH_REGISTER=0");
		return NCCL_INVALID_USAGE;
	}
	if (type != NCCL_PTR_HOST) {
		say_warn("regMr: the device's properties do not offer memory of kind %d (memory of "
			 "GPUs: GX_NCCL_MODE=unpack)",
			 type);
		return NCCL_INVALID_ARGUMENT;
	}
	ret = gx_mem_reg(plug.gx, GX_MEM_HOST, 0, reg->addr, reg->len, &reg->mem);
	if (ret)
		say_warn("regMr: %s", gx_error());
	if (ret == -EFAULT || ret == -EINVAL)
		return NCCL_INVALID_ARGUMENT;
	return ret ? NCCL_SYSTEM_ERROR : NCCL_OK;
}

int reg_make(struct comm *c, void *data, uint64_t size, int type, void **mh)
{
	struct reg *reg;
	int ret;

	*mh = NULL;
	reg = aligned_alloc(alignof(struct reg), sizeof(*reg));
	if (!reg)
		return NCCL_SYSTEM_ERROR;
	memset(reg, 0, sizeof(*reg));
	reg->addr = data;
	reg->len = size;
	ret = reg_mem_make(c, reg, type);
	if (ret) {
		free(reg);
		return ret;
	}
	pthread_mutex_lock(&plug.lock);
	reg->next = plug.regs;
	reg->at = &plug.regs;
	if (reg->next)
		reg->next->at = &reg->next;
	plug.regs = reg;
	pthread_mutex_unlock(&plug.lock);
	*mh = reg;
	return NCCL_OK;
}

static bool reg_is_used(struct reg *reg)
{
	/* Pairs with the release in lane_req_end(). */
	uint32_t nr_ended = atomic_load_explicit(&reg->nr_ended, memory_order_acquire);

	return nr_ended != atomic_load_explicit(&reg->nr_begun, memory_order_relaxed);
}

/* gx has let go of the memory. The cores are about to take the last completions. */
static bool reg_wait(struct reg *reg)
{
	uint64_t until_ns = gx_now() + REG_WAIT_NS;

	while (reg_is_used(reg)) {
		if (gx_now() > until_ns)
			return false;
		nanosleep(&(struct timespec){.tv_nsec = REG_NAP_NS}, NULL);
	}
	return true;
}

int reg_drop(struct comm *c, void *mh)
{
	struct reg *reg = mh;
	int ret;

	if (!reg)
		return NCCL_OK;
	atomic_store_explicit(&reg->going, true, memory_order_relaxed);
	/* From then on cores post nothing with it, and end its requests that wait for room. */
	if (reg_is_used(reg))
		lane_flush();
	ret = reg->mem ? -EAGAIN : 0;
	for (unsigned i = 0; ret == -EAGAIN && i < REG_TRIES_MAX; i++)
		ret = gx_mem_free(reg->mem);
	if (ret || !reg_wait(reg)) { /* the last finalize frees @reg */
		say_warn("deregMr: %s",
			 ret ? gx_error() : "a request does not end: is the process stopped?");
		return NCCL_SYSTEM_ERROR;
	}
	if (!reg->mem && c && c->offload)
		offload_reg_ends(c);
	pthread_mutex_lock(&plug.lock);
	*reg->at = reg->next;
	if (reg->next)
		reg->next->at = reg->at;
	pthread_mutex_unlock(&plug.lock);
	free(reg);
	return NCCL_OK;
}
