/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA backend in a program that uses the GPU as well: test_gpu_life cuda. What gx's calls
 * leave of a thread's current context, what they do to a capture of the program's, and what becomes
 * of memory that the GPU may still use when gx is done with it. Exits with 77 where there is no
 * GPU; tests/fake/fake_cuda.c shows what a real driver cannot be brought to.
 */
#include "gx_internal/gpu.h"

#include "kit/common_cuda.h"
#include "cuda_abi.h"
#include "fatbin.h"

#include <gx/engine.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define LEN	((size_t)2 << 20)
#define WAIT_NS 60000000000ull

static const struct gx_gpu_ops *ops = &gx_gpu_cuda_ops;

/* The program's own use of the driver. */
static struct {
	unsigned (*retain)(struct CUctx_st **ctx, int device);
	unsigned (*release)(int device);
	unsigned (*get_current)(struct CUctx_st **ctx);
	unsigned (*set_current)(struct CUctx_st *ctx);
	unsigned (*create)(struct CUstream_st **stream, unsigned flags, int priority);
	unsigned (*destroy)(struct CUstream_st *stream);
	unsigned (*exchange)(unsigned *mode);
	unsigned (*begin)(struct CUstream_st *stream, unsigned mode);
	unsigned (*end)(struct CUstream_st *stream, void **graph);
	unsigned (*graph_destroy)(void *graph);
	unsigned (*set)(unsigned long long ptr, unsigned char value, size_t len,
			struct CUstream_st *stream);
	struct CUctx_st *ctx;
} drv;

static void drv_open(void)
{
	drv.retain = common_cuda_symbol("cuDevicePrimaryCtxRetain");
	drv.release = common_cuda_symbol("cuDevicePrimaryCtxRelease_v2");
	drv.get_current = common_cuda_symbol("cuCtxGetCurrent");
	drv.set_current = common_cuda_symbol("cuCtxSetCurrent");
	drv.create = common_cuda_symbol("cuStreamCreateWithPriority");
	drv.destroy = common_cuda_symbol("cuStreamDestroy_v2");
	drv.exchange = common_cuda_symbol("cuThreadExchangeStreamCaptureMode");
	drv.begin = common_cuda_symbol("cuStreamBeginCapture_v2");
	drv.end = common_cuda_symbol("cuStreamEndCapture");
	drv.graph_destroy = common_cuda_symbol("cuGraphDestroy");
	drv.set = common_cuda_symbol("cuMemsetD8Async");
}

static bool is_fake(void)
{
	return getenv("GX_FAKE_CUDA") != NULL;
}

/* ---- what a thread had ---- */

static struct CUctx_st *thread_ctx(void)
{
	struct CUctx_st *ctx = NULL;

	assert_int_equal(drv.get_current(&ctx), 0);
	return ctx;
}

static unsigned thread_mode(void)
{
	unsigned mode = GX_CU_CAPTURE_RELAXED, was;

	assert_int_equal(drv.exchange(&mode), 0);
	was = mode;
	assert_int_equal(drv.exchange(&mode), 0);
	return was;
}

/* Each slot of the backend's once, with work that is waited for. */
struct tour {
	struct gx_gpu *gpu;
	struct CUctx_st *ctx; /* current before, and after every step */
	unsigned mode;
	bool own; /* gx's own thread: what it had is not asked for */
};

static void tour_step(const struct tour *t, const char *what)
{
	if (t->own)
		return;
	if (thread_ctx() != t->ctx)
		fail_msg("after %s another context is current", what);
	if (thread_mode() != t->mode)
		fail_msg("after %s the capture mode is %u, not %u", what, thread_mode(), t->mode);
}

/* The clock runs fast, so that the driver is asked at each look. */
static void flag_wait(struct gx_gpu_stream *s, const uint32_t *flag, uint32_t value)
{
	uint64_t end_ns = gx_now_ns() + WAIT_NS, fast_ns = gx_now_ns();

	do {
		s->ops->reap(s, fast_ns += 2000000);
		assert_int_equal(s->ops->fault(s), 0);
		sched_yield();
		assert_true(gx_now_ns() < end_ns);
	} while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != value);
	s->ops->reap(s, fast_ns += 2000000);
	assert_int_equal(s->ops->fault(s), 0);
}

static int call_nothing(void *arg, void *stream)
{
	const struct tour *t = arg;

	/* A function of the program's sees the program's mode, and the GPU's context. */
	if (!t->own)
		assert_int_equal(thread_mode(), t->mode);
	assert_non_null(thread_ctx());
	return 0;
}

static void tour_block(const struct tour *t, struct gx_gpu_stream *s, const char *src, char *dst)
{
	struct gx_block b = {0}, *list[] = {&b};

	assert_int_equal(gx_gpu_block_alloc(t->gpu, &b), 0);
	tour_step(t, "block_alloc");
	b.src_base = (uintptr_t)src;
	b.seg[0] = (struct gx_dest){(uintptr_t)dst, LEN};
	b.desc[0] = (struct gx_desc){.len = 4096};
	b.nr = b.nr_seg = 1;
	b.bytes = 4096;
	*b.cnt = 1;
	assert_int_equal(s->ops->unpack(s, list, 1, gx_now_ns()), 1);
	tour_step(t, "unpack");
	flag_wait(s, b.status, GX_BLOCK_OK);
	tour_step(t, "reap");
	gx_gpu_block_free(t->gpu, &b);
	tour_step(t, "block_free");
}

static void tour_stream(const struct tour *t, enum gx_stream_kind kind, char *host, char *dev)
{
	struct gx_gpu_copy copy = {dev, host, 4096};
	struct gx_gpu_stream *s = NULL;
	uint32_t *flag = gx_gpu_flag_alloc(t->gpu, 1);

	assert_non_null(flag);
	tour_step(t, "flag_alloc");
	assert_int_equal(t->gpu->stream->open(t->gpu, kind, &s), 0);
	tour_step(t, "stream_open");
	tour_block(t, s, host, dev);
	assert_int_equal(s->ops->copy(s, &copy, 1, flag, 1, gx_now_ns()), 0);
	tour_step(t, "copy");
	flag_wait(s, flag, 1);
	assert_int_equal(s->ops->call(s, call_nothing, (void *)t, flag, 2, gx_now_ns()), 0);
	tour_step(t, "call");
	flag_wait(s, flag, 2);
	gx_gpu_stream_close(s);
	tour_step(t, "stream_close");
	gx_gpu_flag_free(t->gpu, flag);
	tour_step(t, "flag_free");
}

/* The thread's mode is global before and after, and nothing is current. */
static void tour(const struct tour *t)
{
	struct gx_gpu_cfg cfg = {.device = t->gpu->device};
	struct gx_gpu *again = NULL;
	struct gx_gpu_handle h;
	char *host = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned mode = t->mode;
	void *dev = NULL;

	if (!t->own) {
		assert_int_equal(drv.set_current(t->ctx), 0);
		assert_int_equal(drv.exchange(&mode), 0);
	}
	assert_int_equal(ops->host_map(t->gpu, host, LEN), 0);
	tour_step(t, "host_map");
	assert_int_equal(t->gpu->mem->alloc(t->gpu, LEN, &dev), 0);
	tour_step(t, "mem_alloc");
	assert_int_equal(t->gpu->mem->device(t->gpu, dev, LEN), t->gpu->device);
	tour_step(t, "mem_device");
	if (!t->gpu->share->export(t->gpu, dev, LEN, &h) && h.fd >= 0)
		assert_int_equal(close(h.fd), 0);
	tour_step(t, "mem_export");
	tour_stream(t, GX_STREAM_UNPACK, host, dev);
	tour_stream(t, GX_STREAM_LAUNCH, host, dev);
	tour_stream(t, GX_STREAM_RESIDENT, host, dev);
	t->gpu->mem->free(t->gpu, dev, LEN);
	tour_step(t, "mem_free");
	ops->host_unmap(t->gpu, host, LEN);
	tour_step(t, "host_unmap");
	assert_int_equal(ops->open(&cfg, &again), 0);
	tour_step(t, "open");
	ops->close(again);
	tour_step(t, "close");
	munmap(host, LEN);
	if (t->own)
		return;
	assert_int_equal(drv.set_current(NULL), 0);
	assert_int_equal(drv.exchange(&mode), 0);
}

static int setup(void **state)
{
	struct gx_gpu_cfg cfg = {.unpack = GX_UNPACK_AUTO};

	return ops->open(&cfg, (struct gx_gpu **)state);
}

static int teardown(void **state)
{
	ops->close(*state);
	return 0;
}

static void context__none_before(void **state)
{
	tour(&(struct tour){.gpu = *state, .mode = GX_CU_CAPTURE_GLOBAL});
}

static void context__another_before(void **state)
{
	struct CUctx_st *other = NULL;
	int n = common_cuda_count();

	if (n < 2)
		skip();
	assert_int_equal(drv.retain(&other, n - 1), 0);
	tour(&(struct tour){.gpu = *state, .ctx = other, .mode = GX_CU_CAPTURE_THREAD_LOCAL});
	assert_int_equal(drv.release(n - 1), 0);
}

/* ---- captures ---- */

/* A graph of one fill, by a thread of the program's that holds still while it captures. */
struct capture {
	struct gx_gpu *gpu;
	void *mem;
	unsigned mode;
	pthread_barrier_t begun, enough;
	unsigned err_begin, err_end;
};

static unsigned capture_begin(struct capture *c, struct CUstream_st **stream)
{
	struct CUctx_st *ctx = NULL;
	unsigned err = drv.retain(&ctx, c->gpu->device);

	err = err ? err : drv.set_current(ctx);
	err = err ? err : drv.create(stream, GX_CU_STREAM_NON_BLOCKING, 0);
	err = err ? err : drv.begin(*stream, c->mode);
	return err ? err : drv.set((uintptr_t)c->mem, 1, LEN, *stream);
}

static unsigned capture_end(struct capture *c, struct CUstream_st *stream)
{
	void *graph = NULL;
	unsigned err = drv.end(stream, &graph);

	if (graph)
		drv.graph_destroy(graph);
	drv.destroy(stream);
	drv.set_current(NULL);
	drv.release(c->gpu->device);
	return err ? err : !graph;
}

static void *capture_thread(void *arg)
{
	struct CUstream_st *stream = NULL;
	struct capture *c = arg;

	c->err_begin = capture_begin(c, &stream);
	pthread_barrier_wait(&c->begun);
	pthread_barrier_wait(&c->enough);
	c->err_end = c->err_begin ? 0 : capture_end(c, stream);
	return NULL;
}

/* What @run does must not spoil it. Return: what its end says. */
static unsigned captured(struct gx_gpu *gpu, void (*run)(const struct tour *t), struct tour t)
{
	struct capture c = {.gpu = gpu, .mode = GX_CU_CAPTURE_GLOBAL};
	pthread_t thread;

	t.gpu = gpu;
	assert_int_equal(gpu->mem->alloc(gpu, LEN, &c.mem), 0);
	pthread_barrier_init(&c.begun, NULL, 2);
	pthread_barrier_init(&c.enough, NULL, 2);
	assert_int_equal(pthread_create(&thread, NULL, capture_thread, &c), 0);
	pthread_barrier_wait(&c.begun);
	assert_int_equal(c.err_begin, 0);
	run(&t);
	pthread_barrier_wait(&c.enough);
	pthread_join(thread, NULL);
	gpu->mem->free(gpu, c.mem, LEN);
	return c.err_end;
}

static void capture__beside_a_thread_of_the_program(void **state)
{
	assert_int_equal(captured(*state, tour, (struct tour){0}), 0);
}

static void *own_thread(void *arg)
{
	gx_thread_own = true;
	tour(arg);
	return NULL;
}

/* Asserts in a thread of its own, because what gx says there stays said. */
static void tour_own(const struct tour *t)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, own_thread, (void *)t), 0);
	pthread_join(thread, NULL);
}

static void capture__beside_a_thread_of_gx(void **state)
{
	assert_int_equal(captured(*state, tour_own, (struct tour){.own = true}), 0);
}

static void capture__by_the_thread_that_calls(void **state)
{
	struct capture c = {.gpu = *state};
	struct CUstream_st *stream = NULL;

	assert_int_equal(c.gpu->mem->alloc(c.gpu, LEN, &c.mem), 0);
	for (c.mode = GX_CU_CAPTURE_GLOBAL; c.mode <= GX_CU_CAPTURE_RELAXED; c.mode++) {
		assert_int_equal(capture_begin(&c, &stream), 0);
		tour(&(struct tour){.gpu = c.gpu});
		assert_int_equal(capture_end(&c, stream), 0);
	}
	c.gpu->mem->free(c.gpu, c.mem, LEN);
}

/* The control: a thread that has not said RELAXED spoils it, so the tests above test something. */
static void spoil(const struct tour *t)
{
	unsigned (*query)(struct CUstream_st * stream) = common_cuda_symbol("cuStreamQuery");
	struct CUstream_st *stream = NULL;
	struct CUctx_st *ctx = NULL;

	assert_int_equal(drv.retain(&ctx, t->gpu->device), 0);
	assert_int_equal(drv.set_current(ctx), 0);
	assert_int_equal(drv.create(&stream, GX_CU_STREAM_NON_BLOCKING, 0), 0);
	assert_int_equal(query(stream), GX_CU_ERROR_CAPTURE_UNSUPPORTED);
	assert_int_equal(drv.destroy(stream), 0);
	assert_int_equal(drv.set_current(NULL), 0);
	assert_int_equal(drv.release(t->gpu->device), 0);
}

static void capture__is_spoilt_by_others(void **state)
{
	assert_int_equal(captured(*state, spoil, (struct tour){0}),
			 GX_CU_ERROR_CAPTURE_INVALIDATED);
}

/* What a query is refused for is no fault of the stream, whose work goes on. */
static void capture__a_query_that_is_refused(void **state)
{
	static const char *const says[] = {"900", "901", "906"};
	struct gx_gpu *gpu = *state;
	uint32_t *flag = gx_gpu_flag_alloc(gpu, 1);
	struct gx_gpu_stream *s = NULL;

	if (!is_fake())
		skip();
	assert_int_equal(gpu->stream->open(gpu, GX_STREAM_LAUNCH, &s), 0);
	for (uint32_t i = 0; i < GX_ARRAY_SIZE(says); i++) {
		setenv("GX_FAKE_CUDA_QUERY", says[i], 1);
		assert_int_equal(s->ops->copy(s, NULL, 0, flag, i + 1, gx_now_ns()), 0);
		flag_wait(s, flag, i + 1);
		s->ops->reap(s, UINT64_MAX / 2);
		assert_int_equal(s->ops->fault(s), 0);
	}
	setenv("GX_FAKE_CUDA_QUERY", "719", 1);
	assert_int_equal(s->ops->copy(s, NULL, 0, flag, 9, 0), 0);
	s->ops->reap(s, UINT64_MAX / 2);
	assert_int_equal(s->ops->fault(s), -EIO);
	unsetenv("GX_FAKE_CUDA_QUERY");
	gx_gpu_stream_close(s);
	gx_gpu_flag_free(gpu, flag);
}

/* ---- where fragments lie ---- */

static uint32_t block_wait(struct gx_gpu_stream *s, const struct gx_block *b)
{
	uint64_t end_ns = gx_now_ns() + WAIT_NS;
	uint32_t status;

	while (!(status = __atomic_load_n(b->status, __ATOMIC_ACQUIRE)) && !s->ops->fault(s)) {
		s->ops->reap(s, gx_now_ns());
		sched_yield();
		assert_true(gx_now_ns() < end_ns);
	}
	return status;
}

/* A base may be no memory at all, and what lies at a base may be of another kind the next time:
 * mode host looks at where fragments are, before its CPU reads there. */
static void src_type__of_the_fragment(void **state)
{
	struct gx_gpu_cfg cfg = {.unpack = GX_UNPACK_HOST};
	struct gx_block b = {0}, *list[] = {&b};
	struct gx_gpu_stream *s = NULL;
	struct gx_gpu *gpu = NULL;
	void *from = NULL, *to = NULL;
	uint64_t base;
	char *host;

	assert_int_equal(ops->open(&cfg, &gpu), 0);
	assert_true(gpu->reads_host);
	assert_int_equal(gpu->mem->alloc(gpu, LEN, &from), 0);
	assert_int_equal(gpu->mem->alloc(gpu, LEN, &to), 0);
	assert_int_equal(gpu->stream->open(gpu, GX_STREAM_UNPACK, &s), 0);
	assert_int_equal(gx_gpu_block_alloc(gpu, &b), 0);
	base = (uintptr_t)from - (1ull << 31);
	host = mmap((void *)(uintptr_t)(base + (1u << 30)), 4096, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(host, MAP_FAILED);
	b.seg[0] = (struct gx_dest){(uintptr_t)to, LEN};
	b.desc[0] = (struct gx_desc){.len = 4096};
	b.nr = b.nr_seg = 1;
	b.bytes = 4096;
	*b.cnt = 1;
	if ((uintptr_t)host - base <= UINT32_MAX) {
		b.src_base = base;
		b.desc[0].src_off = (uint32_t)((uintptr_t)host - base);
		assert_int_equal(s->ops->unpack(s, list, 1, gx_now_ns()), 1);
		assert_int_equal(block_wait(s, &b), GX_BLOCK_OK);
	}
	b.src_base = base;
	b.desc[0].src_off = 1u << 31;
	assert_int_equal(s->ops->unpack(s, list, 1, gx_now_ns()), 0);
	assert_int_equal(s->ops->fault(s), -EIO);
	assert_non_null(strstr(gx_gpu_why(), "host memory"));
	gx_gpu_stream_close(s);
	gx_gpu_block_free(gpu, &b);
	gpu->mem->free(gpu, from, LEN);
	gpu->mem->free(gpu, to, LEN);
	munmap(host, 4096);
	ops->close(gpu);
}

/* ---- what outlives a close ---- */

static atomic_bool held;

/* On a thread of the driver's, in the order of the stream: what is queued behind it waits. */
static void hold(void *arg)
{
	while (atomic_load(&held))
		sched_yield();
}

static int call_hold(void *arg, void *stream)
{
	unsigned (*launch)(void *stream, void (*fn)(void *arg), void *arg) =
		common_cuda_symbol("cuLaunchHostFunc");

	return launch(stream, hold, arg) ? -EIO : 0;
}

/* All that a stream may use, which does not finish; and who uses it is closed. */
struct given_up {
	struct gx_gpu *gpu;
	struct gx_gpu_stream *s;
	struct gx_block b;
	uint32_t *flag;
	char *host;
	void *dev;
};

static void given_open(struct given_up *u, enum gx_unpack unpack, enum gx_stream_kind kind)
{
	struct gx_gpu_cfg cfg = {.unpack = unpack, .drain_ns = 200000000};
	struct gx_block *list[] = {&u->b};

	memset(u, 0, sizeof(*u));
	assert_int_equal(ops->open(&cfg, &u->gpu), 0);
	u->host = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(u->host, 3, LEN);
	assert_int_equal(ops->host_map(u->gpu, u->host, LEN), 0);
	assert_int_equal(u->gpu->mem->alloc(u->gpu, LEN, &u->dev), 0);
	assert_int_equal(u->gpu->stream->open(u->gpu, kind, &u->s), 0);
	assert_int_equal(gx_gpu_block_alloc(u->gpu, &u->b), 0);
	u->flag = gx_gpu_flag_alloc(u->gpu, 1);
	assert_non_null(u->flag);
	atomic_store(&held, true);
	assert_int_equal(u->s->ops->call(u->s, call_hold, NULL, NULL, 0, gx_now_ns()), 0);
	u->b.src_base = (uintptr_t)u->host;
	u->b.seg[0] = (struct gx_dest){(uintptr_t)u->dev, LEN};
	u->b.desc[0] = (struct gx_desc){.len = 1u << 16};
	u->b.nr = u->b.nr_seg = 1;
	u->b.bytes = 1u << 16;
	*u->b.cnt = 1;
	assert_int_equal(u->s->ops->unpack(u->s, list, 1, gx_now_ns()), 1);
}

static void given_close(struct given_up *u)
{
	uint64_t begin_ns = gx_now_ns();

	assert_false(gx_gpu_stream_close(u->s));
	assert_true(gx_now_ns() - begin_ns >= 200000000);
	gx_gpu_block_free(u->gpu, &u->b);
	gx_gpu_flag_free(u->gpu, u->flag);
	u->gpu->mem->free(u->gpu, u->dev, LEN);
	assert_false(ops->host_unmap(u->gpu, u->host, LEN)); /* so it stays mapped */
	ops->close(u->gpu);
}

/* Until the GPU has done all of it a second GPU's worth of memory is not freed either; afterwards
 * all is as ever. */
static void given_after(struct given_up *u)
{
	struct gx_gpu_cfg cfg = {0};
	uint64_t end_ns = gx_now_ns() + WAIT_NS;
	struct gx_gpu *gpu = NULL;
	char *host = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool free_now = false;

	atomic_store(&held, false);
	assert_int_equal(ops->open(&cfg, &gpu), 0);
	assert_int_equal(ops->host_map(gpu, u->host, LEN), -EOPNOTSUPP);
	assert_non_null(strstr(gx_gpu_why(), "not finished"));
	while (!free_now && gx_now_ns() < end_ns) {
		assert_int_equal(ops->host_map(gpu, host, LEN), 0);
		free_now = ops->host_unmap(gpu, host, LEN);
		if (!free_now)
			host = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				    -1, 0);
	}
	assert_true(free_now);
	munmap(host, LEN);
	ops->close(gpu);
}

static void stream_close__gives_up(void **state)
{
	static const struct {
		enum gx_unpack unpack;
		enum gx_stream_kind kind;
	} how[] = {{GX_UNPACK_KERNEL, GX_STREAM_LAUNCH},
		   {GX_UNPACK_RESIDENT, GX_STREAM_RESIDENT},
		   {GX_UNPACK_AUTO, GX_STREAM_UNPACK},
		   {GX_UNPACK_HOST, GX_STREAM_UNPACK}};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(how); i++) {
		struct given_up u;

		given_open(&u, how[i].unpack, how[i].kind);
		given_close(&u);
		given_after(&u);
	}
}

/* The public engine: a queue whose function's work does not end, as NCCL's with a dead rank. */
static void queue_close__gives_up(void **state)
{
	struct gx_engine_queue_opts qo = GX_INIT(qo);
	struct gx_engine_opts o = GX_INIT(o);
	struct gx_engine_queue *q = NULL;
	struct gx_engine_block *b = NULL;
	struct gx_engine *e = NULL;
	uint32_t ticket;
	void *dev;

	qo.order_rows = 100;
	qo.stage_b = 1 << 16;
	assert_int_equal(gx_engine_open(&o, &e), 0);
	assert_int_equal(gx_engine_queue_open(e, &qo, &q), 0);
	assert_int_equal(gx_engine_block_open(e, &b), 0);
	assert_int_equal(gx_engine_alloc(e, LEN, &dev), 0);
	atomic_store(&held, true);
	assert_int_equal(gx_engine_call(q, call_hold, NULL, &ticket), 0);
	gx_engine_block_frags(b)[0] = (struct gx_frag){.len = 4096};
	gx_engine_block_set(b, dev, (char *)dev + 4096, 4096, 1);
	assert_int_equal(gx_engine_unpack(q, &b, 1), 1);
	assert_int_equal(gx_engine_queue_close(q), -ETIMEDOUT);
	gx_engine_block_close(b);
	gx_engine_free(e, dev, LEN);
	gx_engine_close(e);
	atomic_store(&held, false);
}

/* A registration that a GPU has made is another's as well, which does not end with the first. */
static void host_map__outlives_who_made_it(void **state)
{
	unsigned (*attribute)(void *value, unsigned which, unsigned long long ptr) =
		common_cuda_symbol("cuPointerGetAttribute");
	int n = common_cuda_count();
	struct gx_gpu_cfg first = {0}, second = {.device = n - 1};
	struct gx_gpu *a = NULL, *b = NULL;
	unsigned type = 0;
	char *host = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (n < 2)
		skip();
	assert_int_equal(ops->open(&first, &a), 0);
	assert_int_equal(ops->open(&second, &b), 0);
	assert_int_equal(ops->host_map(a, host, LEN), 0);
	assert_int_equal(ops->host_map(b, host, LEN), 0);
	assert_true(ops->host_unmap(a, host, LEN));
	ops->close(a);
	assert_int_equal(drv.set_current(drv.ctx), 0);
	assert_int_equal(attribute(&type, GX_CU_POINTER_MEMORY_TYPE, (uintptr_t)host), 0);
	assert_int_equal(type, GX_CU_MEMORYTYPE_HOST);
	assert_true(ops->host_unmap(b, host, LEN));
	assert_int_not_equal(attribute(&type, GX_CU_POINTER_MEMORY_TYPE, (uintptr_t)host), 0);
	assert_ptr_equal(thread_ctx(), drv.ctx);
	assert_int_equal(drv.set_current(NULL), 0);
	ops->close(b);
	munmap(host, LEN);
}

/* Kernels that the driver is too old for, or that are older than the GPU: which it is, and the
 * cure. */
static void open__kernels_that_do_not_load(void **state)
{
	static const char *const says[] = {"200", "209", "218", "222"};
	struct gx_gpu_cfg cfg = {0};
	struct gx_gpu *gpu = NULL;
	char same[16];

	if (!is_fake())
		skip();
	for (unsigned i = 0; i < GX_ARRAY_SIZE(says); i++) {
		setenv("GX_FAKE_CUDA_LOAD", says[i], 1);
		setenv("GX_FAKE_CUDA_VERSION", "10020", 1);
		assert_int_equal(ops->open(&cfg, &gpu), -ENODEV);
		assert_non_null(strstr(gx_gpu_why(), "the driver is for CUDA 10.2"));
		assert_non_null(strstr(gx_gpu_why(), "or newer"));
		assert_non_null(strstr(gx_gpu_why(), says[i]));
		snprintf(same, sizeof(same), "%u", gx_unpack_fatbin_nvcc);
		setenv("GX_FAKE_CUDA_VERSION", same, 1);
		assert_int_equal(ops->open(&cfg, &gpu), -ENODEV);
		assert_non_null(strstr(gx_gpu_why(), "do not load on this GPU"));
		setenv("GX_FAKE_CUDA_VERSION", "99010", 1);
		assert_int_equal(ops->open(&cfg, &gpu), -ENODEV);
		assert_non_null(strstr(gx_gpu_why(), "at most 99.1"));
		assert_non_null(strstr(gx_gpu_why(), says[i]));
	}
	setenv("GX_FAKE_CUDA_LOAD", "2", 1);
	assert_int_equal(ops->open(&cfg, &gpu), -ENOMEM);
	unsetenv("GX_FAKE_CUDA_LOAD");
	unsetenv("GX_FAKE_CUDA_VERSION");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static int run(void)
{
	const struct CMUnitTest tests[] = {
		TEST(context__none_before),
		TEST(context__another_before),
		TEST(capture__is_spoilt_by_others),
		TEST(capture__beside_a_thread_of_the_program),
		TEST(capture__beside_a_thread_of_gx),
		TEST(capture__by_the_thread_that_calls),
		TEST(capture__a_query_that_is_refused),
		cmocka_unit_test(src_type__of_the_fragment),
		cmocka_unit_test(host_map__outlives_who_made_it),
		cmocka_unit_test(open__kernels_that_do_not_load),
		cmocka_unit_test(stream_close__gives_up),
		cmocka_unit_test(queue_close__gives_up),
	};

	return cmocka_run_group_tests_name("cuda in a program", tests, NULL, NULL);
}

int main(int argc, char **argv)
{
	struct gx_gpu_cfg cfg = {0};
	struct gx_gpu *gpu;

	if (argc != 2 || strcmp(argv[1], "cuda")) {
		fprintf(stderr, "usage: %s cuda\n", argv[0]);
		return 2;
	}
	if (ops->open(&cfg, &gpu)) {
		printf("no CUDA backend: %s\n", gx_gpu_why());
		return strcmp(gx_gpu_why(), "built without nvcc") && common_cuda_count() ? 1 : 77;
	}
	ops->close(gpu);
	drv_open();
	return run() ? 1 : 0;
}
