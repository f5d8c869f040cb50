/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a KV cache in one operation, from prefill to decode: blocks decode | blocks prefill */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include <gx/gx.h>

enum { BLOCK_B = 4096, BLOCKS = 256 };

static uint8_t pages[BLOCKS * BLOCK_B];
static atomic_bool gone;

static int check(int ret, const char *what)
{
	if (ret < 0)
		exit(fprintf(stderr, "blocks: %s: %s\n", what, gx_error()) ? 1 : 2);
	return ret;
}

static void on_conn(void *arg, struct gx_conn *c, enum gx_conn_event event, int err, const char *s)
{
	gone = event == GX_CONN_EVENT_DOWN;
}

int main(int argc, char **argv)
{
	bool decode = argc > 1 && *argv[1] == 'd';
	struct gx_op op = {.kind = GX_OP_PUT, .flags = GX_OP_IMM, .imm = 17, .nr_segs = BLOCKS};
	struct gx_region region = GX_INIT(region);
	static struct gx_seg segs[BLOCKS];
	struct gx_comp comp;
	struct gx_conn *conn;
	struct gx_mem *mem;
	struct gx_key key;
	char addr[64];
	struct gx *gx;

	check(gx_open(GX_WITH(gx_opts, .server = decode, .on_conn = on_conn), &gx), "open");
	check(gx_mem_reg(gx, GX_MEM_HOST, 0, pages, sizeof(pages), &mem), "register");
	struct gx_core *core = gx_core(gx, 0);
	if (decode) {
		check(gx_mem_key(mem, GX_WITH(gx_key_opts, .access = GX_ACCESS_PUT), &key), "key");
		printf("127.0.0.1:%d\n", check(gx_listen(gx, "127.0.0.1:0"), "listen"));
		fwrite(&key, sizeof(key), 1, stdout); /* by any channel */
		fflush(stdout);
	} else {
		if (scanf("%63[^\n]%*c", addr) != 1 || fread(&key, sizeof(key), 1, stdin) != 1)
			return 2;
		check(gx_connect(gx, addr, NULL, &conn), "connect");
		check(gx_conn_wait(conn, 5000000000), "connect");
		check(gx_conn_key(conn, &key, &region), "key");
		for (unsigned i = 0; i < BLOCKS; i++) {
			pages[i * BLOCK_B] = (uint8_t)i;
			segs[i] = (struct gx_seg){mem, i * BLOCK_B, region.token,
						  (BLOCKS - 1 - i) * BLOCK_B, BLOCK_B};
		}
		op.segs = segs;
		check(gx_post(gx_core_queue(core), gx_conn_ep(conn, 0), &op, 1), "post");
	}
	while (!gx_poll(gx_core_queue(core), &comp, 1))
		gx_core_turn(core, gx_now());
	fprintf(stderr, "%s: %s, block 0 begins with %d\n", decode ? "decode" : "prefill",
		gx_strerror(comp.status), pages[0]);
	while (decode && !gone) /* prefill waits for an acknowledgement */
		gx_core_turn(core, gx_now());
	gx_close(gx);
	return comp.status != 0;
}
