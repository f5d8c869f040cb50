// SPDX-License-Identifier: Apache-2.0
/*
 * Groups of gxperf's options: server, path, messages, tuning, results. Main thread, before the
 * program opens anything.
 */
#include "gxperf/base/opts.h"

#include "common/help.h"
#include "gxperf/base/throttle.h"

#include <gxlab/modes.h>

#include <string.h>

#define OPTS_DEPTH_MAX 4096
#define OPTS_GATE_NS   86400000000000ull /* until overlap ends it */

enum {
	KEY_MEM = 256,
	KEY_PORT,
	KEY_BIND,
	KEY_LINK,
	KEY_SOCKETS,
	KEY_PEER,
	KEY_CORES,
	KEY_DEPTH,
	KEY_LOCAL_MEM,
	KEY_ENGINE,
	KEY_GPU,
	KEY_SAME_PLACE,
	KEY_POLL,
	KEY_NO_CHECK,
	KEY_OFFSET,
	KEY_FILE,
	KEY_FORCE,
	KEY_FORMAT,
	KEY_APPEND,
	KEY_PLACE,
	KEY_STRIPE,
	KEY_BIDIRECTIONAL,
	KEY_THROTTLE,
	KEY_NCCL,
	KEY_BLOCKS,
	KEY_VIEW,
	KEY_GET,
};

/* ---- Values ---- */

static void value_u32(const char *name, const char *arg, uint32_t min, uint32_t max, uint32_t *out,
		      struct argp_state *state)
{
	if (opt_u32(arg, min, max, out))
		argp_error(state, "%s: '%s' is not a number from %u to %u", name, arg, min, max);
}

static void value_size(const char *name, const char *arg, uint64_t max, uint64_t *out,
		       struct argp_state *state)
{
	int ret = opt_size(arg, out);

	if (ret == -EINVAL)
		argp_error(state, "%s: '%s' is not a size such as 0, 64, 4K or 2G", name, arg);
	if (ret || *out > max)
		argp_error(state, "%s: '%s' is more than %llu", name, arg, (unsigned long long)max);
}

static void value_seconds(const char *name, const char *arg, uint64_t *out,
			  struct argp_state *state)
{
	if (opt_seconds(arg, out))
		argp_error(state, "%s: '%s' is not a number of seconds from 0.001 to 86400", name,
			   arg);
}

static void value_place(const char *name, const char *arg, enum gx_mem_kind *kind, int *device,
			struct argp_state *state)
{
	if (opt_place(arg, kind, device))
		argp_error(state, "%s: '%s' is not host or cuda:N", name, arg);
}

/* The CPU copies host memory in any case; perf_open() refuses cpu for GPU memory. */
static void value_engine(const char *arg, struct perf_tune_opts *o, struct argp_state *state)
{
	o->engine = arg;
	if (!strcmp(arg, "auto") || !strcmp(arg, "cpu"))
		o->gx.ctx->gpu.copy = GX_COPY_AUTO;
	else if (!strcmp(arg, "ce"))
		o->gx.ctx->gpu.copy = GX_COPY_CE;
	else if (!strcmp(arg, "resident"))
		o->gx.ctx->gpu.copy = GX_COPY_RESIDENT;
	else if (!strcmp(arg, "kernel"))
		o->gx.ctx->gpu.copy = GX_COPY_KERNEL;
	else
		argp_error(state, "--engine: '%s' is not cpu, ce, resident, kernel or auto", arg);
}

/* ---- Groups ---- */

static const struct argp_option conn_options[] = {
	{NULL, 0, NULL, 0, "Which way:", 2},
	{"bind", KEY_BIND, "HOST", OPT_MORE,
	 "Address of network ports; default: the one on the way to the server", 2},
	{"port", KEY_PORT, "NAME[:ARGS]", 0,
	 "Take the packet link over this port: shm, udp, dpdk:DEVARGS; or over several of one kind, "
	 "in turns by lane: 'dpdk:A;dpdk:B'; default: the best of both ends",
	 2},
	{"link", KEY_LINK, "LINK", 0,
	 "Take this link, and no other: local (mapped memory of this host), packet, tcp (the kernel's), "
	 "verbs (RDMA); default: packet with --port, else the best of both ends",
	 2},
	{"sockets", KEY_SOCKETS, "N", OPT_MORE,
	 "Link tcp: sockets of a connection and core, 1 to 16; default 1", 2},
	{"cores", KEY_CORES, "LIST", 0,
	 "CPUs to poll on, e.g. 1 or 1,2-3; 'any': all this process may use. Default: the last "
	 "half of "
	 "them, at most 4 (gxd takes the first half)",
	 2},
	{"timeout", OPT_GX_TIMEOUT, "SECONDS", OPT_MORE,
	 "A server silent for this long is lost; default 5", 2},
	{"key", OPT_GX_KEY, "FILE", 0,
	 "Show this key, by which another host serves us: a file of gxd keygen; or "
	 "fd:N, an inherited descriptor",
	 2},
	{"peer", KEY_PEER, "NAME", OPT_MORE,
	 "With --key: the server's gxd --name. No other that has the key will do", 2},
	{"insecure", OPT_GX_INSECURE, NULL, 0, "Allow servers of other hosts, in clear", 2},
	{"no-huge", OPT_GX_NO_HUGE, NULL, OPT_MORE, "Do not try huge pages", 2},
	{0},
};

static error_t conn_parse(int key, char *arg, struct argp_state *state)
{
	struct perf_conn_opts *o = state->input;
	struct opt_ports ports = {0};

	switch (key) {
	case KEY_BIND:
		o->bind = arg;
		return 0;
	case KEY_PORT:
		if (opt_ports(arg, &ports))
			argp_error(
				state,
				"--port: '%s' is not shm, udp, dpdk:DEVICE,..., or several with ';' "
				"between them",
				arg);
		o->port = arg;
		return 0;
	case KEY_LINK:
		opt_link_take(arg, &o->link, state);
		return 0;
	case KEY_SOCKETS:
		value_u32("--sockets", arg, 1, 16, &o->nr_socks, state);
		return 0;
	case KEY_PEER:
		o->peer = arg;
		return 0;
	case KEY_CORES:
		opt_cores_take(arg, &o->allowed, &o->cpus, state);
		o->cpus_given = true;
		return 0;
	}
	return opt_gx_take(key, arg, o->gx, state);
}

static const struct argp_option server_options[] = {
	{"mem", KEY_MEM, "NAME", 0, "The server's region; may be left out when there is only one",
	 2},
	{NULL, 'q', "N", 0,
	 "Connections at once; default 1. With --link verbs: queue pairs of one connection, 1 to "
	 "64; default 4",
	 2},
	{0},
};

static error_t server_parse(int key, char *arg, struct argp_state *state)
{
	struct perf_server_opts *o = state->input;

	switch (key) {
	case KEY_MEM:
		o->mem = arg;
		return 0;
	case 'q':
		value_u32("-q", arg, 1, PERF_CONNS_MAX, &o->nr_conns, state);
		o->conns_given = true;
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static const struct argp_option tune_options[] = {
	{NULL, 0, NULL, 0, "How:", OPT_GX_GROUP},
	{"depth", KEY_DEPTH, "N", 0,
	 "Messages of a connection and core under way; default 2 for large ones to 64 for small "
	 "ones (blocks: lists, 1 to 64; default 1)",
	 OPT_GX_GROUP},
	{"engine", KEY_ENGINE, "ENGINE", OPT_MORE,
	 "Who copies over the local link: cpu (host memory), ce (a GPU's copy engines), resident "
	 "(a "
	 "kernel that stays, for up to 64K), kernel (launched, on --sms), auto (the default: ce, "
	 "and lone short ones by the "
	 "faster of both)",
	 OPT_GX_GROUP},
	{0},
};

static error_t tune_parse(int key, char *arg, struct argp_state *state)
{
	struct perf_tune_opts *o = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &o->gx;
		return 0;
	case KEY_DEPTH:
		value_u32("--depth", arg, 1, OPTS_DEPTH_MAX, &o->depth, state);
		return 0;
	case KEY_ENGINE:
		value_engine(arg, o, state);
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static const struct argp_option traffic_options[] = {
	{NULL, 0, NULL, 0, "What is moved:", 3},
	{"size", 's', "SIZE", 0,
	 "Bytes of a message, default 1M; lat: 64; blocks: 16K, of a block; 0 is a size", 3},
	{"begin", 'b', "SIZE", 0, "First size of a sweep", 3},
	{"end", 'e', "SIZE", 0, "Last size of a sweep; default 64M", 3},
	{"factor", 'f', "N", OPT_MORE, "From one size to the next; default 2", 3},
	{"iterations", 'n', "N", 0,
	 "Messages of a connection and core (blocks: lists); default by size", 3},
	{"warmup", 'w', "N", OPT_MORE, "Messages before the clock starts", 3},
	{"duration", 'D', "SECONDS", 0,
	 "Run so long at each size (put, get, send, lat: 2); in a sweep: -n, by size", 3},
	{"interval", 'i', "SECONDS", 0,
	 "put, get, send: a line each SECONDS of a row that is under way; in JSON intervals", 3},
	{"no-check", KEY_NO_CHECK, NULL, 0, "Do not check payload", 3},
	{"throttle", KEY_THROTTLE, "FD", OPTION_HIDDEN,
	 "gxperf overlap says when to begin and to end", 3},
	{0},
};

static void value_throttle(const char *arg, struct perf_traffic_opts *o, struct argp_state *state)
{
	uint32_t fd;
	int ret = opt_u32(arg, 0, INT32_MAX, &fd);

	if (!ret)
		ret = throttle_join((int)fd);
	if (ret)
		argp_error(state, "--throttle %s: %s; it is for gxperf overlap alone", arg,
			   strerror(-ret));
	o->duration_ns = OPTS_GATE_NS;
	o->throttled = true;
}

static error_t traffic_parse(int key, char *arg, struct argp_state *state)
{
	struct perf_traffic_opts *o = state->input;
	uint32_t factor;

	switch (key) {
	case 's':
		value_size("-s", arg, INT64_MAX / 2, &o->size_begin, state);
		o->size_end = o->size_begin;
		o->size_given = true;
		return 0;
	case 'b':
		value_size("-b", arg, INT64_MAX / 2, &o->size_begin, state);
		o->begin_given = true;
		return 0;
	case 'e':
		value_size("-e", arg, INT64_MAX / 2, &o->size_end, state);
		o->end_given = true;
		return 0;
	case 'f':
		value_u32("-f", arg, 2, 1u << 20, &factor, state);
		o->size_factor = factor;
		return 0;
	case 'n':
		value_u32("-n", arg, 1, UINT32_MAX, &o->n, state);
		return 0;
	case 'w':
		value_u32("-w", arg, 0, UINT32_MAX, &o->warm, state);
		o->warm_given = true;
		return 0;
	case 'D':
		value_seconds("-D", arg, &o->duration_ns, state);
		o->time_given = true;
		return 0;
	case 'i':
		value_seconds("-i", arg, &o->interval_ns, state);
		return 0;
	case KEY_NO_CHECK:
		o->check = false;
		return 0;
	case KEY_THROTTLE:
		value_throttle(arg, o, state);
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

/* For commands with a server. Ranks of a collective are all alike. */
static const struct argp_option place_options[] = {
	{"same-place", KEY_SAME_PLACE, NULL, OPT_MORE,
	 "put, get: every message from one buffer to one place, as other benchmarks do; what lies "
	 "there is checked at the end",
	 3},
	{"poll", KEY_POLL, "WHAT", OPT_MORE,
	 "lat: what says that a message is there: completion (default), or memory: its last byte, "
	 "over the links local and verbs",
	 3},
	{"offset", KEY_OFFSET, "SIZE", OPT_MORE,
	 "First byte of the region to use; default 0, or the first place that is free of other "
	 "clients (with --file: 0)",
	 3},
	{"local-mem", KEY_LOCAL_MEM, "PLACE", 0, "Where payload lies here: host or cuda:N",
	 OPT_GX_GROUP},
	{"gpu", KEY_GPU, "N", 0,
	 "Open this GPU; over link local its copy engines move payload of --local-mem host to and "
	 "from memory of GPUs; over port shm it writes to a server whose --bounce is a GPU",
	 OPT_GX_GROUP},
	{0},
};

static error_t place_parse(int key, char *arg, struct argp_state *state)
{
	struct perf_place_opts *o = state->input;

	switch (key) {
	case KEY_SAME_PLACE:
		o->same_place = true;
		return 0;
	case KEY_POLL:
		if (strcmp(arg, "memory") && strcmp(arg, "completion"))
			argp_error(state, "--poll: '%s' is not memory or completion", arg);
		o->poll_memory = !strcmp(arg, "memory");
		return 0;
	case KEY_OFFSET:
		value_size("--offset", arg, INT64_MAX / 2, &o->offset, state);
		o->offset_given = true;
		return 0;
	case KEY_LOCAL_MEM:
		value_place("--local-mem", arg, &o->kind, &o->device, state);
		return 0;
	case KEY_GPU:
		value_u32("--gpu", arg, 0, 63, &o->gpu, state);
		o->gpu_given = true;
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static const struct argp_option file_options[] = {
	{"file", KEY_FILE, "PATH", 0,
	 "Move this file (-: stdin, stdout), once, and prove it by SHA-256 at both ends; get: -s bytes into it "
	 "(default: the "
	 "region from --offset on), which is there when all has come",
	 3},
	{"stripe", KEY_STRIPE, NULL, OPT_MORE,
	 "Cut each message into parts over all cores, which gx runs; a thread of its own posts, "
	 "and -n and --depth are of a connection",
	 3},
	{"bidirectional", KEY_BIDIRECTIONAL, NULL, OPT_MORE,
	 "Put and get at once, each on all lanes with its own row, for -D SECONDS (default 5)", 3},
	{0},
};

static error_t file_parse(int key, char *arg, struct argp_state *state)
{
	struct perf_file_opts *o = state->input;

	if (key == KEY_FILE)
		o->path = arg;
	else if (key == KEY_STRIPE)
		o->stripe = true;
	else if (key == KEY_BIDIRECTIONAL)
		o->bidirectional = true;
	else
		return ARGP_ERR_UNKNOWN;
	return 0;
}

static const struct argp_option blocks_options[] = {
	{"blocks", KEY_BLOCKS, "N", 0, "Blocks of a list, 1 to 65536; default 256", 3},
	{"view", KEY_VIEW, "CASE", 0,
	 "From one layout into another, beside the list and a contiguous put: tp-split, nhd-hnd, "
	 "rows576, rows656; --blocks: its pages or rows, to 1048576; of several --cores each has a part",
	 3},
	{"get", KEY_GET, NULL, 0, "Get the blocks; default: put", 3},
	{0},
};

static error_t blocks_parse(int key, char *arg, struct argp_state *state)
{
	struct perf_blocks_opts *o = state->input;

	if (key == KEY_BLOCKS)
		value_u32("--blocks", arg, 1, GX_VIEW_ROWS_MAX, &o->nr, state);
	else if (key == KEY_VIEW)
		o->view = arg;
	else if (key == KEY_GET)
		o->get = true;
	else
		return ARGP_ERR_UNKNOWN;
	return 0;
}

static const struct argp_option report_options[] = {
	{NULL, 0, NULL, 0, "Results:", 5},
	{"json", 'J', "FILE", 0, "Write a JSON document as well; FILE must not exist", 5},
	{"force", KEY_FORCE, NULL, OPT_MORE, "The file of -J, or of get --file, may exist", 5},
	{"append", KEY_APPEND, "FILE", OPT_MORE,
	 "Add each result to FILE as well, as a line of JSON that says where, when and how it was "
	 "measured; to FILE.csv as CSV",
	 5},
	{"format", KEY_FORMAT, "FORMAT", 0, "table (default), csv, json, jsonl on stdout", 5},
	{0},
};

static error_t report_parse(int key, char *arg, struct argp_state *state)
{
	struct report_opts *o = state->input;

	switch (key) {
	case 'J':
		o->json_path = arg;
		return 0;
	case KEY_APPEND:
		o->lines_path = arg;
		return 0;
	case KEY_FORCE:
		o->force = true;
		return 0;
	case KEY_FORMAT:
		if (report_format_parse(arg, &o->format))
			argp_error(state, "--format: '%s' is not table, csv, json or jsonl", arg);
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static const struct argp_option demo_options[] = {
	{NULL, 0, NULL, 0, "What is shown:", 1},
	{"verbose", 'v', NULL, 0, "Each measurement as its own command prints it", 1},
	{"place", KEY_PLACE, "PLACE", 0, "The server's memory: host (default) or cuda:N", 1},
	{0},
};

static error_t demo_parse(int key, char *arg, struct argp_state *state)
{
	struct perf_demo_opts *o = state->input;

	if (key == 'v')
		o->verbose = true;
	else if (key == KEY_PLACE)
		value_place("--place", arg, &o->kind, &o->device, state);
	else
		return ARGP_ERR_UNKNOWN;
	return 0;
}

static const struct argp_option info_options[] = {
	{NULL, 0, NULL, 0, "What is shown:", 1},
	{"nccl", KEY_NCCL, NULL, 0,
	 "Only the plugin for NCCL: which file NCCL would load, and what that would choose here",
	 1},
	{0},
};

static error_t info_parse(int key, char *arg, struct argp_state *state)
{
	struct perf_info_opts *o = state->input;

	if (key != KEY_NCCL)
		return ARGP_ERR_UNKNOWN;
	o->nccl = true;
	return 0;
}

const struct argp perf_info_argp = {.options = info_options, .parser = info_parse};
const struct argp perf_conn_argp = {.options = conn_options, .parser = conn_parse};
const struct argp perf_server_argp = {.options = server_options, .parser = server_parse};
static const struct argp_child tune_children[] = {{&opt_gx_argp}, {0}};
const struct argp perf_tune_argp = {
	.options = tune_options, .parser = tune_parse, .children = tune_children};
const struct argp perf_traffic_argp = {.options = traffic_options, .parser = traffic_parse};
const struct argp perf_place_argp = {.options = place_options, .parser = place_parse};
const struct argp perf_file_argp = {.options = file_options, .parser = file_parse};
const struct argp perf_blocks_argp = {.options = blocks_options, .parser = blocks_parse};
const struct argp perf_report_argp = {.options = report_options, .parser = report_parse};
const struct argp perf_demo_argp = {.options = demo_options, .parser = demo_parse};
