/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See fake_nccl_pair.h. GX_FAKE_NCCL_VIA: the transport that NCCL's log names; default: NCCL_NET's.
 * GX_FAKE_NCCL_STALE: later operations than the first so many of this process copy nothing.
 * GX_FAKE_NCCL_HANG: no operation ends, and a line of the log warns of it.
 */
#include "fake_nccl_pair.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PIPE_B	 4194304 /* two ranks on one CPU take turns as seldom */
#define WAIT_S	 20	 /* for the other rank */
#define ERR_PEER 6	 /* ncclRemoteError */

/* Bytes from one rank to the other. Both indices only grow. */
struct pipe_shm {
	_Atomic uint64_t head; /* the sender's; pairs with the receiver's acquire */
	_Atomic uint64_t tail; /* the receiver's; pairs with the sender's acquire */
	uint8_t data[PIPE_B];
};

struct pair_shm {
	_Atomic unsigned joined; /* bits */
	struct pipe_shm pipe[2]; /* by sender */
};

struct fake_pair {
	struct pair_shm *shm;
	int rank;
};

/* fake_cuda.c's. */
unsigned cuLaunchHostFunc(struct CUstream_st *stream, void (*fn)(void *arg), void *arg);

void fake_pair_name(char name[128])
{
	int fd = memfd_create("fake-nccl", MFD_CLOEXEC);

	if (fd >= 0 && !ftruncate(fd, sizeof(struct pair_shm)))
		snprintf(name, 128, "/proc/%d/fd/%d", (int)getpid(), fd);
}

static FILE *log_open(const char *mode)
{
	const char *path = getenv("NCCL_DEBUG_FILE");

	return path ? fopen(path, mode) : NULL;
}

static void pair_hang(void)
{
	FILE *f = log_open("ae");

	if (f) {
		fprintf(f, "host:1:1 [0] fake.c:1 NCCL WARN this operation never ends\n");
		fclose(f);
	}
	for (;;)
		pause();
}

/* A line as NCCL writes it for each connection. */
static void pair_log(int rank)
{
	const char *via = getenv("GX_FAKE_NCCL_VIA"), *net = getenv("NCCL_NET");
	FILE *f = log_open("we");
	char text[64];

	if (!f)
		return;
	snprintf(text, sizeof(text), "NET/%s/0", net ? net : "Socket");
	fprintf(f, "host:1:1 [0] NCCL INFO Channel 00/0 : %d[0] -> %d[0] [send] via %s\n", rank,
		!rank, via ? via : text);
	fclose(f);
}

struct fake_pair *fake_pair_join(const char *name, int rank)
{
	int fd = open(name, O_RDWR | O_CLOEXEC);
	struct fake_pair *p = calloc(1, sizeof(*p));
	time_t end = time(NULL) + WAIT_S;

	if (fd < 0)
		return free(p), NULL;
	p->rank = rank;
	p->shm = mmap(NULL, sizeof(*p->shm), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (p->shm == MAP_FAILED)
		return free(p), NULL;
	atomic_fetch_or(&p->shm->joined, 1u << rank);
	while (atomic_load(&p->shm->joined) != 3 && time(NULL) < end)
		usleep(1000);
	if (atomic_load(&p->shm->joined) != 3)
		return fake_pair_leave(p), NULL;
	pair_log(rank);
	return p;
}

void fake_pair_leave(struct fake_pair *p)
{
	munmap(p->shm, sizeof(*p->shm));
	free(p);
}

/* ---- An operation ---- */

struct pair_run {
	struct fake_pair *p;
	struct fake_job job;
};

static size_t min3(size_t a, size_t b, size_t c)
{
	size_t least = a < b ? a : b;

	return least < c ? least : c;
}

static bool pair_send(struct fake_pair *p, struct fake_job *j)
{
	struct pipe_shm *pipe = &p->shm->pipe[p->rank];
	uint64_t head = atomic_load_explicit(&pipe->head, memory_order_relaxed);
	uint64_t room = PIPE_B - (head - atomic_load_explicit(&pipe->tail, memory_order_acquire));
	size_t n = min3(j->send_b, room, PIPE_B - head % PIPE_B);

	if (!n)
		return false;
	memcpy(pipe->data + head % PIPE_B, j->send, n);
	atomic_store_explicit(&pipe->head, head + n, memory_order_release);
	j->send += n;
	j->send_b -= n;
	return true;
}

/* All lengths are multiples of 8, and so is PIPE_B. */
static void pair_sum(struct fake_job *j, const uint8_t *from, size_t n)
{
	for (size_t i = 0; i < n; i += 8) {
		uint64_t a, b;

		memcpy(&a, from + i, 8);
		memcpy(&b, j->add + i, 8);
		a += b;
		memcpy(j->recv + i, &a, 8);
	}
	j->add += n;
}

static bool pair_recv(struct fake_pair *p, struct fake_job *j, bool lazy)
{
	struct pipe_shm *pipe = &p->shm->pipe[!p->rank];
	uint64_t tail = atomic_load_explicit(&pipe->tail, memory_order_relaxed);
	uint64_t there = atomic_load_explicit(&pipe->head, memory_order_acquire) - tail;
	size_t n = min3(j->recv_b, there, PIPE_B - tail % PIPE_B);

	if (!n)
		return false;
	if (!lazy && j->add)
		pair_sum(j, pipe->data + tail % PIPE_B, n);
	else if (!lazy)
		memcpy(j->recv, pipe->data + tail % PIPE_B, n);
	atomic_store_explicit(&pipe->tail, tail + n, memory_order_release);
	j->recv += n;
	j->recv_b -= n;
	return true;
}

static bool pair_is_lazy(void)
{
	static unsigned nr; /* the stream's thread alone */
	const char *stale = getenv("GX_FAKE_NCCL_STALE");

	return getenv("GX_FAKE_NCCL_LAZY") || (stale && nr++ >= (unsigned)atoi(stale));
}

static void pair_run(void *arg)
{
	struct pair_run *run = arg;
	struct fake_job *j = &run->job;
	bool lazy = pair_is_lazy();
	time_t end = time(NULL) + WAIT_S;

	if (getenv("GX_FAKE_NCCL_HANG"))
		pair_hang();
	if (j->own_b && !lazy)
		memmove(j->own_to, j->own, j->own_b);
	while ((j->send_b || j->recv_b) && time(NULL) < end) {
		bool sent = pair_send(run->p, j), got = pair_recv(run->p, j, lazy);

		if (sent || got)
			end = time(NULL) + WAIT_S;
		else
			sched_yield();
	}
	free(run);
}

int fake_pair_queue(struct fake_pair *p, const struct fake_job *job, struct CUstream_st *stream)
{
	struct pair_run *run = malloc(sizeof(*run));

	*run = (struct pair_run){p, *job};
	return cuLaunchHostFunc(stream, pair_run, run) ? ERR_PEER : 0;
}
