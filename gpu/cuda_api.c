/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's driver, found by dlopen: its functions, its errors in words, and how it loads our code.
 * Control path, any thread.
 */
#include "cuda_priv.h"
#include "fatbin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

struct cuda_api cu;
_Thread_local bool cuda_relaxed;
static pthread_once_t lib_once = PTHREAD_ONCE_INIT;
static char lib_why[200]; /* empty: loaded and initialised */

const char *cuda_error_name(unsigned res)
{
	const char *name = NULL;

	if (!cu.cuGetErrorName || cu.cuGetErrorName(res, &name) || !name)
		return "unknown error";
	return name;
}

static void lib_load(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	unsigned res;

	if (!lib) {
		snprintf(lib_why, sizeof(lib_why), "no NVIDIA driver: %s", dlerror());
		return;
	}
#define LIB_SYMBOL(fn, args)                                                                       \
	cu.fn = (unsigned(*) args)dlsym(lib, #fn);                                                 \
	if (!cu.fn) {                                                                              \
		snprintf(lib_why, sizeof(lib_why),                                                 \
			 "the NVIDIA driver is too old: it has no " #fn);                          \
		return;                                                                            \
	}
	GX_CUDA_API(LIB_SYMBOL)
#undef LIB_SYMBOL
	res = cu.cuInit(0);
	if (res)
		snprintf(lib_why, sizeof(lib_why), "cuInit: %s (%u)", cuda_error_name(res), res);
}

int cuda_lib_get(void)
{
	pthread_once(&lib_once, lib_load);
	if (!lib_why[0])
		return 0;
	gx_gpu_why_set("%s", lib_why);
	return -ENODEV;
}

int cuda_try(unsigned res, const char *what)
{
	if (!res)
		return 0;
	gx_gpu_why_set("%s: %s (%u)", what, cuda_error_name(res), res);
	return res == GX_CU_ERROR_OUT_OF_MEMORY ? -ENOMEM : -ENODEV;
}

/* The reason and the cure: the driver is older than the nvcc, or the GPU is younger. */
static int load_fail(unsigned res)
{
	unsigned nvcc = gx_unpack_fatbin_nvcc, least = gx_unpack_fatbin_driver;
	int driver = 0;

	cu.cuDriverGetVersion(&driver);
	if (driver / 1000 < (int)(nvcc / 1000))
		gx_gpu_why_set("the driver is for CUDA %d.%d, and gx's kernels are by nvcc %u.%u, "
			       "which wants driver %u or newer: %s (%u); cure: such a driver, or a "
			       "build with nvcc %d.x",
			       driver / 1000, driver % 1000 / 10, nvcc / 1000, nvcc % 1000 / 10,
			       least, cuda_error_name(res), res, driver / 1000);
	else
		gx_gpu_why_set(
			"gx's kernels, by nvcc %u.%u, do not load on this GPU: %s (%u); cure: "
			"a build with an nvcc that knows it, at most %d.%d, which the "
			"driver is for",
			nvcc / 1000, nvcc % 1000 / 10, cuda_error_name(res), res, driver / 1000,
			driver % 1000 / 10);
	return -ENODEV;
}

int cuda_load(struct CUmod_st **module, const void *image)
{
	unsigned res = cu.cuModuleLoadData(module, image);

	switch (res) {
	case GX_CU_ERROR_INVALID_IMAGE:
	case GX_CU_ERROR_NO_BINARY_FOR_GPU:
	case GX_CU_ERROR_INVALID_PTX:
	case GX_CU_ERROR_UNSUPPORTED_PTX_VERSION:
		return load_fail(res);
	}
	return cuda_try(res, "cuModuleLoadData");
}
