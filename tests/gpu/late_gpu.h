/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend, whose streams finish late: so tests see a core that lets go of a buffer too early. */
#ifndef TEST_LATE_GPU_H
#define TEST_LATE_GPU_H

#include "gx_internal/gpu.h"

/* For opens after this: what is queued is done by the first ->reap so much later. 0: at once. */
extern uint64_t late_gpu_ns;
/* gx_gpu_host_ops, whose ->close ends what its ->open opened, but for that. */
extern const struct gx_gpu_ops late_gpu_ops;

/** late_gpu_open() - One of @delay_ns. Return as ->open. */
int late_gpu_open(uint64_t delay_ns, struct gx_gpu **out);

#endif
