/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of a context, as it keeps them; gx_open() fills them in (api/ctx.c).
 */
#include "core/core.h"

#include "gx_internal/struct.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void core_groups_point(struct gx_opts *o, struct core_groups *g)
{
	o->cores = &g->cores;
	o->host = &g->host;
	o->packet = &g->packet;
	o->gpu = &g->gpu;
	o->nic = &g->nic;
	o->verbs = &g->verbs;
	o->auth = &g->auth;
}

static int group_take(const char *name, void *own, size_t own_b, const void *user)
{
	char why[GX_STRUCT_TEXT_MAX];
	int ret = gx_struct_take(name, own, own_b, user, why);

	return ret ? gx_fail(ret, "%s", why) : 0;
}

int core_groups_take(struct gx_opts *o, struct core_groups *g)
{
	const struct {
		const char *name;
		void *own;
		size_t own_b;
		const void *user;
	} groups[] = {{"gx_core_opts", &g->cores, sizeof(g->cores), o->cores},
		      {"gx_host_opts", &g->host, sizeof(g->host), o->host},
		      {"gx_packet_opts", &g->packet, sizeof(g->packet), o->packet},
		      {"gx_gpu_opts", &g->gpu, sizeof(g->gpu), o->gpu},
		      {"gx_verbs_opts", &g->verbs, sizeof(g->verbs), o->verbs},
		      {"gx_nic_opts", &g->nic, sizeof(g->nic), o->nic},
		      {"gx_auth_opts", &g->auth, sizeof(g->auth), o->auth}};
	int ret = 0;

	for (unsigned i = 0; !ret && i < GX_ARRAY_SIZE(groups); i++)
		ret = group_take(groups[i].name, groups[i].own, groups[i].own_b, groups[i].user);
	if (ret)
		return ret;
	g->packet.chunk_b = g->packet.chunk_b ? g->packet.chunk_b : 512 << 10;
	g->packet.window = g->packet.window ? g->packet.window : 16;
	g->host.pull_over_b = g->host.pull_over_b ? g->host.pull_over_b : 64 << 10;
	g->gpu.timeout_ns = GX_MIN(g->gpu.timeout_ns ?: 5000000000ull, INT64_MAX / 2ull);
	core_groups_point(o, g);
	return 0;
}

int core_connect_take(const struct gx_connect_opts *o, struct core_connect *out)
{
	int ret = group_take("gx_connect_tcp_opts", &out->tcp, sizeof(out->tcp), o ? o->tcp : NULL);

	return ret ? ret
		   : group_take("gx_connect_verbs_opts", &out->verbs, sizeof(out->verbs),
				o ? o->verbs : NULL);
}

size_t core_port_text(const struct gx_port_name *p, char *buf, size_t room)
{
	bool device = p->device && p->device[0], args = p->args && p->args[0];

	return (size_t)snprintf(buf, room, "%s%s%s%s%s", p->name, device || args ? ":" : "",
				device ? p->device : "", device && args ? "," : "",
				args ? p->args : "");
}
