// SPDX-License-Identifier: Apache-2.0
/*
 * The devices of this host, in one description for all kinds: as the kernel's sysfs and NVIDIA's
 * driver report. Nothing is opened or kept. Any thread.
 */
#include "core/core.h"

#include "gx_internal/port.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_B 64

static const char *root = "";

void device_root(const char *dir)
{
	root = dir;
}

/* The first line of a file. Return: it is not empty. */
static bool line_read(const char *dir, const char *name, char text[LINE_B])
{
	char path[PATH_MAX];
	FILE *f;

	text[0] = 0;
	if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path))
		return false;
	f = fopen(path, "re");
	if (!f)
		return false;
	if (!fgets(text, LINE_B, f)) /* EINVAL, where the driver does not report it */
		text[0] = 0;
	fclose(f);
	text[strcspn(text, "\n")] = 0;
	return text[0];
}

void device_place(struct gx_device *d, const char *fmt, ...)
{
	char link[PATH_MAX], full[PATH_MAX], text[LINE_B], *pci, *last;
	int n = snprintf(link, sizeof(link), "%s/sys/", root);
	unsigned part[4];
	va_list ap;

	d->numa = -1;
	d->pci[0] = 0;
	va_start(ap, fmt);
	vsnprintf(link + n, sizeof(link) - (size_t)n, fmt, ap);
	va_end(ap);
	if (!realpath(link, full))
		return;
	pci = strstr(full, "/pci");
	/* What a function of PCI holds ("virtio0") is at its place. */
	while (pci && (last = strrchr(pci, '/')) != pci &&
	       sscanf(last, "/%x:%x:%x.%x", &part[0], &part[1], &part[2], &part[3]) != 4)
		*last = 0;
	if (pci && strlen(pci) < sizeof(d->pci))
		strcpy(d->pci, pci);
	if (line_read(full, "numa_node", text))
		d->numa = atoi(text);
}

static void port_look(struct gx_device *d, const struct gx_port_slot *slot)
{
	const char *at = strchr(slot->device, ':'); /* "dpdk:3b:00.0" */
	bool has_domain = at && strchr(at + 1, ':') != strrchr(at, ':');

	snprintf(d->name, sizeof(d->name), "%s", slot->device);
	device_place(d, "bus/pci/devices/%s%s", has_domain ? "" : "0000:", at ? at + 1 : "");
	d->can = GX_DEVICE_UP | GX_DEVICE_OPEN;
	d->can |= slot->port->caps.flags & GX_PORT_LOSSLESS ? GX_DEVICE_LOSSLESS : 0;
	d->can |= slot->port->caps.flags & GX_PORT_RX_GPU ? GX_DEVICE_TO_GPU : 0;
}

static void rdma_look(struct gx_device *d, const char *dir)
{
	char text[LINE_B];

	d->kind = GX_DEVICE_RDMA;
	sscanf(dir + strlen(root), "/sys/class/infiniband/%95[^/]/ports/%u", d->name, &d->number);
	if (line_read(dir, "state", text) && atoi(text) == 4) /* "4: ACTIVE" */
		d->can |= GX_DEVICE_UP;
	if (line_read(dir, "link_layer", text) && !strcmp(text, "Ethernet"))
		d->can |= GX_DEVICE_ETHERNET;
	if (line_read(dir, "rate", text)) /* "2.5 Gb/sec (1X SDR)" */
		d->speed_mbps = (uint64_t)(strtod(text, NULL) * 1000);
	device_place(d, "class/infiniband/%s/device", d->name);
}

static void interface_look(struct gx_device *d, const char *dir)
{
	char text[LINE_B];

	d->kind = GX_DEVICE_NIC;
	sscanf(dir + strlen(root), "/sys/class/net/%95[^/]", d->name);
	if (line_read(dir, "carrier", text) && text[0] == '1')
		d->can |= GX_DEVICE_UP;
	if (line_read(dir, "speed", text) && atoll(text) > 0)
		d->speed_mbps = (uint64_t)atoll(text);
	device_place(d, "class/net/%s/device", d->name);
}

static bool gpu_look(struct gx_device *d, const struct gx *gx, unsigned i)
{
	struct gx_gpu gpu = {0};

	if (i >= GX_GPUS_MAX || gx_gpu_cuda_look((int)i, &gpu))
		return false;
	d->kind = GX_DEVICE_GPU;
	d->number = i;
	snprintf(d->name, sizeof(d->name), "%s", gpu.name);
	device_place(d, "bus/pci/devices/%s", gpu.pci[0] ? gpu.pci : "-");
	if (!d->pci[0] && gpu.pci[0]) /* the kernel shows it to others */
		snprintf(d->pci, sizeof(d->pci), "/%s", gpu.pci);
	d->can = GX_DEVICE_UP | (gx && gx->gpu[i] ? GX_DEVICE_OPEN : 0);
	return true;
}

/* Look at folder *@i of those in /sys/class that match @folders; where there are fewer, @i counts
 * them down. */
static bool class_look(struct gx_device *d, const char *folders, unsigned *i,
		       void (*look)(struct gx_device *d, const char *dir))
{
	char pattern[PATH_MAX];
	glob_t all;
	bool found;

	snprintf(pattern, sizeof(pattern), "%s/sys/class/%s", root, folders);
	if (glob(pattern, GLOB_ONLYDIR, NULL, &all))
		return false;
	found = *i < all.gl_pathc;
	if (found)
		look(d, all.gl_pathv[*i]);
	else
		*i -= (unsigned)all.gl_pathc;
	globfree(&all);
	return found;
}

GX_EXPORT int gx_devices(struct gx *gx, unsigned index, struct gx_device *out)
{
	struct gx_device d = {.numa = -1};
	unsigned nr_ports = gx ? gx->nr_ports : 0, i = index - nr_ports;

	if (index < nr_ports) {
		d.number = index;
		port_look(&d, &gx->port[index]);
	} else if (!class_look(&d, "infiniband/*/ports/*", &i, rdma_look) &&
		   !class_look(&d, "net/*", &i, interface_look) && !gpu_look(&d, gx, i)) {
		return gx_fail(-ENOENT, "there are no more devices");
	}
	return core_struct_give("gx_device", &d, sizeof(d), out);
}
