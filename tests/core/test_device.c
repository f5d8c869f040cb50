/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices of a host, over a directory that looks like the kernel's. With "cuda": and the GPUs of
 * a driver, real or fake.
 */
#include "kit/common_sysfs.h"

#include <limits.h>

#define IB   "class/infiniband/"
#define NET  "class/net/"
#define CARD "pci0000:3a/0000:3a:00.0/0000:3b:00."

static bool with_gpu;

static int tree_make(void **state)
{
	common_sysfs_open();
	/* RoCE at 100 Gb/s with a second port that is down; InfiniBand; soft RoCE. */
	common_sysfs_device(CARD "0", "1", IB "mlx5_1", "device");
	common_sysfs_line(IB "mlx5_1/ports/1", "state", "4: ACTIVE");
	common_sysfs_line(IB "mlx5_1/ports/1", "link_layer", "Ethernet");
	common_sysfs_line(IB "mlx5_1/ports/1", "rate", "100 Gb/sec (4X EDR)");
	common_sysfs_line(IB "mlx5_1/ports/2", "state", "1: DOWN");
	common_sysfs_line(IB "mlx5_1/ports/2", "link_layer", "InfiniBand");
	common_sysfs_line(IB "rxe0/ports/1", "state", "4: ACTIVE");
	common_sysfs_line(IB "rxe0/ports/1", "rate", "2.5 Gb/sec (1X SDR)");
	/* Interfaces: of the card, of virtio, without a device, and what is none. */
	common_sysfs_device(CARD "1", "1", NET "eth1", "device");
	common_sysfs_line(NET "eth1", "ifindex", "3");
	common_sysfs_line(NET "eth1", "carrier", "1");
	common_sysfs_line(NET "eth1", "speed", "200000");
	common_sysfs_line("devices/pci0000:00/0000:00:03.0", "numa_node", "0");
	common_sysfs_device("pci0000:00/0000:00:03.0/virtio0", "7", NET "eth0", "device");
	common_sysfs_line(NET "eth0", "ifindex", "2");
	common_sysfs_line(NET "eth0", "carrier", "0");
	common_sysfs_line(NET "eth0", "speed", "-1");
	common_sysfs_line(NET "lo", "ifindex", "1");
	common_sysfs_line(NET "lo", "carrier", "1");
	common_sysfs_line("class/net", "bonding_masters", "");
	common_sysfs_device(CARD "2", "1", "bus/pci/devices", "0000:f0:00.0");
	return 0;
}

static int tree_remove(void **state)
{
	return common_sysfs_close();
}

static const struct gx_device expected[] = {
	{.kind = GX_DEVICE_RDMA,
	 .number = 1,
	 .name = "mlx5_1",
	 .pci = "/" CARD "0",
	 .numa = 1,
	 .can = GX_DEVICE_UP | GX_DEVICE_ETHERNET,
	 .speed_mbps = 100000},
	{.kind = GX_DEVICE_RDMA, .number = 2, .name = "mlx5_1", .pci = "/" CARD "0", .numa = 1},
	{.kind = GX_DEVICE_RDMA,
	 .number = 1,
	 .name = "rxe0",
	 .numa = -1,
	 .can = GX_DEVICE_UP,
	 .speed_mbps = 2500},
	{.kind = GX_DEVICE_NIC, .name = "eth0", .pci = "/pci0000:00/0000:00:03.0"},
	{.kind = GX_DEVICE_NIC,
	 .name = "eth1",
	 .pci = "/" CARD "1",
	 .numa = 1,
	 .can = GX_DEVICE_UP,
	 .speed_mbps = 200000},
	{.kind = GX_DEVICE_NIC, .name = "lo", .numa = -1, .can = GX_DEVICE_UP},
};

static void expect(const struct gx_device *d, const struct gx_device *want)
{
	assert_int_equal(d->kind, want->kind);
	assert_int_equal(d->number, want->number);
	assert_string_equal(d->name, want->name);
	assert_string_equal(d->pci, want->pci);
	assert_int_equal(d->numa, want->numa);
	assert_int_equal(d->can, want->can);
	assert_int_equal(d->speed_mbps, want->speed_mbps);
}

static void devices__of_the_host(void **state)
{
	struct gx_device d = GX_INIT(d), none = {.size = 0};
	unsigned i;

	for (i = 0; i < GX_ARRAY_SIZE(expected); i++) {
		assert_int_equal(gx_devices(NULL, i, &d), 0);
		expect(&d, &expected[i]);
	}
	assert_int_equal(gx_devices(NULL, 0, &none), -EINVAL);
	if (!with_gpu) {
		assert_true(gx_devices(NULL, i, &d) == -ENOENT || d.kind == GX_DEVICE_GPU);
		assert_int_equal(gx_devices(NULL, UINT_MAX, &d), -ENOENT);
		return;
	}
	assert_int_equal(gx_devices(NULL, i, &d), 0);
	assert_int_equal(d.kind, GX_DEVICE_GPU);
	assert_int_equal(d.number, 0);
	assert_string_equal(d.name, "fake GPU");
	assert_string_equal(d.pci, "/" CARD "2");
	assert_int_equal(d.can, GX_DEVICE_UP);
}

/* Ports first, and a GPU that is open. */
static void devices__of_a_context(void **state)
{
	const struct gx_port_name ports[] = {{.name = "udp"}, {.name = "shm"}};
	struct gx_device d = GX_INIT(d), want = {.kind = GX_DEVICE_PORT, .numa = -1};
	struct gx_opts o = GX_INIT(o);
	struct gx *gx;

	o.ports = ports;
	o.nr_ports = 2;
	assert_int_equal(gx_open(&o, &gx), 0);
	for (unsigned i = 0; i < 2; i++) {
		want.number = i;
		want.can = GX_DEVICE_UP | GX_DEVICE_OPEN | (i ? GX_DEVICE_LOSSLESS : 0);
		strcpy(want.name, ports[i].name);
		assert_int_equal(gx_devices(gx, i, &d), 0);
		expect(&d, &want);
	}
	assert_int_equal(gx_devices(gx, 2, &d), 0);
	expect(&d, &expected[0]);
	if (with_gpu) {
		assert_int_equal(gx_gpu_open(gx, 0), 0);
		assert_int_equal(gx_devices(gx, 2 + GX_ARRAY_SIZE(expected), &d), 0);
		assert_int_equal(d.can, GX_DEVICE_UP | GX_DEVICE_OPEN);
	}
	gx_close(gx);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(devices__of_the_host),
		cmocka_unit_test(devices__of_a_context),
	};

	with_gpu = argc > 1;
	return cmocka_run_group_tests(tests, tree_make, tree_remove);
}
