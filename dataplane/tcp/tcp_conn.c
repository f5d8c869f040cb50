/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp link as an object: its part of a context (NICs that take and bring payload), of a core, of
 * memory and of a connection. link_tcp.c has the endpoints. Control path.
 */
#include "tcp/tcp_conn.h"
#include "tcp/tcp.h"
#include "tcp/tcp_dev.h"
#include "tcp/tcp_tx_dev.h"
#include "tcp/tcp_zc.h"
#include "tcp/tcp_zcrx.h"

#include "gx/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a context ---- */

static int tcp_check(const struct gx_opts *o)
{
	static const char *const nics[] = {[GX_TCP_RX_DEVMEM] = "devmem",
					   [GX_TCP_RX_ZCRX] = "zcrx",
					   [GX_TCP_RX_ZCRX_GPU] = "zcrx-gpu"};
	const char *mode;

	if (o->tcp->tx > GX_TCP_TX_AUTO)
		return gx_fail(-EINVAL, "gx_tcp_opts.tx %llu is not known: take a GX_TCP_TX_ value",
			       (unsigned long long)o->tcp->tx);
	if (o->tcp->nic->tx && !o->tcp->tx)
		return gx_fail(-EINVAL,
			       "gx_nic_opts.tx '%.64s' goes with gx_tcp_opts.tx devmem or auto",
			       o->tcp->nic->tx);
	if (o->tcp->tx && !o->tcp->nic->tx)
		return gx_fail(-EINVAL,
			       "gx_tcp_opts.tx %s needs the interface that connections leave by: "
			       "set gx_nic_opts.tx, as eth0",
			       o->tcp->tx == GX_TCP_TX_DEVMEM ? "devmem" : "auto");
	if (o->tcp->rx > GX_TCP_RX_ZCRX_GPU)
		return gx_fail(-EINVAL, "gx_tcp_opts.rx %u is not known: take a GX_TCP_RX_ value",
			       o->tcp->rx);
	mode = nics[o->tcp->rx];
	if (!mode && o->tcp->nic->rx)
		return gx_fail(
			-EINVAL,
			"gx_nic_opts.rx '%.64s' goes with gx_tcp_opts.rx devmem, zcrx and zcrx-gpu",
			o->tcp->nic->rx);
	if (mode && !o->tcp->nic->rx)
		return gx_fail(-EINVAL,
			       "gx_tcp_opts.rx %s needs an interface and its queues: set "
			       "gx_nic_opts.rx, as eth0:8-15",
			       mode);
	return 0;
}

/* The NIC of zero-copy receive. Each core's link takes its queue. */
static int tcp_zcrx_start(struct gx *gx)
{
	struct tcp_ctx *t = gx->link[GX_LINK_TCP];
	struct tcp_zcrx_cfg cfg = {.nic = &nic_sys_linux,
				   .ring = &io_ring_sys_kernel,
				   .where = gx->opts.tcp->nic,
				   .area_b = gx->opts.tcp->nic->rx_b,
				   .nr_cores = gx->nr_cores};

	return gx->opts.tcp->rx == GX_TCP_RX_ZCRX ? tcp_zcrx_open(&cfg, &t->zcrx) : 0;
}

static int tcp_needs_gpu(const struct gx_opts *o)
{
	return o->tcp->rx == GX_TCP_RX_DEVMEM || o->tcp->rx == GX_TCP_RX_ZCRX_GPU
		       ? (int)o->tcp->nic->rx_device
		       : -1;
}

/* Device memory for link tcp. Its GPU reads host memory of the arena too. */
static int tcp_dev_start(struct gx *gx)
{
	struct tcp_ctx *t = gx->link[GX_LINK_TCP];
	int device = tcp_needs_gpu(&gx->opts);
	struct tcp_dev_cfg cfg = {.nic = &nic_sys_linux,
				  .sys = &devmem_sys_kernel,
				  .arena = gx->arena,
				  .where = gx->opts.tcp->nic,
				  .pool_b = gx->opts.tcp->nic->rx_b,
				  .nr_cores = gx->nr_cores};
	int ret = 0;

	if (gx->opts.tcp->rx == GX_TCP_RX_ZCRX_GPU)
		cfg.ring = &io_ring_sys_kernel;
	if (device >= 0) {
		cfg.gpu = gx->gpu[device];
		ret = tcp_dev_open(&cfg, &t->dev);
	}
	for (unsigned i = 0; t->dev && i < gx->nr_cores; i++)
		tcp_dev_lend(t->dev, i, tcp_core(gx->core[i]));
	gx->groups.nic.rx = NULL; /* belongs to the caller */
	return ret;
}

/* The NIC that sends memory of GPUs. Before any GPU's memory is there. */
static int tcp_tx_start(struct gx *gx)
{
	struct tcp_ctx *t = gx->link[GX_LINK_TCP];
	bool must = gx->opts.tcp->tx == GX_TCP_TX_DEVMEM;
	struct tcp_tx_dev_cfg cfg = {
		.nic = &nic_sys_linux, .name = gx->opts.tcp->nic->tx, .must = must};
	int ret = cfg.name ? tcp_tx_dev_open(&cfg, &t->tx) : 0;

	gx->groups.nic.tx = NULL; /* belongs to the caller */
	if (!ret || must)
		return ret;
	gx_warn("link tcp sends memory of GPUs by host memory: %s", gx_error());
	gx->groups.tcp.tx = GX_TCP_TX_COPY;
	return 0;
}

static int tcp_ctx_open(struct gx *gx)
{
	if (!gx->groups.nic.rx_b)
		gx->groups.nic.rx_b = 256 << 20;
	gx->link[GX_LINK_TCP] = calloc(1, sizeof(struct tcp_ctx));
	return gx->link[GX_LINK_TCP] ? tcp_zcrx_start(gx) : gx_fail(-ENOMEM, "no memory");
}

static int tcp_ctx_start(struct gx *gx)
{
	int ret = tcp_tx_start(gx);

	return ret ? ret : tcp_dev_start(gx);
}

static void tcp_ctx_close(struct gx *gx)
{
	struct tcp_ctx *t = gx->link[GX_LINK_TCP];

	if (!t)
		return;
	tcp_dev_close(t->dev);
	tcp_zcrx_close(t->zcrx);
	tcp_tx_dev_close(t->tx);
	free(t);
	gx->link[GX_LINK_TCP] = NULL;
}

static void tcp_ctx_tick(struct gx *gx)
{
	if (tcp_dev_of(gx))
		tcp_dev_report(tcp_dev_of(gx));
}

/* The link may never be used, so a GPU that it cannot serve is no less good for the others. */
static int tcp_gpu(struct gx *gx, struct gx_gpu *gpu)
{
	int ret = 0;

	for (unsigned i = 0; !ret && i < gx->nr_cores; i++)
		ret = link_tcp_gpu(tcp_core(gx->core[i]), gpu);
	if (ret)
		gx_warn("cuda:%d: link tcp has no buffers for its memory (%s), and refuses it: if "
			"you need it there, take fewer cores or GPUs",
			gpu->device, strerror(-ret));
	return 0;
}

static void tcp_describe(struct gx *gx, struct gx_text *text)
{
	const struct tcp_ctx *t = gx->link[GX_LINK_TCP];
	char line[256];

	if (t->tx) {
		tcp_tx_dev_text(t->tx, line, sizeof(line));
		core_say(text, "tcp tx   %s\n", line);
	}
	if (!t->zcrx && !t->dev)
		return;
	if (t->zcrx)
		tcp_zcrx_text(t->zcrx, line, sizeof(line));
	else
		tcp_dev_text(t->dev, line, sizeof(line));
	core_say(text, "tcp rx   %s\n", line);
}

/* ---- a core ---- */

static int tcp_core_open(struct gx_core *core)
{
	struct link_tcp *l = NULL;
	int ret = link_tcp_open(core, &l);

	core->link[GX_LINK_TCP] = l;
	return ret;
}

static int tcp_core_start(struct gx_core *core)
{
	struct link_tcp *l = tcp_core(core);
	int ret = gx_loop_add(&core->loop,
			      &(struct gx_poller){"tcp", link_tcp_poll, l, link_tcp_asleep});

	if (!ret && core->gx->opts.tcp->tx != GX_TCP_TX_COPY)
		ret = gx_loop_add(&core->loop, &(struct gx_poller){"tcp tx", link_tcp_zc_poll, l,
								   link_tcp_zc_asleep});
	if (!ret)
		ret = core_dropper_add(core, link_tcp_drop, l);
	return ret ? gx_fail(ret, "core %u: %s", core->index, strerror(-ret)) : 0;
}

static void tcp_core_close(struct gx_core *core)
{
	link_tcp_close(tcp_core(core));
}

/* ---- memory ---- */

static int tcp_mem_add(struct gx_mem *mem)
{
	struct tcp_tx_dev *tx = tcp_tx_of(mem->gx);

	return tx ? tcp_tx_dev_mem(tx, mem) : 0;
}

static const char *tcp_mem_holder(const struct gx *gx)
{
	return gx->opts.tcp->tx ? "the kernel that sends it" : NULL;
}

/* ---- a connection ---- */

int tcp_conn_open(struct gx_conn *c, unsigned nr_lanes, unsigned nr_socks)
{
	c->link_state = calloc(1, sizeof(struct tcp_conn));
	if (!c->link_state)
		return gx_fail(-ENOMEM, "out of memory");
	return gx_socks_open(c, nr_lanes, nr_socks);
}

void tcp_conn_close(struct gx_conn *c)
{
	gx_socks_close(c);
	free(c->link_state);
	c->link_state = NULL;
}

uint32_t tcp_addr_put(uint8_t *b, const struct gx_conn *c)
{
	const struct tcp_conn *t = tcp_conn_of(c);
	struct tcp_addr addr = {.version = 1,
				.nr_socks = (uint8_t)c->socks->nr_socks,
				.bare = t->bare,
				.device = t->device};

	if (c->server)
		memcpy(addr.token, c->socks->token, sizeof(addr.token));
	memcpy(b, &addr, sizeof(addr));
	return sizeof(addr);
}

int tcp_addr_get(const uint8_t *b, uint32_t len, struct tcp_addr *out)
{
	static const uint8_t zero[sizeof(out->zero)];

	if (len != sizeof(*out))
		return -EPROTO;
	memcpy(out, b, sizeof(*out));
	if (out->version != 1 || !out->nr_socks || out->nr_socks > TCP_SOCKS_MAX || out->bare > 1 ||
	    (out->bare && out->nr_socks < 2) || (out->device && !out->bare) ||
	    memcmp(out->zero, zero, sizeof(zero)))
		return -EPROTO;
	return 0;
}

/* The client says how many sockets a lane has. */
static int tcp_open(struct gx_conn *c, const struct gx_link_want *want)
{
	struct tcp_addr addr = {.nr_socks = (uint8_t)want->nr_socks};

	if (want->blob && tcp_addr_get(want->blob, want->blob_b, &addr))
		return -EPROTO;
	return tcp_conn_open(c, want->nr_lanes, addr.nr_socks);
}

/* The server's token lets the client's data sockets in. */
static int tcp_hear(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	struct tcp_conn *t = tcp_conn_of(c);
	struct tcp_addr addr;

	if (tcp_addr_get(b, len, &addr) || addr.nr_socks != c->socks->nr_socks)
		return gx_fail(-EPROTO, "malformed description of data sockets");
	if (!c->server)
		memcpy(c->socks->token, addr.token, sizeof(addr.token));
	t->tx_bare = addr.bare;
	t->tx_device = addr.device;
	return 0;
}

static uint32_t tcp_say(const struct gx_conn *c, uint8_t *b)
{
	return tcp_addr_put(b, c);
}

static int tcp_tick(struct gx_conn *c, uint64_t now_ns,
		    void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len))
{
	for (unsigned i = 0; i < c->nr_lanes; i++)
		tcp_zc_say(c->ep[i]);
	return 0;
}

static bool tcp_conn_fault(const struct gx_conn *c, int err, char *buf, size_t room)
{
	if (err != -ECONNRESET)
		return false;
	snprintf(buf, room,
		 "a data socket of peer %s was closed or reset: did a firewall or a proxy cut it?",
		 c->peer_name);
	return true;
}

/* ---- the object ---- */

static const struct gx_link_ctx_ops ctx_ops = {
	.check = tcp_check,
	.open = tcp_ctx_open,
	.needs_gpu = tcp_needs_gpu,
	.start = tcp_ctx_start,
	.close = tcp_ctx_close,
	.tick = tcp_ctx_tick,
	.gpu = tcp_gpu,
	.describe = tcp_describe,
};

static const struct gx_link_core_ops core_ops = {
	.open = tcp_core_open,
	.start = tcp_core_start,
	.close = tcp_core_close,
};

static const struct gx_link_mem_ops mem_ops = {
	.add = tcp_mem_add,
	.share = link_none_share,
	.share_keep = link_none_share_keep,
	.share_put = link_none_share_put,
	.export = link_none_export,
	.revoke = link_none_mem,
	.gone = tcp_tx_dev_put,
	.holder = tcp_mem_holder,
};

static const struct gx_link_conn_ops conn_ops = {
	.may = link_none_may,
	.offer = link_none_offer,
	.fits = link_none_fits,
	.open = tcp_open,
	.say = tcp_say,
	.hear = tcp_hear,
	.fds = link_none_fds,
	.fds_due = link_none_fds_due,
	.meet = link_none_meet,
	.connect = link_none_connect,
	.prove = link_none_prove,
	.up = link_none_conn,
	.tick = tcp_tick,
	.take = link_none_take,
	.fault = tcp_conn_fault,
	.push = tcp_conn_push,
	.stop = link_none_conn,
	.is_over = link_none_is_over,
	.release = tcp_conn_release,
	.lost = link_none_conn,
	.close = tcp_conn_close,
	.pull_over = link_none_pull_over,
};

/* The last resort: slower than any port, and TCP's own checksum is all that guards its bytes. */
const struct gx_link gx_link_tcp = {
	.name = "tcp",
	.id = GX_LINK_TCP,
	.port = GX_LINK_PORT_NONE,
	.score = 1,
	.quantum_b = 4096,
	.how = "the kernel's TCP copies",
	.cure = "install the same gx at both ends",
	.ctx = &ctx_ops,
	.core = &core_ops,
	.mem = &mem_ops,
	.conn = &conn_ops,
	.ep = &gx_link_tcp_ops,
};
