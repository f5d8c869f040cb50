// SPDX-License-Identifier: Apache-2.0
/*
 * Payload into a bounce pool in the memory of a GPU: push.c, and port shm over it. Two ends in one
 * process, on GPU 0 or the fake driver; what lies there is looked at through a copy of the GPU's.
 * Exit 77 without a GPU.
 */
#include "gx_internal/port.h"

#include "ports/shm_seg.h"
#include "copy/push.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define WAIT_NS 20000000000ull
#define SLOTS	64
#define SLOT_B	4096
#define HLEN	32
#define SRC_B	(1u << 20)

static const struct gx_port_ops *const ops = &gx_port_shm_ops;
static struct gx_gpu *gpu;
static struct gx_gpu *gpus[GX_PUSH_GPUS];

struct end {
	struct gx_arena *arena, *pool;
	struct gx_port *port;
	struct gx_port_queue *q;
	struct gx_stats stats;
	uint32_t peer;
	struct gx_port_addr laddr;
};

struct fix {
	struct end rx, tx;
	struct gx_gpu_stream *s; /* for looking */
	uint32_t *flag, value;
	char *mapped, *plain, *device; /* SRC_B of payload each, the same bytes */
	char *seen;		       /* SLOT_B, mapped */
	uint64_t next;		       /* packets sent, and received */
	uint64_t taken;
};

static void copy(struct fix *f, void *dst, const void *src, size_t len)
{
	struct gx_gpu_copy one = {dst, src, len};
	uint64_t until = gx_now_ns() + WAIT_NS;

	assert_int_equal(f->s->ops->copy(f->s, &one, 1, f->flag, ++f->value, gx_now_ns()), 0);
	while (__atomic_load_n(f->flag, __ATOMIC_ACQUIRE) != f->value) {
		f->s->ops->reap(f->s, gx_now_ns());
		assert_true(gx_now_ns() < until);
	}
}

static int end_open(struct end *e, bool pool, struct gx_gpu *const *with)
{
	static const int cpus[] = {-1};
	struct gx_port_cfg cfg = {.nr_queues = 1,
				  .cpus = cpus,
				  .slots = SLOTS,
				  .payload_b = SLOT_B,
				  .gpus = with,
				  .gpu_timeout_ns = WAIT_NS};

	assert_int_equal(gx_arena_open(1u << 28, &e->arena), 0);
	assert_int_equal(gx_arena_attach(e->arena, gpu), 0);
	cfg.arena = e->arena;
	if (pool) {
		assert_int_equal(gx_arena_open_gpu(gpu, GX_ARENA_SIZE_MAX, &e->pool), 0);
		cfg.pool = e->pool;
		cfg.pool_gpu = gpu;
	}
	assert_int_equal(ops->open(&cfg, &e->port), 0);
	assert_int_equal(!!(e->port->caps.flags & GX_PORT_RX_GPU), pool);
	assert_int_equal(ops->queue_open(e->port, 0, &e->stats, &e->q), 0);
	return ops->peer_add(e->q, &e->peer, &e->laddr);
}

static void end_close(struct end *e)
{
	ops->queue_close(e->q);
	ops->close(e->port);
	if (e->pool)
		gx_arena_close(e->pool);
}

/* As if passed over a socket. */
static int peer_connect(struct end *e, const struct end *other)
{
	struct gx_port_addr raddr = other->laddr;

	raddr.fd = fcntl(raddr.fd, F_DUPFD_CLOEXEC, 0);
	if (raddr.has_pool)
		raddr.pool_fd = fcntl(raddr.pool_fd, F_DUPFD_CLOEXEC, 0);
	return ops->peer_connect(e->q, e->peer, &raddr);
}

static int setup(void **state)
{
	struct fix *f = calloc(1, sizeof(*f));

	assert_int_equal(end_open(&f->rx, true, gpus), 0);
	assert_int_equal(end_open(&f->tx, false, gpus), 0);
	assert_int_equal(peer_connect(&f->rx, &f->tx), 0);
	assert_int_equal(peer_connect(&f->tx, &f->rx), 0);
	ops->peer_attach(f->rx.q, f->rx.peer);
	ops->peer_attach(f->tx.q, f->tx.peer);
	assert_int_equal(gpu->stream->open(gpu, GX_STREAM_LAUNCH, &f->s), 0);
	f->flag = gx_gpu_flag_alloc(gpu, 1);
	assert_int_equal(gx_arena_map(f->tx.arena, -1, SRC_B, (void **)&f->mapped), 0);
	assert_int_equal(gx_arena_map(f->tx.arena, -1, SLOT_B, (void **)&f->seen), 0);
	assert_int_equal(gpu->mem->alloc(gpu, SRC_B, (void **)&f->device), 0);
	f->plain = malloc(SRC_B);
	assert_true(f->flag && f->plain);
	for (unsigned i = 0; i < SRC_B; i++)
		f->plain[i] = f->mapped[i] = (char)(i * 2654435761u >> 24);
	copy(f, f->device, f->mapped, SRC_B);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fix *f = *state;

	ops->peer_detach(f->tx.q, f->tx.peer);
	ops->peer_detach(f->rx.q, f->rx.peer);
	ops->peer_del(f->tx.q, f->tx.peer);
	ops->peer_del(f->rx.q, f->rx.peer);
	end_close(&f->tx);
	end_close(&f->rx);
	gx_gpu_stream_close(f->s);
	gx_gpu_flag_free(gpu, f->flag);
	gpu->mem->free(gpu, f->device, SRC_B);
	gx_arena_unmap(f->tx.arena, f->mapped, SRC_B);
	gx_arena_unmap(f->tx.arena, f->seen, SLOT_B);
	gx_arena_close(f->tx.arena);
	gx_arena_close(f->rx.arena);
	free(f->plain);
	free(f);
	return 0;
}

/* Packet @n: where its payload comes from, and which bytes of SRC_B they are. */
static struct gx_tx packet(struct fix *f, uint64_t n)
{
	char *const from[] = {f->mapped, f->plain, f->device};
	uint32_t len = n % 7 == 6 ? 0 : 1 + n * 977 % SLOT_B, off = n * 7919 % (SRC_B - SLOT_B);
	struct gx_tx tx = {.data = from[n % 3] + off,
			   .len = len,
			   .peer = f->tx.peer,
			   .cookie = (uint32_t)n,
			   .gpu = n % 3 == 2,
			   .mapped = n % 3 == 0,
			   .hlen = HLEN};

	memcpy(tx.hdr, &n, sizeof(n));
	return tx;
}

static void packet_check(struct fix *f, const struct gx_rx *rx)
{
	struct gx_tx want = packet(f, f->taken);
	uint64_t n;

	memcpy(&n, rx->hdr, sizeof(n));
	assert_int_equal(n, f->taken); /* in order, whoever copied it */
	assert_int_equal(rx->len, want.len);
	if (rx->len) {
		copy(f, f->seen, rx->data, rx->len);
		assert_memory_equal(f->seen, f->plain + n * 7919 % (SRC_B - SLOT_B), rx->len);
	}
	f->taken++;
}

static unsigned receive(struct fix *f, struct gx_rx rx[], unsigned n)
{
	unsigned got = ops->rx_burst(f->rx.q, GX_HALF_DATA, rx, n);

	for (unsigned i = 0; i < got; i++)
		packet_check(f, &rx[i]);
	return got;
}

static void rx_burst__in_order_from_any_memory(void **state)
{
	struct fix *f = *state;
	uint64_t until = gx_now_ns() + WAIT_NS;
	bool back[500] = {false};
	unsigned nr_back = 0;

	while ((f->taken < 500 || nr_back < 500) && gx_now_ns() < until) {
		uint32_t cookies[8];
		struct gx_rx rx[8];
		struct gx_tx tx = packet(f, f->next);
		unsigned n = 0;

		if (f->next < 500 && ops->tx_room(f->tx.q, GX_HALF_DATA, f->tx.peer))
			n = ops->tx_burst(f->tx.q, GX_HALF_DATA, &tx, 1);
		f->next += n;
		if (n && !tx.gpu && !tx.mapped)
			memset(&tx, 0x5a, sizeof(tx)); /* copied, whatever becomes of it */
		n = ops->tx_reap(f->tx.q, cookies, 8);
		for (unsigned i = 0; i < n; i++) {
			assert_true(cookies[i] < f->next && !back[cookies[i]]);
			back[cookies[i]] = true;
		}
		nr_back += n;
		n = receive(f, rx, 8);
		for (unsigned i = 0; i < n; i++)
			ops->rx_release(f->rx.q, &rx[i].buf, 1);
	}
	assert_int_equal(f->taken, 500);
	assert_int_equal(nr_back, 500);
	assert_int_equal(ops->fault(f->tx.q), 0);
}

/* As long as the receiver holds all slots none is written again. */
static void tx_room__ends_with_the_slots(void **state)
{
	struct fix *f = *state;
	uint64_t until = gx_now_ns() + WAIT_NS;
	struct gx_rx rx[SLOTS];
	uint32_t cookies[8];
	unsigned held = 0;

	while (held < SLOTS && gx_now_ns() < until) {
		struct gx_tx tx = packet(f, f->next);

		if (ops->tx_room(f->tx.q, GX_HALF_DATA, f->tx.peer))
			f->next += ops->tx_burst(f->tx.q, GX_HALF_DATA, &tx, 1);
		ops->tx_reap(f->tx.q, cookies, 8);
		held += receive(f, rx + held, SLOTS - held);
	}
	assert_int_equal(held, SLOTS);
	assert_int_equal(ops->tx_room(f->tx.q, GX_HALF_DATA, f->tx.peer), 0);
	for (unsigned i = 0; i < SLOTS; i++)
		ops->rx_release(f->rx.q, &rx[i].buf, 1);
	while (!ops->tx_room(f->tx.q, GX_HALF_DATA, f->tx.peer) && gx_now_ns() < until)
		ops->rx_burst(f->rx.q, GX_HALF_DATA, rx, 1);
	assert_true(ops->tx_room(f->tx.q, GX_HALF_DATA, f->tx.peer) > 0);
}

/* A receiver that says of slots on their way to it that they are free: there are not as many, and
 * nothing more is sent to it. */
static void tx_room__slots_posted_twice(void **state)
{
	struct fix *f = *state;
	struct shm_hdr *hdr =
		mmap(NULL, sizeof(*hdr), PROT_READ | PROT_WRITE, MAP_SHARED, f->rx.laddr.fd, 0);
	uint64_t until = gx_now_ns() + WAIT_NS;
	uint32_t cookies[8];
	unsigned n = 0;

	assert_true(hdr != MAP_FAILED);
	for (; n < 4; n++) { /* not reaped: their entries are not rung */
		struct gx_tx tx = packet(f, 3 * n);

		assert_int_equal(ops->tx_burst(f->tx.q, GX_HALF_DATA, &tx, 1), 1);
	}
	assert_true(ops->tx_room(f->tx.q, GX_HALF_DATA, f->tx.peer) > 0);
	/* A real GPU may have ended its copies by now: then one slot may well be free again, five
	 * may not. */
	atomic_store(&hdr->posted_head, SLOTS + (getenv("GX_FAKE_CUDA") ? 1 : 5));
	assert_int_equal(ops->tx_room(f->tx.q, GX_HALF_DATA, f->tx.peer), 0);
	/* The memory that they write goes with the fixture. */
	for (unsigned done = 0; done < n;) {
		done += ops->tx_reap(f->tx.q, cookies, 8);
		assert_true(gx_now_ns() < until);
	}
	munmap(hdr, sizeof(*hdr));
}

/* Who lets go of a buffer and still reads it finds neither the old bytes nor the next packet's. */
static void rx_release__early_is_seen(void **state)
{
#ifdef NDEBUG
	skip();
#endif
	struct fix *f = *state;
	uint64_t until = gx_now_ns() + WAIT_NS;
	struct gx_tx tx = packet(f, 0);
	uint32_t cookie;
	struct gx_rx rx, none;

	tx.len = SLOT_B;
	assert_int_equal(ops->tx_burst(f->tx.q, GX_HALF_DATA, &tx, 1), 1);
	while (!ops->rx_burst(f->rx.q, GX_HALF_DATA, &rx, 1) && gx_now_ns() < until)
		ops->tx_reap(f->tx.q, &cookie, 1);
	copy(f, f->seen, rx.data, SLOT_B);
	assert_memory_equal(f->seen, f->plain, SLOT_B);
	ops->rx_release(f->rx.q, &rx.buf, 1);
	do {
		ops->rx_burst(f->rx.q, GX_HALF_DATA, &none, 1);
		copy(f, f->seen, rx.data, SLOT_B);
	} while (f->seen[0] == f->plain[0] && gx_now_ns() < until);
	for (unsigned i = 0; i < SLOT_B; i++)
		assert_int_equal((uint8_t)f->seen[i], 0xdb);
}

static void peer_info__what_a_pool_asks_of_the_sender(void **state)
{
	struct fix *f = *state;
	struct gx_port_peer info;

	ops->peer_info(f->tx.q, f->tx.peer, &info);
	assert_int_equal(info.flags, GX_PORT_TX_ATTACH);
	assert_int_equal(info.gpus, 1);
	assert_int_equal(info.pool, 0);
	ops->peer_info(f->rx.q, f->rx.peer, &info);
	assert_int_equal(info.flags, 0);
	assert_int_equal(info.gpus, 0);
	assert_int_equal(info.pool, -1);
}

/* A GPU that unpacks by the CPU reads no GPU's memory: such payload is to be staged. */
static void peer_info__mode_host_reads_host_memory_alone(void **state)
{
	struct gx_gpu_cfg cfg = {.unpack = GX_UNPACK_HOST};
	uint64_t until = gx_now_ns() + WAIT_NS;
	struct gx_gpu *by[GX_PUSH_GPUS] = {0};
	struct fix *f = *state;
	struct end e = {0};
	struct gx_port_peer info;
	uint32_t cookie;
	struct gx_rx rx;

	assert_int_equal(gx_gpu_cuda_ops.open(&cfg, &by[0]), 0);
	ops->peer_detach(f->rx.q, f->rx.peer);
	ops->peer_del(f->rx.q, f->rx.peer);
	assert_int_equal(ops->peer_add(f->rx.q, &f->rx.peer, &f->rx.laddr), 0);
	assert_int_equal(end_open(&e, false, by), 0);
	assert_int_equal(peer_connect(&e, &f->rx), 0);
	assert_int_equal(peer_connect(&f->rx, &e), 0);
	ops->peer_attach(f->rx.q, f->rx.peer);
	ops->peer_attach(e.q, e.peer);
	ops->peer_info(e.q, e.peer, &info);
	assert_int_equal(info.gpus, 0);
	assert_int_equal(info.pool_here, 0);
	for (unsigned n = 0; n < 2; n++) { /* mapped, plain */
		struct gx_tx tx = packet(f, n);

		tx.peer = e.peer;
		assert_int_equal(ops->tx_burst(e.q, GX_HALF_DATA, &tx, 1), 1);
		while (!receive(f, &rx, 1) && gx_now_ns() < until)
			ops->tx_reap(e.q, &cookie, 1);
		ops->rx_release(f->rx.q, &rx.buf, 1);
	}
	assert_int_equal(f->taken, 2);
	ops->peer_detach(e.q, e.peer);
	ops->peer_del(e.q, e.peer);
	end_close(&e);
	gx_arena_close(e.arena);
	by[0]->ops->close(by[0]);
}

static void connect_fails(struct fix *f, struct gx_gpu *const *with,
			  const struct gx_port_addr *raddr, int fd, int pool_fd, int err,
			  const char *word)
{
	struct gx_port_addr a = *raddr;
	struct end e = {0};

	assert_int_equal(end_open(&e, false, with), 0);
	a.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	a.pool_fd = fcntl(pool_fd, F_DUPFD_CLOEXEC, 0);
	assert_int_equal(ops->peer_connect(e.q, e.peer, &a), err);
	assert_non_null(strstr(gx_port_why(), word));
	assert_int_equal(fcntl(a.fd, F_GETFD), -1); /* taken over in any case */
	assert_int_equal(fcntl(a.pool_fd, F_GETFD), -1);
	ops->peer_del(e.q, e.peer);
	end_close(&e);
	gx_arena_close(e.arena);
}

static void peer_connect__refuses_and_says_why(void **state)
{
	static struct gx_gpu *const none[GX_PUSH_GPUS];
	struct fix *f = *state;
	struct gx_port_addr good = f->rx.laddr, bad = good;
	struct shm_addr_pool said;
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	connect_fails(f, none, &good, good.fd, good.pool_fd, -ENODEV, "gx_gpu_open()");
	connect_fails(f, NULL, &good, good.fd, good.pool_fd, -ENODEV, "gx_gpu_opts.bounce host");
	connect_fails(f, gpus, &good, good.fd, ends[0], -EPROTO, "bounce pool");
	bad.len--;
	connect_fails(f, gpus, &bad, good.fd, good.pool_fd, -EPROTO, "not a valid one");
	bad = good;
	memcpy(&said, good.b, sizeof(said));
	said.device = 99;
	memcpy(bad.b, &said, sizeof(said));
	connect_fails(f, gpus, &bad, good.fd, good.pool_fd, -EPROTO, "makes no sense");
	said.device = 0;
	said.len *= 64; /* more than there is */
	memcpy(bad.b, &said, sizeof(said));
	connect_fails(f, gpus, &bad, good.fd, good.pool_fd, -EPROTO, "bounce pool");
	said.len /= 64;
	said.off = said.len; /* nothing behind it */
	memcpy(bad.b, &said, sizeof(said));
	connect_fails(f, gpus, &bad, good.fd, good.pool_fd, -EPROTO, "bounce pool");
	close(ends[0]);
	close(ends[1]);
}

/* The fake alone can do that: work is refused, so nothing gets there and nothing is rung. */
static void tx_burst__the_gpu_fails(void **state)
{
	struct fix *f = *state;
	uint64_t until = gx_now_ns() + WAIT_NS;
	struct gx_tx tx = packet(f, 0);
	uint32_t cookie = UINT32_MAX;
	struct gx_rx rx;

	if (!getenv("GX_FAKE_CUDA"))
		skip();
	setenv("GX_FAKE_CUDA_DEAD", "1", 1);
	assert_int_equal(ops->tx_burst(f->tx.q, GX_HALF_DATA, &tx, 1), 1);
	while (!ops->fault(f->tx.q) && gx_now_ns() < until)
		ops->tx_reap(f->tx.q, &cookie, 1);
	unsetenv("GX_FAKE_CUDA_DEAD");
	assert_int_equal(ops->fault(f->tx.q), -EIO);
	assert_int_equal(cookie, tx.cookie); /* its buffer is the caller's again */
	assert_int_equal(ops->rx_burst(f->rx.q, GX_HALF_DATA, &rx, 1), 0);
	assert_int_equal(ops->tx_room(f->tx.q, GX_HALF_DATA, f->tx.peer), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(rx_burst__in_order_from_any_memory),
		TEST(tx_room__ends_with_the_slots),
		TEST(tx_room__slots_posted_twice),
		TEST(rx_release__early_is_seen),
		TEST(peer_info__what_a_pool_asks_of_the_sender),
		TEST(peer_info__mode_host_reads_host_memory_alone),
		TEST(peer_connect__refuses_and_says_why),
		TEST(tx_burst__the_gpu_fails),
	};
	struct gx_gpu_cfg cfg = {.device = 0};
	int ret;

	if (gx_gpu_cuda_ops.open(&cfg, &gpu)) {
		printf("SKIP: no GPU: %s\n", gx_gpu_why());
		return 77;
	}
	gpus[0] = gpu;
	ret = cmocka_run_group_tests(tests, NULL, NULL);
	gpu->ops->close(gpu);
	return ret;
}
