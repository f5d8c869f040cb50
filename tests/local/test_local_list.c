/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists over the local link between two contexts of one process, both turned by this thread: bytes,
 * what is copied at once and what is not, errors at the right segment, and the budget of a turn.
 */
#include "local/link_local.h"
#include "local/local_rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SEGS   400
#define STEP   8192u /* between two segments, of which none reaches the next */
#define POISON 0x5b

static struct gx_seg segs[SEGS];

static int setup(void **state)
{
	struct rig *r = rig_new();

	end_open(&r->server, (struct gx_opts){.server = true}, "shm");
	end_open(&r->client, (struct gx_opts){0}, "shm");
	assert_int_equal(rig_connect(r, "local", NULL), 0);
	*state = r;
	return 0;
}

static int teardown(void **state)
{
	rig_free(*state);
	return 0;
}

/* Segments of all lengths up to 5,000, at odd places, backwards there. */
static struct gx_op list_of(struct rig *r, enum gx_op_kind kind)
{
	struct gx_region kv = GX_INIT(kv);

	assert_int_equal(gx_conn_region(r->client.conn, "kv", 0, &kv), 0);
	for (unsigned i = 0; i < SEGS; i++)
		segs[i] = (struct gx_seg){.mem = i % 2 ? r->client.kv : NULL,
					  .off = i * STEP + i % 7,
					  .token = kv.token,
					  .remote_off = (SEGS - 1 - i) * STEP + i % 5,
					  .len = i * 37 % 5000};
	for (unsigned i = 0; i < SEGS; i += 2)
		segs[i].off += (uintptr_t)r->client.base;
	return (struct gx_op){.kind = kind, .user = 7, .segs = segs, .nr_segs = SEGS};
}

static uint64_t segs_len(void)
{
	uint64_t len = 0;

	for (unsigned i = 0; i < SEGS; i++)
		len += segs[i].len;
	return len;
}

static void expect(struct rig *r, const struct gx_op *op, int status)
{
	unsigned done = r->client.nr_done;

	assert_int_equal(common_post(r->client.ep, op, 1), 1);
	UNTIL(r, r->client.nr_done == done + 1);
	assert_int_equal(r->client.last.status, status);
	assert_int_equal(r->client.last.user, 7);
	assert_int_equal(r->client.last.len, status ? 0 : segs_len());
}

/* Each segment has its bytes, and the byte behind it stays. */
static void bytes_check(struct rig *r, enum gx_op_kind kind)
{
	for (unsigned i = 0; i < SEGS; i++) {
		char *mine =
			segs[i].mem ? r->client.base + segs[i].off : (char *)(uintptr_t)segs[i].off;
		char *theirs = r->server.base + segs[i].remote_off;

		assert_memory_equal(mine, theirs, segs[i].len);
		assert_int_equal((kind == GX_OP_PUT ? theirs : mine)[segs[i].len], POISON);
	}
}

static void ends_fill(struct rig *r, enum gx_op_kind kind)
{
	char *from = kind == GX_OP_PUT ? r->client.base : r->server.base;

	memset(r->client.base, POISON, KV_B);
	memset(r->server.base, POISON, KV_B);
	for (uint64_t i = 0; i < KV_B; i++)
		from[i] = (char)(i * 7 + i / 251);
}

static void all(struct rig *r, enum gx_op_kind kind, const char *count)
{
	struct gx_op op = list_of(r, kind);
	uint64_t before = end_stat(&r->client, count), bytes = end_stat(&r->client, "local_bytes");

	ends_fill(r, kind);
	expect(r, &op, 0);
	bytes_check(r, kind);
	assert_int_equal(end_stat(&r->client, count) - before, SEGS - 1); /* one has no bytes */
	assert_int_equal(end_stat(&r->client, "local_bytes") - bytes, segs_len());
	assert_int_equal(end_stat(&r->client, "local_misses"), 0);
}

static void list__put_and_get(void **state)
{
	all(*state, GX_OP_PUT, "local_puts");
	all(*state, GX_OP_GET, "local_gets");
}

/* Long segments are operations, and short ones behind them are copied at once. */
static void list__long_ones_between(void **state)
{
	struct rig *r = *state;
	struct gx_op op = list_of(r, GX_OP_PUT);

	for (unsigned i = 0; i < 4; i++) {
		segs[i * 3].len = (64 << 10) + 1;
		segs[i * 3].mem = r->client.kv;
		segs[i * 3].off = (5u << 20) + i * (128 << 10);
		segs[i * 3].remote_off = (5u << 20) + (3 - i) * (128 << 10);
	}
	ends_fill(r, GX_OP_PUT);
	expect(r, &op, 0);
	for (unsigned i = 0; i < SEGS; i++)
		assert_memory_equal(segs[i].mem ? r->client.base + segs[i].off
						: (char *)(uintptr_t)segs[i].off,
				    r->server.base + segs[i].remote_off, segs[i].len);
}

/* A post copies 64 KiB, a turn 1 MiB; segments cost, too. */
static void list__a_turn_has_an_end(void **state)
{
	struct rig *r = *state;
	struct gx_op op = list_of(r, GX_OP_PUT);
	uint64_t posted, before = end_stat(&r->client, "local_bytes");

	for (unsigned i = 0; i < SEGS; i++)
		segs[i].len = 8000;
	end_turn(&r->client);
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	posted = end_stat(&r->client, "local_bytes") - before;
	assert_in_range(posted, 1, (64 << 10) + 8000);
	end_turn(&r->client);
	assert_in_range(end_stat(&r->client, "local_bytes") - before - posted, 512 << 10,
			(1 << 20) + 8000);
	UNTIL(r, r->client.nr_done == 1);
}

/* Long puts spend the bytes of each turn, and a list gets on. */
static void list__beside_long_puts(void **state)
{
	struct rig *r = *state;
	struct gx_op op = list_of(r, GX_OP_PUT);
	struct gx_op put = {.kind = GX_OP_PUT,
			    .user = 8,
			    .flags = GX_OP_SILENT,
			    .addr = r->buf,
			    .len = 4 << 20,
			    .token = segs[0].token,
			    .remote_off = 4 << 20};

	for (unsigned i = 0; i < 64; i++)
		assert_int_equal(common_post(r->client.ep, &put, 1), 1);
	end_turn(&r->client);
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	for (unsigned i = 0; i < 64 && !r->client.nr_done; i++)
		end_turn(&r->client);
	assert_int_equal(r->client.nr_done, 1);
	assert_int_equal(r->client.last.user, 7);
}

/* The error is that of the segment, whose bytes stay where they are. */
static void bad(struct rig *r, enum gx_op_kind kind, uint64_t off, uint64_t token, int status)
{
	struct gx_op op = list_of(r, kind);

	segs[200].remote_off = off;
	segs[200].token ^= token;
	ends_fill(r, kind);
	expect(r, &op, status);
	assert_int_equal(r->client.last.seg, 200);
}

static void list__first_error(void **state)
{
	struct rig *r = *state;

	bad(r, GX_OP_PUT, KV_B - 1, 0, -ERANGE);
	bad(r, GX_OP_GET, UINT64_MAX - 50, 0, -ERANGE);
	bad(r, GX_OP_PUT, 0, 0x10000, -ESTALE);
}

/* Between two turns of a prepared list its region goes: not a byte more is copied. */
static void list__region_freed(void **state)
{
	struct rig *r = *state;
	struct gx_op op = list_of(r, GX_OP_PUT);
	uint64_t bytes;

	for (unsigned i = 0; i < SEGS; i++)
		segs[i].len = 8000;
	op.nr_segs = 0;
	assert_int_equal(gx_list_open(r->client.gx, segs, SEGS, &op.list), 0);
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	end_turn(&r->client);
	assert_int_equal(gx_mem_free(r->server.kv), 0);
	bytes = end_stat(&r->client, "local_bytes");
	UNTIL(r, r->client.nr_done == 1);
	assert_int_equal(r->client.last.status, -ESTALE);
	assert_in_range(r->client.last.seg, 1, SEGS - 1);
	expect(r, &op, -ESTALE);
	assert_int_equal(r->client.last.seg, 0);
	assert_int_equal(end_stat(&r->client, "local_bytes"), bytes);
	gx_list_close(op.list);
}

/* A key's memory: the core says that it is in a copy, and the owner withdraws. */
static void list__of_a_key(void **state)
{
	struct rig *r = *state;
	struct local_ep *e = local_of(r->client.ep);
	struct gx_key_opts o = GX_INIT(o);
	struct gx_region region = GX_INIT(region);
	struct gx_op op = list_of(r, GX_OP_PUT);
	uint32_t turn = e->key_turn;
	struct gx_key key;

	o.access = GX_ACCESS_PUT | GX_ACCESS_GET;
	assert_int_equal(gx_mem_key(r->server.kv, &o, &key), 0);
	assert_int_equal(gx_conn_key(r->client.conn, &key, &region), 0);
	UNTIL(r, local_map_of(e->conn, region.token));
	for (unsigned kind = GX_OP_PUT; kind <= GX_OP_GET; kind++) {
		op = list_of(r, kind);
		for (unsigned i = 0; i < SEGS; i++)
			segs[i].token = region.token;
		ends_fill(r, kind);
		expect(r, &op, 0);
		bytes_check(r, kind);
		assert_true(e->key_turn >= turn + 2);
		assert_int_equal(e->key_turn % 2, 0);
		turn = e->key_turn;
	}
	assert_int_equal(end_stat(&r->client, "local_misses"), 0);
	assert_int_equal(gx_key_withdraw(r->server.gx, &key), 0);
	expect(r, &op, -ESTALE);
	assert_int_equal(r->client.last.seg, 1); /* the first with bytes */
	assert_int_equal(e->key_turn % 2, 0);
}

/* The first segment's bytes take the key out of the owner's table: the second is not copied. */
static void list__key_goes_between_segments(void **state)
{
	struct rig *r = *state;
	struct gx_key_opts o = GX_INIT(o);
	struct gx_region region = GX_INIT(region);
	struct gx_op op = list_of(r, GX_OP_GET);
	_Atomic uint64_t *live;
	struct gx_key key;

	o.access = GX_ACCESS_GET;
	assert_int_equal(gx_mem_key(r->server.kv, &o, &key), 0);
	assert_int_equal(gx_conn_key(r->client.conn, &key, &region), 0);
	UNTIL(r, local_map_of(local_of(r->client.ep)->conn, region.token));
	live = &local_ctx(r->server.gx)->live[region.token & CORE_TOKEN_INDEX];
	ends_fill(r, GX_OP_GET);
	memset(r->server.base, 0, 8);
	segs[0] = (struct gx_seg){.off = (uintptr_t)live, .token = region.token, .len = 8};
	segs[1] = (struct gx_seg){
		.mem = r->client.kv, .token = region.token, .remote_off = 512, .len = 8};
	op.nr_segs = 2;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	assert_int_equal(atomic_load(live), 0);
	assert_int_equal(r->client.base[0], POISON);
	UNTIL(r, r->client.nr_done == 1); /* the owner still has it, and sends packets */
	assert_int_equal(r->client.last.status, 0);
	assert_memory_equal(r->client.base, r->server.base + 512, 8);
	atomic_store(live, region.token);
}

/* The connection ends with a list under way. */
/* Memory of the server that nobody can map. Its bytes are @r->server.base until plain_end(). */
static uint64_t plain_begin(struct rig *r, struct gx_mem **mem)
{
	struct gx_region plain = GX_INIT(plain);
	struct gx_key_opts o = GX_INIT(o);
	struct gx_key key;

	o.access = GX_ACCESS_PUT | GX_ACCESS_GET;
	r->server.base = calloc(1, KV_B);
	assert_non_null(r->server.base);
	assert_int_equal(gx_mem_reg(r->server.gx, GX_MEM_HOST, 0, r->server.base, KV_B, mem), 0);
	assert_int_equal(gx_mem_key(*mem, &o, &key), 0);
	assert_int_equal(gx_conn_key(r->client.conn, &key, &plain), 0);
	assert_null(local_map_of(local_of(r->client.ep)->conn, plain.token));
	return plain.token;
}

static void plain_end(struct rig *r, struct gx_mem *mem, char *base)
{
	assert_int_equal(gx_mem_free(mem), 0);
	free(r->server.base);
	r->server.base = base;
}

/* Packets carry it, each for several segments. */
static void list__not_mapped(void **state)
{
	struct rig *r = *state;
	char *base = r->server.base;
	struct gx_mem *mem;
	uint64_t token = plain_begin(r, &mem), misses = 0;

	for (unsigned kind = GX_OP_PUT; kind <= GX_OP_GET; kind++) {
		struct gx_op op = list_of(r, kind);
		uint64_t pkts = end_stat(kind == GX_OP_PUT ? &r->client : &r->server, "tx_pkts");

		for (unsigned i = 0; i < SEGS; i++) {
			segs[i].off -= segs[i].mem ? 0 : (uintptr_t)r->client.base;
			segs[i].mem = r->client.kv;
			segs[i].token = token;
			segs[i].len /= 8;
		}
		ends_fill(r, kind);
		expect(r, &op, 0);
		bytes_check(r, kind);
		pkts = end_stat(kind == GX_OP_PUT ? &r->client : &r->server, "tx_pkts") - pkts;
		assert_in_range(pkts, segs_len() / 8192, SEGS / 4);
		assert_int_equal(end_stat(&r->client, "local_misses") - misses, SEGS - 1);
		misses += SEGS - 1;
	}
	plain_end(r, mem, base);
}

/* A list's gets by packets leave half of these to others. */
static void list__gets_not_mapped(void **state)
{
	struct rig *r = *state;
	struct local_ep *e = local_of(r->client.ep);
	struct gx_op op = list_of(r, GX_OP_GET), one = {.kind = GX_OP_GET, .len = 8};
	char *base = r->server.base;
	struct gx_mem *mem;

	one.token = plain_begin(r, &mem);
	one.mem = r->client.kv;
	one.off = KV_B - 8;
	for (unsigned i = 0; i < SEGS; i++)
		segs[i].token = one.token;
	ends_fill(r, GX_OP_GET);
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	for (unsigned i = 0; i < 20; i++)
		end_turn(&r->client);
	assert_int_equal(e->pkt.match.gets_out, PKT_GETS_MAX / 2);
	for (unsigned i = 0; i < PKT_GETS_MAX / 2; i++)
		assert_int_equal(common_post(r->client.ep, &one, 1), 1);
	assert_int_not_equal(common_post(r->client.ep, &one, 1), 1);
	UNTIL(r, r->client.nr_done == 1 + PKT_GETS_MAX / 2);
	assert_int_equal(r->client.nr_failed, 0);
	bytes_check(r, GX_OP_GET);
	plain_end(r, mem, base);
}

static void list__conn_closes(void **state)
{
	struct rig *r = *state;
	struct gx_op op = list_of(r, GX_OP_PUT);

	for (unsigned i = 0; i < SEGS; i++)
		segs[i].len = 8000;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	end_turn(&r->client);
	assert_int_equal(r->client.nr_done, 0);
	gx_conn_close(r->server.conn);
	for (uint64_t end = gx_now() + WAIT_NS; !atomic_load(&r->client.nr_down);) {
		assert_true(gx_now() < end);
		end_turn(&r->server);
		sched_yield();
	}
	UNTIL(r, r->client.nr_done == 1);
	assert_int_not_equal(r->client.last.status, 0);
	assert_int_equal(r->client.last.user, 7);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(list__put_and_get),
		T(list__long_ones_between),
		T(list__a_turn_has_an_end),
		T(list__beside_long_puts),
		T(list__first_error),
		T(list__region_freed),
		T(list__of_a_key),
		T(list__not_mapped),
		T(list__gets_not_mapped),
		T(list__conn_closes),
		T(list__key_goes_between_segments),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
