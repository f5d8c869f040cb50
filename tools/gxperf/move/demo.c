// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf demo: starts gxd on one CPU, measures against it from another with the ordinary
 * sub-commands, and sums up the results. It ends only the child that it started.
 */
#include "gxperf/base/child.h"
#include "gxperf/base/stop.h"
#include "common/flag.h"
#include "gxperf/move/move.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
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
#define DEMO_ROWS_MAX	64
#define DEMO_LAT_B	64

/* A line of the table. */
struct demo_row {
	const struct demo_step *step;
	uint64_t size_b, wrong;
	double gb_s, p50_us, p99_us;
};

struct demo {
	const struct perf_opts *opts;
	struct report *report;
	struct child gxd;
	char path[4096]; /* of gxd */
	char addr[128];
	int cpu[2]; /* gxd's, ours */
	uint64_t size_max;
	char file[256];
	bool rdma;		      /* link verbs has a device here */
	const struct demo_step *step; /* under way */
	struct demo_row rows[DEMO_ROWS_MAX];
	unsigned nr_rows;
	uint64_t checked_b, wrong;
	char left_out[64]; /* "" or what this machine has not */
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
	bool file;
};

static const struct demo_step demo_steps[] = {
	{perf_put, "put", GX_OP_PUT, NULL, "local", 64, 64u << 20, 16, 1, false},
	{perf_put, "get", GX_OP_GET, NULL, "local", 64u << 10, 64u << 20, 32, 1, false},
	{perf_lat, "lat", GX_OP_PUT, NULL, "local", 64, 64, 2, 1, false},
	{perf_put, "put", GX_OP_PUT, "shm", NULL, 64, 64u << 20, 32, 1, false},
	{perf_put, "send", GX_OP_SEND, "shm", NULL, 64, 4u << 20, 256, 1, false},
	{perf_lat, "lat", GX_OP_PUT, "shm", NULL, 64, 64, 2, 1, false},
	{perf_put, "put", GX_OP_PUT, "shm", NULL, 0, 0, 2, 0, true},
	{perf_put, "get", GX_OP_GET, NULL, "local", 0, 0, 2, 0, true},
	{perf_put, "put", GX_OP_PUT, "udp", NULL, 64u << 10, 4u << 20, 64, 1, false},
	{perf_lat, "lat", GX_OP_PUT, "udp", NULL, 64, 64, 2, 0.5, false},
	{perf_put, "put", GX_OP_PUT, NULL, "tcp", 64u << 10, 4u << 20, 64, 1, false},
	{perf_put, "put", GX_OP_PUT, NULL, "verbs", 64u << 10, 4u << 20, 64, 1, false},
};

#define DEMO_STEPS (sizeof(demo_steps) / sizeof(demo_steps[0]))

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
	char mem[96], cpu[16], place[32];
	char *const argv[] = {"gxd",  "--listen", "127.0.0.1:0", "--cores",
			      cpu,    "--port",	  "shm",	 "--port",
			      "udp",  "--mem",	  mem,		 d->rdma ? "--rdma" : NULL,
			      "auto", NULL};
	int ret = 0;

	opt_place_text(d->opts->demo.kind, d->opts->demo.device, place, sizeof(place));
	snprintf(mem, sizeof(mem), "kv=%s:%u", place, DEMO_REGION_B);
	snprintf(cpu, sizeof(cpu), "%d", d->cpu[0]);
	ret = child_self("gxd", d->path, sizeof(d->path));
	if (!ret)
		ret = child_start(&d->gxd, d->path, argv, -1, true);
	if (ret) {
		report_error(d->report, "demo: %s", strerror(-ret));
		return PERF_FAILED;
	}
	if (!demo_addr_read(d))
		return PERF_OK;
	report_error(d->report, "demo: %s did not start; it said:", d->path);
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
	d->step = s;
	return s->fn(&o, d->report);
}

static const char *demo_way(const struct demo_step *s)
{
	return s->link ? s->link : s->port;
}

/* Under the report's lock. */
static void demo_on_row(void *arg, const struct report_row *r)
{
	struct demo *d = arg;

	d->checked_b += r->checked_b;
	d->wrong += r->wrong;
	if (d->nr_rows < DEMO_ROWS_MAX)
		d->rows[d->nr_rows++] = (struct demo_row){.step = d->step,
							  .size_b = r->size_b,
							  .wrong = r->wrong,
							  .gb_s = r->gb_s,
							  .p50_us = r->p50_us,
							  .p99_us = r->p99_us};
}

/* Wrong data ends the demo: later steps would mean nothing. */
static int demo_steps_run(struct demo *d)
{
	int ret = PERF_OK;

	for (unsigned i = 0; i < DEMO_STEPS && !ret; i++) {
		const struct demo_step *s = &demo_steps[i];

		if (!d->rdma && !strcmp(demo_way(s), "verbs"))
			continue;
		report_progress(d->report, "demo: %u of %zu: %s by %s", i + 1, DEMO_STEPS,
				s->command, demo_way(s));
		ret = demo_step_run(d, s);
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
	snprintf(d->left_out, sizeof(d->left_out), "No RDMA device: link verbs is left out. ");
	if (d->opts->demo.verbose)
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

/* The fastest row of @command by @way, of messages of @size_b alone if that is not 0; NULL: none. */
static const struct demo_row *demo_best(const struct demo *d, const char *command, const char *way,
					uint64_t size_b)
{
	const struct demo_row *best = NULL;

	for (const struct demo_row *r = d->rows; r < d->rows + d->nr_rows; r++)
		if (!strcmp(r->step->command, command) && !strcmp(demo_way(r->step), way) &&
		    !r->step->file && (!size_b || r->size_b == size_b) &&
		    (!best || r->gb_s > best->gb_s))
			best = r;
	return best;
}

static double demo_gb_s(const struct demo *d, const char *way, uint64_t size_b)
{
	const struct demo_row *r = demo_best(d, "put", way, size_b);

	return r ? r->gb_s : 0;
}

static double demo_lat_us(const struct demo *d, const char *way)
{
	const struct demo_row *r = demo_best(d, "lat", way, DEMO_LAT_B);

	return r ? r->p50_us : 0;
}

/* What one wants to know comes first, each with its size. */
static void demo_say_first(const struct demo *d)
{
	const struct demo_row *best = demo_best(d, "put", "local", 0);
	char size[32], most[32];

	opt_size_text(d->size_max, size, sizeof(size));
	opt_size_text(best ? best->size_b : 0, most, sizeof(most));
	printf("%6.1f GB/s  a put of %s into mapped memory of the server (link local); best,\n"
	       "             at %s, %.1f; by packets up to %.1f, by UDP %.1f, by TCP %.1f\n",
	       demo_gb_s(d, "local", d->size_max), size, most, best ? best->gb_s : 0,
	       demo_gb_s(d, "shm", 0), demo_gb_s(d, "udp", 0), demo_gb_s(d, "tcp", 0));
	printf("%6.2f us    until a put of 64 bytes is seen there, median; by packets %.2f,\n"
	       "             by UDP %.1f\n",
	       demo_lat_us(d, "local"), demo_lat_us(d, "shm"), demo_lat_us(d, "udp"));
	printf("%6llu wrong bytes of %llu MiB checked; a file of 64 MiB went there and back\n\n",
	       (unsigned long long)d->wrong, (unsigned long long)(d->checked_b >> 20));
}

static void demo_say_rows(const struct demo *d)
{
	printf("%-7s %-5s %6s %9s %10s %10s %6s\n", "way", "what", "size", "GB/s", "p50 us",
	       "p99 us", "wrong");
	for (const struct demo_row *r = d->rows; r < d->rows + d->nr_rows; r++) {
		char size[32], gb_s[32] = "-", p99[32] = "-";

		opt_size_text(r->size_b, size, sizeof(size));
		if (isfinite(r->gb_s))
			snprintf(gb_s, sizeof(gb_s), "%.3f", r->gb_s);
		if (isfinite(r->p99_us))
			snprintf(p99, sizeof(p99), "%.2f", r->p99_us);
		printf("%-7s %-5s %6s %9s %10.2f %10s %6llu%s\n", demo_way(r->step),
		       r->step->command, size, gb_s, r->p50_us, p99, (unsigned long long)r->wrong,
		       !r->step->file ? ""
		       : r->wrong     ? "  file, SHA-256 DIFFERS"
				      : "  file, SHA-256 equal");
	}
}

/* As one types it from here. */
static const char *demo_path_short(const char *path)
{
	char here[4096];
	size_t len = getcwd(here, sizeof(here)) ? strlen(here) : 0;

	return len && !strncmp(path, here, len) && path[len] == '/' ? path + len + 1 : path;
}

/* At most 80 columns, and a screen. */
static void demo_say(struct demo *d)
{
	const char *gxd = demo_path_short(d->path);

	if (!d->opts->demo.verbose)
		printf("gx: a server on CPU %d and a client on CPU %d of this machine\n\n",
		       d->cpu[0], d->cpu[1]);
	demo_say_first(d);
	demo_say_rows(d);
	printf("\np50, p99: of a message, behind others under way; lat: one way, alone.\n"
	       "%s-v: all that was measured.\n"
	       "Next: %.*s, and in a second terminal: %.*sperf 127.0.0.1\n",
	       d->left_out, (int)strlen(gxd), gxd, (int)strlen(gxd) - 1, gxd);
}

int perf_demo(const struct perf_opts *opts, struct report *report)
{
	struct demo d = {.opts = opts, .report = report, .gxd = CHILD_NONE};
	bool table;
	int ret, stopped;

	stop_grace(STOP_GRACE_NS); /* a child is to be ended */
	table = report_is_table(report);
	report_watch(report, !opts->demo.verbose, demo_on_row, &d);
	ret = demo_prepare(&d);
	if (!ret)
		ret = demo_start(&d);
	if (!ret)
		ret = demo_steps_run(&d);
	stopped = demo_stop(&d);
	if (!ret)
		ret = stopped;
	report_watch(report, false, NULL, NULL);
	if (table && !ret)
		demo_say(&d);
	else if (table && !opts->demo.verbose)
		demo_say_rows(&d); /* until then */
	if (d.file[0])
		unlink(d.file);
	child_close(&d.gxd);
	return ret;
}
