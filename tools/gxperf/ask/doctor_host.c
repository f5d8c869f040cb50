// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf doctor: what /proc and /sys of this host say. For tests GX_DOCTOR_ROOT names a folder that has
 * a proc/ and a sys/ of its own. A file that is not there says nothing. Main thread only.
 */
#include "gxperf/ask/doctor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/memfd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HOST_TEXT_MAX	 4096
#define HOST_MEMLOCK_MIN (64ull << 20) /* rings of RDMA and io_uring, keys */
#define HOST_FILES_MIN	 4096	       /* 1,024 connections */
#define HOST_MTU_MIN	 4000	       /* below, a packet carries a fifth */
#define HOST_IRQS_SAID	 4
#define HOST_HUGE_B	 (2 << 20)

/* ---- Reading ---- */

__attribute__((format(printf, 1, 0))) static void host_path(const char *fmt, va_list ap,
							    char path[PATH_MAX])
{
	const char *root = getenv("GX_DOCTOR_ROOT");
	int n = snprintf(path, PATH_MAX, "%s", root ? root : "");

	if (n >= 0 && n < PATH_MAX)
		vsnprintf(path + n, (size_t)(PATH_MAX - n), fmt, ap);
}

/* The text of a small file, without the last newline. Return: is it there? */
__attribute__((format(printf, 2, 3))) static bool host_read(char text[HOST_TEXT_MAX],
							    const char *fmt, ...)
{
	char path[PATH_MAX];
	size_t n = 0;
	va_list ap;
	FILE *f;

	va_start(ap, fmt);
	host_path(fmt, ap, path);
	va_end(ap);
	f = fopen(path, "re");
	if (f) {
		n = fread(text, 1, HOST_TEXT_MAX - 1, f);
		fclose(f);
	}
	text[n] = '\0';
	if (n && text[n - 1] == '\n')
		text[n - 1] = '\0';
	return f;
}

__attribute__((format(printf, 1, 2))) static DIR *host_dir(const char *fmt, ...)
{
	char path[PATH_MAX];
	va_list ap;

	va_start(ap, fmt);
	host_path(fmt, ap, path);
	va_end(ap);
	return opendir(path);
}

/* Is @cpu in a list as "0-3,8"? */
static bool list_has(const char *list, int cpu)
{
	int first, last, n;

	while (sscanf(list, "%d%n", &first, &n) == 1) {
		list += n;
		last = first;
		if (sscanf(list, "-%d%n", &last, &n) == 1)
			list += n;
		if (cpu >= first && cpu <= last)
			return true;
		if (*list++ != ',')
			break;
	}
	return false;
}

/* ---- Memory and limits ---- */

/* May this process take a huge page? That a page is free does not say so: a cgroup may forbid it. */
static bool huge_given(void)
{
	int fd = memfd_create("gxperf-doctor", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);
	bool given = fd >= 0 && !fallocate(fd, 0, 0, HOST_HUGE_B);

	if (fd >= 0)
		close(fd);
	return given || getenv("GX_DOCTOR_ROOT");
}

/* Of 2 MiB, since gx takes no others. */
static void host_hugepages(struct doctor *d)
{
	char text[HOST_TEXT_MAX];
	unsigned long long total, nr_free;

	host_read(text, "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
	total = strtoull(text, NULL, 10);
	host_read(text, "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
	nr_free = strtoull(text, NULL, 10);
	if (!total)
		doctor_say(d, DOCTOR_SLOW, "hugepages", "as root: sysctl -w vm.nr_hugepages=1024",
			   "none: normal pages cost TLB misses");
	else if (!nr_free)
		doctor_say(d, DOCTOR_SLOW, "hugepages",
			   "as root: raise vm.nr_hugepages, or end what holds them",
			   "all %llu are in use: a process that starts now has normal pages",
			   total);
	else if (!huge_given())
		doctor_say(d, DOCTOR_SLOW, "hugepages",
			   "raise the limit of the cgroup (hugetlb.2MB.max; in Kubernetes "
			   "resources.limits, hugepages-2Mi), or of its NUMA nodes (cpuset.mems)",
			   "%llu of %llu are free, and denied to this process: normal pages",
			   nr_free, total);
	else
		doctor_say(d, DOCTOR_OK, "hugepages", "", "%llu of %llu are free", nr_free, total);
}

/* "Max locked memory  8388608  8388608  bytes". Return: the soft limit; ULLONG_MAX: none. */
static unsigned long long limit_of(const char *text, const char *name)
{
	const char *at = strstr(text, name);
	unsigned long long v;

	return at && sscanf(at + strlen(name), "%llu", &v) == 1 ? v : ULLONG_MAX;
}

static void host_limits(struct doctor *d)
{
	unsigned long long locked, files;
	char text[HOST_TEXT_MAX];

	if (!host_read(text, "/proc/self/limits"))
		return;
	locked = limit_of(text, "Max locked memory");
	files = limit_of(text, "Max open files");
	if (locked < HOST_MEMLOCK_MIN)
		doctor_say(d, DOCTOR_SLOW, "memlock",
			   "ulimit -l unlimited; LimitMEMLOCK=infinity in a unit",
			   "%llu KiB may be locked in memory: RDMA and keys want more",
			   locked >> 10);
	else
		doctor_say(d, DOCTOR_OK, "memlock", "", "enough may be locked in memory");
	if (files < HOST_FILES_MIN)
		doctor_say(d, DOCTOR_SLOW, "files", "ulimit -n 65536; LimitNOFILE=65536 in a unit",
			   "%llu descriptors: too few for 1,024 connections", files);
	else
		doctor_say(d, DOCTOR_OK, "files", "", "enough descriptors");
}

/* ---- CPUs ---- */

/* CPU time that a cgroup allows, in CPUs; 0: all. */
static double quota_cpus(void)
{
	char text[HOST_TEXT_MAX], group[1024], *at;
	unsigned long long quota, period;

	host_read(text, "/proc/self/cgroup");
	at = strstr(text, "0::");
	if (!at)
		return 0;
	snprintf(group, sizeof(group), "%.*s", (int)strcspn(at + 3, "\n"), at + 3);
	if (!host_read(text, "/sys/fs/cgroup%s/cpu.max", group) ||
	    sscanf(text, "%llu %llu", &quota, &period) != 2 || !period)
		return 0;
	return (double)quota / (double)period;
}

static void host_cpus(struct doctor *d)
{
	const struct opt_cpus *cpus = &d->opts->conn.cpus;
	double quota = quota_cpus();
	char text[HOST_TEXT_MAX];
	unsigned nr_slow = 0, nr_isolated = 0;

	for (unsigned i = 0; i < cpus->nr; i++) {
		if (host_read(text, "/sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor",
			      cpus->cpu[i]) &&
		    strcmp(text, "performance") != 0)
			nr_slow++;
		host_read(text, "/sys/devices/system/cpu/isolated");
		nr_isolated += list_has(text, cpus->cpu[i]);
	}
	if (quota > 0 && quota < cpus->nr)
		doctor_say(
			d, DOCTOR_SLOW, "quota",
			"give the cgroup (container, slice) a CPU for each core: CPUQuota=, cpu.max",
			"the cgroup has %.2f CPUs, and %u cores poll: they stand part of the time",
			quota, cpus->nr);
	if (nr_slow)
		doctor_say(d, DOCTOR_SLOW, "governor",
			   "as root: cpupower frequency-set -g performance",
			   "%u of %u polling CPUs change their frequency", nr_slow, cpus->nr);
	else
		doctor_say(d, DOCTOR_OK, "governor", "",
			   "polling CPUs keep their frequency, or do not tell");
	if (nr_isolated < cpus->nr)
		doctor_say(d, DOCTOR_HINT, "isolated",
			   "on the kernel's command line: isolcpus= and nohz_full= with these CPUs",
			   "%u of %u polling CPUs also run other work: longer tails",
			   cpus->nr - nr_isolated, cpus->nr);
	else
		doctor_say(d, DOCTOR_OK, "isolated", "", "polling CPUs run nothing else");
}

static void host_clock(struct doctor *d)
{
	char text[HOST_TEXT_MAX];
	bool fast;

	if (!host_read(text, "/sys/devices/system/clocksource/clocksource0/current_clocksource"))
		return;
	fast = !strcmp(text, "tsc") || !strcmp(text, "kvm-clock") ||
	       !strcmp(text, "arch_sys_counter") || !strncmp(text, "hyperv_clocksource_tsc", 22);
	doctor_say(
		d, fast ? DOCTOR_OK : DOCTOR_SLOW, "clock",
		fast ? ""
		     : "boot with clocksource=tsc (and tsc=reliable, where the host's clock is good)",
		"%s%s", text, fast ? "" : ": each look at the time is a call into the kernel");
}

/* ---- GPUs ---- */

/* Processes whose name begins with nvidia-cuda-mps. */
static bool mps_runs(void)
{
	DIR *dir = host_dir("/proc");
	char text[HOST_TEXT_MAX];
	struct dirent *e;
	bool found = false;

	while (dir && !found && (e = readdir(dir)))
		found = e->d_name[0] >= '1' && e->d_name[0] <= '9' &&
			host_read(text, "/proc/%s/comm", e->d_name) &&
			!strncmp(text, "nvidia-cuda-mps", 15);
	if (dir)
		closedir(dir);
	return found;
}

static void host_gpus(struct doctor *d)
{
	struct gx_device dev = GX_INIT(dev);
	char text[HOST_TEXT_MAX];
	unsigned nr = 0;

	if (!host_read(text, "/proc/driver/nvidia/version"))
		return;
	text[strcspn(text, "\n")] = '\0';
	for (unsigned i = 0; !gx_devices(NULL, i, &dev); i++)
		nr += dev.kind == GX_DEVICE_GPU;
	if (!nr)
		doctor_say(
			d, DOCTOR_REFUSED, "gpu",
			"nvidia-smi must list one; in a container pass it in (--gpus all) with libcuda.so.1",
			"the kernel has NVIDIA's driver (%.100s), and this process sees no GPU",
			text);
	else
		doctor_say(d, DOCTOR_OK, "gpu", "", "%u, driver %.100s", nr, text);
	if (mps_runs())
		doctor_say(d, DOCTOR_OK, "mps", "",
			   "runs: processes may share a GPU at the same time");
	else
		doctor_say(d, DOCTOR_HINT, "mps", "nvidia-cuda-mps-control -d",
			   "does not run: two processes on one GPU take turns in time");
}

/* ---- The interface ---- */

unsigned doctor_nic_mtu(const struct doctor *d)
{
	char text[HOST_TEXT_MAX];

	host_read(text, "/sys/class/net/%s/mtu", d->nic);
	return (unsigned)strtoul(text, NULL, 10);
}

static void nic_node(struct doctor *d)
{
	char text[HOST_TEXT_MAX], list[HOST_TEXT_MAX], cure[HOST_TEXT_MAX + 64];
	unsigned nr_far = 0;
	int node;

	if (!host_read(text, "/sys/class/net/%s/device/numa_node", d->nic))
		return;
	node = atoi(text);
	if (node < 0 || !host_read(list, "/sys/devices/system/node/node%d/cpulist", node))
		return;
	for (unsigned i = 0; i < d->opts->conn.cpus.nr; i++)
		nr_far += !list_has(list, d->opts->conn.cpus.cpu[i]);
	snprintf(cure, sizeof(cure), "--cores with CPUs of node %d: %.200s", node, list);
	doctor_say(d, nr_far ? DOCTOR_SLOW : DOCTOR_OK, "numa", nr_far ? cure : "",
		   "%s is on node %d, and %u of %u polling CPUs on another", d->nic, node, nr_far,
		   d->opts->conn.cpus.nr);
}

/* Does interrupt @irq go to a CPU that polls? */
static bool irq_on_core(const struct doctor *d, const char *irq)
{
	char text[HOST_TEXT_MAX];

	if (!host_read(text, "/proc/irq/%s/effective_affinity_list", irq) || !text[0])
		host_read(text, "/proc/irq/%s/smp_affinity_list", irq);
	for (unsigned i = 0; i < d->opts->conn.cpus.nr; i++)
		if (list_has(text, d->opts->conn.cpus.cpu[i]))
			return true;
	return false;
}

static void nic_irqs(struct doctor *d)
{
	DIR *dir = host_dir("/sys/class/net/%s/device/msi_irqs", d->nic);
	char said[128] = "";
	struct dirent *e;
	unsigned nr = 0, nr_all = 0;

	if (!dir) /* virtio: the device under it */
		dir = host_dir("/sys/class/net/%s/device/../msi_irqs", d->nic);
	while (dir && (e = readdir(dir))) {
		size_t at = strlen(said);

		if (e->d_name[0] == '.')
			continue;
		nr_all++;
		if (!irq_on_core(d, e->d_name))
			continue;
		if (nr++ < HOST_IRQS_SAID)
			snprintf(said + at, sizeof(said) - at, " %.20s", e->d_name);
	}
	if (dir)
		closedir(dir);
	if (nr)
		doctor_say(
			d, DOCTOR_SLOW, "irqs",
			"as root: echo OTHER_CPUS > /proc/irq/N/smp_affinity_list for each, and keep "
			"irqbalance off them (IRQBALANCE_BANNED_CPULIST)",
			"%u interrupts of %s (%s%s) go to CPUs that poll", nr, d->nic, said + 1,
			nr > HOST_IRQS_SAID ? " ..." : "");
	else if (nr_all)
		doctor_say(d, DOCTOR_OK, "irqs", "", "interrupts of %s go to other CPUs", d->nic);
}

void doctor_nic(struct doctor *d)
{
	char link[PATH_MAX], path[PATH_MAX], text[HOST_TEXT_MAX], cure[128];
	const char *root = getenv("GX_DOCTOR_ROOT"), *driver;
	unsigned mtu = doctor_nic_mtu(d);
	ssize_t n;

	snprintf(path, sizeof(path), "%s/sys/class/net/%s/device/driver", root ? root : "", d->nic);
	n = readlink(path, link, sizeof(link) - 1);
	link[n > 0 ? n : 0] = '\0';
	driver = strrchr(link, '/');
	host_read(text, "/sys/class/net/%s/operstate", d->nic);
	snprintf(cure, sizeof(cure), "ip link set dev %.16s up; look at the cable", d->nic);
	if (!strcmp(text, "down"))
		doctor_say(d, DOCTOR_REFUSED, "nic", cure, "%s is down", d->nic);
	else
		doctor_say(d, DOCTOR_OK, "nic", "", "%s, driver %s", d->nic,
			   driver ? driver + 1 : "none");
	snprintf(cure, sizeof(cure),
		 "ip link set dev %.16s mtu 9000, at both ends and where the way takes it", d->nic);
	if (mtu && mtu < HOST_MTU_MIN)
		doctor_say(d, DOCTOR_SLOW, "mtu", cure,
			   "%s has an MTU of %u: six packets where one would do", d->nic, mtu);
	else if (mtu)
		doctor_say(d, DOCTOR_OK, "mtu", "", "%s has %u", d->nic, mtu);
	nic_node(d);
	nic_irqs(d);
}

void doctor_host(struct doctor *d)
{
	char text[HOST_TEXT_MAX];

	host_hugepages(d);
	host_limits(d);
	host_cpus(d);
	host_clock(d);
	host_gpus(d);
	if (host_read(text, "/proc/sys/kernel/io_uring_disabled") && strcmp(text, "0") != 0)
		doctor_say(d, DOCTOR_HINT, "io_uring",
			   "as root: sysctl -w kernel.io_uring_disabled=0",
			   "the kernel forbids it: the control thread takes epoll");
}
