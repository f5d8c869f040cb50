/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types and functions that gxperf's commands share. The main thread parses, connects, asks the server
 * to check, and prints. Each core's thread turns its core from perf_open() to perf_close(); while
 * it has a job, it posts and takes completions.
 */
#ifndef PERF_H
#define PERF_H

#include "common/check.h"
#include "gxperf/report/hist.h"
#include "common/opt_argp.h"
#include "gxperf/report/report.h"
#include "common/rpc.h"

#include <gx/env.h>
#include <gx/gx.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Exit statuses; perf_*() functions return them too. */
enum perf_status {
	PERF_OK = 0,
	PERF_FAILED = 1,
	PERF_USAGE = 2,
	PERF_WRONG = 3, /* payload was wrong */
	PERF_LOST = 4,	/* peer lost, or a time-out */
	/* A signal asked to end; main() adds its number. Rows so far are good. */
	PERF_STOPPED = 128,
};

#define PERF_CONNS_MAX 1024
#define PERF_WHY_MAX   512
#define PERF_MEMS_MAX  4

/* ---- opts.c: the command line. A struct for each group of options, which its parser fills. Frozen
 * after parsing. ---- */

/** struct perf_server_opts - The region, the number of connections. */
struct perf_server_opts {
	const char *mem; /* the server's region; NULL: its only one */
	uint32_t nr_conns;
	bool conns_given;
	uint32_t queue_pairs; /* link verbs; 0: the default */
};

/** struct perf_conn_opts - The path to the server, or to other ranks. NULL and 0: gx's choice. */
struct perf_conn_opts {
	const char *port, *link, *peer;
	uint32_t nr_socks; /* link tcp: sockets of a connection and core */
	const char *bind;  /* NULL: our address on the way to the server */
	struct opt_cpus cpus, allowed;
	bool cpus_given;
	struct opt_ctx *gx; /* perf_opts.gx, for its options in this group */
};

/** struct perf_traffic_opts - Messages: sizes, number, time. */
struct perf_traffic_opts {
	uint64_t size_begin, size_end, size_factor;
	bool size_given, begin_given, end_given;
	uint32_t n, warm; /* messages of a connection and core; n 0: by size */
	bool warm_given;
	uint64_t duration_ns; /* 0: by n */
	bool time_given;
	uint64_t interval_ns; /* put, get, send: a line each; 0: none */
	bool check;
	bool throttled; /* overlap says when to begin and to end */
};

/** struct perf_place_opts - The place of payload, at both ends. */
struct perf_place_opts {
	bool poll_memory; /* lat: look at a message's last byte */
	bool same_place;  /* put, get: all messages from one place to one place */
	uint64_t offset;
	bool offset_given;
	enum gx_mem_kind kind; /* of memory here */
	int device;
	bool gpu_given;
	uint32_t gpu; /* opened for its copy engines; that of .kind is opened in any case */
};

/** struct perf_file_opts - A file as payload; stripes; both directions. */
struct perf_file_opts {
	const char *path;   /* NULL: none; "-": stdin, or stdout */
	int stdout_fd;	    /* get into "-": what was stdout; what is said goes to stderr */
	bool force;	    /* get: the file may be replaced */
	bool stripe;	    /* a thread of its own posts each message over all lanes */
	bool bidirectional; /* put, get: the other one at the same time */
};

/** struct perf_blocks_opts - Lists of blocks. */
struct perf_blocks_opts {
	uint32_t nr;	  /* of a list; 0: the default */
	const char *view; /* the case of --view; NULL: lists */
	bool get;
};

/** struct perf_tune_opts - Depth and engine. */
struct perf_tune_opts {
	uint32_t depth;	    /* 0: by size */
	const char *engine; /* as given, or NULL */
	bool unpack_given;
	struct opt_gx gx; /* points at perf_opts.gx and .unpack_given */
};

struct perf_info_opts {
	bool nccl; /* of the NCCL plugin alone */
};

struct perf_demo_opts {
	bool verbose;
	enum gx_mem_kind kind; /* of the server's memory */
	int device;
};

/** struct perf_opts - The sub-command, its server, and the groups of options. A command reads the
 * groups of its row in gxperf.c. */
struct perf_opts {
	const char *command; /* "put" */
	enum gx_op_kind op;  /* of the command's messages; 0: none of its own */
	bool all_to_all;     /* the collective; false: all-gather */
	const char *addr;    /* "127.0.0.1:7501"; info: may be NULL */
	struct opt_ctx gx;   /* conn and tune fill it; its user adds the rest */
	struct perf_server_opts server;
	struct perf_conn_opts conn;
	struct perf_traffic_opts traffic;
	struct perf_place_opts place;
	struct perf_file_opts file;
	struct perf_blocks_opts blocks;
	struct perf_tune_opts tune;
	struct perf_info_opts info;
	struct perf_demo_opts demo;
};

struct perf;

/* ---- core.c: the threads that own cores ---- */

enum perf_step { PERF_STEP_IDLE, PERF_STEP_BUSY, PERF_STEP_DONE };

/**
 * struct perf_job - Work for a core's thread besides turning. The thread calls @step after every
 * turn, until it returns DONE. Then it sets @done, and the job belongs to the main thread again.
 */
struct perf_job {
	enum perf_step (*step)(struct perf_job *job, uint64_t now_ns);
	_Atomic bool done;
};

/** struct perf_core - A core and its thread. Owner: main, unless a comment says otherwise. */
struct perf_core {
	struct gx_core *core; /* NULL: the thread turns no core */
	int cpu;
	pthread_t thread;
	bool started;
	_Atomic(struct perf_job *) job; /* main sets it, the thread clears it */
	_Atomic bool quit;
	_Atomic bool clock_set;
	clockid_t clock; /* CPU time of the thread; frozen once clock_set */
};

int perf_core_start(struct perf_core *core, struct gx_core *gx_core, int cpu); /* 0, -errno */
void perf_core_stop(struct perf_core *core);
void perf_core_job(struct perf_core *core, struct perf_job *job);
uint64_t perf_core_cpu_ns(const struct perf_core *core);
/** perf_nap() - Sleep, on the main thread. */
void perf_nap(uint64_t ns);
/** perf_look_nap() - Sleep, between two looks at the cores. Each wakes this thread on a CPU that a core
 * may be using, so the longer the cores have worked since @since_ns, the longer it is. */
void perf_look_nap(uint64_t since_ns);
/** perf_job_wait() - Wait for @job, which counts in @count the answers of the server; report them
 * as @what ("echoes"). Return: an enum perf_status. */
int perf_job_wait(struct perf *perf, struct perf_job *job, _Atomic uint64_t *count, uint64_t size,
		  const char *what);

/* ---- conn.c: a context, its connections ---- */

struct perf_conn {
	struct perf *perf;
	struct gx_conn *conn;
	struct rpc *rpc;
	unsigned lanes;
	struct gx_region region; /* the server's, with this connection's token */
	_Atomic bool down;	 /* control thread */
	char why[PERF_WHY_MAX];	 /* set before down */
	bool silent;		 /* likewise: its data stays away, and it may live */
};

struct perf {
	const struct perf_opts *opts;
	struct report *report;
	struct gx *gx;
	struct perf_core
		*cores; /* our threads: one for each core, or (--stripe) the one that posts */
	unsigned nr_threads;
	unsigned nr_cores;	/* of gx */
	struct gx_queue *queue; /* --stripe: carries posts to the cores, which gx runs */
	struct perf_conn *conns;
	unsigned nr_conns;
	char addrs[GX_LIST_MAX];  /* of the server, numeric */
	struct gx_conn_info info; /* of the first connection */
	uint64_t
		offset; /* first byte of the region that is ours: --offset, or as perf_lease() says */
	enum gx_unpack_mode server_unpack;
	unsigned server_sms;
	char *server_describe;
	char server_version[32];
	struct gx_mem *mem[PERF_MEMS_MAX]; /* perf_alloc() made these */
	unsigned nr_mems;
};

/* All return an enum perf_status; they have reported the reason if it is not PERF_OK. */
int perf_open(const struct perf_opts *opts, struct report *report, unsigned nr_cores_max,
	      struct perf *perf);
void perf_close(struct perf *perf); /* also a half-open one */
/** perf_connect() - Connect, check the path against the options, find the region, give @report the
 * path. */
int perf_connect(struct perf *perf, unsigned access);
/** perf_connect_any() - The same without a region; @report does not get the path. */
int perf_connect_any(struct perf *perf);
/** perf_alloc() - Allocate memory of --local-mem, until perf_close(). At most PERF_MEMS_MAX
 * times. */
int perf_alloc(struct perf *perf, uint64_t len, struct gx_mem **mem);
/** perf_is_mapped() - Is payload copied straight into or out of the server's memory? Sends are
 * packets over any link, or read out of this process. */
bool perf_is_mapped(const struct perf *perf);
/** perf_sms() - SMs that unpack into memory of @kind: 0 for the host, -1: unknown. */
int perf_sms(const struct perf *perf, enum gx_mem_kind kind, bool local);

/* ---- call.c: failures, and the server's services ---- */

/** perf_room() - Do @len bytes at perf->offset fit in the region? */
int perf_room(struct perf *perf, uint64_t len);

struct perf_lease {
	uint64_t len;
	const char *content; /* NULL: we write there; else we only read, as others may that name the
				same content */
	bool moves;	     /* any place will do, and @content differs from place to place */
};

/**
 * perf_lease() - Reserve bytes at perf->offset at the server, until perf_close(), against other
 * clients that ask. Waits a moment for a lease that is about to end. Then, if @want moves and the
 * user has named no --offset, takes a free place: sets perf->offset, and says so.
 */
int perf_lease(struct perf *perf, const struct perf_lease *want);
/** perf_lost() - Is any connection down? Reports it. */
int perf_lost(struct perf *perf);
/** perf_op_failed() - Report that operations of kind @op ended with @status. */
int perf_op_failed(struct perf *perf, const char *op, int status);

/** struct perf_slots - Slots with one message each; see struct service_slots at the server. */
struct perf_slots {
	uint64_t off, size, stride, nr, iter;
};

#define PERF_SEED 0x6778 /* of the pattern */

int perf_poison(struct perf *perf, uint64_t off, uint64_t len);
int perf_fill(struct perf *perf, const struct perf_slots *s);
int perf_verify(struct perf *perf, const struct perf_slots *s, struct check_result *res);
int perf_sha256(struct perf *perf, uint64_t off, uint64_t len, char *hex);

/** struct perf_mark - Counters of both ends so far: CPU time of their cores; packets sent again,
 * sent again in vain, received twice. The server counts all its clients. */
struct perf_mark {
	uint64_t at_ns, cpu_ns, resent, spurious, dup;
	uint64_t limit_ns[REPORT_LIMITS];   /* by report_limits */
	uint64_t rate_b_s, rtt_ns;	    /* now */
	struct gx_path paths[REPORT_PATHS]; /* of all connections */
	unsigned nr_paths;
};

int perf_mark(struct perf *perf, struct perf_mark *mark);
/** perf_call() - Send any request to the server over @conn; the caller frees the reply. */
int perf_call(struct perf_conn *conn, struct json_t *req, struct json_t **reply);
/** perf_verify_request() - For rpc_begin(). @lane: -1, or the lane whose receives wait for the
 * check. */
struct json_t *perf_verify_request(const struct perf_conn *conn, const struct perf_slots *s,
				   int lane, uint64_t upto);
/** perf_verify_reply() - Return: 0, -EINVAL. */
int perf_verify_reply(struct json_t *reply, struct check_result *res);

/* ---- plugin.c ---- */

#define PERF_PLUGIN "libnccl-net-gx.so"

/** perf_plugin_near() - gx's plugin for NCCL in the build folder or bundle of this program. Return:
 * 0 with its @path, -ENOENT. */
int perf_plugin_near(char *path, size_t room);

/* ---- row.c: common parts of rows ---- */

/** perf_row_hist() - Fill the latency columns of @row from @h; null if there are too few
 * samples. */
void perf_row_hist(struct report_row *row, const struct hist *h);
/** perf_row_marks() - Fill @row with the differences of two marks. */
void perf_row_marks(struct report_row *row, const struct perf_mark m[2]);
/** perf_gb_s() - Payload of @count messages in @ns, in GB/s; NAN if @count is 0. */
double perf_gb_s(uint64_t count, uint64_t size, uint64_t ns);
/** perf_row_times() - Say what the times of the rows are, in a table. */
void perf_row_times(struct perf *perf);
/** perf_timed() - Fail, with a report, if no message was timed. */
int perf_timed(struct perf *perf, uint64_t count, uint64_t size);

#endif
