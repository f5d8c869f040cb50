/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of unpack.cu, gather.cu and resident.cu as fat binaries. embed.py embeds them at
 * build time; the length is 0 if gx was built without nvcc. gpu_cuda.c and cuda_api.c read them
 * when a GPU is opened.
 */
#ifndef GX_GPU_FATBIN_H
#define GX_GPU_FATBIN_H

#include <stddef.h>

extern const unsigned char gx_unpack_fatbin[];
extern const size_t gx_unpack_fatbin_len;
extern const unsigned gx_unpack_fatbin_nvcc;   /* of all of them: 1000 x major + 10 x minor */
extern const unsigned gx_unpack_fatbin_driver; /* oldest driver for kernels of it; 0: not known */
extern const unsigned char gx_gather_fatbin[];
extern const size_t gx_gather_fatbin_len;
extern const unsigned char gx_resident_fatbin[];
extern const size_t gx_resident_fatbin_len;

#endif
