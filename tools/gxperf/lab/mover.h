/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ways to move data between the GPUs of one process, or beside a load: communication back ends,
 * gx's own and its rivals', behind one interface. The sub-commands (p2p, compare, overlap) decide
 * what they measure. Main thread only.
 */
#ifndef MOVER_H
#define MOVER_H

#include "gxperf/base/activity.h"
#include "gxperf/lab/gpus.h"

struct way;

/** struct way_ops - One kind of communication. A unit is @batch messages of the pattern. */
struct way_ops {
	const char *name, *doc;
	bool runs_command; /* a sub-command of gxperf, under that one's name */
	unsigned patterns; /* bits: 1 << enum gpus_pattern; 0: another job, on GPU 0 alone */
	/* SMs that copies use; 0: copy engines, or want_sms decides; -1: unknown. */
	int sms;
	bool in_step; /* the GPUs of a collective wait for one another */
	/* Return: an enum perf_status; it has reported the reason. */
	int (*open)(struct way *w);
	void (*close)(struct way *w);
	/* Queue one unit. Return: 0, -EAGAIN, -errno with gx_engine_why() or way_why_set(). */
	int (*post)(struct way *w);
	/* Units that have ended. Return: 0, -errno. */
	int (*ended)(struct way *w, uint64_t *nr);
	/* NULL: only posts drive it. Else changes the mode (struct activity) and sets ->posted. */
	void (*run)(struct way *w, enum activity_mode mode);
	/* Payload: write patterns to the sources and poison to the destinations; compare all of it.
	 * No unit may be out. Return: an enum perf_status. */
	int (*fill)(struct way *w);
	int (*check)(struct way *w, uint64_t *checked_b, uint64_t *wrong);
};

#define WAY_UNITS 32 /* most queued units */

struct way_lane {
	struct gx_engine_queue *q;
	uint32_t ticket[WAY_UNITS]; /* of unit i: [i % WAY_UNITS] */
	uint64_t done;
};

struct way {
	const struct way_ops *ops;
	struct gpus *gpus;
	enum gpus_pattern pattern;
	uint64_t size;
	unsigned batch;
	uint64_t posted;
	struct way_lane lane[GPUS_MAX * GPUS_LANES];
	unsigned nr_lanes;
	struct gpus_copy copy[GPUS_COPIES_MAX];
	unsigned nr_copies;
	void *priv;
	int sms;	      /* SMs that it uses; -1: unknown */
	int want_sms;	      /* unpack, h2d */
	double rate;	      /* unpack: GB/s to keep; 0: as fast as it goes */
	const char *lib_path; /* folders to search first for libraries, or NULL */
	uint64_t unit_b;      /* bytes of one unit */
	/* way_command: a sub-command and its arguments, NULL at the end. open sets size, batch and
	 * unit_b; check sets sms, link and unchecked. */
	char *const *command;
	char link[16];
	bool unchecked;
	int status; /* enum perf_status of the command's end; 0: none */
};

extern const struct way_ops way_gx, way_peer, way_nccl, way_nccl_zero, way_unpack,
	way_unpack_resident, way_h2d, way_command;

/** way_command_known() - May @name be the sub-command of way_command? */
bool way_command_known(const char *name);

/* ---- movers.c ---- */

const struct way_ops *way_find(const char *name); /* NULL: no such way */
const char *way_names(void);			  /* "gx, peer, ..." */

/* ---- mover.c ---- */

/** way_open() - The caller has filled in ops, gpus, pattern, size, batch and the fields for this
 * way.
 * Return: an enum perf_status. */
int way_open(struct way *w);
void way_close(struct way *w);
int way_post(struct way *w);
/** way_depth() - Units to have out. One, for a collective whose GPUs do not wait for one another:
 * with several the GPUs drift apart and meet on the same links (4 GPUs, all-gather of 64 MiB: 777
 * us instead of 553). */
unsigned way_depth(const struct way *w);
/** way_ended() - Looks at the lanes; call it while units are out. */
int way_ended(struct way *w, uint64_t *nr);
/** way_activity() - The way for activity_run(), with @depth units out. */
struct activity way_activity(struct way *w, unsigned depth);
/** way_wait() - Wait for all posted units. Return: 0, -errno. */
int way_wait(struct way *w);
/** way_why() - Reason of a way's last -errno: its own text, or gx_engine_why(). */
const char *way_why(void);
void way_why_set(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int way_failed(struct way *w, const char *what, int err); /* reports it; PERF_FAILED */
const char *way_name(const struct way *w);		  /* "gx"; for a command "put" */

/** way_lanes() - Make a lane for each queue of the copies. way_mark() - Take a ticket on each lane,
 * for the unit just queued. Return: 0, -errno. */
void way_lanes(struct way *w);
int way_mark(struct way *w);
int way_lanes_ended(struct way *w, uint64_t *nr);
int way_gpus_fill(struct way *w);
int way_gpus_check(struct way *w, uint64_t *checked_b, uint64_t *wrong);
/* Slots that all ways between GPUs share. */
#define WAY_GPUS .ended = way_lanes_ended, .fill = way_gpus_fill, .check = way_gpus_check
struct gx_engine_queue *way_queue(const struct way *w, const struct gpus_copy *c);

/** nccl_end() - Free the communicators, which stay from size to size. */
void nccl_end(void);

#endif
