// SPDX-License-Identifier: Apache-2.0
/*
 * All movers by name. The sub-command as a mover has none. Main thread only.
 */
#include "gxperf/lab/mover.h"

#include <stdio.h>
#include <string.h>

static const struct mover_ops *const movers[] = {&mover_gx,	&mover_peer,
						 &mover_nccl,	&mover_nccl_zero,
						 &mover_unpack, &mover_unpack_resident,
						 &mover_h2d};

#define NR_MOVERS (sizeof(movers) / sizeof(movers[0]))

const struct mover_ops *mover_find(const char *name)
{
	for (unsigned i = 0; i < NR_MOVERS; i++)
		if (!strcmp(movers[i]->name, name))
			return movers[i];
	return NULL;
}

const char *mover_names(void)
{
	static char text[256];
	size_t at = 0;

	for (unsigned i = 0; i < NR_MOVERS && at < sizeof(text); i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", i ? ", " : "",
				       movers[i]->name);
	return text;
}
