/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which CPUs the plugin's cores run on. The ranks of a host start at the same time and know nothing
 * of one another. So a process claims each CPU by a name that the kernel gives to one process at a
 * time: an abstract Unix socket, which ends with the process. All ranks together claim from the
 * upper half of the physical cores, so the computation keeps the lower half, and the siblings of
 * all. A rank takes those near its GPU first, of the same NUMA node, as the kernel says. Called at
 * init and at the last finalize, one thread at a time; a child of fork() calls cpus_release().
 * gxperf info only looks, so that a rank which starts at that moment finds every CPU as it is.
 */
#include "plug.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CPUS_PIN_MIN                                                                               \
	4	       /* physical cores. With fewer, NCCL's threads need them more than the
			* polling cores need their own */
#define CPUS_TWO_MIN 4 /* with so many to choose from, a process takes two, ... */
#define CPUS_FAR_MAX 8 /* ... and at most so many where other hosts reach it */

#define CPUS_NAME "gx-cpu-"

static int claims[LANES_MAX];
static unsigned nr_claims;

static bool cpu_claim(unsigned cpu)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int len = snprintf(sa.sun_path + 1, sizeof(sa.sun_path) - 1, CPUS_NAME "%u", cpu);

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

void cpus_claimed(cpu_set_t *out)
{
	FILE *f = fopen("/proc/net/unix", "re");
	char line[256];
	unsigned cpu;

	CPU_ZERO(out);
	while (f && fgets(line, sizeof(line), f)) {
		const char *name = strstr(line, " @" CPUS_NAME);

		if (name && sscanf(name, " @" CPUS_NAME "%5u", &cpu) == 1 && cpu < CPU_SETSIZE)
			CPU_SET(cpu, out);
	}
	if (f)
		fclose(f);
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

unsigned cpus_spread(const cpu_set_t *may, unsigned (*first)(unsigned cpu), int out[])
{
	cpu_set_t seen; /* lowest CPUs of the physical cores so far */
	unsigned nr = 0, n;

	CPU_ZERO(&seen);
	for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		unsigned core = CPU_ISSET(cpu, may) ? first(cpu) : CPU_SETSIZE;

		if (core >= CPU_SETSIZE || CPU_ISSET(core, &seen))
			continue;
		CPU_SET(core, &seen);
		out[nr++] = (int)cpu;
	}
	if (nr < CPUS_PIN_MIN)
		return 0;
	n = nr / 2;
	for (unsigned i = 0; i < n; i++) /* i < nr - 1 - i: no place is read after it was written */
		out[i] = out[nr - 1 - i];
	return n;
}

unsigned cpus_order(const cpu_set_t *may, const cpu_set_t *near, unsigned (*first)(unsigned cpu),
		    int out[CPU_SETSIZE])
{
	cpu_set_t here, rest;
	unsigned nr;

	CPU_AND(&here, may, near);
	CPU_XOR(&rest, may, &here);
	nr = cpus_spread(&here, first, out);
	if (!nr)
		return cpus_spread(may, first, out);
	return nr + cpus_spread(&rest, first, out + nr); /* half of the first: there is room */
}

bool cpus_read(const char *path, cpu_set_t *out)
{
	FILE *f = fopen(path, "re");
	unsigned first, last;
	int next = ',';

	CPU_ZERO(out);
	while (f && next == ',' && fscanf(f, "%u", &first) == 1) {
		last = first;
		next = getc(f);
		if (next == '-') {
			if (fscanf(f, "%u", &last) != 1)
				break;
			next = getc(f);
		}
		for (; first <= last && first < CPU_SETSIZE; first++)
			CPU_SET(first, out);
	}
	if (f)
		fclose(f);
	return CPU_COUNT(out) > 0;
}

static void cpus_near(const char *pci, cpu_set_t *out)
{
	char path[64];

	CPU_ZERO(out);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/local_cpulist", pci);
	if (pci[0])
		cpus_read(path, out);
}

unsigned cpus_far(const int cpus[], unsigned nr, const cpu_set_t *near)
{
	unsigned far = 0;

	for (unsigned i = 0; i < nr; i++)
		far += !CPU_ISSET((unsigned)cpus[i], near);
	return far;
}

/* @claimed: NULL: claim them. */
static unsigned cpus_claim(const int from[], unsigned nr, const cpu_set_t *claimed, unsigned want,
			   int cpus[LANES_MAX])
{
	unsigned n = 0;

	for (unsigned i = 0; i < nr && n < want; i++) {
		unsigned cpu = (unsigned)from[i];

		if (claimed ? !CPU_ISSET(cpu, claimed) : cpu_claim(cpu))
			cpus[n++] = from[i];
	}
	return n;
}

/* Ranks of this host, as torchrun says, or else one for each GPU that is seen. */
static unsigned ranks_here(void)
{
	const char *text = getenv("LOCAL_WORLD_SIZE");
	int n = text ? atoi(text) : 0;
	char path[32];

	if (n > 0)
		return (unsigned)n;
	do
		snprintf(path, sizeof(path), "/dev/nvidia%d", n);
	while (!access(path, F_OK) && ++n < 64);
	return n ? (unsigned)n : 1;
}

/* @nr_may: half of the physical cores. Over the kernel's TCP a core carries some 2.7 GB/s, encrypted;
 * one that has nothing to do sleeps. */
unsigned cpus_default(const struct conf *c, unsigned nr_may)
{
	unsigned share = nr_may / ranks_here(), least = nr_may >= CPUS_TWO_MIN ? 2 : 1;

	if (c->near || (!c->key_file[0] && !c->insecure)) /* ranks of this host alone */
		return least;
	share = share < CPUS_FAR_MAX ? share : CPUS_FAR_MAX;
	return share > least ? share : least;
}

unsigned cpus_choose(const struct conf *c, const char *pci, const cpu_set_t *claimed,
		     int cpus[LANES_MAX])
{
	unsigned nr = c->nr_cores, nr_may, n;
	int from[CPU_SETSIZE];
	cpu_set_t may, near;

	if (c->nr_cpus) {
		memcpy(cpus, c->cpus, c->nr_cpus * sizeof(cpus[0]));
		return c->nr_cpus;
	}
	CPU_ZERO(&may);
	if (sched_getaffinity(0, sizeof(may), &may))
		CPU_ZERO(&may);
	cpus_near(pci, &near);
	nr_may = cpus_order(&may, &near, cpu_first_sibling, from);
	if (!nr)
		nr = cpus_default(c, nr_may);
	n = cpus_claim(from, nr_may, claimed, nr, cpus);
	if (pci[0] && cpus_far(cpus, n, &near))
		say_info("%u of %u polling cores are not on CPUs near the GPU at %s: other ranks "
			 "have these, this process may not run there, or the kernel names none",
			 cpus_far(cpus, n, &near), nr, pci);
	if (n < nr)
		say_info("%u of %u polling cores are not pinned: this process may run on %d CPUs, "
			 "the ranks of a host share the upper half of their physical cores, and "
			 "the rest is for the computation; GX_NCCL_CPUS names CPUs",
			 nr - n, nr, CPU_COUNT(&may));
	while (n < nr)
		cpus[n++] = -1;
	return nr;
}
