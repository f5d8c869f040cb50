/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Zero-copy receive of io_uring below link tcp. Whole operations: two endpoints, and below the
 * receiving one the scripted kernel and NIC (zcrx_script.h), which put into pages what the other one
 * has sent. A page is overwritten as soon as all of it has come back. So one that is given back too
 * early shows in the bytes, and one that is lost or given twice in the books. Then the NIC of a
 * context, over a scripted one (nic_script.h): checks, queues, flow rules of sockets.
 */
#include "nic/nic_pair.h"
#include "nic/nic_script.h"
#include "nic/tcp_zcrx.h"
#include "nic/zcrx.h"
#include "nic/zcrx_script.h"
#include "tcp/tcp_conn.h"
#include "tcp/tcp_feed.h"
#include "tcp/tcp_turn.h"

#include "gx_internal/fork.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define DELAY_NS (2 * MS)
#define HOST	 UINT64_MAX /* in place of a delay: the receiver's memory is the host's */
#define PAGES	 64u
#define REFILLS	 16u
#define FRAGS	 256u
#define POOL_B	 (8u << 20) /* of both cores */

static struct ring_script k;
static struct zcrx_script zs;
static char *area;
static struct rig {
	struct pair *p;
	struct uring_rx *rx;
	bool faults; /* receives end early, bytes are copied, pages run out */
	bool deaf;   /* the NIC wants no pages */
	bool copies; /* packets come that the NIC does not put into the area */
	bool bare;   /* payload alone comes here, and the kernel can copy none */
	uint64_t nr_copied, nr_dry;
} rig;

/* ---- the kernel, below the second side ---- */

static uint32_t frag_len(void)
{
	switch (rs_rnd(&k) % 4) {
	case 0:
		return 1 + (uint32_t)(rs_rnd(&k) % 64);
	case 1:
		return 1448;
	case 2:
		return 1 + (uint32_t)(rs_rnd(&k) % ZS_PAGE_B);
	default:
		return ZS_PAGE_B;
	}
}

/* No page is free. The NIC drops packets, which come again; bytes to copy end the receive. */
static void sock_dry(unsigned fd)
{
	char byte;

	if ((!rig.deaf && !rig.copies && rs_rnd(&k) % 2) ||
	    recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
		return;
	rs_end(&k, fd, -ENOMEM, 0);
	rig.nr_dry++;
}

/* One completion of @fd. False: nothing more comes now. */
static bool sock_step(unsigned fd)
{
	bool copied = rig.faults && !rig.bare && rs_rnd(&k) % 8 == 0;
	uint32_t room, len = frag_len();
	ssize_t n;
	char *at;

	if (rs_full(&k) || (rig.faults && rs_rnd(&k) % 60 == 0)) {
		rs_end(&k, fd, rs_full(&k) ? -ENOSPC : -EINTR, 0);
		return false;
	}
	if (copied) /* bytes that the NIC has not put there begin a page, and have it alone */
		zs_leave_page(&zs);
	at = zs_room(&zs, &room);
	if (!at) {
		sock_dry(fd);
		return false;
	}
	n = recv((int)fd, at, GX_MIN(room, len), MSG_DONTWAIT);
	if (n > 0)
		zs_post(&zs, fd, (uint32_t)n);
	else if (!n || errno != EAGAIN)
		rs_end(&k, fd, n ? -errno : 0, 0);
	if (n > 0 && copied) {
		zs_leave_page(&zs);
		rig.nr_copied++;
	}
	return n > 0;
}

static void kernel_work(struct ring_script *s)
{
	if (!rig.deaf)
		zs_refill(&zs, (uint32_t)(rs_rnd(s) % (2 * REFILLS)));
	for (unsigned fd = 0; fd < RS_SOCKS; fd++)
		for (unsigned n = 1 + (unsigned)(rs_rnd(s) % 4); n && s->sock[fd].is_armed; n--)
			if (!sock_step(fd))
				break;
	rs_flag(s, IORING_SQ_TASKRUN); /* there may be more in the next turn */
}

/* ---- two endpoints ---- */

/* @dmabuf_fd >= 0: the area is a device's. */
static void rig_ring(struct pair *p, uint64_t delay_ns, uint32_t nr_pages, int dmabuf_fd)
{
	struct link_tcp *l = tcp_core(p->side[1].core);
	struct zcrx_cfg cfg = {.sys = &ring_script_sys,
			       .name = "eth9",
			       .ifindex = 5,
			       .queue = 2,
			       .area = area,
			       .area_b = (uint64_t)nr_pages * ZS_PAGE_B,
			       .dmabuf_fd = dmabuf_fd,
			       .nr_refill = REFILLS,
			       .nr_socks = 8,
			       .depth = FRAGS};
	char why[IO_RING_WHY_B];

	rig = (struct rig){.p = p, .faults = true, .bare = dmabuf_fd >= 0};
	rs_open(&k, 1 + p->nr_socks + delay_ns + nr_pages);
	zs_open(&zs, &k, area);
	k.work = kernel_work;
	l->has_feeds = true;
	assert_int_equal(zcrx_open(&cfg, &nic_core_of(l)->uring, why), 0);
	rig.rx = nic_core_of(l)->uring;
	if (delay_ns != HOST)
		pair_gpu(p, 1, delay_ns);
}

static struct pair *rig_over(struct pair *p, uint64_t delay_ns, uint32_t nr_pages)
{
	rig_ring(p, delay_ns, nr_pages, -1);
	assert_int_equal(tcp_uring_give(p->side[1].e), 0);
	return p;
}

/* Pages in memory of the GPU: all sockets but the first bring its payload, and nothing else. */
static struct pair *rig_bare(unsigned nr_socks, uint64_t delay_ns)
{
	struct pair *p = pair_new(nr_socks);
	struct tcp_ep *a = p->side[0].e, *b = p->side[1].e;

	a->bare.tx = b->bare.rx = true;
	p->side[0].conn.peer.nr_regions = 1;
	p->side[0].conn.peer.regions[0] =
		(struct gx_hello_region){.token = TOKEN, .kind = GX_MEM_CUDA};
	rig_ring(p, delay_ns, PAGES, 33);
	for (unsigned i = 1; i < nr_socks; i++) {
		struct tcp_feed *f = tcp_uring_bare(b->link);

		assert_non_null(f);
		b->sock[i].bare = true;
		tcp_feed_give(b, i, f);
	}
	return p;
}

static struct pair *rig_new(unsigned nr_socks, uint64_t delay_ns, uint32_t nr_pages)
{
	return rig_over(pair_new(nr_socks), delay_ns, nr_pages);
}

static void rig_free(struct pair *p)
{
	pair_free(p);
	assert_int_equal(zs.nr_wrong + k.nr_bad, 0);
	rs_close(&k);
}

static void pages_go(struct pair *p)
{
	for (unsigned i = 0; i < 4 * FRAGS / REFILLS; i++) {
		side_turn(p, 1);
		zs_refill(&zs, UINT32_MAX);
	}
}

/* Every page has come back, each part of it once. */
static void pages_are_back(struct pair *p)
{
	pages_go(p);
	zs_leave_page(&zs);
	assert_int_equal(rig.rx->nr_out, 0);
	assert_int_equal(rig.rx->nr_free, rig.rx->nr_recs);
	assert_int_equal(zs.nr_free, zs.nr_pages);
	assert_int_equal(zs.nr_refills, zs.nr_cqes);
	assert_int_equal(zs.nr_wrong + k.nr_bad, 0);
}

static void rig_done(struct pair *p)
{
	rig.faults = false;
	pair_settle(p);
	side_rest(&p->side[0]);
	side_rest(&p->side[1]);
	pages_are_back(p);
	assert_int_equal(rig.rx->stat.strays, 0);
	rig_free(p);
}

static struct gx_op op_at(struct side *s, enum gx_op_kind kind, uint64_t off, uint64_t len)
{
	struct gx_op op = op_of(kind, NULL, len);

	op.mem = &s->mem;
	op.off = off;
	return op;
}

/* Into the memory of the second side at @off. */
static void move(struct pair *p, enum gx_op_kind kind, uint64_t len, uint64_t off)
{
	struct side *a = &p->side[0], *b = &p->side[1];
	unsigned done = a->nr_done, done_b = b->nr_done;
	struct gx_op op = op_of(kind, p->buf, len), recv = op_at(b, GX_OP_RECV, off, len);

	memset(b->mem.addr, POISON, off + len + 64);
	bytes_fill(p->buf, len, (unsigned)(len + off));
	op.remote_off = off;
	if (kind == GX_OP_SEND)
		assert_int_equal(side_post(p, 1, &recv), 0);
	assert_int_equal(side_post(p, 0, &op), 0);
	UNTIL(p, a->nr_done == done + 1 && (kind == GX_OP_PUT || b->nr_done == done_b + 1));
	assert_int_equal(a->last.status, 0);
	assert_memory_equal(b->mem.addr + off, p->buf, len);
	for (unsigned i = 0; i < 64; i++)
		assert_int_equal(b->mem.addr[off + len + i], POISON);
}

/* The second side gets it from the first one's region. */
static void move_get(struct pair *p, uint64_t len, uint64_t off)
{
	struct side *a = &p->side[0], *b = &p->side[1];
	struct gx_op op = op_at(b, GX_OP_GET, off, len);
	unsigned done = b->nr_done;

	memset(b->mem.addr, POISON, off + len);
	bytes_fill(a->mem.addr, len, (unsigned)len);
	assert_int_equal(side_post(p, 1, &op), 0);
	UNTIL(p, b->nr_done == done + 1);
	assert_int_equal(b->last.status, 0);
	assert_memory_equal(b->mem.addr + off, a->mem.addr, len);
}

static const uint64_t sizes[] = {0,	1,     63,     64,     4096,   4097,   65535,
				 65536, 65537, 196609, 262145, 999999, 1 << 20};

static void move__sizes(void **state)
{
	static const uint64_t delays_ns[] = {HOST, 0, 3000, 300000};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(delays_ns); i++)
		for (unsigned nr = 1; nr <= 4; nr += 3) {
			struct pair *p = rig_new(nr, delays_ns[i], PAGES);

			for (unsigned n = 0; n < GX_ARRAY_SIZE(sizes); n++) {
				move(p, GX_OP_PUT, sizes[n], n * 13);
				move(p, GX_OP_SEND, sizes[n], n % 5);
				move_get(p, sizes[n], n % 3 * 64);
			}
			assert_true(rig.nr_copied > 10);
			rig_done(p);
		}
}

/* A socket without a flow rule is read by recv(), beside others of its connection. */
static void move__beside_recv(void **state)
{
	static const uint64_t delays_ns[] = {HOST, 5000};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(delays_ns); i++) {
		struct pair *p = pair_new(3);
		struct tcp_ep *e = p->side[1].e;

		e->nr_socks = 2;
		rig_over(p, delays_ns[i], PAGES);
		e->nr_socks = 3;
		assert_true(e->sock[1].feed && !e->sock[2].feed);
		for (unsigned n = 0; n < GX_ARRAY_SIZE(sizes); n++) {
			move(p, GX_OP_PUT, sizes[n], n * 7);
			move(p, GX_OP_SEND, sizes[n], n);
			move_get(p, sizes[n], n);
		}
		rig_done(p);
	}
}

static void bare__sizes(void **state)
{
	static const uint64_t delays_ns[] = {0, 3000, 300000};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(delays_ns); i++)
		for (unsigned nr = 2; nr <= 4; nr += 2) {
			struct pair *p = rig_bare(nr, delays_ns[i]);

			for (unsigned n = 0; n < GX_ARRAY_SIZE(sizes); n++) {
				move(p, GX_OP_PUT, sizes[n], n * 13);
				move(p, GX_OP_SEND, sizes[n], n % 5);
				move_get(p, sizes[n], n % 3 * 64);
			}
			assert_int_equal(zs.area.flags, ZCRX_AREA_DMABUF);
			rig_done(p);
		}
}

/* A byte that the NIC left in host memory: the kernel has no place for it. */
static void bare__byte_of_the_host(void **state)
{
	struct pair *p = rig_bare(2, 5000);
	struct side *b = &p->side[1];

	move(p, GX_OP_PUT, 100000, 0);
	UNTIL(p, k.sock[b->e->sock[1].fd].is_armed);
	rs_end(&k, (unsigned)b->e->sock[1].fd, -EFAULT, 0);
	for (unsigned i = 0; i < 1000 && !side_fault(p, 1); i++) {
		p->now_ns += MS;
		side_turn(p, 1);
	}
	assert_int_equal(side_fault(p, 1), -EFAULT);
	assert_non_null(strstr(b->e->end.why, "could not place"));
	pages_are_back(p);
	rig_free(p);
}

/* Many pieces on all sockets at a time, in an area that holds few of them: pages run out while the
 * GPU has them, and the sockets go on. */
static void put__area_is_small(void **state)
{
	struct pair *p = rig_new(4, 300000, 16);
	struct side *a = &p->side[0], *b = &p->side[1];

	bytes_fill(p->buf, MEM_B, 9);
	for (unsigned i = 0; i < 8; i++) {
		struct gx_op op = op_of(GX_OP_PUT, p->buf + i * 150001ull, 150000);

		op.remote_off = i * 150001;
		assert_int_equal(side_post(p, 0, &op), 0);
	}
	UNTIL(p, a->nr_done == 8);
	for (unsigned i = 0; i < 8; i++)
		assert_memory_equal(b->mem.addr + i * 150001ull, p->buf + i * 150001ull, 150000);
	assert_true(rig.nr_dry && rig.rx->stat.dry == rig.nr_dry);
	assert_int_equal(side_fault(p, 0) | side_fault(p, 1), 0);
	rig_done(p);
}

/* The GPU has all pages for longer than a socket waits for pages of a NIC: it is not the NIC's. */
static void put__gpu_is_slow(void **state)
{
	struct pair *p = pair_new(2);
	struct side *a = &p->side[0], *b = &p->side[1];
	struct gx_op op = op_of(GX_OP_PUT, p->buf, 200000);

	b->conn.agreed.peer_timeout_ns = 1000 * MS;
	rig_over(p, 900 * MS, 8);
	rig.faults = false;
	rig.copies = true;
	bytes_fill(p->buf, 200000, 2);
	assert_int_equal(side_post(p, 0, &op), 0);
	for (unsigned i = 0; i < 30000 && !a->nr_done; i++) {
		p->now_ns += MS;
		side_turn(p, 0);
		side_turn(p, 1);
	}
	assert_int_equal(a->nr_done, 1);
	assert_int_equal(a->last.status, 0);
	assert_memory_equal(b->mem.addr, p->buf, 200000);
	rig_done(p);
}

static uint64_t refs_of_program(void)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < zs.nr_pages; i++)
		sum += zs.refs[i];
	return sum;
}

/* While the GPU reads pages, none of them is in the refill ring. They go back in the turn in which
 * the copies end, without a system call of their own. */
static void put__gpu_has_pages(void **state)
{
	struct pair *p = rig_new(1, DELAY_NS, PAGES);
	struct gx_op op = op_of(GX_OP_PUT, p->buf, 100000);
	uint64_t given;

	rig.faults = false;
	bytes_fill(p->buf, 100000, 3);
	assert_int_equal(side_post(p, 0, &op), 0);
	for (unsigned i = 0; i < 300; i++) {
		p->now_ns += 1000;
		side_turn(p, 0);
		side_turn(p, 1);
	}
	pages_go(p); /* those of headers and trailers */
	given = zs.nr_refills;
	pages_go(p); /* time stands still */
	assert_int_equal(zs.nr_refills, given);
	assert_true(refs_of_program() >= 100000 / ZS_PAGE_B);
	rig_done(p);
}

/* ---- ends ---- */

static void end__while_copying(void **state)
{
	struct pair *p = rig_new(3, 50 * DELAY_NS, PAGES);
	struct side *b = &p->side[1];
	struct gx_op op = op_of(GX_OP_PUT, p->buf, 8 * CHUNK_B);
	struct gx_ep *ep = &b->e->ep;

	assert_int_equal(side_post(p, 0, &op), 0);
	UNTIL(p, b->e->rx.nr_held);
	ep->ops->ep_fail(ep, -ECONNRESET);
	assert_false(atomic_load(&ep->detached));
	assert_true(refs_of_program());
	for (unsigned i = 0; i < 100 && !atomic_load(&ep->detached); i++)
		nic_poll(tcp_core(b->core), p->now_ns += 10 * MS);
	assert_true(atomic_load(&ep->detached));
	pages_are_back(p);
	assert_true(nic_ring_asleep(tcp_core(b->core)));
	rig_free(p);
}

/* The GPU does not end its copies: its pages never go back, and the socket stays open until the link
 * closes, with the ring. */
static void end__gpu_is_lost(void **state)
{
	struct pair *p = rig_new(2, 100 * GPU_TIMEOUT_NS, PAGES);
	struct side *a = &p->side[0], *b = &p->side[1];
	struct gx_op op = op_of(GX_OP_PUT, p->buf, 2 * CHUNK_B);
	struct tcp_feed *f = b->e->sock[0].feed;
	uint64_t cqes;

	assert_int_equal(side_post(p, 0, &op), 0);
	for (unsigned i = 0; i < 4000 && !a->nr_done; i++) {
		p->now_ns += MS;
		side_turn(p, 0);
		side_turn(p, 1);
	}
	assert_int_equal(a->last.status, -EIO);
	cqes = f->ops->held(f) + b->e->sock[1].feed->ops->held(b->e->sock[1].feed);
	assert_true(cqes);
	for (unsigned i = 0; i < 40; i++) {
		p->now_ns += MS;
		side_turn(p, 1);
		zs_refill(&zs, UINT32_MAX);
	}
	assert_true(refs_of_program() && refs_of_program() <= cqes);
	assert_int_equal(refs_of_program(), zs.nr_cqes - zs.nr_refills);
	rig_free(p);
}

/* Nothing but its cancel is left: the core stays awake for that. */
static void end__core_stays_awake(void **state)
{
	struct pair *p = rig_new(1, HOST, PAGES);
	struct side *b = &p->side[1];

	move(p, GX_OP_PUT, 1000, 0);
	pair_settle(p);
	b->e->ep.ops->ep_fail(&b->e->ep, -ECONNRESET);
	assert_true(atomic_load(&b->e->ep.detached));
	assert_false(nic_ring_asleep(tcp_core(b->core)));
	for (unsigned i = 0; i < 4; i++)
		nic_poll(tcp_core(b->core), p->now_ns += MS);
	assert_true(link_tcp_asleep(tcp_core(b->core)) && nic_ring_asleep(tcp_core(b->core)));
	rig_free(p);
}

/* The socket is closed before the core has turned again: the peer hears of it all the same. */
static void end__peer_hears(void **state)
{
	struct pair *p = rig_new(1, HOST, PAGES);
	struct side *b = &p->side[1];
	char byte;

	move(p, GX_OP_PUT, 1000, 0);
	pair_settle(p);
	b->e->ep.ops->ep_fail(&b->e->ep, -ECONNRESET);
	tcp_feed_close(tcp_core(b->core), &b->e->sock[0]);
	b->e->nr_socks = 0;
	assert_false(nic_ring_asleep(tcp_core(b->core)));
	assert_int_equal(recv(p->side[0].e->sock[0].fd, &byte, 1, MSG_DONTWAIT), 0);
	rig_free(p);
}

static void end__peer_is_gone(void **state)
{
	struct pair *p = rig_new(2, 5000, PAGES);

	move(p, GX_OP_PUT, 100000, 0);
	shutdown(p->side[0].e->sock[1].fd, SHUT_RDWR);
	for (unsigned i = 0; i < 1000 && !side_fault(p, 1); i++) {
		p->now_ns += MS;
		side_turn(p, 1);
	}
	assert_int_equal(side_fault(p, 1), -ECONNRESET);
	pages_are_back(p);
	rig_free(p);
}

/* A socket that broke the protocol is not read on, so its bytes keep no page. */
static void end__peer_lies(void **state)
{
	struct pair *p = rig_new(1, HOST, PAGES);

	memset(p->buf, 0xee, MEM_B);
	assert_true(send(p->side[0].e->sock[0].fd, p->buf, 65536, MSG_DONTWAIT) > 0);
	for (unsigned i = 0; i < 1000 && !side_fault(p, 1); i++) {
		p->now_ns += MS;
		side_turn(p, 1);
	}
	assert_int_equal(side_fault(p, 1), -EPROTO);
	pages_are_back(p);
	assert_true(nic_ring_asleep(tcp_core(p->side[1].core)));
	rig_free(p);
}

/* The kernel's completion names bytes beyond the area. */
static void end__kernel_lies(void **state)
{
	struct pair *p = rig_new(1, HOST, PAGES);
	struct zcrx_cqe more = {.off = ZS_TOKEN + PAGES * ZS_PAGE_B};
	struct side *b = &p->side[1];
	struct io_uring_cqe *cqe;

	move(p, GX_OP_PUT, 1000, 0);
	cqe = rs_post(&k, k.sock[b->e->sock[0].fd].data, 8, IORING_CQE_F_MORE);
	assert_non_null(cqe);
	memcpy(cqe->big_cqe, &more, sizeof(more));
	for (unsigned i = 0; i < 1000 && !side_fault(p, 1); i++) {
		p->now_ns += MS;
		side_turn(p, 1);
	}
	assert_int_equal(side_fault(p, 1), -EPROTO);
	rig_free(p);
}

/* The kernel copies all packets into the area, and the NIC wants no pages, as where packets come by
 * another interface: the connection ends by that name, also with a full refill ring. */
static void end__nic_wants_no_pages(void **state)
{
	for (unsigned gpu = 0; gpu < 2; gpu++) {
		struct pair *p = rig_new(2, gpu ? 5000 : HOST, PAGES);
		struct gx_op op = op_of(GX_OP_PUT, p->buf, MEM_B);
		struct side *b = &p->side[1];
		uint64_t from_ns;

		rig.faults = false;
		rig.deaf = true;
		assert_int_equal(side_post(p, 0, &op), 0);
		UNTIL(p, rig.nr_dry && !b->e->rx.nr_held);
		from_ns = p->now_ns;
		for (unsigned i = 0; i < 6000 && !side_fault(p, 1); i++) {
			p->now_ns += MS;
			side_turn(p, 0);
			side_turn(p, 1);
		}
		assert_int_equal(side_fault(p, 1), -ENOBUFS);
		assert_non_null(strstr(b->e->end.why, "gx_nic_opts.rx_if"));
		assert_true(p->now_ns - from_ns >= 2000 * MS);
		rig_free(p);
	}
}

/* Nor does it end while other sockets of the core get pages. */
static void end__others_get_pages(void **state)
{
	struct pair *p = rig_new(2, HOST, PAGES);
	struct side *a = &p->side[0], *b = &p->side[1];
	struct gx_op op = op_of(GX_OP_PUT, p->buf, MEM_B);

	rig.faults = false;
	rig.deaf = true;
	bytes_fill(p->buf, MEM_B, 4);
	assert_int_equal(side_post(p, 0, &op), 0);
	UNTIL(p, rig.nr_dry);
	for (unsigned i = 0; i < 4000; i++) {
		p->now_ns += MS;
		rig.rx->stat.frags++;
		side_turn(p, 0);
		side_turn(p, 1);
	}
	rig.deaf = false;
	UNTIL(p, a->nr_done == 1);
	assert_int_equal(a->last.status, 0);
	assert_memory_equal(b->mem.addr, p->buf, MEM_B);
	rig_done(p);
}

/* It wants pages late, and within the time that a peer may be silent: nothing ends. Nor does it when
 * this core was stopped for long. */
static void end__nic_is_slow(void **state)
{
	struct pair *p = rig_new(2, HOST, PAGES);
	struct side *a = &p->side[0], *b = &p->side[1];
	struct gx_op op = op_of(GX_OP_PUT, p->buf, MEM_B);

	rig.deaf = true;
	bytes_fill(p->buf, MEM_B, 4);
	assert_int_equal(side_post(p, 0, &op), 0);
	for (unsigned i = 0; i < 10000 && !a->nr_done; i++) {
		p->now_ns += i == 500 ? 20000 * MS : MS;
		rig.deaf = i % 1000 != 0;
		side_turn(p, 0);
		side_turn(p, 1);
	}
	rig.deaf = false;
	UNTIL(p, a->nr_done == 1);
	assert_int_equal(a->last.status, 0);
	assert_memory_equal(b->mem.addr, p->buf, MEM_B);
	rig_done(p);
}

/* ---- the NIC of a context ---- */

static struct host {
	struct gx gx;
	struct gx_core core;
	struct tcp_zcrx_cfg cfg;
	struct nic_ctx tcp;
} host;

static const struct gx_nic_opts queues = {.rx_if = SCRIPT_IF, .rx_first = 8, .rx_queues = 2};

static int host_open(void **state)
{
	script_reset();
	memset(&host, 0, sizeof(host));
	rs_open(&k, 7);
	zs_open(&zs, &k, NULL);
	core_groups_point(&host.gx.opts, &host.gx.groups);
	host.gx.groups.nic.rx = GX_NIC_RX_ZCRX;
	host.gx.groups.packet.chunk_b = CHUNK_B;
	host.gx.groups.gpu.timeout_ns = GPU_TIMEOUT_NS;
	host.core.gx = &host.gx;
	host.core.index = 1;
	assert_int_equal(gx_arena_open(64 << 20, &host.gx.arena), 0);
	host.gx.link[GX_LINK_TCP] = &host.tcp;
	host.cfg = (struct tcp_zcrx_cfg){.nic = &script_sys,
					 .ring = &ring_script_sys,
					 .where = &queues,
					 .area_b = POOL_B,
					 .nr_cores = 2};
	return 0;
}

static int host_close(void **state)
{
	nic_core_close(&host.core);
	tcp_zcrx_close(host.tcp.zcrx);
	assert_int_equal(script.nr_open | script.nr_rules, 0);
	assert_int_equal(zs.nr_wrong + k.nr_bad, 0);
	rs_close(&k);
	gx_arena_close(host.gx.arena);
	return 0;
}

static void link_new(void)
{
	assert_int_equal(tcp_zcrx_open(&host.cfg, &host.tcp.zcrx), 0);
	assert_int_equal(nic_core_open(&host.core), 0);
}

static void error_has(const char *word)
{
	if (!strstr(gx_error(), word))
		fail_msg("no '%s' in: %s", word, gx_error());
}

static void refused(int err, const char *word, const char *cure)
{
	assert_int_equal(tcp_zcrx_open(&host.cfg, &host.tcp.zcrx), err);
	assert_null(host.tcp.zcrx);
	error_has(word);
	error_has(cure);
	assert_int_equal(script.nr_open, 0);
}

/* Each core has a queue of its own, and an area of its own in memory that GPUs read. */
static void open__takes_a_queue(void **state)
{
	char text[256];

	link_new();
	assert_int_equal(zs.reg.ifindex, SCRIPT_INDEX);
	assert_int_equal(zs.reg.queue, 9); /* of core 1 */
	assert_int_equal(zs.area.len, POOL_B / 2);
	assert_ptr_equal((char *)(uintptr_t)zs.area.addr,
			 nic_core_of(tcp_core(&host.core))->uring_pool);
	assert_int_equal(zs.area.flags | zs.area.dmabuf_fd, 0);
	assert_true(zs.reg.entries >= POOL_B / 2 / ZS_PAGE_B);
	assert_true(k.flags & IORING_SETUP_CQE32 && k.flags & IORING_SETUP_DEFER_TASKRUN &&
		    k.flags & IORING_SETUP_SINGLE_ISSUER);
	assert_true(tcp_core(&host.core)->has_feeds);
	tcp_zcrx_text(host.tcp.zcrx, text, sizeof(text));
	assert_non_null(strstr(text, SCRIPT_IF));
	assert_non_null(strstr(text, "queue 8"));
	assert_non_null(strstr(text, "UNTRIED"));
}

/* Rules to its queues that a killed process left go, and no other one. */
static void open__sweeps_rules(void **state)
{
	script_leave(9);
	script_leave(7);
	link_new();
	assert_int_equal(script.left[0].nr_dels, 1);
	assert_int_equal(script.left[1].nr_dels, 0);
}

static void open__bad_words(void **state)
{
	static const struct gx_nic_opts bad[] = {
		{.rx_if = ""},
		{.rx_if = NULL, .rx_first = 8, .rx_queues = 2},
		{.rx_if = "", .rx_first = 8, .rx_queues = 2},
		{.rx_if = "nic0", .rx_first = 8},
		{.rx_if = "nic0", .rx_first = 8, .rx_queues = UINT32_MAX},
		{.rx_if = "interface-too-long", .rx_first = 8, .rx_queues = 2}};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		host.cfg.where = &bad[i];
		refused(-EINVAL, "gx_nic_opts.rx_if", ".rx_queues");
	}
	host.cfg.where = GX_WITH(gx_nic_opts, .rx_if = "nic1", .rx_first = 8, .rx_queues = 2);
	refused(-ENODEV, "nic1", "no interface");
	host.cfg.where = GX_WITH(gx_nic_opts, .rx_if = SCRIPT_IF, .rx_first = 8, .rx_queues = 1);
	refused(-EINVAL, "each of the 2 cores", "name 2");
	host.cfg.where = &queues;
	host.cfg.area_b = POOL_B + 4096;
	refused(-EINVAL, "gx_nic_opts.rx_b", "2M");
	host.cfg.area_b = 2 << 20; /* half of it a core */
	refused(-EINVAL, "gx_nic_opts.rx_b", "2M");
	host.cfg.area_b = 6ull << 30;
	refused(-EINVAL, "gx_nic_opts.rx_b", "4G");
}

/* What the kernel, the driver or the operator lacks is named, with the cure. */
static void open__nic_is_not_ready(void **state)
{
	script.zcrx = -EOPNOTSUPP;
	refused(-EOPNOTSUPP, "zero-copy receive", "6.15");
	script_reset();
	script.bind_err = -EOPNOTSUPP; /* as loopback, veth and virtio */
	refused(-EOPNOTSUPP, SCRIPT_IF " (driver", "use a NIC whose driver can");
	script_reset();
	script.split = 1;
	refused(-EOPNOTSUPP, SCRIPT_IF " (driver", "tcp-data-split on");
	script_reset();
	script.rss_queues = 16;
	refused(-EOPNOTSUPP, "RSS", "equal 8");
	script_reset();
	script.held[9] = NIC_HELD_URING;
	refused(-EOPNOTSUPP, "io_uring", "other queues");
}

/* The kernel refuses the registration: the driver, the cause and the cure are named, and nothing of
 * the core is left. */
static void open__kernel_refuses(void **state)
{
	static const struct {
		int err;
		const char *cure;
	} t[] = {{-EPERM, "CAP_NET_ADMIN"}, {-EOPNOTSUPP, "NIC whose driver"},
		 {-EINVAL, "header split"}, {-ENODEV, "namespace"},
		 {-EEXIST, "another one"},  {-ENOMEM, "ulimit -l"}};
	void *all;

	assert_int_equal(tcp_zcrx_open(&host.cfg, &host.tcp.zcrx), 0);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(t); i++) {
		zs.err = t[i].err;
		assert_int_equal(nic_core_open(&host.core), t[i].err);
		assert_null(tcp_core(&host.core));
		error_has("gx_nic_opts.rx zcrx: " SCRIPT_IF " (driver");
		error_has("queue 9");
		error_has(t[i].cure);
		assert_int_equal(k.nr_open, 0);
	}
	assert_int_equal(gx_arena_map(host.gx.arena, -1, 64 << 20, &all), 0);
	gx_arena_unmap(host.gx.arena, all, 64 << 20);
}

static void open__no_ring(void **state)
{
	assert_int_equal(tcp_zcrx_open(&host.cfg, &host.tcp.zcrx), 0);
	k.setup_err = -EPERM;
	assert_int_equal(nic_core_open(&host.core), -EPERM);
	error_has("gx_nic_opts.rx zcrx: the kernel gives no io_uring");
	error_has("sysctl");
}

/* ---- its sockets ---- */

struct line {
	struct gx_conn conn;
	struct gx_hello_lane local;
	struct tcp_ep *e;
	int far[2];
};

/* Both ends of a connection over loopback. The far one has 127.0.0.@from. */
static int loop_tcp(unsigned from, int *far)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in own = {.sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + from)};
	int lfd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;
	socklen_t len = sizeof(a);

	assert_int_equal(bind(lfd, (struct sockaddr *)&a, len), 0);
	assert_int_equal(listen(lfd, 1), 0);
	assert_int_equal(getsockname(lfd, (struct sockaddr *)&a, &len), 0);
	*far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(*far, (struct sockaddr *)&own, sizeof(own)), 0);
	assert_int_equal(connect(*far, (struct sockaddr *)&a, len), 0);
	fd = accept4(lfd, NULL, NULL, SOCK_CLOEXEC);
	assert_true(fd >= 0);
	close(lfd);
	return gx_fd_own(fd);
}

/* A connection of two sockets, whose peer has the address 127.0.0.@from. */
static struct line *line_new(unsigned from)
{
	struct line *l = calloc(1, sizeof(*l));
	struct gx_ep *ep = gx_link_tcp_ops.ep_new();

	assert_true(l && ep);
	l->conn.gx = &host.gx;
	l->conn.agreed = (struct gx_hello_lanes){
		.chunk_b = CHUNK_B, .window = WINDOW, .peer_timeout_ns = 5000 * MS};
	assert_int_equal(tcp_conn_open(&l->conn, 1, 2), 0);
	ep->conn = &l->conn;
	ep->core = &host.core;
	ep->ops = &gx_link_tcp_ops;
	l->e = tcp_of(ep);
	assert_int_equal(ep->ops->ep_open(ep, &l->local), 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(gx_socks_add(&l->conn, 0, i, loop_tcp(from, &l->far[i])), 0);
	assert_int_equal(ep->ops->ep_connect(ep, &l->local), 0);
	return l;
}

static void line_free(struct line *l)
{
	l->e->ep.ops->ep_free(&l->e->ep);
	tcp_conn_close(&l->conn);
	for (unsigned i = 0; i < 2; i++)
		close(l->far[i]);
	free(l);
}

/* Every socket has a rule to the queue of its core, until it is closed. */
static void conn__has_rules(void **state)
{
	struct line *l;

	link_new();
	l = line_new(2);
	assert_true(l->e->sock[0].feed && l->e->sock[1].feed);
	assert_int_equal(script.nr_rules, 2);
	assert_int_equal(script.rule_queue, 9);
	line_free(l);
	assert_int_equal(script.nr_rules, 0);
}

/* The NIC takes no rule, or none of its packets come here: recv() reads the sockets. */
static void conn__no_rule(void **state)
{
	struct line *l;

	link_new();
	script.rules_err = -ENOSPC;
	l = line_new(2);
	assert_true(!l->e->sock[0].feed && !l->e->sock[1].feed);
	line_free(l);
	script.rules_err = 0;
	l = line_new(1); /* the peer has our own address */
	assert_true(!l->e->sock[0].feed && !l->e->sock[1].feed);
	assert_int_equal(script.nr_rules, 0);
	line_free(l);
	l = line_new(3);
	assert_true(l->e->sock[0].feed && l->e->sock[1].feed);
	line_free(l);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, host_open, host_close)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(move__sizes),
		cmocka_unit_test(move__beside_recv),
		cmocka_unit_test(bare__sizes),
		cmocka_unit_test(bare__byte_of_the_host),
		cmocka_unit_test(put__area_is_small),
		cmocka_unit_test(put__gpu_has_pages),
		cmocka_unit_test(put__gpu_is_slow),
		cmocka_unit_test(end__while_copying),
		cmocka_unit_test(end__core_stays_awake),
		cmocka_unit_test(end__peer_hears),
		cmocka_unit_test(end__gpu_is_lost),
		cmocka_unit_test(end__peer_is_gone),
		cmocka_unit_test(end__peer_lies),
		cmocka_unit_test(end__kernel_lies),
		cmocka_unit_test(end__nic_wants_no_pages),
		cmocka_unit_test(end__nic_is_slow),
		cmocka_unit_test(end__others_get_pages),
		TEST(open__takes_a_queue),
		TEST(open__sweeps_rules),
		TEST(open__bad_words),
		TEST(open__nic_is_not_ready),
		TEST(open__kernel_refuses),
		TEST(open__no_ring),
		TEST(conn__has_rules),
		TEST(conn__no_rule),
	};
	int ret;

	area = gx_pages_get((size_t)PAGES * ZS_PAGE_B);
	assert(area);
	nic_pair_use(NULL);
	ret = cmocka_run_group_tests_name("tcp_zcrx", tests, NULL, NULL);
	gx_pages_put(area, (size_t)PAGES * ZS_PAGE_B);
	return ret;
}
