/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA GPUs by the driver API, found by dlopen: unpack as one kernel launch, as jobs for a kernel
 * that is there already, as copies one a fragment, or as copies of what the CPU gathered.
 * Completion is a word in pinned memory that the GPU writes and the CPU polls. Control slots from
 * any thread, [core] slots from the one that owns the stream; both make the device's primary
 * context current, and put back what they found: on gx's own cores it stays.
 */
#include "crc_core.h"
#include "cuda_priv.h"
#include "fatbin.h"
#include "gather_core.h"
#include "resident_core.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CUDA_SMS_DEFAULT  16 /* 2 to 16 SMs read host memory as fast as PCIe gives it */
/* A kernel that stays takes its SMs from whatever else runs: beside a bf16 GEMM on 132 SMs 4 bring
 * 44.6 of 50 GB/s asked for and cost it 0.6 %, 8 bring 44.5 and cost it 4.2 % (docs/overlap.md).
 * Each core has a kernel of its own. */
#define CUDA_RESIDENT_SMS 4
#define CUDA_LAUNCHES	  64	      /* sets of counters: more than may overlap; power of two */
#define CUDA_GATHER_SMS	  4	      /* enough to saturate PCIe with rows of any size */
#define CUDA_STAGE_B	  (32u << 20) /* mode host: pinned bytes of a stream; power of two */
#define CUDA_STAGE_OUT	  64	      /* mode host: blocks under way; power of two */
/* Mode host: longer fragments are copied from where they are */
#define CUDA_GATHER_MAX	  (16u << 10)
#define CUDA_QUERY_NS	  1000000	/* how often reap asks a busy stream for errors */
#define CUDA_DRAIN_NS	  5000000000ull /* how long a close waits for a GPU, if nobody says */

_Static_assert((uint64_t)CUDA_GATHER_MAX *GX_BLOCK_DESCS_MAX <= CUDA_STAGE_B,
	       "the largest block fits in an empty stage");

/* Mode host: a ring of pinned bytes; what a block took is free again when its number comes back. */
struct cuda_stage {
	uint8_t *mem;
	uint64_t head, tail; /* free running, of mem[] */
	uint32_t
		*seq_done; /* pinned; the GPU writes the number of the last block that was copied */
	uint32_t out_head, out_tail; /* free running, of out_end[]; out_head numbers the blocks */
	uint64_t out_end[CUDA_STAGE_OUT];
};

/* A resident stream's ring. owner: poll core */
struct cuda_resident {
	struct gx_res_ring ring;
	struct gx_res_dev *dev;
	bool loose;	/* copies are unordered */
	bool automatic; /* mode auto: launches too, and no copies */
	struct gx_res_auto near;
};

/* owner: poll core */
struct cuda_stream {
	struct gx_gpu_stream stream;
	struct cuda_lost lost; /* once it was closed and had not finished */
	struct CUstream_st *stm;
	struct gx_unpack_args args; /* kept, so that a launch writes only what it uses */
	uint32_t *gather_counter;   /* device memory, [2] */
	struct cuda_stage stage;
	struct cuda_resident *res; /* NULL: all work is driver calls */
	uint32_t launch_nr;
	uint32_t *counters; /* device memory, [CUDA_LAUNCHES][2 * GX_UNPACK_BLOCKS_MAX] */
	uint64_t query_ns;  /* last launch or query */
	bool chained;	    /* the last thing queued was a ring launch: the next may overlap it */
	unsigned overlaps;  /* launches in succession that may, the last one among them */
	bool busy;    /* something was queued since the last query that found the stream empty */
	bool faulted; /* sticky */
	char fault_text[160];
};

/* --- the driver --- */

struct cuda_api cu;
_Thread_local bool cuda_relaxed;
static pthread_once_t lib_once = PTHREAD_ONCE_INIT;
static char lib_why[200]; /* empty: loaded and initialised */

static const char *cuda_error_name(unsigned res)
{
	const char *name = NULL;

	if (!cu.cuGetErrorName || cu.cuGetErrorName(res, &name) || !name)
		return "unknown error";
	return name;
}

static void lib_load(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	unsigned res;

	if (!lib) {
		snprintf(lib_why, sizeof(lib_why), "no NVIDIA driver: %s", dlerror());
		return;
	}
#define LIB_SYMBOL(fn, args)                                                                       \
	cu.fn = (unsigned(*) args)dlsym(lib, #fn);                                                 \
	if (!cu.fn) {                                                                              \
		snprintf(lib_why, sizeof(lib_why),                                                 \
			 "the NVIDIA driver is too old: it has no " #fn);                          \
		return;                                                                            \
	}
	GX_CUDA_API(LIB_SYMBOL)
#undef LIB_SYMBOL
	res = cu.cuInit(0);
	if (res)
		snprintf(lib_why, sizeof(lib_why), "cuInit: %s (%u)", cuda_error_name(res), res);
}

static int lib_get(void)
{
	pthread_once(&lib_once, lib_load);
	if (!lib_why[0])
		return 0;
	gx_gpu_why_set("%s", lib_why);
	return -ENODEV;
}

int gx_gpu_count(void)
{
	unsigned res;
	int n = 0;

	if (lib_get())
		return 0;
	res = cu.cuDeviceGetCount(&n);
	if (!res && n > 0)
		return n;
	if (res)
		gx_gpu_why_set("cuDeviceGetCount: %s (%u)", cuda_error_name(res), res);
	else
		gx_gpu_why_set("the NVIDIA driver shows no device");
	return 0;
}

int cuda_try(unsigned res, const char *what)
{
	if (!res)
		return 0;
	gx_gpu_why_set("%s: %s (%u)", what, cuda_error_name(res), res);
	return res == GX_CU_ERROR_OUT_OF_MEMORY ? -ENOMEM : -ENODEV;
}

/* A driver that is older than the nvcc, or a GPU that is younger, and what helps. */
static int load_fail(unsigned res)
{
	unsigned nvcc = gx_unpack_fatbin_nvcc, least = gx_unpack_fatbin_driver;
	int driver = 0;

	cu.cuDriverGetVersion(&driver);
	if (driver / 1000 < (int)(nvcc / 1000))
		gx_gpu_why_set("the driver is for CUDA %d.%d, and gx's kernels are by nvcc %u.%u, "
			       "which wants driver %u or newer: %s (%u); cure: such a driver, or a "
			       "build with nvcc %d.x",
			       driver / 1000, driver % 1000 / 10, nvcc / 1000, nvcc % 1000 / 10,
			       least, cuda_error_name(res), res, driver / 1000);
	else
		gx_gpu_why_set(
			"gx's kernels, by nvcc %u.%u, do not load on this GPU: %s (%u); cure: "
			"a build with an nvcc that knows it, at most %d.%d, which the "
			"driver is for",
			nvcc / 1000, nvcc % 1000 / 10, cuda_error_name(res), res, driver / 1000,
			driver % 1000 / 10);
	return -ENODEV;
}

int cuda_load(struct CUmod_st **module, const void *image)
{
	unsigned res = cu.cuModuleLoadData(module, image);

	switch (res) {
	case GX_CU_ERROR_INVALID_IMAGE:
	case GX_CU_ERROR_NO_BINARY_FOR_GPU:
	case GX_CU_ERROR_INVALID_PTX:
	case GX_CU_ERROR_UNSUPPORTED_PTX_VERSION:
		return load_fail(res);
	}
	return cuda_try(res, "cuModuleLoadData");
}

static struct cuda_stream *cuda_stream_of(struct gx_gpu_stream *s)
{
	return GX_CONTAINER_OF(s, struct cuda_stream, stream);
}

/* On a core of gx's own the context stays, so that the next turn finds it. A program's thread has
 * its own back: what cudart and PyTorch take for its current device hangs on it. */
static void cuda_leave_core(struct cuda_gpu *g, struct cuda_prev prev)
{
	if (prev.ctx || !gx_thread_own)
		cuda_leave(g, prev);
}

/* --- streams --- */

static int stm_new(struct CUstream_st **out)
{
	int least = 0, greatest = 0;

	/* The highest priority: thread blocks of an unpack are placed before waiting ones of a
	 * GEMM. */
	cu.cuCtxGetStreamPriorityRange(&least, &greatest);
	return CUDA_TRY(cuStreamCreateWithPriority, out, GX_CU_STREAM_NON_BLOCKING, greatest);
}

static void stage_close(struct cuda_gpu *g, struct cuda_stage *st)
{
	cuda_pinned_free(g, st->seq_done);
	cuda_pinned_free(g, st->mem);
}

static int stage_open(struct cuda_gpu *g, struct cuda_stage *st)
{
	st->mem = cuda_pinned_alloc(g, CUDA_STAGE_B);
	st->seq_done = cuda_pinned_alloc(g, sizeof(*st->seq_done));
	if (!st->mem || !st->seq_done)
		return -ENOMEM;
	st->out_head = st->out_tail = *st->seq_done = gx_gpu_count_from();
	return 0;
}

static void resident_close(struct cuda_gpu *g, struct cuda_resident *res)
{
	if (!res)
		return;
	cuda_device_free(g, res->dev);
	cuda_pinned_free(g, res->ring.shared);
	free(res);
}

static int resident_count_from(struct cuda_gpu *g, struct cuda_resident *res, uint32_t from)
{
	struct gx_res_dev *image;
	int ret;

	if (!from)
		return 0;
	image = calloc(1, sizeof(*image));
	if (!image)
		return -ENOMEM;
	gx_res_begin(&res->ring, image, from);
	ret = CUDA_TRY(cuMemcpyHtoDAsync_v2, cuda_ptr(res->dev), image, sizeof(*image), g->ctl);
	if (!ret)
		ret = cuda_wait(g, g->ctl);
	free(image);
	return ret;
}

static int resident_open(struct cuda_gpu *g, bool loose, struct cuda_resident **out)
{
	struct cuda_resident *res = calloc(1, sizeof(*res));
	unsigned long long dev = 0;
	int ret;

	if (!res)
		return -ENOMEM;
	*out = res;
	res->loose = loose;
	res->ring.blocks = g->gpu.resident_sms;
	res->ring.shared = cuda_pinned_alloc(g, sizeof(*res->ring.shared));
	ret = res->ring.shared ? CUDA_TRY(cuMemAlloc_v2, &dev, sizeof(*res->dev)) : -ENOMEM;
	if (ret)
		return ret;
	res->dev = (struct gx_res_dev *)(uintptr_t)dev;
	ret = cuda_mem_clear(g, dev, sizeof(*res->dev));
	return ret ? ret : resident_count_from(g, res, gx_gpu_count_from());
}

static void stream_free(struct cuda_gpu *g, struct cuda_stream *s)
{
	stage_close(g, &s->stage);
	resident_close(g, s->res);
	cuda_device_free(g, s->counters);
	if (s->stm)
		cu.cuStreamDestroy_v2(s->stm);
	free(s);
}

static int stream_fill(struct cuda_gpu *g, struct cuda_stream *s, enum gx_stream_kind kind)
{
	size_t words = CUDA_LAUNCHES * 2 * GX_UNPACK_BLOCKS_MAX,
	       len = (words + 2) * sizeof(uint32_t);
	unsigned long long counter = 0;
	int ret;

	ret = stm_new(&s->stm);
	if (!ret)
		ret = CUDA_TRY(cuMemAlloc_v2, &counter, len);
	if (ret)
		return ret;
	s->counters = (uint32_t *)(uintptr_t)counter;
	s->gather_counter = s->counters + words;
	s->launch_nr = gx_gpu_count_from();
	ret = cuda_mem_clear(g, counter, len);
	if (!ret && g->unpack == GX_UNPACK_HOST)
		ret = stage_open(g, &s->stage);
	if (!ret && (kind == GX_STREAM_RESIDENT ||
		     (kind == GX_STREAM_UNPACK &&
		      (g->unpack == GX_UNPACK_RESIDENT || g->unpack == GX_UNPACK_AUTO))))
		ret = resident_open(g, kind == GX_STREAM_RESIDENT, &s->res);
	if (!ret && s->res)
		s->res->automatic = kind == GX_STREAM_UNPACK && g->unpack == GX_UNPACK_AUTO;
	return ret;
}

static int cuda_stream_open(struct gx_gpu *gpu, enum gx_stream_kind kind,
			    struct gx_gpu_stream **out)
{
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_stream *s = calloc(1, sizeof(*s));
	struct cuda_prev prev;
	int ret;

	if (!s)
		return -ENOMEM;
	s->stream.ops = &gx_gpu_cuda_ops;
	s->stream.gpu = gpu;
	prev = cuda_enter(g);
	ret = stream_fill(g, s, kind);
	if (ret)
		stream_free(g, s);
	else
		*out = &s->stream;
	cuda_leave(g, prev);
	return ret;
}

/* --- the core's side --- */

/* The first error stays. Return: was there none? */
static bool core_try(struct cuda_stream *s, unsigned res, const char *what)
{
	if (!res)
		return true;
	if (!s->faulted)
		snprintf(s->fault_text, sizeof(s->fault_text), "%s: %s (%u)", what,
			 cuda_error_name(res), res);
	s->faulted = true;
	return false;
}

#define CORE_TRY(s, fn, ...) core_try(s, cu.fn(__VA_ARGS__), #fn)

static bool core_launch_shared(struct cuda_stream *s, struct CUfunc_st *fn, unsigned grid,
			       unsigned threads, unsigned shared_b, void **params)
{
	s->chained = false;
	return CORE_TRY(s, cuLaunchKernel, fn, grid, 1, 1, threads, 1, 1, shared_b, s->stm, params,
			NULL);
}

static bool core_launch(struct cuda_stream *s, struct CUfunc_st *fn, unsigned grid,
			unsigned threads, void **params)
{
	return core_launch_shared(s, fn, grid, threads, 0, params);
}

/* A word for the CPU, after everything queued before. */
static bool core_flag(struct cuda_stream *s, uint32_t *flag, uint32_t value)
{
	struct cuda_gpu *g = cuda_of(s->stream.gpu);
	unsigned long long ptr = cuda_ptr(flag);
	void *params[] = {&ptr, &value};

	if (g->write_value)
		return CORE_TRY(s, cuStreamWriteValue32_v2, s->stm, ptr, value,
				GX_CU_WRITE_VALUE_DEFAULT);
	return core_launch(s, g->fn_flag, 1, 1, params);
}

/*
 * What kind of memory the fragments of @b lie in: the first one, for src_base need not be memory at
 * all. Asked of the driver each time: what was freed may be another kind now.
 */
static unsigned src_type(const struct gx_block *b)
{
	unsigned type = GX_CU_MEMORYTYPE_HOST;

	/* Memory that the driver does not know is ordinary host memory. */
	if (cu.cuPointerGetAttribute(&type, GX_CU_POINTER_MEMORY_TYPE,
				     cuda_ptr(gx_block_src(b, 0))))
		type = GX_CU_MEMORYTYPE_HOST;
	return type;
}

/* The two shapes of the ring kernel. */
static const struct {
	const char *fn;
	unsigned warps, shared_b;
} ring_shape[] = {
	{"gx_unpack_ring_small", GX_RING_SMALL_WARPS,
	 GX_RING_BYTES(GX_RING_SMALL_WARPS, GX_RING_SMALL_STAGES, GX_RING_SMALL_PIECE_B)},
	{"gx_unpack_ring_large", GX_RING_LARGE_WARPS,
	 GX_RING_BYTES(GX_RING_LARGE_WARPS, GX_RING_LARGE_STAGES, GX_RING_LARGE_PIECE_B)},
};

static unsigned ring_choose(struct gx_block *const blocks[], unsigned n)
{
	uint64_t bytes = 0, nr = 0;

	for (unsigned i = 0; i < n; i++) {
		bytes += blocks[i]->bytes;
		nr += blocks[i]->nr;
	}
	return bytes >= nr * GX_RING_SMALL;
}

/* The ring pays with all SMs and GPU memory; over PCIe bulk copies are slower than loads. */
static bool ring_pays(struct cuda_stream *s, struct gx_block *const blocks[], unsigned n)
{
	struct cuda_gpu *g = cuda_of(s->stream.gpu);

	if (!g->fn_ring[0] || g->sms < g->all_sms)
		return false;
	for (unsigned i = 0; i < n; i++)
		if (blocks[i]->nr && src_type(blocks[i]) != GX_CU_MEMORYTYPE_DEVICE)
			return false;
	return true;
}

/*
 * A launch of all SMs may begin while the one before it ends, of whose thread blocks it takes the
 * place. All but one of its own may have ended before a slow one of an earlier launch has; so now
 * and then a launch waits for all before it, while there are counters that nobody uses.
 */
static bool ring_launch(struct cuda_stream *s, unsigned shape, uint32_t units)
{
	struct cuda_gpu *g = cuda_of(s->stream.gpu);
	struct cuda_launch_attr attr = {.id = GX_CU_LAUNCH_PROGRAMMATIC, .value.on = 1};
	struct cuda_launch launch = {.grid_x = GX_MIN(g->sms, units),
				     .grid_y = 1,
				     .grid_z = 1,
				     .block_x = ring_shape[shape].warps * 32,
				     .block_y = 1,
				     .block_z = 1,
				     .shared_b = ring_shape[shape].shared_b,
				     .stream = s->stm,
				     .attrs = &attr};
	void *params[] = {&s->args};

	launch.nr_attrs =
		s->chained && launch.grid_x == g->all_sms && s->overlaps < CUDA_LAUNCHES - 2;
	s->overlaps = launch.nr_attrs ? s->overlaps + 1 : 0;
	s->chained = true;
	return CORE_TRY(s, cuLaunchKernelEx, (const struct CUlaunchConfig_st *)&launch,
			g->fn_ring[shape], params, NULL);
}

/* --- mode resident --- */

static unsigned resident_warps(const struct cuda_gpu *g)
{
	return g->gpu.resident_sms * GX_RES_WORKERS;
}

/* @ends: by itself, after a while; else by a STOP, which has been posted. */
static bool resident_launch(struct cuda_stream *s, bool ends, uint64_t now_ns)
{
	struct cuda_gpu *g = cuda_of(s->stream.gpu);
	struct gx_res_args args = {.shared = s->res->ring.shared,
				   .dev = s->res->dev,
				   .idle_ns = ends ? GX_RES_IDLE_NS : GX_RES_UNBOUND,
				   .life_ns = ends ? GX_RES_LIFE_NS : GX_RES_UNBOUND};
	struct cuda_prev prev = cuda_enter(g);
	void *params[] = {&args};
	bool ok;

	s->busy = true;
	s->query_ns = now_ns;
	args.launch = gx_res_launch(&s->res->ring, now_ns);
	ok = core_launch(s, g->fn_resident, g->gpu.resident_sms, GX_RES_THREADS, params);
	cuda_leave_core(g, prev);
	return ok;
}

/* A kernel is there, or on its way, for what is posted next. */
static bool resident_ready(struct cuda_stream *s, uint64_t now_ns)
{
	return gx_res_alive(&s->res->ring, now_ns) > 0 || resident_launch(s, true, now_ns);
}

/* In reap: nothing that was posted waits for a kernel that has ended. */
static bool resident_reap(struct cuda_stream *s, uint64_t now_ns)
{
	struct gx_res_ring *ring = &s->res->ring;
	uint32_t was = ring->tail;

	gx_res_room(ring);
	if (!s->faulted && gx_res_wants_launch(ring, now_ns))
		resident_launch(s, true, now_ns);
	return ring->tail != was;
}

/*
 * Driver work comes next on this stream: every launch under way ends once it has taken what is
 * posted. Those may end by themselves before, so that the last one, which meets the STOP at the
 * latest, does not. The STOP is posted first: where a launch is waited for when it is made
 * (CUDA_LAUNCH_BLOCKING, some profilers), it must find it.
 */
static bool resident_stop(struct cuda_stream *s, uint64_t now_ns)
{
	struct gx_res_ring *ring = &s->res->ring;
	uint32_t room = gx_res_room(ring);
	bool out = ring->head != ring->tail;

	if (!out && !gx_res_alive(ring, now_ns))
		return true;
	if (!room)
		return false;
	gx_res_stop(ring, out);
	return !out || resident_launch(s, false, now_ns);
}

/*
 * Units of a block: a lone one is spread over all warps, for it has them to itself; with others
 * under way units are larger, so that a warp waits for its descriptors less often, and warps that
 * have no unit of this block work on the next.
 */
static unsigned resident_units(const struct cuda_stream *s)
{
	uint32_t out = s->res->ring.head - s->res->ring.tail;

	return resident_warps(cuda_of(s->stream.gpu)) / (out > 3 ? 4 : out > 1 ? 2 : 1);
}

/* @last: of the blocks that are posted at once */
static bool resident_block(struct cuda_stream *s, struct gx_block *b, bool last)
{
	struct gx_res_ring *ring = &s->res->ring;
	struct gx_cut *cut = cuda_block_mem(b)->cut;
	struct gx_res_job job = {.kind = GX_RES_UNPACK};

	if (!gx_res_room(ring))
		return false;
	gx_unpack_plan(&s->args, &b, &cut, 1, resident_units(s));
	gx_block_status_set(b, GX_BLOCK_PENDING);
	job.arg = s->args.arg[0];
	job.step = s->args.step;
	job.wait_to = ring->copies;
	if (!s->res->loose && (int32_t)(ring->copies - ring->tail) > 0)
		job.kind |= GX_RES_WAIT;
	if (last && gx_res_lone(ring))
		job.kind |= GX_RES_LONE;
	gx_res_single(&job);
	gx_res_even(&job);
	gx_res_lay(ring, &job);
	gx_res_post(ring, &job);
	return true;
}

static unsigned resident_unpack(struct cuda_stream *s, struct gx_block *const blocks[], unsigned n,
				uint64_t now_ns)
{
	unsigned taken = 0;

	if (!resident_ready(s, now_ns))
		return 0;
	while (taken < n && resident_block(s, blocks[taken], taken + 1 == n))
		taken++;
	return taken;
}

static bool resident_takes(const struct cuda_stream *s, const struct gx_gpu_copy list[], unsigned n)
{
	size_t len = 0;

	if (!s->res || s->res->automatic || !n || n > GX_RESIDENT_COPIES)
		return false;
	for (unsigned i = 0; i < n; i++)
		len += GX_MIN(list[i].len, GX_RESIDENT_COPY_B + 1);
	return len <= GX_RESIDENT_COPY_B;
}

/* The last copy of a list brings the flag, so it comes after the others. */
static bool resident_copy(struct cuda_stream *s, const struct gx_gpu_copy list[], unsigned n,
			  uint32_t *done, uint32_t value, uint64_t now_ns)
{
	struct gx_res_ring *ring = &s->res->ring;
	struct gx_res_job job;

	if (gx_res_room(ring) < n || !resident_ready(s, now_ns))
		return false;
	for (unsigned i = 0; i < n; i++) {
		bool last = i + 1 == n;

		gx_res_copy(&job, list[i].dst, list[i].src, (uint32_t)list[i].len,
			    last ? done : NULL, value, resident_warps(cuda_of(s->stream.gpu)));
		job.wait_to = ring->head;
		if (ring->head != ring->tail && (!s->res->loose || (last && n > 1)))
			job.kind |= GX_RES_WAIT;
		if (last && gx_res_lone(ring))
			job.kind |= GX_RES_LONE;
		gx_res_post(ring, &job);
	}
	ring->copies = ring->head;
	return true;
}

static bool cuda_reap(struct gx_gpu_stream *stream, uint64_t now_ns);

/* Until no job is out, and no launch takes the next one. A GPU that stops ends it too. */
static bool resident_drain(struct cuda_stream *s, uint64_t end_ns)
{
	const struct gx_res_ring *ring = &s->res->ring;
	uint64_t now_ns = gx_now_ns();

	while (ring->head != ring->tail && !s->faulted && now_ns < end_ns) {
		cuda_reap(&s->stream, now_ns);
		now_ns = gx_now_ns();
	}
	return s->faulted || (ring->head == ring->tail && resident_stop(s, now_ns));
}

static void stream_ended(struct cuda_lost *l)
{
	stream_free(l->g, GX_CONTAINER_OF(l, struct cuda_stream, lost));
}

static bool cuda_stream_close(struct gx_gpu_stream *stream)
{
	struct cuda_stream *s;
	struct cuda_prev prev;
	struct cuda_gpu *g;
	uint64_t end_ns;
	bool ended;

	if (!stream)
		return true;
	s = cuda_stream_of(stream);
	g = cuda_of(stream->gpu);
	end_ns = gx_now_ns() + g->drain_ns;
	prev = cuda_enter(g);
	ended = (!s->res || resident_drain(s, end_ns)) && !cuda_is_busy(cuda_drain(s->stm, end_ns));
	if (ended) {
		stream_free(g, s);
	} else {
		s->lost = (struct cuda_lost){.g = g, .stm = s->stm, .end = stream_ended};
		cuda_lose(&s->lost, "a stream");
	}
	cuda_leave(g, prev);
	return ended;
}

/* --- unpack, copy, gather --- */

/* Is any fragment of this launch to be checked? */
static bool args_check(const struct gx_unpack_args *args)
{
	uint32_t any = 0;

	for (uint32_t i = 0; i < args->n; i++)
		any |= args->arg[i].crc;
	return any;
}

static unsigned unpack_kernel(struct cuda_stream *s, struct gx_block *const blocks[], unsigned n)
{
	struct cuda_gpu *g = cuda_of(s->stream.gpu);
	struct gx_cut *cuts[GX_UNPACK_BLOCKS_MAX];
	void *params[] = {&s->args};
	bool ring = ring_pays(s, blocks, n);
	unsigned shape = ring_choose(blocks, n);
	uint32_t units;

	for (unsigned i = 0; i < n; i++) {
		gx_block_status_set(blocks[i], GX_BLOCK_PENDING);
		cuts[i] = cuda_block_mem(blocks[i])->cut;
	}
	s->args.crc = g->crc_tables;
	s->args.counter =
		s->counters + (s->launch_nr++ & (CUDA_LAUNCHES - 1)) * 2 * GX_UNPACK_BLOCKS_MAX;
	units = gx_unpack_plan(&s->args, blocks, cuts, n,
			       g->sms * (ring ? ring_shape[shape].warps : GX_UNPACK_WARPS));
	if (g->gpu.checks_crc && args_check(&s->args))
		return core_launch_shared(s, g->fn_crc, GX_MIN(g->sms, units), GX_UNPACK_THREADS,
					  GX_CRC_SHARED_B, params)
			       ? n
			       : 0;
	if (ring)
		return ring_launch(s, shape, units) ? n : 0;
	return core_launch(s, g->fn_unpack, GX_MIN(g->sms, units), GX_UNPACK_THREADS, params) ? n
											      : 0;
}

static bool block_d2d(struct cuda_stream *s, struct gx_block *b)
{
	uint32_t status = GX_BLOCK_OK;

	for (uint32_t i = 0; i < b->nr; i++) {
		void *dst = gx_block_dst(b, i);

		if (!dst)
			status = GX_BLOCK_BOUNDS;
		else if (b->desc[i].len &&
			 !CORE_TRY(s, cuMemcpyAsync, cuda_ptr(dst), cuda_ptr(gx_block_src(b, i)),
				   b->desc[i].len, s->stm))
			return false;
	}
	return core_flag(s, b->status, status);
}

/* Mode host: what the CPU has gathered and not yet sent, contiguous on both sides. */
struct cuda_run {
	uint64_t dst;
	uint64_t at; /* in the stage, free running */
	uint32_t len;
};

static bool run_send(struct cuda_stream *s, struct cuda_run *run)
{
	const uint8_t *src = s->stage.mem + (run->at & (CUDA_STAGE_B - 1));
	uint32_t len = run->len;

	run->len = 0;
	return !len || CORE_TRY(s, cuMemcpyHtoDAsync_v2, run->dst, src, len, s->stm);
}

/* Gather @len bytes to the head of the stage, in two parts where the ring ends. */
static bool run_gather(struct cuda_stream *s, struct cuda_run *run, uint64_t dst,
		       const uint8_t *src, uint32_t len)
{
	while (len) {
		uint32_t at = s->stage.head & (CUDA_STAGE_B - 1);
		uint32_t part = GX_MIN(len, CUDA_STAGE_B - at);

		if ((run->dst + run->len != dst || at == 0) && !run_send(s, run))
			return false;
		if (!run->len)
			*run = (struct cuda_run){dst, s->stage.head, 0};
		gx_copy(s->stage.mem + at, src, part);
		run->len += part;
		s->stage.head += part;
		dst += part;
		src += part;
		len -= part;
	}
	return true;
}

static bool block_gather(struct cuda_stream *s, struct gx_block *b)
{
	uint32_t status = GX_BLOCK_OK;
	struct cuda_run run = {0, 0, 0};

	for (uint32_t i = 0; i < b->nr; i++) {
		const void *src = gx_block_src(b, i);
		void *dst = gx_block_dst(b, i);
		uint32_t len = b->desc[i].len;

		if (!dst) {
			status = GX_MAX(status, GX_BLOCK_BOUNDS);
		} else if (!gx_block_crc_ok(b, i)) {
			status = GX_MAX(status, GX_BLOCK_CRC);
		} else if (len <= CUDA_GATHER_MAX) {
			if (!run_gather(s, &run, cuda_ptr(dst), src, len))
				return false;
		} else if (!run_send(s, &run) ||
			   !CORE_TRY(s, cuMemcpyAsync, cuda_ptr(dst), cuda_ptr(src), len, s->stm)) {
			return false;
		}
	}
	return run_send(s, &run) && core_flag(s, b->status, status);
}

static bool stage_reap(struct cuda_stage *st)
{
	uint32_t done = st->mem ? __atomic_load_n(st->seq_done, __ATOMIC_ACQUIRE) : 0;
	bool worked = st->mem && st->out_tail != done;

	for (; st->mem && st->out_tail != done; st->out_tail++)
		st->tail = st->out_end[st->out_tail & (CUDA_STAGE_OUT - 1)];
	return worked;
}

static bool stage_fits(struct cuda_stage *st, const struct gx_block *b)
{
	uint64_t need = 0;

	for (uint32_t i = 0; i < b->nr; i++)
		need += b->desc[i].len <= CUDA_GATHER_MAX ? b->desc[i].len : 0;
	stage_reap(st);
	return st->out_head - st->out_tail < CUDA_STAGE_OUT &&
	       need <= CUDA_STAGE_B - (st->head - st->tail);
}

/* Mode host reads the fragments with the CPU, which cannot read the memory of a GPU. */
static bool src_readable(struct cuda_stream *s, const struct gx_block *b)
{
	return src_type(b) != GX_CU_MEMORYTYPE_DEVICE ||
	       core_try(s, GX_CU_ERROR_INVALID_VALUE,
			"unpack mode host needs bounce buffers in host memory");
}

static bool block_host(struct cuda_stream *s, struct gx_block *b)
{
	struct cuda_stage *st = &s->stage;

	if ((b->nr && !src_readable(s, b)) || !stage_fits(st, b) || !block_gather(s, b))
		return false;
	st->out_end[st->out_head++ & (CUDA_STAGE_OUT - 1)] = st->head;
	return core_flag(s, st->seq_done, st->out_head);
}

static bool block_try(struct cuda_stream *s, struct gx_block *b)
{
	switch (cuda_of(s->stream.gpu)->unpack) {
	case GX_UNPACK_D2D:
		return block_d2d(s, b);
	case GX_UNPACK_HOST:
		return block_host(s, b);
	default:
		return core_flag(s, b->status, GX_BLOCK_OK);
	}
}

/* A block that is not taken keeps its status. */
static bool block_queue(struct cuda_stream *s, struct gx_block *b)
{
	uint32_t was = *b->status;
	bool ok;

	gx_block_status_set(b, GX_BLOCK_PENDING);
	ok = block_try(s, b);
	if (!ok)
		gx_block_status_set(b, was);
	return ok;
}

/* @n: things. Of none reap's clock goes on: who tries in vain, for ever, is told of a fault. */
static void core_queued(struct cuda_stream *s, unsigned n, uint64_t now_ns)
{
	if (!n)
		return;
	s->busy = true;
	s->query_ns = now_ns;
}

/* Does this GPU unpack by kernels of ours? */
static bool cuda_has_kernel(const struct cuda_gpu *g)
{
	return g->unpack == GX_UNPACK_KERNEL || g->unpack == GX_UNPACK_RESIDENT ||
	       g->unpack == GX_UNPACK_AUTO;
}

/* Does the kernel that stays take these? It checks no CRC: in mode auto a launch does that. */
static bool resident_pays(struct cuda_stream *s, struct gx_block *const blocks[], unsigned n,
			  uint64_t now_ns)
{
	if (!s->res || !s->res->automatic)
		return s->res;
	for (unsigned i = 0; i < n; i++)
		if (gx_block_checked(blocks[i]))
			return false;
	return gx_res_pays(&s->res->ring, &s->res->near, now_ns);
}

static unsigned cuda_unpack(struct gx_gpu_stream *stream, struct gx_block *const blocks[],
			    unsigned n, uint64_t now_ns)
{
	struct cuda_stream *s = cuda_stream_of(stream);
	struct cuda_gpu *g = cuda_of(stream->gpu);
	struct cuda_prev prev;
	unsigned taken = 0;

	n = GX_MIN(n, GX_UNPACK_BLOCKS_MAX);
	if (!n || s->faulted)
		return 0;
	for (unsigned i = 0; i < n; i++)
		assert(blocks[i]->nr <= GX_BLOCK_DESCS_MAX);
	if (resident_pays(s, blocks, n, now_ns)) {
		taken = resident_unpack(s, blocks, n, now_ns);
		core_queued(s, taken, now_ns);
		return taken;
	}
	prev = cuda_enter(g);
	if (cuda_has_kernel(g))
		taken = unpack_kernel(s, blocks, n);
	else
		while (taken < n && block_queue(s, blocks[taken]))
			taken++;
	cuda_leave_core(g, prev);
	core_queued(s, taken, now_ns);
	return taken;
}

/* An argument that the driver refuses is the caller's fault, and not the stream's. */
static int copy_queue(struct cuda_stream *s, const struct gx_gpu_copy *c)
{
	unsigned res;

	if (!c->len)
		return 0;
	res = cu.cuMemcpyAsync(cuda_ptr(c->dst), cuda_ptr(c->src), c->len, s->stm);
	if (res != GX_CU_ERROR_INVALID_VALUE)
		return core_try(s, res, "cuMemcpyAsync") ? 0 : -EAGAIN;
	gx_gpu_why_set("copy of %zu bytes from %p to %p: the driver refuses an address", c->len,
		       c->src, c->dst);
	return -EINVAL;
}

static int cuda_copy(struct gx_gpu_stream *stream, const struct gx_gpu_copy list[], unsigned n,
		     uint32_t *done, uint32_t value, uint64_t now_ns)
{
	struct cuda_stream *s = cuda_stream_of(stream);
	struct cuda_gpu *g = cuda_of(stream->gpu);
	struct cuda_prev prev;
	int ret = 0;
	bool ok;

	if (s->faulted)
		return -EAGAIN;
	if (resident_takes(s, list, n)) {
		ok = resident_copy(s, list, n, done, value, now_ns);
		core_queued(s, ok, now_ns);
		return ok ? 0 : -EAGAIN;
	}
	if (s->res && !resident_stop(s, now_ns))
		return -EAGAIN;
	s->chained = false;
	prev = cuda_enter(g);
	for (unsigned i = 0; i < n && !ret; i++)
		ret = copy_queue(s, &list[i]);
	if (!ret && done)
		ret = core_flag(s, done, value) ? 0 : -EAGAIN;
	cuda_leave_core(g, prev);
	core_queued(s, 1, now_ns); /* of those before a refused one, too */
	return ret;
}

static int cuda_call(struct gx_gpu_stream *stream, int (*fn)(void *arg, void *stream), void *arg,
		     uint32_t *done, uint32_t value, uint64_t now_ns)
{
	struct cuda_stream *s = cuda_stream_of(stream);
	struct cuda_gpu *g = cuda_of(stream->gpu);
	struct cuda_prev prev;
	int ret = 0;

	if (s->faulted || (s->res && !resident_stop(s, now_ns)))
		return -EAGAIN;
	s->chained = false;
	prev = cuda_enter(g);
	cuda_unrelax(prev.capture); /* @fn is the program's */
	if (fn)
		ret = fn(arg, s->stm);
	cuda_relax();
	/* Whatever @fn has made current. */
	cu.cuCtxSetCurrent(g->ctx);
	if (!ret && done && !core_flag(s, done, value))
		ret = -EAGAIN;
	cuda_leave_core(g, prev);
	core_queued(s, 1, now_ns);
	return ret;
}

static void gather_args(struct cuda_stream *s, const struct gx_gpu_gather *g,
			struct gx_gather_args *a)
{
	uint32_t word = gx_gather_word(cuda_ptr(g->src), cuda_ptr(g->dst), g->row_b);

	*a = (struct gx_gather_args){
		.src = g->src,
		.dst = g->dst,
		.pairs = g->pairs,
		.counter = s->gather_counter,
		.bad = g->bad,
		.nr = g->nr,
		.nr_src = g->nr_src,
		.nr_dst = g->nr_dst,
		.row_b = g->row_b,
		.segs = gx_gather_segs(cuda_ptr(g->src), g->row_b, word),
		.window = gx_gather_window(g->row_b),
		.magic = gx_gather_magic(g->row_b),
	};
	if (g->how == GX_GATHER_ORDERED) {
		a->head = g->link;
		a->next = g->link + g->nr_src;
	}
}

/* The kernel that ends the gather, and how many warps or threads it can feed. */
static unsigned gather_kernel(const struct gx_gpu_gather *g, const struct gx_gather_args *a,
			      uint64_t *work)
{
	static const unsigned step[] = {
		[GX_GATHER_BYTE] = GATHER_BYTE,	 [GX_GATHER_THREAD] = GATHER_THREAD,
		[GX_GATHER_WARP] = GATHER_WARP1, [GX_GATHER_WARP2] = GATHER_WARP2,
		[GX_GATHER_SEQ] = GATHER_SEQ,
	};
	bool wide = gx_gather_word(cuda_ptr(g->src), cuda_ptr(g->dst), g->row_b) == 16;

	if (g->how == GX_GATHER_ROWS) {
		*work = ((uint64_t)g->nr * a->segs + 31) / 32;
		return wide ? GATHER_ROWS16 : GATHER_ROWS4;
	}
	if (g->how == GX_GATHER_ORDERED) {
		*work = (g->nr_src + a->window - 1) / a->window;
		return wide ? GATHER_ORDERED16 : GATHER_ORDERED4;
	}
	*work = g->nr;
	return step[g->how];
}

static bool gather_queue(struct cuda_stream *s, const struct gx_gpu_gather *g, uint32_t *done,
			 uint32_t value)
{
	struct cuda_gpu *gpu = cuda_of(s->stream.gpu);
	unsigned sms = GX_MIN(g->sms ? g->sms : gpu->gather_sms, gpu->all_sms);
	struct gx_gather_args a;
	void *params[] = {&a};
	uint64_t work = 0;
	unsigned fn;

	gather_args(s, g, &a);
	a.flag = done;
	a.value = value;
	fn = gather_kernel(g, &a, &work);
	work = GX_MAX((work + GX_GATHER_WARPS - 1) / GX_GATHER_WARPS, 1);
	if (g->how == GX_GATHER_ORDERED &&
	    !core_launch(s, gpu->fn_gather[GATHER_LINK], sms, GX_GATHER_THREADS, params))
		return false;
	return core_launch(s, gpu->fn_gather[fn], GX_MIN(sms, work), GX_GATHER_THREADS, params);
}

static int cuda_gather(struct gx_gpu_stream *stream, const struct gx_gpu_gather *g, uint32_t *done,
		       uint32_t value, uint64_t now_ns)
{
	struct cuda_stream *s = cuda_stream_of(stream);
	struct cuda_gpu *gpu = cuda_of(stream->gpu);
	struct cuda_prev prev;
	bool ok;

	assert(g->row_b && g->row_b % 4 == 0 && g->row_b <= GX_ROW_MAX);
	if (s->faulted || (s->res && !resident_stop(s, now_ns)))
		return -EAGAIN;
	prev = cuda_enter(gpu);
	ok = gather_queue(s, g, done, value);
	cuda_leave_core(gpu, prev);
	core_queued(s, ok, now_ns);
	return ok ? 0 : -EAGAIN;
}

/* A kernel that went wrong writes no status: ask the stream, rarely, while something may be under
 * way. */
static void core_query(struct cuda_stream *s, uint64_t now_ns)
{
	struct cuda_gpu *g = cuda_of(s->stream.gpu);
	struct cuda_prev prev = cuda_enter(g);
	unsigned res = cu.cuStreamQuery(s->stm);

	s->query_ns = now_ns;
	s->busy = cuda_is_busy(res);
	if (!s->busy)
		core_try(s, res, "the GPU stopped");
	cuda_leave_core(g, prev);
}

static bool cuda_reap(struct gx_gpu_stream *stream, uint64_t now_ns)
{
	struct cuda_stream *s = cuda_stream_of(stream);

	if (s->busy && now_ns - s->query_ns >= CUDA_QUERY_NS)
		core_query(s, now_ns);
	return s->res ? resident_reap(s, now_ns) : stage_reap(&s->stage);
}

static int cuda_fault(struct gx_gpu_stream *stream)
{
	struct cuda_stream *s = cuda_stream_of(stream);

	if (!s->faulted)
		return 0;
	gx_gpu_why_set("%s", s->fault_text);
	return -EIO;
}

/* --- streams of the user's --- */

/* Can what is queued on @stm be waited for? */
static int mark_check(struct CUstream_st *stm)
{
	unsigned capturing = GX_CU_CAPTURE_NONE;
	unsigned res;

	if ((uintptr_t)stm == GX_CU_STREAM_PER_THREAD) {
		gx_gpu_why_set("CU_STREAM_PER_THREAD is another stream on each thread: name one");
		return -EINVAL;
	}
	res = cu.cuStreamIsCapturing(stm, &capturing);
	if (!res && capturing == GX_CU_CAPTURE_NONE)
		return 0;
	if (res == GX_CU_ERROR_CAPTURE_IMPLICIT)
		gx_gpu_why_set("another stream is being captured, which the default stream would "
			       "join: name a stream");
	else if (res)
		gx_gpu_why_set("cuStreamIsCapturing: %s (%u)", cuda_error_name(res), res);
	else
		gx_gpu_why_set("the stream is being captured into a graph");
	return -EINVAL;
}

/* Errors here are the caller's: no stream of ours is at fault. */
static int cuda_stream_mark(struct gx_gpu *gpu, void *stream, uint32_t *flag, uint32_t value,
			    uint64_t now_ns, uint64_t *due_ns)
{
	struct cuda_gpu *g = cuda_of(gpu);
	struct cuda_prev prev = cuda_enter(g);
	unsigned long long ptr = cuda_ptr(flag);
	void *params[] = {&ptr, &value};
	unsigned res = 0;
	int ret = mark_check(stream);

	if (!ret && g->write_value)
		res = cu.cuStreamWriteValue32_v2(stream, ptr, value, GX_CU_WRITE_VALUE_DEFAULT);
	else if (!ret)
		res = cu.cuLaunchKernel(g->fn_flag, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
	cuda_leave(g, prev);
	if (res)
		gx_gpu_why_set("a flag behind the stream's work: %s (%u)", cuda_error_name(res),
			       res);
	*due_ns = 0;
	return res ? -EINVAL : ret;
}

/* --- open and close --- */

/* A driver that does not know an attribute says no. */
static bool gpu_has(int dev, unsigned attribute)
{
	int has = 0;

	return !cu.cuDeviceGetAttribute(&has, attribute, dev) && has;
}

static void gpu_identify_vmm(struct cuda_gpu *g, int dev)
{
	g->vmm = !g->ipc_memory && gpu_has(dev, GX_CU_ATTR_VMM) &&
		 gpu_has(dev, GX_CU_ATTR_VMM_POSIX_FD);
	g->vmm_rdma = gpu_has(dev, GX_CU_ATTR_VMM_RDMA);
	g->dmabuf = gpu_has(dev, GX_CU_ATTR_DMABUF);
}

static enum gx_gpu_dma gpu_dma(int dev)
{
	int order = 0;

	if (cu.cuDeviceGetAttribute(&order, GX_CU_ATTR_RDMA_ORDER, dev))
		return GX_GPU_DMA_NONE;
	return order >= GX_CU_RDMA_ORDER_ALL	 ? GX_GPU_DMA_ALL
	       : order >= GX_CU_RDMA_ORDER_OWNER ? GX_GPU_DMA_OWN
						 : GX_GPU_DMA_NONE;
}

static int gpu_identify(struct cuda_gpu *g, int dev)
{
	int sms = 0, major = 0, minor = 0, uva = 0;
	int ret;

	ret = CUDA_TRY(cuDeviceGetName, g->name, sizeof(g->name), dev);
	if (!ret)
		ret = CUDA_TRY(cuDeviceGetAttribute, &sms, GX_CU_ATTR_MULTIPROCESSOR_COUNT, dev);
	if (!ret)
		ret = CUDA_TRY(cuDeviceGetAttribute, &uva, GX_CU_ATTR_UNIFIED_ADDRESSING, dev);
	if (!ret)
		ret = CUDA_TRY(cuDeviceGetAttribute, &major, GX_CU_ATTR_COMPUTE_CAPABILITY_MAJOR,
			       dev);
	if (!ret)
		ret = CUDA_TRY(cuDeviceGetAttribute, &minor, GX_CU_ATTR_COMPUTE_CAPABILITY_MINOR,
			       dev);
	if (ret)
		return ret;
	if (major < 8 || !uva) {
		gx_gpu_why_set(
			"%s has compute capability %d.%d, gx needs 8.0 and unified addresses",
			g->name, major, minor);
		return -ENODEV;
	}
	gpu_identify_vmm(g, dev);
	g->all_sms = (unsigned)sms;
	g->major = major;
	g->sms = GX_MIN(g->sms, g->all_sms);
	g->gpu.resident_sms = GX_MIN(g->gpu.resident_sms, GX_MIN(g->all_sms, GX_RES_BLOCKS_MAX));
	g->gpu.turns = !gpu_has(dev, GX_CU_ATTR_MPS);
	g->gpu.dma = gpu_dma(dev);
	return 0;
}

static int gpu_load_gather(struct cuda_gpu *g)
{
	static const char *const name[GATHER_FNS] = {
		"gx_gather_rows16",   "gx_gather_rows4", "gx_gather_link",   "gx_gather_ordered16",
		"gx_gather_ordered4", "gx_gather_byte",	 "gx_gather_thread", "gx_gather_warp1",
		"gx_gather_warp2",    "gx_gather_seq",
	};
	int ret = cuda_load(&g->gather_module, gx_gather_fatbin);

	for (unsigned i = 0; i < GATHER_FNS && !ret; i++)
		ret = CUDA_TRY(cuModuleGetFunction, &g->fn_gather[i], g->gather_module, name[i]);
	return ret;
}

static int gpu_load_resident(struct cuda_gpu *g)
{
	int ret = cuda_load(&g->resident_module, gx_resident_fatbin);

	return ret ? ret
		   : CUDA_TRY(cuModuleGetFunction, &g->fn_resident, g->resident_module,
			      "gx_resident");
}

/* Code for other generations than 9 and 10 is PTX of the oldest, without bulk copies. */
static int gpu_load_ring(struct cuda_gpu *g)
{
	int ret = 0;

	if (g->major != 9 && g->major != 10)
		return 0;
	for (unsigned i = 0; i < GX_ARRAY_SIZE(ring_shape) && !ret; i++) {
		ret = CUDA_TRY(cuModuleGetFunction, &g->fn_ring[i], g->module, ring_shape[i].fn);
		if (!ret)
			ret = CUDA_TRY(cuFuncSetAttribute, g->fn_ring[i],
				       GX_CU_FUNC_MAX_DYNAMIC_SHARED_B,
				       (int)ring_shape[i].shared_b);
	}
	return ret;
}

static int gpu_load_crc(struct cuda_gpu *g)
{
	uint32_t tables[GX_CRC_WORDS];
	unsigned long long mem = 0;
	int ret = CUDA_TRY(cuModuleGetFunction, &g->fn_crc, g->module, "gx_unpack_crc");

	if (!ret)
		ret = CUDA_TRY(cuFuncSetAttribute, g->fn_crc, GX_CU_FUNC_MAX_DYNAMIC_SHARED_B,
			       GX_CRC_SHARED_B);
	if (!ret)
		ret = CUDA_TRY(cuMemAlloc_v2, &mem, sizeof(tables));
	if (ret)
		return ret;
	g->crc_tables = (uint32_t *)(uintptr_t)mem;
	gx_crc_tables(tables);
	ret = CUDA_TRY(cuMemcpyHtoDAsync_v2, mem, tables, sizeof(tables), g->ctl);
	return ret ? ret : cuda_wait(g, g->ctl);
}

static int gpu_load(struct cuda_gpu *g)
{
	int ret = cuda_load(&g->module, gx_unpack_fatbin);

	if (!ret)
		ret = CUDA_TRY(cuModuleGetFunction, &g->fn_unpack, g->module, "gx_unpack");
	if (!ret)
		ret = CUDA_TRY(cuModuleGetFunction, &g->fn_flag, g->module, "gx_flag");
	if (!ret)
		ret = gpu_load_gather(g);
	if (!ret)
		ret = gpu_load_resident(g);
	if (!ret)
		ret = stm_new(&g->ctl);
	if (!ret)
		ret = gpu_load_crc(g);
	return ret;
}

/*
 * The first launch of each kernel, here and not in a turn: it loads the code. Also finds out how
 * flags are written, and that both ways arrive.
 */
static int gpu_try_stream(struct cuda_gpu *g, struct cuda_stream *s, struct gx_block *b)
{
	struct gx_block *blocks[] = {b};
	uint32_t *word = (uint32_t *)b->cnt;
	int ret;

	g->write_value =
		!cu.cuStreamWriteValue32_v2(s->stm, cuda_ptr(b->status), GX_BLOCK_CRC, 0) &&
		!cuda_wait(g, s->stm) && *(volatile uint32_t *)b->status == GX_BLOCK_CRC;
	*b->status = GX_BLOCK_PENDING;
	if (unpack_kernel(s, blocks, 1) != 1 || !core_flag(s, word, 7)) {
		cuda_fault(&s->stream);
		return -ENODEV;
	}
	ret = cuda_wait(g, s->stm);
	if (ret)
		return ret;
	if (*(volatile uint32_t *)b->status == GX_BLOCK_OK && *(volatile uint32_t *)word == 7)
		return 0;
	gx_gpu_why_set("the unpack kernel ran and its result did not arrive");
	return -ENODEV;
}

/* The kernel that checks, with one empty block. */
static int gpu_try_crc(struct cuda_gpu *g, struct cuda_stream *s, struct gx_block *b)
{
	struct gx_cut *cuts[] = {cuda_block_mem(b)->cut};
	struct gx_block *blocks[] = {b};
	void *params[] = {&s->args};
	int ret;

	*b->status = GX_BLOCK_PENDING;
	gx_unpack_plan(&s->args, blocks, cuts, 1, 1);
	s->args.crc = g->crc_tables;
	if (!core_launch_shared(s, g->fn_crc, 1, GX_UNPACK_THREADS, GX_CRC_SHARED_B, params)) {
		cuda_fault(&s->stream);
		return -ENODEV;
	}
	ret = cuda_wait(g, s->stm);
	if (ret || *(volatile uint32_t *)b->status == GX_BLOCK_OK)
		return ret;
	gx_gpu_why_set("gx_unpack_crc ran and its result did not arrive");
	return -ENODEV;
}

/* The ring's kernels, after the other one was tried without them. */
static int gpu_try_ring(struct cuda_gpu *g, struct cuda_stream *s, struct gx_block *b)
{
	struct gx_cut *cuts[] = {cuda_block_mem(b)->cut};
	struct gx_block *blocks[] = {b};
	int ret = gpu_load_ring(g);

	for (unsigned i = 0; i < GX_ARRAY_SIZE(ring_shape) && g->fn_ring[0] && !ret; i++) {
		*b->status = GX_BLOCK_PENDING;
		if (!ring_launch(s, i, gx_unpack_plan(&s->args, blocks, cuts, 1, 1))) {
			cuda_fault(&s->stream);
			return -ENODEV;
		}
		ret = cuda_wait(g, s->stm);
		if (!ret && *(volatile uint32_t *)b->status != GX_BLOCK_OK) {
			gx_gpu_why_set("%s ran and its result did not arrive", ring_shape[i].fn);
			ret = -ENODEV;
		}
	}
	return ret;
}

/* Every kernel of gather.cu once, with no pairs. */
static int gpu_try_gather(struct cuda_gpu *g, struct cuda_stream *s, struct gx_block *b)
{
	uint32_t *word = (uint32_t *)b->cnt;
	struct gx_gather_args a = {.counter = s->gather_counter,
				   .flag = word,
				   .bad = word + 1,
				   .value = 9,
				   .segs = 1,
				   .window = 1,
				   .row_b = 16};
	void *params[] = {&a};
	int ret;

	for (unsigned i = 0; i < GATHER_FNS; i++)
		if (!core_launch(s, g->fn_gather[i], 1, GX_GATHER_THREADS, params)) {
			cuda_fault(&s->stream);
			return -ENODEV;
		}
	ret = cuda_wait(g, s->stm);
	if (ret || *(volatile uint32_t *)word == 9)
		return ret;
	gx_gpu_why_set("the gather kernels ran and their result did not arrive");
	return -ENODEV;
}

/* The resident kernel with one job, on a stream of its own. */
static int gpu_try_resident(struct cuda_gpu *g, struct gx_block *b)
{
	struct gx_gpu_stream *stream = NULL;
	struct gx_block *blocks[] = {b};
	int ret = cuda_stream_open(&g->gpu, GX_STREAM_RESIDENT, &stream);

	if (ret)
		return ret;
	*b->status = GX_BLOCK_PENDING;
	/* A launch that found nothing to do may have ended before the job was posted; the STOP
	 * brings one that takes it. */
	if (resident_unpack(cuda_stream_of(stream), blocks, 1, gx_now_ns()) != 1 ||
	    !resident_stop(cuda_stream_of(stream), gx_now_ns())) {
		cuda_fault(stream);
		ret = -ENODEV;
	}
	if (!ret)
		ret = cuda_wait(g, cuda_stream_of(stream)->stm);
	if (!ret && *(volatile uint32_t *)b->status != GX_BLOCK_OK) {
		gx_gpu_why_set("the resident kernel ran and its result did not arrive");
		ret = -ENODEV;
	}
	cuda_stream_close(stream);
	return ret;
}

static int gpu_try(struct cuda_gpu *g)
{
	struct gx_gpu_stream *stream = NULL;
	struct gx_block b = {0};
	int ret;

	ret = cuda_stream_open(&g->gpu, GX_STREAM_LAUNCH, &stream);
	if (!ret)
		ret = cuda_block_alloc(&g->gpu, &b);
	if (!ret)
		ret = gpu_try_stream(g, cuda_stream_of(stream), &b);
	if (!ret)
		ret = gpu_try_crc(g, cuda_stream_of(stream), &b);
	if (!ret)
		ret = gpu_try_ring(g, cuda_stream_of(stream), &b);
	if (!ret)
		ret = gpu_try_gather(g, cuda_stream_of(stream), &b);
	if (!ret)
		ret = gpu_try_resident(g, &b);
	cuda_stream_close(stream);
	cuda_block_free(&g->gpu, &b);
	return ret;
}

/* And @g. What the GPU may still use stays, with its context. */
static void gpu_free(struct cuda_gpu *g)
{
	unsigned mode = cuda_relax();
	struct cuda_prev prev;

	if (!g->ctx)
		goto out;
	if (cuda_is_lost(g)) {
		cuda_keep(g);
		cuda_unrelax(mode);
		return;
	}
	prev = cuda_enter(g);
	cuda_device_free(g, g->crc_tables);
	if (g->ctl)
		cu.cuStreamDestroy_v2(g->ctl);
	if (g->resident_module)
		cu.cuModuleUnload(g->resident_module);
	if (g->gather_module)
		cu.cuModuleUnload(g->gather_module);
	if (g->module)
		cu.cuModuleUnload(g->module);
	cuda_leave(g, prev);
	cu.cuDevicePrimaryCtxRelease_v2(g->gpu.device);
out:
	cuda_unrelax(mode);
	free(g);
}

static int gpu_start(struct cuda_gpu *g, int dev)
{
	struct cuda_prev prev;
	int ret;

	ret = CUDA_TRY(cuDevicePrimaryCtxRetain, &g->ctx, dev);
	if (ret)
		return ret;
	prev = cuda_enter(g);
	ret = gpu_load(g);
	if (!ret)
		ret = gpu_try(g);
	cuda_leave(g, prev);
	return ret;
}

/* The device's context, and all that is made in it. */
static int gpu_up(struct cuda_gpu *g, int device)
{
	unsigned mode = cuda_relax();
	int dev = 0, ret = CUDA_TRY(cuDeviceGet, &dev, device);

	g->gpu.device = dev;
	if (!ret)
		ret = gpu_identify(g, dev);
	if (!ret)
		ret = gpu_start(g, dev);
	cuda_unrelax(mode);
	return ret;
}

static int cuda_open(const struct gx_gpu_cfg *cfg, struct gx_gpu **out)
{
	struct cuda_gpu *g;
	int ret;

	if (!gx_unpack_fatbin_len) {
		gx_gpu_why_set("built without nvcc");
		return -ENODEV;
	}
	ret = lib_get();
	if (ret)
		return ret;
	g = calloc(1, sizeof(*g));
	if (!g)
		return -ENOMEM;
	g->unpack = cfg->unpack;
	g->sms = cfg->sms ? cfg->sms : CUDA_SMS_DEFAULT;
	g->gather_sms = cfg->sms ? cfg->sms : CUDA_GATHER_SMS;
	g->gpu.resident_sms = cfg->sms ? cfg->sms : CUDA_RESIDENT_SMS;
	g->gpu.ops = &gx_gpu_cuda_ops;
	g->ipc_memory = cfg->ipc_memory;
	g->gpu.reads_host = g->unpack == GX_UNPACK_HOST;
	g->gpu.checks_crc = g->unpack == GX_UNPACK_HOST || g->unpack == GX_UNPACK_KERNEL ||
			    g->unpack == GX_UNPACK_AUTO;
	g->drain_ns = cfg->drain_ns ? cfg->drain_ns : CUDA_DRAIN_NS;
	ret = gpu_up(g, cfg->device);
	if (ret)
		gpu_free(g);
	else
		*out = &g->gpu;
	return ret;
}

static void cuda_close(struct gx_gpu *gpu)
{
	if (gpu)
		gpu_free(cuda_of(gpu));
}

static void cuda_info(struct gx_gpu *gpu, char *name, size_t room, unsigned *sms,
		      enum gx_unpack *unpack)
{
	struct cuda_gpu *g = cuda_of(gpu);

	snprintf(name, room, "%s", g->name);
	*sms = cuda_has_kernel(g) ? g->sms : 0;
	if (g->unpack == GX_UNPACK_RESIDENT)
		*sms = gpu->resident_sms;
	*unpack = g->unpack;
}

const struct gx_gpu_ops gx_gpu_cuda_ops = {
	.name = "cuda",
	.open = cuda_open,
	.close = cuda_close,
	.mem_alloc = cuda_mem_alloc,
	.mem_free = cuda_mem_free,
	.mem_alloc_on = cuda_mem_alloc_on,
	.mem_device = cuda_mem_device,
	.addr_reserve = cuda_addr_reserve,
	.addr_free = cuda_addr_free,
	.mem_alloc_at = cuda_mem_alloc_at,
	.mem_reach = cuda_mem_reach,
	.mem_dmabuf = cuda_mem_dmabuf,
	.mem_export = cuda_mem_export,
	.mem_import = cuda_mem_import,
	.mem_unimport = cuda_mem_unimport,
	.host_map = cuda_host_map,
	.host_unmap = cuda_host_unmap,
	.stream_open = cuda_stream_open,
	.stream_close = cuda_stream_close,
	.block_alloc = cuda_block_alloc,
	.block_free = cuda_block_free,
	.unpack = cuda_unpack,
	.copy = cuda_copy,
	.gather = cuda_gather,
	.call = cuda_call,
	.reap = cuda_reap,
	.fault = cuda_fault,
	.flag_alloc = cuda_flag_alloc,
	.flag_free = cuda_flag_free,
	.stream_mark = cuda_stream_mark,
	.info = cuda_info,
};
