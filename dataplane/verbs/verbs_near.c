/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far are a device and a GPU from each other? The kernel's names of both are paths through the
 * bridges of PCIe, from the host bridge on; the more of these they share, the nearer. Any thread.
 */
#include "verbs/verbs_near.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *root = "";

void verbs_near_root(const char *dir)
{
	root = dir;
}

static int node_read(const char *dir)
{
	char path[PATH_MAX];
	int node = -1;
	FILE *f;

	if (snprintf(path, sizeof(path), "%s/numa_node", dir) >= (int)sizeof(path))
		return -1;
	f = fopen(path, "re");
	if (!f)
		return -1;
	if (fscanf(f, "%d", &node) != 1)
		node = -1;
	fclose(f);
	return node;
}

static void place_find(struct verbs_place *p, const char *link)
{
	char full[PATH_MAX];
	const char *at;

	*p = (struct verbs_place){.node = node_read(link)};
	at = realpath(link, full) ? strstr(full, "/pci") : NULL;
	if (at && strlen(at) < sizeof(p->path))
		strcpy(p->path, at);
}

void verbs_place_device(struct verbs_place *p, const char *name)
{
	char link[PATH_MAX];

	snprintf(link, sizeof(link), "%s/sys/class/infiniband/%s/device", root, name);
	place_find(p, link);
}

void verbs_place_gpu(struct verbs_place *p, const struct gx_gpu *gpu)
{
	char link[PATH_MAX];

	*p = (struct verbs_place){.node = -1};
	if (!gpu->pci[0])
		return;
	snprintf(link, sizeof(link), "%s/sys/bus/pci/devices/%s", root, gpu->pci);
	place_find(p, link);
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

unsigned verbs_place_near(const struct verbs_place *a, const struct verbs_place *b)
{
	bool has_paths = a->path[0] && b->path[0], has_nodes = a->node >= 0 && b->node >= 0;
	unsigned shared = has_paths ? path_shared(a->path, b->path) : 0;

	if (shared)
		return VERBS_NEAR_HOST + shared - 1;
	if (!has_nodes)
		return has_paths ? VERBS_NEAR_NODE : VERBS_NEAR_UNKNOWN;
	return a->node == b->node ? VERBS_NEAR_NODE : VERBS_NEAR_FAR;
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
