/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Debug builds with a bounce pool in GPU memory overwrite a released slot before the sender gets it
 * back: a copy that still reads it moves rubbish. Runs on the polling core; opening and closing is
 * control path.
 */
#include "ports/shm.h"

#define SHM_POISON   0xdb
#define SHM_DRAIN_NS 1000000000 /* longest wait of a detach for overwrites under way */

int shm_poison_open(struct shm_port *p, struct shm_queue *q)
{
	int ret = 0;

#ifndef NDEBUG
	if (!p->pool)
		return 0;
	ret = gx_arena_map(p->arena, -1, p->slot_b, (void **)&q->poison_src);
	if (!ret) {
		memset(q->poison_src, SHM_POISON, p->slot_b);
		ret = block_open(p->pool_gpu, q->poison_src, p->gpu_timeout_ns, &q->poison);
	}
#endif
	return ret;
}

void shm_poison_close(struct shm_port *p, struct shm_queue *q)
{
	block_close(q->poison);
	if (q->poison_src)
		gx_arena_unmap(p->arena, q->poison_src, p->slot_b);
}

void shm_poison_reap(struct shm_queue *q)
{
	struct block_done done[GX_BURST_MAX];
	uint64_t now_ns = gx_now_ns();
	unsigned n;

	block_flush(q->poison, true, now_ns);
	n = block_reap(q->poison, done, GX_BURST_MAX, now_ns);
	for (unsigned i = 0; i < n; i++) {
		struct shm_peer *peer = q->peer[done[i].ref];

		if (done[i].buf == BLOCK_BUF_NONE) /* the GPU did not end it: it stays counted */
			continue;
		peer->nr_poison--;
		shm_post(peer, (uint32_t)done[i].buf);
		if (peer->attached)
			shm_post_publish(peer);
	}
}

void shm_poison_drain(struct shm_queue *q, const struct shm_peer *peer)
{
	uint64_t until = gx_now_ns() + SHM_DRAIN_NS;

	while (peer->nr_poison && gx_now_ns() < until)
		shm_poison_reap(q);
}

bool shm_poison(struct shm_queue *q, struct shm_peer *peer, uint32_t slot)
{
	if (!block_room(q->poison))
		return false;
	peer->nr_poison++;
	block_add(q->poison,
		  &(struct block_frag){.src = q->poison_src,
				       .len = peer->rx.slot_b,
				       .dst_base = (uintptr_t)peer->rx.slots,
				       .dst_len = (uint64_t)peer->rx.nr_slots * peer->rx.slot_b,
				       .dst_off = (uint64_t)slot * peer->rx.slot_b,
				       .buf = slot,
				       .ref = peer->index},
		  gx_now_ns());
	return true;
}
