/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of GPUs in the NCCL harness, and its cases. The GPUs are those of fake/fake_cuda.c, whose
 * memory the CPU reads and writes too.
 */
#include "nccl_rank.h"

#include "cuda_abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KIB	 1024u
#define MIB	 (1024u * KIB)
#define GRANULE	 (2u * MIB) /* of mapped memory */
#define ERROR_MS 30000

/* ---- The driver ---- */

static struct {
	struct cuda_api cu;
	void (*die)(int dead), (*hold)(int held);
	struct CUctx_st *ctx[2];
} gpu;

void gpu_start(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	CHECK(lib, "%s", dlerror());
#define GPU_SYMBOL(name, args) *(void **)&gpu.cu.name = dlsym(lib, #name);
	GX_CUDA_API(GPU_SYMBOL)
#undef GPU_SYMBOL
	*(void **)&gpu.die = dlsym(lib, "gx_fake_cuda_dead");
	*(void **)&gpu.hold = dlsym(lib, "gx_fake_cuda_hold");
	CHECK(gpu.die && gpu.hold, "the driver is not the fake one");
	CHECK(!gpu.cu.cuInit(0) && !gpu.cu.cuDevicePrimaryCtxRetain(&gpu.ctx[0], 0));
	CHECK(!gpu.cu.cuCtxSetCurrent(gpu.ctx[0]));
}

/* What cuMemCreate makes, as NCCL's own allocator and PyTorch's expandable segments do. */
static void *gpu_map(int device, size_t len)
{
	const struct cuda_mem_prop prop = {.type = GX_CU_ALLOCATION_PINNED,
					   .handle_types = GX_CU_HANDLE_POSIX_FD,
					   .location = {GX_CU_LOCATION_DEVICE, device}};
	unsigned long long handle, at = 0;

	CHECK(!gpu.cu.cuMemCreate(&handle, len, (const void *)&prop, 0));
	CHECK(!gpu.cu.cuMemAddressReserve(&at, len, 0, 0, 0));
	CHECK(!gpu.cu.cuMemMap(at, len, 0, handle, 0) && !gpu.cu.cuMemRelease(handle));
	return (void *)(uintptr_t)at;
}

/* Every other allocation is mapped memory. */
void *gpu_alloc(size_t len, bool *mapped)
{
	static _Atomic unsigned nr;
	unsigned long long at = 0;

	CHECK(!gpu.cu.cuCtxSetCurrent(gpu.ctx[0]));
	*mapped = atomic_fetch_add(&nr, 1) % 2;
	if (*mapped)
		return gpu_map(0, (len + GRANULE) / GRANULE * GRANULE);
	CHECK(!gpu.cu.cuMemAlloc_v2(&at, len ? len : 1));
	return (void *)(uintptr_t)at;
}

void gpu_free(void *ptr, size_t len, bool mapped)
{
	unsigned long long at = (uintptr_t)ptr;

	CHECK(!gpu.cu.cuCtxSetCurrent(gpu.ctx[0]));
	len = (len + GRANULE) / GRANULE * GRANULE;
	if (!mapped)
		CHECK(!gpu.cu.cuMemFree_v2(at));
	else
		CHECK(!gpu.cu.cuMemUnmap(at, len) && !gpu.cu.cuMemAddressFree(at, len));
}

/* ---- Sizes ---- */

static unsigned other(const struct rank *r)
{
	return 1 - r->me;
}

/* Between memory of GPUs, and from and to memory of the host. */
static void case_gpu_sizes(struct rank *r)
{
	static const size_t sizes[] = {
		0,	  1,	     7,	      8,   4 * KIB,    16 * KIB, 16 * KIB + 3,
		64 * KIB, 512 * KIB, MIB + 1, MIB, 8 * MIB + 3};
	struct link l;

	rank_link(r, &l, other(r), 0);
	for (unsigned mix = 0; mix < 4; mix++) {
		struct stream s = {.link = &l,
				   .count = 36,
				   .depth = 4,
				   .sizes = sizes,
				   .nr_sizes = sizeof(sizes) / sizeof(sizes[0]),
				   .seed = 100 * mix,
				   .host_out = mix & 1,
				   .host_in = mix & 2};

		rank_stream(r, &s);
		barrier(r);
	}
	rank_unlink(r, &l);
}

/* ---- Registrations ---- */

#define REGS 4

/* Several registrations of one allocation, which overlap. One goes while requests with the others are
 * under way. */
static void case_gpu_regs(struct rank *r)
{
	size_t len = 4 * MIB, part = MIB;
	void *mh[REGS], *req[REGS];
	struct link l;
	struct buf b;
	int size;

	rank_link(r, &l, other(r), 0);
	for (unsigned round = 0; round < 20; round++) {
		buf_open(r, l.send, &b, len);
		for (unsigned i = 0; i < REGS; i++)
			CHECK(!r->net.v12->reg_mr(l.send, b.base + i * 7, len - i * 7,
						  NCCL_PTR_CUDA, &mh[i]));
		for (unsigned i = 0; i < REGS; i++) {
			char *at = b.base + i * part + 21; /* in each registration */
			size_t n = part - 64;

			if (r->me == round % 2) {
				pattern_fill(at, n, round * REGS + i);
				CHECK(!net_isend(&r->net, l.send, at, n, mh[i], &req[i]) && req[i]);
			} else {
				CHECK(!net_irecv(&r->net, l.recv, at, n, mh[i], &req[i]) && req[i]);
			}
		}
		CHECK(!r->net.v12->dereg_mr(l.send, b.mh)); /* nothing is under way with it */
		for (unsigned i = 0; i < REGS; i++) {
			req_wait(r, req[i], &size);
			CHECK(size == (int)(part - 64));
			CHECK(pattern_is(b.base + i * part + 21, part - 64, round * REGS + i));
			CHECK(!r->net.v12->dereg_mr(l.send, mh[i]));
		}
		buf_free(&b);
	}
	barrier(r);
	rank_unlink(r, &l);
}

static void map_open(struct rank *r, struct link *l, struct buf *b, size_t len)
{
	*b = (struct buf){.len = len, .on_gpu = true, .mapped = true};
	b->base = gpu_map(0, (len + GRANULE) / GRANULE * GRANULE);
	CHECK(!r->net.v12->reg_mr(l->send, b->base, len, NCCL_PTR_CUDA, &b->mh));
}

/* Memory goes while copies into it, or out of it, are under way: the GPU touches it no more. */
static void gone_one(struct rank *r, size_t len)
{
	struct link l;
	struct buf b;
	void *req;

	rank_link(r, &l, other(r), 0);
	map_open(r, &l, &b, len);
	memset(b.base, 0, len);
	barrier(r);
	if (r->me == 0) {
		CHECK(!net_irecv(&r->net, l.recv, b.base, len, b.mh, &req) && req);
		for (unsigned i = 0; i < 2000 && !__atomic_load_n(b.base, __ATOMIC_RELAXED); i++)
			usleep(100); /* the other rank may have taken its memory back before */
	} else {
		memset(b.base, 1, len);
		CHECK(!net_isend(&r->net, l.send, b.base, len, b.mh, &req) && req);
		usleep(1000);
	}
	CHECK(!r->net.v12->dereg_mr(l.recv, b.mh));
	CHECK(!mprotect(b.base, len, PROT_NONE));
	usleep(100000); /* for a late copy */
	barrier(r);
	buf_free(&b);
	rank_unlink(r, &l);
	barrier(r);
}

static void case_gpu_dereg(struct rank *r)
{
	for (unsigned i = 0; i < 4; i++)
		gone_one(r, 32 * MIB);
}

/* ---- A kernel that holds the GPU ---- */

/* Nothing of it waits for a kernel: comms of a connection that is there, registrations of both kinds,
 * messages, and their ends; nor for calls of the program that wait for the kernel. So a kernel of
 * NCCL may wait for the messages. */
static void case_gpu_hold(struct rank *r)
{
	static const size_t sizes[] = {8, 4 * KIB, 100 * KIB + 1, MIB, 0};
	struct link first, l;
	struct buf b, host;
	void *mh, *req;

	rank_link(r, &first, other(r), 0);
	map_open(r, &first, &b, MIB); /* of cudaMalloc() it would wait */
	barrier(r);
	gpu.hold(true);
	rank_link(r, &l, other(r), 1);
	buf_open_host(r, l.send, &host, MIB);
	CHECK(!r->net.v12->reg_mr(l.send, b.base + 8, 4096, NCCL_PTR_CUDA, &mh));
	for (unsigned i = 0; i < 20; i++) {
		struct buf *from = i % 2 ? &host : &b, *to = i % 2 ? &b : &host;

		if (r->me == 0)
			CHECK(!net_isend(&r->net, l.send, from->base, sizes[i % 5], from->mh,
					 &req));
		else
			CHECK(!net_irecv(&r->net, l.recv, to->base, MIB, to->mh, &req));
		req_wait(r, req, &(int){0});
	}
	/* A receive that nothing is for */
	CHECK(!net_irecv(&r->net, l.recv, b.base + 8, 4096, mh, &req) && req);
	CHECK(!r->net.v12->dereg_mr(l.recv, mh));
	buf_close(r, l.send, &host);
	CHECK(!r->net.v12->dereg_mr(l.send, b.mh));
	rank_unlink(r, &l);
	gpu.hold(false);
	buf_free(&b);
	barrier(r);
	rank_unlink(r, &first);
}

/* ---- What is refused ---- */

/* regMr wants to know of a comm whether NCCL's kernels unpack for it: not for this one. */
static _Alignas(64) char no_comm[4096];

static void refused(struct rank *r, void *at, size_t len, const char *word)
{
	void *mh = r;

	CHECK(r->net.v12->reg_mr(no_comm, at, len, NCCL_PTR_CUDA, &mh) == NCCL_INVALID_ARGUMENT &&
	      !mh);
	CHECK(strstr(net_warned(), word), "the text: %s", net_warned());
}

/* No memory of a GPU, or of one that was not named and is not the thread's, used or not. */
static void case_gpu_unknown(struct rank *r)
{
	char *heap = malloc(4096), *second, *map = gpu_map(0, GRANULE);
	struct nccl_props_v12 p;
	void *mh;

	CHECK(!r->net.v12->get_properties(0, &p));
	CHECK(p.ptr_support == (NCCL_PTR_HOST | NCCL_PTR_CUDA) && !p.force_flush);
	refused(r, heap, 4096, "not memory of one GPU");
	refused(r, &p, 8, "not memory of one GPU");
	refused(r, map, GRANULE + 1, "not memory of one GPU");
	CHECK(r->net.v12->reg_mr(no_comm, map, 4096, NCCL_PTR_DMABUF, &mh) && !mh);
	CHECK(!r->net.v12->reg_mr(no_comm, map, GRANULE, NCCL_PTR_CUDA, &mh));
	CHECK(!r->net.v12->dereg_mr(no_comm, mh));
	CHECK(!gpu.cu.cuDevicePrimaryCtxRetain(&gpu.ctx[1], 1));
	second = gpu_map(1, GRANULE);
	refused(r, second, 4096, "GX_NCCL_GPUS");
	CHECK(!net_finalize(&r->net, r->ctx) && !net_init(&r->net, &r->ctx));
	refused(r, second, 4096, "GX_NCCL_GPUS");
	CHECK(!net_finalize(&r->net, r->ctx) && !setenv("GX_NCCL_GPUS", "0,1", 1));
	CHECK(!net_init(&r->net, &r->ctx));
	CHECK(!r->net.v12->reg_mr(no_comm, second, GRANULE, NCCL_PTR_CUDA, &mh));
	CHECK(!r->net.v12->dereg_mr(no_comm, mh));
	CHECK(!gpu.cu.cuMemUnmap((uintptr_t)second, GRANULE));
	CHECK(!gpu.cu.cuMemUnmap((uintptr_t)map, GRANULE));
	free(heap);
}

/* Each fails init, with its word in the text. */
static void case_gpu_init(struct rank *r)
{
	static const char *const wrong[][5] = {
		{"GX_NCCL_MODE", "gpu", "", "", "cuda or unpack"},
		{"GX_NCCL_UNPACK", "rope", "", "", "resident"},
		{"GX_NCCL_GPUS", "0-", "", "", "GX_NCCL_GPUS"},
		{"GX_NCCL_GPUS", "7", "", "", "cuda:7"},
		{"GX_NCCL_UNPACK", "kernel", "CUDA_DEVICE_MAX_CONNECTIONS", "1", "wait"},
		{"GX_NCCL_LINK", "local", "", "", "packet or tcp"},
		{"NCCL_PROTO", "LL128", "", "", "NCCL_PROTO=^LL128"},
		{"NCCL_PROTO", "^LL128", "", "", "NCCL_PROTO=Simple"},
	};
	const char *link = getenv("GX_NCCL_LINK");
	char *kept = link ? strdup(link) : NULL;
	void *ctx;

	CHECK(!net_finalize(&r->net, r->ctx));
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		setenv(wrong[i][0], wrong[i][1], 1);
		if (wrong[i][2][0])
			setenv(wrong[i][2], wrong[i][3], 1);
		CHECK(net_init(&r->net, &ctx) && !ctx, "%s=%s is taken", wrong[i][0], wrong[i][1]);
		CHECK(strstr(net_warned(), wrong[i][4]), "the text: %s", net_warned());
		unsetenv(wrong[i][0]);
		if (wrong[i][2][0])
			unsetenv(wrong[i][2]);
		setenv("GX_NCCL_MODE", "cuda", 1);
		setenv("NCCL_PROTO", "Simple", 1);
		if (kept)
			setenv("GX_NCCL_LINK", kept, 1);
	}
	free(kept);
	/* Modes that launch kernels work where the driver has more connections. */
	setenv("GX_NCCL_UNPACK", "kernel", 1);
	CHECK(!net_init(&r->net, &ctx) && !net_finalize(&r->net, ctx));
	unsetenv("GX_NCCL_UNPACK");
	CHECK(!gpu.cu.cuDevicePrimaryCtxRelease_v2(0) && !gpu.cu.cuCtxSetCurrent(NULL));
	CHECK(net_init(&r->net, &ctx) && strstr(net_warned(), "no GPU yet"), "%s", net_warned());
	CHECK(!gpu.cu.cuDevicePrimaryCtxRetain(&gpu.ctx[0], 0));
	CHECK(net_init(&r->net, &ctx), "of a GPU that the thread has not chosen");
	CHECK(!gpu.cu.cuCtxSetCurrent(gpu.ctx[0]));
	CHECK(!net_init(&r->net, &r->ctx));
}

/* ---- Failure ---- */

/* The GPU of rank 0 stops. Its requests and the other rank's end, and so does all else. Then a new
 * communicator works. */
static void case_gpu_dead(struct rank *r)
{
	static const size_t sizes[] = {MIB, 8};
	struct link l;
	struct buf in, out;
	struct stream s = {
		.link = &l, .count = 4, .depth = 2, .sizes = sizes, .nr_sizes = 2, .seed = 7};
	void *sent, *got;
	int ret;

	rank_link(r, &l, other(r), 0);
	rank_stream(r, &s);
	buf_open(r, l.recv, &in, MIB);
	buf_open(r, l.send, &out, MIB);
	barrier(r);
	if (r->me == 0)
		gpu.die(true);
	barrier(r);
	CHECK(!net_irecv(&r->net, l.recv, in.base, MIB, in.mh, &got) && got);
	CHECK(!net_isend(&r->net, l.send, out.base, MIB, out.mh, &sent) && sent);
	ret = req_error(r, got, ERROR_MS);
	CHECK(ret, "a receive from or into a GPU that is dead is done");
	CHECK(r->me == 1 || ret == NCCL_SYSTEM_ERROR, "the error: %d", ret);
	ret = req_error(r, sent, ERROR_MS);
	CHECK(ret, "a send from or into a GPU that is dead is done");
	CHECK(r->me == 1 || ret == NCCL_SYSTEM_ERROR, "the error: %d", ret);
	buf_close(r, l.recv, &in);
	buf_close(r, l.send, &out);
	rank_unlink(r, &l);
	if (r->me == 0) {
		CHECK(!net_finalize(&r->net, r->ctx));
		gpu.die(false);
		CHECK(!net_init(&r->net, &r->ctx));
	}
	barrier(r);
	rank_link(r, &l, other(r), 1);
	rank_stream(r, &s);
	barrier(r);
	rank_unlink(r, &l);
}

const struct nccl_case cases_gpu[] = {
	{"gpu_sizes", 2, case_gpu_sizes, false, NULL},
	{"gpu_regs", 2, case_gpu_regs, false, NULL},
	{"gpu_dereg", 2, case_gpu_dereg, false, NULL},
	{"gpu_unknown", 1, case_gpu_unknown, false, NULL},
	{"gpu_init", 1, case_gpu_init, false, NULL},
	{"gpu_hold", 2, case_gpu_hold, false, NULL},
	{"gpu_dead", 2, case_gpu_dead, false, NULL},
};
const unsigned nr_cases_gpu = sizeof(cases_gpu) / sizeof(cases_gpu[0]);
