/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending into a peer's bounce pool in GPU memory. A GPU of ours writes the slots (push.c). The
 * sender rings an entry when its payload lies there, in the order of sending. Runs on the polling
 * core; opening is control path.
 */
#include "ports/shm.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define SHM_PIECE_B 65536 /* most payload of a packet, even if a peer's slots are larger */

/* The queue's pushes to peers' pools. The first such peer makes them, with the GPUs that are open
 * then. */
static int shm_push_get(struct shm_port *p, struct shm_queue *q, struct push **out)
{
	int ret = p->gpus ? 0 : -ENODEV;

	*out = atomic_load_explicit(&q->push, memory_order_relaxed);
	if (*out || ret)
		return ret;
	ret = push_open(p->gpus, p->arena, SHM_PIECE_B, p->gpu_timeout_ns, out);
	/* Pairs with the acquire in shm_push_of(). */
	if (!ret)
		atomic_store_explicit(&q->push, *out, memory_order_release);
	return ret;
}

/* The peer's slots lie in the memory of its GPU: a GPU of ours has to write there. */
int shm_pool_open(struct shm_port *p, struct shm_queue *q, struct shm_peer *peer,
		  const struct gx_port_addr *raddr)
{
	size_t need = (size_t)peer->tx.nr_slots * peer->tx.slot_b;
	struct gx_gpu_handle h = {.kind = GX_GPU_SHARE_FD, .fd = raddr->pool_fd};
	struct shm_addr_pool addr;
	struct push *push;
	int ret;

	memcpy(&addr, raddr->b, sizeof(addr));
	h.id = addr.id;
	h.off = addr.off;
	h.len = addr.len;
	if (addr.device >= GX_PUSH_GPUS || addr.len > GX_ARENA_SIZE_MAX)
		return -EPROTO;
	peer->peer_device = (int)addr.device;
	ret = shm_push_get(p, q, &push);
	if (ret == -ENODEV) {
		gx_port_why_set(
			"port shm: the peer's bounce pool is memory of its cuda:%u, and no GPU "
			"is open here that could write there: open one by gx_gpu_open(), or "
			"start the peer with gx_gpu_opts.bounce host",
			addr.device);
		return ret;
	}
	if (!ret)
		ret = push_map(push, &h, need, &peer->tx_pool);
	if (ret) {
		gx_port_why_set(
			"port shm: no GPU of ours can write to the peer's bounce pool on its "
			"cuda:%u: %s; start the peer with gx_gpu_opts.bounce host",
			addr.device, gx_gpu_why());
		return ret;
	}
	peer->pend = calloc(peer->tx.used_mask + 1, sizeof(*peer->pend));
	return peer->pend ? 0 : -ENOMEM;
}

/* Ring the entries whose payload lies there, in the order of sending. */
static void shm_pend_ring(struct shm_peer *peer)
{
	while (peer->pend_tail != peer->pend_head) {
		struct shm_pend *e = &peer->pend[peer->pend_tail & peer->tx.used_mask];

		if (!e->there)
			return;
		shm_tx_ring(peer, e->slot, e->len, e->hlen, e->hdr);
		peer->pend_tail++;
	}
}

void shm_tx_pool_one(struct shm_queue *q, struct shm_peer *peer, const struct gx_tx *pkt,
		     uint64_t now_ns)
{
	uint32_t slot = peer->tx_free[--peer->nr_tx_free];
	uint32_t at = peer->pend_head++ & peer->tx.used_mask;
	struct shm_pend *e = &peer->pend[at];

	assert(pkt->len <= peer->tx.slot_b && pkt->hlen <= SHM_HDR_B);
	*e = (struct shm_pend){slot, pkt->len, pkt->hlen, pkt->cookie, !pkt->len, {0}};
	memcpy(e->hdr, pkt->hdr, SHM_HDR_B);
	if (!pkt->len) {
		if (pkt->cookie != UINT32_MAX)
			q->reaped[q->nr_reaped++] = pkt->cookie;
		shm_pend_ring(peer);
		return;
	}
	push_add(shm_push_of(q),
		 &(struct push_frag){.data = pkt->data,
				     .len = pkt->len,
				     .device = pkt->gpu,
				     .mapped = pkt->mapped && pkt->cookie != UINT32_MAX,
				     .pool = &peer->tx_pool,
				     .off = (uint64_t)slot * peer->tx.slot_b,
				     .ref = peer->index << 16 | at},
		 now_ns);
	gx_stat_add(q->q.stats, GX_STAT_TX_PUSHED, pkt->len);
}

/* A GPU did not make a copy. Nothing more is sent to that peer, and the link ends its
 * operations. */
static void shm_pend_lost(struct shm_queue *q, struct shm_peer *peer, int status)
{
	peer->tx_bad = true;
	peer->tx_stuck |= status == -ETIMEDOUT || status == -EIO;
	atomic_store_explicit(&q->fault, -EIO, memory_order_relaxed);
}

/* Ring entries whose copy has ended; keep their cookies for tx_reap. */
void shm_pend_reap(struct shm_queue *q, uint64_t now_ns)
{
	struct push_done done[GX_BURST_MAX];
	unsigned n = GX_MIN(GX_ARRAY_SIZE(q->reaped) - q->nr_reaped, (size_t)GX_BURST_MAX);

	n = push_reap(shm_push_of(q), done, n, now_ns);
	for (unsigned i = 0; i < n; i++) {
		struct shm_peer *peer = q->peer[done[i].ref >> 16];
		struct shm_pend *e = &peer->pend[done[i].ref & 0xffff];

		if (e->cookie != UINT32_MAX)
			q->reaped[q->nr_reaped++] = e->cookie;
		if (done[i].status) {
			shm_pend_lost(q, peer, done[i].status);
			continue;
		}
		e->there = true;
		shm_pend_ring(peer);
		if (gx_port_is_asleep(&peer->tx.hdr->asleep, peer->tx_woken))
			shm_wake(&q->q, peer->index);
	}
}
