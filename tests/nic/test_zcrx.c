/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zcrx.c. Without an argument: over a scripted kernel and NIC (zcrx_script.h). kernel: this host's
 * kernel, which refuses lo and a veth pair, in a network namespace of our own; 77 where that takes
 * rights that we lack.
 */
#include "nic/zcrx.h"
#include "nic/zcrx_script.h"

#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGE_B	ZS_PAGE_B
#define PAGES	32
#define AREA_B	(PAGES * PAGE_B)
#define REFILLS 8
#define SOCKS	4
#define FRAGS	32
#define HELD	256
#define STORM	120000u /* completions */
#define TURNS	1000000u
#define TOKEN	ZS_TOKEN
#define FIRST	ZS_FIRST

static struct ring_script k;
static _Alignas(4096) char area[AREA_B];
static struct zcrx_script nic;

/* @n bytes for @sock, at most as many as its page has left. Return: bytes. */
static unsigned nic_bytes(unsigned sock, unsigned n)
{
	uint32_t room;
	char *at = zs_room(&nic, &room);

	if (!at)
		return 0;
	n = GX_MIN(n, room);
	for (unsigned i = 0; i < n; i++)
		at[i] = rs_byte(sock, k.sock[sock].pos++);
	zs_post(&nic, sock, n);
	return n;
}

struct rig {
	struct uring_rx *rx;
	struct uring_frag frag[FRAGS];
	char why[IO_RING_WHY_B];
};

static struct zcrx_cfg rig_cfg(void)
{
	rs_open(&k, 3);
	zs_open(&nic, &k, area);
	return (struct zcrx_cfg){.sys = &ring_script_sys,
				 .name = "eth9",
				 .ifindex = 5,
				 .queue = 2,
				 .area = area,
				 .area_b = AREA_B,
				 .dmabuf_fd = -1,
				 .nr_refill = REFILLS,
				 .nr_socks = SOCKS,
				 .depth = 64};
}

static void rig_open(struct rig *r)
{
	struct zcrx_cfg cfg = rig_cfg();

	assert_int_equal(zcrx_open(&cfg, &r->rx, r->why), 0);
}

static void turn(struct rig *r)
{
	rs_flag(&k, IORING_SQ_TASKRUN);
	uring_rx_turn(r->rx);
}

/* All is back: records, pages, receives. */
static void rig_close(struct rig *r)
{
	for (uint32_t i = 0; i < SOCKS; i++)
		if (r->rx->sock[i].state != URING_FREE) {
			uring_rx_leave(r->rx, i);
			for (int n = 0; n < 8 && !uring_rx_left(r->rx, i); n++)
				turn(r);
			assert_int_equal(r->rx->sock[i].state, URING_FREE);
		}
	for (int i = 0; i < 2 * PAGES && r->rx->nr_free != r->rx->nr_recs; i++) {
		zcrx_flush(r->rx);
		zs_refill(&nic, UINT32_MAX);
	}
	zcrx_flush(r->rx);
	zs_refill(&nic, UINT32_MAX);
	zs_leave_page(&nic);
	assert_int_equal(r->rx->nr_free, r->rx->nr_recs);
	assert_int_equal(nic.nr_free, PAGES);
	assert_int_equal(nic.nr_refills, nic.nr_cqes);
	assert_int_equal(nic.nr_wrong + k.nr_bad, 0);
	uring_rx_close(r->rx);
	rs_close(&k);
}

static uint32_t sock_add(struct rig *r, int fd)
{
	int i = uring_rx_add(r->rx, fd);

	assert_true(i >= 0);
	uring_rx_turn(r->rx);
	assert_true(k.sock[fd].is_armed);
	return (uint32_t)i;
}

/* ---- opening ---- */

static void open__words(void **state)
{
	struct rig r;

	rig_open(&r);
	assert_true(k.flags & IORING_SETUP_CQE32 && k.flags & IORING_SETUP_DEFER_TASKRUN);
	assert_int_equal(nic.reg.ifindex, 5);
	assert_int_equal(nic.reg.queue, 2);
	assert_int_equal(nic.reg.entries, REFILLS);
	assert_int_equal(nic.reg.flags, 0);
	assert_ptr_equal((char *)(uintptr_t)nic.area.addr, area);
	assert_int_equal(nic.area.len, AREA_B);
	assert_int_equal(nic.area.flags | nic.area.dmabuf_fd, 0);
	assert_int_equal(nic.region.flags, ZCRX_REGION_USER);
	sock_add(&r, 1);
	assert_int_equal(k.sock[1].opcode, ZCRX_OP_RECV);
	rig_close(&r);
}

static void open__dmabuf(void **state)
{
	struct zcrx_cfg cfg = rig_cfg();
	struct rig r;

	cfg.dmabuf_fd = 33;
	assert_int_equal(zcrx_open(&cfg, &r.rx, r.why), 0);
	assert_int_equal(nic.area.addr, 0);
	assert_int_equal(nic.area.flags, ZCRX_AREA_DMABUF);
	assert_int_equal(nic.area.dmabuf_fd, 33);
	rig_close(&r);
}

static void open__refused(void **state)
{
	static const struct {
		int err;
		const char *word;
	} t[] = {{-EPERM, "CAP_NET_ADMIN"}, {-EOPNOTSUPP, "driver"}, {-EINVAL, "6.15"},
		 {-ENODEV, "interface"},    {-EEXIST, "holds"},	     {-ENOMEM, "ulimit"}};

	for (size_t i = 0; i < GX_ARRAY_SIZE(t); i++) {
		struct zcrx_cfg cfg = rig_cfg();
		struct rig r;

		nic.err = t[i].err;
		assert_int_equal(zcrx_open(&cfg, &r.rx, r.why), t[i].err);
		assert_non_null(strstr(r.why, t[i].word));
		assert_non_null(strstr(r.why, "eth9"));
		rs_close(&k);
	}
}

/* The kernel lays the refill ring out beyond its memory. */
static void open__nonsense(void **state)
{
	static const struct zcrx_offsets t[] = {{.tail = 4, .entries = 2 * PAGE_B},
						{.tail = 4, .entries = UINT32_MAX - 15},
						{.tail = 4, .entries = 65},
						{.tail = 2 * PAGE_B, .entries = 64},
						{.head = 2, .tail = 4, .entries = 64}};

	for (size_t i = 0; i < GX_ARRAY_SIZE(t); i++) {
		struct zcrx_cfg cfg = rig_cfg();
		struct rig r;

		nic.offsets = t[i];
		assert_int_equal(zcrx_open(&cfg, &r.rx, r.why), -EPROTO);
		rs_close(&k);
	}
}

static void open__wrong(void **state)
{
	struct zcrx_cfg good = rig_cfg(), cfg[5];
	struct rig r;

	for (size_t i = 0; i < GX_ARRAY_SIZE(cfg); i++)
		cfg[i] = good;
	cfg[0].area_b = PAGE_B + 1;
	cfg[1].nr_refill = 12;
	cfg[2].area_b = (1ull << 32) + PAGE_B;
	cfg[3].depth = 0;
	cfg[4].area = NULL;
	for (size_t i = 0; i < GX_ARRAY_SIZE(cfg); i++)
		assert_int_equal(zcrx_open(&cfg[i], &r.rx, r.why), -EINVAL);
	rs_close(&k);
}

/* ---- fragments ---- */

static void pull__page(void **state)
{
	unsigned enters;
	struct rig r;
	uint32_t s;

	rig_open(&r);
	s = sock_add(&r, 1);
	nic_bytes(1, 1448);
	nic_bytes(1, 1448);
	turn(&r);
	assert_int_equal(uring_rx_pull(r.rx, s, 2000, r.frag, FRAGS), 2);
	assert_ptr_equal(r.frag[0].src, area);
	assert_ptr_equal(r.frag[1].src, area + 1448);
	assert_int_equal(r.frag[1].len, 552);
	enters = k.enters;
	uring_done(r.rx, r.frag[1].ref); /* 896 bytes of it are not pulled */
	uring_done(r.rx, r.frag[0].ref);
	uring_rx_turn(r.rx);
	assert_int_equal(k.enters, enters); /* the page goes back without a system call */
	zs_refill(&nic, UINT32_MAX);
	assert_int_equal(nic.nr_refills, 1);
	assert_int_equal(uring_rx_pull(r.rx, s, 2000, r.frag, FRAGS), 1);
	assert_int_equal(r.frag[0].len, 896);
	uring_done(r.rx, r.frag[0].ref);
	uring_rx_turn(r.rx);
	zs_refill(&nic, UINT32_MAX);
	assert_int_equal(nic.nr_refills, 2);
	rig_close(&r);
}

/* Refills: whole completions, in the order in which they were done, and no more than fit. */
static void give__order(void **state)
{
	const struct zcrx_refill *ring;
	uint32_t s, head;
	struct rig r;

	rig_open(&r);
	ring = (void *)(nic.ring + nic.offsets.entries);
	s = sock_add(&r, 1);
	for (unsigned i = 0; i < REFILLS + 3; i++)
		nic_bytes(1, 100);
	turn(&r);
	assert_int_equal(uring_rx_pull(r.rx, s, UINT64_MAX, r.frag, FRAGS), REFILLS + 3);
	for (unsigned i = REFILLS + 3; i--;)
		uring_done(r.rx, r.frag[i].ref);
	assert_int_equal(atomic_load(zs_word(&nic, 4)), FIRST); /* published by a turn */
	uring_rx_turn(r.rx);
	head = atomic_load(zs_word(&nic, 0));
	assert_int_equal(atomic_load(zs_word(&nic, 4)) - head, REFILLS);
	for (unsigned i = 0; i < REFILLS; i++) {
		assert_int_equal(ring[(head + i) & (REFILLS - 1)].off,
				 TOKEN + 100 * (REFILLS + 2 - i));
		assert_int_equal(ring[(head + i) & (REFILLS - 1)].len, 100);
	}
	zs_refill(&nic, 2);
	uring_rx_turn(r.rx);
	head = atomic_load(zs_word(&nic, 0));
	assert_int_equal(atomic_load(zs_word(&nic, 4)) - head, REFILLS);
	assert_int_equal(ring[(head + REFILLS - 2) & (REFILLS - 1)].off, TOKEN + 200);
	assert_int_equal(ring[(head + REFILLS - 1) & (REFILLS - 1)].off, TOKEN + 100);
	rig_close(&r);
}

static void place__nonsense(void **state)
{
	static const struct {
		int res;
		uint64_t off;
	} t[] = {{1, TOKEN + AREA_B},	   {2, TOKEN + AREA_B - 1}, {1, 0},
		 {1, UINT64_MAX},	   {1, TOKEN - 1},	    {INT32_MAX, TOKEN},
		 {1, TOKEN + (1ull << 48)}};

	for (size_t i = 0; i < GX_ARRAY_SIZE(t); i++) {
		struct zcrx_cqe more = {.off = t[i].off};
		struct io_uring_cqe *cqe;
		struct rig r;
		uint32_t s;

		rig_open(&r);
		s = sock_add(&r, 1);
		cqe = rs_post(&k, k.sock[1].data, t[i].res, IORING_CQE_F_MORE);
		memcpy(cqe->big_cqe, &more, sizeof(more));
		turn(&r);
		assert_int_equal(uring_rx_pull(r.rx, s, 1, r.frag, FRAGS), -EPROTO);
		uring_rx_turn(r.rx);
		assert_false(k.sock[1].is_armed);
		rig_close(&r);
	}
}

/* No page is free, or no completion: the receive comes again. Bytes beside a dma-buf: it ends. */
static void end__each(void **state)
{
	struct rig r;
	uint32_t s;

	rig_open(&r);
	s = sock_add(&r, 1);
	rs_end(&k, 1, -ENOMEM, 0);
	turn(&r);
	turn(&r);
	assert_true(k.sock[1].is_armed);
	rs_end(&k, 1, -ENOSPC, 0);
	turn(&r);
	turn(&r);
	assert_true(k.sock[1].is_armed);
	rs_end(&k, 1, -EFAULT, 0);
	turn(&r);
	assert_int_equal(uring_rx_pull(r.rx, s, 1, r.frag, FRAGS), -EFAULT);
	s = sock_add(&r, 2);
	rs_end(&k, 2, 0, 0);
	turn(&r);
	assert_int_equal(uring_rx_pull(r.rx, s, 1, r.frag, FRAGS), -ESHUTDOWN);
	rig_close(&r);
}

/* ---- a storm ---- */

static struct {
	struct {
		struct uring_frag f;
		unsigned sock;
		uint64_t at;
	} held[HELD];
	unsigned nr_held;
	uint64_t pos[SOCKS];
} st;

static unsigned frag_len(struct ring_script *s)
{
	switch (rs_rnd(s) % 4) {
	case 0:
		return 1 + (unsigned)(rs_rnd(s) % 64);
	case 1:
		return 1448;
	case 2:
		return 1 + (unsigned)(rs_rnd(s) % PAGE_B);
	default:
		return PAGE_B;
	}
}

static void storm_work(struct ring_script *s)
{
	zs_refill(&nic, (unsigned)(rs_rnd(s) % (2 * REFILLS)));
	for (unsigned i = 0; i < SOCKS; i++) {
		unsigned n = (unsigned)(rs_rnd(s) % 4);

		while (s->sock[i].is_armed && n-- && nic.nr_cqes < STORM) {
			if (rs_full(s))
				rs_end(s, i, -ENOSPC, 0);
			else if (rs_rnd(s) % 60 == 0)
				rs_end(s, i, -EINTR, 0);
			else if (!nic_bytes(i, frag_len(s)))
				rs_end(s, i, -ENOMEM, 0);
		}
	}
	if (nic.is_open && rs_rnd(s) % 4 == 0)
		zs_leave_page(&nic);
}

static void held_done(struct rig *r, unsigned i)
{
	const struct uring_frag *f = &st.held[i].f;

	for (uint32_t j = 0; j < f->len; j++)
		if (f->src[j] != rs_byte(st.held[i].sock, st.held[i].at + j))
			fail_msg("socket %u, byte %llu", st.held[i].sock,
				 (unsigned long long)(st.held[i].at + j));
	uring_done(r->rx, f->ref);
	st.held[i] = st.held[--st.nr_held];
}

static uint64_t storm_pull(struct rig *r, uint32_t s)
{
	unsigned room = GX_MIN((unsigned)FRAGS, HELD - st.nr_held);
	uint64_t want = rs_rnd(&k) % 3 ? UINT64_MAX : 1 + rs_rnd(&k) % 3000;
	int n = uring_rx_pull(r->rx, s, want, r->frag, room);

	assert_true(n >= 0);
	for (int i = 0; i < n; i++) {
		st.held[st.nr_held].f = r->frag[i];
		st.held[st.nr_held].sock = s;
		st.held[st.nr_held++].at = st.pos[s];
		st.pos[s] += r->frag[i].len;
	}
	return (uint64_t)n;
}

static void storm__faults(void **state)
{
	unsigned idle = 0, turns = 0;
	struct rig r;

	memset(&st, 0, sizeof(st));
	rig_open(&r);
	for (int i = 0; i < SOCKS; i++)
		assert_int_equal(sock_add(&r, i), i);
	k.work = storm_work;
	while (nic.nr_cqes < STORM || idle < 3) {
		uint64_t n = 0;

		assert_true(turns++ < TURNS);
		turn(&r);
		for (uint32_t i = 0; i < SOCKS; i++)
			n += storm_pull(&r, i);
		for (unsigned j = (unsigned)(rs_rnd(&k) % 12); j && st.nr_held; j--)
			held_done(&r, (unsigned)(rs_rnd(&k) % st.nr_held));
		idle = n || st.nr_held ? 0 : idle + 1;
	}
	for (unsigned i = 0; i < SOCKS; i++)
		assert_int_equal(st.pos[i], k.sock[i].pos);
	assert_true(nic.nr_cqes >= STORM);
	assert_true(r.rx->stat.dry > 100);
	assert_int_equal(nic.most, REFILLS);		    /* it was full, and never fuller */
	assert_true(atomic_load(zs_word(&nic, 4)) < FIRST); /* its words wrapped */
	k.work = NULL;
	rig_close(&r);
}

/* ---- the real kernel ---- */

static void kernel_refuses(const char *name, int err, const char *word)
{
	struct zcrx_cfg cfg = {.sys = &io_ring_sys_kernel,
			       .name = name,
			       .ifindex = if_nametoindex(name),
			       .area_b = AREA_B,
			       .dmabuf_fd = -1,
			       .nr_refill = 64,
			       .nr_socks = 1,
			       .depth = 64};
	char why[IO_RING_WHY_B];
	struct uring_rx *rx;

	cfg.area = mmap(NULL, AREA_B, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(cfg.area != MAP_FAILED);
	if (!cfg.ifindex)
		cfg.ifindex = 4242;
	assert_int_equal(zcrx_open(&cfg, &rx, why), err);
	assert_non_null(strstr(why, name));
	assert_non_null(strstr(why, word));
	munmap(cfg.area, AREA_B);
}

static void kernel__refuses_lo(void **state)
{
	kernel_refuses("lo", -EOPNOTSUPP, "driver");
}

static void kernel__refuses_veth(void **state)
{
	kernel_refuses("gxa", -EOPNOTSUPP, "driver");
}

static void kernel__refuses_none(void **state)
{
	kernel_refuses("gxnone", -ENODEV, "interface");
}

static void kernel_skip(const char *why)
{
	fprintf(stderr, "test_zcrx: skipped: %s\n", why);
	exit(77);
}

/* Does this kernel have it? An address that is none shows how far it looks. */
static void kernel_probe(void)
{
	struct io_ring_cfg cfg = {
		.sys = &io_ring_sys_kernel, .entries = 2, .cq_entries = 4, .is_cqe32 = true};
	char why[IO_RING_WHY_B];
	struct io_ring ring;
	int ret;

	if (io_ring_open(&ring, &cfg, why))
		kernel_skip(why);
	ret = ring.sys->reg(ring.fd, ZCRX_REGISTER, (void *)-1l, 1);
	io_ring_close(&ring);
	if (ret != -EFAULT)
		kernel_skip("this kernel has no zero-copy receive (Linux 6.15 and newer do), or no "
			    "right to it");
}

static int run_kernel(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kernel__refuses_lo),
		cmocka_unit_test(kernel__refuses_veth),
		cmocka_unit_test(kernel__refuses_none),
	};

	kernel_probe();
	if (unshare(CLONE_NEWNET))
		kernel_skip("no network namespace of our own");
	if (system("ip link add gxa type veth peer name gxb"))
		kernel_skip("no veth pair can be made here");
	return cmocka_run_group_tests_name("zcrx-kernel", tests, NULL, NULL);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open__words),	 cmocka_unit_test(open__dmabuf),
		cmocka_unit_test(open__refused), cmocka_unit_test(open__nonsense),
		cmocka_unit_test(open__wrong),	 cmocka_unit_test(pull__page),
		cmocka_unit_test(give__order),	 cmocka_unit_test(place__nonsense),
		cmocka_unit_test(end__each),	 cmocka_unit_test(storm__faults),
	};

	if (argc > 1 && !strcmp(argv[1], "kernel"))
		return run_kernel();
	return cmocka_run_group_tests_name("zcrx", tests, NULL, NULL);
}
