/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output of gxperf info, which gxperf_info.c and gxperf_info_nccl.c share. Main thread only.
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

/** info_nccl() - What NCCL and gx's plugin for it would choose in this process. Return: an enum
 * perf_status; PERF_FAILED: NCCL would not use gx here. */
int info_nccl(struct info *i);

#endif
