// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf info: the GIDs of RDMA devices, as the kernel lists them, and the devices that link verbs
 * takes if asked for all, or the reason why it has none. Main thread only.
 */
#include "gxperf/ask/info.h"

#include "common/json.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RDMA_GIDS_MAX 256 /* of a port */
#define RDMA_TEXT_MAX 64
#define RDMA_LINES_B  16384

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

struct json_t *info_gids(struct info *i, const struct gx_device *d)
{
	struct json_t *gids = js_array();
	char dir[256];

	snprintf(dir, sizeof(dir), "/sys/class/infiniband/%s/ports/%u", d->name, d->number);
	for (unsigned k = 0; k < RDMA_GIDS_MAX; k++)
		rdma_gid(i, dir, k, gids);
	return gids;
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
	struct json_t *doc = js_pack("{}");
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
		info_gpus(gx, why); /* a context knows the distance to those that it has opened */
		lines = rdma_lines(i, gx, near);
		gx_close(gx);
	}
	js_set(doc, "opens", js_pack("b", !ret));
	js_set(doc, "why", js_string(ret ? why : NULL));
	js_set(doc, "takes", js_string(ret ? NULL : js_text(js_at(lines, 0), "")));
	js_set(doc, "rails", lines);
	js_set(doc, "gpus", near);
	js_set(i->doc, "rdma", doc);
}
