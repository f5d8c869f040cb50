/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a child of fork() has of its parent's memory.
 */
#ifndef COMMON_FORK_H
#define COMMON_FORK_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORK_NEEDLE_B 32
#define FORK_LOOK_B   (1u << 20)

/* Bytes to look for. They are kept turned over, so that they are not found here. */
struct fork_needle {
	uint8_t not_b[FORK_NEEDLE_B];
};

static inline struct fork_needle fork_needle(const void *b)
{
	struct fork_needle n;

	for (unsigned i = 0; i < FORK_NEEDLE_B; i++)
		n.not_b[i] = (uint8_t) ~((const uint8_t *)b)[i];
	return n;
}

/* Is it among these bytes? */
static inline bool fork_find(const uint8_t *b, size_t len, const struct fork_needle *n)
{
	const uint8_t *at = b, *end = b + len;

	while ((at = memchr(at, n->not_b[0] ^ 255, (size_t)(end - at))) &&
	       end - at >= FORK_NEEDLE_B) {
		unsigned i = 0;

		while (i < FORK_NEEDLE_B && at[i] + n->not_b[i] == 255)
			i++;
		if (i == FORK_NEEDLE_B)
			return true;
		at++;
	}
	return false;
}

/* Bit i: writable memory of this process has needle i. A sanitizer's own memory is left out. */
static inline unsigned fork_look(const struct fork_needle *n, unsigned nr)
{
	uint8_t *buf =
		mmap(NULL, FORK_LOOK_B, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	FILE *maps = fopen("/proc/self/maps", "re");
	int mem = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	unsigned long from, to;
	unsigned found = 0;
	char line[512], mode[8];

	while (maps && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) != 3 || memcmp(mode, "rw", 2) ||
		    to - from > 1ul << 30)
			continue;
		for (; from < to; from += FORK_LOOK_B - FORK_NEEDLE_B) {
			ssize_t len =
				pread(mem, buf, to - from < FORK_LOOK_B ? to - from : FORK_LOOK_B,
				      (off_t)from);

			for (unsigned k = 0; k < nr && len > 0; k++)
				found |= (uint32_t)fork_find(buf, (size_t)len, &n[k]) << k;
		}
	}
	if (maps)
		fclose(maps);
	close(mem);
	munmap(buf, FORK_LOOK_B);
	return found;
}

/* In a child: bits of the needles that it has; FORK_MAPPED: @page is there. */
#define FORK_MAPPED 64u
static inline unsigned fork_has(void *page, const struct fork_needle *n, unsigned nr)
{
	uintptr_t at = (uintptr_t)page & ~4095ul;
	pid_t pid = fork();
	int status = 0;

	if (!pid) {
		unsigned found = fork_look(n, nr);

		if (!msync((void *)at, 4096, MS_ASYNC))
			found |= FORK_MAPPED;
		_exit((int)found);
	}
	return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? (unsigned)WEXITSTATUS(status)
								    : ~0u;
}

#endif
