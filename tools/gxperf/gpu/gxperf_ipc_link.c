// SPDX-License-Identifier: Apache-2.0
/*
 * See gxperf_ipc.h. gx runs the owner's core on a thread; the calls here turn the user's core.
 */
#include "gxperf/gpu/gxperf_ipc.h"

#include "gxperf/gpu/gxperf_gpu.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINK_WAIT_NS 20000000000ull
#define LINK_STATS_B (256u << 10)

static int link_gx_open(bool server, int device, struct gx **out)
{
	static const struct gx_port_name port = {.name = "shm"};
	struct gx_opts o = GX_INIT(o);
	int ret;

	o.ports = &port;
	o.nr_ports = 1;
	o.server = server;
	ret = gx_open(&o, out);
	if (!ret && device >= 0)
		ret = gx_gpu_open(*out, device);
	return ret;
}

static int link_mem(struct gx *gx, int device, uint64_t size, struct gx_mem **out)
{
	return gx_mem_alloc(gx, device < 0 ? GX_MEM_HOST : GX_MEM_CUDA, device, size, out);
}

int link_owner_open(struct link_owner *o, int device, uint64_t size)
{
	int ret = link_gx_open(true, device, &o->gx);

	if (!ret)
		ret = link_mem(o->gx, device, size, &o->mem);
	if (!ret)
		ret = gx_mem_share(o->mem, "kv", GX_ACCESS_PUT | GX_ACCESS_GET);
	if (!ret)
		ret = gx_core_start(gx_core(o->gx, 0));
	return ret ? ret : gx_listen(o->gx, "127.0.0.1:0");
}

int link_owner_diff(const struct link_owner *o, uint64_t len, uint64_t seed, uint64_t *wrong)
{
	uint8_t *want = malloc(2 * len), *got = want + len;
	int ret = want ? gx_mem_copy_out(o->mem, 0, got, len) : -ENOMEM;

	*wrong = 0;
	if (!ret)
		bench_fill(want, len, seed);
	for (uint64_t i = 0; !ret && i < len; i++)
		*wrong += got[i] != want[i];
	free(want);
	return ret;
}

void link_owner_close(struct link_owner *o)
{
	gx_close(o->gx);
	*o = (struct link_owner){0};
}

int link_user_open(struct link_user *u, int device)
{
	int ret;

	u->bytes = malloc(IPC_USE_B);
	ret = u->bytes ? link_gx_open(false, device, &u->gx) : -ENOMEM;
	if (!ret)
		ret = link_mem(u->gx, device, IPC_USE_B, &u->mem);
	if (!ret)
		u->core = gx_core(u->gx, 0);
	return ret;
}

void link_user_close(struct link_user *u)
{
	gx_close(u->gx);
	free(u->bytes);
	*u = (struct link_user){0};
}

/* Sum of a counter over cores and control thread; -1: no such counter. */
static int64_t link_stat(struct gx *gx, const char *name)
{
	char *text = malloc(LINK_STATS_B), found[64];
	int64_t sum = -1;
	uint64_t v;

	if (text && gx_stats(gx, false, text, LINK_STATS_B) > 0)
		for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
			if (sscanf(line, "%63s %*s %" SCNu64, found, &v) == 2 &&
			    !strcmp(found, name))
				sum = (sum < 0 ? 0 : sum) + (int64_t)v;
	free(text);
	return sum;
}

static double since_us(uint64_t start)
{
	return (double)(gx_now() - start) / 1e3;
}

static int link_connect(struct link_user *u, unsigned port, struct gx_conn **out, double *us)
{
	struct gx_connect_opts o = GX_INIT(o);
	uint64_t start = gx_now();
	char addr[32];
	int ret;

	o.link = "local";
	snprintf(addr, sizeof(addr), "127.0.0.1:%u", port);
	ret = gx_connect(u->gx, addr, &o, out);
	if (!ret)
		ret = gx_conn_wait(*out, LINK_WAIT_NS);
	*us = since_us(start);
	return ret;
}

static int link_put(struct link_user *u, struct gx_conn *c, uint64_t len, double *us)
{
	uint64_t start = gx_now();
	struct gx_region kv = GX_INIT(kv);
	struct gx_comp comp = {.status = -ETIMEDOUT};
	struct gx_op op = {0};
	int ret = gx_conn_region(c, "kv", 0, &kv);

	op.kind = GX_OP_PUT;
	op.mem = u->mem;
	op.len = len;
	op.token = kv.token;
	while (!ret && gx_now() - start < LINK_WAIT_NS) {
		ret = gx_post(gx_core_queue(u->core), gx_conn_ep(c, 0), &op, 1);
		if (ret)
			break;
		gx_core_turn(u->core, gx_now());
	}
	if (ret != 1)
		return ret < 0 ? ret : -ETIMEDOUT;
	while (!gx_poll(gx_core_queue(u->core), &comp, 1) && gx_now() - start < LINK_WAIT_NS)
		gx_core_turn(u->core, gx_now());
	*us = since_us(start);
	return comp.status;
}

static int link_gone(struct link_user *u)
{
	uint64_t start = gx_now();

	while (link_stat(u->gx, "maps_now") > 0 && gx_now() - start < LINK_WAIT_NS)
		gx_core_turn(u->core, gx_now());
	return link_stat(u->gx, "maps_now") ? -ETIMEDOUT : 0;
}

static int link_puts(struct link_user *u, struct gx_conn *const c[2], uint64_t use_b, uint64_t seed,
		     struct link_times *t)
{
	int ret = 0;

	for (unsigned i = 0; i < 2 && !ret; i++) {
		bench_fill(u->bytes, use_b, seed + 1 - i);
		ret = gx_mem_copy_in(u->mem, 0, u->bytes, use_b);
		if (!ret)
			ret = link_put(u, c[i], use_b, i ? &t->put_again : &t->put);
	}
	return ret;
}

int link_user_round(struct link_user *u, unsigned port, uint64_t use_b, uint64_t seed,
		    struct link_times *t)
{
	struct gx_conn *c[2] = {NULL, NULL};
	int64_t made, found;
	int ret = link_connect(u, port, &c[0], &t->connect), gone;

	made = link_stat(u->gx, "maps_made");
	found = link_stat(u->gx, "maps_found");
	if (!ret)
		ret = link_connect(u, port, &c[1], &t->connect_again);
	t->made = (uint64_t)(link_stat(u->gx, "maps_made") - made);
	t->found = (uint64_t)(link_stat(u->gx, "maps_found") - found);
	if (!ret)
		ret = link_puts(u, c, use_b, seed, t);
	for (unsigned i = 0; i < 2; i++)
		gx_conn_close(c[i]);
	gone = link_gone(u);
	return ret ? ret : gone;
}
