/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of gxperf info: gxperf_info.c calls gxperf_info_nccl.c and gxperf_info_rdma.c, and all
 * speak by gxperf_info_say.c. Main thread only.
 */
#ifndef GXPERF_INFO_H
#define GXPERF_INFO_H

#include "gxperf/gxperf.h"

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

/** info_rdma() - The RDMA devices of this host, and the one that link verbs would take. */
void info_rdma(struct info *i);

/** info_nics() - The network interfaces of this host, and how each can receive TCP payload. */
void info_nics(struct info *i);

/** info_nccl() - What NCCL and gx's plugin for it would choose in this process. Return: an enum
 * perf_status; PERF_FAILED: NCCL would not use gx here. */
int info_nccl(struct info *i);

#endif
