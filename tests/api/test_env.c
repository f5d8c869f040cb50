/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which address of this host is told to others (gx/env.h)? The interfaces are the test's own: it takes
 * the place of getifaddrs(3), and of the files that say their speed.
 */
#include "kit/common_gx.h"

#include <gx/env.h>
#include <gx/gx.h>
#include <gx/log.h>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UP (IFF_UP | IFF_RUNNING)

struct iface {
	const char *name, *addr;
	unsigned flags;
	long mbps;
};

static const struct iface *ifaces;
static struct ifaddrs list[16];
static struct sockaddr_storage addrs[16];

__attribute__((visibility("default"))) int getifaddrs(struct ifaddrs **out)
{
	unsigned n = 0;

	if (!ifaces) {
		errno = EMFILE;
		return -1;
	}
	for (const struct iface *i = ifaces; i->name; i++, n++) {
		struct sockaddr_in *v4 = (struct sockaddr_in *)&addrs[n];
		struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&addrs[n];

		memset(&addrs[n], 0, sizeof(addrs[n]));
		list[n] = (struct ifaddrs){.ifa_next = i[1].name ? &list[n + 1] : NULL,
					   .ifa_name = (char *)i->name,
					   .ifa_flags = i->flags};
		if (!i->addr)
			continue;
		list[n].ifa_addr = (struct sockaddr *)&addrs[n];
		v4->sin_family = AF_INET;
		if (inet_pton(AF_INET, i->addr, &v4->sin_addr) == 1)
			continue;
		v6->sin6_family = AF_INET6;
		assert_int_equal(inet_pton(AF_INET6, i->addr, &v6->sin6_addr), 1);
	}
	*out = list;
	return 0;
}

__attribute__((visibility("default"))) void freeifaddrs(struct ifaddrs *unused)
{
	assert_ptr_equal(unused, list);
}

__attribute__((visibility("default"))) FILE *fopen(const char *path, const char *mode)
{
	static FILE *(*next)(const char *, const char *);
	static char text[32];
	char name[64];

	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "fopen");
	for (const struct iface *i = ifaces; i && i->name; i++) {
		snprintf(name, sizeof(name), "/sys/class/net/%s/speed", i->name);
		if (strcmp(name, path))
			continue;
		snprintf(text, sizeof(text), "%ld\n", i->mbps);
		return i->mbps ? fmemopen(text, strlen(text), "r") : NULL;
	}
	return next(path, mode);
}

static const struct iface usual[] = {{"lo", "127.0.0.1", UP | IFF_LOOPBACK, 0},
				     {"lo", "::1", UP | IFF_LOOPBACK, 0},
				     {"docker0", "172.17.0.1", UP, 10000},
				     {"br-1234", "172.18.0.1", UP, 10000},
				     {"down0", "10.9.0.1", IFF_UP, 400000}, /* no cable */
				     {"none0", NULL, UP, 0},
				     {"mgmt0", "2001:db8::1", UP, 1000},
				     {"mgmt0", "192.168.7.9", UP, 1000},
				     {"data0", "fe80::1", UP, 100000},
				     {"data0", "fd00::5", UP, 100000},
				     {"data0", "10.1.0.5", UP, 100000},
				     {"data10", "10.2.0.5", UP, 100000},
				     {"odd0", "169.254.3.4", UP, -1},
				     {NULL, NULL, 0, 0}};

static void is(const char *want, const char *right)
{
	char addr[GX_ADDR_MAX] = "";
	int ret = gx_env_addr(want, addr);

	if (right) {
		assert_string_equal(ret ? gx_error() : addr, right);
		return;
	}
	assert_int_equal(ret, -EINVAL);
	assert_non_null(strstr(gx_error(), want ? want : "GX_ADDR"));
	assert_non_null(strstr(gx_error(), "mgmt0 192.168.7.9, data0 fe80::1"));
}

static void addr__by_itself(void **state)
{
	static const struct iface v6_alone[] = {{"lo", "127.0.0.1", UP | IFF_LOOPBACK, 0},
						{"a0", "2001:db8::1", UP, 0},
						{"b0", "2001:db8::2", UP, 25000},
						{NULL, NULL, 0, 0}};
	static const struct iface nothing[] = {{"lo", "127.0.0.1", UP | IFF_LOOPBACK, 0},
					       {"docker0", "172.17.0.1", UP, 0},
					       {"a0", "fe80::2", UP, 0},
					       {NULL, NULL, 0, 0}};

	ifaces = usual;
	is(NULL, "10.1.0.5");
	is("", "10.1.0.5");
	ifaces = v6_alone;
	is(NULL, "2001:db8::2");
	ifaces = nothing;
	is(NULL, "127.0.0.1");
}

/* Without a wish all of them, the best first; with one, one. */
static void addrs__several(void **state)
{
	char addr[GX_ADDRS_MAX][GX_ADDR_MAX];

	ifaces = usual;
	assert_int_equal(gx_env_addrs(NULL, addr, GX_ADDRS_MAX), 5);
	assert_string_equal(addr[0], "10.1.0.5");
	assert_string_equal(addr[1], "10.2.0.5");
	assert_string_equal(addr[2], "192.168.7.9");
	assert_string_equal(addr[3], "fd00::5");
	assert_string_equal(addr[4], "2001:db8::1");
	assert_int_equal(gx_env_addrs(NULL, addr, 2), 2);
	assert_string_equal(addr[1], "10.2.0.5");
	assert_int_equal(gx_env_addrs("data", addr, GX_ADDRS_MAX), 1);
	assert_string_equal(addr[0], "10.1.0.5");
}

static void lines_count(void *arg, int level, const char *line)
{
	*(unsigned *)arg +=
		level == GX_LOG_WARN && strstr(line, "GX_ADDR=10.0.0.0/8 has no effect");
}

/* An address without a key is no silent thing; nor is it said twice. */
static void key_file__address_without_a_key(void **state)
{
	unsigned lines = 0;

	gx_log_sink(lines_count, &lines);
	unsetenv("GX_KEY_FILE");
	assert_null(gx_env_key_file());
	assert_int_equal(lines, 0);
	setenv("GX_ADDR", "10.0.0.0/8", 1);
	assert_null(gx_env_key_file());
	assert_int_equal(lines, 1);
	assert_null(gx_env_key_file());
	assert_int_equal(lines, 1);
	unsetenv("GX_ADDR");
	gx_log_sink(NULL, NULL);
}

/* A list that fits its room, at one port, and a context that is reached by each. */
static void listen__all(void **state)
{
	static const struct iface two[] = {
		{"a0", "127.0.0.2", UP, 0}, {"b0", "127.0.0.3", UP, 0}, {NULL, NULL, 0, 0}};
	char told[GX_LIST_MAX], right[64];
	struct gx_opts o = GX_INIT(o);
	struct gx *gx;
	int port;

	ifaces = two;
	o.nr_cores = 1;
	o.server = true;
	assert_int_equal(gx_open(&o, &gx), 0);
	port = gx_env_listen(gx, GX_ADDRS_MAX, told, sizeof(told));
	assert_true(port > 0);
	snprintf(right, sizeof(right), "127.0.0.2:%d,127.0.0.3:%d", port, port);
	assert_string_equal(told, right);
	assert_true(gx_env_listen(gx, GX_ADDRS_MAX, told, 20) > 0);
	assert_null(strchr(told, ','));
	gx_close(gx);
}

static void addr__named(void **state)
{
	ifaces = usual;
	is("192.168.7.9", "192.168.7.9");
	is("2001:db8::1", "2001:db8::1");
	is("127.0.0.1", "127.0.0.1");
	is("127.3.2.1", "127.3.2.1");
	is("::1", "::1");
	is("10.9.0.1", NULL);
	is("10.1.0.6", NULL);
	is("0.0.0.0", NULL);
	is("localhost", NULL);
	is("127.1.2.3.4", NULL);
}

static void addr__of_a_network(void **state)
{
	ifaces = usual;
	is("192.168.0.0/16", "192.168.7.9");
	is("10.2.0.0/15", "10.2.0.5");
	is("10.0.0.0/8", "10.1.0.5");
	is("fd00::/8", "fd00::5");
	is("fe80::/10", "fe80::1");
	is("0.0.0.0/0", "10.1.0.5");
	is("10.0.0.0/33", NULL);
	is("10.0.0.0/", NULL);
	is("10.0.0.0/-1", NULL);
	is("10.4.0.0/14", NULL);
}

static void addr__of_an_interface(void **state)
{
	ifaces = usual;
	is("mgmt0", "192.168.7.9");
	is("data1", "10.2.0.5");
	is("=data10,data0", "10.2.0.5");
	is("=data1", NULL);
	is("docker0", "172.17.0.1");
	is("odd", "169.254.3.4");
	is("eth,mgmt", "192.168.7.9");
	is("mgmt,data", "192.168.7.9"); /* the first that is named, not the fastest */
	is("^data", "172.17.0.1");
	is("^data,docker,br-", "192.168.7.9");
	is("eth", NULL);
}

static void addr__by_the_environment(void **state)
{
	ifaces = usual;
	setenv("GX_ADDR", "mgmt0", 1);
	is(NULL, "192.168.7.9");
	is("data10", "10.2.0.5");
	setenv("GX_ADDR", "", 1);
	is(NULL, "10.1.0.5");
	unsetenv("GX_ADDR");
	assert_null(gx_env_key_file());
	setenv("GX_KEY_FILE", "", 1);
	assert_null(gx_env_key_file());
	setenv("GX_KEY_FILE", "/a/job.key", 1);
	assert_string_equal(gx_env_key_file(), "/a/job.key");
}

static void addr__fails(void **state)
{
	char addr[GX_ADDR_MAX], wish[600];

	ifaces = NULL;
	assert_int_equal(gx_env_addr(NULL, addr), -EMFILE);
	memset(wish, 'e', sizeof(wish) - 1);
	wish[sizeof(wish) - 1] = 0;
	assert_int_equal(gx_env_addr(wish, addr), -EINVAL);
	ifaces = usual;
	assert_int_equal(gx_env_addr("^", addr), -EINVAL);
	assert_int_equal(gx_env_addr(",,", addr), -EINVAL);
	assert_int_equal(gx_env_addr("a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,mgmt0", addr), 0);
	assert_int_equal(gx_env_addr("a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,mgmt0,data0", addr), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(addr__by_itself),
		cmocka_unit_test(addr__named),
		cmocka_unit_test(addrs__several),
		cmocka_unit_test(key_file__address_without_a_key),
		cmocka_unit_test(listen__all),
		cmocka_unit_test(addr__of_a_network),
		cmocka_unit_test(addr__of_an_interface),
		cmocka_unit_test(addr__by_the_environment),
		cmocka_unit_test(addr__fails),
	};

	unsetenv("GX_ADDR");
	unsetenv("GX_KEY_FILE");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
