// SPDX-License-Identifier: Apache-2.0
/* Names with punctuation on a command line, as structs of gx/opts.h. */
#include "common/opt_ctx.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void same(const char *a, const char *b)
{
	if (!a || !b)
		assert_ptr_equal(a, b);
	else
		assert_string_equal(a, b);
}

static void opt_ports__names(void **state)
{
	static const struct {
		const char *text;
		struct gx_port_name is;
	} good[] = {{"udp", {"udp"}},
		    {"udp:port=7601", {"udp", NULL, "port=7601"}},
		    {"dpdk:net_memif", {"dpdk", "net_memif"}},
		    {"dpdk:net_memif,id=0,role=server", {"dpdk", "net_memif", "id=0,role=server"}},
		    {"dpdk:0000:01:00.0,mtu=9000", {"dpdk", "0000:01:00.0", "mtu=9000"}}};

	for (unsigned i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct opt_ports p = {0};

		assert_int_equal(opt_ports(good[i].text, &p), 0);
		assert_int_equal(p.nr, 1);
		same(p.v[0].name, good[i].is.name);
		same(p.v[0].device, good[i].is.device);
		same(p.v[0].args, good[i].is.args);
		opt_ports_bare(&p);
		assert_null(p.v[0].args);
	}
}

static void opt_ports__words_of_all_ports(void **state)
{
	static const struct {
		const char *text, *device, *args;
		enum gx_cc cc;
		unsigned paths;
	} good[] = {{"udp:cc=rate", NULL, NULL, GX_CC_RATE},
		    {"udp:cc=swift", NULL, NULL, GX_CC_SWIFT},
		    {"udp:cc=none,port=7601", NULL, "port=7601", GX_CC_NONE},
		    {"udp:port=7601,cc=rate", NULL, "port=7601", GX_CC_RATE},
		    {"udp:paths=1", NULL, NULL, GX_CC_AUTO, 1},
		    {"udp:paths=8,port=7601", NULL, "port=7601", GX_CC_AUTO, 8},
		    {"udp:port=7601,paths=4,cc=none", NULL, "port=7601", GX_CC_NONE, 4},
		    {"dpdk:0000:01:00.0,a=1,cc=none,b=2", "0000:01:00.0", "a=1,b=2", GX_CC_NONE},
		    {"dpdk:0000:01:00.0,acc=rate", "0000:01:00.0", "acc=rate"}};
	static const char *const bad[] = {"udp:cc=",	 "udp:cc=rates", "udp:cc=rat",
					  "udp:cc=auto", "udp:paths=",	 "udp:paths=0",
					  "udp:paths=9", "udp:paths=4x", "udp:paths=44444444444"};

	for (unsigned i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct opt_ports p = {0};

		assert_int_equal(opt_ports(good[i].text, &p), 0);
		same(p.v[0].device, good[i].device);
		same(p.v[0].args, good[i].args);
		assert_int_equal(p.v[0].cc, good[i].cc);
		assert_int_equal(p.v[0].paths, good[i].paths);
	}
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(opt_ports(bad[i], &(struct opt_ports){0}), -EINVAL);
}

static void opt_ports__several(void **state)
{
	struct opt_ports p = {0};

	assert_int_equal(opt_ports("dpdk:0000:01:00.0,mtu=9000;dpdk:0000:02:00.0", &p), 0);
	assert_int_equal(p.nr, 2);
	assert_string_equal(p.v[1].device, "0000:02:00.0");
	assert_int_equal(opt_ports("shm", &p), 0); /* --port again */
	assert_int_equal(p.nr, 3);
	assert_string_equal(p.v[0].device, "0000:01:00.0");
	assert_string_equal(p.v[2].name, "shm");
	assert_int_equal(opt_ports("1;2;3;4;5;6;7;8;9;10;11", &p), 0);
	assert_int_equal(p.nr, OPT_PORTS_MAX);
	assert_string_equal(p.v[OPT_PORTS_MAX - 1].name, "6");
}

static void opt_ports__refuses(void **state)
{
	static const char *const bad[] = {"",	      ";",  "udp;", ";udp",
					  "udp;;shm", ":x", "shm:", "dpdk:"};
	char text[OPT_PORTS_B + 1];

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct opt_ports p = {0};

		if (opt_ports(bad[i], &p) != -EINVAL)
			fail_msg("'%s' was taken", bad[i]);
	}
	memset(text, 'a', sizeof(text));
	text[OPT_PORTS_B] = 0;
	assert_int_equal(opt_ports(text, &(struct opt_ports){0}), -EINVAL);
	text[OPT_PORTS_B - 1] = 0;
	assert_int_equal(opt_ports(text, &(struct opt_ports){0}), 0);
}

static void opt_rail__names(void **state)
{
	static const struct {
		const char *text;
		struct gx_rail is;
		bool all;
	} good[] = {{"auto", {NULL}},
		    {"all", {NULL}, true},
		    {"all,sl=3", {NULL, .sl = 3}, true},
		    {"mlx5_0", {"mlx5_0"}},
		    {"mlx5_0:1", {"mlx5_0", .port = 1}},
		    {"mlx5_0:1:3", {"mlx5_0", .port = 1, .gid = 3, .has_gid = true}},
		    {"mlx5_0:1:0", {"mlx5_0", .port = 1, .has_gid = true}},
		    {"auto,tc=106,sl=15", {NULL, .sl = 15, .tc = 106}},
		    {"allmost", {"allmost"}}};

	for (unsigned i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct gx_rail r;
		char name[64];
		bool all;

		assert_int_equal(opt_rail(good[i].text, name, &r, &all), 0);
		same(r.device, good[i].is.device);
		assert_int_equal(all, good[i].all);
		assert_int_equal(r.port, good[i].is.port);
		assert_int_equal(r.gid, good[i].is.gid);
		assert_int_equal(r.has_gid, good[i].is.has_gid);
		assert_int_equal(r.sl, good[i].is.sl);
		assert_int_equal(r.tc, good[i].is.tc);
	}
}

static void opt_rail__refuses(void **state)
{
	static const char *const bad[] = {
		"",	      ":2",
		"a:",	      "a:0",
		"a:256",      "a:x",
		"a:1:",	      "a:1:256",
		"a:1:2:3",    "a:1:x",
		"a:+1",	      "a: 1",
		"a,",	      "a,sl",
		"a,sl=",      "a,sl=16",
		"a,tc=256",   "a,sl=1,sl=2",
		"a,sl=1tc=2", "a,dscp=1",
		"a,sl=-1",    ",sl=1",
		"all:1",      "a,sl=1,",
		"a:1000",     "a1234567890123456789012345678901234567890123456789012345678901234"};

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct gx_rail r;
		char name[64];
		bool all;

		if (opt_rail(bad[i], name, &r, &all) != -EINVAL)
			fail_msg("'%s' was taken", bad[i]);
	}
}

static void opt_nic_queues__names(void **state)
{
	struct gx_nic_opts o = {0};
	char name[64];

	assert_int_equal(opt_nic_queues("eth0:8-15", name, &o), 0);
	assert_string_equal(o.rx_if, "eth0");
	assert_int_equal(o.rx_first, 8);
	assert_int_equal(o.rx_queues, 8);
	assert_int_equal(opt_nic_queues("eth0.7:0-0", name, &o), 0);
	assert_string_equal(o.rx_if, "eth0.7");
	assert_int_equal(o.rx_queues, 1);
}

static void opt_nic_queues__refuses(void **state)
{
	static const char *const bad[] = {"",
					  "nic0",
					  ":8-9",
					  "nic0:",
					  "nic0:8",
					  "nic0:8-",
					  "nic0:8-9x",
					  "nic0:9-8",
					  "nic0:-8",
					  "nic0:8--9",
					  "nic0: 8-9",
					  "nic0:-8-9",
					  "nic0:8-99999999999"};

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct gx_nic_opts o = {0};
		char name[64];

		if (opt_nic_queues(bad[i], name, &o) != -EINVAL)
			fail_msg("'%s' was taken", bad[i]);
	}
}

/* The groups of a copy are the copy's own. */
static void opt_ctx_opts__of_a_copy(void **state)
{
	struct opt_ctx a = {0}, b;
	char why[OPT_WHY_MAX];
	struct gx_opts o;

	assert_int_equal(opt_gx(OPT_GX_RDMA, "mlx5_0:1", &a, why), 0);
	assert_int_equal(opt_gx(OPT_GX_RDMA, "mlx5_1,sl=3", &a, why), 0);
	assert_int_equal(opt_gx(OPT_GX_TCP_RX_NIC, "eth0:8-15", &a, why), 0);
	assert_int_equal(opt_gx(OPT_GX_WINDOW, "7", &a, why), 0);
	assert_int_equal(opt_gx(OPT_GX_RDMA, "all", &a, why), -EINVAL);
	assert_non_null(strstr(why, "--rdma"));
	b = a;
	memset(&a, 0x5a, sizeof(a));
	o = opt_ctx_opts(&b);
	assert_int_equal(o.size, sizeof(o));
	assert_int_equal(o.packet->window, 7);
	assert_int_equal(o.packet->size, sizeof(*o.packet));
	assert_int_equal(o.verbs->nr_rails, 2);
	assert_string_equal(o.verbs->rails[1].device, "mlx5_1");
	assert_int_equal(o.verbs->rails[1].sl, 3);
	assert_string_equal(o.nic->rx_if, "eth0");
	opt_ctx_verbs(&b);
	assert_int_equal(b.verbs.nr_rails, 2);
}

static void opt_gx__rdma(void **state)
{
	struct opt_ctx c = {0};
	char why[OPT_WHY_MAX];

	for (unsigned i = 0; i < OPT_RAILS_MAX; i++)
		assert_int_equal(opt_gx(OPT_GX_RDMA, "auto", &c, why), 0);
	assert_int_equal(opt_gx(OPT_GX_RDMA, "auto", &c, why), -EINVAL);
	c = (struct opt_ctx){0};
	assert_int_equal(opt_gx(OPT_GX_RDMA, "all,tc=9", &c, why), 0);
	assert_int_equal(opt_gx(OPT_GX_RDMA, "auto", &c, why), -EINVAL);
	assert_true(c.verbs.all);
	c = (struct opt_ctx){0};
	opt_ctx_verbs(&c);
	assert_int_equal(c.verbs.nr_rails, 1);
	assert_null(opt_ctx_opts(&c).verbs->rails[0].device);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(opt_ports__names),
		cmocka_unit_test(opt_ports__words_of_all_ports),
		cmocka_unit_test(opt_ports__several),
		cmocka_unit_test(opt_ports__refuses),
		cmocka_unit_test(opt_rail__names),
		cmocka_unit_test(opt_rail__refuses),
		cmocka_unit_test(opt_nic_queues__names),
		cmocka_unit_test(opt_nic_queues__refuses),
		cmocka_unit_test(opt_ctx_opts__of_a_copy),
		cmocka_unit_test(opt_gx__rdma),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
