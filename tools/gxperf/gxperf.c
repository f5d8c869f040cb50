// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf, the measuring tool: main(), and the choice of a sub-command. Options come in groups
 * (base/opts.h) that sub-commands share; opts_check() checks them against each other.
 */
#include "gxperf/base/opts.h"

#include "gxperf/base/child.h"
#include "common/flag.h"
#include "common/help.h"
#include "common/opt_table.h"
#include "gxperf/base/stop.h"
#include "common/version_text.h"
#include "gxperf/ask/ask.h"
#include "gxperf/coll/coll.h"
#include "gxperf/lab/lab.h"
#include "gxperf/move/move.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OPTS_SIZE	(1u << 20)
#define OPTS_SIZE_END	(64u << 20)
#define OPTS_TIMEOUT_NS 5000000000ull
#define OPTS_BOTH_NS	5000000000ull
#define OPTS_ROW_NS	2000000000ull

/* ---- Sub-commands ---- */

static const struct argp_child info_groups[] = {{&perf_info_argp}, {&perf_server_argp},
						{&perf_conn_argp}, {&perf_report_argp},
						{&help_argp},	   {0}};
static const struct argp_child doctor_groups[] = {
	{&perf_server_argp}, {&perf_conn_argp}, {&perf_report_argp}, {&help_argp}, {0}};
static const struct argp_child put_groups[] = {
	{&perf_server_argp}, {&perf_conn_argp}, {&perf_traffic_argp},
	{&perf_place_argp},  {&perf_file_argp}, {&perf_tune_argp},
	{&perf_report_argp}, {&help_argp},	{0}};
static const struct argp_child plain_groups[] = {
	{&perf_server_argp}, {&perf_conn_argp},	  {&perf_traffic_argp}, {&perf_place_argp},
	{&perf_tune_argp},   {&perf_report_argp}, {&help_argp},		{0}};
static const struct argp_child blocks_groups[] = {
	{&perf_server_argp}, {&perf_conn_argp},	 {&perf_traffic_argp},
	{&perf_blocks_argp}, {&perf_place_argp}, {&perf_tune_argp},
	{&perf_report_argp}, {&help_argp},	 {0}};
static const struct argp_child coll_groups[] = {{&perf_coll_argp},
						{&perf_conn_argp},
						{&perf_traffic_argp},
						{&perf_tune_argp},
						{&perf_report_argp},
						{&help_argp},
						{0}};
static const struct argp_child unpack_groups[] = {
	{&perf_unpack_argp}, {&perf_report_argp}, {&help_argp}, {0}};
static const struct argp_child p2p_groups[] = {
	{&perf_p2p_argp}, {&perf_report_argp}, {&help_argp}, {0}};
static const struct argp_child compare_groups[] = {
	{&perf_compare_argp}, {&perf_report_argp}, {&help_argp}, {0}};
static const struct argp_child overlap_groups[] = {
	{&perf_overlap_argp}, {&perf_report_argp}, {&help_argp}, {0}};
static const struct argp_child demo_groups[] = {
	{&perf_demo_argp}, {&perf_report_argp}, {&help_argp}, {0}};

static const struct command {
	const char *name;
	int (*fn)(const struct perf_opts *opts, struct report *report); /* NULL: main_plot() */
	enum gx_op_kind op;						/* perf_opts.op */
	bool all_to_all;						/* perf_opts.all_to_all */
	const struct argp_child *groups;
	const char *args, *doc;
	bool addr_may, addr_must;		     /* HOST:PORT */
	bool own_args;				     /* its group takes the arguments */
	enum { STOP_NOW, STOP_ROW, STOP_KILL } stop; /* on a signal: see main_stop() */
} commands[] = {
	{.name = "info",
	 .fn = perf_info,
	 .groups = info_groups,
	 .args = "[HOST[:PORT]]",
	 .doc = "What this host has for gx; with an address, what the server there offers."
		"\v  gxperf info\n"
		"  gxperf info 10.0.0.1 --key kv.key",
	 .addr_may = true,
	 .stop = STOP_KILL},
	{.name = "doctor",
	 .fn = perf_doctor,
	 .groups = doctor_groups,
	 .args = "[HOST[:PORT]]",
	 .doc = "What makes gx slow on this host, or refuses it, and the cure; with an address, on the way "
		"to the server there too. "
		"Exit status: 0 nothing, 1 something is slow, 2 usage, 4 gx, or the server, is refused."
		"\v  gxperf doctor\n"
		"  gxperf doctor 10.0.0.1 --key kv.key",
	 .addr_may = true,
	 .stop = STOP_KILL},
	{.name = "put",
	 .fn = perf_put,
	 .op = GX_OP_PUT,
	 .groups = put_groups,
	 .args = "HOST[:PORT]",
	 .doc = "Put data into the server's memory."
		"\v  gxperf put 10.0.0.1 --key kv.key -s 64M      messages of 64 MiB, for 2 s\n"
		"  gxperf put 10.0.0.1 --key kv.key --file F    a file, proved by SHA-256",
	 .addr_may = true,
	 .addr_must = true,
	 .stop = STOP_ROW},
	{.name = "get",
	 .fn = perf_put,
	 .op = GX_OP_GET,
	 .groups = put_groups,
	 .args = "HOST[:PORT]",
	 .doc = "Get data from the server's memory."
		"\v  gxperf get 10.0.0.1 --key kv.key -s 64M\n"
		"  gxperf get 10.0.0.1 --key kv.key --file F -s 1000003",
	 .addr_may = true,
	 .addr_must = true,
	 .stop = STOP_ROW},
	{.name = "send",
	 .fn = perf_put,
	 .op = GX_OP_SEND,
	 .groups = plain_groups,
	 .args = "HOST[:PORT]",
	 .doc = "Send tagged messages to receives that the server posts."
		"\v  gxperf send 127.0.0.1 -s 64K\n"
		"  gxperf send 127.0.0.1 -b 64 -e 4M -f 4",
	 .addr_may = true,
	 .addr_must = true,
	 .stop = STOP_ROW},
	{.name = "lat",
	 .fn = perf_lat,
	 .op = GX_OP_PUT,
	 .groups = plain_groups,
	 .args = "HOST[:PORT]",
	 .doc = "One-way latency: half the round trip of a put and its echo."
		"\v  gxperf lat 127.0.0.1                         64 bytes\n"
		"  gxperf lat 10.0.0.1 --key kv.key -b 1 -e 4K",
	 .addr_may = true,
	 .addr_must = true,
	 .stop = STOP_ROW},
	{.name = "blocks",
	 .fn = perf_blocks,
	 .groups = blocks_groups,
	 .args = "HOST[:PORT]",
	 .doc = "Lists of blocks at random places with one notification, prepared and unprepared."
		"\v  gxperf blocks 127.0.0.1 --blocks 4096 -s 16K\n"
		"  gxperf blocks 10.0.0.1 --key kv.key --view nhd-hnd",
	 .addr_may = true,
	 .addr_must = true,
	 .stop = STOP_ROW},
	{.name = "allgather",
	 .fn = perf_coll,
	 .groups = coll_groups,
	 .args = "",
	 .doc = "All-gather among ranks: of this process (-g), or one a process."
		"\v  gxperf allgather -g 4 -s 1M\n"
		"  gxperf allgather --rank 0 --ranks 2 --master 10.0.0.1:7600 --key kv.key"},
	{.name = "alltoall",
	 .fn = perf_coll,
	 .all_to_all = true,
	 .groups = coll_groups,
	 .args = "",
	 .doc = "All-to-all among ranks: of this process (-g), or one a process."
		"\v  gxperf alltoall -g 4 -s 1M\n"
		"  gxperf alltoall --rank 0 --ranks 2 --master 10.0.0.1:7600 --key kv.key"},
	{.name = "unpack",
	 .fn = perf_unpack,
	 .groups = unpack_groups,
	 .args = "",
	 .doc = "Fragments scattered in a pool to GPU memory, in every mode, beside the limit."
		"\v  gxperf unpack\n"
		"  gxperf unpack --sizes 656,8K"},
	{.name = "p2p",
	 .fn = perf_p2p,
	 .groups = p2p_groups,
	 .args = "",
	 .doc = "Between two GPUs of this process, by size: queued, alone, back and forth."
		"\v  gxperf p2p\n"
		"  gxperf p2p --sizes 4K,1G"},
	{.name = "compare",
	 .fn = perf_compare,
	 .groups = compare_groups,
	 .args = "",
	 .doc = "The same work between GPUs by gx, cuMemcpyPeerAsync and NCCL, interleaved."
		"\v  gxperf compare\n"
		"  gxperf compare --comm gx,nccl --sizes 4K,1M"},
	{.name = "overlap",
	 .fn = perf_overlap,
	 .groups = overlap_groups,
	 .args = "[-- COMMAND ARG...]",
	 .doc = "What communication costs a computation on the same GPUs or CPUs, and the reverse. "
		"COMMAND: another gxperf beside it: put, get, send, lat, allgather, alltoall."
		"\v  gxperf overlap --seconds 2\n"
		"  gxperf overlap -- put 127.0.0.1 -s 64M",
	 .own_args = true},
	{.name = "plot", .args = "FILE...", .doc = "Pictures of results.", .own_args = true},
	{.name = "demo",
	 .fn = perf_demo,
	 .groups = demo_groups,
	 .args = "",
	 .doc = "Server and client as two pinned processes on this machine, in under 40 s."
		"\v  gxperf demo\n"
		"  gxperf demo -v                               each measurement as its command prints it",
	 .stop = STOP_ROW},
};

#define NR_COMMANDS (sizeof(commands) / sizeof(commands[0]))

/* The parsed command line: the options, and where results go. */
struct cmdline {
	const struct command *cmd;
	struct perf_opts perf;
	struct report_opts report;
};

/* The struct that a group of options fills; NULL: the command keeps its own. */
static void *group_input(struct cmdline *c, const struct argp *group)
{
	struct perf_opts *o = &c->perf;
	const struct {
		const struct argp *group;
		void *input;
	} inputs[] = {
		{&perf_server_argp, &o->server},   {&perf_conn_argp, &o->conn},
		{&perf_traffic_argp, &o->traffic}, {&perf_place_argp, &o->place},
		{&perf_file_argp, &o->file},	   {&perf_blocks_argp, &o->blocks},
		{&perf_tune_argp, &o->tune},	   {&perf_info_argp, &o->info},
		{&perf_demo_argp, &o->demo},	   {&perf_report_argp, &c->report},
	};

	for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++)
		if (inputs[i].group == group)
			return inputs[i].input;
	return NULL;
}

static const struct command *command_find(const char *name)
{
	for (size_t i = 0; i < NR_COMMANDS; i++)
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	return NULL;
}

static void sizes_check(struct perf_traffic_opts *o, struct argp_state *state)
{
	if ((o->begin_given || o->end_given) && o->size_given)
		argp_error(state, "give -s, or -b and -e");
	if (o->end_given && !o->begin_given)
		o->size_begin = 1;
	if (o->begin_given && !o->end_given)
		o->size_end = o->size_begin > OPTS_SIZE_END ? o->size_begin : OPTS_SIZE_END;
	if (o->begin_given || o->end_given)
		o->size_given = true;
	if (o->size_end < o->size_begin)
		argp_error(state, "-e is smaller than -b");
}

/* By time: with a number of messages the faster direction would leave the other one alone at the end. */
static void bidirectional_check(struct perf_opts *o, struct argp_state *state)
{
	if (!o->file.bidirectional)
		return;
	if (o->traffic.n || o->file.path || o->place.same_place || o->traffic.throttled)
		argp_error(state, "--bidirectional runs for -D SECONDS: leave -n, --file and "
				  "--same-place out; not beside overlap");
	if (!o->traffic.duration_ns)
		o->traffic.duration_ns = OPTS_BOTH_NS;
}

/* Only the process with rank 0 prints results. */
static void coll_check(struct cmdline *c, struct argp_state *state)
{
	const char *why = perf_coll_prepare(&c->perf);

	if (why)
		argp_error(state, "%s", why);
	if (!c->perf.conn.cpus_given)
		c->perf.conn.cpus = c->perf.conn.allowed;
	if (perf_coll_prints())
		return;
	c->report.json_path = c->report.lines_path = NULL;
	c->report.format = REPORT_NONE;
}

/* A number of messages is over in milliseconds, and says little. A sweep has many sizes. */
static void duration_default(struct perf_opts *o)
{
	if (o->addr && o->op && !o->traffic.n && !o->traffic.begin_given && !o->traffic.end_given &&
	    !o->traffic.duration_ns && !o->file.path)
		o->traffic.duration_ns = OPTS_ROW_NS;
}

static void opts_check(struct cmdline *c, struct argp_state *state)
{
	const struct command *cmd = c->cmd;
	struct perf_opts *o = &c->perf;
	bool sweep = o->traffic.begin_given || o->traffic.end_given;

	sizes_check(&o->traffic, state);
	o->file.force = c->report.force;
	if (o->traffic.throttled &&
	    (sweep || o->traffic.n || o->traffic.time_given || o->file.path))
		argp_error(state, "beside a load one size goes on until overlap ends it: leave -b, "
				  "-e, -n, -D and --file out");
	if (cmd->addr_must && !o->addr)
		argp_error(state, "which server? e.g. gxperf %s 127.0.0.1:7501 --mem kv",
			   cmd->name);
	if (o->place.poll_memory && cmd->fn != perf_lat)
		argp_error(state, "--poll is for lat");
	if (o->place.same_place && (cmd->fn != perf_put || cmd->op == GX_OP_SEND))
		argp_error(state, "--same-place is for put and get");
	if (o->place.same_place && (o->server.nr_conns != 1 || o->place.kind != GX_MEM_HOST))
		argp_error(state, "--same-place: one connection, from host memory");
	if (o->info.nccl && o->addr)
		argp_error(state, "--nccl is about this host: leave %s out", o->addr);
	if (o->traffic.interval_ns && (cmd->fn != perf_put || o->file.path))
		argp_error(state, "-i is for put, get and send, without --file");
	if (o->traffic.n && o->traffic.duration_ns)
		argp_error(state, "give -n or -D");
	if (o->file.path &&
	    (sweep || o->traffic.duration_ns || o->traffic.n || o->server.nr_conns != 1))
		argp_error(state, "--file moves one file once: leave -b, -e, -n, -D and -q out");
	if (o->file.path && o->file.stripe)
		argp_error(state,
			   "--file moves its file over all lanes anyway: leave --stripe out");
	if (o->file.path && o->traffic.size_given && cmd->op == GX_OP_PUT)
		argp_error(state, "put --file: the size is that of the file; leave -s out");
	if (c->report.force && !c->report.json_path && !(o->file.path && cmd->op == GX_OP_GET))
		argp_error(state, "--force is for -J FILE and get --file");
	bidirectional_check(o, state);
	duration_default(o);
	if (cmd->fn == perf_coll)
		coll_check(c, state);
}

/* As with other RDMA benchmarks, -q then counts queue pairs. */
static void verbs_check(struct perf_opts *o, struct argp_state *state)
{
	if (!o->conn.link || strcmp(o->conn.link, "verbs") != 0)
		return;
	if (o->server.nr_conns > 64)
		argp_error(state, "-q: with --link verbs, 1 to 64 queue pairs");
	if (o->server.conns_given)
		o->server.queue_pairs = o->server.nr_conns;
	o->server.nr_conns = 1;
	opt_ctx_verbs(&o->gx);
}

static error_t command_parse(int key, char *arg, struct argp_state *state)
{
	struct cmdline *c = state->input;
	const struct command *cmd = c->cmd;

	switch (key) {
	case ARGP_KEY_INIT:
		for (unsigned i = 0; cmd->groups[i].argp; i++)
			state->child_inputs[i] = group_input(c, cmd->groups[i].argp);
		return 0;
	case ARGP_KEY_ARG:
		if (cmd->own_args)
			return ARGP_ERR_UNKNOWN;
		if (!cmd->addr_may || c->perf.addr)
			argp_error(state, "what is '%s'?", arg);
		c->perf.addr = opt_addr(arg);
		return 0;
	case ARGP_KEY_END:
		verbs_check(&c->perf, state);
		opts_check(c, state);
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

/* An address, or a name that is looked up; a mistyped command is neither. */
static bool is_host(const char *arg)
{
	struct addrinfo *list;

	if (strpbrk(arg, ".:"))
		return true;
	if (getaddrinfo(arg, NULL, NULL, &list))
		return false;
	freeaddrinfo(list);
	return true;
}

/* Stop at the sub-command: its own options parse the rest. */
static error_t top_parse(int key, char *arg, struct argp_state *state)
{
	struct cmdline *c = state->input;
	const struct command *cmd;
	bool host;

	switch (key) {
	case ARGP_KEY_ARG:
		cmd = command_find(arg);
		host = !cmd && is_host(arg);
		if (!cmd && !host) {
			argp_error(state, "no command '%s', and no host of that name; there are %s",
				   arg, command_names());
			return EINVAL;
		}
		if (host)
			cmd = command_find("put");
		c->cmd = cmd;
		c->perf.command = cmd->name;
		c->perf.op = cmd->op;
		c->perf.all_to_all = cmd->all_to_all;
		/* Index of the sub-command, for main(); HOST stays an argument. */
		c->report.argc = state->next - 1 - host;
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
	.args_doc = "COMMAND [OPTION...]\nHOST [OPTION...]",
	.children = help_children,
	.doc = "gxperf measures gx, and checks what it moved. HOST is HOST:PORT for a port other than 7501.\v"
	       "  gxperf 10.0.0.1 --key kv.key      put for 2 s, to a gxd there\n"
	       "  gxperf demo                       server and client on this machine\n"
	       "  info [HOST]       what this host has, what the server offers\n"
	       "  doctor [HOST]     what makes gx slow here, or refuses it, and the cure\n"
	       "  put HOST          put data into the server's memory; --file puts a file\n"
	       "  get HOST          get data from it\n"
	       "  send HOST         send tagged messages\n"
	       "  lat HOST          one-way latency\n"
	       "  blocks HOST       lists of blocks at random places with one notification\n"
	       "  allgather, alltoall   collectives among ranks, without a server\n"
	       "  unpack            fragments into GPU memory, beside the limit\n"
	       "  p2p               between two GPUs of this host, by size\n"
	       "  compare           the same beside cuMemcpyPeerAsync and NCCL\n"
	       "  overlap           what communication costs a computation\n"
	       "  plot FILE...      pictures of results\n"
	       "  demo              server and client on this machine\n"
	       "gxperf HOST is gxperf put HOST. gxperf COMMAND --help has "
	       "examples and options. Sizes take K, M, G, T, powers of two; "
	       "GB/s is 10^9.\n"
	       "Exit status: 0 ok, 1 failed, 2 usage, 3 wrong data, 4 peer lost or time-out, 128 "
	       "and the number of a signal: ended by SIGINT or SIGTERM, rows until then are kept.",
};

static void print_version(FILE *out, struct argp_state *state)
{
	version_print(out, "gxperf");
}

static struct argp command_argp(const struct command *cmd)
{
	return (struct argp){.parser = cmd->fn ? command_parse : NULL, /* plot is another program */
			     .args_doc = cmd->args,
			     .doc = cmd->doc,
			     .children = cmd->groups};
}

static void command_argp_parse(struct cmdline *c, int argc, char **argv)
{
	const struct command *cmd = c->cmd;
	const struct argp argp = command_argp(cmd);
	char name[64];

	/* The name in usage lines. */
	snprintf(name, sizeof(name), "gxperf %s", cmd->name);
	argv[0] = name;
	argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, c);
	argv[0] = (char *)cmd->name;
}

/* What shells complete, and man pages list. */
static int main_list(void)
{
	opt_table("", &top_argp);
	for (size_t i = 0; i < NR_COMMANDS; i++) {
		const struct argp argp = command_argp(&commands[i]);

		opt_table(commands[i].name, &argp);
	}
	return fflush(stdout) ? PERF_FAILED : PERF_OK;
}

/* A program of its own draws, which is in this one's folder. */
static int main_plot(char **argv)
{
	char path[4096] = "gxperf-plot";
	int ret = child_self("gxperf-plot", path, sizeof(path));

	if (!ret) {
		execv(path, argv);
		ret = -errno;
	}
	fprintf(stderr,
		"gxperf: %s: %s; it is installed beside gxperf, and needs python3 and gnuplot\n",
		path, strerror(-ret));
	return PERF_FAILED;
}

/* The main thread did not end in time, or its command cannot be asked to end. */
static void main_last(void *arg, int signo)
{
	struct report *report = arg;

	report_stop(report, signo);
	_exit(report_close(report, report_wrong(report) ? PERF_WRONG : PERF_STOPPED + signo));
}

/* STOP_ROW: the command looks for signals once it is connected, and ends the row under way in order. STOP_NOW: the rows
 * so far are kept. STOP_KILL: the signal kills. */
static int main_stop(const struct command *cmd, struct report *report)
{
	int ret = 0;

	if (cmd->stop != STOP_KILL)
		ret = stop_open(0, main_last, report);
	if (ret)
		report_error(report, "signals: %s", strerror(-ret));
	return ret;
}

/* A file that goes to stdout has it alone. */
static int stdout_split(struct perf_opts *o)
{
	if (!o->file.path || strcmp(o->file.path, "-") != 0 || o->op != GX_OP_GET)
		return 0;
	o->file.stdout_fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
	if (o->file.stdout_fd >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0)
		return 0;
	fprintf(stderr, "gxperf: --file -: %s\n", strerror(errno));
	return -errno;
}

int main(int argc, char **argv)
{
	struct cmdline c = {.perf = {.server = {.nr_conns = 1},
				     .conn = {.gx = &c.perf.gx},
				     .traffic = {.check = true,
						 .size_begin = OPTS_SIZE,
						 .size_end = OPTS_SIZE,
						 .size_factor = 2},
				     .tune = {.gx = {&c.perf.gx, &c.perf.tune.unpack_given}},
				     .gx = {.top.peer_timeout_ns = OPTS_TIMEOUT_NS}}};
	const struct command *cmd;
	struct report *report;
	int at, ret;

	argp_program_version_hook = print_version;
	argp_err_exit_status = PERF_USAGE;
	signal(SIGPIPE, SIG_IGN);
	flag_log();
	if (argc > 1 && !strcmp(argv[1], OPT_TABLE))
		return main_list();
	help_words(&argc, argv);
	if (opt_cpus_allowed(&c.perf.conn.allowed)) {
		fprintf(stderr, "gxperf: no CPU affinity: %s\n", strerror(errno));
		return PERF_FAILED;
	}
	opt_cpus_default(&c.perf.conn.allowed, false, &c.perf.conn.cpus);
	argp_parse(&top_argp, argc, argv, ARGP_IN_ORDER | ARGP_NO_HELP, NULL, &c);
	at = c.report.argc;
	cmd = c.cmd;
	if (!cmd->fn)
		return main_plot(argv + at);
	command_argp_parse(&c, argc - at, argv + at);
	c.report.command = c.perf.command;
	c.report.argc = argc - at;
	c.report.argv = argv + at;
	if (stdout_split(&c.perf) || report_open(&c.report, &report))
		return PERF_FAILED;
	report_commit(report, version_commit());
	ret = main_stop(cmd, report) ? PERF_FAILED : cmd->fn(&c.perf, report);
	if (stop_asked()) {
		report_stop(report, stop_asked());
		ret = ret == PERF_WRONG ? ret : PERF_STOPPED + stop_asked();
	}
	return report_close(report, ret);
}
