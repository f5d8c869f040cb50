/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of unpack.cu, gather.cu and resident.cu as fat binaries, embedded by embed.py at build time; length 0 where gx
 * was built without nvcc. Read by gpu_cuda.c and cuda_api.c when a device is opened.
 */
#ifndef GX_GPU_FATBIN_H
#define GX_GPU_FATBIN_H

#include <stddef.h>

extern const unsigned char gx_unpack_fatbin[];
extern const size_t gx_unpack_fatbin_len;
extern const unsigned gx_unpack_fatbin_nvcc;   /* that made them all: 1000 x major + 10 x minor */
extern const unsigned gx_unpack_fatbin_driver; /* the oldest for kernels of it; 0: not known */
extern const unsigned char gx_gather_fatbin[];
extern const size_t gx_gather_fatbin_len;
extern const unsigned char gx_resident_fatbin[];
extern const size_t gx_resident_fatbin_len;

#endif
