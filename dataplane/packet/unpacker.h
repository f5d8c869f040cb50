/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpackers: a GPU, or the CPU, in the unpack mode and with the SMs that connections asked for.
 */
#ifndef GX_UNPACKER_H
#define GX_UNPACKER_H

#include "core/core.h"

/** unpacker_get() - @gpu's device, unpacking so: found, or opened; counted once in @held, a bit for
 * each that the endpoint holds. unpackers_put(): it holds them no more. unpackers_reap(): close what
 * nobody wants, in time. Control thread. Return: 0, -errno with gx_error(). */
int unpacker_get(struct gx *gx, const struct gx_gpu *gpu, enum gx_unpack unpack, unsigned sms,
		 uint32_t *held, struct gx_gpu **out);
void unpackers_put(struct gx *gx, uint32_t held);
void unpackers_reap(struct gx *gx);
void unpackers_close(struct gx *gx);

#endif
