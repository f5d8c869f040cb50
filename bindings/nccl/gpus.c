/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU of this process. For all modes: where it is, for the choice of CPUs. For
 * GX_NCCL_MODE=unpack: host memory that GPUs reach. NVIDIA's driver knows; the plugin finds it by
 * dlopen, so it loads without. Nothing here makes a context, allocates on a GPU, or waits for one,
 * but gpus_map(), before NCCL's first kernel. NCCL's threads call this, no core does.
 */
#include "plug.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Flags of cuMemHostRegister */
#define GPU_HOST_PORTABLE  1u /* for the contexts of all GPUs */
#define GPU_HOST_DEVICEMAP 2u

/* X(name, arguments). Each returns a CUresult, here unsigned. CUdevice and an ordinal are the same
 * number. */
#define DRIVER_API(X)                                                                              \
	X(cuInit, (unsigned flags))                                                                \
	X(cuCtxGetDevice, (int *device))                                                           \
	X(cuGetErrorName, (unsigned error, const char **name))                                     \
	X(cuMemHostRegister_v2, (void *addr, size_t len, unsigned flags))                          \
	X(cuMemHostUnregister, (void *addr))                                                       \
	X(cuMemHostGetDevicePointer_v2, (unsigned long long *dev, void *addr, unsigned flags))

static struct {
#define DRIVER_MEMBER(name, args) unsigned(*name) args;
	DRIVER_API(DRIVER_MEMBER)
#undef DRIVER_MEMBER
	char why[WHY_B]; /* empty: it can be used */
} driver;		 /* frozen after driver_load() */

static void driver_load(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		snprintf(driver.why, sizeof(driver.why), "no NVIDIA driver: %s", dlerror());
		return;
	}
#define DRIVER_SYMBOL(name, args)                                                                  \
	*(void **)&driver.name = dlsym(lib, #name);                                                \
	if (!driver.name) {                                                                        \
		snprintf(driver.why, sizeof(driver.why),                                           \
			 "the NVIDIA driver is too old: it has no " #name);                        \
		return;                                                                            \
	}
	DRIVER_API(DRIVER_SYMBOL)
#undef DRIVER_SYMBOL
	if (driver.cuInit(0))
		snprintf(driver.why, sizeof(driver.why), "the NVIDIA driver finds no GPU");
}

bool gpus_can(char why[WHY_B])
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, driver_load);
	snprintf(why, WHY_B, "%s", driver.why);
	return !driver.why[0];
}

/* ---- Where it is ---- */

bool gpus_pci(char id[PCI_B])
{
	struct gx_device d = GX_INIT(d);
	char why[WHY_B];
	int device;

	id[0] = 0;
	if (!gpus_can(why) || driver.cuCtxGetDevice(&device))
		return false;
	for (unsigned i = 0; !id[0] && !gx_devices(NULL, i, &d); i++)
		if (d.kind == GX_DEVICE_GPU && (int)d.number == device && d.pci[0])
			snprintf(id, PCI_B, "%.15s", strrchr(d.pci, '/') + 1);
	return id[0];
}

/* ---- Host memory ---- */

static bool gpus_try(unsigned error, const char *what, char why[WHY_B])
{
	const char *name = NULL;

	if (!error)
		return true;
	if (driver.cuGetErrorName(error, &name) || !name)
		name = "unknown error";
	snprintf(why, WHY_B, "%s: %s (%u)", what, name, error);
	return false;
}

/* Is the address that GPUs have for it its own? */
static bool gpus_reach(char *addr, char why[WHY_B])
{
	unsigned long long dev = 0;

	if (!gpus_try(driver.cuMemHostGetDevicePointer_v2(&dev, addr, 0),
		      "cuMemHostGetDevicePointer", why))
		return false;
	if (dev == (uintptr_t)addr)
		return true;
	snprintf(why, WHY_B, "GPUs reach pinned host memory at addresses of their own");
	return false;
}

bool gpus_map(void *addr, size_t len, char why[WHY_B])
{
	char *first = addr, *last = first + len - 1;
	int device;

	if (!gpus_can(why))
		return false;
	if (driver.cuCtxGetDevice(&device)) {
		snprintf(why, WHY_B,
			 "no context of CUDA is current in the thread that makes the communicator: "
			 "choose the GPU first (torch.cuda.set_device)");
		return false;
	}
	if (gpus_reach(first, why) && gpus_reach(last, why))
		return true;
	if (!gpus_try(
		    driver.cuMemHostRegister_v2(addr, len, GPU_HOST_PORTABLE | GPU_HOST_DEVICEMAP),
		    "cuMemHostRegister", why))
		return false;
	if (gpus_reach(first, why) && gpus_reach(last, why))
		return true;
	driver.cuMemHostUnregister(addr);
	return false;
}
