/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's driver, asked by a test itself.
 */
#ifndef COMMON_CUDA_H
#define COMMON_CUDA_H

#include <dlfcn.h>
#include <stddef.h>

/* Devices that the driver shows; 0 without a driver. */
static inline int common_cuda_count(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	unsigned (*init)(unsigned flags) = lib ? dlsym(lib, "cuInit") : NULL;
	unsigned (*count)(int *n) = lib ? dlsym(lib, "cuDeviceGetCount") : NULL;
	int n = 0;

	return init && count && !init(0) && !count(&n) ? n : 0;
}

#endif
