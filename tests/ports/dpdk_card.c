// SPDX-License-Identifier: Apache-2.0
#include "ports/dpdk_card.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_mbuf.h>

#define QUEUES_MAX 16
#define RULES_MAX  32
#define FRAMES_MAX 1024 /* that wait in a queue */
#define FRAME_B	   9700
#define CARDS	   2

struct card_script card_script;
struct card_seen card_seen;

/* A receive queue, with the frames that the wire has brought. */
struct queue {
	struct rte_mempool *mp[2];
	uint16_t cut; /* bytes for the first; 0: plain */
	const struct rte_eth_rxtx_callback *rx, *tx;
	uint32_t head, tail;
	struct {
		uint16_t len;
		uint8_t *b;
	} frame[FRAMES_MAX];
};

static struct card {
	bool on, isolated;
	uint16_t id;
	unsigned nr_rules;
	struct {
		uint16_t udp_port, queue;
	} rule[RULES_MAX];
	struct queue q[QUEUES_MAX];
} cards[CARDS];

/* Memory that was mapped for DMA, the pool over it, and the card that takes buffers from there. */
static struct dma {
	char *at; /* NULL: free entry */
	size_t len;
	struct rte_mempool *slots;
	const struct card *card;
} dmas[CARDS];

static unsigned nr_payloads;

#define WRAPPED __attribute__((used))
#define DIE(...)                                                                                   \
	do {                                                                                       \
		fprintf(stderr, "card: " __VA_ARGS__);                                             \
		abort();                                                                           \
	} while (0)

/* The card with DPDK's number @id; a new one when there is none. */
static struct card *card_of(uint16_t id)
{
	struct card *free_one = NULL;

	for (unsigned i = 0; i < CARDS; i++) {
		if (cards[i].on && cards[i].id == id)
			return &cards[i];
		if (!cards[i].on && !free_one)
			free_one = &cards[i];
	}
	if (!free_one)
		DIE("two are the most\n");
	free_one->on = true;
	free_one->id = id;
	return free_one;
}

/* Where @len bytes at @at are mapped; NULL @at: a free entry. Return: NULL: nowhere. */
static struct dma *dma_find(const void *at, size_t len)
{
	for (struct dma *d = dmas; d < dmas + CARDS; d++)
		if ((!at && !d->at) || (at && d->at && (const char *)at >= d->at &&
					(const char *)at + len <= d->at + d->len))
			return d;
	return NULL;
}

static void dma_guard(const struct dma *d, bool on)
{
	if (card_script.guard && mprotect(d->at, d->len, on ? PROT_NONE : PROT_READ | PROT_WRITE))
		DIE("mprotect: %s\n", strerror(errno));
}

void card_guard(bool on)
{
	for (const struct dma *d = dmas; d < dmas + CARDS; d++)
		if (d->at)
			dma_guard(d, on);
}

void card_reset(void)
{
	memset(&card_script, 0, sizeof(card_script));
	memset(&card_seen, 0, sizeof(card_seen));
}

/* ---- the wire ---- */

/* The other card; the only one is its own peer. */
static struct card *wire_end(const struct card *from)
{
	struct card *other = &cards[from == cards];

	return other->on ? other : &cards[from != cards];
}

static bool is_arp(const uint8_t *frame)
{
	return frame[12] == 8 && frame[13] == 6;
}

static int card_queue(const struct card *c, const uint8_t *frame)
{
	uint16_t port = is_arp(frame) ? 0 : (uint16_t)(frame[36] << 8 | frame[37]);

	for (unsigned i = 0; i < c->nr_rules; i++)
		if (c->rule[i].udp_port == port)
			return c->rule[i].queue + card_script.stray;
	return c->isolated ? -1 : 0;
}

static void frame_come(struct card *to, const uint8_t *frame, uint16_t len)
{
	int index = card_queue(to, frame);
	struct queue *q = &to->q[index < 0 ? 0 : index % QUEUES_MAX];

	if (index < 0)
		return;
	if (q->head - q->tail == FRAMES_MAX) {
		card_seen.no_slot++;
		return;
	}
	q->frame[q->head % FRAMES_MAX].len = len;
	q->frame[q->head % FRAMES_MAX].b = memcpy(malloc(len), frame, len);
	q->head++;
}

static uint16_t card_tx(uint16_t id, uint16_t queue, struct rte_mbuf *m[], uint16_t n, void *arg)
{
	for (uint16_t i = 0; i < n; i++) {
		uint16_t len = (uint16_t)m[i]->pkt_len;
		uint8_t b[FRAME_B];
		const uint8_t *frame = rte_pktmbuf_read(m[i], 0, len, b);

		if (is_arp(frame))
			card_seen.arp++;
		else
			frame_come(wire_end(arg), frame, len);
	}
	return n;
}

void card_ask(uint32_t ip)
{
	static const uint8_t head[] = {
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2,	0, 0, 0, 0, 9, 8, 6, /* to all, ARP */
		0,    1,    8,	  0,	6,    4,    0,	1,	  /* Ethernet, IPv4: who has */
		2,    0,    0,	  0,	0,    9,    10, 9, 0, 9}; /* asks 10.9.0.9 */
	uint8_t frame[60] = {0};

	memcpy(frame, head, sizeof(head));
	for (unsigned i = 0; i < 4; i++)
		frame[38 + i] = (uint8_t)(ip >> (24 - 8 * i));
	for (unsigned i = 0; i < CARDS; i++)
		if (cards[i].on)
			frame_come(&cards[i], frame, sizeof(frame));
}

/* ---- into buffers ---- */

static void card_dma(void *dst, const uint8_t *src, uint16_t len)
{
	const struct dma *d = dma_find(dst, len);

	if (!d)
		DIE("write to memory that is not mapped for it\n");
	dma_guard(d, false);
	memcpy(dst, src, len);
	dma_guard(d, true);
}

static struct rte_mbuf *buf_get(struct rte_mempool *mp, const uint8_t *b, uint16_t len, bool slot)
{
	struct rte_mbuf *m = rte_pktmbuf_alloc(mp);

	if (!m)
		return NULL;
	m->data_len = len;
	m->pkt_len = len;
	if (!slot) {
		if (rte_pktmbuf_tailroom(m) + len < len)
			DIE("a frame of %u bytes does not fit\n", len);
		memcpy(rte_pktmbuf_mtod(m, void *), b, len);
		return m;
	}
	m->data_off = 0;
	if (len > m->buf_len)
		DIE("payload of %u bytes does not fit a slot of %u\n", len, m->buf_len);
	card_dma(rte_pktmbuf_mtod(m, void *), b, len);
	return m;
}

/* A frame from a queue that is cut; NULL: no buffers. */
static struct rte_mbuf *frame_cut(struct queue *q, const uint8_t *b, uint16_t len)
{
	uint16_t at[4] = {0, q->cut, len, len}, n = 2;
	struct rte_mbuf *m = NULL, *last = NULL;

	if (card_script.lose && nr_payloads++ % card_script.lose == card_script.lose - 1)
		return NULL;
	if (card_script.in_three && len > q->cut + 1) {
		at[2] = (uint16_t)(q->cut + 1);
		n = 3;
	}
	for (uint16_t i = 0; i < n; i++) {
		struct rte_mbuf *next =
			buf_get(q->mp[i > 0], b + at[i], (uint16_t)(at[i + 1] - at[i]), i > 0);

		if (!next) {
			rte_pktmbuf_free(m);
			return NULL;
		}
		if (!m) {
			m = next;
		} else {
			last->next = next;
			m->nb_segs++;
			m->pkt_len += next->data_len;
		}
		last = next;
	}
	if (card_script.loses_end && last->data_len)
		last->data_len--;
	return m;
}

static struct rte_mbuf *frame_take(struct queue *q, const uint8_t *b, uint16_t len)
{
	struct rte_mbuf *m;

	m = q->cut && len > q->cut ? frame_cut(q, b, len) : buf_get(q->mp[0], b, len, false);
	if (!m)
		card_seen.no_slot++;
	else if (q->cut)
		card_seen.cut++;
	else
		card_seen.plain++;
	return m;
}

static uint16_t card_rx(uint16_t id, uint16_t queue, struct rte_mbuf *m[], uint16_t n, uint16_t max,
			void *arg)
{
	struct queue *q = arg;

	while (n < max && q->tail != q->head) {
		uint32_t i = q->tail++ % FRAMES_MAX;

		m[n] = frame_take(q, q->frame[i].b, q->frame[i].len);
		n += m[n] != NULL;
		free(q->frame[i].b);
	}
	return n;
}

/* ---- what dataplane/ports/dpdk/ calls ---- */

int __real_rte_eth_dev_info_get(uint16_t id, struct rte_eth_dev_info *info);
int __wrap_rte_eth_dev_info_get(uint16_t id, struct rte_eth_dev_info *info);
int __real_rte_eth_rx_queue_setup(uint16_t id, uint16_t queue, uint16_t nr, unsigned socket,
				  const struct rte_eth_rxconf *conf, struct rte_mempool *mp);
int __wrap_rte_eth_rx_queue_setup(uint16_t id, uint16_t queue, uint16_t nr, unsigned socket,
				  const struct rte_eth_rxconf *conf, struct rte_mempool *mp);
int __real_rte_eth_tx_queue_setup(uint16_t id, uint16_t queue, uint16_t nr, unsigned socket,
				  const struct rte_eth_txconf *conf);
int __wrap_rte_eth_tx_queue_setup(uint16_t id, uint16_t queue, uint16_t nr, unsigned socket,
				  const struct rte_eth_txconf *conf);
int __wrap_rte_eth_buffer_split_get_supported_hdr_ptypes(uint16_t id, uint32_t *types, int n);
int __wrap_rte_flow_isolate(uint16_t id, int set, struct rte_flow_error *err);
struct rte_flow *__wrap_rte_flow_create(uint16_t id, const struct rte_flow_attr *attr,
					const struct rte_flow_item items[],
					const struct rte_flow_action actions[],
					struct rte_flow_error *err);
int __wrap_rte_flow_flush(uint16_t id, struct rte_flow_error *err);
int __real_rte_extmem_register(void *at, size_t len, rte_iova_t iova[], unsigned n, size_t page);
int __wrap_rte_extmem_register(void *at, size_t len, rte_iova_t iova[], unsigned n, size_t page);
int __real_rte_extmem_unregister(void *at, size_t len);
int __wrap_rte_extmem_unregister(void *at, size_t len);
int __wrap_rte_dev_dma_map(struct rte_device *dev, void *at, uint64_t iova, size_t len);
int __wrap_rte_dev_dma_unmap(struct rte_device *dev, void *at, uint64_t iova, size_t len);
struct rte_mempool *__real_rte_pktmbuf_pool_create_extbuf(const char *name, unsigned n,
							  unsigned cache, uint16_t priv,
							  uint16_t room, int socket,
							  const struct rte_pktmbuf_extmem *mem,
							  unsigned nr_mem);
struct rte_mempool *__wrap_rte_pktmbuf_pool_create_extbuf(const char *name, unsigned n,
							  unsigned cache, uint16_t priv,
							  uint16_t room, int socket,
							  const struct rte_pktmbuf_extmem *mem,
							  unsigned nr_mem);
void __real_rte_mempool_free(struct rte_mempool *mp);
void __wrap_rte_mempool_free(struct rte_mempool *mp);
int __real_rte_eth_dev_close(uint16_t id);
int __wrap_rte_eth_dev_close(uint16_t id);
int __real_rte_vdev_uninit(const char *name);
int __wrap_rte_vdev_uninit(const char *name);

WRAPPED int __wrap_rte_eth_dev_info_get(uint16_t id, struct rte_eth_dev_info *info)
{
	uint64_t split = RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT | RTE_ETH_RX_OFFLOAD_SCATTER;
	int ret = __real_rte_eth_dev_info_get(id, info);

	if (ret || card_script.no_split)
		return ret;
	info->rx_offload_capa |= split;
	if (!card_script.of_all)
		info->rx_queue_offload_capa |= split;
	info->rx_seg_capa.max_nseg = 4;
	info->rx_seg_capa.multi_pools = 1;
	info->max_rx_queues = (uint16_t)(card_script.queues ? card_script.queues : QUEUES_MAX);
	return 0;
}

WRAPPED int __wrap_rte_eth_buffer_split_get_supported_hdr_ptypes(uint16_t id, uint32_t *types,
								 int n)
{
	return card_script.by_header ? 3 : -ENOTSUP;
}

/* As ethdev checks it for a card that can. */
static int split_check(const struct rte_eth_rxconf *conf)
{
	const struct rte_eth_rxseg_split *s = &conf->rx_seg[0].split;
	uint64_t wanted = RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT | RTE_ETH_RX_OFFLOAD_SCATTER;

	if (card_script.no_split_setup || conf->rx_nseg != 2 || (conf->offloads & wanted) != wanted)
		return -EINVAL;
	if (!s->length || s->length + RTE_PKTMBUF_HEADROOM > rte_pktmbuf_data_room_size(s->mp))
		return -EINVAL;
	return conf->rx_seg[1].split.length || conf->rx_seg[1].split.mp == s->mp ? -EINVAL : 0;
}

WRAPPED int __wrap_rte_eth_rx_queue_setup(uint16_t id, uint16_t queue, uint16_t nr, unsigned socket,
					  const struct rte_eth_rxconf *conf, struct rte_mempool *mp)
{
	struct queue *q = &card_of(id)->q[queue];
	int ret = mp ? 0 : split_check(conf);

	if (ret)
		return ret;
	q->mp[0] = mp ? mp : conf->rx_seg[0].split.mp;
	q->mp[1] = mp ? NULL : conf->rx_seg[1].split.mp;
	q->cut = mp ? 0 : conf->rx_seg[0].split.length;
	for (struct dma *d = dmas; d < dmas + CARDS; d++)
		if (!mp && d->slots == q->mp[1])
			d->card = card_of(id);
	ret = __real_rte_eth_rx_queue_setup(id, queue, nr, socket, NULL, q->mp[0]);
	if (!ret)
		q->rx = rte_eth_add_rx_callback(id, queue, card_rx, q);
	return ret ? ret : q->rx ? 0 : -rte_errno;
}

WRAPPED int __wrap_rte_eth_tx_queue_setup(uint16_t id, uint16_t queue, uint16_t nr, unsigned socket,
					  const struct rte_eth_txconf *conf)
{
	struct queue *q = &card_of(id)->q[queue];
	int ret = __real_rte_eth_tx_queue_setup(id, queue, nr, socket, conf);

	if (!ret)
		q->tx = rte_eth_add_tx_callback(id, queue, card_tx, card_of(id));
	return ret ? ret : q->tx ? 0 : -rte_errno;
}

WRAPPED int __wrap_rte_flow_isolate(uint16_t id, int set, struct rte_flow_error *err)
{
	if (card_script.no_isolation)
		return -ENOTSUP;
	card_of(id)->isolated = set;
	return 0;
}

WRAPPED struct rte_flow *__wrap_rte_flow_create(uint16_t id, const struct rte_flow_attr *attr,
						const struct rte_flow_item items[],
						const struct rte_flow_action actions[],
						struct rte_flow_error *err)
{
	const struct rte_flow_action_queue *to = actions[0].conf;
	bool arp = items[1].type == RTE_FLOW_ITEM_TYPE_END;
	const struct rte_flow_item_udp *udp = arp ? NULL : items[2].spec;
	struct card *c = card_of(id);

	if (c->nr_rules == (card_script.rules ? card_script.rules : RULES_MAX)) {
		err->message = "no room for this rule";
		rte_errno = ENOSPC;
		return NULL;
	}
	c->rule[c->nr_rules].udp_port = arp ? 0 : rte_be_to_cpu_16(udp->hdr.dst_port);
	c->rule[c->nr_rules].queue = to->index;
	card_seen.rules++;
	return (struct rte_flow *)&c->rule[c->nr_rules++];
}

WRAPPED int __wrap_rte_flow_flush(uint16_t id, struct rte_flow_error *err)
{
	card_of(id)->nr_rules = 0;
	return 0;
}

WRAPPED int __wrap_rte_extmem_register(void *at, size_t len, rte_iova_t iova[], unsigned n,
				       size_t page)
{
	int ret;

	if (card_script.no_register) {
		rte_errno = ENOSPC;
		return -1;
	}
	ret = __real_rte_extmem_register(at, len, iova, n, page);
	card_seen.known += !ret;
	return ret;
}

WRAPPED int __wrap_rte_extmem_unregister(void *at, size_t len)
{
	int ret = __real_rte_extmem_unregister(at, len);

	card_seen.unknown += !ret;
	card_seen.wrong_order += dma_find(at, len) != NULL;
	return ret;
}

WRAPPED int __wrap_rte_dev_dma_map(struct rte_device *dev, void *at, uint64_t iova, size_t len)
{
	struct dma *d = dma_find(NULL, 0);

	if (card_script.no_map) {
		rte_errno = EFAULT;
		return -1;
	}
	if (!d)
		DIE("too many maps\n");
	d->at = at;
	d->len = len;
	card_seen.maps++;
	dma_guard(d, true);
	return 0;
}

WRAPPED int __wrap_rte_dev_dma_unmap(struct rte_device *dev, void *at, uint64_t iova, size_t len)
{
	struct dma *d = dma_find(at, len);

	if (!d || at != d->at || len != d->len)
		DIE("unmap of what was not mapped\n");
	card_seen.wrong_order += d->slots || (d->card && d->card->on);
	dma_guard(d, false);
	memset(d, 0, sizeof(*d));
	card_seen.unmaps++;
	return 0;
}

WRAPPED struct rte_mempool *__wrap_rte_pktmbuf_pool_create_extbuf(
	const char *name, unsigned n, unsigned cache, uint16_t priv, uint16_t room, int socket,
	const struct rte_pktmbuf_extmem *mem, unsigned nr_mem)
{
	struct dma *d = dma_find(mem->buf_ptr, mem->buf_len);

	if (!d)
		DIE("buffers in memory that is not mapped\n");
	d->slots = __real_rte_pktmbuf_pool_create_extbuf(name, n, cache, priv, room, socket, mem,
							 nr_mem);
	return d->slots;
}

WRAPPED void __wrap_rte_mempool_free(struct rte_mempool *mp)
{
	if (mp)
		card_seen.leaked += rte_mempool_avail_count(mp) != mp->size;
	for (struct dma *d = dmas; mp && d < dmas + CARDS; d++)
		if (d->slots == mp)
			d->slots = NULL;
	__real_rte_mempool_free(mp);
}

static void card_off(struct card *c)
{
	for (uint16_t i = 0; i < QUEUES_MAX; i++) {
		struct queue *q = &c->q[i];

		while (q->tail != q->head)
			free(q->frame[q->tail++ % FRAMES_MAX].b);
		if (q->rx) /* DPDK would go on calling it when it gives the number to another */
			rte_eth_remove_rx_callback(c->id, i, q->rx);
		if (q->tx)
			rte_eth_remove_tx_callback(c->id, i, q->tx);
	}
	memset(c, 0, sizeof(*c));
}

WRAPPED int __wrap_rte_eth_dev_close(uint16_t id)
{
	card_off(card_of(id));
	return __real_rte_eth_dev_close(id);
}

WRAPPED int __wrap_rte_vdev_uninit(const char *name)
{
	uint16_t id;

	if (!rte_eth_dev_get_port_by_name(name, &id))
		card_off(card_of(id));
	return __real_rte_vdev_uninit(name);
}
