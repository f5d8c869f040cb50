/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache of pages for inference: one process keeps the pages, another one puts a page there, is
 * sure that the keeper knows, and gets it back.
 *
 *	kv keep 127.0.0.1:7600
 *	kv use  127.0.0.1:7600
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gx/gx.h>

#define PAGE_B	65536u
#define PAGES	64u
#define WAIT_NS 10000000000ull

static struct gx *gx;
static atomic_bool told; /* use: the keeper has seen the page */

static void check(int ret, const char *what)
{
	if (ret >= 0)
		return;
	fprintf(stderr, "kv: %s: %s\n", what, gx_error());
	exit(1);
}

/* Turn the core until @done, or for @ns. */
static void turn(const atomic_bool *done, uint64_t ns)
{
	for (uint64_t until = gx_now() + ns; !atomic_load(done) && gx_now() < until;)
		gx_core_turn(gx_core(gx, 0), gx_now());
}

/* The next completion; with @op, that of this operation. */
static struct gx_comp run(struct gx_ep *ep, const struct gx_op *op)
{
	struct gx_queue *queue = gx_core_queue(gx_core(gx, 0));
	struct gx_comp comp = {.status = -ETIMEDOUT};
	uint64_t until = gx_now() + WAIT_NS;

	if (op)
		check(gx_post(queue, ep, op, 1), "post");
	while (!gx_poll(queue, &comp, 1) && gx_now() < until)
		gx_core_turn(gx_core(gx, 0), gx_now());
	if (comp.status) {
		fprintf(stderr, "kv: %s\n", gx_strerror(comp.status));
		exit(1);
	}
	return comp;
}

static void on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		    const char *why)
{
	if (event == GX_CONN_EVENT_DOWN)
		gx_conn_close(conn);
}

static void on_msg(void *arg, struct gx_conn *conn, const void *data, uint32_t len)
{
	atomic_store(&told, true);
}

/* Keep pages, until one has come: .imm is its number. The other end waits for the answer before it
 * closes: what it has put is there when its put is done, but the end of a connection may overtake
 * the notification. */
static int keep(const char *addr)
{
	struct gx_opts opts = GX_INIT(opts);
	struct gx_mem *pages;
	struct gx_comp comp;

	opts.server = true;
	opts.on_conn = on_conn;
	check(gx_open(&opts, &gx), "open");
	check(gx_mem_alloc(gx, GX_MEM_HOST, 0, PAGES * PAGE_B, &pages), "memory");
	check(gx_mem_share(pages, "pages", GX_ACCESS_PUT | GX_ACCESS_GET), "share");
	check(gx_listen(gx, addr), "listen");
	comp = run(NULL, NULL);
	printf("page %llu has come: %02x\n", (unsigned long long)comp.imm,
	       ((unsigned char *)gx_mem_addr(pages))[comp.imm * PAGE_B]);
	check(gx_conn_msg(gx_ep_conn(comp.ep), "seen", 4), "answer");
	turn(&told, 1000000000); /* serve the get */
	gx_close(gx);
	return 0;
}

static int use(const char *addr)
{
	struct gx_region pages = GX_INIT(pages);
	struct gx_opts opts = GX_INIT(opts);
	struct gx_op op = {.kind = GX_OP_PUT, .flags = GX_OP_IMM, .imm = 7};
	struct gx_conn *conn;
	struct gx_mem *mem;
	char *mine;
	bool same;

	opts.on_msg = on_msg;
	check(gx_open(&opts, &gx), "open");
	check(gx_connect(gx, addr, NULL, &conn), "connect");
	check(gx_conn_wait(conn, WAIT_NS), "connect");
	check(gx_conn_region(conn, "pages", 0, &pages), "pages");
	check(gx_mem_alloc(gx, GX_MEM_HOST, 0, 2 * PAGE_B, &mem), "memory");
	mine = gx_mem_addr(mem);
	memset(mine, 0x5a, PAGE_B);
	op.mem = mem;
	op.len = PAGE_B;
	op.token = pages.token;
	op.remote_off = op.imm * PAGE_B;
	run(gx_conn_ep(conn, 0), &op);
	op.kind = GX_OP_GET;
	op.flags = 0;
	op.off = PAGE_B;
	run(gx_conn_ep(conn, 0), &op);
	same = !memcmp(mine, mine + PAGE_B, PAGE_B);
	turn(&told, WAIT_NS);
	printf("page 7 is %s\n", same ? "the same" : "ANOTHER");
	gx_close(gx);
	return !same;
}

int main(int argc, char *argv[])
{
	if (argc == 3 && !strcmp(argv[1], "keep"))
		return keep(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "use"))
		return use(argv[2]);
	fprintf(stderr, "usage: %s keep|use HOST:PORT\n", argv[0]);
	return 2;
}
