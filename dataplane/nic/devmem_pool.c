/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How full a pool of device memory is. The kernel gives memory to a NIC by pages, and a page comes
 * back when the last of its fragments does: a fragment of a few bytes costs a page. So pages are
 * counted, not bytes. When most of those that the NIC does not need for its queues wait for copies,
 * the pool is slow, and says so before the NIC has to drop packets. The polling core counts; open,
 * close and report are for the control path.
 */
#include "nic/devmem.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

int devmem_pool_open(uint32_t id, void *base, uint64_t len, uint64_t ring_b,
		     struct devmem_pool **out)
{
	uint64_t nr = len / DEVMEM_PAGE_B;
	struct devmem_pool *p;
	uint32_t ours;

	if (!base || !len || len % DEVMEM_PAGE_B || len > 1ull << 32 || ring_b >= len)
		return -EINVAL;
	p = calloc(1, sizeof(*p) + nr * sizeof(p->page[0]));
	if (!p)
		return -ENOMEM;
	ours = (uint32_t)(nr - ring_b / DEVMEM_PAGE_B);
	p->id = id;
	p->base = base;
	p->len = len;
	p->nr_pages = (uint32_t)nr;
	p->high = GX_MAX(ours / 4 * 3, 1u);
	p->low = ours / 2;
	*out = p;
	return 0;
}

void devmem_pool_close(struct devmem_pool *p)
{
	assert(!p || !p->held);
	free(p);
}

void devmem_pool_hold(struct devmem_pool *p, uint32_t first, uint32_t last)
{
	for (uint32_t i = first; i <= last; i++)
		p->held += !p->page[i]++;
}

void devmem_pool_drop(struct devmem_pool *p, uint32_t first, uint32_t last)
{
	for (uint32_t i = first; i <= last; i++) {
		assert(p->page[i]);
		p->held -= !--p->page[i];
	}
}

void devmem_pool_look(struct devmem_pool *p)
{
	if (gx_unlikely(p->held > atomic_load_explicit(&p->peak, memory_order_relaxed)))
		atomic_store_explicit(&p->peak, p->held, memory_order_relaxed);
	if (!p->is_slow && gx_unlikely(p->held >= p->high)) {
		p->is_slow = true;
		/* relaxed: counters; the core alone writes them, and nothing else depends on them */
		atomic_store_explicit(&p->slow,
				      atomic_load_explicit(&p->slow, memory_order_relaxed) + 1,
				      memory_order_relaxed);
	} else if (p->is_slow && p->held <= p->low) {
		p->is_slow = false;
	}
}

uint64_t devmem_pool_report(struct devmem_pool *p)
{
	uint64_t slow = atomic_load_explicit(&p->slow, memory_order_relaxed);

	if (slow != p->said)
		gx_warn("devmem: dma-buf %" PRIu32
			": copies out of it fall behind the NIC: at most "
			"%" PRIu32 " of %" PRIu32 " pages waited, %" PRIu64 " time(s) near the "
			"point where the NIC drops packets; a larger pool (gx_nic_opts.rx_b) or more "
			"cores help",
			p->id, atomic_load_explicit(&p->peak, memory_order_relaxed), p->nr_pages,
			slow - p->said);
	p->said = slow;
	return slow;
}
