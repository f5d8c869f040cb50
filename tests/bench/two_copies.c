/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limit that a put over shared memory cannot pass: one core copies 64 MiB messages into shared
 * slots, another copies them out, with nothing but a sequence number a slot between them. usage:
 * two_copies CPU CPU SLOT_B SLOTS SECONDS copy|stream Prints one number, GB/s. tests/bench/bench.py runs
 * it beside gx.
 */
#include "gx_internal/base.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MESSAGE_B (64u << 20)
#define DEPTH	  4 /* messages the source and the destination rotate over */

struct shared {
	alignas(64) _Atomic uint64_t taken; /* slots copied out */
	alignas(64) _Atomic uint32_t stop;
	alignas(64) _Atomic uint32_t
		seq[]; /* one line each would be fairer to neither side: 16 to a line */
};

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static void *map(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	madvise(p, len, MADV_HUGEPAGE);
	memset(p, 1, len);
	return p;
}

static void reader(struct shared *sh, const char *slots, char *dst, uint32_t slot_b, uint32_t nr,
		   bool stream)
{
	for (uint64_t i = 0; !atomic_load_explicit(&sh->stop, memory_order_relaxed); i++) {
		uint64_t off = i * slot_b % ((uint64_t)MESSAGE_B * DEPTH);

		while (atomic_load_explicit(&sh->seq[i % nr * 16], memory_order_acquire) !=
		       (uint32_t)i + 1)
			if (atomic_load_explicit(&sh->stop, memory_order_relaxed))
				return;
		if (stream)
			gx_copy_stream(dst + off, slots + i % nr * slot_b, slot_b);
		else
			gx_copy(dst + off, slots + i % nr * slot_b, slot_b);
		atomic_store_explicit(&sh->taken, i + 1, memory_order_release);
	}
}

static double writer(struct shared *sh, char *slots, const char *src, uint32_t slot_b, uint32_t nr,
		     double seconds)
{
	uint64_t begin = gx_now_ns();
	uint64_t end = begin + seconds * 1e9;
	uint64_t seen = 0;
	uint64_t i;

	for (i = 0; i % 64 || gx_now_ns() < end; i++) {
		uint64_t off = i * slot_b % ((uint64_t)MESSAGE_B * DEPTH);

		while (i - seen >= nr)
			seen = atomic_load_explicit(&sh->taken, memory_order_acquire);
		gx_copy(slots + i % nr * slot_b, src + off, slot_b);
		atomic_store_explicit(&sh->seq[i % nr * 16], (uint32_t)i + 1, memory_order_release);
	}
	return (double)i * slot_b / (gx_now_ns() - begin);
}

int main(int argc, char *argv[])
{
	uint32_t slot_b, nr;
	struct shared *sh;
	char *slots, *buf;
	pid_t pid;

	if (argc != 7) {
		fprintf(stderr, "usage: %s CPU CPU SLOT_B SLOTS SECONDS copy|stream\n", argv[0]);
		return 2;
	}
	slot_b = atoi(argv[3]);
	nr = atoi(argv[4]);
	sh = map(sizeof(*sh) + nr * 64);
	memset(sh, 0, sizeof(*sh) + nr * 64);
	slots = map((size_t)slot_b * nr);
	pid = fork();
	if (pid < 0)
		return 1;
	pin(atoi(argv[pid ? 1 : 2]));
	buf = map((size_t)MESSAGE_B * DEPTH + slot_b);
	if (!pid) {
		reader(sh, slots, buf, slot_b, nr, !strcmp(argv[6], "stream"));
		_exit(0);
	}
	printf("%.2f\n", writer(sh, slots, buf, slot_b, nr, atof(argv[5])));
	atomic_store(&sh->stop, 1);
	waitpid(pid, NULL, 0);
	return 0;
}
