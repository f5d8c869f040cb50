/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Link tcp with NICs as an object; see nic_link.h. What runs on the polling core is in tcp_zc*.c;
 * all here is control path.
 */
#include "tcp/tcp_gpu.h"
#include "nic/nic_link.h"
#include "nic/tcp_dev.h"
#include "nic/tcp_tx_dev.h"
#include "nic/tcp_zc.h"
#include "tcp/tcp_conn.h"
#include "tcp/tcp_offload.h"
#include "tcp/tcp_feed.h"
#include "tcp/tcp_turn.h"

#include "gx/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- a context ---- */

static int nic_check(const struct gx_opts *o)
{
	const bool devmem = o->nic->rx == GX_NIC_RX_DEVMEM;

	if (o->nic->tx > GX_NIC_TX_AUTO)
		return gx_fail(-EINVAL, "gx_nic_opts.tx %llu is not known: take a GX_NIC_TX_ value",
			       (unsigned long long)o->nic->tx);
	if (o->nic->tx_if && !o->nic->tx)
		return gx_fail(-EINVAL,
			       "gx_nic_opts.tx_if '%.64s' goes with gx_nic_opts.tx devmem or auto",
			       o->nic->tx_if);
	if (o->nic->tx && !o->nic->tx_if)
		return gx_fail(-EINVAL,
			       "gx_nic_opts.tx %s needs the interface that connections leave by: "
			       "set gx_nic_opts.tx_if, as eth0",
			       o->nic->tx == GX_NIC_TX_DEVMEM ? "devmem" : "auto");
	if (o->nic->rx > GX_NIC_RX_DEVMEM)
		return gx_fail(-EINVAL, "gx_nic_opts.rx %u is not known: take a GX_NIC_RX_ value",
			       o->nic->rx);
	if (!devmem && o->nic->rx_if)
		return gx_fail(-EINVAL, "gx_nic_opts.rx_if '%.64s' goes with gx_nic_opts.rx devmem",
			       o->nic->rx_if);
	if (devmem && !o->nic->rx_if)
		return gx_fail(-EINVAL,
			       "gx_nic_opts.rx devmem needs an interface and its queues: set "
			       "gx_nic_opts.rx_if, as eth0:8-15");
	return 0;
}

static int nic_needs_gpu(const struct gx_opts *o)
{
	return o->nic->rx == GX_NIC_RX_DEVMEM ? (int)o->nic->rx_device : -1;
}

/* Device memory for link tcp. Its GPU reads host memory of the arena too. */
static int dev_start(struct gx *gx)
{
	struct nic_ctx *t = nic_ctx_of(gx);
	int device = nic_needs_gpu(&gx->opts);
	struct tcp_dev_cfg cfg = {.nic = &nic_sys_linux,
				  .sys = &devmem_sys_kernel,
				  .arena = gx->arena,
				  .where = gx->opts.nic,
				  .pool_b = gx->opts.nic->rx_b,
				  .nr_cores = gx->nr_cores};
	int ret = 0;

	if (device >= 0) {
		cfg.gpu = gx->gpu[device];
		ret = tcp_dev_open(&cfg, &t->dev);
	}
	gx->groups.nic.rx_if = NULL; /* belongs to the caller */
	return ret;
}

/* The NIC that sends memory of GPUs. Before any GPU's memory is there. */
static int tx_start(struct gx *gx)
{
	struct nic_ctx *t = nic_ctx_of(gx);
	bool must = gx->opts.nic->tx == GX_NIC_TX_DEVMEM;
	struct tcp_tx_dev_cfg cfg = {
		.nic = &nic_sys_linux, .name = gx->opts.nic->tx_if, .must = must};
	int ret = cfg.name ? tcp_tx_dev_open(&cfg, &t->tx) : 0;

	gx->groups.nic.tx_if = NULL; /* belongs to the caller */
	if (!ret || must)
		return ret;
	gx_warn("link tcp sends memory of GPUs by host memory: %s", gx_error());
	gx->groups.nic.tx = GX_NIC_TX_COPY;
	return 0;
}

static int nic_ctx_open(struct gx *gx)
{
	if (!gx->groups.nic.rx_b)
		gx->groups.nic.rx_b = 256 << 20;
	gx->link[GX_LINK_TCP] = calloc(1, sizeof(struct nic_ctx));
	return gx->link[GX_LINK_TCP] ? 0 : gx_fail(-ENOMEM, "no memory for link tcp");
}

static int nic_ctx_start(struct gx *gx)
{
	int ret = tx_start(gx);

	return ret ? ret : dev_start(gx);
}

static void nic_ctx_close(struct gx *gx)
{
	struct nic_ctx *t = nic_ctx_of(gx);

	if (!t)
		return;
	tcp_dev_close(t->dev);
	tcp_tx_dev_close(t->tx);
	free(t);
	gx->link[GX_LINK_TCP] = NULL;
}

static void nic_ctx_tick(struct gx *gx)
{
	if (nic_ctx_of(gx)->dev)
		tcp_dev_report(nic_ctx_of(gx)->dev);
}

static void nic_describe(struct gx *gx, struct gx_text *text)
{
	const struct nic_ctx *t = nic_ctx_of(gx);
	char line[256];

	if (t->tx) {
		tcp_tx_dev_text(t->tx, line, sizeof(line));
		core_say(text, "tcp tx   %s\n", line);
	}
	if (t->dev) {
		tcp_dev_text(t->dev, line, sizeof(line));
		core_say(text, "tcp rx   %s\n", line);
	}
}

/* ---- a core ---- */

int nic_core_open(struct gx_core *core)
{
	int ret = link_tcp_open(core, &nic_offload, sizeof(struct nic_core));
	struct nic_core *n;

	if (ret)
		return ret;
	n = nic_core_of(tcp_core(core));
	n->zc_sys = &zc_sys_kernel;
	n->tcp.has_feeds = core->gx->opts.nic->rx != GX_NIC_RX_COPY;
	return 0;
}

static int core_start(struct gx_core *core)
{
	const struct gx_nic_opts *o = core->gx->opts.nic;
	struct link_tcp *l = tcp_core(core);
	int ret = gx_loop_add(&core->loop, &(struct gx_poller){gx_link_tcp_nic.name, link_tcp_poll,
							       l, link_tcp_asleep, link_tcp_look});

	if (!ret && o->tx != GX_NIC_TX_COPY)
		ret = gx_loop_add(&core->loop, &(struct gx_poller){"tcp tx", link_tcp_zc_poll, l,
								   link_tcp_zc_asleep});
	if (!ret)
		ret = core_dropper_add(core, tcp_zc_drop, l);
	return ret ? gx_fail(ret, "core %u: %s", core->index, strerror(-ret)) : 0;
}

/* ---- memory ---- */

static int nic_mem_add(struct gx_mem *mem)
{
	struct tcp_tx_dev *tx = nic_ctx_of(mem->gx)->tx;

	return tx ? tcp_tx_dev_mem(tx, mem) : 0;
}

static const char *nic_mem_holder(const struct gx *gx)
{
	return gx->opts.nic->tx ? "the kernel that sends it" : NULL;
}

/* ---- an endpoint ---- */

/* Why payload cannot come bare, though the context has device memory. NULL: it can. */
static const char *bare_why_not(struct tcp_ep *e, struct tcp_dev *dev, unsigned nr)
{
	if (!nr)
		return "it has one data socket, and payload needs another one "
		       "(gx_connect_tcp_opts.sockets)";
	if (!tcp_dev_promise(dev, e->ep.conn->peer_name, nr))
		return "other connections have too many of the sockets that device memory is set "
		       "up for, or those of this host";
	e->nic.nr_promised = nr;
	return NULL;
}

/* Ask the peer for bare payload where this context has device memory. */
static void nic_open(struct tcp_ep *e)
{
	struct gx_conn *c = e->ep.conn;
	struct tcp_dev *dev = nic_ctx_of(c->gx)->dev;
	const char *why;

	if (!dev)
		return;
	why = bare_why_not(e, dev, c->socks->nr_socks - 1);
	if (why)
		gx_warn("peer %s: what comes over link tcp is copied (gx_nic_opts.rx copy): %s",
			c->peer_name, why);
	else
		gx_info("peer %s: payload over link tcp comes into memory of cuda:%d", c->peer_name,
			tcp_dev_device(dev));
	e->bare.rx = !why;
	e->bare.rx_device = why ? 0 : (unsigned)tcp_dev_device(dev);
	tcp_conn_of(c)->bare = e->bare.rx;
	tcp_conn_of(c)->device = (uint8_t)e->bare.rx_device;
}

/* Socket @i brings payload alone, into device memory. */
static int sock_bare(struct tcp_ep *e, unsigned i)
{
	struct tcp_feed *f;
	struct gx_conn *c = e->ep.conn;
	int ret = tcp_dev_feed(nic_ctx_of(c->gx)->dev, c->peer_name, e->ep.core->index,
			       e->sock[i].fd, &f);

	if (ret)
		return ret;
	e->nic.nr_promised--;
	e->sock[i].bare = true;
	tcp_feed_give(e, i, f);
	return 0;
}

static int nic_connect(struct tcp_ep *e)
{
	int ret = 0;

	for (unsigned i = 1; !ret && e->nic.nr_promised && i < e->nr_socks; i++)
		ret = sock_bare(e, i);
	return ret ? ret : tcp_zc_open(e);
}

static void nic_close(struct tcp_ep *e)
{
	tcp_zc_close(e);
	if (e->nic.nr_promised)
		tcp_dev_unpromise(nic_ctx_of(e->ep.conn->gx)->dev, e->ep.conn->peer_name,
				  e->nic.nr_promised);
}

const struct tcp_offload nic_offload = {
	.open = nic_open,
	.connect = nic_connect,
	.close = nic_close,
	.tick = tcp_zc_say,
	.takes = tcp_zc_device,
	.send = tcp_zc_post,
	.early = tcp_zc_keep,
	.done = tcp_zc_done,
	.fail = tcp_zc_end,
	.leave = tcp_zc_unlist,
};

/* ---- the object ---- */

static const struct gx_link_ctx_ops ctx_ops = {
	.check = nic_check,
	.open = nic_ctx_open,
	.needs_gpu = nic_needs_gpu,
	.start = nic_ctx_start,
	.close = nic_ctx_close,
	.tick = nic_ctx_tick,
	.gpu = tcp_ctx_gpu,
	.describe = nic_describe,
};

static const struct gx_link_core_ops core_ops = {
	.open = nic_core_open,
	.start = core_start,
	.gpu = tcp_core_gpu,
	.close = tcp_core_close,
};

static const struct gx_link_mem_ops mem_ops = {
	.add = nic_mem_add,
	.gone = tcp_tx_dev_put,
	.holder = nic_mem_holder,
};

const struct gx_link gx_link_tcp_nic = {
	TCP_LINK_SELF,	 .ctx = &ctx_ops,	.core = &core_ops,
	.mem = &mem_ops, .conn = &tcp_conn_ops, .ep = &gx_link_tcp_ops,
};
