// SPDX-License-Identifier: Apache-2.0
/*
 * The page between gxperf overlap and its command (see throttle.h).
 */
#include "gxperf/base/throttle.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define THROTTLE_B     4096
#define THROTTLE_MAGIC 0x65746167u
#define THROTTLE_MUCH  (INT64_MAX / 2)

/* owner: overlap, unless a comment says otherwise. */
struct throttle {
	uint32_t magic;
	pid_t pid; /* overlap's */
	_Atomic uint32_t mode;
	uint64_t given; /* messages allowed so far; throttle_settle() takes unused ones back */
	/* The command's threads take from it; never below 0. */
	_Atomic int64_t left __attribute__((aligned(64)));
	/* Written by the command. */
	_Atomic uint64_t ended __attribute__((aligned(64)));
	_Atomic uint64_t size_b;
	_Atomic bool ready;
};

_Static_assert(sizeof(struct throttle) <= THROTTLE_B, "one page");

/* ---- overlap ---- */

static struct throttle *throttle_map(int fd)
{
	void *p = mmap(NULL, THROTTLE_B, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return p == MAP_FAILED ? NULL : p;
}

int throttle_open(struct throttle **out, int *fd)
{
	struct throttle *t = NULL;
	int err;

	*fd = memfd_create("gxperf-throttle", 0); /* the command inherits it */
	if (*fd >= 0 && !ftruncate(*fd, THROTTLE_B))
		t = throttle_map(*fd);
	if (!t) {
		err = errno;
		throttle_close(NULL, *fd);
		*fd = -1;
		return -err;
	}
	t->magic = THROTTLE_MAGIC;
	t->pid = getpid();
	*out = t;
	return 0;
}

void throttle_close(struct throttle *t, int fd)
{
	if (t)
		munmap(t, THROTTLE_B);
	if (fd >= 0)
		close(fd);
}

void throttle_allow(struct throttle *t, uint64_t n)
{
	t->given += n;
	/* Pairs with the acquire in throttle_take(). */
	atomic_fetch_add_explicit(&t->left, (int64_t)n, memory_order_release);
}

void throttle_mode(struct throttle *t, enum throttle_mode mode)
{
	if (mode == THROTTLE_RUN)
		throttle_allow(t, THROTTLE_MUCH);
	atomic_store_explicit(&t->mode, mode, memory_order_release);
}

uint64_t throttle_settle(struct throttle *t, uint64_t unit)
{
	uint64_t part;

	throttle_mode(t, THROTTLE_STEP);
	t->given -= (uint64_t)atomic_exchange(&t->left, 0);
	part = t->given % unit;
	if (part)
		throttle_allow(t, unit - part);
	return t->given;
}

uint64_t throttle_ended(const struct throttle *t)
{
	/* Pairs with the release in throttle_done(). */
	return atomic_load_explicit(&t->ended, memory_order_acquire);
}

bool throttle_size(const struct throttle *t, uint64_t *size_b)
{
	/* Pairs with the release in throttle_ready(). */
	if (!atomic_load_explicit(&t->ready, memory_order_acquire))
		return false;
	*size_b = atomic_load_explicit(&t->size_b, memory_order_relaxed);
	return true;
}

/* ---- the command ---- */

static struct throttle *joined; /* frozen before threads are started */
static _Atomic bool given_up;

int throttle_join(int fd)
{
	struct throttle *t;
	struct stat st;

	if (fstat(fd, &st))
		return -errno;
	if (st.st_size != THROTTLE_B)
		return -EINVAL;
	t = throttle_map(fd);
	if (!t)
		return -errno;
	close(fd);
	/* The parent may die before this takes effect: compare it below. */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (t->magic != THROTTLE_MAGIC || t->pid != getppid()) {
		throttle_close(t, -1);
		return -EINVAL;
	}
	joined = t;
	return 0;
}

bool throttle_on(void)
{
	return joined;
}

void throttle_ready(uint64_t size_b)
{
	if (!joined)
		return;
	atomic_store_explicit(&joined->size_b, size_b, memory_order_relaxed);
	atomic_store_explicit(&joined->ready, true, memory_order_release);
}

uint64_t throttle_take(uint64_t n)
{
	int64_t left = atomic_load_explicit(&joined->left, memory_order_acquire), take;

	do {
		take = left < (int64_t)n ? left : (int64_t)n;
		if (take <= 0)
			return 0;
	} while (!atomic_compare_exchange_weak(&joined->left, &left, left - take));
	return (uint64_t)take;
}

void throttle_done(uint64_t n)
{
	atomic_fetch_add_explicit(&joined->ended, n, memory_order_release);
}

static bool throttle_is(enum throttle_mode mode)
{
	return joined && atomic_load_explicit(&joined->mode, memory_order_acquire) == mode;
}

bool throttle_rests(void)
{
	return throttle_is(THROTTLE_REST);
}

bool throttle_ends(void)
{
	return throttle_is(THROTTLE_END) || atomic_load_explicit(&given_up, memory_order_relaxed);
}

void throttle_give_up(void)
{
	atomic_store_explicit(&given_up, true, memory_order_relaxed);
}
