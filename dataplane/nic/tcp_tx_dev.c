/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of GPUs that a NIC sends from; see tcp_tx_dev.h. Control path.
 */
#include "nic/tcp_tx_dev.h"

#include "gx/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tcp_tx_dev {
	const struct nic_sys *nic;
	char name[NIC_NAME_MAX];
	char driver[32];
	bool must;
	_Atomic uint64_t bound_b;
	_Atomic bool warned; /* once a context */
};

/* Return: 0, -errno with gx_error(). */
static int dev_look(struct tcp_tx_dev *d)
{
	struct nic_facts *f = calloc(1, sizeof(*f));
	int ret;

	if (!f)
		return gx_fail(-ENOMEM, "no memory to look at %s", d->name);
	ret = nic_look(d->nic, d->name, f);
	if (ret)
		gx_fail(ret, "gx_nic_opts.tx_if: this host has no interface '%s'", d->name);
	else if (f->nl_err || !f->netdev || !f->bind_tx)
		ret = gx_fail(-EOPNOTSUPP,
			      "gx_nic_opts.tx_if: %s: this kernel (%s) does not bind memory for "
			      "sending%s. Use Linux 6.16 or newer, or gx_nic_opts.tx copy",
			      d->name, f->kernel,
			      f->nl_err == -ENOSYS ? ", as far as a gx without libmnl can see"
						   : "");
	memcpy(d->driver, f->driver, sizeof(d->driver));
	free(f);
	return ret;
}

int tcp_tx_dev_open(const struct tcp_tx_dev_cfg *cfg, struct tcp_tx_dev **out)
{
	struct tcp_tx_dev *d;
	int ret;

	if (!cfg->name[0] || strlen(cfg->name) >= NIC_NAME_MAX)
		return gx_fail(-EINVAL,
			       "gx_nic_opts.tx_if '%.64s': say the name of an interface, as eth0",
			       cfg->name);
	d = calloc(1, sizeof(*d));
	if (!d)
		return gx_fail(-ENOMEM, "no memory for gx_nic_opts.tx_if");
	d->nic = cfg->nic;
	d->must = cfg->must;
	strcpy(d->name, cfg->name);
	ret = dev_look(d);
	if (ret)
		tcp_tx_dev_close(d);
	else
		*out = d;
	return ret;
}

void tcp_tx_dev_close(struct tcp_tx_dev *d)
{
	free(d);
}

/* The kernel holds the dma-buf from the binding on, so the descriptor is not kept. */
static int mem_bind(struct tcp_tx_dev *d, const struct gx_mem *mem, struct tcp_tx_bind *b)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE); /* a dma-buf has whole ones */
	uintptr_t at = (uintptr_t)mem->addr, first = at - at % page;
	int fd, ret;

	b->dev = d;
	b->base = (const char *)first;
	b->len = GX_ALIGN_UP(at + mem->len, page) - first;
	ret = mem->gpu->share->dmabuf(mem->gpu, b->base, b->len, &fd);
	if (ret)
		return gx_fail(ret, "cuda:%d gives no dma-buf of it: %s", mem->device,
			       gx_gpu_why());
	ret = nic_bind_tx(d->nic, d->name, fd, &b->bind);
	close(fd);
	return ret;
}

int tcp_tx_dev_mem(struct tcp_tx_dev *d, struct gx_mem *mem)
{
	struct tcp_tx_bind *b;
	char why[CORE_TEXT_MAX];
	int ret;

	if (mem->kind != GX_MEM_CUDA || !mem->len)
		return 0;
	b = calloc(1, sizeof(*b));
	if (!b)
		return gx_fail(-ENOMEM, "no memory to bind memory of cuda:%d", mem->device);
	ret = mem_bind(d, mem, b);
	if (!ret) {
		b->id = nic_bind_id(b->bind);
		atomic_fetch_add_explicit(&d->bound_b, b->len, memory_order_relaxed);
		/* Pairs with the acquire in tcp_zc_device(): the binding is complete. */
		atomic_store_explicit(&mem->link[GX_LINK_TCP], b, memory_order_release);
		return 0;
	}
	free(b);
	snprintf(why, sizeof(why), "%s", gx_error());
	if (d->must)
		return gx_fail(ret,
			       "gx_nic_opts.tx devmem: %s cannot send memory of cuda:%d: %.300s. "
			       "gx_nic_opts.tx auto goes by host memory instead",
			       d->name, mem->device, why);
	if (!atomic_exchange_explicit(&d->warned, true, memory_order_relaxed))
		gx_warn("%s cannot send memory of cuda:%d: %s. Its payload goes by host memory",
			d->name, mem->device, why);
	return 0;
}

void tcp_tx_dev_put(struct gx_mem *mem)
{
	struct tcp_tx_bind *b =
		atomic_exchange_explicit(&mem->link[GX_LINK_TCP], NULL, memory_order_relaxed);

	if (!b)
		return;
	nic_unbind(b->bind);
	atomic_fetch_sub_explicit(&b->dev->bound_b, b->len, memory_order_relaxed);
	free(b);
}

void tcp_tx_dev_text(const struct tcp_tx_dev *d, char *buf, size_t room)
{
	snprintf(buf, room,
		 "devmem: %s (driver %s), %" PRIu64 " MiB of GPUs bound; UNTRIED on hardware",
		 d->name, d->driver[0] ? d->driver : "none",
		 atomic_load_explicit(&d->bound_b, memory_order_relaxed) >> 20);
}
