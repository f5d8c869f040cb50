/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys over the local link: mapped once a key is taken, refused once it is withdrawn, and what a peer
 * that lies or stands still does to the owner. Two contexts of one process, both turned by this
 * thread.
 */
#include "local/link_local.h"
#include "gx_internal/fds.h"
#include "local/local.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kit/common_fds.h"
#include "kit/common_gx.h"
#include "local/local_rig.h"

#define OFF  4096u
#define LEN  (1u << 20)
#define MANY 300 /* more than are asked for at a time */

static struct gx_key key_of(struct gx_mem *mem, unsigned access, uint64_t off, uint64_t len)
{
	struct gx_key_opts o = GX_INIT(o);
	struct gx_key key;

	o.access = access;
	o.off = off;
	o.len = len;
	assert_int_equal(gx_mem_key(mem, &o, &key), 0);
	return key;
}

static struct gx_region take(struct rig *r, const struct gx_key *key)
{
	struct gx_region region = GX_INIT(region);

	assert_int_equal(gx_conn_key(r->client.conn, key, &region), 0);
	return region;
}

static struct local_map *map_of(const struct rig *r, uint64_t token)
{
	return local_map_of(local_conn_of(r->client.conn), token);
}

static bool is_missed(const struct rig *r)
{
	return atomic_load(&r->client.conn->key_missed);
}

/* @kind of @len bytes at @buf. Return: its status. */
static int op_do(struct rig *r, enum gx_op_kind kind, uint64_t token, uint64_t off, uint64_t len)
{
	struct gx_op op = {
		.kind = kind, .addr = r->buf, .token = token, .remote_off = off, .len = len};

	op.flags = kind == GX_OP_PUT ? GX_OP_IMM : 0;
	r->client.nr_done = r->client.nr_failed = r->client.status = 0;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	UNTIL(r, r->client.nr_done);
	return r->client.status;
}

/* Packets that the client's operations took so far. */
static uint64_t misses(const struct rig *r)
{
	return end_stat(&r->client, "local_misses");
}

static void rig_up(struct rig *r)
{
	end_open(&r->client, (struct gx_opts){0}, "shm");
	/* gx_key_withdraw() waits for so long, and a second. */
	end_open(&r->server,
		 (struct gx_opts){.server = true,
				  .gpu = GX_WITH(gx_gpu_opts, .timeout_ns = 100000000)},
		 "shm");
	assert_int_equal(rig_connect(r, "local", NULL), 0);
}

/* The control thread's state of the client's end. */
static int old_run(void *arg)
{
	return local_conn_of(arg)->old != NULL;
}

static int out_run(void *arg)
{
	return local_conn_of(arg) ? (int)local_conn_of(arg)->asks.out : 0;
}

static int client_ctl(const struct rig *r, int (*fn)(void *arg))
{
	return gx_uring_run_wait(r->client.gx->uring, fn, r->client.conn);
}

/* Keys that were asked for so far. */
static int made_run(void *arg)
{
	return (int)local_conn_of(arg)->asks.made;
}

/* ---- mapped ---- */

static void key__is_mapped(void **state)
{
	struct rig *r = *state;
	struct gx_key key = key_of(r->server.kv, GX_ACCESS_PUT | GX_ACCESS_GET, OFF, LEN);
	uint64_t token = take(r, &key).token, maps = end_ctl_stat(&r->client, GX_STAT_MAPS);

	UNTIL(r, map_of(r, token));
	assert_ptr_equal(map_of(r, token)->live,
			 &local_conn_of(r->client.conn)->live[token & CORE_TOKEN_INDEX]);
	assert_int_equal(end_ctl_stat(&r->client, GX_STAT_MAPS), maps); /* kv is mapped already */
	memset(r->buf, 0x5a, LEN);
	assert_int_equal(op_do(r, GX_OP_PUT, token, 8, 100), 0);
	UNTIL(r, r->server.nr_notify == 1);
	assert_int_equal(r->server.notify.token, token);
	assert_int_equal(r->server.base[OFF + 7], 0);
	assert_memory_equal(r->server.base + OFF + 8, r->buf, 100);
	assert_int_equal(r->server.base[OFF + 108], 0);
	assert_int_equal(op_do(r, GX_OP_PUT, token, 0, LEN), 0); /* in slices */
	assert_memory_equal(r->server.base + OFF, r->buf, LEN);
	assert_int_equal(r->server.base[OFF + LEN], 0);
	memset(r->server.base + OFF, 0x11, LEN);
	assert_int_equal(op_do(r, GX_OP_GET, token, 0, LEN), 0);
	assert_memory_equal(r->buf, r->server.base + OFF, LEN);
	assert_int_equal(misses(r), 0);
	assert_int_equal(map_of(r, token)->users, 0);
	/* Beyond the part, within what is mapped: the owner says it. */
	assert_int_equal(op_do(r, GX_OP_PUT, token, LEN - 4, 8), -ERANGE);
	assert_int_equal(op_do(r, GX_OP_GET, token, LEN, 1), -ERANGE);
	assert_false(is_missed(r));
}

/* A program may take a key for each operation, before the owner has answered and behind that, and
 * when the key is gone: the owner is asked once. */
static void key__is_asked_for_once(void **state)
{
	struct rig *r = *state;
	struct gx_key key = key_of(r->server.kv, GX_ACCESS_GET, 0, LEN);
	uint64_t token = take(r, &key).token;

	for (unsigned i = 0; i < MANY; i++)
		take(r, &key);
	UNTIL(r, map_of(r, token));
	take(r, &key);
	assert_int_equal(client_ctl(r, made_run), 1);
	assert_int_equal(gx_key_withdraw(r->server.gx, &key), 0);
	UNTIL(r, !map_of(r, token));
	take(r, &key);
	assert_int_equal(client_ctl(r, made_run), 1);
	key = key_of(r->server.kv, GX_ACCESS_GET, 0, LEN); /* gone before it is taken */
	assert_int_equal(gx_key_withdraw(r->server.gx, &key), 0);
	token = take(r, &key).token;
	UNTIL(r, client_ctl(r, made_run) == 2 && !client_ctl(r, out_run));
	assert_null(map_of(r, token));
	assert_false(is_missed(r));
	key = key_of(r->server.kv, GX_ACCESS_GET, 0, LEN);
	token = take(r, &key).token;
	UNTIL(r, map_of(r, token));
	assert_int_equal(client_ctl(r, made_run), 3);
}

/* What may only be read is mapped so, and the other way is refused. Memory that no region names is
 * mapped once for all of its keys, and until the last one is gone. */
static void key__rights_and_mappings(void **state)
{
	struct rig *r = *state;
	uint64_t maps = end_ctl_stat(&r->client, GX_STAT_MAPS);
	struct gx_key key[MANY];
	uint64_t token[MANY];
	struct gx_mem *mem;

	assert_int_equal(gx_mem_alloc(r->server.gx, GX_MEM_HOST, 0, LEN, &mem), 0);
	for (unsigned i = 0; i < MANY; i++) {
		key[i] = key_of(mem, GX_ACCESS_GET, i, 64);
		token[i] = take(r, &key[i]).token;
	}
	for (unsigned i = 0; i < MANY; i++)
		UNTIL(r, map_of(r, token[i]));
	assert_int_equal(end_ctl_stat(&r->client, GX_STAT_MAPS), maps + 1);
	for (unsigned i = 0; i < LEN; i++)
		((char *)gx_mem_addr(mem))[i] = (char)(i * 7);
	for (unsigned i = 0; i < MANY; i++) {
		assert_int_equal(op_do(r, GX_OP_GET, token[i], 0, 64), 0);
		assert_memory_equal(r->buf, (char *)gx_mem_addr(mem) + i, 64);
	}
	assert_int_equal(misses(r), 0);
	assert_false(map_of(r, token[0])->mem->writable);
	assert_int_equal(op_do(r, GX_OP_PUT, token[0], 0, 1), -EACCES);
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(gx_key_withdraw(r->server.gx, &key[i]), 0);
	UNTIL(r, end_ctl_stat(&r->client, GX_STAT_MAPS) == maps);
	for (unsigned i = 0; i < MANY; i++)
		assert_null(map_of(r, token[i]));
	assert_int_equal(gx_mem_free(mem), 0);
}

/* Both ends may own keys. */
static void key__of_the_client(void **state)
{
	struct rig *r = *state;
	struct gx_region region = GX_INIT(region);
	struct gx_key key = key_of(r->client.kv, GX_ACCESS_GET, 0, LEN);

	assert_int_equal(gx_conn_key(r->server.conn, &key, &region), 0);
	UNTIL(r, local_map_of(local_conn_of(r->server.conn), region.token));
}

/* ---- not mapped ---- */

static void key__by_packets(void **state)
{
	static char heap[8192];
	struct rig *r = *state;
	struct gx_conn_info info = GX_INIT(info);
	struct gx_key_opts o = GX_INIT(o);
	struct gx_key key;
	struct gx_mem *mem;
	uint64_t token;

	o.access = GX_ACCESS_GET;
	o.until_ns = gx_now() + WAIT_NS;
	assert_int_equal(gx_mem_key(r->server.kv, &o, &key), 0);
	token = take(r, &key).token;
	UNTIL(r, is_missed(r));
	assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
	assert_non_null(strstr(info.why, "a key by packets: its memory is not mapped"));
	assert_int_equal(op_do(r, GX_OP_GET, token, 0, 64), 0);
	assert_int_equal(misses(r), 1);
	assert_int_equal(gx_mem_reg(r->server.gx, GX_MEM_HOST, 0, heap, sizeof(heap), &mem), 0);
	key = key_of(mem, GX_ACCESS_GET, 0, 0);
	token = take(r, &key).token;
	memset(heap, 3, sizeof(heap));
	assert_int_equal(op_do(r, GX_OP_GET, token, 0, 8192), 0);
	assert_memory_equal(r->buf, heap, 8192);
	assert_null(map_of(r, token));
	assert_int_equal(gx_mem_free(mem), 0);
}

/* ---- withdrawn ---- */

static void withdrawn__is_stale(void **state)
{
	struct rig *r = *state;
	struct gx_key key = key_of(r->server.kv, GX_ACCESS_PUT | GX_ACCESS_GET, OFF, LEN), next;
	uint64_t token = take(r, &key).token, again;

	UNTIL(r, map_of(r, token));
	assert_int_equal(gx_key_withdraw(r->server.gx, &key), 0);
	/* The client's control thread may not have heard of it. */
	memset(r->buf, 0x77, LEN);
	assert_int_equal(op_do(r, GX_OP_PUT, token, 0, LEN), -ESTALE);
	assert_int_equal(op_do(r, GX_OP_GET, token, 0, 8), -ESTALE);
	assert_int_equal(r->buf[0], 0x77);
	assert_int_equal(r->server.base[OFF], 0);
	assert_true(end_stat(&r->server, "stale") >= 2);
	next = key_of(r->server.kv, GX_ACCESS_PUT, OFF, LEN);
	again = take(r, &next).token;
	UNTIL(r, map_of(r, again) && !map_of(r, token));
	assert_int_equal(op_do(r, GX_OP_PUT, again, 0, 8), 0);
	assert_int_equal(r->server.base[OFF], 0x77);
	assert_true(end_stat(&r->server, "rx_bad") == 0);
}

/* Operations that wait end with it, and copy nothing. */
static void withdrawn__with_operations_that_wait(void **state)
{
	struct rig *r = *state;
	struct gx_key key = key_of(r->server.kv, GX_ACCESS_PUT | GX_ACCESS_GET, 0, KV_B);
	uint64_t token = take(r, &key).token;
	struct gx_op op = {.kind = GX_OP_PUT, .addr = r->buf, .token = token, .len = KV_B};

	UNTIL(r, map_of(r, token));
	memset(r->buf, 0x33, KV_B);
	r->client.nr_done = r->client.nr_failed = 0;
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	assert_int_equal(map_of(r, token)->users, 3);
	end_turn(&r->client); /* some slices */
	assert_int_equal(gx_key_withdraw(r->server.gx, &key), 0);
	memset(r->server.base, 0, KV_B);
	UNTIL(r, r->client.nr_done == 3);
	assert_int_equal(r->client.nr_failed, 3);
	assert_int_equal(r->client.status, -ESTALE);
	for (unsigned i = 0; i < KV_B; i++)
		assert_int_equal(r->server.base[i], 0);
	assert_true(end_stat(&r->client, "stale") >= 3);
	UNTIL(r, !client_ctl(r, old_run));
}

/* A peer that is in a copy, and does not leave it. */
static void withdrawn__while_the_peer_copies(void **state)
{
	struct rig *r = *state;
	struct gx_key key = key_of(r->server.kv, GX_ACCESS_PUT, 0, LEN);
	uint64_t token = take(r, &key).token;
	struct local_inside *in = &local_conn_of(r->client.conn)->tx->ring[0].inside;

	UNTIL(r, map_of(r, token));
	atomic_store(&in->core, 7);
	assert_int_equal(gx_key_withdraw(r->server.gx, &key), -EAGAIN);
	assert_non_null(strstr(gx_error(), "stopped"));
	assert_int_equal(op_do(r, GX_OP_PUT, token, 0, 8), -ESTALE); /* refused all the same */
	atomic_store(&in->core, 9); /* it left, and is in the next one, which found no key */
	assert_int_equal(gx_key_withdraw(r->server.gx, &key), 0);
	atomic_store(&in->core, 10);
	/* So do copies by copy engines. */
	key = key_of(r->server.kv, GX_ACCESS_PUT, 0, LEN);
	token = take(r, &key).token;
	UNTIL(r, map_of(r, token));
	atomic_store(&in->begun, 5);
	atomic_store(&in->oldest, 4);
	assert_int_equal(gx_key_withdraw(r->server.gx, &key), -EAGAIN);
	atomic_store(&in->begun, 6); /* another one, of other memory */
	atomic_store(&in->oldest, 5);
	assert_int_equal(gx_key_withdraw(r->server.gx, &key), 0);
}

/* What a copy tells the owner, and whether the key held. */
static void copy__looks_before_and_behind(void **state)
{
	struct rig *r = *state;
	struct gx_key key = key_of(r->server.kv, GX_ACCESS_PUT, 0, LEN);
	uint64_t token = take(r, &key).token;
	struct local_inside *in = &local_conn_of(r->client.conn)->tx->ring[0].inside;
	struct local_ep *e = local_of(r->client.ep);
	_Atomic uint64_t *live = &local_ctx(r->server.gx)->live[token & CORE_TOKEN_INDEX];
	const struct local_map *m;

	UNTIL(r, map_of(r, token));
	m = map_of(r, token);
	assert_int_equal(in->core & 1, 0);
	assert_true(local_key_enter(e, m));
	assert_int_equal(in->core & 1, 1);
	atomic_store(live, 0);
	assert_false(local_key_leave(e, m, GX_OP_GET));
	assert_int_equal(in->core & 1, 0);
	assert_false(local_key_enter(e, m));
	assert_int_equal(in->core & 1, 0);
	atomic_store(live, token);
	assert_true(local_key_enter(e, m));
	assert_true(local_key_leave(e, m, GX_OP_GET));
	assert_true(local_key_enter(e, m));
	atomic_store(live, 0);
	assert_true(local_key_leave(e, m, GX_OP_PUT)); /* its bytes were there in time */
	assert_int_equal(in->core & 1, 0);
	atomic_store(live, token);
}

/* ---- hostile, and gone ---- */

struct said {
	struct gx_conn *conn;
	const uint8_t *b;
	uint32_t len;
};

static int say_run(void *arg)
{
	struct said *s = arg;

	s->conn->link_say(s->conn, s->b, s->len);
	return 0;
}

/* @conn's end says it. The other one must end the connection. */
static void say_bad(struct rig *r, const uint8_t *b, uint32_t len)
{
	struct said s = {r->server.conn, b, len};
	unsigned down = atomic_load(&r->client.nr_down);

	gx_uring_run_wait(r->server.gx->uring, say_run, &s);
	UNTIL(r, atomic_load(&r->client.nr_down) > down || client_ctl(r, out_run));
	assert_int_equal(client_ctl(r, out_run), 0);
	assert_int_equal(r->client.conn->reason, GX_REASON_PROTOCOL);
}

static void hostile__words(void **state)
{
	static const struct {
		uint8_t first, export;
		uint32_t len;
	} bad[] = {{0, 0, 16},	{1, 0, 15},  {1, 0, 0},	 {4, 0, 16},
		   {2, 0, 127}, {2, 1, 128}, {2, 0, 128} /* not asked */};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		struct rig *r = rig_new();
		uint8_t b[128] = {bad[i].first, bad[i].export};

		rig_up(r);
		b[8] = 0x80; /* a place of keys */
		say_bad(r, b, bad[i].len);
		rig_free(r);
	}
}

static int fill_run(void *arg)
{
	uint8_t b[8] = {0};
	int n = 0;

	while (!gx_fds_send(local_conn_of(arg)->sock, b, sizeof(b), NULL, 0))
		n++;
	return n;
}

static int drain_run(void *arg)
{
	uint8_t b[8];
	int fd, n = 0;
	unsigned nr;

	do
		nr = 1;
	while (gx_fds_recv(local_conn_of(arg)->sock, b, sizeof(b), &fd, &nr) > 0 && ++n);
	return n;
}

/* The peer reads no descriptors: the owner does not wait, and packets serve the key. */
static void hostile__socket_is_full(void **state)
{
	struct rig *r = *state;
	struct gx_key key = key_of(r->server.kv, GX_ACCESS_GET, 0, LEN);
	uint64_t token, before = misses(r);
	int n = gx_uring_run_wait(r->server.gx->uring, fill_run, r->server.conn);

	assert_true(n > 0);
	token = take(r, &key).token;
	UNTIL(r, is_missed(r));
	assert_null(map_of(r, token));
	assert_int_equal(op_do(r, GX_OP_GET, token, 0, LEN), 0);
	assert_true(misses(r) > before);
	assert_int_equal(gx_key_withdraw(r->server.gx, &key), 0);
	assert_int_equal(client_ctl(r, drain_run), n);
	key = key_of(r->server.kv, GX_ACCESS_GET, 0, LEN);
	token = take(r, &key).token;
	UNTIL(r, map_of(r, token));
}

struct asked {
	struct gx_conn *conn;
	uint64_t token;
};

static int ask_run(void *arg)
{
	const struct asked *a = arg;

	local_key_ask(a->conn, a->token);
	return 0;
}

/* Tokens that are nobody's, of a named region, of a key for another: asked for, and not mapped. */
static void hostile__asks(void **state)
{
	struct rig *r = *state;
	struct gx_region kv = GX_INIT(kv);
	struct gx_key_opts o = GX_INIT(o);
	struct gx_key key;
	uint64_t token[3];

	o.access = GX_ACCESS_GET;
	o.conn = r->server.conn;
	assert_int_equal(gx_mem_key(r->server.kv, &o, &key), 0);
	assert_int_equal(gx_conn_region(r->client.conn, "kv", 0, &kv), 0);
	token[0] = take(r, &key).token;
	token[1] = token[0] ^ 1ull << 40;
	token[2] = token[0] + 9;
	for (unsigned i = 0; i < 3; i++) {
		struct asked a = {r->client.conn, token[i]};

		gx_uring_run_wait(r->client.gx->uring, ask_run, &a);
		UNTIL(r, !client_ctl(r, out_run));
		assert_null(map_of(r, token[i]));
	}
	assert_true(is_missed(r));
}

/* Whoever goes first, nothing is left. AddressSanitizer looks, too. */
static void gone__with_keys(void **state)
{
	int fds = common_fds_count();

	for (unsigned i = 0; i < 3; i++) {
		struct rig *r = rig_new();
		struct gx_key key;
		uint64_t token;
		struct gx_mem *mem;

		rig_up(r);
		assert_int_equal(gx_mem_alloc(r->server.gx, GX_MEM_HOST, 0, LEN, &mem), 0);
		key = key_of(mem, GX_ACCESS_PUT, 0, 0);
		token = take(r, &key).token;
		if (i < 2)
			UNTIL(r, map_of(r, token));
		if (i == 0)
			gx_conn_close(r->client.conn);
		if (i == 1)
			assert_int_equal(gx_mem_free(mem), 0); /* its keys go with it */
		rig_free(r);
		assert_int_equal(common_fds_count(), fds);
	}
}

static int setup(void **state)
{
	struct rig *r = rig_new();

	rig_up(r);
	*state = r;
	return 0;
}

static int teardown(void **state)
{
	rig_free(*state);
	return 0;
}

#define with_rig(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		with_rig(key__is_mapped),
		with_rig(key__is_asked_for_once),
		with_rig(key__rights_and_mappings),
		with_rig(key__of_the_client),
		with_rig(key__by_packets),
		with_rig(withdrawn__is_stale),
		with_rig(withdrawn__with_operations_that_wait),
		with_rig(withdrawn__while_the_peer_copies),
		with_rig(copy__looks_before_and_behind),
		with_rig(hostile__asks),
		with_rig(hostile__socket_is_full),
		cmocka_unit_test(hostile__words),
		cmocka_unit_test(gone__with_keys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
