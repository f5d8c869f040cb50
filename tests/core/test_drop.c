/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gx_mem_free() of memory that is in use, over a simulated network: when it has returned nothing of
 * gx reads or writes memory of the caller's, whoever has something under way there ends with an
 * error, and other operations go on. At many moments, as what is under way differs.
 */
#include "sim/sim_rig.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LEN	(1u << 20)
#define MOMENTS 24
#define NEXT	0x77 /* what the next owner of the memory writes there */

static struct {
	struct gx_mem *mem; /* of the side under test: registered */
	uint8_t *at;
	uint8_t *other; /* of the other side, not registered */
} own;

static void own_open(struct rig *r, int side)
{
	own.at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	own.other = malloc(LEN);
	assert_true(own.at != MAP_FAILED && own.other);
	rig_fill(own.at, LEN, 1);
	rig_fill(own.other, LEN, 2);
	assert_int_equal(gx_mem_reg(r->gx[side], GX_MEM_HOST, 0, own.at, LEN, &own.mem), 0);
	assert_int_equal(gx_mem_share(own.mem, "own", GX_ACCESS_PUT | GX_ACCESS_GET), 0);
}

static void own_close(void)
{
	munmap(own.at, LEN);
	free(own.other);
}

/* Its owner uses it for something else; who reads it now gets a signal. */
static void own_is_others(struct rig *r)
{
	memset(own.at, NEXT, LEN);
	assert_int_equal(mprotect(own.at, LEN, PROT_NONE), 0);
	rig_pass(r, 100 * MS);
	assert_int_equal(mprotect(own.at, LEN, PROT_READ), 0);
	for (unsigned i = 0; i < LEN; i++)
		assert_int_equal(own.at[i], NEXT);
}

/* A peer puts into it. */
static void own_put(struct rig *r, uint64_t len)
{
	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .user = 1,
				 .addr = own.other,
				 .len = len,
				 .token = own.mem->token});
}

static int status_of(struct rig *r, int side, uint64_t user)
{
	for (unsigned i = 0; i < r->nr_last[side]; i++)
		if (r->last[side][i].user == user && r->last[side][i].kind == GX_COMP_DONE)
			return r->last[side][i].status;
	fail_msg("no completion of %u at side %d", (unsigned)user, side);
	return 0;
}

static uint64_t moment_ns(unsigned k)
{
	return k * k * 700; /* all is over after some 250 us */
}

/* ---- what peers do in a region ---- */

static void peer_put(uint64_t len, uint32_t loss_ppm, uint64_t gpu_delay_ns)
{
	unsigned refused = 0;

	for (unsigned k = 0; k < MOMENTS; k++) {
		struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = k, .loss_ppm = loss_ppm},
							   .gpu_delay_ns = gpu_delay_ns});
		int status;

		own_open(r, 1);
		own_put(r, len);
		rig_pass(r, moment_ns(k));
		assert_int_equal(gx_mem_free(own.mem), 0);
		own_is_others(r);
		rig_comps(r, 0, 1, 5 * SECOND);
		status = status_of(r, 0, 1);
		assert_true(!status || status == -ESTALE);
		refused += status == -ESTALE;
		rig_set(r, &(struct sim_cfg){0});
		rig_done(r);
		own_close();
	}
	assert_true(refused > 3 && (loss_ppm || refused < MOMENTS));
}

static void peer__put(void **state)
{
	peer_put(LEN, 0, 0);
}

static void peer__put_is_lost_now_and_then(void **state)
{
	peer_put(LEN, 50000, 0);
}

static void peer__put_inline(void **state)
{
	peer_put(64, 0, 0);
}

static void peer__gets(void **state)
{
	unsigned refused = 0, ended = 0;

	for (unsigned k = 0; k < MOMENTS; k++) {
		struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = k}});

		own_open(r, 1);
		for (unsigned i = 0; i < 20; i++)
			rig_post(r, 0,
				 &(struct gx_op){.kind = GX_OP_GET,
						 .user = i,
						 .addr = own.other + i * (LEN / 20),
						 .len = LEN / 20,
						 .token = own.mem->token});
		rig_pass(r, moment_ns(k));
		assert_int_equal(gx_mem_free(own.mem), 0);
		own_is_others(r);
		rig_comps(r, 0, 20, 5 * SECOND);
		for (unsigned i = 0; i < 20; i++) {
			int status = status_of(r, 0, i);

			assert_true(!status || status == -ESTALE || status == -ECANCELED);
			refused += status == -ESTALE;
			ended += !status;
		}
		rig_done(r);
		own_close();
	}
	assert_true(refused && ended);
}

/* Gets that wait for a mid have no message that could be taken back: the peer is told. */
static void peer__gets_before_anything_was_sent(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}});
	struct pkt_ep *e = rig_ep(r, 1, 0);
	uint32_t mids_max = e->tx.mids_max;

	own_open(r, 1);
	e->tx.mids_max = 0;
	for (unsigned i = 0; i < 20; i++)
		rig_post(r, 0,
			 &(struct gx_op){.kind = GX_OP_GET,
					 .user = i,
					 .addr = own.other,
					 .len = 4096,
					 .token = own.mem->token});
	rig_pass(r, MS);
	assert_int_equal(e->tx.nr_ops, 20);
	assert_int_equal(gx_mem_free(own.mem), 0);
	assert_int_equal(e->tx.nr_ops, 0);
	e->tx.mids_max = mids_max;
	own_is_others(r);
	rig_comps(r, 0, 20, SECOND);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(status_of(r, 0, i), -ESTALE);
	rig_done(r);
	own_close();
}

static void peer__other_regions_go_on(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}});

	own_open(r, 1);
	for (unsigned i = 0; i < 2; i++)
		rig_post(r, 0,
			 &(struct gx_op){.kind = GX_OP_PUT,
					 .user = i,
					 .addr = own.other,
					 .len = LEN,
					 .token = i ? own.mem->token : r->peer[0].token});
	rig_pass(r, 50000);
	assert_int_equal(gx_mem_free(own.mem), 0);
	own_is_others(r);
	rig_comps(r, 0, 2, SECOND);
	assert_int_equal(status_of(r, 0, 0), 0);
	assert_int_equal(status_of(r, 0, 1), -ESTALE);
	assert_memory_equal(rig_mem(r, 1), own.other, LEN);
	rig_done(r);
	own_close();
}

/* ---- what this process has posted with it ---- */

static void own_op(enum gx_op_kind kind, uint32_t loss_ppm)
{
	bool reads = kind == GX_OP_PUT || kind == GX_OP_SEND;
	unsigned ended = 0, cancelled = 0;

	for (unsigned k = 0; k < MOMENTS; k++) {
		struct rig *r =
			rig_open(&(struct rig_cfg){.sim = {.seed = k, .loss_ppm = loss_ppm}});
		struct gx_op there = {.kind = kind == GX_OP_SEND ? GX_OP_RECV : GX_OP_SEND,
				      .user = 2,
				      .len = LEN,
				      .tag = 7};
		bool pair = kind == GX_OP_SEND || kind == GX_OP_RECV;
		int status;

		own_open(r, 0);
		there.addr = own.other;
		if (pair)
			rig_post(r, 1, &there);
		rig_post(r, 0,
			 &(struct gx_op){.kind = kind,
					 .flags = reads ? GX_OP_LOCAL : 0,
					 .user = 1,
					 .mem = own.mem,
					 .len = LEN,
					 .tag = 7,
					 .token = r->peer[0].token});
		rig_pass(r, moment_ns(k));
		assert_int_equal(gx_mem_free(own.mem), 0);
		own_is_others(r);
		if (k == 0 && pair) /* the peer's waits for another */
			common_cancel(r->ep[1][0], 2);
		rig_comps(r, 0, 1 + reads, 5 * SECOND);
		status = status_of(r, 0, 1);
		assert_true(!status || status == -ECANCELED);
		ended += !status;
		cancelled += !!status;
		if (pair)
			common_cancel(r->ep[1][0], 2);
		rig_set(r, &(struct sim_cfg){0});
		rig_done(r);
		own_close();
	}
	assert_true((ended || loss_ppm) && cancelled > 3);
}

static void own__put(void **state)
{
	own_op(GX_OP_PUT, 0);
	own_op(GX_OP_PUT, 50000);
}

static void own__get(void **state)
{
	own_op(GX_OP_GET, 0);
	own_op(GX_OP_GET, 50000);
}

static void own__send(void **state)
{
	own_op(GX_OP_SEND, 0);
}

static void own__recv(void **state)
{
	own_op(GX_OP_RECV, 0);
}

/* An OPEN that carries the bytes is sent again until it is acknowledged. */
static void own__put_inline_that_was_lost(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}});

	own_open(r, 0);
	rig_set(r, &(struct sim_cfg){.loss_ppm = 1000000});
	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .user = 1,
				 .mem = own.mem,
				 .len = 64,
				 .token = r->peer[0].token});
	rig_pass(r, MS);
	assert_int_equal(gx_mem_free(own.mem), 0);
	rig_set(r, &(struct sim_cfg){0});
	own_is_others(r);
	assert_int_equal(status_of(r, 0, 1), -ECANCELED);
	rig_check_poison(rig_mem(r, 1), 64);
	rig_done(r);
	own_close();
}

/* A queue's record that no core has seen, those that wait for room, and those that are posted. */
/* The core has not turned since other memory went and a connection came up: it knows nothing of the
 * lane, which has an operation. (Seeds 84 and 131 of sim_all.) */
static void own__put_on_a_lane_that_is_new(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}, .mem_b = LEN});
	struct gx_op op = {.kind = GX_OP_PUT, .user = 1, .len = 700};
	struct gx_mem *other;
	struct gx_conn *conn;

	own_open(r, 0);
	assert_int_equal(gx_mem_reg(r->gx[0], GX_MEM_HOST, 0, own.other, LEN, &other), 0);
	assert_int_equal(gx_mem_free(other), 0);
	if (gx_connect(r->gx[0], r->addr, NULL, &conn) || gx_conn_wait(conn, 20 * SECOND))
		fail_msg("connect: %s", gx_error());
	op.mem = own.mem;
	op.token = r->peer[0].token;
	assert_int_equal(common_post(gx_conn_ep(conn, 0), &op, 1), 1);
	assert_int_equal(gx_mem_free(own.mem), 0);
	memset(own.at, NEXT, LEN);
	rig_comps(r, 0, 1, SECOND);
	rig_check_poison(rig_mem(r, 1), LEN);
	assert_int_equal(status_of(r, 0, 1), -ECANCELED);
	gx_conn_close(conn);
	rig_close(r);
	own_close();
}

static void own__submitted(void **state)
{
	for (unsigned k = 0; k < 3; k++) {
		struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}});
		struct gx_comp comps[GX_BURST_MAX];
		struct gx_queue_opts so = GX_INIT(so);
		unsigned nr = 0, got = 0, n, more;
		struct gx_queue *q;

		own_open(r, 0);
		so.depth = 4096;
		assert_int_equal(gx_queue_open(r->gx[0], &so, &q), 0);
		if (k) /* else the core has not heard of the queue */
			rig_pass(r, 1000);
		while (nr < 3000) {
			struct gx_op op = {0};

			op.kind = GX_OP_PUT;
			op.mem = own.mem;
			op.len = 2000;
			op.token = r->peer[0].token;
			assert_int_equal(gx_post(q, r->ep[0][0], &op, 1), 1);
			nr++;
		}
		for (unsigned i = 0; i < k * 20; i++)
			gx_core_turn(r->core[0], r->now_ns);
		assert_int_equal(gx_mem_free(own.mem), 0);
		own_is_others(r);
		for (more = 1; more; got += n) {
			n = gx_poll(q, comps, GX_BURST_MAX);
			for (unsigned i = 0; i < n; i++)
				assert_true(!comps[i].status || comps[i].status == -ECANCELED);
			more = n;
		}
		assert_int_equal(got, nr);
		assert_int_equal(gx_queue_close(q), -EAGAIN);
		rig_pass(r, MS);
		assert_int_equal(gx_queue_close(q), 0);
		rig_done(r);
		own_close();
	}
}

/* ---- copies that have begun ---- */

struct freer {
	pthread_t thread;
	_Atomic bool done;
	int ret;
};

static void *freer_run(void *arg)
{
	struct freer *f = arg;

	f->ret = gx_mem_free(own.mem);
	atomic_store(&f->done, true);
	return NULL;
}

/* When it returns gx knows that the memory goes. */
static void freer_start(struct freer *f)
{
	assert_int_equal(pthread_create(&f->thread, NULL, freer_run, f), 0);
	while (!atomic_load(&own.mem->dead))
		usleep(10);
}

static void freer_is_waiting(struct freer *f)
{
	usleep(20000);
	assert_false(atomic_load(&f->done));
}

static void freer_end(struct freer *f, struct rig *r)
{
	while (!atomic_load(&f->done))
		rig_pass(r, 1000);
	pthread_join(f->thread, NULL);
	assert_int_equal(f->ret, 0);
}

/* Another thread frees while this one turns the core: it returns when the last copy has ended. */
static void copies__are_waited_for(void **state)
{
	unsigned waited = 0;

	for (unsigned k = 4; k < MOMENTS; k += 3) {
		struct rig *r =
			rig_open(&(struct rig_cfg){.sim = {.seed = k}, .gpu_delay_ns = 300000});
		struct freer f = {.ret = 1};
		struct pkt_ep *e = rig_ep(r, 1, 0);

		own_open(r, 1);
		own_put(r, LEN);
		rig_pass(r, 30000 + moment_ns(k));
		freer_start(&f);
		/* Virtual time stands: what has begun cannot end. */
		gx_core_turn(r->core[1], r->now_ns);
		if (e->rx.held_bufs) {
			waited++;
			freer_is_waiting(&f);
		}
		freer_end(&f, r);
		own_is_others(r);
		rig_done(r);
		own_close();
	}
	assert_true(waited > 2);
}

/* Who turns the core itself is told that it is too early, in bounded time. */
static void copies__are_waited_for_not_for_ever(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){
		.sim = {.seed = 1}, .gpu_delay_ns = 300000, .gpu_timeout_ns = 100 * MS});
	uint64_t begin_ns = gx_now();

	own_open(r, 1);
	own_put(r, LEN);
	rig_pass(r, 100000);
	assert_true(rig_ep(r, 1, 0)->rx.held_bufs);
	assert_int_equal(gx_mem_free(own.mem), -EAGAIN);
	assert_non_null(strstr(gx_error(), "turned"));
	assert_true(gx_now() - begin_ns < 20 * SECOND);
	rig_pass(r, 10 * MS);
	/* The control thread frees it in its own time, and the caller's second call comes after. */
	for (unsigned i = 0; i < 2000 && !atomic_load(&own.mem->gone); i++)
		usleep(10000);
	assert_true(own.mem->gone);
	assert_int_equal(gx_mem_free(own.mem), 0);
	assert_int_equal(gx_mem_free(own.mem), -EINVAL);
	own_is_others(r);
	rig_done(r);
	own_close();
}

/* Payload of a GPU is staged for sending: copies out of it that have begun. */
static void copies__of_a_gpu_are_waited_for(void **state)
{
	struct rig *r = rig_open(
		&(struct rig_cfg){.sim = {.seed = 1}, .gpu = true, .gpu_delay_ns = 300000});
	struct freer f = {.ret = 1};

	own_open(r, 0);
	own.mem->gpu = r->mem[0]->gpu; /* what the library takes for one */
	own.mem->kind = GX_MEM_CUDA;
	own.mem->device = 0;
	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .user = 1,
				 .mem = own.mem,
				 .len = LEN / 4, /* one copy */
				 .token = r->peer[0].token});
	rig_pass(r, 5000);
	assert_false(stage_is_past(pkt_link(r->core[0], 0)->stage[0],
				   stage_ticket(pkt_link(r->core[0], 0)->stage[0])));
	freer_start(&f);
	gx_core_turn(r->core[0], r->now_ns);
	freer_is_waiting(&f);
	freer_end(&f, r);
	own.mem->kind = GX_MEM_HOST;
	own_is_others(r);
	assert_int_equal(status_of(r, 0, 1), -ECANCELED);
	rig_done(r);
	own_close();
}

/* ---- who may call it, and when it goes ---- */

static struct {
	struct gx_mem *mem;
	int ret;
	bool called;
} from_turn;

static bool free_in_turn(void *arg, uint64_t now_ns)
{
	if (!from_turn.mem)
		return false;
	from_turn.ret = gx_mem_free(from_turn.mem);
	from_turn.called = true;
	from_turn.mem = NULL;
	return true;
}

static void call__in_a_turn_of_the_core(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}});

	assert_int_equal(gx_core_poller(r->core[1], free_in_turn, NULL), 0);
	own_open(r, 1);
	own_put(r, LEN);
	rig_pass(r, 60000);
	from_turn.called = false;
	from_turn.mem = own.mem;
	gx_core_turn(r->core[1], r->now_ns);
	assert_true(from_turn.called);
	assert_int_equal(from_turn.ret, 0);
	own_is_others(r);
	assert_int_equal(status_of(r, 0, 1), -ESTALE);
	rig_done(r);
	own_close();
}

/* On a core that gx turns, by that thread, too. */
static void call__on_the_cores_own_thread(void **state)
{
	struct gx_opts o = GX_INIT(o);
	const struct gx_port_name ports[] = {{.name = "udp"}};
	static char bytes[4096];
	struct gx *gx;

	o.ports = ports;
	o.nr_ports = 1;
	assert_int_equal(gx_open(&o, &gx), 0);
	assert_int_equal(gx_core_poller(gx_core(gx, 0), free_in_turn, NULL), 0);
	from_turn.called = false;
	assert_int_equal(gx_mem_reg(gx, GX_MEM_HOST, 0, bytes, sizeof(bytes), &from_turn.mem), 0);
	assert_int_equal(gx_core_start(gx_core(gx, 0)), 0);
	for (unsigned i = 0; i < 20000 && !from_turn.called; i++)
		usleep(1000);
	gx_core_stop(gx_core(gx, 0));
	assert_true(from_turn.called);
	assert_int_equal(from_turn.ret, 0);
	gx_close(gx);
}

static void *turner_run(void *arg)
{
	struct rig *r = arg;

	for (int side = 0; side < 2; side++)
		gx_core_turn(r->core[side], r->now_ns);
	return NULL;
}

/* A thread that has ended turns nothing any more. */
static void call__when_the_thread_that_turned_is_gone(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}});
	uint64_t begin_ns;
	pthread_t thread;

	own_open(r, 1);
	assert_int_equal(pthread_create(&thread, NULL, turner_run, r), 0);
	pthread_join(thread, NULL);
	begin_ns = gx_now();
	assert_int_equal(gx_mem_free(own.mem), 0);
	assert_true(gx_now() - begin_ns < 20 * SECOND);
	own_is_others(r);
	rig_done(r);
	own_close();
}

/* Turns once, and lives until it is told to end. */
struct turns {
	struct rig *r;
	_Atomic int stage; /* 1: it has turned; 2: it shall end */
	pthread_t self;
};

static void *turns_run(void *arg)
{
	struct turns *t = arg;

	t->self = pthread_self();
	turner_run(t->r);
	atomic_store(&t->stage, 1);
	while (atomic_load(&t->stage) == 1)
		usleep(100);
	return NULL;
}

/* A thread that lives is not taken for the one that ended and had its pthread_t. */
static void call__when_the_thread_that_turned_follows_one_that_is_gone(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}});
	struct turns first = {.r = r}, next = {.r = r};
	pthread_t thread;
	uintptr_t was;
	bool taken;

	assert_int_equal(pthread_create(&thread, NULL, turns_run, &first), 0);
	while (atomic_load(&first.stage) != 1)
		usleep(100);
	atomic_store(&first.stage, 2);
	pthread_join(thread, NULL);
	assert_int_equal(pthread_create(&thread, NULL, turns_run, &next), 0);
	while (atomic_load(&next.stage) != 1)
		usleep(100);
	assert_true(pthread_equal(first.self, next.self)); /* as glibc does it */
	taken = core_enter(r->core[0], &was);
	if (taken)
		core_leave(r->core[0], was);
	atomic_store(&next.stage, 2);
	pthread_join(thread, NULL);
	assert_false(taken);
	assert_true(core_enter(r->core[0], &was));
	core_leave(r->core[0], was);
	rig_done(r);
}

static unsigned nr_mems(struct gx *gx)
{
	unsigned n = 0;

	for (const struct gx_mem *m = gx->mems; m; m = m->next)
		n++;
	for (const struct gx_mem *m = gx->dying; m; m = m->next)
		n++;
	return n;
}

/* Memory of gx_mem_alloc() does not wait for the end of all connections. */
static void alloc__goes_while_connections_live(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}});
	struct gx_mem *mem;

	assert_int_equal(gx_mem_alloc(r->gx[1], GX_MEM_HOST, 0, LEN, &mem), 0);
	assert_int_equal(gx_mem_share(mem, "more", GX_ACCESS_PUT), 0);
	own.other = calloc(1, LEN);
	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .user = 1,
				 .addr = own.other,
				 .len = LEN,
				 .token = mem->token});
	rig_pass(r, 60000);
	assert_int_equal(gx_mem_free(mem), 0);
	assert_int_equal(nr_mems(r->gx[1]), 1);
	rig_pass(r, 10 * MS);
	assert_int_equal(status_of(r, 0, 1), -ESTALE);
	rig_done(r);
	free(own.other);
}

struct sharer {
	struct gx_mem *mem;
	pthread_t thread;
	char name[16];
	int ret;
};

static void *sharer_run(void *arg)
{
	struct sharer *s = arg;

	s->ret = gx_mem_share(s->mem, s->name, GX_ACCESS_PUT);
	return NULL;
}

/* Two threads never get one place of the table, nor one name. */
static void share__by_many_threads(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}});
	static char bytes[40][64];
	struct sharer s[40];
	unsigned nr = 0, taken = 0;

	for (unsigned i = 0; i < 40; i++) {
		snprintf(s[i].name, sizeof(s[i].name), "r%u", i / 2);
		assert_int_equal(gx_mem_reg(r->gx[0], GX_MEM_HOST, 0, bytes[i], 64, &s[i].mem), 0);
	}
	for (unsigned i = 0; i < 40; i++)
		assert_int_equal(pthread_create(&s[i].thread, NULL, sharer_run, &s[i]), 0);
	for (unsigned i = 0; i < 40; i++) {
		pthread_join(s[i].thread, NULL);
		assert_true(!s[i].ret || s[i].ret == -EEXIST);
		nr += !s[i].ret;
	}
	for (unsigned i = 0; i < GX_REGIONS_MAX; i++)
		taken += r->gx[0]->region[i] != NULL;
	assert_int_equal(nr, 20);
	assert_int_equal(taken, 21);
	rig_done(r);
}

static void handle__that_was_freed_is_refused(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}});
	struct gx_op op = {0};
	struct gx_mem *mem;
	char byte = 0;

	own_open(r, 0);
	assert_int_equal(gx_mem_free(own.mem), 0);
	op.kind = GX_OP_PUT;
	op.mem = own.mem;
	op.len = 64;
	op.token = r->peer[0].token;
	assert_int_equal(common_post(r->ep[0][0], &op, 1), -EINVAL);
	assert_non_null(strstr(gx_error(), "freed"));
	assert_int_equal(gx_mem_share(own.mem, "again", GX_ACCESS_PUT), -EINVAL);
	assert_int_equal(gx_mem_copy_in(own.mem, 0, &byte, 1), -EINVAL);
	assert_int_equal(gx_mem_copy_out(own.mem, 0, &byte, 1), -EINVAL);
	assert_int_equal(gx_mem_free(own.mem), -EINVAL);
	assert_non_null(strstr(gx_error(), "freed"));
	assert_int_equal(gx_mem_free(NULL), 0);
	/* Handles are used again after many. */
	for (unsigned i = 0; i < 3000; i++) {
		assert_int_equal(gx_mem_reg(r->gx[0], GX_MEM_HOST, 0, own.at, LEN, &mem), 0);
		assert_int_equal(gx_mem_free(mem), 0);
		assert_int_equal(gx_mem_free(mem), -EINVAL);
	}
	assert_true(r->gx[0]->nr_graves <= 1024);
	rig_done(r);
	own_close();
}

/* The control thread has freed memory whose owner was told to ask again, and has not. */
static void handle__that_is_owed_stays(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}});
	struct gx_mem *mem;

	own_open(r, 0);
	assert_int_equal(gx_mem_free(own.mem), 0);
	atomic_store(&own.mem->owed, true);
	for (unsigned i = 0; i < 3 * 1024; i++) {
		assert_int_equal(gx_mem_reg(r->gx[0], GX_MEM_HOST, 0, own.at, LEN, &mem), 0);
		assert_ptr_not_equal(mem, own.mem);
		assert_int_equal(gx_mem_free(mem), 0);
	}
	assert_true(r->gx[0]->nr_graves <= 1024); /* the others are used again */
	assert_int_equal(gx_mem_free(own.mem), 0);
	assert_int_equal(gx_mem_free(own.mem), -EINVAL);
	rig_done(r);
	own_close();
}

static void register__what_is_not_memory(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}});
	struct gx *gx = r->gx[0];
	char *at = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct gx_op op = {0};
	struct gx_mem *mem;

	assert_true(at != MAP_FAILED);
	assert_int_equal(gx_mem_reg(gx, GX_MEM_HOST, 0, (void *)8, 4096, &mem), -EFAULT);
	assert_non_null(strstr(gx_error(), "not memory"));
	assert_int_equal(gx_mem_reg(gx, GX_MEM_HOST, 0, at, UINT64_MAX, &mem), -EFAULT);
	assert_int_equal(gx_mem_reg(gx, GX_MEM_HOST, 0, at, 1ull << 46, &mem), -EFAULT);
	assert_int_equal(gx_mem_reg(gx, GX_MEM_HOST, 0, at + 1, 3 * 4096 - 1, &mem), 0);
	assert_int_equal(gx_mem_free(mem), 0);
	assert_int_equal(mprotect(at + 4096, 4096, PROT_READ), 0);
	assert_int_equal(gx_mem_reg(gx, GX_MEM_HOST, 0, at, 3 * 4096, &mem), 0);
	assert_int_equal(gx_mem_share(mem, "puts", GX_ACCESS_PUT), -EACCES);
	assert_int_equal(gx_mem_share(mem, "gets", GX_ACCESS_GET), 0);
	op.kind = GX_OP_GET;
	op.mem = mem;
	op.len = 64;
	op.token = r->peer[0].token;
	assert_int_equal(common_post(r->ep[0][0], &op, 1), -EFAULT);
	op.kind = GX_OP_PUT;
	rig_post(r, 0, &op);
	rig_comps(r, 0, 1, SECOND);
	assert_int_equal(status_of(r, 0, 0), 0);
	assert_int_equal(gx_mem_free(mem), 0);
	assert_int_equal(mprotect(at + 4096, 4096, PROT_NONE), 0);
	assert_int_equal(gx_mem_reg(gx, GX_MEM_HOST, 0, at, 3 * 4096, &mem), -EFAULT);
	assert_int_equal(gx_mem_reg(gx, GX_MEM_HOST, 0, at, 4097, &mem), -EFAULT);
	assert_int_equal(gx_mem_reg(gx, GX_MEM_HOST, 0, at, 4096, &mem), 0);
	assert_int_equal(munmap(at + 4096, 4096), 0);
	assert_int_equal(gx_mem_reg(gx, GX_MEM_HOST, 0, at, 3 * 4096, &mem), -EFAULT);
	rig_done(r);
	munmap(at, 3 * 4096);
}

static bool is_down(struct rig *r)
{
	return r->ep[0][0]->failed;
}

/* What went wrong has words: also when a connection has ended, and in completions. */
static void words__always(void **state)
{
	static const int known[] = {0,		-ETIMEDOUT, -ENOTCONN, -ECONNRESET,
				    -ECANCELED, -EACCES,    -ENOENT,   -ERANGE,
				    -EMSGSIZE,	-EIO,	    -EBADMSG};
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}});
	struct gx_op op = {0};

	op.kind = GX_OP_PUT;
	gx_conn_close(r->conn[1][0]);
	r->conn[1][0] = NULL;
	rig_wait_real(r, is_down);
	gx_mem_share(r->mem[0], "", 0); /* other words before */
	assert_int_equal(common_post(r->ep[0][0], &op, 1), -ENOTCONN);
	assert_non_null(strstr(gx_error(), "has ended"));
	assert_non_null(strstr(gx_error(), r->conn[0][0]->text));
	for (unsigned i = 0; i < GX_ARRAY_SIZE(known); i++) {
		assert_true(gx_strerror(known[i])[0] != 0);
		assert_string_not_equal(gx_strerror(known[i]), strerror(-known[i]));
		for (unsigned k = 0; k < i; k++)
			assert_string_not_equal(gx_strerror(known[i]), gx_strerror(known[k]));
	}
	assert_string_equal(gx_strerror(-ENOSPC), strerror(ENOSPC));
	assert_non_null(strstr(gx_strerror(-99999), "does not know"));
	for (unsigned i = 0; i <= GX_REASON_AUTH; i++)
		for (unsigned k = 0; k < i; k++)
			assert_string_not_equal(gx_reason_name(i), gx_reason_name(k));
	assert_string_equal(gx_reason_name(GX_REASON_REFUSED), "refused");
	assert_string_equal(gx_reason_name(GX_REASON_AUTH + 1), "unknown"); /* the last one */
	assert_string_equal(gx_reason_name(60000), "unknown");
	rig_close(r);
}

/* ---- what it costs ---- */

static void recv_each(struct rig *r, struct gx_mem *mem)
{
	for (unsigned i = 0; i < r->nr_conns; i++)
		rig_post_on(r, 1, i,
			    &(struct gx_op){
				    .kind = GX_OP_RECV, .mem = mem, .off = 64ull * i, .len = 64});
	rig_pass(r, MS);
}

static struct gx_key key_make(struct gx_mem *mem)
{
	struct gx_key_opts o = GX_INIT(o);
	struct gx_key key;

	o.access = GX_ACCESS_PUT;
	assert_int_equal(gx_mem_key(mem, &o, &key), 0);
	return key;
}

static void cost__nothing_is_walked_for_what_nobody_uses(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}, .nr_conns = 40});
	struct link_pkt *l = pkt_link(r->core[1], 0);
	struct gx_key key = key_make(r->mem[1]);

	own_open(r, 1);
	recv_each(r, r->mem[1]);
	l->drop_at = 0;
	assert_int_equal(gx_key_withdraw(r->gx[1], &key), 0);
	assert_true(r->core[1]->drop.unused && r->core[1]->drop.parts);
	assert_int_equal(l->drop_at, GX_PEERS_MAX);
	assert_int_equal(gx_mem_free(own.mem), 0);
	assert_true(r->core[1]->drop.unused && !r->core[1]->drop.parts);
	for (unsigned i = 0; i < r->nr_conns; i++)
		gx_cancel(gx_core_queue(r->core[1]), r->ep[1][i], 0);
	rig_comps(r, 1, r->nr_conns, SECOND);
	rig_done(r);
	own_close();
}

/* The call of the control thread, and two links, may each begin a piece of the pass in a turn. */
static void cost__a_few_endpoints_are_looked_at_in_a_turn(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}, .nr_conns = 40});
	struct freer f = {.ret = 1};
	unsigned turns = 0;

	own_open(r, 1);
	recv_each(r, own.mem);
	freer_start(&f);
	for (uint32_t ended = 0; ended < r->nr_conns;) {
		uint32_t before = r->core[1]->comp_head;

		gx_core_turn(r->core[1], r->now_ns);
		ended += r->core[1]->comp_head - before;
		assert_in_range(r->core[1]->comp_head - before, 0, 3 * DROP_EPS);
		turns += r->core[1]->comp_head != before;
	}
	assert_in_range(turns, r->nr_conns / (3 * DROP_EPS), r->nr_conns);
	freer_end(&f, r);
	rig_comps(r, 1, r->nr_conns, SECOND);
	rig_done(r);
	own_close();
}

/* The thread that frees looks first, and the core later, which has heard of the queue: that pass takes
 * several turns as well. */
static void cost__what_a_new_lane_brings_is_looked_at(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}, .nr_conns = 40});
	struct gx_comp comps[GX_BURST_MAX];
	struct gx_queue_opts so = GX_INIT(so);
	struct gx_op op = {0};
	struct gx_queue *q;
	unsigned got = 0, n;

	own_open(r, 0);
	assert_int_equal(gx_queue_open(r->gx[0], &so, &q), 0);
	op.kind = GX_OP_PUT;
	op.mem = own.mem;
	op.len = 2000;
	op.token = r->peer[0].token;
	for (unsigned i = 0; i < r->nr_conns; i++)
		assert_int_equal(gx_post(q, r->ep[0][i], &op, 1), 1);
	assert_int_equal(gx_mem_free(own.mem), 0);
	for (unsigned i = 0; i < r->nr_conns; i++)
		gx_core_turn(r->core[0], r->now_ns);
	while ((n = gx_poll(q, comps, GX_BURST_MAX)))
		for (unsigned i = 0; i < n; i++, got++)
			assert_int_equal(comps[i].status, -ECANCELED);
	assert_int_equal(got, r->nr_conns);
	while (gx_queue_close(q))
		rig_pass(r, MS);
	rig_done(r);
	own_close();
}

/* More dies than a core is told of: it looks at all. */
static void cost__more_than_is_told(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.sim = {.seed = 1}});
	struct gx_mem *mem;

	own_open(r, 1);
	assert_int_equal(gx_mem_alloc(r->gx[1], GX_MEM_HOST, 0, 4096, &mem), 0);
	for (unsigned i = 0; i < CORE_DIED; i++)
		key_make(own.mem);
	recv_each(r, mem);
	assert_int_equal(gx_mem_free(own.mem), 0);
	assert_false(r->core[1]->drop.unused || r->core[1]->drop.parts);
	assert_int_equal(gx_mem_free(mem), 0);
	rig_comps(r, 1, 1, SECOND);
	rig_done(r);
	own_close();
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(peer__put),
		rig_test(peer__put_is_lost_now_and_then),
		rig_test(peer__put_inline),
		rig_test(peer__gets),
		rig_test(peer__gets_before_anything_was_sent),
		rig_test(peer__other_regions_go_on),
		rig_test(own__put),
		rig_test(own__get),
		rig_test(own__send),
		rig_test(own__recv),
		rig_test(own__put_inline_that_was_lost),
		rig_test(own__put_on_a_lane_that_is_new),
		rig_test(own__submitted),
		rig_test(cost__nothing_is_walked_for_what_nobody_uses),
		rig_test(cost__a_few_endpoints_are_looked_at_in_a_turn),
		rig_test(cost__what_a_new_lane_brings_is_looked_at),
		rig_test(cost__more_than_is_told),
		rig_test(copies__are_waited_for),
		rig_test(copies__are_waited_for_not_for_ever),
		rig_test(copies__of_a_gpu_are_waited_for),
		rig_test(call__in_a_turn_of_the_core),
		rig_test(call__on_the_cores_own_thread),
		rig_test(call__when_the_thread_that_turned_is_gone),
		rig_test(call__when_the_thread_that_turned_follows_one_that_is_gone),
		rig_test(alloc__goes_while_connections_live),
		rig_test(handle__that_was_freed_is_refused),
		rig_test(handle__that_is_owed_stays),
		rig_test(share__by_many_threads),
		rig_test(register__what_is_not_memory),
		rig_test(words__always),
	};

	return rig_run("drop", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
