/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of segments, in virtual time, on the queue of a core and on others. After each case nothing
 * may be out at either end.
 */
#include "sim/sim_rig.h"

#include "submit/queue.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define SEGS  3000
#define BLOCK 512u

static uint8_t src[SEGS * BLOCK], dst[SEGS * BLOCK];
static struct gx_seg segs[SEGS];
static struct gx_queue *queue; /* NULL: the core's */

/* Backwards there, so that none is a neighbour. */
static void segs_fill(struct rig *r)
{
	for (unsigned i = 0; i < SEGS; i++)
		segs[i] = (struct gx_seg){.off = (uintptr_t)src + i * BLOCK,
					  .token = r->peer[0].token,
					  .remote_off = (SEGS - 1 - i) * BLOCK,
					  .len = BLOCK};
}

static struct rig *list_rig(bool other)
{
	struct gx_queue_opts opts = GX_INIT(opts);
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}, .mem_b = 4 << 20});

	queue = NULL;
	if (other)
		assert_int_equal(gx_queue_open(r->gx[0], &opts, &queue), 0);
	rig_fill(src, sizeof(src), 7);
	memset(dst, RIG_POISON, sizeof(dst));
	segs_fill(r);
	return r;
}

static struct gx_queue *queue_of(struct rig *r)
{
	return queue ? queue : gx_core_queue(r->core[0]);
}

static struct gx_op put_of(unsigned flags, unsigned n)
{
	return (struct gx_op){
		.kind = GX_OP_PUT, .flags = flags, .user = 5, .segs = segs, .nr_segs = n};
}

static int post(struct rig *r, const struct gx_op *op)
{
	return gx_post(queue_of(r), r->ep[0][0], op, 1);
}

static struct gx_comp comp_next(struct rig *r)
{
	uint64_t end = r->now_ns + SECOND;
	struct gx_comp comp;

	if (!queue) {
		rig_comps(r, 0, 1, SECOND);
		comp = r->last[0][0];
		rig_forget(r);
		return comp;
	}
	while (!gx_poll(queue, &comp, 1)) {
		assert_true(r->now_ns < end);
		rig_turn(r);
	}
	return comp;
}

static struct gx_comp comp_got;

static bool comp_came(struct rig *r)
{
	if (queue)
		return gx_poll(queue, &comp_got, 1);
	if (!r->nr_last[0])
		return false;
	comp_got = r->last[0][0];
	memmove(r->last[0], r->last[0] + 1, --r->nr_last[0] * sizeof(comp_got));
	return true;
}

/* The control thread has a part in it. */
static struct gx_comp comp_real(struct rig *r)
{
	rig_wait_real(r, comp_came);
	return comp_got;
}

static void expect(struct rig *r, int status, uint64_t len)
{
	struct gx_comp comp = comp_next(r);

	assert_int_equal(comp.kind, GX_COMP_DONE);
	assert_int_equal(comp.status, status);
	assert_int_equal(comp.user, 5);
	assert_int_equal(comp.len, len);
}

static void list_done(struct rig *r)
{
	rig_pass(r, 5 * MS);
	assert_int_equal(r->nr_last[0], 0);
	for (unsigned i = 0; gx_queue_close(queue); i++) {
		assert_true(i < 10000);
		rig_turn(r);
	}
	rig_done(r);
}

static void blocks_check(struct rig *r)
{
	for (unsigned i = 0; i < SEGS; i++)
		assert_memory_equal(rig_mem(r, 1) + segs[i].remote_off, src + i * BLOCK, BLOCK);
}

static void put_all(bool other)
{
	struct rig *r = list_rig(other);
	struct gx_op op = put_of(0, SEGS);

	assert_int_equal(post(r, &op), 1);
	memset(segs, 0, sizeof(segs)); /* read during the post alone */
	expect(r, 0, sizeof(src));
	for (unsigned i = 0; i < SEGS; i++)
		assert_memory_equal(rig_mem(r, 1) + (SEGS - 1 - i) * BLOCK, src + i * BLOCK, BLOCK);
	list_done(r);
}

static void list__put_core(void **state)
{
	put_all(false);
}

static void list__put_queue(void **state)
{
	put_all(true);
}

/* A prepared list is under way twice, and closed. Singles pass it. */
static void list__prepared(void **state)
{
	struct rig *r = list_rig(true);
	struct gx_op op = {.kind = GX_OP_PUT, .user = 5};
	struct gx_op one = {.kind = GX_OP_PUT,
			    .user = 6,
			    .addr = src,
			    .len = 8,
			    .token = r->peer[0].token,
			    .remote_off = 3 << 20};
	struct gx_list *list;

	assert_int_equal(gx_list_open(r->gx[0], segs, SEGS, &list), 0);
	op.list = list;
	assert_int_equal(post(r, &op), 1);
	assert_int_equal(post(r, &op), 1);
	assert_int_equal(post(r, &one), 1);
	gx_list_close(list);
	assert_int_equal(comp_next(r).user, 6);
	expect(r, 0, sizeof(src));
	expect(r, 0, sizeof(src));
	blocks_check(r);
	list_done(r);
}

static void list__get(void **state)
{
	struct rig *r = list_rig(false);
	struct gx_op op = put_of(0, SEGS);

	memcpy(rig_mem(r, 1), src, sizeof(src));
	for (unsigned i = 0; i < SEGS; i++)
		segs[i].off = (uintptr_t)dst + segs[i].remote_off;
	op.kind = GX_OP_GET;
	assert_int_equal(post(r, &op), 1);
	expect(r, 0, sizeof(dst));
	assert_memory_equal(dst, src, sizeof(dst));
	list_done(r);
}

/* The immediate comes behind all bytes. */
static void list__imm(void **state)
{
	struct rig *r = list_rig(false);
	struct gx_op op = put_of(GX_OP_IMM, SEGS);

	op.imm = 77;
	assert_int_equal(post(r, &op), 1);
	rig_comps(r, 1, 1, SECOND);
	assert_int_equal(r->last[1][0].kind, GX_COMP_NOTIFY);
	assert_int_equal(r->last[1][0].imm, 77);
	blocks_check(r);
	rig_comps(r, 0, 1, SECOND);
	rig_forget(r);
	list_done(r);
}

/* Neighbours merge: the whole is one put. */
static void list__neighbours(void **state)
{
	struct rig *r = list_rig(false);
	struct gx_op op = put_of(0, SEGS);
	uint64_t before = rig_stat(r, 0, "msgs_tx");

	for (unsigned i = 0; i < SEGS; i++)
		segs[i].remote_off = i * BLOCK;
	assert_int_equal(post(r, &op), 1);
	expect(r, 0, sizeof(src));
	blocks_check(r);
	assert_true(rig_stat(r, 0, "msgs_tx") - before <= 1);
	list_done(r);
}

static void fails(bool other)
{
	struct rig *r = list_rig(other);
	struct gx_op op = put_of(GX_OP_SILENT | GX_OP_IMM, SEGS);
	struct gx_comp comp;

	segs[1234].remote_off = 1ull << 40;
	assert_int_equal(post(r, &op), 1);
	comp = comp_next(r);
	assert_int_equal(comp.status, -ERANGE);
	assert_int_equal(comp.seg, 1234);
	rig_pass(r, MS);
	assert_int_equal(r->nr_last[1], 0); /* no immediate */
	list_done(r);
}

static void list__first_error(void **state)
{
	fails(false);
	fails(true);
}

static void cancels(bool other)
{
	struct rig *r = list_rig(other);
	struct gx_op op = put_of(GX_OP_IMM, SEGS);

	assert_int_equal(post(r, &op), 1);
	rig_turn(r);
	assert_int_equal(gx_cancel(queue_of(r), r->ep[0][0], 5), 1);
	expect(r, -ECANCELED, 0);
	list_done(r);
}

static void list__cancel(void **state)
{
	cancels(false);
	cancels(true);
}

static void list__deadline(void **state)
{
	struct rig *r = list_rig(false);
	struct gx_op op = put_of(0, SEGS);

	r->still[1] = true;
	op.deadline_ns = r->now_ns + MS;
	assert_int_equal(post(r, &op), 1);
	expect(r, -ETIMEDOUT, 0);
	r->still[1] = false;
	list_done(r);
}

static void segs_alone(struct rig *r);

static void list__mem_free(void **state)
{
	struct rig *r = list_rig(false);
	struct gx_op op = put_of(0, SEGS);
	struct gx_mem *mem;

	assert_int_equal(gx_mem_alloc(r->gx[0], GX_MEM_HOST, 0, BLOCK, &mem), 0);
	segs[SEGS - 1].mem = mem;
	segs[SEGS - 1].off = 0;
	assert_int_equal(post(r, &op), 1);
	assert_int_equal(gx_mem_free(mem), 0);
	expect(r, -ECANCELED, 0);
	list_done(r);
}

/* The memory of the one segment that comes next is freed. The pages stay: a use of them is seen by what
 * the list says, and does not end the test. */
static void list__mem_free_of_next(void **state)
{
	struct rig *r = list_rig(false);
	struct gx_op op = put_of(0, SEGS);
	static uint8_t pages[BLOCK];
	struct gx_mem *mem;
	unsigned at;

	segs_alone(r);
	r->still[1] = true;
	assert_int_equal(post(r, &op), 1);
	for (unsigned i = 0; i < 50; i++)
		rig_turn(r);
	at = r->ep[0][0]->list_puts; /* what the link takes of a list */
	assert_in_range(at, 1, SEGS - 2);
	r->still[1] = false;
	expect(r, 0, sizeof(src));
	assert_int_equal(gx_mem_reg(r->gx[0], GX_MEM_HOST, 0, pages, BLOCK, &mem), 0);
	segs[at].mem = mem;
	segs[at].off = 0;
	r->still[1] = true;
	assert_int_equal(post(r, &op), 1);
	for (unsigned i = 0; i < 50; i++)
		rig_turn(r);
	assert_int_equal(r->ep[0][0]->list_puts, at);
	assert_int_equal(gx_mem_free(mem), 0);
	rig_turn(r);
	r->still[1] = false;
	expect(r, -ECANCELED, 0);
	list_done(r);
}

/* The queue ends with lists under way, and one whose completion nobody took. */
static void list__queue_close(void **state)
{
	struct rig *r = list_rig(true);
	struct gx_op op = put_of(0, 1);

	assert_int_equal(post(r, &op), 1);
	rig_pass(r, MS);
	op.nr_segs = SEGS;
	assert_int_equal(post(r, &op), 1);
	rig_turn(r);
	list_done(r);
}

static void list__bad(void **state)
{
	struct rig *r = list_rig(false);
	struct gx_op op = put_of(0, SEGS);
	struct gx_list *list;

	op.kind = GX_OP_SEND;
	assert_int_equal(post(r, &op), -EINVAL);
	op = put_of(0, GX_SEGS_MAX + 1);
	assert_int_equal(post(r, &op), -EINVAL);
	op = put_of(0, 2);
	op.segs = NULL;
	assert_int_equal(post(r, &op), -EINVAL);
	op = put_of(0, 2);
	segs[1].len = 1ull << 36; /* with the other one beyond 64 GiB */
	assert_int_equal(post(r, &op), -EINVAL);
	segs[1] = (struct gx_seg){.mem = r->mem[0], .off = r->mem[0]->len, .len = 1};
	assert_int_equal(post(r, &op), -EINVAL);
	assert_non_null(strstr(gx_error(), "segment 1"));
	segs[1] = (struct gx_seg){.len = 1};
	assert_int_equal(post(r, &op), -EINVAL);
	assert_int_equal(gx_list_open(r->gx[0], segs, 0, &list), -EINVAL);
	gx_list_close(NULL);
	segs[0] = (struct gx_seg){.off = (uintptr_t)src, .len = 8};
	op = (struct gx_op){.kind = GX_OP_PUT};
	assert_int_equal(gx_list_open(r->gx[1], segs, 1, &op.list), 0);
	assert_int_equal(post(r, &op), -EINVAL);
	assert_non_null(strstr(gx_error(), "another context"));
	gx_list_close(op.list);
	list_done(r);
}

/* A get may not write memory that this process may only read; a put may read it. */
static void list__read_only(void **state)
{
	struct rig *r = list_rig(false);
	char *at = mmap(NULL, BLOCK, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct gx_op op = put_of(0, 1);
	struct gx_mem *mem;

	assert_true(at != MAP_FAILED);
	assert_int_equal(gx_mem_reg(r->gx[0], GX_MEM_HOST, 0, at, BLOCK, &mem), 0);
	segs[0].mem = mem;
	segs[0].off = 0;
	op.kind = GX_OP_GET;
	assert_int_equal(post(r, &op), -EFAULT);
	assert_non_null(strstr(gx_error(), "cannot be written"));
	op.kind = GX_OP_PUT;
	assert_int_equal(post(r, &op), 1);
	expect(r, 0, segs[0].len);
	assert_int_equal(gx_mem_free(mem), 0);
	list_done(r);
	munmap(at, BLOCK);
}

/* A prepared list whose memory was freed, and after that has become other memory. */
static void list__prepared_dead(void **state)
{
	struct rig *r = list_rig(false);
	struct gx_op op = {.kind = GX_OP_PUT, .user = 5};
	struct gx_mem *mem, *other;
	unsigned i;

	assert_int_equal(gx_mem_reg(r->gx[0], GX_MEM_HOST, 0, src + BLOCK, BLOCK, &mem), 0);
	segs[1].mem = mem;
	segs[1].off = 0;
	assert_int_equal(gx_list_open(r->gx[0], segs, 3, &op.list), 0);
	assert_int_equal(post(r, &op), 1);
	expect(r, 0, 3 * BLOCK);
	assert_int_equal(gx_mem_free(mem), 0);
	assert_int_equal(post(r, &op), -EINVAL);
	assert_non_null(strstr(gx_error(), "freed"));
	for (i = 0; i < 2000; i++) {
		assert_int_equal(gx_mem_reg(r->gx[0], GX_MEM_HOST, 0, src, BLOCK, &other), 0);
		if (other == mem)
			break;
		assert_int_equal(gx_mem_free(other), 0);
	}
	assert_ptr_equal(other, mem);
	assert_int_equal(post(r, &op), -EINVAL);
	gx_list_close(op.list);
	list_done(r);
}

/* Each is of another memory than the one before, so no two of them are one part. */
static void segs_alone(struct rig *r)
{
	memcpy(rig_mem(r, 0), src, sizeof(src));
	for (unsigned i = 0; i < SEGS; i += 2) {
		segs[i].mem = r->mem[0];
		segs[i].off = i * BLOCK;
	}
}

/* Puts that get nowhere leave gets their share. */
static void list__gets_beside_puts(void **state)
{
	struct rig *r = list_rig(false);
	struct gx_op op = put_of(0, SEGS);
	struct gx_ep *ep = r->ep[0][0];

	segs_alone(r);
	r->still[1] = true;
	assert_int_equal(post(r, &op), 1);
	for (unsigned i = 0; i < 8; i++)
		rig_turn(r);
	assert_int_equal(ep->list_puts, (ep->ops->room.ops - ep->ops->room.gets) / 2);
	op.kind = GX_OP_GET;
	assert_int_equal(post(r, &op), 1);
	rig_turn(r);
	assert_int_equal(ep->list_gets, ep->ops->room.gets / 2);
	r->still[1] = false;
	expect(r, 0, sizeof(src));
	expect(r, 0, sizeof(src));
	assert_int_equal(ep->list_puts + ep->list_gets, 0);
	list_done(r);
}

/* More parts than a core has: each list waits, and ends. */
static void list__parts_run_out(void **state)
{
	struct rig *r;
	struct gx_op op;
	unsigned out = 0;

	r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}, .mem_b = 4 << 20, .nr_conns = 16});
	queue = NULL;
	rig_fill(src, sizeof(src), 7);
	segs_fill(r);
	segs_alone(r);
	op = put_of(0, SEGS);
	r->still[1] = true;
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(gx_post(queue_of(r), r->ep[0][i], &op, 1), 1);
	for (unsigned i = 0; i < 50; i++)
		rig_turn(r);
	for (unsigned i = 0; i < 16; i++) {
		out += r->ep[0][i]->list_puts;
		assert_int_equal(r->ep[0][i]->list_runs, 1);
	}
	assert_int_equal(out, 1024 + 16 * 64); /* all the core's, and each endpoint's own */
	r->still[1] = false;
	rig_comps(r, 0, 16, 10 * SECOND);
	for (unsigned i = 0; i < 16; i++) {
		assert_int_equal(r->last[0][i].status, 0);
		assert_int_equal(r->last[0][i].len, sizeof(src));
		assert_int_equal(r->ep[0][i]->list_puts, 0);
		assert_int_equal(r->ep[0][i]->list_runs, 0); /* else the endpoint would stay */
	}
	blocks_check(r);
	rig_done(r);
}

/* The connection ends with lists under way, of which one has yet to begin. */
static void ep_fails(bool other)
{
	struct rig *r = list_rig(other);
	struct gx_op op = put_of(GX_OP_IMM, SEGS);
	struct gx_comp comp;

	r->still[1] = true;
	assert_int_equal(post(r, &op), 1);
	rig_turn(r);
	op.kind = GX_OP_GET;
	op.flags = 0;
	assert_int_equal(post(r, &op), 1);
	rig_turn(r);
	r->still[1] = false;
	gx_conn_close(r->conn[1][0]);
	r->conn[1][0] = NULL; /* ctl frees it */
	for (unsigned i = 0; i < 2; i++) {
		comp = comp_real(r);
		assert_int_equal(comp.kind, GX_COMP_DONE);
		assert_int_equal(comp.user, 5);
		assert_true(comp.status < 0);
		assert_int_equal(comp.len, 0);
		assert_in_range(comp.seg, 0, SEGS - 1);
	}
	assert_int_equal(post(r, &op), -ENOTCONN);
	rig_pass(r, MS);
	assert_int_equal(r->nr_last[0], 0);
	for (unsigned i = 0; gx_queue_close(queue); i++) {
		assert_true(i < 10000);
		rig_turn(r);
	}
	rig_close(r);
}

static void list__ep_fails(void **state)
{
	ep_fails(false);
	ep_fails(true);
}

/* A queue keeps the room of a list that was posted, and no more than four. */
static void list__room_is_kept(void **state)
{
	struct rig *r = list_rig(true);
	struct gx_list *room;

	for (unsigned i = 0; i < 8; i++) {
		struct gx_op op = put_of(0, 100 + i);

		assert_int_equal(post(r, &op), 1);
		expect(r, 0, (100 + i) * BLOCK);
		assert_int_equal(queue->lists.nr, 1);
		assert_true(!i || room == queue->lists.free);
		room = queue->lists.free;
	}
	for (unsigned n = 1; n <= 9; n++) { /* longer ones displace those */
		struct gx_op op = put_of(0, n * 300);

		for (unsigned i = 0; i < 6; i++)
			assert_int_equal(post(r, &op), 1);
		for (unsigned i = 0; i < 6; i++)
			expect(r, 0, n * 300 * BLOCK);
		assert_int_equal(queue->lists.nr, 4);
	}
	list_done(r);
}

/* ---- over the lanes of a connection ---- */

static struct rig *lanes_rig(unsigned lanes, uint64_t seed)
{
	struct gx_queue_opts opts = GX_INIT(opts);
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = seed,
							   .loss_ppm = seed ? 10000 : 0,
							   .reorder_ppm = seed ? 50000 : 0,
							   .reorder_slots = 16},
						   .nr_cores = lanes,
						   .chunk_b = 65536,
						   .mem_b = 4 << 20});

	opts.depth = 8;
	assert_int_equal(gx_queue_open(r->gx[0], &opts, &queue), 0);
	rig_fill(src, sizeof(src), 7);
	memset(dst, RIG_POISON, sizeof(dst));
	segs_fill(r);
	return r;
}

static int stripe(struct rig *r, const struct gx_op *op)
{
	return gx_post_striped(queue, r->conn[0][0], op, 1);
}

static uint64_t lane_bytes(struct rig *r, unsigned lane)
{
	uint64_t v = 0;

	assert_int_equal(gx_core_stat(gx_core(r->gx[0], lane), "tx_bytes", &v), 0);
	return v;
}

/* Each lane has its share; the immediate is the last, at the place of the last segment. */
static void striped__put(void **state)
{
	for (unsigned lanes = 1; lanes <= 4; lanes++)
		for (uint64_t seed = 0; seed < 4; seed++) {
			struct rig *r = lanes_rig(lanes, seed);
			struct gx_op op = put_of(GX_OP_IMM, SEGS);

			op.imm = 9;
			assert_int_equal(stripe(r, &op), 1);
			while (!r->nr_last[1]) {
				rig_turn(r);
				assert_false(comp_came(r));
			}
			assert_int_equal(r->last[1][0].imm, 9);
			assert_int_equal(r->last[1][0].off, segs[SEGS - 1].remote_off);
			blocks_check(r);
			expect(r, 0, sizeof(src));
			for (unsigned i = 0; i < lanes; i++)
				assert_true(lane_bytes(r, i) > sizeof(src) / lanes / 2);
			rig_set(r, &(struct sim_cfg){0});
			r->nr_last[1] = 0;
			list_done(r);
		}
}

static void striped__get(void **state)
{
	struct rig *r = lanes_rig(3, 5);
	struct gx_op op = put_of(0, SEGS);

	memcpy(rig_mem(r, 1), src, sizeof(src));
	for (unsigned i = 0; i < SEGS; i++)
		segs[i].off = (uintptr_t)dst + segs[i].remote_off;
	op.kind = GX_OP_GET;
	assert_int_equal(stripe(r, &op), 1);
	expect(r, 0, sizeof(dst));
	assert_memory_equal(dst, src, sizeof(dst));
	rig_set(r, &(struct sim_cfg){0});
	list_done(r);
}

/* Two long segments, and short ones about them: a cut lies in a long one. */
static void striped__long_segments(void **state)
{
	static const uint32_t lens[] = {100, 700001, 3, 600000, 99};

	for (unsigned lanes = 2; lanes <= 4; lanes++) {
		struct rig *r = lanes_rig(lanes, 0);
		struct gx_op op = put_of(0, GX_ARRAY_SIZE(lens));
		uint64_t at = 0;

		for (unsigned i = 0; i < GX_ARRAY_SIZE(lens); i++) {
			segs[i] = (struct gx_seg){.off = (uintptr_t)src + at,
						  .token = r->peer[0].token,
						  .remote_off = at + i * 50,
						  .len = lens[i]};
			at += lens[i];
		}
		assert_int_equal(stripe(r, &op), 1);
		expect(r, 0, at);
		for (unsigned i = 0; i < GX_ARRAY_SIZE(lens); i++) {
			assert_memory_equal(rig_mem(r, 1) + segs[i].remote_off,
					    (void *)(uintptr_t)segs[i].off, lens[i]);
			rig_check_poison(rig_mem(r, 1) + segs[i].remote_off + lens[i], 50);
		}
		for (unsigned i = 0; i < lanes; i++)
			assert_true(lane_bytes(r, i) > at / lanes - 65536);
		list_done(r);
	}
}

/* A prepared list is posted again and again, also while it is under way and after its close. */
static void striped__prepared(void **state)
{
	struct rig *r = lanes_rig(3, 0);
	struct gx_op op = {.kind = GX_OP_PUT, .user = 5};
	struct gx_list *list;

	assert_int_equal(gx_list_open(r->gx[0], segs, SEGS, &list), 0);
	op.list = list;
	for (unsigned i = 0; i < 20; i++) {
		assert_int_equal(stripe(r, &op), 1);
		if (i % 2)
			assert_int_equal(stripe(r, &op), 1);
		if (i == 19)
			gx_list_close(list);
		expect(r, 0, sizeof(src));
		if (i % 2)
			expect(r, 0, sizeof(src));
		blocks_check(r);
		memset(rig_mem(r, 1), 0, sizeof(src));
		assert_int_equal(queue->lists.nr, i ? 4 : 3); /* the parts are back */
	}
	list_done(r);
}

/* The wrong segment is in the part of the last lane. */
static void striped__first_error(void **state)
{
	static const unsigned bad[] = {0, 1500, SEGS - 2};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		struct rig *r = lanes_rig(3, 0);
		struct gx_op op = put_of(GX_OP_SILENT | GX_OP_IMM, SEGS);
		struct gx_comp comp;

		segs[bad[i]].remote_off = 1ull << 40;
		assert_int_equal(stripe(r, &op), 1);
		comp = comp_next(r);
		assert_int_equal(comp.status, -ERANGE);
		assert_int_equal(comp.seg, bad[i]);
		assert_int_equal(comp.len, 0);
		rig_pass(r, MS);
		assert_int_equal(r->nr_last[1], 0); /* no immediate */
		list_done(r);
	}
}

static void striped__cancel_and_deadline(void **state)
{
	for (unsigned late = 0; late < 2; late++) {
		struct rig *r = lanes_rig(3, 0);
		struct gx_op op = put_of(0, SEGS);

		op.deadline_ns = late ? r->now_ns + MS : 0;
		r->still[1] = true;
		assert_int_equal(stripe(r, &op), 1);
		rig_turn(r);
		if (!late)
			assert_int_equal(gx_cancel(queue, r->ep[0][0], 5), 1);
		r->still[1] = late;
		expect(r, late ? -ETIMEDOUT : -ECANCELED, 0);
		r->still[1] = false;
		list_done(r);
	}
}

/* Behind a list a flush waits, and the queue's requests run out and come back. */
static void striped__flush_and_many(void **state)
{
	struct rig *r = lanes_rig(2, 0);
	struct gx_op op = put_of(0, SEGS), flush = {.kind = GX_OP_FLUSH, .user = 5};
	unsigned n = 0, done = 0;

	for (; stripe(r, &op) == 1; n++)
		assert_true(n < 8);
	assert_int_equal(n, 8);
	assert_int_equal(stripe(r, &flush), 0);
	for (; done < n; done++)
		expect(r, 0, sizeof(src));
	assert_int_equal(stripe(r, &flush), 1);
	expect(r, 0, 0);
	blocks_check(r);
	assert_int_equal(stripe(r, &op), 1); /* under way when the queue closes */
	rig_turn(r);
	list_done(r);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(striped__put),
		cmocka_unit_test(striped__get),
		cmocka_unit_test(striped__long_segments),
		cmocka_unit_test(striped__prepared),
		cmocka_unit_test(striped__first_error),
		cmocka_unit_test(striped__cancel_and_deadline),
		cmocka_unit_test(striped__flush_and_many),
		cmocka_unit_test(list__put_core),
		cmocka_unit_test(list__put_queue),
		cmocka_unit_test(list__prepared),
		cmocka_unit_test(list__get),
		cmocka_unit_test(list__imm),
		cmocka_unit_test(list__neighbours),
		cmocka_unit_test(list__first_error),
		cmocka_unit_test(list__cancel),
		cmocka_unit_test(list__deadline),
		cmocka_unit_test(list__mem_free),
		cmocka_unit_test(list__mem_free_of_next),
		cmocka_unit_test(list__queue_close),
		cmocka_unit_test(list__bad),
		cmocka_unit_test(list__read_only),
		cmocka_unit_test(list__prepared_dead),
		cmocka_unit_test(list__gets_beside_puts),
		cmocka_unit_test(list__parts_run_out),
		cmocka_unit_test(list__ep_fails),
		cmocka_unit_test(list__room_is_kept),
	};

	return rig_run("list", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
