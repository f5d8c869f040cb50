// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf allgather and gxperf alltoall: options, the ranks of this process, and a rank's life (see
 * coll.h). With -g each rank is a thread with a context, a core and a GPU of its own; rank 0
 * is the main thread. Otherwise the process is one rank, and a launcher or --rank gives its number.
 */
#include "gxperf/coll/coll.h"

#include "common/opt_argp.h"
#include "gxperf/base/throttle.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COLL_LANES_MAX	16
#define COLL_TIMEOUT_NS 120000000000ull /* of one collective */
#define COLL_CONNECT_NS 60000000000ull

static struct coll_opts coll = {.device = -1, .lanes = 1, .connect_ns = COLL_CONNECT_NS};

/* ---- Options ---- */

enum {
	KEY_RANK = 700,
	KEY_RANKS,
	KEY_MASTER,
	KEY_MEMORY,
	KEY_PIECE,
	KEY_PUTS,
	KEY_FAN,
	KEY_LANES,
	KEY_CONNECT,
};

static const struct argp_option coll_options[] = {
	{NULL, 0, NULL, 0, "Which ranks:", 1},
	{"threads", 'g', "N", 0, "N ranks as threads of this process; with GPUs rank i takes GPU i",
	 1},
	{"rank", KEY_RANK, "N", 0,
	 "This process is rank N of --ranks at --master. Default: what torchrun, mpirun or Slurm "
	 "say in the environment",
	 1},
	{"ranks", KEY_RANKS, "N", 0, "How many there are", 1},
	{"master", KEY_MASTER, "HOST:PORT", 0,
	 "Where rank 0 listens; default: MASTER_ADDR and MASTER_PORT", 1},
	{"meet", KEY_CONNECT, "SECONDS", 0, "All ranks must have come within this; default 60", 1},
	{"mem", KEY_MEMORY, "PLACE", 0,
	 "host (default); cuda: GPU i for the i-th rank of a host; cuda:N", 1},
	{"lanes", KEY_LANES, "N", 0, "Cores of a rank; default 1", 1},
	{"piece", KEY_PIECE, "SIZE", 0, "Largest put; default 1M from host memory, 1G from GPUs",
	 1},
	{"puts", KEY_PUTS, "N", 0, "Puts to one peer under way; default 16", 1},
	{"fan", KEY_FAN, "N", 0, "Peers served at once; default all, 1 from GPUs", 1},
	{0},
};

static int rank_parse(const char *arg)
{
	coll.rank_given = true;
	return opt_u32(arg, 0, GX_GROUP_RANKS_MAX - 1, &coll.rank);
}

static int ranks_parse(const char *arg)
{
	coll.ranks_given = true;
	return opt_u32(arg, 1, GX_GROUP_RANKS_MAX, &coll.ranks);
}

static int master_parse(const char *arg)
{
	coll.master = arg;
	return strchr(arg, ':') ? 0 : -EINVAL;
}

static int place_parse(const char *arg)
{
	if (!strcmp(arg, "cuda")) {
		coll.kind = GX_MEM_CUDA;
		coll.device = -1;
		return 0;
	}
	return opt_place(arg, &coll.kind, &coll.device);
}

static int piece_parse(const char *arg)
{
	return opt_size(arg, &coll.piece);
}

static const struct opt_value coll_values[] = {
	{'g', OPT_U32, &coll.threads, 1, 64},
	{KEY_RANK, OPT_CALL, .parse = rank_parse},
	{KEY_RANKS, OPT_CALL, .parse = ranks_parse},
	{KEY_MASTER, OPT_CALL, .parse = master_parse},
	{KEY_CONNECT, OPT_SECONDS, &coll.connect_ns},
	{KEY_MEMORY, OPT_CALL, .parse = place_parse},
	{KEY_LANES, OPT_U32, &coll.lanes, 1, COLL_LANES_MAX},
	{KEY_PIECE, OPT_CALL, .parse = piece_parse},
	{KEY_PUTS, OPT_U32, &coll.puts, 1, 256},
	{KEY_FAN, OPT_U32, &coll.fan, 1, GX_GROUP_RANKS_MAX},
	{0},
};

static error_t coll_parse(int key, char *arg, struct argp_state *state)
{
	return opt_parse(coll_options, coll_values, key, arg, state);
}

const struct argp perf_coll_argp = {.options = coll_options, .parser = coll_parse};

static const char *explicit_check(void)
{
	if (coll.threads && (coll.rank_given || coll.ranks_given || coll.master))
		return "give -g for ranks in this process, or --rank, --ranks and --master for "
		       "this "
		       "process as one of them";
	if (coll.threads)
		return NULL;
	if (coll.rank_given != coll.ranks_given)
		return "give --rank and --ranks together";
	if (coll.rank_given && coll.rank >= coll.ranks)
		return "--rank must be less than --ranks";
	return NULL;
}

static const char *env_take(void)
{
	struct gx_group_env env = GX_INIT(env);

	if (gx_group_env(&env))
		return gx_error();
	coll.launcher = env.launcher;
	coll.rank = env.rank;
	coll.ranks = env.nr_ranks;
	coll.local_rank = env.local_rank;
	snprintf(coll.env_master, sizeof(coll.env_master), "%s", env.master);
	snprintf(coll.job, sizeof(coll.job), "%s", env.job);
	if (!coll.master && env.master[0])
		coll.master = coll.env_master;
	return NULL;
}

const char *perf_coll_prepare(const struct perf_opts *o)
{
	const char *why = explicit_check();

	if (why)
		return why;
	if (throttle_on() && !coll.threads)
		return "beside a load the ranks are threads of one process: give -g";
	if (o->tune.engine && strcmp(o->tune.engine, "auto") &&
	    (coll.kind == GX_MEM_CUDA) == !strcmp(o->tune.engine, "cpu"))
		return "--engine: cpu is for --mem host, ce and resident are for --mem cuda";
	if (o->tune.depth > GX_COLL_DEPTH)
		return "--depth: at most 16 collectives can be under way";
	if (coll.threads) {
		coll.ranks = coll.threads;
		snprintf(coll.job, sizeof(coll.job), "gxperf-%d", (int)getpid());
		return NULL;
	}
	if (coll.rank_given) {
		coll.local_rank = coll.rank;
		snprintf(coll.job, sizeof(coll.job), "%s",
			 getenv("GX_JOB") ? getenv("GX_JOB") : "");
	} else if ((why = env_take())) {
		return coll.launcher || !strstr(why, "no launcher")
			       ? why
			       : "which ranks? -g 2 for two in this process; --rank, --ranks and "
				 "--master for one of several; or start it by torchrun, mpirun or "
				 "srun";
	}
	if (!coll.master)
		return "where is rank 0? Say --master HOST:PORT, or set MASTER_ADDR (mpirun -x "
		       "MASTER_ADDR=host)";
	return NULL;
}

bool perf_coll_prints(void)
{
	return coll.threads || coll.rank == 0;
}

/* ---- A rank's life ---- */

/* Each rank takes as many CPUs in turn as it has cores. */
static int rank_cpu(const struct coll_rank *r, unsigned core)
{
	const struct opt_cpus *cpus = &r->run->o->conn.cpus;

	return cpus->cpu[(r->local * r->run->c->lanes + core) % cpus->nr];
}

static void rank_pin(const struct coll_rank *r)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((unsigned)rank_cpu(r, 0), &set);
	if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set))
		fprintf(stderr, "gxperf: rank %u cannot be pinned to CPU %d: going on unpinned\n",
			r->rank, rank_cpu(r, 0));
}

/* @ctx, @ports: what @gx points into */
static void rank_gx_opts(const struct coll_rank *r, int cpus[COLL_LANES_MAX], struct opt_ctx *ctx,
			 struct opt_ports *ports, struct gx_opts *gx)
{
	const struct perf_opts *o = r->run->o;

	*ctx = o->gx;
	ctx->host.local = (o->conn.link ? strcmp(o->conn.link, "local") != 0 : o->conn.port != NULL)
				  ? GX_OFF
				  : GX_AUTO;
	*gx = opt_ctx_opts(ctx);
	if (o->conn.port)
		opt_ports(o->conn.port, ports); /* conn_parse() has checked them */
	for (unsigned i = 0; i < r->run->c->lanes; i++)
		cpus[i] = rank_cpu(r, i);
	gx->cpus = cpus;
	gx->nr_cores = r->run->c->lanes;
	gx->ports = ports->nr ? ports->v : NULL;
	gx->nr_ports = ports->nr;
	gx->server = r->rank == 0;
	gx->bind_host = o->conn.bind;
}

static int rank_open(struct coll_rank *r)
{
	const struct coll_run *run = r->run;
	const struct coll_opts *c = run->c;
	int cpus[COLL_LANES_MAX], device = c->device < 0 ? (int)r->local : c->device, ret;
	struct gx_group_buf bufs[3] = {
		[COLL_BUF_SRC] = {.kind = c->kind, .device = device},
		[COLL_BUF_DST] = {.kind = c->kind, .device = device},
		[COLL_BUF_CTL] = {.kind = GX_MEM_HOST, .len = coll_ctl_room(run)},
	};
	struct gx_group_opts g = GX_INIT(g);
	struct opt_ports ports = {0};
	struct gx_port_name port;
	struct opt_ctx ctx;
	struct gx_opts gx;

	if (coll_room(run, &bufs[COLL_BUF_SRC].len, &bufs[COLL_BUF_DST].len))
		return coll_say(r, PERF_USAGE, "-e: %u ranks cannot move that much", run->nr_ranks);
	rank_gx_opts(r, cpus, &ctx, &ports, &gx);
	if (ports.nr) { /* the arguments are for this end's device only */
		port = ports.v[0];
		port.args = NULL;
		g.port = &port;
	}
	g.link = run->o->conn.link;
	g.rank = r->rank;
	g.nr_ranks = run->nr_ranks;
	g.master = run->master;
	g.job = c->job;
	g.gx = &gx;
	g.bufs = bufs;
	g.nr_bufs = 3;
	g.piece_b = c->piece;
	g.depth = c->puts;
	g.fan = c->fan;
	g.connect_timeout_ns = c->connect_ns;
	g.timeout_ns = COLL_TIMEOUT_NS;
	ret = gx_group_open(&g, &r->group);
	return ret ? coll_say(r, ret == -EINVAL ? PERF_USAGE : PERF_FAILED, "%s", gx_error())
		   : PERF_OK;
}

/* Does a GPU or CPU unpack the payload? A link without a port, as tcp, fills host memory. */
static bool link_unpacks(const struct gx_conn_info *info, enum gx_mem_kind kind)
{
	return !strcmp(info->link, "packet") || (!info->payload_max_b && kind == GX_MEM_CUDA);
}

/* Check every connection of this rank against --link. */
static int rank_link_check(struct coll_rank *r)
{
	const struct perf_opts *o = r->run->o;
	const char *want = o->conn.link;

	for (unsigned q = 0; q < r->run->nr_ranks; q++) {
		struct gx_conn_info info = GX_INIT(info);

		if (q == r->rank || gx_conn_info(gx_group_conn(r->group, q), &info))
			continue;
		if (o->tune.unpack_given && !link_unpacks(&info, r->run->c->kind))
			return coll_say(r, PERF_FAILED,
					"--unpack %s: over link %s nothing is unpacked; add "
					"--link packet",
					opt_unpack_text(o->gx.gpu.unpack), info.link);
		if (!want || !strcmp(info.link, want))
			continue;
		return coll_say(r, PERF_FAILED,
				"--link %s: ranks %u and %u take link %s over port %s (%s)", want,
				r->rank, q, info.link, info.port, info.why);
	}
	return PERF_OK;
}

/* Rank 0 accepted the connection, and knows only that the other end chose. All ranks have the same
 * options, so rank 0 knows the reason. */
static const char *path_why(const struct perf_opts *o, const struct gx_conn_info *info, char *buf,
			    size_t room)
{
	if (!strstr(info->why, "chosen by the client"))
		return info->why;
	if (o->conn.link || o->conn.port)
		snprintf(buf, room, "asked for: --%s %s", o->conn.link ? "link" : "port",
			 o->conn.link ? o->conn.link : o->conn.port);
	else
		snprintf(buf, room,
			 "the best of what both ranks have; neither --link nor --port "
			 "asks for another");
	return buf;
}

/* Rank 0 reports its path to rank 1. Other paths may differ; --link then fails. */
static void rank_path_tell(const struct coll_rank *r)
{
	const struct coll_run *run = r->run;
	const struct perf_opts *o = run->o;
	struct gx_conn_info info = GX_INIT(info);
	struct opt_cpus cpus = {.nr = 0};
	char list[256], how[64], why[320], auth[OPT_AUTH_MAX];
	struct report_path path = {.cores = list, .quantum_b = -1};

	for (unsigned i = 0; i < run->nr_here * run->c->lanes && i < o->conn.cpus.nr; i++)
		cpus.cpu[cpus.nr++] = o->conn.cpus.cpu[i];
	opt_cpus_text(&cpus, list, sizeof(list));
	path.gpu = run->c->kind == GX_MEM_HOST ? "host" : "cuda";
	path.unpack = o->tune.unpack_given	    ? opt_unpack_text(o->gx.gpu.unpack)
		      : run->c->kind == GX_MEM_CUDA ? "kernel"
						    : "host";
	path.link = path.port = path.control = path.integrity = path.auth = path.crc_by = "none";
	path.why = "one rank alone";
	if (run->nr_ranks > 1 && !gx_conn_info(gx_group_conn(r->group, 1), &info)) {
		path.link = info.link;
		path.port = info.port;
		path.control = info.control;
		path.integrity = opt_integrity_text(info.integrity);
		path.auth = opt_auth_text(&info, auth);
		path.crc_by = opt_crc_by_text(info.integrity, info.crc_by_copy, run->c->kind);
		path.quantum_b = info.quantum_b;
		path.why = path_why(o, &info, why, sizeof(why));
		path.reason = gx_reason_name(info.path_reason);
		if (strcmp(info.link, "verbs") != 0 && !link_unpacks(&info, run->c->kind))
			path.unpack =
				"direct"; /* with link verbs memory of a GPU goes by packets */
		if (!strcmp(info.link, "local"))
			path.engine = run->c->kind == GX_MEM_HOST ? "cpu"
				      : o->tune.engine		  ? o->tune.engine
								  : "auto";
	}
	report_path(run->report, &path);
	snprintf(how, sizeof(how), "%s",
		 run->nr_here > 1 ? "threads of this process" : "one a process");
	report_section(
		run->report,
		"%u ranks, %s%s%s. size: what each sends to each; GB/s: ranks * size / time; bus: "
		"(ranks - 1) * size / time",
		run->nr_ranks, how, run->c->launcher ? ", by " : "",
		run->c->launcher ? run->c->launcher : "");
}

static int rank_connect(struct coll_rank *r)
{
	int ret = gx_group_connect(r->group);

	if (ret)
		return coll_say(r,
				ret == -ETIMEDOUT || ret == -ECONNRESET ? PERF_LOST : PERF_FAILED,
				"%s", gx_error());
	for (unsigned i = 1; i < r->run->c->lanes; i++)
		if (gx_core_start(gx_core(gx_group_gx(r->group), i)))
			return coll_say(r, PERF_FAILED, "%s", gx_error());
	ret = rank_link_check(r);
	if (!ret && r->rank == 0)
		rank_path_tell(r);
	return ret;
}

/* A rank's life. All ranks of this process are open before any connects. */
static void rank_live(struct coll_rank *r)
{
	struct coll_run *run = r->run;

	rank_pin(r);
	if (!r->group && !r->status && rank_open(r))
		atomic_fetch_add(&run->nr_failed, 1);
	pthread_barrier_wait(&run->opened);
	if (!atomic_load(&run->nr_failed) && !rank_connect(r))
		r->status = coll_sizes(r);
	gx_group_close(r->group);
}

static void *rank_thread(void *arg)
{
	rank_live(arg);
	return NULL;
}

/* ---- All ranks of this process ---- */

/* A rank that failed by itself has the better reason than ranks that lost it. Report each reason
 * once. */
static int ranks_tell(struct coll_run *run, const struct coll_rank *ranks)
{
	int worst = PERF_OK;

	for (unsigned i = 0; i < run->nr_here; i++) {
		bool said = false;

		if (ranks[i].status && (!worst || ranks[i].status < worst))
			worst = ranks[i].status;
		for (unsigned k = 0; k < i; k++)
			said |= !strcmp(ranks[i].why, ranks[k].why);
		if (ranks[i].why[0] && !said)
			report_error(run->report, "rank %u: %s", ranks[i].rank, ranks[i].why);
	}
	return worst;
}

static int ranks_run(struct coll_run *run, struct coll_rank *ranks)
{
	unsigned started = 1;

	for (unsigned i = 0; i < run->nr_here; i++) {
		ranks[i].run = run;
		ranks[i].rank = run->first + i;
		ranks[i].local = run->nr_here > 1 ? i : run->c->local_rank;
	}
	/* The other ranks need rank 0's address. */
	if (run->c->threads && rank_open(&ranks[0]))
		return ranks_tell(run, ranks);
	if (run->c->threads)
		snprintf(run->master, sizeof(run->master), "%s", gx_group_addr(ranks[0].group));
	pthread_barrier_init(&run->opened, NULL, run->nr_here);
	for (; started < run->nr_here; started++)
		if (pthread_create(&ranks[started].thread, NULL, rank_thread, &ranks[started])) {
			/* The running threads would wait for this one for ever. */
			report_error(run->report, "cannot start a thread for rank %u", started);
			exit(PERF_FAILED);
		}
	rank_live(&ranks[0]);
	for (unsigned i = 1; i < started; i++)
		pthread_join(ranks[i].thread, NULL);
	pthread_barrier_destroy(&run->opened);
	return ranks_tell(run, ranks);
}

int perf_coll(const struct perf_opts *opts, struct report *report)
{
	struct coll_run run = {.o = opts,
			       .c = &coll,
			       .report = report,
			       .all_to_all = opts->all_to_all,
			       .nr_ranks = coll.ranks,
			       .nr_here = coll.threads ? coll.threads : 1,
			       .first = coll.threads ? 0 : coll.rank};
	struct coll_rank *ranks = calloc(run.nr_here, sizeof(*ranks));
	int ret;

	if (!ranks) {
		report_error(report, "no memory");
		return PERF_FAILED;
	}
	snprintf(run.master, sizeof(run.master), "%s", coll.threads ? "127.0.0.1:0" : coll.master);
	ret = ranks_run(&run, ranks);
	free(ranks);
	return ret;
}
