/* SPDX-License-Identifier: Apache-2.0 */
/*
 * May this process read and write a range of its own memory? gx_mem_reg() asks, on its caller's
 * thread. A program may register thousands of buffers, and have thousands of mappings: NCCL with
 * many peers in a process with CUDA. So gx asks the kernel for the mappings of the range alone,
 * where the kernel answers that (Linux 6.11). Older ones print all mappings, the range's among
 * them. Cheaper ways do not answer the question there: mincore() and msync() see what is mapped,
 * and not the rights; touching the pages would fill memory that nobody has used yet; a table of
 * earlier answers would be wrong when the program has put another mapping in the same place.
 */
#include "gx_internal/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* <linux/fs.h> of Linux 6.11. */
#define RANGE_QUERY	  _IOWR('f', 17, struct range_query)
#define RANGE_QUERY_READ  0x01
#define RANGE_QUERY_WRITE 0x02
struct range_query {
	uint64_t size, flags; /* flags 0: the mapping that covers .addr, else -ENOENT */
	uint64_t addr;
	uint64_t low, high, rights; /* of that mapping */
	uint64_t page_b, off, inode;
	uint32_t major, minor, name_b, build_id_b;
	uint64_t name, build_id; /* where these go; 0: not wanted */
};
_Static_assert(sizeof(struct range_query) == 104, "without padding; the number of the call has it");

/* Add the mapping [@low, @high) to what is known of [*@at, @end). Return: false: no more is needed,
 * because *@at cannot be read. */
static bool range_add(uintptr_t *at, uint64_t low, uint64_t high, bool r, bool w, int *can)
{
	if (low > *at || high <= *at || !r)
		return false;
	if (!w)
		*can &= ~GX_RANGE_WRITE;
	*at = high;
	return true;
}

/* Return: false: the kernel is too old. */
static bool range_ask(int fd, uintptr_t *at, uintptr_t end, int *can)
{
	bool more = true;

	while (more && *at < end) {
		struct range_query q = {.size = sizeof(q), .addr = *at};

		if (ioctl(fd, RANGE_QUERY, &q))
			return errno == ENOENT;
		more = range_add(at, q.low, q.high, q.rights & RANGE_QUERY_READ,
				 q.rights & RANGE_QUERY_WRITE, can);
	}
	return true;
}

/* The lines are sorted by address. The rest of a line that fgets() cut does not look like a
 * range. */
static void range_read(FILE *maps, uintptr_t *at, uintptr_t end, int *can)
{
	unsigned long low, high;
	char line[512], r, w;
	bool more = true;

	while (more && *at < end && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %c%c", &low, &high, &r, &w) == 4 && high > *at)
			more = range_add(at, low, high, r == 'r', w == 'w', can);
}

int gx_range_access_by(const void *addr, uint64_t len, bool ask)
{
	uintptr_t at = (uintptr_t)addr, end = at + len;
	int can = GX_RANGE_READ | GX_RANGE_WRITE;
	FILE *maps;

	if (end < at)
		return -EFAULT;
	maps = len ? fopen("/proc/self/maps", "re") : NULL;
	if (!maps)
		return can;
	if (!ask || !range_ask(fileno(maps), &at, end, &can))
		range_read(maps, &at, end, &can);
	fclose(maps);
	return at < end ? -EFAULT : can;
}

int gx_range_access(const void *addr, uint64_t len)
{
	return gx_range_access_by(addr, len, true);
}
