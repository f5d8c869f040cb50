// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf compare --comm: the side that starts the ranks, has them run in turn, and prints the rows
 * (see pair.h). Main thread only.
 */
#include "gxperf/base/child.h"
#include "common/json.h"
#include "gxperf/base/activity.h"
#include "gxperf/lab/mover.h"
#include "gxperf/lab/pair.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PAIR_SIZES	  "8,4K,64K,1M,16M,256M"
#define PAIR_ROUNDS	  MEDIAN_MAX
#define PAIR_END_NS	  10000000000ull
#define PAIR_DEAD_NS	  2000000000ull /* from the end of its socket to its own */
#define PAIR_PROBE	  4		/* operations that say how many fit in the time */
#define PAIR_COUNT_MAX	  1000
#define PAIR_SAID_MAX	  8 /* last lines of a rank's output that are printed */
#define PAIR_MPS_CONTROL  "control"
#define PAIR_MPS_PIPE_DIR "/tmp/nvidia-mps"

/* ---- Names ---- */

const char *const pair_op_names[PAIR_OPS] = {"all_reduce", "all_gather", "reduce_scatter",
					     "all_to_all", "broadcast",	 "send_recv"};

static const char *const env_socket[][2] = {{"NCCL_NET", "Socket"},
					    {"NCCL_NET_PLUGIN", "none"},
					    {"NCCL_SOCKET_NTHREADS", "4"},
					    {"NCCL_NSOCKS_PERTHREAD", "4"},
					    {NULL, NULL}};
static const char *const env_gx[][2] = {
	{"NCCL_NET", "gx"}, {"NCCL_NET_PLUGIN_REF_COUNT", "1"}, {NULL, NULL}};

const struct pair_net pair_nets[PAIR_NETS] = {
	{.name = "nccl", .via = "NET/Socket", .env = env_socket},
	{.name = "nccl-gx", .via = "NET/gx", .env = env_gx, .plugin = true},
};

bool pair_halves(enum pair_op op)
{
	return op == PAIR_ALL_GATHER || op == PAIR_REDUCE_SCATTER || op == PAIR_ALL_TO_ALL;
}

uint64_t pair_words(enum pair_op op, uint64_t size_b)
{
	uint64_t words = size_b / PAIR_WORD;

	return pair_halves(op) ? (words + 1) / 2 * 2 : words;
}

/* Is @name in the list? NULL: it has all. */
static bool list_has(const char *list, const char *name)
{
	size_t len = strlen(name);

	for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',')
		if (strcspn(at, ",") == len && !strncmp(at, name, len))
			return true;
	return !list;
}

/* The first item of the list that is none of @names; an empty one is none, too. NULL: all are
 * known. */
static const char *list_stranger(const char *list, const char *const names[], unsigned n)
{
	for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
		size_t len = strcspn(at, ",");
		unsigned i = 0;

		while (i < n && (strlen(names[i]) != len || strncmp(names[i], at, len)))
			i++;
		if (i == n)
			return at;
	}
	return NULL;
}

/* ---- Ranks ---- */

struct pair_proc {
	struct child child;
	int sock;		/* -1: none */
	char text[PAIR_TEXT_B]; /* the last answer, after "ok " */
};

/* The two ranks of a transport, and what they measured of one operation and size. */
struct pair {
	const struct pair_net *net;
	struct pair_proc rank[PAIR_RANKS];
	uint64_t count, runs; /* operations of a round; runs of all sizes so far */
	double us[PAIR_ROUNDS], cores[PAIR_RANKS][PAIR_ROUNDS];
	uint64_t checked_b, wrong;
};

/* All of the run. */
struct pairs {
	const struct pair_opts *opts;
	struct report *report;
	struct json_t *ranks; /* what each said when it was open */
	struct opt_sizes sizes;
	int gpu[PAIR_RANKS];
	struct pair pair[PAIR_NETS];
	unsigned n;
	enum pair_op op;
	uint64_t words;
};

/* Report the last lines of a rank that has ended, under its name. */
static void pair_said(struct pairs *c, struct pair *p, unsigned rank)
{
	size_t len = 0;
	char *text = child_text(p->rank[rank].child.err, &len), *save = NULL, *line[PAIR_SAID_MAX];
	unsigned n = 0;

	for (char *at = text ? strtok_r(text, "\n", &save) : NULL; at;
	     at = strtok_r(NULL, "\n", &save))
		line[n++ % PAIR_SAID_MAX] = strncmp(at, "gxperf: ", 8) ? at : at + 8;
	for (unsigned i = n > PAIR_SAID_MAX ? n - PAIR_SAID_MAX : 0; i < n; i++)
		report_error(c->report, "%s, rank %u: %s", p->net->name, rank,
			     line[i % PAIR_SAID_MAX]);
	free(text);
}

/* Return: what its end means, an enum perf_status; it has reported any end but a good one. */
static int pair_end(struct pairs *c, struct pair *p, unsigned rank, uint64_t limit_ns)
{
	int status = child_end(&p->rank[rank].child, limit_ns);

	if (!status)
		return PERF_OK;
	pair_said(c, p, rank);
	if (status > CHILD_SIGNAL)
		report_error(c->report, "%s, rank %u was ended by signal %d", p->net->name, rank,
			     status - CHILD_SIGNAL);
	else
		report_error(c->report, "%s, rank %u ended with status %d", p->net->name, rank,
			     status);
	return status < PERF_LOST ? status : PERF_LOST;
}

/* The rank has closed its socket without an answer. */
static int pair_lost(struct pairs *c, struct pair *p, unsigned rank)
{
	int ret = pair_end(c, p, rank, PAIR_DEAD_NS);

	if (ret)
		return ret;
	report_error(c->report, "%s, rank %u ended without an answer", p->net->name, rank);
	return PERF_LOST;
}

static int pair_start(struct pairs *c, struct pair *p, unsigned rank)
{
	char path[PATH_MAX], name[32], limit[32], *argv[12];
	const struct pair_opts *o = c->opts;
	struct pair_proc *proc = &p->rank[rank];
	int sock[2], ret = child_self(NULL, path, sizeof(path));
	unsigned n = 0;

	if (ret)
		return ret;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock))
		return -errno;
	snprintf(name, sizeof(name), "%s:%u", p->net->name, rank);
	argv[n++] = path;
	argv[n++] = (char *)"compare";
	argv[n++] = (char *)"--as-rank";
	argv[n++] = name;
	snprintf(limit, sizeof(limit), "%.9f", (double)o->limit_ns / 1e9);
	argv[n++] = (char *)"--limit";
	argv[n++] = limit;
	if (o->lib_path) {
		argv[n++] = (char *)"--lib-path";
		argv[n++] = (char *)o->lib_path;
	}
	if (o->plugin) {
		argv[n++] = (char *)"--plugin";
		argv[n++] = (char *)o->plugin;
	}
	argv[n] = NULL;
	ret = child_start(&proc->child, path, argv, sock[1], true);
	close(sock[1]);
	proc->sock = ret ? -1 : sock[0];
	if (ret)
		close(sock[0]);
	return ret;
}

/* A rank that is gone is found by pair_hear(). */
static void pair_ask(struct pair *p, unsigned rank, const char *text)
{
	send(p->rank[rank].sock, text, strlen(text), MSG_NOSIGNAL);
}

/* Take one rank's answer, which has come. */
static int pair_take(struct pairs *c, struct pair *p, unsigned rank)
{
	char text[PAIR_TEXT_B];
	ssize_t n = recv(p->rank[rank].sock, text, sizeof(text) - 1, MSG_DONTWAIT);

	if (n <= 0)
		return pair_lost(c, p, rank);
	text[n] = '\0';
	if (strncmp(text, "ok", 2)) {
		report_error(c->report, "%s, rank %u said '%.80s'", p->net->name, rank, text);
		return PERF_FAILED;
	}
	snprintf(p->rank[rank].text, sizeof(p->rank[rank].text), "%s", text + 2);
	return PERF_OK;
}

/* A rank that is stuck may have said why, or the other one. */
static int pair_late(struct pairs *c, struct pair *p, unsigned rank, uint64_t limit_ns)
{
	report_error(c->report, "%s, rank %u has not answered for %.1f s", p->net->name, rank,
		     (double)limit_ns / 1e9);
	for (unsigned i = 0; i < PAIR_RANKS; i++)
		pair_said(c, p, i);
	return PERF_LOST;
}

/* Wait for the answers of @ranks, bits. A rank that is lost ends it at once. */
static int pair_hear(struct pairs *c, struct pair *p, unsigned ranks, uint64_t limit_ns)
{
	uint64_t end = gx_now() + limit_ns;
	int ret = PERF_OK;

	while (ranks && !ret) {
		struct pollfd fds[PAIR_RANKS];

		for (unsigned i = 0; i < PAIR_RANKS; i++)
			fds[i] = (struct pollfd){.fd = ranks & 1u << i ? p->rank[i].sock : -1,
						 .events = POLLIN};
		if (poll(fds, PAIR_RANKS, 100) < 0 && errno != EINTR)
			return PERF_FAILED;
		for (unsigned i = 0; i < PAIR_RANKS && !ret; i++)
			if (fds[i].fd >= 0 && fds[i].revents) {
				ret = pair_take(c, p, i);
				ranks &= ~(1u << i);
			}
		if (!ret && ranks && gx_now() > end)
			ret = pair_late(c, p, ranks & 1 ? 0 : 1, limit_ns);
	}
	return ret;
}

static void pair_ask_all(struct pair *p, const char *text)
{
	for (unsigned i = 0; i < PAIR_RANKS; i++)
		pair_ask(p, i, text);
}

/* The ranks that are left are of no use any more. Return: an enum perf_status; not @good: PERF_OK,
 * as the reason is printed already. */
static int pair_close(struct pairs *c, struct pair *p, bool good)
{
	int ret = PERF_OK;

	if (good) {
		pair_ask_all(p, "quit");
		ret = pair_hear(c, p, (1u << PAIR_RANKS) - 1, PAIR_END_NS);
		good = !ret;
	}
	for (unsigned i = 0; i < PAIR_RANKS; i++) {
		if (p->rank[i].sock >= 0)
			close(p->rank[i].sock);
		p->rank[i].sock = -1;
		if (!good)
			child_stop(&p->rank[i].child);
		if (p->rank[i].child.pid && !good) {
			child_end(&p->rank[i].child, PAIR_END_NS);
		} else if (p->rank[i].child.pid) {
			int end = pair_end(c, p, i, PAIR_END_NS);

			ret = end > ret ? end : ret;
		}
		child_close(&p->rank[i].child);
	}
	return ret;
}

/* ---- Opening ---- */

static uint64_t sizes_max(const struct opt_sizes *sizes)
{
	uint64_t max = 0;

	for (unsigned i = 0; i < sizes->n; i++)
		max = sizes->v[i] > max ? sizes->v[i] : max;
	return max;
}

static int pair_open(struct pairs *c, struct pair *p)
{
	char text[PAIR_TEXT_B], id[300];
	int ret = 0;

	for (unsigned i = 0; i < PAIR_RANKS && !ret; i++)
		ret = pair_start(c, p, i);
	if (ret) {
		report_error(c->report, "%s: a rank cannot be started: %s", p->net->name,
			     strerror(-ret));
		return PERF_FAILED;
	}
	pair_ask(p, 0, "id");
	ret = pair_hear(c, p, 1, c->opts->limit_ns);
	if (ret)
		return ret;
	snprintf(id, sizeof(id), "%.299s", p->rank[0].text);
	for (unsigned i = 0; i < PAIR_RANKS; i++) {
		snprintf(text, sizeof(text), "open %d %" PRIu64 "%s", c->gpu[i],
			 sizes_max(&c->sizes) + PAIR_WORD, id);
		pair_ask(p, i, text);
	}
	ret = pair_hear(c, p, (1u << PAIR_RANKS) - 1, c->opts->limit_ns);
	for (unsigned i = 0; i < PAIR_RANKS && !ret; i++) {
		snprintf(text, sizeof(text), "%s:%u", p->net->name, i);
		js_set(c->ranks, text, js_string(p->rank[i].text + 1));
		report_section(c->report, "%s, rank %u on GPU %d: NCCL%s", p->net->name, i,
			       c->gpu[i], p->rank[i].text);
	}
	return ret;
}

/* ---- Rounds ---- */

/* One run of both ranks. Return: an enum perf_status. */
static int pair_run(struct pairs *c, struct pair *p, double *us, double cores[PAIR_RANKS])
{
	uint64_t ns, cpu_ns, checked_b, wrong, longest = 0;
	char text[96];
	int ret;

	snprintf(text, sizeof(text), "run %u %" PRIu64 " %" PRIu64 " %" PRIu64, c->op, c->words,
		 p->count, p->runs++);
	pair_ask_all(p, text);
	ret = pair_hear(c, p, (1u << PAIR_RANKS) - 1, c->opts->limit_ns);
	for (unsigned i = 0; i < PAIR_RANKS && !ret; i++) {
		if (sscanf(p->rank[i].text, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &ns,
			   &cpu_ns, &checked_b, &wrong) != 4 ||
		    !ns) {
			report_error(c->report, "%s, rank %u said '%.80s'", p->net->name, i,
				     p->rank[i].text);
			return PERF_FAILED;
		}
		longest = ns > longest ? ns : longest;
		cores[i] = (double)cpu_ns / (double)ns;
		p->checked_b += checked_b;
		p->wrong += wrong;
	}
	*us = (double)longest / 1e3 / (double)p->count;
	return ret;
}

/* How many operations fit in the time of a round? */
static int pair_probe(struct pairs *c, struct pair *p)
{
	double us, cores[PAIR_RANKS], fit;
	int ret;

	p->count = PAIR_PROBE;
	p->checked_b = p->wrong = 0;
	ret = pair_run(c, p, &us, cores);
	if (ret)
		return ret;
	fit = (double)c->opts->ns / 1e3 / us;
	p->count = fit < PAIR_PROBE	  ? PAIR_PROBE
		   : fit > PAIR_COUNT_MAX ? PAIR_COUNT_MAX
					  : (uint64_t)fit;
	return PERF_OK;
}

static int pair_round(struct pairs *c, struct pair *p, unsigned round)
{
	double cores[PAIR_RANKS];
	int ret = pair_run(c, p, &p->us[round], cores);

	for (unsigned i = 0; i < PAIR_RANKS && !ret; i++)
		p->cores[i][round] = cores[i];
	return ret;
}

static int pair_rows(struct pairs *c)
{
	uint64_t size_b = c->words * PAIR_WORD;
	double ratio[PAIR_NETS];
	int ret = PERF_OK;

	for (unsigned i = 0; i < c->n; i++) /* before median() sorts */
		ratio[i] = activity_median_ratio(c->pair[0].us, c->pair[i].us, c->opts->rounds);
	for (unsigned i = 0; i < c->n; i++) {
		struct pair *p = &c->pair[i];
		struct report_row row = bench_row(p->net->name, size_b, 0);
		double us = activity_median(p->us, c->opts->rounds),
		       gb_s = (double)size_b / 1e3 / us;
		struct report_cell cells[] = {
			{"operation", "operation", 0, pair_op_names[c->op]},
			{"us", "us", us, NULL},
			{"GB_s", "GB/s", gb_s, NULL},
			{"bus_GB_s", "bus GB/s", gb_s / (pair_halves(c->op) ? 2 : 1), NULL},
			{"ratio", "ratio", ratio[i], NULL},
			{"cores_0", "cores 0", activity_median(p->cores[0], c->opts->rounds), NULL},
			{"cores_1", "cores 1", activity_median(p->cores[1], c->opts->rounds), NULL},
			{"rounds", NULL, c->opts->rounds, NULL},
			{"count", NULL, (double)p->count, NULL},
		};

		row.checked = true;
		row.checked_b = p->checked_b;
		row.wrong = p->wrong;
		report_cells(c->report, &row, cells, sizeof(cells) / sizeof(cells[0]));
		ret = row.wrong ? PERF_WRONG : ret;
	}
	return ret;
}

static int pair_size(struct pairs *c)
{
	int ret = PERF_OK;

	for (unsigned i = 0; i < c->n && !ret; i++)
		ret = pair_probe(c, &c->pair[i]);
	for (unsigned round = 0; round < c->opts->rounds && !ret; round++)
		for (unsigned i = 0; i < c->n && !ret; i++) {
			report_progress(c->report, "%s, %" PRIu64 " bytes, round %u, %s",
					pair_op_names[c->op], c->words * PAIR_WORD, round + 1,
					c->pair[i].net->name);
			ret = pair_round(c, &c->pair[i], round);
		}
	return ret ? ret : pair_rows(c);
}

/* Wrong bytes are reported at the end; the rest goes on. */
static int pair_all(struct pairs *c)
{
	int ret = PERF_OK, worst = PERF_OK;

	for (unsigned op = 0; op < PAIR_OPS && !ret; op++) {
		if (!list_has(c->opts->ops, pair_op_names[op]))
			continue;
		c->op = op;
		for (unsigned i = 0; i < c->sizes.n && !ret; i++) {
			c->words = pair_words(op, c->sizes.v[i]);
			ret = pair_size(c);
			worst = ret ? ret : worst;
			ret = ret == PERF_WRONG ? PERF_OK : ret;
		}
	}
	return worst;
}

/* ---- What is asked for ---- */

static int pair_check(struct pairs *c)
{
	static const char *const nets[PAIR_NETS] = {"nccl", "nccl-gx"};
	const char *item = list_stranger(c->opts->comm, nets, PAIR_NETS);

	if (item) {
		report_error(c->report, "--comm: '%.*s': there are nccl, nccl-gx",
			     (int)strcspn(item, ","), item);
		return PERF_USAGE;
	}
	item = list_stranger(c->opts->ops, pair_op_names, PAIR_OPS);
	if (item) {
		report_error(c->report,
			     "--ops: '%.*s': there are all_reduce, all_gather, reduce_scatter, "
			     "all_to_all, broadcast, send_recv",
			     (int)strcspn(item, ","), item);
		return PERF_USAGE;
	}
	if (c->opts->gpus > PAIR_RANKS) {
		report_error(c->report, "--comm: its ranks are on --gpus 1 or 2, not on %u",
			     c->opts->gpus);
		return PERF_USAGE;
	}
	c->sizes = *c->opts->sizes;
	if (!c->sizes.n)
		opt_sizes(PAIR_SIZES, &c->sizes);
	for (unsigned i = 0; i < c->sizes.n; i++)
		if (!c->sizes.v[i] || c->sizes.v[i] % PAIR_WORD) {
			report_error(c->report, "--sizes: %" PRIu64 " is no multiple of %d",
				     c->sizes.v[i], PAIR_WORD);
			return PERF_USAGE;
		}
	return PERF_OK;
}

static bool fifo_is_read(const char *path)
{
	int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static bool sock_is_heard(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	bool is;

	if (fd < 0 || strlen(path) >= sizeof(addr.sun_path)) {
		if (fd >= 0)
			close(fd);
		return false;
	}
	memcpy(addr.sun_path, path, strlen(path) + 1);
	/* EPROTOTYPE: a socket of another type; EAGAIN: its queue is full. */
	is = !connect(fd, (struct sockaddr *)&addr, sizeof(addr)) || errno == EPROTOTYPE ||
	     errno == EAGAIN;
	close(fd);
	return is;
}

/* The file outlives a daemon that was killed. */
static bool mps_runs(void)
{
	const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
	char path[PATH_MAX];
	struct stat st;

	snprintf(path, sizeof(path), "%s/" PAIR_MPS_CONTROL, dir ? dir : PAIR_MPS_PIPE_DIR);
	if (stat(path, &st))
		return false;
	return S_ISFIFO(st.st_mode) ? fifo_is_read(path)
				    : S_ISSOCK(st.st_mode) && sock_is_heard(path);
}

static int pair_gpus(struct pairs *c)
{
	unsigned all = gpus_count(), want = c->opts->gpus ? c->opts->gpus : all > 1 ? 2 : 1;

	if (all < want) {
		report_error(c->report, "--comm: one GPU or two, there %s %u: %s",
			     all == 1 ? "is" : "are", all, gx_engine_why());
		return PERF_FAILED;
	}
	for (unsigned i = 0; i < PAIR_RANKS; i++)
		c->gpu[i] = want > 1 ? (int)i : 0;
	if (want > 1 || mps_runs())
		return PERF_OK;
	report_error(c->report,
		     "two ranks on one GPU take turns of milliseconds without MPS, which does not "
		     "run here: start it by 'nvidia-cuda-mps-control -d' (its end: 'echo quit | "
		     "nvidia-cuda-mps-control')");
	return PERF_FAILED;
}

int pair_compare(const struct pair_opts *opts, struct report *report)
{
	static struct pairs c;
	bool good;
	int ret;

	c = (struct pairs){.opts = opts, .report = report, .ranks = js_pack("{}")};
	ret = pair_check(&c);
	if (!ret)
		ret = pair_gpus(&c);
	for (unsigned i = 0; i < PAIR_NETS && !ret; i++) {
		struct pair *p = &c.pair[c.n];

		if (!list_has(opts->comm, pair_nets[i].name))
			continue;
		p->net = &pair_nets[i];
		for (unsigned k = 0; k < PAIR_RANKS; k++)
			p->rank[k] = (struct pair_proc){.child = CHILD_NONE, .sock = -1};
		c.n++;
		ret = pair_open(&c, p);
	}
	if (!ret)
		report_section(report,
			       "median of %u interleaved rounds; ratio: times as fast as %s; "
			       "cores: CPU time of all threads of a rank but the one that waits",
			       opts->rounds, c.pair[0].net->name);
	if (!ret)
		ret = pair_all(&c);
	good = !ret || ret == PERF_WRONG;
	for (unsigned i = 0; i < c.n; i++) {
		int end = pair_close(&c, &c.pair[i], good);

		ret = end > ret ? end : ret;
	}
	report_part(report, "ranks", c.ranks);
	return ret;
}
