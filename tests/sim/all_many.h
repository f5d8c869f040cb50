/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many seeds of the random load, in processes of their own; and one seed with fewer steps.
 */
#ifndef SIM_ALL_MANY_H
#define SIM_ALL_MANY_H

#include "sim/all.h"

struct many {
	bool some;
	uint64_t first, last; /* both included */
	bool first_alone;     /* end with the first failure */
	unsigned jobs;	      /* processes at a time */
	unsigned seconds;     /* 0: until all are done */
	const char *state;    /* file of seeds that are done; NULL: none */
};

/** many_run() - Return: exit status. Prints one line of JSON. */
int many_run(const struct many *m, const struct all_cfg *cfg);
/** many_shrink() - Find fewer steps with which the seed still fails, and print the command. */
int many_shrink(const struct all_cfg *cfg);

#endif
