/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bounce pool in GPU memory. The device cuts data packets: headers go to host memory, payload
 * goes to the pool. Control path.
 */
#include "ports/dpdk/dpdk.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#define DPDK_POOL_ALIGN 128 /* of payload in it */

/* "NAME LACKS: the cure" */
int dpdk_pool_refuse(const struct dpdk_port *p, const char *lacks)
{
	gx_port_why_set("port dpdk: %s %s, which payload in memory of cuda:%d needs: take "
			"gx_gpu_opts.bounce host",
			p->args.name, lacks, p->pool.gpu->device);
	return -EOPNOTSUPP;
}

/*
 * The device must cut packets at DPDK_HEAD_B, with two pools, on single queues. The checks run one
 * by one, so that the reason names the missing ability. DMA maps, flow isolation and flow rules
 * cannot be asked for; gx finds out when it makes them.
 */
int dpdk_pool_probe(const struct dpdk_port *p, const struct rte_eth_dev_info *info)
{
	char lacks[160];

	if (!(info->rx_offload_capa & RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT) ||
	    info->rx_seg_capa.max_nseg < 2 || !info->rx_seg_capa.multi_pools)
		snprintf(lacks, sizeof(lacks),
			 "(driver %s) cannot split packets, headers to host memory and payload to "
			 "another pool (no buffer split with two pools)",
			 info->driver_name);
	else if (rte_eth_buffer_split_get_supported_hdr_ptypes(p->shared_id, NULL, 0) > 0)
		snprintf(lacks, sizeof(lacks),
			 "(driver %s) splits packets behind a protocol's header, not at byte %u "
			 "where gx's ends",
			 info->driver_name, DPDK_HEAD_B);
	else if (!(info->rx_queue_offload_capa & RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT))
		snprintf(lacks, sizeof(lacks),
			 "(driver %s) splits packets of all receive queues or of none, not of some",
			 info->driver_name);
	else if (2 * p->nr_queues > info->max_rx_queues)
		snprintf(
			lacks, sizeof(lacks),
			"has %u receive queues, not two for each of %u cores (fewer gx_opts.nr_cores?)",
			info->max_rx_queues, p->nr_queues);
	else if (p->pool.gpu->dma == GX_GPU_DMA_NONE)
		snprintf(lacks, sizeof(lacks),
			 "would write to a GPU that shows what cards write only after a flush "
			 "(CUDA: no ordering of GPUDirect RDMA writes), not at once");
	else
		return 0;
	return dpdk_pool_refuse(p, lacks);
}

/* Map memory of the GPU for the device's DMA. */
static int pool_map(struct dpdk_port *p, const struct rte_eth_dev_info *info)
{
	struct dpdk_pool *pool = &p->pool;
	char lacks[200];
	int ret = gx_arena_map(pool->arena, -1, pool->len, &pool->mem);

	if (ret) {
		gx_port_why_set("port dpdk: no %zu bytes of memory on cuda:%d for payload: %s; "
				"fewer gx_packet_opts.slots, or gx_gpu_opts.bounce host",
				pool->len, pool->gpu->device, strerror(-ret));
		return ret;
	}
	if (rte_extmem_register(pool->mem, pool->len, NULL, (unsigned)(pool->len / GX_HUGE_PAGE),
				GX_HUGE_PAGE)) {
		snprintf(lacks, sizeof(lacks),
			 "(driver %s) has an EAL that does not note memory "
			 "outside of it (%s)",
			 info->driver_name, strerror(rte_errno));
		return dpdk_pool_refuse(p, lacks);
	}
	pool->known = true;
	if (rte_dev_dma_map(info->device, pool->mem, (uintptr_t)pool->mem, pool->len)) {
		snprintf(lacks, sizeof(lacks),
			 "(driver %s) does not map memory of the GPU for DMA (%s; is "
			 "nvidia-peermem loaded?)",
			 info->driver_name, strerror(rte_errno));
		return dpdk_pool_refuse(p, lacks);
	}
	pool->dev = info->device;
	return 0;
}

/* Like dpdk_pktmbufs_open(). The mbufs are in host memory, their buffers on the GPU. */
static int pool_slots_open(struct dpdk_pool *pool, uint32_t nr, uint16_t slot_b)
{
	struct rte_pktmbuf_extmem mem = {.buf_ptr = pool->mem,
					 .buf_iova = (uintptr_t)pool->mem,
					 .buf_len = pool->len,
					 .elt_size = slot_b};
	char name[32];

	snprintf(name, sizeof(name), "gx%u_gpu", dpdk_unique());
	pool->slots = rte_pktmbuf_pool_create_extbuf(name, nr, DPDK_CACHE, 0, slot_b, SOCKET_ID_ANY,
						     &mem, 1);
	if (pool->slots)
		return 0;
	gx_port_why_set("port dpdk: no memory for %u buffers on cuda:%d: %s; DPDK has %zu MiB, "
			"mem= makes it more",
			nr, pool->gpu->device, strerror(rte_errno), dpdk_mem.len >> 20);
	return -ENOMEM;
}

/* The cut queues and their pools. All queues share the pools, as in shared_pools_open(). */
int dpdk_pool_open(struct dpdk_port *p, const struct rte_eth_dev_info *info)
{
	uint32_t nr = p->nr_queues * (p->slots + DPDK_DESCS) + DPDK_FIFO + 2 * DPDK_CACHE;
	/* 4: the device may keep the Ethernet checksum after the payload. */
	uint32_t slot_b = GX_ALIGN_UP(p->frame_max + 4 - DPDK_HEAD_B, (uint32_t)DPDK_POOL_ALIGN);
	struct dpdk_pool *pool = &p->pool;
	int ret;

	pool->len = GX_ALIGN_UP((size_t)nr * slot_b, (size_t)GX_HUGE_PAGE);
	ret = pool_map(p, info);
	if (!ret)
		ret = pool_slots_open(pool, nr, (uint16_t)slot_b);
	if (!ret)
		ret = dpdk_pktmbufs_open("head", nr, DPDK_HEAD_B, &pool->head);
	for (unsigned i = 0; i < p->nr_queues && !ret; i++) {
		struct dpdk_queue *q = p->queue[i];

		q->cut.id = q->dev.id;
		q->cut.qid = (uint16_t)(p->nr_queues + i);
		q->cut.peer = GX_PEER_ANY;
		q->cut.verify = q->dev.verify;
		q->cut.cut = true;
		q->q.rx_base = gx_arena_base(pool->arena);
		q->q.rx_gpu = pool->gpu;
	}
	return ret;
}

/* Call it after the device has stopped and before it is removed: the device has the memory
 * mapped. */
void dpdk_pool_close(struct dpdk_port *p)
{
	struct dpdk_pool *pool = &p->pool;

	if (!pool->arena)
		return;
	if (pool->slots)
		rte_eth_dev_close(p->shared_id); /* makes its queues release their buffers */
	rte_mempool_free(pool->slots);
	rte_mempool_free(pool->head);
	if (pool->dev)
		rte_dev_dma_unmap(pool->dev, pool->mem, (uintptr_t)pool->mem, pool->len);
	if (pool->known)
		rte_extmem_unregister(pool->mem, pool->len);
	if (pool->mem)
		gx_arena_unmap(pool->arena, pool->mem, pool->len);
}
