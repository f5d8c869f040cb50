/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which CPUs the plugin's cores run on. The ranks of a host start at the same time and know nothing
 * of one another. So a process claims each CPU by a name that the kernel gives to one process at a
 * time: an abstract Unix socket, which ends with the process. Called at init and at the last
 * finalize, one thread at a time; a child of fork() calls cpus_release().
 */
#include "plug.h"

#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CPUS_PIN_MIN 4 /* with fewer, NCCL's threads need them more than the cores need their own */
#define CPUS_TWO_MIN 8 /* with so many, a process takes two cores */

static int claims[LANES_MAX];
static unsigned nr_claims;

static bool cpu_claim(unsigned cpu)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int len = snprintf(sa.sun_path + 1, sizeof(sa.sun_path) - 1, "gx-cpu-%u", cpu);

	if (fd < 0)
		return false;
	if (nr_claims == LANES_MAX ||
	    bind(fd, (struct sockaddr *)&sa,
		 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len))) {
		close(fd);
		return false;
	}
	claims[nr_claims++] = fd;
	return true;
}

void cpus_release(void)
{
	while (nr_claims)
		close(claims[--nr_claims]);
}

/* The lowest CPU of the same physical core. */
static unsigned cpu_first_sibling(unsigned cpu)
{
	char path[96];
	unsigned first = cpu;
	FILE *f;

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list",
		 cpu);
	f = fopen(path, "re");
	if (!f)
		return cpu;
	if (fscanf(f, "%u", &first) != 1)
		first = cpu;
	fclose(f);
	return first;
}

/* From the highest CPU down, because programs begin at the lowest. First one CPU of each physical
 * core, then the others. */
static unsigned cpus_claim(const cpu_set_t *may, unsigned want, int cpus[LANES_MAX])
{
	unsigned n = 0;

	for (int others = 0; others < 2; others++)
		for (unsigned cpu = CPU_SETSIZE; cpu-- > 0 && n < want;) {
			if (!CPU_ISSET(cpu, may) ||
			    (cpu_first_sibling(cpu) != cpu) != (others != 0))
				continue;
			if (cpu_claim(cpu))
				cpus[n++] = (int)cpu;
		}
	return n;
}

unsigned cpus_choose(const struct conf *c, int cpus[LANES_MAX])
{
	unsigned nr = c->nr_cores, nr_may, n = 0;
	cpu_set_t may;

	if (c->nr_cpus) {
		memcpy(cpus, c->cpus, c->nr_cpus * sizeof(cpus[0]));
		return c->nr_cpus;
	}
	CPU_ZERO(&may);
	nr_may = sched_getaffinity(0, sizeof(may), &may) ? 0 : (unsigned)CPU_COUNT(&may);
	if (!nr)
		nr = nr_may >= CPUS_TWO_MIN ? 2 : 1;
	if (nr_may >= CPUS_PIN_MIN && nr < nr_may)
		n = cpus_claim(&may, nr, cpus);
	if (n < nr)
		say_info("%u of %u polling cores are not pinned: this process may run on %u CPUs, "
			 "and other ranks have some of them; GX_NCCL_CPUS names CPUs",
			 nr - n, nr, nr_may);
	while (n < nr)
		cpus[n++] = -1;
	return nr;
}
