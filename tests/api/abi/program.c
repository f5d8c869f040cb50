// SPDX-License-Identifier: Apache-2.0
/*
 * A program that meets a library of another version: test_abi.py builds it with headers of the past
 * and of the future, and runs it on the library of this tree. It fills and reads each public struct
 * that a CPU alone can use, and posts arrays of operations.
 *
 * OLDER: structs with a size lack their last field. LATER: the headers have a last field .later in every struct with a size, which this library does
 * not know.
 */
#include <gx/coll.h>
#include <gx/engine.h>
#include <gx/gx.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEN	4096
#define OPS	3
#define GUARD_B 256
#define WAIT_NS 60000000000ull

#define NEED(cond)                                                                                 \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			printf("program.c:%d: %s: %s; %s\n", __LINE__, #cond, gx_error(),          \
			       gx_engine_why());                                                   \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* The library reads @s. What it does not know must be zero, and else is refused by name. */
#ifdef LATER
#define TAKES(type, s, why, call)                                                                  \
	do {                                                                                       \
		(s).later = 1;                                                                     \
		NEED((call) == -E2BIG && strstr(why(), #type " has "));                            \
		(s).later = 0;                                                                     \
		NEED((call) == 0);                                                                 \
	} while (0)
#define LATER_IS_ZERO(s) NEED((s).later == 0)
#else
#define TAKES(type, s, why, call) NEED((call) == 0)
#define LATER_IS_ZERO(s)
#endif

/* The library fills @out.s, and no byte behind it. */
#define GIVES(out, call)                                                                           \
	do {                                                                                       \
		memset(&(out), 0xa5, sizeof(out));                                                 \
		out.s.size = sizeof(out.s);                                                        \
		NEED((call) == 0);                                                                 \
		NEED(out.s.size == sizeof(out.s));                                                 \
		for (unsigned i_ = 0; i_ < GUARD_B; i_++)                                          \
			NEED(out.guard[i_] == 0xa5);                                               \
		LATER_IS_ZERO(out.s);                                                              \
	} while (0)

static struct gx *server, *client;
static struct gx_mem *kv;
static struct gx_conn *conn;
static unsigned char src[LEN];

static void on_conn(void *arg, struct gx_conn *c, enum gx_conn_event event, int err,
		    const char *why)
{
	(void)arg, (void)err, (void)why;
	if (event == GX_CONN_EVENT_DOWN)
		gx_conn_close(c);
}

static void contexts(void)
{
	const struct gx_port_name port = {.name = "shm"};
	struct gx_packet_opts packet = GX_INIT(packet);
	struct gx_opts o = GX_INIT(o);
	struct gx_connect_opts how = GX_INIT(how);
	char addr[32];
	int nr;

	o.ports = &port;
	o.nr_ports = 1;
	packet.slots = 128;
	o.packet = &packet;
	o.peer_timeout_ns = 30000000000ull;
	TAKES(gx_opts, o, gx_error, gx_open(&o, &client));
	o.server = true;
	o.on_conn = on_conn;
	NEED(!gx_open(&o, &server));
	NEED(!gx_mem_alloc(server, GX_MEM_HOST, 0, LEN, &kv));
	NEED(!gx_mem_share(kv, "kv", GX_ACCESS_PUT));
	nr = gx_listen(server, "127.0.0.1:0");
	NEED(nr > 0);
	NEED(!gx_core_start(gx_core(server, 0)) && !gx_core_start(gx_core(client, 0)));
	snprintf(addr, sizeof(addr), "127.0.0.1:%d", nr);
	how.lanes = 1;
	how.ports = &port; /* and so the packet link */
	how.nr_ports = 1;
#ifndef OLDER
	how.link = "packet";
#endif
	TAKES(gx_connect_opts, how, gx_error, gx_connect(client, addr, &how, &conn));
	NEED(!gx_conn_wait(conn, WAIT_NS));
}

static uint64_t region(void)
{
	struct {
		struct gx_conn_info s;
		unsigned char guard[GUARD_B];
	} info;
	struct {
		struct gx_region s;
		unsigned char guard[GUARD_B];
	} out;

	GIVES(info, gx_conn_info(conn, &info.s));
	NEED(info.s.state == GX_CONN_STATE_UP && info.s.lanes == 1);
	NEED(!strcmp(info.s.link, "packet") && !strcmp(info.s.port, "shm"));
	GIVES(out, gx_conn_region(conn, "kv", 0, &out.s));
	NEED(out.s.len == LEN && out.s.access == GX_ACCESS_PUT);
	return out.s.token;
}

/* Arrays of gx_op and gx_comp: both ends take the same strides. */
static void puts_array(uint64_t token)
{
	struct gx_queue_opts o = GX_INIT(o);
	struct gx_op ops[OPS] = {{0}};
	struct gx_comp comps[OPS + 1];
	uint64_t until = gx_now() + WAIT_NS;
	struct gx_queue *q;
	unsigned n = 0, seen = 0;

#ifndef OLDER
	o.depth = 16;
#endif
	TAKES(gx_queue_opts, o, gx_error, gx_queue_open(client, &o, &q));
	for (unsigned i = 0; i < LEN; i++)
		src[i] = (unsigned char)(i * 7 + 1);
	for (unsigned i = 0; i < OPS; i++) {
		ops[i].kind = GX_OP_PUT;
		ops[i].user = 100 + i;
		ops[i].addr = src + i * (LEN / 4);
		ops[i].len = LEN / 4;
		ops[i].token = token;
		ops[i].remote_off = i * (LEN / 4);
	}
	NEED(gx_post(q, gx_conn_ep(conn, 0), ops, OPS) == OPS);
	memset(comps, 0xa5, sizeof(comps));
	while (n < OPS && gx_now() < until)
		n += gx_poll(q, comps + n, OPS - n);
	NEED(n == OPS);
	for (unsigned i = 0; i < OPS; i++) {
		NEED(comps[i].kind == GX_COMP_DONE && !comps[i].status);
		NEED(comps[i].len == LEN / 4 && comps[i].ep == gx_conn_ep(conn, 0));
		NEED(comps[i].user - 100 < OPS);
		seen |= 1u << (comps[i].user - 100);
	}
	NEED(seen == (1u << OPS) - 1);
	NEED(comps[OPS].user == 0xa5a5a5a5a5a5a5a5ull);
	NEED(!memcmp(gx_mem_addr(kv), src, OPS * (LEN / 4)));
	while (gx_queue_close(q) == -EAGAIN)
		;
}

static void group(void)
{
	struct {
		struct gx_group_env s;
		unsigned char guard[GUARD_B];
	} out;
	struct gx_group_buf bufs[2] = {{GX_MEM_HOST, 0, NULL, LEN}, {GX_MEM_HOST, 0, NULL, LEN}};
	struct gx_group_opts o = GX_INIT(o);
	struct gx_coll c = GX_INIT(c);
	struct gx_group *g;
	uint64_t ticket;

	setenv("RANK", "0", 1);
	setenv("WORLD_SIZE", "1", 1);
	GIVES(out, gx_group_env(&out.s));
	NEED(out.s.rank == 0 && out.s.nr_ranks == 1 && !strcmp(out.s.launcher, "torchrun"));
	o.nr_ranks = 1;
	o.master = "127.0.0.1:0";
	o.bufs = bufs;
	o.nr_bufs = 2;
	TAKES(gx_group_opts, o, gx_error, gx_group_open(&o, &g));
	NEED(!gx_group_connect(g));
	c.src = gx_group_mem(g, 0);
	c.dst = 1;
#ifndef OLDER /* 0 is a length */
	c.len = 64;
#endif
	memset(gx_mem_addr(c.src), 9, 64);
	TAKES(gx_coll, c, gx_error, gx_allgather(g, &c, &ticket));
	NEED(!gx_coll_wait(g, ticket));
#ifndef OLDER
	NEED(!memcmp(gx_mem_addr(gx_group_mem(g, 1)), gx_mem_addr(c.src), 64));
#endif
	gx_group_close(g);
}

static void engine(void)
{
	struct {
		struct gx_engine_info s;
		unsigned char guard[GUARD_B];
	} out;
	const struct gx_row_pair pairs[2] = {{3, 0}, {1, 1}};
	struct gx_engine_queue_opts qo = GX_INIT(qo);
	struct gx_engine_opts o = GX_INIT(o);
	struct gx_gather g = GX_INIT(g);
	struct gx_engine_queue *q;
	unsigned char dst[128];
	struct gx_engine *e;
	uint32_t ticket;

	o.device = -1;
	TAKES(gx_engine_opts, o, gx_engine_why, gx_engine_open(&o, &e));
	GIVES(out, gx_engine_info(e, &out.s));
	NEED(out.s.name[0] && out.s.unpack == GX_UNPACK_MODE_HOST);
	TAKES(gx_engine_queue_opts, qo, gx_engine_why, gx_engine_queue_open(e, &qo, &q));
	g.src = src;
	g.dst = dst;
	g.pairs = pairs;
	g.nr = 2;
	g.src_rows = 4;
	g.dst_rows = 2;
	g.row_b = 64;
	TAKES(gx_gather, g, gx_engine_why, gx_engine_gather(q, &g, &ticket));
	NEED(!gx_engine_wait(q, ticket, WAIT_NS));
	NEED(!memcmp(dst, src + 3 * 64, 64) && !memcmp(dst + 64, src + 64, 64));
	NEED(!gx_engine_queue_close(q));
	gx_engine_close(e);
}

int main(void)
{
	contexts();
	puts_array(region());
	group();
	engine();
	gx_close(client);
	gx_close(server);
	printf("gx_opts has %zu bytes here: all is well\n", sizeof(struct gx_opts));
	return 0;
}
