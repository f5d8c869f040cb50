/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gx_describe(): a context and its parts, in words. Any thread.
 */
#include "control/control.h"
#include "copy/dma.h"
#include "local/local.h"
#include "tcp/tcp.h"
#include "tcp/tcp_dev.h"
#include "tcp/tcp_tx_dev.h"
#include "tcp/tcp_zcrx.h"
#include "verbs/verbs.h"
#include "packet/pkt.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void say(char *buf, size_t room, size_t *at, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static void say(char *buf, size_t room, size_t *at, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (*at >= room)
		return;
	va_start(ap, fmt);
	n = vsnprintf(buf + *at, room - *at, fmt, ap);
	va_end(ap);
	*at += n > 0 ? n : 0;
}

/* Say who does short copies over the local link, and why. */
static void say_pairs(const struct gx *gx, char *buf, size_t room, size_t *at)
{
	static const char *const asked[] = {
		[GX_COPY_CE] = "copy engines", [GX_COPY_RESIDENT] = "resident kernel"};
	unsigned copy = gx->opts.copy, nr = 0;
	char text[256];
	int n;

	if (copy != GX_COPY_AUTO) {
		say(buf, room, at, "pairs    short copies over link local: %s, as asked for\n",
		    copy == DMA_KERNEL ? "launched kernels" : asked[copy]);
		return;
	}
	for (unsigned i = 0; (n = local_pair_text(gx, i, text, sizeof(text))) >= 0; i++)
		if (n) {
			say(buf, room, at, "pairs    %s\n", text);
			nr++;
		}
	if (!nr)
		say(buf, room, at,
		    "pairs    short copies over link local: timed for each pair of places when a "
		    "connection first uses it\n");
}

static void say_gpu(const struct gx_gpu *gpu, unsigned i, char *buf, size_t room, size_t *at)
{
	say(buf, room, at, "gpu %u    %s, unpack %s on %u SMs", i, gpu->name,
	    gx_unpack_name(gpu->unpack), gpu->unpack_sms);
	if (gpu->unpack == GX_UNPACK_AUTO)
		say(buf, room, at,
		    " (a launch for each burst; while bursts come within 100 us of one another, "
		    "a kernel that stays, on %u for each core)",
		    gpu->resident_sms);
	say(buf, room, at, "\n");
}

/* Figures: docs/measured/overlap.md, "Another process on the GPU". */
static void say_share(const struct gx_gpu *gpu, char *buf, size_t room, size_t *at)
{
	say(buf, room, at, "share    %s\n",
	    gpu->turns
		    ? "no MPS: on a GPU this process and others take turns, which costs both (a "
		      "bf16 GEMM kept 0.60 to 0.94 of its speed beside puts by another process, "
		      "0.99 to 1.00 under MPS); cure: start both under nvidia-cuda-mps-control"
		    : "MPS: on a GPU kernels of this process run beside those of others under it");
}

static const char *crc_by_says(const struct gx_opts *o)
{
	if (o->crc_by == GX_CRC_BY_COPY)
		return "by who copies it, as asked for";
	if (o->bounce == GX_BOUNCE_CUDA)
		return "by who copies it, as the CPU cannot read the bounce pool; where that is "
		       "not possible such connections are refused";
	if (o->crc_by == GX_CRC_BY_CPU)
		return "by the CPU when it comes, as asked for";
	if (o->unpack == GX_UNPACK_MODE_AUTO || o->unpack == GX_UNPACK_MODE_KERNEL)
		return "by the kernel that copies it into a GPU; by the CPU when it comes for host "
		       "memory";
	return "by the CPU when it comes (kernels check in unpack modes kernel and auto alone)";
}

static void say_verbs(const struct gx *gx, char *buf, size_t room, size_t *at)
{
	char text[4096];

	if (gx->verbs && verbs_rails_text(gx->verbs, text, sizeof(text)) > 0)
		say(buf, room, at, "%s\n", text);
	for (unsigned i = 0; gx->verbs && i < GX_GPUS_MAX; i++)
		if (gx->gpu[i] && verbs_rails_near_text(gx->verbs, gx->gpu[i], text, sizeof(text)))
			say(buf, room, at, "%s\n", text);
}

static void say_tcp(struct gx *gx, char *buf, size_t room, size_t *at)
{
	char text[256];

	if (gx->opts.tcp_tx)
		say(buf, room, at, "tcp tx   without a copy%s\n",
		    gx->opts.tcp_tx == GX_TCP_TX_ZEROCOPY
			    ? ""
			    : ", until the kernel copies all the same");
	if (gx->tcp_tx) {
		tcp_tx_dev_text(gx->tcp_tx, text, sizeof(text));
		say(buf, room, at, "tcp tx   %s\n", text);
	}
	if (!gx->tcp_zcrx && !gx->tcp_dev)
		return;
	if (gx->tcp_zcrx)
		tcp_zcrx_text(gx->tcp_zcrx, text, sizeof(text));
	else
		tcp_dev_text(gx->tcp_dev, text, sizeof(text));
	say(buf, room, at, "tcp rx   %s\n", text);
}

GX_EXPORT int gx_describe(struct gx *gx, char *buf, size_t room)
{
	size_t at = 0;

	buf[0] = 0;
	say(buf, room, &at, "control  %s\n", gx_uring_method_name(gx->uring));
	say(buf, room, &at, "copies   %s\n", gx_copy_name());
	for (unsigned i = 0; i < gx->nr_cores; i++) {
		if (gx->cpus[i] < 0)
			say(buf, room, &at, "core %u   not pinned\n", i);
		else
			say(buf, room, &at, "core %u   CPU %d\n", i, gx->cpus[i]);
	}
	if (local_offered(gx))
		say(buf, room, &at, "links    packet, tcp%s (no local: %s)\n",
		    gx->verbs ? ", verbs" : "", local_offered(gx));
	else
		say(buf, room, &at, "links    packet, local, tcp%s\n", gx->verbs ? ", verbs" : "");
	say_verbs(gx, buf, room, &at);
	say_tcp(gx, buf, room, &at);
	for (unsigned i = 0; i < gx->nr_ports; i++) {
		const struct gx_port_caps *c = &gx->port[i].port->caps;

		char pool[24] = "";

		if (c->flags & GX_PORT_RX_GPU)
			snprintf(pool, sizeof(pool), " on cuda:%d", gx->pool_gpu->device);
		say(buf, room, &at, "port     %s: payload %u, %u buffers %s%s%s%s%s\n",
		    gx->port[i].name, c->payload_best, c->rx_slots,
		    c->flags & GX_PORT_SHARED_POOL ? "in all" : "a peer", pool,
		    c->flags & GX_PORT_LOSSLESS ? ", loses nothing" : "",
		    c->flags & GX_PORT_TRUST ? ", peers must be trusted" : "",
		    c->flags & GX_PORT_NORMAL_PAGES ? ", on normal pages" : "");
	}
	say(buf, room, &at, "crc      payload of packets with integrity crc32c is checked %s\n",
	    crc_by_says(&gx->opts));
	for (unsigned i = 0; i < GX_REGIONS_MAX; i++) {
		const struct gx_mem *m = atomic_load(&gx->region[i]);

		if (!m)
			continue;
		say(buf, room, &at, "region   %s: %llu bytes, %s", m->name,
		    (unsigned long long)m->len, m->kind == GX_MEM_HOST ? "host" : "cuda");
		if (m->kind == GX_MEM_HOST)
			say(buf, room, &at, "%s\n",
			    m->huge ? ", huge pages"
				    : ", normal pages (no huge ones free: more TLB misses, a few "
				      "per cent slower; "
				      "cure: sysctl -w vm.nr_hugepages=N)");
		else
			say(buf, room, &at, ":%d\n", m->device);
	}
	for (unsigned i = 0; i < GX_GPUS_MAX; i++)
		if (gx->gpu[i])
			say_gpu(gx->gpu[i], i, buf, room, &at);
	for (unsigned i = 0; i < GX_GPUS_MAX; i++)
		if (gx->gpu[i]) {
			say_share(gx->gpu[i], buf, room, &at);
			say_pairs(gx, buf, room, &at);
			break;
		}
	return at < room ? (int)at : -ENOSPC;
}
