/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of load.cu, as fatbin.h has those of the library. Read by code.c, and by tests that
 * hold SMs.
 */
#ifndef GX_GPU_LAB_FATBIN_H
#define GX_GPU_LAB_FATBIN_H

#include <stddef.h>

extern const unsigned char gx_load_fatbin[];
extern const size_t gx_load_fatbin_len;

#endif
