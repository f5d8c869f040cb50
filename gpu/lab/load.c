// SPDX-License-Identifier: Apache-2.0
/*
 * Patterns and loads (include/gxlab/load.h): by the kernels of load.cu, and by cuBLAS where it is
 * found. A load has its own stream, of the lowest priority, and reports its end by a word in pinned
 * memory. The CPU backend has patterns and no loads.
 */
#include "lab/code.h"
#include "lab/cublas_abi.h"
#include "lab/load_core.h"

#include <gxlab/load.h>

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOAD_OUT_MAX   64 /* runs queued */
#define LOAD_CHECKS    64 /* elements compared */
#define LOAD_QUERY_NS  1000000
#define LOAD_DRAIN_NS  20000000000ull
#define LOAD_GROUP_B   ((size_t)1 << 30) /* of attention's score matrices at once */
#define LOAD_GRID_FILL 4		 /* thread blocks an SM of a fill */

struct gx_load {
	struct gx_load_opts opts;
	struct cuda_gpu *g;
	struct cuda_lost lost; /* for a load that was closed and has not finished */
	struct lab_code *code;
	struct CUstream_st *stm;
	struct cublas_api blas;
	struct cublasContext *handle;
	void *lib;	     /* stays loaded: it has state of its own in the driver */
	uint8_t *mem;	     /* one allocation: a, b, c; attention: q, k, v, out, scores */
	size_t len, part[5]; /* where each begins */
	uint32_t group;	     /* attention: heads at once */
	uint32_t *flag;	     /* pinned: number of the last run that ended */
	uint32_t posted;
	uint64_t query_ns;
	bool faulted;
	int version;
};

/* The pinned words of all GPUs, and their streams ctl. */
static pthread_mutex_t word_lock = PTHREAD_MUTEX_INITIALIZER;

static int load_fail(int err, const char *why)
{
	gx_gpu_why_set("%s", why);
	return err;
}

/* ---- code ---- */

static int code_launch(struct lab_code *c, unsigned fn, struct gx_load_args *a, unsigned grid_x,
		       unsigned grid_y, struct CUstream_st *stm)
{
	void *params[] = {a};

	a->grid_x = grid_x;
	a->grid_y = grid_y;
	return CUDA_TRY(cuLaunchKernel, c->fn[fn], grid_x, grid_y, 1, GX_LOAD_THREADS, 1, 1, 0, stm,
			params, NULL);
}

/* As many thread blocks as fill the GPU, and no more than there are words. */
static unsigned code_grid(const struct lab_code *c, uint64_t n)
{
	uint64_t need = (n + GX_LOAD_THREADS - 1) / GX_LOAD_THREADS;

	return (unsigned)GX_MAX(GX_MIN(need, c->g->all_sms * LOAD_GRID_FILL), 1);
}

/* ---- patterns ---- */

uint64_t gx_pattern_word(uint64_t seed, uint64_t i)
{
	return gx_load_word(seed, i);
}

static int pattern_run(struct gx_engine *e, unsigned fn, struct gx_load_args *a, uint64_t *wrong_b)
{
	struct lab_code *c = NULL;
	struct cuda_prev prev;
	int ret = lab_code_get(e, &c);

	if (ret)
		return ret;
	pthread_mutex_lock(&word_lock);
	a->wrong = c->word;
	*a->wrong = 0;
	prev = cuda_enter(c->g);
	ret = code_launch(c, fn, a, code_grid(c, a->n), 1, c->g->ctl);
	if (!ret)
		ret = CUDA_TRY(cuStreamSynchronize, c->g->ctl);
	cuda_leave(c->g, prev);
	*wrong_b = *(volatile uint64_t *)a->wrong;
	pthread_mutex_unlock(&word_lock);
	return ret ? -EIO : 0;
}

static int pattern_check(size_t len)
{
	return len % 8 ? load_fail(-EINVAL, "pattern: the length must be a multiple of 8") : 0;
}

int gx_pattern_fill(struct gx_engine *e, void *dst, size_t len, uint64_t seed)
{
	struct gx_load_args a = {.mem = dst, .n = len / 8, .seed = seed};
	uint64_t unused;
	int ret = pattern_check(len);

	if (ret || gx_engine_gpu(e)->device >= 0)
		return ret ? ret : pattern_run(e, LOAD_FILL, &a, &unused);
	for (uint64_t i = 0; i < a.n; i++)
		((uint64_t *)dst)[i] = gx_load_word(seed, i);
	return 0;
}

int gx_pattern_diff(struct gx_engine *e, const void *src, size_t len, uint64_t seed,
		    uint64_t *wrong_b)
{
	struct gx_load_args a = {.mem = (void *)(uintptr_t)src, .n = len / 8, .seed = seed};
	int ret = pattern_check(len);

	if (ret || gx_engine_gpu(e)->device >= 0)
		return ret ? ret : pattern_run(e, LOAD_DIFF, &a, wrong_b);
	*wrong_b = 0;
	for (uint64_t i = 0; i < a.n; i++)
		*wrong_b += gx_load_bytes_wrong(((const uint64_t *)src)[i], gx_load_word(seed, i));
	return 0;
}

/* ---- cuBLAS ---- */

static void *blas_dlopen(const char *path)
{
	static const char *const name[] = {"libcublas.so.13", "libcublas.so.12"};
	char file[1024];
	void *lib;

	for (const char *at = path; at && *at; at += strcspn(at, ":"), at += *at == ':')
		for (unsigned i = 0; i < GX_ARRAY_SIZE(name); i++) {
			snprintf(file, sizeof(file), "%.*s/%s", (int)strcspn(at, ":"), at, name[i]);
			lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
			if (lib)
				return lib;
		}
	for (unsigned i = 0; i < GX_ARRAY_SIZE(name); i++) {
		lib = dlopen(name[i], RTLD_NOW | RTLD_LOCAL);
		if (lib)
			return lib;
	}
	return NULL;
}

static int blas_open(struct gx_load *l)
{
	l->lib = blas_dlopen(l->opts.lib_path);
	if (!l->lib) {
		gx_gpu_why_set("no cuBLAS: %s; name its folder (gx_load_opts.lib_path)", dlerror());
		return -EOPNOTSUPP;
	}
#define BLAS_SYMBOL(fn, args)                                                                      \
	l->blas.fn = (int(*) args)dlsym(l->lib, #fn);                                              \
	if (!l->blas.fn)                                                                           \
		return load_fail(-EOPNOTSUPP, "this libcublas has no " #fn);
	GX_CUBLAS_API(BLAS_SYMBOL)
#undef BLAS_SYMBOL
	if (l->blas.cublasCreate_v2(&l->handle) || l->blas.cublasSetStream_v2(l->handle, l->stm) ||
	    l->blas.cublasGetVersion_v2(l->handle, &l->version))
		return load_fail(-EIO, "cuBLAS does not start on this GPU");
	return 0;
}

struct blas_mat {
	const void *mem;
	bool turned;
	uint32_t ld;
	long long stride;
};

/* C[i] = alpha op(A[i]) op(B[i]), column-major bf16, summed in fp32. */
static int blas_gemm(struct gx_load *l, uint32_t m, uint32_t n, uint32_t k, float alpha,
		     struct blas_mat a, struct blas_mat b, struct blas_mat c, uint32_t count)
{
	const float zero = 0;
	int res = l->blas.cublasGemmStridedBatchedEx(
		l->handle, a.turned ? GX_CUBLAS_OP_T : GX_CUBLAS_OP_N,
		b.turned ? GX_CUBLAS_OP_T : GX_CUBLAS_OP_N, (int)m, (int)n, (int)k, &alpha, a.mem,
		GX_CUBLAS_R_16BF, (int)a.ld, a.stride, b.mem, GX_CUBLAS_R_16BF, (int)b.ld, b.stride,
		&zero, (void *)(uintptr_t)c.mem, GX_CUBLAS_R_16BF, (int)c.ld, c.stride, (int)count,
		GX_CUBLAS_COMPUTE_32F, GX_CUBLAS_GEMM_DEFAULT);

	if (!res)
		return 0;
	gx_gpu_why_set("cublasGemmStridedBatchedEx: status %d", res);
	return -EIO;
}

/* ---- the three loads ---- */

static int gemm_run(struct gx_load *l)
{
	struct gx_load_args a = {
		.a = l->mem, .b = l->mem + l->part[1], .c = l->mem + l->part[2], .n = l->opts.n};

	return code_launch(l->code, LOAD_GEMM, &a, l->opts.grid_x, l->opts.grid_y, l->stm);
}

static int cublas_run(struct gx_load *l)
{
	uint32_t n = l->opts.n;
	struct blas_mat a = {l->mem, false, n, 0}, b = {l->mem + l->part[1], false, n, 0},
			c = {l->mem + l->part[2], false, n, 0};

	return blas_gemm(l, n, n, n, 1, a, b, c, 1);
}

static float attention_scale(const struct gx_load *l)
{
	return 1.0f / sqrtf((float)l->opts.head_dim);
}

/* Scores S = scale Q K', P = softmax(S), O = P V for a group of heads; all row-major. */
static int attention_group(struct gx_load *l, uint32_t first, uint32_t count)
{
	uint32_t t = l->opts.tokens, d = l->opts.head_dim;
	size_t at = (size_t)first * t * d * 2;
	long long head = (long long)t * d, score = (long long)t * t;
	struct blas_mat q = {l->mem + at, false, d, head},
			k = {l->mem + l->part[1] + at, true, d, head},
			v = {l->mem + l->part[2] + at, false, d, head},
			o = {l->mem + l->part[3] + at, false, d, head},
			s = {l->mem + l->part[4], false, t, score};
	struct gx_load_args a = {.mem = l->mem + l->part[4], .n = t};
	int ret = blas_gemm(l, t, t, d, attention_scale(l), k, q, s, count);

	if (!ret)
		ret = code_launch(l->code, LOAD_SOFTMAX, &a, count * t, 1, l->stm);
	return ret ? ret : blas_gemm(l, d, t, t, 1, v, s, o, count);
}

static int attention_run(struct gx_load *l)
{
	uint32_t all = l->opts.batch * l->opts.heads;
	int ret = 0;

	for (uint32_t i = 0; i < all && !ret; i += l->group)
		ret = attention_group(l, i, GX_MIN(l->group, all - i));
	return ret;
}

static int load_queue(struct gx_load *l)
{
	switch (l->opts.kind) {
	case GX_LOAD_GEMM:
		return gemm_run(l);
	case GX_LOAD_CUBLAS:
		return cublas_run(l);
	default:
		return attention_run(l);
	}
}

/* ---- open and close ---- */

static int opts_check(struct gx_load_opts *o)
{
	uint32_t tiles = o->n / GX_LOAD_TILE;

	if (o->kind > GX_LOAD_ATTENTION)
		return load_fail(-EINVAL, "load: an option is out of range");
	if (o->kind == GX_LOAD_ATTENTION)
		return !o->batch || !o->heads || !o->head_dim || o->head_dim % 8 || !o->tokens ||
				       o->tokens % GX_LOAD_COLS_STEP ||
				       o->tokens > GX_LOAD_COLS_MAX ||
				       (uint64_t)o->batch * o->heads > 65536 || o->head_dim > 1024
			       ? load_fail(
					 -EINVAL,
					 "attention: tokens are a multiple of 512 up to 8192, the "
					 "head size is one of 8 up to 1024, batch and heads are at "
					 "least 1, at most 65536 together")
			       : 0;
	if (o->kind == GX_LOAD_CUBLAS)
		return !o->n || o->n % 8 || o->n > 65536
			       ? load_fail(-EINVAL, "cuBLAS: n is a multiple of 8 up to 65536")
			       : 0;
	if (!o->n || o->n % GX_LOAD_TILE || o->n > 65536)
		return load_fail(-EINVAL, "GEMM: n is a multiple of 64 up to 65536");
	o->grid_x = o->grid_x ? o->grid_x : tiles;
	o->grid_y = o->grid_y ? o->grid_y : tiles;
	if (o->grid_x > tiles || o->grid_y > tiles) {
		gx_gpu_why_set("GEMM: n = %u has %u x %u tiles, a grid of %u x %u is more", o->n,
			       tiles, tiles, o->grid_x, o->grid_y);
		return -EINVAL;
	}
	return 0;
}

static void load_layout(struct gx_load *l)
{
	const struct gx_load_opts *o = &l->opts;
	size_t each = (size_t)o->n * o->n * (o->kind == GX_LOAD_GEMM ? 4 : 2);
	size_t score = (size_t)o->tokens * o->tokens * 2;
	unsigned nr = 3;

	if (o->kind == GX_LOAD_ATTENTION) {
		nr = 4;
		each = (size_t)o->batch * o->heads * o->tokens * o->head_dim * 2;
		l->group = (uint32_t)GX_MAX(LOAD_GROUP_B / score, 1);
		l->group = GX_MIN(l->group, o->batch * o->heads);
	}
	for (unsigned i = 0; i < 5; i++)
		l->part[i] = i * GX_ALIGN_UP(each, 4096);
	l->len = l->part[nr] + (nr == 4 ? l->group * score : 0);
}

static uint64_t part_values(const struct gx_load *l)
{
	const struct gx_load_opts *o = &l->opts;

	if (o->kind == GX_LOAD_ATTENTION)
		return (uint64_t)o->batch * o->heads * o->tokens * o->head_dim;
	return (uint64_t)o->n * o->n;
}

/* Matrix i gets the values of seed i + 1; results stay zero. */
static int load_fill(struct gx_load *l)
{
	unsigned nr = l->opts.kind == GX_LOAD_ATTENTION ? 3 : 2;
	unsigned fn = l->opts.kind == GX_LOAD_GEMM ? LOAD_VALUES32 : LOAD_VALUES16;
	int ret = 0;

	for (unsigned i = 0; i < nr && !ret; i++) {
		struct gx_load_args a = {
			.mem = l->mem + l->part[i], .n = part_values(l), .seed = i + 1};

		ret = code_launch(l->code, fn, &a, code_grid(l->code, a.n), 1, l->stm);
	}
	return ret;
}

static int load_start(struct gx_load *l)
{
	int least = 0, greatest = 0, ret;

	cu.cuCtxGetStreamPriorityRange(&least, &greatest);
	ret = CUDA_TRY(cuStreamCreateWithPriority, &l->stm, GX_CU_STREAM_NON_BLOCKING, least);
	if (!ret && l->opts.kind != GX_LOAD_GEMM)
		ret = blas_open(l);
	if (!ret)
		ret = load_fill(l);
	if (!ret)
		ret = load_queue(l);
	return ret ? ret : CUDA_TRY(cuStreamSynchronize, l->stm);
}

static void load_free(struct gx_load *l)
{
	struct cuda_prev prev = cuda_enter(l->g);

	if (l->handle)
		l->blas.cublasDestroy_v2(l->handle);
	if (l->stm)
		cu.cuStreamDestroy_v2(l->stm);
	cuda_leave(l->g, prev);
	gx_gpu_flag_free(&l->g->gpu, l->flag);
	cuda_mem_ops.free(&l->g->gpu, l->mem, l->len);
	free(l);
}

static void load_ended_late(struct cuda_lost *lost)
{
	load_free(GX_CONTAINER_OF(lost, struct gx_load, lost));
}

void gx_load_close(struct gx_load *l)
{
	struct cuda_prev prev;
	bool busy;

	if (!l)
		return;
	prev = cuda_enter(l->g);
	busy = l->stm && cuda_is_busy(cuda_drain(l->stm, gx_now_ns() + LOAD_DRAIN_NS));
	cuda_leave(l->g, prev);
	if (!busy) {
		load_free(l);
		return;
	}
	l->lost = (struct cuda_lost){.g = l->g, .stm = l->stm, .end = load_ended_late};
	cuda_lose(&l->lost, "a load");
}

static int load_memory(struct gx_load *l)
{
	void *mem = NULL;
	int ret;

	load_layout(l);
	ret = cuda_mem_ops.alloc(&l->g->gpu, l->len, &mem);
	if (ret)
		return ret;
	l->mem = mem;
	l->flag = gx_gpu_flag_alloc(&l->g->gpu, 1);
	return l->flag ? 0 : -ENOMEM;
}

int gx_load_open(struct gx_engine *e, const struct gx_load_opts *opts, struct gx_load **out)
{
	struct gx_load_opts o;
	struct cuda_prev prev;
	struct gx_load *l;
	int ret = gx_gpu_take("gx_load_opts", &o, sizeof(o), opts);

	if (!ret)
		ret = opts_check(&o);
	if (ret)
		return ret;
	if (gx_engine_gpu(e)->device < 0)
		return load_fail(-EOPNOTSUPP, "a load needs a GPU");
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->opts = o;
	l->g = cuda_of(gx_engine_gpu(e));
	ret = lab_code_get(e, &l->code);
	if (!ret)
		ret = load_memory(l);
	if (!ret) {
		prev = cuda_enter(l->g);
		ret = load_start(l);
		cuda_leave(l->g, prev);
	}
	if (ret)
		gx_load_close(l);
	else
		*out = l;
	return ret == -ENODEV ? -EIO : ret;
}

static void info_fill(const struct gx_load *l, struct gx_load_info *info)
{
	const struct gx_load_opts *o = &l->opts;
	char lib[48];

	snprintf(lib, sizeof(lib), "cuBLAS %d", l->version);
	if (o->kind == GX_LOAD_GEMM) {
		info->blocks = o->grid_x * o->grid_y;
		info->flop = 2.0 * o->n * info->blocks * GX_LOAD_TILE * GX_LOAD_TILE;
		snprintf(info->name, sizeof(info->name),
			 "own fp32 GEMM, %ux%u thread blocks, each a tile of 64 x 64 of %u x %u",
			 o->grid_x, o->grid_y, o->n, o->n);
	} else if (o->kind == GX_LOAD_CUBLAS) {
		info->flop = 2.0 * o->n * o->n * o->n;
		snprintf(info->name, sizeof(info->name), "%s bf16 GEMM, %u x %u", lib, o->n, o->n);
	} else {
		info->flop = 4.0 * o->batch * o->heads * o->tokens * o->tokens * o->head_dim;
		snprintf(info->name, sizeof(info->name),
			 "attention in bf16, not fused: batched %s products and an own softmax; "
			 "batch %u, heads %u, tokens %u, head size %u",
			 lib, o->batch, o->heads, o->tokens, o->head_dim);
	}
}

int gx_load_info(const struct gx_load *l, struct gx_load_info *user)
{
	struct gx_load_info info = {0};

	info_fill(l, &info);
	return gx_gpu_give("gx_load_info", &info, sizeof(info), user);
}

/* ---- running ---- */

static uint32_t load_ended(const struct gx_load *l)
{
	/* Acquire: pairs with the GPU's write after the run. */
	return __atomic_load_n(l->flag, __ATOMIC_ACQUIRE);
}

/* Queue the run's number for the CPU, after all work before. */
static int load_flag(struct gx_load *l, uint32_t value)
{
	unsigned long long ptr = cuda_ptr(l->flag);
	void *params[] = {&ptr, &value};

	if (l->g->write_value)
		return CUDA_TRY(cuStreamWriteValue32_v2, l->stm, ptr, value,
				GX_CU_WRITE_VALUE_DEFAULT);
	return CUDA_TRY(cuLaunchKernel, l->g->fn_flag, 1, 1, 1, 1, 1, 1, 0, l->stm, params, NULL);
}

int gx_load_post(struct gx_load *l)
{
	struct cuda_prev prev;
	int ret;

	if (l->faulted)
		return load_fail(-EIO, "the load has failed before");
	if (l->posted - load_ended(l) >= LOAD_OUT_MAX)
		return -EAGAIN;
	prev = cuda_enter(l->g);
	ret = load_queue(l);
	if (!ret)
		ret = load_flag(l, l->posted + 1);
	cuda_leave(l->g, prev);
	if (!ret)
		l->posted++;
	l->faulted = ret != 0;
	return ret ? -EIO : 0;
}

int gx_load_done(struct gx_load *l, uint64_t *nr)
{
	uint64_t now_ns = gx_now_ns();
	struct cuda_prev prev;
	unsigned res;

	*nr = load_ended(l);
	if (*nr == l->posted || now_ns - l->query_ns < LOAD_QUERY_NS)
		return l->faulted ? load_fail(-EIO, "the load has failed before") : 0;
	l->query_ns = now_ns;
	prev = cuda_enter(l->g);
	res = cu.cuStreamQuery(l->stm);
	cuda_leave(l->g, prev);
	l->faulted = res && !cuda_is_busy(res);
	return l->faulted ? cuda_try(res, "the load stopped"), -EIO : 0;
}

/* ---- checks ---- */

static float bf16_get(uint16_t b)
{
	uint32_t u = (uint32_t)b << 16;
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

/* Element @i of the result, over a pinned word. */
static int result_get(struct gx_load *l, unsigned part, uint64_t i, double *out)
{
	unsigned size = l->opts.kind == GX_LOAD_GEMM ? 4 : 2;
	uint64_t *word = l->code->word;
	uint16_t half;
	float f;
	int ret;

	pthread_mutex_lock(&word_lock);
	ret = CUDA_TRY(cuMemcpyAsync, cuda_ptr(word), cuda_ptr(l->mem + l->part[part] + i * size),
		       size, l->stm);
	if (!ret)
		ret = CUDA_TRY(cuStreamSynchronize, l->stm);
	memcpy(&half, word, sizeof(half));
	memcpy(&f, word, sizeof(f));
	pthread_mutex_unlock(&word_lock);
	*out = size == 4 ? f : bf16_get(half);
	return ret ? -EIO : 0;
}

/* Row @r, column @col of the product; cuBLAS's matrices are column-major. */
static double product_want(const struct gx_load *l, uint64_t r, uint64_t col)
{
	bool own = l->opts.kind == GX_LOAD_GEMM;
	uint64_t n = l->opts.n;
	double sum = 0;

	for (uint64_t k = 0; k < n; k++)
		sum += (double)gx_load_value(1, own ? r * n + k : k * n + r) *
		       gx_load_value(2, own ? k * n + col : col * n + k);
	return sum;
}

static double attention_want(const struct gx_load *l, uint64_t head, uint64_t token, uint64_t col)
{
	uint64_t t = l->opts.tokens, d = l->opts.head_dim, base = head * t * d;
	double weight, total = 0, sum = 0;

	for (uint64_t j = 0; j < t; j++) {
		double dot = 0;

		for (uint64_t i = 0; i < d; i++)
			dot += (double)gx_load_value(1, base + token * d + i) *
			       gx_load_value(2, base + j * d + i);
		weight = exp(dot * attention_scale(l));
		total += weight;
		sum += weight * gx_load_value(3, base + j * d + col);
	}
	return sum / total;
}

/* One element, chosen by @i: its value, the value that it should have, and how far apart the two
 * may be. */
static int check_one(struct gx_load *l, uint32_t i, double *got, double *want, double *room)
{
	const struct gx_load_opts *o = &l->opts;
	uint64_t rnd = gx_load_word(99, i), r, col, head;

	if (o->kind == GX_LOAD_ATTENTION) {
		head = rnd % (o->batch * o->heads);
		r = (rnd >> 16) % o->tokens;
		col = (rnd >> 40) % o->head_dim;
		*want = attention_want(l, head, r, col);
		/* Scores, weights and results are rounded to 8 bits. */
		*room = 5e-4 + fabs(*want) / 64;
		return result_get(l, 3, (head * o->tokens + r) * o->head_dim + col, got);
	}
	if (o->kind == GX_LOAD_CUBLAS) {
		r = rnd % o->n;
		col = (rnd >> 32) % o->n;
		*want = product_want(l, r, col);
		*room = 0.05 + fabs(*want) / 128;
		return result_get(l, 2, col * o->n + r, got);
	}
	/* Every fourth element is one that no thread block makes, if there are such. */
	r = i % 4 ? rnd % (o->grid_y * GX_LOAD_TILE) : o->n - 1 - rnd % GX_LOAD_TILE;
	col = i % 4 ? (rnd >> 32) % (o->grid_x * GX_LOAD_TILE)
		    : o->n - 1 - (rnd >> 32) % GX_LOAD_TILE;
	*want = r < o->grid_y * GX_LOAD_TILE && col < o->grid_x * GX_LOAD_TILE
			? product_want(l, r, col)
			: 0;
	*room = 0; /* sums of multiples of 1/64 are exact */
	return result_get(l, 2, r * o->n + col, got);
}

int gx_load_check(struct gx_load *l, struct gx_load_check *user)
{
	struct gx_load_check check = {0};
	double got = 0, want = 0, room = 0, far;
	struct cuda_prev prev;
	int ret = 0;

	if (l->posted != load_ended(l))
		return -EBUSY;
	prev = cuda_enter(l->g);
	for (uint32_t i = 0; i < LOAD_CHECKS && !ret; i++) {
		ret = check_one(l, i, &got, &want, &room);
		far = fabs(got - want);
		check.nr++;
		check.wrong += !(far <= room);
		check.worst = GX_MAX(check.worst, far);
	}
	cuda_leave(l->g, prev);
	return ret ? ret : gx_gpu_give("gx_load_check", &check, sizeof(check), user);
}
