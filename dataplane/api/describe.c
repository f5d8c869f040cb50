/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gx_describe(): a context and its parts, in words. Any thread.
 */
#include "control/control.h"

#include "gx_internal/link.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void say_gpu(const struct gx_gpu *gpu, unsigned i, struct gx_text *text)
{
	core_say(text, "gpu %u    %s, unpack %s on %u SMs", i, gpu->name,
		 gx_unpack_name(gpu->unpack), gpu->unpack_sms);
	if (gpu->unpack == GX_UNPACK_AUTO)
		core_say(
			text,
			" (a launch for each burst; while bursts come within 100 us of one another, "
			"a kernel that stays, on %u for each core)",
			gpu->resident_sms);
	core_say(text, "\n");
}

/* Figures: docs/measured/overlap.md, "Another process on the GPU". */
static void say_share(const struct gx_gpu *gpu, struct gx_text *text)
{
	core_say(
		text, "share    %s\n",
		gpu->turns
			? "no MPS: on a GPU this process and others take turns, which costs both (a "
			  "bf16 GEMM kept 0.60 to 0.94 of its speed beside puts by another process, "
			  "0.99 to 1.00 under MPS); cure: start both under nvidia-cuda-mps-control"
			: "MPS: on a GPU kernels of this process run beside those of others under it");
}

static const char *crc_by_says(const struct gx_opts *o)
{
	if (o->packet->crc_by == GX_CRC_BY_COPY)
		return "by who copies it, as asked for";
	if (o->gpu->bounce == GX_BOUNCE_CUDA)
		return "by who copies it, as the CPU cannot read the bounce pool; where that is "
		       "not possible such connections are refused";
	if (o->packet->crc_by == GX_CRC_BY_CPU)
		return "by the CPU when it comes, as asked for";
	if (o->gpu->unpack == GX_UNPACK_MODE_AUTO || o->gpu->unpack == GX_UNPACK_MODE_KERNEL)
		return "by the kernel that copies it into a GPU; by the CPU when it comes for host "
		       "memory";
	return "by the CPU when it comes (kernels check in unpack modes kernel and auto alone)";
}

/* Which there are, why not one that nobody has to ask for, and what they say of themselves. */
static void say_links(struct gx *gx, struct gx_text *text)
{
	const char *comma = "";

	core_say(text, "links    ");
	for (unsigned l = 0; l < GX_LINKS; l++)
		if (!gx_links[l]->conn->may(gx)) {
			core_say(text, "%s%s", comma, gx_links[l]->name);
			comma = ", ";
		}
	for (unsigned l = 0; l < GX_LINKS; l++)
		if (gx_links[l]->score && gx_links[l]->conn->may(gx))
			core_say(text, " (no %s: %s)", gx_links[l]->name,
				 gx_links[l]->conn->may(gx));
	core_say(text, "\n");
	for (unsigned l = 0; l < GX_LINKS; l++)
		gx_links[l]->ctx->describe(gx, text);
}

GX_EXPORT int gx_describe(struct gx *gx, char *buf, size_t room)
{
	struct gx_text text = {.buf = buf, .room = room};

	buf[0] = 0;
	core_say(&text, "control  %s\n", gx_uring_method_name(gx->uring));
	core_say(&text, "copies   %s\n", gx_copy_name());
	for (unsigned i = 0; i < gx->nr_cores; i++) {
		if (gx->cpus[i] < 0)
			core_say(&text, "core %u   not pinned\n", i);
		else
			core_say(&text, "core %u   CPU %d\n", i, gx->cpus[i]);
	}
	say_links(gx, &text);
	for (unsigned i = 0; i < gx->nr_ports; i++) {
		const struct gx_port_caps *c = &gx->port[i].port->caps;

		char pool[24] = "";

		if (c->flags & GX_PORT_RX_GPU)
			snprintf(pool, sizeof(pool), " on cuda:%d", gx->pool_gpu->device);
		core_say(&text, "port     %s: payload %u, %u buffers %s%s%s%s%s\n",
			 gx->port[i].name, c->payload_best, c->rx_slots,
			 c->flags & GX_PORT_SHARED_POOL ? "in all" : "a peer", pool,
			 c->flags & GX_PORT_LOSSLESS ? ", loses nothing" : "",
			 c->flags & GX_PORT_TRUST ? ", peers must be trusted" : "",
			 c->flags & GX_PORT_NORMAL_PAGES ? ", on normal pages" : "");
	}
	core_say(&text, "crc      payload of packets with integrity crc32c is checked %s\n",
		 crc_by_says(&gx->opts));
	for (unsigned i = 0; i < GX_REGIONS_MAX; i++) {
		const struct gx_mem *m = atomic_load(&gx->region[i]);

		if (!m)
			continue;
		core_say(&text, "region   %s: %llu bytes, %s", m->name, (unsigned long long)m->len,
			 m->kind == GX_MEM_HOST ? "host" : "cuda");
		if (m->kind == GX_MEM_HOST)
			core_say(&text, "%s%s\n",
				 m->huge	 ? ", huge pages"
				 : m->normal_why ? ", normal pages, a few per cent slower: "
						 : "",
				 m->normal_why ? m->normal_why : "");
		else
			core_say(&text, ":%d\n", m->device);
	}
	for (unsigned i = 0; i < GX_GPUS_MAX; i++)
		if (gx->gpu[i])
			say_gpu(gx->gpu[i], i, &text);
	for (unsigned i = 0; i < GX_GPUS_MAX; i++)
		if (gx->gpu[i]) {
			say_share(gx->gpu[i], &text);
			break;
		}
	return text.at < room ? (int)text.at : -ENOSPC;
}
