// SPDX-License-Identifier: Apache-2.0
/*
 * Finds and loads NCCL (see nccl_lib.h).
 */
#include "gxperf/lab/nccl_lib.h"

#include "gxperf/lab/mover.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

struct nccl_lib nccl;

int nccl_try(int res, const char *what)
{
	if (!res)
		return 0;
	mover_why_set("%s: error %d: %s", what, res,
		      nccl.ncclGetLastError ? nccl.ncclGetLastError(NULL) : "");
	return -EIO;
}

static void *nccl_dlopen(const char *path)
{
	char file[1024];
	void *lib;

	for (const char *at = path; at && *at; at += strcspn(at, ":"), at += *at == ':') {
		snprintf(file, sizeof(file), "%.*s/libnccl.so.2", (int)strcspn(at, ":"), at);
		lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
		if (lib)
			return lib;
	}
	return dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
}

int nccl_load(const char *path)
{
	void *lib;

	if (nccl.lib)
		return 0;
	lib = nccl_dlopen(path);
	if (!lib) {
		mover_why_set("no NCCL: %s; name its folder with --lib-path", dlerror());
		return -ENOENT;
	}
#define NCCL_SYMBOL(fn, args)                                                                      \
	nccl.fn = (int(*) args)dlsym(lib, #fn);                                                    \
	if (!nccl.fn) {                                                                            \
		mover_why_set("this libnccl is too old: it has no " #fn);                          \
		return -ENOENT;                                                                    \
	}
	NCCL_API(NCCL_SYMBOL)
#undef NCCL_SYMBOL
	*(void **)&nccl.ncclGetLastError = dlsym(lib, "ncclGetLastError");
	if (NCCL_TRY(ncclGetVersion, &nccl.version))
		return -EIO;
	if (nccl.version < NCCL_OLDEST) {
		mover_why_set("NCCL %d is too old: 2.28 is needed", nccl.version);
		return -ENOENT;
	}
	nccl.lib = lib;
	return 0;
}
