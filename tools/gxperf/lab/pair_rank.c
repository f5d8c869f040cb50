// SPDX-License-Identifier: Apache-2.0
/*
 * A rank of gxperf compare --comm (see pair.h): it sets NCCL's environment, loads NCCL, and runs
 * what gxperf asks for. Main thread only; NCCL and gx have threads of their own.
 */
#include "gxperf/lab/mover.h"
#include "gxperf/lab/nccl_lib.h"
#include "gxperf/lab/pair.h"

#include <gxlab/load.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define RANK_SOCK    STDIN_FILENO
#define RANK_STAGE_B ((size_t)4 << 20)
#define RANK_GRANULE ((size_t)2 << 20)
#define RANK_POISON  0xffffff	       /* seeds of sources are less: 24 bits count */
#define RANK_LOG_B   ((size_t)1 << 20) /* of NCCL's log, what is looked at */
#define RANK_LOOK_NS 1000000	       /* between two looks for an error of NCCL */

struct rank {
	const struct pair_net *net;
	const struct pair_opts *opts;
	struct report *report;
	int rank;
	int log;	/* NCCL's, a memfd */
	struct bench b; /* dev[0]: the source, dev[1]: the destination */
	struct ncclComm *comm;
	uint64_t fills;	 /* of the source so far; the same in both ranks */
	uint64_t due_ns; /* when to give up the operations of this request */
	bool late;
	char note[512];
};

/* ---- Environment ---- */

static const char *const env_all[][2] = {
	{"NCCL_DEBUG", "INFO"},	   {"NCCL_DEBUG_SUBSYS", "INIT,NET"}, {"NCCL_IB_DISABLE", "1"},
	{"NCCL_NVLS_ENABLE", "0"}, {"NCCL_MNNVL_ENABLE", "0"},	      {NULL, NULL}};

static void env_set(const char *const (*env)[2])
{
	for (; (*env)[0]; env++)
		setenv((*env)[0], (*env)[1], 1);
}

/* The file is --plugin, the environment's, or that of gxperf's folder; else the loader looks. */
static void env_plugin(const struct rank *r)
{
	char path[PATH_MAX];

	if (r->opts->plugin)
		setenv("NCCL_NET_PLUGIN", r->opts->plugin, 1);
	else if (!getenv("NCCL_NET_PLUGIN"))
		setenv("NCCL_NET_PLUGIN", perf_plugin_near(path, sizeof(path)) ? "gx" : path, 1);
}

/* With a host's name of its own a rank is on another host, so NCCL takes the network. */
static int rank_env(struct rank *r)
{
	char text[64];

	env_set(env_all);
	env_set(r->net->env);
	if (r->net->plugin)
		env_plugin(r);
	setenv("NCCL_SOCKET_IFNAME", "lo", 0);
	snprintf(text, sizeof(text), "gxperf-%d", r->rank);
	setenv("NCCL_HOSTID", text, 1);
	r->log = memfd_create("nccl-log", MFD_CLOEXEC);
	if (r->log < 0)
		return -errno;
	snprintf(text, sizeof(text), "/proc/self/fd/%d", r->log);
	setenv("NCCL_DEBUG_FILE", text, 1);
	return 0;
}

/* ---- NCCL's log ---- */

/* The caller frees it. NULL: nothing is there. */
static char *log_text(const struct rank *r)
{
	char *text = calloc(1, RANK_LOG_B + 1);
	ssize_t n = text ? pread(r->log, text, RANK_LOG_B, 0) : -1;

	if (n > 0)
		return text;
	free(text);
	return NULL;
}

/* "... Channel 00/0 : 0[0] -> 1[0] [send] via NET/gx/0": all of them, of this transport. */
static bool log_line(struct rank *r, char *line, unsigned *nr, char via[64])
{
	char *at = strstr(line, "Channel ") ? strstr(line, "] via ") : NULL, *note;
	size_t len = strlen(r->net->via);

	if (at) {
		++*nr;
		snprintf(via, 64, "%.*s", (int)strcspn(at + 6, " "), at + 6);
		return !strncmp(via, r->net->via, len) && (via[len] == '/' || !via[len]);
	}
	note = strstr(line, "NET/gx : gx ");
	if (note)
		snprintf(r->note, sizeof(r->note), "%s", note + strlen("NET/gx : "));
	return true;
}

static int log_check(struct rank *r)
{
	char *text = log_text(r), *save = NULL, via[64] = "";
	unsigned nr = 0;
	bool good = true;

	for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line && good;
	     line = strtok_r(NULL, "\n", &save))
		good = log_line(r, line, &nr, via);
	free(text);
	if (good && nr)
		return PERF_OK;
	report_error(r->report, "NCCL's log names %s, not %s", nr ? via : "no connection",
		     r->net->via);
	return PERF_FAILED;
}

/* What NCCL warned of is the reason of most failures. */
static int rank_failed(struct rank *r, const char *what)
{
	char *text = log_text(r), *save = NULL;

	report_error(r->report, "%s: %s", what, mover_why());
	for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line;
	     line = strtok_r(NULL, "\n", &save)) {
		char *at = strstr(line, "NCCL WARN ");

		if (at)
			report_error(r->report, "%s", at);
	}
	free(text);
	return r->late ? PERF_LOST : PERF_FAILED;
}

/* ---- Operations ---- */

static int rank_post_all(struct rank *r, uint64_t half, void *stream)
{
	uint64_t *from = (uint64_t *)r->b.dev[0], *to = (uint64_t *)r->b.dev[1];
	int ret = NCCL_TRY(ncclGroupStart);

	for (int peer = 0; peer < PAIR_RANKS && !ret; peer++) {
		ret = NCCL_TRY(ncclSend, from + (uint64_t)peer * half, half, NCCL_UINT64, peer,
			       r->comm, stream);
		if (!ret)
			ret = NCCL_TRY(ncclRecv, to + (uint64_t)peer * half, half, NCCL_UINT64,
				       peer, r->comm, stream);
	}
	if (NCCL_TRY(ncclGroupEnd))
		ret = -EIO;
	return ret;
}

static int rank_post(struct rank *r, enum pair_op op, uint64_t n, void *stream)
{
	void *from = r->b.dev[0], *to = r->b.dev[1];

	switch (op) {
	case PAIR_ALL_REDUCE:
		return NCCL_TRY(ncclAllReduce, from, to, n, NCCL_UINT64, NCCL_SUM, r->comm, stream);
	case PAIR_ALL_GATHER:
		return NCCL_TRY(ncclAllGather, from, to, n / 2, NCCL_UINT64, r->comm, stream);
	case PAIR_REDUCE_SCATTER:
		return NCCL_TRY(ncclReduceScatter, from, to, n / 2, NCCL_UINT64, NCCL_SUM, r->comm,
				stream);
	case PAIR_BROADCAST:
		return NCCL_TRY(ncclBroadcast, from, to, n, NCCL_UINT64, 0, r->comm, stream);
	case PAIR_ALL_TO_ALL:
		return rank_post_all(r, n / 2, stream);
	default:
		return r->rank ? NCCL_TRY(ncclRecv, to, n, NCCL_UINT64, 0, r->comm, stream)
			       : NCCL_TRY(ncclSend, from, n, NCCL_UINT64, 1, r->comm, stream);
	}
}

struct rank_run {
	struct rank *r;
	enum pair_op op;
	uint64_t words, count;
};

static int rank_posts(void *arg, void *stream)
{
	struct rank_run *run = arg;
	int ret = 0;

	for (uint64_t i = 0; i < run->count && !ret; i++)
		ret = rank_post(run->r, run->op, run->words, stream);
	return ret;
}

static int rank_look(struct rank *r)
{
	int err = 0;

	if (NCCL_TRY(ncclCommGetAsyncError, r->comm, &err))
		return -EIO;
	if (!err || err == NCCL_IN_PROGRESS)
		return 0;
	mover_why_set("NCCL gave the communicator up: error %d", err);
	return -EIO;
}

/* NCCL's kernels wait on for a peer that is lost. Return: 0, -EIO, -ETIMEDOUT with way_why(). */
static int rank_wait(struct rank *r, uint32_t ticket)
{
	uint64_t look_ns = 0;
	int ret;

	while ((ret = gx_engine_result(r->b.q, ticket)) == -EINPROGRESS) {
		uint64_t now_ns = gx_now();

		ret = gx_engine_poll(r->b.q);
		if (!ret && now_ns > look_ns) {
			ret = rank_look(r);
			look_ns = now_ns + RANK_LOOK_NS;
		}
		if (ret)
			return ret;
		if (now_ns > r->due_ns) {
			mover_why_set("operations have not ended in %.1f s",
				      (double)r->opts->limit_ns / 2e9);
			r->late = true;
			return -ETIMEDOUT;
		}
	}
	return ret;
}

/* @count operations, queued at once, until the last has ended. */
static int rank_do(struct rank *r, enum pair_op op, uint64_t words, uint64_t count)
{
	struct rank_run run = {r, op, words, count};
	uint32_t ticket;
	int ret = gx_engine_call(r->b.q, rank_posts, &run, &ticket);

	if (!ret)
		ret = rank_wait(r, ticket);
	return ret;
}

/* ---- Payload: other words after each fill ---- */

/* @words of the destination from @at on are the sum of the sources' words from .at on. */
struct pair_part {
	uint64_t at, words;
	unsigned nr;
	struct {
		unsigned rank;
		uint64_t at;
	} from[PAIR_RANKS];
};

static unsigned rank_parts(const struct rank *r, enum pair_op op, uint64_t n,
			   struct pair_part part[PAIR_RANKS])
{
	uint64_t h = n / 2, mine = (uint64_t)r->rank * h;

	switch (op) {
	case PAIR_ALL_REDUCE:
		part[0] = (struct pair_part){0, n, 2, {{0, 0}, {1, 0}}};
		return 1;
	case PAIR_REDUCE_SCATTER:
		part[0] = (struct pair_part){0, h, 2, {{0, mine}, {1, mine}}};
		return 1;
	case PAIR_ALL_GATHER:
		part[0] = (struct pair_part){0, h, 1, {{0, 0}}};
		part[1] = (struct pair_part){h, h, 1, {{1, 0}}};
		return 2;
	case PAIR_ALL_TO_ALL:
		part[0] = (struct pair_part){0, h, 1, {{0, mine}}};
		part[1] = (struct pair_part){h, h, 1, {{1, mine}}};
		return 2;
	default:
		part[0] = (struct pair_part){0, n, 1, {{0, 0}}};
		return op == PAIR_BROADCAST || r->rank;
	}
}

static uint64_t rank_seed(const struct rank *r, unsigned rank)
{
	return r->fills * PAIR_RANKS + rank;
}

static uint64_t part_word(const struct rank *r, const struct pair_part *p, uint64_t i)
{
	uint64_t sum = 0;

	for (unsigned k = 0; k < p->nr; k++)
		sum += gx_pattern_word(rank_seed(r, p->from[k].rank), p->from[k].at + i);
	return sum;
}

static int part_check(struct rank *r, const struct pair_part *p, uint64_t *wrong)
{
	const uint64_t *got = (const uint64_t *)r->b.host;

	for (uint64_t at = 0, n; at < p->words; at += n) {
		n = p->words - at < RANK_STAGE_B / PAIR_WORD ? p->words - at
							     : RANK_STAGE_B / PAIR_WORD;
		if (bench_copy(&r->b, r->b.host, r->b.dev[1] + (p->at + at) * PAIR_WORD,
			       n * PAIR_WORD))
			return PERF_FAILED;
		for (uint64_t i = 0; i < n; i++)
			*wrong += got[i] == part_word(r, p, at + i) ? 0 : PAIR_WORD;
	}
	return PERF_OK;
}

static int rank_check(struct rank *r, enum pair_op op, uint64_t words, uint64_t *checked_b,
		      uint64_t *wrong)
{
	struct pair_part part[PAIR_RANKS];
	unsigned nr = rank_parts(r, op, words, part);
	int ret = PERF_OK;

	for (unsigned i = 0; i < nr && !ret; i++) {
		ret = part_check(r, &part[i], wrong);
		*checked_b += part[i].words * PAIR_WORD;
	}
	return ret;
}

static int rank_poison(struct rank *r, uint64_t words)
{
	int ret = gx_pattern_fill(r->b.engine, r->b.dev[1], words * PAIR_WORD, RANK_POISON);

	return ret ? bench_failed(&r->b, "pattern", ret) : PERF_OK;
}

/* Words of the source that no fill before has had. */
static int rank_fill(struct rank *r, uint64_t words)
{
	int ret;

	r->fills++;
	ret = gx_pattern_fill(r->b.engine, r->b.dev[0], words * PAIR_WORD,
			      rank_seed(r, (unsigned)r->rank));
	return ret ? bench_failed(&r->b, "pattern", ret) : rank_poison(r, words);
}

/* ---- Requests ---- */

__attribute__((format(printf, 2, 3))) static int rank_answer(struct rank *r, const char *fmt, ...)
{
	char text[PAIR_TEXT_B];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return send(RANK_SOCK, text, strlen(text), MSG_NOSIGNAL) < 0 ? PERF_FAILED : PERF_OK;
}

static int rank_id(struct rank *r)
{
	struct nccl_id id;
	char hex[2 * sizeof(id.b) + 1];

	if (nccl_load(r->opts->lib_path) || NCCL_TRY(ncclGetUniqueId, &id))
		return rank_failed(r, "load");
	for (unsigned i = 0; i < sizeof(id.b); i++)
		snprintf(hex + 2 * i, 3, "%02x", (uint8_t)id.b[i]);
	return rank_answer(r, "ok %s", hex);
}

static bool id_parse(const char *hex, struct nccl_id *id)
{
	unsigned byte;

	for (unsigned i = 0; i < sizeof(id->b); i++) {
		if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
			return false;
		id->b[i] = (char)byte;
	}
	return true;
}

struct rank_init {
	struct rank *r;
	struct nccl_id id;
	struct nccl_config config;
};

static int rank_init(void *arg, void *stream)
{
	struct rank_init *init = arg;

	return NCCL_TRY(ncclCommInitRankConfig, &init->r->comm, PAIR_RANKS, init->id, init->r->rank,
			&init->config);
}

/* Connections are made by first operations: one of each kind. */
static int rank_connect(struct rank *r)
{
	int ret = rank_do(r, PAIR_ALL_REDUCE, 2, 1);

	return ret ? ret : rank_do(r, PAIR_ALL_TO_ALL, 2, 1);
}

static int rank_open(struct rank *r, const char *text)
{
	struct rank_init init = {.r = r, .config = NCCL_CONFIG};
	char hex[2 * sizeof(init.id.b) + 1];
	struct bench_want want = {.host_b = RANK_STAGE_B};
	uint64_t len;
	int ret;

	if (sscanf(text, "open %d %" SCNu64 " %256s", &want.device, &len, hex) != 3 ||
	    strlen(hex) != sizeof(hex) - 1 || !id_parse(hex, &init.id))
		return PERF_USAGE;
	if (nccl_load(r->opts->lib_path))
		return rank_failed(r, "load");
	want.dev_b[0] = want.dev_b[1] = (len + RANK_GRANULE - 1) / RANK_GRANULE * RANK_GRANULE;
	ret = bench_open(&want, r->report, &r->b);
	if (ret)
		return ret;
	ret = gx_engine_call(r->b.q, rank_init, &init, NULL);
	if (!ret)
		ret = rank_connect(r);
	if (ret)
		return rank_failed(r, "communicator");
	ret = log_check(r);
	return ret ? ret : rank_answer(r, "ok %d %s %s", nccl.version, r->net->via, r->note);
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* The main thread waits by polling, whatever moves the bytes. The two clocks are read one after the
 * other, so a difference may be a little below 0. */
static int64_t others_ns(void)
{
	return (int64_t)clock_ns(CLOCK_PROCESS_CPUTIME_ID) -
	       (int64_t)clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* What a run has found. */
struct rank_found {
	uint64_t ns, checked_b, wrong;
	int64_t cpu_ns;
};

/* The timed operations, which find poison; a warm-up has written the same words. Return: an enum
 * perf_status. */
static int run_timed(struct rank *r, const struct rank_run *run, struct rank_found *f)
{
	int ret = rank_do(r, run->op, run->words, run->count / 4 + 1);

	if (ret)
		return rank_failed(r, pair_op_names[run->op]);
	if (rank_poison(r, run->words))
		return PERF_FAILED;
	f->cpu_ns = others_ns();
	f->ns = gx_now();
	ret = rank_do(r, run->op, run->words, run->count);
	f->ns = gx_now() - f->ns;
	f->cpu_ns = others_ns() - f->cpu_ns;
	if (ret)
		return rank_failed(r, pair_op_names[run->op]);
	return rank_check(r, run->op, run->words, &f->checked_b, &f->wrong);
}

/* One operation with other words, untimed: the last one of those before may have brought an earlier
 * one's words, which were the same. */
static int run_fresh(struct rank *r, const struct rank_run *run, struct rank_found *f)
{
	if (rank_fill(r, run->words))
		return PERF_FAILED;
	if (rank_do(r, run->op, run->words, 1))
		return rank_failed(r, pair_op_names[run->op]);
	return rank_check(r, run->op, run->words, &f->checked_b, &f->wrong);
}

static int rank_run(struct rank *r, const char *text)
{
	struct rank_run run = {.r = r};
	struct rank_found f = {0};
	uint64_t round;
	unsigned op;
	int ret;

	if (sscanf(text, "run %u %" SCNu64 " %" SCNu64 " %" SCNu64, &op, &run.words, &run.count,
		   &round) != 4 ||
	    op >= PAIR_OPS || !run.count || run.words > r->b.dev_b[0] / PAIR_WORD)
		return PERF_USAGE;
	run.op = op;
	r->fills = 2 * round;
	ret = rank_fill(r, run.words);
	if (!ret)
		ret = run_timed(r, &run, &f);
	if (!ret)
		ret = run_fresh(r, &run, &f);
	return ret ? ret
		   : rank_answer(r, "ok %" PRIu64 " %" PRIi64 " %" PRIu64 " %" PRIu64, f.ns,
				 f.cpu_ns > 0 ? f.cpu_ns : 0, f.checked_b, f.wrong);
}

static int rank_close(struct rank *r)
{
	if (r->comm)
		nccl.ncclCommDestroy(r->comm);
	bench_close(&r->b);
	return rank_answer(r, "ok");
}

static int rank_serve(struct rank *r)
{
	char text[PAIR_TEXT_B];
	int ret = PERF_OK;

	while (!ret) {
		ssize_t n = recv(RANK_SOCK, text, sizeof(text) - 1, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return PERF_LOST; /* gxperf has ended */
		text[n] = '\0';
		r->due_ns = gx_now() + r->opts->limit_ns / 2;
		if (!strcmp(text, "quit"))
			return rank_close(r);
		ret = !strcmp(text, "id")	   ? rank_id(r)
		      : !strncmp(text, "open ", 5) ? rank_open(r, text)
						   : rank_run(r, text);
	}
	if (ret == PERF_USAGE)
		report_error(r->report, "what is '%.80s'?", text);
	return ret;
}

int pair_rank(const char *name, const struct pair_opts *opts, struct report *report)
{
	struct rank r = {.opts = opts, .report = report};
	size_t len = strcspn(name, ":");
	int ret;

	for (unsigned i = 0; i < PAIR_NETS; i++)
		if (strlen(pair_nets[i].name) == len && !strncmp(pair_nets[i].name, name, len))
			r.net = &pair_nets[i];
	if (!r.net || (strcmp(name + len, ":0") && strcmp(name + len, ":1"))) {
		report_error(report, "--as-rank is for gxperf compare alone");
		return PERF_USAGE;
	}
	r.rank = name[len + 1] - '0';
	ret = rank_env(&r);
	if (ret) {
		report_error(report, "NCCL's log: %s", strerror(-ret));
		return PERF_FAILED;
	}
	ret = rank_serve(&r);
	if (ret) { /* a driver with endless work may delay the end of this process, and what is
		      open cannot be closed at that time */
		shutdown(RANK_SOCK, SHUT_RDWR);
		fflush(NULL);
		_exit(ret);
	}
	return ret;
}
