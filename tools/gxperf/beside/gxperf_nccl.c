// SPDX-License-Identifier: Apache-2.0
/*
 * NCCL as a way to move data between GPUs of one process (see way.h). Its kernels send and receive,
 * all-gather, and do all-to-all. In its zero-CTA mode with symmetric windows copy engines
 * all-gather and do all-to-all. dlopen finds the library. The prototypes are from nccl.h of 2.28.9;
 * only this file has them. Main thread only.
 */
#include "gxperf/beside/way.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ncclComm;
struct ncclWindow_vidmem;
struct CUstream_st;

struct nccl_id {
	char b[128];
};

/* ncclConfig_v22800 */
struct nccl_config {
	size_t size;
	unsigned magic, version;
	int blocking, cga, min_ctas, max_ctas;
	const char *net;
	int split, traffic;
	const char *name;
	int collnet, cta_policy, shrink, nvls_ctas, channels, nvlink;
};

enum { NCCL_UINT8 = 1, NCCL_WIN_SYMMETRIC = 1, NCCL_CTA_ZERO = 2, NCCL_UNSET = INT_MIN };

#define NCCL_MAGIC  0xcafebeefu
#define NCCL_OLDEST 22800 /* first version with windows, zero-CTA and ncclAlltoAll */

#define NCCL_API(X)                                                                                \
	X(ncclGetVersion, (int *version))                                                          \
	X(ncclGetUniqueId, (struct nccl_id * id))                                                  \
	X(ncclCommInitRankConfig, (struct ncclComm * *comm, int n, struct nccl_id id, int rank,    \
				   struct nccl_config *config))                                    \
	X(ncclCommDestroy, (struct ncclComm * comm))                                               \
	X(ncclCommWindowRegister, (struct ncclComm * comm, void *mem, size_t len,                  \
				   struct ncclWindow_vidmem **win, int flags))                     \
	X(ncclCommWindowDeregister, (struct ncclComm * comm, struct ncclWindow_vidmem * win))      \
	X(ncclGroupStart, (void))                                                                  \
	X(ncclGroupEnd, (void))                                                                    \
	X(ncclSend, (const void *mem, size_t count, int type, int peer, struct ncclComm *comm,     \
		     struct CUstream_st *stream))                                                  \
	X(ncclRecv, (void *mem, size_t count, int type, int peer, struct ncclComm *comm,           \
		     struct CUstream_st *stream))                                                  \
	X(ncclAllGather, (const void *from, void *to, size_t count, int type,                      \
			  struct ncclComm *comm, struct CUstream_st *stream))                      \
	X(ncclAlltoAll, (const void *from, void *to, size_t count, int type,                       \
			 struct ncclComm *comm, struct CUstream_st *stream))

static struct {
	void *lib;
#define NCCL_MEMBER(name, args) int(*name) args;
	NCCL_API(NCCL_MEMBER)
#undef NCCL_MEMBER
	const char *(*ncclGetLastError)(struct ncclComm *comm);
	int version;
} nccl;

/* Communicators by mode, kept from size to size: making one takes a second. */
static struct nccl_comms {
	struct ncclComm *comm[GPUS_MAX];
	unsigned n;
} nccl_comms[2];

struct nccl_way {
	struct nccl_comms *set;
	struct ncclWindow_vidmem *win[GPUS_MAX][2]; /* for the send and the receive memory */
	bool zero;
};

static int nccl_try(int res, const char *what)
{
	if (!res)
		return 0;
	way_why_set("%s: error %d: %s", what, res,
		    nccl.ncclGetLastError ? nccl.ncclGetLastError(NULL) : "");
	return -EIO;
}

#define NCCL_TRY(fn, ...) nccl_try(nccl.fn(__VA_ARGS__), #fn)

/* ---- the library ---- */

static void *nccl_dlopen(const char *path)
{
	char file[1024];
	void *lib;

	for (const char *at = path; at && *at; at += strcspn(at, ":"), at += *at == ':') {
		snprintf(file, sizeof(file), "%.*s/libnccl.so.2", (int)strcspn(at, ":"), at);
		lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
		if (lib)
			return lib;
	}
	return dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
}

static int nccl_load(const char *path)
{
	void *lib;

	if (nccl.lib)
		return 0;
	lib = nccl_dlopen(path);
	if (!lib) {
		way_why_set("no NCCL: %s; name its folder with --lib-path", dlerror());
		return -ENOENT;
	}
#define NCCL_SYMBOL(fn, args)                                                                      \
	nccl.fn = (int(*) args)dlsym(lib, #fn);                                                    \
	if (!nccl.fn) {                                                                            \
		way_why_set("this libnccl is too old: it has no " #fn);                            \
		return -ENOENT;                                                                    \
	}
	NCCL_API(NCCL_SYMBOL)
#undef NCCL_SYMBOL
	*(void **)&nccl.ncclGetLastError = dlsym(lib, "ncclGetLastError");
	if (NCCL_TRY(ncclGetVersion, &nccl.version))
		return -EIO;
	if (nccl.version < NCCL_OLDEST) {
		way_why_set("NCCL %d is too old: 2.28 is needed", nccl.version);
		return -ENOENT;
	}
	nccl.lib = lib;
	return 0;
}

/* ---- communicators ---- */

struct nccl_init {
	struct nccl_comms *set;
	struct nccl_id id;
	struct nccl_config config;
	int rank;
};

static int nccl_init_rank(void *arg, void *stream)
{
	struct nccl_init *init = arg;

	return NCCL_TRY(ncclCommInitRankConfig, &init->set->comm[init->rank], (int)init->set->n,
			init->id, init->rank, &init->config);
}

static int nccl_init_all(struct gpus *gpus, struct nccl_comms *set, bool zero)
{
	struct nccl_init init = {
		.set = set,
		.config = {.size = sizeof(init.config),
			   .magic = NCCL_MAGIC,
			   .version = NCCL_OLDEST,
			   .blocking = NCCL_UNSET,
			   .cga = NCCL_UNSET,
			   .min_ctas = NCCL_UNSET,
			   .max_ctas = NCCL_UNSET,
			   .split = NCCL_UNSET,
			   .traffic = NCCL_UNSET,
			   .collnet = NCCL_UNSET,
			   .cta_policy = zero ? NCCL_CTA_ZERO : NCCL_UNSET,
			   .shrink = NCCL_UNSET,
			   .nvls_ctas = NCCL_UNSET,
			   .channels = NCCL_UNSET,
			   .nvlink = NCCL_UNSET},
	};
	int ret = NCCL_TRY(ncclGetUniqueId, &init.id);

	if (ret)
		return ret;
	set->n = gpus->n;
	ret = NCCL_TRY(ncclGroupStart);
	for (init.rank = 0; init.rank < (int)gpus->n && !ret; init.rank++)
		ret = gx_engine_call(gpus->gpu[init.rank].q[0], nccl_init_rank, &init, NULL);
	if (NCCL_TRY(ncclGroupEnd))
		ret = -EIO;
	return ret;
}

static void nccl_drop(struct nccl_comms *set)
{
	for (unsigned i = 0; i < set->n; i++)
		if (set->comm[i])
			nccl.ncclCommDestroy(set->comm[i]);
	memset(set, 0, sizeof(*set));
}

void nccl_end(void)
{
	nccl_drop(&nccl_comms[0]);
	nccl_drop(&nccl_comms[1]);
}

/* ---- windows ---- */

struct nccl_reg {
	struct ncclComm *comm;
	struct ncclWindow_vidmem **win;
	void *mem;
	size_t len;
};

static int nccl_register(void *arg, void *stream)
{
	struct nccl_reg *r = arg;

	return NCCL_TRY(ncclCommWindowRegister, r->comm, r->mem, r->len, r->win,
			NCCL_WIN_SYMMETRIC);
}

/* A group, because registering is a collective call of all ranks. */
static int nccl_windows(struct way *w)
{
	struct nccl_way *p = w->priv;
	int ret = 0;

	for (unsigned k = 0; k < 2 && !ret; k++) {
		size_t len = k ? w->gpus->recv_b : w->gpus->send_b;

		if (!len)
			continue;
		ret = NCCL_TRY(ncclGroupStart);
		for (unsigned i = 0; i < w->gpus->n && !ret; i++) {
			struct gpus_one *g = &w->gpus->gpu[i];
			struct nccl_reg r = {p->set->comm[i], &p->win[i][k], k ? g->recv : g->send,
					     len};

			ret = gx_engine_call(g->q[0], nccl_register, &r, NULL);
		}
		if (NCCL_TRY(ncclGroupEnd))
			ret = -EIO;
	}
	for (unsigned i = 0; i < w->gpus->n && !ret; i++)
		if (!p->win[i][1]) {
			way_why_set("NCCL gave no symmetric window");
			ret = -EIO;
		}
	return ret;
}

/* ---- the way ---- */

static void nccl_lanes(struct way *w)
{
	w->nr_lanes = w->pattern <= GPUS_BOTH ? 2 : w->gpus->n;
	for (unsigned i = 0; i < w->nr_lanes; i++)
		w->lane[i] = (struct way_lane){.q = w->gpus->gpu[i].q[0]};
}

static int nccl_open_mode(struct way *w, bool zero)
{
	struct nccl_way *p = calloc(1, sizeof(*p));
	int ret = p ? nccl_load(w->lib_path) : -ENOMEM;

	w->priv = p;
	if (ret)
		return way_failed(w, "open", ret);
	p->zero = zero;
	p->set = &nccl_comms[zero];
	if (p->set->n && p->set->n != w->gpus->n)
		nccl_drop(p->set);
	if (!p->set->n)
		ret = nccl_init_all(w->gpus, p->set, zero);
	if (!ret && zero)
		ret = nccl_windows(w);
	nccl_lanes(w);
	return ret ? way_failed(w, "open", ret) : PERF_OK;
}

static int nccl_open(struct way *w)
{
	return nccl_open_mode(w, false);
}

static int nccl_zero_open(struct way *w)
{
	return nccl_open_mode(w, true);
}

static void nccl_close(struct way *w)
{
	struct nccl_way *p = w->priv;

	for (unsigned i = 0; p && p->set && i < w->gpus->n; i++)
		for (unsigned k = 0; k < 2; k++)
			if (p->win[i][k])
				nccl.ncclCommWindowDeregister(p->set->comm[i], p->win[i][k]);
	free(p);
	w->priv = NULL;
}

struct nccl_call {
	struct way *w;
	unsigned rank;
};

/* The calls of one rank within a group. */
static int nccl_rank(void *arg, void *stream)
{
	struct nccl_call *call = arg;
	struct way *w = call->w;
	struct ncclComm *comm = ((struct nccl_way *)w->priv)->set->comm[call->rank];
	struct gpus_one *g = &w->gpus->gpu[call->rank];
	int ret = 0;

	if (w->pattern == GPUS_ALLGATHER)
		return NCCL_TRY(ncclAllGather, g->recv + call->rank * w->size, g->recv, w->size,
				NCCL_UINT8, comm, stream);
	if (w->pattern == GPUS_ALLTOALL)
		return NCCL_TRY(ncclAlltoAll, g->send, g->recv, w->size / w->gpus->n, NCCL_UINT8,
				comm, stream);
	for (unsigned i = 0; i < w->nr_copies && !ret; i++) {
		const struct gpus_copy *c = &w->copy[i];

		if (c->from == call->rank)
			ret = NCCL_TRY(ncclSend, g->send, c->len, NCCL_UINT8, (int)c->to, comm,
				       stream);
		else if (c->to == call->rank)
			ret = NCCL_TRY(ncclRecv, g->recv, c->len, NCCL_UINT8, (int)c->from, comm,
				       stream);
	}
	return ret;
}

/* A group for each message, as in a program that sends one message after another. */
static int nccl_post(struct way *w)
{
	int ret = 0;

	for (unsigned b = 0; b < w->batch && !ret; b++) {
		ret = NCCL_TRY(ncclGroupStart);
		for (unsigned i = 0; i < w->nr_lanes && !ret; i++) {
			struct nccl_call call = {w, i};

			ret = gx_engine_call(w->lane[i].q, nccl_rank, &call, NULL);
		}
		if (NCCL_TRY(ncclGroupEnd))
			ret = -EIO;
	}
	return ret ? ret : way_mark(w);
}

const struct way_ops way_nccl = {
	.name = "nccl",
	.doc = "NCCL's kernels: send and receive, all-gather, all-to-all",
	.patterns = 1u << GPUS_WRITE | 1u << GPUS_BOTH | 1u << GPUS_ALLGATHER | 1u << GPUS_ALLTOALL,
	.sms = -1,
	.in_step = true,
	.open = nccl_open,
	.close = nccl_close,
	.post = nccl_post,
	WAY_GPUS,
};

const struct way_ops way_nccl_zero = {
	.name = "nccl-zero",
	.doc = "NCCL's zero-CTA mode with symmetric windows: copy engines",
	.patterns = 1u << GPUS_ALLGATHER | 1u << GPUS_ALLTOALL,
	.sms = 0,
	.in_step = true,
	.open = nccl_zero_open,
	.close = nccl_close,
	.post = nccl_post,
	WAY_GPUS,
};
