// SPDX-License-Identifier: Apache-2.0
/*
 * Option values of gxd and gxperf: what is taken, and what is refused.
 */
#include "common/opt.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void opt_size__units_are_powers_of_two(void **state)
{
	static const struct {
		const char *text;
		uint64_t want;
	} good[] = {
		{"0", 0},	    {"1", 1},
		{"64", 64},	    {"4K", 4096},
		{"4k", 4096},	    {"512M", 512ull << 20},
		{"2G", 2ull << 30}, {"1T", 1ull << 40},
		{"0G", 0},	    {"18446744073709551615", UINT64_MAX},
	};
	uint64_t v;

	for (unsigned i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(opt_size(good[i].text, &v), 0);
		assert_true(v == good[i].want);
	}
}

static void opt_size__refuses(void **state)
{
	static const char *const bad[] = {"",	 "K",  "-1",   "+1",   " 1", "1 ",
					  "4KB", "4Q", "0x10", "1.5G", "1K2"};
	static const char *const large[] = {"18446744073709551616", "18446744073709551615K",
					    "16777216T"};
	uint64_t v = 42;

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(opt_size(bad[i], &v), -EINVAL);
	for (unsigned i = 0; i < sizeof(large) / sizeof(large[0]); i++)
		assert_int_equal(opt_size(large[i], &v), -ERANGE);
	assert_int_equal(v, 42);
}

static void opt_size_text__shortest_exact(void **state)
{
	char buf[32];

	opt_size_text(0, buf, sizeof(buf));
	assert_string_equal(buf, "0");
	opt_size_text(1000003, buf, sizeof(buf));
	assert_string_equal(buf, "1000003");
	opt_size_text(64ull << 20, buf, sizeof(buf));
	assert_string_equal(buf, "64M");
	opt_size_text(1536, buf, sizeof(buf));
	assert_string_equal(buf, "1536");
}

static void opt_u32__bounds(void **state)
{
	uint32_t v;

	assert_int_equal(opt_u32("7", 1, 8, &v), 0);
	assert_int_equal(v, 7);
	assert_int_equal(opt_u32("0", 1, 8, &v), -ERANGE);
	assert_int_equal(opt_u32("9", 1, 8, &v), -ERANGE);
	assert_int_equal(opt_u32("99999999999999999999", 1, 8, &v), -ERANGE);
	assert_int_equal(opt_u32("1K", 1, 8, &v), -EINVAL);
	assert_int_equal(opt_u32("", 0, 8, &v), -EINVAL);
}

static void opt_bind__server(void **state)
{
	char host[OPT_HOST_MAX];

	assert_int_equal(opt_bind("127.0.0.2:7501", true, host), 0);
	assert_string_equal(host, "127.0.0.2");
	assert_int_equal(opt_bind("0.0.0.0:7501", true, host), -ENOENT);
	assert_int_equal(opt_bind("[::]:7501", true, host), -ENOENT);
	assert_int_equal(opt_bind("7501", true, host), -EINVAL);
	assert_int_equal(opt_bind(":7501", true, host), -EINVAL);
	assert_int_equal(opt_bind("999.1.1.1:7501", true, host), -EINVAL);
}

static void opt_port_ok__all_16_bits(void **state)
{
	static const char *const good[] = {"h:0", "h:1", "h:65535", "[::1]:7501"};
	static const char *const bad[] = {"h",	  "h:",	  "h:65536", "h:65537", "h:4294967297",
					  "h:-1", "h: 1", "h:+1",    "h:1x",	"h:http"};

	for (unsigned i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		assert_true(opt_port_ok(good[i]));
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(opt_port_ok(bad[i]));
}

static void opt_bind__client(void **state)
{
	char host[OPT_HOST_MAX];

	assert_int_equal(opt_bind("127.0.0.1:7501", false, host), 0);
	assert_string_equal(host, "127.0.0.1");
	assert_int_equal(opt_bind("nonsense", false, host), -EINVAL);
}

static void opt_seconds__decimals(void **state)
{
	uint64_t ns;

	assert_int_equal(opt_seconds("5", &ns), 0);
	assert_true(ns == 5000000000ull);
	assert_int_equal(opt_seconds("0.25", &ns), 0);
	assert_true(ns == 250000000ull);
	assert_int_equal(opt_seconds("0", &ns), -ERANGE);
	assert_int_equal(opt_seconds("1e9", &ns), -ERANGE);
	assert_int_equal(opt_seconds("-1", &ns), -EINVAL);
	assert_int_equal(opt_seconds("nan", &ns), -EINVAL);
	assert_int_equal(opt_seconds("inf", &ns), -EINVAL);
	assert_int_equal(opt_seconds("5s", &ns), -EINVAL);
}

static void opt_cpus__lists(void **state)
{
	struct opt_cpus c;
	char buf[64];

	assert_int_equal(opt_cpus("0", &c), 0);
	assert_int_equal(c.nr, 1);
	assert_int_equal(opt_cpus("0,2-4,9", &c), 0);
	opt_cpus_text(&c, buf, sizeof(buf));
	assert_string_equal(buf, "0,2,3,4,9");
	assert_int_equal(opt_cpus("any", &c), 0);
	assert_true(c.nr >= 1);
}

static void opt_cpus__refuses(void **state)
{
	static const char *const bad[] = {"",	   ",", "0,", "1-",    "3-1", "0,0",
					  "0-2,1", "a", "-1", "99999", "0;1", "0 1"};
	struct opt_cpus c;

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(opt_cpus(bad[i], &c), -EINVAL);
	assert_int_equal(opt_cpus("0-64", &c), -ERANGE);
}

static void opt_cpus_default__two_ends_do_not_meet(void **state)
{
	const struct opt_cpus one = {.cpu = {3}, .nr = 1}, two = {.cpu = {0, 1}, .nr = 2};
	struct opt_cpus many = {.nr = 16}, server, client;

	for (int i = 0; i < 16; i++)
		many.cpu[i] = i;
	opt_cpus_default(&one, true, &server);
	opt_cpus_default(&one, false, &client);
	assert_int_equal(server.cpu[0], 3);
	assert_int_equal(client.cpu[0], 3);
	opt_cpus_default(&two, true, &server);
	opt_cpus_default(&two, false, &client);
	assert_int_equal(server.nr + client.nr, 2);
	assert_int_equal(server.cpu[0], 0);
	assert_int_equal(client.cpu[0], 1);
	opt_cpus_default(&many, true, &server);
	opt_cpus_default(&many, false, &client);
	assert_int_equal(server.nr, OPT_CPUS_DEFAULT_MAX);
	assert_int_equal(client.nr, OPT_CPUS_DEFAULT_MAX);
	assert_int_equal(server.cpu[3], 3);
	assert_int_equal(client.cpu[0], 12);
}

static void opt_cpus_stranger__first_that_is_not_allowed(void **state)
{
	const struct opt_cpus allowed = {.cpu = {0, 2}, .nr = 2}, good = {.cpu = {2}, .nr = 1},
			      bad = {.cpu = {2, 1}, .nr = 2};

	assert_int_equal(opt_cpus_stranger(&good, &allowed), -1);
	assert_int_equal(opt_cpus_stranger(&bad, &allowed), 1);
}

static void opt_mem__name_place_size(void **state)
{
	struct opt_mem m;

	assert_int_equal(opt_mem("kv=host:2G", &m), 0);
	assert_string_equal(m.name, "kv");
	assert_int_equal(m.kind, GX_MEM_HOST);
	assert_true(m.len == 2ull << 30);
	assert_int_equal(opt_mem("w=cuda:3:4K", &m), 0);
	assert_int_equal(m.kind, GX_MEM_CUDA);
	assert_int_equal(m.device, 3);
	assert_int_equal(m.len, 4096);
}

static void opt_mem__refuses(void **state)
{
	static const char *const bad[] = {
		"",
		"kv",
		"kv=",
		"=host:1G",
		"kv=host",
		"kv=host:",
		"kv=host:0",
		"kv=host:x",
		"kv=cuda:1",
		"kv=tpu:1G",
		"kv=cuda:-1:1G",
		"kv=cuda::1G",
		"kv:host=1G",
		"k\nv=host:1G",
		"k\x7fv=host:1G",
		"k\xc3\xa4v=host:1G",
		"\x1b[31m=host:1G",
		"a234567890123456789012345678901234567890123456789012345678901234=host:1G"};
	struct opt_mem m;

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(opt_mem(bad[i], &m), -EINVAL);
}

static void opt_shell__quotes_what_needs_it(void **state)
{
	static const char *const is[][2] = {
		{"kv", "kv"},	      {"a.b-c_d:1", "a.b-c_d:1"}, {"a b", "'a b'"},
		{"$HOME", "'$HOME'"}, {"it's", "'it'\\''s'"},	  {"", "''"},
		{"-n", "'-n'"},	      {"a;b", "'a;b'"},
	};
	char buf[32], four[4];

	for (unsigned i = 0; i < sizeof(is) / sizeof(is[0]); i++) {
		opt_shell(is[i][0], buf, sizeof(buf));
		assert_string_equal(buf, is[i][1]);
	}
	opt_plain("a\tb\xff", buf, sizeof(buf));
	assert_string_equal(buf, "a?b?");
	opt_plain("abcdef", four, sizeof(four));
	assert_string_equal(four, "abc");
}

static void opt_unpack__names_go_both_ways(void **state)
{
	static const char *const names[] = {"auto", "kernel", "resident", "d2d", "host", "none"};
	enum gx_unpack_mode mode;

	for (unsigned i = 0; i < 6; i++) {
		assert_int_equal(opt_unpack(names[i], &mode), 0);
		assert_string_equal(opt_unpack_text(mode), names[i]);
	}
	assert_int_equal(opt_unpack("gpu", &mode), -EINVAL);
}

static void opt_integrity__names_and_numbers(void **state)
{
	enum gx_integrity_mode mode;

	assert_int_equal(opt_integrity("none", &mode), 0);
	assert_int_equal(mode, GX_INTEGRITY_MODE_NONE);
	assert_int_equal(opt_integrity("1", &mode), 0);
	assert_int_equal(mode, GX_INTEGRITY_MODE_CRC32C);
	assert_string_equal(opt_integrity_text(mode), "crc32c");
	assert_int_equal(opt_integrity("mac", &mode), 0);
	assert_int_equal(mode, GX_INTEGRITY_MODE_MAC);
	assert_int_equal(opt_integrity("3", &mode), 0);
	assert_string_equal(opt_integrity_text(mode), "gcm");
	assert_string_equal(opt_integrity_text(9), "unknown");
	assert_int_equal(opt_integrity("4", &mode), -EINVAL);
	assert_int_equal(opt_integrity("auto", &mode), -EINVAL);
	assert_int_equal(opt_integrity("", &mode), -EINVAL);
}

static void opt_pull__names(void **state)
{
	enum gx_pull how;

	assert_int_equal(opt_pull("auto", &how), 0);
	assert_int_equal(how, GX_PULL_AUTO);
	assert_int_equal(opt_pull("off", &how), 0);
	assert_int_equal(how, GX_PULL_OFF);
	assert_int_equal(opt_pull("allow", &how), 0);
	assert_int_equal(how, GX_PULL_ALLOW);
	assert_int_equal(opt_pull("on", &how), 0);
	assert_int_equal(how, GX_PULL_ON);
	assert_int_equal(opt_pull("push", &how), -EINVAL);
}

static void opt_tcp_tx__names(void **state)
{
	static const char *const names[] = {"copy", "devmem", "auto"};
	enum gx_nic_tx how;

	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(opt_tcp_tx(names[i], &how), 0);
		assert_int_equal(how, GX_NIC_TX_COPY + i);
	}
	assert_int_equal(opt_tcp_tx("uring", &how), -EINVAL);
}

static void opt_crc_by__names(void **state)
{
	enum gx_crc_by who;

	assert_int_equal(opt_crc_by("copy", &who), 0);
	assert_int_equal(who, GX_CRC_BY_COPY);
	assert_int_equal(opt_crc_by("cpu", &who), 0);
	assert_int_equal(who, GX_CRC_BY_CPU);
	assert_int_equal(opt_crc_by("gpu", &who), -EINVAL);
	assert_string_equal(opt_crc_by_text(GX_INTEGRITY_MODE_NONE, 0, GX_MEM_HOST), "none");
	assert_string_equal(
		opt_crc_by_text(GX_INTEGRITY_MODE_CRC32C, 1 << GX_MEM_CUDA, GX_MEM_HOST), "cpu");
	assert_string_equal(
		opt_crc_by_text(GX_INTEGRITY_MODE_CRC32C, 1 << GX_MEM_CUDA, GX_MEM_CUDA), "copy");
}

static void opt_bounce__host_or_a_gpu(void **state)
{
	enum gx_bounce bounce = GX_BOUNCE_HOST;
	int device = -1;

	assert_int_equal(opt_bounce("gpu", &bounce, &device), 0);
	assert_int_equal(bounce, GX_BOUNCE_CUDA);
	assert_int_equal(device, 0);
	assert_int_equal(opt_bounce("gpu:3", &bounce, &device), 0);
	assert_int_equal(device, 3);
	assert_int_equal(opt_bounce("host", &bounce, &device), 0);
	assert_int_equal(bounce, GX_BOUNCE_HOST);
	assert_int_equal(opt_bounce("gpu:", &bounce, &device), -EINVAL);
	assert_int_equal(opt_bounce("gpu:x", &bounce, &device), -EINVAL);
	assert_int_equal(opt_bounce("cuda", &bounce, &device), -EINVAL);
}

static void opt_place__text_goes_both_ways(void **state)
{
	enum gx_mem_kind kind;
	char buf[32];
	int device;

	assert_int_equal(opt_place("cuda:7", &kind, &device), 0);
	opt_place_text(kind, device, buf, sizeof(buf));
	assert_string_equal(buf, "cuda:7");
	assert_int_equal(opt_place("host", &kind, &device), 0);
	opt_place_text(kind, device, buf, sizeof(buf));
	assert_string_equal(buf, "host");
	assert_int_equal(opt_place("cuda", &kind, &device), -EINVAL);
}

static void opt_sizes__lists_and_ranges(void **state)
{
	struct opt_sizes s;

	assert_int_equal(opt_sizes("4K:1M:4,3G", &s), 0);
	assert_int_equal(s.n, 6);
	assert_int_equal(s.v[0], 4096);
	assert_int_equal(s.v[4], 1 << 20);
	assert_int_equal(s.v[5], 3ull << 30);
	assert_int_equal(opt_sizes("64", &s), 0);
	assert_int_equal(s.n, 1);
	assert_int_equal(opt_sizes("1:9:2", &s), 0);
	assert_int_equal(s.n, 4);
	assert_int_equal(opt_sizes("1:4", &s), 0);
	assert_int_equal(s.n, 2);
}

static void opt_sizes__refuses(void **state)
{
	static const char *const bad[] = {"",	   ",",	    "0",  "x",	   "4K:1K",
					  "1:8:1", "1:8:x", "-4", "1:1T:0"};
	struct opt_sizes s = {.n = 7};

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (opt_sizes(bad[i], &s) != -EINVAL)
			fail_msg("'%s' was taken", bad[i]);
}

static void opt_addr__adds_the_port(void **state)
{
	static const char *const pairs[][2] = {
		{"10.0.0.1", "10.0.0.1:7501"},
		{"10.0.0.1:80", "10.0.0.1:80"},
		{"a,b:1,[::1]", "a:7501,b:1,[::1]:7501"},
		{"[::1]:80", "[::1]:80"},
		{"::1", "::1"}, /* the library says what is wrong with it */
		{"", ""},
	};
	char many[4096];

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
		assert_string_equal(opt_addr(pairs[i][0]), pairs[i][1]);
	memset(many, 'a', sizeof(many) - 1);
	many[sizeof(many) - 1] = 0;
	assert_ptr_equal(opt_addr(many), many);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(opt_addr__adds_the_port),
		cmocka_unit_test(opt_size__units_are_powers_of_two),
		cmocka_unit_test(opt_size__refuses),
		cmocka_unit_test(opt_size_text__shortest_exact),
		cmocka_unit_test(opt_u32__bounds),
		cmocka_unit_test(opt_sizes__lists_and_ranges),
		cmocka_unit_test(opt_sizes__refuses),
		cmocka_unit_test(opt_bind__server),
		cmocka_unit_test(opt_bind__client),
		cmocka_unit_test(opt_port_ok__all_16_bits),
		cmocka_unit_test(opt_seconds__decimals),
		cmocka_unit_test(opt_cpus__lists),
		cmocka_unit_test(opt_cpus__refuses),
		cmocka_unit_test(opt_cpus_default__two_ends_do_not_meet),
		cmocka_unit_test(opt_cpus_stranger__first_that_is_not_allowed),
		cmocka_unit_test(opt_mem__name_place_size),
		cmocka_unit_test(opt_mem__refuses),
		cmocka_unit_test(opt_shell__quotes_what_needs_it),
		cmocka_unit_test(opt_unpack__names_go_both_ways),
		cmocka_unit_test(opt_integrity__names_and_numbers),
		cmocka_unit_test(opt_crc_by__names),
		cmocka_unit_test(opt_pull__names),
		cmocka_unit_test(opt_tcp_tx__names),
		cmocka_unit_test(opt_bounce__host_or_a_gpu),
		cmocka_unit_test(opt_place__text_goes_both_ways),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
