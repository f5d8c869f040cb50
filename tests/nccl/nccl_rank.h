/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of the NCCL harness: a process that loads the plugin as NCCL does and calls its table from
 * a service thread and a progress thread. Ranks share a piece of memory, the world, which stands for
 * NCCL's bootstrap. A failed check ends the rank with status 1.
 */
#ifndef NCCL_RANK_H
#define NCCL_RANK_H

#include "nccl/net_abi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define RANKS_MAX    4
#define MAILS_MAX    80
#define FLAGS_MAX    16
#define HANDLE_TOKEN 32 /* bytes of the handle before its token */
#define HANDLE_ADDR  56 /* and before its address */
#define WAIT_S	     60 /* longest wait for anything that must happen */

#define CHECK(cond, ...)                                                                           \
	do {                                                                                       \
		if (!(cond))                                                                       \
			check_fail(__FILE__, __LINE__, #cond, " " __VA_ARGS__);                    \
	} while (0)
void check_fail(const char *file, int line, const char *cond, const char *fmt, ...)
	__attribute__((format(printf, 4, 5), noreturn));

struct mail {
	_Atomic uint32_t full;
	char handle[NCCL_HANDLE_B];
};

/* Shared by the ranks of a case and the test. */
struct world {
	unsigned nr_ranks;
	_Atomic uint32_t nr_arrived, round;		   /* the barrier */
	_Atomic uint32_t flag[FLAGS_MAX];		   /* what a case wants */
	struct mail mail[RANKS_MAX][RANKS_MAX][MAILS_MAX]; /* from, to */
};

/* A thread that runs one job at a time. */
struct worker {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	void (*fn)(void *arg); /* NULL: idle */
	void *arg;
	bool ends;
};
void worker_start(struct worker *w);
void worker_run(struct worker *w, void (*fn)(void *arg), void *arg); /* returns at once */
void worker_wait(struct worker *w);
void worker_do(struct worker *w, void (*fn)(void *arg), void *arg); /* and waits */
void worker_end(struct worker *w);

/* A table of any version, as one. */
struct net {
	void *dl;
	int version;
	const void *table;
	bool is_simple;			/* irecv does not say that NCCL needs no completion */
	const struct nccl_net_v12 *v12; /* the slots that all versions have at the same place */
};
void net_load(struct net *n, int version);
int net_init(const struct net *n, void **ctx);
const char *net_warned(void);	 /* the last warning; for cases in which one thread warns */
const char *net_connected(void); /* what it told of a connection; waits for it */
const char *net_opened(void);	 /* what the last init that opened a context told */
int net_finalize(const struct net *n, void *ctx);
/* What the last finalize told of messages in one copy. false: there were none. */
bool net_reads(double *all_mb, double *helped_mb);
int net_listen(const struct net *n, void *ctx, void *handle, void **comm);
int net_connect(const struct net *n, void *ctx, void *handle, void **comm);
int net_isend(const struct net *n, void *comm, void *data, size_t size, void *mh, void **req);
int net_irecv(const struct net *n, void *comm, void *data, size_t size, void *mh, void **req);

struct rank {
	struct world *w;
	unsigned me;
	struct net net;
	void *ctx;
	struct worker service, progress;
	const char *port;
	bool is_unpack; /* ... is in mode unpack */
	bool is_full;	/* GX_TEST_FULL */
};

uint64_t now_ns(void);
unsigned entries(const char *path); /* of a folder, "." and ".." too */
void nap(void);			    /* as a progress thread that finds nothing */
/* What this thread does instead, and while it waits for a worker. NULL: it sleeps. */
extern _Thread_local void (*nap_instead)(void);
/* Wait until @cond. */
#define UNTIL(cond)                                                                                \
	do {                                                                                       \
		uint64_t until_ = now_ns() + WAIT_S * 1000000000ull;                               \
		while (!(cond)) {                                                                  \
			CHECK(now_ns() < until_, "not within %d s", WAIT_S);                       \
			nap();                                                                     \
		}                                                                                  \
	} while (0)

/* Of NCCL's bootstrap. */
void barrier(struct rank *r);
void mail_put(struct rank *r, unsigned to, unsigned slot, const void *handle);
void mail_get(struct rank *r, unsigned from, unsigned slot, void *handle);

uint64_t mix(uint64_t x);
void pattern_fill(void *buf, size_t len, uint64_t seed);
bool pattern_is(const void *buf, size_t len, uint64_t seed);

/* Until there is a comm. */
void *connect_wait(struct rank *r, void *handle);
void *accept_wait(struct rank *r, void *listen);

/* Comms to and from another rank. */
struct link {
	struct rank *r;
	unsigned peer, slot;
	void *listen, *send, *recv;
	struct nccl_dev_handle dev; /* of .recv, if the rank is in mode unpack */
};
/* On the service thread; both ranks do it at the same time, with the same @slot. */
void link_open(struct rank *r, struct link *l, unsigned peer, unsigned slot);
void link_close(struct link *l);
/* accept, as NCCL calls it. */
int link_accept(struct link *l);

/* Registered memory. */
struct buf {
	char *base;
	size_t len;
	void *mh;
};
void buf_open(struct rank *r, void *comm, struct buf *b, size_t len);
void buf_close(struct rank *r, void *comm, struct buf *b);
void buf_free(struct buf *b); /* the memory alone */

/* One way of a stream: requests under way are those from .tested to .posted. */
struct way {
	void *req[NCCL_REQS_MAX];
	unsigned posted, tested;
};

/* Messages both ways over a link, every byte checked. */
struct stream {
	struct link *link;
	unsigned count;	     /* messages each way */
	unsigned depth;	     /* under way each way, at most NCCL_REQS_MAX */
	const size_t *sizes; /* message i has sizes[i % nr_sizes] bytes */
	unsigned nr_sizes;
	uint64_t seed;
	/* The stream's own. */
	struct buf out, in;
	size_t room;
	struct way way_out, way_in;
};
/* On the service thread: memory. */
void stream_open(struct stream *s);
void stream_close(struct stream *s);
/* On the progress thread. */
void stream_run(void *stream);
/* The same in steps: posts and tests one request at most, of one way. */
void stream_begin(struct stream *s);
bool stream_turn(struct stream *s, bool is_recv); /* false: there was nothing to do */
bool stream_is_over(const struct stream *s);

void req_wait(struct rank *r, void *req, int *size);   /* done without an error */
int req_error(struct rank *r, void *req, unsigned ms); /* its error, within @ms; 0: it is done */

struct link_job {
	struct rank *r;
	struct link *l;
	unsigned peer, slot;
};
/* link_open(), link_close() and memory, by the service thread while the caller waits. */
void rank_link(struct rank *r, struct link *l, unsigned peer, unsigned slot);
void rank_unlink(struct rank *r, struct link *l);
void rank_stream(struct rank *r, struct stream *s); /* open, run, close, on the right threads */

/* The cases, in nccl_cases.c and nccl_ends.c; of mode unpack, in nccl_unpack.c. */
struct nccl_case {
	const char *name;
	unsigned nr_ranks;
	void (*run)(struct rank *r);
	bool dies; /* rank 1 ends by a signal */
	const char *timeout_s;
	bool is_unpack; /* in mode unpack, with the fake driver of GPUs */
};
extern const struct nccl_case cases_data[], cases_ends[], cases_unpack[];
extern const unsigned nr_cases_data, nr_cases_ends, nr_cases_unpack;

/* ---- nccl_soak.c ---- */

unsigned soak_s(void); /* how long it lasts */
void case_soak(struct rank *r);

/* ---- nccl_unpack.c ---- */

void unpack_env(bool on);     /* what mode unpack wants */
void unpack_current(bool on); /* a context of CUDA, as PyTorch has made one */

#endif
