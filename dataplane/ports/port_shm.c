/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes of one host: the sender writes straight into the receiver's posted bounce buffers,
 * as a NIC's DMA would. shm_seg.h describes the segments. The port decides by private memory alone:
 * it copies each value out of a segment once, then checks the copy. Each segment belongs to one
 * peer. So a sender that is hostile, dies, or was stopped and goes on cannot reach another peer's
 * buffers; it harms its own traffic only. (A peer of our own uid may still punch holes into a
 * segment on huge pages; the control path gives the descriptor to nobody else.)
 *
 * With a bounce pool in GPU memory (gx_port_cfg.pool) each peer's slots are an allocation of their
 * own there. The sender's GPU writes them (push.c). The sender rings an entry when its payload lies
 * there, in the order of sending. Debug builds overwrite a released slot before the sender gets it
 * back: a copy that still reads it moves rubbish.
 */
#include "ports/shm.h"

#include <assert.h>
#include <errno.h>
#include <linux/membarrier.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHM_SLOTS	1024
#define SHM_SLOT_B	8192
#define SHM_POOL_SLOT_B 32768 /* on a GPU: no cache to stay in, and each packet costs time */

/* ---- Port and queue ---- */

static int shm_port_open(const struct gx_port_cfg *cfg, struct gx_port **out)
{
	uint32_t nr_slots = cfg->slots ? cfg->slots : SHM_SLOTS;
	uint32_t slot_b = cfg->payload_b ? cfg->payload_b
			  : cfg->pool	 ? SHM_POOL_SLOT_B
					 : SHM_SLOT_B;
	struct shm_port *p;

	if (cfg->args && *cfg->args) {
		gx_port_why_set("port shm: takes no arguments, not \"%s\"", cfg->args);
		return -EINVAL;
	}
	if (!shm_slots_ok(nr_slots, slot_b)) {
		gx_port_why_set(
			"port shm: %u slots of %u bytes; there can be %u slots of up to %u bytes, "
			"a multiple of 16, in less than 4 GiB",
			nr_slots, slot_b, SHM_SLOTS_MAX, SHM_SLOT_B_MAX);
		return -EINVAL;
	}
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->p.ops = &gx_port_shm_ops;
	p->p.caps = (struct gx_port_caps){.payload_max = slot_b,
					  .payload_best = slot_b,
					  .rx_slots = nr_slots,
					  .flags = GX_PORT_ORDERED | GX_PORT_LOSSLESS |
						   GX_PORT_LOCAL | GX_PORT_TX_GUARDS};
	p->arena = cfg->arena;
	p->pool = cfg->pool;
	p->pool_gpu = cfg->pool_gpu;
	p->gpus = cfg->gpus;
	p->gpu_timeout_ns = cfg->gpu_timeout_ns;
	if (p->pool)
		p->p.caps.flags |= GX_PORT_RX_GPU;
	p->nr_slots = nr_slots;
	p->slot_b = slot_b;
	p->huge = cfg->huge;
	if (p->huge && !gx_huge_there(GX_HUGE_PAGE)) /* gx_describe() says so */
		p->p.caps.flags |= GX_PORT_NORMAL_PAGES;
	*out = &p->p;
	return 0;
}

static void shm_port_close(struct gx_port *p)
{
	free(p ? GX_CONTAINER_OF(p, struct shm_port, p) : NULL);
}

static void shm_queue_free(struct shm_port *p, struct shm_queue *q)
{
	shm_sleep_close(q);
	shm_poison_close(p, q);
	free(q->ctl_buf);
	free(q);
}

static int shm_queue_open(struct gx_port *p, unsigned index, struct gx_stats *stats,
			  struct gx_port_queue **out)
{
	struct shm_port *sp = GX_CONTAINER_OF(p, struct shm_port, p);
	struct shm_queue *q = aligned_alloc(GX_CACHE_LINE, GX_ALIGN_UP(sizeof(*q), GX_CACHE_LINE));

	if (!q)
		return -ENOMEM;
	memset(q, 0, sizeof(*q));
	q->ctl_buf = aligned_alloc(GX_CACHE_LINE, GX_BURST_MAX * GX_CTL_PAYLOAD_MAX);
	if (!q->ctl_buf) {
		free(q);
		return -ENOMEM;
	}
	memset(q->ctl_buf, 0, GX_BURST_MAX * GX_CTL_PAYLOAD_MAX);
	q->q.ops = &gx_port_shm_ops;
	q->q.port = p;
	q->wake_fd = q->poke_fd = -1;
	q->q.stats = stats;
	q->q.rx_base = gx_arena_base(sp->pool ? sp->pool : sp->arena);
	q->q.rx_gpu = sp->pool_gpu;
	if (shm_poison_open(sp, q)) {
		gx_port_why_set("port shm: cannot set up what overwrites slots on cuda:%d: %s",
				sp->pool_gpu->device, gx_gpu_why());
		shm_queue_free(sp, q);
		return -ENOMEM;
	}
	*out = &q->q;
	return 0;
}

static void shm_peer_free(struct shm_port *p, struct shm_peer *peer)
{
	if (peer->tx.base)
		munmap(peer->tx.base, peer->tx.len);
	if (!peer->tx_stuck)
		push_unmap(&peer->tx_pool);
	/* A copy that a GPU has not ended may still touch the slots. */
	if (peer->nr_held || peer->nr_poison)
		gx_warn("port shm: %u slots of a peer stay with a GPU that does not finish; their "
			"memory is kept",
			peer->nr_held + peer->nr_poison);
	else
		shm_slots_free(p, peer);
	close(peer->fd);
	free(peer->pend);
	free(peer->tx_free);
	free(peer->state);
	free(peer);
}

static void shm_queue_close(struct gx_port_queue *gq)
{
	struct shm_port *p = GX_CONTAINER_OF(gq->port, struct shm_port, p);
	struct shm_queue *q = shm_queue_of(gq);

	push_close(q->push); /* waits for copies to the peers' pools */
	for (unsigned i = 0; i < GX_PEERS_MAX; i++)
		if (q->peer[i])
			shm_peer_free(p, q->peer[i]);
	shm_queue_free(p, q);
}

/* ---- Peers ---- */

static int shm_peer_add(struct gx_port_queue *gq, uint32_t *out, struct gx_port_addr *laddr)
{
	struct shm_port *p = GX_CONTAINER_OF(gq->port, struct shm_port, p);
	struct shm_queue *q = shm_queue_of(gq);
	struct shm_peer *peer;
	uint32_t i = 0;
	int ret;

	while (i < GX_PEERS_MAX && q->peer[i])
		i++;
	if (i == GX_PEERS_MAX) {
		gx_port_why_set("port shm: a core can have %u peers", GX_PEERS_MAX);
		return -ENOSPC;
	}
	peer = aligned_alloc(GX_CACHE_LINE, sizeof(*peer));
	if (!peer)
		return -ENOMEM;
	memset(peer, 0, sizeof(*peer));
	peer->index = i;
	peer->pool_fd = peer->peer_device = -1;
	peer->state = calloc(p->nr_slots, 1); /* all SHM_SLOT_POSTED */
	ret = peer->state ? shm_seg_make(p, peer) : -ENOMEM;
	if (ret) {
		free(peer->state);
		free(peer);
		return ret;
	}
	q->peer[i] = peer;
	/* Pairs with the release in shm_sleep_open(): the socket has its name. */
	peer->addr.addr = (struct shm_addr){SHM_MAGIC, SHM_VERSION, peer->rx.len,
					    atomic_load_explicit(&q->wake, memory_order_acquire)};
	memcpy(laddr->b, &peer->addr, sizeof(peer->addr));
	laddr->len = p->pool ? sizeof(peer->addr) : sizeof(peer->addr.addr);
	laddr->fd = peer->fd;
	laddr->has_pool = p->pool;
	laddr->pool_fd = peer->pool_fd;
	*out = i;
	return 0;
}

static int shm_addr_check(const struct gx_port_addr *raddr, struct shm_addr *addr)
{
	size_t len = raddr->has_pool ? sizeof(struct shm_addr_pool) : sizeof(*addr);

	if (raddr->len != len || raddr->fd < 0)
		return -EPROTO;
	memcpy(addr, raddr->b, sizeof(*addr));
	return addr->magic == SHM_MAGIC && addr->version == SHM_VERSION && addr->len &&
			       addr->len <= 2 * GX_ARENA_SIZE_MAX
		       ? 0
		       : -EPROTO;
}

static int shm_peer_connect(struct gx_port_queue *gq, uint32_t index,
			    const struct gx_port_addr *raddr)
{
	struct shm_port *p = GX_CONTAINER_OF(gq->port, struct shm_port, p);
	struct shm_peer *peer = shm_queue_of(gq)->peer[index];
	struct shm_addr addr;
	int ret = peer->tx.base ? -EPROTO : shm_addr_check(raddr, &addr);

	if (!ret)
		ret = shm_seg_open(&peer->tx, raddr->fd, &addr, raddr->has_pool);
	if (!ret) {
		peer->tx_free = calloc(peer->tx.nr_slots, sizeof(*peer->tx_free));
		ret = peer->tx_free ? 0 : -ENOMEM;
	}
	if (ret)
		gx_port_why_set("port shm: the peer's segment is %s",
				ret == -ENOMEM ? "too large to map" : "not a valid one");
	if (!ret && raddr->has_pool) {
		gx_port_why_set("port shm: what the peer says of its bounce pool makes no sense");
		ret = shm_pool_open(p, shm_queue_of(gq), peer, raddr);
	}
	if (!ret && addr.wake) /* that core's barrier runs on our CPUs, too */
		syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
	if (!ret)
		peer->tx_wake = addr.wake;
	if (raddr->fd >= 0)
		close(raddr->fd);
	if (raddr->has_pool)
		close(raddr->pool_fd);
	return ret;
}

static void shm_peer_info(struct gx_port_queue *gq, uint32_t index, struct gx_port_peer *out)
{
	const struct shm_peer *peer = shm_queue_of(gq)->peer[index];

	*out = (struct gx_port_peer){.flags = peer->tx_pool.base ? GX_PORT_TX_ATTACH : 0,
				     .gpus = peer->tx_pool.from,
				     .pool = peer->peer_device,
				     .pool_here = peer->tx_pool.base ? peer->tx_pool.device : -1,
				     .payload_max = peer->tx.slot_b,
				     .asleep = &peer->tx.hdr->asleep,
				     .woken = &peer->tx_woken};
}

static void shm_peer_del(struct gx_port_queue *gq, uint32_t index)
{
	struct shm_queue *q = shm_queue_of(gq);
	struct shm_peer *peer = q->peer[index];

	assert(peer && !peer->attached);
	q->peer[index] = NULL;
	shm_peer_free(GX_CONTAINER_OF(gq->port, struct shm_port, p), peer);
}

struct gx_port_ops gx_port_shm_ops = {
	.name = "shm",
	.open = shm_port_open,
	.close = shm_port_close,
	.queue_open = shm_queue_open,
	.queue_close = shm_queue_close,
	.peer_add = shm_peer_add,
	.peer_connect = shm_peer_connect,
	.peer_del = shm_peer_del,
	.peer_info = shm_peer_info,
	.peer_attach = shm_peer_attach,
	.peer_detach = shm_peer_detach,
	.rx_burst = shm_rx_burst,
	.rx_release = shm_rx_release,
	.tx_room = shm_tx_room,
	.tx_burst = shm_tx_burst,
	.tx_reap = shm_tx_reap,
	.fault = shm_fault,
	.sleep_open = shm_sleep_open,
	.sleep_look = shm_rxtx_look,
	.wake = shm_wake,
};
