/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data sockets whose bytes come as fragments, end to end: two endpoints of the tcp link, and below
 * the receiving one the scripted kernel of device memory, which reads what the other one has sent.
 * It writes over a fragment as soon as its token comes back. So a fragment that is given back too
 * early shows in the bytes, and a token that is lost, doubled or out of order in its books.
 */
#include "nic/devmem_feed.h"
#include "nic/devmem_script.h"
#include "tcp/tcp_conn.h"
#include "tcp/tcp_feed.h"
#include "tcp/tcp_pair.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define HALF	 (MEM_B / 2)
#define DELAY_NS (2 * MS)
#define LIN_B	 (64u << 10)
#define DEPTH	 2048
#define APART_B	 (12ull << 30) /* pools and host memory: further than one block reaches */

struct rig {
	struct pair *p;
	struct script *script;
	char *pools, *lin;
	struct devmem_pool *pool[SCRIPT_POOLS];
	unsigned first; /* socket with a feed */
};

static struct rig *the;

/* The bytes of a scripted socket are those of the pair's socket. */
static int source(unsigned sock, char *to, uint32_t n)
{
	ssize_t ret = recv(the->p->side[1].e->sock[sock].fd, to, n, MSG_DONTWAIT);

	return ret > 0 ? (int)ret : ret ? 0 : -ESHUTDOWN;
}

static struct devmem_rx *rx_of(const struct rig *r, unsigned sock)
{
	return devmem_feed_rx(r->p->side[1].e->sock[sock].feed);
}

static void feed_new(struct rig *r, unsigned sock, bool readable)
{
	struct devmem_cfg cfg = {.sys = &script_sys,
				 .fd = (int)sock,
				 .lin = r->lin + (size_t)sock * LIN_B,
				 .lin_b = LIN_B,
				 .depth = DEPTH};
	struct tcp_feed *f;

	assert_int_equal(devmem_feed_open(&cfg, r->pool[0], &f), 0);
	assert_int_equal(devmem_rx_pool(devmem_feed_rx(f), r->pool[1]), 0);
	f->readable = readable;
	tcp_feed_give(r->p->side[1].e, sock, f);
}

static void script_new(struct rig *r, uint64_t seed, uint32_t nr_pages)
{
	size_t pool_b = (size_t)nr_pages * DEVMEM_PAGE_B;

	r->script = malloc(sizeof(*r->script));
	assert_non_null(r->script);
	r->pools =
		mmap(NULL, APART_B, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_true(r->pools != MAP_FAILED);
	r->lin = r->pools + APART_B - (size_t)SCRIPT_SOCKS * LIN_B;
	assert_int_equal(mprotect(r->pools, SCRIPT_POOLS * pool_b, PROT_READ | PROT_WRITE), 0);
	assert_int_equal(mprotect(r->lin, (size_t)SCRIPT_SOCKS * LIN_B, PROT_READ | PROT_WRITE), 0);
	script_open(r->script, seed, r->pools, nr_pages);
	r->script->source = source;
	r->script->faults = true;
	for (unsigned i = 0; i < SCRIPT_POOLS; i++)
		assert_int_equal(devmem_pool_open(script_id(i), r->script->pool[i], pool_b,
						  pool_b / 4, &r->pool[i]),
				 0);
}

static void bare_set(struct rig *r)
{
	struct tcp_ep *a = r->p->side[0].e, *b = r->p->side[1].e;

	a->bare.tx = b->bare.rx = true;
	for (unsigned i = 1; i < b->nr_socks; i++)
		b->sock[i].bare = true;
	r->p->side[0].conn.peer.nr_regions = 1;
	r->p->side[0].conn.peer.regions[0] =
		(struct gx_hello_region){.token = TOKEN, .kind = GX_MEM_CUDA};
}

static struct rig *rig_new(unsigned nr_socks, bool bare, uint64_t delay_ns, uint32_t nr_pages)
{
	struct rig *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	the = r;
	r->p = pair_new(nr_socks);
	r->first = bare;
	script_new(r, 1 + nr_socks + 16 * bare + delay_ns, nr_pages);
	tcp_core(r->p->side[1].core)->has_feeds = true;
	pair_gpu(r->p, 1, delay_ns);
	if (bare)
		bare_set(r);
	for (unsigned i = r->first; i < nr_socks; i++)
		feed_new(r, i, !bare);
	return r;
}

/* All that the kernel gave has come back, or comes back with the sockets. */
static void rig_free(struct rig *r)
{
	struct script *s = r->script;

	pair_free(r->p);
	assert_int_equal(s->nr_unknown + s->nr_disorder + s->nr_over, 0);
	for (unsigned i = 0; i < SCRIPT_SOCKS; i++)
		script_close(s, i);
	assert_int_equal(script_held(s), 0);
	for (unsigned i = 0; i < SCRIPT_POOLS; i++) {
		assert_int_equal(r->pool[i]->held, 0);
		devmem_pool_close(r->pool[i]);
	}
	munmap(r->pools, APART_B);
	free(s);
	free(r);
}

/* When nothing is under way, idle sockets give back every token. */
static void rig_done(struct rig *r)
{
	struct tcp_ep *b = r->p->side[1].e;

	r->script->faults = false;
	pair_settle(r->p);
	for (unsigned i = 0; i < 20; i++) {
		r->p->now_ns += MS;
		side_turn(r->p, 1);
	}
	side_rest(&r->p->side[0]);
	side_rest(&r->p->side[1]);
	for (unsigned i = r->first; i < b->nr_socks; i++) {
		assert_int_equal(b->sock[i].feed->ops->held(b->sock[i].feed), 0);
		assert_int_equal(r->script->sock[i].nr_out, 0);
	}
	rig_free(r);
}

static uint64_t fed_b(const struct rig *r)
{
	uint64_t sum = 0;

	for (unsigned i = r->first; i < r->p->nr_socks; i++)
		sum += rx_of(r, i)->stat.bytes;
	return sum;
}

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

static void turns(struct pair *p, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		side_turn(p, 0);
		side_turn(p, 1);
	}
}

static void pass(struct pair *p, unsigned n, uint64_t ns)
{
	for (unsigned i = 0; i < n; i++) {
		p->now_ns += ns;
		turns(p, 1);
	}
}

/* ---- Bytes ---- */

/* Into the memory of the second side at @off, and back. */
static void move(struct rig *r, enum gx_op_kind kind, uint64_t len, uint64_t off)
{
	struct side *a = &r->p->side[0], *b = &r->p->side[1];
	unsigned done = a->nr_done, done_b = b->nr_done, notes = b->nr_notify;
	struct gx_op op = op_of(kind, r->p->buf, len), recv = op_at(b, GX_OP_RECV, off, len);

	memset(b->mem.addr, POISON, off + len + 64);
	bytes_fill(r->p->buf, len, (unsigned)(len + off));
	op.remote_off = off;
	op.flags = kind == GX_OP_PUT ? GX_OP_IMM : 0;
	if (kind == GX_OP_SEND)
		assert_int_equal(side_post(r->p, 1, &recv), 0);
	assert_int_equal(side_post(r->p, 0, &op), 0);
	UNTIL(r->p, a->nr_done == done + 1);
	UNTIL(r->p, kind == GX_OP_PUT ? b->nr_notify == notes + 1 : b->nr_done == done_b + 1);
	assert_int_equal(a->last.status, 0);
	assert_memory_equal(b->mem.addr + off, r->p->buf, len);
	is_all(b->mem.addr + off + len, 64, POISON);
}

/* The second side gets it from the region of the first one. */
static void move_get(struct rig *r, uint64_t len, uint64_t off)
{
	struct side *a = &r->p->side[0], *b = &r->p->side[1];
	unsigned done = b->nr_done;
	struct gx_op op = op_at(b, GX_OP_GET, off, len);

	memset(b->mem.addr, POISON, off + len + 64);
	bytes_fill(a->mem.addr, len, (unsigned)len);
	assert_int_equal(side_post(r->p, 1, &op), 0);
	UNTIL(r->p, b->nr_done == done + 1);
	assert_int_equal(b->last.status, 0);
	assert_memory_equal(b->mem.addr + off, a->mem.addr, len);
	is_all(b->mem.addr + off + len, 64, POISON);
}

static const uint64_t sizes[] = {0,	1,     63,     64,     4096,   4097,   65535,
				 65536, 65537, 196609, 262145, 999999, 1 << 20};

static void put_get__sizes(void **state)
{
	static const uint64_t delays_ns[] = {0, 3000, 300000};

	for (unsigned bare = 0; bare < 2; bare++)
		for (unsigned i = 0; i < GX_ARRAY_SIZE(delays_ns); i++)
			for (unsigned nr = 1 + bare; nr <= SCRIPT_SOCKS; nr += 2) {
				struct rig *r = rig_new(nr, bare, delays_ns[i], SCRIPT_PAGES);

				for (unsigned k = 0; k < GX_ARRAY_SIZE(sizes); k++) {
					move(r, GX_OP_PUT, sizes[k], k * 13);
					move(r, GX_OP_SEND, sizes[k], k % 5);
					move_get(r, sizes[k], k % 3 * 64);
				}
				rig_done(r);
			}
}

/* Bare sockets carry payload for the GPU, all of it, and nothing else. */
static void bare__payload_alone(void **state)
{
	struct rig *r = rig_new(3, true, 5000, SCRIPT_PAGES);

	move(r, GX_OP_PUT, 300000, 3);
	assert_int_equal(fed_b(r), 300000);
	move(r, GX_OP_SEND, 5000, 3);
	move_get(r, 70000, 0);
	assert_int_equal(fed_b(r), 375000);
	rig_done(r);
}

/* Memory that the receiver did not name: headers and payload come together, by socket 0. */
static void bare__other_memory(void **state)
{
	struct rig *r = rig_new(3, true, 5000, SCRIPT_PAGES);
	struct side *b = &r->p->side[1];
	struct gx_hello_region *region = &r->p->side[0].conn.peer.regions[0];
	struct gx_op recv = op_of(GX_OP_RECV, b->mem.addr + HALF, 100000), send;

	region->kind = GX_MEM_HOST;
	move(r, GX_OP_PUT, 300000, 3);
	region->kind = GX_MEM_CUDA;
	region->device = 1;
	move(r, GX_OP_PUT, 300000, 3);
	region->token++;
	move(r, GX_OP_PUT, 300000, 3);
	bytes_fill(r->p->buf, 100000, 9);
	send = op_of(GX_OP_SEND, r->p->buf, 100000);
	assert_int_equal(side_post(r->p, 1, &recv), 0);
	assert_int_equal(side_post(r->p, 0, &send), 0);
	UNTIL(r->p, b->nr_done == 1);
	assert_memory_equal(b->mem.addr + HALF, r->p->buf, 100000);
	assert_int_equal(fed_b(r), 0);
	rig_done(r);
}

/* Host memory of a receiver whose CPU reads the fragments. */
static void readable__into_host_memory(void **state)
{
	struct rig *r = rig_new(2, false, 5000, SCRIPT_PAGES);
	struct side *b = &r->p->side[1];

	b->mem.kind = GX_MEM_HOST;
	for (unsigned k = 0; k < GX_ARRAY_SIZE(sizes); k++)
		move(r, GX_OP_PUT, sizes[k], k);
	rig_done(r);
}

/* This kernel, with the real calls: without a NIC all payload comes as plain data. */
static void this_kernel__plain_data(void **state)
{
	struct rig *r = rig_new(3, true, 5000, SCRIPT_PAGES);
	struct tcp_ep *b = r->p->side[1].e;

	for (unsigned i = 1; i < b->nr_socks; i++) {
		rx_of(r, i)->sys = &devmem_sys_kernel;
		rx_of(r, i)->fd = b->sock[i].fd;
	}
	for (unsigned k = 0; k < GX_ARRAY_SIZE(sizes); k++)
		move(r, GX_OP_PUT, sizes[k], k);
	assert_true(fed_b(r) &&
		    fed_b(r) == rx_of(r, 1)->stat.linear_b + rx_of(r, 2)->stat.linear_b);
	rig_done(r);
}

/* The first side receives bare payload, too: by the real calls, as plain data. */
static struct devmem_pool *bare_back(struct rig *r, char *mem)
{
	struct tcp_ep *a = r->p->side[0].e, *b = r->p->side[1].e;
	struct devmem_pool *pool;

	assert_int_equal(devmem_pool_open(77, mem, 16 * DEVMEM_PAGE_B, 0, &pool), 0);
	tcp_core(r->p->side[0].core)->has_feeds = true;
	pair_gpu(r->p, 0, 7000);
	b->bare.tx = a->bare.rx = true;
	r->p->side[1].conn.peer = r->p->side[0].conn.peer;
	for (unsigned i = 1; i < a->nr_socks; i++) {
		struct devmem_cfg cfg = {.sys = &devmem_sys_kernel,
					 .fd = a->sock[i].fd,
					 .lin = mem + i * LIN_B,
					 .lin_b = LIN_B,
					 .depth = DEPTH};
		struct tcp_feed *f;

		assert_int_equal(devmem_feed_open(&cfg, pool, &f), 0);
		a->sock[i].bare = true;
		tcp_feed_give(a, i, f);
	}
	return pool;
}

/* Both ends have memory of a GPU alone, and each puts to the other and gets from it. */
static void bare__both_ways(void **state)
{
	struct rig *r = rig_new(3, true, 5000, SCRIPT_PAGES);
	char *mem = malloc(4 * LIN_B);
	struct devmem_pool *pool;
	const uint64_t len = 150001;

	assert_non_null(mem);
	pool = bare_back(r, mem);
	for (unsigned i = 0; i < 2; i++) /* a quarter each: put, got, sources */
		bytes_fill(r->p->side[i].mem.addr + HALF, HALF, 3 + i);
	for (unsigned n = 0; n < 10; n++) {
		unsigned done[2] = {r->p->side[0].nr_done, r->p->side[1].nr_done};

		for (unsigned i = 0; i < 2; i++) {
			struct side *s = &r->p->side[i];
			struct gx_op put = op_at(s, GX_OP_PUT, HALF + n * 1000, len);
			struct gx_op get = op_at(s, GX_OP_GET, HALF / 2 + n, len);

			memset(s->mem.addr, POISON, HALF);
			put.remote_off = n;
			get.remote_off = HALF + n * 2000;
			assert_int_equal(side_post(r->p, i, &put), 0);
			assert_int_equal(side_post(r->p, i, &get), 0);
		}
		UNTIL(r->p,
		      r->p->side[0].nr_done == done[0] + 2 && r->p->side[1].nr_done == done[1] + 2);
		for (unsigned i = 0; i < 2; i++) {
			const char *at = r->p->side[i].mem.addr;
			const char *far = r->p->side[!i].mem.addr + HALF;

			assert_memory_equal(at + n, far + n * 1000, len);
			assert_memory_equal(at + HALF / 2 + n, far + n * 2000, len);
		}
	}
	rig_done(r);
	devmem_pool_close(pool);
	free(mem);
}

/* Many under way at once, both ways, into a pool that is too small for them. */
static void storm(bool bare, uint32_t nr_pages, uint64_t delay_ns, uint64_t len)
{
	struct rig *r = rig_new(4, bare, delay_ns, nr_pages);
	struct side *a = &r->p->side[0], *b = &r->p->side[1];
	unsigned posted = 0, nr = (unsigned)(HALF / len);

	nr = GX_MIN(nr, 3000u);
	bytes_fill(r->p->buf, HALF, 5);
	while (posted < nr) {
		struct gx_op op = op_of(GX_OP_PUT, r->p->buf + posted * len, len);

		op.remote_off = posted * len;
		posted += !side_post(r->p, 0, &op);
		pass(r->p, 1, 1000);
	}
	UNTIL(r->p, a->nr_done == nr);
	assert_memory_equal(b->mem.addr, r->p->buf, nr * len);
	if (nr_pages < 100) {
		assert_true(r->script->nr_starved);
		assert_true(devmem_pool_report(r->pool[0]) + devmem_pool_report(r->pool[1]));
	}
	rig_done(r);
}

static void put__many(void **state)
{
	for (unsigned bare = 0; bare < 2; bare++) {
		storm(bare, SCRIPT_PAGES, 20000, 48);
		storm(bare, SCRIPT_PAGES, 20000, 5001);
	}
}

static void pool__is_too_small(void **state)
{
	for (unsigned bare = 0; bare < 2; bare++) {
		storm(bare, 16, 100000, 100001);
		storm(bare, 24, 20000, 777);
	}
}

/* ---- Order ---- */

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

/* Payload before its header waits, and its socket is not read on; a header waits for its payload. */
static void bare__either_first(void **state)
{
	for (unsigned sock = 0; sock < 2; sock++) {
		struct rig *r = rig_new(2, true, 5000, SCRIPT_PAGES);
		struct side *a = &r->p->side[0], *b = &r->p->side[1];
		struct gx_op op = op_of(GX_OP_PUT, r->p->buf, 2 * CHUNK_B);

		bytes_fill(r->p->buf, 2 * CHUNK_B, 3);
		op.flags = GX_OP_IMM;
		shut_fd = a->e->sock[sock].fd;
		a->e->sys = &shut;
		assert_int_equal(side_post(r->p, 0, &op), 0);
		pass(r->p, 300, 1000);
		assert_int_equal(b->nr_notify, 0);
		assert_int_equal(b->e->rx.nr_in, sock);
		assert_int_equal(b->e->sock[1].pend_head, sock * 2);
		assert_int_equal(fed_b(r) > 0, !sock);
		a->e->sys = &tcp_sys_kernel;
		UNTIL(r->p, b->nr_notify == 1);
		assert_memory_equal(b->mem.addr, r->p->buf, 2 * CHUNK_B);
		rig_done(r);
	}
}

/* A message is not whole before END, which says whether its bytes are good. */
static void bare__waits_for_end(void **state)
{
	struct rig *r = rig_new(2, true, 0, SCRIPT_PAGES);
	struct side *a = &r->p->side[0], *b = &r->p->side[1];
	struct tcp_frame f = {.type = TCP_DATA,
			      .flags = TCP_F_BARE | TCP_F_IMM,
			      .sock = 1,
			      .token = TOKEN,
			      .len = 100,
			      .plen = 100},
			 end = {.type = TCP_END, .flags = TCP_F_VOID, .sock = 1};
	uint8_t h[TCP_HDR_B];

	tcp_frame_put(h, &f);
	assert_int_equal(write(a->e->sock[0].fd, h, sizeof(h)), sizeof(h));
	assert_int_equal(write(a->e->sock[1].fd, r->p->buf, 100), 100);
	for (unsigned i = 0; i < 100; i++)
		side_turn(r->p, 1);
	assert_int_equal(b->e->sock[1].pend_paid, 1);
	assert_int_equal(b->e->in[0].base + b->nr_notify, 0);
	tcp_frame_put(h, &end);
	assert_int_equal(write(a->e->sock[0].fd, h, sizeof(h)), sizeof(h));
	for (unsigned i = 0; i < 100; i++)
		side_turn(r->p, 1);
	assert_int_equal(b->e->sock[1].pend_tail, 1);
	assert_int_equal(b->e->in[0].base + b->nr_notify, 0);
	assert_int_equal(side_fault(r->p, 1), 0);
	rig_free(r);
}

/* Headers and ENDs run ahead of payload that does not come: socket 0 waits, and then goes on. */
static void bare__headers_run_ahead(void **state)
{
	struct rig *r = rig_new(2, true, 5000, SCRIPT_PAGES);
	struct side *a = &r->p->side[0], *b = &r->p->side[1];
	unsigned posted = 0;

	bytes_fill(r->p->buf, HALF, 5);
	r->script->is_dry = true;
	while (posted < 3 * TCP_PENDS) {
		struct gx_op op = op_of(GX_OP_PUT, r->p->buf + posted * 40, 40);

		op.remote_off = posted * 40;
		posted += !side_post(r->p, 0, &op);
		pass(r->p, 1, 1000);
	}
	pass(r->p, 6000, MS); /* the peer is not silent: nobody reads it */
	assert_true(b->e->sock[0].full);
	assert_int_equal(b->e->sock[1].pend_head - b->e->sock[1].pend_tail, TCP_PENDS);
	assert_int_equal(a->nr_done | side_fault(r->p, 1), 0);
	r->script->is_dry = false;
	UNTIL(r->p, a->nr_done == posted);
	assert_memory_equal(b->mem.addr, r->p->buf, posted * 40);
	rig_done(r);
}

/* ---- Early ends ---- */

static void cancel(struct pair *p, unsigned side)
{
	gx_link_tcp_ops.cancel(&p->side[side].e->ep, 7, NULL);
	side_take(&p->side[side]);
}

/* Either side gives up, at any time. The next message comes whole. */
static void cancel__at_any_time(void **state)
{
	for (unsigned bare = 0; bare < 2; bare++) {
		struct rig *r = rig_new(3, bare, 5000, SCRIPT_PAGES);
		struct side *a = &r->p->side[0], *b = &r->p->side[1];

		for (unsigned n = 0; n < 80; n++) {
			struct gx_op recv = op_at(b, GX_OP_RECV, 0, 5 * CHUNK_B);
			struct gx_op send = op_of(GX_OP_SEND, r->p->buf, 5 * CHUNK_B);
			unsigned done_a = a->nr_done, done_b = b->nr_done;

			assert_int_equal(side_post(r->p, 1, &recv), 0);
			turns(r->p, 2);
			assert_int_equal(side_post(r->p, 0, &send), 0);
			pass(r->p, n / 2, 700);
			cancel(r->p, n & 1);
			if (!(n & 1)) { /* also a receive that no send has taken */
				turns(r->p, 30);
				cancel(r->p, 1);
			}
			UNTIL(r->p, b->nr_done == done_b + 1);
			memset(b->mem.addr, (int)n, HALF);
			cancel(r->p, 0);
			UNTIL(r->p, a->nr_done == done_a + 1);
			pair_settle(r->p);
			is_all(b->mem.addr, HALF, (int)n);
			move(r, GX_OP_PUT, 2 * CHUNK_B + 5, n);
		}
		rig_done(r);
	}
}

/* With copies out the endpoint stays, and so do its sockets: their close would give the memory of
 * fragments back that the GPU still reads. */
static void fail__with_blocks_out(void **state)
{
	for (unsigned bare = 0; bare < 2; bare++)
		for (unsigned n = 0; n < 30; n += 3) {
			struct rig *r = rig_new(3, bare, DELAY_NS, SCRIPT_PAGES);
			struct side *b = &r->p->side[1];
			struct gx_ep *ep = &b->e->ep;
			struct gx_op put = op_of(GX_OP_PUT, r->p->buf, HALF);
			uint32_t held = 0;

			assert_int_equal(side_post(r->p, 0, &put), 0);
			turns(r->p, 10 + n);
			assert_true(b->e->rx.nr_held);
			ep->ops->ep_fail(ep, -ECONNRESET);
			assert_false(atomic_load(&ep->detached));
			for (unsigned i = r->first; i < b->e->nr_socks; i++)
				held += devmem_rx_held(rx_of(r, i));
			assert_true(held);
			for (unsigned i = 0; i < 10; i++) {
				r->p->now_ns += DELAY_NS;
				side_turn(r->p, 1);
			}
			assert_true(atomic_load(&ep->detached));
			for (unsigned i = r->first; i < b->e->nr_socks; i++)
				assert_int_equal(devmem_rx_held(rx_of(r, i)), 0);
			/* Another thread closes the sockets: it must not touch the core's pools. */
			assert_int_equal(r->pool[0]->held + r->pool[1]->held, 0);
			rig_free(r);
		}
}

/* The GPU does not end its copies: operations fail, and the sockets of their fragments stay open
 * until the link is closed. */
static void gpu__stands_still(void **state)
{
	for (unsigned bare = 0; bare < 2; bare++) {
		struct rig *r = rig_new(2, bare, 100 * GPU_TIMEOUT_NS, SCRIPT_PAGES);
		struct side *a = &r->p->side[0], *b = &r->p->side[1];
		struct gx_op op = op_of(GX_OP_PUT, r->p->buf, 4 * CHUNK_B);

		for (unsigned i = 0; i < 4; i++)
			assert_int_equal(side_post(r->p, 0, &op), 0);
		for (unsigned i = 0; i < 4000 && a->nr_done < 4; i++)
			pass(r->p, 4, MS / 4);
		assert_int_equal(a->nr_done, 4);
		assert_int_equal(a->last.status, -EIO);
		assert_int_equal(side_fault(r->p, 0) | side_fault(r->p, 1), 0);
		assert_true(devmem_rx_held(rx_of(r, 1)));
		assert_null(tcp_core(b->core)->kept);
		tcp_feed_close(tcp_core(b->core), &b->e->sock[1]); /* as the endpoint's end does */
		assert_non_null(tcp_core(b->core)->kept);
		assert_int_equal(fcntl(tcp_core(b->core)->kept->fd, F_GETFD), FD_CLOEXEC);
		b->e->nr_socks--;
		rig_free(r);
	}
}

/* ---- The kernel's errors, and the peer's lies ---- */

static void kernel__ends_the_stream(void **state)
{
	for (unsigned how = SCRIPT_ETOOSMALL; how < SCRIPT_FAULTS; how++) {
		struct rig *r = rig_new(2, how & 1, 5000, SCRIPT_PAGES);
		struct side *b = &r->p->side[1];
		struct gx_op op = op_of(GX_OP_PUT, r->p->buf, HALF);

		assert_int_equal(side_post(r->p, 0, &op), 0);
		pass(r->p, 3, 1000);
		r->script->next = how;
		for (unsigned i = 0; i < 2000 && !side_fault(r->p, 1); i++)
			pass(r->p, 1, MS / 2);
		assert_int_equal(r->script->next, SCRIPT_NONE);
		assert_true(side_fault(r->p, 1));
		if (how == SCRIPT_CLOSED)
			assert_int_equal(side_fault(r->p, 1), -ECONNRESET);
		else
			assert_ptr_equal(b->e->ep.fault_why, b->e->end.why);
		assert_int_equal(!b->e->ep.fault_why, how == SCRIPT_CLOSED);
		rig_free(r);
	}
}

/* The peer closes, after all of its bytes. */
static void peer__closes(void **state)
{
	struct rig *r = rig_new(2, true, 5000, SCRIPT_PAGES);

	move(r, GX_OP_PUT, 100000, 0);
	shutdown(r->p->side[0].e->sock[1].fd, SHUT_WR);
	for (unsigned i = 0; i < 2000 && !side_fault(r->p, 1); i++)
		pass(r->p, 1, MS);
	assert_int_equal(side_fault(r->p, 1), -ECONNRESET);
	rig_free(r);
}

/* Payload that no header ever claims keeps memory of the pool: not for ever. */
static void bare__nobody_claims_it(void **state)
{
	struct rig *r = rig_new(2, true, 5000, SCRIPT_PAGES);

	assert_int_equal(write(r->p->side[0].e->sock[1].fd, r->p->buf, 100), 100);
	pass(r->p, 4900, MS);
	assert_int_equal(side_fault(r->p, 1), 0);
	pass(r->p, 300, MS);
	assert_int_equal(side_fault(r->p, 1), -EPROTO);
	rig_free(r);
}

/* Headers without payload, from a peer that answers each PING: not for ever, either. */
static void bare__payload_never_comes(void **state)
{
	struct tcp_frame f = {.type = TCP_DATA,
			      .flags = TCP_F_BARE,
			      .sock = 1,
			      .token = TOKEN,
			      .len = 100,
			      .plen = 100};
	struct rig *r = rig_new(2, true, 5000, SCRIPT_PAGES);
	const int *fd = (int[]){r->p->side[0].e->sock[0].fd, r->p->side[0].e->sock[1].fd};
	uint8_t h[TCP_HDR_B];

	tcp_frame_put(h, &f);
	assert_int_equal(write(fd[0], h, sizeof(h)), sizeof(h));
	pass(r->p, 10000, MS);
	assert_int_equal(write(fd[1], r->p->buf, 1), 1); /* a byte is a sign of life */
	pass(r->p, 14900, MS);
	assert_int_equal(side_fault(r->p, 1), 0);
	pass(r->p, 500, MS);
	assert_int_equal(side_fault(r->p, 1), -ETIMEDOUT);
	assert_non_null(strstr(r->p->side[1].e->ep.fault_why, "payload"));
	rig_free(r);
}

/* Its header cannot be read, because a GPU has the room for what comes before: not the peer's lie. */
static void bare__nobody_may_claim_it(void **state)
{
	struct tcp_frame f = {
		.type = TCP_DATA, .token = TOKEN, .len = CHUNK_B, .plen = CHUNK_B, .off = 64};
	struct rig *r = rig_new(2, true, 5000, SCRIPT_PAGES);
	struct tcp_gpu *t = tcp_core(r->p->side[1].core)->gpu[0];
	const int *fd = (int[]){r->p->side[0].e->sock[0].fd, r->p->side[0].e->sock[1].fd};
	uint8_t h[TCP_HDR_B];

	tcp_frame_put(h, &f);
	t->head = t->tail + TCP_RING_B;
	assert_int_equal(write(fd[0], h, sizeof(h)), sizeof(h));
	assert_int_equal(write(fd[1], r->p->buf, 100), 100);
	pass(r->p, 6000, MS);
	assert_int_equal(r->p->side[1].e->sock[0].sink.left, CHUNK_B);
	assert_int_equal(side_fault(r->p, 1), 0);
	t->head = t->tail;
	pass(r->p, 4900, MS);
	assert_int_equal(side_fault(r->p, 1), 0);
	pass(r->p, 300, MS);
	assert_int_equal(side_fault(r->p, 1), -EPROTO);
	rig_free(r);
}

/* All memory of a socket waits for a GPU, for longer than a silent peer may be silent. */
static void pull__no_memory(void **state)
{
	struct rig *r = rig_new(1, false, GPU_TIMEOUT_NS / 10 * 9, SCRIPT_PAGES);
	struct side *a = &r->p->side[0], *b = &r->p->side[1];
	struct gx_op op = op_of(GX_OP_PUT, r->p->buf, 4 * LIN_B);

	b->conn.agreed.peer_timeout_ns = GPU_TIMEOUT_NS / 4;
	rx_of(r, 0)->sys = &devmem_sys_kernel; /* into its host memory */
	rx_of(r, 0)->fd = b->e->sock[0].fd;
	bytes_fill(r->p->buf, op.len, 3);
	assert_int_equal(side_post(r->p, 0, &op), 0);
	for (unsigned i = 0; i < 8000 && !a->nr_done; i++)
		pass(r->p, 1, MS);
	assert_true(rx_of(r, 0)->stat.full);
	assert_int_equal(side_fault(r->p, 1), 0);
	assert_int_equal(a->nr_done, 1);
	assert_int_equal(a->last.status, 0);
	assert_memory_equal(b->mem.addr, r->p->buf, op.len);
	rig_done(r);
}

/* A GPU has it for others, so not even the sender's PING is read: the sender hears all the same. */
static void pull__no_memory_for_ping(void **state)
{
	struct rig *r = rig_new(1, false, 0, SCRIPT_PAGES);
	struct side *a = &r->p->side[0], *b = &r->p->side[1];
	struct gx_op op = op_of(GX_OP_PUT, r->p->buf, CHUNK_B);
	struct devmem_rx *rx = rx_of(r, 0);

	a->conn.agreed.peer_timeout_ns = b->conn.agreed.peer_timeout_ns = 400 * MS;
	tcp_core(b->core)->nr_held = 1;
	rx->lin_head = rx->lin_tail + LIN_B;
	assert_int_equal(side_post(r->p, 0, &op), 0);
	pass(r->p, 2000, MS);
	assert_int_equal(b->e->rx.nr_in | a->nr_done, 0);
	assert_int_equal(side_fault(r->p, 0) | side_fault(r->p, 1), 0);
	tcp_core(b->core)->nr_held = 0;
	rx->lin_head = rx->lin_tail;
	UNTIL(r->p, a->nr_done == 1);
	assert_int_equal(a->last.status, 0);
	rig_done(r);
}

static int lie(const struct tcp_frame *f, unsigned n, bool bare)
{
	struct rig *r = rig_new(2, bare, 0, SCRIPT_PAGES);
	uint8_t h[TCP_HDR_B];
	int fault;

	r->first = 1;
	if (!bare) /* by recv() */
		tcp_feed_close(tcp_core(r->p->side[1].core), &r->p->side[1].e->sock[1]);
	for (unsigned i = 0; i < n; i++) {
		tcp_frame_put(h, f);
		assert_int_equal(write(r->p->side[0].e->sock[0].fd, h, sizeof(h)), sizeof(h));
		f += n < 4;
	}
	for (unsigned i = 0; i < 100; i++)
		side_turn(r->p, 1);
	fault = side_fault(r->p, 1);
	r->p->side[1].e->nr_socks -= !bare;
	rig_free(r);
	return fault;
}

#define LIE(bare, ...)                                                                             \
	do {                                                                                       \
		const struct tcp_frame f_[] = {__VA_ARGS__};                                       \
		assert_int_equal(lie(f_, GX_ARRAY_SIZE(f_), bare), -EPROTO);                       \
	} while (0)
#define DATA(...)                                                                                  \
	{                                                                                          \
		.type = TCP_DATA, .flags = TCP_F_BARE, .token = TOKEN, __VA_ARGS__                 \
	}

static void peer__lies(void **state)
{
	const struct tcp_frame many = DATA(.sock = 1, .len = MEM_B, .plen = CHUNK_B);

	LIE(false, DATA(.sock = 1, .len = 8, .plen = 8)); /* we did not ask for it */
	LIE(false, {.type = TCP_END, .sock = 1});
	LIE(false, {.type = TCP_OFFER, .flags = TCP_F_BARE, .token = TCP_SLOT_BIT});
	LIE(false, {.type = TCP_GET, .flags = TCP_F_BARE, .token = TOKEN, .imm = TCP_SLOT_BIT});
	LIE(true, {.type = TCP_END, .sock = 1}); /* of nothing */
	LIE(true, DATA(.sock = 1, .len = 8, .plen = 8), {.type = TCP_END, .sock = 1},
	    {.type = TCP_END, .sock = 1});
	LIE(true, DATA(.sock = 2, .len = 8, .plen = 8)); /* there is no such socket */
	LIE(true, DATA(.sock = 1, .len = MEM_B, .plen = CHUNK_B + 1));
	assert_int_equal(lie(&many, 33, true), -EPROTO); /* twice the same */
}

/* More headers than may wait for their END, each of a message of its own. */
static void peer__sends_no_end(void **state)
{
	struct rig *r = rig_new(2, true, 0, SCRIPT_PAGES);

	for (unsigned i = 0; i <= TCP_OUTS; i++) {
		struct tcp_frame f = DATA(.sock = 1, .mid = i, .len = 8, .plen = 8);
		uint8_t h[TCP_HDR_B];

		assert_int_equal(side_fault(r->p, 1), 0);
		tcp_frame_put(h, &f);
		assert_int_equal(write(r->p->side[0].e->sock[0].fd, h, sizeof(h)), sizeof(h));
		for (unsigned k = 0; k < 10; k++)
			side_turn(r->p, 1);
	}
	assert_int_equal(side_fault(r->p, 1), -EPROTO);
	rig_free(r);
}

/* Bare payload for host memory, which the sender should know: the message is refused, and its bytes
 * go nowhere. */
static void bare__for_host_memory(void **state)
{
	struct rig *r = rig_new(2, true, 5000, SCRIPT_PAGES);
	struct side *a = &r->p->side[0], *b = &r->p->side[1];
	struct gx_op op = op_of(GX_OP_PUT, r->p->buf, 100000);

	b->mem.kind = GX_MEM_HOST;
	assert_int_equal(side_post(r->p, 0, &op), 0);
	UNTIL(r->p, a->nr_done == 1);
	assert_int_equal(a->last.status, -EOPNOTSUPP);
	pair_settle(r->p);
	is_all(b->mem.addr, MEM_B, POISON);
	b->mem.kind = GX_MEM_CUDA;
	move(r, GX_OP_PUT, 100000, 0);
	rig_done(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(put_get__sizes),
		cmocka_unit_test(bare__payload_alone),
		cmocka_unit_test(bare__other_memory),
		cmocka_unit_test(readable__into_host_memory),
		cmocka_unit_test(this_kernel__plain_data),
		cmocka_unit_test(bare__both_ways),
		cmocka_unit_test(put__many),
		cmocka_unit_test(pool__is_too_small),
		cmocka_unit_test(bare__either_first),
		cmocka_unit_test(bare__waits_for_end),
		cmocka_unit_test(bare__headers_run_ahead),
		cmocka_unit_test(cancel__at_any_time),
		cmocka_unit_test(fail__with_blocks_out),
		cmocka_unit_test(gpu__stands_still),
		cmocka_unit_test(kernel__ends_the_stream),
		cmocka_unit_test(peer__closes),
		cmocka_unit_test(bare__nobody_claims_it),
		cmocka_unit_test(bare__nobody_may_claim_it),
		cmocka_unit_test(bare__payload_never_comes),
		cmocka_unit_test(pull__no_memory),
		cmocka_unit_test(pull__no_memory_for_ping),
		cmocka_unit_test(peer__lies),
		cmocka_unit_test(peer__sends_no_end),
		cmocka_unit_test(bare__for_host_memory),
	};

	return cmocka_run_group_tests_name("tcp_feed", tests, NULL, NULL);
}
