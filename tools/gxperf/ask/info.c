// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf info: the parts of this host that gx can use, and, with an address, the server's offer.
 * Each port is opened by itself: if one fails, info prints its reason and still shows the others.
 */
#include "gxperf/ask/info.h"
#include "gxperf/ask/ask.h"

#include "common/json.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#define INFO_DESCRIBE_MAX 16384
#define INFO_GPUS_MAX	  16
#define INFO_GPU_TRY_B	  (2u << 20)
#define INFO_CONNS	  4 /* each times pairs for at most half a second */
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

static void info_hugepages(struct info *i)
{
	struct json_t *pages = js_array();
	DIR *dir = opendir(INFO_HUGEPAGES);
	struct dirent *e;
	unsigned long total = 0, nr, nr_free;

	while (dir && (e = readdir(dir))) {
		if (strncmp(e->d_name, "hugepages-", 10))
			continue;
		nr = info_number(e->d_name, "nr_hugepages");
		total += nr;
		nr_free = info_number(e->d_name, "free_hugepages");
		info_say(i, "huge pages of %-10s %lu, %lu free\n", e->d_name + 10, nr, nr_free);
		js_append(pages, js_pack("{s:s, s:I, s:I}", "size", e->d_name + 10, "pages",
					 (long long)nr, "free", (long long)nr_free));
	}
	if (dir)
		closedir(dir);
	js_set(i->doc, "huge_pages", pages);
	if (!total)
		info_say(
			i,
			"no huge pages: gx goes on with normal ones, at the cost of TLB misses; as "
			"root: "
			"sysctl -w vm.nr_hugepages=1024\n");
}

static void info_host(struct info *i, const struct perf_opts *opts)
{
	struct opt_cpus allowed;
	char text[512];
	struct utsname u;

	info_say(i, "gxperf %s\n", gx_version());
	if (!uname(&u))
		info_say(i, "host %s, %s %s\n", u.nodename, u.sysname, u.release);
	if (!opt_cpus_allowed(&allowed)) {
		opt_cpus_text(&allowed, text, sizeof(text));
		info_say(i, "CPUs this process may use: %s\n", text);
		js_set(i->doc, "cpus", js_string(text));
	}
	opt_cpus_text(&opts->conn.cpus, text, sizeof(text));
	info_say(i, "CPUs gxperf polls on: %s\n", text);
	js_set(i->doc, "cores", js_string(text));
	info_hugepages(i);
}

unsigned info_gpus(struct gx *gx, char why[INFO_WHY_MAX])
{
	unsigned nr = 0;

	while (nr < INFO_GPUS_MAX && !gx_gpu_open(gx, (int)nr))
		nr++;
	info_error(why);
	return nr;
}

static void info_device(struct info *i, const struct gx_device *d, struct json_t *all)
{
	static const char *const kinds[] = {"port", "RDMA", "interface", "GPU"};
	struct json_t *doc =
		js_pack("{s:s, s:s, s:i, s:i, s:I, s:b}", "kind", kinds[d->kind], "name", d->name,
			"number", (int)d->number, "numa", d->numa, "speed_mbps",
			(long long)d->speed_mbps, "up", !!(d->can & GX_DEVICE_UP));

	info_say(i, "%s %s", kinds[d->kind], d->name);
	if (d->kind == GX_DEVICE_RDMA || d->kind == GX_DEVICE_GPU)
		info_say(i, d->kind == GX_DEVICE_GPU ? ", cuda:%u" : " port %u", d->number);
	info_say(i, ": %s%s%s", d->can & GX_DEVICE_UP ? "up" : "down",
		 d->can & GX_DEVICE_ETHERNET ? ", over Ethernet" : "",
		 d->can & GX_DEVICE_LOSSLESS ? ", loses nothing" : "");
	if (d->speed_mbps)
		info_say(i, ", %.4g Gb/s", (double)d->speed_mbps / 1000);
	if (d->numa >= 0)
		info_say(i, ", NUMA node %d", d->numa);
	info_say(i, "%s%s\n", d->pci[0] ? ", PCIe " : "", d->pci);
	js_set(doc, "pci", js_string(d->pci[0] ? d->pci : NULL));
	if (d->kind == GX_DEVICE_RDMA)
		js_set(doc, "gids", info_gids(i, d));
	if (d->kind == GX_DEVICE_NIC)
		info_nic(i, d, doc);
	js_append(all, doc);
}

static void info_devices(struct info *i, struct gx *gx)
{
	struct gx_device d = GX_INIT(d);
	struct json_t *all = js_array();

	for (unsigned k = 0; !gx_devices(gx, k, &d); k++)
		info_device(i, &d, all);
	js_set(i->doc, "devices", all);
}

/* Open a server with memory of all GPUs, in this process. Return: its port, -errno with
 * gx_error(). */
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

/* Connect, so that @gx times all pairs of GPUs for gx_describe(). */
static void info_pairs(struct info *i, struct gx *gx, unsigned nr)
{
	static const struct gx_port_name port = {.name = "shm"};
	struct gx_connect_opts how = GX_INIT(how);
	struct gx_opts opts = GX_INIT(opts);
	struct gx *server = NULL;
	struct gx_conn *c;
	char addr[32];
	int ret;

	opts.ports = &port;
	opts.nr_ports = 1;
	opts.server = true;
	/* The server copies and times nothing. */
	opts.gpu = GX_WITH(gx_gpu_opts, .copy = GX_COPY_CE);
	how.link = "local";
	ret = gx_open(&opts, &server);
	if (!ret)
		ret = info_server_of_gpus(server, nr);
	snprintf(addr, sizeof(addr), "127.0.0.1:%d", ret);
	for (unsigned k = 0; k < INFO_CONNS && ret >= 0; k++) {
		ret = gx_connect(gx, addr, &how, &c);
		if (ret)
			break;
		ret = gx_conn_wait(c, INFO_WAIT_NS);
		gx_conn_close(c);
	}
	if (ret < 0) {
		char why[INFO_WHY_MAX];

		info_error(why);
		info_say(i, "pairs of GPUs cannot be timed: %s\n", why);
	}
	gx_close(server);
}

/* One string for each line. */
static struct json_t *info_lines(const char *text)
{
	struct json_t *lines = js_array();
	char *copy = strdup(text), *save = NULL;

	for (char *line = copy ? strtok_r(copy, "\n", &save) : NULL; line;
	     line = strtok_r(NULL, "\n", &save))
		js_append(lines, js_string(line));
	free(copy);
	return lines;
}

static int info_describe(struct info *i, struct gx *gx)
{
	char *text = calloc(1, INFO_DESCRIBE_MAX);
	int ret = text ? gx_describe(gx, text, INFO_DESCRIBE_MAX) : -ENOMEM;

	if (ret >= 0) {
		info_say(i, "%s%s", text, text[0] && text[strlen(text) - 1] != '\n' ? "\n" : "");
		js_set(i->doc, "describe", info_lines(text));
	}
	free(text);
	return ret < 0 ? ret : 0;
}

/* Facts that do not depend on the port, from a context over ports that run anywhere. */
static int info_local(struct info *i)
{
	static const struct gx_port_name ports[] = {{.name = "shm"}, {.name = "udp"}};
	struct gx_opts opts = GX_INIT(opts);
	char why[INFO_WHY_MAX];
	struct gx *gx;
	unsigned nr;

	opts.ports = ports;
	opts.nr_ports = 2;
	if (gx_open(&opts, &gx)) {
		report_error(i->report, "%s", gx_error());
		return PERF_FAILED;
	}
	info_devices(i, gx);
	nr = info_gpus(gx, why);
	js_set(i->doc, "gpus", js_pack("i", (int)nr));
	if (nr) {
		info_pairs(i, gx, nr);
	} else {
		info_say(i, "no GPU: %s\n", why);
		js_set(i->doc, "no_gpu", js_string(why));
	}
	if (info_describe(i, gx))
		report_error(i->report, "%s", gx_error());
	gx_close(gx);
	return PERF_OK;
}

static void info_ports(struct info *i)
{
	static const struct gx_port_name ports[] = {
		{.name = "shm"}, {.name = "udp"}, {.name = "dpdk", .device = "net_null0"}};
	struct json_t *doc = js_pack("{}");

	for (unsigned k = 0; k < sizeof(ports) / sizeof(ports[0]); k++) {
		struct gx_opts opts = GX_INIT(opts);
		struct json_t *one = js_pack("{}");
		struct gx *gx = NULL;
		const char *name = ports[k].name;
		char why[INFO_WHY_MAX] = "";
		int ret;

		opts.ports = &ports[k];
		opts.nr_ports = 1;
		ret = gx_open(&opts, &gx);
		if (ret)
			info_error(why);
		info_say(i, "port %s: %s%s\n", name, ret ? "no: " : "yes", why);
		js_set(one, "opens", js_pack("b", !ret));
		js_set(one, "why", js_string(ret ? why : NULL));
		js_set(doc, name, one);
		if (!ret)
			gx_close(gx);
	}
	js_set(i->doc, "ports", doc);
}

static struct json_t *info_regions(struct info *i, struct perf *perf)
{
	struct gx_region r = GX_INIT(r);
	struct json_t *all = js_array(), *one;

	for (unsigned k = 0; !gx_conn_region(perf->conns[0].conn, NULL, k, &r); k++) {
		char place[32], size[32];

		opt_place_text(r.kind, r.device, place, sizeof(place));
		opt_size_text(r.len, size, sizeof(size));
		info_say(i, "region %s: %s, %s%s%s\n", r.name, place, size,
			 r.access & GX_ACCESS_PUT ? ", put" : "",
			 r.access & GX_ACCESS_GET ? ", get" : "");
		one = js_pack("{s:s, s:I, s:b, s:b}", "place", place, "size_b", (long long)r.len,
			      "put", !!(r.access & GX_ACCESS_PUT), "get",
			      !!(r.access & GX_ACCESS_GET));
		js_set(one, "name", js_string(r.name));
		js_append(all, one);
	}
	return all;
}

static void info_crc_by(const struct info *i, const struct gx_conn_info *info)
{
	if (info->integrity == GX_INTEGRITY_MODE_CRC32C)
		info_say(i,
			 "the CRC of payload there is checked by %s for host memory, by %s for "
			 "memory of GPUs\n",
			 opt_crc_by_text(info->integrity, info->peer_crc_by_copy, GX_MEM_HOST),
			 opt_crc_by_text(info->integrity, info->peer_crc_by_copy, GX_MEM_CUDA));
}

static void info_server_tell(struct info *i, struct perf *perf)
{
	const struct gx_conn_info *c = &perf->info;
	const char *describe = perf->server_describe ? perf->server_describe : "";
	char auth[OPT_AUTH_MAX];
	struct json_t *doc =
		js_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:s}", "link", c->link, "port",
			c->port, "control", c->control, "lanes", (int)c->lanes, "quantum",
			(int)c->quantum_b, "chunk", (int)c->chunk_b, "window", (int)c->window,
			"integrity", opt_integrity_text(c->integrity));

	info_say(i, "\nserver %s: %s\n", perf->opts->addr, c->peer);
	info_say(i, "link %s, port %s: %s\n", c->link, c->port, c->why);
	info_say(i, "lanes %u, quantum %u, chunk %u, window %u, integrity %s, %s\n", c->lanes,
		 c->quantum_b, c->chunk_b, c->window, opt_integrity_text(c->integrity),
		 opt_auth_text(c, auth));
	info_crc_by(i, c);
	js_set(doc, "auth", js_string(auth));
	js_set(doc, "peer", js_string(c->peer));
	js_set(doc, "why", js_string(c->why));
	js_set(doc, "reason", js_string(gx_reason_name(c->path_reason)));
	js_set(doc, "regions", info_regions(i, perf));
	js_set(doc, "describe", info_lines(describe));
	js_set(i->doc, "server", doc);
	info_say(i, "%s", describe);
}

static int info_server(struct info *i, const struct perf_opts *opts)
{
	struct perf_opts one = *opts;
	struct perf perf;
	int ret;

	one.server.nr_conns = 1;
	ret = perf_open(&one, i->report, 1, &perf);
	if (!ret)
		ret = perf_connect_any(&perf);
	if (!ret)
		info_server_tell(i, &perf);
	perf_close(&perf);
	return ret;
}

int perf_info(const struct perf_opts *opts, struct report *report)
{
	struct info i = {.report = report, .doc = js_pack("{}"), .quiet = !report_is_table(report)};
	int ret;

	if (opts->info.nccl) {
		ret = info_nccl(&i);
	} else {
		info_host(&i, opts);
		ret = info_local(&i);
		info_ports(&i);
		info_rdma(&i);
	}
	report_flush(report);
	if (!ret && opts->addr)
		ret = info_server(&i, opts);
	report_part(report, "info", i.doc);
	return ret;
}
