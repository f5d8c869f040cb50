/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Movers of data between the GPUs of one process, or during a load: communication back ends,
 * gx's own and its rivals', with one interface. The sub-commands (p2p, compare, overlap) decide
 * what they measure. Main thread only.
 */
#ifndef MOVER_H
#define MOVER_H

#include "gxperf/base/activity.h"
#include "gxperf/lab/gpus.h"

struct mover;

/** struct mover_ops - One kind of communication. A unit is @batch messages of the pattern. */
struct mover_ops {
	const char *name, *doc;
	bool runs_command; /* a sub-command of gxperf, under that one's name */
	unsigned patterns; /* bits: 1 << enum gpus_pattern; 0: another job, on GPU 0 alone */
	/* SMs that copies use; 0: copy engines, or want_sms decides; -1: unknown. */
	int sms;
	bool in_step; /* the GPUs of a collective wait for one another */
	/* Return: an enum perf_status; it has reported the reason. */
	int (*open)(struct mover *m);
	void (*close)(struct mover *m);
	/* Queue one unit. Return: 0, -EAGAIN, -errno with gx_engine_why() or mover_why_set(). */
	int (*post)(struct mover *m);
	/* Units that have ended. Return: 0, -errno. */
	int (*ended)(struct mover *m, uint64_t *nr);
	/* NULL: only posts drive it. Else changes the mode (struct activity) and sets ->posted. */
	void (*run)(struct mover *m, enum activity_mode mode);
	/* Payload: write patterns to the sources and poison to the destinations; compare all of it.
	 * No unit may be out. Return: an enum perf_status. */
	int (*fill)(struct mover *m);
	int (*check)(struct mover *m, uint64_t *checked_b, uint64_t *wrong);
};

#define MOVER_UNITS 32 /* most queued units */

struct mover_lane {
	struct gx_engine_queue *q;
	uint32_t ticket[MOVER_UNITS]; /* of unit i: [i % WAY_UNITS] */
	uint64_t done;
};

struct mover {
	const struct mover_ops *ops;
	struct gpus *gpus;
	enum gpus_pattern pattern;
	uint64_t size;
	unsigned batch;
	uint64_t posted;
	struct mover_lane lane[GPUS_MAX * GPUS_LANES];
	unsigned nr_lanes;
	struct gpus_copy copy[GPUS_COPIES_MAX];
	unsigned nr_copies;
	void *priv;
	int sms;	      /* SMs that it uses; -1: unknown */
	int want_sms;	      /* unpack */
	double rate;	      /* unpack: GB/s to keep; 0: as fast as it goes */
	const char *lib_path; /* folders to search first for libraries, or NULL */
	uint64_t unit_b;      /* bytes of one unit */
	/* mover_command: a sub-command and its arguments, NULL at the end. open sets size, batch and
	 * unit_b; check sets sms, link and unchecked. */
	char *const *command;
	char link[16];
	bool unchecked;
	int status; /* enum perf_status of the command's end; 0: none */
};

extern const struct mover_ops mover_gx, mover_peer, mover_nccl, mover_nccl_zero, mover_unpack,
	mover_unpack_resident, mover_command;

/** mover_command_known() - May @name be the sub-command of mover_command? */
bool mover_command_known(const char *name);

const struct mover_ops *mover_find(const char *name); /* NULL: no such mover */
const char *mover_names(void);			      /* "gx, peer, ..." */

/** mover_open() - The caller has filled in ops, gpus, pattern, size, batch and the fields for this
 * mover.
 * Return: an enum perf_status. */
int mover_open(struct mover *m);
void mover_close(struct mover *m);
int mover_post(struct mover *m);
/** mover_depth() - Units to have out. One, for a collective whose GPUs do not wait for one another:
 * with several the GPUs drift apart and meet on the same links (4 GPUs, all-gather of 64 MiB: 777
 * us instead of 553). */
unsigned mover_depth(const struct mover *m);
/** mover_ended() - Looks at the lanes; call it while units are out. */
int mover_ended(struct mover *m, uint64_t *nr);
/** mover_activity() - The mover for activity_run(), with @depth units out. */
struct activity mover_activity(struct mover *m, unsigned depth);
/** mover_wait() - Wait for all posted units. Return: 0, -errno. */
int mover_wait(struct mover *m);
/** mover_why() - Reason of a mover's last -errno: its own text, or gx_engine_why(). */
const char *mover_why(void);
void mover_why_set(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int mover_failed(struct mover *m, const char *what, int err); /* reports it; PERF_FAILED */
const char *mover_name(const struct mover *m);		      /* "gx"; for a command "put" */

/** mover_lanes() - Make a lane for each queue of the copies. mover_mark() - Take a ticket on each lane,
 * for the unit just queued. Return: 0, -errno. */
void mover_lanes(struct mover *m);
int mover_mark(struct mover *m);
int mover_lanes_ended(struct mover *m, uint64_t *nr);
int mover_gpus_fill(struct mover *m);
int mover_gpus_check(struct mover *m, uint64_t *checked_b, uint64_t *wrong);
/* Slots that all movers between GPUs share. */
#define MOVER_GPUS .ended = mover_lanes_ended, .fill = mover_gpus_fill, .check = mover_gpus_check
struct gx_engine_queue *mover_queue(const struct mover *m, const struct gpus_copy *c);

/** mover_nccl_end() - Free the communicators, which stay from size to size. */
void mover_nccl_end(void);

#endif
