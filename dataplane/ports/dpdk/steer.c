/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the core for a received packet: the device sorts by flow rules, or cores hand over
 * packets of other cores. Control path; rxtx.c hands over.
 */
#include "ports/dpdk/dpdk.h"

#include <stdlib.h>
#include <string.h>

#include <rte_errno.h>
#include <rte_flow.h>

#include "gx_internal/ring.h"

#define DPDK_HAND 256 /* most packets on the way from one core to another */

/* ---- Handing packets to the core of their UDP port ---- */

void dpdk_hand_close(struct dpdk_port *p)
{
	for (unsigned i = 0; i < p->nr_queues; i++) {
		struct dpdk_queue *q = p->queue[i];

		for (unsigned j = 0; q && q->from && j < p->nr_queues; j++)
			gx_ring_close(q->from[j]); /* its packets go with their pool */
		if (q)
			free(q->from);
	}
}

/* A ring from each queue to each other queue. One core puts, one core takes. */
int dpdk_hand_open(struct dpdk_port *p)
{
	for (unsigned i = 0; i < p->nr_queues; i++) {
		struct dpdk_queue *q = p->queue[i];
		int ret = 0;

		q->from = calloc(p->nr_queues, sizeof(*q->from));
		if (!q->from)
			return -ENOMEM;
		for (unsigned j = 0; j < p->nr_queues && !ret; j++)
			if (j != i)
				ret = gx_ring_open(DPDK_HAND, &q->from[j]);
		if (ret)
			return ret;
	}
	p->hand_over = true;
	return 0;
}

/* ---- Flow rules ---- */

static int rule_add(uint16_t id, uint16_t queue, const struct rte_flow_item items[],
		    struct rte_flow_error *err)
{
	struct rte_flow_attr attr = {.ingress = 1};
	struct rte_flow_action_queue to = {.index = queue};
	struct rte_flow_action actions[] = {
		{.type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &to},
		{.type = RTE_FLOW_ACTION_TYPE_END},
	};

	return rte_flow_create(id, &attr, items, actions, err) ? 0 : -rte_errno;
}

static int rule_add_udp(uint16_t id, uint16_t queue, uint16_t udp_port, struct rte_flow_error *err)
{
	struct rte_flow_item_udp udp = {.hdr.dst_port = rte_cpu_to_be_16(udp_port)};
	struct rte_flow_item_udp mask = {.hdr.dst_port = UINT16_MAX};
	struct rte_flow_item items[] = {
		{.type = RTE_FLOW_ITEM_TYPE_ETH},
		{.type = RTE_FLOW_ITEM_TYPE_IPV4},
		{.type = RTE_FLOW_ITEM_TYPE_UDP, .spec = &udp, .mask = &mask},
		{.type = RTE_FLOW_ITEM_TYPE_END},
	};

	return rule_add(id, queue, items, err);
}

/* An isolated device brings in only packets that a rule names, and nobody else answers ARP for
 * us. */
static void rule_add_arp(const struct dpdk_port *p)
{
	struct rte_flow_item_eth eth = {.hdr.ether_type = rte_cpu_to_be_16(RTE_ETHER_TYPE_ARP)};
	struct rte_flow_item_eth mask = {.hdr.ether_type = UINT16_MAX};
	struct rte_flow_item items[] = {
		{.type = RTE_FLOW_ITEM_TYPE_ETH, .spec = &eth, .mask = &mask},
		{.type = RTE_FLOW_ITEM_TYPE_END},
	};
	struct rte_flow_error err = {0};
	int ret = rule_add(p->shared_id, 0, items, &err);

	if (ret)
		gx_warn("port dpdk: %s refuses a flow rule for ARP: %s; routers need our MAC "
			"address from elsewhere (ip neigh add ... lladdr ...)",
			p->args.name, err.message ? err.message : strerror(-ret));
}

int dpdk_rules_open(struct dpdk_port *p, bool isolated)
{
	struct rte_flow_error err = {0};
	int ret = 0;

	for (unsigned i = 0; i < 2 * p->nr_queues && !ret; i++) {
		unsigned to = i / 2 + (p->pool.arena && !(i & 1) ? p->nr_queues : 0);

		ret = rule_add_udp(p->shared_id, (uint16_t)to, (uint16_t)(p->net.udp_port + i),
				   &err);
	}
	if (!ret && isolated && p->arp)
		rule_add_arp(p);
	if (!ret || (p->nr_queues == 1 && !isolated))
		return 0;
	gx_port_why_set("port dpdk: %s refuses a flow rule (UDP port to queue): %s%s", p->args.name,
			err.message ? err.message : strerror(-ret),
			p->pool.arena ? "; data packets need a queue of their own to get to memory "
					"of a GPU: take gx_gpu_opts.bounce host"
				      : "");
	if (isolated)
		return ret; /* isolated, it would bring nothing in */
	gx_warn("%s: packets that come in at another core's queue are handed to it, which is "
		"slower",
		gx_port_why_of(ret));
	rte_flow_flush(p->shared_id, NULL);
	return dpdk_hand_open(p);
}
