/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL by dlopen. The prototypes are from nccl.h of 2.28.9; only this header has them. Main thread
 * only.
 */
#ifndef NCCL_LIB_H
#define NCCL_LIB_H

#include <limits.h>
#include <stddef.h>

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

enum {
	NCCL_SUM = 0,
	NCCL_UINT8 = 1,
	NCCL_UINT64 = 5,
	NCCL_WIN_SYMMETRIC = 1,
	NCCL_CTA_ZERO = 2,
	NCCL_IN_PROGRESS = 7,
	NCCL_UNSET = INT_MIN,
};

#define NCCL_MAGIC  0xcafebeefu
#define NCCL_OLDEST 22800 /* first version with windows, zero-CTA and ncclAlltoAll */
#define NCCL_CONFIG                                                                                \
	{                                                                                          \
		.size = sizeof(struct nccl_config), .magic = NCCL_MAGIC, .version = NCCL_OLDEST,   \
		.blocking = NCCL_UNSET, .cga = NCCL_UNSET, .min_ctas = NCCL_UNSET,                 \
		.max_ctas = NCCL_UNSET, .split = NCCL_UNSET, .traffic = NCCL_UNSET,                \
		.collnet = NCCL_UNSET, .cta_policy = NCCL_UNSET, .shrink = NCCL_UNSET,             \
		.nvls_ctas = NCCL_UNSET, .channels = NCCL_UNSET, .nvlink = NCCL_UNSET,             \
	}

#define NCCL_API(X)                                                                                \
	X(ncclGetVersion, (int *version))                                                          \
	X(ncclGetUniqueId, (struct nccl_id * id))                                                  \
	X(ncclCommInitRankConfig, (struct ncclComm * *comm, int n, struct nccl_id id, int rank,    \
				   struct nccl_config *config))                                    \
	X(ncclCommGetAsyncError, (struct ncclComm * comm, int *err))                               \
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
	X(ncclAllReduce, (const void *from, void *to, size_t count, int type, int op,              \
			  struct ncclComm *comm, struct CUstream_st *stream))                      \
	X(ncclReduceScatter, (const void *from, void *to, size_t count, int type, int op,          \
			      struct ncclComm *comm, struct CUstream_st *stream))                  \
	X(ncclBroadcast, (const void *from, void *to, size_t count, int type, int root,            \
			  struct ncclComm *comm, struct CUstream_st *stream))                      \
	X(ncclAllGather, (const void *from, void *to, size_t count, int type,                      \
			  struct ncclComm *comm, struct CUstream_st *stream))                      \
	X(ncclAlltoAll, (const void *from, void *to, size_t count, int type,                       \
			 struct ncclComm *comm, struct CUstream_st *stream))

/* Valid after nccl_load(). */
extern struct nccl_lib {
	void *lib;
#define NCCL_MEMBER(name, args) int(*name) args;
	NCCL_API(NCCL_MEMBER)
#undef NCCL_MEMBER
	const char *(*ncclGetLastError)(struct ncclComm *comm);
	int version;
} nccl;

/** nccl_load() - Load libnccl.so.2, once. It reads its environment then.
 * @path: folders to look in first, with colons; may be NULL
 * Return: 0, -ENOENT, -EIO with way_why(). */
int nccl_load(const char *path);
/** nccl_try() - @res is what @what has returned. Return: 0, -EIO with way_why(). */
int nccl_try(int res, const char *what);
#define NCCL_TRY(fn, ...) nccl_try(nccl.fn(__VA_ARGS__), #fn)

#endif
