/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs of this process. For all modes: where the GPU is, for the choice of CPUs. For
 * GX_NCCL_MODE=cuda: the ones that gx is to open, and the one on which memory lies. For
 * GX_NCCL_MODE=unpack: host memory that GPUs reach. NVIDIA's driver knows; the
 * plugin finds it by dlopen, so it loads without. Nothing here makes a context, allocates on a GPU,
 * or waits for one, but gpus_map(), before NCCL's first kernel. NCCL's threads call this, no core
 * does.
 */
#include "plug.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* CUpointer_attribute, CUmemorytype of the driver's interface */
#define GPU_ATTR_CONTEXT 1
#define GPU_ATTR_TYPE	 2
#define GPU_ATTR_ORDINAL 9
#define GPU_TYPE_DEVICE	 2

/* Flags of cuMemHostRegister */
#define GPU_HOST_PORTABLE  1u /* for the contexts of all GPUs */
#define GPU_HOST_DEVICEMAP 2u

/* Before this version the driver refuses stream memory operations unless the administrator says
 * else. gx then tells the end of a copy by a kernel, and that would wait behind NCCL's. */
#define GPU_CUDA_MIN 12000

/* X(name, arguments). Each returns a CUresult, here unsigned. CUdevice and an ordinal are the same
 * number. */
#define DRIVER_API(X)                                                                              \
	X(cuInit, (unsigned flags))                                                                \
	X(cuDriverGetVersion, (int *version))                                                      \
	X(cuCtxGetDevice, (int *device))                                                           \
	X(cuDeviceGetPCIBusId, (char *id, int len, int device))                                    \
	X(cuGetErrorName, (unsigned error, const char **name))                                     \
	X(cuMemHostRegister_v2, (void *addr, size_t len, unsigned flags))                          \
	X(cuMemHostUnregister, (void *addr))                                                       \
	X(cuMemHostGetDevicePointer_v2, (unsigned long long *dev, void *addr, unsigned flags))     \
	X(cuPointerGetAttribute, (void *value, unsigned attribute, unsigned long long ptr))

static struct {
#define DRIVER_MEMBER(name, args) unsigned(*name) args;
	DRIVER_API(DRIVER_MEMBER)
#undef DRIVER_MEMBER
	char why[WHY_B]; /* empty: it can be used */
} driver;		 /* frozen after driver_load() */

static void driver_load(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	int version = 0;

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
	if (driver.cuInit(0) || driver.cuDriverGetVersion(&version))
		snprintf(driver.why, sizeof(driver.why), "the NVIDIA driver finds no GPU");
	else if (version < GPU_CUDA_MIN)
		snprintf(driver.why, sizeof(driver.why),
			 "the NVIDIA driver is for CUDA %d.%d, and gx needs 12.0 or newer here",
			 version / 1000, version % 1000 / 10);
}

bool gpus_can(char why[WHY_B])
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, driver_load);
	snprintf(why, WHY_B, "%s", driver.why);
	return !driver.why[0];
}

/* ---- Which ones ---- */

bool gpus_pci(char id[PCI_B])
{
	char why[WHY_B];
	int device;

	id[0] = 0;
	if (!gpus_can(why) || driver.cuCtxGetDevice(&device) ||
	    driver.cuDeviceGetPCIBusId(id, PCI_B, device))
		return false;
	id[PCI_B - 1] = 0;
	for (char *at = id; *at; at++) /* "0000:1B:00.0" */
		*at = (char)tolower((unsigned char)*at);
	return true;
}

static bool gpus_has(const int gpus[], unsigned nr, int device)
{
	for (unsigned i = 0; i < nr; i++)
		if (gpus[i] == device)
			return true;
	return false;
}

/* By default the GPU of the calling thread, which is NCCL's, alone: programs often have a context on
 * another one by chance, and gx would take memory there. */
unsigned gpus_choose(const struct conf *c, int gpus[GPUS_MAX], char why[WHY_B])
{
	unsigned nr = 0;

	if (!gpus_can(why))
		return 0;
	for (; nr < c->nr_gpus; nr++)
		gpus[nr] = c->gpus[nr];
	if (nr)
		return nr;
	if (!driver.cuCtxGetDevice(&gpus[0]))
		return 1;
	snprintf(why, WHY_B,
		 "the thread that makes the communicator uses no GPU yet: choose one first "
		 "(torch.cuda.set_device), or name it in GX_NCCL_GPUS");
	return 0;
}

const char *gpus_unasked(void)
{
	if (getenv("NCCL_NET_GDR_LEVEL"))
		return NULL;
	return "without NCCL_NET_GDR_LEVEL=SYS NCCL gives host memory to gx, which has no PCI path";
}

/* ---- Where memory lies ---- */

/* -1: no memory of a GPU. The driver answers the same for cudaMalloc and for mapped memory. */
static int gpu_at(const char *addr)
{
	unsigned long long ptr = (uintptr_t)addr;
	unsigned type = 0;
	int device = -1;

	if (driver.cuPointerGetAttribute(&type, GPU_ATTR_TYPE, ptr) || type != GPU_TYPE_DEVICE ||
	    driver.cuPointerGetAttribute(&device, GPU_ATTR_ORDINAL, ptr))
		return -1;
	return device;
}

int gpus_of(const void *addr, uint64_t len, char why[WHY_B])
{
	const char *first = addr, *last = first + (len ? len - 1 : 0);
	int device;

	if (!gpus_can(why))
		return -1;
	device = gpu_at(first);
	if (device < 0 || gpu_at(last) != device) {
		snprintf(why, WHY_B, "%p, %llu bytes: not memory of one GPU", addr,
			 (unsigned long long)len);
		return -1;
	}
	if (!gpus_has(plug.gpus, plug.nr_gpus, device)) {
		snprintf(why, WHY_B,
			 "memory of cuda:%d, which gx has not opened: by default it opens the GPU "
			 "of the thread that makes the first communicator: name all GPUs of this "
			 "process in GX_NCCL_GPUS, as 0,1",
			 device);
		return -1;
	}
	return device;
}

/* Of what cuMemCreate() made the driver (580) answers that it has no context. */
bool gpus_bound(const void *addr)
{
	void *ctx = NULL;

	return !driver.cuPointerGetAttribute(&ctx, GPU_ATTR_CONTEXT, (uintptr_t)addr) && ctx;
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
