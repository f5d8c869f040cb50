/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses of the control half. */
#include <errno.h>

#include "control/ctl_rig.h"

#define WAIT_NS (WAIT_S * 1000000000ull)

static void addr_resolve__table(void **state)
{
	static const struct {
		const char *addr, *says;
	} bad[] = {
		{"", "HOST:PORT"},
		{"localhost", "HOST:PORT"},
		{":7501", "HOST:PORT"},
		{"::1:7501", "brackets"},
		{"[::1]", "HOST:PORT"},
		{"[]:7501", "HOST:PORT"},
		{"[::1:7501", "HOST:PORT"},
		{"127.0.0.1:", "0 to 65535"},
		{"127.0.0.1:x", "0 to 65535"},
		{"127.0.0.1:-1", "0 to 65535"},
		{"127.0.0.1:65536", "0 to 65535"},
		{"127.0.0.1:000000001", "0 to 65535"},
		{"[:7501", "HOST:PORT"},
		{"[::1]x:7501", "HOST:PORT"},
		{"[fe80::1]:7501", "[fe80::1%eth0]:7501"},
		{"lo:7501", "ip addr show lo"},
	};
	struct ctl_addr out[CTL_ADDRS_MAX];

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		assert_int_equal(ctl_addr_resolve(bad[i].addr, true, WAIT_NS, out), -EINVAL);
		assert_says(gx_error(), bad[i].says);
	}
	assert_int_equal(ctl_addr_resolve("127.0.0.1:0", false, WAIT_NS, out), -EINVAL);
	assert_int_equal(ctl_addr_resolve("127.0.0.1:7501", false, WAIT_NS, out), 1);
}

static void addr_is_loopback__table(void **state)
{
	static const struct {
		const char *addr;
		bool loopback;
	} table[] = {
		{"127.0.0.1:1", true},	    {"127.9.9.9:1", true},
		{"[::1]:1", true},	    {"[::ffff:127.0.0.1]:1", true},
		{"0.0.0.0:1", false},	    {"[::]:1", false},
		{"192.0.2.1:1", false},	    {"[::ffff:192.0.2.1]:1", false},
		{"[2001:db8::1]:1", false},
	};
	struct ctl_addr out[CTL_ADDRS_MAX];
	char name[96];

	for (unsigned i = 0; i < GX_ARRAY_SIZE(table); i++) {
		assert_int_equal(ctl_addr_resolve(table[i].addr, true, WAIT_NS, out), 1);
		assert_int_equal(ctl_addr_is_loopback(&out[0].sa), table[i].loopback);
		ctl_addr_name(&out[0].sa, name, sizeof(name));
		assert_string_equal(name, table[i].addr);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(addr_resolve__table),
		TEST(addr_is_loopback__table),
	};

	return rig_run("ctl_addr", tests, GX_ARRAY_SIZE(tests));
}
