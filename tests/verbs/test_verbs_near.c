/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Distance of RDMA devices to GPUs, over a directory that looks like the kernel's: two devices behind
 * bridges of the GPU's host bridge, one of its NUMA node, one of another node, and one without PCIe.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kit/common_sysfs.h"
#include "verbs/verbs_dev.h"

#include <cmocka.h>

#define GPU	 "0000:03:00.0"
#define GPU_PATH "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/" GPU

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

static int tree_make(void **state)
{
	char dir[128], node[16];

	common_sysfs_open();
	common_sysfs_device(GPU_PATH, "0", "bus/pci/devices", GPU);
	for (unsigned i = 0; i < DEVICES; i++) {
		snprintf(dir, sizeof(dir), "class/infiniband/%s", devices[i].name);
		snprintf(node, sizeof(node), "%d", devices[i].node);
		common_sysfs_device(devices[i].path, node, dir, "device");
	}
	return 0;
}

static int tree_remove(void **state)
{
	return common_sysfs_close();
}

static void place__near(void **state)
{
	struct gx_gpu gpu = {.pci = GPU};
	struct gx_device of_gpu, place;

	verbs_place_gpu(&of_gpu, &gpu);
	assert_string_equal(of_gpu.pci, "/" GPU_PATH);
	for (unsigned i = 0; i < DEVICES; i++) {
		device_place(&place, "class/infiniband/%s/device", devices[i].name);
		assert_int_equal(place.numa, devices[i].node);
		assert_int_equal(verbs_place_near(&place, &of_gpu), devices[i].near);
		assert_int_equal(verbs_place_near(&of_gpu, &place), devices[i].near);
		assert_string_equal(verbs_near_text(devices[i].near), devices[i].text);
	}
}

/* A GPU, or a device, that the kernel does not know. */
static void place__not_known(void **state)
{
	struct gx_gpu gpu = {.pci = "0000:ff:00.0"}, none = {.device = 0};
	struct gx_device of_gpu, place;

	device_place(&place, "class/infiniband/%s/device", "mlx5_0");
	verbs_place_gpu(&of_gpu, &gpu);
	assert_int_equal(verbs_place_near(&place, &of_gpu), VERBS_NEAR_UNKNOWN);
	verbs_place_gpu(&of_gpu, &none);
	assert_int_equal(verbs_place_near(&place, &of_gpu), VERBS_NEAR_UNKNOWN);
	device_place(&place, "class/infiniband/%s/device", "mlx5_9");
	assert_string_equal(place.pci, "");
	assert_int_equal(place.numa, -1);
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
		device_place(&dev[i].place, "class/infiniband/%s/device", devices[i].name);
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
