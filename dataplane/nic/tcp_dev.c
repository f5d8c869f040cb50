/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory for data sockets; see tcp_dev.h. Each core counts pages of the pool by itself
 * (devmem_pool.c), so each has an equal part before it is slow. Control path.
 */
#include "nic/tcp_dev.h"
#include "core/core.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEV_POOL_MAX_B (4ull << 30)
#define DEV_DEPTH      8192 /* fragments of a socket that may wait for copies */
#define DEV_HOST_MAX   64   /* of a host's name, with the final 0 */

enum dev_state { DEV_FREE, DEV_PROMISED, DEV_USED };

/* A socket's part: the host memory of the same index, and its flow rule. */
struct dev_sock {
	struct tcp_dev *dev;
	enum dev_state state;
	char host[DEV_HOST_MAX]; /* of the peer */
	int place;		 /* USED: of the rule; < 0: there is none */
};

struct tcp_dev {
	struct tcp_nic nic;
	const struct devmem_sys *sys;
	struct gx_arena *arena;
	struct gx_gpu *gpu;
	uint32_t queue; /* of the next rule */
	void *pool;	/* memory of gpu */
	uint64_t pool_b;
	struct nic_bind *bind;
	char *lin; /* TCP_DEV_SOCKS times TCP_DEV_LIN_B */
	unsigned nr_cores;
	struct devmem_pool *part[GX_CORES_MAX]; /* what each core counts */
	struct dev_sock sock[TCP_DEV_SOCKS];
};

/* ---- opening ---- */

static int gpu_check(const struct gx_gpu *gpu)
{
	if (gpu->dma == GX_GPU_DMA_NONE)
		return gx_fail(-EOPNOTSUPP,
			       "gx_nic_opts.rx_device %d (%s): kernels of this GPU do not see what "
			       "a NIC writes without a flush, which gx does not have: "
			       "gx_nic_opts.rx copy needs none",
			       gpu->device, gpu->name);
	if (gpu->reads_host)
		return gx_fail(
			-EOPNOTSUPP,
			"unpack mode %s reads payload by the CPU, which cannot read it in "
			"memory of a GPU: take another gx_gpu_opts.unpack, or gx_nic_opts.rx copy",
			gx_unpack_name(gpu->unpack));
	return 0;
}

/* Memory of the GPU, in *@at from then on, also if there is no dma-buf of it. */
static int dev_alloc(struct tcp_dev *d, uint64_t len, void **at, int *fd)
{
	int ret = d->gpu->mem->alloc(d->gpu, len, at);

	if (ret)
		return gx_fail(ret, "%s: no %" PRIu64 " MiB for gx_nic_opts.rx_b: %s", d->gpu->name,
			       len >> 20, gx_gpu_why());
	ret = d->gpu->share->dmabuf(d->gpu, *at, len, fd);
	return ret ? gx_fail(ret, "no dma-buf of the pool: %s. gx_nic_opts.rx copy needs none",
			     gx_gpu_why())
		   : 0;
}

/* The kernel holds the dma-buf from the binding on, so the descriptor is not kept. */
static int dev_bind(struct tcp_dev *d)
{
	uint32_t queues[NIC_QUEUES_MAX];
	unsigned nr = 0;
	int fd, ret = dev_alloc(d, d->pool_b, &d->pool, &fd);

	if (ret)
		return ret;
	d->queue = d->nic.range.first;
	for (uint32_t q = d->nic.range.first; q <= d->nic.range.last; q++)
		queues[nr++] = q;
	ret = nic_bind_rx(d->nic.sys, d->nic.name, queues, nr, fd, &d->bind);
	close(fd);
	return ret;
}

/* A quarter is left to the NIC's queues. */
static int dev_parts(struct tcp_dev *d)
{
	uint64_t ours = d->pool_b / 4 * 3 / d->nr_cores / DEVMEM_PAGE_B * DEVMEM_PAGE_B;
	int ret = 0;

	for (unsigned i = 0; !ret && i < d->nr_cores; i++)
		ret = devmem_pool_open(nic_bind_id(d->bind), d->pool, d->pool_b, d->pool_b - ours,
				       &d->part[i]);
	if (!ret)
		ret = gx_arena_map(d->arena, -1, (size_t)TCP_DEV_SOCKS * TCP_DEV_LIN_B,
				   (void **)&d->lin);
	return ret ? gx_fail(ret, "no host memory for gx_nic_opts.rx devmem: %s", strerror(-ret))
		   : 0;
}

int tcp_dev_open(const struct tcp_dev_cfg *cfg, struct tcp_dev **out)
{
	struct tcp_dev *d = calloc(1, sizeof(*d));
	int ret;

	if (!d)
		return gx_fail(-ENOMEM, "no memory for gx_nic_opts.rx devmem");
	d->sys = cfg->sys;
	d->arena = cfg->arena;
	d->gpu = cfg->gpu;
	d->nr_cores = cfg->nr_cores;
	d->pool_b = cfg->pool_b;
	ret = tcp_nic_where(&d->nic, cfg->nic, cfg->where);
	if (!ret &&
	    (d->pool_b < GX_HUGE_PAGE || d->pool_b > DEV_POOL_MAX_B || d->pool_b % GX_HUGE_PAGE))
		ret = gx_fail(-EINVAL,
			      "gx_nic_opts.rx_b of %" PRIu64 " bytes: 2M to 4G, in steps of 2M",
			      d->pool_b);
	if (!ret)
		ret = gpu_check(d->gpu);
	if (!ret)
		ret = tcp_nic_look(&d->nic, "devmem");
	if (!ret)
		ret = dev_bind(d);
	if (!ret)
		ret = dev_parts(d);
	if (ret) {
		tcp_dev_close(d);
		return ret;
	}
	tcp_nic_sweep(&d->nic);
	*out = d;
	return 0;
}

void tcp_dev_close(struct tcp_dev *d)
{
	if (!d)
		return;
	for (unsigned i = 0; i < d->nr_cores; i++)
		devmem_pool_close(d->part[i]);
	nic_unbind(d->bind); /* first: the NIC writes there until then */
	if (d->pool)
		d->gpu->mem->free(d->gpu, d->pool, d->pool_b);
	if (d->lin)
		gx_arena_unmap(d->arena, d->lin, (size_t)TCP_DEV_SOCKS * TCP_DEV_LIN_B);
	free(d);
}

int tcp_dev_device(const struct tcp_dev *d)
{
	return d->gpu->device;
}

/* ---- sockets ---- */

static void host_of(const char *peer, char host[DEV_HOST_MAX])
{
	const char *colon = strrchr(peer, ':');
	size_t len = colon ? (size_t)(colon - peer) : strlen(peer);

	snprintf(host, DEV_HOST_MAX, "%.*s", (int)GX_MIN(len, DEV_HOST_MAX - 1u), peer);
}

/* A part of @host in this state. NULL: there is none. */
static struct dev_sock *sock_find(struct tcp_dev *d, const char *host, enum dev_state state)
{
	for (unsigned i = 0; i < TCP_DEV_SOCKS; i++)
		if (d->sock[i].state == state &&
		    (state == DEV_FREE || !strcmp(d->sock[i].host, host)))
			return &d->sock[i];
	return NULL;
}

/* It is set aside when the peer is told to send so, before its sockets have come: a host that only
 * asks takes no more than one that connects. */
bool tcp_dev_promise(struct tcp_dev *d, const char *peer, unsigned n)
{
	unsigned nr_free = 0, nr_own = 0;
	char host[DEV_HOST_MAX];

	host_of(peer, host);
	for (unsigned i = 0; i < TCP_DEV_SOCKS; i++) {
		nr_free += d->sock[i].state == DEV_FREE;
		nr_own += d->sock[i].state != DEV_FREE && !strcmp(d->sock[i].host, host);
	}
	if (n > nr_free || nr_own + n > nr_free - n)
		return false;
	while (n--) {
		struct dev_sock *s = sock_find(d, host, DEV_FREE);

		s->state = DEV_PROMISED;
		memcpy(s->host, host, sizeof(s->host));
	}
	return true;
}

void tcp_dev_unpromise(struct tcp_dev *d, const char *peer, unsigned n)
{
	char host[DEV_HOST_MAX];

	host_of(peer, host);
	while (n--)
		sock_find(d, host, DEV_PROMISED)->state = DEV_FREE;
}

/* A rule to each queue of the pool in turn. Without one the socket works, and costs a copy by the
 * kernel. */
static int rule_add(struct tcp_dev *d, int fd)
{
	int place = tcp_nic_rule(&d->nic, fd, d->queue);

	if (place >= 0)
		d->queue = d->queue < d->nic.range.last ? d->queue + 1 : d->nic.range.first;
	else
		tcp_nic_warn(&d->nic, place,
			     "Its payload comes by the kernel's memory, at the cost of a copy");
	return place;
}

static void sock_gone(struct tcp_feed *f)
{
	struct dev_sock *s = f->owner;
	struct tcp_dev *d = s->dev;

	tcp_nic_unrule(&d->nic, s->place);
	s->state = DEV_FREE;
}

static int feed_open(struct tcp_dev *d, unsigned core, unsigned i, int fd, struct tcp_feed **out)
{
	struct devmem_cfg cfg = {
		.sys = d->sys, .fd = fd, .lin_b = TCP_DEV_LIN_B, .depth = DEV_DEPTH};

	cfg.lin = d->lin + (size_t)i * TCP_DEV_LIN_B;
	return devmem_feed_open(&cfg, d->part[core], out);
}

int tcp_dev_feed(struct tcp_dev *d, const char *peer, unsigned core, int fd, struct tcp_feed **out)
{
	char host[DEV_HOST_MAX];
	struct dev_sock *s;
	int place, ret;

	host_of(peer, host);
	s = sock_find(d, host, DEV_PROMISED);
	assert(s);
	place = rule_add(d, fd);
	ret = feed_open(d, core, (unsigned)(s - d->sock), fd, out);
	if (ret) {
		tcp_nic_unrule(&d->nic, place);
		return gx_fail(ret, "no memory for a data socket with device memory");
	}
	s->dev = d;
	s->state = DEV_USED;
	s->place = place;
	(*out)->owner = s;
	(*out)->gone = sock_gone;
	return 0;
}

void tcp_dev_report(struct tcp_dev *d)
{
	for (unsigned i = 0; i < d->nr_cores; i++)
		devmem_pool_report(d->part[i]);
}

void tcp_dev_text(const struct tcp_dev *d, char *buf, size_t room)
{
	snprintf(buf, room,
		 "devmem: %s queues %u-%u, pool of %" PRIu64 " MiB on cuda:%d; UNTRIED on "
		 "hardware",
		 d->nic.name, d->nic.range.first, d->nic.range.last, d->pool_b >> 20,
		 d->gpu->device);
}
