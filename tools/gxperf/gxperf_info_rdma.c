// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf info: the RDMA devices of this host, as the kernel lists them, and those that link verbs
 * takes if asked for all, or the reason why it has none. Main thread only.
 */
#include "gxperf/gxperf_info.h"

#include "common/json.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RDMA_DEVICES   "/sys/class/infiniband"
#define RDMA_PORTS_MAX 16  /* of a device */
#define RDMA_GIDS_MAX  256 /* of a port */
#define RDMA_TEXT_MAX  64
#define RDMA_LINES_B   16384
#define RDMA_GPUS_MAX  16
#define RDMA_GPU_TRY_B (2u << 20)

/* The first line of a file below @dir. Return: there is one, and it is not empty. */
static bool rdma_read(const char *dir, const char *name, char text[RDMA_TEXT_MAX])
{
	char path[512];
	FILE *f;

	text[0] = 0;
	if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path))
		return false;
	f = fopen(path, "re");
	if (!f)
		return false;
	if (!fgets(text, RDMA_TEXT_MAX, f))
		text[0] = 0;
	fclose(f);
	text[strcspn(text, "\n")] = 0;
	return text[0] != 0;
}

static void rdma_gid(struct info *i, const char *port, unsigned index, struct json_t *gids)
{
	char name[64], gid[RDMA_TEXT_MAX], type[RDMA_TEXT_MAX], netdev[RDMA_TEXT_MAX];
	struct json_t *one;
	struct in6_addr ip;

	snprintf(name, sizeof(name), "gids/%u", index);
	if (!rdma_read(port, name, gid) || strspn(gid, "0:") == strlen(gid))
		return;
	if (inet_pton(AF_INET6, gid, &ip) == 1)
		inet_ntop(AF_INET6, &ip, gid, sizeof(gid));
	snprintf(name, sizeof(name), "gid_attrs/types/%u", index);
	rdma_read(port, name, type);
	snprintf(name, sizeof(name), "gid_attrs/ndevs/%u", index);
	rdma_read(port, name, netdev);
	info_say(i, "  GID %u: %s%s%s%s%s\n", index, gid, type[0] ? ", " : "", type,
		 netdev[0] ? ", " : "", netdev);
	one = js_pack("{s:i}", "index", (int)index);
	js_set(one, "gid", js_string(gid));
	js_set(one, "type", js_string(type[0] ? type : NULL));
	js_set(one, "netdev", js_string(netdev[0] ? netdev : NULL));
	js_append(gids, one);
}

static void rdma_port(struct info *i, const char *device, unsigned port, struct json_t *ports)
{
	char dir[256], state[RDMA_TEXT_MAX], layer[RDMA_TEXT_MAX], rate[RDMA_TEXT_MAX];
	struct json_t *one, *gids;

	if (snprintf(dir, sizeof(dir), RDMA_DEVICES "/%s/ports/%u", device, port) >=
		    (int)sizeof(dir) ||
	    !rdma_read(dir, "state", state))
		return;
	rdma_read(dir, "link_layer", layer);
	rdma_read(dir, "rate", rate);
	info_say(i, "RDMA %s port %u: state %s, %s, %s\n", device, port, state, layer, rate);
	one = js_pack("{s:i}", "port", (int)port);
	gids = js_array();
	for (unsigned k = 0; k < RDMA_GIDS_MAX; k++)
		rdma_gid(i, dir, k, gids);
	js_set(one, "device", js_string(device));
	js_set(one, "state", js_string(state));
	js_set(one, "link_layer", js_string(layer));
	js_set(one, "rate", js_string(rate));
	js_set(one, "gids", gids);
	js_append(ports, one);
}

static struct json_t *rdma_ports(struct info *i)
{
	struct json_t *ports = js_array();
	DIR *dir = opendir(RDMA_DEVICES);
	struct dirent *e;

	while (dir && (e = readdir(dir)))
		for (unsigned p = 1; e->d_name[0] != '.' && p <= RDMA_PORTS_MAX; p++)
			rdma_port(i, e->d_name, p, ports);
	if (dir)
		closedir(dir);
	return ports;
}

/* A context knows the distance to the GPUs that it has opened. */
static void rdma_gpus(struct gx *gx)
{
	struct gx_mem *mem;

	for (int gpu = 0; gpu < RDMA_GPUS_MAX; gpu++) {
		if (gx_mem_alloc(gx, GX_MEM_CUDA, gpu, RDMA_GPU_TRY_B, &mem))
			break;
		gx_mem_free(mem);
	}
}

/* The lines of gx_describe() on the devices; on GPUs: in @near. */
static struct json_t *rdma_lines(struct info *i, struct gx *gx, struct json_t *near)
{
	static const char memory[] = "memory of ";
	char *text = calloc(1, RDMA_LINES_B), *save = NULL, *line = NULL;
	struct json_t *lines = js_array();

	if (text && gx_describe(gx, text, RDMA_LINES_B) >= 0)
		line = strtok_r(text, "\n", &save);
	for (; line; line = strtok_r(NULL, "\n", &save)) {
		if (strncmp(line, "verbs ", 6) != 0)
			continue;
		line += 6 + strspn(line + 6, " ");
		if (!strncmp(line, memory, sizeof(memory) - 1)) {
			info_say(i, "link verbs: %s\n", line);
			js_append(near, js_string(line));
			continue;
		}
		info_say(i, "link verbs: yes, where it is asked for: %s\n", line);
		js_append(lines, js_string(line));
	}
	free(text);
	return lines;
}

void info_rdma(struct info *i)
{
	static const struct gx_port_name port = {.name = "shm"};
	struct json_t *doc = js_pack("{}"), *ports = rdma_ports(i);
	struct gx_opts opts = GX_INIT(opts);
	struct json_t *lines = js_array(), *near = js_array();
	char why[INFO_WHY_MAX];
	struct gx *gx = NULL;
	int ret;

	opts.ports = &port;
	opts.nr_ports = 1;
	opts.verbs = GX_WITH(gx_verbs_opts, .all = true);
	ret = gx_open(&opts, &gx);
	if (ret) {
		info_error(why);
		info_say(i, "link verbs: no: %s\n", why);
	} else {
		js_free(lines);
		rdma_gpus(gx);
		lines = rdma_lines(i, gx, near);
		gx_close(gx);
	}
	js_set(doc, "opens", js_pack("b", !ret));
	js_set(doc, "why", js_string(ret ? why : NULL));
	js_set(doc, "takes", js_string(ret ? NULL : js_text(js_at(lines, 0), "")));
	js_set(doc, "rails", lines);
	js_set(doc, "gpus", near);
	js_set(doc, "ports", ports);
	js_set(i->doc, "rdma", doc);
}
