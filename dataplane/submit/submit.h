/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of submit/ for the rest of the data plane: posting to queues, operations that wait for a
 * stream of the user, and messages cut over lanes. queue.c posts and cancels, for the thread that
 * turns the core and for others; submit.c is the core's half of the latter. stripe.c cuts messages,
 * list.c makes lists of segments, list_run.c runs them, comps.c takes completions, marks.c has the
 * flags that streams write. Private to dataplane/.
 */
#ifndef GX_SUBMIT_H
#define GX_SUBMIT_H

#include "core/core.h"

#define SUBMIT_WAITS 256 /* operations of a core, or of a queue, that can wait for streams */

/* -- control path -- */

int submit_core_open(struct gx_core *core); /* 0, -ENOMEM */
void submit_core_close(struct gx_core *core);
/** submit_gpu() - A GPU was opened: make what operations that wait for its streams need. ctl.
 * submit_take(): the core: they may wait from now on.
 * Return: 0, -ENOMEM. */
int submit_gpu(struct gx_core *core, struct gx_gpu *gpu);
void submit_take(struct gx_core *core, struct gx_gpu *gpu);
/** submit_names() - Control thread: does a queue have an operation on @c whose completion it has
 * not taken? */
bool submit_names(const struct gx *gx, const struct gx_conn *c);
/** submit_hist_next() - Control thread: the operations of the next queue; *@q: NULL at first. NULL: that
 * was the last one. */
const struct core_hist *submit_hist_next(const struct gx *gx, const struct gx_queue **q);
/** submit_end_all() - Control thread, when the context closes: one step towards the end of all
 * queues. Return: true: none is left. */
bool submit_end_all(struct gx *gx);

/* -- poll core -- */

/** submit_stream() - gx_post() of one operation (checked by the caller) that names a stream.
 * Return: 0, -EAGAIN, -ENOTCONN, -ENODEV (no GPU), -EINVAL (gx cannot wait for this stream). */
int submit_stream(struct gx_ep *ep, const struct gx_op *op);
/** submit_run() - gx_post() of one OP_IS_RUN (checked by the caller). Return: 0, -EAGAIN, -ENOTCONN,
 * or what list_take() says. */
int submit_run(struct gx_ep *ep, const struct gx_op *op);
/** submit_cancel() - As a link's cancel, for operations of gx_post() that still wait for a
 * stream, and for lists. */
int submit_cancel(struct gx_ep *ep, uint64_t user);
/** submit_ep_fail() - The endpoint fails: end operations that its link has not seen yet. Before the
 * link's ep_fail(). */
void submit_ep_fail(struct gx_ep *ep, int err);

#endif
