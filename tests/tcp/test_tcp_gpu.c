/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of GPUs over the tcp link. The GPU is the CPU backend, whose copies end late. So a message
 * that has landed too early, a ring that is filled again too early, and memory that is given up too
 * early all show in the bytes.
 */
#include "tcp/tcp_conn.h"
#include "tcp/tcp_gpu.h"
#include "tcp/tcp_pair.h"
#include "tcp/tcp_turn.h"
#include "gpu/late_gpu.h"

#include <sys/socket.h>
#include <unistd.h>

#define HALF	 (MEM_B / 2) /* sources lie in the upper half of a side's memory */
#define DELAY_NS (2 * MS)

static char *top(struct side *s)
{
	return s->mem.addr + HALF;
}

/* Both sides' memory is that of a GPU. */
static struct pair *gpus_new(unsigned nr_socks, uint64_t delay_ns)
{
	struct pair *p = pair_new(nr_socks);

	pair_gpu(p, 0, delay_ns);
	pair_gpu(p, 1, delay_ns);
	return p;
}

/* An operation with the memory of @s at @off. */
static struct gx_op op_at(struct side *s, enum gx_op_kind kind, uint64_t off, uint64_t len)
{
	struct gx_op op = op_of(kind, NULL, len);

	op.mem = &s->mem;
	op.off = off;
	return op;
}

static void is_all(const char *at, uint64_t len, int byte)
{
	for (uint64_t i = 0; i < len; i++)
		if (at[i] != (char)byte)
			fail_msg("byte %u of %u is %d, not %d", (unsigned)i, (unsigned)len, at[i],
				 byte);
}

/* Turns in which no time passes: no copy ends. */
static void turns(struct pair *p, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		side_turn(p, 0);
		side_turn(p, 1);
	}
}

static void pass(struct pair *p, uint64_t ns)
{
	p->now_ns += ns;
	turns(p, 4);
}

/* ---- Bytes ---- */

static void check(const char *at, const char *want, uint64_t len)
{
	assert_memory_equal(at, want, len);
	is_all(at + len, 64, POISON);
}

/* From and to memory of GPUs and of the host, in all four ways, by @kind. */
static void move(struct pair *p, unsigned from, enum gx_op_kind kind, uint64_t len, uint64_t off)
{
	struct side *a = &p->side[from], *b = &p->side[!from];
	unsigned done = a->nr_done, notes = b->nr_notify;
	struct gx_op op;

	memset(b->mem.addr, POISON, off + len + 64);
	bytes_fill(top(a), len, (unsigned)(len + off));
	op = op_at(a, kind, HALF, len);
	op.remote_off = off;
	if (kind == GX_OP_PUT) {
		op.flags = GX_OP_IMM;
		op.imm = len + 5;
	} else {
		struct gx_op recv = op_at(b, GX_OP_RECV, off, len);

		assert_int_equal(side_post(p, !from, &recv), 0);
	}
	assert_int_equal(side_post(p, from, &op), 0);
	if (kind == GX_OP_PUT)
		UNTIL(p, a->nr_done == done + 1 && b->nr_notify == notes + 1);
	else
		UNTIL(p, a->nr_done == done + 1 && b->last.op == GX_OP_RECV);
	assert_int_equal(a->last.status, 0);
	check(b->mem.addr + off, top(a), len);
	/* And back, by a get. */
	memset(a->mem.addr, POISON, len + 64);
	op = op_at(a, GX_OP_GET, 0, len);
	op.remote_off = off;
	assert_int_equal(side_post(p, from, &op), 0);
	UNTIL(p, a->nr_done == done + 2);
	assert_int_equal(a->last.status, 0);
	check(a->mem.addr, top(a), len);
	b->last = (struct gx_comp){0};
}

static const uint64_t sizes[] = {0,	 1,	 63,	  64,		65,	4095,
				 16384,	 65535,	 65536,	  65537,	131072, 196609,
				 262144, 262145, 1000000, (1 << 20) + 1};

static void put_get__sizes(void **state)
{
	static const uint64_t delays_ns[] = {0, 3000, 300000};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(delays_ns); i++)
		for (unsigned nr = 1; nr <= 5; nr += 2) {
			struct pair *p = gpus_new(nr, delays_ns[i]);

			for (unsigned k = 0; k < GX_ARRAY_SIZE(sizes); k++) {
				move(p, 0, GX_OP_PUT, sizes[k], k * 13);
				move(p, 1, GX_OP_PUT, sizes[k], k % 3 * 64);
				move(p, k & 1, GX_OP_SEND, sizes[k], k % 5);
			}
			pair_done(p);
		}
}

/* One end has a GPU. */
static void put_get__with_a_host(void **state)
{
	for (unsigned side = 0; side < 2; side++) {
		struct pair *p = pair_new(2);

		pair_gpu(p, side, DELAY_NS);
		for (unsigned k = 0; k < GX_ARRAY_SIZE(sizes); k++) {
			move(p, 0, GX_OP_PUT, sizes[k], k * 13);
			move(p, 1, GX_OP_SEND, sizes[k], k);
		}
		pair_done(p);
	}
}

static void put_get__split_anywhere(void **state)
{
	for (dribble_b = 1; dribble_b <= 200; dribble_b += dribble_b < 70 ? 1 : 13) {
		struct pair *p = gpus_new(dribble_b % 3 + 1, 5000);

		p->side[0].e->sys = p->side[1].e->sys = &dribble;
		move(p, 0, GX_OP_PUT, 0, 0);
		move(p, 0, GX_OP_PUT, 1, 3);
		move(p, 1, GX_OP_SEND, 100, 0);
		if (dribble_b > 60)
			move(p, 0, GX_OP_PUT, 2 * CHUNK_B + 1, 5);
		pair_done(p);
	}
}

static void put__many_small(void **state)
{
	struct pair *p = gpus_new(3, 20000);
	struct side *a = &p->side[0], *b = &p->side[1];
	unsigned posted = 0;

	bytes_fill(top(a), HALF, 5);
	while (posted < 5000) {
		struct gx_op op = op_at(a, GX_OP_PUT, HALF + posted * 48ull, 48);

		op.remote_off = posted * 48;
		posted += !side_post(p, 0, &op);
		p->now_ns += 1000;
		turns(p, 1);
	}
	UNTIL(p, a->nr_done == posted);
	check(b->mem.addr, top(a), posted * 48);
	pair_done(p);
}

/* Pieces of a chunk that one socket brings, one after another, become one descriptor. */
static void put__pieces_are_merged(void **state)
{
	struct pair *p = gpus_new(1, DELAY_NS);
	struct side *b = &p->side[1];
	struct gx_op op = op_of(GX_OP_PUT, p->buf, CHUNK_B);
	const struct tcp_gpu *t = tcp_core(b->core)->gpu[0];

	bytes_fill(p->buf, CHUNK_B, 8);
	dribble_b = 1000;
	b->e->sys = &dribble;
	op.remote_off = 7; /* no multiple of anything */
	assert_int_equal(side_post(p, 0, &op), 0);
	UNTIL(p, p->side[0].nr_done == 1);
	assert_memory_equal(b->mem.addr + 7, p->buf, CHUNK_B);
	assert_true(block_stat(t->bq)->descs < 10);
	if (!pair_sealed) /* records come as a whole */
		assert_true(block_stat(t->bq)->merges > 50);
	pair_done(p);
}

/* ---- Not before the copy ---- */

static void landed__waits_for_the_copy(void **state)
{
	static const uint64_t lens[] = {8, CHUNK_B, 3 * CHUNK_B + 9, 20 * CHUNK_B};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(lens); i++) {
		struct pair *p = pair_new(2);
		struct side *a = &p->side[0], *b = &p->side[1];
		struct gx_op op = op_of(GX_OP_PUT, p->buf, lens[i]);

		pair_gpu(p, 1, DELAY_NS);
		bytes_fill(p->buf, lens[i], 2);
		op.flags = GX_OP_IMM;
		assert_int_equal(side_post(p, 0, &op), 0);
		turns(p, 200);
		assert_int_equal(b->e->in[0].base, b->e->in[0].nr_chunks); /* all has come, ... */
		assert_int_equal(a->nr_done + b->nr_notify, 0);
		is_all(b->mem.addr, lens[i], POISON); /* ... and nothing was copied */
		UNTIL(p, b->nr_notify && a->nr_done);
		check(b->mem.addr, p->buf, lens[i]);
		pair_done(p);
	}
}

static void recv__waits_for_the_copy(void **state)
{
	struct pair *p = pair_new(2);
	struct side *b = &p->side[1];
	struct gx_op send = op_of(GX_OP_SEND, p->buf, 100000), recv;

	pair_gpu(p, 1, DELAY_NS);
	bytes_fill(p->buf, 100000, 2);
	recv = op_at(b, GX_OP_RECV, 0, 100000);
	assert_int_equal(side_post(p, 1, &recv), 0);
	assert_int_equal(side_post(p, 0, &send), 0);
	turns(p, 100);
	assert_int_equal(b->nr_done + p->side[0].nr_done, 0);
	UNTIL(p, b->nr_done && p->side[0].nr_done);
	check(b->mem.addr, p->buf, 100000);
	pair_done(p);
}

/* A GPU's payload leaves when it is in host memory. */
static void send__waits_for_the_copy(void **state)
{
	struct pair *p = pair_new(2);
	struct side *a = &p->side[0];
	struct gx_op op;

	pair_gpu(p, 0, DELAY_NS);
	bytes_fill(top(a), HALF, 4);
	op = op_at(a, GX_OP_PUT, HALF, 1 << 20);
	assert_int_equal(side_post(p, 0, &op), 0);
	turns(p, 50);
	assert_int_equal(a->e->sock[0].out_b + a->e->sock[1].out_b, 0);
	assert_true(a->e->tx.nr_staged &&
		    a->e->tx.nr_staged <= tcp_core(a->core)->gpu[0]->stage_share);
	UNTIL(p, a->nr_done == 1);
	check(p->side[1].mem.addr, top(a), 1 << 20);
	pair_done(p);
}

static int shut_fd; /* nothing leaves there */

static ssize_t shut_send(int fd, const struct iovec *iov, unsigned n)
{
	return fd == shut_fd ? -EAGAIN : tcp_sys_kernel.send(fd, iov, n);
}

static ssize_t shut_recv(int fd, const struct iovec *iov, unsigned n)
{
	return tcp_sys_kernel.recv(fd, iov, n);
}

static const struct tcp_sys shut = {
	.send = shut_send, .recv = shut_recv, .lead = shut_send, .push = push_none};

/* A socket stands, and later chunks overtake those in its queue. Their buffers are used again
 * meanwhile, but no other ones. */
static void send__a_socket_stands(void **state)
{
	struct pair *p = gpus_new(3, 5000);
	struct side *a = &p->side[0];
	unsigned posted = 0;

	bytes_fill(top(a), HALF, 4);
	shut_fd = a->e->sock[1].fd;
	a->e->sys = &shut;
	for (; posted < 8; posted++) {
		struct gx_op op = op_at(a, GX_OP_PUT, HALF + posted * HALF / 8, HALF / 8);

		op.remote_off = posted * HALF / 8;
		assert_int_equal(side_post(p, 0, &op), 0);
	}
	for (unsigned i = 0; i < 1000; i++)
		pass(p, 1000);
	assert_true(a->e->sock[1].out_b && a->nr_done && a->nr_done < posted);
	a->e->sys = &tcp_sys_kernel;
	UNTIL(p, a->nr_done == posted);
	check(p->side[1].mem.addr, top(a), HALF);
	pair_done(p);
}

/* Peers that read slowly hold buffers for long, and yet not all of them. */
static void send__slow_peers_leave_buffers(void **state)
{
	struct pair *p = gpus_new(1, 5000);
	struct side *a = &p->side[0];
	struct more *slow = calloc(5, sizeof(*slow));
	struct gx_op op = op_at(a, GX_OP_PUT, HALF, HALF);
	char bytes[4096];

	bytes_fill(top(a), HALF, 4);
	assert_non_null(slow);
	for (unsigned i = 0; i < 5; i++) {
		more_open(p, 0, &slow[i]);
		assert_int_equal(slow[i].e->ep.ops->post(&slow[i].e->ep, &op, NULL), 0);
		slow[i].e->window = TCP_MIDS; /* nobody acknowledges chunks there */
	}
	for (unsigned n = 0; n < 200; n++) {
		for (unsigned i = 0; i < 5; i++) /* a little, so they do not stand still */
			assert_true(recv(slow[i].fd, bytes, sizeof(bytes), MSG_DONTWAIT) != 0);
		pass(p, 100000);
	}
	assert_int_equal(a->nr_done, 0);
	assert_int_equal(side_post(p, 0, &op), 0);
	for (unsigned i = 0; i < 2000 && !a->nr_done; i++)
		pass(p, 5000);
	assert_int_equal(a->nr_done, 1);
	check(p->side[1].mem.addr, top(a), HALF);
	for (unsigned i = 0; i < 5; i++) {
		gx_link_tcp_ops.cancel(&slow[i].e->ep, 7, NULL);
		pass(p, MS);
		more_close(&slow[i]);
	}
	free(slow);
	pair_settle(p);
	pair_free(p);
}

/* Peers that do not read give way to one that moves, also where it has a buffer already and some are
 * free. */
static void send__standing_peers_give_way(void **state)
{
	struct pair *p = gpus_new(1, 5000);
	struct side *a = &p->side[0];
	struct more *still = calloc(5, sizeof(*still));
	struct tcp_gpu *t = tcp_core(a->core)->gpu[0];
	struct gx_op op = op_at(a, GX_OP_PUT, HALF, HALF), host = op_of(GX_OP_PUT, p->buf, MEM_B);
	unsigned most = 0;

	assert_non_null(still);
	for (unsigned i = 0; i < 5; i++) {
		more_open(p, 0, &still[i]);
		still[i].e->window = TCP_MIDS;
		assert_int_equal(still[i].e->ep.ops->post(&still[i].e->ep, &host, NULL), 0);
		pass(p, MS); /* it fills the queue of the socket */
		assert_int_equal(still[i].e->ep.ops->post(&still[i].e->ep, &op, NULL), 0);
	}
	for (unsigned n = 0; n < 100; n++)
		pass(p, MS);
	assert_true(t->nr_staged > 10);	    /* nobody wants them */
	for (unsigned k = 0; k < 20; k++) { /* 3 ms and more */
		assert_int_equal(side_post(p, 0, &op), 0);
		for (unsigned i = 0; i < 2000 && a->nr_done == k; i++) {
			pass(p, 5000);
			most = GX_MAX(most, a->e->tx.staged[0]);
		}
		assert_int_equal(a->nr_done, k + 1);
	}
	assert_true(most >= TCP_FETCH_MAX); /* no operation wants more */
	for (unsigned i = 0; i < 5; i++) {
		gx_link_tcp_ops.cancel(&still[i].e->ep, 7, NULL);
		pass(p, MS);
		more_close(&still[i]);
	}
	free(still);
	pair_settle(p);
	pair_free(p);
}

/* One GPU's chunks do not leave. Those of another one are brought in all the same. */
static void send__each_gpu_has_its_share(void **state)
{
	struct pair *p = gpus_new(1, 5000);
	struct side *a = &p->side[0];
	struct gx_op op = op_at(a, GX_OP_PUT, HALF, HALF);
	struct gx_mem mem = a->mem;
	struct gx_gpu *other;

	assert_int_equal(late_gpu_open(5000, &other), 0);
	other->device = 1;
	assert_int_equal(gx_arena_attach(a->gx->arena, other), 0);
	assert_int_equal(link_tcp_gpu(tcp_core(a->core), other), 0);
	tcp_core_gpu(a->core, 1);
	mem.gpu = other;
	shut_fd = a->e->sock[0].fd;
	a->e->sys = &shut;
	assert_int_equal(side_post(p, 0, &op), 0);
	assert_int_equal(side_post(p, 0, &op), 0);
	for (unsigned i = 0; i < 100; i++)
		pass(p, 10000);
	assert_int_equal(a->e->tx.staged[0], tcp_core(a->core)->gpu[0]->stage_share);
	op.mem = &mem;
	assert_int_equal(side_post(p, 0, &op), 0);
	for (unsigned i = 0; i < 100; i++)
		pass(p, 10000);
	assert_true(a->e->tx.staged[1] > 1);
	assert_int_equal(a->e->tx.nr_staged, a->e->tx.staged[0] + a->e->tx.staged[1]);
	a->e->sys = &tcp_sys_kernel;
	UNTIL(p, a->nr_done == 3);
	assert_int_equal(
		tcp_core(a->core)->gpu[0]->nr_staged + tcp_core(a->core)->gpu[1]->nr_staged, 0);
	pair_done(p);
	gx_gpu_host_ops.close(other);
}

/* Nothing leaves, and others want buffers: chunks that lie in no queue go back, and come again. */
static void send__gives_buffers_back(void **state)
{
	struct pair *p = gpus_new(1, 5000);
	struct side *a = &p->side[0];
	struct tcp_gpu *t = tcp_core(a->core)->gpu[0];
	struct stage_msg other;

	bytes_fill(top(a), HALF, 4);
	stage_msg_init(&other);
	shut_fd = a->e->sock[0].fd;
	a->e->sys = &shut;
	for (unsigned i = 0; i < 2; i++) {
		struct gx_op op = op_at(a, GX_OP_PUT, HALF + i * HALF / 2, HALF / 2);

		op.remote_off = i * HALF / 2;
		assert_int_equal(side_post(p, 0, &op), 0);
	}
	for (unsigned i = 0; i < 100; i++)
		pass(p, MS);
	assert_int_equal(a->e->tx.nr_staged, t->stage_share); /* nobody wants them */
	for (unsigned i = 0; i < 30; i++) {
		while (stage_fetch(t->stage, &other, top(a), CHUNK_B, 0, p->now_ns))
			;
		pass(p, MS);
	}
	assert_int_equal(a->e->tx.nr_staged, a->e->ops[0].queued + a->e->ops[1].queued);
	assert_true(other.next > TCP_STAGE_MAX - t->stage_share);
	stage_drop(t->stage, &other, other.next);
	a->e->sys = &tcp_sys_kernel;
	UNTIL(p, a->nr_done == 2);
	check(p->side[1].mem.addr, top(a), HALF);
	pair_done(p);
}

/* More than the ring holds is on its way, and no block comes back for a while. */
static void ring__is_full(void **state)
{
	const uint64_t len = 3 * TCP_RING_B;
	struct pair *p = pair_new(3);
	struct side *a = &p->side[0], *b = &p->side[1];
	struct gx_mem big = {.gx = b->gx,
			     .addr = malloc(len + 64),
			     .len = len + 64,
			     .access = GX_ACCESS_PUT,
			     .token = TOKEN + 1};
	char *from = malloc(len);
	struct gx_op op = op_of(GX_OP_PUT, from, len);
	uint64_t held_b;

	assert_true(big.addr && from);
	bytes_fill(from, len, 6);
	memset(big.addr, POISON, big.len);
	pair_gpu(p, 1, DELAY_NS);
	big.kind = GX_MEM_CUDA;
	big.gpu = b->gpu;
	atomic_store(&b->gx->region[1], &big);
	op.token = big.token;
	assert_int_equal(side_post(p, 0, &op), 0);
	turns(p, 500);
	held_b = tcp_core(b->core)->gpu[0]->head - tcp_core(b->core)->gpu[0]->tail;
	assert_true(held_b <= TCP_RING_B && held_b > TCP_RING_B - TCP_RING_B / 8);
	is_all(big.addr, big.len, POISON);
	/* The peer speaks meanwhile, and is not silent because nobody reads it. */
	for (unsigned i = 0; i < 100; i++) {
		pass(p, 1000);
		assert_int_equal(side_fault(p, 1), 0);
	}
	UNTIL(p, a->nr_done == 1);
	assert_int_equal(a->last.status, 0);
	check(big.addr, from, len);
	pair_settle(p);
	side_rest(b);
	pair_free(p);
	free(big.addr);
	free(from);
}

/* Small messages whose payload waits in the read-ahead of a socket. */
static void ring__has_no_room_for_small(void **state)
{
	struct pair *p = pair_new(1);
	struct side *a = &p->side[0], *b = &p->side[1];
	struct tcp_gpu *t;
	uint64_t tail;

	pair_gpu(p, 1, 0);
	t = tcp_core(b->core)->gpu[0];
	bytes_fill(p->buf, MEM_B, 6);
	tail = t->tail;
	t->head = tail + TCP_RING_B; /* as if blocks had it all */
	for (unsigned i = 0; i < 300; i++) {
		struct gx_op op = op_of(GX_OP_PUT, p->buf + i * 100, 100);

		op.remote_off = i * 100;
		assert_int_equal(side_post(p, 0, &op), 0);
	}
	for (unsigned i = 0; i < 6000; i++) { /* longer than a peer may be silent */
		p->now_ns += MS;
		turns(p, 1);
		assert_int_equal(side_fault(p, 0) | side_fault(p, 1), 0);
	}
	assert_int_equal(a->nr_done, 0);
	assert_true(b->e->sock[0].to);
	t->head = tail;
	UNTIL(p, a->nr_done == 300);
	check(b->mem.addr, p->buf, 30000);
	pair_done(p);
}

/* ---- Early ends ---- */

/* The operations of op_of() end; when they have, their memory is the user's. */
static void cancel(struct pair *p, unsigned side)
{
	gx_link_tcp_ops.cancel(&p->side[side].e->ep, 7, NULL);
	side_take(&p->side[side]);
}

static void cancel_one(struct pair *p, enum gx_op_kind kind, unsigned turns_before, int byte)
{
	const uint64_t len = (1 << 20) + 9;
	struct side *a = &p->side[0];
	struct gx_op op = op_at(a, kind, 0, len), send = op_of(GX_OP_SEND, p->buf, len);
	unsigned done = a->nr_done;

	assert_int_equal(side_post(p, 0, &op), 0);
	if (kind == GX_OP_RECV)
		assert_int_equal(side_post(p, 1, &send), 0);
	for (unsigned i = 0; i < turns_before; i++) {
		p->now_ns += 700 * (i % 5);
		side_turn(p, i & 1);
	}
	cancel(p, 0);
	UNTIL(p, a->nr_done == done + 1);
	assert_true(!a->last.status || a->last.status == -ECANCELED);
	memset(a->mem.addr, byte, len);
	cancel(p, 1);
	pair_settle(p);
	if (kind != GX_OP_PUT)
		is_all(a->mem.addr, len, byte);
}

static void cancel__at_any_time(void **state)
{
	static const enum gx_op_kind kinds[] = {GX_OP_PUT, GX_OP_GET, GX_OP_RECV};

	for (unsigned delay = 0; delay < 2; delay++) {
		struct pair *p = gpus_new(3, delay ? DELAY_NS : 5000);

		for (unsigned n = 0; n < 60; n++)
			for (unsigned i = 0; i < GX_ARRAY_SIZE(kinds); i++)
				cancel_one(p, kinds[i], n, (int)(n + i));
		pair_done(p);
	}
}

/* The sender gives up when all its bytes wait for the GPU: the place waits, too. */
static void cancel__by_the_sender(void **state)
{
	struct pair *p = pair_new(2);
	struct side *a = &p->side[0], *b = &p->side[1];
	struct gx_op op = op_of(GX_OP_PUT, p->buf, 3 * CHUNK_B), recv, send;

	pair_gpu(p, 1, DELAY_NS);
	op.flags = GX_OP_IMM;
	assert_int_equal(side_post(p, 0, &op), 0);
	turns(p, 20);
	cancel(p, 0);
	assert_int_equal(a->nr_done, 1);
	turns(p, 20);
	assert_true(b->e->rx.nr_held && b->e->in[0].state == TCP_IN_DRAIN && a->e->nr_ops);
	pair_settle(p);
	assert_int_equal(b->nr_notify, 0);
	/* Likewise of a send: the receive ends when its memory is free. */
	recv = op_at(b, GX_OP_RECV, 0, 3 * CHUNK_B);
	send = op_of(GX_OP_SEND, p->buf, 3 * CHUNK_B);
	assert_int_equal(side_post(p, 1, &recv), 0);
	turns(p, 2);
	assert_int_equal(side_post(p, 0, &send), 0);
	turns(p, 20);
	cancel(p, 0);
	turns(p, 20);
	assert_int_equal(b->nr_done, 0);
	UNTIL(p, b->nr_done == 1);
	assert_int_equal(b->last.status, -ECANCELED);
	memset(b->mem.addr, 0x33, MEM_B);
	pair_settle(p);
	is_all(b->mem.addr, MEM_B, 0x33);
	pair_done(p);
}

/* ---- Memory that goes ---- */

static bool is_dropped(struct side *s, uint32_t first)
{
	struct drop d = {.want = 1, .first = first, .upto = 1};

	link_tcp_drop(tcp_core(s->core), &d);
	return d.upto == 1;
}

/* The region is freed when a put has come and waits for the GPU; so is a receive's memory. */
static void mem__freed_with_blocks_out(void **state)
{
	for (unsigned kind = 0; kind < 2; kind++) {
		struct pair *p = pair_new(2);
		struct side *a = &p->side[0], *b = &p->side[1];
		struct gx_op op = op_of(kind ? GX_OP_SEND : GX_OP_PUT, p->buf, 2 * CHUNK_B), recv;

		pair_gpu(p, 1, DELAY_NS);
		recv = op_at(b, GX_OP_RECV, 0, 2 * CHUNK_B);
		if (kind)
			assert_int_equal(side_post(p, 1, &recv), 0);
		assert_int_equal(side_post(p, 0, &op), 0);
		turns(p, 20);
		assert_true(b->e->rx.nr_held);
		b->mem.drop_seq = 1;
		atomic_store(&b->mem.dead, true);
		atomic_store(&b->gx->region[0], NULL);
		assert_false(is_dropped(b, 1));
		pass(p, 1000);
		assert_false(is_dropped(b, 2));
		pass(p, DELAY_NS);
		pass(p, DELAY_NS);
		assert_true(is_dropped(b, 2));
		memset(b->mem.addr, 0x44, MEM_B); /* it is another's */
		pair_settle(p);
		is_all(b->mem.addr, MEM_B, 0x44);
		assert_int_equal(a->last.status, kind ? -ECANCELED : -ESTALE);
		assert_int_equal(b->nr_done, kind);
		atomic_store(&b->mem.dead, false);
		pair_done(p);
	}
}

/* The source is freed while the GPU reads it. */
static void mem__freed_while_staged(void **state)
{
	struct pair *p = gpus_new(2, DELAY_NS);
	struct side *a = &p->side[0];
	struct gx_op op = op_at(a, GX_OP_PUT, 0, 1 << 20), get = op_of(GX_OP_GET, p->buf, 1 << 20);

	assert_int_equal(side_post(p, 0, &op), 0);
	assert_int_equal(side_post(p, 1, &get), 0);
	turns(p, 4);
	assert_true(a->e->tx.nr_staged);
	a->mem.drop_seq = 1;
	atomic_store(&a->mem.dead, true);
	atomic_store(&a->gx->region[0], NULL);
	assert_false(is_dropped(a, 1));
	side_take(a);
	assert_int_equal(a->last.status, -ECANCELED);
	pass(p, DELAY_NS);
	assert_true(is_dropped(a, 2));
	UNTIL(p, p->side[1].nr_done == 1);
	assert_true(p->side[1].last.status == -ESTALE || p->side[1].last.status == -ECANCELED);
	atomic_store(&a->mem.dead, false);
	pair_done(p);
}

/* ---- The connection ends ---- */

/* Does a GPU still copy into the memory of an operation? */
static bool op_is_held(const struct tcp_ep *e)
{
	bool held = false;

	for (unsigned i = 0; i < TCP_MIDS; i++)
		held |= e->in[i].pending && e->in[i].op != TCP_NONE;
	return held;
}

/* With blocks out: the endpoint leaves after them, and then nothing is written any more. */
static void fail__with_blocks_out(void **state)
{
	unsigned nr_held = 0;

	for (unsigned n = 0; n < 40; n += n < 10 ? 1 : 5) {
		struct pair *p = gpus_new(2, DELAY_NS);
		struct side *b = &p->side[1];
		struct gx_ep *ep = &b->e->ep;
		struct gx_op put = op_of(GX_OP_PUT, p->buf, HALF);
		struct gx_op get = op_at(b, GX_OP_GET, HALF, HALF / 2);

		assert_int_equal(side_post(p, 0, &put), 0);
		assert_int_equal(side_post(p, 1, &get), 0);
		pass(p, DELAY_NS);
		pass(p, DELAY_NS); /* the get's bytes are staged */
		turns(p, n);
		if (n == 7)
			shutdown(b->e->sock[0].fd, SHUT_RDWR);
		assert_true(b->e->rx.nr_held);
		ep->ops->ep_fail(ep, -ECONNRESET);
		assert_false(atomic_load(&ep->detached));
		assert_false(link_tcp_asleep(tcp_core(b->core)));
		side_take(b);
		assert_int_equal(b->nr_done, !op_is_held(b->e)); /* its memory is not free */
		nr_held += op_is_held(b->e);
		b->mem.drop_seq = 1; /* the program frees its memory */
		atomic_store(&b->mem.dead, true);
		assert_false(is_dropped(b, 1));
		for (unsigned i = 0; i < 10; i++) {
			p->now_ns += DELAY_NS;
			side_turn(p, 1);
		}
		assert_true(atomic_load(&ep->detached) && link_tcp_asleep(tcp_core(b->core)));
		assert_int_equal(b->nr_done, 1);
		assert_true(is_dropped(b, 2));
		memset(b->mem.addr, 0x55, MEM_B);
		for (unsigned i = 0; i < 10; i++) {
			p->now_ns += DELAY_NS;
			side_turn(p, 1);
		}
		is_all(b->mem.addr, MEM_B, 0x55);
		pair_free(p);
	}
	assert_true(nr_held);
}

/* The GPU does not end a copy: operations that need it fail, and others go on. */
static void gpu__stands_still(void **state)
{
	struct pair *p = pair_new(2);
	struct side *a = &p->side[0], *b = &p->side[1];
	struct gx_op op = op_of(GX_OP_PUT, p->buf, 4 * CHUNK_B), from;

	pair_gpu(p, 1, 100 * GPU_TIMEOUT_NS);
	from = op_at(b, GX_OP_PUT, 0, 4 * CHUNK_B);
	for (unsigned i = 0; i < 30; i++) /* more than the ring has room for */
		assert_int_equal(side_post(p, 0, &op), 0);
	assert_int_equal(side_post(p, 1, &from), 0);
	for (unsigned i = 0; i < 4000 && (a->nr_done < 30 || b->nr_done < 1); i++) {
		pass(p, MS);
		assert_int_equal(side_fault(p, 0) | side_fault(p, 1), 0);
	}
	assert_true(a->nr_done == 30 && b->nr_done == 1);
	assert_int_equal(a->last.status, -EIO);
	assert_int_equal(b->last.status, -EIO);
	assert_int_equal(side_post(p, 0, &op), 0); /* one that comes later fails, too */
	UNTIL(p, a->nr_done == 31);
	assert_int_equal(a->last.status, -EIO);
	op.len = 0;
	assert_int_equal(side_post(p, 0, &op), 0);
	UNTIL(p, a->nr_done == 32);
	assert_int_equal(a->last.status, 0);
	pair_done(p);
}

/* Its buffers could not be had when it was opened. */
static void gpu__has_no_buffers(void **state)
{
	struct pair *p = pair_new(1);
	struct side *a = &p->side[0], *b = &p->side[1];
	struct gx_gpu gpu = {.device = 3};

	b->mem.kind = GX_MEM_CUDA;
	b->mem.gpu = &gpu;
	for (unsigned i = 0; i < 4; i++) {
		struct gx_op op = op_of(i & 1 ? GX_OP_GET : GX_OP_PUT, p->buf, i < 2 ? 0 : 8);

		assert_int_equal(side_post(p, 0, &op), 0);
		UNTIL(p, a->nr_done == i + 1);
		assert_int_equal(a->last.status, i < 2 ? 0 : -EIO);
		op = op_at(b, op.kind, 0, op.len);
		if (i >= 2)
			assert_int_equal(side_post(p, 1, &op), -ENOMEM);
	}
	is_all(b->mem.addr, MEM_B, POISON);
	pair_done(p);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(put_get__sizes),
		cmocka_unit_test(put_get__with_a_host),
		cmocka_unit_test(put_get__split_anywhere),
		cmocka_unit_test(put__many_small),
		cmocka_unit_test(put__pieces_are_merged),
		cmocka_unit_test(landed__waits_for_the_copy),
		cmocka_unit_test(recv__waits_for_the_copy),
		cmocka_unit_test(send__waits_for_the_copy),
		cmocka_unit_test(send__a_socket_stands),
		cmocka_unit_test(send__slow_peers_leave_buffers),
		cmocka_unit_test(send__standing_peers_give_way),
		cmocka_unit_test(send__each_gpu_has_its_share),
		cmocka_unit_test(send__gives_buffers_back),
		cmocka_unit_test(ring__is_full),
		cmocka_unit_test(ring__has_no_room_for_small),
		cmocka_unit_test(cancel__at_any_time),
		cmocka_unit_test(cancel__by_the_sender),
		cmocka_unit_test(mem__freed_with_blocks_out),
		cmocka_unit_test(mem__freed_while_staged),
		cmocka_unit_test(fail__with_blocks_out),
		cmocka_unit_test(gpu__stands_still),
		cmocka_unit_test(gpu__has_no_buffers),
	};

	pair_sealed = argc > 1 && !strcmp(argv[1], "sealed");
	return cmocka_run_group_tests_name("tcp_gpu", tests, NULL, NULL);
}
