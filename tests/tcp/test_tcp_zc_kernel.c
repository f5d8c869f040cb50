/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Link tcp sends without a copy by the real kernel, over TCP of loopback, where it copies all the same
 * when the bytes arrive: until then it refers to the source.
 */
#include "tcp/tcp_pair.h"

#include <sys/mman.h>

#define SRC_B (4u << 20)

static char *src;

static struct pair *kernel_new(unsigned nr_socks, unsigned how)
{
	struct pair *p;

	pair_tx = how;
	pair_is_tcp = true;
	p = pair_new(nr_socks);
	pair_tx = 0;
	pair_is_tcp = false;
	return p;
}

static int setup(void **state)
{
	src = mmap(NULL, SRC_B, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return src == MAP_FAILED ? -1 : 0;
}

static int teardown(void **state)
{
	return munmap(src, SRC_B);
}

static uint64_t stat(const struct pair *p, enum gx_stat_id id)
{
	return gx_stat_get(&p->side[0].core->loop.stats, id);
}

static void kernel_done(struct pair *p)
{
	UNTIL(p,
	      pair_is_at_rest(p) && !tcp_zc_is_out(p->side[0].e) && !tcp_zc_is_out(p->side[1].e));
	pair_done(p);
}

static void put_get(struct pair *p, uint64_t len, unsigned seed)
{
	struct side *a = &p->side[0], *b = &p->side[1];
	struct gx_op op = op_of(GX_OP_PUT, src, len);
	unsigned done = a->nr_done;

	bytes_fill(src, len, seed);
	memcpy(p->buf, src, len);
	assert_int_equal(side_post(p, 0, &op), 0);
	UNTIL(p, a->nr_done == done + 1);
	memset(src, 0x33, len); /* it is the program's again */
	assert_int_equal(a->last.status, 0);
	assert_memory_equal(b->mem.addr, p->buf, len);
	op = op_of(GX_OP_GET, src, len);
	assert_int_equal(side_post(p, 0, &op), 0);
	UNTIL(p, a->nr_done == done + 2);
	assert_int_equal(a->last.status, 0);
	assert_memory_equal(src, p->buf, len);
}

static void put_get__bytes(void **state)
{
	static const uint64_t sizes[] = {0, 1, 32767, 32768, 65537, 1000000, SRC_B};

	for (unsigned nr = 1; nr <= 4; nr += 3) {
		struct pair *p = kernel_new(nr, GX_TCP_TX_ZEROCOPY);

		for (unsigned i = 0; i < 3 * GX_ARRAY_SIZE(sizes); i++)
			put_get(p, sizes[i % GX_ARRAY_SIZE(sizes)], i);
		assert_true(stat(p, GX_STAT_TCP_ZC_SENDS) > 0);
		assert_true(stat(p, GX_STAT_TCP_ZC_COPIED) > 0);
		assert_int_equal(stat(p, GX_STAT_TCP_ZC_LOST), 0);
		kernel_done(p);
	}
}

static bool is_off(const struct tcp_ep *e, unsigned i)
{
	return !e->zc->sock[i].on && !e->sock[i].tx_ended;
}

/* Loopback copies, so a socket stops it. The other one may send nothing from then on: chunks go to
 * the faster one. */
static void auto__stops(void **state)
{
	struct pair *p = kernel_new(2, GX_TCP_TX_AUTO);
	const struct tcp_ep *e = p->side[0].e;

	for (unsigned i = 0; i < 1000 && !is_off(e, 0) && !is_off(e, 1); i++)
		put_get(p, SRC_B / 2, i);
	assert_true(is_off(e, 0) || is_off(e, 1));
	assert_true(stat(p, GX_STAT_TCP_ZC_COPIED) >= ZC_COPIES);
	put_get(p, SRC_B / 2, 1000);
	kernel_done(p);
}

/* The peer reads nothing, so the kernel keeps what the sockets of both ends hold. */
static void stuck(struct pair *p)
{
	struct gx_op op = op_of(GX_OP_PUT, src, SRC_B);

	for (unsigned i = 0; i < 16; i++) {
		op.remote_off = 0;
		assert_int_equal(side_post(p, 0, &op), 0);
	}
	for (unsigned i = 0; i < 2000; i++) {
		p->now_ns += 1000;
		side_turn(p, 0);
	}
	assert_int_equal(p->side[0].nr_done, 0);
	assert_true(tcp_zc_is_out(p->side[0].e));
}

static int cancel(struct pair *p)
{
	int n = gx_link_tcp_ops.cancel(&p->side[0].e->ep, 7, NULL);

	side_take(&p->side[0]);
	return n;
}

/* What the kernel has waits for the peer, and the connection lives. */
static void cancel__waits(void **state)
{
	struct pair *p = kernel_new(1, GX_TCP_TX_ZEROCOPY);
	struct side *a = &p->side[0];

	p->side[0].e->window = p->side[1].e->window = 64;
	stuck(p);
	assert_int_equal(cancel(p), 16);
	assert_true(a->nr_done < 16);
	for (unsigned i = 0; i < 2000; i++) {
		p->now_ns += 1000;
		side_turn(p, 0);
	}
	assert_true(a->nr_done < 16);
	UNTIL(p, a->nr_done == 16);
	memset(src, 0x44, SRC_B);
	put_get(p, SRC_B, 9);
	kernel_done(p);
}

/* The peer never reads again: the reset has the kernel let go of all, and tell so. */
static void end__resets(void **state)
{
	struct pair *p = kernel_new(2, GX_TCP_TX_ZEROCOPY);
	struct side *a = &p->side[0];
	struct gx_ep *ep = &a->e->ep;

	p->side[0].e->window = p->side[1].e->window = 64;
	stuck(p);
	ep->ops->ep_fail(ep, -ETIMEDOUT);
	side_take(a);
	assert_true(a->nr_done < 16);
	for (unsigned i = 0; i < 400 && !atomic_load(&ep->detached); i++) {
		p->now_ns += MS;
		side_turn(p, 0);
	}
	assert_true(atomic_load(&ep->detached));
	assert_int_equal(a->nr_done, 16);
	assert_int_equal(a->last.status, -ETIMEDOUT);
	assert_int_equal(stat(p, GX_STAT_TCP_ZC_LOST), 0);
	pair_free(p);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(put_get__bytes),
		TEST(auto__stops),
		TEST(cancel__waits),
		TEST(end__resets),
	};

	return cmocka_run_group_tests_name("tcp_zc_kernel", tests, NULL, NULL);
}
