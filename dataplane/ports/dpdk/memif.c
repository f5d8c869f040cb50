/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memif: one device for each peer, made when the peer connects. The two ends of a connection have
 * different roles. The end that has made the connection owns the socket: it is memif's server. The
 * other end (gxd, the receiver of puts) is memif's zero-copy client. So the sender's one copy lands
 * in the receiver's bounce buffers. A port may have both roles, each towards other peers. Control
 * path; cores also send and receive the goodbye.
 */
#include "ports/dpdk/dpdk.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rte_bus_vdev.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#define DPDK_MEMIF_MARGIN 128
#define DPDK_BYE_NS	  20000000   /* longest wait for a peer's goodbye */
#define DPDK_UP_NS	  4000000000 /* longest wait for memif's link; below a peer's time-out */

/* One connection is made at a time. */
static pthread_mutex_t memif_connecting = PTHREAD_MUTEX_INITIALIZER;

/* The socket of this process, for all its ports: memif (22.11) never closes a socket that it listens
 * at. owner: the holder of lock */
static struct {
	pthread_mutex_t lock;
	struct dpdk_addr sock;	/* and the last interface number on it; no path: there is none */
	struct dpdk_dev holder; /* nobody connects to it; the socket exists as long as it does */
	struct dpdk_dir dir;
	pid_t pid;
} ours = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool memif_zero_copy(const struct dpdk_port *p, const struct dpdk_dev *d)
{
	return p->zero_copy && !d->owns;
}

static void memif_args(const struct dpdk_port *p, const struct dpdk_dev *d,
		       const struct dpdk_addr *sock, char *out, size_t room)
{
	unsigned log2 = 0;
	char v[32];
	int n;

	while ((1u << log2) < p->ring)
		log2++;
	n = snprintf(out, room, "role=%s,socket=%s,socket-abstract=no,id=%u",
		     d->owns ? "server" : "client", sock->path, sock->id);
	if (!dpdk_args_get(&p->args, "bsize", v, sizeof(v)))
		n += snprintf(out + n, room - (size_t)n, ",bsize=%u", p->room);
	if (!dpdk_args_get(&p->args, "rsize", v, sizeof(v)))
		n += snprintf(out + n, room - (size_t)n, ",rsize=%u", log2);
	if (!dpdk_args_get(&p->args, "zero-copy", v, sizeof(v)))
		n += snprintf(out + n, room - (size_t)n, ",zero-copy=%s",
			      memif_zero_copy(p, d) ? "yes" : "no");
	snprintf(out + n, room - (size_t)n, "%s%s", *p->args.rest ? "," : "", p->args.rest);
}

/* A job of memif_make() for DPDK's interrupt thread. */
struct memif_job {
	struct dpdk_port *p;
	struct dpdk_dev *d;
	const char *what; /* the step that failed */
	char args[768];
};

static int memif_make_run(void *arg)
{
	struct memif_job *job = arg;
	struct dpdk_dev *d = job->d;
	struct rte_eth_dev_info info;
	int ret = rte_vdev_init(d->name, job->args);

	if (ret)
		return ret;
	d->made = true;
	job->what = "cannot be set up";
	ret = rte_eth_dev_get_port_by_name(d->name, &d->id);
	if (!ret)
		ret = rte_eth_dev_info_get(d->id, &info);
	if (ret || !d->rx_pool)
		return ret; /* the holder: it only keeps the socket */
	d->tx_mode =
		memif_zero_copy(job->p, d) ? DPDK_TX_COPY : dpdk_dev_tx_mode(&job->p->args, &info);
	if (d->tx_mode == DPDK_TX_GATHER)
		dpdk_dev_gather_init(d);
	ret = dpdk_dev_configure(d->id, &d, 1, &info, 0, NULL);
	if (ret)
		return ret;
	job->what = "cannot connect";
	ret = rte_eth_dev_start(d->id);
	d->started = !ret;
	return ret;
}

static int memif_make(struct dpdk_port *p, struct dpdk_dev *d, const struct dpdk_addr *sock)
{
	struct memif_job job = {.p = p, .d = d, .what = "cannot be made"};
	int ret;

	memif_args(p, d, sock, job.args, sizeof(job.args));
	snprintf(d->name, sizeof(d->name), "net_memif_gx%u", dpdk_unique());
	dpdk_said_clear();
	ret = dpdk_gate_call(memif_make_run, &job);
	return ret ? dpdk_why(ret == -1 ? -EIO : ret, job.what, sock->path) : 0;
}

static int memif_unmake_run(void *arg)
{
	struct dpdk_dev *d = arg;

	if (d->started)
		rte_eth_dev_stop(d->id);
	if (d->made)
		rte_vdev_uninit(d->name);
	d->started = d->made = false;
	return 0;
}

static int dev_full(void)
{
	gx_port_why_set("port dpdk: DPDK has room for %u devices, all are taken", RTE_MAX_ETHPORTS);
	return -ENOSPC;
}

/* Reserve a place behind the gate now. Where the socket is the peer's, the device itself is made
 * later, when the peer's address is here. */
static int memif_new(struct dpdk_port *p, uint32_t peer, bool owns, struct dpdk_dev **out)
{
	struct dpdk_dev *d = calloc(1, sizeof(*d));
	uint32_t ring; /* buffers that the driver keeps */
	int ret;

	if (!d)
		return -ENOMEM;
	d->owns = owns;
	ring = memif_zero_copy(p, d) ? p->ring : 0;
	d->peer = peer;
	d->frame_max = p->room;
	d->gated = true;
	ret = dpdk_dev_pools_open(d, p->slots + ring, ring, p->room);
	if (!ret && !dpdk_gate_replace(NULL, d))
		ret = dev_full();
	if (ret) {
		dpdk_dev_pools_close(d);
		free(d);
		return ret;
	}
	*out = d;
	return 0;
}

/*
 * The half of the end that was connected to. The peer owns the socket and has made its device
 * already, so DPDK's threads bring the link up. Zero copy needs EAL's descriptor until the link is
 * up.
 */
static int memif_connect(struct dpdk_port *p, struct dpdk_dev *d, const struct dpdk_addr *sock)
{
	static const struct timespec nap = {.tv_nsec = 100000};
	uint64_t until = gx_now_ns() + DPDK_UP_NS;
	int ret;

	pthread_mutex_lock(&memif_connecting);
	if (p->zero_copy && !dpdk_fd_restore()) {
		gx_port_why_set("port dpdk: more than %d files are open: no zero copy; "
				"zero-copy=no helps",
				dpdk_mem.fd);
		ret = -EMFILE;
	} else {
		ret = memif_make(p, d, sock);
	}
	while (!ret && !dpdk_dev_is_up(d)) {
		if (gx_now_ns() > until)
			ret = dpdk_why(-ETIMEDOUT, "does not connect", sock->path);
		nanosleep(&nap, NULL);
	}
	gx_debug("port dpdk: memif connected after %u us: %d",
		 (unsigned)((gx_now_ns() + DPDK_UP_NS - until) / 1000), ret);
	dpdk_fd_restore();
	pthread_mutex_unlock(&memif_connecting);
	return ret;
}

/* Say goodbye before a close: the peer then leaves the rings alone, which DPDK will unmap. */
void dpdk_memif_bye(struct dpdk_dev *d)
{
	struct rte_mbuf *m;

	if (d->bye || !dpdk_dev_is_up(d))
		return;
	m = rte_pktmbuf_alloc(d->tx_pool);
	if (!m)
		return;
	m->data_len = 64;
	m->pkt_len = 64;
	memset(rte_pktmbuf_mtod(m, char *), 0, 64);
	dpdk_put16(rte_pktmbuf_mtod(m, uint8_t *) + 12, DPDK_BYE);
	d->bye = dpdk_dev_tx(d, &m, 1) == 1;
	if (!d->bye)
		rte_pktmbuf_free(m);
}

bool dpdk_memif_is_bye(const struct rte_mbuf *m)
{
	return m->data_len >= DPDK_ETH_B &&
	       dpdk_get16(rte_pktmbuf_mtod(m, const uint8_t *) + 12) == DPDK_BYE;
}

/* After the core has let go: wait until the peer has let go too. Bounded, and only a courtesy. */
static void memif_drain(struct dpdk_dev *d)
{
	static const struct timespec nap = {.tv_nsec = 100000};
	uint64_t until = gx_now_ns() + DPDK_BYE_NS;
	struct rte_mbuf *m[DPDK_RX_BURST];

	while (!d->quiet && dpdk_dev_is_up(d) && gx_now_ns() < until) {
		uint16_t n = dpdk_dev_rx(d, m, DPDK_RX_BURST);

		for (uint16_t i = 0; i < n; i++)
			d->quiet |= dpdk_memif_is_bye(m[i]);
		rte_pktmbuf_free_bulk(m, n);
		dpdk_memif_bye(d);
		if (n)
			continue;
		dpdk_gate_let(); /* lets memif notice a dead peer */
		nanosleep(&nap, NULL);
	}
}

void dpdk_memif_free(struct dpdk_dev *d)
{
	if (!d)
		return;
	if (d->started)
		memif_drain(d);
	if (d->made)
		dpdk_gate_call(memif_unmake_run, d);
	dpdk_gate_replace(d, NULL);
	dpdk_dev_pools_close(d);
	free(d);
}

/* ---- The port and its peers ---- */

static int memif_sizes(struct dpdk_port *p, const struct gx_port_cfg *cfg)
{
	uint32_t mtu = p->args.mtu ? p->args.mtu : 1500;
	unsigned long bsize, rsize;
	char v[32];

	if (!p->args.mtu && cfg->payload_b > mtu - 66)
		mtu = GX_MIN(cfg->payload_b + 66, 9000u);
	dpdk_port_sizes(p, mtu, cfg->payload_b);
	bsize = dpdk_args_get(&p->args, "bsize", v, sizeof(v)) ? strtoul(v, NULL, 10) : p->room;
	if (bsize < p->frame_max || bsize < 1620 || bsize > 16384) {
		gx_port_why_set(
			"port dpdk: bsize=%lu: frames of %u bytes must fit, and 16384 is most",
			bsize, GX_MAX(p->frame_max, 1620u));
		return -EINVAL;
	}
	p->room = (uint32_t)bsize;
	for (p->ring = 64; p->ring < p->slots + DPDK_MEMIF_MARGIN && p->ring < 16384;)
		p->ring *= 2;
	if (dpdk_args_get(&p->args, "rsize", v, sizeof(v))) {
		rsize = strtoul(v, NULL, 10);
		if (rsize < 6 || rsize > 14) {
			gx_port_why_set("port dpdk: rsize=%.8s: it must be from 6 to 14", v);
			return -EINVAL;
		}
		p->ring = 1u << rsize;
	}
	return 0;
}

/* @sock: the address of one more device at our socket; NULL: make the socket alone. */
static int memif_listen(struct dpdk_port *p, struct dpdk_addr *sock)
{
	int ret = 0;

	pthread_mutex_lock(&ours.lock);
	if (!ours.sock.path[0])
		ret = dpdk_dir_open("gx-memif", &ours.dir);
	if (!ret && !ours.holder.made) {
		snprintf(ours.sock.path, sizeof(ours.sock.path), "%s/sock", ours.dir.path);
		ours.pid = getpid();
		ours.holder.owns = true;
		ret = memif_make(p, &ours.holder, &ours.sock);
	}
	if (!ret && sock) {
		ours.sock.id++;
		*sock = ours.sock;
	}
	pthread_mutex_unlock(&ours.lock);
	return ret;
}

/* A child of fork() leaves the folder to its parent. */
static void __attribute__((destructor)) memif_leave(void)
{
	if (ours.pid == getpid())
		dpdk_dir_close(&ours.dir);
}

int dpdk_memif_open(struct dpdk_port *p, const struct gx_port_cfg *cfg)
{
	char v[32];
	int ret = memif_sizes(p, cfg);

	if (ret)
		return ret;
	p->zero_copy = !(dpdk_args_get(&p->args, "zero-copy", v, sizeof(v)) && !strcmp(v, "no"));
	p->p.caps.flags = GX_PORT_ORDERED | GX_PORT_LOSSLESS | GX_PORT_TRUST | GX_PORT_LOCAL;
	/* A server may never connect to anybody. */
	return p->server ? 0 : memif_listen(p, NULL);
}

int dpdk_memif_add(struct dpdk_queue *q, uint32_t index, bool owns, struct dpdk_addr *sock)
{
	struct dpdk_port *p = q->port;
	struct dpdk_peer *peer = q->peer[index];
	int ret = owns ? memif_listen(p, sock) : 0;

	if (!ret)
		ret = rte_eth_dev_count_avail() == RTE_MAX_ETHPORTS
			      ? dev_full()
			      : memif_new(p, index, owns, &peer->dev);
	if (ret || !owns)
		return ret;
	return memif_make(p, peer->dev, sock);
}

int dpdk_memif_connect(struct dpdk_queue *q, struct dpdk_peer *peer, const struct dpdk_addr *addr)
{
	static const uint8_t nobody[DPDK_MAC_B];
	struct dpdk_net us = {.ip = 0xa9fe0001};

	for (unsigned h = 0; h < 2; h++)
		dpdk_encap_init(&peer->encap[h], &us, (uint16_t)(h == GX_HALF_CTL), nobody,
				0xa9fe0002, (uint16_t)(h == GX_HALF_CTL));
	peer->dev->frame_max = GX_MIN(q->port->room, (uint32_t)addr->room);
	return peer->dev->owns ? 0 : memif_connect(q->port, peer->dev, addr);
}
