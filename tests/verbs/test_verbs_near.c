/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Distance of RDMA devices to GPUs, over a directory that looks like the kernel's: two devices behind
 * bridges of the GPU's host bridge, one of its NUMA node, one of another node, and one without PCIe.
 */
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "verbs/verbs_dev.h"

#include <cmocka.h>

#define GPU	 "0000:03:00.0"
#define GPU_PATH "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/" GPU

static char top[] = "/tmp/gx-near-XXXXXX";

/* In the order of their distance. */
static const struct {
	const char *name, *path;
	int node;
	unsigned near;
	const char *text;
} devices[] = {
	{"mlx5_0", "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", 0,
	 VERBS_NEAR_HOST + 2, "behind the same PCIe bridge"},
	{"mlx5_1", "pci0000:00/0000:00:01.0/0000:05:00.0", 0, VERBS_NEAR_HOST + 1,
	 "behind the same PCIe bridge"},
	{"mlx5_2", "pci0000:00/0000:00:02.0/0000:06:00.0", 0, VERBS_NEAR_HOST,
	 "the same PCIe host bridge"},
	{"mlx5_3", "pci0000:0/0000:00:01.0/0000:07:00.0", 0, VERBS_NEAR_NODE,
	 "another PCIe host bridge"},
	{"mlx5_4", "pci0000:80/0000:80:01.0/0000:81:00.0", 1, VERBS_NEAR_FAR, "another NUMA node"},
	{"rxe0", "virtual/net/veth0", -1, VERBS_NEAR_UNKNOWN, "distance not known"},
};
#define DEVICES 6

static void make_dirs(const char *path)
{
	char part[PATH_MAX];

	for (size_t i = 1; i <= strlen(path); i++) {
		if (path[i] && path[i] != '/')
			continue;
		snprintf(part, sizeof(part), "%.*s", (int)i, path);
		assert_true(!mkdir(part, 0700) || errno == EEXIST);
	}
}

/* One of the kernel's devices, and @link to it. */
static void device_make(const char *path, int node, const char *dir, const char *link)
{
	char at[PATH_MAX], from[PATH_MAX], file[PATH_MAX + 16];
	FILE *f;

	snprintf(at, sizeof(at), "%s/sys/devices/%s", top, path);
	make_dirs(at);
	snprintf(file, sizeof(file), "%s/numa_node", at);
	f = fopen(file, "we");
	assert_non_null(f);
	fprintf(f, "%d\n", node);
	fclose(f);
	snprintf(from, sizeof(from), "%s/sys/%s", top, dir);
	make_dirs(from);
	snprintf(from, sizeof(from), "%s/sys/%s/%s", top, dir, link);
	assert_int_equal(symlink(at, from), 0);
}

static int tree_make(void **state)
{
	char dir[128];

	assert_non_null(mkdtemp(top));
	device_make(GPU_PATH, 0, "bus/pci/devices", GPU);
	for (unsigned i = 0; i < DEVICES; i++) {
		snprintf(dir, sizeof(dir), "class/infiniband/%s", devices[i].name);
		device_make(devices[i].path, devices[i].node, dir, "device");
	}
	verbs_near_root(top);
	return 0;
}

static int tree_remove(void **state)
{
	char command[128];

	verbs_near_root("");
	snprintf(command, sizeof(command), "rm -r %s", top);
	return system(command);
}

static void place__near(void **state)
{
	struct gx_gpu gpu = {.pci = GPU};
	struct verbs_place of_gpu, place;

	verbs_place_gpu(&of_gpu, &gpu);
	assert_string_equal(of_gpu.path, "/" GPU_PATH);
	for (unsigned i = 0; i < DEVICES; i++) {
		verbs_place_device(&place, devices[i].name);
		assert_int_equal(place.node, devices[i].node);
		assert_int_equal(verbs_place_near(&place, &of_gpu), devices[i].near);
		assert_int_equal(verbs_place_near(&of_gpu, &place), devices[i].near);
		assert_string_equal(verbs_near_text(devices[i].near), devices[i].text);
	}
}

/* A GPU, or a device, that the kernel does not know. */
static void place__not_known(void **state)
{
	struct gx_gpu gpu = {.pci = "0000:ff:00.0"}, none = {.device = 0};
	struct verbs_place of_gpu, place;

	verbs_place_device(&place, "mlx5_0");
	verbs_place_gpu(&of_gpu, &gpu);
	assert_int_equal(verbs_place_near(&place, &of_gpu), VERBS_NEAR_UNKNOWN);
	verbs_place_gpu(&of_gpu, &none);
	assert_int_equal(verbs_place_near(&place, &of_gpu), VERBS_NEAR_UNKNOWN);
	verbs_place_device(&place, "mlx5_9");
	assert_string_equal(place.path, "");
	assert_int_equal(place.node, -1);
}

/* Whoever is nearest of those that have the memory. */
static void rails__near(void **state)
{
	struct gx_gpu gpu = {.device = 2, .pci = GPU}, none = {.device = 0};
	struct verbs_dev *dev = calloc(DEVICES, sizeof(*dev));
	struct verbs_rails r = {.nr = DEVICES};
	char text[1024];

	assert_non_null(dev);
	for (unsigned i = 0; i < DEVICES; i++) {
		r.dev[i] = &dev[DEVICES - 1 - i]; /* the far ones first */
		strcpy(dev[i].name, devices[i].name);
		verbs_place_device(&dev[i].place, devices[i].name);
	}
	for (unsigned i = 0; i < DEVICES; i++)
		assert_int_equal(verbs_rails_near(&r, &gpu, (2u << i) - 1), 1u << i);
	assert_int_equal(verbs_rails_near(&r, &none, 0x15), 0x15);
	r.nr = 2;
	assert_true(verbs_rails_near_text(&r, &gpu, text, sizeof(text)) > 0);
	assert_string_equal(text,
			    "verbs    memory of cuda:2 at " GPU
			    ": by mlx5_4 (another NUMA node); where none of these works: rxe0 "
			    "(distance not known)");
	assert_true(verbs_rails_near_text(&r, &gpu, text, 20) > 20);
	free(dev);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(place__near),
		cmocka_unit_test(place__not_known),
		cmocka_unit_test(rails__near),
	};

	return cmocka_run_group_tests(tests, tree_make, tree_remove);
}
