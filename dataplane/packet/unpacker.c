/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backends that connections want: how the peer asked this end to unpack what it puts here. Each
 * combination of GPU, mode and SMs is opened once and counted; when the last connection that wanted
 * one has gone it stays for the next such wish while there are few, else it is closed, when no core
 * looks at its blocks any more. Runs on the control thread.
 */
#include "packet/pkt.h"
#include "packet/unpacker.h"

#include <errno.h>

static struct gx_unpacker *unpacker_find(struct gx *gx, int device, enum gx_unpack unpack,
					 unsigned sms)
{
	for (unsigned i = 0; i < GX_UNPACKERS_MAX; i++) {
		struct gx_unpacker *u = &gx->unpacker[i];

		if (u->gpu && !u->closing && u->device == device && u->unpack == unpack &&
		    u->sms == sms)
			return u;
	}
	return NULL;
}

static struct gx_unpacker *unpacker_free(struct gx *gx)
{
	for (unsigned i = 0; i < GX_UNPACKERS_MAX; i++)
		if (!gx->unpacker[i].gpu)
			return &gx->unpacker[i];
	return NULL;
}

static int unpacker_open(struct gx *gx, const struct gx_gpu *gpu, enum gx_unpack unpack,
			 unsigned sms, struct gx_unpacker **out)
{
	struct gx_unpacker *u = unpacker_free(gx);
	struct gx_gpu_cfg cfg = gx->gpu_cfg;
	int ret;

	if (!u)
		return gx_fail(-ENOSPC,
			       "connections want %d ways to unpack already, and that is all: one "
			       "of them must end first",
			       GX_UNPACKERS_MAX);
	cfg.device = gpu->device;
	cfg.unpack = unpack;
	/* What this context was given is the most that a peer gets. */
	if (sms && (!cfg.sms || sms < cfg.sms))
		cfg.sms = sms;
	ret = gpu->ops->open(&cfg, &u->gpu);
	if (ret) {
		u->gpu = NULL;
		return gx_fail(ret, "unpack %s: %s", gx_unpack_name(unpack), gx_gpu_why());
	}
	u->device = gpu->device;
	u->unpack = unpack;
	u->sms = sms;
	u->refs = 0;
	u->closing = false;
	*out = u;
	return 0;
}

/* The core is to look at @by's blocks no more. */
static void link_leave(struct link_pkt *l, const struct gx_gpu *by)
{
	for (unsigned i = 0; i < link_nr_bqs(l); i++)
		if (l->bq_by[i] == by)
			atomic_fetch_or_explicit(&l->bq_leave, 1ull << i, memory_order_release);
}

/* It does not: they are closed. */
static void link_left(struct link_pkt *l, const struct gx_gpu *by)
{
	for (unsigned i = 0; i < link_nr_bqs(l); i++)
		if (l->bq_by[i] == by) {
			block_close(l->bq_all[i]);
			l->bq_by[i] = NULL;
		}
}

/* No connection refers to it: cores must not look at its blocks any more. */
static void unpacker_leave(struct gx *gx, struct gx_unpacker *u)
{
	u->closing = true;
	for (unsigned i = 0; i < gx->nr_cores; i++)
		for (unsigned p = 0; p < gx->nr_ports; p++)
			link_leave(gx->core[i]->link[p], u->gpu);
	u->drop_seq = drop_count(gx);
}

static unsigned unpackers_used(const struct gx *gx)
{
	unsigned n = 0;

	for (unsigned i = 0; i < GX_UNPACKERS_MAX; i++)
		n += gx->unpacker[i].gpu && !gx->unpacker[i].closing;
	return n;
}

/* Make room for others while there is some. */
static void unpackers_leave(struct gx *gx)
{
	unsigned used = unpackers_used(gx);

	for (unsigned i = 0; i < GX_UNPACKERS_MAX && used > UNPACKERS_KEPT; i++) {
		struct gx_unpacker *u = &gx->unpacker[i];

		if (!u->gpu || u->closing || u->refs)
			continue;
		unpacker_leave(gx, u);
		used--;
	}
}

int unpacker_get(struct gx *gx, const struct gx_gpu *gpu, enum gx_unpack unpack, unsigned sms,
		 uint32_t *held, struct gx_gpu **out)
{
	struct gx_unpacker *u = unpacker_find(gx, gpu->device, unpack, sms);
	int ret = u ? 0 : unpacker_open(gx, gpu, unpack, sms, &u);
	uint32_t bit;

	if (ret)
		return ret;
	bit = 1u << (u - gx->unpacker);
	u->refs += !(*held & bit);
	*held |= bit;
	*out = u->gpu;
	unpackers_leave(gx);
	return 0;
}

void unpackers_put(struct gx *gx, uint32_t held)
{
	for (; held; held &= held - 1)
		gx->unpacker[__builtin_ctz(held)].refs--;
	unpackers_leave(gx);
}

void unpackers_reap(struct gx *gx)
{
	for (unsigned i = 0; i < GX_UNPACKERS_MAX; i++) {
		struct gx_unpacker *u = &gx->unpacker[i];

		if (!u->gpu || !u->closing || !drop_is_done(gx, u->drop_seq))
			continue;
		for (unsigned c = 0; c < gx->nr_cores; c++)
			for (unsigned p = 0; p < gx->nr_ports; p++)
				link_left(gx->core[c]->link[p], u->gpu);
		u->gpu->ops->close(u->gpu);
		u->gpu = NULL;
	}
}

void unpackers_close(struct gx *gx)
{
	for (unsigned i = 0; i < GX_UNPACKERS_MAX; i++)
		if (gx->unpacker[i].gpu)
			gx->unpacker[i].gpu->ops->close(gx->unpacker[i].gpu);
}
