/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scripted NIC of zero-copy receive; see zcrx_script.h.
 */
#include "nic/zcrx_script.h"

#include <assert.h>
#include <string.h>

#define RUBBISH 0xdb

static struct zcrx_script *the;

_Atomic uint32_t *zs_word(const struct zcrx_script *z, uint32_t at)
{
	return (_Atomic uint32_t *)(z->ring + at);
}

static int zs_reg(struct ring_script *s, unsigned op, void *arg, unsigned nr)
{
	struct zcrx_script *z = the;

	assert(op == ZCRX_REGISTER && nr == 1);
	memcpy(&z->reg, arg, sizeof(z->reg));
	memcpy(&z->area, (void *)(uintptr_t)z->reg.area, sizeof(z->area));
	memcpy(&z->region, (void *)(uintptr_t)z->reg.region, sizeof(z->region));
	if (z->err)
		return z->err;
	if (z->area.addr)
		z->mem = (char *)(uintptr_t)z->area.addr;
	z->nr_pages = z->nr_free = (unsigned)GX_MIN(z->area.len / ZS_PAGE_B, (uint64_t)ZS_PAGES);
	z->ring = (char *)(uintptr_t)z->region.addr;
	z->reg.offsets = z->offsets;
	z->reg.id = ZS_QUEUE_ID;
	z->area.token = ZS_TOKEN;
	atomic_store(zs_word(z, 0), ZS_FIRST);
	atomic_store(zs_word(z, 4), ZS_FIRST);
	memcpy(arg, &z->reg, sizeof(z->reg));
	memcpy((void *)(uintptr_t)z->reg.area, &z->area, sizeof(z->area));
	return 0;
}

void zs_open(struct zcrx_script *z, struct ring_script *k, char *mem)
{
	memset(z, 0, sizeof(*z));
	z->k = k;
	z->mem = mem;
	z->offsets = (struct zcrx_offsets){.head = 0, .tail = 4, .entries = 64};
	k->more = zs_reg;
	the = z;
}

static void page_free(struct zcrx_script *z, unsigned page)
{
	memset(z->mem + (size_t)page * ZS_PAGE_B, RUBBISH, ZS_PAGE_B);
	z->nr_free++;
}

void zs_refill(struct zcrx_script *z, uint32_t max)
{
	uint32_t head = atomic_load(zs_word(z, 0)), tail = atomic_load(zs_word(z, 4));
	const struct zcrx_refill *ring = (void *)(z->ring + z->offsets.entries);

	z->most = GX_MAX(z->most, (uint64_t)(tail - head));
	for (; head != tail && max; head++, max--) {
		const struct zcrx_refill *r = &ring[head & (z->reg.entries - 1)];
		uint64_t page = (r->off - ZS_TOKEN) / ZS_PAGE_B;

		if (page >= z->nr_pages || !z->refs[page] || r->pad || !r->len ||
		    r->len > ZS_PAGE_B) {
			z->nr_wrong++;
			continue;
		}
		z->nr_refills++;
		if (!--z->refs[page] && !(z->is_open && z->page == page))
			page_free(z, (unsigned)page);
	}
	atomic_store(zs_word(z, 0), head);
}

char *zs_room(struct zcrx_script *z, uint32_t *room)
{
	for (unsigned i = 0; !z->is_open && z->nr_free && i < z->nr_pages; i++)
		if (!z->refs[i]) {
			z->is_open = true;
			z->page = i;
			z->fill = 0;
			z->nr_free--;
		}
	*room = ZS_PAGE_B - z->fill;
	return z->is_open ? z->mem + (size_t)z->page * ZS_PAGE_B + z->fill : NULL;
}

static void zs_post_as(struct zcrx_script *z, unsigned sock, uint32_t n, uint32_t flags)
{
	struct zcrx_cqe more = {.off = ZS_TOKEN + (uint64_t)z->page * ZS_PAGE_B + z->fill};
	struct io_uring_cqe *cqe = rs_post(z->k, z->k->sock[sock].data, (int)n, flags);

	assert(cqe && z->is_open && n && n <= ZS_PAGE_B - z->fill);
	memcpy(cqe->big_cqe, &more, sizeof(more));
	z->refs[z->page]++;
	z->nr_cqes++;
	z->fill += n;
	if (z->fill == ZS_PAGE_B)
		zs_leave_page(z);
}

void zs_post(struct zcrx_script *z, unsigned sock, uint32_t n)
{
	zs_post_as(z, sock, n, IORING_CQE_F_MORE);
}

void zs_post_last(struct zcrx_script *z, unsigned sock, uint32_t n)
{
	z->k->sock[sock].is_armed = false;
	zs_post_as(z, sock, n, 0);
}

void zs_leave_page(struct zcrx_script *z)
{
	if (!z->is_open)
		return;
	z->is_open = false;
	if (!z->refs[z->page])
		page_free(z, z->page);
}
