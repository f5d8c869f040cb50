/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libnccl.so.2 for tests on machines without a GPU: ranks of one process, groups, copies in the
 * order of the streams of fake_cuda.c. Sends and receives of a group are matched when it ends. A
 * communicator that is made outside of a group is for two ranks that are processes
 * (fake_nccl_pair.h).
 * GX_FAKE_NCCL_LAZY: nothing is copied, which a comparison of payload must see; GX_FAKE_NCCL_OLD:
 * the version is one that is too old. GX_FAKE_NCCL_ASYNC: what ncclCommGetAsyncError() tells.
 * GX_FAKE_NCCL_ABORT: ncclCommDestroy() aborts the process.
 */
#include "fake_nccl_pair.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FAKE	 __attribute__((visibility("default")))
#define OPS_MAX	 256
#define RANK_MAX 16

struct CUstream_st;

struct ncclComm {
	int n, rank;
	struct fake_pair *pair; /* NULL: all ranks are of this process */
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
	struct fake_pair *pair;
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
int ncclCommGetAsyncError(struct ncclComm *comm, int *err);
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
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, struct ncclComm *comm,
		  struct CUstream_st *stream);
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op,
		      struct ncclComm *comm, struct CUstream_st *stream);
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root,
		  struct ncclComm *comm, struct CUstream_st *stream);
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
	fake_pair_name(id->b);
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
	if (!depth && n == 2)
		(*comm)->pair = fake_pair_join(id.b, rank);
	return depth || (*comm)->pair ? 0 : 6;
}

FAKE int ncclCommGetAsyncError(struct ncclComm *comm, int *err)
{
	const char *async = getenv("GX_FAKE_NCCL_ASYNC");

	*err = async ? atoi(async) : 0;
	return 0;
}

FAKE int ncclCommDestroy(struct ncclComm *comm)
{
	if (getenv("GX_FAKE_NCCL_ABORT"))
		abort();
	if (comm->pair)
		fake_pair_leave(comm->pair);
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

/* A group of sends and receives: with the rank itself, and with its peer at once. */
static int pair_group(void)
{
	struct fake_job job = {0};
	struct op *o = ops;

	for (unsigned i = 0; i < nr_ops; i++, o++) {
		int self = o->peer == o->rank;

		if (o->kind == OP_SEND) {
			*(self ? &job.own : &job.send) = o->from;
			*(self ? &job.own_b : &job.send_b) = o->count;
		} else {
			*(self ? &job.own_to : &job.recv) = o->to;
			if (!self)
				job.recv_b = o->count;
		}
	}
	return fake_pair_queue(ops[0].pair, &job, ops[0].stream);
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
	if (nr_ops && ops[0].pair) {
		ret = pair_group();
		nr_ops = 0;
		return ret;
	}
	for (unsigned i = 0; i < nr_ops; i++)
		for (unsigned k = 0; k < nr_ops && !ret; k++)
			ret = op_end(&ops[i], &ops[k]);
	nr_ops = 0;
	return ret;
}

static int op_add(struct op op, const struct ncclComm *comm, int type)
{
	int ret = 0;

	if ((!depth && !comm->pair) || nr_ops == OPS_MAX || type != (comm->pair ? 5 : 1))
		return 5;
	op.rank = comm->rank;
	op.n = comm->n;
	op.pair = comm->pair;
	op.count *= type == 5 ? 8 : 1;
	ops[nr_ops++] = op;
	if (!depth) {
		ret = pair_group();
		nr_ops = 0;
	}
	return ret;
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

/* Sums are of 64-bit numbers, between processes alone. */
static int sum_bad(const struct ncclComm *comm, int type, int op)
{
	return type != 5 || op || !comm->pair;
}

FAKE int ncclAllReduce(const void *from, void *to, size_t count, int type, int op,
		       struct ncclComm *comm, struct CUstream_st *stream)
{
	struct fake_job job = {
		.send = from, .recv = to, .send_b = 8 * count, .recv_b = 8 * count, .add = from};

	return sum_bad(comm, type, op) ? 4 : fake_pair_queue(comm->pair, &job, stream);
}

FAKE int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op,
			   struct ncclComm *comm, struct CUstream_st *stream)
{
	const uint8_t *part = from;
	struct fake_job job = {.send = part + (size_t)!comm->rank * 8 * count,
			       .recv = to,
			       .send_b = 8 * count,
			       .recv_b = 8 * count,
			       .add = part + (size_t)comm->rank * 8 * count};

	return sum_bad(comm, type, op) ? 4 : fake_pair_queue(comm->pair, &job, stream);
}

FAKE int ncclBroadcast(const void *from, void *to, size_t count, int type, int root,
		       struct ncclComm *comm, struct CUstream_st *stream)
{
	size_t len = 8 * count;
	struct fake_job job = {.recv = to, .recv_b = len};

	if (comm->rank == root)
		job = (struct fake_job){
			.send = from, .send_b = len, .own = from, .own_to = to, .own_b = len};
	return sum_bad(comm, type, 0) ? 4 : fake_pair_queue(comm->pair, &job, stream);
}

static int pair_gather(const struct ncclComm *comm, const uint8_t *from, uint8_t *to, size_t len,
		       struct CUstream_st *stream)
{
	struct fake_job job = {.send = from,
			       .recv = to + (size_t)!comm->rank * len,
			       .send_b = len,
			       .recv_b = len,
			       .own = from,
			       .own_to = to + (size_t)comm->rank * len,
			       .own_b = len};

	return fake_pair_queue(comm->pair, &job, stream);
}

FAKE int ncclAllGather(const void *from, void *to, size_t count, int type, struct ncclComm *comm,
		       struct CUstream_st *stream)
{
	if (comm->pair)
		return type == 5 ? pair_gather(comm, from, to, 8 * count, stream) : 4;
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
