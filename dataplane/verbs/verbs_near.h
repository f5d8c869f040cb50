/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Distance of a device to a GPU, by PCIe and NUMA. Any thread.
 */
#ifndef GX_VERBS_NEAR_H
#define GX_VERBS_NEAR_H

#include "core/core.h"

/* Nearer is higher. Each PCIe bridge that both are behind adds one to VERBS_NEAR_HOST. */
enum verbs_near {
	VERBS_NEAR_UNKNOWN,
	VERBS_NEAR_FAR,	 /* another NUMA node */
	VERBS_NEAR_NODE, /* another host bridge, of the same node as far as is known */
	VERBS_NEAR_HOST,
};

void verbs_place_gpu(struct gx_device *d, const struct gx_gpu *gpu); /* device_place() of @gpu */
unsigned verbs_place_near(const struct gx_device *a, const struct gx_device *b);
const char *verbs_near_text(unsigned near);

#endif
