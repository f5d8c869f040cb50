/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libnccl.so.2 for tests on machines without a GPU: ranks of one process, groups, copies in the
 * order of the streams of fake_cuda.c. Sends and receives of a group are matched when it ends.
 * GX_FAKE_NCCL_LAZY: nothing is copied, which a comparison of payload must see; GX_FAKE_NCCL_OLD:
 * the version is one that is too old.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FAKE	 __attribute__((visibility("default")))
#define OPS_MAX	 256
#define RANK_MAX 16

struct CUstream_st;

struct ncclComm {
	int n, rank;
};

struct ncclWindow_vidmem {
	void *mem;
};

struct op {
	enum { OP_SEND, OP_RECV, OP_GATHER, OP_ALL } kind;
	const uint8_t *from;
	uint8_t *to;
	size_t count;
	int rank, peer, n;
	struct CUstream_st *stream;
};

static struct op ops[OPS_MAX];
static unsigned nr_ops;
static int depth;

/* fake_cuda.c's. */
unsigned cuLaunchHostFunc(struct CUstream_st *stream, void (*fn)(void *arg), void *arg);

struct nccl_id {
	char b[128];
};

struct nccl_config {
	size_t size;
	unsigned magic, version;
};

int ncclGetVersion(int *version);
int ncclGetUniqueId(struct nccl_id *id);
int ncclCommInitRankConfig(struct ncclComm **comm, int n, struct nccl_id id, int rank,
			   struct nccl_config *config);
int ncclCommDestroy(struct ncclComm *comm);
int ncclCommWindowRegister(struct ncclComm *comm, void *mem, size_t len,
			   struct ncclWindow_vidmem **win, int flags);
int ncclCommWindowDeregister(struct ncclComm *comm, struct ncclWindow_vidmem *win);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclSend(const void *mem, size_t count, int type, int peer, struct ncclComm *comm,
	     struct CUstream_st *stream);
int ncclRecv(void *mem, size_t count, int type, int peer, struct ncclComm *comm,
	     struct CUstream_st *stream);
int ncclAllGather(const void *from, void *to, size_t count, int type, struct ncclComm *comm,
		  struct CUstream_st *stream);
int ncclAlltoAll(const void *from, void *to, size_t count, int type, struct ncclComm *comm,
		 struct CUstream_st *stream);

FAKE int ncclGetVersion(int *version)
{
	*version = getenv("GX_FAKE_NCCL_OLD") ? 22707 : 22809;
	return 0;
}

FAKE int ncclGetUniqueId(struct nccl_id *id)
{
	memset(id, 7, sizeof(*id));
	return 0;
}

FAKE int ncclCommInitRankConfig(struct ncclComm **comm, int n, struct nccl_id id, int rank,
				struct nccl_config *config)
{
	if (config->magic != 0xcafebeef || config->size < 80 || rank >= n || n > RANK_MAX)
		return 4;
	*comm = calloc(1, sizeof(**comm));
	(*comm)->n = n;
	(*comm)->rank = rank;
	return 0;
}

FAKE int ncclCommDestroy(struct ncclComm *comm)
{
	free(comm);
	return 0;
}

FAKE int ncclCommWindowRegister(struct ncclComm *comm, void *mem, size_t len,
				struct ncclWindow_vidmem **win, int flags)
{
	if ((uintptr_t)mem % 4096 || flags != 1)
		return 4;
	*win = calloc(1, sizeof(**win));
	return 0;
}

FAKE int ncclCommWindowDeregister(struct ncclComm *comm, struct ncclWindow_vidmem *win)
{
	free(win);
	return 0;
}

struct copy {
	uint8_t *to;
	const uint8_t *from;
	size_t len;
};

static void copy_run(void *arg)
{
	struct copy *c = arg;

	if (!getenv("GX_FAKE_NCCL_LAZY"))
		memmove(c->to, c->from, c->len);
	free(c);
}

static int copy_queue(struct CUstream_st *stream, uint8_t *to, const uint8_t *from, size_t len)
{
	struct copy *c = malloc(sizeof(*c));

	*c = (struct copy){to, from, len};
	return cuLaunchHostFunc(stream, copy_run, c) ? 1 : 0;
}

static int op_end(const struct op *a, const struct op *b)
{
	if (a->kind == OP_RECV && b->kind == OP_SEND && a->peer == b->rank && b->peer == a->rank)
		return copy_queue(a->stream, a->to, b->from, a->count);
	if (a->kind == OP_GATHER && b->kind == OP_GATHER)
		return copy_queue(a->stream, a->to + b->rank * a->count, b->from, a->count);
	if (a->kind == OP_ALL && b->kind == OP_ALL)
		return copy_queue(a->stream, a->to + b->rank * a->count,
				  b->from + a->rank * a->count, a->count);
	return 0;
}

FAKE int ncclGroupStart(void)
{
	depth++;
	return 0;
}

FAKE int ncclGroupEnd(void)
{
	int ret = 0;

	if (--depth)
		return 0;
	for (unsigned i = 0; i < nr_ops; i++)
		for (unsigned k = 0; k < nr_ops && !ret; k++)
			ret = op_end(&ops[i], &ops[k]);
	nr_ops = 0;
	return ret;
}

static int op_add(struct op op, const struct ncclComm *comm, int type)
{
	if (!depth || nr_ops == OPS_MAX || type != 1)
		return 5;
	op.rank = comm->rank;
	op.n = comm->n;
	ops[nr_ops++] = op;
	return 0;
}

FAKE int ncclSend(const void *mem, size_t count, int type, int peer, struct ncclComm *comm,
		  struct CUstream_st *stream)
{
	return op_add((struct op){.kind = OP_SEND,
				  .from = mem,
				  .count = count,
				  .peer = peer,
				  .stream = stream},
		      comm, type);
}

FAKE int ncclRecv(void *mem, size_t count, int type, int peer, struct ncclComm *comm,
		  struct CUstream_st *stream)
{
	return op_add(
		(struct op){
			.kind = OP_RECV, .to = mem, .count = count, .peer = peer, .stream = stream},
		comm, type);
}

FAKE int ncclAllGather(const void *from, void *to, size_t count, int type, struct ncclComm *comm,
		       struct CUstream_st *stream)
{
	return op_add((struct op){.kind = OP_GATHER,
				  .from = from,
				  .to = to,
				  .count = count,
				  .stream = stream},
		      comm, type);
}

FAKE int ncclAlltoAll(const void *from, void *to, size_t count, int type, struct ncclComm *comm,
		      struct CUstream_st *stream)
{
	return op_add(
		(struct op){
			.kind = OP_ALL, .from = from, .to = to, .count = count, .stream = stream},
		comm, type);
}
