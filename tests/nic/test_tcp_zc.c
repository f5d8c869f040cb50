/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Link tcp sends memory of a GPU that a NIC reads, over a scripted kernel that reads a source late:
 * bytes, and memory that nobody may read any more once its operation has completed. It is unmapped
 * then. All memory is the GPU's here, and bound: its offset is an address.
 */
#include "kit/common_post.h"
#include "nic/tcp_tx_dev.h"
#include "nic/zc_script.h"
#include "tcp/tcp_conn.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST_B (1u << 20)

static struct tcp_tx_bind bound = {.id = 7, .base = (const char *)8, .len = UINT64_MAX};
static struct gx_mem all[2]; /* of each side */

static struct pair *zc_new(unsigned nr_socks, unsigned how)
{
	struct pair *p;

	pair_tx = how;
	p = pair_new(nr_socks);
	pair_tx = 0;
	zc_script.dev_base = bound.base;
	zc_script.dev_len = bound.len;
	zc_script.dev_id = bound.id;
	for (unsigned i = 0; i < 2; i++) {
		struct side *s = &p->side[i];

		s->e->sys = &zc_script_tcp;
		pair_gpu(p, i, 1000);
		all[i] = (struct gx_mem){.gx = s->gx,
					 .kind = GX_MEM_CUDA,
					 .gpu = s->gpu,
					 .addr = (char *)bound.base,
					 .len = INT64_MAX};
		atomic_store(&all[i].link[GX_LINK_TCP], &bound);
		atomic_store(&s->mem.link[GX_LINK_TCP], &bound);
	}
	return p;
}

/* Short payload is in host memory. */
static struct gx_op op_from(unsigned side, enum gx_op_kind kind, char *src, uint64_t len)
{
	struct gx_op op = op_of(kind, len < TCP_ZC_MIN_B ? src : NULL, len);

	if (len < TCP_ZC_MIN_B)
		return op;
	op.mem = &all[side];
	op.off = (uint64_t)(src - all[side].addr);
	return op;
}

#define ZC_UNTIL(p, cond)                                                                          \
	do {                                                                                       \
		for (unsigned n_ = 0; !(cond) && n_ < 200000; n_++)                                \
			zc_turn(p);                                                                \
		assert_true(cond);                                                                 \
	} while (0)

static void zc_turn(struct pair *p)
{
	p->now_ns += 10000;
	zc_pump();
	side_turn(p, 0);
	side_turn(p, 1);
}

static bool zc_is_at_rest(const struct pair *p)
{
	return pair_is_at_rest(p) && zc_is_empty() && !p->side[0].e->nic.nr_out &&
	       !p->side[1].e->nic.nr_out;
}

static void zc_done(struct pair *p)
{
	ZC_UNTIL(p, zc_is_at_rest(p));
	for (unsigned i = 0; i < 8; i++)
		zc_turn(p);
	ZC_UNTIL(p, zc_is_at_rest(p));
	for (unsigned i = 0; i < 2; i++) {
		const struct tcp_zc *zc = p->side[i].e->nic.zc;

		assert_true(!zc || !(zc->nr_late + zc->nr_done));
	}
	pair_done(p);
}

static int setup(void **state)
{
	zc_script_reset();
	return 0;
}

/* Memory of one operation. */
static char *src_new(uint64_t len, unsigned seed)
{
	char *at = mmap(NULL, GX_MAX(len, 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			-1, 0);

	assert_ptr_not_equal(at, MAP_FAILED);
	bytes_fill(at, len, seed);
	return at;
}

/* Its operation has completed: who reads it from now on dies. */
static void src_end(char *at, uint64_t len)
{
	assert_false(zc_reads(at, len));
	munmap(at, GX_MAX(len, 1));
}

static uint64_t stat(const struct pair *p, enum gx_stat_id id)
{
	return gx_stat_get(&p->side[0].core->loop.stats, id);
}

/* ---- bytes ---- */

static void put_once(struct pair *p, uint64_t len, uint64_t off)
{
	char *src = src_new(len, (unsigned)len), *want = malloc(len + 1);
	struct gx_op op = op_from(0, GX_OP_PUT, src, len);
	unsigned done = p->side[0].nr_done, notified = p->side[1].nr_notify;

	assert_non_null(want);
	memcpy(want, src, len);
	op.remote_off = off;
	op.flags = GX_OP_IMM;
	assert_int_equal(side_post(p, 0, &op), 0);
	ZC_UNTIL(p, p->side[0].nr_done == done + 1);
	src_end(src, len);
	ZC_UNTIL(p, p->side[1].nr_notify == notified + 1);
	assert_int_equal(p->side[0].last.status, 0);
	assert_int_equal(p->side[0].last.len, len);
	assert_memory_equal(p->side[1].mem.addr + off, want, len);
	free(want);
}

static void get_once(struct pair *p, uint64_t len)
{
	char *to = malloc(len + 1);
	struct gx_op op = op_of(GX_OP_GET, to, len);
	unsigned done = p->side[0].nr_done;

	assert_non_null(to);
	bytes_fill(p->side[1].mem.addr, len, 77);
	assert_int_equal(side_post(p, 0, &op), 0);
	ZC_UNTIL(p, p->side[0].nr_done == done + 1);
	assert_int_equal(p->side[0].last.status, 0);
	assert_memory_equal(to, p->side[1].mem.addr, len);
	free(to);
}

static void put_get__sizes(void **state)
{
	static const uint64_t sizes[] = {
		0,	 1,	      TCP_ZC_MIN_B - 1,	      TCP_ZC_MIN_B,
		CHUNK_B, CHUNK_B + 1, CHUNK_B + TCP_ZC_MIN_B, 5 * CHUNK_B + 9,
		MOST_B};

	for (unsigned nr = 1; nr <= TCP_SOCKS_MAX; nr += nr < 3 ? 1 : 13) {
		for (unsigned round = 0; round < 6; round++) {
			struct pair *p;

			zc_script_reset();
			zc_script.room_b = round & 1 ? 20000 : 0;
			zc_script.first_id = round & 2 ? UINT32_MAX - 3 : 0;
			zc_script.rnd = round & 4;
			p = zc_new(nr, GX_NIC_TX_DEVMEM);
			for (unsigned i = 0; i < TCP_SOCKS_MAX && zc_script.first_id; i++)
				for (unsigned k = 0; k < 2 && i < nr; k++) {
					struct zc_tx *tx = p->side[k].e->nic.zc->sock[i].tx;

					tx->head = tx->tail = zc_script.first_id;
				}
			for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++) {
				put_once(p, sizes[i], i * 13);
				get_once(p, sizes[i]);
			}
			assert_true(zc_script.zc_b > 0);
			zc_done(p);
		}
	}
}

/* Long operations alone go so, all bytes of them, and each byte once. */
static void put__what_goes_so(void **state)
{
	struct pair *p = zc_new(1, GX_NIC_TX_DEVMEM);

	put_once(p, TCP_ZC_MIN_B - 1, 0);
	assert_int_equal(zc_script.zc_b, 0);
	put_once(p, 3 * CHUNK_B + 1, 0);
	assert_int_equal(zc_script.zc_b, 3 * CHUNK_B + 1);
	assert_int_equal(zc_script.dev_b, 3 * CHUNK_B + 1);
	assert_int_equal(stat(p, GX_STAT_TCP_ZC_BYTES), 3 * CHUNK_B + 1);
	assert_int_equal(stat(p, GX_STAT_TCP_ZC_SENDS), 4);
	assert_int_equal(zc_script.nr_leads, 4); /* headers do not leave alone */
	zc_done(p);
}

static void put__copy_mode(void **state)
{
	struct pair *p = zc_new(2, GX_NIC_TX_COPY);

	put_once(p, MOST_B, 0);
	assert_int_equal(zc_script.zc_b + zc_script.nr_leads + zc_script.ends, 0);
	assert_null(p->side[0].e->nic.zc);
	zc_done(p);
}

/* The kernel offers it not at all. */
static void open__refused(void **state)
{
	struct pair *p;

	zc_script.allow_err = -EOPNOTSUPP;
	p = zc_new(2, GX_NIC_TX_AUTO);
	assert_false(p->side[0].e->sock[0].tx_ended);
	put_once(p, MOST_B, 0);
	assert_int_equal(zc_script.zc_b, 0);
	for (unsigned i = 0; i < 2; i++) { /* asked for by name */
		struct tcp_ep *e = p->side[i].e;

		tcp_zc_close(e);
		p->side[i].gx->groups.nic.tx = GX_NIC_TX_DEVMEM;
		assert_int_equal(tcp_zc_open(e), -EOPNOTSUPP);
		assert_non_null(strstr(gx_error(), "gx_nic_opts.tx devmem"));
		tcp_zc_close(e);
	}
	zc_done(p);
}

/* ---- early ends ---- */

/* The put has begun, and the kernel has a part of it, of which nothing moves. */
static char *put_stuck(struct pair *p, uint64_t len, uint64_t deadline_ns)
{
	char *src = src_new(len, 3);
	struct gx_op op = op_from(0, GX_OP_PUT, src, len);

	op.deadline_ns = deadline_ns;
	op.flags = GX_OP_LOCAL;
	zc_script.stalled = UINT32_MAX;
	assert_int_equal(side_post(p, 0, &op), 0);
	side_turn(p, 0);
	assert_true(zc_reads(src, len));
	return src;
}

static int cancel(struct pair *p)
{
	int n = gx_link_tcp_ops.cancel(&p->side[0].e->ep, 7, NULL);

	side_take(&p->side[0]);
	return n;
}

static void cancel__waits_for_the_kernel(void **state)
{
	struct pair *p = zc_new(2, GX_NIC_TX_DEVMEM);
	struct side *a = &p->side[0];
	char *src = put_stuck(p, MOST_B, 0);

	assert_int_equal(cancel(p), 1);
	for (unsigned i = 0; i < 100; i++)
		zc_turn(p);
	assert_int_equal(a->nr_done + a->nr_local, 0);
	assert_int_equal(cancel(p), 0); /* it is asked for already */
	zc_script.stalled = 0;
	ZC_UNTIL(p, a->nr_done == 1);
	src_end(src, MOST_B);
	assert_int_equal(a->nr_local, 1);
	assert_int_equal(a->last.status, -ECANCELED);
	put_once(p, MOST_B, 0); /* the connection lives */
	zc_done(p);
}

static void deadline__waits_for_the_kernel(void **state)
{
	struct pair *p = zc_new(1, GX_NIC_TX_DEVMEM);
	struct side *a = &p->side[0];
	char *src = put_stuck(p, MOST_B, p->now_ns + 2 * MS);

	p->now_ns += 10 * MS;
	for (unsigned i = 0; i < 200; i++)
		zc_turn(p);
	assert_int_equal(a->e->ops[0].state, TCP_OP_DOOMED);
	assert_int_equal(a->nr_done, 0);
	zc_script.stalled = 0;
	ZC_UNTIL(p, a->nr_done == 1);
	src_end(src, MOST_B);
	assert_int_equal(a->last.status, -ETIMEDOUT);
	zc_done(p);
}

/* The peer has all bytes and says so, and the kernel has not told. */
static void done__waits_for_the_kernel(void **state)
{
	struct pair *p = zc_new(2, GX_NIC_TX_DEVMEM);
	struct side *a = &p->side[0];
	char *src = src_new(CHUNK_B, 1);
	struct gx_op op = op_from(0, GX_OP_PUT, src, CHUNK_B);

	op.flags = GX_OP_IMM;
	zc_script.is_quiet = true;
	assert_int_equal(side_post(p, 0, &op), 0);
	ZC_UNTIL(p, p->side[1].nr_notify == 1);
	for (unsigned i = 0; i < 100; i++)
		zc_turn(p);
	assert_int_equal(a->nr_done, 0);
	assert_int_equal(a->e->ops[0].state, TCP_OP_HELD);
	assert_false(link_tcp_zc_asleep(tcp_core(a->core)));
	assert_int_equal(cancel(p), 0); /* too late: it is done */
	zc_script.is_quiet = false;
	ZC_UNTIL(p, a->nr_done == 1);
	assert_int_equal(a->last.status, 0);
	assert_int_equal(a->last.len, CHUNK_B);
	src_end(src, CHUNK_B);
	zc_done(p);
}

/* The same for ever: neither a deadline nor a cancel ends it, and the connection does. */
static void done__kernel_never_tells(void **state)
{
	struct pair *p = zc_new(2, GX_NIC_TX_DEVMEM);
	struct side *a = &p->side[0];
	char *src = src_new(CHUNK_B, 1);
	struct gx_op op = op_from(0, GX_OP_PUT, src, CHUNK_B);
	uint64_t begin_ns;

	op.flags = GX_OP_IMM;
	op.deadline_ns = p->now_ns + 100 * MS;
	zc_script.is_quiet = true;
	assert_int_equal(side_post(p, 0, &op), 0);
	ZC_UNTIL(p, a->e->ops[0].state == TCP_OP_HELD);
	begin_ns = p->now_ns;
	while (!side_fault(p, 0) && p->now_ns - begin_ns < 60000 * MS) {
		p->now_ns += MS;
		a->e->timer.heard_ns = p->now_ns;
		side_turn(p, 0);
	}
	assert_int_equal(side_fault(p, 0), -ETIMEDOUT);
	assert_true(p->now_ns - begin_ns >= 15000 * MS && p->now_ns - begin_ns < 15500 * MS);
	assert_true(a->e->ep.fault_tx && strstr(a->e->ep.fault_why, "has not let go"));
	assert_int_equal(a->nr_done, 0);
	pair_free(p);
	src_end(src, CHUNK_B);
}

/* Cancelled after its last byte: the peer says DONE, and what the canceller hears stays. */
static void cancel__then_done(void **state)
{
	struct pair *p = zc_new(2, GX_NIC_TX_DEVMEM);
	struct side *a = &p->side[0];
	char *src = src_new(CHUNK_B, 1);
	struct gx_op op = op_from(0, GX_OP_PUT, src, CHUNK_B);

	op.flags = GX_OP_IMM;
	zc_script.is_quiet = true;
	assert_int_equal(side_post(p, 0, &op), 0);
	for (unsigned i = 0; i < 200000 && !p->side[1].nr_notify; i++) {
		p->now_ns += 1000;
		zc_pump();
		side_turn(p, 1);
	}
	assert_int_equal(p->side[1].nr_notify, 1);
	assert_int_equal(cancel(p), 1);
	for (unsigned i = 0; i < 100; i++)
		zc_turn(p);
	assert_int_equal(a->e->ops[0].state, TCP_OP_HELD);
	assert_int_equal(a->nr_done, 0);
	zc_script.is_quiet = false;
	ZC_UNTIL(p, a->nr_done == 1);
	assert_int_equal(a->last.status, -ECANCELED);
	assert_int_equal(a->last.len, 0);
	src_end(src, CHUNK_B);
	zc_done(p);
}

/* The end may come at any time, and the memory goes with the completion. */
static void cancel__at_any_time(void **state)
{
	for (unsigned turns = 0; turns < 60; turns++) {
		struct pair *p;
		char *src;
		struct gx_op op;

		zc_script_reset();
		zc_script.room_b = 30000 + turns * 1000;
		zc_script.rnd = turns & 1;
		p = zc_new(turns % 3 + 1, GX_NIC_TX_DEVMEM);
		src = src_new(MOST_B, turns);
		op = op_from(0, GX_OP_PUT, src, MOST_B);
		assert_int_equal(side_post(p, 0, &op), 0);
		for (unsigned i = 0; i < turns / 2; i++)
			zc_turn(p);
		cancel(p);
		ZC_UNTIL(p, p->side[0].nr_done == 1);
		src_end(src, MOST_B);
		assert_true(!p->side[0].last.status || p->side[0].last.status == -ECANCELED);
		put_once(p, MOST_B, 64);
		zc_done(p);
	}
}

/* A receive that the peer takes back under way: FAIL comes for our send. */
static void send__refused_under_way(void **state)
{
	struct pair *p = zc_new(1, GX_NIC_TX_DEVMEM);
	struct side *b = &p->side[1];
	char *src = src_new(MOST_B, 4);
	struct gx_op recv = op_of(GX_OP_RECV, b->mem.addr, MOST_B);
	struct gx_op send = op_from(0, GX_OP_SEND, src, MOST_B);

	zc_script.room_b = 50000;
	assert_int_equal(side_post(p, 1, &recv), 0);
	assert_int_equal(side_post(p, 0, &send), 0);
	for (unsigned i = 0; i < 6; i++)
		zc_turn(p);
	assert_int_equal(gx_link_tcp_ops.cancel(&b->e->ep, 7, NULL), 1);
	ZC_UNTIL(p, p->side[0].nr_done == 1 && b->nr_done == 1);
	assert_int_equal(p->side[0].last.status, -ECANCELED);
	src_end(src, MOST_B);
	zc_done(p);
}

/* ---- memory that goes ---- */

static void mem__freed_under_way(void **state)
{
	struct pair *p = zc_new(2, GX_NIC_TX_DEVMEM);
	struct side *a = &p->side[0];
	struct gx_op op = op_of(GX_OP_PUT, NULL, MOST_B);
	struct drop d = {.want = 1, .first = 1, .upto = 1};

	op.mem = &a->mem;
	zc_script.stalled = UINT32_MAX;
	assert_int_equal(side_post(p, 0, &op), 0);
	side_turn(p, 0);
	assert_true(zc_reads(a->mem.addr, MOST_B));
	a->mem.drop_seq = 1;
	atomic_store(&a->mem.dead, true);
	tcp_zc_drop(tcp_core(a->core), &d);
	assert_int_equal(d.upto, 0); /* held */
	side_take(a);
	assert_int_equal(a->nr_done, 0);
	zc_script.stalled = 0;
	for (unsigned i = 0; i < 1000 && zc_reads(a->mem.addr, MOST_B); i++) {
		zc_pump();
		side_turn(p, 1);
	}
	d = (struct drop){.want = 1, .first = 2, .upto = 1};
	tcp_zc_drop(tcp_core(a->core), &d); /* it asks the kernel itself */
	assert_int_equal(d.upto, 1);
	side_take(a);
	assert_int_equal(a->nr_done, 1);
	assert_int_equal(a->last.status, -ECANCELED);
	memset(a->mem.addr, 0x22, MEM_B);
	atomic_store(&a->mem.dead, false);
	ZC_UNTIL(p, zc_is_at_rest(p));
	zc_done(p);
}

/* ---- ends of connections ---- */

static void end_fail(struct pair *p, int err)
{
	struct gx_ep *ep = &p->side[0].e->ep;

	ep->ops->ep_fail(ep, err);
	side_take(&p->side[0]);
}

/* A close while the kernel still sends: no reset, and memory is free when it has. */
static void close__is_orderly(void **state)
{
	struct pair *p = zc_new(2, GX_NIC_TX_DEVMEM);
	struct side *a = &p->side[0];
	char *src = put_stuck(p, MOST_B, 0);

	end_fail(p, -ECANCELED);
	assert_int_equal(a->nr_done, 0);
	assert_false(atomic_load(&a->e->ep.detached));
	zc_script.stalled = 0;
	for (unsigned i = 0; i < 1000 && !a->nr_done; i++)
		zc_turn(p);
	assert_int_equal(a->nr_done, 1);
	assert_int_equal(a->last.status, -ECANCELED);
	assert_true(atomic_load(&a->e->ep.detached));
	assert_int_equal(zc_script.nr_drops, 0);
	src_end(src, MOST_B);
	pair_free(p);
}

/* The peer is stopped: nothing moves, and it is given up. */
static void peer__stopped(void **state)
{
	struct pair *p = zc_new(2, GX_NIC_TX_DEVMEM);
	struct side *a = &p->side[0];
	char *src = put_stuck(p, MOST_B, 0);
	uint64_t begin_ns = p->now_ns;

	assert_int_equal(cancel(p), 1);
	while (!side_fault(p, 0) && p->now_ns - begin_ns < 20000 * MS) {
		p->now_ns += MS;
		side_turn(p, 0);
	}
	assert_int_equal(side_fault(p, 0), -ETIMEDOUT);
	assert_true(p->now_ns - begin_ns < 6500 * MS);
	assert_int_equal(a->nr_done, 0);
	end_fail(p, -ETIMEDOUT);
	begin_ns = p->now_ns;
	while (!a->nr_done && p->now_ns - begin_ns < 1000 * MS) {
		p->now_ns += MS;
		side_turn(p, 0);
	}
	assert_int_equal(a->nr_done, 1);
	assert_true(p->now_ns - begin_ns <= TCP_GRACE_NS + 2 * MS);
	assert_true(zc_script.nr_drops > 0);
	assert_int_equal(a->last.status, -ECANCELED); /* as it ended */
	assert_true(atomic_load(&a->e->ep.detached));
	src_end(src, MOST_B);
	pair_free(p);
}

/* The peer answers, and takes nothing more of one socket: an early end must not wait for ever. */
static void peer__takes_no_bytes(void **state)
{
	struct pair *p = zc_new(2, GX_NIC_TX_DEVMEM);
	struct side *a = &p->side[0];
	char *src = put_stuck(p, MOST_B, 0);
	uint64_t begin_ns = p->now_ns;

	assert_int_equal(cancel(p), 1);
	while (!side_fault(p, 0) && p->now_ns - begin_ns < 60000 * MS) {
		p->now_ns += MS;
		a->e->timer.heard_ns = p->now_ns;
		side_turn(p, 0);
	}
	assert_int_equal(side_fault(p, 0), -ETIMEDOUT);
	assert_true(p->now_ns - begin_ns >= 15000 * MS && p->now_ns - begin_ns < 15500 * MS);
	assert_true(a->e->ep.fault_tx && strstr(a->e->ep.fault_why, "ended early"));
	pair_free(p);
	src_end(src, MOST_B);
}

/* The peer's kernel resets the connection: ours lets go of all, and tells so after sends have failed. */
static void peer__resets(void **state)
{
	struct pair *p = zc_new(1, GX_NIC_TX_DEVMEM);
	struct side *a = &p->side[0];
	char *src = put_stuck(p, MOST_B, 0);

	zc_script.is_quiet = true;
	zc_script_zc.drop(a->e->sock[0].fd);
	for (unsigned i = 0; i < 300 && !side_fault(p, 0); i++) {
		p->now_ns += MS;
		side_turn(p, 0);
	}
	assert_int_equal(side_fault(p, 0), -ECONNRESET);
	end_fail(p, -ECONNRESET);
	assert_int_equal(a->nr_done, 0);
	zc_script.is_quiet = false;
	p->now_ns += MS;
	side_turn(p, 0);
	assert_int_equal(a->nr_done, 1);
	assert_int_equal(a->last.status, -ECONNRESET);
	assert_int_equal(zc_script.nr_drops, 1); /* ours above */
	src_end(src, MOST_B);
	pair_free(p);
}

/* The error queue tells of sends that never were. Nobody learns of the others: the sockets are reset,
 * and after a second the memory counts as free. */
static void ends__lie(void **state)
{
	struct pair *p = zc_new(2, GX_NIC_TX_DEVMEM);
	struct side *a = &p->side[0];
	char *src = put_stuck(p, MOST_B, 0);
	uint64_t begin_ns;

	zc_script.lie_first = 1000;
	zc_script.lie_nr = 3;
	p->now_ns += MS;
	side_turn(p, 0);
	for (unsigned i = 0; i < 300 && !side_fault(p, 0); i++) {
		p->now_ns += MS;
		side_turn(p, 0);
	}
	assert_int_equal(side_fault(p, 0), -EPROTO);
	assert_true(a->e->ep.fault_tx && strstr(a->e->ep.fault_why, "never had"));
	end_fail(p, -EPROTO);
	assert_int_equal(a->nr_done, 0);
	begin_ns = p->now_ns;
	while (!a->nr_done && p->now_ns - begin_ns < 3000 * MS) {
		p->now_ns += MS;
		side_turn(p, 0);
	}
	assert_int_equal(a->nr_done, 1);
	assert_true(p->now_ns - begin_ns >= 1200 * MS);
	assert_true(stat(p, GX_STAT_TCP_ZC_LOST) > 0);
	assert_true(atomic_load(&a->e->ep.detached));
	src_end(src, MOST_B);
	pair_free(p);
}

/* Each operation ends once, whatever is under way when the endpoint fails. */
static void fail__at_any_time(void **state)
{
	static const enum gx_op_kind kinds[] = {GX_OP_PUT, GX_OP_GET, GX_OP_RECV, GX_OP_SEND};

	for (unsigned turns = 0; turns < 50; turns += turns < 20 ? 1 : 5) {
		char *src[8];
		struct pair *p;

		zc_script_reset();
		zc_script.room_b = 40000;
		zc_script.is_quiet = turns & 1;
		p = zc_new(3, GX_NIC_TX_DEVMEM);
		for (unsigned i = 0; i < 8; i++) {
			struct gx_op op;

			src[i] = src_new(MOST_B, i);
			op = kinds[i / 2] == GX_OP_PUT || kinds[i / 2] == GX_OP_SEND
				     ? op_from(i & 1, kinds[i / 2], src[i], MOST_B)
				     : op_of(kinds[i / 2], src[i], MOST_B);
			assert_int_equal(side_post(p, i & 1, &op), 0);
		}
		for (unsigned i = 0; i < turns; i++)
			zc_turn(p);
		for (unsigned i = 0; i < 2; i++) {
			struct gx_ep *ep = &p->side[i].e->ep;

			ep->ops->ep_fail(ep, -ECONNRESET);
		}
		zc_script.is_quiet = false;
		for (unsigned i = 0; i < 400; i++) {
			p->now_ns += MS;
			zc_turn(p);
		}
		for (unsigned i = 0; i < 2; i++) {
			assert_int_equal(p->side[i].nr_done, 4);
			assert_true(atomic_load(&p->side[i].e->ep.detached));
			assert_int_equal(p->side[i].core->comps_due, 0);
		}
		for (unsigned i = 0; i < 8; i++)
			src_end(src[i], MOST_B);
		pair_free(p);
	}
}

/* ---- the kernel refuses ---- */

static void device_put(struct pair *p, uint64_t len, uint64_t off)
{
	struct side *a = &p->side[0];
	struct gx_op op = op_of(GX_OP_PUT, NULL, len);
	unsigned done = a->nr_done;

	bytes_fill(a->mem.addr, MEM_B, (unsigned)len);
	op.mem = &a->mem;
	op.off = off;
	assert_int_equal(side_post(p, 0, &op), 0);
	ZC_UNTIL(p, a->nr_done == done + 1);
	assert_false(zc_reads(a->mem.addr, MEM_B));
	assert_int_equal(a->last.status, 0);
	assert_memory_equal(p->side[1].mem.addr, a->mem.addr + off, len);
}

static void device__bytes(void **state)
{
	for (unsigned nr = 1; nr < 4; nr++) {
		struct pair *p;

		zc_script_reset();
		p = zc_new(nr, GX_NIC_TX_DEVMEM);
		device_put(p, MOST_B + 1, 4096);
		assert_int_equal(zc_script.dev_b, MOST_B + 1); /* the last byte, too */
		device_put(p, TCP_ZC_MIN_B - 1, 0);
		assert_int_equal(zc_script.dev_b, MOST_B + 1);
		zc_script.nr_no_room = 3;
		device_put(p, MOST_B, 0);
		assert_true(zc_script.dev_b == 2 * MOST_B + 1);
		get_once(p, 100);
		zc_done(p);
	}
}

/* The connection does not leave by that NIC: by host memory then. */
static void device__other_interface(void **state)
{
	struct pair *p = zc_new(2, GX_NIC_TX_AUTO);

	zc_script.dev_err = -ENODEV;
	device_put(p, MOST_B, 0);
	assert_int_equal(zc_script.dev_b, 0);
	assert_int_equal(atomic_load(&p->side[0].e->nic.zc->dev_err), -ENODEV);
	assert_int_equal(zc_script.zc_b, 0);
	assert_false(p->side[0].e->sock[0].tx_ended);
	put_once(p, MOST_B, 0);
	assert_true(link_tcp_zc_asleep(tcp_core(p->side[0].core)));
	zc_done(p);
}

/* What is not known yet is asked again. */
static void device__asked_again(void **state)
{
	struct pair *p = zc_new(2, GX_NIC_TX_AUTO);

	zc_script.dev_err = -EAGAIN;
	device_put(p, CHUNK_B, 0);
	assert_int_equal(zc_script.dev_b, 0);
	zc_script.dev_err = 0;
	device_put(p, CHUNK_B, 0);
	assert_int_equal(zc_script.dev_b, CHUNK_B);
	zc_done(p);
}

/* The way changes under way: nobody can copy the rest, so the connection ends, and says why. */
static void device__gone(void **state)
{
	struct pair *p = zc_new(1, GX_NIC_TX_DEVMEM);
	struct side *a = &p->side[0];
	struct gx_op op = op_of(GX_OP_PUT, NULL, MOST_B);

	op.mem = &a->mem;
	device_put(p, CHUNK_B, 0);
	zc_script.room_b = 50000;
	assert_int_equal(side_post(p, 0, &op), 0);
	zc_turn(p);
	zc_script.dev_err = -ENODEV;
	for (unsigned i = 0; i < 300 && !side_fault(p, 0); i++) {
		p->now_ns += MS;
		zc_turn(p);
	}
	assert_int_equal(side_fault(p, 0), -ENODEV);
	assert_true(a->e->ep.fault_tx && strstr(a->e->ep.fault_why, "another interface"));
	end_fail(p, -ENODEV);
	for (unsigned i = 0; i < 300 && !a->nr_done; i++) {
		p->now_ns += MS;
		zc_turn(p);
	}
	assert_int_equal(a->nr_done, 2);
	assert_int_equal(a->last.status, -ENODEV);
	pair_free(p);
}

/* No room for one send, for a second, with nothing under way. */
static void device__never_room(void **state)
{
	struct pair *p = zc_new(1, GX_NIC_TX_DEVMEM);
	struct side *a = &p->side[0];
	struct gx_op op = op_of(GX_OP_PUT, NULL, MOST_B);
	uint64_t begin_ns;

	op.mem = &a->mem;
	device_put(p, CHUNK_B, 0);
	zc_script.nr_no_room = UINT32_MAX;
	begin_ns = p->now_ns;
	assert_int_equal(side_post(p, 0, &op), 0);
	for (unsigned i = 0; i < 3000 && !side_fault(p, 0); i++) {
		p->now_ns += MS;
		zc_turn(p);
	}
	assert_int_equal(side_fault(p, 0), -ENOBUFS);
	assert_true(p->now_ns - begin_ns >= 1000 * MS && p->now_ns - begin_ns < 1500 * MS);
	assert_non_null(strstr(a->e->ep.fault_why, "optmem_max"));
	pair_free(p);
}

static void device__cancel_at_any_time(void **state)
{
	for (unsigned turns = 0; turns < 40; turns++) {
		struct gx_op op = op_of(GX_OP_PUT, NULL, MOST_B);
		struct side *a;
		struct pair *p;

		zc_script_reset();
		p = zc_new(2, GX_NIC_TX_DEVMEM);
		zc_script.room_b = 40000;
		a = &p->side[0];
		op.mem = &a->mem;
		assert_int_equal(side_post(p, 0, &op), 0);
		for (unsigned i = 0; i < turns / 2; i++)
			zc_turn(p);
		cancel(p);
		ZC_UNTIL(p, a->nr_done == 1);
		assert_false(zc_reads(a->mem.addr, MEM_B));
		zc_script.room_b = 0;
		device_put(p, MOST_B, 0);
		zc_done(p);
	}
}

/* ---- storms ---- */

#define STORM_OPS 24

static struct {
	char *src;
	uint64_t len;
} storm_op[STORM_OPS];

/* Completions free their sources at once. */
static void storm_take(struct pair *p)
{
	struct side *a = &p->side[0];
	struct gx_comp c;

	while (common_poll(a->core, &c, 1)) {
		unsigned i = (unsigned)c.user;

		if (c.kind != GX_COMP_DONE)
			continue;
		assert_true(!c.status || c.status == -ECANCELED || c.status == -ETIMEDOUT);
		src_end(storm_op[i].src, storm_op[i].len);
		storm_op[i].src = NULL;
		a->nr_done++;
	}
}

static void storm_post(struct pair *p, unsigned i)
{
	struct gx_op op;

	storm_op[i].len = zc_rnd(4) ? zc_rnd(MOST_B) : zc_rnd(100);
	storm_op[i].src = src_new(storm_op[i].len, i);
	op = op_from(0, GX_OP_PUT, storm_op[i].src, storm_op[i].len);
	op.user = i;
	op.deadline_ns = zc_rnd(3) ? 0 : p->now_ns + zc_rnd(20) * MS / 4;
	if (gx_link_tcp_ops.post(&p->side[0].e->ep, &op, NULL)) {
		munmap(storm_op[i].src, GX_MAX(storm_op[i].len, 1));
		storm_op[i].src = NULL;
	}
	if (zc_rnd(2))
		gx_link_tcp_ops.kick(&p->side[0].e->ep);
}

static void storm(uint64_t seed)
{
	struct pair *p;
	unsigned out;

	zc_script_reset();
	zc_script.rnd = seed;
	zc_script.room_b = 20000 + zc_rnd(200000);
	p = zc_new(1 + zc_rnd(4), GX_NIC_TX_DEVMEM);
	put_once(p, CHUNK_B, 0); /* the kernel is asked */
	p->side[0].nr_done = 0;
	for (unsigned n = 0; n < 4000 || p->side[0].nr_done < 50; n++) {
		unsigned i = zc_rnd(STORM_OPS);

		assert_true(n < 400000);
		if (!storm_op[i].src)
			storm_post(p, i);
		else if (!zc_rnd(8))
			gx_link_tcp_ops.cancel(&p->side[0].e->ep, i, NULL);
		zc_script.nr_no_room += !zc_rnd(20);
		zc_script.is_quiet = !zc_rnd(3);
		storm_take(p);
		p->now_ns += 10000;
		zc_pump();
		for (unsigned k = 0; k < 2; k++)
			nic_poll(tcp_core(p->side[k].core), p->now_ns);
		storm_take(p);
		assert_int_equal(side_fault(p, 0) | side_fault(p, 1), 0);
	}
	zc_script.is_quiet = false;
	do {
		p->now_ns += 10000;
		zc_pump();
		for (unsigned k = 0; k < 2; k++)
			nic_poll(tcp_core(p->side[k].core), p->now_ns);
		storm_take(p);
		out = 0;
		for (unsigned i = 0; i < STORM_OPS; i++)
			out += storm_op[i].src != NULL;
	} while (out);
	zc_done(p);
}

static void storm__all(void **state)
{
	for (unsigned seed = 1; seed <= 6; seed++)
		storm(seed);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, setup)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(put_get__sizes),
		TEST(put__what_goes_so),
		TEST(put__copy_mode),
		TEST(open__refused),
		TEST(cancel__waits_for_the_kernel),
		TEST(deadline__waits_for_the_kernel),
		TEST(done__waits_for_the_kernel),
		TEST(done__kernel_never_tells),
		TEST(cancel__then_done),
		TEST(cancel__at_any_time),
		TEST(send__refused_under_way),
		TEST(mem__freed_under_way),
		TEST(close__is_orderly),
		TEST(peer__stopped),
		TEST(peer__takes_no_bytes),
		TEST(peer__resets),
		TEST(ends__lie),
		TEST(fail__at_any_time),
		TEST(device__bytes),
		TEST(device__other_interface),
		TEST(device__asked_again),
		TEST(device__gone),
		TEST(device__never_room),
		TEST(device__cancel_at_any_time),
		TEST(storm__all),
	};

	nic_pair_use(&zc_script_zc);
	return cmocka_run_group_tests_name("tcp_zc", tests, NULL, NULL);
}
