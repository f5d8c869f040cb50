/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts that the GPU backends share: the text of gx_gpu_why(), the names of the unpack modes, the
 * memory of blocks and flags, and the CPU's checks of one descriptor. Any thread may call all of
 * it.
 */
#include "gpu_priv.h"
#include "gx_internal/struct.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char why_text[256];

const char *gx_gpu_why(void)
{
	return why_text;
}

void gx_gpu_why_set(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why_text, sizeof(why_text), fmt, ap);
	va_end(ap);
}

int gx_gpu_take(const char *name, void *own, size_t own_b, const void *user)
{
	char why[GX_STRUCT_TEXT_MAX];
	int ret = gx_struct_take(name, own, own_b, user, why);

	if (ret)
		gx_gpu_why_set("%s", why);
	return ret;
}

int gx_gpu_give(const char *name, const void *own, size_t own_b, void *user)
{
	char why[GX_STRUCT_TEXT_MAX];
	int ret = gx_struct_give(name, own, own_b, user, why);

	if (ret)
		gx_gpu_why_set("%s", why);
	return ret;
}

uint32_t gx_gpu_count_from(void)
{
	const char *from = getenv("GX_COUNT_FROM");

	return from ? (uint32_t)strtoul(from, NULL, 0) : 0;
}

const char *gx_unpack_name(enum gx_unpack mode)
{
	static const char *const name[] = {
		[GX_UNPACK_AUTO] = "auto",	   [GX_UNPACK_KERNEL] = "kernel",
		[GX_UNPACK_RESIDENT] = "resident", [GX_UNPACK_D2D] = "d2d",
		[GX_UNPACK_HOST] = "host",
	};

	if (mode == GX_UNPACK_NONE)
		return "none";
	return (unsigned)mode < GX_ARRAY_SIZE(name) ? name[mode] : "?";
}

int gx_gpu_block_alloc(struct gx_gpu *gpu, struct gx_block *b)
{
	struct gx_block_mem *mem = gpu->ops->pinned_alloc(gpu, sizeof(*mem));

	if (!mem)
		return -ENOMEM;
	memset(b, 0, sizeof(*b));
	b->desc = mem->desc;
	b->cnt = &mem->cnt;
	b->aux = mem->aux;
	b->seg = mem->seg;
	b->status = &mem->status;
	return 0;
}

void gx_gpu_block_free(struct gx_gpu *gpu, struct gx_block *b)
{
	if (!b->status)
		return;
	gpu->ops->pinned_free(gpu, GX_CONTAINER_OF(b->status, struct gx_block_mem, status));
	memset(b, 0, sizeof(*b));
}

uint32_t *gx_gpu_flag_alloc(struct gx_gpu *gpu, unsigned n)
{
	return gpu->ops->pinned_alloc(gpu, n * sizeof(uint32_t));
}

void gx_gpu_flag_free(struct gx_gpu *gpu, uint32_t *flags)
{
	gpu->ops->pinned_free(gpu, flags);
}

void *gx_block_dst(const struct gx_block *b, uint32_t i)
{
	const struct gx_dest *seg = &b->seg[b->aux[i].seg];

	if (b->aux[i].seg >= b->nr_seg || !gx_desc_fits(&b->desc[i], seg))
		return NULL;
	return (void *)(uintptr_t)(seg->dst_base + b->desc[i].dst_off);
}

bool gx_block_crc_ok(const struct gx_block *b, uint32_t i)
{
	if (!(b->aux[i].flags & GX_AUX_CRC))
		return true;
	if (gx_crc32c(0, gx_block_src(b, i), b->desc[i].len) == b->aux[i].crc)
		return true;
	b->aux[i].flags |= GX_AUX_BAD;
	return false;
}

bool gx_block_checked(const struct gx_block *b)
{
	uint32_t flags = 0;

	if (b->hints & GX_HINT_WEIGHT)
		return b->hints & GX_HINT_CRC;
	for (uint32_t i = 0; i < b->nr; i++)
		flags |= b->aux[i].flags;
	return flags & GX_AUX_CRC;
}
