/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local link between two contexts of one process, both turned by this thread: every size and
 * alignment, order of data and notification, full rings, early ends, rights, and who gets which
 * link. What needs two processes is in test_proc.c.
 */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gx/gx.h"
#include "gx_internal/link.h"
#include "local/local.h"

#include <cmocka.h>

#include "local/local_rig.h"

#define POISON 0x5b

static void end_make(struct end *e, const char *port, bool server, bool no_local, uint64_t timeout)
{
	struct gx_opts o = {.server = server,
			    .host = GX_WITH(gx_host_opts, .local = no_local ? GX_OFF : GX_AUTO),
			    .peer_timeout_ns = timeout};
	struct gx_mem *mem;

	end_open(e, o, port);
	e->plain = calloc(1, 65536);
	assert_non_null(e->plain);
	assert_int_equal(gx_mem_reg(e->gx, GX_MEM_HOST, 0, e->plain, 65536, &e->reg), 0);
	assert_int_equal(gx_mem_share(e->reg, "plain", GX_ACCESS_PUT | GX_ACCESS_GET), 0);
	assert_int_equal(gx_mem_alloc(e->gx, GX_MEM_HOST, 0, 4096, &mem), 0);
	assert_int_equal(gx_mem_share(mem, "read", GX_ACCESS_GET), 0);
}

static struct rig *rig_make(const char *client_port, bool client_not, bool server_not, uint64_t ns)
{
	struct rig *r = rig_new();

	end_make(&r->server, "shm", true, server_not, ns);
	end_make(&r->client, client_port, false, client_not, ns);
	return r;
}

static int setup(void **state)
{
	struct rig *r = rig_make("shm", false, false, 0);

	assert_int_equal(rig_connect(r, "local", NULL), 0);
	*state = r;
	return 0;
}

static int teardown(void **state)
{
	rig_free(*state);
	return 0;
}

static struct gx_op op_to(struct end *e, enum gx_op_kind kind, const char *name)
{
	struct gx_region kv = GX_INIT(kv);
	struct gx_op op = {0};

	assert_int_equal(gx_conn_region(e->conn, name, 0, &kv), 0);
	op.kind = kind;
	op.token = kv.token;
	op.user = 7;
	return op;
}

static void fill(char *p, uint64_t len, unsigned seed)
{
	for (uint64_t i = 0; i < len; i++)
		p[i] = (char)(i * 7 + i / 251 + seed);
}

/* ---- Bytes ---- */

/* One put and the get of it, from @from to @to, both misaligned as wished; neighbours stay. */
static void there_and_back(struct rig *r, struct end *from, struct end *to, uint64_t len,
			   uint64_t off, uint64_t at)
{
	struct gx_op op = op_to(from, GX_OP_PUT, "kv");
	unsigned done = from->nr_done;

	fill(r->buf, len + at, (unsigned)len);
	memset(to->base, POISON, off + len + 64);
	op.addr = r->buf + at;
	op.len = len;
	op.remote_off = off;
	assert_int_equal(common_post(from->ep, &op, 1), 1);
	UNTIL(r, from->nr_done == done + 1);
	assert_int_equal(from->last.status, 0);
	assert_int_equal(from->last.len, len);
	assert_int_equal(from->last.user, 7);
	assert_memory_equal(to->base + off, r->buf + at, len);
	for (unsigned i = 0; i < 64; i++)
		assert_int_equal(to->base[off + len + i], POISON);
	assert_true(!off || to->base[off - 1] == POISON);
	memset(from->base, POISON, at + len + 64);
	op.kind = GX_OP_GET;
	op.addr = from->base + at;
	assert_int_equal(common_post(from->ep, &op, 1), 1);
	UNTIL(r, from->nr_done == done + 2);
	assert_int_equal(from->last.op, GX_OP_GET);
	assert_memory_equal(from->base + at, r->buf + at, len);
	assert_int_equal(from->base[at + len], POISON);
}

static void put_get__sizes_and_alignments(void **state)
{
	static const uint64_t sizes[] = {0,	1,	2,	3,	7,	 8,	  15,
					 16,	17,	31,	32,	33,	 63,	  64,
					 65,	127,	128,	129,	255,	 256,	  1000,
					 4095,	4096,	4097,	16383,	16384,	 65535,	  65536,
					 65537, 262143, 262144, 262145, 1048576, 1500001, 4194303};
	struct rig *r = *state;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++)
		for (unsigned k = 0; k < 4; k++) {
			there_and_back(r, &r->client, &r->server, sizes[i], k * 13, k % 2 * 5);
			there_and_back(r, &r->server, &r->client, sizes[i], k % 3 * 64, k * 9);
		}
	assert_true(end_stat(&r->client, "local_puts") == 4 * GX_ARRAY_SIZE(sizes));
	assert_true(end_stat(&r->client, "local_gets") == 4 * GX_ARRAY_SIZE(sizes));
	assert_int_equal(end_stat(&r->client, "local_misses"), 0);
}

static void put__from_registered_memory(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_to(&r->client, GX_OP_PUT, "kv");

	fill(r->client.plain, 65536, 3);
	op.mem = r->client.reg;
	op.off = 100;
	op.len = 1000;
	op.remote_off = 5;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	UNTIL(r, r->client.nr_done == 1);
	assert_memory_equal(r->server.base + 5, r->client.plain + 100, 1000);
}

/* Done in common_post(): no turn of anybody's is needed. */
static void put__small_is_done_at_once(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_to(&r->client, GX_OP_PUT, "kv");

	op.addr = "at once";
	op.len = 8;
	op.flags = GX_OP_LOCAL;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	assert_string_equal(r->server.base, "at once");
	end_take(&r->client);
	assert_int_equal(r->client.nr_done, 1);
	assert_int_equal(r->client.nr_local, 1);
	op.flags = GX_OP_SILENT;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	end_take(&r->client);
	assert_int_equal(r->client.nr_done, 1);
}

/* What nobody takes fills three quarters of the ring of completions: nothing is under way to the peer. */
static void put__without_a_poll(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_to(&r->client, GX_OP_PUT, "kv");
	unsigned n = 0;

	op.addr = r->buf;
	op.len = 1;
	while (common_post(r->client.ep, &op, 1) == 1)
		n++;
	assert_true(n > GX_COMPS_MAX / 2 && n <= GX_COMPS_MAX / 4 * 3);
	end_take(&r->client);
	assert_int_equal(r->client.nr_done, n);
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
}

/* ---- Notifications ---- */

/* The same over packets. */
static void packets__put_without_a_poll(void **state)
{
	struct rig *r = rig_make("shm", false, false, 0);
	uint64_t until = gx_now() + WAIT_NS;
	struct gx_op op;
	unsigned n = 0;
	int took = 1;

	assert_int_equal(rig_connect(r, "packet", NULL), 0);
	op = op_to(&r->client, GX_OP_PUT, "kv");
	op.addr = r->buf;
	op.len = 1;
	while ((took || n < GX_COMPS_MAX / 4) && gx_now() < until) {
		took = common_post(r->client.ep, &op, 1);
		assert_true(took >= 0);
		n += (unsigned)took;
		gx_core_turn(r->client.core, gx_now());
		end_turn(&r->server);
	}
	assert_true(n > GX_COMPS_MAX / 4 && n <= GX_COMPS_MAX / 2);
	UNTIL(r, r->client.nr_done == n);
	assert_int_equal(r->client.nr_failed, 0);
	rig_free(r);
}

static void notify__order(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_to(&r->client, GX_OP_PUT, "kv");
	uint64_t sent = 0, seen = 0;

	op.flags = GX_OP_IMM | GX_OP_SILENT;
	op.addr = &sent;
	op.len = sizeof(sent);
	while (seen < 5000) {
		struct gx_comp comp;

		op.imm = ++sent;
		op.remote_off = sent % 100 * 8;
		if (common_post(r->client.ep, &op, 1) != 1)
			sent--;
		gx_core_turn(r->client.core, gx_now());
		if (sent % 7 && sent - seen < 90)
			continue;
		gx_core_turn(r->server.core, gx_now());
		while (common_poll(r->server.core, &comp, 1)) {
			assert_int_equal(comp.kind, GX_COMP_NOTIFY);
			assert_int_equal(comp.imm, ++seen);
			assert_int_equal(comp.len, 8);
			assert_int_equal(comp.off, seen % 100 * 8);
			assert_true(comp.ep == r->server.ep);
			assert_true(*(uint64_t *)(r->server.base + comp.off) == seen);
		}
	}
}

/* The peer does not turn: what the ring does not hold waits, in order, and ends when it does. */
static void notify__full_ring(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_to(&r->client, GX_OP_PUT, "kv");

	op.flags = GX_OP_IMM;
	op.addr = r->buf;
	op.len = 4;
	for (unsigned i = 0; i < LOCAL_IMMS + 50; i++) {
		op.imm = i;
		assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	}
	for (unsigned i = 0; i < 100; i++)
		end_turn(&r->client);
	assert_int_equal(r->client.nr_done, LOCAL_IMMS);
	UNTIL(r, r->client.nr_done == LOCAL_IMMS + 50 && r->server.nr_notify == r->client.nr_done);
	assert_int_equal(r->server.notify.imm, LOCAL_IMMS + 49);
	assert_int_equal(r->client.nr_failed, 0);
}

static void notify__from_a_long_put(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_to(&r->client, GX_OP_PUT, "kv");

	fill(r->buf, KV_B, 1);
	op.flags = GX_OP_IMM;
	op.imm = 42;
	op.addr = r->buf;
	op.len = KV_B;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	while (!r->server.nr_notify) {
		end_turn(&r->client);
		end_turn(&r->server);
	}
	assert_memory_equal(r->server.base, r->buf, KV_B);
	assert_int_equal(r->server.notify.len, KV_B);
}

/* ---- What goes by packets ---- */

static void packets__what_is_not_exported(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_to(&r->client, GX_OP_PUT, "plain");
	struct gx_conn_info info = GX_INIT(info);

	fill(r->buf, 60000, 9);
	op.addr = r->buf;
	op.len = 60000;
	op.flags = GX_OP_IMM;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	UNTIL(r, r->client.nr_done == 1 && r->server.nr_notify == 1);
	assert_memory_equal(r->server.plain, r->buf, 60000);
	assert_int_equal(end_stat(&r->client, "local_puts"), 0);
	assert_int_equal(end_stat(&r->client, "local_misses"), 1);
	gx_conn_info(r->client.conn, &info);
	assert_string_equal(info.link, "local");
	assert_true(info.payload_max_b > 0);
	assert_non_null(strstr(info.why, "1 of the peer's 3 regions by packets"));
}

static void packets__send_and_receive(void **state)
{
	struct rig *r = *state;
	struct gx_op recv = {0}, send = {0};

	recv.kind = GX_OP_RECV;
	recv.addr = r->buf;
	recv.len = 100;
	recv.tag = 5;
	send.kind = GX_OP_SEND;
	send.addr = "by packets";
	send.len = 11;
	send.tag = 5;
	assert_int_equal(common_post(r->server.ep, &recv, 1), 1);
	assert_int_equal(common_post(r->client.ep, &send, 1), 1);
	UNTIL(r, r->client.nr_done == 1 && r->server.nr_done == 1);
	assert_string_equal(r->buf, "by packets");
}

/* The peer decides what is wrong, as over any link. */
static void fails__with_its_reason(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_to(&r->client, GX_OP_PUT, "kv");

	op.addr = r->buf;
	op.len = 100;
	op.remote_off = KV_B - 99;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	UNTIL(r, r->client.nr_done == 1);
	assert_int_equal(r->client.status, -ERANGE);
	op.remote_off = UINT64_MAX - 50;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	UNTIL(r, r->client.nr_done == 2);
	assert_int_equal(r->client.status, -ERANGE);
	op = op_to(&r->client, GX_OP_PUT, "read");
	op.addr = r->buf;
	op.len = 100;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	UNTIL(r, r->client.nr_done == 3);
	assert_int_equal(r->client.status, -EACCES);
	op.token ^= 0x10000;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	UNTIL(r, r->client.nr_done == 4);
	assert_int_equal(r->client.status, -ESTALE);
}

static void fails__after_the_region_is_freed(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_to(&r->client, GX_OP_PUT, "kv");

	op.addr = r->buf;
	op.len = KV_B;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	end_turn(&r->client);
	assert_int_equal(r->client.nr_done, 0);
	gx_mem_free(r->server.kv);
	UNTIL(r, r->client.nr_done == 1);
	assert_int_equal(r->client.status, -ESTALE);
	op.len = 8;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	UNTIL(r, r->client.nr_done == 2);
	assert_int_equal(r->client.status, -ESTALE);
}

/* Memory of ours that is freed while a long copy reads or writes it. */
static void fails__after_our_memory_is_freed(void **state)
{
	struct rig *r = *state;

	for (int kind = GX_OP_PUT; kind <= GX_OP_GET; kind++) {
		struct gx_op op = op_to(&r->client, kind, "kv");
		struct gx_mem *mem;
		char *bytes = mmap(NULL, KV_B, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				   -1, 0);

		assert_true(bytes != MAP_FAILED);
		assert_int_equal(gx_mem_reg(r->client.gx, GX_MEM_HOST, 0, bytes, KV_B, &mem), 0);
		r->client.nr_done = r->client.nr_local = 0;
		op.mem = mem;
		op.flags = GX_OP_LOCAL;
		op.len = KV_B;
		assert_int_equal(common_post(r->client.ep, &op, 1), 1);
		end_turn(&r->client);
		assert_int_equal(r->client.nr_done, 0);
		assert_int_equal(gx_mem_free(mem), 0);
		assert_int_equal(munmap(bytes, KV_B), 0);
		UNTIL(r, r->client.nr_done == 1);
		assert_int_equal(r->client.status, -ECANCELED);
		assert_int_equal(r->client.nr_local, kind == GX_OP_PUT);
		assert_int_equal(common_post(r->client.ep, &op, 1), -EINVAL);
	}
}

/* ---- What connections share ---- */

/* An end that closes frees what it had when its own connections have gone. */
static void more_close(struct rig *r, struct gx_conn *c)
{
	unsigned downs = atomic_load(&r->server.nr_down);

	gx_conn_close(c);
	UNTIL(r, atomic_load(&r->server.nr_down) == downs + 1);
	gx_conn_close(atomic_load(&r->server.up));
}

static void maps__once_for_all_connections(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_to(&r->client, GX_OP_PUT, "kv");
	struct gx_conn *c[3];

	assert_int_equal(end_ctl_stat(&r->client, GX_STAT_MAPS_MADE), 2); /* kv, read */
	assert_int_equal(end_ctl_stat(&r->server, GX_STAT_MAPS_MADE), 2);
	for (unsigned i = 0; i < 3; i++) {
		c[i] = rig_connect_more(r);
		fill(r->buf, 100, i);
		op.addr = r->buf;
		op.len = 100;
		op.remote_off = i * 100;
		assert_int_equal(common_post(gx_conn_ep(c[i], 0), &op, 1), 1);
		UNTIL(r, r->client.nr_done == i + 1);
		assert_memory_equal(r->server.base + i * 100, r->buf, 100);
		more_close(r, c[i]);
	}
	assert_int_equal(end_ctl_stat(&r->client, GX_STAT_MAPS_MADE), 2);
	assert_int_equal(end_ctl_stat(&r->client, GX_STAT_MAPS_FOUND), 6);
	assert_int_equal(end_ctl_stat(&r->server, GX_STAT_MAPS_MADE), 2);
	UNTIL(r, end_ctl_stat(&r->client, GX_STAT_MAPS) == 2);
}

/* ---- Many connections, of which few are used ---- */

#define MANY 24

static void turns_at(struct end *e, uint64_t *now_ns, unsigned n, uint64_t step_ns)
{
	for (; n; n--) {
		gx_core_turn(e->core, *now_ns += step_ns);
		end_take(e);
	}
}

/* Idle ones are not looked at by every turn, and nothing of theirs is lost. */
static void many__idle_and_used_again(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_to(&r->client, GX_OP_PUT, "kv");
	struct gx_op back = op_to(&r->server, GX_OP_PUT, "kv");
	struct gx_conn *c[MANY] = {r->client.conn}, *s[MANY] = {r->server.conn};
	uint64_t now_ns;

	for (unsigned i = 1; i < MANY; i++) {
		c[i] = rig_connect_more(r);
		s[i] = atomic_load(&r->server.up);
	}
	now_ns = gx_now();
	turns_at(&r->client, &now_ns, 4 * MANY, 100000); /* all become cold, one a turn */
	turns_at(&r->server, &now_ns, 4 * MANY, 100000);
	op.addr = back.addr = r->buf;
	back.len = 1;
	back.flags = GX_OP_IMM;
	for (unsigned i = 0; i < MANY; i++) {
		unsigned done = r->client.nr_done, seen = r->server.nr_notify;

		op.flags = GX_OP_IMM;
		op.imm = i;
		op.len = i & 1 ? 100 : 600000; /* at once; in slices of turns */
		assert_int_equal(common_post(gx_conn_ep(c[i], 0), &op, 1), 1);
		turns_at(&r->client, &now_ns, 3, 0);
		assert_int_equal(r->client.nr_done, done + 1);
		turns_at(&r->server, &now_ns, 3, 0); /* in no time nobody looks at a cold one */
		assert_int_equal(r->server.nr_notify, seen);
		turns_at(&r->server, &now_ns, 1, MANY << 10);
		assert_int_equal(r->server.nr_notify, seen + 1);
		assert_int_equal(r->server.notify.imm, i);
		assert_true(r->server.notify.ep == gx_conn_ep(s[i], 0));
		assert_int_equal(common_post(gx_conn_ep(c[i], 0), &op, 1), 1);
		turns_at(&r->client, &now_ns, 3, 0);
		turns_at(&r->server, &now_ns, 1, 0); /* it is hot now */
		assert_int_equal(r->server.nr_notify, seen + 2);
	}
	op.len = 4 << 20;
	op.flags = 0;
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(common_post(gx_conn_ep(c[i], 0), &op, 1), 1);
	turns_at(&r->client, &now_ns, 1, 100000);
	for (unsigned i = 0; i < MANY; i++) /* says that it lives */
		assert_int_equal(common_post(gx_conn_ep(s[i], 0), &back, 1), 1);
	turns_at(&r->client, &now_ns, 5 * MANY, 100000); /* none is cold while it copies */
	assert_int_equal(r->client.nr_done, 3 * MANY);
	turns_at(&r->client, &now_ns, 4 * MANY, 100000);
	turns_at(&r->server, &now_ns, 4 * MANY, 100000);
	while (gx_now() < now_ns)
		sched_yield();
	for (unsigned i = MANY; i-- > 1;) {
		unsigned downs = atomic_load(&r->server.nr_down);

		gx_conn_close(c[i]);
		UNTIL(r, atomic_load(&r->server.nr_down) == downs + 1);
		gx_conn_close(s[i]);
	}
	op.len = 100;
	op.flags = GX_OP_IMM;
	for (unsigned i = 1; i < 50; i++) { /* the one that is left is never cold */
		assert_int_equal(common_post(r->client.ep, &op, 1), 1);
		UNTIL(r, r->server.nr_notify == 2 * MANY + i && r->client.nr_done == 3 * MANY + i);
	}
	assert_int_equal(r->client.nr_failed, 0);
}

/* Freed, and shared again under its name: who connects now gets the new memory, who was connected
 * keeps the old one and is told. Likely at the same address. */
static void maps__what_was_made_again(void **state)
{
	struct rig *r = *state;
	struct gx_op old = op_to(&r->client, GX_OP_PUT, "kv"), op;
	struct gx_region kv = GX_INIT(kv);
	struct gx_conn *c;
	struct gx_mem *mem;

	gx_mem_free(r->server.kv);
	assert_int_equal(gx_mem_alloc(r->server.gx, GX_MEM_HOST, 0, KV_B, &mem), 0);
	assert_int_equal(gx_mem_share(mem, "kv", GX_ACCESS_PUT | GX_ACCESS_GET), 0);
	c = rig_connect_more(r);
	assert_int_equal(end_ctl_stat(&r->client, GX_STAT_MAPS_MADE), 3);
	assert_int_equal(end_ctl_stat(&r->client, GX_STAT_MAPS_FOUND), 1);
	assert_int_equal(gx_conn_region(c, "kv", 0, &kv), 0);
	memset(r->buf, 0x77, 64);
	old.addr = r->buf;
	old.len = 64;
	op = old;
	op.token = kv.token;
	assert_int_equal(common_post(gx_conn_ep(c, 0), &op, 1), 1);
	UNTIL(r, r->client.nr_done == 1);
	assert_int_equal(r->client.nr_failed, 0);
	assert_memory_equal(gx_mem_addr(mem), r->buf, 64);
	assert_int_equal(common_post(r->client.ep, &old, 1), 1);
	UNTIL(r, r->client.nr_done == 2);
	assert_int_equal(r->client.status, -ESTALE);
	more_close(r, c);
	UNTIL(r, end_ctl_stat(&r->client, GX_STAT_MAPS) == 2);
}

/* ---- Early ends ---- */

static void cancel__a_long_put(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_to(&r->client, GX_OP_PUT, "kv");

	memset(r->server.base, POISON, KV_B);
	memset(r->buf, 1, KV_B);
	op.addr = r->buf;
	op.len = KV_B;
	op.flags = GX_OP_IMM;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	op.user = 8;
	op.len = 4096;
	op.flags = 0;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	end_turn(&r->client);
	assert_int_equal(common_cancel(r->client.ep, 7), 1);
	assert_int_equal(common_cancel(r->client.ep, 7), 0);
	UNTIL(r, r->client.nr_done == 2);
	assert_int_equal(r->client.nr_failed, 1);
	assert_int_equal(r->client.status, -ECANCELED);
	assert_int_equal(r->server.base[KV_B - 1], POISON);
	for (unsigned i = 0; i < 100; i++)
		end_turn(&r->server);
	assert_int_equal(r->server.nr_notify, 0);
}

static void deadline__while_the_ring_is_full(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_to(&r->client, GX_OP_PUT, "kv");

	op.addr = r->buf;
	op.flags = GX_OP_IMM;
	op.deadline_ns = gx_now() + 20000000;
	for (unsigned i = 0; i < LOCAL_IMMS + 3; i++)
		assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	while (r->client.nr_done < LOCAL_IMMS + 3)
		end_turn(&r->client);
	assert_true(gx_now() >= op.deadline_ns);
	assert_int_equal(r->client.nr_failed, 3);
	assert_int_equal(r->client.status, -ETIMEDOUT);
	op.flags = 0;
	op.deadline_ns = 0; /* it was the deadline: the peer is not lost */
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
}

static void close__under_operations(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_to(&r->client, GX_OP_PUT, "kv");

	op.addr = r->buf;
	op.len = KV_B;
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	gx_conn_close(r->client.conn);
	UNTIL(r, r->client.nr_done == 5);
	assert_int_equal(r->client.nr_failed, 5);
	assert_int_equal(r->client.status, -ECANCELED);
	assert_int_equal(gx_core(r->client.gx, 0)->comps_due, 0);
	UNTIL(r, atomic_load(&r->server.nr_down) == 1);
	gx_conn_close(r->server.conn);
}

/* A client that closes when its puts are done: the server hears of all, also if it did not turn. */
static void close__behind_puts_that_are_done(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_to(&r->client, GX_OP_PUT, "kv");
	unsigned done = 0;

	op.flags = GX_OP_IMM;
	op.addr = r->buf;
	op.len = 8;
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	while (done < 100) {
		struct gx_comp comp[16];

		gx_core_turn(r->client.core, gx_now());
		done += common_poll(r->client.core, comp, 16);
	}
	gx_conn_close(r->client.conn);
	while (atomic_load(&r->server.nr_down) != 1)
		sched_yield();
	UNTIL(r, r->server.nr_notify == 100);
	gx_conn_close(r->server.conn);
}

/* A peer whose core says nothing while it is put to is lost, although no copy needs it. */
static void silent_peer__is_noticed(void **state)
{
	struct rig *r = rig_make("shm", false, false, 300000000);
	struct gx_op op;
	int ret;

	assert_int_equal(rig_connect(r, "local", NULL), 0);
	op = op_to(&r->client, GX_OP_PUT, "kv");
	op.addr = r->buf;
	op.len = 64;
	for (uint64_t end = gx_now() + WAIT_NS; gx_now() < end;) {
		ret = common_post(r->client.ep, &op, 1);
		if (ret < 0)
			break;
		end_turn(&r->client);
	}
	assert_int_equal(ret, -ENOTCONN);
	rig_free(r);
}

/* ---- Hostile ---- */

static void imm_write(struct rig *r, uint32_t nr, uint64_t token, uint64_t off, uint64_t len)
{
	struct local_imm *n = &local_conn_of(r->server.conn)->tx->ring[0].imm[nr % LOCAL_IMMS];

	n->token = token;
	n->off = off;
	n->len = len;
	atomic_store(&n->seq, nr + 1);
}

static void hostile__notifications(void **state)
{
	struct rig *r = *state;
	uint64_t token = op_to(&r->server, GX_OP_PUT, "kv").token;
	uint64_t read_only = op_to(&r->server, GX_OP_PUT, "read").token;

	imm_write(r, 0, 0, 0, 0);
	imm_write(r, 1, token ^ 1ull << 40, 0, 8);
	imm_write(r, 2, token, KV_B, 1);
	imm_write(r, 3, token, UINT64_MAX, 2);
	imm_write(r, 4, token, 1, UINT64_MAX);
	imm_write(r, 5, read_only, 0, 8);
	imm_write(r, 6, token | 0xff, 0, 8);
	imm_write(r, 7, token, KV_B - 8, 8); /* this one is good */
	UNTIL(r, r->client.nr_notify == 1);
	assert_int_equal(r->client.notify.off, KV_B - 8);
	assert_int_equal(end_stat(&r->client, "rx_bad"), 5);
	assert_int_equal(end_stat(&r->client, "stale"),
			 2); /* of a place that is in use: as if withdrawn */
	/* Many of them, and it is not listened to any more. */
	for (uint32_t i = 8; i < 5000; i++) {
		imm_write(r, i, ~0ull, i, i);
		end_turn(&r->client);
	}
	assert_true(end_stat(&r->client, "rx_bad") < 2000);
	assert_int_equal(r->client.nr_notify, 1);
}

static void hostile__counter(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_to(&r->client, GX_OP_PUT, "kv");

	atomic_store(&local_conn_of(r->server.conn)->rx->ring[0].done, 0x40000000);
	op.addr = r->buf;
	op.flags = GX_OP_IMM;
	for (unsigned i = 0; i < LOCAL_IMMS + 5; i++)
		common_post(r->client.ep, &op, 1);
	while (r->client.nr_done < LOCAL_IMMS + 5) /* the server would put it right */
		end_turn(&r->client);
	assert_int_equal(r->client.nr_failed, 5);
	assert_int_equal(r->client.status, -EPROTO);
}

/* ---- Which link ---- */

static void link__table(void **state)
{
	static const struct {
		const char *client_port;
		bool client_not, server_not;
		const char *link, *port;
		int err;
		const char *took, *says;
	} table[] = {
		{"shm", false, false, NULL, NULL, 0, "local", "memory mapped"},
		{"shm", false, false, NULL, "shm", 0, "packet", "asked for"},
		{"shm", false, false, "local", "shm", 0, "local", "asked for"},
		{"shm", false, false, "packet", NULL, 0, "packet", "shared memory"},
		{"shm", false, true, NULL, NULL, 0, "packet", "no link local: the server does not"},
		{"shm", true, false, NULL, NULL, 0, "packet", "shared memory"},
		{"shm", false, true, "local", NULL, -ENODEV, NULL, "the server does not offer it"},
		{"shm", true, false, "local", NULL, -ENODEV, NULL, "switched off"},
		{"udp", false, false, "local", NULL, -ENODEV, NULL, "port shm is not opened"},
		{"shm", false, false, "wormhole", NULL, -EINVAL, NULL, "wormhole"},
	};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(table); i++) {
		struct rig *r =
			rig_make(table[i].client_port, table[i].client_not, table[i].server_not, 0);
		struct gx_conn_info info = GX_INIT(info);

		assert_int_equal(rig_connect(r, table[i].link, table[i].port), table[i].err);
		/* One that never came up is no peer, and none that was lost. */
		assert_int_equal(end_ctl_stat(&r->client, GX_STAT_PEERS_UP), !table[i].err);
		assert_int_equal(end_ctl_stat(&r->client, GX_STAT_PEERS), !table[i].err);
		assert_int_equal(end_ctl_stat(&r->client, GX_STAT_PEERS_LOST), 0);
		if (table[i].err) {
			assert_non_null(strstr(gx_error(), table[i].says));
		} else {
			gx_conn_info(r->client.conn, &info);
			assert_string_equal(info.link, table[i].took);
			assert_string_equal(info.port, "shm");
			assert_non_null(strstr(info.why, table[i].says));
		}
		rig_free(r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		T(put_get__sizes_and_alignments),
		T(put__from_registered_memory),
		T(put__small_is_done_at_once),
		T(put__without_a_poll),
		cmocka_unit_test(packets__put_without_a_poll),
		T(notify__order),
		T(notify__full_ring),
		T(notify__from_a_long_put),
		T(packets__what_is_not_exported),
		T(packets__send_and_receive),
		T(fails__with_its_reason),
		T(fails__after_the_region_is_freed),
		T(fails__after_our_memory_is_freed),
		T(many__idle_and_used_again),
		T(maps__once_for_all_connections),
		T(maps__what_was_made_again),
		T(cancel__a_long_put),
		T(deadline__while_the_ring_is_full),
		T(close__under_operations),
		T(close__behind_puts_that_are_done),
		cmocka_unit_test(silent_peer__is_noticed),
		T(hostile__notifications),
		T(hostile__counter),
		cmocka_unit_test(link__table),
#undef T
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
