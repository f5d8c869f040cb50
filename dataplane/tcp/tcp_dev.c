/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory for data sockets; see tcp_dev.h. Each core counts pages of the pool by itself
 * (devmem_pool.c), so each has an equal part before it is slow. Control path.
 */
#include "tcp/tcp_dev.h"
#include "core/core.h"

#include "gx/log.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DEV_POOL_MAX_B (4ull << 30)
#define DEV_DEPTH      8192 /* fragments of a socket that may wait for copies */

/* A socket's part: the host memory of the same index, and its flow rule. */
struct dev_sock {
	struct tcp_dev *dev;
	bool used;
	int place; /* of the rule; < 0: there is none */
};

struct tcp_dev {
	const struct nic_sys *nic;
	const struct devmem_sys *sys;
	struct gx_arena *arena;
	struct gx_gpu *gpu;
	char name[NIC_NAME_MAX];
	struct nic_range range;
	uint32_t queue; /* of the next rule */
	void *pool;	/* memory of gpu */
	uint64_t pool_b;
	struct nic_bind *bind;
	char *lin; /* TCP_DEV_SOCKS times TCP_DEV_LIN_B */
	unsigned nr_promised, nr_used, nr_cores;
	int rule_err; /* why a rule could not be set, when it was last said */
	struct devmem_pool *part[GX_CORES_MAX]; /* what each core counts */
	struct dev_sock sock[TCP_DEV_SOCKS];
};

/* ---- opening ---- */

static int where_take(struct tcp_dev *d, const char *where)
{
	const char *colon = where ? strrchr(where, ':') : NULL;
	char rest;

	if (!colon || colon == where || colon - where >= NIC_NAME_MAX ||
	    sscanf(colon + 1, "%" SCNu32 "-%" SCNu32 "%c", &d->range.first, &d->range.last,
		   &rest) != 2)
		return gx_fail(-EINVAL,
			       "gx_opts.tcp_rx_nic '%.64s': say interface and queues, as eth0:8-15",
			       where ? where : "");
	memcpy(d->name, where, (size_t)(colon - where));
	d->queue = d->range.first;
	return 0;
}

/* Are all steps done that the operator takes? gx itself sets the rules and binds. */
static int plan_check(const struct nic_facts *f, const struct nic_range *r)
{
	struct gx_nic_step s = {0};
	int ret = nic_range_check(f, r);

	if (ret)
		return ret;
	for (unsigned i = 0; !nic_step(f, r, i, &s); i++) {
		if (s.can == GX_NIC_NO)
			return gx_fail(-EOPNOTSUPP, "%s: %s: %s. Cure: %s", f->name, s.name,
				       s.answer, s.cure);
		if (s.can == GX_NIC_LATER && s.command[0])
			return gx_fail(-EOPNOTSUPP,
				       "%s (driver %s): %s: %s. Cure: %s; gx_nic_step() tells all "
				       "steps",
				       f->name, f->driver[0] ? f->driver : "none", s.name, s.answer,
				       s.command);
	}
	return 0;
}

static int dev_look(struct tcp_dev *d)
{
	struct nic_facts *f = calloc(1, sizeof(*f));
	int ret;

	if (!f)
		return gx_fail(-ENOMEM, "no memory to look at %s", d->name);
	ret = nic_look(d->nic, d->name, f);
	if (ret)
		gx_fail(ret, "this host has no interface '%s'", d->name);
	else
		ret = plan_check(f, &d->range);
	free(f);
	return ret;
}

static int gpu_check(const struct gx_gpu *gpu)
{
	if (gpu->dma == GX_GPU_DMA_NONE)
		return gx_fail(-EOPNOTSUPP,
			       "gx_opts.tcp_rx_device %d (%s): kernels of this GPU do not see what "
			       "a NIC writes without a flush, which gx does not have: "
			       "gx_opts.tcp_rx copy needs none",
			       gpu->device, gpu->name);
	if (gpu->reads_host)
		return gx_fail(
			-EOPNOTSUPP,
			"unpack mode %s reads payload by the CPU, which cannot read it in "
			"memory of a GPU: take another gx_opts.unpack, or gx_opts.tcp_rx copy",
			gx_unpack_name(gpu->unpack));
	return 0;
}

/* The kernel holds the dma-buf from the binding on, so the descriptor is not kept. */
static int dev_bind(struct tcp_dev *d)
{
	uint32_t queues[NIC_QUEUES_MAX];
	unsigned nr = 0;
	int fd, ret = d->gpu->mem->alloc(d->gpu, d->pool_b, &d->pool);

	if (ret)
		return gx_fail(ret, "%s: no %" PRIu64 " MiB for gx_opts.tcp_rx_b: %s", d->gpu->name,
			       d->pool_b >> 20, gx_gpu_why());
	ret = d->gpu->share->dmabuf(d->gpu, d->pool, d->pool_b, &fd);
	if (ret)
		return gx_fail(ret, "no dma-buf of the pool: %s. gx_opts.tcp_rx copy needs none",
			       gx_gpu_why());
	for (uint32_t q = d->range.first; q <= d->range.last; q++)
		queues[nr++] = q;
	ret = nic_bind_rx(d->nic, d->name, queues, nr, fd, &d->bind);
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
	return ret ? gx_fail(ret, "no host memory for gx_opts.tcp_rx devmem: %s", strerror(-ret))
		   : 0;
}

int tcp_dev_open(const struct tcp_dev_cfg *cfg, struct tcp_dev **out)
{
	struct tcp_dev *d = calloc(1, sizeof(*d));
	int ret;

	if (!d)
		return gx_fail(-ENOMEM, "no memory for gx_opts.tcp_rx devmem");
	d->nic = cfg->nic;
	d->sys = cfg->sys;
	d->arena = cfg->arena;
	d->gpu = cfg->gpu;
	d->nr_cores = cfg->nr_cores;
	d->pool_b = cfg->pool_b;
	ret = where_take(d, cfg->where);
	if (!ret &&
	    (d->pool_b < GX_HUGE_PAGE || d->pool_b > DEV_POOL_MAX_B || d->pool_b % GX_HUGE_PAGE))
		ret = gx_fail(-EINVAL,
			      "gx_opts.tcp_rx_b of %" PRIu64 " bytes: 2M to 4G, in steps of 2M",
			      d->pool_b);
	if (!ret)
		ret = gpu_check(d->gpu);
	if (!ret)
		ret = dev_look(d);
	if (!ret)
		ret = dev_bind(d);
	if (!ret)
		ret = dev_parts(d);
	if (ret) {
		tcp_dev_close(d);
		return ret;
	}
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

bool tcp_dev_promise(struct tcp_dev *d, unsigned n)
{
	if (n > TCP_DEV_SOCKS - d->nr_promised - d->nr_used)
		return false;
	d->nr_promised += n;
	return true;
}

void tcp_dev_unpromise(struct tcp_dev *d, unsigned n)
{
	d->nr_promised -= n;
}

/* The IPv4 address and port of @a, which may be mapped into IPv6. */
static bool addr_v4(const struct sockaddr_storage *a, uint32_t *ip, uint16_t *port)
{
	const struct sockaddr_in6 *a6 = (const struct sockaddr_in6 *)a;
	const struct sockaddr_in *a4 = (const struct sockaddr_in *)a;

	if (a->ss_family == AF_INET) {
		*ip = a4->sin_addr.s_addr;
		*port = a4->sin_port;
		return true;
	}
	if (a->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&a6->sin6_addr))
		return false;
	memcpy(ip, &a6->sin6_addr.s6_addr[12], sizeof(*ip));
	*port = a6->sin6_port;
	return true;
}

/* Have the packets of @fd come to a queue of the pool. Return: place of the rule, -errno. */
static int rule_add(struct tcp_dev *d, int fd)
{
	struct sockaddr_storage from, to;
	socklen_t from_len = sizeof(from), to_len = sizeof(to);
	struct nic_flow flow;
	int ret;

	if (getpeername(fd, (struct sockaddr *)&from, &from_len) ||
	    getsockname(fd, (struct sockaddr *)&to, &to_len))
		return -errno;
	if (!addr_v4(&from, &flow.src_ip, &flow.src_port) ||
	    !addr_v4(&to, &flow.dst_ip, &flow.dst_port))
		return -EAFNOSUPPORT;
	ret = nic_rule_add(d->nic, d->name, &flow, d->queue);
	if (ret >= 0)
		d->queue = d->queue < d->range.last ? d->queue + 1 : d->range.first;
	return ret;
}

/* Such a socket works, and costs a copy by the kernel. */
static void rule_warn(struct tcp_dev *d, int err)
{
	if (err == d->rule_err)
		return;
	d->rule_err = err;
	gx_warn("%s: no flow rule for a data socket of link tcp: %s%s. Its payload comes by the "
		"kernel's memory, at the cost of a copy",
		d->name, strerror(-err),
		err == -EAFNOSUPPORT ? " (gx sets rules for IPv4 alone)"
		: err == -ENOSPC     ? ": remove rules of others (ethtool -n), or use fewer sockets"
				     : ": see gx_nic_step()");
}

static void sock_gone(struct tcp_feed *f)
{
	struct dev_sock *s = f->owner;
	struct tcp_dev *d = s->dev;

	if (s->place >= 0)
		nic_rule_del(d->nic, d->name, (uint32_t)s->place);
	s->used = false;
	d->nr_used--;
}

int tcp_dev_feed(struct tcp_dev *d, unsigned core, int fd, struct tcp_feed **out)
{
	struct devmem_cfg cfg = {
		.sys = d->sys, .fd = fd, .lin_b = TCP_DEV_LIN_B, .depth = DEV_DEPTH};
	unsigned i = 0;
	int ret;

	while (i < TCP_DEV_SOCKS && d->sock[i].used)
		i++;
	if (i == TCP_DEV_SOCKS)
		return gx_fail(-ENOMEM, "no room for a data socket with device memory");
	cfg.lin = d->lin + (size_t)i * TCP_DEV_LIN_B;
	ret = devmem_feed_open(&cfg, d->part[core], out);
	if (ret)
		return gx_fail(ret, "no memory for a data socket with device memory");
	d->sock[i] = (struct dev_sock){.dev = d, .used = true, .place = rule_add(d, fd)};
	if (d->sock[i].place < 0)
		rule_warn(d, d->sock[i].place);
	d->nr_promised--;
	d->nr_used++;
	(*out)->owner = &d->sock[i];
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
		 d->name, d->range.first, d->range.last, d->pool_b >> 20, d->gpu->device);
}
