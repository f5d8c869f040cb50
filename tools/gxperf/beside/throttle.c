// SPDX-License-Identifier: Apache-2.0
/*
 * The page between gxperf overlap and the command beside it (see throttle.h).
 */
#include "gxperf/beside/throttle.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define GATE_B	   4096
#define GATE_MAGIC 0x65746167u
#define GATE_MUCH  (INT64_MAX / 2)

/* owner: overlap, unless a comment says otherwise. */
struct gate {
	uint32_t magic;
	pid_t pid; /* overlap's */
	_Atomic uint32_t mode;
	uint64_t given; /* messages allowed so far; gate_settle() takes unused ones back */
	/* The command's threads take from it; never below 0. */
	_Atomic int64_t left __attribute__((aligned(64)));
	/* Written by the command. */
	_Atomic uint64_t ended __attribute__((aligned(64)));
	_Atomic uint64_t size_b;
	_Atomic bool ready;
};

_Static_assert(sizeof(struct gate) <= GATE_B, "one page");

/* ---- overlap ---- */

static struct gate *gate_map(int fd)
{
	void *p = mmap(NULL, GATE_B, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return p == MAP_FAILED ? NULL : p;
}

int gate_open(struct gate **out, int *fd)
{
	struct gate *g = NULL;
	int err;

	*fd = memfd_create("gxperf-gate", 0); /* the command inherits it */
	if (*fd >= 0 && !ftruncate(*fd, GATE_B))
		g = gate_map(*fd);
	if (!g) {
		err = errno;
		gate_close(NULL, *fd);
		*fd = -1;
		return -err;
	}
	g->magic = GATE_MAGIC;
	g->pid = getpid();
	*out = g;
	return 0;
}

void gate_close(struct gate *g, int fd)
{
	if (g)
		munmap(g, GATE_B);
	if (fd >= 0)
		close(fd);
}

void gate_allow(struct gate *g, uint64_t n)
{
	g->given += n;
	/* Pairs with the acquire in gate_take(). */
	atomic_fetch_add_explicit(&g->left, (int64_t)n, memory_order_release);
}

void gate_mode(struct gate *g, enum gate_mode mode)
{
	if (mode == GATE_RUN)
		gate_allow(g, GATE_MUCH);
	atomic_store_explicit(&g->mode, mode, memory_order_release);
}

uint64_t gate_settle(struct gate *g, uint64_t unit)
{
	uint64_t part;

	gate_mode(g, GATE_STEP);
	g->given -= (uint64_t)atomic_exchange(&g->left, 0);
	part = g->given % unit;
	if (part)
		gate_allow(g, unit - part);
	return g->given;
}

uint64_t gate_ended(const struct gate *g)
{
	/* Pairs with the release in gate_done(). */
	return atomic_load_explicit(&g->ended, memory_order_acquire);
}

bool gate_size(const struct gate *g, uint64_t *size_b)
{
	/* Pairs with the release in gate_ready(). */
	if (!atomic_load_explicit(&g->ready, memory_order_acquire))
		return false;
	*size_b = atomic_load_explicit(&g->size_b, memory_order_relaxed);
	return true;
}

/* ---- the command ---- */

static struct gate *joined; /* frozen before threads are started */
static _Atomic bool given_up;

int gate_join(int fd)
{
	struct gate *g;
	struct stat st;

	if (fstat(fd, &st))
		return -errno;
	if (st.st_size != GATE_B)
		return -EINVAL;
	g = gate_map(fd);
	if (!g)
		return -errno;
	close(fd);
	/* The parent may die before this takes effect: compare it below. */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (g->magic != GATE_MAGIC || g->pid != getppid()) {
		gate_close(g, -1);
		return -EINVAL;
	}
	joined = g;
	return 0;
}

bool gate_on(void)
{
	return joined;
}

void gate_ready(uint64_t size_b)
{
	if (!joined)
		return;
	atomic_store_explicit(&joined->size_b, size_b, memory_order_relaxed);
	atomic_store_explicit(&joined->ready, true, memory_order_release);
}

uint64_t gate_take(uint64_t n)
{
	int64_t left = atomic_load_explicit(&joined->left, memory_order_acquire), take;

	do {
		take = left < (int64_t)n ? left : (int64_t)n;
		if (take <= 0)
			return 0;
	} while (!atomic_compare_exchange_weak(&joined->left, &left, left - take));
	return (uint64_t)take;
}

void gate_done(uint64_t n)
{
	atomic_fetch_add_explicit(&joined->ended, n, memory_order_release);
}

static bool gate_is(enum gate_mode mode)
{
	return joined && atomic_load_explicit(&joined->mode, memory_order_acquire) == mode;
}

bool gate_rests(void)
{
	return gate_is(GATE_REST);
}

bool gate_ends(void)
{
	return gate_is(GATE_END) || atomic_load_explicit(&given_up, memory_order_relaxed);
}

void gate_give_up(void)
{
	atomic_store_explicit(&given_up, true, memory_order_relaxed);
}
