/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Posting, cancelling and polling on the queue of the core, for a test that turns it itself.
 */
#ifndef COMMON_POST_H
#define COMMON_POST_H

#include <gx/gx.h>

static inline int common_post(struct gx_ep *ep, const struct gx_op ops[], unsigned n)
{
	return gx_post(gx_core_queue(gx_ep_core(ep)), ep, ops, n);
}

static inline int common_cancel(struct gx_ep *ep, uint64_t user)
{
	return gx_cancel(gx_core_queue(gx_ep_core(ep)), ep, user);
}

static inline unsigned common_poll(struct gx_core *core, struct gx_comp comps[], unsigned n)
{
	return gx_poll(gx_core_queue(core), comps, n);
}

#endif
