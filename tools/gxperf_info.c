// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf info: what this host has for gx, and, with an address, what a server offers. Each port is
 * opened on its own, so that one that cannot be opened says why and hides nothing of the others.
 */
#include "gxperf.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#define INFO_DESCRIBE_MAX 16384
#define INFO_GPUS_MAX	  16
#define INFO_GPU_TRY_B	  (2u << 20)
#define INFO_CONNS	  4 /* each times pairs for half a second at most */
#define INFO_WAIT_NS	  20000000000ull
#define INFO_HUGEPAGES	  "/sys/kernel/mm/hugepages"

static unsigned long info_number(const char *dir, const char *name)
{
	char path[512];
	unsigned long v = 0;
	FILE *f;

	snprintf(path, sizeof(path), INFO_HUGEPAGES "/%s/%s", dir, name);
	f = fopen(path, "re");
	if (f && fscanf(f, "%lu", &v) != 1)
		v = 0;
	if (f)
		fclose(f);
	return v;
}

static void info_hugepages(void)
{
	DIR *dir = opendir(INFO_HUGEPAGES);
	struct dirent *e;
	unsigned long total = 0, nr;

	while (dir && (e = readdir(dir))) {
		if (strncmp(e->d_name, "hugepages-", 10))
			continue;
		nr = info_number(e->d_name, "nr_hugepages");
		total += nr;
		printf("huge pages of %-10s %lu, %lu free\n", e->d_name + 10, nr,
		       info_number(e->d_name, "free_hugepages"));
	}
	if (dir)
		closedir(dir);
	if (!total)
		printf("no huge pages: gx goes on with normal ones, at the cost of TLB misses; as "
		       "root: "
		       "sysctl -w vm.nr_hugepages=1024\n");
}

static void info_host(const struct perf_opts *opts)
{
	struct opt_cpus allowed;
	char text[512];
	struct utsname u;

	printf("gxperf %s\n", gx_version());
	if (!uname(&u))
		printf("host %s, %s %s\n", u.nodename, u.sysname, u.release);
	if (!opt_cpus_allowed(&allowed)) {
		opt_cpus_text(&allowed, text, sizeof(text));
		printf("CPUs this process may use: %s\n", text);
	}
	opt_cpus_text(&opts->cpus, text, sizeof(text));
	printf("CPUs gxperf polls on: %s\n", text);
	info_hugepages();
}

/* Return: how many there are. */
static unsigned info_gpus(struct gx *gx)
{
	unsigned nr = 0;

	for (int i = 0; i < INFO_GPUS_MAX; i++) {
		struct gx_mem *mem;

		if (gx_mem_alloc(gx, GX_MEM_CUDA, i, INFO_GPU_TRY_B, &mem)) {
			if (!nr)
				printf("no GPU: %s\n", gx_error());
			break;
		}
		printf("GPU cuda:%d: memory can be used\n", i);
		gx_mem_free(mem);
		nr++;
	}
	return nr;
}

/* A server on all GPUs, in this process. Return: its port, -errno with gx_error(). */
static int info_server_of_gpus(struct gx *server, unsigned nr)
{
	int ret = 0;

	for (unsigned i = 0; i < nr && !ret; i++) {
		struct gx_mem *mem;
		char name[16];

		snprintf(name, sizeof(name), "%u", i);
		ret = gx_mem_alloc(server, GX_MEM_CUDA, (int)i, INFO_GPU_TRY_B, &mem);
		if (!ret)
			ret = gx_mem_share(mem, name, GX_ACCESS_PUT | GX_ACCESS_GET);
	}
	return ret ? ret : gx_listen(server, "127.0.0.1:0");
}

/* Connections have @gx time all pairs of GPUs, for gx_describe(). */
static void info_pairs(struct gx *gx, unsigned nr)
{
	static const char *const port = "shm";
	struct gx_connect_opts how = GX_INIT(how);
	struct gx_opts opts = GX_INIT(opts);
	struct gx *server = NULL;
	struct gx_conn *c;
	char addr[32];
	int ret;

	opts.ports = &port;
	opts.nr_ports = 1;
	opts.server = true;
	opts.engine = GX_COPY_CE; /* it copies nothing, and times nothing */
	how.link = "local";
	ret = gx_open(&opts, &server);
	if (!ret)
		ret = info_server_of_gpus(server, nr);
	snprintf(addr, sizeof(addr), "127.0.0.1:%d", ret);
	for (unsigned i = 0; i < INFO_CONNS && ret >= 0; i++) {
		ret = gx_connect(gx, addr, &how, &c);
		if (ret)
			break;
		ret = gx_conn_wait(c, INFO_WAIT_NS);
		gx_conn_close(c);
	}
	if (ret < 0)
		printf("pairs of GPUs cannot be timed: %s\n", gx_error());
	gx_close(server);
}

static int info_describe(struct gx *gx)
{
	char *text = calloc(1, INFO_DESCRIBE_MAX);
	int ret = text ? gx_describe(gx, text, INFO_DESCRIBE_MAX) : -ENOMEM;

	if (ret >= 0)
		printf("%s%s", text, text[0] && text[strlen(text) - 1] != '\n' ? "\n" : "");
	free(text);
	return ret < 0 ? ret : 0;
}

/* What is there whatever the port, told by a context over the port that runs anywhere. */
static int info_local(struct out *out)
{
	static const char *const ports[] = {"shm", "udp"};
	struct gx_opts opts = GX_INIT(opts);
	struct gx *gx;
	unsigned nr;

	opts.ports = ports;
	opts.nr_ports = 2;
	if (gx_open(&opts, &gx)) {
		out_error(out, "%s", gx_error());
		return PERF_FAILED;
	}
	nr = info_gpus(gx);
	if (nr)
		info_pairs(gx, nr);
	if (info_describe(gx))
		out_error(out, "%s", gx_error());
	gx_close(gx);
	return PERF_OK;
}

static void info_ports(void)
{
	static const char *const ports[] = {"shm", "udp", "dpdk:net_null0"};

	for (unsigned i = 0; i < sizeof(ports) / sizeof(ports[0]); i++) {
		struct gx_opts opts = GX_INIT(opts);
		struct gx *gx;

		opts.ports = &ports[i];
		opts.nr_ports = 1;
		if (gx_open(&opts, &gx)) {
			printf("port %.*s: no: %s\n", (int)strcspn(ports[i], ":"), ports[i],
			       gx_error());
			continue;
		}
		printf("port %.*s: yes\n", (int)strcspn(ports[i], ":"), ports[i]);
		gx_close(gx);
	}
}

static void info_regions(struct perf *perf)
{
	struct gx_region r = GX_INIT(r);

	for (unsigned i = 0; !gx_conn_region(perf->conns[0].conn, NULL, i, &r); i++) {
		char place[32], size[32];

		opt_place_text(r.kind, r.device, place, sizeof(place));
		opt_size_text(r.len, size, sizeof(size));
		printf("region %s: %s, %s%s%s\n", r.name, place, size,
		       r.access & GX_ACCESS_PUT ? ", put" : "",
		       r.access & GX_ACCESS_GET ? ", get" : "");
	}
}

static void info_check(const struct gx_conn_info *info)
{
	if (info->integrity)
		printf("payload there is checked by %s for host memory, by %s for memory of GPUs\n",
		       opt_check_text(info->integrity, info->check_unpack_peer, GX_MEM_HOST),
		       opt_check_text(info->integrity, info->check_unpack_peer, GX_MEM_CUDA));
}

static int info_server(const struct perf_opts *opts, struct out *out)
{
	struct perf_opts one = *opts;
	struct perf perf;
	int ret;

	one.nr_conns = 1;
	ret = perf_open(&one, out, 1, &perf);
	if (!ret)
		ret = perf_connect_any(&perf);
	if (!ret) {
		printf("\nserver %s: %s\n", opts->addr, perf.info.peer);
		printf("link %s, port %s: %s\n", perf.info.link, perf.info.port, perf.info.why);
		printf("lanes %u, quantum %u, chunk %u, window %u, integrity %s\n", perf.info.lanes,
		       perf.info.quantum_b, perf.info.chunk_b, perf.info.window,
		       opt_integrity_text(perf.info.integrity));
		info_check(&perf.info);
		info_regions(&perf);
		printf("%s", perf.server_describe ? perf.server_describe : "");
	}
	perf_close(&perf);
	return ret;
}

int perf_info(const struct perf_opts *opts, struct out *out)
{
	int ret;

	info_host(opts);
	ret = info_local(out);
	info_ports();
	fflush(stdout);
	if (!ret && opts->addr)
		ret = info_server(opts, out);
	return ret;
}
