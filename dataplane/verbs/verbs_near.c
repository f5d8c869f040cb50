/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far are a device and a GPU from each other? The kernel's names of both are paths through the
 * bridges of PCIe, from the host bridge on; the more of these they share, the nearer. Any thread.
 */
#include "verbs/verbs_near.h"

void verbs_place_gpu(struct gx_device *d, const struct gx_gpu *gpu)
{
	device_place(d, "bus/pci/devices/%s", gpu->pci[0] ? gpu->pci : "-");
}

/* Parts of the paths that are the same, from the host bridge on. */
static unsigned path_shared(const char *a, const char *b)
{
	unsigned n = 0;

	for (size_t i = 0; a[i] == b[i]; i++) {
		bool ends = !a[i + 1] || a[i + 1] == '/', other = !b[i + 1] || b[i + 1] == '/';

		if (!a[i])
			break;
		n += i && ends && other;
	}
	return n;
}

unsigned verbs_place_near(const struct gx_device *a, const struct gx_device *b)
{
	bool has_paths = a->pci[0] && b->pci[0], has_nodes = a->numa >= 0 && b->numa >= 0;
	unsigned shared = has_paths ? path_shared(a->pci, b->pci) : 0;

	if (shared)
		return VERBS_NEAR_HOST + shared - 1;
	if (!has_nodes)
		return has_paths ? VERBS_NEAR_NODE : VERBS_NEAR_UNKNOWN;
	return a->numa == b->numa ? VERBS_NEAR_NODE : VERBS_NEAR_FAR;
}

const char *verbs_near_text(unsigned near)
{
	static const char *const text[] = {
		[VERBS_NEAR_UNKNOWN] = "distance not known",
		[VERBS_NEAR_FAR] = "another NUMA node",
		[VERBS_NEAR_NODE] = "another PCIe host bridge",
		[VERBS_NEAR_HOST] = "the same PCIe host bridge",
	};

	return near > VERBS_NEAR_HOST ? "behind the same PCIe bridge" : text[near];
}
