// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf demo: starts gxd on one CPU, measures against it from another with the ordinary
 * sub-commands, and sums up the results. It ends only the child that it started.
 */
#include "gxperf/base/child.h"
#include "common/flag.h"
#include "gxperf/move/move.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEMO_START_NS	20000000000ull
#define DEMO_STOP_NS	15000000000ull
#define DEMO_FILE_B	(64u << 20)
#define DEMO_REGION_B	(256u << 20)
#define DEMO_MEM_MIN_KB (2u << 20) /* with less memory: smaller messages */
#define DEMO_SMALL_B	(8u << 20)

struct demo {
	const struct perf_opts *opts;
	struct report *report;
	struct child gxd;
	char addr[128];
	int cpu[2]; /* gxd's, ours */
	uint64_t size_max;
	char file[256];
	bool rdma; /* link verbs has a device here */
	/* Results for the last sentences. */
	double local_gb_s, put_gb_s, local_lat_us, lat_us, udp_gb_s;
};

/* One sub-command of the demo. */
struct demo_step {
	int (*fn)(const struct perf_opts *opts, struct report *report);
	const char *command;
	enum gx_op_kind op;
	const char *port; /* or NULL: .link, by the best port */
	const char *link;
	uint64_t begin, end, factor;
	double seconds; /* for each size */
	size_t best;	/* offset of the double in struct demo for the result; 0: none */
	bool file;
};

static const struct demo_step demo_steps[] = {
	{perf_put, "put", GX_OP_PUT, NULL, "local", 64, 64u << 20, 16, 1,
	 offsetof(struct demo, local_gb_s), false},
	{perf_put, "get", GX_OP_GET, NULL, "local", 64u << 10, 64u << 20, 32, 1, 0, false},
	{perf_lat, "lat", GX_OP_PUT, NULL, "local", 64, 64, 2, 1,
	 offsetof(struct demo, local_lat_us), false},
	{perf_put, "put", GX_OP_PUT, "shm", NULL, 64, 64u << 20, 32, 1,
	 offsetof(struct demo, put_gb_s), false},
	{perf_put, "send", GX_OP_SEND, "shm", NULL, 64, 4u << 20, 256, 1, 0, false},
	{perf_lat, "lat", GX_OP_PUT, "shm", NULL, 64, 64, 2, 1, offsetof(struct demo, lat_us),
	 false},
	{perf_put, "put", GX_OP_PUT, "shm", NULL, 0, 0, 2, 0, 0, true},
	{perf_put, "get", GX_OP_GET, NULL, "local", 0, 0, 2, 0, 0, true},
	{perf_put, "put", GX_OP_PUT, "udp", NULL, 64u << 10, 4u << 20, 64, 1,
	 offsetof(struct demo, udp_gb_s), false},
	{perf_lat, "lat", GX_OP_PUT, "udp", NULL, 64, 64, 2, 0.5, 0, false},
	{perf_put, "put", GX_OP_PUT, NULL, "tcp", 64u << 10, 4u << 20, 64, 1, 0, false},
	{perf_put, "put", GX_OP_PUT, NULL, "verbs", 64u << 10, 4u << 20, 64, 1, 0, false},
};

/* ---- The server ---- */

/* Read the address from "gxperf put ADDR --mem kv". */
static int demo_addr_read(struct demo *d)
{
	uint64_t end = gx_now() + DEMO_START_NS;
	size_t len = 0;
	int got = 0;

	while (got != 1 && gx_now() < end && !child_ended(&d->gxd)) {
		char *text = child_text(d->gxd.out, &len);

		if (text && strchr(text, '\n'))
			got = sscanf(text, "gxperf put %127s", d->addr);
		free(text);
		perf_nap(10000000);
	}
	return got == 1 ? 0 : -ENOENT;
}

static void demo_log_show(const struct demo *d)
{
	size_t len = 0;
	char *text = child_text(d->gxd.err, &len);

	fwrite(text ? text : "", 1, len, stderr);
	free(text);
}

static int demo_start(struct demo *d)
{
	char path[4096], mem[96], cpu[16], place[32];
	char *const argv[] = {"gxd",  "--listen", "127.0.0.1:0", "--cores",
			      cpu,    "--port",	  "shm",	 "--port",
			      "udp",  "--mem",	  mem,		 d->rdma ? "--rdma" : NULL,
			      "auto", NULL};
	int ret = 0;

	opt_place_text(d->opts->demo.kind, d->opts->demo.device, place, sizeof(place));
	snprintf(mem, sizeof(mem), "kv=%s:%u", place, DEMO_REGION_B);
	snprintf(cpu, sizeof(cpu), "%d", d->cpu[0]);
	if (d->opts->demo.gxd)
		snprintf(path, sizeof(path), "%s", d->opts->demo.gxd);
	else
		ret = child_self("gxd", path, sizeof(path));
	if (!ret)
		ret = child_start(&d->gxd, path, argv, -1, true);
	if (ret) {
		report_error(d->report, "demo: %s", strerror(-ret));
		return PERF_FAILED;
	}
	if (!demo_addr_read(d))
		return PERF_OK;
	report_error(d->report, "demo: %s did not start; it said:", path);
	demo_log_show(d);
	return PERF_FAILED;
}

/* The demo also shows an orderly end. */
static int demo_stop(struct demo *d)
{
	int status;

	if (!d->gxd.pid)
		return PERF_OK;
	child_stop(&d->gxd);
	status = child_end(&d->gxd, DEMO_STOP_NS);
	if (!status)
		return PERF_OK;
	report_error(d->report, "demo: gxd did not end as it should (%s %d); it said:",
		     status > CHILD_SIGNAL ? "signal" : "status",
		     status > CHILD_SIGNAL ? status - CHILD_SIGNAL : status);
	demo_log_show(d);
	return PERF_FAILED;
}

/* ---- The file ---- */

static int demo_file_make(struct demo *d)
{
	const char *dir = getenv("TMPDIR");
	unsigned char *buf = malloc(DEMO_SMALL_B);
	int fd, ret = buf ? 0 : -ENOMEM;

	snprintf(d->file, sizeof(d->file), "%s/gx-demo-XXXXXX", dir && dir[0] ? dir : "/tmp");
	fd = mkostemp(d->file, O_CLOEXEC);
	if (fd < 0)
		ret = -errno;
	for (uint64_t at = 0; at < DEMO_FILE_B && !ret; at += DEMO_SMALL_B) {
		check_pattern(buf, DEMO_SMALL_B, at, 1);
		if (write(fd, buf, DEMO_SMALL_B) != DEMO_SMALL_B)
			ret = errno ? -errno : -EIO;
	}
	if (fd >= 0)
		close(fd);
	else
		d->file[0] = '\0';
	free(buf);
	if (!ret)
		return PERF_OK;
	report_error(d->report, "demo: a file of 64 MiB in %s: %s", dir && dir[0] ? dir : "/tmp",
		     strerror(-ret));
	return PERF_FAILED;
}

/* ---- Steps ---- */

static int demo_step_run(struct demo *d, const struct demo_step *s)
{
	struct perf_opts o = *d->opts;
	const struct report_row *row;
	int ret;

	o.command = s->command;
	o.op = s->op;
	o.addr = d->addr;
	o.server.mem = "kv";
	o.conn.port = s->port;
	o.conn.link = s->link;
	if (s->link && !strcmp(s->link, "verbs"))
		opt_ctx_verbs(&o.gx);
	o.conn.cpus = (struct opt_cpus){.cpu = {d->cpu[1]}, .nr = 1};
	o.traffic.size_given = true;
	o.traffic.size_begin = s->begin < d->size_max ? s->begin : d->size_max;
	o.traffic.size_end = s->end < d->size_max ? s->end : d->size_max;
	o.traffic.size_factor = s->factor;
	o.traffic.duration_ns = (uint64_t)(s->seconds * 1e9);
	if (s->file) {
		o.file.path = d->file;
		o.file.force = true; /* our own file */
		o.traffic.size_begin = o.traffic.size_end = DEMO_FILE_B;
	}
	report_section(d->report, "%s over %s%s%s", s->command, s->link ? "link " : "",
		       s->link ? s->link : s->port, s->file ? ", a file of 64 MiB" : "");
	ret = s->fn(&o, d->report);
	row = report_last(d->report);
	if (!ret && row && s->best)
		*(double *)((char *)d + s->best) = s->fn == perf_lat ? row->p50_us : row->gb_s;
	return ret;
}

/* Wrong data ends the demo: later steps would mean nothing. */
static int demo_steps_run(struct demo *d)
{
	int ret = PERF_OK;

	for (size_t i = 0; i < sizeof(demo_steps) / sizeof(demo_steps[0]) && !ret; i++) {
		const char *link = demo_steps[i].link;

		if (d->rdma || !link || strcmp(link, "verbs") != 0)
			ret = demo_step_run(d, &demo_steps[i]);
	}
	return ret;
}

static uint64_t demo_mem_kb(void)
{
	unsigned long long kb = 0;
	char line[256];
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu", &kb) == 1)
			break;
	if (f)
		fclose(f);
	return kb;
}

/* Whether gxd could open an RDMA device, too. */
static void demo_rdma_look(struct demo *d)
{
	static const struct gx_port_name port = {.name = "shm"};
	static const struct gx_rail rail; /* the first that works */
	struct gx_opts opts = GX_INIT(opts);
	char why[PERF_WHY_MAX];
	struct gx *gx = NULL;

	opts.ports = &port;
	opts.nr_ports = 1;
	opts.verbs = GX_WITH(gx_verbs_opts, .rails = &rail, .nr_rails = 1);
	d->rdma = !gx_open(&opts, &gx);
	if (d->rdma) {
		gx_close(gx);
		return;
	}
	snprintf(why, sizeof(why), "%s", gx_error());
	flag_say(why);
	report_note(d->report, "link verbs (RDMA) is left out: %s", why);
}

static int demo_prepare(struct demo *d)
{
	struct opt_cpus allowed;

	if (opt_cpus_allowed(&allowed)) {
		report_error(d->report, "demo: no CPU affinity: %s", strerror(errno));
		return PERF_FAILED;
	}
	d->cpu[0] = allowed.cpu[0];
	d->cpu[1] = allowed.cpu[allowed.nr - 1];
	if (allowed.nr == 1)
		report_note(d->report,
			    "there is one CPU only: server and client take turns on it, and "
			    "the figures "
			    "say little about speed");
	d->size_max = demo_mem_kb() < DEMO_MEM_MIN_KB ? DEMO_SMALL_B : DEMO_FILE_B;
	demo_rdma_look(d);
	return demo_file_make(d);
}

static void demo_say(struct demo *d)
{
	char size[32];

	opt_size_text(d->size_max, size, sizeof(size));
	report_section(
		d->report,
		"What this means: one pinned core a side (CPU %d serves, CPU %d sends) moved "
		"messages of %s at %.1f GB/s straight into mapped memory, and at %.1f GB/s "
		"through shared-memory packets;",
		d->cpu[0], d->cpu[1], size, d->local_gb_s, d->put_gb_s);
	report_section(d->report,
		       "a put of 64 bytes was seen on the other side after %.2f us (median; by a "
		       "packet: %.2f us), and the kernel's UDP carried %.2f GB/s of the same.",
		       d->local_lat_us, d->lat_us, d->udp_gb_s);
	report_section(d->report,
		       "A file went there and back with equal SHA-256; every wrong byte would "
		       "have made the "
		       "exit status 3.");
}

int perf_demo(const struct perf_opts *opts, struct report *report)
{
	struct demo d = {.opts = opts, .report = report, .gxd = CHILD_NONE};
	int ret = demo_prepare(&d), stopped;

	if (!ret)
		ret = demo_start(&d);
	if (!ret)
		ret = demo_steps_run(&d);
	stopped = demo_stop(&d);
	if (!ret)
		ret = stopped;
	if (!ret)
		demo_say(&d);
	if (d.file[0])
		unlink(d.file);
	child_close(&d.gxd);
	return ret;
}
