/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the rest of the data plane calls of submit/: posting from threads that own no core,
 * operations that wait for a stream of the user's, and messages cut over lanes. submit.c is the
 * core's half, queue.c the queue that a thread posts to, stripe.c cuts messages, comps.c takes
 * completions, marks.c are flags that streams write. Private to dataplane/.
 */
#ifndef GX_SUBMIT_H
#define GX_SUBMIT_H

#include "core/core.h"

#define SUBMIT_WAITS 256 /* operations of a core, or of a queue, that may wait for streams */

/* -- control path -- */

int submit_core_open(struct gx_core *core); /* 0, -ENOMEM */
void submit_core_close(struct gx_core *core);
/** submit_gpu() - A GPU was opened: from now on operations may wait for streams. Before cores turn.
 * Return: 0, -ENOMEM. */
int submit_gpu(struct gx_core *core, struct gx_gpu *gpu);
/** submit_names() - Control thread: does an operation of a queue name @c whose completion nobody
 * has taken? */
bool submit_names(const struct gx *gx, const struct gx_conn *c);
/** submit_end_all() - Control thread, when the context closes: end all queues, a step a call. True:
 * none is left. */
bool submit_end_all(struct gx *gx);

/* -- poll core -- */

/** submit_stream() - gx_post() of one operation (checked by the caller) that names a stream.
 * Return: 0, -EAGAIN, -ENOTCONN, -ENODEV (no GPU), -EINVAL (no stream that can be waited for). */
int submit_stream(struct gx_ep *ep, const struct gx_op *op);
/** submit_cancel() - Same as a link's cancel, for operations that gx_post() took and that still
 * wait for a stream. */
int submit_cancel(struct gx_ep *ep, uint64_t user);
/** submit_ep_fail() - The endpoint fails: so do operations that its link has not seen yet. Before
 * the link is told. */
void submit_ep_fail(struct gx_ep *ep, int err);

#endif
