/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limit of a gather's kernel. It is libgxlab's, which the tools and tests link; it is not
 * installed.
 */
#ifndef GXLAB_GATHER_H
#define GXLAB_GATHER_H

#include <gx/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

/** gx_gather_seq() - As gx_engine_gather(), but as many contiguous bytes: the limit of the SMs.
 * Addresses and rows must be multiples of 16; @g->order has no meaning. The first call on an engine
 * loads the kernel. Return: as gx_engine_gather(); -EINVAL: @g->by has no kernel, or an address or
 * row is no such multiple; -ENOMEM, -ENODEV: the kernel does not load. */
int gx_gather_seq(struct gx_engine_queue *q, const struct gx_gather *g, uint32_t *ticket);

#ifdef __cplusplus
}
#endif

#endif
