/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Endpoints of the tcp link whose sockets io_uring receives from, end to end over the real kernel's
 * ring. Exit 77 where it gives none to this process.
 */
#include "tcp/tcp_pair.h"
#include "tcp/uring_rx.h"

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define HALF	 (MEM_B / 2)
#define DELAY_NS (2 * MS)

static char *pools[2];

/* Both ends receive so, or one. */
static struct pair *rings_new(unsigned nr_socks, unsigned sides)
{
	struct pair *p = pair_new(nr_socks);
	char why[TCP_WHY_B];

	for (unsigned i = 0; i < 2; i++) {
		struct link_tcp *l = p->side[i].core->tcp;

		if (!(sides >> i & 1))
			continue;
		assert_int_equal(tcp_uring_open(l, pools[i], why), 0);
		assert_int_equal(tcp_uring_give(p->side[i].e), 0);
	}
	return p;
}

static struct gx_op op_at(const struct side *s, enum gx_op_kind kind, uint64_t off, uint64_t len)
{
	struct gx_op op = op_of(kind, NULL, len);

	op.mem = (struct gx_mem *)&s->mem;
	op.off = off;
	return op;
}

/* A put from one side to the other, a send, and a get back. */
static void move(struct pair *p, unsigned from, uint64_t len, uint64_t off)
{
	struct side *a = &p->side[from], *b = &p->side[!from];
	struct gx_op op = op_at(a, GX_OP_PUT, HALF, len), recv = op_at(b, GX_OP_RECV, off, len);
	unsigned done = a->nr_done;

	bytes_fill(a->mem.addr + HALF, len, (unsigned)(len + off));
	memset(b->mem.addr, POISON, off + len);
	op.remote_off = off;
	assert_int_equal(side_post(p, from, &op), 0);
	UNTIL(p, a->nr_done == done + 1);
	assert_int_equal(a->last.status, 0);
	assert_memory_equal(b->mem.addr + off, a->mem.addr + HALF, len);
	memset(b->mem.addr, POISON, off + len);
	op.kind = GX_OP_SEND;
	assert_int_equal(side_post(p, !from, &recv), 0);
	assert_int_equal(side_post(p, from, &op), 0);
	UNTIL(p, a->nr_done == done + 2 && b->last.op == GX_OP_RECV);
	assert_memory_equal(b->mem.addr + off, a->mem.addr + HALF, len);
	memset(a->mem.addr, POISON, len);
	op = op_at(a, GX_OP_GET, 0, len);
	op.remote_off = off;
	assert_int_equal(side_post(p, from, &op), 0);
	UNTIL(p, a->nr_done == done + 3);
	assert_int_equal(a->last.status, 0);
	assert_memory_equal(a->mem.addr, a->mem.addr + HALF, len);
	b->last = (struct gx_comp){0};
}

static const uint64_t sizes[] = {0,	1,     63,     64,     4095,	16384,	      65535,
				 65536, 65537, 131072, 262145, 1000000, (1 << 20) + 1};

static void move__sizes(void **state)
{
	for (unsigned nr = 1; nr <= 4; nr += 3)
		for (unsigned sides = 1; sides <= 3; sides++) {
			struct pair *p = rings_new(nr, sides);

			for (unsigned k = 0; k < GX_ARRAY_SIZE(sizes); k++) {
				move(p, 0, sizes[k], k * 13);
				move(p, 1, sizes[k], k);
			}
			pair_done(p);
		}
}

/* A GPU reads the buffers where they are, and copies late. */
static void move__gpu(void **state)
{
	static const uint64_t delays_ns[] = {0, 3000, 300000};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(delays_ns); i++) {
		struct pair *p = rings_new(3, 3);

		pair_gpu(p, 1, delays_ns[i]);
		for (unsigned k = 0; k < GX_ARRAY_SIZE(sizes); k++) {
			move(p, 0, sizes[k], k * 13);
			move(p, 1, sizes[k], k);
		}
		pair_done(p);
	}
}

/* The same sockets send without a copy. Then the error queue has news again and again, which io_uring
 * sees as well. */
static void move__without_a_copy(void **state)
{
	struct pair *p;

	pair_tx = GX_TCP_TX_ZEROCOPY;
	pair_is_tcp = true;
	p = rings_new(2, 3);
	pair_tx = 0;
	pair_is_tcp = false;
	for (unsigned i = 0; i < 20; i++) {
		move(p, i % 2, sizes[i % GX_ARRAY_SIZE(sizes)], i);
		move(p, i % 2, (1 << 20) + i, i);
	}
	for (unsigned side = 0; side < 2; side++) {
		const struct gx_stats *st = &p->side[side].core->loop.stats;

		assert_true(gx_stat_get(st, GX_STAT_TCP_ZC_SENDS) > 0);
		assert_int_equal(side_fault(p, side), 0);
	}
	pair_done(p);
}

static void put__many_small(void **state)
{
	struct pair *p = rings_new(3, 3);
	struct side *a = &p->side[0], *b = &p->side[1];
	unsigned posted = 0;

	bytes_fill(p->buf, HALF, 5);
	while (posted < 5000) {
		struct gx_op op = op_of(GX_OP_PUT, p->buf + posted * 48ull, 48);

		op.remote_off = posted * 48;
		posted += !side_post(p, 0, &op);
		p->now_ns += 1000;
		side_turn(p, 0);
		side_turn(p, 1);
	}
	UNTIL(p, a->nr_done == posted);
	assert_memory_equal(b->mem.addr, p->buf, posted * 48);
	pair_done(p);
}

/* More bytes than the pool has, while a GPU takes its time: the pool runs empty, and the sockets go
 * on in their order. */
static void put__pool_is_empty(void **state)
{
	struct pair *p = rings_new(4, 2);
	struct side *a = &p->side[0], *b = &p->side[1];

	pair_gpu(p, 1, DELAY_NS);
	bytes_fill(p->buf, MEM_B, 9);
	for (unsigned i = 0; i < 6; i++) { /* the same bytes several times */
		struct gx_op op = op_of(GX_OP_PUT, p->buf, MEM_B);

		assert_int_equal(side_post(p, 0, &op), 0);
	}
	UNTIL(p, a->nr_done == 6);
	assert_memory_equal(b->mem.addr, p->buf, MEM_B);
	pair_done(p);
}

/* A DATA frame with @len bytes of payload, whole, as a peer sends it. */
static void frame_write(int fd, uint32_t mid, uint64_t token, uint32_t len)
{
	static uint8_t b[TCP_HDR_B + CHUNK_B + TCP_TAIL_B];
	struct tcp_frame f = {
		.type = TCP_DATA, .mid = mid, .token = token, .len = len, .plen = len};
	size_t all = TCP_HDR_B + len + TCP_TAIL_B;

	tcp_frame_put(b, &f);
	memset(b + TCP_HDR_B, (int)mid, len);
	tcp_tail_put(b + TCP_HDR_B + len, TCP_TAIL_GOOD);
	assert_int_equal(write(fd, b, all), all);
}

static bool is_done(int fd)
{
	uint8_t b[TCP_HDR_B];

	return recv(fd, b, sizeof(b), MSG_DONTWAIT) == sizeof(b) && b[0] == TCP_DONE;
}

static void turns(struct pair *p, unsigned n, uint64_t ns)
{
	for (; n; n--) {
		p->now_ns += ns;
		side_turn(p, 0);
		side_turn(p, 1);
	}
}

/* A GPU stands still, and its sockets have as many bytes for it as they can. The others of the core go
 * on, and so do these when the GPU does. */
static void isolation__gpu_stands_still(void **state)
{
	struct pair *p = rings_new(4, 2);
	struct side *a = &p->side[0], *b = &p->side[1];
	struct gx_mem host = {.gx = b->gx,
			      .addr = p->buf,
			      .len = CHUNK_B,
			      .access = GX_ACCESS_PUT,
			      .token = TOKEN + 1};
	struct uring_rx *rx = b->core->tcp->uring;
	char *src = calloc(1, MEM_B);
	struct gx_op op = op_of(GX_OP_PUT, src, MEM_B);
	struct more m = {0};

	assert_non_null(src);
	pair_gpu(p, 1, GPU_TIMEOUT_NS / 10 * 9);
	atomic_store(&b->gx->region[1], &host);
	more_open(p, 1, &m);
	bytes_fill(src, MEM_B, 3);
	a->e->window = b->e->window = MEM_B / CHUNK_B;
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(side_post(p, 0, &op), 0);
	turns(p, 2000, 1000);
	assert_int_equal(a->nr_done, 0);
	assert_true(rx->stat.paused && rx->kind->room(rx) > 16);
	for (unsigned i = 0; i < 100; i++) {
		bool done = false;

		frame_write(m.fd, i, TOKEN + 1, 60000);
		for (unsigned k = 0; k < 20 && !done; k++) {
			turns(p, 1, 1000);
			done = is_done(m.fd);
		}
		assert_true(done);
		assert_int_equal(p->buf[59999], (char)i);
	}
	assert_int_equal(a->nr_done, 0);
	for (unsigned i = 0; i < 60000 && a->nr_done < 2; i++)
		turns(p, 1, MS);
	assert_int_equal(a->nr_done, 2);
	assert_int_equal(a->last.status, 0);
	assert_memory_equal(b->mem.addr, src, MEM_B);
	more_close(&m);
	pair_settle(p);
	assert_int_equal(rx->charged, 0);
	atomic_store(&b->gx->region[1], NULL);
	pair_done(p);
	free(src);
}

/* All buffers are there again when nothing is under way. */
static void rest__pool_is_whole(void **state)
{
	struct pair *p = rings_new(2, 2);
	struct uring_rx *rx = p->side[1].core->tcp->uring;

	for (unsigned k = 0; k < GX_ARRAY_SIZE(sizes); k++)
		move(p, 0, sizes[k], 0);
	pair_settle(p);
	side_turn(p, 1);
	assert_int_equal(rx->nr_free, rx->nr_recs);
	assert_int_equal(rx->kind->room(rx), TCP_POOL_B / TCP_BUF_B);
	assert_int_equal(rx->stat.strays, 0);
	pair_done(p);
}

/* The endpoint ends while a GPU reads buffers: it leaves behind the copies, and its places in the
 * ring are free soon after. */
static void end__while_copying(void **state)
{
	struct pair *p = rings_new(3, 2);
	struct side *b = &p->side[1];
	struct gx_op op = op_of(GX_OP_PUT, p->buf, 8 * CHUNK_B);
	struct gx_ep *ep = &b->e->ep;

	pair_gpu(p, 1, 50 * DELAY_NS);
	assert_int_equal(side_post(p, 0, &op), 0);
	UNTIL(p, b->e->nr_held);
	assert_true(tcp_uring_is_busy(b->core->tcp));
	ep->ops->ep_fail(ep, -ECONNRESET);
	assert_false(atomic_load(&ep->detached));
	for (unsigned i = 0; i < 100 && !atomic_load(&ep->detached); i++)
		link_tcp_poll(b->core->tcp, p->now_ns += 10 * MS);
	assert_true(atomic_load(&ep->detached));
	for (unsigned i = 0; i < 4; i++)
		link_tcp_poll(b->core->tcp, p->now_ns += MS);
	assert_false(tcp_uring_is_busy(b->core->tcp));
	assert_true(link_tcp_asleep(b->core->tcp));
	assert_int_equal(b->core->tcp->uring->nr_free, b->core->tcp->uring->nr_recs);
	pair_free(p);
}

/* Nothing but its cancel is left: the core stays awake for that. */
static void end__core_stays_awake(void **state)
{
	struct pair *p = rings_new(1, 2);
	struct side *b = &p->side[1];

	move(p, 0, 1000, 0);
	pair_settle(p);
	b->e->ep.ops->ep_fail(&b->e->ep, -ECONNRESET);
	assert_true(atomic_load(&b->e->ep.detached));
	assert_false(link_tcp_asleep(b->core->tcp));
	for (unsigned i = 0; i < 4; i++)
		link_tcp_poll(b->core->tcp, p->now_ns += MS);
	assert_true(link_tcp_asleep(b->core->tcp));
	pair_free(p);
}

/* The socket is closed before the core has turned again: the peer hears of it all the same. */
static void end__peer_hears(void **state)
{
	struct pair *p = rings_new(1, 2);
	struct side *b = &p->side[1];
	char byte;

	move(p, 0, 1000, 0);
	pair_settle(p);
	b->e->ep.ops->ep_fail(&b->e->ep, -ECONNRESET);
	tcp_feed_close(b->core->tcp, &b->e->sock[0]);
	b->e->nr_socks = 0;
	assert_true(tcp_uring_is_busy(b->core->tcp));
	assert_int_equal(recv(p->side[0].e->sock[0].fd, &byte, 1, MSG_DONTWAIT), 0);
	pair_free(p);
}

static void end__peer_is_gone(void **state)
{
	struct pair *p = rings_new(2, 3);

	move(p, 0, 1000, 0);
	shutdown(p->side[0].e->sock[1].fd, SHUT_RDWR);
	for (unsigned i = 0; i < 1000 && !side_fault(p, 1); i++) {
		p->now_ns += MS;
		side_turn(p, 1);
	}
	assert_int_equal(side_fault(p, 1), -ECONNRESET);
	pair_free(p);
}

/* A socket that broke the protocol is not read on, so its bytes do not fill the pool. */
static void end__peer_lies(void **state)
{
	struct pair *p = rings_new(1, 2);
	struct uring_rx *rx = p->side[1].core->tcp->uring;

	memset(p->buf, 0xee, MEM_B);
	send(p->side[0].e->sock[0].fd, p->buf, 65536, MSG_DONTWAIT);
	for (unsigned i = 0; i < 1000 && !side_fault(p, 1); i++) {
		p->now_ns += MS;
		side_turn(p, 1);
	}
	assert_int_equal(side_fault(p, 1), -EPROTO);
	side_turn(p, 1);
	side_turn(p, 1);
	assert_false(tcp_uring_is_busy(p->side[1].core->tcp));
	assert_int_equal(rx->kind->room(rx), TCP_POOL_B / TCP_BUF_B);
	pair_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(move__sizes),
		cmocka_unit_test(move__gpu),
		cmocka_unit_test(move__without_a_copy),
		cmocka_unit_test(put__many_small),
		cmocka_unit_test(put__pool_is_empty),
		cmocka_unit_test(isolation__gpu_stands_still),
		cmocka_unit_test(rest__pool_is_whole),
		cmocka_unit_test(end__while_copying),
		cmocka_unit_test(end__peer_hears),
		cmocka_unit_test(end__core_stays_awake),
		cmocka_unit_test(end__peer_is_gone),
		cmocka_unit_test(end__peer_lies),
	};
	struct io_ring_cfg cfg = {.sys = &io_ring_sys_kernel, .entries = 2, .cq_entries = 4};
	char why[IO_RING_WHY_B];
	struct io_ring ring;
	int ret;

	if (io_ring_open(&ring, &cfg, why)) {
		fprintf(stderr, "test_tcp_uring: skipped: %s\n", why);
		return 77;
	}
	io_ring_close(&ring);
	for (unsigned i = 0; i < 2; i++)
		pools[i] = gx_pages_get(TCP_POOL_B);
	ret = cmocka_run_group_tests_name("tcp_uring", tests, NULL, NULL);
	for (unsigned i = 0; i < 2; i++)
		gx_pages_put(pools[i], TCP_POOL_B);
	return ret;
}
