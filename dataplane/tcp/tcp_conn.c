/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp link as an object: its part of a context, of a core and of a connection. link_tcp.c has the
 * endpoints. Control path. Where gx has it, dataplane/nic/ has an object in its place that shares the
 * last two tables here, and adds NICs that take and bring payload.
 */
#include "tcp/tcp_seal.h"
#include "tcp/tcp_conn.h"
#include "tcp/tcp_gpu.h"
#include "tcp/tcp_offload.h"
#include "tcp/tcp_turn.h"
#include "auth/auth_mix.h"

#include "gx/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a context ---- */

/* What asks for more than the kernel's copies: dataplane/nic/ is not there. */
static int tcp_check(const struct gx_opts *o)
{
	const struct gx_nic_opts *n = o->nic;
	bool rx = n->rx != GX_NIC_RX_COPY || n->rx_if;

	if (!rx && (n->tx == GX_NIC_TX_AUTO || (n->tx == GX_NIC_TX_COPY && !n->tx_if)))
		return 0;
	return gx_fail(-EINVAL,
		       "gx_nic_opts.%s: no NIC moves payload, because this gx was built with "
		       "-Dnic_memory=false: take copy, or build gx with -Dnic_memory=true",
		       rx ? "rx" : "tx");
}

static int tcp_ctx_open(struct gx *gx)
{
	if (gx->opts.nic->tx == GX_NIC_TX_AUTO)
		gx_warn("link tcp sends memory of GPUs by host memory: this gx was built with "
			"-Dnic_memory=false");
	gx->groups.nic.tx_if = NULL; /* belongs to the caller */
	return 0;
}

/* The link may never be used, so a GPU that it cannot serve is no less good for the others. */
int tcp_ctx_gpu(struct gx *gx, struct gx_gpu *gpu)
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

/* ---- a core ---- */

static int tcp_core_open(struct gx_core *core)
{
	return link_tcp_open(core, &tcp_offload_none, sizeof(struct link_tcp));
}

static int tcp_core_start(struct gx_core *core)
{
	struct link_tcp *l = tcp_core(core);
	int ret = gx_loop_add(&core->loop, &(struct gx_poller){gx_link_tcp.name, link_tcp_poll, l,
							       link_tcp_asleep, link_tcp_look});

	if (!ret)
		ret = core_dropper_add(core, link_tcp_drop, l);
	return ret ? gx_fail(ret, "core %u: %s", core->index, strerror(-ret)) : 0;
}

void tcp_core_close(struct gx_core *core)
{
	if (tcp_core(core))
		link_tcp_end(tcp_core(core));
	link_tcp_free(core);
}

/* ---- a connection ---- */

int tcp_conn_open(struct gx_conn *c, unsigned nr_lanes, unsigned nr_socks)
{
	c->link_state = calloc(1, sizeof(struct tcp_conn));
	if (!c->link_state)
		return gx_fail(-ENOMEM, "no memory for the sockets of a connection");
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
	unsigned n = want->asked ? GX_MAX(want->asked->tcp.sockets, 1u) : 0;
	struct tcp_addr addr;

	if (want->asked && n > TCP_SOCKS_MAX)
		return gx_fail(-EINVAL, "gx_connect_tcp_opts.sockets is %u: 1 to %d", n,
			       TCP_SOCKS_MAX);
	if (!want->asked && tcp_addr_get(want->blob, want->blob_b, &addr))
		return -EPROTO;
	return tcp_conn_open(c, want->nr_lanes, want->asked ? n : addr.nr_socks);
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
	struct auth_tick t = {.c = c, .say = say, .now_ns = now_ns};
	int ret = 0;

	for (unsigned i = 0; !ret && i < c->nr_lanes; i++) {
		struct tcp_ep *e = tcp_of(c->ep[i]);

		e->link->offload->tick(c->ep[i]);
		for (unsigned k = 0; !ret && k < e->nr_socks && e->sock[k].seal; k++) {
			t.lane = TCP_SOCKS_MAX * i + k;
			ret = auth_rings_tick(&e->sock[k].seal->tx.keys, &e->sock[k].seal->rx.keys,
					      &t);
		}
	}
	return ret;
}

static int tcp_take(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	struct tcp_seal *s = NULL;
	struct auth_word w;

	if (!auth_word_get(b, len, &w) && w.lane / TCP_SOCKS_MAX < c->nr_lanes)
		s = tcp_of(c->ep[w.lane / TCP_SOCKS_MAX])->sock[w.lane % TCP_SOCKS_MAX].seal;
	return s ? auth_rings_take(&s->tx.keys, &s->rx.keys, &w) : -EPROTO;
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
	.gpu = tcp_ctx_gpu,
};

static const struct gx_link_core_ops core_ops = {
	.open = tcp_core_open,
	.start = tcp_core_start,
	.gpu = tcp_core_gpu,
	.close = tcp_core_close,
};

const struct gx_link_conn_ops tcp_conn_ops = {
	.open = tcp_open,
	.say = tcp_say,
	.hear = tcp_hear,
	.tick = tcp_tick,
	.take = tcp_take,
	.fault = tcp_conn_fault,
	.push = link_tcp_push,
	.release = link_tcp_release,
	.close = tcp_conn_close,
	.look = tcp_look,
};

const struct gx_link gx_link_tcp = {
	TCP_LINK_SELF,	       .ctx = &ctx_ops,	       .core = &core_ops,
	.conn = &tcp_conn_ops, .ep = &gx_link_tcp_ops,
};
