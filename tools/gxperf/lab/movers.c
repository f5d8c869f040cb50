// SPDX-License-Identifier: Apache-2.0
/*
 * All ways by name. The sub-command as a way has none. Main thread only.
 */
#include "gxperf/lab/mover.h"

#include <stdio.h>
#include <string.h>

static const struct way_ops *const ways[] = {
	&way_gx, &way_peer, &way_nccl, &way_nccl_zero, &way_unpack, &way_unpack_resident, &way_h2d};

#define NR_WAYS (sizeof(ways) / sizeof(ways[0]))

const struct way_ops *way_find(const char *name)
{
	for (unsigned i = 0; i < NR_WAYS; i++)
		if (!strcmp(ways[i]->name, name))
			return ways[i];
	return NULL;
}

const char *way_names(void)
{
	static char text[256];
	size_t at = 0;

	for (unsigned i = 0; i < NR_WAYS && at < sizeof(text); i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", i ? ", " : "",
				       ways[i]->name);
	return text;
}
