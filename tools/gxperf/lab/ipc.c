// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf ipc: the time to export GPU memory to another process, to open it there, to use it, to
 * close it and to open it again: by a descriptor (virtual memory management) and by cudaIpc. The other process is a child, forked before the driver starts. It owns the memory and compares
 * the bytes that this process has written there. Main thread only.
 */
#include "gxperf/base/activity.h"
#include "gxperf/lab/bench.h"
#include "gxperf/lab/lab.h"

#include <gxlab/load.h>

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define IPC_USE_B      ((uint64_t)64 << 10) /* most bytes of a use */
#define IPC_ROUNDS_MAX 99
#define IPC_WAIT_S     60
#define IPC_END_TRIES  500 /* most looks for the child's end */
#define IPC_END_NS     10000000

static struct {
	struct opt_sizes sizes;
	uint32_t owner, device, rounds;
	bool kind[2], any_kind;
} opts = {.sizes = {{4096, 1 << 20, 64 << 20, 1 << 30}, 4}, .device = 1, .rounds = 5};

enum ipc_kind { IPC_FD, IPC_CUDA, IPC_KINDS };

static const char *const kind_names[IPC_KINDS] = {"fd", "cudaipc"};

enum { KEY_SIZES = 850, KEY_OWNER, KEY_DEVICE, KEY_KIND, KEY_ROUNDS };

static const struct argp_option ipc_options[] = {
	{"sizes", KEY_SIZES, "LIST", 0, "Memory: a list, or BEGIN:END:FACTOR; default 4K,1M,64M,1G",
	 1},
	{"owner", KEY_OWNER, "N", 0, "CUDA device of the process that owns it; default 0", 1},
	{"device", KEY_DEVICE, "N", 0, "CUDA device of the process that opens it; default 1", 1},
	{"kind", KEY_KIND, "NAME", 0, "fd, cudaipc; default both", 1},
	{"rounds", KEY_ROUNDS, "N", 0, "Times, of which the median counts; default 5", 1},
	{0},
};

static int kind_parse(const char *arg)
{
	unsigned kind;

	if (opt_name(arg, kind_names, IPC_KINDS, &kind))
		return -EINVAL;
	opts.kind[kind] = opts.any_kind = true;
	return 0;
}

static const struct opt_value ipc_values[] = {
	{KEY_SIZES, OPT_SIZES, &opts.sizes},
	{KEY_OWNER, OPT_U32, &opts.owner, 0, 63},
	{KEY_DEVICE, OPT_U32, &opts.device, 0, 63},
	{KEY_KIND, OPT_CALL, .parse = kind_parse},
	{KEY_ROUNDS, OPT_U32, &opts.rounds, 1, IPC_ROUNDS_MAX},
	{0},
};

static error_t ipc_parse(int key, char *arg, struct argp_state *state)
{
	return opt_parse(ipc_options, ipc_values, key, arg, state);
}

const struct argp perf_ipc_argp = {.options = ipc_options, .parser = ipc_parse};

/* ---- between the processes ---- */

enum ipc_what { IPC_NAME, IPC_COMPARE, IPC_FREE };

struct ipc_request {
	uint32_t what, kind;
	uint64_t size, seed;
};

struct ipc_reply {
	int32_t ret;
	char why[160];
	struct gx_engine_handle handle; /* its descriptor comes in a control message */
	uint64_t export_ns, again_ns;
	uint64_t wrong;
};

union ipc_control {
	struct cmsghdr head;
	char room[CMSG_SPACE(sizeof(int))];
};

static int reply_send(int sock, struct ipc_reply *r)
{
	union ipc_control control = {.head = {.cmsg_len = CMSG_LEN(sizeof(int)),
					      .cmsg_level = SOL_SOCKET,
					      .cmsg_type = SCM_RIGHTS}};
	struct iovec iov = {r, sizeof(*r)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (r->handle.fd >= 0) {
		memcpy(CMSG_DATA(&control.head), &r->handle.fd, sizeof(int));
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control.room);
	}
	return sendmsg(sock, &msg, MSG_NOSIGNAL) == (ssize_t)sizeof(*r) ? 0 : -EPIPE;
}

static int reply_recv(int sock, struct ipc_reply *r)
{
	union ipc_control control;
	struct iovec iov = {r, sizeof(*r)};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &control,
			     .msg_controllen = sizeof(control.room)};
	ssize_t n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | MSG_WAITALL);
	struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL;

	if (n != (ssize_t)sizeof(*r))
		return n < 0 ? -errno : -EPIPE;
	r->handle.fd = -1;
	if (c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(&r->handle.fd, CMSG_DATA(c), sizeof(int));
	r->why[sizeof(r->why) - 1] = '\0';
	return 0;
}

/* ---- the owner: the child ---- */

struct owner {
	struct gx_engine *engine[IPC_KINDS];
	void *mem;
	uint64_t size;
	uint32_t kind;
};

static int owner_name(struct owner *o, const struct ipc_request *q, struct ipc_reply *r)
{
	struct gx_engine_handle again;
	struct gx_engine *e = o->engine[q->kind];
	uint64_t start;
	int ret = gx_engine_alloc(e, q->size, &o->mem);

	if (ret)
		return ret;
	o->size = q->size;
	o->kind = q->kind;
	start = gx_now();
	ret = gx_engine_export(e, o->mem, q->size, &r->handle);
	r->export_ns = gx_now() - start;
	if (ret)
		return ret;
	start = gx_now();
	ret = gx_engine_export(e, o->mem, q->size, &again);
	r->again_ns = gx_now() - start;
	if (!ret && again.fd >= 0)
		close(again.fd);
	return ret;
}

static void owner_free(struct owner *o)
{
	if (o->mem)
		gx_engine_free(o->engine[o->kind], o->mem, o->size);
	o->mem = NULL;
}

static int owner_engine(struct owner *o, uint32_t kind, uint32_t device)
{
	struct gx_engine_opts eo = GX_INIT(eo);

	if (o->engine[kind])
		return 0;
	eo.device = (int)device;
	eo.ipc = kind == IPC_CUDA ? GX_ON : GX_OFF;
	return gx_engine_open(&eo, &o->engine[kind]);
}

static int owner_serve(struct owner *o, const struct ipc_request *q, struct ipc_reply *r)
{
	int ret = q->kind < IPC_KINDS ? owner_engine(o, q->kind, opts.owner) : -EINVAL;

	if (ret)
		return ret;
	switch (q->what) {
	case IPC_NAME:
		return owner_name(o, q, r);
	case IPC_COMPARE:
		return gx_pattern_diff(o->engine[q->kind], o->mem, q->size, q->seed, &r->wrong);
	default:
		owner_free(o);
		return 0;
	}
}

/* Serve until the other end closes its socket. */
static void owner_run(int sock)
{
	struct owner o = {.mem = NULL};
	struct ipc_request q;

	while (recv(sock, &q, sizeof(q), MSG_WAITALL) == (ssize_t)sizeof(q)) {
		struct ipc_reply r = {.handle.fd = -1};

		r.ret = owner_serve(&o, &q, &r);
		strncpy(r.why, r.ret ? gx_engine_why() : "", sizeof(r.why) - 1);
		if (reply_send(sock, &r))
			break;
		if (r.handle.fd >= 0)
			close(r.handle.fd);
	}
	owner_free(&o);
	for (unsigned i = 0; i < IPC_KINDS; i++)
		gx_engine_close(o.engine[i]);
}

/* ---- the user: this process ---- */

struct ipc {
	struct report *report;
	int sock;
	struct gx_engine *engine;
	struct gx_engine_queue *q;
	void *mem; /* source of writes to the owner's memory */
	uint64_t checked_b, wrong;
};

/* Microseconds, for each round. */
struct ipc_times {
	double export_us[IPC_ROUNDS_MAX], again_us[IPC_ROUNDS_MAX];
	double open_us[IPC_ROUNDS_MAX], use_us[IPC_ROUNDS_MAX], use_again_us[IPC_ROUNDS_MAX];
	double close_us[IPC_ROUNDS_MAX], reopen_us[IPC_ROUNDS_MAX];
};

static int ipc_failed(struct ipc *p, const char *what, const char *why, int err)
{
	report_error(p->report, "%s: %s (%s)", what, why, strerror(-err));
	return PERF_FAILED;
}

static int owner_ask(struct ipc *p, struct ipc_request q, struct ipc_reply *r)
{
	int ret = send(p->sock, &q, sizeof(q), MSG_NOSIGNAL) == (ssize_t)sizeof(q) ? 0 : -EPIPE;

	if (!ret)
		ret = reply_recv(p->sock, r);
	if (ret)
		return ipc_failed(p, "the other process", "it has ended, or says nothing", ret);
	if (!r->ret)
		return PERF_OK;
	return ipc_failed(p, "the owner of the memory", r->why, r->ret);
}

static double since_us(uint64_t start)
{
	return (double)(gx_now() - start) / 1e3;
}

/* Write @len bytes into the opened memory, and wait. */
static int ipc_use(struct ipc *p, void *opened, uint64_t len, double *us)
{
	uint64_t start = gx_now();
	uint32_t t;
	int ret = gx_engine_copy(p->q, opened, p->mem, len, &t);

	if (!ret)
		ret = gx_engine_wait(p->q, t, BENCH_WAIT_NS);
	*us = since_us(start);
	return ret;
}

static int ipc_open_use_close(struct ipc *p, const struct gx_engine_handle *h, uint64_t size,
			      struct ipc_times *t, unsigned r)
{
	uint64_t use_b = size < IPC_USE_B ? size : IPC_USE_B, start = gx_now();
	void *opened = NULL;
	int ret = gx_engine_import(p->engine, h, size, &opened);

	t->open_us[r] = since_us(start);
	if (ret)
		return ret;
	ret = ipc_use(p, opened, use_b, &t->use_us[r]);
	if (!ret)
		ret = ipc_use(p, opened, use_b, &t->use_again_us[r]);
	start = gx_now();
	gx_engine_unimport(p->engine, opened);
	t->close_us[r] = since_us(start);
	if (ret)
		return ret;
	start = gx_now();
	ret = gx_engine_import(p->engine, h, size, &opened);
	t->reopen_us[r] = since_us(start);
	if (!ret)
		gx_engine_unimport(p->engine, opened);
	return ret;
}

static int ipc_round(struct ipc *p, enum ipc_kind kind, uint64_t size, struct ipc_times *t,
		     unsigned r)
{
	struct ipc_request q = {.what = IPC_NAME, .kind = kind, .size = size, .seed = r + 1};
	uint64_t use_b = size < IPC_USE_B ? size : IPC_USE_B;
	struct ipc_reply reply;
	int ret = owner_ask(p, q, &reply);

	if (ret)
		return ret;
	t->export_us[r] = (double)reply.export_ns / 1e3;
	t->again_us[r] = (double)reply.again_ns / 1e3;
	ret = gx_pattern_fill(p->engine, p->mem, use_b, q.seed);
	if (!ret)
		ret = ipc_open_use_close(p, &reply.handle, size, t, r);
	if (reply.handle.fd >= 0)
		close(reply.handle.fd);
	if (ret)
		return ipc_failed(p, kind_names[kind], gx_engine_why(), ret);
	q.what = IPC_COMPARE;
	q.size = use_b;
	ret = owner_ask(p, q, &reply);
	p->checked_b += use_b;
	p->wrong += reply.wrong;
	q.what = IPC_FREE;
	return ret ? ret : owner_ask(p, q, &reply);
}

static int ipc_size(struct ipc *p, enum ipc_kind kind, uint64_t size)
{
	struct report_row row = bench_row(kind_names[kind], size, opts.rounds);
	static struct ipc_times t;
	int ret = PERF_OK;

	p->checked_b = p->wrong = 0;
	for (unsigned r = 0; r < opts.rounds && !ret; r++)
		ret = ipc_round(p, kind, size, &t, r);
	if (ret)
		return ret;
	/* The first export of a process also starts services that later ones find. */
	const struct report_cell cells[] = {
		{"export_first_us", "name 1st", t.export_us[0], NULL},
		{"open_first_us", "open 1st", t.open_us[0], NULL},
		{"export_us", "name us", activity_median(t.export_us, opts.rounds), NULL},
		{"export_again_us", "again us", activity_median(t.again_us, opts.rounds), NULL},
		{"open_us", "open us", activity_median(t.open_us, opts.rounds), NULL},
		{"use_us", "1st use", activity_median(t.use_us, opts.rounds), NULL},
		{"use_again_us", "2nd use", activity_median(t.use_again_us, opts.rounds), NULL},
		{"close_us", "close us", activity_median(t.close_us, opts.rounds), NULL},
		{"reopen_us", "reopen us", activity_median(t.reopen_us, opts.rounds), NULL},
		{"owner", NULL, opts.owner, NULL},
		{"device", NULL, opts.device, NULL},
		{"rounds", NULL, opts.rounds, NULL},
	};

	row.checked = true;
	row.checked_b = p->checked_b;
	row.wrong = p->wrong;
	report_cells(p->report, &row, cells, sizeof(cells) / sizeof(cells[0]));
	return p->wrong ? PERF_WRONG : PERF_OK;
}

/* ---- all ---- */

static int ipc_open(struct ipc *p)
{
	struct gx_engine_info info = GX_INIT(info);
	struct gx_engine_opts eo = GX_INIT(eo);
	int ret;

	eo.device = (int)opts.device;
	ret = gx_engine_open(&eo, &p->engine);
	if (!ret)
		ret = gx_engine_queue_open(p->engine, NULL, &p->q);
	if (!ret)
		ret = gx_engine_alloc(p->engine, IPC_USE_B, &p->mem);
	if (ret)
		return ipc_failed(p, "engine", gx_engine_why(), ret);
	gx_engine_info(p->engine, &info);
	report_section(
		p->report,
		"%s: GPU %u's memory, named by its process, opened by another one on GPU %u; "
		"uses are copies of up to 64 KiB into it",
		info.name, opts.owner, opts.device);
	return PERF_OK;
}

static void ipc_close(struct ipc *p)
{
	gx_engine_queue_close(p->q);
	if (p->mem)
		gx_engine_free(p->engine, p->mem, IPC_USE_B);
	gx_engine_close(p->engine);
}

static int ipc_run(struct ipc *p)
{
	int ret = ipc_open(p);

	for (unsigned kind = 0; kind < IPC_KINDS && !ret; kind++)
		for (unsigned i = 0; i < opts.sizes.n && !ret; i++)
			if (!opts.any_kind || opts.kind[kind])
				ret = ipc_size(p, kind, opts.sizes.v[i]);
	ipc_close(p);
	return ret;
}

/* The child ends when its socket is closed. Kill it if its driver hangs. */
static void child_end(pid_t child)
{
	for (unsigned i = 0; i < IPC_END_TRIES; i++) {
		if (waitpid(child, NULL, WNOHANG) == child)
			return;
		perf_nap(IPC_END_NS);
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

int perf_ipc(const struct perf_opts *unused, struct report *report)
{
	const struct timeval late = {.tv_sec = IPC_WAIT_S};
	struct ipc p = {.report = report};
	int ends[2], ret;
	pid_t child;

	for (unsigned i = 0; i < opts.sizes.n; i++)
		if (opts.sizes.v[i] % 8) {
			report_error(report, "--sizes: %llu is no multiple of 8",
				     (unsigned long long)opts.sizes.v[i]);
			return PERF_USAGE;
		}
	/* The driver does not survive a fork: this process must not have called it yet. */
	child = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) ? -1 : fork();
	if (child < 0)
		return ipc_failed(&p, "a second process", "it cannot be started", -errno);
	if (!child) {
		close(ends[0]);
		owner_run(ends[1]);
		_exit(0);
	}
	close(ends[1]);
	p.sock = ends[0];
	setsockopt(p.sock, SOL_SOCKET, SO_RCVTIMEO, &late, sizeof(late));
	ret = ipc_run(&p);
	close(p.sock);
	child_end(child);
	return ret;
}
