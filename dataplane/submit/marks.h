/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks: flags that a stream of the user writes after its work, so that an operation begins when
 * the stream has got there. Private to submit/.
 */
#ifndef GX_SUBMIT_MARKS_H
#define GX_SUBMIT_MARKS_H

#include "submit/submit.h"

#define SUB_NO_MARK UINT32_MAX

/* Flags that streams write. owner: the posting thread; a core reads those of waiting operations. */
struct marks {
	uint32_t *flags; /* [SUBMIT_WAITS], memory of gpu[0] that every GPU can write */
	unsigned rover, nr_gpus;
	struct gx_gpu *gpu[GX_GPUS_MAX];
	struct {
		uint32_t value; /* last value queued; free when the flag has it, unless held */
		bool held;
	} mark[SUBMIT_WAITS];
};

/* -- control path -- */

int marks_open(struct gx_gpu *gpu, struct marks **out); /* 0, -ENOMEM */
void marks_close(struct marks *m);			/* NULL: nothing */
/** marks_idle() - Have all streams written their flags? @m: NULL: yes. */
bool marks_idle(const struct marks *m);
/** marks_end() - Wait until all streams have written, @timeout_ns at most, and close. If a stream
 * does not get there, the flags stay. */
void marks_end(struct marks *m, uint64_t timeout_ns);

/* -- the posting thread -- */

/** mark_get() - Have op->stream write a flag after its work so far; *@out: number of the flag.
 * Return: 0, -EAGAIN: all are in use, -EINVAL: gx cannot wait for this stream. */
int mark_get(struct marks *m, const struct gx_op *op, uint32_t *out);
void mark_put(struct marks *m, uint32_t i); /* @i: SUB_NO_MARK: nothing to do */

/* -- poll core -- */

bool mark_there(const struct marks *m, uint32_t i); /* the stream got there */

#endif
