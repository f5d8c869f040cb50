/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one received packet costs in instructions: two contexts of one process over shm, turned in
 * turn by this thread. Run under callgrind, which counts only inside server_turn(), or
 * client_turn(): GX_URING=epoll valgrind --fair-sched=yes --tool=callgrind
 * --toggle-collect=server_turn build/tests/count_rx 64. With io_uring valgrind never returns. A
 * second argument, cpu or copy, is who checks payload; without, or with none, nobody does. A
 * third, gpu: the server's bounce pool and the memory at both ends are a GPU's (or a fake one's);
 * list: each message is a list of segments of 4 KiB.
 * Prints the packets that the server received while it was counted; docs/measured/cpu.md has the
 * method and the figures.
 */
#include <gx/gx.h>

#include <stdio.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_B (16u << 20)
#define SEG_B	  4096u

static void check(int ret, const char *what)
{
	if (ret >= 0)
		return;
	fprintf(stderr, "%s: %s\n", what, gx_error());
	exit(1);
}

bool server_turn(struct gx_core *core, uint64_t now);
bool client_turn(struct gx_core *core, uint64_t now);

__attribute__((noipa)) bool server_turn(struct gx_core *core, uint64_t now)
{
	return gx_core_turn(core, now);
}

__attribute__((noipa)) bool client_turn(struct gx_core *core, uint64_t now)
{
	return gx_core_turn(core, now);
}

/* @pool: payload to it lands in the memory of a GPU. */
static void context(struct gx **out, const char *who, bool pool)
{
	const struct gx_port_name ports[] = {{.name = "shm"}};
	struct gx_opts opts = GX_INIT(opts);

	opts.ports = ports;
	opts.nr_ports = 1;
	opts.packet = GX_WITH(gx_packet_opts,
			      .integrity = strcmp(who, "none") ? GX_INTEGRITY_MODE_CRC32C
							       : GX_INTEGRITY_MODE_NONE,
			      .crc_by = !strcmp(who, "copy") ? GX_CRC_BY_COPY : GX_CRC_BY_CPU);
	opts.gpu = GX_WITH(gx_gpu_opts, .bounce = pool ? GX_BOUNCE_CUDA : GX_BOUNCE_HOST);
	check(gx_open(&opts, out), "open");
}

int main(int argc, char *argv[])
{
	unsigned messages = argc > 1 ? atoi(argv[1]) : 16;
	const char *who = argc > 2 ? argv[2] : "none";
	bool pool = argc > 3 && !strcmp(argv[3], "gpu");
	enum gx_mem_kind kind = pool ? GX_MEM_CUDA : GX_MEM_HOST;
	struct gx_region region = GX_INIT(region);
	struct gx_connect_opts how = GX_INIT(how);
	static struct gx_seg segs[MESSAGE_B / SEG_B / 2];
	struct gx_op op = {0};
	struct gx *server, *client;
	struct gx_core *at, *from;
	struct gx_conn *conn;
	struct gx_comp comp;
	struct gx_mem *mem, *from_mem;
	uint64_t pkts = 0;
	char addr[32];

	context(&server, who, pool);
	context(&client, who, false);
	check(gx_mem_alloc(server, kind, 0, MESSAGE_B, &mem), "memory");
	check(gx_mem_alloc(client, kind, 0, MESSAGE_B, &from_mem), "memory");
	check(gx_mem_share(mem, "kv", GX_ACCESS_PUT), "region");
	snprintf(addr, sizeof(addr), "127.0.0.1:%d", gx_listen(server, "127.0.0.1:0"));
	how.link = "packet";
	check(gx_connect(client, addr, &how, &conn), "connect");
	check(gx_conn_wait(conn, 5000000000ull), "connect");
	check(gx_conn_region(conn, "kv", 0, &region), "region");
	at = gx_core(server, 0);
	from = gx_core(client, 0);
	op.kind = GX_OP_PUT;
	op.mem = from_mem;
	op.len = MESSAGE_B;
	op.token = region.token;
	if (!pool)
		memset(gx_mem_addr(from_mem), 1, op.len);
	if (argc > 3 && !strcmp(argv[3], "list")) {
		for (unsigned i = 0; i < sizeof(segs) / sizeof(segs[0]); i++)
			segs[i] = (struct gx_seg){from_mem, 2ull * i * SEG_B, region.token,
						  2ull * i * SEG_B, SEG_B};
		check(gx_list_open(client, segs, sizeof(segs) / sizeof(segs[0]), &op.list), "list");
		op.len = 0;
		op.mem = NULL;
	}
	for (unsigned i = 0; i < messages; i++) {
		check(gx_post(gx_core_queue(from), gx_conn_ep(conn, 0), &op, 1), "post");
		while (!gx_poll(gx_core_queue(from), &comp, 1)) {
			client_turn(from, gx_now());
			server_turn(at, gx_now());
		}
		check(comp.status, "put");
	}
	gx_list_close(op.list);
	check(gx_core_stat(at, "rx_pkts", &pkts), "stat");
	printf("%llu packets in %u messages of %u bytes\n", (unsigned long long)pkts, messages,
	       MESSAGE_B);
	gx_conn_close(conn);
	gx_close(client);
	gx_close(server);
	return 0;
}
