/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves from view to view beside a contiguous copy of as many bytes. usage: views cpu [BYTES]: one core,
 * memcpy, and a bare loop of memcpy() over the same runs; views cuda [SMS]: a GPU, its unpack kernel on as
 * many SMs. Medians of 21 rounds, in which the rivals take turns. What was moved is compared once.
 */
#include "copy/dma.h"
#include "list/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 21

static char *src, *dst, *lin;
static uint32_t rows[1 << 20], order[1 << 20];

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint64_t median(uint64_t ns[ROUNDS])
{
	qsort(ns, ROUNDS, sizeof(*ns), by_size);
	return ns[ROUNDS / 2];
}

static struct view view_of(struct gx_view w)
{
	char why[VIEW_WHY_MAX];
	struct view v;

	if (view_take(&w, false, &v, why)) {
		fprintf(stderr, "%s\n", why);
		exit(1);
	}
	return v;
}

/* ---- One core ---- */

/* Neither end's index costs anything: the places are in arrays. */
static void bare(char *const to[], char *const from[], uint64_t n, uint64_t run_b)
{
	for (uint64_t i = 0; i < n; i++)
		gx_copy(to[i], from[i], run_b);
}

static void cpu_case(const char *name, const struct view *to, const struct view *from,
		     uint64_t run_b)
{
	uint64_t ns[3][ROUNDS], n = to->len / run_b;
	double mid[3];
	char **places[2] = {malloc(n * sizeof(char *)), malloc(n * sizeof(char *))};
	struct view_at t, f;

	view_at_init(&t, to, dst, 0);
	view_at_init(&f, from, src, 0);
	for (uint64_t i = 0; i < n; i++) {
		uint32_t len = (uint32_t)run_b;

		places[0][i] = view_find(&t, i * run_b, &len);
		places[1][i] = view_find(&f, i * run_b, &len);
	}
	for (unsigned k = 0; k < ROUNDS; k++) {
		uint64_t at[4] = {gx_now_ns()};

		memcpy(lin, src, to->len);
		at[1] = gx_now_ns();
		bare(places[0], places[1], n, run_b);
		at[2] = gx_now_ns();
		view_at_init(&t, to, dst, 0);
		view_at_init(&f, from, src, 0);
		view_move(&t, &f, 0, to->len);
		at[3] = gx_now_ns();
		for (unsigned i = 0; i < 3; i++)
			ns[i][k] = at[i + 1] - at[i];
	}
	for (unsigned i = 0; i < 3; i++)
		mid[i] = (double)median(ns[i]);
	printf("%-20s %5llu %8.2f GB/s, of memcpy %.2f, of the bare loop %.2f\n", name,
	       (unsigned long long)run_b, (double)to->len / mid[2], mid[0] / mid[2],
	       mid[1] / mid[2]);
	free(places[0]);
	free(places[1]);
}

static int cpu_run(uint64_t bytes)
{
	static const uint64_t runs[] = {16, 64, 128, 256, 576, 656};

	src = aligned_alloc(4096, 2 * bytes + 4096);
	dst = aligned_alloc(4096, 2 * bytes + 4096);
	lin = aligned_alloc(4096, bytes + 4096);
	memset(src, 1, 2 * bytes);
	memset(dst, 2, 2 * bytes);
	memset(lin, 3, bytes);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(runs); i++) {
		uint64_t b = runs[i], n = GX_MIN(bytes / b, 1ull << 20) / 128 * 128;
		int64_t s = (int64_t)b;
		struct view plain, by_head, by_token, some, packed;

		for (uint32_t k = 0; k < n; k++) {
			rows[k] = k;
			order[k] = (uint32_t)((k * 7919ull) % n);
		}
		view_plain(&plain, n * b);
		by_token =
			view_of((struct gx_view){.run_b = b,
						 .dim = {{n / 128, 128 * s}, {16, 8 * s}, {8, s}},
						 .nr_dims = 3});
		by_head =
			view_of((struct gx_view){.run_b = b,
						 .dim = {{n / 128, 128 * s}, {16, s}, {8, 16 * s}},
						 .nr_dims = 3});
		packed = view_of((struct gx_view){.run_b = b, .dim = {{n, 2 * s}}, .nr_dims = 1});
		some = view_of((struct gx_view){
			.run_b = b, .rows = order, .nr_rows = (uint32_t)n, .row_b = b});
		cpu_case("tokens to heads", &by_head, &by_token, b);
		cpu_case("gather", &plain, &packed, b);
		cpu_case("scatter", &packed, &plain, b);
		cpu_case("rows, gather", &plain, &some, b);
		cpu_case("rows, scatter", &some, &plain, b);
		cpu_case("rows to rows", &some, &some, b);
	}
	return 0;
}

/* ---- A GPU ---- */

static void until(struct dma *d, struct dma_ticket t)
{
	while (!dma_done(d, t) && !dma_err(d))
		dma_reap(d, gx_now_ns());
	if (dma_err(d)) {
		fprintf(stderr, "the GPU failed: %s\n", gx_gpu_why());
		exit(1);
	}
}

static void end_set(struct gx_move_end *e, const struct view *v, const char *base)
{
	*e = (struct gx_move_end){.base = (uintptr_t)base,
				  .run_b = v->run_b ? v->run_b : v->len,
				  .rows = v->rows,
				  .row_b = v->row_b};
	for (unsigned i = 0; i < GX_MOVE_DIMS; i++) {
		e->dim[i].count = v->dim[i].count;
		e->dim[i].stride_b = v->dim[i].stride_b;
	}
}

static void moves_do(struct dma *d, const struct gx_move *whole)
{
	struct gx_move m = *whole;
	struct dma_ticket t;

	while (m.nr) {
		uint32_t n = dma_move(d, &m, gx_now_ns(), &t);

		if (!n)
			dma_reap(d, gx_now_ns());
		m.first += n;
		m.nr -= n;
	}
	until(d, t);
}

static void move_check(struct gx_gpu *gpu, const struct view *to, const struct view *from,
		       const char *in, const char *out, uint64_t run_b)
{
	struct view_at t, f;

	view_at_init(&t, to, (char *)(uintptr_t)out, 0);
	view_at_init(&f, from, (char *)(uintptr_t)in, 0);
	for (uint64_t i = 0; i < to->len; i += run_b) {
		uint32_t len = (uint32_t)run_b;
		const char *a = view_find(&t, i, &len), *b = view_find(&f, i, &len);

		if (memcmp(a, b, run_b)) {
			fprintf(stderr, "%s: byte %llu of the view is wrong\n", gpu->name,
				(unsigned long long)i);
			exit(1);
		}
	}
}

/* @host: what lies at @from_mem and, afterwards, at @to_mem. */
static void gpu_case(struct gx_gpu *gpu, struct dma *d, struct dma *plain, const char *name,
		     const struct view *to, const struct view *from, char *to_mem, char *from_mem,
		     char *host[2], uint64_t room, uint64_t run_b)
{
	struct gx_move m = {.piece_b = run_b, .nr = (uint32_t)(to->len / run_b)};
	uint64_t ns[2][ROUNDS];
	double contiguous, views;
	struct dma_ticket t;

	end_set(&m.src, from, from_mem);
	end_set(&m.dst, to, to_mem);
	for (unsigned k = 0; k < ROUNDS; k++) {
		uint64_t at[3] = {gx_now_ns()};

		if (!dma_copy(plain, to_mem, from_mem, to->len, 0, at[0], &t))
			exit(1);
		dma_kick(plain, at[0]);
		until(plain, t);
		at[1] = gx_now_ns();
		moves_do(d, &m);
		at[2] = gx_now_ns();
		ns[0][k] = at[1] - at[0];
		ns[1][k] = at[2] - at[1];
	}
	if (!dma_copy(plain, host[1], to_mem, room, 0, gx_now_ns(), &t))
		exit(1);
	dma_kick(plain, gx_now_ns());
	until(plain, t);
	move_check(gpu, to, from, host[0], host[1], run_b);
	contiguous = (double)median(ns[0]);
	views = (double)median(ns[1]);
	printf("%-28s %7.3f ms, %7.1f GB/s; contiguous %7.3f ms; ratio %.2f\n", name, views / 1e6,
	       (double)to->len / views, contiguous / 1e6, contiguous / views);
}

static int gpu_run(unsigned sms)
{
	const uint64_t row_b = 576, n = 168000, pages = 368, room = 128ull << 20;
	struct gx_gpu_cfg cfg = {.unpack = GX_UNPACK_KERNEL, .sms = sms};
	struct view some, plain, by_head, by_token;
	struct dma *d = NULL, *copies = NULL;
	struct dma_ticket t;
	struct gx_gpu *gpu;
	char *mem[2], *host[2];
	void *ptr;

	if (gx_gpu_cuda_ops.open(&cfg, &gpu)) {
		fprintf(stderr, "%s\n", gx_gpu_why());
		return 77;
	}
	for (unsigned i = 0; i < 2; i++) {
		host[i] = gpu->ops->pinned_alloc(gpu, room);
		if (!host[i] || gpu->mem->alloc(gpu, room, &ptr))
			return 1;
		mem[i] = ptr;
	}
	for (uint64_t i = 0; i < room / 8; i++)
		((uint64_t *)host[0])[i] = i * 0x9e3779b97f4a7c15ull;
	if (dma_open(gpu, DMA_AUTO, 5000000000ull, &d) ||
	    dma_open(gpu, DMA_KERNEL, 5000000000ull, &copies) ||
	    !dma_copy(copies, mem[0], host[0], room, 0, gx_now_ns(), &t))
		return 1;
	dma_kick(copies, gx_now_ns());
	until(copies, t);
	for (uint32_t i = 0; i < n; i++)
		order[i] = (uint32_t)(i * 7919ull % n);
	some = view_of((struct gx_view){
		.run_b = row_b, .rows = order, .nr_rows = (uint32_t)n, .row_b = row_b});
	view_plain(&plain, n * row_b);
	by_token = view_of((struct gx_view){
		.run_b = 256, .dim = {{pages * 8, 32768}, {16, 2048}, {8, 256}}, .nr_dims = 3});
	by_head = view_of(
		(struct gx_view){.run_b = 256,
				 .dim = {{pages * 2, 131072}, {4, 4096}, {16, 256}, {8, 16384}},
				 .nr_dims = 4});
	printf("%s, %u SMs\n", gpu->name, gpu->unpack_sms);
	gpu_case(gpu, d, copies, "rows of 576, GPU to GPU", &plain, &some, mem[1], mem[0], host,
		 room, row_b);
	gpu_case(gpu, d, copies, "the same, scattered", &some, &plain, mem[1], mem[0], host, room,
		 row_b);
	gpu_case(gpu, d, copies, "NHD to HND, runs of 256", &by_head, &by_token, mem[1], mem[0],
		 host, room, 256);
	gpu_case(gpu, d, copies, "rows of 576, pinned to GPU", &plain, &some, mem[1], host[0], host,
		 room, row_b);
	dma_close(d);
	dma_close(copies);
	for (unsigned i = 0; i < 2; i++) {
		gpu->mem->free(gpu, mem[i], room);
		gpu->ops->pinned_free(gpu, host[i]);
	}
	gpu->ops->close(gpu);
	return 0;
}

int main(int argc, char *argv[])
{
	if (argc > 1 && !strcmp(argv[1], "cpu"))
		return cpu_run(argc > 2 ? strtoull(argv[2], NULL, 0) : 64u << 20);
	if (argc > 1 && !strcmp(argv[1], "cuda"))
		return gpu_run(argc > 2 ? (unsigned)atoi(argv[2]) : 0);
	fprintf(stderr, "usage: views cpu [BYTES] | cuda [SMS]\n");
	return 2;
}
