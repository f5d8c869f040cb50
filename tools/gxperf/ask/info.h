/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of gxperf info: info.c calls info_nccl.c and info_rdma.c, and all
 * speak by info_say.c. Main thread only.
 */
#ifndef GXPERF_INFO_H
#define GXPERF_INFO_H

#include "gxperf/base/perf.h"

#define INFO_WHY_MAX 512

/* Text on stdout, or the same facts as a document. */
struct info {
	struct report *report;
	struct json_t *doc;
	bool quiet; /* no text: stdout is for the document */
};

void info_say(const struct info *i, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** info_error() - gx_error(), with names of options. */
void info_error(char why[INFO_WHY_MAX]);

/** info_gpus() - Have @gx open the GPUs of this host. @why: why there is none. Return: how many. */
unsigned info_gpus(struct gx *gx, char why[INFO_WHY_MAX]);

/** info_rdma() - The RDMA devices that link verbs would take. */
void info_rdma(struct info *i);
/** info_gids() - The GIDs of a port of an RDMA device. Return: the same for the document. */
struct json_t *info_gids(struct info *i, const struct gx_device *d);

/** info_nic() - What an interface says, and how it can receive TCP payload: added to @doc. */
void info_nic(struct info *i, const struct gx_device *d, struct json_t *doc);

/** info_nccl() - What NCCL and gx's plugin for it would choose in this process. Return: an enum
 * perf_status; PERF_FAILED: NCCL would not use gx here. */
int info_nccl(struct info *i);

#endif
