/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks: flags behind the work of a stream of the user's, so that an operation begins when the
 * stream has got there. Private to submit/.
 */
#ifndef GX_SUBMIT_MARKS_H
#define GX_SUBMIT_MARKS_H

#include "submit/submit.h"

#define SUB_NO_MARK UINT32_MAX

/* Flags that streams write when they get there. owner: the posting thread; a core reads held ones.
 */
struct marks {
	uint32_t *flags; /* [SUBMIT_WAITS], memory of gpu[0] that every GPU can write */
	unsigned rover, nr_gpus;
	struct gx_gpu *gpu[GX_GPUS_MAX];
	struct {
		uint64_t due_ns;
		uint32_t value; /* the flag has it: free again, unless held */
		bool held;
	} mark[SUBMIT_WAITS];
};

/* -- control path -- */

int marks_open(struct gx_gpu *gpu, struct marks **out); /* 0, -ENOMEM */
void marks_close(struct marks *m);			/* NULL: nothing */
/** marks_idle() - True: no stream may still write into the flags. @m: NULL has none. */
bool marks_idle(const struct marks *m);
/** marks_end() - Close when all streams have written; wait for them @timeout_ns at most. Flags of
 * one that does not get there are left. */
void marks_end(struct marks *m, uint64_t timeout_ns);

/* -- the posting thread -- */

/** mark_get() - Queue a flag behind what op->stream has to do; *@out: its number.
 * Return: 0, -EAGAIN: all are in use, -EINVAL: no stream that can be waited for. */
int mark_get(struct marks *m, const struct gx_op *op, uint64_t now_ns, uint32_t *out);
void mark_put(struct marks *m, uint32_t i); /* @i: SUB_NO_MARK is nothing */

/* -- poll core -- */

bool mark_there(const struct marks *m, uint32_t i, uint64_t now_ns); /* the stream is */

#endif
