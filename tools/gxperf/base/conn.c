// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf's way to the server: the context and its cores, and the connections. Main thread;
 * perf_on_*() are gx's callbacks, on its control thread.
 */
#include "gxperf/base/perf.h"

#include "common/json.h"
#include "gxperf/base/stop.h"

#include <gxlab/modes.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONN_WAIT_EXTRA_NS 1000000000ull /* beyond gx's own time-out */
#define CONN_TIMEOUT_NS	   5000000000ull
#define CONN_NAP_NS	   1000000
#define CONN_LIST_MAX	   600
#define CONN_PATH_WHY_MAX  800

/* ---- Callbacks ---- */

static void conn_reason(struct perf *perf, struct gx_conn *conn)
{
	struct gx_conn_info info = GX_INIT(info);

	if (!gx_conn_info(conn, &info) && info.err)
		report_reason(perf->report, gx_reason_name(info.reason));
}

static void perf_on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
			 const char *why)
{
	struct perf_conn *c = gx_conn_user(conn);
	struct gx_conn_info info = GX_INIT(info);

	if (event != GX_CONN_EVENT_DOWN || !c)
		return;
	conn_reason(c->perf, conn);
	if (!gx_conn_info(conn, &info))
		c->silent = info.reason == GX_REASON_PEER_SILENT;
	snprintf(c->why, sizeof(c->why), "%s", why ? why : gx_strerror(err));
	atomic_store_explicit(&c->down, true, memory_order_release);
	rpc_on_down(c->rpc);
}

static void perf_on_msg(void *arg, struct gx_conn *conn, const void *data, uint32_t len)
{
	struct perf_conn *c = gx_conn_user(conn);

	if (c)
		rpc_on_msg(c->rpc, data, len);
}

/* ---- Open, close ---- */

/* gx_error() names the address, the cause and the cure. */
static int conn_failed(struct perf *perf, int ret)
{
	report_error(perf->report, "%s", gx_error());
	return ret == -ETIMEDOUT || ret == -ECONNRESET ? PERF_LOST : PERF_FAILED;
}

/* The user asks for packets: then memory need not be mapped. */
static bool perf_wants_packets(const struct perf_opts *o)
{
	return o->conn.link ? strcmp(o->conn.link, "local") != 0 : o->conn.port != NULL;
}

static uint64_t perf_timeout_ns(const struct perf_opts *o)
{
	return o->gx.top.peer_timeout_ns ? o->gx.top.peer_timeout_ns : CONN_TIMEOUT_NS;
}

static int perf_gx_open(struct perf *perf, unsigned nr_cores)
{
	const struct perf_opts *o = perf->opts;
	struct opt_ctx ctx = o->gx;
	struct opt_ports ports = {0};
	struct gx_opts opts;
	char host[OPT_HOST_MAX];

	ctx.host.local = perf_wants_packets(o) ? GX_OFF : GX_AUTO;
	ctx.cores.may_move = !o->conn.cpus_given; /* another container's gxperf chooses the same */
	opts = opt_ctx_opts(&ctx);
	opts.bind_host = o->conn.bind;
	if (!o->conn.bind && o->addr && !opt_bind(perf->addrs, false, host))
		opts.bind_host = host;
	opts.cpus = o->conn.cpus.cpu;
	opts.nr_cores = nr_cores;
	if (o->conn.port && opt_ports(o->conn.port, &ports))
		return -EINVAL; /* not after conn_parse() */
	opts.ports = o->conn.port ? ports.v : NULL;
	opts.nr_ports = ports.nr;
	opts.on_conn = perf_on_conn;
	opts.on_msg = perf_on_msg;
	opts.arg = perf;
	return gx_open(&opts, &perf->gx);
}

/* Open GPUs before the cores run, and before gx maps a peer's memory for them. */
static int perf_gpu_open(struct perf *perf)
{
	const struct perf_opts *o = perf->opts;
	int ret = 0;

	if (o->place.kind == GX_MEM_CUDA)
		ret = gx_gpu_open(perf->gx, o->place.device);
	if (!ret && o->place.gpu_given)
		ret = gx_gpu_open(perf->gx, (int)o->place.gpu);
	return ret;
}

/* Does this end open a GPU? */
static bool perf_has_gpu(const struct perf_opts *o)
{
	return o->place.kind == GX_MEM_CUDA || o->place.gpu_given ||
	       o->gx.gpu.bounce == GX_BOUNCE_CUDA;
}

/* Refuse an engine that would move nothing. */
static int perf_engine_check(const struct perf_opts *o, struct report *report)
{
	bool gpu = perf_has_gpu(o);

	if (!o->tune.engine || !strcmp(o->tune.engine, "auto") ||
	    gpu == (strcmp(o->tune.engine, "cpu") != 0))
		return 0;
	if (gpu)
		report_error(report, "--engine cpu: the CPU does not copy memory of GPUs: take ce, "
				     "resident, kernel or auto");
	else
		report_error(report,
			     "--engine %s: that is a GPU's, and payload lies in host memory: "
			     "--local-mem cuda:N, or --gpu N to let GPU N move it",
			     o->tune.engine);
	return -EINVAL;
}

static int perf_start_failed(struct perf *perf, int ret)
{
	report_error(perf->report, "cannot start the threads: %s", strerror(-ret));
	return PERF_FAILED;
}

/* Start a thread for each core. */
static int perf_start_cores(struct perf *perf)
{
	uint64_t turns = 0;
	int ret = 0;

	perf->cores = calloc(perf->nr_cores, sizeof(perf->cores[0]));
	if (!perf->cores)
		return perf_start_failed(perf, -ENOMEM);
	for (unsigned i = 0; i < perf->nr_cores && !ret; i++) {
		perf->nr_threads = i + 1;
		ret = perf_core_start(&perf->cores[i], gx_core(perf->gx, i),
				      perf->opts->conn.cpus.cpu[i]);
	}
	if (ret)
		return perf_start_failed(perf, ret);
	/* A connection tries its lanes where cores turn. */
	for (unsigned i = 0; i < perf->nr_cores; i++, turns = 0)
		while (!gx_core_stat(gx_core(perf->gx, i), "turns", &turns) && !turns &&
		       !stop_asked())
			perf_nap(CONN_NAP_NS / 10);
	return PERF_OK;
}

/* gx runs the cores, and one thread posts. The kernel chooses that thread's CPU. */
static int perf_start_poster(struct perf *perf)
{
	int ret = gx_queue_open(perf->gx, NULL, &perf->queue);

	for (unsigned i = 0; i < perf->nr_cores && !ret; i++)
		ret = gx_core_start(gx_core(perf->gx, i));
	if (ret) {
		report_error(perf->report, "%s", gx_error());
		return PERF_FAILED;
	}
	perf->cores = calloc(1, sizeof(perf->cores[0]));
	if (!perf->cores)
		return perf_start_failed(perf, -ENOMEM);
	perf->nr_threads = 1;
	ret = perf_core_start(&perf->cores[0], NULL, -1);
	return ret ? perf_start_failed(perf, ret) : PERF_OK;
}

int perf_open(const struct perf_opts *opts, struct report *report, unsigned nr_cores_max,
	      struct perf *perf)
{
	unsigned nr = opts->conn.cpus.nr < nr_cores_max ? opts->conn.cpus.nr : nr_cores_max;
	int ret;

	*perf = (struct perf){.opts = opts, .report = report, .offset = opts->place.offset};
	if (perf_engine_check(opts, report))
		return PERF_USAGE;
	ret = opts->addr ? gx_env_resolve(opts->addr, perf_timeout_ns(opts), perf->addrs) : 0;
	if (ret < 0)
		return conn_failed(perf, ret);
	ret = perf_gx_open(perf, nr);
	if (!ret)
		ret = perf_gpu_open(perf);
	if (ret) {
		report_error(report, "%s", gx_error());
		return ret == -EINVAL ? PERF_USAGE : PERF_FAILED;
	}
	perf->nr_cores = nr;
	return opts->file.stripe ? perf_start_poster(perf) : perf_start_cores(perf);
}

/* Close the queue while the cores end its operations. */
static void perf_close_queue(struct perf *perf)
{
	uint64_t until = gx_now() + CONN_TIMEOUT_NS;

	while (gx_queue_close(perf->queue) && gx_now() < until)
		perf_nap(CONN_NAP_NS);
}

void perf_close(struct perf *perf)
{
	/* The cores still turn, so the peer hears of the end, and operations come back. */
	for (unsigned i = 0; i < perf->nr_conns; i++)
		if (perf->conns[i].conn)
			gx_conn_close(perf->conns[i].conn);
	for (unsigned i = 0; i < perf->nr_threads; i++)
		perf_core_stop(&perf->cores[i]);
	perf_close_queue(perf);
	for (unsigned i = 0; i < perf->nr_mems; i++)
		gx_mem_free(perf->mem[i]);
	gx_close(perf->gx);
	for (unsigned i = 0; i < perf->nr_conns; i++)
		rpc_close(perf->conns[i].rpc);
	free(perf->conns);
	free(perf->cores);
	free(perf->server_describe);
	memset(perf, 0, sizeof(*perf));
}

int perf_alloc(struct perf *perf, uint64_t len, struct gx_mem **mem)
{
	const struct perf_opts *o = perf->opts;
	char place[32];

	/* gx allocates at least one byte. */
	if (perf->nr_mems < PERF_MEMS_MAX &&
	    !gx_mem_alloc(perf->gx, o->place.kind, o->place.device, len ? len : 1, mem)) {
		perf->mem[perf->nr_mems++] = *mem;
		return PERF_OK;
	}
	opt_place_text(o->place.kind, o->place.device, place, sizeof(place));
	report_error(perf->report, "%llu bytes of %s memory: %s", (unsigned long long)len, place,
		     gx_error());
	return PERF_FAILED;
}

/* ---- Connect ---- */

static int conn_begin(struct perf *perf, unsigned i)
{
	struct gx_connect_opts co = GX_INIT(co);
	struct perf_conn *c = &perf->conns[i];
	struct opt_ports ports = {0};
	int ret;

	if (perf->opts->conn.port)
		opt_ports(perf->opts->conn.port, &ports); /* perf_gx_open() took them */
	if (ports.nr == 1) /* several ports are named as they were opened */
		opt_ports_bare(&ports);
	co.ports = ports.nr ? ports.v : NULL;
	co.nr_ports = ports.nr;
	co.link = perf->opts->conn.link;
	co.peer = perf->opts->conn.peer;
	co.tcp = GX_WITH(gx_connect_tcp_opts, .sockets = perf->opts->conn.nr_socks);
	co.verbs = GX_WITH(gx_connect_verbs_opts, .queue_pairs = perf->opts->server.queue_pairs);
	co.lanes = perf->nr_cores;
	co.first_core = i % perf->nr_cores;
	co.timeout_ns = perf->opts->gx.top.peer_timeout_ns;
	c->perf = perf;
	ret = gx_connect(perf->gx, perf->addrs, &co, &c->conn);
	if (ret) {
		c->conn = NULL;
		return conn_failed(perf, ret);
	}
	c->rpc = rpc_open(c->conn);
	if (!c->rpc) {
		report_error(perf->report, "no memory");
		return PERF_FAILED;
	}
	gx_conn_user_set(c->conn, c);
	return PERF_OK;
}

static int conn_wait(struct perf *perf, unsigned i)
{
	uint64_t timeout = perf_timeout_ns(perf->opts);
	struct perf_conn *c = &perf->conns[i];
	struct gx_conn_info info = GX_INIT(info);
	int ret = gx_conn_wait(c->conn, timeout + CONN_WAIT_EXTRA_NS);
	bool known;

	if (ret == -EINPROGRESS) {
		report_error(
			perf->report,
			"no connection with %s within %.0f s, of which neither it nor this process "
			"knows why: are their CPUs busy, or do many connect at once? Try again, or "
			"give --timeout",
			perf->opts->addr, (double)(timeout + CONN_WAIT_EXTRA_NS) / 1e9);
		return PERF_LOST;
	}
	if (ret) {
		conn_reason(perf, c->conn);
		return conn_failed(perf, ret);
	}
	known = !gx_conn_info(c->conn, &info);
	if (!known || info.state == GX_CONN_STATE_DOWN) {
		report_error(perf->report, "connection %u to %s: %s", i, perf->opts->addr,
			     known ? info.text : gx_error());
		return known ? PERF_LOST : PERF_FAILED;
	}
	c->lanes = info.lanes;
	if (i == 0)
		perf->info = info;
	return PERF_OK;
}

/* One by one: a missing server is reported once, and its backlog never overflows. */
static int conn_all(struct perf *perf)
{
	int ret = PERF_OK;

	perf->conns = calloc(perf->opts->server.nr_conns, sizeof(perf->conns[0]));
	if (!perf->conns) {
		report_error(perf->report, "no memory");
		return PERF_FAILED;
	}
	for (unsigned i = 0; i < perf->opts->server.nr_conns && !ret; i++) {
		if (stop_asked())
			return PERF_STOPPED;
		perf->nr_conns = i + 1;
		ret = conn_begin(perf, i);
		if (!ret)
			ret = conn_wait(perf, i);
	}
	return ret;
}

/* A link without a port moves all bytes by itself, as tcp. Beside any other there are packets. */
static bool perf_has_port(const struct perf *perf)
{
	return perf->info.payload_max_b != 0;
}

static bool perf_is_verbs(const struct perf *perf)
{
	return !strcmp(perf->info.link, "verbs");
}

/* Packets reach the server's GPU where this end has none to map its memory for. */
static bool perf_wants_gpu(const struct perf *perf)
{
	return perf->conns[0].region.kind == GX_MEM_CUDA && !perf_has_gpu(perf->opts);
}

bool perf_is_mapped(const struct perf *perf)
{
	return !strcmp(perf->info.link, "local") && perf->opts->op != GX_OP_SEND &&
	       !perf_wants_gpu(perf);
}

static bool perf_is_host(const struct perf *perf)
{
	return perf->opts->place.kind == GX_MEM_HOST && perf->conns[0].region.kind == GX_MEM_HOST;
}

/* Does the server read all sends where they lie? */
static bool perf_is_long(const struct perf *perf)
{
	const struct perf_opts *o = perf->opts;

	return perf->info.pull_over_b && o->op == GX_OP_SEND &&
	       o->traffic.size_begin > perf->info.pull_over_b;
}

/* Out of this process? */
static bool perf_is_pulled(const struct perf *perf)
{
	return perf_is_long(perf) && !perf_is_verbs(perf) && perf_is_host(perf);
}

/* Do packets move no byte, though the link has a port? Sends go by packets, and perhaps memory of
 * GPUs. */
static bool perf_is_beyond(const struct perf *perf)
{
	return perf_has_port(perf) && strcmp(perf->info.link, "packet") != 0 &&
	       perf_is_host(perf) && perf->opts->op != GX_OP_SEND;
}

int perf_sms(const struct perf *perf, enum gx_mem_kind kind, bool local)
{
	bool mapped = perf_is_mapped(perf);
	unsigned sms = local || mapped ? perf->opts->gx.gpu.sms : perf->server_sms;

	/* Over the local link this end copies, whichever end has a GPU. */
	if (mapped && perf->opts->gx.gpu.copy == GX_COPY_CE)
		return 0;
	if (kind != GX_MEM_CUDA && !(mapped && perf->opts->place.kind == GX_MEM_CUDA))
		return 0;
	return sms ? (int)sms : -1;
}

static int conn_link_check(struct perf *perf)
{
	const char *want = perf->opts->conn.link;

	if (!want || !strcmp(want, perf->info.link))
		return PERF_OK;
	report_error(perf->report, "--link %s: this connection takes link %s over port %s (%s)",
		     want, perf->info.link, perf->info.port, perf->info.why);
	return PERF_FAILED;
}

/* "kv (host, 2G), w (cuda:0, 4G)" */
static void region_list(struct perf_conn *c, char *buf, size_t room)
{
	struct gx_region r = GX_INIT(r);
	size_t at = 0;

	snprintf(buf, room, "none");
	for (unsigned i = 0; at < room && !gx_conn_region(c->conn, NULL, i, &r); i++) {
		char place[32], size[32];

		opt_place_text(r.kind, r.device, place, sizeof(place));
		opt_size_text(r.len, size, sizeof(size));
		at += (size_t)snprintf(buf + at, room - at, "%s%s (%s, %s)", i ? ", " : "", r.name,
				       place, size);
	}
}

static int region_find(struct perf *perf, struct perf_conn *c, unsigned access)
{
	struct gx_region second = GX_INIT(second);
	const char *name = perf->opts->server.mem;
	char list[CONN_LIST_MAX];

	c->region.size = sizeof(c->region);
	if (!name && !gx_conn_region(c->conn, NULL, 1, &second)) {
		region_list(c, list, sizeof(list));
		report_error(perf->report,
			     "the server has several regions: say which with --mem; there are %s",
			     list);
		return PERF_USAGE;
	}
	if (gx_conn_region(c->conn, name, 0, &c->region)) {
		region_list(c, list, sizeof(list));
		report_error(
			perf->report,
			"the server has no region '%s'; there are: %s. A region is made by gxd "
			"--mem %s=host:1G",
			name ? name : "", list, name ? name : "kv");
		return PERF_FAILED;
	}
	if (access & ~c->region.access) {
		report_error(perf->report, "region '%s' may not be %s", c->region.name,
			     (access & ~c->region.access) == GX_ACCESS_GET ? "read" : "written");
		return PERF_FAILED;
	}
	return PERF_OK;
}

static int conn_hello(struct perf *perf)
{
	const char *version = "", *unpack = "", *describe = "";
	struct json_t *reply;
	char why[PERF_WHY_MAX];
	int rpc = 0, sms = 0, ret;

	ret = perf_call(&perf->conns[0], js_pack("{s:s}", "op", "hello"), &reply);
	if (ret)
		return ret;
	if (js_unpack(reply, why, sizeof(why), "{s:s, s:i, s:s, s:i, s:s}", "version", &version,
		      "rpc", &rpc, "unpack", &unpack, "sms", &sms, "describe", &describe) ||
	    rpc != RPC_VERSION || opt_unpack(unpack, &perf->server_unpack)) {
		report_error(
			perf->report,
			"gxd at %s is of another version (%s, services %d; here %s, %d): install "
			"the same at both ends",
			perf->opts->addr, version, rpc, gx_version(), RPC_VERSION);
		ret = PERF_FAILED;
	} else {
		perf->server_sms = (unsigned)sms;
		perf->server_describe = strdup(describe);
		snprintf(perf->server_version, sizeof(perf->server_version), "%s", version);
	}
	js_free(reply);
	return ret;
}

/* Puts, sends and pings land at the server, which decides how it unpacks them. Here --unpack and
 * --sms may only say the same. Over the local link --sms is of the GPU at this end. */
static int conn_unpack_server(struct perf *perf)
{
	const struct perf_opts *o = perf->opts;
	char sms[32] = "no --sms";

	if (o->tune.unpack_given && o->gx.gpu.unpack != perf->server_unpack) {
		report_error(perf->report,
			     "--unpack %s: the receiving end decides how it unpacks, and gxd at %s "
			     "has --unpack %s: start it as gxd --unpack %s, or leave --unpack out "
			     "here",
			     opt_unpack_text(o->gx.gpu.unpack), o->addr,
			     opt_unpack_text(perf->server_unpack),
			     opt_unpack_text(o->gx.gpu.unpack));
		return PERF_USAGE;
	}
	if (!o->gx.gpu.sms || o->gx.gpu.sms == perf->server_sms || perf_is_mapped(perf))
		return PERF_OK;
	if (perf->server_sms)
		snprintf(sms, sizeof(sms), "--sms %u", perf->server_sms);
	report_error(perf->report,
		     "--sms %u: the receiving end decides on how many SMs it unpacks, and gxd at "
		     "%s has %s: start it as gxd --sms %u, or leave --sms out here",
		     o->gx.gpu.sms, o->addr, sms, o->gx.gpu.sms);
	return PERF_USAGE;
}

static bool unpack_is_gpus(enum gx_unpack_mode mode)
{
	return mode == GX_UNPACK_MODE_KERNEL || mode == GX_UNPACK_MODE_RESIDENT ||
	       mode == GX_UNPACK_MODE_D2D;
}

/* The CPU fills host memory from a bounce pool in host memory, in whatever mode GPUs unpack. */
static bool unpack_is_cpus(enum gx_mem_kind kind, const char *pool)
{
	return kind == GX_MEM_HOST && !strcmp(pool, "host");
}

/* The memory where bytes land. */
static enum gx_mem_kind path_kind(const struct perf *perf, unsigned access)
{
	return access == GX_ACCESS_GET ? perf->opts->place.kind : perf->conns[0].region.kind;
}

/* Such a link fills host memory in place. For memory of a GPU it fills pinned memory, and the GPU
 * unpacks from there. */
static bool perf_is_in_place(const struct perf *perf, unsigned access)
{
	return !perf_has_port(perf) && path_kind(perf, access) == GX_MEM_HOST;
}

/* The end where bytes land unpacks: the server for all but get. */
static int conn_unpack_check(struct perf *perf, unsigned access)
{
	const struct perf_opts *o = perf->opts;
	int ret = access == GX_ACCESS_GET ? PERF_OK : conn_unpack_server(perf);

	if (ret || !o->tune.unpack_given)
		return ret;
	if (perf_is_mapped(perf) || perf_is_pulled(perf) || perf_is_in_place(perf, access) ||
	    perf_is_beyond(perf)) {
		report_error(perf->report,
			     "--unpack %s: over link %s nothing is unpacked; add --link packet",
			     opt_unpack_text(o->gx.gpu.unpack), perf->info.link);
		return PERF_FAILED;
	}
	if (access == GX_ACCESS_GET && unpack_is_gpus(o->gx.gpu.unpack) &&
	    unpack_is_cpus(o->place.kind, perf->info.bounce)) {
		report_error(perf->report,
			     "--unpack %s: payload comes to host memory, which the CPU fills: "
			     "--local-mem cuda:N, or --unpack host, none or auto",
			     opt_unpack_text(o->gx.gpu.unpack));
		return PERF_FAILED;
	}
	return PERF_OK;
}

static const char *path_unpack(enum gx_unpack_mode mode, enum gx_mem_kind kind, const char *pool)
{
	if (mode != GX_UNPACK_MODE_NONE && unpack_is_cpus(kind, pool))
		mode = GX_UNPACK_MODE_HOST;
	return opt_unpack_text(mode);
}

/* The CPU copies if both ends have host memory; else a GPU of ours does. */
static const char *path_engine(const struct perf_opts *o)
{
	if (!perf_has_gpu(o))
		return "cpu";
	return o->tune.engine ? o->tune.engine : "auto";
}

/* Why packets carry what link @perf->info.link does not, and what would change that. @place: where
 * the server's memory lies. */
static void path_why_packets(const struct perf *perf, const char *place,
			     char why[CONN_PATH_WHY_MAX])
{
	bool send = perf->opts->op == GX_OP_SEND;
	int len = snprintf(why, CONN_PATH_WHY_MAX, "%s by packets, beside link %s (%s)",
			   send ? "sends go" : "memory of a GPU goes", perf->info.link,
			   perf->info.why);

	if (!send && !strcmp(perf->info.link, "local") && len < CONN_PATH_WHY_MAX)
		snprintf(why + len, (size_t)(CONN_PATH_WHY_MAX - len),
			 "; with --gpu %d copy engines move it, mostly faster and by no CPU: name "
			 "the GPU here that is the server's %s, or one that reaches it",
			 perf->conns[0].region.device, place);
}

static void conn_path_tell(struct perf *perf, unsigned access)
{
	const struct gx_region *r = &perf->conns[0].region;
	const struct perf_opts *o = perf->opts;
	struct opt_cpus cpus = o->conn.cpus;
	char place[32], list[256], why[CONN_PATH_WHY_MAX], auth[OPT_AUTH_MAX];
	struct report_path path = {
		.link = perf->info.link,
		.port = perf->info.port,
		.gpu = place,
		.control = perf->info.control,
		.integrity = opt_integrity_text(perf->info.integrity),
		.auth = opt_auth_text(&perf->info, auth),
		.quantum_b =
			access == GX_ACCESS_GET ? perf->info.quantum_in_b : perf->info.quantum_b,
		.cores = list,
		.why = perf->info.why,
		.reason = gx_reason_name(perf->info.path_reason),
	};

	cpus.nr = perf->nr_cores;
	opt_cpus_text(&cpus, list, sizeof(list));
	opt_place_text(r->kind, r->device, place, sizeof(place));
	path.bounce = access == GX_ACCESS_GET ? perf->info.bounce : perf->info.peer_bounce;
	path.unpack = access == GX_ACCESS_GET
			      ? path_unpack(o->gx.gpu.unpack, o->place.kind, path.bounce)
			      : path_unpack(perf->server_unpack, r->kind, path.bounce);
	path.crc_by = access == GX_ACCESS_GET
			      ? opt_crc_by_text(perf->info.integrity, perf->info.crc_by_copy,
						o->place.kind)
			      : opt_crc_by_text(perf->info.integrity, perf->info.peer_crc_by_copy,
						r->kind);
	if (perf_is_mapped(perf) || perf_is_pulled(perf)) {
		path.unpack = "direct";
		path.bounce = NULL;
		path.engine = path_engine(o);
	} else if (perf_is_in_place(perf, access)) {
		path.unpack = "direct";
		path.bounce = NULL;
	} else if (!perf_has_port(perf)) {
		path.bounce = "host"; /* wherever packets land */
	} else if (perf_is_beyond(perf)) {
		path.unpack = "direct";
		path.bounce = NULL;
		path.engine = perf_is_verbs(perf) ? "rdma" : NULL;
	} else if (strcmp(perf->info.link, "packet") != 0) {
		path.link = "packet";
		path_why_packets(perf, place, why);
		path.why = why;
	}
	report_path(perf->report, &path);
}

int perf_connect_any(struct perf *perf)
{
	int ret = conn_all(perf);

	if (!ret)
		ret = conn_link_check(perf);
	return ret ? ret : conn_hello(perf);
}

int perf_connect(struct perf *perf, unsigned access)
{
	int ret = perf_connect_any(perf);

	if (!ret)
		stop_grace(STOP_GRACE_NS);
	for (unsigned i = 0; i < perf->nr_conns && !ret; i++)
		ret = region_find(perf, &perf->conns[i], access);
	if (!ret)
		ret = conn_unpack_check(perf, access);
	if (!ret)
		conn_path_tell(perf, access);
	return ret;
}
