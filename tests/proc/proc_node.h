/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests with several processes share: a node (a context, its memory and its connections,
 * turned by the calling thread), an exercise (puts, gets and echoed sends with every byte checked),
 * and children (this program again, in a role, with a socket to give orders through). A failed
 * check ends a child at once, and the test in the parent.
 */
#ifndef PROC_NODE_H
#define PROC_NODE_H

#include "gx/gx.h"
#include "kit/common_post.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define NODE_CORES_MAX	8
#define NODE_EVENTS_MAX 1024
#define NODE_KV_B	(24u << 20) /* bytes of the region "kv" */
#define NODE_BAD_B	(1u << 20)  /* of the region "bad", for hostile clients */

#define CHECK(cond, ...)                                                                           \
	do {                                                                                       \
		if (!(cond))                                                                       \
			check_fail(__FILE__, __LINE__, #cond, " " __VA_ARGS__);                    \
	} while (0)
void check_fail(const char *file, int line, const char *cond, const char *fmt, ...)
	__attribute__((format(printf, 4, 5), noreturn));

/* The same bytes for the same seed, everywhere. */
uint64_t mix(uint64_t x);
uint64_t rnd(uint64_t *state);
void pattern_fill(void *buf, uint64_t len, uint64_t seed);
bool pattern_is(const void *buf, uint64_t len, uint64_t seed);
bool bytes_are(const void *buf, uint64_t len, uint8_t value);

/* What a completion belongs to: gx_op.user points to it. */
struct node;
struct act {
	void (*done)(struct act *act, struct node *n, const struct gx_comp *comp);
};

/* Operations that are waited for together. */
struct batch {
	struct act act;
	unsigned nr_out, nr_done, nr_failed;
	int err; /* the first one */
};
void batch_init(struct batch *b);

struct node_event {
	struct gx_conn *conn;
	bool up;
};

struct node_cfg {
	const char *port;     /* "local": the local link, over port shm; "tcp": link tcp; "tcp-gpu":
				 the same with regions on GPU 0, the fake driver's, whose memory
				 the CPU reaches; "bounce": port shm with its bounce pool on
				 GPU 0 */
	bool server, threads; /* threads: cores run on gx's own */
	unsigned nr_cores, slots;
	uint64_t timeout_ns, echo_b; /* echo_b: room of each echoing receive; 0: no echo */
};

struct node_core {
	struct node *n;
	unsigned index;
};

/* A context. owner: the thread that turns it, but for what says otherwise */
struct node {
	struct gx *gx;
	struct node_cfg cfg;
	struct gx_core *core[NODE_CORES_MAX];
	struct node_core poller[NODE_CORES_MAX]; /* with threads: takes the completions */
	struct gx_mem *kv, *bad;
	char *base;	      /* of kv */
	struct gx_conn *last; /* accepted last */
	unsigned nr_live;     /* connections that are up */
	unsigned nr_ups;
	uint32_t awaited; /* server: 0 once a connection of the process with this number is down */
	_Atomic unsigned nr_notify;
	_Atomic unsigned nr_echoes; /* blocks that echo; one goes with its connection's last end */
	unsigned idle;		    /* turns without work */
	pthread_mutex_t lock;	    /* of the events; they come from the control thread */
	struct node_event events[NODE_EVENTS_MAX];
	unsigned nr_events;
};

bool is_local(const char *port);
bool is_tcp(const char *port);
bool is_gpu(const char *port);
bool is_bounce(const char *port);
/* @op is to receive at @addr, in @block of @len bytes, which must be registered where the bounce
 * pool is a GPU's; block_free() before that is freed. */
void op_into(struct node *n, struct gx_op *op, void *block, uint64_t len, void *addr);
void block_free(void *block);
void node_open(struct node *n, const struct node_cfg *cfg);
void node_close(struct node *n);
unsigned node_listen(struct node *n); /* on loopback; the port number */
struct gx_conn *node_connect(struct node *n, unsigned port, unsigned lanes, int *err); /* waits */
bool node_pump(struct node *n, unsigned core); /* turn one core, take its completions */
void node_turn(struct node *n); /* all, and what connections tell; sleeps a little when idle */
uint64_t node_stat(const struct node *n, const char *name); /* of all cores */
uint64_t node_ctl_stat(const struct node *n, unsigned id);  /* GX_STAT_*, of the control thread */
unsigned node_conns(struct node *n);			    /* that exist, up or not */
void node_run(struct node *n, uint64_t ms);
/* Turn until @cond; false when @ms have passed. */
#define NODE_UNTIL(n, cond, ms)                                                                    \
	({                                                                                         \
		uint64_t until_ = gx_now() + (uint64_t)(ms)*1000000u;                              \
		bool met_;                                                                         \
		while (!(met_ = (cond)) && gx_now() < until_)                                      \
			node_turn(n);                                                              \
		met_;                                                                              \
	})

/* Post, turning until the queue takes it. Return: 0, -ENOTCONN. */
int node_post(struct node *n, struct gx_ep *ep, struct gx_op *op, struct batch *b);
void node_wait(struct node *n, struct batch *b); /* all of it; none may fail */

/* What this process holds of the system. */
struct snap {
	unsigned fds, maps, segs; /* segs: mappings of shm's segments */
	uint64_t rss_b;
};
struct snap snap_take(void);
/* Nothing is out, and nothing more is held than at @base. */
bool node_at_rest(struct node *n, const struct snap *base);

/* Checked operations over one endpoint. */
struct exercise {
	struct gx_ep *ep;
	struct gx_region kv;
	uint64_t off, len; /* range of the peer's kv that is ours; len also bounds the sizes */
	uint64_t seed;
	bool echo;
	char *out, *in;
	unsigned nr_puts; /* with an immediate */
	struct batch batch;
};
void exercise_init(struct exercise *x, struct gx_conn *c, unsigned lane, uint64_t off, uint64_t len,
		   uint64_t seed);
void exercise_fini(struct exercise *x);
/* Each size with all of @xs at once. */
void exercise_sizes(struct node *n, struct exercise xs[], unsigned nr, const uint64_t sizes[],
		    unsigned nr_sizes);
/* @rounds of random sizes and places, turning core @core only. */
void exercise_random(struct node *n, struct exercise *x, unsigned core, unsigned rounds);

/* A child process. */
#define CHILD_FD 3
struct child {
	pid_t pid;
	int fd;
};
#define CHILD_TEXT_MAX 256
extern bool child_self; /* is this process one? */
void child_start(struct child *c, const char *role, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void child_say(int fd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool child_heard(int fd, char text[CHILD_TEXT_MAX]); /* does not wait */
/* Turn @n (NULL: nothing) until the child says something that begins with @what; returns the rest,
 * static. */
const char *child_hear(struct node *n, struct child *c, const char *what, unsigned ms);
/* Turn @n until the child has ended by itself with exit status 0. */
void child_end(struct node *n, struct child *c, unsigned ms);
void child_kill(struct child *c);

#endif
