/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's driver, asked by a test itself.
 */
#ifndef COMMON_CUDA_H
#define COMMON_CUDA_H

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Devices that the driver shows; 0 without a driver. */
static inline int common_cuda_count(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	unsigned (*init)(unsigned flags) = lib ? dlsym(lib, "cuInit") : NULL;
	unsigned (*count)(int *n) = lib ? dlsym(lib, "cuDeviceGetCount") : NULL;
	int n = 0;

	return init && count && !init(0) && !count(&n) ? n : 0;
}

/* A function of the driver, as a program of the user calls it. A missing one fails the test. */
static inline void *common_cuda_symbol(const char *name)
{
	static void *lib;
	void *p;

	lib = lib ? lib : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	p = lib ? dlsym(lib, name) : NULL;
	if (!p)
		fail_msg("%s: %s", name, dlerror());
	return p;
}

#endif
