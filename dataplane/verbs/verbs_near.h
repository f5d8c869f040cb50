/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Distance of a device to a GPU, by PCIe and NUMA. Any thread.
 */
#ifndef GX_VERBS_NEAR_H
#define GX_VERBS_NEAR_H

#include "gx_internal/gpu.h"

/* Nearer is higher. Each PCIe bridge that both are behind adds one to VERBS_NEAR_HOST. */
enum verbs_near {
	VERBS_NEAR_UNKNOWN,
	VERBS_NEAR_FAR,	 /* another NUMA node */
	VERBS_NEAR_NODE, /* another host bridge, of the same node as far as is known */
	VERBS_NEAR_HOST,
};

struct verbs_place {
	char path[256]; /* "/pci0000:3a/0000:3a:00.0/0000:3b:00.0"; "": not known */
	int node;	/* NUMA; -1: not known */
};

void verbs_place_device(struct verbs_place *p, const char *name); /* an RDMA device */
void verbs_place_gpu(struct verbs_place *p, const struct gx_gpu *gpu);
unsigned verbs_place_near(const struct verbs_place *a, const struct verbs_place *b);
const char *verbs_near_text(unsigned near);
void verbs_near_root(const char *dir); /* for tests: in front of /sys; "": none */

#endif
