/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys over a simulated network: what a key names, whom it lets in, and that nobody reads or writes
 * a part whose key was withdrawn or whose lease is over, at many moments of what is under way.
 */
#include "kit/common_seeds.h"
#include "packet/op.h"
#include "packet/rec.h"
#include "sim/sim_rig.h"

#include "gx_internal/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LEN	(1u << 20)
#define PART	(LEN / 4)
#define MOMENTS 24
#define NEXT	0x77 /* what the next owner of the memory writes there */

static struct {
	struct gx_mem *mem; /* of side 1: registered, shared by no name */
	uint8_t *at;
	uint8_t *buf; /* of side 0 */
} own;

static void own_open(struct rig *r)
{
	own.at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	own.buf = malloc(LEN);
	assert_true(own.at != MAP_FAILED && own.buf);
	rig_fill(own.at, LEN, 1);
	rig_fill(own.buf, LEN, 2);
	assert_int_equal(gx_mem_reg(r->gx[1], GX_MEM_HOST, 0, own.at, LEN, &own.mem), 0);
}

static void own_close(void)
{
	munmap(own.at, LEN);
	free(own.buf);
}

static struct gx_key key_of(unsigned access, uint64_t off, uint64_t len)
{
	struct gx_key_opts o = GX_INIT(o);
	struct gx_key key;

	o.access = access;
	o.off = off;
	o.len = len;
	assert_int_equal(gx_mem_key(own.mem, &o, &key), 0);
	return key;
}

static struct gx_region region_of(struct rig *r, const struct gx_key *key)
{
	struct gx_region region = GX_INIT(region);

	assert_int_equal(gx_conn_key(r->conn[0][0], key, &region), 0);
	return region;
}

static void post_on(struct rig *r, unsigned conn, enum gx_op_kind kind, uint64_t user,
		    uint64_t token, uint64_t off, uint64_t len)
{
	rig_post_on(r, 0, conn,
		    &(struct gx_op){.kind = kind,
				    .user = user,
				    .addr = own.buf,
				    .len = len,
				    .token = token,
				    .remote_off = off});
}

static int status_of(struct rig *r, uint64_t user)
{
	for (unsigned i = 0; i < r->nr_last[0]; i++)
		if (r->last[0][i].user == user && r->last[0][i].kind == GX_COMP_DONE) {
			assert_true(!r->last[0][i].status || !r->last[0][i].len);
			return r->last[0][i].status;
		}
	fail_msg("no completion of %u", (unsigned)user);
	return 0;
}

static int run_on(struct rig *r, unsigned conn, enum gx_op_kind kind, uint64_t token, uint64_t off,
		  uint64_t len)
{
	int status;

	rig_forget(r);
	post_on(r, conn, kind, 1, token, off, len);
	rig_comps(r, rig_node(r, 0, conn), 1, 5 * SECOND);
	status = r->last[rig_node(r, 0, conn)][0].status;
	rig_forget(r);
	return status;
}

static int run(struct rig *r, enum gx_op_kind kind, uint64_t token, uint64_t off, uint64_t len)
{
	return run_on(r, 0, kind, token, off, len);
}

static struct rig *plain(unsigned seed)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = seed}});

	own_open(r);
	return r;
}

static void done(struct rig *r)
{
	rig_done(r);
	own_close();
}

/* ---- what a key names ---- */

static void key__of_a_part(void **state)
{
	struct rig *r = plain(1);
	struct gx_key put = key_of(GX_ACCESS_PUT, PART, PART);
	struct gx_key get = key_of(GX_ACCESS_GET, PART / 2, 2 * PART); /* overlaps it */
	struct gx_region in = region_of(r, &put), out = region_of(r, &get);

	assert_int_equal(in.len, PART);
	assert_int_equal(in.addr, (uintptr_t)own.at + PART);
	assert_int_equal(in.access, GX_ACCESS_PUT);
	assert_int_equal(in.kind, GX_MEM_HOST);
	assert_int_equal(in.device, -1);
	assert_string_equal(in.name, "");
	assert_int_equal(out.len, 2 * PART);
	assert_int_equal(run(r, GX_OP_PUT, in.token, 0, PART), 0);
	assert_memory_equal(own.at + PART, own.buf, PART);
	memset(own.buf, 0, LEN);
	assert_int_equal(run(r, GX_OP_GET, out.token, 16, 2 * PART - 16), 0);
	assert_memory_equal(own.buf, own.at + PART / 2 + 16, 2 * PART - 16);
	assert_int_equal(run(r, GX_OP_GET, in.token, 0, 8), -EACCES);
	assert_int_equal(run(r, GX_OP_PUT, out.token, 0, 8), -EACCES);
	assert_int_equal(run(r, GX_OP_PUT, in.token, 1, PART), -ERANGE);
	assert_int_equal(run(r, GX_OP_GET, out.token, 2 * PART, 1), -ERANGE);
	done(r);
}

/* From .off to the end, and to one who has no connection yet. */
static void key__of_the_rest(void **state)
{
	struct rig *r = plain(1);
	struct gx_key key = key_of(GX_ACCESS_GET, LEN - 100, 0);

	rig_reconnect(r);
	assert_int_equal(region_of(r, &key).len, 100);
	assert_int_equal(run(r, GX_OP_GET, region_of(r, &key).token, 0, 100), 0);
	assert_memory_equal(own.buf, own.at + LEN - 100, 100);
	done(r);
}

static void key__for_one_connection(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}, .nr_conns = 2});
	struct gx_key_opts o = GX_INIT(o);
	struct gx_key key;

	own_open(r);
	o.access = GX_ACCESS_GET | GX_ACCESS_PUT;
	o.conn = r->conn[1][1];
	assert_int_equal(gx_mem_key(own.mem, &o, &key), 0);
	assert_int_equal(run_on(r, 1, GX_OP_GET, region_of(r, &key).token, 0, 8), 0);
	assert_int_equal(run_on(r, 0, GX_OP_GET, region_of(r, &key).token, 0, 8), -EACCES);
	assert_int_equal(run_on(r, 0, GX_OP_PUT, region_of(r, &key).token, 0, 8), -EACCES);
	o.conn = r->conn[0][0];
	assert_int_equal(gx_mem_key(own.mem, &o, &key), -EINVAL);
	done(r);
}

static void key__bad_options(void **state)
{
	struct rig *r = plain(1);
	struct gx_key_opts o = GX_INIT(o);
	struct gx_key key;

	assert_int_equal(gx_mem_key(own.mem, &o, &key), -EINVAL);
	assert_int_equal(gx_mem_key(own.mem, NULL, &key), -EINVAL);
	o.access = 4;
	assert_int_equal(gx_mem_key(own.mem, &o, &key), -EINVAL);
	o.access = GX_ACCESS_GET;
	o.off = LEN + 1;
	assert_int_equal(gx_mem_key(own.mem, &o, &key), -ERANGE);
	o.off = 1;
	o.len = LEN;
	assert_int_equal(gx_mem_key(own.mem, &o, &key), -ERANGE);
	o.len = UINT64_MAX;
	assert_int_equal(gx_mem_key(own.mem, &o, &key), -ERANGE);
	o.len = 1;
	o.conn = r->conn[0][0];
	assert_int_equal(gx_mem_key(own.mem, &o, &key), -EINVAL);
	assert_non_null(strstr(gx_error(), "another context"));
	o.conn = NULL;
	assert_int_equal(gx_mem_free(own.mem), 0);
	o.off = o.len = 0;
	assert_int_equal(gx_mem_key(own.mem, &o, &key), -EINVAL);
	done(r);
}

/* Any changed byte is seen, at both ends, and so is a key of somebody else. */
static void key__bad_bytes(void **state)
{
	struct rig *r = plain(1);
	struct gx_key key = key_of(GX_ACCESS_GET, 0, 0), bad;
	struct gx_region region = GX_INIT(region);

	for (unsigned i = 0; i < sizeof(key.bytes); i++) {
		bad = key;
		bad.bytes[i] ^= 1u << i % 8;
		assert_int_equal(gx_conn_key(r->conn[0][0], &bad, &region), -EINVAL);
		assert_int_equal(gx_key_withdraw(r->gx[1], &bad), -EINVAL);
	}
	assert_int_equal(gx_conn_key(r->conn[1][0], &key, &region), -EXDEV);
	assert_int_equal(gx_key_withdraw(r->gx[0], &key), -EXDEV);
	assert_int_equal(gx_key_withdraw(r->gx[1], &key), 0);
	assert_int_equal(gx_key_withdraw(r->gx[1], &key), -ESTALE);
	done(r);
}

/* ---- the end of a key ---- */

static void withdraw__later_ones_are_stale(void **state)
{
	struct rig *r = plain(1);
	struct gx_key a = key_of(GX_ACCESS_GET | GX_ACCESS_PUT, 0, 0);
	struct gx_key b = key_of(GX_ACCESS_GET, 0, 0);
	uint64_t token = region_of(r, &a).token;

	assert_int_equal(gx_key_withdraw(r->gx[1], &a), 0);
	for (uint64_t len = 0; len <= LEN; len = len ? len * 32 : 1) {
		memset(own.buf, NEXT, LEN);
		assert_int_equal(run(r, GX_OP_GET, token, 0, len), -ESTALE);
		assert_int_equal(run(r, GX_OP_PUT, token, 0, len), -ESTALE);
		for (unsigned i = 0; i < LEN; i++)
			assert_int_equal(own.buf[i], NEXT);
	}
	assert_int_equal(run(r, GX_OP_GET, region_of(r, &b).token, 0, LEN), 0);
	assert_memory_equal(own.buf, own.at, LEN);
	done(r);
}

/* The place of a key serves the next one; the token does not. */
static void withdraw__places_are_used_again(void **state)
{
	struct rig *r = plain(1);
	struct gx_key first = key_of(GX_ACCESS_GET, 0, 0);
	uint64_t token = region_of(r, &first).token, place;
	struct gx_key key;

	assert_int_equal(gx_key_withdraw(r->gx[1], &first), 0);
	for (unsigned i = 1; i < GX_KEYS_MAX - GX_REGIONS_MAX; i++) {
		key = key_of(GX_ACCESS_GET, 0, 0);
		place = region_of(r, &key).token & CORE_TOKEN_INDEX;
		assert_true(place >= GX_REGIONS_MAX && place != (token & CORE_TOKEN_INDEX));
		assert_int_equal(gx_key_withdraw(r->gx[1], &key), 0);
	}
	key = key_of(GX_ACCESS_GET, 0, 0);
	assert_int_equal(region_of(r, &key).token & CORE_TOKEN_INDEX, token & CORE_TOKEN_INDEX);
	assert_int_equal(run(r, GX_OP_GET, token, 0, 8), -ESTALE);
	assert_int_equal(run(r, GX_OP_GET, region_of(r, &key).token, 0, 8), 0);
	assert_int_equal(r->gx[1]->nr_keys, 1);
	done(r);
}

static void withdraw__all_with_their_memory(void **state)
{
	unsigned all = GX_KEYS_MAX - GX_REGIONS_MAX;
	struct rig *r = plain(1);
	struct gx_key_opts o = GX_INIT(o);
	struct gx_key key, last;

	for (unsigned i = 0; i < all; i++)
		last = key_of(GX_ACCESS_GET, i, 1);
	o.access = GX_ACCESS_GET;
	assert_int_equal(gx_mem_key(own.mem, &o, &key), -ENOSPC);
	assert_int_equal(run(r, GX_OP_GET, region_of(r, &last).token, 0, 1), 0);
	assert_int_equal(own.buf[0], own.at[all - 1]);
	assert_int_equal(gx_mem_free(own.mem), 0);
	assert_int_equal(r->gx[1]->nr_keys, 0);
	assert_null(r->gx[1]->dying);
	assert_int_equal(run(r, GX_OP_GET, region_of(r, &last).token, 0, 1), -ESTALE);
	assert_int_equal(gx_key_withdraw(r->gx[1], &last), -ESTALE);
	done(r);
}

/* The part has another owner, who sees nobody else's bytes, and nobody sees his. */
static void next_owner(struct rig *r)
{
	memset(own.at, NEXT, PART);
	assert_int_equal(mprotect(own.at, PART, PROT_NONE), 0);
	rig_pass(r, 100 * MS);
	assert_int_equal(mprotect(own.at, PART, PROT_READ), 0);
	for (unsigned i = 0; i < PART; i++)
		assert_int_equal(own.at[i], NEXT);
}

/* No message or operation of an endpoint knows the handle of a part that is gone. */
static void part_forgotten(struct rig *r, const struct gx_mem *part)
{
	const struct pkt_ep *e = rig_ep(r, 1, 0);

	for (unsigned i = 0; i < GX_WIRE_MIDS; i++)
		assert_true(e->in[i].state == IN_FREE || e->in[i].mem != part);
	for (unsigned i = 0; i < e->tx.ops_top; i++)
		assert_true(e->ops[i].state == OP_FREE || e->ops[i].mem != part);
}

/* At moment @k of 20 operations on one part. Those on another part go on. */
static void withdraw_at(unsigned k, enum gx_op_kind kind, uint32_t loss_ppm, unsigned *stale)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = k, .loss_ppm = loss_ppm}});
	unsigned access = kind == GX_OP_PUT ? GX_ACCESS_PUT : GX_ACCESS_GET;
	const struct gx_mem *part;
	struct gx_key key, other;
	uint8_t was[PART / 20];

	own_open(r);
	memcpy(was, own.at, sizeof(was));
	key = key_of(access, 0, PART);
	other = key_of(access, PART, PART);
	for (unsigned i = 0; i < 20; i++)
		rig_post(r, 0,
			 &(struct gx_op){.kind = kind,
					 .user = i,
					 .addr = own.buf + i * (PART / 20),
					 .len = PART / 20,
					 .token = region_of(r, i == 19 ? &other : &key).token});
	rig_pass(r, k * k * 400ull);
	part = core_region_at(r->gx[1], region_of(r, &key).token);
	assert_int_equal(gx_key_withdraw(r->gx[1], &key), 0);
	part_forgotten(r, part);
	next_owner(r);
	rig_comps(r, 0, 20, 5 * SECOND);
	for (unsigned i = 0; i < 19; i++) {
		int status = status_of(r, i);

		assert_true(!status || status == -ESTALE || status == -ECANCELED);
		*stale += status == -ESTALE;
		if (kind == GX_OP_GET && !status)
			assert_memory_equal(own.buf + i * (PART / 20), was, PART / 20);
	}
	assert_int_equal(status_of(r, 19), 0);
	rig_set(r, &(struct sim_cfg){0});
	done(r);
}

static void withdraw__while_peers_read(void **state)
{
	unsigned stale = 0;

	for (unsigned k = 0; k < MOMENTS; k++)
		withdraw_at(k, GX_OP_GET, k % 2 * 20000, &stale);
	assert_true(stale > MOMENTS);
}

static void withdraw__while_peers_write(void **state)
{
	unsigned stale = 0;

	for (unsigned k = 0; k < MOMENTS; k++)
		withdraw_at(k, GX_OP_PUT, k % 2 * 20000, &stale);
	assert_true(stale > MOMENTS);
}

/* ---- many seeds ---- */

#define PLACES	  4  /* of PART bytes, a key each; the last one is leased */
#define SEED_OPS  48 /* of a seed */
#define SEED_SEGS 3
#define SEED_B	  (LEN / SEED_OPS / 192 * 192) /* of an operation, at most: SEED_SEGS parts */
#define WRITTEN	  0x80000000u /* in each word of a put, with the number of the key */

/* Each word of a place is the number of its key, or what a peer has put there by that key. */
static struct {
	struct rig *r;
	struct {
		struct gx_key key;
		uint64_t token, until_ns;
		uint32_t number;
	} place[PLACES];
	struct {
		enum gx_op_kind kind;
		uint32_t number, len;
	} op[SEED_OPS];
	unsigned seed, keys, done, good, stale;
} seeds;

static uint32_t *place_at(unsigned p)
{
	return (uint32_t *)(own.at + p * PART);
}

static void place_fill(unsigned p, uint32_t word)
{
	for (unsigned i = 0; i < PART / 4; i++)
		place_at(p)[i] = word;
}

static void place_share(unsigned p)
{
	struct gx_key_opts o = GX_INIT(o);

	seeds.place[p].number = p << 24 | ++seeds.keys;
	place_fill(p, seeds.place[p].number);
	o.access = GX_ACCESS_GET | (p < PLACES - 1 ? GX_ACCESS_PUT : 0);
	o.off = p * PART;
	o.len = PART;
	o.until_ns = p < PLACES - 1 ? 0 : seeds.r->now_ns + rig_random(seeds.r) % 300000;
	seeds.place[p].until_ns = o.until_ns;
	assert_int_equal(gx_mem_key(own.mem, &o, &seeds.place[p].key), 0);
	seeds.place[p].token = region_of(seeds.r, &seeds.place[p].key).token;
}

/* The next owner has the place for a while; nobody writes there meanwhile, and nobody reads it. */
static void place_next_owner(unsigned p)
{
	if (!seeds.place[p].until_ns || rig_random(seeds.r) % 2)
		assert_int_equal(gx_key_withdraw(seeds.r->gx[1], &seeds.place[p].key), 0);
	else if (seeds.r->now_ns < seeds.place[p].until_ns)
		rig_pass(seeds.r, seeds.place[p].until_ns - seeds.r->now_ns);
	place_fill(p, NEXT);
	rig_pass(seeds.r, rig_random(seeds.r) % 100000);
	for (unsigned i = 0; i < PART / 4; i++)
		assert_int_equal(place_at(p)[i], NEXT);
	gx_key_withdraw(seeds.r->gx[1], &seeds.place[p].key);
	place_share(p);
}

/* One operation, or a list of parts of one place. */
static void seed_post(unsigned i)
{
	unsigned p = rig_random(seeds.r) % PLACES, list = rig_random(seeds.r) % 3;
	uint32_t *at = (uint32_t *)(own.buf + i * SEED_B), word = seeds.place[p].number;
	struct gx_op op = {.kind = GX_OP_GET, .user = i, .addr = at};
	struct gx_seg segs[SEED_SEGS];

	if (p < PLACES - 1 && rig_random(seeds.r) % 2) {
		op.kind = GX_OP_PUT;
		word |= WRITTEN;
	}
	op.len = 4 + rig_random(seeds.r) % (SEED_B / SEED_SEGS / 4) * 4;
	op.token = seeds.place[p].token;
	op.remote_off = rig_random(seeds.r) % (PART - SEED_B) / 4 * 4;
	for (unsigned k = 0; k < SEED_SEGS; k++)
		segs[k] = (struct gx_seg){.off = (uintptr_t)at + k * op.len,
					  .token = op.token,
					  .remote_off = (op.remote_off + k * 5 * op.len) %
							(PART - SEED_B),
					  .len = op.len};
	seeds.op[i].kind = op.kind;
	seeds.op[i].number = seeds.place[p].number;
	seeds.op[i].len = (uint32_t)op.len;
	if (!list) {
		op.segs = segs;
		op.nr_segs = SEED_SEGS;
		seeds.op[i].len *= SEED_SEGS;
	}
	for (unsigned k = 0; k < seeds.op[i].len / 4; k++)
		at[k] = word;
	rig_post_on(seeds.r, 0, rig_random(seeds.r) % seeds.r->nr_conns, &op);
}

static void seed_comp(void *arg, int node, const struct gx_comp *comp)
{
	const uint32_t *at = (const uint32_t *)(own.buf + comp->user * SEED_B);

	assert_int_equal(comp->kind, GX_COMP_DONE);
	/* A get that the owner has begun to serve is cancelled. */
	if (comp->status && comp->status != -ESTALE &&
	    (comp->status != -ECANCELED || seeds.op[comp->user].kind != GX_OP_GET))
		fail_msg("operation %u, a %s, ended with %d", (unsigned)comp->user,
			 seeds.op[comp->user].kind == GX_OP_GET ? "get" : "put", comp->status);
	seeds.good += !comp->status;
	seeds.stale += comp->status == -ESTALE;
	seeds.done++;
	for (unsigned k = 0; !comp->status && k < seeds.op[comp->user].len / 4; k++)
		if ((at[k] & ~WRITTEN) != seeds.op[comp->user].number)
			fail_msg("seed %u: operation %u: word %u is %#x, by key %#x", seeds.seed,
				 (unsigned)comp->user, k, at[k], seeds.op[comp->user].number);
}

static bool seed_done(struct rig *r)
{
	return seeds.done == SEED_OPS;
}

static void seed_run(unsigned seed)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = seed,
							   .loss_ppm = seed % 4 * 10000,
							   .dup_ppm = seed % 3 * 20000,
							   .reorder_ppm = seed % 5 * 20000,
							   .reorder_slots = 8},
						   .nr_conns = 1 + seed % 3,
						   .mem_b = 4096});

	own_open(r);
	seeds.r = r;
	seeds.seed = seed;
	seeds.done = 0;
	r->on_comp = seed_comp;
	for (unsigned p = 0; p < PLACES; p++)
		place_share(p);
	for (unsigned i = 0; i < SEED_OPS; i++) {
		seed_post(i);
		if (rig_random(r) % 2)
			rig_pass(r, rig_random(r) % 40000);
		if (!(rig_random(r) % 8))
			place_next_owner(rig_random(r) % PLACES);
	}
	if (!rig_until(r, seed_done, 5 * SECOND))
		fail_msg("seed %u: %u operations ended", seed, seeds.done);
	rig_set(r, &(struct sim_cfg){0});
	done(r);
}

/* GX_TEST_FULL=1: 10,000 of them. */
static void withdraw__seeds(void **state)
{
	unsigned n = common_seeds(20, 10000);

	memset(&seeds, 0, sizeof(seeds));
	for (unsigned seed = 0; seed < n; seed++)
		seed_run(seed);
	print_message("%u seeds: %u operations good, %u stale\n", n, seeds.good, seeds.stale);
	assert_true(seeds.good > 4 * n && seeds.stale > 4 * n);
}

/* ---- leases ---- */

static struct gx_region lease_of(struct rig *r, unsigned access, uint64_t until_ns)
{
	struct gx_key_opts o = GX_INIT(o);
	struct gx_key key;

	o.access = access;
	o.until_ns = until_ns;
	assert_int_equal(gx_mem_key(own.mem, &o, &key), 0);
	return region_of(r, &key);
}

static void lease__ends(void **state)
{
	struct rig *r = plain(1);
	uint64_t until_ns = r->now_ns + 100 * MS;
	uint64_t token = lease_of(r, GX_ACCESS_GET | GX_ACCESS_PUT, until_ns).token;

	assert_int_equal(run(r, GX_OP_PUT, token, 0, LEN), 0);
	assert_int_equal(run(r, GX_OP_GET, token, 0, LEN), 0);
	assert_memory_equal(own.buf, own.at, LEN);
	assert_true(r->now_ns < until_ns);
	rig_pass(r, until_ns - r->now_ns);
	assert_int_equal(run(r, GX_OP_GET, token, 0, 8), -ESTALE);
	assert_int_equal(run(r, GX_OP_PUT, token, 0, 8), -ESTALE);
	done(r);
}

/* 10 gets of @len bytes each. At the end of the lease the next owner writes. */
static void lease_at(unsigned k, uint64_t len, uint32_t loss_ppm, unsigned nr[2])
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = k, .loss_ppm = loss_ppm}});
	uint64_t lease_ns = 20000 + k * k * 500ull;
	uint8_t *was = malloc(len);
	uint64_t token;

	own_open(r);
	assert_non_null(was);
	memcpy(was, own.at, len);
	token = lease_of(r, GX_ACCESS_GET, r->now_ns + lease_ns).token;
	for (unsigned i = 0; i < 10; i++)
		rig_post(r, 0,
			 &(struct gx_op){.kind = GX_OP_GET,
					 .user = i,
					 .addr = own.buf + i * len,
					 .len = len,
					 .token = token});
	rig_pass(r, lease_ns);
	memset(own.at, NEXT, LEN);
	rig_comps(r, 0, 10, 5 * SECOND);
	for (unsigned i = 0; i < 10; i++) {
		int status = status_of(r, i);

		assert_true(!status || status == -ESTALE);
		nr[!status]++;
		if (!status)
			assert_memory_equal(own.buf + i * len, was, len);
	}
	rig_set(r, &(struct sim_cfg){0});
	rig_done(r);
	own_close();
	free(was);
}

static void lease__ends_while_peers_read(void **state)
{
	static const uint64_t len[] = {8, 1000, LEN / 10};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(len); i++) {
		unsigned nr[2] = {0, 0};

		for (unsigned k = 0; k < MOMENTS; k++)
			lease_at(k, len[i], k % 3 * 10000, nr);
		assert_true(nr[0] > 4 && nr[1] > 4);
	}
}

/* Cancelled, late, or its own memory freed, between the bytes and the word. */
static void lease__gets_end_early(void **state)
{
	unsigned early = 0;

	for (unsigned k = 0; k < 2 * MOMENTS; k++) {
		struct rig *r = plain(k);
		uint64_t token = lease_of(r, GX_ACCESS_GET, r->now_ns + SECOND).token;

		rig_post(r, 0,
			 &(struct gx_op){.kind = GX_OP_GET,
					 .user = 1,
					 .addr = own.buf,
					 .len = 1000,
					 .token = token,
					 .deadline_ns = k % 2 ? r->now_ns + k * 4000ull : 0});
		rig_pass(r, k * 4000ull);
		if (!(k % 2))
			gx_cancel(gx_core_queue(r->core[0]), r->ep[0][0], 1);
		rig_comps(r, 0, 1, SECOND);
		early += status_of(r, 1) != 0;
		done(r);
	}
	assert_true(early > 4 && early < 2 * MOMENTS - 4);
}

/* The key is withdrawn between the bytes and the word: the get ends, too. */
static void lease__withdrawn_while_peers_read(void **state)
{
	unsigned early = 0;

	for (unsigned k = 0; k < 2 * MOMENTS; k++) {
		struct rig *r = plain(k);
		struct gx_key_opts o = GX_INIT(o);
		struct gx_key key;

		o.access = GX_ACCESS_GET;
		o.until_ns = r->now_ns + SECOND;
		assert_int_equal(gx_mem_key(own.mem, &o, &key), 0);
		post_on(r, 0, GX_OP_GET, 1, region_of(r, &key).token, 0, 1000);
		rig_pass(r, k * 4000ull);
		assert_int_equal(gx_key_withdraw(r->gx[1], &key), 0);
		rig_comps(r, 0, 1, SECOND);
		early += status_of(r, 1) != 0;
		done(r);
	}
	assert_true(early > 4 && early < 2 * MOMENTS - 4);
}

/* An owner that says "it held" before there are any bytes. */
static void lease__word_without_bytes(void **state)
{
	struct rig *r = plain(1);
	struct gx_key key = key_of(GX_ACCESS_GET, 0, 0);
	struct pkt_ep *e = rig_ep(r, 0, 0);
	struct gx_wire_rec word = {.type = GX_REC_FAIL, .flags = GX_REC_SLOT};

	post_on(r, 0, GX_OP_GET, 1, region_of(r, &key).token, 0, LEN);
	for (unsigned i = 0; i < e->tx.ops_top; i++)
		if (e->ops[i].state != OP_FREE && e->ops[i].kind == GX_OP_GET)
			word.fail.id = slot_token(e, e->ops[i].slot);
	assert_true(word.fail.id && rec_add(rig_ep(r, 1, 0), &word, PKT_NONE));
	rig_pass(r, 100000);
	assert_int_equal(atomic_load(&e->ep.fault), -EPROTO);
	rig_close(r);
	own_close();
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(key__of_a_part),
		rig_test(key__of_the_rest),
		rig_test(key__for_one_connection),
		rig_test(key__bad_options),
		rig_test(key__bad_bytes),
		rig_test(withdraw__later_ones_are_stale),
		rig_test(withdraw__places_are_used_again),
		rig_test(withdraw__all_with_their_memory),
		rig_test(withdraw__while_peers_read),
		rig_test(withdraw__while_peers_write),
		rig_test(withdraw__seeds),
		rig_test(lease__ends),
		rig_test(lease__ends_while_peers_read),
		rig_test(lease__gets_end_early),
		rig_test(lease__withdrawn_while_peers_read),
		rig_test(lease__word_without_bytes),
	};

	return rig_run("key", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
