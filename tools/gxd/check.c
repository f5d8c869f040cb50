// SPDX-License-Identifier: Apache-2.0
/*
 * gxd check (see check.h). It reads what gxd would read: the options, the keys, the users, the
 * address, how much memory is free. It opens no port and no GPU, so a gxd that runs is not disturbed.
 */
#include "gxd/check.h"
#include "gxd/opts.h"

#include "common/flag.h"

#include <gx/auth.h>
#include <gx/gx.h>

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECK_MIB_B 1048576ull

static unsigned check_bad; /* findings so far */

static void __attribute__((format(printf, 1, 2))) bad(const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fprintf(stderr, "gxd check: %s\n", flag_say(text));
	check_bad++;
}

/* Is the host part of --listen an address of this host? */
static void check_listen(const struct gxd_opts *o)
{
	char host[OPT_HOST_MAX];
	int ret = opt_bind(o->listen, true, host), fd;
	struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *list;

	printf("listen   %s\n", o->listen);
	if (!opt_port_ok(o->listen))
		bad("--listen: '%s': a port number is 0 to 65535", o->listen);
	if (ret && ret != -ENOENT) /* -ENOENT: any address */
		bad("--listen: '%s' is no HOST:PORT of this host", o->listen);
	if (ret || getaddrinfo(host, NULL, &hints, &list))
		return;
	fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, list->ai_addr, list->ai_addrlen))
		bad("--listen: %s: %s", host,
		    errno == EADDRNOTAVAIL ? "no interface of this host has that address"
					   : strerror(errno));
	if (fd >= 0)
		close(fd);
	freeaddrinfo(list);
}

/* Free pages of the host, huge ones included. */
static uint64_t mem_free_b(void)
{
	unsigned long long kib, avail = 0, huge = 0, huge_kib = 0;
	FILE *f = fopen("/proc/meminfo", "re");
	char line[256];

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
			avail = kib;
		else if (sscanf(line, "HugePages_Free: %llu", &kib) == 1)
			huge = kib;
		else if (sscanf(line, "Hugepagesize: %llu", &kib) == 1)
			huge_kib = kib;
	}
	if (f)
		fclose(f);
	return (avail + huge * huge_kib) * 1024;
}

static bool gpu_there(int ordinal)
{
	struct gx_device d = GX_INIT(d);

	for (unsigned i = 0; !gx_devices(NULL, i, &d); i++)
		if (d.kind == GX_DEVICE_GPU && d.number == (unsigned)ordinal)
			return true;
	return false;
}

static void check_memory(const struct gxd_opts *o)
{
	uint64_t host_b = 0, free_b = mem_free_b();

	for (unsigned i = 0; i < o->nr_regions; i++) {
		const struct opt_mem *m = &o->regions[i].opt;
		bool on_gpu = m->kind == GX_MEM_CUDA;

		host_b += on_gpu ? 0 : m->len;
		printf("memory   %s: %llu MiB of %s", m->name,
		       (unsigned long long)(m->len / CHECK_MIB_B), on_gpu ? "GPU " : "the host\n");
		if (on_gpu)
			printf("%d\n", m->device);
		if (on_gpu && !gpu_there(m->device))
			bad("--mem %s: this host has no GPU %d", m->name, m->device);
	}
	if (host_b > free_b)
		bad("--mem: %llu MiB of the host in all, and %llu MiB are free",
		    (unsigned long long)(host_b / CHECK_MIB_B),
		    (unsigned long long)(free_b / CHECK_MIB_B));
}

static void check_key(const char *path)
{
	struct gx_auth_key key = GX_INIT(key);

	if (gx_auth_read(path, &key))
		bad("--key %s: %s", path, gx_error());
	else
		printf("key      %s: %s%s; regions %s; from %s\n", key.name,
		       key.access & GX_ACCESS_GET || !key.access ? "get" : "",
		       !key.access || key.access == (GX_ACCESS_PUT | GX_ACCESS_GET) ? ", put"
		       : key.access & GX_ACCESS_PUT				    ? "put"
										    : "",
		       key.regions[0] ? key.regions : "all", path);
	explicit_bzero(&key, sizeof(key));
}

static void check_keys_of(const char *folder)
{
	DIR *dir = opendir(folder);
	struct dirent *e;
	unsigned n = 0;

	while (dir && (e = readdir(dir))) {
		size_t len = strlen(e->d_name);
		char path[PATH_MAX];

		if (len <= 4 || e->d_name[0] == '.' || strcmp(e->d_name + len - 4, ".key"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
		check_key(path);
		n++;
	}
	if (!dir)
		bad("--key %s: %s", folder, strerror(errno));
	else if (!n)
		bad("--key %s: the folder has no *.key", folder);
	if (dir)
		closedir(dir);
}

static void check_keys(const struct gxd_opts *o)
{
	struct stat st;

	for (unsigned i = 0; i < o->gx.nr_keys; i++) {
		const char *path = o->gx.keys[i];

		if (!strncmp(path, "fd:", 3))
			printf("key      %s: read at the start\n", path);
		else if (!stat(path, &st) && S_ISDIR(st.st_mode))
			check_keys_of(path);
		else
			check_key(path);
	}
	if (!o->gx.nr_keys)
		printf("peers    of other hosts: %s\n",
		       o->gx.top.insecure ? "all are served, in clear" : "none (no --key)");
}

int gxd_check(int argc, char **argv)
{
	static struct gxd_opts o;
	char cpus[256];
	int ret;

	argp_err_exit_status = GXD_USAGE;
	ret = gxd_opts_take(&gxd_check_argp, argc, argv, &o);
	if (ret)
		return ret;
	check_listen(&o);
	opt_cpus_text(&o.cpus, cpus, sizeof(cpus));
	printf("cores    on CPUs %s\n", cpus);
	for (unsigned i = 0; i < o.ports.nr; i++)
		printf("port     %s%s%s\n", o.ports.v[i].name, o.ports.v[i].device ? " " : "",
		       o.ports.v[i].device ? o.ports.v[i].device : "");
	check_memory(&o);
	check_keys(&o);
	if (gxd_opts_nobody(&o))
		bad("%s", gxd_opts_nobody(&o));
	if (o.user && !getpwnam(o.user) &&
	    (strspn(o.user, "0123456789") != strlen(o.user) ||
	     !getpwuid((uid_t)strtoul(o.user, NULL, 10))))
		bad("--user %s: this host has no such user", o.user);
	if (fflush(stdout))
		return GXD_FAILED;
	return check_bad ? GXD_FAILED : GXD_OK;
}
