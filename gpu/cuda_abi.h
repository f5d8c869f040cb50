/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the CUDA driver's ABI that gx calls. It is declared here so that gx builds where the
 * toolkit is not installed and starts where the driver is not. Source: cuda.h of CUDA 13.0 and the
 * CUDA driver API reference; exported names, with their version suffix; 12.0 is the oldest version
 * of CUDA whose driver has them all. Where the build finds cuda.h, cuda_check.c compares every line
 * with it. Included by cuda_priv.h.
 */
#ifndef GX_GPU_CUDA_ABI_H
#define GX_GPU_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

struct CUctx_st;
struct CUfunc_st;
struct CUmod_st;
struct CUstream_st;

/* CUresult */
enum {
	GX_CU_SUCCESS = 0,
	GX_CU_ERROR_INVALID_VALUE = 1,
	GX_CU_ERROR_OUT_OF_MEMORY = 2,
	GX_CU_ERROR_INVALID_IMAGE = 200,
	GX_CU_ERROR_NO_BINARY_FOR_GPU = 209,
	GX_CU_ERROR_INVALID_PTX = 218,
	GX_CU_ERROR_UNSUPPORTED_PTX_VERSION = 222,
	GX_CU_ERROR_OPERATING_SYSTEM = 304,
	GX_CU_ERROR_NOT_READY = 600,
	GX_CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	GX_CU_ERROR_CAPTURE_UNSUPPORTED = 900,
	GX_CU_ERROR_CAPTURE_INVALIDATED = 901,
	GX_CU_ERROR_CAPTURE_IMPLICIT = 906,
};

/* CUfunction_attribute */
enum { GX_CU_FUNC_MAX_DYNAMIC_SHARED_B = 8 };

/* CUlaunchAttributeID */
enum { GX_CU_LAUNCH_PROGRAMMATIC = 6 };

/* CUlaunchConfig and CUlaunchAttribute */
struct cuda_launch_attr {
	unsigned id;
	unsigned pad;
	union {
		char room[64];
		int on;
	} value;
};

struct CUlaunchConfig_st;
struct cuda_launch {
	unsigned grid_x, grid_y, grid_z;
	unsigned block_x, block_y, block_z;
	unsigned shared_b;
	struct CUstream_st *stream;
	struct cuda_launch_attr *attrs;
	unsigned nr_attrs;
};

/* CUdevice_attribute */
enum {
	GX_CU_ATTR_MULTIPROCESSOR_COUNT = 16,
	GX_CU_ATTR_PCI_BUS = 33,
	GX_CU_ATTR_PCI_DEVICE = 34,
	GX_CU_ATTR_UNIFIED_ADDRESSING = 41,
	GX_CU_ATTR_PCI_DOMAIN = 50,
	GX_CU_ATTR_COMPUTE_CAPABILITY_MAJOR = 75,
	GX_CU_ATTR_COMPUTE_CAPABILITY_MINOR = 76,
	GX_CU_ATTR_VMM = 102,
	GX_CU_ATTR_VMM_POSIX_FD = 103,
	GX_CU_ATTR_VMM_RDMA = 110,
	GX_CU_ATTR_RDMA_ORDER = 118,
	GX_CU_ATTR_DMABUF = 124,
	GX_CU_ATTR_MPS = 133,
};

/* CUGPUDirectRDMAWritesOrdering */
enum { GX_CU_RDMA_ORDER_OWNER = 100, GX_CU_RDMA_ORDER_ALL = 200 };

/* CUmemAllocationType, CUmemAllocationHandleType, CUmemLocationType, CUmemAccess_flags,
 * CUmemAllocationGranularity_flags, CUmemRangeHandleType, CUipcMem_flags */
enum { GX_CU_ALLOCATION_PINNED = 1 };
enum { GX_CU_HANDLE_POSIX_FD = 1 };
enum { GX_CU_LOCATION_DEVICE = 1 };
enum { GX_CU_ACCESS_READWRITE = 3 };
enum { GX_CU_GRANULARITY_MIN = 0 };
enum { GX_CU_RANGE_DMABUF_FD = 1 };
enum { GX_CU_IPC_LAZY_PEER_ACCESS = 1 };

/* CUmemLocation, CUmemAllocationProp, CUmemAccessDesc, CUipcMemHandle */
struct cuda_mem_location {
	unsigned type;
	int id;
};

struct cuda_mem_prop {
	unsigned type;
	unsigned handle_types;
	struct cuda_mem_location location;
	void *win32;
	unsigned char compression;
	unsigned char rdma;
	unsigned short usage;
	unsigned char zero[4];
};

struct cuda_mem_access {
	struct cuda_mem_location location;
	unsigned flags;
};

struct CUmemAllocationProp_st;
struct CUmemAccessDesc_st;
struct CUmemLocation_st;

/* It is passed by value, so it must be whole, under the driver's name; cuda_check.c has cuda.h's.
 */
#ifndef CUDA_VERSION
struct CUipcMemHandle_st {
	char b[64];
};
#endif

/* CUpointer_attribute, CUmemorytype */
enum {
	GX_CU_POINTER_MEMORY_TYPE = 2,
	GX_CU_POINTER_SYNC_MEMOPS = 6,
	GX_CU_POINTER_BUFFER_ID = 7,
	GX_CU_POINTER_IS_MANAGED = 8,
	GX_CU_POINTER_DEVICE = 9,
	GX_CU_POINTER_MEMPOOL = 17,
};
enum { GX_CU_MEMORYTYPE_HOST = 1, GX_CU_MEMORYTYPE_DEVICE = 2 };

/* Flags: cuMemHostAlloc and cuMemHostRegister (the same bits), cuStreamCreate,
 * cuStreamWriteValue */
enum { GX_CU_HOST_PORTABLE = 1, GX_CU_HOST_DEVICEMAP = 2 };
enum { GX_CU_STREAM_NON_BLOCKING = 1 };
enum { GX_CU_WRITE_VALUE_DEFAULT = 0 };

/* A handle that means another stream on each thread; CUstreamCaptureStatus, CUstreamCaptureMode */
#define GX_CU_STREAM_PER_THREAD ((uintptr_t)2)
enum { GX_CU_CAPTURE_NONE = 0 };
enum { GX_CU_LIMIT_STACK_SIZE = 0 };
enum { GX_CU_CAPTURE_GLOBAL = 0, GX_CU_CAPTURE_THREAD_LOCAL = 1, GX_CU_CAPTURE_RELAXED = 2 };

/*
 * X(name, arguments). Every one returns a CUresult, here unsigned. CUdeviceptr is unsigned long
 * long, CUdevice is int, enumerations are unsigned.
 */
#define GX_CUDA_API(X)                                                                             \
	X(cuInit, (unsigned flags))                                                                \
	X(cuGetErrorName, (unsigned error, const char **name))                                     \
	X(cuDriverGetVersion, (int *version))                                                      \
	X(cuDeviceGetCount, (int *count))                                                          \
	X(cuDeviceGet, (int *device, int ordinal))                                                 \
	X(cuDeviceGetName, (char *name, int len, int device))                                      \
	X(cuDeviceGetAttribute, (int *value, unsigned attribute, int device))                      \
	X(cuDevicePrimaryCtxRetain, (struct CUctx_st * *ctx, int device))                          \
	X(cuDevicePrimaryCtxRelease_v2, (int device))                                              \
	X(cuCtxCreate_v2, (struct CUctx_st * *ctx, unsigned flags, int device))                    \
	X(cuCtxDestroy_v2, (struct CUctx_st * ctx))                                                \
	X(cuCtxPopCurrent_v2, (struct CUctx_st * *ctx))                                            \
	X(cuCtxSetLimit, (unsigned limit, size_t value))                                           \
	X(cuCtxGetCurrent, (struct CUctx_st * *ctx))                                               \
	X(cuCtxSetCurrent, (struct CUctx_st * ctx))                                                \
	X(cuThreadExchangeStreamCaptureMode, (unsigned *mode))                                     \
	X(cuCtxGetStreamPriorityRange, (int *least, int *greatest))                                \
	X(cuModuleLoadData, (struct CUmod_st * *module, const void *image))                        \
	X(cuModuleUnload, (struct CUmod_st * module))                                              \
	X(cuModuleGetFunction,                                                                     \
	  (struct CUfunc_st * *function, struct CUmod_st * module, const char *name))              \
	X(cuLaunchKernel,                                                                          \
	  (struct CUfunc_st * function, unsigned grid_x, unsigned grid_y, unsigned grid_z,         \
	   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_b,                \
	   struct CUstream_st *stream, void **params, void **extra))                               \
	X(cuLaunchKernelEx, (const struct CUlaunchConfig_st *config, struct CUfunc_st *function,   \
			     void **params, void **extra))                                         \
	X(cuFuncSetAttribute, (struct CUfunc_st * function, unsigned attribute, int value))        \
	X(cuMemAlloc_v2, (unsigned long long *ptr, size_t len))                                    \
	X(cuMemFree_v2, (unsigned long long ptr))                                                  \
	X(cuDeviceCanAccessPeer, (int *can, int device, int peer))                                 \
	X(cuMemGetAddressRange_v2,                                                                 \
	  (unsigned long long *base, size_t *len, unsigned long long ptr))                         \
	X(cuMemGetAllocationGranularity,                                                           \
	  (size_t * granule, const struct CUmemAllocationProp_st *prop, unsigned which))           \
	X(cuMemCreate, (unsigned long long *handle, size_t len,                                    \
			const struct CUmemAllocationProp_st *prop, unsigned long long flags))      \
	X(cuMemRelease, (unsigned long long handle))                                               \
	X(cuMemRetainAllocationHandle, (unsigned long long *handle, void *at))                     \
	X(cuMemGetAllocationPropertiesFromHandle,                                                  \
	  (struct CUmemAllocationProp_st * prop, unsigned long long handle))                       \
	X(cuMemAddressReserve, (unsigned long long *ptr, size_t len, size_t align,                 \
				unsigned long long at, unsigned long long flags))                  \
	X(cuMemAddressFree, (unsigned long long ptr, size_t len))                                  \
	X(cuMemMap, (unsigned long long ptr, size_t len, size_t off, unsigned long long handle,    \
		     unsigned long long flags))                                                    \
	X(cuMemUnmap, (unsigned long long ptr, size_t len))                                        \
	X(cuMemSetAccess,                                                                          \
	  (unsigned long long ptr, size_t len, const struct CUmemAccessDesc_st *who, size_t nr))   \
	X(cuMemGetAccess, (unsigned long long *flags, const struct CUmemLocation_st *where,        \
			   unsigned long long ptr))                                                \
	X(cuMemGetHandleForAddressRange, (void *out, unsigned long long ptr, size_t len,           \
					  unsigned type, unsigned long long flags))                \
	X(cuMemExportToShareableHandle,                                                            \
	  (void *out, unsigned long long handle, unsigned type, unsigned long long flags))         \
	X(cuMemImportFromShareableHandle, (unsigned long long *handle, void *os, unsigned type))   \
	X(cuIpcGetMemHandle, (struct CUipcMemHandle_st * out, unsigned long long ptr))             \
	X(cuIpcOpenMemHandle_v2,                                                                   \
	  (unsigned long long *ptr, struct CUipcMemHandle_st handle, unsigned flags))              \
	X(cuIpcCloseMemHandle, (unsigned long long ptr))                                           \
	X(cuMemHostAlloc, (void **ptr, size_t len, unsigned flags))                                \
	X(cuMemFreeHost, (void *ptr))                                                              \
	X(cuMemHostRegister_v2, (void *ptr, size_t len, unsigned flags))                           \
	X(cuMemHostUnregister, (void *ptr))                                                        \
	X(cuMemHostGetDevicePointer_v2, (unsigned long long *out, void *ptr, unsigned flags))      \
	X(cuPointerGetAttribute, (void *value, unsigned attribute, unsigned long long ptr))        \
	X(cuPointerSetAttribute, (const void *value, unsigned attribute, unsigned long long ptr))  \
	X(cuMemsetD8Async,                                                                         \
	  (unsigned long long ptr, unsigned char value, size_t len, struct CUstream_st *stream))   \
	X(cuMemcpyAsync, (unsigned long long dst, unsigned long long src, size_t len,              \
			  struct CUstream_st *stream))                                             \
	X(cuMemcpyHtoDAsync_v2,                                                                    \
	  (unsigned long long dst, const void *src, size_t len, struct CUstream_st *stream))       \
	X(cuStreamCreateWithPriority,                                                              \
	  (struct CUstream_st * *stream, unsigned flags, int priority))                            \
	X(cuStreamDestroy_v2, (struct CUstream_st * stream))                                       \
	X(cuStreamQuery, (struct CUstream_st * stream))                                            \
	X(cuStreamSynchronize, (struct CUstream_st * stream))                                      \
	X(cuStreamIsCapturing, (struct CUstream_st * stream, unsigned *status))                    \
	X(cuStreamWriteValue32_v2,                                                                 \
	  (struct CUstream_st * stream, unsigned long long ptr, uint32_t value, unsigned flags))

struct cuda_api {
#define GX_CUDA_MEMBER(name, args) unsigned(*name) args;
	GX_CUDA_API(GX_CUDA_MEMBER)
#undef GX_CUDA_MEMBER
};

#endif
