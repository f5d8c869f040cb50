/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of one process that move data among themselves: an engine each, with memory to send from
 * and to receive into; and the ways to move it, gx's own and its rivals', behind one interface.
 * What is measured and beside what is up to the sub-commands (p2p, compare, overlap). Main thread
 * only.
 */
#ifndef GANG_H
#define GANG_H

#include "gxperf/gpu/gxperf_gpu.h"
#include "gxperf/beside/pace.h"

#define GANG_MAX   8 /* GPUs */
#define GANG_LANES 2 /* queues of a GPU */

/** enum gang_pattern - Who moves what. The size is that of a message, of a shard (ALLGATHER), of
 * all that a GPU sends (ALLTOALL). */
enum gang_pattern {
	GANG_WRITE,	/* GPU 0's queue, into GPU 1 */
	GANG_READ,	/* GPU 1's queue, from GPU 0 */
	GANG_BOTH,	/* 0 into 1 and 1 into 0 at once */
	GANG_ALLGATHER, /* in place: every GPU gets every shard */
	GANG_ALLTOALL,	/* part j of what GPU i sends becomes part i of what GPU j receives */
	GANG_PATTERNS,
};

int gang_pattern_parse(const char *text, enum gang_pattern *out); /* 0, -EINVAL */
const char *gang_pattern_text(enum gang_pattern pattern);

struct gang_gpu {
	struct gx_engine *engine;
	struct gx_engine_queue *q[GANG_LANES];
	uint8_t *send, *recv;
};

struct gang {
	struct report *report;
	struct gang_gpu gpu[GANG_MAX];
	unsigned n;
	size_t send_b, recv_b; /* of each GPU; whole granules of 2 MiB */
	char name[96];	       /* of the first GPU */
};

/** gang_open() - GPUs 0 to @n - 1, and memory for @pattern up to @size. Return: an enum
 * perf_status, having said why when it is not PERF_OK: fewer GPUs than that, or no memory. */
int gang_open(struct report *report, unsigned n, enum gang_pattern pattern, uint64_t size,
	      struct gang *gang);
void gang_close(struct gang *gang); /* of a half-open one too */
/** gang_count() - GPUs there are, at most GANG_MAX; 0: gx_engine_why(). */
unsigned gang_count(void);
/** gang_failed() - Says what failed; returns PERF_FAILED. */
int gang_failed(struct gang *gang, const char *what, int err);

/** gang_fill() - Patterns to send, poison where they go. gang_check() - All bytes that should have
 * come are there: adds to the row's checked_b and wrong. Both: an enum perf_status. */
int gang_fill(struct gang *gang, enum gang_pattern pattern, uint64_t size);
int gang_check(struct gang *gang, enum gang_pattern pattern, uint64_t size, uint64_t *checked_b,
	       uint64_t *wrong);
/** gang_moved() - Bytes that one unit moves from the busiest GPU (or to it). */
uint64_t gang_moved(const struct gang *gang, enum gang_pattern pattern, uint64_t size);

/* One message of a pattern. */
struct gang_copy {
	unsigned from, to; /* GPUs; the same: within one */
	unsigned by;	   /* whose queue */
	size_t src_off, dst_off, len;
	bool in_place; /* the source is in the receive memory */
};

/** gang_copies() - The copies that make one unit, in the order in which each queue should do them.
 * Return: how many. */
#define GANG_COPIES_MAX (GANG_MAX * GANG_MAX)
unsigned gang_copies(const struct gang *gang, enum gang_pattern pattern, uint64_t size,
		     struct gang_copy *copies);
uint8_t *gang_src(const struct gang *gang, const struct gang_copy *c);
uint8_t *gang_dst(const struct gang *gang, const struct gang_copy *c);

/* ---- Ways ---- */

struct way;

/** struct way_ops - One kind of communication. A unit is @batch messages of the pattern. */
struct way_ops {
	const char *name, *doc;
	unsigned patterns; /* bits: 1 << enum gang_pattern; 0: something else, on GPU 0 alone */
	int sms; /* that copies use; 0 for copy engines, and where want_sms decides; -1: not known
		  */
	bool in_step; /* the GPUs of a collective wait for one another */
	/* An enum perf_status, having said why. */
	int (*open)(struct way *w);
	void (*close)(struct way *w);
	/* Queue one unit. Return: 0, -EAGAIN, -errno with gx_engine_why() or way_why_set(). */
	int (*post)(struct way *w);
	/* Units that have ended. Return: 0, -errno. */
	int (*ended)(struct way *w, uint64_t *nr);
	/* NULL: goes by posts alone. Else says how it is to go on (see struct pace), and sets
	 * ->posted. */
	void (*run)(struct way *w, enum pace_mode mode);
	/* Payload: what is sent is made, and poison where it goes; all of it is compared. Nothing
	 * may be out. An enum perf_status. */
	int (*fill)(struct way *w);
	int (*check)(struct way *w, uint64_t *checked_b, uint64_t *wrong);
};

#define WAY_UNITS 32 /* queued at most */

struct way_lane {
	struct gx_engine_queue *q;
	uint32_t ticket[WAY_UNITS]; /* of unit i: [i % WAY_UNITS] */
	uint64_t done;
};

struct way {
	const struct way_ops *ops;
	struct gang *gang;
	enum gang_pattern pattern;
	uint64_t size;
	unsigned batch;
	uint64_t posted;
	struct way_lane lane[GANG_MAX * GANG_LANES];
	unsigned nr_lanes;
	struct gang_copy copy[GANG_COPIES_MAX];
	unsigned nr_copies;
	void *priv;
	int sms;	      /* that it uses; -1: not known */
	int want_sms;	      /* unpack, h2d */
	double rate;	      /* unpack: GB/s to keep; 0: as fast as it goes */
	const char *lib_path; /* folders where libraries are looked for first, or NULL */
	uint64_t unit_b;      /* bytes of one unit */
	/* way_command: a sub-command and its arguments, NULL at the end; open sets size, batch and
	 * unit_b; check sms, link and whether payload was looked at. */
	char *const *command;
	char link[16];
	bool unchecked;
	int status; /* not 0: enum perf_status that the command ended with */
};

extern const struct way_ops way_gx, way_peer, way_nccl, way_nccl_zero, way_unpack,
	way_unpack_resident, way_h2d, way_command;

/** way_command_known() - May @name be the sub-command of way_command? */
bool way_command_known(const char *name);

const struct way_ops *way_find(const char *name);
const char *way_names(void); /* "gx, peer, ..." */

/** way_open() - @w: with ops, gang, pattern, size, batch and what the way needs filled in. Return:
 * an enum perf_status. */
int way_open(struct way *w);
void way_close(struct way *w);
int way_post(struct way *w);
/** way_depth() - Units to have out. Of a collective whose GPUs do not wait for one another, one:
 * with several they drift apart and meet on the same links (4 GPUs, all-gather of 64 MiB: 777 us
 * instead of 553). */
unsigned way_depth(const struct way *w);
/** way_ended() - Looks at the lanes; to be called while units are out. */
int way_ended(struct way *w, uint64_t *nr);
/** way_wait() - Until all that is posted has ended. Return: 0, -errno. */
int way_wait(struct way *w);
/** way_why() - Of the last -errno of a way on this thread: its own words, or gx_engine_why(). */
const char *way_why(void);
void way_why_set(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int way_failed(struct way *w, const char *what, int err); /* PERF_FAILED */
const char *way_name(const struct way *w);		  /* "gx"; of a command "put" */

/** way_lanes() - A lane for each queue that the copies use. way_mark() - A ticket on each for the
 * unit that was just queued. Return: 0, -errno. */
void way_lanes(struct way *w);
int way_mark(struct way *w);
int way_lanes_ended(struct way *w, uint64_t *nr);
int way_gang_fill(struct way *w);
int way_gang_check(struct way *w, uint64_t *checked_b, uint64_t *wrong);
/* What ways between GPUs have in common. */
#define WAY_GANG .ended = way_lanes_ended, .fill = way_gang_fill, .check = way_gang_check
struct gx_engine_queue *way_queue(const struct way *w, const struct gang_copy *c);

/** nccl_end() - Give up the communicators that are kept from size to size. */
void nccl_end(void);

#endif
