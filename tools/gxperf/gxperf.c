// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf, the measuring tool: the command line and the choice of a sub-command. Options come in
 * groups (argp children) that sub-commands share; what they mean together is checked in
 * opts_check().
 */
#include "gxperf/gxperf.h"
#include "gxperf/beside/gate.h"
#include "gxperf/gxperf_coll.h"
#include "gxperf/beside/gxperf_gpus.h"
#include "gxperf/gxperf_plot.h"
#include "common/opt_argp.h"
#include "common/stop.h"
#include "common/version_text.h"

#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OPTS_SIZE	(1u << 20)
#define OPTS_SIZE_END	(64u << 20)
#define OPTS_DEPTH_MAX	4096
#define OPTS_TIMEOUT_NS 5000000000ull
#define STOP_GRACE_NS	5000000000ull
#define OPTS_GATE_NS	86400000000000ull /* until overlap says otherwise */

/* All that is parsed: the options proper, and where results go. */
struct cmdline {
	struct perf_opts perf;
	struct report_opts report;
	struct opt_gx gx; /* into perf.gx */
	struct opt_cpus allowed;
	bool begin_given, end_given, conns_given, cpus_given, time_given, gated;
};

enum {
	KEY_MEM = 256,
	KEY_PORT,
	KEY_BIND,
	KEY_LINK,
	KEY_REQUIRE,
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
	KEY_GXD,
	KEY_PLACE,
	KEY_STRIPE,
	KEY_GATE,
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

static void value_place(const char *name, const char *arg, struct perf_opts *o,
			struct argp_state *state)
{
	if (opt_place(arg, &o->local_kind, &o->local_device))
		argp_error(state, "%s: '%s' is not host or cuda:N", name, arg);
}

/* cpu is what happens to host memory anyway: perf_open() looks whether that is what there is. */
static void value_engine(const char *arg, struct perf_opts *o, struct argp_state *state)
{
	o->engine_name = arg;
	if (!strcmp(arg, "auto") || !strcmp(arg, "cpu"))
		o->gx.engine = GX_COPY_AUTO;
	else if (!strcmp(arg, "ce"))
		o->gx.engine = GX_COPY_CE;
	else if (!strcmp(arg, "resident"))
		o->gx.engine = GX_COPY_RESIDENT;
	else if (!strcmp(arg, "kernel"))
		o->gx.engine = GX_COPY_KERNEL;
	else
		argp_error(state, "--engine: '%s' is not cpu, ce, resident, kernel or auto", arg);
}

/* ---- Groups ---- */

static const struct argp_option conn_options[] = {
	{NULL, 0, NULL, 0, "Which way:", 2},
	{"bind", KEY_BIND, "HOST", 0,
	 "Address of network ports; default: the one on the way to the server", 2},
	{"port", KEY_PORT, "NAME[:ARGS]", 0,
	 "Take the packet link over this port: shm, udp, dpdk:DEVARGS; default: the best of both "
	 "ends",
	 2},
	{"link", KEY_LINK, "LINK", 0,
	 "Take this link: local (memory of a server on this host, mapped) or packet; default: "
	 "packet with --port, else the best of both ends",
	 2},
	{"require", KEY_REQUIRE, "LINK", 0, "Fail instead of falling back to another link", 2},
	{"cores", KEY_CORES, "LIST", 0,
	 "CPUs to poll on, e.g. 1 or 1,2-3; 'any': all this process may use. Default: the last "
	 "half of "
	 "them, at most 4 (gxd takes the first half)",
	 2},
	{"timeout", OPT_GX_TIMEOUT, "SECONDS", 0,
	 "A server silent for this long is lost; default 5", 2},
	{"insecure", OPT_GX_INSECURE, NULL, 0, "Allow servers of other hosts, in clear", 2},
	{"no-huge", OPT_GX_NO_HUGE, NULL, 0, "Do not try huge pages", 2},
	{0},
};

static error_t conn_parse(int key, char *arg, struct argp_state *state)
{
	struct cmdline *c = state->input;

	switch (key) {
	case KEY_BIND:
		c->perf.bind = arg;
		return 0;
	case KEY_PORT:
		c->perf.port = arg;
		return 0;
	case KEY_LINK:
		opt_link_take(arg, &c->perf.link, state);
		return 0;
	case KEY_REQUIRE:
		c->perf.require = arg;
		return 0;
	case KEY_CORES:
		opt_cores_take(arg, &c->allowed, &c->perf.cpus, state);
		c->cpus_given = true;
		return 0;
	}
	return opt_gx_take(key, arg, &c->perf.gx, state);
}

static const struct argp_option server_options[] = {
	{"mem", KEY_MEM, "NAME", 0, "The server's region; may be left out when there is only one",
	 2},
	{NULL, 'q', "N", 0, "Connections at once; default 1", 2},
	{0},
};

static error_t server_parse(int key, char *arg, struct argp_state *state)
{
	struct cmdline *c = state->input;

	switch (key) {
	case KEY_MEM:
		c->perf.mem = arg;
		return 0;
	case 'q':
		value_u32("-q", arg, 1, PERF_CONNS_MAX, &c->perf.nr_conns, state);
		c->conns_given = true;
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static const struct argp_option tune_options[] = {
	{NULL, 0, NULL, 0, "How:", OPT_GX_GROUP},
	{"depth", KEY_DEPTH, "N", 0,
	 "Messages of a connection and core under way; default 2 for large ones to 64 for small "
	 "ones",
	 OPT_GX_GROUP},
	{"engine", KEY_ENGINE, "ENGINE", 0,
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
	struct cmdline *c = state->input;
	struct perf_opts *o = &c->perf;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &c->gx;
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

static const struct argp_option load_options[] = {
	{NULL, 0, NULL, 0, "What is moved:", 3},
	{"size", 's', "SIZE", 0, "Bytes of a message; default 1M (lat: 64); 0 is a size", 3},
	{"begin", 'b', "SIZE", 0, "First size of a sweep", 3},
	{"end", 'e', "SIZE", 0, "Last size of a sweep; default 64M", 3},
	{"factor", 'f', "N", 0, "From one size to the next; default 2", 3},
	{"iterations", 'n', "N", 0, "Messages of a connection and core; default by size", 3},
	{"warmup", 'w', "N", 0, "Messages before the clock starts", 3},
	{"duration", 'D', "SECONDS", 0, "Run for so long at each size, instead of -n", 3},
	{"check", 'c', NULL, 0, "Check payload (this is the default)", 3},
	{"no-check", KEY_NO_CHECK, NULL, 0, "Do not check payload", 3},
	{"gate", KEY_GATE, "FD", OPTION_HIDDEN, "gxperf overlap says when to begin and to end", 3},
	{0},
};

static void value_gate(const char *arg, struct cmdline *c, struct argp_state *state)
{
	uint32_t fd;
	int ret = opt_u32(arg, 0, INT32_MAX, &fd);

	if (!ret)
		ret = gate_join((int)fd);
	if (ret)
		argp_error(state, "--gate %s: %s; it is for gxperf overlap alone", arg,
			   strerror(-ret));
	c->perf.duration_ns = OPTS_GATE_NS;
	c->gated = true;
}

static error_t load_parse(int key, char *arg, struct argp_state *state)
{
	struct cmdline *c = state->input;
	struct perf_opts *o = &c->perf;
	uint32_t factor;

	switch (key) {
	case 's':
		value_size("-s", arg, INT64_MAX / 2, &o->size_begin, state);
		o->size_end = o->size_begin;
		o->size_given = true;
		return 0;
	case 'b':
		value_size("-b", arg, INT64_MAX / 2, &o->size_begin, state);
		c->begin_given = true;
		return 0;
	case 'e':
		value_size("-e", arg, INT64_MAX / 2, &o->size_end, state);
		c->end_given = true;
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
		c->time_given = true;
		return 0;
	case 'c':
	case KEY_NO_CHECK:
		o->check = key == 'c';
		return 0;
	case KEY_GATE:
		value_gate(arg, c, state);
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

/* Of those who have a server: ranks of a collective are alike. */
static const struct argp_option place_options[] = {
	{"same-place", KEY_SAME_PLACE, NULL, 0,
	 "put, get: every message from one buffer to one place, as other benchmarks do; what lies "
	 "there is checked at the end",
	 3},
	{"poll", KEY_POLL, "WHAT", 0,
	 "lat: what says that a message is there: completion (default), or memory: its last byte, "
	 "over the local link",
	 3},
	{"offset", KEY_OFFSET, "SIZE", 0, "First byte of the region to use; default 0", 3},
	{"local-mem", KEY_LOCAL_MEM, "PLACE", 0, "Where payload lies here: host or cuda:N",
	 OPT_GX_GROUP},
	{"gpu", KEY_GPU, "N", 0,
	 "Open this GPU: over link local its copy engines move payload of --local-mem host to and "
	 "from memory of GPUs; over port shm it writes to a server whose --bounce is a GPU",
	 OPT_GX_GROUP},
	{0},
};

static error_t place_parse(int key, char *arg, struct argp_state *state)
{
	struct perf_opts *o = &((struct cmdline *)state->input)->perf;

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
		return 0;
	case KEY_LOCAL_MEM:
		value_place("--local-mem", arg, o, state);
		o->local_given = true;
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
	 "Move this file, once, and prove it by SHA-256 at both ends. get: -s bytes into it "
	 "(default: the "
	 "region from --offset on), which is there when all has come",
	 3},
	{"stripe", KEY_STRIPE, NULL, 0,
	 "Cut each message into parts over all cores, which gx runs; a thread of its own posts, "
	 "and -n and --depth are of a connection",
	 3},
	{0},
};

static error_t file_parse(int key, char *arg, struct argp_state *state)
{
	struct cmdline *c = state->input;

	if (key == KEY_FILE)
		c->perf.file = arg;
	else if (key == KEY_STRIPE)
		c->perf.stripe = true;
	else
		return ARGP_ERR_UNKNOWN;
	return 0;
}

static const struct argp_option out_options[] = {
	{NULL, 0, NULL, 0, "Results:", 5},
	{"json", 'J', "FILE", 0, "Write a JSON document as well; FILE must not exist", 5},
	{"force", KEY_FORCE, NULL, 0, "The file of -J, or of get --file, may exist", 5},
	{"append", KEY_APPEND, "FILE", 0,
	 "Add each result to FILE as well, as a line of JSON that says where, when and how it was "
	 "measured",
	 5},
	{"format", KEY_FORMAT, "FORMAT", 0, "table (default), csv, json, jsonl on stdout", 5},
	{0},
};

static error_t out_parse(int key, char *arg, struct argp_state *state)
{
	struct cmdline *c = state->input;

	switch (key) {
	case 'J':
		c->report.json_path = arg;
		return 0;
	case KEY_APPEND:
		c->report.lines_path = arg;
		return 0;
	case KEY_FORCE:
		c->report.force = c->perf.force = true;
		return 0;
	case KEY_FORMAT:
		if (report_format_parse(arg, &c->report.format))
			argp_error(state, "--format: '%s' is not table, csv, json or jsonl", arg);
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static const struct argp_option demo_options[] = {
	{NULL, 0, NULL, 0, "What is shown:", 1},
	{"gxd", KEY_GXD, "PATH", 0, "The server's program; default: gxd in gxperf's folder", 1},
	{"place", KEY_PLACE, "PLACE", 0, "The server's memory: host (default) or cuda:N", 1},
	{0},
};

static error_t demo_parse(int key, char *arg, struct argp_state *state)
{
	struct cmdline *c = state->input;

	if (key == KEY_GXD)
		c->perf.gxd = arg;
	else if (key == KEY_PLACE)
		value_place("--place", arg, &c->perf, state);
	else
		return ARGP_ERR_UNKNOWN;
	return 0;
}

static const struct argp conn_argp = {.options = conn_options, .parser = conn_parse};
static const struct argp server_argp = {.options = server_options, .parser = server_parse};
static const struct argp_child tune_children[] = {{&opt_gx_argp}, {0}};
static const struct argp tune_argp = {
	.options = tune_options, .parser = tune_parse, .children = tune_children};
static const struct argp load_argp = {.options = load_options, .parser = load_parse};
static const struct argp place_argp = {.options = place_options, .parser = place_parse};
static const struct argp file_argp = {.options = file_options, .parser = file_parse};
static const struct argp out_argp = {.options = out_options, .parser = out_parse};
static const struct argp demo_argp = {.options = demo_options, .parser = demo_parse};

/* ---- Sub-commands ---- */

static const struct argp_child info_groups[] = {{&server_argp}, {&conn_argp}, {&out_argp}, {0}};
static const struct argp_child run_groups[] = {{&server_argp}, {&conn_argp}, {&load_argp},
					       {&place_argp},  {&file_argp}, {&tune_argp},
					       {&out_argp},    {0}};
static const struct argp_child plain_groups[] = {
	{&server_argp}, {&conn_argp}, {&load_argp}, {&place_argp}, {&tune_argp}, {&out_argp}, {0}};
static const struct argp_child coll_groups[] = {{&perf_coll_argp}, {&conn_argp}, {&load_argp},
						{&tune_argp},	   {&out_argp},	 {0}};
static const struct argp_child unpack_groups[] = {{&perf_unpack_argp}, {&out_argp}, {0}};
static const struct argp_child h2d_groups[] = {{&perf_h2d_argp}, {&out_argp}, {0}};
static const struct argp_child p2p_groups[] = {{&perf_p2p_argp}, {&out_argp}, {0}};
static const struct argp_child compare_groups[] = {{&perf_compare_argp}, {&out_argp}, {0}};
static const struct argp_child overlap_groups[] = {{&perf_overlap_argp}, {&out_argp}, {0}};
static const struct argp_child ipc_groups[] = {{&perf_ipc_argp}, {&out_argp}, {0}};
static const struct argp_child plot_groups[] = {{&perf_plot_argp}, {0}};
static const struct argp_child demo_groups[] = {{&demo_argp}, {&out_argp}, {0}};

static const struct command {
	const char *name;
	int (*fn)(const struct perf_opts *opts, struct report *report);
	const struct argp_child *groups;
	const char *args, *doc;
	bool addr_may, addr_must;
	bool own_args;				     /* its group takes the arguments */
	enum { STOP_NOW, STOP_ROW, STOP_KILL } stop; /* upon a signal: see main_stop() */
} commands[] = {
	{"info", perf_info, info_groups, "[HOST:PORT]",
	 "What this host has for gx; with an address, what the server there offers.", true, false,
	 .stop = STOP_KILL},
	{"put", perf_put, run_groups, "HOST:PORT", "Put data into the server's memory.", true, true,
	 .stop = STOP_ROW},
	{"get", perf_put, run_groups, "HOST:PORT", "Get data from the server's memory.", true, true,
	 .stop = STOP_ROW},
	{"send", perf_put, plain_groups, "HOST:PORT",
	 "Send tagged messages to receives that the server posts.", true, true, .stop = STOP_ROW},
	{"lat", perf_lat, plain_groups, "HOST:PORT",
	 "One-way latency: half the round trip of a put and its echo.", true, true,
	 .stop = STOP_ROW},
	{"allgather", perf_coll, coll_groups, "",
	 "All-gather among ranks: of this process (-g), or one a process.", false, false},
	{"alltoall", perf_coll, coll_groups, "",
	 "All-to-all among ranks: of this process (-g), or one a process.", false, false},
	{"unpack", perf_unpack, unpack_groups, "",
	 "Fragments scattered in a pool to GPU memory, in every mode, beside the limit.", false,
	 false},
	{"h2d", perf_h2d, h2d_groups, "",
	 "Rows by an index list from pinned memory to GPU memory, in every way, beside the limit.",
	 false, false},
	{"p2p", perf_p2p, p2p_groups, "",
	 "Between two GPUs of this process, by size: queued, alone, back and forth.", false, false},
	{"compare", perf_compare, compare_groups, "",
	 "The same work between GPUs by gx, cuMemcpyPeerAsync and NCCL, interleaved.", false,
	 false},
	{"overlap", perf_overlap, overlap_groups, "[-- COMMAND ARG...]",
	 "What communication costs a computation on the same GPUs or CPUs, and the reverse. "
	 "COMMAND: "
	 "another gxperf beside it: put, get, send, lat, allgather, alltoall.",
	 false, false, true},
	{"ipc", perf_ipc, ipc_groups, "",
	 "What it costs to open GPU memory of another process, and to close and reopen it.", false,
	 false},
	{"plot", perf_plot, plot_groups, "FILE...",
	 "Pictures, SVG and PNG, of what -J, --format json or jsonl, or tools/bench/bench.py has "
	 "written; "
	 "several files in one. Needs gnuplot.",
	 false, false, true, .stop = STOP_KILL},
	{"demo", perf_demo, demo_groups, "",
	 "Server and client as two pinned processes on this machine, in under 40 s.", false, false,
	 .stop = STOP_ROW},
};

#define NR_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static const struct command *command_find(const char *name)
{
	for (size_t i = 0; i < NR_COMMANDS; i++)
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	return NULL;
}

static void sizes_check(struct cmdline *c, struct argp_state *state)
{
	struct perf_opts *o = &c->perf;

	if ((c->begin_given || c->end_given) && o->size_given)
		argp_error(state, "give -s, or -b and -e");
	if (c->end_given && !c->begin_given)
		o->size_begin = 1;
	if (c->begin_given && !c->end_given)
		o->size_end = o->size_begin > OPTS_SIZE_END ? o->size_begin : OPTS_SIZE_END;
	if (c->begin_given || c->end_given)
		o->size_given = true;
	if (o->size_end < o->size_begin)
		argp_error(state, "-e is smaller than -b");
}

/* Only the process with rank 0 has results to print. */
static void coll_check(struct cmdline *c, struct argp_state *state)
{
	const char *why = perf_coll_prepare(&c->perf);

	if (why)
		argp_error(state, "%s", why);
	if (!c->cpus_given)
		c->perf.cpus = c->allowed;
	if (perf_coll_prints())
		return;
	c->report.json_path = c->report.lines_path = NULL;
	c->report.format = REPORT_NONE;
}

static void opts_check(struct cmdline *c, const struct command *cmd, struct argp_state *state)
{
	struct perf_opts *o = &c->perf;
	bool sweep = c->begin_given || c->end_given;

	sizes_check(c, state);
	if (c->gated && (sweep || o->n || c->time_given || o->file))
		argp_error(state, "beside a load one size goes on until overlap ends it: leave -b, "
				  "-e, -n, -D and --file out");
	if (cmd->addr_must && !o->addr)
		argp_error(state, "which server? e.g. gxperf %s 127.0.0.1:7501 --mem kv",
			   cmd->name);
	if (o->poll_memory && strcmp(cmd->name, "lat"))
		argp_error(state, "--poll is for lat");
	if (o->same_place && strcmp(cmd->name, "put") && strcmp(cmd->name, "get"))
		argp_error(state, "--same-place is for put and get");
	if (o->same_place && (o->nr_conns != 1 || o->local_kind != GX_MEM_HOST))
		argp_error(state, "--same-place: one connection, from host memory");
	if (o->n && o->duration_ns)
		argp_error(state, "give -n or -D");
	if (o->file && (sweep || o->duration_ns || o->n || o->nr_conns != 1))
		argp_error(state, "--file moves one file once: leave -b, -e, -n, -D and -q out");
	if (o->file && o->stripe)
		argp_error(state,
			   "--file moves its file over all lanes anyway: leave --stripe out");
	if (o->file && o->size_given && !strcmp(cmd->name, "put"))
		argp_error(state, "put --file: the size is that of the file; leave -s out");
	if (o->force && !c->report.json_path && !(o->file && !strcmp(cmd->name, "get")))
		argp_error(state, "--force is for -J FILE and get --file");
	if (cmd->fn == perf_coll)
		coll_check(c, state);
}

static error_t command_parse(int key, char *arg, struct argp_state *state)
{
	struct cmdline *c = state->input;
	const struct command *cmd = command_find(c->perf.command);

	switch (key) {
	case ARGP_KEY_INIT:
		for (unsigned i = 0; cmd->groups[i].argp; i++)
			state->child_inputs[i] = c;
		return 0;
	case ARGP_KEY_ARG:
		if (cmd->own_args)
			return ARGP_ERR_UNKNOWN;
		if (!cmd->addr_may || c->perf.addr)
			argp_error(state, "what is '%s'?", arg);
		c->perf.addr = arg;
		return 0;
	case ARGP_KEY_END:
		opts_check(c, cmd, state);
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

/* ---- Top ---- */

/* "info, put, ..." */
static const char *command_names(void)
{
	static char text[256];
	size_t at = 0;

	for (size_t i = 0; i < NR_COMMANDS && at < sizeof(text); i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", i ? ", " : "",
				       commands[i].name);
	return text;
}

/* Stops at the sub-command: what follows is parsed by its own options. */
static error_t top_parse(int key, char *arg, struct argp_state *state)
{
	struct cmdline *c = state->input;

	switch (key) {
	case ARGP_KEY_ARG:
		if (!command_find(arg))
			argp_error(state, "no command '%s'; there are %s", arg, command_names());
		c->perf.command = command_find(arg)->name;
		c->report.argc = state->next - 1; /* where it stands, for main() */
		state->next = state->argc;
		return 0;
	case ARGP_KEY_NO_ARGS:
		argp_error(state, "which command? %s", command_names());
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static const struct argp top_argp = {
	.parser = top_parse,
	.args_doc = "COMMAND [OPTION...]",
	.doc = "gxperf measures gx, and checks what it moved.\v"
	       "  info [HOST:PORT]  what this host has, what the server offers\n"
	       "  put HOST:PORT     put data into the server's memory; --file puts a file\n"
	       "  get HOST:PORT     get data from it\n"
	       "  send HOST:PORT    send tagged messages\n"
	       "  lat HOST:PORT     one-way latency\n"
	       "  allgather, alltoall   collectives among ranks, without a server\n"
	       "  unpack            fragments into GPU memory, beside the limit\n"
	       "  h2d               rows from pinned memory into GPU memory, beside the limit\n"
	       "  p2p               between two GPUs of this host, by size\n"
	       "  compare           the same beside cuMemcpyPeerAsync and NCCL\n"
	       "  overlap           what communication costs a computation\n"
	       "  ipc               what opening GPU memory of another process costs\n"
	       "  plot FILE...      pictures of results\n"
	       "  demo              server and client on this machine\n"
	       "gxperf COMMAND --help lists the options. Sizes take K, M, G, T, powers of two; "
	       "GB/s is 10^9.\n"
	       "Exit status: 0 ok, 1 failed, 2 usage, 3 wrong data, 4 peer lost or time-out, 128 "
	       "and the number of a signal: ended by SIGINT or SIGTERM, rows until then are kept.",
};

static void print_version(FILE *out, struct argp_state *state)
{
	version_print(out, "gxperf");
}

static void command_argp_parse(struct cmdline *c, int argc, char **argv)
{
	const struct command *cmd = command_find(c->perf.command);
	const struct argp argp = {.parser = command_parse,
				  .args_doc = cmd->args,
				  .doc = cmd->doc,
				  .children = cmd->groups};
	char name[64];

	/* The name in usage lines. */
	snprintf(name, sizeof(name), "gxperf %s", cmd->name);
	argv[0] = name;
	argp_parse(&argp, argc, argv, 0, NULL, c);
	argv[0] = (char *)cmd->name;
}

/* The main thread did not end in time, or cannot be asked to. */
static void main_last(void *arg, int signo)
{
	struct report *report = arg;

	report_stop(report, signo);
	_exit(report_close(report, report_wrong(report) ? PERF_WRONG : PERF_STOPPED + signo));
}

/* Of a command that looks for it, the row under way ends well; of others, the rows before it are
 * kept. */
static int main_stop(const struct command *cmd, struct report *report)
{
	int ret = 0;

	if (cmd->stop != STOP_KILL)
		ret = stop_open(cmd->stop == STOP_ROW ? STOP_GRACE_NS : 0, main_last, report);
	if (ret)
		report_error(report, "signals: %s", strerror(-ret));
	return ret;
}

int main(int argc, char **argv)
{
	struct cmdline c = {
		.perf = {.check = true,
			 .nr_conns = 1,
			 .size_begin = OPTS_SIZE,
			 .size_end = OPTS_SIZE,
			 .size_factor = 2,
			 .gx = {.size = sizeof(c.perf.gx), .peer_timeout_ns = OPTS_TIMEOUT_NS}},
		.gx = {&c.perf.gx, &c.perf.unpack_given}};
	const struct command *cmd;
	struct report *report;
	int at, ret;

	argp_program_version_hook = print_version;
	argp_err_exit_status = PERF_USAGE;
	signal(SIGPIPE, SIG_IGN);
	if (opt_cpus_allowed(&c.allowed)) {
		fprintf(stderr, "gxperf: no CPU affinity: %s\n", strerror(errno));
		return PERF_FAILED;
	}
	opt_cpus_default(&c.allowed, false, &c.perf.cpus);
	argp_parse(&top_argp, argc, argv, ARGP_IN_ORDER, NULL, &c);
	at = c.report.argc;
	command_argp_parse(&c, argc - at, argv + at);
	cmd = command_find(c.perf.command);
	c.report.command = c.perf.command;
	c.report.argc = argc - at;
	c.report.argv = argv + at;
	if (report_open(&c.report, &report))
		return PERF_FAILED;
	report_commit(report, version_commit());
	ret = main_stop(cmd, report) ? PERF_FAILED : cmd->fn(&c.perf, report);
	if (stop_asked()) {
		report_stop(report, stop_asked());
		ret = ret == PERF_WRONG ? ret : PERF_STOPPED + stop_asked();
	}
	return report_close(report, ret);
}
