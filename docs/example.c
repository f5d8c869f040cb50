/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole gx program in 60 lines: put a string into a region of a server, get it back, compare.
 * Start a server with `gxd --listen 127.0.0.1:7501 --mem kv=host:16M`, then run `example
 * 127.0.0.1:7501 kv`. CI builds and runs it.
 */
#include <gx/gx.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int ret, const char *what)
{
	if (ret >= 0)
		return;
	fprintf(stderr, "%s: %s (%s)\n", what, gx_error(), strerror(-ret));
	exit(1);
}

/* Post one operation and turn the core until it has completed. */
static void run(struct gx_core *core, struct gx_ep *ep, const struct gx_op *op)
{
	struct gx_queue *queue = gx_core_queue(core);
	struct gx_comp comp;

	check(gx_post(queue, ep, op, 1), "post");
	while (gx_poll(queue, &comp, 1) == 0)
		gx_core_turn(core, gx_now());
	if (comp.status) {
		fprintf(stderr, "operation failed: %s\n", strerror(-comp.status));
		exit(1);
	}
}

int main(int argc, char *argv[])
{
	char text[64] = "hello through a polling core", back[64] = "";
	struct gx_region region = GX_INIT(region);
	struct gx_op op = {0};
	struct gx_conn *conn;
	struct gx *gx;

	if (argc != 3) {
		fprintf(stderr, "usage: %s HOST:PORT REGION\n", argv[0]);
		return 2;
	}
	check(gx_open(NULL, &gx), "open");
	check(gx_connect(gx, argv[1], NULL, &conn), "connect");
	check(gx_conn_wait(conn, 5000000000ull), "connect");
	check(gx_conn_region(conn, argv[2], 0, &region), "region");

	op.kind = GX_OP_PUT;
	op.addr = text;
	op.len = sizeof(text);
	op.token = region.token;
	run(gx_core(gx, 0), gx_conn_ep(conn, 0), &op);
	op.kind = GX_OP_GET;
	op.addr = back;
	run(gx_core(gx, 0), gx_conn_ep(conn, 0), &op);

	printf("%s\n", back);
	gx_conn_close(conn);
	gx_close(gx);
	return strcmp(text, back) != 0;
}
