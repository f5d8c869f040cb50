/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives for NCCL's device code (offload.c, with comm.c and req.c): the slots and the ring of a
 * comm, and the descriptors. The GPU, gx and the driver are faked: a function reads descriptors as
 * the device code does, and messages come when a test says so.
 */
#include "nccl/plug.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define KIB	  1024u
#define MIB	  (1024u * KIB)
#define PAGE_B	  4096u
#define BOUNCE_MB 32
#define RING_B	  (5 * MIB)
#define PARTS	  5 /* of 5 MiB and the blocks, in 32 MiB */
#define BUF_B	  (8 * MIB)

struct plug plug = {.lock = PTHREAD_MUTEX_INITIALIZER};
static struct peer peer;
static struct gx_mem *const some_mem = (struct gx_mem *)(uintptr_t)64;
static char *bounce; /* where the driver was asked to map it */
static bool no_driver;
static unsigned nr_warned, nr_woken;
static uint64_t now_ns;
static struct comm *grave; /* the keeper is to free it */

/* NCCL's receive buffer. */
static char *buf;
static struct reg reg = {.len = BUF_B};

bool gpus_map(void *addr, size_t len, char why[WHY_B])
{
	assert_int_equal(len, plug.conf.bounce_b);
	strcpy(why, "none");
	bounce = addr;
	return !no_driver;
}

int gx_mem_reg(struct gx *gx, enum gx_mem_kind kind, int device, void *addr, uint64_t len,
	       struct gx_mem **out)
{
	assert_int_equal(kind, GX_MEM_HOST);
	assert_ptr_equal(addr, bounce);
	*out = some_mem;
	return 0;
}

const char *gx_error(void)
{
	return "";
}

void say_warn(const char *fmt, ...)
{
	nr_warned++;
}

void say_info(const char *fmt, ...)
{
}

void peer_say(struct peer *p, const char *what, int err)
{
}

void meet_close_say(struct comm *c, uint32_t count)
{
}

/* No core runs: a test ends requests itself. */
bool gx_help(struct gx_core *core)
{
	return false;
}

void lane_put(struct lane *l, struct order *o)
{
}

void lane_req(struct lane *l, struct order *o)
{
}

void lane_close(struct lane *l, struct order *o)
{
}

void lane_end(struct lane *l, struct order *o)
{
}

uint64_t gx_now(void)
{
	return now_ns;
}

void keep_wake(void)
{
	nr_woken++;
	if (grave)
		comm_free(grave);
	grave = NULL;
}

/* ---- The rig ---- */

static int setup(void **state)
{
	memset(&peer, 0, sizeof(peer));
	peer.path[0].lane = &plug.lane[0];
	plug.conf.bounce_b = (uint64_t)BOUNCE_MB << 20;
	plug.conf.ring_b = RING_B;
	plug.conf.offload = true;
	no_driver = false;
	nr_warned = nr_woken = 0;
	buf = malloc(BUF_B);
	assert_non_null(buf);
	reg.addr = buf;
	return offload_open(NULL);
}

static int teardown(void **state)
{
	while (plug.comms)
		comm_free(plug.comms);
	offload_close();
	free(buf);
	return 0;
}

/* A comm, and NCCL's view of it. */
struct recv {
	struct comm *c;
	struct nccl_dev_handle dev;
	struct nccl_unpack_handle *handle;
};

static int recv_try(struct recv *r)
{
	*r = (struct recv){.c = comm_new(false), .dev = {NCCL_DEVICE_UNPACK, NCCL_UNPACK_VERSION}};
	assert_non_null(r->c);
	r->c->peer = &peer;
	peer.nr_users++;
	r->c->path = &peer.path[0];
	r->c->path->nr_comms++;
	atomic_fetch_add(&plug.lane[0].nr_comms, 1);
	return offload_give(r->c, &r->dev);
}

static void recv_open(struct recv *r)
{
	assert_int_equal(recv_try(r), 0);
	assert_int_equal(r->dev.handle_b, sizeof(*r->handle));
	assert_int_equal(r->dev.needs_progress, 1);
	r->handle = r->dev.handle;
	assert_ptr_equal(r->handle->bounce, bounce);
	assert_int_equal(r->handle->head, UINT64_MAX);
}

static struct req *post(struct recv *r, char *data, uint64_t size)
{
	void *req = &peer;

	assert_int_equal(req_irecv(r->c, data, size, &reg, &req), 0);
	return req;
}

static char byte_of(uint64_t i, unsigned seed)
{
	return (char)((i * 0x9e3779b97f4a7c15ull >> 40) + seed);
}

/* A message of @len comes for @req: gx writes where the request says. */
static void arrive(struct req *req, uint64_t len, unsigned seed)
{
	assert_true(len <= req->len);
	for (uint64_t i = 0; i < len; i++)
		bounce[req->off + i] = byte_of(i, seed);
	if (len)
		assert_ptr_equal(req->reg->mem, some_mem);
	req->status = 0;
	req->landed = len;
	atomic_store(&req->done, 1);
}

static void test_done(struct req *req, uint64_t len)
{
	int done = 0, size = -1;

	assert_int_equal(req_test(req, &done, &size), 0);
	assert_int_equal(done, 1);
	assert_int_equal(size, len);
}

/* As NCCL's device code for a slice whose place is @data. Return: bytes. */
static uint64_t device_slice(struct recv *r, char *data)
{
	struct nccl_unpack_handle *h = r->handle;
	unsigned slot = (unsigned)(++h->head % NCCL_UNPACK_SLOTS);
	uint64_t cnt = atomic_load(&h->meta->cnt[slot]), len = 0;

	assert_true(cnt <= NCCL_UNPACK_DESCS);
	for (uint64_t i = 0; i < cnt; i++) {
		const struct nccl_unpack_desc *d = &h->meta->desc[slot][i];

		assert_true(d->len && d->src_off + (uint64_t)d->len <= plug.conf.bounce_b);
		assert_int_equal(d->dst_off, len);
		assert_int_equal(d->dst_off % PAGE_B, 0);
		assert_int_equal(d->src_off % PAGE_B, 0); /* loads of 16 bytes */
		memcpy(data + d->dst_off, (char *)h->bounce + d->src_off, d->len);
		len += d->len;
	}
	return len;
}

static bool consumed(struct recv *r, struct req *req)
{
	int ret = req_consumed(r->c, 1, req);

	assert_true(!ret || ret == NCCL_INVALID_ARGUMENT);
	return !ret;
}

/* Done, copied and consumed: the bytes are right, and none beside them is written. */
static void finish(struct recv *r, struct req *req, char *data, uint64_t len, unsigned seed)
{
	memset(data, 0x5a, len + 1);
	arrive(req, len, seed);
	test_done(req, len);
	for (uint64_t i = 0; i <= len; i++)
		assert_int_equal(data[i], 0x5a); /* the plugin does not write there */
	assert_int_equal(device_slice(r, data), len);
	for (uint64_t i = 0; i < len; i++)
		if (data[i] != byte_of(i, seed))
			fail_msg("byte %llu of %llu", (unsigned long long)i,
				 (unsigned long long)len);
	assert_int_equal(data[len], 0x5a);
	assert_true(consumed(r, req));
}

/* ---- Descriptors ---- */

static void publish__sizes(void **state)
{
	static const uint64_t sizes[] = {
		0,	  1,	   7,	15,	     16,     4095,	 4096, 4097,
		64 * KIB, MIB - 1, MIB, 4 * MIB + 5, RING_B, RING_B - 1, 0,    3 * MIB + 17};
	struct recv r;

	recv_open(&r);
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct req *req = post(&r, buf, sizes[i]);

		assert_non_null(req);
		finish(&r, req, buf, sizes[i], i);
	}
}

/* The sender may send less than there is room for. */
static void publish__less(void **state)
{
	struct recv r;

	recv_open(&r);
	for (unsigned i = 0; i < 40; i++) {
		struct req *req = post(&r, buf, MIB);

		assert_non_null(req);
		finish(&r, req, buf, i * 1001, i);
	}
}

/* A message of more than 2,048 pages has larger pieces. */
static void publish__pieces(void **state)
{
	struct recv r;
	struct req *req;

	offload_close();
	plug.conf.ring_b = 12 * MIB;
	assert_int_equal(offload_open(NULL), 0);
	recv_open(&r);
	free(buf);
	buf = malloc(12 * MIB);
	assert_non_null(buf);
	reg.addr = buf;
	reg.len = 12 * MIB;
	req = post(&r, buf, 12 * MIB - PAGE_B - 1);
	assert_non_null(req);
	finish(&r, req, buf, 12 * MIB - PAGE_B - 1, 3);
	reg.len = BUF_B;
}

/* ---- Slots and the ring ---- */

/* 16 receives at most, whatever their sizes, until the oldest is consumed. */
static void take__slots(void **state)
{
	struct req *req[NCCL_UNPACK_SLOTS];
	struct recv r;

	recv_open(&r);
	for (unsigned i = 0; i < NCCL_UNPACK_SLOTS; i++) {
		req[i] = post(&r, buf + i * 64, i);
		assert_non_null(req[i]);
	}
	assert_null(post(&r, buf, 0));
	for (unsigned i = 0; i < NCCL_UNPACK_SLOTS; i++) {
		arrive(req[i], i, i);
		test_done(req[i], i);
		assert_null(post(&r, buf, 0)); /* done is not consumed */
	}
	assert_int_equal(device_slice(&r, buf), 0);
	assert_true(consumed(&r, req[0]));
	req[0] = post(&r, buf, 8);
	assert_non_null(req[0]);
	assert_null(post(&r, buf, 0));
	for (unsigned i = 1; i < NCCL_UNPACK_SLOTS; i++) {
		assert_int_equal(device_slice(&r, buf), i);
		assert_true(consumed(&r, req[i]));
	}
	finish(&r, req[0], buf, 8, 1);
}

/* NCCL has a whole buffer under way, slices of a quarter: there is room wherever the ring ends. */
static void take__ring(void **state)
{
	struct req *req[4] = {NULL};
	struct recv r;

	recv_open(&r);
	for (unsigned i = 0; i < 400; i++) {
		uint64_t len = i % 7 ? MIB : 100 * i;

		if (req[i % 4])
			finish(&r, req[i % 4], buf + i % 4 * MIB, req[i % 4]->len, i);
		req[i % 4] = post(&r, buf + i % 4 * MIB, len);
		assert_non_null(req[i % 4]);
	}
}

/* Full to the last byte, with the oldest receive at its begin, and elsewhere. */
static void take__exact(void **state)
{
	struct req *req[5];
	struct recv r;

	recv_open(&r);
	for (unsigned i = 0; i < 5; i++) {
		req[i] = post(&r, buf + i * MIB, MIB);
		assert_non_null(req[i]);
	}
	for (unsigned i = 0; i < 12; i++) {
		assert_null(post(&r, buf, 1));
		finish(&r, req[i % 5], buf + i % 5 * MIB, MIB, i);
		req[i % 5] = post(&r, buf + i % 5 * MIB, MIB);
		assert_non_null(req[i % 5]);
	}
}

/* Parts of the ring under way never overlap, and a full ring says so. */
static void take__full(void **state)
{
	struct req *req[NCCL_UNPACK_SLOTS];
	unsigned first = 0, next = 0, dice = 1, nr_full = 0;
	struct recv r;

	recv_open(&r);
	for (unsigned i = 0; i < 20000; i++) {
		uint64_t len = (dice = dice * 1103515245u + 12345u) >> 8 & (2 * MIB - 1);
		struct req *now = next - first < NCCL_UNPACK_SLOTS ? post(&r, buf, len) : NULL;

		for (unsigned k = first; now && k < next; k++) {
			struct req *old = req[k % NCCL_UNPACK_SLOTS];

			assert_true(!old->len || !len || old->off + old->len <= now->off ||
				    now->off + len <= old->off);
		}
		if (now) {
			assert_true(!len || (now->off >= r.c->offload->base &&
					     now->off + len <= r.c->offload->base + RING_B));
			req[next++ % NCCL_UNPACK_SLOTS] = now;
			continue;
		}
		nr_full++;
		now = req[first % NCCL_UNPACK_SLOTS];
		now->landed = now->len;
		atomic_store(&now->done, 1);
		test_done(now, now->len);
		assert_true(consumed(&r, now));
		first++;
	}
	assert_true(nr_full > 1000);
}

static void take__reuse(void **state)
{
	struct recv r;

	recv_open(&r);
	for (unsigned i = 0; i < 100000; i++) {
		struct req *req = post(&r, buf, i % 50);

		assert_non_null(req);
		finish(&r, req, buf, i % 50, i);
	}
}

/* ---- Mistakes ---- */

static void consumed__order(void **state)
{
	struct recv r, other;
	struct req *first, *second, *foreign;

	recv_open(&r);
	recv_open(&other);
	first = post(&r, buf, 10);
	second = post(&r, buf, 20);
	foreign = post(&other, buf, 10);
	arrive(foreign, 10, 1);
	test_done(foreign, 10);
	assert_false(consumed(&r, first)); /* it is not done */
	arrive(first, 10, 1);
	assert_false(consumed(&r, first)); /* test() has not said so */
	test_done(first, 10);
	arrive(second, 20, 2);
	test_done(second, 20);
	assert_false(consumed(&r, second));
	assert_false(consumed(&r, NULL));
	assert_false(consumed(&r, foreign));
	assert_false(consumed(&r, (struct req *)(void *)((char *)first + 1)));
	assert_false(consumed(&r, r.c->req - 1));
	assert_false(consumed(&r, r.c->req + NCCL_REQS_MAX));
	assert_int_equal(req_consumed(r.c, 2, first), NCCL_INVALID_ARGUMENT);
	assert_int_equal(nr_warned, 1); /* once a comm */
	assert_int_equal(device_slice(&r, buf), 10);
	assert_true(consumed(&r, first));
	assert_false(consumed(&r, first)); /* twice */
	assert_int_equal(device_slice(&r, buf), 20);
	assert_true(consumed(&r, second));
	assert_false(consumed(&r, second));
}

/* A kernel that is aborted looks into the slot that it waits for: nothing is there. */
static void consumed__count(void **state)
{
	struct recv r;

	recv_open(&r);
	for (unsigned i = 0; i < 2 * NCCL_UNPACK_SLOTS; i++) {
		struct req *req = post(&r, buf, 100);

		assert_int_equal(
			atomic_load(&r.handle->meta->cnt[(r.handle->head + 1) % NCCL_UNPACK_SLOTS]),
			0);
		finish(&r, req, buf, 100, i);
	}
}

static void irecv__too_much(void **state)
{
	struct recv r;
	void *req = &r;

	recv_open(&r);
	assert_int_equal(req_irecv(r.c, buf, RING_B + 1, &reg, &req), NCCL_INVALID_ARGUMENT);
	assert_null(req);
	assert_int_equal(req_is_ll(r.c, 8), NCCL_INVALID_ARGUMENT);
	assert_int_equal(nr_warned, 1);
	for (unsigned i = 0; i < 3; i++)
		assert_true(offload_may_reg(r.c));
	assert_false(offload_may_reg(r.c));
	offload_reg_ends(r.c);
	assert_true(offload_may_reg(r.c));
	assert_false(offload_may_reg(r.c));
	assert_non_null(post(&r, buf, RING_B));
}

/* In the other modes LL is served where its words arrive whole, and LL128 nowhere: such a receive has
 * more room. The line is said once. */
static void irecv__of_ll(void **state)
{
	struct comm *c = comm_new(false);

	plug.conf.offload = false;
	plug.conf.pull_over_b = 1 << 16;
	assert_int_equal(req_is_ll(c, 1 << 16), NCCL_OK);
	assert_int_equal(nr_warned, 0);
	assert_int_equal(req_is_ll(c, (1 << 16) + 1), NCCL_INVALID_ARGUMENT);
	assert_int_equal(req_is_ll(c, 600 << 10), NCCL_INVALID_ARGUMENT);
	assert_int_equal(nr_warned, 1);
	plug.conf.offload = true;
	assert_int_equal(req_is_ll(c, 8), NCCL_INVALID_ARGUMENT);
}

/* ---- The bounce memory ---- */

/* Comms that end give their parts back, with slots held too; one too many is refused. */
static void give__parts(void **state)
{
	struct recv r[PARTS], none;

	for (unsigned round = 0; round < 20; round++) {
		for (unsigned i = 0; i < PARTS; i++) {
			recv_open(&r[i]);
			for (unsigned k = 0; k < i; k++)
				assert_int_not_equal(r[i].c->offload->base, r[k].c->offload->base);
			finish(&r[i], post(&r[i], buf, 1000), buf, 1000, i);
			post(&r[i], buf, 77);
			arrive(post(&r[i], buf, 5000), 4000, i);
		}
		assert_int_equal(recv_try(&none), NCCL_SYSTEM_ERROR);
		assert_int_equal(nr_warned, round + 1);
		comm_free(none.c);
		for (unsigned i = 0; i < PARTS; i++)
			comm_free(r[i].c);
	}
}

/* A communicator that is made anew gets the parts of the one before: its cores and the keeper let go
 * of them some time after NCCL has closed them. */
static void give__part_of_a_closed_comm(void **state)
{
	struct recv r[PARTS], more;

	for (unsigned i = 0; i < PARTS; i++)
		recv_open(&r[i]);
	r[2].c->state = COMM_CLOSED; /* a peer that is stopped: its core does not let go */
	now_ns += 1000000;
	assert_int_equal(recv_try(&more), -EAGAIN);
	assert_int_equal(offload_give(more.c, &more.dev), -EAGAIN);
	assert_int_equal(nr_woken, 1); /* NCCL calls accept without a pause */
	grave = r[2].c;
	now_ns += 1000000;
	assert_int_equal(offload_give(more.c, &more.dev), -EAGAIN);
	assert_null(grave);
	assert_int_equal(offload_give(more.c, &more.dev), NCCL_OK);
	assert_int_equal(nr_warned, 0);
	assert_int_equal(nr_woken, 2);
	assert_int_equal(recv_try(&more), NCCL_SYSTEM_ERROR);
}

static void open__again(void **state)
{
	char *was = bounce;

	offload_close();
	assert_int_equal(offload_open(NULL), 0);
	assert_ptr_equal(bounce, was); /* it stays mapped */
	offload_close();
	plug.conf.ring_b = 40 * MIB;
	assert_int_equal(offload_open(NULL), NCCL_SYSTEM_ERROR);
	plug.conf.ring_b = RING_B;
	no_driver = true;
	assert_int_equal(offload_open(NULL), NCCL_SYSTEM_ERROR);
	assert_int_equal(nr_warned, 2);
	no_driver = false;
	assert_int_equal(offload_open(NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(publish__sizes, setup, teardown),
		cmocka_unit_test_setup_teardown(publish__less, setup, teardown),
		cmocka_unit_test_setup_teardown(publish__pieces, setup, teardown),
		cmocka_unit_test_setup_teardown(take__slots, setup, teardown),
		cmocka_unit_test_setup_teardown(take__ring, setup, teardown),
		cmocka_unit_test_setup_teardown(take__exact, setup, teardown),
		cmocka_unit_test_setup_teardown(take__full, setup, teardown),
		cmocka_unit_test_setup_teardown(take__reuse, setup, teardown),
		cmocka_unit_test_setup_teardown(consumed__order, setup, teardown),
		cmocka_unit_test_setup_teardown(consumed__count, setup, teardown),
		cmocka_unit_test_setup_teardown(irecv__too_much, setup, teardown),
		cmocka_unit_test_setup_teardown(irecv__of_ll, setup, teardown),
		cmocka_unit_test_setup_teardown(give__parts, setup, teardown),
		cmocka_unit_test_setup_teardown(give__part_of_a_closed_comm, setup, teardown),
		cmocka_unit_test_setup_teardown(open__again, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
